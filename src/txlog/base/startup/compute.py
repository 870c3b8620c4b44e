"""Gives the package pyarrow.compute: `from txlog.base.startup import compute as pc`.

Importing that module makes pyarrow create some three hundred functions, which takes as long as half
of the rest of Arrow. Our modules run at their first use (`lazy`), so a command that calls no
kernel never pays for it.
"""

from __future__ import annotations

from typing import Any

import pyarrow.compute

globals().update(
    {name: item for name, item in vars(pyarrow.compute).items() if not name.startswith("_")}
)


def __getattr__(name: str) -> Any:
    raise AttributeError(f"pyarrow.compute has no {name}")

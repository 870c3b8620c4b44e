"""Owns how the package gets pyarrow.compute: `from txlog.base.startup import compute as pc`.

pyarrow makes some three hundred functions when that module is imported, which takes as long as half
of the rest of Arrow. A module of ours runs when it is first used (`lazy`), so a command that
calls no kernel never pays for it.
"""

from __future__ import annotations

from typing import Any

import pyarrow.compute

globals().update(
    {name: item for name, item in vars(pyarrow.compute).items() if not name.startswith("_")}
)


def __getattr__(name: str) -> Any:
    raise AttributeError(f"pyarrow.compute has no {name}")

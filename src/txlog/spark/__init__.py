"""txlog and Spark: sessions, and topics as data frames. Installed as `txlog[spark]`.

Names are loaded when first used; without pyspark that is MissingExtra. Of the rest of
txlog only jobs import this package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from txlog.errors import MissingExtra

if TYPE_CHECKING:
    from txlog.spark.archive import prepare as prepare
    from txlog.spark.loading import bulk_load as bulk_load
    from txlog.spark.reading import read as read
    from txlog.spark.reading import release as release
    from txlog.spark.session import session as session

_HOMES = {
    "Spark": "engine", "bulk_load": "loading", "prepare": "archive", "read": "reading",
    "release": "reading", "session": "session",
}  # fmt: skip

__all__ = ["bulk_load", "prepare", "read", "release", "session"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module txlog.spark has no attribute {name!r}")
    try:
        found = getattr(importlib.import_module(f"txlog.spark.{home}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("pyspark", "py4j"):
            raise
        raise MissingExtra("pyspark is not installed", hint="pip install 'txlog[spark]'") from error
    globals()[name] = found
    return found

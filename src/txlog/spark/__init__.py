"""The public name of txlog's Spark API: the names of `txlog.lake.spark`, and jobs as programs.

Contents:

    jobs/   jobs as programs for spark-submit
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from txlog.lake import spark

if TYPE_CHECKING:
    from txlog.lake.spark import bulk_load as bulk_load
    from txlog.lake.spark import read as read
    from txlog.lake.spark import register as register
    from txlog.lake.spark import release as release
    from txlog.lake.spark import schema_of as schema_of
    from txlog.lake.spark import session as session

__all__ = ["bulk_load", "read", "register", "release", "schema_of", "session"]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name not in __all__ and name != "Spark":
        raise AttributeError(f"module txlog.spark has no attribute {name!r}")
    return getattr(spark, name)

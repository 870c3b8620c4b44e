"""Topics as data frames and tables of Spark, and jobs on Spark. Installed as `txlog-store[spark]`.

Names are loaded at first use, which raises MissingExtra without pyspark. Users import them from
`txlog.spark`; only `txlog.spark`, `pyspark_txlog` and commands import this package.

Contents:

    datasource    the data source `txlog`, which loads modules on demand
    engine        the engine that runs jobs on a Spark session
    java          the Java runtime of a session
    loading       `bulk_load`: a data frame becomes messages of a topic, once
    options       the options for reading
    reading       `read`: a topic as a data frame, scanned by Spark itself
    records       records of typed topics: their type, their versions, encoding
    session       starting a Spark session, and opening a store for it
    sink          writing: the rows of a job or stream are stored once
    source        reading batches, and remote files: the driver plans tasks, workers read rows
    streaming     reading streams: the driver plans offsets, workers read rows
    submit        running elsewhere: a zip of txlog, and properties
    tables        `register`: topics as tables of the catalog, for SQL without a path
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from txlog.errors import MissingExtra

if TYPE_CHECKING:
    from txlog.lake.spark.loading import bulk_load as bulk_load
    from txlog.lake.spark.reading import read as read
    from txlog.lake.spark.reading import release as release
    from txlog.lake.spark.records import schema_of as schema_of
    from txlog.lake.spark.session import session as session
    from txlog.lake.spark.tables import register as register

_HOMES = {
    "Spark": "engine", "bulk_load": "loading", "read": "reading",
    "register": "tables", "release": "reading", "schema_of": "records", "session": "session",
}  # fmt: skip

__all__ = ["bulk_load", "read", "register", "release", "schema_of", "session"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module txlog.spark has no attribute {name!r}")
    try:
        attribute = getattr(importlib.import_module(f"txlog.lake.spark.{home}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("pyspark", "py4j"):
            raise
        raise MissingExtra(
            "pyspark is not installed", hint="pip install 'txlog-store[spark]'"
        ) from error
    globals()[name] = attribute
    return attribute


class _Package(ModuleType):
    """The package: its `session` stays the function when the module of that name is imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "session" and isinstance(value, ModuleType):
            value = value.session
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

"""Owns TxlogSource, the data source that Spark knows as `txlog`; it loads modules on demand.

Spark imports this in each of its short-lived planners, and pickles the class by name, so it must
not be defined in a script.

A table of a catalog keeps its schema, but Spark passes none of its options when it reads or writes
it. So the options are metadata of the first column.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import isfunction
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark.sql.datasource import CaseInsensitiveDict, DataSource
from pyspark.sql.types import StructType

from txlog.base.message_columns import MESSAGES, spark_schema
from txlog.errors import TxlogError

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )

T = TypeVar("T")
SCHEMA: Final = spark_schema(MESSAGES)
KEPT: Final = "txlog"
"""The metadata of a table's first column: its options, and `columns`, all column names."""


@contextmanager
def first_line() -> Iterator[None]:
    """A context that puts a TxlogError's message and hint in the first line of Spark's error.

    Spark shows the traceback of a Python error, which begins with its cause. A cause that was
    never raised has no traceback, so it is one line. The error that passes gets such a cause.
    """
    try:
        yield
    except TxlogError as error:
        shown_error = copy.copy(error)
        shown_error.message = (
            error.message if error.hint is None else f"{error.message}; {error.hint}"
        )
        error.__class__ = _with_cause(type(error))
        raise error from shown_error


def _with_cause(kind: type[TxlogError]) -> type[TxlogError]:
    """A subclass whose cause cannot change: Spark removes causes when it shortens tracebacks."""

    cause: Any = vars(BaseException)["__cause__"]
    body = {
        "__module__": "txlog",  # the module that users import it from
        "__qualname__": kind.__qualname__,
        "__cause__": property(lambda error: cause.__get__(error), lambda error, new: None),
    }
    return type(kind.__name__, (kind,), body)


def plain(kind: type[T]) -> type[T]:
    """Class decorator: its public methods raise errors in the form of `first_line`."""
    for name, method in vars(kind).items():
        if isfunction(method) and not name.startswith("_"):
            setattr(kind, name, first_line()(method))
    return kind


@plain
class TxlogSource(DataSource):
    """The messages of a topic; options as in txlog.lake.spark.options."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)` and `USING …`."""
        return "txlog"

    def schema(self) -> str | StructType:
        """The columns of `messages` or of the option `columns`; a typed topic has `record`."""
        if "provider" in self.options and "owner" in self.options:  # a table is being created
            table_schema: StructType = _part("tables").schema_of_table(self.options)
            return table_schema
        _part("options").check_reading(self.options)
        names = self.options.get("columns")
        column_types: str = _part("records").columns_of(self.options)
        return column_types if names is None else _part("options").some_columns(names, column_types)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the messages that the topic has now."""
        reader_: DataSourceReader = _part("source").reader(
            _all(self.options, schema, "reader"), schema
        )
        return reader_

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader of messages as they arrive."""
        reader_: DataSourceStreamReader = _part("streaming").reader(
            _all(self.options, schema, "streamReader"), schema
        )
        return reader_

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A sink for a batch: options path, topic, txnKey, batchId."""
        sink: DataSourceWriter = _part("sink").batch_sink(
            _all(self.options, schema, "writer"), schema, overwrite
        )
        return sink

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """A sink for micro-batches: options path, topic, txnAppId."""
        sink: DataSourceStreamWriter = _part("sink").stream_sink(
            _all(self.options, schema, "streamWriter"), schema, overwrite
        )
        return sink


def kept_by(schema: StructType) -> Mapping[str, str]:
    """The options of the table with this schema; empty if it is not the schema of a table."""
    metadata = schema.fields[0].metadata.get(KEPT, {}) if schema.fields else {}
    if metadata.get("columns") != schema.fieldNames():
        return {}
    options: Mapping[str, str] = metadata["options"]
    return options


def _all(options: Mapping[str, str], schema: StructType, call: str) -> Mapping[str, str]:
    """The options of the call, plus the options of its table that apply to it."""
    table_options = kept_by(schema)
    if not table_options:
        return options
    return CaseInsensitiveDict({**_part("options").of_call(table_options, call), **options})


def _part(name: str) -> Any:
    """A neighbouring module, loaded at first use: these need the whole engine."""
    return importlib.import_module(f"{__package__}.{name}")

"""Owns TxlogSource, the data source that Spark knows as `txlog`; loads only what a call needs.

Spark imports this in each of its short-lived planners, and pickles the class by name: it must not
be defined in a script.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

SCHEMA = (
    "topic string, partition int, message_id string, ledger bigint, entry bigint, txn_index int,"
    " key binary, value binary, properties map<string,string>, publish_time timestamp,"
    " event_time timestamp, deliver_at timestamp, visible_time timestamp, producer string,"
    " sequence_id bigint, lsn bigint, size_bytes bigint"
)


class TxlogSource(DataSource):
    """The messages of a topic; options as in txlog.spark.options."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)` and `USING …`."""
        return "txlog"

    def schema(self) -> str:
        """The columns of `messages`."""
        is_committed = self.options.get("isolation", "committed") == "committed"
        return SCHEMA if is_committed else f"{SCHEMA}, txn_state string"

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of what the topic has now."""
        made: DataSourceReader = _part("source").reader(self.options, schema)
        return made

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader of what arrives."""
        made: DataSourceStreamReader = _part("streaming").reader(self.options, schema)
        return made

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A sink for a batch: options path, topic, txnKey, batchId."""
        made: DataSourceWriter = _part("sink").batch_sink(self.options, schema, overwrite)
        return made

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """A sink for a micro-batch: options path, topic, txnAppId."""
        made: DataSourceStreamWriter = _part("sink").stream_sink(self.options, schema, overwrite)
        return made


def _part(name: str) -> Any:
    """A neighbouring module, loaded when used: these need the whole engine."""
    return importlib.import_module(f"{__package__}.{name}")

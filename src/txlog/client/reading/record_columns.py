"""Owns RecordColumns: the column `record` of received messages of typed topics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from txlog.base.ids import TopicName
from txlog.base.startup import compute as pc
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.segments import RECORD, Records
from txlog.engine.door.store import Store
from txlog.engine.door.topics import records_for
from txlog.errors import TopicNotFound

# The columns from which a record is made; a read of `record` needs them.
SOURCES: Final = ("topic", "value", "schema_version")


def stored(columns: Sequence[str] | None) -> list[str] | None:
    """The stored columns that a read of `columns` needs; None: all."""
    if columns is None:
        return None
    return [
        *(name for name in columns if name != RECORD),
        *(SOURCES if RECORD in columns else ()),
    ]


class RecordColumns:
    """Adds the values of typed topics as structs, of the type of the topic's newest schema.

    A row without a checked value has a null; messages of a topic that never had a schema get no
    column. The type changes when a message with a newer schema arrives.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._topics: dict[str, Records | None] = {}

    def added(self, table: pa.Table) -> pa.Table:
        """Rows of one topic with their records as the last column."""
        if not table.num_rows or RECORD in table.column_names:
            return table
        newest = pc.max(table.column("schema_version")).as_py() or 0
        records = self.of(table.column("topic")[0].as_py(), newest)
        if records is None or records.version < newest:
            return table
        return records.beside(table)

    def runs(self, table: pa.Table) -> Iterator[pa.Table]:
        """Rows of any topics, cut where the topic changes, each piece as `added`."""
        start = 0
        topics = table.column("topic").combine_chunks()
        for stop in pc.run_end_encode(topics).run_ends.to_pylist():
            yield self.added(table.slice(start, stop - start))
            start = stop

    def of(self, topic: str, newest: int = 0) -> Records | None:
        """How the values of a topic become records, at least up to a version; None: bytes."""
        records = self._topics.get(topic)
        if topic not in self._topics or (records is not None and records.version < newest):
            try:
                records = self._store.ask(
                    lambda view: records_for(find_topic(view, TopicName.parse(topic).topic)),
                    up_to_damage=True,  # the messages before a damage are read, too
                )
            except TopicNotFound:  # it was deleted after the read
                records = None
            self._topics[topic] = records
        return records

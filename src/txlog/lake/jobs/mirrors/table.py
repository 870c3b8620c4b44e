"""Owns the interface of a mirror's table: its LSN, columns and folder, and adding files to it.

For a typed topic a table has the column `record`, in the schema that was newest when the table was
made: all its files have the same columns, even if newer schemas follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

from txlog.base.ids import TopicName
from txlog.client.client import Client
from txlog.engine.door.catalog import Topic, check_same
from txlog.engine.door.relation import MESSAGES
from txlog.engine.door.segments import RECORD
from txlog.errors import NotAllowed

LOCK: Final = "_txlog-mirror.lock"
# An instant is in microseconds, as in Delta and Iceberg; instants out of range become the limit.
TABLE: Final = pa.schema(
    [
        field.with_type(pa.timestamp("us", "UTC")) if pa.types.is_timestamp(field.type) else field
        for field in MESSAGES
    ]
)


@dataclass(frozen=True, slots=True)
class Label:
    """The store and topic of a mirror; a table keeps it as text, and the topic's number."""

    client: Client
    topic: TopicName
    record: Topic

    def __str__(self) -> str:
        return f"txlog mirror {self.client.uuid} {self.topic.full}"

    def check(self, place: str, text: str | None, number: int | None) -> None:
        """Refuse a table of another topic. A renamed topic goes on with its table.

        text, number: as the table has them; number None: an older version made it, as text says
        raises: NotAllowed
        """
        is_of_store = (text or "").startswith(f"txlog mirror {self.client.uuid} ")
        if not is_of_store or (number is None and text != str(self)):
            raise NotAllowed(f"{place} is not a table of this mirror", path=place)
        self.client.store.ask(
            lambda view: check_same(view, self.record, number, place, "export to another directory")
        )


@dataclass(frozen=True, slots=True)
class Added:
    """A file that was written; day: as yyyy-mm-dd; rows: their number."""

    path: Path
    day: str
    rows: int


class Target(Protocol):
    """A table that a run adds files to, and closes at its end."""

    def lsn(self) -> int:
        """The LSN that the table has reached; 0: it is new, or does not exist.

        raises: NotAllowed: the existing table is not a mirror of this topic
        """

    def record(self) -> int | None:
        """The version of the topic's schema in the column `record` of the table.

        0: it has no such column; None: the table does not exist
        """

    def folder(self, columns: pa.Schema, record: int) -> Path:
        """Create the table if it is missing; returns the parent of its directories of days.

        columns, record: for a table that is created now
        """

    def commit(self, added: list[Added], lsn: int) -> None:
        """Add files to the table and set its LSN. Raises TryAgain if another process wrote it."""

    def close(self) -> None:
        """Release open resources."""


def columns_of(kind: pa.StructType | None, *, has_times: bool) -> pa.Schema:
    """The columns of a table; kind: the type of the topic's records, if it has any.

    has_times: the form has times of day; otherwise they are microseconds since midnight
    """
    if kind is None:
        return TABLE
    return TABLE.append(pa.field(RECORD, _stored(kind, has_times=has_times)))


def _stored(kind: pa.DataType, *, has_times: bool) -> pa.DataType:
    """A type of records in the form of tables: instants and times in microseconds."""
    if pa.types.is_struct(kind):
        fields = [pa.field(field.name, _stored(field.type, has_times=has_times)) for field in kind]
        return pa.struct(fields)
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _stored(kind.item_type, has_times=has_times))
    if pa.types.is_list(kind):
        return pa.list_(_stored(kind.value_type, has_times=has_times))
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_time(kind):
        return pa.time64("us") if has_times else pa.int64()
    return pa.binary() if pa.types.is_fixed_size_binary(kind) else kind


def as_stored(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """A column of messages, converted to its type in the table."""
    if column.type == kind:
        return column
    return pa.chunked_array([_cast(chunk, kind) for chunk in column.chunks], kind)


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(kind):
        children = [
            _cast(child, field.type) for child, field in zip(array.flatten(), kind, strict=True)
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if pa.types.is_map(kind):
        array = pa.concat_arrays([array])  # so that the offsets of a slice count from its start
        items = _cast(array.items, kind.item_type)
        return pa.MapArray.from_arrays(array.offsets, array.keys, items, mask=mask)
    if pa.types.is_list(kind):
        array = pa.concat_arrays([array])
        items = _cast(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, items, mask=mask)
    if pa.types.is_time32(array.type):
        array = array.cast(pa.time64("us"))
    return array.cast(kind)


def check_ours(root: Path, *names: str) -> None:
    """Refuse a directory with files other than these or leftovers of a run killed at its start.

    raises: NotAllowed
    """
    allowed = {LOCK, *names}
    if any(path.name not in allowed and not path.name.startswith(".") for path in root.iterdir()):
        raise NotAllowed(f"{root} is not a mirror, and not empty", path=str(root))

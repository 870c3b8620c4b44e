"""Owns what a mirror asks of a table: its LSN and columns, where files go, the step that adds them.

Of a typed topic a table has the column `record`, of the schema that was the newest when the table
was made: all its files have the same columns, whatever schemas follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

from txlog.base.ids import TopicName
from txlog.engine.door.relation import MESSAGES
from txlog.engine.door.segments import RECORD
from txlog.errors import NotAllowed

LOCK: Final = "_txlog-mirror.lock"
# An instant is in microseconds, as in Delta and Iceberg; one beyond their range becomes its end.
TABLE: Final = pa.schema(
    [
        field.with_type(pa.timestamp("us", "UTC")) if pa.types.is_timestamp(field.type) else field
        for field in MESSAGES
    ]
)


@dataclass(frozen=True, slots=True)
class Label:
    """Whose mirror a table is."""

    store: str
    topic: TopicName

    def __str__(self) -> str:
        return f"txlog mirror {self.store} {self.topic.full}"


@dataclass(frozen=True, slots=True)
class Added:
    """A file that was written: path: where it is; rows: of TABLE."""

    path: Path
    day: str
    rows: int


class Target(Protocol):
    """A table that grows; closed with the run."""

    def lsn(self) -> int:
        """The LSN that the table has reached; 0: it is new, or there is none.

        raises: NotAllowed: what is there is not a mirror of this topic
        """

    def record(self) -> int | None:
        """The version of the topic's schema whose type the column `record` of the table has.

        0: it has no such column; None: there is no table
        """

    def folder(self, columns: pa.Schema, record: int) -> Path:
        """Where directories of days are; the table exists when it returns.

        columns, record: of a table that is made now
        """

    def commit(self, added: list[Added], lsn: int) -> None:
        """Let the table have these files, and the LSN. Raises TryAgain: another wrote it."""

    def close(self) -> None:
        """Release what is open."""


def columns_of(kind: pa.StructType | None, *, has_times: bool) -> pa.Schema:
    """The columns of a table; kind: the type of the topic's records, if it has any.

    has_times: the form knows times of day; else they are microseconds since midnight
    """
    if kind is None:
        return TABLE
    return TABLE.append(pa.field(RECORD, _stored(kind, has_times=has_times)))


def _stored(kind: pa.DataType, *, has_times: bool) -> pa.DataType:
    """A type of records as tables have it: instants and times in microseconds."""
    if pa.types.is_struct(kind):
        fields = [pa.field(one.name, _stored(one.type, has_times=has_times)) for one in kind]
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
    """A column of messages with the type that it has in the table."""
    if column.type == kind:
        return column
    return pa.chunked_array([_cast(one, kind) for one in column.chunks], kind)


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(kind):
        made = [_cast(one, field.type) for one, field in zip(array.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(made, fields=list(kind), mask=mask)
    if pa.types.is_map(kind):
        array = pa.concat_arrays([array])  # of a slice, offsets count from where it begins
        items = _cast(array.items, kind.item_type)
        return pa.MapArray.from_arrays(array.offsets, array.keys, items, mask=mask)
    if pa.types.is_list(kind):
        array = pa.concat_arrays([array])
        items = _cast(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, items, mask=mask)
    if pa.types.is_time32(array.type):
        array = array.cast(pa.time64("us"))
    return array.cast(kind)


def check_ours(place: Path, *names: str) -> None:
    """Refuse a directory with other files than these, and what a killed run may leave at its start.

    raises: NotAllowed
    """
    known = {LOCK, *names}
    if any(one.name not in known and not one.name.startswith(".") for one in place.iterdir()):
        raise NotAllowed(f"{place} is not a mirror, and not empty", path=str(place))

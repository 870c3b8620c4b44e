"""Owns records of an input: blocks of bytes cut into records, and columns of parsed records.

A record that is only cut becomes no Python object: Arrow splits a block into one binary array.
JSON is one value by RFC 8259, even if readers cannot represent it; `import` and `produce` accept
the same lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import NoReturn

import pyarrow as pa

from txlog.base.settings import KEY_BYTES_MAX, MESSAGE_BYTES_MAX
from txlog.base.startup import compute as pc
from txlog.base.startup import json as orjson
from txlog.errors import BadRecord

# The longest record that can be a message with its key.
_RECORD_BYTES_MAX = MESSAGE_BYTES_MAX + KEY_BYTES_MAX
_INSTANT = pa.timestamp("ms", "UTC")
TYPES = {
    "line": pa.int64(),
    "value": pa.binary(),
    "key": pa.binary(),
    "properties": pa.map_(pa.string(), pa.string()),
    "event_time": _INSTANT,
    "deliver_at": _INSTANT,
    "deliver_after": pa.int64(),
    "producer": pa.string(),
    "sequence_id": pa.int64(),
    "partition": pa.int32(),
}


def split_records(
    blocks: Iterator[bytes | None],
    separator: bytes,
    line: int,
    record_bytes_max: int = _RECORD_BYTES_MAX,
) -> Iterator[tuple[pa.Array, int, bool] | None]:
    """Yield (records, line of the first, ended) as blocks arrive; None when no block came.

    ended is false for a last record without its separator, which is yielded alone.
    raises: BadRecord (104) for a record too long to be a message
    """
    blocks_held: list[bytes] = []
    held_bytes = 0
    for block in blocks:
        if block is None:
            yield None
            continue
        cut = block.rfind(separator)
        if cut < 0:
            blocks_held.append(block)
            held_bytes += len(block)
            if held_bytes > record_bytes_max:
                raise BadRecord(f"line {line}: longer than {record_bytes_max} bytes", line=line)
            continue
        data = b"".join([*blocks_held, block[:cut]])
        remainder = block[cut + 1 :]
        blocks_held, held_bytes = ([remainder], len(remainder)) if remainder else ([], 0)
        records = pc.split_pattern(pa.array([data], pa.binary()), separator).values
        yield records, line, True
        line += len(records)
    if blocks_held:
        yield pa.array([b"".join(blocks_held)], pa.binary()), line, False


class Columns:
    """The columns of parsed records, before they become a table."""

    def __init__(self) -> None:
        self._lists: dict[str, list[object]] = {name: [] for name in TYPES}

    def __len__(self) -> int:
        return len(self._lists["line"])

    def add(self, row: dict[str, object]) -> None:
        """Add a record; a name it lacks is null."""
        for name, column in self._lists.items():
            column.append(row.get(name))

    def table(self) -> pa.Table:
        """Return the columns that are not all null."""
        columns = {
            name: pa.array(column, TYPES[name])
            for name, column in self._lists.items()
            if name in ("line", "value") or any(item is not None for item in column)
        }
        return pa.table(columns)

    def clear(self) -> None:
        """Remove all records."""
        for column in self._lists.values():
            column.clear()


def whole_table(columns: Mapping[str, pa.Array]) -> pa.Table | None:
    """The columns that are not all null; None: a record has both a time and a delay."""
    there = {
        name: column
        for name, column in columns.items()
        if name in ("line", "value") or column.null_count < len(column)
    }
    if "deliver_at" in there and "deliver_after" in there:
        both = pc.and_(there["deliver_at"].is_valid(), there["deliver_after"].is_valid())
        if pc.any(both).as_py():
            return None
    return pa.table({name: there[name] for name in TYPES if name in there})


def maps(ends: pa.Array, names: pa.Array, values: pa.Array) -> pa.Array:
    """Maps from adjacent pairs; null where a map is empty."""
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    maps = pa.MapArray.from_arrays(offsets, names, values)
    is_any = pc.greater(pc.pairwise_diff(offsets)[1:], 0)
    return pc.if_else(is_any, maps, pa.scalar(None, maps.type))


def check_delivery(row: dict[str, object], line: int) -> None:
    """Refuse a record with both a time and a delay. Raises BadRecord (104)."""
    if row.get("deliver_at") is not None and row.get("deliver_after") is not None:
        raise bad_record(line, "both deliver_at and deliver_after")


def bad_record(line: int, reason: str) -> BadRecord:
    """The error for a bad record on this line."""
    return BadRecord(f"line {line}: {reason}", line=line)


def json_failure(value: bytes) -> ValueError | None:
    """Why bytes are not JSON; None if they are.

    orjson refuses a number that no double holds, such as 1e400, which JSON allows.
    """
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError as failure:
        return None if "infinity" in str(failure) and _is_json(value) else failure
    return None


def _is_json(value: bytes) -> bool:
    try:
        json.loads(value, parse_constant=_refuse, parse_int=len, parse_float=len)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")

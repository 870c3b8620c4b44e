"""The row of a large message: its chunks come from its file, all else from the fold.

To everyone else a ledger of chunks has one row, the message; only here are there several. A reader
that does not want the value reads no more than the first row group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from txlog.base.ids import txn_halves
from txlog.engine.model.schema import KIND_DATA, MESSAGE
from txlog.engine.storage.chunks import HEAD, head_of, reassembled
from txlog.engine.storage.disk.protocol import File
from txlog.engine.storage.segment import FileRef


class LargeMessage(Protocol):
    """What the buffer fold knows of a large message."""

    value_bytes: int
    crc: int
    coordinator: int
    sequence: int
    index: int
    time_ms: int
    lsn: int
    producer: str | None
    last_sequence: int
    deliver_at: int | None


def large_row(file: File, ref: FileRef, known: LargeMessage, names: Sequence[str]) -> pa.Table:
    """The message as a row with these columns of MESSAGE, every byte that is read checked.

    raises: Corruption (path, offset, length)
    """
    columns: dict[str, pa.Array | pa.ChunkedArray] = {}
    if "value" in names:
        first, columns["value"] = reassembled(file, ref, known.value_bytes, known.crc)
    elif not set(HEAD).isdisjoint(names):
        first = head_of(file, ref)
    else:
        first = MESSAGE.empty_table()
    most, least = txn_halves(known.coordinator, known.sequence)
    said: dict[str, object] = {
        "kind": KIND_DATA,
        "entry": 0,
        "lsn": known.lsn,
        "publish_time": known.time_ms,
        "producer": known.producer,
        "txn_most": most,
        "txn_least": least,
        "txn_index": known.index,
        "sequence_id": known.last_sequence if known.last_sequence >= 0 else None,
    }
    if known.deliver_at is not None:  # the file has what was asked for, if it is an instant
        said["deliver_at"] = known.deliver_at
    for name in names:
        if name in said:
            columns[name] = pa.array([said[name]], MESSAGE.field(name).type)
        elif name in HEAD:
            columns[name] = first.column(name)
        elif name != "value":
            columns[name] = pa.nulls(1, MESSAGE.field(name).type)
    schema = pa.schema([MESSAGE.field(name) for name in names])
    return pa.Table.from_arrays([columns[name] for name in names], schema=schema)

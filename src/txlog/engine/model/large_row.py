"""The row of a large message: its chunks come from its file, everything else from the fold.

For all other code, a ledger of chunks has one row, the message; only this module sees several. A
reader that does not need the value reads no more than the first row group.
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
    """The buffer fold's description of a large message."""

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


def large_row(file: File, ref: FileRef, message: LargeMessage, names: Sequence[str]) -> pa.Table:
    """The message as a row with these columns of MESSAGE; every byte read is checked.

    raises: Corruption (path, offset, length)
    """
    columns: dict[str, pa.Array | pa.ChunkedArray] = {}
    if "value" in names:
        first, columns["value"] = reassembled(file, ref, message.value_bytes, message.crc)
    elif not set(HEAD).isdisjoint(names):
        first = head_of(file, ref)
    else:
        first = MESSAGE.empty_table()
    most, least = txn_halves(message.coordinator, message.sequence)
    values: dict[str, object] = {
        "kind": KIND_DATA,
        "entry": 0,
        "lsn": message.lsn,
        "publish_time": message.time_ms,
        "producer": message.producer,
        "txn_most": most,
        "txn_least": least,
        "txn_index": message.index,
        "sequence_id": message.last_sequence if message.last_sequence >= 0 else None,
    }
    if message.deliver_at is not None:  # the file has what was asked for, if it is an instant
        values["deliver_at"] = message.deliver_at
    for name in names:
        if name in values:
            columns[name] = pa.array([values[name]], MESSAGE.field(name).type)
        elif name in HEAD:
            columns[name] = first.column(name)
        elif name != "value":
            columns[name] = pa.nulls(1, MESSAGE.field(name).type)
    schema = pa.schema([MESSAGE.field(name) for name in names])
    return pa.Table.from_arrays([columns[name] for name in names], schema=schema)

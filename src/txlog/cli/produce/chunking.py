"""Owns --chunking: which records go alone because they are large, and raw files as streams.

A raw file is never in memory as a whole: its blocks go to the producer as they are read, and a
signal between two of them ends the message before anything of it is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from txlog.cli.input import blocks
from txlog.cli.output import records
from txlog.cli.terminal.signals import raise_if_asked
from txlog.engine.plan.route import message_bytes
from txlog.startup import compute as pc

if TYPE_CHECKING:
    from txlog.api.sending.producer import Producer
    from txlog.api.sending.receipt import BatchReceipt, LargeReceipt
    from txlog.ids import TxnId

_WAIT_S = 0.2  # for a terminal or pipe, before a signal is looked for
_MS = pa.int64()


def runs(data: pa.Table, most: int) -> Iterator[pa.Table]:
    """Cut a table so that each record of more than `most` bytes is alone; the order stays."""
    batch = data.combine_chunks().to_batches() if data.nbytes > most else []
    if len(batch) != 1:  # nothing large; or more than Arrow joins, where each row goes alone
        yield from [data] if not batch else (data.slice(row, 1) for row in range(len(data)))
        return
    large = pc.indices_nonzero(pc.greater(message_bytes(batch[0]), pa.scalar(most, pa.int64())))
    at = 0
    for row in large.to_pylist():
        if row > at:
            yield data.slice(at, row - at)
        yield data.slice(row, 1)
        at = row + 1
    if at < len(data):
        yield data.slice(at)


def send(
    producer: Producer, data: pa.Table, txn: TxnId | None, value: Iterator[bytes] | None = None
) -> BatchReceipt | LargeReceipt:
    """Send what `runs` gave; a record alone may be large.

    value: of the one record, where data has only what stands beside it
    """
    if not producer.chunking or len(data) != 1:
        return producer.send_batch(data, txn=txn)
    row = {name: data[name][0] for name in data.column_names if name != "value"}
    whole = next(records.views(data["value"])) if value is None else None
    properties = row["properties"].as_py() if "properties" in row else None
    return producer._send_one(
        whole if value is None else value,
        key=row["key"].as_py() if "key" in row else None,
        properties=dict(properties) if properties else None,
        event_time=_integer(row, "event_time"),
        deliver_at=_integer(row, "deliver_at"),
        deliver_after=_integer(row, "deliver_after"),
        sequence_id=_integer(row, "sequence_id"),
        partition=_integer(row, "partition"),
        txn=txn,
    )


def _integer(row: dict[str, pa.Scalar], name: str) -> int | None:
    number: int | None = row[name].cast(_MS).as_py() if name in row else None
    return number


def pieces(path: str | None) -> Iterator[bytes]:
    """The blocks of a file or of stdin, as they come."""
    for block in blocks.read_blocks(path, lambda: _WAIT_S):
        raise_if_asked()
        if block is not None:
            yield block
    raise_if_asked()  # who was asked to end may have lost the rest of the input as well

"""Owns what tests of buckets share: sending with times, and the checks that every index
must pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import pyarrow as pa

from tests.engine_kit import START_MS
from txlog import Client
from txlog.base.ids import TxnId
from txlog.engine.folds.delayed import Delayed
from txlog.engine.model.ops import Id
from txlog.engine.storage.bucket import BucketFile
from txlog.engine.upkeep.delayed.buckets import delayed_partitions
from txlog.engine.view import View, delayed_dir

DAY_MS = 86_400_000


def delay(
    client: Client,
    *after_ms: int | None,
    topic: str = "t",
    partition: int = 0,
    txn: TxnId | None = None,
    since_ms: int = START_MS,
) -> None:
    """Send one batch of messages that are due this long after the start of the test."""
    times = [None if after_after is None else since_ms + after_after for after_after in after_ms]
    client.producer(topic).send_batch(
        pa.table(
            {
                "value": pa.array([b"x"] * len(times), pa.binary()),
                "deliver_at": pa.array(times, pa.timestamp("ms", "UTC")),
                "partition": pa.array([partition] * len(times), pa.int32()),
            }
        ),
        txn=txn,
    )


def delay_txn(client: Client, *after_ms: int | None, since_ms: int = START_MS) -> None:
    """Commit a transaction with such messages."""
    txn = client.begin()["txn"]
    delay(client, *after_ms, txn=txn, since_ms=since_ms)
    client.commit(txn)


def index(client: Client, partition: int = 1) -> Delayed:
    """The fold of the index in this client."""
    return client.store.read(lambda view: view.delayed(partition))


def counts(client: Client) -> list[int]:
    """How many ids each bucket has, then the mutable one."""
    state = index(client)
    return [bucket.count for bucket in state.buckets] + [len(state.mutable)]


def logged_times(view: View, partition: int) -> dict[Id, int]:
    """The delivery times of all visible messages in the log, by id."""
    out: dict[Id, int] = {}
    buffer = view.buffer(partition)
    for end in view.topic(partition).ledgers:
        table = view.ledger_table(end.ledger, 0, end.entries)
        for entry, at in enumerate(_times(table)):
            if at is not None:
                out[(end.ledger, entry, 0)] = at
        for marker in buffer.markers.get(end.ledger, []):
            for side, row, rows, first in marker.ranges:
                times = _times(view.ledger_table(side, row, row + rows))
                for number, at in enumerate(times, first):
                    if at is not None:
                        out[(end.ledger, marker.entry, number)] = at
    return out


def _times(table: pa.Table) -> Sequence[int | None]:
    times: Sequence[int | None] = table.column("deliver_at").cast(pa.int64()).to_pylist()
    return times


def indexed_times(client: Client, partition: int = 1) -> dict[Id, int]:
    """The times in the index, by id, after a check of every byte; no id may be in it twice."""
    state = index(client, partition)
    rows = [((ledger, entry, index), at) for at, ledger, entry, index in state.mutable]
    for bucket in state.buckets:
        with closing(client.store.disk.open(bucket.file.path)) as raw:
            file = BucketFile(raw, bucket.file)
            file.verify()
            head = file.head
            assert (head.gen, head.first, head.last) == (bucket.gen, bucket.first, bucket.last)
            assert (head.count, head.cutoff_ms) == (bucket.count, bucket.cutoff_ms)
            for number in range(len(file.segments)):
                columns = file.segment(number)
                ids = zip(columns.ledger, columns.entry, columns.index, strict=True)
                rows += zip(ids, columns.at, strict=True)
            assert all(bucket.first <= item <= bucket.last for item, _ in rows[-bucket.count :])
    out = dict(rows)
    assert len(out) == len(rows), "an id is in the index twice"
    return out


def check_index(client: Client, partition: int = 1) -> None:
    """The index is correct; it may lack only ids that may be due, and the ranges in `unindexed`."""
    store = client.store
    logged = store.read(lambda view: logged_times(view, partition))
    times = indexed_times(client, partition)
    state = index(client, partition)
    trimmed = store.read(lambda view: view.topic(partition).ledgers[0].ledger)
    for message_id, at in times.items():
        assert message_id[0] < trimmed or logged[message_id] == at, (
            f"{message_id} is indexed at {at}"
        )
    for message_id, at in logged.items():
        lacks = any(first <= message_id <= last for first, last in state.unindexed)
        assert message_id in times or lacks or at <= state.passed_ms, (
            f"{message_id} at {at} is lost"
        )


def bucket_files(client: Client) -> list[str]:
    """The files in the directories of buckets, with temporaries."""
    store = client.store

    def directories(view: View) -> list[str]:
        return [delayed_dir(view.catalog, number) for number in delayed_partitions(view)]

    return sorted(
        f"{directory}/{name}"
        for directory in store.read(directories)
        for name in store.disk.listdir(directory)
    )


def named_files(client: Client) -> list[str]:
    """The files that the index names."""
    return sorted(bucket.file.path for bucket in index(client).buckets)

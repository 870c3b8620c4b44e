"""Owns what the tests of listings share: buckets made by hand, and answers from the log alone."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tests.engine_kit import read
from txlog import Client, Message, MessageId
from txlog.base.ids import TopicName
from txlog.engine.decide.draft import Decision
from txlog.engine.folds.catalog import number_of
from txlog.engine.model.ops import Bucket, BucketDeleted, BucketSealed
from txlog.engine.plan.delayed.upcoming import TIMES, columns_of
from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.storage.bucket import BucketName, SegmentLimits, bucket_name, encode_bucket
from txlog.engine.view import ledger_dir

CUTTING = SegmentLimits(step_ms=2000, ids_max=2, segments_max=1000)


def partition_number(client: Client, partition: int, topic: str = "t") -> int:
    """The store-wide number of a partition."""
    name = TopicName.parse(topic)
    return client.store.read(lambda view: number_of(find_topic(view, name), partition))


def seal(
    client: Client, partition: int, rows: int, topic: str = "t", *, wrong_by_ms: int = 0
) -> str | None:
    """Move the first rows of the mutable bucket into a bucket with tiny segments; its path.

    wrong_by_ms: how much later the bucket says that its messages are due
    """
    store = client.store
    number = partition_number(client, partition, topic)
    state = store.read(lambda view: view.delayed(number))
    rows = min(rows, len(state.mutable))
    if not rows:
        return None
    times = columns_of(state.mutable).slice(0, rows)
    at = pc.add(times["deliver_at"], pa.scalar(wrong_by_ms, pa.int64()))
    times = times.set_column(0, TIMES.field(0), at)
    times = times.sort_by([(name, "ascending") for name in TIMES.names]).combine_chunks()
    first, last = state.mutable.place(0), state.mutable.place(rows - 1)
    name = BucketName(number, state.next_gen, first, last, 0)
    folder = store.read(lambda view: ledger_dir(view.catalog, number, "p"))
    path = f"{folder}/_delayed/{bucket_name(first[0], last[0], state.next_gen)}"
    encoded = encode_bucket(path, name, lambda: [times], (0, 1 << 60), CUTTING, lambda ledger: None)
    assert encoded is not None
    store.disk.publish(path, encoded.buffers)
    bucket = Bucket(name.gen, encoded.file, first, last, rows, encoded.min_at, encoded.max_at, 0)
    op = BucketSealed(number, "seal", first, last, 0, bucket)
    store.write(lambda view, now: Decision([op], sync=True))
    return path


def lose(client: Client, partition: int, topic: str = "t") -> None:
    """Drop the first bucket of a partition, so that its range is not indexed any more."""
    store = client.store
    number = partition_number(client, partition, topic)
    bucket = store.read(lambda view: view.delayed(number).buckets)[0]
    op = BucketDeleted(number, [bucket.gen], "lost", 0, [bucket.file.path])
    store.write(lambda view, now: Decision([op], sync=True))


def time_of(message: Message) -> int:
    """The delivery time of a message; without one, a time before all others."""
    return -(1 << 63) if message.deliver_at is None else message.deliver_at


def delayed_now(client: Client, now_ms: int, topic: str = "t") -> list[Message]:
    """The delayed messages according to the log, in order of key; the oracle."""
    messages = [message for message in read(client, topic) if time_of(message) > now_ms]
    return sorted(messages, key=lambda message: (time_of(message), place(message)))


def place(message: Message) -> tuple[int, int, int]:
    """The id of a message as a tuple."""
    message_id = message.message_id
    assert message_id is not None
    return (message_id.ledger, message_id.entry, message_id.index)


def listed_ids(table: object) -> list[MessageId]:
    """The ids of a listing, in its order."""
    columns: Sequence[list[int | None]] = [
        table.column(name).to_pylist()  # type: ignore[attr-defined]
        for name in ("ledger", "entry", "index")
    ]
    return [MessageId(a or 0, b or 0, c or 0) for a, b, c in zip(*columns, strict=True)]

"""The buckets of the index of delayed messages, as rows: the answer of `txlog delay buckets`.

Reading functions over a view; the messages are not looked at. Source: spec/delayed-delivery 9.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from txlog.answers.delayed import Scope
from txlog.engine.folds.catalog import number_of
from txlog.engine.folds.delayed import Delayed
from txlog.engine.model.ops import Bucket, Id
from txlog.engine.plan.delayed.timetable import Timetable
from txlog.engine.plan.delayed.timetable_parts import ROW_BYTES, Loaded
from txlog.engine.plan.delayed.upcoming import count_later
from txlog.engine.view.view import View
from txlog.errors import IntegrityError
from txlog.ids import MessageId, TopicName

Answer = dict[str, Any]
PENDING_BYTES = 12
INDEX_MAX = (1 << 31) - 1


def buckets(view: View, scope: Scope) -> list[Answer]:
    """The buckets of each partition: sealed ones, the mutable one, what waits, what is missing."""
    return [
        row for index in scope.indexes
        for row in _of_partition(view, scope, index, number_of(scope.topic, index))
    ]  # fmt: skip


def in_memory(view: View, number: int) -> Loaded:
    """What of the index of a partition is in the memory of this process."""
    mutable = len(view.delayed(number).mutable)
    parts = [Loaded(0, mutable, ROW_BYTES * mutable)]
    known: Timetable | None = view.timetables.get(number)
    if known is not None:
        copied, sealed = known.loaded()
        parts += [Loaded(0, 0, copied.bytes), *sealed.values()]
    return Loaded(
        sum(part.segments for part in parts), sum(part.ids for part in parts),
        sum(part.bytes for part in parts),
    )  # fmt: skip


def _of_partition(view: View, scope: Scope, index: int, number: int) -> Iterator[Answer]:
    state = view.delayed(number)
    named = {"topic": TopicName.parse(scope.topic.name).short, "partition": index}
    empty = dict.fromkeys(
        ("generation", "first", "last", "messages", "not_due", "min_deliver_at", "max_deliver_at",
         "file")
    )  # fmt: skip
    empty |= {"segments": 0, "loaded_segments": 0, "size_bytes": 0}
    known: Timetable | None = view.timetables.get(number)
    loaded = {} if known is None else known.loaded()[1]
    for bucket in state.buckets:
        made = _sealed(view, scope, number, bucket)
        segments = loaded.get(bucket.gen, Loaded()).segments
        yield {**named, **empty, "state": "sealed", **made, "loaded_segments": segments}
    yield {**named, **empty, "state": "mutable", **_mutable(state, scope.now_ms)}
    if state.pending:
        yield {**named, **empty, "state": "pending", **_pending(state, scope.now_ms)}
    for first, last in state.unindexed:
        yield {**named, **empty, "state": "unindexed", "first": _id(first), "last": _id(last)}


def _sealed(view: View, scope: Scope, number: int, bucket: Bucket) -> Answer:
    not_due: int | None = None
    try:
        not_due = count_later(view, bucket, scope.now_ms)
    except IntegrityError as error:
        scope.note(f"a bucket of delayed messages cannot be read: {error}")
    return {
        "generation": bucket.gen, "first": _id(bucket.first), "last": _id(bucket.last),
        "messages": bucket.count, "not_due": not_due, "segments": len(bucket.file.groups),
        "size_bytes": bucket.file.bytes, "min_deliver_at": bucket.min_at,
        "max_deliver_at": bucket.max_at, "file": bucket.file.path,
    }  # fmt: skip


def _mutable(state: Delayed, now_ms: int) -> Answer:
    mutable = state.mutable
    at = mutable.at
    return {
        "first": _id(mutable.place(0)) if mutable else None,
        "last": _id(mutable.place(-1)) if mutable else None,
        "messages": len(mutable), "not_due": sum(one > now_ms for one in at),
        "size_bytes": ROW_BYTES * len(mutable), "min_deliver_at": min(at, default=None),
        "max_deliver_at": max(at, default=None),
    }  # fmt: skip


def _pending(state: Delayed, now_ms: int) -> Answer:
    times = [at for one in state.pending.values() for at in one.at]
    return {
        "messages": len(times), "not_due": sum(at > now_ms for at in times),
        "size_bytes": PENDING_BYTES * len(times), "min_deliver_at": min(times, default=None),
        "max_deliver_at": max(times, default=None),
    }  # fmt: skip


def _id(one: Id) -> MessageId:
    """An id for people: a range may end inside or behind a marker that is not there."""
    ledger, entry, index = one
    return MessageId(ledger, max(0, entry), 0 if index == INDEX_MAX else index)

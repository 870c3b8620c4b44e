"""What moved the watermarks of a topic: the answer of `txlog watermark history`.

It lists what took effect, in the order of the journal: watermark rows, snapshots, and at a marker
what its transaction asserted, an idle first. What open transactions hold has no place yet.
Source: spec/watermarks 3, 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from txlog.engine.folds.catalog import Topic, number_of
from txlog.engine.folds.watermark import Position as Place
from txlog.engine.folds.watermark import State
from txlog.engine.model.schema import W_IDLE, W_SET, W_SNAPSHOT
from txlog.engine.plan.watermarks.rows import Row, read_rows
from txlog.engine.plan.watermarks.value import WatermarkGenerator
from txlog.engine.view.view import View
from txlog.ids import Position, TopicName, TxnId

Answer = dict[str, Any]
_TYPES = {W_SET: "set", W_IDLE: "idle", W_SNAPSHOT: "snapshot"}


def history(
    view: View, topic: Topic, indexes: Sequence[int], producer: str | None = None,
    since_ms: int | None = None, limit: int | None = None,
) -> list[Answer]:  # fmt: skip
    """The rows that moved a watermark, oldest first; the fields of `txlog watermark history`.

    limit: the last so many
    cost:  reads these rows and no message; with a limit and nothing else no more than so many of
           each partition
    """
    most = limit if producer is None and since_ms is None else None
    found = [
        (lsn, index, answer)
        for index in indexes
        for lsn, answer in _of_partition(view, topic, index, most)
        if (producer is None or answer["producer"] == producer)
        and (since_ms is None or answer["publish_time"] >= since_ms)
    ]
    found.sort(key=lambda one: one[:2])  # stable: of one frame and partition as they stand
    first = 0 if limit is None else max(0, len(found) - limit)
    return [answer for _, _, answer in found[first:]]


def _of_partition(
    view: View, topic: Topic, index: int, most: int | None
) -> Iterator[tuple[int, Answer]]:
    """(LSN, answer) of one partition, the last `most` rows; in order."""
    number = number_of(topic, index)
    known = view.watermark(number)
    places: list[Place] = []
    for ledger in sorted({*known.moves, *known.snapshots}, reverse=True):
        entries = [*known.moves.get(ledger, ()), *known.snapshots.get(ledger, ())]
        places += [(ledger, entry) for entry in sorted(entries, reverse=True)]
        if most is not None and len(places) >= most:
            break
    places = sorted(places[:most])
    if not places:
        return
    generator = WatermarkGenerator(number)
    generator.seek(view, (places[0][0], places[0][1] - 1))
    state = generator.state.copy()
    short = TopicName.parse(topic.name).short
    for row in read_rows(view, [(ledger, entry, entry + 1) for ledger, entry in places]):
        for answer in _answers(row, state):
            yield row.lsn, {
                "topic": short, "partition": index, "position": Position(*row.where), **answer,
                "txn": None if row.txn is None else TxnId.from_halves(*row.txn),
                "txn_state": None if row.txn is None else "committed",
                "publish_time": row.time_ms,
            }  # fmt: skip
        if row.kind != W_SNAPSHOT:
            row.take(state)


def _answers(row: Row, state: State) -> Iterator[Answer]:
    """What one row did; state: that of the place before it."""
    if row.kind in _TYPES:
        yield _answer(_TYPES[row.kind], row.producer, row.event_time, row.by, state)
        return
    for producer, idle, event_time in row.effects:
        if idle:
            yield _answer("idle", producer, None, None, state)
        if event_time is not None:
            yield _answer("set", producer, event_time, None, None if idle else state)


def _answer(
    kind: str, producer: str | None, event_time: int | None, by: str | None, state: State | None
) -> Answer:
    """state: None when the producer's time was forgotten just before."""
    known = None if state is None or producer is None else state.active.get(producer)
    return {
        "marker_type": kind, "producer": producer, "event_time": event_time, "by": by,
        "regressed": event_time is not None and known is not None and event_time < known.event_time,
    }  # fmt: skip

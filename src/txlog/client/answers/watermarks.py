"""Watermarks of topics and subscriptions, and their producers: the answers of `txlog watermark`.

    materialized   the lowest time of an active producer, at the mark-delete of a subscription, or
                   at the end of the log without one; it may fall
    emitted        the highest watermark that a consumer of the subscription received since the
                   last seek (in this epoch of its cursor); until the next one it never falls
    history        the rows that took effect, in journal order: watermark rows, snapshots, and at a
                   marker the assertions of its transaction, idle first. Assertions in open
                   transactions have no position yet

Instants are ms since 1970 UTC, positions are Position. Source: spec/watermarks 3 to 6, 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from txlog.base.ids import MessageId, Position, TopicName, TxnId
from txlog.base.settings import EVENT_TIME_MAX
from txlog.engine.door.catalog import Subscription, Topic, number_of, numbers
from txlog.engine.door.consuming import ledger_entries
from txlog.engine.door.facts import W_IDLE, W_SET, W_SNAPSHOT
from txlog.engine.door.reading import id_of, partition_of, plan
from txlog.engine.door.store import View
from txlog.engine.door.watermarks import (
    START,
    ActiveProducer,
    StoredWatermark,
    WatermarkGenerator,
    WatermarkState,
    clamp_of,
    read_rows,
    tracking_position,
)
from txlog.engine.door.watermarks import Position as FoldPosition
from txlog.errors import Corruption, MessageNotFound, PartitionUnavailable

if TYPE_CHECKING:
    from txlog.base.rows.watermarks import (
        WatermarkMove,
        WatermarkPartition,
        WatermarkProducer,
        WatermarkRow,
        WatermarkShown,
    )


UNAVAILABLE = "unavailable"


# --- now -------------------------------------------------------------------------------------


class Standing(NamedTuple):
    """The watermark of one partition at a place; state: None if it is unreadable.

    While the partition is unavailable, `status` is `unavailable`, also if `state` is readable.
    Consumers get no new watermark then.
    """

    partition: int
    number: int
    place: FoldPosition
    status: str
    state: WatermarkState | None
    emitted: int | None

    @property
    def value(self) -> int | None:
        """The materialized watermark."""
        return None if self.state is None else self.state.value

    @property
    def holder(self) -> str | None:
        """The producer with the lowest time, the first by name."""
        if self.state is None:
            return None
        times = {name: producer.event_time for name, producer in self.state.active.items()}
        return min(times, key=lambda name: (times[name], name), default=None)


def show(
    view: View,
    topic: Topic,
    places: Sequence[Standing],
    now_ms: int,
    subscription: Subscription | None = None,
) -> WatermarkShown:
    """The watermark of a topic; the fields of `txlog watermark show`.

    places:  the standings of its partitions
    returns: max_event_time and late_messages are None, as computing them reads messages
    """
    least = _holding(places)
    emitted = max((place.emitted for place in places if place.emitted is not None), default=None)
    status = status_of(places)
    value = least.value if least is not None and status == "active" else None
    value_shown = value if subscription is None else emitted
    pending = {txn for place in places for txn in view.watermark(place.number).pending}
    return {
        "topic": _short(topic),
        "subscription": None if subscription is None else subscription.name,
        "status": status,
        "watermark": value,
        "emitted": emitted,
        "lag_ms": None
        if value_shown is None or value_shown == EVENT_TIME_MAX
        else now_ms - value_shown,
        "holder": None if value is None or least is None else least.holder,
        "first_unacked": None
        if subscription is None
        else _first_unacked(view, subscription, places, least),
        "max_event_time": None,
        "late_messages": None,
        "pending_txns": len(pending),
        "partition_list": [_partition(view, place) for place in places],
    }


def reached(places: Sequence[Standing]) -> int | None:
    """The event time reached at the places: the lowest value of a partition with active producers.

    The value of a place is its materialized value, or its emitted value if that is higher. If no
    partition has an active producer, all emitted values count. None: unknown, unavailable, or no
    value yet.
    """
    if status_of(places) in (UNAVAILABLE, "unknown"):
        return None
    active = [place for place in places if place.value is not None]
    highest = [
        max([time for time in (place.value, place.emitted) if time is not None], default=None)
        for place in active or places
    ]
    times = [time for time in highest if time is not None]
    return min(times) if len(times) == len(highest) and times else None


def at_end(view: View, topic: Topic) -> int | None:
    """The watermark of a topic at the end of its log, as in `show`; it reads no row."""
    values: list[int] = []
    for number in numbers(topic):
        state = view.watermark(number).state
        if number in view.catalog.unavailable or state.status == "unknown":
            return None
        if state.value is not None:
            values.append(state.value)
    return min(values, default=None)


def producers(
    view: View, topic: Topic, indexes: Sequence[int], subscription: Subscription | None = None
) -> list[WatermarkProducer]:
    """Producers by partition and name; the fields of `txlog watermark producers`.

    holds: the producer has the lowest time of its partition
    idle:  it is not active, but open transactions have its assertions
    """
    out: list[WatermarkProducer] = []
    for place in standings(view, topic, indexes, subscription):
        active: dict[str, ActiveProducer] = {} if place.state is None else place.state.active
        pending = view.watermark(place.number).pending.values()
        names = {*active, *(name for effects in pending for name in effects)}
        for name in sorted(names):
            assertion = active.get(name)
            out.append(
                {
                    "topic": _short(topic),
                    "partition": place.partition,
                    "producer": name,
                    "event_time": None if assertion is None else assertion.event_time,
                    "holds": assertion is not None and assertion.event_time == place.value,
                    "idle": assertion is None,
                    "position": None
                    if assertion is None
                    else _position((assertion.ledger, assertion.entry)),
                    "pending_txns": sum(name in effects for effects in pending),
                }
            )
    return out


def standings(
    view: View,
    topic: Topic,
    indexes: Sequence[int],
    subscription: Subscription | None = None,
    at: MessageId | None = None,
) -> Iterator[Standing]:
    """The standing of each partition.

    It is at the place of a subscription, or at the message `at`, or else at the end of the log.
    raises: MessageNotFound
    """
    for index in indexes if at is None else [_index_at(view, topic, indexes, at)]:
        number = number_of(topic, index)
        emitted = None
        if subscription is not None:
            epoch = view.cursor(subscription.number, number).epoch
            emitted = clamp_of(view.watermark(number).clamps, subscription.number, epoch)
        if at is not None:
            place = (at.ledger, at.entry)
        elif subscription is None:
            place = _end(view, number)
        else:
            place = tracking_position(view, subscription.number, number)
        generator = WatermarkGenerator(number)
        try:
            generator.seek(view, place)
        except (Corruption, PartitionUnavailable):
            yield Standing(index, number, place, UNAVAILABLE, None, emitted)
            continue
        is_away = number in view.catalog.unavailable
        status = UNAVAILABLE if is_away else generator.status
        yield Standing(index, number, place, status, generator.state, emitted)


def _index_at(view: View, topic: Topic, indexes: Sequence[int], at: MessageId) -> int:
    index = partition_of(view, topic, at)
    entries = dict(ledger_entries(view, number_of(topic, index))).get(at.ledger, 0)
    if at.entry >= entries or index not in indexes:
        raise MessageNotFound(f"there is no entry {at} in {_short(topic)}", message_id=at)
    return index


def _end(view: View, number: int) -> FoldPosition:
    """The last row of a partition."""
    for ledger, entries in reversed(ledger_entries(view, number)):
        if entries:
            return (ledger, entries - 1)
    return START


def status_of(places: Sequence[Standing]) -> str:
    """The status of all partitions together."""
    present = {place.status for place in places}
    for status in (UNAVAILABLE, "unknown", "active"):
        if status in present:
            return status
    return "idle"


def _holding(places: Sequence[Standing]) -> Standing | None:
    """The partition that holds the watermark back: one without a value, else the lowest."""
    for place in places:
        if place.status in (UNAVAILABLE, "unknown"):
            return place
    active = [(place.value, place.partition, place) for place in places if place.value is not None]
    return min(active, key=lambda row: row[:2])[2] if active else None


def _first_unacked(
    view: View, subscription: Subscription, places: Sequence[Standing], least: Standing | None
) -> MessageId | None:
    """The oldest unacknowledged message of the partition that holds the watermark back."""
    for place in places if least is None else [least]:
        cursor = view.cursor(subscription.number, place.number)
        pieces = plan(view, place.number, cursor.mark_delete, 1, (cursor.acked,)).pieces
        if pieces:
            return MessageId(*id_of(pieces[0], 0))
    return None


def _partition(view: View, standing: Standing) -> WatermarkPartition:
    return {
        "partition": standing.partition,
        "status": standing.status,
        "watermark": standing.value,
        "emitted": standing.emitted,
        "holder": standing.holder,
        "position": _position(standing.place),
        "snapshot_position": _snapshot(view, standing),
    }


def _snapshot(view: View, standing: Standing) -> Position | None:
    """The position of the last snapshot at or before the place."""
    snapshots = view.watermark(standing.number).snapshots
    for ledger in sorted(snapshots, reverse=True):
        entries = snapshots[ledger]
        if ledger > standing.place[0]:
            continue
        count = entries.rank(standing.place[1] + 1) if ledger == standing.place[0] else len(entries)
        if count:
            return Position(ledger, entries[count - 1])
    return None


def _position(place: FoldPosition) -> Position | None:
    return Position(*place) if place[1] >= 0 else None


def _short(topic: Topic) -> str:
    return TopicName.parse(topic.name).short


# --- history ---------------------------------------------------------------------------------

_TYPES = {W_SET: "set", W_IDLE: "idle", W_SNAPSHOT: "snapshot"}


def history(
    view: View,
    topic: Topic,
    indexes: Sequence[int],
    producer: str | None = None,
    since_ms: int | None = None,
    limit: int | None = None,
) -> list[WatermarkRow]:
    """The rows that moved a watermark, oldest first; the fields of `txlog watermark history`.

    limit: only the last ones
    cost:  reads these rows and no message; with only a limit, at most that many rows of
           each partition
    """
    most = limit if producer is None and since_ms is None else None
    rows = [
        (lsn, index, answer)
        for index in indexes
        for lsn, answer in _of_partition(view, topic, index, most)
        if (producer is None or answer["producer"] == producer)
        and (since_ms is None or answer["publish_time"] >= since_ms)
    ]
    rows.sort(key=lambda row: row[:2])  # stable: rows of one frame and partition keep their order
    first = 0 if limit is None else max(0, len(rows) - limit)
    return [answer for _, _, answer in rows[first:]]


def _of_partition(
    view: View, topic: Topic, index: int, most: int | None
) -> Iterator[tuple[int, WatermarkRow]]:
    """(LSN, row of the answer) of one partition in order; most: only the last rows."""
    number = number_of(topic, index)
    watermarks = view.watermark(number)
    places: list[FoldPosition] = []
    for ledger in sorted({*watermarks.moves, *watermarks.snapshots}, reverse=True):
        entries = [*watermarks.moves.get(ledger, ()), *watermarks.snapshots.get(ledger, ())]
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
            yield (
                row.lsn,
                {
                    "topic": short,
                    "partition": index,
                    "position": Position(*row.where),
                    "marker_type": answer["marker_type"],
                    "producer": answer["producer"],
                    "event_time": answer["event_time"],
                    "txn": None if row.txn is None else TxnId.from_halves(*row.txn),
                    "txn_state": None if row.txn is None else "committed",
                    "regressed": answer["regressed"],
                    "publish_time": row.time_ms,
                    "by": answer["by"],
                },
            )
        if row.kind != W_SNAPSHOT:
            row.take(state)


def _answers(row: StoredWatermark, state: WatermarkState) -> Iterator[WatermarkMove]:
    """The effects of one row; state: the state before it."""
    if row.kind in _TYPES:
        yield _answer(_TYPES[row.kind], row.producer, row.event_time, row.by, state)
        return
    for producer, idle, event_time in row.effects:
        if idle:
            yield _answer("idle", producer, None, None, state)
        if event_time is not None:
            yield _answer("set", producer, event_time, None, None if idle else state)


def _answer(
    kind: str,
    producer: str | None,
    event_time: int | None,
    by: str | None,
    state: WatermarkState | None,
) -> WatermarkMove:
    """state: None if the same row has declared the producer idle before, so it has no time."""
    assertion = None if state is None or producer is None else state.active.get(producer)
    return {
        "marker_type": kind,
        "producer": producer,
        "event_time": event_time,
        "by": by,
        "regressed": event_time is not None
        and assertion is not None
        and event_time < assertion.event_time,
    }

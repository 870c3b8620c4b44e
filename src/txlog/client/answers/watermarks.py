"""What producers asserted and where subscriptions are in event time: answers of `txlog watermark`.

    materialized   the lowest time of an active producer, at the place up to which everything is
                   acknowledged, or at the end of the log without a subscription; it may fall
    emitted        the highest one given to a consumer of the subscription; it never falls
    history        what took effect, in journal order: watermark rows, snapshots, and at a marker
                   what its transaction asserted, idle first. What open transactions hold has no
                   place yet

All only read from a view; instants are in milliseconds, positions are Position.
Source: spec/watermarks 3 to 6, 8.
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
    """One partition at a place; state: None when it cannot be read.

    If it is unavailable the value stays and the status says so: a consumer that has it holds.
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
        times = {name: one.event_time for name, one in self.state.active.items()}
        return min(times, key=lambda name: (times[name], name), default=None)


def show(
    view: View,
    topic: Topic,
    found: Sequence[Standing],
    now_ms: int,
    held: Subscription | None = None,
) -> WatermarkShown:
    """The watermark of a topic; the fields of `txlog watermark show`.

    found:   the standings of its partitions
    returns: max_event_time and late_messages are None: they need messages to be read
    """
    least = _holding(found)
    emitted = max((one.emitted for one in found if one.emitted is not None), default=None)
    status = status_of(found)
    value = least.value if least is not None and status == "active" else None
    shown = value if held is None else emitted
    pending = {txn for one in found for txn in view.watermark(one.number).pending}
    return {
        "topic": _short(topic),
        "subscription": None if held is None else held.name,
        "status": status,
        "watermark": value,
        "emitted": emitted,
        "lag_ms": None if shown is None or shown == EVENT_TIME_MAX else now_ms - shown,
        "holder": None if value is None or least is None else least.holder,
        "first_unacked": None if held is None else _first_unacked(view, held, found, least),
        "max_event_time": None,
        "late_messages": None,
        "pending_txns": len(pending),
        "partition_list": [_partition(view, one) for one in found],
    }


def reached(found: Sequence[Standing]) -> int | None:
    """How far event time is there: the value, or what a consumer was given if that is higher.

    Partitions without an active producer hold nothing back; if no partition has one, what was given
    stays. None: not known, or nothing yet
    """
    if status_of(found) in (UNAVAILABLE, "unknown"):
        return None
    active = [one for one in found if one.value is not None]
    highest = [
        max([time for time in (one.value, one.emitted) if time is not None], default=None)
        for one in active or found
    ]
    known = [time for time in highest if time is not None]
    return min(known) if len(known) == len(highest) and known else None


def at_end(view: View, topic: Topic) -> int | None:
    """The watermark of a topic at the end of its log, as `show` has it; reads no row."""
    found: list[int] = []
    for number in numbers(topic):
        state = view.watermark(number).state
        if number in view.catalog.unavailable or state.status == "unknown":
            return None
        if state.value is not None:
            found.append(state.value)
    return min(found, default=None)


def producers(
    view: View, topic: Topic, indexes: Sequence[int], held: Subscription | None = None
) -> list[WatermarkProducer]:
    """Producers by partition and name; the fields of `txlog watermark producers`.

    holds: it has the lowest time of its partition; idle: only open transactions know of it
    """
    out: list[WatermarkProducer] = []
    for one in standings(view, topic, indexes, held):
        active: dict[str, ActiveProducer] = {} if one.state is None else one.state.active
        pending = view.watermark(one.number).pending.values()
        names = {*active, *(name for effects in pending for name in effects)}
        for name in sorted(names):
            known = active.get(name)
            out.append(
                {
                    "topic": _short(topic),
                    "partition": one.partition,
                    "producer": name,
                    "event_time": None if known is None else known.event_time,
                    "holds": known is not None and known.event_time == one.value,
                    "idle": known is None,
                    "position": None if known is None else _position((known.ledger, known.entry)),
                    "pending_txns": sum(name in effects for effects in pending),
                }
            )
    return out


def standings(
    view: View,
    topic: Topic,
    indexes: Sequence[int],
    held: Subscription | None = None,
    at: MessageId | None = None,
) -> Iterator[Standing]:
    """Each partition where the subscription is, at the end of the log without one, or at a place.

    raises: MessageNotFound
    """
    for index in indexes if at is None else [_index_at(view, topic, indexes, at)]:
        number = number_of(topic, index)
        emitted = None
        if held is not None:
            epoch = view.cursor(held.number, number).epoch
            emitted = clamp_of(view.watermark(number).clamps, held.number, epoch)
        if at is not None:
            place = (at.ledger, at.entry)
        elif held is None:
            place = _end(view, number)
        else:
            place = tracking_position(view, held.number, number)
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


def status_of(found: Sequence[Standing]) -> str:
    """The status of all: unknown if any is."""
    known = {one.status for one in found}
    for status in (UNAVAILABLE, "unknown", "active"):
        if status in known:
            return status
    return "idle"


def _holding(found: Sequence[Standing]) -> Standing | None:
    """The partition that holds the value back: one without a value, else the lowest."""
    for one in found:
        if one.status in (UNAVAILABLE, "unknown"):
            return one
    active = [(one.value, one.partition, one) for one in found if one.value is not None]
    return min(active, key=lambda row: row[:2])[2] if active else None


def _first_unacked(
    view: View, held: Subscription, found: Sequence[Standing], least: Standing | None
) -> MessageId | None:
    """The message that the value waits for: the oldest unacknowledged one in that partition."""
    for one in found if least is None else [least]:
        cursor = view.cursor(held.number, one.number)
        pieces = plan(view, one.number, cursor.mark_delete, 1, (cursor.acked,)).pieces
        if pieces:
            return MessageId(*id_of(pieces[0], 0))
    return None


def _partition(view: View, one: Standing) -> WatermarkPartition:
    return {
        "partition": one.partition,
        "status": one.status,
        "watermark": one.value,
        "emitted": one.emitted,
        "holder": one.holder,
        "position": _position(one.place),
        "snapshot_position": _snapshot(view, one),
    }


def _snapshot(view: View, one: Standing) -> Position | None:
    """The last snapshot at or before the place; its own row may be the next one."""
    known = view.watermark(one.number).snapshots
    for ledger in sorted(known, reverse=True):
        entries = known[ledger]
        if ledger > one.place[0]:
            continue
        count = entries.rank(one.place[1] + 1) if ledger == one.place[0] else len(entries)
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
    found = [
        (lsn, index, answer)
        for index in indexes
        for lsn, answer in _of_partition(view, topic, index, most)
        if (producer is None or answer["producer"] == producer)
        and (since_ms is None or answer["publish_time"] >= since_ms)
    ]
    found.sort(key=lambda one: one[:2])  # stable: those of one frame and partition keep their order
    first = 0 if limit is None else max(0, len(found) - limit)
    return [answer for _, _, answer in found[first:]]


def _of_partition(
    view: View, topic: Topic, index: int, most: int | None
) -> Iterator[tuple[int, WatermarkRow]]:
    """(LSN, answer) of one partition, the last `most` rows; in order."""
    number = number_of(topic, index)
    known = view.watermark(number)
    places: list[FoldPosition] = []
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
    """What one row did; state: that at the place before it."""
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
    """state: None when the producer's time was forgotten just before."""
    known = None if state is None or producer is None else state.active.get(producer)
    return {
        "marker_type": kind,
        "producer": producer,
        "event_time": event_time,
        "by": by,
        "regressed": event_time is not None and known is not None and event_time < known.event_time,
    }

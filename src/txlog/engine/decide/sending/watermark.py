"""Asserting event-time progress: a row in every partition of the topic, in one frame.

    plain              W_SET or W_IDLE rows in the partitions, durable before the answer
    in a transaction   rows in the sidecars; they take effect with its markers, or never

Producers that are silent for too long are declared idle, by an ordinary row.

    watermark_producer_idle_timeout_ms   policy of a topic, its namespace or the store; 0: never

The sweep before a writing call looks for them (store/appender). Silence is counted by the wall
clock from the frame with a producer's last watermark row in a partition; a producer with rows in an
open transaction is not silent. An unavailable partition is left alone until it is back.
Source: apache/pulsar#12267; spec/watermarks 3, 10, 11, 12.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from txlog.base.ids import TopicName, TxnId
from txlog.base.settings import EVENT_TIME_MAX, Settings
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.decide.sending.producers import NamedProducer, check_producer
from txlog.engine.decide.transactions.transaction import Use, enter
from txlog.engine.folds.catalog import Topic, index_of, numbers
from txlog.engine.folds.watermark import START, ActiveProducer, Watermark, WatermarkState
from txlog.engine.model.ops import (
    BufferWatermark,
    PartitionAdded,
    WatermarkIdled,
    WatermarkSet,
)
from txlog.engine.plan.participants import check_available
from txlog.engine.plan.policies import policy
from txlog.engine.view import View
from txlog.errors import Corruption, InvalidArgument, LimitExceeded


class Assertion(msgspec.Struct, frozen=True, gc=False):
    """The assertion of a producer: event_time in ms, None: it is idle; by: producer or timeout."""

    producer: str
    event_time: int | None
    by: str = "producer"


class WatermarkPlaced(msgspec.Struct, frozen=True, gc=False):
    """Where the rows of an assertion are.

    positions: partition (from 0) -> (ledger, entry); empty in a transaction
    numbers:   partition (from 0) -> its number in the store
    """

    positions: dict[int, tuple[int, int]]
    numbers: dict[int, int]
    txn: TxnId | None = None


def check_event_time(event_time: int | None) -> int | None:
    """The time, if it may be asserted; raises InvalidArgument."""
    if event_time is None:
        return None
    if isinstance(event_time, bool) or not isinstance(event_time, int):
        raise InvalidArgument(f"event_time is {event_time!r}, it must be an integer", code=203)
    if not 0 < event_time <= EVENT_TIME_MAX:
        raise InvalidArgument(
            f"event_time is {event_time}, it must be above 0 and below 2^63", code=203
        )
    return event_time


def assert_watermark(
    view: View,
    settings: Settings,
    now: Instant,
    topic: Topic,
    assertion: Assertion,
    sender: NamedProducer | None = None,
) -> Decision[WatermarkPlaced]:
    """Decide a plain watermark; durable; answers WatermarkPlaced.

    raises: InvalidArgument, ProducerFenced, PartitionUnavailable, LimitExceeded (producers)
    """
    draft = Draft(view, settings, now.wall_ms)
    _check(draft, topic, assertion, sender)
    positions: dict[int, tuple[int, int]] = {}
    for number in numbers(topic):
        where = draft.take_entries(number, "p", 1)
        draft.ops.append(
            WatermarkIdled(number, *where, assertion.producer, assertion.by)
            if assertion.event_time is None
            else WatermarkSet(number, *where, assertion.producer, assertion.event_time)
        )
        positions[index_of(topic, number)] = where
    return draft.decision(WatermarkPlaced(positions, _indexes(topic)), sync=True)


def assert_in_txn(
    view: View,
    settings: Settings,
    now: Instant,
    uid: int,
    topic: Topic,
    assertion: Assertion,
    sender: NamedProducer | None,
    use: Use,
) -> Decision[tuple[TxnId, WatermarkPlaced]]:
    """Decide a watermark in a transaction; written, not flushed: the commit flushes it.

    answers: (its TxnId, WatermarkPlaced)
    raises:  as assert_watermark; TransactionNotFound, InvalidTxnStatus and the like
    """
    draft = Draft(view, settings, now.wall_ms)
    txn = enter(draft, now, uid, use)
    if isinstance(txn, Decision):
        return txn
    _check(draft, topic, assertion, sender)
    pair = (txn.coordinator, txn.sequence)
    for number in numbers(topic):
        if number not in txn.partitions:
            draft.ops.append(PartitionAdded(*pair, number))
        where = draft.take_entries(number, "s", 1)
        draft.ops.append(
            BufferWatermark(number, *where, *pair, assertion.producer, assertion.event_time)
        )
    txn_id = TxnId(*pair)
    return draft.decision((txn_id, WatermarkPlaced({}, _indexes(topic), txn_id)))


def _indexes(topic: Topic) -> dict[int, int]:
    return {index_of(topic, number): number for number in numbers(topic)}


def is_active(view: View, topic: Topic, producer: str) -> bool:
    """True while the producer is active in a partition; rows in open transactions do not count."""
    return any(producer in view.watermark(number).state.active for number in numbers(topic))


def regresses(view: View, topic: Topic, assertion: Assertion, txn: TxnId | None) -> bool:
    """True if the time is below the producer's last one in a partition: there it has no effect."""
    if assertion.event_time is None:
        return False
    for number in numbers(topic):
        state = view.watermark(number)
        active = state.state.active.get(assertion.producer)
        last = None if active is None else active.event_time
        if txn is not None:
            pending = state.pending.get((txn.coordinator, txn.sequence), {}).get(assertion.producer)
            if pending is not None:
                idle, time = pending
                last = time if idle or last is None else max(last, time or last)
        if last is not None and assertion.event_time < last:
            return True
    return False


def _check(draft: Draft, topic: Topic, assertion: Assertion, sender: NamedProducer | None) -> None:
    view = draft.view
    check_event_time(assertion.event_time)
    if sender is not None:
        check_producer(view, topic, sender)
    most = policy(view, draft.settings, topic, "watermark_producers_max")
    for number in numbers(topic):
        check_available(view, topic, number)
        if most and assertion.event_time is not None:
            names = _names(view.watermark(number))
            if assertion.producer not in names and len(names) >= most:
                raise LimitExceeded(
                    f"{len(names)} producers assert watermarks in "
                    f"{TopicName.parse(topic.name).short}, watermark_producers_max is {most}",
                    hint="declare some idle",
                    setting="watermark_producers_max",
                    limit=most,
                    value=len(names) + 1,
                )


def _names(state: Watermark) -> set[str]:
    """Producers that hold the watermark back, or will when open transactions commit."""
    names = set(state.state.active)
    for effects in state.pending.values():
        names |= effects.keys()
    return names


def take_snapshots(view: View, settings: Settings, now: Instant, topic: Topic) -> Decision[int]:
    """Decide a snapshot in every partition where anything was asserted; answers how many."""
    draft = Draft(view, settings, now.wall_ms)
    snapshots = 0
    for number in numbers(topic):
        check_available(view, topic, number)
        if view.watermark(number).state.seen:
            draft.snapshot(number)
            snapshots += 1
    return draft.decision(snapshots, sync=True)


def least_state(view: View, topic: Topic) -> WatermarkState | None:
    """The first state of a new partition: for each producer its least time in the other partitions.

    None: no producer has asserted anything.
    """
    states = [view.watermark(number).state for number in numbers(topic)]
    if not any(state.seen for state in states):
        return None
    active: dict[str, ActiveProducer] = {}
    for state in states:
        for producer, entry in state.active.items():
            least = active.get(producer)
            if least is None or entry.event_time < least.event_time:
                active[producer] = ActiveProducer(entry.event_time, *START, entry.time_ms)
    return WatermarkState(active, True)


# --- silent producers -----------------------------------------------------------------------------


TIMEOUT: Final = "watermark_producer_idle_timeout_ms"
BY_TIMEOUT: Final = "timeout"
RETRY_MS: Final = 1_000  # while an overdue producer cannot be declared idle yet
LOOK_MS_MAX: Final = 60_000  # between two looks, because the wall clock may be set
NEVER_MS: Final = 1 << 62


class SilentProducers(NamedTuple):
    """(partition, producer) pairs to declare idle, and after how many ms there may be others."""

    silent: list[tuple[int, str]]
    again_ms: int


def silent_producers(
    view: View, settings: Settings, now_ms: int, *, bounded: bool = True
) -> SilentProducers:
    """The producers silent for as long as the topic's policy says.

    bounded: at most sweep_max of them, and from at most sweep_max partitions that may have one; the
             starting point moves as the journal grows
    cost: loads the watermarks of these partitions and reads no row; without the policy it loads no
        fold
    """
    limits = _limits(view, settings)
    if not limits:
        return SilentProducers([], NEVER_MS)
    again_ms = min(LOOK_MS_MAX, *limits)  # a producer that begins now is not silent before that
    watched: list[tuple[int, int]] = []
    for topic in _topics(view, settings):
        if limit_ms := policy(view, settings, topic, TIMEOUT):
            watched += [(number, limit_ms) for number in _used(view, topic)]
    most = settings.sweep_max
    if bounded and len(watched) > most:
        start = view.lsn % len(watched)
        watched = (watched[start:] + watched[:start])[:most]
        again_ms = min(again_ms, RETRY_MS)
    silent: list[tuple[int, str]] = []
    for number, limit_ms in watched:
        try:
            state = view.watermark(number)
        except Corruption:
            continue  # readers of this partition get the error; other calls must not fail
        busy = {name for effects in state.pending.values() for name in effects}
        for name, active in state.state.active.items():
            left_ms = active.time_ms + limit_ms - now_ms
            if left_ms > 0:
                again_ms = min(again_ms, left_ms)
            elif name in busy:
                again_ms = min(again_ms, RETRY_MS)
            elif not bounded or len(silent) < most:
                silent.append((number, name))
    return SilentProducers(silent, again_ms)


def _limits(view: View, settings: Settings) -> list[int]:
    """The values of the policy in all scopes."""
    catalog = view.catalog
    scopes = [*catalog.namespace_policies.values(), *catalog.policies.values()]
    values = [getattr(settings, TIMEOUT), *(scope.get(TIMEOUT, 0) for scope in scopes)]
    return [limit_ms for limit_ms in values if limit_ms]


def _topics(view: View, settings: Settings) -> Iterable[Topic]:
    """Topics that may have the policy."""
    catalog = view.catalog
    of_namespaces = catalog.namespace_policies.values()
    if getattr(settings, TIMEOUT) or any(TIMEOUT in scope for scope in of_namespaces):
        return catalog.topics.values()
    return [
        catalog.topics[number] for number, scope in catalog.policies.items() if TIMEOUT in scope
    ]


def _used(view: View, topic: Topic) -> Iterator[int]:
    away = view.catalog.unavailable
    for number in numbers(topic):
        if number not in away and view.exists(("watermark", number, 0)):
            yield number


def declare_idle(draft: Draft, silent: Iterable[tuple[int, str]]) -> None:
    """Add a W_IDLE row for each (partition, producer)."""
    for number, name in silent:
        where = draft.take_entries(number, "p", 1)
        draft.ops.append(WatermarkIdled(number, *where, name, BY_TIMEOUT))


def is_silence_due(view: View, settings: Settings, now: Instant) -> bool:
    """True when a sweep would declare a producer idle."""
    if view.no_silence_before(now):
        return False
    look = silent_producers(view, settings, now.wall_ms)
    if not look.silent:
        view.note_silence(now, look.again_ms)
    return bool(look.silent)

"""Transactions that do not end by themselves, and what contradicts the one journal.

    COMMITTING, ABORTING beyond the limit   unavailable: bring the partitions back
    OPEN beyond its time-out                overdue: its coordinator was not loaded
    everything else                         corrupt: impossible by Law 4, reported, never repaired

Age alone is no finding (KIP-664). Source: spec/transactions 15.
"""

from __future__ import annotations

from collections.abc import Iterator

from txlog.clock import Instant
from txlog.engine.folds import catalog as catalogs
from txlog.engine.folds import coordinator as coordinators
from txlog.engine.folds.catalog import Topic, index_of
from txlog.engine.folds.coordinator import ABORTED, ENDED, OPEN, Coordinator, Txn
from txlog.engine.plan.lookup import is_overdue
from txlog.engine.plan.participants import Place, participants
from txlog.engine.view.view import View
from txlog.startup.values import value


@value
class Finding:
    """A transaction that hangs: cause unavailable, overdue or corrupt; partition: where."""

    coordinator: int
    sequence: int
    status: str | None  # None: unknown
    age_ms: int
    cause: str
    detail: str
    waiting: tuple[Place, ...] = ()


def hanging(view: View, now: Instant, older_than_ms: int, topics: list[Topic]) -> list[Finding]:
    """What hangs in these topics, one finding a transaction and cause, by id."""
    view.load_coordinators()
    numbers = {number for topic in topics for number in catalogs.numbers(topic)}
    every = len(topics) == len(view.catalog.topics)
    found: dict[tuple[int, int, str], Finding] = {}
    for _, state in view.loaded_coordinators():
        for txn in state.unfinished.values():
            touched = {*txn.partitions, *(partition for _, partition in txn.subscriptions)}
            if every or touched & numbers:
                for one in _of_unfinished(view, now, older_than_ms, txn):
                    found[(one.coordinator, one.sequence, one.cause)] = one
    for number in sorted(numbers):
        for one in contradictions(view, number, now):
            found.setdefault((one.coordinator, one.sequence, one.cause), one)
    return [found[key] for key in sorted(found)]


def _of_unfinished(view: View, now: Instant, older_than_ms: int, txn: Txn) -> Iterator[Finding]:
    pair, age_ms = (txn.coordinator, txn.sequence), now.wall_ms - txn.wall_ms
    if txn.status == OPEN:
        if is_overdue(txn, now):
            yield Finding(*pair, txn.status, age_ms, "overdue", "its time-out is over")
    elif age_ms > older_than_ms:
        waiting = tuple(participants(view, txn).waiting)
        if waiting:
            detail = "it waits for partitions"
            yield Finding(*pair, txn.status, age_ms, "unavailable", detail, waiting)
        else:
            yield Finding(*pair, txn.status, age_ms, "overdue", "nothing holds it up")


def contradictions(view: View, partition: int, now: Instant | None = None) -> Iterator[Finding]:
    """The four impossible states, looked for in one partition; now: for the age."""
    now = now or Instant(0, "", 0)
    side, topic_of = view.buffer(partition), view.catalog.topics
    for coordinator, by_sequence in side.held.items():
        for sequence in by_sequence:
            yield from _held(view, now, (coordinator, sequence), partition, 0)
    for topic in topic_of.values():
        if index_of(topic, partition) >= 0:
            for subscription in topic.subscriptions:
                for pair in view.cursor(subscription, partition).pending:
                    yield from _held(view, now, pair, partition, subscription)
    for known in side.markers.values():
        for marker in known:
            txn = coordinators.find(view.coordinator(marker.coordinator), marker.sequence)
            if txn is not None and txn.status == ABORTED:
                yield _corrupt(txn, (marker.coordinator, marker.sequence), now,
                               "it is aborted and has a marker")  # fmt: skip


def _held(
    view: View, now: Instant, pair: tuple[int, int], partition: int, subscription: int
) -> Iterator[Finding]:
    """Something is held for a transaction: it must be unfinished, and know of it."""
    what = "acknowledgements" if subscription else "messages"
    state: Coordinator = view.coordinator(pair[0])
    txn = coordinators.find(state, pair[1])
    if txn is None:
        how = "forgotten" if pair[1] < state.next_sequence else "never issued"
        yield _corrupt(None, pair, now, f"it was {how} and has {what}")
        return
    if txn.status in ENDED:
        yield _corrupt(txn, pair, now, f"it has ended and has {what} without an end")
    known = (
        (subscription, partition) in txn.subscriptions
        if subscription
        else partition in txn.partitions
    )
    if not known:
        yield _corrupt(txn, pair, now, f"it has {what} that it was not registered for")


def _corrupt(txn: Txn | None, pair: tuple[int, int], now: Instant, detail: str) -> Finding:
    age_ms = 0 if txn is None else now.wall_ms - txn.wall_ms
    return Finding(*pair, None if txn is None else txn.status, age_ms, "corrupt", detail)

"""Moving dead letters back to their topics: which ones, in frames of bounded size.

The rows are read without the lock. The decision (decide/consuming/dead_letter_retry) checks each
message again, so two processes that retry the same messages move each once. A call goes up
to the end that the dead-letter topic had when it began: a message that fails again meanwhile, and
is back there, waits for the next call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from txlog.base.ids import MessageId, TopicName
from txlog.base.startup import compute as pc
from txlog.clock import Instant
from txlog.engine.decide.consuming import dead_letter_retry as decisions
from txlog.engine.decide.consuming.acknowledge import by_partition
from txlog.engine.decide.consuming.dead_letter_retry import IN_HAND, RETRIED, RetryAnswer
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.transactions.transaction import NewTxn
from txlog.engine.folds.catalog import Subscription, Topic, index_of, numbers
from txlog.engine.folds.catalog import find_subscription as subscription_of_name
from txlog.engine.model.idset import IdSet
from txlog.engine.model.ops import Run
from txlog.engine.plan.ack_sets import runs_of_ids, runs_of_table, through
from txlog.engine.plan.lookup import subscription as find_subscription
from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.plan.reading.dispatch import (
    fetch,
    first_of,
    still_pending,
    taken_apart,
    visible_end,
    without,
)
from txlog.engine.session.consuming.acknowledge import acknowledge_runs
from txlog.engine.session.consuming.dead_letters import (
    COPY_MS_MAX,
    FRAME_BYTES,
    FRAME_BYTES_MOST,
    FRAME_MESSAGES_MAX,
    light,
    send_large,
)
from txlog.engine.session.transactions.transaction import Transaction
from txlog.engine.store.liveness import dead_consumers
from txlog.engine.store.store import Store
from txlog.engine.view import View
from txlog.errors import TransactionConflict

LARGE = "too large for one frame: only all subscriptions together can get it again"


class Selection(NamedTuple):
    """Which dead letters to move: ids, or all (None) up to a limit, perhaps only of one key."""

    ids: list[MessageId] | None
    limit: int | None = None
    key: bytes | None = None


class RetryOptions(NamedTuple):
    """for_all: as in the decision; dry_run: only count, move nothing."""

    for_all: bool = False
    dry_run: bool = False


class _Calling(NamedTuple):
    """Facts that all frames of a call share; gone: the consumers that were dead when it began."""

    store: Store
    find: decisions.Find
    options: RetryOptions
    gone: list[int]


def retry(
    store: Store, topic: TopicName, selection: Selection, options: RetryOptions
) -> RetryAnswer:
    """Move dead letters back, each one in the frame that acknowledges it; durable.

    The subscription RETRIED must exist, except for a rehearsal.
    raises:  TopicNotFound, MessageNotFound (before anything is moved), PartitionUnavailable
    """

    def find(view: View) -> tuple[Topic, Subscription | None]:
        dead = find_topic(view, topic)
        return dead, subscription_of_name(view.catalog, dead, RETRIED)

    consumers = store.read(lambda view: decisions.holders(view, find(view)[0]))
    calling = _Calling(store, find, options, dead_consumers(store.disk, consumers))
    moved, left = 0, dict[str, list[MessageId]]()
    for number, runs in store.read(lambda view: _chosen(view, find(view), selection)).items():
        for table in _tables(store, topic, number, runs, selection.key):
            rest = table
            while rest.num_rows:  # those that stay do not count, so the next ones take their place
                part = rest.slice(0, None if selection.limit is None else selection.limit - moved)
                rest = rest.slice(part.num_rows)
                answer = _moved(calling, number, part)
                moved += answer.moved
                for reason, ids in answer.left.items():
                    left.setdefault(reason, []).extend(ids)
                if moved == selection.limit:
                    return RetryAnswer(moved, left)
    return RetryAnswer(moved, left)


def _chosen(
    view: View, found: tuple[Topic, Subscription | None], selection: Selection
) -> dict[int, list[Run]]:
    """The messages to move, by partition, without whole markers."""
    dead, subscription = found
    if selection.ids is not None:
        chosen = by_partition(view, dead, runs_of_ids(selection.ids))
        return {number: taken_apart(view, number, runs) for number, runs in chosen.items()}
    return {number: unsettled(view, subscription, number) for number in numbers(dead)}


def unsettled(view: View, subscription: Subscription | None, number: int) -> list[Run]:
    """The dead letters of a partition, in order; None: no message was ever retried."""
    last = visible_end(view, number)
    first = view.topic(number).ledgers[0].ledger
    if subscription is None:
        return taken_apart(view, number, through(view, number, (first, -1, 0), last))
    cursor = view.cursor(subscription.number, number)
    runs = taken_apart(view, number, through(view, number, cursor.mark_delete, last))
    return still_pending(view, number, cursor, runs)


def _tables(
    store: Store, topic: TopicName, number: int, runs: list[Run], key: bytes | None
) -> Iterator[pa.Table]:
    """The messages of runs as RECEIVED, a frame at a time; key: only those."""
    limit = 1
    while runs:

        def look(
            view: View, limit: int = limit, runs: list[Run] = runs
        ) -> tuple[list[Run], pa.Table]:
            dead = find_topic(view, topic)
            head = light(view, number, first_of(runs, limit))
            taken = IdSet()
            for run in head:
                taken.add(run)
            table = fetch(view, topic.short, index_of(dead, number), number, head)
            return without(view, number, runs, taken), table

        runs, table = store.read(look)
        if table.nbytes < FRAME_BYTES:
            limit = min(2 * limit, FRAME_MESSAGES_MAX)
        if key is not None:
            table = table.filter(pc.fill_null(pc.equal(table.column("key"), key), False))
        yield table


def _moved(calling: _Calling, number: int, table: pa.Table) -> RetryAnswer:
    store, find, options, gone = calling
    if table.num_rows == 1 and table.nbytes > FRAME_BYTES_MOST:
        return _moved_large(calling, number, table)

    def decide(view: View, now: Instant) -> Decision[RetryAnswer]:
        rows = (number, table)
        return decisions.retry(
            view, store.settings, now, find, rows, for_all=options.for_all, gone=gone
        )

    if options.dry_run:
        return store.read(lambda view: decide(view, store.clock.now()).answered())
    return store.write(decide)


def _moved_large(calling: _Calling, number: int, table: pa.Table) -> RetryAnswer:
    """Move a large message in chunks, in one transaction with its acknowledgements."""
    store, find, options, gone = calling
    [message_id] = decisions.message_ids(table)
    runs = runs_of_table(table)

    def look(view: View) -> tuple[Topic, pa.RecordBatch, list[str]] | str:
        dead, retried = find(view)
        properties = dict(table.column("properties")[0].as_py() or ())
        staying = decisions.staying(view, dead, retried, number, message_id, gone)
        origin = staying or decisions.origin_of(view, properties, for_all=options.for_all)
        if isinstance(origin, str):
            return origin
        others = {origin.subscription.number} if origin.subscription is not None else set()
        if not options.for_all and {*origin.topic.subscriptions} - others:
            return LARGE
        held = [
            view.catalog.subscriptions[other].name
            for other in dead.subscriptions
            if still_pending(view, number, view.cursor(other, number), runs)
        ]
        return origin.topic, decisions.copies(view, origin.topic, table), held

    plan = store.read(look)
    if isinstance(plan, str):
        return RetryAnswer(0, {plan: [message_id]})
    target, copy, held = plan
    if options.dry_run:
        return RetryAnswer(1, {})
    timeout_ms = min(COPY_MS_MAX, store.settings.txn_timeout_max_ms)
    start = NewTxn(store.disk.owner(), store.clock.now(), timeout_ms)
    try:
        with Transaction(store, start, lambda: None) as txn:
            send_large(store, target, copy, copy.column("partition")[0].as_py(), txn)
            for name in held:

                def of(view: View, name: str = name) -> tuple[Topic, Subscription]:
                    dead = find(view)[0]
                    return dead, find_subscription(view, dead, name)

                acknowledge_runs(store, of, runs, txn, cumulative=False)
    except TransactionConflict:
        return RetryAnswer(0, {IN_HAND: [message_id]})
    return RetryAnswer(1, {})

"""Owns Consumer: receives a subscription's messages and acknowledges them.

A consumer is alive while its process holds the flock on consumers/<id>.lock; the kernel frees it on
any death, so an Exclusive subscription is never blocked by a dead consumer (spec/transactions 9.1).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from threading import Event
from types import TracebackType
from typing import TypeAlias

import pyarrow as pa

from txlog.clock import Instant
from txlog.engine.call import Decide
from txlog.engine.flow import acknowledge
from txlog.engine.flow.acknowledge import AckAnswer
from txlog.engine.flow.damage import find_damage
from txlog.engine.flow.dispatch import RECEIVED, plan, received, requests_of
from txlog.engine.flow.draft import Decision
from txlog.engine.flow.enter import Use
from txlog.engine.flow.lookup import subscription as find_subscription
from txlog.engine.flow.lookup import topic as find_topic
from txlog.engine.flow.participants import unavailable_error
from txlog.engine.flow.preview import START, PreviewPlace, preview
from txlog.engine.flow.sweep import Uses
from txlog.engine.folds.catalog import Subscription, Topic
from txlog.engine.folds.cursor import covers
from txlog.engine.liveness import is_held
from txlog.engine.model.ops import ConsumerAttached, ConsumerDetached, Mark, Run
from txlog.engine.storage.disk_protocol import LockFile
from txlog.engine.store import Store
from txlog.engine.sweeper import is_sweep_due
from txlog.engine.upkeep.quarantine import record_damage
from txlog.engine.view import View
from txlog.errors import (
    AlreadyClosed,
    ConsumerBusy,
    Corruption,
    InvalidArgument,
    MissingFile,
    NotAllowed,
    TxlogError,
)
from txlog.ids import MessageId, TopicName, TxnId
from txlog.message import Message, messages
from txlog.transaction import DecideIn, Later, Transaction, in_transaction

Acknowledgeable: TypeAlias = Message | MessageId | pa.Table | Sequence[Message | MessageId]
POLL_SECONDS_MIN, POLL_SECONDS_MAX = 0.002, 0.05
ATTACH_TRIES_MAX = 100


def runs_of(what: Acknowledgeable) -> list[Run]:
    """The ids of what a caller acknowledges, as runs."""
    if isinstance(what, pa.Table):
        return acknowledge.runs_of_table(what)
    if isinstance(what, Message | MessageId):
        what = [what]
    ids = [item.message_id if isinstance(item, Message) else item for item in what]
    if any(one is None for one in ids):
        raise InvalidArgument("a message of an open transaction has no id to acknowledge")
    return acknowledge.runs_of_ids([one for one in ids if one is not None])


class Consumer:
    """Receives from one topic on an Exclusive subscription.

    >>> import tempfile, txlog
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = txlog.init(folder)
    ...     with txlog.open(folder) as client:
    ...         _ = client.create_topic("orders")
    ...         _ = client.create_subscription("orders", "billing")
    ...         _ = client.producer("orders").send(b"one")
    ...         with client.consumer("orders", "billing") as consumer:
    ...             message = consumer.receive()
    ...             _ = consumer.acknowledge(message)
    ...             message.value, consumer.receive(timeout_ms=0)
    (b'one', None)
    """

    __slots__ = (
        "_buffered", "_damage", "_id", "_liveness", "_partition", "_places", "_previews", "_rounds",
        "_store", "_subscription", "_topic", "_turn", "name", "short",
    )  # fmt: skip

    def __init__(
        self, store: Store, topic: str, subscription: str, name: str | None,
        isolation: str | None = None,
    ) -> None:  # fmt: skip
        self._store = store
        wanted = TopicName.parse(topic, allow_partition=True)
        self.short = wanted.topic.short
        self.name = name or f"{store.disk.owner()[1]}-{store.disk.pid()}"
        self._buffered: Iterator[Message] = iter(())
        self._places: dict[int, Mark] = {}
        self._rounds: dict[int, int] = {}
        self._turn = 0
        self._damage: tuple[int, int, int] | None = None  # found in this call, to be recorded
        self._liveness: LockFile | None = None
        self._id = 0
        found = store.read(lambda view: self._find(view, wanted, subscription))
        self._topic, self._subscription = found
        if isolation not in (None, self._subscription.isolation):
            raise NotAllowed(
                f"subscription {subscription} is {self._subscription.isolation}, not {isolation}",
                hint="use a subscription of its own", topic=self.short, subscription=subscription,
            )  # fmt: skip
        self._partition = wanted.partition
        self._previews: dict[int, PreviewPlace] = {}
        self._attach()

    @staticmethod
    def _find(view: View, wanted: TopicName, name: str) -> tuple[Topic, Subscription]:
        topic = find_topic(view, wanted)
        return topic, find_subscription(view, topic, name)

    def _attach(self) -> None:
        """Take the subscription, or raise ConsumerBusy; an id is never used twice."""
        number = self._subscription.number
        for _ in range(ATTACH_TRIES_MAX):
            before, chosen = self._store.read(
                lambda view: (
                    view.catalog.subscriptions[number].consumer, view.catalog.next_consumer,
                )
            )  # fmt: skip
            if before and is_held(self._store.disk, f"consumers/{before}.lock"):
                raise self._busy(before)
            mine = self._store.disk.lock_file(f"consumers/{chosen}.lock")
            if not mine.try_acquire():
                mine.close()
                continue
            if self._store.write(self._claim(before, chosen)):
                self._liveness, self._id = mine, chosen
                if before:
                    self._store.disk.unlink(f"consumers/{before}.lock")
                return
            mine.close()
            self._store.disk.unlink(f"consumers/{chosen}.lock")
        raise self._busy(0)

    def _claim(self, before: int, chosen: int) -> Decide:
        number, name = self._subscription.number, self.name

        def decide(view: View, now: Instant) -> Decision:
            catalog = view.catalog
            if (catalog.subscriptions[number].consumer, catalog.next_consumer) != (before, chosen):
                return Decision([], answer=False)
            return Decision([ConsumerAttached(number, chosen, name)], None, True, True)

        return decide

    def _busy(self, other: int) -> ConsumerBusy:
        return ConsumerBusy(
            f"subscription {self._subscription.name} of {self.short} is exclusive and has a live "
            "consumer", hint="wait for it to end, or use another subscription",
            topic=self.short, subscription=self._subscription.name,
        )  # fmt: skip

    # --- receiving ---------------------------------------------------------------------------

    def receive_batch(self, max_messages: int = 1000, timeout_ms: int = 0) -> pa.Table:
        """The next messages, at most max_messages, as RECEIVED; no rows when the time is over.

        Rows of one marker stand together. What an aborted transaction had acknowledged comes again.
        """
        if max_messages <= 0:
            raise InvalidArgument(f"max_messages is {max_messages}, it must be positive", code=203)
        deadline = time.monotonic() + timeout_ms / 1000
        pause = POLL_SECONDS_MIN
        while True:
            table = self._poll(max_messages)
            left = deadline - time.monotonic()
            if table.num_rows or left <= 0:
                return table
            Event().wait(min(pause, left))
            pause = min(POLL_SECONDS_MAX, pause * 2)

    def _poll(self, limit: int) -> pa.Table:
        if self._liveness is None:
            raise AlreadyClosed("the consumer is closed")
        number, store = self._subscription.number, self._store
        uses = Uses(cursors=tuple((number, partition) for partition in self._numbers()))

        def look(view: View) -> pa.Table | None:
            if is_sweep_due(view, store.settings, store.clock.now(), uses):
                return None
            return self._take(view, limit)

        try:
            try:
                table = None if store.disk.read_only else store.read(look)
                if table is None:  # what comes back goes before what is new
                    store.sweep_if_due(uses)
                    table = store.read(lambda view: self._take(view, limit))
                if not table.num_rows and self._needs_writer():
                    store.write(lambda view, now: Decision([], None, True), uses=uses)
                    table = store.read(lambda view: self._take(view, limit))
            except MissingFile:  # also for the newest view: damage, like any other
                table = store.read(lambda view: self._take(view, limit, is_gone=True))
        finally:
            found, self._damage = self._damage, None
            if found is not None:
                record_damage(self._store, *found)
        return table

    def _needs_writer(self) -> bool:
        """True when a sweep or a flush may bring messages: held by a transaction, or unflushed."""
        if self._store.disk.read_only:
            return False
        return self._store.has_unflushed() or bool(self._store.read(self._pending_coordinators))

    def _pending_coordinators(self, view: View) -> tuple[int, ...]:
        return tuple({
            pair[0]
            for number in self._numbers()
            for pair in view.cursor(self._subscription.number, number).pending
        })  # fmt: skip

    def _numbers(self) -> range:
        """The partitions it receives from, by store-wide number: one, if its topic names it."""
        first, count = self._topic.first_partition, self._topic.partitions
        if self._partition is not None:
            first, count = first + self._partition, 1
        return range(first, first + count)

    def _take(self, view: View, limit: int, *, is_gone: bool = False) -> pa.Table:
        """One batch. MissingFile leaves nothing behind: the file may have been replaced (R21)."""
        tables: list[pa.Table] = []
        places, previews = dict(self._places), dict(self._previews)
        numbers = self._numbers()
        away = [number for number in numbers if number in view.catalog.unavailable]
        if len(away) == len(numbers):
            raise unavailable_error(view.catalog, self._topic, away[0])
        for step in range(len(numbers)):
            number = numbers[(self._turn + step) % len(numbers)]
            if number in view.catalog.unavailable:
                continue  # the other partitions notice nothing
            try:
                table = self._take_of(view, number, limit)
            except TxlogError as error:
                is_moved = isinstance(error, MissingFile) and not is_gone
                if tables and isinstance(error, Corruption) and not is_moved:
                    break  # what was read goes out; from now on the partition is left out
                self._places, self._previews = places, previews  # nothing goes out
                if is_moved:
                    self._damage = None
                raise
            if not table.num_rows:
                continue
            tables.append(table)
            limit -= table.num_rows
            if limit <= 0:
                self._turn = (self._turn + step) % len(numbers)
                break
        return pa.concat_tables(tables) if tables else RECEIVED.empty_table()

    def _take_of(self, view: View, number: int, limit: int) -> pa.Table:
        """The next messages of one partition; its place moves only once its rows could be read."""
        cursor = view.cursor(self._subscription.number, number)
        if number not in self._places or self._rounds[number] != cursor.round:
            # an abort gave messages back: delivery begins again behind mark-delete
            self._places[number] = cursor.mark_delete
            self._rounds[number] = cursor.round
        place = self._places[number]
        if covers(cursor.mark_delete, place):
            place = cursor.mark_delete  # what it passed is not in `acked` any more
        found = plan(view, number, place, limit, (cursor.acked, cursor.held))
        partition = number - self._topic.first_partition
        try:
            table = received(view, self.short, partition, number, found.pieces, cursor.redelivered)
        except Corruption:
            damage = find_damage(view, requests_of(found.pieces))
            if damage is not None:
                self._damage = (number, *damage)
            raise
        self._places[number] = found.behind
        if table.num_rows < limit and self._subscription.isolation == "uncommitted":
            rows, self._previews[number] = preview(
                view, self.short, partition, number, self._previews.get(number, START),
                limit - table.num_rows,
            )  # fmt: skip
            return pa.concat_tables([table, rows])
        return table

    def receive(self, timeout_ms: int | None = 0) -> Message | None:
        """The next message; None when none came within timeout_ms (None: wait for ever)."""
        if self._store.read(self._is_rewound):
            self._buffered = iter(())  # an abort gave messages back: they come first
        buffered = next(self._buffered, None)
        while buffered is None:
            table = self.receive_batch(timeout_ms=1000 if timeout_ms is None else timeout_ms)
            self._buffered = messages(table)
            buffered = next(self._buffered, None)
            if timeout_ms is not None:
                break
        return buffered

    def _is_rewound(self, view: View) -> bool:
        number = self._subscription.number
        return any(view.cursor(number, n).round != known for n, known in self._rounds.items())

    # --- acknowledging -----------------------------------------------------------------------

    def _target(self, view: View) -> tuple[Topic, Subscription]:
        catalog = view.catalog
        return catalog.topics[self._topic.number], catalog.subscriptions[self._subscription.number]

    def acknowledge(
        self, what: Acknowledgeable, *, txn: Transaction | TxnId | None = None
    ) -> AckAnswer:
        """Acknowledge messages, ids or received rows; in a transaction they become PENDING_ACK.

        raises: MessageNotFound; TransactionConflict, which has aborted the transaction
        """
        return acknowledge_runs(self._store, self._target, runs_of(what), txn, cumulative=False)

    def acknowledge_async(self, what: Acknowledgeable, *, txn: Transaction) -> Later[AckAnswer]:
        """Acknowledge in a transaction, together with its next call that waits for an answer.

        A refusal is raised by `result()`, or else by the commit, which then aborts.
        """
        return acknowledge_later(self._store, self._target, runs_of(what), txn)

    def acknowledge_cumulative(
        self, what: Message | MessageId, *, txn: Transaction | TxnId | None = None
    ) -> AckAnswer:
        """Acknowledge everything up to and with a message of its partition."""
        return acknowledge_runs(self._store, self._target, runs_of(what), txn, cumulative=True)

    def redeliver_unacknowledged_messages(self) -> None:
        """Deliver again what was received and not acknowledged."""
        self._buffered = iter(())
        self._places.clear()

    def close(self) -> None:
        """Let the subscription go; unacknowledged messages go to the next consumer."""
        if self._liveness is None:
            return
        number, mine = self._subscription.number, self._id
        self._store.write(
            lambda view, now: Decision(
                [ConsumerDetached(number, mine)]
                if view.catalog.subscriptions[number].consumer == mine else []
            )
        )  # fmt: skip
        self._store.disk.unlink(f"consumers/{mine}.lock")
        self._liveness.close()
        self._liveness = None

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()


def acknowledge_runs(
    store: Store, find: acknowledge.Find, runs: list[Run],
    txn: Transaction | TxnId | None, *, cumulative: bool,
) -> AckAnswer:  # fmt: skip
    """Acknowledge runs on a subscription, without a consumer if need be."""
    if not runs:
        return AckAnswer(0, 0, 0)
    answer: object = None
    if txn is not None:
        decide, uses = _in_txn(store, find, runs, cumulative=cumulative)
        answer = in_transaction(store, txn, decide, uses)
    ledgers = tuple({run[0] for run in runs})
    while answer is None:  # again after a sweep that ends an overdue holder
        answer = store.write(
            lambda view, now: acknowledge.acknowledge(
                view, store.settings, now, find, runs, cumulative=cumulative
            ),
            uses=Uses(acks=(find, ledgers)),
        )
    return _ack_answer(answer)


def acknowledge_later(
    store: Store, find: acknowledge.Find, runs: list[Run], txn: Transaction
) -> Later[AckAnswer]:
    """Acknowledge runs in a transaction with its next call that waits for an answer."""
    return txn.leave(*_in_txn(store, find, runs, cumulative=False), _ack_answer)


def _in_txn(
    store: Store, find: acknowledge.Find, runs: list[Run], *, cumulative: bool
) -> tuple[DecideIn, Uses]:
    """The decision that acknowledges in a transaction, and what it uses."""
    uid = store.disk.owner()[0]

    def decide(view: View, now: Instant, use: Use) -> Decision:
        return acknowledge.acknowledge_in_txn(
            view, store.settings, now, uid, find, runs, use, cumulative=cumulative
        )

    return decide, Uses(acks=(find, tuple({run[0] for run in runs})))


def _ack_answer(answer: object) -> AckAnswer:
    assert isinstance(answer, AckAnswer)
    return answer

"""Owns NonDurableConsumer: a subscription that lives in memory, as long as its consumer.

It works on top of a reader. Nothing is written, nobody else sees it, it keeps nothing from being
trimmed, and it needs no lock. What was acknowledged, what is in hand and how often a message came
are kept here. Source: Pulsar's SubscriptionMode.NonDurable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial
from itertools import islice
from types import TracebackType

import pyarrow as pa

from txlog.base.arguments import checked
from txlog.base.ids import MessageId, TxnId
from txlog.base.startup import compute as pc
from txlog.client.consuming.batches import Batching, BatchReceivePolicy, receive_batch
from txlog.client.consuming.listeners import Listening, needed
from txlog.client.reading.reader import Reader
from txlog.engine.door.catalog import Topic, index_of
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.consuming import (
    AckAnswer,
    Acknowledgeable,
    by_partition,
    is_trimmed,
    messages_in,
    runs_of,
    runs_of_table,
    through,
)
from txlog.engine.door.facts import IdSet, Run, each
from txlog.engine.door.reading import (
    BY_TIME,
    NO_MESSAGES,
    Message,
    Quiet,
    Where,
    fetch,
    first_of,
    least,
    messages,
    rows_in,
    start_of,
    taken_apart,
    until,
    without,
)
from txlog.engine.door.store import Mutex, Store, View
from txlog.engine.door.transactions import Transaction
from txlog.engine.door.watermarks import (
    HandedOut,
    Watermarked,
    WatermarkListener,
    WatermarkSession,
    check_listener,
)
from txlog.errors import AlreadyClosed, InvalidArgument, NotAllowed

AHEAD_MAX = 1000  # messages read ahead of the application
Ours = list[tuple[int, Run]]  # partition number, run without whole markers


@checked
class NonDurableConsumer(Watermarked):
    """Receives a topic from a position on; its acknowledgements are known to nobody else.

    Messages that were given back come before new ones, in order of position. Safe to call from many
    threads. Its watermark is that of the place up to which it has delivered, as for a Reader,
    whatever is acknowledged.

    >>> import tempfile, txlog
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = txlog.init(folder)
    ...     with txlog.open(folder) as client:
    ...         _ = client.create_topic("orders")
    ...         _ = client.producer("orders").send(b"one")
    ...         with client.consumer("orders", "glance", durable=False) as consumer:
    ...             message = consumer.receive()
    ...             consumer.negative_acknowledge(message)
    ...             again = consumer.receive()
    ...         again.value, again.redelivery_count, client.subscriptions("orders")
    (b'one', 1, [])
    """

    __slots__ = (
        "__weakref__",
        "_acked",
        "_batching",
        "_buffered",
        "_counts",
        "_decoder",
        "_ground",
        "_hand",
        "_is_closed",
        "_listening",
        "_new_rows",
        "_previewed",
        "_reader",
        "_returned",
        "_session",
        "_store",
        "_turns",
        "_unshown",
        "name",
        "short",
    )

    def __init__(
        self,
        store: Store,
        reader: Reader,
        subscription: str,
        enable_watermarking: bool = False,
        listener: WatermarkListener[NonDurableConsumer] | None = None,
        policy: BatchReceivePolicy | None = None,
    ) -> None:
        self._listening: Listening | None = None
        self._batching = Batching(policy, has_watermarks=enable_watermarking)
        check_listener(listener, enable_watermarking)
        self.name = subscription
        self._store, self._reader = store, reader
        self._decoder = reader._decoder
        self.short = self._reader.short
        self._buffered: deque[Message] = deque()
        self._previewed = NO_MESSAGES  # previews among these, and those handed out before them
        self._unshown = NO_MESSAGES  # previews that were read ahead, and go back: without an id
        # Ledger ids are store-wide, so one set does for all partitions. Markers are separate.
        self._acked, self._hand = IdSet(), IdSet()
        self._returned: list[tuple[int, int, Run]] = []  # due (boot clock), partition, run
        self._counts: dict[tuple[int, int, int], int] = {}
        self._is_closed = False
        self._new_rows = 0  # of what was read last, after what came back
        self._turns = Mutex(store.disk.pid)
        self._ground: HandedOut | None = None
        self._session: WatermarkSession | None = None
        if enable_watermarking:
            notify = None if listener is None else partial(listener.received_watermark, self)
            self._ground = HandedOut(self._reader._standing)
            self._session = WatermarkSession(store, self._ground, notify)

    # --- receiving ---------------------------------------------------------------------------

    def receive_batch(self, max_messages: int | None = None, timeout_ms: int = 0) -> pa.Table:
        """The next messages, at most max_messages, as RECEIVED; no rows when time runs out.

        Without arguments: as batch_receive_policy says, else at most 1,000 and at once.
        With watermarks also no rows, at once, when there is a new one, and a column is_late.
        """
        return receive_batch(self._store, self, max_messages, timeout_ms)

    def receive(self, timeout_ms: int | None = 0) -> Message | None:
        """The next message; None if none came within timeout_ms (None: wait forever).

        With watermarks also None, at once, when there is a new one: see get_last_watermark.
        """
        found = until(self._store, self._next, timeout_ms, self._rest)
        return (found or [None])[0]

    def _rest(self, pause: float) -> Quiet:
        """How long to wait for news: until what was given back is due."""
        rests = [self._reader._rest(pause)]
        if self._session is not None:
            rests.append(Quiet(self._session.rest()))
        due_ms = min((due for due, _, _ in [*self._returned]), default=None)
        if due_ms is not None:
            left_ms = max(due_ms - self._store.clock.now().boot_ms, 1)
            rests.append(Quiet(left_ms / 1000, concern=BY_TIME))
        return least(rests)

    def _nothing(self) -> pa.Table:
        return NO_MESSAGES if self._session is None else self._session.marked(NO_MESSAGES)

    def _unread(self, table: pa.Table) -> None:
        """Rows that nobody has seen come again, uncounted."""
        self._uncount(table)

    def _unreceived(self, message: Message) -> None:
        """The same for a message that `_next` returned."""
        self._uncount(message)

    def _uncount(self, what: Acknowledgeable) -> None:
        now_ms = self._store.clock.now().boot_ms
        with self._turns.held():
            for number, run in self._store.read(lambda view: self._named(view, what)):
                for one in self._hand.common(run):
                    self._hand.discard(one)
                    self._returned.append((now_ms, number, one))

    def _some(self, limit: int, is_thorough: bool = True) -> pa.Table | None:
        """What to hand out at once; without rows: there is a new watermark."""
        with self._turns.held():
            session, ground = self._session, self._ground
            self._put_back()  # it comes in its order
            self._reader._settle(is_thorough)
            if session is None or ground is None:
                return self._more(limit)
            table, has_moved = session.turn(lambda: self._more(limit))
            if table is None:
                return session.marked(NO_MESSAGES) if has_moved else None
            ground.moved()
            if ground.is_ahead:  # what was given back unseen
                for index in pc.unique(table.column("partition")).to_pylist():
                    rows = table.filter(pc.equal(table.column("partition"), index))
                    for run in runs_of_table(rows):
                        ground.gone(index, run)
            return session.marked(table)

    def _next(self, is_thorough: bool = True) -> list[Message | None] | None:
        """The next message; [None]: there is a new watermark."""
        with self._turns.held():
            session = self._session
            self._reader._settle(is_thorough)
            if session is None:
                message = self._pop()
                return None if message is None else [message]
            message, has_moved = session.turn(self._pop)
            if message is None:
                return [None] if has_moved else None
            return [session.judged(message)]

    def _pop(self) -> Message | None:
        self._check_open()
        ground = self._ground
        if self._buffered and self._is_due():  # what came back goes first
            again = self._store.read(lambda view: self._given_back(view, AHEAD_MAX))
            back = [one for table in again for one in messages(table, self._decoder)]
            self._buffered.extendleft(reversed(back))
        message = self._unacked_next()
        if message is None:
            table = self._poll(AHEAD_MAX)
            if table is not None:
                self._buffered.extend(messages(table, self._decoder))
                self._previewed = table.filter(table.column("ledger").is_null())
            if ground is not None and self._buffered:
                later = len(self._buffered) - self._new_rows
                ground.read_ahead(islice(self._buffered, later, None))
            message = self._unacked_next()
        if message is None:
            return None
        if message.message_id is not None:
            self._hand.add(_run(_id(message.message_id)))
        if ground is not None:
            ground.handed_out(message)
        return message

    def _unacked_next(self) -> Message | None:
        """The next that was read ahead and not acknowledged meanwhile."""
        while self._buffered:
            message = self._buffered.popleft()
            if not _is_in(message, self._acked):
                return message
        return None

    def _put_back(self) -> None:
        """What was read ahead and not received comes again, in order and uncounted."""
        ahead = self._ahead().runs()
        left = sum(one.message_id is None for one in self._buffered)
        rows = self._previewed.slice(self._previewed.num_rows - left)
        self._unshown = pa.concat_tables([rows, self._unshown])
        self._previewed = NO_MESSAGES
        self._buffered.clear()
        if ahead:
            now_ms = self._store.clock.now().boot_ms
            ours = self._store.read(lambda view: self._ours(view, ahead))
            self._returned += ((now_ms, number, run) for number, run in ours)

    def _is_due(self) -> bool:
        now_ms = self._store.clock.now().boot_ms
        return any(due <= now_ms for due, _, _ in self._returned)

    def _leave(self, view: View, number: int, run: Run) -> None:
        """The watermark no longer waits for these messages: they are acknowledged or trimmed."""
        if self._ground is not None:
            self._ground.gone(index_of(self._topic(view), number), run)

    def _more(self, limit: int) -> pa.Table | None:
        """The next messages, for the application."""
        table = self._poll(limit)
        if table is not None:
            for run in runs_of_table(table):
                self._hand.add(run)
        return table

    def _poll(self, limit: int) -> pa.Table | None:
        self._check_open()
        again = self._store.read(lambda view: self._given_back(view, limit))
        left = limit - sum(table.num_rows for table in again)
        tables = [*again, *([self._new(left)] if left else [])]
        self._new_rows = tables[-1].num_rows if left else 0
        tables = [table for table in tables if table.num_rows]
        return pa.concat_tables(tables) if tables else None

    def _given_back(self, view: View, limit: int) -> list[pa.Table]:
        """Messages whose time has come, at most limit, in order of position."""
        now_ms = self._store.clock.now().boot_ms
        due = [item for item in self._returned if item[0] <= now_ms]
        if not due:
            return []
        topic = self._topic(view)
        tables, taken = [], IdSet()
        for _, number, run in sorted(due, key=lambda item: item[1:]):
            if limit and self._is_compacted_away(view, number, run):
                table = self._compacted_again(view, topic, number, run, limit)
                tables.append(table)
                limit -= table.num_rows
                for one in runs_of_table(table) if table.num_rows else [run]:
                    taken.add(one)
                continue
            head = first_of(taken_apart(view, number, [run]), limit)
            if head:
                index = index_of(topic, number)
                tables.append(fetch(view, self.short, index, number, head, self._counts))
                limit -= tables[-1].num_rows
            for one in head or ([run] if limit else []):
                taken.add(one)
            if not head and limit:
                self._leave(view, number, run)  # trimmed: it is gone
        self._returned = self._except(view, taken)
        return tables

    def _is_compacted_away(self, view: View, number: int, run: Run) -> bool:
        """Whether a run is of compacted messages that the log does not have any more."""
        return self._reader._wanted.kind == "compacted" and is_trimmed(view, number, run[0])

    def _compacted_again(
        self, view: View, topic: Topic, number: int, run: Run, limit: int
    ) -> pa.Table:
        """Compacted messages that were given back, at most limit, with their counts."""
        table = self._reader._compacted_again(view, index_of(topic, number), run, limit)
        ids = (table.column(name).to_pylist() for name in ("ledger", "entry", "index"))
        counts = [
            self._counts.get((ledger, entry, index or 0), 0)
            for ledger, entry, index in zip(*ids, strict=True)
        ]
        at = table.schema.get_field_index("redelivery_count")
        return table.set_column(at, table.schema.field(at), pa.array(counts, pa.int32()))

    def _new(self, limit: int) -> pa.Table:
        if self._unshown.num_rows:
            table, self._unshown = self._unshown.slice(0, limit), self._unshown.slice(limit)
            return table
        table = self._reader.receive_batch(limit)
        if not table.num_rows:
            return table
        if self._acked.entries or self._acked.inner:
            table = self._store.read(lambda view: self._unacked(view, table))
        zero = pc.if_else(
            table.column("ledger").is_valid(), pa.scalar(0, pa.int32()), pa.scalar(None, pa.int32())
        )
        at = table.schema.get_field_index("redelivery_count")
        return table.set_column(at, table.schema.field(at), zero)

    def _unacked(self, view: View, table: pa.Table) -> pa.Table:
        """The rows without what was acknowledged ahead of its delivery."""
        runs = [run for _, run in self._ours(view, runs_of_table(table))]
        left = without(view, 0, runs, self._acked)
        if left == runs:
            return table
        previews = table.filter(table.column("ledger").is_null())
        return pa.concat_tables([rows_in(view, 0, table, left), previews])

    def has_message_available(self) -> bool:
        """True when a message can be received now."""
        self._check_open()
        with self._turns.held():
            has_read = bool(self._buffered) or self._unshown.num_rows > 0
            return has_read or self._is_due() or self._reader.has_message_available()

    def pause_message_listener(self) -> None:
        """Call its listener no more, for now; returns when it is not being called.

        From within the listener: after this call.
        raises: AlreadyClosed, NotAllowed (it has none)
        """
        self._check_open()
        needed(self._listening).pause()

    def resume_message_listener(self) -> None:
        """Call its listener again; raises as pause_message_listener."""
        self._check_open()
        needed(self._listening).resume()

    def get_last_message_ids(self) -> dict[int, MessageId | None]:
        """The last visible message of each partition, None for an empty one."""
        self._check_open()
        return self._reader.get_last_message_ids()

    def get_last_message_id(self) -> MessageId | None:
        """The last visible message. Raises NotAllowed when the topic has several partitions."""
        return self._reader.get_last_message_id()

    # --- acknowledging -----------------------------------------------------------------------

    def acknowledge(
        self, what: Acknowledgeable, *, txn: Transaction | TxnId | None = None
    ) -> AckAnswer:
        """Acknowledge messages, ids or received rows, here only.

        raises: MessageNotFound; NotAllowed in a transaction: there is nothing to commit
        """
        self._check_durable(txn)
        with self._turns.held():
            return self._store.read(lambda view: self._acknowledge(view, self._named(view, what)))

    def acknowledge_cumulative(
        self, what: Message | MessageId, *, txn: Transaction | TxnId | None = None
    ) -> AckAnswer:
        """Acknowledge everything up to and including a message of its partition."""
        self._check_durable(txn)

        def look(view: View) -> AckAnswer:
            [(number, last)] = self._named(view, what)[-1:]
            target = (last[0], last[2], last[4])
            runs = through(view, number, start_of(view, number), target)
            ours = [(number, run) for run in taken_apart(view, number, runs)]
            left = [(n, rest) for n, run in ours for rest in without(view, n, [run], self._acked)]
            return self._acknowledge(view, left)

        with self._turns.held():
            return self._store.read(look)

    def _check_open(self) -> None:
        if self._is_closed:
            raise AlreadyClosed("the consumer is closed")

    def _check_durable(self, txn: object) -> None:
        self._check_open()
        if txn is not None:
            raise NotAllowed(
                f"subscription {self.name} is not durable: a transaction cannot acknowledge on it",
                hint="use a durable subscription",
                topic=self.short,
                subscription=self.name,
            )

    def _acknowledge(self, view: View, asked: Ours) -> AckAnswer:
        new, acked, already = IdSet(), 0, 0
        for number, run in asked:
            left = without(view, number, [run], self._acked)
            acked += messages_in(view, number, left)
            already += messages_in(view, number, [run]) - messages_in(view, number, left)
            for one in left:
                new.add(one)
                self._acked.add(one)
                self._hand.discard(one)
                self._leave(view, number, one)
        self._returned = self._except(view, new)
        for key in [key for key in self._counts if not without(view, 0, [_run(key)], new)]:
            del self._counts[key]
        return AckAnswer(acked, already, 0)

    def negative_acknowledge(self, what: Acknowledgeable, delay_ms: int = 0) -> None:
        """Return received messages: they come again, after the delay."""
        if delay_ms < 0:
            raise InvalidArgument(f"delay_ms is {delay_ms}, it is negative", code=203)
        self._check_open()
        with self._turns.held():
            self._store.read(lambda view: self._give_back(view, self._named(view, what), delay_ms))

    def redeliver_unacknowledged_messages(self) -> None:
        """Deliver again what was received and not acknowledged."""
        self._check_open()
        with self._turns.held():
            self._put_back()
            self._store.read(
                lambda view: self._give_back(view, self._ours(view, self._hand.runs()), 0)
            )

    def _give_back(self, view: View, asked: Ours, delay_ms: int) -> None:
        due_ms = self._store.clock.now().boot_ms + delay_ms
        ahead, back = self._ahead(), IdSet()
        for number, run in asked:
            for one in ahead.common(run):  # postponed, and not counted: nobody received it
                back.add(one)
                self._returned.append((due_ms, number, one))
            for one in self._hand.common(run):
                self._hand.discard(one)
                self._returned.append((due_ms, number, one))
                for key in each(one):
                    self._counts[key] = self._counts.get(key, 0) + 1
        if back:
            left = (one for one in self._buffered if not _is_in(one, back))
            self._buffered = deque(left)

    def _ahead(self) -> IdSet:
        """What was read ahead and not received."""
        out = IdSet()
        for message in self._buffered:
            if message.message_id is not None:
                out.add(_run(_id(message.message_id)))
        return out

    # --- ids ---------------------------------------------------------------------------------

    def _topic(self, view: View) -> Topic:
        return find_topic(view, self._reader.topic)

    def _named(self, view: View, what: Acknowledgeable) -> Ours:
        """The messages that a caller names. Raises MessageNotFound."""
        asked = by_partition(view, self._topic(view), runs_of(what))
        kept = [
            (n, run) for n, runs in asked.items() for run in runs
            if self._is_compacted_away(view, n, run)
        ]  # fmt: skip
        return kept + [(n, run) for n, runs in asked.items() for run in taken_apart(view, n, runs)]

    def _ours(self, view: View, runs: Iterable[Run]) -> Ours:
        self._topic(view)  # raises if it was deleted
        return [(view.catalog.owners[run[0]][0], run) for run in runs]

    def _except(self, view: View, taken: IdSet) -> list[tuple[int, int, Run]]:
        return [
            (due, number, rest)
            for due, number, run in self._returned
            for rest in without(view, number, [run], taken)
        ]

    def seek(self, to: Where) -> None:
        """Continue from a position, as Reader.seek; what was acknowledged or in hand is forgotten.

        raises: AlreadyClosed, MessageNotFound, InvalidArgument
        """
        self._check_open()
        with self._turns.held():
            self._reader.seek(to)
            self._acked, self._hand = IdSet(), IdSet()
            self._returned, self._unshown = [], NO_MESSAGES
            self._buffered.clear()
            self._counts.clear()

    def unsubscribe(self) -> None:
        """Close it: there is nothing else of this subscription."""
        self._check_open()
        self.close()

    def close(self) -> None:
        """Forget everything. A thread that waits here gets AlreadyClosed."""
        self._is_closed = True
        self._reader.close()

    def __enter__(self) -> NonDurableConsumer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _id(one: MessageId) -> tuple[int, int, int]:
    return (one.ledger, one.entry, one.index)


def _is_in(message: Message, ids: IdSet) -> bool:
    return message.message_id is not None and _id(message.message_id) in ids


def _run(key: tuple[int, int, int]) -> Run:
    return (key[0], key[1], key[1], key[2], key[2])

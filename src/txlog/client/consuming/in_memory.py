"""Owns MemorySession: a subscription in memory, which ends with its consumer.

It works on top of a reader. It writes nothing and takes no lock, other processes do not see it, and
it does not keep messages from being trimmed. This object holds the acknowledgements, the messages
in hand (delivered, unacknowledged) and the redelivery counts.
Source: Pulsar's SubscriptionMode.NonDurable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

import pyarrow as pa

from txlog.base.ids import MessageId, TxnId
from txlog.base.startup import compute as pc
from txlog.client.reading.reader import Reader
from txlog.engine.door.catalog import Topic, index_of
from txlog.engine.door.consuming import (
    AckAnswer,
    Acknowledgeable,
    MoveResult,
    ReturnResult,
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
    without,
)
from txlog.engine.door.store import Mutex, Store, View
from txlog.engine.door.transactions import Later, Transaction
from txlog.engine.door.watermarks import HandedOut, WatermarkSession
from txlog.errors import AlreadyClosed, InvalidArgument, NotAllowed

AHEAD_MAX = 1000  # messages read ahead of the application
Ours = list[tuple[int, Run]]  # partition number, run without whole markers


class MemorySession:
    """The state of a consumer of a subscription in memory.

    Returned messages come before new ones, in order of position. As for a Reader, its watermark
    follows the last message it delivered, acknowledged or not.
    """

    __slots__ = (
        "__weakref__",
        "_acked",
        "_buffered",
        "_counts",
        "_decoder",
        "_ground",
        "_hand",
        "_is_closed",
        "_new_rows",
        "_previewed",
        "_reader",
        "_returned",
        "_turns",
        "_unshown",
        "short",
        "store",
        "subscription",
        "watermarks",
    )

    def __init__(
        self, store: Store, reader: Reader, subscription: str, enable_watermarking: bool = False
    ) -> None:
        self.subscription = subscription
        self.store, self._reader = store, reader
        self._decoder = reader._decoder
        self.short = reader.short
        self._buffered: deque[Message] = deque()
        self._previewed = NO_MESSAGES  # previews of the last read, handed out or still buffered
        self._unshown = NO_MESSAGES  # returned previews: they have no id, so keep their rows
        # Ledger ids are unique in the store, so one set holds the ids of all partitions.
        self._acked, self._hand = IdSet(), IdSet()
        self._returned: list[tuple[int, int, Run]] = []  # due (ms since boot), partition, run
        self._counts: dict[tuple[int, int, int], int] = {}  # redeliveries by message
        self._is_closed = False
        self._new_rows = 0  # new messages of the last read; they follow its returned ones
        self._turns = Mutex(store.disk.pid)
        self._ground: HandedOut | None = None
        self.watermarks: WatermarkSession | None = None
        if enable_watermarking:
            self._ground = HandedOut(reader.standing)
            self.watermarks = WatermarkSession(store, self._ground)

    @property
    def topics(self) -> list[str]:
        """The one topic that it receives from."""
        return [self.short]

    @property
    def blocked(self) -> str | None:
        """None: it has no limit of unacknowledged messages."""
        return None

    # --- receiving ---------------------------------------------------------------------------

    def rest(self, pause: float) -> Quiet:
        """How long a waiting call may sleep: at most until a returned message is due."""
        rests = [self._reader._rest(pause)]
        if self.watermarks is not None:
            rests.append(Quiet(self.watermarks.rest()))
        due_ms = min((due for due, _, _ in [*self._returned]), default=None)
        if due_ms is not None:
            left_ms = max(due_ms - self.store.clock.now().boot_ms, 1)
            rests.append(Quiet(left_ms / 1000, concern=BY_TIME))
        return least(rests)

    def empty(self) -> pa.Table:
        """The table that a call returns when there is no message."""
        return NO_MESSAGES if self.watermarks is None else self.watermarks.marked(NO_MESSAGES)

    def give_back(self, table: pa.Table) -> None:
        """Return rows of the last turn, uncounted."""
        self._uncount(table)

    def give_back_message(self, message: Message) -> None:
        """Return a message that `next` returned, uncounted."""
        self._uncount(message)

    def _uncount(self, what: Acknowledgeable) -> None:
        now_ms = self.store.clock.now().boot_ms
        with self._turns.held():
            for number, run in self.store.read(lambda view: self._named(view, what)):
                for part in self._hand.common(run):
                    self._hand.discard(part)
                    self._returned.append((now_ms, number, part))

    def take(self, limit: int, is_thorough: bool) -> pa.Table | None:
        """At most `limit` messages; None if there are none; no rows: there is a new watermark."""
        with self._turns.held():
            watermarks, ground = self.watermarks, self._ground
            self._put_back()  # so that buffered messages come in order of position
            self._reader._settle(is_thorough)
            if watermarks is None or ground is None:
                return self._more(limit)
            table, has_moved = watermarks.turn(lambda: self._more(limit))
            if table is None:
                return watermarks.marked(NO_MESSAGES) if has_moved else None
            ground.moved()
            if ground.is_ahead:  # messages that were read ahead and returned
                for index in pc.unique(table.column("partition")).to_pylist():
                    rows = table.filter(pc.equal(table.column("partition"), index))
                    for run in runs_of_table(rows):
                        ground.gone(index, run)
            return watermarks.marked(table)

    def next(self, is_thorough: bool) -> tuple[Message | None] | None:
        """(the next message,); None if there is none; (None,): there is a new watermark."""
        with self._turns.held():
            watermarks = self.watermarks
            self._reader._settle(is_thorough)
            if watermarks is None:
                message = self._pop()
                return None if message is None else (message,)
            message, has_moved = watermarks.turn(self._pop)
            if message is None:
                return (None,) if has_moved else None
            return (watermarks.judged(message),)

    def _pop(self) -> Message | None:
        self.check_open()
        ground = self._ground
        if self._buffered and self._is_due():  # returned messages go first
            tables = self.store.read(lambda view: self._given_back(view, AHEAD_MAX))
            returned = [message for table in tables for message in messages(table, self._decoder)]
            self._buffered.extendleft(reversed(returned))
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
        """The next buffered message that was not acknowledged meanwhile."""
        while self._buffered:
            message = self._buffered.popleft()
            if not _is_in(message, self._acked):
                return message
        return None

    def _put_back(self) -> None:
        """Return the buffered messages, uncounted; they come again in order of position."""
        ahead = self._ahead().runs()
        previews = sum(message.message_id is None for message in self._buffered)
        rows = self._previewed.slice(self._previewed.num_rows - previews)
        self._unshown = pa.concat_tables([rows, self._unshown])
        self._previewed = NO_MESSAGES
        self._buffered.clear()
        if ahead:
            now_ms = self.store.clock.now().boot_ms
            ours = self.store.read(lambda view: self._ours(view, ahead))
            self._returned += ((now_ms, number, run) for number, run in ours)

    def _is_due(self) -> bool:
        now_ms = self.store.clock.now().boot_ms
        return any(due <= now_ms for due, _, _ in self._returned)

    def _leave(self, view: View, number: int, run: Run) -> None:
        """Note that the watermark need not wait for these messages: acknowledged or trimmed."""
        if self._ground is not None:
            self._ground.gone(index_of(self._topic(view), number), run)

    def _more(self, limit: int) -> pa.Table | None:
        """The next messages; they count as in hand from now on."""
        table = self._poll(limit)
        if table is not None:
            for run in runs_of_table(table):
                self._hand.add(run)
        return table

    def _poll(self, limit: int) -> pa.Table | None:
        self.check_open()
        returned = self.store.read(lambda view: self._given_back(view, limit))
        room = limit - sum(table.num_rows for table in returned)
        tables = [*returned, *([self._new(room)] if room else [])]
        self._new_rows = tables[-1].num_rows if room else 0
        tables = [table for table in tables if table.num_rows]
        return pa.concat_tables(tables) if tables else None

    def _given_back(self, view: View, limit: int) -> list[pa.Table]:
        """Returned messages that are due, at most limit, in order of position."""
        now_ms = self.store.clock.now().boot_ms
        due = [item for item in self._returned if item[0] <= now_ms]
        if not due:
            return []
        topic = self._topic(view)
        tables, handled = [], IdSet()
        for _, number, run in sorted(due, key=lambda item: item[1:]):
            if limit and self._is_compacted_away(view, number, run):
                table = self._compacted_again(view, topic, number, run, limit)
                tables.append(table)
                limit -= table.num_rows
                for part in runs_of_table(table) if table.num_rows else [run]:
                    handled.add(part)
                continue
            head = first_of(taken_apart(view, number, [run]), limit)
            if head:
                index = index_of(topic, number)
                tables.append(fetch(view, self.short, index, number, head, self._counts))
                limit -= tables[-1].num_rows
            for part in head or ([run] if limit else []):
                handled.add(part)
            if not head and limit:
                self._leave(view, number, run)  # the messages were trimmed
        self._returned = self._except(view, handled)
        return tables

    def _is_compacted_away(self, view: View, number: int, run: Run) -> bool:
        """True if the log no longer has these messages, so only the compacted files have them."""
        return self._reader._wanted.kind == "compacted" and is_trimmed(view, number, run[0])

    def _compacted_again(
        self, view: View, topic: Topic, number: int, run: Run, limit: int
    ) -> pa.Table:
        """Returned messages from the compacted files, at most limit, with redelivery counts."""
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
            table = self.store.read(lambda view: self._unacked(view, table))
        zero = pc.if_else(
            table.column("ledger").is_valid(), pa.scalar(0, pa.int32()), pa.scalar(None, pa.int32())
        )
        at = table.schema.get_field_index("redelivery_count")
        return table.set_column(at, table.schema.field(at), zero)

    def _unacked(self, view: View, table: pa.Table) -> pa.Table:
        """The rows without messages that were acknowledged before their delivery."""
        runs = [run for _, run in self._ours(view, runs_of_table(table))]
        unacked = without(view, 0, runs, self._acked)
        if unacked == runs:
            return table
        previews = table.filter(table.column("ledger").is_null())
        return pa.concat_tables([rows_in(view, 0, table, unacked), previews])

    def give_back_ahead(self) -> None:
        """Do nothing, as no other consumer waits for these messages."""

    def has_message_available(self) -> bool:
        """True when a message can be received now."""
        self.check_open()
        with self._turns.held():
            has_read = bool(self._buffered) or self._unshown.num_rows > 0
            return has_read or self._is_due() or self._reader.has_message_available()

    def last_message_ids(self) -> dict[int, MessageId | None]:
        """The last visible message of each partition, None for an empty one."""
        self.check_open()
        return self._reader.get_last_message_ids()

    def last_message_id(self) -> MessageId | None:
        """The last visible message. Raises NotAllowed when the topic has several partitions."""
        return self._reader.get_last_message_id()

    # --- acknowledging -----------------------------------------------------------------------

    def acknowledge(self, what: Acknowledgeable, txn: Transaction | TxnId | None) -> AckAnswer:
        """Acknowledge messages, ids or received rows, in memory only.

        raises: MessageNotFound; NotAllowed in a transaction: there is nothing to commit
        """
        self._refuse_txn(txn)
        with self._turns.held():
            return self.store.read(lambda view: self._acknowledge(view, self._named(view, what)))

    def acknowledge_cumulative(
        self, what: Message | MessageId, txn: Transaction | TxnId | None
    ) -> AckAnswer:
        """Acknowledge everything up to and including a message of its partition."""
        self._refuse_txn(txn)

        def look(view: View) -> AckAnswer:
            [(number, last)] = self._named(view, what)[-1:]
            target = (last[0], last[2], last[4])
            runs = through(view, number, start_of(view, number), target)
            ours = [(number, run) for run in taken_apart(view, number, runs)]
            new = [(n, part) for n, run in ours for part in without(view, n, [run], self._acked)]
            return self._acknowledge(view, new)

        with self._turns.held():
            return self.store.read(look)

    def acknowledge_later(self, what: Acknowledgeable, txn: Transaction) -> Later[AckAnswer]:
        """Raises NotAllowed: a transaction cannot acknowledge on a subscription in memory."""
        self.check_open()
        raise self._not_durable()

    def reconsume_later(
        self, message: Message | MessageId, delay_ms: int, properties: dict[str, str] | None
    ) -> MoveResult:
        """Raises NotAllowed: a subscription in memory has no retry topic."""
        self.check_open()
        raise NotAllowed(
            f"subscription {self.subscription} is not durable: it has no retry topic",
            hint="use a durable subscription, or negative_acknowledge with a delay",
            topic=self.short,
            subscription=self.subscription,
        )

    def check_open(self) -> None:
        """Raises AlreadyClosed."""
        if self._is_closed:
            raise AlreadyClosed("the consumer is closed")

    def _refuse_txn(self, txn: object) -> None:
        self.check_open()
        if txn is not None:
            raise self._not_durable()

    def _not_durable(self) -> NotAllowed:
        return NotAllowed(
            f"subscription {self.subscription} is not durable: "
            "a transaction cannot acknowledge on it",
            hint="use a durable subscription",
            topic=self.short,
            subscription=self.subscription,
        )

    def _acknowledge(self, view: View, runs: Ours) -> AckAnswer:
        new, acked, already = IdSet(), 0, 0
        for number, run in runs:
            unacked = without(view, number, [run], self._acked)
            acked += messages_in(view, number, unacked)
            already += messages_in(view, number, [run]) - messages_in(view, number, unacked)
            for part in unacked:
                new.add(part)
                self._acked.add(part)
                self._hand.discard(part)
                self._leave(view, number, part)
        self._returned = self._except(view, new)
        for key in [key for key in self._counts if not without(view, 0, [_run(key)], new)]:
            del self._counts[key]
        return AckAnswer(acked, already, 0)

    def negative_acknowledge(
        self, what: Acknowledgeable, delay_ms: int | None, default_ms: int = 0
    ) -> ReturnResult:
        """Return received messages, counted; they come again after the delay."""
        delay_ms = default_ms if delay_ms is None else delay_ms
        if delay_ms < 0:
            raise InvalidArgument(f"delay_ms is {delay_ms}, it is negative", code=203)
        self.check_open()
        with self._turns.held():
            return self.store.read(
                lambda view: self._give_back(view, self._named(view, what), delay_ms)
            )

    def redeliver(self) -> ReturnResult:
        """Return all received and unacknowledged messages, counted."""
        self.check_open()
        with self._turns.held():
            self._put_back()
            return self.store.read(
                lambda view: self._give_back(view, self._ours(view, self._hand.runs()), 0)
            )

    def _give_back(self, view: View, runs: Ours, delay_ms: int) -> ReturnResult:
        returned = 0
        due_ms = self.store.clock.now().boot_ms + delay_ms
        ahead, back = self._ahead(), IdSet()
        for number, run in runs:
            for part in ahead.common(run):  # the application has not received it: do not count it
                back.add(part)
                self._returned.append((due_ms, number, part))
            for part in self._hand.common(run):
                self._hand.discard(part)
                self._returned.append((due_ms, number, part))
                for key in each(part):
                    returned += 1
                    self._counts[key] = self._counts.get(key, 0) + 1
        if back:
            waiting = (message for message in self._buffered if not _is_in(message, back))
            self._buffered = deque(waiting)
        return ReturnResult(returned)

    def _ahead(self) -> IdSet:
        """The ids of the buffered messages."""
        out = IdSet()
        for message in self._buffered:
            if message.message_id is not None:
                out.add(_run(_id(message.message_id)))
        return out

    # --- ids ---------------------------------------------------------------------------------

    def _topic(self, view: View) -> Topic:
        return self._reader._found(view)

    def _named(self, view: View, what: Acknowledgeable) -> Ours:
        """(partition number, run) of the messages. Raises MessageNotFound."""
        by_number = by_partition(view, self._topic(view), runs_of(what))
        compacted = [
            (n, run) for n, runs in by_number.items() for run in runs
            if self._is_compacted_away(view, n, run)
        ]  # fmt: skip
        return compacted + [
            (n, run) for n, runs in by_number.items() for run in taken_apart(view, n, runs)
        ]

    def _ours(self, view: View, runs: Iterable[Run]) -> Ours:
        self._topic(view)  # raises if it was deleted
        return [(view.catalog.owners[run[0]][0], run) for run in runs]

    def _except(self, view: View, taken: IdSet) -> list[tuple[int, int, Run]]:
        return [
            (due, number, part)
            for due, number, run in self._returned
            for part in without(view, number, [run], taken)
        ]

    def seek(self, to: Where) -> None:
        """Continue from a position, as Reader.seek; forget acknowledgements and messages in hand.

        raises: AlreadyClosed, MessageNotFound, InvalidArgument
        """
        self.check_open()
        with self._turns.held():
            self._reader.seek(to)
            self._acked, self._hand = IdSet(), IdSet()
            self._returned, self._unshown = [], NO_MESSAGES
            self._buffered.clear()
            self._counts.clear()

    def unsubscribe(self) -> None:
        """Close it; the subscription has no other state."""
        self.check_open()
        self.close()

    def close(self) -> None:
        """End the subscription. Threads that wait for its messages get AlreadyClosed."""
        self._is_closed = True
        self._reader.close()


def _id(message_id: MessageId) -> tuple[int, int, int]:
    return (message_id.ledger, message_id.entry, message_id.index)


def _is_in(message: Message, ids: IdSet) -> bool:
    return message.message_id is not None and _id(message.message_id) in ids


def _run(key: tuple[int, int, int]) -> Run:
    return (key[0], key[1], key[1], key[2], key[2])

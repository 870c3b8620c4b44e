"""Owns the calls that move messages off a subscription: those given up for good, and those put off.

Rows are read without the lock, first one and then more while they are small, so that a frame stays
small however large the messages are. The decision (decide/consuming/dead_letters) checks each one
again.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from msgspec.structs import replace

from txlog.base.ids import MessageId, TopicName
from txlog.base.settings import HOUR_MS, INSTANT_MS_MAX, MESSAGE_BYTES_MAX, MIB, PROPERTIES_MAX
from txlog.clock import Instant
from txlog.engine.decide.consuming import dead_letters
from txlog.engine.decide.consuming.acknowledge import by_partition
from txlog.engine.decide.consuming.dead_letters import Find, MoveResult, RetryOptions
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.sending.send import AFTER
from txlog.engine.decide.transactions.transaction import NewTxn
from txlog.engine.folds.buffer import find_marker
from txlog.engine.folds.catalog import Subscription, Topic, index_of
from txlog.engine.model.idset import size
from txlog.engine.model.ops import DeadLettered, Run
from txlog.engine.plan.ack_sets import runs_of_ids, runs_of_table
from txlog.engine.plan.lookup import live_topic
from txlog.engine.plan.reading.dispatch import BatchBytes, fetch, first_of, taken_apart
from txlog.engine.session.consuming.acknowledge import acknowledge_runs
from txlog.engine.session.sending import large
from txlog.engine.session.sending.access import Target
from txlog.engine.session.transactions.transaction import Transaction
from txlog.engine.store.store import Store
from txlog.engine.view import View
from txlog.errors import (
    Corruption,
    InvalidArgument,
    InvalidMessage,
    MissingFile,
    TransactionConflict,
)

FRAME_MESSAGES_MAX = 128
FRAME_BYTES = 4 * MIB  # while frames are smaller, the next one takes twice as many messages
FRAME_BYTES_MOST = MESSAGE_BYTES_MAX  # of a message that is not in chunks; larger ones go alone
COPY_MS_MAX = HOUR_MS  # a copy of many bytes takes time, and must hold nothing meanwhile
Seen = tuple[int, int, object]


class DeadLetters:
    """Gives up messages redelivered too often on one subscription, for the consumer that owns this.

    A message becomes due when it is returned: counted, which the cursor's figures show, or not,
    which begins a round. So a partition is searched once for each of their values.
    """

    __slots__ = ("_damaged", "_find", "_seen", "_store")

    def __init__(self, store: Store, find: Find) -> None:
        self._store = store
        self._find = find
        self._seen: dict[int, Seen] = {}
        self._damaged: set[int] = set()

    def is_due(self, view: View, numbers: Sequence[int]) -> bool:
        """True when a message on one of these partitions has to be moved before any is handed out.

        Under the write lock the answer holds until the lock is freed, so a decision that hands
        messages out asks it first, and is made again after `sweep` when it is true.
        """
        topic, held = self._find(view)
        if dead_letters.policies(view, topic, held).get("max_redeliver_count") is None:
            return False  # most subscriptions, at each lease
        return any(self._due(view, topic, held, number) for number in numbers)

    def _due(self, view: View, topic: Topic, held: Subscription, number: int) -> list[Run]:
        if number in view.catalog.unavailable or number in self._damaged:
            return []
        most = dead_letters.policies(view, topic, held).get("max_redeliver_count")
        if most is None:
            return []
        cursor = view.cursor(held.number, number)
        state = (cursor.figures.redelivered, cursor.round, most)
        if self._seen.get(number) == state:
            return []
        found = dead_letters.due(view, topic, held, number)
        if not found:
            self._seen[number] = state
        return found

    def sweep(self, numbers: Sequence[int]) -> int:
        """Move what is due on these partitions; returns how many messages went.

        raises: PartitionUnavailable (of the dead-letter topic), LimitExceeded
        """
        total, limit = 0, 1
        while True:
            try:
                rows = self._read(numbers, limit)
            except MissingFile:  # also for the newest view
                self._damaged.update(numbers)
                return total
            if not rows:
                return total
            moved = self._move(rows)
            if not moved:  # another process was faster
                return total
            total += moved
            if sum(table.nbytes for table in rows.values()) < FRAME_BYTES:
                limit = min(2 * limit, FRAME_MESSAGES_MAX)

    def _move(self, rows: dict[int, pa.Table]) -> int:
        return _moved(self._store, self._find, rows, None).moved

    def _read(self, numbers: Sequence[int], limit: int) -> dict[int, pa.Table]:
        return self._store.read(lambda view: self._rows(view, numbers, limit))

    def _rows(self, view: View, numbers: Sequence[int], limit: int) -> dict[int, pa.Table]:
        """The first messages that are due, of one partition."""
        topic, held = self._find(view)
        short = TopicName.parse(topic.name).short
        for number in numbers:
            runs = _light(view, number, first_of(self._due(view, topic, held, number), limit))
            if not runs:
                continue
            try:
                table = fetch(view, short, index_of(topic, number), number, runs)
            except MissingFile:
                raise  # it may have been replaced (R21)
            except Corruption:
                self._damaged.add(number)  # delivery meets the damage and reports it
                continue
            return {number: table}
        return {}


def _light(view: View, number: int, runs: list[Run]) -> list[Run]:
    """The first messages of the runs, as many as memory should hold at once; at least one."""
    budget = BatchBytes(view, number, FRAME_BYTES_MOST)
    out: list[Run] = []
    for run in runs:
        ledger, entry, index = run[0], run[1], run[3]
        marker = find_marker(view.buffer(number), ledger, entry) if index else None
        left = size(run)
        while left:
            room, each = budget.fit(ledger, marker, index, left, is_first=not out)
            if not room:
                return out
            out += first_of([(ledger, entry, run[2], index, run[4])], room)
            budget.left -= room * each
            left -= room
            entry, index = (entry, index + room) if marker is not None else (entry + room, 0)
    return out


def reconsume_later(store: Store, find: Find, what: MessageId, how: RetryOptions) -> MoveResult:
    """Postpone a message: copy it to the retry topic and acknowledge it, in one frame.

    returns: to which topic; moved 0: it is acknowledged, held by a transaction, or leased to
             another
    raises:  MessageNotFound, PartitionUnavailable, InvalidArgument, InvalidMessage
    """
    if not 0 <= how.delay_ms <= INSTANT_MS_MAX - store.clock.now().wall_ms:
        raise InvalidArgument(f"delay_ms is {how.delay_ms}, it is out of range", code=203)
    if len(how.properties) > PROPERTIES_MAX or not all(
        isinstance(text, str) for pair in how.properties.items() for text in pair
    ):
        raise InvalidMessage(f"properties are at most {PROPERTIES_MAX} names with texts")

    def look(view: View) -> dict[int, pa.Table]:
        topic, _ = find(view)
        short = TopicName.parse(topic.name).short
        asked = by_partition(view, topic, runs_of_ids([what]))
        return {
            number: fetch(view, short, index_of(topic, number), number, apart)
            for number, runs in asked.items()
            if (apart := taken_apart(view, number, runs))
        }

    rows = store.read(look)
    if not rows:  # trimmed: it counts as DELETED
        return MoveResult("", 0, 1)
    return _moved(store, find, rows, how)


def _moved(
    store: Store, find: Find, rows: dict[int, pa.Table], how: RetryOptions | None
) -> MoveResult:
    """Move messages in one frame, or one that is too large for that in a transaction."""
    [(number, table)] = rows.items()
    if table.num_rows == 1 and table.nbytes > FRAME_BYTES_MOST:
        return _moved_large(store, find, number, table, how)
    settings = store.settings

    def decide(view: View, now: Instant) -> Decision[MoveResult]:
        if how is None:
            return dead_letters.bury(view, settings, now, find, rows)
        return dead_letters.postpone(view, settings, now, find, rows, how)

    answer = store.write(decide)
    return answer


def _moved_large(
    store: Store, find: Find, number: int, table: pa.Table, how: RetryOptions | None
) -> MoveResult:
    """Send a large message on in chunks and acknowledge it, in one transaction: both or neither.

    It is acknowledged last, so that nothing is held while the chunks are written. The second to do
    so meets a conflict, and what it sent is never seen.
    """
    runs = runs_of_table(table)
    answer = store.write(
        lambda view, now: dead_letters.made_target(
            view, store.settings, now, find, {number: table}, how
        )
    )
    target, kind = answer
    short = TopicName.parse(target.name).short

    def look(view: View) -> pa.RecordBatch | None:
        held = find(view)[1]
        mine = 0 if how is None else how.consumer
        if dead_letters.free(view, held, number, runs, mine) != runs:
            return None
        return dead_letters.copies(view, find, table, kind, how)

    copy = store.read(look)
    if copy is None:
        return MoveResult(short, 0, 1)
    head = {
        name: value
        for name in ("key", "properties", "event_time", AFTER)
        if name in copy.schema.names and (value := copy.column(name)[0].as_py()) is not None
    }
    # its properties may make it larger than a new message may be
    settings = replace(store.settings, max_chunked_message_bytes=dead_letters.NO_LIMIT)
    value = memoryview(copy.column("value")[0].as_buffer())
    body = large.body_of(value, head.get("key"), dict(head["properties"]), settings)
    assert isinstance(body, large.Body)  # a frame holds more than a message that is not in chunks
    to = large.address(target.partitions, 0, head.get("key"), None, None, None)
    timeout_ms = min(COPY_MS_MAX, settings.txn_timeout_max_ms)
    start = NewTxn(store.disk.owner(), store.clock.now(), timeout_ms)
    try:
        with Transaction(store, start, lambda: None) as txn:
            there = Target(target.number, lambda view: live_topic(view, target.number, short))
            large.send(store, there, to, head, body, txn)
            acknowledge_runs(store, find, runs, txn, cumulative=False)
    except TransactionConflict:
        return MoveResult(short, 0, 1)
    if kind == dead_letters.DEAD:
        subscription = store.read(lambda view: find(view)[1].number)
        store.write(lambda view, now: Decision([DeadLettered(subscription, number, 1)]))
    return MoveResult(short, 1, 0)

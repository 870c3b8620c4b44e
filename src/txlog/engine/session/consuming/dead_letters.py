"""Moving messages off a subscription: to its dead-letter topic, or to its retry topic.

The rows are read without the lock. A move starts with one message and takes more while the frames
stay small, so large messages never make a large frame. The decision (decide/consuming/dead_letters)
checks each message again.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from msgspec.structs import replace

from txlog.base.ids import MessageId, TopicName
from txlog.base.logs import log_event
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
from txlog.engine.plan.derived import DEAD
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
FRAME_BYTES_MOST = MESSAGE_BYTES_MAX  # the largest message without chunks; larger ones go alone
COPY_MS_MAX = HOUR_MS  # time-out of the transaction that copies a large message
Seen = tuple[int, int, object]


class DeadLetters:
    """Moves messages that were redelivered too often to the dead-letter topic; one per consumer.

    A message becomes due only when it is returned, which changes the cursor's figures (counted) or
    its round (uncounted). So a partition is searched again only if these or the policy changed.
    """

    __slots__ = ("_damaged", "_find", "_seen", "_store")

    def __init__(self, store: Store, find: Find) -> None:
        self._store = store
        self._find = find
        self._seen: dict[int, Seen] = {}
        self._damaged: set[int] = set()

    def is_due(self, view: View, numbers: Sequence[int]) -> bool:
        """True if a message on these partitions has to be moved before any message is leased.

        A decision that leases messages checks this under the write lock. If it is true, the caller
        calls `sweep` and decides again.
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
        runs = dead_letters.due(view, topic, held, number)
        if not runs:
            self._seen[number] = state
        return runs

    def sweep(self, numbers: Sequence[int]) -> int:
        """Move all due messages of partitions; returns how many were moved.

        raises: PartitionUnavailable (of the dead-letter topic), LimitExceeded
        """
        total, limit = 0, 1
        while True:
            try:
                rows = self._read(numbers, limit)
            except MissingFile:  # in the newest view, too, so the file is lost
                self._damaged.update(numbers)
                return total
            if not rows:
                return total
            moved = self._move(rows)
            if not moved:  # another process has moved them
                return total
            log_event("redelivery", "info", "moved %d messages to a dead-letter topic", moved)
            total += moved
            if sum(table.nbytes for table in rows.values()) < FRAME_BYTES:
                limit = min(2 * limit, FRAME_MESSAGES_MAX)

    def _move(self, rows: dict[int, pa.Table]) -> int:
        return _moved(self._store, self._find, rows, None).moved

    def _read(self, numbers: Sequence[int], limit: int) -> dict[int, pa.Table]:
        return self._store.read(lambda view: self._rows(view, numbers, limit))

    def _rows(self, view: View, numbers: Sequence[int], limit: int) -> dict[int, pa.Table]:
        """The first due messages of the first partition that has any, as {its number: rows}."""
        topic, held = self._find(view)
        short = TopicName.parse(topic.name).short
        for number in numbers:
            runs = light(view, number, first_of(self._due(view, topic, held, number), limit))
            if not runs:
                continue
            try:
                counts = view.cursor(held.number, number).redelivered
                table = fetch(view, short, index_of(topic, number), number, runs, counts)
            except MissingFile:
                raise  # compaction may have replaced it: a newer view names the new file (R21)
            except Corruption:
                self._damaged.add(number)  # the turn that delivers from here reports the damage
                continue
            return {number: table}
        return {}


def light(view: View, number: int, runs: list[Run]) -> list[Run]:
    """The first messages of the runs, up to FRAME_BYTES_MOST bytes; at least one."""
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
    """Postpone a message: copy it to the retry topic and acknowledge it, both or neither.

    returns: the topic: the dead-letter topic after too many times. moved is 0 if the message is
             acknowledged, held by a transaction, leased to another consumer, or trimmed
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
        runs_by_number = by_partition(view, topic, runs_of_ids([what]))
        return {
            number: fetch(view, short, index_of(topic, number), number, apart)
            for number, runs in runs_by_number.items()
            if (apart := taken_apart(view, number, runs))
        }

    rows = store.read(look)
    if not rows:  # it was trimmed
        return MoveResult("", 0, 1)
    return _moved(store, find, rows, how)


def _moved(
    store: Store, find: Find, rows: dict[int, pa.Table], how: RetryOptions | None
) -> MoveResult:
    """Move messages to the dead-letter topic, or as `how` says, in one frame.

    A message that is too large for a frame moves alone, in a transaction.
    """
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
    """Copy a large message in chunks and acknowledge it, in one transaction: both or neither.

    The acknowledgement comes last, so the message is not held while the chunks are written. If two
    processes do this at once, the second gets a conflict, and its copy never becomes visible.
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
        consumer = 0 if how is None else how.consumer
        if dead_letters.free(view, held, number, runs, consumer) != runs:
            return None
        return dead_letters.copies(view, find, table, kind, how)

    copy = store.read(look)
    if copy is None:
        return MoveResult(short, 0, 1)
    timeout_ms = min(COPY_MS_MAX, store.settings.txn_timeout_max_ms)
    start = NewTxn(store.disk.owner(), store.clock.now(), timeout_ms)
    try:
        with Transaction(store, start, lambda: None) as txn:
            send_large(store, target, copy, 0, txn)
            acknowledge_runs(store, find, runs, txn, cumulative=False)
    except TransactionConflict:
        return MoveResult(short, 0, 1)
    if kind == DEAD:
        subscription = store.read(lambda view: find(view)[1].number)
        store.write(lambda view, now: Decision([DeadLettered(subscription, number, 1)]))
    return MoveResult(short, 1, 0)


def send_large(
    store: Store, target: Topic, copy: pa.RecordBatch, turn: int, txn: Transaction
) -> None:
    """Send the copy of a large message in chunks; turn: its partition if it has no key."""
    short = TopicName.parse(target.name).short
    head = {
        name: value
        for name in ("key", "properties", "event_time", AFTER)
        if name in copy.schema.names and (value := copy.column(name)[0].as_py()) is not None
    }
    # the move adds properties, which may push the message over the limit for new messages
    settings = replace(store.settings, max_chunked_message_bytes=dead_letters.NO_LIMIT)
    value = memoryview(copy.column("value")[0].as_buffer())
    body = large.body_of(value, head.get("key"), dict(head["properties"]), settings)
    assert isinstance(body, large.Body)  # it is above FRAME_BYTES_MOST, so it needs chunks
    to = large.address(target.partitions, turn, head.get("key"), None, None, None)
    topic = Target(target.number, lambda view: live_topic(view, target.number, short))
    large.send(store, topic, to, head, body, txn)

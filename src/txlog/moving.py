"""Owns the calls that move messages off a subscription: what is due is given up, others put off.

Rows are read without the lock, one at first and more while they are small, so that a frame stays
small whatever the messages weigh. The decision (flow/deadletter) looks at each again.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from txlog.engine.flow import deadletter
from txlog.engine.flow.acknowledge import by_partition, runs_of_ids
from txlog.engine.flow.deadletter import Find, Moved, Postponed
from txlog.engine.flow.fetch import fetch, first_of, taken_apart
from txlog.engine.folds.buffer import find_marker
from txlog.engine.folds.catalog import Subscription, Topic, index_of
from txlog.engine.model.ops import Run
from txlog.engine.store import Store
from txlog.engine.view import View
from txlog.errors import Corruption, InvalidArgument, InvalidMessage, MissingFile
from txlog.ids import MessageId, TopicName
from txlog.settings import INSTANT_MS_MAX, MIB, PROPERTIES_MAX

FRAME_MESSAGES_MAX = 128
FRAME_BYTES = 4 * MIB  # while a frame is smaller, the next one takes twice as many messages
FRAME_BYTES_MOST = 64 * MIB  # transactions whose messages together are larger go one by one
Seen = tuple[int, int, object]


class DeadLetters:
    """Gives up what came again too often on one subscription, for the consumer that owns this.

    A message becomes due when it is returned: counted, which the cursor's figures tell, or not,
    which begins a round. So a partition is looked through once for each of their values.
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
        return any(self._due(view, topic, held, number) for number in numbers)

    def _due(self, view: View, topic: Topic, held: Subscription, number: int) -> list[Run]:
        if number in view.catalog.unavailable or number in self._damaged:
            return []
        most = deadletter.policies(view, topic, held).get("max_redeliver_count")
        if most is None:
            return []
        cursor = view.cursor(held.number, number)
        state = (cursor.figures.redelivered, cursor.round, most)
        if self._seen.get(number) == state:
            return []
        found = deadletter.due(view, topic, held, number)
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
        find, settings = self._find, self._store.settings
        answer = self._store.write(
            lambda view, now: deadletter.bury(view, settings, now, find, rows)
        )
        assert isinstance(answer, Moved)
        return answer.moved

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
                self._damaged.add(number)  # delivery meets the damage, and says so
                continue
            return {number: table}
        return {}


def _light(view: View, number: int, runs: list[Run]) -> list[Run]:
    """The first of the runs, as many as memory should hold at once; at least one.

    Plain messages are as small as a message may be; what a transaction sent may be large.
    """
    left = FRAME_BYTES_MOST
    for at, run in enumerate(runs):
        marker = find_marker(view.buffer(number), run[0], run[1]) if run[3] else None
        left -= 0 if marker is None else marker.payload_bytes
        if left < 0 and at:
            return runs[:at]
    return runs


def reconsume_later(store: Store, find: Find, what: MessageId, how: Postponed) -> Moved:
    """Put a message off: copy it to the retry topic and acknowledge it, in one frame.

    returns: to which topic; moved 0: it is acknowledged, held by a transaction, or in another hand
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
        return Moved("", 0, 1)
    answer = store.write(
        lambda view, now: deadletter.postpone(view, store.settings, now, find, rows, how)
    )
    assert isinstance(answer, Moved)
    return answer

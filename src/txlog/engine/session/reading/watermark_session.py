"""Owns WatermarkSession: the last watermark that a consumer received, and the next watermark.

    turn         returns messages, or reports a new watermark, whichever is next
    moved        makes the next watermark durable, and only then notifies the listener
    is_current   checked under the lock before messages are handed out: no seek, and no change of
                 the assigned partitions, since the last look

The session is only in memory. The store keeps the clamps of the subscription, so a value never
falls within an epoch. The values that a reader receives bind only that reader (`watermark_ground`).
Source: apache/pulsar#12267; spec/watermarks 8, 9.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeVar

import pyarrow as pa

from txlog.base.startup import compute as pc
from txlog.engine.decide.consuming.watermark_offer import (
    Pair,
    PartitionWatermark,
    WatermarkOffer,
    offer,
)
from txlog.engine.folds.catalog import topic_of
from txlog.engine.folds.watermark import START
from txlog.engine.model.ops import Mark
from txlog.engine.plan.policies import policy
from txlog.engine.plan.reading.watermarks import WatermarkGenerator
from txlog.engine.session.reading.message import Message
from txlog.engine.session.reading.pause import REST_SECONDS_MAX
from txlog.engine.session.reading.watermark_ground import Ground
from txlog.engine.store.store import Store
from txlog.engine.view import View
from txlog.errors import Corruption, InvalidArgument, MissingFile

T = TypeVar("T")
Handle = TypeVar("Handle", contravariant=True)
Version = tuple[int, Mark, int, bool]  # epoch, mark, changes, is it away


class Watermark(NamedTuple):
    """Messages older than event_time (ms since 1970 UTC) are late from now on.

    number: counts the watermarks of one consumer, from 1
    """

    event_time: int
    number: int


class WatermarkListener(Protocol[Handle]):
    """Called for each event, on the receiving thread and before the messages after it.

    consumer: the handle that the listener belongs to. While the call runs, no other thread can
              receive from that handle. So the listener may acknowledge, but must not wait for a
              thread that receives
    """

    def received_watermark(self, consumer: Handle, watermark: Watermark) -> None:
        """The consumer received a watermark."""
        ...


def check_listener(listener: object, is_enabled: bool) -> None:
    """Raise InvalidArgument for a listener that would never be called."""
    if listener is not None and not is_enabled:
        raise InvalidArgument(
            "a listener needs watermarks, which are not enabled",
            code=203,
            hint="add enable_watermarking=True",
        )


class WatermarkSession:
    """The watermark of one consumer.

    ground: where the consumer is in each partition, and the clamps of its subscription
    notify: called with each new watermark, on the receiving thread
    late_messages: messages that were older than the watermark when they were handed out
    """

    __slots__ = (
        "_again_ms",
        "_at",
        "_emitted_ms",
        "_epochs",
        "_generators",
        "_ground",
        "_number",
        "_seen",
        "_standings",
        "_store",
        "_value",
        "_view",
        "late_messages",
        "notify",
    )

    def __init__(
        self, store: Store, ground: Ground, notify: Callable[[Watermark], None] | None = None
    ) -> None:
        self._store = store
        self._ground = ground
        self.notify = notify
        self._view: View | None = None
        self._generators: dict[Pair, WatermarkGenerator] = {}
        self._standings: dict[Pair, PartitionWatermark] = {}
        self._epochs: dict[Pair, int] = {}  # of every pair it was ever assigned
        self._at = (-1, -1)  # LSN, and moves of the ground, at the last look
        self._seen: dict[Pair, Version] | None = None  # at the last look; None: look again
        self._value: int | None = None
        self._number = 0
        self._emitted_ms: int | None = None
        self._again_ms: int | None = None  # when the value that the last look held back may go
        self.late_messages = 0

    def rest(self) -> float:
        """Seconds until time alone may change the watermark: the emit interval is over then."""
        if self._again_ms is None:
            return REST_SECONDS_MAX
        return max(self._again_ms - self._store.clock.now().boot_ms, 1) / 1000

    @property
    def last(self) -> Watermark | None:
        """The last value the consumer received in this epoch."""
        return None if self._value is None else Watermark(self._value, self._number)

    @property
    def status(self) -> str:
        """The first of unavailable, unknown, active, idle that a partition had at the last look."""
        present = {standing.status for standing in self._standings.values()}
        for status in ("unavailable", "unknown", "active", "idle"):
            if status in present:
                return status
        return "unknown"

    def turn(
        self, take: Callable[[], T | None], is_refused: Callable[[], bool] | None = None
    ) -> tuple[T | None, bool]:
        """(the answer of `take`, or None; whether there is a new watermark, which goes first).

        is_refused: True if `take` returned None only because its guard wants the watermark to be
                    computed again; then both are tried again
        """
        while True:
            if self.moved():
                return None, True
            answer = take()
            if answer is not None:
                return answer, False
            if self.moved():  # `take` has also read new frames of other processes
                return None, True
            if is_refused is None or not is_refused():
                return None, False

    def moved(self) -> bool:
        """Make the next watermark durable, then notify; True if there was a next one."""
        while (next_offer := self._offered()) is not None:
            self._seen = None  # if `emit` fails or is too late, the next call looks again
            if self._ground.emit(next_offer):
                self._value = next_offer.event_time
                self._number += 1
                self._emitted_ms = self._store.clock.now().boot_ms
                if self.notify is not None:
                    self.notify(Watermark(self._value, self._number))
                return True
        return False

    def _offered(self) -> WatermarkOffer | None:
        try:
            return self._store.read(self._look, fresh=False)
        except MissingFile:  # in the newest view, too: the file is lost, which counts as damage
            return self._store.read(lambda view: self._look(view, is_gone=True), fresh=False)

    def is_current(self, view: View) -> bool:
        """True when the consumer has the partitions and epochs that it had at its last look."""
        pairs, last = self._ground.assigned(view), self._standings
        return len(pairs) == len(last) and all(
            pair in last and last[pair].epoch == self._ground.epoch(view, pair) for pair in pairs
        )

    def _look(self, view: View, *, is_gone: bool = False) -> WatermarkOffer | None:
        """The next watermark, or None. A retry may run it again, so fields change after all reads.

        is_gone: a missing file counts as damage, as it is missing in the newest view, too
        """
        at, self._again_ms = (view.lsn, self._ground.moves), None
        if view is self._view and at == self._at and self._seen is not None:
            return None
        if view is not self._view:  # loaded again: unflushed rows may have been replaced by others
            self._generators.clear()
            self._view, self._seen = view, None
        versions = self._versions(view)
        if versions == self._seen:
            self._at = at
            return None
        standings = {pair: self._standing(view, pair, versions, is_gone) for pair in versions}
        epochs = {pair: standing.epoch for pair, standing in standings.items()}
        if any(self._epochs.get(pair, epoch) != epoch for pair, epoch in epochs.items()):
            self._value = None  # after a seek: the new epoch may begin with a lower value
        self._epochs |= epochs
        self._standings, self._seen = standings, versions
        self._at = at
        next_offer = offer(standings, self._value)
        if next_offer is not None and not self._is_spaced(view):
            self._seen = None
            return None
        return next_offer

    def _versions(self, view: View) -> dict[Pair, Version]:
        """The inputs of the watermark by pair; while they are equal, so is the watermark."""
        away, ground = view.catalog.unavailable, self._ground
        return {
            pair: (
                ground.epoch(view, pair),
                ground.mark(view, pair),
                view.watermark(pair[1]).changes,
                pair[1] in away,
            )
            for pair in ground.assigned(view)
        }

    def _standing(
        self, view: View, pair: Pair, versions: dict[Pair, Version], is_gone: bool
    ) -> PartitionWatermark:
        if self._seen is not None and self._seen.get(pair) == versions[pair]:
            return self._standings[pair]
        return self._stand(view, pair, is_gone)

    def _stand(self, view: View, pair: Pair, is_gone: bool) -> PartitionWatermark:
        partition = pair[1]
        epoch, clamp = self._ground.epoch(view, pair), self._ground.clamp(view, pair)
        generator = self._generators.get(pair)
        if generator is None:
            generator = self._generators[pair] = WatermarkGenerator(partition)
        try:
            if partition in view.catalog.unavailable:
                return PartitionWatermark("unavailable", None, START, epoch, clamp)
            position = self._ground.position(view, pair)
            if position != generator.position:
                generator.seek(view, position)
        except Corruption as error:
            if isinstance(error, MissingFile) and not is_gone:
                raise  # compaction may have replaced the file: a newer view names the new one (R21)
            return PartitionWatermark("unavailable", None, START, epoch, clamp)
        return PartitionWatermark(
            generator.status, generator.get_watermark(), position, epoch, clamp
        )

    def _is_spaced(self, view: View) -> bool:
        """True when watermark_emit_interval_ms is over; the first value of an epoch never waits."""
        if self._emitted_ms is None or self._value is None:
            return True
        topics = {
            topic_of(view.catalog, partition).number: partition for _, partition in self._standings
        }
        least_ms = max(
            policy(
                view,
                self._store.settings,
                topic_of(view.catalog, partition),
                "watermark_emit_interval_ms",
            )
            for partition in topics.values()
        )
        self._again_ms = self._emitted_ms + least_ms
        return self._store.clock.now().boot_ms >= self._again_ms

    # --- late messages -----------------------------------------------------------------------

    def judged(self, message: Message) -> Message:
        """The message, marked late and counted if it is older than the last watermark."""
        if self._value is None or message.event_time is None or message.event_time >= self._value:
            return message
        self._count_late(message.topic, message.partition, 1)
        return replace(message, is_late=True)

    def marked(self, table: pa.Table) -> pa.Table:
        """The messages with the column is_late; late ones are counted."""
        late = self._late(table.column("event_time"))
        if self._value is not None and pc.any(late).as_py():  # grouping costs 0.2 ms
            places = table.select(["topic", "partition"]).filter(late)
            counts = places.group_by(places.column_names).aggregate([([], "count_all")])
            for topic, partition, count in zip(*counts.to_pydict().values(), strict=True):
                self._count_late(topic, partition, count)
        return table.append_column(pa.field("is_late", pa.bool_(), nullable=False), late)

    def _late(self, event_times: pa.ChunkedArray) -> pa.ChunkedArray:
        if self._value is None:
            return pa.chunked_array([pa.repeat(pa.scalar(False), len(event_times))])
        value = pa.scalar(self._value, pa.int64())
        return pc.fill_null(pc.less(event_times.cast(pa.int64()), value), False)

    def _count_late(self, topic: str, partition: int, count: int) -> None:
        self.late_messages += count
        assert self._view is not None
        subscriptions = self._view.catalog.subscriptions
        names = {
            subscriptions[pair[0]].name for pair in self._standings if pair[0] in subscriptions
        }
        self._store.tally.late[(topic, partition, min(names, default=""))] += count


class Watermarked:
    """The public properties of a reader's or a consumer's watermark."""

    __slots__ = ()
    _session: WatermarkSession | None

    def get_last_watermark(self) -> Watermark | None:
        """The last watermark it received in this epoch; None without watermarks."""
        return None if self._session is None else self._session.last

    @property
    def watermark_status(self) -> str | None:
        """unknown, active, idle or unavailable at the last receive; None without watermarks."""
        return None if self._session is None else self._session.status

    @property
    def late_messages(self) -> int:
        """How many messages were older than its watermark when it received them."""
        return 0 if self._session is None else self._session.late_messages

"""Owns WatermarkSession: the watermark that one consumer was handed, and the next one; Watermarked.

    turn         messages, or the news that there is an event, whichever is next
    moved        makes the next event, durable before the consumer and its listener hear of it
    is_current   under the lock of a hand-out: nobody sought or took a partition since the last look

None of it is stored, but the subscription's clamps are, so a value never falls within an epoch.
What a reader was handed binds only that reader (`watermark_ground`).
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
    """Nothing older than event_time (ms) will come; number: counts the events of a consumer."""

    event_time: int
    number: int


class WatermarkListener(Protocol[Handle]):
    """Called for each event, on the receiving thread and before the messages after it.

    consumer: the handle it was given to. No other thread of that handle receives during the call:
              it may acknowledge, but must not wait for another thread that receives
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

    ground: how far it is, and what binds it
    notify: called with each event, on the receiving thread
    late_messages: messages that were older than the value when they were handed out
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
        self._epochs: dict[Pair, int] = {}  # of every pair that it ever had
        self._at = (-1, -1)  # LSN, moves of the ground: at its last look
        self._seen: dict[Pair, Version] | None = None  # as it last looked; None: look again
        self._value: int | None = None
        self._number = 0
        self._emitted_ms: int | None = None
        self._again_ms: int | None = None  # when the event that the last look held back may go
        self.late_messages = 0

    def rest(self) -> float:
        """How many seconds to wait for news: until the next event may follow the last one."""
        if self._again_ms is None:
            return REST_SECONDS_MAX
        return max(self._again_ms - self._store.clock.now().boot_ms, 1) / 1000

    @property
    def last(self) -> Watermark | None:
        """The last value the consumer received in this epoch."""
        return None if self._value is None else Watermark(self._value, self._number)

    @property
    def status(self) -> str:
        """unavailable, unknown, active or idle, over its partitions as it last looked."""
        found = {one.status for one in self._standings.values()}
        for status in ("unavailable", "unknown", "active", "idle"):
            if status in found:
                return status
        return "unknown"

    def turn(
        self, take: Callable[[], T | None], is_refused: Callable[[], bool] | None = None
    ) -> tuple[T | None, bool]:
        """What `take` returns, or else whether there is a new value, which goes first.

        is_refused: what was there is not handed out before the value was looked at again
        """
        while True:
            if self.moved():
                return None, True
            found = take()
            if found is not None:
                return found, False
            if self.moved():  # to take was to see what others wrote
                return None, True
            if is_refused is None or not is_refused():
                return None, False

    def moved(self) -> bool:
        """Deliver the value that the consumer should now have, if it is new; then it is durable."""
        while (found := self._offered()) is not None:
            self._seen = None  # whatever fails now, or moves meanwhile: the next call looks again
            if self._ground.emit(found):
                self._value = found.event_time
                self._number += 1
                self._emitted_ms = self._store.clock.now().boot_ms
                if self.notify is not None:
                    self.notify(Watermark(self._value, self._number))
                return True
        return False

    def _offered(self) -> WatermarkOffer | None:
        try:
            return self._store.read(self._look, fresh=False)
        except MissingFile:  # also for the newest view: damage, like any other
            return self._store.read(lambda view: self._look(view, is_gone=True), fresh=False)

    def is_current(self, view: View) -> bool:
        """True when the consumer has the partitions and epochs that it had at its last look."""
        pairs, known = self._ground.assigned(view), self._standings
        return len(pairs) == len(known) and all(
            pair in known and known[pair].epoch == self._ground.epoch(view, pair) for pair in pairs
        )

    def _look(self, view: View, *, is_gone: bool = False) -> WatermarkOffer | None:
        """What to hand out; it may run again, so it changes nothing before all rows are read.

        is_gone: a file that is missing is damage, it was not replaced
        """
        at, self._again_ms = (view.lsn, self._ground.moves), None
        if view is self._view and at == self._at and self._seen is not None:
            return None
        if view is not self._view:  # loaded anew: rows that were never durable may be others now
            self._generators.clear()
            self._view, self._seen = view, None
        versions = self._versions(view)
        if versions == self._seen:
            self._at = at
            return None
        standings = {pair: self._standing(view, pair, versions, is_gone) for pair in versions}
        epochs = {pair: one.epoch for pair, one in standings.items()}
        if any(self._epochs.get(pair, epoch) != epoch for pair, epoch in epochs.items()):
            self._value = None  # sought: the new epoch begins with a value of its own
        self._epochs |= epochs
        self._standings, self._seen = standings, versions
        self._at = at
        found = offer(standings, self._value)
        if found is not None and not self._is_spaced(view):
            self._seen = None
            return None
        return found

    def _versions(self, view: View) -> dict[Pair, Version]:
        """What a value depends on: nothing moved while it is the same."""
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
                raise  # it may have been replaced since (R21)
            return PartitionWatermark("unavailable", None, START, epoch, clamp)
        return PartitionWatermark(
            generator.status, generator.get_watermark(), position, epoch, clamp
        )

    def _is_spaced(self, view: View) -> bool:
        """True when the last event is long enough ago; the first of an epoch waits for nothing."""
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
        """A message as it is handed out now: late when it is older than the last value."""
        if self._value is None or message.event_time is None or message.event_time >= self._value:
            return message
        self._count_late(message.topic, message.partition, 1)
        return replace(message, is_late=True)

    def marked(self, table: pa.Table) -> pa.Table:
        """Messages as they are handed out now, with the column is_late."""
        late = self._late(table.column("event_time"))
        if self._value is not None and pc.any(late).as_py():  # to group costs 0.2 ms
            found = table.select(["topic", "partition"]).filter(late)
            counts = found.group_by(found.column_names).aggregate([([], "count_all")])
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
        held = {subscriptions[pair[0]].name for pair in self._standings if pair[0] in subscriptions}
        self._store.tally.late[(topic, partition, min(held, default=""))] += count


class Watermarked:
    """What every reader and consumer says of its watermark."""

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

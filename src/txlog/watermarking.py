"""Owns WatermarkSession: what one consumer was handed as its watermark, and what comes next.

Nothing of it is stored: the subscription's clamps are, so that a value never falls within an epoch.
Source: apache/pulsar#12267; spec/watermarks 8, 9.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from txlog.engine.flow.watermark_at import WatermarkGenerator, tracking_position
from txlog.engine.flow.watermark_offer import Offer, Pair, Standing, clamp_of, emit, offer
from txlog.engine.flow.watermark_policy import policy
from txlog.engine.folds.catalog import topic_of
from txlog.engine.store import Store
from txlog.engine.view import View


class Watermark(NamedTuple):
    """Nothing older than event_time (ms) is to come; number: counts the events of a consumer."""

    event_time: int
    number: int


class WatermarkSession:
    """The watermark of one consumer.

    assigned: the (subscription, partition) pairs that the consumer has now
    """

    __slots__ = (
        "_assigned", "_emitted_ms", "_epochs", "_generators", "_number", "_seen", "_standings",
        "_store", "_value", "late_messages",
    )  # fmt: skip

    def __init__(self, store: Store, assigned: Callable[[View], Sequence[Pair]]) -> None:
        self._store = store
        self._assigned = assigned
        self._generators: dict[Pair, WatermarkGenerator] = {}
        self._seen: dict[Pair, tuple[int, int]] = {}
        self._standings: dict[Pair, Standing] = {}
        self._epochs: dict[Pair, int] = {}
        self._value: int | None = None
        self._number = 0
        self._emitted_ms: int | None = None
        self.late_messages = 0

    @property
    def last(self) -> Watermark | None:
        """What the consumer was handed last, in this epoch."""
        return None if self._value is None else Watermark(self._value, self._number)

    @property
    def status(self) -> str:
        """unknown, active or idle, over all partitions of the consumer as it last looked."""
        found = {one.status for one in self._standings.values()}
        if not found or "unknown" in found:
            return "unknown"
        return "active" if "active" in found else "idle"

    def next(self) -> Watermark | None:
        """What the consumer is to be handed now; None: nothing new. Durable when it returns."""
        while True:
            found = self._store.read(self._look, fresh=False)
            if found is None:
                return None
            if not found.rising:
                self._store.flush()  # acknowledgements beneath it may be written only
            elif not self._store.write(
                lambda view, now, found=found: emit(view, self._store.settings, now, found)  # type: ignore[misc]
            ):
                continue  # a seek came in between
            self._value = found.event_time
            self._number += 1
            self._emitted_ms = self._store.clock.now().boot_ms
            return self.last

    def _look(self, view: View) -> Offer | None:
        pairs = self._assigned(view)
        if not self._has_moved(view, pairs):
            return None
        for pair in pairs:
            self._standings[pair] = self._stand(view, pair)
        for pair in [pair for pair in self._standings if pair not in pairs]:
            del self._standings[pair], self._seen[pair]
        if any(self._epochs.get(pair, one.epoch) != one.epoch
               for pair, one in self._standings.items()):  # fmt: skip
            self._value = None  # sought: the new epoch begins with a value of its own
        self._epochs = {pair: one.epoch for pair, one in self._standings.items()}
        found = offer(self._standings, self._value)
        if found is None or not self._is_spaced(view, pairs):
            return None
        return found

    def _has_moved(self, view: View, pairs: Sequence[Pair]) -> bool:
        """True when an acknowledgement or a row that is no data came since the last look."""
        now = {
            (subscription, partition): (
                view.cursor(subscription, partition).figures.ops,
                view.watermark(partition).changes,
            )
            for subscription, partition in pairs
        }
        moved = now != self._seen
        self._seen = now
        return moved

    def _stand(self, view: View, pair: Pair) -> Standing:
        subscription, partition = pair
        generator = self._generators.get(pair)
        if generator is None:
            generator = self._generators[pair] = WatermarkGenerator(partition)
        position = tracking_position(view, subscription, partition)
        generator.seek(view, position)
        epoch = view.cursor(subscription, partition).epoch
        clamp = clamp_of(view.watermark(partition).clamps, subscription, epoch)
        return Standing(generator.status, generator.get_watermark(), position, epoch, clamp)

    def _is_spaced(self, view: View, pairs: Sequence[Pair]) -> bool:
        """True when the last event is long enough ago."""
        if self._emitted_ms is None:
            return True
        topic = topic_of(view.catalog, pairs[0][1])
        least = policy(view, self._store.settings, topic, "watermark_emit_interval_ms")
        if not least or self._store.clock.now().boot_ms - self._emitted_ms >= least:
            return True
        self._seen = {}  # look again
        return False

    def late(self, event_times: pa.ChunkedArray) -> pa.ChunkedArray:
        """Which of these messages, handed out now, are late: older than the last value."""
        if self._value is None:
            return pa.chunked_array([pa.repeat(pa.scalar(False), len(event_times))])
        found = pc.fill_null(
            pc.less(event_times.cast(pa.int64()), pa.scalar(self._value, pa.int64())), False
        )
        self.late_messages += pc.sum(found).as_py() or 0
        return found

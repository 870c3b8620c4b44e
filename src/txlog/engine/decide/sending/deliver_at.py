"""When the messages of a send are delivered: the requested time becomes an instant, under the lock.

    deliver_at T             T, even if it has passed: then the message is delivered at once
    deliver_after D          the time of the frame that appends it, plus D
    nothing                  null: at once
    fixed_delivery_delay_ms  the time of the frame plus this; the requested time is ignored

The time is the frame's, never the sender's own, so a delay means the same from producers whose
clocks differ (apache/pulsar #13567). A refused message is counted, and nothing of its batch is
stored. A message that will expire before it is due is stored, and its sender gets a warning
(#21898).
Source: spec/delayed 2, 8.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from txlog.base.ids import TopicName
from txlog.base.settings import INSTANT_MS_MAX, Settings
from txlog.base.startup import compute as pc
from txlog.engine.decide.draft import Decision
from txlog.engine.folds.catalog import Topic
from txlog.engine.model.ops import DelaysCounted
from txlog.engine.model.schema import INSTANT
from txlog.engine.plan.policies import MAX_DELAY, delay_policy, retention_policy
from txlog.engine.plan.route import FEW_ROWS, Routed
from txlog.engine.view import View
from txlog.errors import InvalidMessage

AFTER, AT = "deliver_after", "deliver_at"


class DeliveryTimes:
    """The delivery times of one send to a topic: those requested, refused and warned about.

    number_of_refused and beyond_ttl are by partition (its store-wide number)
    """

    __slots__ = (
        "_beyond",
        "_fixed_ms",
        "_latest_ms",
        "_max_ms",
        "_refused",
        "_time_ms",
        "_topic",
        "_ttl_latest_ms",
        "_view",
        "_worst_ms",
    )

    def __init__(self, view: View, settings: Settings, topic: Topic, time_ms: int) -> None:
        policy = delay_policy(view, settings, topic)
        self._view, self._topic, self._time_ms = view, topic, time_ms
        self._fixed_ms = policy.fixed_delivery_delay_ms if policy.active else 0
        self._max_ms = policy.max_delivery_delay_ms if policy.active and not self._fixed_ms else 0
        self._latest_ms = time_ms + self._max_ms if self._max_ms else None
        ttl_ms = retention_policy(view, settings, topic).ttl_ms
        self._ttl_latest_ms = None
        if ttl_ms is not None and policy.active and not policy.is_ttl_from_deliver_at:
            self._ttl_latest_ms = time_ms + ttl_ms
        self._refused: dict[int, int] = {}
        self._beyond: dict[int, int] = {}
        self._worst_ms = 0

    # --- what is stored ----------------------------------------------------------------------

    def resolved(self, routed: Routed) -> Routed:
        """The rows with the instants that are stored; without a time they stay as they are."""
        if not self._fixed_ms and not routed.has_times:
            return routed
        batch = routed.batch
        delay_at = batch.schema.get_field_index(AFTER)
        if self._fixed_ms:
            batch = batch if delay_at < 0 else batch.remove_column(delay_at)
            column = pa.repeat(self._scalar(self._later(self._fixed_ms)), batch.num_rows)
            batch = _with_instants(batch, column.cast(INSTANT))
        elif delay_at >= 0:
            column = self._instants(batch.column(delay_at))
            batch = batch.remove_column(delay_at)
            at = batch.schema.get_field_index(AT)
            if at >= 0:
                column = pc.coalesce(batch.column(at), column)
            batch = _with_instants(batch, column)
        if batch is routed.batch:
            return routed
        return msgspec.structs.replace(routed, rows=batch, has_times=True)

    def _instants(self, delays: pa.Array) -> pa.Array:
        """The instants of delays; a row without one stays without."""
        if len(delays) <= FEW_ROWS:  # three kernels take 60 us whatever their size
            values = delays.to_pylist()
            return pa.array(
                [None if value is None else self._later(value) for value in values], INSTANT
            )
        most = self._scalar(INSTANT_MS_MAX - self._time_ms)
        within = pc.min_element_wise(delays, most, skip_nulls=False)
        return pc.add(within, self._scalar(self._time_ms)).view(INSTANT)

    def resolved_one(self, deliver_at: int | None, deliver_after: int | None) -> int | None:
        """The instant of one message, as `resolved`; None: at once."""
        if self._fixed_ms:
            return self._later(self._fixed_ms)
        return deliver_at if deliver_after is None else self._later(deliver_after)

    def _later(self, delay_ms: int) -> int:
        return min(self._time_ms + delay_ms, INSTANT_MS_MAX)

    def _scalar(self, value: int) -> pa.Scalar:
        return pa.scalar(value, pa.int64())

    # --- refusals and warnings --------------------------------------------------------------

    def check(self, number: int, rows: pa.RecordBatch) -> pa.Array | None:
        """Check rows that a partition will store.

        Returns a mask of rows that will expire before they are due.

        rows: resolved; None: no row expires before it is due
        """
        if self._latest_ms is None and self._ttl_latest_ms is None:
            return None
        at = rows.schema.get_field_index(AT)
        if at < 0:
            return None
        return self._checked(number, rows.column(at).view(pa.int64()))

    def check_times(self, number: int, times: pa.Array) -> None:
        """Check rows by their instants, NO_TIME for none."""
        if self._latest_ms is not None or self._ttl_latest_ms is not None:
            self._checked(number, times)

    def check_one(self, number: int, deliver_at: int | None) -> bool:
        """Check one message to be stored; returns whether it will have expired."""
        return self._checked(number, pa.array([deliver_at], pa.int64())) is not None

    def _checked(self, number: int, times: pa.Array) -> pa.Array | None:
        last = pc.max(times).as_py()
        if last is None:
            return None
        if self._latest_ms is not None and last > self._latest_ms:
            late = pc.sum(pc.greater(times, self._scalar(self._latest_ms))).as_py()
            self._refused[number] = self._refused.get(number, 0) + late
            self._worst_ms = max(self._worst_ms, last - self._time_ms)
        if self._ttl_latest_ms is None or last <= self._ttl_latest_ms:
            return None
        beyond = pc.fill_null(pc.greater(times, self._scalar(self._ttl_latest_ms)), False)
        self._beyond[number] = self._beyond.get(number, 0) + beyond.true_count
        return beyond

    def refusal(self) -> Decision[Any] | None:
        """The decision that refuses everything and counts it; None: nothing is refused."""
        if not self._refused:
            return None
        name = TopicName.parse(self._topic.name).short
        error = InvalidMessage(
            f"a message for {name} is to be delivered in {self._worst_ms} ms, {MAX_DELAY} is "
            f"{self._max_ms}",
            hint="deliver it earlier, or change the policy of the topic",
            setting=MAX_DELAY,
            limit=self._max_ms,
            value=self._worst_ms,
            topic=name,
        )
        # a topic that this same frame would create cannot count it
        is_known = self._topic.number in self._view.catalog.topics
        counts = self._refused if is_known else {}
        return Decision(
            [DelaysCounted(number, refused=count) for number, count in counts.items()],
            error=error,
        )

    def warnings(self) -> list[DelaysCounted]:
        """The ops that count messages that expire before they are due; they go with the
        messages.
        """
        return [DelaysCounted(number, beyond_ttl=count) for number, count in self._beyond.items()]


def delays_of(
    view: View, settings: Settings, topic: Topic, routed: Routed, time_ms: int
) -> DeliveryTimes | None:
    """The delivery times of routed rows; None: all are delivered at once, and no policy applies."""
    if not routed.has_times:
        policy = delay_policy(view, settings, topic)
        if not (policy.active and policy.fixed_delivery_delay_ms):
            return None
    return DeliveryTimes(view, settings, topic, time_ms)


def _with_instants(batch: pa.RecordBatch, column: pa.Array) -> pa.RecordBatch:
    at = batch.schema.get_field_index(AT)
    return batch.append_column(AT, column) if at < 0 else batch.set_column(at, AT, column)

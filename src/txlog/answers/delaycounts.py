"""How many messages are delayed: of a partition, and on a subscription (msgDelayed).

Reading functions over a view; they read the index and wait for nobody. Of ranges without an index,
which wait for a consumer or a checkpoint to make it again, they read the times in the log.
Source: spec/delayed-delivery 9.
"""

from __future__ import annotations

from txlog.answers import delayed
from txlog.engine.decide.consuming.promotion import HONOURING
from txlog.engine.folds.catalog import Subscription, Topic, index_of, numbers
from txlog.engine.folds.cursor import covers
from txlog.engine.plan.clock_trust import due_ms
from txlog.engine.plan.delayed.timetable import timetable
from txlog.engine.plan.delayed.upcoming import upcoming_in_any_order
from txlog.engine.plan.policies import delay_policy
from txlog.engine.store.store import Store
from txlog.engine.view.view import View


class DelayCounts:
    """Counts at one moment, by the policies of the topics."""

    __slots__ = ("_note", "_now_ms", "_settings", "_view")

    def __init__(self, view: View, store: Store) -> None:
        self._view = view
        self._note = store.note
        self._settings = store.settings
        self._now_ms = due_ms(view, store.settings, store.clock.now())

    def cutoff(self, topic: Topic) -> int | None:
        """What has a later time waits; None: nothing of this topic does."""
        policy = delay_policy(self._view, self._settings, topic)
        return policy.cutoff(self._now_ms) if policy.active else None

    def of_partition(self, topic: Topic, number: int) -> int:
        """Messages of a partition whose time is to come."""
        cutoff = self.cutoff(topic)
        state = self._view.delayed(number)
        if cutoff is None or state.is_empty:
            return 0
        if state.unindexed or (
            state.buckets and state.buckets[0].first[0] < self._view.topic(number).ledgers[0].ledger
        ):
            # a range is without an index, or a bucket goes on naming what was trimmed of its range
            ahead = upcoming_in_any_order(self._view, [number], self._note, cutoff)
            return sum(times.num_rows for times in ahead)
        return timetable(self._view, number, cutoff).count()

    def of_topic(self, topic: Topic) -> int:
        """The same of all partitions."""
        return sum(self.of_partition(topic, number) for number in numbers(topic))

    def of_cursor(self, topic: Topic, held: Subscription, number: int) -> int:
        """Messages of a partition that a subscription has not acknowledged and must wait for.

        0 on the types that wait for nothing.
        """
        cutoff = self.cutoff(topic)
        if cutoff is None or held.type not in HONOURING or self._view.delayed(number).is_empty:
            return 0
        cursor = self._view.cursor(held.number, number)
        ranges = self._view.delayed(number).unindexed
        if any(not covers(cursor.mark_delete, last) for _, last in ranges):
            index = index_of(topic, number)
            scope = delayed.Scope(topic, [index], cutoff, self._note, held)
            return sum(times.num_rows for times in delayed.ahead(self._view, scope, in_order=False))
        return timetable(self._view, number, cutoff).count_for(cursor)

    def of_subscription(self, topic: Topic, held: Subscription) -> int:
        """The same of all partitions."""
        return sum(self.of_cursor(topic, held, number) for number in numbers(topic))

"""Owns TopicWatermarks: showing the watermarks of a topic, and asserting them without a producer.

Each command of `txlog watermark` has a method. Answers are plain values with the field names that
the commands print.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from txlog.base.arguments import checked
from txlog.base.ids import MessageId, Position, TopicName, TxnId, check_name
from txlog.base.times import InstantLike, instant_ms
from txlog.client.answers import watermarks
from txlog.clock import Instant
from txlog.engine.door import watermarks as watermark
from txlog.engine.door.catalog import Subscription, Topic, check_partition, live_topic
from txlog.engine.door.catalog import subscription as find_subscription
from txlog.engine.door.facts import UNNAMED
from txlog.engine.door.store import Decision, Store, View
from txlog.engine.door.transactions import Transaction, Use, in_transaction
from txlog.engine.door.watermarks import Assertion, Lateness, WatermarkPlaced, check_event_time
from txlog.errors import Corruption, InvalidArgument, PartitionUnavailable

if TYPE_CHECKING:
    from txlog.base.rows.watermarks import (
        PartitionPosition,
        ProducerIdle,
        SnapshotsTaken,
        WatermarkProducer,
        WatermarkRow,
        WatermarkSet,
        WatermarkShown,
    )


@checked
class TopicWatermarks:
    """The watermarks of a topic: `client.topic("orders").watermarks`.

    Producers assert watermarks themselves (`Producer.new_watermark`). These calls show them, and
    act for a producer that does not come back; they do not fence it.

    >>> import tempfile, txlog
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = txlog.init(folder)
    ...     with txlog.open(folder) as client:
    ...         _ = client.create_topic("orders")
    ...         for name, time in (("till-1", 5000), ("till-2", 3000)):
    ...             _ = client.producer("orders", name).new_watermark().event_time(time).send()
    ...         watermarks = client.topic("orders").watermarks
    ...         before = watermarks.show()
    ...         was_active = watermarks.idle(before["holder"])["was_active"]
    ...         before["holder"], before["watermark"], was_active, watermarks.show()["watermark"]
    ('till-2', 3000, True, 5000)
    """

    __slots__ = ("_asked", "_number", "_store", "short")

    def __init__(self, store: Store, topic: TopicName, number: int) -> None:
        self._store = store
        self._asked, self._number = topic, number
        self.short = topic.topic.short

    def __repr__(self) -> str:
        return f"<txlog watermarks of {self._asked}>"

    def _topic(self, view: View) -> Topic:
        return live_topic(view, self._number, self.short)

    def _held(self, view: View, subscription: str | None) -> Subscription | None:
        if subscription is None:
            return None
        return find_subscription(view, self._topic(view), subscription)

    def _indexes(self, view: View, partition: int | None) -> Sequence[int]:
        if partition is None:
            partition = self._asked.partition
        topic = self._topic(view)
        if partition is None:
            return range(topic.partitions)
        check_partition(self.short, topic, partition)
        return [partition]

    # --- looking -----------------------------------------------------------------------------

    def show(
        self,
        subscription: str | None = None,
        *,
        partition: int | None = None,
        at: MessageId | None = None,
        lateness: bool = True,
    ) -> WatermarkShown:
        """The watermark at the place of a subscription, at a message, or at the end of the log.

        subscription: None: the end of the log
        at:       a message of one partition
        lateness: compute max_event_time and late_messages, else they are None. A message counts as
                  late if it is older than its partition's watermark just before it, whether or not
                  a consumer has received it
        cost:     the rows that move the watermark, at most those between two snapshots; with
                  lateness also the event times of all messages up to there
        returns: {topic, subscription, status, watermark, emitted, lag_ms, holder, first_unacked,
                 max_event_time, late_messages, pending_txns, partition_list}; watermark: the least
                 time of an active producer; emitted: the highest value delivered to a consumer;
                 holder: the producer with the least time; first_unacked: the message that keeps the
                 watermark from rising
        raises:  SubscriptionNotFound, InvalidArgument, MessageNotFound
        """
        now_ms = self._store.clock.now().wall_ms

        def ask(view: View) -> tuple[WatermarkShown, list[Lateness]]:
            topic, reader = self._topic(view), self._held(view, subscription)
            indexes = self._indexes(view, partition)
            standings = [*watermarks.standings(view, topic, indexes, reader, at)]
            answer = watermarks.show(view, topic, standings, now_ms, reader)
            return answer, [Lateness(standing.number, standing.place) for standing in standings]

        answer, looks = self._store.ask(ask)
        if lateness:
            answer["max_event_time"], answer["late_messages"] = self._lateness(looks)
        return answer

    def _lateness(self, looks: list[Lateness]) -> tuple[int | None, int | None]:
        """(max_event_time, late_messages) of the messages; None each if some are unreadable."""
        try:
            for scan in looks:
                while self._store.read(scan.step):
                    pass  # a few rows per read, so that other threads get their turn
        except (Corruption, PartitionUnavailable):
            return None, None
        times = [scan.greatest for scan in looks if scan.greatest is not None]
        late = sum(scan.late for scan in looks)
        return max(times, default=None), late

    def history(
        self,
        *,
        partition: int | None = None,
        producer: str | None = None,
        since: InstantLike | None = None,
        limit: int | None = None,
    ) -> list[WatermarkRow]:
        """The rows that moved the watermarks, oldest first, as far back as the log goes.

        since:   only rows written at or after this instant (ms since 1970 UTC)
        limit:   only the last rows
        returns: [{topic, partition, position, marker_type, producer, event_time, by, txn,
                 txn_state, regressed, publish_time}]; marker_type: set, idle or snapshot; by:
                 producer, admin or timeout, for an idle outside of transactions
        """
        if limit is not None and limit < 0:
            raise InvalidArgument(f"limit is {limit}, it must not be negative", code=203)
        name, from_ms = None if producer is None else _name(producer), instant_ms(since)
        return self._store.ask(
            lambda view: watermarks.history(
                view, self._topic(view), self._indexes(view, partition), name, from_ms, limit
            ),
        )

    def producers(self, subscription: str | None = None) -> list[WatermarkProducer]:
        """The producers that hold the watermark back, or may do so.

        subscription: at its place; None: at the end of the log
        returns: [{topic, partition, producer, event_time, holds, idle, position, pending_txns}]
        """
        return self._store.ask(
            lambda view: watermarks.producers(
                view, self._topic(view), self._indexes(view, None), self._held(view, subscription)
            ),
        )

    # --- asserting ---------------------------------------------------------------------------

    def set(
        self, event_time: InstantLike, producer: str, *, txn: Transaction | TxnId | None = None
    ) -> WatermarkSet:
        """Assert a time on behalf of a producer, in every partition.

        returns: {topic, producer, event_time, regressed, txn, partition_list}; regressed: the time
                 is below the producer's last one, so it has no effect
        raises:  as WatermarkBuilder.send
        """
        asserted_ms = instant_ms(event_time)
        placed, regressed = self._write(
            Assertion(_name(producer), check_event_time(asserted_ms)), txn
        )
        return {
            "topic": self.short,
            "producer": producer,
            "event_time": asserted_ms,
            "regressed": regressed,
            "txn": placed.txn,
            "partition_list": _places(placed),
        }

    def idle(self, producer: str, *, txn: Transaction | TxnId | None = None) -> ProducerIdle:
        """Declare a producer idle: it holds no watermark back until it asserts a time again.

        returns: {topic, producer, was_active, txn, partition_list}; the row is also written if the
                 producer was not active
        """
        placed, was_active = self._write(Assertion(_name(producer), None, "admin"), txn)
        return {
            "topic": self.short,
            "producer": producer,
            "was_active": was_active,
            "txn": placed.txn,
            "partition_list": _places(placed),
        }

    def snapshot(self) -> SnapshotsTaken:
        """Write a watermark snapshot in each partition where a producer has asserted a time.

        returns: {topic, written, partition_list}
        raises:  PartitionUnavailable; then nothing is written
        """
        store = self._store
        written = store.write(
            lambda view, now: watermark.take_snapshots(view, store.settings, now, self._topic(view))
        )
        rows = self.show(lateness=False)["partition_list"]
        return {
            "topic": self.short,
            "written": written,
            "partition_list": [
                {"partition": row["partition"], "position": row["snapshot_position"]}
                for row in rows
            ],
        }

    def _write(
        self, what: Assertion, txn: Transaction | TxnId | None
    ) -> tuple[WatermarkPlaced, bool]:
        """(positions of the rows, flag); flag: the time regressed, or an idle one was active."""
        store, uid = self._store, self._store.disk.owner()[0]

        def flag(view: View, topic: Topic, use: Use | None) -> bool:
            if what.event_time is None:
                return watermark.is_active(view, topic, what.producer)
            within = use if isinstance(use, TxnId) else None
            return watermark.regresses(view, topic, what, within)

        def plainly(view: View, now: Instant) -> Decision[tuple[WatermarkPlaced, bool]]:
            topic = self._topic(view)
            decision = watermark.assert_watermark(view, store.settings, now, topic, what)
            assert decision.answer is not None
            answer = (decision.answer, flag(view, topic, None))
            return Decision(decision.ops, decision.batch, decision.sync, answer)

        def inside(
            view: View, now: Instant, use: Use
        ) -> Decision[tuple[TxnId, tuple[WatermarkPlaced, bool]]]:
            topic = self._topic(view)
            decision = watermark.assert_in_txn(
                view, store.settings, now, uid, topic, what, None, use
            )
            if decision.answer is None:  # the caller decides again, after a sweep
                return Decision(decision.ops, None, decision.sync, None, decision.error)
            txn_id, placed = decision.answer
            answer = (txn_id, (placed, flag(view, topic, use)))
            return Decision(decision.ops, decision.batch, decision.sync, answer)

        return store.write(plainly) if txn is None else in_transaction(store, txn, inside)


def _name(producer: str) -> str:
    return producer if producer == UNNAMED else check_name("producer", producer)


def _places(placed: WatermarkPlaced) -> list[PartitionPosition]:
    where = placed.positions
    return [
        {"partition": index, "position": Position(*where[index]) if index in where else None}
        for index in placed.numbers
    ]

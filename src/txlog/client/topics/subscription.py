"""Owns SubscriptionHandle: all calls on a subscription except consuming from it.

Each command of `txlog sub` has a method. Each change is one decision, durable when it returns.
Answers are plain values with the field names that the commands print.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from txlog.base.arguments import checked
from txlog.base.ids import MessageId, TopicName, TxnId
from txlog.base.ranges import format_id_run, parse_id_run
from txlog.base.suggest import command_line
from txlog.base.times import DurationLike, duration_ms
from txlog.client.answers.lag import LagReader, backlog_groups
from txlog.clock import Instant
from txlog.engine.door.catalog import (
    Subscription,
    Topic,
    consumers_of,
    live_subscription,
    live_topic,
    number_of,
)
from txlog.engine.door.catalog import subscription as find_subscription
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.consuming import (
    ALL,
    ReturnResult,
    SeekAnswer,
    Seen,
    SkipLimit,
    acknowledge_runs,
    negative_acknowledge,
    past_ttl,
    redeliver,
    runs_of_ids,
    seek,
    skip,
)
from txlog.engine.door.liveness import consumer_lock, dead_consumers, read_all_seen
from txlog.engine.door.reading import Where, bound_of
from txlog.engine.door.store import CallScope, Decision, Store, View
from txlog.engine.door.topics import DeletedSubscription, delete_subscription, set_policies
from txlog.engine.door.transactions import Transaction
from txlog.errors import ConsumerBusy, InvalidArgument

if TYPE_CHECKING:
    from txlog.base.rows.consuming import (
        Acknowledged,
        BacklogGroup,
        NegativelyAcknowledged,
        Redelivered,
        SeekPartition,
        Skipped,
        Sought,
        SubscriptionDeleted,
        SubscriptionDescription,
    )


DELETE_TRIES = 3

T = TypeVar("T")


def moved_partitions(answer: Sought) -> list[SeekPartition]:
    """The partitions that a seek changes."""
    return [
        row
        for row in answer["partition_list"]
        if row["from"] != row["to"] or row["redeliver"] or row["skip"]
    ]


def seek_effect(row: SeekPartition) -> str:
    """The effect of a seek in a partition, in words."""
    parts = []
    for count, singular, plural in (
        (row["redeliver"], "comes again", "come again"),
        (row["skip"], "is skipped", "are skipped"),
    ):
        if count:
            parts.append(f"1 message {singular}" if count == 1 else f"{count:,} messages {plural}")
    return " and ".join(parts) or "no message is redelivered or skipped"


def undo_of(answer: Sought) -> list[str]:
    """The commands that restore the acknowledgements that a seek found, also single ones."""
    name, topic = answer["subscription"], answer["topic"]
    return [
        command_line(
            "sub seek",
            name,
            "-t",
            topic,
            "--to",
            row["from"],
            *(["--acked", ",".join(row["acked"])] if row["acked"] else []),
            "--yes",
        )
        for row in moved_partitions(answer)
    ]


def lost_by(answer: Sought) -> list[str]:
    """The state that the commands of `undo_of` do not bring back, in words."""
    rows = moved_partitions(answer)
    left_out = sum(row["left_out"] for row in rows)
    forgotten = sum(row["forgotten"] for row in rows)
    aborted = answer["aborted_list"]
    return [
        *([f"the aborted transactions {', '.join(map(str, aborted))}"] if aborted else []),
        *([f"{left_out:,} single acknowledgements: too many ranges"] if left_out else []),
        *([f"redelivery counts, leases and delays of {forgotten:,} messages"] if forgotten else []),
    ]


def _durable(decision: Decision[T]) -> Decision[T]:
    """The same decision, durable on return, since the caller may look next from another process."""
    decision.sync = True
    return decision


@checked
class SubscriptionHandle:
    """A durable subscription of a topic, or of one partition of it.

    It goes on when its topic is renamed, as a consumer does, and keeps the name of its opening.

    >>> import tempfile, txlog
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = txlog.init(folder)
    ...     with txlog.open(folder) as client:
    ...         _ = client.create_topic("orders")
    ...         _ = client.create_subscription("orders", "billing")
    ...         ids = [client.producer("orders").send(b"%d" % n).message_id for n in range(5)]
    ...         billing = client.subscription("orders", "billing")
    ...         skipped = billing.skip(4)["skipped"]
    ...         moved = billing.seek(ids[1])
    ...         skipped, moved["redeliver"], billing.describe()["backlog"]
    (4, 3, 4)
    """

    __slots__ = ("_asked", "_numbers", "_store", "name", "short")

    def __init__(self, store: Store, topic: str, name: str) -> None:
        self._store = store
        self._asked = TopicName.parse(topic, allow_partition=True)
        self.short = self._asked.topic.short
        self.name = name

        def numbers(view: View) -> tuple[int, int]:
            topic_record = find_topic(view, self._asked)
            return topic_record.number, find_subscription(view, topic_record, name).number

        self._numbers = store.ask(numbers)

    def __repr__(self) -> str:
        return f"<txlog subscription {self.name!r} of {self._asked}>"

    def _find(self, view: View) -> tuple[Topic, Subscription]:
        topic = live_topic(view, self._numbers[0], self.short)
        return topic, live_subscription(view, self._numbers[1], self.name, self.short)

    def _indexes(self) -> list[int] | None:
        """The partition in the topic's name; None: all."""
        return None if self._asked.partition is None else [self._asked.partition]

    # --- looking -----------------------------------------------------------------------------

    def describe(self) -> SubscriptionDescription:
        """The subscription with its consumers and partitions; the fields of `sub describe`."""
        store = self._store
        return store.ask(lambda view: LagReader(view, store).describe(*self._find(view)))

    def backlog(self, by: str = "age", top: int = 20) -> list[BacklogGroup]:
        """The unacknowledged messages, grouped by key, age or ledger; the fields of `sub backlog`.

        by:  key, age or ledger
        top: return at most this many groups; with `key` the largest ones
        """
        topic, record = self._store.ask(self._find)
        return backlog_groups(self._store, topic, record, self._indexes(), by, top)

    # --- moving ------------------------------------------------------------------------------

    def seek(
        self,
        to: Where,
        *,
        acked: Sequence[str] = (),
        force: bool = False,
        dry_run: bool = False,
    ) -> Sought:
        """Move just before a bound, a message, or an instant in ms; the fields of `sub seek`.

        Then everything before that position is acknowledged, and nothing from it on but `acked`.
        Redelivery counts start at 0. To undo a seek: for each row of `partition_list` that moved,
        `seek(row["from"], acked=row["acked"])`.
        acked:   messages in the partitions that move, as L:E, L:FIRST-LAST, L:E:I or
                 L:E:FIRST-LAST: the form of `acked` in the answer
        force:   abort transactions that hold acknowledgements here; `aborted_list` names them
        dry_run: only report what would move
        raises:  NotAllowed (held acknowledgements), MessageNotFound, PartitionUnavailable
        """
        if to is None:
            raise InvalidArgument("a seek needs a position", code=203)
        bound, store = bound_of(to), self._store
        runs = [parse_id_run(text) for text in acked]
        uid = store.disk.owner()[0]

        def decide(view: View, now: Instant) -> Decision[SeekAnswer]:
            return seek(
                view,
                store.settings,
                now,
                uid,
                *self._find(view),
                bound,
                self._indexes(),
                force=force,
                acked=runs,
            )

        answer = self._decided(decide, dry_run=dry_run)
        return {
            "topic": self.short,
            "subscription": self.name,
            "redeliver": sum(row.redeliver for row in answer.partitions),
            "skip": sum(row.skip for row in answer.partitions),
            "partition_list": [
                {
                    "partition": row.partition,
                    "from": row.before,
                    "to": row.after,
                    "redeliver": row.redeliver,
                    "skip": row.skip,
                    "acked": [format_id_run(run) for run in row.acked],
                    "left_out": row.left_out,
                    "forgotten": row.forgotten,
                }
                for row in answer.partitions
            ],
            "aborted_list": answer.aborted,
        }

    def skip(
        self,
        messages: int | None = None,
        *,
        all: bool = False,
        older_than_ms: DurationLike | None = None,
        dry_run: bool = False,
    ) -> Skipped:
        """Acknowledge messages without delivering them; the fields of `sub skip`.

        Messages that a transaction holds are left alone.
        messages, all, older_than_ms: pass only one: so many messages of each partition, all, or
                                      messages older than this
        """
        if (messages is not None) + all + (older_than_ms is not None) != 1:
            raise InvalidArgument("skip a number of messages, all, or what is older: one of them")
        if messages is not None and messages < 1:
            raise InvalidArgument(f"{messages} messages to skip, at least 1", code=203)
        return self._skip(
            ALL if messages is None else messages, duration_ms(older_than_ms), dry_run=dry_run
        )

    def clear_backlog(self, *, dry_run: bool = False) -> Skipped:
        """Acknowledge all messages that no transaction holds."""
        return self.skip(all=True, dry_run=dry_run)

    def expire(
        self, older_than_ms: DurationLike | None = None, *, dry_run: bool = False
    ) -> Skipped:
        """Acknowledge messages older than this; None: older than the topic's time to live.

        raises: InvalidArgument when the topic has no time to live
        """
        if older_than_ms is not None:
            return self._skip(ALL, duration_ms(older_than_ms), dry_run=dry_run)
        store = self._store

        def ttl(view: View, now: Instant) -> SkipLimit:
            amount = past_ttl(view, store.settings, self._find(view)[0], now)
            if amount is None:
                raise InvalidArgument(
                    f"topic {self.short} has no time to live: say how old",
                    hint="--older-than DUR, or "
                    + command_line("topic update", self.short, "--ttl", "7d"),
                    topic=self.short,
                )
            return amount

        return self._skipped(ttl, dry_run=dry_run)

    def _skip(self, messages: int, older_than_ms: int | None, *, dry_run: bool) -> Skipped:
        if older_than_ms is not None and older_than_ms < 0:
            raise InvalidArgument(f"older than {older_than_ms} ms, it must not be negative")

        def amount(view: View, now: Instant) -> SkipLimit:
            before_ms = None if older_than_ms is None else now.wall_ms - older_than_ms
            return SkipLimit(messages, before_ms)

        return self._skipped(amount, dry_run=dry_run)

    def _skipped(self, amount: Callable[[View, Instant], SkipLimit], *, dry_run: bool) -> Skipped:
        store = self._store

        def decide(view: View, now: Instant) -> Decision[int]:
            return skip(
                view, store.settings, now, *self._find(view), amount(view, now), self._indexes()
            )

        skipped = self._decided(decide, dry_run=dry_run)
        return {"topic": self.short, "subscription": self.name, "skipped": skipped}

    def _decided(self, decide: Callable[[View, Instant], Decision[T]], *, dry_run: bool) -> T:
        """The answer of a decision, written or only computed; overdue transactions are aborted."""
        store = self._store
        uses = CallScope(cursors=store.ask(self._cursors))
        if dry_run:
            store.sweep_if_due(uses)
            return store.read(lambda view: decide(view, store.clock.now()).answered())
        return store.write(decide, uses=uses)

    def _cursors(self, view: View) -> tuple[tuple[int, int], ...]:
        topic, record = self._find(view)
        indexes = self._indexes() or range(topic.partitions)
        return tuple((record.number, number_of(topic, index)) for index in indexes)

    # --- acknowledging -----------------------------------------------------------------------

    def acknowledge(
        self,
        ids: Sequence[MessageId],
        *,
        cumulative: bool = False,
        txn: Transaction | TxnId | None = None,
    ) -> Acknowledged:
        """Acknowledge by id; {acked, already, dropped}.

        raises: as Client.acknowledge
        """
        answer = acknowledge_runs(
            self._store, self._find, runs_of_ids(list(ids)), txn, cumulative=cumulative
        )
        return {"acked": answer.acked, "already": answer.already, "dropped": answer.dropped}

    def negative_acknowledge(
        self,
        ids: Sequence[MessageId],
        delay_ms: DurationLike | None = None,
        *,
        dry_run: bool = False,
    ) -> NegativelyAcknowledged:
        """Redeliver messages that a consumer holds, counted; the fields of `sub nack`.

        Messages that no consumer holds are skipped.
        delay_ms: None: the subscription's delay, doubled with each redelivery
        raises:   MessageNotFound, PartitionUnavailable, InvalidArgument
        """
        wait_ms = duration_ms(delay_ms)
        if wait_ms is not None and wait_ms < 0:
            raise InvalidArgument(f"delay_ms is {wait_ms}, it must not be negative", code=203)
        runs, store = runs_of_ids(list(ids)), self._store

        def decide(view: View, now: Instant) -> Decision[ReturnResult]:
            return _durable(
                negative_acknowledge(
                    view, store.settings, now, self._find, runs, wait_ms, seen=self._seen(view)
                )
            )

        answer = self._decided(decide, dry_run=dry_run)
        return {
            "topic": self.short,
            "subscription": self.name,
            "nacked": answer.returned,
            "ignored": answer.missed,
        }

    def redeliver(
        self, ids: Sequence[MessageId] | None = None, *, dry_run: bool = False
    ) -> Redelivered:
        """Redeliver messages that consumers hold, without delay; the fields of `sub redeliver`.

        ids:    None: all messages that consumers hold
        raises: MessageNotFound, PartitionUnavailable
        """
        runs, store = None if ids is None else runs_of_ids(list(ids)), self._store

        def decide(view: View, now: Instant) -> Decision[ReturnResult]:
            seen = self._seen(view)
            return _durable(redeliver(view, store.settings, now, self._find, runs, seen))

        answer = self._decided(decide, dry_run=dry_run)
        return {"topic": self.short, "subscription": self.name, "redelivered": answer.returned}

    def _seen(self, view: View) -> dict[int, Seen]:
        """How far the application of each consumer has got in the messages taken ahead."""
        consumers = consumers_of(view.catalog, self._find(view)[1].number)
        return read_all_seen(self._store.disk, (consumer.number for consumer in consumers))

    # --- the subscription itself -------------------------------------------------------------

    def set_policies(self, **policies: int | str | None) -> dict[str, int | str]:
        """Set policies of the subscription; None removes one. Returns its policies afterwards.

        policies: ack_timeout_ms, nack_delay_ms, nack_backoff_max_ms, max_redeliver_count,
                  dead_letter_topic, retry_topic, split_batches
        """
        return self._store.write(lambda view, now: set_policies(view, *self._find(view), policies))

    def delete(self, *, force: bool = False, dry_run: bool = False) -> SubscriptionDeleted:
        """Delete the subscription; the fields of `sub delete`.

        Acknowledgements of open transactions are dropped; the transactions list them as skipped.
        force:  also with live consumers
        raises: ConsumerBusy
        """
        store = self._store
        for tries_left in reversed(range(DELETE_TRIES)):
            dead = self._dead()

            def decide(
                view: View, now: Instant, dead: list[int] = dead
            ) -> Decision[DeletedSubscription]:
                return delete_subscription(
                    view, store.settings, now, *self._find(view), dead=dead, force=force
                )

            try:
                answer = self._decided(decide, dry_run=dry_run)
                break
            except ConsumerBusy:
                if not tries_left or not self._dead():
                    raise
        for number in () if dry_run or store.dry_run else dead:
            store.disk.unlink(consumer_lock(number))
        return {
            "topic": answer.topic,
            "subscription": answer.subscription,
            "backlog": answer.backlog,
            "deleted": True,
        }

    def _dead(self) -> list[int]:
        """Consumers of the subscription whose process has died."""

        def known(view: View) -> list[int]:
            consumers = consumers_of(view.catalog, self._find(view)[1].number)
            return [consumer.number for consumer in consumers]

        return dead_consumers(self._store.disk, self._store.ask(known))

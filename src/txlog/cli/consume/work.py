"""Owns the work of `consume`: tables from a reader or a consumer, filtered, printed, acknowledged.

A message is acknowledged only after stdout has accepted its bytes, so a message that the reader
did not get is delivered again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from txlog.base.ranges import Bound, Range
from txlog.base.startup import compute as pc
from txlog.base.suggest import suggestion
from txlog.cli.call import progress
from txlog.cli.call.call import Call, is_terminal
from txlog.cli.consume import ends, lasts
from txlog.cli.consume.request import Request, Target
from txlog.cli.output import records
from txlog.cli.output.records import Records
from txlog.cli.terminal.signals import Interrupted, shielded
from txlog.cli.terminal.tables import counted, duration, size
from txlog.client.reading.record_columns import RecordColumns
from txlog.engine.door import reading
from txlog.engine.door.catalog import check_open, transaction
from txlog.engine.door.consuming import UNACKED_MAX
from txlog.engine.door.reading import Waiting, until_appended
from txlog.errors import (
    ConditionNotMet,
    Corruption,
    InvalidArgument,
    LimitExceeded,
    SubscriptionNotFound,
    TxlogError,
)
from txlog.lake.sql.where import Where, without_answer

if TYPE_CHECKING:
    from txlog.base.ids import TxnId
    from txlog.base.rows.topics import TopicDescription
    from txlog.client.client import Client
    from txlog.client.consuming.consumer import Consumer
    from txlog.client.consuming.open import ConsumerOptions
    from txlog.client.topics.topic import TopicHandle

_BATCH_MESSAGES = 1000
READ_MESSAGES = 10_000  # read at once, without -n


def run(call: Call, request: Request) -> None:
    """Print the messages in the chosen form.

    raises: ConditionNotMet (802) with --fail-empty and nothing to print
    """
    client = call.client(write=request.subscription is not None)
    job = Job(call, request, client)
    try:
        with job.bar:
            if request.subscription is not None:
                job.take()
            elif request.last is not None:
                job.read_last(request.last)
            elif request.follow or (request.max_wait_ms and request.is_open):
                job.follow()
            else:
                job.read()
    except Interrupted as interrupted:
        job.say_undecided()
        job.stopped(interrupted.exit)
        raise
    except TxlogError:
        if job.records.count:  # the readable messages were printed before the error
            call.output.out.flush()
        raise
    call.output.out.flush()
    job.say_undecided()
    job.notes()
    if request.stats:
        read = client.reading()
        elapsed = duration(call.elapsed_ms())
        call.say(f"{counted(job.records.count, 'message')}, {size(job.bytes)}, {elapsed}")
        call.say(
            f"{counted(read['rows_read'], 'row')} read for "
            f"{counted(read['handed_out'], 'message')}, "
            f"{counted(read['row_groups_decoded'], 'row group')} decoded"
        )
    if request.fail_empty and not job.records.count:
        raise ConditionNotMet("no message", code=802)


class Job:
    """One run of consume."""

    def __init__(self, call: Call, request: Request, client: Client) -> None:
        self.call = call
        self.request = request
        self.client = client
        self.bytes = 0
        self.acknowledged = 0
        # stdout's byte count at the end of each batch, and its messages
        self._ends: deque[tuple[int, int]] = deque()
        self._written = 0
        name = request.targets[0].topic if len(request.targets) == 1 else "consume"
        self.bar = progress.Amount(call, name, None, prints=True)
        self.out = call.output.out
        self.out.each = request.unbuffered or is_terminal(1)
        columns = call.output.shown if call.flags.columns is not None else None
        form = call.output.form
        look_up = records.beside_of(client, form) if "%" in form else None
        self.typed = RecordColumns(client.store)
        self.records = Records(
            form,
            columns,
            self.typed,
            raw_strings=request.raw_strings,
            look=call.output.look,
            watermarks=request.watermarks,
            topics=[target.topic for target in request.targets],
            beside=look_up,
        )
        self.out.write(self.records.begin())
        if request.grep is not None:
            check_pattern(request.grep)
        self.handles: dict[str, TopicHandle] = {}
        self._cutoffs: dict[str, int | None] = {}
        self._end_counts: ends.Ends | None = (
            None  # set for a count from the end if messages are delayed
        )
        self.where: Where | None = None
        if request.where is not None:  # imports DuckDB only now
            self.where = Where(request.where, [each.topic for each in request.targets], self.typed)

    def read(self) -> None:
        """Read to the current end of the log: all topics as of one moment."""
        topics = [target.topic for target in self.request.targets]
        self._cutoffs = {topic: self.client.topic(topic).cutoff() for topic in topics}
        if self.is_full():
            return  # -n 0 still checks that the topics exist
        remaining = None if self.has_filter() else self.left()
        self._find_ends()
        for table in self._tables(self._at_once(remaining), remaining):
            self.print(self.filtered(table))
            if self.is_full():
                break

    def read_last(self, count: int) -> None:
        """Print the last messages over all partitions that are due and match the filters.

        If the filters leave messages out, it reads ever longer ends of the partitions, until each
        has enough matching messages.
        """
        request = self.request
        for target in request.targets:
            self._cutoffs[target.topic] = self.client.topic(target.topic).cutoff()
        sizes = self._sizes() if self.has_filter() or self._may_hide() else {}
        depth = max(count, READ_MESSAGES) if sizes else count
        is_whole = request.range != Range() or (sizes and request.isolation == "uncommitted")
        while True:
            is_whole = is_whole or bool(sizes and depth >= max(sizes.values()))
            end = request.range if is_whole else Range(Bound("last", depth))
            tails: lasts.Tails = {}
            failure = self._keep_last(tails, end, count)
            if is_whole or not any(
                size > depth and len(tails.get(key, ())) < count for key, size in sizes.items()
            ):
                break
            depth *= 10
        for table in lasts.last_of(tails, count, READ_MESSAGES):
            self.print(table)
        if failure is not None:
            raise failure

    def _keep_last(self, tails: lasts.Tails, end: Range, count: int) -> Corruption | None:
        """Read a range and keep the ends of its partitions; return what could not be read."""
        if self.where is not None:
            self.where.undecided = 0  # the longer end includes the shorter one
        try:
            for table in self._tables(READ_MESSAGES, chosen=end):
                lasts.keep(tails, self.filtered(table), count)
        except Corruption as error:
            return error
        return None

    def _sizes(self) -> dict[tuple[str, int], int]:
        """How many messages each partition to read has, by topic and partition."""
        return {
            (target.topic, row["partition"]): row["messages"]
            for target in self.request.targets
            for row in self.client.describe_topic(target.topic)["partition_list"]
            if target.partitions is None or row["partition"] in target.partitions
        }

    def _tables(
        self,
        at_once: int,
        limit: int | None = None,
        *,
        follow: bool = False,
        chosen: Range | None = None,
    ) -> Iterator[pa.Table]:
        request = self.request
        if chosen is None:
            chosen = request.range if self._end_counts is None else self._end_counts.range
        return self.client.read(
            [_name_of(target) for target in request.targets],
            range=chosen,
            partitions=self._several(),  # all topics have the same partitions here
            limit=limit if request.include_delayed else None,
            batch_messages=at_once,
            isolation=request.isolation or "committed",
            follow=follow,
            columns=self._columns(),
        )

    def _several(self) -> list[int] | None:
        """The partitions of the request if there are several; one is part of a topic's name."""
        targets = self.request.targets
        return next((each.partitions for each in targets if len(each.partitions or ()) > 1), None)

    def _columns(self) -> list[str]:
        """The columns that the output depends on."""
        is_whole = self.has_filter() or self.request.last is not None
        columns = None if is_whole else self.records.columns()
        if columns is None:
            return [*reading.RECEIVED.names]  # the record of a message is made when it is printed
        if "visible_time" in columns:  # it equals the visible time outside transactions
            columns.append("publish_time")
        if self._end_counts is not None:
            columns += ends.COLUMNS
        return [*columns, "value", "deliver_at"]  # for counting bytes and hiding delayed messages

    def _find_ends(self) -> None:
        """Let a count from the end, -o -N, be one of due messages, as only they are printed."""
        request = self.request
        if not ends.is_counted(request.range) or not self._may_hide():
            return
        several = self._several()

        def read(end: Range) -> Iterator[tuple[pa.Table, pa.Table]]:
            for table in self.client.read(
                [_name_of(target) for target in request.targets],
                range=end,
                partitions=several,
                isolation=request.isolation or "committed",
                columns=ends.COLUMNS,
            ):
                yield table, self.due(table)

        self._end_counts = ends.Ends(request.range, read)

    def _may_hide(self) -> bool:
        """Whether a topic has messages that are not due, and they are to be left out."""
        if self.request.include_delayed:
            return False
        try:
            return any(
                self.client.topic(target.topic).next_delayed() is not None
                for target in self.request.targets
            )
        except Corruption:
            return True  # the reader raises it after the readable messages

    def _at_once(self, limit: int | None) -> int:
        """How many messages to read at once: the limit, unless delayed ones may be left out."""
        if limit is None or limit >= READ_MESSAGES:
            return READ_MESSAGES
        return READ_MESSAGES if self._may_hide() else limit

    def follow(self) -> None:
        """Read, and at the end wait for more: for ever, or until none comes within --max-wait."""
        self._find_ends()
        idle_since, waiting = time.monotonic(), self._waiting()
        for table in self._tables(_BATCH_MESSAGES, follow=True):
            self.print(self.filtered(table))
            if self.is_full():
                return
            if len(table):
                idle_since = time.monotonic()
                continue
            self.out.flush()
            if not self._wait(idle_since, waiting):
                return
            if waiting.look() and self.request.isolation == "uncommitted":
                self.client.store.settle()

    def take(self) -> None:
        """Receive the subscription's next messages; acknowledge them as --ack says."""
        request = self.request
        if request.join is not None:
            self._check_open(request.join)
        with shielded():
            consumer = self._consumer()
        done: list[pa.Table] = []
        try:
            for table in self._received(consumer):
                self.print(table)
                self.out.flush()
                if request.ack == "auto":
                    with shielded():
                        consumer.acknowledge(table, txn=request.join)
                        self.acknowledged += len(table)
                elif request.ack == "on-exit":
                    done.append(table)
            if done:
                with shielded():
                    consumer.acknowledge(pa.concat_tables(done), txn=request.join)
                    self.acknowledged = self.records.count
            if self.records.count and request.ack != "none":
                # One flush at the end, so that the next listing, a reader, sees the positions.
                self.client.flush()
        finally:
            with shielded():
                consumer.close()

    def _check_open(self, txn_id: TxnId) -> None:
        """Raise the errors of an acknowledgement in the transaction, before any output."""
        count = self.client.settings.coordinators
        self.client.store.ask(lambda view: check_open(transaction(view, txn_id, count)))

    def _received(self, consumer: Consumer) -> Iterator[pa.Table]:
        idle_since, waiting = time.monotonic(), self.client.waiting(consumer)
        while not self.is_full():
            waiting.look()
            remaining = self.left()
            batch_messages = (
                _BATCH_MESSAGES if remaining is None else min(remaining, _BATCH_MESSAGES)
            )
            last_watermark = consumer.get_last_watermark()
            with shielded():
                table = consumer.receive_batch(batch_messages, 0)
            now = consumer.get_last_watermark()
            self.records.watermark = None if now is None else now.event_time
            if len(table):
                yield table
                idle_since = time.monotonic()
                continue
            if consumer.blocked == UNACKED_MAX:
                self._check_room()
            if now is not None and now != last_watermark:
                self._tell(consumer.watermark_status)
            elif not self._wait(idle_since, waiting):
                return

    def _check_room(self) -> None:
        """Refuse to end, or to wait, while unacknowledged messages block all others.

        raises: LimitExceeded (204); printed messages are not acknowledged and will be redelivered
        """
        request, most = self.request, self.client.settings.unacked_max
        assert request.subscription is not None
        undelivered = 0
        for target in request.targets:
            description = self.client.subscription(target.topic, request.subscription).describe()
            for row in description["partition_list"]:
                if target.partitions is None or row["partition"] in target.partitions:
                    undelivered += (
                        row["backlog"] - row["leased"] - row["pending_acks"] - row["delayed"]
                    )
        if undelivered > 0:
            raise LimitExceeded(
                f"{counted(self.records.count, 'message')} printed and none acknowledged: "
                f"unacked_max is {most}, {undelivered} more cannot come; "
                "those printed will be redelivered",
                hint=f"--ack auto acknowledges as it goes; -n {most} stops in time; "
                "txlog config set unacked_max N allows more",
                setting=UNACKED_MAX,
                limit=most,
                value=self.records.count + undelivered,
                subscription=request.subscription,
            )

    def _tell(self, status: str | None) -> None:
        """Print a record of the new watermark, between the messages before and after it."""
        targets, subscription = self.request.targets, self.request.subscription
        assert subscription is not None
        topic = targets[0].topic if len(targets) == 1 else None
        self.out.write(self.records.event(topic, subscription, status))
        self.out.flush()

    def _consumer(self) -> Consumer:
        request, targets = self.request, self.request.targets
        assert request.subscription is not None
        options: ConsumerOptions = {
            "type": request.type,
            "name": request.consumer,
            "isolation": request.isolation,
            "create": request.create,
            "enable_watermarking": request.watermarks,
        }
        if request.create:
            options["position"] = request.position
        else:
            for target in targets:
                self._check_subscription(target.topic, request.subscription)
        if len(targets) == 1:
            options["partitions"] = targets[0].partitions
            return self.client.consumer(targets[0].topic, request.subscription, **options)
        if any(len(target.partitions or "1") > 1 for target in targets):
            raise InvalidArgument(
                "several partitions of several topics cannot be consumed at once",
                hint="consume one topic after another",
            )
        names = [
            f"{each_target.topic}/{each_target.partitions[0]}"
            if each_target.partitions
            else each_target.topic
            for each_target in targets
        ]
        return self.client.consumer(names, request.subscription, **options)

    def _check_subscription(self, topic: str, name: str) -> None:
        names = [str(row["subscription"]) for row in self.client.subscriptions(topic)]
        if name not in names:
            raise SubscriptionNotFound(
                f"no subscription {name} on {topic}",
                topic=topic,
                subscription=name,
                hint=suggestion(name, names, "--create makes it"),
            )

    def _waiting(self) -> Waiting:
        """Return the wait for new messages; with `uncommitted`, unflushed appends also end it."""
        if self.request.isolation == "uncommitted":
            return Waiting(self.client.store, partial(until_appended, self.client.store))
        waiting = self.client.waiting()
        waiting.look()
        return waiting

    def _wait(self, idle_since: float, waiting: Waiting) -> bool:
        """Wait for a change; return False when waiting is over."""
        until_s = None if self.request.follow else idle_since + self.request.max_wait_ms / 1000
        if until_s is not None and time.monotonic() >= until_s:
            return False
        waiting.pause(until_s)
        self.client.wait_for_change(0)
        return True

    def print(self, table: pa.Table) -> None:
        """Print the rows of the table, up to the limit of -n."""
        remaining = self.left()
        if remaining is not None:
            table = table.slice(0, remaining)
        if len(table):
            self.bytes += pc.sum(pc.binary_length(table["value"])).as_py() or 0
            for piece in self.records.pieces(table):
                self.out.write(piece)
            self._ends.append((self.out.taken, self.records.count))
            self.written()  # drops batches that stdout has accepted
            self.bar.read, self.bar.done = self.bytes, self.records.count

    def written(self) -> int:
        """The number of messages that stdout has accepted, counted by whole batches."""
        while self._ends and self._ends[0][0] <= self.out.gone:
            _, self._written = self._ends.popleft()
        return self._written

    def stopped(self, exit: int) -> None:
        """Report what consume printed and acknowledged before a signal ended it."""
        request, written = self.request, self.written()
        least = "at least " if written < self.records.count else ""
        text = f"{least}{counted(written, 'message')} written out"
        facts: dict[str, object] = {
            "topic": ",".join(target.topic for target in request.targets),
            "messages": written,
        }
        if request.subscription is not None:
            facts |= {
                "subscription": request.subscription,
                "acknowledged": self.acknowledged,
                "txn": request.join,
                "txn_state": None if request.join is None else "open",
            }
            text += f", {self.acknowledged or 'none'} acknowledged"
            if request.join is not None:
                text += f" in transaction {request.join}, which is left open"
            if self.acknowledged < self.records.count:
                text += "; the others will be redelivered"
        self.call.stopped(exit, text, facts)

    def say_undecided(self) -> None:
        """Report messages for which --where is neither true nor false."""
        if self.where is not None and self.where.undecided:
            self.call.say(without_answer(self.where.undecided))

    def left(self) -> int | None:
        """How many more messages -n allows; None without a limit."""
        return None if self.request.n is None else self.request.n - self.records.count

    def is_full(self) -> bool:
        """Whether -n is reached."""
        return self.left() == 0

    def has_filter(self) -> bool:
        """Whether consume itself drops some messages."""
        request = self.request
        return bool(request.keys or request.properties) or (
            request.grep is not None or request.where is not None
        )

    def due(self, table: pa.Table) -> pa.Table:
        """Return the rows that are not delayed; a message without an id is never delayed."""
        at = table["deliver_at"]
        if self.request.include_delayed or at.null_count == len(at):
            return table
        topic = table["topic"][0].as_py()
        if topic in self._cutoffs:  # one moment for the whole read
            cutoff = self._cutoffs[topic]
        else:
            if topic not in self.handles:
                self.handles[topic] = self.client.topic(topic)
            cutoff = self.handles[topic].cutoff()
        if cutoff is None:
            return table
        is_due = pc.fill_null(pc.less_equal(at.cast(pa.int64()), cutoff), True)
        return table.filter(pc.or_(is_due, pc.is_null(table["ledger"])))

    def filtered(self, table: pa.Table) -> pa.Table:
        """Return the due rows that match --key, --prop, --grep and --where."""
        request = self.request
        table = self.due(table)
        if self._end_counts is not None:
            table = self._end_counts.cut(table)
        if request.keys:
            table = table.filter(pc.is_in(table["key"], pa.array(request.keys, pa.binary())))
        for name, value in request.properties.items():
            values = pc.map_lookup(table["properties"], name, "last")
            table = table.filter(pc.fill_null(pc.equal(values, value), False))
        if request.grep is not None:
            hits = pc.match_substring_regex(table["value"], request.grep)
            table = table.filter(pc.fill_null(hits, False))
        if self.where is not None:
            table = self.where.filtered(table)
        return table

    def notes(self) -> None:
        """Print notes: open transactions, delayed messages, a type that delivers them at once."""
        if self.call.flags.quiet or not (self.call.flags.verbose or is_terminal(2)):
            return
        for target in self.request.targets:
            row = self.client.describe_topic(target.topic)
            if self.request.subscription is not None:
                self._note_type(row)
                continue
            if row.get("open_txns"):
                open_txns = counted(row["open_txns"], "open transaction")
                self.call.note(f"{target.topic}: {open_txns}")
            if row.get("delayed") and not self.request.include_delayed:
                self.call.note(f"{target.topic}: {counted(row['delayed'], 'message')} not yet due")

    def _note_type(self, row: TopicDescription) -> None:
        for subscription in row["subscription_list"]:
            waits = subscription["type"] in ("shared", "key-shared")
            if (
                subscription["subscription"] == self.request.subscription
                and row["delayed"]
                and not waits
            ):
                self.call.note(
                    f"{row['topic']}: messages not yet due came at once, as {subscription['type']} "
                    "subscriptions deliver them; shared and key-shared ones wait"
                )


def _name_of(target: Target) -> str:
    """The name of a topic, or of its only chosen partition."""
    if target.partitions is not None and len(target.partitions) == 1:
        return f"{target.topic}/{target.partitions[0]}"
    return target.topic


def check_pattern(pattern: bytes) -> None:
    """Refuse a pattern that is not a regular expression, before the first read.

    raises: InvalidArgument (201)
    """
    try:
        pc.match_substring_regex(pa.array([b""], pa.binary()), pattern)
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        why = "it is not UTF-8"
        if isinstance(error, pa.ArrowInvalid):
            why = str(error).rpartition("regular expression: ")[2] or str(error)
        reason = " ".join(why.split())[:80]
        raise InvalidArgument(f"--grep is not a regular expression (RE2): {reason}") from error

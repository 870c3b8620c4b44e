"""How far subscriptions are behind: one answer for every command, page and metric that shows it.

    what counts   The backlog is every visible message that is not acknowledged. That includes
                  messages that a consumer has in hand or that an open transaction acknowledged. It
                  leaves out messages of aborted and open transactions. Delayed messages
                  count, and `backlog_no_delayed` leaves them out.
    age           The oldest message of the backlog that is due; from its publish, its commit or,
                  if later, its time of delivery.
    rates         From the frames of the journal, see `rates`.
    bytes         Exact for ledgers that are wholly unacknowledged. Elsewhere the messages of a
                  ledger count as equally large.
    no consumer   The last sign is the newest of: an acknowledgement, a consumer that came or left,
                  if the journal still has it, the creation of the subscription.

Cost: the folds of the subscriptions and at most READS_MAX messages or READ_BYTES_MAX bytes, however
many partitions there are. Beyond that, the time of a plain message is estimated from the first and
last time of its ledger, and `oldest_estimated` is true.
Source: docs/design/consuming, "Lag".
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from txlog.base.ids import MessageId
from txlog.base.settings import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from txlog.base.startup import compute as pc
from txlog.client.answers import topics_and_txns, watermarks
from txlog.client.answers.delayed import DelayCounts, Scope, ahead
from txlog.client.answers.rates import LONG_MS, SHORT_MS, Rates, rates_of
from txlog.engine.door import catalog as catalogs
from txlog.engine.door.catalog import Subscription, Topic, index_of, numbers
from txlog.engine.door.consuming import active_consumer, backlog_by_ledger, messages_in
from txlog.engine.door.delayed import runs_in_order
from txlog.engine.door.facts import Component, IdSet, Mark, repeat_runs
from txlog.engine.door.liveness import consumer_lock, holder_of
from txlog.engine.door.reading import Piece, plan, requests_of
from txlog.engine.door.store import Store, View
from txlog.errors import InvalidArgument, TxlogError

if TYPE_CHECKING:
    from txlog.base.rows.consuming import (
        BacklogGroup,
        ConsumerRow,
        Lag,
        LagRow,
        SubscriptionDescription,
        SubscriptionPartition,
    )

# How many messages an answer may read for their exact time, and how many bytes of files.
READS_MAX: Final = 100
READ_BYTES_MAX: Final = 64 << 20
# A message is read with the row group or frame that has it, which is at most this large.
_GROUP_BYTES: Final = 8 << 20
# More delayed messages than this are not searched for the oldest message that is due.
DELAYED_MAX: Final = 100_000


class _Cursor(NamedTuple):
    """The figures of one cursor, to be added up.

    ready: messages of the backlog that are due
    oldest_ms: None: no message is due, or its time is unknown
    rates: in and out over a minute, in and out over 15; None: unknown
    """

    messages: int
    bytes: int
    ready: int
    oldest_ms: int | None
    is_estimated: bool
    rates: tuple[float | None, float | None, float | None, float | None]


class LagReader:
    """Reads the lag of cursors in one view, within one budget of reads."""

    __slots__ = (
        "_bytes_left",
        "_counts",
        "_now_ms",
        "_quiet",
        "_rates",
        "_reads_left",
        "_store",
        "_view",
    )

    def __init__(self, view: View, store: Store) -> None:
        self._view, self._store = view, store
        self._counts = DelayCounts(view, store)
        self._now_ms = store.clock.now().wall_ms
        self._rates: Rates = rates_of(view, store)
        self._reads_left, self._bytes_left = READS_MAX, READ_BYTES_MAX
        self._quiet: tuple[float | None, float | None, float | None, float | None] | None = None

    # --- a subscription ----------------------------------------------------------------------

    def row(self, subscription: Subscription) -> LagRow:
        """The figures of a subscription over all its partitions."""
        topic = self._view.catalog.topics[subscription.topic]
        return self._row(
            topic, subscription, [self._cursor(topic, subscription, n) for n in numbers(topic)]
        )

    def _row(self, topic: Topic, subscription: Subscription, cursors: Sequence[_Cursor]) -> LagRow:
        base = topics_and_txns.subscription(
            self._view,
            subscription,
            self._store,
            sum(cursor.messages for cursor in cursors),
            sum(cursor.messages - cursor.ready for cursor in cursors),
        )
        signs = (
            subscription.created_ms,
            base["last_ack_time"] or 0,
            self._rates.attended_ms.get(subscription.number, 0),
        )
        idle_ms = None if base["consumers"] else max(0, self._now_ms - max(signs))
        return {
            "topic": base["topic"],
            "subscription": base["subscription"],
            "type": base["type"],
            "backlog": base["backlog"],
            "delayed": base["delayed"],
            "pending_acks": base["pending_acks"],
            "consumers": base["consumers"],
            **self._lag(cursors),
            "isolation": base["isolation"],
            "mark_delete": base["mark_delete"],
            "last_ack_time": base["last_ack_time"],
            "created_time": base["created_time"],
            "backlog_no_delayed": base["backlog_no_delayed"],
            "no_consumer_ms": idle_ms,
        }

    def describe(self, topic: Topic, subscription: Subscription) -> SubscriptionDescription:
        """One subscription with its consumers and partitions."""
        standings = [
            *watermarks.standings(self._view, topic, range(topic.partitions), subscription)
        ]
        cursors = [self._cursor(topic, subscription, place.number) for place in standings]
        return {
            **self._row(topic, subscription, cursors),
            "policies": dict(sorted(subscription.policies.items())),
            "consumer_list": consumers(self._view, subscription, self._store),
            "partition_list": [
                self._partition(subscription, standing, figures)
                for standing, figures in zip(standings, cursors, strict=True)
            ],
        }

    def _partition(
        self, subscription: Subscription, standing: watermarks.Standing, figures: _Cursor
    ) -> SubscriptionPartition:
        cursor = self._view.cursor(subscription.number, standing.number)
        mark = cursor.mark_delete
        return {
            "partition": standing.partition,
            "mark_delete": MessageId(*mark) if mark[1] >= 0 else None,
            "backlog": figures.messages,
            "acked_beyond": messages_in(self._view, standing.number, cursor.acked.runs()),
            "delayed": figures.messages - figures.ready,
            "backlog_no_delayed": figures.ready,
            "pending_acks": sum(pending.count for pending in cursor.pending.values()),
            "leased": sum(lease.count() for lease in cursor.leases.by_consumer.values()),
            "watermark": standing.value,
            **self._lag([figures]),
        }

    # --- cursors -----------------------------------------------------------------------------

    def _lag(self, cursors: Sequence[_Cursor]) -> Lag:
        oldest = min(
            (cursor for cursor in cursors if cursor.oldest_ms is not None),
            key=lambda cursor: cursor.oldest_ms or 0,
            default=None,
        )
        oldest_ms = None if oldest is None else oldest.oldest_ms
        rates = [_total(cursor.rates[at] for cursor in cursors) for at in range(4)]
        in_1m, out_1m, in_15m, out_15m = rates
        ready = sum(cursor.ready for cursor in cursors)
        catch_up_ms = _catch_up_ms(ready, in_1m, out_1m)
        if in_1m is None or out_1m is None:
            catch_up_ms = _catch_up_ms(ready, in_15m, out_15m)
        return {
            "backlog_bytes": sum(cursor.bytes for cursor in cursors),
            "oldest_age_ms": None if oldest_ms is None else max(0, self._now_ms - oldest_ms),
            "rate_in_1m": _rounded(in_1m),
            "rate_out_1m": _rounded(out_1m),
            "catch_up_ms": catch_up_ms,
            "rate_in_15m": _rounded(in_15m),
            "rate_out_15m": _rounded(out_15m),
            "oldest_time": oldest_ms,
            "oldest_estimated": oldest is not None and oldest.is_estimated,
        }

    def _cursor(self, topic: Topic, subscription: Subscription, number: int) -> _Cursor:
        messages = size = 0
        for end, count in backlog_by_ledger(self._view, subscription.number, number):
            messages += count
            if count == end.messages:
                size += end.payload_bytes
            elif count:
                size += round(end.payload_bytes * count / end.messages)
        delayed = 0
        if messages and self._view.exists(("delayed", number, 0)):
            delayed = self._counts.of_cursor(topic, subscription, number)
        ready = messages - delayed
        oldest_ms, is_estimated = None, False
        if ready > 0:
            oldest_ms, is_estimated = self._oldest(topic, subscription, number, delayed)
        return _Cursor(
            messages, size, ready, oldest_ms, is_estimated, self._rates_of(subscription, number)
        )

    def _rates_of(
        self, subscription: Subscription, number: int
    ) -> tuple[float | None, float | None, float | None, float | None]:
        cell = (subscription.number, number)
        is_quiet = self._rates.is_quiet(cell)
        if is_quiet and self._quiet is not None:  # most partitions of a large store
            return self._quiet
        figures: list[float | None] = []
        for window_ms in (SHORT_MS, LONG_MS):
            visible = self._rates.rate_in(number, self._now_ms, window_ms)
            figures.append(None if visible is None else visible[0])
            figures.append(self._rates.rate_out(cell, self._now_ms, window_ms))
        rates = (figures[0], figures[1], figures[2], figures[3])
        if is_quiet:
            self._quiet = rates
        return rates

    # --- the oldest message ------------------------------------------------------------------

    def _oldest(
        self, topic: Topic, subscription: Subscription, number: int, delayed: int
    ) -> tuple[int | None, bool]:
        """When the oldest message that is due could first be read, and whether it is an estimate.

        None: it is unknown, because too many messages are delayed or the files are unreadable
        """
        view = self._view
        cursor = view.cursor(subscription.number, number)
        skip: tuple[IdSet, ...] = (cursor.acked,)
        try:
            if delayed:
                if delayed > DELAYED_MAX:
                    return None, False
                skip = (cursor.acked, self._delayed_ids(topic, subscription, number))
            piece = self._next(number, cursor.mark_delete, skip)
            return (None, False) if piece is None else self._time(number, piece)
        except TxlogError:  # the files of the partition; `status` names the damage
            return None, False

    def _next(self, number: int, mark: Mark, skip: tuple[IdSet, ...]) -> Piece | None:
        """The next message after a position, without those to skip."""
        view = self._view
        if any(skip) or any(view.exists((kind, number, 0)) for kind in ("buffer", "watermark")):
            pieces = plan(view, number, mark, 1, skip).pieces
            return pieces[0] if pieces else None
        for end in view.topic(number).ledgers:  # each entry is a plain message
            entry = mark[1] + 1 if end.ledger == mark[0] else 0
            if end.ledger >= mark[0] and entry < end.entries:
                return Piece(end.ledger, entry, 1, 0, None)
        return None

    def _delayed_ids(self, topic: Topic, subscription: Subscription, number: int) -> IdSet:
        cutoff = self._counts.cutoff(topic)
        assert cutoff is not None  # else no message would be delayed
        scope = Scope(topic, [index_of(topic, number)], cutoff, self._store.note, subscription)
        ids = IdSet()
        for times in ahead(self._view, scope, in_order=False):
            for run in runs_in_order(times):
                ids.add(run)
        return ids

    def _time(self, number: int, piece: Piece) -> tuple[int | None, bool]:
        """When a message could first be read: without reading it, where the folds have its time."""
        has_delays = self._view.exists(("delayed", number, 0))
        if piece.marker is not None and not has_delays:
            return piece.marker.time_ms, False
        end = next(end for end in self._view.topic(number).ledgers if end.ledger == piece.ledger)
        if (
            piece.marker is None
            and not has_delays
            and (piece.entry == 0 or end.first_ms == end.last_ms)
        ):
            return end.first_ms, False
        cost = min(end.payload_bytes, _GROUP_BYTES)
        if not self._reads_left or cost > self._bytes_left:
            if piece.marker is not None:
                return piece.marker.time_ms, True
            span = end.last_ms - end.first_ms
            return end.first_ms + span * piece.entry // max(1, end.entries - 1), True
        self._reads_left -= 1
        self._bytes_left -= cost
        tally = self._store.tally  # counts reads of consumers; lag must not change it
        counts = tally.rows_read, tally.groups_decoded
        row = self._view.rows(requests_of([piece]), ("publish_time", "deliver_at"))[0]
        tally.rows_read, tally.groups_decoded = counts
        publish_ms, deliver_ms = (
            row.column(name).cast("int64")[0].as_py() for name in row.column_names
        )
        visible_ms: int = publish_ms if piece.marker is None else piece.marker.time_ms
        return max(visible_ms, deliver_ms or 0), False


def _total(figures: Iterable[float | None]) -> float | None:
    """The sum; None if any is unknown."""
    total = 0.0
    for figure in figures:
        if figure is None:
            return None
        total += figure
    return total


def _rounded(figure: float | None) -> float | None:
    return None if figure is None else round(figure, 3)


def _catch_up_ms(messages: int, rate_in: float | None, rate_out: float | None) -> int | None:
    if not messages:
        return 0
    if rate_in is None or rate_out is None or rate_out <= rate_in:
        return None
    return round(messages * SECOND_MS / (rate_out - rate_in))


# --- answers ---------------------------------------------------------------------------------


def lag(view: View, store: Store, topic: Topic | None = None) -> list[LagRow]:
    """The subscriptions of one topic, or of all, by topic and name."""
    subscriptions = [
        subscription
        for subscription in view.catalog.subscriptions.values()
        if topic is None or subscription.topic == topic.number
    ]
    view.load(_components(view, subscriptions))
    reader = LagReader(view, store)
    rows = [reader.row(subscription) for subscription in subscriptions]
    return sorted(rows, key=lambda row: (row["topic"], row["subscription"]))


def _components(view: View, subscriptions: Iterable[Subscription]) -> Iterator[Component]:
    """The state that an answer about these subscriptions needs."""
    for subscription in subscriptions:
        for number in numbers(view.catalog.topics[subscription.topic]):
            yield ("cursor", subscription.number, number)
            for kind in ("topic", "buffer", "watermark", "delayed"):
                yield (kind, number, 0)


def consumers(view: View, subscription: Subscription, store: Store) -> list[ConsumerRow]:
    """The attached consumers of a subscription, by id.

    alive:       a process holds its lock; a dead consumer stays in the list until a peer notices
    leased:      how many messages are leased to it
    active_list: with failover, the partitions where it is the active consumer
    pid, command: of the process that holds the lock, according to the kernel
    host:        this machine: a store is used on one machine only; null for a dead consumer
    address:     null here; `txlog serve` knows the addresses of its clients
    """
    partitions = numbers(view.catalog.topics[subscription.topic])
    active: dict[int, list[int]] = {}
    if subscription.type == "failover":
        for index, _ in enumerate(partitions):
            active.setdefault(active_consumer(view, subscription.number, index), []).append(index)
    out: list[ConsumerRow] = []
    for consumer in catalogs.consumers_of(view.catalog, subscription.number):
        is_alive, pid, command = holder_of(store.disk, consumer_lock(consumer.number))
        out.append(
            {
                "consumer": consumer.number,
                "name": consumer.name,
                "pid": pid,
                "command": command,
                "alive": is_alive,
                "priority": consumer.priority,
                "leased": sum(
                    view.cursor(subscription.number, number).leases.in_hand(consumer.number)
                    for number in partitions
                ),
                "active_list": active.get(consumer.number, []),
                "since_time": consumer.since_ms,
                "host": platform.node() if is_alive else None,
                "address": None,
            }
        )
    return out


# --- the backlog in groups -------------------------------------------------------------------

GROUPS = ("key", "age", "ledger")
AGES = (
    ("<1m", MINUTE_MS), ("<10m", 10 * MINUTE_MS), ("<1h", HOUR_MS), ("<1d", DAY_MS),
    ("<7d", 7 * DAY_MS),
)  # fmt: skip
OLDER = ">=7d"
# Rows read at once; a batch of large messages ends before (RECEIVE_BYTES_MAX).
ROWS_AT_ONCE = 1 << 16


def backlog_groups(
    store: Store,
    topic: Topic,
    subscription: Subscription,
    indexes: list[int] | None,
    by: str,
    top: int,
) -> list[BacklogGroup]:
    """The unacknowledged messages by group: [{group, messages, size_bytes, oldest_time}].

    by:   key (the largest groups first), age, or ledger
    cost: reads every message of the backlog, many at once
    """
    if by not in GROUPS:
        raise InvalidArgument(f"by is {by!r}", hint=", ".join(GROUPS), code=203)
    if top < 1:
        raise InvalidArgument(f"top is {top}, it must be positive", code=203)
    groups: dict[str, list[int]] = {}  # group -> messages, bytes, oldest
    now_ms = store.clock.now().wall_ms
    for index in range(topic.partitions) if indexes is None else indexes:
        number = catalogs.number_of(topic, index)
        place: Mark | None = None
        while True:
            place, rows = store.read(
                lambda view, at=place, number=number: _next_rows(view, subscription, number, at)  # type: ignore[misc]
            )
            if rows is None:
                break
            _add_to_groups(groups, rows, by, now_ms)
    if by == "key":
        order = sorted(groups, key=lambda group: (-groups[group][0], group))
    elif by == "ledger":
        order = sorted(groups, key=int)
    else:
        order = [age for age in (*(name for name, _ in AGES), OLDER) if age in groups]
    return [
        {
            "group": group,
            "messages": groups[group][0],
            "size_bytes": groups[group][1],
            "oldest_time": groups[group][2],
        }
        for group in order[:top]
    ]


def _next_rows(
    view: View, subscription: Subscription, number: int, at: Mark | None
) -> tuple[Mark, pa.Table | None]:
    """The next unacknowledged messages as (ledger, key, size, time); None after the last."""
    cursor = view.cursor(subscription.number, number)
    mark = cursor.mark_delete if at is None else at
    step = plan(view, number, mark, ROWS_AT_ONCE, (cursor.acked,))
    if not step.pieces:
        return mark, None
    # In the order of their files: messages of transactions are in sidecar files, others are not.
    pieces = sorted(step.pieces, key=lambda piece: requests_of([piece])[0])
    tables = view.rows(requests_of(pieces), ("key", "value", "publish_time"))
    stored = pa.concat_tables(tables)
    ends, total = [], 0
    for piece in pieces:
        total += piece.rows
        ends.append(total)
    times = pc.coalesce(
        repeat_runs([_marker_time(piece) for piece in pieces], ends, pa.int64()),
        stored.column("publish_time").cast(pa.int64()),
    )
    size = pc.add(
        pc.fill_null(pc.binary_length(stored.column("value")), 0),
        pc.fill_null(pc.binary_length(stored.column("key")), 0),
    ).cast(pa.int64())
    return step.after, pa.table(
        {
            "ledger": repeat_runs([piece.ledger for piece in pieces], ends, pa.int64()),
            "key": stored.column("key"),
            "size": size,
            "time": times,
        }
    )


def _marker_time(piece: Piece) -> int | None:
    return None if piece.marker is None else piece.marker.time_ms


def _add_to_groups(groups: dict[str, list[int]], rows: pa.Table, by: str, now_ms: int) -> None:
    if by == "age":
        young = pc.subtract(now_ms, rows.column("time"))
        step = pa.chunked_array([pa.repeat(pa.scalar(0, pa.int32()), rows.num_rows)])
        for _, limit_ms in AGES:
            step = pc.add(step, pc.greater_equal(young, limit_ms).cast(pa.int32()))
        rows = rows.append_column("age", step)
    # rows of a frame are not aligned as Arrow's grouping expects, and it warns on stderr
    rows = rows.take(pa.arange(0, rows.num_rows))
    grouped = rows.group_by(by).aggregate([("size", "count"), ("size", "sum"), ("time", "min")])
    for value, *figures in zip(
        *(grouped.column(name).to_pylist() for name in (by, "size_count", "size_sum", "time_min")),
        strict=True,
    ):
        group = groups.setdefault(_group(by, value), [0, 0, figures[2]])
        group[0] += figures[0]
        group[1] += figures[1]
        group[2] = min(group[2], figures[2])


def _group(by: str, value: bytes | int | None) -> str:
    if by == "age":
        assert isinstance(value, int)
        return AGES[value][0] if value < len(AGES) else OLDER
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return "" if value is None else str(value)

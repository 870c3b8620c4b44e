"""Skip: acknowledging the next messages of a subscription, without naming them.

    skip N · clear the backlog · expire older messages · the time to live of a topic

All of these act like plain acknowledgements: acknowledgements that a transaction holds stay with
it, and a message that is leased is acknowledged where it is. A time to live counts from the moment
when a message became visible. If the policy says so and deliver_at is later, it counts from
deliver_at.
Source: spec/transactions 9.1, spec/delayed 8.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from txlog.base.settings import Settings
from txlog.base.startup import compute as pc
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.decide.sending.deliver_at import AT
from txlog.engine.folds.catalog import Subscription, Topic, number_of, numbers
from txlog.engine.folds.cursor import Cursor
from txlog.engine.model.ops import Acked, Run
from txlog.engine.plan.ack_sets import acked_outcome
from txlog.engine.plan.clock_trust import trusted
from txlog.engine.plan.delayed.index import index_of_partition
from txlog.engine.plan.participants import check_available
from txlog.engine.plan.policies import delay_policy, retention_policy
from txlog.engine.plan.reading.dispatch import NO_MATTER, Piece, Skip, plan, requests_of
from txlog.engine.plan.reading.ranges import before_time, stop_after
from txlog.engine.view import View

ALL = 1 << 62


class SkipLimit(msgspec.Struct, frozen=True, gc=False):
    """How much to skip: this many messages of each partition, if they are older than an instant.

    before_ms: None, whatever their age
    due_ms: their age also counts from deliver_at; messages with a later deliver_at are not due yet
    """

    messages: int = ALL
    before_ms: int | None = None
    due_ms: int | None = None


def skip(
    view: View,
    settings: Settings,
    now: Instant,
    topic: Topic,
    subscription: Subscription,
    amount: SkipLimit,
    indexes: Sequence[int] | None,
) -> Decision[int]:
    """Decide to acknowledge the next messages of a subscription.

    indexes: the partitions, None for all
    returns: how many messages, durable
    raises:  PartitionUnavailable
    """
    draft = Draft(view, settings, now.wall_ms)
    total = 0
    for index in range(topic.partitions) if indexes is None else indexes:
        number = number_of(topic, index)
        check_available(view, topic, number)
        total += _skip(draft, subscription.number, number, amount)
    return draft.decision(total, sync=True)


def expire(
    view: View, settings: Settings, now: Instant, pairs: Sequence[tuple[int, int]]
) -> Decision[int]:
    """Decide to acknowledge messages past the time to live of their topic; written but not flushed.

    pairs: (topic, subscription) numbers; deleted or unavailable ones are skipped
    returns: how many messages
    """
    draft = Draft(view, settings, now.wall_ms)
    total = 0
    for topic_number, subscription in pairs:
        topic = view.catalog.topics.get(topic_number)
        if topic is None or subscription not in topic.subscriptions:
            continue
        amount = past_ttl(view, settings, topic, now)
        if amount is None:
            continue
        for number in numbers(topic):
            if number not in view.catalog.unavailable and _is_due(
                view, subscription, number, amount
            ):
                total += _skip(draft, subscription, number, amount)
    return draft.decision(total)


def past_ttl(view: View, settings: Settings, topic: Topic, now: Instant) -> SkipLimit | None:
    """The messages past the topic's time to live; None: the topic has none."""
    ttl_ms = retention_policy(view, settings, topic).ttl_ms
    if ttl_ms is None:
        return None
    policy = delay_policy(view, settings, topic)
    now_ms = trusted(view, settings, now).wall_ms
    due_ms = policy.cutoff(now_ms) if policy.is_ttl_from_deliver_at else None
    return SkipLimit(before_ms=now_ms - ttl_ms, due_ms=due_ms)


def _is_due(view: View, subscription: int, number: int, amount: SkipLimit) -> bool:
    """True when the first PENDING message is too old; costs reading the time of one row.

    If deliver_at counts, this looks at the first message that is due. Later messages can be too old
    only if that one is.
    """
    before_ms = amount.before_ms
    assert before_ms is not None
    cursor = view.cursor(subscription, number)
    for end in view.topic(number).ledgers:
        if end.entries and end.ledger >= cursor.mark_delete[0]:
            if end.first_ms >= before_ms:  # `before_time` stops there
                return False
            break
    left_alone = _left_alone(view, number, cursor, amount)
    pieces = plan(view, number, cursor.mark_delete, 1, left_alone).pieces
    if not pieces:
        return False
    if pieces[0].marker is not None:
        return pieces[0].marker.time_ms < before_ms
    ledger, entry = pieces[0].ledger, pieces[0].entry
    (rows,) = view.rows([(ledger, entry, entry + 1)], ["publish_time"])
    return bool(rows.column(0).cast("int64")[0].as_py() < before_ms)


def _skip(draft: Draft, subscription: int, number: int, amount: SkipLimit) -> int:
    view = draft.view
    cursor = view.cursor(subscription, number)
    stop = None
    if amount.before_ms is not None:
        stop = stop_after(before_time(view, number, amount.before_ms))
    planned = plan(
        view,
        number,
        cursor.mark_delete,
        amount.messages,
        _left_alone(view, number, cursor, amount),
        stop,
        bytes_max=NO_MATTER,
    )
    pieces, messages = planned.pieces, planned.messages
    if amount.due_ms is not None and amount.before_ms is not None:
        pieces = _delivered_before(view, number, pieces, amount.before_ms)
        messages = sum(piece.rows for piece in pieces)
    if messages:
        outcome, mark = acked_outcome(view, subscription, number, runs_of(pieces))
        draft.ops.append(Acked(subscription, number, outcome, mark, messages))
    return messages


def _left_alone(view: View, number: int, cursor: Cursor, amount: SkipLimit) -> Skip:
    """Ids that a skip does not read: acknowledged, held by a transaction, or not due where
    deliver_at counts.
    """
    if amount.due_ms is None or view.delayed(number).is_empty:
        return (cursor.acked, cursor.held)
    index = index_of_partition(view, number, amount.due_ms)
    waiting, _ = index.futures(cursor, cursor.mark_delete, make_do=True)
    return (cursor.acked, cursor.held, *waiting)


def _delivered_before(view: View, number: int, pieces: list[Piece], before_ms: int) -> list[Piece]:
    """The messages without a deliver_at, or with an earlier one."""
    delayed = view.delayed(number)
    if not pieces or (delayed.is_empty and delayed.passed_ms < before_ms):
        return pieces  # no message there can have such a time
    column = pa.chunked_array(
        [
            chunk
            for table in view.rows(requests_of(pieces), [AT])
            for chunk in table.column(0).cast(pa.int64()).chunks
        ],
        pa.int64(),
    )
    is_before = pc.fill_null(pc.less(column, pa.scalar(before_ms, pa.int64())), True)
    encoded = pc.run_end_encode(is_before.combine_chunks())
    out: list[Piece] = []
    at = start = 0  # in the rows of the piece at hand, and of all pieces before it
    low = 0
    for value, high in zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True):
        while low < high:
            piece = pieces[at]
            stop = min(high, start + piece.rows)
            if value:
                out.append(_part(piece, low - start, stop - low))
            low = stop
            if low == start + piece.rows:
                start, at = low, at + 1
    return out


def _part(piece: Piece, first: int, rows: int) -> Piece:
    """Consecutive messages of a piece."""
    if piece.marker is None:
        return Piece(piece.ledger, piece.entry + first, rows, 0, None)
    return Piece(piece.ledger, piece.entry, rows, piece.index + first, piece.marker)


def runs_of(pieces: list[Piece]) -> list[Run]:
    """The messages of a plan as runs; all messages of a marker are its entry."""
    out: list[Run] = []
    for piece in pieces:
        ledger, entry, last = piece.ledger, piece.entry, piece.entry + piece.rows - 1
        if piece.marker is not None:
            last = entry
            if piece.rows != piece.marker.count:
                out.append((ledger, entry, entry, piece.index, piece.index + piece.rows - 1))
                continue
        if out and out[-1][0] == ledger and out[-1][2] == entry - 1 and not out[-1][3]:
            out[-1] = (ledger, out[-1][1], last, 0, 0)
        else:
            out.append((ledger, entry, last, 0, 0))
    return out

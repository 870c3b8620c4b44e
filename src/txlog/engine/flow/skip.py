"""Skip: acknowledging what a subscription would get next, without naming it.

    skip N · clear the backlog · expire what is older · the time to live of a topic

All of it acts like plain acknowledgements: what a transaction holds stays with it, and a message in
a consumer's hand is acknowledged there. Source: spec/transactions 9.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from txlog.clock import Instant
from txlog.engine.flow.acksets import acked_outcome
from txlog.engine.flow.bounds import behind_time, stop_behind
from txlog.engine.flow.dispatch import NO_MATTER, Piece, plan
from txlog.engine.flow.draft import Decision, Draft
from txlog.engine.flow.participants import check_available
from txlog.engine.folds.catalog import Subscription, Topic, number_of, numbers
from txlog.engine.model.ops import Acked, Run
from txlog.engine.view import View
from txlog.settings import Settings

ALL = 1 << 62


class Amount(msgspec.Struct, frozen=True, gc=False):
    """How much goes: so many messages of each partition, as far as they are older than an instant.

    before_ms: None, whatever their age
    """

    messages: int = ALL
    before_ms: int | None = None


def skip(
    view: View, settings: Settings, now: Instant, topic: Topic, held: Subscription,
    amount: Amount, indexes: Sequence[int] | None,
) -> Decision:  # fmt: skip
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
        total += _skip(draft, held.number, number, amount)
    return draft.decision(total, sync=True)


def expire(
    view: View, settings: Settings, now: Instant, pairs: Sequence[tuple[int, int]]
) -> Decision:
    """Decide to acknowledge what is past the time to live of its topic, written and not flushed.

    pairs:   (topic, subscription) numbers; what was deleted is left out, and what is away
    returns: how many messages
    """
    draft = Draft(view, settings, now.wall_ms)
    total = 0
    for topic_number, subscription in pairs:
        topic = view.catalog.topics.get(topic_number)
        if topic is None or subscription not in topic.subscriptions:
            continue
        before_ms = cutoff(view, topic, now)
        if before_ms is None:
            continue
        for number in numbers(topic):
            if number not in view.catalog.unavailable and _is_due(
                view, subscription, number, before_ms
            ):
                total += _skip(draft, subscription, number, Amount(before_ms=before_ms))
    return draft.decision(total)


def cutoff(view: View, topic: Topic, now: Instant) -> int | None:
    """What became visible before this is past the topic's time to live; None: it has none."""
    ttl_ms = view.catalog.policies.get(topic.number, {}).get("ttl_ms")
    return None if ttl_ms is None else now.wall_ms - ttl_ms


def _is_due(view: View, subscription: int, number: int, before_ms: int) -> bool:
    """True when the first message that is PENDING is too old; it costs the time of one row."""
    cursor = view.cursor(subscription, number)
    for end in view.topic(number).ledgers:
        if end.entries and end.ledger >= cursor.mark_delete[0]:
            if min(end.first_ms, end.last_ms) >= before_ms:
                return False
            break
    found = plan(view, number, cursor.mark_delete, 1, (cursor.acked, cursor.held)).pieces
    if not found:
        return False
    if found[0].marker is not None:
        return found[0].marker.time_ms < before_ms
    ledger, entry = found[0].ledger, found[0].entry
    (rows,) = view.rows([(ledger, entry, entry + 1)], ["publish_time"])
    return bool(rows.column(0).cast("int64")[0].as_py() < before_ms)


def _skip(draft: Draft, subscription: int, number: int, amount: Amount) -> int:
    view = draft.view
    cursor = view.cursor(subscription, number)
    stop = None
    if amount.before_ms is not None:
        stop = stop_behind(behind_time(view, number, amount.before_ms))
    found = plan(
        view,
        number,
        cursor.mark_delete,
        amount.messages,
        (cursor.acked, cursor.held),
        stop,
        bytes_max=NO_MATTER,
    )
    if found.messages:
        outcome, mark = acked_outcome(view, subscription, number, runs_of(found.pieces))
        draft.ops.append(Acked(subscription, number, outcome, mark, found.messages))
    return found.messages


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

"""Moving dead letters back to the topics that they came from.

A move is one frame: the message in its topic, and its acknowledgement in the dead-letter topic. So
after any crash, and with any number of processes at once, it is in exactly one of the two.

One subscription of the dead-letter topic, RETRIED, records which dead letters were dealt with.
Other subscriptions there lose the message, too: their consumers might move it once more. A message
that a live consumer or a transaction has in hand, on any subscription, stays.

The message goes back for the subscription that gave it up. The same frame acknowledges it on the
other subscriptions of its topic, because these have processed it already.

It is a new message, with a new id, no producer and no sequence id; it keeps key, value, event time
and the properties of the original's sender. Its redelivery count begins at 0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from txlog.base.ids import MessageId, TopicName
from txlog.base.settings import Settings
from txlog.clock import Instant
from txlog.engine.decide.consuming import dead_letters
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.decide.sending.send import DeliveryTimes, count_mismatched, times_of
from txlog.engine.folds import catalog as catalogs
from txlog.engine.folds.catalog import Subscription, Topic, index_of, number_of, numbers
from txlog.engine.model.idset import Id, covers
from txlog.engine.model.ops import Acked, Appended, Run
from txlog.engine.model.schema import PROPERTY_MAP
from txlog.engine.plan.ack_sets import acked_outcome, merged, messages_in, runs_of_table
from txlog.engine.plan.participants import check_available
from txlog.engine.plan.reading.dispatch import still_pending
from txlog.engine.plan.records import stamped_back, stamped_copies
from txlog.engine.plan.route import Routed, partition_of_key, route
from txlog.engine.view import View
from txlog.errors import InvalidArgument

RETRIED: Final = "dlq"  # the subscription whose unacknowledged messages are the dead letters
RETRIES: Final = "DLQ_RETRIES"  # the property that counts how often a message was moved back
# the properties that a dead letter adds to the original's properties
MARKS: Final = (
    dead_letters.REAL_TOPIC,
    dead_letters.REAL_SUBSCRIPTION,
    dead_letters.ORIGIN_MESSAGE_ID,
    dead_letters.SCHEMA,
    dead_letters.RECONSUMETIMES,
    dead_letters.DELAY_TIME,
    dead_letters.REDELIVERY_COUNT,
    dead_letters.EXCEPTION,
)
SETTLED: Final = "acknowledged already"
IN_HAND: Final = "in the hand of a consumer or a transaction"
NO_ORIGIN: Final = "its properties name no topic and subscription"
Find = Callable[[View], tuple[Topic, Subscription | None]]


class RetryAnswer(msgspec.Struct, frozen=True, gc=False):
    """The messages that a frame moves back, and those that stay, by the reason."""

    moved: int
    left: dict[str, list[MessageId]]


class _Origin(NamedTuple):
    """Where a dead letter came from; subscription: the one that gave it up, None: any."""

    topic: Topic
    subscription: Subscription | None


class _Frame(NamedTuple):
    """The objects that the steps of one decision share."""

    draft: Draft
    settings: Settings
    dead: Topic


def retry(
    view: View,
    settings: Settings,
    now: Instant,
    find: Find,
    rows: tuple[int, pa.Table],
    *,
    for_all: bool,
    gone: Collection[int] = (),
) -> Decision[RetryAnswer]:
    """Decide to move dead letters back; durable.

    find:    the dead-letter topic and its subscription RETRIED; None: a rehearsal, before it exists
    rows:    a partition of it (its store-wide number) and messages as RECEIVED
    for_all: all subscriptions of the topic get the message again, not only the one that gave it up
    gone:    consumers that are dead, whose leases count no more
    raises:  PartitionUnavailable (of either topic), InvalidMessage (its policies refuse the delay)
    """
    dead, subscription = find(view)
    number, table = rows
    check_available(view, dead, number)
    staying_ids: dict[str, list[MessageId]] = {}
    groups: dict[int, list[tuple[int, _Origin]]] = {}
    all_properties = table.column("properties").to_pylist()
    ids = message_ids(table)
    for at, (message_id, properties) in enumerate(zip(ids, all_properties, strict=True)):
        origin: _Origin | str | None = staying(view, dead, subscription, number, message_id, gone)
        origin = origin or origin_of(view, dict(properties or ()), for_all=for_all)
        if isinstance(origin, str):
            staying_ids.setdefault(origin, []).append(message_id)
        else:
            groups.setdefault(origin.topic.number, []).append((at, origin))
    if not groups:
        return Decision([], None, True, RetryAnswer(0, staying_ids))
    frame = _Frame(Draft(view, settings, now.wall_ms), settings, dead)
    pieces: list[pa.RecordBatch] = []
    for group in groups.values():
        chosen = table.take(pa.array([at for at, _ in group], pa.int64()))
        part = _append(frame, chosen, [origin for _, origin in group], sum(map(len, pieces)))
        if isinstance(part, Decision):
            return part
        pieces.append(part)
    moved = table.take(pa.array(sorted(at for g in groups.values() for at, _ in g), pa.int64()))
    for owner in dead.subscriptions:
        runs = still_pending(view, number, view.cursor(owner, number), runs_of_table(moved))
        _acknowledge(frame.draft, owner, number, runs)
    joined = pa.Table.from_batches(pieces).combine_chunks().to_batches()[0]
    return Decision(frame.draft.ops, joined, True, RetryAnswer(moved.num_rows, staying_ids))


def message_ids(table: pa.Table) -> list[MessageId]:
    """The ids of rows of RECEIVED."""
    columns = [table.column(name).to_pylist() for name in ("ledger", "entry", "index")]
    places = zip(*columns, strict=True)
    return [MessageId(ledger, entry, index or 0) for ledger, entry, index in places]


def holders(view: View, dead: Topic) -> set[int]:
    """The consumers, alive or dead, that have messages of a dead-letter topic in hand."""
    return {
        consumer
        for subscription in dead.subscriptions
        for number in numbers(dead)
        for consumer in view.cursor(subscription, number).leases.by_consumer
    }


def staying(
    view: View,
    dead: Topic,
    retried: Subscription | None,
    number: int,
    message_id: MessageId,
    gone: Collection[int],
) -> str | None:
    """Why a dead letter cannot be moved now; None: it can."""
    letter: Id = (message_id.ledger, message_id.entry, message_id.index)
    if retried is not None:
        cursor = view.cursor(retried.number, number)
        if covers(cursor.mark_delete, letter) or letter in cursor.acked:
            return SETTLED
    for subscription in dead.subscriptions:
        cursor = view.cursor(subscription, number)
        if letter in cursor.held:
            return IN_HAND
        for consumer, lease in cursor.leases.by_consumer.items():
            if letter in lease.ids and consumer not in gone:
                return IN_HAND
    return None


def origin_of(view: View, properties: Mapping[str, str], *, for_all: bool) -> _Origin | str:
    """The topic and subscription that a dead letter came from; a text: why it cannot go back."""
    name = properties.get(dead_letters.REAL_TOPIC)
    if name is None:
        return NO_ORIGIN
    try:
        topic = origin_topic(view, name, properties)
    except InvalidArgument:
        return NO_ORIGIN
    if topic is None:
        return f"topic {name} was deleted"
    if for_all:
        return _Origin(topic, None)
    subscription = properties.get(dead_letters.REAL_SUBSCRIPTION)
    if subscription is None:
        return NO_ORIGIN
    record = catalogs.find_subscription(view.catalog, topic, subscription)
    if record is None:
        return f"subscription {subscription} of {name} was deleted"
    return _Origin(topic, record)


def origin_topic(view: View, name: str, properties: Mapping[str, str]) -> Topic | None:
    """The topic that had this name when it gave a letter up; raises InvalidArgument (the name).

    If that topic was renamed since, another topic may have its name. A letter has the id of its
    original, and a ledger belongs to one topic for ever.
    """
    full = TopicName.parse(name, allow_partition=True).topic.full
    owner = _owner_of(view, properties.get(dead_letters.ORIGIN_MESSAGE_ID, ""))
    if owner is not None and catalogs.has_partition(view.catalog, owner):
        topic = catalogs.topic_of(view.catalog, owner)
        if full in topic.former:
            return topic
    by_name = catalogs.find_topic(view.catalog, full)
    return catalogs.find_renamed(view.catalog, full) if by_name is None else by_name


def _owner_of(view: View, message_id: str) -> int | None:
    """The partition of a message; None: no topic of the store has its ledger."""
    try:
        owner = view.catalog.owners.get(MessageId.parse(message_id).ledger)
    except InvalidArgument:
        return None
    return None if owner is None else owner[0]


def _append(
    frame: _Frame, table: pa.Table, origins: list[_Origin], row_start: int
) -> pa.RecordBatch | Decision[RetryAnswer]:
    """Add the messages of one topic to the frame; returns their rows, or the refusal."""
    draft, view, target = frame.draft, frame.draft.view, origins[0].topic
    routed = route(copies(view, target, table), target.partitions, 0, dead_letters.NO_LIMIT)
    delays = DeliveryTimes(view, frame.settings, target, draft.now_ms)
    routed = stamped_copies(view, frame.settings, frame.dead, target, table, routed)
    schemas = [
        dict(row or ()).get(dead_letters.SCHEMA) for row in table.column("properties").to_pylist()
    ]
    routed = delays.resolved(stamped_back(target, schemas, routed))
    at = row_start
    for part in routed.slices:
        number = number_of(target, part.partition)
        check_available(view, target, number)
        ledger, first = draft.take_entries(number, "p", part.rows)
        rows = routed.batch.slice(part.row_start, part.rows)
        delays.check(number, rows)
        place = (number, ledger, first, at, part.rows, part.payload_bytes)
        draft.ops.append(Appended(*place, times=times_of(rows)))
        count_mismatched(draft, target, number, rows, is_moved=True)
        at += part.rows
        for subscription in target.subscriptions:
            runs = _for_others(routed, part.row_start, part.rows, origins, subscription)
            shifted = [(ledger, first + low, first + high, 0, 0) for _, low, high, _, _ in runs]
            _acknowledge(draft, subscription, number, shifted)
    refusal: Decision[RetryAnswer] | None = delays.refusal()
    if refusal is not None:
        return refusal
    draft.ops += delays.warnings()
    return routed.batch


def _for_others(
    routed: Routed, start: int, rows: int, origins: list[_Origin], subscription: int
) -> list[Run]:
    """The rows of a slice that this subscription is not to get again, as runs of places."""
    order = range(len(origins)) if routed.order is None else routed.order.to_pylist()
    return merged(
        {
            (0, at - start, 0)
            for at in range(start, start + rows)
            if (owner := origins[order[at]].subscription) is not None
            and owner.number != subscription
        }
    )


def _acknowledge(draft: Draft, subscription: int, number: int, runs: list[Run]) -> None:
    if not runs:
        return
    view = draft.view
    settled = draft.settled(subscription, number)
    outcome, mark = acked_outcome(view, subscription, number, runs, settled)
    count = messages_in(view, number, runs)
    draft.ops.append(Acked(subscription, number, outcome, mark, count))


def copies(view: View, target: Topic, table: pa.Table) -> pa.RecordBatch:
    """Dead letters as their topic gets them: routed as the originals were.

    A message with a key goes to the partition of the key. Any other message goes to the partition
    of the original, or to the first partition if the original was trimmed.
    """
    keys = table.column("key").to_pylist()
    properties: list[list[tuple[str, str]]] = []
    partitions: list[int] = []
    for key, pairs in zip(keys, table.column("properties").to_pylist(), strict=True):
        marked = dict(pairs or ())
        unmarked = {name: text for name, text in marked.items() if name not in MARKS}
        unmarked[RETRIES] = str(1 + retries_of(marked))
        properties.append(list(unmarked.items()))
        partitions.append(
            _partition_of(view, target, marked.get(dead_letters.ORIGIN_MESSAGE_ID, ""))
            if key is None
            else partition_of_key(key, target.partitions)
        )
    return pa.RecordBatch.from_arrays(
        [
            table.column("key").combine_chunks(),
            table.column("value").combine_chunks(),
            pa.array(properties, PROPERTY_MAP),
            table.column("event_time").combine_chunks(),
            pa.array(partitions, pa.int64()),
        ],
        ["key", "value", "properties", "event_time", "partition"],
    )


def retries_of(properties: Mapping[str, str]) -> int:
    """How often a message was moved back so far."""
    text = properties.get(RETRIES, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def _partition_of(view: View, topic: Topic, origin: str) -> int:
    owner = _owner_of(view, origin)
    return 0 if owner is None else max(0, index_of(topic, owner))

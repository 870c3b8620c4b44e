"""The ledgers of a partition: the oldest are trimmed, others switch to new files.

A trim drops whole ledgers, and positions in them move on. One frame holds all of it (Law 4): the
ledgers, the sidecar ledgers without a live row, the mark-delete position of every cursor, and the
acknowledgements that open transactions still hold. From then on a trimmed message counts as
DELETED.

    offload     a copy in another place replaces the file of a ledger
    compacted   compacted rows of a topic replace the earlier ones
    sidecar     a compacted or sealed file replaces ledgers of a sidecar; open ledgers roll over

Files are copied or made without the write lock, from a state that may be out of date by the time
they exist. So each decision checks again; if a file no longer fits, the answer is False and nothing
happens. One frame switches all partitions of a topic to compacted rows, so that they show the state
at one LSN.
Source: Pulsar's topic compaction; spec/transactions 12, spec/reliability R17, R18.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from txlog.base.ids import MessageId, TopicName
from txlog.base.ranges import Bound
from txlog.base.settings import Settings
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.folds import buffer as buffers
from txlog.engine.folds.catalog import Topic, has_partition, number_of
from txlog.engine.folds.topic import LedgerEnd
from txlog.engine.folds.topic import Topic as TopicState
from txlog.engine.model.idset import IdSet, covers
from txlog.engine.model.ops import (
    Compacted,
    CursorTrimmed,
    LedgerReserved,
    LedgerRolled,
    LedgerSealed,
    LedgerTrimmed,
    Mark,
    Offloaded,
    PartitionCompacted,
    PlaceAdded,
    Run,
)
from txlog.engine.plan.ack_sets import above_mark, advanced, messages_in, subtract, through
from txlog.engine.plan.clock_trust import trusted
from txlog.engine.plan.participants import unavailable_error
from txlog.engine.plan.policies import RetentionPolicy, retention_policy
from txlog.engine.plan.reading.ranges import partition_of, resolve_bound
from txlog.engine.storage.segment import FileRef
from txlog.engine.view import View
from txlog.errors import Refused

# --- trimming -------------------------------------------------------------------------------------

# The policies of a topic: keep this long, keep this many bytes, keep until acknowledged by all;
# acknowledge older messages (upkeep/space/retention); compact by key (…/topic_compaction).
POLICIES = (
    "retention_ms", "retention_bytes", "retention_acked", "ttl_ms", "compaction_threshold_bytes",
)  # fmt: skip


@dataclass(slots=True)
class TrimmedPartition:
    """The result of a trim for one partition; unacked: a subscription had not acknowledged them."""

    partition: int
    first_before: MessageId | None = None
    first_after: MessageId | None = None
    ledgers: int = 0
    messages: int = 0
    size_bytes: int = 0
    unacked: int = 0


@dataclass(slots=True)
class TrimAnswer:
    """The result of a trim for a topic."""

    topic: str
    partitions: list[TrimmedPartition] = field(default_factory=list)

    def total(self, name: str) -> int:
        """The sum of a count over the partitions."""
        return sum(getattr(row, name) for row in self.partitions)


def trim(
    view: View,
    settings: Settings,
    now: Instant,
    topic: Topic,
    to: Bound | None,
    *,
    force_unacked: bool = False,
    careful: bool = False,
) -> Decision[TrimAnswer]:
    """Decide to trim whole ledgers before a bound; None: those that no policy of the topic keeps.

    careful: stop before the first ledger with unacknowledged messages; skip unavailable partitions
    returns: a TrimAnswer, durable
    raises:  Refused (902) if it would drop unacknowledged messages, PartitionUnavailable
    """
    draft = Draft(view, settings, now.wall_ms)
    answer = TrimAnswer(TopicName.parse(topic.name).short)
    policy = retention_policy(view, settings, topic)
    only = None
    if to is not None and isinstance(to.value, MessageId):
        only = partition_of(view, topic, to.value)
    states = [view.topic(number_of(topic, index)) for index in range(topic.partitions)]
    is_compacted = any(state.compaction is not None for state in states)
    for index in range(topic.partitions):
        row = TrimmedPartition(index)
        answer.partitions.append(row)
        number = number_of(topic, index)
        ends = states[index].ledgers
        row.first_before = row.first_after = _first(ends)
        if only is not None and index != only:
            continue
        if number in view.catalog.unavailable:
            if careful:
                continue
            raise unavailable_error(view.catalog, topic, number)
        count = (
            min(
                _by_policy(view, policy, topic, number, trusted(view, settings, now).wall_ms),
                _compacted(states[index]) if is_compacted else len(ends),
            )
            if to is None
            else _below(ends, resolve_bound(view, topic, index, to))
        )
        if careful:
            count = _acknowledged(view, topic, number, ends[:count])
        if count:
            _trim_partition(draft, topic, number, count, row)
    unacked = answer.total("unacked")
    if unacked and not force_unacked:
        raise Refused(
            f"{unacked} messages of {answer.topic} that would go are not acknowledged",
            code=902,
            hint="--force-unacked trims them anyway",
            topic=answer.topic,
        )
    return draft.decision(answer, sync=True)


def _first(ends: list[LedgerEnd]) -> MessageId | None:
    return next((MessageId(end.ledger, 0) for end in ends if end.entries), None)


def _below(ends: list[LedgerEnd], mark: Mark) -> int:
    """How many of the oldest ledgers are wholly at or before the mark."""
    count = 0
    for end in ends:
        if not covers(mark, (end.ledger, end.entries - 1, 0)) or (
            end is ends[-1] and not _used(end)
        ):
            break
        count += 1
    return count


def _used(end: LedgerEnd) -> bool:
    return end.entries > 0


def _by_policy(view: View, policy: RetentionPolicy, topic: Topic, number: int, now_ms: int) -> int:
    """How many of the oldest ledgers no policy of the topic keeps."""
    age, size = policy.retention_ms, policy.retention_bytes
    state = view.topic(number)
    acked = 0
    if policy.retention_acked and topic.subscriptions:
        acked = _acknowledged(view, topic, number, state.ledgers[:-1])
    count, bytes_left = 0, state.payload_bytes
    for end in state.ledgers[:-1]:
        bytes_left -= end.payload_bytes
        is_old = age is not None and now_ms - end.last_ms >= age
        is_beyond = size is not None and bytes_left >= size
        if not (is_old or is_beyond or count < acked):
            return count
        count += 1
    last = state.ledgers[-1]
    # an idle partition never rolls over on its own: its last ledger goes once all in it is too old
    return count + (_used(last) and age is not None and now_ms - last.last_ms >= age)


def _compacted(state: TopicState) -> int:
    """How many of the oldest ledgers of a partition the compaction of its topic by key covers.

    A user who compacts a topic wants to keep its newest messages, including those after the
    compaction. Without a compaction the partition was empty then, or was added later.
    """
    if state.compaction is None:
        return 0
    last = state.compaction.horizon
    return sum((end.ledger, end.entries - 1) <= last for end in state.ledgers)


def _acknowledged(view: View, topic: Topic, number: int, ends: list[LedgerEnd]) -> int:
    """How many of the ledgers every subscription has acknowledged completely (mark-delete)."""
    marks = [view.cursor(subscription, number).mark_delete for subscription in topic.subscriptions]
    for count, end in enumerate(ends):
        last = _last_message(view, number, end)
        if last is not None and not all(covers(mark, last) for mark in marks):
            return count
    return len(ends)


def _last_message(view: View, number: int, end: LedgerEnd) -> Mark | None:
    """The last entry of a ledger that is a message, or a marker with messages."""
    buffer = view.buffer(number)
    silent = view.watermark(number).silent.get(end.ledger, ())
    for entry in range(end.entries - 1, -1, -1):
        if entry in silent:
            continue
        marker = buffers.find_marker(buffer, end.ledger, entry)
        if marker is None or marker.count:
            return (end.ledger, entry, 0)
    return None


def _trim_partition(
    draft: Draft, topic: Topic, number: int, count: int, row: TrimmedPartition
) -> None:
    view = draft.view
    ends = view.topic(number).ledgers
    going = ends[:count]
    row.first_after = _first(ends[count:])
    row.ledgers = count
    row.messages = sum(end.messages for end in going)
    row.size_bytes = sum(end.payload_bytes for end in going)
    if count == len(ends):
        draft.roll(number, "p", going[-1].ledger)
    for end in going:
        draft.ops.append(
            LedgerTrimmed(
                number,
                "p",
                end.ledger,
                end.messages,
                end.payload_bytes,
                _last_message(view, number, end),
            )
        )
    draft.ops += dead_ledgers(view, number, {end.ledger for end in going}, draft)
    target: Mark = (going[-1].ledger, going[-1].entries - 1, 0)
    seen = IdSet()
    for subscription in topic.subscriptions:
        cursor = view.cursor(subscription, number)
        for run in through(view, number, cursor.mark_delete, target):
            for unacked in subtract(view, number, run, cursor.acked):
                for fresh in subtract(view, number, unacked, seen):
                    row.unacked += messages_in(view, number, [fresh])
                    seen.add(fresh)
        if not covers(cursor.mark_delete, target):
            draft.ops.append(_cursor_trimmed(view, subscription, number, target))


def _cursor_trimmed(view: View, subscription: int, number: int, target: Mark) -> CursorTrimmed:
    cursor = view.cursor(subscription, number)
    changed: list[tuple[int, int, list[Run], Mark | None, int]] = []
    for pair, pending in cursor.pending.items():
        remaining = [part for run in pending.runs for part in above_mark(view, number, run, target)]
        if remaining != pending.runs:
            cumulative = pending.cumulative
            if cumulative is not None and covers(target, cumulative):
                cumulative = None  # the trim covers all of it
            changed.append((*pair, remaining, cumulative, messages_in(view, number, remaining)))
    mark = advanced(view, subscription, number, target)
    return CursorTrimmed(subscription, number, mark, changed)


def dead_ledgers(
    view: View, number: int, trimmed: set[int], draft: Draft | None = None
) -> list[LedgerRolled | LedgerTrimmed]:
    """The ops that drop sidecar ledgers without a live row, after these ledgers are trimmed.

    draft: also close the open ledger, to drop it; None: drop only closed ledgers
    """
    state = view.buffer(number)
    used = {
        part[0]
        for of in state.held.values()
        for transaction in of.values()
        for part in transaction.ranges
    }
    for ledger, markers in state.markers.items():
        if ledger not in trimmed:
            used |= {part[0] for marker in markers for part in marker.ranges}
    ends = state.ledgers[:-1]
    out: list[LedgerRolled | LedgerTrimmed] = []
    if draft is not None and state.ledgers:
        last = state.ledgers[-1]
        if last.entries and last.ledger not in used:
            out.append(LedgerRolled(number, "s", last.ledger, draft.new_ledger()))
            ends = state.ledgers
    out += [
        LedgerTrimmed(number, "s", end.ledger, 0, end.payload_bytes)
        for end in ends
        if end.ledger not in used
    ]
    return out


# --- other files ----------------------------------------------------------------------------------


def add_place(view: View, location: str) -> Decision[None]:
    """Decide that the store may put files into a place; durable before the first upload."""
    if location in view.catalog.places:
        return Decision([], None, True)
    return Decision([PlaceAdded(location)], None, True)


def offload(view: View, partition: int, old: FileRef, new: FileRef) -> Decision[bool]:
    """Decide that a copy in another place replaces the file; answers whether it does."""
    is_same = has_partition(view.catalog, partition) and view.files.of(old.ledger) == [old]
    if not is_same:
        return Decision([], None, True, False)
    return Decision([Offloaded(partition, new)], None, True, True)


# --- compaction by key -----------------------------------------------------------------------


def reserve(view: View, partition: int) -> Decision[int]:
    """Decide the id of a ledger of compacted rows; 0 when the topic was deleted since."""
    if not has_partition(view.catalog, partition):
        return Decision([], None, True, 0)
    ledger = view.catalog.next_ledger
    return Decision([LedgerReserved(partition, "c", ledger)], None, True, ledger)


def switch_compacted(view: View, ops: Sequence[PartitionCompacted]) -> Decision[bool]:
    """Decide that files hold the compacted rows of partitions; answers whether they do."""
    for op in ops:
        if not has_partition(view.catalog, op.partition):
            return Decision([], None, True, False)
        compaction = view.topic(op.partition).compaction
        if ([] if compaction is None else compaction.ledgers) != op.old:
            return Decision([], None, True, False)
    return Decision([*ops], None, True, True)


# --- files of sidecars ----------------------------------------------------------------------------


RowMove = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class SidecarReplacement:
    """A published file and the ledgers that it replaces.

    old:   (ledger, whether it was sealed when the file was made)
    moved: as in ops.Compacted
    """

    partition: int
    old: list[tuple[int, bool]]
    file: FileRef
    payload_bytes: int
    moved: list[RowMove]


def roll_dead(view: View, numbers: Iterable[int], draft: Draft) -> Decision[None]:
    """Decide to close the open ledgers of sidecars that hold dead rows."""
    for number in numbers:
        ends = view.buffer(number).ledgers
        if ends and ends[-1].dead_bytes:
            draft.ops.append(LedgerRolled(number, "s", ends[-1].ledger, draft.new_ledger()))
    return draft.decision()


def drop_dead(view: View, number: int) -> Decision[int]:
    """Decide to drop closed sidecar ledgers without a live row; answers how many."""
    ops = dead_ledgers(view, number, set())
    return Decision([*ops], None, True, len(ops))


def reserve_ledger(view: View, number: int) -> Decision[int]:
    """Decide the id of a new sidecar ledger, which only the switch uses.

    answers: the id; 0 if the topic was deleted since
    """
    if not has_partition(view.catalog, number):
        return Decision([], None, True, 0)
    ledger = view.catalog.next_ledger
    return Decision([LedgerReserved(number, "s", ledger)], None, True, ledger)


def switch_sidecar(view: View, compacted: SidecarReplacement) -> Decision[bool]:
    """Decide that a compacted file replaces its ledgers; answers whether it does.

    Transactions that ended since the file was written may be in either place: order comes from
    markers.
    """
    state = view.buffer(compacted.partition)
    closed = {end.ledger: end.sealed for end in state.ledgers[:-1]}
    if any(closed.get(ledger) is not sealed for ledger, sealed in compacted.old):
        return Decision([], None, True, False)
    old = [ledger for ledger, _ in compacted.old]
    op = Compacted(
        compacted.partition, old, compacted.file, compacted.payload_bytes, compacted.moved
    )
    return Decision([op], None, True, True)


def seal(view: View, op: LedgerSealed) -> Decision[bool]:
    """Decide that a sealed file replaces a ledger; answers whether it does.

    For a sidecar it compares the live rows, because a trim may have dropped some since the file was
    written.
    """
    number, ledger = op.partition, op.file.ledger
    state = view.topic(number) if op.role == "p" else view.buffer(number)
    if not any(end.ledger == ledger and not end.sealed for end in state.ledgers[:-1]):
        return Decision([], None, True, False)
    if op.role == "s":
        rows = buffers.live_rows(view.buffer(number)).get(ledger, 0)
        if rows != op.file.rows:
            return Decision([], None, True, False)
    return Decision([op], None, True, True)

"""Adopting staged files: ids for them, then the one frame that makes them ledgers of a topic.

    recorded   was this batch stored before? then that answer is given, and nothing happens
    reserve    an id for each file, in a durable frame; the files are linked under it
    append     or one frame with the rows of a small batch: there are no files, nothing is reserved
    adopt      one frame: the key is connected, a transaction opened and committed, each file
               becomes a closed ledger after the open one, another is opened, the batch is noted

Ids are taken last, because positions compare by id: a ledger whose id was taken before others moved
on could appear behind readers that have already passed it. An id that is below one of the
partition's ledgers by now is therefore not used, and new ones are requested.
Source: spec/analytics 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from txlog.base.ids import TopicName
from txlog.base.settings import Settings
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.decide.sending.deliver_at import Delays
from txlog.engine.decide.sending.send import Outgoing, send_into
from txlog.engine.decide.transactions.enter import NewTxn, open_txn
from txlog.engine.decide.transactions.keys import check_key, connect_ops, find_owner, home
from txlog.engine.decide.transactions.resolve import release_key
from txlog.engine.folds import transaction_key as keys
from txlog.engine.folds.catalog import Topic, number_of, schema_of
from txlog.engine.folds.coordinator import COMMITTED, COMMITTING, OPEN, Txn
from txlog.engine.model.ops import (
    NEW_HOLDER,
    Adopted,
    Batch,
    BatchRecorded,
    DelaysCounted,
    KeyBound,
    LedgerReserved,
    PartitionAdded,
    SchemaMismatched,
    StatusUpdated,
)
from txlog.engine.plan.lookup import live_topic
from txlog.engine.plan.participants import check_available
from txlog.engine.plan.records import ENFORCE, typing_of
from txlog.engine.plan.route import Routed
from txlog.engine.plan.staging import Staged
from txlog.engine.storage.segment import FileRef
from txlog.engine.view.view import View
from txlog.errors import InvalidArgument, LimitExceeded, NotAllowed

NAMES_MAX = 10_000
NAME_BYTES_MAX = 1_024
DONE, BEFORE, AGAIN = "done", "before", "again"
QUERY = "query:"  # begins the name under which a key records whose it is
Owner = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Recorded:
    """A batch that is stored; what: None for a number below the last one.

    coordinator: of its transaction
    """

    coordinator: int
    what: Batch | None


@dataclass(frozen=True, slots=True)
class Adoption:
    """What to adopt: files in the order of their ledgers, with their final names.

    topic: its number; query: of a stream, the id of its checkpoint
    """

    topic: int
    key: str
    batch: int | str
    staged: Sequence[Staged]
    files: Sequence[FileRef]
    query: str = ""


def check_token(key: str, batch: int | str) -> None:
    """Raises InvalidArgument for what cannot name a batch."""
    check_key(key)
    if isinstance(batch, bool) or not isinstance(batch, int | str):
        raise InvalidArgument(f"a batch is a number or a name, not {type(batch).__name__}")
    if isinstance(batch, int):
        if not 0 <= batch < 1 << 63:
            raise InvalidArgument(f"batch {batch} is not a number from 0 up", code=203)
        return
    try:
        size = len(batch.encode())
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= NAME_BYTES_MAX:
        raise InvalidArgument(f"the name of a batch has 1 to {NAME_BYTES_MAX} bytes", code=202)


def recorded(
    view: View,
    settings: Settings,
    caller: Owner,
    topic: int,
    key: str,
    batch: int | str,
    query: str = "",
) -> Recorded | None:
    """The batch if it was stored under this key and for this topic.

    query:  of a stream: its id; a key that has batches of one is for that one
    raises: NotAllowed: the key is that of another topic, or of another stream
    """
    uid, _ = find_owner(view, caller, None)
    number = home(view, settings, uid, key)
    known = keys.find(view.keys(number), uid, key)
    if known is None:
        return None
    _check_key(view, known, topic, key, batch)
    if query:
        _check_query(known, key, batch, query)
    if isinstance(batch, str):
        found = known.names.get(batch)
        return None if found is None else Recorded(number, found)
    if known.last is None or batch > known.batch:
        return None
    return Recorded(number, known.last if batch == known.batch else None)


def _check_key(view: View, known: keys.Key, topic: int, key: str, batch: int | str) -> None:
    """A key is for one topic; older versions let names be of several, which go on as they are."""
    if known.last is not None:
        _check_topic(view, known.last, topic, key, known.batch)
    if isinstance(batch, str) and batch in known.names:
        _check_topic(view, known.names[batch], topic, key, batch)
    elif all(found.topic != topic for found in known.names.values()):
        for name, found in known.names.items():
            if found.topic in view.catalog.topics:
                _check_topic(view, found, topic, key, name.removeprefix(QUERY))


def _check_query(known: keys.Key, key: str, batch: int | str, query: str) -> None:
    """The numbers of a new checkpoint begin at 0: they would be taken for those stored before."""
    owners = [name for name in known.names if name.startswith(QUERY)]
    last = known.batch
    if owners:
        is_ours = QUERY + query in owners
    else:  # stored by an older version: a query repeats its last batch at most
        is_ours = known.last is None or isinstance(batch, str) or batch >= last
    if not is_ours:
        what = f"batches up to {last}" if last >= 0 else "batches"
        raise NotAllowed(
            f"{key} has stored {what} of another checkpoint",
            hint="start from that checkpoint; for a new one choose a new txnAppId or transaction"
            " key, since its first batches would be taken for those",
            transaction_key=key,
        )


def _check_topic(view: View, found: Batch, topic: int, key: str, batch: int | str) -> None:
    """One key for two topics would let the second batch of a number vanish."""
    if found.topic == topic:
        return
    other = view.catalog.topics.get(found.topic)
    name = "a topic that was deleted" if other is None else TopicName.parse(other.name).short
    raise NotAllowed(
        f"transaction key {key} has stored batch {batch} in {name}",
        hint="use a key for each topic",
        transaction_key=key,
    )


def reserve(view: View, topic: int, staged: Sequence[Staged]) -> Decision[list[int]]:
    """Decide an id for each file, rising in their order; durable before answered.

    raises: TopicNotFound, NotAllowed (partitions were added)
    """
    found = _checked(view, topic, staged)
    first = view.catalog.next_ledger
    ops = [
        LedgerReserved(number_of(found, one.partition), "p", first + at)
        for at, one in enumerate(staged)
    ]
    return Decision([*ops], None, True, [op.ledger for op in ops])


def adopt(
    view: View, settings: Settings, now: Instant, caller: Owner, wanted: Adoption
) -> Decision[str]:
    """Decide that the files are messages of the topic; durable before answered.

    returns: one of DONE, BEFORE (it was stored already), AGAIN (an id has become too low)
    raises:  TopicNotFound, NotAllowed (partitions were added, a batch of another topic),
             PartitionUnavailable, InvalidMessage (a delay above the maximum), LimitExceeded
             (unfinished transactions, names of batches)
    """
    key, batch = wanted.key, wanted.batch
    if recorded(view, settings, caller, wanted.topic, key, batch, wanted.query) is not None:
        return Decision([], None, True, BEFORE)
    topic = _checked(view, wanted.topic, wanted.staged)
    places: dict[int, tuple[int, int]] = {}  # by partition: first ledger, messages
    for one, file in zip(wanted.staged, wanted.files, strict=True):
        number = number_of(topic, one.partition)
        check_available(view, topic, number)
        if file.ledger <= view.topic(number).ledgers[-1].ledger:
            return Decision([], None, False, AGAIN)
        first, messages = places.get(number, (file.ledger, 0))
        places[number] = (first, messages + file.rows)
    refusal, warnings = _delays(view, settings, now, topic, wanted)
    if refusal is not None:
        return refusal
    draft = Draft(view, settings, now.wall_ms)
    _commit(draft, now, find_owner(view, caller, None), wanted, places)
    draft.ops += warnings
    return draft.decision(DONE, sync=True)


def _count_mismatched(draft: Draft, topic: Topic, partition: int, staged: Staged) -> None:
    """Count what does not fit the schema; raises NotAllowed where that is not to be stored."""
    typing = typing_of(draft.view, draft.settings, topic) if topic.schemas else None
    if typing is None:
        return
    count = staged.mismatched if staged.file.record else staged.file.rows
    if typing.mode == ENFORCE:
        raise NotAllowed(
            f"topic {typing.topic} has a schema by now, which the batch was not checked against",
            hint="write it again",
            topic=typing.topic,
        )
    draft.ops.append(SchemaMismatched(partition, count))


def _checked(view: View, number: int, staged: Sequence[Staged]) -> Topic:
    topic = live_topic(view, number, "of this batch")
    written = {one.file.record for one in staged} - {0} if schema_of(topic) is not None else set()
    if any(topic.schemas[version - 1].deleted for version in written):
        raise NotAllowed(
            f"topic {TopicName.parse(topic.name).short} has lost the schema that the batch was"
            " written by",
            hint="write it again",
        )
    if any(one.partitions != topic.partitions for one in staged):
        raise NotAllowed(
            f"{TopicName.parse(topic.name).short} has {topic.partitions} partitions by now, the "
            f"batch was routed over {staged[0].partitions}",
            hint="write it again",
            topic=TopicName.parse(topic.name).short,
        )
    return topic


def _delays(
    view: View, settings: Settings, now: Instant, topic: Topic, wanted: Adoption
) -> tuple[Decision[Any] | None, list[DelaysCounted]]:
    delays = Delays(view, settings, topic, now.wall_ms)
    for one in wanted.staged:
        if one.times is not None:
            times = pa.Array.from_buffers(
                pa.int64(), one.file.rows, [None, pa.py_buffer(one.times)]
            )
            delays.check_times(number_of(topic, one.partition), times)
    return delays.refusal(), delays.warnings()


def append(
    view: View,
    settings: Settings,
    now: Instant,
    caller: Owner,
    wanted: Adoption,
    routed: Routed,
) -> Decision[str]:
    """Decide that the rows of a small batch are messages of the topic; durable before answered.

    They are plain messages behind those that are there, in the same ledgers: a file of each small
    batch would stay for as long as its messages. The transaction of the batch has nothing in it.
    wanted:  without files
    returns: DONE or BEFORE
    raises:  as adopt
    """
    key, batch = wanted.key, wanted.batch
    if recorded(view, settings, caller, wanted.topic, key, batch, wanted.query) is not None:
        return Decision([], None, True, BEFORE)
    topic = _checked(view, wanted.topic, wanted.staged)
    draft = Draft(view, settings, now.wall_ms)
    sent = send_into(draft, now, Outgoing(topic, routed, None), 0)
    if isinstance(sent, Decision):
        return sent
    holder = find_owner(view, caller, None)
    txn = _opened(draft, now, holder, wanted)
    draft.ops.append(StatusUpdated(txn.coordinator, txn.sequence, OPEN, COMMITTING))
    places = [(number_of(topic, one.partition), one.ledger, one.rows) for one in sent.stored]
    _record(draft, now, holder, wanted, txn, places)
    decision = draft.decision(DONE, sync=True)
    decision.batch = sent.rows
    return decision


def _commit(
    draft: Draft, now: Instant, holder: Owner, wanted: Adoption, places: dict[int, tuple[int, int]]
) -> None:
    """Add the ops: the transaction, the files, its end, the record."""
    txn = _opened(draft, now, holder, wanted)
    pair = (txn.coordinator, txn.sequence)
    draft.ops += [PartitionAdded(*pair, partition) for partition in sorted(places)]
    total = sum(messages for _, messages in places.values())
    rows = [(partition, *places[partition]) for partition in sorted(places)]
    shown = [(partition, ledger, 0, messages) for partition, ledger, messages in rows]
    draft.ops.append(StatusUpdated(*pair, OPEN, COMMITTING, None, total, 0, shown))
    topic = draft.view.catalog.topics[wanted.topic]
    last: dict[int, FileRef] = {}
    for one, file in zip(wanted.staged, wanted.files, strict=True):
        partition = number_of(topic, one.partition)
        draft.ops.append(Adopted(partition, file, one.payload_bytes, one.time_ms, one.times))
        if one.mismatched or not file.record:
            _count_mismatched(draft, topic, partition, one)
        last[partition] = file
    for partition, file in sorted(last.items()):
        draft.roll_behind(partition, (file.ledger, file.rows - 1))
    _record(draft, now, holder, wanted, txn, rows)


def _opened(draft: Draft, now: Instant, holder: Owner, wanted: Adoption) -> Txn:
    """Connect the key and open the transaction of the batch."""
    key, batch = wanted.key, wanted.batch
    connected, freed = connect_ops(draft, now, holder, key, NEW_HOLDER)
    number, uid = connected.coordinator, holder[0]
    known = keys.find(draft.view.keys(number), uid, key)
    if isinstance(batch, str) and known is not None and len(known.names) >= NAMES_MAX:
        raise LimitExceeded(
            f"transaction key {key} has {NAMES_MAX} batches with a name",
            hint="use another key, or number the batches",
            limit=NAMES_MAX,
            value=NAMES_MAX + 1,
        )
    new = NewTxn(holder, now, draft.settings.txn_timeout_default_ms, number)
    txn = open_txn(draft, new, key=key, epoch=connected.epoch, freed=freed)
    draft.ops.append(KeyBound(number, uid, key, connected.epoch, txn.sequence))
    return txn


def _record(
    draft: Draft,
    now: Instant,
    holder: Owner,
    wanted: Adoption,
    txn: Txn,
    places: list[tuple[int, int, int]],
) -> None:
    """End the transaction, which is committing, and note the batch."""
    draft.ops.append(StatusUpdated(txn.coordinator, txn.sequence, COMMITTING, COMMITTED))
    release_key(draft, txn)
    answer = Batch(
        wanted.topic,
        txn.sequence,
        sum(messages for _, _, messages in places),
        sum(one.payload_bytes for one in wanted.staged),
        len(wanted.files),
        now.wall_ms,
        places,
    )
    number, uid = txn.coordinator, holder[0]
    draft.ops.append(BatchRecorded(number, uid, wanted.key, wanted.batch, answer))
    if wanted.query:
        known = keys.find(draft.view.keys(number), uid, wanted.key)
        whose = QUERY + wanted.query
        if known is None or whose not in known.names:
            draft.ops.append(BatchRecorded(number, uid, wanted.key, whose, answer))

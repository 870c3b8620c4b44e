"""Adopting staged files: ids for them, then the one frame that makes them ledgers of a topic.

    recorded   finds a batch that was stored before: then nothing is written
    reserve    an id for each file, in a durable frame; the caller links the files under it
    adopt      one frame: the key is connected, a transaction opened and committed, each file
               becomes a closed ledger after the open one, another is opened, the batch is noted
    append     instead of the last two, one frame with the rows of a small batch, without files

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
from txlog.engine.decide.sending.send import DeliveryTimes, OutgoingBatch, send_into
from txlog.engine.decide.transactions.keys import check_key, connect_ops, find_owner, home
from txlog.engine.decide.transactions.transaction import NewTxn, open_txn, release_key
from txlog.engine.folds import transaction_key as keys
from txlog.engine.folds.catalog import Topic, number_of, schema_of
from txlog.engine.folds.coordinator import COMMITTED, Txn
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
    TxnEnded,
    merged,
)
from txlog.engine.plan.lookup import live_topic
from txlog.engine.plan.participants import check_available
from txlog.engine.plan.records import ENFORCE, typing_of
from txlog.engine.plan.route import Routed
from txlog.engine.plan.staging import Staged
from txlog.engine.storage.segment import FileRef
from txlog.engine.view import View
from txlog.errors import InvalidArgument, LimitExceeded, NotAllowed, TryAgain

NAMES_MAX = 10_000
NAME_BYTES_MAX = 1_024
DONE, BEFORE, AGAIN = "done", "before", "again"
QUERY = "query:"  # prefix of the name under which a key records its topic
Owner = tuple[int, str]


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A stored batch.

    coordinator: the number of its transaction's coordinator
    what:        its record; None for a number below the last: only the last is kept
    """

    coordinator: int
    what: Batch | None


@dataclass(frozen=True, slots=True)
class Adoption:
    """What to adopt: files in the order of their ledgers, with their final names.

    topic: its number; query: the id of the stream's checkpoint, empty without a stream
    after: the number of the batch that must be the last one under the key, -1: none is; None: any
    copies: the rows are messages of another topic, and are never refused for their values
    """

    topic: int
    key: str
    batch: int | str
    staged: Sequence[Staged]
    files: Sequence[FileRef]
    query: str = ""
    after: int | None = None
    copies: bool = False


def check_token(key: str, batch: int | str) -> None:
    """Raises InvalidArgument for a value that cannot name a batch."""
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
) -> StoredBatch | None:
    """The batch if it was stored under this key and for this topic.

    query: the id of the stream; a key with batches of one stream belongs to that stream
    raises: NotAllowed: the key belongs to another topic or another stream
    """
    uid, _ = find_owner(view, caller, None)
    number = home(view, settings, uid, key)
    key_record = keys.find(view.keys(number), uid, key)
    if key_record is None:
        return None
    _check_key(view, key_record, topic, key, batch)
    if query:
        _check_query(key_record, key, batch, query)
    if isinstance(batch, str):
        stored = key_record.names.get(batch)
        return None if stored is None else StoredBatch(number, stored)
    if key_record.last is None or batch > key_record.batch:
        return None
    return StoredBatch(number, key_record.last if batch == key_record.batch else None)


def names_of(view: View, caller: Owner, topic: int, prefix: str) -> list[tuple[str, str]]:
    """(key, name) of each batch of the topic whose name has a prefix, under any key of the user."""
    uid, _ = find_owner(view, caller, None)
    return [
        (key, name)
        for number in view.known_coordinators()
        for key, record in view.keys(number).of.get(uid, {}).items()
        for name, stored in record.names.items()
        if stored.topic == topic and name.startswith(prefix)
    ]


def last_number(view: View, settings: Settings, caller: Owner, topic: int, key: str) -> int | None:
    """The number of the last batch under a key for this topic; None: no batch has a number.

    raises: NotAllowed: the key belongs to another topic
    """
    uid, _ = find_owner(view, caller, None)
    key_record = keys.find(view.keys(home(view, settings, uid, key)), uid, key)
    if key_record is None or key_record.last is None:
        return None
    _check_key(view, key_record, topic, key, key_record.batch)
    return key_record.batch


def _check_after(view: View, settings: Settings, caller: Owner, adoption: Adoption) -> None:
    """Refuse a batch that does not follow the last one: its rows may be in a batch in between."""
    if adoption.after is None:
        return
    last = last_number(view, settings, caller, adoption.topic, adoption.key)
    if (-1 if last is None else last) != adoption.after:
        raise TryAgain(
            f"another process has stored a batch under key {adoption.key}: nothing was stored",
            hint="go on behind the last batch",
            transaction_key=adoption.key,
        )


def _check_key(view: View, key_record: keys.Key, topic: int, key: str, batch: int | str) -> None:
    """Refuse a second topic for a key. Older versions allowed it for names; those stay valid."""
    if key_record.last is not None:
        _check_topic(view, key_record.last, topic, key, key_record.batch)
    if isinstance(batch, str) and batch in key_record.names:
        _check_topic(view, key_record.names[batch], topic, key, batch)
    elif all(stored.topic != topic for stored in key_record.names.values()):
        for name, stored in key_record.names.items():
            if stored.topic in view.catalog.topics:
                _check_topic(view, stored, topic, key, name.removeprefix(QUERY))


def _check_query(key_record: keys.Key, key: str, batch: int | str, query: str) -> None:
    """Refuse another checkpoint: its numbers begin at 0, so its first batches would seem stored."""
    owners = [name for name in key_record.names if name.startswith(QUERY)]
    last = key_record.batch
    if owners:
        is_ours = QUERY + query in owners
    else:  # stored by an older version: a query repeats its last batch at most
        is_ours = key_record.last is None or isinstance(batch, str) or batch >= last
    if not is_ours:
        stored = f"batches up to {last}" if last >= 0 else "batches"
        raise NotAllowed(
            f"{key} has stored {stored} of another checkpoint",
            hint="start from that checkpoint; for a new one choose a new txnAppId or transaction"
            " key, since its first batches would be taken for those",
            transaction_key=key,
        )


def _check_topic(view: View, stored: Batch, topic: int, key: str, batch: int | str) -> None:
    """Refuse a batch of another topic: the second batch of a number would be taken for stored."""
    if stored.topic == topic:
        return
    other = view.catalog.topics.get(stored.topic)
    name = "a topic that was deleted" if other is None else TopicName.parse(other.name).short
    raise NotAllowed(
        f"transaction key {key} has stored batch {batch} in {name}",
        hint="use a key for each topic",
        transaction_key=key,
    )


def reserve(view: View, topic: int, staged: Sequence[Staged]) -> Decision[list[int]]:
    """Decide an id for each file, rising in their order; durable; answers the ids.

    raises: TopicNotFound, NotAllowed (partitions were added)
    """
    topic_record = _checked(view, topic, staged)
    first = view.catalog.next_ledger
    ops = [
        LedgerReserved(number_of(topic_record, file.partition), "p", first + at)
        for at, file in enumerate(staged)
    ]
    return Decision([*ops], None, True, [op.ledger for op in ops])


def adopt(
    view: View, settings: Settings, now: Instant, caller: Owner, adoption: Adoption
) -> Decision[str]:
    """Decide that the files are messages of the topic; durable.

    answers: DONE, BEFORE (stored already), or AGAIN (an id has become too low: reserve again)
    raises:  TopicNotFound, NotAllowed (partitions were added, a batch of another topic),
             PartitionUnavailable, InvalidMessage (a delay above the maximum), LimitExceeded
             (unfinished transactions, names of batches)
    """
    key, batch = adoption.key, adoption.batch
    if recorded(view, settings, caller, adoption.topic, key, batch, adoption.query) is not None:
        return Decision([], None, True, BEFORE)
    _check_after(view, settings, caller, adoption)
    topic = _checked(view, adoption.topic, adoption.staged)
    places: dict[int, tuple[int, int]] = {}  # by partition: first ledger, messages
    for staged, file in zip(adoption.staged, adoption.files, strict=True):
        number = number_of(topic, staged.partition)
        check_available(view, topic, number)
        if file.ledger <= view.topic(number).ledgers[-1].ledger:
            return Decision([], None, False, AGAIN)
        first, messages = places.get(number, (file.ledger, 0))
        places[number] = (first, messages + file.rows)
    refusal, warnings = _delays(view, settings, now, topic, adoption)
    if refusal is not None:
        return refusal
    draft = Draft(view, settings, now.wall_ms)
    _commit(draft, now, find_owner(view, caller, None), adoption, places)
    draft.ops += warnings
    return draft.decision(DONE, sync=True)


def _count_mismatched(
    draft: Draft, topic: Topic, partition: int, staged: Staged, *, is_copy: bool
) -> None:
    """Count messages that do not fit the schema; raises NotAllowed if the policy refuses them."""
    typing = typing_of(draft.view, draft.settings, topic) if topic.schemas else None
    if typing is None:
        return
    count = staged.mismatched if staged.file.record else staged.file.rows
    if typing.mode == ENFORCE and not is_copy:
        raise NotAllowed(
            f"topic {typing.topic} has a schema by now, which the batch was not checked against",
            hint="write it again",
            topic=typing.topic,
        )
    draft.ops.append(SchemaMismatched(partition, count))


def _checked(view: View, number: int, staged: Sequence[Staged]) -> Topic:
    topic = live_topic(view, number, "of this batch")
    written = {file.file.record for file in staged} - {0} if schema_of(topic) is not None else set()
    if any(topic.schemas[version - 1].deleted for version in written):
        raise NotAllowed(
            f"topic {TopicName.parse(topic.name).short} has lost the schema that the batch was"
            " written by",
            hint="write it again",
        )
    if any(file.partitions != topic.partitions for file in staged):
        raise NotAllowed(
            f"{TopicName.parse(topic.name).short} has {topic.partitions} partitions by now, the "
            f"batch was routed over {staged[0].partitions}",
            hint="write it again",
            topic=TopicName.parse(topic.name).short,
        )
    return topic


def _delays(
    view: View, settings: Settings, now: Instant, topic: Topic, adoption: Adoption
) -> tuple[Decision[Any] | None, list[DelaysCounted]]:
    delays = DeliveryTimes(view, settings, topic, now.wall_ms)
    for staged in adoption.staged:
        if staged.times is not None:
            times = pa.Array.from_buffers(
                pa.int64(), staged.file.rows, [None, pa.py_buffer(staged.times)]
            )
            delays.check_times(number_of(topic, staged.partition), times)
    return delays.refusal(), delays.warnings()


def append(
    view: View,
    settings: Settings,
    now: Instant,
    caller: Owner,
    adoption: Adoption,
    routed: Routed,
) -> Decision[str]:
    """Decide that the rows of a small batch are messages of the topic; durable.

    They are plain messages after the existing ones, in the same ledgers: a file for each small
    batch would stay as long as its messages do. The transaction of the batch holds no messages.
    adoption: without files
    answers:  DONE or BEFORE; raises as adopt
    """
    key, batch = adoption.key, adoption.batch
    if recorded(view, settings, caller, adoption.topic, key, batch, adoption.query) is not None:
        return Decision([], None, True, BEFORE)
    _check_after(view, settings, caller, adoption)
    topic = _checked(view, adoption.topic, adoption.staged)
    draft = Draft(view, settings, now.wall_ms)
    sent = send_into(draft, now, OutgoingBatch(topic, routed, None), 0, copies=adoption.copies)
    if isinstance(sent, Decision):
        return sent
    holder = find_owner(view, caller, None)
    txn = _opened(draft, now, holder, adoption)
    draft.ops.append(TxnEnded(txn.coordinator, txn.sequence, COMMITTED, None, 0, 0, [], []))
    places = [
        (number_of(topic, receipt.partition), receipt.ledger, receipt.rows)
        for receipt in sent.stored
    ]
    _record(draft, now, holder, adoption, txn, places)
    decision = draft.decision(DONE, sync=True)
    decision.batch = sent.rows
    return decision


def _commit(
    draft: Draft,
    now: Instant,
    holder: Owner,
    adoption: Adoption,
    places: dict[int, tuple[int, int]],
) -> None:
    """Add the ops that open a transaction, adopt the files, commit it and note the batch."""
    txn = _opened(draft, now, holder, adoption)
    pair = (txn.coordinator, txn.sequence)
    draft.ops += [PartitionAdded(*pair, partition) for partition in sorted(places)]
    total = sum(messages for _, messages in places.values())
    rows = [(partition, *places[partition]) for partition in sorted(places)]
    markers = [(partition, ledger, 0, messages) for partition, ledger, messages in rows]
    draft.ops.append(TxnEnded(*pair, COMMITTED, None, total, 0, markers, []))
    topic = draft.view.catalog.topics[adoption.topic]
    last: dict[int, FileRef] = {}
    for staged, file in zip(adoption.staged, adoption.files, strict=True):
        partition = number_of(topic, staged.partition)
        draft.ops.append(
            Adopted(partition, file, staged.payload_bytes, staged.time_ms, staged.times)
        )
        if staged.mismatched or not file.record:
            _count_mismatched(draft, topic, partition, staged, is_copy=adoption.copies)
        last[partition] = file
    for partition, file in sorted(last.items()):
        draft.roll_behind(partition, (file.ledger, file.rows - 1))
    _record(draft, now, holder, adoption, txn, rows)


def _opened(draft: Draft, now: Instant, holder: Owner, adoption: Adoption) -> Txn:
    """Connect the key and open the transaction of the batch."""
    key, batch = adoption.key, adoption.batch
    connected, freed = connect_ops(draft, now, holder, key, NEW_HOLDER)
    number, uid = connected.coordinator, holder[0]
    key_record = keys.find(draft.view.keys(number), uid, key)
    if isinstance(batch, str) and key_record is not None and len(key_record.names) >= NAMES_MAX:
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
    adoption: Adoption,
    txn: Txn,
    places: list[tuple[int, int, int]],
) -> None:
    """Note the batch, and that its transaction has ended."""
    draft.ops = merged(draft.ops)
    release_key(draft, txn)
    answer = Batch(
        adoption.topic,
        txn.sequence,
        sum(messages for _, _, messages in places),
        sum(staged.payload_bytes for staged in adoption.staged),
        len(adoption.files),
        now.wall_ms,
        places,
    )
    number, uid = txn.coordinator, holder[0]
    draft.ops.append(BatchRecorded(number, uid, adoption.key, adoption.batch, answer))
    if adoption.query:
        key_record = keys.find(draft.view.keys(number), uid, adoption.key)
        whose = QUERY + adoption.query
        if key_record is None or whose not in key_record.names:
            draft.ops.append(BatchRecorded(number, uid, adoption.key, whose, answer))

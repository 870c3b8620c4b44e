"""The coordinator fold: an id counter and the status of its transactions.

History of its ops: system/transaction_log, for all coordinators. Ops
  IdsReserved, CounterRaised, TxnOpened, PartitionAdded, SubscriptionAdded, StatusUpdated,
  TxnEnded, TxnsForgotten, TxnPrepared.

    OPEN ──────────> COMMITTING ──> COMMITTED    this arrow is the point of no return
     │ │              ↑
     │ └> PREPARED ───┤                          a row in a database of the user decides
     │                ↓
     └─────────────> ABORTING ────> ABORTED

COMMITTING and ABORTING outlive their frame only while a participant is not available; markers that
are added later come with the last change of status. `ended` is in order of decision.

Invariants
  1. Every change of status is one of the arrows; replay never lowers a status.
  2. A sequence is opened once, and only below the reserved bound.
Source: PIP-31 "Transaction coordinator"; spec/transactions 4.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import Any, Final

import msgspec

from txlog.engine.model.ops import (
    CounterRaised,
    Fold,
    IdsReserved,
    Op,
    PartitionAdded,
    StatusUpdated,
    SubscriptionAdded,
    TxnEnded,
    TxnOpened,
    TxnPrepared,
    TxnsForgotten,
    broken,
    map_head,
    unexpected,
)

BLOCK: Final = 128  # ended transactions that are encoded together
OPEN, COMMITTING, COMMITTED = "OPEN", "COMMITTING", "COMMITTED"
ABORTING, ABORTED = "ABORTING", "ABORTED"
PREPARED = "PREPARED"
UNDECIDED = (OPEN, PREPARED)
# `TxnPrepared` makes the arrow from OPEN to PREPARED, StatusUpdated the others.
ARROWS = {
    (OPEN, COMMITTING), (COMMITTING, COMMITTED), (OPEN, ABORTING), (ABORTING, ABORTED),
    (PREPARED, COMMITTING), (PREPARED, ABORTING),
}  # fmt: skip
ENDED = (COMMITTED, ABORTED)
# Upper bounds of the histogram of durations, in ms (spec/transactions 16); one more bucket is
# above.
DURATION_BOUNDS_MS = (
    10, 20, 50, 100, 500, 1_000, 5_000, 15_000, 30_000, 60_000, 300_000, 1_500_000, 3_000_000,
)  # fmt: skip


class Prepared(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """Where the outcome of a prepared transaction is recorded; fields as in TxnPrepared.

    since_ms: when it was prepared
    """

    token: str
    kind: str
    database: str
    label: str
    since_ms: int


class Txn(msgspec.Struct, array_like=True, gc=False):
    """The record of a transaction; instants in ms.

    Tuples of numbers, because the garbage collector would visit lists in every remembered record.
    skipped: (partition, subscription) that were deleted before its end
    prepared: stays after the end
    """

    coordinator: int
    sequence: int
    owner_uid: int
    owner: str
    timeout_ms: int
    wall_ms: int
    boot_id: str
    boot_ms: int
    key: str | None
    epoch: int
    status: str = OPEN
    reason: str | None = None
    modified_ms: int = 0
    ended_ms: int = 0
    decision_lsn: int = 0
    partitions: tuple[int, ...] = ()
    subscriptions: tuple[tuple[int, int], ...] = ()
    messages: int = 0
    acks: int = 0
    markers: tuple[tuple[int, int, int, int], ...] = ()
    skipped: tuple[tuple[int, int], ...] = ()
    prepared: Prepared | None = None


class _Block:
    """Some ended transactions, encoded as the concatenated items of a map."""

    __slots__ = ("_bounds", "_ends", "_oldest_ms", "_stops", "data", "sequences")

    def __init__(self, sequences: Iterable[int], items: Collection[bytes]) -> None:
        self.sequences = array("q", sequences)
        self._bounds = min(self.sequences), max(self.sequences)
        self.data = b"".join(items)
        self._stops = array("Q", accumulate(map(len, items)))
        self._ends: array[int] | None = None
        self._oldest_ms = 0

    @classmethod
    def of(cls, txns: Sequence[Txn]) -> _Block:
        """Encode transactions."""
        sequences = [txn.sequence for txn in txns]
        # each in the form of a map item, without the head of the map
        block = cls(sequences, [_encode({txn.sequence: txn})[1:] for txn in txns])
        block._note(array("q", [txn.ended_ms for txn in txns]))
        return block

    def _note(self, ends: array[int]) -> None:
        self._ends, self._oldest_ms = ends, min(ends)

    @property
    def highest(self) -> int:
        """The highest sequence."""
        return self._bounds[1]

    def __contains__(self, sequence: int) -> bool:
        low, high = self._bounds
        return low <= sequence <= high and sequence in self.sequences

    def last(self) -> Txn:
        """The last transaction, decoded."""
        return self.txn(len(self.sequences) - 1)

    def txn(self, at: int) -> Txn:
        """The transaction at an index, decoded."""
        start = self._stops[at - 1] if at else 0
        (txn,) = _txns.decode(_ONE + self.data[start : self._stops[at]]).values()
        return txn

    @property
    def is_surveyed(self) -> bool:
        """Whether the times of the ends are decoded."""
        return self._ends is not None

    def survey(self) -> array[int]:
        """When each transaction ended, decoded once, because ended ones do not change."""
        if self._ends is None:
            ends = _ends.decode(map_head(len(self.sequences)) + self.data)
            self._note(array("q", [end.ended_ms for end in ends.values()]))
        assert self._ends is not None
        return self._ends

    def before(self, ms: int) -> list[int]:
        """The sequences of transactions that ended before a time."""
        ends = self.survey()
        if self._oldest_ms >= ms:
            return []
        return [sequence for sequence, end in zip(self.sequences, ends, strict=True) if end < ms]

    def without(self, removed: Collection[int]) -> _Block:
        """The block without some sequences."""
        remaining = [at for at, sequence in enumerate(self.sequences) if sequence not in removed]
        starts = (0, *self._stops)
        block = _Block(
            [self.sequences[at] for at in remaining],
            [self.data[starts[at] : starts[at + 1]] for at in remaining],
        )
        if self._ends is not None:
            block._note(array("q", [self._ends[at] for at in remaining]))
        return block


class EndedTxns:
    """The ended transactions of a coordinator by sequence, in order of decision.

    They are rarely read again, and never change. But a dump contains all of them, and a sweep
    searches for transactions past their retention. So they stay encoded, in blocks with the times
    of their ends. Only the newest are objects, usually fewer than a block.
    """

    __slots__ = ("_blocks", "_highest", "_last_lsn", "_newest")

    def __init__(self, txns: Iterable[Txn] = ()) -> None:
        self._blocks: list[_Block] = []
        self._highest = -1  # no block has a sequence above; most lookups are above
        self._newest: dict[int, Txn] = {}
        # at least the decision LSN of the last transaction; None: not decoded yet
        self._last_lsn: int | None = 0
        for txn in txns:
            self.put(txn)

    @classmethod
    def loaded(cls, raw: dict[int, msgspec.Raw]) -> EndedTxns:
        """The ended transactions of a dump, still encoded."""
        ended, items_left = cls(), iter(raw.items())
        while piece := list(islice(items_left, BLOCK)):
            sequences = [sequence for sequence, _ in piece]
            items = [_encode(key) + value for key, value in piece]
            ended._add(_Block(sequences, items))
        ended._last_lsn = None if raw else 0
        return ended

    def _add(self, block: _Block) -> None:
        self._blocks.append(block)
        self._highest = max(self._highest, block.highest)

    def __len__(self) -> int:
        return len(self._newest) + sum(len(block.sequences) for block in self._blocks)

    def __iter__(self) -> Iterator[int]:
        for block in self._blocks:
            yield from block.sequences
        yield from self._newest

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._newest or self._block_of(sequence) is not None

    def _block_of(self, sequence: int) -> _Block | None:
        if sequence > self._highest:
            return None
        return next((block for block in reversed(self._blocks) if sequence in block), None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EndedTxns) and [*self.values()] == [*other.values()]

    __hash__ = None  # type: ignore[assignment]

    def get(self, sequence: int) -> Txn | None:
        """The record of a transaction; None if it is not here."""
        txn = self._newest.get(sequence)
        if txn is None and (block := self._block_of(sequence)) is not None:
            return block.txn(block.sequences.index(sequence))
        return txn

    def values(self) -> Iterator[Txn]:
        """All records, decoded one by one."""
        for block in self._blocks:
            for at in range(len(block.sequences)):
                yield block.txn(at)
        yield from [*self._newest.values()]

    def put(self, txn: Txn) -> None:
        """Add a transaction; only one that waited is inserted before others."""
        if self._last_lsn is None:
            self._last_lsn = self._blocks[-1].last().decision_lsn if self._blocks else 0
        if txn.decision_lsn < self._last_lsn:
            self._insert(txn)
            return
        self._last_lsn = txn.decision_lsn
        self._newest[txn.sequence] = txn
        while len(self._newest) >= BLOCK:
            oldest = list(islice(self._newest, BLOCK))
            self._add(_Block.of([self._newest.pop(sequence) for sequence in oldest]))

    def _insert(self, txn: Txn) -> None:
        later = [*self._newest.values()]
        while self._blocks and self._blocks[-1].last().decision_lsn > txn.decision_lsn:
            block = self._blocks.pop()
            later[:0] = [block.txn(at) for at in range(len(block.sequences))]
        at = bisect_right(later, txn.decision_lsn, key=lambda other: other.decision_lsn)
        later.insert(at, txn)
        self._newest = {other.sequence: other for other in later}

    def drop(self, sequences: Iterable[int]) -> None:
        """Forget transactions."""
        remaining = {sequence for sequence in sequences if self._newest.pop(sequence, None) is None}
        at = 0
        while remaining and at < len(self._blocks):  # most are in the first block
            block = self._blocks[at]
            forgotten = remaining.intersection(block.sequences)
            remaining -= forgotten
            if len(forgotten) == len(block.sequences):
                del self._blocks[at]
                continue
            if forgotten:
                self._blocks[at] = block.without(forgotten)
            at += 1

    def before(self, ms: int, *, thorough: bool) -> list[int]:
        """The sequences of transactions that ended before a time.

        thorough: check all blocks; else stop at the first block without such a transaction
        cost: a check of each block, and of the transactions in a block that has one
        """
        out: list[int] = []
        for block in self._blocks:
            sequences = block.before(ms)
            if not (sequences or thorough):
                return out
            out += sequences
        return out + [txn.sequence for txn in self._newest.values() if txn.ended_ms < ms]

    def survey(self, most: int) -> bool:
        """Decode the end times of at most `most` blocks; returns whether others remain."""
        unsurveyed = (block for block in self._blocks if not block.is_surveyed)
        for block in islice(unsurveyed, most):
            block.survey()
        return next(unsurveyed, None) is not None

    def encoded(self) -> msgspec.Raw:
        """The map as msgpack."""
        newest = _encode(self._newest)[len(map_head(len(self._newest))) :]
        return msgspec.Raw(
            b"".join([map_head(len(self)), *(block.data for block in self._blocks), newest])
        )


_ONE: Final = map_head(1)


class Coordinator(msgspec.Struct, array_like=True):
    """State; `unfinished`: all but COMMITTED and ABORTED; `ended` in order of their decision.

    Counts only grow. log_ops: ops applied; aborted_by: by reason; durations: for each end status a
    histogram over DURATION_BOUNDS_MS, then those above, then the sum in ms; rolled_*: ends whose
    decision was in an earlier frame.
    """

    next_sequence: int = 0
    reserved_below: int = 0
    unfinished: dict[int, Txn] = {}
    ended: EndedTxns = msgspec.field(default_factory=EndedTxns)
    committed_count: int = 0
    aborted_count: int = 0
    timed_out_count: int = 0
    created_count: int = 0
    aborted_by: dict[str, int] = {}
    log_ops: int = 0
    durations: dict[str, list[int]] = {}
    rolled_forward: int = 0
    rolled_back: int = 0


def apply(state: Coordinator, lsn: int, time_ms: int, op: Op) -> None:
    """Apply one op."""
    take = _TAKES.get(type(op))
    if take is None:
        raise unexpected("coordinator", lsn, op)
    take(state, lsn, time_ms, op)


def _take_txn_opened(state: Coordinator, lsn: int, time_ms: int, op: TxnOpened) -> None:
    if op.sequence < state.next_sequence or op.sequence >= state.reserved_below:
        raise broken("coordinator", lsn, f"sequence {op.sequence} is not free")
    state.next_sequence = op.sequence + 1
    state.created_count += 1
    state.unfinished[op.sequence] = Txn(
        op.coordinator,
        op.sequence,
        op.owner_uid,
        op.owner,
        op.timeout_ms,
        op.wall_ms,
        op.boot_id,
        op.boot_ms,
        op.key,
        op.epoch,
        modified_ms=time_ms,
    )
    state.log_ops += 1


def _take_txn_ended(state: Coordinator, lsn: int, time_ms: int, op: TxnEnded) -> None:
    """The state is the same as by the ops that it replaces."""
    opened, sequence = op.opened, op.sequence
    if opened is not None:
        _take_txn_opened(state, lsn, time_ms, opened)
    txn = _unfinished(state, lsn, sequence)
    if txn.status != OPEN or op.status not in ENDED:
        raise broken(
            "coordinator",
            lsn,
            f"transaction {op.coordinator}:{sequence} is {txn.status}, the end as {op.status} "
            "is not allowed",
        )
    if opened is not None:
        txn.partitions, txn.subscriptions = op.partitions, op.subscriptions
        state.log_ops += len(op.partitions) + len(op.subscriptions)
    txn.status, txn.reason, txn.decision_lsn = op.status, op.reason, lsn
    txn.modified_ms = txn.ended_ms = time_ms
    txn.messages, txn.acks = op.messages, op.acks
    txn.markers, txn.skipped = tuple(op.markers), tuple(op.skipped)
    del state.unfinished[sequence]
    state.ended.put(txn)
    _count_end(state, txn, late=False)
    state.log_ops += 2


def _take_partition_added(state: Coordinator, lsn: int, time_ms: int, op: PartitionAdded) -> None:
    txn = _unfinished(state, lsn, op.sequence)
    if op.partition not in txn.partitions:
        txn.partitions = (*txn.partitions, op.partition)
        txn.modified_ms = time_ms
    state.log_ops += 1


def _take_subscription_added(
    state: Coordinator, lsn: int, time_ms: int, op: SubscriptionAdded
) -> None:
    txn = _unfinished(state, lsn, op.sequence)
    if (op.subscription, op.partition) not in txn.subscriptions:
        txn.subscriptions = (*txn.subscriptions, (op.subscription, op.partition))
        txn.modified_ms = time_ms
    state.log_ops += 1


def _take_txn_prepared(state: Coordinator, lsn: int, time_ms: int, op: TxnPrepared) -> None:
    txn = _unfinished(state, lsn, op.sequence)
    if txn.status != OPEN:
        raise broken(
            "coordinator",
            lsn,
            f"transaction {op.coordinator}:{op.sequence} is {txn.status}, the change "
            f"{OPEN} to {PREPARED} is not allowed",
        )
    txn.status, txn.modified_ms = PREPARED, time_ms
    txn.prepared = Prepared(op.token, op.kind, op.database, op.label, time_ms)
    state.log_ops += 1


def _take_ids_reserved(state: Coordinator, lsn: int, time_ms: int, op: IdsReserved) -> None:
    state.reserved_below = max(state.reserved_below, op.below)
    state.log_ops += 1


def _take_counter_raised(state: Coordinator, lsn: int, time_ms: int, op: CounterRaised) -> None:
    state.next_sequence = max(state.next_sequence, op.sequence)
    state.log_ops += 1


def _take_txns_forgotten(state: Coordinator, lsn: int, time_ms: int, op: TxnsForgotten) -> None:
    state.ended.drop(op.sequences)
    state.log_ops += 1


def _unfinished(state: Coordinator, lsn: int, sequence: int) -> Txn:
    txn = state.unfinished.get(sequence)
    if txn is None:
        raise broken("coordinator", lsn, f"transaction {sequence} is not unfinished")
    return txn


def _update(state: Coordinator, lsn: int, time_ms: int, op: StatusUpdated) -> None:
    txn = state.unfinished.get(op.sequence) or find(state, op.sequence)
    if txn is None:
        raise broken("coordinator", lsn, f"transaction {op.coordinator}:{op.sequence} is unknown")
    expected, status = op.expected, op.status
    if txn.status != expected or (expected, status) not in ARROWS:
        raise broken(
            "coordinator",
            lsn,
            f"transaction {op.coordinator}:{op.sequence} is {txn.status}, the change "
            f"{expected} to {status} is not allowed",
        )
    txn.status = status
    txn.modified_ms = time_ms
    if expected in UNDECIDED:
        txn.decision_lsn, txn.reason = lsn, op.reason
        txn.messages, txn.acks, txn.markers = op.messages, op.acks, tuple(op.markers)
    else:  # each arrow from other states is an end
        if op.markers:
            txn.markers = tuple(sorted([*txn.markers, *op.markers]))
        txn.ended_ms, txn.skipped = time_ms, tuple(op.skipped)
        del state.unfinished[op.sequence]
        state.ended.put(txn)
        _count_end(state, txn, late=lsn > txn.decision_lsn)
    state.log_ops += 1


def _count_end(state: Coordinator, txn: Txn, *, late: bool) -> None:
    if txn.status == COMMITTED:
        state.committed_count += 1
        state.rolled_forward += late
    else:
        reason = txn.reason or "user"
        state.aborted_count += 1
        state.timed_out_count += reason == "timeout"
        state.aborted_by[reason] = state.aborted_by.get(reason, 0) + 1
        state.rolled_back += late
    took_ms = txn.ended_ms - txn.wall_ms
    if took_ms < 0:
        took_ms = 0
    buckets = state.durations.get(txn.status)
    if buckets is None:
        buckets = state.durations[txn.status] = [0] * (len(DURATION_BOUNDS_MS) + 2)
    buckets[bisect_left(DURATION_BOUNDS_MS, took_ms)] += 1
    buckets[-1] += took_ms


def find(state: Coordinator, sequence: int) -> Txn | None:
    """The record of a transaction, None when it was never issued or is forgotten."""
    return state.unfinished.get(sequence) or state.ended.get(sequence)


# Looked up by the type of the op: a chain of isinstance would cost more than applying the ops.
_TAKES: dict[type, Callable[[Coordinator, int, int, Any], None]] = {
    TxnOpened: _take_txn_opened,
    TxnEnded: _take_txn_ended,
    StatusUpdated: _update,
    PartitionAdded: _take_partition_added,
    SubscriptionAdded: _take_subscription_added,
    IdsReserved: _take_ids_reserved,
    CounterRaised: _take_counter_raised,
    TxnsForgotten: _take_txns_forgotten,
    TxnPrepared: _take_txn_prepared,
}


class _Dump(Coordinator, array_like=True):
    """A dump, whose ended transactions are encoded separately."""

    ended: Any = msgspec.field(default_factory=dict[int, msgspec.Raw])


class _Read(_Dump, array_like=True):
    """A dump for reading, with ended transactions still encoded."""

    ended: dict[int, msgspec.Raw] = {}


def _dump(state: Coordinator) -> bytes:
    return _encode(_Dump(**{**_fields(state), "ended": state.ended.encoded()}))


def _load(data: bytes) -> Coordinator:
    dump = _decoder.decode(data)
    return Coordinator(**{**_fields(dump), "ended": EndedTxns.loaded(dump.ended)})


def _fields(of: Coordinator) -> dict[str, Any]:
    return {name: getattr(of, name) for name in Coordinator.__struct_fields__}


assert _Read.__struct_fields__ == _Dump.__struct_fields__ == Coordinator.__struct_fields__
_AT_END: Final = Txn.__struct_fields__.index("ended_ms")
# Decodes only the time of the end of a transaction: earlier fields are skipped.
_End: Any = msgspec.defstruct(
    "_End",
    [
        *((name, msgspec.Raw, msgspec.Raw()) for name in Txn.__struct_fields__[:_AT_END]),
        ("ended_ms", int, 0),
    ],
    array_like=True,
    gc=False,
)
_encode = msgspec.msgpack.encode
_decoder = msgspec.msgpack.Decoder(_Read)
_txns, _ends = msgspec.msgpack.Decoder(dict[int, Txn]), msgspec.msgpack.Decoder(dict[int, _End])
FOLD = Fold("coordinator", Coordinator, apply, _dump, _load, _TAKES)

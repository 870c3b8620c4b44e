"""The watermark fold: how far each producer of a partition has come in event time.

Ops: WatermarkSet, WatermarkIdled, WatermarkSnapshot, BufferWatermark, WatermarkEmitted;
CommitMarker and BufferAborted of transactions with watermark rows; LedgerTrimmed;
SubscriptionDeleted of a subscription that received a value.

    W_SET in the partition ──────────────────────────> active (the greatest time wins)
    W_SET in the sidecar ──> pending ──commit marker──┘        └──W_IDLE──> gone, its time forgotten

`WatermarkState` is the value at one position and has all folding rules: the fold has the state at
the end of the partition, a generator (plan/reading/watermarks) a state at an earlier position.

Invariants
  1. The state at a position is a function of the partition's rows up to it.
  2. The assertions of a transaction take effect at its marker, all or none.
  3. Every ledger after the first assertion begins with a snapshot, so a trim needs no special case.
Source: apache/pulsar#12267; spec/watermarks 4, 5, 7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from pyroaring import BitMap64

from txlog.engine.model.ops import (
    BufferAborted,
    BufferWatermark,
    CommitMarker,
    Effect,
    Fold,
    LedgerTrimmed,
    Op,
    SubscriptionDeleted,
    WatermarkEmitted,
    WatermarkIdled,
    WatermarkSet,
    WatermarkSnapshot,
    broken,
    unexpected,
)

Position = tuple[int, int]  # ledger, entry
START: Position = (0, -1)
PAYLOAD_VERSION = 1


class ActiveProducer(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A producer that holds the watermark back: its greatest event time, the row of its last
    assertion (ledger, entry), and that row's publish time.
    """

    event_time: int
    ledger: int
    entry: int
    time_ms: int


class WatermarkState(msgspec.Struct, array_like=True):
    """The state at a position; seen: whether any producer asserted a time up to it."""

    active: dict[str, ActiveProducer] = {}
    seen: bool = False

    def raise_to(self, producer: str, event_time: int, where: Position, time_ms: int) -> bool:
        """Apply a W_SET row.

        Returns whether the time would fall; it then stays, and only row and time_ms change.
        """
        self.seen = True
        active = self.active.get(producer)
        fell = active is not None and event_time < active.event_time
        most = event_time if active is None else max(active.event_time, event_time)
        self.active[producer] = ActiveProducer(most, *where, time_ms)
        return fell

    def leave(self, producer: str) -> None:
        """Apply a W_IDLE row: the producer no longer holds the watermark back."""
        self.seen = True
        self.active.pop(producer, None)

    def take_marker(self, effects: Iterable[Effect], where: Position, time_ms: int) -> int:
        """Apply the net effects of a transaction at its marker; returns how many fell."""
        fell = 0
        for producer, idle, event_time in effects:
            if idle:
                self.leave(producer)
            if event_time is not None:
                fell += self.raise_to(producer, event_time, where, time_ms)
        return fell

    @property
    def value(self) -> int | None:
        """The least time of an active producer, None without one."""
        return min([active.event_time for active in self.active.values()], default=None)

    @property
    def status(self) -> str:
        """active; idle: all producers have left; unknown: no watermark row so far."""
        return "active" if self.active else "idle" if self.seen else "unknown"

    def copy(self) -> WatermarkState:
        """A copy that a caller may change."""
        return WatermarkState(dict(self.active), self.seen)


class Snapshot(msgspec.Struct, array_like=True):
    """The payload of a W_SNAPSHOT row; as_of: the position just before it.

    pending: (coordinator, sequence, net effects) of open transactions, for display only
    """

    version: int
    as_of: Position
    state: WatermarkState
    pending: list[tuple[int, int, list[Effect]]] = []


class Clamp(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The greatest value delivered to a consumer of a subscription in an epoch, and its position.

    emitted: how many values were delivered, in all epochs
    """

    epoch: int
    event_time: int
    position: Position
    emitted: int = 0


class WatermarkCounts(msgspec.Struct, array_like=True, gc=False):
    """Counts since the beginning; each only grows."""

    regressions: int = 0
    snapshots: int = 0
    snapshot_bytes: int = 0


class LastSnapshot(msgspec.Struct, array_like=True, gc=False):
    """The last snapshot: its ledger, entry, size, bytes of the ledger before it; moves after it."""

    ledger: int = 0
    entry: int = -1
    size: int = 0
    ledger_bytes: int = 0
    moves: int = 0


class Watermark:
    """State of the fold, to the end of the partition.

    silent:    ledger -> entries that are not data: watermark rows, and markers without messages
    moves:     entries that may change the state; snapshots: W_SNAPSHOT rows
    pending:   open transaction -> producer -> (idle, time)
    changes: grows with every op that can change a value here, so a reader knows when to look again
    """

    __slots__ = (
        "changes",
        "clamps",
        "figures",
        "moves",
        "pending",
        "silent",
        "since",
        "snapshots",
        "state",
    )

    def __init__(self) -> None:
        self.state = WatermarkState()
        self.pending: dict[tuple[int, int], dict[str, tuple[bool, int | None]]] = {}
        self.silent: dict[int, BitMap64] = {}
        self.moves: dict[int, BitMap64] = {}
        self.snapshots: dict[int, BitMap64] = {}
        self.since = LastSnapshot()
        self.clamps: dict[int, Clamp] = {}
        self.figures = WatermarkCounts()
        self.changes = 0

    @property
    def is_used(self) -> bool:
        """True once a producer of the partition has made an assertion, also in a transaction."""
        return bool(self.state.seen or self.silent or self.pending)

    def effects_of(self, coordinator: int, sequence: int) -> list[Effect]:
        """The net effect of an open transaction so far, by producer."""
        effects = self.pending.get((coordinator, sequence), {})
        return [(producer, *effect) for producer, effect in effects.items()]

    def payload(self, as_of: Position) -> bytes:
        """The payload of a snapshot at the end of the partition."""
        pending = [(*key, self.effects_of(*key)) for key in sorted(self.pending)]
        return encode_snapshot(Snapshot(PAYLOAD_VERSION, as_of, self.state, pending))


_snapshots = msgspec.msgpack.Decoder(Snapshot)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """A payload as it is stored."""
    return msgspec.msgpack.encode(snapshot)


def read_snapshot(payload: bytes | None) -> Snapshot | None:
    """Decode a payload; None: this version cannot read it, so the caller uses an earlier one."""
    try:
        snapshot = _snapshots.decode(payload or b"")
    except (msgspec.DecodeError, ValueError):
        return None
    return snapshot if snapshot.version == PAYLOAD_VERSION else None


def net_effect(
    effect: tuple[bool, int | None] | None, event_time: int | None
) -> tuple[bool, int | None]:
    """The effect of a transaction on a producer after one more row; event_time None: W_IDLE."""
    idle, most = effect or (False, None)
    if event_time is None:
        return True, None
    return idle, event_time if most is None else max(most, event_time)


def apply(state: Watermark, lsn: int, time_ms: int, op: Op) -> None:
    """Apply one op."""
    take = _TAKES.get(type(op))
    if take is None:
        raise unexpected("watermark", lsn, op)
    take(state, lsn, time_ms, op)


def _watermark_set(state: Watermark, lsn: int, time_ms: int, op: WatermarkSet) -> None:
    where = (op.ledger, op.entry)
    fell = state.state.raise_to(op.producer, op.event_time, where, time_ms)
    state.figures.regressions += fell
    _row(state, where, moves=True)


def _watermark_idled(state: Watermark, lsn: int, time_ms: int, op: WatermarkIdled) -> None:
    state.state.leave(op.producer)
    _row(state, (op.ledger, op.entry), moves=True)


def _watermark_snapshot(state: Watermark, lsn: int, time_ms: int, op: WatermarkSnapshot) -> None:
    # the first row of an added partition: the partition begins with this state
    if not state.state.seen:
        snapshot = read_snapshot(op.payload)
        if snapshot is not None:
            state.state = snapshot.state
    _row(state, (op.ledger, op.entry), moves=False)
    state.snapshots.setdefault(op.ledger, BitMap64()).add(op.entry)
    state.since = LastSnapshot(op.ledger, op.entry, len(op.payload), op.ledger_bytes)
    state.figures.snapshots += 1
    state.figures.snapshot_bytes += len(op.payload)


def _row(state: Watermark, where: Position, *, moves: bool) -> None:
    ledger, entry = where
    state.silent.setdefault(ledger, BitMap64()).add(entry)
    if moves:
        _moved(state, where)
    state.changes += 1


def _moved(state: Watermark, where: Position) -> None:
    state.moves.setdefault(where[0], BitMap64()).add(where[1])
    state.since.moves += 1
    state.changes += 1


def _buffer_watermark(state: Watermark, lsn: int, time_ms: int, op: BufferWatermark) -> None:
    of_txn = state.pending.setdefault((op.coordinator, op.sequence), {})
    of_txn[op.producer] = net_effect(of_txn.get(op.producer), op.event_time)


def _commit_marker(state: Watermark, lsn: int, time_ms: int, op: CommitMarker) -> None:
    effects = state.effects_of(op.coordinator, op.sequence)
    if not op.watermarks or sorted(effects, key=_name) != sorted(op.watermarks, key=_name):
        raise broken("watermark", lsn, f"{op.coordinator}:{op.sequence} has other watermarks")
    del state.pending[(op.coordinator, op.sequence)]
    where = (op.ledger, op.entry)
    state.figures.regressions += state.state.take_marker(op.watermarks, where, time_ms)
    if not op.count:
        state.silent.setdefault(op.ledger, BitMap64()).add(op.entry)
    _moved(state, where)


def _name(effect: Effect) -> str:
    return effect[0]


def _buffer_aborted(state: Watermark, lsn: int, time_ms: int, op: BufferAborted) -> None:
    if state.pending.pop((op.coordinator, op.sequence), None) is None:
        raise broken("watermark", lsn, f"{op.coordinator}:{op.sequence} has no watermarks")


def _watermark_emitted(state: Watermark, lsn: int, time_ms: int, op: WatermarkEmitted) -> None:
    clamp = state.clamps.get(op.subscription)
    if clamp is not None and clamp.epoch == op.epoch and clamp.event_time >= op.event_time:
        raise broken("watermark", lsn, f"subscription {op.subscription} was handed more before")
    emitted = 1 if clamp is None else clamp.emitted + 1
    state.clamps[op.subscription] = Clamp(op.epoch, op.event_time, op.position, emitted)
    state.changes += 1


def _subscription_deleted(
    state: Watermark, lsn: int, time_ms: int, op: SubscriptionDeleted
) -> None:
    if state.clamps.pop(op.subscription, None) is None:
        raise broken("watermark", lsn, f"subscription {op.subscription} was handed nothing")


def _ledger_trimmed(state: Watermark, lsn: int, time_ms: int, op: LedgerTrimmed) -> None:
    if op.role != "p":
        raise unexpected("watermark", lsn, op)
    for rows in (state.silent, state.moves, state.snapshots):
        if rows.pop(op.ledger, None) is not None:
            state.changes += 1  # a topic without watermarks stays as new, without a dump


class _Dumped(msgspec.Struct, array_like=True):
    state: WatermarkState
    pending: list[tuple[int, int, list[Effect]]]
    silent: dict[int, bytes]
    moves: dict[int, bytes]
    snapshots: dict[int, bytes]
    since: LastSnapshot
    clamps: dict[int, Clamp]
    figures: WatermarkCounts
    changes: int


def _dump(state: Watermark) -> bytes:
    rows = [
        {ledger: bits.serialize() for ledger, bits in sorted(of.items())}
        for of in (state.silent, state.moves, state.snapshots)
    ]
    pending = [(*key, state.effects_of(*key)) for key in sorted(state.pending)]
    return msgspec.msgpack.encode(
        _Dumped(
            state.state,
            pending,
            rows[0],
            rows[1],
            rows[2],
            state.since,
            state.clamps,
            state.figures,
            state.changes,
        )
    )


_decoder = msgspec.msgpack.Decoder(_Dumped)


def _load(data: bytes) -> Watermark:
    dumped = _decoder.decode(data)
    state = Watermark()
    state.state = dumped.state
    for coordinator, sequence, effects in dumped.pending:
        state.pending[(coordinator, sequence)] = {
            effect[0]: (effect[1], effect[2]) for effect in effects
        }
    state.silent, state.moves, state.snapshots = (
        {ledger: BitMap64.deserialize(raw) for ledger, raw in of.items()}
        for of in (dumped.silent, dumped.moves, dumped.snapshots)
    )
    state.since, state.clamps = dumped.since, dumped.clamps
    state.figures, state.changes = dumped.figures, dumped.changes
    return state


_TAKES: dict[type, Callable[[Watermark, int, int, Any], None]] = {
    WatermarkSet: _watermark_set,
    WatermarkIdled: _watermark_idled,
    WatermarkSnapshot: _watermark_snapshot,
    BufferWatermark: _buffer_watermark,
    CommitMarker: _commit_marker,
    BufferAborted: _buffer_aborted,
    WatermarkEmitted: _watermark_emitted,
    SubscriptionDeleted: _subscription_deleted,
    LedgerTrimmed: _ledger_trimmed,
}
FOLD = Fold("watermark", Watermark, apply, _dump, _load)

"""The topic fold: the ends of one partition, and the last sequences of its producers.

Ledger: the partition. Ops
  LedgerRolled (old 0: the first ledger), LedgerSealed, LedgerTrimmed, Appended, CommitMarker,
  SequencesStored, ProducerOpened, ProducersForgotten, Deduplicated, DelaysCounted, WatermarkSet,
  WatermarkIdled, WatermarkSnapshot, Adopted, PartitionCompacted, SchemaMismatched.

Invariants
  1. Entries of a ledger are numbered from 0 without gaps; ledger ids of a partition rise.
  2. A producer's last sequence never falls; all lower sequences are stored, except its gaps.
  3. Only the oldest ledger is trimmed, never the open one; counts cover the remaining ledgers.
  4. A horizon never falls; rows compacted up to it outlive the ledgers that they came from.
Source: PIP-6 (deduplication by producer name and sequence), spec/transactions 7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from txlog.engine.model import sequences
from txlog.engine.model.ops import (
    Adopted,
    Appended,
    CommitMarker,
    Deduplicated,
    DelaysCounted,
    Fold,
    LedgerRolled,
    LedgerSealed,
    LedgerTrimmed,
    Mark,
    Op,
    PartitionCompacted,
    ProducerOpened,
    ProducersForgotten,
    SchemaMismatched,
    SequencesStored,
    WatermarkIdled,
    WatermarkSet,
    WatermarkSnapshot,
    broken,
    unexpected,
)

GAPS_MAX: Final = 262_144  # of all producers of a partition


class LedgerEnd(msgspec.Struct, array_like=True, gc=False):
    """A ledger of the partition, open or closed.

    first_ms: the time of its first entry
    last_ms:  the latest time of all entries: times fall within a ledger after a clock was set back
    """

    ledger: int
    entries: int = 0
    payload_bytes: int = 0
    messages: int = 0
    opened_ms: int = 0
    first_ms: int = 0
    last_ms: int = 0
    sealed: bool = False


class ProducerState(msgspec.Struct, array_like=True, gc=False):
    """The last message of a producer: its sequence and position.

    sequence -1:   opened, and nothing sent yet; epoch is kept in the first partition only
    index:         1 when the entry is the marker of a large message
    gaps, unknown: the sequences below that are not stored, and the highest one forgotten
    (model/sequences)
    row:           the sequence of the message at the position, -1: `sequence`. It is lower if later
                   messages of a batch went to other partitions
    """

    sequence: int
    ledger: int
    entry: int
    time_ms: int
    epoch: int = 0
    index: int = 0
    gaps: list[int] = []
    unknown: int = -1
    row: int = -1


class Compaction(msgspec.Struct, array_like=True, gc=False):
    """The newest message of each key up to the horizon: in these ledgers of role c, by id.

    horizon: (ledger, entry) of the last entry that the compaction read; lsn: of the snapshot
    """

    ledgers: list[int]
    horizon: tuple[int, int]
    lsn: int
    time_ms: int


class Topic(msgspec.Struct, array_like=True):
    """State of the fold; the last of `ledgers` is the open one."""

    ledgers: list[LedgerEnd] = []
    producers: dict[str, ProducerState] = {}
    messages: int = 0
    payload_bytes: int = 0
    last_publish_ms: int = 0
    last_message: tuple[int, int, int] | None = None
    dedup_dropped: int = 0
    dedup_missing: int = 0
    trimmed: Mark | None = None  # the last trimmed message: nothing up to it can be read
    delays_refused: int = 0
    delays_beyond_ttl: int = 0
    compaction: Compaction | None = None
    mismatched: int = 0  # messages that do not fit the schema
    gaps: int = 0  # of all producers, at most GAPS_MAX
    trimmed_messages: int = 0  # with `messages`: all that ever became visible; the same for bytes
    trimmed_bytes: int = 0


def apply(state: Topic, lsn: int, time_ms: int, op: Op) -> None:
    """Apply one op."""
    take = _TAKES.get(type(op))
    if take is None:
        raise unexpected("topic", lsn, op)
    take(state, lsn, time_ms, op)


def _take_commit_marker(state: Topic, lsn: int, time_ms: int, op: CommitMarker) -> None:
    _grow(state, lsn, time_ms, op.ledger, op.entry, 1, op.count, op.payload_bytes)
    if op.count:
        state.last_message = (op.ledger, op.entry, op.count)
    if op.producer is not None:
        _sent(state, lsn, time_ms, op.producer, op.last_sequence, (op.ledger, op.entry, 1))


def _take_watermark(
    state: Topic, lsn: int, time_ms: int, op: WatermarkSet | WatermarkIdled | WatermarkSnapshot
) -> None:
    size = len(op.payload) if isinstance(op, WatermarkSnapshot) else 0
    _grow(state, lsn, time_ms, op.ledger, op.entry, 1, 0, size)


def _take_ledger_rolled(state: Topic, lsn: int, time_ms: int, op: LedgerRolled) -> None:
    if (state.ledgers[-1].ledger if state.ledgers else 0) != op.old:
        raise broken("topic", lsn, f"ledger {op.old} is not the open one")
    state.ledgers.append(LedgerEnd(op.new, opened_ms=time_ms))


def _take_ledger_sealed(state: Topic, lsn: int, time_ms: int, op: LedgerSealed) -> None:
    for end in state.ledgers:
        if end.ledger == op.file.ledger:
            end.sealed = True


def _take_ledger_trimmed(state: Topic, lsn: int, time_ms: int, op: LedgerTrimmed) -> None:
    _trim(state, lsn, op)


def _appended(state: Topic, lsn: int, time_ms: int, op: Appended) -> None:
    _grow(state, lsn, time_ms, op.ledger, op.first_entry, op.rows, op.rows, op.payload_bytes)
    last = op.first_entry + op.rows - 1
    state.last_message = (op.ledger, last, 0)
    if op.producer is not None and op.last_sequence >= 0:
        _sent(state, lsn, time_ms, op.producer, op.last_sequence, (op.ledger, last, 0))


def _adopted(state: Topic, lsn: int, time_ms: int, op: Adopted) -> None:
    """Add a ledger.

    It replaces an open ledger without rows, because otherwise each batch would leave an empty one.
    """
    ledger, rows = op.file.ledger, op.file.rows
    if not state.ledgers or ledger <= state.ledgers[-1].ledger or not rows:
        raise broken("topic", lsn, f"ledger {ledger} cannot follow the last")
    if not state.ledgers[-1].entries and not state.ledgers[-1].sealed:
        state.ledgers.pop()
    state.ledgers.append(
        LedgerEnd(ledger, rows, op.payload_bytes, rows, time_ms, op.time_ms, op.time_ms, True)
    )
    state.messages += rows
    state.payload_bytes += op.payload_bytes
    state.last_publish_ms = max(state.last_publish_ms, op.time_ms)
    state.last_message = (ledger, rows - 1, 0)


def _sent(state: Topic, lsn: int, time_ms: int, producer: str, sequence: int, where: Mark) -> None:
    """Note that all sequences from a producer's highest so far up to `sequence` are stored."""
    sent = state.producers.get(producer)
    if sent is None:
        state.producers[producer] = ProducerState(
            sequence, where[0], where[1], time_ms, 0, where[2]
        )
        return
    if sequence <= sent.sequence:
        raise broken("topic", lsn, f"producer {producer} repeats a sequence")
    sent.sequence, sent.time_ms, sent.row = sequence, time_ms, -1
    sent.ledger, sent.entry, sent.index = where


def _sequences_stored(state: Topic, lsn: int, time_ms: int, op: SequencesStored) -> None:
    sent = state.producers.setdefault(op.producer, ProducerState(-1, 0, -1, time_ms))
    last, old_gaps = sent.sequence, len(sent.gaps)
    if not op.runs or not sequences.store(sent, op.runs):
        raise broken("topic", lsn, f"producer {op.producer} repeats a sequence")
    sent.time_ms = time_ms
    if sent.sequence > last:
        assert state.last_message is not None  # an earlier op of the frame has appended the message
        ledger, entry, count = state.last_message
        sent.ledger, sent.entry, sent.index, sent.row = ledger, entry, min(count, 1), op.row
    state.gaps += (len(sent.gaps) - old_gaps) // 2
    while state.gaps > GAPS_MAX:
        _forget(state)


def _forget(state: Topic) -> None:
    """Make the producer with the most gaps, and any with half as many, forget a quarter."""
    most = max([len(sent.gaps) for sent in state.producers.values()])
    for sent in state.producers.values():
        if 2 * len(sent.gaps) >= most:
            dropped = max(1, len(sent.gaps) // 8)
            sequences.forget(sent, dropped)
            state.gaps -= dropped


def _named(
    state: Topic, lsn: int, time_ms: int, op: ProducerOpened | ProducersForgotten | Deduplicated
) -> None:
    """Apply an op about named producers."""
    if isinstance(op, ProducerOpened):
        _opened(state, lsn, time_ms, op)
    elif isinstance(op, ProducersForgotten):
        for name in op.producers:
            forgotten = state.producers.pop(name, None)
            state.gaps -= 0 if forgotten is None else len(forgotten.gaps) // 2
    else:
        state.dedup_dropped += op.dropped
        state.dedup_missing += op.missing


def _delays_counted(state: Topic, lsn: int, time_ms: int, op: DelaysCounted) -> None:
    state.delays_refused += op.refused
    state.delays_beyond_ttl += op.beyond_ttl


def _mismatched(state: Topic, lsn: int, time_ms: int, op: SchemaMismatched) -> None:
    state.mismatched += op.messages


def _compacted(state: Topic, lsn: int, time_ms: int, op: PartitionCompacted) -> None:
    compaction = state.compaction
    ledgers, horizon = (
        ([], (0, -1)) if compaction is None else (compaction.ledgers, compaction.horizon)
    )
    if op.old != ledgers or op.horizon < horizon:
        raise broken("topic", lsn, f"a compaction replaces ledgers {op.old}, not {ledgers}")
    state.compaction = Compaction([file.ledger for file in op.files], op.horizon, op.lsn, time_ms)


def _opened(state: Topic, lsn: int, time_ms: int, op: ProducerOpened) -> None:
    opened = state.producers.setdefault(op.producer, ProducerState(-1, 0, -1, time_ms))
    if op.epoch <= opened.epoch:
        raise broken("topic", lsn, f"producer {op.producer} opens with an old epoch")
    opened.epoch, opened.time_ms = op.epoch, time_ms


def _trim(state: Topic, lsn: int, op: LedgerTrimmed) -> None:
    if len(state.ledgers) < 2 or state.ledgers[0].ledger != op.ledger:
        raise broken("topic", lsn, f"ledger {op.ledger} is not the oldest closed one")
    end = state.ledgers.pop(0)
    if (end.messages, end.payload_bytes) != (op.messages, op.payload_bytes):
        raise broken("topic", lsn, f"ledger {op.ledger} has {end.messages} messages")
    state.messages -= end.messages
    state.payload_bytes -= end.payload_bytes
    state.trimmed_messages += end.messages
    state.trimmed_bytes += end.payload_bytes
    if op.through is not None:
        state.trimmed = op.through
    if state.last_message is not None and state.last_message[0] <= op.ledger:
        state.last_message = None


def _grow(
    state: Topic,
    lsn: int,
    time_ms: int,
    ledger: int,
    first: int,
    rows: int,
    messages: int,
    payload_bytes: int,
) -> None:
    if not state.ledgers:
        raise broken("topic", lsn, f"ledger {ledger} has not been opened")
    end = state.ledgers[-1]
    if end.ledger != ledger or end.entries != first:
        raise broken("topic", lsn, f"entry {ledger}:{first} does not follow the last")
    if not first:
        end.first_ms = time_ms
    end.last_ms = max(end.last_ms, time_ms)
    end.entries = first + rows
    end.payload_bytes += payload_bytes
    state.payload_bytes += payload_bytes
    if messages:
        end.messages += messages
        state.messages += messages
        state.last_publish_ms = time_ms


# Looked up by the type of the op: a chain of isinstance would cost more than applying the ops.
_TAKES: dict[type, Callable[[Topic, int, int, Any], None]] = {
    Adopted: _adopted,
    Appended: _appended,
    CommitMarker: _take_commit_marker,
    LedgerRolled: _take_ledger_rolled,
    LedgerSealed: _take_ledger_sealed,
    SequencesStored: _sequences_stored,
    ProducerOpened: _named,
    ProducersForgotten: _named,
    Deduplicated: _named,
    DelaysCounted: _delays_counted,
    PartitionCompacted: _compacted,
    SchemaMismatched: _mismatched,
    LedgerTrimmed: _take_ledger_trimmed,
    WatermarkSet: _take_watermark,
    WatermarkIdled: _take_watermark,
    WatermarkSnapshot: _take_watermark,
}
_decoder = msgspec.msgpack.Decoder(Topic)
FOLD = Fold("topic", Topic, apply, msgspec.msgpack.encode, _decoder.decode, _TAKES)

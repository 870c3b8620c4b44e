"""The transaction-key fold: who holds which key of one coordinator, and since which epoch.

Ledger: system/__transaction_key/<coordinator>. Ops
  KeyConnected, KeyBound, KeyReleased, KeyDeleted, BatchRecorded.

    none ──connect──> living, epoch 0 ──connect──> living, epoch + 1 ──delete──> tombstone
                                                        ^                            │
                                                        └──────────connect───────────┘

Invariants
  1. The epoch of a key never falls, deletion included: each connect is one above the last (I-1).
  2. Only the newest epoch of a living key binds a transaction.
  3. `sequence` is the transaction bound last until it has ended; OPEN is none but that (I-16).
  4. Numbers of batches rise, names are there once; a tombstone keeps both.
Source: "Transaction keys" (the map of keys, epochs and transactions); spec/transactions 10.
"""

from __future__ import annotations

import msgspec

from txlog.engine.model.ops import (
    Batch,
    BatchRecorded,
    Fold,
    KeyBound,
    KeyConnected,
    KeyDeleted,
    KeyReleased,
    Op,
    broken,
    unexpected,
)

# How many open times of ended transactions a key keeps, for the quantiles of the metrics.
RECENT_MAX = 64


class Key(msgspec.Struct, array_like=True, gc=False):
    """A transaction key.

    ended_count, open_ms_sum, recent_ms: figures over its whole life, in ms
    batch, last: the number of the batch recorded last, -1: none has one, and what it was
    names:       the batches that have a name
    """

    owner: str
    epoch: int
    sequence: int = -1
    connected_ms: int = 0
    used_ms: int = 0
    deleted: bool = False
    ended_count: int = 0
    open_ms_sum: int = 0
    recent_ms: list[int] = []
    batch: int = -1
    last: Batch | None = None
    names: dict[str, Batch] = {}


class Keys(msgspec.Struct, array_like=True):
    """State of the fold: uid -> key -> its state, tombstones included."""

    of: dict[int, dict[str, Key]] = {}


def apply(state: Keys, lsn: int, time_ms: int, op: Op) -> None:
    """Apply one op."""
    if isinstance(op, KeyConnected):
        of_owner = state.of.setdefault(op.uid, {})
        known = of_owner.get(op.key)
        if op.epoch != (0 if known is None else known.epoch + 1):
            raise broken("key", lsn, f"epoch {op.epoch} does not follow the last")
        if known is None:
            known = of_owner[op.key] = Key(op.owner, op.epoch)
        known.owner, known.epoch, known.deleted = op.owner, op.epoch, False
        known.connected_ms = known.used_ms = time_ms
    elif isinstance(op, KeyBound):
        known = _living(state, lsn, op.uid, op.key)
        if op.epoch != known.epoch:
            raise broken("key", lsn, f"epoch {op.epoch} is not the newest, {known.epoch} is")
        known.sequence, known.used_ms = op.sequence, time_ms
    elif isinstance(op, KeyReleased):
        known = find(state, op.uid, op.key)
        if known is None:
            raise broken("key", lsn, "a key that was never connected")
        if known.sequence == op.sequence:
            known.sequence = -1
        known.ended_count += 1
        known.open_ms_sum += op.open_ms
        known.recent_ms = [*known.recent_ms, op.open_ms][-RECENT_MAX:]
    elif isinstance(op, BatchRecorded):
        _record(_living(state, lsn, op.uid, op.key), lsn, op)
    elif isinstance(op, KeyDeleted):
        _living(state, lsn, op.uid, op.key).deleted = True
    else:
        raise unexpected("key", lsn, op)


def _record(known: Key, lsn: int, op: BatchRecorded) -> None:
    answer = msgspec.structs.replace(op.answer, lsn=lsn)
    if isinstance(op.batch, int):
        if op.batch <= known.batch:
            raise broken("key", lsn, f"batch {op.batch} does not follow {known.batch}")
        known.batch, known.last = op.batch, answer
    elif op.batch in known.names:
        raise broken("key", lsn, f"batch {op.batch} was recorded before")
    else:
        known.names[op.batch] = answer


def _living(state: Keys, lsn: int, uid: int, key: str) -> Key:
    known = find(state, uid, key)
    if known is None or known.deleted:
        raise broken("key", lsn, "a key that is not connected")
    return known


def find(state: Keys, uid: int, key: str) -> Key | None:
    """The key of this owner, a tombstone too; None when it was never connected here."""
    return state.of.get(uid, {}).get(key)


_decoder = msgspec.msgpack.Decoder(Keys)
FOLD = Fold("key", Keys, apply, msgspec.msgpack.encode, _decoder.decode)

"""The transaction-key fold: the keys of one coordinator, their holders and epochs.

Log of its changes: system/__transaction_key, for all coordinators. Ops
  KeyConnected, KeyBound, KeyReleased, KeyDeleted, BatchRecorded.

    none ──connect──> living, epoch 0 ──connect──> living, epoch + 1 ──delete──> tombstone
                                                        ^                            │
                                                        └──────────connect───────────┘

Invariants
  1. The epoch of a key never falls, deletion included: each connect is one above the last (I-1).
  2. Only the newest epoch of a living key binds a transaction.
  3. `sequence` is the transaction bound last until it has ended; no other transaction of the key is
    OPEN (I-16).
  4. Numbers of batches rise, and a name is recorded once; a tombstone keeps both.
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
    batch, last: the number of the last recorded batch, -1: none, and its record
    names:       the batches with a name
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
        key_record = of_owner.get(op.key)
        if op.epoch != (0 if key_record is None else key_record.epoch + 1):
            raise broken("key", lsn, f"epoch {op.epoch} does not follow the last")
        if key_record is None:
            key_record = of_owner[op.key] = Key(op.owner, op.epoch)
        key_record.owner, key_record.epoch, key_record.deleted = op.owner, op.epoch, False
        key_record.connected_ms = key_record.used_ms = time_ms
    elif isinstance(op, KeyBound):
        key_record = _living(state, lsn, op.uid, op.key)
        if op.epoch != key_record.epoch:
            raise broken("key", lsn, f"epoch {op.epoch} is not the newest, {key_record.epoch} is")
        key_record.sequence, key_record.used_ms = op.sequence, time_ms
    elif isinstance(op, KeyReleased):
        key_record = find(state, op.uid, op.key)
        if key_record is None:
            raise broken("key", lsn, "a key that was never connected")
        if key_record.sequence == op.sequence:
            key_record.sequence = -1
        key_record.ended_count += 1
        key_record.open_ms_sum += op.open_ms
        key_record.recent_ms = [*key_record.recent_ms, op.open_ms][-RECENT_MAX:]
    elif isinstance(op, BatchRecorded):
        _record(_living(state, lsn, op.uid, op.key), lsn, op)
    elif isinstance(op, KeyDeleted):
        _living(state, lsn, op.uid, op.key).deleted = True
    else:
        raise unexpected("key", lsn, op)


def _record(key_record: Key, lsn: int, op: BatchRecorded) -> None:
    answer = msgspec.structs.replace(op.answer, lsn=lsn)
    if isinstance(op.batch, int):
        if op.batch <= key_record.batch:
            raise broken("key", lsn, f"batch {op.batch} does not follow {key_record.batch}")
        key_record.batch, key_record.last = op.batch, answer
    elif op.batch in key_record.names:
        raise broken("key", lsn, f"batch {op.batch} was recorded before")
    else:
        key_record.names[op.batch] = answer


def _living(state: Keys, lsn: int, uid: int, key: str) -> Key:
    key_record = find(state, uid, key)
    if key_record is None or key_record.deleted:
        raise broken("key", lsn, "a key that is not connected")
    return key_record


def find(state: Keys, uid: int, key: str) -> Key | None:
    """The key of this owner, also a tombstone; None when it was never connected here."""
    return state.of.get(uid, {}).get(key)


_decoder = msgspec.msgpack.Decoder(Keys)
FOLD = Fold("key", Keys, apply, msgspec.msgpack.encode, _decoder.decode)

"""Transaction keys as rows and as metrics.

The names in the answers are the fields that the commands print. The metrics:

    pulsar_txn_transaction_key_count   living keys      _epoch   the newest epoch of each
    pulsar_txn_transaction_key_age     summary: how long transactions of the key were open, one
                                       observation for each ended; quantiles over the last 64
    txlog_transaction_key_last_used_seconds             to find unused keys

Source: the metrics of the transaction-key proposal; spec/transactions 16.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from typing import TYPE_CHECKING

from txlog.base.ids import TxnId
from txlog.client.answers.metric_family import Family, Sample
from txlog.client.answers.topics_and_txns import begun, topics_of
from txlog.engine.door import keys
from txlog.engine.door.keys import Key, KeyConnection, KeyedTxn, Owner
from txlog.engine.door.store import Store, View
from txlog.engine.door.topics import keys_named
from txlog.engine.door.transactions import Txn

if TYPE_CHECKING:
    from txlog.base.rows.transactions import (
        KeyConnected,
        KeyDescription,
        KeyRow,
        KeyTransaction,
        TransactionBegun,
    )


# --- rows ------------------------------------------------------------------------------------


def connected(answer: KeyConnection) -> KeyConnected:
    """The answer of connect."""
    return {
        "transaction_key": answer.key,
        "owner": answer.owner,
        "owner_uid": answer.owner_uid,
        "epoch": answer.epoch,
        "coordinator": answer.coordinator,
        "fenced_txn": answer.fenced,
    }


def opened(view: View, answer: KeyedTxn, store: Store) -> TransactionBegun:
    """The answer of begin under a key."""
    return {**begun(view, answer.txn_id, store), "fenced_txn": answer.fenced}


def coordinators(view: View) -> tuple[int, ...]:
    """The coordinators that have keys, living or deleted."""
    return tuple(sorted(number for kind, number, _ in view.known() if kind == "key"))


def transaction_keys(
    view: View, store: Store, deleted: bool, owner: str | int | None
) -> list[KeyRow]:
    """Every living key, by key and owner; deleted: also deleted keys."""
    out: list[KeyRow] = []
    for number in coordinators(view):
        newest = _newest_unfinished(view.coordinator(number).unfinished.values())
        for uid, of_owner in view.keys(number).of.items():
            for key, record in of_owner.items():
                is_of_owner = owner is None or str(owner) in (str(uid), record.owner)
                if is_of_owner and (deleted or not record.deleted):
                    txn = newest.get((uid, key))
                    out.append(_row(view, store, number, uid, key, record, txn))
    return sorted(out, key=lambda row: (row["transaction_key"], row["owner_uid"]))


def still_named(view: View, store: Store, renamed: list[tuple[str, str]]) -> list[str]:
    """The keys of functions that may get another key from the new names of their inputs.

    renamed: (before, now) of each topic
    """
    keys = [row["transaction_key"] for row in transaction_keys(view, store, False, None)]
    pairs = [pair for pair in renamed if pair[0] != pair[1]]
    return sorted({key for before, now in pairs for key in keys_named(view, before, now, keys)})


def transaction_key(
    view: View, store: Store, caller: Owner, key: str, owner: str | int | None
) -> KeyDescription:
    """One living key with its remembered transactions, newest first."""
    keys.check_key(key)
    holder = keys.find_owner(view, caller, owner)
    number = keys.home(view, store.settings, holder[0], key)
    record = keys.living(view, number, holder, key)
    state = view.coordinator(number)
    newest = _newest_unfinished(state.unfinished.values())
    txns = [
        txn
        for pool in (state.unfinished, state.ended)
        for txn in pool.values()
        if (txn.owner_uid, txn.key) == (holder[0], key)
    ]
    rows: list[KeyTransaction] = [
        {
            "txn": TxnId(number, txn.sequence),
            "state": txn.status.lower(),
            "reason": txn.reason,
            "begin_time": txn.wall_ms,
            "end_time": txn.ended_ms or None,
        }
        for txn in sorted(txns, key=lambda txn: -txn.sequence)
    ]
    txn = newest.get((holder[0], key))
    return {**_row(view, store, number, holder[0], key, record, txn), "txn_list": rows}


def _newest_unfinished(txns: Iterable[Txn]) -> dict[tuple[int, str], Txn]:
    newest = {(txn.owner_uid, txn.key): txn for txn in sorted(txns, key=lambda txn: txn.sequence)}
    return {(uid, key): txn for (uid, key), txn in newest.items() if key is not None}


def _row(
    view: View, store: Store, number: int, uid: int, key: str, record: Key, txn: Txn | None
) -> KeyRow:
    now = store.clock.now()
    return {
        "transaction_key": key,
        "owner": record.owner,
        "epoch": record.epoch,
        "txn": None if txn is None else TxnId(number, txn.sequence),
        "txn_state": None if txn is None else txn.status.lower(),
        "coordinator": number,
        "last_used_time": record.used_ms,
        "owner_uid": uid,
        "age_ms": now.wall_ms - record.used_ms,
        "connected_time": record.connected_ms,
        "deleted": record.deleted,
        "topic_list": [] if txn is None else topics_of(view, txn),
    }


# --- metrics ---------------------------------------------------------------------------------

QUANTILES = (0.5, 0.9, 0.99)


def living_keys(view: View) -> dict[tuple[int, str], Key]:
    """The keys that are not deleted, by (uid, key)."""
    return {pair: record for _, pair, record in _living(view)}


def living_counts(view: View) -> Counter[int]:
    """How many living keys each coordinator has."""
    return Counter(coordinator for coordinator, _, _ in _living(view))


def _living(view: View) -> Iterator[tuple[int, tuple[int, str], Key]]:
    for component in sorted(view.known()):
        if component[0] == "key":
            for uid, keys in view.keys(component[1]).of.items():
                for key, record in keys.items():
                    if not record.deleted:
                        yield component[1], (uid, key), record


def key_families(keys: dict[tuple[int, str], Key]) -> Iterator[Family]:
    """The metrics of these keys; a label is OWNER&KEY."""
    labelled = [(labels, keys[pair]) for pair, labels in _labels(keys)]
    yield Family(
        "pulsar_txn_transaction_key_count",
        "gauge",
        "living transaction keys",
        [("", {}, len(keys))],
    )
    yield Family(
        "pulsar_txn_transaction_key_epoch",
        "gauge",
        "newest epoch of the key",
        [("", labels, record.epoch) for labels, record in labelled],
    )
    yield Family(
        "pulsar_txn_transaction_key_age",
        "summary",
        "seconds from begin to end of the key's transactions",
        [sample for labels, record in labelled for sample in _ages(labels, record)],
    )
    yield Family(
        "txlog_transaction_key_last_used_seconds",
        "gauge",
        "when the key was last used",
        [("", labels, record.used_ms / 1000) for labels, record in labelled],
    )


def _labels(
    keys: dict[tuple[int, str], Key],
) -> Iterator[tuple[tuple[int, str], dict[str, str]]]:
    """The labels of each key; if users have the same name, the label has their number."""
    seen: dict[tuple[str, str], int] = {}
    for (_, key), record in keys.items():
        seen[record.owner, key] = seen.get((record.owner, key), 0) + 1
    for (uid, key), record in sorted(keys.items(), key=lambda item: item[0]):
        owner = record.owner if seen[record.owner, key] == 1 else str(uid)
        yield (uid, key), {"transaction_key": f"{owner}&{key}"}


def _ages(labels: dict[str, str], record: Key) -> Iterable[Sample]:
    out: list[Sample] = []
    if record.recent_ms:
        for quantile in QUANTILES:
            value = nearest_rank(record.recent_ms, quantile) / 1000
            out.append(("", {**labels, "quantile": f"{quantile:g}"}, value))
    out.append(("_count", labels, record.ended_count))
    out.append(("_sum", labels, record.open_ms_sum / 1000))
    return out


def nearest_rank(values: Sequence[int], quantile: float) -> int:
    """The smallest value that this share of the values does not exceed."""
    return sorted(values)[max(0, ceil(quantile * len(values)) - 1)]

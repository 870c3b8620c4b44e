"""What transaction keys look like: the answers about them as plain values.

Reading functions over a view; the names in the answers are the fields that the commands print.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from txlog.answers.topics_and_txns import begun, topics_of
from txlog.engine.decide.transactions import keys
from txlog.engine.decide.transactions.keys import Connected, Opened, Owner
from txlog.engine.folds.coordinator import Txn
from txlog.engine.folds.transaction_key import Key
from txlog.engine.store.store import Store
from txlog.engine.view.view import View
from txlog.ids import TxnId

Answer = dict[str, Any]


def connected(answer: Connected) -> Answer:
    """The answer of connect."""
    return {
        "transaction_key": answer.key, "owner": answer.owner, "owner_uid": answer.owner_uid,
        "epoch": answer.epoch, "coordinator": answer.coordinator, "fenced_txn": answer.fenced,
    }  # fmt: skip


def opened(view: View, answer: Opened, store: Store) -> Answer:
    """The answer of begin under a key."""
    return {**begun(view, answer.txn_id, store), "fenced_txn": answer.fenced}


def coordinators(view: View) -> tuple[int, ...]:
    """Coordinators that have keys; their transactions are swept before they are told of."""
    return tuple(sorted(number for kind, number, _ in view.known() if kind == "key"))


def transaction_keys(
    view: View, store: Store, deleted: bool, owner: str | int | None
) -> list[Answer]:
    """Every living key, by key and owner; deleted: tombstones too."""
    out: list[Answer] = []
    for number in coordinators(view):
        newest = _newest_unfinished(view.coordinator(number).unfinished.values())
        for uid, of_owner in view.keys(number).of.items():
            for key, known in of_owner.items():
                wanted = owner is None or str(owner) in (str(uid), known.owner)
                if wanted and (deleted or not known.deleted):
                    txn = newest.get((uid, key))
                    out.append(_row(view, store, number, uid, key, known, txn))
    return sorted(out, key=lambda row: (row["transaction_key"], row["owner_uid"]))


def transaction_key(
    view: View, store: Store, caller: Owner, key: str, owner: str | int | None
) -> Answer:
    """One living key with the transactions that are remembered of it, newest first."""
    keys.check_key(key)
    holder = keys.find_owner(view, caller, owner)
    number = keys.home(view, store.settings, holder[0], key)
    known = keys.living(view, number, holder, key)
    state = view.coordinator(number)
    newest = _newest_unfinished(state.unfinished.values())
    mine = [
        txn for pool in (state.unfinished, state.ended) for txn in pool.values()
        if (txn.owner_uid, txn.key) == (holder[0], key)
    ]  # fmt: skip
    rows = [
        {"txn": TxnId(number, txn.sequence), "state": txn.status.lower(), "reason": txn.reason,
         "begin_time": txn.wall_ms, "end_time": txn.ended_ms or None}
        for txn in sorted(mine, key=lambda txn: -txn.sequence)
    ]  # fmt: skip
    txn = newest.get((holder[0], key))
    return {**_row(view, store, number, holder[0], key, known, txn), "txn_list": rows}


def _newest_unfinished(txns: Iterable[Txn]) -> dict[tuple[int, str], Txn]:
    found = {(txn.owner_uid, txn.key): txn for txn in sorted(txns, key=lambda txn: txn.sequence)}
    return {(uid, key): txn for (uid, key), txn in found.items() if key is not None}


def _row(
    view: View, store: Store, number: int, uid: int, key: str, known: Key, txn: Txn | None
) -> Answer:
    now = store.clock.now()
    return {
        "transaction_key": key, "owner": known.owner, "epoch": known.epoch,
        "txn": None if txn is None else TxnId(number, txn.sequence),
        "txn_state": None if txn is None else txn.status.lower(), "coordinator": number,
        "last_used_time": known.used_ms, "owner_uid": uid, "age_ms": now.wall_ms - known.used_ms,
        "connected_time": known.connected_ms, "deleted": known.deleted,
        "topic_list": [] if txn is None else topics_of(view, txn),
    }  # fmt: skip

"""Calls that name a transaction by its id or key: end it, wait for its end, connect, begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txlog.base.ids import TxnId
from txlog.base.logs import log_event
from txlog.base.suggest import command_line
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.transactions import keys
from txlog.engine.decide.transactions import transaction as end_txn
from txlog.engine.decide.transactions.keys import KeyConnection, KeyedTxn
from txlog.engine.decide.transactions.sweep import CallScope
from txlog.engine.decide.transactions.transaction import EndAnswer
from txlog.engine.folds.coordinator import PREPARED, Txn
from txlog.engine.plan.lookup import transaction as find_transaction
from txlog.engine.session.reading.pause import until
from txlog.engine.store.store import Store
from txlog.engine.view import View
from txlog.errors import OutcomeUnknown

if TYPE_CHECKING:
    from txlog.engine.session.transactions.commits import Ending

# --- by id -----------------------------------------------------------------------------------


def end(store: Store, txn_id: TxnId, *, commit: bool) -> EndAnswer:
    """Commit or abort; durable on return. OutcomeUnknown has the id and a hint how to ask again."""
    uid = store.disk.owner()[0]
    try:
        answer = store.write(
            lambda view, now: end_txn.end(view, store.settings, now, uid, txn_id, commit=commit),
            uses=CallScope(txn=(txn_id.coordinator, txn_id.sequence)),
        )
    except OutcomeUnknown as error:
        raise unknown_end(txn_id, error) from error
    return answer


def resolve(store: Store, txn_id: TxnId, *, commit: bool) -> EndAnswer:
    """End a prepared transaction as its database says; durable, as `end`."""
    uid = store.disk.owner()[0]
    try:
        answer = store.write(
            lambda view, now: end_txn.resolve(
                view, store.settings, now, uid, txn_id, commit=commit
            ),
            uses=CallScope(txn=(txn_id.coordinator, txn_id.sequence)),
        )
    except OutcomeUnknown as error:
        raise unknown_end(txn_id, error) from error
    return answer


def prepared(view: View, database: str | None = None) -> dict[TxnId, Txn]:
    """The prepared transactions, oldest first; database: only those that it decides."""
    view.load_coordinators()
    records = {
        TxnId(number, sequence): txn
        for number, state in view.loaded_coordinators()
        for sequence, txn in state.unfinished.items()
        if txn.prepared is not None
        and txn.status == PREPARED
        and database in (None, txn.prepared.database)
    }
    return dict(sorted(records.items(), key=lambda item: item[1].modified_ms))


def recorded(store: Store, txn_id: TxnId) -> EndAnswer:
    """How far a transaction has come."""

    def look(view: View) -> EndAnswer:
        txn = find_transaction(view, txn_id, store.settings.coordinators)
        open_ms = max(0, store.clock.now().wall_ms - txn.wall_ms)
        return end_txn.recorded(view, txn_id, txn, open_ms)

    return store.read(look)


def unknown_end(txn_id: TxnId, error: OutcomeUnknown) -> OutcomeUnknown:
    """A copy of the error for one transaction: several callers may share the original."""
    ours = OutcomeUnknown(error.message, hint=how_to_ask(txn_id))
    ours.fields = {**error.fields, "txn": txn_id}
    return ours


def how_to_ask(txn_id: TxnId) -> str:
    """The hint for a caller whose commit or abort may or may not have happened."""
    return f"ask before anything else: {command_line('txn show', txn_id)}"


def await_end(store: Store, txn_id: TxnId, wait_ms: int) -> None:
    """Wait, without a lock, until a transaction has ended, but at most wait_ms."""
    until(store, lambda _: has_ended(store, txn_id), wait_ms)


def has_ended(store: Store, txn_id: TxnId) -> bool | None:
    """True once the transaction has ended, else None."""

    def look(view: View) -> bool | None:
        ended_ms = find_transaction(view, txn_id, store.settings.coordinators).ended_ms
        return ended_ms != 0 or None

    return store.read(look)


# --- by key ----------------------------------------------------------------------------------


def connect(store: Store, key: str, epoch: int, owner: str | int | None) -> KeyConnection:
    """Connect a transaction key, as decide/transactions/keys: this fences its previous holder."""
    caller = store.disk.owner()
    answer = store.write(
        lambda view, now: keys.connect(view, store.settings, now, caller, key, epoch, owner)
    )
    fenced = "no transaction" if answer.fenced is None else f"transaction {answer.fenced}"
    log_event("fencing", "info", "key %s has epoch %d: that fenced %s", key, answer.epoch, fenced)
    return answer


def begin(
    store: Store,
    timeout_ms: int | None,
    key: str,
    epoch: int | None,
    owner: str | int | None,
    previous: Ending | None = None,
) -> KeyedTxn:
    """Begin a keyed transaction now, not at its first send; as decide/transactions/keys.

    An open transaction that the key's previous holder left behind is aborted at once.
    previous: the newest commit in flight of the client: if it must be repeated, it comes first, or
              else it would be aborted, too
    """
    caller = store.disk.owner()

    def decide(view: View, now: Instant) -> Decision[KeyedTxn | None]:
        if previous is not None and not previous.is_decided:
            return Decision([])
        return keys.begin(view, store.settings, now, caller, timeout_ms, key, epoch, owner)

    while (answer := store.write(decide)) is None:
        assert previous is not None
        previous.future.wait()
    return answer

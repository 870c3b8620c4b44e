"""Transaction keys: connecting, beginning under a key, deleting; fencing earlier holders.

    stored epoch s   presented -1      presented s   below s      above s
    none             0                 -             -            NotAllowed
    living           s+1, take-over    s+1           NotAllowed   NotAllowed
    tombstone        s+1, lives again  NotAllowed    NotAllowed   NotAllowed

The frame that connects also aborts the OPEN transaction of the holder before, with reason `fenced`
(Law 4). An overdue transaction is aborted with reason `timeout` instead, as a sweep would.
A transaction that is already decided is left to finish. A PREPARED transaction stays bound to the
key under the new epoch. Until its database has given the outcome, beginning another transaction
under the key and deleting the key are refused.
Source: "Transaction keys" (connection, fencing); spec/transactions 4, 10.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from functools import partial
from itertools import islice
from zlib import crc32

import msgspec

from txlog.base.ids import TxnId
from txlog.base.settings import TRANSACTION_KEY_BYTES_MAX, Settings
from txlog.base.suggest import NAMES_MAX, suggestion
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.decide.transactions.transaction import NewTxn, abort_ops, check_timeout, open_txn
from txlog.engine.folds import transaction_key as keys
from txlog.engine.folds.coordinator import OPEN, PREPARED
from txlog.engine.folds.transaction_key import Key
from txlog.engine.model.ops import NEW_HOLDER, KeyBound, KeyConnected, KeyDeleted
from txlog.engine.plan.lookup import ROOT_UID, is_overdue, prepared_error
from txlog.engine.view import View
from txlog.errors import InvalidArgument, NotAllowed, ProducerFenced, TransactionKeyNotFound

Owner = tuple[int, str]


class KeyConnection(msgspec.Struct, frozen=True, gc=False):
    """The answer of connect; fenced: the transaction that it aborted with reason `fenced`."""

    key: str
    owner_uid: int
    owner: str
    epoch: int
    coordinator: int
    fenced: TxnId | None


class KeyedTxn(msgspec.Struct, frozen=True, gc=False):
    """The answer of begin; fenced: as in KeyConnection."""

    txn_id: TxnId
    fenced: TxnId | None


class DeletedKey(msgspec.Struct, frozen=True):
    """The answer of delete: the epoch that the tombstone keeps, and the transactions it aborted."""

    key: str
    owner_uid: int
    owner: str
    epoch: int
    aborted: list[TxnId]


def connect(
    view: View,
    settings: Settings,
    now: Instant,
    caller: Owner,
    key: str,
    epoch: int,
    owner: str | int | None = None,
) -> Decision[KeyConnection]:
    """Decide that a holder takes a key; durable; answers KeyConnection.

    epoch:  the last epoch of this holder; -1 for a new holder, which always takes over
    owner:  the user that owns the key, by default the caller
    raises: InvalidArgument; NotAllowed (an epoch of the table above, another's key)
    """
    check_key(key)
    _check_epoch(epoch)
    draft = Draft(view, settings, now.wall_ms)
    holder = find_owner(view, caller, owner)
    answer, _ = connect_ops(draft, now, holder, key, epoch, keeps_prepared=True)
    return draft.decision(answer, sync=True)


def begin(
    view: View,
    settings: Settings,
    now: Instant,
    caller: Owner,
    timeout_ms: int | None,
    key: str,
    epoch: int | None = None,
    owner: str | int | None = None,
) -> Decision[KeyedTxn]:
    """Decide a new transaction under a key, and abort the key's OPEN one; answers KeyedTxn.

    epoch:  of the connection; None or -1: connect in the same frame
    raises: ProducerFenced (not the newest epoch, or the key was deleted), InvalidArgument,
            LimitExceeded, NotAllowed
    """
    check_key(key)
    timeout_ms = check_timeout(settings, timeout_ms)
    draft = Draft(view, settings, now.wall_ms)
    if epoch is not None:
        _check_epoch(epoch)
    holder = find_owner(view, caller, owner)
    connects = epoch is None or epoch == NEW_HOLDER
    if connects:
        connected, freed = connect_ops(draft, now, holder, key, NEW_HOLDER)
    else:
        assert epoch is not None
        connected, freed = _go_on(draft, now, holder, key, epoch)
    number = connected.coordinator
    new = NewTxn(holder, now, timeout_ms, number)
    txn = open_txn(draft, new, key=key, epoch=connected.epoch, freed=freed)
    draft.ops.append(KeyBound(number, holder[0], key, connected.epoch, txn.sequence))
    # durable, because the answer that another transaction was aborted must stay true
    answer = KeyedTxn(TxnId(number, txn.sequence), connected.fenced)
    decision = draft.decision(answer, sync=connects or freed > 0)
    decision.waits = decision.sync
    return decision


def delete(
    view: View,
    settings: Settings,
    now: Instant,
    caller: Owner,
    key: str,
    owner: str | int | None = None,
) -> Decision[DeletedKey]:
    """Decide to delete a key; durable; answers DeletedKey.

    A tombstone keeps the epoch, so that no old holder matches a key that is connected again.
    raises: TransactionKeyNotFound, NotAllowed (another's key)
    """
    check_key(key)
    draft = Draft(view, settings, now.wall_ms)
    uid, name = find_owner(view, caller, owner)
    number = home(view, settings, uid, key)
    key_record = living(view, number, (uid, name), key)
    _, fenced = _fence(draft, now, number, key_record)
    draft.ops.append(KeyDeleted(number, uid, key))
    aborted = [] if fenced is None else [fenced]
    return draft.decision(
        DeletedKey(key, uid, key_record.owner, key_record.epoch, aborted), sync=True
    )


def home(view: View, settings: Settings, uid: int, key: str) -> int:
    """The coordinator of a key: where it is registered, or where a new key is to be registered.

    The number of coordinators grows; a key stays where it was made, so it is looked for under every
    number the store has had, newest first, tombstones included.
    """
    digest = crc32(f"{uid}&{key}".encode())
    for count in (settings.coordinators, *reversed(view.catalog.coordinator_counts)):
        if keys.find(view.keys(digest % count), uid, key) is not None:
            return digest % count
    return digest % settings.coordinators


def living(view: View, number: int, owner: Owner, key: str) -> Key:
    """The key at its coordinator; raises TransactionKeyNotFound, also for a tombstone."""
    key_record = keys.find(view.keys(number), owner[0], key)
    if key_record is None or key_record.deleted:
        state = "does not exist" if key_record is None else "was deleted"
        raise TransactionKeyNotFound(
            f"transaction key {owner[1]}&{key} {state}",
            hint=partial(
                suggestion,
                key,
                tuple(islice(living_keys(view, owner[0]), NAMES_MAX)),
                "txlog admin list-transaction-keys",
            ),
            transaction_key=key,
            owner=owner[1],
        )
    return key_record


def living_keys(view: View, uid: int) -> Iterator[str]:
    """The living keys of a user at all coordinators."""
    for kind, number, _ in sorted(view.known()):
        if kind == "key":
            for key, key_record in view.keys(number).of.get(uid, {}).items():
                if not key_record.deleted:
                    yield key


UID_MAX = (1 << 32) - 1  # as Linux has it


def find_owner(view: View, caller: Owner, owner: str | int | None) -> Owner:
    """The owner of the key: the caller, or for root a user by number or name.

    raises: NotAllowed for a key of another user; TransactionKeyNotFound if no user of that name has
            a key; InvalidArgument for a name of two users, and for a caller whose name cannot be
            shown
    """
    uid, name = caller
    if owner is None or owner in (uid, name, str(uid)):
        if "&" in name:
            raise InvalidArgument(f"the name of user {uid} has an &: it can have no key", code=202)
        return caller
    if uid != ROOT_UID:
        raise NotAllowed(
            f"only root may name the keys of {owner}", hint="leave out the owner", owner=str(owner)
        )
    owners = {
        (other, key_record.owner)
        for kind, number, _ in view.known()
        if kind == "key"
        for other, of_owner in view.keys(number).of.items()
        for key_record in of_owner.values()
        if str(owner) in (str(other), key_record.owner)
    }
    uids = {other for other, _ in owners}
    if len(uids) > 1:
        listed = ", ".join(map(str, sorted(uids)))
        raise InvalidArgument(f"{owner} is the name of users {listed}: give a number", code=205)
    if owners:
        return max(owners)
    if str(owner).isdecimal():
        if len(str(owner)) > 10 or int(owner) > UID_MAX:
            raise InvalidArgument(f"{str(owner)[:40]} is not a user's number", code=202)
        return int(owner), str(owner)
    raise TransactionKeyNotFound(f"user {owner} has no transaction key", owner=str(owner))


def check_key(key: str) -> None:
    """Raises InvalidArgument for a text that cannot be a transaction key; spec/transactions 2."""
    reason = None
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        size, reason = 1, "it is not valid text"
    if not 1 <= size <= TRANSACTION_KEY_BYTES_MAX:
        reason = f"it has {size} bytes, 1 to {TRANSACTION_KEY_BYTES_MAX} are allowed"
    elif "&" in key:
        reason = "& separates owner and key"
    elif any(unicodedata.category(char) == "Cc" for char in key):
        reason = "it has a control character"
    if reason is not None:
        excerpt = key if len(key) <= 80 else f"{key[:77]}..."
        raise InvalidArgument(f"bad transaction key {excerpt!r}: {reason}", code=202)


def _check_epoch(epoch: int) -> None:
    if epoch < NEW_HOLDER:
        raise InvalidArgument(
            f"the epoch is {epoch}, the smallest is -1", code=203, epoch=epoch, value=epoch
        )


def connect_ops(
    draft: Draft,
    now: Instant,
    holder: Owner,
    key: str,
    presented: int,
    *,
    keeps_prepared: bool = False,
) -> tuple[KeyConnection, int]:
    """Add the ops of a connection; returns it, and how many transactions the ops end.

    holder: from find_owner; presented: the epoch that the caller presents
    keeps_prepared: a PREPARED transaction stays bound to the key, else InvalidTxnStatus
    """
    uid, name = holder
    number = home(draft.view, draft.settings, uid, key)
    key_record = keys.find(draft.view.keys(number), uid, key)
    stored = -1 if key_record is None else key_record.epoch
    if presented != NEW_HOLDER and (
        key_record is None or key_record.deleted or presented != stored
    ):
        raise _refused(holder, key, key_record, presented)
    draft.ops.append(KeyConnected(number, uid, name, key, stored + 1))
    freed, fenced = 0, None
    if key_record is not None:
        freed, fenced = _fence(draft, now, number, key_record, keeps_prepared=keeps_prepared)
    return KeyConnection(key, uid, name, stored + 1, number, fenced), freed


def _go_on(
    draft: Draft, now: Instant, holder: Owner, key: str, epoch: int
) -> tuple[KeyConnection, int]:
    """As connect_ops, for a holder whose epoch must be the newest. Raises ProducerFenced."""
    uid, name = holder
    number = home(draft.view, draft.settings, uid, key)
    key_record = keys.find(draft.view.keys(number), uid, key)
    if key_record is None or key_record.deleted or epoch != key_record.epoch:
        why = "was never connected"
        if key_record is not None:
            why = "was deleted" if key_record.deleted else f"is at epoch {key_record.epoch}"
        raise ProducerFenced(
            f"epoch {epoch} may not begin: transaction key {name}&{key} {why}",
            hint="stop this task",
            transaction_key=key,
            epoch=epoch,
            owner=name,
        )
    freed, fenced = _fence(draft, now, number, key_record)
    return KeyConnection(key, uid, name, epoch, number, fenced), freed


def _fence(
    draft: Draft, now: Instant, number: int, key_record: Key, *, keeps_prepared: bool = False
) -> tuple[int, TxnId | None]:
    """Add the abort of a key's OPEN transaction: (how many: 0 or 1, its id unless it timed out).

    raises: InvalidTxnStatus while it is PREPARED: only its database knows its outcome
    """
    txn = draft.view.coordinator(number).unfinished.get(key_record.sequence)
    if txn is not None and txn.status == PREPARED and not keeps_prepared:
        raise prepared_error(txn)
    if txn is None or txn.status != OPEN:
        return 0, None
    timed_out = is_overdue(txn, now)
    abort_ops(draft, txn, "timeout" if timed_out else "fenced")
    return 1, None if timed_out else TxnId(number, txn.sequence)


def _refused(holder: Owner, key: str, key_record: Key | None, presented: int) -> NotAllowed:
    """The error of a connection with an epoch that is neither -1 nor the newest."""
    hint = "-1 takes over"
    if key_record is None or presented > key_record.epoch:
        why = "newer than this store knows"
        hint = "was the store restored from a copy? -1 takes over"
    elif key_record.deleted:
        why = "the key was deleted"
    else:
        why = f"a newer holder has epoch {key_record.epoch}"
    return NotAllowed(
        f"transaction key {holder[1]}&{key} refuses epoch {presented}: {why}",
        hint=hint,
        transaction_key=key,
        epoch=presented,
        owner=holder[1],
    )

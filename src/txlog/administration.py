"""Owns Admin: what `txlog admin` does, as methods of `client.admin`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txlog import keyreport, spacing
from txlog.bounds import Bound
from txlog.engine.flow import admin, keys
from txlog.engine.flow.keys import Deleted
from txlog.engine.store import Store
from txlog.settings import HOUR_MS

Answer = dict[str, Any]


class Admin:
    """Administration of an open store.

    >>> import tempfile, txlog
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = txlog.init(folder, coordinators=4)
    ...     with txlog.open(folder, transaction_key="nightly") as client:
    ...         [(key["transaction_key"], key["epoch"]) for key in client.admin.transaction_keys()]
    ...         client.admin.scale_coordinators(8)
    [('nightly', 0)]
    {'before': 4, 'after': 8}
    """

    __slots__ = ("_automatic", "_store", "_sweep")

    def __init__(
        self, store: Store, sweep: Callable[[tuple[int, ...]], None], *,
        checkpoint_automatically: bool = True,
    ) -> None:  # fmt: skip
        self._store = store
        self._sweep = sweep
        self._automatic = checkpoint_automatically

    # --- transaction keys and coordinators ---------------------------------------------------

    def transaction_keys(
        self, deleted: bool = False, owner: str | int | None = None
    ) -> list[Answer]:
        """The keys of all owners or one; the fields of `txlog admin list-transaction-keys`.

        deleted: tombstones too
        """
        self._sweep(self._store.read(keyreport.coordinators))
        self._store.settle()
        return self._store.read(
            lambda view: keyreport.transaction_keys(view, self._store, deleted, owner)
        )

    def transaction_key(self, key: str, owner: str | int | None = None) -> Answer:
        """One key with its remembered transactions, newest first.

        owner:  name or number of another user, for root
        raises: TransactionKeyNotFound, also for a deleted one; NotAllowed
        """
        self._sweep(self._store.read(keyreport.coordinators))
        self._store.settle()
        caller = self._store.disk.owner()
        return self._store.read(
            lambda view: keyreport.transaction_key(view, self._store, caller, key, owner)
        )

    def delete_transaction_key(
        self, key: str, owner: str | int | None = None, *, dry_run: bool = False
    ) -> Answer:
        """Delete a key; its open transaction is aborted, its last epoch is kept for ever.

        dry_run: only say what it would do
        returns: {transaction_key, owner, owner_uid, epoch, deleted, aborted_list}
        raises:  TransactionKeyNotFound, NotAllowed
        """
        store, caller = self._store, self._store.disk.owner()
        if dry_run:
            now = store.clock.now()
            answer = store.read(
                lambda view: keys.delete(view, store.settings, now, caller, key, owner).answer
            )
        else:
            answer = store.write(
                lambda view, now: keys.delete(view, store.settings, now, caller, key, owner)
            )
        assert isinstance(answer, Deleted)
        return {
            "transaction_key": answer.key, "owner": answer.owner, "owner_uid": answer.owner_uid,
            "epoch": answer.epoch, "deleted": True, "aborted_list": answer.aborted,
        }  # fmt: skip

    def scale_coordinators(self, count: int, *, dry_run: bool = False) -> Answer:
        """Have more transaction coordinators; {before, after}. Raises NotAllowed for fewer."""
        store = self._store
        if dry_run:
            now = store.clock.now()
            before = store.read(
                lambda view: admin.scale_coordinators(view, store.settings, now, count).answer
            )
        else:
            before = store.write(
                lambda view, now: admin.scale_coordinators(view, store.settings, now, count)
            )
        return {"before": before, "after": count}

    # --- space -------------------------------------------------------------------------------

    def compact(self, topic: str, partition: int | None = None, *, dry_run: bool = False) -> Answer:
        """Rewrite the sidecars of a topic in commit order, without dead rows.

        raises: TopicNotFound, StoreLocked (another process is at maintenance), StoreFull
        """
        return spacing.compact(self._store, topic, partition, dry_run=dry_run)

    def trim(
        self, topic: str, to: Bound | None = None, *, by_policy: bool = False,
        force_unacked: bool = False, dry_run: bool = False,
    ) -> Answer:  # fmt: skip
        """Let whole ledgers go: those before a bound, or those the topic's policies let go.

        raises: Refused when unacknowledged messages would go and it is not forced
        """
        return spacing.trim(
            self._store, topic, to, by_policy=by_policy, force_unacked=force_unacked,
            dry_run=dry_run, checkpoint=self._automatic,
        )  # fmt: skip

    def gc(self, apply: bool = False, keep_ms: int = HOUR_MS) -> Answer:
        """Files that no manifest names, with reasons; apply: unlink them."""
        return spacing.gc(self._store, apply=apply, keep_ms=keep_ms)

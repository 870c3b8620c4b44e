"""Owns Admin: the operations of administration on a store, reached by `client.admin`.

A method a command of `txlog admin`. Answers are plain values with the names the commands print;
instants are milliseconds, ids TxnId and MessageId.
"""

from __future__ import annotations

from typing import Any

from txlog import figures, keyreport, locks, partitionstats, stats
from txlog.engine.flow import admin, keys, lookup
from txlog.engine.flow.keys import Deleted
from txlog.engine.store import Store
from txlog.engine.upkeep import history
from txlog.errors import TransactionNotFound
from txlog.family import Family
from txlog.ids import MessageId, TopicName, TxnId
from txlog.looking import look, sweep_overdue

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

    __slots__ = ("_store",)

    def __init__(self, store: Store) -> None:
        self._store = store

    # --- figures -----------------------------------------------------------------------------

    def metrics(self) -> list[Family]:
        """Every metric as plain values; txlog.metrics makes the Prometheus text of them."""
        sweep_overdue(self._store)
        return look(self._store, lambda view: figures.families(view, self._store))

    def coordinators(self) -> list[Answer]:
        """Every coordinator; the fields of `txlog admin coordinators`."""
        return look(self._store, lambda view: stats.coordinators(view, self._store))

    def coordinator_stats(
        self, coordinator: int | None = None, *, internal: bool = False
    ) -> list[Answer]:
        """Figures of a coordinator, or of all. Raises CoordinatorNotFound."""
        return look(
            self._store,
            lambda view: stats.coordinator_stats(view, self._store, coordinator, internal=internal),
        )

    def transaction_metadata(self, txn_id: TxnId) -> Answer:
        """Everything known of a transaction. Raises TransactionNotFound."""
        sweep_overdue(self._store, (txn_id.coordinator,))
        return look(self._store, lambda view: stats.transaction_metadata(view, self._store, txn_id))

    def slow_transactions(self, older_than_ms: int, coordinator: int | None = None) -> list[Answer]:
        """Unfinished transactions older than this; rows of `txn list`."""
        sweep_overdue(self._store)
        return look(
            self._store,
            lambda view: stats.slow_transactions(view, self._store, older_than_ms, coordinator),
        )

    def message_keys(self, txn_id: TxnId) -> list[str]:
        """The distinct message keys of a transaction. Raises TransactionNotFound."""
        return look(self._store, lambda view: stats.message_keys(view, self._store, txn_id))

    def transaction_log(self, txn_id: TxnId) -> list[Answer]:
        """What the coordinator was told of a transaction; the fields of `txn log`.

        It reaches back as far as the retention of ended transactions, beyond their record.
        raises: TransactionNotFound, Corruption (a damaged history file)
        """
        self._store.settle()
        rows = history.transaction_rows(self._store, txn_id.coordinator, txn_id.sequence)
        if not rows:
            self._must_exist(txn_id)
        return look(self._store, lambda view: [stats.log_row(view, row) for row in rows])

    def _must_exist(self, txn_id: TxnId) -> None:
        count = self._store.settings.coordinators
        look(self._store, lambda view: lookup.transaction(view, txn_id, count))
        raise TransactionNotFound(
            f"the log of transaction {txn_id} is no longer kept", code=305, txn=txn_id,
            hint="txn_ended_retention_ms and txn_ended_retention_count say how long it is",
        )  # fmt: skip

    # --- partitions --------------------------------------------------------------------------

    def transaction_buffer_stats(
        self, topic: str, partition: int | None = None, *, txn: TxnId | None = None
    ) -> list[Answer]:
        """The sidecars of a topic. Raises TopicNotFound, TransactionNotFound."""
        name = TopicName.parse(topic, allow_partition=True)
        return look(
            self._store,
            lambda view: partitionstats.buffer_stats(view, self._store, name, partition, txn),
        )

    def pending_ack_stats(
        self, topic: str, subscription: str, partition: int | None = None, *,
        txn: TxnId | None = None, internal: bool = False,
    ) -> list[Answer]:  # fmt: skip
        """What transactions hold of a subscription. Raises SubscriptionNotFound and its kin."""
        name = TopicName.parse(topic, allow_partition=True)
        return look(
            self._store,
            lambda view: partitionstats.pending_ack_stats(
                view, self._store, name, subscription, partition, txn, internal=internal
            ),
        )

    def position_in_pending_ack(self, topic: str, subscription: str, position: MessageId) -> Answer:
        """What state a message has on a subscription. Raises SubscriptionNotFound and its kin."""
        name = TopicName.parse(topic, allow_partition=True)
        return look(
            self._store,
            lambda view: partitionstats.position_in_pending_ack(view, name, subscription, position),
        )

    def locks(self) -> list[Answer]:
        """Who holds which lock; the fields of `txlog admin locks`."""
        return look(self._store, lambda view: locks.locks(view, self._store))

    # --- transaction keys and coordinators ---------------------------------------------------

    def transaction_keys(
        self, deleted: bool = False, owner: str | int | None = None
    ) -> list[Answer]:
        """The keys of all owners or one; the fields of `txlog admin list-transaction-keys`.

        deleted: tombstones too
        """
        sweep_overdue(self._store, self._store.read(keyreport.coordinators))
        self._store.settle()
        return self._store.read(
            lambda view: keyreport.transaction_keys(view, self._store, deleted, owner)
        )

    def transaction_key(self, key: str, owner: str | int | None = None) -> Answer:
        """One key with its remembered transactions, newest first.

        owner:  name or number of another user, for root
        raises: TransactionKeyNotFound, also for a deleted one; NotAllowed
        """
        sweep_overdue(self._store, self._store.read(keyreport.coordinators))
        self._store.settle()
        caller = self._store.disk.owner()
        return self._store.read(
            lambda view: keyreport.transaction_key(view, self._store, caller, key, owner)
        )

    def delete_transaction_key(self, key: str, owner: str | int | None = None) -> Answer:
        """Delete a key; its open transaction is aborted, its last epoch is kept for ever.

        returns: {transaction_key, owner, owner_uid, epoch, deleted, aborted_list}
        raises:  TransactionKeyNotFound, NotAllowed
        """
        store, caller = self._store, self._store.disk.owner()
        answer = store.write(
            lambda view, now: keys.delete(view, store.settings, now, caller, key, owner)
        )
        assert isinstance(answer, Deleted)
        return {
            "transaction_key": answer.key, "owner": answer.owner, "owner_uid": answer.owner_uid,
            "epoch": answer.epoch, "deleted": True, "aborted_list": answer.aborted,
        }  # fmt: skip

    def scale_coordinators(self, count: int) -> Answer:
        """Have more transaction coordinators; {before, after}. Raises NotAllowed for fewer."""
        store = self._store
        before = store.write(
            lambda view, now: admin.scale_coordinators(view, store.settings, now, count)
        )
        return {"before": before, "after": count}

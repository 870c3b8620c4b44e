"""Owns Admin: the operations of administration on a store, reached by `client.admin`.

There is a method for each command of `txlog admin`, for policies and settings, and for changing and
deleting topics. Answers are plain values under the names that the commands print; instants are
milliseconds, ids TxnId and MessageId.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from txlog.base.arguments import checked
from txlog.base.ids import MessageId, TopicName, TxnId
from txlog.base.ranges import Bound
from txlog.base.settings import HANGING_MS, HOUR_MS, Settings
from txlog.client.answers import health, locks, space, transactions
from txlog.client.answers import keys as keyreport
from txlog.client.answers import metrics as figures
from txlog.client.answers import partitions as partitionstats
from txlog.client.answers.metric_family import Family
from txlog.clock import Instant
from txlog.engine.door import catalog as lookup
from txlog.engine.door import history, keys
from txlog.engine.door import topics as availability
from txlog.engine.door import topics as create
from txlog.engine.door import topics as update
from txlog.engine.door.catalog import consumers_of
from txlog.engine.door.catalog import subscription as find_subscription
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.integrity import check_files
from txlog.engine.door.liveness import dead_consumers
from txlog.engine.door.space import Arrange
from txlog.engine.door.store import Decide, Decision, Store, Uses, View
from txlog.engine.door.topics import (
    DELAYED,
    RETENTION,
    SCHEMA,
    WATERMARK,
    DeletedTopic,
    PolicyValue,
    Scope,
    ScopedPolicies,
    delete_topic,
    get_policies,
    partition_number,
    remove_policies,
    scope_of,
    set_setting,
    update_topic,
)
from txlog.engine.door.topics import Family as PolicyFamily
from txlog.engine.door.topics import SettingValue as Value
from txlog.engine.door.topics import set_scoped_policies as set_policies
from txlog.engine.door.transactions import Finding, hanging, participant_name
from txlog.errors import TransactionNotFound

if TYPE_CHECKING:
    from txlog.base.rows.space import (
        ChangesCompacted,
        Compacted,
        Confirmed,
        GarbageCollected,
        Offloaded,
        TopicCompacted,
        Trimmed,
    )
    from txlog.base.rows.store import Check, ClockAccepted, LockRow, SettingChanged, SettingRow
    from txlog.base.rows.topics import (
        PartitionSwitched,
        Policies,
        PoliciesChanged,
        TopicDeleted,
        TopicUpdated,
    )
    from txlog.base.rows.transactions import (
        BufferStats,
        CoordinatorRow,
        CoordinatorsScaled,
        CoordinatorStats,
        HangingTransaction,
        KeyDeleted,
        KeyDescription,
        KeyRow,
        PendingAckStats,
        PendingPosition,
        TransactionLogRow,
        TransactionMetadata,
        TransactionRow,
    )


def _get(store: Store, family: PolicyFamily, topic: str | None, namespace: str | None) -> Policies:
    """What applies to a topic, a namespace, the store; {topic, namespace, policies, origins}."""
    scope = scope_of(topic, namespace)
    return _answer(store.ask(lambda view: get_policies(view, store.settings, family, scope)))


def _change(
    store: Store,
    family: PolicyFamily,
    topic: str | None,
    namespace: str | None,
    values: Mapping[str, PolicyValue | None],
) -> PoliciesChanged:
    """Set policies, those that are not None; as get, and changed."""
    scope = scope_of(topic, namespace)
    given = {name: value for name, value in values.items() if value is not None}
    return _changed(
        store.write(lambda view, now: set_policies(view, store.settings, family, scope, given))
    )


def _remove(
    store: Store,
    family: PolicyFamily,
    topic: str | None,
    namespace: str | None,
    names: Collection[str],
) -> PoliciesChanged:
    """Inherit policies again, all if none is named; answers as change."""
    scope = scope_of(topic, namespace)
    return _changed(
        store.write(lambda view, now: remove_policies(view, store.settings, family, scope, names))
    )


def _changed(answer: ScopedPolicies) -> PoliciesChanged:
    return {**_answer(answer), "changed": answer.changed}


def _answer(found: ScopedPolicies) -> Policies:
    scope: Scope = found.scope
    return {
        "topic": None if scope.topic is None else scope.topic.short,
        "namespace": scope.namespace,
        "policies": found.policies,
        "origins": found.origins,
    }


def listed(store: Store) -> list[SettingRow]:
    """Every setting; {name, value, origin}: built in, or store if it was changed."""
    usual = Settings().to_mapping()
    return store.ask(
        lambda _: [
            {
                "name": name,
                "value": value,
                "origin": "built in" if value == usual[name] else "store",
            }
            for name, value in store.settings.to_mapping().items()
        ],
    )


def change(store: Store, name: str, value: Value) -> SettingChanged:
    """Set a setting for all processes; {name, value, before, changed}."""
    answer = store.write(lambda view, now: set_setting(view, store.settings, now, name, value))
    return {
        "name": name,
        "value": answer.value,
        "before": answer.before,
        "changed": answer.value != answer.before,
    }


def change_topic(
    store: Store, name: str, partitions: int | None, policies: Mapping[str, int | None]
) -> TopicUpdated:
    """Change a topic; {topic, partitions, policies, changed}."""
    wanted = TopicName.parse(name)
    answer = store.write(
        lambda view, now: update_topic(
            view, store.settings, now, find_topic(view, wanted), partitions, policies
        )
    )
    return {
        "topic": answer.topic,
        "partitions": answer.partitions,
        "policies": answer.policies,
        "changed": answer.changed,
    }


def drop_topic(
    store: Store, name: str, *, force: bool, dry_run: bool, unused: bool = False
) -> TopicDeleted:
    """Delete a topic; {topic, partitions, messages, size_bytes, subscriptions, deleted}."""
    wanted = TopicName.parse(name)

    def consumers(view: View) -> list[int]:
        held = find_topic(view, wanted).subscriptions
        return [one.number for number in held for one in consumers_of(view.catalog, number)]

    dead = dead_consumers(store.disk, store.read(consumers)) if unused else None

    def decide(view: View, now: Instant) -> Decision[DeletedTopic]:
        topic = find_topic(view, wanted)
        return delete_topic(view, store.settings, now, topic, force=force, dead=dead)

    if dry_run:
        answer = store.ask(lambda view: decide(view, store.clock.now()).answered())
    else:
        answer = store.write(decide)
    return {
        "topic": answer.topic,
        "partitions": answer.partitions,
        "messages": answer.messages,
        "size_bytes": answer.size_bytes,
        "subscriptions": answer.subscriptions,
        "deleted": True,
    }


Limits = tuple[int | None, int | None]
_REPAIRS = {
    "unavailable": "txlog admin online {place}",
    "overdue": "txlog txn expire",
    "corrupt": "restore the store from a copy: {detail}",
}


@checked
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

    __slots__ = ("_automatic", "_store")

    def __init__(self, store: Store, *, checkpoint_automatically: bool = True) -> None:
        self._store = store
        self._automatic = checkpoint_automatically

    # --- figures -----------------------------------------------------------------------------

    def metrics(self) -> list[Family]:
        """Every metric as plain values; answers.metrics_text turns them into text."""
        self._store.sweep_if_due()
        return self._store.ask(lambda view: figures.families(view, self._store))

    def coordinators(self) -> list[CoordinatorRow]:
        """Every coordinator; the fields of `txlog admin coordinators`."""
        return self._store.ask(lambda view: transactions.coordinators(view, self._store))

    def coordinator_stats(
        self, coordinator: int | None = None, *, internal: bool = False
    ) -> list[CoordinatorStats]:
        """Figures of a coordinator, or of all. Raises CoordinatorNotFound."""
        return self._store.ask(
            lambda view: transactions.coordinator_stats(
                view, self._store, coordinator, internal=internal
            ),
        )

    def transaction_metadata(self, txn_id: TxnId) -> TransactionMetadata:
        """Everything known of a transaction. Raises TransactionNotFound."""
        self._store.sweep_if_due(Uses(txn=(txn_id.coordinator, txn_id.sequence)))
        return self._store.ask(
            lambda view: transactions.transaction_metadata(view, self._store, txn_id)
        )

    def slow_transactions(
        self, older_than_ms: int, coordinator: int | None = None
    ) -> list[TransactionRow]:
        """Unfinished transactions older than this; rows of `txn list`."""
        self._store.sweep_if_due()
        return self._store.ask(
            lambda view: transactions.slow_transactions(
                view, self._store, older_than_ms, coordinator
            ),
        )

    def message_keys(self, txn_id: TxnId) -> list[str]:
        """The distinct message keys of a transaction. Raises TransactionNotFound."""
        return self._store.ask(lambda view: transactions.message_keys(view, self._store, txn_id))

    def transaction_log(self, txn_id: TxnId) -> list[TransactionLogRow]:
        """What the coordinator recorded of a transaction; the fields of `txn log`.

        It goes back as far as the retention of ended transactions, beyond their record.
        raises: TransactionNotFound, Corruption (a damaged history file)
        """
        self._store.settle()
        rows = history.transaction_rows(self._store, txn_id.coordinator, txn_id.sequence)
        if all(row["op"] == "TxnsForgotten" for row in rows):
            self._must_exist(txn_id)
        return self._store.ask(lambda view: [transactions.log_row(view, row) for row in rows])

    def _must_exist(self, txn_id: TxnId) -> None:
        count = self._store.settings.coordinators
        self._store.ask(lambda view: lookup.transaction(view, txn_id, count))
        raise TransactionNotFound(
            f"the log of transaction {txn_id} is no longer kept",
            code=305,
            txn=txn_id,
            hint="txn_ended_retention_ms and txn_ended_retention_count say how long it is kept",
        )

    # --- partitions --------------------------------------------------------------------------

    def transaction_buffer_stats(
        self, topic: str, partition: int | None = None, *, txn: TxnId | None = None
    ) -> list[BufferStats]:
        """The sidecars of a topic. Raises TopicNotFound, TransactionNotFound."""
        name = TopicName.parse(topic, allow_partition=True)
        return self._store.ask(
            lambda view: partitionstats.buffer_stats(view, self._store, name, partition, txn),
        )

    def pending_ack_stats(
        self,
        topic: str,
        subscription: str,
        partition: int | None = None,
        *,
        txn: TxnId | None = None,
        internal: bool = False,
    ) -> list[PendingAckStats]:
        """What transactions hold of a subscription. Raises SubscriptionNotFound and the like."""
        name = TopicName.parse(topic, allow_partition=True)
        return self._store.ask(
            lambda view: partitionstats.pending_ack_stats(
                view, self._store, name, subscription, partition, txn, internal=internal
            ),
        )

    def position_in_pending_ack(
        self, topic: str, subscription: str, position: MessageId
    ) -> PendingPosition:
        """The state of a message on a subscription. Raises SubscriptionNotFound and the like."""
        name = TopicName.parse(topic, allow_partition=True)
        return self._store.ask(
            lambda view: partitionstats.position_in_pending_ack(view, name, subscription, position),
        )

    def locks(self) -> list[LockRow]:
        """Who holds which lock; the fields of `txlog admin locks`."""
        return self._store.ask(lambda view: locks.locks(view, self._store))

    # --- transaction keys and coordinators ---------------------------------------------------

    def transaction_keys(
        self, deleted: bool = False, owner: str | int | None = None
    ) -> list[KeyRow]:
        """The keys of all owners or one; the fields of `txlog admin list-transaction-keys`.

        deleted: tombstones too
        """
        self._store.settle()
        self._store.sweep_if_due()
        return self._store.read(
            lambda view: keyreport.transaction_keys(view, self._store, deleted, owner)
        )

    def transaction_key(self, key: str, owner: str | int | None = None) -> KeyDescription:
        """One key with its remembered transactions, newest first.

        owner:  name or number of another user, for root
        raises: TransactionKeyNotFound, also for a deleted one; NotAllowed
        """
        self._store.settle()
        self._store.sweep_if_due()
        caller = self._store.disk.owner()
        return self._store.read(
            lambda view: keyreport.transaction_key(view, self._store, caller, key, owner)
        )

    def delete_transaction_key(self, key: str, owner: str | int | None = None) -> KeyDeleted:
        """Delete a key; its open transaction is aborted, its last epoch is kept forever.

        returns: {transaction_key, owner, owner_uid, epoch, deleted, aborted_list}
        raises:  TransactionKeyNotFound, NotAllowed
        """
        store, caller = self._store, self._store.disk.owner()
        answer = store.write(
            lambda view, now: keys.delete(view, store.settings, now, caller, key, owner)
        )
        return {
            "transaction_key": answer.key,
            "owner": answer.owner,
            "owner_uid": answer.owner_uid,
            "epoch": answer.epoch,
            "deleted": True,
            "aborted_list": answer.aborted,
        }

    def scale_coordinators(self, count: int) -> CoordinatorsScaled:
        """Add transaction coordinators; {before, after}. Raises NotAllowed for fewer."""
        store = self._store
        before = store.write(
            lambda view, now: create.scale_coordinators(view, store.settings, now, count)
        )
        return {"before": before, "after": count}

    def settings(self) -> list[SettingRow]:
        """The settings of the store; {name, value, origin (built in|store)}."""
        return listed(self._store)

    def set_setting(self, name: str, value: int | str | float) -> SettingChanged:
        """Set one for all processes; {name, value, before, changed}.

        raises: NotFound (308), InvalidArgument, LimitExceeded; NotAllowed for fewer coordinators
        """
        return change(self._store, name, value)

    def set_isolation(self, topic: str, subscription: str, isolation: str) -> bool:
        """Change the isolation of a subscription without a live consumer; whether it changed.

        isolation: "committed" or "uncommitted"
        raises:    ConsumerBusy, InvalidArgument, TopicNotFound, SubscriptionNotFound
        """
        store, name = self._store, TopicName.parse(topic)

        def consumers(view: View) -> list[int]:
            held = find_subscription(view, find_topic(view, name), subscription)
            return [one.number for one in consumers_of(view.catalog, held.number)]

        dead = dead_consumers(store.disk, store.read(consumers))
        changed = store.write(
            lambda view, now: create.set_isolation(
                view, find_topic(view, name), subscription, isolation, dead
            )
        )
        return bool(changed)

    def update_topic(
        self, name: str, partitions: int | None = None, **policies: int | None
    ) -> TopicUpdated:
        """Add partitions to a topic, and set policies (None removes one).

        Open producers and consumers use the new partitions, too; from then on a key goes to
        crc32(key) mod partitions. Policies are those of Client.set_policies.
        returns: {topic, partitions, policies, changed}
        raises:  TopicNotFound, NotAllowed (fewer partitions), LimitExceeded, InvalidArgument
        """
        return change_topic(self._store, name, partitions, policies)

    def delete_topic(
        self, name: str, *, force: bool = False, unused: bool = False, dry_run: bool = False
    ) -> TopicDeleted:
        """Delete a topic with its messages; the fields of `txlog topic delete`.

        force:  also its subscriptions, and what unfinished transactions have there: they list it as
                skipped
        unused: also its subscriptions, if none has a consumer
        dry_run: say what would go
        raises: TopicNotFound, StillInUse
        """
        return drop_topic(self._store, name, force=force, dry_run=dry_run, unused=unused)

    # --- availability ------------------------------------------------------------------------

    def set_offline(self, topic: str, partition: int | None = None) -> PartitionSwitched:
        """Take a partition and its sidecar away; the fields of `txlog admin offline`.

        Sends, acknowledgements and reads there raise PartitionUnavailable; the end of a transaction
        that holds something there waits for it, with everything else done.
        raises: TopicNotFound
        """
        name = _partition(topic, partition)
        return self._switch(name, lambda view, now: availability.set_offline(view, name))

    def set_online(self, topic: str, partition: int | None = None) -> PartitionSwitched:
        """Bring a partition back, with everything that waited for it, in one frame.

        returns: {topic, partition, online, changed, finished_list}
        raises:  TopicNotFound; Corruption: one of its files is damaged, and it stays offline
        """
        name = _partition(topic, partition)

        def number_if_away(view: View) -> int:
            number = partition_number(view, name)
            return number if number in view.catalog.unavailable else 0

        number = self._store.read(number_if_away)
        if number:
            check_files(self._store, number)
        settings = self._store.settings
        return self._switch(
            name, lambda view, now: availability.set_online(view, settings, now, name)
        )

    def _switch(self, name: TopicName, decide: Decide) -> PartitionSwitched:
        answer = self._store.write(decide)
        return {
            "topic": name.topic.short,
            "partition": name.partition or 0,
            "online": answer.online,
            "changed": answer.changed,
            "finished_list": answer.finished,
        }

    # --- transactions ------------------------------------------------------------------------

    def find_hanging(
        self, older_than_ms: int = HANGING_MS, topics: Sequence[str] = ()
    ) -> list[HangingTransaction]:
        """Transactions that do not end by themselves; the fields of `txlog txn find-hanging`.

        older_than_ms: how long a decided transaction may wait for a partition
        topics:        only those that touch these
        raises:        TopicNotFound
        """
        names = [TopicName.parse(name, allow_partition=True) for name in topics]
        self._store.settle()
        self._store.sweep_if_due()
        now = self._store.clock.now()

        def look(view: View) -> list[HangingTransaction]:
            wanted = [find_topic(view, name) for name in names]
            found = hanging(view, now, older_than_ms, wanted or list(view.catalog.topics.values()))
            return [_row(view, one) for one in found]

        return self._store.read(look)

    def check(
        self,
        topics: Sequence[str] = (),
        *,
        backlog: Limits = (None, None),
        txn_age_ms: Limits = (None, None),
        lag_ms: Limits = (None, None),
    ) -> Check:
        """Whether the store, or some topics, are healthy; the fields of `txlog check`, see health.

        backlog, txn_age_ms, lag_ms: (warning, critical) above these; None: never
        returns: {status, check_list: [{name, status, value, warn, crit, detail}]}, status one of
                 ok, warning, critical
        raises:  TopicNotFound, InvalidArgument
        """
        self._store.settle()
        self._store.sweep_if_due()
        bounds = [health.Bounds(*one) for one in (backlog, txn_age_ms, lag_ms)]
        return self._store.ask(lambda view: health.check(view, self._store, topics, *bounds))

    # --- space -------------------------------------------------------------------------------

    def compact(
        self,
        topic: str,
        partition: int | None = None,
        *,
        dry_run: bool = False,
        arrange: Arrange | None = None,
    ) -> Compacted:
        """Rewrite the sidecars of a topic in commit order, without dead rows.

        arrange: what reads and sorts the rows, if not this process; jobs pass Spark
        raises: TopicNotFound, StoreLocked (another process runs maintenance), StoreFull;
                SnapshotExpired: a dry run was overtaken by checkpoints
        """
        return space.compact(self._store, topic, partition, dry_run=dry_run, arrange=arrange)

    def compact_topic(self, topic: str, *, dry_run: bool = False) -> TopicCompacted:
        """Keep the newest message of each key, for readers with read_compacted and table views.

        All partitions as of one moment; the next compaction costs what came since, and the keys.
        A message without a value deletes its key; one without a key is left out. The log stays as
        it is, and may be trimmed up to there from then on.

        returns: counts: messages that were looked at, keys that are left
        raises:  TopicNotFound, PartitionUnavailable, StoreLocked (another process runs
                 maintenance), StoreFull, Corruption; SnapshotExpired: a dry run was overtaken by
                 checkpoints
        """
        return space.compact_topic(self._store, topic, dry_run=dry_run)

    def compact_changes(self) -> list[ChangesCompacted]:
        """Reduce the logs of changes to the newest row of each key, cursor and thing, as Parquet.

        Each cursor gets its own file, and what came before is gone, as in Pulsar's topic
        compaction. A checkpoint is written first, so that everything is included.

        returns: a row a log, with its rows, files and bytes before and after
        raises:  StoreLocked (another process runs maintenance), StoreFull, Corruption
        """
        return space.compact_changes(self._store)

    def offload(
        self, topic: str, to: str, partition: int | None = None, *, dry_run: bool = False
    ) -> Offloaded:
        """Move sealed files to a directory or bucket; they are read from there, as before.

        to:     a directory that exists, or s3://bucket/prefix?region=…&endpoint_override=…
        raises: TopicNotFound, StoreLocked, InvalidArgument, NotFound (no such directory),
                DiskFailed (out of reach; what was moved before stays moved)
        """
        return space.offload(self._store, topic, to, partition, dry_run=dry_run)

    def confirm(self, place: str) -> Confirmed:
        """Let this user's programs read files of the store in a place, as if offloaded to there.

        Programs open nothing outside a store because the store names it. Offloading confirms a
        place for the user who does it; others, and other machines, need this call. It changes
        nothing in the store, and files there are never removed because of it.

        place:  as `to` of `offload`
        raises: InvalidArgument, DiskFailed (it cannot be recorded)
        """
        return space.confirm_place(self._store, place)

    def trim(
        self,
        topic: str,
        to: Bound | None = None,
        *,
        by_policy: bool = False,
        force_unacked: bool = False,
        dry_run: bool = False,
    ) -> Trimmed:
        """Delete whole ledgers: those before a bound, or what the topic's policies do not keep.

        raises: Refused if unacknowledged messages would go and force is not set
        """
        return space.trim(
            self._store,
            topic,
            to,
            by_policy=by_policy,
            force_unacked=force_unacked,
            dry_run=dry_run,
            checkpoint=self._automatic,
        )

    def accept_clock(self) -> ClockAccepted:
        """Declare the wall clock of this machine right, however far ahead: expiry then uses it.

        returns: {ahead_ms, was_believed}, how it was judged before
        """
        store = self._store
        before = store.write(lambda view, now: update.accept_clock(view, store.settings, now))
        return {"ahead_ms": before.ahead_ms, "was_believed": before.is_believed}

    def gc(self, apply: bool = False, keep_ms: int = HOUR_MS) -> GarbageCollected:
        """Files that no manifest names, with reasons; apply: unlink them."""
        return space.gc(self._store, apply=apply, keep_ms=keep_ms)

    # --- policies: delayed delivery ----------------------------------------------------------

    def set_delayed_policies(
        self,
        topic: str | None = None,
        namespace: str | None = None,
        *,
        active: bool | None = None,
        tick_time_ms: int | None = None,
        strict: bool | None = None,
        max_delivery_delay_ms: int | None = None,
        fixed_delivery_delay_ms: int | None = None,
        ttl_from: str | None = None,
    ) -> PoliciesChanged:
        """Set how messages wait for delivery: for a topic, a namespace, else the store.

        active:     False: all messages are delivered at once
        tick_time_ms, strict: how early a message may come, if not strict
        max_delivery_delay_ms: a longer delay is refused (InvalidMessage); 0: any
        fixed_delivery_delay_ms: every message waits this long, whatever it asks for; 0: its own
                                 delay
        ttl_from:   "publish" or "deliver_at": from when a message's time to live counts
        None:       unchanged; a topic inherits from its namespace, which inherits from the store
        returns:    {topic, namespace, policies, origins, changed}, what applies from now on
        raises:     TopicNotFound, InvalidArgument, LimitExceeded
        """
        given = {
            "active": active,
            "tick_time_ms": tick_time_ms,
            "strict": strict,
            "max_delivery_delay_ms": max_delivery_delay_ms,
            "fixed_delivery_delay_ms": fixed_delivery_delay_ms,
            "ttl_from": ttl_from,
        }
        return _change(self._store, DELAYED, topic, namespace, given)

    def get_delayed_policies(
        self, topic: str | None = None, namespace: str | None = None
    ) -> Policies:
        """What applies, and whether topic, namespace or store says so; as set_delayed_policies."""
        return _get(self._store, DELAYED, topic, namespace)

    def remove_delayed_policies(
        self, names: Collection[str] = (), topic: str | None = None, namespace: str | None = None
    ) -> PoliciesChanged:
        """Inherit these policies again, all if none is named; as set_delayed_policies."""
        return _remove(self._store, DELAYED, topic, namespace, names)

    # --- policies: retention -----------------------------------------------------------------

    def set_retention_policies(
        self,
        topic: str | None = None,
        namespace: str | None = None,
        *,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        retention_acked: bool | None = None,
        ttl_ms: int | None = None,
        ttl_from: str | None = None,
        compaction_threshold_bytes: int | None = None,
    ) -> PoliciesChanged:
        """Set what is kept, and how long: for a topic, a namespace, else the store.

        retention_ms, retention_bytes: ledgers whose newest message is older go, and those beyond
                                       this size; never automatically with messages that a
                                       subscription has not acknowledged
        retention_acked: ledgers that every subscription has acknowledged go
        ttl_ms:     older messages are acknowledged; ttl_from: as set_delayed_policies
        compaction_threshold_bytes: once so many came since the last time, all partitions together,
                    a checkpoint is followed by compact_topic
        -1:         no bound, whatever the namespace or the store says; the answer has None
        None:       unchanged; a topic inherits from its namespace, which inherits from the store
        returns:    {topic, namespace, policies, origins, changed}, what applies from now on
        raises:     TopicNotFound, InvalidArgument, LimitExceeded
        """
        given = {
            "retention_ms": retention_ms,
            "retention_bytes": retention_bytes,
            "retention_acked": retention_acked,
            "ttl_ms": ttl_ms,
            "ttl_from": ttl_from,
            "compaction_threshold_bytes": compaction_threshold_bytes,
        }
        return _change(self._store, RETENTION, topic, namespace, given)

    def get_retention_policies(
        self, topic: str | None = None, namespace: str | None = None
    ) -> Policies:
        """What applies, and whether topic, namespace or store says so; as set_…_policies."""
        return _get(self._store, RETENTION, topic, namespace)

    def remove_retention_policies(
        self, names: Collection[str] = (), topic: str | None = None, namespace: str | None = None
    ) -> PoliciesChanged:
        """Inherit these policies again, all if none is named; as set_retention_policies."""
        return _remove(self._store, RETENTION, topic, namespace, names)

    # --- policies: watermarks ----------------------------------------------------------------

    def set_watermark_policies(
        self,
        topic: str | None = None,
        namespace: str | None = None,
        *,
        snapshot_bytes_max: int | None = None,
        snapshot_entries_max: int | None = None,
        snapshot_markers_max: int | None = None,
        producers_max: int | None = None,
        producer_idle_timeout_ms: int | None = None,
        open_transaction_check: str | None = None,
        emit_interval_ms: int | None = None,
    ) -> PoliciesChanged:
        """Set how watermarks are kept and delivered: for a topic, a namespace, else the store.

        snapshot_…: after this much since a partition's last snapshot, the next append has one
        before it
        producers_max: producers that a partition may wait for; 0: any number
        producer_idle_timeout_ms: a producer silent for this long is declared idle by the next call
                                  that writes; 0: never
        open_transaction_check: "count", "refuse" or "off": a watermark ahead of a message in an
                    open transaction of the same producer
        emit_interval_ms: least time between two events of a consumer
        None:       unchanged; a topic inherits from its namespace, which inherits from the store
        returns:    {topic, namespace, policies, origins, changed}, what applies from now on
        raises:     TopicNotFound, InvalidArgument, LimitExceeded
        """
        given = {
            "snapshot_bytes_max": snapshot_bytes_max,
            "snapshot_entries_max": snapshot_entries_max,
            "snapshot_markers_max": snapshot_markers_max,
            "producers_max": producers_max,
            "producer_idle_timeout_ms": producer_idle_timeout_ms,
            "open_transaction_check": open_transaction_check,
            "emit_interval_ms": emit_interval_ms,
        }
        return _change(self._store, WATERMARK, topic, namespace, given)

    def get_watermark_policies(
        self, topic: str | None = None, namespace: str | None = None
    ) -> Policies:
        """What applies, and whether topic, namespace or store says so; as set_…_policies."""
        return _get(self._store, WATERMARK, topic, namespace)

    def remove_watermark_policies(
        self, names: Collection[str] = (), topic: str | None = None, namespace: str | None = None
    ) -> PoliciesChanged:
        """Inherit these policies again, all if none is named; as set_watermark_policies."""
        return _remove(self._store, WATERMARK, topic, namespace, names)

    # --- policies: schemas -------------------------------------------------------------------

    def set_schema_policies(
        self,
        topic: str | None = None,
        namespace: str | None = None,
        *,
        compatibility: str | None = None,
        validation: str | None = None,
    ) -> PoliciesChanged:
        """Set how schemas of topics change, and what is checked: topic, namespace, else store.

        compatibility: what a new schema must do with those before it, by Pulsar's names: "none",
                    "backward" (read what the last one wrote), "forward" (be read by it), "full"
                    (both); with "_transitive", with all of them
        validation: a value that does not fit is refused ("enforce"), stored and counted ("record"),
                    or not looked at ("off")
        None:       unchanged; a topic inherits from its namespace, which inherits from the store
        returns:    {topic, namespace, policies, origins, changed}, what applies from now on
        raises:     TopicNotFound, InvalidArgument
        """
        given = {"compatibility": compatibility, "validation": validation}
        return _change(self._store, SCHEMA, topic, namespace, given)

    def get_schema_policies(
        self, topic: str | None = None, namespace: str | None = None
    ) -> Policies:
        """What applies, and whether topic, namespace or store says so; as set_schema_policies."""
        return _get(self._store, SCHEMA, topic, namespace)

    def remove_schema_policies(
        self, names: Collection[str] = (), topic: str | None = None, namespace: str | None = None
    ) -> PoliciesChanged:
        """Inherit these policies again, all if none is named; as set_schema_policies."""
        return _remove(self._store, SCHEMA, topic, namespace, names)


def _row(view: View, one: Finding) -> HangingTransaction:
    places = [participant_name(view.catalog, place) for place in one.waiting]
    first = places[0].partition(":")[0] if places else ""
    return {
        "txn": TxnId(one.coordinator, one.sequence),
        "state": None if one.status is None else one.status.lower(),
        "age_ms": one.age_ms,
        "cause": one.cause,
        "repair": _REPAIRS[one.cause].format(place=first, detail=one.detail),
        "waiting_list": places,
    }


def _partition(topic: str, partition: int | None) -> TopicName:
    """The name with its partition: `orders/2`, or the topic and its number."""
    if partition is None:
        return TopicName.parse(topic, allow_partition=True)
    return replace(TopicName.parse(topic), partition=partition)

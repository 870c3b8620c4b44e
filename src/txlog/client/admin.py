"""Owns Admin: administration of a store, reached as `client.admin`.

Each command of `txlog admin` has a method. More methods are for policies and settings, and for
changing and deleting topics. Answers are plain values with the field names that the commands print;
instants are ms since 1970 UTC, ids are TxnId and MessageId.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from txlog.base.arguments import StrPath, checked, path_text
from txlog.base.choices import Compatibility, Isolation, OpenTransactionCheck, TtlFrom, Validation
from txlog.base.ids import MessageId, TopicName, TxnId
from txlog.base.ranges import Bound
from txlog.base.settings import HANGING_MS, HOUR_MS, Settings
from txlog.base.suggest import command_line
from txlog.base.times import DurationLike, duration_ms, durations_ms, policies_ms
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
from txlog.engine.door.store import CallScope, Decide, Decision, Store, View
from txlog.engine.door.topics import (
    ALERT,
    DELAYED,
    RETENTION,
    SCHEMA,
    WATERMARK,
    DeletedTopic,
    PolicyScope,
    PolicyValue,
    RenamedTopic,
    ScopedPolicies,
    delete_topic,
    get_policies,
    partition_number,
    remove_policies,
    rename_topic,
    scope_of,
    set_setting,
    update_topic,
)
from txlog.engine.door.topics import PolicyGroup as PolicyFamily
from txlog.engine.door.topics import SettingValue as Value
from txlog.engine.door.topics import set_scoped_policies as set_policies
from txlog.engine.door.transactions import HangingTxn, hanging, participant_name
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
        AlertPolicies,
        AlertPoliciesChanged,
        PartitionSwitched,
        Policies,
        PoliciesChanged,
        TopicDeleted,
        TopicRenamed,
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


def _get(store: Store, family: PolicyFamily, scope: PolicyScope) -> ScopedPolicies:
    """The policies that apply in a scope."""
    return store.ask(lambda view: get_policies(view, store.settings, family, scope))


def _change(
    store: Store,
    family: PolicyFamily,
    scope: PolicyScope,
    values: Mapping[str, PolicyValue | timedelta | None],
) -> ScopedPolicies:
    """Set the policies whose value is not None."""
    changes = {name: value for name, value in values.items() if value is not None}
    policies = cast(dict[str, PolicyValue], durations_ms(changes))
    return store.write(
        lambda view, now: set_policies(view, store.settings, family, scope, policies)
    )


def _remove(
    store: Store, family: PolicyFamily, scope: PolicyScope, names: Collection[str]
) -> ScopedPolicies:
    """Remove policies, so that they are inherited again; no names: all."""
    return store.write(
        lambda view, now: remove_policies(view, store.settings, family, scope, names)
    )


def _changed(answer: ScopedPolicies) -> PoliciesChanged:
    return {**_answer(answer), "changed": answer.changed}


def _answer(scoped: ScopedPolicies) -> Policies:
    """{topic, namespace, policies, origins}; origins: where each policy is set."""
    scope: PolicyScope = scoped.scope
    return {
        "topic": None if scope.topic is None else scope.topic.short,
        "namespace": scope.namespace,
        "policies": scoped.policies,
        "origins": scoped.origins,
    }


def _alerts(answer: ScopedPolicies) -> AlertPoliciesChanged:
    return {**_thresholds(answer), "changed": answer.changed}


def _thresholds(scoped: ScopedPolicies) -> AlertPolicies:
    return {**_answer(scoped), "subscription": scoped.scope.subscription}


def listed(store: Store) -> list[SettingRow]:
    """Every setting: {name, value, origin}; origin: "built in", or "store" if it was changed."""
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
    topic_name = TopicName.parse(name)
    answer = store.write(
        lambda view, now: update_topic(
            view, store.settings, now, find_topic(view, topic_name), partitions, policies
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
    topic_name = TopicName.parse(name)

    def consumers(view: View) -> list[int]:
        subscriptions = find_topic(view, topic_name).subscriptions
        return [
            consumer.number
            for number in subscriptions
            for consumer in consumers_of(view.catalog, number)
        ]

    dead = dead_consumers(store.disk, store.read(consumers)) if unused else None

    def decide(view: View, now: Instant) -> Decision[DeletedTopic]:
        topic = find_topic(view, topic_name)
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


def renamed_topic(store: Store, name: str, new_name: str, *, dry_run: bool) -> TopicRenamed:
    """Rename a topic; its answer as plain values."""
    before, after = TopicName.parse(name), TopicName.parse(new_name)

    def decide(view: View, now: Instant) -> Decision[RenamedTopic]:
        return rename_topic(view, find_topic(view, before), after)

    if dry_run:
        answer = store.ask(lambda view: decide(view, store.clock.now()).answered())
    else:
        answer = store.write(decide)
    pairs = [(answer.before, answer.topic), *answer.along]
    return {
        "topic": answer.topic,
        "before": answer.before,
        "directory": answer.directory,
        "renamed_list": [{"topic": now, "before": old} for old, now in answer.along],
        "subscription_list": answer.subscriptions,
        "still_named": store.read(lambda view: keyreport.still_named(view, store, pairs)),
        "changed": answer.topic != answer.before,
    }


Limits = tuple[int | None, int | None]


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

    def __repr__(self) -> str:
        return f"<txlog.Admin of {self._store.disk.description}>"

    # --- figures -----------------------------------------------------------------------------

    def metrics(self) -> list[Family]:
        """Every metric as plain values; client/answers/metrics_text makes their text."""
        self._store.sweep_if_due()
        return self._store.ask(lambda view: figures.families(view, self._store))

    def coordinators(self) -> list[CoordinatorRow]:
        """Every coordinator; the fields of `txlog admin coordinators`."""
        return self._store.ask(lambda view: transactions.coordinators(view, self._store))

    def coordinator_stats(
        self, coordinator: int | None = None, *, internal: bool = False
    ) -> list[CoordinatorStats]:
        """Figures of a coordinator, or of all; internal: also log_stats, figures of its log.

        raises: CoordinatorNotFound
        """
        return self._store.ask(
            lambda view: transactions.coordinator_stats(
                view, self._store, coordinator, internal=internal
            ),
        )

    def transaction_metadata(self, txn_id: TxnId) -> TransactionMetadata:
        """Everything the store has recorded of a transaction. Raises TransactionNotFound."""
        self._store.sweep_if_due(CallScope(txn=(txn_id.coordinator, txn_id.sequence)))
        return self._store.ask(
            lambda view: transactions.transaction_metadata(view, self._store, txn_id)
        )

    def slow_transactions(
        self, older_than_ms: DurationLike, coordinator: int | None = None
    ) -> list[TransactionRow]:
        """Unfinished transactions older than this; rows of `txn list`."""
        limit_ms = duration_ms(older_than_ms)
        self._store.sweep_if_due()
        return self._store.ask(
            lambda view: transactions.slow_transactions(view, self._store, limit_ms, coordinator),
        )

    def message_keys(self, txn_id: TxnId) -> list[str]:
        """The distinct message keys of a transaction. Raises TransactionNotFound."""
        return self._store.ask(lambda view: transactions.message_keys(view, self._store, txn_id))

    def transaction_log(self, txn_id: TxnId) -> list[TransactionLogRow]:
        """The steps of a transaction that its coordinator recorded; the fields of `txn log`.

        The retention settings of ended transactions decide how long the store keeps the steps.
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
        """The sidecars: messages of transactions. Raises TopicNotFound, TransactionNotFound."""
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
        """The acknowledgements of open transactions on a subscription, by partition.

        raises: TopicNotFound, SubscriptionNotFound, TransactionNotFound
        """
        name = TopicName.parse(topic, allow_partition=True)
        return self._store.ask(
            lambda view: partitionstats.pending_ack_stats(
                view, self._store, name, subscription, partition, txn, internal=internal
            ),
        )

    def position_in_pending_ack(
        self, topic: str, subscription: str, position: MessageId
    ) -> PendingPosition:
        """Whether a message is acknowledged, held by a transaction, or neither; {state, txn, …}.

        raises: TopicNotFound, SubscriptionNotFound
        """
        name = TopicName.parse(topic, allow_partition=True)
        return self._store.ask(
            lambda view: partitionstats.position_in_pending_ack(view, name, subscription, position),
        )

    def locks(self) -> list[LockRow]:
        """The locks of the store and their holders; the fields of `txlog admin locks`."""
        return self._store.ask(lambda view: locks.locks(view, self._store))

    # --- transaction keys and coordinators ---------------------------------------------------

    def transaction_keys(
        self, deleted: bool = False, owner: str | int | None = None
    ) -> list[KeyRow]:
        """The keys of all owners or one; the fields of `txlog admin list-transaction-keys`.

        deleted: also deleted keys; the store keeps their epochs
        owner:   name or number of a user
        """
        self._store.settle()
        self._store.sweep_if_due()
        return self._store.read(
            lambda view: keyreport.transaction_keys(view, self._store, deleted, owner)
        )

    def transaction_key(self, key: str, owner: str | int | None = None) -> KeyDescription:
        """One key with its remembered transactions, newest first.

        owner:  name or number of another user; only root may pass it
        raises: TransactionKeyNotFound, also for a deleted key; NotAllowed
        """
        self._store.settle()
        self._store.sweep_if_due()
        caller = self._store.disk.owner()
        return self._store.read(
            lambda view: keyreport.transaction_key(view, self._store, caller, key, owner)
        )

    def delete_transaction_key(self, key: str, owner: str | int | None = None) -> KeyDeleted:
        """Delete a key and abort its open transaction. The store keeps its last epoch for ever.

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

    def set_setting(self, name: str, value: int | str | float | timedelta) -> SettingChanged:
        """Change a setting for all processes; {name, value, before, changed}.

        raises: NotFound (308), InvalidArgument, LimitExceeded; NotAllowed for fewer coordinators
        """
        plain = cast(Value, durations_ms({name: value})[name])
        return change(self._store, name, plain)

    def set_isolation(self, topic: str, subscription: str, isolation: Isolation) -> bool:
        """Change the isolation of a subscription without live consumers; True if it changed.

        isolation: "committed" or "uncommitted"
        raises:    ConsumerBusy, InvalidArgument, TopicNotFound, SubscriptionNotFound
        """
        store, name = self._store, TopicName.parse(topic)

        def consumers(view: View) -> list[int]:
            record = find_subscription(view, find_topic(view, name), subscription)
            return [consumer.number for consumer in consumers_of(view.catalog, record.number)]

        dead = dead_consumers(store.disk, store.read(consumers))
        changed = store.write(
            lambda view, now: create.set_isolation(
                view, find_topic(view, name), subscription, isolation, dead
            )
        )
        return bool(changed)

    def update_topic(
        self, name: str, partitions: int | None = None, **policies: DurationLike | None
    ) -> TopicUpdated:
        """Add partitions to a topic, and set policies (None removes one).

        Open producers and consumers use the new partitions, too. From then on a key goes to
        partition crc32(key) mod partitions. Policies are as in Client.set_policies.
        returns: {topic, partitions, policies, changed}
        raises:  TopicNotFound, NotAllowed (fewer partitions), LimitExceeded, InvalidArgument
        """
        return change_topic(self._store, name, partitions, policies_ms(policies))

    def rename_topic(self, name: str, new_name: str, *, dry_run: bool = False) -> TopicRenamed:
        """Give a topic another name in its namespace; the fields of `txlog topic rename`.

        One frame: messages, subscriptions, transactions, policies and schemas stay with the topic,
        and open producers, consumers and readers of any process go on. The frame also renames its
        dead-letter and retry topics that have derived names, and changes policies that name them.
        The old name is free at once. Files do not move: `describe_topic` has their directory.
        dry_run: only report what would be renamed
        raises:  TopicNotFound, AlreadyExists (the new name, or one that is derived from it),
                 NotAllowed (another namespace; a subscription would give its messages to its own
                 topic), InvalidArgument
        """
        return renamed_topic(self._store, name, new_name, dry_run=dry_run)

    def delete_topic(
        self, name: str, *, force: bool = False, unused: bool = False, dry_run: bool = False
    ) -> TopicDeleted:
        """Delete a topic with its messages; the fields of `txlog topic delete`.

        force:  also if it has subscriptions or messages of unfinished transactions; these
                transactions list the topic as skipped
        unused: also if it has subscriptions, unless one has a consumer
        dry_run: only report what would be deleted
        raises: TopicNotFound, StillInUse
        """
        return drop_topic(self._store, name, force=force, dry_run=dry_run, unused=unused)

    # --- availability ------------------------------------------------------------------------

    def set_offline(self, topic: str, partition: int | None = None) -> PartitionSwitched:
        """Make a partition and its sidecar unavailable; the fields of `txlog admin offline`.

        Sends, acknowledgements and reads there raise PartitionUnavailable. If a transaction with
        messages or acknowledgements there ends, all other partitions finish at once, and this
        partition when it comes back.
        raises: TopicNotFound
        """
        name = _partition(topic, partition)
        return self._switch(name, lambda view, now: availability.set_offline(view, name))

    def set_online(self, topic: str, partition: int | None = None) -> PartitionSwitched:
        """Make a partition available again and finish the transactions that waited for it.

        One frame does all of this.
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
        self, older_than_ms: DurationLike = HANGING_MS, topics: Sequence[str] = ()
    ) -> list[HangingTransaction]:
        """Transactions that will not end by themselves; the fields of `txlog txn find-hanging`.

        older_than_ms: a decided transaction may wait this long for a partition
        topics:        only transactions with messages or acknowledgements in these topics
        raises:        TopicNotFound
        """
        names = [TopicName.parse(name, allow_partition=True) for name in topics]
        limit_ms = duration_ms(older_than_ms)
        self._store.settle()
        self._store.sweep_if_due()
        now = self._store.clock.now()

        def look(view: View) -> list[HangingTransaction]:
            touched = [find_topic(view, name) for name in names]
            transactions = hanging(
                view, now, limit_ms, touched or list(view.catalog.topics.values())
            )
            return [_row(view, transaction) for transaction in transactions]

        return self._store.read(look)

    def check(
        self,
        topics: Sequence[str] = (),
        *,
        backlog: Limits = (None, None),
        txn_age_ms: Limits = (None, None),
        lag_ms: Limits = (None, None),
    ) -> Check:
        """Check whether the store, or some topics, are healthy; the fields of `txlog check`.

        backlog, txn_age_ms, lag_ms: (warn, crit): a larger value is a warning, or critical; None:
                 no bound
        returns: {status, check_list: [{name, status, value, warn, crit, detail}]}, status one of
                 ok, warning, critical
        raises:  TopicNotFound, InvalidArgument
        """
        self._store.settle()
        self._store.sweep_if_due()
        bounds = [health.Bounds(*limits) for limits in (backlog, txn_age_ms, lag_ms)]
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
        """Rewrite the sidecars of a topic in commit order, without aborted and trimmed rows.

        arrange: a function that reads and sorts the rows; jobs pass one that uses Spark
        raises: TopicNotFound, StoreLocked (another process runs maintenance), StoreFull;
                SnapshotExpired: during a dry run, checkpoints removed files that it reads
        """
        return space.compact(self._store, topic, partition, dry_run=dry_run, arrange=arrange)

    def compact_topic(self, topic: str, *, dry_run: bool = False) -> TopicCompacted:
        """Write the newest message of each key, for readers with read_compacted and table views.

        It covers all partitions up to one LSN; the next compaction reads only newer messages and
        the compacted ones. A message without a value deletes its key; messages without a key are
        left out. The log does not change, but it may now be trimmed up to that LSN.

        returns: counts of the messages that were read, and of the remaining keys
        raises:  TopicNotFound, PartitionUnavailable, StoreLocked (another process runs
                 maintenance), StoreFull, Corruption; SnapshotExpired: during a dry run, checkpoints
                 removed files that it reads
        """
        return space.compact_topic(self._store, topic, dry_run=dry_run)

    def compact_changes(self) -> list[ChangesCompacted]:
        """Reduce the logs of changes to the newest row of each key, cursor and catalog entry.

        The result is in Parquet, with a file for each cursor. Earlier rows are deleted, as in
        Pulsar's topic compaction. It writes a checkpoint first, so that all changes are included.

        returns: one row per log, with its rows, files and bytes before and after
        raises:  StoreLocked (another process runs maintenance), StoreFull, Corruption
        """
        return space.compact_changes(self._store)

    def offload(
        self, topic: str, to: StrPath, partition: int | None = None, *, dry_run: bool = False
    ) -> Offloaded:
        """Move sealed files to a directory or bucket. Reading works as before.

        to:     an existing directory, or s3://bucket/prefix?region=…&endpoint_override=…
        raises: TopicNotFound, StoreLocked, InvalidArgument, NotFound (no such directory),
                DiskFailed (the place cannot be reached; files moved before stay there)
        """
        return space.offload(self._store, topic, path_text(to), partition, dry_run=dry_run)

    def confirm(self, place: StrPath) -> Confirmed:
        """Allow this user's programs to read offloaded files of the store in a place.

        A store alone cannot make a program open files outside it. Offloading confirms the place for
        the user who offloads; other users and other machines need this call. It does not change the
        store, and it never leads to the removal of files in that place.

        place:  as `to` of `offload`
        raises: InvalidArgument, DiskFailed (it cannot be recorded)
        """
        return space.confirm_place(self._store, path_text(place))

    def trim(
        self,
        topic: str,
        to: Bound | None = None,
        *,
        by_policy: bool = False,
        force_unacked: bool = False,
        dry_run: bool = False,
    ) -> Trimmed:
        """Delete whole ledgers before a bound, or whole ledgers that the topic's policies expire.

        raises: Refused if they have unacknowledged messages and force_unacked is not set
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
        """Trust the wall clock of this machine, even if it is far ahead of the expected time.

        Expiry by time then follows it.
        returns: {ahead_ms, was_believed}: how the store judged the clock before
        """
        store = self._store
        before = store.write(lambda view, now: update.accept_clock(view, store.settings, now))
        return {"ahead_ms": before.ahead_ms, "was_believed": before.is_believed}

    def gc(self, apply: bool = False, keep_ms: DurationLike = HOUR_MS) -> GarbageCollected:
        """Files that no manifest names, with reasons; apply: delete them.

        keep_ms: spare files that lost their name less than this ago; readers may still use them
        """
        return space.gc(self._store, apply=apply, keep_ms=duration_ms(keep_ms))

    # --- policies: delayed delivery ----------------------------------------------------------

    def set_delayed_policies(
        self,
        topic: str | None = None,
        namespace: str | None = None,
        *,
        active: bool | None = None,
        tick_time_ms: DurationLike | None = None,
        strict: bool | None = None,
        max_delivery_delay_ms: DurationLike | None = None,
        fixed_delivery_delay_ms: DurationLike | None = None,
        ttl_from: TtlFrom | None = None,
    ) -> PoliciesChanged:
        """Set how messages wait for delivery: for a topic, a namespace, else the store.

        active:     False: ignore delivery times, no message waits
        tick_time_ms: unless `strict`, a message may come this much too early
        max_delivery_delay_ms: refuse longer delays (InvalidMessage); 0: no limit
        fixed_delivery_delay_ms: the delay of every message, instead of its own; 0: its own
        ttl_from:   "publish" or "deliver_at": the start of a message's time to live
        None:       unchanged; a topic inherits from its namespace, which inherits from the store
        returns:    {topic, namespace, policies, origins, changed}, what applies from now on
        raises:     TopicNotFound, InvalidArgument, LimitExceeded
        """
        policies = {
            "active": active,
            "tick_time_ms": tick_time_ms,
            "strict": strict,
            "max_delivery_delay_ms": max_delivery_delay_ms,
            "fixed_delivery_delay_ms": fixed_delivery_delay_ms,
            "ttl_from": ttl_from,
        }
        return _changed(_change(self._store, DELAYED, scope_of(topic, namespace), policies))

    def get_delayed_policies(
        self, topic: str | None = None, namespace: str | None = None
    ) -> Policies:
        """The policies that apply, and where each is set; as set_delayed_policies."""
        return _answer(_get(self._store, DELAYED, scope_of(topic, namespace)))

    def remove_delayed_policies(
        self, names: Collection[str] = (), topic: str | None = None, namespace: str | None = None
    ) -> PoliciesChanged:
        """Remove policies, so that they are inherited; no names: all. As set_delayed_policies."""
        return _changed(_remove(self._store, DELAYED, scope_of(topic, namespace), names))

    # --- policies: retention -----------------------------------------------------------------

    def set_retention_policies(
        self,
        topic: str | None = None,
        namespace: str | None = None,
        *,
        retention_ms: DurationLike | None = None,
        retention_bytes: int | None = None,
        retention_acked: bool | None = None,
        ttl_ms: DurationLike | None = None,
        ttl_from: TtlFrom | None = None,
        compaction_threshold_bytes: int | None = None,
    ) -> PoliciesChanged:
        """Set how much is kept, and how long: for a topic, a namespace, else the store.

        retention_ms:    delete ledgers whose newest message is older than this
        retention_bytes: delete a ledger once the newer ones of its partition have this many bytes
        retention_acked: delete ledgers that every subscription has acknowledged
        ttl_ms:     acknowledge messages older than this; ttl_from: as set_delayed_policies
        compaction_threshold_bytes: run compact_topic after a checkpoint when all partitions
                    together have grown by this much since the last time
        -1:         no bound, even if the namespace or the store has one; the answer has None
        None:       unchanged; a topic inherits from its namespace, which inherits from the store
        returns:    {topic, namespace, policies, origins, changed}, what applies from now on
        raises:     TopicNotFound, InvalidArgument, LimitExceeded

        A ledger with unacknowledged messages is never deleted automatically.
        """
        policies = {
            "retention_ms": retention_ms,
            "retention_bytes": retention_bytes,
            "retention_acked": retention_acked,
            "ttl_ms": ttl_ms,
            "ttl_from": ttl_from,
            "compaction_threshold_bytes": compaction_threshold_bytes,
        }
        return _changed(_change(self._store, RETENTION, scope_of(topic, namespace), policies))

    def get_retention_policies(
        self, topic: str | None = None, namespace: str | None = None
    ) -> Policies:
        """The policies that apply, and where each is set; as set_…_policies."""
        return _answer(_get(self._store, RETENTION, scope_of(topic, namespace)))

    def remove_retention_policies(
        self, names: Collection[str] = (), topic: str | None = None, namespace: str | None = None
    ) -> PoliciesChanged:
        """Remove policies, so that they are inherited; no names: all. As set_retention_policies."""
        return _changed(_remove(self._store, RETENTION, scope_of(topic, namespace), names))

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
        producer_idle_timeout_ms: DurationLike | None = None,
        open_transaction_check: OpenTransactionCheck | None = None,
        emit_interval_ms: DurationLike | None = None,
    ) -> PoliciesChanged:
        """Set how watermarks are stored and delivered: for a topic, a namespace, else the store.

        snapshot_…: write a snapshot before the next append when a partition has got so many bytes,
                    entries or markers since the last one
        producers_max: how many producers may hold back the watermark of a partition; 0: any number
        producer_idle_timeout_ms: the next call that writes declares a producer idle that has
                    asserted nothing for this long; 0: never
        open_transaction_check: "count", "refuse" or "off": what to do with a watermark ahead of a
                    message in an open transaction of the same producer
        emit_interval_ms: the least time between two watermarks of a consumer
        None:       unchanged; a topic inherits from its namespace, which inherits from the store
        returns:    {topic, namespace, policies, origins, changed}, what applies from now on
        raises:     TopicNotFound, InvalidArgument, LimitExceeded
        """
        policies = {
            "snapshot_bytes_max": snapshot_bytes_max,
            "snapshot_entries_max": snapshot_entries_max,
            "snapshot_markers_max": snapshot_markers_max,
            "producers_max": producers_max,
            "producer_idle_timeout_ms": producer_idle_timeout_ms,
            "open_transaction_check": open_transaction_check,
            "emit_interval_ms": emit_interval_ms,
        }
        return _changed(_change(self._store, WATERMARK, scope_of(topic, namespace), policies))

    def get_watermark_policies(
        self, topic: str | None = None, namespace: str | None = None
    ) -> Policies:
        """The policies that apply, and where each is set; as set_…_policies."""
        return _answer(_get(self._store, WATERMARK, scope_of(topic, namespace)))

    def remove_watermark_policies(
        self, names: Collection[str] = (), topic: str | None = None, namespace: str | None = None
    ) -> PoliciesChanged:
        """Remove policies, so that they are inherited; no names: all. As set_watermark_policies."""
        return _changed(_remove(self._store, WATERMARK, scope_of(topic, namespace), names))

    # --- policies: schemas -------------------------------------------------------------------

    def set_schema_policies(
        self,
        topic: str | None = None,
        namespace: str | None = None,
        *,
        compatibility: Compatibility | None = None,
        validation: Validation | None = None,
    ) -> PoliciesChanged:
        """Set how schemas may change, and whether values are checked, for a topic, a namespace,
        else the store.

        compatibility: Pulsar's names: "none"; "backward": a new schema reads values of the last
                    one; "forward": the last one reads values of the new schema; "full": both. With
                    "_transitive": of all earlier schemas instead of the last one
        validation: what to do with a value that does not fit: "enforce" refuses it, "record" stores
                    and counts it, "off" does not check
        None:       unchanged; a topic inherits from its namespace, which inherits from the store
        returns:    {topic, namespace, policies, origins, changed}, what applies from now on
        raises:     TopicNotFound, InvalidArgument
        """
        policies = {"compatibility": compatibility, "validation": validation}
        return _changed(_change(self._store, SCHEMA, scope_of(topic, namespace), policies))

    def get_schema_policies(
        self, topic: str | None = None, namespace: str | None = None
    ) -> Policies:
        """The policies that apply, and where each is set; as set_schema_policies."""
        return _answer(_get(self._store, SCHEMA, scope_of(topic, namespace)))

    def remove_schema_policies(
        self, names: Collection[str] = (), topic: str | None = None, namespace: str | None = None
    ) -> PoliciesChanged:
        """Remove policies, so that they are inherited; no names: all. As set_schema_policies."""
        return _changed(_remove(self._store, SCHEMA, scope_of(topic, namespace), names))

    # --- policies: alerts --------------------------------------------------------------------

    def set_alert_policies(
        self,
        topic: str | None = None,
        namespace: str | None = None,
        *,
        subscription: str | None = None,
        backlog_age_ms: DurationLike | None = None,
        backlog_messages: int | None = None,
        backlog_bytes: int | None = None,
        no_consumer_ms: DurationLike | None = None,
    ) -> AlertPoliciesChanged:
        """Set when a backlog is a problem: for a subscription, a topic, a namespace, or the store.

        subscription:     of the topic
        backlog_age_ms:   the oldest message of the backlog that is due is older than this
        backlog_messages, backlog_bytes: the backlog is larger than this
        no_consumer_ms:   no consumer is connected, and none has been for this long
        -1:      no alert, even if a wider scope has one; the answer has None
        None:    unchanged; a subscription inherits from its topic, that from its namespace, and
                 that from the store
        returns: {topic, subscription, namespace, policies, origins, changed}
        raises:  TopicNotFound, SubscriptionNotFound, InvalidArgument, LimitExceeded

        `check`, `status`, the report, metrics and the pages show what is above a threshold.
        """
        values = {
            "backlog_age_ms": backlog_age_ms,
            "backlog_messages": backlog_messages,
            "backlog_bytes": backlog_bytes,
            "no_consumer_ms": no_consumer_ms,
        }
        scope = scope_of(topic, namespace, subscription)
        return _alerts(_change(self._store, ALERT, scope, values))

    def get_alert_policies(
        self,
        topic: str | None = None,
        namespace: str | None = None,
        *,
        subscription: str | None = None,
    ) -> AlertPolicies:
        """The thresholds that apply, and where each is set; as set_alert_policies."""
        return _thresholds(_get(self._store, ALERT, scope_of(topic, namespace, subscription)))

    def remove_alert_policies(
        self,
        names: Collection[str] = (),
        topic: str | None = None,
        namespace: str | None = None,
        *,
        subscription: str | None = None,
    ) -> AlertPoliciesChanged:
        """Remove thresholds, so that they are inherited; no names: all. As set_alert_policies."""
        scope = scope_of(topic, namespace, subscription)
        return _alerts(_remove(self._store, ALERT, scope, names))


def _row(view: View, transaction: HangingTxn) -> HangingTransaction:
    places = [participant_name(view.catalog, name) for name in transaction.waiting]
    first = places[0].partition(":")[0] if places else ""
    return {
        "txn": TxnId(transaction.coordinator, transaction.sequence),
        "state": None if transaction.status is None else transaction.status.lower(),
        "age_ms": transaction.age_ms,
        "cause": transaction.cause,
        "repair": _repair_of(transaction.cause, str(first), str(transaction.detail)),
        "waiting_list": places,
    }


def _repair_of(cause: str, place: str, detail: str) -> str:
    """What ends a transaction that does not end by itself."""
    return {
        "unavailable": command_line("admin online", place),
        "overdue": "txlog txn expire",
        "prepared": f"{command_line('txn resolve', '--database', 'URL')}: {detail}",
        "corrupt": f"restore the store from a copy: {detail}",
    }[cause]


def _partition(topic: str, partition: int | None) -> TopicName:
    """The name with its partition: `orders/2`, or the topic and its number."""
    if partition is None:
        return TopicName.parse(topic, allow_partition=True)
    return replace(TopicName.parse(topic), partition=partition)

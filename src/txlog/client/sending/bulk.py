"""Owns Bulk: a batch of any size, which many processes write as files and one frame stores once.

    driver   client.bulk(topic, key=, batch=)      a batch that is stored already needs no files
    tasks    stage(plan, rows)                     write files below the topic's _stage directory
    driver   commit(staged)                        one frame stores all files, or none

A batch is named by a key, and a number or a name. A driver that repeats it gets the first answer.
Numbers under a key rise: a number at or below the last one counts as stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from txlog.base.arguments import checked
from txlog.base.ids import TopicName, TxnId, check_name
from txlog.engine.door.catalog import has_partition, index_of, live_topic, topic_of
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.disk import PosixDisk
from txlog.engine.door.staging import (
    Staged,
    StagePlan,
    Stager,
    StoredBatch,
    adopt_files,
    append_rows,
    check_token,
    job_name,
    recorded,
    remove_job,
    remove_tagged,
    stage_dir,
)
from txlog.engine.door.store import Store, View
from txlog.engine.door.topics import delay_policy, typing_of
from txlog.errors import InvalidArgument, NotAllowed, OutcomeUnknown, TxlogError

if TYPE_CHECKING:
    from txlog.base.rows.sending import BulkPartition, BulkStored


Rows: TypeAlias = pa.Table | pa.RecordBatch


def planned(
    store: Store, topic: str, key: str, batch: int | str, tag: str = "", producer: str | None = None
) -> StagePlan:
    """The plan that the tasks of a batch share. Raises TopicNotFound, ReadOnlyStore.

    tag:      shared by the jobs of a stream; a job that ends removes the files of earlier ones
    producer: the name in every row. It fences no other producer, and rows have no sequences
    """
    if producer is not None:
        check_name("producer", producer)
    store.need_writable()
    if store.dry_run:
        raise InvalidArgument("a dry run stages no files")
    name = TopicName.parse(topic)
    now_ms = store.clock.now().wall_ms
    job = job_name(now_ms, tag, store.disk.random_bytes(16))

    def look(view: View) -> StagePlan:
        entry = find_topic(view, name)
        policy = delay_policy(view, store.settings, entry)
        delay_ms = policy.fixed_delivery_delay_ms if policy.active else 0
        return StagePlan(
            store.disk.description,
            entry.name,
            entry.number,
            entry.partitions,
            f"{stage_dir(view, entry.number)}/{job}",
            key,
            batch,
            now_ms,
            store.settings.max_message_bytes,
            delay_ms,
            tag,
            producer,
            typing=typing_of(view, store.settings, entry) if entry.schemas else None,
        )

    return store.read(look)


def stage(plan: StagePlan, rows: Iterable[Rows], task: int = 0) -> list[Staged]:
    """Write the rows of one task, in any process that sees the store's directory.

    rows: tables or batches with the columns of Producer.send_batch. For a typed topic they may have
          a struct `record` instead of `value`
    task: its number in the job; it chooses the partition of rows without a key
    returns: the files for `Bulk.commit`; a process can pickle them
    raises:  InvalidArgument, InvalidMessage, StoreNotFound, ReadOnlyStore, StoreFull, DiskFailed
    """
    with closing(PosixDisk(plan.store)) as disk:
        return _staged(Stager(disk, plan, task), rows)


def _staged(stager: Stager, rows: Iterable[Rows]) -> list[Staged]:
    with closing(stager):
        for table in rows:
            stager.add(table)
        return stager.finish()


@checked
class Bulk:
    """One batch of a topic; made by `Client.bulk`.

    >>> import tempfile, txlog, pyarrow as pa
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = txlog.init(folder)
    ...     with txlog.open(folder) as client:
    ...         _ = client.create_topic("orders", partitions=2)
    ...         for _ in range(2):
    ...             bulk = client.bulk("orders", key="nightly", batch="2026-11-21")
    ...             staged = bulk.stage([pa.table({"value": [b"one", b"two"]})])
    ...             answer = bulk.commit(staged)
    ...             answer["already"], answer["messages"], len(list(client.reader("orders")))
    (False, 2, 2)
    (True, 2, 2)
    """

    __slots__ = ("_on_commit", "_store", "batch", "key", "plan")

    def __init__(self, store: Store, plan: StagePlan, on_commit: Callable[[], None]) -> None:
        """For `Client.bulk`; on_commit: called after each commit."""
        check_token(plan.key, plan.batch)
        store.need_writable()
        self._store = store
        self._on_commit = on_commit
        self.plan = plan
        self.key = plan.key
        self.batch = plan.batch

    def __repr__(self) -> str:
        return f"<txlog bulk {self.batch!r} of {self.plan.topic}, key {self.key!r}>"

    @property
    def stored(self) -> BulkStored | None:
        """The answer of the commit that stored this batch; None: no commit has.

        raises: NotAllowed (the key has stored batches of another topic or another stream)
        """
        self._store.settle()
        return self._store.read(self._find)

    def stage(self, rows: Iterable[Rows], task: int = 0) -> list[Staged]:
        """As the function `stage`, in this process; it writes no files if the batch is stored."""
        if self.stored is not None:
            return []
        return _staged(Stager(self._store.disk, self.plan, task), rows)

    def commit(
        self,
        staged: Sequence[Staged],
        *,
        rows_if_small: bool = False,
        after: int | None = None,
    ) -> BulkStored:
        """Store the whole batch in one frame, durably. Without files it stores nothing.

        rows_if_small: a batch of up to 20,000 messages and 1 MiB becomes rows of the open ledgers,
                 without files of its own: `files` is 0, and its txn has no messages
        after:   the number of the batch that must be the last one under the key, -1: none is;
                 TryAgain if it is not, because another process was faster. None: any
        returns: {topic, key, batch, already, messages, size_bytes, files, lsn, time, txn,
                 partitions}; partitions: {partition, ledger (the first), messages}; a number below
                 the last one gets only the first four
        raises:  InvalidArgument (a file of another job, or one file twice), NotAllowed (a file is
                 missing; partitions were added; the key has batches of another topic or stream),
                 Corruption (a file differs from its task's report), TopicNotFound, StoreLocked,
                 PartitionUnavailable, StoreFull: the store is unchanged; OutcomeUnknown: repeat
        """
        store, plan = self._store, self.plan
        paths = [part.file.path for part in staged]
        is_foreign = any(
            part.directory != plan.directory or path.rpartition("/")[0] != plan.directory
            for part, path in zip(staged, paths, strict=True)
        )
        if is_foreign or len({*paths}) < len(paths):
            raise InvalidArgument("the files are not those of this batch, each once")
        answer = self.stored
        already = answer is not None
        if answer is None and staged:
            try:
                batch = (store, plan.number, self.key, self.batch, staged, plan.query, after)
                is_new = None
                if rows_if_small and plan.producer is None:
                    is_new = append_rows(*batch, copies=plan.copies)
                if is_new is None:
                    is_new = adopt_files(*batch, copies=plan.copies)
                already = not is_new
            except OutcomeUnknown as error:
                ours = OutcomeUnknown(error.message, hint="repeat it: it is stored once at most")
                ours.fields = {**error.fields, "transaction_key": self.key}
                raise ours from error
            answer = store.read(self._find, fresh=False)  # from here no step may fail
        self._clear()
        self._on_commit()
        if answer is None:
            return {
                **self._head(already=False),
                "messages": 0,
                "size_bytes": 0,
                "files": 0,
                "lsn": None,
                "time": None,
                "txn": None,
                "partitions": [],
            }
        return {**answer, "already": already}

    def abort(self) -> BulkStored | None:
        """Remove the staged files; returns the answer of the commit if the batch is stored."""
        try:
            return self.stored
        except NotAllowed:  # the key belongs to another topic or stream
            return None
        finally:
            self._clear()

    def _clear(self) -> None:
        with suppress(TxlogError):  # a checkpoint removes old files that stay
            remove_job(self._store.disk, self.plan.directory)
            parent = self.plan.directory.rpartition("/")[0]
            remove_tagged(self._store.disk, parent, self.plan.tag, self.plan.time_ms)

    def _find(self, view: View) -> BulkStored | None:
        store, plan = self._store, self.plan
        live_topic(view, plan.number, TopicName.parse(plan.topic).short)
        caller = store.disk.owner()
        stored = recorded(
            view, store.settings, caller, plan.number, self.key, self.batch, plan.query
        )
        return None if stored is None else self._shown(view, stored)

    def _head(self, *, already: bool) -> BulkStored:
        topic = TopicName.parse(self.plan.topic).short
        return {"topic": topic, "key": self.key, "batch": self.batch, "already": already}

    def _shown(self, view: View, stored: StoredBatch) -> BulkStored:
        record = stored.what
        if record is None:
            return self._head(already=True)
        partitions: list[BulkPartition] = [
            {
                "partition": index_of(topic_of(view.catalog, number), number),
                "ledger": ledger,
                "messages": messages,
            }
            for number, ledger, messages in record.places
            if has_partition(view.catalog, number)
        ]
        return {
            **self._head(already=True),
            "messages": record.messages,
            "size_bytes": record.payload_bytes,
            "files": record.files,
            "lsn": record.lsn,
            "time": record.time_ms,
            "txn": TxnId(stored.coordinator, record.sequence),
            "partitions": partitions,
        }

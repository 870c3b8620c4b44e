"""Owns Bulk: a batch of any size, stored once, written as files by any number of processes.

    driver   client.bulk(topic, key=, batch=)      is it stored already? then nothing is written
    tasks    stage(plan, rows)                     files below the topic's _stage, and what they are
    driver   commit(staged)                        one frame: all of it, or nothing

A batch is named by its key and its number or name: whoever brings the same again gets the first
answer. Numbers under a key rise; a number at or below the last one is already stored.
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
    Recorded,
    Staged,
    StagePlan,
    Stager,
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
    """What the tasks of a batch need to know. Raises TopicNotFound, ReadOnlyStore.

    tag:      what jobs of one stream have in common; when one ends, those before it are cleaned up
    producer: the name in every row; only a name: it fences nobody, and has no sequences
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
        found = find_topic(view, name)
        policy = delay_policy(view, store.settings, found)
        fixed = policy.fixed_delivery_delay_ms if policy.active else 0
        return StagePlan(
            store.disk.description,
            found.name,
            found.number,
            found.partitions,
            f"{stage_dir(view, found.number)}/{job}",
            key,
            batch,
            now_ms,
            store.settings.max_message_bytes,
            fixed,
            tag,
            producer,
            typing=typing_of(view, store.settings, found) if found.schemas else None,
        )

    return store.read(look)


def stage(plan: StagePlan, rows: Iterable[Rows], task: int = 0) -> list[Staged]:
    """Write the rows of one task, in any process that sees the store's directory.

    rows: tables or batches with the columns of Producer.send_batch; they are not kept. Of a typed
          topic also with a struct `record` in the place of `value`
    task: its number in the job; rows without a key go to one partition, by this number
    returns: what `Bulk.commit` wants of this task; it can be pickled
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

    __slots__ = ("_after", "_store", "batch", "key", "plan")

    def __init__(self, store: Store, plan: StagePlan, after: Callable[[], None]) -> None:
        """For `Client.bulk`; after: called after a commit."""
        check_token(plan.key, plan.batch)
        store.need_writable()
        self._store = store
        self._after = after
        self.plan = plan
        self.key = plan.key
        self.batch = plan.batch

    @property
    def stored(self) -> BulkStored | None:
        """The answer of the commit that stored this batch, None: it is not stored.

        raises: NotAllowed (the key has stored batches of another topic or another stream)
        """
        self._store.settle()
        return self._store.read(self._find)

    def stage(self, rows: Iterable[Rows], task: int = 0) -> list[Staged]:
        """As the function `stage`, in this process; nothing is written if the batch is stored."""
        if self.stored is not None:
            return []
        return _staged(Stager(self._store.disk, self.plan, task), rows)

    def commit(self, staged: Sequence[Staged], *, rows_if_small: bool = False) -> BulkStored:
        """Store all of it, by one frame; durable when it returns. Without files nothing is stored.

        rows_if_small: a batch of up to 20,000 messages and 1 MiB becomes rows of the open ledgers,
                 not files of its own: `files` is 0, and its txn has no messages
        returns: {topic, key, batch, already, messages, size_bytes, files, lsn, time, txn,
                 partitions}; partitions: {partition, ledger (the first), messages}; of a number
                 below the last one only the first four are known
        raises:  NotAllowed (a file of another job, or gone; partitions were added), Corruption (a
                 file is not what was written), TopicNotFound, PartitionUnavailable, StoreLocked,
                 StoreFull: nothing was stored; OutcomeUnknown: ask `stored`, or repeat
        """
        store, plan = self._store, self.plan
        paths = [one.file.path for one in staged]
        is_strange = any(
            one.directory != plan.directory or path.rpartition("/")[0] != plan.directory
            for one, path in zip(staged, paths, strict=True)
        )
        if is_strange or len({*paths}) < len(paths):
            raise InvalidArgument("the files are not those of this batch, each once")
        answer = self.stored
        already = answer is not None
        if answer is None and staged:
            try:
                what = (store, plan.number, self.key, self.batch, staged, plan.query)
                done = None
                if rows_if_small and plan.producer is None:
                    done = append_rows(*what)
                already = not (adopt_files(*what) if done is None else done)
            except OutcomeUnknown as error:
                ours = OutcomeUnknown(error.message, hint="repeat it: it is stored once at most")
                ours.fields = {**error.fields, "transaction_key": self.key}
                raise ours from error
            answer = store.read(self._find, fresh=False)  # it is stored: nothing may fail from here
        self._clear()
        self._after()
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
        """Remove what was staged; the answer of the commit if the batch is stored all the same."""
        try:
            return self.stored
        except NotAllowed:  # what is stored under the key is of another topic or stream
            return None
        finally:
            self._clear()

    def _clear(self) -> None:
        with suppress(TxlogError):  # a checkpoint removes what stays, by its age
            remove_job(self._store.disk, self.plan.directory)
            above = self.plan.directory.rpartition("/")[0]
            remove_tagged(self._store.disk, above, self.plan.tag, self.plan.time_ms)

    def _find(self, view: View) -> BulkStored | None:
        store, plan = self._store, self.plan
        live_topic(view, plan.number, TopicName.parse(plan.topic).short)
        caller = store.disk.owner()
        found = recorded(
            view, store.settings, caller, plan.number, self.key, self.batch, plan.query
        )
        return None if found is None else self._shown(view, found)

    def _head(self, *, already: bool) -> BulkStored:
        topic = TopicName.parse(self.plan.topic).short
        return {"topic": topic, "key": self.key, "batch": self.batch, "already": already}

    def _shown(self, view: View, found: Recorded) -> BulkStored:
        what = found.what
        if what is None:
            return self._head(already=True)
        partitions: list[BulkPartition] = [
            {
                "partition": index_of(topic_of(view.catalog, number), number),
                "ledger": ledger,
                "messages": messages,
            }
            for number, ledger, messages in what.places
            if has_partition(view.catalog, number)
        ]
        return {
            **self._head(already=True),
            "messages": what.messages,
            "size_bytes": what.payload_bytes,
            "files": what.files,
            "lsn": what.lsn,
            "time": what.time_ms,
            "txn": TxnId(found.coordinator, what.sequence),
            "partitions": partitions,
        }

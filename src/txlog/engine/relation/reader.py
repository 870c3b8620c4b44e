"""Owns RelationReader, an open store for readers of its files: SQL, Spark, completion and shells.

It is the lightest handle: a command that only runs SQL loads only this. It lists the names in a
store without counts or sizes, in one pass over the catalog or the coordinators.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from txlog.base.arguments import checked
from txlog.base.ids import TopicName, TxnId
from txlog.clock import Clock, SystemClock
from txlog.engine.decide.sending import adopt
from txlog.engine.decide.transactions import keys
from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.relation import build, files, relation, scans
from txlog.engine.storage import remote
from txlog.engine.storage.disk.posix import PosixDisk, absolute
from txlog.engine.storage.disk.protocol import Disk, File
from txlog.engine.store import liveness
from txlog.engine.store.identity import read_identity
from txlog.engine.store.store import Store
from txlog.engine.view import View
from txlog.errors import AlreadyClosed, StoreFull

if TYPE_CHECKING:
    from txlog.base.rows.files import LedgerRows
    from txlog.engine.relation.relation import FileSource, Relation, RelationContent, RelationFilter
    from txlog.engine.relation.scans import Ends, Scan
    from txlog.engine.store.liveness import Pin

KINDS: Final = ("topic", "partition", "subscription", "key", "transaction", "ended")


def names_of(view: View, uid: int, kind: str, topic: str | None = None) -> list[tuple[str, str]]:
    """(name, description) for everything of a kind, in order.

    kind:  one of KINDS; `transaction`: unfinished ones; `ended`: every remembered one; newest first
    uid:   the user whose keys are listed
    topic: only its subscriptions; an unknown name has none
    """
    if kind == "topic":
        return [(name, _counted(len(numbers))) for name, numbers in _topics(view)]
    if kind == "partition":
        return [(f"{name}/{n}", "partition") for name, numbers in _topics(view) for n in numbers]
    if kind == "subscription":
        return _subscriptions(view, topic)
    if kind == "key":
        return [(key, "transaction key") for key in sorted(keys.living_keys(view, uid))]
    return _transactions(view, kind == "ended")


def _topics(view: View) -> list[tuple[str, range]]:
    topics = view.catalog.topics.values()
    return sorted((TopicName.parse(topic.name).short, range(topic.partitions)) for topic in topics)


def _counted(partitions: int) -> str:
    return "1 partition" if partitions == 1 else f"{partitions} partitions"


def _subscriptions(view: View, topic: str | None) -> list[tuple[str, str]]:
    short_name = None if topic is None else TopicName.parse(topic, allow_partition=True).topic.short
    described: dict[str, str] = {}
    for topic_record in view.catalog.topics.values():
        short = TopicName.parse(topic_record.name).short
        for number in topic_record.subscriptions if short_name in (None, short) else ():
            name = view.catalog.subscriptions[number].name
            described[name] = f"{described[name]}, {short}" if name in described else f"of {short}"
    return sorted(described.items())


def _transactions(view: View, ended: bool) -> list[tuple[str, str]]:
    rows: list[tuple[int, str, str]] = []
    for number in view.known_coordinators():
        state = view.coordinator(number)
        for txn in (*state.unfinished.values(), *(state.ended.values() if ended else ())):
            description = txn.status.lower() + ("" if txn.key is None else f", {txn.key}")
            rows.append((-txn.wall_ms, str(TxnId(number, txn.sequence)), description))
    return [(text, description) for _, text, description in sorted(rows)]


T = TypeVar("T")


def open_relations(
    path: str,
    *,
    read_only: bool = False,
    clock: Clock | None = None,
    lock_timeout_ms: int | None = None,
) -> RelationReader:
    """Open an existing store for its relations; raises as txlog.open."""
    disk = PosixDisk(absolute(path), read_only=read_only)
    try:
        store = Store(
            disk,
            clock or SystemClock(),
            read_identity(disk),
            lock_timeout_ms=lock_timeout_ms,
            durability=None,
        )
    except BaseException:  # no caller has it yet, so close it here
        disk.close()
        raise
    return RelationReader(store, disk)


@checked
class RelationReader:
    """A handle of a store that finds the files and rows with the messages of topics."""

    __slots__ = ("_disk", "store")

    def __init__(self, store: Store, disk: Disk) -> None:
        self.store = store
        self._disk = disk

    @property
    def path(self) -> str:
        """The directory of the store."""
        return self._disk.description

    @property
    def lock_timeout_ms(self) -> int:
        """How long calls wait for a lock: as requested, or by the store's setting."""
        return self.store.lock_timeout_ms

    def wait_for_locks(self, timeout_ms: int) -> None:
        """Let later calls wait this long for a lock, instead of the store's setting."""
        self.store.lock_timeout_asked_ms = timeout_ms

    def close(self) -> None:
        """Close the store; harmless when repeated."""
        with suppress(AlreadyClosed):  # a forked child has nothing to close
            self.store.close()
        self._disk.close()

    def reports(self) -> list[str]:
        """The reports of recovery and maintenance since the last call, one line each."""
        return self.store.reports.take()

    def _relation(
        self,
        topic: str,
        selection: RelationFilter | None = None,
        *,
        skip_unavailable: bool = False,
        isolation: str = "committed",
    ) -> Relation:
        """The files and rows holding the messages of a topic, for other readers.

        isolation: uncommitted: include messages of open and aborted transactions, as `hidden`
        raises:    TopicNotFound; PartitionUnavailable, Corruption (604) unless skip_unavailable
        """
        name = TopicName.parse(topic, allow_partition=True)
        return self._ask(
            lambda view: build.relation(
                view,
                name,
                selection or relation.ALL,
                skip_unavailable=skip_unavailable,
                isolation=isolation,
            )
        )

    def _content(
        self,
        topic: str,
        selection: RelationFilter | None = None,
        *,
        skip_unavailable: bool = False,
        isolation: str = "committed",
    ) -> RelationContent:
        """The relation of a topic with the rows of its parts; raises as relation."""
        [content] = self.content_of_each(
            [topic],
            selection or relation.ALL,
            skip_unavailable=skip_unavailable,
            isolation=isolation,
        )
        return content

    def _contents(
        self,
        names: Collection[str] | None = None,
        isolation: str = "committed",
        *,
        everything: bool = False,
        skip_unavailable: bool = False,
    ) -> list[RelationContent]:
        """The relations of topics, all at one LSN, without the rows of their parts; None: all.

        names:      of topics, short or in full, in any case
        everything: include rows of all kinds, and where each is stored
        """
        return self._ask(
            lambda view: build.contents(
                view, names, isolation, everything=everything, skip_unavailable=skip_unavailable
            )
        )

    def moment(
        self,
        names: Collection[str] | None,
        isolation: str,
        *,
        everything: bool,
        compacted: bool,
        skip_unavailable: bool,
        lists: Mapping[str, Callable[[View, Store], pa.Table]],
    ) -> tuple[list[RelationContent], dict[str, pa.Table]]:
        """(the result of build.contents, the table of each function in `lists`), all of one view.

        Rows in frames are in pieces: the caller closes one `relation.frames`.
        """

        def together(view: View) -> tuple[list[RelationContent], dict[str, pa.Table]]:
            contents = build.contents(
                view,
                names,
                isolation,
                everything=everything,
                skip_unavailable=skip_unavailable,
                compacted=compacted,
                in_pieces=True,
            )
            try:
                return contents, {name: make(view, self.store) for name, make in lists.items()}
            except BaseException:  # no caller has them yet, so close them here
                for content in contents:
                    if content.relation.frames is not None:
                        content.relation.frames.close()
                raise

        if "transaction_keys" in lists:
            self.store.sweep_if_due()
        return self._ask(together)

    def content_of_each(
        self,
        topics: Sequence[str],
        selection: RelationFilter,
        *,
        skip_unavailable: bool,
        isolation: str,
    ) -> list[RelationContent]:
        """The result of build.content for each topic, all of one view."""
        names = [TopicName.parse(topic, allow_partition=True) for topic in topics]
        return self._ask(
            lambda view: [
                build.content(
                    view, name, selection, skip_unavailable=skip_unavailable, isolation=isolation
                )
                for name in names
            ]
        )

    @property
    def uuid(self) -> str:
        """The UUID of the store."""
        return self.store.identity.uuid

    def scanned(
        self, scan: Scan, names: Sequence[str], ends: Ends | None = None
    ) -> Iterator[pa.Table]:
        """The messages of one scan of a relation; see scans.read_scan."""
        return scans.read_scan(self._disk, scan, names, ends)

    def has_batch(self, topic: str, key: str, batch: int | str) -> bool:
        """True when a batch of a key is stored; as Bulk.stored, for callers that may not write."""
        caller, settings, name = self._disk.owner(), self.store.settings, TopicName.parse(topic)
        return self._ask(
            lambda view: (
                adopt.recorded(view, settings, caller, find_topic(view, name).number, key, batch)
                is not None
            )
        )

    def batches_named(self, topic: str, prefix: str) -> list[tuple[str, str]]:
        """(key, name) of each batch of a topic whose name has a prefix; as has_batch."""
        caller, name = self._disk.owner(), TopicName.parse(topic)
        return self._ask(
            lambda view: adopt.names_of(view, caller, find_topic(view, name).number, prefix)
        )

    def segments(self) -> list[LedgerRows]:
        """Where the rows of every ledger are; see build.segments."""
        return self._ask(build.segments)

    def _pin(self, sources: Iterable[FileSource]) -> Pin | None:
        """Keep the files of a relation on disk until the pin is closed or this process ends.

        The caller checks for the files afterwards: some may have been removed before the pin. None:
        no pin was made, because the store is read-only or the disk is too full. Then the caller
        reads without a pin, within the grace period for readers.
        """
        if self._disk.read_only:
            return None
        pin_disk = PosixDisk(self._disk.description)  # it may outlive this client
        try:
            paths = [source.ref.path for source in sources]
            return liveness.pin(
                pin_disk, self.store.identity.salt, paths, self.store.lock_timeout_ms
            )
        except StoreFull:
            pin_disk.close()
            line = "the disk is full: a checkpoint may remove files before they are read"
            if line not in self.store.reports:
                self.store.note(line)
            return None
        except BaseException:  # no caller has the pin yet, so close the disk here
            pin_disk.close()
            raise

    def has_files(self, sources: Iterable[FileSource]) -> bool:
        """Whether all files of a relation still exist, including those outside the store."""
        return all(remote.is_there(self._disk, source.ref.path) for source in sources)

    def check_files(self, sources: Iterable[FileSource]) -> int:
        """Check files of a relation, and return how many were read; see files.check_files.

        raises: Corruption; MissingFile: removed
        """
        return files.check_files(self._disk, sources)

    def without_far(self, content: RelationContent) -> RelationContent:
        """The content, with rows in place of files with an instant that SQL cannot represent.

        raises: Corruption; MissingFile: removed
        """
        return files.without_far(content, self._disk)

    def names(self, kind: str, topic: str | None = None) -> list[tuple[str, str]]:
        """(name, description) for all topics, partitions, subscriptions, keys or transactions.

        kind: topic, partition, subscription, key, transaction (unfinished), ended (all remembered)
        topic: only its subscriptions
        """
        uid = self._disk.owner()[0]
        return self._ask(lambda view: names_of(view, uid, kind, topic))

    def open(self, path: str) -> File:
        """Open a file by its path in a view; the caller compares checksums, and closes it.

        raises: MissingFile, DiskFailed
        """
        return remote.open_file(self._disk, path)

    def _ask(self, question: Callable[[View], T]) -> T:
        """The result of a function of the newest view."""
        return self.store.ask(question)

"""Owns an open store for those who read its files: SQL, Spark, completion and shells.

It is the lightest handle: a command that only runs SQL loads no more than this. The names in a
store are listed without counts or sizes; that costs as much as the catalog or coordinators hold.
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
from txlog.engine.relation import build, checks, relation, remote_rows, scans
from txlog.engine.storage import remote
from txlog.engine.storage.disk.posix import PosixDisk, absolute
from txlog.engine.storage.disk.protocol import Disk, File
from txlog.engine.store import pins
from txlog.engine.store.identity import read_identity
from txlog.engine.store.store import Store
from txlog.engine.view.view import View
from txlog.errors import AlreadyClosed, StoreFull

if TYPE_CHECKING:
    from txlog.base.rows.files import LedgerRows
    from txlog.engine.relation.relation import Content, Relation, Source
    from txlog.engine.relation.scans import Ends, Scan
    from txlog.engine.relation.spans import Wanted
    from txlog.engine.store.pins import Pin

KINDS: Final = ("topic", "partition", "subscription", "key", "transaction", "ended")


def names_of(view: View, uid: int, kind: str, topic: str | None = None) -> list[tuple[str, str]]:
    """(name, what it is) for everything of a kind, in order.

    kind:  one of KINDS; `ended`: every remembered transaction, newest first
    uid:   whose keys
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
    found = view.catalog.topics.values()
    return sorted((TopicName.parse(one.name).short, range(one.partitions)) for one in found)


def _counted(partitions: int) -> str:
    return "1 partition" if partitions == 1 else f"{partitions} partitions"


def _subscriptions(view: View, topic: str | None) -> list[tuple[str, str]]:
    wanted = None if topic is None else TopicName.parse(topic, allow_partition=True).topic.short
    found: dict[str, str] = {}
    for one in view.catalog.topics.values():
        short = TopicName.parse(one.name).short
        for number in one.subscriptions if wanted in (None, short) else ():
            name = view.catalog.subscriptions[number].name
            found[name] = f"{found[name]}, {short}" if name in found else f"of {short}"
    return sorted(found.items())


def _transactions(view: View, ended: bool) -> list[tuple[str, str]]:
    rows: list[tuple[int, str, str]] = []
    for number in view.known_coordinators():
        state = view.coordinator(number)
        for txn in (*state.unfinished.values(), *(state.ended.values() if ended else ())):
            told = txn.status.lower() + ("" if txn.key is None else f", {txn.key}")
            rows.append((-txn.wall_ms, str(TxnId(number, txn.sequence)), told))
    return [(text, told) for _, text, told in sorted(rows)]


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
    except BaseException:  # nobody else can close it yet
        disk.close()
        raise
    return RelationReader(store, disk)


@checked
class RelationReader:
    """The part of a client that finds the files and rows holding the messages of topics."""

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
        """Wait this long from now on, whatever the store's setting."""
        self.store.lock_timeout_asked_ms = timeout_ms

    def close(self) -> None:
        """Close the store; harmless when repeated."""
        with suppress(AlreadyClosed):  # a forked child has nothing to close
            self.store.close()
        self._disk.close()

    def reports(self) -> list[str]:
        """What recovery and maintenance found since the last call, one line each."""
        found, self.store.reports = self.store.reports, []
        return found

    def _relation(
        self,
        topic: str,
        wanted: Wanted | None = None,
        *,
        skip_unavailable: bool = False,
        isolation: str = "committed",
    ) -> Relation:
        """The files and rows holding the messages of a topic, for other readers.

        isolation: uncommitted: also those of open and aborted transactions, as `hidden`
        raises:    TopicNotFound; PartitionUnavailable, Corruption (604) unless skip_unavailable
        """
        name = TopicName.parse(topic, allow_partition=True)
        return self._ask(
            lambda view: build.relation(
                view,
                name,
                wanted or relation.ALL,
                skip_unavailable=skip_unavailable,
                isolation=isolation,
            )
        )

    def _content(
        self,
        topic: str,
        wanted: Wanted | None = None,
        *,
        skip_unavailable: bool = False,
        isolation: str = "committed",
    ) -> Content:
        """The relation of a topic with the rows of its parts; raises as relation."""
        [found] = self.content_of_each(
            [topic], wanted or relation.ALL, skip_unavailable=skip_unavailable, isolation=isolation
        )
        return found

    def _contents(
        self,
        words: Collection[str] | None = None,
        isolation: str = "committed",
        *,
        everything: bool = False,
        skip_unavailable: bool = False,
    ) -> list[Content]:
        """The relations of topics, all at one LSN, without the rows of their parts; None: all.

        words:      names of topics, short or in full, in any case
        everything: include rows of all kinds, and where each is stored
        """
        return self._ask(
            lambda view: build.contents(
                view, words, isolation, everything=everything, skip_unavailable=skip_unavailable
            )
        )

    def moment(
        self,
        words: Collection[str] | None,
        isolation: str,
        *,
        everything: bool,
        compacted: bool,
        skip_unavailable: bool,
        lists: Mapping[str, Callable[[View, Store], pa.Table]],
    ) -> tuple[list[Content], dict[str, pa.Table]]:
        """What contents returns, and these tables by name, all of one view.

        Rows in frames are in pieces: the caller closes `relation.frames`.
        """

        def together(view: View) -> tuple[list[Content], dict[str, pa.Table]]:
            found = build.contents(
                view,
                words,
                isolation,
                everything=everything,
                skip_unavailable=skip_unavailable,
                compacted=compacted,
                in_pieces=True,
            )
            try:
                return found, {name: made(view, self.store) for name, made in lists.items()}
            except BaseException:  # nobody else can close them
                for content in found:
                    if content.relation.frames is not None:
                        content.relation.frames.close()
                raise

        if "transaction_keys" in lists:
            self.store.sweep_if_due()
        return self._ask(together)

    def content_of_each(
        self, topics: Sequence[str], wanted: Wanted, *, skip_unavailable: bool, isolation: str
    ) -> list[Content]:
        """What content returns for each topic, all of one view."""
        names = [TopicName.parse(topic, allow_partition=True) for topic in topics]
        return self._ask(
            lambda view: [
                build.content(
                    view, name, wanted, skip_unavailable=skip_unavailable, isolation=isolation
                )
                for name in names
            ]
        )

    @property
    def uuid(self) -> str:
        """The identity of the store."""
        return self.store.identity.uuid

    def scanned(
        self, scan: Scan, names: Sequence[str], wanted: Ends | None = None
    ) -> Iterator[pa.Table]:
        """The messages of one scan of a relation; see scans.read_scan."""
        return scans.read_scan(self._disk, scan, names, wanted)

    def has_batch(self, topic: str, key: str, batch: int | str) -> bool:
        """True when a batch is stored; as Bulk.stored, for callers that must not write."""
        caller, settings, name = self._disk.owner(), self.store.settings, TopicName.parse(topic)
        return self._ask(
            lambda view: (
                adopt.recorded(view, settings, caller, find_topic(view, name).number, key, batch)
                is not None
            )
        )

    def segments(self) -> list[LedgerRows]:
        """Where the rows of every ledger lie: a row for each file, one for journal frames."""
        return self._ask(build.segments)

    def _pin(self, sources: Iterable[Source]) -> Pin | None:
        """Keep the files of a relation on disk until the pin is closed or this process ends.

        Check for the files afterwards: what was gone before stays gone. None: the store is open
        read-only, which leaves not even a lock file, and the grace period for readers applies; or
        the disk is full, and has no room for the names of the files. It is read all the same.
        """
        if self._disk.read_only:
            return None
        own = PosixDisk(self._disk.description)  # it may outlive this client
        try:
            paths = [source.ref.path for source in sources]
            return pins.pin(own, self.store.identity.salt, paths, self.store.lock_timeout_ms)
        except StoreFull:
            own.close()
            line = "the disk is full: a checkpoint may remove files before they are read"
            if line not in self.store.reports:
                self.store.note(line)
            return None
        except BaseException:  # nobody else can close it yet
            own.close()
            raise

    def has_files(self, sources: Iterable[Source]) -> bool:
        """Whether all files of a relation still exist, including those outside the store."""
        return all(remote.is_there(self._disk, source.ref.path) for source in sources)

    def check_files(self, sources: Iterable[Source]) -> int:
        """Check every byte of files of a relation; returns how many were new to this process.

        raises: Corruption; MissingFile: removed
        """
        return checks.check_files(self._disk, sources)

    def without_far(self, content: Content) -> Content:
        """The content, with rows in place of files that have an instant SQL cannot hold.

        raises: Corruption; MissingFile: removed
        """
        return remote_rows.without_far(content, self._disk)

    def names(self, kind: str, topic: str | None = None) -> list[tuple[str, str]]:
        """(name, what it is) for all topics, partitions, subscriptions, keys or transactions.

        kind:  topic, partition, subscription, key, transaction (unfinished), ended (all of them)
        topic: only its subscriptions
        """
        uid = self._disk.owner()[0]
        return self._ask(lambda view: names_of(view, uid, kind, topic))

    def open(self, path: str) -> File:
        """A file of the store, or outside it, by its path in a view.

        raises: MissingFile, DiskFailed; the caller compares checksums and closes it
        """
        return remote.open_file(self._disk, path)

    def _ask(self, question: Callable[[View], T]) -> T:
        """The result of a function of the newest view."""
        return self.store.ask(question)

"""The view: the state of a store at one LSN, over the newest checkpoint and the frames after it.

Every question and every decision reads a view. It owns the loaded folds, the ops that wait for
folds no call has used yet, the tail and the open segment files. Only ops change a fold (Law 3). A
component is loaded at its first use: its dump, if the manifest names one, then the ops that waited.
So opening a store costs the catalog and the journal's tail, whatever the number of topics.

Dumps lie one after another in a state file, after its head. The manifest has the offset and
checksum of each (DumpRef), so a component is loaded without the others.

`Files` knows which files the ledgers have, their open readers, and their rows. A manifest names
files; the frames after it add some and remove others. Files stay open after use, as many as the
disk allows (OpenFiles). If a file was closed to make room and unlinked since, opening it raises
MissingFile, as for a file that was never open: the view follows, and tries again with the newest
files (R21). The rows are then the same, or trimmed; trimmed rows raise an error.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

import msgspec
import pyarrow as pa

from txlog.base.startup.crc32c import crc32c
from txlog.clock import Instant
from txlog.engine.folds import buffer as buffers
from txlog.engine.folds import catalog as catalogs
from txlog.engine.folds import coordinator as coordinators
from txlog.engine.folds import cursor as cursors
from txlog.engine.folds import delayed as delays
from txlog.engine.folds import topic as topics
from txlog.engine.folds import transaction_key as transaction_keys
from txlog.engine.folds import watermark as watermarks
from txlog.engine.folds.catalog import Catalog, directory_of, index_of, topic_of
from txlog.engine.model import ops
from txlog.engine.model.ops import (
    CATALOG,
    FILES,
    RETURNS,
    Adopted,
    ChunksAppended,
    Compacted,
    Component,
    Fold,
    LedgerRolled,
    LedgerSealed,
    LedgerTrimmed,
    NamespacePolicySet,
    OfCatalog,
    Offloaded,
    Op,
    PartitionAvailable,
    PartitionCompacted,
    PartitionOffline,
    PolicySet,
    SettingSet,
    StatusUpdated,
    SubscriptionDeleted,
    Take,
    TopicDeleted,
    TxnEnded,
    TxnOpened,
    broken,
    decode_ops,
    returns,
)
from txlog.engine.model.schema import MESSAGE
from txlog.engine.model.tail import Slice, Tail
from txlog.engine.storage import chunks, remote, segment_reader
from txlog.engine.storage.checked import HINT
from txlog.engine.storage.disk.protocol import Disk, File, is_of_handler
from txlog.engine.storage.frame import RawFrame, list_journals
from txlog.engine.storage.journal import Journal, JournalMoved
from txlog.engine.storage.manifest import (
    EMPTY,
    DumpRef,
    Manifest,
    generations,
    newest_manifest,
    read_manifest,
)
from txlog.engine.storage.segment import FileRef
from txlog.errors import Corruption, MissingFile, NoResources, SnapshotExpired

if TYPE_CHECKING:
    from txlog.engine.storage.segment_reader import SegmentReader, Span
if TYPE_CHECKING:
    from txlog.engine.storage.segment import FileRef

# --- paths: the directories of topics -------------------------------------------------------------

DELAYED_DIR = "_delayed"
COMPACTED_DIR = "_compacted"
NOTE = "_README"  # in the directory of a topic; no topic has a name with a first _


_BELOW = {"p": "", "s": "/_txnlog", "d": f"/{DELAYED_DIR}", "c": f"/{COMPACTED_DIR}"}


class FilePlace(NamedTuple):
    """A directory: of which topic, of which of its partitions, and in which role.

    role: p of the partition's ledgers, s of its sidecar's, d of the buckets of its delayed index, c
          of its compacted rows
    """

    topic_dir: str
    partition: int
    role: str


def place_of(catalog: Catalog, partition: int, role: str) -> FilePlace:
    """The place of a partition's files in this role."""
    topic = topic_of(catalog, partition)
    return FilePlace(directory_of(topic), index_of(topic, partition), role)


def place_dir(place: FilePlace) -> str:
    """The directory of a place."""
    return f"{place.topic_dir}/partition={place.partition}{_BELOW[place.role]}"


def ledger_dir(catalog: Catalog, partition: int, role: str) -> str:
    """The directory of a partition's files in this role."""
    return place_dir(place_of(catalog, partition, role))


def delayed_dir(catalog: Catalog, partition: int) -> str:
    """The directory of the buckets of a partition's delayed index."""
    return ledger_dir(catalog, partition, "d")


def part_path(directory: str, ledger: int, generation: int) -> str:
    """A part of an open ledger; generations make its number unique."""
    return f"{directory}/_ledger-{ledger:012d}.{generation:010d}.arrow"


def sealed_path(directory: str, ledger: int, generation: int) -> str:
    """The one Parquet file of a closed ledger."""
    return f"{directory}/ledger-{ledger:012d}.{generation:010d}.parquet"


# --- the files of ledgers -------------------------------------------------------------------------

# The limit of decoded bytes over all open files, unless their user sets a lower one. A consumer
# that reads several partitions in turn needs two files of each, and must not decode a row group
# anew for every batch.
KEPT_BYTES_MAX = 256 << 20
SCAN_ROWS = 64  # a caller that reads fewer may need the same row group again
# For a caller that takes one batch after another, one table is built for several batches, and each
# batch is a slice: building a table of twenty columns takes longer than slicing one, however few
# rows it has.
BATCHES_AHEAD, ROWS_AHEAD_MAX = 16, 16_384
CUTS_MAX, CUT_BYTES_MAX = 8, 32 << 20
Request = tuple[int, int, int]  # ledger, first row, row after the last
# The row of a large message, which no cache keeps: (its file, columns) -> a table of one row.
Large = Callable[[FileRef, Sequence[str]], pa.Table]


_Naming = (
    LedgerSealed | LedgerTrimmed | Compacted | PartitionCompacted | TopicDeleted | ChunksAppended
)


def _going(op: LedgerTrimmed | Compacted | PartitionCompacted | TopicDeleted) -> list[int]:
    """The ledgers that an op removes."""
    if isinstance(op, LedgerTrimmed):
        return [op.ledger]
    return op.ledgers if isinstance(op, TopicDeleted) else op.old


class ReadCounters:
    """Counters of one process; they only rise.

    rows_read:      rows read from files and frames, counted each time
    groups_decoded: row groups of sealed files and parts that were decoded
    handed_out:     messages that consumers and readers returned to their callers
    late:           messages handed out that were older than an earlier watermark, by topic,
                    partition and subscription (empty: a reader)
    rows_folded:    rows that were read for watermarks, by partition (its number in the store)
    ahead:          watermarks ahead of their producer's own open transaction, by topic (its number)
    """

    __slots__ = ("ahead", "groups_decoded", "handed_out", "late", "rows_folded", "rows_read")

    def __init__(self) -> None:
        self.rows_read = 0
        self.groups_decoded = 0
        self.handed_out = 0
        self.late: Counter[tuple[str, int, str]] = Counter()
        self.rows_folded: Counter[int] = Counter()
        self.ahead: Counter[int] = Counter()


class OpenFiles:
    """The open files: those used last stay open. For one thread at a time.

    The owner of a file gives a key, and a function that closes the file; it opens it again itself.
    """

    __slots__ = ("_closes", "_disk")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._closes: OrderedDict[object, Callable[[], None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._closes)

    def open(self, key: object, path: str, close: Callable[[], None]) -> File:
        """Open a file in the store or outside, after closing those used least recently if needed.

        raises: MissingFile, DiskFailed, ...; NoResources when closing all files does not help
        """
        limit = self._disk.files_kept()
        while len(self._closes) >= limit:
            self._closes.popitem(last=False)[1]()
        try:
            file = remote.open_file(self._disk, path)
        except NoResources:  # the program has other files open: make room for this file
            self.close()
            file = remote.open_file(self._disk, path)
        self._closes[key] = close
        return file

    def used(self, key: object) -> None:
        """Note that an open file is used again."""
        self._closes.move_to_end(key)

    def closed(self, key: object) -> None:
        """Note that its owner has closed a file; harmless when repeated."""
        self._closes.pop(key, None)

    def close(self) -> None:
        """Close all files."""
        while self._closes:
            self._closes.popitem()[1]()


class SliceCache:
    """Tables of some rows of a ledger, for callers that read on: their next rows are slices."""

    __slots__ = ("_bytes", "_known")

    def __init__(self) -> None:
        # ledger and shape -> first row, row after the last, the rows, their bytes
        self._known: OrderedDict[object, tuple[int, int, pa.Table | None, int]] = OrderedDict()
        self._bytes = 0

    def find(self, key: object, start: int, stop: int) -> pa.Table | None:
        """These rows, if the newest table of the key has them; it is dropped with its last row."""
        cut = self._known.get(key)
        if cut is None or cut[2] is None or start < cut[0] or stop > cut[1]:
            return None
        rows = cut[2].slice(start - cut[0], stop - start)
        if stop == cut[1]:
            self.keep(key, stop, stop, None)
        else:
            self._known.move_to_end(key)
        return rows

    def ahead(self, key: object, start: int, stop: int) -> int:
        """How far to read: to `stop`, or further if `start` is at or soon after the last end."""
        cut, rows = self._known.get(key), stop - start
        far = min(BATCHES_AHEAD * rows, ROWS_AHEAD_MAX)
        if cut is None or far < 2 * rows or not 0 <= start - cut[1] <= far:
            return stop
        return start + far

    def keep(self, key: object, start: int, end: int, table: pa.Table | None) -> None:
        """Note that rows were built, up to the one before `end`.

        The number of tables and the memory that their slices keep are bounded.
        table: the rows, if callers may want some of them
        """
        size = 0 if table is None else table.get_total_buffer_size()
        if size > CUT_BYTES_MAX:
            size, table = 0, None
        self._drop(key)
        self._known[key] = (start, end, table, size)
        self._bytes += size
        while len(self._known) > CUTS_MAX or self._bytes > CUT_BYTES_MAX:
            self._drop(next(iter(self._known)))

    def _drop(self, key: object) -> None:
        cut = self._known.pop(key, None)
        if cut is not None:
            self._bytes -= cut[3]

    def clear(self) -> None:
        """Drop all tables."""
        self._known.clear()
        self._bytes = 0


class Files:
    """The live files of one view.

    opened: the open files of the view, and of its timetables
    kept_bytes_max: limit of the decoded bytes of the open files, if not KEPT_BYTES_MAX; a caller
                    that reads each row group once needs little
    lost:  files that no manifest names -> the LSN that removed them
    tally: counts of the rows and row groups read
    """

    __slots__ = (
        "_cuts",
        "_gone",
        "_kept",
        "_kept_bytes",
        "_readers",
        "_sealed",
        "_tail",
        "kept_bytes_max",
        "lost",
        "manifest",
        "opened",
        "tally",
    )

    def __init__(self, disk: Disk, tail: Tail) -> None:
        self.opened = OpenFiles(disk)
        self._tail = tail
        self.manifest: Manifest = EMPTY
        self._sealed: dict[int, FileRef] = {}
        self._gone: set[int] = set()  # removed ledgers; the manifest may still name them
        self.lost: dict[str, int] = {}
        self._readers: dict[str, tuple[File, SegmentReader]] = {}
        self._kept: OrderedDict[str, int] = OrderedDict()  # decoded bytes of each file
        self._kept_bytes = 0
        self.kept_bytes_max: int | None = None
        self._cuts = SliceCache()
        self.tally = ReadCounters()

    def adopt(self, newer: Manifest) -> None:
        """Take a newer manifest: ledgers that it names need no frame any more."""
        self.manifest = newer
        self._cuts.clear()
        self._sealed = {
            ledger: ref
            for ledger, ref in self._sealed.items()
            if not any(named_ref.path == ref.path for named_ref in newer.files.get(ledger, []))
        }
        self._gone &= newer.files.keys()
        self.lost = {path: lsn for path, lsn in self.lost.items() if lsn > newer.cut_lsn}
        for path, (_, reader) in list(self._readers.items()):
            if all(ref.path != path for ref in newer.files.get(reader.ref.ledger, [])):
                self._close(path)

    def name(self, lsn: int, op: Op) -> None:
        """Note which files the ledgers have from this op on; a removed ledger has none."""
        if isinstance(op, ops.BucketsMerged | ops.BucketDeleted):
            for path in op.paths:
                self.lost[path] = lsn
            return
        if isinstance(op, Offloaded):
            self._move(lsn, op.file)
            return
        if isinstance(op, Adopted):  # its rows have no LSN of their own
            ref = msgspec.structs.replace(op.file, lsn_first=lsn, lsn_last=lsn)
            self._sealed[ref.ledger] = ref
            return
        if isinstance(op, PartitionCompacted):
            self._sealed.update((ref.ledger, ref) for ref in op.files)
        assert isinstance(op, _Naming)
        if isinstance(op, LedgerSealed | Compacted | ChunksAppended):
            self._sealed[op.file.ledger] = op.file
        if not isinstance(op, LedgerSealed | ChunksAppended):
            for ledger in _going(op):
                for ref in self.of(ledger):
                    self._close(ref.path)  # an open descriptor would hold its space
                self._gone.add(ledger)
                if (lost := self._sealed.pop(ledger, None)) is not None:
                    self.lost[lost.path] = lsn
                self._tail.runs.pop(ledger, None)

    def _move(self, lsn: int, ref: FileRef) -> None:
        """The file of a ledger is at another place; the old file goes with the next manifest."""
        for old in self.of(ref.ledger):
            self._close(old.path)
        if (replaced := self._sealed.get(ref.ledger)) is not None:
            self.lost[replaced.path] = lsn
        self._sealed[ref.ledger] = ref

    def close(self) -> None:
        """Close every file."""
        self.opened.close()

    def close_of(self, partition: int, owners: dict[int, tuple[int, str]]) -> None:
        """Close the files of a partition: they may be replaced before it is available again."""
        self._cuts.clear()
        for path, (_, reader) in list(self._readers.items()):
            owner = owners.get(reader.ref.ledger)
            if owner is None or owner[0] == partition:
                self._close(path)

    @property
    def is_reading(self) -> bool:
        """True when a reader is open."""
        return bool(self._readers)

    def of(self, ledger: int) -> list[FileRef]:
        """The live files of a ledger, in order: its sealed file, or the parts so far."""
        if ledger in self._gone:
            return []
        sealed = self._sealed.get(ledger)
        return [sealed] if sealed is not None else self.manifest.files.get(ledger, [])

    def sealed_since(self) -> dict[int, FileRef]:
        """The files that frames above the manifest's cut gave to ledgers, by ledger."""
        return dict(self._sealed)

    def gone_since(self) -> set[int]:
        """Ledgers removed by frames above the manifest's cut: trimmed, compacted or deleted."""
        return set(self._gone)

    def reader(self, ref: FileRef) -> SegmentReader:
        """The open reader of a file; use it before you ask for another reader."""
        entry = self._readers.get(ref.path)
        if entry is None:
            file = self.opened.open(ref.path, ref.path, partial(self._close, ref.path))
            entry = self._readers[ref.path] = (file, segment_reader.SegmentReader(file, ref))
        else:
            self.opened.used(ref.path)
        return entry[1]

    def _close(self, path: str) -> None:
        entry = self._readers.pop(path, None)
        self._kept_bytes -= self._kept.pop(path, 0)
        if entry is not None:
            self.opened.closed(path)
            entry[0].close()

    def rows(
        self, requests: Sequence[Request], names: Sequence[str], large: Large
    ) -> list[pa.Table]:
        """Rows of ledgers, in the order of the requests, in as few tables as their places allow.

        Adjacent requests in one file, or in frames, are read together. If they rise, each row group
        or frame is read once, however many requests need it.
        requests: (ledger, first row, row after the last); a row that exists nowhere is Corruption
        names:    the columns of MESSAGE to return
        large:    reads a large message; not stored here, since it and its view would hold each
                  other
        """
        out = _Gathering(self, names, large)
        for ledger, start, stop in requests:
            at = start
            for ref in self.of(ledger):
                if ref.form == "chunks":
                    if (at, stop) == (0, 1):
                        out.add_large(ref)
                        at = stop
                    continue
                first = 0 if ref.form == "sealed" else ref.first
                low, high = max(at, first), min(stop, first + ref.rows)
                if low < high:
                    out.add_rows(ref, low - first, high - first)
                    at = high
                    if at == stop:
                        break
            if at < stop:
                slices = self._tail.slices(ledger, at, stop)
                out.add_slices(slices)
                at += sum(high - low for _, low, high in slices)
            if at != stop:
                raise Corruption(
                    f"ledger {ledger}: rows {at} to {stop} are in no file and no frame",
                    hint=HINT,
                    ledger=ledger,
                    code=604,
                )
        return out.finish()

    def cut(
        self,
        ledger: int,
        start: int,
        stop: int,
        shape: object,
        make: Callable[[int, int], pa.Table],
    ) -> pa.Table:
        """Rows of a ledger as `make` shapes them; built for several batches at once.

        The next rows come from the same table, if the caller reads on. `make` is the caller's: the
        view keeps tables, and does not know how messages look.
        shape: everything besides the ledger that determines, row by row, the result of `make`
        """
        key = (ledger, shape)
        rows = self._cuts.find(key, start, stop)
        if rows is not None:
            return rows
        end = self._cuts.ahead(key, start, stop)
        if end > stop:
            end = max(stop, min(end, self._end_beside(ledger, start)))
        table = make(start, end)
        # many subscriptions want a message that came alone
        self._cuts.keep(key, start, end, table if end > stop or end - start == 1 else None)
        return table if end == stop else table.slice(0, stop - start)

    def _end_beside(self, ledger: int, row: int) -> int:
        """The row after the last that is decoded together with a row."""
        for ref in self.of(ledger):
            first = 0 if ref.form == "sealed" else ref.first
            if ref.form != "chunks" and first <= row < first + ref.rows:
                return first + self.reader(ref).end_beside(row - first)
        return self._tail.end_beside(ledger, row)

    def beside(self, ledger: int, row: int) -> tuple[int, int, int]:
        """The rows decoded together with a row.

        returns: the first, the one after the last, and the approximate bytes of one
        """
        for ref in self.of(ledger):
            if ref.form == "chunks":
                return 0, 1, ref.bytes
            first = 0 if ref.form == "sealed" else ref.first
            if first <= row < first + ref.rows:
                start, stop, size = self.reader(ref).beside(row - first)
                return first + start, first + stop, size
        return self._tail.beside(ledger, row)

    def pick(self, ref: FileRef, spans: Sequence[Span], names: Sequence[str]) -> pa.Table:
        """Rows of one file, in the order of the spans."""
        reader = self.reader(ref)
        decoded_before = reader.groups_decoded
        table = reader.pick(spans, names)
        if table.num_rows >= SCAN_ROWS and spans[-1][1] == ref.rows:
            self._forget(ref.path)  # a scan has reached the end of the file
        elif reader.groups_decoded != decoded_before:
            self._keep(ref.path, reader)
        self.tally.groups_decoded += reader.groups_decoded - decoded_before
        return self._noted(table)

    def _keep(self, path: str, reader: SegmentReader) -> None:
        """Note the decoded bytes of a file; above the limit, drop those decoded longest ago."""
        self._kept_bytes += reader.cached_bytes - self._kept.pop(path, 0)
        self._kept[path] = reader.cached_bytes
        limit = KEPT_BYTES_MAX if self.kept_bytes_max is None else self.kept_bytes_max
        while self._kept_bytes > limit and len(self._kept) > 1:
            self._forget(next(iter(self._kept)))

    def forget_but(self, ledgers: Collection[int]) -> None:
        """Drop the decoded rows of the files of all other ledgers."""
        for path in [*self._kept]:
            if self._readers[path][1].ref.ledger not in ledgers:
                self._forget(path)

    def _forget(self, path: str) -> None:
        self._kept_bytes -= self._kept.pop(path, 0)
        entry = self._readers.get(path)
        if entry is not None:
            entry[1].forget()

    def in_frames(self, slices: list[Slice], names: Sequence[str]) -> pa.Table:
        """Rows that frames hold, in the order of the slices."""
        return self._noted(self._tail.message_table(slices, names))

    def large(self, ref: FileRef, names: Sequence[str], read: Large) -> pa.Table:
        """The row of a large message."""
        return self._noted(read(ref, names))

    def _noted(self, table: pa.Table) -> pa.Table:
        self.tally.rows_read += table.num_rows
        return table


class _Gathering:
    """The tables of one call: adjacent rows in one place are one read."""

    __slots__ = ("_files", "_large", "_names", "_out", "_ref", "_slices", "_spans")

    def __init__(self, files: Files, names: Sequence[str], large: Large) -> None:
        self._files = files
        self._names = names
        self._large = large
        self._out: list[pa.Table] = []
        self._slices: list[Slice] = []
        self._ref: FileRef | None = None
        self._spans: list[Span] = []

    def add_rows(self, ref: FileRef, start: int, stop: int) -> None:
        """Add rows start to stop of a file."""
        if self._ref is not ref:
            self._drain()
            self._ref = ref
        self._spans.append((start, stop))

    def add_slices(self, slices: list[Slice]) -> None:
        """Add rows in frames."""
        if self._ref is not None:
            self._drain()
        self._slices += slices

    def add_large(self, ref: FileRef) -> None:
        """Add a large message."""
        self._drain()
        self._out.append(self._files.large(ref, self._names, self._large))

    def finish(self) -> list[pa.Table]:
        """Return all tables."""
        self._drain()
        return self._out

    def _drain(self) -> None:
        if self._ref is not None:
            self._out.append(self._files.pick(self._ref, self._spans, self._names))
            self._ref, self._spans = None, []
        elif self._slices:
            self._out.append(self._files.in_frames(self._slices, self._names))
            self._slices = []


# --- the folds ------------------------------------------------------------------------------------

HOMES: dict[str, ModuleType] = {
    "catalog": catalogs, "coordinator": coordinators, "key": transaction_keys, "topic": topics,
    "buffer": buffers, "cursor": cursors, "delayed": delays, "watermark": watermarks,
}  # fmt: skip

OF_PARTITION = ("topic", "buffer", "delayed", "watermark")  # deleting a partition deletes these


class _Folds(Mapping[str, Fold]):
    """The folds by kind; a fold's module runs when a component of that kind is loaded."""

    def __getitem__(self, kind: str) -> Fold:
        fold: Fold = HOMES[kind].FOLD
        assert fold.kind == kind
        return fold

    def __iter__(self) -> Iterator[str]:
        return iter(HOMES)

    def __len__(self) -> int:
        return len(HOMES)


# --- dumps -----------------------------------------------------------------------------------

FOLDS = _Folds()


class _Takes(dict[str, Take]):
    """The functions that apply an op of one type, by kind of fold; looked up at first use.

    is_rule:    its home is the catalog, and it belongs to no facet
    is_special: the view itself notes something of it, or it has no home
    has_others: it may concern other folds than its home
    has_facet:  it may belong to a facet of its home
    """

    __slots__ = ("_op", "has_facet", "has_home", "has_others", "is_rule", "is_special")

    def __init__(self, op: type) -> None:
        self._op = op
        self.has_home = hasattr(op, "home")
        self.has_others = hasattr(op, "others")
        self.has_facet = hasattr(op, "facet")
        self.is_rule = issubclass(op, OfCatalog) and not self.has_facet
        self.is_special = op in NOTED or self.is_rule or not self.has_home

    def __missing__(self, kind: str) -> Take:
        take = self[kind] = FOLDS[kind].take(self._op)
        return take


STATE_HEAD = struct.Struct("<8s8s")
STATE_MAGIC = b"TXLOGSTA"
DUMPS_AT_ONCE_BYTES = 64 << 10


def load_dump(disk: Disk, fold: Fold, ref: DumpRef) -> object:
    """The state in a dump; raises Corruption."""
    return fold.read(dump_bytes(disk, ref))


class StateSources(NamedTuple):
    """The sources of a component's state: its dump, and (LSN, time, op) after that."""

    ref: DumpRef | None
    ops: Sequence[tuple[int, int, Op]]


def made(disk: Disk, key: Component, origin: StateSources) -> object:
    """Build the state of a component; leaves the origin unchanged. Raises Corruption."""
    fold = FOLDS[key[0]]
    state: object = fold.new() if origin.ref is None else load_dump(disk, fold, origin.ref)
    apply_all(fold, state, origin.ops)
    return state


# Errors of a fold on ops that its checks do not expect: the checksum of the frame is good, but no
# version of txlog would have written it after the earlier frames.
_UNEXPECTED: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def apply_all(fold: Fold, state: object, ops: Iterable[tuple[int, int, Op]]) -> None:
    """Apply ops of the journal to a state. Raises Corruption for ops that contradict it."""
    lsn = 0
    try:
        for lsn, time_ms, op in ops:
            fold.apply(state, lsn, time_ms, op)
    except _UNEXPECTED as error:
        raise _contradiction(lsn, error) from error


def _contradiction(lsn: int, error: Exception) -> Exception:
    if is_of_handler(error):
        return error
    return broken("state", lsn, f"it contradicts the frames before it ({error!r})")


def many_dumps(disk: Disk, refs: Iterable[DumpRef]) -> Iterator[tuple[DumpRef, bytes]]:
    """The bytes of many dumps: each state file is opened once, and read in large pieces."""
    ordered = sorted(refs, key=attrgetter("path", "offset"))
    for path, of_file in groupby(ordered, attrgetter("path")):
        try:
            file = disk.open(path)
        except MissingFile as error:
            raise MissingFile(error.message, hint=HINT, path=path) from error
        try:
            start, piece = 0, b""
            for ref in of_file:
                if ref.offset + ref.length > start + len(piece):
                    start = ref.offset
                    piece = file.pread(start, max(ref.length, DUMPS_AT_ONCE_BYTES))
                yield ref, _checked(ref, piece[ref.offset - start :][: ref.length])
        finally:
            file.close()


def dump_bytes(disk: Disk, ref: DumpRef) -> bytes:
    """The bytes of a dump in its state file; raises Corruption."""
    try:
        file = disk.open(ref.path)
    except MissingFile as error:
        raise MissingFile(error.message, hint=HINT, path=ref.path) from error
    try:
        data = file.pread(ref.offset, ref.length)
    finally:
        file.close()
    return _checked(ref, data)


def _checked(ref: DumpRef, data: bytes) -> bytes:
    """The bytes of a dump; raises Corruption if they are not those that were written."""
    if len(data) != ref.length or crc32c(data) != ref.crc:
        raise Corruption(
            f"{ref.path} is damaged, bytes {ref.offset} to {ref.offset + ref.length} "
            f"({ref.kind} {ref.a})",
            hint=HINT,
            path=ref.path,
            offset=ref.offset,
            expected=ref.crc,
            found=crc32c(data),
        )
    return data


# --- the view --------------------------------------------------------------------------------

RELOADS_MAX = 20
NOTED = frozenset([
    StatusUpdated, TxnOpened, PartitionOffline, PartitionAvailable, SubscriptionDeleted,
    TopicDeleted, PolicySet, NamespacePolicySet, SettingSet,
])  # fmt: skip
_TAKES = {op: _Takes(op) for op in get_args(Op)}

# Ops of the catalog that only count: transactions, and ids of ledgers.
_COUNTED: Final = frozenset([TxnOpened, TxnEnded, LedgerRolled])


class View:
    """One consistent state of the store; used by one thread at a time."""

    __slots__ = (
        "_buffers",
        "_catalog",
        "_changed",
        "_coordinators",
        "_deadline",
        "_delays",
        "_dumps",
        "_facets",
        "_forgotten",
        "_loaded",
        "_ruled",
        "_silence",
        "_topics",
        "_waiting",
        "disk",
        "files",
        "journal",
        "lsn",
        "policies",
        "reports",
        "salt",
        "tail",
        "time_ms",
        "timetables",
    )

    def __init__(self, disk: Disk, salt: bytes, boot_id: str) -> None:
        self.disk = disk
        self.salt = salt
        self.journal = Journal(disk, salt, boot_id)
        self.tail = Tail(self.journal)
        self.files = Files(disk, self.tail)
        self.lsn = 0
        self.time_ms = 0  # of the newest frame, by its writer's wall clock
        self.reports: list[str] = []
        self._dumps: dict[Component, DumpRef] = {}
        self._loaded: dict[Component, Any] = {}
        # the same by number, as a decision reads them often
        self._catalog: catalogs.Catalog | None = None
        self._coordinators: dict[int, coordinators.Coordinator] = {}
        self._topics: dict[int, topics.Topic] = {}
        self._buffers: dict[int, buffers.Buffer] = {}
        self._waiting: dict[Component, list[tuple[int, int, Op]]] = {}
        # the LSN that deleted each component: a manifest may still name them
        self._forgotten: dict[Component, int] = {}
        # by partition; plan fills it, and it goes with the view
        self.timetables: dict[int, Any] = {}
        # by topic; plan fills it, and a change of any policy or setting empties it
        self.policies: dict[int, Any] = {}
        self._deadline: tuple[str, int] = ("", 0)
        self._silence: tuple[str, int] = ("", 0)
        self._delays: set[int] = set()  # partitions whose delayed index changed since delays_seen
        # the LSN of the last op since the manifest; the last component to change comes last
        self._changed: dict[Component, int] = {}
        self._facets: dict[Component, int] = {}  # the same for facets
        # the same for the catalog, without its facets and ops that only count transactions
        self._ruled = 0

    # --- loading -----------------------------------------------------------------------------

    @property
    def manifest(self) -> Manifest:
        """The checkpoint below this view."""
        return self.files.manifest

    @property
    def damage(self) -> Corruption | None:
        """An error to raise if the journal could not be read to its end; otherwise None.

        The view shows the state before the damage.
        """
        damage = self.journal.damage
        if damage is None:
            return None
        return Corruption(damage.message, hint=damage.hint, code=damage.code, **damage.fields)

    @property
    def is_outdated(self) -> bool:
        """True when the witness knows of a newer checkpoint."""
        witnessed = self.journal.witness.last
        return witnessed is not None and witnessed.generation > self.manifest.generation

    @classmethod
    def open(
        cls,
        disk: Disk,
        salt: bytes,
        boot_id: str,
        *,
        generation: int | None = None,
        up_to_damage: bool = False,
    ) -> View:
        """A view at the newest checkpoint, or a given one; it has read no frames yet.

        generation: 0: before the first checkpoint
        up_to_damage: as for Journal.open_at
        raises: Corruption, SnapshotExpired when checkpoints overtook every try
        """
        for _ in range(RELOADS_MAX):
            view = cls(disk, salt, boot_id)
            try:
                view._stand(generation, up_to_damage=up_to_damage)
            except JournalMoved:
                view.close()
                continue
            return view
        names = generations(disk)
        if names and generation is None:
            raise Corruption(
                f"the journal after manifest {names[-1]} is missing", path="journal", code=602
            )
        if generation is None and not list_journals(disk):
            raise Corruption("there is no journal file", path="journal", code=602)
        raise SnapshotExpired("the store moved on faster than it could be read")

    def _stand(self, generation: int | None, *, up_to_damage: bool) -> None:
        witnessed = self.journal.witness.read()
        if generation is None:
            generation_min = 0 if witnessed is None else witnessed.generation
            self.files.manifest, reports = newest_manifest(self.disk, self.salt, generation_min)
            self.reports.extend(reports)
        elif generation:
            self.files.manifest = read_manifest(self.disk, generation, self.salt)
        self.journal.open_at(
            self.manifest.cut_lsn, self.manifest.chain_crc, up_to_damage=up_to_damage
        )
        self.lsn = self.manifest.cut_lsn
        self.time_ms = self.manifest.time_ms
        self._dumps = {(ref.kind, ref.a, ref.b): ref for ref in self.manifest.dumps}

    def adopt_manifest(self) -> None:
        """Adopt a newer manifest: drop the rows and waiting ops that it has in files."""
        witnessed = self.journal.witness.last
        if witnessed is None or witnessed.generation <= self.files.manifest.generation:
            return
        try:
            newer = read_manifest(self.disk, witnessed.generation, self.salt)
        except (MissingFile, Corruption):
            return  # the next open reports it; this view is complete without it
        if newer.cut_lsn > self.lsn:
            return
        for key, items in list(self._waiting.items()):
            covered = bisect_right(items, newer.cut_lsn, key=lambda item: item[0])
            if covered == len(items):
                del self._waiting[key]
            else:
                del items[:covered]
        self._changed = {k: lsn for k, lsn in self._changed.items() if lsn > newer.cut_lsn}
        self._facets = {k: lsn for k, lsn in self._facets.items() if lsn > newer.cut_lsn}
        self.files.adopt(newer)
        self._dumps = {(ref.kind, ref.a, ref.b): ref for ref in newer.dumps}
        self._forgotten = {k: lsn for k, lsn in self._forgotten.items() if lsn > newer.cut_lsn}
        for key in self._forgotten:
            self._dumps.pop(key, None)
        self.tail.drop_through(newer.cut_lsn)
        self.journal.forget_before(newer.cut_lsn)

    def close(self) -> None:
        """Close every descriptor."""
        for timetable in self.timetables.values():
            timetable.close()
        self.timetables.clear()  # each refers to the view
        self.files.close()
        self.journal.close()

    # --- frames ------------------------------------------------------------------------------

    def take(self, frames: list[RawFrame]) -> None:
        """Apply frames that were read from the journal."""
        try:
            for raw in frames:
                self.apply(raw, decode_ops(raw.ops, lsn=raw.lsn))
        except _UNEXPECTED as error:
            raise _contradiction(self.lsn, error) from error

    def apply(self, raw: RawFrame, ops: list[Op]) -> None:
        """Apply one frame. Law 3: only its ops mutate a fold."""
        self.take_frame(raw, ops)
        self.take_ops(raw.lsn, raw.time_ms, ops)

    def take_frame(self, raw: RawFrame, ops: list[Op]) -> None:
        """Advance to a frame, and index its rows."""
        assert raw.lsn == self.lsn + 1  # Law 2: frames without a gap
        self.lsn = raw.lsn
        self.time_ms = raw.time_ms
        self.tail.note(raw, ops)

    def take_ops(self, lsn: int, time_ms: int, ops: list[Op]) -> None:
        """Apply the ops of a frame to the folds."""
        waiting = 0  # transactions that this frame decides and does not complete
        state_of, changed, table = self._loaded.get, self._changed, _TAKES
        for op in ops:
            kind = type(op)
            takes = table[kind]
            if takes.is_special:
                if kind is StatusUpdated:
                    waiting += 1 if op.expected in coordinators.UNDECIDED else -1  # type: ignore[union-attr]
                else:
                    if kind in NOTED:
                        self._note(op)
                    if not takes.has_home:
                        self._take_in(op.components(), lsn, time_ms, op)
                        continue
                    if takes.is_rule:
                        self._ruled = lsn
            key = op.home()  # type: ignore[union-attr]
            changed.pop(key, None)
            changed[key] = lsn
            if takes.has_facet and (facet := op.facet()) is not None:  # type: ignore[union-attr]
                self._facets.pop(facet, None)
                self._facets[facet] = lsn
            state = state_of(key)
            if state is None:
                self._keep(key, lsn, time_ms, op)
            else:
                takes[key[0]](state, lsn, time_ms, op)
            if takes.has_others and (others := op.others()):  # type: ignore[union-attr]
                self._take_in(others, lsn, time_ms, op)
        if waiting > 0:
            self._deadline = ("", 0)  # the next sweep looks, as it may complete them

    def _take_in(self, keys: tuple[Component, ...], lsn: int, time_ms: int, op: Op) -> None:
        """Apply an op to some of its folds."""
        for key in keys:
            if key is FILES:
                self.files.name(lsn, op)
                continue
            self._changed.pop(key, None)
            self._changed[key] = lsn
            if key is CATALOG and type(op) not in _COUNTED:
                self._ruled = lsn
            state = self._loaded.get(key)
            if state is None:
                self._keep(key, lsn, time_ms, op)
            else:
                _TAKES[type(op)][key[0]](state, lsn, time_ms, op)
            if key[0] == "delayed":
                self._delays.add(key[1])

    def _keep(self, key: Component, lsn: int, time_ms: int, op: Op) -> None:
        """Keep an op for a fold that no call has used yet."""
        items = self._waiting.get(key)
        if items is None:
            self._waiting[key] = [(lsn, time_ms, op)]
        else:
            items.append((lsn, time_ms, op))

    def _note(self, op: Op) -> None:
        """Take from an op the changes that concern the view itself."""
        if isinstance(op, TxnOpened):
            self._deadline = (
                (op.boot_id, min(self._deadline[1], op.boot_ms + op.timeout_ms))
                if op.boot_id == self._deadline[0]
                else ("", 0)
            )
        elif isinstance(op, PolicySet | NamespacePolicySet | SettingSet):
            self._silence = ("", 0)
            self.policies.clear()
        elif isinstance(op, PartitionOffline | PartitionAvailable):
            self._silence = ("", 0)
            if self.files.is_reading:
                self.files.close_of(op.partition, self.catalog.owners)
        else:
            assert isinstance(op, SubscriptionDeleted | TopicDeleted)
            self._forget(op)

    def _forget(self, op: SubscriptionDeleted | TopicDeleted) -> None:
        """Drop state and dumps of a deleted subscription or topic."""
        for number in op.partitions:
            keys: list[Component] = [(kind, number, 0) for kind in OF_PARTITION]
            if isinstance(op, SubscriptionDeleted):
                keys = [("cursor", op.subscription, number)]
            else:
                self._topics.pop(number, None)
                self._buffers.pop(number, None)
                if (timetable := self.timetables.pop(number, None)) is not None:
                    timetable.close()
            for key in keys:
                self._forgotten[key] = self.lsn
                for components in (self._dumps, self._loaded, self._waiting, self._changed):
                    components.pop(key, None)

    # --- components --------------------------------------------------------------------------

    def component(self, key: Component) -> object:
        """The state of a component at this view's LSN, loading it when needed."""
        return self._state(key)

    def _state(self, key: Component) -> Any:
        state = self._loaded.get(key)
        if state is None:
            state = self._loaded[key] = self._made(key)
            self._waiting.pop(key, None)
            if key[0] == "coordinator":
                self._deadline = ("", 0)  # the next sweep looks, as its transactions may be due
        return state

    def load(self, keys: Iterable[Component]) -> None:
        """Load many components that will be used, faster than one after the other."""
        dumped, loaded = self._dumps, self._loaded
        absent = dict.fromkeys(key for key in keys if key in dumped and key not in loaded)
        for ref, data in many_dumps(self.disk, [dumped[key] for key in absent]):
            key, fold = (ref.kind, ref.a, ref.b), FOLDS[ref.kind]
            state: Any = fold.read(data)
            apply_all(fold, state, self._waiting.get(key, ()))
            loaded[key] = state
            self._waiting.pop(key, None)

    def _made(self, key: Component) -> Any:
        return made(self.disk, key, StateSources(self._dumps.get(key), self._waiting.get(key, ())))

    def origin(self, key: Component) -> StateSources | None:
        """The sources of the state of a component that is not loaded; None: it is loaded."""
        if key in self._loaded:
            return None
        return StateSources(self._dumps.get(key), tuple(self._waiting.get(key, ())))

    def dump(self, key: Component) -> bytes:
        """The state of a component as the bytes of a dump; does not keep it loaded."""
        state = self._loaded.get(key)
        return FOLDS[key[0]].dump(self._made(key) if state is None else state)

    def dumped(self) -> dict[Component, DumpRef]:
        """The manifest's references to dumps, without components deleted since."""
        return dict(self._dumps)

    def changed(self) -> list[Component]:
        """Components whose state differs from their dump, loaded here or not."""
        return sorted(self._changed)

    def stamps(self, keys: Iterable[Component]) -> tuple[int, ...]:
        """The manifest's generation, then for each component or facet the LSN of its last op.

        0: no op since the checkpoint. While the stamps are the same, so are the components. Three
        changes do not raise the stamp of the catalog: transactions counted, ledgers begun, and
        consumers that come or leave; the latter have a facet of their own.
        """
        changed, facets, out = self._changed, self._facets, [self.manifest.generation]
        for key in keys:
            if key == CATALOG:
                out.append(self._ruled)
            elif key[0] == RETURNS and self._may_return(cursor := ("cursor", key[1], key[2])):
                out.append(changed.get(cursor, 0))
            else:
                out.append(changed.get(key, 0) or facets.get(key, 0))
        return tuple(out)

    def last_change(self, keys: Iterable[Component]) -> int:
        """The LSN of the last op of the components or facets since the checkpoint; 0: none.

        A lease is in the facet of returns only if its end may return the messages.
        """
        changed, facets = self._changed, self._facets
        return max(
            self._ruled if key == CATALOG else facets.get(key, 0) or changed.get(key, 0)
            for key in keys
        )

    def _may_return(self, cursor: Component) -> bool:
        """Whether an open transaction, which may time out, has messages of a cursor pending."""
        state = self._loaded.get(cursor)
        return state is None or bool(state.pending)

    def changed_since(self, lsn: int) -> set[Component] | None:
        """Components and facets with an op after an LSN; None: a checkpoint hides some.

        cost: proportional to the size of the result
        """
        if lsn < self.manifest.cut_lsn:
            return None
        out = {CATALOG} if self._ruled > lsn else set[Component]()
        for stamps in (self._changed, self._facets):
            for key in reversed(stamps):
                if stamps[key] <= lsn:
                    break
                if key != CATALOG:
                    out.add(key)
                if key[0] == "cursor" and self._may_return(key):
                    out.add(returns(key[1], key[2]))
        return out

    def waiting(self, kind: str) -> list[tuple[Component, list[tuple[int, int, Op]]]]:
        """(component, its (LSN, time, op) since the checkpoint) of a kind, where not loaded."""
        return [(key, items) for key, items in sorted(self._waiting.items()) if key[0] == kind]

    def exists(self, key: Component) -> bool:
        """True for a component that is dumped, waiting or loaded."""
        return key in self._loaded or key in self._waiting or key in self._dumps

    def known(self) -> set[Component]:
        """Every component that exists: dumped, waiting or loaded."""
        return {*self._dumps, *self._waiting, *self._loaded}

    @property
    def catalog(self) -> catalogs.Catalog:
        """Topics, subscriptions, settings."""
        state = self._catalog
        if state is None:
            state = self._catalog = self._state(CATALOG)
        return state

    def coordinator(self, number: int) -> coordinators.Coordinator:
        """A transaction coordinator."""
        state = self._coordinators.get(number)
        if state is None:
            state = self._coordinators[number] = self._state(("coordinator", number, 0))
        return state

    def keys(self, number: int) -> transaction_keys.Keys:
        """The transaction keys of a coordinator."""
        state: transaction_keys.Keys = self._state(("key", number, 0))
        return state

    def known_coordinators(self) -> list[int]:
        """Every coordinator that has ever had a transaction."""
        return sorted(key[1] for key in self.known() if key[0] == "coordinator")

    def load_coordinators(self) -> None:
        """Load every coordinator that has ever had a transaction."""
        for number in self.known_coordinators():
            self.coordinator(number)

    def loaded_coordinators(self) -> list[tuple[int, coordinators.Coordinator]]:
        """Coordinators this view has loaded."""
        return [(key[1], state) for key, state in self._loaded.items() if key[0] == "coordinator"]

    def no_deadline_before(self, now: Instant) -> bool:
        """True when no OPEN transaction of a loaded coordinator can be overdue."""
        boot, due_ms = self._deadline
        return boot != "" and boot == now.boot_id and now.boot_ms <= due_ms

    def next_deadline_ms(self, now: Instant) -> int | None:
        """The time, on the clock since boot, when a sweep is due next; None: no known time."""
        deadlines = (self._deadline, self._silence)
        dues = [due_ms for boot, due_ms in deadlines if boot == now.boot_id and due_ms < 1 << 62]
        return min(dues, default=None)

    def note_deadlines(self, now: Instant) -> None:
        """After a sweep: note when the next time-out of the loaded coordinators is due."""
        dues = [
            txn.boot_ms + txn.timeout_ms if txn.boot_id == now.boot_id else 0
            for _, state in self.loaded_coordinators()
            for txn in state.unfinished.values()
            if txn.status == coordinators.OPEN
        ]
        self._deadline = (now.boot_id, min(dues, default=1 << 62))

    def no_silence_before(self, now: Instant) -> bool:
        """True when no producer can have been silent for too long since the last look."""
        boot, due_ms = self._silence
        return boot == now.boot_id and now.boot_ms < due_ms

    def note_silence(self, now: Instant, again_ms: int) -> None:
        """After a look that found no silent producer: note in how many ms there may be one."""
        self._silence = (now.boot_id, now.boot_ms + again_ms)

    def topic(self, partition: int) -> topics.Topic:
        """The ends of a partition, by its number."""
        state = self._topics.get(partition)
        if state is None:
            state = self._topics[partition] = self._state(("topic", partition, 0))
        return state

    def buffer(self, partition: int) -> buffers.Buffer:
        """The sidecar of a partition."""
        state = self._buffers.get(partition)
        if state is None:
            state = self._buffers[partition] = self._state(("buffer", partition, 0))
        return state

    def buffer_in_use(self, partition: int) -> buffers.Buffer | None:
        """The sidecar, if this view has used it; None for a deleted partition."""
        return self._buffers.get(partition)

    def cursor(self, subscription: int, partition: int) -> cursors.Cursor:
        """The cursor of a subscription on a partition."""
        key = ("cursor", subscription, partition)
        state: cursors.Cursor | None = self._loaded.get(key)
        return self._state(key) if state is None else state

    def delayed(self, partition: int) -> delays.Delayed:
        """When the delayed messages of a partition are due."""
        state: delays.Delayed = self._state(("delayed", partition, 0))
        return state

    @property
    def has_delays_to_look_at(self) -> bool:
        """True when a delayed index changed since delays_seen."""
        return bool(self._delays)

    def delays_to_look_at(self, *, everything: bool = False) -> list[int]:
        """Partitions whose delayed index changed since delays_seen; everything: or is loaded."""
        if not everything:
            return sorted(self._delays)
        return sorted({key[1] for key in self._loaded if key[0] == "delayed"} | self._delays)

    def delays_seen(self) -> None:
        """Note that the caller has looked at these partitions."""
        self._delays.clear()

    def watermark(self, partition: int) -> watermarks.Watermark:
        """How far the producers of a partition have got in event time."""
        key = ("watermark", partition, 0)
        state: watermarks.Watermark | None = self._loaded.get(key)
        return self._state(key) if state is None else state

    # --- rows --------------------------------------------------------------------------------

    def rows(
        self, requests: Sequence[Request], names: Sequence[str] = tuple(MESSAGE.names)
    ) -> list[pa.Table]:
        """Rows of ledgers; see Files.rows."""
        return self.files.rows(requests, names, self._large)

    def _large(self, ref: FileRef, names: Sequence[str]) -> pa.Table:
        """The large message of a ledger as its row; neither its file nor its bytes are kept."""
        chunked = self.buffer(self.catalog.owners[ref.ledger][0]).chunked[ref.ledger]
        file = remote.open_file(self.disk, ref.path)
        try:
            return chunks.large_row(file, ref, chunked, names)
        finally:
            file.close()

    def ledger_table(self, ledger: int, start: int, stop: int) -> pa.Table:
        """Rows start..stop of one ledger as one table of MESSAGE."""
        tables = self.rows([(ledger, start, stop)])
        return pa.concat_tables(tables) if tables else MESSAGE.empty_table()

"""Owns scans: the committed messages of a relation in pieces that any process can read alone.

The driver cuts a relation into scans. Each is a plain value: rows of a file with one rule
(Relation), or the rows themselves. A reader needs only the scan and its file. It opens files below
the store and checks every byte that it reads. It reads a file one row group at a time, and skips
row groups that the statistics exclude.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal

import pyarrow as pa

from txlog.base import message_columns
from txlog.base.startup import compute as pc
from txlog.engine.folds.catalog import SchemaVersion
from txlog.engine.model.schema import KIND_DATA, MESSAGE
from txlog.engine.plan.records import records_as, records_of_file, schema_in
from txlog.engine.relation.relation import FileSource, Relation, Span
from txlog.engine.storage.chunks import reassembled
from txlog.engine.storage.columns import schema_of
from txlog.engine.storage.disk.protocol import Disk, File
from txlog.engine.storage.remote import open_planned
from txlog.engine.storage.segment import RECORD, FileRef
from txlog.engine.storage.segment_reader import SegmentReader
from txlog.errors import MissingFile, SnapshotExpired

# The columns of `messages`, in DuckDB and Spark.
MESSAGES: Final = schema_of(message_columns.MESSAGES)
# The same with isolation uncommitted; an invisible message has no id, place or LSN.
UNCOMMITTED: Final = MESSAGES.append(pa.field("txn_state", pa.string()))
SCAN_BYTES: Final = 64 << 20
SCAN_BYTES_LEAST: Final = 8 << 20
SCANS_WANTED: Final = 16  # a small topic is cut finer, so that all cores have work

Rule = Literal["plain", "clean", "joined", "large", "rows"]
# by column: the lowest and highest value that a reader asks for
Ends = Mapping[str, tuple[object, object]]
# The columns of a message that do not come from the column of the same name.
_FROM: Final[dict[str, dict[str, Sequence[str]]]] = {
    "plain": {"ledger": (), "txn_index": (), "visible_time": ("publish_time",)},
    "clean": {"ledger": ("marker_ledger",), "entry": ("marker_entry",)},
    "joined": dict.fromkeys(("ledger", "entry", "visible_time", "lsn"), ()),
}
_MADE: Final = {
    "topic": (), "partition": (), "message_id": ("ledger", "entry", "txn_index"),
    "size_bytes": ("value",), "txn_state": ("txn_index",), RECORD: ("value", "schema_version"),
}  # fmt: skip
_TXN: Final = ("txn_most", "txn_least")
_OF_MARKERS: Final = [*_TXN, "marker_ledger", "marker_entry", "visible_time", "lsn"]
_PLACE: Final = ("ledger", "entry", "txn_index")
_DATA: Final = pa.scalar(KIND_DATA, pa.int8())
_EMPTY: Final = pa.scalar(0, pa.int64())
_COMMITTED: Final = pa.scalar("committed", pa.string())
_NO_STATE: Final = pa.scalar(None, pa.string())

Columns = dict[str, pa.Array | pa.ChunkedArray]


@dataclass(frozen=True, slots=True)
class Scan:
    """Some messages of a topic: rows of a file, or the rows themselves (rule `rows`, no ref).

    start, stop: rows start..stop-1 of the file
    within:      only messages in this span; None: all
    rows:        Arrow IPC: the messages themselves, the markers of a `joined` file, or a large
                 message without its value
    bytes:       an estimate of the bytes that a reader reads
    schemas:     of a typed topic, whose messages have a column `record`
    """

    topic: str
    partition: int
    rule: Rule
    ref: FileRef | None
    start: int
    stop: int
    within: Span | None
    rows: bytes
    bytes: int
    schemas: Sequence[SchemaVersion] = ()


def scans_of(relation: Relation, ends: Ends | None = None) -> list[Scan]:
    """Scans that have each message of a relation once; the largest is about SCAN_BYTES.

    ends: bounds of `partition`, `ledger` and `lsn`; files outside are skipped, but scans may have
          messages outside
    """
    cutter = _ScanBuilder(relation, ends or {})
    total = sum(source.ref.bytes for source in (*relation.direct, *relation.unclean))
    cutter.size = max(SCAN_BYTES_LEAST, min(SCAN_BYTES, total // SCANS_WANTED))
    for source in relation.direct:
        cutter.add_file(source, "plain" if source.role == "p" else "clean")
    for source in relation.unclean:
        cutter.add_file(source, "joined")
    for source in relation.open:
        cutter.add_file(source, "plain" if source.role == "p" else "joined")
    for source in relation.large_files:
        cutter.add_large(source)
    cutter.add_rows(relation.tail)
    cutter.add_rows(relation.hidden)
    return cutter.scans


def grouped(scans: Sequence[Scan]) -> list[list[Scan]]:
    """Groups of scans, each large enough to be worth a task; the order is kept."""
    out: list[list[Scan]] = []
    size = 0
    room = max(SCAN_BYTES_LEAST, min(SCAN_BYTES, sum(scan.bytes for scan in scans) // SCANS_WANTED))
    for scan in scans:
        if not out or size + scan.bytes > room:
            out.append([])
            size = 0
        out[-1].append(scan)
        size += scan.bytes
    return out


def read_scan(
    disk: Disk | None, scan: Scan, names: Sequence[str], ends: Ends | None = None
) -> Iterator[pa.Table]:
    """The messages of a scan with these columns of UNCOMMITTED, a few rows at a time, in order.

    A typed topic has `record`, too.

    disk:   may be None if no file is in the store
    ends:   bounds by column; row groups without a value inside are skipped
    raises: Corruption; SnapshotExpired when a file was removed since the scan was made
    """
    if scan.rule == "rows":
        yield _shown(scan, _table(scan.rows), names)
        return
    assert scan.ref is not None
    try:
        file = open_planned(disk, scan.ref.path)
    except MissingFile as error:
        raise SnapshotExpired(
            f"{scan.ref.path} was removed before it was read",
            hint="read it again, or raise reader_grace_ms",
            path=scan.ref.path,
        ) from error
    try:
        if scan.rule == "large":
            yield _large(file, scan, names)
        else:
            yield from _read_rows(file, scan, names, ends or {})
    finally:
        file.close()


def in_span(table: pa.Table, span: Span) -> pa.Table:
    """The rows whose ledger, entry and txn_index are in a span."""
    columns = [table.column(name) for name in _PLACE]
    columns[2] = pc.coalesce(columns[2], pa.scalar(0, pa.int32()))
    return table.filter(
        pc.and_(_is_behind(columns, span.start), pc.invert(_is_behind(columns, span.stop)))
    )


def _is_behind(columns: list[pa.ChunkedArray], mark: tuple[int, int, int]) -> pa.ChunkedArray:
    """For each row, whether its position is at or after a mark."""
    out = pc.greater_equal(columns[2], pa.scalar(mark[2], pa.int32()))
    for column, value in ((columns[1], mark[1]), (columns[0], mark[0])):
        scalar = pa.scalar(value, pa.int64())
        out = pc.or_(pc.greater(column, scalar), pc.and_(pc.equal(column, scalar), out))
    return out


class _ScanBuilder:
    """Builds the scans of a relation, source by source."""

    def __init__(self, relation: Relation, ends: Ends) -> None:
        self.scans: list[Scan] = []
        self.size = SCAN_BYTES
        self._relation = relation
        self._schemas = tuple(relation.schemas) if relation.record else ()
        self._wanted = ends
        self._markers: dict[int, pa.Table] = {}

    def add_file(self, source: FileSource, rule: Rule) -> None:
        """Add rows of a file, in pieces that end where a row group does."""
        ref, relation = source.ref, self._relation
        start, stop, within, rows = 0, ref.rows, None, b""
        if not self._has("partition", source.partition, source.partition):
            return
        if rule == "joined":
            markers = self._markers_of(source)
            if not markers.num_rows:
                return
            rows = _bytes(markers.select(_OF_MARKERS))
            span = relation.spans.get(source.partition)
            within = span if span is not None and span.cuts_markers else None
        elif not self._has("lsn", ref.lsn_first, ref.lsn_last):
            return
        elif rule == "clean":
            within = source.within
        else:
            if not self._has("ledger", ref.ledger, ref.ledger):
                return
            if source.within is not None:
                low, high = source.within.entries(ref.ledger, ref.last + 1)
                start, stop = max(low - ref.first, 0), min(high - ref.first, ref.rows)
        for low, high, size in self._cut(ref, start, stop):
            self.scans.append(
                Scan(
                    relation.topic,
                    source.partition,
                    rule,
                    ref,
                    low,
                    high,
                    within,
                    rows,
                    size,
                    self._schemas,
                )
            )

    def add_large(self, source: FileSource) -> None:
        """Add a scan with a large message."""
        relation = self._relation
        if self._has("partition", source.partition, source.partition):
            at = pc.index(relation.large.column("path"), source.ref.path).as_py()
            self.scans.append(
                Scan(
                    relation.topic,
                    source.partition,
                    "large",
                    source.ref,
                    0,
                    1,
                    None,
                    _bytes(relation.large.slice(at, 1)),
                    source.ref.bytes,
                    self._schemas,
                )
            )

    def add_rows(self, rows: pa.Table) -> None:
        """Add scans that carry these messages themselves."""
        if not rows.num_rows:
            return
        count = max(1, -(-rows.nbytes // self.size))
        step = -(-rows.num_rows // count)
        for start in range(0, rows.num_rows, step):
            data = _bytes(rows.slice(start, step))
            topic, size = self._relation.topic, len(data)
            self.scans.append(
                Scan(topic, -1, "rows", None, 0, step, None, data, size, self._schemas)
            )

    def _cut(self, ref: FileRef, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Rows start..stop in pieces of about `size` bytes: first, last, bytes."""
        low, size = start, 0
        for group, end in zip(ref.groups, accumulate(g[0] for g in ref.groups), strict=True):
            if end <= start:
                continue
            size += group[2]
            if end >= stop:
                break
            if size >= self.size:
                yield low, end, size
                low, size = end, 0
        if low < stop:
            yield low, stop, size

    def _has(self, name: str, least: int, greatest: int) -> bool:
        """True when a value between these may be in the requested range."""
        low, high = self._wanted.get(name, (None, None))
        return (low is None or greatest >= low) and (high is None or least <= high)  # type: ignore[operator]

    def _markers_of(self, source: FileSource) -> pa.Table:
        """The markers that may have rows in a file."""
        index, ref = source.partition, source.ref
        if index not in self._markers:
            markers = self._relation.markers
            is_here = pc.equal(markers.column("partition"), pa.scalar(index, pa.int32()))
            of_partition = markers.filter(is_here)
            low, high = self._wanted.get("lsn", (None, None))
            for compare, value in ((pc.greater_equal, low), (pc.less_equal, high)):
                if value is not None:
                    of_partition = of_partition.filter(
                        compare(of_partition.column("lsn"), pa.scalar(value, pa.int64()))
                    )
            self._markers[index] = of_partition
        of_partition = self._markers[index]
        return of_partition.filter(
            pc.and_(
                pc.greater_equal(of_partition.column("lsn"), pa.scalar(ref.lsn_first, pa.int64())),
                pc.less_equal(
                    of_partition.column("first_lsn"), pa.scalar(ref.lsn_last, pa.int64())
                ),
            )
        )


def _read_rows(file: File, scan: Scan, names: Sequence[str], ends: Ends) -> Iterator[pa.Table]:
    """The messages of a file, by its rule."""
    assert scan.ref is not None
    reader = SegmentReader(file, scan.ref)
    stored = _stored(scan, names)
    places = _Placement(scan)
    first = 0
    for number, (rows, _, _, _) in enumerate(scan.ref.groups):
        start, stop = max(first, scan.start), min(first + rows, scan.stop)
        first += rows
        if start >= stop or not _may_have(reader, number, scan, ends):
            continue
        table = reader.rows(start, stop, stored)
        if RECORD in names and scan.ref.record:
            table = table.append_column(RECORD, _records(scan, reader.records(start, stop)))
        if not scan.ref.is_messages_only:
            is_data = pc.equal(table.column("kind"), _DATA)
            if not pc.all(is_data).as_py():
                table = table.filter(is_data)
        placed = places.placed(table)
        if placed.num_rows:
            yield _shown(scan, placed, names)


class _Placement:
    """Adds to stored rows the place and time at which they are visible."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self._markers = _table(scan.rows) if scan.rule == "joined" else None
        if self._markers is not None:
            self._keys = _key(self._markers)

    def placed(self, table: pa.Table) -> pa.Table:
        """The committed rows among these, under the names of MESSAGES."""
        scan = self._scan
        columns: Columns
        if self._markers is not None:
            at = pc.index_in(_key(table), value_set=self._keys)
            table = table.append_column("at", at).filter(at.is_valid())
            markers = self._markers.take(table.column("at"))
            columns = {name: table.column(name) for name in table.column_names}
            for name, source in (
                ("ledger", "marker_ledger"),
                ("entry", "marker_entry"),
                ("visible_time", "visible_time"),
                ("lsn", "lsn"),
            ):
                columns[name] = markers.column(source)
        else:
            columns = {name: table.column(name) for name in table.column_names}
            if scan.rule == "clean":
                for name in ("ledger", "entry"):
                    if f"marker_{name}" in columns:
                        columns[name] = columns[f"marker_{name}"]
            else:
                assert scan.ref is not None
                count = table.num_rows
                columns["ledger"] = pa.repeat(pa.scalar(scan.ref.ledger, pa.int64()), count)
                columns["txn_index"] = pa.nulls(count, pa.int32())
                if "publish_time" in columns:
                    columns["visible_time"] = columns["publish_time"]
                if "lsn" in columns:  # an adopted file has one LSN for all its rows
                    lsn = pa.scalar(scan.ref.lsn_first, pa.int64())
                    columns["lsn"] = pc.coalesce(columns["lsn"], lsn)
        out = pa.table(columns)
        return out if scan.within is None else in_span(out, scan.within)


def _stored(scan: Scan, names: Collection[str]) -> list[str]:
    """The stored columns needed to make these."""
    is_sifted = scan.ref is None or not scan.ref.is_messages_only
    needed = {"kind"} if is_sifted else {"entry"}  # without a column there is no row count
    is_there = scan.ref is not None and scan.ref.record > 0
    computed = [name for name in names if name != RECORD or not is_there]
    sources = {source for name in computed for source in _MADE.get(name, (name,))}
    if scan.within is not None:
        sources.update(_PLACE)
    for name in sources:
        needed.update(_FROM[scan.rule].get(name, (name,)))
    if scan.rule == "joined":
        needed.update(_TXN)
    return [name for name in MESSAGE.names if name in needed]


def _records(scan: Scan, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column `record` of a file in the form of messages."""
    assert scan.ref is not None
    return records_of_file(scan.schemas, scan.ref.record, len(scan.schemas), column)


def _may_have(reader: SegmentReader, number: int, scan: Scan, ends: Ends) -> bool:
    """False when the statistics of a row group exclude all requested values."""
    bounds: list[tuple[str, object, object]] = []
    for name, (low, high) in ends.items():
        sources = _FROM[scan.rule].get(name, (name,) if name in MESSAGE.names else ())
        bounds += [(source, low, high) for source in sources]
    if scan.rule == "clean" and scan.within is not None:
        start, stop = scan.within
        bounds.append(("marker_ledger", start[0], stop[0]))
        if start[0] == stop[0]:
            bounds.append(("marker_entry", start[1], stop[1]))
    for name, low, high in bounds:
        statistics = reader.statistics(number, name)
        if statistics is None:
            continue
        least, greatest = statistics
        if (low is not None and greatest < low) or (high is not None and least > high):
            return False
    return True


def _large(file: File, scan: Scan, names: Sequence[str]) -> pa.Table:
    """The large message of a scan, its value put together from its chunks."""
    assert scan.ref is not None
    row = _table(scan.rows)
    size = row.column("bytes")
    if "value" in names:
        of = {name: row.column(name)[0].as_py() for name in ("bytes", "crc")}
        _, value = reassembled(file, scan.ref, of["bytes"], of["crc"])
        row = row.append_column("value", value)
    if RECORD in names:  # its value was never checked
        kind = schema_in(scan.schemas[-1]).arrow
        row = row.append_column(RECORD, pa.nulls(1, kind))
    return _shown(scan, row.append_column("size_bytes", size), names)


def _shown(scan: Scan, rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Placed rows as columns of MESSAGES."""
    columns: list[pa.Array | pa.ChunkedArray] = []
    for name in names:
        if name in rows.column_names:
            columns.append(rows.column(name))
        elif name == "topic":
            columns.append(pa.repeat(pa.scalar(scan.topic, pa.string()), rows.num_rows))
        elif name == "partition":
            columns.append(pa.repeat(pa.scalar(scan.partition, pa.int32()), rows.num_rows))
        elif name == "message_id":
            columns.append(_ids(*(rows.column(part) for part in _PLACE)))
        elif name == "txn_state":
            in_txn = rows.column("txn_index").is_valid()
            columns.append(pc.if_else(in_txn, _COMMITTED, _NO_STATE))
        elif name == RECORD:
            columns.append(records_as(scan.schemas, len(scan.schemas), rows))
        else:
            assert name == "size_bytes"
            size = pc.binary_length(rows.column("value")).cast(pa.int64())
            columns.append(pc.coalesce(size, _EMPTY))
    fields = [
        pa.field(name, column.type) if name == RECORD else UNCOMMITTED.field(name)
        for name, column in zip(names, columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _ids(ledger: pa.ChunkedArray, entry: pa.ChunkedArray, index: pa.ChunkedArray) -> pa.Array:
    """Message ids as text."""
    text: Callable[[pa.ChunkedArray], pa.ChunkedArray] = lambda column: column.cast(pa.string())  # noqa: E731
    plain = pc.binary_join_element_wise(text(ledger), text(entry), ":")
    if index.null_count == len(index):
        return plain
    return pc.coalesce(pc.binary_join_element_wise(plain, text(index), ":"), plain)


def _key(table: pa.Table) -> pa.ChunkedArray:
    """Transaction ids as one number: the coordinator is in the upper bits, which may wrap."""
    return pc.add(table.column("txn_most"), table.column("txn_least"))


def _bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue())


def _table(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()

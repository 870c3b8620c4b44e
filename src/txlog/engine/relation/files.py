"""Files for readers that open them by path: checking them, and rows in place of unreadable ones.

DuckDB and Spark accept flipped bits without an error. So `check_files` first compares every byte of
a local file with the manifest's checksums. A published file never changes: a file with the same
checksum, length, time and inode as at the last check is not read again.

DuckDB cannot read two kinds of files by itself. Some are in an object store, and DuckDB uses no
network: `dataset_of` fetches their row groups and columns as a query needs them. The footer was
checked against the manifest before, and Parquet's page checksums are checked during the read. Other
files have an instant that DuckDB cannot represent (times.SQL_MS_MAX): `without_far` reads their
rows into memory whole. `bounded` converts instants to the form of DuckDB and Delta: microseconds,
where far instants become infinite. This module imports neither DuckDB nor Delta.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

from txlog.base.message_columns import LOCATED
from txlog.base.startup import compute as pc
from txlog.base.times import SQL_MS_MAX, SQL_MS_MIN
from txlog.engine.model.schema import KIND_DATA, MESSAGE
from txlog.engine.relation.relation import COMMITTED, FileSource, RelationContent
from txlog.engine.storage.columns import schema_of
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.remote import is_remote, local_path, located, open_far, open_file
from txlog.engine.storage.segment import RECORD, FileRef, arrow_module
from txlog.engine.storage.segment_reader import SegmentReader

# --- instants -------------------------------------------------------------------------------------


_ENDLESS: Final = (1 << 63) - 1  # in us, DuckDB's infinity


def bounded(table: pa.Table) -> pa.Table:
    """The table; a column with far instants becomes microseconds, and far instants infinite."""
    for at, field in enumerate(table.schema):
        if not pa.types.is_timestamp(field.type) or field.type.unit != "ms":
            continue
        ms = table.column(at).cast(pa.int64())
        ends = pc.min_max(ms).as_py()
        if ends["min"] is None or (ends["min"] >= SQL_MS_MIN and ends["max"] <= SQL_MS_MAX):
            continue
        within = pc.min_element_wise(
            pc.max_element_wise(ms, SQL_MS_MIN, skip_nulls=False), SQL_MS_MAX, skip_nulls=False
        )
        us = pc.if_else(pc.greater(ms, SQL_MS_MAX), _ENDLESS, pc.multiply(within, 1000))
        us = pc.if_else(pc.less(ms, SQL_MS_MIN), -_ENDLESS, us)
        kind = pa.timestamp("us", field.type.tz)
        table = table.set_column(at, pa.field(field.name, kind, field.nullable), us.cast(kind))
    return table


# --- checks ---------------------------------------------------------------------------------------


_INSTANTS: Final = [field.name for field in MESSAGE if pa.types.is_timestamp(field.type)]
_KNOWN_MAX: Final = 100_000  # some 20 MB; then it starts over
Stamp = tuple[int, int, int, int]  # CRC, bytes, time of the last change in ns, inode


class HasFile(Protocol):
    """Anything with a FileRef, such as a FileSource."""

    @property
    def ref(self) -> FileRef: ...


_known: dict[str, Stamp] = {}
_fitting: dict[tuple[str, int], bool] = {}  # by path and CRC


def fits(disk: Disk, ref: FileRef) -> bool:
    """Whether SQL can represent all instants of a sealed file, according to its footer.

    raises: Corruption; MissingFile
    """
    is_fitting = _fitting.get((ref.path, ref.crc))
    if is_fitting is None:
        file = open_far(ref.path) if is_remote(ref.path) else open_file(disk, ref.path)
        try:
            is_fitting = _note(SegmentReader(file, ref))
        finally:
            file.close()
    return is_fitting


def _note(reader: SegmentReader) -> bool:
    ref = reader.ref
    bounds = [
        ends
        for number in range(len(ref.groups))
        for name in _INSTANTS
        if (ends := reader.statistics(number, name)) is not None
    ]
    is_fitting = all(least >= SQL_MS_MIN and most <= SQL_MS_MAX for least, most in bounds)
    if len(_fitting) >= _KNOWN_MAX:
        _fitting.clear()
    _fitting[ref.path, ref.crc] = is_fitting
    return is_fitting


def check_files(disk: Disk, sources: Iterable[HasFile]) -> int:
    """Check every byte of local files, and the footers of remote ones, against their checksums.

    returns: how many local files were read, because they had changed or were new to this process
    raises:  Corruption (path, offset); MissingFile
    """
    count = 0
    for source in sources:
        ref = source.ref
        if is_remote(ref.path):
            _check_remote(ref)
            continue
        path = Path(local_path(ref.path) or Path(disk.description, ref.path))
        stamp = _stamp(path, ref.crc)
        if stamp is not None and _known.get(str(path)) == stamp:
            continue
        file = open_file(disk, ref.path)
        try:
            reader = SegmentReader(file, ref)
            reader.check()
            _note(reader)
        finally:
            file.close()
        count += 1
        if stamp is not None and stamp == _stamp(path, ref.crc):
            if len(_known) >= _KNOWN_MAX:
                _known.clear()
            _known[str(path)] = stamp
    return count


def _check_remote(ref: FileRef) -> None:
    """Check only the footer of a remote file: its reader checks the pages."""
    file = open_far(ref.path)
    try:
        reader = SegmentReader(file, ref)
        reader.check_footer()
        _note(reader)
    finally:
        file.close()


def _stamp(path: Path, crc: int) -> Stamp | None:
    """A stamp that changes when the file changes; None: the file does not exist."""
    try:
        status = path.lstat()
    except OSError:
        return None  # opening it raises the right error
    return (crc, status.st_size, status.st_mtime_ns, status.st_ino)


def forget() -> None:
    """Forget earlier checks, so that every file is read again; for benchmarks."""
    _known.clear()


# --- rows in place of files -----------------------------------------------------------------------


FILENAME = pa.field("filename", pa.string())
_DATA: Final = pa.scalar(KIND_DATA, pa.int8())


def dataset_of(
    sources: Sequence[FileSource],
    name: Callable[[FileSource], str],
    record: pa.DataType | None = None,
) -> object:
    """A pyarrow dataset over files, with a column `filename`: the result of `name` for each.

    record: the type of the column `record`, which is added then; None: without it
    """
    ds = arrow_module("pyarrow.dataset")
    options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    form = ds.ParquetFileFormat(default_fragment_scan_options=options)
    fragments = []
    for source in sources:
        filesystem, path = located(source.ref.path)
        at = ds.field(FILENAME.name) == name(source)
        fragments.append(form.make_fragment(path, filesystem, partition_expression=at))
    columns = MESSAGE if record is None else MESSAGE.append(pa.field(RECORD, record))
    return ds.FileSystemDataset(fragments, columns.append(FILENAME), form)


def without_far(content: RelationContent, disk: Disk) -> RelationContent:
    """The content, with rows in place of the files that have an instant SQL cannot represent.

    raises: Corruption; MissingFile
    """
    relation = content.relation
    direct = [source for source in relation.direct if not fits(disk, source.ref)]
    unclean = [source for source in relation.unclean if not fits(disk, source.ref)]
    compacted = [source for source in relation.compacted if not fits(disk, source.ref)]
    if compacted:
        rows = pa.concat_tables([_tail_rows(source, disk, False) for source in compacted])
        readable = [source for source in relation.compacted if source not in compacted]
        relation = replace(relation, compacted=readable, compacted_rows=rows)
        content = replace(content, relation=relation)
    if not direct and not unclean:
        return content
    tail = [_tail_rows(source, disk, relation.everything) for source in direct]
    parts = [_part_rows(source, disk, content.sidecar_parts.schema) for source in unclean]
    return replace(
        content,
        relation=replace(
            relation,
            direct=[source for source in relation.direct if source not in direct],
            unclean=[source for source in relation.unclean if source not in unclean],
            tail=pa.concat_tables([relation.tail, *tail]),
        ),
        sidecar_parts=pa.concat_tables([content.sidecar_parts, *parts]),
    )


def _stored_rows(source: FileSource, disk: Disk) -> dict[str, pa.ChunkedArray]:
    """The rows of a file by column, with partition, ledger and row numbers; checks every byte."""
    ref = source.ref
    file = open_far(ref.path) if is_remote(ref.path) else open_file(disk, ref.path)
    try:
        rows = SegmentReader(file, ref).rows(0, ref.rows)
    finally:
        file.close()
    columns = {name: rows.column(name) for name in rows.column_names}
    columns["partition"] = pa.repeat(pa.scalar(source.partition, pa.int32()), ref.rows)
    columns["stored_ledger"] = pa.repeat(pa.scalar(ref.ledger, pa.int64()), ref.rows)
    columns["stored_entry"] = pa.arange(0, ref.rows)
    return columns


def _tail_rows(source: FileSource, disk: Disk, everything: bool) -> pa.Table:
    """The rows of a file of `direct` in the form of `tail`: only messages, unless everything."""
    columns = _stored_rows(source, disk)
    lsn = pa.scalar(source.ref.lsn_first, pa.int64())
    columns["ledger"] = pc.coalesce(columns["marker_ledger"], columns["stored_ledger"])
    columns["entry"] = pc.coalesce(columns["marker_entry"], columns["entry"])
    columns["visible_time"] = pc.coalesce(columns["visible_time"], columns["publish_time"])
    if source.ref.form == "adopted":
        columns["lsn"] = pc.coalesce(columns["lsn"], lsn)
    schema = pa.schema([*COMMITTED, *schema_of(LOCATED)]) if everything else COMMITTED
    rows = pa.table([columns[name] for name in schema.names], schema=schema)
    return rows if everything else rows.filter(pc.equal(columns["kind"], _DATA))


def _part_rows(source: FileSource, disk: Disk, schema: pa.Schema) -> pa.Table:
    """The rows of a file of `unclean` in the form of an open part."""
    columns = _stored_rows(source, disk)
    columns |= {"ledger": columns["stored_ledger"], "entry": columns["stored_entry"]}
    return pa.table([columns[name] for name in schema.names], schema=schema)


def numbered_rows(sources: Sequence[FileSource], name: Callable[[FileSource], str]) -> pa.Table:
    """The rows of remote files, with the columns `filename` (from `name`) and `file_row_number`.

    raises: Corruption, DiskFailed
    """
    schema = MESSAGE.append(FILENAME).append(pa.field("file_row_number", pa.int64()))
    tables = [schema.empty_table()]
    for source in sources:
        file = open_far(source.ref.path)
        try:
            rows = SegmentReader(file, source.ref).rows(0, source.ref.rows)
        finally:
            file.close()
        file_names = pa.repeat(pa.scalar(name(source), pa.string()), rows.num_rows)
        numbers = pa.arange(0, rows.num_rows)
        tables.append(pa.table([*rows.columns, file_names, numbers], schema=schema))
    return pa.concat_tables(tables)

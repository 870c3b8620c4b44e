"""Files that DuckDB cannot read itself, as tables for SQL.

Some are in an object store: DuckDB does not go to the network by itself. Others have an instant
that DuckDB cannot represent (ranges.SQL_MS_MAX): their rows are read into memory whole.

Row groups are fetched as a query asks for them, and only the columns it needs. The footer of a file
was checked against the manifest before (`checks`); Parquet's page checksums are checked during the
read. Rows with their number in the file are read whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from txlog.base.startup import compute as pc
from txlog.engine.model.schema import KIND_DATA, MESSAGE
from txlog.engine.relation.checks import fits
from txlog.engine.relation.hidden import STORED
from txlog.engine.relation.relation import COMMITTED, FileSource, RelationContent
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.remote import is_remote, located, open_far, open_file
from txlog.engine.storage.segment import RECORD, arrow_module
from txlog.engine.storage.segment_reader import SegmentReader

FILENAME = pa.field("filename", pa.string())
_DATA: Final = pa.scalar(KIND_DATA, pa.int8())


def dataset_of(
    sources: Sequence[FileSource],
    name: Callable[[FileSource], str],
    record: pa.DataType | None = None,
) -> object:
    """The rows of files, and the column `filename` with the result of `name` for each.

    record: the type of the column `record`, which is added then
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
    """The content, with rows of tables in place of the files with instants that SQL cannot
    represent.

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
    """The rows of a file by column, with the columns that follow from its path.

    Every byte is checked.
    """
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
    schema = pa.schema([*COMMITTED, *STORED]) if everything else COMMITTED
    rows = pa.table([columns[name] for name in schema.names], schema=schema)
    return rows if everything else rows.filter(pc.equal(columns["kind"], _DATA))


def _part_rows(source: FileSource, disk: Disk, schema: pa.Schema) -> pa.Table:
    """The rows of a file of `unclean` in the form of an open part."""
    columns = _stored_rows(source, disk)
    columns |= {"ledger": columns["stored_ledger"], "entry": columns["stored_entry"]}
    return pa.table([columns[name] for name in schema.names], schema=schema)


def numbered_rows(sources: Sequence[FileSource], name: Callable[[FileSource], str]) -> pa.Table:
    """The file in memory, with the column `file_row_number`. Raises Corruption, DiskFailed."""
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

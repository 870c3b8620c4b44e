"""Owns files in an object store as tables for SQL, since DuckDB goes to no network by itself.

Row groups are fetched as a query asks for them, and only the columns that it needs. The footer of a
file was compared with the manifest's checksum before (filechecks); of its pages the checksums that
Parquet has are compared as they are read. Rows with their number in the file are read as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from txlog.engine.model.schema import MESSAGE
from txlog.engine.storage.far import located, open_far
from txlog.engine.storage.segment import arrow_module
from txlog.engine.storage.segment_reader import SegmentReader
from txlog.relation import Source

FILENAME = pa.field("filename", pa.string())


def dataset_of(sources: Sequence[Source], name: Callable[[Source], str]) -> object:
    """The rows of files, and the column `filename` with what `name` says of each."""
    ds = arrow_module("pyarrow.dataset")
    options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    form = ds.ParquetFileFormat(default_fragment_scan_options=options)
    fragments = []
    for source in sources:
        filesystem, path = located(source.ref.path)
        at = ds.field(FILENAME.name) == name(source)
        fragments.append(form.make_fragment(path, filesystem, partition_expression=at))
    return ds.FileSystemDataset(fragments, MESSAGE.append(FILENAME), form)


def numbered_rows(sources: Sequence[Source], name: Callable[[Source], str]) -> pa.Table:
    """The same in memory, with the column `file_row_number`. Raises Corruption, DiskFailed."""
    schema = MESSAGE.append(FILENAME).append(pa.field("file_row_number", pa.int64()))
    tables = [schema.empty_table()]
    for source in sources:
        file = open_far(source.ref.path)
        try:
            rows = SegmentReader(file, source.ref).rows(0, source.ref.rows)
        finally:
            file.close()
        named = pa.repeat(pa.scalar(name(source), pa.string()), rows.num_rows)
        numbers = pa.arange(0, rows.num_rows)
        tables.append(pa.table([*rows.columns, named, numbers], schema=schema))
    return pa.concat_tables(tables)

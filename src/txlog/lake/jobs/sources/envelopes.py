"""Owns files of envelopes: lines read like those of `produce`, so both take and refuse the same.

DuckDB is not used: its JSON accepts a number as text, and text as a number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from txlog.base.text import envelopes, records
from txlog.errors import BadRecord
from txlog.lake.jobs.sources.loads import Files, unpacked

# Members for information are read, as they may be bad, and then dropped.
_OF_MESSAGES: Final = ("value", "key", "properties", "event_time", "deliver_at", "deliver_after")


def envelope_tables(source: Files) -> Iterator[pa.Table]:
    """The messages of a source, in the order of its files.

    raises: BadRecord at the first line that is not an envelope
    """
    for path in source.paths:
        try:
            for table in _of_file(path):
                yield table.select([name for name in _OF_MESSAGES if name in table.column_names])
        except BadRecord as error:
            if "path" not in error.fields:
                error.message = f"{path}: {error.message}"
                error.fields["path"] = path
            raise


def _of_file(path: str) -> Iterator[pa.Table]:
    for part in records.split_records(unpacked(path), b"\n", 1):
        assert part is not None
        texts, first, _ = part
        lines = pa.arange(first, first + len(texts))
        clean = envelopes.clean(lines, texts)
        if clean is None:
            columns_held = records.Columns()
            for line, record in zip(lines.to_pylist(), texts.to_pylist(), strict=True):
                envelopes.envelope_row(columns_held, line, record)
            clean = columns_held.table()
        yield clean

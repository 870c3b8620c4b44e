"""Owns files of envelopes: lines read as `produce` reads them, so both take and refuse the same.

DuckDB has no part in it: its JSON takes a number for text, and text for a number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from txlog.base.text import envelopes, records
from txlog.errors import BadRecord
from txlog.lake.jobs.sources.loads import Files, unpacked

# What comes along for information is read, as it may be bad, and left out.
_OF_MESSAGES: Final = ("value", "key", "properties", "event_time", "deliver_at", "deliver_after")


def envelope_tables(source: Files) -> Iterator[pa.Table]:
    """The messages of a source, in the order of its files.

    raises: BadRecord at the first line that is no envelope
    """
    for path in source.paths:
        try:
            for table in _of_file(path):
                yield table.select([one for one in _OF_MESSAGES if one in table.column_names])
        except BadRecord as error:
            if "path" not in error.fields:
                error.message = f"{path}: {error.message}"
                error.fields["path"] = path
            raise


def _of_file(path: str) -> Iterator[pa.Table]:
    for part in records.split_records(unpacked(path), b"\n", 1):
        assert part is not None
        found, first, _ = part
        lines = pa.arange(first, first + len(found))
        clean = envelopes.clean(lines, found)
        if clean is None:
            held = records.Columns()
            for line, record in zip(lines.to_pylist(), found.to_pylist(), strict=True):
                envelopes.envelope_row(held, line, record)
            clean = held.table()
        yield clean

"""Owns files of envelopes: lines read as `produce` reads them, so both take and refuse the same.

DuckDB has no part in it: its JSON takes a number for text, and text for a number.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa

from txlog.engine.storage.disk.protocol import is_of_handler
from txlog.errors import BadRecord
from txlog.jobs.sources.loads import Files
from txlog.text import envelopes, records

_BLOCK_BYTES: Final = 1 << 20
_PACKED: Final = {".gz": "gzip", ".zst": "zstd"}
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
            error.message = f"{path}: {error.message}"
            error.fields["path"] = path
            raise


def _of_file(path: str) -> Iterator[pa.Table]:
    for part in records.split_records(_blocks(path), b"\n", 1):
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


def _blocks(path: str) -> Iterator[bytes | None]:
    packed = _PACKED.get(Path(path).suffix)
    with Path(path).open("rb") as file:
        if packed is None:
            while block := file.read(_BLOCK_BYTES):
                yield block
            return
        try:
            with pa.CompressedInputStream(file, packed) as unpacked:
                while block := unpacked.read(_BLOCK_BYTES):
                    yield block
        except (OSError, pa.ArrowException) as error:
            if is_of_handler(error):
                raise
            raise BadRecord(str(error)) from error

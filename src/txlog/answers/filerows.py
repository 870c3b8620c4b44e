"""Owns what a file is as rows: of Arrow, journals and manifests, the frames and files they name.

A Parquet file is read by DuckDB itself; of it there are its columns and row groups, as the footer
has them. Nothing is compared with a manifest here: the file may be of any store, or of none.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from txlog.answers.lists import frame_rows
from txlog.engine.storage.checked import said_by_arrow
from txlog.engine.storage.segment import arrow_module
from txlog.engine.upkeep.checkpoint.dump import journal_frames, manifest_files
from txlog.errors import Corruption, InvalidArgument

Answer = dict[str, Any]
_LINE_BYTES = 16


def is_parquet(path: str) -> bool:
    """True for a Parquet file, by its first bytes."""
    with Path(path).open("rb") as file:
        return file.read(4) == b"PAR1"


def rows_of(path: str) -> pa.Table:
    """The rows of an Arrow file, the frames of a journal, the files that a manifest names.

    raises: InvalidArgument for a file that has no rows; Corruption
    """
    data = Path(path).read_bytes()
    try:
        if data.startswith(b"ARROW1"):
            with pa.ipc.open_file(pa.BufferReader(data)) as reader:
                return reader.read_all()
        if data.startswith(b"TXLOGMAN"):
            return pa.Table.from_pylist(manifest_files(data))
    except (pa.ArrowException, OSError, ValueError) as exc:
        raise Corruption(
            f"{path} cannot be read: {said_by_arrow(exc)}", path=path, offset=0
        ) from exc
    if data.startswith(b"TXLOGJNL"):
        return frame_rows(journal_frames(data)[0], None)
    raise InvalidArgument(f"{path} has no rows", path=path)


def columns_of(path: str) -> list[Answer]:
    """The columns of a Parquet file: their size and, of those with statistics, the bounds."""
    footer = arrow_module("pyarrow.parquet").read_metadata(path)
    out: list[Answer] = []
    for number in range(footer.num_columns):
        pieces = [footer.row_group(at).column(number) for at in range(footer.num_row_groups)]
        known = [piece.statistics for piece in pieces if piece.is_stats_set]
        bounds = [of for of in known if of.has_min_max]
        column = footer.schema.column(number)
        out.append(
            {
                "name": column.path,
                "type": column.physical_type.lower(),
                "codec": pieces[0].compression.lower() if pieces else None,
                "size_bytes": sum(piece.total_compressed_size for piece in pieces),
                "raw_bytes": sum(piece.total_uncompressed_size for piece in pieces),
                "values": sum(piece.num_values for piece in pieces),
                "nulls": sum(of.null_count for of in known) if known else None,
                "min": min((of.min for of in bounds), default=None),
                "max": max((of.max for of in bounds), default=None),
            }
        )
    return out


def groups_of(path: str) -> list[Answer]:
    """The row groups of a Parquet file, with the least and greatest entry of each."""
    footer = arrow_module("pyarrow.parquet").read_metadata(path)
    names = [footer.schema.column(at).path for at in range(footer.num_columns)]
    return [
        _group(number, footer.row_group(number), names) for number in range(footer.num_row_groups)
    ]


def _group(number: int, group: Any, names: list[str]) -> Answer:
    known = None
    if "entry" in names:
        known = group.column(names.index("entry")).statistics
    bounds = known if known is not None and known.has_min_max else None
    columns = [group.column(at) for at in range(group.num_columns)]
    return {
        "row_group": number, "rows": group.num_rows,
        "size_bytes": sum(column.total_compressed_size for column in columns),
        "raw_bytes": group.total_byte_size,
        "first_entry": None if bounds is None else bounds.min,
        "last_entry": None if bounds is None else bounds.max,
    }  # fmt: skip


def hexdump(path: str, offset: int, length: int) -> Iterator[str]:
    """Bytes of a file, sixteen a line: where, in hex, as ASCII."""
    with Path(path).open("rb") as file:
        file.seek(offset)
        while length > 0:
            data = file.read(min(_LINE_BYTES, length))
            if not data:
                return
            text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)
            yield f"{offset:08x}  {data[:8].hex(' '):23}  {data[8:].hex(' '):23}  {text}\n"
            offset, length = offset + len(data), length - len(data)

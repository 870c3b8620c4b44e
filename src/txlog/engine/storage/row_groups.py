"""Owns the row groups of a Parquet file that a user gets: how many rows are one.

Rows that wait for their group are in memory, and so is what pyarrow's writer keeps of each group
until the file ends: 16 KB for seventeen columns, 27 with a page index, and more when it ends. So
the first 256 groups are of 8 MB, and those that a longer file has after them of 12.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

ROWS_MAX: Final = 1 << 20
BYTES_FIRST, BYTES_MAX = 8 << 20, 12 << 20
GROUPS_OF_A_SIZE: Final = 256
# Of a column with many values, a group of these bytes would be looked up in a dictionary for most
# of its rows before the writer gives that up.
DICTIONARY_BYTES: Final = 256 << 10


def gathered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Tables that come one after another, as many together as make a row group; none is empty."""
    waiting: list[pa.Table] = []
    rows = size = groups = 0
    for table in tables:
        if not table.num_rows:
            continue
        waiting.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        del table  # what is written is not to wait for what comes next
        if rows >= ROWS_MAX or size >= _most(groups):
            together, waiting, rows, size = pa.concat_tables(waiting), [], 0, 0
            groups += 1
            yield together
            del together
    if waiting:
        yield pa.concat_tables(waiting)


def _most(groups: int) -> int:
    """The bytes that make a row group, after so many of them."""
    return min(BYTES_FIRST << (groups // GROUPS_OF_A_SIZE), BYTES_MAX)

"""Owns the row groups of Parquet files written for users: how many rows form one.

Rows that wait for their group are in memory. pyarrow's writer also keeps data of each group until
the file ends: 16 KB for seventeen columns, 27 with a page index, and more when it ends. So the
first 256 groups have 8 MB each, and the later groups of a longer file 12.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

ROWS_MAX: Final = 1 << 20
BYTES_FIRST, BYTES_MAX = 8 << 20, 12 << 20
GROUPS_OF_A_SIZE: Final = 256
# The limit of a dictionary. With a larger one, the writer would look up most rows of a group in it
# before it gives up, for a column with many values.
DICTIONARY_BYTES: Final = 256 << 10


def gathered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Join consecutive tables until they make a row group; none is empty."""
    waiting: list[pa.Table] = []
    rows = size = groups = 0
    for table in tables:
        if not table.num_rows:
            continue
        waiting.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        del table  # the caller must not keep written rows while it waits for the next table
        if rows >= ROWS_MAX or size >= _most(groups):
            together, waiting, rows, size = pa.concat_tables(waiting), [], 0, 0
            groups += 1
            yield together
            del together
    if waiting:
        yield pa.concat_tables(waiting)


def _most(groups: int) -> int:
    """The bytes that make a row group, after this many groups."""
    return min(BYTES_FIRST << (groups // GROUPS_OF_A_SIZE), BYTES_MAX)

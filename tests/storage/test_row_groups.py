"""Row groups of a user's file: how many rows a group collects, and how much memory it needs."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from txlog.engine.storage import segment
from txlog.engine.storage.segment import gathered


def tables(count: int, rows: int = 10) -> Iterator[pa.Table]:
    """So many tables, of eight bytes a row."""
    for at in range(count):
        yield pa.table({"n": pa.array([at] * rows, pa.int64())})


def sizes(count: int) -> list[int]:
    return [group.num_rows for group in gathered(tables(count))]


def test_groups_grow_with_the_file_and_not_beyond_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: groups of one size, too many for a long file or too large for a short one."""
    monkeypatch.setattr(segment, "BYTES_FIRST", 160)  # two tables
    monkeypatch.setattr(segment, "BYTES_MAX", 640)
    monkeypatch.setattr(segment, "GROUPS_OF_A_SIZE", 3)
    assert sizes(45) == [20] * 3 + [40] * 3 + [80] * 3 + [30]
    assert sizes(61) == [20] * 3 + [40] * 3 + [80] * 5 + [30]
    whole = pa.concat_tables(tables(61))
    assert pa.concat_tables(gathered(tables(61))).equals(whole)


def test_a_group_has_so_many_rows_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "ROWS_MAX", 25)
    assert sizes(7) == [30, 30, 10]
    empty = pa.table({"n": pa.array([], pa.int64())})
    assert list(gathered([empty, empty])) == []

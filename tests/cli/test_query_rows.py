"""Rows of a query formatted by columns equal, byte for byte, rows formatted value by value."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.text import one_by_one
from tests.text.random_messages import BYTES, JSON, TEXTS
from txlog.base.text import columns
from txlog.cli.line.command import Command
from txlog.cli.output.output import Output
from txlog.cli.output.query_rows import Printed, values, write_out
from txlog.cli.terminal.tables import Look

LOOK = Look(human=False, color=False, utc=True, width=0)
SEEDS = range(40)
_NUMBERS = (0, -1, 7, (1 << 31) - 1, -(1 << 31))
_US = (
    0, -1, 1, 999, 1000, -1000, 1_795_165_924_117_000, 1_795_165_924_117_001, (1 << 63) - 1,
    -((1 << 63) - 1), 253_402_300_799_999_999, 253_402_300_800_000_000, -62_135_596_800_000_000,
    -62_135_596_800_000_001,
)  # fmt: skip
_PROPERTIES = pa.map_(pa.string(), pa.string())
Make = Callable[[random.Random], Any]
KINDS: list[tuple[pa.DataType, Make]] = [
    (pa.int32(), lambda rng: rng.choice(_NUMBERS)),
    (pa.uint64(), lambda rng: rng.choice([0, (1 << 64) - 1])),
    (pa.bool_(), lambda rng: rng.random() < 0.5),
    (pa.string(), lambda rng: rng.choice(TEXTS)),
    (pa.large_string(), lambda rng: rng.choice(TEXTS)),
    (pa.dictionary(pa.int8(), pa.string()), lambda rng: rng.choice(TEXTS)),
    (pa.binary(), lambda rng: rng.choice([*JSON, *(text.encode() for text in TEXTS)])),
    (pa.binary(), lambda rng: rng.choice([*BYTES, b"text"])),
    (pa.timestamp("us", "UTC"), lambda rng: rng.choice(_US)),
    (pa.timestamp("us"), lambda rng: rng.choice(_US[:8])),
    (pa.timestamp("ns"), lambda rng: rng.choice(_US[:6])),
    (pa.timestamp("ms", "UTC"), lambda rng: rng.choice(_US) // 1000),
    (pa.timestamp("s"), lambda rng: rng.choice(_US[:6])),
    (pa.timestamp("us", "Europe/Rome"), lambda rng: rng.choice(_US[:8])),
    (pa.decimal128(38, 0), lambda rng: Decimal(rng.choice([0, -5, 10**37]))),
    (pa.decimal128(20, 9), lambda rng: Decimal(rng.choice([0, 1, -10**10])).scaleb(-9)),
    (pa.float64(), lambda rng: rng.choice([0.0, -0.0, 1e300, 1.5, 1e-7, float("inf"), 2.0])),
    (pa.date32(), lambda rng: date(rng.choice([1, 1970, 9999]), 12, 31)),
    (pa.time64("us"), lambda rng: time(1, 2, 3, rng.choice([0, 5]))),
    (pa.duration("us"), lambda rng: timedelta(seconds=rng.randrange(9))),
    (pa.list_(pa.int32()), lambda rng: rng.choices(_NUMBERS, k=rng.randrange(3))),
    (pa.list_(pa.binary()), lambda rng: [rng.choice(BYTES)]),
    (pa.struct([("a", pa.string()), ("b", pa.float32())]), lambda rng: {"a": rng.choice(TEXTS)}),
    (_PROPERTIES, lambda rng: [(rng.choice(TEXTS), rng.choice([*TEXTS, None])) for _ in range(3)]),
    (pa.map_(pa.int32(), pa.string()), lambda rng: [(1, rng.choice(TEXTS))]),
    (pa.null(), lambda rng: None),
]  # fmt: skip


class Sink:
    """Collects the output for stdout."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes | memoryview) -> None:
        """Add data."""
        self.data += data


def random_batch(rng: random.Random, rows: int) -> pa.RecordBatch:
    """Some columns of any kind, with and without nulls; it may not begin at 0."""
    arrays = []
    for kind, make in rng.sample(KINDS, rng.randrange(1, 5)):
        null = rng.choice([0, 0.3, 1])
        values = [None if rng.random() < null else make(rng) for _ in range(rows)]
        arrays.append(pa.array(values, kind))
    names = [f'c{at}"é' for at in range(len(arrays))]
    return pa.RecordBatch.from_arrays(arrays, names).slice(rng.randrange(2))


def printed(form: str, batches: list[pa.RecordBatch], chosen: list[str]) -> bytes:
    """The rows as they are printed on stdout."""
    output, sink = Output(form, Command("query", "", print), LOOK), Sink()
    output.out = sink  # type: ignore[assignment]
    count = Printed(output, chosen).print((batches[0].schema, iter(batches)))
    assert count == sum(batch.num_rows for batch in batches)
    return sink.data


def expected(form: str, batches: list[pa.RecordBatch], chosen: list[str]) -> bytes:
    """The same rows, formatted value by value."""
    names = batches[0].schema.names
    found = [dict(zip(names, row, strict=True)) for batch in batches for row in values(batch)]
    rows = [{name: row[name] for name in chosen or names} for row in found]
    if form in ("json", "ndjson"):
        lines = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows]
        text = f"[{','.join(lines)}]\n" if form == "json" else "".join(f"{one}\n" for one in lines)
        return text.encode()
    line = one_by_one.csv_line if form == "csv" else one_by_one.tsv_line
    columns = (chosen or names)[:1] if form == "names" else chosen or names
    cells = [[one_by_one.cell(row[name]) for name in columns] for row in rows]
    return "".join(map(line, [columns, *cells][form == "names" :])).encode()


def check(seed: int) -> None:
    """All forms of some random rows, in several batches."""
    rng = random.Random(seed)
    whole = random_batch(rng, rng.choice([1, 3, 20]))
    cut = rng.randrange(whole.num_rows + 1)
    batches = [whole.slice(0, cut), whole.slice(cut)]
    names = whole.schema.names
    chosen = rng.sample(names, rng.randrange(1, len(names) + 1)) if rng.random() < 0.3 else []
    for form in ("json", "ndjson", "tsv", "csv", "names"):
        output = printed(form, batches, chosen)
        assert output == expected(form, batches, chosen), f"seed {seed}, {form}, {whole.schema}"


def test_rows_match_formatting_value_by_value() -> None:
    """spec/cli 4: every type that DuckDB gives, and others."""
    for seed in SEEDS:
        check(seed)


def test_rows_that_are_cut_and_large_columns_give_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch of large values is made in pieces, and its columns are wide."""
    monkeypatch.setattr(columns, "_PIECE_BYTES", 64)
    monkeypatch.setattr(columns, "_LARGE_BYTES", 0)
    for seed in SEEDS:
        check(seed)


@pytest.mark.slow
def test_more_rows() -> None:
    """The same for a thousand other tables."""
    for seed in range(1000, 2000):
        check(seed)


def test_a_file_of_rows_has_groups_of_many_batches(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int64()), ("text", pa.string())])
    batches = [
        pa.record_batch([pa.array([at, None]), pa.array([str(at), "x"])], schema)
        for at in range(300)
    ]
    batches.insert(7, batches[0].slice(0, 0))
    path = tmp_path / "rows.parquet"
    assert write_out(str(path), (schema, iter(batches)), force=False) == 600
    assert pq.read_metadata(path).num_row_groups == 1
    assert pq.read_table(path).equals(pa.Table.from_batches(batches))
    assert write_out(str(path), (schema, iter(())), force=True) == 0
    assert pq.read_table(path).schema.equals(schema)


def test_a_file_of_narrow_rows_has_no_small_groups(tmp_path: Path) -> None:
    """Kills: a small last group, as Parquet's writer cuts each table at a million rows."""
    schema = pa.schema([("n", pa.int8())])
    batch = pa.record_batch([pa.array([1] * 10_240, pa.int8())], schema)
    path = tmp_path / "rows.parquet"
    assert write_out(str(path), (schema, iter([batch] * 110)), force=False) == 110 * 10_240
    metadata = pq.read_metadata(path)
    assert [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)] == [
        103 * 10_240,  # the first rows that are a million together
        7 * 10_240,
    ]


FAR: dict[str, tuple[pa.Array, list[object]]] = {
    "dates": (
        pa.array([0, 2**31 - 1, -(2**31) + 1, 2_932_897, None], pa.int32()).cast(pa.date32()),
        ["1970-01-01", "infinity", "-infinity", "253402300800000", None],
    ),
    "instants in a list": (
        pa.array([[0, (1 << 63) - 1]]).cast(pa.list_(pa.timestamp("us"))),
        [["1970-01-01T00:00:00.000", "infinity"]],
    ),
    "seconds": (pa.array([1 << 40]).cast(pa.timestamp("s")), ["1099511627776000"]),
    "intervals": (
        pa.array(
            [(14, -3, 3_723_500_000_000), (-14, 0, 0), (0, 0, -(10**9)), (0, 0, 0), (0, 1, 1_000)],
            pa.month_day_nano_interval(),
        ),
        [
            *("1 year 2 months -3 days 01:02:03.5", "-1 year -2 months", "-00:00:01"),
            *("00:00:00", "1 day 00:00:00.000001"),
        ],
    ),
    "times": (pa.array([43_200_123_456_789]).cast(pa.time64("ns")), ["12:00:00.123456"]),
}


@pytest.mark.parametrize("name", FAR)
def test_values_without_a_python_type_are_text(name: str) -> None:
    """Dates and instants outside the years 1 to 9999, at any depth; intervals as in DuckDB."""
    column, expected = FAR[name]
    structs = pa.StructArray.from_arrays([column], ["x"])
    batch = pa.record_batch([column, structs], ["v", "s"])
    assert values(batch) == [[value, {"x": value}] for value in expected]

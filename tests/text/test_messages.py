"""Records made of columns are, byte for byte, those made one message after the other."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from tests.text import one_by_one
from tests.text.random_messages import random_table
from txlog.base.settings import INSTANT_MS_MAX
from txlog.base.text import columns
from txlog.base.times import INSTANT_MS_MIN, format_time, parse_stored
from txlog.cli.output import records
from txlog.cli.output.records import Records
from txlog.cli.terminal.tables import Look
from txlog.errors import InvalidArgument

LOOK = Look(human=False, color=False, utc=True, width=0)
SEEDS = range(25)


def check_records(seed: int) -> None:
    """All formats of one random table."""
    rng = random.Random(seed)
    table = random_table(rng, rng.choice([1, 2, 7, 30]))
    rows = one_by_one.rows_of(table)
    names = rng.sample(one_by_one.FIELDS, rng.randrange(1, 6)) if rng.random() < 0.5 else None
    all_names = names or one_by_one.FIELDS
    for form, raw in [("json", False), ("ndjson", True)]:
        expected = [one_by_one.json_line(row, all_names, embed=not raw) for row in rows]
        assert _encoded(form, names, table, raw_strings=raw) == b"".join(expected), f"seed {seed}"
    columns = names or [name for name in one_by_one.FIELDS if name != "record"]
    for form in ("tsv", "csv"):  # no topic here has fields
        expected = [one_by_one.delimited(form, row, columns) for row in rows]
        assert _encoded(form, names, table) == b"".join(expected), f"seed {seed}, {form}"
    expected = [one_by_one.envelope(row) for row in rows]
    assert _encoded("envelope", None, table) == b"".join(expected), f"seed {seed}"
    for form, end in (("raw", b""), ("lines", b"\n")):
        values = [row["value"] for row in rows]
        shown = [(value or b"") + end for value in values]
        assert _encoded(form, None, table) == b"".join(shown), f"seed {seed}, {form}"


def check_formats(seed: int) -> None:
    """A random %-format of one random table, in two calls."""
    rng = random.Random(seed)
    table = random_table(rng, rng.choice([2, 7, 30]))
    watermark = rng.choice([None, 1_795_165_924_117])
    for _ in range(4):
        verbs = rng.sample(sorted(one_by_one.VERBS), rng.randrange(1, 6))
        formatter = Records("".join(["%%", *verbs]), None, look=LOOK, watermarks=True)
        formatter.watermark = watermark
        half = len(table) // 2
        formatted = formatter.encode(table.slice(0, half)) + formatter.encode(table.slice(half))
        expected = b""
        for number, row in enumerate(one_by_one.rows_of(table)):
            row |= {"number": number, "watermark": watermark}
            expected += b"%" + b"".join(one_by_one.VERBS[verb](row) for verb in verbs)
        assert formatted == expected, f"seed {seed}, {verbs}"
        assert formatter.count == len(table)


def _encoded(
    form: str, names: list[str] | None, table: pa.Table, *, raw_strings: bool = False
) -> bytes:
    return Records(form, names, raw_strings=raw_strings, look=LOOK).encode(table)


def test_records_match_those_made_one_by_one() -> None:
    """spec/cli 7; rows with nulls, bytes that are not text, control characters, far instants."""
    for seed in SEEDS:
        check_records(seed)


def test_formats_of_columns_match_formats_of_rows() -> None:
    """spec/cli 7: every verb, with and without options."""
    for seed in SEEDS:
        check_formats(seed)


@pytest.mark.slow
def test_more_tables() -> None:
    """The same of a thousand others."""
    for seed in range(1000, 2000):
        check_records(seed)
        check_formats(seed)


def test_a_table_that_is_cut_and_large_columns_give_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch of large messages is made in pieces, and the columns of a large one are wide."""
    monkeypatch.setattr(columns, "_PIECE_BYTES", 64)
    monkeypatch.setattr(columns, "_LARGE_BYTES", 0)
    monkeypatch.setattr(records, "_LARGE_BYTES", 300)
    for seed in SEEDS[:5]:
        check_records(seed)
        check_formats(seed)


def test_an_embedded_value_is_checked_by_itself() -> None:
    """Two values that are JSON only when joined stay text: no value affects another one."""
    values = [b"[1", b"2]", b'{"a":1', b'"b":2}', b"{}],[{}", b'{"a":1}']
    rows = [{"topic": "t", "partition": 0, "value": value} for value in values]
    table = pa.Table.from_pylist(rows, schema=random_table(random.Random(1), 1).schema)
    lines = _encoded("json", ["value_encoding"], table).split()
    assert [line.split(b":")[1] for line in lines] == [b'"utf8"}'] * 5 + [b'"json"}']


def test_text_is_read_as_instants_as_the_parser_does() -> None:
    """spec/cli 3: the fast path reads common forms, and leaves other text to the parser."""
    converted = 0
    for seed in range(1_000):
        rng = random.Random(seed)
        make_text = rng.choice([_instant, _other_instant, _number])
        texts = [make_text(rng) for _ in range(rng.choice([1, 2, 5]))]
        try:
            parsed = [parse_stored(text, 0) for text in texts]
        except InvalidArgument:
            parsed = []
        nulls = [None] * rng.randrange(2)
        instants = columns.from_instants(pa.array([*texts, *nulls], pa.string()))
        assert parsed or instants is None, f"seed {seed}: {texts}"
        if instants is not None:
            assert instants.to_pylist() == [*parsed, *nulls], f"seed {seed}: {texts}"
            converted += 1
    assert converted > 350


@pytest.mark.parametrize(
    "texts",
    [
        ["1795165924", "1795165925"],
        ["1795165924117", None],
        ["17951659", "123456789", "1234567890", "12345678901"],
        ["2026-11-20T09:12:04Z", "2026-11-20 09:12:04.123456+01:00", "2026-11-20T09:12-00:30"],
        ["1969-12-31T23:59:59.999999Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999Z"],
    ],
)
def test_instants_as_programs_write_them_need_no_parser(texts: list[str | None]) -> None:
    instants = columns.from_instants(pa.array(texts, pa.string()))
    assert instants is not None
    expected = [None if text is None else parse_stored(text, 0) for text in texts]
    assert instants.to_pylist() == expected


def _number(rng: random.Random) -> str:
    digits = rng.choice([1, 8, 9, 10, 11, 13, 13, 14, 15, 16, 19])
    text = str(rng.randrange(10 ** (digits - 1), 10**digits))
    return rng.choice(["", "", "", "", "0", "-", "+", " "]) + text


def _other_instant(rng: random.Random) -> str:
    """An instant as other programs write it, or nearly so."""
    text = format_time(rng.randrange(2_000_000_000_000))[:-1]
    text = rng.choice([text, text + "999", text + "999999", text[:-4], text[:-7], text[:10]])
    text += rng.choice(["Z", "+00:00", "-09:30", "+23:59"])
    if rng.random() < 0.1:
        text += rng.choice(["", " ", "Z", "0"])
    if rng.random() < 0.5:
        text = text.replace("T", " ")
    return text


def _instant(rng: random.Random) -> str:
    """An instant as we write it, or nearly so."""
    near = rng.randrange(2_000_000_000_000)
    text = format_time(rng.choice([near, near, near, INSTANT_MS_MIN, INSTANT_MS_MAX]))
    if rng.random() < 0.2:
        at = rng.choice([10, 10, 19, 23, rng.randrange(len(text))])
        text = text[:at] + rng.choice([*"0369- T:.Z+/", "", "é"]) + text[at + rng.randrange(2) :]
    return text

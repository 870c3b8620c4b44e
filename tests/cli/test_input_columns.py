"""Clean blocks of input give the same rows by columns as record by record."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.text.random_messages import TEXTS, random_table
from tests.tiers import graded
from txlog.base.text import envelopes, records
from txlog.cli.input import columns
from txlog.cli.input.inputs import Input
from txlog.cli.output.records import Records
from txlog.cli.terminal.tables import Look
from txlog.errors import BadRecord

LOOK = Look(human=False, color=False, utc=True, width=0)
NOW_MS = 1_795_165_924_117
FORMATS = (
    "%k:%v\\n", "%v\\0", "%k|%t|%v\\n", "%P %v--\\n", "%k %v\\r\\n", "%d{event},%p %v\\r\\n",
    "%v--", "%d{event}{rfc3339} %d{deliver}|%q:%k=%v\\n",
    "%P,%t,%d{deliver}{rfc3339},%v\\x01\\n",
)  # fmt: skip
HEADERS = (
    ["value"], ["key", "value"], ["key", "value", "prop.a", "prop.b"], ["value", "event_time"],
    ["value", "deliver_at", "deliver_after", "prop.x"], ["a", "b"], ["a", "a"], ["value", "zzz"],
    ["x", "key", "prop.q"],
)  # fmt: skip
# Replacements that make an envelope bad, or unlike those that txlog writes.
CHANGES = (
    (b'"utf8"', b'"json"'), (b"null", b"1.0"), (b"null", b"5"), (b'"key"', b'"other"'),
    (b'{"key"', b'{"key":"z","key"'), (b"}\n", b"}}\n"), (b"}\n", b"}\n\n"), (b"null", b"true"),
    (b'"properties":{', b'"properties":{"a":1,'), (b'"base64"', b'"utf8"'), (b"null", b'"x"'),
    (b'"partition":0', b'"partition":-1'), (b'"partition":0', b'"partition":01'), (b"\n", b" \n"),
    (b'"value":"', b'"value":"\\ud800'), (b'"value":"', b'"value":"\\q'), (b"null", b"1E0"),
    (b'"value":"', b'"value":"\x01'), (b'"value":"', b'"value":"\xff'), (b"null", b"NaN"),
    (b'"topic":"', b'"topic":"\\ud800'), (b'"topic":"orders"', b'"topic":{"a":["\\ud800"]}'),
    (b"{", b"\xef\xbb\xbf{"), (b"null", b"1e400"), (b"null", b"99999999999999999999"),
    (b"null", b"-0"), (b'"event_time":', b'"deliver_after":7,"event_time":'), (b"{", b"["),
    (b'"deliver_at":null', b'"deliver_at":3'), (b'"a"', b'"a\\u0062"'),
)  # fmt: skip


def random_input(rng: random.Random) -> tuple[str, bytes]:
    """A format, and random input in it, which may be malformed."""
    form = rng.choice(["envelope", "tsv", "csv", *FORMATS])
    if form in ("tsv", "csv"):
        return form, _delimited(rng, "\t" if form == "tsv" else ",")
    table = random_table(rng, rng.choice([1, 3, 9]))
    data = Records(form, None, look=LOOK).encode(table)
    if form == "envelope" and rng.random() < 0.5:
        data = data.replace(*rng.choice(CHANGES), rng.choice([1, 5]))
    elif form != "envelope" and rng.random() < 0.3:
        data += rng.choice([b"x", b":", b"a:b", b"\n"])
    return form, data


def _delimited(rng: random.Random, between: str) -> bytes:
    header = rng.choice(HEADERS)
    plain = [text for text in TEXTS if "\n" not in text and between not in text]
    texts = rng.choice([["a", "b", "", "é"], plain, ["a", "\\t", "\\\\n", "\\", "\0\\t"]])
    times = ["", "0", "2020-01-01", "1795165924117", *(["bad"] if rng.random() < 0.2 else [])]
    words = {"event_time": times, "deliver_at": times, "deliver_after": ["", "", "5s", "1h30m"]}
    lines = [header]
    for _ in range(rng.randrange(8)):
        lines.append([rng.choice(words.get(name, texts)) for name in header])
    if rng.random() < 0.1:
        lines[-1] = [*lines[-1], "x"]
    data = ("\n".join(map(between.join, lines)) + rng.choice(["\n", "\n", ""])).encode()
    if between == "," and rng.random() < 0.6:
        data = _quoted(rng, lines)
    changed = rng.random()
    if changed < 0.1:
        return b"\xef\xbb\xbf" + data
    return data.replace(b"a", b"\xff", 1) if changed < 0.15 else data


def _quoted(rng: random.Random, lines: list[list[str]]) -> bytes:
    """A cell as a writer of csv writes it, perhaps with a random change."""
    text = io.StringIO()
    ends = rng.choice(["\n", "\r\n"])
    writer = csv.writer(text, lineterminator=ends)
    if rng.random() < 0.3:
        writer = csv.writer(text, lineterminator=ends, quoting=csv.QUOTE_ALL)
    for line in lines:
        cells = [rng.choice([cell, cell, f"{cell}\n", f'"{cell}', ",\r\n", "\r"]) for cell in line]
        writer.writerow(line if line is lines[0] or rng.random() < 0.5 else cells)
        text.write(ends if rng.random() < 0.1 else "")
    data = text.getvalue().encode()
    at = rng.randrange(len(data))
    if rng.random() < 0.3:
        put = rng.choice([b'"', b"\r", b"\n", b",", b"", b'""', b"\xef\xbb\xbf"])
        data = data[:at] + put + data[at + rng.randrange(2) :]
    return data


def read(form: str, blocks: list[bytes | None], *, skip_bad: bool) -> tuple[Any, ...]:
    """Read blocks; returns records, final error, warnings, skipped records and the last line."""
    warnings: list[str] = []
    source = Input(form, [], skip_bad=skip_bad, now_ms=NOW_MS, warn=warnings.append)
    rows: list[dict[str, Any]] = []
    failure = None
    try:
        for table in source._of(iter(blocks)):
            rows += [] if table is None else _listed(table)
    except BadRecord as error:
        failure = str(error)
    return rows, failure, warnings, source.skipped, source.line


def _listed(table: pa.Table) -> Iterator[dict[str, Any]]:
    kinds = [
        pa.int64() if pa.types.is_timestamp(field.type) else field.type for field in table.schema
    ]
    listed = pa.table(dict(zip(table.column_names, table.columns, strict=True)))
    listed = listed.cast(pa.schema(zip(table.column_names, kinds, strict=True)))
    for row in listed.to_pylist():
        yield {name: value for name, value in row.items() if value is not None}


def check(seed: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Read a random input in random pieces both ways; returns whether columns read a block."""
    rng = random.Random(seed)
    form, data = random_input(rng)
    cuts = sorted({rng.randrange(len(data) + 1) for _ in range(rng.choice([0, 0, 1, 3]))})
    blocks: list[bytes | None] = []
    for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True):
        blocks += [data[start:stop]] if stop > start else []
        blocks += [None] if rng.random() < 0.2 else []
    skip_bad = rng.random() < 0.4
    by_columns = read(form, blocks, skip_bad=skip_bad)
    with monkeypatch.context() as patch:
        patch.setattr(envelopes, "clean", lambda lines, records: None)
        patch.setattr(columns, "cut", lambda data, fields, line: None)
        patch.setattr(columns.Delimited, "messages", lambda self, data: None)
        rows, *by_lines = read(form, blocks, skip_bad=skip_bad)
    if by_lines[0] is not None:  # records before an error, in the same batch, may be missing
        assert by_columns[0][: len(rows)] == rows, f"seed {seed}, {form}"
        by_lines[-1] = by_columns[-1]
    else:
        assert by_columns[0] == rows, f"seed {seed}, {form}"
    assert [*by_columns[1:]] == by_lines, f"seed {seed}, {form}"
    return bool(rows)


@pytest.mark.parametrize("seeds", graded([range(200), range(200, 900)], 1), ids=len)
def test_clean_blocks_give_the_records_of_single_lines(
    monkeypatch: pytest.MonkeyPatch, seeds: range
) -> None:
    """spec/cli 7; with bytes of all kinds, bad records, pauses and cuts anywhere."""
    assert sum(check(seed, monkeypatch) for seed in seeds) > len(seeds) // 2


@pytest.mark.parametrize(
    ("form", "data"),
    [
        ("%p %v\\n", b"1 a\n-1 b\n"), ("%p %v\\n", b"1 a\n2147483648 b\n"),
        ("%q %v\\n", b"9223372036854775807 a\n9223372036854775808 b\n"),
        ("%q %v\\n", b" a\n+1 b\n"), ("%k\\n%v\\n", b"a\nb\nc\nd\n"), ("%k-%v--", b"a--b--c-d--"),
        ("%k\\r%v\\r\\n", b"a\rb\r\nc\rd\r\r\n"),
        ("%d{event} %v\\n", b"1795165924 a\n-9223372036854775808 b\n"),
        ("%d{deliver}{rfc3339} %v\\n", b"1795165924 a\nnow b\n"),
    ],
)  # fmt: skip
def test_a_format_means_the_same_by_columns(
    form: str, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_columns = read(form, [data], skip_bad=False)
    monkeypatch.setattr(columns, "cut", lambda data, fields, line: None)
    assert by_columns == read(form, [data], skip_bad=False)


@pytest.mark.slow
def test_more_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for some thousand other inputs."""
    for seed in range(1000, 5000):
        check(seed, monkeypatch)


@pytest.mark.parametrize(
    ("form", "data", "lines"),
    [
        ("tsv", b"key\tvalue\tprop.a\tevent_time\nk\ta\\tb\tx\t0\n\tc\t\t\n", [2, 3]),
        ("csv", b"key,value,prop.a,event_time\nk,a b,x,0\n,c,,\n", [2, 3]),
        ("csv", b"a,b\n1,2\n", [2]),
        ("csv", b'"a",b\r\n"1\n""2""",\r\n\r\n\n3,"\r\n"\r\n', [3, 7]),
    ],
)
def test_clean_input_is_read_by_columns(form: str, data: bytes, lines: list[int]) -> None:
    """Kills: a path by columns that no input takes."""
    read = columns.Delimited(form, 1, NOW_MS).messages(data + b"rest")
    assert read is not None
    assert read[0]["line"].to_pylist() == lines
    assert read[1] == len(data)


def test_output_of_consume_is_read_by_columns() -> None:
    """The same for envelopes, and for a key before its value."""
    table = random_table(random.Random(2), 9)
    lines = Records("envelope", None, look=LOOK).encode(table).splitlines()
    read = envelopes.clean(pa.array(range(len(lines))), pa.array(lines, pa.binary()))
    assert read is not None
    assert read["value"].to_pylist() == table["value"].to_pylist()
    fields = [columns.Field("key", b":"), columns.Field("value", b"\n")]
    cut = columns.cut(b"a:b:c\nd:\ne", fields, 7)
    assert cut is not None
    assert cut[0].to_pylist() == [
        {"line": 7, "value": b"b:c", "key": b"a"},
        {"line": 8, "value": b"", "key": b"d"},
    ]
    assert cut[1] == 9


@pytest.mark.parametrize(
    ("properties", "is_clean"),
    [("{}", True), ("null", True), ('{"a":"b","a":"c"}', True), ('{ "a" : "\\u0000"} ', True),
     ("[]", False), ('{"a":1}', False), ('{"a":null}', False), ('{"a":"\\ud800"}', False),
     ('{"a":{}}', False), ('{"a":"b",}', False), ('{"a":"\t"}', False), ("", False)],
)  # fmt: skip
def test_equal_properties_are_parsed_as_by_single_lines(properties: str, is_clean: bool) -> None:
    """A block reads equal properties once for all its lines, and refuses what one line refuses."""
    line = '{"value":"v","value_encoding":"utf8","properties":%s}'
    lines = [(line % text).encode() for text in (properties, '{"z":"1"}', properties)]
    numbers = pa.array([1, 2, 3], pa.int64())
    clean = envelopes.clean(numbers, pa.array(lines, pa.binary()))
    rows = records.Columns()
    try:
        for number, data in enumerate(lines, 1):
            envelopes.envelope_row(rows, number, data)
    except BadRecord:
        assert clean is None and not is_clean
    else:
        assert is_clean and clean is not None and clean.to_pylist() == rows.table().to_pylist()

"""Bytes in: every input format, the line number of a bad record, and skipped records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from txlog.cli.input import inputs
from txlog.cli.input.inputs import Input
from txlog.cli.output.output import delimited
from txlog.errors import BadRecord, NotFound, TxlogError


def read(tmp_path: Path, form: str, data: bytes, **options: Any) -> tuple[list[Any], Any]:
    """Return the rows read and the error that ended the reading."""
    path = tmp_path / "input"
    path.write_bytes(data)
    rows: list[Any] = []
    try:
        for table in Input(form, [str(path)], **options).tables():
            assert isinstance(table, pa.Table)
            rows.extend(table.to_pylist())
    except TxlogError as error:
        return rows, error
    return rows, None


def values(rows: list[Any]) -> list[bytes]:
    return [row["value"] for row in rows]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\n\nb", [b"a", b"", b"b"]),
        (b"\n", [b""]),
        (b"a\r\n", [b"a\r"]),
        (b"\xff\0\n", [b"\xff\0"]),
    ],
)
def test_lines_are_cut_at_each_newline(tmp_path: Path, data: bytes, expected: list[bytes]) -> None:
    """spec/cli 7: an empty line is an empty message, a carriage return stays."""
    rows, error = read(tmp_path, "lines", data)
    assert error is None
    assert values(rows) == expected
    assert [row["line"] for row in rows] == list(range(1, len(expected) + 1))


def test_a_last_line_without_newline_warns_or_is_bad(tmp_path: Path) -> None:
    """spec/cli 7: with --require-newline it is a bad record."""
    warnings: list[str] = []
    rows, error = read(tmp_path, "lines", b"a\nb", warn=warnings.append)
    assert (values(rows), error, len(warnings)) == ([b"a", b"b"], None, 1)
    rows, error = read(tmp_path, "lines", b"a\nb", require_newline=True)
    assert values(rows) == [b"a"]
    assert isinstance(error, BadRecord)
    assert error.fields["line"] == 2


def test_records_across_blocks_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record may span any number of blocks."""
    monkeypatch.setattr(inputs, "_BLOCK_BYTES", 3)
    data = b"abcdefghij\nk\n\nlmnop"
    rows, _ = read(tmp_path, "lines", data)
    assert values(rows) == data.split(b"\n")
    assert [row["line"] for row in rows] == [1, 2, 3, 4]


def test_null_cuts_at_nul(tmp_path: Path) -> None:
    """spec/cli 7: null."""
    rows, _ = read(tmp_path, "null", b"a\nb\0c\0")
    assert values(rows) == [b"a\nb", b"c"]


def test_raw_is_one_message_a_file(tmp_path: Path) -> None:
    """spec/cli 7: raw."""
    rows, _ = read(tmp_path, "raw", b"a\nb")
    assert values(rows) == [b"a\nb"]


@pytest.mark.parametrize(
    ("data", "good", "line", "word"),
    [
        (b'{"id":1}\n{"id":', 1, 2, "unfinished JSON object"),
        (b"1\n\n", 1, 2, "empty"),
        (b'"a"\nnope\n3\n', 1, 2, "not JSON"),
    ],
)
def test_bad_json_names_its_line(
    tmp_path: Path, data: bytes, good: int, line: int, word: str
) -> None:
    """spec/cli 9: `line 2: unfinished JSON object`; the records before it are read."""
    rows, error = read(tmp_path, "ndjson", data)
    assert len(rows) == good
    assert isinstance(error, BadRecord)
    assert (error.code, error.exit, error.fields["line"]) == (104, 1, line)
    assert word in error.message


def test_skipped_records_are_counted(tmp_path: Path) -> None:
    """--on-error skip leaves bad records out and keeps the numbers of the others."""
    path = tmp_path / "input"
    path.write_bytes(b"1\nx\n2\ny\n3\n")
    source = Input("ndjson", [str(path)], skip_bad=True)
    rows = [row for table in source.tables() if table is not None for row in table.to_pylist()]
    assert [(row["line"], row["value"]) for row in rows] == [(1, b"1"), (3, b"2"), (5, b"3")]
    assert source.skipped == 2


def test_a_key_delimiter_cuts_once(tmp_path: Path) -> None:
    """The key ends at the first delimiter; a record without a delimiter is bad."""
    rows, error = read(tmp_path, "lines", b"a=1=2\n=x\nb\nc=3\n", key_delimiter=b"=")
    assert [(row["key"], row["value"]) for row in rows] == [(b"a", b"1=2"), (b"", b"x")]
    assert error.fields["line"] == 3
    rows, error = read(tmp_path, "lines", b"a=1\nb\nc=3\n", key_delimiter=b"=", skip_bad=True)
    assert [(row["key"], row["value"]) for row in rows] == [(b"a", b"1"), (b"c", b"3")]


def test_csv_with_and_without_value(tmp_path: Path) -> None:
    """spec/cli 7: columns by name, or the row as a JSON object of strings."""
    data = b'key,value,event_time,prop.a\nk,"x\n,y",1000,1\n,z,,\n'
    rows, error = read(tmp_path, "csv", data)
    assert error is None
    assert [(row["key"], row["value"]) for row in rows] == [(b"k", b"x\n,y"), (None, b"z")]
    assert [row["properties"] for row in rows] == [[("a", "1")], None]
    rows, _ = read(tmp_path, "csv", b"id,name\n1,ana\n")
    assert values(rows) == [b'{"id":"1","name":"ana"}']


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"value\na\nb,c\n", 3),
        (b"value,other\na,b\n", 1),
        (b"value,value\n", 1),
        (b"value,event_time\na,soon\n", 2),
        (b"value\na\n\xff\nb\n", 3),
        (b"\xff\n", 1),
        (b'value\n"a\nb', 2),
        (b'value\n"a\nb"\n"a"b\n', 4),
    ],
)
def test_bad_csv_is_a_bad_record(tmp_path: Path, data: bytes, line: int) -> None:
    """spec/cli 5: 104 with line."""
    _, error = read(tmp_path, "csv", data)
    assert isinstance(error, BadRecord)
    assert error.fields["line"] == line


@pytest.mark.parametrize(
    ("form", "data", "bad", "lines"),
    [
        ("csv", b'value,key\na,1\n\xff,"2"\nb,3\n', [b'\xff,"2"'], [3]),
        ("csv", b'value\na\n"x"y\r\nb\n"z\n\n', [b'"x"y', b'"z'], [3, 5]),
        ("tsv", b"value\tkey\na\t1\n\xff\t2\r\nb\t3\n", [b"\xff\t2\r"], [3]),
    ],
)
def test_a_row_that_cannot_be_read_is_skipped_or_put_aside(
    tmp_path: Path, form: str, data: bytes, bad: list[bytes], lines: list[int]
) -> None:
    """spec/cli 7: --on-error is for any bad record; its line is its own, its bytes as they came."""
    aside: list[tuple[bytes | None, Any]] = []
    rows, error = read(
        tmp_path,
        form,
        data,
        aside=lambda record, error: aside.append((record, error.fields["line"])),
    )
    assert (error, values(rows)) == (None, [b"a", b"b"])
    assert aside == list(zip(bad, lines, strict=True))
    rows, error = read(tmp_path, form, data)
    assert (values(rows), error.fields["line"]) == ([b"a"], lines[0])


@pytest.mark.parametrize(
    ("form", "first", "more"),
    [
        ("csv", b"value,key\na\nb,1\n", b"c,1\n"),
        ("csv", b'value,key\n"a\nx"\nb,1\n', b"c,1\n"),
        ("tsv", b"value\tkey\na\nb\t1\n", b"c\t1\n"),
    ],
)
def test_rows_do_not_wait_for_more_input(form: str, first: bytes, more: bytes) -> None:
    """Kills: --flush-every, --txn-every and watermarks that do not fire while the input is idle."""
    tables: list[pa.Table] = []
    before: list[int] = []

    def blocks() -> Iterator[bytes | None]:
        yield first
        before.append(sum(len(table) for table in tables))
        yield None
        yield more

    pauses = 0
    for table in Input(form, [], skip_bad=True)._of(blocks()):
        tables += [] if table is None else [table]
        pauses += table is None
    assert before == [1]
    assert [value for table in tables for value in table["value"].to_pylist()] == [b"b", b"c"]
    assert pauses == 1


TSV_TEXTS = ("", "a\tb\nc\rd", "\\", "\\t", "\\\\n", "\t\\", "C:\\new\\table", "\\x")


def test_tsv_goes_round(tmp_path: Path) -> None:
    """--in tsv reads the output of -f tsv. Kills: a backslash before a t that becomes a tab."""
    text = delimited("tsv", ["key", "value"], [["k", text] for text in TSV_TEXTS])
    rows, error = read(tmp_path, "tsv", text.encode())
    assert (error, values(rows)) == (None, [text.encode() for text in TSV_TEXTS])
    rows, _ = read(tmp_path, "tsv", b"value\na\\xb\\\n")  # of another program
    assert values(rows) == [b"a\\xb\\"]


def test_a_bad_row_of_tsv_is_put_aside_as_it_came(tmp_path: Path) -> None:
    """spec/cli 7: a dead letter holds the bytes of its record."""
    aside: list[bytes | None] = []
    line = b"a\\tb\\r\\\\n\tc\td"
    read(
        tmp_path,
        "tsv",
        b"key\tvalue\n" + line + b"\n",
        skip_bad=True,
        aside=lambda record, error: aside.append(record),
    )
    assert aside == [line]


@pytest.mark.parametrize(
    "record",
    [
        b"{",
        b"[]",
        b'{"value":"a"}',
        b'{"value":1,"value_encoding":"utf8"}',
        b'{"value":"*","value_encoding":"base64"}',
        b'{"value":"a","value_encoding":"hex"}',
        b'{"properties":{"a":1}}',
        b'{"event_time":"soon"}',
        b'{"event_time":true}',
        b'{"deliver_at":9223372036854775808}',
    ],
)
def test_bad_envelopes(tmp_path: Path, record: bytes) -> None:
    """An envelope is read strictly; unknown keys are ignored."""
    good = b'{"value":"a","value_encoding":"utf8","other":1}\n'
    rows, error = read(tmp_path, "envelope", good + record + b"\n")
    assert values(rows) == [b"a"]
    assert isinstance(error, BadRecord)
    assert error.fields["line"] == 2


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    """308, before anything is written."""
    with pytest.raises(NotFound):
        inputs.check_files([str(tmp_path / "no")])

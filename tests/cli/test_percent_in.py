"""The %-formats of input read back the output of `consume -f`, in pieces of any size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.test_percent import applied
from tests.cli.test_store import Tool, tool
from txlog.cli.input.percent import InputFormat, percent_rows
from txlog.cli.output.percent import Format
from txlog.errors import BadRecord, Usage

_ = tool
ROWS = st.fixed_dictionaries(
    {
        "value": st.binary(max_size=20),
        "key": st.binary(max_size=5),
        "properties": st.dictionaries(
            st.text("ab=;é", max_size=3), st.text("xy\n", max_size=3), max_size=3
        ),
        "partition": st.integers(0, 9),
        "event_time": st.none() | st.integers(0, 10**13),
        "topic": st.just("t"),
        "producer": st.just("p"),
        "sequence_id": st.none() | st.integers(0, (1 << 63) - 1),
    }
)
SIZED = (
    "%V{big32}%v%K{little8}%k%H{ascii},%h{%K{3}%V{ascii}:%k%v}%p|%d{event}\\n",
    "%T{2}%t%K{64}%k>%V{little64}%v%H{big16}%h{%K{big8}%k%V{big8}%v}%p;%d{event}{rfc3339}\\0",
    "%v{hex} %k{base64}\\r\\n%P/%q,%H{ascii} %h{%K{ascii} %k%V{ascii} %v}%p %d{event}\\t",
)


def read(text: str, data: bytes, cuts: list[int]) -> list[Any]:
    def source() -> Iterator[bytes | None]:
        start = 0
        for cut in [*sorted({*cuts}), len(data)]:
            if cut > start:
                yield data[start:cut]
                yield None
                start = cut

    records = percent_rows(source(), InputFormat(text), 1, 1 << 20)
    return [record for record in records if record is not None]


@settings(max_examples=40)
@given(
    st.lists(ROWS, max_size=5), st.lists(st.integers(0, 300), max_size=4), st.sampled_from(SIZED)
)
def test_printed_records_are_read_back(rows: list[Any], cuts: list[int], text: str) -> None:
    """spec/cli 7, 11.11: byte for byte, wherever the stream is cut."""
    out = b"".join(applied(Format(text), row) for row in rows)
    records = read(text, out, [cut for cut in cuts if cut < len(out)])
    assert [record["line"] for record in records] == list(range(1, len(rows) + 1))
    for record, row in zip(records, rows, strict=True):
        assert (record["value"], record["key"], record["partition"]) == (
            row["value"],
            row["key"],
            row["partition"],
        )
        assert dict(record["properties"] or ()) == row["properties"]
        assert record.get("event_time") == row["event_time"]
        if "%q" in text:
            assert record.get("sequence_id") == row["sequence_id"]


def test_last_record_may_lack_only_its_delimiter() -> None:
    assert [row["value"] for row in read("%v--", b"a--b--", [3])] == [b"a", b"b"]
    row, warnings = read("%k:%v\n", b"a:1", [])[::-1]
    assert (row["key"], row["value"], warnings) == (b"a", b"1", "the last record has no end")
    for text, data in (
        ("%k:%v\\n", b"a:1\nb"),
        ("%V{big32}%v", b"\0\0\0\2a"),
        ("%V{ascii} %v", b"x a"),
        ("%p %v\\n", b"-1 a\n"),
        ("%v{hex}\\n", b"xx\n"),
        ("%d{event} %v\\n", b"9223372036854775808 a\n"),
        ("<%v>", b"a>"),
        ("%H{ascii} %h{%k=%v }\\n", b"1001 a=b \n"),
    ):
        assert isinstance(read(text, data, [])[-1], BadRecord), text


@pytest.mark.parametrize(
    "text", ["%k%v", "%x", "%V%v", "%h{%k=%v}", "%v{no}", "%d", "%d{visible}", "%K{no}%k", "%v{hex"]
)
def test_a_format_that_cannot_be_read_back_is_refused(text: str) -> None:
    with pytest.raises(Usage):
        InputFormat(text)


def test_produce_takes_a_format(tool: Tool, capfd: pytest.CaptureFixture[str]) -> None:
    path = tool.path.parent / "in"
    path.write_bytes(b"\0\0\0\1a\0\0\0\0")
    answer = tool.json("produce", "orders", str(path), "--in", "%V{big32}%v", "--txn")
    assert (answer["messages"], answer["size_bytes"]) == (2, 1)
    path.write_bytes(b"0 x\n7 y\n")
    error = tool.error("produce", "orders", str(path), "--in", "%p %v\\n")
    assert error["code"] == "TXL-203"  # the record says its partition, and there is one
    assert tool.error("produce", "orders", str(path), "--in", "%k%v")["exit"] == 2
    path.write_bytes(b"0 old 5 x\n0 new 9 y\n")
    words = ["produce", "orders", str(path), "--in", "%p %P %q %v\n"]
    assert tool.error(*words)["exit"] == 2  # whose sequence ids?
    assert tool.error(*words, "--producer", "me", "--seq-from", "1")["exit"] == 2
    for duplicates in (0, 2):
        answer = tool.json(*words, "--producer", "me")
        assert (answer["messages"], answer["duplicates"]) == (2 - duplicates, duplicates)
    out = tool.ok("consume", "orders", "-o", "-2", "-f", "%P %q %v\n")
    assert out == "me 5 x\nme 9 y\n"


def test_a_rate_is_kept(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's clock advances only while the command waits."""
    now = [100.0]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("txlog.cli.produce.work.time.monotonic", lambda: now[0])
    monkeypatch.setattr("txlog.cli.produce.work.time.sleep", sleep)
    path = tool.path.parent / "in"
    path.write_bytes(b"x\n" * 21)
    tool.ok("produce", "orders", str(path), "--rate", "20/s")
    assert sum(slept) == pytest.approx(1.0)
    assert max(slept) <= 0.1 + 1e-9
    for wrong in ("0/s", "x", "5/d"):
        assert tool.error("produce", "orders", str(path), "--rate", wrong)["exit"] == 2

"""`produce --on-error dead-letter:TOPIC`: a bad record goes to another topic, as it stood."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.test_store import Tool, tool

pytestmark = pytest.mark.usefixtures("quick_disk")
_ = tool
FLAG = ["--on-error", "dead-letter:bad"]


def letters(tool: Tool) -> list[tuple[Any, str, str]]:
    rows = tool.json("consume", "bad", "--raw-strings")
    return [
        (row["value"], row["properties"]["ORIGIN_LINE"], row["properties"]["EXCEPTION"])
        for row in (rows if isinstance(rows, list) else [rows])
    ]


@pytest.mark.parametrize(
    ("form", "data", "stored", "bad"),
    [
        ("ndjson", b'{"a":1}\n{"b"\n2\n\n', 2,
         [('{"b"', "2", "unfinished JSON object"), ("", "4", "empty, not JSON")]),
        ("envelope", b'{"value":"x","value_encoding":"utf8"}\nno\n', 1,
         [("no", "2", "not a JSON object")]),
        ("csv", b'key,value\na,1\nb\n"c,d",2,"3 ""x"""\n', 1,
         [("b", "3", "1 fields, the header has 2"),
          ('"c,d",2,"3 ""x"""', "4", "3 fields, the header has 2")]),
    ],
)  # fmt: skip
def test_a_bad_record_is_kept_as_it_stood(
    tool: Tool, form: str, data: bytes, stored: int, bad: list[Any]
) -> None:
    path = tool.path.parent / "in"
    path.write_bytes(data)
    assert tool.error("produce", "orders", str(path), "--in", form, *FLAG)["code"] == "TXL-302"
    answer = tool.json("produce", "orders", str(path), "--in", form, *FLAG, "--create", "--txn")
    assert (answer["messages"], answer["dead_lettered"], answer["skipped"]) == (stored, len(bad), 0)
    assert letters(tool) == bad


def test_aborted_transaction_leaves_no_dead_letter(tool: Tool) -> None:
    """Dead letters are in the transaction of the good records, and abort with it."""
    tool.ok("topic", "create", "bad")
    path = tool.path.parent / "in"
    path.write_bytes(b"1\nx\n")
    flags = ["--in", "ndjson", "--txn", *FLAG]
    assert tool.error("produce", "orders", str(path), *flags, "--expect", "5")["exit"] == 8
    assert tool.ok("consume", "bad") == ""
    path.write_bytes(b"x\n" * 5500)  # only bad records, and more than a batch
    assert tool.json("produce", "orders", str(path), *flags)["dead_lettered"] == 5500
    assert len(letters(tool)) == 5500


def test_a_key_that_is_missing_and_a_record_that_is_too_large(tool: Tool) -> None:
    path = tool.path.parent / "in"
    path.write_bytes(b"a:" + b"x" * (6 << 20) + b"\nnone\nb:1\n")
    answer = tool.json("produce", "orders", str(path), "-K", ":", *FLAG, "--create")
    assert (answer["messages"], answer["dead_lettered"]) == (1, 2)
    assert {(value, line) for value, line, _ in letters(tool)} == {(None, "1"), ("none", "2")}


def test_large_records_go_into_frames_of_some_megabytes(tool: Tool) -> None:
    """Bytes bound a batch of dead letters, too, as no frame could hold many large records."""
    path = tool.path.parent / "in"
    path.write_bytes(b"".join(b"%d" % number + b"x" * 1_000_000 + b"\n" for number in range(40)))
    assert tool.json("produce", "orders", str(path), "--batch", "5000")["messages"] == 40
    [row] = tool.json("query", "SELECT count(*) AS n, count(DISTINCT lsn) AS frames FROM orders")
    assert row["n"] == 40 and row["frames"] >= 3


def test_sequence_ids_reach_the_largest_integer(tool: Tool) -> None:
    path = tool.path.parent / "in"
    path.write_bytes(b"x\ny\n")
    most = (1 << 63) - 1
    flags = ["produce", "orders", str(path), "--producer", "q", "--seq-from"]
    assert tool.json(*flags, str(most - 1))["messages"] == 2
    assert tool.error(*flags, str(most))["exit"] == 2
    assert tool.json("query", "SELECT max(sequence_id) AS last FROM orders") == [{"last": most}]

"""The column `record` of typed topics: in reads, consume, --where, exports and SELECT *."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import txlog
from txlog.base.text.structs import json_of
from txlog.cli.main import main
from txlog.client.client import Client


class Order(msgspec.Struct):
    id: int
    amount: float
    key: str | None = None


class Wide(msgspec.Struct):
    id: int
    amount: float
    key: str | None = None
    city: str = "-"


@pytest.fixture(params=["json", "avro"])
def client(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Client]:
    monkeypatch.chdir(tmp_path)
    txlog.init("s")
    monkeypatch.setenv("TXLOG_STORE", "s")
    with txlog.open("s") as opened:
        opened.create_topic("orders", schema=txlog.schema_of(Order, request.param))
        opened.create_topic("plain")
        producer = opened.producer("orders")
        for number in range(1, 5):
            producer.send(Order(number, number * 1.5, "f"), key=b"k%d" % number)
        opened.producer("plain").send(b'{"amount":9}')
        yield opened


def lines(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, object]]:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_read_has_records_and_only_where_they_are_asked_for(client: Client) -> None:
    [table] = client.read("orders")
    assert table["record"].to_pylist()[0] == {"id": 1, "amount": 1.5, "key": "f"}
    [table] = client.read("orders", columns=["record"])
    assert table["record"].to_pylist()[3]["amount"] == 6.0
    [table] = client.read("orders", columns=["key"])
    assert "record" not in table.column_names
    [table] = client.read("plain")
    assert "record" not in table.column_names
    assert [message.key for message in txlog.messages(next(client.read("orders")))] == [
        b"k1", b"k2", b"k3", b"k4",
    ]  # fmt: skip


def test_older_records_have_the_type_of_the_newest_schema(client: Client) -> None:
    kind = client.topic("orders").schemas.get().type
    client.topic("orders").schemas.add(txlog.schema_of(Wide, kind))
    client.producer("orders").send(Wide(5, 7.5, None, "Bonn"))
    records = pa.concat_tables(client.read("orders"))["record"].to_pylist()
    assert [record["city"] for record in records] == ["-", "-", "-", "-", "Bonn"]


def test_consume_and_peek_show_records(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    client.create_subscription("orders", "s")
    first = {"id": 1, "amount": 1.5, "key": "f"}
    for words in (["consume", "orders"], ["peek", "orders"], ["consume", "orders", "-s", "s"]):
        assert lines(capsys, *words)[0]["record"] == first
    both = lines(capsys, "consume", "orders", "plain")
    assert [row["record"] is None for row in both] == [False] * 4 + [True]


def test_where_takes_fields_of_records(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    for condition in ("amount > 4", "record.amount > 4", "AMOUNT > 4 AND value IS NOT NULL"):
        rows = lines(capsys, "consume", "orders", "--where", condition)
        assert [row["key"] for row in rows] == ["k3", "k4"]
    followed = lines(capsys, "consume", "orders", "-F", "-n", "1", "--where", "amount > 4")
    assert followed[0]["key"] == "k3"


def test_a_column_of_messages_wins_over_a_field_of_its_name(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = lines(capsys, "consume", "orders", "--where", "text(key) = 'k2' AND record.key = 'f'")
    assert [row["key"] for row in rows] == ["k2"]


def test_where_names_the_fields_that_there_are(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["consume", "orders", "--where", "amnt > 4"]) == 1
    out, err = capsys.readouterr()
    assert 'has no column or field "amnt"' in err and "id, amount, key" in err and out == ""
    assert main(["consume", "plain", "--where", "amount > 4"]) == 1
    assert "value->>'amount'" in capsys.readouterr().err
    assert len(lines(capsys, "consume", "plain", "--where", "(value->>'amount')::INT > 4")) == 1


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("amount >", 'near ">"'),
        ("(amount > 1", 'near "1"'),
        ("'a", "unterminated string"),
        (" ", "--where is empty"),
        ("value->>'id' > 3", "(value->>'n')::int"),
    ],
)
def test_where_shows_no_brackets_of_ours(
    client: Client, capsys: pytest.CaptureFixture[str], condition: str, words: str
) -> None:
    assert main(["consume", "orders", "--where", condition]) == 1
    out, err = capsys.readouterr()
    assert words in err and out == ""
    assert '")"' not in err and "Binder" not in err and "Parser" not in err


def test_exports_have_records(client: Client) -> None:
    for suffix in ("csv", "tsv", "ndjson", "parquet", "arrow"):
        assert main(["export", "orders", f"o.{suffix}", "-q"]) == 0
    expected = {"id": 2, "amount": 3.0, "key": "f"}
    table = pq.read_table("o.parquet")
    assert table.schema.names[0] == "record" and table["record"].to_pylist()[1] == expected
    with Path("o.csv").open(encoding="utf-8") as file:
        assert json.loads([*csv.DictReader(file)][1]["record"]) == expected
    assert json.loads(Path("o.ndjson").read_text().splitlines()[1])["record"] == expected
    assert Path("o.tsv").read_text().startswith("record\t")
    assert main(["export", "orders", "days/", "--partition-by", "publish_date", "-q"]) == 0
    [path] = Path("days").rglob("*.parquet")
    assert pq.ParquetFile(path).schema_arrow.names[0] == "record"


def test_exports_come_back(client: Client) -> None:
    [before] = client.read("orders")
    for suffix, form in (("csv", "csv"), ("ndjson", "envelope"), ("parquet", "parquet")):
        assert main(["export", "orders", f"o.{suffix}", "-q"]) == 0
        words = ["import", f"o.{suffix}", f"copy-{suffix}", "--create", "--in", form, "-q"]
        assert main(words) == 0
        [after] = client.read(f"copy-{suffix}")
        for column in ("key", "value"):
            assert after[column].to_pylist() == before[column].to_pylist()


def test_select_star_begins_with_the_record_and_ends_with_positions(client: Client) -> None:
    result = client.sql("FROM orders")
    assert result.columns[0] == "record"
    assert result.columns[-7:] == [
        "topic", "partition", "message_id", "ledger", "entry", "txn_index", "lsn",
    ]  # fmt: skip
    plain = client.sql("FROM plain").columns
    assert sorted([*plain, "record"]) == sorted(result.columns)


def test_records_of_any_type_and_any_slice_are_json() -> None:
    pairs = pa.map_(pa.string(), pa.int64())
    items = pa.list_(pa.struct([("u", pa.int32())]))
    texts = [("b", pa.binary()), ("s", pa.string())]
    kind = pa.struct([("m", pairs), ("l", items), ("f", pa.float64()), ("d", pa.date32()), *texts])
    rows = [
        {"m": [("a", 1)], "l": [{"u": 1}, None], "b": b"\xff", "f": 1.5, "d": None, "s": 'q"\n'},
        None,
        {"m": [("b", 2), ('c"', None)], "l": [], "b": b"x", "f": float("inf"), "d": 1, "s": ""},
        {"m": None, "l": None, "b": None, "f": None, "d": None, "s": None},
    ]
    expected = [
        {"m": {"a": 1}, "l": [{"u": 1}, None], "b": "/w==", "f": 1.5, "d": None, "s": 'q"\n'},
        None,
        {"m": {"b": 2, 'c"': None}, "l": [], "b": "x", "f": "inf", "d": "1970-01-02", "s": ""},
        {"m": None, "l": None, "b": None, "f": None, "d": None, "s": None},
    ]
    column = pa.array(rows, kind)
    for start in range(4):
        for stop in range(start + 1, 5):
            texts = json_of(column.slice(start, stop - start)).to_pylist()
            assert [text and json.loads(text) for text in texts] == expected[start:stop]

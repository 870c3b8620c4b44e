"""The column `record` of typed topics: in reads, consume, --where, exports and SELECT *."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import txlog
from txlog.base.text.structs import json_of
from txlog.cli.main import main
from txlog.client.client import Client
from txlog.errors import SqlError
from txlog.lake.jobs import export_files


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


def test_reads_take_the_same_condition(client: Client) -> None:
    def keys(topic: str, where: str, **options: Any) -> list[bytes]:
        tables = [*client.read(topic, where=where, **options)]
        return [key for table in tables for key in table["key"].to_pylist()]

    assert keys("orders", "record.amount > 2 AND text(key) <> 'k3'") == [b"k2", b"k4"]
    assert keys("orders/0", "amount > 2", limit=2, batch_messages=1) == [b"k2", b"k3"]
    [table] = client.read("orders", where="id = 3")
    assert table["record"].to_pylist() == [{"id": 3, "amount": 4.5, "key": "f"}]
    [table] = client.read("orders", where="id = 3", columns=["key"])
    assert "record" not in table.column_names
    followed = client.read("orders", where="id = 4", follow=True, batch_messages=1)
    assert next(followed)["key"].to_pylist() == [b"k4"]  # and no table without rows before it
    assert next(followed).num_rows == 0
    with pytest.raises(SqlError, match='no column or field "nope"'):
        next(client.read("orders", where="nope"))


@pytest.mark.parametrize(
    ("condition", "meant"),
    [
        ("key=alice", "key = 'alice'"),
        ("amount > 4 AND (key != Alice)", "amount > 4 AND (key != 'Alice')"),
        ('key = "it\'s" OR id = 1', "key = 'it''s' OR id = 1"),
        ("key = alice.name", None),
        ("key = alice + 1", None),
        ("alice = 4", None),
    ],
)
def test_a_lone_name_on_the_right_is_meant_as_a_text(
    client: Client, condition: str, meant: str | None
) -> None:
    with pytest.raises(SqlError) as caught:
        next(client.read("orders", where=condition))
    if meant is None:
        assert "single quotes" not in (caught.value.hint or "")
    else:
        assert caught.value.hint == f"a text stands in single quotes: {meant}"


def test_peek_takes_conditions(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    def keys(*words: str) -> list[object]:
        return [row["key"] for row in lines(capsys, "peek", "orders", *words)]

    client.create_subscription("orders", "s")
    assert keys("--where", "amount > 4") == ["k3", "k4"]
    assert keys("--last", "1", "--where", "record.amount < 4") == ["k2"]
    assert keys("--first", "1", "--where", "amount > 4") == ["k3"]
    assert keys("--random", "9", "--where", "id IN (1, 4)") == ["k1", "k4"]
    assert len(keys("--random", "2", "--where", "id < 4")) == 2
    assert keys("--read-compacted", "--last", "1", "--where", "id < 4") == ["k3"]
    consumer = client.consumer("orders", "s")
    consumer.acknowledge(consumer.receive_batch(2, 0))
    assert keys("-s", "s", "--where", "id <> 4") == ["k3"]
    assert main(["peek", "orders", "--at", "1:0", "--where", "true"]) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_peek_finds_the_last_matches_far_from_the_end(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    client.create_topic("long", partitions=2)
    for partition in (0, 1):
        numbers = pa.array([str(number).encode() for number in range(12_000)], pa.binary())
        client.producer(f"long/{partition}").send_batch(pa.table({"value": numbers}))
    rows = lines(capsys, "peek", "long", "--last", "3", "--where", "text(value) IN ('1', '11999')")
    assert [(row["partition"], row["value"]) for row in rows] == [
        (0, "11999"), (1, "1"), (1, "11999"),
    ]  # fmt: skip


def test_exports_take_conditions(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    for suffix in ("csv", "tsv", "ndjson", "parquet", "arrow", "csv.gz", "ndjson.zst"):
        assert main(["export", "orders", f"o.{suffix}", "--where", "amount > 4", "-q"]) == 0
        assert main(["import", f"o.{suffix}", f"into-{suffix}", "--create", "-q"]) == 0
        rows = lines(capsys, "consume", f"into-{suffix}")
        assert len(rows) == 2, suffix
    assert pq.read_table("o.parquet")["key"].to_pylist() == [b"k3", b"k4"]
    assert main(["export", "orders", "-", "--to", "tsv", "--where", "id = 2"]) == 0
    assert capsys.readouterr().out.count("\n") == 2
    assert main(["export", "orders", "lake", "--to", "hive", "--where", "id = 2"]) == 2
    assert "--where" in capsys.readouterr().err


def test_a_directory_keeps_its_condition(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    def export(*words: str) -> int:
        return main(["export", "orders", "days/", *words])

    def ids() -> list[int]:
        files = sorted(Path("days").rglob("*.parquet"))
        return [row["id"] for path in files for row in pq.read_table(path)["record"].to_pylist()]

    assert export("--append", "--where", "id > 3") == 0
    assert ids() == [4]
    client.producer("orders").send(Order(3, 1.0, "f"))
    assert export("--append", "--where", "id > 3") == 0  # no message, and no file for it
    assert ids() == [4]
    client.producer("orders").send(Order(5, 1.0, "f"))
    assert export("--append", "--where", "id > 3") == 0
    assert ids() == [4, 5]
    capsys.readouterr()
    assert export("--append") == 4
    assert "another where: id > 3" in capsys.readouterr().err


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
        ("value->>'id' > 3", "(value->>'id')::int > 3"),
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
        row = [*csv.DictReader(file)][1]
        assert (row["id"], float(row["amount"]), row["record.key"]) == ("2", 3.0, "f")
    assert json.loads(Path("o.ndjson").read_text().splitlines()[1])["record"] == expected
    assert Path("o.tsv").read_text().startswith("id\tamount\trecord.key\t")
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


# Messages of a topic that do not match `amount > 4`: no JSON, no such member, no number.
STRANGE = [
    b"no json", b"", None, b"\xff\xfe{", b"[1]", b'{"other":1}', b'{"amount":null}',
    b'{"amount":"x"}', b'{"amount":1}', b'\n {"amount":2}', b'"\xc3\xa4"',
]  # fmt: skip
UNDECIDED = 9
CONDITIONS = (
    "(value->>'amount')::double > 4",
    "CAST(json(value)->>'amount' AS double) > 4",
    "(json_extract_string(value, 'amount'))::double > 4",
)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_no_message_hides_those_that_match(
    client: Client,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    condition: str,
) -> None:
    """A message for which a condition has no answer does not match; each reader counts them."""
    monkeypatch.setattr(export_files, "PIECE_MESSAGES", 5)
    client.create_topic("strange")
    producer = client.producer("strange")
    for value in [*STRANGE, b'{"amount":"5"}', b'{"amount":6,"who":"\xc3\xa4"}']:
        producer.send(value)
    want = [b'{"amount":"5"}', b'{"amount":6,"who":"\xc3\xa4"}']
    assert [
        value.as_py()
        for table in client.read("strange", where=condition)
        for value in table["value"]
    ] == want
    text = f"--where: {UNDECIDED} messages have no answer and are left out"
    for words in (
        ("consume", "strange", "-f", "%v\n"),
        ("consume", "strange", "-F", "-n", "2", "-f", "%v\n"),
        ("peek", "strange", "-f", "%v\n"),
        ("peek", "strange", "--first", "9", "-f", "%v\n"),
        ("peek", "strange", "--random", "9", "-f", "%v\n"),
        ("export", "strange", "-", "--to", "csv"),
        ("export", "strange", "out/", "--to", "csv"),
        ("export", "strange", "out.ndjson"),
    ):
        capsys.readouterr()
        assert main([*words, "--where", condition]) == 0
        out, err = capsys.readouterr()
        assert text in err, words
        if words[-1] == "%v\n":
            assert out.encode() == b"\n".join(want) + b"\n"
        elif words[2] == "-":
            assert len(list(csv.reader(out.splitlines()))) == 3
        else:
            assert "exported 2 messages" in err
    assert main(["consume", "strange", "--where", condition, "-q"]) == 0
    assert text not in capsys.readouterr().err


def test_conditions_that_cannot_be_tried_leave_out_what_is_no_json(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """DuckDB refuses TRY around a subquery and random(); a text that is no number is an error."""
    client.producer("plain").send(b"no json")
    client.producer("plain").send(b'{"amount":"x"}')
    for condition in ("value->>'amount' IN (SELECT '9')", "value->>'amount' < '99' || random()"):
        assert len(lines(capsys, "consume", "plain", "--where", condition)) == 1
    with pytest.raises(SqlError, match="x"):
        list(client.read("plain", where="(value->>'amount')::int > 4 AND random() > -1"))


def test_a_missing_field_of_a_record_does_not_match(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also messages that are older than the schema."""
    client.topic("plain").schemas.add(txlog.schema_of(Order))
    client.producer("plain").send(Order(1, 5.0))
    assert len(lines(capsys, "consume", "plain", "--where", "record.amount > 4")) == 1
    assert main(["peek", "plain", "--where", "amount > 4"]) == 0
    assert "1 message has no answer" in capsys.readouterr().err
    query = "SELECT record.id AS id FROM plain WHERE record.amount > 4"
    rows: Any = lines(capsys, "query", query)
    assert rows == [[{"id": 1}]]


def _next_moment() -> None:
    """Return in the next millisecond: messages of one moment take turns."""
    moment = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 == moment:
        pass


@pytest.mark.parametrize("more", [(), ("--where", "true"), ("-s", "s")])
def test_the_last_messages_are_those_of_all_partitions_in_order_of_time(
    client: Client, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    """Messages that became visible at once, as in one batch, are not all of one partition."""
    client.create_topic("four", 4)
    client.create_subscription("four", "s")
    producer = client.producer("four")
    producer.send_batch(
        pa.table({"value": [b"0"] * 40, "partition": pa.array([*range(4)] * 10, pa.int32())})
    )

    def shown(*words: str) -> list[Any]:
        rows = lines(capsys, "peek", "four", *words, *more, "--columns", "partition,value")
        return [(row["partition"], int(str(row["value"]))) for row in rows]

    def partitions(*words: str) -> list[int]:
        return sorted(partition for partition, _ in shown(*words))

    assert {*partitions()} == {0, 1, 2, 3}
    assert partitions("--last", "4") == partitions("--first", "4") == [0, 1, 2, 3]
    for number in range(1, 13):
        _next_moment()
        producer.send(b"%d" % number, partition=number * 7 % 4 if number % 3 else 3)
    assert [value for _, value in shown()] == list(range(3, 13))
    assert [value for _, value in shown("--last", "5")] == list(range(8, 13))
    _next_moment()
    with client.transaction() as txn:
        for number in range(13, 17):
            producer.send(b"%d" % number, partition=number % 2, txn=txn)
    by_partition: dict[int, list[int]] = {}
    for partition, value in shown("--last", "4"):
        by_partition.setdefault(partition, []).append(value)
    assert by_partition == {0: [14, 16], 1: [13, 15]}


def test_a_record_is_nested_where_the_format_has_nested_types_and_flat_in_csv(
    client: Client, tmp_path: Path
) -> None:
    """spec/schemas 3: one rule for export and query; SELECT record.* is as flat as an export."""
    for suffix in ("parquet", "arrow", "ndjson", "csv", "tsv"):
        assert main(["export", "orders", f"e.{suffix}", "-q"]) == 0
    for suffix in ("parquet", "arrow", "csv", "tsv"):
        assert main(["query", "FROM orders", "--out", f"q.{suffix}", "-q"]) == 0
    flat = "SELECT record.*, message_id FROM orders ORDER BY message_id"
    assert main(["query", flat, "--out", "flat.csv", "-q"]) == 0
    record = {"id": 1, "amount": 1.5, "key": "f"}

    def rows(name: str) -> list[dict[str, Any]]:
        with Path(name).open(newline="") as file:
            return list(csv.DictReader(file, delimiter="\t" if name.endswith("tsv") else ","))

    for name in ("e", "q"):
        for table in (pq.read_table(f"{name}.parquet"), _arrow(f"{name}.arrow")):
            assert table.column("record")[0].as_py() == record
    assert json.loads(Path("e.ndjson").read_text().splitlines()[0])["record"] == record
    for suffix in ("csv", "tsv"):
        header = Path(f"e.{suffix}").read_text().splitlines()[0].replace('"', "")
        assert header.split("\t" if suffix == "tsv" else ",")[:4] == [
            "id",
            "amount",
            "record.key",
            "topic",
        ]
        assert json.loads(rows(f"q.{suffix}")[0]["record"]) == record
    assert rows("flat.csv")[0] == {
        "id": "1",
        "amount": "1.5",
        "key": "f",
        "message_id": rows("e.csv")[0]["message_id"],
    }


def _arrow(name: str) -> pa.Table:
    with pa.OSFile(name) as file:
        return pa.ipc.open_file(file).read_all()

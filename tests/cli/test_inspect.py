"""Tests of inspect: every kind of thing, and its rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import txlog
from txlog import Client, MessageId
from txlog.cli.main import main

pytestmark = pytest.mark.usefixtures("quick_disk")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command next to a store with one thing of each kind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TXLOG_STORE", "store")
    txlog.init("store")
    with txlog.open("store") as client:
        client.create_topic("orders", partitions=2)
        client.create_subscription("orders", "billing", type="shared")
        producer = client.producer("orders/0")
        for number in range(4):
            producer.send(b"%d" % number)
        client.connect("daily")
        with client.transaction(key="daily") as txn:
            for number in range(3):
                producer.send(b"in %d" % number, txn=txn)
        client.subscription("orders", "billing").acknowledge(
            [MessageId.parse(text) for text in ("1:0", "1:2", "1:4:2")]
        )
        client.checkpoint(roll_all=True)
        client.producer("orders/1").send(b"tail")

    def call(*words: str) -> tuple[int, str, str]:
        code = main(words)
        out, err = capfd.readouterr()
        return code, out, err

    return call


def counted(run: Run, word: str, *more: str) -> int:
    """Return how many rows `this` has."""
    code, out, err = run(
        "inspect", word, "--sql", "SELECT count(*) AS n FROM this", "--json", *more
    )
    assert code == 0, err
    [row] = json.loads(out)
    return int(row["n"])


@pytest.mark.parametrize(
    ("word", "kind", "rows"),
    [
        ("", "store", 8), ("orders", "topic", 8), ("orders/1", "partition", 1),
        ("billing", "subscription", 5), ("daily", "transaction_key", 1),
        ("key:daily", "transaction_key", 1), ("1:2", "message", 1), ("1:4:2", "message", 1),
        ("1:4", "message", 3), ("ledger:1", "ledger", 5),
    ],
)  # fmt: skip
def test_every_kind_of_thing_has_rows(run: Run, word: str, kind: str, rows: int) -> None:
    """spec/cli 8.1: kind, and the view `this`; kills a `this` of the wrong topic or place."""
    words = [word] if word else []
    code, out, err = run("inspect", *words, "--json")
    assert (code, json.loads(out or "{}").get("kind")) == (0, kind), err
    assert counted(run, word) == rows


def test_a_transaction_has_its_messages_and_its_ends(run: Run) -> None:
    """Kills: rows of another transaction, and missing rows that are still hidden."""
    with txlog.open("store") as client:
        txn = client.transaction(write_through=True)
        client.producer("orders/1").send(b"open", txn=txn)
        [ended] = [row["txn"] for row in client.transactions(all=True) if row["state"] != "open"]
        sql = "SELECT kind, txn_state, count(*) AS n FROM this GROUP BY ALL ORDER BY ALL"
        _, out, _ = run("inspect", f"txn:{txn.id}", "--sql", sql, "-f", "csv")
        assert out.splitlines()[1:] == ["message,open,1"]
        _, out, _ = run("inspect", str(ended), "--sql", sql, "-f", "csv")
        assert out.splitlines()[1:] == ["message,committed,3", "txn_commit,committed,1"]
        assert counted(run, "orders", "--isolation", "uncommitted") == 9
        txn.abort()


def test_files_need_no_store(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """spec/cli 8.1: Parquet, Arrow, journal and manifest, of any store or none."""
    files = {
        "parquet": next(Path("store/topics/public/default/orders").rglob("*1.*.parquet")),
        "arrow": next(Path("store/system/transaction_log").rglob("*.arrow")),
        "journal": sorted(Path("store/journal").glob("*.journal"))[-1],
        "manifest": sorted(Path("store/manifest").glob("*.manifest"))[-1],
    }
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for kind, path in files.items():
        (moved / path.name).write_bytes(path.read_bytes())
        files[kind] = moved / path.name
    monkeypatch.delenv("TXLOG_STORE")
    monkeypatch.chdir(moved)
    for kind, path in files.items():
        code, out, err = run("inspect", path.name, "--json")
        assert code == 0, err
        answer = json.loads(out)
        assert (answer["kind"], answer["type"]) == ("file", kind)
        rows = answer.get("rows") or answer.get("frames") or len(answer["file_list"])
        assert counted(run, f"file:{path}") == rows > 0
    parquet = files["parquet"].name
    _, out, _ = run("inspect", parquet, "--row-groups", "--json")
    assert [(row["rows"], row["first_entry"], row["last_entry"]) for row in json.loads(out)] == [
        (5, 0, 4)
    ]
    _, out, _ = run("inspect", parquet, "--stats", "--json")
    by_name = {row["name"]: row for row in json.loads(out)}
    assert (by_name["entry"]["min"], by_name["entry"]["max"]) == ("0", "4")
    assert by_name["value"]["min"] is None  # payloads have no statistics
    _, out, _ = run("inspect", parquet, "--hexdump", "0:4")
    assert out == f"00000000  50 41 52 31{' ' * 12}  {' ' * 23}  PAR1\n"
    _, out, _ = run("inspect", parquet, "-f", "table")
    assert out.splitlines()[-1].startswith("duckdb -c 'FROM read_parquet(")
    _, out, _ = run("inspect", files["journal"].name, "--frames", "--json")
    assert [row["ops"] for row in json.loads(out)] == [["Appended"]]
    assert run("inspect", parquet, "--sql", "COPY this TO 'x.csv'")[0] == 1
    assert run("inspect", parquet, "--sql", "FROM 'elsewhere'")[0] == 1
    assert run("inspect", parquet, "--frames")[0] == 2
    (moved / "text").write_text("hello")
    assert run("inspect", "text")[0] == 6
    assert run("inspect")[0] == 3


def test_a_place_in_a_topic(run: Run) -> None:
    """--at: JSON has the message at a position, and `this` all messages from there on."""
    assert counted(run, "orders/0", "--at", "1:3") == 4
    assert counted(run, "orders", "--at", "-1") == 2
    assert counted(run, "orders/0", "--at", "1:4:2") == 2
    assert json.loads(run("inspect", "orders/0", "--at", "1:4:2", "--json")[1])["value"] == "in 1"
    assert run("inspect", "orders/0", "--at", "end")[0] == 3
    assert run("inspect", "billing", "--at", "1:3")[0] == 2


def test_frames_and_bytes(run: Run) -> None:
    """Kills: a listed frame that inspect cannot show, and bytes from a wrong offset."""
    _, out, _ = run("inspect", "--frames", "--json")
    frames = json.loads(out)
    assert [row["lsn"] for row in frames] == list(
        range(frames[0]["lsn"], frames[0]["lsn"] + len(frames))
    )
    for frame in frames:
        _, out, _ = run("inspect", f"lsn:{frame['lsn']}", "--hexdump", "0:16")
        assert out.startswith(f"{frame['offset']:08x}  54 58 4c 46 01 ")
        assert int.from_bytes(bytes.fromhex(out.split("  ")[2]), "little") == frame["lsn"]
    last = frames[-1]
    _, out, _ = run("inspect", f"lsn:{last['lsn']}", "--hexdump", "0:999999")
    assert sum(len(bytes.fromhex(line[10:58])) for line in out.splitlines()) == last["bytes"]
    assert run("inspect", "lsn:9999")[0] == 3
    assert run("inspect", "orders", "--hexdump", "0:4")[0] == 2


def test_two_things_of_one_name_are_refused_with_both_spellings(run: Run) -> None:
    """spec/cli 8.1: 205."""
    with txlog.open("store") as client:
        client.create_topic("daily")
    code, _, err = run("inspect", "daily", "--json")
    error = json.loads(err)["error"]
    assert (code, error["code"], error["hint"]) == (2, "TXL-205", "topic:daily or key:daily")
    Path("orders").write_text("x")
    assert "file:orders" in run("inspect", "orders")[2]


def test_schema_stats_sample_and_plan(run: Run) -> None:
    """These flags also work for topics, subscriptions and other things of the store."""
    _, out, _ = run("inspect", "orders", "--schema", "--json")
    assert {"name": "key", "type": "BLOB"} in json.loads(out)
    _, out, _ = run("inspect", "orders", "--stats", "--json")
    assert {row["name"]: row["values"] for row in json.loads(out)}["partition"] == 8
    assert len(json.loads(run("inspect", "orders", "--sample", "3", "--json")[1])) == 3
    sql = "SELECT count(*) FROM this WHERE partition = 1"
    assert "Scanning Files" in run("inspect", "orders", "--sql", sql, "--explain")[1]
    assert run("inspect", "orders", "--schema", "--stats")[0] == 2


def test_the_file_of_a_message_has_it(run: Run) -> None:
    """`file` and `row` find the message in any kind of file. Kills: the position of its marker."""
    with txlog.open("store") as client:
        producer = client.producer("orders/0")
        for number in range(2):
            producer.send(b"part %d" % number)
            with client.transaction() as txn:
                producer.send(b"in part %d" % number, txn=txn)
            client.checkpoint()
        values = {}
        for table in client.read("orders"):
            for row in table.to_pylist():
                place = MessageId(row["ledger"], row["entry"], row["index"] or 0)
                values[f"msg:{place}"] = row["value"]
    forms = set()
    for word, value in values.items():
        code, out, err = run("inspect", word, "--json")
        assert code == 0, (word, err)
        answer = json.loads(out)
        if answer["file"] is None:
            assert answer["row"] is None
            assert value == b"tail"
            continue
        path = Path("store", answer["file"])
        forms.add((path.suffix, path.parent.name == "_txnlog"))
        if path.suffix == ".arrow":
            table = pa.ipc.open_file(path.read_bytes()).read_all()
        else:
            table = pq.read_table(pa.BufferReader(path.read_bytes()))
        assert table.column("value")[answer["row"]].as_py() == value
    assert forms == {(form, inside) for form in (".arrow", ".parquet") for inside in (True, False)}


def test_this_of_a_subscription_is_its_backlog(run: Run) -> None:
    """`this` of a subscription is its backlog, however its acknowledgements are stored."""
    with txlog.open("store") as client:
        subscription = client.subscription("orders", "billing")
        for text in ("1:1", "1:4", "1:3"):
            assert counted(run, "billing") == _backlog(client)
            subscription.acknowledge([MessageId.parse(text)])
        assert counted(run, "billing") == _backlog(client) == 1


def _backlog(client: Client) -> int:
    [row] = client.subscriptions()
    return int(row["backlog"])


def test_a_message_is_the_record_that_consume_gives(run: Run) -> None:
    """spec/cli 8.1: the record plus file, row, acknowledged_list; JSON is embedded as it stands."""
    assert run("produce", "orders", "-m", '{"id": 1.10, "n": 1.0e3}', "-k", "k", "-p", "1")[0] == 0
    [record] = run("consume", "orders", "-p", "1", "-o", "-1", "--json")[1].splitlines()
    where = json.loads(record)["message_id"]
    code, out, err = run("inspect", f"msg:{where}", "--json")
    assert code == 0, err
    assert out.startswith(record.removesuffix("}"))
    assert json.loads(out)["acknowledged_list"] == []
    narrow = run("inspect", f"msg:{where}", "--json", "--columns", "value,kind")[1]
    assert narrow == '{"value":{"id": 1.10, "n": 1.0e3},"kind":"message"}\n'

"""Tests of `txlog views`: a bare DuckDB in another process reads the messages of a reader."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txlog
from tests.engine_kit import Bench, relation_of
from tests.harness import Child, python
from tests.harness import run as run_child
from tests.sql.test_querying import FIRST, History, asked
from tests.tiers import graded
from txlog import Schema
from txlog.base.choices import Isolation
from txlog.base.ranges import Bound
from txlog.cli.main import main
from txlog.lake.sql.client_query import Query

pytestmark = pytest.mark.usefixtures("quick_disk")
Run = Callable[..., tuple[int, str, str]]
SAME = (
    "epoch_ms(publish_time) AS publish_time, epoch_ms(event_time) AS event_time,"
    " epoch_ms(deliver_at) AS deliver_at, epoch_ms(visible_time) AS visible_time,"
    " partition, message_id, ledger, entry, txn_index, hex(key) AS key, hex(value) AS value,"
    " properties::VARCHAR AS properties, producer, sequence_id, lsn, size_bytes"
)


class Bare(Child):
    """A process with DuckDB and nothing of txlog."""

    def __init__(self) -> None:
        super().__init__(python("bare_duckdb", flags=["-I"]))

    def rows(self, script: str, query: str, folder: str = "/") -> list[dict[str, Any]]:
        """The rows of a query over the views of a script or database."""
        rows: list[dict[str, Any]] = json.loads(self.ask(json.dumps([script, folder, query])))
        return rows


@pytest.fixture
def bare() -> Any:
    """Return a process with DuckDB and nothing of txlog."""
    process = Bare()
    yield process
    process.close()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command: exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        code = main(words)
        out, err = capfd.readouterr()
        return code, out, err

    return call


def read(
    client: txlog.Client, topic: str, isolation: Isolation = "committed"
) -> list[dict[str, Any]]:
    """Return the messages that a reader gives."""
    tables = list(client.read(topic, isolation=isolation))
    return pa.concat_tables(tables).to_pylist() if tables else []


@pytest.mark.parametrize("seed", graded(range(FIRST, FIRST + 4), 1))
def test_bare_duckdb_reads_the_messages_of_a_reader(
    tmp_path: Path, run: Run, bare: Bare, seed: int
) -> None:
    """spec/analytics 4 and 12: row for row; the script counts exactly the rows it leaves out."""
    history = History(tmp_path, f"views-{seed}")
    seen: Counter[str] = Counter()
    try:
        for number in range(48):
            history.step(random.Random(f"{seed}:{number}"))
            if number % 8 != 7:
                continue
            history.client.flush()
            store = ("-S", history.path)
            code, script, err = run("views", *store)
            assert code == 0, err
            total = len(read(history.client, "t"))
            lacking = int(script.splitlines()[1].split()[3])
            [counted] = bare.rows(script, "SELECT count(*) AS n FROM t")
            assert counted["n"] + lacking == total
            seen.update(covered=counted["n"], lacking=lacking)
            code, script, err = run("views", *store, "--complete", "rest", "--force")
            assert code == 0, err
            order = "ORDER BY ledger, entry, txn_index"
            _, out, err = run("query", *store, f"SELECT {SAME} FROM t {order}", "--json")
            assert bare.rows(script, f"SELECT {SAME} FROM t {order}") == json.loads(out), err
            sql = "SELECT message_id AS id, hex(coalesce(value, ''::BLOB)) AS v FROM t"
            assert Counter((row["id"], row["v"]) for row in bare.rows(script, sql)) == ids(
                history.client
            )
            uncommitted = ("--isolation", "uncommitted", "--complete", "more", "--force")
            code, script, err = run("views", *store, *uncommitted)
            expected = Counter(
                (row["ledger"], (row["value"] or b"").hex().upper(), row["txn_state"])
                for row in read(history.client, "t", "uncommitted")
            )
            sql = "SELECT ledger, hex(coalesce(value, ''::BLOB)) AS v, txn_state FROM messages"
            rows = bare.rows(script, sql)
            assert Counter((row["ledger"], row["v"], row["txn_state"]) for row in rows) == expected
    except BaseException:
        print(f"seed {seed}: {' '.join(history.trace)}")
        raise
    finally:
        history.client.close()
        shutil.rmtree(history.path)
    assert seen["covered"] and seen["lacking"]


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(FIRST, FIRST + 6))
@pytest.mark.parametrize("default", ["null", '"none"'])
def test_records_of_unclean_files(
    tmp_path: Path, run: Run, bare: Bare, seed: int, default: str
) -> None:
    """Rows in files have their records after any random history, also with --complete.

    With a default of null the files of both versions are one scan, otherwise several.
    """
    older, newer = (
        Schema.parse("json", f'{{"type": "record", "name": "R", "fields": [{fields}]}}')
        for fields in (
            '{"name": "cups", "type": "int"}',
            f'{{"name": "note", "type": ["{"null" if default == "null" else "string"}",'
            f' "{"string" if default == "null" else "null"}"], "default": {default}}},'
            ' {"name": "cups", "type": "long"}',
        )
    )
    history = History(tmp_path, f"typed-{seed}", older)
    otherwise = json.loads(default)
    version = 1
    seen: Counter[str] = Counter()

    def record(row: dict[str, Any]) -> str:
        """The column `record` for a row of a reader."""
        if row["schema_version"] is None or row["value"] is None:
            return "null"
        actual = json.loads(row["value"])
        if version == 1:
            return json.dumps({"cups": actual["cups"]})
        note = actual.get("note", otherwise) if row["schema_version"] == 2 else otherwise
        return json.dumps({"note": note, "cups": actual["cups"]})

    try:
        for number in range(40):
            if number == 16:
                history.client.topic("t").schemas.add(newer)
                version = 2
            history.step(random.Random(f"{seed}:{number}"))
            if number % 8 != 7:
                continue
            history.client.flush()
            relation = relation_of(history.client, "t")
            seen.update(unclean=len(relation.unclean), open=len(relation.open))
            for isolation in ("committed", "uncommitted"):
                flags = ("--complete", "rest", "--force", "--isolation", isolation)
                code, script, err = run("views", "-S", history.path, *flags)
                assert code == 0, err
                rows = read(history.client, "t", isolation)
                expected = Counter(
                    ((row["value"] or b"").hex().upper(), record(row)) for row in rows
                )
                sql = "SELECT hex(coalesce(value, ''::BLOB)) AS v, record FROM t"
                actual = bare.rows(script, sql)
                assert Counter((row["v"], json.dumps(row["record"])) for row in actual) == expected
                shown_rows = asked(history.client, "FROM t", isolation)
                pairs = (((row["value"] or b"").hex().upper(), row["record"]) for row in shown_rows)
                assert Counter((value, json.dumps(of)) for value, of in pairs) == expected
                typed_rows = asked(
                    history.client, "SELECT value, record.cups AS cups FROM t", isolation
                )
                assert Counter((row["value"], row["cups"]) for row in typed_rows) == Counter(
                    (row["value"], (row["record"] or {}).get("cups")) for row in shown_rows
                )
            seen["records"] += sum(record(row) != "null" for row in rows)
            actual = bare.rows(run("views", "-S", history.path)[1], f"SELECT {SAME}, record FROM t")
            counts = {
                row["message_id"]: row for row in bare.rows(script, f"SELECT {SAME}, record FROM t")
            }
            assert all(counts[row["message_id"]] == row for row in actual)
            seen["alone"] += len(actual)
    except BaseException:
        print(f"seed {seed}: {' '.join(history.trace)}")
        raise
    finally:
        history.client.close()
        shutil.rmtree(history.path)
    assert seen["records"] and seen["alone"]


def test_markers_come_from_the_files(tmp_path: Path, run: Run, bare: Bare) -> None:
    """An unclean file, whose markers are partly in a sealed ledger, and partly trimmed."""
    path = str(tmp_path / "store")
    txlog.init(path, ledger_entries_max=4, free_bytes_min=0)
    with txlog.open(path) as client:
        client.create_topic("t")
        first, second, third = (client.transaction(write_through=True) for _ in range(3))
        for txn in (first, second, third):
            client.producer("t").send(str(txn.id).encode(), txn=txn)
        first.commit()
        for _ in range(4):
            client.producer("t").send(b"plain")
        second.commit()
        client.checkpoint(roll_all=True)
        client.admin.compact("t")
        client.checkpoint()

        def compare() -> tuple[int, int]:
            """(messages in the views, messages that are not), compared with a reader."""
            [unclean] = relation_of(client, "t").unclean
            assert unclean.role == "s"
            code, script, err = run("views", "-S", path)
            assert code == 0, err
            lacking = int(script.splitlines()[1].split()[3])
            [counted] = bare.rows(script, "SELECT count(*) AS n FROM messages")
            assert counted["n"] + lacking == len(read(client, "t"))
            script = run("views", "-S", path, "--complete", "rest", "--force")[1]
            sql = "SELECT message_id AS id, hex(value) AS v FROM messages"
            assert Counter((row["id"], row["v"]) for row in bare.rows(script, sql)) == ids(client)
            return counted["n"], lacking

        assert compare() == (6, 0)
        third.commit()  # its row is in a file now, and its marker in a frame
        assert compare() == (6, 1)
        client.checkpoint(roll_all=True)
        client.producer("t").send(b"more")
        assert compare() == (7, 1)
        client.admin.trim("t", Bound("last", 4), force_unacked=True)
        assert compare()[1] == 1


def ids(client: txlog.Client) -> Counter[tuple[str, str]]:
    """Return the ids and values that a reader gives."""
    return Counter(
        (
            str(txlog.MessageId(row["ledger"], row["entry"], row["index"] or 0)),
            (row["value"] or b"").hex().upper(),
        )
        for row in read(client, "t")
    )


def test_files_that_were_moved_are_read_where_they_are(
    tmp_path: Path, run: Run, bare: Bare
) -> None:
    """Kills: the address of a file in an archive, taken for a path in the store."""
    path = str(tmp_path / "store")
    txlog.init(path)
    with txlog.open(path) as client:
        client.create_topic("t", schema=pa.schema([("cups", pa.int64())]))
        for cups in (1, 2):
            client.producer("t").send({"cups": cups})
            client.checkpoint(roll_all=True)
            if cups == 1:
                (tmp_path / "archive").mkdir()
                client.admin.offload("t", str(tmp_path / "archive"))
                client.checkpoint()
    for more, folder in (((), "/"), (("--relative",), path)):
        code, script, err = run("views", "-S", path, *more)
        assert code == 0, err
        sql = "SELECT list(record.cups ORDER BY lsn) AS cups FROM t"
        assert bare.rows(script, sql, folder) == [{"cups": [1, 2]}]


def test_relative_views_survive_a_copy(tmp_path: Path, run: Run, bare: Bare) -> None:
    """--relative, --out: the views stand where the files are; kills an absolute path."""
    path = tmp_path / "it's a [store]"
    txlog.init(str(path))
    with txlog.open(str(path)) as client:
        for topic in ("orders", "a.b/ns/Orders-1", "segments"):
            client.create_topic(topic)
            client.producer(topic).send(topic.encode())
        client.checkpoint(roll_all=True)
        client.producer("orders").send(b"tail")
    where = ("-S", str(path), "--relative")
    script = run("views", *where, "--complete", str(path / "rest"))[1]
    assert run("views", *where, "--out", str(path / "v.duckdb"))[0] == 0
    moved = tmp_path / "moved"
    os.rename(path, moved)
    count = "SELECT topic, count(*) AS n FROM messages GROUP BY 1 ORDER BY 1"
    rows = [{"topic": topic, "n": 1} for topic in ("a.b/ns/Orders-1", "orders", "segments")]
    assert bare.rows(str(moved / "v.duckdb"), count, str(moved)) == rows
    rows[1]["n"] = 2
    assert bare.rows(script, count, str(moved)) == rows
    sql = 'SELECT text(value) AS v FROM "a.b/ns/orders-1"'
    assert bare.rows(script, sql, str(moved)) == [{"v": "a.b/ns/Orders-1"}]
    sql = "SELECT count(*) AS n FROM segments WHERE file IS NOT NULL"
    assert bare.rows(script, sql, str(moved)) == [{"n": 3}]
    sql = 'SELECT text(value) AS v FROM "public/default/segments"'
    assert bare.rows(script, sql, str(moved)) == [{"v": "segments"}]


def test_the_newest_of_each_key_is_a_view(tmp_path: Path, run: Run, bare: Bare) -> None:
    """The view reads compacted files, as the log is trimmed; --complete adds newer messages."""
    path = str(tmp_path / "store")
    txlog.init(path)
    with txlog.open(path) as client:
        client.create_topic("users", 2)
        users = client.producer("users")
        for key, value in (("ada", b"1"), ("bob", b"2"), ("ada", b"3"), ("eve", b"4")):
            users.send(value, key=key)
        client.admin.compact_topic("users")
        client.checkpoint(roll_all=True)
        client.admin.trim("users", txlog.Bound.parse("end"), force_unacked=True)
        users.send(b"5", key="bob")
        users.send(None, key="eve")
    script = run("views", "-S", path)[1]
    sql = "SELECT text(key) || text(value) AS is FROM compacted ORDER BY 1"
    assert [row["is"] for row in bare.rows(script, sql)] == ["ada3", "bob2", "eve4"]
    assert bare.rows(script, "SELECT count(*) AS n FROM messages") == [{"n": 0}]
    script = run("views", "-S", path, "--complete", str(tmp_path / "rest"))[1]
    assert [row["is"] for row in bare.rows(script, sql)] == ["ada3", "bob5"]


def test_files_of_a_load_are_covered(tmp_path: Path, run: Run, bare: Bare) -> None:
    """Files of a load need no checkpoint, and have the LSN of the load. Kills: a null there."""
    path = str(tmp_path / "store")
    txlog.init(path)
    with txlog.open(path) as client:
        for topic in ("t", "other"):
            client.create_topic(topic, 2)
            bulk = client.bulk(topic, key=topic, batch=1)
            rows = {
                "value": [b"%d" % at for at in range(50)],
                "key": [b"%d" % at for at in range(50)],
            }
            answer = bulk.commit(bulk.stage([pa.table(rows)]))
        script = run("views", "-S", path)[1]
        assert "not covered: 0 " in script
        sql = "SELECT message_id AS id, hex(value) AS v FROM t"
        assert Counter((row["id"], row["v"]) for row in bare.rows(script, sql)) == ids(client)
        sql = "SELECT min(lsn) AS low, max(lsn) AS high FROM other"
        assert bare.rows(script, sql) == [{"low": answer["lsn"], "high": answer["lsn"]}]
        _, out, _ = run("query", "-S", path, "SELECT DISTINCT form FROM segments", "--json")
        assert {"form": "adopted"} in json.loads(out)
        sql = "SELECT count(*) AS n, count(stored_entry) AS m FROM messages_all"
        assert json.loads(run("query", "-S", path, sql, "--json")[1]) == [{"n": 100, "m": 100}]


def test_flags_of_views_and_existing_files(tmp_path: Path, run: Run, bare: Bare) -> None:
    """--topic, --force; a store without topics has the views too."""
    path = str(tmp_path / "store")
    txlog.init(path)
    script = run("views", "-S", path)[1]
    assert bare.rows(script, "SELECT count(key) AS n FROM messages") == [{"n": 0}]
    assert bare.rows(script, "SELECT count(file) AS n FROM segments") == [{"n": 0}]
    with txlog.open(path) as client:
        for topic in ("one", "two"):
            client.create_topic(topic)
            client.producer(topic).send(b"x")
    script = run("views", "-S", path, "--topic", "one", "--complete", "rest")[1]
    assert bare.rows(script, "SELECT topic FROM messages") == [{"topic": "one"}]
    assert os.listdir("rest") == ["public~default~one.parquet"]
    assert run("views", "-S", path, "--complete", "rest")[0] == 4
    assert run("views", "-S", path, "--topic", "none")[0] == 3
    assert run("views", "-S", path, "--isolation", "dirty")[0] == 2
    assert run("views", "-S", path, "--force")[0] == 2
    assert run("views", "-S", path, "--out", "v.duckdb")[0] == 0
    assert run("views", "-S", path, "--out", "v.duckdb")[0] == 4
    assert run("views", "-S", path, "--out", "v.duckdb", "--force")[0] == 0
    assert sorted(os.listdir()) == ["rest", "store", "v.duckdb"]


def test_the_script_is_made_without_duckdb(tmp_path: Path) -> None:
    """spec/cli 10: duckdb comes in only for --out; --complete computes, so for it too."""
    path = str(tmp_path / "store")
    txlog.init(path)
    done = run_child(python("loaded", "duckdb", "views", "-S", path))
    assert (done.stdout[:3], done.stderr) == ("-- ", "0 []\n")


@pytest.mark.parametrize(
    ("isolation", "price"),
    [
        ("uncommitted", None),
        ("committed", 1.5),
        pytest.param("committed", None, marks=pytest.mark.deep),
    ],
)
def test_typed_topics_have_their_records(
    tmp_path: Path, run: Run, bare: Bare, isolation: Isolation, price: float | None
) -> None:
    """Of two versions, sealed, joined with markers, adopted, in parts and in the journal; a
    transaction over two topics is not there twice."""
    bench = Bench(tmp_path / "store", coordinators=1)
    client = bench.client
    schemas = [
        Schema.parse("json", json.dumps({"type": "record", "name": "R", "fields": fields}))
        for fields in (
            [{"name": "cups", "type": "int"}],
            [
                {
                    "name": "price",
                    "type": ["double", "null"][:: 1 if price else -1],
                    "default": price,
                },
                {"name": "cups", "type": "long"},
            ],
        )
    ]
    for topic in ("t", "u"):
        client.create_topic(topic, schema=schemas[0])
        client.admin.set_schema_policies(topic, compatibility="backward", validation="record")
    client.create_topic("plain")
    open_txn = client.begin()["txn"]  # so that its sidecar cannot be sealed as clean
    for number in range(3):
        for topic in ("t", "u"):
            producer = client.producer(topic)
            producer.send({"cups": number})
            producer.send(b"no record" if number else None)
            producer.send({"cups": 66}, txn=open_txn)
        with client.transaction() as txn:
            for topic in ("t", "u"):
                client.producer(topic).send({"cups": 10 + number}, txn=txn)
        record = pa.array([{"cups": 100 + number}])
        bulk = client.bulk("t", key="k", batch=number)
        bulk.commit(bulk.stage([pa.table({"record": record})]))
        if number == 0:
            client.checkpoint(roll_all=True)
            client.topic("t").schemas.add(schemas[1])
            client.topic("u").schemas.add(schemas[1])
        elif number == 1:
            client.checkpoint(roll_all=True)
            client.admin.compact("u")
    client.checkpoint()
    client.producer("t").send({"cups": 1000, "price": 2.5})
    client.flush()
    flags = ("-S", bench.path, "--isolation", isolation)
    code, script, err = run("views", *flags, "--complete", str(tmp_path / "rest"))
    assert code == 0, err
    for topic in ("t", "u"):
        sql = f"SELECT message_id, value, record FROM {topic} ORDER BY ALL"
        with Query(client, sql, isolation=isolation) as query:
            expected = [row for rows in query.rows() for row in rows.to_pylist()]
        assert any(row["record"] is None for row in expected)
        columns = "SELECT message_id, hex(value) AS value, record FROM"
        actual = bare.rows(script, f"{columns} (FROM {topic} ORDER BY message_id, value, record)")
        for row in expected:
            row["value"] = row["value"] and row["value"].hex().upper()
        assert actual == expected, topic
        assert {row["record"]["price"] for row in actual if row["record"]} >= {price}
    assert bare.rows(script, "SELECT count(*) AS n FROM plain") == [{"n": 0}]
    if isolation == "committed":
        code, _, err = run("views", "-S", bench.path, "--out", str(tmp_path / "views.duckdb"))
        assert code == 0, err
        sql = "SELECT count(*) AS n FROM t WHERE record.cups >= 0"
        [row] = bare.rows(str(tmp_path / "views.duckdb"), sql)
        assert row["n"] > 0
    client.abort(open_txn)


@pytest.mark.parametrize("name", ["back\\slash", "[x] back\\slash", "a*b", "[x]", "it's"])
def test_views_of_a_store_with_an_odd_path(tmp_path: Path, run: Run, bare: Bare, name: str) -> None:
    """Kills: a path whose backslash breaks its escape as a pattern."""
    folder = tmp_path / name
    folder.mkdir()
    (tmp_path / "ab").mkdir()  # a pattern would match it
    bench = Bench(folder / "store")
    bench.client.create_topic("t")
    bench.client.producer("t").send(b"sealed")
    bench.client.checkpoint(roll_all=True)
    bench.client.producer("t").send(b"in the journal")
    store = ("-S", bench.path)
    for more in ((), ("--out", str(folder / "v.duckdb")), ("--complete", str(folder / "rest"))):
        code, script, err = run("views", *store, *more)
        assert code == 0, err
        if script:
            count = 2 if "--complete" in more else 1
            assert bare.rows(script, "SELECT count(*) AS n FROM t") == [{"n": count}]
    code, out, err = run("query", *store, "SELECT count(*) AS n FROM t", "--json")
    assert (code, json.loads(out)) == (0, [{"n": 2}]), err
    bench.close()

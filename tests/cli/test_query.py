"""Tests of the command query: the rows of a query in every form, and as a file."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import txlog
from txlog.cli.main import main
from txlog.cli.output.query_rows import limited, values
from txlog.errors import SqlError
from txlog.lake.sql.duck import Session

pytestmark = pytest.mark.usefixtures("quick_disk")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command in a directory with a store: exit code and output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TXLOG_STORE", "store")

    def call(*words: str) -> tuple[int, str, str]:
        code = main(words)
        out, err = capfd.readouterr()
        return code, out, err

    assert call("init", "store")[0] == 0
    assert call("topic", "create", "orders")[0] == 0
    assert call("produce", "orders", "-m", "one", "-m", "two")[0] == 0
    return call


MANY = "SELECT i, 'x' AS x FROM range(50_000) t(i) ORDER BY i"  # three batches


@pytest.mark.parametrize("form", ["json", "ndjson", "tsv", "csv", "names"])
def test_rows_of_several_batches_are_one_answer(run: Run, form: str) -> None:
    """Kills: a header or a bracket for each batch, a comma too many or too few."""
    code, out, err = run("query", MANY, "-f", form)
    assert (code, err[:12]) == (0, "" if form.endswith("json") else "50,000 rows ")
    if form == "json":
        assert json.loads(out) == [{"i": i, "x": "x"} for i in range(50_000)]
    elif form == "ndjson":
        assert [json.loads(line)["i"] for line in out.splitlines()] == list(range(50_000))
    elif form == "names":
        assert out.splitlines() == [str(i) for i in range(50_000)]
    else:
        mark = "\t" if form == "tsv" else ","
        assert out.splitlines() == [f"i{mark}x", *(f"{i}{mark}x" for i in range(50_000))]


def test_no_rows_are_an_answer_too(run: Run) -> None:
    """Kills: an answer that is no JSON, or without its header."""
    nothing = "SELECT message_id FROM orders WHERE false"
    assert run("query", nothing, "--json", "-q")[1] == "[]\n"
    assert run("query", nothing, "-f", "tsv", "-q")[1] == "message_id\n"
    assert run("query", 'SELECT 1 AS "a\nb"', "-f", "tsv", "-q")[1] == "a\\nb\n1\n"


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv"])
def test_out_writes_all_rows_once(run: Run, tmp_path: Path, suffix: str) -> None:
    """Kills: a file that is replaced unasked, half a file after an error, a temporary left."""
    name = f"rows.{suffix}"
    assert run("query", MANY, "--out", name)[0] == 0
    if suffix == "parquet":
        numbers = pq.read_table(name).column("i").to_pylist()
    elif suffix == "arrow":
        numbers = pa.ipc.open_file(Path(name).read_bytes()).read_all().column("i").to_pylist()
    else:
        numbers = [int(line.split(",")[0]) for line in Path(name).read_text().splitlines()[1:]]
    assert numbers == list(range(50_000))
    data_before = Path(name).read_bytes()
    assert run("query", "SELECT 1 AS i", "--out", name)[0] == 4
    late = "SELECT CASE WHEN i = 150000 THEN error('late') ELSE i END AS i FROM range(200000) t(i)"
    code, _, err = run("query", late, "--out", name, "--force")
    assert (code, "late" in err) == (1, True)
    assert Path(name).read_bytes() == data_before
    assert run("query", "SELECT 1 AS i", "--out", name, "--force")[0] == 0
    assert Path(name).read_bytes() != data_before
    assert sorted(path.name for path in tmp_path.iterdir()) == [name, "store"]


def test_sql_comes_from_an_argument_a_file_or_stdin(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """spec/cli 8.1: SQL has one source, and two sources are refused."""
    (tmp_path / "q.sql").write_text("SELECT count(*) AS n FROM orders")
    assert run("query", "--file", "q.sql", "--json", "-q")[1] == '[{"n":2}]\n'
    monkeypatch.setattr("sys.stdin", io.StringIO((tmp_path / "q.sql").read_text()))
    assert run("query", "-", "--json", "-q")[1] == '[{"n":2}]\n'
    assert run("query", "SELECT 1", "--file", "q.sql")[0] == 2
    assert run("query")[0] == 2
    assert run("query", "--file", "none.sql")[0] == 3
    assert run("query", "SELECT 1", "--param", "x")[0] == 2
    assert run("query", "SELECT 1", "--limit", "-1")[0] == 2
    assert run("query", "SELECT 1", "--out", "rows.txt")[0] == 2


def test_values_keep_their_types() -> None:
    """Kills: a sum that is a float, bytes that fail, an instant without its zone."""
    sql = (
        "SELECT sum(9007199254740993::BIGINT) AS big, 1.10::DECIMAL(9, 2) AS money,"
        " 'a'::BLOB AS utf8, '\\xFF'::BLOB AS bytes, 'nan'::DOUBLE AS nan, MAP {'k': 'v'} AS m,"
        " TIMESTAMPTZ '2026-11-20 09:12:04.123Z' AS at, TIMESTAMP '2026-11-20 09:12:04' AS plain,"
        " TIMESTAMP_NS '2026-11-20 09:12:04.123456789' AS ns, DATE '2026-11-20' AS d,"
        " [{'x': 1.5::DECIMAL(2, 1)}] AS nested, NULL AS nothing, true AS yes"
    )
    with Session() as session:
        [batch] = session.stream(sql)
        assert dict(zip(batch.schema.names, values(batch)[0], strict=True)) == {
            "big": 9007199254740993,
            "money": "1.10",
            "utf8": "a",
            "bytes": "/w==",
            "nan": "nan",
            "m": {"k": "v"},
            "at": "2026-11-20T09:12:04.123Z",
            "plain": "2026-11-20T09:12:04.000",
            "ns": "2026-11-20T09:12:04.123456",
            "d": "2026-11-20",
            "nested": [{"x": "1.5"}],
            "nothing": None,
            "yes": True,
        }
        assert Decimal("1.10") == session.row("SELECT 1.10::DECIMAL(9, 2) AS money")["money"]


class _Counted:
    """Endless rows that count the batches taken from them."""

    def __init__(self) -> None:
        self.schema = pa.schema([("i", pa.int64())])
        self.asked = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while True:
            self.asked += 1
            yield pa.record_batch({"i": [1, 2, 3]})


@pytest.mark.parametrize(("limit", "batch_count"), [(0, 0), (1, 1), (3, 1), (4, 2)])
def test_limit_computes_no_more_than_it_prints(limit: int, batch_count: int) -> None:
    """Kills: a limit that reads a topic to its end."""
    rows = _Counted()
    assert sum(batch.num_rows for batch in limited(rows, limit)[1]) == limit
    assert rows.asked == batch_count


def test_an_error_behind_the_first_rows_is_one_of_sql() -> None:
    """Kills: Arrow's OSError for the error of a query, which would look like a broken disk."""
    late = "SELECT CASE WHEN i = 150000 THEN error('late') ELSE i END AS i FROM range(200000) t(i)"
    with Session() as session, pytest.raises(SqlError, match="late"):
        session.stream(late).read_all()


def test_field_help_names_every_column_of_every_relation(run: Run) -> None:
    """spec/cli 4: -f help of query and views lists the columns and types that DuckDB reports."""
    columns_of: dict[str, list[list[str]]] = {}
    for line in run("query", "-f", "help")[1].splitlines():
        name, kind, meaning = line.split("\t")
        assert meaning
        relation, dot, column = name.rpartition(".")
        columns_of.setdefault(relation if dot else "messages", []).append([column, kind])
    columns_of["messages_all"] = columns_of["messages"] + columns_of["messages_all"]
    columns_of["compacted"] = columns_of["messages"]
    assert len(columns_of) == 17
    for relation, columns in columns_of.items():
        sql = f"SELECT column_name, column_type FROM (DESCRIBE {relation})"
        described = [[*row.values()] for row in json.loads(run("query", sql, "--json")[1])]
        assert described == columns, relation
    script = run("views", "--out", "v.duckdb")
    assert script[0] == 0
    lines = [line.split("\t")[:2] for line in run("views", "-f", "help")[1].splitlines()]
    with duckdb.connect("v.duckdb", read_only=True) as database:
        assert lines == [
            [f"{relation}.{name}", kind]
            for relation in ("messages", "segments")
            for name, kind, *_ in database.execute(f"DESCRIBE {relation}").fetchall()
        ]


def test_a_query_of_messages_loads_no_client(run: Run) -> None:
    """A command that only reads messages opens a store for them; lists load the rest."""
    program = (
        "import sys; from txlog.cli.main import main; code = main(sys.argv[1:]);"
        " loaded = [name in sys.modules for name in ('txlog.lake.sql.client_query',"
        " 'txlog.client.client')];"
        " sys.exit(code or 10 + loaded[0] + 2 * loaded[1])"
    )
    source = str(Path(txlog.__file__).parents[1])
    for sql, code in (("SELECT count(*) AS n FROM orders", 10), ("FROM topics", 11)):
        done = subprocess.run(
            [sys.executable, "-c", program, "query", sql, "-q"],
            check=False,
            env={**os.environ, "PYTHONPATH": source},
            stdout=subprocess.DEVNULL,
        )
        assert done.returncode == code, sql

"""`txlog txn resolve`: prepared transactions that a crash left; spec/transactions 5.3."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import databases
from tests.databases import Duckdb, Kind, Postgresql, Sqlite, prepared_only
from tests.engine_kit import Bench, values
from txlog import TxnId
from txlog.cli.main import main

pytestmark = [pytest.mark.usefixtures("quick_disk"), pytest.mark.store({"t": 1}, coordinators=1)]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(bench: Bench, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("TXLOG_TXN", raising=False)

    def call(*line: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(["-S", str(bench.path), "txn", *line])
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return call


@pytest.fixture(params=["sqlite", "duckdb", "postgresql"])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    if request.param == "postgresql":
        if not databases.has_postgresql():
            pytest.skip("there is no psycopg or no server of PostgreSQL here")
        with databases.postgresql_server() as address:
            yield Postgresql(address)
        return
    yield Sqlite(tmp_path) if request.param == "sqlite" else Duckdb(tmp_path)


def left(bench: Bench, kind: Kind, *, committed: bool) -> TxnId:
    """A transaction that a process left prepared; committed: in the database."""
    connection: Any = kind.connect()
    txn = prepared_only(bench.client, connection, "a")
    connection.commit() if committed else connection.rollback()
    connection.close()
    return txn


@pytest.mark.parametrize("committed", [True, False])
def test_it_asks_the_database(bench: Bench, kind: Kind, run: Run, *, committed: bool) -> None:
    txn = left(bench, kind, committed=committed)
    (row,) = json.loads(run("list", "--state", "prepared", "--json")[1])
    assert (row["txn"], row["database"].partition(":")[0]) == (str(txn), kind.name)
    code, out, err = run("resolve", "--database", kind.url(), "--json")
    state = "committed" if committed else "aborted"
    assert (code, err) == (0, "")
    assert [(row["txn"], row["state"]) for row in json.loads(out)] == [(str(txn), state)]
    assert values(bench.client) == ([b"a"] if committed else [])
    code, out, err = run("resolve", "--database", kind.url())
    assert "no transaction of this database is prepared" in err


def test_a_person_answers_with_consent(bench: Bench, tmp_path: Path, run: Run) -> None:
    txn = left(bench, Sqlite(tmp_path), committed=False)
    code, out, err = run("resolve", str(txn), "--abort", "--json", "--no-input")
    assert (code, out, json.loads(err)["error"]["code"]) == (9, "", "TXL-901")
    assert "orders-" in json.loads(err)["error"]["message"]
    assert bench.client.show_transaction(txn)["state"] == "prepared"
    code, out, _ = run("resolve", str(txn), "--abort", "--json", "--yes")
    assert (code, json.loads(out)[0]["state"]) == (0, "aborted")
    code, _, err = run("resolve", str(txn), "--commit", "--yes")
    assert code == 4, err


def test_a_database_with_an_open_transaction_answers_later(
    bench: Bench, tmp_path: Path, run: Run
) -> None:
    kind = Sqlite(tmp_path)
    owner = kind.connect()
    txn = prepared_only(bench.client, owner, "a")
    code, out, _ = run("resolve", str(txn), "--database", kind.url(), "--json")
    assert (code, json.loads(out)[0]["state"]) == (8, "prepared")
    owner.commit()
    owner.close()
    assert run("resolve", str(txn), "--database", kind.url())[0] == 0
    assert values(bench.client) == [b"a"]


def test_wrong_databases_are_errors_of_one_line(bench: Bench, tmp_path: Path, run: Run) -> None:
    text, empty = tmp_path / "text.db", Sqlite(tmp_path)
    text.write_bytes(b"no database at all, but long enough to be read as one" * 40)
    for address in (f"sqlite:{text}", f"duckdb:{text}", empty.url(), "sqlite:", "mysql:x"):
        code, out, err = run("resolve", "--database", address)
        assert code, address
        assert out == ""
        assert err.startswith("error: "), err


def test_a_copy_decides_with_consent_only(bench: Bench, tmp_path: Path, run: Run) -> None:
    """A copy has no row for what its original has committed since, and answers abort."""
    kind = Sqlite(tmp_path)
    left(bench, kind, committed=True)
    run("resolve", "--database", kind.url())
    shutil.copy(kind.path, tmp_path / "copy.db")
    txn = left(bench, kind, committed=True)
    code, _, err = run("resolve", "--database", f"sqlite:{tmp_path / 'copy.db'}", "--no-input")
    assert code == 9 and f"ask a copy of {kind.path}" in err, err
    assert bench.client.show_transaction(txn)["state"] == "prepared"
    kind.path.rename(tmp_path / "moved.db")
    assert run("resolve", "--database", f"sqlite:{tmp_path / 'moved.db'}")[0] == 0
    assert values(bench.client) == [b"a", b"a"]


def test_mistakes_show_the_line_that_works(bench: Bench, tmp_path: Path, run: Run) -> None:
    kind, other = Sqlite(tmp_path), Duckdb(tmp_path)
    assert "txn list --state prepared" in run("resolve")[2]
    code, _, err = run("resolve", "0:7", "--database", kind.url())
    assert (code, "was never issued" in err) == (3, True), err
    txn = left(bench, kind, committed=True)
    for words in (["resolve"], ["resolve", str(txn)], ["commit", str(txn)], ["abort", str(txn)]):
        code, _, err = run(*words)
        assert code and f"--database {kind.url()}" in err, err
    for address in (str(kind.path), f"duckdb:{kind.path}"):  # DuckDB would load an extension
        code, _, err = run("resolve", "--database", address)
        assert (code, f"hint   --database {kind.url()}" in err) == (2, True), err
    code, _, err = run("resolve", "--database", f"sqlite:{other.path}")
    assert (code, f"hint   --database {other.url()}" in err) == (2, True), err
    assert run("resolve", str(txn), "--database", kind.url())[0] == 0
    code, _, err = run("resolve", str(txn), "--database", kind.url())
    assert (code, "is COMMITTED, not prepared" in err) == (4, True), err

"""Tests of txlog.cli.demo: the data, the deaths, the proof, and a short run with real kills."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import txlog
from tests.harness import python
from tests.source_tree import SOURCE
from tests.terminal import typed
from tests.tiers import graded
from txlog.cli import demo
from txlog.cli.commands import demo as demo_command
from txlog.cli.demo import check, pipeline, source, supervisor, tour
from txlog.cli.demo.worker import PipeGate
from txlog.cli.main import main
from txlog.errors import AlreadyExists, CommandFailed, InvalidArgument
from txlog.lake.sql.duck import Session

LIMIT = 40
NONE_COMMITTED = pa.table({"InvoiceNo": pa.array([], pa.string())})


@pytest.fixture
def session() -> Iterator[Session]:
    """Return a session over the first invoices of the file."""
    with source.open_source(source.locate(), LIMIT) as opened:
        yield opened


def test_file_has_the_published_totals() -> None:
    """Guards the data: the published totals of the whole file, prices summed as decimals."""
    with source.open_source(source.locate(), None) as session:
        assert source.size(session) == (541_909, 25_900)
        assert session.row(
            "SELECT count(DISTINCT InvoiceNo) FILTER (InvoiceNo LIKE 'C%') AS refunds,"
            " sum(Quantity::BIGINT)::BIGINT AS quantity,"
            " sum(Quantity::BIGINT * UnitPrice::DECIMAL(18,3)) AS value FROM chosen"
        ) == {"refunds": 3836, "quantity": 5_176_450, "value": Decimal("9747747.934")}


@pytest.mark.deep
def test_lines_of_an_invoice_are_grouped_though_scattered_in_the_file() -> None:
    """Kills: an invoice read as a run of lines, as one invoice of the file is interrupted."""
    with source.open_source(source.locate(), None) as session:
        rows, starts = source.messages(session, NONE_COMMITTED)
    assert (len(rows), len(starts) - 1, starts[0], starts[-1]) == (541_909, 25_900, 0, 541_909)
    session_of_rows = pa.table({"value": rows.column("value"), "row": range(len(rows))})
    with Session() as session:
        session.register("rows", session_of_rows)
        scattered = session.row(
            "SELECT count(*) AS n FROM (SELECT decode(value)->>'InvoiceNo' AS invoice FROM rows"
            " GROUP BY invoice HAVING max(row) - min(row) + 1 != count(*))"
        )
    assert scattered == {"n": 0}


def test_message_of_a_line_is_compact_json_with_its_place_in_the_invoice(session: Session) -> None:
    """Guards the format of `orders`; the price stays the text of the file."""
    rows, starts = source.messages(session, NONE_COMMITTED)
    assert starts[:3] == [0, 7, 9]
    assert rows.column("key")[0].as_py() == b"17850.0"
    assert rows.column("value")[0].as_py() == (
        b'{"InvoiceNo":"536365","Line":1,"Lines":7,"StockCode":"85123A","Description":'
        b'"WHITE HANGING HEART T-LIGHT HOLDER","Quantity":6,"InvoiceDate":"2010-12-01 08:26:00",'
        b'"UnitPrice":"2.55","CustomerID":"17850.0","Country":"United Kingdom"}'
    )
    assert rows.column("event_time").cast(pa.int64())[0].as_py() == 1_291_191_960_000


def test_committed_invoices_are_not_made_again(session: Session) -> None:
    """Kills: a restarted worker that loads an invoice twice."""
    all_rows, starts = source.messages(session, NONE_COMMITTED)
    committed = pa.table({"InvoiceNo": ["536365", "536367"]})
    remaining, remaining_starts = source.messages(session, committed)
    assert remaining_starts[:2] == [0, 2]
    assert len(remaining) == len(all_rows) - 7 - 12
    assert len(remaining_starts) == len(starts) - 2


def test_nothing_is_left_when_every_invoice_is_committed(session: Session) -> None:
    """Guards the worker that was killed between its last commit and its end."""
    numbers = session.arrow("SELECT DISTINCT InvoiceNo FROM chosen")
    rows, starts = source.messages(session, numbers)
    assert (len(rows), starts) == (0, [0])


def test_an_invoice_cut_by_a_batch_is_held_back(session: Session) -> None:
    """Kills: a total over a part of an invoice, which a batch at its maximum has cut."""
    rows = pa.table(source.messages(session, NONE_COMMITTED)[0])
    with Session() as own_session:
        whole, totals = pipeline._transform(own_session, rows.slice(0, 8))
        assert whole.to_pylist() == [True] * 7 + [False]
        assert [orjson.loads(value) for value in totals.column("value").to_pylist()] == [
            {"InvoiceNo": "536365", "Lines": 7, "Quantity": 40, "Value": "139.120"}
        ]
        whole, totals = pipeline._transform(own_session, rows.slice(7, 1))
        assert (whole.to_pylist(), totals.num_rows) == ([False], 0)


def test_deaths_are_decided_by_the_seed_and_leave_work() -> None:
    """Guards: the same seed gives the same deaths, in order, before the last invoice."""
    assert supervisor.deaths(1000, 5, 7, "load") == supervisor.deaths(1000, 5, 7, "load")
    assert supervisor.deaths(1000, 5, 7, "load") != supervisor.deaths(1000, 5, 8, "load")
    assert supervisor.deaths(1000, 5, 7, "load") != supervisor.deaths(1000, 5, 7, "invoicing")
    for total in (1, 2, 3, 1000):
        plan = supervisor.deaths(total, 9, 1, "load")
        assert len(plan) == 9
        assert plan == sorted(plan, key=lambda death: death.at)
        assert all(death.at <= death.allow < total for death in plan)


def test_gate_holds_a_worker_that_may_not_commit() -> None:
    """Guards: a worker without permission reports it, waits, and ends with its supervisor."""
    output = io.StringIO()
    gate = PipeGate(2, output, io.StringIO())
    gate.begun(0)
    gate.before_commit(2)
    gate.committed(2)
    with pytest.raises(SystemExit):
        gate.before_commit(3)
    assert output.getvalue() == "begun 0\ndone 2\nheld 3\n"


def fake(monkeypatch: pytest.MonkeyPatch, *command: str) -> None:
    """Let the supervisor start a command in place of the worker."""

    def start(stage: supervisor.Stage, allow: int) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        words = [*command, str(allow)]
        return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    monkeypatch.setattr(supervisor, "_start", start)


@pytest.mark.parametrize(
    "line", ["", "\n", "do", "done", "done 1", "done \n", "done x\n", "so 1\n"]
)
def test_line_that_a_kill_cut_short_says_nothing(line: str) -> None:
    """Kills: a number that lacks its last digits, or a supervisor that breaks on half a word."""
    assert supervisor.parsed(line) is None
    assert supervisor.parsed("done 12\n") == ("done", 12)


def test_every_planned_death_is_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a worker that ends before its planned death; the gate holds it instead."""
    fake(monkeypatch, *python("demo_worker", 0, 30))
    seen: list[tuple[str, int, int, int]] = []
    stage = supervisor.Stage("load", 30, ())
    plan = supervisor.deaths(30, 4, 3, "load")
    kills = supervisor.run_stage(stage, plan, lambda *report: seen.append(report))
    assert kills == 4
    assert seen[-1] == ("load", 30, 30, 4)
    for kill, death in enumerate(plan):
        assert max(done for _, done, _, killed in seen if killed == kill) <= death.allow


def test_worker_that_fails_is_an_error_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kills: a failure taken for one of the kills, and repeated for ever."""
    fake(monkeypatch, sys.executable, "-c", "raise ValueError('no such thing')")
    with pytest.raises(CommandFailed, match="no such thing") as caught:
        supervisor.run_stage(supervisor.Stage("load", 30, ()), [])
    assert caught.value.fields["status"] == 1


def test_worker_that_ends_unkilled_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a death that is counted although the worker ended by itself."""
    fake(monkeypatch, sys.executable, "-c", "print('done 0')")
    plan = [supervisor.Death(at=5, allow=9, delay_ms=0)]
    with pytest.raises(CommandFailed, match="before it could be killed"):
        supervisor.run_stage(supervisor.Stage("load", 30, ()), plan)


def made_rows(session: Session) -> tuple[pa.Table, pa.Table]:
    """Return orders and outputs as a run without a fault would leave them."""
    batch, starts = source.messages(session, NONE_COMMITTED)
    ids = [txn for txn, (start, stop) in enumerate(pairwise(starts)) for _ in range(start, stop)]
    orders = pa.table(batch).select(["key", "value"])
    with Session() as own_session:
        totals = pipeline._transform(own_session, orders)[1]
    count = totals.num_rows
    outputs = pa.table(
        {
            "topic": pc.if_else(totals.column("refund"), "refunds", "invoices"),
            "txn_most": [1] * count,
            "txn_least": [7] * count,
            "value": totals.column("value"),
        }
    )
    columns = {"txn_most": [0] * len(ids), "txn_least": ids, "value": orders.column("value")}
    return pa.table(columns), outputs


def wrong(checks: list[check.Check]) -> set[str]:
    """Return the names of the comparisons that failed."""
    return {row["name"] for row in checks if not row["ok"]}


def test_proof_accepts_a_right_store(session: Session) -> None:
    """Guards the check itself: no false alarm, and the sums of the first 40 invoices."""
    orders, outputs = made_rows(session)
    checks, totals = check.check_rows(session, orders, outputs)
    assert wrong(checks) == set()
    assert totals["transactions"] == LIMIT + 1
    assert totals["invoices and refunds"] == LIMIT


@pytest.mark.parametrize(
    ("fault", "noticed"),
    graded(
        [
            ("line missing", "lines missing"),
            ("line twice", "lines too many"),
            ("line altered", "lines missing"),
            ("invoice split", "invoices by transaction"),
            ("total missing", "invoice totals missing"),
            ("total twice", "invoice totals too many"),
            ("penny off", "value"),
            ("wrong topic", "refunds"),
        ],
        2,
    ),
)
def test_proof_names_each_fault(session: Session, fault: str, noticed: str) -> None:
    """Guards the check: it reports every kind of fault by its name."""
    orders, outputs = made_rows(session)
    first = outputs.slice(0, 1)
    if fault == "line missing":
        orders = orders.slice(1)
    elif fault == "line twice":
        orders = pa.concat_tables([orders, orders.slice(3, 1)])
    elif fault == "line altered":
        values = [orders.column("value")[0].as_py().replace(b"2.55", b"2.56")]
        values += orders.column("value")[1:].to_pylist()
        orders = orders.set_column(2, "value", pa.array(values, pa.binary()))
    elif fault == "invoice split":
        ids = [99_999, *orders.column("txn_least")[1:].to_pylist()]
        orders = orders.set_column(1, "txn_least", pa.array(ids, pa.int64()))
    elif fault == "total missing":
        outputs = outputs.slice(1)
    elif fault == "total twice":
        outputs = pa.concat_tables([outputs, first])
    elif fault == "penny off":
        value = first.column("value")[0].as_py().replace(b"139.120", b"139.130")
        first = first.set_column(3, "value", pa.array([value], pa.binary()))
        outputs = pa.concat_tables([first, outputs.slice(1)])
    else:
        first = first.set_column(0, "topic", pa.array(["refunds"]))
        outputs = pa.concat_tables([first, outputs.slice(1)])
    assert noticed in wrong(check.check_rows(session, orders, outputs)[0])


def test_proof_of_an_empty_store_fails_without_breaking(session: Session) -> None:
    """Guards: an empty store is a failed proof, and no crash of the check."""
    orders, outputs = made_rows(session)
    checks, totals = check.check_rows(session, orders.slice(0, 0), outputs.slice(0, 0))
    assert {"lines", "value", "lines missing", "invoice totals missing"} <= wrong(checks)
    assert totals["value"] is None


@pytest.mark.parametrize(("limit", "kills"), [(0, 1), (1, -1)])
def test_senseless_arguments_are_refused(tmp_path: Path, limit: int, kills: int) -> None:
    """Guards: the demo refuses them before it makes a store."""
    with pytest.raises(InvalidArgument):
        demo.run(str(tmp_path / "store"), limit=limit, kills=kills)
    assert not (tmp_path / "store").exists()


class Log:
    """A gate that never holds a worker, and records the worker's reports."""

    def __init__(self) -> None:
        self.reports: list[int] = []

    def begun(self, done: int) -> None:
        """Remember."""
        self.reports.append(done)

    def before_commit(self, done: int) -> None:
        """Let it commit."""

    def committed(self, done: int) -> None:
        """Remember."""
        self.reports.append(done)


def test_worker_takes_over_the_transaction_of_a_killed_one(tmp_path: Path) -> None:
    """Kills: lines that are lost because a dead worker's open transaction has acknowledged them."""
    path, file = str(tmp_path / "store"), source.locate()
    txlog.init(path)
    with txlog.open(path) as client:
        pipeline.create(client)
        dead = client.begin(key=pipeline.KEY)["txn"]
        client.producer(pipeline.ORDERS).send(b"not json", key=b"k", txn=dead)
        pipeline.load(client, Log(), file, LIMIT)
        dead = client.begin(key=f"function:{pipeline.INVOICING}:0")["txn"]
        with client.consumer(pipeline.ORDERS, pipeline.INVOICING) as consumer:
            consumer.acknowledge(consumer.receive_batch(100), txn=dead)
            client.producer(pipeline.INVOICES).send(b"not json", txn=dead)
        log = Log()
        pipeline.invoicing(client, log, 16)
        assert (log.reports[0], log.reports[-1]) == (0, LIMIT)
        with source.open_source(file, LIMIT) as session:
            checks, _ = check.check_store(client, session)
        assert wrong(checks) == set()


def test_proof_counts_lines_that_an_open_transaction_holds(tmp_path: Path) -> None:
    """Kills: a proof that counts receivable lines only, and no lines in an open transaction."""
    path, file = str(tmp_path / "store"), source.locate()
    txlog.init(path)
    with txlog.open(path) as client:
        pipeline.create(client)
        pipeline.load(client, Log(), file, 2)
        pipeline.invoicing(client, Log(), 16)
        pipeline.load(client, Log(), file, 3)
        with client.consumer(pipeline.ORDERS, pipeline.INVOICING) as consumer:
            consumer.acknowledge(consumer.receive_batch(100), txn=client.begin()["txn"])
        with source.open_source(file, 3) as session:
            checks, _ = check.check_store(client, session)
    assert {"lines not acknowledged", "transactions not ended"} <= wrong(checks)


@pytest.mark.deep
def test_short_run_is_exact_through_real_kills(tmp_path: Path) -> None:
    """Guards the main job: real processes, real SIGKILL, and DuckDB agrees with the file."""
    path = str(tmp_path / "store")
    seen: list[tuple[str, int, int, int]] = []
    result = demo.run(
        path, kills=2, seed=11, limit=LIMIT, progress=lambda *report: seen.append(report)
    )
    assert result["exact"], result["check_list"]
    assert result["kills"] == 4
    assert result["invoices"] + result["refunds"] == LIMIT
    assert result["transactions"] > LIMIT
    assert (result["path"], result["seed"]) == (path, 11)
    assert [report for report in seen if report[1] == LIMIT] == [
        ("load", LIMIT, LIMIT, 2),
        ("invoicing", LIMIT, LIMIT, 2),
    ]
    with txlog.open(path) as client:
        assert [row["topic"] for row in client.topics()] == ["invoices", "orders", "refunds"]
        assert client.transactions(states=["open"]) == []
    with pytest.raises(AlreadyExists):
        demo.run(path, kills=0, limit=1)


# --- the verdict and the tour ---------------------------------------------------------------------


def answered(**changes: object) -> dict[str, object]:
    """The result of a whole run, with some values changed."""
    answer: dict[str, object] = {
        "path": "./my demo", "invoices": 22_064, "refunds": 3_836, "kills": 10,
        "lost": 0, "doubled": 0, "check_list": [check.compared("value", "1.5", "1.5")],
    }  # fmt: skip
    return {**answer, **changes}


def test_verdict_says_what_was_killed_lost_and_doubled() -> None:
    verdict, following = demo_command.verdict(answered()).splitlines()
    assert verdict == "10 workers killed; 25,900 invoices: 0 lost, 0 doubled"
    assert "txlog demo --tour" in following
    assert "rm -r './my demo'" in following


def test_verdict_names_what_differs() -> None:
    wrong_value = [check.compared("value", "1.5", "1.4")]
    text = demo_command.verdict(answered(lost=1, doubled=2, check_list=wrong_value))
    assert "1 lost, 2 doubled\ndiffers: value: 1.4, expected 1.5\n" in text


@pytest.mark.deep
def test_demonstration_ends_with_its_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A short run with real kills: the counts come from the proof."""
    store = str(tmp_path / "store")
    assert main(["demo", store, "--limit", "40", "--kills", "1", "--json"]) == 0
    printed = capsys.readouterr()
    answer = orjson.loads(printed.out)
    assert (answer["lost"], answer["doubled"], answer["exact"]) == (0, 0, True)
    assert printed.err.startswith("2 workers killed; 40 invoices: 0 lost, 0 doubled\n")


@pytest.mark.deep
def test_tour_in_a_pipe_goes_on_to_its_end(tmp_path: Path) -> None:
    """It runs its commands, kills the function, and leaves the store; a second one is refused."""
    words = [sys.executable, "-m", "txlog", "demo", str(tmp_path / "tour"), "--tour"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for number, step in enumerate(tour.STEPS, start=1):
        assert f"{number} of {len(tour.STEPS)}  {step.title}\n" in done.stdout
        assert all(f"$ {command}\n" in done.stdout for command in step.commands)
    assert "killed, exit 137\n" in done.stdout
    assert "bills\tlost\tdoubled\n20000\t0\t0\n" in done.stdout
    assert f"rm -r {tmp_path / 'tour'} " in done.stdout
    with txlog.open(str(tmp_path / "tour" / tour.STORE)) as client:
        assert {row["topic"] for row in client.topics()} == {"notes", "orders", "totals"}
    again = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert again.returncode == 4
    assert "tour is not empty" in again.stderr


@pytest.mark.deep
def test_tour_on_a_terminal_waits_and_can_be_left(tmp_path: Path) -> None:
    """Enter goes on; q ends the tour, which still says how to remove its store."""
    words = [sys.executable, "-m", "txlog", "demo", "walk", "--tour"]
    script = f"cd {tmp_path} && exec {' '.join(words)}"
    asked = "q ends the tour: "
    keys = [("\n", asked), ("q\n", "rm -r walk")]
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(SOURCE)}
    text = typed(["sh", "-c", script], environment, keys, asked)
    assert "2 of 8" in text
    assert "3 of 8" not in text


def test_txlog_alone_offers_the_tour_where_there_is_no_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TXLOG_STORE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert main([]) == 0
    assert "txlog demo --tour" in capsys.readouterr().out
    txlog.init(str(tmp_path / "txlog-store"))
    assert main([]) == 0
    assert "txlog demo --tour" not in capsys.readouterr().out

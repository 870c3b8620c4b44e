"""The examples for a web service, a notebook and Airflow run, and are exact."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import types
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import nbclient
import nbformat
import pytest

import txlog
from tests.source_tree import ROOT, SOURCE

EXAMPLES = ROOT / "examples"


# --- FastAPI ----------------------------------------------------------------------------------


class Service:
    """The example under uvicorn, in a process of its own on a socket that the test has bound."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ, "PYTHONPATH": str(SOURCE), "SHOP_DB": str(folder / "shop.db"),
            "TXLOG_STORE": str(folder / "store"),
        }  # fmt: skip
        self.listener = socket.create_server(("127.0.0.1", 0))

    @contextmanager
    def running(self) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Client]]:
        words = ["uvicorn", "--app-dir", str(EXAMPLES), "--fd", str(self.listener.fileno())]
        process = subprocess.Popen(
            [sys.executable, "-m", *words, "fastapi_outbox:app"],
            env=self.environment,
            cwd=self.folder,
            pass_fds=[self.listener.fileno()],
            stderr=subprocess.PIPE,
        )
        url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        try:
            with httpx.Client(base_url=url, timeout=60) as client:
                yield process, client
        finally:
            process.kill()
            process.communicate()

    def stored(self) -> Counter[int]:
        """How often each order is in the topic."""
        with txlog.open(self.environment["TXLOG_STORE"]) as client:
            values = [message.value or b"" for message in client.reader("orders")]
        return Counter(json.loads(value)["id"] for value in values)

    def rows(self, query: str) -> list[Any]:
        with closing(sqlite3.connect(self.environment["SHOP_DB"])) as shop:
            return [row[0] for row in shop.execute(query)]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """The service; its socket outlives its processes, so no request meets a closed port."""
    started = Service(tmp_path)
    yield started
    started.listener.close()


def ordered(client: httpx.Client, number: int) -> int:
    answer = client.post("/orders", json={"customer": f"c{number % 3}", "item": "cup"})
    assert answer.status_code == 201, answer.text
    return int(answer.json()["id"])


@pytest.mark.deep
def test_orders_of_the_service_are_stored_once_though_it_is_killed(service: Service) -> None:
    """Every order that the service confirmed, and every row of its database, is one message."""
    answered: set[int] = set()
    for _ in range(2):
        with service.running() as (process, client):
            answered |= {ordered(client, number) for number in range(20)}
            process.send_signal(signal.SIGKILL)
            process.wait()
    with service.running() as (process, client):
        answered.add(ordered(client, 0))
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) in (0, -signal.SIGTERM)
    assert len(answered) == 41
    assert service.rows("SELECT count(*) FROM outbox") == [0]
    assert service.stored() == dict.fromkeys(service.rows("SELECT id FROM orders"), 1)
    assert answered == set(service.stored())


@pytest.mark.deep
def test_message_that_was_sent_but_not_removed_is_stored_once(service: Service) -> None:
    """A kill between the send and the removal: the relay sends the row a second time."""
    with service.running() as (process, client):
        ordered(client, 0)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
    with closing(sqlite3.connect(service.environment["SHOP_DB"])) as shop, shop:
        value = json.dumps({"id": 1, "customer": "c0", "item": "cup"})
        shop.execute("INSERT INTO outbox VALUES (1, 'c0', ?)", [value])
    with service.running() as (process, client):
        ordered(client, 1)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
    assert service.rows("SELECT count(*) FROM outbox") == [0]
    assert service.stored() == {1: 1, 2: 1}


# --- Jupyter ----------------------------------------------------------------------------------


@pytest.mark.deep
def test_notebook_runs_in_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real kernel runs all cells; their outputs match the data."""
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    assert not any(cell.get("outputs") for cell in notebook.cells), "committed without outputs"
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=120, resources=resources).execute()
    texts = [
        output["data"]["text/plain"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "data" in output
    ]
    assert texts[0] == "3"
    assert texts[1].count("b'ana'") == 2
    assert "15.75" in texts[2]
    assert "15.75" in texts[3]
    assert "shape: (2, 3)" in texts[3]


# --- Airflow ----------------------------------------------------------------------------------


class Reference:
    """The result of a task in a DAG that is being described."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def __rshift__(self, following: Reference) -> Reference:
        return following


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> tuple[types.ModuleType, list[Reference]]:
    """The DAG file, with a stand-in for the two names of Airflow that it imports.

    Airflow itself takes too long to install here: this checks the file and the work of its tasks,
    not the scheduler.
    """
    tasks: list[Reference] = []

    def task(**_: Any) -> Any:
        def decorate(function: Any) -> Any:
            def describe(*arguments: Any) -> Reference:
                tasks.append(Reference(lambda *values: function(*(values or arguments))))
                return tasks[-1]

            return describe

        return decorate

    sdk = types.ModuleType("airflow.sdk")
    sdk.dag = lambda **_: lambda function: function  # type: ignore[attr-defined]
    sdk.task = task  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "airflow", types.ModuleType("airflow"))
    monkeypatch.setitem(sys.modules, "airflow.sdk", sdk)
    spec = importlib.util.spec_from_file_location("airflow_dag", EXAMPLES / "airflow_dag.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, tasks


def test_tasks_of_the_dag_change_nothing_when_they_are_retried(
    tmp_path: Path,
    pipeline: tuple[types.ModuleType, list[Reference]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, (load, bill) = pipeline
    monkeypatch.setenv("INVOICES", str(tmp_path))
    monkeypatch.setenv("TXLOG_STORE", str(tmp_path / "store"))
    lines = [("1", 2, "2.55"), ("1", 3, "1.10"), ("2", 1, "9.99")]
    text = "".join(f"{invoice},{count},{price}\n" for invoice, count, price in lines)
    (tmp_path / "2026-01-01T00.csv").write_text(f"InvoiceNo,Quantity,UnitPrice\n{text}")
    for _ in range(2):
        assert load.run("2026-01-01T00") == 3
    assert bill.run() == 3
    assert bill.run() == 0
    with txlog.open(str(tmp_path / "store")) as client:
        bills = [json.loads(message.value or b"") for message in client.reader("bills")]
    assert [Decimal(each["pounds"]) for each in bills] == [
        Decimal(price) * count for _, count, price in lines
    ]
    assert callable(module.invoices)

"""Sentences of the contract of the command line (docs/spec/cli.md), each on a real store."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import txlog
from txlog.cli.main import main

Run = Callable[..., tuple[int, str, str]]
pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """A function that runs a command on a store with a topic: exit code, stdout, stderr."""
    for name in [name for name in os.environ if name.startswith("TXLOG")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TXLOG_STORE", "shop")
    txlog.init("shop", coordinators=2)
    with txlog.open("shop") as client:
        client.create_topic("orders")

    def call(*words: str) -> tuple[int, str, str]:
        code = main(words)
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return call


def error_of(ran: tuple[int, str, str]) -> dict[str, Any]:
    code, out, err = ran
    error: dict[str, Any] = json.loads(err)["error"]
    assert (out, error["exit"]) == ("", code)
    return error


@pytest.mark.parametrize(
    "words",
    [
        "produce orders/1 -m x", "produce orders -p 1 -m x", "consume orders/1",
        "consume orders -p 1",
        "peek orders -p 1", "topic describe orders/1", "watermark show orders -p 1",
        "watermark history orders -p 1", "segment list orders -p 1", "segment list orders/1",
        "admin compact orders -p 1", "delay list orders/1", "admin offline orders/1",
        "admin transaction-buffer-stats orders -p 1",
    ],
)  # fmt: skip
def test_missing_partition_is_not_found(run: Run, words: str) -> None:
    """spec/cli 5: each command answers 302 for a missing topic or partition."""
    error = error_of(run(*words.split(), "--json"))
    assert (error["code"], error["topic"], error["partition"]) == ("TXL-302", "orders", 1)


def test_range_of_an_unknown_transaction_is_not_found(run: Run) -> None:
    """spec/cli 5: 304; a transaction that wrote nothing to this topic has no messages there."""
    assert run("txn", "begin") == (0, "0:0\n", "")
    assert run("consume", "orders", "-o", "txn:0:0") == (0, "", "")
    for txn in ("0:1", "7:0"):
        error = error_of(run("consume", "orders", "-o", f"txn:{txn}", "--json"))
        assert (error["code"], error["txn"]) == ("TXL-304", txn)


@pytest.mark.parametrize(
    "words",
    ["--bogus --json topic list", "-f json topic list extra", "--json topc", "-f json bogus"],
)
def test_usage_errors_are_objects_wherever_the_flag_stands(run: Run, words: str) -> None:
    """spec/cli 5: with --json one object on one line, also for usage errors."""
    assert error_of(run(*words.split()))["code"] == "TXL-201"


@pytest.mark.parametrize(
    ("flag", "variables", "colored"),
    [
        ([], {}, False), (["--color", "always"], {"NO_COLOR": "1"}, True),
        (["--color", "never"], {"CLICOLOR_FORCE": "1"}, False), ([], {"FORCE_COLOR": "1"}, True),
        ([], {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False), ([], {"CLICOLOR_FORCE": "0"}, False),
    ],
)  # fmt: skip
def test_messages_are_coloured_as_data_is(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    flag: list[str],
    variables: dict[str, str],
    colored: bool,
) -> None:
    """spec/cli 4: --color, NO_COLOR, CLICOLOR_FORCE and FORCE_COLOR, then the terminal: none."""
    for name in ("NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    Path("in").write_text("x")
    for words, plain, is_coloured in (
        (["consume", "nope"], "error: ", "\x1b[1;31merror:\x1b[0m "),
        (["produce", "orders", "in"], "warning: ", "\x1b[1;33mwarning:\x1b[0m "),
        (["txn", "connect", "fresh", "-v"], "note: ", "\x1b[36mnote:\x1b[0m "),
    ):
        assert run(*words, *flag)[2].startswith(is_coloured if colored else plain)
    assert "\x1b" not in run("consume", "nope", "--json", *flag)[2]
    assert run("produce", "orders", "in", "--log-file", "log", *flag)[0] == 0
    assert Path("log").read_text().startswith("warning: ")


def test_columns_are_picked_from_queries_and_inspect(run: Run) -> None:
    """spec/cli 2: --columns works on every table and JSON; an unknown column is exit 2."""
    sql = "SELECT 1 AS a, 2 AS b, 3 AS c"
    assert run("query", sql, "--columns", "c,a", "--json")[1] == '[{"c":3,"a":1}]\n'
    assert run("query", sql, "--columns", "b", "-f", "tsv")[1] == "b\n2\n"
    assert run("inspect", "orders", "--columns", "messages,kind", "--json")[1] == (
        '{"messages":0,"kind":"topic"}\n'
    )
    for words in (["query", sql], ["inspect", "orders"], ["topic", "list"]):
        error = error_of(run(*words, "--columns", "nope", "--json"))
        assert (error["code"], error["message"]) == ("TXL-201", "no column nope")


def test_names_of_a_listing_are_its_numbers_too(run: Run) -> None:
    """spec/cli 4, 12.5: names that another command takes, as `segment show` takes a ledger."""
    run("produce", "orders", "-m", "x")
    assert run("segment", "list", "orders", "-f", "names")[1] == "1\n"
    assert run("segment", "show", "1", "--columns", "ledger", "--json")[1] == '{"ledger":1}\n'
    assert run("admin", "coordinators", "-f", "names")[1] == "0\n1\n"
    assert run("delay", "buckets", "orders", "-f", "names")[0] == 2

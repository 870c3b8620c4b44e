"""A failed `produce` ends its transaction, and reports how many records are stored."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import txlog
from tests.cli.test_store import NOW, Tool, signal_after, tool
from tests.harness import run, txlog_of
from txlog.cli.produce import columns
from txlog.errors import DiskFailed, OutcomeUnknown, TxlogError

pytestmark = pytest.mark.usefixtures("quick_disk")
_ = tool


def _committed_by_another(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process commits the transaction of produce after its first batch."""
    send = columns.send

    def call(producer: Any, data: Any, txn: Any, *more: Any) -> Any:
        receipt = send(producer, data, txn, *more)
        run(txlog_of(tool.path, "txn", "commit", txn), env={"TXLOG_NOW": NOW})
        return receipt

    monkeypatch.setattr(columns, "send", call)


def test_records_that_another_process_committed_are_not_discarded(
    tool: Tool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Kills: "aborted, 1 record discarded" for stored records, which the user would send again."""
    path = tmp_path / "input"
    path.write_text('{"a":1}\n{bad\n')
    produce = ["produce", "orders", "--txn", "--batch", "1"]
    _committed_by_another(tool, monkeypatch)
    error = tool.error(*produce, "--in", "ndjson", str(path))
    assert (error["exit"], error["txn"]) == (7, "0:0")
    assert error["message"].endswith(
        "; transaction 0:0 was committed; 1 record before it is stored"
    )
    assert error["done"] == [{"name": "orders", "messages": 1}]
    signal_after(monkeypatch, columns, "send", 1)
    code, _, err = tool(*produce, "-m", "b", "-m", "c", "--json")
    fields = json.loads(err)["interrupted"]
    assert (code, fields["txn_state"], fields["messages"], fields["discarded"]) == (
        130, "committed", 1, 1,
    )  # fmt: skip
    assert fields["message"] == (
        "interrupted: 1 message stored in orders; transaction 1:0 was committed; "
        "1 record of the input discarded"
    )


def test_a_commit_of_unknown_outcome_is_looked_up(
    tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: "aborted, 2 records discarded" after a commit that was durable."""
    commit = txlog.Client.commit
    failures: list[TxlogError] = [OutcomeUnknown("the flush failed")]

    def unsure(*args: Any) -> Any:
        answer = commit(*args)
        if failures:
            raise failures.pop(0)
        return answer

    def refused(*args: Any) -> None:
        raise DiskFailed("the disk is gone")

    produce = ["produce", "orders", "--txn", "-m", "a", "-m", "b"]
    monkeypatch.setattr(txlog.Client, "commit", unsure)
    code, _, err = tool(*produce)
    assert (code, err.startswith("committed 0:0: 2 messages in orders")) == (0, True)
    failures[:] = [OutcomeUnknown("the flush failed"), DiskFailed("the disk is gone")]
    error = tool.error(*produce)
    assert error["message"] == "the flush failed; transaction 1:0 was committed"
    assert (error["exit"], error["txn"]) == (10, "1:0")
    failures[:] = [OutcomeUnknown("the flush failed"), DiskFailed("the disk is gone")]
    monkeypatch.setattr(txlog.Client, "abort", refused)
    monkeypatch.setattr(txlog.Client, "show_transaction", refused)
    error = tool.error(*produce)
    assert error["message"] == (
        "the flush failed; whether transaction 2:0 was committed is unknown (the disk is gone)"
    )
    assert error["exit"] == 10
    assert re.fullmatch(r"ask before anything else: txlog -S \S+ txn show 2:0", error["hint"])
    assert tool.ok("consume", "orders", "-f", "lines") == "a\nb\n" * 3

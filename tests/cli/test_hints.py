"""Hints that name the next step: the holder of a subscription, the right id, the right flag."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import txlog
from txlog.cli.main import main
from txlog.errors import ConsumerBusy

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture) -> Path:
    path = tmp_path / "shop"
    monkeypatch.setenv("TXLOG_STORE", str(path))
    monkeypatch.delenv("TXLOG_TXN", raising=False)
    assert main(["init", str(path)]) == 0
    assert main(["topic", "create", "orders"]) == 0
    assert main(["sub", "create", "billing", "-t", "orders"]) == 0
    assert main(["produce", "orders", "-m", "a"]) == 0
    capfd.readouterr()
    return path


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("sub seek billing --to 14:00", "--to 'today 14:00'"),
        ("policy retention get orders x", "-t orders"),
        ("policy alert get orders x", "-t orders"),
        ("txn abort", "txlog txn list"),
        ("dlq retry orders 14:00", "message_id of the dead letter"),
    ],
)
@pytest.mark.usefixtures("store")
def test_a_mistake_names_the_next_step(line: str, hint: str, capfd: Capture) -> None:
    assert main([*line.split(), "--json"]) > 0
    error = json.loads(capfd.readouterr().err)["error"]
    assert hint in error["hint"]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("topic lst", "txlog -S '{}' topic list"),
        ("topic describe nothing", "txlog -S '{}' topic create nothing"),
        ("topic describe nothing --json", "txlog -S '{}' topic create nothing"),
        ("admin offline orders", "undo: txlog -S '{}' admin online orders/0"),
        ("config set retention_ms 5000", "undo: txlog -S '{}' config set"),
        ("policy retention set orders --time 7d", "now: txlog -S '{}' admin checkpoint"),
    ],
)
def test_a_line_to_paste_names_the_store_that_was_typed(
    store: Path, line: str, text: str, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    place = store.rename(store.parent / "my shop")
    monkeypatch.delenv("TXLOG_STORE")
    main(["-S", str(place), *line.split()])
    assert text.format(place) in capfd.readouterr().err


@pytest.mark.usefixtures("store")
def test_dead_letter_topic_names_who_filled_it(capfd: Capture) -> None:
    """The listing names a subscription that does not exist: it may be deleted, or a function's."""
    assert main(["topic", "create", "orders-run-DLQ"]) == 0
    names = ["--prop", "REAL_TOPIC=orders", "--prop", "REAL_SUBSCRIPTION=run"]
    assert main(["produce", "orders-run-DLQ", "-m", "bad", *names]) == 0
    capfd.readouterr()
    assert main(["dlq", "list", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)[0]["origin_list"] == ["orders/run"]


def test_transaction_that_somebody_aborted_is_sent_again(store: Path) -> None:
    line = [sys.executable, "-m", "txlog", "produce", "orders", "--txn", "--json"]
    pipe = subprocess.PIPE
    with (
        txlog.open(store) as client,
        subprocess.Popen(line, stdin=pipe, stderr=pipe) as process,
    ):
        assert process.stdin is not None
        process.stdin.write(b"a\n")
        process.stdin.flush()
        while not (rows := client.transactions()):
            pass
        client.abort(rows[0]["txn"])
        _, told = process.communicate(b"b\n")
    assert json.loads(told)["error"]["hint"].startswith("run it again")


def test_busy_subscription_names_its_consumer(store: Path) -> None:
    with (
        txlog.open(store) as client,
        client.consumer("orders", "billing", name="till"),
        pytest.raises(ConsumerBusy, match=f"till in process {os.getpid()} on ") as caught,
    ):
        client.consumer("orders", "billing")
    assert "txlog sub describe billing -t orders" in str(caught.value.hint)


def test_rehearsal_never_speaks_in_the_past(store: Path, capfd: Capture) -> None:
    assert main(["sub", "skip", "billing", "--all", "--dry-run"]) == 0
    assert capfd.readouterr().err.startswith("dry run: would have skipped 1 message")


def test_disk_usage_says_what_is_still_in_the_journal(store: Path, capfd: Capture) -> None:
    assert main(["du"]) == 0
    assert "txlog admin checkpoint" in capfd.readouterr().err
    assert main(["admin", "checkpoint", "-q"]) == 0
    assert main(["du"]) == 0
    assert "txlog admin checkpoint" not in capfd.readouterr().err


def test_copy_tells_a_tidy_path_and_that_it_compared(store: Path, capfd: Capture) -> None:
    assert main(["copy", f"{store}/../backup", "--verify"]) == 0
    told = capfd.readouterr().err
    assert f"to {store.parent}/backup, and compared each byte" in told


def test_path_with_dots_follows_links(store: Path, tmp_path: Path, capfd: Capture) -> None:
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "deeper")
    assert main(["copy", f"{tmp_path}/link/../backup", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["path"] == f"{tmp_path}/deep/backup"

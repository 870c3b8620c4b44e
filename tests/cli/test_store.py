"""The commands on a real store, as a user would call them: pipes, full disks, signals, locks."""

from __future__ import annotations

import csv
import fcntl
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

import txlog
from tests.harness import Child, run, txlog_of
from tests.tiers import graded
from txlog.cli.consume import work
from txlog.cli.main import main
from txlog.cli.produce import columns
from txlog.clock import ManualClock
from txlog.errors import DiskFailed

pytestmark = pytest.mark.usefixtures("quick_disk")
ROOT = Path(__file__).resolve().parents[2]
NOW = "2026-11-20T09:12:04.123Z"


class Tool:
    """txlog on one store, in this process."""

    def __init__(self, path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self.capfd = capfd

    def __call__(self, *args: str) -> tuple[int, str, str]:
        code = main(["-S", str(self.path), *args])
        out, err = self.capfd.readouterr()
        assert "Traceback" not in err
        return code, out, err

    def ok(self, *args: str) -> str:
        code, out, err = self(*args)
        assert code == 0, err
        return out

    def json(self, *args: str) -> Any:
        lines = [json.loads(line) for line in self.ok(*args, "--json").splitlines()]
        return lines[0] if len(lines) == 1 else lines

    def error(self, *args: str) -> dict[str, Any]:
        code, out, err = self(*args, "--json")
        assert out == ""
        error: dict[str, Any] = json.loads(err.splitlines()[-1])["error"]
        assert code == error["exit"] == int(error["code"][4:]) // 100
        return error

    def spawn(self, *args: str, **streams: Any) -> Child:
        return Child(txlog_of(self.path, *args), **streams)


@pytest.fixture
def tool(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Tool:
    for name in [name for name in os.environ if name.startswith("TXLOG")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TXLOG_NOW", NOW)
    prepared = Tool(tmp_path / "shop", capfd)
    prepared.ok("init", str(prepared.path))
    prepared.ok("topic", "create", "orders", "--partitions", "1")
    return prepared


def test_every_listing_has_the_columns_of_its_json(tool: Tool) -> None:
    """spec/cli 11.3: each column of a table is a key of the JSON."""
    tool.ok("sub", "create", "s", "-t", "orders")
    tool.ok("txn", "begin")
    for args in (["topic", "list"], ["sub", "list"], ["txn", "list"]):
        [row] = tool.json(*args)
        header, line = tool.ok(*args, "-f", "tsv").splitlines()
        assert set(header.split("\t")) <= set(row)
        assert len(line.split("\t")) == len(header.split("\t"))
        fields = [line.split("\t")[0] for line in tool.ok(*args, "-f", "help").splitlines()]
        assert fields == list(row)


def test_a_change_prints_a_summary_or_a_result_never_both(tool: Tool) -> None:
    """spec/cli 4: stdout carries data only."""
    code, out, err = tool("topic", "create", "a")
    assert (code, out) == (0, "")
    assert err == "created topic a, 1 partition\n"
    code, out, err = tool("topic", "create", "b", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {"topic": "b", "partitions": 1, "created": True, "dry_run": False}
    code, out, err = tool("topic", "create", "c", "-q")
    assert (code, out, err) == (0, "", "")


def test_several_targets_go_on_after_a_failure(tool: Tool) -> None:
    """spec/cli 5: 7 when some succeeded, with a list of the done and the failed targets."""
    code, out, err = tool("topic", "create", "a", "orders", "b", "--json")
    assert code == 7
    assert [json.loads(line)["topic"] for line in out.splitlines()] == ["a", "b"]
    error = json.loads(err)["error"]
    assert error["done"] == [{"name": "a"}, {"name": "b"}]
    assert [row["code"] for row in error["failed_list"]] == ["TXL-401"]


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["topic", "create", "orders"], 401),
        (["topic", "describe", "nowhere"], 302),
        (["consume", "nowhere"], 302),
        (["produce", "nowhere", "-m", "x"], 302),
        (["peek", "nowhere"], 302),
        (["consume", "orders", "-s", "nobody"], 303),
        (["sub", "ack", "nobody", "1:1"], 303),
        (["sub", "create", "x", "-t", "nowhere"], 302),
        (["txn", "commit", "0:99"], 304),
        (["txn", "show", "0:99"], 304),
        (["produce", "orders", "-m", "x", "--txn-id", "0:99"], 304),
        (["peek", "orders", "--at", "1:99"], 307),
        (["txn", "begin", "--coordinator", "99"], 308),
        (["produce", "orders", "/no/such/file"], 308),
        (["txn", "begin", "--timeout", "0s"], 203),
        (["txn", "begin", "--timeout", "365d"], 204),
        (["topic", "create", "x" * 300], 202),
        (["topic", "create", "__x"], 202),
        (["topic", "create", "a\x07b"], 202),
        (["sub", "create", "..", "-t", "orders"], 202),
        (["consume", "orders", "--fail-empty"], 802),
        (["produce", "orders", "-m", "x", "--read-only"], 409),
        (["txn", "run", "--", "/no/such/command"], 106),
    ],
)
def test_each_error_has_its_code(tool: Tool, args: list[str], code: int) -> None:
    """spec/cli 5: the code without its last two digits is the exit code."""
    split = args.index("--") if "--" in args else len(args)
    error = (
        tool.error(*args[:split], "--json", *args[split:])
        if split < len(args)
        else tool.error(*args)
    )
    assert error["code"] == f"TXL-{code}"
    assert error["retryable"] is False


def test_an_envelope_goes_round_byte_for_byte(tool: Tool, tmp_path: Path) -> None:
    """spec/cli 11.11."""
    tool.ok("topic", "create", "copy")
    tool.ok("produce", "orders", "-m", "a", "-k", "k", "-H", "x=ü", "--event-time", "2026-11-20")
    tool.ok("produce", "orders", "-m", "{}")
    path = tmp_path / "envelopes"
    path.write_text(tool.ok("consume", "orders", "-f", "envelope"))
    tool.ok("produce", "copy", str(path), "--in", "envelope")
    shape = "%k|%v|%h{%k=%v}|%d{event}\n"
    assert tool.ok("consume", "copy", "-f", shape) == tool.ok("consume", "orders", "-f", shape)


def test_joined_transaction_stays_open_and_no_join_ignores_it(
    tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec/cli 8.2: TXLOG_TXN is joined, never ended."""
    txn = tool.ok("txn", "begin").strip()
    monkeypatch.setenv("TXLOG_TXN", txn)
    answer = tool.json("produce", "orders", "-m", "in")
    assert (answer["txn"], answer["txn_state"], answer["transactions"]) == (txn, "open", 0)
    tool.ok("produce", "orders", "-m", "out", "--no-join")
    assert tool.ok("consume", "orders", "-f", "lines") == "out\n"
    assert tool.error("produce", "orders", "-m", "x", "--txn")["code"] == "TXL-201"
    assert tool.json("txn", "commit")["messages"] == 1
    assert tool.ok("consume", "orders", "-f", "lines") == "out\nin\n"
    assert tool.json("txn", "commit")["already"] is True
    assert tool.error("txn", "abort")["code"] == "TXL-402"
    assert tool.error("produce", "orders", "-m", "late")["code"] == "TXL-402"
    tool.ok("sub", "create", "s", "-t", "orders")
    assert tool.error("consume", "orders", "-s", "s")["code"] == "TXL-402"  # and nothing printed
    never = tool.error("consume", "orders", "-s", "s", "--txn-id", "0:99")
    assert never["code"] == "TXL-304"


def test_a_bad_record_aborts_the_own_transaction(tool: Tool, tmp_path: Path) -> None:
    """spec/cli 9: exit 1 with line and txn, and nothing is visible."""
    path = tmp_path / "bad.ndjson"
    path.write_text('{"id":1}\n' * 2500 + "{\n")
    error = tool.error("produce", "orders", str(path), "--in", "ndjson", "--txn")
    assert (error["code"], error["line"]) == ("TXL-104", 2501)
    assert tool.json("txn", "show", error["txn"])["state"] == "aborted"
    assert tool.ok("consume", "orders") == ""


def test_a_bad_record_after_durable_batches_is_partly_done(tool: Tool, tmp_path: Path) -> None:
    """spec/cli 5: 7 after durable batches; the topic has all whole batches, not the partial one."""
    path = tmp_path / "bad.ndjson"
    path.write_text("1\n" * 5 + "x\n")
    error = tool.error("produce", "orders", str(path), "--in", "ndjson", "--batch", "2")
    assert (error["code"], error["line"]) == ("TXL-701", 6)
    assert error["done"] == [{"name": "orders", "messages": 4}]
    assert tool.ok("consume", "orders", "-f", "lines") == "1\n" * 4
    error = tool.error("produce", "orders", str(path), "--in", "ndjson", "--txn-every", "2")
    assert error["code"] == "TXL-701"
    assert tool.ok("consume", "orders", "-f", "lines") == "1\n" * 8


def test_a_record_too_large_is_a_bad_record(tool: Tool, tmp_path: Path) -> None:
    """spec/cli 12.3: 104 with line as a record of an input."""
    path = tmp_path / "large"
    path.write_bytes(b"a\n" + b"x" * 6_000_000 + b"\n")
    error = tool.error("produce", "orders", str(path))
    assert (error["code"], error["class"], error["line"]) == ("TXL-104", "InvalidMessage", 2)
    answer = tool.json("produce", "orders", str(path), "--on-error", "skip")
    assert (answer["messages"], answer["skipped"]) == (1, 1)


def test_sequences_make_a_repeat_harmless(tool: Tool, tmp_path: Path) -> None:
    """spec/cli 11.8: --producer P --seq-from N may be repeated."""
    path = tmp_path / "lines"
    path.write_text("a\nb\nc\n")
    args = ("produce", "orders", str(path), "--producer", "p", "--seq-from", "10", "--batch", "2")
    assert tool.json(*args)["messages"] == 3
    repeated = tool.json(*args)
    assert (repeated["messages"], repeated["duplicates"]) == (0, 3)
    assert tool.ok("consume", "orders", "-f", "%q\n") == "10\n11\n12\n"


def test_subscription_acknowledges_printed_messages(tool: Tool) -> None:
    """spec/cli 8.2: --ack none gives back, on-exit acknowledges at the end."""
    for text in ("a", "b", "c"):
        tool.ok("produce", "orders", "-m", text)
    take = ("consume", "orders", "-s", "s", "-f", "lines")
    assert tool.ok(*take, "--create", "--ack", "none") == "a\nb\nc\n"
    assert tool.ok(*take, "-n", "2") == "a\nb\n"
    assert tool.ok(*take, "--ack", "on-exit") == "c\n"
    assert tool.ok(*take) == ""


@pytest.mark.parametrize("ack", ["none", "on-exit"])
def test_consumer_with_too_many_unacknowledged_messages_fails(tool: Tool, ack: str) -> None:
    """spec/cli 5: 204 with setting and both numbers; never an end that looks complete."""
    tool.ok("config", "set", "unacked_max", "2")
    for text in ("a", "b", "c"):
        tool.ok("produce", "orders", "-m", text)
    take = ("consume", "orders", "-s", "s", "--ack", ack)
    tool.ok("sub", "create", "s", "-t", "orders")
    for more in ((), ("-F",)):
        code, out, err = tool(*take, *more, "--json")
        error = json.loads(err)["error"]
        assert (code, out.count("\n"), error["code"]) == (2, 2, "TXL-204")
        assert (error["setting"], error["limit"], error["value"]) == ("unacked_max", 2, 3)
    assert tool.json("sub", "list")[0]["backlog"] == 3  # no message was acknowledged
    plain = (*take, "-f", "lines")
    assert tool.ok(*plain, "-n", "2") == "a\nb\n"
    tool.ok("sub", "seek", "s", "--to", "+1", "-y")
    assert tool.ok(*plain) == "b\nc\n"  # exactly the limit, so all messages came


def test_filters(tool: Tool) -> None:
    """spec/cli 8.2: --key, --prop and --grep; -n counts what is printed."""
    tool.ok("produce", "orders", "-m", "one", "-k", "a")
    tool.ok("produce", "orders", "-m", "two", "-k", "b", "-H", "x=1")
    tool.ok("produce", "orders", "-m", "three")
    assert tool.ok("consume", "orders", "-f", "lines", "--key", "a", "--key", "c") == "one\n"
    assert tool.ok("consume", "orders", "-f", "lines", "--prop", "x=1") == "two\n"
    assert tool.ok("consume", "orders", "-f", "lines", "--grep", "^t", "-n", "1") == "two\n"
    refused = tool.error("consume", "orders", "--grep", "(\n" + "x" * 500)
    assert refused["code"] == "TXL-201"
    assert "(RE2): missing ): ( xxx" in refused["message"]
    assert len(refused["message"]) < 150


def test_closed_pipe_ends_the_command_with_141(tool: Tool, tmp_path: Path) -> None:
    """spec/cli 4: exit 141, stderr empty."""
    path = tmp_path / "lines"
    path.write_text("x" * 100 + "\n" + "line\n" * 50_000)
    tool.ok("produce", "orders", str(path))
    with tool.spawn("consume", "orders") as child:
        child.line()
        assert child.process.stdout is not None
        child.process.stdout.close()
        assert (child.process.wait(60), child.other) == (141, "")


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["topic", "list"], 1),
        (["consume", "orders"], 1),
        (["txn", "begin"], 10),
        (["produce", "orders", "-m", "x", "--json"], 10),
        (["produce", "orders", "-m", "x", "--ack-format", "ndjson"], 10),
        ([], 1),
    ],
)
def test_a_full_disk_behind_stdout(tool: Tool, args: list[str], code: int) -> None:
    """spec/cli 4: a changing command that cannot print its result ends with 10."""
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    tool.ok("produce", "orders", "-m", "a")
    with open("/dev/full", "wb") as full:
        done = run(txlog_of(tool.path, *args), code=code, stdout=full)
    assert done.stderr.startswith("error: ") or '"error"' in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("number", "code"), graded([(signal.SIGINT, 130), (signal.SIGTERM, 143)], 1)
)
def test_a_signal_aborts_the_own_transaction(tool: Tool, number: int, code: int) -> None:
    """spec/cli 4, signals: an own open transaction is aborted."""
    with tool.spawn("produce", "orders", "--txn", "--batch", "1") as child:
        child.tell("a")
        while not tool.json("txn", "list"):
            assert child.process.poll() is None
        child.signal(number)
        assert (child.process.wait(60), child.end()[1]) == (code, "")
        error = child.other
    word = "interrupted" if code == 130 else "terminated"
    report = f"{word}: 0 messages stored in orders; transaction 0:0 aborted, "
    assert re.fullmatch(report + r"(1 record|0 records) discarded\n", error)
    [row] = tool.json("txn", "list", "--all")
    assert (row["state"], row["reason"]) == ("aborted", "user")


def signal_after(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: int) -> None:
    """Send this process SIGINT inside the last of so many calls."""
    was, remaining = getattr(owner, name), [calls]

    def call(*args: Any, **options: Any) -> Any:
        answer = was(*args, **options)
        remaining[0] -= 1
        if remaining[0] == 0:
            signal.raise_signal(signal.SIGINT)
        return answer

    monkeypatch.setattr(owner, name, call)


@pytest.mark.parametrize(
    ("flags", "calls", "expected"),
    [
        ([], 2, {"messages": 2, "discarded": 2, "transactions": 0, "txn": None,
                 "txn_state": None, "message": "interrupted: 2 messages stored in orders; "
                "2 records of the input discarded"}),
        (["--txn"], 2, {"messages": 0, "discarded": 4, "txn": "1:0", "txn_state": "aborted",
                        "message": "interrupted: 0 messages stored in orders; "
                        "transaction 1:0 aborted, 4 records discarded"}),
        (["--txn-every", "2"], 3, {"messages": 2, "discarded": 2, "transactions": 1,
                                   "txn": "2:0", "txn_state": "aborted"}),
        (["--txn-id", "0:0"], 2, {"messages": 2, "txn": "0:0", "txn_state": "open",
                                  "message": "interrupted: 2 messages of orders in transaction "
                                  "0:0, which is left open; 2 records of the input discarded"}),
    ],
)  # fmt: skip
def test_an_interrupted_produce_says_how_far_it_was(
    tool: Tool,
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    calls: int,
    expected: dict[str, Any],
) -> None:
    """Kills: 130 without a report, or a report that omits messages sent during the signal."""
    tool.ok("txn", "begin")
    words = ["produce", "orders", "--batch", "1", "--json", *flags]
    words += [word for text in "abcd" for word in ("-m", text)]
    signal_after(monkeypatch, columns, "send", calls)
    code, out, err = tool(*words)
    assert (code, out) == (130, "")
    fields = json.loads(err)["interrupted"]
    assert {**fields, **expected} == fields
    assert (fields["exit"], fields["topic"]) == (130, "orders")
    stored = 0 if "--txn-id" in flags else expected["messages"]
    assert len(tool.ok("consume", "orders", "-f", "lines").split()) == stored
    assert tool.json("txn", "show", "0:0")["state"] == "open"


def test_interrupt_in_the_commit_counts_committed_messages(
    tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt lets the commit finish, and reports it; a failed abort is reported, too."""
    signal_after(monkeypatch, txlog.Client, "commit_async", 1)
    code, _, err = tool("produce", "orders", "--txn-every", "2", "-m", "a", "-m", "b", "-m", "c")
    assert (code, err) == (
        130,
        "interrupted: 2 messages stored in orders; 1 record of the input discarded\n",
    )
    assert tool.ok("consume", "orders", "-f", "lines") == "a\nb\n"

    def refused(*args: Any) -> None:
        raise DiskFailed("the disk is gone")

    monkeypatch.setattr(txlog.Client, "abort", refused)
    signal_after(monkeypatch, columns, "send", 1)
    _, _, err = tool("produce", "orders", "--txn", "-m", "d")
    assert "transaction 1:0 could not be aborted (the disk is gone) and ends by its time-out" in err
    assert err.endswith("; 1 record discarded\n")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], {"messages": 2, "message": "interrupted: 2 messages written out"}),
        (
            ["-s", "s"],
            {
                "messages": 2,
                "acknowledged": 2,
                "txn": None,
                "message": "interrupted: 2 messages written out, 2 acknowledged",
            },
        ),
        (
            ["-s", "s", "--ack", "on-exit"],
            {
                "acknowledged": 0,
                "message": "interrupted: 2 messages written out, none acknowledged; "
                "the others will be redelivered",
            },
        ),
        (
            ["-s", "s", "--txn-id", "0:0"],
            {
                "acknowledged": 2,
                "txn": "0:0",
                "txn_state": "open",
                "message": "interrupted: 2 messages written out, 2 acknowledged in transaction 0:0,"
                " which is left open",
            },
        ),
    ],
)
def test_an_interrupted_consume_says_how_far_it_was(
    tool: Tool, monkeypatch: pytest.MonkeyPatch, flags: list[str], expected: dict[str, Any]
) -> None:
    """The report counts written and acknowledged messages, and names a joined transaction."""
    tool.ok("produce", "orders", "-m", "a", "-m", "b")
    tool.ok("sub", "create", "s", "-t", "orders", "--position", "start")
    tool.ok("txn", "begin")

    def interrupted(*args: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(work.Job, "_wait", interrupted)
    code, out, err = tool("consume", "orders", "-F", "-f", "lines", "--log-format", "json", *flags)
    assert (code, out) == (130, "a\nb\n")
    fields = json.loads(err)["interrupted"]
    assert {**fields, **expected} == fields
    [subscription] = tool.json("sub", "list", "-t", "orders")
    assert subscription["backlog"] == (
        0 if fields.get("acknowledged") and "0:0" not in flags else 2
    )


def test_interrupted_consume_counts_written_messages_only(
    tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report does not count messages of a block that were not written; -qq prints nothing."""
    tool.ok("produce", "orders", "-m", "a", "-m", "b")
    signal_after(monkeypatch, work.Job, "print", 1)
    code, out, err = tool("consume", "orders", "-f", "lines")
    assert (code, out, err) == (130, "", "interrupted: at least 0 messages written out\n")
    signal_after(monkeypatch, work.Job, "print", 1)
    assert tool("consume", "orders", "-f", "lines", "-qq") == (130, "", "")


def test_a_held_lock_is_a_reason_to_try_again(tool: Tool) -> None:
    """spec/cli 5: 501 with pid, retryable; reading goes on."""
    tool.ok("produce", "orders", "-m", "a")
    with open(tool.path / "lock", "rb+") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        error = tool.error("produce", "orders", "-m", "b", "--lock-timeout", "1ms")
        assert (error["code"], error["retryable"]) == ("TXL-501", True)
        assert tool.ok("consume", "orders", "-f", "lines") == "a\n"
    assert tool.ok("consume", "orders", "-f", "lines") == "a\n"


def test_txn_run_ends_as_its_command_ends(tool: Tool) -> None:
    """spec/cli 8.5: the exit code of CMD, or the commit's if CMD returned 0."""
    inside = f"{sys.executable} -m txlog produce orders -m in -q"
    command = f"PYTHONPATH={ROOT / 'src'} {inside}"
    code, _, err = tool("txn", "run", "--", "sh", "-c", f"{command}; exit 3")
    assert code == 3
    assert err.startswith("aborted ")
    assert tool.ok("consume", "orders") == ""
    code, _, err = tool("txn", "run", "--", "sh", "-c", command)
    assert (code, err.startswith("committed ")) == (0, True)
    assert tool.ok("consume", "orders", "-f", "lines") == "in\n"
    assert tool("txn", "run", "--", "sh", "-c", "kill -9 $$")[0] == 137
    assert tool.ok("txn", "list", "-f", "names") == ""


def test_a_signal_ends_txn_run_also_if_its_command_has_committed(tool: Tool) -> None:
    """Kills: exit 4, which means no effect, as the abort is refused after the commit."""
    inside = f"PYTHONPATH={ROOT / 'src'} {sys.executable} -m txlog txn commit -q"
    script = f"{inside}; echo done; exec sleep 600"
    with tool.spawn("txn", "run", "--", "sh", "-c", script) as child:
        assert child.line() == "done"
        assert child.end(signal.SIGTERM)[0] == 143
        assert child.other == "warning: transaction 0:0: transaction 0:0 is COMMITTED\n"


def test_peek_changes_nothing(tool: Tool, tmp_path: Path) -> None:
    """spec/cli 8.2: last, first, at, around, and the unacknowledged messages of a subscription."""
    path = tmp_path / "lines"
    path.write_text("".join(f"{n}\n" for n in range(20)))
    tool.ok("produce", "orders", str(path), "--txn")
    [first, *_] = tool.ok("peek", "orders", "--first", "1", "-f", "%o\n").split()
    marker = first.rpartition(":")[0]
    assert tool.ok("peek", "orders", "-f", "lines").split() == [str(n) for n in range(10, 20)]
    assert tool.ok("peek", "orders", "--first", "2", "-f", "lines").split() == ["0", "1"]
    assert tool.ok("peek", "orders", "--last", "0", "-f", "lines") == ""
    assert tool.ok("peek", "orders", "--at", f"{marker}:3", "-f", "lines") == "2\n"
    assert len(tool.ok("peek", "orders", "--at", marker, "-f", "lines").split()) == 20
    around = tool.ok("peek", "orders", "--around", f"{marker}:3", "-C", "1", "-f", "lines")
    assert around.split() == ["1", "2", "3"]
    assert tool.error("peek", "orders", "--at", f"{marker}:21")["code"] == "TXL-307"
    tool.ok("sub", "create", "s", "-t", "orders")
    tool.ok("sub", "ack", "s", marker)
    assert tool.ok("peek", "orders", "-s", "s") == ""


def test_inspect_guesses(tool: Tool) -> None:
    """spec/cli 8.1: store, topic, transaction, message."""
    tool.ok("produce", "orders", "-m", "a", "--txn")
    [place] = tool.ok("consume", "orders", "-f", "%o\n").split()
    assert tool.json("inspect")["kind"] == "store"
    assert tool.json("inspect", "orders")["kind"] == "topic"
    assert tool.json("inspect", "txn:0:0")["kind"] == "transaction"
    message = tool.json("inspect", place)
    assert (message["kind"], message["message_id"], message["value"]) == ("message", place, "a")
    assert tool.error("inspect", "nothing-of-that-name")["exit"] in (2, 3)


def test_the_store_is_found_from_below(
    tool: Tool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """spec/cli 3: flag, variable, the directory or one above, the profile, ./txlog-store."""
    below = tool.path / "deep" / "er"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert main(["topic", "list", "-f", "names"]) == 0
    assert tool.capfd.readouterr().out == "orders\n"
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "config" / "txlog" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'[shop]\nstore = "{tool.path}"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert main(["--profile", "shop", "topic", "list", "-f", "names"]) == 0
    assert tool.capfd.readouterr().out == "orders\n"
    assert main(["--profile", "other", "topic", "list"]) == 3
    tool.capfd.readouterr()
    monkeypatch.setenv("TXLOG_STORE", str(tool.path))
    assert main(["topic", "list", "-f", "names"]) == 0
    assert tool.capfd.readouterr().out == "orders\n"


def test_checkpoint_and_status(tool: Tool) -> None:
    """spec/cli 8.1 and 8.7: a checkpoint may be repeated; the status counts the messages."""
    tool.ok("produce", "orders", "-m", "a")
    assert tool.json("admin", "checkpoint")["rows"] == 1
    assert tool.ok("consume", "orders", "-f", "lines") == "a\n"
    tool.ok("admin", "checkpoint", "--roll-all")
    assert tool.ok("consume", "orders", "-f", "lines") == "a\n"
    answer = tool.json("status")
    assert answer["topic_list"][0]["messages"] == 1
    assert answer["problem_list"] == []


def test_readable_messages_are_printed_before_the_error(tool: Tool) -> None:
    """11: an unavailable partition does not affect others; the error comes after their messages."""
    tool.ok("topic", "create", "pair", "--partitions", "2")
    for partition in ("0", "1"):
        tool.ok("produce", f"pair/{partition}", "-m", f"in {partition}")
    tool.ok("admin", "offline", "pair/0")
    code, out, err = tool("consume", "pair", "-f", "%v\\n")
    assert (code, out) == (5, "in 1\n")
    assert "pair/0 is offline" in err


def test_a_failed_checkpoint_is_a_note_of_the_command_behind_it(tool: Tool) -> None:
    """11: the decided call sets the exit code, as a script that repeats it would store it twice."""
    tool.ok("topic", "create", "t")
    tool.ok("config", "set", "checkpoint_frames", "1")
    lock = tool.path / "maintenance.lock"
    lock.unlink(missing_ok=True)
    lock.mkdir()  # no process can lock it, so every checkpoint fails
    code, _, err = tool("produce", "t", "-m", "one")
    assert code == 0, err
    assert "a checkpoint failed and is due again" in err
    code, _, err = tool("topic", "delete", "t", "nosuch", "--yes", "--force")
    assert code == 7, err
    assert "a checkpoint failed and is due again" in err
    lock.rmdir()
    code, _, err = tool("produce", "orders", "-m", "two")
    assert (code, "checkpoint" in err) == (0, False)


def test_reading_commands_start_no_checkpoint(tool: Tool) -> None:
    """11.9: kills: a `topic list` that begins a checkpoint, and fails with it."""
    tool.ok("topic", "create", "t")
    tool.ok("produce", "t", "-m", "one")
    tool.ok("config", "set", "checkpoint_frames", "1")
    names = sorted((tool.path / "manifest").iterdir())
    for words in ("topic list", "status", "peek t", "sub list", "doctor", "txn list"):
        tool(*words.split())
        assert sorted((tool.path / "manifest").iterdir()) == names


def test_every_stored_instant_is_printed_read_back_and_queried(tool: Tool) -> None:
    """spec/cli 11.11: files hold 64 bits, hence years beyond 9999 and the end of a stream."""
    instants = [-(1 << 63), -62_135_596_800_001, 253_402_300_800_000, (1 << 63) - 1]
    with txlog.open(str(tool.path)) as client:
        producer = client.producer("orders")
        for at in instants:
            producer.send(b"x", event_time=at)
    envelopes = tool.path.parent / "envelopes"
    envelopes.write_text(tool.ok("consume", "orders", "-f", "envelope"))
    tool.ok("produce", "copy", str(envelopes), "--in", "envelope", "--create")
    lines = [f"{at}\n" for at in instants]
    assert tool.ok("consume", "copy", "-f", "%d{event}\n") == "".join(lines)
    pairs = tool.path.parent / "pairs"
    pairs.write_text("".join(lines))
    tool.ok("produce", "again", str(pairs), "--in", "%d{event}\n", "--create")
    assert tool.ok("consume", "again", "-f", "%d{event}\n") == "".join(lines)
    rows = tool.json("query", "SELECT event_time FROM copy ORDER BY event_time")
    assert [row["event_time"] for row in rows] == [
        "-infinity",
        str(instants[1]),
        str(instants[2]),
        "infinity",
    ]
    late = "event_time > '2020-01-01'"
    assert tool.json("query", f"SELECT count(*) AS n FROM copy WHERE {late}") == [{"n": 2}]
    assert tool.ok("consume", "copy", "--where", late, "-f", "%d{event}\n") == "".join(lines[2:])


def test_every_instant_of_a_sealed_file_is_queried_and_exported(tool: Tool, tmp_path: Path) -> None:
    """DuckDB's reader fails on an instant beyond the year 294246 and -290307: such files go by
    tables, plain views leave them to --complete, Delta has its ends, other exports the number."""
    instants = [
        0,
        -(1 << 63),
        -(10**17),
        -62_135_596_800_001,
        253_402_300_800_000,
        10**17,
        (1 << 63) - 1,
    ]
    clock = ManualClock(1_795_165_924_123)  # the tool's, too: a later message is in a new ledger
    for at in instants:
        with txlog.open(str(tool.path), clock=clock) as client:
            client.producer("orders").send(b"x", event_time=at, partition=0)
    with txlog.open(str(tool.path)) as client, client.transaction() as txn:
        client.producer("orders").send(b"x", event_time=10**17, txn=txn, partition=0)
        client.producer("orders").send(b"x", event_time=1, txn=txn, partition=0)
    instants += [10**17, 1]
    tool.ok("admin", "checkpoint", "--roll-all")
    least, most = "-infinity", "infinity"
    sql = [str(at) for at in (0, 1, instants[3], instants[4])] + [least] * 2 + [most] * 3
    shown = {0: "1970-01-01T00:00:00.000Z", 1: "1970-01-01T00:00:00.001Z"}
    sql = [shown.get(int(at), at) if at.isdecimal() else at for at in sql]
    for relation in ("orders", "messages_all"):
        where = "WHERE kind = 'message'" if relation == "messages_all" else ""
        rows = tool.json("query", f"SELECT event_time, message_id FROM {relation} {where}")
        assert sorted(row["event_time"] for row in rows) == sorted(sql)
        assert len({row["message_id"] for row in rows}) == len(instants)
    [row] = tool.json("query", "SELECT count(*) AS n FROM messages_all")
    assert row == {"n": len(instants) + 1}  # and the marker

    assert "-- not covered: 9 committed" in tool.ok("views")
    script = tool.ok("views", "--complete", str(tmp_path / "more"), "-q")
    with duckdb.connect() as stock:
        stock.execute(script)
        found = stock.execute("SELECT event_time::VARCHAR FROM orders").fetchall()
    assert sorted(at for (at,) in found)[:2] == [least, least]
    assert len(found) == len(instants)

    delta = tmp_path / "delta"
    tool.ok("export", "orders", str(delta), "--to", "delta")
    files = [str(path) for path in delta.rglob("*.parquet")]
    with duckdb.connect() as stock:
        rows = stock.read_parquet(files).project("event_time::VARCHAR").fetchall()
    assert [at for (at,) in rows].count(most) == 3

    texts = sorted(map(str, instants))
    tool.ok("export", "orders", str(tmp_path / "x.parquet"))
    ms = pq.read_table(tmp_path / "x.parquet").column("event_time").cast("int64").to_pylist()
    assert sorted(ms) == sorted(instants)
    envelopes = tool.ok("export", "orders", "-", "--to", "ndjson").splitlines()
    assert sorted(str(json.loads(line)["event_time"]) for line in envelopes) == texts
    rows = csv.DictReader(tool.ok("export", "orders", "-", "--to", "csv").splitlines())
    assert {row["event_time"] for row in rows} == {shown.get(at, str(at)) for at in instants}
    tool.ok("export", "orders", str(tmp_path / "days"), "--partition-by", "event_date")
    days = {path.name for path in (tmp_path / "days").glob("event_date=*")}
    assert days == {"event_date=1970-01-01", "event_date=__HIVE_DEFAULT_PARTITION__"}


def test_pattern_with_a_python_warning_works(tool: Tool) -> None:
    """Kills: FutureWarning: Possible nested set, raw on stderr."""
    assert tool("topic", "list", "--regex", "[[o]rders$", "-f", "names") == (0, "orders\n", "")


def test_names_in_messages_keep_their_spelling(tool: Tool) -> None:
    """txlog compares names without case, but messages never show the folded form."""
    tool.ok("topic", "create", "Orders-X")
    tool.ok("sub", "create", "Sub-Y", "-t", "Orders-X")
    for words, message, hint in (
        (["consume", "ORDERS-x"], "topic ORDERS-x does not exist", "Orders-X"),
        (["consume", "persistent://public/default/ORDERS-x"], "topic ORDERS-x does", "Orders-X"),
        (["consume", "Public/Default/Orders-X"], "topic Public/Default/Orders-X does", "Orders-X"),
        (["topic", "create", "ORDERS-x"], "topic Orders-X exists", ""),
        (["consume", "Orders-X", "-s", "SUB-y"], "no subscription SUB-y on Orders-X", "Sub-Y"),
        (["sub", "create", "SUB-y", "-t", "Orders-X"], "subscription Sub-Y exists", ""),
        (["config", "get", "Durability-X"], "no setting Durability-X", ""),
    ):
        error = tool.error(*words)
        assert message in error["message"]
        assert hint in (error.get("hint") or "")


@pytest.mark.parametrize(
    ("name", "word", "words"),
    [
        ("TXLOG_NOW", "soon", ["topic", "list"]),
        ("TXLOG_LOCK_TIMEOUT", "long", ["topic", "list"]),
        ("TXLOG_LOG", "loud", ["topic", "list"]),
        ("TXLOG_TXN", "one", ["produce", "orders", "-m", "x"]),
        ("TXLOG_TXN", "one", ["txn", "commit"]),
        ("TXLOG_TXN", "one", ["txn", "abort"]),
        ("TXLOG_TXN", "one", ["txn", "show"]),
        ("TXLOG_DURABILITY", "disk", ["topic", "list"]),
    ],
)
def test_a_variable_that_is_wrong_is_named(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    word: str,
    words: list[str],
) -> None:
    """A variable is not visible in the command line, so the error names it."""
    txlog.init(str(tmp_path / "s"))
    monkeypatch.setenv(name, word)
    assert main(["-S", str(tmp_path / "s"), *words]) == 2
    assert f"error: {name}" in capfd.readouterr().err


def test_a_deleted_working_directory_is_not_needed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    txlog.init(str(tmp_path / "s"))
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["-S", str(tmp_path / "s"), "topic", "create", "orders"]) == 0
    assert main(["-S", str(tmp_path / "s"), "produce", "orders", "-m", "x"]) == 0
    assert main(["topic", "list"]) == 3
    assert "a bug of txlog" not in capfd.readouterr().err

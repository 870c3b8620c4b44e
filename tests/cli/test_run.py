"""Tests of `txlog run` and `txlog transform`: results, codes, logs, signals, zombies."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest

import txlog
from tests.harness import CHILDREN, Child, Children, python, run, run_until_done, txlog_of
from tests.tiers import graded
from txlog.cli.call import progress
from txlog.cli.main import main
from txlog.cli.run import log as joblog

pytestmark = pytest.mark.usefixtures("quick_disk")
ROOT = Path(__file__).resolve().parents[2]


class Tool:
    """txlog on one store, in this process or another."""

    log_format = "json"

    def __init__(self, path: Path, capfd: pytest.CaptureFixture[str], children: Children) -> None:
        self.children = children
        self.path = path / "shop"
        self.file = str(path / "f.py")
        self.capfd = capfd
        copyfile(CHILDREN / "functions.py", self.file)

    def __call__(self, *args: str) -> tuple[int, str, str]:
        code = main(["-S", str(self.path), "--log-format", self.log_format, *args])
        out, err = self.capfd.readouterr()
        assert "Traceback" not in err
        return code, out, err

    def ok(self, *args: str) -> str:
        code, out, err = self(*args)
        assert code == 0, err
        return out

    def run(self, name: str, *args: str) -> tuple[int, str, str]:
        words = ["--input", "in", "--output", "out", "-s", "s", *args]
        return self("run", f"{self.file}:{name}", *words)

    def values(self, topic: str = "out") -> list[str]:
        return self.ok("consume", topic, "-f", "%v\n").split()

    def left(self) -> int:
        with txlog.open(str(self.path)) as client:
            assert client.transactions() == []
            return sum(row["backlog"] for row in client.subscriptions("in"))

    def spawn(self, *args: str, **streams: Any) -> Child:
        words = txlog_of(self.path, "--log-format", self.log_format, *args)
        streams = {"stream": "stderr", "stdin": subprocess.DEVNULL, **streams}
        return self.children.start(words, **streams)


@pytest.fixture
def tool(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Tool]:
    """Return txlog on a store with 1 to 5 in `in`, subscription s, and out."""
    for name in [name for name in os.environ if name.startswith("TXLOG")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("sys.path", list(sys.path))
    with Children() as children:
        prepared = Tool(tmp_path, capfd, children)
        prepared.ok("init", str(prepared.path))
        for topic in ("in", "out"):
            prepared.ok("topic", "create", topic)
        prepared.ok("produce", "in", "-m1", "-m2", "-m3", "-m4", "-m5")
        prepared.ok("sub", "create", "s", "-t", "in")
        yield prepared


def lines(text: str) -> list[dict[str, Any]]:
    """The JSON objects of stderr."""
    return [json.loads(line) for line in text.splitlines()]


def until(child: Child, event: str) -> None:
    """Read the log of a process until an event."""
    child.until(f'"{event}"')


def test_run_prints_its_result(tool: Tool) -> None:
    """spec/cli 8.3: the result object; the function's own prints do not reach stdout."""
    code, out, err = tool.run("up", "--json", "--txn-size", "2")
    assert code == 0
    done = json.loads(out)
    assert list(done) == [
        "input",
        "output",
        "transactions",
        "aborted",
        "skipped",
        "dead_lettered",
        "late_messages",
        "last_txn",
        "elapsed_ms",
        "consumed",
        "produced",
    ]
    assert done["last_txn"] and done["elapsed_ms"] >= 0
    assert (done["input"], done["output"], done["transactions"]) == ("in", "out", 3)
    assert (done["consumed"], done["produced"], done["aborted"]) == (5, 5, 0)
    assert err == "said on stdout\n" * 5
    assert (tool.values(), tool.left()) == (["1", "2", "3", "4", "5"], 0)
    assert json.loads(tool.run("up", "--json")[1])["transactions"] == 0


def test_the_log_is_text_unless_json_lines_are_asked_for(tool: Tool) -> None:
    """spec/cli 2: `--log-format` is text, off a terminal too; lines of JSON have the figures."""
    tool.log_format = "text"
    tool.ok("sub", "create", "other", "-t", "in", "--position", "-1")
    _, _, err = tool("run", f"{tool.file}:keep", "--input", "in", "--output", "out", "-s", "other")
    assert [line.partition(": ")[2].partition(":")[0] for line in err.splitlines()] == [
        "started",
        "finished",
    ]
    tool.ok("sub", "delete", "other", "-t", "in", "--yes")
    tool.ok("topic", "delete", "out", "--yes")
    tool.ok("topic", "create", "out")
    tool.log_format = "json"
    code, out, err = tool.run("keep", "--name", "copy")
    assert (code, out) == (0, "")
    started, finished = lines(err)
    assert (started["event"], started["transaction_key"]) == ("started", "function:copy:0")
    assert (finished["event"], finished["consumed"], finished["function"]) == (
        "finished",
        5,
        "copy",
    )
    assert tool.run("keep", "-q")[2] == ""
    tool.ok("produce", "in", "-m3", "-m7")
    _, _, err = tool.run("fail", "-q", "--on-error", "skip")
    assert [(line["level"], line["event"]) for line in lines(err)] == [
        ("warning", "log"),
        ("warning", "skipped"),
        ("warning", "log"),
    ]
    tool.ok("produce", "in", "-m3")
    assert tool.run("fail", "-qq", "--on-error", "skip")[2] == ""
    log = tool.path.parent / "log"
    tool.ok("produce", "in", "-m8")
    assert tool.run("keep", "--log-file", str(log), "--log-format", "text")[2] == ""
    assert "finished: 1 in, 1 out (1 transaction, " in log.read_text()


def test_on_a_terminal_there_is_a_bar(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    """spec/cli 4: a bar only on a terminal, removed at the end."""
    tool.log_format = "text"
    monkeypatch.setattr(progress, "is_terminal", lambda number: number == 2)
    monkeypatch.setattr(progress, "AFTER_S", 0)
    monkeypatch.setattr(progress, "EVERY_S", 0)
    _, _, err = tool.run("keep", "--txn-size", "3")
    assert "\r\x1b[Kkeep@in/s: 3 in, 3 out" in err
    assert "\r\x1b[K" in err and "keep@in/s: finished: 5 in, 5 out (2 transactions, " in err
    tool.ok("produce", "in", "-m6")
    assert "\x1b" not in tool.run("keep", "--no-progress")[2]


def test_a_long_run_off_a_terminal_says_how_far_it_is(
    tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joblog, "_LINE_EVERY_S", 0)
    _, _, err = tool.run("keep", "--txn-size", "3")
    assert [line["event"] for line in lines(err)] == ["started", "progress", "progress", "finished"]


def test_stderr_of_a_real_terminal(tool: Tool) -> None:
    """Guards: text for people, and no JSON, when stderr is a terminal."""
    tool.log_format = "text"
    primary, secondary = pty.openpty()
    words = ["run", f"{tool.file}:keep", "--input", "in", "--output", "out", "-s", "s"]
    child = tool.spawn(*words, stream="stdout", stderr=secondary)
    os.close(secondary)
    output = b""
    try:
        while data := os.read(primary, 1000):
            output += data
    except OSError:
        pass  # Linux raises EIO once the other side is closed
    os.close(primary)
    assert child.end() == (0, "")
    assert b"keep@in/s: finished: 5 in, 5 out (1 transaction, " in output
    assert b"{" not in output


def test_a_failure_is_one_before_a_commit_and_seven_behind_one(tool: Tool) -> None:
    """spec/cli 8.3: 1 (106), or 7 after committed batches."""
    code, out, err = tool.run("fail", "--json")
    error = lines(err)[-1]["error"]
    assert (code, out, error["code"], error["path"]) == (1, "", "TXL-106", tool.file)
    assert tool.values() == []
    code, _, err = tool.run("fail", "--json", "--txn-size", "2")
    error = lines(err)[-1]["error"]
    assert (code, error["code"], error["failed_list"][0]["code"]) == (7, "TXL-701", "TXL-106")
    assert error["done"][0]["consumed"] == 2
    assert (tool.values(), tool.left()) == (["1", "2"], 3)
    code, _, err = tool.run("number")
    assert (code, "cannot return int" in err) == (1, True)


def test_dead_letters_and_topics_made_by_create(tool: Tool) -> None:
    words = ["--on-error", "dead-letter:bad", "--retries", "2"]
    code, _, err = tool.run("fail", *words)
    assert (code, "TXL-302" in err or "does not exist" in err) == (3, True)
    code, out, _ = tool.run("fail", *words, "--create", "--json")
    done = json.loads(out)
    assert (code, done["dead_lettered"], done["produced"], done["aborted"]) == (0, 1, 4, 0)
    assert (tool.values(), tool.values("bad")) == (["1", "2", "4", "5"], ["3"])
    assert tool("run", f"{tool.file}:keep", "--input", "in", "-s", "new")[0] == 3
    words = ["run", f"{tool.file}:keep", "--input", "in", "--output", "made", "-s", "new"]
    assert json.loads(tool.ok(*words, "--create", "--json"))["consumed"] == 5
    assert json.loads(tool.ok(*words, "--create", "--json"))["consumed"] == 0


def test_batches_windows_limits_and_modules(tool: Tool) -> None:
    assert json.loads(tool.run("table", "--batch", "--json", "-n", "2")[1])["consumed"] == 2
    assert json.loads(tool.run("pairs", "--json")[1])["consumed"] == 2
    assert (tool.values(), tool.left()) == (["1", "2", "3+4"], 1)
    folder = str(tool.path.parent)
    code, out, _ = tool(
        "run", "f:keep", "--path", folder, "--input", "in", "--output", "out", "-s", "s", "--json"
    )
    sys.modules.pop("f", None)
    assert (code, json.loads(out)["consumed"]) == (0, 1)


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [("nothing", 2, "has no nothing"), ("os", 2, "is a module"), ("FUNCTIONS", 2, "has no")],
)
def test_a_name_that_is_no_function(tool: Tool, name: str, code: int, text: str) -> None:
    assert tool.run(name)[0::2] == (code, tool.run(name)[2])
    assert text in tool.run(name)[2]


@pytest.mark.deep
def test_the_working_directory_is_no_place_for_modules(tool: Tool) -> None:
    """spec/cli 8.3: --path says where modules are; `python -m txlog` adds nothing."""
    words = ["run", "f:keep", "--input", "in", "--output", "out", "-s", "s", "--json"]
    folder = tool.path.parent
    done = run(txlog_of(tool.path, *words), code=2, cwd=folder)
    assert json.loads(done.stderr)["error"]["message"] == "no module f"
    done = run(txlog_of(tool.path, *words, "--path", "."), cwd=folder)
    assert json.loads(done.stdout)["consumed"] == 5


def test_transform_runs_a_command_a_batch(tool: Tool) -> None:
    code, out, _ = tool(
        "transform", "in", "out", "-s", "s", "--json", "--txn-size", "2", "--", "tr", "1-5", "a-e"
    )
    done = json.loads(out)
    assert (code, done["transactions"], done["produced"]) == (0, 3, 5)
    assert tool.values() == ["a", "b", "c", "d", "e"]


def test_transform_keeps_keys_by_envelope(tool: Tool) -> None:
    tool.ok("produce", "in", "-mx", "-k", "ana", "-H", "a=b", "--event-time", "2026-01-01")
    words = ["--in-format", "envelope", "--out-format", "envelope", "--", "grep", "ana"]
    code, _, err = tool("transform", "in", "out", "-s", "s", *words)
    assert code == 0, err
    row = json.loads(tool.ok("consume", "out", "--json"))
    assert (row["key"], row["value"], row["properties"]) == ("ana", "x", {"a": "b"})
    assert row["event_time"] == "2026-01-01T00:00:00.000Z"


def test_transform_speaks_percent(tool: Tool) -> None:
    """spec/cli 7, 8.3: the command reads and writes %-formats, and stderr keeps the store's log."""
    tool.ok("produce", "in", "-k", "k", "-m", "x y")
    words = ["--in-format", "%k %V{big32}%v%[;", "--out-format", "%k %V{big32}%v%d{event};"]
    words += ["--", *python("percent")]
    code, _, err = tool("transform", "in", "out", "-s", "s", *words)
    assert (code, err) == (0, err)
    out = tool.ok("consume", "out", "-f", "%k|%v|%d{event}\n")
    assert out == "kk|a;\nb|77\n"
    for flag, form in (("in", "%w"), ("in", "xml"), ("out", "%p:%v\\n"), ("out", "%s")):
        words = ["transform", "in", "out", "-s", "s", f"--{flag}-format", form, "--", "true"]
        assert tool(*words)[0] == 2
    tool.ok("produce", "in", "-m9")
    code, _, err = tool(
        "transform", "in", "out", "-s", "s", "--out-format", "%V{big32}%v", "--", "printf", "abc"
    )
    assert (code, "record 1: cut short" in err) == (1, True)


def test_transform_with_nothing_between_zeros(tool: Tool) -> None:
    """Guards the format null, both ways, and an empty output."""
    tool.ok("produce", "in", "-ma\nb")
    words = ["--in-format", "null", "--out-format", "null", "-n", "6", "--", "cat"]
    assert tool("transform", "in", "out", "-s", "s", *words)[0] == 0
    assert tool.ok("consume", "out", "-f", "%v{hex} ").split()[-1] == "610a62"
    tool.ok("produce", "in", "-mlast")
    code, out, _ = tool("transform", "in", "out", "-s", "s", "--json", "--", "true")
    assert (code, json.loads(out)["produced"], json.loads(out)["consumed"]) == (0, 0, 1)


def test_a_command_that_fails(tool: Tool) -> None:
    """spec/cli 8.3: a code other than 0 aborts the batch; a signal, and no command at all, too."""
    base = ["transform", "in", "out", "-s", "s", "--json"]
    for words, text in (
        (["false"], "exit code 1"),
        (["sh", "-c", "echo x; kill -9 $$"], "signal 9"),
        (["no-such-command"], "no such command"),
        (
            [
                "sh",
                "-c",
                "echo '{'",
            ],
            "failed",
        ),
    ):
        extra = ["--out-format", "ndjson"] if "echo '{'" in words else []
        code, out, err = tool(*base, *extra, "--", *words)
        error = lines(err)[-1]["error"]
        assert (code, out, error["code"]) == (1, "", "TXL-106"), err
        assert text in error["message"]
    assert (tool.values(), tool.left()) == ([], 5)


def test_a_command_that_dislikes_one_message(tool: Tool) -> None:
    """Guards the halving of a batch: all other messages pass, once and in order."""
    script = "while read n; do [ $n = 3 ] && exit 1; echo v$n; done; true"
    code, out, _ = tool(
        "transform",
        "in",
        "out",
        "-s",
        "s",
        "--json",
        "--on-error",
        "dead-letter:bad",
        "--create",
        "--",
        "sh",
        "-c",
        script,
    )
    assert (code, json.loads(out)["dead_lettered"]) == (0, 1)
    assert (tool.values(), tool.values("bad")) == (["v1", "v2", "v4", "v5"], ["3"])


@pytest.mark.parametrize(
    ("number", "code"), graded([(signal.SIGINT, 130), (signal.SIGTERM, 143)], 1)
)
def test_a_signal_aborts_the_batch_and_frees_the_subscription(
    tool: Tool, number: int, code: int
) -> None:
    """spec/cli 4: the next consumer finds the topic as it was before the batch."""
    os.mkfifo(tool.path.parent / "pipe")
    (tool.path.parent / "block").touch()
    words = ["run", f"{tool.file}:block", "--input", "in", "--output", "out", "-s", "s", "-F"]
    child = tool.spawn(*words, "--txn-size", "3")
    until(child, "blocked")
    ended, err = child.end(number)
    assert (ended, child.other) == (code, "")
    assert lines(err)[-1]["event"] == "stopped"
    assert (tool.values(), tool.left()) == ([], 5)
    assert json.loads(tool.run("keep", "--json")[1])["consumed"] == 5


def test_a_signal_stops_a_run_that_waits(tool: Tool) -> None:
    words = ["run", f"{tool.file}:keep", "--input", "in", "--output", "out", "-s", "s", "-F"]
    child = tool.spawn(*words)
    until(child, "started")
    with txlog.open(str(tool.path)) as client:
        client.create_subscription("out", "watch")
        with client.consumer("out", "watch") as consumer:
            for _ in range(5):
                assert consumer.receive(timeout_ms=60_000) is not None
    code, err = child.end(signal.SIGTERM)
    assert (code, lines(err)[-1]["consumed"]) == (143, 5)
    assert tool.left() == 0


def test_a_signal_stops_the_command_too(tool: Tool) -> None:
    script = "trap 'echo ended >&2; exit 0' TERM; echo '{\"event\":\"blocked\"}' >&2; read x < pipe"
    os.mkfifo(tool.path.parent / "pipe")
    words = [
        "transform",
        "in",
        "out",
        "-s",
        "s",
        "--",
        "sh",
        "-c",
        f"cd {tool.path.parent}; {script}",
    ]
    child = tool.spawn(*words)
    until(child, "blocked")
    code, err = child.end(signal.SIGTERM)
    assert (code, "ended" in err) == (143, True)
    assert (tool.values(), tool.left()) == ([], 5)


def test_a_stopped_zombie_is_fenced(tool: Tool) -> None:
    """spec/cli 8.3: SIGSTOP inside a batch, a second instance, SIGCONT: 4 (404), nothing twice."""
    folder = tool.path.parent
    os.mkfifo(folder / "pipe")
    (folder / "block").touch()
    words = ["run", f"{tool.file}:block", "--input", "in", "--output", "out", "-s", "s"]
    zombie = tool.spawn(*words)
    until(zombie, "blocked")
    zombie.stop()
    second = tool.spawn(*words)
    until(second, "waiting")
    zombie.wake()
    (folder / "pipe").write_text("go on")
    code, err = zombie.end()
    assert (code, "newer instance" in err) == (4, True)
    code, err = second.end()
    assert (code, lines(err)[-1]["consumed"]) == (0, 5)
    assert (tool.values(), tool.left()) == (["1", "2", "3", "4", "5"], 0)


def test_stopped_zombie_does_not_block_a_shared_subscription(tool: Tool) -> None:
    """Guards: a second instance takes new messages; the zombie's messages come after its end."""
    folder = tool.path.parent
    os.mkfifo(folder / "pipe")
    (folder / "block").touch()
    words = [f"{tool.file}:block", "--input", "in", "--output", "out", "-s", "many"]
    zombie = tool.spawn("run", *words, "--create", "--type", "shared")
    until(zombie, "blocked")
    zombie.stop()
    tool.ok("produce", "in", "-m6", "-m7")
    assert json.loads(tool.ok("run", *words, "--json"))["consumed"] == 2
    zombie.wake()
    (folder / "pipe").write_text("go on")
    code, err = zombie.end()
    assert (code, "newer instance" in err) == (4, True)
    assert json.loads(tool.ok("run", *words, "--json"))["consumed"] == 5
    assert tool.values() == ["6", "7", "1", "2", "3", "4", "5"]


def test_runs_that_are_killed_repeat_and_lose_nothing(tool: Tool) -> None:
    """Guards: SIGKILL inside the function, again and again."""
    for number in (2, 3, 5):
        (tool.path.parent / f"kill-{number}").touch()
    words = ["run", f"{tool.file}:kill", "--input", "in", "--output", "out", "-s", "s"]
    command = txlog_of(tool.path, *words, "--txn-size", "2")
    assert run_until_done([command] * 5) == 3
    assert (tool.values(), tool.left()) == (["1", "2", "3", "4", "5"], 0)


@pytest.mark.parametrize(
    "words",
    [
        ("run", "FILE:keep", "--input", "in", "--output", "public/default/in", "-s", "s"),
        ("run", "FILE:keep", "--input", "in/0", "--output", "in", "-s", "s", "--create"),
        ("run", "FILE:keep", "--input", "in", "--on-error", "dead-letter:in", "-s", "s"),
        ("transform", "in", "in", "-s", "s", "--", "cat"),
    ],
)
def test_loop_needs_allow_loop(tool: Tool, words: tuple[str, ...]) -> None:
    """902 names the flag of consent, and nothing is made; with the flag, -n ends the loop."""
    line = [word.replace("FILE", str(tool.file)) for word in words]
    code, out, err = tool(line[0], "--json", *line[1:])
    assert (code, out) == (9, "")
    assert json.loads(err.splitlines()[-1])["error"]["code"] == "TXL-902"
    assert "--allow-loop" in err
    line[1:1] = ["--allow-loop", "-n", "0"]
    assert tool(*line)[0] == 0

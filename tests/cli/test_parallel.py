"""Tests of `txlog run --parallelism`: instances that die, fail, stop or lose their parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from shutil import copyfile
from typing import Any

import pyarrow as pa
import pytest

import txlog
from tests.harness import CHILDREN, KILLED, Child, Children
from tests.screen import Screen
from tests.tiers import graded
from txlog import functions
from txlog.cli.main import main
from txlog.cli.run import workers
from txlog.errors import CommandFailed, ExpiredTransaction, OutcomeUnknown

pytestmark = pytest.mark.usefixtures("quick_disk")
ROOT = Path(__file__).resolve().parents[2]
COUNT, KEYS = 400, 13


class Tool:
    """txlog on a store with numbers under keys in four partitions."""

    def __init__(self, path: Path, capfd: pytest.CaptureFixture[str], children: Children) -> None:
        self.children = children
        self.path, self.capfd, self.folder = path / "shop", capfd, path
        copyfile(CHILDREN / "functions.py", path / "f.py")
        txlog.init(str(self.path))
        with txlog.open(str(self.path)) as client:
            client.create_topic("in", 4)
            client.create_topic("out")
            numbers = range(COUNT)
            client.producer("in").send_batch(
                pa.table(
                    {
                        "value": pa.array([str(n).encode() for n in numbers], pa.binary()),
                        "key": pa.array([str(n % KEYS).encode() for n in numbers], pa.binary()),
                    }
                )
            )

    def words(self, name: str, *args: str) -> list[str]:
        options = ["--input", "in", "--output", "out", "-s", "s", "--txn-size", "40"]
        run = ["-S", str(self.path), "--log-format", "json", "run", f"{self.folder}/f.py:{name}"]
        return [*run, *options, *args]

    def run(self, name: str, *args: str) -> tuple[int, str, str]:
        code = main([*self.words(name, *args), "--create", "--json"])
        out, err = self.capfd.readouterr()
        assert "Traceback" not in err
        return code, out, err

    def spawn(self, name: str, *args: str) -> Child:
        words = [sys.executable, "-m", "txlog", *self.words(name, *args)]
        return self.children.start(words, stream="stderr", stdin=subprocess.DEVNULL)

    def check(self, *, in_order: bool) -> None:
        """The output has every number once, and in order by key if that was promised."""
        by_key: dict[bytes | None, list[int]] = defaultdict(list)
        with txlog.open(str(self.path)) as client:
            for message in client.reader("out"):
                by_key[message.key].append(int(message.value or b""))
            [row] = client.subscriptions("in")
            assert (row["backlog"], client.transactions()) == (0, [])
        assert sorted(n for numbers in by_key.values() for n in numbers) == list(range(COUNT))
        if in_order:
            for numbers in by_key.values():
                assert numbers == sorted(numbers)


@pytest.fixture
def tool(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Tool]:
    """Return txlog on such a store."""
    for name in [name for name in os.environ if name.startswith("TXLOG")]:
        monkeypatch.delenv(name)
    with Children() as children:
        yield Tool(tmp_path, capfd, children)


def events(text: str) -> list[dict[str, Any]]:
    """The JSON lines of stderr."""
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("kind", graded(["shared", "failover", "key-shared"], 1))
def test_killed_instances_are_started_again(tool: Tool, kind: str) -> None:
    """Guards --parallelism: totals exact through SIGKILL, order by key where it is promised."""
    for number in (50, 111, 399):
        (tool.folder / f"kill-{number}").touch()
    code, out, err = tool.run("kill", "--parallelism", "3", "--type", kind)
    assert code == 0, err
    assert [line["event"] for line in events(err)] == ["restarted"] * 3
    done = json.loads(out)
    assert (done["consumed"], done["input"], done["output"]) == (COUNT, "in", "out")
    tool.check(in_order=kind != "shared")


@pytest.mark.deep
def test_windows_on_watermarks_are_each_given_once_by_several(tool: Tool) -> None:
    """Guards: a restarted instance continues its predecessor's state; all take a last look."""
    with txlog.open(str(tool.path)) as client:
        client.producer("in", "A").new_watermark().event_time((1 << 63) - 1).send()
    for number in (50, 399):
        (tool.folder / f"kill-{number}").touch()
    code, out, err = tool.run("timed", "--parallelism", "3")
    assert code == 0, err
    assert [line["event"] for line in events(err)] == ["restarted"] * 2
    done = json.loads(out)
    assert (done["consumed"], done["produced"], done["late_messages"]) == (COUNT, COUNT, 0)
    tool.check(in_order=False)
    with txlog.open(str(tool.path)) as client:
        rows = [row for row in client.subscriptions() if "-WINDOWS" in row["topic"]]
        assert max(row["backlog"] for row in rows) == 1  # the stored value
        assert len(rows) == 3


def test_open_windows_of_missing_instances_are_reported(tool: Tool) -> None:
    """Kills: open windows of an instance that no longer runs, without any report."""
    with txlog.open(str(tool.path)) as client:
        client.create_topic("late")
        client.create_subscription("in", "s", type="shared")
        function = functions.tumbling(duration_ms=2, watermarks=True)(lambda messages: None)
        options = functions.FunctionOptions(instance=1, limit=5)
        functions.run(client, function, "in", "out", "s", options)
    code, _, err = tool.run("timed")
    assert code == 0, err
    [line] = events(err)
    assert (line["event"], line["topic"], line["messages"]) == ("left-open", "in-s-WINDOWS-1", 5)


def started(child: Child, count: int) -> None:
    """Wait until so many instances have logged their start."""
    for _ in range(count):
        child.until('"started"')


def received(tool: Tool) -> None:
    """Wait for every output message."""
    with txlog.open(str(tool.path)) as client:
        client.create_subscription("out", "watch", if_not_exists=True)
        with client.consumer("out", "watch") as consumer:
            for _ in range(COUNT):
                message = consumer.receive(timeout_ms=60_000)
                assert message is not None
                consumer.acknowledge(message)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("number", "code"), graded([(signal.SIGTERM, 143), (signal.SIGINT, 130)], 1)
)
def test_a_signal_stops_all(tool: Tool, number: int, code: int) -> None:
    """Guards: a signal leaves no process, no consumer and no transaction."""
    child = tool.spawn("kill", "--parallelism", "2", "--create", "-F")
    started(child, 2)
    received(tool)
    ended, err = child.end(number)  # returns when the last process has closed stderr
    assert (ended, child.other) == (code, "")
    assert [line["event"] for line in events(err)].count("stopped") == 2
    with txlog.open(str(tool.path)) as client:
        [row] = client.subscriptions("in")
        assert row["consumers"] == 0
    tool.check(in_order=True)


@pytest.mark.deep
def test_instances_end_with_their_parent(tool: Tool) -> None:
    """Kills: processes that go on for ever after their parent was killed."""
    child = tool.spawn("kill", "--parallelism", "2", "--create", "-F")
    started(child, 2)
    code, _ = child.end(signal.SIGKILL)  # all have closed stderr
    assert code == KILLED
    code, _, err = tool.run("kill", "--parallelism", "2")
    assert code == 0, err
    tool.check(in_order=True)


@pytest.mark.deep
def test_an_instance_that_fails_stops_the_others(tool: Tool) -> None:
    code, out, err = tool.run("fail_late", "--parallelism", "2")
    error = events(err)[-1]["error"]
    assert (out, error["exit"]) == ("", code)
    assert code in (1, 7)  # 7 if another instance had committed before
    assert "ValueError: no 300" in error["message"]
    assert error["path"].endswith("f.py")
    code, out, err = tool.run("fail_late", "--parallelism", "2", "--on-error", "skip")
    assert (code, json.loads(out)["skipped"]) == (0, 1)


@pytest.mark.deep
def test_a_function_that_kills_every_instance_is_an_error(
    tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: processes started for ever."""
    monkeypatch.setattr(workers, "_DEATHS_MAX", 1)
    code, _, err = tool.run("deadly", "--parallelism", "2")
    error = events(err)[-1]["error"]
    assert (code, error["code"]) == (1, "TXL-106")
    assert "died 2 times" in error["message"]


def test_a_subscription_for_one_is_refused(tool: Tool) -> None:
    with txlog.open(str(tool.path)) as client:
        client.create_subscription("in", "s")
    code, _, err = tool.run("kill", "--parallelism", "2")
    assert (code, events(err)[-1]["error"]["code"]) == (4, "TXL-406")
    assert main([*tool.words("kill", "--parallelism", "2"), "-s", "no"]) == 3


@pytest.mark.deep
def test_parent_processes_the_remaining_messages(tool: Tool) -> None:
    """Guards the last look: several instances close the same windows as one instance would."""
    code, out, _ = tool.run("sevens", "--parallelism", "2", "--type", "shared")
    assert code == 0
    done = json.loads(out)
    assert done["consumed"] == done["produced"] == COUNT // 7 * 7
    with txlog.open(str(tool.path)) as client:
        assert client.subscriptions("in")[0]["backlog"] == COUNT % 7


@pytest.mark.deep
def test_each_instance_reads_its_partition_of_a_failover_subscription(tool: Tool) -> None:
    """Kills: the instance that starts first leases every partition, and the others end."""
    code, _, err = tool.run("which", "--parallelism", "4")
    assert (code, "do nothing" in err) == (0, False)
    with txlog.open(str(tool.path)) as client:
        partitions = int(client.describe_topic("in")["partitions"])
        stored = [client.reader(f"in/{number}") for number in range(partitions)]
        counts = {str(n).encode(): sum(1 for _ in reader) for n, reader in enumerate(stored)}
        assert Counter(message.value for message in client.reader("out")) == counts


@pytest.mark.deep
def test_instances_without_a_partition_are_reported(tool: Tool) -> None:
    code, _, err = tool.run("which", "--parallelism", "6")
    assert code == 0
    assert err.count("2 of 6 processes do nothing") == 1
    code, _, err = tool.run("which", "--parallelism", "6", "-s", "t", "--type", "shared")
    assert (code, "do nothing" in err) == (0, False)


def test_a_command_in_parallel(tool: Tool) -> None:
    words = ["transform", "in", "out", "-s", "s", "--create", "--parallelism", "2"]
    formats = ["--in-format", "envelope", "--out-format", "envelope", "--json"]
    code = main(["-S", str(tool.path), *words, *formats, "--", "cat"])
    out, _ = tool.capfd.readouterr()
    assert (code, json.loads(out)["consumed"]) == (0, COUNT)
    tool.check(in_order=True)


NOISY = """
import os
import time
from pathlib import Path


def noisy(message, context):
    time.sleep(0.01)  # the bars need half a second
    number = int(message.value)
    if number % 100 == 0:
        print(f"printed {number}" + "." * 30)
        context.logger.warning("warned of %d", number)
    mark = Path(__file__).with_name("killed")
    if number == 300 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), 9)
    return message.value
"""


@pytest.mark.deep
def test_a_terminal_has_a_bar_for_each_worker(tool: Tool) -> None:
    """Lines of workers stand above the bars, whole and once; at the end the bars disappear."""
    (tool.folder / "noisy.py").write_text(NOISY)
    options = ["-S", str(tool.path), "run", f"{tool.folder}/noisy.py:noisy", "--input", "in"]
    options += ["--output", "out", "-s", "s", "--create", "--txn-size", "10", "--parallelism", "3"]
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    argv = [sys.executable, "-m", "txlog", *options]
    with Screen(argv, {**env, "TERM": "xterm-256color"}, columns=80, lines=40) as screen:

        def has_bars() -> bool:
            names = [line.split()[:2] for line in screen.lines if "━" in line]
            workers = [["worker", str(number)] for number in range(3)]
            return len(names) == 4 and names[0][0] == "noisy@in/s" and names[1:] == workers

        screen.wait(has_bars)
        code = screen.end()
        lines = screen.text.splitlines()
    assert code == 0, lines
    assert "━" not in screen.text
    assert lines[-1].startswith("noisy@in/s: finished: 400 in, 400 out")
    for number in (0, 100, 200):
        assert lines.count(f"printed {number}" + "." * 30) == 1
        assert lines.count(f"warning: noisy@in/s: warned of {number}") == 1
    assert sum("restarted" in line for line in lines) == 1
    assert all(line.startswith(("noisy@in/s: ", "warning: ", "printed ")) for line in lines), lines
    tool.check(in_order=True)


def test_an_error_is_rebuilt_as_it_was() -> None:
    """Guards: an instance's error keeps class, code, hint and facts; a foreign one is a failure."""
    for error in (
        ExpiredTransaction("fenced", hint="stop", epoch=3),
        OutcomeUnknown("lost", txn="0:1"),
    ):
        rebuilt = workers.rebuilt(error.as_dict())
        assert (type(rebuilt), rebuilt.as_dict()) == (type(error), error.as_dict())
    odd = workers.rebuilt({"class": "dict", "message": "m", "code": "TXL-999"})
    assert (type(odd), odd.message) == (CommandFailed, "m")

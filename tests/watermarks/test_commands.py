"""Arguments that the commands of event time accept or refuse: each call in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import txlog
from txlog.cli.main import main

pytestmark = pytest.mark.usefixtures("quick_disk")
NOW = "2026-11-20T09:12:04.123Z"


class Tool:
    """txlog on one store; the clock stands still."""

    def __init__(self, path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.path = str(path)
        self.capfd = capfd

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        code = main(["-S", self.path, "--now", NOW, *arguments])
        return (code, *self.capfd.readouterr())

    def json(self, *arguments: str) -> Any:
        code, out, err = self(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    def refused(self, *arguments: str) -> tuple[int, str]:
        """(TXL code, message) of an error."""
        code, out, err = self(*arguments, "--json")
        error = json.loads(err.splitlines()[-1])["error"]
        assert (out, code) == ("", error["exit"])
        return int(error["code"][4:]), str(error["message"])


@pytest.fixture
def tool(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Tool:
    path = tmp_path / "store"
    txlog.init(str(path), durability="os", free_bytes_min=0)
    with txlog.open(str(path)) as client:
        client.create_topic("t", 2)
        client.create_subscription("t", "s", type="shared")
    return Tool(path, capfd)


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (("--watermark-lag", "3m"), 201),
        (("--watermark-every", "3"), 201),
        (("--watermark-from", "publish"), 201),
        (("--watermark-from", "event-time", "--watermark-every", "0"), 203),
        (("--watermark-from", "event-time", "--watermark-every", "0s"), 203),
        (("--watermark-from", "event-time", "--watermark-every", "x"), 203),
        (("--watermark-from", "event-time", "--watermark-lag", "-1m"), 203),
        (("--idle-on-close",), 201),
    ],
)
def test_options_of_produce_that_make_no_sense(
    tool: Tool, flags: tuple[str, ...], code: int
) -> None:
    """spec/cli 5: exit 2, and no row was written."""
    assert tool.refused("produce", "t", "-m", "x", *flags)[0] == code
    assert tool.json("topic", "list")[0]["messages"] == 0


def test_a_lag_beyond_the_epoch_asserts_nothing(tool: Tool) -> None:
    """A watermark is above 0."""
    flags = ("--watermark-from", "event-time", "--watermark-lag", "2m", "--producer", "A", "-q")
    for time in ("1970-01-01T00:01:00Z", "1970-01-01T00:02:00Z"):
        assert tool("produce", "t", "-m", "x", "--event-time", time, *flags)[0] == 0
    assert tool.json("watermark", "history", "t") == []
    tool("produce", "t", "-m", "x", "--event-time", "1970-01-01T00:02:00.001Z", *flags)
    assert [row["event_time"] for row in tool.json("watermark", "history", "t", "-p", "0")] == [
        "1970-01-01T00:00:00.001Z"
    ]


def test_history_in_other_words(tool: Tool) -> None:
    """Flags of `watermark history`; no row is no error."""
    tool("watermark", "set", "t", "now", "--producer", "A")
    tool("watermark", "set", "t", "-1m", "--producer", "A", "-qq")
    history = ("watermark", "history", "t")
    assert [row["regressed"] for row in tool.json(*history)] == [False, False, True, True]
    assert tool(*history, "--limit", "1", "-f", "names")[1] == "2:1\n"
    assert tool.json(*history, "--since", "+1ms") == []
    assert len(tool.json(*history, "--since", "now")) == 4
    assert tool.json(*history, "--producer", "B") == []
    assert tool.json("watermark", "history", "t/1") == tool.json(*history, "-p", "1")
    assert tool.refused(*history, "-p", "2")[0] == 302
    assert tool.refused(*history, "--producer", "a b")[0] == 202
    assert tool.refused(*history, "--since", "soon")[0] == 203
    assert tool.refused("watermark", "history", "nothing")[0] == 302


@pytest.mark.parametrize("time", ["-3m", "now-3m", "-180s"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_time_before_now_is_no_flag(tool: Tool, time: str, place: int) -> None:
    """spec/cli 2: arguments and flags mix freely."""
    arguments = [["t"], [time], ["--producer", "A"]]
    arguments.insert(place if time != "-3m" else 0, arguments.pop())
    answer = tool.json("watermark", "set", *[word for argument in arguments for word in argument])
    assert (answer["topic"], answer["producer"]) == ("t", "A")
    assert answer["event_time"] == "2026-11-20T09:09:04.123Z"


def test_what_looks_like_a_time_and_is_none(tool: Tool) -> None:
    """The error repeats the words as the user gave them."""
    of_a = ("--producer", "A")
    assert tool.refused("watermark", "set", "t", "-3x", *of_a) == (203, 'not a time: "-3x"')
    assert "(-4m)" in tool.refused("watermark", "set", "t", "-3m", "-4m", *of_a)[1]
    assert tool.refused("watermark", "set", "t", "-5000", *of_a)[0] == 203
    assert "-3m" in tool.refused("watermark", "set", "t", "-1m", "--producer", "-3m")[1]
    assert tool.refused("watermark", "set", "t", "-x", *of_a)[0] == 201
    assert tool.refused("watermark", "set", "t", *of_a) == (201, "missing argument 'TIME'")
    assert tool("watermark", "set", *of_a, "--", "t", "-3m")[0] == 0


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ((), 201),
        (("--timeout", "1s"), 201),
        (("--messages", "3"), 201),
        (("--watermark", "now"), 201),
        (("--topic", "t"), 201),
        (("--topic", "t", "--messages", "3", "-s", "s"), 201),
        (("--topic", "t", "--messages", "3", "--timeout", "soon"), 203),
        (("--topic", "t", "--watermark", "soon"), 203),
        (("--topic", "t", "--watermark", "now", "-s", "nobody"), 303),
        (("--topic", "nothing", "--messages", "0"), 302),
        (("--topic", "t/2", "--messages", "0"), 302),
        (("--backlog", "s"), 201),
        (("--backlog", "s=many"), 203),
        (("--backlog", "nobody=1"), 303),
        (("--txn", "0:0"), 201),
        (("--txn", "0:0=gone"), 203),
        (("--txn", "x=ended"), 203),
        (("--txn", "0:9=ended"), 304),
    ],
)
def test_what_wait_refuses(tool: Tool, flags: tuple[str, ...], code: int) -> None:
    """A name that is not there is an error, not something to wait for."""
    assert tool.refused("wait", *flags)[0] == code


def test_wait_answers_by_its_exit_code(tool: Tool) -> None:
    """spec/cli 5: exit code 8 without an error; stdout shows the value of each condition."""
    code, out, err = tool("wait", "--topic", "t", "--messages", "1", "--timeout", "0s", "--json")
    assert (code, err) == (8, "")
    assert json.loads(out)["condition_list"] == [{"name": "messages:t", "met": False, "value": "0"}]
    tool("watermark", "set", "t", "end", "--producer", "A")
    answer = tool.json("wait", "--topic", "t", "--topic", "t/1", "--watermark", "end", "-s", "s")
    assert [row["name"] for row in answer["condition_list"]] == ["watermark:t:s", "watermark:t/1:s"]
    assert answer["met"]
    assert set(answer) == {"met", "elapsed_ms", "condition_list"}

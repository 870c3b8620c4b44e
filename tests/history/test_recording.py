"""Calls of several processes become one history, also if a kill cut the last line of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.history.__main__ import main
from tests.history.events import merged, read_file, save
from tests.history.model import NEVER, History
from tests.history.notation import history
from tests.history.recording import SUFFIX, Calls, checked
from txlog.errors import OutcomeUnknown, StoreFull

SEND = {"topic": "t", "value": "m1"}


def raising(error: BaseException) -> None:
    raise error


def test_outcomes_follow_from_errors(tmp_path: Path) -> None:
    with Calls(tmp_path, "a", "p1") as calls:
        calls("send", SEND, lambda: 7, lambda number: {"partition": number})
        with pytest.raises(StoreFull):
            calls("send", SEND, lambda: raising(StoreFull("no space")))
        with pytest.raises(OutcomeUnknown):
            calls("send", SEND, lambda: raising(OutcomeUnknown("the flush failed")))
    events = merged([tmp_path / f"a{SUFFIX}"])
    ends = [(event.type, event.error) for event in events if event.type != "invoke"]
    assert ends == [("ok", None), ("fail", "StoreFull"), ("unknown", "OutcomeUnknown")]
    assert events[1].answer == {"partition": 7}


def test_files_are_merged_in_the_order_of_their_events(tmp_path: Path) -> None:
    with Calls(tmp_path, "a", "p1") as first, Calls(tmp_path, "b", "p2") as second:
        first("send", SEND, lambda: second("flush", {}, lambda: None))
    with (tmp_path / f"a{SUFFIX}").open("a") as file:
        file.write('{"n":1,"type":"inv')
    events = checked(tmp_path)
    assert [(e.n, e.type, e.op) for e in events] == [
        (0, "invoke", "send"),
        (1, "invoke", "flush"),
        (2, "ok", "flush"),
        (3, "ok", "send"),
    ]
    assert events[0].call == events[3].call
    assert events[1].call == events[2].call
    assert events[0].call != events[1].call


def test_a_call_ends_when_its_process_was_killed(tmp_path: Path) -> None:
    with Calls(tmp_path, "a", "p1") as victim, Calls(tmp_path, "b", "killer") as killer:
        with pytest.raises(KeyboardInterrupt):
            victim("send", SEND, lambda: raising(KeyboardInterrupt()))  # leaves no answer
        send = History(merged(tmp_path.iterdir())).by_op["send"][0]
        assert send.end == NEVER
        with killer.killing("p1"):
            pass
    send = History(merged(tmp_path.iterdir())).by_op["send"][0]
    assert (send.outcome, send.end) == ("unknown", 2)


def test_findings_are_reported_with_the_history(tmp_path: Path) -> None:
    with Calls(tmp_path, "a", "p1") as calls:
        calls("send", SEND, lambda: None)
        calls("final_read", {}, lambda: None, lambda _: {"topics": {"t": {"0": []}}})
    with pytest.raises(AssertionError, match="lost-message"):
        checked(tmp_path)
    assert (tmp_path / "findings.jsonl").exists()


def test_files_of_lines_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    for path, text in ((good, "send m1 -> 1:0"), (bad, "read -> 1:0/m9")):
        save(history(text), path)
        assert read_file(path) == history(text)
    assert main([str(good)]) == 0
    assert main([str(good), str(bad)]) == 1
    out = capsys.readouterr().out
    assert "0 findings" in out
    assert "phantom-message: read [0] saw 'm9' at 1:0 of t/0, which was never sent" in out


def test_a_kill_ends_the_calls_of_its_process() -> None:
    events = history("x: send m1\ny: p2/send m2\n* p/kill\ny -> 1:0")
    assert [(event.type, event.op) for event in events[2:]] == [
        ("event", "kill"),
        ("unknown", "send"),
        ("ok", "send"),
    ]

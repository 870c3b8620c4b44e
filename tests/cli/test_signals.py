"""Signals as exceptions, also where Python drops them."""

from __future__ import annotations

import signal
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

import txlog
from tests.source_tree import ROOT
from txlog.cli.line import dispatch
from txlog.cli.terminal.signals import Interrupted, raise_if_asked, watched
from txlog.errors import PartlyDone


class _Thing:
    pass


@pytest.mark.filterwarnings("error")
def test_signal_in_a_callback_is_kept(capfd: pytest.CaptureFixture[str]) -> None:
    """Python drops an exception in the callback of a weak reference, as import locks have one."""
    with watched():
        thing = _Thing()
        reference = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGTERM))
        del thing
        assert reference() is None
        with pytest.raises(Interrupted) as caught:
            raise_if_asked()
    assert caught.value.exit == 143
    assert capfd.readouterr() == ("", "")


MOMENTS = """
import os, sys
from txlog.cli import main
main.OBJECTS_MAX  # now it has run
print(sorted({"typing", "enum", "contextlib", "threading", "collections"} & set(sys.modules)))
import signal
words, step, most = sys.argv[1].split(), int(sys.argv[2]), int(sys.argv[3])
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = ["txlog", *words]

def run(at):
    seen = 0
    def tell(frame, event, arg):
        nonlocal seen
        seen += 1
        if seen == at:
            os.kill(os.getpid(), signal.SIGINT)
    out, err = os.memfd_create("out"), os.memfd_create("err")
    pid = os.fork()
    if pid == 0:
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.setprofile(tell)
        main.script()
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), os.pread(err, 4000, 0).decode()

for number in range(most):
    at = 8 + number * step + number * number * number
    code, said = run(at)
    print(code, "|".join(said.splitlines()))
    if code == 0:
        break
"""


@pytest.mark.parametrize(("step", "most"), [(40, 12), pytest.param(7, 60, marks=pytest.mark.deep)])
def test_an_interrupt_from_the_first_call_on_is_silent(
    tmp_path: Path, step: int, most: int
) -> None:
    """spec/cli 4: 130, no traceback; also while modules load and before a command has begun.

    The moments are numbers of calls in a process that has loaded only the entry point.
    """
    txlog.init(str(tmp_path / "s"))
    done = subprocess.run(
        [sys.executable, "-c", MOMENTS, "topic list", str(step), str(most)],
        capture_output=True,
        text=True,
        timeout=300,
        env={"PYTHONPATH": str(ROOT / "src"), "TXLOG_STORE": str(tmp_path / "s")},
    )
    assert done.stderr == ""
    loaded, *lines = done.stdout.splitlines()
    assert loaded == "[]"  # little runs before the handler is set
    assert len(lines) > 8, lines
    assert [line for line in lines if line not in ("130 ", "0 ")] == []
    assert lines[:8] == ["130 "] * 8


def test_library_error_caused_by_a_signal_counts_as_the_signal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Kills: Ctrl-C shown as "a bug of txlog: RuntimeError: Query interrupted"; our errors stay."""

    def interrupted(words: list[str], report: object) -> int:
        try:
            signal.raise_signal(signal.SIGINT)
        except Interrupted:
            raise raised from None
        raise AssertionError

    monkeypatch.setattr(dispatch, "_dispatch", interrupted)
    raised: Exception = RuntimeError("Query interrupted")
    assert (dispatch.run([]), capfd.readouterr()) == (130, ("", ""))
    raised = PartlyDone("2 of 3")
    assert dispatch.run([]) == 7

"""Signals as exceptions, also where Python drops them."""

from __future__ import annotations

import signal
import weakref
from pathlib import Path

import pytest

import txlog
from tests.harness import python
from tests.harness import run as run_child
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


@pytest.mark.parametrize(("step", "most"), [(40, 12), pytest.param(7, 60, marks=pytest.mark.deep)])
def test_an_interrupt_from_the_first_call_on_is_silent(
    tmp_path: Path, step: int, most: int
) -> None:
    """spec/cli 4: 130, no traceback; also while modules load and before a command has begun.

    The moments are numbers of calls in a process that has loaded only the entry point.
    """
    txlog.init(str(tmp_path / "s"))
    environment = {"TXLOG_STORE": str(tmp_path / "s")}
    done = run_child(python("moments", "topic list", step, most), env=environment)
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

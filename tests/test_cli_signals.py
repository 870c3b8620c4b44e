"""Signals as exceptions, also where Python drops them."""

from __future__ import annotations

import signal
import weakref

import pytest

from txlog.cli.signals import Interrupted, raise_if_asked, watched


class _Thing:
    pass


@pytest.mark.filterwarnings("error")
def test_a_signal_in_a_callback_is_kept_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    """The callback of a weak reference, as the locks of the import system have one."""
    with watched():
        thing = _Thing()
        told = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGTERM))
        del thing
        assert told() is None
        with pytest.raises(Interrupted) as caught:
            raise_if_asked()
    assert caught.value.exit == 143
    assert capfd.readouterr() == ("", "")

"""Get a second signal while a bar is shown."""

from __future__ import annotations

import signal

from txlog.cli.terminal import signals

with signals.watched():
    signals.parting("gone")
    try:
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.raise_signal(signal.SIGTERM)

"""Owns the command of `transform`: a batch on its stdin, its stdout as the messages to produce."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from txlog.cli.input.inputs import Input
from txlog.cli.output.records import Beside, Records, beside_of
from txlog.cli.terminal.signals import Interrupted, shielded
from txlog.cli.terminal.tables import Look
from txlog.client.reading.record_columns import RecordColumns
from txlog.errors import CommandFailed

if TYPE_CHECKING:
    from txlog.client.client import Client

_GRACE_S: Final = 10
_SENT: Final = ("value", "key", "properties", "event_time", "deliver_at", "deliver_after")
_PLAIN: Final = Look(human=False, color=False, utc=True, width=0)


class Command:
    """A command as a function of batches.

    raises: CommandFailed when there is no such command
    """

    def __init__(self, command: list[str], in_format: str, out_format: str, store: str) -> None:
        self._words = command
        self._in_format = in_format
        self._out_format = out_format
        self._environment = {**os.environ, "TXLOG_STORE": os.path.abspath(store)}
        self._beside: Beside | None = None
        self._typed: RecordColumns | None = None
        self.__name__ = os.path.basename(command[0])
        if shutil.which(command[0]) is None:
            raise CommandFailed(f"{command[0]}: no such command", command=command[0])

    def look_up(self, client: Client) -> None:
        """Use this client to look up facts that the input format needs and messages lack."""
        self._beside = beside_of(client, self._in_format)
        self._typed = RecordColumns(client.store)

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Run it for a batch and return its output as columns; raises CommandFailed, BadRecord."""
        input_bytes = self._encoded(rows)
        child = None
        try:
            with shielded():  # a signal must not come before `child` is set
                child = subprocess.Popen(
                    self._words,
                    env=self._environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            written, _ = child.communicate(input_bytes)
        except OSError as error:
            raise CommandFailed(f"{self._words[0]}: {error.strerror}") from error
        except (Interrupted, KeyboardInterrupt):
            if child is not None:
                _stop(child)
            raise
        if child.returncode:
            code = child.returncode
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise CommandFailed(f"{self._words[0]} ended with {how}", command=self._words[0])
        parsed = Input(self._out_format, []).parse(written)
        return parsed.select([name for name in _SENT if name in parsed.column_names])

    def _encoded(self, rows: pa.Table) -> bytes:
        if self._in_format == "null":
            values = rows["value"].to_pylist()
            return b"".join([(value or b"") + b"\0" for value in values])
        records = Records(self._in_format, None, self._typed, look=_PLAIN, beside=self._beside)
        return records.encode(rows)


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Ask the child to end, kill it if it does not, and wait for its end."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
    try:
        child.communicate(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()

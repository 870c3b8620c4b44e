"""Owns the form of an error: lines of text, or with --json one object on one line of stderr."""

from __future__ import annotations

import importlib
import os
import re
import sys
from typing import Final

import msgspec

from txlog.cli.terminal import tables
from txlog.cli.terminal.say import marked, say
from txlog.errors import InternalError, TxlogError, printable

# Characters that JSON allows but a terminal would obey or cannot show: written as JSON escapes, so
# that a program reads the original.
_UNSEEN: Final = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class Report(msgspec.Struct):
    """The destination and form of an error; a command fills in the facts it learns."""

    json: bool
    store: str | None
    color: str = "auto"
    always: int | None = None  # the exit code of a monitoring command for any error

    def show(self, error: TxlogError, cause: BaseException | None = None) -> int:
        """Print error on stderr and return its exit code."""
        if os.environ.get("TXLOG_DEBUG") == "1":
            traceback = importlib.import_module("traceback")
            traceback.print_exception(cause or error, file=sys.stderr)
        fields = error.as_dict()
        if self.store is not None:
            fields.setdefault("store", self.store)
        text = (
            _UNSEEN.sub(_escaped, tables.as_json({"error": fields}))
            if self.json
            else _text(fields, self.color)
        )
        say(text + "\n")  # even if stderr is closed: the exit code reports it too
        return error.exit if self.always is None else self.always


def bug(error: Exception) -> InternalError:
    """Return an unexpected exception as the error to show."""
    text = printable(f"{type(error).__name__}: {error}")
    excerpt = text if len(text) <= 300 else f"{text[:297]}..."
    return InternalError(
        f"a bug of txlog: {excerpt}", hint="TXLOG_DEBUG=1 shows where; please report it"
    )


def _escaped(character: re.Match[str]) -> str:
    return f"\\u{ord(character[0]):04x}"


def _text(fields: dict[str, object], color: str) -> str:
    lines = [f"{marked('error', color, os.environ)}{fields['message']}"]
    for label in ("store", "hint"):
        if fields.get(label):
            lines.append(f"  {label:<6} {printable(str(fields[label]))}")
    if _is_read():
        lines.append(f"  see    txlog help {fields['code']}")
    for failed in _rows(fields.get("failed_list")):
        lines.append(f"  failed {printable(str(failed.get('name')))}: {failed.get('message')}")
    return "\n".join(lines)


def _is_read() -> bool:
    """Return whether stderr is a terminal: logs and pipes need no pointer to further help."""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False


def _rows(value: object) -> list[dict[str, object]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []

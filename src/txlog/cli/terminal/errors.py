"""Owns how an error looks: lines of text, or with --json one object on one line of stderr."""

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

# What a terminal would act on or cannot show, and JSON allows: written as JSON escapes, so that a
# program reads the original.
_UNSEEN: Final = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class Report(msgspec.Struct):
    """Where an error goes and in which form; a command fills in what it learns."""

    json: bool
    store: str | None
    color: str = "auto"
    always: int | None = None  # the exit code of a monitoring command, whatever went wrong

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
        say(text + "\n")  # even if nobody listens: the exit code says it too
        return error.exit if self.always is None else self.always


def bug(error: Exception) -> InternalError:
    """Return an unexpected exception as the error that the user sees."""
    text = printable(f"{type(error).__name__}: {error}")
    shown = text if len(text) <= 300 else f"{text[:297]}..."
    return InternalError(
        f"a bug of txlog: {shown}", hint="TXLOG_DEBUG=1 shows where; please report it"
    )


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


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
    """Return whether a person reads it: logs and pipes need no pointer to further help."""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False


def _rows(value: object) -> list[dict[str, object]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []

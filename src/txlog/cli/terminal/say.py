"""Owns diagnostics: lines and errors on stderr or in the log file, and escapes for a terminal.

A diagnostic is not a result: if it cannot be written, the call and its exit code stay the same. A
log file that cannot be written at all is reported before the command does anything. An error is
lines of text, or with --json one object on one line of stderr.

A message may contain any bytes: sequences that move the cursor, set the title or send input as if
the user had typed it; marks that reverse the direction of the following text. On a terminal these
are escaped, so that it obeys none. Off a terminal bytes stay unchanged, because a program
reads them.

    \\x1b \\x07 \\r …      C0 except tab and newline
    \\u009b \\u007f …     C1 and DEL; in this form printed JSON stays valid
    \\u202e \\u2028 …     marks of direction, separators of lines
    \\x9b                a byte that is not UTF-8; a terminal without UTF-8 would read it as C1
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from txlog.base.suggest import command_line
from txlog.errors import TxlogError, printable

_COLORS: Final = {"error": "\x1b[1;31m", "warning": "\x1b[1;33m", "note": "\x1b[36m"}
_PLAIN: Final = "\x1b[0m"
_OURS: Final = (*_COLORS.values(), _PLAIN)
_UNSAFE: Final = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\udc80-\\udc9f]"
)
# Characters that JSON allows but a terminal would obey or cannot show: written as JSON escapes, so
# that a program reads the original.
_UNSEEN: Final = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# A text of JSON, and the colon after it where it is a key.
_STRING: Final = re.compile(rb'("(?:[^"\\]|\\.)*")(:)?', re.DOTALL)


def is_colored(choice: str, terminal: bool, environ: Mapping[str, str]) -> bool:
    """Return whether to use colours: --color, the variables, the terminal (spec/cli 4)."""
    if choice != "auto":
        return choice == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("CLICOLOR_FORCE", "0") != "0" or environ.get("FORCE_COLOR", "0") != "0":
        return True
    return terminal and environ.get("CLICOLOR") != "0" and environ.get("TERM") != "dumb"


def marked(word: str, choice: str, environ: Mapping[str, str]) -> str:
    """The start of a line on stderr, such as `error: `, in colour if the terminal has any."""
    try:
        terminal = sys.stderr.isatty()
    except (AttributeError, ValueError):
        terminal = False
    if is_colored(choice, terminal, environ):
        return f"{_COLORS[word]}{word}:{_PLAIN} "
    return f"{word}: "


def say(text: str) -> None:
    """Write text on stderr, and ignore failures; a terminal obeys only our own colours in it."""
    try:
        if sys.stderr.isatty():
            text = safe(text, _OURS)
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, AttributeError, ValueError):
        pass  # stderr is closed or full


def begin_log(path: str) -> None:
    """Check that lines can be appended to the file at path; create it if it is missing.

    raises: OSError
    """
    with open(path, "a", encoding="utf-8"):
        pass


def log(path: str, line: str) -> None:
    """Append a line to the file at path."""
    try:
        with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(line + "\n")
    except OSError:
        say(line + "\n")  # the disk is full, or the directory was deleted


def as_json(value: object) -> str:
    """Return a value as compact JSON; a byte that is not UTF-8 becomes `\\udcNN`.

    Python uses the same form, so a reader can pass the name to `open`.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def safe(text: str, allowed: Collection[str] = ()) -> str:
    """Text with control characters escaped, except in allowed sequences."""
    if _UNSAFE.search(text) is None:
        return text
    if not allowed:
        return _UNSAFE.sub(_written, text)
    allowed_sequence = re.compile(
        "|".join(re.escape(sequence) for sequence in sorted(allowed, key=len, reverse=True))
    )
    out, at = [], 0
    for match in allowed_sequence.finditer(text):
        out += [_UNSAFE.sub(_written, text[at : match.start()]), match[0]]
        at = match.end()
    return "".join([*out, _UNSAFE.sub(_written, text[at:])])


def safe_bytes(data: bytes, allowed: Collection[str] = ()) -> bytes:
    """Bytes, UTF-8 or not, with control characters escaped, except in allowed sequences."""
    text = data.decode("utf-8", "surrogateescape")
    return safe(text, allowed).encode("utf-8", "surrogateescape")


def with_colored_keys(data: bytes) -> bytes:
    """JSON with the keys of its objects in colour; texts in it are not searched for more keys."""
    return _STRING.sub(_key, data)


def _key(text: re.Match[bytes]) -> bytes:
    if text[2] is None:
        return text[0]
    return b"\x1b[36m" + text[1] + b"\x1b[0m" + text[2]


def _written(character: re.Match[str]) -> str:
    code = ord(character[0])
    if code >= 0xDC80 and code <= 0xDC9F:  # a byte that surrogateescape decoded
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x20 else f"\\u{code:04x}"


class Report(msgspec.Struct):
    """How to print an error; the command sets the fields from `store` on once it knows them.

    edit: makes the command lines in a hint work where the error was raised
    """

    json: bool
    store: str | None
    color: str = "auto"
    edit: Callable[[str], str] = str
    always: int | None = None  # the exit code of a monitoring command for any error

    def show(self, error: TxlogError, cause: BaseException | None = None) -> int:
        """Print error on stderr and return its exit code."""
        if os.environ.get("TXLOG_DEBUG") == "1":
            traceback = importlib.import_module("traceback")
            traceback.print_exception(cause or error, file=sys.stderr)
        fields = error.as_dict()
        if self.store is not None:
            fields.setdefault("store", self.store)
        if error.hint is not None:
            fields["hint"] = self.edit(error.hint)
        text = (
            _UNSEEN.sub(_escaped, as_json({"error": fields}))
            if self.json
            else _text(fields, self.color)
        )
        say(text + "\n")  # even if stderr is closed: the exit code reports it too
        return error.exit if self.always is None else self.always


def _escaped(character: re.Match[str]) -> str:
    return f"\\u{ord(character[0]):04x}"


def _text(fields: dict[str, object], color: str) -> str:
    lines = [f"{marked('error', color, os.environ)}{fields['message']}"]
    plan = fields.get("plan")
    lines += [f"  plan   {printable(str(row))}" for row in plan] if isinstance(plan, list) else []
    for label in ("store", "hint"):
        if fields.get(label):
            lines.append(f"  {label:<6} {printable(str(fields[label]))}")
    if _is_read():
        lines.append(f"  see    {command_line('help', fields['code'])}")
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

"""Owns `txlog shell`: many commands in one process, from a terminal or a script.

A line is a command without `txlog`, a SELECT, a word of the shell itself, or `!` and a line for sh.
Imported modules stay loaded; each command opens the store anew, as it does outside the shell.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Annotated, Final

from txlog.cli.call.call import STORE_FILE, Call, is_terminal
from txlog.cli.line import dispatch
from txlog.cli.line.command import GLOBAL_FLAGS, Argument, Option, command
from txlog.cli.terminal import signals
from txlog.cli.terminal.say import is_colored
from txlog.errors import NotFound, StoreNotFound, TxlogError, Usage

_SQL: Final = re.compile(r"(select|from|with|describe)\b", re.IGNORECASE)
_OWN: Final = ("use", "set", "unset", "begin", "commit", "abort")
OWN_WORDS: Final = (*_OWN, "exit", ".tables", ".describe", ".help", ".exit")
_LEFT: Final = frozenset(("store", "format", "version"))  # the first two become variables


@command(
    "shell",
    "many commands in one process, from terminal or script",
    examples=(
        "txlog shell",
        "txlog shell nightly.txlog",
        "printf 'topic list\\nFROM orders LIMIT 3\\n' | txlog shell --keep-going",
    ),
)
def shell(
    call: Call,
    file: Annotated[
        str | None, Argument(metavar="FILE", show_default=False, help="a script; none: stdin")
    ] = None,
    keep_going: Annotated[
        bool, Option("--keep-going", help="in a script: continue after an error")
    ] = False,
) -> None:
    """Run many commands in one process, from a terminal or a script.

    A line is a command without txlog; or a query that begins with SELECT, FROM, WITH or DESCRIBE;
    or `!LINE` for sh; or begin, commit, abort: commands between begin and commit join that
    transaction; or use STORE, set NAME=VALUE, unset NAME, exit. .tables lists topics and relations,
    .describe TOPIC its columns, .help this text. A line that ends with `\\` continues on the next;
    # begins a comment.

    At a terminal a query may have several lines: it ends with `;` or an empty line. Tab completes
    commands, topics and columns; Ctrl-R searches the history, which lasts. A line that begins with
    a blank is not kept.

    A script ends at its first error, with the exit code of that error. At the end, an open
    transaction is aborted.
    """
    environment = dict(os.environ)
    session = _Session(call)
    try:
        if file is None and is_terminal(0) and is_terminal(1):
            _talk(call, session)
        else:
            _run_script(call, session, _lines_of(file), keep_going)
    finally:  # `set` must not outlive the shell in an embedding program
        os.environ.clear()
        os.environ.update(environment)


class _Session:
    """The state that lasts from line to line: environment, flags, the open transaction."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.txn: str | None = None
        self.flags = _given(call)
        with suppress(StoreNotFound, NotFound):  # `init` or `use` can follow
            os.environ["TXLOG_STORE"] = os.path.abspath(call.store_path())
        if call.flags.format is not None:
            os.environ["TXLOG_FORMAT"] = call.flags.format

    @property
    def prompt(self) -> str:
        """The prompt of the next line: the store, and the open transaction if there is one."""
        store = os.path.basename(os.environ.get("TXLOG_STORE", "")) or "txlog"
        return f"{store} {self.txn}> " if self.txn else f"{store}> "

    def run(self, line: str) -> int:
        """Run one line and return its exit code; `exit` raises EOFError."""
        text = line.strip()
        if text.startswith("!"):
            return _sh(text[1:])
        if text.startswith("."):
            return self._dotted(*text[1:].rstrip("; \t").split(maxsplit=1))
        if _SQL.match(text):
            return dispatch.run([*self.flags, "query", text.rstrip("; \t\n")])
        try:
            arguments = shlex.split(text, comments=True)
        except ValueError as error:
            return self._failed(Usage(f"{error}: {text[:60]}"))
        if arguments[:1] == ["txlog"]:
            arguments = arguments[1:]
        if not arguments:
            return 0
        if arguments[0] in ("exit", "quit"):
            raise EOFError
        if arguments[0] == "shell":
            return self._failed(Usage("this is the shell"))
        if arguments[0] in _OWN:
            try:
                return self._own(arguments[0], arguments[1:])
            except TxlogError as error:
                return self._failed(error)
        return dispatch.run([*self.flags, *arguments])

    def _dotted(self, word: str = "", operand: str = "") -> int:
        """Run a word with a dot, as the shells of SQLite and DuckDB have them."""
        if word in ("exit", "quit"):
            raise EOFError
        if word == "tables" and not operand:
            return dispatch.run([*self.flags, "-q", "query", _relations()])
        if word in ("describe", "schema") and operand:
            return dispatch.run([*self.flags, "-q", "query", f"DESCRIBE {operand}"])
        if word == "help":
            return dispatch.run(["shell", "-h"])
        return self._failed(
            Usage(
                f"no .{word[:40]} {operand[:40]}".rstrip(),
                hint=".tables .describe TOPIC .help .exit",
            )
        )

    def end(self) -> None:
        """Abort the open transaction of `begin`, if there is one."""
        if self.txn is not None:
            self.call.warn(f"transaction {self.txn} was not committed: it is aborted")
            dispatch.run(["-q", "txn", "abort", self.txn])
            self._forget()

    def _own(self, word: str, operands: list[str]) -> int:
        if word == "begin":
            return self._begin(operands)
        if word in ("commit", "abort"):
            if self.txn is None:
                raise Usage(f"nothing to {word}: no transaction was begun", hint="begin")
            code = dispatch.run([*self.flags, "txn", word, self.txn, *operands])
            if code in (0, 3, 4):  # the transaction has ended, by this or earlier
                self._forget()
            return code
        if len(operands) != 1:
            raise Usage(f"{word} takes one word")
        if word == "use":
            path = os.path.abspath(os.path.expanduser(operands[0]))
            if not os.path.isfile(os.path.join(path, STORE_FILE)):
                raise StoreNotFound(f"no store at {path}", path=path)
            self.end()
            os.environ["TXLOG_STORE"] = path
            return 0
        name, equals, value = operands[0].partition("=")
        if word == "set":
            if not equals or not name:
                raise Usage("write set NAME=VALUE")
            os.environ[name] = value
        else:
            os.environ.pop(name, None)
        return 0

    def _begin(self, operands: list[str]) -> int:
        if self.txn is not None:
            raise Usage(f"transaction {self.txn} is open", hint="commit or abort it first")
        output = io.StringIO()
        with redirect_stdout(output):
            code = dispatch.run([*self.flags, "txn", "begin", *operands, "--json"])
        if code == 0:
            self.txn = str(json.loads(output.getvalue())["txn"])
            os.environ["TXLOG_TXN"] = self.txn
            self.call.summary(f"began {self.txn}")
        return code

    def _forget(self) -> None:
        self.txn = None
        os.environ.pop("TXLOG_TXN", None)

    def _failed(self, error: TxlogError) -> int:
        return self.call.report.show(error)


def _relations() -> str:
    """A query of the topics, and of the other relations that SQL can name."""
    lists = importlib.import_module("txlog.lake.sql.query").LISTS
    others = sorted({*lists, "messages", "messages_all", "compacted"})
    return (
        "SELECT topic AS name, 'topic' AS kind FROM topics UNION ALL "  # noqa: S608
        f"SELECT unnest({others}), 'relation' ORDER BY kind DESC, name"
    )


def _talk(call: Call, session: _Session) -> None:
    """Read lines from the terminal until exit, Ctrl-D or a signal other than Ctrl-C."""
    call.note(".help explains the shell; exit or Ctrl-D ends it")
    prompt = importlib.import_module("txlog.cli.help.prompt").Prompt(  # slow to import
        OWN_WORDS, color=is_colored(call.flags.color or "auto", is_terminal(1), os.environ)
    )
    try:
        while True:
            try:
                with signals.watched():
                    line = prompt.read(session.prompt)
            except signals.Interrupted as interrupted:
                if interrupted.exit != 130:
                    raise
                continue  # Ctrl-C discards what was typed
            session.run(line)
    except EOFError:
        pass
    finally:
        session.end()


def _run_script(call: Call, session: _Session, lines: list[str], keep_going: bool) -> None:
    """Run the lines; the first line that fails sets the exit code of the call."""
    remaining = iter(lines)

    def following(first: bool) -> str:
        try:
            return next(remaining)
        except StopIteration:
            raise EOFError from None

    try:
        for line in _joined(following):
            code = session.run(line)
            call.exit = call.exit or code
            if code in (130, 141, 143) or (code and not keep_going):
                break
    except EOFError:
        pass
    finally:
        session.end()


def _joined(following: Callable[[bool], str]) -> Iterator[str]:
    r"""Join each line that ends with \ to the next one; `following` raises EOFError at the end."""
    while True:
        line = following(True)
        while line.endswith("\\"):
            line = f"{line[:-1]} {following(False)}"
        yield line


def _lines_of(file: str | None) -> list[str]:
    """The lines of a script. This reads all of stdin first, so no command can consume it."""
    if file is None:
        text = sys.stdin.read() if sys.stdin is not None else ""
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nowhere, 0)
            os.close(nowhere)
        return text.splitlines()
    try:
        with open(file, encoding="utf-8") as script:
            return script.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise NotFound(f"the script {file} cannot be read: {error}", path=file) from error


def _sh(line: str) -> int:
    """Run a line in sh; a signal ends sh but not the shell."""
    with _children_interrupted():
        code = subprocess.run(["/bin/sh", "-c", line], check=False).returncode
    return 128 - code if code < 0 else code


@contextmanager
def _children_interrupted() -> Iterator[None]:
    sys.stdout.flush()
    try:
        with signals.watched():
            yield
    except signals.Interrupted as interrupted:
        if interrupted.exit != 130:
            raise


def _given(call: Call) -> list[str]:
    """The global flags given to the shell; each of its commands gets them too."""
    options: list[str] = []
    for name, (names, metavar, _) in GLOBAL_FLAGS.items():
        value = getattr(call.flags, name)
        if not value or name in _LEFT or name in call.taken:
            continue
        options += [names[0], str(value)] if metavar else [names[0]] * int(value)
    return options

"""Owns reading a statement at a terminal: prompt_toolkit with our words, colours and history.

A query ends with `;` or an empty line, a command with a line that does not end in a backslash. Tab
completes a command as in bash, and SQL with relations, columns and keywords.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.lexers import Lexer, PygmentsLexer
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.styles import Style
from pygments.lexers.sql import SqlLexer  # type: ignore[import-untyped]

from txlog.cli.help.completion import FILES, candidates, split_line
from txlog.cli.line import catalogue
from txlog.cli.terminal.signals import Interrupted
from txlog.errors import TxlogError

_SQL: Final = re.compile(r"\s*(select|from|with|describe)\b", re.IGNORECASE)
_ONE_LINE: Final = re.compile(r"\s*describe\s+(?!select|from|with)", re.IGNORECASE)
_WORD: Final = re.compile(r"[\w$.]*$")
_AFTER_RELATION: Final = re.compile(r"\b(from|join|describe)\s+[\w$./\"]*$", re.IGNORECASE)
_NAMED: Final = re.compile(r"\b(?:from|join)\s+(\"[^\"]+\"|[\w$.]+)", re.IGNORECASE)
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][\w$]*")
_KEYWORDS: Final = (
    "SELECT FROM WHERE GROUP BY ORDER LIMIT JOIN LEFT USING ON AS AND OR NOT NULL IS IN LIKE HAVING"
    " DISTINCT count sum avg min max text json WITH UNION ALL CASE WHEN THEN ELSE END DESC DESCRIBE"
).split()
_STYLE: Final = Style.from_dict(
    {
        "command": "ansicyan bold",
        "flag": "ansicyan",
        "prompt": "bold",
        "pygments.keyword": "ansiblue bold",
        "pygments.literal.string.single": "ansigreen",
        "pygments.literal.number.integer": "ansimagenta",
        "pygments.comment.single": "ansibrightblack",
    }
)


class Prompt:
    """Reads statements from the terminal of this process.

    words: words of the shell itself, which complete like commands
    """

    def __init__(self, words: Sequence[str], *, color: bool) -> None:
        self._session: PromptSession[str] = PromptSession(
            history=_history(),
            completer=_Completer(words),
            lexer=_Highlighting(words) if color else None,
            style=_STYLE,
            color_depth=None if color else ColorDepth.DEPTH_1_BIT,
            include_default_pygments_style=False,
            complete_while_typing=False,
            multiline=Condition(lambda: not is_whole(self._session.default_buffer.text)),
            enable_open_in_editor=False,
            prompt_continuation=lambda width, _, __: "…> ".rjust(width),
        )

    def read(self, prompt: str) -> str:
        r"""The next statement; a line that ends with \ is joined with the next.

        raises: EOFError on Ctrl-D; Interrupted on Ctrl-C, SIGTERM and SIGHUP
        """
        try:
            text = self._session.prompt([("class:prompt", prompt)], pre_run=self._minding_signals)
        except KeyboardInterrupt:  # Ctrl-C is a key here, not a signal
            raise Interrupted(signal.SIGINT) from None
        return text if _SQL.match(text) else text.replace("\\\n", " ")

    def _minding_signals(self) -> None:
        """Let SIGTERM and SIGHUP end the prompt; in a task of asyncio they would be swallowed."""
        loop, app = asyncio.get_running_loop(), self._session.app

        def end(number: int) -> None:
            if app.is_running:
                app.exit(exception=Interrupted(number))

        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, end, number)


def is_whole(text: str) -> bool:
    r"""Whether Enter ends the text: a query at `;` or an empty line, a command unless at `\`."""
    if _SQL.match(text) and not _ONE_LINE.match(text):
        return text.rstrip().endswith(";") or text.endswith("\n") or not text.strip()
    return not text.endswith("\\")


def _history() -> History:
    """The history in the user's state directory; in memory if it cannot be written there."""
    home = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(home) if os.path.isabs(home) else Path.home() / ".local" / "state"
    path = folder / "txlog" / "history"
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        return _Kept(str(path))
    return InMemoryHistory()


class _Kept(FileHistory):
    """A history file without lines that begin with a blank, which may hold secrets."""

    def store_string(self, string: str) -> None:
        """Add a statement to the file; a full disk costs only the entry."""
        if not string.startswith(" "):
            with suppress(OSError):
                super().store_string(string)


class _Highlighting(Lexer):
    """Colours of a line: SQL by pygments, of a command its words and flags."""

    def __init__(self, words: Sequence[str]) -> None:
        self._sql = PygmentsLexer(SqlLexer)
        self._first = {path.split()[0] for path in catalogue.COMMANDS} | {*words}
        self._first |= {*catalogue.ALIASES}

    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        """Return a function from the number of a line to its pieces."""
        if _SQL.match(document.text):
            return self._sql.lex_document(document)
        return lambda number: self._pieces(document.lines[number], is_first=not number)

    def _pieces(self, line: str, *, is_first: bool) -> StyleAndTextTuples:
        pieces: StyleAndTextTuples = []
        for piece in re.findall(r"\s+|\S+", line):
            style = ""
            if is_first and not any(text.strip() for _, text, *_ in pieces):
                style = "class:command" if piece in self._first else ""
            elif piece.startswith("-"):
                style = "class:flag"
            pieces.append((style, piece))
        return pieces


class _Completer(Completer):
    """Completes commands, and SQL over the relations of the store."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterator[Completion]:
        """The candidates for the word before the cursor."""
        line = document.text_before_cursor
        if _SQL.match(line):
            yield from self._sql(document.text, line)
            return
        word = (split_line(line) or [""])[-1]
        for text, meaning in offered(line, self._words):
            yield Completion(text, -len(word), display=text.strip(), display_meta=meaning)

    def _sql(self, text: str, line: str) -> Iterator[Completion]:
        typed = _WORD.search(line)
        word = typed[0] if typed else ""
        if _AFTER_RELATION.search(line):
            names: Iterable[tuple[str, str]] = relations()
        else:
            tables = [name.strip('"') for name in _NAMED.findall(text)]
            columns = [pair for name in tables for pair in columns_of(name)]
            names = [*columns, *((keyword, "") for keyword in _KEYWORDS)]
        for name, meaning in dict(names).items():
            if name.casefold().startswith(word.casefold()):
                quoted = name if _PLAIN_NAME.fullmatch(name) else f'"{name}"'
                yield Completion(quoted, -len(word), display=name, display_meta=meaning)


def offered(line: str, words: Sequence[str]) -> list[tuple[str, str]]:
    """Candidates for the last word of a line of the shell, with their meanings."""
    typed = split_line(line) or [""]
    try:
        matches = [match for match in candidates(typed) if match[0] != FILES]
    except Exception:  # an incomplete line is not an error
        matches = []
    if len(typed) == 1:
        matching = [(word, "") for word in words if word.startswith(typed[0])]
        matches = [match for match in sorted([*matches, *matching]) if match[0] != "shell"]
    return [(word if word[-1] in "=,/" else f"{word} ", meaning) for word, meaning in matches]


def relations() -> list[tuple[str, str]]:
    """The topics and other relations that SQL can name here, each with its kind."""
    query: Any = importlib.import_module("txlog.lake.sql.query")
    lists = [(name, "relation") for name in sorted({*query.LISTS, "messages", "messages_all"})]
    with suppress(TxlogError), _store() as reader:
        return [*((name, "topic") for name, _ in reader.names("topic")), *lists]
    return lists


def columns_of(name: str) -> list[tuple[str, str]]:
    """The columns of a relation, with their types; none if it is unknown."""
    query: Any = importlib.import_module("txlog.lake.sql.query")
    listed: Any = importlib.import_module("txlog.lake.sql.lists").listed
    quoted = '"' + name.replace('"', '""') + '"'
    with (
        suppress(TxlogError),
        _store() as reader,
        query.SqlQuery(reader, listed, f"FROM {quoted} LIMIT 0") as answer,
    ):
        return [(field.name, str(field.type)) for field in answer.rows().schema]
    return []


def _store() -> Any:
    """The store of the shell, for reading; a context manager."""
    call: Any = importlib.import_module("txlog.cli.call.call")
    options = call.Globals()
    path = call.find_store(options, call.user_settings(call.profile_of(options)))[0]
    reading: Any = importlib.import_module("txlog.engine.door.relation")
    closing: Any = importlib.import_module("contextlib").closing
    return closing(reading.open_relations(path, read_only=True))

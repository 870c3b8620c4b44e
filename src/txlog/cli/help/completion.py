"""Owns completion: the candidates for the last word of a command line, names in the store included.

    txlog __complete WORD…          the words after `txlog`; the last one may be incomplete
    txlog __complete --line LINE    the line as typed, including `txlog`

It prints one candidate per line, `WORD<TAB>meaning`; the line `:files` makes the shell complete
file names. It takes no lock, writes nothing, and prints no errors.
"""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from txlog.cli.line import catalogue
from txlog.errors import TxlogError, Usage

if TYPE_CHECKING:
    from txlog.cli.line.parameters import Parameter

Candidate = tuple[str, str]
FILES: Final = ":files"
_NAMES_MAX: Final = 500
_BOUNDS: Final = [
    ("start", "the first retained message"), ("end", "after the last"), ("-10", "the last ten"),
    ("@-1h", "an hour ago"), ("sub=", "the mark-delete position of a subscription"),
]  # fmt: skip
_RANGES: Final = [("unacked", "messages not acknowledged yet"), ("txn:", "of a transaction")]
_FILES: Final = frozenset(
    "PATH DIR FILE F SRC DEST F.parquet|.csv|.arrow MODULE:FUNCTION CMD FILE.duckdb".split()
)
_TOPICS: Final = frozenset(("TOPIC", "T", "IN", "OUT", "NAME"))
_NEW: Final = frozenset(("topic create", "sub create"))
_WORDS: Final[dict[str, list[Candidate]]] = {
    "BOUND": _BOUNDS,
    "RANGE": _BOUNDS + _RANGES,
    "I": [("committed", ""), ("uncommitted", "open and aborted too")],
    "S": [
        (word, "")
        for word in ("open", "prepared", "committing", "committed", "aborting", "aborted")
    ],
    "TIME": [("now", ""), ("-1h", "an hour ago"), ("+5m", "in five minutes")],
}


def answer(line_words: Sequence[str]) -> int:
    """Print the candidates for the last word; returns 0 in any case."""
    try:
        typed = split_line(line_words[1])[1:] if line_words[:1] == ["--line"] else list(line_words)
        matches = candidates(typed or [""])
    except Exception:  # an incomplete command line is not an error
        matches = []
    lines = [
        f"{word}\t{' '.join(meaning.split())}" if meaning else word for word, meaning in matches
    ]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
    return 0


def split_line(line: str) -> list[str]:
    """Split a shell line into words; the last may be incomplete or have an open quote."""
    tokens: list[str] = []
    for attempt in (line, f'{line}"', f"{line}'"):
        try:
            tokens = shlex.split(attempt)
            break
        except ValueError:
            continue
    if attempt == line and line[-1:].isspace() and line[-2:-1] != "\\":
        tokens.append("")
    return [os.path.expandvars(os.path.expanduser(word)) for word in tokens]


def candidates(typed: list[str]) -> list[Candidate]:
    """Candidates for the last word, given the words before it; `(":files", "")` for file names."""
    *previous, last = typed
    try:
        path, used = _command(previous)
    except Usage:  # no such command
        return []
    if path is None or path in catalogue.NOUNS:
        if last.startswith("-"):
            return _matching(last, _global_flags())
        if _takes_value(previous[used:]):
            return _global_value(previous[-1], last)
        return _matching(last, _verbs(path))
    parameters = _parameters(path)
    used_flags, waiting, places = _walk(previous[used:], parameters)
    if waiting is None and last.startswith("--") and "=" in last:
        name, _, part = last.partition("=")
        waiting = _flag(parameters, name)
        matches = [] if waiting is None else _values(path, waiting, part, previous)
        return [(f"{name}={word}", meaning) for word, meaning in matches if word != FILES]
    if waiting is not None:
        return _values(path, waiting, last, previous)
    if last.startswith("-"):
        return _matching(last, _unused(parameters, used_flags))
    arguments = [each for each in parameters if not each.is_flag]
    if not arguments:
        return []
    argument = arguments[min(places, len(arguments) - 1)]
    if places >= len(arguments) and not arguments[-1].repeated:
        return []
    return _values(path, argument, last, previous)


def _command(typed: list[str]) -> tuple[str | None, int]:
    """The command or noun that `typed` begins with (None: neither), and the words used.

    raises: Usage if the words after the flags begin with no command or noun
    """
    try:
        split = catalogue.split(typed)
    except Usage:
        return None, 0
    if not split.rest:
        return None, 0
    leading = len(typed) - len(split.rest)
    path, used = catalogue.resolve(split.rest)
    return path, leading + used


def _verbs(noun: str | None) -> list[Candidate]:
    """Candidates for the word after a noun, or for the first word."""
    depth = 0 if noun is None else len(noun.split())
    prefix = "" if noun is None else f"{noun} "
    verbs: dict[str, str] = {}
    for path, entry in catalogue.COMMANDS.items():
        if path.startswith(prefix):
            word = path.split()[depth]
            inner = f"{prefix}{word}"
            verbs[word] = catalogue.NOUNS.get(inner, entry.help)
    return sorted(verbs.items())


def _parameters(path: str) -> list[Parameter]:
    dispatch = importlib.import_module("txlog.cli.line.dispatch")
    reader = importlib.import_module("txlog.cli.line.parameters")
    parameters: list[Parameter] = reader.parameters_of(dispatch.load(path))
    return [each for each in parameters if not each.hidden]


def _walk(typed: list[str], parameters: list[Parameter]) -> tuple[set[str], Parameter | None, int]:
    """The flags used so far, a flag that waits for its value, and the number of arguments."""
    used_flags: set[str] = set()
    places, at, only = 0, 0, False
    while at < len(typed):
        word = typed[at]
        at += 1
        if only or not word.startswith("-") or word == "-":
            places += 1
        elif word == "--":
            only = True
        else:
            flag = _flag(parameters, word.partition("=")[0])
            if flag is None:
                continue
            used_flags.add(flag.name)
            if flag.metavar and "=" not in word:
                if at == len(typed):
                    return used_flags, flag, places
                at += 1
    return used_flags, None, places


def _flag(parameters: list[Parameter], word: str) -> Parameter | None:
    return next((each for each in parameters if each.is_flag and word in each.names), None)


def _unused(parameters: list[Parameter], used_flags: set[str]) -> list[Candidate]:
    """Flags that the line can still take; a short name only for a flag without a long one."""
    out: list[Candidate] = []
    for each in parameters:
        if each.is_flag and (each.repeated or each.name not in used_flags):
            long = [name for name in each.names if name.startswith("--")]
            out += [(name, each.help) for name in long or each.names]
    return [*out, ("--help", "the whole help")]


def _takes_value(typed: list[str]) -> bool:
    return bool(typed) and typed[-1] in catalogue.VALUE_FLAGS


def _global_flags() -> list[Candidate]:
    global_flags: dict[str, tuple[tuple[str, ...], str | None, str]]
    global_flags = importlib.import_module("txlog.cli.line.command").GLOBAL_FLAGS
    return [(names[0], text) for names, _, text in global_flags.values()] + [
        ("--help", "the whole help")
    ]


def _global_value(flag: str, last: str) -> list[Candidate]:
    if flag in ("--store", "-S", "--log-file"):
        return [(FILES, "")]
    if flag == "--profile":
        return _matching(last, _profiles())
    return []


def _values(path: str, parameter: Parameter, last: str, previous: list[str]) -> list[Candidate]:
    """Candidates for the value of a flag or an argument."""
    if parameter.choices:
        return _matching(last, [(word, "") for word in parameter.choices])
    special = _special(path, parameter, last)
    if special is not None:
        return special
    kind = _kind(path, parameter)
    if kind is not None:
        return _matching(last, _names(kind, previous))
    word = parameter.metavar
    if word in _WORDS:
        if "sub=" in last:  # the name follows the typed prefix
            front = last[: last.rindex("sub=") + 4]
            matches = _names("subscription", previous)
            return _matching(last, [(f"{front}{name}", meaning) for name, meaning in matches])
        return _matching(last, _WORDS[word])
    return [(FILES, "")] if word in _FILES or parameter.name in ("--store", "--log-file") else []


def _special(path: str, parameter: Parameter, last: str) -> list[Candidate] | None:
    """Formats, fields, profiles, pages or settings, which need no store; None: another value."""
    if parameter.name == "--profile":
        return _matching(last, _profiles())
    if parameter.name == "--format" and parameter.of_all:
        return _matching(last, _formats(path))
    if parameter.name == "--columns":
        front, comma, _ = last.rpartition(",")
        fields = importlib.import_module("txlog.cli.line.dispatch").load(path).fields
        used = front.split(",")
        return _matching(
            last, [(f"{front}{comma}{field}", "") for field in fields if field not in used]
        )
    if path == "help" or path.startswith("man "):
        manual = importlib.import_module("txlog.cli.help.topics")
        entries = [*manual.TOPICS.items(), *_verbs(None)]
        if path == "help":
            entries += [(f"TXL-{code}", error.means) for code, error in manual.CODES.items()]
        return _matching(last, entries) if parameter.name in ("TOPIC", "PAGE") else None
    if path.startswith("config ") and parameter.name == "KEY":
        settings = importlib.import_module("txlog.base.settings").Settings().to_mapping()
        user = importlib.import_module("txlog.cli.call.environment").USER_SETTINGS
        return _matching(last, [*((name, "") for name in settings), *user.items()])
    return None


def _formats(path: str) -> list[Candidate]:
    output = importlib.import_module("txlog.cli.output.output")
    command = importlib.import_module("txlog.cli.line.dispatch").load(path)
    if command.records:
        return [(word, "") for word in output.RECORD_FORMS]
    forms = output.RESULT_FORMS if command.changes else output.LISTING_FORMS
    return [(word, "") for word in forms]


def _profiles() -> list[Candidate]:
    reader = importlib.import_module("txlog.cli.call.environment")
    return [(name, "profile") for name in reader.profiles(os.environ)]


def _kind(path: str, parameter: Parameter) -> str | None:
    """The kind of stored names that a parameter takes, if any."""
    word, name = parameter.metavar.removesuffix("|-"), parameter.name
    if path in _NEW and not parameter.is_flag:
        return None
    if word == "SUB":
        return "subscription"
    if word == "TOPIC/P":
        return "partition"
    if word in _TOPICS and not (parameter.is_flag and word == "NAME"):
        return "topic"
    if path == "job replay" and name == "DEST":
        return "topic"
    if word == "WHAT":
        return "topic"
    if name in ("--transaction-key", "KEY") and word == "KEY":
        return "key"
    if word == "ID" and (path.startswith("txn ") or name in ("--txn-id", "--txn")):
        unfinished = path in ("txn commit", "txn abort") or name == "--txn-id"
        return "transaction" if unfinished else "ended"
    if path == "admin transaction-metadata" and word == "ID":
        return "ended"
    return None


def _names(kind: str, previous: list[str]) -> list[Candidate]:
    """Names in the store that the typed flags name, or in the default store."""
    topic, options = None, importlib.import_module("txlog.cli.call.call").Globals()
    for word, value in zip(previous, [*previous[1:], ""], strict=True):
        if word in ("-S", "--store"):
            options.store = value
        elif word.startswith("--store="):
            options.store = word.partition("=")[2]
        elif word == "--profile":
            options.profile = value
        elif word in ("-t", "--topic"):
            topic = value
    finding = importlib.import_module("txlog.cli.call.call")
    reading = importlib.import_module("txlog.engine.door.relation")
    try:
        path = finding.find_store(options, finding.user_settings(finding.profile_of(options)))[0]
        opened: Any = reading.open_relations(path, read_only=True)
    except TxlogError:  # no store, no names
        return []
    try:
        names: list[Candidate] = opened.names(kind, topic if kind == "subscription" else None)
    finally:
        opened.close()
    return names


def _matching(last: str, rows: Iterable[Candidate]) -> list[Candidate]:
    """The rows whose first column begins with the typed text, up to a limit."""
    return [row for row in rows if row[0].startswith(last)][:_NAMES_MAX]

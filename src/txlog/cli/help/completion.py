"""Owns completion: the words that may end a command line, names in the store included.

    txlog __complete WORD…          the words after `txlog`, the last as far as it is typed
    txlog __complete --line LINE    the line as typed, including `txlog`

It prints a candidate a line, `WORD<TAB>what it is`; the line `:files` leaves it to the shell. It
takes no lock, writes nothing, and is silent whatever goes wrong.
"""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from txlog.cli.line import catalogue, flags
from txlog.errors import TxlogError, Usage

if TYPE_CHECKING:
    from txlog.cli.line.parameters import Parameter

Candidate = tuple[str, str]
FILES: Final = ":files"
_NAMES_MAX: Final = 500
_BOUNDS: Final = [
    ("start", "the first retained message"), ("end", "after the last"), ("-10", "the last ten"),
    ("@-1h", "an hour ago"), ("sub=", "where a subscription stands"),
]  # fmt: skip
_RANGES: Final = [("unacked", "what is not acknowledged"), ("txn:", "of a transaction")]
_FILES: Final = frozenset(
    "PATH DIR FILE F SRC DEST F.parquet|.csv|.arrow MODULE:FUNCTION CMD FILE.duckdb".split()
)
_TOPICS: Final = frozenset(("TOPIC", "T", "IN", "OUT", "NAME"))
_NEW: Final = frozenset(("topic create", "sub create"))
_WORDS: Final[dict[str, list[Candidate]]] = {
    "BOUND": _BOUNDS,
    "RANGE": _BOUNDS + _RANGES,
    "I": [("committed", ""), ("uncommitted", "open and aborted too")],
    "S": [(word, "") for word in ("open", "committing", "committed", "aborting", "aborted")],
    "TIME": [("now", ""), ("-1h", "an hour ago"), ("+5m", "in five minutes")],
}


def answer(words: Sequence[str]) -> int:
    """Print the candidates for the last of the words; always 0."""
    try:
        given = split_line(words[1])[1:] if words[:1] == ["--line"] else list(words)
        found = candidates(given or [""])
    except Exception:  # half a command line is no reason to complain
        found = []
    lines = [f"{word}\t{' '.join(told.split())}" if told else word for word, told in found]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
    return 0


def split_line(line: str) -> list[str]:
    """The words of a line of a shell, the last as far as it is typed; a quote may be open."""
    words: list[str] = []
    for rest in (line, f'{line}"', f"{line}'"):
        try:
            words = shlex.split(rest)
            break
        except ValueError:
            continue
    if rest == line and line[-1:].isspace() and line[-2:-1] != "\\":
        words.append("")
    return [os.path.expandvars(os.path.expanduser(word)) for word in words]


def candidates(words: list[str]) -> list[Candidate]:
    """The candidates for the last word, by what stands before it; `(":files", "")` for files."""
    *before, last = words
    try:
        path, used = _command(before)
    except Usage:  # no such command
        return []
    if path is None or path in catalogue.NOUNS:
        if last.startswith("-"):
            return _matching(last, _global_flags())
        if _takes_value(before[used:]):
            return _global_value(before[-1], last)
        return _matching(last, _verbs(path))
    known = _parameters(path)
    given, wanted, places = _walk(before[used:], known)
    if wanted is None and last.startswith("--") and "=" in last:
        name, _, part = last.partition("=")
        wanted = _flag(known, name)
        found = [] if wanted is None else _values(path, wanted, part, before)
        return [(f"{name}={word}", told) for word, told in found if word != FILES]
    if wanted is not None:
        return _values(path, wanted, last, before)
    if last.startswith("-"):
        return _matching(last, _unused(known, given))
    arguments = [each for each in known if not each.is_flag]
    if not arguments:
        return []
    place = arguments[min(places, len(arguments) - 1)]
    if places >= len(arguments) and not arguments[-1].repeated:
        return []
    return _values(path, place, last, before)


def _command(words: list[str]) -> tuple[str | None, int]:
    """The command or noun that the words begin with, and how many of them belong to it.

    raises: Usage when they begin with another word
    """
    try:
        split = flags.split(words)
    except Usage:
        return None, 0
    if not split.rest:
        return None, 0
    leading = len(words) - len(split.rest)
    path, used = catalogue.resolve(split.rest)
    return path, leading + used


def _verbs(noun: str | None) -> list[Candidate]:
    """What may follow a noun, or come first."""
    depth = 0 if noun is None else len(noun.split())
    before = "" if noun is None else f"{noun} "
    found: dict[str, str] = {}
    for path, entry in catalogue.COMMANDS.items():
        if path.startswith(before):
            word = path.split()[depth]
            inner = f"{before}{word}"
            found[word] = catalogue.NOUNS.get(inner, entry.help)
    return sorted(found.items())


def _parameters(path: str) -> list[Parameter]:
    dispatch = importlib.import_module("txlog.cli.line.dispatch")
    reader = importlib.import_module("txlog.cli.line.parameters")
    known: list[Parameter] = reader.parameters_of(dispatch.load(path))
    return [each for each in known if not each.hidden]


def _walk(words: list[str], known: list[Parameter]) -> tuple[set[str], Parameter | None, int]:
    """The flags that are given, the one that waits for its value, and how many arguments are."""
    given: set[str] = set()
    places, at, only = 0, 0, False
    while at < len(words):
        word = words[at]
        at += 1
        if only or not word.startswith("-") or word == "-":
            places += 1
        elif word == "--":
            only = True
        else:
            flag = _flag(known, word.partition("=")[0])
            if flag is None:
                continue
            given.add(flag.name)
            if flag.metavar and "=" not in word:
                if at == len(words):
                    return given, flag, places
                at += 1
    return given, None, places


def _flag(known: list[Parameter], word: str) -> Parameter | None:
    return next((each for each in known if each.is_flag and word in each.names), None)


def _unused(known: list[Parameter], given: set[str]) -> list[Candidate]:
    """Flags that may still be given; short ones only where no long one exists."""
    out: list[Candidate] = []
    for each in known:
        if each.is_flag and (each.repeated or each.name not in given):
            long = [name for name in each.names if name.startswith("--")]
            out += [(name, each.help) for name in long or each.names]
    return [*out, ("--help", "the whole help")]


def _takes_value(words: list[str]) -> bool:
    return bool(words) and (words[-1] in flags.VALUE_FLAGS or words[-1] in ("-S", "-f"))


def _global_flags() -> list[Candidate]:
    told: dict[str, tuple[tuple[str, ...], str | None, str]]
    told = importlib.import_module("txlog.cli.line.declared").GLOBAL_FLAGS
    return [(names[0], text) for names, _, text in told.values()] + [("--help", "the whole help")]


def _global_value(flag: str, last: str) -> list[Candidate]:
    if flag in ("--store", "-S", "--log-file"):
        return [(FILES, "")]
    if flag == "--profile":
        return _matching(last, _profiles())
    return []


def _values(path: str, wanted: Parameter, last: str, before: list[str]) -> list[Candidate]:
    """The words that a flag or an argument may have."""
    if wanted.choices:
        return _matching(last, [(word, "") for word in wanted.choices])
    special = _special(path, wanted, last)
    if special is not None:
        return special
    kind = _kind(path, wanted)
    if kind is not None:
        return _matching(last, _names(kind, before))
    word = wanted.metavar
    if word in _WORDS:
        if "sub=" in last:  # a name after what was typed
            front = last[: last.rindex("sub=") + 4]
            found = _names("subscription", before)
            return _matching(last, [(f"{front}{name}", told) for name, told in found])
        return _matching(last, _WORDS[word])
    return [(FILES, "")] if word in _FILES or wanted.name in ("--store", "--log-file") else []


def _special(path: str, wanted: Parameter, last: str) -> list[Candidate] | None:
    """Words that the program itself knows: formats, fields, profiles, pages, settings."""
    if wanted.name == "--profile":
        return _matching(last, _profiles())
    if wanted.name == "--format" and wanted.of_all:
        return _matching(last, _formats(path))
    if wanted.name == "--columns":
        front, comma, _ = last.rpartition(",")
        fields = importlib.import_module("txlog.cli.line.dispatch").load(path).fields
        used = front.split(",")
        return _matching(last, [(f"{front}{comma}{one}", "") for one in fields if one not in used])
    if path == "help" or path.startswith("man "):
        manual = importlib.import_module("txlog.cli.help.topics")
        words = [*manual.TOPICS.items(), *_verbs(None)]
        if path == "help":
            words += [(f"TXL-{code}", told.means) for code, told in manual.CODES.items()]
        return _matching(last, words) if wanted.name in ("TOPIC", "PAGE") else None
    if path.startswith("config ") and wanted.name == "KEY":
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
    reader = importlib.import_module("txlog.cli.call.user_config")
    return [(name, "profile") for name in reader.profiles(os.environ)]


def _kind(path: str, wanted: Parameter) -> str | None:
    """Which kind of names in a store it may be, if any."""
    word, name = wanted.metavar, wanted.name
    if path in _NEW and not wanted.is_flag:
        return None
    if word == "SUB":
        return "subscription"
    if word == "TOPIC/P":
        return "partition"
    if word in _TOPICS and not (wanted.is_flag and word == "NAME"):
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


def _names(kind: str, before: list[str]) -> list[Candidate]:
    """Names in the store that the words before give, or in the usual one."""
    topic, given = None, importlib.import_module("txlog.cli.call.call").Globals()
    for word, value in zip(before, [*before[1:], ""], strict=True):
        if word in ("-S", "--store"):
            given.store = value
        elif word.startswith("--store="):
            given.store = word.partition("=")[2]
        elif word == "--profile":
            given.profile = value
        elif word in ("-t", "--topic"):
            topic = value
    finding = importlib.import_module("txlog.cli.call.find")
    reading = importlib.import_module("txlog.engine.door.relation")
    try:
        path = finding.find_store(given, finding.user_settings(finding.profile_of(given)))[0]
        opened: Any = reading.open_relations(path, read_only=True)
    except TxlogError:  # no store, no names
        return []
    try:
        found: list[Candidate] = opened.names(kind, topic if kind == "subscription" else None)
    finally:
        opened.close()
    return found


def _matching(last: str, found: Iterable[Candidate]) -> list[Candidate]:
    """The candidates that begin with what is typed."""
    return [row for row in found if row[0].startswith(last)][:_NAMES_MAX]

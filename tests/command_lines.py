"""Finds the command lines of txlog that a text shows, and says why one would fail as it stands.

A line is read as a person reads it: `txlog`, the words of a command, then words that can belong to
it. In prose a plain word ends the line (`txlog txn list shows the open ones`), unless a flag before
it takes a value; a word in capitals is a place for a name. The plain parser of the command must
take the line, so an unknown flag, a missing argument or a bad choice is a fault.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from typing import Final, NamedTuple

from txlog.cli.line import catalogue
from txlog.cli.line.command import Command, Option, as_given, hidden_times, parse, spelled_out
from txlog.cli.line.dispatch import load
from txlog.cli.line.parameters import parameters_of
from txlog.errors import TxlogError, Usage

HOLE: Final = "\x01"  # a value that the program fills in, by `command_line`
RAW: Final = "\x02"  # one in an f-string, which nothing quotes
_START: Final = re.compile(r"(?<![\w./-])txlog (?=[a-z\x01\x02-])")
_TOKEN: Final = re.compile(r" +((?:'[^'\n]*'|\"[^\"\n]*\"|\[[^\]]*\]|[^\s'\"`()|<>&;,#]|,(?=\S))+)")
_NAME: Final = re.compile(r"\[?[A-Z][A-Z/|:_-]*…?\]?…?|[a-z-]+\|[a-z|-]+|-")
_GLOBAL: Final = frozenset(catalogue.VALUE_FLAGS)
# Values to put in place of a name in capitals, or of a hole.
_SAMPLES: Final = ("orders", "17:4", "0:42", "3", "1h", "orders/2", "start", "2030-01-01")


class Line(NamedTuple):
    """A command line in a text: its words after `txlog`, and whether a chain `&&` has it."""

    words: list[str]
    chained: bool = False

    def __str__(self) -> str:
        return " ".join(["txlog", *self.words]).replace(HOLE, "{}").replace(RAW, "{!}")


def lines_of(text: str, *, prose: bool = True) -> Iterator[Line]:
    """The command lines in a text; prose: a plain word that no flag takes is no part of a line."""
    text = re.sub(r" *\\\n *", " ", text)  # a line that continues on the next
    for match in _START.finditer(text):
        rest = text[match.end() :]
        path = _path(rest)
        if path is None:
            continue
        words, at = path.split(), len(path)
        flags = _value_flags(" ".join(words))
        while (token := _TOKEN.match(rest, at)) is not None:
            word = re.sub(r"(?<!\.)[.:?!]$", "", token[1])
            takes = words[-1] in flags
            if prose and not takes and not _may_belong(word):
                break
            words += shlex.split(word) or [word]
            at = token.end()
            if word != token[1]:
                break
        if " ".join(words) in catalogue.NOUNS and rest[at:].strip()[:1].isalpha():
            continue  # the noun in a sentence
        around = text[: match.start()].rpartition("\n")[2] + rest[at:].partition("\n")[0]
        yield Line(words, "&&" in around)


def _path(rest: str) -> str | None:
    """The command or noun that a text begins with."""
    words = re.match(r"(?:-[a-zA-Z-]+ \S+ )?[a-z-]+(?: [a-z-]+){0,2}", rest)
    names = words[0].split() if words else []
    for used in range(len(names), 0, -1):
        path = " ".join(names[:used])
        if path in catalogue.COMMANDS or path in catalogue.NOUNS:
            return path
    return None


def _value_flags(path: str) -> set[str]:
    if path not in catalogue.COMMANDS:
        return set(_GLOBAL)
    options = [hint.__metadata__[0] for hint in load(path).hints.values()]
    kinds = [hint.__origin__ for hint in load(path).hints.values()]
    return set(_GLOBAL) | {
        word
        for option, kind in zip(options, kinds, strict=True)
        if isinstance(option, Option) and kind not in (bool, bool | None) and option.alone is None
        for word in option.words
    }


def _may_belong(word: str) -> bool:
    plain = word.strip("'\"")
    return (
        word.startswith("-")
        or HOLE in word
        or RAW in word
        or plain != word
        or _NAME.fullmatch(word) is not None
        or any(letter.isdigit() or letter == "_" for letter in word)
    )


def fault_of(line: Line, *, may_be_bare: bool = False) -> str | None:
    """Why a line does not work; may_be_bare: a command alone is the name of the command."""
    if " ".join(line.words) in catalogue.NOUNS or (may_be_bare and _is_bare(line.words)):
        return None
    if RAW in "".join(line.words):
        return "its names are not quoted: command_line(…)"
    faults = (_fault(_filled(line.words, sample), line) for sample in _SAMPLES)
    first = next(faults)
    return None if first is None or None in faults else first


def _is_bare(words: list[str]) -> bool:
    """Whether the words name a command, or a command and flags of it."""
    path = _path(" ".join(words))
    if path not in catalogue.COMMANDS:
        return False
    flags = {name for each in parameters_of(load(path)) for name in each.names if each.is_flag}
    takes = _value_flags(path)
    rest = words[len(path.split()) :]
    return all(word in flags or (at and rest[at - 1] in takes) for at, word in enumerate(rest))


def _filled(words: list[str], sample: str) -> list[str]:
    """The line with a value for each hole and name; `[X]` is left out."""
    filled = []
    for word in words:
        if word.startswith("[") and word.endswith("]"):
            continue
        word = re.sub(r"\$[A-Z_0-9]+", HOLE, word)
        name = word.removesuffix("…").partition("|")[0]
        is_name = _NAME.fullmatch(word) is not None and word != "-"
        filled.append(sample if is_name and name.isupper() else word.replace(HOLE, sample))
    return filled


def _fault(words: list[str], line: Line) -> str | None:
    try:
        split = catalogue.split(words)
        words = [*split.rest[:1], *split.rest[1:]]
        if not words or split.help or split.version:
            return None
        path, used = catalogue.resolve(catalogue.expanded(words))
        if path in catalogue.NOUNS:
            return None if {"-h", "--help"} & set(words) else f"{path} is no command"
        command, args = load(path), [*split.leading, *words[used:]]
        if {"-h", "--help"} & set(args):
            return None
        return _fault_of_arguments(command, args, line)
    except Usage as error:
        return f"{error.message} ({error.hint})"


def _fault_of_arguments(command: Command, args: list[str], line: Line) -> str | None:
    args = spelled_out(command, args)
    values = parse(command, hidden_times(args) if command.times else args)
    if values is None:
        return "the parser does not take it"
    for name, hint in command.hints.items():
        option = hint.__metadata__[0]
        value = values[name]
        if not isinstance(option, Option) or value is None:
            continue
        if option.choices and value not in option.choices:
            return f"{option.words[0]} is not {value}"
        try:
            value = as_given(value)
            if option.reads is not None:
                option.reads(value)
            if option.reads_now is not None:
                option.reads_now(str(value), 0)
        except TxlogError as error:
            return error.message
    if command.asks and line.chained and not (values["yes"] or values.get("dry_run")):
        return "it asks for consent, so a chain stops there: --yes"
    return None


# --- texts of the program ----------------------------------------------------------------------


class Text(NamedTuple):
    """A text in the source: its line, its words with holes, and its kind.

    is_docstring: of a module, a class or a function
    is_example:   of a command's help
    """

    number: int
    text: str
    is_docstring: bool = False
    is_example: bool = False


def texts_of(tree: ast.Module) -> Iterator[Text]:
    """The texts of a module; `command_line(…)` is one, with its words and holes."""
    nodes = list(ast.walk(tree))
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in nodes
        if isinstance(node, kinds) and node.body and isinstance(node.body[0], ast.Expr)
    }
    examples = {
        id(part)
        for node in nodes
        if isinstance(node, ast.keyword) and node.arg == "examples"
        for part in ast.walk(node.value)
    }
    inner = {
        id(part)
        for node in nodes
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if part is not node
    }
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "command_line":
            yield Text(node.lineno, _rendered(node))
        elif isinstance(node, ast.JoinedStr):
            yield Text(node.lineno, _with_holes(node))
        elif id(node) not in inner and isinstance(text := getattr(node, "value", None), str):
            assert isinstance(node, ast.Constant)
            yield Text(node.lineno, text, id(node) in docstrings, id(node) in examples)


def _with_holes(node: ast.JoinedStr) -> str:
    parts = []
    for part in node.values:
        if isinstance(part, ast.Constant):
            parts.append(str(part.value))
        elif isinstance(value := getattr(part, "value", None), ast.Call) and (
            getattr(value.func, "id", "") == "command_line"
        ):
            parts.append(_rendered(value))
        else:
            parts.append(RAW)
    return "".join(parts)


def _rendered(node: ast.Call) -> str:
    words = [
        str(each.value) if isinstance(each, ast.Constant) else HOLE
        for each in node.args
        if not isinstance(each, ast.Starred)
    ]
    return " ".join(["txlog", *words])

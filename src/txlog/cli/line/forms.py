"""Owns the forms of other tools for our commands: their flags, and their order of words.

It sees only lines that the plain parser of a command refuses, so no line that works changes its
meaning. A form is here only if it can mean one thing, and never is a consent: `--force` stays a
hint. A flag is replaced where the command lacks it and has its replacement.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from txlog.base.ranges import parse_bound
from txlog.cli.line.command import Command
from txlog.cli.line.parameters import Parameter, parameters_of
from txlog.errors import TxlogError

# What replaces a flag, best first: `--flag {}` takes its value, `--flag x` takes none; `<TOPIC`
# puts the value before the arguments, if the first argument is that, `>` behind them; `` drops it.
_GROUP: Final = ("--subscription {}", "<SUB")
_COUNT: Final = ("-n {}", "--first {}", "--limit {}", "--top {}")
_OUT: Final = ("--out {}", ">PATH|-", ">DEST", "--format {}")
_ID: Final = (">ID|-", ">ID")
_START: Final = ("--to start", "--offset start", "--position start")
_END: Final = ("--to end", "--offset end", "--position end")
_ENDS: Final = ("start", "end", "earliest", "latest")
_PROCESSES: Final = ("--parallelism {}",)
FLAGS: Final[dict[str, tuple[str, ...]]] = {
    "--colour": ("--color {}",), "--colors": ("--color {}",), "--no-colour": ("--no-color",),
    "--topic": ("<TOPIC", "<NAME", "<T"), "-t": ("<TOPIC", "<NAME", "<T"),
    "--group": _GROUP, "-g": _GROUP, "--sub": _GROUP, "--consumer-group": _GROUP,
    "--subscription": ("<SUB",), "-s": ("<SUB",),
    "--from-beginning": _START, "--earliest": _START, "--to-earliest": _START,
    "--to-start": _START, "--to-beginning": _START, "--latest": _END, "--to-latest": _END,
    "--to-end": _END, "--since": ("--offset {}..",), "--from": ("--offset {}..",),
    "--to": ("--until {}",),
    "--max-messages": _COUNT, "--limit": _COUNT, "--count": _COUNT, "--lines": _COUNT,
    "--first": _COUNT, "-n": _COUNT, "--last": ("--offset=-{}",),
    "--tail": ("--last {}", "--offset=-{}"),
    "--filter": ("--where {}",), "--partition": ("--partitions {}",),
    "--num-partitions": ("--partitions {}",), "-P": ("--partitions {}", "--partition {}"),
    "--header": ("--prop {}",), "--property": ("--prop {}",), "--properties": ("--prop {}",),
    "--value": ("--message {}",), "--messages": ("--message {}",), "--output": _OUT,
    "--out": _OUT, "-o": ("--format {}",), "--id": _ID, "--message-id": _ID,
    "--silent": ("--quiet",), "--debug": ("--verbose",),
    "--parallel": _PROCESSES, "--workers": _PROCESSES, "-j": _PROCESSES,
    "--processes": _PROCESSES, "--concurrency": _PROCESSES, "--instances": _PROCESSES,
    "--file": (">FILE", "<FILE"), "--filename": (">FILE", "<FILE"),
    "--delay": ("--deliver-after {}",), "--at": ("--deliver-at {}",),
    "--infer": ("--infer-schema",), "--typed": ("--infer-schema",),
    "--interval": ("--watch {}", "--every {}"), "-w": ("--watch",), "--follow": ("--watch",),
    "-F": ("--watch",), "--csv": ("--to csv", "--in csv", "--format csv"),
    "--tsv": ("--to tsv", "--in tsv", "--format tsv"), "--parquet": ("--to parquet",),
    "--ndjson": ("--to ndjson", "--in ndjson", "--format ndjson"),
}  # fmt: skip

# The same for one command; they go first.
_TO: Final = ("--to {}",)
OF_COMMAND: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "sub seek": {
        **dict.fromkeys(("--from", "--since", "--at", "--time", "--offset", "--position"), _TO),
        **dict.fromkeys(("--to-datetime", "--to-time", "--to-offset", "--date", "-o"), _TO),
        "--execute": ("--yes",),
    },
    "consume": {"--from": ("--since {}",)},
    "sub create": dict.fromkeys(("--from", "--offset", "-o", "--start"), ("--position {}",)),
    "import": {"--header": ("",)},
    "produce": dict.fromkeys(
        ("--delimiter", "--separator", "--key-separator", "--key-sep"), ("--key-delim {}",)
    ),
    "policy retention set": {"--retention": ("--time {}",), "--size": ("--bytes {}",)},
    "topic copy": {
        **dict.fromkeys(("--to", "--dest", "--target", "--destination"), (">",)),
        **dict.fromkeys(("--name", "--new-name"), ("--as {}",)),
        "--store-to": ("--to-store {}",),
    },
    "copy": {"--to": (">DEST",)},
    "du": {"--by-topic": ("",), "--topics": ("",)},
}  # fmt: skip


class Typed(msgspec.Struct):
    """The words of a line: arguments and flags, as typed, and the words after `--`."""

    arguments: list[str]
    flags: list[str]
    rest: list[str]
    names: set[str]


def converted(command: Command, args: Sequence[str]) -> list[str] | None:
    """The line in our form; None: no word of it is of another tool.

    args: the words after the command; `spelled_out` has written the values of lonely flags
    """
    parameters = parameters_of(command)
    typed = words_of(command.path, parameters, args)
    if typed is None:
        return None
    order = _ORDERS.get(command.path)
    if order is not None:
        order(typed)
    line = [*typed.flags, *typed.arguments, *typed.rest]
    return None if line == list(args) else line


def words_of(path: str, parameters: Sequence[Parameter], args: Sequence[str]) -> Typed | None:
    """The words of a line with flags replaced; None if a flag means nothing here."""
    flags = {name: each for each in parameters if each.is_flag for name in each.names}
    first = next((each.metavar for each in parameters if not each.is_flag), "")
    last = next((each.metavar for each in reversed(parameters) if not each.is_flag), "")
    typed = Typed([], [], [], set())
    words = iter(args)
    for word in words:
        if word == "--":
            typed.rest = ["--", *words]
        elif not word.startswith("-") or word == "-" or word[1:2].isdecimal():
            typed.arguments.append(word)
        else:
            name, equals, value = word.partition("=")
            flag = flags.get(name)
            if flag is None and word[:2] in flags and not word.startswith("--"):
                flag, name = flags[word[:2]], word[:2]  # -n5, -qq
                typed.flags.append(word)
                if flag.metavar and len(word) == 2:
                    typed.flags += [next(words, "")]
                typed.names.update(flag.names)
                continue
            if flag is not None:
                typed.flags.append(word)
                typed.names.update(flag.names)
                if flag.metavar and not equals:
                    typed.flags += [text for text in [next(words, None)] if text is not None]
                continue
            meaning = _meaning(path, name, flags, (first, last))
            if meaning is None:
                return None
            needs_value = "{}" in meaning or meaning[:1] in ("<", ">")
            if needs_value and not equals:
                value = next(words, "")
            _add(typed, meaning, value, flags)
    return typed


def _meaning(
    path: str, name: str, flags: Mapping[str, Parameter], ends: tuple[str, str]
) -> str | None:
    """What replaces a flag that the command lacks."""
    for meaning in OF_COMMAND.get(path, {}).get(name) or FLAGS.get(name, ()):
        if meaning[:1] == "<" and ends[0].removesuffix("|-") == meaning[1:]:
            return meaning
        if meaning[:1] == ">" and meaning[1:] in ("", ends[1]):
            return meaning
        if not meaning or meaning.replace("=", " ").split()[0] in flags:
            return meaning
    return None


def _add(typed: Typed, meaning: str, value: str, flags: Mapping[str, Parameter]) -> None:
    if meaning[:1] == "<":
        typed.arguments.insert(0, value)
    elif meaning[:1] == ">":
        typed.arguments.append(value)
    elif meaning:
        words = [word.replace("{}", value) for word in meaning.split(" ")]
        typed.flags += words
        typed.names.update(flags[words[0].partition("=")[0]].names)


# --- the order of words ------------------------------------------------------------------------


def _is_bound(word: str) -> bool:
    try:
        parse_bound(word, 0)
    except TxlogError:
        return False
    return True


def _of_subscription(typed: Typed) -> None:
    """`TOPIC SUB`, as other tools have it, instead of `SUB -t TOPIC`."""
    if len(typed.arguments) == 2 and "--topic" not in typed.names:
        typed.flags += ["--topic", typed.arguments.pop(0)]


def _of_seek(typed: Typed) -> None:
    """`[TOPIC] SUB BOUND` instead of `SUB --to BOUND`."""
    has_bound = "--to" in typed.names
    if not has_bound and len(typed.arguments) > 1 and _is_bound(typed.arguments[-1]):
        typed.flags += ["--to", typed.arguments.pop()]
    _of_subscription(typed)


def _of_consume(typed: Typed) -> None:
    """`--from latest` is a position, which --offset takes; other values of it are times."""
    if "--since" in typed.flags:
        at = typed.flags.index("--since")
        if typed.flags[at + 1 : at + 2] and typed.flags[at + 1] in _ENDS:
            typed.flags[at] = "--offset"


def _of_policies(typed: Typed) -> None:
    """`policy … get TOPIC` instead of -t."""
    if len(typed.arguments) == 1 and "--topic" not in typed.names:
        typed.flags += ["--topic", typed.arguments.pop()]


def _of_retention(typed: Typed) -> None:
    """`policy retention set TOPIC DUR` instead of -t and --time."""
    if len(typed.arguments) == 2 and not {"--topic", "--time"} & typed.names:
        typed.flags += ["--time", typed.arguments.pop()]
    _of_policies(typed)


def _of_topic_copy(typed: Typed) -> None:
    """`topic copy A B`: B is a store, if it is a path or has one, else a name."""
    if len(typed.arguments) == 2 and not {"--to-store", "--as"} & typed.names:
        dest = typed.arguments.pop()
        is_store = "/" in dest or os.path.isfile(os.path.join(dest, "txlog.toml"))
        typed.flags += ["--to-store" if is_store else "--as", dest]


def _of_run(typed: Typed) -> None:
    """`run MODULE:FUNCTION IN OUT` instead of --input and --output."""
    for flag in ("--input", "--output"):
        if len(typed.arguments) > 1 and flag not in typed.names:
            typed.flags += [flag, typed.arguments.pop(1)]


_ORDERS: Final[dict[str, Callable[[Typed], None]]] = {
    **dict.fromkeys(
        (
            "sub create",
            "sub describe",
            "sub backlog",
            "sub skip",
            "sub expire",
            "sub clear-backlog",
        ),
        _of_subscription,
    ),
    **{
        f"policy {kind} get": _of_policies
        for kind in ("alert", "delayed", "retention", "schema", "watermark")
    },
    "consume": _of_consume,
    "policy retention set": _of_retention,
    "sub seek": _of_seek,
    "topic copy": _of_topic_copy,
    "run": _of_run,
}

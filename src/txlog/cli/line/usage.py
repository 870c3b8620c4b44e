"""Owns the help of a command: usage, examples, its text, and its flags in sections.

Flags of large commands are grouped, the most used first. The text is as wide as the terminal, up to
100 columns; elsewhere 80. Headings and flags are in colour where the terminal has colours.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from txlog.cli.line.command import Command
from txlog.cli.line.parameters import Parameter, parameters_of

_WIDTH_MAX: Final = 100
_TERM_MAX: Final = 30
_BOLD, _CYAN, _PLAIN = "\x1b[1m", "\x1b[36m", "\x1b[0m"
_FIRST: Final = ("--store", "--format", "--json")  # of the global flags; --help shows all

# The flags of large commands by section; flags that no section names come last, as "Other".
SECTIONS: Final[dict[str, dict[str, str]]] = {
    "produce": {
        "Input": "--message --in --key --key-delim --prop -n --partition --create",
        "Time": "--deliver-after --deliver-at --event-time",
        "Transaction": (
            "--txn --txn-every --txn-id --no-join --transaction-key --epoch --txn-timeout"
        ),
        "Errors and checks": "--on-error --expect --trailer --require-newline --ack-format",
        "Producer": "--producer --seq-from --access-mode --keep-partition --keep-sequence",
        "Watermark": "--watermark-from --watermark-lag --watermark-every --idle-on-close",
        "Speed": "--batch --flush-every --rate --durability --chunking",
    },
    "consume": {
        "Which messages": "--offset --last --since -n --follow --until --partition --max-wait",
        "Filter": ("--key --where --grep --prop --include-delayed --isolation --read-compacted"),
        "Subscription": (
            "--subscription --create --type --ack --position --consumer --txn-id --no-join"
        ),
        "Output": "--stats --fail-empty --watermarks --unbuffered --raw-strings",
    },
    "run": {
        "From and to": "--input --output --subscription --create --type --allow-loop",
        "Function": "--parallelism --path --name --batch --instance",
        "How long": "-n --follow --max-wait",
        "Transaction": "--txn-size --txn-time --txn-timeout --transaction-key",
        "Errors": "--on-error --retries",
    },
    "transform": {
        "From and to": "--subscription --create --type --allow-loop",
        "Command": "--in-format --out-format --parallelism --name",
        "How long": "-n --follow --max-wait",
        "Transaction": "--txn-size --txn-time --txn-timeout --transaction-key",
        "Errors": "--on-error --retries",
    },
    "import": {
        "Input": "--in --create --infer-schema --dry-run",
        "Columns": "--key-column --value-columns --event-time-column",
        "Once": "--key --resume",
        "Limits": "--max-decoded",
    },
    "export": {
        "Files": "--to --partition-by --force",
        "Which messages": "--offset --where",
        "Once": "--resume --append",
    },
    "serve": {
        "Addresses": "--pulsar --http --pidfile",
        "Who may connect": "--auth --tls-cert --tls-key --tls-client-ca --insecure --allow-actions",
        "Topics and space": "--topic-creation --limit --offload-to",
    },
    "query": {
        "Query": "--file --param --limit",
        "Result": "--out --force --show-sql",
        "Which messages": "--isolation --skip-unavailable",
    },
}


def text(command: Command, *, full: bool, columns: int, color: bool) -> str:
    """Return the help of a command; full: with all global flags."""
    width = max(40, min(columns, _WIDTH_MAX))
    parameters = [each for each in parameters_of(command) if not each.hidden]
    lines = [_usage(command, parameters, color), ""]
    lines += [f"    {_colored(example, _CYAN, color)}" for example in command.examples]
    lines += [""] if command.examples else []
    for paragraph in (inspect.getdoc(command.function) or "").split("\n\n"):
        lines += [*_wrapped(" ".join(paragraph.split()), width, "  "), ""]
    for heading, group in _sections(command, parameters, full=full):
        lines.append(_colored(f"{heading}:", _BOLD, color))
        for each in group:
            lines += _entry(each, width, color)
        lines.append("")
    if not full:
        lines.append(f"txlog {command.path} --help: the global flags too")
    return "\n".join(lines).rstrip("\n") + "\n"


def _usage(command: Command, parameters: Sequence[Parameter], color: bool) -> str:
    words = [f"txlog {command.path}"]
    for each in parameters:
        word = f"{each.metavar}…" if each.repeated else each.metavar
        if not each.is_flag:
            words.append(word if each.required else f"[{word}]")
        elif each.required:
            words.append(f"{each.name} {word}")
    return f"{_colored('Usage:', _BOLD, color)} {' '.join([*words, '[FLAG…]'])}"


def _sections(
    command: Command, parameters: Sequence[Parameter], *, full: bool
) -> Iterator[tuple[str, list[Parameter]]]:
    """The headings with their parameters, in the order of the page."""
    path = command.path
    arguments = [each for each in parameters if not each.is_flag]
    if arguments:
        yield "Arguments", arguments
    own_flags = {each.name: each for each in parameters if each.is_flag and not each.of_all}
    spellings = {word: each.name for each in own_flags.values() for word in each.names}
    for heading, names in SECTIONS.get(path, {}).items():
        group = [
            own_flags.pop(spellings[name])
            for name in names.split()
            if spellings.get(name) in own_flags
        ]
        if group:
            yield heading, group
    if own_flags:
        yield "Other" if path in SECTIONS else "Flags", list(own_flags.values())
    first = [*_FIRST, *["--yes"] * command.asks]
    shared = [each for each in parameters if each.of_all and (full or each.name in first)]
    yield "All commands", [*shared, _HELP]


_HELP: Final = Parameter(
    ("-h", "--help"),
    "",
    "this help; --help: the global flags too",
    "",
    required=False,
    repeated=False,
    is_flag=True,
    of_all=True,
)


def _entry(each: Parameter, width: int, color: bool) -> list[str]:
    """The lines of a parameter: its names and value, and its meaning to the right or below."""
    names = ", ".join(sorted(each.names, key=len)) if each.is_flag else each.metavar
    value = f" {each.metavar}" if each.is_flag and each.metavar else ""
    more = "…" if each.repeated and (value or not each.is_flag) else ""
    term = f"{names}{value}{more}"
    meaning = each.help
    if each.required:
        meaning += " (required)"
    elif each.default:
        meaning += f" (default {each.default})"
    column = min(_TERM_MAX, width // 2)
    line = f"  {_colored(names, _CYAN, color)}{value}{more}"
    lines = _wrapped(meaning, width, " " * (column + 4))
    if len(term) > column or not lines:
        return [line, *lines]
    return [f"{line}{' ' * (column + 2 - len(term))}{lines[0].lstrip()}", *lines[1:]]


def _wrapped(words: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(
        words,
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _colored(words: str, code: str, color: bool) -> str:
    return f"{code}{words}{_PLAIN}" if color else words

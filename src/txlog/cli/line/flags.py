"""Owns the global flags before the verb, and what can be told from a command line before parsing.

After the verb Typer reads them, with everything else; those before it are put in front, so that the
last one wins.
"""

from __future__ import annotations

from typing import Final

from txlog.errors import Usage
from txlog.startup.values import record

VALUE_FLAGS: Final = frozenset(
    "--store --profile --format --columns --log-format --log-file --color --lock-timeout "
    "--now".split()
)
SWITCHES: Final = frozenset(
    "--json --quiet --verbose --utc --no-progress --no-pager --yes --no-input --read-only "
    "--help --version".split()
)
_SHORT_VALUES: Final = frozenset("Sf")
_SHORT_SWITCHES: Final = frozenset("qvyhV")
_HIDING: Final = "\0"  # no word of a command line can have it


def hidden_times(words: list[str]) -> list[str]:
    """Words with those before `--` made no flags that a TIME may be: - and a digit.

    No flag begins like that. Values of flags are hidden with them, and shown again by as_given.
    """
    stop = words.index("--") if "--" in words else len(words)
    return [
        f"{_HIDING}{word}" if at < stop and word[:1] == "-" and word[1:2].isdecimal() else word
        for at, word in enumerate(words)
    ]


def as_given(value: object) -> object:
    """A parsed value as the word was before hidden_times."""
    return value.removeprefix(_HIDING) if isinstance(value, str) else value


def as_told(message: str) -> str:
    """What Typer says of words, as they were before hidden_times; it may escape them."""
    return message.replace(_HIDING, "").replace(repr(_HIDING)[1:-1], "")


@record
class Split:
    """A command line cut at its first word."""

    leading: list[str]
    rest: list[str]
    json: bool = False
    help: bool = False
    version: bool = False


def split(words: list[str]) -> Split:
    """Cut words at the noun or verb.

    raises: Usage (201) for a flag that is not global, or one without its value
    """
    out = Split([], [], json=says_json(words))
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            out.rest = words[at + 1 :]
            break
        if not word.startswith("-") or word == "-":
            out.rest = words[at:]
            break
        at += _take(words, at, out)
    return out


def split_on(before: Split, used: int) -> Split:
    """Take the global flags behind the first `used` words of the rest to those before them.

    raises: Usage (201) as split does
    """
    inner = split(before.rest[used:])
    return Split(
        [*before.leading, *inner.leading], [*before.rest[:used], *inner.rest],
        before.json or inner.json, before.help or inner.help, before.version or inner.version,
    )  # fmt: skip


def wants_json(path: str, args: list[str]) -> bool:
    """Tell whether errors of this command line are objects, before it is parsed."""
    if says_json(args):
        return True
    if path == "produce":
        return False
    for at, word in enumerate(args):
        if word == "--":
            break
        following = args[at + 1] if at + 1 < len(args) else ""
        if word in ("-f", "--format") and following in ("json", "ndjson"):
            return True
        if word in ("-fjson", "-fndjson", "--format=json", "--format=ndjson"):
            return True
    return False


def says_json(words: list[str]) -> bool:
    """Tell whether --json stands before the end of the flags."""
    stop = words.index("--") if "--" in words else len(words)
    return "--json" in words[:stop]


def _take(words: list[str], at: int, out: Split) -> int:
    """Add the flag at `at` to the leading ones; return how many words it took."""
    word = words[at]
    name, equals, _ = word.partition("=")
    if word.startswith("--"):
        if name in VALUE_FLAGS:
            return _take_value(words, at, out, has_value=bool(equals))
        if word not in SWITCHES:
            raise Usage(f"no such flag: {name}", hint="flags of a command come after its name")
        out.help |= word == "--help"
        out.version |= word == "--version"
        out.leading.append(word)
        return 1
    for index, letter in enumerate(word[1:], start=1):
        if letter in _SHORT_VALUES:
            return _take_value(words, at, out, has_value=index + 1 < len(word))
        if letter not in _SHORT_SWITCHES:
            raise Usage(f"no such flag: -{letter}", hint="flags of a command come after its name")
        out.help |= letter == "h"
        out.version |= letter == "V"
    out.leading.append(word)
    return 1


def _take_value(words: list[str], at: int, out: Split, *, has_value: bool) -> int:
    if has_value:
        out.leading.append(words[at])
        return 1
    if at + 1 == len(words):
        raise Usage(f"flag {words[at]} needs a value")
    out.leading.extend(words[at : at + 2])
    return 2

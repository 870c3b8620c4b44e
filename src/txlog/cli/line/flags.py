"""Owns the global flags: those before the verb, in a line not parsed yet, and the meanings of all.

After the verb Typer reads global flags with all others. Flags before the verb are put in front of
them, so that the last one wins. A word means the same on every command, so it is explained once:
under the long flag, under the metavar of an argument, or under `COMMAND FLAG` for an exception.
"""

from __future__ import annotations

from typing import Final

import msgspec

from txlog.errors import Usage

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
_HIDING: Final = "\0"  # no word of a command line can contain it


# --- in a line -------------------------------------------------------------------------------


def hidden_times(args: list[str]) -> list[str]:
    """Hide words before `--` that begin with - and a digit: each may be a TIME instead of a flag.

    No flag begins like that. Values of flags are hidden too, and restored by as_given.
    """
    stop = args.index("--") if "--" in args else len(args)
    return [
        f"{_HIDING}{word}" if at < stop and word[:1] == "-" and word[1:2].isdecimal() else word
        for at, word in enumerate(args)
    ]


def as_given(value: object) -> object:
    """A parsed value in its spelling before hidden_times."""
    return value.removeprefix(_HIDING) if isinstance(value, str) else value


def as_told(message: str) -> str:
    """Typer's text with words in their spelling before hidden_times, which Typer may escape."""
    return message.replace(_HIDING, "").replace(repr(_HIDING)[1:-1], "")


class Split(msgspec.Struct):
    """A command line split at its first word."""

    leading: list[str]
    rest: list[str]
    json: bool = False
    help: bool = False
    version: bool = False


def split(args: list[str]) -> Split:
    """Split args at the noun or verb.

    raises: Usage (201) for a flag that is not global, or one without its value
    """
    out = Split([], [], json=says_json(args))
    at = 0
    while at < len(args):
        word = args[at]
        if word == "--":
            out.rest = args[at + 1 :]
            break
        if not word.startswith("-") or word == "-":
            out.rest = args[at:]
            break
        at += _take(args, at, out)
    return out


def split_on(outer: Split, used: int) -> Split:
    """Move global flags after the first `used` of the remaining words to the leading flags.

    raises: Usage (201) as split does
    """
    inner = split(outer.rest[used:])
    return Split(
        [*outer.leading, *inner.leading],
        [*outer.rest[:used], *inner.rest],
        outer.json or inner.json,
        outer.help or inner.help,
        outer.version or inner.version,
    )


def wants_json(path: str, args: list[str]) -> bool:
    """Return whether this command line wants errors as JSON, before it is parsed."""
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


def says_json(args: list[str]) -> bool:
    """Return whether --json comes before the end of the flags."""
    stop = args.index("--") if "--" in args else len(args)
    return "--json" in args[:stop]


def _take(args: list[str], at: int, out: Split) -> int:
    """Add the flag at `at` to the leading flags; return the number of words it used."""
    word = args[at]
    name, equals, _ = word.partition("=")
    if word.startswith("--"):
        if name in VALUE_FLAGS:
            return _take_value(args, at, out, has_value=bool(equals))
        if word not in SWITCHES:
            raise Usage(f"no such flag: {name}", hint="flags of a command come after its name")
        out.help |= word == "--help"
        out.version |= word == "--version"
        out.leading.append(word)
        return 1
    for index, letter in enumerate(word[1:], start=1):
        if letter in _SHORT_VALUES:
            return _take_value(args, at, out, has_value=index + 1 < len(word))
        if letter not in _SHORT_SWITCHES:
            raise Usage(f"no such flag: -{letter}", hint="flags of a command come after its name")
        out.help |= letter == "h"
        out.version |= letter == "V"
    out.leading.append(word)
    return 1


def _take_value(args: list[str], at: int, out: Split, *, has_value: bool) -> int:
    if has_value:
        out.leading.append(args[at])
        return 1
    if at + 1 == len(args):
        raise Usage(f"flag {args[at]} needs a value")
    out.leading.extend(args[at : at + 2])
    return 2


# --- meanings ----------------------------------------------------------------------------------

FLAGS: Final[dict[str, str]] = {
    "--ack": "when to acknowledge: as messages leave, never, at a clean end",
    "--ack-format": "print each stored message in this format",
    "--around": "messages before and after this id",
    "--at": "this message",
    "--batch": "write a frame after this many messages or bytes",
    "--by": "the field to group by",
    "--checkpoint-bytes": "a checkpoint is due after this much journal (64MiB)",
    "--consumer": "name of the consumer",
    "--context": "how many before and after --around",
    "--coordinator": "only this coordinator",
    "--coordinators": "number of transaction coordinators (16)",
    "--durability": "sync: flush before answering; os: let the system flush",
    "--event-time": "event time of the messages",
    "--first": "the first N of each partition",
    "--flush-every": "write a frame when its oldest message is this old",
    "--for": "which end to wait for",
    "--grep": "messages whose value matches",
    "--if-not-exists": "accept an existing one",
    "--input": "topics to read",
    "--isolation": "committed, or uncommitted: open and aborted too",
    "--key": "key of the messages",
    "--key-delim": "what separates key and value in a line",
    "--last": "the last N of each partition",
    "--ledger-age-max": "a ledger is closed at this age (4h)",
    "--ledger-bytes-max": "a ledger is closed at this size (256MiB)",
    "--ledger-entries-max": "a ledger is closed after this many entries (1000000)",
    "--limit": "rows at most",
    "--message": "a message of this text; stdin is not read",
    "--offset": "which messages: txlog help offsets",
    "--older-than": "only if older than this",
    "--on-error": "how to treat a bad record",
    "--output": "the topic to write",
    "--owner": "only of this user",
    "--partition": "only this partition",
    "--partitions": "how many partitions",
    "--position": "start of a new subscription: txlog help offsets",
    "--prefix": "names that begin with this",
    "--print": "the id alone, or a line for eval",
    "--producer": "a named producer: a sequence that it repeats is not stored again",
    "--prop": "a property",
    "--random": "N of them, anywhere",
    "--require-newline": "a last line without a newline is a bad record",
    "--retries": "tries before a failure counts",
    "--seed": "seed of the random choices",
    "--seq-from": "sequence of the first message, with --producer",
    "--since": "only from this time on",
    "--sort": "the field to sort by",
    "--state": "only transactions in this state",
    "--subscription": "the subscription",
    "--timeout": "how long at most",
    "--topic": "the topic; needed where several have the subscription",
    "--trailer": "the last line must be this; it is not stored",
    "--transaction-key": "connect this key first, which fences its previous holder",
    "--transaction-timeout": "default time-out of transactions (60s)",
    "--transaction-timeout-max": "the longest time-out (1d)",
    "--txn-every": "a transaction for this many messages, or this long",
    "--txn-timeout": "time-out of the transaction",
    "--type": "delivery to consumers: one, any, one with standbys, one per key",
    "--unbuffered": "write every message at once",
    "--until": "where to stop: txlog help offsets",
}

SPECIAL: Final[dict[str, str]] = {
    "consume --key": "messages with this key",
    "consume --prop": "messages with this property",
    "produce --partition": "write to this partition",
    "produce --producer": "name of the producer; stores a sequence once, in each transaction anew",
    "sub create --topic": "the topic",
    "sub list --topic": "only of this topic",
    "txn begin --coordinator": "begin it there",
    "txn begin --timeout": "it is aborted after this long (60s)",
    "txn begin --transaction-key": "name of a series of transactions; fences its previous holder",
    "txn find-hanging --topic": "only with messages in this topic",
    "txn list --topic": "only with messages in this topic",
    "txn run --timeout": "it is aborted after this long (60s)",
    "wait --topic": "the topic",
}

ARGUMENTS: Final[dict[str, str]] = {
    "CMD": "the command and its arguments",
    "DEST": "the destination",
    "FILE": "files to read; none: stdin",
    "ID": "message or transaction ids; - reads them from stdin",
    "IN": "the topic to read",
    "KEY": "a transaction key, or OWNER&KEY",
    "MODULE:FUNCTION": "the function; also FILE.py:FUNCTION",
    "N": "how many",
    "NAME": "the topic",
    "OUT": "the topic to write",
    "PAGE": "a command, a noun, a help topic; none: txlog",
    "PATH": "a directory",
    "SQL|-": "one SELECT; - reads it from stdin",
    "SRC": "a file or a directory of files",
    "SUB": "the subscription",
    "T": "the topic",
    "TIME": "an instant: txlog help offsets",
    "TOPIC": "the topic; TOPIC/N is one of its partitions",
    "TOPIC/P": "a partition, as orders/2",
    "VALUE": "its value",
    "WHAT": "the object to look at; none: the store",
}
_SPECIAL_ARGUMENTS: Final[dict[str, str]] = {
    "man path PAGE": "a page; none: the directory of all",
    "txn commit ID": "transactions; none: TXLOG_TXN; - reads them from stdin",
    "txn abort ID": "transactions; none: TXLOG_TXN; - reads them from stdin",
    "txn show ID": "the transaction; none: TXLOG_TXN",
    "config get KEY": "a setting",
    "config set KEY": "a setting",
    "help TOPIC": "a topic, an error code or a command",
}


def flag_meaning(path: str, flag: str) -> str:
    """Meaning of a command's flag; empty if it has none."""
    return SPECIAL.get(f"{path} {flag}") or FLAGS.get(flag, "")


def argument_meaning(path: str, metavar: str) -> str:
    """Meaning of a command's argument; empty if it has none."""
    return _SPECIAL_ARGUMENTS.get(f"{path} {metavar}") or ARGUMENTS.get(metavar, "")

"""Owns a command's parameters as data, for man pages, completion and tests; it parses no line.

It reads the annotations that the parsers read, so commands declare each parameter once. A word
means the same on every command, so it is explained once: under the long flag, under the metavar of
an argument, or under `COMMAND FLAG` for an exception.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from txlog.base.suggest import command_line
from txlog.cli.line.command import (
    GLOBAL_FLAGS,
    Command,
    Option,
    declared,
)

_NEEDED = object()

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
    "--first": "the first N messages",
    "--flush-every": "write a frame when its oldest message is this old",
    "--for": "which end to wait for",
    "--grep": "messages whose value matches",
    "--if-not-exists": "accept an existing one",
    "--input": "topics to read",
    "--isolation": "committed, or uncommitted: open and aborted too",
    "--key": "key of the messages",
    "--key-delim": "what separates key and value in a line",
    "--last": "the last N messages",
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
    "admin list-transaction-keys --topic": "only with messages of their transaction in this topic",
    "consume --key": "messages with this key",
    "consume --offset": "which messages, -N in each partition: txlog help offsets",
    "consume --prop": "messages with this property",
    "produce --partition": "write to this partition",
    "produce --producer": "name of the producer; stores a sequence once, in each transaction anew",
    "sub create --topic": "the topic",
    "sub list --topic": "the same as TOPIC",
    "top --topic": "the same as TOPIC",
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
    "COPY": "a copy of a store, made by `txlog copy`",
    "DEST": "the destination",
    "FILE": "files to read; none: stdin",
    "ID": "message or transaction ids; - reads them from stdin",
    "ID|-": "message or transaction ids; - reads them, or lines of --json, from stdin",
    "IN": "the topic to read",
    "KEY": "a transaction key, or OWNER&KEY",
    "MODULE:FUNCTION": "the function; also FILE.py:FUNCTION",
    "N": "how many",
    "NAME": "the topic",
    "NAME|-": "the topics; - reads them, or lines of --json, from stdin",
    "OUT": "the topic to write",
    "PAGE": "a command, a noun, a help topic; none: txlog",
    "PATH": "a directory",
    "STORE": "the directory of the store to make",
    "SQL|-": "one SELECT; - reads it from stdin",
    "SRC": "a file or a directory of files",
    "SUB": "the subscription",
    "SUB|-": "the subscription; - reads names, or lines of --json, from stdin",
    "T": "the topic",
    "TIME": "an instant: txlog help offsets",
    "TOPIC": "the topic; TOPIC/N is one of its partitions",
    "TOPIC/P": "a partition, as orders/2",
    "VALUE": "its value",
    "WHAT": "the object to look at; none: the store",
}
_SPECIAL_ARGUMENTS: Final[dict[str, str]] = {
    "man path PAGE": "a page; none: the directory of all",
    "txn commit ID|-": "transactions; none: TXLOG_TXN; - reads them from stdin",
    "txn abort ID|-": "transactions; none: TXLOG_TXN; - reads them from stdin",
    "txn show ID": "the transaction; none: TXLOG_TXN",
    "config get KEY": "a setting",
    "config set KEY": "a setting",
    "help TOPIC": "a topic, an error code or a command",
}


@dataclass(frozen=True)
class Parameter:
    """A flag or an argument.

    names:    `--partition -p`; for an argument its metavar
    metavar:  placeholder of its value; empty for a switch
    default:  as a user would write it; empty when there is none
    of_all:   every command has it: a global flag
    """

    names: tuple[str, ...]
    metavar: str
    help: str
    default: str
    required: bool
    repeated: bool
    is_flag: bool
    hidden: bool = False
    of_all: bool = False

    @property
    def name(self) -> str:
        """The long flag, or the metavar."""
        return next((name for name in self.names if name.startswith("--")), self.names[0])

    @property
    def choices(self) -> list[str]:
        """Its allowed values, if the metavar lists them."""
        choices = self.metavar.split("|")
        plain = all(re.fullmatch("[a-z][a-z_-]*", word) for word in choices)
        return choices if plain and len(choices) > 1 else []


def parameters_of(command: Command) -> list[Parameter]:
    """The arguments of a command, then its own flags, then the global ones; each in order."""
    defaults = command.defaults
    parameters = [
        _own(command, name, hint, defaults.get(name, _NEEDED))
        for name, hint in command.hints.items()
    ]
    if command.dry_run:
        parameters.append(_switch("--dry-run", "print the planned changes, change nothing"))
    parameters.sort(key=lambda each: each.is_flag)
    own_names = {name for each in parameters for name in each.names}
    return parameters + [
        Parameter(
            names,
            metavar or "",
            _meaning(command, key, text),
            "",
            required=False,
            repeated=key in ("quiet", "verbose"),
            is_flag=True,
            of_all=True,
        )
        for key, (names, metavar, text) in GLOBAL_FLAGS.items()
        if not own_names & set(names)
    ]


def line_of(command: Command, names: Sequence[str] = (), flags: Sequence[str] = ()) -> str:
    """A line with these names and flags, and placeholders for the required ones that it lacks."""
    arguments, words, needed = list(names), [], list(flags)
    for each in parameters_of(command):
        if each.is_flag:
            if each.required and not set(each.names) & set(flags):
                needed += [each.name, each.metavar]
        elif arguments:
            words += arguments if each.repeated else arguments[:1]
            arguments = [] if each.repeated else arguments[1:]
        elif each.required:
            words.append(each.metavar.partition("|")[0])
    return command_line(command.path, *words, *needed)


def _meaning(command: Command, key: str, text: str) -> str:
    """The help of a global flag; for --json also whether the command prints an array or lines."""
    if key != "json" or command.changes or command.input_format:
        return text
    shape = (
        "a line for each message" if command.records else "a list is an array (-f ndjson: lines)"
    )
    return f"{text}; {shape}"


def _own(command: Command, name: str, hint: Any, default_value: Any) -> Parameter:
    kind, info = hint.__origin__, hint.__metadata__[0]
    no_default = default_value is _NEEDED
    default = "" if no_default or default_value in (None, False, "") else str(default_value)
    many = _is_list(kind)
    if not isinstance(info, Option):
        word = str(info.metavar or name.upper())
        text = info.help or argument_meaning(command.path, word)
        return Parameter((word,), word, text, default, no_default, many, is_flag=False)
    names = declared(info)
    return Parameter(
        names,
        "" if _is_switch(kind) else _value(str(info.metavar or "VALUE")),
        info.help or flag_meaning(command.path, names[0]),
        default,
        no_default,
        many,
        is_flag=True,
        hidden=bool(info.hidden),
    )


def _value(metavar: str) -> str:
    """A metavar without the mark of a repeatable flag; `%…` is a literal word."""
    return metavar if metavar.endswith("%…") else metavar.removesuffix("…")


def _switch(name: str, text: str) -> Parameter:
    return Parameter((name,), "", text, "", required=False, repeated=False, is_flag=True)


def _is_list(kind: Any) -> bool:
    return any(typing.get_origin(each) is list for each in _parts(kind))


def _is_switch(kind: Any) -> bool:
    return bool in _parts(kind)


def _parts(kind: Any) -> tuple[Any, ...]:
    origin = typing.get_origin(kind)
    return typing.get_args(kind) if origin in (typing.Union, types.UnionType) else (kind,)


def flag_meaning(path: str, flag: str) -> str:
    """Meaning of a command's flag; empty if it has none."""
    return SPECIAL.get(f"{path} {flag}") or FLAGS.get(flag, "")


def argument_meaning(path: str, metavar: str) -> str:
    """Meaning of a command's argument; empty if it has none. `ID|-` means what ID means."""
    if meaning := _SPECIAL_ARGUMENTS.get(f"{path} {metavar}") or ARGUMENTS.get(metavar, ""):
        return meaning
    word = metavar.removesuffix("|-")
    return argument_meaning(path, word) if word != metavar else ""

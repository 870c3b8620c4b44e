"""Owns the table of commands, and the way from a line to its command, without loading any.

Root help, the help of a noun and the hint `did you mean` use the table. A test compares it with the
commands that the modules define. The parser of a command also reads global flags: flags before the
verb are put in front of its words, so that the last flag wins.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from txlog.cli.line.command import GLOBAL_FLAGS
from txlog.errors import Usage

if TYPE_CHECKING:
    from txlog.cli.line.synonyms import Vocabulary


class Entry(NamedTuple):
    """One command: its module, its name there, its short help."""

    module: str
    name: str
    help: str


# scripts.generate writes it, from the declarations of the commands.
COMMANDS: Final[dict[str, Entry]] = {
    "init": Entry("commands.store", "init", "create a store"),
    "copy": Entry("commands.store", "copy", "back up, while others write"),
    "status": Entry("commands.store", "status", "contents of the store, and its health"),
    "inspect": Entry(
        "commands.store", "inspect", "look at a topic, transaction, message, ledger or file"
    ),
    "query": Entry("commands.query", "query", "SQL over messages and topics"),
    "views": Entry("commands.views", "views", "SQL views of the messages for a stock duckdb"),
    "report": Entry("commands.report", "report", "an HTML page with charts of the store"),
    "run": Entry("run.command", "run", "run a Python function between topics, exactly once"),
    "transform": Entry("run.command", "transform", "run a command between topics, exactly once"),
    "topic create": Entry("commands.topic", "create", "create topics"),
    "topic list": Entry("commands.topic", "list_topics", "list topics with counts and sizes"),
    "topic describe": Entry(
        "commands.topic", "describe", "one topic, its partitions and subscriptions"
    ),
    "topic stats": Entry("commands.topic", "stats", "messages that became visible, by time"),
    "topic update": Entry("commands.topic", "update", "add partitions, change policies"),
    "topic delete": Entry("commands.topic", "delete", "delete topics with their messages"),
    "topic copy": Entry(
        "commands.topic", "copy", "copy a topic, also to another store, each message once"
    ),
    "topic rename": Entry("commands.topic", "rename", "give a topic another name"),
    "schema get": Entry("commands.topic", "get_schema", "a schema of a topic"),
    "schema versions": Entry("commands.topic", "schema_versions", "the schemas of a topic"),
    "schema upload": Entry(
        "commands.topic", "upload_schema", "give a topic its first or next schema"
    ),
    "schema test": Entry(
        "commands.topic", "test_schema", "check whether a schema would be accepted"
    ),
    "schema delete": Entry("commands.topic", "delete_schemas", "let a topic take any bytes again"),
    "produce": Entry("produce.command", "produce", "write messages from stdin, files or -m"),
    "consume": Entry(
        "consume.command", "consume", "read messages, or take and acknowledge them with -s"
    ),
    "peek": Entry("consume.command", "peek", "look at a few messages and change nothing"),
    "import": Entry("commands.transfer", "import_", "store rows of files as messages, once"),
    "export": Entry("commands.transfer", "export", "write messages to files, each once"),
    "sub create": Entry("commands.sub", "create", "create subscriptions"),
    "sub list": Entry(
        "commands.sub", "list_subscriptions", "list subscriptions with their backlog"
    ),
    "sub describe": Entry(
        "commands.sub", "describe", "one subscription, its consumers and partitions"
    ),
    "sub seek": Entry("commands.sub", "seek", "move a subscription forward or back"),
    "sub skip": Entry("commands.sub", "skip", "acknowledge the next messages"),
    "sub clear-backlog": Entry("commands.sub", "clear_backlog", "acknowledge everything"),
    "sub expire": Entry("commands.sub", "expire", "acknowledge messages older than a time"),
    "sub backlog": Entry(
        "commands.sub", "backlog", "unacknowledged messages by key, age or ledger"
    ),
    "sub ack": Entry("commands.sub", "ack", "acknowledge messages"),
    "sub nack": Entry("commands.sub", "nack", "return messages in hand, to be redelivered later"),
    "sub redeliver": Entry("commands.sub", "redeliver", "redeliver messages in hand at once"),
    "sub delete": Entry("commands.sub", "delete", "delete subscriptions"),
    "delay list": Entry(
        "commands.delay", "list_delayed", "messages that are not due yet, by their time"
    ),
    "delay next": Entry("commands.delay", "next_delayed", "the messages that are due next"),
    "delay promote": Entry("commands.delay", "promote", "deliver delayed messages now"),
    "delay cancel": Entry("commands.delay", "cancel", "acknowledge them before they are due"),
    "delay buckets": Entry(
        "commands.delay", "buckets", "the buckets of the index of delayed messages"
    ),
    "delay merge": Entry("commands.delay", "merge", "merge its buckets"),
    "delay rebuild": Entry("commands.delay", "rebuild", "rebuild its buckets from the log"),
    "watermark set": Entry(
        "commands.watermark", "set_watermark", "assert that no older message will come"
    ),
    "watermark idle": Entry("commands.watermark", "idle", "stop waiting for a producer"),
    "watermark show": Entry(
        "commands.watermark", "show", "watermarks, and the producers that hold them back"
    ),
    "watermark history": Entry("commands.watermark", "history", "the rows that moved a watermark"),
    "watermark producers": Entry(
        "commands.watermark", "producers", "producers that hold the watermark back"
    ),
    "watermark snapshot": Entry(
        "commands.watermark", "snapshot", "write the state of watermarks into the log"
    ),
    "txn connect": Entry("commands.txn", "connect", "take a key, fence its last holder"),
    "txn begin": Entry("commands.txn", "begin", "begin a transaction and print its id"),
    "txn commit": Entry("commands.txn", "commit", "commit transactions"),
    "txn abort": Entry("commands.txn", "abort", "abort transactions"),
    "txn list": Entry("commands.txn", "list_transactions", "list transactions"),
    "txn show": Entry(
        "commands.txn", "show", "one transaction, its partitions and acknowledgements"
    ),
    "txn wait": Entry("commands.txn", "wait", "wait for the end of a transaction"),
    "txn log": Entry("commands.txn", "log", "what happened to a transaction, frame by frame"),
    "txn run": Entry("commands.txn", "run", "run a command inside a transaction"),
    "txn find-hanging": Entry(
        "commands.txn", "find_hanging", "transactions that do not end by themselves, and why"
    ),
    "txn expire": Entry("commands.txn", "expire", "end overdue transactions in the whole store"),
    "txn resolve": Entry(
        "commands.txn", "resolve", "end prepared transactions as their database says"
    ),
    "admin checkpoint": Entry(
        "commands.admin", "checkpoint", "write a checkpoint; roll and seal ledgers"
    ),
    "admin list-transaction-keys": Entry("commands.admin", "list_keys", "list transaction keys"),
    "admin get-transaction-key": Entry("commands.admin", "get_key", "one key and its transactions"),
    "admin delete-transaction-key": Entry(
        "commands.admin", "delete_key", "delete a key, abort its open transaction"
    ),
    "admin scale-transaction-coordinators": Entry(
        "commands.admin", "scale_coordinators", "add transaction coordinators"
    ),
    "admin coordinators": Entry("commands.admin_stats", "coordinators", "list the coordinators"),
    "admin coordinator-stats": Entry(
        "commands.admin_stats", "coordinator_stats", "figures of coordinators"
    ),
    "admin transaction-metadata": Entry(
        "commands.admin_stats", "transaction_metadata", "all details of a transaction"
    ),
    "admin slow-transactions": Entry(
        "commands.admin_stats", "slow_transactions", "unfinished transactions older than a time"
    ),
    "admin transaction-buffer-stats": Entry(
        "commands.admin_stats", "transaction_buffer_stats", "the sidecars of a topic"
    ),
    "admin pending-ack-stats": Entry(
        "commands.admin_stats", "pending_ack_stats", "acknowledgements that open transactions hold"
    ),
    "admin position-in-pending-ack": Entry(
        "commands.admin_stats",
        "position_in_pending_ack",
        "the state of a message on a subscription",
    ),
    "admin locks": Entry("commands.admin_stats", "locks", "processes that hold locks"),
    "verify": Entry("commands.verify", "verify", "check every byte, and report damage"),
    "doctor": Entry("commands.verify", "doctor", "check the health of store and machine"),
    "segment list": Entry("commands.segment", "list_segments", "the files of a topic or of all"),
    "segment show": Entry(
        "commands.segment", "show", "a ledger or file, its columns and row groups"
    ),
    "segment cat": Entry("commands.segment", "cat", "print stored rows unchanged"),
    "wait": Entry("commands.wait", "wait", "wait for messages, a watermark, no backlog"),
    "check": Entry("commands.check", "check", "report the store's health to monitors"),
    "metrics": Entry("commands.metrics", "metrics", "figures for Prometheus"),
    "serve": Entry("commands.serve", "serve", "serve clients of Apache Pulsar, and HTTP"),
    "admin offline": Entry("commands.admin", "offline", "take a partition offline"),
    "admin online": Entry("commands.admin", "online", "bring a partition back"),
    "admin compact": Entry(
        "commands.admin_space", "compact", "rewrite a sidecar without aborted messages"
    ),
    "admin compact-topic": Entry(
        "commands.admin_space", "compact_topic", "keep the newest message of each key"
    ),
    "admin compact-changes": Entry(
        "commands.admin_space", "compact_changes", "shorten the logs of keys and cursors"
    ),
    "admin offload": Entry(
        "commands.admin_space", "offload", "move sealed files to a directory or to S3"
    ),
    "admin confirm": Entry(
        "commands.admin_space", "confirm_place", "check the copies at an offload target"
    ),
    "admin trim": Entry("commands.admin_space", "trim", "delete the oldest messages"),
    "admin repair": Entry("commands.verify", "repair", "rebuild damaged files, or explain how"),
    "admin gc": Entry("commands.admin_space", "gc", "files that no manifest names"),
    "admin accept-clock": Entry("commands.admin_space", "accept_clock", "trust the clock as it is"),
    "policy delayed set": Entry("commands.policy", "set_delayed", "how delayed messages wait"),
    "policy delayed get": Entry(
        "commands.policy", "get_delayed", "the policies that apply, and their origin"
    ),
    "policy delayed remove": Entry("commands.policy", "remove_delayed", "inherit policies again"),
    "policy retention set": Entry(
        "commands.policy", "set_retention", "which messages are kept, how long"
    ),
    "policy retention get": Entry(
        "commands.policy", "get_retention", "the policies that apply, and their origin"
    ),
    "policy retention remove": Entry(
        "commands.policy", "remove_retention", "inherit policies again"
    ),
    "policy schema set": Entry("commands.policy", "set_schema", "rules for schemas and values"),
    "policy schema get": Entry(
        "commands.policy", "get_schema", "the policies that apply, and their origin"
    ),
    "policy schema remove": Entry("commands.policy", "remove_schema", "inherit policies again"),
    "policy watermark set": Entry("commands.policy", "set_watermark", "how watermarks are kept"),
    "policy watermark get": Entry(
        "commands.policy", "get_watermark", "the policies that apply, and their origin"
    ),
    "policy watermark remove": Entry(
        "commands.policy", "remove_watermark", "inherit policies again"
    ),
    "job audit": Entry(
        "commands.job", "audit", "check stored rows against the store's own records"
    ),
    "job bulk-load": Entry("commands.job", "bulk_load", "store files as messages of a topic, once"),
    "job replay": Entry("commands.job", "replay", "store a range in another topic, once"),
    "job compact": Entry("commands.job", "compact", "rewrite sidecars of a topic in commit order"),
    "job rebuild-delayed": Entry(
        "commands.job", "rebuild_delayed", "rebuild the delayed index from the log"
    ),
    "job lateness": Entry("commands.job", "lateness", "how late messages arrive"),
    "spark submit-args": Entry("commands.spark", "submit_args", "arguments for spark-submit"),
    "spark example": Entry("commands.spark", "example", "a job to start from"),
    "bench": Entry("commands.bench", "bench", "measure a store on this disk"),
    "demo": Entry(
        "commands.demo", "demo", "exactly once on real invoices while workers are killed"
    ),
    "shell": Entry("help.shell", "shell", "many commands in one process, from terminal or script"),
    "token create-key": Entry("commands.token", "create_key", "make a key that signs tokens"),
    "token create": Entry("commands.token", "create", "print a token for a role"),
    "token show": Entry("commands.token", "show", "contents and validity of a token"),
    "config show": Entry(
        "commands.config", "show", "settings of user and store, and their origins"
    ),
    "config get": Entry("commands.config", "get", "the value of a setting"),
    "config set": Entry("commands.config", "set_", "change a setting of the store or user"),
    "config path": Entry("commands.config", "path", "where the user's config.toml is"),
    "completion install": Entry(
        "commands.completion", "install", "install completion where the shell looks for it"
    ),
    "completion show": Entry(
        "commands.completion", "show", "print the script that completes txlog"
    ),
    "man install": Entry("commands.man", "install", "install man pages where man finds them"),
    "man show": Entry("commands.man", "show", "print a man page"),
    "man path": Entry("commands.man", "path", "where the man pages are"),
    "help": Entry("help.help", "help_", "topics, errors by their code, commands"),
    "policy alert set": Entry("commands.policy", "set_alert", "when a backlog is a problem"),
    "policy alert get": Entry(
        "commands.policy", "get_alert", "the thresholds that apply, and their origin"
    ),
    "policy alert remove": Entry("commands.policy", "remove_alert", "inherit thresholds again"),
    "top": Entry("commands.sub", "top", "watch who is behind, on the whole screen"),
    "du": Entry("commands.store", "du", "bytes on disk by topic and part"),
    "dlq list": Entry(
        "commands.sub", "list_letters", "dead-letter topics, or the dead letters of one"
    ),
    "dlq retry": Entry("commands.sub", "retry_letters", "move dead letters back to their topics"),
    "restore": Entry("commands.store", "restore", "make a store from a copy"),
    "crashtest": Entry(
        "run.crashtest", "crashtest", "kill a program at each of its calls, and say what is lost"
    ),
    "diff": Entry("commands.store", "diff", "what differs between two stores"),
}

# Made by scripts.generate: how much a command can lose, 1 to 3 (line/synonyms); others only read.
LEVELS: Final[dict[str, int]] = {
    "init": 1,
    "copy": 1,
    "report": 1,
    "run": 1,
    "transform": 1,
    "topic create": 1,
    "topic update": 1,
    "topic delete": 3,
    "topic copy": 1,
    "topic rename": 1,
    "schema upload": 1,
    "schema delete": 3,
    "produce": 1,
    "import": 1,
    "export": 1,
    "sub create": 1,
    "sub seek": 2,
    "sub skip": 2,
    "sub clear-backlog": 2,
    "sub expire": 2,
    "sub ack": 2,
    "sub nack": 1,
    "sub redeliver": 1,
    "sub delete": 3,
    "delay promote": 1,
    "delay cancel": 2,
    "delay merge": 1,
    "delay rebuild": 1,
    "watermark set": 1,
    "watermark idle": 1,
    "watermark snapshot": 1,
    "txn connect": 2,
    "txn begin": 1,
    "txn commit": 1,
    "txn abort": 2,
    "txn run": 1,
    "txn expire": 2,
    "txn resolve": 2,
    "admin checkpoint": 1,
    "admin delete-transaction-key": 3,
    "admin scale-transaction-coordinators": 1,
    "serve": 1,
    "admin offline": 1,
    "admin online": 1,
    "admin compact": 1,
    "admin compact-topic": 3,
    "admin compact-changes": 1,
    "admin offload": 1,
    "admin trim": 3,
    "admin repair": 1,
    "admin gc": 3,
    "admin accept-clock": 1,
    "policy delayed set": 1,
    "policy delayed remove": 1,
    "policy retention set": 1,
    "policy retention remove": 1,
    "policy schema set": 1,
    "policy schema remove": 1,
    "policy watermark set": 1,
    "policy watermark remove": 1,
    "job bulk-load": 1,
    "job replay": 1,
    "job compact": 1,
    "job rebuild-delayed": 1,
    "bench": 1,
    "demo": 1,
    "token create-key": 1,
    "token create": 1,
    "config set": 1,
    "completion install": 1,
    "man install": 1,
    "policy alert set": 1,
    "policy alert remove": 1,
    "dlq retry": 1,
    "restore": 1,
    "crashtest": 1,
}

NOUNS: Final[dict[str, str]] = {
    "topic": "topics",
    "schema": "schemas of typed topics",
    "sub": "subscriptions",
    "dlq": "dead letters",
    "delay": "delayed messages",
    "watermark": "event-time watermarks",
    "txn": "transactions",
    "segment": "files of rows",
    "admin": "administration",
    "policy": "policies",
    "policy alert": "thresholds of backlogs",
    "policy delayed": "policies of delayed delivery",
    "policy retention": "policies of retention",
    "policy schema": "policies of schemas",
    "policy watermark": "policies of watermarks",
    "job": "bulk work, by DuckDB or Spark",
    "spark": "running on Spark",
    "token": "tokens for clients of `txlog serve`",
    "config": "settings",
    "completion": "completion by bash, zsh and fish",
    "man": "manual pages",
}

# First words of the commands that open a store, as `topic` in `txlog -S shop topic list`.
FIRST_WORDS: Final = frozenset(path.partition(" ")[0] for path in COMMANDS) - {
    "completion", "demo", "doctor", "help", "init", "man", "restore",
}  # fmt: skip

ALIASES: Final[dict[str, str]] = {
    "delayed": "delay",
    "topics": "topic",
    "schemas": "schema",
    "subs": "sub",
    "subscription": "sub",
    "subscriptions": "sub",
    "segments": "segment",
    "seg": "segment",
    "jobs": "job",
    "policies": "policy",
    "watermarks": "watermark",
    "txns": "txn",
    "transaction": "txn",
    "transactions": "txn",
}

VERB_ALIASES: Final[dict[str, str]] = {
    "txn status": "txn show",
    **{
        f"policy {kind} {word}": f"policy {kind} {verb}"
        for kind in ("alert", "delayed", "retention", "schema", "watermark")
        for word, verb in (("show", "get"), ("unset", "remove"))
    },
}

# The commands without a noun, by purpose; `root_help` adds commands that no line names.
_GROUPS: Final = (
    ("begin", "init demo shell", "make a store, see it work"),
    ("messages", "produce consume peek import export", "lines, whole files"),
    ("process", "run transform crashtest", "a function or a program, exactly once"),
    ("look", "status top inspect query views report", "any id; SQL; charts"),
    ("health", "verify doctor check metrics bench", "intact, healthy, fast"),
    ("keep", "copy restore du wait", "back up, while others write"),
    ("network", "serve", "clients of Apache Pulsar, HTTP, a page"),
    ("help", "help", "a command, a topic, or an error: TXL-403"),
)
_ROOT_HEAD: Final = """\
txlog: exactly-once event streaming in one directory
usage: txlog [FLAG…] COMMAND [ARG…] [FLAG…]
"""
_ROOT_END: Final = """\
  txlog init shop && cd shop && txlog topic create orders
  seq 3 | txlog produce orders --txn      one transaction: all or nothing
  txlog consume orders

  -S, --store PATH  the store       -f, --format FMT  json table tsv csv names …
  --json            as -f json      --read-only       write nothing
  -q, -v            less, more      --now TIME        the clock stands still
  --no-color        no colours      -y, --yes         do it without a question
txlog COMMAND -h: examples and flags; --help: the global flags too
"""
_ROOT_WIDTH: Final = 79


def root_help() -> str:
    """Return the help of txlog: its commands by purpose, and each noun on a line with its verbs."""
    listed_paths: set[str] = set()
    lines = [_ROOT_HEAD]
    for purpose, words, meaning in _GROUPS:
        commands = [word for word in words.split() if word in COMMANDS]
        listed_paths.update(commands)
        lines.append(f"  {purpose:<9}  {'  '.join(commands):<25}  {meaning}")
    others = [path for path in COMMANDS if " " not in path and path not in listed_paths]
    if others:
        lines.append(f"  {'more':<9}  {'  '.join(others)}")
    lines.append("")
    for noun, meaning in NOUNS.items():
        if " " not in noun:
            verbs = dict.fromkeys(
                path.split()[1] for path in COMMANDS if path.startswith(f"{noun} ")
            )
            lines.append(_fitting(f"  {noun:<10} {meaning.replace('`', '')}: ", list(verbs)))
    return "\n".join([*lines, "", _ROOT_END])


def _fitting(line: str, words: list[str]) -> str:
    """The line with the words that fit, and … for the others."""
    for number, word in enumerate(words):
        following = len(words) - number - 1
        if len(line) + len(word) + 2 * bool(following) > _ROOT_WIDTH:
            return f"{line}…"
        line += f"{word} "
    return line.rstrip()


def noun_help(noun: str) -> str:
    """Return the help of a noun: its verbs with their short help."""
    verbs = [path for path in COMMANDS if path.startswith(f"{noun} ")]
    width = max(len(path) for path in verbs)
    lines = [f"  txlog {path.ljust(width)}  {COMMANDS[path].help}" for path in verbs]
    return "\n".join([f"usage: txlog {noun} VERB [ARG…] [FLAG…]", "", *lines, ""])


def expanded(words: list[str]) -> list[str]:
    """Return the line with a word of another tool replaced: `ls` is `topic list`."""
    path, used = ALIASES.get(words[0], words[0]), 1
    while path in NOUNS and used < len(words):
        path, used = f"{path} {words[used]}", used + 1
    if _names(path) or words[used - 1].startswith("-"):
        return words
    return vocabulary().expanded(words)


def resolve(args: list[str]) -> tuple[str, int]:
    """Return the command that the words begin with, and the number of words that name it.

    For a noun without a verb, return the noun.
    raises: Usage (201) with the nearest known name
    """
    first = ALIASES.get(args[0], args[0])
    if first not in NOUNS:
        if first in COMMANDS:
            return first, 1
        raise _unknown([args[0]], args[1:])
    return _verb(first, args, 1)


def _verb(noun: str, args: list[str], used: int) -> tuple[str, int]:
    """The command of a noun, which may have nouns of its own."""
    if len(args) == used or args[used].startswith("-"):
        return noun, used
    path = f"{noun} {args[used]}"
    path = VERB_ALIASES.get(path, path)
    if path in NOUNS:
        return _verb(path, args, used + 1)
    if path not in COMMANDS:
        raise _unknown([*noun.split(), args[used]], args[used + 1 :])
    return path, used + 1


def _names(path: str) -> bool:
    return path in COMMANDS or path in NOUNS or path in VERB_ALIASES


def _unknown(words: list[str], following: list[str] | None = None) -> Usage:
    line = " ".join([*words[:-1], words[-1] if len(words[-1]) <= 40 else f"{words[-1][:37]}..."])
    return Usage(f'no command "{line}"', hint=vocabulary().hint(words, following or []))


def vocabulary() -> Vocabulary:
    """The synonyms over the commands that exist; loaded for unknown words only."""
    synonyms: ModuleType = importlib.import_module("txlog.cli.line.synonyms")
    words: Vocabulary = synonyms.Vocabulary(COMMANDS, NOUNS, ALIASES, LEVELS)
    return words


# --- global flags before the verb --------------------------------------------------------------

VALUE_FLAGS: Final = frozenset(
    word for words, metavar, _ in GLOBAL_FLAGS.values() if metavar for word in words
)
SWITCHES: Final = frozenset(
    word for words, metavar, _ in GLOBAL_FLAGS.values() if not metavar for word in words
) | {"--help", "-h"}


class Split(msgspec.Struct):
    """A command line split at its first word that is no flag; flags before it are global."""

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
    """Return whether errors of this command line are JSON; it need not be parsed yet."""
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
    """Return whether --json is among the words before `--`."""
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
        if f"-{letter}" in VALUE_FLAGS:
            return _take_value(args, at, out, has_value=index + 1 < len(word))
        if f"-{letter}" not in SWITCHES:
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

"""Owns words that other tools use for our commands, and the hint for an unknown word.

It is imported for unknown words only. A synonym works like its command if that only reads, or if
the word has no other meaning here (`topic rm`, `backup`); all others are hints, because a guess
must not change a store. Neither leads to a command that loses more than the typed word: `sub reset`
is a `sub seek`, never a `sub delete`. Consent is asked as ever.
Targets that the catalogue lacks are skipped: a word leads to the first target that exists.
"""

from __future__ import annotations

import difflib
import importlib
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

from txlog.base.suggest import nearest

READS, CHANGES, MOVES, DELETES = range(4)
_ALIKE: Final = 0.6  # for commands that lose nothing
_FLAG_ALIKE: Final = 0.75  # flags are short: `--sort` is no `--store`
_SAME: Final = 0.8  # a slip of the key, for the others
_SLIP_MIN: Final = 4  # in shorter words, a slip makes another word
_CONSENTS: Final = ("yes", "force", "accept", "all", "apply")  # flags that allow a loss
_HINTS_MAX: Final = 3
_WORD_MAX: Final = 40


class Meaning(NamedTuple):
    """A synonym: what its user is ready to lose, and the command lines that do it, best first.

    is_same: the word has no other meaning, so it works like its command
    """

    level: int
    targets: tuple[str, ...]
    is_same: bool = False


def _read(*targets: str) -> Meaning:
    return Meaning(READS, targets)


def _change(*targets: str) -> Meaning:
    return Meaning(CHANGES, targets)


def _move(*targets: str) -> Meaning:
    return Meaning(MOVES, targets)


def _delete(*targets: str) -> Meaning:
    return Meaning(DELETES, targets)


def _same(level: int, *targets: str) -> Meaning:
    return Meaning(level, targets, is_same=True)


# Verbs after a noun, if it has a target command.
VERBS: Final[dict[str, Meaning]] = {
    "ls": _read("list", "show"), "all": _read("list"), "print": _read("show", "list"),
    "list": _read("list", "versions", "show", "get"),
    "info": _read("describe", "show", "get"), "desc": _read("describe", "show", "get"),
    "describe": _read("describe", "show", "get"), "get": _read("get", "show", "describe"),
    "show": _read("show", "get", "describe"), "view": _read("show", "describe", "get"),
    "cat": _read("cat", "show"), "status": _read("show", "describe"),
    "add": _same(CHANGES, "create", "upload", "set"), "new": _same(CHANGES, "create", "begin"),
    "make": _same(CHANGES, "create"), "mk": _same(CHANGES, "create"),
    "register": _same(CHANGES, "upload", "create"),
    "start": _change("begin"), "open": _change("begin"), "edit": _same(CHANGES, "update", "set"),
    "alter": _same(CHANGES, "update", "set"), "modify": _same(CHANGES, "update", "set"),
    "change": _same(CHANGES, "update", "set"),
    **dict.fromkeys(("mv", "move"), _same(CHANGES, "rename")),
    "cp": _same(CHANGES, "copy"), "clone": _same(CHANGES, "copy"),
    "mirror": _same(CHANGES, "copy"), "unset": _same(CHANGES, "remove"),
    "reset": _move("seek --to start", "remove"), "rewind": _move("seek --to start"),
    "replay": _same(MOVES, "seek", "retry", "replay"),
    "rollback": _same(MOVES, "abort"), "cancel": _same(MOVES, "cancel", "abort"),
    "kill": _same(MOVES, "abort"), "stop": _move("abort"), "drain": _move("clear-backlog"),
    "clear": _same(MOVES, "clear-backlog"),
    **dict.fromkeys(
        ("rm", "del", "remove", "drop", "delete"), _same(DELETES, "delete", "remove", "cancel")
    ),
    "destroy": _delete("delete", "remove"), "erase": _delete("delete", "remove"),
    "purge": _delete("clear-backlog", "delete"), "truncate": _delete("clear-backlog", "delete"),
}  # fmt: skip

# Whole beginnings of a line; they go before VERBS.
_RETRY: Final = _same(CHANGES, "dlq retry")
_KEYS: Final = _read("admin list-transaction-keys")
_HOLDER: Final = _read("sub describe")
LINES: Final[dict[str, Meaning]] = {
    "ls": _read("topic list"), "list": _read("topic list"), "tail": _read("peek", "consume -F"),
    "follow": _read("consume -F"), "cat": _read("consume"), "read": _read("consume"),
    "fetch": _read("consume"), "get": _read("consume"), "head": _read("peek"),
    "poll": _read("consume"), "describe": _read("topic describe"), "desc": _read("topic describe"),
    "info": _read("status"), "show": _read("status"), "stats": _read("status"),
    "version": _read("--version"), "groups": _read("sub list"), "group": _read("sub list"),
    "consumers": _read("sub list"), "consumer": _read("sub list"), "lag": _read("sub list"),
    "offsets": _read("sub list"), "keys": _KEYS,
    "transaction-keys": _KEYS, "txn-keys": _KEYS, "txn-key": _KEYS, "key": _KEYS,
    "du": _read("du", "topic list"), "df": _read("du", "topic list"),
    "disk": _read("du", "topic list"), "size": _read("du", "topic list"),
    "sql": _read("query"), "select": _read("query"), "count": _read("query"),
    "health": _read("doctor"), "ping": _read("status"), "fsck": _read("verify"),
    "validate": _read("verify"), "watch": _read("top", "status --watch 2s"),
    "locks": _read("admin locks"), "who": _read("admin locks"), "holders": _read("admin locks"),
    "settings": _read("config show"),
    "ps": _read("admin locks"), "clients": _read("admin locks"), "lsof": _read("admin locks"),
    "compare": _read("diff"), "cmp": _read("diff"),
    "dlq": _read("dlq list"), "tutorial": _change("demo"), "man-page": _read("man show"),
    "create": _change("topic create", "sub create"), "new": _change("init", "topic create"),
    "add": _change("topic create", "sub create"),
    **dict.fromkeys(("write", "send", "publish", "put", "push"), _same(CHANGES, "produce")),
    **dict.fromkeys(("load", "ingest"), _same(CHANGES, "import")),
    **dict.fromkeys(("dump", "unload", "save"), _same(CHANGES, "export")),
    **dict.fromkeys(("backup", "snapshot", "backup create"), _same(CHANGES, "copy")),
    "clone": _change("copy", "topic copy"), "cp": _change("copy", "topic copy"),
    "mirror": _change("topic copy", "copy"),
    "restore": _change("restore", "copy"),
    **dict.fromkeys(("rename", "mv", "move"), _same(CHANGES, "topic rename")),
    "alter": _change("topic update"), "update": _change("topic update"),
    "begin": _same(CHANGES, "txn begin"), "commit": _same(CHANGES, "txn commit"),
    "fence": _same(MOVES, "txn connect"),
    "server": _change("serve"), "start": _change("serve"), "ui": _change("serve"),
    "web": _change("serve"), "dashboard": _change("serve"),
    "checkpoint": _same(CHANGES, "admin checkpoint"),
    "repair": _change("admin repair"), "function": _change("run"),
    "retention": _change("policy retention set"),
    "reset": _move("sub seek --to start"), "rewind": _move("sub seek --to start"),
    "seek": _same(MOVES, "sub seek"), "reset-offsets": _move("sub seek --to start"),
    "replay": _move("sub seek", "dlq retry"), "ack": _same(MOVES, "sub ack"),
    "skip": _same(MOVES, "sub skip"), "abort": _same(MOVES, "txn abort"),
    "rollback": _same(MOVES, "txn abort"),
    "rm": _delete("topic delete", "sub delete"), "del": _delete("topic delete", "sub delete"),
    "delete": _delete("topic delete", "sub delete"),
    "remove": _delete("topic delete", "sub delete"),
    "drop": _delete("topic delete", "sub delete"), "purge": _delete("admin trim"),
    "truncate": _delete("admin trim"), "trim": _delete("admin trim"),
    "clean": _delete("admin gc"), "vacuum": _delete("admin gc"), "gc": _delete("admin gc"),
    "topic size": _read("du", "topic list"), "topic du": _read("du", "topic list"),
    "topic partitions": _read("topic describe"), "topic offsets": _read("topic describe"),
    "topic tail": _read("peek", "consume -F"), "topic head": _read("peek"),
    "topic cat": _read("consume"), "topic read": _read("consume"),
    "topic schema": _read("schema get"), "topic purge": _delete("admin trim"),
    "topic truncate": _delete("admin trim"), "topic clear": _delete("admin trim"),
    "topic trim": _delete("admin trim"), "topic compact": _delete("admin compact-topic"),
    "topic retention": _change("policy retention set"), "topic write": _same(CHANGES, "produce"),
    "topic config": _read("topic describe"), "topic export": _same(CHANGES, "export"),
    "topic import": _same(CHANGES, "import"), "topic diff": _read("diff"),
    "sub lag": _read("sub list"),
    **dict.fromkeys(
        ("sub consumers", "sub who", "sub holder", "sub holders", "sub owner", "sub members"),
        _HOLDER,
    ),
    **dict.fromkeys(
        ("dlq requeue", "dlq redrive", "dlq move", "dlq mv", "dlq restore", "dlq reprocess"), _RETRY
    ),
    "dlq show": _read("dlq list"), "dlq peek": _read("dlq list"),
    "txn keys": _KEYS, "txn key": _KEYS, "txn list-keys": _KEYS, "txn ls-keys": _KEYS,
    "txn-key list": _KEYS, "txn-key ls": _KEYS, "keys list": _KEYS, "transaction-keys list": _KEYS,
    "txn-key fence": _same(MOVES, "txn connect"), "txn fence": _same(MOVES, "txn connect"),
    "keys fence": _same(MOVES, "txn connect"), "txn takeover": _same(MOVES, "txn connect"),
    "producer fence": _same(MOVES, "txn connect"), "admin fence": _same(MOVES, "txn connect"),
    "txn stuck": _read("txn find-hanging"), "txn hanging": _read("txn find-hanging"),
    "schema add": _same(CHANGES, "schema upload"), "schema set": _same(CHANGES, "schema upload"),
    "admin keys": _KEYS, "admin transaction-keys": _KEYS,
    "admin backup": _same(CHANGES, "copy"), "admin du": _read("du"),
    "completion bash": _read("completion show bash"),
    "completion zsh": _read("completion show zsh"),
    "completion fish": _read("completion show fish"),
    "completions": _read("completion show"), "completions bash": _read("completion show bash"),
    "completions zsh": _read("completion show zsh"),
    "completions fish": _read("completion show fish"),
    **dict.fromkeys(
        ("delay merge-buckets", "delay compact", "merge-buckets", "delay buckets merge"),
        _same(CHANGES, "delay merge"),
    ),
    "schedule": _change("produce --deliver-at TIME", "delay list"),
    "policy set": _change("policy retention set", "policy delayed set", "policy alert set"),
    "policy get": _read("policy retention get"),
    "policy list": _read("policy retention get"), "policy ls": _read("policy retention get"),
    "policy show": _read("policy retention get"),
}  # fmt: skip

# The commands for a word with a name after it, where the command above takes none.
_OF_NAME: Final[dict[str, str]] = {
    **dict.fromkeys(("ls", "list", "info", "show", "stats"), "topic describe"),
    **dict.fromkeys(("groups", "group", "consumers", "consumer", "lag"), "sub describe"),
    **dict.fromkeys(("offsets", "sub lag", "who", "holders", "ps", "clients"), "sub describe"),
}

# Nouns of other tools, and the txlog noun whose verbs follow.
_NOUNS: Final[dict[str, str]] = {
    "group": "sub", "groups": "sub", "consumer": "sub", "consumers": "sub",
    "consumer-group": "sub", "consumer-groups": "sub", "settings": "config",
    "retention": "policy retention",
}  # fmt: skip

# Flags of other tools that only a person can replace; line/forms has those that work.
FLAGS: Final[dict[str, tuple[str, ...]]] = {
    "--bootstrap-server": ("--store",), "-b": ("--store",), "--force": ("--yes",),
    "--reset-offsets": ("--to",), "--file": ("--in",), "--watch": ("--follow",),
    "--replication-factor": (), "--tail": ("--follow",),
}  # fmt: skip

# Flags that are a command of their own.
_FLAG_LINES: Final[dict[str, str]] = {"txn list --keys": "admin list-transaction-keys"}


class Vocabulary:
    """The words that a user may type, over the commands that exist.

    commands, nouns, aliases, levels: the tables of the catalogue; an entry None: a command to come
    """

    def __init__(
        self,
        commands: Mapping[str, Any],
        nouns: Collection[str],
        aliases: Mapping[str, str],
        levels: Mapping[str, int],
    ) -> None:
        self._commands, self._nouns, self._aliases = commands, nouns, aliases
        self._levels = levels

    @cached_property
    def words(self) -> dict[str, int]:
        """Each word, with the highest level of loss among its meanings."""
        words: dict[str, int] = {}
        lines = [(word, meaning.level) for word, meaning in [*VERBS.items(), *LINES.items()]]
        for line, level in [*lines, *((path, self.level_of(path)) for path in self._commands)]:
            verb = line.split()[-1]
            words[verb] = max(words.get(verb, READS), level)
        for noun in [*self._aliases, *self._nouns]:
            words.setdefault(noun.split()[-1], READS)
        return words

    def level_of(self, line: str) -> int:
        """How much a command line can lose: READS nothing, CHANGES, MOVES work, DELETES data."""
        return self._levels.get(_path(line), READS)

    def expanded(self, typed: Sequence[str]) -> list[str]:
        """The line with a synonym replaced, if its command only reads, or the word means it alone.

        Another line is returned unchanged.
        """
        ours = self._with_noun(typed)
        for used in range(min(3, len(ours)), 0, -1):
            words = [self._aliases.get(ours[0], ours[0]), *ours[1:used]]
            path = " ".join(words)
            if path in self._commands or path in self._nouns:
                continue
            if path in _SHAPES:
                return _SHAPES[path](list(ours[used:]))
            meaning = self._meaning(words)
            if path in _OF_NAME and len(ours) > used and ours[used][:1] != "-":
                meaning = _read(_OF_NAME[path])
            if meaning.targets and (meaning.is_same or self.level_of(meaning.targets[0]) == READS):
                return [*meaning.targets[0].split(), *ours[used:]]
        return list(ours)

    def _with_noun(self, typed: Sequence[str]) -> Sequence[str]:
        """The line with our noun, if it begins with another tool's and a verb that ours has."""
        noun = _NOUNS.get(typed[0])
        if noun is None or len(typed) == 1:
            return typed
        words = [*noun.split(), typed[1]]
        path = " ".join(words)
        is_ours = path in self._commands or path in _SHAPES or self._meaning(words).targets
        return [*words, *typed[2:]] if is_ours else typed

    def hint(self, words: Sequence[str], following: Sequence[str] = ()) -> str:
        """The hint for an unknown word: the last one; those before it are a noun.

        following: the words after it: names, or first a verb
        """
        noun, word = " ".join(words[:-1]), words[-1]
        targets: Sequence[str] = self._meaning(words).targets
        targets = targets or self._elsewhere(word) or self._alike(noun, word)
        if targets:
            lines = [self._completed(line, following) for line in targets[:_HINTS_MAX]]
            return f"did you mean: {', '.join(lines)}"
        return f"txlog {noun} -h lists the commands" if noun else "txlog lists the commands"

    def _completed(self, line: str, following: Sequence[str]) -> str:
        """A line that can be typed: with the names that the user typed, and the missing ones."""
        entry = self._commands.get(path := _path(line))
        if entry is None:
            return f"txlog {line}"
        command = getattr(importlib.import_module(f"txlog.cli.{entry.module}"), entry.name)
        names = itertools.takewhile(lambda word: not word.startswith("-"), following)
        lines = importlib.import_module("txlog.cli.line.parameters")
        whole: str = lines.line_of(command, list(names), line.removeprefix(path).split())
        return whole

    def _meaning(self, words: Sequence[str]) -> Meaning:
        """The meaning of a synonym with the targets that exist here; without one, no targets."""
        meaning = LINES.get(" ".join(words))
        if meaning is None and len(words) > 1 and words[-1] in VERBS:
            noun = " ".join(words[:-1])
            meaning = VERBS[words[-1]]
            lines = [f"{noun} {verb}" for verb in meaning.targets]
            lines = [line for line in lines if _path(line) in self._commands][:1]
            meaning = meaning._replace(targets=tuple(lines))
        if meaning is None:
            return Meaning(READS, ())
        targets = tuple(
            line
            for line in meaning.targets
            if (line.startswith("-") or self._is_command(_path(line)))
            and self.level_of(line) <= meaning.level
        )
        return meaning._replace(targets=targets)

    def _is_command(self, line: str) -> bool:
        """Whether the line is a command, perhaps with one argument."""
        return line in self._commands or line.rpartition(" ")[0] in self._commands

    def _elsewhere(self, word: str) -> list[str]:
        """The commands of other nouns whose verb is the word."""
        most = self.words.get(word, READS)
        return [
            path
            for path in self._commands
            if path.endswith(f" {word}") and self.level_of(path) <= most
        ]

    def _alike(self, noun: str, word: str) -> list[str]:
        """The command whose name is most similar, if it loses no more than the likeliest word."""
        if len(word) > _WORD_MAX:
            return []
        most = self._likeliest_level(word)
        best, likeness = "", _ALIKE
        for name, line in self._names(noun):
            ratio = _likeness(word, name)
            level = self.level_of(line)
            least = _ALIKE if level < MOVES else _SAME if len(word) >= _SLIP_MIN else 1.0
            if level <= most and ratio >= least and ratio > likeness:
                best, likeness = line, ratio
        return [best] if best else []

    def _likeliest_level(self, word: str) -> int:
        """The level of loss of the most similar word; of several words, the lowest level."""
        if word in self.words:
            return self.words[word]
        return max(
            self.words.items(), key=lambda each: (round(_likeness(word, each[0]), 3), -each[1])
        )[1]

    def _names(self, noun: str) -> Iterator[tuple[str, str]]:
        """Words that may follow a noun, or begin a line, with the command line of each."""
        before = noun.split()
        for path in [*self._commands, *self._nouns]:
            words = path.split()
            if words[:-1] == before:
                yield words[-1], path
        if not before:
            yield from ((alias, alias) for alias in self._aliases)
        for line in [*LINES, *VERBS]:
            *first, last = line.split()
            targets = self._meaning([*before, last]).targets if first in ([], before) else ()
            if targets:
                yield last, targets[0]


def _counting(rest: list[str]) -> list[str]:
    """`count TOPIC` as a query, also `count TOPIC --by COLUMN`."""
    if not rest or rest[0].startswith("-"):
        return ["status", *rest]
    topic, *others = rest
    if not (others and _BY.fullmatch(others[0])):
        return ["query", f"SELECT count(*) AS messages FROM {_quoted(topic)}", *others]  # noqa: S608
    name = (others[0].partition("=")[2] or (others[1:] or [""])[0]) or "key"
    others = others[1:] if "=" in others[0] else others[2:]
    column = _OF_MESSAGE.get(name, f"record.{_quoted(name)}")
    # the user's own words, quoted as names, in a query that only reads
    query = f"SELECT {column} AS {_quoted(name)}, count(*) AS messages FROM {_quoted(topic)}"  # noqa: S608
    return ["query", f"{query} GROUP BY 1 ORDER BY 2 DESC, 1", *others]


def _quoted(name: str) -> str:
    """A name in SQL."""
    return '"' + name.replace('"', '""') + '"'


_BY: Final = re.compile(r"--(?:by|group|group-by)(?:=.*)?", re.DOTALL)
# Columns that every message has, to count by.
_OF_MESSAGE: Final = {
    "key": "text(key)",
    **{name: name for name in ("partition", "producer", "ledger", "value")},
}


def _selecting(rest: list[str]) -> list[str]:
    """The words of a statement without quotes, joined as a query."""
    stop = next((at for at, word in enumerate(rest) if word.startswith("-")), len(rest))
    return ["query", " ".join(["SELECT", *rest[:stop]]), *rest[stop:]] if stop else ["query", *rest]


def _head(rest: list[str]) -> list[str]:
    """`head TOPIC -n N` as `peek`."""
    count, others = _count(rest)
    return ["peek", *others, f"--first={count}"]


def _tail(rest: list[str]) -> list[str]:
    """`tail TOPIC -n N` as `peek`; with -F, or -f without a form, as `consume`."""
    count, others = _count(rest)
    for at, word in enumerate(others):
        if word == "-f" and not _FORM.fullmatch(" ".join(others[at + 1 : at + 2])):
            others[at] = "-F"
    if "-F" in others or "--follow" in others:
        return ["consume", *others, f"--offset=-{count}"]
    return ["peek", *others, f"--last={count}"]


def _count(rest: list[str]) -> tuple[str, list[str]]:
    """The number that a line of head or tail asks for, by default 10, and its other words."""
    count, others = "10", []
    words = iter(rest)
    for word in words:
        flag = _LINES_FLAG.match(word)
        if flag is None:
            others.append(word)
        else:
            count = flag[1] or next(words, "")
    return count, others


_FORM: Final = re.compile(r"json|ndjson|table|wide|tsv|csv|names|raw|auto|help|.*%.*", re.DOTALL)
_LINES_FLAG: Final = re.compile(r"(?:-n|--lines=?|-(?=\d))(.*)\Z")
_BOUND_FLAG: Final = re.compile(r"--(?:to|from|since|at|time|date|earliest|latest|pos|off)|-o")
_BOUND: Final = re.compile(
    r"start|end|earliest|latest|[@+].*|-\d.*|.*\d+[:-]\d+.*|(?:yester|to)day.*"
)


def _resetting(rest: list[str]) -> list[str]:
    """`sub reset SUB` as a seek; without a position, to the start."""
    has_bound = any(_BOUND_FLAG.match(word) or _BOUND.fullmatch(word) for word in rest)
    return ["sub", "seek", *rest, *([] if has_bound or not rest else ["--to", "start"])]


# Lines of other tools whose arguments also differ: each function converts them.
_SHAPES: Final[dict[str, Callable[[list[str]], list[str]]]] = {
    **{"count": _counting, "select": _selecting},
    **{"head": _head, "topic head": _head, "tail": _tail, "topic tail": _tail},
    **dict.fromkeys(("sub reset", "sub rewind", "sub reset-offsets"), _resetting),
    **dict.fromkeys(("sub reset-offset", "sub reset-cursor"), _resetting),
}


def flag_hint(word: str, flags: Mapping[str, str], path: str = "") -> str | None:
    """The hint for a flag that a command lacks.

    flags: the flags that it has, with their meanings
    path:  the command
    """
    name = word.partition("=")[0]
    if (line := _FLAG_LINES.get(f"{path} {name}")) is not None:
        return f"did you mean: txlog {line}"
    targets = [each for each in FLAGS.get(name, ()) if each.split()[0] in flags]
    if not targets and name.startswith("--"):
        near = nearest(name[2:], [flag[2:] for flag in flags if flag.startswith("--")])
        least = _SAME if near and near.startswith(_CONSENTS) else _FLAG_ALIKE
        if near and _likeness(near, name[2:]) < least:
            near = None
        targets = [f"--{near}"] if near else []
    if not targets:
        return None
    return f"did you mean: {targets[0]}  ({flags[targets[0].split()[0]]})"


def _likeness(word: str, name: str) -> float:
    matcher = difflib.SequenceMatcher(None, word, name)
    return 0.0 if matcher.real_quick_ratio() < _ALIKE else matcher.ratio()


def _path(line: str) -> str:
    """The command of a line: without its flags."""
    return line.partition(" -")[0]

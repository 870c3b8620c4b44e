"""Owns a command: its function, the declarations of its parameters, and how a line is parsed.

A command is a function `(call, …) -> None`. It prints through the call, and raises on errors. Its
parameters are Annotated hints with an Option or an Argument; a command with many takes one struct,
whose fields have such hints, so that each option is written once. Option and Argument are named
after Typer's, and `typer` converts them for help and error messages; importing Typer takes a third
of the time of `produce`.

The parser here takes a line that is certainly correct; Typer takes all others. Both read the same
declarations. This parser has no error texts: at an unknown flag, a missing or bad value, or -h, it
gives up, and Typer explains the error. So its only possible fault is to read a line differently
from Typer; a test compares the two over random lines of all commands. One difference is intended:
with `-f help`, which runs no command, nothing is required.

The rules are Typer's: flags and arguments mix; `--` ends the flags; `--flag V` takes the next word
in any case; `-n5` and `-qq` work; the last of a repeated flag wins, or a list takes all.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from types import FunctionType
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import msgspec

from txlog.base.times import parse_duration, parse_time
from txlog.errors import InvalidArgument, Usage

if TYPE_CHECKING:
    from txlog.base.rows.fields import Field
    from txlog.cli.call.call import Call

GLOBAL_FLAGS: Final[dict[str, tuple[tuple[str, ...], str | None, str]]] = {
    "store": (("--store", "-S"), "PATH", "the store [env: TXLOG_STORE]"),
    "profile": (("--profile",), "NAME", "a section of the config file [env: TXLOG_PROFILE]"),
    "format": (("--format", "-f"), "FMT", "shape of stdout [env: TXLOG_FORMAT]"),
    "json": (("--json",), None, "JSON on stdout, errors as JSON on stderr"),
    "columns": (("--columns",), "A,B", "these fields, in this order"),
    "quiet": (("--quiet", "-q"), None, "no summaries and notes; -qq: no warnings"),
    "verbose": (("--verbose", "-v"), None, "notes, also off a terminal"),
    "log_format": (("--log-format",), "text|json", "shape of diagnostics"),
    "log_file": (("--log-file",), "PATH", "diagnostics go here, appended"),
    "color": (("--color",), "auto|always|never", "colours"),
    "no_color": (("--no-color",), None, "as --color never"),
    "utc": (("--utc",), None, "times on a terminal in UTC"),
    "no_progress": (("--no-progress",), None, "no bars"),
    "no_pager": (("--no-pager",), None, "no pager"),
    "yes": (("--yes", "-y"), None, "do it without a question"),
    "no_input": (("--no-input",), None, "never ask"),
    "read_only": (("--read-only",), None, "take no lock, write nothing [env: TXLOG_READ_ONLY]"),
    "lock_timeout": (("--lock-timeout",), "DUR", "how long to wait for a lock (the store's, 30s)"),
    "now": (("--now",), "TIME", "the clocks of this process stand still [env: TXLOG_NOW]"),
    "version": (("--version", "-V"), None, "the version"),
}
_HIDING: Final = "\0"  # no word of a command line can contain it
COUNTED: Final = frozenset(("quiet", "verbose"))
REHEARSAL: Final = ("--dry-run", "print the planned changes, change nothing")


class Option:
    """A flag: its spellings (`--active/--no-active` has two) and its help.

    min, max:  bounds of a number
    choices:   the words that it takes; the command refuses others
    reads:     converts the text in the line, or the list of texts, to the value of the command
    reads_now: the same; its second argument is the time of the call, in ms
    many:      the flag may be repeated; without `reads` its hint decides this
    default:   the text to read if the flag is missing
    alone:     the text to read if the flag has no value; the next word is one if it is a duration
    """

    __slots__ = (
        *("alone", "choices", "default", "help", "hidden", "many", "max", "metavar", "min"),
        *("reads", "reads_now", "show_default", "words"),
    )

    def __init__(
        self,
        *words: str,
        metavar: str | None = None,
        help: str | None = None,
        min: int | None = None,
        max: int | None = None,
        hidden: bool = False,
        show_default: bool = True,
        choices: tuple[str, ...] = (),
        reads: Callable[[Any], object] | None = None,
        reads_now: Callable[[str, int], object] | None = None,
        many: bool = False,
        default: str | None = None,
        alone: str | None = None,
    ) -> None:
        self.words, self.alone = words, alone
        self.metavar, self.help, self.hidden = metavar or "|".join(choices) or None, help, hidden
        self.min, self.max, self.choices = min, max, choices
        self.show_default, self.default = show_default, default
        self.reads, self.reads_now, self.many = reads, reads_now, many

    def read(self, call: Call, value: object) -> object:
        """Convert a value in the line to the value that the command gets. Raises as `reads`."""
        if self.choices:
            call.check_choice(self.words[0], str(value), self.choices)
        if self.reads_now is not None:
            return self.reads_now(str(value), call.now_ms())
        return value if self.reads is None else self.reads(value)


class Argument:
    """A word that is not a flag; a list takes all remaining words."""

    __slots__ = ("help", "metavar", "reads", "reads_now", "show_default")

    def __init__(
        self,
        *,
        metavar: str | None = None,
        help: str | None = None,
        show_default: bool = True,
        reads: Callable[[Any], object] | None = None,
        reads_now: Callable[[str, int], object] | None = None,
    ) -> None:
        self.metavar, self.help, self.show_default = metavar, help, show_default
        self.reads, self.reads_now = reads, reads_now

    def read(self, call: Call, value: object) -> object:
        """Convert a word of the line to the value that the command gets."""
        if self.reads_now is not None:
            return self.reads_now(str(value), call.now_ms())
        return value if self.reads is None else self.reads(value)


# The flags whose value is a duration or an instant, in ms: no command parses such a text itself.
Duration = partial(Option, metavar="DUR", reads=parse_duration)
Time = partial(Option, metavar="TIME", reads_now=parse_time)


def pause_of(text: str) -> int:
    """A pause between two looks, in ms; raises InvalidArgument (203) for none."""
    pause_ms = parse_duration(text)
    if pause_ms == 0:
        raise InvalidArgument("a pause must be longer than 0", code=203)
    return pause_ms


Watch = Annotated[
    int | None,
    Duration(
        "--watch", metavar="[DUR]", reads=pause_of, alone="2s", help="repeat every DUR (alone: 2s)"
    ),
]


def declared(option: Option) -> tuple[str, ...]:
    """The spellings of a flag, long ones first: --partition -p."""
    names = [word for each in option.words for word in each.split("/")]
    return tuple(sorted(names, key=lambda word: not word.startswith("--")))


class Command:
    """One command of the table: a function, and its part of help and `-f help`.

    short:   its line in the help of its noun
    rows:    the type of its rows below base/rows, as topics.TopicRow: the fields of its JSON
    until:   the last column of the default table; empty: all fields are columns
    without: fields of the row that it does not print
    records: it prints messages instead of rows
    more:    returns the text of `-f help` after the fields
    changes: it changes a store: it prints one result object, and only with --json
    input_format: the command itself declares -f and --format
    dry_run: it can be rehearsed: --dry-run, and `dry_run` in its result
    loses:   its possible loss: `work`, such as acknowledgements and open transactions, or `data`;
             `nothing` for one that writes and has no `changes`
    asks:    it asks for consent before it acts, unless --yes is given
    times:   an argument is a TIME, so that a word like -3m is not a flag
    options: the struct that the function takes; without it, it takes each parameter by itself
    """

    def __init__(
        self,
        path: str,
        short: str,
        *,
        examples: tuple[str, ...] = (),
        rows: str = "",
        or_rows: str = "",
        until: str = "",
        without: str = "",
        records: bool = False,
        more: Callable[[], str] | None = None,
        changes: bool = False,
        input_format: bool = False,
        dry_run: bool = False,
        loses: str = "",
        asks: bool = False,
        times: bool = False,
        options: type[msgspec.Struct] | None = None,
    ) -> None:
        self.path = path
        self.short = short
        self.examples = examples
        self.row = rows
        self._other_row = or_rows
        self._until = until
        self._without = without.split()
        self.records = records
        self.more = more
        self.changes = changes
        self.input_format = input_format
        self.dry_run = dry_run
        self.loses = loses
        self.asks = asks
        self.times = times
        self.options = options

    def __call__(self, function: Callable[..., None]) -> Command:
        """Keep the decorated function, and return this object in its place."""
        self.function = function
        return self

    @cached_property
    def row_fields(self) -> list[Field]:
        """The fields of its row that it prints, `dry_run` last; empty: it declares no row."""
        if not self.row:
            return []
        rows = importlib.import_module("txlog.base.rows.fields")
        declared: list[Field] = rows.fields_of(rows.row_of(self.row))
        printed = [field for field in declared if field.name not in (*self._without, "dry_run")]
        of_row = [field for field in declared if field.name == "dry_run"]
        return printed + (of_row or [rows.DRY_RUN] * self.dry_run)

    @property
    def level(self) -> int:
        """How much it can lose: 0 it only reads, 1 changes, 2 loses work, 3 loses data."""
        return {"nothing": 1, "work": 2, "data": 3}.get(self.loses, int(self.changes))

    @property
    def fields(self) -> list[str]:
        """The names of the fields in `row_fields`."""
        return [field.name for field in self.row_fields]

    @property
    def other_fields(self) -> list[str]:
        """The names of the fields of the row that it prints instead, with some arguments."""
        if not self._other_row:
            return []
        rows = importlib.import_module("txlog.base.rows.fields")
        return [field.name for field in rows.fields_of(rows.row_of(self._other_row))]

    @property
    def table_fields(self) -> list[str]:
        """The columns of its default table."""
        names = [name for name in self.fields if name != "dry_run"]
        return names[: names.index(self._until) + 1] if self._until else names

    @cached_property
    def hints(self) -> dict[str, Any]:
        """The hints of the parameters, in order: fields of `options`, or parameters after `call`.

        They are stored as text; the module of a parameter defines every name in its hint. The
        options of a struct come before its base's options.
        """
        if self.options is None:
            plain = cast(FunctionType, self.function)
            code, texts = plain.__code__, plain.__annotations__
            names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
            own = {name: eval(texts[name], plain.__globals__) for name in names}  # noqa: S307
            return {name: _of_line(hint) for name, hint in own.items()}
        hints: dict[str, Any] = {}
        for part in self.options.__mro__[:-2]:
            module = vars(sys.modules[part.__module__])
            for name, text in part.__annotations__.items():
                hints.setdefault(name, eval(text, module))  # noqa: S307
        return {
            name: _of_line(hint) for name, hint in hints.items() if hasattr(hint, "__metadata__")
        }

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """The defaults by parameter, unconverted; required parameters have no entry."""
        if self.options is None:
            plain = cast(FunctionType, self.function)
            code, values = plain.__code__, plain.__defaults__ or ()
            names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
            texts = {**dict(zip(names, values, strict=True)), **(plain.__kwdefaults__ or {})}
            for name, hint in self.hints.items():
                text = getattr(hint.__metadata__[0], "default", None)
                if text is not None:
                    texts[name] = text
            return texts
        fields, values = self.options.__struct_fields__, self.options.__struct_defaults__
        of_fields = dict(zip(fields[len(fields) - len(values) :], values, strict=True))
        defaults: dict[str, Any] = {}
        for name, hint in self.hints.items():
            text = getattr(hint.__metadata__[0], "default", None)
            value = of_fields.get(name, msgspec.NODEFAULT)
            if text is not None or value is not msgspec.NODEFAULT:
                plain_value = value if isinstance(value, bool | int | str) else None
                defaults[name] = plain_value if text is None else text
        return defaults

    def run(self, call: Call, values: dict[str, Any]) -> None:
        """Call the function with the values of a line, or with the options read from them.

        raises: Usage, InvalidArgument, and the errors of the command
        """
        fields: dict[str, object] = {}
        for name, hint in self.hints.items():
            if values[name] is not None:
                fields[name] = hint.__metadata__[0].read(call, values[name])
            elif name not in self.defaults:
                fields[name] = None  # only with -f help
        if self.options is None:
            self.function(call, **{**values, **fields})
        else:
            self.function(call, self.options(**fields))

    def words(self, values: Mapping[str, Any]) -> list[str]:
        """A command line, as words, that gives the command these values."""
        flags, arguments = [], []
        for name, hint in self.hints.items():
            value, declaration = values[name], hint.__metadata__[0]
            if value is None or value is False:
                continue
            texts = value if isinstance(value, list) else [value]
            if isinstance(declaration, Argument):
                arguments += [str(text) for text in texts]
            elif value is True:
                flags.append(declaration.words[0])
            else:
                flags += [f"{declaration.words[0]}={text}" for text in texts]
        return [*self.path.split(), *flags, "--", *arguments]


command: Final = Command  # as the decorator of its function


def _of_line(hint: Any) -> Any:
    """The hint of a field, with the type of its value before `reads` converts it."""
    declaration = hint.__metadata__[0]
    if declaration.reads is None and getattr(declaration, "reads_now", None) is None:
        return hint
    kind = list[str] | None if getattr(declaration, "many", False) else str | None
    return Annotated[kind, declaration]


def check_numbers(values: Mapping[str, object]) -> None:
    """Refuse numbers beyond signed 64 bits: files and tables cannot hold them.

    raises: Usage (201)
    """
    for name, value in values.items():
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and not -(1 << 63) <= number < 1 << 63:
                digits = str(number) if abs(number) < 10**30 else "a number of many digits"
                raise Usage(f"{name.replace('_', '-')} is {digits}, it must be below 2^63")


def exclusive(**given: object) -> None:
    """Refuse more than one of the given flags.

    given: flag name with `_` for `-`, and its value; None, False, 0 and empty count as not given
    raises: Usage (201)
    """
    conflicting = [
        name if name.isupper() else f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"
        for name, value in given.items()
        if value
    ]
    if len(conflicting) > 1:
        raise Usage(f"{' and '.join(conflicting)} exclude each other")


# --- lines that are certainly correct --------------------------------------------------------


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
    """A text of Typer's with words as before hidden_times; Typer may have escaped the mark."""
    return message.replace(_HIDING, "").replace(repr(_HIDING)[1:-1], "")


def spelled_out(command: Command, args: list[str]) -> list[str]:
    """Write the value of each flag that may be alone: `--watch` becomes `--watch=2s`.

    Both parsers then see a flag with a value. The next word is its value only if it is a duration,
    so that `--watch orders` and `--watch 5s orders` both name a topic.
    """
    texts = {
        word: option.alone
        for option in (hint.__metadata__[0] for hint in command.hints.values())
        if isinstance(option, Option) and option.alone is not None
        for word in option.words
    }
    stop = args.index("--") if "--" in args else len(args)
    written: list[str] = []
    for word in args[:stop]:
        before = written[-1] if written else ""
        if before in texts:
            written[-1] = f"{before}={word if _is_duration(word) else texts[before]}"
            if _is_duration(word):
                continue
        written.append(word)
    if written and written[-1] in texts:
        written[-1] += f"={texts[written[-1]]}"
    return [*written, *args[stop:]]


def _is_duration(word: str) -> bool:
    try:
        parse_duration(word)
    except InvalidArgument:
        return False
    return True


SWITCH, COUNT, TEXT, NUMBER, TEXTS, NUMBERS = range(6)
_KINDS: Final[dict[Any, int]] = {
    bool: SWITCH, bool | None: SWITCH, str: TEXT, str | None: TEXT, int: NUMBER,
    int | None: NUMBER, list[str]: TEXTS, list[str] | None: TEXTS, list[int]: NUMBERS,
    list[int] | None: NUMBERS,
}  # fmt: skip


class _NotPlain(Exception):
    """This parser gives up on the line."""


class _Flag:
    """A flag of one command: the parameter it sets, its kind and its bounds."""

    __slots__ = ("kind", "max", "min", "name", "value")

    def __init__(
        self,
        name: str,
        kind: int,
        value: bool = True,
        min: int | None = None,
        max: int | None = None,
    ) -> None:
        self.name, self.kind, self.value, self.min, self.max = name, kind, value, min, max

    def take(self, values: dict[str, Any], text: str) -> None:
        if self.kind == TEXT:
            values[self.name] = text
        elif self.kind == TEXTS:
            _add(values, self.name, text)
        elif self.kind == NUMBER:
            values[self.name] = _number(text, self.min, self.max)
        else:
            _add(values, self.name, _number(text, self.min, self.max))

    def switch(self, values: dict[str, Any]) -> None:
        values[self.name] = values.get(self.name, 0) + 1 if self.kind == COUNT else self.value

    @property
    def is_switch(self) -> bool:
        return self.kind in (SWITCH, COUNT)


def parse(command: Command, args: list[str]) -> dict[str, Any] | None:
    """Values for the command's parameters and the global flags; None: Typer must parse the line."""
    try:
        return _parse(command, args)
    except _NotPlain:
        return None


def _parse(command: Command, args: list[str]) -> dict[str, Any]:
    flags: dict[str, _Flag] = {}
    arguments: list[tuple[str, int]] = []
    values: dict[str, Any] = {}
    for name, (names, metavar, _) in GLOBAL_FLAGS.items():
        if name == "format" and command.input_format:
            continue
        kind = COUNT if name in COUNTED else SWITCH if metavar is None else TEXT
        values[name] = {COUNT: 0, SWITCH: False, TEXT: None}[kind]
        _declare(flags, names, name, kind, None)
    if command.dry_run:
        values["dry_run"] = False
        _declare(flags, REHEARSAL[:1], "dry_run", SWITCH, None)
    hints = command.hints
    for name, hint in hints.items():
        kind = _KINDS.get(hint.__origin__, -1)
        declared = hint.__metadata__[0]
        if kind < 0:
            raise _NotPlain
        if isinstance(declared, Option):
            _declare(flags, declared.words, name, kind, declared)
        else:
            assert isinstance(declared, Argument)
            arguments.append((name, kind))
    values_found: dict[str, Any] = {}
    _arguments(arguments, _flags(flags, args, values_found), values_found)
    defaults = command.defaults
    missing = [name for name in hints if name not in values_found and name not in defaults]
    if missing and values_found.get("chosen_form" if command.input_format else "format") != "help":
        raise _NotPlain
    # `-f help` prints the fields and requires nothing: the command does not run.
    return {**values, **defaults, **dict.fromkeys(missing), **values_found}


def _declare(
    flags: dict[str, _Flag], names: tuple[str, ...], name: str, kind: int, option: Option | None
) -> None:
    low, high = (None, None) if option is None else (option.min, option.max)
    for word in names:
        if not word.startswith("-"):
            raise _NotPlain
        first, _, second = word.partition("/")
        flags[first] = _Flag(name, kind, True, low, high)
        if second:
            flags[second] = _Flag(name, kind, False)


def _flags(flags: dict[str, _Flag], args: list[str], values: dict[str, Any]) -> list[str]:
    """Move the flags of args into values; return the other words."""
    arguments: list[str] = []
    at, stop = 0, len(args)
    while at < stop:
        word = args[at]
        at += 1
        if word == "--":
            return arguments + args[at:]
        if word[:1] != "-" or word == "-" or word[1].isdigit():  # no flag is a digit: -1 is a value
            arguments.append(word)
        elif word[:2] == "--":
            name, equals, text = word.partition("=")
            flag = flags.get(name)
            if flag is None or (flag.is_switch and equals):
                raise _NotPlain
            if flag.is_switch:
                flag.switch(values)
                continue
            if not equals:
                if at == stop:
                    raise _NotPlain
                text = args[at]
                at += 1
            flag.take(values, text)
        else:
            at = _letters(flags, args, at, values)
    return arguments


def _letters(flags: dict[str, _Flag], args: list[str], at: int, values: dict[str, Any]) -> int:
    """Parse the one-letter flags in the word at `at` - 1; return the index of the next word."""
    word = args[at - 1]
    for index in range(1, len(word)):
        flag = flags.get(f"-{word[index]}")
        if flag is None:
            raise _NotPlain
        if flag.is_switch:
            flag.switch(values)
            continue
        if index + 1 < len(word):
            flag.take(values, word[index + 1 :])
        elif at == len(args):
            raise _NotPlain
        else:
            flag.take(values, args[at])
            at += 1
        break
    return at


def _arguments(parameters: list[tuple[str, int]], args: list[str], values: dict[str, Any]) -> None:
    """Assign args to the parameters, in order; a list comes last and takes all remaining words."""
    for at, (name, kind) in enumerate(parameters):
        many = kind in (TEXTS, NUMBERS)
        if many and at + 1 < len(parameters):
            raise _NotPlain
        chosen, args = (args, []) if many else (args[:1], args[1:])
        if chosen:
            converted = (
                chosen if kind in (TEXT, TEXTS) else [_number(word, None, None) for word in chosen]
            )
            values[name] = converted if many else converted[0]
    if args:
        raise _NotPlain


def _number(text: str, low: int | None, high: int | None) -> int:
    try:
        number = int(text)
    except ValueError:
        raise _NotPlain from None
    if (low is not None and number < low) or (high is not None and number > high):
        raise _NotPlain
    return number


def _add(values: dict[str, Any], name: str, value: object) -> None:
    values.setdefault(name, []).append(value)

"""Owns one call of a command: global flags and environment, the store, the clock, diagnostics.

Below it are the functions that several commands share: the question before irreversible changes,
several targets in one call, a pager for long texts, a file outside any store.

A flag overrides a variable, a variable the default. The store is the first of: -S; TXLOG_STORE; the
nearest directory upwards with a `txlog.toml`; the store of the profile; `./txlog-store`.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

import msgspec

from txlog.base.choices import Durability
from txlog.base.ids import TxnId
from txlog.base.settings import Settings
from txlog.base.times import parse_duration, parse_time
from txlog.cli.call import environment, version
from txlog.cli.output import output as described
from txlog.cli.output.output import Output, output_for
from txlog.cli.terminal import say as saying
from txlog.cli.terminal.say import Report
from txlog.cli.terminal.signals import shielded
from txlog.client import open as opening
from txlog.clock import Clock, ManualClock, SystemClock
from txlog.engine.door import relation
from txlog.errors import (
    DiskFailed,
    InvalidArgument,
    NotFound,
    PartlyDone,
    ReadOnlyStore,
    Refused,
    StoreNotFound,
    TxlogError,
    Usage,
    printable,
)

if TYPE_CHECKING:
    from pathlib import Path

    from txlog.client.client import Client
    from txlog.engine.door.relation import RelationReader

T = TypeVar("T")
STORE_FILE: Final = "txlog.toml"
STORE_DEFAULT: Final = "txlog-store"
UserSettings = Mapping[str, tuple[str | bool, str]]
_USUAL: Final[dict[str, str | bool | None]] = {
    "format": "auto", "color": "auto", "utc": False, "log_format": "text", "log_file": None,
    "lock_timeout": None,
    "no_progress": False, "no_pager": False, "no_input": False,
}  # fmt: skip
# What to do after a listing without rows.
_EMPTY: Final[dict[str, str]] = {
    "topic list": "no topics yet: txlog topic create NAME",
    "topic stats": "no messages yet: txlog produce TOPIC",
    "sub list": "no subscriptions yet: txlog sub create NAME -t TOPIC",
    "txn list": "no transactions to list: txlog txn begin, or txlog txn list -h for the filters",
    "delay list": "no delayed messages: txlog produce TOPIC --deliver-after 10m",
    "schema versions": "no schema: txlog schema upload TOPIC FILE",
    "watermark show": "no watermarks: txlog produce TOPIC --watermark-from event-time",
    "admin list-transaction-keys": "no transaction keys: txlog txn connect KEY takes one",
    "admin locks": "nobody holds a lock",
    "dlq list": "no dead letters",
    "segment list": "no files yet: messages are in the journal until txlog admin checkpoint",
}
_LINE: Final = re.compile(r"\btxlog (?=([a-z]+)\b)")
_LEVELS: Final = {"error": (2, 0), "warning": (1, 0), "info": (0, 0), "debug": (0, 1)}


class Globals(msgspec.Struct):
    """The values of the global flags."""

    store: str | None = None
    profile: str | None = None
    format: str | None = None
    json: bool = False
    columns: str | None = None
    quiet: int = 0
    verbose: int = 0
    log_format: str | None = None
    log_file: str | None = None
    color: str | None = None
    no_color: bool = False
    utc: bool = False
    no_progress: bool = False
    no_pager: bool = False
    yes: bool = False
    no_input: bool = False
    read_only: bool = False
    lock_timeout: str | None = None
    now: str | None = None
    version: bool = False


class Described(described.Described, Protocol):
    """The facts that a call needs about its command."""

    function: Any
    more: Callable[[], str] | None
    dry_run: bool

    def run(self, call: Call, values: dict[str, Any]) -> None:
        """Call its function with the values of a line."""

    def words(self, values: Mapping[str, Any]) -> list[str]:
        """Return a command line, as words, that gives the command these values."""


class Line(Protocol):
    """The last line of a terminal, which may show a bar."""

    def aside(self) -> AbstractContextManager[None]:
        """Remove the bar while a block runs."""


class Call:
    """One run of one command."""

    def __init__(
        self,
        command: Described,
        flags: Globals,
        report: Report,
        *,
        dry_run: bool = False,
        commands: Collection[str] = (),
    ) -> None:
        self.command = command
        self._commands = commands  # the first words of the commands that open a store
        self.dry_run = dry_run
        self.flags = flags
        self.report = report
        self.exit = 0
        self.started = time.monotonic()
        self._stack = ExitStack()
        self._clock: Clock | None = None
        self.line: Line | None = None  # set while a bar is drawn
        self.values: dict[str, Any] = {}  # of the command's parameters, as in the line
        report.json = report.json or flags.json
        report.edit = self.for_this_store
        self.user = user_settings(profile_of(flags))
        if flags.no_color:
            flags.color = "never"
        self._take_user_settings()
        self.check_choice("--color", flags.color, ("auto", "always", "never"))
        report.color = flags.color or "auto"
        self.check_choice("--log-format", flags.log_format, ("text", "json"))
        self.clock = self._make_clock()
        self.lock_timeout_ms = self._lock_timeout()  # None: the store's own setting
        self.read_only = flags.read_only or truthy("TXLOG_READ_ONLY")
        environ = self._with_user_format()
        self.output: Output = output_for(command, flags, environ)
        if command.dry_run:
            self.output.extra["dry_run"] = dry_run
        wants_json = flags.format in ("json", "ndjson") and not command.input_format
        report.json = report.json or wants_json

    def run(self, values: dict[str, Any]) -> int:
        """Run the command with its own values and close its resources; return the exit code."""
        self.values = values
        if self.flags.version:
            self.output.text(version.as_json() if self.flags.json else version.as_text())
        elif self.output.form == "help":
            self.output.field_help()
            if self.command.more is not None:
                self.output.drawn(self.command.more())
        else:
            if self.flags.log_file is not None:
                saying.begin_log(self.flags.log_file)
            with self._stack:
                self.command.run(self, values)
            if self.output.is_empty and self.command.path in _EMPTY:
                self.output.out.flush()
                self.note(_EMPTY[self.command.path])
        self.output.out.flush()
        return self.exit

    def client(self, *, write: bool = False, durability: str | None = None) -> Client:
        """Open the store; at the end of the command, close it and print its notes.

        write:  the command changes the store
        raises: ReadOnlyStore (409) for a changing command with --read-only; the errors of opening
        """
        path = self.store_path()
        self.report.store = os.path.abspath(path)
        if write and self.read_only:
            raise ReadOnlyStore(f"{self.command.path} changes the store, and it is read-only")
        client = opening.open_store(
            path,
            read_only=self.read_only,
            clock=self.clock,
            lock_timeout_ms=self.lock_timeout_ms,
            durability=self.durability(durability),
            dry_run=self.dry_run,
        )
        self._stack.callback(self._close, client)
        self._settle_lock_timeout(client)
        return client

    def enter(self, context: AbstractContextManager[T]) -> T:
        """Enter a context that is left when the command ends."""
        return self._stack.enter_context(context)

    def spooled(self, files: Sequence[str]) -> list[str]:
        """Files to read twice: for `-` a copy of standard input, which goes with the command."""
        if "-" not in files:
            return [*files]
        folder = importlib.import_module("tempfile").TemporaryDirectory(prefix="txlog-")
        copy = os.path.join(self.enter(folder), "stdin")
        with open(copy, "wb") as file:
            if sys.stdin is not None:
                importlib.import_module("shutil").copyfileobj(sys.stdin.buffer, file)
        return [copy if path == "-" else path for path in files]

    def relations(self) -> RelationReader:
        """Open the store for SQL over its messages, which imports less than a client does."""
        path = self.store_path()
        self.report.store = os.path.abspath(path)
        reader = relation.open_relations(
            path,
            read_only=self.read_only,
            clock=self.clock,
            lock_timeout_ms=self.lock_timeout_ms,
        )
        self._stack.callback(self._close, reader)
        self._settle_lock_timeout(reader)
        return reader

    def _close(self, client: RelationReader) -> None:
        with shielded():
            client.close()
        for line in client.reports():
            self.warn(line)

    def now_ms(self) -> int:
        """The wall clock, or --now."""
        return self.clock.now().wall_ms

    def elapsed_ms(self) -> int:
        """Milliseconds since the command began; --now does not stop them."""
        return int((time.monotonic() - self.started) * 1000)

    def durability(self, flag: str | None = None) -> Durability | None:
        """Return `sync`, `os`, or None for the store's own setting."""
        word = flag or os.environ.get("TXLOG_DURABILITY") or None
        self.check_choice("--durability" if flag else "TXLOG_DURABILITY", word, ("sync", "os"))
        return cast("Durability | None", word)

    def check_choice(self, flag: str, value: str | None, choices: tuple[str, ...]) -> None:
        """Raise Usage (201) for a value that is not None and not one of the choices."""
        if value is not None and value not in choices:
            excerpt = value if len(value) <= 40 else f"{value[:37]}..."
            raise Usage(f'{flag} is {"|".join(choices)}, not "{excerpt}"')

    def txn_of(self, flag: str | None, *, no_join: bool = False) -> TxnId | None:
        """Return the transaction to join: --txn-id, else TXLOG_TXN unless --no-join."""
        if flag is not None:
            return TxnId.parse(flag)
        if no_join or not os.environ.get("TXLOG_TXN"):
            return None
        return of_variable("TXLOG_TXN", TxnId.parse)

    def summary(self, text: str) -> None:
        """Print a summary of the change; not with -q, and not with --json."""
        if self.flags.quiet < 1 and not self.output.as_json:
            self._say("info", text, _rehearsed(text) if self.dry_run else "")

    def say(self, text: str) -> None:
        """Print a report that the user requested by an option, on stderr; not with -q."""
        if self.flags.quiet < 1:
            self._say("info", text)

    def note(self, text: str) -> None:
        """Print a hint: on a terminal, or with -v."""
        if self.flags.quiet < 1 and (self.flags.verbose or is_terminal(2)):
            self._say("note", text)

    def warn(self, text: str) -> None:
        """Warn that something may be wrong; only -qq silences it."""
        if self.flags.quiet < 2:
            self._say("warning", text)

    def stopped(self, exit: int, text: str, facts: Mapping[str, object]) -> None:
        """Report how far a command got before a signal ended it; only -qq silences it.

        With --json it is one object on stderr, like an error (spec/cli 5), but without a TXL code.
        """
        if self.flags.quiet >= 2:
            return
        text = printable(f"{'interrupted' if exit == 130 else 'terminated'}: {text}")
        if self.report.json or self.flags.log_format == "json":
            report: dict[str, object] = {"exit": exit, "message": text}
            for name, value in facts.items():
                report[name] = str(value) if isinstance(value, TxnId) else value
            saying.say(saying.as_json({"interrupted": report}) + "\n")
        else:
            self._say("info", text)

    def for_this_store(self, text: str) -> str:
        """A text whose lines `txlog …` can be pasted: with the -S or --profile of this call."""
        flags = [("-S", self.flags.store), ("--profile", self.flags.profile)]
        return with_flags(text, [(flag, value) for flag, value in flags if value], self._commands)

    def store_path(self) -> str:
        """Return the path of the store (spec/cli 3).

        raises: StoreNotFound (301)
        """
        return self.found_store()[0]

    def found_store(self) -> tuple[str, str]:
        """Return the path of the store, and its origin: a flag, variable, file or default.

        raises: StoreNotFound (301)
        """
        return find_store(self.flags, self.user)

    def settings_in_force(self) -> list[dict[str, Any]]:
        """The user's settings that apply, except the store; {name, value, origin}."""
        variables = {
            "format": "TXLOG_FORMAT",
            "color": "NO_COLOR",
            "no_input": "TXLOG_NO_INPUT",
            "no_progress": "TXLOG_NO_PROGRESS",
            "lock_timeout": "TXLOG_LOCK_TIMEOUT",
        }
        rows: list[dict[str, Any]] = []
        for name, usual in _USUAL.items():
            flag_value = getattr(self.flags, name)
            value, origin = self.user.get(name, (usual, "built in"))
            variable = variables.get(name, "")
            if os.environ.get(variable):
                value, origin = ("never" if name == "color" else os.environ[variable]), variable
            if flag_value and name not in self.taken:
                value, origin = flag_value, f"--{name.replace('_', '-')}"
            text = str(value).lower() if isinstance(value, bool) else str(value or "")
            rows.append({"name": name, "value": text, "origin": origin})
        return rows

    def _take_user_settings(self) -> None:
        """Fill in settings of config.toml that neither a flag nor a variable sets."""
        self.taken: set[str] = set()
        color_variables = ("NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "FORCE_COLOR")
        for name, (value, _) in self.user.items():
            if name in ("store", "format", "lock_timeout") or getattr(self.flags, name):
                continue
            if name == "color" and any(os.environ.get(each) for each in color_variables):
                continue
            setattr(self.flags, name, value)
            self.taken.add(name)
        if truthy("TXLOG_NO_INPUT"):
            self.flags.no_input = True
            self.taken.add("no_input")
        level = os.environ.get("TXLOG_LOG")
        if level and not self.flags.quiet and not self.flags.verbose:
            self.check_choice("TXLOG_LOG", level, tuple(_LEVELS))
            self.flags.quiet, self.flags.verbose = _LEVELS[level]

    def _with_user_format(self) -> Mapping[str, str]:
        """The environment, with config.toml's format as TXLOG_FORMAT: it applies where it fits."""
        if "format" not in self.user or os.environ.get("TXLOG_FORMAT"):
            return os.environ
        return {**os.environ, "TXLOG_FORMAT": str(self.user["format"][0])}

    def _make_clock(self) -> Clock:
        system = SystemClock()
        text = self.flags.now or os.environ.get("TXLOG_NOW")
        if not text:
            return system
        real = system.now()
        if self.flags.now:
            wall_ms = parse_time(text, real.wall_ms)
        else:
            wall_ms = of_variable("TXLOG_NOW", lambda word: parse_time(word, real.wall_ms))
        # The boot clock keeps the machine's distance from the wall clock, so that deadlines of
        # calls with and without --now agree; whole seconds, so that they repeat.
        distance_s = (real.wall_ms - real.boot_ms + 500) // 1000
        return ManualClock(wall_ms, real.boot_id, wall_ms - distance_s * 1000)

    def _lock_timeout(self) -> int | None:
        if self.flags.lock_timeout:
            return parse_duration(self.flags.lock_timeout)
        if not os.environ.get("TXLOG_LOCK_TIMEOUT"):
            return None
        return of_variable("TXLOG_LOCK_TIMEOUT", parse_duration)

    def usual_lock_timeout_ms(self) -> int:
        """The lock time-out when no flag, variable or store sets one."""
        if "lock_timeout" in self.user:
            return parse_duration(str(self.user["lock_timeout"][0]))
        return Settings().lock_timeout_ms

    def _settle_lock_timeout(self, client: RelationReader) -> None:
        """Use the user's lock time-out, unless a flag, a variable or the store sets another."""
        if self.lock_timeout_ms is None and "lock_timeout" in self.user:
            usual_ms = self.usual_lock_timeout_ms()
            if client.lock_timeout_ms == Settings().lock_timeout_ms:
                client.wait_for_locks(usual_ms)

    def _say(self, level: str, text: str, prefix: str = "") -> None:
        text = printable(self.for_this_store(text))
        line = f"{prefix}{text}"
        if level != "info":
            choice = "never" if self.flags.log_file is not None else self.flags.color or "auto"
            line = f"{saying.marked(level, choice, os.environ)}{text}"
        if self.flags.log_format == "json" and level != "info":
            line = json.dumps({"level": level, "message": text}, ensure_ascii=False)
        with nullcontext() if self.line is None else self.line.aside():
            self._write(line, level)

    def _write(self, line: str, level: str) -> None:
        if self.flags.log_file is not None and level != "info":
            saying.log(self.flags.log_file, line)
            return
        if is_terminal(1) and is_terminal(2):
            self.output.out.flush()  # on a terminal, messages must follow the data they are about
        saying.say(line + "\n")


def with_flags(text: str, flags: Sequence[tuple[str, str]], commands: Collection[str]) -> str:
    """A text whose lines `txlog COMMAND …` have these flags, unless it has them somewhere."""
    if not flags or "txlog " not in text:
        return text
    quote = importlib.import_module("shlex").quote
    words = " ".join(f"{flag} {quote(value)}" for flag, value in flags)
    if words in text:
        return text
    return _LINE.sub(lambda line: f"txlog {words} " if line[1] in commands else line[0], text)


# --- words and variables --------------------------------------------------------------------------


def of_variable(name: str, read: Callable[[str], T]) -> T:
    """Read the value of an environment variable.

    raises: the errors of `read`, with the variable's name, as the command line does not show it
    """
    try:
        return read(os.environ[name])
    except InvalidArgument as error:
        error.message = f"{name}: {error.message}"
        raise


def split_key(text: str | None) -> tuple[str | None, str | None]:
    """Return owner and key of OWNER&KEY; of KEY, None and KEY. Raises InvalidArgument (202)."""
    if text is None or "&" not in text:
        return None, text
    owner, _, key = text.partition("&")
    if not owner:
        raise InvalidArgument("OWNER&KEY begins with an owner", code=202)
    return owner, key


def utf8(word: str, name: str) -> str:
    """Return an argument as text, in any locale: its bytes must be UTF-8.

    raises: InvalidArgument (201)
    """
    try:
        return os.fsencode(word).decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{name} is not UTF-8") from error


def encoded(words: Sequence[str]) -> list[bytes]:
    """Return the original bytes of each argument."""
    return [os.fsencode(word) for word in words]


def properties(pairs: Sequence[str]) -> dict[str, str]:
    """Return K=V words as a mapping.

    raises: InvalidArgument (201)
    """
    mapping: dict[str, str] = {}
    for word in pairs:
        name, equals, value = utf8(word, "--prop").partition("=")
        if not equals or not name:
            raise InvalidArgument("--prop is K=V")
        mapping[name] = value
    return mapping


def truthy(name: str) -> bool:
    """Return whether an environment switch is set."""
    return os.environ.get(name, "") not in ("", "0", "false", "no")


def is_terminal(number: int) -> bool:
    """Return whether a standard stream is a terminal."""
    try:
        return os.isatty(number)
    except OSError:
        return False


# --- the user's settings and the store (spec/cli 3) -----------------------------------------------


def profile_of(flags: Globals) -> str | None:
    """The profile that a flag names, else the one that a variable names."""
    return flags.profile or os.environ.get("TXLOG_PROFILE") or None


def user_settings(profile: str | None) -> UserSettings:
    """The settings of config.toml, name -> (value, origin); without a file no reader is imported.

    raises: InvalidArgument (201) for a bad file; NotFound (308) for a missing profile
    """
    home = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(home):  # the XDG standard ignores a relative path
        home = os.path.expanduser("~/.config")
    if profile is None and not os.path.exists(os.path.join(home, "txlog", "config.toml")):
        return {}
    return environment.read_config(os.environ, profile)


def find_store(flags: Globals, user: UserSettings) -> tuple[str, str]:
    """Return the path of the store, and its origin: a flag, variable, file or default.

    raises: StoreNotFound (301); NotFound (308) for a profile without a store; InvalidArgument
    """
    if flags.store:
        return flags.store, "-S"
    if os.environ.get("TXLOG_STORE"):
        return os.environ["TXLOG_STORE"], "TXLOG_STORE"
    if flags.store == "":
        raise InvalidArgument("the path of the store is empty")
    try:
        directory = here = os.getcwd()
    except FileNotFoundError as error:
        raise StoreNotFound(
            "no store here: the working directory was deleted", hint="-S PATH names one"
        ) from error
    while not os.path.isfile(os.path.join(directory, STORE_FILE)):
        above = os.path.dirname(directory)
        if above == directory:
            break
        directory = above
    else:
        return directory, "directory"
    if "store" in user:
        value, origin = user["store"]
        return str(value), origin
    if profile_of(flags) is not None:
        raise NotFound(f"profile {profile_of(flags)} names no store", setting="store")
    if os.path.isfile(os.path.join(here, STORE_DEFAULT, STORE_FILE)):
        return os.path.join(here, STORE_DEFAULT), "built in"
    raise StoreNotFound("no store here", hint="txlog init creates one; -S PATH names one")


# --- services of several commands -----------------------------------------------------------------


def _rehearsed(text: str) -> str:
    """The words before the summary of a rehearsal; `moved 1 message` is not done yet."""
    is_past = text.partition(" ")[0].endswith("ed")
    return "dry run: would have " if is_past else "dry run: "


def confirm(call: Call, act: str, rows: Sequence[str] = (), *, word: str | None = None) -> None:
    """Return only if the user agrees: by -y, or by y at the question on a terminal.

    act:  the change, beginning with a verb, as `delete topic orders`
    rows: its parts, such as the changes in each partition
    word: the word to type instead of y

    raises: Refused (901) before anything was done
    """
    if call.flags.yes:
        return
    if call.flags.no_input or not is_terminal(0):
        raise Refused(
            f"needs consent to {act}", code=901, hint="run it again with --yes", plan=[*rows]
        )
    plan = "\n  ".join([act, *rows])
    question = "go on? [y/N]" if word is None else f"type {word} to continue:"
    sys.stderr.write(f"{plan}\n{question} ")
    sys.stderr.flush()
    answer = sys.stdin.readline().strip()
    if not (answer.lower() in ("y", "yes") if word is None else answer == word):
        raise Refused("not confirmed, nothing was done", code=901, hint="run it again with --yes")


def each_target(names: Sequence[str], act: Callable[[str], None]) -> None:
    """Call act with every name.

    raises: the first error if no call succeeded; PartlyDone (701) if some did
    """
    done: list[str] = []
    failed: list[tuple[str, TxlogError]] = []
    for name in names:
        try:
            act(name)
            done.append(name)
        except TxlogError as error:
            if error.exit == 10:
                raise  # an unknown outcome is not a failure to list
            failed.append((name, error))
    if not failed:
        return
    if not done:
        raise failed[0][1]
    raise PartlyDone(
        f"{len(failed)} of {len(names)} failed: {failed[0][1].message}",
        done=[{"name": name} for name in done],
        failed_list=[
            {"name": name, "code": f"TXL-{error.code}", "message": error.message}
            for name, error in failed
        ],
    )


def say_when_it_applies(call: Call) -> None:
    """Print when retention policies take effect: setting one deletes nothing yet."""
    call.summary("each checkpoint applies them, also automatic ones; now: txlog admin checkpoint")


def show_text(call: Call, text: str) -> None:
    """Print text; between terminals through PAGER, or less, unless --no-pager."""
    pager_command: list[str] = importlib.import_module("shlex").split(
        os.environ.get("PAGER", "less")
    )
    if call.flags.no_pager or not pager_command or not (is_terminal(0) and is_terminal(1)):
        call.output.drawn(text)
        return
    # less ends by itself when the text fits the screen, and leaves the text there.
    environment = {"LESS": "FRX", **os.environ}
    subprocess = importlib.import_module("subprocess")
    try:
        pager = subprocess.Popen(pager_command, stdin=subprocess.PIPE, env=environment)
    except OSError:
        call.output.drawn(text)
        return
    pager.communicate(text.encode("utf-8", "surrogateescape"))


def install(call: Call, path: Path, text: str) -> bool:
    """Write a file if its bytes differ; print its result object; return whether it changed.

    raises: DiskFailed
    """
    data = text.encode("utf-8")
    try:
        changed = not path.is_file() or path.read_bytes() != data
        if changed:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Renamed, so that readers see the whole file; not flushed, as it can be recreated.
            temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            temporary.write_bytes(data)
            os.replace(temporary, path)
    except OSError as error:
        raise DiskFailed(f"{path}: {error.strerror or error}", path=str(path)) from error
    call.output.result({"path": str(path), "changed": changed})
    return changed

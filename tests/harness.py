"""Owns child processes of tests: a test runs one, reads its lines, kills it and starts it again.

Their programs are the files of tests/children. `python` runs one in a new interpreter. `ready`
forks it at once from a process that has imported txlog; a test that kills its child needs `python`.
Nothing sleeps: the test waits for a line or for an end, and after BOUND_S a child is killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from scripts import ready as server
from tests.source_tree import ROOT, SOURCE

SEED = int(os.environ.get("TXLOG_SEED", "20260101"))
BOUND_S, HOUR_S = 600, 3600
CHILDREN = ROOT / "tests" / "children"
KILLED = -signal.SIGKILL
NEVER = 1 << 30  # no program makes so many calls
UNWANTED = ("TXLOG", "PYTHONUNBUFFERED")  # settings that a child does not inherit

Command = Sequence[str]


def python(name: str, *words: object, flags: Sequence[str] = ("-P",)) -> list[str]:
    """The command for a program of tests/children in a new interpreter."""
    return [sys.executable, *flags, str(CHILDREN / f"{name}.py"), *map(str, words)]


def ready(name: str, *words: object) -> list[str]:
    """The command for a program of tests/children in a process that has imported txlog."""
    return [*server.python(), "-m", f"tests.children.{name}", *map(str, words)]


def txlog_of(store: object, *words: object) -> list[str]:
    """A command of txlog in a new interpreter."""
    return [sys.executable, "-m", "txlog", "-S", str(store), *map(str, words)]


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a child: without this process's TXLOG_… variables, and with `more`."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(UNWANTED)}
    return {**own, "PYTHONPATH": os.pathsep.join([str(SOURCE), str(ROOT)]), **(more or {})}


# --- to its end -----------------------------------------------------------------------------------


def run(
    command: Command,
    *,
    code: int | None = 0,
    where: str = "",
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, which must have this exit code; None allows any.

    where: begins the message of the failure
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": BOUND_S}
    done = subprocess.run(command, env=environment(env), check=False, **{**pipes, **options})
    assert code is None or done.returncode == code, (where, done.returncode, done.stderr)
    return done


def bench(scenario: str, folder: Path, *words: str) -> dict[str, Any]:
    """The figures of a scenario of `python -m bench`, which kills by a random seed."""
    seed = os.environ.get("TXLOG_SEED") or random.SystemRandom().randrange(1, 1 << 32)
    print("seed", seed)
    command = [sys.executable, "-m", "bench", scenario, "--seed", str(seed)]
    done = run([*command, "--where", str(folder), *words], cwd=ROOT)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def run_until_done(commands: Iterable[Command]) -> int:
    """Run commands until one is not killed; returns how many were killed before it."""
    for deaths, command in enumerate(commands):
        done = run(command, code=None)
        if done.returncode != KILLED:
            assert done.returncode == 0, done.stderr
            return deaths
    raise AssertionError("every run was killed")


def kill_in_calls(
    prepare: Callable[[str], Command], kills: int, least: int, label: str = ""
) -> Iterator[tuple[str, str]]:
    """Kill a program in its first and last call that changes a file, and in random others.

    Each run has a new store. `prepare` makes it under a name, and returns the command without its
    last word, the number of the call to die in (`tests.children.dying`). A run that reaches its end
    prints `answered CALLS`. Yields the name of each store, and a text for the failure's message.

    kills: about the number of runs that die; least: the program makes at least so many calls
    """
    whole = run([*prepare("whole"), str(NEVER)]).stdout.split()
    calls = int(whole[1])
    assert (whole[0], calls >= least) == ("answered", True), whole
    chance = random.Random(f"{SEED} {label}")
    others = chance.sample(range(2, calls), max(0, min(kills, calls) - 2))
    for nth in sorted({1, calls, *others}):
        where = f"seed {SEED}, {label} call {nth} of {calls}"
        run([*prepare(str(nth)), str(nth)], code=KILLED, where=where)
        yield str(nth), where


# --- while the test goes on -----------------------------------------------------------------------


class Child:
    """A process that runs while the test reads its lines; it ends with the `with` block.

    stream: stdout or stderr: the one whose lines are read; `other` has the text of the other
    group:  its own children die with it
    bound_s: kill it after this time
    heard:  the lines that were read so far
    """

    def __init__(
        self,
        command: Command,
        *,
        stream: str = "stdout",
        group: bool = False,
        bound_s: float = BOUND_S,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        self._other = tempfile.TemporaryFile("w+")  # noqa: SIM115 - `close` closes it
        streams = {"stdin": subprocess.PIPE, "stdout": self._other, "stderr": self._other}
        self._group = group
        self.heard: list[str] = []
        self.process: subprocess.Popen[str] = subprocess.Popen(
            command,
            text=True,
            env=environment(env),
            start_new_session=group,
            **{**streams, stream: subprocess.PIPE, **options},
        )
        self.pid = self.process.pid
        lines = self.process.stdout or self.process.stderr
        assert lines is not None
        self._lines = lines
        self._bound = threading.Timer(bound_s, self.process.kill)
        self._bound.daemon = True
        self._bound.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill it, if it still lives."""
        self._bound.cancel()
        if self.process.returncode is None or self._group:
            self.kill()
        self._close_stdin()
        self._lines.close()
        self._other.close()

    @property
    def other(self) -> str:
        """Its output to the stream whose lines are not read."""
        # opened again, as the child writes at the position of this descriptor
        return Path(f"/proc/self/fd/{self._other.fileno()}").read_text(errors="replace")

    def __iter__(self) -> Iterator[str]:
        """Its lines, without their ends, until it ends; without a line that a kill cut short."""
        for line in self._lines:
            if line.endswith("\n"):
                self.heard.append(line[:-1])
                yield line[:-1]

    def line(self) -> str:
        """Its next line."""
        return self.until("")

    def until(self, text: str) -> str:
        """Its next line with this text; raises AssertionError if it ends before."""
        for line in self:
            if text in line:
                return line
        code = self.process.wait()
        raise AssertionError(f"it ended with {code} before {text!r}: {self.heard} {self.other}")

    def tell(self, text: str = "") -> None:
        """Write a line to its stdin."""
        assert self.process.stdin is not None
        print(text, file=self.process.stdin, flush=True)

    def ask(self, text: str = "") -> str:
        """Write a line to its stdin; returns its next line."""
        self.tell(text)
        return self.line()

    def signal(self, number: int) -> None:
        """Send a signal."""
        os.killpg(self.pid, number) if self._group else self.process.send_signal(number)

    def stop(self) -> None:
        """Stop it; returns when the kernel reports that it is stopped."""
        self.signal(signal.SIGSTOP)
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def wake(self) -> None:
        """Let it go on after `stop`."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it by SIGKILL."""
        with suppress(ProcessLookupError):  # its group may be empty
            self.signal(signal.SIGKILL)
        self.process.wait()

    def end(self, number: int | None = None) -> tuple[int, str]:
        """Close its stdin, send it a signal if given; returns its exit code and remaining lines."""
        if number is not None:
            self.signal(number)
        self._close_stdin()
        rest = self._lines.read()
        return self.process.wait(), rest

    def _close_stdin(self) -> None:
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):  # it may not have read its last line
                self.process.stdin.close()


class Children(ExitStack):
    """Starts processes, which end with the `with` block."""

    def start(self, command: Command, **options: Any) -> Child:
        """Start one."""
        return self.enter_context(Child(command, **options))


class Server(Child):
    """A process of `txlog serve`."""

    def __init__(self, store: object, *options: str, **more: Any) -> None:
        command = txlog_of(store, "--log-format", "json", "serve", *options)
        super().__init__([*more.pop("wrapped", ()), *command], stream="stderr", **more)

    @property
    def urls(self) -> list[str]:
        """The URLs at which it listens, once it does."""
        urls: list[str] = json.loads(self.until('"urls"'))["urls"]
        return urls

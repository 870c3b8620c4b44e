"""What a system of the comparison is: a service or none, one input, two outputs, and sessions.

A subclass of Peer is one system. The scenario calls `start`, `produce`, `kill`, `stop` and `stored`
in its own process; the client's process makes a session for each of its threads.
"""

from __future__ import annotations

import importlib
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, ClassVar

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "bench" / ".work"  # what Maven and Go fetch; kept
OUTPUTS = ("a", "b")
TOPICS = ("input", *OUTPUTS)
BATCH = 10  # messages that a transaction receives
RECEIVE_S = 0.2
START_S = 300  # a JVM on a busy machine
LOGS = ("service.log", "client.log")
FAILURE = re.compile(r"ERROR|FATAL|Exception|rror:")
GUARANTEES = (
    *("topics together", "with acknowledgements", "fencing", "duplicates dropped"),
    *("readers not held up", "survives power loss"),
)
Ended = Callable[[float, int], None]  # a transaction ended: when it began, messages it moved


class Unavailable(Exception):
    """A system cannot be had here; the text says why."""


def package(module: str, name: str) -> Any:
    """A client's module, of a package that is no dependency of txlog. Raises Unavailable."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise Unavailable(f"no Python package {name}: pip install {name}") from None


def program(name: str, source: str) -> str:
    """The path of a program. Raises Unavailable."""
    paths = map(str, Path("/usr/lib").glob(f"*/*/bin/{name}"))
    path = shutil.which(name) or next(paths, None)
    if path is None:
        raise Unavailable(f"no program {name}; it comes with {source}")
    return path


def fetched(path: Path, source: str, name: str, *words: object, **settings: object) -> Path:
    """A path that a program makes once, from the network. Raises Unavailable."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        command = [program(name, source), *map(str, words)]
        env = {**os.environ, **{key: str(value) for key, value in settings.items()}}
        run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            text = (run.stdout + run.stderr).strip()
            raise Unavailable(f"{name} did not make {path.name}: {text[-200:]}")
    return path


def payload(number: int) -> bytes:
    """A message of 100 bytes that says which one it is."""
    return b"%010d" % number + (b"%d" % (number * 7919 % 100_003)).ljust(90, b"x")


def number_of(value: bytes | str) -> int:
    """The number of a message."""
    return int(value[:10])


class Session:
    """A connection of a client that moves messages in a loop; one thread uses it."""

    def __init__(self, peer: Any, number: int, depth: int) -> None:
        self.peer, self.number, self.depth = peer, number, depth
        self.connection: Any = peer.connect()

    def step(self, ended: Ended) -> int:
        """Move up to BATCH messages; returns how many."""
        began = time.perf_counter()
        moved: int = self.peer.move(self.connection)
        if moved:
            ended(began, moved)
        return moved

    def close(self) -> None:
        """End the connection."""
        self.connection.close()


class Peer(ABC):
    """A system, and its files in a folder.

    setup:      version and settings, for the table
    claims:     for each of GUARANTEES whether the system has it, a colon, the setting or source
    kind:       of its sessions; the default one calls `move`
    is_single:  one session has all transactions in flight
    user:       that its service needs, because it does not run as root
    chunk:      messages of the input that are written at once
    is_padded:  an empty service has files that shrink later; its bytes are not subtracted
    most:       transactions/s that it does not reach; so much input is made
    warm_s:     of a client and service, before the timed part
    patience_s: a client that drains ends when no message came for so long, errors aside
    """

    title: ClassVar[str]
    setup: ClassVar[str]
    claims: ClassVar[Sequence[str]]
    kind: ClassVar[type[Session]] = Session
    is_single: ClassVar[bool] = False
    user: ClassVar[str | None] = None
    chunk: ClassVar[int] = 10_000
    is_padded: ClassVar[bool] = False
    most: ClassVar[int] = 4_000
    warm_s: ClassVar[float] = 2.0
    patience_s: ClassVar[float] = 5.0

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / LOGS[0]
        self.service: subprocess.Popen[bytes] | None = None
        self.settings: Mapping[str, str] = {}  # of the environment of the service

    # --- the service ---------------------------------------------------------------------------

    def command(self) -> Sequence[object]:
        """The command of the service, which makes its files if it has none; a library: none."""
        return ()

    def start(self) -> None:
        """Start the service, with the files that are there, and wait until it answers.

        The wait lasts up to START_S while the process lives; a process that ends is an error with
        the reason from its log.
        """
        command = [str(word) for word in self.command()]
        if not command:
            return
        as_user: dict[str, Any] = {}
        if self.user and os.geteuid() == 0:
            entry = pwd.getpwnam(self.user)
            as_user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        with self.log.open("ab") as log:
            output: dict[str, Any] = {"stdout": log, "stderr": log, "start_new_session": True}
            env = {**os.environ, **self.settings}
            self.service = subprocess.Popen(command, cwd=self.folder, env=env, **output, **as_user)
        end = time.monotonic() + START_S
        while True:
            try:
                self.connect().close()
                return
            except Unavailable:
                raise
            except Exception:  # of the peer's client: each has its own classes
                if time.monotonic() > end:
                    raise
                self._check()
                time.sleep(0.05)

    def _check(self) -> None:
        """Raise the reason from the log if the process has ended."""
        assert self.service is not None
        code = self.service.poll()
        if code is not None:
            lines = self.log.read_text(errors="replace").splitlines() or ["its log is empty"]
            reason = next(filter(FAILURE.search, reversed(lines)), lines[-1])
            raise RuntimeError(f"the service ended with code {code}: {reason[-300:]}")

    def kill(self) -> None:
        """End all processes of the service at once, by SIGKILL."""
        if self.service is not None:
            for pid in tree(self.service.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with suppress(ProcessLookupError):  # children that outlive a service that ended
                os.killpg(self.service.pid, signal.SIGKILL)
            self.service.wait()
            self.service = None

    def stop(self) -> None:
        """Ask the service to end, and wait for it."""
        if self.service is not None:
            self.service.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.service.wait(30)
            self.kill()

    def port(self, name: str = "main") -> int:
        """A port that the service keeps when it starts again."""
        kept = self.folder / f"{name}.port"
        if not kept.exists():
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                kept.write_text(str(free.getsockname()[1]))
        return int(kept.read_text())

    # --- messages ------------------------------------------------------------------------------

    @abstractmethod
    def connect(self) -> Any:
        """A connection that the service has answered; it has `close`."""

    @abstractmethod
    def make(self, connection: Any, depth: int) -> None:
        """Make the input and outputs, for so many sessions."""

    @abstractmethod
    def fill(self, connection: Any, values: Sequence[bytes]) -> None:
        """Write messages to the input."""

    @abstractmethod
    def read(self, connection: Any, topic: str) -> Iterable[bytes]:
        """The messages in an output, as a committed reader sees them."""

    def produce(self, count: int, depth: int) -> None:
        """Make the input and outputs, for so many sessions, and write messages 0 to count - 1."""
        with closing(self.connect()) as connection:
            self.make(connection, depth)
            for first in range(0, count, self.chunk):
                numbers = range(first, min(count, first + self.chunk))
                self.fill(connection, [payload(number) for number in numbers])

    def stored(self) -> list[list[int]]:
        """The numbers of the messages in each of the two outputs."""
        with closing(self.connect()) as connection:
            return [[number_of(value) for value in self.read(connection, each)] for each in OUTPUTS]

    def move(self, connection: Any) -> int:
        """Receive, write twice, acknowledge, and return when all of it is durable."""
        raise NotImplementedError

    def client(self) -> list[str]:
        """The command of a client, without its figures; see `worker`."""
        name = f"{type(self).__module__}:{type(self).__name__}"
        return [sys.executable, "-m", "bench.guarantees.worker", name, str(self.folder)]


# --- processes ---------------------------------------------------------------------------------


def tree(pid: int) -> list[int]:
    """A process and its descendants."""
    pids = [pid]
    for parent in pids:
        with suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
    return pids


def processor_s(pid: int) -> float:
    """Processor time of a process and its descendants, also of those that have ended."""
    ticks = 0
    for each in tree(pid):
        with suppress(OSError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # user, system, and those of reaped children
    return ticks / os.sysconf("SC_CLK_TCK")


def disk_bytes(folder: Path) -> int:
    """What the files of a folder take on disk, without the logs of client and service."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            if path.is_file() and path.name not in LOGS:
                total += path.lstat().st_blocks * 512
    return total

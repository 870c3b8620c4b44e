"""What a system of the comparison is: a service or none, one input, two outputs, and sessions.

A subclass of Peer is one system. The scenario calls `start`, `produce`, `kill`, `stop` and `stored`
in its own process; `session` is called in the client's process, once for each thread.
"""

from __future__ import annotations

import importlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, TypeVar

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "bench" / ".work"  # what Maven and Go fetch; kept
BATCH = 10  # messages that a transaction receives
DIES_AT = 3  # the transaction in which a client with a planted fault dies
RECEIVE_S = 0.2
START_S = 300  # a JVM on a busy machine
GUARANTEES = (
    *("topics together", "with acknowledgements", "fencing", "duplicates dropped"),
    *("readers not held up", "survives power loss"),
)
Ended = Callable[[float, int], None]  # a transaction ended: when it began, messages it moved
Result = TypeVar("Result")


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
    found = shutil.which(name) or next(
        (str(path) for path in Path("/usr/lib").glob(f"*/*/bin/{name}")), None
    )
    if found is None:
        raise Unavailable(f"no program {name}; it comes with {source}")
    return found


def payload(number: int) -> bytes:
    """A message of 100 bytes that says which one it is."""
    return b"%010d" % number + (b"%d" % (number * 7919 % 100_003)).ljust(90, b"x")


def number_of(value: bytes | str) -> int:
    """The number of a message."""
    return int(value[:10])


def eventually(act: Callable[[], Result], errors: tuple[type[Exception], ...]) -> Result:
    """The result of a call that fails until a service is there."""
    end = time.monotonic() + START_S
    while True:
        try:
            return act()
        except errors:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


class Session:
    """A connection of a client that moves messages in a loop; one thread uses it.

    fault: `ack-first` or `write-first`; the session then makes two transactions of one, in this
           order, and its process dies between the two halves of its third one
    """

    fault: str | None = None
    _halves = 0

    def step(self, ended: Ended) -> int:
        """Move up to BATCH messages; returns how many."""
        began = time.perf_counter()
        moved = self.move()
        if moved:
            ended(began, moved)
        return moved

    def move(self) -> int:
        """Receive, write twice, acknowledge, and return when all of it is durable."""
        raise NotImplementedError

    def halfway(self) -> None:
        """Between the two halves of a transaction with a fault."""
        self._halves += 1
        if self._halves == DIES_AT:
            os.kill(os.getpid(), signal.SIGKILL)

    def close(self) -> None:
        """End the connection."""


class Peer(ABC):
    """A system, and its files in a folder.

    setup:      version and settings, for the table
    guarantees: for each of GUARANTEES whether the system has it, and the setting or source
    is_padded:  an empty service has files that shrink later; its bytes are not subtracted
    most:       transactions/s that it does not reach; so much input is made
    warm_s:     of a client and service, before the timed part
    patience_s: a client that drains ends when no message came for so long, errors aside
    """

    title: ClassVar[str]
    setup: ClassVar[str]
    guarantees: ClassVar[Mapping[str, tuple[str, str]]]
    most: ClassVar[int] = 4_000
    warm_s: ClassVar[float] = 2.0
    patience_s: ClassVar[float] = 5.0
    is_padded: ClassVar[bool] = False
    user: ClassVar[str | None] = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.service: subprocess.Popen[bytes] | None = None

    # --- the service ---------------------------------------------------------------------------

    def start(self) -> None:  # noqa: B027 - a library has no service
        """Start the service, with the files that are there, and wait until it answers."""

    def launch(self, command: Sequence[object], settings: Mapping[str, str] | None = None) -> None:
        """Start the process of the service; its output goes to a file of the folder."""
        as_user: dict[str, Any] = {}
        if self.user and os.geteuid() == 0:
            entry = pwd.getpwnam(self.user)
            as_user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        with (self.folder / "service.log").open("ab") as log:
            self.service = subprocess.Popen(
                [str(word) for word in command],
                cwd=self.folder,
                env={**os.environ, **(settings or {})},
                stdout=log,
                stderr=log,
                start_new_session=True,
                **as_user,
            )

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

    def port(self, name: str = "port") -> int:
        """A port that the service keeps when it starts again."""
        kept = self.folder / name
        if not kept.exists():
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                kept.write_text(str(free.getsockname()[1]))
        return int(kept.read_text())

    # --- messages ------------------------------------------------------------------------------

    @abstractmethod
    def produce(self, count: int, depth: int) -> None:
        """Make the input and outputs, for so many sessions, and write messages 0 to count - 1."""

    def threads(self, depth: int) -> int:
        """Sessions of a client that has so many transactions in flight."""
        return depth

    def session(self, number: int, depth: int) -> Session:
        """A new session, in the client's process."""
        raise NotImplementedError

    def client(
        self, depth: int, seconds: float, warm_up: float, patience_s: float
    ) -> list[str] | None:
        """The command of a client that is not written in Python; see `worker.work`."""
        return None

    @abstractmethod
    def stored(self) -> Iterable[list[int]]:
        """The numbers of the messages in each of the two outputs, as a committed reader."""


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
    """What the files of a folder take on disk, without the log of the service."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            if path.is_file() and path.name != "service.log":
                total += path.lstat().st_blocks * 512
    return total

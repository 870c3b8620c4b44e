"""Owns the test bed of stock clients: a server, the clients' programs, and their results.

Each program runs the scenarios that are named on its command line, or all it has, against a URL,
and prints a JSON object for each; see its source. A scenario is a feature of `features.py`.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from threading import Timer
from typing import TypeVar

import txlog
from tests import harness, source_tree

ROOT = source_tree.ROOT
HERE = Path(__file__).resolve().parent
BUILD = ROOT / "build" / "clients"
PARTITIONED = "partitions"  # the scenario whose topic has to be there, with 3 partitions
# No client needs a second for an answer here, but chunks, delays and time-outs do.
RUN_SECONDS = 240


class Unavailable(Exception):
    """A client cannot be built here."""


# --- servers ---------------------------------------------------------------------------------


class Server:
    """`txlog serve` at a port of its own, of a store that is made if it is not there.

    http:     the URL of its HTTP, if the options say to serve that
    restarts: how often it was killed and started again
    settings: of the environment, for the programs that try a client
    """

    settings: Mapping[str, str] = {}
    host = "127.0.0.1"

    def __init__(self, folder: Path, *options: str, source: Path = source_tree.SOURCE) -> None:
        """source: of the txlog that serves"""
        self.store = folder / "store"
        self._options = options
        self._paths = os.pathsep.join([str(source), str(ROOT)])
        self._child: harness.Server | None = None
        self.url = self.http = ""
        self.restarts = 0
        txlog.init(str(self.store), if_not_exists=True)

    def start(self) -> None:
        """Start it; at the same ports as before."""
        address = self.url.rpartition("//")[2] or f"{self.host}:0"
        http_flags = ["--http", self.http.rpartition("//")[2]] if self.http else []
        self._child = harness.Server(
            self.store,
            *("--pulsar", address, "--http", "off", *self._options, *http_flags),
            bound_s=harness.HOUR_S,
            env={"PYTHONPATH": self._paths},
        )
        urls = self._child.urls
        self.url = next(url for url in urls if url.startswith("pulsar"))
        self.http = next((url for url in urls if url.startswith("http")), "")

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._child is not None
        return self._child.pid

    def prepare(self, prefix: str) -> None:
        """Make the topic that clients cannot make."""
        with txlog.open(str(self.store)) as client:
            client.create_topic(f"{prefix}-{PARTITIONED}", 3)

    def kill(self) -> None:
        """End it at once, by SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to end."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Kill it, and start another on the same store."""
        self.restarts += 1
        self.kill()
        self.start()

    def answer(self, wish: str) -> None:
        """Do what a program asks for in a pause."""
        assert wish == "kill", wish
        self.restart()

    def await_log(self, text: str) -> None:
        """Read the server's log until a line has this text."""
        assert self._child is not None
        self._child.until(text)

    def _end(self, number: int) -> None:
        if self._child is not None:
            with self._child as child:
                child.end(number)
            self._child = None


class Elsewhere:
    """A server that others run, such as Apache Pulsar standalone; it is not killed.

    admin: the URL of its REST endpoints
    """

    settings: Mapping[str, str] = {}

    def __init__(self, url: str, admin: str) -> None:
        self.url, self._admin = url, admin

    def prepare(self, prefix: str) -> None:
        """Make the topic that clients cannot make."""
        place = f"{self._admin}/admin/v2/persistent/public/default/{prefix}-{PARTITIONED}"
        request = urllib.request.Request(
            f"{place}/partitions",
            b"3",
            {"Content-Type": "application/json"},
            method="PUT",
        )
        urllib.request.urlopen(request).close()

    def answer(self, wish: str) -> None:
        """Leave it alone."""


Kind = TypeVar("Kind", bound=Server)


@contextmanager
def running(server: Kind) -> Iterator[Kind]:
    """A server, started, and stopped at the end."""
    server.start()
    try:
        yield server
    finally:
        server.stop()


def serving(folder: Path, *options: str) -> AbstractContextManager[Server]:
    """A server that runs."""
    return running(Server(folder, *options))


# --- programs --------------------------------------------------------------------------------


def _java() -> list[str]:
    out = built(
        [
            *("mvn", "-q", "-B", "compile", "dependency:build-classpath"),
            f"-Dmdep.outputFile={BUILD}/java/classpath",
        ],
        HERE / "java",
        BUILD / "java",
    )
    libraries = (out / "classpath").read_text().strip()
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
    return ["java", "-Xmx256m", quiet, "-cp", f"{out}/classes:{libraries}", "clients.Main"]


def _go() -> list[str]:
    out = built(["go", "build", "-o", f"{BUILD}/go/clients", "."], HERE / "go", BUILD / "go")
    return [str(out / "clients")]


def _python(flavour: str) -> list[str]:
    return [sys.executable, str(HERE / "python" / "scenarios.py"), flavour]


PROGRAMS: dict[str, Callable[[], list[str]]] = {
    "java": _java,
    "go": _go,
    "python": lambda: _python("sync"),
    "asyncio": lambda: _python("asyncio"),
}


def built(command: list[str], source: Path, out: Path) -> Path:
    """Build a program unless it is newer than its source, one at a time. Raises Unavailable."""
    if shutil.which(command[0]) is None:
        raise Unavailable(f"there is no {command[0]} here")
    out.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:  # also of Maven, which shares what it downloads
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = out / "built"
        newest = max(file.stat().st_mtime for file in source.rglob("*") if file.is_file())
        if not done.exists() or done.stat().st_mtime < newest:
            completed = subprocess.run(
                command, cwd=source, capture_output=True, text=True, check=False
            )
            if completed.returncode != 0:
                lines = (completed.stdout + completed.stderr).strip().splitlines()
                raise Unavailable(f"{command[0]} did not build it: {' '.join(lines[-3:])}")
            done.touch()
    return out


def tried(client: str, server: Server | Elsewhere, prefix: str, *names: str) -> dict[str, str]:
    """Run a client's program; returns for each scenario the reason why it failed, or nothing."""
    command = PROGRAMS[client]()
    if not names or PARTITIONED in names:
        server.prepare(prefix)
    lines = lines_of([*command, server.url, prefix, *names], server)
    outcomes = [json.loads(line) for line in lines if line.startswith("{")]
    return {outcome["scenario"]: outcome["error"] for outcome in outcomes}


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program: the test's own, with some settings."""
    return {**os.environ, **settings}


def lines_of(
    command: list[str], server: Server | Elsewhere, folder: Path | None = None
) -> Iterator[str]:
    """The lines that a program prints; at a pause, `server` does what the program asks for.

    folder: where it runs
    """
    with subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(server.settings),
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        timer = Timer(RUN_SECONDS, process.kill)
        timer.start()
        try:
            for line in process.stdout:
                if line.startswith('{"pause"'):
                    server.answer(json.loads(line)["pause"])
                    with suppress(BrokenPipeError):  # the program may have ended
                        os.write(process.stdin.fileno(), b"\n")
                else:
                    yield line
        finally:
            timer.cancel()
            process.kill()

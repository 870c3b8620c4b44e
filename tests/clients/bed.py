"""Owns the test bed of stock clients: a server, the programs that try a client, what they find.

Each program runs the scenarios that are named on its command line, or all it has, against a URL,
and prints a JSON object for each; see its source. A scenario is a feature of `features.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import IO

import txlog

ROOT = Path(__file__).resolve().parents[2]
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

    http: the URL of its HTTP, if the options say to serve that
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self.store = folder / "store"
        self._options = options
        self._process: subprocess.Popen[str] | None = None
        self.url = self.http = ""
        txlog.init(str(self.store), if_not_exists=True)

    def start(self) -> None:
        """Start it; at the same port as before."""
        address = self.url.removeprefix("pulsar://") or "127.0.0.1:0"
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "txlog", "--store", str(self.store), "serve"),
                *("--pulsar", address, "--http", "off", *self._options),
            ],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
        assert self._process.stderr is not None
        said = ""
        for line in self._process.stderr:
            said += line
            words = line.split()
            self.http = next((word for word in words if word.startswith("http://")), "")
            for word in words:
                if word.startswith("pulsar://"):
                    self.url = word
                    return
        raise AssertionError(f"it did not start: {said}")

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    def prepare(self, prefix: str) -> None:
        """Make the topic that clients cannot make."""
        with txlog.open(str(self.store)) as client:
            client.create_topic(f"{prefix}-{PARTITIONED}", 3)

    def kill(self) -> None:
        """End it as the kernel does, at once."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to end."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Kill it, and start another on the same store."""
        self.kill()
        self.start()

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(30)
            assert self._process.stderr is not None
            self._process.stderr.close()
            self._process = None


class Elsewhere:
    """A server that others run, such as Apache Pulsar standalone; it is not killed.

    admin: the URL of its REST endpoints
    """

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

    def restart(self) -> None:
        """Leave it alone."""


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Server]:
    """A server that runs."""
    server = Server(folder, *options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


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
    """Build a program unless it is newer than its source. Raises Unavailable."""
    if shutil.which(command[0]) is None:
        raise Unavailable(f"there is no {command[0]} here")
    done = out / "built"
    newest = max(file.stat().st_mtime for file in source.rglob("*") if file.is_file())
    if not done.exists() or done.stat().st_mtime < newest:
        out.mkdir(parents=True, exist_ok=True)
        made = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
        if made.returncode != 0:
            said = (made.stdout + made.stderr).strip().splitlines()
            raise Unavailable(f"{command[0]} did not build it: {' '.join(said[-3:])}")
        done.touch()
    return out


def tried(client: str, server: Server | Elsewhere, prefix: str, *names: str) -> dict[str, str]:
    """What a client's program found: for each scenario the reason why it failed, or nothing."""
    command = PROGRAMS[client]()
    if not names or PARTITIONED in names:
        server.prepare(prefix)
    with subprocess.Popen(
        [*command, server.url, prefix, *names],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        timer = Timer(RUN_SECONDS, process.kill)
        timer.start()
        try:
            found = _followed(process.stdout, process.stdin, server)
        finally:
            timer.cancel()
            process.kill()
    return found


def _followed(output: IO[str], answers: IO[str], server: Server | Elsewhere) -> dict[str, str]:
    found = {}
    for line in output:
        if not line.startswith("{"):
            continue
        said = json.loads(line)
        if "pause" in said:
            server.restart()
            answers.write("\n")
            answers.flush()
        else:
            found[said["scenario"]] = said["error"]
    return found

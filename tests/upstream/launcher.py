"""Owns servers that start fast: `txlog serve` forked from a process that has loaded it.

A test connects and sends a JSON object in a line; each is answered by one.

    {"start": [OPTIONS, …], "settings": {NAME: VALUE}}
                      start a server of this connection's store for each list of options:
                      {"urls": [URL, …]}, or {"error": TEXT}
    {"stop": true}    end them, as the kernel does: {}

The first start makes the store, with these settings; a later one has the same store. When the
connection ends, so do the servers, and the store goes.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import selectors
import shutil
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import txlog
from txlog.cli.main import main

START_SECONDS = 30
# Packages that a server uses; a child that had to load them took a second more.
PRELOADED = (
    "txlog.serve.",
    "txlog.engine.",
    "txlog.client.",
    "txlog.client.answers.",
    "txlog.cli.",
)


def preload() -> None:
    """Load txlog, so that no child has to."""
    for module in pkgutil.walk_packages(txlog.__path__, "txlog."):
        if module.name.startswith(PRELOADED):
            importlib.import_module(module.name)


def listening() -> socket.socket:
    """A socket for tests, at any port of this machine."""
    return socket.create_server(("127.0.0.1", 0), backlog=64)


def launch(door: socket.socket) -> None:
    """Serve tests until this process is killed, each in a child."""
    preload()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = door.accept()
        if os.fork() == 0:
            door.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _serve_test(connection)
            os._exit(0)
        connection.close()


def _serve_test(connection: socket.socket) -> None:
    folder = Path(tempfile.mkdtemp(prefix="upstream-"))
    servers: list[int] = []
    try:
        store = folder / "store"
        with connection, connection.makefile("rwb") as lines:
            for line in lines:
                request = json.loads(line)
                if "stop" in request:
                    _end(servers)
                    answer: dict[str, object] = {}
                else:
                    txlog.init(str(store), if_not_exists=True, **request.get("settings", {}))
                    answer = _start(store, request["start"], servers, connection)
                lines.write(json.dumps(answer).encode() + b"\n")
                lines.flush()
    except OSError:
        pass  # the test has gone
    finally:
        _end(servers)
        shutil.rmtree(folder, ignore_errors=True)


def _start(
    store: Path, servers: list[list[str]], pids: list[int], connection: socket.socket
) -> dict[str, object]:
    urls: list[str] = []
    for options in servers:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            connection.close()
            os.setsid()
            os.close(reading)
            os.dup2(writing, 2)
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            os.dup2(0, 1)
            sys.argv[:] = ["txlog", "--store", str(store), "serve", *options]
            os._exit(_code())
        os.close(writing)
        pids.append(pid)
        output = ""
        with selectors.DefaultSelector() as ready:
            ready.register(reading, selectors.EVENT_READ)
            while "serving" not in output or not output.endswith("\n"):
                data = os.read(reading, 65536) if ready.select(START_SECONDS) else b""
                if not data:
                    return {"error": output or "it said nothing"}
                output += data.decode(errors="replace")
        urls += [word for word in output.split() if "://" in word]
        _log(reading)
    return {"urls": urls}


def _code() -> int:
    try:
        return main() or 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1


def _log(reading: int) -> None:
    """Copy the further output of a server to the log, in a child that ends with the server."""
    place = os.environ.get("UPSTREAM_LOG", os.devnull)
    if os.fork() == 0:
        with open(place, "ab", 0) as log:
            while data := os.read(reading, 65536):
                log.write(data)
        os._exit(0)
    os.close(reading)


def _end(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
    pids.clear()

"""Owns a `txlog` that starts at once, for transcripts: hundreds of commands, each a process.

A server that has imported everything forks a process for each command. The process gets the
arguments, working directory, environment and standard streams of a small client, which ends with
the exit code of the command. Other tests start the real program.

    ready.tool(path)      make an executable `txlog` that goes through the server of this process
    ready.python()        words that stand for `python`, before `-m MODULE`

If a module kills its process by SIGKILL, its client kills itself, too. If a command ends without
an exit code for its client, as by `os._exit` in a function, the client ends with 255.
"""

from __future__ import annotations

import array
import atexit
import importlib
import os
import pkgutil
import runpy
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
_STREAMS = 3
_THREADED = ("txlog.spark", "txlog.lake.jobs.mirrors.delta")
# Modules of others that commands load late.
_USED = (
    "typer",
    "pyarrow.compute",
    "pyarrow.parquet",
    "pyarrow.dataset",
    "pyarrow.csv",
    "duckdb",
    "prometheus_client",
)
_MESSAGE_MAX = 1 << 20
# It starts for each command, so it imports only what the interpreter has loaded or built in.
_CLIENT = """
import _socket, os, sys
words = [os.getcwd(), str(len(sys.argv) - 2), *sys.argv[2:]]
words += [f"{name}={value}" for name, value in os.environ.items()]
to = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
to.connect(sys.argv[1])
streams = b"".join(n.to_bytes(4, sys.byteorder) for n in (0, 1, 2))
data = "\\0".join(words).encode("utf-8", "surrogateescape")
to.sendmsg([data], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
code = to.recv(1)
if not code and sys.argv[2] == "python":
    os.kill(os.getpid(), 9)
os._exit((code or b"\\xff")[0])
"""
_server: list[str] = []  # the socket's path, once it runs


def tool(path: Path) -> None:
    """Make an executable that runs one command through the server."""
    path.write_text(f'#!/bin/sh\nexec {shlex.join(_client("txlog"))} "$@"\n')
    path.chmod(0o755)


def python() -> list[str]:
    """The words for a Python that has imported everything; only -m may follow."""
    return _client("python")


def _client(what: str) -> list[str]:
    if not _server:
        _server.append(_started())
        Path(_server[0]).with_name("client.py").write_text(_CLIENT)
    client = Path(_server[0]).with_name("client.py")
    return [sys.executable, "-ISE", str(client), _server[0], what]


def _started() -> str:
    folder = tempfile.TemporaryDirectory()
    path = os.path.join(folder.name, "socket")
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "LC_ALL": "C.UTF-8"}
    server = subprocess.Popen(
        [sys.executable, __file__, path],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None
    assert server.stdout.readline(), "the server of txlog commands did not start"

    def end() -> None:
        server.kill()
        server.wait()
        folder.cleanup()

    atexit.register(end)
    return path


def _modules() -> list[str]:
    """Our own modules, except for Spark and Delta, whose libraries start threads.

    A thread does not outlive a fork; pyarrow's allocator is prepared for that.
    """
    import txlog

    found = pkgutil.walk_packages(txlog.__path__, "txlog.", onerror=lambda name: None)
    return [
        module.name
        for module in found
        if not module.name.startswith(_THREADED) and not module.name.endswith("__main__")
    ]


def _flush_nothing() -> None:
    """Let flushes return at once: a killed process loses no written bytes without them."""
    os.fsync = os.fdatasync = lambda fd: None
    posix = importlib.import_module("txlog.engine.storage.disk.posix")
    vars(posix)["sync_file_system"] = lambda fd: True


def serve(path: str) -> NoReturn:
    """Fork a process for each client, for ever."""
    for name in [*_modules(), *_USED]:
        vars(importlib.import_module(name))  # a lazy module runs at its first use
    _flush_nothing()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(64)
    os.write(1, b"ready\n")
    while True:
        client, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _command(client)
        client.close()


def _command(client: Any) -> NoReturn:
    """Run the client's command in this process, and send the client its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    streams = array.array("i")
    data, rights, _, _ = client.recvmsg(_MESSAGE_MAX, socket.CMSG_SPACE(_STREAMS * 4))
    streams.frombytes(rights[0][2])
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    folder, count, *words = data.decode("utf-8", "surrogateescape").split("\0")
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(word.split("=", 1) for word in words[int(count) :])
    time.tzset()
    what, *arguments = words[: int(count)]
    code = 1
    try:
        if what == "python":
            _python(*arguments)
            code = 0
        else:
            from txlog.cli.main import main

            sys.argv = ["txlog", *arguments]
            code = main()
        sys.stdout.flush()
        sys.stderr.flush()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        client.send(bytes([code & 255]))
        os._exit(code)


def _python(flag: str, what: str, *arguments: str) -> None:
    """Run a module as `python` would."""
    sys.path.insert(0, str(ROOT))
    sys.argv = [flag, *arguments]
    assert flag == "-m", f"{flag} is not for this Python"
    runpy.run_module(what, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve(sys.argv[1])

"""Owns a standalone cluster for tests: its master and workers, and machines to run them on.

A machine is a network namespace with an address of its own on a bridge, and mounts of its own:
directories can be hidden from it. Making one needs root and iproute2.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

NETWORK = "10.231.77"
HOST = f"{NETWORK}.1"


@contextmanager
def daemon(
    environment: Mapping[str, str], *words: str, before: Sequence[str] = ()
) -> Iterator[str]:
    """A master or worker; gives the address that a master logs, or "" when a worker has joined.

    before: the words that run it elsewhere
    """
    started = re.compile(r"Starting Spark master at (\S+)|Successfully registered with master")
    process = subprocess.Popen(
        [
            *before,
            str(Path(sys.executable).with_name("spark-class")),
            *(f"org.apache.spark.deploy.{words[0]}", "--host", *words[1:], "--webui-port", "0"),
        ],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    assert process.stderr is not None
    log = process.stderr
    match = next((match for line in log if (match := started.search(line))), None)
    draining = threading.Thread(target=lambda: [None for _ in log])
    draining.start()
    try:
        assert match is not None, words
        yield match[1] or ""
    finally:
        process.terminate()
        process.wait()
        draining.join()
        log.close()


def master(environment: Mapping[str, str], host: str, cluster: ExitStack) -> str:
    """A master that lives as long as the cluster; returns its address."""
    return cluster.enter_context(daemon(environment, "master.Master", host, "--port", "0"))


def worker(
    environment: Mapping[str, str],
    host: str,
    folder: Path,
    address: str,
    cluster: ExitStack,
    before: Sequence[str] = (),
) -> None:
    """A worker with one core that has joined the master, and lives as long as the cluster."""
    words = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / host), address]
    cluster.enter_context(daemon(environment, "worker.Worker", host, *words, before=before))


@contextmanager
def machines(count: int, hidden: Sequence[Path]) -> Iterator[list[tuple[str, list[str]]]]:
    """(address, words that run a command there) of each; skips where they cannot be made.

    hidden: directories that are empty there
    """
    name = f"tx{os.getpid() % 10**7}"
    # ip mounts /sys of the namespace, and makes mounts of its own for that: these go with them.
    hide = "".join(f"mount -t tmpfs none '{folder}' && " for folder in hidden) + 'exec "$@"'
    addresses = []
    with ExitStack() as undo:
        if not _ip("link", "add", name, "type", "bridge"):
            pytest.skip("network namespaces: not permitted here, or there is no iproute2")
        undo.callback(_ip, "link", "del", name)
        _must("addr", "add", f"{HOST}/24", "dev", name)
        _must("link", "set", name, "up")
        for number in range(count):
            there, address = f"{name}-{number}", f"{NETWORK}.{number + 2}"
            if not _ip("netns", "add", there):
                pytest.skip("network namespaces: not permitted here")
            undo.callback(_ip, "netns", "del", there)
            outer = f"{name}o{number}"
            _must("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", there)
            _must("link", "set", outer, "master", name, "up")
            for words in (["addr", "add", f"{address}/24", "dev", "eth0"],
                          ["link", "set", "eth0", "up"], ["link", "set", "lo", "up"]):  # fmt: skip
                _must("-n", there, *words)
            run = ["ip", "netns", "exec", there, "sh", "-c", hide, "sh"]
            addresses.append((address, run))
        yield addresses


def _ip(*words: str) -> bool:
    try:
        return (
            subprocess.run(["ip", *words], check=False, stderr=subprocess.DEVNULL).returncode == 0
        )
    except FileNotFoundError:
        return False


def _must(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)

"""The two rounds of a system: one that measures, and one that kills and counts."""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.guarantees import peer as peers
from bench.guarantees.peer import BATCH, Peer

KILL_DEPTH = 8
KILL_MESSAGES_MAX = 200_000
LONGEST_S = 400  # a client that takes longer than that, after its time, is stuck
AGAIN_S = 20.0  # how long another client waits for messages before they are called lost
Make = Callable[[Path], Peer]


class Client:
    """The client's process; its figures are those of `worker`."""

    def __init__(
        self,
        peer: Peer,
        depth: int,
        patience_s: float | None = None,
        seconds: float = 0.0,
        warm_up: float = 0.0,
    ) -> None:
        figures = (depth, seconds, warm_up, patience_s or peer.patience_s)
        with (peer.folder / peers.LOGS[1]).open("ab") as log:
            self.process = subprocess.Popen(
                [*peer.client(), *map(str, figures)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(peers.ROOT), *sys.path])},
            )
        assert self.process.stdout is not None
        self._out = self.process.stdout
        self._limit = threading.Timer(seconds + LONGEST_S, self.process.kill)
        self._limit.daemon = True
        self._limit.start()
        self._is_ready = False

    def line(self) -> str:
        """The next line that it prints; empty when it has ended."""
        return self._out.readline()

    def has_drained(self, seconds: float) -> bool:
        """Whether it has found no more messages within some seconds."""
        if not self._is_ready:
            self._is_ready = bool(self.line())
        return bool(select.select([self._out], [], [], seconds)[0])

    def figures(self) -> dict[str, Any]:
        """What it found; then it ends."""
        for text in iter(self.line, ""):
            if text.startswith("{"):
                figures: dict[str, Any] = json.loads(text)
                return figures
        used_s = peers.processor_s(self.process.pid)  # little: it starved; the machine is busy
        code = self.process.wait()
        raise RuntimeError(f"the client ended with code {code} after {used_s:.1f} s of processor")

    def kill(self) -> None:
        """End it at once."""
        self._limit.cancel()
        self.process.kill()
        self.process.communicate()


@contextmanager
def place(make: Make, folder: Path | None) -> Iterator[Peer]:
    """A system that runs, in a folder of its own that is removed."""
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as scratch:
        path = Path(scratch).resolve()
        path.chmod(0o777)  # a service may run as another user
        peer = make(path)
        try:
            peer.start()
            yield peer
        finally:
            peer.kill()


def measure(make: Make, depth: int, seconds: float, folder: Path | None) -> dict[str, float]:
    """Rate, latencies, processor time and bytes of one system, with so many in flight."""
    with place(make, folder) as peer:
        warm_up = min(peer.warm_s, 2 * seconds)
        before = 0 if peer.is_padded else peers.disk_bytes(peer.folder)
        count = int(peer.most * BATCH * (seconds + warm_up))
        peer.produce(count, depth)
        client = Client(peer, depth, None, seconds, warm_up)
        try:
            client.line()
            began = _used(peer, client)
            figures = client.figures()
            used = [now - then for now, then in zip(_used(peer, client), began, strict=True)]
        finally:
            client.kill()
        if figures["error"] or not figures["ended"]:
            raise RuntimeError(figures["error"] or "no transaction ended")
        peer.stop()
        after = peers.disk_bytes(peer.folder)
    ended = int(figures["ended"])
    return {
        **{name: float(figures[name]) for name in ("rate", "p50_ms", "p99_ms")},
        "client_ms": used[0] / ended * 1000,
        "service_ms": used[1] / ended * 1000,
        "bytes": (after - before) / (count + 2 * int(figures["moved"])),
    }


def _used(peer: Peer, client: Client) -> list[float]:
    service = peers.processor_s(peer.service.pid) if peer.service else 0.0
    return [peers.processor_s(client.process.pid), service]


def count(
    make: Make,
    messages: int,
    *,
    kills: int = 0,
    every_s: float = 5.0,
    patience_s: float | None = None,
    folder: Path | None = None,
) -> dict[str, Any]:
    """Kill client and service in turns while they move messages; count lost and doubled ones.

    The client drains the input after the last kill. Each message must be in both outputs once.
    """
    with place(make, folder) as peer:
        peer.produce(messages, KILL_DEPTH)
        client = Client(peer, KILL_DEPTH, patience_s)
        times = list[float]()
        try:
            for number in range(kills):
                if client.has_drained(every_s):
                    break
                began = time.monotonic()
                if number % 2 and peer.service is not None:
                    peer.kill()
                    peer.start()
                else:
                    client.kill()
                    client = Client(peer, KILL_DEPTH, patience_s)
                times.append(time.monotonic() - began)
            figures = client.figures()
        finally:
            client.kill()
        counts = difference(messages, peer.stored())
        if counts["lost"]:  # perhaps a lease or a transaction has not timed out yet
            client = Client(peer, KILL_DEPTH, patience_s or AGAIN_S)
            client.figures()
            client.kill()
            counts = difference(messages, peer.stored())
        peer.stop()
    errors = {"errors": figures["errors"], "error": figures["error"]}
    restart_s = statistics.fmean(times or [0.0])
    return {**counts, "messages": messages, "kills": len(times), "restart_s": restart_s, **errors}


def difference(messages: int, outputs: list[list[int]]) -> dict[str, int]:
    """How many messages are missing in an output, or there again."""
    distinct = [len(set(numbers)) for numbers in outputs]
    lost = sum(messages - count for count in distinct)
    return {"lost": lost, "doubled": sum(map(len, outputs)) - sum(distinct)}

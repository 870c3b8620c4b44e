"""Adds to the corpus what a stock client sends: `python -m tests.fuzz.recorded [CLIENT ...]`.

The clients of tests/clients run their scenarios through a relay, which keeps the bytes of each
connection to the server. Those that reach new lines of the target `connection` are kept.
"""

from __future__ import annotations

import argparse
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Thread

from tests.clients import bed
from tests.fuzz import corpus
from tests.fuzz.engine import SIZE_MAX, smallest_set
from tests.fuzz.targets import TARGETS

TARGET = "connection"
KEPT_BYTES = 18_000  # of the text; a connection has a beginning that others have as well
SLOW = ("chunks", "txn_killed", "regex", "redeliver_later")


class Relay:
    """Passes connections on to a server, at a port whose number is as long as the server's.

    sent: the bytes of each connection to the server
    """

    def __init__(self, url: str) -> None:
        self._port = url.rpartition(":")[2].encode()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._own = b"%d" % self._listener.getsockname()[1]
        assert len(self._own) == len(self._port), "run it again: the ports differ in length"
        self.url = f"pulsar://127.0.0.1:{self._own.decode()}"
        self.sent: list[bytearray] = []
        Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(("127.0.0.1", int(self._port)))
            self.sent.append(bytearray())
            Thread(target=self._up, args=(client, server, self.sent[-1]), daemon=True).start()
            Thread(target=self._down, args=(server, client), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket, sent: bytearray) -> None:
        while data := _received(client):
            sent += data
            with suppress(OSError):  # the server has closed its end
                server.sendall(data)
        server.close()

    def _down(self, server: socket.socket, client: socket.socket) -> None:
        """Lookups lead to the relay again."""
        with suppress(OSError):  # the client has closed its end
            while data := _received(server):
                client.sendall(data.replace(b":" + self._port, b":" + self._own))
        client.close()


def _received(end: socket.socket) -> bytes:
    try:
        return end.recv(1 << 16)
    except OSError:
        return b""


class _Through(bed.Server):
    """A server whose clients go through a relay."""

    def start(self) -> None:
        super().start()
        self.relay = Relay(self.url)
        self.url = self.relay.url


def recorded(client: str, names: list[str]) -> list[bytes]:
    """The bytes of each connection that a client makes, scenario by scenario."""
    with tempfile.TemporaryDirectory() as folder, bed.running(_Through(Path(folder))) as server:
        for name in names:
            outcomes = bed.tried(client, server, name.replace("_", "-"), name)
            print(client, outcomes, flush=True)
        return [bytes(data[:SIZE_MAX]) for data in server.relay.sent]


def main() -> None:
    """Record clients, and keep what reaches new lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("clients", nargs="*", default=["python"], metavar="CLIENT")
    inputs = corpus.kept(TARGET)
    for client in parser.parse_args().clients:
        inputs += recorded(client, scenarios(client))
    kept = smallest_set(TARGETS[TARGET], inputs, KEPT_BYTES)
    corpus.keep(TARGET, kept)
    print(f"{len(kept)} of {len(inputs)} connections are kept")


def scenarios(client: str) -> list[str]:
    """The scenarios that a client has and that are short."""
    from tests.clients import features

    return sorted(features.expected(client) - {*SLOW})


if __name__ == "__main__":
    main()

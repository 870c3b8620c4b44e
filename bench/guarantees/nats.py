"""NATS JetStream: an atomic batch on the stream of both outputs, then acknowledgements."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from bench.guarantees import peer

MODULE = "github.com/nats-io/nats-server/v2@v2.15.3"
CONFIGURATION = """listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{folder}/jetstream", sync_interval: always }}
"""
ACK_WAIT_NS = 3_000_000_000  # then another client gets the message
HOUR_NS = 3_600_000_000_000


class Connection:
    """A connection, with an event loop of its own."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        nats = peer.package("nats", "nats-py")
        options = {"allow_reconnect": False, "connect_timeout": 5, "error_cb": _quiet}
        self._nats = self.run(nats.connect(url, **options))
        self.stream = self._nats.jetstream(timeout=10)
        self.pull: Any = None
        self.ask("INFO")

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Its result."""
        return self._loop.run_until_complete(call)

    def ask(self, subject: str, **request: Any) -> dict[str, Any]:
        """The answer of JetStream's interface. Raises RuntimeError."""
        call = self._nats.request(f"$JS.API.{subject}", json.dumps(request).encode(), timeout=10)
        answer: dict[str, Any] = json.loads(self.run(call).data)
        if "error" in answer:
            raise RuntimeError(str(answer["error"]))
        return answer

    async def send(
        self, sends: Sequence[tuple[str, bytes, dict[str, str]]], timeout_s: float = 10
    ) -> bytes:
        """Send an atomic batch of subjects, messages and headers; returns the answer."""
        batch = {"Nats-Batch-Id": uuid.uuid4().hex}
        for place, (subject, value, headers) in enumerate(sends, 1):
            headers = {**headers, **batch, "Nats-Batch-Sequence": str(place)}
            if place < len(sends):
                await self._nats.publish(subject, value, headers=headers)
        headers["Nats-Batch-Commit"] = "1"
        return await self.send_one(subject, value, headers, timeout_s)

    async def send_one(
        self, subject: str, value: bytes, headers: dict[str, str], timeout_s: float = 10
    ) -> bytes:
        """Send a message; returns the answer."""
        answer = await self._nats.request(subject, value, timeout=timeout_s, headers=headers)
        return bytes(answer.data)

    def check(self) -> None:
        """Raise ConnectionError if the server has gone: a fetch then returns nothing."""
        if not self._nats.is_connected:
            raise ConnectionError("the server has gone")

    def close(self) -> None:
        """Hang up."""
        self.run(self._nats.close())
        self._loop.close()


async def _quiet(error: Exception) -> None:
    """The call that fails raises it, too."""


class Nats(peer.Peer):
    """A server of its own with JetStream."""

    title = "NATS JetStream"
    setup = (
        "2.15.3, built by Go, nats-py; `sync_interval: always`; an atomic batch of 20 with "
        "`Nats-Msg-Id`, then 10 confirmed acknowledgements; a connection for each transaction in "
        "flight"
    )
    claims = (
        "partly: an atomic batch (`allow_atomic`): subjects of one stream",
        "no: they follow the batch",
        "no: a late client's acknowledgement and batch are taken",
        "yes: `Nats-Msg-Id` in `duplicate_window`, here an hour",
        "yes: a batch is in the stream when it is complete",
        "yes: `sync_interval: always`; by default 2 minutes",
    )
    chunk = 500  # an atomic batch
    most = 400
    patience_s = 6.0

    def command(self) -> Sequence[object]:
        path = self.folder / "nats.conf"
        path.write_text(CONFIGURATION.format(port=self.port(), folder=self.folder))
        server = peer.WORK / "bin" / "nats-server"
        peer.fetched(server, "Go 1.25", "go", "install", MODULE, GOBIN=server.parent)
        return [server, "-c", path]

    def connect(self) -> Connection:
        return Connection(f"nats://127.0.0.1:{self.port()}")

    def make(self, connection: Connection, depth: int) -> None:
        for name, subject in (("input", "input"), ("outputs", "out.*")):
            stream = {"name": name, "subjects": [subject], "storage": "file", "allow_atomic": True}
            connection.ask(f"STREAM.CREATE.{name}", **stream, duplicate_window=HOUR_NS)
        group = {"durable_name": "group", "ack_policy": "explicit", "ack_wait": ACK_WAIT_NS}
        group |= {"max_ack_pending": 100_000}
        create = "CONSUMER.DURABLE.CREATE.input.group"
        connection.ask(create, stream_name="input", config=group)

    def fill(self, connection: Connection, values: Sequence[bytes]) -> None:
        connection.run(connection.send([("input", value, {}) for value in values], 60))

    def read(self, connection: Connection, topic: str) -> Iterable[bytes]:
        subject = f"out.{topic}"
        state = connection.ask("STREAM.INFO.outputs", subjects_filter=subject)["state"]
        left = state.get("subjects", {}).get(subject, 0)
        pull = connection.run(connection.stream.pull_subscribe(subject, stream="outputs"))
        while left:
            rows = connection.run(pull.fetch(min(left, 1_000), 10))
            left -= len(rows)
            for row in rows:  # at most 1,000 without one
                connection.run(row.ack())
                yield row.data

    def move(self, connection: Connection) -> int:
        return int(connection.run(self._move(connection)))

    async def _move(self, connection: Connection) -> int:
        if connection.pull is None:  # all sessions share the durable consumer
            subscribe = connection.stream.pull_subscribe_bind
            connection.pull = await subscribe("group", stream="input")
        try:
            messages = await connection.pull.fetch(peer.BATCH, peer.RECEIVE_S)
        except TimeoutError:
            messages = []
        if not messages:
            connection.check()
            return 0
        sends = [
            (f"out.{topic}", row.data, {"Nats-Msg-Id": f"{topic}-{peer.number_of(row.data)}"})
            for topic in peer.OUTPUTS
            for row in messages
        ]
        answer = await connection.send(sends)
        if b"duplicate message id" in answer:  # some of them are stored: the others one by one
            for send in sends:
                answer = await connection.send_one(*send)
        if b'"error"' in answer:
            raise RuntimeError(answer.decode())
        await asyncio.gather(*(row.ack_sync(timeout=10) for row in messages))
        return len(messages)

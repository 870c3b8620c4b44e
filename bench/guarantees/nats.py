"""NATS JetStream: an atomic batch on the stream of both outputs, then acknowledgements."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import uuid
from collections.abc import Coroutine
from typing import Any, ClassVar

from bench.guarantees import peer

MODULE = "github.com/nats-io/nats-server/v2@v2.15.3"
CONFIGURATION = """listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{folder}/jetstream", sync_interval: always }}
"""
ACK_WAIT_NS = 3_000_000_000  # then another client gets the message
HOUR_NS = 3_600_000_000_000


def server() -> str:
    """The peer.program, which Go builds once. Raises peer.Unavailable."""
    built = peer.WORK / "bin" / "nats-server"
    if not built.exists():
        made = subprocess.run(
            [peer.program("go", "Go 1.25"), "install", MODULE],
            env={**os.environ, "GOBIN": str(built.parent)},
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            raise peer.Unavailable(f"Go did not build nats-server: {made.stderr.strip()[-200:]}")
    return str(built)


class Connection:
    """A connection, with an event loop of its own."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        nats = peer.package("nats", "nats-py")
        options = {"allow_reconnect": False, "connect_timeout": 5, "error_cb": _quiet}
        self.nats = self.run(nats.connect(url, **options))
        self.stream = self.nats.jetstream(timeout=10)

    def run(self, what: Coroutine[Any, Any, Any]) -> Any:
        """Its result."""
        return self._loop.run_until_complete(what)

    def close(self) -> None:
        self.run(self.nats.close())
        self._loop.close()


async def _quiet(error: Exception) -> None:
    """The call that fails raises it, too."""


class NatsSession(peer.Session):
    """A connection with a pull subscription; all share the durable consumer."""

    def __init__(self, url: str) -> None:
        self._connection = Connection(url)
        subscribe = self._connection.stream.pull_subscribe_bind
        self._pull = self._connection.run(subscribe("group", stream="input"))

    def move(self) -> int:
        return int(self._connection.run(self._move()))

    async def _move(self) -> int:
        try:
            messages = await self._pull.fetch(peer.BATCH, peer.RECEIVE_S)
        except TimeoutError:
            messages = []
        if not messages:
            return 0
        sends = [(topic, row.data) for topic in ("a", "b") for row in messages]
        batch = {"Nats-Batch-Id": uuid.uuid4().hex}
        for place, (topic, value) in enumerate(sends[:-1], 1):
            await self._send(topic, value, batch | {"Nats-Batch-Sequence": str(place)})
        last = {"Nats-Batch-Sequence": str(len(sends)), "Nats-Batch-Commit": "1"}
        answer = await self._send(*sends[-1], batch | last, is_answered=True)
        if b"duplicate message id" in answer:  # some of them are stored: the others one by one
            for topic, value in sends:
                answer = await self._send(topic, value, {}, is_answered=True)
        if b'"error"' in answer:
            raise RuntimeError(answer.decode())
        await asyncio.gather(*(row.ack_sync(timeout=10) for row in messages))
        return len(messages)

    async def _send(
        self, topic: str, value: bytes, headers: dict[str, str], *, is_answered: bool = False
    ) -> bytes:
        nats, subject = self._connection.nats, f"out.{topic}"
        headers = {**headers, "Nats-Msg-Id": f"{topic}-{peer.number_of(value)}"}
        if not is_answered:
            await nats.publish(subject, value, headers=headers)
            return b""
        answer = await nats.request(subject, value, timeout=10, headers=headers)
        return bytes(answer.data)

    def close(self) -> None:
        self._connection.close()


class Nats(peer.Peer):
    """A server of its own with JetStream."""

    title = "NATS JetStream"
    setup = (
        "2.15.3, built by Go, nats-py; `sync_interval: always`; an atomic batch of 20 with "
        "`Nats-Msg-Id`, then 10 confirmed acknowledgements; a connection for each transaction in "
        "flight"
    )
    guarantees: ClassVar = {
        "topics together": ("partly", "an atomic batch (`allow_atomic`): subjects of one stream"),
        "with acknowledgements": ("no", "they follow the batch"),
        "fencing": ("no", "a late client's acknowledgement and batch are taken"),
        "duplicates dropped": ("yes", "`Nats-Msg-Id` in `duplicate_window`, here an hour"),
        "readers not held up": ("yes", "a batch is in the stream when it is complete"),
        "survives power loss": ("yes", "`sync_interval: always`; by default 2 minutes"),
    }
    most = 400
    patience_s = 6.0

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port()}"

    def start(self) -> None:
        settings = self.folder / "nats.conf"
        settings.write_text(CONFIGURATION.format(port=self.port(), folder=self.folder))
        self.launch([server(), "-c", settings])
        errors = (peer.package("nats.errors", "nats-py").Error, OSError)
        peer.eventually(lambda: self._ask("$JS.API.INFO", {}), errors)

    def _ask(self, subject: str, request: dict[str, Any]) -> dict[str, Any]:
        connection = Connection(self.url)
        try:
            call = connection.nats.request(subject, json.dumps(request).encode(), timeout=10)
            answer: dict[str, Any] = json.loads(connection.run(call).data)
        finally:
            connection.close()
        if "error" in answer:
            raise RuntimeError(str(answer["error"]))
        return answer

    def produce(self, count: int, depth: int) -> None:
        for name, subjects in (("input", ["input"]), ("outputs", ["out.*"])):
            stream = {"name": name, "subjects": subjects, "storage": "file", "allow_atomic": True}
            self._ask(f"$JS.API.STREAM.CREATE.{name}", {**stream, "duplicate_window": HOUR_NS})
        group = {"durable_name": "group", "ack_policy": "explicit", "ack_wait": ACK_WAIT_NS}
        group |= {"max_ack_pending": 100_000}
        create = {"stream_name": "input", "config": group}
        self._ask("$JS.API.CONSUMER.DURABLE.CREATE.input.group", create)
        connection = Connection(self.url)
        connection.run(self._fill(connection.nats, count))
        connection.close()

    async def _fill(self, nats: Any, count: int) -> None:
        for first in range(0, count, 500):
            numbers = range(first, min(count, first + 500))
            batch = {"Nats-Batch-Id": uuid.uuid4().hex}
            for place, number in enumerate(numbers, 1):
                headers = {**batch, "Nats-Batch-Sequence": str(place)}
                if place < len(numbers):
                    await nats.publish("input", peer.payload(number), headers=headers)
                else:
                    headers["Nats-Batch-Commit"] = "1"
                    await nats.request("input", peer.payload(number), timeout=60, headers=headers)

    def session(self, number: int, depth: int) -> peer.Session:
        return NatsSession(self.url)

    def stored(self) -> list[list[int]]:
        connection = Connection(self.url)
        outputs: dict[str, list[int]] = {"out.a": [], "out.b": []}
        total = self._ask("$JS.API.STREAM.INFO.outputs", {})["state"]["messages"]
        connection.run(self._read(connection.stream, total, outputs))
        connection.close()
        return list(outputs.values())

    async def _read(self, stream: Any, total: int, outputs: dict[str, list[int]]) -> None:
        pull = await stream.pull_subscribe("out.*", stream="outputs")
        while total:
            for row in await pull.fetch(min(total, 1_000), 10):
                outputs[row.subject].append(peer.number_of(row.data))
                await row.ack()
                total -= 1

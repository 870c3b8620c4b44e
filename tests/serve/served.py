"""A server in a thread of the test, and a client that speaks the protocol byte by byte."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import txlog
from txlog.serve.app import Server
from txlog.serve.core.service import ServerOptions
from txlog.serve.core.sockets import Address
from txlog.serve.pulsar import wire
from txlog.serve.pulsar.messages import BaseCommand, MessageMetadata
from txlog.serve.pulsar.wire import Frame, FrameDecoder

WAIT_SECONDS = 30


@contextmanager
def served(path: Path, port: int = 0, **options: Any) -> Iterator[str]:
    """Serve a store, made if there is none; gives the URL for clients of Pulsar."""
    with served_twice(path, port, None, **options) as places:
        yield places[0]


@contextmanager
def served_twice(
    path: Path,
    port: int = 0,
    http: Address | None = Address("127.0.0.1", 0),  # noqa: B008  # it does not change
    **options: Any,
) -> Iterator[list[str]]:
    """Serve a store, made if there is none; gives the URLs for clients of Pulsar and for HTTP."""
    if not (path / "txlog.toml").exists():
        txlog.init(str(path))
    places: list[str] = []
    ready = threading.Event()
    loops: list[tuple[asyncio.AbstractEventLoop, Server]] = []

    async def run() -> None:
        server = Server(
            txlog.open(str(path)), ServerOptions(Address("127.0.0.1", port), http, **options)
        )
        loops.append((asyncio.get_running_loop(), server))
        try:
            places.extend(await server.start())
        finally:
            ready.set()
        await server.wait()
        await server.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    ready.wait(WAIT_SECONDS)
    try:
        yield places
    finally:
        loop, server = loops[0]
        loop.call_soon_threadsafe(server.stop)
        thread.join(WAIT_SECONDS)


class Raw:
    """A client that sends the commands of a test and reads the server's frames."""

    def __init__(self, url: str, *, connects: bool = True, version: str = "raw") -> None:
        host, port = url.removeprefix("pulsar://").split(":")
        self.socket = socket.create_connection((host, int(port)), WAIT_SECONDS)
        self.frames = FrameDecoder(1 << 24)
        self.came: list[Frame] = []
        if connects:
            self.send("connect", client_version=version, protocol_version=19)
            self.read("connected")

    def __enter__(self) -> Raw:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    def send(self, name: str, /, **fields: object) -> None:
        """Send a command."""
        self.socket.sendall(wire.encode_command(name, **fields))

    def message(self, name: str, payload: bytes, head: dict[str, Any], /, **fields: object) -> None:
        """Send a command with a message."""
        metadata = MessageMetadata(producer_name="", publish_time=1, **head).SerializeToString()
        command = wire.make_command(name, **fields).SerializeToString()
        self.socket.sendall(b"".join(wire.message_frame(command, metadata, payload)))

    def frame(self) -> Frame:
        """The next frame; raises EOFError when the server has closed."""
        while not self.came:
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError
            self.came += self.frames.feed(data)
        return self.came.pop(0)

    def read(self, name: str) -> Any:
        """Read the next command, which must have this name; returns its body."""
        frame = self.frame()
        kind = BaseCommand.DESCRIPTOR.fields_by_number[frame.kind].name
        assert kind == name, f"{kind}: {frame.body}"
        return frame.body

    def ask(self, name: str, answer: str, /, **fields: object) -> Any:
        """Send a command and read its answer."""
        self.send(name, request_id=7, **fields)
        return self.read(answer)

"""Owns a server in the process of a test, and clients that send exact bytes and fields."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import txlog
from txlog.clock import ManualClock
from txlog.serve.app import Server
from txlog.serve.auth import AccessControl, AuthProvider
from txlog.serve.core.service import ServerOptions
from txlog.serve.core.sockets import Address
from txlog.serve.limits.limits import Limits
from txlog.serve.pulsar.messages import FIELDS, BaseCommand, MessageMetadata, Proto
from txlog.serve.pulsar.wire import encode_command, make_command, message_frame

Told = list[tuple[str, Mapping[str, object]]]
Program = Callable[["Served"], Awaitable[Any]]
LOCAL = Address("127.0.0.1", 0)


class Served:
    """A running server, its addresses, and the events that it has reported."""

    def __init__(self, server: Server, places: list[str], told: Told) -> None:
        self.server, self.told = server, told
        self.clients = list[Wire]()
        self.pulsar, self.http = (int(place.rpartition(":")[2]) for place in places)

    @property
    def service(self) -> Any:
        """The service that its listeners share."""
        return self.server.service

    async def client(self, **tls: Any) -> Wire:
        """A connection that has sent nothing so far."""
        client = Wire(*await asyncio.open_connection("127.0.0.1", self.pulsar, **tls))
        self.clients.append(client)
        return client

    async def connected(self, **fields: Any) -> Wire:
        """A connection after the handshake."""
        make_command = await self.client()
        make_command.send("connect", client_version="test", protocol_version=19, **fields)
        assert (await make_command.answer()).HasField("connected")
        return make_command

    async def request(self, head: str, body: bytes = b"") -> tuple[int, str]:
        """Status and text of the answer to a request as it is."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.http)
        writer.write(head.replace("\n", "\r\n").encode() + body)
        answer = await reader.read()
        writer.close()
        head_, _, text = answer.decode(errors="replace").partition("\r\n\r\n")
        return int(head_.split()[1]) if head_ else 0, head_ + "\n" + text


class Wire:
    """A client of the protocol, frame by frame."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, name: str, /, **fields: Any) -> None:
        self.writer.write(encode_command(name, **fields))

    def message(
        self,
        payload: bytes,
        fields: dict[str, Any],
        head: dict[str, Any],
        /,
        spoils: int = 0,
        **more: Any,
    ) -> None:
        """Send a message; spoils: how many bits of its checksum are wrong."""
        number = more["sequence_id"]
        metadata = MessageMetadata(producer_name="", publish_time=1, sequence_id=number, **head)
        command = make_command("send", num_messages=1, **fields, **more).SerializeToString()
        first, rest = message_frame(command, metadata.SerializeToString(), payload)
        at = 8 + len(command) + 2
        first = first[:at] + bytes([first[at] ^ ((1 << spoils) - 1)]) + first[at + 1 :]
        self.writer.writelines([first, rest])

    async def answer(self) -> Proto:
        """The next command."""
        size, length = struct.unpack(">II", await self.reader.readexactly(8))
        data = await self.reader.readexactly(size - 4)
        command = BaseCommand()
        command.ParseFromString(data[:length])
        return command

    async def ask(self, name: str, /, **fields: Any) -> Any:
        """Send a command; returns the body of the answer."""
        self.send(name, **fields)
        answer = await self.answer()
        return getattr(answer, FIELDS[answer.type])

    async def is_ended(self) -> bool:
        """Whether the server has ended the connection; reads the rest of its output."""
        try:
            while await self.reader.read(1 << 16):
                pass
        except ConnectionError:
            pass
        return True

    def close(self) -> None:
        self.writer.close()


def serving(
    folder: Path,
    program: Program,
    *,
    limits: Limits = Limits(),  # noqa: B008 - a value
    rules: str | None = None,
    clock: ManualClock | None = None,
    seconds: float = 60,
    **options: Any,
) -> Any:
    """Make a store in a folder, serve it, and run a program against the server."""
    path, told = str(folder / "store"), Told()
    txlog.init(path, durability="os", free_bytes_min=0, if_not_exists=True)
    guard = None
    if rules is not None:
        (folder / "rules.toml").write_text(rules)
        guard = AuthProvider(folder / "rules.toml", clock or ManualClock(1_790_000_000_000))

    async def main() -> Any:
        options_of_server = ServerOptions(LOCAL, LOCAL, limits=limits, **options)._replace(
            tell=lambda event, facts: told.append((event, facts))
        )
        server = Server(txlog.open(path), options_of_server, AccessControl(guard))
        places = await server.start()
        try:
            served = Served(server, places, told)
            return await asyncio.wait_for(program(served), seconds)
        finally:
            for client in served.clients:
                client.writer.transport.abort()
            server.stop()
            server.stop()
            await server.close()

    return asyncio.run(main())

"""The memory of a server that HTTP clients occupy: it is counted, bounded, and freed."""

from __future__ import annotations

import asyncio
import base64
import json
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

import txlog
from tests.serve.siege import Served, serving
from txlog.serve.limits.limits import Limits

pytestmark = pytest.mark.usefixtures("quick_disk")
MIB = 1 << 20
TOPIC = "/topics/persistent/public/default/large"
SOCKET = "/ws/v2/{}/persistent/public/default/large"
UPGRADE = (
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
)
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def filled(count: int, size: int) -> Callable[[txlog.Client], None]:
    """A topic with messages."""

    def act(client: txlog.Client) -> None:
        client.create_topic("large")
        with client.producer("large") as producer:
            for _ in range(count):
                producer.send(b"x" * size)

    return act


async def asked(served: Served, path: str, more: str = "") -> Stream:
    """A request whose answer is not read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.http, limit=1 << 16)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n".encode())
    return reader, writer


def framed(data: bytes, first: int = 0x81) -> bytes:
    """A frame of a WebSocket; its mask changes nothing."""
    return bytes([first, 0xFF]) + len(data).to_bytes(8) + bytes(4) + data


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_read_is_bounded_and_names_the_next_position(tmp_path: Path) -> None:
    """Kills: one GET that needs several times the size of a topic as memory."""

    async def program(served: Served) -> None:
        await served.service.client.run(filled(12, MIB))
        start, pages = "start", list[int]()
        while not pages or pages[-1]:
            head = f"GET {TOPIC}?limit=10000&start={start} HTTP/1.1\nHost: localhost\n"
            status, text = await served.request(head + "Connection: close\n\n")
            assert status == 200
            page = json.loads(text.partition("\n{")[1] + text.partition("\n{")[2])
            pages.append(len(page["messages"]))
            start = page["next"]
        assert pages == [8, 4, 0]
        await until(lambda: not served.service.budget.held)
        await served.service.client.run(lambda client: client.create_topic("wide", 2))

        def fill(client: txlog.Client) -> None:
            with client.producer("wide") as producer:
                for number in range(12):
                    producer.send(bytes(MIB), partition=number % 2)

        await served.service.client.run(fill)
        path = TOPIC.replace("large", "wide")
        head = f"GET {path}?limit=100 HTTP/1.1\nHost: localhost\nConnection: close\n\n"
        status, text = await served.request(head)
        assert status == 412
        assert "one partition at a time" in text

    serving(tmp_path, program)


def test_unread_answers_are_bounded_and_dropped(tmp_path: Path) -> None:
    """Kills: answers that stay in memory for ever, because clients do not read them."""

    async def program(served: Served) -> None:
        await served.service.client.run(filled(8, MIB))
        budget = served.service.budget
        unread = [await asked(served, f"{TOPIC}?limit=100") for _ in range(20)]
        await until(lambda: budget.held > 5 * MIB)
        # a client that waits for memory goes on when earlier clients are dropped
        await until(lambda: len(served.told) == len(unread))
        assert {fact["reason"] for _, fact in served.told} == {"it did not read its answer"}
        assert budget.peak < 16 * MIB + 4 * 9 * MIB  # four read at a time
        await until(lambda: not budget.held and not served.service.connection_limit.count)
        for reader, writer in unread:  # the kernel keeps nothing of it either
            with pytest.raises(ConnectionResetError):
                while await reader.read(MIB):
                    pass
            writer.transport.abort()

    limits = Limits(memory_bytes=16 * MIB, idle_timeout_ms=100)
    serving(tmp_path, program, limits=limits)


def test_unread_tails_stop_reading_the_topic(tmp_path: Path) -> None:
    """Kills: a growing queue of messages for each client that follows a topic and reads nothing."""

    async def program(served: Served) -> None:
        await served.service.client.run(filled(12, MIB))
        budget = served.service.budget
        path = SOCKET.format("reader") + "?messageId=earliest"
        tails = [await asked(served, f"{TOPIC}/events?start=start") for _ in range(5)]
        tails += [await asked(served, path, UPGRADE) for _ in range(5)]
        await until(lambda: budget.held > 10 * MIB)
        for _ in range(50):  # time enough to read more
            await served.service.client.run(lambda client: client.status())
        assert budget.peak < 80 * MIB
        reader, _ = tails[0]
        got = 0
        while got < 12 * MIB:  # all of it comes, once it is read
            got += len(await reader.read(1 << 20))
        for _, writer in tails:
            writer.transport.abort()
        await until(lambda: not budget.held)

    serving(tmp_path, program, limits=Limits(memory_bytes=64 * MIB))


def test_websocket_messages_wait_for_memory(tmp_path: Path) -> None:
    """Kills: a server that reads a thousand messages of each connection before it stores one."""

    async def program(served: Served) -> None:
        budget = served.service.budget
        text = json.dumps({"payload": base64.b64encode(bytes(3 * MIB)).decode()}).encode()
        sockets = [await asked(served, SOCKET.format("producer"), UPGRADE) for _ in range(4)]
        others = budget.share("others", 1 << 40)
        for reader, _ in sockets:
            assert b"101" in await reader.readline()
        others.take(64 * MIB)  # other clients hold all the memory
        for _, writer in sockets:
            for _ in range(5):
                writer.write(framed(text))
        for _ in range(50):
            await served.service.client.run(lambda client: client.status())
        assert budget.held < 64 * MIB + 4 * MIB
        others.close()
        for reader, _ in sockets:
            stored = 0
            while stored < 5:
                stored += (await reader.read(1 << 16)).count(b'"ok"')
        assert budget.peak < 80 * MIB
        for _, writer in sockets:
            writer.transport.abort()
        await until(lambda: not budget.held)

    serving(tmp_path, program, limits=Limits(memory_bytes=64 * MIB))


def test_frames_of_websockets_are_not_unpacked(tmp_path: Path) -> None:
    """Kills: a few KiB that become gigabytes."""

    async def program(served: Served) -> None:
        offer = UPGRADE + "Sec-WebSocket-Extensions: permessage-deflate\r\n"
        reader, writer = await asked(served, SOCKET.format("producer"), offer)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"101" in head
        assert b"deflate" not in head
        packer = zlib.compressobj(wbits=-15)
        packed = packer.compress(bytes(10 * MIB)) + packer.flush(zlib.Z_SYNC_FLUSH)
        writer.write(framed(packed[:-4], 0xC1))
        assert (await reader.read(1 << 16))[:1] == b"\x88"  # it is closed: 1002
        writer.transport.abort()

    serving(tmp_path, program)


@pytest.mark.parametrize("fragment", [b"", b"x" * 1_000])
def test_a_message_of_a_websocket_that_does_not_end_is_dropped(
    tmp_path: Path, fragment: bytes
) -> None:
    async def program(served: Served) -> None:
        reader, writer = await asked(served, SOCKET.format("producer"), UPGRADE)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(framed(b"{", 0x01) + framed(fragment, 0x00) * 50)
        await until(lambda: served.service.budget.held >= 50 * 64)
        assert await reader.read() == b""
        writer.transport.abort()
        assert served.told[-1][1]["reason"] == "a message was not completed in time"
        await until(lambda: not served.service.budget.held)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("txlog.serve.http.listener.MESSAGE_MAX", 1 << 16)
        serving(tmp_path, program, limits=Limits(frame_timeout_ms=100))

"""Slow and hostile clients: the server drops each one alone, in bounded time and memory."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any

import pytest

import txlog
from tests.serve.fuzz import BOMB
from tests.serve.siege import Served, Wire, serving
from txlog.client.aio import waits
from txlog.engine.plan.consuming.choice import active_consumer
from txlog.errors import SnapshotExpired
from txlog.serve.core import catalog
from txlog.serve.core.catalog import CatalogSnapshot
from txlog.serve.limits.limits import Limits
from txlog.serve.pulsar import members
from txlog.serve.pulsar.messages import ERRORS
from txlog.serve.pulsar.wire import encode_command

pytestmark = pytest.mark.usefixtures("quick_disk")
DAY_MS = 86_400_000
ENOUGH_S = 30  # far less than the time after which a hanging test is killed
QUICK = Limits(connect_timeout_ms=100, frame_timeout_ms=100, idle_timeout_ms=100)


async def still_served(served: Served) -> None:
    """Check that another client is served as usual."""
    other = await served.connected()
    assert (await other.ask("ping")) is not None
    other.close()


REST = "/topics/persistent/public/default/large"
ADMIN = "/admin/v2/persistent/public/default"


async def stores(served: Served, payload: bytes) -> None:
    """Another client stores a message."""
    other = await served.connected()
    opened = {"topic": "large", "producer_id": 1, "request_id": 1}
    assert (await other.ask("producer", **opened)).producer_ready
    other.message(payload, {}, {}, producer_id=1, sequence_id=0)
    assert (await other.answer()).HasField("send_receipt")
    other.close()


def frame(size: int, data: bytes) -> bytes:
    return struct.pack(">I", size) + data


BAD = {
    "a size of nothing": frame(0, b""),
    "a size of everything": frame(0xFFFFFFFF, b""),
    "larger than a first frame": frame(65_537, b""),
    "a command longer than its frame": frame(8, struct.pack(">I", 5) + b"abcd"),
    "no command": frame(8, struct.pack(">I", 4) + b"\xff\xff\xff\xff"),
    "another protocol": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS where there is none": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "a command before CONNECT": encode_command("ping"),
    "a producer before CONNECT": encode_command("producer", topic="x", producer_id=1, request_id=1),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_malformed_frame_ends_the_connection(folder: Path, data: bytes) -> None:
    async def program(served: Served) -> None:
        bad = await served.client()
        bad.writer.write(data)
        await bad.is_ended()
        await still_served(served)
        assert [event for event, _ in served.told] == ["dropped"]

    serving(folder, program)


@pytest.mark.parametrize("data", [b"", b"\x00", encode_command("connect", client_version="x")[:-1]])
def test_client_that_does_not_authenticate_is_dropped(folder: Path, data: bytes) -> None:
    """Kills: slowloris, and sockets that are opened and forgotten."""

    async def program(served: Served) -> None:
        slow = await served.client()
        slow.writer.write(data)
        await slow.is_ended()
        assert served.service.connection_limit.count == 0
        assert served.service.budget.held == 0

    serving(folder, program, limits=QUICK)


def test_client_that_sends_byte_by_byte_is_dropped(folder: Path) -> None:
    """A byte now and then is no sign of life: a frame must be complete within its timeout."""

    async def program(served: Served) -> None:
        slow = await served.connected()
        whole = encode_command("partitionMetadata", topic="x" * 5_000, request_id=1)
        for at in range(len(whole)):
            slow.writer.write(whole[at : at + 1])
            await asyncio.sleep(0.002)
            if slow.writer.is_closing() or slow.reader.at_eof():
                break
        await slow.is_ended()
        assert at < len(whole) - 1
        assert served.told[-1][0] == "dropped"

    serving(folder, program, limits=QUICK)


def test_a_silent_client_is_asked_and_then_dropped(folder: Path) -> None:
    async def program(served: Served) -> None:
        silent = await served.connected()
        assert (await silent.answer()).HasField("ping")
        silent.send("pong")
        assert (await silent.answer()).HasField("ping")
        await silent.is_ended()

    serving(folder, program, limits=QUICK)


def test_connections_beyond_the_limit_are_refused_alone(folder: Path) -> None:
    async def program(served: Served) -> None:
        first = await served.connected()
        second = await served.connected()
        third = await served.client()
        third.send("connect", client_version="test", protocol_version=19)
        answer = await third.answer()
        assert answer.error.error == ERRORS["TooManyRequests"]
        assert "TXL-509" in answer.error.message
        await third.is_ended()
        assert (await served.request("GET /metrics HTTP/1.1\nHost: localhost\n\n"))[0] == 429
        assert (await served.request("GET /ready HTTP/1.1\nHost: localhost\n\n"))[0] == 200
        assert await first.ask("ping") is not None
        second.close()
        while served.service.connection_limit.count > 1:
            await asyncio.sleep(0)
        await still_served(served)

    serving(folder, program, limits=Limits(connections=2))


def test_announced_bytes_take_no_memory_until_they_arrive(folder: Path) -> None:
    """Kills: a few clients that begin large frames and bodies, and keep out all large messages."""

    async def program(served: Served) -> None:
        budget = served.service.budget
        size = served.service.store.settings.max_message_bytes
        clients = [await served.connected() for _ in range(20)]
        for client in clients:
            client.writer.write(frame(size, bytes(1_000)))
        head = f"POST {REST} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {8 << 20}\r\n\r\n"
        bodies = [await asyncio.open_connection("127.0.0.1", served.http) for _ in range(20)]
        for _, writer in bodies:
            writer.write(head.encode() + bytes(1_000))
        while budget.held < 40 * 1_000:
            await asyncio.sleep(0)
        await stores(served, bytes(size - 1_000))
        assert budget.peak <= budget.bytes_max
        for client in clients:
            client.writer.transport.abort()
        for _, writer in bodies:
            writer.transport.abort()
        while budget.held:
            await asyncio.sleep(0)

    serving(folder, program, limits=Limits(memory_bytes=12 << 20))


def test_client_waiting_for_memory_is_not_dropped(folder: Path) -> None:
    """Kills: honest producers that lose their connection while other clients hold the memory."""

    async def program(served: Served) -> None:
        others = served.service.budget.share("others", 1 << 40)
        others.take(11 << 20)
        request = f"POST {REST} HTTP/1.1\nHost: localhost\nContent-Length: 150000\n\n"
        storing = asyncio.create_task(stores(served, bytes(70_000)))
        answer = asyncio.create_task(served.request(request, bytes(150_000)))
        for _ in range(3):  # when a stalled client is dropped, the frame timeout has passed
            slow = await served.connected()
            slow.writer.write(frame(65_000, bytes(100)))
            await slow.is_ended()
        assert not storing.done()
        assert not answer.done()
        others.close()
        await storing
        assert (await answer)[0] == 400  # it is no JSON, but it came
        assert [event for event, _ in served.told] == ["dropped"] * 3

    quick = Limits(memory_bytes=12 << 20, frame_timeout_ms=100)
    serving(folder, program, limits=quick)


def test_a_frame_that_has_room_keeps_it_until_it_is_whole(folder: Path) -> None:
    """Kills: memory that is given up after each piece, so that frames are read in turns."""

    async def program(served: Served) -> None:
        budget = served.service.budget
        size = served.service.store.settings.max_message_bytes
        clients = [await served.connected() for _ in range(20)]
        connections = [*served.server.listeners[0].connections]  # type: ignore[attr-defined]
        for item in clients:
            item.writer.write(frame(size, bytes(size - 1_000_000)))
        most = 0
        for _ in range(40):
            await still_served(served)
            most = max(most, sum(_held(item) for item in connections))
        # Each has a little before its frame has room.
        assert most <= budget.bytes_max + budget.bytes_max // 4 + len(connections) * (64 << 10)
        assert budget.ahead <= budget.bytes_max // 4

    serving(folder, program, limits=Limits(memory_bytes=12 << 20))


def test_consumers_that_read_nothing_use_little_memory(folder: Path) -> None:
    """Kills: all messages that a consumer has permits for, in memory while it does not read."""
    count, size, megabyte = 10, 1_000_000, 1 << 20

    def fill(client: txlog.Client) -> None:
        client.create_topic("large")
        with client.producer("large") as producer:
            for _ in range(count):
                producer.send(bytes(size))

    async def program(served: Served) -> None:
        await served.service.client.run(fill)
        slow = [await served.connected() for _ in range(3)]
        connections = [*served.server.listeners[0].connections]  # type: ignore[attr-defined]
        for at, one in enumerate(slow):
            for number in (1, 2):  # a connection has as much as one consumer
                name = {"subscription": f"s{at}-{number}", "initialPosition": 1}
                ids = {"consumer_id": number, "request_id": number}
                await one.ask("subscribe", topic="large", subType=1, **name, **ids)
            one.writer.transport.pause_reading()  # type: ignore[attr-defined]
            for number in (1, 2):
                one.send("flow", consumer_id=number, messagePermits=1_000_000)
        # The server may read the last client only after the others have filled the shared backlog.
        turns_after = 0
        while turns_after < 10 * count:  # enough to deliver all, if nothing held it up
            await served.service.client.run(lambda client: None)  # all earlier calls have ended
            turns_after += served.service.backlog.is_large
        await still_served(served)
        most = [one._writer.transport.get_write_buffer_size() for one in connections]
        backlog = served.service.backlog
        assert max(most) < 6 * megabyte
        assert backlog.used <= backlog.peak <= backlog.bytes_max + len(slow) * 4 * megabyte
        slow[0].writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(2 * count):  # all messages arrive in the end
            assert (await slow[0].answer()).HasField("message")

    # the idle timeout is long, so that a busy machine drops none of the silent clients
    limits = Limits(memory_bytes=16 << 20, idle_timeout_ms=DAY_MS)
    serving(folder, program, limits=limits)


def test_endless_answer_frees_the_memory_of_its_request(folder: Path) -> None:
    """Kills: clients that send a body, then only listen, and hold the memory of large frames."""
    head = b"GET /page/stream HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"

    async def program(served: Served) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.http)
        writer.write(head + b"5\r\nhello\r\n0\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"200"
        assert await reader.readuntil(b"data: ")
        assert served.service.budget.held == 0
        writer.close()

    serving(folder, program)


def test_hanging_offloads_do_not_block_other_requests(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a few long calls of administrators that occupy all threads of the store."""
    hangs = threading.Event()

    def offload(*_: object) -> dict[str, object]:
        assert hangs.wait(60)
        return {}

    async def program(served: Served) -> None:
        await served.service.client.run(lambda client: client.create_topic("large"))
        monkeypatch.setattr("txlog.client.admin.Admin.offload", offload)
        head = f"PUT {ADMIN}/large/offload HTTP/1.1\nHost: localhost\nConnection: close\n\n"
        waiting = [asyncio.create_task(served.request(head)) for _ in range(36)]
        while sum(task.done() for task in waiting) < 32:
            await asyncio.sleep(0.001)
        assert {task.result()[0] for task in waiting if task.done()} == {429}
        await stores(served, b"x")
        look = f"GET {ADMIN}/large/stats HTTP/1.1\nHost: localhost\nConnection: close\n\n"
        assert (await served.request(look))[0] == 200
        hangs.set()
        statuses = [status for status, _ in await asyncio.gather(*waiting)]
        assert statuses.count(200) == 4
        assert (await served.request(head))[0] == 200  # a thread is free again

    serving(folder, program, places={"cold": str(folder)})


def test_older_census_closes_no_newer_handle(folder: Path) -> None:
    """A census is taken in another thread, and lacks what a client opens meanwhile.

    Kills: a new producer or consumer that the server closes because an old census lacks it.
    """

    async def program(served: Served) -> None:
        run = served.service.client.run
        first_census = await run(lambda client: client.store.read(CatalogSnapshot.of))
        await run(lambda client: client.create_topic("new"))
        raw = await served.connected()
        await raw.ask("producer", topic="new", producer_id=1, request_id=1)
        shared = {"subscription": "s", "subType": 1}
        await raw.ask("subscribe", topic="new", consumer_id=1, request_id=2, **shared)
        [connection] = served.server.listeners[0].connections  # type: ignore[attr-defined]
        second_census = await run(lambda client: client.store.read(CatalogSnapshot.of))
        for census in (first_census, second_census):
            for room in connection.open_handles:
                await room.follow(census)
        raw.send("ping")
        assert (await raw.answer()).HasField("pong"), "and nothing before it"
        await run(lambda client: client.subscription("new", "s").delete(force=True))
        assert (await raw.answer()).HasField("close_consumer")

    serving(folder, program)


def test_failed_census_is_repeated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: one expired snapshot, and no client learns any more of deleted topics and its turn."""
    monkeypatch.setattr(catalog, "RETRY_SECONDS", 0)
    monkeypatch.setattr(members, "ACTIVE_SECONDS", 0)
    looks: list[str] = []

    def failing(name: str, look: Callable[..., Any]) -> Callable[..., Any]:
        def first(*args: Any) -> Any:
            looks.append(name)
            if looks.count(name) < 3:
                raise SnapshotExpired("the store moved on faster than it could be read")
            return look(*args)

        return first

    monkeypatch.setattr(catalog, "_version", failing("stamp", catalog._version))
    turn = failing("turn", active_consumer)

    async def program(served: Served) -> None:
        run = served.service.client.run
        await run(lambda client: client.create_topic("new"))
        one, two = await served.connected(), await served.connected()
        failover = {"subscription": "s", "subType": 2, "topic": "new"}
        for wire, is_active in ((one, True), (two, False)):
            wire.send("subscribe", consumer_id=1, request_id=1, **failover)
            answers = [await wire.answer(), await wire.answer()]
            [change] = [each for each in answers if each.HasField("active_consumer_change")]
            assert change.active_consumer_change.is_active is is_active
        monkeypatch.setattr("txlog.serve.pulsar.members.active_consumer", turn)
        one.send("close_consumer", consumer_id=1, request_id=2)
        assert (await two.answer()).active_consumer_change.is_active
        await run(lambda client: client.subscription("new", "s").delete(force=True))
        while (answer := await two.answer()).HasField("active_consumer_change"):
            pass
        assert answer.HasField("close_consumer")
        assert min(map(looks.count, ("stamp", "turn"))) > 2

    serving(folder, program)


def test_a_consumer_that_acknowledges_nothing_gets_no_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Pulsar, a consumer of a shared type gets more once it acknowledges."""
    monkeypatch.setattr(members, "HELD_MAX", 10)

    def fill(client: txlog.Client) -> None:
        client.create_topic("many")
        with client.producer("many", "till") as producer:
            for at in range(40):
                producer.send(b"%d" % at)

    async def program(served: Served) -> None:
        monkeypatch.setattr(members, "TAKE_MAX", 5)
        await served.service.client.run(fill)
        one = await served.connected()
        shared = {"subscription": "s", "subType": 1, "initialPosition": 1}
        await one.ask("subscribe", topic="many", consumer_id=1, request_id=1, **shared)
        one.send("flow", consumer_id=1, messagePermits=100)
        ids = [(await one.answer()).message.message_id for _ in range(10)]
        await one.ask("ping")  # and nothing before the answer
        one.send("ack", consumer_id=1, ack_type=0, message_id=ids[:3])
        assert (await one.answer()).HasField("message")
        # an exclusive one may acknowledge all at its end, and gets what it has again
        alone = {"subscription": "x", "subType": 0, "initialPosition": 1}
        other = await served.connected()
        await other.ask("subscribe", topic="many", consumer_id=2, request_id=1, **alone)
        assert (await other.answer()).HasField("active_consumer_change")
        other.send("flow", consumer_id=2, messagePermits=100)
        deliveries = [await other.answer() for _ in range(40)]
        assert all(answer.HasField("message") for answer in deliveries)
        seventh, last = deliveries[6].message.message_id, deliveries[-1].message.message_id
        other.send("ack", consumer_id=2, ack_type=0, message_id=[seventh])
        other.send("redeliverUnacknowledgedMessages", consumer_id=2)
        redelivered = [(await other.answer()).message for _ in range(39)]
        assert [one.message_id.entryId for one in redelivered] == [
            one.message.message_id.entryId
            for one in deliveries
            if one.message.message_id != seventh
        ]
        fields = {"consumer_id": 2, "ack_type": 1, "message_id": [last]}
        await other.ask("ack", request_id=2, **fields)
        rows = await served.service.client.run(lambda client: client.subscriptions("many"))
        assert [row["backlog"] for row in rows if row["subscription"] == "x"] == [0]

    serving(folder, program)


@pytest.mark.parametrize("is_named", [True, False], ids=["named", "all"])
def test_messages_returned_by_a_full_consumer_are_redelivered(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    """A consumer at its limit returns messages, and gets them again at once.

    It need neither grant more permits nor acknowledge anything first.
    """
    monkeypatch.setattr(members, "HELD_MAX", 3)
    monkeypatch.setattr(members, "TAKE_MAX", 1)

    def fill(client: txlog.Client) -> None:
        client.create_topic("laden")
        with client.producer("laden", "till") as producer:
            for at in range(8):
                producer.send(b"%d" % at)

    async def program(served: Served) -> None:
        await served.service.client.run(fill)
        raw = await served.connected()
        shared = {"subscription": "s", "subType": 1, "initialPosition": 1}
        await raw.ask("subscribe", topic="laden", consumer_id=1, request_id=1, **shared)
        raw.send("flow", consumer_id=1, messagePermits=100)
        ids = [(await raw.answer()).message.message_id for _ in range(3)]
        await raw.ask("ping")  # and nothing before the answer
        fields = {"message_ids": ids} if is_named else {}
        raw.send("redeliverUnacknowledgedMessages", consumer_id=1, **fields)
        async with asyncio.timeout(ENOUGH_S):
            redelivered = [(await raw.answer()).message for _ in range(3)]
        assert [message.message_id for message in redelivered] == ids
        assert [message.redelivery_count for message in redelivered] == [1, 1, 1]

    serving(folder, program)


def test_acknowledgement_does_not_restart_a_waiting_consumer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer keeps waiting for the next message, and does not restart its wait."""
    begun: list[str] = []
    until = waits.Waits.until

    def noted(self: waits.Waits, look: Any, *arguments: Any) -> Any:
        if isinstance(getattr(look, "func", None), MethodType):
            begun.append(look.func.__name__)
        return until(self, look, *arguments)

    monkeypatch.setattr(waits.Waits, "until", noted)

    async def program(served: Served) -> None:
        consumer = await served.connected()
        await served.service.client.run(lambda client: client.create_topic("few"))
        shared = {"subscription": "s", "subType": 1, "initialPosition": 1}
        await consumer.ask("subscribe", topic="few", consumer_id=1, request_id=1, **shared)
        consumer.send("flow", consumer_id=1, messagePermits=100)
        for number in range(3):
            await served.service.client.run(lambda client: client.producer("few").send(b"m"))
            arguments = (await consumer.answer()).message.message_id
            ack = {"consumer_id": 1, "ack_type": 0, "message_id": [arguments]}
            await consumer.ask("ack", request_id=2 + number, **ack)
        await consumer.ask("ping")
        assert begun == ["_look"] * 4  # before the first message and after each

    serving(folder, program)


def _held(connection: Any) -> int:
    pending: int = connection._frames.pending + len(connection._reader._buffer)
    return pending


def test_server_stops_reading_from_a_client_that_takes_no_answers(folder: Path) -> None:
    """Kills: answers that pile up in memory for a client that only sends."""

    async def program(served: Served) -> None:
        flood = await served.connected()
        flood.writer.transport.pause_reading()  # type: ignore[attr-defined]
        pings = encode_command("ping") * 10_000
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                for _ in range(10_000):
                    flood.writer.write(pings)
                    await flood.writer.drain()
        [connection] = served.server.listeners[0].connections  # type: ignore[attr-defined]
        assert connection._writer.transport.get_write_buffer_size() < 4 << 20
        await still_served(served)
        flood.writer.transport.abort()

    serving(folder, program)


# --- HTTP ------------------------------------------------------------------------------------


def test_a_request_without_end_is_dropped(folder: Path) -> None:
    async def program(served: Served) -> None:
        for head in ("", "GET /ready HTTP/1.1\nHost: loc", "POST /x HTTP/1.1\nHost: localhost\n"):
            assert (await served.request(head))[0] == 0
        assert served.service.connection_limit.count == 0

    serving(folder, program, limits=QUICK)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(
            (name, 200)
            for name in ("localhost", "localhost:8080", "127.0.0.1:1", "[::1]:9", "[::1]")
        ),
        *(
            (name, 421)
            for name in ("evil.example", "localhost.evil.example:8080", "", "a@localhost")
        ),
    ],
)
def test_foreign_host_name_is_refused(folder: Path, host: str, status: int) -> None:
    """Kills: DNS rebinding, by which a page of another site reads this server's answers."""

    async def program(served: Served) -> None:
        head = f"GET /admin/v2/clusters HTTP/1.1\nHost: {host}\nConnection: close\n\n"
        assert (await served.request(head))[0] == status

    serving(folder, program)


def test_producers_beyond_the_limit_are_refused(folder: Path) -> None:
    async def program(served: Served) -> None:
        client = await served.connected()
        for number in (1, 2, 3):
            answer = await client.ask("producer", topic="x", producer_id=number, request_id=number)
            assert hasattr(answer, "error") == (number == 3)
        assert answer.error == ERRORS["TooManyRequests"]

    serving(folder, program, limits=Limits(producers=2))


def test_consumers_beyond_the_limit_are_refused(folder: Path) -> None:
    async def program(served: Served) -> None:
        client = await served.connected()
        fields = {"topic": "x", "subType": 1, "subscription": "s", "force_topic_creation": True}
        for number in (1, 2, 3):
            named = {"consumer_id": number, "request_id": number}
            answer = await client.ask("subscribe", **fields, **named)
            assert hasattr(answer, "error") == (number == 3)
        assert answer.error == ERRORS["TooManyRequests"]

    serving(folder, program, limits=Limits(consumers=2))


def chunk(at: int, of: int, size: int) -> dict[str, object]:
    """The metadata of a chunk of a message of some bytes."""
    place = {"chunk_id": at, "num_chunks_from_msg": of, "total_chunk_msg_size": size}
    return {"uuid": "u", **place}


@pytest.mark.parametrize(("payload", "announced"), [(b"xx", 1), (b"", 10), (b"x", 1 << 30)])
def test_impossible_chunk_is_refused(folder: Path, payload: bytes, announced: int) -> None:
    """Kills: chunks above their announced size, endless chunks, a message above the limit."""

    async def program(served: Served) -> None:
        client = await served.connected()
        await client.ask("producer", topic="x", producer_id=1, request_id=1)
        head = chunk(0, 9, announced)
        client.message(payload, {}, head, producer_id=1, sequence_id=0)
        assert (await client.answer()).HasField("send_error")
        assert (await client.answer()).close_producer.producer_id == 1
        client.send("ping")
        assert (await client.answer()).HasField("pong")
        assert served.service.budget.held == 0

    serving(folder, program)


def test_unfinished_chunked_messages_do_not_block_others(folder: Path) -> None:
    """Kills: memory that is reserved for chunks that a client only announced."""
    piece = bytes(1 << 20)

    async def program(served: Served) -> None:
        begun = [await served.connected() for _ in range(3)]
        for number, client in enumerate(begun):
            await client.ask("producer", topic=f"x{number}", producer_id=1, request_id=1)
            client.message(b"x", {}, chunk(0, 250, 250 << 20), producer_id=1, sequence_id=0)
        whole = [await served.connected() for _ in range(3)]
        for number, client in enumerate(whole):
            await client.ask("producer", topic=f"y{number}", producer_id=1, request_id=1)

        async def send(client: Wire) -> None:
            for at in range(12):
                head = chunk(at, 12, 12 << 20)
                client.message(piece, {}, head, producer_id=1, sequence_id=0)
                await client.writer.drain()
            for _ in range(12):
                assert (await client.answer()).HasField("send_receipt")

        # together they exceed the memory: the oldest waiting client goes on
        await asyncio.gather(*(send(client) for client in whole))
        assert served.service.budget.peak < 24 << 20

    serving(folder, program, limits=Limits(memory_bytes=16 << 20, connection_bytes=8 << 20))


def test_message_without_its_next_chunk_is_dropped(folder: Path) -> None:
    """The producer's next chunk is refused, and so the client sends the whole message again."""

    async def program(served: Served) -> None:
        client = await served.connected()
        await client.ask("producer", topic="x", producer_id=1, request_id=1)
        client.message(b"x" * 1_000, {}, chunk(0, 2, 2_000), producer_id=1, sequence_id=0)
        while served.service.budget.held < 1_000:
            await asyncio.sleep(0)
        while served.service.budget.held:
            client.send("pong")
            await asyncio.sleep(0.001)
        client.message(b"x" * 1_000, {}, chunk(1, 2, 2_000), producer_id=1, sequence_id=0)
        while (answer := await client.answer()).HasField("ping"):
            client.send("pong")
        assert answer.HasField("send_error")

    serving(folder, program, limits=Limits(idle_timeout_ms=100))


BATCHES = {
    "a wrong checksum": ({}, b"x", 1),
    "a bomb of zlib": ({"compression": 2, "uncompressed_size": 1 << 30}, BOMB, 0),
    "a bomb that lies": ({"compression": 2, "uncompressed_size": 10}, BOMB, 0),
    "no zstd": ({"compression": 3, "uncompressed_size": 10}, b"what", 0),
    "a batch of nothing": ({"num_messages_in_batch": 0}, b"", 0),
    "a batch of too much": ({"num_messages_in_batch": 1 << 30}, b"\0\0\0\2\x18\0", 0),
    "a batch that ends early": ({"num_messages_in_batch": 1}, b"\0\0\0\x09\x18", 0),
    "a value outside": ({"num_messages_in_batch": 1}, b"\0\0\0\2\x18\x7fabc", 0),
}


@pytest.mark.parametrize("bad", BATCHES.values(), ids=BATCHES)
def test_a_bad_message_is_refused_alone(
    folder: Path, bad: tuple[dict[str, Any], bytes, int]
) -> None:
    """The server stores nothing of it, and later messages once the client reopens its producer."""
    head, payload, spoils = bad

    async def program(served: Served) -> None:
        client = await served.connected()
        await client.ask("producer", topic="x", producer_id=1, request_id=1)
        client.message(payload, {}, head, producer_id=1, sequence_id=0, spoils=spoils)
        assert (await client.answer()).HasField("send_error")
        assert (await client.answer()).HasField("close_producer")
        await client.ask("producer", topic="x", producer_id=1, request_id=2)
        client.message(b"good", {}, {}, producer_id=1, sequence_id=1)
        assert (await client.answer()).HasField("send_receipt")
        rows = await served.service.client.run(lambda sync: list(sync.reader("x")))
        assert [row.value for row in rows] == [b"good"]

    serving(folder, program)

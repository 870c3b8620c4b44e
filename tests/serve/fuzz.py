"""Owns the inputs of fuzzing, by kind: all of them come from one seed.

    python -m tests.serve.fuzz --seed 1 --rounds 1000

The program serves a store, sends each kind of input so many times, and prints the outcomes. All the
while, one honest client of each protocol sends and reads, and must find exactly its own messages.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import struct
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.protobuf.message_factory import GetMessageClass

from tests.serve.siege import Served, serving
from txlog.client.aio.worker import _Job
from txlog.serve.limits.limits import Limits
from txlog.serve.pulsar.connection import Connection
from txlog.serve.pulsar.messages import (
    COMMANDS,
    FIELDS,
    BaseCommand,
    MessageIdData,
    MessageMetadata,
    SingleMessageMetadata,
)
from txlog.serve.pulsar.wire import encode_command, make_command, message_frame

TOPIC = "persistent://acme/shop/fuzzed"
WITNESS = "persistent://acme/shop/witness"


def bomb() -> bytes:
    """64 MiB of zeros in 64 KiB; compressing them as a whole took each worker half a second."""
    packer = zlib.compressobj(9, wbits=-15)
    piece = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    end = b"\x03\x00" + zlib.adler32(bytes(64 << 20)).to_bytes(4, "big")
    return b"\x78\xda" + 64 * piece + end


BOMB = bomb()
PIECES_MAX = 12
READ_MAX = 1 << 22
PATIENCE_S = 30.0
END_S = 0.05  # the server answers the input before it sees the end of the connection
Feed = Callable[[random.Random], bytes]


def noise(chance: random.Random, most: int = 200) -> bytes:
    return chance.randbytes(chance.randrange(most))


# --- frames ----------------------------------------------------------------------------------


def value_of(chance: random.Random, field: Any) -> Any:
    """A value of a field's type; numbers of producers and the like are often those in use."""
    if field.message_type is not None:
        return filled(chance, GetMessageClass(field.message_type)())
    if field.enum_type is not None:
        return chance.choice(field.enum_type.values).number
    kinds: dict[int, Callable[[], object]] = {
        field.TYPE_STRING: lambda: chance.choice([TOPIC, "s", "", "x" * 300, "a/b/c/d", "\0"]),
        field.TYPE_BYTES: lambda: noise(chance),
        field.TYPE_BOOL: lambda: chance.random() < 0.5,
    }
    number = kinds.get(field.type)
    if number is not None:
        return number()
    least = 0 if field.type in (field.TYPE_UINT32, field.TYPE_UINT64) else -1
    return chance.choice([least, 0, 1, 2, 7, (1 << 31) - 1])


def filled(chance: random.Random, message: Any) -> Any:
    """Fill a message with its required fields and some of its optional ones."""
    for field in message.DESCRIPTOR.fields:
        if not field.is_required and chance.random() < 0.5:
            continue
        value = value_of(chance, field)
        if field.is_repeated:
            getattr(message, field.name).extend([value] * chance.randrange(3))
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(value)
        else:
            setattr(message, field.name, value)
    return message


def command(chance: random.Random) -> bytes:
    """A whole command of any kind, with any values."""
    number = chance.choice([*COMMANDS.values()])
    whole = BaseCommand(type=number)
    filled(chance, getattr(whole, FIELDS[number])).SetInParent()
    data: bytes = whole.SerializeToString()
    if number != COMMANDS["SEND"]:
        return struct.pack(">II", len(data) + 4, len(data)) + data
    return message(chance, noise(chance))


def message(chance: random.Random, payload: bytes, **head: int) -> bytes:
    """A SEND with any metadata, or with these."""
    sequence = chance.randrange(9)
    metadata = filled(chance, MessageMetadata())
    metadata.producer_name = "p"
    metadata.sequence_id = sequence
    for name, value in head.items():
        setattr(metadata, name, value)
    sent = make_command("send", producer_id=1, sequence_id=sequence, num_messages=1)
    return b"".join(message_frame(sent.SerializeToString(), metadata.SerializeToString(), payload))


def opened(chance: random.Random) -> bytes:
    """The first commands of a client: CONNECT, PRODUCER, SUBSCRIBE and FLOW."""
    return (
        encode_command("connect", client_version="fuzz", protocol_version=chance.randrange(25))
        + encode_command("producer", topic=TOPIC, producer_id=1, request_id=1)
        + encode_command(
            "subscribe", topic=TOPIC, subscription="s", subType=1, consumer_id=1, request_id=2
        )
        + encode_command("flow", consumer_id=1, messagePermits=10)
    )


def commands(chance: random.Random) -> bytes:
    count = chance.randrange(1, PIECES_MAX)
    return opened(chance) + b"".join(command(chance) for _ in range(count))


def flipped(chance: random.Random) -> bytes:
    data = bytearray(commands(chance))
    for _ in range(chance.randrange(1, 9)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def cut(chance: random.Random) -> bytes:
    data = commands(chance)
    return data[: chance.randrange(len(data))]


def spliced(chance: random.Random) -> bytes:
    first, second = commands(chance), commands(chance)
    return first[: chance.randrange(len(first))] + second[chance.randrange(len(second)) :]


def sizes(chance: random.Random) -> bytes:
    size = chance.choice(
        [0, 1, 3, 4, 5, 255, 1 << 16, 5 << 20, (5 << 20) + 99999, 1 << 31, 2**32 - 1]
    )
    inner = chance.choice([0, 1, size, max(size - 4, 0), 2**32 - 1])
    return opened(chance) + struct.pack(">II", size, inner % 2**32) + noise(chance)


def bombs(chance: random.Random) -> bytes:
    announced_bytes = chance.choice([1, 100, 5 << 20, 64 << 20, 2**31 - 1])
    kind = chance.randrange(5)
    count = chance.choice([1, 2, 1_000_000, 2**31 - 1])
    payload = chance.choice([BOMB, BOMB[:1000], noise(chance)])
    head = {
        "compression": kind,
        "uncompressed_size": announced_bytes,
        "num_messages_in_batch": count,
    }
    return opened(chance) + message(chance, payload, **head)


def swollen(chance: random.Random) -> bytes:
    """Small input that expands: long lists of small items, batches of empty messages."""
    count = chance.choice([1_000, 20_000, 60_000, 100_000, 120_000])
    if chance.random() < 0.5:
        single = SingleMessageMetadata(payload_size=0)
        for _ in range(chance.choice([0, 1, 30])):
            single.properties.add(key="", value="")
        text = single.SerializeToString()
        payload = (struct.pack(">I", len(text)) + text) * min(count, (4 << 20) // (len(text) + 4))
        head = {
            "compression": 2,
            "uncompressed_size": len(payload),
            "num_messages_in_batch": len(payload) // (len(text) + 4),
        }
        return opened(chance) + message(chance, zlib.compress(payload, 1), **head)
    names = {
        "ack": ("message_id", {"ack_type": chance.randrange(2)}),
        "redeliverUnacknowledgedMessages": ("message_ids", {}),
        "addPartitionToTxn": ("partitions", {"request_id": 3}),
    }
    name = chance.choice([*names])
    field, more = names[name]
    topics: Any = ["t"] * count
    if field != "partitions":
        more["consumer_id"] = 1
        place = MessageIdData(ledgerId=1, entryId=chance.randrange(9) * 10**9)
        topics = [place] * count
    return opened(chance) + encode_command(name, **more, **{field: topics})


# --- requests --------------------------------------------------------------------------------

WORDS = ("a", "acme", "shop", "fuzzed", "..", "%00", "%2e%2e", "x" * 300, "-1", "é", "?", "#", "{}")
PLACES = (
    "/admin/v2/persistent/acme/shop/fuzzed/{}",
    "/admin/v2/{}/{}/{}",
    "/admin/v3/transactions/{}/{}",
    "/topics/persistent/acme/shop/fuzzed?start={}&limit={}",
    "/lookup/v2/topic/{}/{}/{}/{}",
    "/page/query",
    "/{}",
)


def place(chance: random.Random) -> str:
    words = iter(lambda: chance.choice(WORDS), None)
    pieces = chance.choice(PLACES).split("{}")
    return "".join(piece + next(words) for piece in pieces[:-1]) + pieces[-1]


def anything(chance: random.Random, depth: int = 3) -> Any:
    if depth and chance.random() < 0.6:
        if chance.random() < 0.5:
            return [anything(chance, depth - 1) for _ in range(chance.randrange(4))]
        names = ("messages", "payload", "key", "properties", "sql", "deliverAt", "x")
        return {chance.choice(names): anything(chance, depth - 1) for _ in range(4)}
    return chance.choice(
        [None, True, -1, 0, 1e308, 2**70, "", "x" * 500, "\ud800", "SELECT 1", "-5"]
    )


def request(chance: random.Random) -> bytes:
    body = json.dumps(anything(chance)).encode()
    method = chance.choice(["GET", "POST", "PUT", "DELETE", "PATCH", "\t"])
    head = f"{method} {place(chance)} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    length = chance.choice([len(body), len(body), len(body), 0, len(body) + 5, -1, 2**40])
    return f"{head}Content-Length: {length}\r\n\r\n".encode("utf-8", "replace") + body


def flipped_request(chance: random.Random) -> bytes:
    data = bytearray(request(chance))
    for _ in range(chance.randrange(1, 6)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def heads(chance: random.Random) -> bytes:
    many = b"".join(b"X-%d: %s\r\n" % (n, b"y" * chance.choice([1, 50_000])) for n in range(200))
    chunk = chance.choice([b"ffffffffffffffff\r\n", b"-1\r\n", b"5\r\nab", b"0\r\n", b"zz\r\n"])
    start = b"POST /topics/persistent/acme/shop/fuzzed HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    return start + chance.choice(
        [many, many + b"\r\n", b"Transfer-Encoding: chunked\r\n\r\n" + chunk, b"\r\n" * 5]
    )


def websocket(chance: random.Random) -> bytes:
    head = (
        "GET /ws/v2/{}/persistent/acme/shop/fuzzed{} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    ).format(*chance.choice([("producer", ""), ("consumer", "/s"), ("reader", "")]))
    frames = b""
    for _ in range(chance.randrange(1, PIECES_MAX)):
        text = chance.choice([json.dumps(anything(chance)).encode(), noise(chance, 100)])[:125]
        masked = bytes([0x81, 0x80 | len(text), 0, 0, 0, 0]) + text
        frames += masked if chance.random() < 0.8 else noise(chance, 20)
    return head.encode() + frames


FRAMES: dict[str, Feed] = {
    "random bytes": noise,
    "any commands with any values": commands,
    "such commands with bytes changed": flipped,
    "cut off anywhere": cut,
    "spliced together": spliced,
    "wrong sizes of frames": sizes,
    "bombs: compressed, batches that say they have 2³¹ messages": bombs,
    "long lists, batches of empty messages": swollen,
}
REQUESTS: dict[str, Feed] = {
    "random bytes": noise,
    "any request with any JSON": request,
    "such requests with bytes changed": flipped_request,
    "heads of megabytes, bad chunks": heads,
    "WebSockets with any JSON and any frames": websocket,
}


# --- feeding ---------------------------------------------------------------------------------


def _end(writer: asyncio.StreamWriter) -> None:
    if not writer.is_closing():
        writer.write_eof()


async def fed(port: int, data: bytes) -> str:
    """Send bytes, and a moment later the end; returns the outcome."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    size = 0
    try:
        writer.write(data)
        asyncio.get_running_loop().call_later(END_S, _end, writer)
        async with asyncio.timeout(PATIENCE_S):
            while piece := await reader.read(1 << 16):
                size += len(piece)
                if size > READ_MAX:
                    break
    except ConnectionError:
        return "cut"
    except TimeoutError:
        return "hung"
    finally:
        writer.transport.abort()
    return "answered" if size else "silent"


class Witnesses:
    """An honest client of each protocol, which must be served throughout the fuzzing."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._count = 0

    async def begin(self) -> None:
        self._client = await self._served.connected()
        ready = await self._client.ask("producer", topic=WITNESS, producer_id=1, request_id=1)
        assert ready.producer_ready

    async def go_on(self) -> None:
        """Send a message by Pulsar's protocol, and read all messages by HTTP."""
        number = self._count
        self._client.message(b"%d" % number, {}, {}, producer_id=1, sequence_id=number)
        receipt = await self._client.answer()
        while receipt.HasField("ping"):
            self._client.send("pong")
            receipt = await self._client.answer()
        assert receipt.HasField("send_receipt"), receipt
        self._count += 1
        path = f"/topics/persistent/acme/shop/witness?limit={self._count + 9}"
        status, text = await self._served.request(
            f"GET {path} HTTP/1.1\nHost: 127.0.0.1\nConnection: close\n\n"
        )
        assert status == 200, text
        values = [row["value"] for row in json.loads(text[text.index("\n{") :])["messages"]]
        assert values == [str(n) for n in range(self._count)], values[-3:]


class Longest:
    """The longest turns of the event loop and acts of the store's thread while it is entered.

    work:    of a turn, in commands or as much, as connections count it; it does not depend on the
             machine
    turn_s, act_s: seconds of a processor; the clients of the fuzzer share the event loop
    """

    def __init__(self) -> None:
        self.work = 0
        self.turn_s = self.act_s = 0.0
        self._undo: list[tuple[type, str, Callable[..., Any]]] = []

    def __enter__(self) -> Longest:
        spend, turn, act = Connection.spend, asyncio.Handle._run, _Job.run

        def spent(connection: Connection, work: int) -> None:
            spend(connection, work)
            self.work = max(self.work, connection._spent)

        def turned(handle: asyncio.Handle) -> None:
            begun = time.thread_time()
            turn(handle)
            self.turn_s = max(self.turn_s, time.thread_time() - begun)

        def acted(job: _Job[Any]) -> Any:
            begun = time.thread_time()
            try:
                return act(job)
            finally:
                self.act_s = max(self.act_s, time.thread_time() - begun)

        for owner, name, wrapped in (
            (Connection, "spend", spent),
            (asyncio.Handle, "_run", turned),
            (_Job, "run", acted),
        ):
            self._undo.append((owner, name, getattr(owner, name)))
            setattr(owner, name, wrapped)
        return self

    def __exit__(self, *_: object) -> None:
        for owner, name, original in self._undo:
            setattr(owner, name, original)

    def __str__(self) -> str:
        return (
            f"longest turn of the loop: {self.work} commands' work, {1000 * self.turn_s:.0f} ms of"
            f" a processor; longest act of the store's thread: {1000 * self.act_s:.0f} ms"
        )


def resident() -> int:
    """Bytes of memory that this process has, server and clients together."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def besieged(served: Served, seed: int, rounds: int, *, witness_each: int = 50) -> list[Any]:
    """Send inputs of each kind; returns (protocol, kind, how often, outcomes, memory)."""
    witnesses = Witnesses(served)
    await witnesses.begin()
    rows = []
    for protocol, feeds, port in (
        ("Pulsar", FRAMES, served.pulsar),
        ("HTTP", REQUESTS, served.http),
    ):
        for kind, feed in feeds.items():
            chance = random.Random(f"{seed} {protocol} {kind}")
            became = Counter[str]()
            for number in range(rounds):
                became[await fed(port, feed(chance))] += 1
                if number % witness_each == 0:
                    await witnesses.go_on()
            rows.append((protocol, kind, rounds, dict(became), f"{resident() >> 20} MB"))
    await witnesses.go_on()
    return rows


def main() -> None:
    """Besiege a server, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1_000, help="of each kind")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:

        async def program(served: Served) -> Any:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            rows = await besieged(served, options.seed, options.rounds)
            after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            failed = Counter(
                (facts["class"], facts.get("at"))
                for event, facts in served.told
                if event == "failed"
            )
            return rows, before, after, failed, served.service.connection_limit.count

        limits = Limits(connect_timeout_ms=2_000, frame_timeout_ms=2_000)
        with Longest() as longest:
            rows, before, after, failed, slots = serving(
                Path(folder), program, limits=limits, seconds=3_600
            )
    for row in rows:
        print(*row, sep=" | ")
    print(longest)
    print(f"peak {before >> 10} -> {after >> 10} MB, connections left {slots}, failed {failed}")


if __name__ == "__main__":
    main()

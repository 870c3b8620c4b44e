"""The server as a whole: the bytes of a connection to its Pulsar port, or of requests by HTTP.

A server runs in this process as long as the target does. Each input is one connection, whose client
sends everything, closes its side, and reads to the end. The server must end the connection by
itself, report no failure, and keep no connection.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import txlog
from tests.fuzz.engine import Target
from tests.fuzz.targets.protocol import repaired_frames
from tests.serve import fuzz as inputs
from tests.serve.siege import LOCAL, Told
from txlog.serve.app import Server
from txlog.serve.auth.access import AccessControl
from txlog.serve.core.service import ServerOptions
from txlog.serve.limits.limits import Limits

READ_MAX = 1 << 22
TURNS_MAX = 20_000  # of the event loop; a connection that has not ended by then hangs
_LENGTH = re.compile(rb"(?i)content-length: *-?\d+")
_HOST = re.compile(rb"(?i)\r\nhost:[^\r]*")


class ServerFailed(Exception):
    """The server reported a failure, or did not end a connection."""


class _Running:
    """A server with an event loop of its own, made at the first input."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ports: dict[str, int] = {}
        self._told = Told()
        self._server: Any = None

    def send(self, protocol: str, data: bytes) -> bytes:
        """Send bytes on a connection of their own; returns the answer. Raises ServerFailed."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.new_event_loop()
            loop.run_until_complete(self._start())
        self._told.clear()
        answer = loop.run_until_complete(self._exchange(self._ports[protocol], data))
        failed = [facts for event, facts in self._told if event == "failed"]
        if failed:
            raise ServerFailed(f"{failed[0].get('class')} at {failed[0].get('at')}")
        return answer

    async def _start(self) -> None:
        # not below the directory of a campaign's temporary files: it outlives that
        folder = tempfile.mkdtemp(prefix="fuzz-store-", dir="/tmp")
        path = str(Path(folder) / "store")
        txlog.init(path, durability="os", free_bytes_min=0)
        limits = Limits(connect_timeout_ms=60_000, frame_timeout_ms=60_000)
        options = ServerOptions(LOCAL, LOCAL, limits=limits)._replace(
            tell=lambda event, facts: self._told.append((event, facts))
        )
        self._server = Server(txlog.open(path), options, AccessControl(None))
        places = await self._server.start()
        names = ("pulsar", "http")
        self._ports = {
            name: int(place.rpartition(":")[2]) for name, place in zip(names, places, strict=True)
        }

    async def _exchange(self, port: int, data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        answer = b""
        try:
            writer.write(data)
            writer.write_eof()
            async with asyncio.timeout(60):
                while (piece := await reader.read(1 << 16)) and len(answer) < READ_MAX:
                    answer += piece
        except (ConnectionError, OSError):
            pass
        except TimeoutError:
            raise ServerFailed("the connection does not end") from None
        finally:
            writer.transport.abort()
        for _ in range(TURNS_MAX):
            if not self._server.service.connection_limit.count:
                return answer
            await asyncio.sleep(0)
        raise ServerFailed("a connection is left")


_RUNNING = _Running()


def _pulsar(data: bytes) -> None:
    _RUNNING.send("pulsar", data)


def _http(data: bytes) -> None:
    answer = _RUNNING.send("http", data)
    if b"HTTP/1.1 500" in answer:
        text = answer.partition(b"\r\n\r\n")[2][:200].decode(errors="replace")
        raise ServerFailed(f"status 500: {text}")


def _connections() -> list[bytes]:
    chance = random.Random("connections")
    kinds: tuple[Callable[[random.Random], bytes], ...] = (inputs.commands, inputs.sizes)
    return [feed(chance)[:6_000] for feed in kinds for _ in range(40)]


def _requests() -> list[bytes]:
    chance = random.Random("requests")
    some = [feed(chance) for feed in (inputs.request, inputs.websocket) for _ in range(40)]
    return [data[:6_000] for data in [*some, *_calls()]]


def _calls() -> list[bytes]:
    """Requests that mean something, to the endpoints of topics, subscriptions and messages."""
    admin = "/admin/v2/persistent/public/default/t"
    calls: list[tuple[str, str, object]] = [
        ("PUT", admin, None),
        ("PUT", f"{admin}/partitions", 2),
        ("GET", f"{admin}/stats", None),
        ("GET", f"{admin}/internalStats", None),
        ("PUT", f"{admin}/subscription/s", "earliest"),
        ("POST", f"{admin}/subscription/s/resetcursor", {"ledgerId": 1, "entryId": 0}),
        ("POST", f"{admin}/subscription/s/resetcursor/1700000000000", None),
        ("POST", f"{admin}/subscription/s/skip/1", None),
        ("GET", f"{admin}/subscription/s/position/1", None),
        ("POST", f"{admin}/retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1}),
        ("POST", f"{admin}/messageTTL?messageTTL=5", None),
        (
            "POST",
            "/topics/persistent/public/default/t",
            {"messages": [{"payload": "a", "key": "k"}]},
        ),
        ("GET", "/topics/persistent/public/default/t?start=start&limit=3", None),
        ("GET", "/topics/persistent/public/default/t?start=after=1:0&limit=3", None),
        (
            "POST",
            "/admin/v2/schemas/public/default/t/schema",
            {"type": "STRING", "schema": "", "properties": {}},
        ),
        ("GET", "/admin/v3/transactions/transactionMetadata/0/1", None),
        ("GET", "/admin/v2/clusters", None),
        ("GET", "/metrics", None),
    ]
    requests = []
    for method, place, body in calls:
        text = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {place} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        requests.append(f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text)
    return requests


def _repaired_request(data: bytes) -> bytes:
    """The right Content-Length and Host, if there is a head."""
    head, end, body = data.partition(b"\r\n\r\n")
    if not end or b"pgrade" in head:
        return data
    head = _LENGTH.sub(b"Content-Length: %d" % len(body), head)
    return _HOST.sub(b"\r\nHost: 127.0.0.1", head, count=1) + end + body


_P, _H = "txlog.serve.pulsar.", "txlog.serve.http."
_WORDS = tuple(
    word.encode()
    for word in (
        *(
            "%2e%2e",
            "%00",
            "%ff",
            "public",
            "default",
            "/t",
            "/s",
            "?start=",
            "&limit=",
            "-1",
            "after=",
        ),
        *("Transfer-Encoding: chunked\r\n", "Expect: 100-continue\r\n", "PUT ", "POST ", "DELETE "),
        *(
            "/admin/v2/persistent/",
            "/partitions",
            "/subscription/",
            "/schemas/",
            "/page/query",
            "null",
        ),
    )
)
TARGETS = (
    Target(
        "connection",
        _pulsar,
        _connections,
        tuple(
            f"{_P}{name}"
            for name in (
                "connection",
                "producers",
                "consumers",
                "topics",
                "transactions",
                "schemas",
                "members",
                "wire",
                "ids",
                "deliveries",
            )
        ),
        repair=repaired_frames,
        steps=20_000_000,
        memory=128 << 20,
    ),
    Target(
        "requests",
        _http,
        _requests,
        tuple(
            f"{_H}{name}"
            for name in (
                "application",
                "core.declared",
                "core.answers",
                "admin.topics",
                "admin.subscriptions",
                "admin.policies",
                "data.messages",
                "data.websocket",
            )
        ),
        repair=_repaired_request,
        words=_WORDS,
        steps=20_000_000,
        memory=128 << 20,
    ),
)

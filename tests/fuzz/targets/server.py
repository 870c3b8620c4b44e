"""The server as a whole: the bytes of a connection to its Pulsar port, or of requests by HTTP.

A server runs in this process as long as the target does. Each input is one connection, whose client
sends everything, reads until nothing comes, closes its side, and reads to the end. The server must
end the connection by itself, report no failure, and keep no connection.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import random
import re
import tempfile
from collections.abc import Callable
from contextlib import suppress
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
from txlog.serve.http.application import ENDPOINTS
from txlog.serve.limits.limits import Limits

READ_MAX = 1 << 22
# The client closes its side when nothing has come for so long. A server drops what it has not
# answered when a client closes, and one of HTTP answers nothing then.
QUIET_S = {"pulsar": 0.05, "http": 0.5}
TURNS_MAX = 20_000  # of the event loop; a connection that has not ended by then hangs
_LENGTH = re.compile(rb"(?i)content-length: *-?\d+")
_PLACE = re.compile(r"{(\w+)(?::\w+)?}")
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
        answer = loop.run_until_complete(
            self._exchange(self._ports[protocol], data, QUIET_S[protocol])
        )
        failed = [facts for event, facts in self._told if event == "failed"]
        if failed:
            raise ServerFailed(f"{failed[0].get('class')} at {failed[0].get('at')}")
        return answer

    async def _start(self) -> None:
        # not below the directory of a campaign's temporary files: it outlives that
        folder = tempfile.mkdtemp(prefix="fuzz-store-", dir="/tmp")
        path = str(Path(folder) / "store")
        txlog.init(path, durability="os", free_bytes_min=0)
        with txlog.open(path) as client:
            client.create_topic("t", partitions=2)
            client.create_subscription("t", "s", type="shared", position="earliest")
            client.producer("t", name="p").send(b"a", key=b"k", deliver_after=3_600_000)
            with client.transaction(key="k") as txn:
                client.producer("t").send(b"b", properties={"a": "b"}, txn=txn)
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

    async def _exchange(self, port: int, data: bytes, quiet_s: float) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        answer = b""
        try:
            writer.write(data)
            with suppress(TimeoutError):  # it may wait for more, or for an end
                while len(answer) < READ_MAX:
                    async with asyncio.timeout(quiet_s):
                        if not (piece := await reader.read(1 << 16)):
                            break
                    answer += piece
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


# values for the paths of endpoints, and bodies that Pulsar's tools send to them
_PLACES = {
    **{"tenant": "public", "namespace": "default", "topic": "t", "subscription": "s", "key": "k"},
    **{"messages": "1", "partition": "0", "timestamp": "1700000000000", "ledger": "1"},
    **{"entry": "0", "most": "0", "least": "1", "version": "0", "timeout": "1", "seconds": "5"},
    **{"producer": "p", "role": "app", "setting": "inactiveTopicPolicies", "cluster": "standalone"},
}
_QUERIES = {
    **{"force": "true", "applied": "true", "limit": "3", "start": "after=1:0", "subscription": "s"},
    **{"perPartition": "true", "initialPosition": "earliest", "messagePosition": "1"},
    **{"coordinatorId": "0", "deleted": "true", "messageTTL": "5", "owner": "me"},
}
_RECORD = '{"type":"record","name":"A","fields":[{"name":"a","type":"int"}]}'
_SCHEMA = {"type": "AVRO", "schema": _RECORD, "properties": {}}
_MESSAGE = {"payload": "a", "key": "k", "properties": {"a": "b"}, "eventTime": 5}
_ID = {"ledgerId": 1, "entryId": 0, "partitionIndex": 0, "batchIndex": -1}
_BODIES: dict[str, object] = {
    **{"create_subscription": _ID, "seek": _ID, "backlog_size": _ID, "offload": _ID},
    **{"create_partitioned_topic": 2, "update_partitioned_topic": 3, "set_replicated": False},
    **{"create_topic": {"a": "b"}, "set_subscription_properties": {"a": "b"}},
    **{"create_tenant": {"adminRoles": [], "allowedClusters": ["standalone"]}},
    **{"create_namespace": {"bundles": {"numBundles": 4}, "replication_clusters": []}},
    **{"grant_on_topic": ["produce", "consume"], "grant_in_namespace": ["produce"]},
    **{"upload_schema": _SCHEMA, "test_schema": _SCHEMA, "version_of_schema": _SCHEMA},
    **{"produce": {"messages": [_MESSAGE]}, "produce_to_partition": {"messages": [_MESSAGE]}},
    **{"promote": {"messageIds": [_ID]}, "cancel": {"messageIds": [_ID]}},
    **{"retention": {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1}, "messageTTL": 60},
    **{"delayedDelivery": {"tickTime": 1000, "active": True}, "compactionThreshold": 100},
    **{"schemaCompatibilityStrategy": "FULL", "schemaValidationEnforced": True},
    **{"set_deduplication": True, "set_deduplication_of_topic": True, "scale_coordinators": 4},
    **{"set_auto_update_strategy": "Full", "set_watermark": {"eventTime": 1700000000000}},
    **{"set_topic_setting": {"a": 1}, "set_namespace_setting": 5, "set_clusters": ["standalone"]},
}


def _calls() -> list[bytes]:
    """A request to each endpoint that is another function, with words and a body that it takes."""
    seen = {endpoint.act: endpoint for endpoint in reversed(ENDPOINTS)}
    requests = []
    for endpoint in reversed(seen.values()):
        place = _PLACE.sub(lambda word: _PLACES.get(word[1], "standalone"), endpoint.path)
        names = [name for name in inspect.signature(endpoint.act).parameters if name in _QUERIES]
        words = [f"{name}={_QUERIES[name]}" for name in names if f"{{{name}" not in endpoint.path]
        name = endpoint.act.__name__
        body = _BODIES.get(name, _BODIES.get(name.partition("_set_of_")[0]))
        requests.append(
            _request(endpoint.method, place + "?" * bool(words) + "&".join(words), body)
        )
    places = ("/openapi.json", "/metrics", "/", "/page/query?q=SELECT+1", "/page/topic/t")
    return [*requests, *(_request("GET", place, None) for place in places)]


def _request(method: str, place: str, body: object) -> bytes:
    text = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {place} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text


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

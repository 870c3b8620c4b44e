"""A connection ends with its token or its rights, and has no right of another role."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, NamedTuple

import jwt
import pytest

from tests.serve.roles import SECRET
from tests.serve.siege import Served, Wire, serving
from txlog.clock import ManualClock
from txlog.serve.pulsar.messages import ERRORS

pytestmark = pytest.mark.usefixtures("quick_disk")


NOW_S = 1_790_000_000


RULES = """
superusers = ["boss"]
[tokens]
secret_key = "secret.key"
[roles.billing]
produce = ["acme/shop/*"]
"""


def token(role: str, **claims: int) -> bytes:
    return jwt.encode({"sub": role, **claims}, SECRET).encode()


# --- who it is -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"auth_method_name": "token"},
        {"auth_method_name": "token", "auth_data": b"\xff\x00"},
        {"auth_method_name": "token", "auth_data": token("boss")[:-4]},
        {"auth_method_name": "token", "auth_data": token("boss", exp=NOW_S)},
        {"auth_method_name": "none", "auth_data": token("boss")},
        {"auth_method_name": "basic", "auth_data": b"boss:boss"},
        {"original_principal": "boss", "auth_method_name": "tls"},
        {"original_principal": "boss", "original_auth_data": token("boss").decode()},
    ],
)
def test_failed_authentication_ends_the_connection(folder: Path, fields: dict[str, Any]) -> None:
    async def program(served: Served) -> None:
        bad = await served.client()
        bad.send("connect", client_version="test", protocol_version=19, **fields)
        bad.send("partitionMetadata", topic="acme/shop/x", request_id=7)
        answer = await bad.answer()
        assert answer.error.error == ERRORS["AuthenticationError"]
        assert "TXL-411" in answer.error.message
        remaining = await bad.reader.read()
        assert b"acme" not in remaining
        reported = f"{served.told} {answer}"
        for secret in (token("boss"), token("boss", exp=NOW_S)):
            assert secret.decode()[-20:] not in reported

    serving(folder, program, rules=RULES)


def test_a_token_that_ends_ends_its_connection(folder: Path) -> None:
    clock = ManualClock(NOW_S * 1_000)

    async def program(served: Served) -> None:
        soon = {"auth_method_name": "token", "auth_data": token("boss", exp=NOW_S + 1)}
        client = await served.connected(**soon)
        clock.advance(1_000)
        answer = await client.ask("partitionMetadata", topic="acme/shop/x", request_id=7)
        assert answer.error == ERRORS["AuthenticationError"]
        await client.is_ended()
        assert served.told[-1][1]["reason"] == "its token has expired"

    serving(folder, program, rules=RULES, clock=clock)


def test_another_token_prolongs_a_connection_of_the_same_role(folder: Path) -> None:
    async def program(served: Served) -> None:
        client = await served.connected(auth_method_name="token", auth_data=token("boss"))
        client.send("authResponse", response=_auth(token("boss", exp=NOW_S + 900)))
        assert await client.ask("ping") is not None
        [connection] = served.server.listeners[0].connections  # type: ignore[attr-defined]
        assert connection.caller.expires_ms == (NOW_S + 900) * 1_000
        client.send("authResponse", response=_auth(token("boss")[:-9]))
        assert (await client.answer()).error.error == ERRORS["AuthenticationError"]
        await client.is_ended()

    serving(folder, program, rules=RULES)


def test_new_rules_end_connections_without_rights(folder: Path) -> None:
    async def program(served: Served) -> None:
        clients = {
            role: await served.connected(auth_method_name="token", auth_data=token(role))
            for role in ("boss", "billing")
        }
        for raw in clients.values():
            await raw.ask("partitionMetadata", topic="acme/shop/x", request_id=7)
        (folder / "rules.toml").write_text(RULES.replace("acme/shop/*", "acme/other/*"))
        served.server.reload()
        await clients["billing"].is_ended()
        assert await clients["boss"].ask("ping") is not None
        (folder / "rules.toml").write_text("what = 1")
        served.server.reload()
        assert served.told[-1][0] == "failed"
        assert await clients["boss"].ask("ping") is not None

    serving(folder, program, rules=RULES)


class Stream(NamedTuple):
    """A stream that a client follows, and the client's reply when the server ends it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    last: bytes  # the beginning of the server's last frame, if the client has to answer it
    answer: bytes

    async def ended(self) -> None:
        """Read until the server ends the stream; it waits seconds for a client without answer."""
        if self.answer:
            await self.reader.readuntil(self.last)
            self.writer.write(self.answer)
        await self.reader.read()


async def tail_of(served: Served, by: bytes) -> Stream:
    """A tail of a topic that has begun."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.http)
    served.clients.append(Wire(reader, writer))
    path = "/topics/persistent/acme/shop/orders/events"
    head = (
        f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
        f"Authorization: Bearer {by.decode()}\r\n\r\n"
    )
    writer.write(head.encode())
    await reader.readuntil(b": txlog")
    return Stream(reader, writer, b"", b"")


async def socket_of(served: Served, by: bytes) -> Stream:
    """A WebSocket that has begun."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.http)
    served.clients.append(Wire(reader, writer))
    head = (
        f"GET /ws/v2/reader/persistent/acme/shop/orders?token={by.decode()} HTTP/1.1\r\nHost: a\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    writer.write(head.encode())
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    return Stream(reader, writer, b"\x88", b"\x88\x80" + bytes(4))  # two frames Close


@pytest.mark.parametrize("begin", [tail_of, socket_of])
def test_endless_streams_end_with_their_token_or_rule(folder: Path, begin: Any) -> None:
    """Kills: a tail that keeps the rights that its role had when the tail began."""
    rules = RULES + '[roles.reader]\nconsume = ["acme/shop/*"]\n'
    clock = ManualClock(NOW_S * 1_000 + 950)

    async def program(served: Served) -> None:
        boss = await served.connected(auth_method_name="token", auth_data=token("boss"))
        name = "persistent://acme/shop/orders"
        assert (await boss.ask("producer", topic=name, producer_id=1, request_id=1)).producer_ready
        short = await begin(served, token("reader", exp=NOW_S + 1))
        others = [await begin(served, token(role)) for role in ("reader", "boss")]
        await short.ended()
        assert "dropped" not in [event for event, _ in served.told]  # that clock stands still
        (folder / "rules.toml").write_text(RULES)
        served.server.reload()
        await others[0].ended()
        [reason] = [facts["reason"] for event, facts in served.told if event == "dropped"]
        assert reason == "role reader may not consume from acme/shop/orders"
        boss.message(b"x", {}, {}, producer_id=1, sequence_id=1)
        assert await others[1].reader.read(1)  # it still follows

    serving(folder, program, rules=rules, clock=clock)


def _auth(data: bytes) -> Any:
    from txlog.serve.pulsar.messages import AuthData

    return AuthData(auth_method_name="token", auth_data=data)


def test_roles_hold_for_http(folder: Path) -> None:
    async def program(served: Served) -> None:
        async def status(role: str | None, line: str) -> int:
            by = "" if role is None else f"Authorization: Bearer {token(role).decode()}\n"
            head = f"{line} HTTP/1.1\nHost: a.example\n{by}Connection: close\n\n"
            found, text = await served.request(head)
            assert token(role or "boss").decode() not in text
            return found

        topic = "/admin/v2/persistent/acme/shop/orders"
        assert await status(None, "GET /admin/v2/brokers/ready") == 200
        assert await status(None, "GET /admin/v2/clusters") == 401
        assert await status("boss", f"PUT {topic}") == 204
        assert await status("billing", f"GET {topic}/stats") == 200
        assert await status("nobody", f"GET {topic}/stats") == 403
        assert await status("billing", f"DELETE {topic}") == 403
        assert await status("billing", "GET /metrics") == 403
        assert await status("boss", "GET /metrics") == 200
        assert await status("billing", "GET /admin/v2/clusters") == 200
        assert token("boss").decode() not in str(served.told)

    serving(folder, program, rules=RULES)


# --- whose transactions are ------------------------------------------------------------------


def test_transaction_belongs_to_the_role_that_began_it(folder: Path) -> None:
    """Kills: a task that stores for several clients with the rights of the first one."""
    rules = RULES + '[roles.other]\nproduce = ["acme/shop/*"]\nconsume = ["acme/shop/*"]\n'

    async def program(served: Served) -> None:
        billing = await served.connected(auth_method_name="token", auth_data=token("billing"))
        other = await served.connected(auth_method_name="token", auth_data=token("other"))
        response = await billing.ask("newTxn", request_id=1, txn_ttl_seconds=60_000, tc_id=0)
        txn = {
            "txnid_most_bits": response.txnid_most_bits,
            "txnid_least_bits": response.txnid_least_bits,
        }
        name = "persistent://acme/shop/orders"
        for client in (billing, other):
            ready = await client.ask("producer", topic=name, producer_id=1, request_id=2)
            assert ready.producer_ready
        for client, expected in ((other, "send_error"), (billing, "send_receipt")):
            client.message(b"x", txn, {}, producer_id=1, sequence_id=1)
            answer = await client.answer()
            assert answer.HasField(expected), answer
        assert (await other.answer()).HasField("close_producer")
        ended = await other.ask("endTxn", request_id=3, txn_action=0, **txn)
        assert ended.error == ERRORS["NotAllowedError"]
        assert "belongs to billing" in ended.message
        for command in ("addPartitionToTxn", "addSubscriptionToTxn"):
            answer = await other.ask(command, request_id=4, **txn)
            assert answer.error == ERRORS["NotAllowedError"], command
        ended = await billing.ask("endTxn", request_id=5, txn_action=0, **txn)
        assert not ended.HasField("error")

    serving(folder, program, rules=rules)

"""Shares: a role that takes all it can get of a resource still leaves some for other roles."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest

import txlog
from tests.serve.roles import SECRET
from tests.serve.siege import Served, Wire, serving
from txlog.errors import TryAgain
from txlog.serve.auth.access import number_of_role
from txlog.serve.core import acceptor
from txlog.serve.http.core import context
from txlog.serve.limits import limits, shares
from txlog.serve.limits.limits import RESOURCES, Limits, Quota
from txlog.serve.pulsar.messages import ERRORS
from txlog.serve.pulsar.wire import encode_command

pytestmark = pytest.mark.usefixtures("quick_disk")
TOPIC = "persistent://acme/shop/orders"
RULES = """
superusers = ["boss"]
[tokens]
secret_key = "secret.key"
[roles.nothing]
look = ["*"]
[roles.hog]
produce = ["acme/shop/*"]
consume = ["acme/shop/*"]
[roles.other]
produce = ["acme/shop/*"]
consume = ["acme/shop/*"]
"""
SMALL = Limits(
    connections=8,
    connections_per_address=8,
    connecting=4,
    consumers=9,
    consumers_in_all=8,
    memory_bytes=8 << 20,
    connection_bytes=8 << 20,
)


def token(role: str) -> dict[str, Any]:
    return {"auth_method_name": "token", "auth_data": jwt.encode({"sub": role}, SECRET).encode()}


async def begun(client: Wire) -> str:
    """Begin a transaction; returns the error, or ""."""
    answer = await client.ask("newTxn", request_id=1, tc_id=0, txn_ttl_seconds=60_000)
    return str(answer.message)


async def keyed(client: Wire, key: str) -> str:
    """Connect a transaction key; returns the error, or ""."""
    name = "tcClientConnectRequest"
    answer = await client.ask(name, request_id=1, tc_id=0, transaction_key=key, epoch=-1)
    return str(answer.message)


async def subscribed(client: Wire, number: int) -> str:
    """Open a consumer; returns the error, or ""."""
    name = f"s{number}"
    kind = {"subType": 1, "consumer_id": number}
    answer = await client.ask("subscribe", topic=TOPIC, subscription=name, request_id=1, **kind)
    return str(getattr(answer, "message", ""))


def test_a_role_without_a_right_begins_nothing(folder: Path) -> None:
    """Kills: a token without rights that begins all transactions that the store allows."""

    async def program(served: Served) -> None:
        client = await served.connected(**token("nothing"))
        for answer in (await begun(client), await keyed(client, "k")):
            assert "role nothing may neither produce nor consume anywhere (TXL-406)" in answer

    serving(folder, program, rules=RULES)


def test_a_role_leaves_transactions_for_others(folder: Path) -> None:
    txlog.init(str(folder / "store"), durability="os", free_bytes_min=0, txn_active_max=8)

    async def program(served: Served) -> None:
        hog, other, boss = [
            await served.connected(**token(role)) for role in ("hog", "other", "boss")
        ]
        answers = [await begun(hog) for _ in range(6)]
        assert answers[:4] == [""] * 4
        assert all("4 open transactions of role hog" in resource for resource in answers[4:])
        assert [await begun(other) for _ in range(2)] == [""] * 2
        assert [await begun(boss) for _ in range(2)] == [""] * 2
        assert "txn_active_max" in await begun(boss)

    serving(folder, program, rules=RULES)


def test_begins_that_come_together_are_counted_one_by_one(folder: Path) -> None:
    """Kills: a share that is checked only once for a group of begins."""
    txlog.init(str(folder / "store"), durability="os", free_bytes_min=0, txn_active_max=100)

    async def program(served: Served) -> None:
        hog = await served.connected(**token("hog"))
        for number in range(80):
            hog.send("newTxn", request_id=number, tc_id=0, txn_ttl_seconds=60_000)
        answers = [(await hog.answer()).newTxnResponse for _ in range(80)]
        assert sum(not resource.HasField("error") for resource in answers) == 44

    serving(folder, program, rules=RULES)


def test_a_role_leaves_keys_for_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "KEYS_MAX", 8)

    async def program(served: Served) -> None:
        hog, other = [await served.connected(**token(role)) for role in ("hog", "other")]
        answers = [await keyed(hog, f"k{number}") for number in range(6)]
        assert answers[:4] == [""] * 4
        assert all("4 transaction keys of role hog" in resource for resource in answers[4:])
        assert await keyed(hog, "k0") == ""  # a key that the role already has
        assert await keyed(other, "k0") == ""

    serving(folder, program, rules=RULES)


def test_a_role_leaves_topics_for_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "TOPICS_MAX", 4)
    monkeypatch.setattr(shares, "TOPICS_RESERVED", 2)

    async def program(served: Served) -> None:
        hog, boss = [await served.connected(**token(role)) for role in ("hog", "boss")]

        async def produced(client: Wire, at: int) -> str:
            answer = await client.ask(
                "producer", topic=f"{TOPIC}{at}", producer_id=at, request_id=1
            )
            return str(getattr(answer, "message", ""))

        assert [await produced(hog, at) for at in range(2)] == [""] * 2
        assert "roles may make no more (TXL-509)" in await produced(hog, 3)
        assert await produced(boss, 4) == ""
        assert await produced(hog, 4) == ""  # the topic exists

    serving(folder, program, rules=RULES)


def test_pool_counts_down_again() -> None:
    pool = Quota("things", 8)
    for _ in range(4):
        pool.take("a")
    with pytest.raises(TryAgain, match="4 things of a"):
        pool.take("a")
    for _ in range(4):
        pool.take("boss", is_bounded=False)
    with pytest.raises(TryAgain, match="8 things"):
        pool.take("b")
    for name in ("a", "boss"):
        for _ in range(4):
            pool.give(name)
    assert (pool.used, len(pool._of)) == (0, 0)


@pytest.mark.parametrize("limit", [1, 2, 7, 100, 2_000, 20_000])
def test_many_holders_that_take_all_they_can_leave_some(limit: int) -> None:
    """Kills: seven roles that fill a hundred places, so that no other role gets one."""
    pool = Quota("things", limit)

    def taken(holder: str) -> int:
        """Take as many as the pool allows this holder; returns the count."""
        for count in range(limit + 1):
            try:
                pool.take(holder)
            except TryAgain:
                return count
        raise AssertionError(holder)

    hogs = min(20, max(1, limit // 16))
    counts = [taken(f"hog {number}") for number in range(hogs)]
    assert 2 * counts[0] >= limit - limit // 8
    assert counts == sorted(counts, reverse=True)
    if limit >= 16:
        assert all(taken(f"other {number}") >= 1 for number in range(min(30, limit // 16)))


def test_handles_with_a_file_are_refused_when_descriptors_run_short(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: consumers and exclusive producers that leave the store no descriptor to write with."""

    async def program(served: Served) -> None:
        hog = await served.connected(**token("hog"))
        assert await subscribed(hog, 1) == ""
        monkeypatch.setattr(limits, "descriptor_limit", lambda: 4)
        assert "open files already, the most allowed (TXL-509)" in await subscribed(hog, 2)
        for mode, expected in ((1, "TXL-509"), (0, "")):
            fields = {"topic": TOPIC, "producer_id": mode + 1, "producer_access_mode": mode}
            answer = await hog.ask("producer", request_id=1, **fields)
            assert expected in str(getattr(answer, "message", ""))
            assert answer.DESCRIPTOR.name == ("CommandError", "CommandProducerSuccess")[not mode]
        by = token("hog")["auth_data"].decode()
        path = f"/ws/v2/consumer/persistent/acme/shop/orders/s?token={by}"
        upgrade = (
            "Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\n"
        )
        status, _ = await served.request(f"GET {path} HTTP/1.1\nHost: a\n{upgrade}\n")
        assert status == 403
        monkeypatch.undo()
        assert await subscribed(hog, 2) == ""

    serving(folder, program, rules=RULES)


# --- the table of shared resources -----------------------------------------------------------

Exceed = Callable[[Served], Awaitable[None]]


async def _connections(served: Served) -> None:
    for _ in range(4):
        await served.connected(**token("hog"))
    refused = await served.client()
    refused.send("connect", client_version="x", protocol_version=19, **token("hog"))
    answer = await refused.answer()
    assert answer.error.error == ERRORS["TooManyRequests"]
    assert await refused.is_ended()
    by = token("hog")["auth_data"].decode()
    head = f"GET /topics/persistent/acme/shop/x HTTP/1.1\nHost: a\nAuthorization: Bearer {by}\n\n"
    assert (await served.request(head))[0] == 429
    assert await (await served.connected(**token("other"))).ask("ping") is not None


async def _connecting(served: Served) -> None:
    silent = [await served.client() for _ in range(9)]
    other = await served.connected(**token("other"))
    assert await other.ask("ping") is not None
    assert await silent[0].is_ended()
    assert "other clients need its slot" in str(served.told)


async def _consumers(served: Served) -> None:
    hog, other = [await served.connected(**token(role)) for role in ("hog", "other")]
    answers = [await subscribed(hog, number) for number in range(5)]
    assert answers[:4] == [""] * 4
    assert "4 consumers of role hog" in answers[4]
    assert await subscribed(other, 9) == ""
    for number in range(2):
        closed = await hog.ask("close_consumer", consumer_id=number, request_id=1)
        assert closed.request_id == 1
    assert await subscribed(hog, 0) == ""
    hog.close()
    while served.service.consumers.used > 1:
        assert await other.ask("ping") is not None


async def _memory(served: Served) -> None:
    other = await served.connected(**token("other"))
    answer = await other.ask("producer", topic=TOPIC, producer_id=1, request_id=1)
    assert answer.producer_ready
    command = encode_command("ping")
    begun = (4 << 20).to_bytes(4, "big") + command[4:] + bytes(3 << 20)  # and no more comes
    hogs = [await served.connected(**token("hog")) for _ in range(3)]
    for hog in hogs:
        hog.writer.write(begun)
    other.message(bytes(1 << 20), {}, {}, producer_id=1, sequence_id=1)
    assert (await other.answer()).HasField("send_receipt")
    assert served.service.budget.held <= 8 << 20


async def _transactions(served: Served) -> None:
    hog, other = [await served.connected(**token(role)) for role in ("hog", "other")]
    while not (answer := await begun(hog)):
        pass
    assert "TXL-509" in answer
    assert await begun(other) == ""


async def _keys(served: Served) -> None:
    hog, other = [await served.connected(**token(role)) for role in ("hog", "other")]
    number = 0
    while not (answer := await keyed(hog, f"k{number}")):
        number += 1
    assert "TXL-509" in answer
    assert await keyed(other, "k") == ""


async def _topics(served: Served) -> None:
    hog, boss = [await served.connected(**token(role)) for role in ("hog", "boss")]
    answers = []
    for client, at in ((hog, 0), (hog, 1), (hog, 2), (boss, 3)):
        answer = await client.ask("producer", topic=f"{TOPIC}{at}", producer_id=at, request_id=1)
        answers.append(str(getattr(answer, "message", "")))
    assert answers[0] == answers[1] == answers[3] == ""
    assert "TXL-509" in answers[2]


async def _long_calls(served: Served) -> None:
    hangs = threading.Event()

    def read(*_: object, **__: object) -> Iterator[object]:
        assert hangs.wait(60)
        return iter(())

    def look(role: str) -> asyncio.Task[tuple[int, str]]:
        head = (
            "GET /admin/v2/persistent/acme/shop/orders/examinemessage HTTP/1.1\nHost: localhost\n"
        )
        headers = (
            f"Authorization: Bearer {token(role)['auth_data'].decode()}\nConnection: close\n\n"
        )
        return asyncio.create_task(served.request(head + headers))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "SLOW_CALLS_MAX", 2)
        patch.setattr("txlog.client.client.Client.read", read)
        hogs = [look("hog") for _ in range(2)]
        [refused], _ = await asyncio.wait(hogs, return_when=asyncio.FIRST_COMPLETED)
        assert refused.result()[0] == 429
        assert "long consume calls of hog" in refused.result()[1]
        other = look("other")
        hangs.set()
        assert (await other)[0] == 404  # there is no message
        await asyncio.gather(*hogs)


EXCEED: dict[str, Exceed] = {
    "connections": _connections,
    "connecting": _connecting,
    "consumers_in_all": _consumers,
    "memory_bytes": _memory,
    "open transactions": _transactions,
    "transaction keys": _keys,
    "topics": _topics,
    "long calls": _long_calls,
}


def test_every_resource_of_the_table_is_exceeded_here() -> None:
    assert {resource.name for resource in RESOURCES} == set(EXCEED)


@pytest.mark.parametrize("name", EXCEED)
def test_role_over_a_limit_is_refused_and_others_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A role at its limit gets the answer in the table, and another role is still served."""
    txlog.init(str(folder / "store"), durability="os", free_bytes_min=0, txn_active_max=8)
    monkeypatch.setattr(shares, "KEYS_MAX", 8)
    monkeypatch.setattr(shares, "TOPICS_MAX", 4)
    monkeypatch.setattr(shares, "TOPICS_RESERVED", 2)
    monkeypatch.setattr(acceptor, "GRACE_SECONDS", 0.0)
    serving(folder, EXCEED[name], rules=RULES, limits=SMALL)


def test_the_guide_has_the_table() -> None:
    """The table of shared resources in docs/serve.md has the program's rows."""
    text = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()
    rows = re.findall(r"^\| `?([a-z_ ]+)`? \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", text, re.M)
    listed = {
        (resource.name, resource.bound, resource.counted, resource.answer) for resource in RESOURCES
    }
    assert listed <= {tuple(cell.strip() for cell in row) for row in rows}


def test_numbers_of_roles_are_above_those_of_users() -> None:
    assert number_of_role("hog") >= 1 << 32

"""Permissions of each command and each route, for callers without a role and without rights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jwt
import pytest
from starlette.routing import Route, WebSocketRoute

import txlog
from tests.serve.roles import SECRET
from tests.serve.siege import Served, serving
from txlog.errors import Corruption, DiskFailed, MissingFile
from txlog.serve.http.application import ENDPOINTS
from txlog.serve.http.listener import OWNER_ONLY, PUBLIC
from txlog.serve.http.page.actions import ACTIONS
from txlog.serve.pulsar.failure import text_of
from txlog.serve.pulsar.listener import handlers
from txlog.serve.pulsar.messages import COMMANDS, FIELDS, BaseCommand, message_class

pytestmark = pytest.mark.usefixtures("quick_disk")
RULES = """
superusers = ["boss"]
[tokens]
secret_key = "secret.key"
[roles.idle]
[roles.sender]
produce = ["acme/*"]
[roles.reader]
consume = ["acme/*"]
"""
TOPIC = "persistent://acme/shop/orders"

# The right that each command needs. anyone: none, it has no data; own: the store checks the owner,
# tested with transactions; handle: this connection has opened the producer or consumer; otherwise
# one of the rules in its line.
WHO: dict[str, str] = {
    "CONNECT": "anyone",
    "AUTH_RESPONSE": "anyone",
    "PING": "anyone",
    "PONG": "anyone",
    "PARTITIONED_METADATA": "produce consume",
    "LOOKUP": "produce consume",
    "GET_TOPICS_OF_NAMESPACE": "shown",
    "WATCH_TOPIC_LIST": "shown",
    "WATCH_TOPIC_LIST_CLOSE": "handle",
    "PRODUCER": "produce",
    "SEND": "handle",
    "CLOSE_PRODUCER": "handle",
    "SUBSCRIBE": "consume",
    "FLOW": "handle",
    "ACK": "handle",
    "REDELIVER_UNACKNOWLEDGED_MESSAGES": "handle",
    "UNSUBSCRIBE": "handle",
    "SEEK": "handle",
    "CLOSE_CONSUMER": "handle",
    "CONSUMER_STATS": "handle",
    "GET_LAST_MESSAGE_ID": "handle",
    "GET_SCHEMA": "produce consume",
    "GET_OR_CREATE_SCHEMA": "produce",
    "TC_CLIENT_CONNECT_REQUEST": "own",
    "NEW_TXN": "own",
    "ADD_PARTITION_TO_TXN": "produce",
    "ADD_SUBSCRIPTION_TO_TXN": "consume",
    "END_TXN": "own",
}
FIELDS_OF: dict[str, dict[str, Any]] = {
    "PRODUCER": {"producer_id": 9},
    "SUBSCRIBE": {"subscription": "s", "subType": 1, "consumer_id": 9},
    "GET_OR_CREATE_SCHEMA": {"schema": {"name": "x", "schema_data": b"", "type": 0}},
}


def token(role: str) -> bytes:
    return jwt.encode({"sub": role}, SECRET).encode()


def test_every_command_declares_its_permissions() -> None:
    """Kills: a new command without a decision on its permissions. It needs a line in WHO."""
    names = {number: name for name, number in COMMANDS.items()}
    assert {names[number] for number in handlers()} <= set(WHO)


def test_commands_at_a_topic_need_a_rule(folder: Path) -> None:
    at_topic = [name for name, who in WHO.items() if {"produce", "consume"} & set(who.split())]
    there = [name for name in at_topic if COMMANDS[name] in handlers()]
    assert len(there) >= 6

    async def program(served: Served) -> None:
        boss = await served.connected(auth_method_name="token", auth_data=token("boss"))
        assert (await boss.ask("producer", topic=TOPIC, producer_id=1, request_id=1)).producer_ready
        response = await boss.ask("newTxn", request_id=1, txn_ttl_seconds=60_000, tc_id=0)
        txn = {
            "txnid_most_bits": response.txnid_most_bits,
            "txnid_least_bits": response.txnid_least_bits,
        }
        wrong = []
        for role, may in (("idle", ""), ("sender", "produce"), ("reader", "consume")):
            for name in there:
                client = await served.connected(auth_method_name="token", auth_data=token(role))
                client.send(FIELDS[COMMANDS[name]], **_fields(name, txn))
                answer = str(await client.answer())
                # the answer may name another owner's transaction: then the topic was allowed
                is_refused = f"role {role} may not" in answer and "NotAllowedError" in answer
                if is_refused == bool({may} & set(WHO[name].split())):
                    wrong.append((role, name, answer))
        assert wrong == []

    serving(folder, program, rules=RULES)


def _fields(name: str, txn: dict[str, int]) -> dict[str, Any]:
    fields = dict(FIELDS_OF.get(name, {}))
    if name == "ADD_PARTITION_TO_TXN":
        return {**txn, "partitions": [TOPIC], "request_id": 7}
    if name == "ADD_SUBSCRIPTION_TO_TXN":
        item = message_class("Subscription")(topic=TOPIC, subscription="s")
        return {**txn, "subscription": [item], "request_id": 7}
    if "schema" in fields:
        fields["schema"] = message_class("Schema")(**fields["schema"])
    return {"topic": TOPIC, "request_id": 7, **fields}


def test_a_handle_is_of_the_connection_that_opened_it(folder: Path) -> None:
    """Kills: a connection that uses another one's producer or consumer by its number."""
    handles = [
        name for name, who in WHO.items() if who == "handle" and COMMANDS[name] in handlers()
    ]
    assert len(handles) >= 9
    place = message_class("MessageIdData")(ledgerId=1, entryId=0)
    all_fields: dict[str, Any] = {
        "topic": TOPIC,
        **{name: 1 for name in ("producer_id", "consumer_id", "request_id", "watcher_id")},
        **{"sequence_id": 9, "messagePermits": 9, "ack_type": 1, "message_id": place},
    }

    async def program(served: Served) -> None:
        boss = await served.connected(auth_method_name="token", auth_data=token("boss"))
        subscribed = {"subscription": "s", "subType": 1, "consumer_id": 1, "initialPosition": 1}
        assert (await boss.ask("producer", topic=TOPIC, producer_id=1, request_id=1)).producer_ready
        boss.message(b"x", {}, {}, producer_id=1, sequence_id=1)
        assert (await boss.answer()).HasField("send_receipt")
        boss.send("subscribe", topic=TOPIC, request_id=2, **subscribed)
        assert (await boss.answer()).HasField("success")
        idle = await served.connected(auth_method_name="token", auth_data=token("idle"))
        for name in handles:
            field = FIELDS[COMMANDS[name]]
            if name == "SEND":
                idle.message(b"x", {}, {}, producer_id=1, sequence_id=9)
                continue
            takes = message_class(type_of(field)).DESCRIPTOR.fields_by_name
            fields = {key: value for key, value in all_fields.items() if key in takes}
            if "message_id" in takes and takes["message_id"].is_repeated:
                fields["message_id"] = [place]
            idle.send(field, **fields)
        idle.send("ping")
        while not (answer := await idle.answer()).HasField("pong"):
            answer_text = str(answer)
            assert not any(word in answer_text for word in ("receipt", "message {")), answer_text
        boss.message(b"y", {}, {}, producer_id=1, sequence_id=2)
        assert (await boss.answer()).HasField("send_receipt")  # it is still open
        with txlog.open(str(folder / "store")) as client:
            [row] = client.subscriptions("acme/shop/orders")
            assert row["backlog"] == 2
            assert len(list(client.reader("acme/shop/orders"))) == 2

    serving(folder, program, rules=RULES)


def type_of(field: str) -> str:
    """The name of the message that a field of a command has."""
    return str(BaseCommand.DESCRIPTOR.fields_by_name[field].message_type.name)


def test_topic_names_are_shown_to_permitted_roles(folder: Path) -> None:
    async def program(served: Served) -> None:
        boss = await served.connected(auth_method_name="token", auth_data=token("boss"))
        assert (await boss.ask("producer", topic=TOPIC, producer_id=1, request_id=1)).producer_ready
        for role, expected in (("boss", [TOPIC]), ("reader", [TOPIC]), ("idle", [])):
            client = await served.connected(auth_method_name="token", auth_data=token(role))
            answer = await client.ask("getTopicsOfNamespace", namespace="acme/shop", request_id=7)
            assert list(answer.topics) == expected

    serving(folder, program, rules=RULES)


# --- HTTP ------------------------------------------------------------------------------------

OPEN_PATHS = {"/", "/page.css", "/page.js", "/ready"} | {
    f"/admin/v2/brokers/{name}" for name in ("health", "ready")
}
GIVEN = {
    "tenant": "acme",
    "namespace": "shop",
    "topic": "orders",
    "domain": "persistent",
    "setting": "publishRate",
}


def test_every_route_refuses_callers_without_role_or_right(folder: Path) -> None:
    """Kills: a new route without a gate. OPEN_PATHS above lists the routes that need none."""
    spared = {
        endpoint.path for endpoint in ENDPOINTS if endpoint.act.__name__ in PUBLIC | OWNER_ONLY
    }
    # Refused to all without --allow-actions; test_page_views has their rights.
    spared |= {f"/page/act/{name}" for name in ACTIONS}

    async def program(served: Served) -> None:
        wrong, count = [], 0
        for route in routes_of(served):
            path = re.sub(r"{(\w+)(?::\w+)?}", lambda m: GIVEN.get(m[1], "1"), route.path)
            for method in sorted((route.methods or {"GET"}) - {"HEAD"}):
                for role in (None, "idle"):
                    status = await _status(served, method, path, role)
                    count += 1
                    if route.path in OPEN_PATHS:
                        expected = 200
                    elif role is None:
                        expected = 401
                    elif route.path in spared or route.path == "/openapi.json":
                        continue
                    else:
                        expected = 403
                    if status != expected:
                        wrong.append((method, route.path, role, status))
        assert wrong == []
        assert count > 200

    serving(folder, program, rules=RULES)


def test_any_role_may_ask_by_http_where_coordinators_are(folder: Path) -> None:
    """As by the binary protocol. For a topic the rules decide; asking creates nothing."""
    assign = "pulsar/system/transaction_coordinator_assign"

    async def program(served: Served) -> None:
        for path, role, expected in (
            (f"/admin/v2/persistent/{assign}/partitions", "idle", 200),
            (f"/lookup/v2/topic/persistent/{assign}-partition-0", "idle", 200),
            (f"/admin/v2/persistent/{assign}/partitions", None, 401),
            (f"/admin/v2/persistent/{assign}/stats", "idle", 403),
            ("/lookup/v2/topic/persistent/acme/shop/orders", "idle", 403),
            ("/lookup/v2/topic/persistent/acme/shop/orders", "sender", 200),
            ("/admin/v2/persistent/acme/shop/orders/partitions", "reader", 404),
        ):
            assert await _status(served, "GET", path, role) == expected, (path, role)

    serving(folder, program, rules=RULES)


def test_owned_resources_are_refused_to_other_roles(folder: Path) -> None:
    """Kills: an endpoint that bypasses the gate, and does not check the owner either."""
    owned = [endpoint for endpoint in ENDPOINTS if endpoint.act.__name__ in OWNER_ONLY]
    assert {endpoint.act.__name__ for endpoint in owned} == OWNER_ONLY

    async def program(served: Served) -> None:
        boss = await served.connected(auth_method_name="token", auth_data=token("boss"))
        boss.send("tcClientConnectRequest", request_id=1, tc_id=0, transaction_key="k", epoch=-1)
        assert not (await boss.answer()).tcClientConnectResponse.HasField("error")
        response = await boss.ask("newTxn", request_id=2, txn_ttl_seconds=60_000, tc_id=0)
        words = {
            **GIVEN,
            "most": str(response.txnid_most_bits),
            "least": str(response.txnid_least_bits),
            "key": "k",
            "transaction_key": "k",
        }
        for endpoint in owned:
            path = re.sub(r"{(\w+)(?::\w+)?}", lambda m: words[m[1]], endpoint.path)
            status = await _status(served, endpoint.method, path, "idle")
            # a key belongs to a role: another role's key of this name does not exist
            assert status == (403 if "most" in endpoint.path else 404), (
                endpoint.method,
                path,
                status,
            )
        with txlog.open(str(folder / "store")) as client:
            assert [row["txn_state"] for row in client.admin.transaction_keys()] == ["open"]

    serving(folder, program, rules=RULES)


ONE_TOPIC = """
superusers = ["boss"]
[tokens]
secret_key = "secret.key"
[roles.tenant]
produce = ["acme/shop/orders"]
consume = ["acme/shop/orders"]
admin = ["acme/shop/orders"]
"""
HIDDEN = ["acme/shop/secret-merger", "acme/secrets/orders", "rival/secrets/orders"]
NEAR = [
    "orders",
    "secret-merge",
]  # its own topic, and one so close to a hidden name that an error could hint at it


async def _made_by_boss(served: Served) -> dict[str, str]:
    """Make topics, subscriptions, a key and a transaction over them; returns words for paths."""
    boss = await served.connected(auth_method_name="token", auth_data=token("boss"))
    boss.send("tcClientConnectRequest", request_id=1, tc_id=0, transaction_key="key-x", epoch=-1)
    assert not (await boss.answer()).tcClientConnectResponse.HasField("error")
    topics = [TOPIC, *(f"persistent://{name}" for name in HIDDEN)]
    for at, topic in enumerate(topics):
        ready = await boss.ask("producer", topic=topic, producer_id=at, request_id=10 + at)
        assert ready.producer_ready
        fields = {"subscription": "s", "subType": 1, "consumer_id": at, "request_id": 20 + at}
        await boss.ask("subscribe", topic=topic, **fields)
    txn = await boss.ask("newTxn", request_id=2, txn_ttl_seconds=60_000, tc_id=0)
    halves = {"txnid_most_bits": txn.txnid_most_bits, "txnid_least_bits": txn.txnid_least_bits}
    await boss.ask("addPartitionToTxn", request_id=3, partitions=topics, **halves)
    return {"most": str(txn.txnid_most_bits), "least": str(txn.txnid_least_bits), "key": "key-x"}


def test_no_endpoint_shows_names_of_topics_that_its_caller_may_not_see(folder: Path) -> None:
    """Kills: a list, a hint or an error with the names of other tenants."""

    async def program(served: Served) -> None:
        base_words = {**GIVEN, **await _made_by_boss(served), "subscription": "s"}
        by = f"Authorization: Bearer {token('tenant').decode()}\nConnection: close\n"
        leaks, answered, listed = [], 0, ""
        for topic in NEAR:
            words = {**base_words, "topic": topic}
            paths = {
                (endpoint.method, endpoint.path)
                for endpoint in ENDPOINTS
                if endpoint.method in ("GET", "POST")
            }
            paths |= {("GET", route.path) for route in routes_of(served)}
            if topic != "orders":  # for the other topics, only paths with a topic
                paths = {(method, path) for method, path in paths if "{topic}" in path}
            for method, path in sorted(paths):
                if path.endswith("/events"):  # never ends by itself; passes the same gate as GET
                    continue
                there = _filled(path, words)
                head = f"{method} {there} HTTP/1.1\nHost: a.example\n{by}Content-Length: 2\n\n"
                status, text = await served.request(head, b"{}")
                answered += status == 200
                if "persistent://acme/shop/orders" in text:
                    listed += there
                if re.search(r"secret-merger|secrets|rival", text.replace(there, "")):
                    leaks.append((method, there, text))
        assert leaks == []
        assert answered > 50
        assert "/admin/v2/namespaces/acme/shop/topics" in listed  # the answer lists its own topics

    serving(folder, program, rules=ONE_TOPIC)


def test_no_command_shows_names_of_topics_that_its_client_may_not_see(folder: Path) -> None:
    """Kills: the same by Pulsar's protocol."""

    async def program(served: Served) -> None:
        halves = await _made_by_boss(served)
        txn = {"txnid_most_bits": int(halves["most"]), "txnid_least_bits": int(halves["least"])}
        leaks = []
        for topic in NEAR:
            for name in sorted(one for one, who in WHO.items() if who not in ("anyone", "handle")):
                if COMMANDS[name] not in handlers():
                    continue
                all_fields: dict[str, Any] = {
                    "transaction_key": "key-x",
                    "tc_id": 0,
                    "namespace": "acme/shop",
                    "topics_pattern": "persistent://acme/shop/.*",
                    "watcher_id": 1,
                    **txn,
                    **_fields(name, txn),
                }
                takes = message_class(type_of(FIELDS[COMMANDS[name]])).DESCRIPTOR.fields_by_name
                fields = {key: one for key, one in all_fields.items() if key in takes}
                if "topic" in fields:
                    fields["topic"] = f"persistent://acme/shop/{topic}"
                client = await served.connected(auth_method_name="token", auth_data=token("tenant"))
                client.send(FIELDS[COMMANDS[name]], **fields)
                answer = str(await client.answer())
                client.close()
                if re.search(r"secret-merger|secrets|rival", answer):
                    leaks.append((name, topic, answer))
        assert leaks == []

    serving(folder, program, rules=ONE_TOPIC)


def test_an_error_of_a_file_names_no_file_to_clients(folder: Path) -> None:
    """Kills: an answer that shows a client a path of the machine, or the address of an offload."""

    async def program(served: Served) -> None:
        boss = await served.connected(auth_method_name="token", auth_data=token("boss"))
        await boss.ask("producer", topic=TOPIC, producer_id=1, request_id=1)
        boss.message(b"x", {}, {}, producer_id=1, sequence_id=1)
        assert (await boss.answer()).HasField("send_receipt")
        with txlog.open(str(folder / "store")) as client:
            client.checkpoint(roll_all=True)
        [file] = (folder / "store").glob("topics/acme/**/*.parquet")
        file.unlink()
        status, text = await served.request(
            "GET /admin/v2/persistent/acme/shop/orders/examinemessage?initialPosition=earliest"
            f" HTTP/1.1\nHost: a.example\nAuthorization: Bearer {token('boss').decode()}\n"
            "Connection: close\n\n"
        )
        assert status == 500
        assert "cannot use a file of its store" in text
        assert file.name not in text

    serving(folder, program, rules=ONE_TOPIC)
    for kind in (DiskFailed, MissingFile, Corruption):
        shown_text = text_of(kind("cannot open /srv/a.parquet", path="/srv/a.parquet"))
        assert "/srv" not in shown_text


def _filled(path: str, words: dict[str, str]) -> str:
    """The path of a route with these words in its places, and 0 in the others."""
    return re.sub(r"{(\w+)(?::\w+)?}", lambda place: words.get(place[1], "0"), path)


def routes_of(served: Served) -> list[Route]:
    """The routes of requests, without WebSockets, which have a test of their own below."""
    app = served.server.listeners[1].application  # type: ignore[attr-defined]
    return [route for route in app.routes if isinstance(route, Route)]


async def _status(served: Served, method: str, path: str, role: str | None) -> int:
    by = "" if role is None else f"Authorization: Bearer {token(role).decode()}\n"
    head = (
        f"{method} {path} HTTP/1.1\nHost: a.example\n{by}Connection: close\nContent-Length: 0\n\n"
    )
    return (await served.request(head))[0]


def test_every_websocket_refuses_callers_without_role_or_right(folder: Path) -> None:
    async def program(served: Served) -> None:
        app = served.server.listeners[1].application  # type: ignore[attr-defined]
        sockets = [socket for socket in app.routes if isinstance(socket, WebSocketRoute)]
        assert len(sockets) >= 3
        for route in sockets:
            path = re.sub(r"{(\w+)(?::\w+)?}", lambda m: GIVEN.get(m[1], "1"), route.path)
            for by in ("", f"?token={token('idle').decode()}"):
                upgrade = (
                    "Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\n"
                    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\n"
                )
                status, text = await served.request(
                    f"GET {path}{by} HTTP/1.1\nHost: a.example\n{upgrade}\n"
                )
                assert status == 403, (route.path, by, text)

    serving(folder, program, rules=RULES)

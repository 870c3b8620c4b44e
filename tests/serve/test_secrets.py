"""The log and the errors of a server never show tokens, keys or messages."""

from __future__ import annotations

import base64
import http.client
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

import txlog
from tests.harness import Child
from tests.serve.served import Raw
from txlog.serve.core.service import BrokerService, ServerOptions
from txlog.serve.pulsar.messages import message_class

SECRET = b"this-secret-key-is-nobodys-business-"
PAYLOAD = "payload-that-is-nobodys-business"
RULES = """
superusers = ["boss"]
[tokens]
secret_key = "secret.key"
[roles.idle]
"""
TOPIC = "persistent://acme/shop/orders"
TOKENS = {
    "boss": jwt.encode({"sub": "boss"}, SECRET),
    "idle": jwt.encode({"sub": "idle"}, SECRET),
    "expired": jwt.encode({"sub": "boss", "exp": 1_000_000_000}, SECRET),
    "forged": jwt.encode({"sub": "boss"}, SECRET[::-1]),
}


class Talkative:
    """A server with its most detailed log, and the text of that log."""

    def __init__(self, folder: Path) -> None:
        (folder / "secret.key").write_bytes(SECRET)
        (folder / "rules.toml").write_text(RULES)
        store = str(folder / "store")
        txlog.init(store)
        self.child = Child(
            [
                *(sys.executable, "-X", "dev", "-m", "txlog", "-vv", "--log-format", "json"),
                *("-S", store, "serve", "--pulsar", "127.0.0.1:0", "--http", "127.0.0.1:0"),
                *("--auth", str(folder / "rules.toml")),
            ],
            env={"PYTHONASYNCIODEBUG": "1"},
        )
        while '"urls"' not in self.said or not self.said.endswith("\n"):
            assert self.child.process.poll() is None, self.said
        line = next(logged for logged in self.said.splitlines() if '"serving"' in logged)
        self.pulsar, self.http = (int(url.rpartition(":")[2]) for url in json.loads(line)["urls"])

    @property
    def said(self) -> str:
        return self.child.other


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Talkative]:
    talkative = Talkative(tmp_path)
    with talkative.child:
        yield talkative


def requested(server: Talkative, method: str, path: str, body: Any, token: str | None) -> str:
    """The body of an answer that is an error; "" for success, as such a body may have messages."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http, timeout=30)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    data = body if isinstance(body, str | bytes) else json.dumps(body)
    connection.request(method, path, data, headers)
    answer = connection.getresponse()
    text = answer.read().decode(errors="replace")
    connection.close()
    return text if answer.status >= 400 else ""


def by_http(server: Talkative) -> Iterator[str]:
    """Errors of requests with every token, in a header and in the query, good and bad bodies."""
    path_of_topic = "/topics/persistent/acme/shop/orders"
    admin = "/admin/v2/persistent/acme/shop/orders"
    bodies: list[Any] = [
        {"messages": [{"payload": PAYLOAD, "key": PAYLOAD, "properties": {"a": PAYLOAD}}]},
        *(
            {"messages": [{"payload": PAYLOAD, "properties": properties}]}
            for properties in (PAYLOAD, {"a": 1})
        ),
        *(
            {"messages": [{"payload": PAYLOAD, name: "soon"}]}
            for name in ("eventTime", "deliverAt")
        ),
        {"messages": [{"payload": PAYLOAD, "sequenceId": "first"}]},
        {"messages": [{"payloadBase64": f"{PAYLOAD}!"}]},
        {"messages": [{"payload": [PAYLOAD]}]},
        {"messages": [PAYLOAD]},
        {"messages": PAYLOAD},
        {PAYLOAD: 1},
        [PAYLOAD],
        PAYLOAD,
        f"{{'{PAYLOAD}",
        f'{{"messages": [{{"payload": "{PAYLOAD}\\ud800"}}]}}'.encode("latin-1"),
    ]
    for token in (None, *TOKENS.values()):
        for body in bodies:
            yield requested(server, "POST", path_of_topic, body, token)
        for path in (f"{admin}/retention", f"{admin}/partitions", f"{admin}/subscription/s"):
            for body in (PAYLOAD, [PAYLOAD], {PAYLOAD: PAYLOAD}):
                yield requested(server, "POST", path, body, token)
                yield requested(server, "PUT", path, body, token)
        for path in (path_of_topic, "/metrics", "/nowhere", f"{admin}/stats"):
            yield requested(server, "GET", path, b"", token)
            yield requested(server, "GET", f"{path}?token={token}", b"", None)


def by_websocket(server: Talkative) -> Iterator[str]:
    """The same by WebSocket."""
    for token in TOKENS.values():
        url = f"ws://127.0.0.1:{server.http}/ws/v2/producer/persistent/acme/shop/orders"
        try:
            with connect(f"{url}?token={token}") as socket:
                value = base64.b64encode(PAYLOAD.encode()).decode()
                for payload in (value, PAYLOAD + "!", [PAYLOAD]):
                    socket.send(json.dumps({"payload": payload}))
                    yield str(socket.recv())
                socket.send(PAYLOAD)
                yield str(socket.recv())
        except WebSocketException as error:
            yield str(error)


def by_pulsar(server: Talkative) -> Iterator[str]:
    """The same by Pulsar's protocol, and frames that are none."""
    for token in (b"", *(text.encode() for text in TOKENS.values())):
        with Raw(f"pulsar://127.0.0.1:{server.pulsar}", connects=False) as raw:
            login = {"auth_method_name": "token", "auth_data": token} if token else {}
            raw.send("connect", client_version="test", protocol_version=19, **login)
            yield str(raw.frame().body)
            if token != TOKENS["boss"].encode():
                continue
            raw.send("producer", topic=TOPIC, producer_id=1, request_id=1)
            yield str(raw.frame().body)
            raw.message("send", PAYLOAD.encode(), {"sequence_id": 0}, producer_id=1, sequence_id=0)
            yield str(raw.frame().body)
            bad = {"sequence_id": 1, "num_messages_in_batch": 2, "compression": 1}
            raw.message("send", PAYLOAD.encode(), bad, producer_id=1, sequence_id=1)
            yield str(raw.frame().body)
            schema = message_class("Schema")(name="x", schema_data=PAYLOAD.encode(), type=4)
            raw.send("producer", topic=TOPIC, producer_id=2, request_id=2, schema=schema)
            yield str(raw.frame().body)
            raw.socket.sendall(bytes(4) + PAYLOAD.encode())
            with pytest.raises(EOFError):
                while True:
                    yield str(raw.frame().body)


@pytest.mark.deep
def test_no_token_key_or_message_is_in_the_log_or_in_errors(server: Talkative) -> None:
    """Kills: a log of addresses with ?token=, an error that repeats its input."""
    errors = [*by_http(server), *by_websocket(server), *by_pulsar(server)]
    server.child.signal(signal.SIGHUP)
    server.child.end(signal.SIGTERM)
    log = server.said
    assert len([text for text in errors if text]) > 100
    assert '"event": "refused"' in log and '"event": "reloaded"' in log
    parts = {part for token in TOKENS.values() for part in token.split(".")[1:]}
    secrets = {*parts, SECRET.decode(), base64.b64encode(SECRET).decode(), PAYLOAD}
    for secret in secrets:
        assert [text for text in (*errors, log) if secret in text] == []


def test_failure_is_logged_without_its_message() -> None:
    """Kills: a log of a bug's message, which may quote the data at which it failed."""
    events: list[tuple[str, Any]] = []
    service = BrokerService.__new__(BrokerService)
    service.tell = ServerOptions(tell=lambda event, facts: events.append((event, facts))).tell
    try:
        raise RuntimeError(PAYLOAD)
    except RuntimeError as error:
        service.failed(error)
    [(event, facts)] = events
    assert (event, facts["class"]) == ("failed", "RuntimeError")
    assert facts["at"].startswith("test_secrets.py:") and PAYLOAD not in str(facts)

"""A reload of rules, keys or authorities, and the connections that it ends."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.serve.certificates import Signer, make_certificate, make_signed, written
from tests.serve.roles import SECRET
from tests.serve.siege import Served, Wire, serving
from txlog.serve.core.tls import TlsContext
from txlog.serve.pulsar.messages import ERRORS

pytestmark = pytest.mark.usefixtures("quick_disk")
OTHER = bytes(range(1, 33))
TOPIC = "persistent://acme/shop/orders"
RULES = """
superusers = ["boss", "deputy"]
[tokens]
secret_key = "secret.key"
[roles.owner]
produce = ["acme/shop/*"]
consume = ["acme/shop/*"]
"""


def token(role: str, secret: bytes = SECRET) -> dict[str, Any]:
    return {"auth_method_name": "token", "auth_data": jwt.encode({"sub": role}, secret).encode()}


def reasons(served: Served) -> list[object]:
    return [facts["reason"] for event, facts in served.told if event == "dropped"]


def test_a_second_connect_ends_the_connection(folder: Path) -> None:
    """Kills: a client that replaces an expiring token by one without any rights."""

    async def program(served: Served) -> None:
        client = await served.connected(**token("owner"))
        client.send("connect", client_version="x", protocol_version=19, **token("boss"))
        assert "CONNECT came twice" in (await client.answer()).error.message
        await client.is_ended()

    serving(folder, program, rules=RULES)


def test_former_superuser_has_no_power_over_others(folder: Path) -> None:
    """Kills: a former superuser whose open connection still ends other roles' transactions."""

    async def program(served: Served) -> None:
        owner, deputy = [await served.connected(**token(role)) for role in ("owner", "deputy")]
        begun = [
            await owner.ask("newTxn", request_id=1, txn_ttl_seconds=60_000, tc_id=0)
            for _ in range(2)
        ]
        first, second = [
            {
                "txnid_most_bits": response.txnid_most_bits,
                "txnid_least_bits": response.txnid_least_bits,
            }
            for response in begun
        ]
        answer = await deputy.ask("endTxn", request_id=2, txn_action=1, **first)
        assert not answer.HasField("error")
        (folder / "rules.toml").write_text(RULES.replace(', "deputy"', ""))
        served.server.reload()
        answer = await deputy.ask("endTxn", request_id=3, txn_action=1, **second)
        assert "belongs to owner" in answer.message
        answer = await owner.ask("endTxn", request_id=4, txn_action=0, **second)
        assert not answer.HasField("error")

    serving(folder, program, rules=RULES)


async def tail_of(served: Served, by: bytes) -> asyncio.StreamReader:
    """A tail by HTTP that has begun."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.http)
    served.clients.append(Wire(reader, writer))
    head = f"GET /topics/persistent/acme/shop/orders/events?token={by.decode()} HTTP/1.1"
    writer.write(f"{head}\r\nHost: a\r\n\r\n".encode())
    await reader.readuntil(b": txlog")
    return reader


def test_connections_of_a_replaced_secret_end(folder: Path) -> None:
    async def program(served: Served) -> None:
        client = await served.connected(**token("owner"))
        response = await client.ask("producer", topic=TOPIC, producer_id=1, request_id=1)
        assert response.producer_ready
        tail = await tail_of(served, token("owner")["auth_data"])
        served.server.reload()
        assert await client.ask("ping") is not None  # the same secret was read again
        (folder / "secret.key").write_bytes(OTHER)
        served.server.reload()
        await client.is_ended()
        await tail.read()
        assert reasons(served) == ["the token is not signed by a key of this server"] * 2
        assert await (await served.connected(**token("owner", OTHER))).ask("ping") is not None

    serving(folder, program, rules=RULES)


def test_connections_of_a_removed_key_end(folder: Path) -> None:
    """The server reads a changed file at the next login, without a signal."""
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    public = [
        {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())), "kid": str(at)}
        for at, key in enumerate(keys)
    ]
    (folder / "keys.json").write_text(json.dumps({"keys": public}))

    def by(at: int) -> dict[str, Any]:
        data = jwt.encode({"sub": "owner"}, keys[at], "ES256", headers={"kid": str(at)})
        return {"auth_method_name": "token", "auth_data": data.encode()}

    async def program(served: Served) -> None:
        first, second = [await served.connected(**by(at)) for at in range(2)]
        (folder / "keys.json").write_text(json.dumps({"keys": public[1:]}))
        third = await served.connected(**by(1))
        await first.is_ended()
        assert await second.ask("ping") is not None
        assert await third.ask("ping") is not None

    serving(
        folder,
        program,
        rules=RULES.replace("secret_key", "jwks").replace("secret.key", "keys.json"),
    )


def tls_of(folder: Path, name: str, signer: Signer) -> dict[str, Any]:
    """The TLS options of a client whose certificate is signed by an authority."""
    cert, key = written(folder, name, make_signed(name, signer))
    context = ssl.create_default_context(cafile=folder / "localhost.pem")
    context.load_cert_chain(cert, key)
    return {"ssl": context, "server_hostname": "localhost"}


async def status_of(client: Wire) -> bytes:
    """The status line of a request on a connection that stays open."""
    client.writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    head = await client.reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if b"content-length" in line)
    await client.reader.readexactly(int(length.partition(b":")[2]))
    return head.split()[1]


@pytest.mark.parametrize("has_rules", [True, False])
def test_removed_authorities_are_no_longer_trusted(folder: Path, has_rules: bool) -> None:
    """Kills: a context that adds the new authority to the old one; connections that outlive it."""
    old, new = make_signed("old authority"), make_signed("new authority")
    written(folder, "old", old)
    written(folder, "new", new)
    shutil.copy(folder / "old.pem", folder / "ca.pem")
    served_by = make_certificate(folder, "localhost")
    rules = 'superusers = ["boss", "chief"]\n[certificates]\n' if has_rules else None
    tls = TlsContext(*served_by, folder / "ca.pem", needs_certificate=not has_rules)
    by_old, by_new = tls_of(folder, "boss", old), tls_of(folder, "chief", new)
    hello = {"client_version": "x", "protocol_version": 19}

    async def program(served: Served) -> None:
        async def logged_in(by: dict[str, Any]) -> Wire:
            client = await served.client(**by)
            assert (await client.ask("connect", **hello)).server_version
            return client

        async def fails(by: dict[str, Any]) -> bool:
            try:
                client = await served.client(**by)
                client.send("connect", **hello)
                answer = await client.answer()
            except (OSError, asyncio.IncompleteReadError):
                return True  # of the handshake
            return bool(answer.error.error == ERRORS["AuthenticationError"])

        first = await logged_in(by_old)
        web = Wire(*await asyncio.open_connection("127.0.0.1", served.http, **by_old))
        served.clients.append(web)
        assert await status_of(web) == b"200"
        (folder / "ca.pem").write_bytes(
            b"".join((folder / f"{name}.pem").read_bytes() for name in ("old", "new"))
        )
        served.server.reload()
        second = await logged_in(by_new)
        assert await first.ask("ping") is not None  # the server still trusts its authority
        assert await status_of(web) == b"200"
        shutil.copy(folder / "new.pem", folder / "ca.pem")
        served.server.reload()
        await first.is_ended()
        assert await second.ask("ping") is not None
        assert await status_of(web) == b"401"
        assert await fails(by_old)
        assert not await fails(by_new)

    serving(folder, program, rules=rules, tls=tls)


def test_unreadable_authorities_change_nothing(folder: Path) -> None:
    old = make_signed("old authority")
    written(folder, "ca", old)
    served_by = make_certificate(folder, "localhost")
    by_old = tls_of(folder, "boss", old)

    async def program(served: Served) -> None:
        client = await served.client(**by_old)
        assert (await client.ask("connect", client_version="x", protocol_version=19)).server_version
        (folder / "ca.pem").write_bytes(b"no certificate")
        served.server.reload()
        assert served.told[-1][0] == "failed"
        assert await client.ask("ping") is not None

    rules = 'superusers = ["boss"]\n[certificates]\n'
    serving(folder, program, rules=rules, tls=TlsContext(*served_by, folder / "ca.pem"))

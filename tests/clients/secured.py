"""Owns a server with TLS and rules, and the credentials of its clients.

In the folder `CREDENTIALS` of the environment:

    ca.pem, other.pem        authorities; the server's certificate is of the first
    ROLE.pem, ROLE.key       certificates of clients; the other authority signs `stranger`'s
    ROLE.token               tokens; `expired` and `forged` are not good, `short` is made on demand
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import jwt

from tests.clients import bed
from tests.serve.certificates import make_certificate, make_signed, written
from txlog.serve.pulsar.connection import CHALLENGE_SECONDS

SECRET, FORGED = bytes(range(32)), bytes(range(1, 33))
RULES = """
superusers = ["boss"]
[tokens]
secret_key = "secret.key"
[certificates]
[roles.sender]
produce = ["public/default/*"]
[roles.reader]
consume = ["public/default/*"]
[roles.worker]
produce = ["public/default/*"]
consume = ["public/default/*"]
[roles.keeper]
admin = ["public/default/*"]
[roles.idle]
"""
ROLES = ("boss", "sender", "reader", "worker", "keeper", "idle")


class Secured(bed.Server):
    """A server that refuses clients without a token or a certificate."""

    host = "localhost"

    def __init__(self, folder: Path, *options: str) -> None:
        self.secrets = folder / "secrets"
        self.settings = {"CREDENTIALS": str(self.secrets)}
        self.secrets.mkdir()
        authority, self._other = make_signed("authority"), make_signed("another")
        for name, signer in (("ca", authority), ("other", self._other)):
            written(self.secrets, name, signer)
        make_certificate(self.secrets, "localhost", authority)
        for role in ROLES:
            make_certificate(self.secrets, role, authority)
        make_certificate(self.secrets, "stranger", self._other)
        for role in ROLES:
            self._sign(role, {"sub": role})
        self._sign("expired", {"sub": "worker", "exp": 1_000_000_000})
        self._sign("forged", {"sub": "worker"}, FORGED)
        (self.secrets / "secret.key").write_bytes(SECRET)
        (self.secrets / "rules.toml").write_text(RULES)
        certificate, key = self.secrets / "localhost.pem", self.secrets / "localhost.key"
        super().__init__(
            folder,
            *("--tls-cert", str(certificate), "--tls-key", str(key)),
            *("--tls-client-ca", str(self.secrets / "ca.pem")),
            *("--auth", str(self.secrets / "rules.toml")),
            *options,
        )

    def token(self, role: str) -> str:
        """The token of a role."""
        return (self.secrets / f"{role}.token").read_text()

    def answer(self, wish: str) -> None:
        """Make a token that ends soon; or let the other authority sign the server's certificate."""
        if wish == "token":
            # whole seconds: the client has to ask for its next token within two seconds
            ends_s = int(time.time() + CHALLENGE_SECONDS) + 2
            self._sign("short", {"sub": "sender", "exp": ends_s})
        elif wish == "certificate":
            make_certificate(self.secrets, "localhost", self._other)
            os.kill(self.pid, signal.SIGHUP)
            self.await_log('"what": "certificate"')
        else:
            super().answer(wish)

    def _sign(self, name: str, claims: dict[str, object], key: bytes = SECRET) -> None:
        # renamed, as a client may read the one before
        new_file = self.secrets / f"{name}.token.new"
        new_file.write_text(jwt.encode(claims, key))
        new_file.replace(self.secrets / f"{name}.token")

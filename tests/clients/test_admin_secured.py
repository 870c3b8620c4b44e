"""pulsar-admin against a server with TLS and rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients import bed
from tests.clients.admin_tool import Admin
from tests.clients.secured import Secured

pytestmark = [pytest.mark.clients, pytest.mark.needs("mvn")]
TOKEN = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
TLS = "org.apache.pulsar.client.impl.auth.AuthenticationTls"
TOPIC = "persistent://public/default/orders"


def test_pulsar_admin_with_tls_tokens_and_certificates(tmp_path: Path) -> None:
    def by_token(role: str) -> tuple[str, ...]:
        return ("--auth-plugin", TOKEN, "--auth-params", f"token:{server.token(role)}")

    def by_certificate(role: str) -> tuple[str, ...]:
        files = f"tlsCertFile:{server.secrets}/{role}.pem,tlsKeyFile:{server.secrets}/{role}.key"
        return ("--auth-plugin", TLS, "--auth-params", files)

    with bed.running(Secured(tmp_path, "--http", "localhost:0")) as server:
        assert server.http.startswith("https://")
        trust = f"tlsTrustCertsFilePath={server.secrets}/ca.pem"
        try:
            tool = Admin(server.http, trust, "tlsEnableHostnameVerification=true")
        except bed.Unavailable as error:
            pytest.skip(str(error))
        with tool:
            # in this order: the tool keeps what the last command logged in with
            for who, reason in (
                ((), "a token or a certificate is needed"),
                (by_token("expired"), "the token has expired"),
                (by_token("forged"), "the token is not signed by a key of this server"),
            ):
                assert tool.refused(*who, "topics", "list", "public/default") == reason
            for role in ("sender", "reader", "idle"):
                refused = tool.refused(*by_token(role), "topics", "create", TOPIC)
                assert refused == f"role {role} may not admin public/default/orders"
            tool(*by_token("keeper"), "topics", "create", TOPIC)
            tool(*by_certificate("keeper"), "topics", "create-subscription", "-s", "s", TOPIC)
            assert tool(*by_token("reader"), "topics", "subscriptions", TOPIC) == "s"
            tool(*by_token("reader"), "topics", "skip", "-s", "s", "-n", "1", TOPIC)
            assert "may not consume" in tool.refused(
                *by_token("sender"), "topics", "skip", "-s", "s", "-n", "1", TOPIC
            )
            place = "persistent://acme/shop/orders"
            assert "may not" in tool.refused(*by_token("keeper"), "topics", "create", place)
            tool(*by_token("boss"), "topics", "create", place)

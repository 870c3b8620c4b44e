"""Owns HttpListener: an address that answers HTTP, and the server behind it."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from typing import Final

import uvicorn
from starlette.requests import HTTPConnection

from txlog.errors import NotAllowed
from txlog.serve.auth.access import Credentials
from txlog.serve.core.acceptor import Acceptor
from txlog.serve.core.service import BrokerService, nothing
from txlog.serve.core.sockets import Address
from txlog.serve.http.application import application
from txlog.serve.http.core.bounds import LimitedHttp, LimitedWebSocket, LimitsMiddleware
from txlog.serve.http.core.context import Gate, Grant, HttpContext
from txlog.serve.http.core.declared import LOOK, STORE, Action
from txlog.serve.limits.limits import ConnectionSlot
from txlog.serve.pulsar.topics import COORDINATOR_TOPIC


class _EmbeddedServer(uvicorn.Server):
    """uvicorn without listening sockets and signal handlers of its own.

    The acceptor accepts the connections, and the process has one way to stop.
    """

    def install_signal_handlers(self) -> None:
        """Install none."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open no sockets."""
        await self.lifespan.startup()
        self.servers: list[asyncio.Server] = []
        self.started = True


GRACE_SECONDS: Final = 3  # for streams, which never end by themselves
MESSAGE_MAX: Final = 12 << 20  # bytes of a message of a WebSocket: 8 MiB in base64


# Endpoints of the whole store without secrets: any role may use them. An action of the live page
# passes the gate as `act` first, and then with the topic in its body.
PUBLIC: Final = frozenset(["openapi", "clusters", "cluster", "brokers", "act"])
# Questions about the transaction coordinators, which belong to no topic.
LOOKUPS: Final = frozenset(["partitions", "lookup"])
# Only the owner may use these; the store checks it.
OWNER_ONLY: Final = frozenset(["abort_transaction", "transaction_key", "delete_transaction_key"])
# For programs that monitor the process, and have no token.
UNAUTHENTICATED: Final = frozenset(["ready"])


def gate_of(service: BrokerService) -> Gate:
    """The gate that checks the token or certificate of a request by the rules of a server.

    A browser's WebSocket and EventSource send no headers: their token is in the query, as Pulsar's
    clients send it.
    """
    authority = service.authority

    async def gate(connection: HTTPConnection, action: Action) -> Grant | None:
        if action.resource == STORE and action.name in UNAUTHENTICATED:
            return None
        scheme, _, token = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            token = connection.query_params.get("token", "")
        ssl_object = getattr(connection.state, "ssl_object", None)
        data = token.strip().encode(errors="replace")
        login = Credentials("token" if token else "", data, ssl_object)
        try:
            caller = service.log_in(login)
            connection.state.slot.take(caller.role, is_superuser=caller.is_superuser)
            authority.become(caller)
            _join(connection, caller.role)
            if action.name in OWNER_ONLY or (action.operation == LOOK and _is_harmless(action)):
                return None
            resource = tuple(filter(None, action.resource.split("/")))
            authority.check(caller, action.operation, resource)
        except NotAllowed as error:
            service.tell("refused", {"peer": _peer(connection), "reason": error.message})
            raise

        def check() -> None:
            try:
                service.recheck_access(login, caller)
                authority.check(caller, action.operation, resource)
            except NotAllowed as error:
                facts = {"peer": _peer(connection), "role": caller.role, "reason": error.message}
                service.tell("dropped", facts)
                raise

        return Grant(check, caller.left_ms, caller.may)

    return gate


def _is_harmless(action: Action) -> bool:
    is_lookup = action.name in LOOKUPS and action.resource == COORDINATOR_TOPIC.full
    return is_lookup or action.name in PUBLIC


def _join(connection: HTTPConnection, role: str | None) -> None:
    """From now on the memory of the connection counts for its role."""
    if role is not None:
        bounded: LimitedHttp = connection.state.bounded
        bounded.share.join(f"role {role}")


def _peer(connection: HTTPConnection) -> str | None:
    return None if connection.client is None else connection.client.host


class HttpListener:
    """HTTP at one address."""

    def __init__(self, service: BrokerService, address: Address) -> None:
        self._address = address
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # BrokerService reports failures
        self._addresses: dict[str, str] = {}
        serving = self._serving = HttpContext(
            service.client,
            gate_of(service),
            self._addresses,
            hides_names=service.authority.guard is not None,
            creates_topics=service.options.creates_topics,
            allows_actions=service.options.allows_actions,
            tell=service.tell,
            places=service.options.places,
            publishers=lambda: service.publishers(),
            subscribers=lambda: service.subscribers(),
            names=service.names,
            failed=service.failed,
            budget=service.budget,
            tasks=service.tasks,
            figures=service,
        )
        self.application = application(serving)
        tls = service.options.tls
        config = uvicorn.Config(
            LimitsMiddleware(self.application, service, address.host),
            http=LimitedHttp,
            reset_contextvars=True,  # a request must not act for the owner of the one before
            log_config=None,
            lifespan="off",
            access_log=False,
            server_header=False,
            ws=LimitedWebSocket,
            ws_max_size=MESSAGE_MAX,
            ws_per_message_deflate=False,  # a few bytes may become megabytes
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        config.load()
        self._scheme = "http" if tls is None else "https"
        self._service = service
        self._uvicorn = _EmbeddedServer(config)
        self._acceptor: Acceptor | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Listen; returns the URL. Raises OSError."""
        sockets = self._service.sockets("http", self._address)
        self._acceptor = Acceptor(self._service, sockets, self._protocol)
        self._acceptor.start()
        bound = Address(self._address.host, sockets[0].getsockname()[1])
        self._task = self._service.tasks.begin(self._uvicorn._serve([]), nothing)
        url = f"{self._scheme}://{bound}"
        kind = "Url" if self._scheme == "http" else "UrlTls"
        self._addresses[f"http{kind}"] = url
        pulsar = self._service.urls.get("pulsar")
        if pulsar is not None:
            self._addresses |= {f"broker{kind}": pulsar, "nativeUrl": pulsar}
        return url

    def _protocol(self, slot: ConnectionSlot) -> LimitedHttp:
        """The protocol of one connection."""
        state = self._uvicorn.server_state
        protocol = LimitedHttp(self._uvicorn.config, state, {})
        protocol.service, protocol.slot = self._service, slot
        return protocol

    def recheck_access(self) -> None:
        """The rules have changed: end long requests that they no longer allow."""
        self._serving.recheck_access()

    async def drain(self) -> None:
        """Accept no new connections; answer the running requests."""
        if self._acceptor is not None:
            self._acceptor.close()
        self._serving.stop()
        self._uvicorn.should_exit = True
        if self._task is not None:
            await asyncio.shield(self._task)

    async def close(self) -> None:
        """End all connections."""
        self._serving.works.close()
        if self._acceptor is not None:
            self._acceptor.close()
        self._uvicorn.force_exit = self._uvicorn.should_exit = True
        if self._task is not None:
            with suppress(asyncio.CancelledError):
                await self._task

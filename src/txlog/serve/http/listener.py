"""Owns HttpListener: an address that answers HTTP, and the program behind it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from socket import SO_REUSEADDR, SOL_SOCKET, socket
from typing import Final

import uvicorn
from starlette.requests import HTTPConnection

from txlog.ids import TopicName
from txlog.serve.core.address import Address
from txlog.serve.core.authority import CONSUME
from txlog.serve.core.service import Service
from txlog.serve.http.application import application
from txlog.serve.http.core.declared import LOOK, Action
from txlog.serve.http.core.gate import Gate, Serving


class _Quiet(uvicorn.Server):
    """uvicorn without its own signal handlers: the process has one way to stop."""

    def install_signal_handlers(self) -> None:
        """None."""


GRACE_SECONDS: Final = 3  # for streams, which never end by themselves
MESSAGE_MAX: Final = 12 << 20  # bytes of a message of a WebSocket: 8 MiB in base64


def gate_of(service: Service) -> Gate:
    """The gate that asks the authority of a server, by the token of a request.

    A browser's WebSocket and EventSource send no headers: their token is in the query, as Pulsar's
    clients have it.
    """
    authority = service.authority

    async def gate(connection: HTTPConnection, action: Action) -> None:
        scheme, _, token = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            token = connection.query_params.get("token", "")
        role = authority.authenticate("token" if token else "", token.strip().encode())
        is_topic = action.resource.count("/") == 2
        topic = TopicName.parse(action.resource) if is_topic else None
        authority.check(role, CONSUME if action.operation == LOOK else action.operation, topic)

    return gate


class HttpListener:
    """HTTP at one address."""

    def __init__(self, service: Service, address: Address) -> None:
        self._address = address
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # what fails is noted by Service
        self._addresses: dict[str, str] = {}
        if service.options.pulsar is not None:
            url = f"pulsar://{service.options.pulsar}"
            self._addresses |= {"brokerUrl": url, "nativeUrl": url}
        serving = self._serving = Serving(
            service.client,
            gate_of(service),
            self._addresses,
            creates_topics=service.options.creates_topics,
            failed=service.failed,
        )
        config = uvicorn.Config(
            application(serving),
            log_config=None,
            lifespan="off",
            access_log=False,
            server_header=False,
            ws="websockets-sansio",
            ws_max_size=MESSAGE_MAX,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        self._uvicorn = _Quiet(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Listen; returns the URL. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self._address.host, self._address.port)
        family, where = found[0][0], found[0][4]
        mine = socket(family)
        mine.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)  # a server that follows another at once
        try:
            mine.bind(where)
            mine.listen()
        except OSError:
            mine.close()
            raise
        bound = Address(self._address.host, mine.getsockname()[1])
        self._task = asyncio.create_task(self._uvicorn._serve([mine]))
        self._addresses["httpUrl"] = f"http://{bound}"
        return self._addresses["httpUrl"]

    async def drain(self) -> None:
        """Take no new connections; answer what was asked."""
        self._serving.stopped.set()
        self._uvicorn.should_exit = True
        if self._task is not None:
            await asyncio.shield(self._task)

    async def close(self) -> None:
        """End all connections."""
        self._uvicorn.force_exit = self._uvicorn.should_exit = True
        if self._task is not None:
            with suppress(asyncio.CancelledError):
                await self._task

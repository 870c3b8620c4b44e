"""Owns HttpListener: an address that answers HTTP, and the program behind it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from socket import socket

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from txlog.serve.core.address import Address
from txlog.serve.core.service import Service


class _Quiet(uvicorn.Server):
    """uvicorn without its own signal handlers: the process has one way to stop."""

    def install_signal_handlers(self) -> None:
        """None."""


async def health(request: Request) -> JSONResponse:
    """Whether the server answers."""
    return JSONResponse({"status": "ok"})


class HttpListener:
    """HTTP at one address."""

    def __init__(self, service: Service, address: Address) -> None:
        self._address = address
        program = Starlette(routes=[Route("/health", health)])
        program.state.service = service
        config = uvicorn.Config(program, log_config=None, lifespan="off", access_log=False)
        self._uvicorn = _Quiet(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Listen; returns the URL. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self._address.host, self._address.port)
        family, where = found[0][0], found[0][4]
        mine = socket(family)
        try:
            mine.bind(where)
            mine.listen()
        except OSError:
            mine.close()
            raise
        bound = Address(self._address.host, mine.getsockname()[1])
        self._task = asyncio.create_task(self._uvicorn._serve([mine]))
        return f"http://{bound}"

    async def drain(self) -> None:
        """Take no new connections; answer what was asked."""
        self._uvicorn.should_exit = True
        if self._task is not None:
            await asyncio.shield(self._task)

    async def close(self) -> None:
        """End all connections."""
        self._uvicorn.force_exit = self._uvicorn.should_exit = True
        if self._task is not None:
            with suppress(asyncio.CancelledError):
                await self._task

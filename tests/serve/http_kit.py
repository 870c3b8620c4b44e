"""A store served by HTTP in the process of the test: no socket, no thread but the client's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

import txlog
import txlog.aio
from txlog.serve.core.service import ProducerStats
from txlog.serve.http.application import application
from txlog.serve.http.core.context import Gate, HttpContext, allow_all

BASE = "/admin/v2/persistent/public/default"
Program = Callable[[httpx.AsyncClient, txlog.aio.Client], Awaitable[Any]]


def serving(
    path: str,
    program: Program,
    *,
    gate: Gate = allow_all,
    publishers: Callable[[], list[ProducerStats]] = list,
    **options: Any,
) -> Any:
    """Run a program that talks to a store at a path, which is made; options: of Serving."""
    txlog.init(path, durability="os", free_bytes_min=0, if_not_exists=True)

    async def main() -> Any:
        async with txlog.aio.open(path) as client:
            settings: dict[str, Any] = {"addresses": {"httpUrl": "http://here"}, **options}
            app = application(HttpContext(client, gate, publishers=publishers, **settings))
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
                http.app = app  # type: ignore[attr-defined]
                return await asyncio.wait_for(program(http, client), 60)

    return asyncio.run(main())


class Talk:
    """One connection to an application, a WebSocket or a streamed response, without a socket."""

    def __init__(
        self, app: Any, path: str, query: str = "", *, kind: str = "http", **headers: str
    ) -> None:
        self._given: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        all_headers = {"host": "here", **headers}
        scope = {
            "type": kind,
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in all_headers.items()],
            "scheme": "http",
            "server": ("here", 80),
            "client": ("there", 1),
            "http_version": "1.1",
            "subprotocols": [],
        }
        first = "websocket.connect" if kind == "websocket" else "http.request"
        self._given.put_nowait({"type": first, "body": b""})
        self._task = asyncio.create_task(app(scope, self._given.get, self._put))

    async def _put(self, message: Any) -> None:
        await self._sent.put(message)

    async def raw(self) -> dict[str, Any]:
        """The next ASGI message."""
        return await asyncio.wait_for(self._sent.get(), 30)

    async def get(self) -> Any:
        """The next message of a WebSocket, its closing as `closed`; or the next piece of a body."""
        message = await self.raw()
        if message["type"] == "websocket.accept" or message["type"] == "http.response.start":
            message = await self.raw()
        if message["type"] == "websocket.close":
            return {"closed": message["code"], "reason": message.get("reason")}
        if message["type"] == "websocket.send":
            return json.loads(message["text"])
        return message.get("body", b"")

    def put(self, **words: Any) -> None:
        """Send JSON."""
        self._given.put_nowait({"type": "websocket.receive", "text": json.dumps(words)})

    def text(self, text: str) -> None:
        """Send text as it is."""
        self._given.put_nowait({"type": "websocket.receive", "text": text})

    async def close(self) -> None:
        """Disconnect, and wait until the application has noticed."""
        event = {"type": "websocket.disconnect", "code": 1000}
        self._given.put_nowait(event)
        self._given.put_nowait({"type": "http.disconnect"})
        await asyncio.wait_for(asyncio.gather(self._task, return_exceptions=True), 30)

"""Owns LivePage and the routes of the live page: the document, the stream, the query, the views.

LivePage reads the store only while the page has viewers, and one reading serves them all. Readings
are at least a second apart, and further if a reading takes long. If nothing happens in the store,
LivePage reads it again after QUIET_MS, because ages grow.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextvars import Context
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from txlog.errors import InternalError, TryAgain, TxlogError
from txlog.page import live as page
from txlog.page.live import HISTORY, Pace, asset
from txlog.serve.core.service import nothing
from txlog.serve.http.core.answers import error_of, read_json, response_for, to_json
from txlog.serve.http.core.context import HttpContext, Rates
from txlog.serve.http.core.declared import CONSUME, LOOK, members
from txlog.serve.http.data.events import EVENT_STREAM, event
from txlog.serve.http.page import actions
from txlog.serve.http.page import browser as queries
from txlog.serve.http.page.fragments import Fragments

if TYPE_CHECKING:
    from txlog.serve.http.page.browser import QueryRunner

PAUSE_SECONDS: Final = 1.0  # between two readings, at least
SHARE: Final = 5  # the pause after a reading is at least so many times as long as the reading
QUIET_MS: Final = 5000  # read again after this time even if nothing happens
VIEWERS_MAX: Final = 100
Sections = dict[str, str]
_KINDS: Final = {
    "page.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
}


class LivePage:
    """The readings of a store, for all viewers."""

    def __init__(self, serving: HttpContext) -> None:
        self._serving = serving
        self._rates = Rates()
        self._paces: list[Pace] = []
        self._shown: Sections = {}
        self._head: dict[str, str] = {}
        self._failure: dict[str, object] | None = None
        self._looks = 0
        self._news = asyncio.Condition()
        self._viewers = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        """Whether the page has as many viewers as allowed."""
        return self._viewers >= VIEWERS_MAX

    async def watch(self) -> AsyncGenerator[bytes, None]:
        """Events for a viewer: everything at first, then the changes."""
        self._viewers += 1
        if self._task is None or self._task.done():
            # It reads for all viewers, so it has the context of no viewer.
            self._task = self._serving.tasks.begin(
                self._read_until_cancelled(), nothing, context=Context()
            )
        sent: Sections = {}
        seen = 0
        try:
            while True:
                async with self._news:
                    await self._news.wait_for(lambda seen=seen: self._looks > seen)  # type: ignore[misc]
                    seen = self._looks
                if self._failure is not None:
                    yield event(to_json(self._failure), name="failure")
                    continue
                new = {name: text for name, text in self._shown.items() if sent.get(name) != text}
                sent = self._shown
                yield event(to_json({"head": self._head, "sections": new}), name="look")
        finally:
            self._viewers -= 1
            if not self._viewers and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _read_until_cancelled(self) -> None:
        client = self._serving.client
        lsn = 0
        while True:
            begun = time.monotonic()
            try:
                if self._looks and self._failure is None:
                    await client.wait_for_change(lsn, QUIET_MS)
                    begun = time.monotonic()
                figures = await self._serving.look(page.figures_of)
                lsn = figures["lsn"]
                self._take(figures)
            except TxlogError as error:
                self._failure = error_of(error)
            except Exception as error:  # a bug must not leave all viewers with an old reading
                self._serving.failed(error)
                self._failure = error_of(InternalError(f"a bug: {type(error).__name__}"))
            async with self._news:
                self._looks += 1
                self._news.notify_all()
            took = time.monotonic() - begun
            await asyncio.sleep(max(PAUSE_SECONDS, took * SHARE))

    def _take(self, figures: dict[str, Any]) -> None:
        now_ms = figures["time"]
        by_topic = {
            row["topic"]: self._rates.of(row["topic"], row["messages"], now_ms)
            for row in figures["topic_list"]
        }
        pace = Pace(now_ms, sum(by_topic.values()), by_topic)
        self._paces = [*self._paces, pace][-HISTORY:]
        self._shown = page.drawn(figures, self._paces)
        self._head = page.head(figures)
        self._failure = None


# --- routes ----------------------------------------------------------------------------------


def routes(serving: HttpContext) -> list[Route]:
    """The routes of the page."""
    live = LivePage(serving)

    @cache
    def browser() -> QueryRunner:  # the first query loads DuckDB, which takes as long as a start
        return queries.QueryRunner(serving)

    async def stream(request: Request) -> Response:
        await serving.authorize(request, LOOK, "stream")
        if live.is_full:
            raise TryAgain("the page has too many viewers", code=509)
        headers = {"X-Accel-Buffering": "no", "Connection": "close"}
        return StreamingResponse(
            serving.until_ended(request, live.watch()), media_type=EVENT_STREAM, headers=headers
        )

    async def query(request: Request) -> Response:
        await serving.authorize(request, CONSUME, "query")
        return response_for(await browser().run(members(await read_json(request)).get("sql")))

    return [
        *Fragments(serving, browser).routes(),
        *actions.routes(serving),
        Route("/", _static("page.html")),
        Route("/page.css", _static("page.css")),
        Route("/page.js", _static("page.js")),
        Route("/page/stream", stream),
        Route("/page/query", query, methods=["POST"]),
    ]


def _static(name: str) -> Callable[[Request], Awaitable[Response]]:
    """A handler that answers with a file of the page."""

    async def answer(request: Request) -> Response:
        return Response(asset(name), media_type=_KINDS[name])

    return answer

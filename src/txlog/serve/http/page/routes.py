"""Owns the routes of the live page: the document, its style and script, the stream, the query."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from txlog.errors import TryAgain
from txlog.report_html.page import STYLE
from txlog.serve.http.core.answers import answered, body_of
from txlog.serve.http.core.declared import CONSUME, LOOK, members
from txlog.serve.http.core.gate import Serving
from txlog.serve.http.data.events import EVENT_STREAM
from txlog.serve.http.page import browser as queries
from txlog.serve.http.page.live import Live

if TYPE_CHECKING:
    from txlog.serve.http.page.browser import Browser

STATIC: Final = Path(__file__).parent / "static"
_KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}


@cache
def _file(name: str) -> str:
    text = (STATIC / name).read_text(encoding="utf-8")
    return STYLE + text if name.endswith(".css") else text


def routes(serving: Serving) -> list[Route]:
    """The routes of the page."""
    live = Live(serving)

    @cache
    def browser() -> Browser:  # with the first query comes DuckDB, which takes as long as a start
        return queries.Browser(serving)

    async def document(request: Request) -> Response:
        return _static("page.html")

    async def style(request: Request) -> Response:
        return _static("page.css")

    async def script(request: Request) -> Response:
        return _static("page.js")

    async def stream(request: Request) -> Response:
        await serving.let_in(request, LOOK, "stream")
        if live.is_full:
            raise TryAgain("too many watch this page", code=509)
        headers = {"X-Accel-Buffering": "no", "Connection": "close"}
        return StreamingResponse(
            serving.until_ended(request, live.watch()), media_type=EVENT_STREAM, headers=headers
        )

    async def query(request: Request) -> Response:
        await serving.let_in(request, CONSUME, "query")
        return answered(await browser().run(members(await body_of(request)).get("sql")))

    return [
        Route("/", document),
        Route("/page.css", style),
        Route("/page.js", script),
        Route("/page/stream", stream),
        Route("/page/query", query, methods=["POST"]),
    ]


def _static(name: str) -> Response:
    """One of the page's own files: they hold nothing of the store."""
    return Response(_file(name), media_type=_KINDS[Path(name).suffix])

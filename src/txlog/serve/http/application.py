"""Owns the ASGI application: routes, the gate for each request, errors and headers.

    app = application(HttpContext(client))      # client: an open txlog.aio.Client

Every request, except for a file of the live page, passes one function, the *gate* (core/context).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache, partial
from typing import Any, Final

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

import txlog
from txlog.base.ids import TopicName
from txlog.client.answers.metrics_text import exposition
from txlog.client.client import Client as Store
from txlog.errors import (
    DiskFailed,
    IntegrityError,
    InternalError,
    InvalidArgument,
    NotAllowed,
    NotFound,
    TxlogError,
)
from txlog.serve.http.admin import absent, policies, store, subscriptions, topics
from txlog.serve.http.admin import transactions as txns
from txlog.serve.http.core.answers import (
    SlicedAnswer,
    read_json,
    response_for,
    response_of,
    to_json,
)
from txlog.serve.http.core.context import HttpContext
from txlog.serve.http.core.declared import LOOK, PRODUCE, STORE, Action, Endpoint, openapi, topic_in
from txlog.serve.http.data import events, messages
from txlog.serve.http.data.websocket import SESSIONS, Session, serve_socket
from txlog.serve.http.page import live as page

ENDPOINTS: Final[list[Endpoint]] = [
    endpoint
    for module in (absent, store, topics, subscriptions, policies, txns, messages)
    for endpoint in module.endpoint.endpoints
]
# No resource of another site, no script or style in the page itself.
SECURITY: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
        " img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_SAFE: Final = frozenset(["GET", "HEAD", "OPTIONS"])


def application(serving: HttpContext) -> Starlette:
    """The application over an open client; it neither opens nor closes the client."""
    routes: list[BaseRoute] = [
        *page.routes(serving),
        Route("/openapi.json", _openapi(serving)),
        Route("/metrics", _text(serving, _metrics)),
        Route("/metrics/", _text(serving, _metrics)),
        Route("/health", _text(serving, _health)),
        Route("/ready", _text(serving, _ready)),
        Route("/admin/v2/brokers/health", _text(serving, _ready)),
        Route("/admin/v2/brokers/ready", _text(serving, _ready)),
        Route(f"{messages.TOPICS}/events", partial(events.tail, serving)),
        *(
            WebSocketRoute(path, _socket(serving, session, operation))
            for path, session, operation in SESSIONS
        ),
        *(route_of(endpoint, serving) for endpoint in ENDPOINTS),
    ]
    app = Starlette(routes=routes)
    app.state.serving = serving
    app.add_exception_handler(TxlogError, _failed)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(Exception, _crashed)
    app.add_middleware(SecurityMiddleware)
    return app


def _socket(serving: HttpContext, session: Session, operation: str) -> Callable[[WebSocket], Any]:
    async def handle(socket: WebSocket) -> None:
        await serve_socket(serving, socket, session, operation, session.__name__)

    return handle


def route_of(endpoint: Endpoint, serving: HttpContext) -> Route:
    """The route of a declared endpoint."""

    async def handle(request: Request) -> Response:
        action = endpoint.action(request.path_params)
        right = await serving.gate(request, action)
        arguments = endpoint.arguments(request.path_params, request.query_params)
        if endpoint.takes("body"):
            arguments["body"] = await read_json(request)
        for name, value in (
            ("now_ms", serving.now_ms),
            ("rates", lambda: serving.rates),
            ("places", lambda: serving.places),
            ("addresses", partial(serving.addresses_for, request.url.hostname)),
            ("publishers", serving.publishers),
            ("subscribers", serving.subscribers),
            ("sees", lambda: (lambda topic: True) if right is None else right.sees),
        ):
            if endpoint.takes(name):
                arguments[name] = value()
        if endpoint.takes("creates"):
            is_wanted = arguments.get("checkAllowAutoCreation", False)
            arguments["creates"] = is_wanted and await serving.may_create(request, action)
        if endpoint.operation == PRODUCE and isinstance(arguments.get("topic"), TopicName):
            await serving.create_if_missing(topic_in(request.path_params))
        act = partial(endpoint.act, **arguments)

        read = partial(_read, serving, request, endpoint, act)
        try:
            return await serving.answer(request, read, is_slow=endpoint.is_slow)
        except TypeError as error:  # a value of the body has another type than the call expects
            if "body" not in arguments or isinstance(error, TxlogError):
                raise
            raise InvalidArgument(f"the body does not fit: {error}") from error

    return Route(endpoint.path, handle, methods=[endpoint.method])


async def _read(
    serving: HttpContext, request: Request, endpoint: Endpoint, act: Callable[[Store], object]
) -> Response:
    """The answer of an endpoint, from the thread where its call belongs."""
    if endpoint.operation == PRODUCE and endpoint.takes("body"):
        return await serving.store(lambda client: response_for(act(client)))
    if endpoint.is_slow:
        return await serving.work(
            request, endpoint.operation, lambda client: response_for(act(client))
        )
    if endpoint.is_aside:
        return await serving.client.run(lambda client: response_for(act(client)), blocking=True)
    result = await serving.client.run(act)
    return (
        await _joined(serving, result) if isinstance(result, SlicedAnswer) else response_for(result)
    )


async def _joined(serving: HttpContext, sliced: SlicedAnswer) -> Response:
    """Read an answer slice by slice, with other calls in between; a thread encodes it."""
    body = bytearray()
    while True:
        piece = await serving.client.run(lambda _: next(sliced.pieces, None))
        if piece is None:
            return Response(bytes(body), media_type="application/json")
        body += await asyncio.to_thread(piece)


async def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, TxlogError)
    serving: HttpContext = request.app.state.serving
    if isinstance(error, IntegrityError | DiskFailed):
        serving.failed(error)
    return response_of(error, hides_names=serving.hides_names)


async def _refused(request: Request, error: Exception) -> Response:
    """An error of the framework: an unknown path, or a method that a path does not have."""
    assert isinstance(error, HTTPException)
    path = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return response_of(NotFound(f"there is no {path}", hint="see /openapi.json"))
    if error.status_code == 405:
        invalid = InvalidArgument(f"there is no {path}", hint="see /openapi.json")
        return response_of(invalid, 405)
    invalid = InvalidArgument(error.detail)
    return response_of(invalid, error.status_code)


async def _crashed(request: Request, error: Exception) -> Response:
    """Answer a bug, without its text."""
    request.app.state.serving.failed(error)
    return response_of(InternalError(f"a bug: {type(error).__name__}"), 500)


class SecurityMiddleware:
    """Middleware that adds security headers to every response, and refuses requests from other
    sites.

    A browser says which site a request comes from. A page of another site may neither change nor
    read anything here.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _is_foreign(scope):
            refused = NotAllowed("this request comes from a page of another site")
            await response_of(refused, 403)(scope, receive, send)
            return
        if scope["type"] == "websocket" and _is_foreign(scope):
            await send({"type": "websocket.close", "code": 1008})
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, sending)


def _is_foreign(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if scope["type"] == "http" and scope["method"] in _SAFE and site != "cross-site":
        return False
    if site is not None:
        is_navigation = headers.get("sec-fetch-mode") == "navigate"
        is_safe = scope["type"] == "http" and scope["method"] in _SAFE
        return site not in ("same-origin", "none") and not (is_navigation and is_safe)
    return origin is not None and origin.partition("://")[2] != headers.get("host")


# --- figures ---------------------------------------------------------------------------------

Text = Callable[[Store], tuple[str, int, str]]
_PLAIN: Final = "text/plain; charset=utf-8"


def _text(serving: HttpContext, act: Text) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        await serving.gate(request, Action(LOOK, STORE, act.__name__.strip("_")))

        async def read() -> Response:
            text, status, kind = await serving.look(act)
            return Response(text, status, media_type=kind)

        return await serving.answer(request, read)

    return handle


@cache
def _described() -> bytes:
    return to_json(openapi(ENDPOINTS, txlog.__version__))


def _openapi(serving: HttpContext) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        await serving.gate(request, Action(LOOK, STORE, "openapi"))
        return Response(_described(), media_type="application/json")

    return handle


def _metrics(client: Store) -> tuple[str, int, str]:
    return (exposition(client.admin.metrics()), 200, "text/plain; version=0.0.4; charset=utf-8")


def _health(client: Store) -> tuple[str, int, str]:
    health = client.admin.check()
    status = 503 if health["status"] == "critical" else 200
    return to_json(health).decode(), status, "application/json"


def _ready(client: Store) -> tuple[str, int, str]:
    """Whether the store can be read; a TxlogError is an answer of its own."""
    client.status()
    return "ok", 200, _PLAIN

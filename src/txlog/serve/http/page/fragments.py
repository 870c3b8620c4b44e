"""Owns the views of the live page over HTTP: each as JSON with its title and its HTML.

    GET /page/topic?topic=orders&key=ana     {"title": "orders", "html": "<p ...>"}

A view of figures needs `look`, one that shows messages `consume`, at its topic or for the whole
store, like the endpoints of REST. A search has a budget (`client.search`); the history is
SQL of the page, with its bounds, and is kept for a moment for all viewers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from txlog.base.ids import TopicName
from txlog.base.settings import DAY_MS, HOUR_MS, MINUTE_MS
from txlog.base.times import parse_time
from txlog.client.client import Client as Store
from txlog.client.search import SearchBudget, Wanted, search
from txlog.errors import InvalidArgument, TxlogError
from txlog.page import forms, views
from txlog.page import live as drawing
from txlog.page.views import View
from txlog.serve.http.admin.topics import addressed
from txlog.serve.http.core.answers import response_for
from txlog.serve.http.core.context import Grant, HttpContext
from txlog.serve.http.core.declared import CONSUME, LOOK, PRODUCE, STORE, Action
from txlog.serve.http.data.events import positions_in, positions_text

if TYPE_CHECKING:
    from txlog.serve.http.page.browser import QueryRunner

BUDGET: Final = SearchBudget()
HISTORY_MS: Final = 20_000  # a history is kept so long
HISTORIES_MAX: Final = 200
SPANS: Final = {  # of a history: its length, and the length of a column
    "hour": (HOUR_MS, MINUTE_MS),
    "day": (DAY_MS, 10 * MINUTE_MS),
    "week": (7 * DAY_MS, HOUR_MS),
    "quarter": (90 * DAY_MS, DAY_MS),
}
_BY: Final = (
    "SELECT epoch_ms(visible_time) - epoch_ms(visible_time) % {by} AS from_time,"
    " count(*) AS messages FROM {relation}"
    " WHERE visible_time >= make_timestamptz({since}) GROUP BY 1 ORDER BY 1"
)


class Fragments:
    """The views of a page and their parts."""

    def __init__(self, serving: HttpContext, browser: Callable[[], QueryRunner]) -> None:
        self._serving, self._browser = serving, browser
        self._histories = dict[tuple[str, str], tuple[int, str]]()

    def routes(self) -> list[Route]:
        """The routes of all views."""
        return [
            Route(f"/page/{name}", handle)
            for name, handle in (
                ("topic", self._figures(views.topic, "topic")),
                ("subscription", self._figures(self._subscription, "topic", "subscription")),
                ("transaction", self._figures(views.transaction, "id")),
                (
                    "transactions",
                    self._figures(views.transactions),
                ),
                ("message", self.message),
                ("clients", self.clients),
                ("search", self.search),
                ("history", self.history),
                ("letters", self.letters),
                ("changes", self.changes),
                ("actions", self.actions),
            )
        ]

    def _figures(
        self, draw: Callable[..., View], *words: str
    ) -> Callable[[Request], Awaitable[Response]]:
        """A handler of a view that shows figures; words: what its query must have."""

        async def handle(request: Request) -> Response:
            where = dict(request.query_params)
            if "topic" in words:
                await permitted(self._serving, request, LOOK, where, "view")
            else:
                await self._serving.gate(request, Action(LOOK, STORE, "view"))
            needed(where, *words)
            act = partial(draw, where=where, acts=self._serving.allows_actions)
            return await self._answered(request, lambda: self._serving.look(act))

        return handle

    def _subscription(self, client: Store, where: Mapping[str, str], *, acts: bool) -> View:
        clients_of = partial(addressed, subscribers=self._serving.subscribers())
        return views.subscription(client, where, acts=acts, clients_of=clients_of)

    async def _answered(self, request: Request, read: Callable[[], Awaitable[View]]) -> Response:
        async def answer() -> Response:
            view = await read()
            return response_for({"title": view.title, "html": view.html})

        return await self._serving.answer(request, answer)

    async def message(self, request: Request) -> Response:
        """A message."""
        where = dict(request.query_params)
        await permitted(self._serving, request, CONSUME, where, "message")
        needed(where, "id")
        return await self._answered(
            request,
            lambda: self._serving.work(request, CONSUME, partial(views.message, where=where)),
        )

    async def clients(self, request: Request) -> Response:
        """The connected clients."""
        serving = self._serving
        await serving.gate(request, Action(LOOK, STORE, "view"))
        draw = partial(
            views.clients,
            producers=serving.publishers(),
            consumers=serving.subscribers(),
            streams=[stream.described() for stream in serving.long_requests],
            clients_of=partial(addressed, subscribers=serving.subscribers()),
        )
        return await self._answered(request, lambda: serving.look(draw))

    async def search(self, request: Request) -> Response:
        """The newest messages of a topic, or those that a search finds."""
        where = dict(request.query_params)
        await permitted(self._serving, request, CONSUME, where, "search")
        name = topic_in(where).short
        try:
            act = self._search_in(name, where)
        except InvalidArgument as error:
            return response_for({"title": name, "html": views.search_failed(name, where, error)})
        return await self._answered(
            request,
            lambda: self._serving.work(request, "search", lambda client: View(name, act(client))),
        )

    def _search_in(self, name: str, where: Mapping[str, str]) -> Callable[[Store], str]:
        """The function that searches a topic and draws what it finds. Raises InvalidArgument."""
        now_ms = self._serving.now_ms()
        times = [where.get(field, "").strip().removeprefix("@") for field in ("from", "to")]
        since_ms, until_ms = (parse_time(text, now_ms) if text else None for text in times)
        criteria = Wanted(where.get("key") or None, where.get("text", ""), since_ms, until_ms)
        before = where.get("before", "")
        places = positions_in(before) if before else None

        def act(client: Store) -> str:
            try:
                answer = search(client, name, criteria, BUDGET, places)
            except InvalidArgument as error:
                return views.search_failed(name, where, error)
            return views.search_result(name, where, answer, positions_text(answer.places), BUDGET)

        return act

    async def letters(self, request: Request) -> Response:
        """The dead letters of a topic."""
        where = dict(request.query_params)
        await permitted(self._serving, request, CONSUME, where, "letters")
        return await self._answered(
            request,
            lambda: self._serving.work(
                request, "letters", lambda client: View("letters", views.letters(client, where))
            ),
        )

    async def changes(self, request: Request) -> Response:
        """The changes of a subscription."""
        where = dict(request.query_params)
        await permitted(self._serving, request, LOOK, where, "changes")
        needed(where, "subscription")
        return await self._answered(
            request,
            lambda: self._serving.work(
                request, "changes", lambda client: View("changes", views.changes(client, where))
            ),
        )

    async def history(self, request: Request) -> Response:
        """Messages by time, of a topic or the whole store."""
        where = dict(request.query_params)
        topic = None
        if where.get("topic"):
            await permitted(self._serving, request, LOOK, where, "history")
            topic = topic_in(where)
        else:
            await self._serving.gate(request, Action(LOOK, STORE, "history"))
        return await self._answered(request, partial(self._history, topic, where.get("span", "")))

    async def _history(self, topic: TopicName | None, span: str) -> View:
        span = span if span in SPANS else "hour"
        now_ms = self._serving.now_ms()
        key = ("" if topic is None else topic.full, span)
        drawn_ms, html = self._histories.get(key, (0, ""))
        if not html or not 0 <= now_ms - drawn_ms < HISTORY_MS:
            html = await self._drawn_history(topic, span, now_ms)
            self._histories.pop(key, None)
            self._histories[key] = now_ms, html
            while len(self._histories) > HISTORIES_MAX:
                del self._histories[next(iter(self._histories))]
        return View("history", html)

    async def _drawn_history(self, topic: TopicName | None, span: str, now_ms: int) -> str:
        length_ms, by_ms = SPANS[span]
        since_ms = now_ms - length_ms
        since_ms -= since_ms % by_ms
        name = None if topic is None else topic.short
        if topic is not None:  # an error of its own, not one of SQL
            await self._serving.client.describe_topic(topic.full)
        quoted = "messages" if topic is None else '"{}"'.format(topic.full.replace('"', '""'))
        sql = _BY.format(by=by_ms, relation=quoted, since=since_ms * 1000)
        try:
            answer = await self._browser().run(sql)
        except TxlogError as error:
            return drawing.history_failed(name, span, error)
        rows = answer["rows"]
        assert isinstance(rows, list)
        return drawing.history(name, span, rows, by_ms, since_ms, now_ms)

    async def actions(self, request: Request) -> Response:
        """The forms of the actions that the caller may use there."""
        serving, where = self._serving, dict(request.query_params)
        if where.get("id"):
            right = await serving.gate(request, Action(LOOK, STORE, "actions"))
        else:
            right = await permitted(serving, request, LOOK, where, "actions")
        html = ""
        if serving.allows_actions:
            html = await serving.look(lambda client: self._forms(client, where, right))
        return response_for({"title": "actions", "html": html})

    @staticmethod
    def _forms(client: Store, where: Mapping[str, str], right: Grant | None) -> str:
        if where.get("id"):
            return forms.of_transaction(where["id"])
        topic = topic_in(where)
        may = {word for word in (CONSUME, PRODUCE) if right is None or right.may(word, topic)}
        if where.get("subscription"):
            name = where["subscription"]
            return forms.of_subscription(topic.short, name) if CONSUME in may else ""
        html = ""
        if CONSUME in may and views.is_of_dead_letters(client, topic.short):
            html = forms.of_dead_letters(topic.short)
        return html + (forms.of_topic(topic.short) if PRODUCE in may else "")


async def permitted(
    serving: HttpContext, request: Request, operation: str, where: Mapping[str, str], name: str
) -> Grant | None:
    """Pass the gate for the topic of a query.

    A query that names no topic needs the right to the store before it gets its error.

    raises: InvalidArgument; the errors of the gate
    """
    try:
        resource = topic_in(where).full
    except TxlogError:
        await serving.gate(request, Action(operation, STORE, name))
        raise
    return await serving.gate(request, Action(operation, resource, name))


def needed(where: Mapping[str, str], *names: str) -> None:
    """Raises InvalidArgument unless a query has these words."""
    for name in names:
        if not where.get(name):
            raise InvalidArgument(f"the query has no {name}")


def topic_in(where: Mapping[str, str]) -> TopicName:
    """The topic that a query names. Raises InvalidArgument."""
    needed(where, "topic")
    return TopicName.parse(where["topic"], allow_partition=True).topic

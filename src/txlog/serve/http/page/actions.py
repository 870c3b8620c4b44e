"""Owns the actions of the live page: publish, seek, redeliver, retry dead letters, abort.

    POST /page/act/seek    {"topic": "orders", "subscription": "billing", "to": "-10"}

A server takes them only with --allow-actions. Each needs the right that the endpoint of REST needs:
`produce` or `consume` at the topic, and a transaction belongs to its owner. The body must be JSON
and the request must name the page's own origin, so no form and no script of another site can send
one. The log has a line for each, with the client, its role, the target and the outcome, and without
messages and keys.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from txlog.base.ids import MessageId, TopicName, TxnId
from txlog.base.ranges import parse_bound
from txlog.client.client import Client as Store
from txlog.errors import InvalidArgument, NotAllowed, TxlogError
from txlog.page import forms
from txlog.page.views import is_of_dead_letters
from txlog.serve.http.admin.transactions import abort_transaction
from txlog.serve.http.core.answers import read_json, response_for
from txlog.serve.http.core.context import Grant, HttpContext
from txlog.serve.http.core.declared import (
    ADMIN,
    CONSUME,
    LOOK,
    PRODUCE,
    STORE,
    Action,
    members,
)
from txlog.serve.http.data.messages import produce
from txlog.serve.http.page.fragments import needed, permitted, topic_in

IDS_MAX: Final = 1_000
Fields = Mapping[str, str]


class PageAction(NamedTuple):
    """An action: the right that it needs, the name under which the gate knows it, its function.

    act: (client, fields, now_ms, right) -> HTML of the plan or the outcome
    """

    operation: str
    name: str
    act: Callable[[Store, Fields, int, Grant | None], str]


def _publish(client: Store, fields: Fields, now_ms: int, right: Grant | None) -> str:
    row = {"payload": fields.get("payload", ""), "key": fields.get("key") or None}
    return forms.published(produce(client, topic_in(fields), {"messages": [row]}))


def _seek(client: Store, fields: Fields, now_ms: int, right: Grant | None) -> str:
    bound = parse_bound(fields.get("to", "").strip(), now_ms)
    handle = client.subscription(topic_in(fields).full, fields.get("subscription", ""))
    is_plan = fields.get("plan") == "yes"
    answer = handle.seek(bound, dry_run=is_plan)
    hidden = {name: fields[name] for name in ("topic", "subscription", "to")}
    return forms.sought(answer, hidden, is_plan=is_plan)


def _redeliver(client: Store, fields: Fields, now_ms: int, right: Grant | None) -> str:
    handle = client.subscription(topic_in(fields).full, fields.get("subscription", ""))
    is_plan = fields.get("plan") == "yes"
    answer = handle.redeliver(_ids(fields) or None, dry_run=is_plan)
    hidden = {name: fields.get(name, "") for name in ("topic", "subscription", "ids")}
    return forms.redelivered(answer, hidden, is_plan=is_plan)


def _retry(client: Store, fields: Fields, now_ms: int, right: Grant | None) -> str:
    """Retry dead letters, if the caller may also produce to the topics that they go back to.

    A message's origin never changes, so the call moves the same messages that it has authorized.
    """
    name = topic_in(fields).short
    if not is_of_dead_letters(client, name):
        raise InvalidArgument(f"{name} is no dead-letter topic")
    handle, ids = client.topic(name), _ids(fields)
    letters = handle.dead_letters(None if ids else IDS_MAX)
    chosen = [row for row in letters if not ids or row["message_id"] in ids]
    for origin in {row["origin_topic"] for row in chosen if row["origin_topic"]}:
        if right is not None and not right.may(PRODUCE, TopicName.parse(origin)):
            raise NotAllowed(
                f"dead letters go back to {origin}, and your role may not produce there", role=""
            )
    is_plan = fields.get("plan") == "yes"
    answer = handle.retry_dead_letters([row["message_id"] for row in chosen], dry_run=is_plan)
    hidden = {word: fields.get(word, "") for word in ("topic", "ids")}
    return forms.retried(answer, hidden, is_plan=is_plan)


def _ids(fields: Fields) -> list[MessageId]:
    """The ids in a field of a form. Raises InvalidArgument."""
    words = fields.get("ids", "").replace(",", " ").split()
    if len(words) > IDS_MAX:
        raise InvalidArgument(f"{len(words)} messages, at most {IDS_MAX} can be named")
    return [MessageId.parse(word) for word in words]


def _abort(client: Store, fields: Fields, now_ms: int, right: Grant | None) -> str:
    needed(fields, "id")
    txn = TxnId.parse(fields["id"])
    if fields.get("plan") == "yes":
        row = client.show_transaction(txn)
        return forms.abort_plan(str(txn), row["messages"], row["acks"])
    abort_transaction(client, txn)
    return forms.done(f"transaction {txn} is {client.show_transaction(txn)['state']}")


ACTIONS: Final = {
    "publish": PageAction(PRODUCE, "produce", _publish),
    "seek": PageAction(CONSUME, "seek", _seek),
    "redeliver": PageAction(CONSUME, "redeliver", _redeliver),
    "retry": PageAction(CONSUME, "retry_dead_letters", _retry),
    "abort": PageAction(ADMIN, abort_transaction.__name__, _abort),
}
# The fields of an action that the log records: no keys, no messages.
_AUDITED: Final = ("topic", "subscription", "to", "ids", "id", "plan")


def routes(serving: HttpContext) -> list[Route]:
    """A route for each action."""
    return [
        Route(f"/page/act/{name}", _handler(serving, name, action), methods=["POST"])
        for name, action in ACTIONS.items()
    ]


def _handler(
    serving: HttpContext, name: str, action: PageAction
) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        await serving.gate(request, Action(LOOK, STORE, "act"))  # authenticate first
        if not serving.allows_actions:
            raise NotAllowed(
                "this server allows no actions on its page",
                hint="start it with txlog serve --allow-actions",
            )
        check_own_page(request)
        fields = _texts(await read_json(request))
        facts: dict[str, Any] = {
            "peer": None if request.client is None else request.client.host,
            "action": name,
            **{word: fields[word][:200] for word in _AUDITED if fields.get(word)},
        }
        try:
            if name == "abort":
                right = await serving.gate(request, Action(action.operation, STORE, action.name))
            else:
                right = await permitted(serving, request, action.operation, fields, action.name)
            facts["role"] = getattr(getattr(request.state, "slot", None), "holder", None)

            def act(client: Store) -> str:
                return action.act(client, fields, serving.now_ms(), right)

            html = await (serving.store(act) if name == "publish" else serving.client.run(act))
        except TxlogError as error:
            serving.tell("action", {**facts, "outcome": f"refused by TXL-{error.code}"})
            raise
        serving.tell("action", {**facts, "outcome": "planned" if "plan" in facts else "done"})
        return response_for({"html": html})

    return handle


def check_own_page(request: Request) -> None:
    """Raises NotAllowed unless a page of this server sent the request; the body must be JSON.

    Browsers name the origin of a page with each POST. A page of another site cannot hide or change
    it, and can send JSON only after a preflight request, which this server does not answer.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise NotAllowed("an action has to be JSON")
    _, _, origin = request.headers.get("origin", "").partition("://")  # "null" has no host
    if not origin or origin != request.headers.get("host"):
        raise NotAllowed(
            "an action has to come from the page of this server",
            hint="programs use REST: see /openapi.json",
        )


def _texts(body: object) -> dict[str, str]:
    """The fields of a form. Raises InvalidArgument."""
    fields = members(body)
    for name, value in fields.items():
        if not isinstance(value, str):
            raise InvalidArgument(f"{name[:80]} has to be text")
    return fields

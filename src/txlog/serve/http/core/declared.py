"""Owns the declaration of an endpoint: a function over a client, and the route, arguments and
OpenAPI made from it.

    @endpoint("POST", f"{TOPIC}/subscription/{{subscription}}/skip/{{messages}}", CONSUME)
    def skip(client: Client, topic: TopicName, subscription: str, messages: int) -> None:
        \"\"\"Acknowledge the next messages of a subscription.\"\"\"

Words of the path and the query become arguments of the same name, converted by their annotation. A
path with `{tenant}/{namespace}/{topic}` gives `topic: TopicName`, one with `{tenant}/{namespace}`
the argument `namespace`, one with `{most}/{least}` gives `txn: TxnId`. `route` is the path as
declared. `body` is the JSON of the request. The application supplies `now_ms`, `rates`,
`addresses`, `places`, `publishers` and `subscribers`. `creates` is whether this request may create
a missing topic. `sees` is whether the caller may see the name of a topic; every list of names uses
it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

from txlog.base.ids import TopicName, TxnId, check_name
from txlog.errors import InvalidArgument, NotAllowed
from txlog.serve.pulsar.topics import namespace_in

PRODUCE, CONSUME, ADMIN, LOOK = "produce", "consume", "admin", "look"
STORE: Final = ""  # the resource of actions on the whole store

_PLACE: Final = re.compile(r"{(\w+)(?::\w+)?}")
_GIVEN: Final = frozenset(
    [
        *("client", "body", "now_ms", "rates", "addresses", "places"),
        *("publishers", "subscribers", "creates", "sees"),
    ]
)
_TYPES: Final = {int: "integer", bool: "boolean", str: "string", float: "number"}
_HALVES: Final = ("most", "least")  # of a transaction's id: unsigned numbers of 64 bits
_INT64_MAX: Final = (1 << 63) - 1
_UINT64_MAX: Final = (1 << 64) - 1
F = TypeVar("F", bound=Callable[..., object])


class Action(NamedTuple):
    """The action of a request, by which the gate decides.

    operation: produce, consume, admin, or look (figures and lists)
    resource:  a topic in full (`public/default/orders`), a namespace, a tenant, or "" for the store
    name:      of the endpoint
    """

    operation: str
    resource: str
    name: str


class Endpoint(NamedTuple):
    """A route, and the function behind it.

    is_slow:  it may take long: it runs in a separate thread, a few at the same time
    is_aside: it takes a moment for each of many topics: it runs in a separate thread
    """

    method: str
    path: str
    operation: str
    act: Callable[..., object]
    is_slow: bool = False
    is_aside: bool = False

    def action(self, path: Mapping[str, str]) -> Action:
        """The action of a request with these words in its path."""
        names = [path[part] for part in ("tenant", "namespace", "topic") if part in path]
        if len(names) == 3:
            topic = topic_in(path)
            names = [topic.tenant, topic.namespace, topic.name]
        return Action(self.operation, "/".join(names) or STORE, self.act.__name__)

    def arguments(self, path: Mapping[str, str], query: Mapping[str, str]) -> dict[str, object]:
        """The arguments of the function from path and query; the application supplies the others.

        raises: InvalidArgument; NotAllowed for a topic that is not persistent
        """
        arguments: dict[str, object] = {}
        for name, parameter in _parameters(self.act).items():
            if name in _GIVEN:
                continue
            if parameter.annotation is TopicName:
                arguments[name] = topic_in(path)
            elif parameter.annotation is TxnId:
                arguments[name] = TxnId.from_halves(
                    _value("most", path["most"], int), _value("least", path["least"], int)
                )
            elif name == "route":
                arguments[name] = self.path
            elif name == "namespace":
                arguments[name] = namespace_of(path["tenant"], path["namespace"])
            elif name in path:
                arguments[name] = _value(name, path[name], parameter.annotation)
            elif name in query:
                arguments[name] = _value(name, query[name], parameter.annotation)
            elif parameter.default is inspect.Parameter.empty:
                raise InvalidArgument(f"the query has no {name}")
        return arguments

    def takes(self, name: str) -> bool:
        """Whether the function has this argument."""
        return name in _parameters(self.act)

    def described(self) -> dict[str, object]:
        """The operation as OpenAPI has it."""
        doc = inspect.getdoc(self.act) or ""
        summary, _, details = doc.partition("\n\n")
        placed = _PLACE.findall(self.path)
        rows: list[dict[str, object]] = [
            {
                "name": name,
                "in": "path",
                "required": True,
                "schema": {"type": _type_of(self.act, name)},
            }
            for name in placed
        ]
        not_in_query = {*placed, *_GIVEN, "topic", "namespace", "txn", "route"}
        rows += [
            {"name": name, "in": "query", "schema": {"type": _type_of(self.act, name)}}
            for name in _parameters(self.act)
            if name not in not_in_query
        ]
        out: dict[str, object] = {
            "operationId": self.act.__name__,
            "summary": summary.replace("\n", " "),
            "parameters": rows,
            "tags": [self.operation],
            "responses": {
                "200": {"description": "the answer"},
                "204": {"description": "done"},
                "default": {
                    "description": "an error",
                    "content": {
                        "application/json": {"schema": {"$ref": "#/components/schemas/Error"}}
                    },
                },
            },
        }
        if details:
            out["description"] = details
        if self.takes("body"):
            out["requestBody"] = {"content": {"application/json": {"schema": {}}}}
        return out


class EndpointList:
    """The endpoints of a module, in order; the module calls it as the decorator `endpoint`."""

    def __init__(self) -> None:
        self.endpoints: list[Endpoint] = []

    def __call__(
        self,
        method: str,
        path: str,
        operation: str,
        *,
        is_slow: bool = False,
        is_aside: bool = False,
    ) -> Callable[[F], F]:
        """Declare the function below as an endpoint; one function may have several paths."""

        def declare(act: F) -> F:
            self.endpoints.append(Endpoint(method, path, operation, act, is_slow, is_aside))
            return act

        return declare


ERROR: Final[dict[str, object]] = {
    "type": "object",
    "properties": {
        "reason": {"type": "string", "description": "one line, as Pulsar calls it"},
        "code": {"type": "string", "examples": ["TXL-302"]},
        "class": {"type": "string", "examples": ["TopicNotFound"]},
        "hint": {"type": ["string", "null"]},
        "retryable": {"type": "boolean"},
    },
    "required": ["reason", "code"],
}


def openapi(endpoints: list[Endpoint], version: str) -> dict[str, object]:
    """The document of all endpoints, by OpenAPI 3.1."""
    paths: dict[str, dict[str, object]] = {}
    for endpoint in endpoints:
        path = _PLACE.sub(r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = endpoint.described()
    return {
        "openapi": "3.1.0",
        "info": {"title": "txlog serve", "version": version},
        "paths": paths,
        "components": {"schemas": {"Error": ERROR}},
    }


def namespace_of(tenant: str, namespace: str) -> str:
    """`tenant/namespace`. Raises InvalidArgument."""
    return f"{check_name('tenant', tenant)}/{check_name('namespace', namespace)}"


# --- bodies ----------------------------------------------------------------------------------


def integer(body: object) -> int:
    """A body that is a number. Raises InvalidArgument."""
    if isinstance(body, int) and not isinstance(body, bool):
        if not -_INT64_MAX <= body <= _INT64_MAX:
            raise InvalidArgument("the body is a number that does not fit into 64 bits", code=203)
        return body
    raise InvalidArgument(f"the body has to be a number, it is {_kind(body)}")


def members(body: object) -> dict[str, Any]:
    """A body that is an object; no body counts as an empty object. Raises InvalidArgument."""
    if body is None:
        return {}
    if isinstance(body, dict):
        return body
    raise InvalidArgument(f"the body has to be an object, it is {_kind(body)}")


def _kind(body: object) -> str:
    """The type of a body without its content, which may be a message."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    return "nothing" if body is None else names.get(type(body), "a number")


# --- arguments -------------------------------------------------------------------------------


@cache
def _parameters(act: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(act, eval_str=True).parameters


def _type_of(act: Callable[..., object], name: str) -> str:
    parameter = _parameters(act).get(name)
    kind = str if parameter is None else parameter.annotation
    if name in _HALVES:
        return "integer"
    return next((word for type_, word in _TYPES.items() if kind in (type_, type_ | None)), "string")


def topic_in(path: Mapping[str, str]) -> TopicName:
    """The topic of a path. Raises InvalidArgument; NotAllowed if it is not persistent."""
    namespace = path["namespace"]
    if "cluster" in path:
        namespace = namespace_in(path["cluster"], namespace)
    name = f"{path['tenant']}/{namespace}/{path['topic']}"
    if path.get("domain", "persistent") != "persistent":
        raise NotAllowed(f"{path['domain']}://{name}: only persistent topics are supported")
    return TopicName.parse(name, allow_partition=True)


def _value(name: str, text: str, kind: Any) -> Any:
    if kind in (int, int | None):
        try:
            number = int(text)
        except ValueError:
            raise InvalidArgument(f'{name} is "{text[:80]}", it has to be a number') from None
        most = _UINT64_MAX if name in _HALVES else _INT64_MAX
        if not 0 <= number <= most:
            raise InvalidArgument(
                f"{name} is {text[:80]}, it has to be a number from 0 to {most}", code=203
            )
        return number
    if kind in (bool, bool | None):
        if text.lower() not in ("true", "false"):
            raise InvalidArgument(f'{name} is "{text[:80]}", it has to be true or false')
        return text.lower() == "true"
    return text

"""Owns the commands of policies: set, get and remove of each of the five kinds.

A table has one row per kind: its flags, their names in the API, and their parsers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from txlog.base.ranges import parse_size
from txlog.base.settings import SCHEMA_COMPATIBILITIES, SCHEMA_VALIDATIONS, UNLIMITED
from txlog.base.times import parse_duration
from txlog.cli.call.call import Call, say_when_it_applies
from txlog.cli.input.names import stdin_row
from txlog.cli.line.command import Argument, Command, Duration, Option, command, exclusive
from txlog.errors import InvalidArgument, Usage

Topic = Annotated[str | None, Option("--topic", "-t", metavar="T", help="for a topic")]
Namespace = Annotated[
    str | None, Option("--namespace", "-N", metavar="TENANT/NAMESPACE", help="for a namespace")
]
Names = Annotated[
    list[str] | None,
    Argument(metavar="[POLICY]...", help="as the flags of set; all", show_default=False),
]
TtlFrom = Annotated[
    str | None,
    Option("--ttl-from", metavar="publish|deliver_at", help="start of the time that --ttl counts"),
]
Read = Callable[[Any], object]
_DIGITS_MAX: Final = 18
_CHECKS: Final = ("count", "refuse", "off")


Copied = Annotated[
    str | None,
    Argument(
        metavar="[-]",
        show_default=False,
        help="from stdin: the rows of get --json, those not inherited",
    ),
]


class Scope(NamedTuple):
    """What policies are for: a subscription of a topic, a topic, a namespace, or the store."""

    topic: str | None = None
    namespace: str | None = None
    subscription: str | None = None


class _Row(msgspec.Struct):
    """A row of `policy KIND get --json`."""

    policies: dict[str, bool | int | str | None]
    origins: dict[str, str]
    topic: str | None = None
    namespace: str | None = None
    subscription: str | None = None


def _as_given(value: object) -> object:
    return value


def _bound(parse: Callable[[str], int], word: str = "unlimited") -> Read:
    return lambda text: UNLIMITED if text == word else parse(text)


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > _DIGITS_MAX:
        raise InvalidArgument(f"{text!r} is not a number of messages", code=203)
    return int(text)


_or_unlimited = _bound(parse_duration)
_or_off = _bound(parse_duration, "off")


# kind → flag of set → the policy's name in the API, and the parser of the flag's value
_POLICIES: Final[dict[str, dict[str, tuple[str, Read]]]] = {
    "alert": {
        "backlog-age": ("backlog_age_ms", _as_given),
        "backlog": ("backlog_messages", _bound(_count, "off")),
        "backlog-bytes": ("backlog_bytes", _bound(parse_size, "off")),
        "no-consumer-for": ("no_consumer_ms", _as_given),
    },
    "delayed": {
        "active": ("active", _as_given),
        "tick-time": ("tick_time_ms", _as_given),
        "max-delay": ("max_delivery_delay_ms", _as_given),
        "fixed-delay": ("fixed_delivery_delay_ms", _as_given),
        "strict": ("strict", _as_given),
        "ttl-from": ("ttl_from", _as_given),
    },
    "retention": {
        "time": ("retention_ms", _as_given),
        "bytes": ("retention_bytes", _bound(parse_size)),
        "acked": ("retention_acked", _as_given),
        "ttl": ("ttl_ms", _as_given),
        "ttl-from": ("ttl_from", _as_given),
        "compaction-threshold": ("compaction_threshold_bytes", _bound(parse_size)),
    },
    "schema": {
        "compatibility": ("compatibility", str.lower),
        "validation": ("validation", str.lower),
    },
    "watermark": {
        "snapshot-bytes": ("snapshot_bytes_max", parse_size),
        "snapshot-entries": ("snapshot_entries_max", _as_given),
        "snapshot-markers": ("snapshot_markers_max", _as_given),
        "producers-max": ("producers_max", _as_given),
        "idle-timeout": ("producer_idle_timeout_ms", _as_given),
        "open-transaction-check": ("open_transaction_check", _as_given),
        "emit-interval": ("emit_interval_ms", _as_given),
    },
}


def _setter(kind: str, short: str, *examples: str) -> Callable[[Callable[..., None]], Command]:
    return command(
        f"policy {kind} set",
        short,
        examples=examples,
        rows="topics.PoliciesChanged",
        changes=True,
        dry_run=True,
    )


Sub = Annotated[
    str | None, Option("--subscription", "-s", metavar="SUB", help="of the topic, alone")
]


@command(
    "policy alert set",
    "when a backlog is a problem",
    examples=(
        "txlog policy alert set --backlog-age 5m --backlog 10000",
        "txlog policy alert set --topic orders --no-consumer-for 10m",
        "txlog policy alert set --topic orders --subscription billing --backlog-age off",
        "txlog policy alert get -t orders --json | txlog policy alert set - -t users",
    ),
    rows="topics.AlertPoliciesChanged",
    changes=True,
    dry_run=True,
)
def set_alert(
    call: Call,
    copied: Copied = None,
    topic: Topic = None,
    namespace: Namespace = None,
    subscription: Sub = None,
    backlog_age: Annotated[
        int | None,
        Option("--backlog-age", metavar="DUR|off", reads=_or_off, help="the oldest is older"),
    ] = None,
    backlog: Annotated[
        str | None, Option("--backlog", metavar="N|off", help="more messages are unacknowledged")
    ] = None,
    backlog_bytes: Annotated[
        str | None, Option("--backlog-bytes", metavar="SIZE|off", help="they have more bytes")
    ] = None,
    no_consumer_for: Annotated[
        int | None,
        Option(
            "--no-consumer-for",
            metavar="DUR|off",
            reads=_or_off,
            help="no consumer was connected for longer",
        ),
    ] = None,
) -> None:
    """Set when the backlog of a subscription is a problem.

    `check`, `status`, `report`, `metrics` and the pages of `serve` show what is above a threshold.
    Without --topic and --namespace it is for the whole store. The narrowest scope decides:
    subscription, topic, namespace, store.
    """
    values = (backlog_age, backlog, backlog_bytes, no_consumer_for)
    hint = "--backlog-age, --backlog, …"
    _set(call, "alert", copied, Scope(topic, namespace, subscription), values, hint)


@command(
    "policy alert get",
    "the thresholds that apply, and their origin",
    examples=(
        "txlog policy alert get --topic orders",
        "txlog policy alert get --topic orders --subscription billing --json",
    ),
    rows="topics.AlertPolicies",
)
def get_alert(
    call: Call, topic: Topic = None, namespace: Namespace = None, subscription: Sub = None
) -> None:
    """Show the thresholds of a backlog for a subscription, a topic, a namespace or the store."""
    exclusive(topic=topic, namespace=namespace)
    ask = call.client().admin.get_alert_policies
    call.output.single(ask(topic, namespace, subscription=subscription))


@command(
    "policy alert remove",
    "inherit thresholds again",
    examples=(
        "txlog policy alert remove --topic orders",
        "txlog policy alert remove backlog-age --topic orders --subscription billing",
    ),
    rows="topics.AlertPoliciesChanged",
    changes=True,
    dry_run=True,
)
def remove_alert(
    call: Call,
    names: Names = None,
    topic: Topic = None,
    namespace: Namespace = None,
    subscription: Sub = None,
) -> None:
    """Inherit thresholds again; the store has no alerts then."""
    _remove(call, "alert", names, topic, namespace, subscription)


@_setter(
    "delayed",
    "how delayed messages wait",
    "txlog policy delayed set --topic orders --max-delay 7d",
    "txlog policy delayed set --namespace public/default --no-active",
    "txlog policy delayed set --tick-time 5s --no-strict",
    "txlog policy delayed get -t orders --json | txlog policy delayed set - -t users",
)
def set_delayed(
    call: Call,
    copied: Copied = None,
    topic: Topic = None,
    namespace: Namespace = None,
    active: Annotated[
        bool | None, Option("--active/--no-active", help="wait until due, or deliver at once")
    ] = None,
    tick_time: Annotated[
        int | None, Duration("--tick-time", help="shortest time between wake-ups")
    ] = None,
    max_delay: Annotated[
        int | None, Duration("--max-delay", help="refuse longer delays; 0s: no bound")
    ] = None,
    fixed_delay: Annotated[
        int | None, Duration("--fixed-delay", help="the same for all; 0s: its own")
    ] = None,
    strict: Annotated[
        bool | None, Option("--strict/--no-strict", help="never early, or early by up to a tick")
    ] = None,
    ttl_from: TtlFrom = None,
) -> None:
    """Set how messages of a topic, a namespace or the store wait for delivery.

    A topic inherits policies that it lacks from its namespace, a namespace from the store.
    """
    values = (active, tick_time, max_delay, fixed_delay, strict, ttl_from)
    hint = "--active, --tick-time, --max-delay, --fixed-delay, …"
    _set(call, "delayed", copied, Scope(topic, namespace), values, hint)


@_setter(
    "retention",
    "which messages are kept, how long",
    "txlog policy retention set --topic orders --time 7d --bytes 1GiB",
    "txlog policy retention set --namespace public/default --acked --ttl 30d",
    "txlog policy retention get -t orders --json | txlog policy retention set - -t users",
    "txlog policy retention set --topic users --compaction-threshold 64MiB",
)
def set_retention(
    call: Call,
    copied: Copied = None,
    topic: Topic = None,
    namespace: Namespace = None,
    time: Annotated[
        int | None,
        Option(
            "--time",
            metavar="DUR|unlimited",
            reads=_or_unlimited,
            help="delete older ledgers",
        ),
    ] = None,
    size: Annotated[
        str | None, Option("--bytes", metavar="SIZE|unlimited", help="delete ledgers above this")
    ] = None,
    acked: Annotated[
        bool | None, Option("--acked/--no-acked", help="delete fully acknowledged ledgers")
    ] = None,
    ttl: Annotated[
        int | None,
        Option(
            "--ttl",
            metavar="DUR|unlimited",
            reads=_or_unlimited,
            help="acknowledge older messages",
        ),
    ] = None,
    ttl_from: TtlFrom = None,
    compaction_threshold: Annotated[
        str | None,
        Option(
            "--compaction-threshold",
            metavar="SIZE|unlimited",
            help="compact by key after this much new data",
        ),
    ] = None,
) -> None:
    """Set how long messages of a topic, a namespace or the store are kept, and how many.

    Each checkpoint, also an automatic one, and `admin trim --by-policy` delete whole ledgers, the
    oldest first; until then older messages stay. Policies alone never delete a message that a
    subscription has not acknowledged. After a checkpoint, a topic past its compaction threshold is
    compacted, as by `admin compact-topic`. A topic inherits policies that it lacks from its
    namespace, then from the store; `unlimited` ends the search.
    """
    values = (time, size, acked, ttl, ttl_from, compaction_threshold)
    hint = "--time, --bytes, --acked, --ttl, --ttl-from or --compaction-threshold"
    _set(call, "retention", copied, Scope(topic, namespace), values, hint)


@_setter(
    "schema",
    "rules for schemas and values",
    "txlog policy schema set --topic trips --compatibility BACKWARD",
    "txlog policy schema set --namespace public/default --validation record",
    "txlog policy schema set --compatibility full_transitive",
    "txlog policy schema get -t trips --json | txlog policy schema set - -t users",
)
def set_schema(
    call: Call,
    copied: Copied = None,
    topic: Topic = None,
    namespace: Namespace = None,
    compatibility: Annotated[
        str | None,
        Option(
            "--compatibility",
            metavar="none|backward|forward|full",
            help="with the last version; also backward_transitive …: with all versions",
        ),
    ] = None,
    validation: Annotated[
        str | None,
        Option(
            "--validation",
            metavar="|".join(SCHEMA_VALIDATIONS),
            help="refuse a bad value, store and count it, or do not check",
        ),
    ] = None,
) -> None:
    """Set the compatibility of new schemas of a topic, and the treatment of values that do not fit.

    backward: it reads values of the last version; forward: the last version reads its values;
    full: both. A topic inherits policies that it lacks from its namespace, a namespace from the
    store.
    """
    allowed = {"--compatibility": SCHEMA_COMPATIBILITIES, "--validation": SCHEMA_VALIDATIONS}
    for (flag, choices), word in zip(allowed.items(), (compatibility, validation), strict=True):
        call.check_choice(flag, None if word is None else word.lower(), choices)
    values = (compatibility, validation)
    hint = "--compatibility or --validation"
    _set(call, "schema", copied, Scope(topic, namespace), values, hint)


@_setter(
    "watermark",
    "how watermarks are kept",
    "txlog policy watermark set --topic orders --idle-timeout 10m",
    "txlog policy watermark set --namespace public/default --open-transaction-check refuse",
    "txlog policy watermark set --snapshot-bytes 1MiB --snapshot-markers 500",
    "txlog policy watermark get -t orders --json | txlog policy watermark set - -t users",
)
def set_watermark(
    call: Call,
    copied: Copied = None,
    topic: Topic = None,
    namespace: Namespace = None,
    snapshot_bytes: Annotated[
        str | None, Option("--snapshot-bytes", metavar="SIZE", help="a snapshot after this much")
    ] = None,
    snapshot_entries: Annotated[
        int | None, Option("--snapshot-entries", metavar="N", help="or this many rows")
    ] = None,
    snapshot_markers: Annotated[
        int | None, Option("--snapshot-markers", metavar="N", help="or this many watermarks")
    ] = None,
    producers_max: Annotated[
        int | None, Option("--producers-max", metavar="N", help="per partition; 0: any")
    ] = None,
    idle_timeout: Annotated[
        int | None,
        Duration("--idle-timeout", help="idle after this silence; 0s: never"),
    ] = None,
    open_transaction_check: Annotated[
        str | None,
        Option(
            "--open-transaction-check",
            metavar="|".join(_CHECKS),
            help="treatment of times ahead of an open transaction",
        ),
    ] = None,
    emit_interval: Annotated[
        int | None, Duration("--emit-interval", help="between events of a consumer")
    ] = None,
) -> None:
    """Set how watermarks of a topic, a namespace or the store are stored and emitted.

    A topic inherits policies that it lacks from its namespace, a namespace from the store.
    """
    call.check_choice("--open-transaction-check", open_transaction_check, _CHECKS)
    values = (
        snapshot_bytes, snapshot_entries, snapshot_markers, producers_max, idle_timeout,
        open_transaction_check, emit_interval,
    )  # fmt: skip
    hint = "--idle-timeout, --open-transaction-check, …"
    _set(call, "watermark", copied, Scope(topic, namespace), values, hint)


def _getter(kind: str, text: str) -> Command:
    def get(call: Call, topic: Topic = None, namespace: Namespace = None) -> None:
        exclusive(topic=topic, namespace=namespace)
        ask = getattr(call.client().admin, f"get_{kind}_policies")
        call.output.single(ask(topic, namespace))

    get.__doc__ = text
    path = f"policy {kind} get"
    examples = (f"txlog {path} --topic orders", f"txlog {path} --json")
    short = "the policies that apply, and their origin"
    return command(path, short, examples=examples, rows="topics.Policies")(get)


def _remover(kind: str, names_shown: str, default: str = "") -> Command:
    def remove(
        call: Call, names: Names = None, topic: Topic = None, namespace: Namespace = None
    ) -> None:
        _remove(call, kind, names, topic, namespace)

    remove.__doc__ = f"Inherit policies again; the store returns to its defaults{default}."
    path = f"policy {kind} remove"
    examples = (f"txlog {path} --topic orders", f"txlog {path} {names_shown} --topic orders")
    return command(
        path,
        "inherit policies again",
        examples=examples,
        rows="topics.PoliciesChanged",
        changes=True,
        dry_run=True,
    )(remove)


get_delayed = _getter(
    "delayed",
    "Show policies of delayed messages for a topic, a namespace or the store, with their origins.",
)
get_retention = _getter(
    "retention",
    "Show the retention of a topic, a namespace or the store, and its origins; null: no bound.",
)
get_schema = _getter(
    "schema", "Show policies of schemas for a topic, a namespace or the store, and their origins."
)
get_watermark = _getter(
    "watermark",
    "Show policies of watermarks for a topic, a namespace or the store, and their origins.",
)
remove_delayed = _remover("delayed", "max-delay ttl-from")
remove_retention = _remover("retention", "time ttl", ": no bound")
remove_schema = _remover("schema", "compatibility validation")
remove_watermark = _remover("watermark", "idle-timeout emit-interval")


def _remove(
    call: Call,
    kind: str,
    names: list[str] | None,
    topic: str | None,
    namespace: str | None,
    subscription: str | None = None,
) -> None:
    """Remove the named policies of a kind from a scope; none named: all."""
    exclusive(topic=topic, namespace=namespace)
    policies = _POLICIES[kind]
    for name in names or []:
        call.check_choice("POLICY", name, tuple(policies))
    change = getattr(call.client(write=True).admin, f"remove_{kind}_policies")
    scope = {} if subscription is None else {"subscription": subscription}
    answer = change([policies[name][0] for name in names or []], topic, namespace, **scope)
    is_store = answer["topic"] is None and answer["namespace"] is None
    done = f"{{place}} {'has the default' if is_store else 'inherits its'} policies"
    _report(call, answer, done if answer["changed"] else "{place} had no policies of its own")


def _set(
    call: Call,
    kind: str,
    copied: str | None,
    scope: Scope,
    flag_values: tuple[object, ...],
    hint: str,
) -> None:
    """Set the given policies of a kind: their values, in the order of the table, or stdin's.

    raises: Usage; InvalidArgument (203) for a row that is not one of `policy KIND get`
    """
    exclusive(topic=scope.topic, namespace=scope.namespace)
    is_given = any(value is not None for value in flag_values)
    if copied not in (None, "-") and scope.topic is None:  # TOPIC without -t
        scope, copied = scope._replace(topic=copied), None
    if copied is None:
        if not is_given:
            raise Usage(f"the policies to set are missing: {hint}")
        values = {
            name: None if value is None else read(value)
            for (name, read), value in zip(_POLICIES[kind].values(), flag_values, strict=True)
        }
    else:
        if is_given or copied != "-":
            raise Usage("- alone has the policies: give no other", hint=f"or without -: {hint}")
        source, values = _copied(kind)
        if not values:
            call.summary("the policies on standard input are all inherited: nothing to do")
            return
        if scope.topic is None and scope.namespace is None:
            scope = source._replace(subscription=scope.subscription or source.subscription)
    change = getattr(call.client(write=True).admin, f"set_{kind}_policies")
    of_topic = {} if scope.subscription is None else {"subscription": scope.subscription}
    answer = change(scope.topic, scope.namespace, **of_topic, **values)
    done = "policies of {place} are set"
    _report(
        call,
        answer,
        done if answer["changed"] else "the policies of {place} had these values already",
    )
    if kind == "retention" and answer["changed"]:
        say_when_it_applies(call)


def _copied(kind: str) -> tuple[Scope, dict[str, object]]:
    """The scope on stdin and the policies that it has itself; the inherited stay inherited there.

    A null of a topic, a namespace or a subscription ends the search for a bound.
    """
    row = stdin_row("policies", "origins")
    try:
        policies = msgspec.convert(row, _Row)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"standard input: {error}", code=203) from error
    of_kind = {name for name, _ in _POLICIES[kind].values()}
    for name in policies.policies:
        if name not in of_kind:
            raise InvalidArgument(f"standard input: {kind} has no policy {name}", code=203)
    scope = Scope(policies.topic, policies.namespace, policies.subscription)
    levels = {
        "subscription": scope.subscription,
        "topic": scope.topic,
        "namespace": scope.namespace,
    }
    level = next((level for level, name in levels.items() if name is not None), "store")
    overrides: dict[str, object] = {
        name: UNLIMITED if value is None else value
        for name, value in policies.policies.items()
        if policies.origins.get(name) == level and (value is not None or level != "store")
    }
    return scope, overrides


def _report(call: Call, answer: Mapping[str, Any], template: str) -> None:
    """Print the answer, with the topic, namespace or store that it applies to."""
    scope = "the store"
    if answer["topic"] is not None:
        scope = f"topic {answer['topic']}"
        if answer.get("subscription") is not None:
            scope = f"subscription {answer['subscription']} of {scope}"
    elif answer["namespace"] is not None:
        scope = f"namespace {answer['namespace']}"
    call.summary(template.format(place=scope))
    call.output.result(answer)

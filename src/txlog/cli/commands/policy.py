"""Owns the commands of policies: set, get and remove of each of the four kinds.

A kind is a row of a table: its flags, their names in the API, and how each is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from txlog.base.ranges import parse_duration, parse_size
from txlog.base.settings import SCHEMA_COMPATIBILITIES, SCHEMA_VALIDATIONS, UNLIMITED
from txlog.cli.call.call import Call
from txlog.cli.line.command import Command, command, exclusive
from txlog.cli.line.declared import Argument, Option
from txlog.errors import Usage

Topic = Annotated[str | None, Option("--topic", "-t", metavar="T", help="of a topic")]
Namespace = Annotated[
    str | None, Option("--namespace", "-N", metavar="TENANT/NAMESPACE", help="of a namespace")
]
Names = Annotated[
    list[str] | None,
    Argument(metavar="[POLICY]...", help="as the flags of set; all", show_default=False),
]
TtlFrom = Annotated[
    str | None,
    Option("--ttl-from", metavar="publish|deliver_at", help="when --ttl begins to count"),
]
Read = Callable[[Any], object]
_CHECKS: Final = ("count", "refuse", "off")
_FIELDS: Final = "topic namespace policies origins"


def _as_given(value: object) -> object:
    return value


def _bound(parse: Callable[[str], int]) -> Read:
    return lambda text: UNLIMITED if text == "unlimited" else parse(text)


# kind → flag of set → the policy's name in the API, and how the flag's value is read
_POLICIES: Final[dict[str, dict[str, tuple[str, Read]]]] = {
    "delayed": {
        "active": ("active", _as_given),
        "tick-time": ("tick_time_ms", parse_duration),
        "max-delay": ("max_delivery_delay_ms", parse_duration),
        "fixed-delay": ("fixed_delivery_delay_ms", parse_duration),
        "strict": ("strict", _as_given),
        "ttl-from": ("ttl_from", _as_given),
    },
    "retention": {
        "time": ("retention_ms", _bound(parse_duration)),
        "bytes": ("retention_bytes", _bound(parse_size)),
        "acked": ("retention_acked", _as_given),
        "ttl": ("ttl_ms", _bound(parse_duration)),
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
        "idle-timeout": ("producer_idle_timeout_ms", parse_duration),
        "open-transaction-check": ("open_transaction_check", _as_given),
        "emit-interval": ("emit_interval_ms", parse_duration),
    },
}


def _setter(kind: str, *examples: str) -> Callable[[Callable[..., None]], Command]:
    return command(
        f"policy {kind} set",
        examples=examples,
        fields=f"{_FIELDS} changed",
        changes=True,
        dry_run=True,
    )


@_setter(
    "delayed",
    "txlog policy delayed set --topic orders --max-delay 7d",
    "txlog policy delayed set --namespace public/default --no-active",
    "txlog policy delayed set --tick-time 5s --no-strict",
)
def set_delayed(
    call: Call,
    topic: Topic = None,
    namespace: Namespace = None,
    active: Annotated[
        bool | None, Option("--active/--no-active", help="messages wait, or are delivered at once")
    ] = None,
    tick_time: Annotated[
        str | None, Option("--tick-time", metavar="DUR", help="between wake-ups, at least")
    ] = None,
    max_delay: Annotated[
        str | None, Option("--max-delay", metavar="DUR", help="a longer one is refused; 0s: any")
    ] = None,
    fixed_delay: Annotated[
        str | None, Option("--fixed-delay", metavar="DUR", help="of every message; 0s: its own")
    ] = None,
    strict: Annotated[
        bool | None, Option("--strict/--no-strict", help="never early, or up to a tick")
    ] = None,
    ttl_from: TtlFrom = None,
) -> None:
    """Set how messages of a topic, a namespace or the store wait for delivery.

    A topic inherits what is not set for it from its namespace, that from the store.
    """
    given = (active, tick_time, max_delay, fixed_delay, strict, ttl_from)
    hint = "--active, --tick-time, --max-delay, --fixed-delay, …"
    _set(call, "delayed", topic, namespace, given, hint)


@_setter(
    "retention",
    "txlog policy retention set --topic orders --time 7d --bytes 1GiB",
    "txlog policy retention set --namespace public/default --acked --ttl 30d",
    "txlog policy retention set --topic orders --time unlimited",
    "txlog policy retention set --topic users --compaction-threshold 64MiB",
)
def set_retention(
    call: Call,
    topic: Topic = None,
    namespace: Namespace = None,
    time: Annotated[
        str | None, Option("--time", metavar="DUR|unlimited", help="ledgers that are older go")
    ] = None,
    size: Annotated[
        str | None, Option("--bytes", metavar="SIZE|unlimited", help="ledgers beyond this total go")
    ] = None,
    acked: Annotated[
        bool | None,
        Option("--acked/--no-acked", help="what every subscription acknowledged goes, or stays"),
    ] = None,
    ttl: Annotated[
        str | None, Option("--ttl", metavar="DUR|unlimited", help="older ones are acknowledged")
    ] = None,
    ttl_from: TtlFrom = None,
    compaction_threshold: Annotated[
        str | None,
        Option(
            "--compaction-threshold",
            metavar="SIZE|unlimited",
            help="compact by key once so much came since",
        ),
    ] = None,
) -> None:
    """Set how long messages of a topic, a namespace or the store are kept, and how much of them.

    Whole ledgers go, oldest first, after a checkpoint or by `admin trim --by-policy`; by themselves
    never what a subscription has not acknowledged. A topic past its compaction threshold is
    compacted after a checkpoint, as by `admin compact-topic`. What is not set is inherited from the
    namespace, then the store; `unlimited` ends the search.
    """
    given = (time, size, acked, ttl, ttl_from, compaction_threshold)
    hint = "--time, --bytes, --acked, --ttl, --ttl-from or --compaction-threshold"
    _set(call, "retention", topic, namespace, given, hint)


@_setter(
    "schema",
    "txlog policy schema set --topic trips --compatibility BACKWARD",
    "txlog policy schema set --namespace public/default --validation record",
    "txlog policy schema set --compatibility full_transitive",
)
def set_schema(
    call: Call,
    topic: Topic = None,
    namespace: Namespace = None,
    compatibility: Annotated[
        str | None,
        Option(
            "--compatibility",
            metavar="none|backward|forward|full",
            help="with those before it; also backward_transitive …: with all of them",
        ),
    ] = None,
    validation: Annotated[
        str | None,
        Option(
            "--validation",
            metavar="|".join(SCHEMA_VALIDATIONS),
            help="refuse a value that does not fit, store and count it, or do not look",
        ),
    ] = None,
) -> None:
    """Set what a new schema of a topic must fit, and what becomes of a value that does not.

    backward: it reads what the last one wrote; forward: the last one reads what it writes; full:
    both. A topic inherits what is not set for it from its namespace, that from the store.
    """
    words = {"--compatibility": SCHEMA_COMPATIBILITIES, "--validation": SCHEMA_VALIDATIONS}
    for (flag, choices), word in zip(words.items(), (compatibility, validation), strict=True):
        call.check_choice(flag, None if word is None else word.lower(), choices)
    given = (compatibility, validation)
    _set(call, "schema", topic, namespace, given, "--compatibility or --validation")


@_setter(
    "watermark",
    "txlog policy watermark set --topic orders --idle-timeout 10m",
    "txlog policy watermark set --namespace public/default --open-transaction-check refuse",
    "txlog policy watermark set --snapshot-bytes 1MiB --snapshot-markers 500",
)
def set_watermark(
    call: Call,
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
        int | None, Option("--producers-max", metavar="N", help="of a partition; 0: any")
    ] = None,
    idle_timeout: Annotated[
        str | None,
        Option("--idle-timeout", metavar="DUR", help="idle after this long a silence; 0s: never"),
    ] = None,
    open_transaction_check: Annotated[
        str | None,
        Option(
            "--open-transaction-check",
            metavar="|".join(_CHECKS),
            help="ahead of the producer's own open transaction",
        ),
    ] = None,
    emit_interval: Annotated[
        str | None,
        Option("--emit-interval", metavar="DUR", help="between two events of a consumer"),
    ] = None,
) -> None:
    """Set how watermarks of a topic, a namespace or the store are kept and given.

    A topic inherits what is not set for it from its namespace, that from the store.
    """
    call.check_choice("--open-transaction-check", open_transaction_check, _CHECKS)
    given = (
        snapshot_bytes, snapshot_entries, snapshot_markers, producers_max, idle_timeout,
        open_transaction_check, emit_interval,
    )  # fmt: skip
    _set(call, "watermark", topic, namespace, given, "--idle-timeout, --open-transaction-check, …")


def _getter(kind: str, text: str) -> Command:
    def get(call: Call, topic: Topic = None, namespace: Namespace = None) -> None:
        exclusive(topic=topic, namespace=namespace)
        ask = getattr(call.client().admin, f"get_{kind}_policies")
        call.output.single(ask(topic, namespace))

    get.__doc__ = text
    path = f"policy {kind} get"
    examples = (f"txlog {path} --topic orders", f"txlog {path} --json")
    return command(path, examples=examples, fields=_FIELDS)(get)


def _remover(kind: str, names_shown: str, default: str = "") -> Command:
    def remove(
        call: Call, names: Names = None, topic: Topic = None, namespace: Namespace = None
    ) -> None:
        exclusive(topic=topic, namespace=namespace)
        policies = _POLICIES[kind]
        for name in names or []:
            call.check_choice("POLICY", name, tuple(policies))
        change = getattr(call.client(write=True).admin, f"remove_{kind}_policies")
        wanted = [policies[name][0] for name in names or []]
        answer = change(wanted, topic, namespace)
        is_store = answer["topic"] is None and answer["namespace"] is None
        done = f"{{place}} {'has the default' if is_store else 'inherits its'} policies"
        _report(call, answer, done if answer["changed"] else "{place} had no policies of its own")

    remove.__doc__ = (
        f"Inherit policies again; those of the store go back to their defaults{default}."
    )
    path = f"policy {kind} remove"
    examples = (f"txlog {path} --topic orders", f"txlog {path} {names_shown} --topic orders")
    return command(
        path, examples=examples, fields=f"{_FIELDS} changed", changes=True, dry_run=True
    )(remove)


get_delayed = _getter(
    "delayed",
    "What holds for delayed messages of a topic, a namespace or the store, and from where.",
)
get_retention = _getter(
    "retention",
    "What is kept of a topic, a namespace or the store, and where that is set; null: no bound.",
)
get_schema = _getter(
    "schema", "What holds for schemas of a topic, a namespace or the store, and from where."
)
get_watermark = _getter(
    "watermark", "What holds for watermarks of a topic, a namespace or the store, and from where."
)
remove_delayed = _remover("delayed", "max-delay ttl-from")
remove_retention = _remover("retention", "time ttl", ": no bound")
remove_schema = _remover("schema", "compatibility validation")
remove_watermark = _remover("watermark", "idle-timeout emit-interval")


def _set(
    call: Call,
    kind: str,
    topic: str | None,
    namespace: str | None,
    given: tuple[object, ...],
    hint: str,
) -> None:
    """Set the policies of a kind that were given: their values, in the order of the table."""
    exclusive(topic=topic, namespace=namespace)
    values = {
        name: None if value is None else read(value)
        for (name, read), value in zip(_POLICIES[kind].values(), given, strict=True)
    }
    if all(value is None for value in given):
        raise Usage(f"say what to set: {hint}")
    change = getattr(call.client(write=True).admin, f"set_{kind}_policies")
    answer = change(topic, namespace, **values)
    done = "policies of {place} are set"
    _report(
        call,
        answer,
        done if answer["changed"] else "the policies of {place} had these values already",
    )


def _report(call: Call, answer: Mapping[str, Any], said: str) -> None:
    """Print the answer and say whose policies they are."""
    place = "the store"
    if answer["topic"] is not None:
        place = f"topic {answer['topic']}"
    elif answer["namespace"] is not None:
        place = f"namespace {answer['namespace']}"
    call.summary(said.format(place=place))
    call.output.result(answer)

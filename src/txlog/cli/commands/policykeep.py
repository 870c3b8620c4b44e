"""Owns the commands of policies of retention: policy retention set, get, remove."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from txlog.cli.call.call import Call
from txlog.cli.commands.policy import (
    Names,
    Namespace,
    Topic,
    need_any,
    policies_of,
    report_removed,
    report_set,
)
from txlog.cli.line.command import command, exclusive
from txlog.cli.line.declared import Option
from txlog.ranges import parse_duration, parse_size
from txlog.settings import UNLIMITED

_NO_BOUND = "unlimited"
_FLAGS = {
    "time": "retention_ms", "bytes": "retention_bytes", "acked": "retention_acked",
    "ttl": "ttl_ms", "ttl-from": "ttl_from",
}  # fmt: skip


@command(
    "policy retention set",
    examples=(
        "txlog policy retention set --topic orders --time 7d --bytes 1GiB",
        "txlog policy retention set --namespace public/default --acked --ttl 30d",
        "txlog policy retention set --topic orders --time unlimited",
    ),
    fields="topic namespace policies origins changed",
    changes=True,
    dry_run=True,
)
def set_retention(
    call: Call,
    topic: Topic = None,
    namespace: Namespace = None,
    time: Annotated[
        str | None, Option("--time", metavar="DUR|unlimited", help="ledgers that are older go")
    ] = None,
    size: Annotated[
        str | None, Option("--bytes", metavar="SIZE|unlimited", help="those beyond so much go")
    ] = None,
    acked: Annotated[
        bool | None, Option("--acked/--no-acked", help="what all have acknowledged goes, or stays")
    ] = None,
    ttl: Annotated[
        str | None, Option("--ttl", metavar="DUR|unlimited", help="older ones are acknowledged")
    ] = None,
    ttl_from: Annotated[
        str | None,
        Option("--ttl-from", metavar="publish|deliver_at", help="when --ttl begins to count"),
    ] = None,
) -> None:
    """Set how long messages of a topic, a namespace or the store are kept, and how much of them.

    Whole ledgers go, oldest first, behind a checkpoint or by `admin trim --by-policy`; never on
    their own what a subscription has not acknowledged. What is not set is inherited, from the
    namespace, then the store; `unlimited` ends the search.
    """
    exclusive(topic=topic, namespace=namespace)
    given: dict[str, Any] = {
        "retention_ms": _bound(time, parse_duration),
        "retention_bytes": _bound(size, parse_size),
        "retention_acked": acked,
        "ttl_ms": _bound(ttl, parse_duration),
        "ttl_from": ttl_from,
    }
    need_any(given, "say what to set: --time, --bytes, --acked, --ttl or --ttl-from")
    set_policies = call.client(write=True).admin.set_retention_policies
    report_set(call, set_policies(topic, namespace, **given))


@command(
    "policy retention get",
    examples=("txlog policy retention get --topic orders", "txlog policy retention get --json"),
    fields="topic namespace policies origins",
)
def get_retention(call: Call, topic: Topic = None, namespace: Namespace = None) -> None:
    """What is kept of a topic, a namespace or the store, and who says so; null: no bound."""
    exclusive(topic=topic, namespace=namespace)
    call.output.single(call.client().admin.get_retention_policies(topic, namespace))


@command(
    "policy retention remove",
    examples=(
        "txlog policy retention remove --topic orders",
        "txlog policy retention remove time ttl --topic orders",
    ),
    fields="topic namespace policies origins changed",
    changes=True,
    dry_run=True,
)
def remove_retention(
    call: Call,
    names: Names = None,
    topic: Topic = None,
    namespace: Namespace = None,
) -> None:
    """Inherit policies again; those of the store go back to their defaults: no bound."""
    exclusive(topic=topic, namespace=namespace)
    wanted = policies_of(call, names, _FLAGS)
    remove_policies = call.client(write=True).admin.remove_retention_policies
    report_removed(call, remove_policies(wanted, topic, namespace))


def _bound(text: str | None, parse: Callable[[str], int]) -> int | None:
    if text is None:
        return None
    return UNLIMITED if text == _NO_BOUND else parse(text)

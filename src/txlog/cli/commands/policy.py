"""Owns policy delayed set, get, remove; and what the commands of all policies share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from txlog.cli.call.call import Call
from txlog.cli.line.command import command, exclusive
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
_FLAGS = {
    "active": "active", "tick-time": "tick_time_ms", "max-delay": "max_delivery_delay_ms",
    "fixed-delay": "fixed_delivery_delay_ms", "strict": "strict", "ttl-from": "ttl_from",
}  # fmt: skip


@command(
    "policy delayed set",
    examples=(
        "txlog policy delayed set --topic orders --max-delay 7d",
        "txlog policy delayed set --namespace public/default --no-active",
        "txlog policy delayed set --tick-time 5s --no-strict",
    ),
    fields="topic namespace policies origins changed",
    changes=True,
    dry_run=True,
)
def set_delayed(
    call: Call,
    topic: Topic = None,
    namespace: Namespace = None,
    active: Annotated[
        bool | None, Option("--active/--no-active", help="messages wait, or come at once")
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
    ttl_from: Annotated[
        str | None,
        Option("--ttl-from", metavar="publish|deliver_at", help="when --ttl begins to count"),
    ] = None,
) -> None:
    """Set how messages of a topic, a namespace or the store wait for their delivery.

    A topic inherits what is not set for it from its namespace, that from the store.
    """
    exclusive(topic=topic, namespace=namespace)
    given: dict[str, Any] = {
        "active": active,
        "tick_time_ms": call.duration(tick_time),
        "strict": strict,
        "max_delivery_delay_ms": call.duration(max_delay),
        "fixed_delivery_delay_ms": call.duration(fixed_delay),
        "ttl_from": ttl_from,
    }
    need_any(given, "say what to set: --active, --tick-time, --max-delay, --fixed-delay, …")
    set_policies = call.client(write=True).admin.set_delayed_policies
    report_set(call, set_policies(topic, namespace, **given))


@command(
    "policy delayed get",
    examples=("txlog policy delayed get --topic orders", "txlog policy delayed get --json"),
    fields="topic namespace policies origins",
)
def get_delayed(call: Call, topic: Topic = None, namespace: Namespace = None) -> None:
    """What holds for delayed messages of a topic, a namespace or the store, and from where."""
    exclusive(topic=topic, namespace=namespace)
    call.output.single(call.client().admin.get_delayed_policies(topic, namespace))


@command(
    "policy delayed remove",
    examples=(
        "txlog policy delayed remove --topic orders",
        "txlog policy delayed remove max-delay ttl-from --topic orders",
    ),
    fields="topic namespace policies origins changed",
    changes=True,
    dry_run=True,
)
def remove_delayed(
    call: Call,
    names: Names = None,
    topic: Topic = None,
    namespace: Namespace = None,
) -> None:
    """Inherit policies again; those of the store go back to their defaults."""
    exclusive(topic=topic, namespace=namespace)
    wanted = policies_of(call, names, _FLAGS)
    remove_policies = call.client(write=True).admin.remove_delayed_policies
    report_removed(call, remove_policies(wanted, topic, namespace))


def need_any(given: Mapping[str, object], hint: str) -> None:
    """Raise Usage where a command was given nothing to set."""
    if all(value is None for value in given.values()):
        raise Usage(hint)


def policies_of(call: Call, names: list[str] | None, flags: Mapping[str, str]) -> list[str]:
    """The policies that flags of set name; none: all. Raises InvalidArgument."""
    for name in names or []:
        call.check_choice("POLICY", name, tuple(flags))
    return [flags[name] for name in names or []]


def report_set(call: Call, answer: Mapping[str, Any]) -> None:
    """Say whose policies are set."""
    done = "policies of {place} are set"
    _report(call, answer, done if answer["changed"] else "the policies of {place} were so already")


def report_removed(call: Call, answer: Mapping[str, Any]) -> None:
    """Say who has no policies of its own any more."""
    is_store = answer["topic"] is None and answer["namespace"] is None
    done = f"{{place}} {'has the default' if is_store else 'inherits its'} policies"
    _report(call, answer, done if answer["changed"] else "{place} had no policies of its own")


def _report(call: Call, answer: Mapping[str, Any], said: str) -> None:
    place = "the store"
    if answer["topic"] is not None:
        place = f"topic {answer['topic']}"
    elif answer["namespace"] is not None:
        place = f"namespace {answer['namespace']}"
    call.summary(said.format(place=place))
    call.output.result(answer)

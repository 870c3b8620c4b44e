"""Owns the commands of policies of watermarks: policy watermark set, get, remove."""

from __future__ import annotations

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
from txlog.ranges import parse_size

_CHECKS = ("count", "refuse", "off")
_FLAGS = {
    "snapshot-bytes": "snapshot_bytes_max", "snapshot-entries": "snapshot_entries_max",
    "snapshot-markers": "snapshot_markers_max", "producers-max": "producers_max",
    "idle-timeout": "producer_idle_timeout_ms", "open-transaction-check": "open_transaction_check",
    "emit-interval": "emit_interval_ms",
}  # fmt: skip


@command(
    "policy watermark set",
    examples=(
        "txlog policy watermark set --topic orders --idle-timeout 10m",
        "txlog policy watermark set --namespace public/default --open-transaction-check refuse",
        "txlog policy watermark set --snapshot-bytes 1MiB --snapshot-markers 500",
    ),
    fields="topic namespace policies origins changed",
    changes=True,
    dry_run=True,
)
def set_watermark(
    call: Call,
    topic: Topic = None,
    namespace: Namespace = None,
    snapshot_bytes: Annotated[
        str | None, Option("--snapshot-bytes", metavar="SIZE", help="a snapshot after so much")
    ] = None,
    snapshot_entries: Annotated[
        int | None, Option("--snapshot-entries", metavar="N", help="or so many rows")
    ] = None,
    snapshot_markers: Annotated[
        int | None, Option("--snapshot-markers", metavar="N", help="or so many watermarks")
    ] = None,
    producers_max: Annotated[
        int | None, Option("--producers-max", metavar="N", help="of a partition; 0: any")
    ] = None,
    idle_timeout: Annotated[
        str | None,
        Option("--idle-timeout", metavar="DUR", help="silent for so long is idle; 0s: never"),
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
    exclusive(topic=topic, namespace=namespace)
    call.check_choice("--open-transaction-check", open_transaction_check, _CHECKS)
    given: dict[str, Any] = {
        "snapshot_bytes_max": None if snapshot_bytes is None else parse_size(snapshot_bytes),
        "snapshot_entries_max": snapshot_entries,
        "snapshot_markers_max": snapshot_markers,
        "producers_max": producers_max,
        "producer_idle_timeout_ms": call.duration(idle_timeout),
        "open_transaction_check": open_transaction_check,
        "emit_interval_ms": call.duration(emit_interval),
    }
    need_any(given, "say what to set: --idle-timeout, --open-transaction-check, …")
    set_policies = call.client(write=True).admin.set_watermark_policies
    report_set(call, set_policies(topic, namespace, **given))


@command(
    "policy watermark get",
    examples=("txlog policy watermark get --topic orders", "txlog policy watermark get --json"),
    fields="topic namespace policies origins",
)
def get_watermark(call: Call, topic: Topic = None, namespace: Namespace = None) -> None:
    """What holds for watermarks of a topic, a namespace or the store, and from where."""
    exclusive(topic=topic, namespace=namespace)
    call.output.single(call.client().admin.get_watermark_policies(topic, namespace))


@command(
    "policy watermark remove",
    examples=(
        "txlog policy watermark remove --topic orders",
        "txlog policy watermark remove idle-timeout emit-interval --topic orders",
    ),
    fields="topic namespace policies origins changed",
    changes=True,
    dry_run=True,
)
def remove_watermark(
    call: Call,
    names: Names = None,
    topic: Topic = None,
    namespace: Namespace = None,
) -> None:
    """Inherit policies again; those of the store go back to their defaults."""
    exclusive(topic=topic, namespace=namespace)
    wanted = policies_of(call, names, _FLAGS)
    remove_policies = call.client(write=True).admin.remove_watermark_policies
    report_removed(call, remove_policies(wanted, topic, namespace))

"""Owns the commands `top` and `du`: who is behind, now, and what takes the space on the disk."""

from __future__ import annotations

import importlib
from typing import Annotated

from txlog.cli.call.call import Call
from txlog.cli.line.command import Duration, Option, command
from txlog.cli.terminal import tables
from txlog.cli.terminal.watching import pause_of
from txlog.errors import Usage


@command(
    "top",
    "watch who is behind, on the whole screen",
    examples=("txlog top", "txlog top --topic orders --every 5s"),
    rows="consuming.LagRow",
)
def top(
    call: Call,
    topic: Annotated[str | None, Option("--topic", "-t", metavar="T")] = None,
    every_ms: Annotated[
        int, Duration("--every", reads=pause_of, help="between two looks, 2s if it is missing")
    ] = 2_000,
) -> None:
    """Show the lag of each subscription on the whole screen, and look again every 2 seconds.

    Keys: b backlog, a age, i rate in, o rate out, c catch-up time and n name sort; r reverses; the
    arrows scroll; q ends. Off a terminal, `txlog sub list --watch` prints the same rows.
    """
    if not call.output.look.human:
        raise Usage("top needs a terminal", hint="txlog sub list --watch prints the same rows")
    client = call.client()
    screen = importlib.import_module("txlog.cli.terminal.top")
    screen.Top(lambda: client.lag(topic), call.store_path(), every_ms, call.output.look).run()


@command(
    "du",
    "bytes on disk by topic and part",
    examples=("txlog du", "txlog du --json"),
    rows="space.DiskUsageRow",
)
def du(call: Call) -> None:
    """Show what takes the space on the disk, largest first: topics, journal, checkpoints, others.

    The sum of the sizes is that of `du -b` on the store. Offloaded files are not in it.
    """
    usage = call.client().disk_usage()
    call.output.rows(usage["usage_list"])
    away = usage["offloaded_bytes"]
    call.summary(
        f"{tables.size(usage['size_bytes'])} in {usage['path']}"
        + (f", and {tables.size(away)} offloaded" if away else "")
    )

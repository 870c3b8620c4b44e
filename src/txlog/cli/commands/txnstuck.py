"""Owns the commands for transactions that do not end by themselves: find-hanging, expire."""

from __future__ import annotations

from typing import Annotated

from txlog.cli.call.call import Call
from txlog.cli.line.command import command
from txlog.cli.line.declared import Option
from txlog.cli.terminal.tables import counted


@command(
    "txn find-hanging",
    examples=("txlog txn find-hanging", "txlog txn find-hanging --older-than 1m -t orders"),
    fields="txn state age_ms cause repair | waiting_list",
)
def find_hanging(
    call: Call,
    topic: Annotated[list[str] | None, Option("--topic", "-t", metavar="T…")] = None,
    older_than: Annotated[str, Option("--older-than", metavar="DUR")] = "15m",
) -> None:
    """List transactions that do not end by themselves, why, and what helps; 6: one is corrupt."""
    limit_ms = call.duration(older_than)
    assert limit_ms is not None
    rows = call.client().admin.find_hanging(limit_ms, topic or ())
    call.output.rows(rows)
    if any(row["cause"] == "corrupt" for row in rows):
        call.exit = 6


@command(
    "txn expire",
    examples=("txlog txn expire", "txlog txn expire --dry-run --json"),
    fields="expired rolled_forward rolled_back forgotten waiting_list",
    changes=True,
    dry_run=True,
)
def expire(call: Call) -> None:
    """End everything that is overdue, in the whole store, and drive on what is decided."""
    answer = call.client(write=True).expire()
    text = f"{counted(answer['expired'], 'transaction')} expired"
    text += f", {answer['rolled_forward']} rolled forward, {answer['rolled_back']} back"
    call.summary(f"{text}, {answer['forgotten']} forgotten")
    for row in answer["waiting_list"]:
        call.warn(f"{row['txn']} waits for {', '.join(row['waiting_list'])}")
    call.output.result(answer)

"""Owns the commands that say whether a store can be relied on: verify."""

from __future__ import annotations

import importlib
import os
from typing import Annotated, Any

from typer import Option

from txlog.cli import fields, tables
from txlog.cli.command import command
from txlog.cli.options import Call
from txlog.cli.tables import counted

_SHOWN = "severity code path offset topic partition message".split()


@command(
    "verify",
    examples=("txlog verify", "txlog verify --deep --json", "txlog verify --deep --topic orders"),
    fields="files size_bytes frames errors warnings problem_list",
)
def verify(
    call: Call,
    deep: Annotated[
        bool, Option("--deep", help="also decode, replay, and compare all components")
    ] = False,
    topic: Annotated[
        list[str] | None, Option("--topic", "-t", metavar="T…", help="only files of these")
    ] = None,
    strict: Annotated[bool, Option("--strict", help="warnings count")] = False,
) -> None:
    """Read every byte of the store and repair nothing; 6: something is wrong.

    An error is a loss or a contradiction; a warning is what upkeep or the next writer puts in
    order by itself. It takes no lock, and works on a store that cannot be opened.
    """
    path = call.store_path()
    call.report.store = os.path.abspath(path)
    api = importlib.import_module("txlog.integrity")
    answer = api.verify(path, deep=deep, topics=topic or (), clock=call.clock)
    _show(call, answer)
    if answer["errors"] or (strict and answer["warnings"]):
        call.exit = 6


def _show(call: Call, answer: dict[str, Any]) -> None:
    if call.output.form not in ("table", "wide"):
        call.output.single(answer)
        return
    rows = [fields.select(row, _SHOWN) for row in answer["problem_list"]]
    if rows:
        call.output.text(tables.table(_SHOWN, rows, call.output.look))
        hints = dict.fromkeys(row["hint"] for row in answer["problem_list"] if row["hint"])
        call.output.text("".join(f"  {hint}\n" for hint in hints))
    call.output.text(
        f"{counted(answer['files'], 'file')}, {tables.size(answer['size_bytes'])}, "
        f"{counted(answer['frames'], 'frame')}: {counted(answer['errors'], 'error')}, "
        f"{counted(answer['warnings'], 'warning')}\n"
    )

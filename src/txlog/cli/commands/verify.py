"""Owns the commands about a store that may be damaged: verify, doctor, repair."""

from __future__ import annotations

import importlib
import os
from typing import Annotated, Any

from txlog.cli.call.call import Call
from txlog.cli.call.progress import Words
from txlog.cli.line.command import command
from txlog.cli.line.declared import Option
from txlog.cli.terminal import fields, tables
from txlog.cli.terminal.tables import counted
from txlog.errors import ReadOnlyStore

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
        list[str] | None, Option("--topic", "-t", metavar="T…", help="only these topics' files")
    ] = None,
    strict: Annotated[bool, Option("--strict", help="warnings count")] = False,
) -> None:
    """Read every byte of the store and repair nothing; 6: something is wrong.

    An error is a loss or a contradiction; a warning is something that upkeep or the next writer
    puts right. It takes no lock, and works on a store that cannot be opened.
    """
    path = call.store_path()
    call.report.store = os.path.abspath(path)
    api = importlib.import_module("txlog.client.answers.integrity")
    with Words(call) as told:

        def tell(doing: str, size_bytes: int) -> None:
            told(f"verify: {doing}, {tables.size(size_bytes)}")

        answer = api.verify(path, deep=deep, topics=topic or (), clock=call.clock, tell=tell)
    _show(call, answer)
    if answer["errors"] or (strict and answer["warnings"]):
        call.exit = 6


@command(
    "doctor",
    examples=("txlog doctor", "txlog doctor --json", "txlog doctor -f names"),
    fields="name status detail | fix",
)
def doctor(call: Call) -> None:
    """Check the health of the store and of the machine under it; 6: something fails.

    It reads what opening the store needs; txlog verify reads every byte.
    """
    path = call.store_path()
    call.report.store = os.path.abspath(path)
    rows = importlib.import_module("txlog.client.answers.health").doctor(path, clock=call.clock)
    call.output.rows(rows)
    if call.output.form == "table":
        for row in rows:
            if row["status"] != "ok" and row["fix"]:
                call.say(f"{row['name']}: {row['fix']}")
    if any(row["status"] == "fail" for row in rows):
        call.exit = 6


@command(
    "admin repair",
    examples=(
        "txlog admin repair",
        "txlog admin repair --apply",
        "txlog admin repair --rebuild state --apply --json",
        "txlog admin repair --ledger 17 --accept-loss --apply",
    ),
    fields="applied messages_lost action_list",
    changes=True,
)
def repair(
    call: Call,
    apply: Annotated[bool, Option("--apply", help="do it; otherwise only plan")] = False,
    rebuild: Annotated[
        str | None,
        Option("--rebuild", metavar="state|delayed|changes|all", help="rebuild it, damaged or not"),
    ] = None,
    ledger: Annotated[
        int | None, Option("--ledger", metavar="N", help="only this topic's files")
    ] = None,
    accept_loss: Annotated[
        bool, Option("--accept-loss", help="continue without what cannot be read")
    ] = False,
) -> None:
    """Rebuild damaged files from the journal and older files, or say how.

    Nothing is given up without --accept-loss (9, 902). With it the journal ends before the damage,
    and messages in unreadable row groups keep their ids but lose key and value, and get the
    property txlog.lost. For unreadable frames messages_lost is null: unknown. 7: something is left
    that needs a copy of the store; 6: all of it does.
    """
    call.check_choice("--rebuild", rebuild, ("state", "delayed", "changes", "all"))
    path = call.store_path()
    call.report.store = os.path.abspath(path)
    if apply and call.read_only:
        raise ReadOnlyStore(f"{call.command.path} changes the store, and it is read-only")
    api = importlib.import_module("txlog.client.answers.integrity")
    with Words(call, "repair" if apply else "checking what can be repaired"):
        answer = api.repair(
            path,
            apply=apply,
            rebuild=rebuild,
            ledger=ledger,
            accept_loss=accept_loss,
            lock_timeout_ms=_lock_timeout_ms(call),
            clock=call.clock,
        )
    left = [one for one in answer["action_list"] if not one["done"]]
    for one in answer["action_list"]:
        how = "" if one["done"] else "would " if not apply else "not done: "
        call.summary(f"{how}{one['action']} {one['path'] or ''}: {one['detail']}")
    if not answer["action_list"]:
        call.summary("nothing to repair")
    call.output.result(answer)
    if apply and left:
        call.exit = 6 if len(left) == len(answer["action_list"]) else 7


def _lock_timeout_ms(call: Call) -> int:
    """The store's own settings are not read: it may be one that cannot be opened."""
    asked = call.lock_timeout_ms
    return call.usual_lock_timeout_ms() if asked is None else asked


def _show(call: Call, answer: dict[str, Any]) -> None:
    if call.output.form not in ("table", "wide"):
        call.output.single(answer)
        return
    rows = [fields.select(row, _SHOWN) for row in answer["problem_list"]]
    if rows:
        call.output.drawn(tables.table(_SHOWN, rows, call.output.look))
        hints = dict.fromkeys(row["hint"] for row in answer["problem_list"] if row["hint"])
        call.output.text("".join(f"  {hint}\n" for hint in hints))
    call.output.text(
        f"{counted(answer['files'], 'file')}, {tables.size(answer['size_bytes'])}, "
        f"{counted(answer['frames'], 'frame')}: {counted(answer['errors'], 'error')}, "
        f"{counted(answer['warnings'], 'warning')}\n"
    )

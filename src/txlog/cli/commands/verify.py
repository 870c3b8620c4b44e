"""Owns the commands about a store that may be damaged: verify, doctor, repair."""

from __future__ import annotations

import importlib
import os
from typing import Annotated, Any

from txlog.cli.call.call import Call
from txlog.cli.call.progress import Words
from txlog.cli.line.command import Option, command
from txlog.cli.terminal import fields, tables
from txlog.cli.terminal.tables import counted
from txlog.errors import ReadOnlyStore

_SHOWN = "severity code path offset topic partition message".split()


@command(
    "verify",
    "check every byte, and report damage",
    examples=("txlog verify", "txlog verify --deep --json", "txlog verify --deep --topic orders"),
    rows="store.Verified",
)
def verify(
    call: Call,
    deep: Annotated[
        bool, Option("--deep", help="also decode, replay, and compare all components")
    ] = False,
    topic: Annotated[
        list[str] | None, Option("--topic", "-t", metavar="T…", help="only these topics' files")
    ] = None,
    strict: Annotated[bool, Option("--strict", help="treat warnings as errors")] = False,
) -> None:
    """Read every byte of the store and repair nothing; 6: it found an error.

    An error is a loss or a contradiction; a warning is a fault that upkeep or the next writer
    corrects. It takes no lock, and works on a store that cannot be opened.
    """
    path = call.store_path()
    call.report.store = os.path.abspath(path)
    api = importlib.import_module("txlog.client.answers.integrity")
    with Words(call) as tell_words:

        def tell(doing: str, size_bytes: int) -> None:
            tell_words(f"verify: {doing}, {tables.size(size_bytes)}")

        answer = api.verify(path, deep=deep, topics=topic or (), clock=call.clock, tell=tell)
    _show(call, answer)
    if answer["errors"] or (strict and answer["warnings"]):
        call.exit = 6


@command(
    "doctor",
    "check the health of store and machine",
    examples=("txlog doctor", "txlog doctor --json", "txlog doctor -f names"),
    rows="store.DoctorRow",
    until="detail",
)
def doctor(call: Call) -> None:
    """Check the health of the store and of the machine under it; 6: a check fails.

    It reads the files that opening the store needs; txlog verify reads every byte.
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
    "rebuild damaged files, or explain how",
    examples=(
        "txlog admin repair",
        "txlog admin repair --apply",
        "txlog admin repair --rebuild state --apply --json",
        "txlog admin repair --ledger 17 --accept-loss --apply",
    ),
    rows="store.Repaired",
    changes=True,
)
def repair(
    call: Call,
    apply: Annotated[bool, Option("--apply", help="carry out the plan")] = False,
    rebuild: Annotated[
        str | None,
        Option("--rebuild", metavar="state|delayed|changes|all", help="rebuild it, damaged or not"),
    ] = None,
    ledger: Annotated[
        int | None, Option("--ledger", metavar="N", help="only this topic's files")
    ] = None,
    accept_loss: Annotated[
        bool, Option("--accept-loss", help="give up data that cannot be read")
    ] = False,
) -> None:
    """Rebuild damaged files from the journal and older files, or explain how.

    It gives up no data without --accept-loss (9, 902). With it the journal ends before the damage,
    and messages in unreadable row groups keep their ids but lose key and value, and get the
    property txlog.lost. For unreadable frames messages_lost is null: unknown. 7: some damage needs
    a copy of the store; 6: all of it does.
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
    unfinished = [action for action in answer["action_list"] if not action["done"]]
    for action in answer["action_list"]:
        how = "" if action["done"] else "would " if not apply else "not done: "
        call.summary(f"{how}{action['action']} {action['path'] or ''}: {action['detail']}")
    if not answer["action_list"]:
        call.summary("nothing to repair")
    call.output.result(answer)
    if apply and unfinished:
        call.exit = 6 if len(unfinished) == len(answer["action_list"]) else 7


def _lock_timeout_ms(call: Call) -> int:
    """The lock time-out; it ignores the store's settings, because the store may not open."""
    flag_ms = call.lock_timeout_ms
    return call.usual_lock_timeout_ms() if flag_ms is None else flag_ms


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

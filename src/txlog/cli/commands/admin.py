"""Owns the commands of administration: checkpoint, transaction keys, coordinators, partitions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any

from txlog.base.suggest import command_line
from txlog.cli.call.call import Call, split_key
from txlog.cli.call.progress import Words
from txlog.cli.line.command import Argument, Duration, Option, command
from txlog.cli.terminal.tables import counted, size
from txlog.errors import Usage


@command(
    "admin checkpoint",
    "write a checkpoint; roll and seal ledgers",
    examples=("txlog admin checkpoint", "txlog admin checkpoint --roll-all"),
    rows="space.CheckpointWritten",
    changes=True,
)
def checkpoint(
    call: Call,
    roll: Annotated[
        list[str] | None, Option("--roll", metavar="TOPIC…", help="close its ledgers")
    ] = None,
    roll_all: Annotated[bool, Option("--roll-all", help="close and seal open ledgers too")] = False,
) -> None:
    """Write a checkpoint: journal into parts, rolled ledgers into Parquet files."""
    client = call.client(write=True)
    with Words(call, "writing a checkpoint"):
        answer = client.checkpoint(roll=roll or (), roll_all=roll_all)
    answer = {"elapsed_ms": call.elapsed_ms(), **answer}
    if answer.get("skipped"):
        call.summary(f"nothing to write: checkpoint {answer['generation']} is current")
    else:
        call.summary(
            f"checkpoint {answer['generation']}: {counted(answer['rows'], 'row')} in "
            f"{counted(answer['parts'], 'part')}, "
            f"{counted(answer['sealed_ledgers'], 'ledger')} sealed, "
            f"{size(int(answer['freed_bytes']))} freed"
        )
    call.output.result(answer)


# --- keys and coordinators -------------------------------------------------------------------

STATES = ("open", "prepared", "committing", "aborting")
KeyArgument = Annotated[str, Argument(metavar="KEY", show_default=False)]
OwnerOption = Annotated[str | None, Option("--owner", metavar="NAME|UID", help="for root")]


@command(
    "admin list-transaction-keys",
    "list transaction keys",
    examples=(
        "txlog admin list-transaction-keys",
        "txlog admin list-transaction-keys --older-than 30d -f names",
    ),
    rows="transactions.KeyRow",
    until="last_used_time",
)
def list_keys(
    call: Call,
    owner: Annotated[str | None, Option("--owner", metavar="O")] = None,
    prefix: Annotated[str, Option("--prefix", metavar="STR")] = "",
    state: Annotated[list[str] | None, Option("--state", metavar="S…", help="its status")] = None,
    age_ms: Annotated[int | None, Duration("--older-than", help="unused for this long")] = None,
    topic: Annotated[str | None, Option("--topic", "-t", metavar="T")] = None,
    deleted: Annotated[bool, Option("--deleted", help="include deleted keys")] = False,
    limit: Annotated[int | None, Option("--limit", min=0, metavar="N")] = None,
) -> None:
    """List transaction keys of all owners, with their epoch and unfinished transaction."""
    for word in state or []:
        call.check_choice("--state", word, STATES)
    rows = call.client().admin.transaction_keys(deleted=deleted, owner=owner)
    matching = [
        row
        for row in rows
        if row["transaction_key"].startswith(prefix)
        and (not state or row["txn_state"] in state)
        and (age_ms is None or row["age_ms"] > age_ms)
        and (topic is None or topic in row["topic_list"])
    ]
    if call.output.form == "names":  # spec/cli 2: in the form that other commands accept
        for row in matching:
            if row["owner_uid"] != os.geteuid():
                row["transaction_key"] = f"{row['owner']}&{row['transaction_key']}"
    call.output.rows(matching[:limit])


@command(
    "admin get-transaction-key",
    "one key and its transactions",
    examples=(
        "txlog admin get-transaction-key nightly",
        "txlog admin get-transaction-key nightly --json",
    ),
    rows="transactions.KeyDescription",
    until="last_used_time",
)
def get_key(call: Call, key: KeyArgument, owner: OwnerOption = None) -> None:
    """Show one transaction key and its remembered transactions."""
    whose, key = _whose(key, owner)
    call.output.single(call.client().admin.transaction_key(key, whose))


@command(
    "admin delete-transaction-key",
    "delete a key, abort its open transaction",
    examples=(
        "txlog admin delete-transaction-key nightly",
        "txlog admin delete-transaction-key nightly --dry-run",
    ),
    rows="transactions.KeyDeleted",
    changes=True,
    dry_run=True,
    loses="data",
)
def delete_key(call: Call, key: KeyArgument, owner: OwnerOption = None) -> None:
    """Delete a transaction key; abort its open transaction, keep its last epoch."""
    whose, key = _whose(key, owner)
    answer = call.client(write=True).admin.delete_transaction_key(key, whose)
    aborted = ", ".join(str(txn) for txn in answer["aborted_list"])
    call.summary(
        f"deleted transaction key {answer['transaction_key']}, epoch {answer['epoch']}"
        + (f"; aborted {aborted}" if aborted else "")
    )
    call.output.result(answer)


@command(
    "admin scale-transaction-coordinators",
    "add transaction coordinators",
    examples=(
        "txlog admin scale-transaction-coordinators 64",
        "txlog admin scale-transaction-coordinators 32 --dry-run",
    ),
    rows="transactions.CoordinatorsScaled",
    changes=True,
    dry_run=True,
)
def scale_coordinators(
    call: Call,
    count: Annotated[int, Argument(metavar="N", show_default=False)],
) -> None:
    """Set the number of transaction coordinators to N; it can only grow."""
    answer = call.client(write=True).admin.scale_coordinators(count)
    call.summary(f"coordinators: {answer['before']} before, now {answer['after']}")
    call.output.result(answer)


def _whose(key: str, owner: str | None) -> tuple[str | None, str]:
    """Return owner and key of OWNER&KEY, or of KEY and --owner."""
    key_owner, bare = split_key(key)
    if key_owner is not None and owner is not None:
        raise Usage("--owner and OWNER&KEY exclude each other")
    return key_owner or owner, bare or ""


# --- take a partition offline, and bring it back ---------------------------------------------


@command(
    "admin offline",
    "take a partition offline",
    examples=("txlog admin offline orders/2", "txlog admin offline orders/2 --dry-run --json"),
    rows="topics.PartitionSwitched",
    changes=True,
    dry_run=True,
)
def offline(
    call: Call,
    target: Annotated[str, Argument(metavar="TOPIC/P", show_default=False)],
) -> None:
    """Take a partition offline: calls that need it end with 5; commits and aborts wait for it."""
    client = call.client(write=True)
    answer = client.admin.set_offline(target)
    _say(call, answer)
    if answer["changed"] and not call.dry_run:
        undo = command_line("admin online", f"{answer['topic']}/{answer['partition']}")
        call.summary(f"undo: {undo}")
    call.output.result(answer)


@command(
    "admin online",
    "bring a partition back",
    examples=("txlog admin online orders/2", "txlog admin online orders/2 --json"),
    rows="topics.PartitionSwitched",
    changes=True,
    dry_run=True,
)
def online(
    call: Call,
    target: Annotated[str, Argument(metavar="TOPIC/P", show_default=False)],
) -> None:
    """Check the files of a partition, bring it back, then finish the calls that waited for it."""
    answer = call.client(write=True).admin.set_online(target)
    _say(call, answer)
    call.output.result(answer)


def _say(call: Call, answer: Mapping[str, Any]) -> None:
    state = "online" if answer["online"] else "offline"
    how = "" if answer["changed"] else " already"
    text = f"{answer['topic']}/{answer['partition']} is {state}{how}"
    if answer["finished_list"]:
        text += f"; {counted(len(answer['finished_list']), 'transaction')} finished"
    call.summary(text)

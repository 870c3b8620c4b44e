"""Owns the commands of administration: checkpoint."""

from __future__ import annotations

from typing import Annotated

from txlog.cli.call.call import Call
from txlog.cli.call.progress import Words
from txlog.cli.line.command import command
from txlog.cli.line.declared import Option
from txlog.cli.terminal.tables import counted, size


@command(
    "admin checkpoint",
    examples=("txlog admin checkpoint", "txlog admin checkpoint --roll-all"),
    fields=(
        "generation lsn frames rows parts sealed_ledgers journals_deleted freed_bytes skipped "
        "elapsed_ms"
    ),
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

"""Owns the commands of jobs that write: export-delta."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from typer import Argument, Option

from txlog.cli.command import command
from txlog.cli.jobbing import Conf, Master, Progress, engine_of, job_of, print_result
from txlog.cli.options import Call
from txlog.cli.tables import counted
from txlog.errors import MissingExtra

Changing = Annotated[str, Option("--engine", metavar="duckdb|spark", help="what computes")]
Topic = Annotated[str, Argument(metavar="TOPIC", show_default=False)]


@command(
    "job export-delta",
    examples=(
        "txlog job export-delta orders /data/orders.delta",
        "txlog job export-delta orders /data/orders.delta --engine duckdb --dry-run",
    ),
    fields="job engine topic path messages files linked version lsn already elapsed_ms",
    changes=True,
    dry_run=True,
)
def export_delta(
    call: Call,
    topic: Topic,
    dest: Annotated[str, Argument(metavar="DEST", show_default=False)],
    app_id: Annotated[
        str, Option("--app-id", metavar="ID", help="whose progress the table keeps")
    ] = "txlog",
    engine: Changing = "spark",
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Add what became visible since the last export to a Delta table in a local directory.

    The table itself keeps the LSN that it has, in the same commit as the messages; so none is
    missing or twice, wherever an export is killed. Sealed files that hold committed messages only
    are linked, not copied. It needs the package deltalake.
    """
    client = call.client()
    work = _loaded("export_delta")
    with engine_of(call, engine, master, conf) as chosen, Progress(call) as told:
        answer = work(client, topic, dest, chosen, app_id=app_id, dry_run=call.dry_run, tell=told)
    if answer["already"]:
        done = f"{answer['path']} has everything up to LSN {answer['lsn']}"
    else:
        done = (
            f"exported {counted(answer['messages'], 'message')} up to LSN {answer['lsn']} to "
            f"{answer['path']}, {counted(answer['linked'], 'file')} linked"
        )
    print_result(call, answer, engine, done)


def _loaded(name: str) -> Callable[..., dict[str, Any]]:
    """The function of a job that needs an extra; raises MissingExtra."""
    try:
        return job_of(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "deltalake":
            raise
        raise MissingExtra(
            "deltalake is not installed", hint="pip install 'txlog[spark]'"
        ) from error

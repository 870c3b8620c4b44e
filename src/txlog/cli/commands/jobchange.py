"""Owns the commands of jobs that write: bulk-load, replay, export-delta."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Annotated, Any

from txlog.cli.call.call import Call
from txlog.cli.call.progress import Words
from txlog.cli.commands.jobbing import Conf, Master, engine_of, job_of, print_result
from txlog.cli.line.command import command
from txlog.cli.line.declared import Argument, Option
from txlog.cli.terminal.tables import counted
from txlog.errors import MissingExtra, Usage
from txlog.ranges import Range, parse_range

Changing = Annotated[str, Option("--engine", metavar="duckdb|spark", help="what computes")]
Key = Annotated[
    str, Option("--transaction-key", "--key", metavar="KEY", help="whose batch it is: needed")
]
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
    with engine_of(call, engine, master, conf) as chosen, Words(call) as told:
        answer = work(client, topic, dest, chosen, app_id=app_id, dry_run=call.dry_run, tell=told)
    if answer["already"]:
        done = f"{answer['path']} has everything up to LSN {answer['lsn']}"
    else:
        done = (
            f"exported {counted(answer['messages'], 'message')} up to LSN {answer['lsn']} to "
            f"{answer['path']}, {counted(answer['linked'], 'file')} linked"
        )
    print_result(call, answer, engine, done)


@command(
    "job bulk-load",
    examples=(
        "txlog job bulk-load orders.csv orders --transaction-key import --key-column id",
        "txlog job bulk-load data/ orders --transaction-key import --engine duckdb --dry-run",
    ),
    fields="job engine topic files messages size_bytes ledgers txn already elapsed_ms",
    changes=True,
    dry_run=True,
)
def bulk_load(
    call: Call,
    source: Annotated[str, Argument(metavar="SRC", show_default=False)],
    topic: Topic,
    key: Key,
    form: Annotated[
        str | None, Option("--in", metavar="parquet|csv|ndjson", help="else by the suffixes")
    ] = None,
    key_column: Annotated[
        str | None, Option("--key-column", metavar="C", help="else the column key")
    ] = None,
    value_column: Annotated[
        str | None, Option("--value-column", metavar="C", help="else value, or the row as JSON")
    ] = None,
    event_time_column: Annotated[
        str | None, Option("--event-time-column", metavar="C", help="else event_time")
    ] = None,
    engine: Changing = "spark",
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Store the rows of a file, or of all files below a directory, as messages: all or none.

    The same key with the same bytes again changes nothing, and answers as the first time. Of
    ndjson the value of a message is the line. An integer is an event time in milliseconds.
    """
    reading = importlib.import_module("txlog.jobs.loads")
    columns = reading.Columns(key_column, value_column, event_time_column)
    files = reading.files_of([source], form, columns)
    client = call.client(write=True)
    with engine_of(call, engine, master, conf) as chosen, Words(call) as told:
        answer = job_of("bulk_load")(
            client, files, topic, key, chosen, dry_run=call.dry_run, tell=told
        )
    if answer["already"]:
        done = f"{source} is in {topic} already"
    else:
        done = f"loaded {counted(answer['messages'], 'message')} into {topic}"
    print_result(call, answer, engine, done)


@command(
    "job replay",
    examples=(
        "txlog job replay orders again -o @-1h.. --transaction-key fix-42",
        "txlog job replay orders again --transaction-key fix-42 --transform fix.py:repair "
        "--engine duckdb",
    ),
    fields="job engine topic dest read written txn already elapsed_ms",
    changes=True,
    dry_run=True,
)
def replay(
    call: Call,
    topic: Topic,
    dest: Annotated[str, Argument(metavar="DEST", show_default=False)],
    key: Key,
    range_: Annotated[
        str | None, Option("--offset", "-o", metavar="RANGE", help="else all of it")
    ] = None,
    transform: Annotated[
        str | None,
        Option("--transform", metavar="MODULE:FUNCTION", help="what changes the messages"),
    ] = None,
    engine: Changing = "spark",
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Store the committed messages of a range in another topic: all or none, once.

    The same key, range and function again change nothing. The function takes and gives columns
    key, value, properties, event_time, deliver_at: a pyarrow.Table with duckdb, a DataFrame with
    spark. Each message says where it came from, in the property replay_of.
    """
    text = range_ or ""
    wanted = Range() if range_ is None else parse_range(range_, call.now_ms())
    if wanted.kind != "range":
        raise Usage("-o of a replay is a stretch: unacked and txn are none")
    function = None
    if transform is not None:
        function = (transform, importlib.import_module("txlog.functions").load(transform))
    client = call.client(write=True)
    with engine_of(call, engine, master, conf) as chosen, Words(call) as told:
        answer = job_of("replay")(
            client, topic, dest, (text, wanted), key, chosen, function=function,
            dry_run=call.dry_run, tell=told,
        )  # fmt: skip
    if answer["already"]:
        done = f"{dest} has this already"
    elif call.dry_run:
        done = f"would replay {counted(answer['read'], 'message')} of {topic} into {dest}"
    else:
        done = (
            f"replayed {counted(answer['read'], 'message')} of {topic}, "
            f"{answer['written']:,} written to {dest}"
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

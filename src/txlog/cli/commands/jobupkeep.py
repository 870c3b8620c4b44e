"""Owns the commands of jobs that do upkeep: compact, rebuild-delayed."""

from __future__ import annotations

from typing import Annotated

from txlog.cli.call.call import Call
from txlog.cli.call.progress import Words
from txlog.cli.commands.jobbing import Conf, Master, engine_of, job_of, print_result
from txlog.cli.line.command import command
from txlog.cli.line.declared import Argument, Option
from txlog.cli.terminal.tables import counted, size

Upkeep = Annotated[
    str, Option("--engine", metavar="duckdb|spark", help="who reads; duckdb: this process")
]
Topic = Annotated[str, Argument(metavar="TOPIC", show_default=False)]


@command(
    "job compact",
    examples=("txlog job compact orders", "txlog job compact orders --engine duckdb --dry-run"),
    fields=(
        "job engine topic transactions messages aborted_dropped size_before_bytes "
        "size_after_bytes ledgers_before ledgers_after elapsed_ms"
    ),
    changes=True,
    dry_run=True,
)
def compact(
    call: Call, topic: Topic, engine: Upkeep = "spark", master: Master = None, conf: Conf = None
) -> None:
    """Rewrite the sidecars of a topic in commit order, without dead rows; Spark reads and sorts.

    Every row is compared with what the sidecar goes by before the new file takes its place.
    """
    client = call.client(write=not call.dry_run)
    with engine_of(call, engine, master, conf) as chosen, Words(call) as told:
        answer = job_of("compact")(client, topic, chosen, dry_run=call.dry_run, tell=told)
    before, after = int(answer["size_before_bytes"]), int(answer["size_after_bytes"])
    done = (
        f"{answer['topic']}: {counted(answer['messages'], 'message')} of "
        f"{counted(answer['transactions'], 'transaction')} kept, "
        f"{answer['aborted_dropped']:,} dropped, {size(before)} before, {size(after)} after"
    )
    print_result(call, answer, engine, done)


@command(
    "job rebuild-delayed",
    examples=(
        "txlog job rebuild-delayed orders",
        "txlog job rebuild-delayed orders --engine duckdb --dry-run",
    ),
    fields=("job engine topic partitions messages_read indexed missing surplus buckets elapsed_ms"),
    changes=True,
    dry_run=True,
)
def rebuild_delayed(
    call: Call, topic: Topic, engine: Upkeep = "spark", master: Master = None, conf: Conf = None
) -> None:
    """Make the sealed buckets of the delayed index anew; Spark finds the messages with a time."""
    client = call.client(write=True)
    with engine_of(call, engine, master, conf) as chosen, Words(call) as told:
        answer = job_of("rebuild_delayed")(client, topic, chosen, dry_run=call.dry_run, tell=told)
    differed = answer["missing"] + answer["surplus"]
    found = f"{answer['missing']:,} missing, {answer['surplus']:,} surplus" if differed else (
        "nothing differed"
    )  # fmt: skip
    done = (
        f"{answer['topic']}: {answer['indexed']:,} in {counted(answer['buckets'], 'bucket')}, "
        f"{found}"
    )
    print_result(call, answer, engine, done)

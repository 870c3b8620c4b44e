"""Owns the commands of jobs that only look: audit, lateness; and how a job's engine is chosen."""

from __future__ import annotations

from typing import Annotated

from txlog.cli.call.call import Call
from txlog.cli.call.progress import Words
from txlog.cli.commands.jobbing import Conf, Master, engine_of, job_of, print_listed
from txlog.cli.line.command import command
from txlog.cli.line.declared import Argument, Option
from txlog.cli.terminal.tables import counted, duration

Looking = Annotated[str, Option("--engine", metavar="duckdb|spark", help="what computes")]
Topic = Annotated[str, Argument(metavar="TOPIC", show_default=False)]


@command(
    "job audit",
    examples=("txlog job audit", "txlog job audit orders --json"),
    fields="job engine failed check_list elapsed_ms",
)
def audit(
    call: Call,
    topics: Annotated[list[str] | None, Argument(metavar="TOPIC", show_default=False)] = None,
    engine: Looking = "duckdb",
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Compare the stored rows of topics, of all when none is named, with what the store goes by.

    Nothing of the program decides what is found: the engine reads every file and works out anew
    which messages are committed. It ends with 6 when a check fails.
    """
    client = call.client()
    with engine_of(call, engine, master, conf) as chosen, Words(call) as told:
        answer = job_of("audit")(client, topics or [], chosen, told)
    print_listed(call, answer, "check_list", "name topic partition expected found ok", engine)
    checks, failed = len(answer["check_list"]), answer["failed"]
    call.summary(
        f"{counted(checks, 'check')}, {f'{failed} failed' if failed else 'all well'} "
        f"({engine}, {duration(call.elapsed_ms())})"
    )
    if failed:
        call.exit = 6


@command(
    "job lateness",
    examples=("txlog job lateness orders", "txlog job lateness orders --by 1h --json"),
    fields="job engine topic messages row_list delay_list elapsed_ms",
)
def lateness(
    call: Call,
    topic: Topic,
    by: Annotated[str, Option("--by", metavar="DUR", help="a row for so much time")] = "1m",
    engine: Looking = "duckdb",
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Show how long after their event messages were published, by time of publication.

    Late are messages below the greatest event time before them in their partition; the JSON also
    has how many a watermark would find late that trails that time by a second, a minute, an hour.
    """
    by_ms = call.duration(by)
    assert by_ms is not None
    client = call.client()
    with engine_of(call, engine, master, conf) as chosen, Words(call) as told:
        told(f"{topic}: reading")
        answer = job_of("lateness")(client, topic, by_ms, chosen)
    shown = "from_time messages late p50_ms p90_ms p99_ms max_ms"
    print_listed(call, answer, "row_list", shown, engine)
    late = ", ".join(
        f"{row['late']:,} with {duration(row['delay_ms'])}"
        for row in answer["delay_list"] if row["late"]
    )  # fmt: skip
    call.summary(
        f"{counted(answer['messages'], 'message')} with an event time; late by the delay of a "
        f"watermark: {late or 'none'} ({engine}, {duration(call.elapsed_ms())})"
    )

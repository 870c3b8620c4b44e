"""Owns the commands of jobs: jobs that read, jobs that write, jobs of upkeep."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

from txlog.base.ranges import Range, parse_range
from txlog.cli.call.call import Call
from txlog.cli.call.progress import Words
from txlog.cli.line.command import Argument, Duration, Option, command
from txlog.cli.terminal.tables import counted, duration, size
from txlog.errors import Usage

Master = Annotated[str | None, Option("--master", metavar="URL", help="Spark's; default local[*]")]
Conf = Annotated[
    list[str] | None, Option("--conf", metavar="K=V", help="a property of Spark; may be repeated")
]


# --- shared ----------------------------------------------------------------------------------


@contextmanager
def engine_of(call: Call, word: str, master: str | None, conf: list[str] | None) -> Iterator[Any]:
    """The engine that the flags select; leaving the context closes it.

    raises: Usage (201); MissingExtra (107) without pyspark or Java
    """
    call.check_choice("--engine", word, ("duckdb", "spark"))
    properties = _pairs(conf or [])
    if word == "duckdb":
        if master is not None or properties:
            raise Usage("--master and --conf go with --engine spark")
        yield importlib.import_module("txlog.lake.jobs.local").Local()
        return
    engine = importlib.import_module("txlog.spark").Spark(master, properties)
    try:
        yield engine
    finally:
        engine.close()


def job_of(module: str, name: str) -> Callable[..., dict[str, Any]]:
    """The function of a job; its module is imported only when it runs."""
    function: Callable[..., dict[str, Any]] = getattr(importlib.import_module(module), name)
    return function


def print_result(call: Call, answer: Mapping[str, Any], engine: str, done: str) -> None:
    """Print a summary of the job; with --json print the answer."""
    took = call.elapsed_ms()
    call.summary(f"{done} ({engine}, {duration(took)})")
    name = call.command.path.removeprefix("job ")
    call.output.result({**answer, "job": name, "engine": engine, "elapsed_ms": took})


def print_listed(call: Call, answer: Mapping[str, Any], name: str, row: str, engine: str) -> None:
    """Print an answer as one object; without --json print only its list, as a table."""
    command = call.command.path.removeprefix("job ")
    if call.output.as_json or call.flags.columns is not None:
        more = {"job": command, "engine": engine, "elapsed_ms": call.elapsed_ms()}
        call.output.single({**answer, **more})
        return
    call.output.print_instead(row)
    call.output.rows(answer[name])


def _pairs(words: list[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise Usage(f'--conf is K=V, not "{word[:40]}"')
        pairs[name] = value
    return pairs


# --- jobs that read --------------------------------------------------------------------------

Looking = Annotated[str, Option("--engine", metavar="duckdb|spark", help="the engine")]
Topic = Annotated[str, Argument(metavar="TOPIC", show_default=False)]


@command(
    "job audit",
    "check stored rows against the store's own records",
    examples=("txlog job audit", "txlog job audit orders --json"),
    rows="jobs.AuditRun",
)
def audit(
    call: Call,
    topics: Annotated[list[str] | None, Argument(metavar="TOPIC", show_default=False)] = None,
    engine: Looking = "duckdb",
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Check the stored rows of the topics, or of all topics, against the store's own records.

    The engine runs no code of txlog: it reads every file and determines independently which
    messages are committed. The command ends with 6 when a check fails.
    """
    client = call.client()
    with engine_of(call, engine, master, conf) as chosen, Words(call) as tell:
        answer = job_of("txlog.lake.jobs.audit", "audit")(client, topics or [], chosen, tell)
    print_listed(call, answer, "check_list", "jobs.AuditCheck", engine)
    checks, failed = len(answer["check_list"]), answer["failed"]
    call.summary(
        f"{counted(checks, 'check')}, {f'{failed} failed' if failed else 'all well'} "
        f"({engine}, {duration(call.elapsed_ms())})"
    )
    if failed:
        call.exit = 6


@command(
    "job lateness",
    "how late messages arrive",
    examples=("txlog job lateness orders", "txlog job lateness orders --by 1h --json"),
    rows="jobs.LatenessRun",
)
def lateness(
    call: Call,
    topic: Topic,
    by_ms: Annotated[int, Duration("--by", help="the span of time of a row", default="1m")],
    engine: Looking = "duckdb",
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Show how long after their event times messages were published, by publish time.
    A message is late if its event time is below the greatest one before it in its partition. The
    JSON also has counts of late messages for watermarks that lag by a second, a minute, an hour.
    """
    client = call.client()
    with engine_of(call, engine, master, conf) as chosen, Words(call) as tell:
        tell(f"{topic}: reading")
        answer = job_of("txlog.lake.jobs.lateness", "lateness")(client, topic, by_ms, chosen)
    print_listed(call, answer, "row_list", "jobs.LatenessSpan", engine)
    late = ", ".join(
        f"{row['late']:,} with {duration(row['delay_ms'])}"
        for row in answer["delay_list"]
        if row["late"]
    )
    call.summary(
        f"{counted(answer['messages'], 'message')} with an event time; late by the lag of a "
        f"watermark: {late or 'none'} ({engine}, {duration(call.elapsed_ms())})"
    )


# --- jobs that write -------------------------------------------------------------------------

Changing = Annotated[str, Option("--engine", metavar="duckdb|spark", help="the engine")]
Key = Annotated[
    str, Option("--transaction-key", "--key", metavar="KEY", help="key of the batch; required")
]


@command(
    "job bulk-load",
    "store files as messages of a topic, once",
    examples=(
        "txlog job bulk-load orders.csv orders --transaction-key import --key-column id",
        "txlog job bulk-load data/ orders --transaction-key import --engine duckdb --dry-run",
    ),
    rows="jobs.BulkLoadRun",
    changes=True,
    dry_run=True,
)
def bulk_load(
    call: Call,
    source: Annotated[str, Argument(metavar="SRC", show_default=False)],
    topic: Topic,
    key: Key,
    form: Annotated[
        str | None, Option("--in", metavar="parquet|csv|ndjson", help="default: by the suffixes")
    ] = None,
    key_column: Annotated[
        str | None, Option("--key-column", metavar="C", help="default: the column key")
    ] = None,
    value_columns: Annotated[
        str | None,
        Option(
            "--value-columns",
            "--value-column",
            metavar="C,…",
            help="one unchanged, several as a JSON object; default: value, or the row as JSON",
        ),
    ] = None,
    event_time_column: Annotated[
        str | None, Option("--event-time-column", metavar="C", help="default: event_time")
    ] = None,
    engine: Changing = "spark",
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Store the rows of a file, or of all files below a directory, as messages: all or none.

    The same key with the same bytes again changes nothing and gives the first answer. With ndjson
    the value of a message is the line. An integer event time is in milliseconds.
    """
    reading = importlib.import_module("txlog.lake.jobs.sources.loads")
    columns = reading.columns_of(key_column, value_columns, event_time_column)
    files = reading.files_of([source], form, columns)
    client = call.client(write=True)
    with engine_of(call, engine, master, conf) as chosen, Words(call) as tell:
        answer = job_of("txlog.lake.jobs.import_files", "bulk_load")(
            client, files, topic, key, chosen, dry_run=call.dry_run, tell=tell
        )
    if answer["already"]:
        done = f"{source} is in {topic} already"
    else:
        done = f"loaded {counted(answer['messages'], 'message')} into {topic}"
    print_result(call, answer, engine, done)


@command(
    "job replay",
    "store a range in another topic, once",
    examples=(
        "txlog job replay orders again -o @-1h.. --transaction-key fix-42",
        "txlog job replay orders again --transaction-key fix-42 --transform fix.py:repair "
        "--engine duckdb",
    ),
    rows="jobs.ReplayRun",
    changes=True,
    dry_run=True,
)
def replay(
    call: Call,
    topic: Topic,
    dest: Annotated[str, Argument(metavar="DEST", show_default=False)],
    key: Key,
    range_: Annotated[
        str | None, Option("--offset", "-o", metavar="RANGE", help="default: all of it")
    ] = None,
    transform: Annotated[
        str | None,
        Option("--transform", metavar="MODULE:FUNCTION", help="function that changes the messages"),
    ] = None,
    engine: Changing = "spark",
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Store the committed messages of a range in another topic: all or none, once.

    The same key, range and function again change nothing. The function takes and returns columns
    key, value, properties, event_time, deliver_at: a pyarrow.Table with duckdb, a DataFrame with
    spark. The property replay_of of each message names its source.
    """
    text = range_ or ""
    message_range = Range() if range_ is None else parse_range(range_, call.now_ms())
    if message_range.kind != "range":
        raise Usage("a replay needs a range: -o takes neither unacked nor txn here")
    function = None
    if transform is not None:
        function = (transform, importlib.import_module("txlog.functions").load(transform))
    client = call.client(write=True)
    with engine_of(call, engine, master, conf) as chosen, Words(call) as tell:
        answer = job_of("txlog.lake.jobs.replay", "replay")(
            client,
            topic,
            dest,
            (text, message_range),
            key,
            chosen,
            function=function,
            dry_run=call.dry_run,
            tell=tell,
        )
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


# --- jobs of upkeep --------------------------------------------------------------------------

Upkeep = Annotated[
    str, Option("--engine", metavar="duckdb|spark", help="engine that reads; duckdb: this process")
]


@command(
    "job compact",
    "rewrite sidecars of a topic in commit order",
    examples=("txlog job compact orders", "txlog job compact orders --engine duckdb --dry-run"),
    rows="jobs.CompactRun",
    changes=True,
    dry_run=True,
)
def compact(
    call: Call, topic: Topic, engine: Upkeep = "spark", master: Master = None, conf: Conf = None
) -> None:
    """Rewrite the sidecars of a topic in commit order, without dead rows; Spark reads and sorts.

    Every row is checked against the sidecar's own records before the new file takes its place.
    """
    client = call.client(write=not call.dry_run)
    with engine_of(call, engine, master, conf) as chosen, Words(call) as tell:
        answer = job_of("txlog.lake.jobs.upkeep", "compact")(
            client, topic, chosen, dry_run=call.dry_run, tell=tell
        )
    old_bytes, new_bytes = int(answer["size_before_bytes"]), int(answer["size_after_bytes"])
    done = (
        f"{answer['topic']}: {counted(answer['messages'], 'message')} of "
        f"{counted(answer['transactions'], 'transaction')} kept, "
        f"{answer['aborted_dropped']:,} dropped, {size(old_bytes)} before, {size(new_bytes)} after"
    )
    print_result(call, answer, engine, done)


@command(
    "job rebuild-delayed",
    "rebuild the delayed index from the log",
    examples=(
        "txlog job rebuild-delayed orders",
        "txlog job rebuild-delayed orders --engine duckdb --dry-run",
    ),
    rows="jobs.RebuildRun",
    changes=True,
    dry_run=True,
)
def rebuild_delayed(
    call: Call, topic: Topic, engine: Upkeep = "spark", master: Master = None, conf: Conf = None
) -> None:
    """Rebuild the sealed buckets of the delayed index; Spark finds the messages with a time."""
    client = call.client(write=True)
    with engine_of(call, engine, master, conf) as chosen, Words(call) as tell:
        answer = job_of("txlog.lake.jobs.upkeep", "rebuild_delayed")(
            client, topic, chosen, dry_run=call.dry_run, tell=tell
        )
    differed = answer["missing"] + answer["surplus"]
    differences = (
        f"{answer['missing']:,} missing, {answer['surplus']:,} surplus"
        if differed
        else ("nothing differed")
    )
    done = (
        f"{answer['topic']}: {answer['indexed']:,} in {counted(answer['buckets'], 'bucket')}, "
        f"{differences}"
    )
    print_result(call, answer, engine, done)

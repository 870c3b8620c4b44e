"""Owns the commands `import` and `export`: messages from files and into files."""

from __future__ import annotations

import importlib
import io
import os
import re
from typing import TYPE_CHECKING, Annotated

from txlog.base.ids import TopicName
from txlog.base.ranges import parse_range, parse_size
from txlog.base.text import formats
from txlog.cli.call.call import Call
from txlog.cli.call.progress import Words
from txlog.cli.consume.request import Condition
from txlog.cli.line.command import Argument, Option, command, exclusive
from txlog.cli.output.output import EXPORT_FORMS, stdout_is_terminal
from txlog.cli.terminal.tables import counted, duration, size
from txlog.errors import Usage

if TYPE_CHECKING:
    from txlog.base.rows.jobs import Exported

_BINARY = ("parquet", "arrow")
_TABLES = ("delta", "iceberg", "hive")
Topic = Annotated[str, Argument(metavar="TOPIC", show_default=False)]


class _Sink(io.RawIOBase):
    """Standard output as a file."""

    def __init__(self, call: Call) -> None:
        self._out = call.output.out

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]  # what has a buffer
        self._out.write(view)
        return view.nbytes


@command(
    "export",
    "write messages to files, each once",
    examples=(
        "txlog export orders orders.csv.gz --where \"text(key) = 'ana'\"",
        "txlog export orders - --to ndjson -o @-1h.. | txlog produce again --in envelope",
        "txlog export orders /data/days --to csv --partition-by publish_date --resume",
        "txlog export orders /data/lake --to hive   # again: adds newer messages",
    ),
    rows="jobs.ExportRun",
    changes=True,
)
def export(
    call: Call,
    topic: Topic,
    path: Annotated[
        str | None,
        Argument(metavar="PATH|-", show_default=False, help="a file, a directory, or stdout"),
    ] = None,
    to: Annotated[
        str | None,
        Option(
            "--to",
            metavar="parquet|arrow|csv|tsv|ndjson|delta|iceberg|hive",
            help="the form to write; else by the suffix of PATH, or parquet",
        ),
    ] = None,
    range_: Annotated[
        str | None, Option("--offset", "-o", metavar="RANGE", help="default: all of it")
    ] = None,
    where: Condition = None,
    partition_by: Annotated[
        str | None,
        Option(
            "--partition-by",
            metavar="C,…",
            help="directories by partition, key, producer, publish_date, event_date",
        ),
    ] = None,
    resume: Annotated[
        bool, Option("--resume", help="a directory: begin an export, or finish one that was killed")
    ] = False,
    append: Annotated[
        bool, Option("--append", help="a directory: finish an export, and add newer messages")
    ] = False,
    force: Annotated[bool, Option("--force", help="replace the file or old export")] = False,
) -> None:
    """Write the committed messages of a topic to a file (TOPIC.parquet), or into a directory.

    In csv and tsv each field of a record is a column of its own; Parquet, Arrow, ndjson and tables
    keep the struct `record`. A file appears when it is complete. Its suffix chooses the form:
    .parquet .arrow .feather .csv .tsv .ndjson .jsonl .json, the texts also with .gz or .zst. A
    directory (one that exists, ends in /, or with --partition-by, --resume, --append) is written
    piece by piece and records its progress: an export that was killed, or is repeated, gives each
    message once. With ndjson each line is an envelope. - is standard output.

    delta, iceberg and hive (directories day=…/ of Parquet) make a table that any engine reads
    correctly; each further run adds newly visible messages, once. -f takes these three, too.
    """
    if path is None and to is not None and "." in to and formats.suffix_form(to) is not None:
        path, to = to, None  # --to is the form, but a name with a suffix can only be the file
    word = call.flags.format if call.flags.format in _TABLES else to
    if word is not None:
        call.check_choice("--to", word, (*EXPORT_FORMS, *_TABLES))
    exclusive(resume=resume, append=append, force=force)
    if word in _TABLES:
        has_other = {range_, where, partition_by} != {None} or resume or append or force
        if path in (None, "-") or has_other or to not in (None, word):
            raise Usage(
                f"--to {word} needs a directory, and none of -o, --where, --partition-by, "
                "--resume, --append, --force"
            )
        assert path is not None
        _mirror(call, topic, path, word)
        return
    message_range = None if range_ is None else parse_range(range_, call.now_ms())
    form = _form(path, word)
    name = TopicName.parse(topic, allow_partition=True).short
    places = [column.strip() for column in (partition_by or "").split(",") if column.strip()]
    grows = bool(resume or append or places)
    target = path if path is not None else name.replace("/", ".") + ("" if grows else f".{form}")
    if target == "-" and (grows or call.output.as_json or force):
        raise Usage("- is one stream: without --partition-by, --resume, --append, --force, --json")
    if target == "-" and form in _BINARY and stdout_is_terminal():
        raise Usage(
            f"{form} is binary, and standard output is a terminal",
            hint="--to csv or --to ndjson writes text; > FILE redirects it",
        )
    _lean()
    exporter = importlib.import_module("txlog.lake.jobs.export_files")
    client = call.client()
    with Words(call, prints=target == "-") as tell:
        if target == "-":
            sink = io.BufferedWriter(_Sink(call), 1 << 16)
            answer = exporter.export_stream(
                client,
                topic,
                sink,
                form=form,
                message_range=message_range,
                where=where,
                tell=tell,
            )
            sink.flush()
        elif grows or target.endswith("/") or os.path.isdir(target):
            answer = exporter.export_directory(
                client,
                topic,
                target,
                form=form,
                message_range=message_range,
                where=where,
                partition_by=places,
                resume=resume,
                append=append,
                force=force,
                tell=tell,
            )
        else:
            answer = exporter.export_file(
                client,
                topic,
                target,
                form=form,
                message_range=message_range,
                where=where,
                force=force,
                tell=tell,
            )
    _print_exported(call, answer, target)


def _form(path: str | None, to: str | None) -> str:
    """The form of an export, by --to and the suffix of a file."""
    if path is None or path == "-" or path.endswith("/") or os.path.isdir(path):
        return to or "parquet"
    form = formats.chosen_form([path], to, "--to")
    if form is None and re.search(r"\.[A-Za-z][A-Za-z0-9]{0,7}$", path):
        formats.check_form(path, None, EXPORT_FORMS, "--to parquet writes Parquet under this name")
    if formats.is_packed(path) and form not in formats.TEXTS:
        raise Usage(f"{path}: {form or 'parquet'} is compressed inside, not as a whole")
    return form or "parquet"


def _lean() -> None:
    """Use jemalloc for Arrow's memory if it is available and the user named no other pool.

    A Parquet writer frees large buffers but keeps small ones between them until the file ends.
    glibc does not reuse that room, and Arrow's own pool returns less of it.
    """
    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
        arrow = importlib.import_module("pyarrow")
        if "jemalloc" in arrow.supported_memory_backends():
            arrow.set_memory_pool(arrow.jemalloc_memory_pool())


def _mirror(call: Call, topic: str, path: str, form: str) -> None:
    mirrors = importlib.import_module("txlog.lake.jobs.mirrors.mirror")
    client = call.client()
    with Words(call) as tell:
        answer = mirrors.mirror(client, topic, path, form, tell=tell)
    _print_exported(call, answer, path)


def _print_exported(call: Call, answer: Exported, target: str) -> None:
    took = call.elapsed_ms()
    if answer["undecided"]:
        call.say(
            importlib.import_module("txlog.lake.sql.where").without_answer(answer["undecided"])
        )
    file_bytes = call.output.out.taken if target == "-" else answer["file_bytes"]
    call.summary(
        f"exported {counted(answer['messages'], 'message')} of {answer['topic']} to {target}"
        f" ({counted(answer['files'], 'file')}, {size(file_bytes)}, {duration(took)})"
    )
    call.output.result({**answer, "elapsed_ms": took})


def _is_first(words: list[str]) -> bool:
    """Whether the topic is before the files: only the last word is a file, by name and on disk."""
    first, last = words[0], words[-1]
    is_file = formats.suffix_form(last) is not None and os.path.isfile(last)
    return is_file and formats.suffix_form(first) is None and not os.path.exists(first)


@command(
    "import",
    "store rows of files as messages, once",
    examples=(
        "txlog import orders.csv orders --create --infer-schema",
        "txlog import part-*.parquet orders --event-time-column at --transaction-key nightly",
        "txlog import /data/orders.ndjson again --in envelope   # output of export",
        "txlog import days/*.csv.gz orders --key-column id --value-columns id,amount --resume",
    ),
    rows="jobs.ImportRun",
    changes=True,
    dry_run=True,
)
def import_(
    call: Call,
    paths: Annotated[
        list[str],
        Argument(
            metavar="FILE… TOPIC",
            show_default=False,
            help="files or directories; the topic last, or first, as in produce",
        ),
    ],
    form: Annotated[
        str | None,
        Option("--in", metavar="parquet|csv|tsv|ndjson|arrow|envelope", help="else by suffix"),
    ] = None,
    key_column: Annotated[
        str | None, Option("--key-column", metavar="C", help="default: the column key")
    ] = None,
    value_columns: Annotated[
        str | None,
        Option(
            "--value-columns",
            metavar="C,…",
            help="one unchanged, several as a JSON object; default: value, or the row as JSON",
        ),
    ] = None,
    event_time_column: Annotated[
        str | None, Option("--event-time-column", metavar="C", help="default: event_time")
    ] = None,
    key: Annotated[
        str | None,
        Option("--transaction-key", "--key", metavar="KEY", help="of the batch; else import-TOPIC"),
    ] = None,
    resume: Annotated[
        bool, Option("--resume", help="store each file separately; skip files already stored")
    ] = False,
    create: Annotated[bool, Option("--create", help="make the topic, with one partition")] = False,
    infer_schema: Annotated[
        bool, Option("--infer-schema", help="rows are records; give the topic their schema")
    ] = False,
    max_decoded: Annotated[
        str, Option("--max-decoded", metavar="SIZE", help="limit for a Parquet row group")
    ] = "1GiB",
) -> None:
    """Store the rows of files, and of all files below directories, as messages: all or none, once.

    The topic and the bytes of the files identify an import. The same files again, also at another
    path, change nothing and give the first answer; with other options they are refused (4). Only a
    new --transaction-key stores them again. Without --resume all files are one import, so one file
    more makes it another. The suffixes are the same as for export, also .csv.gz or .ndjson.zst. An
    integer event time is in milliseconds. - is standard input, with --in.
    """
    *files, topic = paths
    if not files:
        raise Usage("a file and the topic are needed", hint="txlog import FILE… TOPIC")
    if _is_first(paths):
        topic, *files = paths
    reading = importlib.import_module("txlog.lake.jobs.sources.loads")
    columns = reading.columns_of(key_column, value_columns, event_time_column)
    most = parse_size(max_decoded)
    if "-" in files and (form is None or files.count("-") > 1):
        raise Usage("- is standard input: give it once, with its form in --in")
    sources = call.spooled(files)  # an import reads twice, a pipe only once
    source = reading.files_of(sources, form, columns, reading.OF_IMPORT, infer=infer_schema)
    client = call.client(write=True)
    importer = importlib.import_module("txlog.lake.jobs.import_files")
    with Words(call) as tell:
        answer = importer.import_files(
            client,
            source,
            topic,
            key=key,
            resume=resume,
            create=create,
            decoded_bytes_max=most,
            dry_run=call.dry_run,
            tell=tell,
            chosen=lambda schema, told: call.say(f"schema of {topic}: {schema.words}{told}"),
            warn=call.warn,
        )
    took = call.elapsed_ms()
    file_count, done = counted(answer["files"], "file"), counted(answer["messages"], "message")
    if answer["already"]:
        again = "--transaction-key NEW stores them again"
        call.summary(f"{done} of {file_count} are in {answer['topic']} already; {again}")
    else:
        call.summary(f"imported {done} into {answer['topic']} ({file_count}, {duration(took)})")
        is_text = create and not call.dry_run and source.form in ("csv", "tsv")
        if is_text and not client.topic(topic).schemas.list():
            call.summary(f"{topic} has no schema; with --infer-schema a new topic gets one")
    call.output.result({**answer, "elapsed_ms": took})

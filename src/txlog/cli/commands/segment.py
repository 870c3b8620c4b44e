"""Owns the commands about segments: the files that hold the rows of a topic."""

from __future__ import annotations

import importlib
from typing import Annotated

from txlog.base.ranges import parse_range, parse_size
from txlog.cli.call.call import Call
from txlog.cli.line.command import Argument, Option, command


@command(
    "segment list",
    "the files of a topic or of all",
    examples=(
        "txlog segment list orders",
        "txlog segment list orders --small 1MiB --sort size -f wide",
        "txlog segment list orders -p 0 --json",
        "txlog segment list --columns log,rows,size_bytes,file",
    ),
    rows="files.SegmentRow",
    until="last",
)
def list_segments(
    call: Call,
    topic: Annotated[str | None, Argument(metavar="TOPIC", show_default=False)] = None,
    partition: Annotated[int | None, Option("--partition", "-p", metavar="N")] = None,
    small: Annotated[
        str | None, Option("--small", metavar="SIZE", help="only smaller files")
    ] = None,
    sort: Annotated[str, Option("--sort", metavar="ledger|rows|size", help="the order")] = "ledger",
) -> None:
    """List the files of a topic or of all, and the rows that are only in journal frames.

    Files with a log hold changes: of a cursor of the topic; without TOPIC also changes of
    transaction_key_log, cursor_log and catalog_log outside any topic. A trimmed ledger is listed
    while its file exists, as readers may still use it.
    """
    call.check_choice("--sort", sort, ("ledger", "rows", "size"))
    api = importlib.import_module("txlog.lake.sql.segments")
    call.output.rows(
        api.listed(
            call.relations(),
            topic,
            partition,
            small_bytes=None if small is None else parse_size(small),
            sort=sort,
        )
    )


@command(
    "segment show",
    "a ledger or file, its columns and row groups",
    examples=("txlog segment show 1", "txlog segment show some.parquet --json"),
    rows="files.SegmentDescription",
    until="last",
)
def show(
    call: Call,
    source: Annotated[
        str,
        Argument(
            metavar="LEDGER|FILE", show_default=False, help="a ledger, or a path in the store"
        ),
    ],
) -> None:
    """Show a ledger or a file, also one of changes: its columns, row groups, codecs and sizes."""
    api = importlib.import_module("txlog.lake.sql.segments")
    call.output.single(api.shown(call.relations(), source))


@command(
    "segment cat",
    "print stored rows unchanged",
    examples=("txlog segment cat 1", "txlog segment cat 1 -o -10 -f tsv --columns entry,value"),
    rows="files.StoredRow",
)
def cat(
    call: Call,
    source: Annotated[
        str,
        Argument(
            metavar="LEDGER|FILE", show_default=False, help="a ledger, or a path in the store"
        ),
    ],
    row_group: Annotated[
        int | None, Option("--row-group", metavar="N", help="only this row group, from 0")
    ] = None,
    row_range: Annotated[
        str | None, Option("--range", "-o", metavar="RANGE", help="entries: +N, -N, L:E..L:E")
    ] = None,
) -> None:
    """Print stored rows unchanged, markers too: off a terminal, one JSON object a line."""
    if call.output.form == "tsv" and call.flags.format is None:
        call.output.form = "ndjson"
    api = importlib.import_module("txlog.lake.sql.segments")
    entries = None if row_range is None else parse_range(row_range, call.now_ms())
    schema, batches = api.stored(call.relations(), source, row_group, entries)
    shapes = importlib.import_module("txlog.cli.output.query_rows")
    if call.flags.columns is not None:
        names = [name for name in call.output.fields if schema.get_field_index(name) >= 0]
        batches = (batch.select(names) for batch in batches)
        schema = importlib.import_module("pyarrow").schema([schema.field(n) for n in names])
    shapes.Printed(call.output).print((schema, batches))

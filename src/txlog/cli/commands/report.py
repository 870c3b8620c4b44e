"""Owns the command `report`: a page of HTML about the store."""

from __future__ import annotations

import importlib
import os
from typing import Annotated

from txlog.cli.call.call import Call
from txlog.cli.call.progress import Words
from txlog.cli.line.command import Argument, Duration, Option, Time, command, exclusive
from txlog.cli.terminal.tables import counted
from txlog.engine.door.disk import replacing
from txlog.errors import AlreadyExists, InvalidArgument, TxlogError

_FILE = "txlog-report.html"


@command(
    "report",
    "an HTML page with charts of the store",
    examples=(
        "txlog report",
        "txlog report --out shop.html --force   # from cron",
        "txlog report --since -7d --by 1h today.html",
        "txlog report - | gzip > shop.html.gz",
    ),
    rows="store.ReportWritten",
    changes=True,
    times=True,
)
def report(
    call: Call,
    path: Annotated[str | None, Argument(metavar="PATH", show_default=False)] = None,
    out: Annotated[str | None, Option("--out", metavar="PATH", help="same as PATH")] = None,
    since_ms: Annotated[
        int | None, Time("--since", help="only messages visible since then")
    ] = None,
    by_ms: Annotated[int | None, Duration("--by", help="span of a column, above a second")] = None,
    force: Annotated[bool, Option("--force", help="replace the file")] = False,
) -> None:
    """Write one HTML file about the store: charts that need no network and no script.

    PATH is ./txlog-report.html, or - for stdout. The file shows messages by hour (or another span),
    transactions by state and duration, backlogs, delayed messages, watermarks, segments, problems.
    If the store is too damaged to be read, the file lists the problems, and the exit code is 6.
    """
    exclusive(PATH=path, out=out)
    path_given = path if path is not None else out
    where = _FILE if path_given is None else path_given
    is_text = where == "-"
    exclusive(json=call.output.as_json, **{"PATH -": is_text})
    if not where or "\0" in where:
        raise InvalidArgument("the path of the report is empty or no path")
    if not is_text and os.path.lexists(where) and not force:
        raise AlreadyExists(f"{where} exists", hint="--force replaces it", path=where)
    work = importlib.import_module("txlog.page.figures")
    pages = importlib.import_module("txlog.page.report")
    with Words(call, "report: reading the store"):
        try:
            figures = work.figures(call.client(), since_ms, by_ms)
            data: bytes = pages.page(figures).encode()
        except TxlogError as error:
            if error.exit != 6:
                raise
            call.exit = 6
            figures = work.figures_of_damaged(call.store_path(), error, call.clock)
            data = pages.page_of_damaged(figures).encode()
    if is_text:
        call.output.text(data.decode())
        return
    with replacing(where, only_new=not force) as file:
        file.write(data)
    topics = messages = None
    problems = len(figures["problem_list"]) + len(figures["hanging_list"])
    trouble = counted(problems, "problem") if problems else "no problem"
    if call.exit:
        call.summary(f"wrote {where}: the store cannot be read, {trouble}")
    else:
        topics = len(figures["topic_list"])
        messages = sum(row["messages"] for row in figures["topic_list"])
        call.summary(
            f"wrote {where}: {counted(topics, 'topic')}, {counted(messages, 'message')}, {trouble}"
        )
    call.output.result(
        {
            "path": where,
            "topics": topics,
            "messages": messages,
            "problems": problems,
            "size_bytes": len(data),
        }
    )

"""Owns the command `bench`: the speed of a store on the disk that would hold it."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping
from typing import Annotated, Any

from txlog.base.ranges import parse_size
from txlog.cli.call.call import Call
from txlog.cli.call.progress import Words
from txlog.cli.line.command import Duration, Option, command
from txlog.cli.terminal.tables import duration
from txlog.errors import InvalidArgument, NotFound, StoreNotFound

_MODES = ("produce", "consume", "txn", "mixed")


@command(
    "bench",
    "measure a store on this disk",
    examples=(
        "txlog bench",
        "txlog bench --mode produce --duration 3s --size 1KiB",
        "txlog bench --json > before.json   # and later: txlog bench --compare before.json",
    ),
    rows="jobs.MeasuredAgain",
    until="size_bytes",
    loses="nothing",
)
def bench(
    call: Call,
    mode: Annotated[
        str, Option("--mode", metavar="produce|consume|txn|mixed", help="the kind of operation")
    ] = "mixed",
    size: Annotated[str, Option("--size", metavar="SIZE", help="of a message")] = "100",
    *,
    duration_ms: Annotated[int, Duration("--duration", help="length of the run", default="10s")],
    txn_size: Annotated[
        int, Option("--txn-size", metavar="N", help="messages of a batch or transaction")
    ] = 100,
    compare: Annotated[
        str | None,
        Option("--compare", metavar="FILE", help="with the --json output of an earlier run"),
    ] = None,
) -> None:
    """Measure how many operations a store does per second, and how long each takes.

    produce: one durable message. consume: a batch received and acknowledged. txn: a batch sent in
    a transaction. mixed: a transaction that receives and sends. It measures a temporary store next
    to the named store, or in the working directory, and deletes it afterwards.
    """
    call.check_choice("--mode", mode, _MODES)
    if not duration_ms:
        raise InvalidArgument("--duration needs a time above 0", code=203)
    rate_before = None if compare is None else _before(compare, mode)
    try:
        folder = os.path.dirname(os.path.abspath(call.store_path()))
    except StoreNotFound:
        folder = os.getcwd()
    if not os.path.isdir(folder):
        raise NotFound(f"there is no directory {folder}", path=folder)
    work = importlib.import_module("txlog.cli.benchmark")
    with Words(call) as tell:
        tell(f"{mode}, {duration(duration_ms)}")
        row = work.bench(
            folder,
            mode,
            message_bytes=parse_size(size),
            duration_ms=duration_ms,
            txn_size=txn_size,
            durability=call.durability() or "sync",
        )
    if rate_before:
        row = {
            **row,
            "before_per_second": rate_before,
            "ratio": round(row["per_second"] / rate_before, 3),
        }
        if call.flags.columns is None:
            call.output.shown = [*call.command.table_fields, "before_per_second", "ratio"]
    call.output.rows([row])


def _before(path: str, mode: str) -> float:
    """Operations per second in the earlier run. Raises NotFound, InvalidArgument."""
    try:
        with open(path, encoding="utf-8") as file:
            rows = json.load(file)
    except FileNotFoundError as error:
        raise NotFound(f"there is no {path}", path=path) from error
    except (ValueError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} is not output of bench --json", path=path) from error
    for row in rows if isinstance(rows, list) else [rows]:
        if isinstance(row, Mapping) and row.get("mode") == mode:
            rate: Any = row.get("per_second")
            if isinstance(rate, int | float) and rate > 0:
                return float(rate)
    raise InvalidArgument(f"{path} has no figure of mode {mode}", path=path)

"""The main job of txlog: real invoices through exactly-once transactions, with workers killed.

The demo keeps its store and topics, so that you can look at them.

Contents:

    check        DuckDB's comparison of the topics with the file
    pipeline     the two stages, run by a worker
    small        the small store of `txlog demo --small`: a few messages of every kind
    source       the Parquet file, and its lines as messages
    supervisor   starts workers, kills them, and restarts them
    tour         the guided walk of `txlog demo --tour`
    worker       the process that runs a stage
"""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

import txlog
from txlog.cli.demo import pipeline, source
from txlog.cli.demo.check import Check, check_store, compared
from txlog.cli.demo.supervisor import Progress, Stage, deaths, run_stage
from txlog.clock import SystemClock
from txlog.errors import InvalidArgument

__all__ = ["Result", "run"]

# A batch of stage 2 is a 256th of the lines, so that even a short run has many batches.
_BATCHES = 256
_BATCH_LINES_MIN = 16
_BATCH_LINES_MAX = 4000
_KILLS_MAX = 1000
_SEED_MAX = 1 << 32


class Result(TypedDict):
    """The result of the demo: its counts, and whether the proof found no difference."""

    path: str
    lines: int
    invoices: int
    refunds: int
    quantity: int
    value: str
    kills: int
    transactions: int
    lost: int
    doubled: int
    exact: bool
    elapsed_ms: int
    seed: int
    check_list: list[Check]


def run(
    path: str,
    *,
    kills: int = 5,
    seed: int | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> Result:
    """Load the invoices, total them, kill the workers meanwhile, and prove the result.

    path:     a directory that is missing or empty; it becomes the store
    kills:    number of workers of each stage to kill
    seed:     decides when; the same seed gives the same moments
    limit:    use only this many invoices, in file order
    progress: called with stage, invoices done, total invoices, kills so far in the stage
    """
    if limit is not None and limit < 1:
        raise InvalidArgument(f"limit is {limit}, it must be at least 1")
    if not 0 <= kills <= _KILLS_MAX:
        raise InvalidArgument(f"kills is {kills}, it must be from 0 to {_KILLS_MAX}")
    clock = SystemClock()
    began = clock.now()
    chosen_seed = began.wall_ms % _SEED_MAX if seed is None else seed
    store = str(Path(path).absolute())
    file = source.locate()
    txlog.init(store)
    with txlog.open(store) as client:
        pipeline.create(client)
    with source.open_source(file, limit) as session:
        lines, invoices = source.size(session)
        batch = min(max(lines // _BATCHES, _BATCH_LINES_MIN), _BATCH_LINES_MAX)
        options = ["--store", store, "--source", file, "--batch", str(batch)]
        if limit is not None:
            options += ["--limit", str(limit)]
        killed = 0
        for name in pipeline.STAGES:
            stage = Stage(name, invoices, tuple(options))
            killed += run_stage(stage, deaths(invoices, kills, chosen_seed, name), progress)
        with txlog.open(store) as client:
            checks, sums = check_store(client, session)
    by_name = {check["name"]: check for check in checks}
    invoices_found, totals_found = by_name["different invoices"], by_name["invoices and refunds"]
    checks.append(compared("workers killed", kills * len(pipeline.STAGES), killed))
    return Result(
        path=path,
        lines=_number(sums["lines"]),
        invoices=_number(sums["invoices"]),
        refunds=_number(sums["refunds"]),
        quantity=_number(sums["quantity"]),
        value=str(sums["value"] or 0),  # null, too, over no rows
        kills=killed,
        transactions=_number(sums["transactions"]),
        lost=_number(invoices_found["expected"]) - _number(invoices_found["found"]),
        doubled=_number(totals_found["found"]) - _number(invoices_found["found"]),
        exact=all(check["ok"] for check in checks),
        elapsed_ms=clock.now().boot_ms - began.boot_ms,
        seed=chosen_seed,
        check_list=checks,
    )


def _number(value: object) -> int:
    assert value is None or isinstance(value, int), "the sums of the check are whole numbers"
    return value or 0  # a sum over no rows is null

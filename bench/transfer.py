"""Owns the measurement of export and import: beside DuckDB that copies the same rows.

    python -m bench.transfer [--messages 1000000] [--tries 3]

The store is that of bench.query. An export is read in order, checked, resolved and flushed; its
peer is DuckDB's COPY of the store's sealed files, read raw, to the same form. An import is staged,
read back and committed; its peer is COPY of the exported file to another one. Both in one process,
in turns; medians in seconds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import duckdb

import txlog
from bench.query import fill
from txlog.lake.jobs.export_files import export_directory, export_file
from txlog.lake.jobs.import_files import import_files
from txlog.lake.jobs.sources.loads import OF_IMPORT, Columns, files_of

_COPY = {
    "parquet": "FORMAT parquet, COMPRESSION zstd",
    "csv": "FORMAT csv",
    "ndjson": "FORMAT json",
}


def median_s(tries: int, *runs: Callable[[int], object]) -> list[float]:
    """Each in turn; the median of its times."""
    took: list[list[float]] = [[] for _ in runs]
    for number in range(tries):
        for times, run in zip(took, runs, strict=True):
            began = time.perf_counter()
            run(number)
            times.append(time.perf_counter() - began)
    return [statistics.median(times) for times in took]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--tries", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="txlog-bench-") as folder:
        store, out = f"{folder}/store", Path(folder, "out")
        out.mkdir()
        fill(store, args.messages)
        raw = f"read_parquet('{store}/topics/**/*.parquet', union_by_name = true)"
        print(f"{'':24}{'txlog s':>9}{'duckdb s':>10}{'ratio':>7}")
        with txlog.open(store) as client:
            for form, options in _COPY.items():

                def ours(number: int, form: str = form) -> object:
                    return export_file(client, "t", f"{out}/t.{form}", form=form, force=True)

                def theirs(number: int, form: str = form, options: str = options) -> object:
                    columns = "* REPLACE (decode(key) AS key, decode(value) AS value)"
                    what = "*" if form == "parquet" else columns
                    return duckdb.sql(
                        f"COPY (SELECT {what} FROM {raw} WHERE kind = 0) TO '{out}/raw.{form}'"
                        f" ({options})"
                    )

                show(f"export {form}", *median_s(args.tries, ours, theirs))

            def pieces(number: int) -> object:
                return export_directory(client, "t", f"{out}/d{number}", piece_messages=100_000)

            show("export pieces of 100,000", *median_s(args.tries, pieces))

            def load(number: int) -> object:
                source = files_of([f"{out}/t.parquet"], None, Columns(), OF_IMPORT)
                return import_files(client, source, "again", key=f"k{number}", create=True)

            def copy(number: int) -> object:
                return duckdb.sql(
                    f"COPY (FROM '{out}/t.parquet') TO '{out}/copy.parquet' ({_COPY['parquet']})"
                )

            show("import parquet", *median_s(args.tries, load, copy))


def show(name: str, ours: float, theirs: float | None = None) -> None:
    """Print a row."""
    beside = "" if theirs is None else f"{theirs:10.2f}{ours / theirs:7.2f}"
    print(f"{name:24}{ours:9.2f}{beside}", flush=True)


if __name__ == "__main__":
    main()

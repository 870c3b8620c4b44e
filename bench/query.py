"""Owns the measurement of SQL: the view of committed messages against the same files read raw.

    python -m bench.query [--messages 2000000] [--tries 7] [--results]

A store with transactions of 1,000 messages of 100 bytes, a fifth plain, all sealed and clean. All
run the same DuckDB over the same files in one process, in turns; medians in ms, of the clock and of
the processor, which neighbours disturb less, and medians of the ratios of each turn. `floor` is
what a rule costs whoever applies it: written by hand, the files that hold messages alone, and those
that markers stand in with `kind = 0`. The check of the files' checksums is measured apart, and so
is `txlog query` as a process of its own. With --results also into bench/RESULTS.md.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import duckdb
import pyarrow as pa

import txlog
from bench.results import put
from txlog.engine.relation import files
from txlog.lake.sql.client_query import Query

TXN_MESSAGES = 1000
KEYS = 1000
QUERIES = {
    "payload": "SELECT sum(octet_length(value)) AS x, max(hash(value)) AS y FROM {of}",
    "group by key": "SELECT key, count(*) AS n FROM {of} GROUP BY key",
    "count": "SELECT count(*) AS n FROM {of}",
    "1 % of time": "SELECT count(value) AS n FROM {of} WHERE lsn < {lsn}",
}


def fill(path: str, messages: int) -> None:
    """Make the store."""
    rng = random.Random(7)
    txlog.init(path, durability="os", ledger_entries_max=25_000, free_bytes_min=0)
    with txlog.open(path) as client:
        client.create_topic("t", 4)
        producer = client.producer("t")
        for number in range(messages // TXN_MESSAGES):
            rows = pa.table(
                {
                    "key": [b"%d" % rng.randrange(KEYS) for _ in range(TXN_MESSAGES)],
                    "value": [rng.randbytes(50).hex().encode() for _ in range(TXN_MESSAGES)],
                }
            )
            if number % 5:
                with client.transaction() as txn:
                    producer.send_batch(rows, txn=txn)
            else:
                producer.send_batch(rows)
        client.checkpoint(roll_all=True)


def times_ms(tries: int, *runs: Callable[[], object]) -> list[list[tuple[float, float]]]:
    """Of several runs, taken in turns, what each took: by the clock, and of the processor."""
    times: list[list[tuple[float, float]]] = [[] for _ in runs]
    for turn in range(tries + 1):
        for run, found in zip(runs, times, strict=True):
            before, used = time.perf_counter(), processor_seconds()
            run()
            both = ((time.perf_counter() - before) * 1e3, (processor_seconds() - used) * 1e3)
            if turn:  # the first one opens files
                found.append(both)
    return times


def processor_seconds() -> float:
    """Of this process, and of those that it has waited for."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def medians(found: list[tuple[float, float]]) -> tuple[float, float]:
    """By the clock, and of the processor."""
    wall, used = zip(*found, strict=True)
    return statistics.median(wall), statistics.median(used)


def ratio(ours: list[tuple[float, float]], theirs: list[tuple[float, float]], at: int) -> float:
    """The median of the ratios of each turn, by the clock (0) or of the processor (1)."""
    return statistics.median(a[at] / b[at] for a, b in zip(ours, theirs, strict=True))


def compare(client: txlog.Client, tries: int) -> Iterator[str]:
    """The view against the raw files."""
    relation = client._relation("t")
    assert not relation.unclean
    assert not relation.tail.num_rows
    root = client.path
    paths = [str(Path(root, source.ref.path)) for source in relation.direct]
    whole = [str(Path(root, one.ref.path)) for one in relation.direct if one.ref.is_messages_only]
    sifted = [one for one in paths if one not in whole]
    by_hand = (
        f"(FROM read_parquet({whole}) UNION ALL BY NAME FROM read_parquet({sifted}) WHERE kind = 0)"
    )
    lsn = relation.lsn // 100
    yield (
        f"{len(paths)} files, {len(sifted)} of them with markers, "
        f"{sum(map(os.path.getsize, paths)) >> 20} MiB."
    )
    yield ""
    yield "| ms, and of the processor | raw | floor | view | of raw | of floor |"
    yield "|---|---|---|---|---|---|"
    raw = duckdb.connect()
    for name, sql in QUERIES.items():
        plain = sql.format(of=f"read_parquet({paths})", lsn=lsn)
        least = sql.format(of=by_hand, lsn=lsn)
        with Query(client, sql.format(of="t", lsn=lsn)) as query:
            found = times_ms(
                tries,
                lambda q=plain: raw.sql(q).to_arrow_table(),  # type: ignore[misc]
                lambda q=least: raw.sql(q).to_arrow_table(),  # type: ignore[misc]
                lambda q=query: q.rows().read_all(),  # type: ignore[misc]
            )
        shown = [f"{wall:.1f}, {used:.0f}" for wall, used in map(medians, found)]
        shown += [
            f"{ratio(found[2], one, 0):.2f}, {ratio(found[2], one, 1):.2f}" for one in found[:2]
        ]
        yield f"| {name} | {' | '.join(shown)} |"
    raw.close()

    def check() -> None:
        files.forget()
        client._check_files(relation.direct)

    [checking] = map(medians, times_ms(tries, check))
    [opened] = map(
        medians, times_ms(tries, lambda: Query(client, "SELECT count(*) FROM t").close())
    )
    yield ""
    yield (
        f"Checksums of all files {checking[0]:.0f} ms; opening a query whose files were checked "
        f"before {opened[0]:.0f}."
    )


def processes(path: str, tries: int) -> Iterator[str]:
    """What whole processes take."""
    sql = QUERIES["group by key"].format(of="t")
    commands = {
        "python -c pass": ["-c", "pass"],
        "import pyarrow, duckdb": ["-c", "import pyarrow, duckdb"],
        "txlog --version": ["-m", "txlog", "--version"],
        "txlog query, group by key": ["-m", "txlog", "query", "-S", path, sql, "-f", "csv"],
    }
    environ = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    found = times_ms(
        tries,
        *(
            lambda words=words: subprocess.run(  # type: ignore[misc]
                [sys.executable, *words],
                env=environ,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=True,
            )
            for words in commands.values()
        ),
    )
    yield from ("", "| whole process | ms | of the processor |", "|---|---|---|")
    for name, (wall, used) in zip(commands, map(medians, found), strict=True):
        yield f"| {name} | {wall:.0f} | {used:.0f} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--tries", type=int, default=7)
    parser.add_argument("--store", help="one that an earlier run has made, or will make")
    parser.add_argument("--results", action="store_true", help="write into bench/RESULTS.md")
    asked = parser.parse_args()
    load = f"load of the machine before and behind {os.getloadavg()[0]:.1f}"
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        path = asked.store or os.path.join(folder, "store")
        if not os.path.exists(path):
            fill(path, asked.messages)
        with txlog.open(path, read_only=True) as client:
            found = chain(compare(client, asked.tries), processes(path, asked.tries))
            for line in found:
                print(line, flush=True)
                lines.append(line)
    if asked.results:
        said = (
            f"`PYTHONPATH=src python -m bench.query {' '.join(sys.argv[1:])}`; {load}, "
            f"{os.getloadavg()[0]:.1f}; {asked.messages:,} messages of 100 bytes, four fifths "
            "in transactions of 1,000. Asked were 1.2 of raw, 20 ms for the count, and 350 ms "
            "for the process."
        )
        put("## SQL by DuckDB", [said, "", *lines])


if __name__ == "__main__":
    main()

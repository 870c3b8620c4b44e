"""Transactions, bulk, consuming, reading, opening, processes; in turns with SQLite.

    python -m bench throughput             all, some minutes; writes bench/RESULTS.md
    python -m bench throughput --quick     small sizes, two rounds, writes nothing
    python -m bench throughput --only many
    python -m bench throughput --profile W1

Figures are medians over the rounds, and ratios are between medians. A ratio depends less on the
machine than a figure does. Each round has fresh stores and another order of the peers, so a slow
minute of the machine affects all peers.
"""

from __future__ import annotations

import argparse
import cProfile
import datetime
import io
import os
import pstats
import shutil
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa

from bench import results
from bench.throughput import many, peers

HERE = Path(__file__).resolve().parent.parent
WORK = HERE / ".work"
RESULTS = results.RESULTS

TXLOG_IMPORTS = (
    "import time, txlog, txlog.client.client, txlog.engine.store.store; opener = txlog.open"
)
COLD_TXLOG = (
    TXLOG_IMPORTS
    + """
start = time.perf_counter()
with opener({path!r}) as client:
    table = next(iter(client.read("topic-0777", limit=1)))
assert table.num_rows == 1
print(time.perf_counter() - start)
"""
)
COLD_SQLITE = """
import time, sqlite3
start = time.perf_counter()
db = sqlite3.connect({path!r})
row = db.execute("SELECT * FROM messages WHERE partition = 777 ORDER BY entry LIMIT 1").fetchone()
assert row[1] == 0
db.close()
print(time.perf_counter() - start)
"""
IMPORTS = {
    "txlog": TXLOG_IMPORTS + "; print(0)",
    "sqlite": "import time, sqlite3; print(0)",
}


class Plan(NamedTuple):
    """The rounds and sizes of a run."""

    rounds: int
    sizes: dict[str, int]
    cold_topics: int
    cold_messages: int
    process_rounds: int
    many_seconds: float


FULL = Plan(
    5, {"W1": 4_000, "W1t": 4_000, "W2": 40, "W3": 300_000, "W4": 500_000}, 1_000, 1_000_000, 11, 3
)
QUICK = Plan(2, {"W1": 300, "W1t": 320, "W2": 5, "W3": 20_000, "W4": 50_000}, 1_000, 20_000, 3, 0.3)
PREFACE = (
    "`python -m bench throughput` writes the lines up to the first heading, and a scenario with "
    "`--results` its own section. A section whose program is no scenario any more keeps its last "
    "figures; the history of this repository until 2026-11-28 has that program."
)
Figures = dict[str, dict[str, list[float]]]


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@contextmanager
def workplace() -> Iterator[Path]:
    """An empty directory in bench/, removed at the end; SystemExit if it is in memory."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir()
    try:
        if filesystem(WORK) in ("tmpfs", "ramfs"):
            raise SystemExit(f"{WORK} is in memory: nothing is durable there")
        yield WORK
    finally:
        shutil.rmtree(WORK, ignore_errors=True)


def filesystem(path: Path) -> str:
    """The type of the file system a path is on, by the longest mount point."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, name, *_ = line.split()
        inside = point == "/" or str(path) == point or str(path).startswith(point + "/")
        if inside and len(point) >= len(best):
            best, kind = point, name
    return kind


def measure(plan: Plan, only: list[str]) -> Figures:
    """Units a second of each workload and peer, one figure for each round."""
    figures: Figures = {}
    with workplace() as work:
        for turn in range(plan.rounds):
            for name in only:
                _, runs = peers.WORKLOADS[name]
                order = list(runs)
                order = order[turn % len(order) :] + order[: turn % len(order)]
                for peer in order:
                    where = work / f"{name}-{peer}-{turn}"
                    where.mkdir()
                    os.sync()  # so that no peer flushes the dirty pages of another
                    rate = runs[peer](where, plan.sizes[name])
                    shutil.rmtree(where)
                    figures.setdefault(name, {}).setdefault(peer, []).append(rate)
                    say(f"round {turn + 1} {name} {peer:7} {rate:12,.0f} /s")
    return figures


def child(*command: str) -> tuple[float, str]:
    """Run Python with these words; returns the seconds and the output."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
    elapsed = time.perf_counter() - start
    if done.returncode != 0:
        raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr[-2000:]}")
    return elapsed, done.stdout


def cold(plan: Plan) -> Figures:
    """Seconds to open a large store and read one message, beyond interpreter and imports."""
    figures: Figures = {}
    with workplace() as work:
        peers.cold_stores(work, plan.cold_topics, plan.cold_messages)
        scripts = {
            "txlog": COLD_TXLOG.format(path=str(work / "store")),
            "sqlite": COLD_SQLITE.format(path=str(work / "peer.db")),
        }
        for peer in scripts:
            for script in (IMPORTS[peer], scripts[peer]):
                child("-c", script)  # bytecode and page cache are warm
        for _ in range(plan.process_rounds):
            for peer, script in scripts.items():
                bare, _ = child("-c", IMPORTS[peer])
                whole, inside = child("-c", script)
                found = figures.setdefault(peer, {})
                found.setdefault("beyond imports", []).append(whole - bare)
                found.setdefault("open and read, inside", []).append(float(inside))
    for peer, found in figures.items():
        for name, times in found.items():
            say(f"cold open {peer:7} {name:22} {statistics.median(times) * 1e3:8.1f} ms")
    return figures


def processes(plan: Plan) -> dict[str, list[float]]:
    """The seconds of whole processes, a figure for each round, by command."""
    times: dict[str, list[float]] = {}
    with workplace() as work:
        store = str(work / "store")
        produce = ("-m", "txlog", "-S", store, "produce", "orders", "-m", "hello")
        commands: dict[str, tuple[str, ...]] = {
            "python -c pass": ("-c", "pass"),
            'python -c "import pyarrow"': ("-c", "import pyarrow"),
            "txlog --version": ("-m", "txlog", "--version"),
            "txlog produce orders -m hello": produce,
        }
        child("-m", "txlog", "init", store)
        child("-m", "txlog", "-S", store, "topic", "create", "orders")
        for command in commands.values():
            child(*command)
        for _ in range(plan.process_rounds):
            for name, command in commands.items():
                times.setdefault(name, []).append(child(*command)[0])
    for name, found in times.items():
        say(f"process {name:32} {statistics.median(found) * 1e3:8.1f} ms")
    return times


def profile(name: str, plan: Plan, lines: int) -> None:
    """Print the profile of txlog in one workload; the profiler slows small functions most."""
    with workplace() as work:
        profiler = cProfile.Profile()
        profiler.enable()
        peers.WORKLOADS[name][1]["txlog"](work, plan.sizes[name])
        profiler.disable()
    for order in ("tottime", "cumulative"):
        out = io.StringIO()
        pstats.Stats(profiler, stream=out).strip_dirs().sort_stats(order).print_stats(lines)
        say(out.getvalue())


def machine() -> list[str]:
    """Date, machine and versions, as lines of Markdown."""
    now = datetime.datetime.now(datetime.UTC)
    return [
        f"- date: {now:%Y-%m-%d %H:%M} UTC",
        f"- machine: {results.machine()}, {filesystem(HERE)}",
        f"- pyarrow {pa.__version__}, SQLite {sqlite3.sqlite_version}, DuckDB {duckdb.__version__}",
    ]


def report(
    plan: Plan,
    figures: Figures,
    together: list[str],
    opened: Figures,
    times: dict[str, list[float]],
) -> Iterator[str]:
    """RESULTS.md, line by line."""
    yield from ("# Bench results", "", PREFACE, "")
    yield from machine()
    yield f"- command: {results.command()}"
    yield (
        f"- medians of {plan.rounds} rounds, peers interleaved, fresh stores; "
        f"processes: medians of {plan.process_rounds}"
    )
    yield "- durable: txlog `sync`; SQLite WAL, synchronous=FULL; DuckDB commit"
    yield ""
    if figures:
        yield "| work | peer | median a second | least | most | txlog / peer |"
        yield "|---|---|---:|---:|---:|---:|"
        for name, found in figures.items():
            ours = statistics.median(found["txlog"])
            for peer, rates in found.items():
                middle = statistics.median(rates)
                yield (
                    f"| {name}: {peers.WORKLOADS[name][0]} | {peer} | {middle:,.0f} "
                    f"| {min(rates):,.0f} | {max(rates):,.0f} | {ours / middle:.2f} |"
                )
        yield ""
        yield (
            "W1 and W2 write the same rows; SQLite's table has the primary key (partition, entry). "
            "In W3 SQLite moves one cursor row a batch, txlog acknowledges each message."
        )
        yield ""
    if together:
        yield (
            "Durable transactions of ten messages of 100 bytes on one topic, by threads and "
            "processes together."
        )
        yield ""
        yield from together
        yield ""
    if opened:
        yield (
            f"Cold open of {plan.cold_messages:,} messages in {plan.cold_topics:,} topics, one "
            "message read; the page cache is warm."
        )
        yield ""
        yield "| peer | what | median ms |"
        yield "|---|---|---:|"
        for peer, parts in opened.items():
            for what, seconds in parts.items():
                yield f"| {peer} | {what} | {statistics.median(seconds) * 1e3:.1f} |"
        yield ""
    if times:
        base = statistics.median(times['python -c "import pyarrow"'])
        yield "| whole process | median ms | / import pyarrow |"
        yield "|---|---:|---:|"
        for name, seconds in times.items():
            middle = statistics.median(seconds)
            yield f"| `{name}` | {middle * 1e3:.1f} | {middle / base:.2f} |"
        yield ""


WORKS = [*peers.WORKLOADS, "many", "cold", "process"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes; writes no results")
    parser.add_argument("--rounds", type=int, help="rounds of each workload")
    parser.add_argument(
        "--only",
        nargs="+",
        default=WORKS,
        choices=WORKS,
        metavar="WORK",
        help=f"of {' '.join(WORKS)}; writes no results",
    )
    parser.add_argument("--profile", choices=list(peers.WORKLOADS), help="profile txlog's side")
    parser.add_argument("--lines", type=int, default=25, help="lines of a profile")
    parser.add_argument("--output", type=Path, help=f"where to write; default {RESULTS.name}")
    given = parser.parse_args()
    plan = QUICK if given.quick else FULL
    if given.rounds:
        plan = plan._replace(rounds=given.rounds)
    if given.profile:
        profile(given.profile, plan, given.lines)
        return 0
    figures = measure(plan, [name for name in given.only if name in peers.WORKLOADS])
    together = (
        many.table(WORK / "many", list(many.CASES), plan.many_seconds, given.rounds or 3)
        if "many" in given.only
        else []
    )
    opened = cold(plan) if "cold" in given.only else {}
    times = processes(plan) if "process" in given.only else {}
    text = "\n".join(report(plan, figures, together, opened, times))
    say("\n" + text)
    if given.output:
        given.output.write_text(text)
    elif not given.quick and set(given.only) == set(WORKS):
        results.head(text)
    return 0

"""Receive 10, write 2 x 10, acknowledge 10, durably: txlog beside others, with -9 kills.

    python -m bench guarantees [--systems NAMES] [--seconds N] [--kills N] [--results]

A client receives 10 messages of 100 bytes, writes each to two topics and acknowledges the 10, as
one transaction where the system has one, and waits until that is durable; with 1 and with 50 in
flight. The second round kills the client and the service (-9) in turn every five seconds, drains
the input, and counts the messages that are missing in an output, or there twice. Each system has
files in a temporary folder and listens on 127.0.0.1. One that cannot be had is a line with the
reason.

Needed beside txlog and its dev packages, each only for its system:
    postgres       Debian's postgresql; pip install "psycopg[binary]"
    redis          Debian's redis-server; pip install redis
    kafka          Maven and Java 17; pip install confluent-kafka
    nats           Go; pip install nats-py
    pulsar, serve  Maven and Java 17
"""

from __future__ import annotations

import argparse
import json
import os
import pkgutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import results, scratch_folder
from bench.guarantees import rounds
from bench.guarantees.peer import BATCH, GUARANTEES, Peer, Unavailable

PEERS = {
    "txlog": "directory:Directory",
    "sqlite": "sql:SQLite",
    "postgres": "sql:Postgres",
    "redis": "redis_streams:Redis",
    "nats": "nats:Nats",
    "kafka": "kafka:Kafka",
    "pulsar": "pulsar_java:Pulsar",
    "serve": "pulsar_java:Serve",
}
DEPTHS = (1, 50)
HEADING = "## Guarantees, and what they cost"
Row = dict[Any, Any]


def system(name: str) -> type[Peer]:
    """A system by its name. Raises Unavailable."""
    kind: type[Peer] = pkgutil.resolve_name(f"bench.guarantees.{PEERS[name]}")
    return kind


def main() -> int:
    """Measure and print; with --results write the section, too. Returns 1 if a system failed."""
    parser = argparse.ArgumentParser(
        prog=sys.argv[0], description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--systems", default=",".join(PEERS), help="by default all; empty: none")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each timed run")
    parser.add_argument("--kills", type=int, default=4, help="0: the first round only")
    parser.add_argument(
        "--folder", type=scratch_folder, help="for the files; by default a temporary one"
    )
    parser.add_argument("--results", action="store_true")
    parser.add_argument("--note", default="", help="a sentence for the section")
    parser.add_argument("--rows", type=Path, help="a file that keeps the rows of several runs")
    options = parser.parse_args()
    rows: dict[str, Row] = {}
    if options.rows and options.rows.exists():
        rows = json.loads(options.rows.read_text())
    for name in filter(None, options.systems.split(",")):
        rows[name] = row(name, options.seconds, options.kills, options.folder)
        print(_line(_cells(rows[name])), flush=True)
        if options.rows:
            options.rows.write_text(json.dumps(rows, indent=1))
    command = f"`python -m bench guarantees --seconds {options.seconds:g} --kills {options.kills}`"
    began = "The times and load averages at which the systems began:"
    lines = [command, "", f"{results.machine()}. {began}", "", *table(rows)]
    print("\n".join(lines))
    if options.results:
        results.put(HEADING, [*lines, *(["", options.note] if options.note else [])])
    return int(any("failed" in row for row in rows.values()))


def row(name: str, seconds: float, kills: int, folder: Path | None) -> Row:
    """All figures of a system; or why there are none."""
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    figures: Row = {"name": name, "began": f"{when}, load {load}"}
    try:
        make = system(name)
        claims = [claim.split(": ", 1) for claim in make.claims]
        guarantees = dict(zip(GUARANTEES, claims, strict=True))
        figures |= {"title": make.title, "setup": make.setup, "guarantees": guarantees}
        for depth in DEPTHS:
            figures[str(depth)] = rounds.measure(make, depth, seconds, folder)
            print(f"{name}, {depth} in flight: {figures[str(depth)]}", file=sys.stderr)
        if kills:
            messages = int(figures[str(DEPTHS[-1])]["rate"] * BATCH * 5 * kills)
            messages = min(rounds.KILL_MESSAGES_MAX, max(1_000, messages))
            figures["count"] = rounds.count(make, messages, kills=kills, folder=folder)
            print(f"{name}: {figures['count']}", file=sys.stderr)
    except Unavailable as reason:
        figures["missing"] = str(reason)
    except Exception as error:  # of a peer's client: each has its own classes
        figures["failed"] = f"{type(error).__name__}: {error}"
    return figures


# --- the section of the results -------------------------------------------------------------------


def table(rows: Mapping[str, Row]) -> list[str]:
    """The figures, the settings, and the sources of the guarantees."""
    several = " / ".join(map(str, DEPTHS))
    heads = (
        *("system", f"transactions/s, {several} in flight", "ratio to txlog, directory"),
        *("p50 ms", "p99 ms", "processor ms a transaction: client + service"),
        *("bytes on disk a message", "lost", "doubled", "kills", *GUARANTEES),
    )
    sources = [
        [row["title"], row["setup"], *map(": ".join, row["guarantees"].values())]
        for row in rows.values()
        if "setup" in row
    ]
    began = "; ".join(f"{row.get('title', row['name'])} {row['began']}" for row in rows.values())
    figures = _grid(heads, [_cells(row, rows.get("txlog")) for row in rows.values()])
    return [f"{began}.", "", *figures, "", *_grid(("system", "setup", *GUARANTEES), sources)]


def _grid(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [_line(heads), "|---" * len(heads) + "|", *map(_line, rows)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(row: Row, txlog: Row | None = None) -> list[str]:
    reason = row.get("missing") or row.get("failed")
    if reason:
        word = "not had" if "missing" in row else "failed"
        return [str(row.get("title", row["name"])), f"{word}: {' '.join(reason.split())}"]
    runs = {depth: row[str(depth)] for depth in DEPTHS}

    def both(name: str, digits: int) -> str:
        return " / ".join(f"{run[name]:,.{digits}f}" for run in runs.values())

    ratios = [f"{run['rate'] / txlog[str(n)]['rate']:.2f}" for n, run in runs.items() if txlog]
    used = " / ".join(f"{run['client_ms']:.2f} + {run['service_ms']:.2f}" for run in runs.values())
    counts = row.get("count", {})
    return [
        *(row["title"], both("rate", 1), " / ".join(ratios) or "-"),
        *(both("p50_ms", 1), both("p99_ms", 1), used, both("bytes", 0)),
        *(f"{counts[name]:,}" if counts else "-" for name in ("lost", "doubled", "kills")),
        *(answer for answer, _ in row["guarantees"].values()),
    ]

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
import platform
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench import results, scratch_folder
from bench.guarantees import rounds, worker
from bench.guarantees.peer import BATCH, GUARANTEES, Peer, Unavailable

PEERS = {
    "txlog": "bench.guarantees.directory:Directory",
    "sqlite": "bench.guarantees.sqlite:SQLite",
    "postgres": "bench.guarantees.postgres:Postgres",
    "redis": "bench.guarantees.redis_streams:Redis",
    "nats": "bench.guarantees.nats:Nats",
    "kafka": "bench.guarantees.kafka:Kafka",
    "pulsar": "bench.guarantees.pulsar_java:Pulsar",
    "serve": "bench.guarantees.pulsar_java:Serve",
}
DEPTHS = (1, 50)
HEADING = "## Guarantees, and what they cost"
Row = dict[Any, Any]


def made(name: str, folder: Path) -> Peer:
    """A system by its name. Raises Unavailable."""
    peer: Peer = pkgutil.resolve_name(PEERS[name])(folder)
    return peer


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
    for hidden in ("--work", "--fault"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    for hidden in ("--depth", "--warm-up", "--patience"):
        parser.add_argument(hidden, type=float, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        given = (options.seconds, options.warm_up, options.patience, options.fault)
        worker.work(made(options.work, options.folder), int(options.depth), *given)
        return 0
    rows: dict[str, Row] = {}
    if options.rows and options.rows.exists():
        rows = json.loads(options.rows.read_text())
    for name in filter(None, options.systems.split(",")):
        rows[name] = row(name, options.seconds, options.kills, options.folder)
        print(_figures(rows[name]), flush=True)
        if options.rows:
            options.rows.write_text(json.dumps(rows, indent=1))
    command = f"`python -m bench guarantees --seconds {options.seconds:g} --kills {options.kills}`"
    lines = [command, "", *_machine(), "", *table(rows)]
    print("\n".join(lines))
    if options.results:
        results.put(HEADING, [*lines, *(["", options.note] if options.note else [])])
    return int(any("failed" in row for row in rows.values()))


def row(name: str, seconds: float, kills: int, folder: Path | None) -> Row:
    """All figures of a system; or why there are none."""
    make: Callable[[Path], Peer] = partial(made, name)
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    found: Row = {"name": name, "began": f"{when}, load {_load()}"}
    try:
        kind = pkgutil.resolve_name(PEERS[name])
        found |= {"title": kind.title, "setup": kind.setup, "guarantees": kind.guarantees}
        for depth in DEPTHS:
            found[str(depth)] = rounds.measure(make, name, depth, seconds, folder)
            print(f"{name}, {depth} in flight: {found[str(depth)]}", file=sys.stderr)
        if kills:
            messages = int(found[str(DEPTHS[-1])]["rate"] * BATCH * 5 * kills)
            messages = min(rounds.KILL_MESSAGES_MAX, max(1_000, messages))
            found["count"] = rounds.count(make, name, messages, kills=kills, folder=folder)
            print(f"{name}: {found['count']}", file=sys.stderr)
    except Unavailable as reason:
        found["missing"] = str(reason)
    except Exception as error:  # of a peer's client: each has its own classes
        found["failed"] = f"{type(error).__name__}: {error}"
    return found


# --- the section of the results -------------------------------------------------------------------


def _load() -> str:
    return ", ".join(f"{each:.1f}" for each in os.getloadavg())


def _machine() -> list[str]:
    cpu = next(
        line.partition(": ")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    )
    return [
        f"{os.cpu_count()} cores, {cpu}, Linux {platform.release()}, Python "
        f"{platform.python_version()}. The times and load averages at which the systems began:",
    ]


def table(rows: Mapping[str, Row]) -> list[str]:
    """The figures, the settings, and the sources of the guarantees."""
    several = " / ".join(map(str, DEPTHS))
    heads = [
        *("system", f"transactions/s, {several} in flight", "ratio to txlog, directory"),
        *("p50 ms", "p99 ms", "processor ms a transaction: client + service"),
        *("bytes on disk a message", "lost", "doubled", "kills"),
    ]
    began = "; ".join(f"{row.get('title', row['name'])} {row['began']}" for row in rows.values())
    lines = [
        f"{began}.",
        "",
        f"| {' | '.join([*heads, *GUARANTEES])} |",
        "|---" * (10 + len(GUARANTEES)) + "|",
    ]
    lines += [_figures(row, rows.get("txlog")) for row in rows.values()]
    lines += ["", "| system | setup | " + " | ".join(GUARANTEES) + " |"]
    lines.append("|---" * (2 + len(GUARANTEES)) + "|")
    for row in rows.values():
        if "setup" in row:
            said = [f"{answer}: {why}" for answer, why in _claims(row)]
            lines.append(f"| {' | '.join([row['title'], row['setup'], *said])} |")
    return lines


def _claims(row: Row) -> list[tuple[str, str]]:
    return [row["guarantees"][name] for name in GUARANTEES]


def _figures(row: Row, txlog: Row | None = None) -> str:
    reason = row.get("missing") or row.get("failed")
    if reason:
        word = "not had" if "missing" in row else "failed"
        return f"| {row.get('title', row['name'])} | {word}: {' '.join(reason.split())} |"

    def both(what: str, digits: int) -> str:
        return " / ".join(f"{row[str(depth)][what]:,.{digits}f}" for depth in DEPTHS)

    def ratio(depth: int) -> str:
        return f"{row[str(depth)]['rate'] / txlog[str(depth)]['rate']:.2f}" if txlog else "-"

    runs = [row[str(depth)] for depth in DEPTHS]
    used = " / ".join(f"{run['client_ms']:.2f} + {run['service_ms']:.2f}" for run in runs)
    counted = row.get("count", {})
    cells = [
        *(row["title"], both("rate", 1), " / ".join(map(ratio, DEPTHS))),
        *(both("p50_ms", 1), both("p99_ms", 1), used, both("bytes", 0)),
        *(f"{counted[what]:,}" if counted else "-" for what in ("lost", "doubled", "kills")),
        *(answer for answer, _ in _claims(row)),
    ]
    return f"| {' | '.join(cells)} |"

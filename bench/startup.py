"""Owns the measurement of whole processes: what a command costs from nothing to its end.

    python -m bench.startup [--tries 15] [--messages 2000000] [--only produce,query]

Every command is run as its installed script runs it, in turns with `python -c pass` and `python -c
"import pyarrow"`, which nothing that touches a store can do without. Medians: of the clock, and of
the time of the processor (of all threads), which neighbours disturb less. The last column is
processor time over that of `import pyarrow`. Bytecode is compiled before; so it is after an
installation. With --messages the store also has a topic `t` of so many, for the query.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import txlog
from bench import query

SCRIPT = "import sys; from txlog.cli.main import script; sys.exit(script())"
PEERS = {"python -c pass": ["-c", "pass"], "import pyarrow": ["-c", "import pyarrow"]}
COMMANDS = {
    "--version": ["--version"],
    "(root help)": [],
    "produce --help": ["produce", "--help"],
    "topic list": ["topic", "list"],
    "status": ["status"],
    "produce": ["produce", "orders", "-m", "hello"],
    "consume": ["consume", "orders", "-n", "1"],
    "txn begin": ["txn", "begin", "--timeout", "1s"],
    "txn run": ["txn", "run", "--", "true"],
}
QUERY = ["query", "SELECT key, count(*) AS n FROM t GROUP BY key", "-f", "csv"]


def run(words: list[str], environ: dict[str, str]) -> tuple[float, float]:
    """Run a process; its milliseconds by the clock and of the processor."""
    before = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *words],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = status
    assert status == 0, words
    wall_ms = (time.perf_counter() - before) * 1e3
    return wall_ms, (used.ru_utime + used.ru_stime) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tries", type=int, default=15)
    parser.add_argument("--messages", type=int, default=0)
    parser.add_argument("--only", help="commands, A,B")
    given = parser.parse_args()
    runs = dict(PEERS)
    runs |= {name: ["-c", SCRIPT, *words] for name, words in COMMANDS.items()}
    if given.messages:
        runs["query"] = ["-c", SCRIPT, *QUERY]
    if given.only:
        runs = {name: runs[name] for name in [*PEERS, *given.only.split(",")]}
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder, "store"))
        if given.messages:
            query.fill(store, given.messages)
        else:
            txlog.init(store)
        with txlog.open(store) as client:
            client.create_topic("orders")
            client.producer("orders").send(b"hello")
        environ = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        source = str(Path(txlog.__file__).parent.parent)
        environ |= {"PYTHONPATH": source, "TXLOG_STORE": store}
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
        for turn in range(given.tries + 1):
            for name, words in runs.items():
                took = run(words, environ)
                if turn:  # the first compiles
                    found[name].append(took)
    peer = statistics.median(cpu for _, cpu in found["import pyarrow"])
    print("| process | clock ms | processor ms | × import pyarrow |\n|---|---|---|---|")
    for name, both in found.items():
        wall, cpu = (statistics.median(column) for column in zip(*both, strict=True))
        print(f"| {name} | {wall:.0f} | {cpu:.0f} | {cpu / peer:.2f} |")


if __name__ == "__main__":
    main()

"""Measures what should not bend: the same call in a small and in a large store.

    python bench/curves.py [--only NAME] [--src PATH] [--large]

writes     write calls and bytes of a durable send, with 1 to 16 processes that send at once
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

Line = tuple[str, ...]
SENDS = 200


def table(head: Line, lines: Iterator[Line]) -> None:
    """Print lines as they come, below their heads."""
    print(" ".join(f"{name:>16}" for name in head))
    for line in lines:
        print(" ".join(f"{value:>16}" for value in line), flush=True)
    print()


# --- writes ------------------------------------------------------------------------------------

SENDER = """
import sys, txlog
def io():
    fields = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
    return int(fields["syscw"]), int(fields["wchar"])
with txlog.open(sys.argv[1]) as client:
    client.checkpoint_automatically = False
    producer = client.producer("t")
    print("ready", flush=True)
    sys.stdin.readline()
    calls, size = io()
    for _ in range({sends}):
        producer.send(b"m" * 100)
    after = io()
    print(after[0] - calls, after[1] - size, flush=True)
"""


def writes(folder: Path) -> None:
    """Write calls and bytes a durable send, the first of a fresh process among them."""
    import txlog

    def lines() -> Iterator[Line]:
        for processes in (1, 2, 4, 8, 16):
            path = str(folder / f"writes{processes}")
            txlog.init(path, durability="sync")
            with txlog.open(path) as client:
                client.create_topic("t")
                for _ in range(500):
                    client.producer("t").send(b"before")
            running = [
                subprocess.Popen(
                    [sys.executable, "-c", SENDER.format(sends=SENDS), path],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ),
                )
                for _ in range(processes)
            ]  # fmt: skip
            for one in running:
                assert one.stdout is not None
                one.stdout.readline()
            found = [one.communicate("\n")[0].split() for one in running]
            sends = SENDS * processes
            yield (
                str(processes), f"{sum(int(calls) for calls, _ in found) / sends:.2f}",
                f"{sum(int(size) for _, size in found) / sends:.0f}",
            )  # fmt: skip

    table(("processes", "writes a send", "bytes a send"), lines())


MEASURES: dict[str, Callable[[Path], None]] = {"writes": writes}


def main() -> None:
    """Run what was asked for, each in a folder of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=sorted(MEASURES))
    parser.add_argument("--src", default=str(ROOT / "src"), help="the program to measure")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = options.src
    sys.path.insert(0, options.src)
    for name, measure in MEASURES.items():
        if options.only in (None, name):
            with tempfile.TemporaryDirectory() as folder:
                measure(Path(folder))


if __name__ == "__main__":
    main()

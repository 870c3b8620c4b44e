"""Owns the trips: through how many modules a call goes, in this tree or in an earlier one.

    python -m scripts.trips [--against REF]

The more modules a call goes through, the more a reader must open to follow it. The script counts
modules in which a function runs, in a process that has loaded all of them before; code that runs
at import does not count. The programs use public names only, so that they run on any commit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from scripts.shape import ROOT, unpack

TRIPS: Final = {
    "produce": "produce orders -m x",
    "commit": "txn commit {txn}",
    "delayed": "consume orders -s late -n 1",
    "txn list": "txn list",
}
# Runs with the package on its path and the store's folder as its argument; prints names by trip.
_PROGRAM: Final = '''
import importlib, json, os, pkgutil, sys, threading, time
import txlog
from txlog.cli.main import main

FOLDER, TRIPS = sys.argv[1], json.loads(sys.argv[2])
STORE = os.path.join(FOLDER, "store")
DELAY_MS = 200

def load_all():
    for found in pkgutil.walk_packages(txlog.__path__, "txlog."):
        if found.name.endswith("__main__") or ".spark" in found.name:
            continue
        try:
            importlib.import_module(found.name)
        except ImportError:
            pass  # of an extra that is not installed

def counted(trip):
    """The modules in which a function runs during a trip, in a process of its own."""
    read, write = os.pipe()
    if pid := os.fork():
        os.close(write)
        with os.fdopen(read) as lines:
            seen = lines.read().split()
        os.waitpid(pid, 0)
        return seen
    seen = set()
    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_name != "<module>":
            seen.add(frame.f_code.co_filename)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        trip()
    except SystemExit:
        pass
    sys.setprofile(None)
    own = sorted(name for name in seen if "/src/txlog/" in name)
    os.write(write, " ".join(name.partition("/src/txlog/")[2] for name in own).encode())
    os._exit(0)

def command(words):
    return lambda: main(["-q", "-S", STORE, *words])

txlog.init(STORE)
with txlog.open(STORE) as client:
    client.create_topic("orders", partitions=2)
    client.create_subscription("orders", "late")
    client.producer("orders").send(b"later", deliver_after=DELAY_MS)
    txn = str(client.begin(timeout_ms=3_600_000)["txn"])  # no sweep, however slow the machine
due = time.time() + DELAY_MS / 1000
load_all()
while time.time() < due:
    pass
found = {
    name: counted(command([txn if word == "{txn}" else word for word in words.split()]))
    for name, words in TRIPS.items()
}
print(json.dumps(found))
'''


def trips(root: Path = ROOT) -> dict[str, list[str]]:
    """The modules of each trip, by its name, of the code of a checkout.

    Raises CalledProcessError with what the program wrote on stderr.
    """
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, folder, json.dumps(TRIPS)],
            env={**os.environ, "PYTHONPATH": str(root / "src")},
            capture_output=True,
            text=True,
            check=True,
        )
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def counts(root: Path = ROOT) -> dict[str, float]:
    """The number of modules that each trip goes through, by `trip of NAME`."""
    return {f"trip of {name}": len(names) for name, names in trips(root).items()}


def main() -> int:
    """Print the counts, each after the count of the commit, if one is given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--against", metavar="REF", help="a commit")
    options = parser.parse_args()
    before: dict[str, float] = {}
    if options.against:
        with tempfile.TemporaryDirectory() as folder:
            before = counts(unpack(options.against, Path(folder)))
    for name, count in counts().items():
        print(f"{before.get(name, count):>4g} -> {count:<4g} {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

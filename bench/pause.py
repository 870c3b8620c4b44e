"""Measures what a caller notices of an automatic checkpoint, against the topics that changed.

    python bench/pause.py [--topics N ...] [--all N] [--out PATH] [--store FOLDER]

A store of as many topics (with --all of so many, of which only the given number changes) gets a
plain message in each and commits of one message until a checkpoint is there. Twice: the second
time all directories exist. A line each: ms of the median commit without and with a checkpoint
under way, of the longest call of all, seconds until the manifest was there and until the pass was
over, flushes (fsync, fdatasync, syncfs) of it, files of segments.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import txlog  # noqa: E402
from txlog.client.client import Client  # noqa: E402
from txlog.engine.storage.disk import posix  # noqa: E402

HEAD = ("topics", "changed", "round", "commit", "meanwhile", "longest", "manifest", "over",
        "flushes", "files")  # fmt: skip
QUIET_COMMITS = 50


class Flushes:
    """Counts the flushes of this process."""

    def __init__(self) -> None:
        self.count = self.beside = 0
        for name in ("fsync", "fdatasync"):
            setattr(os, name, self._counting(getattr(os, name)))
        if hasattr(posix, "sync_file_system"):
            posix.sync_file_system = self._counting(posix.sync_file_system)

    def _counting(self, call):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        def counted(descriptor: int) -> object:
            self.count += 1
            self.beside += threading.current_thread() is not threading.main_thread()
            return call(descriptor)

        return counted


def main() -> None:
    """A table of two lines for each number of topics."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--topics", type=int, nargs="+", default=[1, 100, 1000, 4000])
    parser.add_argument("--all", type=int, default=0, help="topics of the store, if more")
    parser.add_argument("--out", help="write the lines there, too")
    parser.add_argument("--store", help="make the stores below this folder")
    options = parser.parse_args()
    lines = [" ".join(f"{name:>9}" for name in HEAD)]
    print(lines[0])
    flushes = Flushes()
    for changed in options.topics:
        with tempfile.TemporaryDirectory(dir=options.store) as folder:
            for line in measured(
                Path(folder, "store"), max(changed, options.all), changed, flushes
            ):
                lines.append(" ".join(f"{value:>9}" for value in line))
                print(lines[-1], flush=True)
    if options.out:
        Path(options.out).write_text("\n".join(lines) + "\n", encoding="utf-8")


def measured(path: Path, topics: int, changed: int, flushes: Flushes) -> list[list[object]]:
    """The two lines of a number of topics."""
    txlog.init(str(path))
    with txlog.open(str(path), durability="os") as client:
        for number in range(topics):
            client.create_topic(f"t{number}")
        client.create_topic("commits")
        client.checkpoint()
    return [[topics, changed, turn, *one_round(path, changed, flushes)] for turn in (1, 2)]


def one_round(path: Path, changed: int, flushes: Flushes) -> list[object]:
    """Change the topics, then commit until a checkpoint is over."""
    with txlog.open(str(path), durability="os") as client:
        for number in range(changed):
            client.producer(f"t{number}").send(b"x" * 100)
        client.flush()
    with txlog.open(str(path)) as client:
        before = flushes.count
        quiet = [commit(client) for _ in range(QUIET_COMMITS)]
        each = (flushes.count - before) / len(quiet)
        client.admin.set_setting("checkpoint_frames", client.status()["journal"]["frames"] + 2)
        before, beside, generation = flushes.count, flushes.beside, checkpoint_of(client)
        began = time.perf_counter()
        there = 0.0
        spent: list[float] = []
        while not there or (is_busy(client) and time.perf_counter() - began < 300):
            spent.append(commit(client))
            if not there and checkpoint_of(client) != generation:
                there = time.perf_counter() - began
        over = time.perf_counter() - began
        done = flushes.beside - beside or round(flushes.count - before - each * len(spent))
    files = sum(1 for name in path.rglob("*.arrow"))
    return [
        f"{statistics.median(quiet) * 1e3:.2f}",
        f"{statistics.median(spent) * 1e3:.2f}",
        f"{max(spent) * 1e3:.1f}",
        f"{there:.2f}",
        f"{over:.2f}",
        done,
        files,
    ]


def commit(client: Client) -> float:
    """Seconds of a transaction of one message."""
    began = time.perf_counter()
    with client.transaction() as txn:
        client.producer("commits").send(b"x" * 100, txn=txn)
    return time.perf_counter() - began


def checkpoint_of(client: Client) -> int:
    """The newest generation."""
    return int(client.store.read(lambda view: view.manifest.generation))


def is_busy(client: Client) -> bool:
    """True while a pass of this client runs beside its calls."""
    upkeep = getattr(client, "_checkpoints", None)
    return upkeep is not None and upkeep.is_running


if __name__ == "__main__":
    main()

"""Owns the oracle: random histories of two processes, and a model without any index.

After every batch the model says whether the engine was allowed to return it. After every full cycle
it says that no eligible message was left, and at the end of time that every message came.

    PYTHONPATH=src python -m tests.delayed.oracle --from 0 --histories 1000

A history is its seed: step n draws from Random(f"{seed}:{n}"), so steps can be left out to make a
failing history shorter. Source: spec/delayed 1.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.delayed.oracle_clients import Clients
from tests.delayed.oracle_model import TICK_MS, Death, Wrong
from tests.engine_kit import kill, session_of
from txlog.engine.folds.catalog import numbers as numbers_of
from txlog.engine.storage.disk.posix import PosixDisk
from txlog.engine.store.store import Store
from txlog.engine.upkeep.delayed import buckets as delayed

STEPS = 80
WEIGHTS = {
    "send": 14, "begin": 4, "send_in_txn": 7, "send_large": 1, "commit": 5, "abort": 2, "open": 2,
    "receive": 12, "cycle": 12, "acknowledge": 8, "cancel": 3, "acknowledge_in_txn": 5, "nack": 4,
    "redeliver": 1, "close": 2, "kill": 2, "restart": 3, "seek": 2, "skip": 1, "trim": 1,
    "promote": 3, "set_policy": 2, "take_exclusively": 2, "time": 10, "jump": 6, "checkpoint": 3,
    "tend": 6, "crash_in_upkeep": 2, "lose": 2,
}  # fmt: skip
ALWAYS = ("send", "send_in_txn", "begin", "commit", "receive", "cycle", "time")


class History(Clients):
    """Time, upkeep and damage between the steps of the clients."""

    # --- steps: time, upkeep, damage -----------------------------------------------------------

    def time(self, rng: random.Random) -> None:
        ms = TICK_MS * rng.choice((1, 1, 2, 5, 20, 100))
        self.boot.ms += ms
        self.note(f"{ms} ms pass")

    def jump(self, rng: random.Random) -> None:
        who = rng.randrange(2)
        self.clocks[who].skew_ms = TICK_MS * rng.choice((0, 0, -30, -5, -1, 1, 5, 30, 100))
        self.note(f"the clock of {who} jumps")

    def checkpoint(self, rng: random.Random) -> None:
        who = rng.randrange(2)
        self.clients[who].checkpoint(roll_all=rng.random() < 0.3)
        self.note(f"{who} writes a checkpoint")

    # --- steps: upkeep of the index, crashes in it, files that are lost --------------------------

    def numbers(self, who: int) -> list[int]:
        """The store-wide numbers of the partitions."""
        return self.clients[who].store.read(
            lambda view: list(numbers_of(next(iter(view.catalog.topics.values()))))
        )

    def upkeep(self, rng: random.Random, who: int) -> str:
        """Some upkeep by one process; returns its name."""
        store, kind = self.clients[who].store, rng.choice(("tend", "tend", "merge", "rebuild"))
        partition = rng.choice(self.numbers(who))
        if kind == "tend":
            report: object = delayed.tend(store, None, wait=True)
        elif kind == "merge":
            report = delayed.merge_now(store, partition, rng.choice((1, 1, 2)))
        else:
            report = delayed.rebuild_now(store, partition)
        return f"{kind}s: {report}"

    def tend(self, rng: random.Random) -> None:
        who = rng.randrange(2)
        self.note(f"{who} {self.upkeep(rng, who)}")

    def crash_in_upkeep(self, rng: random.Random) -> None:
        """The process dies before or after a file or a frame of its upkeep."""
        who, countdown = rng.randrange(2), [rng.randrange(4)]
        point = f"call {countdown[0]}"

        def dying(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                if not countdown[0]:
                    raise Death
                countdown[0] -= 1
                answer = function(*arguments, **options)
                if not countdown[0]:
                    raise Death
                countdown[0] -= 1
                return answer

            return call

        with (
            patch.object(Store, "write", dying(Store.write)),
            patch.object(PosixDisk, "publish", dying(PosixDisk.publish)),
        ):
            try:
                self.note(f"{who} {self.upkeep(rng, who)}")
                return
            except Death:
                pass
        self.note(f"{who} dies in its upkeep, {point}")
        self.crash(who)

    def lose(self, rng: random.Random) -> None:
        """Remove, cut or damage the file of a bucket."""
        files = sorted(Path(self.path).glob("topics/**/_delayed/*.parquet"))
        if not files:
            return
        file = rng.choice(files)
        how = rng.choice(("is gone", "is cut off", "is damaged"))
        if how == "is gone":
            file.unlink()
        elif how == "is cut off":
            file.write_bytes(file.read_bytes()[: rng.randrange(file.stat().st_size)])
        else:
            data = bytearray(file.read_bytes())
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            file.write_bytes(data)
        self.note(f"{file.name} {how}")

    def __init__(self, folder: str, seed: str) -> None:
        super().__init__(folder, seed)
        rng = random.Random(f"{seed}:weights")
        # Each history has weights of its own, so some steps never happen in one, and often in
        # another.
        self.weights = [
            weight * rng.choice((0.3, 1, 3) if name in ALWAYS else (0, 0, 0.3, 1, 3))
            for name, weight in WEIGHTS.items()
        ]
        if rng.random() < 0.25:  # the index has every id that is not due
            self.is_exact, self.clocks[1].skew_ms = True, 0
            for name in ("jump", "lose", "set_policy", "seek", "crash_in_upkeep"):
                self.weights[list(WEIGHTS).index(name)] = 0

    def step(self, rng: random.Random) -> None:
        """One step, whichever comes."""
        [name] = rng.choices(list(WEIGHTS), self.weights)
        act: Callable[[random.Random], object] = getattr(self, name)
        act(rng)

    def end(self) -> None:
        """Both clocks reach the far end: every remaining message must come, once."""
        self.boot.ms += 10**8
        self.note("the end of time")
        for txn in list(self.txns):
            self.txns = [txn]
            self.abort(random.Random(0))
        for sub in self.subs:
            for hand in list(sub.hands):
                self.die(sub, hand)
            hand = self.open_on(sub, 0)
            while got := self.took(sub, hand, hand.real.receive_batch(1000)):
                self.note(f"{sub.name}/0 receives {self.texts(got)}")
            free_messages = self.free(sub) - hand.ids
            if free_messages:
                raise Wrong(f"{sub.name} never got {self.texts(free_messages)}")

    def stop(self) -> None:
        """Close all open clients."""
        for sub in self.subs:
            for hand in sub.hands:
                if session_of(hand.real).member.is_open:
                    kill(hand.real)
        for client in self.clients:
            self.drop(client)


def run(seed: str, steps: list[int], history: type[History] = History) -> History | None:
    """Run a history; returns it if the engine was wrong, with the reason in its last line."""
    folder = tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    rows: History | None = None
    try:
        rows = history(folder, seed)
        for number in steps:
            rows.step(random.Random(f"{seed}:{number}"))
        rows.end()
        return None
    except Exception as error:
        if rows is None:
            raise
        rows.note(f"WRONG: {type(error).__name__}: {error}")
        if not isinstance(error, Wrong):
            rows.trace.append(traceback.format_exc())
        return rows
    finally:
        if rows is not None:
            rows.stop()
        shutil.rmtree(folder, ignore_errors=True)


def shrink(seed: str, steps: list[int], history: type[History] = History) -> History:
    """The same failure in fewer steps: leave out every step that is not needed."""
    completed = run(seed, steps, history)
    assert completed is not None
    size = max(1, len(steps) // 2)
    while size:
        at = 0
        while at < len(steps):
            fewer = steps[:at] + steps[at + size :]
            other = run(seed, fewer, history)
            if other is not None:
                steps, completed = fewer, other
            else:
                at += size
        size //= 2
    completed.trace.insert(0, f"seed {seed!r}, steps {steps}, settings {completed.settings}")
    return completed


def main() -> None:
    """Run many histories; print the shortest form of the first that fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--every", action="store_true", help="do not stop at the first")
    parser.add_argument("--no-shrink", action="store_true", help="show a failure as it came")
    options = parser.parse_args()
    failed = 0
    for seed in range(options.first, options.first + options.histories):
        steps = list(range(options.steps))
        completed = run(str(seed), steps)
        if completed is not None:
            failed += 1
            completed = completed if options.no_shrink else shrink(str(seed), steps)
            sys.stdout.write("\n".join(completed.trace) + "\n\n")
            sys.stdout.flush()
            if not options.every:
                break
    sys.stdout.write(f"{seed - options.first + 1} histories, {failed} failed\n")


if __name__ == "__main__":
    main()

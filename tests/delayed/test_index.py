"""Random histories: after every step the index agrees with the log.

Two processes on one store; `TXLOG_SEED` repeats a run, `TXLOG_HISTORIES` sets how many there are.
"""

from __future__ import annotations

import os
import random
from itertools import pairwise

import pytest
from msgspec.structs import replace

from tests.crash.world import START_MS, new_disk, open_client
from tests.delayed.bucket_kit import check_index, delay, index, indexed_times
from tests.tiers import graded
from txlog import Client
from txlog.base.ranges import END
from txlog.base.settings import Settings
from txlog.clock import ManualClock
from txlog.engine.upkeep.delayed import buckets as delayed
from txlog.errors import MissingFile

SEED = int(os.environ.get("TXLOG_SEED", "20260101"))
HISTORIES = int(os.environ.get("TXLOG_HISTORIES", "10"))
STEPS = [
    "send", "send", "send", "begin", "txn_send", "txn_send", "commit", "abort", "roll",
    "checkpoint", "merge", "tend", "lose", "damage", "rebuild", "trim", "forward", "back",
    "skip", "seek", "reopen", "sweep",
]  # fmt: skip
SPAN_MS = 5000


class History:
    """A store with two processes, and random steps."""

    def __init__(self, rng: random.Random, settings: Settings) -> None:
        self.rng = rng
        self.clock = ManualClock(START_MS)
        self.disk = new_disk(settings, self.clock)
        self.clients = [self.another(), self.another()]
        self.txns: list[object] = []
        self.clients[0].create_topic("t")
        self.clients[0].create_subscription("t", "s", type="shared")

    def another(self) -> Client:
        """One more process."""
        return open_client(self.disk.process(), self.clock)

    def times(self) -> list[int | None]:
        """The delivery times of some messages; some are past, some have no time."""
        now = self.clock.now().wall_ms - START_MS
        return [
            None if self.rng.random() < 0.2 else now + self.rng.randrange(-500, SPAN_MS)
            for _ in range(self.rng.randrange(1, 6))
        ]

    def step(self, kind: str) -> None:
        """Do a step in one of the processes."""
        client = self.rng.choice(self.clients)
        store = client.store
        if kind == "send":
            delay(client, *self.times())
        elif kind == "begin":
            self.txns.append(client.begin()["txn"])
        elif kind in ("txn_send", "commit", "abort"):
            if not self.txns:
                return
            txn = self.rng.choice(self.txns)
            if kind == "txn_send":
                delay(client, *self.times(), txn=txn)  # type: ignore[arg-type]
                return
            self.txns.remove(txn)
            (client.commit if kind == "commit" else client.abort)(txn)  # type: ignore[arg-type]
        elif kind in ("roll", "checkpoint"):
            client.checkpoint(roll_all=kind == "roll")
        elif kind == "merge":
            delayed.merge_now(store, 1, self.rng.randrange(1, 4))
        elif kind == "tend":
            delayed.tend(store, None, wait=True)
        elif kind in ("lose", "damage"):
            found_buckets = index(client).buckets
            if found_buckets and kind == "lose":
                choice = self.rng.choice(found_buckets)
                delayed.drop_lost(store, 1, choice.gen, MissingFile("it is gone"))
            elif found_buckets:
                path = self.rng.choice(found_buckets).file.path
                data = bytearray(self.disk.read(path))
                data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
                self.disk.damage(path, bytes(data))
                delayed.rebuild_now(store, 1)
        elif kind == "rebuild":
            times_before = indexed_times(client)
            report = delayed.rebuild_now(store, 1)
            now, times_after = self.clock.now().wall_ms, indexed_times(client)
            oldest = store.read(lambda view: view.topic(1).ledgers[0].ledger)
            expected = {
                choice for choice, at in times_before.items() if at > now and choice[0] >= oldest
            }
            assert (
                report.missing == len(times_after.keys() - times_before.keys()) and not report.extra
            )
            assert expected <= times_after.keys()
        elif kind == "trim":
            client.admin.trim("t", END, force_unacked=True)
        elif kind == "forward":
            self.clock.set_wall(self.clock.now().wall_ms + self.rng.randrange(SPAN_MS))
        elif kind == "back":
            self.clock.set_wall(self.clock.now().wall_ms - self.rng.randrange(SPAN_MS // 2))
        elif kind == "skip":
            client.subscription("t", "s").skip(self.rng.randrange(1, 20))
        elif kind == "seek":
            # transactions hold no acknowledgements here
            client.subscription("t", "s").seek(END if self.rng.random() < 0.3 else 0)
        elif kind == "reopen":
            client.close()
            self.clients[self.clients.index(client)] = self.another()
        else:
            client.admin.gc(apply=True, keep_ms=0)


@pytest.mark.parametrize("number", graded(range(HISTORIES), 2))
def test_the_index_is_what_the_log_says(number: int) -> None:
    """spec/delayed 3: position order, no id twice, no id missing unless it may be due."""
    rng = random.Random(f"{SEED} {number}")
    settings = replace(
        Settings(coordinators=1, reader_grace_ms=0),
        mutable_ids_max=rng.randrange(1, 6),
        ledger_step_per_bucket=rng.randrange(0, 4),
        max_num_buckets=rng.choice((-1, 0, 1, 2, 3, 5)),
        max_indexes_per_snapshot_segment=rng.choice((-1, 1, 2, 5)),
        time_step_per_bucket_snapshot_seconds=1,
        segments_max=rng.choice((1, 2, 2000)),
    )
    history = History(rng, settings)
    done: list[str] = []
    for _ in range(40):
        done.append(rng.choice(STEPS))
        try:
            history.step(done[-1])
            for client in history.clients:
                check_index(client)
                state = index(client)
                ranges = [(bucket.first, bucket.last) for bucket in state.buckets] + state.unindexed
                ranges.sort()
                assert all(low[1] < high[0] for low, high in pairwise(ranges))
        except Exception as error:
            raise AssertionError(f"seed {SEED}, history {number}: {done}: {error!r}") from error
    failed = [key for key in history.clients[0].store.bucket_ops.counts if key[1] == "failed"]
    assert not failed, history.clients[0].reports()

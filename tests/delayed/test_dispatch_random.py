"""Random histories against a dict: no message is left, early, or delivered twice; section 1.

Two processes with clocks of their own that jump both ways. Transactions send and acknowledge. There
are seeks, nacks and restarts; buckets are sealed, merged, deleted and lost.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.delayed.dispatch_kit import T0, Shop
from tests.engine_kit import session_of
from tests.tiers import graded
from txlog import Client, Message, MessageId, messages
from txlog.client.consuming.consumer import Consumer
from txlog.clock import ManualClock
from txlog.engine.session.transactions.transaction import Transaction
from txlog.engine.upkeep.delayed.buckets import merge_now, tend
from txlog.engine.view import View

pytestmark = pytest.mark.usefixtures("quick_disk")
SPAN = 60  # times are drawn from this many milliseconds around the clock


@dataclass
class Process:
    """One process: its client, its clock, and a consumer of each subscription."""

    client: Client
    clock: ManualClock
    consumers: dict[str, Consumer] = field(default_factory=dict)


@dataclass
class Sub:
    """The state of a subscription in the model, by id."""

    acked: set[MessageId] = field(default_factory=set)
    released: set[MessageId] = field(default_factory=set)
    # id -> the process that has leased it
    hands: dict[MessageId, int] = field(default_factory=dict)
    pending: dict[MessageId, Transaction] = field(default_factory=dict)


class World:
    """A store, and its contents according to the model."""

    def __init__(self, folder: Path, seed: int, type: str) -> None:
        self.chance = random.Random(seed)
        settings = {
            "ledger_entries_max": self.chance.choice((3, 6, 50)),
            "ledger_step_per_bucket": self.chance.randrange(1, 4),
            "mutable_ids_max": self.chance.choice((2, 5, 100)),
            "max_num_buckets": self.chance.randrange(1, 6),
            "max_indexes_per_snapshot_segment": self.chance.choice((1, 2, 5, -1)),
            "strays_max": self.chance.choice((3, 1000)),
            "deliver_at_time_strict": self.chance.choice((0, 1, 1)),
            "tick_time_ms": 10,
        }
        self.early_ms = 0 if settings["deliver_at_time_strict"] else 10
        self.type = type
        self.shop = Shop(folder, **settings)
        self.times: dict[MessageId, int | None] = {}
        self.keys: dict[MessageId, bytes] = {}
        self.subs = {"s": Sub(), "z": Sub()}
        self.processes = [Process(*self.shop.process(0)) for _ in range(2)]
        self.open: list[tuple[Transaction, list[tuple[bytes, int | None]]]] = []
        for process in self.processes:
            self.start(process)

    def start(self, process: Process) -> None:
        for name in self.subs:
            process.consumers[name] = self.shop.consumer(name, process.client, self.type)  # type: ignore[arg-type]

    # --- what happens ------------------------------------------------------------------------

    def at(self, process: Process) -> int | None:
        now = process.clock.now().wall_ms
        return self.chance.choice((None, now + self.chance.randrange(-SPAN // 3, SPAN)))

    def send(self) -> None:
        process = self.chance.choice(self.processes)
        for _ in range(self.chance.randrange(1, 5)):
            at = self.at(process)
            key = b"k%d" % self.chance.randrange(4)
            sent = process.client.producer("t").send(b"", key=key, deliver_at=at).message_id
            assert sent is not None
            self.times[sent], self.keys[sent] = at, key

    def send_in_txn(self) -> None:
        process = self.chance.choice(self.processes)
        times = [self.at(process) for _ in range(self.chance.randrange(1, 5))]
        if self.chance.random() < 0.3:
            times = times[:1] * len(times)
        with process.client.transaction() as txn:
            for at in times:
                process.client.producer("t").send(b"", txn=txn, deliver_at=at)
        assert txn.outcome is not None
        (_, ledger, entry, _) = txn.outcome.markers[0]
        for index, at in enumerate(times, 1):
            self.times[MessageId(ledger, entry, index)] = at

    def move(self) -> None:
        process = self.chance.choice(self.processes)
        step = self.chance.choice((1, 7, 20, SPAN, 3 * SPAN, -5, -SPAN))
        process.clock.set_wall(max(T0, process.clock.now().wall_ms + step))

    def turn(self, process: Process, name: str, limit: int) -> list[Message]:
        """One turn, checked: the consumer was allowed to get each of its messages."""
        sub = self.subs[name]
        now = process.clock.now().wall_ms
        got = list(messages(process.consumers[name].receive_batch(limit)))
        for message in got:
            message_id = message.message_id
            assert message_id is not None
            assert self.is_free(sub, message_id), f"{message_id} was not free"
            assert self.is_due(sub, message_id, now), (
                f"{message_id} is early: {self.times[message_id]} > {now}"
            )
            sub.released.discard(message_id)
            sub.hands[message_id] = self.processes.index(process)
        return got

    def is_free(self, sub: Sub, message_id: MessageId) -> bool:
        return not (message_id in sub.acked or message_id in sub.hands or message_id in sub.pending)

    def is_due(self, sub: Sub, message_id: MessageId, now: int) -> bool:
        at = self.times[message_id]
        return at is None or at <= now + self.early_ms or message_id in sub.released

    def receive(self) -> None:
        process, name = self.chance.choice(self.processes), self.chance.choice("sz")
        self.turn(process, name, self.chance.choice((1, 2, 5, 1000)))

    def settle(self) -> None:
        """Acknowledge, give back, or cancel: plainly or in a transaction that ends later."""
        process, name = self.chance.choice(self.processes), self.chance.choice("sz")
        sub, consumer = self.subs[name], process.consumers[name]
        own_messages = [
            message for message, who in sub.hands.items() if who == self.processes.index(process)
        ]
        free = [message for message in self.times if self.is_free(sub, message)]
        pool = self.chance.choice((own_messages, own_messages, free))
        chosen = self.chance.sample(pool, min(len(pool), self.chance.randrange(1, 5)))
        how = self.chance.choice(("ack", "txn", "nack"))
        if how == "nack":
            chosen = [message for message in chosen if message in own_messages]
            if chosen:
                consumer.negative_acknowledge(chosen)
                self.come_back(sub, chosen)
        elif not chosen:
            return
        elif how == "ack":
            consumer.acknowledge(chosen)
            for message in chosen:
                sub.acked.add(message)
                sub.hands.pop(message, None)
                sub.released.discard(message)
        else:
            txn = process.client.transaction(timeout_ms=10_000_000, write_through=True)
            consumer.acknowledge(chosen, txn=txn)
            for message in chosen:
                sub.pending[message] = txn
                sub.hands.pop(message, None)
                sub.released.discard(message)

    def come_back(self, sub: Sub, message_ids: list[MessageId]) -> None:
        for message_id in message_ids:
            del sub.hands[message_id]
            sub.released.add(message_id)

    def end(self) -> None:
        """End a transaction that acknowledged."""
        open_ones = {id(txn): txn for sub in self.subs.values() for txn in sub.pending.values()}
        if not open_ones:
            return
        txn = self.chance.choice(list(open_ones.values()))
        is_commit = self.chance.random() < 0.5
        if is_commit:
            txn.commit()
        else:
            txn.abort()
        for sub in self.subs.values():
            for message in [message for message, holder in sub.pending.items() if holder is txn]:
                del sub.pending[message]
                if is_commit:
                    sub.acked.add(message)

    def seek(self) -> None:
        process, name = self.chance.choice(self.processes), self.chance.choice("sz")
        sub = self.subs[name]
        if sub.pending:
            return
        process.consumers[name].seek("earliest")
        self.subs[name] = Sub()

    def restart(self) -> None:
        process = self.chance.choice(self.processes)
        number = self.processes.index(process)
        if any(sub.pending for sub in self.subs.values()):
            return
        for name, sub in self.subs.items():
            process.consumers[name].close()
            self.come_back(sub, [message for message, who in sub.hands.items() if who == number])
        process.client.close()
        process.client, clock = self.shop.process(0)
        clock.set_wall(process.clock.now().wall_ms)
        process.clock = clock
        self.start(process)

    def upkeep(self) -> None:
        process = self.chance.choice(self.processes)
        how = self.chance.random()
        if how < 0.6:
            tend(process.client.store, None)
        elif how < 0.7:
            merge_now(process.client.store, 1, self.chance.randrange(1, 3))
        elif how < 0.8:
            process.client.checkpoint(roll_all=self.chance.random() < 0.5)
        else:
            self.lose(process)

    def lose(self, process: Process) -> None:
        """Remove or damage the file of a bucket."""
        bucket_paths = [
            Path(self.shop.path) / path for path in process.client.store.read(self.buckets)
        ]
        if paths := [path for path in bucket_paths if path.exists()]:
            path = self.chance.choice(paths)
            if self.chance.random() < 0.5:
                path.unlink()
            else:
                data = bytearray(path.read_bytes())
                data[self.chance.randrange(len(data))] ^= 0xFF
                path.chmod(0o600)
                path.write_bytes(data)

    def buckets(self, view: View) -> list[str]:
        return [bucket.file.path for bucket in view.delayed(1).buckets]

    # --- the check ---------------------------------------------------------------------------

    def full_cycle(self) -> None:
        """After a full cycle no eligible message is left; with keys, none except behind a blocked
        key.
        """
        name = self.chance.choice("sz")
        sub = self.subs[name]
        if self.type == "key-shared":
            for process in self.processes:
                process.clock.set_wall(self.processes[0].clock.now().wall_ms)
        for process in self.processes:
            while self.turn(process, name, 1000):
                pass
        if self.type == "shared":
            for process in self.processes:
                now = process.clock.now().wall_ms
                remaining = [
                    time
                    for time in self.times
                    if self.is_free(sub, time) and self.is_due(sub, time, now)
                ]
                stray = len(self.places(process, name)) >= 3
                assert not remaining or stray, f"left at {now}: {remaining} of {self.times}"

    def places(self, process: Process, name: str) -> tuple[object, ...]:
        position = session_of(process.consumers[name]).receiving.place(1)
        return () if position is None else position.strays

    def step(self) -> None:
        deeds = (
            (self.send, 5),
            (self.send_in_txn, 3),
            (self.move, 5),
            (self.receive, 6),
            (self.settle, 6),
            (self.end, 2),
            (self.seek, 0.3),
            (self.restart, 0.4),
            (self.upkeep, 3),
            (self.full_cycle, 2),
        )
        [deed] = self.chance.choices([name for name, _ in deeds], [weight for _, weight in deeds])
        self.last = deed.__name__
        deed()


def run(folder: Path, seed: int, steps: int) -> None:
    """One history; the seed is printed when it fails."""
    print(f"seed {seed}")
    world = World(folder, seed, ("shared", "key-shared")[seed % 2])
    for _ in range(steps):
        world.step()
    for process in world.processes:
        process.clock.set_wall(T0 + 10_000_000)
    for sub in world.subs.values():
        for txn in {id(item): item for item in sub.pending.values()}.values():
            txn.abort()
        sub.pending.clear()
    for name, sub in world.subs.items():
        for process in world.processes:
            process.consumers[name].redeliver_unacknowledged_messages()
        world.come_back(sub, list(sub.hands))
        while any(world.turn(process, name, 1000) for process in world.processes):
            pass
        assert sub.acked | set(sub.hands) == set(world.times)
    world.shop.close()


def shrink(set_: Callable[[str, int], None]) -> None:
    """Make every limit of a look as small as possible."""
    plan = "txlog.engine.plan"
    for name, value in (
        ("delayed.due.LOOK_ROWS_MAX", 3),
        ("delayed.due.LOOK_ROWS", 2),
        ("consuming.choice.SCAN_ROWS_MAX", 3),
        ("consuming.choice.SCAN_ROWS_MIN", 2),
        ("delayed.index.FEW_ROWS_MAX", 0),
        ("delayed.index.SET_ROWS_MAX", 0),
        ("delayed.index.AT_ONCE", 2),
        ("delayed.index.KEPT_SEGMENTS_MAX", 1),
    ):
        set_(f"{plan}.{name}", value)


@pytest.mark.parametrize("seed", graded(range(6), (0,)))
def test_a_random_history(tmp_path: Path, seed: int) -> None:
    """No message comes early or twice, and none is left."""
    run(tmp_path / "store", seed, 120)


@pytest.mark.parametrize("seed", graded(range(200, 209), (200,)))
def test_a_random_history_with_small_steps(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same where every look ends early, and no set is small enough for row by row."""
    shrink(monkeypatch.setattr)
    run(tmp_path / "store", seed, 120)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1100))
def test_many_random_histories(tmp_path: Path, seed: int) -> None:
    """The same with more seeds."""
    run(tmp_path / "store", seed, 250)

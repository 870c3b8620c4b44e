"""The guarantee of watermarks, over random histories of honest producers.

No message of an honest producer is late for a consumer, after any acknowledgement, return, restart
or seek. The values of a consumer rise within an epoch. A delivered value survives a restart, and a
power cut at any moment. Source: spec/watermarks 4, 8, 9.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.crash.world import START_MS, after_reboot, new_disk, open_client
from tests.engine_kit import Bench, begin, kill, say
from tests.tiers import graded
from txlog import Client, Consumer, Message, MessageId, TxnId, messages
from txlog.base.choices import SubscriptionType
from txlog.base.ranges import Bound
from txlog.base.settings import Settings
from txlog.clock import ManualClock
from txlog.errors import TransactionConflict

pytestmark = pytest.mark.usefixtures("quick_disk")
SEED = int(os.environ.get("TXLOG_SEED", "20260101"))
HISTORIES = int(os.environ.get("TXLOG_HISTORIES", "1"))
PRODUCERS = ("A", "B", "C")
PARTITIONS = 2


class Honest:
    """Producers that keep their promise: no message after an assertion is older.

    said: by producer, the greatest time that it has asserted anywhere open: least time by
    transaction
    """

    def __init__(
        self, chance: random.Random, topic: str = "t", partitions: int = PARTITIONS
    ) -> None:
        self.chance = chance
        self.topic, self.partitions = topic, partitions
        self.said = dict.fromkeys(PRODUCERS, 1)
        self.open: dict[TxnId, dict[str, int]] = {}
        self.sent = 0

    def post(self, client: Client, txn: TxnId | None) -> None:
        who = self.chance.choice(PRODUCERS)
        time = self.said[who] + self.chance.randrange(8)
        if txn is not None:
            open_times = self.open[txn]
            open_times[who] = min(open_times.get(who, time), time)
        client.producer(self.topic).send(
            b"%d" % self.sent,
            event_time=time,
            txn=txn,
            properties={"by": who},
            partition=self.chance.randrange(self.partitions),
        )
        self.sent += 1

    def say(self, client: Client, txn: TxnId | None) -> None:
        who = self.chance.choice(PRODUCERS)
        open_times = [
            least[who] for other, least in self.open.items() if other != txn and who in least
        ]
        time = self.said[who] + self.chance.randrange(6)
        if txn is not None and who in self.open[txn] and self.chance.random() < 0.7:
            time = self.open[txn][who] + 5  # later than the messages of its own transaction
        time = min([time, *open_times])
        self.said[who] = max(self.said[who], time)
        say(client, who, time, txn=txn, topic=self.topic)


class Watched:
    """A consumer, and the values that it may deliver.

    most: by epoch, the greatest value that any consumer has delivered; it never falls
    """

    def __init__(
        self, client: Client, kind: SubscriptionType, name: str, most: dict[int, int]
    ) -> None:
        self.client, self.most = client, most
        self.consumer: Consumer = client.consumer(
            "t", "s", type=kind, name=name, enable_watermarking=True
        )
        self.is_new = True
        self.epoch_seen = -1
        self.held: list[Message] = []

    def epoch(self) -> int:
        return self.client.store.read(lambda view: view.cursor(1, 1).epoch, fresh=False)

    def turn(self, limit: int | None) -> bool:
        """Receive once; returns whether a message or value came."""
        watermark_before = self.consumer.get_last_watermark()
        if limit is None:
            message = self.consumer.receive()
            got = [] if message is None else [message]
        else:
            got = [*messages(self.consumer.receive_batch(limit))]
        now = self.consumer.get_last_watermark()
        if now is not None and (watermark_before is None or now.number > watermark_before.number):
            assert not got
            self._event(
                now.event_time, None if watermark_before is None else watermark_before.event_time
            )
            return True
        for each_message in got:
            assert not each_message.is_late, (each_message, now)
            assert (
                now is None
                or each_message.event_time is None
                or each_message.event_time >= now.event_time
            )
        self.held += got
        return bool(got)

    def _event(self, value: int, state_before: int | None) -> None:
        epoch = self.epoch()
        most = self.most.get(epoch)
        if self.is_new or self.epoch_seen != epoch:
            assert most is None or value >= most, "taken back"
        else:
            assert state_before is not None
            assert value > state_before
        self.is_new, self.epoch_seen = False, epoch
        self.most[epoch] = max(value, most or value)


def ids(some_messages: list[Message]) -> list[MessageId]:
    return [message.message_id for message in some_messages if message.message_id is not None]


@pytest.mark.parametrize("kind", graded(["shared", "exclusive", "key-shared"], 1))
@pytest.mark.parametrize("number", range(HISTORIES))
def test_no_message_of_an_honest_producer_is_late(
    tmp_path: Path, kind: SubscriptionType, number: int
) -> None:
    print("seed", SEED, kind, number)
    chance = random.Random(f"{SEED} {kind} {number}")
    bench = Bench(
        tmp_path / "store",
        ledger_entries_max=chance.choice((10, 1000)),
        watermark_snapshot_markers_max=chance.choice((1, 5)),
    )
    bench.client.create_topic("t", partitions=PARTITIONS)
    bench.client.create_subscription("t", "s", type=kind)
    honest, most = Honest(chance), dict[int, int]()
    for who in PRODUCERS:
        say(bench.client, who, 1)
    count = 1 if kind == "exclusive" else 2

    def attach() -> list[Watched]:
        return [Watched(bench.another(), kind, f"c{at}", most) for at in range(count)]

    watched = attach()
    events = 0
    for _ in range(250):
        act, client = chance.random(), bench.client
        txn = chance.choice([None, *honest.open])
        choice = chance.choice(watched)
        if act < 0.15:
            honest.post(client, txn)
        elif act < 0.3:
            honest.say(client, txn)
        elif act < 0.36:
            honest.open[begin(client, 600_000)] = {}
        elif act < 0.44 and txn is not None:
            del honest.open[txn]
            (client.commit if chance.random() < 0.7 else client.abort)(txn)
        elif act < 0.66:
            events += choice.turn(chance.choice((None, 1, 3, 100)))
        elif act < 0.82 and choice.held:
            sample = chance.sample(choice.held, chance.randint(1, len(choice.held)))
            acknowledge(choice, sample, chance)
        elif act < 0.85 and choice.held:
            sample = chance.sample(choice.held, 1)
            choice.consumer.negative_acknowledge(sample, 0)
            choice.held = [m for m in choice.held if m not in sample]
        elif act < 0.87:
            choice.consumer.redeliver_unacknowledged_messages()
            choice.held = []
        elif act < 0.9:
            at = watched.index(choice)
            choice.consumer.close()
            watched[at] = Watched(choice.client, kind, f"c{at}", most)
        elif act < 0.92:
            client.checkpoint(roll_all=chance.random() < 0.5)
        elif act < 0.94:
            where = Bound("start") if chance.random() < 0.3 else Bound("end")
            client.subscription("t", "s").seek(where)
            for other in watched:
                other.held = []
        elif act < 0.96:
            for other in watched:
                kill(other.consumer)
            bench.reopen()
            watched = attach()
    for txn in list(honest.open):
        bench.client.commit(txn)
    finish(watched)
    assert events
    assert most
    bench.close()


def acknowledge(watched_consumer: Watched, messages: list[Message], chance: random.Random) -> None:
    if chance.random() < 0.8:
        watched_consumer.consumer.acknowledge(ids(messages))
    else:
        txn = begin(watched_consumer.client, 600_000)
        try:
            watched_consumer.consumer.acknowledge(ids(messages), txn=txn)
            (
                watched_consumer.client.commit
                if chance.random() < 0.5
                else watched_consumer.client.abort
            )(txn)
        except TransactionConflict:
            return
    watched_consumer.held = [
        message for message in watched_consumer.held if message not in messages
    ]


def finish(watched: list[Watched]) -> None:
    """Receive and acknowledge every message; all consumers end at the same value."""
    for _ in range(100):
        busy = [watched_consumer.turn(100) for watched_consumer in watched]
        for watched_consumer in watched:
            watched_consumer.consumer.acknowledge(ids(watched_consumer.held))
            watched_consumer.held = []
        if not any(busy):
            break
    else:
        pytest.fail("it never ends")
    watermarks = {watched_consumer.consumer.get_last_watermark() for watched_consumer in watched}
    assert (
        len({known_items.event_time for known_items in watermarks if known_items is not None}) == 1
    )
    assert None not in watermarks


@pytest.mark.parametrize("number", range(HISTORIES))
def test_a_power_cut_takes_back_nothing_that_was_handed_out(number: int) -> None:
    """Invariant 6: at any step of the disk, whichever unflushed bytes survive."""
    print("seed", SEED, number)
    chance = random.Random(f"{SEED} power {number}")
    disk = new_disk(Settings(coordinators=1, reader_grace_ms=0, watermark_snapshot_markers_max=3))
    client = open_client(disk)
    client.create_topic("t", PARTITIONS)
    client.create_subscription("t", "s", type="shared")
    honest, most = Honest(chance), dict[int, int]()
    for who in PRODUCERS:
        say(client, who, 1)
    watched = Watched(client, "shared", "c", most)
    crashes = []

    def cut(op: str, path: str, **info: int) -> None:
        if chance.random() < 0.05:
            crashes.append((disk.fork_kill(), False, dict(most), f"{op} {path}"))
            crashes.extend(
                (image, True, dict(most), f"{op} {path}") for image in disk.images(chance, 2)
            )

    disk.step = cut
    for _ in range(60):
        act, txn = chance.random(), chance.choice([None, *honest.open])
        if act < 0.2:
            honest.post(client, txn)
        elif act < 0.45:
            honest.say(client, txn)
        elif act < 0.5:
            honest.open[begin(client, 600_000)] = {}
        elif act < 0.6 and txn is not None:
            del honest.open[txn]
            client.commit(txn)
        elif act < 0.8:
            watched.turn(chance.choice((None, 5)))
        elif act < 0.97:
            watched.consumer.acknowledge(ids(watched.held))
            watched.held = []
        else:
            client.checkpoint()
    disk.step = lambda op, path, **info: None
    assert most
    assert any(known_items for _, is_cut, known_items, _ in crashes if is_cut)
    for crashed, is_cut, known_items, label in crashes:
        clock = after_reboot() if is_cut else ManualClock(START_MS)
        watched_again = Watched(open_client(crashed, clock), "shared", "again", known_items)
        state_before = known_items.get(0)
        if watched_again.turn(None) and state_before is not None:
            assert watched_again.consumer.get_last_watermark() is not None, label
        last = watched_again.consumer.get_last_watermark()
        assert state_before is None or (last is not None and last.event_time >= state_before), label
        while watched_again.turn(100):
            watched_again.consumer.acknowledge(ids(watched_again.held))
            watched_again.held = []

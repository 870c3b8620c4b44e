"""Readers, consumers in memory and of several topics, against a model that reads every row.

Before each turn the model computes, from the rows alone and from the start of the log, the value
that the handle must deliver: that value, and no other. A message must be late exactly if it is
older than the last value; a message of an honest producer never is. Histories are random:
transactions that overlap, small ledgers, snapshots, checkpoints, seeks, redeliveries, topics and
partitions that are added. Source: spec/watermarks 4, 6, 8, 9.
"""

from __future__ import annotations

import os
import random
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.engine_kit import Bench, begin, say
from tests.tiers import graded
from tests.watermarks.test_guarantee import PARTITIONS, PRODUCERS, Honest, ids
from txlog import (
    Client,
    Message,
    MessageId,
    MultiTopicsConsumer,
    NonDurableConsumer,
    Reader,
    TxnId,
    messages,
)
from txlog.base.ids import TopicName
from txlog.base.ranges import END, START
from txlog.engine.folds.catalog import numbers
from txlog.engine.folds.watermark import Position, read_snapshot
from txlog.engine.model.ops import read_effects
from txlog.engine.model.schema import TXN_COMMIT, W_IDLE, W_SET, W_SNAPSHOT
from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.view import View

pytestmark = pytest.mark.usefixtures("quick_disk")
SEED = int(os.environ.get("TXLOG_SEED", "20260102"))
HISTORIES = int(os.environ.get("TXLOG_HISTORIES", "1"))
STEPS = 160
Place = tuple[str, int]  # topic, partition


class Wild(Honest):
    """Producers that promise nothing: their times fall, and they become idle and active again."""

    def post(self, client: Client, txn: TxnId | None) -> None:
        client.producer(self.topic).send(
            b"",
            event_time=self.chance.choice((None, *range(1, 60, 7))),
            txn=txn,
            partition=self.chance.randrange(self.partitions),
        )

    def say(self, client: Client, txn: TxnId | None) -> None:
        time = None if self.chance.random() < 0.25 else self.chance.randrange(1, 60)
        say(client, self.chance.choice(PRODUCERS), time, txn=txn, topic=self.topic)


class Raw(NamedTuple):
    """The status of a partition, and its value while it is active."""

    status: str
    value: int | None


def folded(view: View, number: int, position: Position) -> Raw:
    """The rows of a partition up to a position, folded from its start."""
    seen, active = False, dict[str, int]()
    for end in view.topic(number).ledgers:
        stop = end.entries if end.ledger < position[0] else min(end.entries, position[1] + 1)
        if end.ledger > position[0] or not stop:
            continue
        columns = ("kind", "producer", "event_time", "value")
        for table in view.rows([(end.ledger, 0, stop)], columns):
            times = table.column("event_time").cast("int64")
            rows = table.set_column(2, "event_time", times).to_pylist()
            for kind, name, time, value in (row.values() for row in rows):
                effects = []
                if kind == W_SET:
                    effects = [(name, False, time)]
                elif kind == W_IDLE:
                    effects = [(name, True, None)]
                elif kind == TXN_COMMIT and value is not None:
                    effects = read_effects(value)
                elif kind == W_SNAPSHOT and not seen:
                    snapshot = read_snapshot(value)
                    assert snapshot is not None
                    effects = [
                        (who, False, producer_state.event_time)
                        for who, producer_state in snapshot.state.active.items()
                    ]
                    seen = snapshot.state.seen
                for who, is_idle, to in effects:
                    seen = True
                    if is_idle:
                        active.pop(who, None)
                    if to is not None:
                        active[who] = max(to, active.get(who, to))
    if active:
        return Raw("active", min(active.values()))
    return Raw("idle" if seen else "unknown", None)


def raws(client: Client, topic: str, done: dict[int, set[MessageId]]) -> dict[int, Raw]:
    """The value before the first message of each partition that is not done."""
    firsts: dict[int, MessageId] = {}
    for table in client.read(topic):
        for message in messages(table):
            message_id = message.message_id
            assert message_id is not None
            if message_id not in done.get(message.partition, ()):
                firsts.setdefault(message.partition, message_id)

    def look(view: View) -> dict[int, Raw]:
        found_topic = find_topic(view, TopicName.parse(topic))
        out = {}
        for index, number in enumerate(numbers(found_topic)):
            last = view.topic(number).ledgers[-1]
            first = firsts.get(index)
            where = (
                (last.ledger, last.entries) if first is None else (first.ledger, first.entry - 1)
            )
            out[index] = folded(view, number, where)
        return out

    return client.store.read(look, fresh=False)


def expected(standings: dict[Place, Raw], clamps: dict[Place, int], last: int | None) -> int | None:
    """Section 8, word for word."""
    if not standings or any(raw.status == "unknown" for raw in standings.values()):
        return None
    active = {at: raw.value for at, raw in standings.items() if raw.value is not None}
    if active:
        value = min(max(raw, clamps.get(at, raw)) for at, raw in active.items())
    elif last is None and all(at in clamps for at in standings):
        value = min(clamps[at] for at in standings)
    else:
        return None
    return value if last is None or value > last else None


class Follower:
    """A reader or a consumer in memory, and the values that it must deliver."""

    def __init__(self, client: Client, kind: str, chance: random.Random) -> None:
        self.client, self.kind, self.chance = client, kind, chance
        where = chance.choice(("earliest", "latest"))
        self.handle: Reader | NonDurableConsumer = (
            client.reader("t", where, enable_watermarking=True)  # type: ignore[arg-type]
            if kind == "reader"
            else client.consumer("t", "m", durable=False, start=where, enable_watermarking=True)  # type: ignore[arg-type]
        )
        self.done: dict[int, set[MessageId]] = {}
        if where == "latest":
            self.done = everything(client, "t")
        self.clamps: dict[Place, int] = {}
        self.last: int | None = None
        self.number = 0
        self.held: list[Message] = []
        self.events = 0

    def turn(self, is_honest: bool) -> bool:
        """Receive once, and compare with the model; returns whether a message or value came."""
        standings = {("t", at): one for at, one in raws(self.client, "t", self.done).items()}
        want = expected(standings, self.clamps, self.last)
        handle, limit = self.handle, self.chance.choice((None, None, 1, 3, 100))
        if limit is not None:
            got = [*messages(handle.receive_batch(limit))]
        else:
            one = handle.read_next() if isinstance(handle, Reader) else handle.receive()
            got = [] if one is None else [one]
        now = handle.get_last_watermark()
        if want is not None:
            assert now is not None
            assert (now.event_time, now.number, got) == (want, self.number + 1, [])
            self.last, self.number = want, now.number
            for at in standings:
                self.clamps[at] = max(want, self.clamps.get(at, 0))
            self.events += 1
            return True
        assert (None if now is None else now.event_time) == self.last
        for message in got:
            check_late(message, self.last)
            message_id, done = message.message_id, self.done.setdefault(message.partition, set())
            assert message_id is not None
            assert message_id not in done or self.kind != "reader", "handed out twice"
            assert not (is_honest and message.is_late and message_id not in done), message
            done.add(message_id)
        self.held += got
        return bool(got)

    def seek(self) -> None:
        assert isinstance(self.handle, Reader)
        if self.held and self.chance.random() < 0.5:
            message = self.chance.choice(self.held)
            message_id, index = message.message_id, message.partition
            assert message_id is not None
            self.handle.seek(message_id)
            self.done[index] = {
                other
                for other in everything(self.client, "t").get(index, ())
                if (other.ledger, other.entry, other.index)
                < (message_id.ledger, message_id.entry, message_id.index)
            }
            self.clamps.pop(("t", index), None)
        else:
            where = self.chance.choice(("earliest", "latest"))
            self.handle.seek(where)  # type: ignore[arg-type]
            self.done = everything(self.client, "t") if where == "latest" else {}
            self.clamps = {}
        self.last, self.held = None, []

    def give_back(self) -> None:
        assert isinstance(self.handle, NonDurableConsumer)
        act = self.chance.random()
        if act < 0.3:
            self.handle.redeliver_unacknowledged_messages()
        elif self.held:
            sample = self.chance.sample(self.held, self.chance.randint(1, len(self.held)))
            if act < 0.6:
                self.handle.negative_acknowledge(sample)
            else:
                self.handle.acknowledge(sample)
            self.held = [message for message in self.held if message not in sample]


def check_late(message: Message, last: int | None) -> None:
    time = message.event_time
    assert message.is_late is (time is not None and last is not None and time < last)


def everything(client: Client, topic: str) -> dict[int, set[MessageId]]:
    out: dict[int, set[MessageId]] = {}
    for table in client.read(topic):
        for message in messages(table):
            assert message.message_id is not None
            out.setdefault(message.partition, set()).add(message.message_id)
    return out


def happen(honest: Honest, client: Client, act: float) -> bool:
    """Let a producer or a transaction act if `act` is below 0.5; returns whether it did."""
    txn = honest.chance.choice([None, *honest.open])
    if act < 0.15:
        honest.post(client, txn)
    elif act < 0.33:
        honest.say(client, txn)
    elif act < 0.4:
        honest.open[begin(client, 600_000)] = {}
    elif act < 0.48 and txn is not None:
        del honest.open[txn]
        (client.commit if honest.chance.random() < 0.7 else client.abort)(txn)
    elif act < 0.5:
        client.checkpoint(roll_all=honest.chance.random() < 0.5)
    return act < 0.5


def made(tmp_path: Path, chance: random.Random) -> Bench:
    return Bench(
        tmp_path / "store",
        ledger_entries_max=chance.choice((10, 1000)),
        watermark_snapshot_markers_max=chance.choice((1, 5)),
    )


@pytest.mark.parametrize("kind", graded(["reader", "in memory"], 1))
@pytest.mark.parametrize("producers", graded([Wild, Honest], 1))
@pytest.mark.parametrize("number", range(HISTORIES))
def test_a_handle_without_subscription_delivers_the_model_values(
    tmp_path: Path, kind: str, producers: type[Honest], number: int
) -> None:
    is_honest = producers is Honest
    label = f"{SEED} {kind} {producers.__name__} {number}"
    print("seed", label)
    chance = random.Random(label)
    bench = made(tmp_path, chance)
    client = bench.client
    client.create_topic("t", partitions=PARTITIONS)
    if is_honest:
        for who in PRODUCERS:
            say(client, who, 1)
    honest = producers(chance)
    followers = [Follower(client, kind, chance)]
    for _ in range(STEPS):
        act, follower = chance.random(), chance.choice(followers)
        if happen(honest, client, act):
            continue
        if act < 0.9:
            follower.turn(is_honest)
        elif act < 0.96:
            (follower.seek if kind == "reader" else follower.give_back)()
        elif act < 0.98 and len(followers) < 3:
            followers.append(Follower(client, kind, chance))
        elif client.describe_topic("t")["partitions"] < 4:
            client.admin.update_topic("t", partitions=client.describe_topic("t")["partitions"] + 1)
    for txn in honest.open:
        client.commit(txn)
    for follower in followers:
        for _ in range(1000):
            if not follower.turn(is_honest):
                break
        else:
            pytest.fail("it never ends")
        follower.handle.close()
    assert sum(follower.events for follower in followers)
    bench.close()


class Several:
    """A consumer of several topics, and the values that it must deliver.

    clamps, acked: of the subscription, shared with other consumers
    """

    def __init__(
        self,
        client: Client,
        kind: str,
        chance: random.Random,
        clamps: dict[Place, int],
        acked: dict[str, dict[int, set[MessageId]]],
    ) -> None:
        self.client, self.kind, self.chance = client, kind, chance
        self.clamps, self.acked = clamps, acked
        self.open()

    def open(self) -> None:
        self.consumer: MultiTopicsConsumer = self.client.consumer(
            re.compile("t[0-9]"),
            "s",
            type=self.kind,  # type: ignore[arg-type]
            create=True,
            enable_watermarking=True,
        )
        self.last: int | None = None
        self.number = 0
        self.held: list[Message] = []

    def turn(self) -> bool:
        """Receive once, and compare with the model; returns whether a message or value came."""
        topics, consumer = self.consumer.topics, self.consumer
        standings = {
            (topic, at): each_message
            for topic in topics
            for at, each_message in raws(self.client, topic, self.acked[topic]).items()
        }
        want = expected(standings, self.clamps, self.last)
        limit = self.chance.choice((None, None, 1, 3, 100))
        if limit is not None:
            got = [*messages(consumer.receive_batch(limit))]
        else:
            each_message = consumer.receive()
            got = [] if each_message is None else [each_message]
        now = consumer.get_last_watermark()
        if now is not None and now.number > self.number:
            if consumer.topics == topics:
                assert now.event_time == want
            assert not got
            assert self.last is None or now.event_time > self.last
            self.last, self.number = now.event_time, now.number
            for topic in consumer.topics:
                for at in range(self.client.describe_topic(topic)["partitions"]):
                    most = self.clamps.get((topic, at), 0)
                    self.clamps[topic, at] = max(most, now.event_time)
            return True
        assert want is None or consumer.topics != topics
        assert (None if now is None else now.event_time) == self.last
        for message in got:
            check_late(message, self.last)
        self.held += got
        return bool(got)

    def acknowledge(self, some_messages: list[Message]) -> None:
        self.consumer.acknowledge(ids(some_messages))
        for message in some_messages:
            assert message.message_id is not None
            self.acked[message.topic].setdefault(message.partition, set()).add(message.message_id)
        self.held = [message for message in self.held if message not in some_messages]


@pytest.mark.parametrize("kind", graded(["shared", "exclusive"], 1))
@pytest.mark.parametrize("producers", graded([Wild, Honest], 1))
@pytest.mark.parametrize("number", range(HISTORIES))
def test_a_consumer_of_a_pattern_delivers_the_model_values(
    tmp_path: Path, kind: str, producers: type[Honest], number: int
) -> None:
    """Topics join in the middle: their messages may be late, messages of older topics may not."""
    is_honest = producers is Honest
    label = f"{SEED} pattern {kind} {producers.__name__} {number}"
    print("seed", label)
    chance = random.Random(label)
    bench = made(tmp_path, chance)
    client = bench.client
    worlds: list[Honest] = []
    clamps, acked = dict[Place, int](), dict[str, dict[int, set[MessageId]]]()

    def add() -> None:
        topic, partitions = f"t{len(worlds)}", chance.choice((1, 2))
        client.create_topic(topic, partitions=partitions)
        acked[topic] = {}
        worlds.append(producers(chance, topic, partitions))
        if is_honest:
            for who in PRODUCERS:
                say(client, who, 1, topic=topic)

    add()
    add()
    count = 1 if kind == "exclusive" else 2
    several = [Several(client, kind, chance, clamps, acked) for _ in range(count)]
    for _ in range(STEPS):
        act, consumer = chance.random(), chance.choice(several)
        if happen(chance.choice(worlds), client, act):
            continue
        if act < 0.7:
            held_count = len(consumer.held)
            consumer.turn()
            for message in consumer.held[held_count:]:
                is_first = message.topic in ("t0", "t1")
                assert not (is_honest and is_first and message.is_late), message
        elif act < 0.87 and consumer.held:
            consumer.acknowledge(
                chance.sample(consumer.held, chance.randint(1, len(consumer.held)))
            )
        elif act < 0.91:
            chosen = chance.sample(consumer.held, chance.randint(0, len(consumer.held)))
            consumer.consumer.negative_acknowledge(chosen, 0)
            consumer.held = [message for message in consumer.held if message not in chosen]
        elif act < 0.94:
            consumer.consumer.close()
            consumer.open()
        elif act < 0.97:
            topic, to = chance.choice([*acked]), chance.choice((START, END))
            if all(topic in other.consumer.topics for other in several):
                client.subscription(topic, "s").seek(to)
                acked[topic] = everything(client, topic) if to is END else {}
                for at in [at for at in clamps if at[0] == topic]:
                    del clamps[at]
                for other in several:
                    other.last = None
                    other.held = [message for message in other.held if message.topic != topic]
        elif len(worlds) < 4:
            add()
    for world in worlds:
        for txn in world.open:
            client.commit(txn)
    for _ in range(1000):
        busy = [consumer.turn() for consumer in several]
        for consumer in several:
            consumer.acknowledge(consumer.held)
        if not any(busy):
            break
    else:
        pytest.fail("it never ends")
    last = {consumer.last for consumer in several}
    if is_honest:
        assert None not in last
        # a consumer that attaches after a slow topic has joined starts below its peers
        assert len(last) == 1 or len(worlds) > 2
    bench.close()

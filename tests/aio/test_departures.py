"""A waiting task is woken when a consumer leaves or dies whose messages concern it, and is not
woken by other departures.

Polling is switched off in these tests: if a wake-up is missing, the task never ends.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import txlog
import txlog.aio
from tests.aio.tasks import at_rest
from tests.engine_kit import begin, kill, lock_of
from tests.tiers import graded
from txlog.base.choices import SubscriptionType
from txlog.client.aio.waits import Found, Waits
from txlog.engine.plan.consuming.choice import slot_of, slots_of
from txlog.engine.session.consuming.membership import Membership
from txlog.engine.session.reading import pause

pytestmark = pytest.mark.usefixtures("quick_disk")
LONG_S = 600.0
ENOUGH_S = 15  # far less than the rest that a lost wake-up would end
KINDS = ("shared", "key-shared", "failover")


@pytest.fixture
def path(tmp_path: Path) -> str:
    store_path = str(tmp_path / "store")
    txlog.init(store_path, free_bytes_min=0)
    with txlog.open(store_path) as client:
        client.create_topic("fence")
        for topic in ("t", "elsewhere"):
            client.create_topic(topic)
            for kind in KINDS:
                client.create_subscription(topic, kind, type=kind)  # type: ignore[arg-type]
    return store_path


@pytest.fixture(autouse=True)
def never_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pause, "REST_SECONDS_MAX", LONG_S)
    monkeypatch.setattr("txlog.engine.session.consuming.receive.REST_SECONDS_MAX", LONG_S)
    monkeypatch.setattr("txlog.engine.session.consuming.ahead.REST_SECONDS_MAX", LONG_S)
    monkeypatch.setattr("txlog.client.aio.waits.STALL_SECONDS", LONG_S)  # on a machine under load


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The topic and the subscription of each check that a waiting consumer makes."""
    lines: list[str] = []
    look = pause.Waiting.look

    def looked(waiting: pause.Waiting) -> bool:
        of = waiting._rest.__self__  # type: ignore[attr-defined]
        lines.append(f"{of.short}/{of.subscription}")
        return look(waiting)

    monkeypatch.setattr(pause.Waiting, "look", looked)
    yield lines


class Scene:
    """A client with waiting tasks, and a second handle that acts as another process."""

    def __init__(self, here: txlog.aio.Client, there: txlog.Client) -> None:
        self.here, self.there = here, there
        self._fence = there.producer("fence")

    async def waiting(
        self, topic: str, kind: SubscriptionType, **options: Any
    ) -> asyncio.Task[Any]:
        consumer = await self.here.consumer(topic, kind, **options)
        return asyncio.ensure_future(consumer.receive())

    async def at_rest(self, count: int) -> None:
        await at_rest(self.here, count)

    async def all_told(self, count: int) -> None:
        """Wait until the client has processed all commits of the other process and `count` tasks
        wait again.
        """
        self._fence.send(b"fence")
        lsn = self.there.store.refresh()
        while self.here.waits._news.lsn < lsn:
            await asyncio.sleep(0)
        await self.at_rest(count)

    async def look_while_asked(self, peer: Any) -> None:
        """A peer dies. The only waiting task checks for messages before the client knows which
        tasks the death concerns.
        """
        gate, waits = threading.Event(), self.here.waits
        blocked = asyncio.ensure_future(self.here.run(lambda sync: gate.wait(60)))
        await asyncio.sleep(0)
        kill(peer)
        while waits._news.task is None:
            await asyncio.sleep(0)
        [resting] = waits._resting
        resting.set_result(None)  # as a timer would do
        while waits._resting:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        gate.set()
        await blocked


def run(path: str, main: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def opened() -> None:
        with txlog.open(path) as there:
            async with txlog.aio.open(path) as here, asyncio.timeout(ENOUGH_S):
                await main(Scene(here, there))

    asyncio.run(opened())


def value(message: txlog.Message | None) -> bytes:
    assert message is not None and message.value is not None
    return message.value


def took(consumer: Any) -> txlog.Message:
    message = consumer.receive()
    assert message is not None
    return cast(txlog.Message, message)


@pytest.mark.parametrize("leave", [lambda one: one.close(), kill], ids=["leaves", "dies"])
@pytest.mark.parametrize("kind", KINDS)
def test_peers_get_the_messages_of_a_consumer_that_leaves(
    path: str, looks: list[str], kind: SubscriptionType, leave: Callable[[Any], None]
) -> None:
    """They get them at once, even if the departure is not flushed yet.

    Tasks of other subscriptions do not check for messages.
    """

    async def main(scene: Scene) -> None:
        peer = scene.there.consumer("t", kind, name="a")
        scene.there.producer("t").send(b"m", key=b"k")
        assert took(peer).value == b"m"
        others = [await scene.waiting("elsewhere", other) for other in KINDS]  # type: ignore[arg-type]
        others += [await scene.waiting("t", other) for other in KINDS if other != kind]  # type: ignore[arg-type]
        heir = await scene.waiting("t", kind, name="b")
        # the other subscriptions of the topic get the message, too
        for one in others[3:]:
            assert value(await one) == b"m"
        await scene.all_told(4)
        looks.clear()
        leave(peer)
        assert value(await heir) == b"m"
        await scene.all_told(3)
        assert set(looks) == {f"t/{kind}"}
        assert len(looks) <= 20
        for one in others[:3]:
            one.cancel()

    run(path, main)


def test_consumer_without_messages_leaves_without_waking_others(
    path: str, looks: list[str]
) -> None:
    """This holds for consumers of this process and of another one.

    A new consumer of a shared subscription wakes no peer either.
    """

    async def main(scene: Scene) -> None:
        tasks = [await scene.waiting("t", "shared") for _ in range(3)]
        tasks += [await scene.waiting("elsewhere", kind) for kind in KINDS]  # type: ignore[arg-type]
        await scene.at_rest(6)
        looks.clear()
        for _ in range(3):
            scene.there.consumer("t", "shared").close()
            new_consumer = await scene.here.consumer("t", "shared")
            await new_consumer.close()
            await scene.all_told(6)
        assert looks == []
        for task in tasks:
            task.cancel()

    run(path, main)


def test_ordered_subscriptions_check_again_when_members_change(path: str, looks: list[str]) -> None:
    """In failover and key-shared subscriptions, all members together decide which consumer gets a
    message.
    """

    async def main(scene: Scene) -> None:
        first = scene.there.consumer("t", "failover", name="a")
        second = await scene.waiting("t", "failover", name="b")
        keys = [await scene.waiting("t", "key-shared") for _ in range(2)]
        await scene.at_rest(3)
        looks.clear()
        scene.there.consumer("t", "key-shared").close()
        await scene.all_told(3)
        assert set(looks) == {"t/key-shared"}
        looks.clear()
        first.close()
        await scene.all_told(3)
        assert set(looks) == {"t/failover"}
        scene.there.producer("t").send(b"m", key=b"k")
        assert value(await second) == b"m"
        for task in keys:
            task.cancel()

    run(path, main)


def test_acknowledgements_and_leases_wake_no_task(path: str, looks: list[str]) -> None:
    """They only leave fewer messages for the other consumers.

    A message that is given back does wake them.
    """

    async def main(scene: Scene) -> None:
        peer = scene.there.consumer("t", "shared", receiver_queue_size=0)
        for text in (b"1", b"2", b"3"):
            scene.there.producer("t").send(text)
        first, _, _ = took(peer), took(peer), took(peer)
        own_task = await scene.waiting("t", "shared")
        await scene.at_rest(1)
        scene.there.producer("t").send(b"4")
        assert value(await own_task) == b"4"
        own_task = await scene.waiting("t", "shared")
        await scene.all_told(1)
        looks.clear()
        with scene.there.transaction() as txn:
            peer.acknowledge(first, txn=txn)
        await scene.all_told(1)
        assert looks == []
        peer.redeliver_unacknowledged_messages()
        assert value(await own_task) == b"2"

    run(path, main)


def test_standby_takes_over_when_the_previous_consumer_has_acknowledged(path: str) -> None:
    """The standby has become active by its name, but gets no message while the previous consumer
    has unacknowledged ones.

    The acknowledgement need not be flushed.
    """

    async def main(scene: Scene) -> None:
        consumer_before = scene.there.consumer("t", "failover", name="b", receiver_queue_size=0)
        scene.there.producer("t").send(b"1")
        message = took(consumer_before)
        scene.there.producer("t").send(b"2")
        task_after = await scene.waiting("t", "failover", name="a")
        await scene.all_told(1)
        consumer_before.acknowledge(message)
        assert value(await task_after) == b"2"

    run(path, main)


@pytest.mark.parametrize("kind", ["shared", "key-shared"])
def test_delayed_nack_is_received_when_its_time_has_come(path: str, kind: SubscriptionType) -> None:
    """Waiting tasks are woken when the delayed nack is made, so that they know when to
    check again.
    """

    async def main(scene: Scene) -> None:
        peer = scene.there.consumer("t", kind)
        scene.there.producer("t").send(b"m", key=b"k")
        message = took(peer)
        own_task = await scene.waiting("t", kind)
        await scene.all_told(1)
        peer.negative_acknowledge(message, 50)
        peer.close()
        assert value(await own_task) == b"m"

    run(path, main)


def test_message_of_a_timed_out_transaction_comes_back(path: str) -> None:
    """The message comes back although no other process acts when the transaction times out, for
    example because its owner hangs.
    """

    async def main(scene: Scene) -> None:
        peer = scene.there.consumer("t", "shared", receiver_queue_size=0)
        scene.there.producer("t").send(b"m")
        message = took(peer)
        own_task = await scene.waiting("t", "shared")
        await scene.all_told(1)
        txn = begin(scene.there, timeout_ms=1000)
        peer.acknowledge(message, txn=txn)
        await scene.all_told(1)
        assert value(await own_task) == b"m"

    run(path, main)


@pytest.mark.parametrize("ack_timeout_ms", [None, 600_000])
def test_waiting_task_knows_the_ack_timeout_of_a_peer(
    path: str, looks: list[str], ack_timeout_ms: int | None
) -> None:
    """If the peer hangs, the other consumers have to give back its messages when the timeout is
    over.
    """

    async def main(scene: Scene) -> None:
        peer = scene.there.consumer("t", "failover", name="a", ack_timeout_ms=ack_timeout_ms)
        standby = await scene.waiting("t", "failover", name="b")
        await scene.at_rest(1)
        scene.there.producer("t").send(b"m")
        await scene.all_told(1)
        looks.clear()
        assert took(peer).value == b"m"
        await scene.all_told(1)
        assert bool(looks) == bool(ack_timeout_ms)
        standby.cancel()

    run(path, main)


def test_task_that_checked_during_the_lookup_of_a_death_is_looked_up_again(path: str) -> None:
    """The check of the task counted the departure, but was not thorough enough to find the
    message.
    """

    async def main(scene: Scene) -> None:
        peer = scene.there.consumer("t", "shared")
        scene.there.producer("t").send(b"m")
        took(peer)
        own_task = await scene.waiting("t", "shared")
        await scene.all_told(1)
        await scene.look_while_asked(peer)
        assert value(await own_task) == b"m"

    run(path, main)


@pytest.mark.parametrize("kind", ["failover", "key-shared"])
def test_standby_whose_check_counted_the_death_takes_over(
    path: str, kind: SubscriptionType
) -> None:
    """The standby checked for a message and did not ask whether a peer had died; the checks that
    follow have to ask.

    A key-shared consumer also reacts to appends from then on, and is not among the tasks that the
    client wakes for departures.
    """

    async def main(scene: Scene) -> None:
        peer = scene.there.consumer("t", kind, name="a", receiver_queue_size=0)
        other = await scene.waiting("elsewhere", "shared")
        standby = await scene.waiting("t", kind, name="b")
        slots = slots_of((peer.id, peer.id + 2), peer.id)
        key = next(key for key in map(bytes, range(99)) if slot_of(key) in slots)
        await scene.at_rest(2)
        assert scene.here.sync.store.wakeups.heed_appends()  # as another task would do
        gates, waits = [threading.Event() for _ in range(2)], scene.here.waits
        blocked = [asyncio.ensure_future(scene.here.run(lambda sync: gates[0].wait(60)))]
        await asyncio.sleep(0)
        scene.there.producer("t").send(b"m", key=key)
        assert took(peer).value == b"m"
        scene.there.flush()
        while waits._news.task is None:
            await asyncio.sleep(0)
        blocked.append(asyncio.ensure_future(scene.here.run(lambda sync: gates[1].wait(60))))
        await asyncio.sleep(0)
        gates[0].set()
        await scene.at_rest(1)
        while len(waits._resting) > 1:
            await asyncio.sleep(0)
        tally = scene.here.sync.store.wakeups.tally
        departures_before = tally.departures
        kill(peer)
        while tally.departures == departures_before:
            await asyncio.sleep(0)
        gates[1].set()
        assert value(await standby) == b"m"
        await asyncio.wait(blocked)
        other.cancel()

    run(path, main)


def test_death_reported_during_a_check_is_looked_up_again(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report comes after the check has looked for dead peers, and before it notes how many have
    left.
    """
    reap, dying = Membership.reap, list[Callable[[], None]]()

    def reaped(member: Membership, *, now: bool) -> bool:
        result = reap(member, now=now)
        if now and dying:
            dying.pop()()
        return result

    async def main(scene: Scene) -> None:
        peer = scene.there.consumer("t", "failover", name="a")
        scene.there.producer("t").send(b"m")
        took(peer)
        other = await scene.waiting("elsewhere", "shared")
        await scene.at_rest(1)
        wakeups = scene.here.sync.store.wakeups

        def die() -> None:
            departures_before = wakeups.tally.departures
            kill(peer)
            while wakeups.tally.departures == departures_before:
                wakeups.drain()

        monkeypatch.setattr(Membership, "reap", reaped)
        dying.append(die)
        standby = await scene.waiting("t", "failover", name="b")
        assert value(await standby) == b"m"
        assert not dying
        other.cancel()

    run(path, main)


@pytest.mark.parametrize("kind", KINDS)
def test_death_is_found_when_the_lock_is_free_only_after_the_file_event(
    path: str, monkeypatch: pytest.MonkeyPatch, kind: SubscriptionType
) -> None:
    """The kernel reports the closed file first.

    The dying process may need a long time until it has released the lock.
    """
    reap, dying = Membership.reap, list[Any]()

    def reaped(member: Membership, *, now: bool) -> bool:
        result = reap(member, now=now)
        if member.sees_one_go:
            dying.pop().release()  # no event reports the release
        return result

    async def main(scene: Scene) -> None:
        peer = scene.there.consumer("t", kind, name="a")
        scene.there.producer("t").send(b"m")
        took(peer)
        own_task = await scene.waiting("t", kind, name="b")
        await scene.all_told(1)
        monkeypatch.setattr(Membership, "reap", reaped)
        dying.append(lock_of(peer))
        (Path(path) / "consumers" / f"{peer.id}.lock").open("r+b").close()
        assert value(await own_task) == b"m"

    run(path, main)


def test_task_checks_for_a_death_even_if_only_appends_followed(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its check counted the departure; an append follows, to which other tasks react."""
    changed_since, appended = Waits._changed_since, list[bool]()

    async def main(scene: Scene) -> None:
        peer = scene.there.consumer("t", "shared")
        appender = scene.there.consumer("elsewhere", "shared", receiver_queue_size=0)
        for topic in ("t", "elsewhere"):
            scene.there.producer(topic).send(b"m")
        took(peer)
        theirs = took(appender)
        own_task = await scene.waiting("t", "shared")
        await scene.all_told(1)
        waits, wakeups = scene.here.waits, scene.here.sync.store.wakeups

        def asked(self: Waits, lsn: int, departures: int) -> Found:
            changes = changed_since(self, lsn, departures)
            if changes.bereft and waits._resting and not appended:
                appended.append(wakeups.heed_appends())
                appends_before = wakeups.tally.appends
                appender.acknowledge(theirs)
                while wakeups.tally.appends == appends_before:
                    wakeups.drain()
            return changes

        monkeypatch.setattr(Waits, "_changed_since", asked)
        await scene.look_while_asked(peer)
        assert value(await own_task) == b"m"
        assert appended == [True]

    run(path, main)


def test_after_too_many_departures_every_task_checks(
    path: str, looks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of departed consumers is limited, so that it does not grow without end."""
    monkeypatch.setattr("txlog.engine.store.wakeups.GONE_MAX", 2)

    async def main(scene: Scene) -> None:
        peer = scene.there.consumer("t", "shared")
        scene.there.producer("t").send(b"m")
        took(peer)
        own_task = await scene.waiting("t", "shared")
        other = await scene.waiting("elsewhere", "shared")
        await scene.all_told(2)
        looks.clear()
        kill(peer)
        for _ in range(3):  # before the client passes any of it on
            scene.there.consumer("elsewhere", "failover").close()
        assert value(await own_task) == b"m"
        await scene.all_told(1)
        assert "elsewhere/shared" in looks
        other.cancel()

    run(path, main)


@pytest.mark.parametrize("seed", graded(range(6), 1))
def test_no_task_misses_a_departure(path: str, seed: int) -> None:
    """Consumers come, take messages, and leave or die with unacknowledged messages, here and in
    another process, all the time. The consumers that stay acknowledge each message in the end.
    """
    chance = random.Random(seed)
    count = 40

    async def drain(scene: Scene, kind: SubscriptionType, done: set[bytes]) -> None:
        consumer = await scene.here.consumer("t", kind)
        while len(done) < count:
            message = await consumer.receive()
            assert message is not None
            await consumer.acknowledge(message)
            done.add(value(message))

    async def visit(scene: Scene, kind: SubscriptionType, done: set[bytes]) -> None:
        rng = random.Random(f"{seed} {kind}")
        while len(done) < count:
            if rng.random() < 0.5:
                here = await scene.here.consumer("t", kind)
                taking = asyncio.ensure_future(here.receive())
                for _ in range(rng.randrange(20)):
                    await asyncio.sleep(0)
                taking.cancel()
                await asyncio.wait([taking])
                await here.close()
                continue

            def pass_by() -> None:
                there = scene.there.consumer("t", kind)
                there.receive_batch(rng.randrange(1, 4), 0)
                if rng.random() < 0.5:
                    kill(there)
                else:
                    there.close()

            await asyncio.to_thread(pass_by)

    async def main(scene: Scene) -> None:
        tasks = []
        for kind in KINDS:
            done: set[bytes] = set()
            drains = [asyncio.ensure_future(drain(scene, kind, done)) for _ in range(3)]  # type: ignore[arg-type]
            visits = asyncio.ensure_future(visit(scene, kind, done))  # type: ignore[arg-type]
            tasks.append((drains, visits))
        producer = await scene.here.producer("t")
        for number in range(count):
            await producer.send(b"%d" % number, key=b"%d" % chance.randrange(5))
        for drains, visits in tasks:
            await asyncio.wait(drains, return_when=asyncio.FIRST_COMPLETED)
            await visits
            for task in drains:
                task.cancel()
            await asyncio.wait(drains)

    run(path, main)

"""A call that waits blocks no other call of its client."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txlog
import txlog.aio
from tests.aio.tasks import at_rest, tasks_at_rest
from tests.engine_kit import mutex_of, witness_of
from tests.tiers import graded
from txlog.engine.session.reading import pause
from txlog.engine.session.sending import outbox
from txlog.engine.session.transactions import buffer
from txlog.engine.store.store import Store
from txlog.engine.view import View
from txlog.errors import AlreadyClosed, InvalidArgument, NotAllowed, NotFound

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def path(tmp_path: Path) -> str:
    store_path = str(tmp_path / "store")
    txlog.init(store_path, free_bytes_min=0)
    with txlog.open(store_path) as client:
        client.create_topic("t", 2)
    return store_path


def run(path: str, main: Callable[[txlog.aio.Client], Coroutine[Any, Any, None]]) -> None:
    async def opened() -> None:
        async with txlog.aio.open(path) as client:
            await main(client)

    asyncio.run(opened())


async def resting(client: txlog.aio.Client, act: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """A task that waits, in the event loop."""
    task = asyncio.ensure_future(act)
    while not tasks_at_rest(client):
        assert not task.done()
        await asyncio.sleep(0)
    return task


def test_a_commit_waits_for_a_partition_as_a_task(path: str) -> None:
    async def main(client: txlog.aio.Client) -> None:
        producer = await client.producer("t")
        begun = await client.run(lambda sync: sync.begin())
        await producer.send(b"a", partition=0, txn=begun["txn"])
        await client.run(lambda sync: sync.admin.set_offline("t", 0))
        task = await resting(client, client.commit(begun["txn"], 600_000))
        assert len(await client.topics()) == 1  # the thread is free
        await client.run(lambda sync: sync.admin.set_online("t", 0))
        await client.run(lambda sync: sync.expire())
        assert (await task)["state"] == "committed"

    run(path, main)


def test_waits_for_conditions_and_changes_are_tasks(path: str) -> None:
    async def main(client: txlog.aio.Client) -> None:
        producer = await client.producer("t")
        task = await resting(client, client.wait(["t"], messages=1))
        await producer.send(b"a")
        assert (await task)["met"]
        assert not (await client.wait(["t"], messages=2, timeout_ms=0))["met"]
        with pytest.raises(InvalidArgument):
            await client.wait()
        seen = await client.wait_for_change(0)
        assert seen == await client.wait_for_change(seen)
        task = await resting(client, client.wait_for_change(seen, None))
        await producer.send(b"b")
        assert await task > seen

    run(path, main)


def test_notification_read_by_a_thread_reaches_the_tasks(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that waits at the same time may read the notification first, so that the event loop
    finds nothing to read.
    """
    for name in ("POLL_SECONDS_MIN", "POLL_SECONDS_MAX", "REST_SECONDS_MAX"):
        monkeypatch.setattr(pause, name, 600.0)

    async def main(client: txlog.aio.Client) -> None:
        wakeups = client.sync.store.wakeups
        reader = await client.reader("t")
        task = await resting(client, reader.read_next(None))
        with txlog.open(path) as other:
            seen = wakeups.count
            other.producer("t").send(b"a")
            assert wakeups.wait(seen, 60)  # as such a thread would do
        message = await asyncio.wait_for(task, 5)  # the wake-up is on its way already
        assert message is not None and message.value == b"a"

    run(path, main)


def test_a_full_queue_holds_up_one_task_and_not_the_loop(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_room = outbox._Sender.make_room

    def never_blocking(sender: Any, queue: outbox.ProducerQueue, size: int) -> None:
        assert not queue.batching.block_if_queue_full, "the loop would wait here"
        make_room(sender, queue, size)

    monkeypatch.setattr(outbox._Sender, "make_room", never_blocking)

    async def main(client: txlog.aio.Client) -> None:
        options = {"max_pending_messages": 1, "block_if_queue_full": True}
        producer = await client.producer("t", **options)  # type: ignore[arg-type]
        with mutex_of(client.sync).held():
            tasks = [asyncio.ensure_future(producer.send(b"a")) for _ in range(3)]
            for _ in range(10):
                await asyncio.sleep(0)
            assert not any(task.done() for task in tasks)
        await asyncio.wait(tasks)
        assert all(task.result().message_id for task in tasks)

    run(path, main)


@pytest.mark.parametrize("where", ["value", "key", "ordering_key", "properties"])
def test_the_loop_does_not_write_what_waits_in_a_transaction(
    path: str, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Guards against a size in characters: the buffer counts bytes, and is full sooner."""
    wrote: list[int] = []
    submit = Store.submit

    def noted(store: Store, calls: list[Any]) -> None:
        wrote.append(threading.get_ident())
        submit(store, calls)

    monkeypatch.setattr(Store, "submit", noted)
    monkeypatch.setattr(buffer, "TXN_BUFFER_BYTES_MAX", 1_000)
    text: Any = "\N{EURO SIGN}" * 100
    options: dict[str, Any] = {where: {"p": text} if where == "properties" else text}

    async def main(client: txlog.aio.Client) -> None:
        producer = await client.producer("t")
        async with client.transaction() as txn:
            for _ in range(8):
                await producer.send(**({"value": "a"} | options), txn=txn)
            assert wrote
        assert threading.get_ident() not in wrote

    run(path, main)


def test_blocking_call_holds_up_no_other_call(path: str) -> None:
    """This also holds after its task was cancelled. Closing the client ends the call."""
    ended = threading.Event()
    begun = threading.Event()

    def block(sync: txlog.Client) -> None:
        begun.set()
        try:
            sync.wait(["t"], messages=5)
        except (AlreadyClosed, NotAllowed):
            ended.set()
            raise

    async def main(client: txlog.aio.Client) -> None:
        release = threading.Event()
        task = asyncio.ensure_future(
            client.run(lambda sync: (release.wait(60), sync.topics())[1], blocking=True)
        )
        assert len(await client.topics()) == 1
        release.set()
        assert len(await task) == 1
        blocked = asyncio.ensure_future(client.run(block, blocking=True))
        while not begun.is_set():
            await asyncio.sleep(0)
        blocked.cancel()
        await asyncio.wait([blocked])
        assert len(await client.topics()) == 1 and not ended.is_set()

    run(path, main)
    assert ended.wait(60)


def test_commit_wakes_only_the_tasks_of_its_topic(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cost of a commit does not depend on the number of tasks that wait for other topics: one
    lookup serves all tasks.
    """
    looks: list[str] = []
    questions = 0
    look, since = pause.Waiting.look, View.changed_since

    def looked(waiting: pause.Waiting) -> bool:
        looks.append("")
        return look(waiting)

    def asked(view: View, lsn: int) -> Any:
        nonlocal questions
        questions += 1
        return since(view, lsn)

    async def main(client: txlog.aio.Client) -> None:
        await client.create_topic("elsewhere")
        other, own_producer = await client.producer("elsewhere"), await client.producer("t")
        async with client.transaction() as txn:
            await other.send(b"its sidecar is there", txn=txn)
        consumers = [await client.consumer("t", f"s{n}", create=True) for n in range(10)]
        readers = [await client.reader("t") for _ in range(10)]
        tasks = [asyncio.ensure_future(handle.receive()) for handle in consumers]
        tasks += [asyncio.ensure_future(handle.read_next(None)) for handle in readers]
        await at_rest(client, 20)
        monkeypatch.setattr(pause.Waiting, "look", looked)
        monkeypatch.setattr(View, "changed_since", asked)
        for number in range(5):
            count_before = client.waits._heard.count
            if number % 2:
                await other.send(b"x")
            else:
                async with client.transaction() as txn:
                    await other.send(b"x", txn=txn)
            while client.waits._heard.count == count_before:
                await asyncio.sleep(0)
            await at_rest(client, 20)
        assert looks == []
        assert 5 <= questions <= 12
        await own_producer.send(b"y", partition=0)
        assert [message and message.value for message in await asyncio.gather(*tasks)] == [
            b"y"
        ] * 20
        assert len(looks) >= 20
        for handle in consumers:
            await handle.close()

    run(path, main)


def test_other_changes_than_commits_wake_every_task(path: str) -> None:
    """When a subscription is deleted or a consumer leaves, every waiting task checks again."""

    async def main(client: txlog.aio.Client) -> None:
        consumer = await client.consumer("t", "s", create=True)
        second = await client.consumer("t", "u", create=True)
        task = asyncio.ensure_future(consumer.receive())
        other = asyncio.ensure_future(second.receive())
        await at_rest(client, 2)
        await client.run(lambda sync: sync.subscription("t", "s").delete(force=True))
        with pytest.raises(NotFound):
            await task
        await at_rest(client, 1)
        assert not other.done()
        other.cancel()

    run(path, main)


@pytest.mark.parametrize("has_news", [False, True])
def test_stalled_flush_wakes_each_task_once(
    path: str, has_news: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that began the flush may be dead.

    The flush may have begun before the client passes on a commit that precedes it.
    """
    monkeypatch.setattr("txlog.client.aio.waits.STALL_SECONDS", 0.0)
    monkeypatch.setattr(pause, "REST_SECONDS_MAX", 600.0)
    looks, look = list[pause.Waiting](), pause.Waiting.look

    def looked(waiting: pause.Waiting) -> bool:
        looks.append(waiting)
        return look(waiting)

    async def main(client: txlog.aio.Client) -> None:
        await client.create_topic("elsewhere")
        consumer = await client.consumer("t", "s", create=True)
        task = asyncio.ensure_future(consumer.receive())
        await at_rest(client, 1)
        monkeypatch.setattr(pause.Waiting, "look", looked)
        with txlog.open(path) as other:
            if has_news:
                other.producer("elsewhere").send(b"m")
            witness = witness_of(other)
            record = witness.read()
            assert record is not None
            record.flushing_lsn = record.durable_lsn + 1
            witness.write(record)
            woken = client.sync.store.wakeups
            async with asyncio.timeout(30):
                while woken._stalled != record.seq:
                    await asyncio.sleep(0)
            await at_rest(client, 1)
            assert woken.flushing == 0
        assert len(looks) == 1
        task.cancel()

    run(path, main)


@pytest.mark.parametrize("rests", [False, True])
def test_flush_that_another_waiter_noticed_is_also_supervised(
    path: str, rests: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two cases: a thread noticed it and had waited long enough; or a task noticed it that was the
    only one, before this task began to wait.
    """
    monkeypatch.setattr("txlog.client.aio.waits.STALL_SECONDS", 0.0)
    monkeypatch.setattr(pause, "REST_SECONDS_MAX", 600.0)

    async def main(client: txlog.aio.Client) -> None:
        woken, seen = client.sync.store.wakeups, await client.wait_for_change(0)
        woken.begin()
        task = asyncio.ensure_future(client.wait_for_change(seen, None))
        await at_rest(client, rests)
        with txlog.open(path) as other:
            witness = witness_of(other)
            record = witness.read()
            assert record is not None
            record.flushing_lsn = record.durable_lsn + 1
            witness.write(record)
            if rests:
                while not woken.flushing:
                    woken.wait(woken.count, 0.01)
            else:
                woken.drain()
            async with asyncio.timeout(30):
                while woken._stalled != record.seq:
                    await asyncio.sleep(0)
        task.cancel()

    run(path, main)


@pytest.mark.parametrize("seed", graded(range(3), 1))
def test_no_task_misses_a_message(path: str, seed: int) -> None:
    """The message may come before, while or after a task begins to wait, from this process or from
    another one.
    """
    chance = random.Random(seed)
    topics = [f"t{number}" for number in range(6)]
    counts = {topic: chance.randrange(1, 40) for topic in topics}

    def send(sync: txlog.Client, rng: random.Random) -> None:
        order = [topic for topic, count in counts.items() for _ in range(count)]
        rng.shuffle(order)
        for topic in order:
            if rng.random() < 0.3:
                with sync.transaction() as txn:
                    sync.producer(topic).send(b"m", txn=txn)
            else:
                sync.producer(topic).send(b"m")
            if rng.random() < 0.05:
                sync.checkpoint()

    async def drain(client: txlog.aio.Client, topic: str, name: str) -> int:
        consumer = await client.consumer(topic, name)
        for _ in range(2 * counts[topic]):
            message = await consumer.receive()
            assert message is not None
            await consumer.acknowledge(message)
        await consumer.close()
        return 2 * counts[topic]

    async def follow(client: txlog.aio.Client, topic: str) -> int:
        reader = await client.reader(topic)
        for _ in range(2 * counts[topic]):
            assert await reader.read_next(None) is not None
        return 2 * counts[topic]

    async def main(client: txlog.aio.Client) -> None:
        for topic in topics:
            await client.create_topic(topic)
            for name in ("a", "b"):
                await client.create_subscription(topic, name)
        draining = [
            asyncio.ensure_future(drain(client, topic, name)) for topic in topics for name in "ab"
        ]
        draining += [asyncio.ensure_future(follow(client, topic)) for topic in topics]
        with txlog.open(path) as there:
            elsewhere = asyncio.to_thread(send, there, random.Random(seed + 10))
            here = client.run(lambda sync: send(sync, random.Random(seed + 20)))
            # far less than the pause after which a task with a lost wake-up would check again
            async with asyncio.timeout(50):
                await asyncio.gather(elsewhere, here)
                assert sum(await asyncio.gather(*draining)) == 6 * sum(counts.values())

    run(path, main)


WAITS: dict[str, Callable[[txlog.aio.Client], Any]] = {
    "receive": lambda client: (
        client.consumer("t", "s", create=True),
        lambda it: it.receive(None),
    ),
    "receive_batch": lambda client: (
        client.consumer("t", "s", create=True),
        lambda it: it.receive_batch(5, timeout_ms=None),
    ),
    "in memory": lambda client: (
        client.consumer("t", "glance", durable=False),
        lambda it: it.receive(None),
    ),
    "read_next": lambda client: (client.reader("t"), lambda it: it.read_next(None)),
    "follow": lambda client: (client.reader("t"), lambda it: anext(it.follow())),
    "table view": lambda client: (client.table_view("t"), lambda it: it.wait()),
}


@pytest.mark.parametrize("name", WAITS)
@pytest.mark.parametrize("closes", ["client", "handle"])
def test_closing_ends_the_tasks_that_wait(
    path: str, name: str, closes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`close` is final: a waiting call raises AlreadyClosed, as it does for threads."""
    for constant in ("POLL_SECONDS_MIN", "POLL_SECONDS_MAX", "REST_SECONDS_MAX"):
        monkeypatch.setattr(pause, constant, 600.0)

    async def main(client: txlog.aio.Client) -> None:
        opening, call = WAITS[name](client)
        handle = await opening
        task = await resting(client, call(handle))
        await (client if closes == "client" else handle).close()
        with pytest.raises(AlreadyClosed):
            await asyncio.wait_for(task, 30)

    run(path, main)


async def shared_tasks(client: txlog.aio.Client, count: int) -> list[asyncio.Task[Any]]:
    """Tasks that wait for messages of one Shared subscription."""
    consumers = [await client.consumer("t", "s", type="shared", create=True) for _ in range(count)]
    tasks = [asyncio.ensure_future(consumer.receive()) for consumer in consumers]
    await at_rest(client, count)
    return tasks


@pytest.mark.parametrize("count", [1, 3, 8])
def test_as_many_tasks_of_a_shared_subscription_get_messages(path: str, count: int) -> None:
    async def main(client: txlog.aio.Client) -> None:
        tasks = await shared_tasks(client, 8)
        producer = await client.producer("t")
        await producer.send_batch(pa.table({"value": [b"a"] * count}))
        async with asyncio.timeout(30):  # far less than the rest that a lost wake-up would end
            while sum(task.done() for task in tasks) < count:
                await asyncio.sleep(0)
            await at_rest(client, 8 - count)
        assert {task.result().value for task in tasks if task.done()} == {b"a"}

    run(path, main)


def test_a_task_that_fails_wakes_the_next_of_its_subscription(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a message that stays with nobody, as the consumer that was woken for it has failed."""
    is_broken = True
    look = pause.Waiting.look

    def looked(waiting: pause.Waiting) -> bool:
        nonlocal is_broken
        was_broken, is_broken = is_broken, False
        if was_broken:
            raise NotAllowed("this one gets nothing")
        return look(waiting)

    async def main(client: txlog.aio.Client) -> None:
        tasks = await shared_tasks(client, 4)
        producer = await client.producer("t")
        monkeypatch.setattr(pause.Waiting, "look", looked)
        await producer.send(b"a")
        async with asyncio.timeout(30):
            while sum(task.done() for task in tasks) < 2:
                await asyncio.sleep(0)
        failed, received = [task for task in tasks if task.done()]
        assert isinstance(failed.exception(), NotAllowed) and received.result().value == b"a"

    run(path, main)


def test_message_taken_ahead_wakes_another_task_of_its_consumer(path: str) -> None:
    """Two tasks of a consumer wait, and one of its peer, which began to wait between them.

    The first task takes all three messages, and only the third can find the others. Kills: a queue
    of tasks that may take messages ahead.
    """

    async def main(client: txlog.aio.Client) -> None:
        await client.create_topic("one")
        eager = await client.consumer("one", "s", type="shared", create=True)
        peer = await client.consumer("one", "s", type="shared")
        producer = await client.producer("one")
        await producer.send_batch(pa.table({"value": [b"a"] * 31}))
        for _ in range(31):  # it takes 1, 2, 4, 8, 16 messages
            assert await eager.receive() is not None
        tasks = list[asyncio.Task[Any]]()
        for consumer in (eager, peer, eager):
            tasks.append(asyncio.ensure_future(consumer.receive()))
            await at_rest(client, len(tasks))
        await producer.send_batch(pa.table({"value": [b"b"] * 3}))
        await asyncio.wait_for(asyncio.gather(tasks[0], tasks[2]), 20)
        tasks[1].cancel()

    run(path, main)

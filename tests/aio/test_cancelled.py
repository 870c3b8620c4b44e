"""A cancellation at any `await` leaves no lock, no lease and no half-finished transaction."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
from collections.abc import Coroutine, Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import txlog
import txlog.aio
from tests.tiers import graded
from txlog import Message

pytestmark = pytest.mark.usefixtures("quick_disk")
SEED = int(os.environ.get("TXLOG_SEED", "20260101"))
INPUTS = [b"a", b"b", b"c"]


class Cancelled:
    """Awaits a coroutine; the task is cancelled at its n-th `await`.

    late: the cancellation comes after the end of the awaited operation, and before its task runs
    again
    """

    def __init__(self, inner: Coroutine[Any, Any, None], at: int, *, late: bool) -> None:
        self._inner, self._at, self._late = inner, at, late
        self.awaits = 0

    def __await__(self) -> Generator[Any, Any, None]:
        step = self._inner.send
        cancelled_error: Any = None
        while True:
            try:
                waited = step(cancelled_error)
            except StopIteration:
                return
            self.awaits += 1
            is_now = self.awaits == self._at
            if is_now and not self._late:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                cancelled_error = yield waited
                step = self._inner.send
                if is_now and self._late:
                    step, cancelled_error = self._inner.throw, asyncio.CancelledError()
            except BaseException as error:
                step, cancelled_error = self._inner.throw, error


async def work(client: txlog.aio.Client) -> None:
    """Move each message from `in` to `out`, in a transaction."""
    async with client.producer("out") as out, client.consumer("in", "s") as consumer:
        for _ in INPUTS:
            message = await consumer.receive(0)
            if message is None:
                return
            async with client.transaction() as txn:
                await out.send(message.value, txn=txn)
                await consumer.acknowledge(message, txn=txn)


def new_store(where: str) -> str:
    txlog.init(where, durability="os", free_bytes_min=0)
    with txlog.open(where) as client:
        client.create_topic("in")
        client.create_topic("out")
        client.create_subscription("in", "s", type="shared")
        producer = client.producer("in")
        for value in INPUTS:
            producer.send(value)
    return where


def moved(path: str) -> int:
    """Return how many messages were moved.

    Each message is in one topic only, and no consumer holds a message.
    """
    with txlog.open(path) as other:
        assert all(not row["held"] for row in other.admin.locks())
        assert other.transactions() == []
        out = [message.value for message in other.reader("out")]
        with other.consumer("in", "s") as consumer:
            remaining = [
                each_message.value for each_message in iter(lambda: consumer.receive(0), None)
            ]
        assert sorted([*out, *remaining], key=str) == INPUTS
        return len(out)


@pytest.mark.parametrize("late", graded([True, False], 1))
def test_a_cancellation_at_every_await_leaves_nothing_half_done(tmp_path: Path, late: bool) -> None:
    reached = set[int]()

    async def main(path: str, at: int) -> bool:
        async with txlog.aio.open(path) as client:
            steps = Cancelled(work(client), at, late=late)
            try:
                await asyncio.create_task(whole(steps))
            except asyncio.CancelledError:
                assert steps.awaits >= at
            return steps.awaits < at

    async def whole(steps: Cancelled) -> None:
        await steps

    for at in itertools.count(1):
        path = new_store(str(tmp_path / str(at)))
        is_over = asyncio.run(main(path, at))
        reached.add(moved(path))
        if is_over:
            break
    assert at > 15
    assert reached == {0, 1, 2, 3}


@pytest.mark.parametrize(
    "cancellations", [pytest.param(300), pytest.param(10_000, marks=pytest.mark.deep)]
)
def test_random_cancellations_lose_and_double_nothing(tmp_path: Path, cancellations: int) -> None:
    """Tasks that move messages are cancelled again and again, at random moments.

    No message may be lost or duplicated.
    """
    path, rng = str(tmp_path / "store"), random.Random(SEED)
    print("seed", SEED)
    txlog.init(path, durability="os", free_bytes_min=0)
    sent = [b"%06d" % n for n in range(cancellations // 2)]
    with txlog.open(path) as client:
        client.create_topic("in")
        client.create_topic("out")
        client.create_subscription("in", "s", type="shared")
        producer = client.producer("in")
        for value in sent:
            producer.send(value)

    async def forever(client: txlog.aio.Client) -> None:
        while True:
            async with client.consumer("in", "s") as consumer, client.producer("out") as out:
                message: Message | None
                while (message := await consumer.receive()) is not None:
                    async with client.transaction() as txn:
                        await out.send(message.value, txn=txn)
                        await consumer.acknowledge(message, txn=txn)

    async def main() -> None:
        async with txlog.aio.open(path) as client:
            tasks = [asyncio.create_task(forever(client)) for _ in range(4)]
            for _ in range(cancellations):
                for _ in range(rng.randrange(12)):
                    await asyncio.sleep(0)
                if rng.random() < 0.3:
                    await client.run(lambda sync: None)
                at = rng.randrange(len(tasks))
                tasks[at].cancel()
                if rng.random() < 0.5:
                    await asyncio.wait([tasks[at]])
                tasks.append(tasks.pop(at))
                tasks[-1] = asyncio.create_task(forever(client))
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(
                isinstance(each_message, asyncio.CancelledError) for each_message in ended
            ), ended

    asyncio.run(main())
    with txlog.open(path) as other:
        assert all(not row["held"] for row in other.admin.locks())
        assert other.transactions() == []
        out = [message.value for message in other.reader("out")]
        with other.consumer("in", "s") as consumer:
            remaining = [
                each_message.value for each_message in iter(lambda: consumer.receive(0), None)
            ]
    assert sorted([*out, *remaining], key=str) == sent
    assert out


def test_message_for_a_cancelled_task_goes_to_the_next_call(tmp_path: Path) -> None:
    """The consumer of the cancelled task stays open.

    Another consumer must get the message without waiting until the first one is closed.
    """
    path = new_store(str(tmp_path / "store"))

    async def main() -> list[bytes | None]:
        async with txlog.aio.open(path) as client, client.consumer("in", "s") as first:
            steps = Cancelled(first.receive(0), 1, late=True)  # type: ignore[arg-type]

            async def whole() -> None:
                await steps

            with pytest.raises(asyncio.CancelledError):
                await asyncio.create_task(whole())
            async with client.consumer("in", "s") as second:
                got = [await second.receive(0) for _ in INPUTS]
            return [message.value for message in got if message is not None]

    assert sorted(asyncio.run(main()), key=str) == INPUTS


def test_a_reader_keeps_what_a_cancelled_task_has_read(tmp_path: Path) -> None:
    path = new_store(str(tmp_path / "store"))

    async def main() -> list[bytes | None]:
        async with txlog.aio.open(path) as client, client.reader("in") as reader:
            steps = Cancelled(reader.read_next(), 1, late=True)  # type: ignore[arg-type]

            async def whole() -> None:
                await steps

            with pytest.raises(asyncio.CancelledError):
                await asyncio.create_task(whole())
            return [message.value async for message in reader]

    assert asyncio.run(main()) == INPUTS


@pytest.mark.parametrize("how", ["one", "batch"])
def test_rows_read_for_a_cancelled_task_come_in_every_way_of_reading(
    tmp_path: Path, how: str
) -> None:
    path = new_store(str(tmp_path / "store"))

    async def main() -> tuple[bool, list[bytes | None]]:
        async with txlog.aio.open(path) as client, client.reader("in") as reader:
            call: Any = reader.read_next() if how == "one" else reader.receive_batch(2)
            steps = Cancelled(call, 1, late=True)

            async def whole() -> None:
                await steps

            with pytest.raises(asyncio.CancelledError):
                await asyncio.create_task(whole())
            is_there = await reader.has_message_available()
            got = txlog.messages(await reader.receive_batch(1))
            out = [message.value for message in got]
            while (table := await reader.receive_batch(1)).num_rows:
                out += [message.value for message in txlog.messages(table)]
            return is_there, out

    assert asyncio.run(main()) == (True, INPUTS)


@pytest.mark.parametrize("late", graded([True, False], 1))
def test_cancelled_table_view_keeps_its_content(tmp_path: Path, late: bool) -> None:
    """A view that is cancelled, at any `await`, keeps its content.

    The changes that it missed come with the next refresh, and listeners get each change once.
    """
    counts = set[int]()

    async def main(path: str, at: int) -> bool:
        changes = list[tuple[bytes, bytes | None]]()
        async with txlog.aio.open(path) as client:
            view = await client.table_view("in")
            view.listen(lambda key, value: changes.append((key, value)))
            lsn_before = view.lsn

            def commit(value: bytes) -> None:
                with txlog.open(path) as other, other.transaction() as txn:
                    for key in (b"x", b"y"):
                        other.producer("in").send(value, key=key, txn=txn)

            committing = list[asyncio.Task[None]]()

            async def follow() -> None:
                first = client.run(lambda sync: commit(b"1"))  # runs after the first check
                committing.append(asyncio.create_task(first))
                assert await view.wait() == 2
                commit(b"2")
                assert await view.refresh() == 2
                async with client.table_view("in") as second:
                    assert dict(second.items()) == dict(view.items())

            steps = Cancelled(follow(), at, late=late)

            async def whole() -> None:
                await steps

            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.create_task(whole())
            await asyncio.gather(*committing)
            assert view.get(b"x") == view.get(b"y")  # never a part of a transaction
            assert len(changes) == 2 * len({value for _, value in changes})
            counts.add(len(changes))
            assert (view.lsn > lsn_before) == bool(changes)
            await view.refresh()
            with txlog.open(path) as other:
                assert dict(other.table_view("in").items()) == dict(view.items())
                assert all(not row["held"] for row in other.admin.locks())
            assert dict(changes) == dict(view.items())
            assert len(set(changes)) == len(changes)
            return steps.awaits < at

    for at in itertools.count(1):
        path = str(tmp_path / str(at))
        txlog.init(path, durability="os", free_bytes_min=0)
        with txlog.open(path) as client:
            client.create_topic("in")
        if asyncio.run(main(path, at)):
            break
    assert at > 4
    assert counts == {0, 2, 4}


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key-shared", "in memory"])
@pytest.mark.parametrize("topics", ["in", ["in", "out"]])
def test_message_that_no_task_received_is_not_counted_as_delivered(
    tmp_path: Path, kind: str, topics: str | list[str]
) -> None:
    """A `wait_for(receive(), t)` that times out again and again must not move messages to the
    dead-letter topic.
    """
    if kind == "in memory" and topics != "in":
        pytest.skip("such a consumer has one topic")
    path = new_store(str(tmp_path / "store"))
    options: dict[str, Any] = {"durable": False} if kind == "in memory" else {}

    async def cancelled(consumer: txlog.aio.Consumer) -> None:
        await Cancelled(consumer.receive(0), 1, late=True)  # type: ignore[arg-type]

    def subscribed(client: txlog.Client, topic: str) -> None:
        client.create_subscription(topic, "u", type=kind)  # type: ignore[arg-type]
        client.subscription(topic, "u").set_policies(max_redeliver_count=1)

    async def main() -> list[tuple[bytes | None, int | None]]:
        async with txlog.aio.open(path) as client:
            for topic in ("in", "out"):
                if kind != "in memory":
                    await client.run(partial(subscribed, topic=topic))
            async with client.consumer(topics, "u", **options) as consumer:
                if kind == "in memory":
                    await consumer.seek("earliest")
                got = []
                for _ in INPUTS:
                    for _ in range(4):
                        with pytest.raises(asyncio.CancelledError):
                            await asyncio.create_task(cancelled(consumer))
                    message = await consumer.receive(0)
                    assert message is not None
                    got.append((message.value, message.redelivery_count))
                assert await consumer.receive(0) is None
            names = [row["topic"] for row in await client.topics()]
            assert not [name for name in names if name.endswith("-DLQ")]
            return got

    assert asyncio.run(main()) == [(value, 0) for value in INPUTS]


def test_a_preview_for_a_cancelled_task_comes_with_the_next_call(tmp_path: Path) -> None:
    """A preview has no lease that could bring it back, so the consumer must keep it."""
    path = new_store(str(tmp_path / "store"))

    async def main() -> list[bytes | None]:
        async with txlog.aio.open(path) as client, client.transaction() as txn:
            await client.run(lambda c: c.create_subscription("out", "u", isolation="uncommitted"))
            async with client.producer("out") as producer:
                await producer.send(b"open", txn=txn)
            await txn.flush()
            async with client.consumer("out", "u") as consumer:

                async def cancelled() -> None:
                    await Cancelled(consumer.receive(0), 1, late=True)  # type: ignore[arg-type]

                with pytest.raises(asyncio.CancelledError):
                    await asyncio.create_task(cancelled())
                got = [await consumer.receive(0) for _ in range(2)]
            return [None if message is None else message.value for message in got]

    assert asyncio.run(main()) == [b"open", None]


@pytest.mark.parametrize("late", [False, True], ids=["waiting", "ended"])
def test_a_cancelled_transaction_of_a_client_with_a_key_is_aborted(
    tmp_path: Path, late: bool
) -> None:
    """Under a key it begins at once; without the abort it would stay open until its time-out."""
    path = new_store(str(tmp_path / "store"))

    async def main() -> list[Any]:
        async with txlog.aio.open(path, transaction_key="task") as client:

            async def begin() -> None:
                await client.transaction()

            async def cancelled() -> None:
                await Cancelled(begin(), 1, late=late)

            with pytest.raises(asyncio.CancelledError):
                await asyncio.create_task(cancelled())
            return await client.run(lambda sync: sync.transactions())

    assert asyncio.run(main()) == []

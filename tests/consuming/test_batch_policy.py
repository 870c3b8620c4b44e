"""A batch receive policy: how many messages, how many bytes and how long a batch waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import txlog
import txlog.aio
from tests.aio.tasks import tasks_at_rest
from txlog import BatchReceivePolicy, Client
from txlog.client.consuming import batches
from txlog.engine.session.reading import pause
from txlog.errors import InvalidArgument

pytestmark = pytest.mark.usefixtures("quick_disk")
FOR_EVER = 0
TOPICS: list[Any] = ["a", ["a", "b"]]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    path = str(tmp_path / "store")
    txlog.init(path, free_bytes_min=0, durability="os")
    with txlog.open(path) as new_client:
        for topic in ("a", "b"):
            new_client.create_topic(topic, 2)
        yield new_client


@pytest.fixture
def never_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a batch that waits: one that never fills would wait for ever."""

    def paused(*_: object) -> None:
        raise AssertionError("it waits, and the batch is full")

    monkeypatch.setattr(pause.Waiting, "pause", paused)


def send(client: Client, *values: bytes, topic: str = "a") -> None:
    producer = client.producer(topic)
    for value in values:
        producer.send(value)


def consumer_of(client: Client, topics: Any, policy: BatchReceivePolicy) -> Any:
    if topics == "memory":
        return client.consumer("a", "s", durable=False, batch_receive_policy=policy)
    return client.consumer(topics, "s", create=True, batch_receive_policy=policy)


@pytest.mark.usefixtures("never_waiting")
@pytest.mark.parametrize("topics", [*TOPICS, "memory"])
def test_a_batch_is_full_at_a_number_of_messages(client: Client, topics: Any) -> None:
    """Several turns fill it if need be; a limit given to the call wins over the policy."""
    policy = BatchReceivePolicy(max_num_messages=3, timeout_ms=FOR_EVER)
    send(client, *[b"%d" % n for n in range(8)])
    with consumer_of(client, topics, policy) as consumer:
        assert [len(consumer.receive_batch()) for _ in range(2)] == [3, 3]
        assert len(consumer.receive_batch(5)) == 2
        assert len(consumer.receive_batch(5)) == 0


@pytest.mark.usefixtures("never_waiting")
@pytest.mark.parametrize("topics", [*TOPICS, "memory"])
def test_a_batch_has_at_most_so_many_bytes_unless_one_message_has_more(
    client: Client, topics: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that do not fit come next, and count as never delivered."""
    # as if messages were small, so that it requests too many
    monkeypatch.setattr(batches, "_SIZE", 1)
    policy = BatchReceivePolicy(max_num_bytes=100, timeout_ms=FOR_EVER)
    send(client, *[b"x" * size for size in (40, 40, 40, 300, 60, 40)])
    with consumer_of(client, topics, policy) as consumer:
        taken: list[list[int]] = []
        counts: set[int] = set()
        for _ in range(12):
            table = consumer.receive_batch() if sum(map(len, taken)) < 5 else None
            if table is None:
                break
            taken.append([len(value) for value in table["value"].to_pylist()])
            counts |= set(table["redelivery_count"].to_pylist())
            consumer.acknowledge(table)
        assert all(sum(sizes) <= 100 or sizes == [300] for sizes in taken), taken
        assert [300] in taken and all(taken)
        taken.append([len(value) for value in consumer.receive_batch(10)["value"].to_pylist()])
        assert sorted(size for sizes in taken for size in sizes) == [40, 40, 40, 40, 60, 300]
        assert counts == {0}


@pytest.mark.parametrize("topics", [*TOPICS, "memory"])
def test_a_time_out_ends_a_batch_early(
    client: Client, topics: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = BatchReceivePolicy(max_num_messages=10, timeout_ms=1)
    send(client, b"1", b"2", b"3")
    with consumer_of(client, topics, policy) as consumer:
        assert sorted(consumer.receive_batch()["value"].to_pylist()) == [b"1", b"2", b"3"]
        assert consumer.receive_batch().num_rows == 0


def test_messages_that_arrive_during_the_wait_fill_the_batch(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = BatchReceivePolicy(max_num_messages=2, timeout_ms=FOR_EVER)
    send(client, b"1")
    monkeypatch.setattr(pause.Waiting, "pause", lambda *_: send(client, b"2"))
    with client.consumer("a", "s", create=True, batch_receive_policy=policy) as consumer:
        assert consumer.receive_batch()["value"].to_pylist() == [b"1", b"2"]


def test_an_interrupted_batch_comes_again_uncounted(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = BatchReceivePolicy(max_num_messages=2, timeout_ms=FOR_EVER)
    send(client, b"1")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with client.consumer("a", "s", create=True, batch_receive_policy=policy) as consumer:
        with monkeypatch.context() as patch:
            patch.setattr(pause.Waiting, "pause", interrupted)
            with pytest.raises(KeyboardInterrupt):
                consumer.receive_batch()
        [message] = txlog.messages(consumer.receive_batch(5))
        assert (message.value, message.redelivery_count) == (b"1", 0)


def test_with_watermarks_it_does_not_wait_for_more(client: Client) -> None:
    """A watermark that rises meanwhile would be delivered before earlier messages."""
    policy = BatchReceivePolicy(max_num_messages=10, timeout_ms=FOR_EVER)
    send(client, b"1", b"2")
    with client.consumer(
        "a", "s", create=True, enable_watermarking=True, batch_receive_policy=policy
    ) as consumer:
        table = consumer.receive_batch()
        assert table.num_rows == 2 and "is_late" in table.schema.names


def test_a_cancelled_task_leaves_its_batch(client: Client, tmp_path: Path) -> None:
    policy = BatchReceivePolicy(max_num_messages=2, timeout_ms=FOR_EVER)
    send(client, b"1")

    async def main() -> list[Any]:
        async with (
            txlog.aio.open(str(tmp_path / "store")) as store,
            store.consumer("a", "s", create=True, batch_receive_policy=policy) as consumer,
        ):
            waiting = asyncio.ensure_future(consumer.receive_batch())
            while not tasks_at_rest(store):
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            assert waiting.cancelled()
            first = await consumer.receive_batch(5)
            await store.run(lambda _: send(client, b"2"))
            await consumer.negative_acknowledge(first, 0)
            second = await consumer.receive_batch()
            return [*first["redelivery_count"].to_pylist(), *second["value"].to_pylist()]

    assert asyncio.run(main()) == [0, b"1", b"2"]


def test_a_policy_that_no_batch_fulfils_is_refused(client: Client) -> None:
    with pytest.raises(InvalidArgument, match="never be full"):
        BatchReceivePolicy(max_num_bytes=0, timeout_ms=-1)
    with pytest.raises(InvalidArgument, match="timeout_ms is float"):
        BatchReceivePolicy(timeout_ms=0.5)  # type: ignore[arg-type]
    client.create_subscription("a", "s")
    for durable in (True, False):
        with pytest.raises(InvalidArgument, match="batch_receive_policy is int"):
            client.consumer("a", "s", durable=durable, batch_receive_policy=7)  # type: ignore[arg-type]

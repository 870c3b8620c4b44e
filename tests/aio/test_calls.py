"""The asynchronous client offers the same objects and calls as `txlog`.

Their behaviour is tested with the synchronous client; these tests guard that the calls exist and
can be awaited.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import txlog
import txlog.aio
from txlog import Bound
from txlog.base.ids import TxnId
from txlog.client.consuming.in_memory import MemorySession
from txlog.engine.storage.disk.protocol import ACTING
from txlog.errors import AlreadyClosed, InvalidMessage, NotAllowed, StoreNotFound, TopicNotFound

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A store with topics `in` and `out`, and a subscription `s` of the first."""
    where = str(tmp_path / "store")
    txlog.init(where, durability="os", free_bytes_min=0)
    with txlog.open(where) as client:
        client.create_topic("in")
        client.create_topic("out")
        client.create_subscription("in", "s", type="shared")
    return where


def run(path: str, program: Callable[[txlog.aio.Client], Coroutine[None, None, Any]]) -> Any:
    """Run a program over an open client in an event loop."""

    async def main() -> Any:
        async with txlog.aio.open(path) as client:
            return await asyncio.wait_for(program(client), 60)

    return asyncio.run(main())


def values(path: str, topic: str) -> list[bytes | None]:
    with txlog.open(path, read_only=True) as client:
        return [message.value for message in client.reader(topic)]


def test_objects_of_the_synchronous_client_can_be_awaited(path: str) -> None:
    async def program(client: txlog.aio.Client) -> None:
        async with client.producer("in") as producer, client.consumer("in", "s") as consumer:
            receipt = await producer.send(b"one", key="k")
            message = await consumer.receive(0)
            assert message is not None and message.message_id == receipt.message_id
            async with client.transaction() as txn:
                out = await client.producer("out")
                await out.send(b"two", txn=txn)
                await out.send_later(b"three", txn=txn)
                assert (await consumer.acknowledge(message, txn=txn)).acked == 1
            assert txn.state == "COMMITTED"
            assert await consumer.receive(0) is None
            async with client.reader("out") as reader:
                assert [each_message.value async for each_message in reader] == [b"two", b"three"]
            assert len(await client.topics()) == 2
            assert len(await client.run(lambda sync: sync.admin.locks())) >= 3

    run(path, program)
    assert values(path, "out") == [b"two", b"three"]


def test_a_block_that_fails_aborts_and_an_await_opens(path: str) -> None:
    async def program(client: txlog.aio.Client) -> None:
        producer = await client.producer("in")
        with pytest.raises(ZeroDivisionError):
            async with client.transaction() as txn:
                await producer.send(b"never", txn=txn)
                raise ZeroDivisionError
        assert txn.state == "ABORTED"
        await producer.close()
        with pytest.raises(AlreadyClosed):
            await producer.send(b"closed")
        with pytest.raises(TopicNotFound):
            await client.producer("none")

    run(path, program)
    assert values(path, "in") == []


def test_calls_raise_the_same_errors_as_the_synchronous_client(path: str, tmp_path: Path) -> None:
    async def program(client: txlog.aio.Client) -> None:
        consumer = await client.consumer("in", "memory", durable=False)
        with pytest.raises(NotAllowed, match="it has no retry topic"):
            await consumer.reconsume_later(txlog.MessageId(1, 0), 1)
        await consumer.close()

    run(path, program)

    async def missing() -> None:
        await txlog.aio.open(str(tmp_path / "none"))

    with pytest.raises(StoreNotFound):
        asyncio.run(missing())


def test_closed_is_closed_and_the_thread_ends(path: str) -> None:
    async def main() -> None:
        client = await txlog.aio.open(path)
        await client.close()
        await client.close()
        with pytest.raises(AlreadyClosed):
            await client.topics()

    asyncio.run(main())


def test_many_tasks_wait_without_threads_or_polling(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit on another topic makes no task check for messages; a commit on their topic gives
    each task its message. Otherwise many waiting tasks would cost a thread each, or a lot of
    processor time.
    """
    looks = 0
    count = 50

    async def program(client: txlog.aio.Client) -> None:
        nonlocal looks
        options: dict[str, Any] = {"durable": False, "start": Bound.parse("end")}
        consumers = [await client.consumer("in", f"s{n}", **options) for n in range(count)]
        look = MemorySession.next

        def counted(self: MemorySession, is_thorough: bool) -> Any:
            nonlocal looks
            looks += 1
            return look(self, is_thorough)

        monkeypatch.setattr(MemorySession, "next", counted)
        tasks = [asyncio.create_task(consumer.receive()) for consumer in consumers]
        while looks <= count:  # the first task creates the watch and checks again
            await asyncio.sleep(0)
        count_before = looks
        elsewhere, here = await client.producer("out"), await client.producer("in")
        await elsewhere.send(b"x")
        for _ in range(100):  # the loop has had the notification for a long time by now
            await asyncio.sleep(0)
        await client.run(lambda sync: None)
        assert looks == count_before
        await here.send(b"y")
        got = await asyncio.gather(*tasks)
        assert [message.value for message in got if message is not None] == [b"y"] * count
        assert looks <= count_before + 2 * count
        for consumer in consumers:
            await consumer.close()

    count_before = len(os.listdir("/proc/self/task"))
    run(path, program)
    gc.collect()
    assert len(os.listdir("/proc/self/task")) <= count_before + 1


def test_commit_of_another_process_ends_a_wait(path: str) -> None:
    """The other handle acts as another process: the two handles share nothing in memory."""

    async def program(client: txlog.aio.Client) -> list[bytes | None]:
        async with client.reader("in") as reader, client.consumer("in", "s") as consumer:
            following = aiter(reader.follow())
            first = asyncio.ensure_future(anext(following))
            second = asyncio.create_task(consumer.receive())
            late = asyncio.create_task(client.run(lambda sync: None))
            await late
            with txlog.open(path) as other:
                other.producer("in").send(b"news")
            got = [await first, await second]
            return [message.value for message in got if message is not None]

    assert run(path, program) == [b"news", b"news"]


def test_tasks_that_send_share_frames(path: str) -> None:
    """Each call has its own receipt, in the order of the calls; a full queue makes the
    task wait.
    """

    async def program(client: txlog.aio.Client) -> tuple[list[int], int]:
        completed_before = await client.run(lambda sync: sync.store.refresh())
        async with client.producer("in", max_pending_messages=40) as producer:
            sends = [producer.send(b"%03d" % n) for n in range(200)]
            receipts = await asyncio.gather(*sends)
            with pytest.raises(InvalidMessage):
                await producer.send(b"x" * (6 << 20))
        completed_after = await client.run(lambda sync: sync.store.refresh())
        return [
            each_receipt.message_id.entry for each_receipt in receipts if each_receipt.message_id
        ], completed_after - completed_before

    entries, frames = run(path, program)
    assert sorted(entries) == list(range(200))
    assert frames < 100
    assert sorted(each_receipt for each_receipt in values(path, "in") if each_receipt) == [
        b"%03d" % n for n in range(200)
    ]


def test_a_batch_that_is_waited_for_holds_up_no_other_call(path: str) -> None:
    """The event loop does the waiting: in the client's thread, a wait would keep the send from
    running, and the batch would never come.
    """

    async def program(client: txlog.aio.Client) -> int:
        async with client.reader("in") as reader, client.producer("in") as producer:
            waiting = asyncio.create_task(reader.receive_batch(10, timeout_ms=None))
            await client.run(lambda sync: None)
            await producer.send(b"x")
            return len(await waiting)

    assert run(path, program) == 1


def test_table_view_answers_without_await_and_changes_only_with_refresh(path: str) -> None:
    async def program(client: txlog.aio.Client) -> None:
        producer = await client.producer("in")
        await producer.send(b"1", key="ada")
        async with client.table_view("in") as view:
            changes = list[Any]()
            view.listen(lambda key, value: changes.append((key, value, threading.get_ident())))
            await producer.send(b"2", key="ada")
            await producer.send(b"3", key="bob")
            assert (view["ada"], "bob" in view, len(view)) == (b"1", False, 1)
            lsn_before = view.lsn
            assert await view.refresh() == 2
            assert view.lsn > lsn_before
            assert sorted(view) == sorted(view.keys()) == [b"ada", b"bob"]
            assert (sorted(view.values()), dict(view.items())[b"bob"]) == ([b"2", b"3"], b"3")
            here = threading.get_ident()  # listeners run in the thread of the program
            assert sorted(changes) == [(b"ada", b"2", here), (b"bob", b"3", here)]
            assert view.get("none", b"-") == b"-"
            assert await view.wait(0) == 0
        with pytest.raises(AlreadyClosed):
            await view.refresh()
        with pytest.raises(TopicNotFound):
            await client.table_view("none")

    run(path, program)


def test_table_view_keeps_waiting_when_the_same_value_is_sent_again(path: str) -> None:
    """A real change ends the waits of both tasks. Sending the same value again ends no wait."""

    async def program(client: txlog.aio.Client) -> None:
        async with client.producer("in") as producer, client.table_view("in") as view:
            await producer.send(b"1", key="k")
            assert await view.refresh() == 1
            values = list[Any]()
            view.listen(lambda key, value: values.append(value))
            waiting = [asyncio.create_task(view.wait()) for _ in range(2)]
            await client.run(lambda sync: None)
            await producer.send(b"1", key="k")
            while await client.run(lambda sync: sync.store.refresh()) > view.lsn:
                await asyncio.sleep(0)
            assert not any(task.done() for task in waiting)
            await producer.send(None, key="k")
            await asyncio.wait(waiting, return_when="FIRST_COMPLETED")
            assert (values, len(view)) == ([None], 0)
            await producer.send(b"2", key="k")
            assert sorted(await asyncio.gather(*waiting)) == [1, 1]

    run(path, program)


def test_a_reader_reads_compacted_messages(path: str) -> None:
    async def program(client: txlog.aio.Client) -> list[bytes | None]:
        async with client.producer("in") as producer:
            for value in (b"old", b"new"):
                await producer.send(value, key="k")
        await client.run(lambda sync: sync.admin.compact_topic("in"))
        async with client.reader("in", read_compacted=True) as reader:
            return [message.value async for message in reader]

    assert run(path, program) == [b"new"]


def test_tasks_of_one_client_act_for_several_owners(path: str) -> None:
    """Only the owner of a transaction may use it.

    Without an explicit owner, the user of the process is the owner.
    """

    async def program(client: txlog.aio.Client) -> None:
        async def one(number: int, name: str) -> str:
            ACTING.set(lambda: (number, name))
            txn = await client.transaction(key="nightly")
            producer = await client.producer("out")
            await producer.send(name.encode(), txn=txn)
            return str(await txn.get_id())

        async def other(number: int, txn: str) -> None:
            ACTING.set(lambda: (number, "other"))
            txn_id = TxnId.parse(txn)
            producer = await client.producer("out")
            sent = (await (await client.producer("in")).send(b"x")).message_id
            assert sent is not None
            for act in (
                lambda: client.commit(txn_id),
                lambda: client.abort(txn_id),
                lambda: producer.send(b"x", txn=txn_id),
                lambda: client.acknowledge("in", "s", [sent], txn=txn_id),
            ):
                with pytest.raises(NotAllowed, match="belongs to billing"):
                    await act()
                with pytest.raises(NotAllowed, match="belongs to billing"):
                    await client.run(lambda sync: sync.commit(txn_id), blocking=True)

        first, second = 1 << 40, 1 << 41
        billing = await asyncio.create_task(one(first, "billing"))
        await asyncio.create_task(one(second, "keeper"))  # the same key is another one
        await asyncio.create_task(other(second, billing))
        keys = await client.run(lambda sync: sync.admin.transaction_keys())
        assert {(row["owner"], row["owner_uid"], row["epoch"]) for row in keys} == {
            ("billing", first, 0),
            ("keeper", second, 0),
        }
        assert ACTING.get() is None

        async def end() -> None:
            ACTING.set(lambda: (first, "billing"))
            await client.commit(TxnId.parse(billing))

        await asyncio.create_task(end())

    run(path, program)
    assert values(path, "out") == [b"billing"]

"""Exclusive producers: one writer for a topic, across handles and processes, after any death.

The numbers are the rules in engine/decide/sending/producers.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from typing import Any, Final

import pyarrow as pa
import pytest

import txlog
import txlog.aio
from tests.aio.tasks import tasks_at_rest
from tests.harness import Child, python, txlog_of
from txlog import Client, Producer
from txlog.cli.main import main
from txlog.cli.produce import request
from txlog.engine.decide.sending import producers
from txlog.engine.session.reading.pause import Waiting
from txlog.engine.session.sending.access import Opening
from txlog.engine.storage.disk.protocol import LockFile
from txlog.engine.store.liveness import CONSUMERS_DIR, seat_lock
from txlog.errors import (
    AlreadyClosed,
    IncompatibleSchema,
    InvalidArgument,
    ProducerBusy,
    ProducerFenced,
    ReadOnlyStore,
)

pytestmark = pytest.mark.usefixtures("quick_disk")
EXCLUSIVE: Final = producers.EXCLUSIVE
FENCING: Final = producers.FENCING
WAITING: Final = producers.WAITING


@pytest.fixture
def path(tmp_path: Path) -> str:
    store_path = str(tmp_path / "store")
    txlog.init(store_path, free_bytes_min=0, durability="os", max_message_bytes=1000)
    with txlog.open(store_path) as client:
        client.create_topic("t", 2)
    return store_path


@pytest.fixture
def client(path: str) -> Iterator[Client]:
    with txlog.open(path) as new_client:
        yield new_client


@pytest.fixture
def other(path: str) -> Iterator[Client]:
    with txlog.open(path) as new_client:
        yield new_client


def values(client: Client) -> list[bytes]:
    return sorted(message.value or b"" for message in client.reader("t"))


def locks(path: str) -> set[str]:
    return {name for name in os.listdir(f"{path}/{CONSUMERS_DIR}") if "-" in name}


def seat_of(producer: Producer) -> LockFile | None:
    """The lock that an exclusive producer holds as long as it lives."""
    return producer.access._lock


def dies(producer: Producer) -> None:
    """Free its lock without any write, as the kernel does when a process is killed."""
    lock = seat_of(producer)
    assert lock is not None
    lock.close()
    producer.access._lock = None


def every_way(client: Client, producer: Producer) -> list[Callable[[], object]]:
    """Every call that stores a message through a producer."""

    def in_txn(act: Callable[[Any], object]) -> None:
        with client.transaction() as txn:
            act(txn)

    return [
        lambda: producer.send(b"a"),
        lambda: producer.send(b"b" * 3000),
        lambda: producer.send_async(b"c").result(60),
        lambda: producer.new_message().value(b"d").send(),
        lambda: producer.new_watermark().event_time(5).send(),
        lambda: in_txn(lambda txn: producer.send(b"e", txn=txn)),
        lambda: in_txn(lambda txn: producer.send_async(b"f", txn=txn)),
        lambda: in_txn(lambda txn: producer.send(b"g" * 3000, txn=txn)),
        lambda: in_txn(lambda txn: producer.new_watermark(txn).event_time(5).send()),
    ]


def test_an_exclusive_producer_has_the_topic_to_itself(client: Client, other: Client) -> None:
    """Rule 1: producers that were open before cannot store messages either, until it closes."""
    producer_before = other.producer("t", chunking=True)
    producer_before.send(b"before")
    with client.producer("t", access_mode=EXCLUSIVE, chunking=True) as own_producer:
        for mode in (EXCLUSIVE, "shared"):
            for each_client in (client, other):
                with pytest.raises(ProducerBusy, match="topic t has an exclusive producer"):
                    each_client.producer("t", access_mode=mode)
        for act in every_way(other, producer_before):
            with pytest.raises(ProducerBusy):
                act()
        assert values(client) == [b"before"]
        for act in every_way(client, own_producer):
            act()
        assert len(values(client)) == 8
    for act in every_way(other, producer_before):
        act()
    assert len(values(client)) == 15
    other.producer("t", access_mode=EXCLUSIVE)


def test_a_fencing_producer_fences_the_current_one(
    client: Client, other: Client, path: str
) -> None:
    """Rules 1 and 2; the fenced producer may close, which frees no seat."""
    old = other.producer("t", access_mode=FENCING, chunking=True)
    new = client.producer("t", access_mode=FENCING)
    for act in every_way(other, old):
        with pytest.raises(ProducerFenced, match="epoch 1 was followed by 3"):
            act()
    assert values(client) == []
    old.close()
    with pytest.raises(ProducerBusy):
        other.producer("t", access_mode=EXCLUSIVE)
    new.send(b"a")
    client.close()  # it closes its open producers
    with other.producer("t", access_mode=EXCLUSIVE) as next_one:
        assert next_one.access.epoch == 5
    assert locks(path) == set()


def test_a_dead_holder_holds_nothing(client: Client, other: Client, path: str) -> None:
    """Rule 3; shared producers need no new check, and the next exclusive one takes another
    epoch.
    """
    shared = other.producer("t")
    holder = client.producer("t", access_mode=EXCLUSIVE)
    with pytest.raises(ProducerBusy):
        shared.send(b"a")
    dies(holder)
    shared.send(b"b")
    other.producer("t").send(b"c")
    with other.producer("t", access_mode=EXCLUSIVE) as next_one:
        assert next_one.access.epoch == 3 and locks(path) == {"1-3.lock"}
        with pytest.raises(ProducerFenced):
            holder.send(b"d")
        with pytest.raises(ProducerBusy):
            shared.send(b"e")
    assert values(client) == [b"b", b"c"]


@pytest.mark.parametrize("step", ["lock", "frame", "leave"])
def test_an_interrupt_at_any_step_leaves_the_topic_free(
    client: Client, other: Client, path: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the file and the frame, after the frame, and between leaving and the file."""
    store = client.store
    write, unlink = type(store).write, store.disk.unlink

    def interrupted(*args: Any, **options: Any) -> object:
        if args[0] is not store:
            return write(*args, **options)
        is_taking = bool(locks(path))
        if step == "lock" and is_taking:
            raise KeyboardInterrupt
        answer = write(*args, **options)
        if step == "frame" and is_taking:
            raise KeyboardInterrupt
        return answer

    if step == "leave":
        producer = client.producer("t", access_mode=EXCLUSIVE)
        with monkeypatch.context() as patch:
            patch.setattr("txlog.engine.session.sending.access.seat_lock", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                producer.close()
        assert seat_of(producer) is None and unlink is not None
    else:
        with monkeypatch.context() as patch:
            patch.setattr(type(store), "write", interrupted)
            with pytest.raises(KeyboardInterrupt):
                client.producer("t", access_mode=EXCLUSIVE)
    assert locks(path) == {"1-1.lock"}
    other.producer("t").send(b"a")
    with other.producer("t", access_mode=EXCLUSIVE) as next_one:
        assert next_one.access.epoch == (1 if step == "lock" else 3)
    other.checkpoint()
    assert locks(path) == set()
    assert txlog.verify(path)["errors"] == 0


def test_one_of_two_that_come_at_once_gets_it(
    client: Client, other: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 2: the other producer had looked before, and its decision looks again."""
    store, write = client.store, type(client.store).write
    won: list[Producer] = []

    def late(self: Any, *args: Any, **options: Any) -> object:
        answer = write(self, *args, **options)
        if self is store and not won:  # the first look of the other is over
            won.append(other.producer("t", access_mode=EXCLUSIVE))
        return answer

    monkeypatch.setattr(type(store), "write", late)
    with pytest.raises(ProducerBusy):
        client.producer("t", access_mode=EXCLUSIVE)
    won[0].send(b"a")


@pytest.mark.parametrize("end", [Producer.close, dies])
def test_a_waiting_producer_is_next(
    client: Client,
    other: Client,
    end: Callable[[Producer], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a close, and after a death: in both cases the closing of a file wakes it."""
    # the topic has no producer, so it does not wait
    holder = client.producer("t", access_mode=WAITING)
    got: Queue[Producer] = Queue()
    began = threading.Event()
    pause = Waiting.pause

    def paused(self: Waiting, until_s: float | None = None) -> None:
        began.set()
        pause(self, until_s)

    monkeypatch.setattr(Waiting, "pause", paused)
    thread = threading.Thread(target=lambda: got.put(other.producer("t", access_mode=WAITING)))
    thread.start()
    assert began.wait(60) and got.empty()
    end(holder)
    next_one = got.get(timeout=60)
    thread.join()
    with pytest.raises(ProducerFenced if end is dies else AlreadyClosed):
        holder.send(b"a")
    next_one.send(b"b")
    assert values(client) == [b"b"]


def test_a_seat_that_is_not_free_when_its_file_has_closed_is_soon(
    client: Client, other: Client, path: str
) -> None:
    """The kernel reports that the file was closed, but not that the lock became free."""
    holder = client.producer("t", access_mode=EXCLUSIVE)
    opening = Opening(other.store, "t", lambda: other.producer("t", access_mode=EXCLUSIVE), WAITING)
    woken, access = other.store.wakeups, holder.access
    woken.begin()
    lock = seat_of(holder)
    assert lock is not None
    assert opening.look(True) is None and opening.rest(0.01).seconds > 30.0
    (Path(path) / seat_lock(access.number, access.epoch)).open("r+b").close()
    assert woken.drain()
    assert opening.look(True) is None and opening.rest(0.01).seconds == 0.01
    lock.release()
    assert opening.look(True) is not None


def test_a_task_that_waits_holds_up_nothing_and_leaves_nothing(client: Client, path: str) -> None:
    holder = client.producer("t", access_mode=EXCLUSIVE)

    async def main() -> None:
        async with txlog.aio.open(path) as store:
            waits = [
                asyncio.ensure_future(_opened(store.producer("t", access_mode=WAITING)))
                for _ in range(2)
            ]
            while tasks_at_rest(store) < 2:
                await asyncio.sleep(0)
            assert [row["topic"] for row in await store.topics()] == ["t"]
            waits[0].cancel()
            await asyncio.wait(waits[:1])
            holder.close()
            producer = await waits[1]
            await producer.send(b"a")
            await producer.close()

    async def _opened(opening: Any) -> Any:
        return await opening

    asyncio.run(main())
    client.producer("t", access_mode=EXCLUSIVE).send(b"b")
    assert values(client) == [b"a", b"b"]


def test_sigkill_of_the_holder_frees_the_topic(client: Client, path: str) -> None:
    with Child(python("holder", path)) as holder:
        assert holder.line() == "ready"
        with pytest.raises(ProducerBusy):
            client.producer("t", access_mode=EXCLUSIVE)
        got: Queue[Producer] = Queue()
        thread = threading.Thread(target=lambda: got.put(client.producer("t", access_mode=WAITING)))
        thread.start()
        holder.kill()
        producer = got.get(timeout=60)
        thread.join()
        producer.send(b"mine")
    assert values(client) == [b"mine", b"theirs"]


def test_produce_has_access_modes(
    client: Client, path: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """For the time of the run other producers are refused; afterwards the topic is free."""

    def produce(*arguments: str) -> tuple[int, str]:
        code = main(["-S", path, "produce", "t", "-q", "-m", "x", *arguments])
        return code, capfd.readouterr().err

    assert request.ACCESS_MODES == producers.ACCESS_MODES
    code, err = produce("--access-mode", "alone")
    assert code == 2 and "--access-mode is shared|exclusive|" in err
    for mode in producers.ACCESS_MODES:
        assert produce("--access-mode", mode) == (0, "")
    holder = client.producer("t", access_mode=EXCLUSIVE)
    assert holder.access.epoch == 7
    for arguments in ((), ("--access-mode", EXCLUSIVE)):
        code, err = produce(*arguments)
        assert code == 5 and "topic t has an exclusive producer" in err
    assert produce("--access-mode", FENCING) == (0, "")
    with pytest.raises(ProducerFenced):
        holder.send(b"late")
    assert values(client) == [b"x"] * 5
    assert locks(path) == set()


def test_a_run_that_waits_for_its_turn_gets_it(client: Client, path: str) -> None:
    holder = client.producer("t", access_mode=EXCLUSIVE)
    arguments = ["-q", "-m", "x", "--access-mode", WAITING]
    with Child(txlog_of(path, "produce", "t", *arguments)) as waiting:
        holder.send(b"first")
        holder.close()
        assert waiting.end() == (0, "")
    assert values(client) == [b"first", b"x"]


def test_a_bulk_batch_is_refused_like_a_shared_producer(client: Client, other: Client) -> None:
    rows = pa.table({"value": [b"a", b"b"]})
    with client.producer("t", access_mode=EXCLUSIVE):
        bulk = other.bulk("t", key="nightly", batch=1)
        staged = bulk.stage([rows])
        with pytest.raises(ProducerBusy):
            bulk.commit(staged)
        with pytest.raises(ProducerBusy):
            bulk.commit(staged, rows_if_small=True)
        [row] = [row for row in other.admin.locks() if row["name"] == "producer"]
        assert (row["path"], row["held"], row["pid"]) == ("consumers/1-1.lock", True, os.getpid())
    assert bulk.commit(staged)["messages"] == 2
    assert not [row for row in other.admin.locks() if row["name"] == "producer"]


def _needs(name: str) -> pa.Schema:
    return pa.schema([pa.field(name, pa.int64(), nullable=False)])


def test_a_schema_that_is_refused_leaves_the_topic_free(client: Client, other: Client) -> None:
    """Guards against a seat kept by a producer that was never returned to its caller."""
    client.create_topic("typed", schema=_needs("x"))
    with pytest.raises(IncompatibleSchema):
        client.producer("typed", schema=_needs("y"), access_mode=EXCLUSIVE)
    other.producer("typed", access_mode=EXCLUSIVE).close()


def test_an_epoch_is_never_forgotten(client: Client, other: Client, path: str) -> None:
    """Neither by idle names, nor by a checkpoint: otherwise an old holder would count as the
    newest.
    """
    client.admin.set_setting("dedup_producers_max", 1)
    old = client.producer("t", access_mode=EXCLUSIVE)
    for name in ("a", "b", "c"):
        with client.producer("t", name, access_mode=FENCING) as producer:
            producer.send(name.encode())
    client.checkpoint()
    with txlog.open(path) as later:
        assert later.producer("t", access_mode=EXCLUSIVE).access.epoch == 9
        with pytest.raises(ProducerFenced):
            old.send(b"d")


def test_what_cannot_be_is_refused(client: Client, path: str) -> None:
    with pytest.raises(InvalidArgument, match="access_mode is 'alone', it must be one of shared"):
        client.producer("t", access_mode="alone")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        client.producer("t", producers.SEAT)
    holder = client.producer("t", access_mode=EXCLUSIVE)
    with txlog.open(path, read_only=True) as reader:
        reader.producer("t")
        with pytest.raises(ReadOnlyStore):
            reader.producer("t", access_mode=EXCLUSIVE)
    client.admin.delete_topic("t")
    holder.close()
    client.create_topic("t")
    client.producer("t", access_mode=EXCLUSIVE).send(b"a")
    assert seat_lock(2, 1).rpartition("/")[2] in locks(path)

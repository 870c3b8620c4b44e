"""Ids of producers and consumers: an interrupted open or close leaves no handle behind.

Each command is held up at each call of the store that it makes, before the call begins and while it
runs. Meanwhile its client sends it again, closes the id, opens it, or disconnects.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.serve.raw import Place, Raw, run_story
from tests.tiers import graded
from txlog.client.aio.worker import Worker
from txlog.errors import DiskFailed
from txlog.serve.pulsar.ids import NOWHERE
from txlog.serve.pulsar.members import StoreConsumer
from txlog.serve.pulsar.messages import ERRORS, MessageIdData
from txlog.serve.pulsar.wire import encode_command

pytestmark = pytest.mark.usefixtures("quick_disk")
WAIT_SECONDS = 30
CALLS_MAX = 20  # of the store, by one command

Command = Callable[[str, int], bytes]  # (topic, request id) -> frame


def subscribe(topic: str, request: int, **beside: Any) -> bytes:
    fields = {"subType": 0, "subscription": "s", "consumer_name": "c"} | beside
    return encode_command("subscribe", topic=topic, request_id=request, consumer_id=1, **fields)


def read(topic: str, request: int) -> bytes:
    start = MessageIdData(ledgerId=NOWHERE, entryId=NOWHERE)
    return subscribe(topic, request, durable=False, start_message_id=start)


def produce(topic: str, request: int, mode: int = 1) -> bytes:
    given = {"producer_name": "till", "producer_access_mode": mode}
    return encode_command("producer", topic=topic, request_id=request, producer_id=1, **given)


def wait_to_produce(topic: str, request: int) -> bytes:
    return produce(topic, request, mode=2)


def seek(topic: str, request: int) -> bytes:
    return encode_command("seek", request_id=request, consumer_id=1, message_publish_time=1)


def unsubscribe(topic: str, request: int) -> bytes:
    return encode_command("unsubscribe", request_id=request, consumer_id=1)


def close_consumer(topic: str, request: int) -> bytes:
    return encode_command("close_consumer", request_id=request, consumer_id=1)


def close_producer(topic: str, request: int) -> bytes:
    return encode_command("close_producer", request_id=request, producer_id=1)


class Gate:
    """Holds up one call of the store: call number `at` of a command."""

    def __init__(self) -> None:
        self.at, self.is_early = -1, True
        self._count = 0
        self.reached = asyncio.Event()
        self._early, self._late = asyncio.Event(), threading.Event()

    def set(self, at: int, *, is_early: bool) -> None:
        """Hold up call `at`, before it begins or in the thread of the store."""
        self.at, self.is_early, self._count = at, is_early, 0
        self.reached.clear()
        self._early.clear()
        self._late.clear()

    def open(self) -> None:
        """Let every call pass from now on."""
        self.at = -1
        self._early.set()
        self._late.set()

    async def passed(self, act: Callable[[], Any]) -> Callable[[], Any]:
        """Wait until the call may begin; returns the act to run in its place."""
        task = asyncio.current_task()
        assert task is not None
        if "_answer" not in str(task.get_coro()):  # of a task in the background
            return act
        number, self._count = self._count, self._count + 1
        if number != self.at:
            return act
        self.reached.set()
        if self.is_early:
            await self._early.wait()
            return act

        def later() -> Any:
            self._late.wait(WAIT_SECONDS)
            return act()

        return later


@contextmanager
def gated(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate, run = Gate(), Worker.run

    async def held_up(worker: Worker, act: Any, undo: Any = None, **beside: Any) -> Any:
        return await run(worker, await gate.passed(act), undo, **beside)

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "run", held_up)
        yield gate


async def answers(raw: Raw, *requests: int) -> dict[int, str]:
    """The names of the answers, by request; the answer to a PING has number 0."""
    names: dict[int, str] = {}
    async with asyncio.timeout(WAIT_SECONDS):
        while not names.keys() >= {*requests}:
            name, body = await raw.next()
            assert name, "the connection has ended"
            if name == "pong":
                names[0] = name
            elif name in ("error", "success") or (
                name == "producer_success" and body.producer_ready
            ):
                names[body.request_id] = name
    return names


async def one_more(place: Place, frame: bytes) -> None:
    """Check that another client can open the handle once the server has freed it."""
    other = await place.client()
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            other.write([frame])
            names = await answers(other, 7)
            if names[7] != "error":
                break
    await other.close()


OPENERS: dict[str, Command] = {
    "subscribe": subscribe,
    "read": read,
    "produce": produce,
    "wait": wait_to_produce,
}
MOVERS: dict[str, tuple[Command, Command]] = {  # the command that it needs, and the command itself
    "close-consumer": (subscribe, close_consumer),
    "close-reader": (read, close_consumer),
    "close-producer": (produce, close_producer),
    "seek": (subscribe, seek),
    "unsubscribe": (subscribe, unsubscribe),
}


def opener_of(name: str) -> Command:
    return OPENERS[name] if name in OPENERS else MOVERS[name][0]


def closer_of(name: str) -> Command:
    opener = opener_of(name)
    return close_producer if opener in (produce, wait_to_produce) else close_consumer


async def held_up(place: Place, gate: Gate, name: str, meanwhile: str, topic: str) -> bool:
    """Run one story; returns False if the command made fewer calls than the gate waits for."""
    opener, closer = opener_of(name), closer_of(name)
    command = OPENERS[name] if name in OPENERS else MOVERS[name][1]
    raw, at, is_early = await place.client(), gate.at, gate.is_early
    gate.open()
    if name in MOVERS:
        raw.write([opener(topic, 9)])
        assert (await answers(raw, 9))[9] != "error"
    gate.set(at, is_early=is_early)
    raw.write([command(topic, 1)])
    answered = asyncio.create_task(answers(raw, 1))
    reached = asyncio.create_task(gate.reached.wait())
    await asyncio.wait({answered, reached}, return_when=asyncio.FIRST_COMPLETED)
    was_reached = gate.reached.is_set()
    answered.cancel()
    reached.cancel()
    await asyncio.wait({answered, reached})
    had = {} if answered.cancelled() else answered.result()
    if meanwhile == "gone" or not was_reached:
        gate.open()
        await raw.close()
    else:
        again = {"again": command, "close": closer, "open": opener}[meanwhile]
        raw.write([again(topic, 2), encode_command("ping")])
        names = had | await answers(raw, 0)  # the server has it
        gate.open()
        is_waiting = name == "wait" and meanwhile == "close"  # only the CLOSE is answered
        expected = {2 if is_waiting else 1, 2} - names.keys()
        if expected:
            names |= await answers(raw, *expected)
        if name in OPENERS and meanwhile == "again":
            assert names[1] == names[2] != "error"
        if meanwhile == "close":
            assert names[2] == "success"
        if meanwhile == "open":
            assert names[2] != "error"
        if meanwhile != "close":
            raw.write([closer(topic, 3)])
            await answers(raw, 3)  # refused if it is closed
    await one_more(place, opener(topic, 7))
    return was_reached


@pytest.mark.parametrize("meanwhile", graded(["close", "again", "open", "gone"], 1))
@pytest.mark.parametrize("name", [*OPENERS, *MOVERS])
def test_interrupted_command_leaves_no_handle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, meanwhile: str
) -> None:
    """Kills: consumers and producers that no client can close, and that keep other clients out."""
    reached = []

    async def story(place: Place) -> None:
        with gated(monkeypatch) as gate:
            for is_early in (True, False):
                for at in range(CALLS_MAX):
                    gate.at, gate.is_early = at, is_early
                    topic = f"t{at}-{is_early}"
                    if not await held_up(place, gate, name, meanwhile, topic):
                        break
                    reached.append(at)

    run_story(tmp_path, story)
    assert reached.count(0) == 2
    assert max(reached) < CALLS_MAX - 1


def test_open_id_is_reopened_only_with_the_same_fields(tmp_path: Path) -> None:
    async def story(place: Place) -> None:
        raw = await place.client()
        raw.write([subscribe("t", 1), produce("t", 2)])
        assert set((await answers(raw, 1, 2)).values()) == {"success", "producer_success"}
        raw.write([subscribe("t", 3), produce("t", 4)])
        names = await answers(raw, 3, 4)
        assert (names[3], names[4]) == ("success", "producer_success")
        raw.write([subscribe("other", 5), produce("other", 6)])
        names = await answers(raw, 5, 6)
        assert (names[5], names[6]) == ("error", "error")
        raw.write([close_consumer("t", 7), close_producer("t", 8)])
        await answers(raw, 7, 8)
        raw.write([subscribe("other", 9), produce("other", 10)])
        names = await answers(raw, 9, 10)
        assert (names[9], names[10]) == ("success", "producer_success")

    run_story(tmp_path, story)


def test_close_ends_the_opens_before_it(tmp_path: Path) -> None:
    """A client pipelines opens and closes: the server answers each, and the last one decides."""

    async def story(place: Place) -> None:
        raw = await place.client()
        for opener, closer in ((subscribe, close_consumer), (produce, close_producer)):
            steps = [opener, opener, closer, closer, opener, closer, opener, opener, closer]
            raw.write([step("t", at) for at, step in enumerate(steps, 1)])
            names = await answers(raw, *range(1, len(steps) + 1))
            assert [names[at] for at in (3, 4, 6, 9)] == ["success"] * 4
            await one_more(place, opener("t", 7))

    run_story(tmp_path, story)


def test_failed_close_does_not_keep_other_handles_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave, left = StoreConsumer.leave, set[int]()

    async def fails(member: StoreConsumer, wire: Any) -> None:
        await leave(member, wire)
        left.add(wire.number)
        raise DiskFailed("as if")

    monkeypatch.setattr(StoreConsumer, "leave", fails)

    async def story(place: Place) -> None:
        raw = await place.client()
        for number in (1, 2):
            topic = {"topic": f"t{number}", "subscription": "s"}
            name, _ = await raw.ask(
                "subscribe", **topic, subType=1, consumer_id=number, request_id=number
            )
            assert name == "success"
        await raw.close()
        other = await place.client()
        async with asyncio.timeout(WAIT_SECONDS):
            while left != {1, 2}:
                await other.ask("ping")

    run_story(tmp_path, story)


SHARED, EXCLUSIVE, WAITING, FENCING = range(4)


def opening(number: int, mode: int, name: str | None = None, epoch: int = 0) -> dict[str, Any]:
    return {
        "topic": "t",
        "producer_id": number,
        "request_id": number,
        "producer_access_mode": mode,
        "producer_name": name,
        "epoch": epoch,
    }


async def asked(raw: Raw, number: int, mode: int, **beside: Any) -> str:
    """Open a producer; the answer, or the name of the error."""
    name, body = await raw.ask("producer", **opening(number, mode, **beside))
    if name != "error":
        return name
    return next(text for text, error in ERRORS.items() if error == body.error)


def test_exclusive_producer_excludes_all_others(tmp_path: Path) -> None:
    async def story(place: Place) -> None:
        first, second = await place.client(), await place.client()
        assert await asked(first, 1, SHARED) == "producer_success"
        assert await asked(second, 2, EXCLUSIVE) == "ProducerFenced"
        assert await asked(first, 3, EXCLUSIVE) == "ProducerFenced"
        name, body = await second.ask("producer", **opening(4, WAITING))
        assert (name, body.producer_ready) == ("producer_success", False)
        assert await asked(first, 5, SHARED) == "ProducerBusy"
        first.write([encode_command("close_producer", producer_id=1, request_id=1)])
        assert (await answers(first, 1))[1] == "success"
        assert (await answers(second, 4))[4] == "producer_success"
        assert await asked(first, 6, SHARED) == "ProducerBusy"
        assert await asked(first, 7, EXCLUSIVE) == "ProducerFenced"
        assert await asked(first, 8, FENCING) == "producer_success"
        name, body = await second.next()
        assert (name, body.producer_id) == ("close_producer", 4)

    run_story(tmp_path, story)


def test_waiting_producer_is_fenced_by_a_takeover(tmp_path: Path) -> None:
    async def story(place: Place) -> None:
        first, second, third = [await place.client() for _ in range(3)]
        assert await asked(first, 1, EXCLUSIVE) == "producer_success"
        second.write([encode_command("producer", **opening(2, WAITING))])
        assert not (await second.next())[1].producer_ready
        assert await asked(third, 3, FENCING) == "producer_success"
        name, body = await second.next()
        assert (name, body.error) == ("error", ERRORS["ProducerFenced"])
        assert (await first.next())[0] == "close_producer"

    run_story(tmp_path, story)


def test_producer_name_belongs_to_its_newest_holder(tmp_path: Path) -> None:
    """Kills: an old connection's end that frees the name while a newer client holds it."""

    async def story(place: Place) -> None:
        first, second, third = [await place.client() for _ in range(3)]
        assert await asked(first, 1, SHARED, name="till") == "producer_success"
        assert await asked(second, 2, SHARED, name="till") == "ProducerBusy"
        assert await asked(second, 2, SHARED, name="till", epoch=1) == "producer_success"
        assert (await first.next())[0] == "close_producer"
        await first.close()
        for _ in range(3):
            assert await asked(third, 3, SHARED, name="till") == "ProducerBusy"
        second.write([encode_command("close_producer", producer_id=2, request_id=1)])
        await answers(second, 1)
        assert await asked(third, 3, SHARED, name="till") == "producer_success"

    run_story(tmp_path, story)

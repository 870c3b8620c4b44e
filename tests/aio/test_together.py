"""Calls that run together share a decision of the store, and each has an outcome of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import txlog
import txlog.aio
from txlog.clock import Instant
from txlog.engine.door.store import Call, Decision, Store, View
from txlog.errors import AlreadyClosed, InvalidArgument

pytestmark = pytest.mark.usefixtures("quick_disk")


def run(
    folder: Path, main: Callable[[txlog.aio.Client, list[int]], Coroutine[Any, Any, None]]
) -> None:
    """Run a coroutine with a client, and the sizes of the submissions to its store so far."""
    path, sizes = str(folder / "store"), list[int]()
    txlog.init(path, free_bytes_min=0)

    async def opened() -> None:
        async with txlog.aio.open(path) as client:
            submit = client.sync.store.submit

            def noted(store: Store, calls: list[Call]) -> None:
                sizes.append(len(calls))
                submit(calls)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Store, "submit", noted)
                await main(client, sizes)

    asyncio.run(opened())


def answering(answer: object) -> Call:
    """A call whose decision answers at once, or refuses if the answer is an error."""

    def decide(view: View, now: Instant) -> Decision[object]:
        if isinstance(answer, Exception):
            raise answer
        return Decision([], answer=answer)

    return Call(decide)


def outcome_of(call: Call) -> object:
    return call.answer if call.error is None else call.error


def itself(call: Call) -> Call:
    return call


def test_calls_of_one_turn_are_one_submission_and_have_their_own_outcomes(tmp_path: Path) -> None:
    refusal = InvalidArgument("this one alone")

    async def main(client: txlog.aio.Client, sizes: list[int]) -> None:
        together = client.waits.together
        calls = [answering(answer) for answer in (1, refusal, 3)]
        outcomes = await asyncio.gather(
            *(
                together.run(partial(outcome_of, call), None, partial(itself, call))
                for call in calls
            )
        )
        assert outcomes == [1, refusal, 3]
        assert sizes == [3]

    run(tmp_path, main)


def test_a_call_that_fails_keeps_no_other_from_its_answer(tmp_path: Path) -> None:
    """Whether it fails before the decision, while the call is made of the view, or after it."""

    def fail(*_: object) -> Any:
        raise InvalidArgument("this one alone")

    async def main(client: txlog.aio.Client, sizes: list[int]) -> None:
        together = client.waits.together
        first, second = answering(1), answering(2)
        outcomes = await asyncio.gather(
            together.run(lambda: outcome_of(first), None, lambda: first),
            together.run(lambda: "unreached", None, fail),
            together.run(fail, None, lambda: second),
            return_exceptions=True,
        )
        assert outcomes[0] == 1 and second.answer == 2
        assert all(isinstance(outcome, InvalidArgument) for outcome in outcomes[1:])
        # a call that no view can make is left out; its own turn decides
        third = answering(3)
        alone = await asyncio.gather(
            together.run(lambda: third.done, None, lambda: third),
            together.run(lambda: True, None, lambda: fail),
        )
        assert list(alone) == [True, True]

    run(tmp_path, main)


def test_a_cancelled_call_is_dropped_or_undone(tmp_path: Path) -> None:
    """Before it begins it never runs; later it runs to its end, and is undone."""
    begun, goes_on = threading.Event(), threading.Event()
    ran, undone = list[str](), list[str]()

    def act(name: str) -> str:
        ran.append(name)
        if name == "first":
            begun.set()
            assert goes_on.wait(60)
        return name

    async def main(client: txlog.aio.Client, sizes: list[int]) -> None:
        def started(name: str) -> asyncio.Task[str]:
            call = client.waits.together.run(lambda: act(name), undone.append, lambda: None)
            return asyncio.ensure_future(call)

        first, second = started("first"), started("second")
        while not begun.is_set():
            await asyncio.sleep(0)
        third, fourth = started("third"), started("fourth")
        await asyncio.sleep(0)
        for task in (second, third):
            task.cancel()
        goes_on.set()
        assert (await first, await fourth) == ("first", "fourth")
        await asyncio.wait([second, third])
        assert second.cancelled() and third.cancelled()
        assert (ran, undone) == (["first", "second", "fourth"], ["second"])

    run(tmp_path, main)


def test_a_closed_client_ends_the_calls_that_wait(tmp_path: Path) -> None:
    async def main(client: txlog.aio.Client, sizes: list[int]) -> None:
        await client.close()
        with pytest.raises(AlreadyClosed):
            await client.waits.together.run(lambda: 1, None, lambda: None)

    run(tmp_path, main)

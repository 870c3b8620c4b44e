"""How clients share the memory of a server: large frames queue in order, and small ones pass."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from txlog.serve.limits.budget import MemoryBudget, Reservation

UNIT = 1 << 17  # bytes: a large frame


def run(program: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(program, 20))


def alone(budget: MemoryBudget, owner: str = "a") -> Reservation:
    """A hold of a client whose own share is no limit."""
    return budget.share(owner, 1_000_000 * UNIT).hold()


async def turns() -> None:
    """Let every task run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_waiting_frames_get_memory_in_order() -> None:
    """Kills: a small frame that overtakes a large one for ever."""

    async def program() -> None:
        budget, order = MemoryBudget(100 * UNIT), list[int]()
        holds = list[Reservation]()

        async def want(size: int, owner: str) -> None:
            holds.append(alone(budget, owner))
            await holds[-1].reserve(size * UNIT)
            order.append(size)

        await want(60, "a")
        tasks = [asyncio.create_task(want(size, "b")) for size in (61, 2)]
        await turns()
        assert order == [60]
        await alone(budget).reserve(UNIT // 2)  # small frames have a queue of their own
        holds[0].close()
        await asyncio.gather(*tasks)
        assert order == [60, 61, 2]
        assert budget.held == budget.peak == 63 * UNIT + UNIT // 2

    run(program())


def test_a_frame_larger_than_the_budget_passes_alone() -> None:
    async def program() -> None:
        budget = MemoryBudget(100 * UNIT)
        large = alone(budget)
        await large.reserve(500 * UNIT)
        late = asyncio.create_task(alone(budget).reserve(1 * UNIT))
        await turns()
        assert not late.done()
        large.close()
        await late

    run(program())


def test_cancelled_wait_does_not_block_the_next() -> None:
    async def program() -> None:
        budget = MemoryBudget(160 * UNIT)
        first = alone(budget)
        await first.reserve(60 * UNIT)
        tasks = [asyncio.create_task(alone(budget).reserve(size * UNIT)) for size in (90, 30)]
        await turns()
        tasks[0].cancel()
        await asyncio.wait(tasks)
        assert budget.held == 90 * UNIT
        third = asyncio.create_task(alone(budget).reserve(50 * UNIT))
        await turns()
        first.close()
        third.cancel()  # at the moment in which it gets its turn
        await asyncio.wait([third])
        assert budget.held == 30 * UNIT

    run(program())


def test_a_client_waits_for_its_own_share_and_leaves_nothing_behind() -> None:
    async def program() -> None:
        budget = MemoryBudget(1_000 * UNIT)
        share, other = budget.share("a", 100 * UNIT), budget.share("a", 100 * UNIT)
        first, second = share.hold(), share.hold()
        await first.reserve(80 * UNIT)
        waiting = asyncio.create_task(second.reserve(30 * UNIT))
        await turns()
        assert not waiting.done()
        await other.hold().reserve(100 * UNIT)
        first.close()
        await waiting
        share.take(500 * UNIT)
        share.close()
        second.release(30 * UNIT)  # a late task of a client that has disconnected
        share.close()
        assert budget.held == 100 * UNIT

    run(program())


@pytest.mark.parametrize("is_late", [False, True])
def test_a_client_that_goes_while_it_waits_leaves_nothing_behind(*, is_late: bool) -> None:
    """Also if the client disconnects in the moment in which it gets memory."""

    async def program() -> None:
        budget = MemoryBudget(100 * UNIT)
        full, share = alone(budget), budget.share("a", 100 * UNIT)
        full.take(100 * UNIT)
        holds = [share.hold() for _ in range(3)]
        holds[0].take(5 * UNIT)  # it will be the guest
        waiting = [asyncio.create_task(hold.reserve(UNIT)) for hold in holds[1:]]
        await turns()
        if is_late:
            full.close()
            await holds[0].reserve(200 * UNIT)
            assert holds[0].is_guest()
        share.close()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(error, ConnectionResetError) for error in ended)
        full.close()
        assert budget.held == 0
        assert budget.guest is None
        with pytest.raises(ConnectionResetError):
            await share.hold().reserve(1)

    run(program())


def test_one_owner_leaves_room_for_the_others() -> None:
    """Kills: many connections of one role that occupy all the memory."""

    async def program() -> None:
        budget = MemoryBudget(1_000 * UNIT)
        tasks = [asyncio.create_task(alone(budget).reserve(10 * UNIT)) for _ in range(100)]
        await turns()
        assert 600 * UNIT < budget.held < 700 * UNIT
        await alone(budget, "b").reserve(100 * UNIT)
        share = budget.share("127.0.0.1", 100 * UNIT)
        share.take(60 * UNIT)
        share.join("b")  # the client has authenticated
        assert not (late := asyncio.create_task(alone(budget, "b").reserve(60 * UNIT))).done()
        await turns()
        assert late.done()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    run(program())


def test_half_frames_that_fill_the_memory_become_whole() -> None:
    """Kills: a deadlock of half-read frames that wait for each other's memory."""
    print("seed 7")
    chance = random.Random(7)

    async def program() -> None:
        budget = MemoryBudget(100 * UNIT)
        most = 0

        async def send(owner: str) -> None:
            nonlocal most
            with budget.share(owner, 1_000 * UNIT).hold() as hold:
                for _ in range(40):
                    await hold.reserve(UNIT, 40 * UNIT)
                    guest = 0 if budget.guest is None else budget.guest.held
                    most = max(most, budget.held + guest)
                    await asyncio.sleep(0)

        tasks = [asyncio.create_task(send(chance.choice("abc"))) for _ in range(60)]
        chance.shuffle(tasks)
        await turns()
        for task in tasks[:10]:  # some go, wherever they are
            task.cancel()
        await asyncio.wait(tasks)
        assert [task for task in tasks[10:] if task.cancelled() or task.exception()] == []
        assert budget.held == 0
        assert budget.guest is None
        assert most <= (100 + 40) * UNIT

    run(program())


def test_a_guest_that_ends_makes_room_for_the_next() -> None:
    """Also if the guest's client disconnects."""

    async def program() -> None:
        budget = MemoryBudget(100 * UNIT)
        shares = [budget.share("a", 30 * UNIT) for _ in range(2)]
        holds = [share.hold() for share in shares]
        for hold in holds:
            hold.take(25 * UNIT)
        await holds[0].reserve(100 * UNIT)
        assert holds[0].is_guest()
        assert budget.held == 25 * UNIT
        second = asyncio.create_task(holds[1].reserve(100 * UNIT))
        await turns()
        assert not second.done()
        shares[0].close()
        await second
        assert holds[1].is_guest()
        holds[1].release(125 * UNIT)
        assert budget.guest is None
        assert budget.held == 0

    run(program())

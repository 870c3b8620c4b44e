"""Reading while commits are in flight: every order of steps of a small case.

A runner leases a message, computes, commits without waiting, and leases the next one. Another
process sends the messages, and may seek back once. A flush may fail, the power may fail, a commit
may be refused, and the runner may die. The model has the steps of engine/session/consuming/receive
and engine/session/transactions/commits and no others. Mutants show that each rule is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

MESSAGES = 3
IN_FLIGHT_MAX = 2
SENT, DONE, BACK = "sent", "done", "back"
MUTANTS = (
    "hands out a message that is not durable",
    "hands out what a seek that is not durable has returned",
    "commits behind a refused commit",
    "goes on after an unknown outcome",
    "begins again at its place after a refusal",
)

Frame = tuple[str, int]


class World(NamedTuple):
    """A state of the store and of the runner.

    journal:  (sent, message), (done, message): acknowledged and its output stored, or (back, 0):
              message 0 is to be done again
    durable:  how many frames a flush has covered; a power cut keeps them and a prefix of the rest
    place:    the next message of the runner
    flights:  messages whose commits have no outcome yet, oldest first
    leased:   the message that the runner works on
    got:      the calls of the function: (message, whether it came again after a seek)
    budgets:  failures, refusals and seeks that may still happen
    """

    journal: tuple[Frame, ...] = ()
    durable: int = 0
    place: int = 0
    flights: tuple[int, ...] = ()
    leased: int | None = None
    got: frozenset[tuple[int, bool]] = frozenset()
    refused: int | None = None
    failures: int = 1
    refusals: int = 1
    seeks: int = 1


def owed(journal: tuple[Frame, ...]) -> list[int]:
    """The messages in a journal that are to be done."""
    open_messages: set[int] = set()
    for kind, message in journal:
        if kind == DONE:
            open_messages.discard(message)
        else:
            open_messages.add(message)
    return sorted(open_messages)


def shows(world: World, message: int) -> int:
    """The frame, counted from 1, by which a message can be handed out."""
    return max(
        at
        for at, frame in enumerate(world.journal, 1)
        if frame in ((SENT, message), (BACK, message))
    )


def steps(world: World, mutant: str | None) -> Iterator[World]:
    """Every world that a single step can lead to."""
    journal = world.journal
    sent = sum(kind == SENT for kind, _ in journal)
    if sent < MESSAGES:
        yield world._replace(journal=(*journal, (SENT, sent)))
    if world.seeks and (DONE, 0) in journal:
        yield world._replace(journal=(*journal, (BACK, 0)), seeks=0, place=0)
    if world.durable < len(journal):  # a flush; its commits have their outcome
        yield world._replace(durable=len(journal), flights=())
    if world.failures:
        for kept in range(world.durable, len(journal) + 1):  # power cut, failed flush, or a kill
            rest = journal[:kept]
            restarted = world._replace(
                journal=rest,
                durable=kept,
                place=0,
                flights=(),
                leased=None,
                refused=None,
                failures=world.failures - 1,
            )
            yield restarted
            if mutant == "goes on after an unknown outcome":
                yield restarted._replace(place=world.place, leased=world.leased)
    yield from of_runner(world, mutant)


def of_runner(world: World, mutant: str | None) -> Iterator[World]:
    journal = world.journal
    if world.refused is not None:
        # nothing behind it is committed; the refused message comes first
        place = world.place
        if mutant != "begins again at its place after a refusal":
            place = min(owed(journal), default=MESSAGES)
        yield world._replace(refused=None, leased=None, place=place)
        if mutant != "commits behind a refused commit":
            return
    if world.leased is None:
        todo = [message for message in owed(journal) if message >= world.place]
        if not todo:
            return
        message = todo[0]
        at = shows(world, message)
        kind = journal[at - 1][0]
        is_free = (
            at <= world.durable
            or (kind == SENT and mutant == "hands out a message that is not durable")
            or (kind == BACK and mutant == "hands out what a seek that is not durable has returned")
        )
        if is_free:
            got = world.got | {(message, kind == BACK)}
            yield world._replace(leased=message, place=message + 1, got=got)
        return
    if len(world.flights) >= IN_FLIGHT_MAX:
        return  # back pressure: it waits for the oldest
    message = world.leased
    yield world._replace(
        journal=(*journal, (DONE, message)), flights=(*world.flights, message), leased=None
    )
    if world.refusals:
        yield world._replace(leased=None, refused=message, refusals=world.refusals - 1)


def wrong(world: World) -> str | None:
    """Return the promise that this world breaks, if any."""
    journal = world.journal
    for message, is_again in world.got:
        if (SENT, message) not in journal:
            return "the function saw a message that a power cut took"
        if is_again and (BACK, message) not in journal:
            return "the function saw a message again, by a seek that a power cut took"
    done: list[int] = []
    is_back = False
    for kind, message in journal:
        if kind == BACK:
            is_back = True
        elif kind == DONE:
            if message in done and not (is_back and message == 0):
                return "an output is stored twice"
            if message and message - 1 not in done:
                return "outputs are out of order"
            done.append(message)
    return None


def explored(mutant: str | None) -> tuple[int, str | None, bool]:
    """(number of worlds, a broken promise, whether every end has all outputs)."""
    start = World()
    seen, waiting, is_whole = {start}, [start], True
    while waiting:
        world = waiting.pop()
        if (fault := wrong(world)) is not None:
            return len(seen), fault, is_whole
        worlds = [*steps(world, mutant)]
        if not worlds:
            is_whole = is_whole and not owed(world.journal)
        fresh = [each for each in worlds if each not in seen]
        seen.update(fresh)
        waiting += fresh
    return len(seen), None, is_whole


def test_reads_beside_a_flush_break_no_promise() -> None:
    worlds, fault, is_whole = explored(None)
    assert fault is None
    assert worlds > 1_000
    assert is_whole, "a message is never done"


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_rule_of_reads_in_flight_is_needed(mutant: str) -> None:
    _, fault, is_whole = explored(mutant)
    assert fault is not None or not is_whole

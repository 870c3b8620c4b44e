"""The protocol of appends and flushes by several processes: every interleaving of a small case.

Three threads each append a frame and want it durable. Each is a process of its own, or two
share a process, which flushes without its mutex: its other thread appends meanwhile. A flush may
fail or be cut short by an interrupt, and a process may die between any two steps. The model has the
steps of store/store and storage/journal and no others: the cache (read by the next process), the
disk (the state after a power cut), the two locks, and the witness. Mutants show that each rule is
needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

PROCESSES = 3
APART, TOGETHER = (0, 1, 2), (0, 0, 1)  # the process of each thread
FAILURES = 1
DEATHS = 1
# flock lets a second thread of its process in, so the engine must keep it out
REENTERS = "takes the flush lock that another thread of its process holds"
MUTANTS = (
    "raises before it flushes",
    "answers before it flushes",
    "flushes again after a failure",
    "does not mark",
    "writes the witness without the flush lock",
    "takes back what a flush has found",
)


class World(NamedTuple):
    """A state of the store and of its processes.

    journal: the frames of the current file, as the cache has them; a frame is its process's number
    lost:    frames whose pages a failed flush has marked clean: another flush does not write them
    disk:    frames that a power cut leaves
    witness: (frames that are durable, frames that a running flush will cover or 0, poisoned)
    at:      the stage of each process: new, locked, written, flushing (it has marked), then flushed
             or failed, done (it answered), unknown, back (its append failed when the frame was
             whole), withdrawn, dead
    target:  by process, how many frames its flush covers
    """

    journal: tuple[int, ...]
    lost: frozenset[int]
    disk: frozenset[int]
    witness: tuple[int, int, bool]
    write_lock: int | None
    flush_lock: int | None
    at: tuple[str, ...]
    target: tuple[int, ...]
    failures: int
    deaths: int
    process: tuple[int, ...] = APART


START = World(
    (), frozenset(), frozenset(), (0, 0, False), None, None, ("new",) * PROCESSES,
    (0,) * PROCESSES, FAILURES, DEATHS,
)  # fmt: skip


def moved(world: World, process: int, stage: str, **changes: object) -> World:
    """The world after a process has moved to a stage, with other changes."""
    at = (*world.at[:process], stage, *world.at[process + 1 :])
    return world._replace(at=at, **changes)  # type: ignore[arg-type]


def died(world: World, process: int) -> World:
    """The world without a process: its locks are free, and its writes stay."""
    own = [thread for thread, of in enumerate(world.process) if of == process]
    ended = ("done", "unknown", "withdrawn")
    return world._replace(
        at=tuple(
            "dead" if thread in own and stage not in ended else stage
            for thread, stage in enumerate(world.at)
        ),
        deaths=world.deaths - 1,
        write_lock=None if world.write_lock in own else world.write_lock,
        flush_lock=None if world.flush_lock in own else world.flush_lock,
    )


def can_flush(world: World, me: int, mutant: str | None) -> bool:
    """Whether the flush lock is free for a thread."""
    holder = world.flush_lock
    if holder is not None and mutant == REENTERS:
        return world.process[holder] == world.process[me]
    return holder is None


def is_broken(world: World) -> bool:
    """Whether the witness records a flush that failed or never ended."""
    durable, flushing, poisoned = world.witness
    return poisoned or flushing > durable


def steps(world: World, mutant: str | None) -> Iterator[World]:
    """Every world that a single step of one process can lead to."""
    for process in range(PROCESSES):
        yield from of_process(world, process, mutant)


def of_process(world: World, me: int, mutant: str | None) -> Iterator[World]:
    stage, (durable, _, poisoned) = world.at[me], world.witness
    if stage in ("done", "unknown", "dead", "withdrawn"):
        return
    if world.deaths and stage != "new":
        yield died(world, world.process[me])
    if world.deaths and stage == "flushing":  # cut short: its mark stays
        yield moved(world, me, "unknown", deaths=world.deaths - 1, flush_lock=None)
    if stage == "new" and world.write_lock is None:
        yield moved(world, me, "locked", write_lock=me)
    elif stage == "locked":
        if is_broken(world) and can_flush(world, me, mutant):  # R13, under both locks
            yield rolled_forward(world)
        if not poisoned and (not is_broken(world) or world.flush_lock is not None):
            journal = (*world.journal, me)
            yield moved(world, me, "written", journal=journal, write_lock=None)
            if world.failures and me == 0:  # a handler raises after the last byte
                yield moved(world, me, "back", journal=journal, failures=world.failures - 1)
    elif stage == "back":
        is_found = me in world.journal[:durable]
        if mutant == "takes back what a flush has found" or world.flush_lock is None:
            if is_found and mutant != "takes back what a flush has found":
                yield moved(world, me, "unknown", write_lock=None)
            else:
                journal = tuple(frame for frame in world.journal if frame != me)
                yield moved(world, me, "withdrawn", journal=journal, write_lock=None)
    elif stage == "written":
        own_position = world.journal.index(me) + 1
        if mutant == "answers before it flushes" or durable >= own_position:
            yield moved(world, me, "done")
        elif can_flush(world, me, mutant) or mutant == "writes the witness without the flush lock":
            holds = me if world.flush_lock is None else world.flush_lock
            if is_broken(world) and mutant != "flushes again after a failure":
                if world.write_lock is None:
                    yield rolled_forward(world)
                return
            end = len(world.journal)
            target = (*world.target[:me], end, *world.target[me + 1 :])
            mark = (durable, 0 if mutant == "does not mark" else end, poisoned)
            if mutant == "raises before it flushes":
                mark = (end, 0, False)
            yield moved(world, me, "flushing", flush_lock=holds, target=target, witness=mark)
    elif stage == "flushing":
        covered = frozenset(world.journal[: world.target[me]])
        yield moved(world, me, "flushed", disk=world.disk | (covered - world.lost))
        if world.failures:
            yield moved(
                world,
                me,
                "failed",
                failures=world.failures - 1,
                lost=world.lost | (covered - world.disk),
            )
    elif stage == "failed":
        marked = (durable, world.target[me], True)
        if mutant == "does not mark":
            marked = (durable, 0, False)
        free = None if world.flush_lock == me else world.flush_lock
        yield moved(world, me, "unknown", witness=marked, flush_lock=free)
    elif stage == "flushed":
        free = None if world.flush_lock == me else world.flush_lock
        yield moved(world, me, "done", witness=(world.target[me], 0, False), flush_lock=free)


def rolled_forward(world: World) -> World:
    """The world after all frames were written to a new file, in new pages, and flushed."""
    whole = frozenset(world.journal)
    return world._replace(
        lost=world.lost - whole, disk=world.disk | whole, witness=(len(world.journal), 0, False)
    )


def wrong(world: World) -> str | None:
    """Return the promise that this world breaks, if any."""
    durable = world.journal[: world.witness[0]]
    if not set(durable) <= world.disk:
        return "the witness promises a frame that no disk holds"
    for process, stage in enumerate(world.at):
        if stage == "done" and process not in world.disk:
            return "a call was answered, and a power cut takes it"
        if stage == "done" and process not in durable:
            return "a call was answered, and no reader sees it"
    return None


def explored(
    mutant: str | None, process: tuple[int, ...] = APART
) -> tuple[int, str | None, set[tuple[str, ...]]]:
    """(number of worlds, a broken promise, the possible ends of the threads)."""
    start = START._replace(process=process)
    seen_worlds, waiting = {start}, [start]
    ends: set[tuple[str, ...]] = set()
    while waiting:
        world = waiting.pop()
        if (fault := wrong(world)) is not None:
            return len(seen_worlds), fault, ends
        next_worlds = [*steps(world, mutant)]
        if not next_worlds:
            ends.add(world.at)
        fresh = [next_world for next_world in next_worlds if next_world not in seen_worlds]
        seen_worlds.update(fresh)
        waiting += fresh
    return len(seen_worlds), None, ends


@pytest.mark.parametrize("process", [APART, TOGETHER], ids=["apart", "together"])
def test_no_order_of_steps_breaks_a_promise(process: tuple[int, ...]) -> None:
    """Every rule of the protocol is needed here, and no thread may wait for ever."""
    worlds, fault, ends = explored(None, process)
    assert fault is None
    assert worlds > 1_000
    stuck = {end for end in ends if set(end) - {"done", "unknown", "dead", "withdrawn"}}
    assert not stuck, "nobody can go on"
    assert ("done",) * PROCESSES in ends


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_rule_is_needed(mutant: str) -> None:
    """The model breaks a promise if any rule is left out."""
    _, fault, _ = explored(mutant)
    assert fault is not None


def test_threads_of_a_process_must_be_kept_apart() -> None:
    _, fault, _ = explored(REENTERS, TOGETHER)
    assert fault is not None

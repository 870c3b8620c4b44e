"""Threads that share a store take turns, and may get their outcome without a turn (R12).

A waiting thread sleeps at a gate of its own, which another thread opens. LOOK_AGAIN_S is out of
reach in most tests here, so a gate that stays closed hangs the test.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Event, Lock, Thread
from types import FrameType
from typing import Any

import pytest

from tests.engine_kit import Bench, read
from txlog import Client
from txlog.engine.storage.journal import Flight
from txlog.engine.store import store as module
from txlog.engine.store.store import Mutex
from txlog.errors import AlreadyClosed, NotAllowed

SEED = 20261126


class Interrupt(BaseException):
    """An exception of a signal handler, at any instruction."""


@pytest.fixture(autouse=True)
def never_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no waiting thread wake by its timeout."""
    monkeypatch.setattr(module, "LOOK_AGAIN_S", 1_000_000.0)


@pytest.fixture
def turns() -> Mutex:
    return Mutex(os.getpid)


@pytest.fixture
def bench(tmp_path: Path, quick_disk: None) -> Iterator[Bench]:
    opened = Bench(tmp_path / "store", durability="sync")
    opened.client.create_topic("t")
    yield opened
    opened.close()


def started(*acts: Callable[[], object]) -> list[Thread]:
    """Threads that run these acts."""
    threads = [Thread(target=act, daemon=True) for act in acts]
    for thread in threads:
        thread.start()
    return threads


def joined(threads: list[Thread]) -> None:
    """Wait for threads; a hang is a failure."""
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


class Held:
    """A thread that holds the mutex until the test lets it go."""

    def __init__(self, turns: Mutex) -> None:
        is_taken = Event()
        self.go = Event()

        def hold() -> None:
            is_taken.set()
            self.go.wait()

        self.threads = started(partial(turns.run, hold))
        is_taken.wait()

    def leave(self) -> None:
        """Free the mutex."""
        self.go.set()
        joined(self.threads)


class Counting:
    """A lock that counts failed tries; it may be freed right after a given try."""

    def __init__(self, turns: Mutex, held: Held | None = None, behind: int = 0) -> None:
        self.lock, self.held, self.behind, self.tries = turns._lock, held, behind, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lock, name)

    def acquire(self, *arguments: Any) -> bool:
        is_acquired: bool = self.lock.acquire(*arguments)
        if not is_acquired:
            self.tries += 1
            if self.held is not None and self.tries == self.behind:
                self.held.leave()
        return is_acquired


def waiting(turns: Mutex, count: int) -> None:
    """Return once so many threads wait."""
    while len(turns._waiting) < count:
        pass


class Flights:
    """Stops each flush until the test lets it go, and counts how often a thread waits for one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = [Event() for _ in range(4)]
        self.go = [Event() for _ in range(4)]
        self.count = self.waits = 0
        fly, wait = Flight.fly, Flight.wait

        def counted(flight: Flight) -> None:
            self.waits += 1
            wait(flight)

        def stopped(flight: Flight) -> None:
            nth, self.count = self.count, self.count + 1
            self.begun[nth].set()
            assert self.go[nth].wait(60)
            fly(flight)

        monkeypatch.setattr(Flight, "fly", stopped)
        monkeypatch.setattr(Flight, "wait", counted)

    def waited(self, times: int) -> None:
        """Return once threads have begun to wait so many times."""
        while self.waits < times:
            pass


def written(client: Client, lsn: int) -> None:
    """Return once this process has written so many frames."""
    while client.store._view.lsn < lsn:
        pass


def test_threads_write_while_another_flushes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """R12: five calls make three flushes, and no thread waits for a flush that is not its own."""
    client = bench.client
    producers = [client.producer("t") for _ in range(5)]
    flights, lsn = Flights(monkeypatch), client.store._view.lsn
    sends = [partial(each.send, b"%d" % n) for n, each in enumerate(producers)]
    first = started(sends[0])
    assert flights.begun[0].wait(60)
    group = started(sends[1], sends[2], sends[3])  # they share the second flush
    flights.waited(3)  # a thread that has its turn later would wait for what is written by then
    flights.go[0].set()
    joined(first)
    assert flights.begun[1].wait(60)
    last = started(sends[4])
    written(client, lsn + 5)
    flights.waited(6)  # one of the group flies; the others and the last wait for that flush
    flights.go[1].set()
    joined(group)
    assert flights.begun[2].wait(60)
    assert last[0].is_alive()
    flights.go[2].set()
    joined(last)
    assert flights.count == 3 and not client.store._mutex._waiting
    assert sorted(m.value or b"" for m in read(client)) == [b"%d" % n for n in range(5)]


def test_release_gives_the_turn_to_one_waiting_thread(turns: Mutex) -> None:
    """The next thread gets the turn. A thread whose act is done goes on at once, without a turn."""
    holder, ran, is_done = Held(turns), list[int](), [False, False, True]
    threads: list[Thread] = []
    lock = turns._lock = Counting(turns)

    def act(n: int) -> None:
        ran.append(n)
        joined(threads[2:])
        is_done[:] = [True] * 3

    for n in range(3):
        threads += started(partial(turns.run, partial(act, n), partial(is_done.__getitem__, n)))
        waiting(turns, n + 1)
    holder.leave()
    joined(threads)
    assert ran == [0] and lock.tries == 6  # each tries twice before it sleeps


def test_release_skips_an_open_gate(turns: Mutex) -> None:
    """A release skips an open gate, whose thread may be in a signal handler, and opens the next."""
    holder = Held(turns)
    threads = started(lambda: turns.run(lambda: None, lambda: False))
    waiting(turns, 1)
    row = turns._waiting.copy()
    turns._waiting.clear()
    turns._waiting[Lock()] = lambda: False  # an open gate without a thread
    turns._waiting.update(row)
    holder.leave()
    joined(threads)
    assert len(turns._waiting) == 1


def test_the_lock_may_be_freed_behind_the_last_try(turns: Mutex) -> None:
    """On release, the thread is already in the row, although it does not sleep at its gate yet."""
    holder = Held(turns)
    turns._lock = Counting(turns, holder, behind=2)
    joined(started(lambda: turns.run(lambda: None, lambda: False)))
    assert turns._lock.tries == 2


def test_gates_open_after_the_lock_is_freed_whatever_the_act_raised(
    turns: Mutex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that leaves its gate finds the lock free."""
    wake, was_held = Mutex._wake, list[bool]()

    def note(turns: Mutex) -> None:
        was_held.append(turns._lock._is_owned())
        wake(turns)

    monkeypatch.setattr(Mutex, "_wake", note)
    others: list[Thread] = []

    def act() -> None:
        others.extend(started(lambda: turns.run(lambda: None, lambda: False)))
        waiting(turns, 1)
        raise Interrupt

    with pytest.raises(Interrupt):
        turns.run(act)
    joined(others)
    assert was_held == [False]


def test_readers_do_not_starve_a_waiting_thread(turns: Mutex) -> None:
    """Readers of files switch threads only while they hold the mutex; a writer must not starve."""
    is_over, looks = False, 0

    def look() -> None:
        nonlocal looks
        while not is_over:
            turns.run(lambda: os.pread(file, 1, 0))
            looks += 1

    file = os.open(__file__, os.O_RDONLY)
    lookers = started(look, look, look)
    for _ in range(200):
        turns.run(lambda: None, lambda: False)
    is_over = True
    joined(lookers)
    os.close(file)
    assert looks < 100_000  # usually 1,000 to 10,000; 300,000 if the thread only ever tried


def test_deferred_work_runs_after_its_call(turns: Mutex) -> None:
    """Deferred work waits for its call, even if another thread is released meanwhile."""
    is_done, seen = False, list[str]()

    def act() -> None:
        nonlocal is_done
        assert turns.put_off(lambda: seen.append("tidied"))
        others = started(lambda: turns.run(lambda: None, lambda: is_done))
        waiting(turns, 1)
        is_done = True
        turns._wake()
        joined(others)
        seen.append("ended")

    turns.run(act)
    assert seen == ["ended", "tidied"]


def test_child_forked_at_its_gate_raises_already_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """R27: a signal handler may fork at the gate, and no thread of the child opens it."""
    monkeypatch.setattr(module, "LOOK_AGAIN_S", 0.001)
    pids = iter([1, 1, 1, 2])  # of the mutex, its holder, the waiting thread, the child
    turns = Mutex(partial(next, pids, 2))
    holder = Held(turns)
    with pytest.raises(AlreadyClosed, match="its child"):
        turns.run(lambda: None, lambda: False)
    holder.leave()
    assert not turns._waiting


def test_nested_calls_are_refused_also_while_waiting(turns: Mutex) -> None:
    """A call within a call would find the state half changed."""

    def nested() -> None:
        with pytest.raises(NotAllowed, match="within another call"):
            turns.run(lambda: None, lambda: False)

    turns.run(nested, lambda: False)
    turns.run(lambda: None)


def test_none_of_many_threads_is_forgotten(turns: Mutex) -> None:
    """Leaders that answer waiting threads, and readers that do not, in any order: each one ends."""
    print("seed", SEED)
    rng = random.Random(SEED)
    queue: list[list[bool]] = []
    done = 0

    def lead() -> None:
        nonlocal done
        for flag in [queue.pop() for _ in range(len(queue))]:
            flag[0], done = True, done + 1

    def write(durations: list[float]) -> None:
        for duration in durations:
            flag_of_thread = [False]
            queue.append(flag_of_thread)
            while not flag_of_thread[0]:
                turns.run(lead, partial(flag_of_thread.__getitem__, 0))
            for _ in range(int(duration * 50)):
                pass

    def look(count: int) -> None:
        for _ in range(count):
            turns.run(lambda: None)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        rests = [[rng.random() for _ in range(400)] for _ in range(8)]
        acts: list[Callable[[], object]] = [partial(write, durations) for durations in rests]
        joined(started(*acts, *[lambda: look(400)] * 2))
    finally:
        sys.setswitchinterval(interval)
    assert done == 3_200 and not queue and not turns._waiting


class Cut:
    """Raises in this thread before the nth instruction in the module of the mutex."""

    def __init__(self, nth: int) -> None:
        self.left = nth

    def __enter__(self) -> Cut:
        sys.settrace(self._call)
        return self

    def __exit__(self, *arguments: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename != module.__file__:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                raise Interrupt(f"{frame.f_code.co_qualname} line {frame.f_lineno}")
        return self._step


def test_others_go_on_behind_an_interrupt_anywhere(
    turns: Mutex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt of the thread that frees the mutex, or waits for it, never leaves it held."""
    monkeypatch.setattr(
        module, "LOOK_AGAIN_S", 0.001
    )  # recovers a wake-up that an interrupt swallowed
    for is_waiter in (False, True):
        nth, was_cut = 0, True
        while was_cut:
            nth += 1
            was_cut = interrupted(turns, nth, is_waiter=is_waiter)
            assert not turns._lock._is_owned()
            assert not turns._waiting
        assert nth > 50


def interrupted(turns: Mutex, nth: int, *, is_waiter: bool) -> bool:
    """Cut short one call of this thread, while two other threads wait."""
    ran: list[int] = []
    others: list[Thread] = []
    holder = Held(turns) if is_waiter else None

    def start() -> None:
        row = len(turns._waiting)
        others.extend(
            started(*(partial(turns.run, partial(ran.append, n), lambda: False) for n in range(2)))
        )
        waiting(turns, row + 2)

    def let_go() -> bool:
        assert holder is not None
        holder.go.set()
        return False

    was_cut = False
    if holder is not None:
        start()
    try:
        with Cut(nth):
            turns.run(
                start if holder is None else (lambda: None), let_go if holder else lambda: False
            )
    except Interrupt:
        was_cut = True
    if holder is not None:
        holder.leave()
    joined(others)
    assert sorted(ran) == ([0, 1] if others else [])
    return was_cut

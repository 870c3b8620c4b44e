"""Waits within signal handlers, after interrupts and in forked children."""

from __future__ import annotations

import _thread
import dis
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import txlog
from tests.reading.waits import LONG_S, Thread
from txlog.engine.store import wakeups

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.mark.parametrize("is_outer_polling", [True, False])
def test_a_nested_wait_of_a_signal_handler_does_not_starve_others(
    path: str,
    rests: threading.Semaphore,
    is_outer_polling: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A signal handler waits while its thread polls, or waits for its bell."""
    insides, answers = list[Callable[[], None]](), list[bool]()

    class Bell:
        def __init__(self) -> None:
            self._lock = threading.Lock()
            self.release = self._lock.release

        def acquire(self, timeout: float = -1) -> bool:
            if timeout >= 0 and insides:
                insides.pop()()
            return self._lock.acquire(timeout=timeout)

    with txlog.open(path) as own_client, txlog.open(path) as other:
        woken = own_client.store.wakeups
        woken.begin()
        watch, seen = woken._watch, woken.count
        assert watch is not None
        polled = watch.wait

        def polls(seconds: float | None) -> frozenset[str]:
            if is_outer_polling and insides:
                insides.pop()()
            return polled(seconds)

        monkeypatch.setattr(type(watch), "wait", lambda self, seconds: polls(seconds))
        monkeypatch.setattr(wakeups, "Lock", Bell)
        threads = [] if is_outer_polling else [Thread(lambda: woken.wait(seen, LONG_S))]
        if threads:
            assert rests.acquire(timeout=60)
            while not woken._bells or woken._gate.acquire(blocking=False):
                while woken._gate._is_owned():
                    woken._gate.release()
        insides.append(lambda: answers.append(woken.wait(seen, LONG_S)))
        for _ in range(2):
            threads.append(Thread(lambda: woken.wait(seen, LONG_S)))
            assert rests.acquire(timeout=60)
            while insides:
                threads[-1].join(0.001)
        assert rests.acquire(timeout=60)
        other.producer("t").send(b"1")
        assert [thread.result() for thread in threads] == [True] * len(threads)
        assert answers == [True] and not woken._bells


def test_a_long_signal_handler_does_not_starve_other_waits(
    path: str, rests: threading.Semaphore
) -> None:
    """Handlers run in the main thread: its bell rang, and the thread does not come."""
    with txlog.open(path) as own_client, txlog.open(path) as other:
        woken, main = own_client.store.wakeups, threading.main_thread().ident
        woken.begin()
        seen, bell = woken.count, threading.Lock()
        bell.acquire()
        assert main is not None
        woken._bells[main] = bell
        calm = [Thread(lambda: woken.wait(seen, LONG_S)) for _ in range(3)]
        for _ in calm:
            assert rests.acquire(timeout=60)
        other.producer("t").send(b"1")
        assert [future.result() for future in calm] == [True] * 3
        assert not bell.locked() and list(woken._bells) == [main]


class Interrupt:
    """A signal handler that raises, at one of the bytecodes of a module after which one may run."""

    BEHIND = ("CALL", "CALL_FUNCTION_EX", "RESUME", "JUMP_BACKWARD")

    def __init__(self, module: Any, at: int) -> None:
        self._file, self._left, self.is_over = module.__file__, at, False
        self._before: dict[Any, dict[int, str]] = {}

    def run(self, act: Callable[[], object]) -> None:
        trace_before = sys.gettrace()
        sys.settrace(self._call)
        try:
            act()
        except KeyboardInterrupt:
            self.is_over = True
        finally:
            sys.settrace(trace_before)

    def _call(self, frame: Any, event: str, arg: object) -> Any:
        if frame.f_code.co_filename != self._file:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: Any, event: str, arg: object) -> Any:
        code = frame.f_code
        if code not in self._before:
            steps = list(dis.get_instructions(code))
            self._before[code] = {
                two.offset: instruction.opname for instruction, two in itertools.pairwise(steps)
            }
        if event == "opcode" and self._before[code].get(frame.f_lasti) in self.BEHIND:
            self._left -= 1
            if self._left == -1:
                raise KeyboardInterrupt
        return self._step


@pytest.mark.parametrize("call", ["begin", "drain", "wait"])
def test_an_interrupt_keeps_nothing_from_the_others(path: str, call: str) -> None:
    """At any bytecode, it leaves no lock held, and loses no notification and no turn to poll."""
    is_cut, at = True, 0
    while is_cut:
        with txlog.open(path) as own_client:
            woken, bell, passed = own_client.store.wakeups, threading.Lock(), list[int]()
            acts: dict[str, Callable[[], object]] = {
                "begin": woken.begin,
                "drain": woken.drain,
                "wait": partial(woken.wait, 0, LONG_S),
            }
            if call != "begin":
                woken.begin()
                woken.ring()
            appends_before = woken.tally.count = 0
            woken.pass_on = partial(passed.append, 1)
            bell.acquire()
            woken._bells[0] = bell
            interrupt = Interrupt(wakeups, at)
            interrupt.run(acts[call])
            is_cut, at = interrupt.is_over, at + 1
            assert not woken._gate._is_owned() and not woken._making._is_owned()
            assert list(woken._bells) == [0]
            if woken.count == appends_before or call == "begin":
                acts[call]()  # it was interrupted before it did anything
            assert not bell.locked()
            assert woken.count > appends_before or call == "begin"
            assert passed or call != "wait" or not is_cut
    assert at > 20


def test_a_child_of_a_fork_has_none_of_it(path: str) -> None:
    """R27: its descriptors are closed, and its calls fail because the store belongs to its
    parent.
    """
    with txlog.open(path) as client:
        client.store.wakeups.begin()
        fd = client.store.wakeups.fileno()
        assert fd is not None
        pid = os.fork()
        if not pid:
            try:
                os.fstat(fd)
            except OSError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        assert client.store.wakeups.fileno() == fd
        os.fstat(fd)


@pytest.mark.parametrize("has_other", [False, True])
def test_a_child_forked_by_a_handler_within_a_wait_does_not_wait_on(
    path: str, has_other: bool
) -> None:
    """Guards against a child that polls a closed descriptor, or waits for a bell that
    never rings.
    """
    me, main = os.getpid(), threading.get_ident()
    forked: list[int] = []
    with txlog.open(path) as client:
        woken = client.store.wakeups
        woken.begin()
        passed: list[int] = []
        woken.pass_on = lambda: passed.append(os.getpid())
        wait = partial(woken.wait, woken.count, LONG_S)
        other = threading.Thread(target=wait)
        if has_other:
            other.start()
            while woken._gate.acquire(blocking=False):  # until it polls
                woken._gate.release()
                os.sched_yield()

        def fork(*_: object) -> None:
            forked.append(os.fork())
            if os.getpid() != me:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(60)  # it ends a child that still waits
            else:
                client.store.wakeups.tally.add()
                woken.ring()

        def send_signal() -> None:
            while main not in woken._bells:
                os.sched_yield()
            signal.pthread_kill(main, signal.SIGUSR1)

        handler_before = signal.signal(signal.SIGUSR1, fork)
        sender = threading.Thread(target=send_signal)
        try:
            sender.start()
            is_told = wait()
            if os.getpid() != me:
                os._exit(0 if is_told and os.getpid() not in passed else 1)
        finally:
            if os.getpid() == me:
                signal.signal(signal.SIGUSR1, handler_before)
        sender.join()
        if has_other:
            other.join()
    assert os.waitpid(forked[0], 0)[1] == 0


SIGNALS_OF_OTHERS: dict[str, Callable[[], object]] = {
    "interrupt_main": _thread.interrupt_main,
    "raise_signal": lambda: signal.raise_signal(signal.SIGINT),
    "os.kill": lambda: os.kill(os.getpid(), signal.SIGINT),
    "to itself": lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT),
    "to the main thread": lambda: signal.pthread_kill(
        threading.main_thread().ident or 0, signal.SIGINT
    ),
}


@pytest.mark.parametrize("way", SIGNALS_OF_OTHERS)
@pytest.mark.parametrize("has_other", [False, True])
def test_a_signal_that_another_thread_raises_ends_a_wait_without_end(
    path: str, way: str, has_other: bool
) -> None:
    """R29: handlers run in the main thread, which the kernel wakes only for some `way`."""
    main = threading.get_ident()
    with txlog.open(path) as client:
        woken = client.store.wakeups
        woken.begin()
        other = threading.Thread(target=partial(woken.wait, woken.count, LONG_S))
        if has_other:  # the other thread polls, and the main thread waits for its bell
            other.start()
            while woken._gate.acquire(blocking=False):
                woken._gate.release()
                os.sched_yield()

        def raise_it() -> None:
            while main not in woken._bells:
                os.sched_yield()
            SIGNALS_OF_OTHERS[way]()

        sender = threading.Thread(target=raise_it)
        sender.start()
        began_s = time.monotonic()
        with pytest.raises(KeyboardInterrupt), client.consumer("t", "s") as consumer:
            consumer.receive(20_000)
        assert time.monotonic() - began_s < 10
        sender.join()
    if has_other:
        other.join()

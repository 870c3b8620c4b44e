"""Threads of one process: one flushes while another appends, at every call of the disk.

Thread `a` sends a message that must be durable before the answer. At one of its calls to the disk a
second thread of the same client sends, too; then the flush goes on, fails, or the power fails.
Source: spec/reliability R13; docs/design/journal-and-durability, "Two locks".
"""

from __future__ import annotations

import errno
import random
import threading

import pytest

from tests.crash.test_many_writers import CALLS_MAX, IMAGES_MAX, SETTINGS, patient, send, sent
from tests.crash.world import after_reboot, new_disk, open_client
from tests.disk.memory import Killed, MemoryDisk
from tests.tiers import graded
from txlog import Client
from txlog.engine.storage.journal import Flight
from txlog.errors import OutcomeUnknown

EIO = OSError(errno.EIO, "Input/output error")


class Threads:
    """Two threads of one client: the second sends at the n-th call of the first to the disk.

    answered: the values of both that were answered; unknown: those that may be there
    """

    def __init__(self, client: Client, call: int, error: BaseException | None = None) -> None:
        self._client, self._call, self._error = client, call, error
        self._producer = client.producer("t")  # to open one, a thread waits for a flush
        self._calls = 0
        self._first = threading.get_ident()
        # A daemon: when the first is killed in a flush, as a whole process is, the second waits on.
        self._second = threading.Thread(target=self._send, args=("a2",), daemon=True)
        self.answered: list[str] = []
        self.unknown: list[str] = []

    def __call__(self, op: str, path: str, **info: int) -> None:
        if threading.get_ident() != self._first:
            return
        self._calls += 1
        if self._calls != self._call:
            return
        store = self._client.store
        lsn = store._view.lsn
        self._second.start()
        flight = store._mutex.flight
        if flight is not None and not flight.has_landed:
            while store._view.lsn == lsn and self._second.is_alive():
                pass  # it needs only the mutex, which is free
        if self._error is not None:
            raise self._error

    def _send(self, value: str) -> None:
        try:
            self._producer.send(value)
            self.answered.append(value)
        except OutcomeUnknown:
            self.unknown.append(value)
        except Killed:
            return

    def run(self) -> None:
        """Send in both threads."""
        self._send("a1")
        if self._second.ident is not None:
            self._second.join(60)
            assert not self._second.is_alive()


def client_that_sent() -> tuple[MemoryDisk, Client]:
    """A process that has sent, so its next send makes the usual calls."""
    disk = new_disk(SETTINGS)
    with open_client(disk.process()) as client:
        client.create_topic("t")
    own = disk.process()
    client = patient(own)
    for _ in range(3):
        send(client, "a0")
    return own, client


@pytest.mark.parametrize("call", graded(range(1, CALLS_MAX + 1), range(1, CALLS_MAX + 1, 3)))
def test_both_go_on(call: int) -> None:
    """Guards against a thread that takes the flush lock of its own process for free."""
    disk, client = client_that_sent()
    disk.step = threads = Threads(client, call)
    threads.run()
    assert threads.answered and not threads.unknown
    assert {"a1", "a2"} & {*threads.answered} == {*threads.answered}
    assert not [line for line in client.store.reports if "rolled forward" in line]
    assert {*threads.answered} <= {*sent(disk)}


def flushing_call() -> int:
    """The number of the call that flushes the journal."""
    disk, client = client_that_sent()
    producer, calls = client.producer("t"), list[str]()
    disk.step = lambda op, path, **info: calls.append(f"{op} {path.split('/')[0]}")
    producer.send("a1")
    return calls.index("datasync journal") + 1


def test_an_append_during_a_flush_is_not_covered_by_it() -> None:
    """Two frames and two flushes; a power cut after the first answer keeps what was answered."""
    disk, client = client_that_sent()
    flushes: list[str] = []
    threads = Threads(client, flushing_call())

    def step(op: str, path: str, **info: int) -> None:
        if op == "datasync" and path.startswith("journal/"):
            flushes.append(path)
        threads(op, path, **info)

    disk.step = step
    threads.run()
    assert sorted(threads.answered) == ["a1", "a2"]
    assert len(flushes) == 2
    for image in disk.images(random.Random(1), IMAGES_MAX):
        assert {"a1", "a2"} <= {*sent(image, after_reboot())}


def test_a_failed_flush_is_the_outcome_of_its_own_thread() -> None:
    """The frame of the other thread goes to a new file, and is answered once it is durable there.

    Guards against an answer that rests on a flush that has failed.
    """
    disk, client = client_that_sent()
    disk.step = threads = Threads(client, flushing_call(), EIO)
    threads.run()
    assert threads.unknown == ["a1"]
    assert threads.answered == ["a2"]
    assert len([path for path in disk.files() if path.endswith(".journal")]) == 2
    for image in disk.images(random.Random(1), IMAGES_MAX):
        assert "a2" in sent(image, after_reboot())


def test_the_outcome_is_unknown_once_the_old_file_is_gone() -> None:
    """A flush fails. Before the other thread can look whether its frame was copied, another process
    makes checkpoints, and deletes the file that would tell.
    """
    disk, client = client_that_sent()
    threads = Threads(client, flushing_call(), EIO)
    other = patient(disk.process())
    journals: list[set[str]] = []

    def step(op: str, path: str, **info: int) -> None:
        threads(op, path, **info)
        if (op, path) == ("lock", "lock") and threads.unknown and not journals:
            journals.append({path for path in disk.files() if path.endswith(".journal")})
            for _ in range(3):
                assert send(other, "b")
                other.checkpoint()
            journals.append({path for path in disk.files() if path.endswith(".journal")})

    disk.step = step
    threads.run()
    before, after = journals
    assert not before & after
    assert threads.unknown == ["a1", "a2"] and not threads.answered


def test_a_thread_that_waits_for_a_failed_flush_gets_no_false_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One flight covers two threads, and fails: the other one's frame goes to a new file first.

    They connect keys: a send would look after delayed messages next, and flush for that. Both
    append between fdatasync and the landing of an earlier flight, which must not cover them.
    """
    disk, client = client_that_sent()
    begun, failed, waits = threading.Event(), threading.Event(), threading.Event()
    outcome: dict[str, str] = {}
    flushes = 0
    wait = Flight.wait

    def waited(flight: Flight) -> None:
        if flushes == 2:
            waits.set()
        wait(flight)

    monkeypatch.setattr(Flight, "wait", waited)

    def step(op: str, path: str, **info: int) -> None:
        nonlocal flushes
        if op == "datasync" and path.startswith("journal/"):
            flushes += 1
            if flushes == 2:
                assert waits.wait(60)
                failed.set()
                raise EIO
        elif path == "journal/witness" and flushes == 1 and not begun.is_set():
            begun.set()
            store = client.store
            lsn = store._view.lsn
            while store._view.lsn < lsn + 2:
                pass  # two more threads append

    def work(key: str) -> None:
        try:
            client.connect(key)
            outcome[key] = "answered"
        except OutcomeUnknown:
            outcome[key] = "unknown"

    disk.step = step
    threads = [threading.Thread(target=work, args=(f"k{n}",)) for n in (1, 2, 3)]
    threads[0].start()
    assert begun.wait(60)
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed.is_set() and outcome["k1"] == "answered"
    assert sorted([outcome["k2"], outcome["k3"]]) == ["answered", "unknown"]
    answered = {key for key, end in outcome.items() if end == "answered"}
    for image in disk.images(random.Random(1), IMAGES_MAX):
        with open_client(image.process(), after_reboot()) as again:
            assert answered <= {row["transaction_key"] for row in again.admin.transaction_keys()}


@pytest.mark.parametrize("call", graded(range(1, CALLS_MAX + 1), range(2, CALLS_MAX + 1, 3)))
def test_a_power_cut_keeps_what_was_answered(call: int) -> None:
    disk, client = client_that_sent()
    disk.step = threads = Threads(client, call, Killed())
    threads._send("a1")
    answered = {*threads.answered}
    for image in disk.images(random.Random(1), IMAGES_MAX):
        assert answered <= {*sent(image, after_reboot())}


@pytest.mark.parametrize("act", ["close", "reload", "refresh a void view"])
def test_the_view_is_closed_only_after_the_landing(act: str) -> None:
    """Guards against a flush whose descriptor another thread closes meanwhile."""
    disk, client = client_that_sent()
    producer, store = client.producer("t"), client.store
    begun, go = threading.Event(), threading.Event()
    outcome: list[object] = []

    def step(op: str, path: str, **info: int) -> None:
        if op == "datasync" and path.startswith("journal/") and not begun.is_set():
            begun.set()
            assert go.wait(60)

    def work() -> None:
        try:
            outcome.append(producer.send("a1").message_id)
        except OutcomeUnknown as error:
            outcome.append(error)

    def other() -> None:
        if act == "close":
            store.close()
        elif act == "reload":
            store.reload()
        else:
            store._is_void = True
            store.refresh()

    disk.step = step
    threads = [threading.Thread(target=work), threading.Thread(target=other)]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    threads[1].join(0.1)
    go.set()
    for thread in threads:
        thread.join(60)
    assert not isinstance(outcome[0], OutcomeUnknown), outcome
    assert "a1" in sent(disk)
    assert not [line for line in store.reports if "rolled forward" in line]

"""Checkpoints that a write begins by itself: when they run, what they hold up, how they fail."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txlog
from tests.crash.world import new_disk, open_client
from tests.disk.memory import MemoryDisk
from tests.engine_kit import Bench, read, send, send_txn, values
from txlog import Client
from txlog.base.settings import Settings
from txlog.client.open import open_store
from txlog.clock import ManualClock
from txlog.engine.upkeep import service
from txlog.engine.upkeep.checkpoint import checkpoint as checkpoint_module

pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 1}, [("t", "s")], reader_grace_ms=1000),
]


# --- automatic checkpoints -------------------------------------------------------------------


def in_memory(checkpoint_frames: int) -> tuple[MemoryDisk, Client, ManualClock]:
    """A client with automatic checkpoints on a disk whose calls can fail, with its clock."""
    disk = new_disk(Settings(coordinators=1, checkpoint_frames=checkpoint_frames))
    clock = ManualClock(1_700_000_000_000)
    client = open_client(disk, clock)
    client.checkpoint_automatically = True
    return disk, client, clock


def frames(client: Client) -> int:
    """How many frames the journal has after the newest checkpoint."""
    return int(client.status()["journal"]["frames"])


def plain_sends(client: Client) -> Iterator[None]:
    """Send one message in each call."""
    producer = client.producer("t")
    while True:
        producer.send(b"v")
        yield


def batches(client: Client) -> Iterator[None]:
    """Send many messages in each call."""
    producer = client.producer("t")
    while True:
        producer.send_batch(pa.table({"value": [b"v"] * 10}))
        yield


def plain_acks(client: Client) -> Iterator[None]:
    """Acknowledge one existing message in each call."""
    message_ids = send(client, *[b"v"] * 100)
    for message_id in message_ids:
        client.acknowledge("t", "s", [message_id])
        yield


def leases(client: Client) -> Iterator[None]:
    """A consumer that only receives: each call leases one message, and none is acknowledged."""
    send(client, *[b"v"] * 100)
    with client.consumer("t", "s", receiver_queue_size=1) as consumer:
        while consumer.receive() is not None:
            yield


@pytest.mark.parametrize("use", [plain_sends, batches, plain_acks, leases])
def test_every_kind_of_write_keeps_the_journal_bounded(
    use: Callable[[Client], Iterator[None]],
) -> None:
    """2. Guards against a check after commits only: memory and the time to open follow the
    journal.
    """
    _, client, _ = in_memory(checkpoint_frames=10)
    client.create_topic("t")
    client.create_subscription("t", "s")
    longest = 0
    for _, _ in zip(use(client), range(60), strict=False):
        longest = max(longest, frames(client))
    assert client.status()["checkpoint"]["generation"] >= 4
    assert longest <= 14  # the frames of a checkpoint itself come after its cut


def test_an_idle_reader_keeps_no_more_than_the_journal() -> None:
    """7: a checkpoint of another process frees the reader's waiting ops and rows of frames."""
    disk, client, _ = in_memory(checkpoint_frames=10)
    client.create_topic("t")
    other = open_client(disk.process(read_only=True))
    for _ in range(60):
        send(client, b"v")
        other.wait_for_change(0)
        view = other.store._view
        waiting = sum(len(items) for _, items in view.waiting("topic"))
        assert waiting <= 12
        assert sum(map(len, view.tail.runs.values())) <= 12
        assert len(view.journal._files) <= 2
    assert len(read(other)) == 60


def test_a_failed_checkpoint_is_a_note_and_waits_before_it_is_tried_again() -> None:
    """R33, 11: the call's own decision stands.

    Guards against an error raised by a send, a commit or `close` because a checkpoint failed.
    """
    disk, client, clock = in_memory(checkpoint_frames=5)
    client.create_topic("t")
    tried: list[str] = []

    def fail(op: str, path: str, **info: int) -> None:
        if op == "link" and path.startswith("state/"):
            tried.append(path)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    disk.step = fail
    disk.damage("reserve", None)
    send(client, *[b"v"] * 40)
    send_txn(client, b"w")
    assert len(tried) == 1  # one attempt, not one for each call
    for turn in range(2, 5):
        clock.advance(60_000)
        send(client, b"v", b"v", b"v")
        assert len(tried) == turn
    (note,) = client.reports()
    assert "a checkpoint failed and is due again" in note
    clock.advance(60_000)
    client.close()
    assert len(tried) == 5
    (note,) = client.reports()
    assert "a checkpoint failed and is due again" in note
    disk.step = lambda op, path, **info: None
    other = open_client(disk.process(), clock)
    assert len(read(other)) == 50
    other.checkpoint()
    assert frames(other) == 0


def test_a_client_that_only_looks_writes_no_checkpoint(tmp_path: Path) -> None:
    """11.9. Guards against a reading command that checkpoints, expires or trims; no file
    changes.
    """
    bench = Bench(tmp_path / "store")
    bench.client.create_topic("t")
    bench.client.create_subscription("t", "s")
    bench.client.set_policies("t", ttl_ms=1)
    send(bench.client, *[b"v"] * 20)
    bench.client.checkpoint(roll_all=True)
    bench.client.set_policies("t", retention_bytes=1, ttl_ms=1)
    bench.client.admin.set_setting("checkpoint_frames", 1)
    bench.close()
    bench.clock.advance(60_000)

    def tree() -> dict[str, bytes]:
        paths = sorted(Path(bench.path).rglob("*"))
        return {
            os.path.relpath(path, bench.path): path.read_bytes() for path in paths if path.is_file()
        }

    tree_before = tree()
    with open_store(bench.path, clock=bench.clock) as client:
        assert client.topics()[0]["messages"] == 20
        assert len(read(client)) == 20
        client.status()
    assert tree() == tree_before
    # a client that writes also writes checkpoints
    with open_store(bench.path, clock=bench.clock) as client:
        send(client, b"w")
    assert tree() != tree_before
    assert frames(bench.another()) <= 4


def held_up_in_background(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Run checkpoints in the background; each waits for this event before it writes the state."""
    monkeypatch.setattr(service, "IN_BACKGROUND", True)
    go_on = threading.Event()
    real = checkpoint_module.write_state

    def held_up(*arguments: Any) -> Any:
        assert go_on.wait(60)
        return real(*arguments)

    monkeypatch.setattr(checkpoint_module, "write_state", held_up)
    return go_on


def test_the_caller_goes_on_while_a_checkpoint_writes_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9. Guards against a checkpoint in the thread of the caller; `close` waits for a
    running one.
    """
    go_on = held_up_in_background(monkeypatch)
    bench = Bench(tmp_path / "store", checkpoint_frames=10)
    client = bench.client
    client.checkpoint_automatically = True
    client.create_topic("t")
    send(client, *[b"v"] * 30)  # would wait for ever
    send_txn(client, b"w")
    thread = client._checkpoints._thread
    assert thread is not None
    assert thread.is_alive()
    assert client.status()["checkpoint"]["generation"] == 0
    go_on.set()
    client.close()
    assert not client._checkpoints.is_running
    thread.join()
    assert client.reports() == []
    other = bench.another()
    assert other.status()["checkpoint"]["generation"] >= 1
    assert len(read(other)) == 31
    bench.close()
    assert txlog.verify(bench.path, deep=True, clock=bench.clock)["errors"] == 0


def test_a_caller_gets_the_interpreter_sooner_during_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each system call of a commit releases the interpreter; getting it back would take 5 ms."""
    go_on = held_up_in_background(monkeypatch)
    bench = Bench(tmp_path / "store", checkpoint_frames=5)
    client, interval_before = bench.client, sys.getswitchinterval()
    client.checkpoint_automatically = True
    client.create_topic("t")
    send(client, *[b"v"] * 10)
    assert sys.getswitchinterval() == service.SWITCH_S
    go_on.set()
    client.close()
    assert sys.getswitchinterval() == interval_before


def test_the_switch_interval_that_a_program_sets_stays() -> None:
    """At any value and any time; two checkpoints at once count as one."""
    sharing, interval_before = service.FastThreadSwitching(), sys.getswitchinterval()
    try:
        with sharing, sharing:
            assert sys.getswitchinterval() == service.SWITCH_S
        assert sys.getswitchinterval() == interval_before
        with sharing:
            sys.setswitchinterval(0.02)
        assert sys.getswitchinterval() == 0.02
        for seconds in (0.0001, 0.0071):
            sys.setswitchinterval(seconds)
            interval = sys.getswitchinterval()
            with sharing:
                assert sys.getswitchinterval() == min(interval, service.SWITCH_S)
            assert sys.getswitchinterval() == interval
    finally:
        sys.setswitchinterval(interval_before)


def test_a_child_forked_during_a_checkpoint_has_the_switch_interval_of_its_program() -> None:
    """The child has no thread that runs this checkpoint, or that would release the held lock."""
    interval_before = sys.getswitchinterval()
    sharing = service._SHARING
    with sharing, sharing._lock:
        pid = os.fork()
        if not pid:
            status = 1
            with suppress(BaseException):
                intervals = [sys.getswitchinterval()]
                if sharing._lock.acquire(timeout=0):
                    sharing._lock.release()
                    with sharing:
                        intervals.append(sys.getswitchinterval())
                    intervals.append(sys.getswitchinterval())
                    status = int(intervals != [interval_before, service.SWITCH_S, interval_before])
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert sys.getswitchinterval() == interval_before


def test_maintenance_by_command_waits_for_the_automatic_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R24: a process does not lock itself out, however short its lock time-out is."""
    monkeypatch.setattr(service, "IN_BACKGROUND", True)
    bench = Bench(tmp_path / "store", checkpoint_frames=10)
    client = bench.another(lock_timeout_ms=0)
    client.checkpoint_automatically = True
    client.create_topic("t")
    for _ in range(5):
        send(client, *[b"v"] * 12)
        client.checkpoint(roll_all=True)
        assert frames(client) <= 12
    assert len(read(client)) == 60


def test_a_checkpoint_may_use_the_reserve_of_a_full_disk() -> None:
    """R30: a call that gives space back may write.

    Guards against a reserve that only frames may use.
    """
    disk = new_disk(Settings(coordinators=1, free_bytes_min=0))
    client = open_client(disk)
    client.create_topic("t")
    send(client, b"v" * 50)
    disk.machine.free_bytes = 20_000  # the next journal file alone takes 64 KiB here
    answer = client.checkpoint()
    assert not answer["skipped"]
    assert not disk.exists("reserve")
    assert any("the reserve was given up" in line for line in client.reports())
    assert values(open_client(disk.process())) == [b"v" * 50]
    remaining = [path for path in disk.files() if path.endswith(".state")]
    assert len(remaining) == 1  # the files of the first attempt were removed


def test_a_writer_without_pauses_yields_to_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """7. Guards against a writer that keeps the mutex while the journal grows without bound."""
    monkeypatch.setattr(service, "IN_BACKGROUND", True)
    go_on = threading.Event()
    real_write, real_wait = checkpoint_module.write_state, service.Checkpoints._wait
    waits: list[float | None] = []

    def held_up(*arguments: Any) -> Any:
        assert go_on.wait(60)
        return real_write(*arguments)

    def wait(checkpoints: service.Checkpoints, seconds: float | None) -> None:
        waits.append(seconds)
        real_wait(checkpoints, None if seconds is None else 0)

    monkeypatch.setattr(checkpoint_module, "write_state", held_up)
    monkeypatch.setattr(service.Checkpoints, "_wait", wait)
    bench = Bench(tmp_path / "store", checkpoint_frames=10)
    client = bench.client
    client.create_topic("t")
    client.checkpoint_automatically = True
    send(client, b"v", b"v")
    assert waits == []
    send(client, *[b"v"] * 36)
    go_on.set()
    client.close()
    assert set(waits[:-1]) == {service.ROOM_S, service.ROOM_LONG_S}
    assert waits[:-1] == sorted(waits[:-1])  # type: ignore[type-var]
    assert waits[-1] is None  # `close`, until it is over
    assert len(waits) >= 29


def test_an_interrupt_of_close_leaves_the_checkpoint_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5: the caller gets the interrupt at once.

    Guards against the use of `Thread.is_alive`, which is wrong after an interrupt.
    """
    go_on = held_up_in_background(monkeypatch)

    def handle(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    bench = Bench(tmp_path / "store", checkpoint_frames=10)
    client = bench.client
    client.checkpoint_automatically = True
    client.create_topic("t")
    send(client, *[b"v"] * 15)

    def is_running() -> bool:
        return client._checkpoints.is_running

    handler_before = signal.signal(signal.SIGALRM, handle)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            client._checkpoints.finish()  # would wait for ever
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler_before)
    assert is_running()
    # a forked child has no such thread, and must not wait for it
    with monkeypatch.context() as child:
        child.setattr(client._checkpoints, "_pid", lambda: -1)
        assert not is_running()
        client._checkpoints.finish()
    go_on.set()
    client.close()
    assert not is_running()
    assert bench.another().status()["checkpoint"]["generation"] >= 1

"""Waiting calls wake only by notifications; in these tests no timer ever triggers a look.

Each test waits in a thread, with pauses and rests of ten minutes, and acts meanwhile. So a missing
wake-up shows as a thread that does not end, and not as a slow one.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

import txlog
from tests.engine_kit import (
    START_MS,
    begin,
    lock_of,
    new_store,
    open_client,
    send,
    session_of,
    witness_of,
)
from tests.reading.waits import LONG_S, Thread, value
from txlog.client.wait import Wait, has_state
from txlog.clock import ManualClock
from txlog.engine.session.consuming import receive
from txlog.engine.session.reading import pause
from txlog.engine.storage.disk import libc
from txlog.engine.storage.frame import WITNESS_PATH
from txlog.engine.store import wakeups
from txlog.engine.store.liveness import consumer_lock
from txlog.engine.store.store import Store
from txlog.engine.store.wakeups import Wakeups

pytestmark = pytest.mark.usefixtures("quick_disk")
T = TypeVar("T")


def test_a_moment_that_passes_between_a_look_and_its_rest(tmp_path: Path) -> None:
    """Guards against a rest until the next poll when the awaited time has already passed."""
    clock = ManualClock(START_MS)
    with open_client(new_store(tmp_path, clock), clock) as client:
        txn = begin(client, timeout_ms=200)
        wait = Wait(client.store, [has_state(txn, "aborted")])
        assert wait.look(True) is None
        clock.advance(200)
        assert wait.rest(LONG_S).seconds == 0.001
        assert wait.look(True) is None  # the wait still has all of its 200 ms
        clock.advance(1)
        assert wait.rest(LONG_S).seconds == 0
        assert wait.look(True) is True


def test_nothing_is_looked_at_while_nothing_happens(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle consumers rest until REST_SECONDS_MAX, without any wake-up."""
    waited: list[float] = []

    def wait(self: Wakeups, seen: int, seconds: float) -> bool:
        assert self.is_told
        waited.append(seconds)
        raise KeyboardInterrupt

    with txlog.open(path) as client:
        send(client, b"1", b"2")
        consumer = client.consumer("t", "s")
        message = consumer.receive()
        assert message is not None
        assert consumer.receive() is not None
        consumer.acknowledge(message)
        monkeypatch.setattr(Wakeups, "wait", lambda self, seen, seconds: False)
        consumer.receive(timeout_ms=1)  # the lease before has found no more messages
        monkeypatch.setattr(Wakeups, "wait", wait)
        with pytest.raises(KeyboardInterrupt):
            consumer.receive(timeout_ms=None)
    assert waited and waited[-1] > pause.REST_SECONDS_MAX / 2


@pytest.mark.parametrize("kind", ["uncommitted", "key-shared", "watermarks", "unacked_max"])
def test_appends_are_waited_for_and_not_polled(
    path: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls that once polled every 50 ms rest as long as any other."""
    waited: list[float] = []

    def wait(self: Wakeups, seen: int, seconds: float) -> bool:
        waited.append(seconds)
        raise KeyboardInterrupt

    with txlog.open(path) as client, txlog.open(path) as other:
        if kind == "unacked_max":
            client.admin.set_setting("unacked_max", 1)
        client.create_subscription(
            "t",
            "u",
            type="key-shared" if kind == "key-shared" else "shared",
            isolation="uncommitted" if kind == "uncommitted" else "committed",
        )
        peer = other.consumer("t", "u")
        for number in range(4):
            client.producer("t").send(b"x", key=b"%d" % number)
        if kind == "key-shared":
            assert peer.receive_batch(1, 0).num_rows
        consumer = client.consumer("t", "u", enable_watermarking=kind == "watermarks")
        while consumer.receive_batch(timeout_ms=0).num_rows:
            pass
        monkeypatch.setattr(Wakeups, "wait", lambda self, seen, seconds: False)
        consumer.receive(timeout_ms=5)  # takes the messages that the lease before has left
        monkeypatch.setattr(Wakeups, "wait", wait)
        with pytest.raises(KeyboardInterrupt):
            consumer.receive(timeout_ms=None)
    assert waited[-1] > pause.REST_SECONDS_MAX / 3


def test_appends_wake_only_the_waits_that_ask_for_them(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait for commits rests on, while another wait of the same handle wakes for appends."""
    monkeypatch.setattr(pause, "APART_SECONDS_MIN", 0.0)
    with txlog.open(path) as own_client, txlog.open(path) as other:
        woken, txn, producer = own_client.store.wakeups, begin(other), other.producer("t")
        calm = pause.Waiting(own_client.store)
        keen = pause.Waiting(own_client.store, lambda _: pause.Quiet(60.0, heeds_appends=True))
        producer.send(b"0", txn=txn)
        woken.begin()
        producer.send(b"1", txn=txn)
        assert not woken.drain()  # no wait has asked for appends
        for waiting in (calm, keen, keen):
            waiting.look()
            waiting.rest()
        producer.send(b"2", txn=txn)
        assert woken.drain()
        assert calm.rest_on() > 30.0 and keen.rest_on() == 0.0
        assert keen.look() and not calm.look()
        for waiting in (calm, keen):
            waiting.rest()
        producer.send(b"3", txn=txn)
        other.commit(txn)
        assert woken.drain()
        assert calm.rest_on() == keen.rest_on() == 0.0
        assert keen.look(), "what was appended is looked for, although a commit came with it"


def test_appends_are_not_watched_once_no_call_waits(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "HEED_SECONDS", -1.0)
    with txlog.open(path) as own_client, txlog.open(path) as other:
        woken, txn, producer = own_client.store.wakeups, begin(other), other.producer("t")
        woken.begin()
        begun = woken.tally.beginnings
        assert woken.heed_appends() and woken.heed_appends()
        assert woken.tally.beginnings == begun + 1
        events = []
        for _ in range(4):
            producer.send(b"1", txn=txn)
            events.append(woken.drain())
        assert events[0] and not events[3]
        assert woken.heed_appends() and woken.tally.beginnings == begun + 2


def test_appends_to_a_new_journal_file_wake_a_wait(path: str) -> None:
    """A checkpoint begins a new journal file, and removes the old one."""
    with txlog.open(path) as own_client, txlog.open(path) as other:
        woken, producer = own_client.store.wakeups, other.producer("t")
        woken.begin()
        woken.heed_appends()
        keen = pause.Waiting(own_client.store, lambda _: pause.Quiet(60.0, heeds_appends=True))
        for _ in range(2):
            keen.look()
            keen.rest()
        producer.send(b"0")
        appends_before = woken.tally.appends
        other.checkpoint()
        while woken.drain():
            pass
        assert woken.tally.appends > appends_before and keen.look(), (
            "the file may have had some before"
        )
        woken.heed_appends()
        producer.send(b"1", txn=begin(other))
        appends_before = woken.tally.appends
        assert woken.drain() and woken.tally.appends > appends_before


def test_a_flush_while_the_event_of_its_append_is_read_wakes_a_wait(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The witness is read after the event of the append, and then its own event brings no news."""

    class Late:
        """A watch that reports the witness one turn later."""

        def __init__(self, watch: Any) -> None:
            self.watch, self.late = watch, frozenset[str]()

        def take(self) -> frozenset[str]:
            paths: frozenset[str] = self.watch.take()
            before = self.late
            self.late = paths & {WITNESS_PATH}
            return (paths - self.late) | before

        def __getattr__(self, name: str) -> Any:
            return getattr(self.watch, name)

    with txlog.open(path) as own_client, txlog.open(path) as other:
        woken, producer = own_client.store.wakeups, other.producer("t")
        woken.begin()
        woken.heed_appends()
        monkeypatch.setattr(woken, "_watch", Late(woken._watch))
        calm = pause.Waiting(own_client.store)
        calm.look()
        assert calm.rest() > 30.0
        producer.send(b"1")
        woken.drain()
        woken.drain()
        assert calm.rest_on() == 0.0


def test_a_change_before_another_wait_began_the_watch_is_not_missed(path: str) -> None:
    """A wait looked, then a commit or append came, and only then another thread began the watch."""
    with txlog.open(path) as own_client, txlog.open(path) as other:
        woken, txn = own_client.store.wakeups, begin(other)
        calm = pause.Waiting(own_client.store)
        keen = pause.Waiting(own_client.store, lambda _: pause.Quiet(60.0, heeds_appends=True))
        calm.look()
        other.producer("t").send(b"1")
        woken.begin()
        assert calm.rest() == 0.0 and calm.look() and calm.rest() > 30.0
        keen.look()
        other.producer("t").send(b"2", txn=txn)
        woken.heed_appends()
        assert keen.rest() == 0.0 and keen.look() and keen.rest() > 30.0


def test_a_wait_that_begins_with_another_keeps_its_time_out(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are the first; while one thread polls for hours, the other must return in time."""
    with txlog.open(path) as own_client:
        woken, watch = own_client.store.wakeups, own_client.store.disk.watch
        is_made, tried = threading.Event(), threading.Semaphore(0)

        class Spied:
            def __init__(self, lock: Any) -> None:
                self._lock = lock

            def __getattr__(self, name: str) -> Any:
                return getattr(self._lock, name)

            def acquire(self, *args: Any, **options: Any) -> bool:
                tried.release()
                return bool(self._lock.acquire(*args, **options))

            def __enter__(self) -> bool:
                return self.acquire()

            def __exit__(self, *_: object) -> None:
                self._lock.release()

        def slow() -> Any:
            assert is_made.wait(60)
            return watch()

        monkeypatch.setattr(type(own_client.store.disk), "watch", lambda self: slow())
        monkeypatch.setattr(woken, "_gate", Spied(woken._gate))
        monkeypatch.setattr(woken, "_making", Spied(woken._making))
        first = Thread(lambda: own_client.wait_for_change(10**6, None))
        for _ in range(2):  # the first has both locks, and makes the watch
            assert tried.acquire(timeout=60)
        second = Thread(lambda: own_client.wait_for_change(10**6, 1))
        assert tried.acquire(timeout=60)
        is_made.set()
        second.result()
        assert first.is_alive()


def test_a_thread_that_waits_again_at_once_does_not_starve_others(
    path: str, rests: threading.Semaphore
) -> None:
    """It waits again before the others have woken, and may poll for as long as it likes."""
    with txlog.open(path) as own_client, txlog.open(path) as other:
        woken, producer, is_over = own_client.store.wakeups, other.producer("t"), threading.Event()
        woken.begin()

        def wait_on() -> None:
            while not is_over.is_set():
                woken.wait(woken.count, LONG_S)

        busy = Thread(wait_on)
        for _ in range(20):
            seen = woken.count
            calm = [Thread(lambda seen=seen: woken.wait(seen, LONG_S)) for _ in range(2)]  # type: ignore[misc]
            for _ in calm:
                assert rests.acquire(timeout=60)
            producer.send(b"1")
            assert [future.result() for future in calm] == [True, True]
        is_over.set()
        woken.ring()
        busy.result()


def test_another_waiting_thread_polls_when_the_poller_times_out(
    path: str, rests: threading.Semaphore
) -> None:
    """The polling thread may time out without news, and so may the thread that should poll next."""
    with txlog.open(path) as own_client, txlog.open(path) as other:
        woken = own_client.store.wakeups
        woken.begin()
        seen = woken.count
        brief = [Thread(lambda: woken.wait(seen, 0.01)) for _ in range(3)]
        calm = [Thread(lambda: woken.wait(seen, LONG_S)) for _ in range(2)]
        for _ in (*brief, *calm):
            assert rests.acquire(timeout=60)
        for future in brief:
            future.result()
        other.producer("t").send(b"1")
        assert [future.result() for future in calm] == [True, True]


def test_a_wait_on_closed_wakeups_is_short(path: str) -> None:
    """Its caller chose the time-out before another thread closed the store."""
    with txlog.open(path) as own_client:
        woken = own_client.store.wakeups
        woken.begin()
        woken.close()
        assert not Thread(lambda: woken.wait(woken.count, LONG_S)).result()


def test_where_appends_cannot_be_watched_it_looks_again_soon(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of watches was reached halfway: commits notify, appends do not."""
    with txlog.open(path) as client:
        keen = pause.Waiting(client.store, lambda _: pause.Quiet(60.0, heeds_appends=True))
        client.store.wakeups.begin()
        add = libc.add_watch

        def refused(fd: int, path: str, mask: int) -> int:
            if "journal/" in path:
                raise OSError(28, "No space left on device")
            return add(fd, path, mask)

        monkeypatch.setattr("txlog.engine.storage.disk.posix.add_watch", refused)
        for _ in range(3):
            keen.look()
            assert keen.rest() <= pause.POLL_SECONDS_MAX


def test_a_nack_comes_back_when_it_is_due(path: str) -> None:
    """It does not wait for the next second: the idle state holds exactly until then."""
    with txlog.open(path) as client:
        send(client, b"1")
        client.store.wakeups.begin()
        consumer = client.consumer("t", "s")
        message = consumer.receive()
        assert message is not None and consumer.receive() is None
        consumer.negative_acknowledge(message, 900)
        assert consumer.receive() is None
        still = session_of(consumer).receiving.still
        assert still is not None and still.until_ms is not None
        now = client.store.clock.now()
        assert still.is_early(now, 0)
        assert not still.is_early(now._replace(boot_ms=still.until_ms), 0)


def test_a_look_while_a_peer_leaves_is_repeated_soon(path: str) -> None:
    """The peer's lock file was closed, as the kernel reported, but its lock is not free yet."""
    with txlog.open(path) as own_client, txlog.open(path) as other:
        consumer, peer = own_client.consumer("t", "s"), other.consumer("t", "s")
        send(other, b"1")
        peer.receive()
        woken, lock = own_client.store.wakeups, lock_of(peer)
        woken.begin()
        assert consumer.session.take(10, True) is None
        (Path(path) / consumer_lock(peer.id)).open("r+b").close()
        assert woken.drain()
        for is_thorough in (True, False, True):
            assert consumer.session.take(10, is_thorough) is None
            quiet = consumer.session.rest(0.01)
            assert quiet.seconds == 0.01 and quiet.concern is None
        lock.release()
        table = consumer.session.take(10, True)
        assert table is not None and table.num_rows == 1
        assert (
            consumer.session.take(10, True) is None and consumer.session.rest(0.01).seconds > 30.0
        )


def test_a_reported_lock_that_stays_held_is_not_watched_for_long(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that opens a lock file for writing, for instance one that joins too late, is not
    dead.
    """
    with txlog.open(path) as own_client, txlog.open(path) as other:
        consumer, peer = own_client.consumer("t", "s"), other.consumer("t", "s")
        woken = own_client.store.wakeups
        woken.begin()
        (Path(path) / consumer_lock(peer.id)).open("r+b").close()
        assert woken.drain()
        assert (
            consumer.session.take(10, True) is None and consumer.session.rest(0.01).seconds == 0.01
        )
        monkeypatch.setattr(wakeups, "GOING_SECONDS", 0.0)
        assert (
            consumer.session.take(10, True) is None and consumer.session.rest(0.01).seconds > 30.0
        )


def test_messages_acknowledged_in_an_open_transaction_are_waited_for(path: str) -> None:
    """Its time-out gives them back, and the waiting process may be the only one to notice."""
    with txlog.open(path) as own_client, txlog.open(path) as other:
        consumer, peer = own_client.consumer("t", "s"), other.consumer("t", "s")
        send(other, b"1")
        message = peer.receive()
        own_client.store.wakeups.begin()
        assert message is not None and consumer.session.take(10, True) is None
        still = session_of(consumer).idle
        assert still is not None and still.until_ms is None
        with other.transaction() as txn:
            peer.acknowledge(message, txn=txn)
            other.flush()
            assert own_client.store.refresh() > still.lsn
            reports = own_client.store.read(lambda view: view.changed_since(still.lsn))
            assert reports is not None and not reports.isdisjoint(still.concern.keys)
            assert consumer.session.take(10, False) is None
            leases = session_of(consumer).idle
            assert leases is not None and leases.until_ms is not None
        reports = own_client.store.read(lambda view: view.changed_since(leases.lsn))
        assert reports is not None and reports.isdisjoint(still.concern.keys), (
            "nothing comes back by it"
        )


def test_a_commit_elsewhere_costs_little(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer takes no lock for unflushed frames and makes no look if nothing of its own
    changed.

    Guards against a full look each time: a hundred waiting consumers would queue.
    """
    with txlog.open(path) as own_client, txlog.open(path) as other:
        other.create_topic("elsewhere")
        producer = other.producer("elsewhere")
        producer.send(b"0")
        txn = begin(other)
        producer.send(b"y", txn=txn)
        other.flush()
        consumer = own_client.consumer("t", "s")
        assert consumer.receive() is None and consumer.receive() is None
        waited = iter(range(5))
        looks: list[str] = []

        def wait(self: Wakeups, seen: int, seconds: float) -> bool:
            if next(waited, None) is None:
                raise KeyboardInterrupt
            producer.send(b"x")
            producer.send(b"y", txn=txn)  # written, not flushed
            looks.clear()
            return True

        monkeypatch.setattr(Wakeups, "wait", wait)
        under_lock = Store._under_lock

        def noted(self: Store, act: Callable[[], T]) -> T:
            if self is own_client.store:
                looks.append("lock")
            return under_lock(self, act)

        monkeypatch.setattr(Store, "_under_lock", noted)
        monkeypatch.setattr(receive, "expire_due", lambda *arguments, **more: looks.append("look"))
        with pytest.raises(KeyboardInterrupt):
            consumer.receive(timeout_ms=None)
        assert looks == []


def test_a_look_that_finds_nothing_follows_once(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer was faster. Another waiting consumer reads only the witness, and no other file."""
    with txlog.open(path) as own_client, txlog.open(path) as other:
        consumer, peer = own_client.consumer("t", "s"), own_client.consumer("t", "s")
        own_client.store.wakeups.begin()
        assert consumer.session.take(10, True) is None and consumer.session.take(10, False) is None
        other.producer("t").send(b"1")
        assert peer.receive_batch().num_rows == 1
        followed: list[str] = []
        refresh = Store._refresh

        def noted(self: Store) -> int:
            followed.append("")
            return refresh(self)

        monkeypatch.setattr(Store, "_refresh", noted)
        assert consumer.session.take(10, False) is None
        assert len(followed) == 1
        assert consumer.session.take(10, False) is None
        assert len(followed) == 2


def test_a_look_whose_time_has_come_follows_as_well(path: str) -> None:
    """Guards against a look at an old view, which was last refreshed when no message was due."""
    with txlog.open(path) as own_client, txlog.open(path) as other:
        consumer = own_client.consumer("t", "s")
        own_client.store.wakeups.begin()
        assert consumer.session.take(10, True) is None
        still = session_of(consumer).idle
        assert still is not None
        still.until_ms = own_client.store.clock.now().boot_ms
        other.producer("t").send(b"1")
        table = consumer.session.take(10, False)
        assert table is not None and table.num_rows == 1


def test_it_polls_where_the_kernel_does_not_notify(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """max_user_instances, max_user_watches, another system, a file system of another machine."""

    def refused(fd: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("txlog.engine.storage.disk.posix.open_inotify", refused)
    with txlog.open(path) as own_client, txlog.open(path) as other:
        consumer = own_client.consumer("t", "s")
        waited: list[float] = []

        def wait(self: Wakeups, seen: int, seconds: float) -> bool:
            assert not self.is_told and self.fileno() is None
            waited.append(seconds)
            if len(waited) == 8:
                other.producer("t").send(b"1")
            return False

        monkeypatch.setattr(Wakeups, "wait", wait)
        assert value(consumer.receive(timeout_ms=None)) == b"1"
        assert max(waited) <= pause.POLL_SECONDS_MAX


@pytest.mark.deep
def test_a_watch_limit_leaves_no_descriptor(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Descriptors opened before the limit was reached are reused, and closed with the store."""

    def refused(fd: int, path: str, mask: int) -> int:
        raise OSError(28, "No space left on device")

    gc.collect()
    count_before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr("txlog.engine.storage.disk.posix.add_watch", refused)
    with txlog.open(path) as client:
        for _ in range(3):
            assert client.consumer("t", "s").receive(timeout_ms=1) is None
    del client
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= count_before


def test_an_unknown_file_system_is_not_believed(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libc, "_kind", lambda fd: 0x6969)  # NFS
    with txlog.open(path) as client:
        assert client.store.disk.watch() is None


def test_the_beginning_of_a_flush_wakes_no_wait(path: str) -> None:
    """The witness is written before and after the flush; one commit is one wake-up."""
    with txlog.open(path) as own_client, txlog.open(path) as other:
        woken = own_client.store.wakeups
        for _ in range(2):
            woken.begin()
        assert woken.tally.beginnings == 1
        counts = []
        for value in (b"1", b"2"):
            count_before = woken.count
            other.producer("t").send(value)
            assert woken.drain()
            counts.append(woken.count - count_before)
            assert not woken.drain()
        assert counts == [1, 1]
        record = witness_of(own_client).read()
        assert record is not None
        record.flushing_lsn = record.durable_lsn + 1
        witness = witness_of(other)
        witness.read()
        witness.write(record)
        assert not woken.drain()


def test_a_flush_that_does_not_end_wakes_waiting_calls(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process may be dead, and the woken caller recovers its frames. Once for each flush."""
    monkeypatch.setattr(wakeups, "STALL_SECONDS", 0.0)
    with txlog.open(path) as own_client, txlog.open(path) as other:
        woken = own_client.store.wakeups
        woken.begin()
        witness = witness_of(other)
        record = witness.read()
        assert record is not None
        record.flushing_lsn = record.durable_lsn + 1
        witness.write(record)
        assert woken.wait(woken.count, LONG_S)
        assert woken._patience() == wakeups.WAIT_SECONDS_MAX

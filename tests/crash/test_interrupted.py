"""An exception at any instruction of the write path: all processes go on (R28, R29).

The library leaves signals alone, so a handler may raise between any two steps of Python: a
KeyboardInterrupt, or an Exception as job runners use for soft time limits. Whichever call it ends,
mutex and lock are free and the queue is empty. No call is doubled or carried out later, and no
answered message is lost. Deep: at every instruction; quick: at some.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pyarrow as pa
import pytest

from tests.crash.world import new_disk, open_client
from tests.disk.memory import MemoryDisk
from tests.engine_kit import Bench
from tests.harness import HOUR_S, Child, python, run
from tests.tiers import graded
from txlog import Client, TxnId
from txlog.clock import ManualClock
from txlog.engine import view
from txlog.engine.decide import draft
from txlog.engine.model import tail
from txlog.engine.session.transactions import buffer, transaction
from txlog.engine.storage import frame, journal
from txlog.engine.storage.disk import locks, posix
from txlog.engine.storage.disk import posix as disk
from txlog.engine.storage.disk.posix import PosixDisk
from txlog.engine.store import appender, store
from txlog.engine.upkeep import service
from txlog.engine.upkeep.checkpoint import checkpoint
from txlog.engine.upkeep.delayed import buckets as delayed
from txlog.errors import OutcomeUnknown, TxlogError, is_noted

START_MS = 1_700_000_000_000
MODULES = (
    appender, store, view, draft, tail, journal, locks, frame,
)  # fmt: skip
FILES = frozenset(str(module.__file__) for module in MODULES)
REAL_FILES = frozenset((*FILES, disk.__file__, posix.__file__, locks.__file__))
LOCK_FILES = frozenset((disk.__file__, locks.__file__))
QUICK_PLACES = 12  # of each call and kind
SEED = 20261123


class Alarm(Exception):
    """The exception that the handler of a soft time limit raises."""


class Injection:
    """Raises before the nth distinct instruction, and counts the distinct ones that ran."""

    def __init__(self, nth: int, error: type[BaseException], files: frozenset[str] = FILES) -> None:
        self.nth = nth
        self.files = files
        self.error = error
        self.places: set[tuple[CodeType, int]] = set()
        self.where = ""
        self.is_behind = False  # it raised when the call was complete and about to return

    def __enter__(self) -> Injection:
        sys.settrace(self._call)
        return self

    def __exit__(self, *details: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename not in self.files or is_dropping(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        instruction = (frame.f_code, frame.f_lasti)
        if event == "opcode" and instruction not in self.places:
            self.places.add(instruction)
            if len(self.places) == self.nth:
                self.where = f"{frame.f_code.co_qualname} line {frame.f_lineno} at {frame.f_lasti}"
                self.is_behind = is_done(frame)
                raise self.error(self.where)
        return self._step


def is_dropping(frame: FrameType | None) -> bool:
    """True below `__del__`: CPython swallows its exceptions, so no caller would see them."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def is_done(frame: FrameType | None) -> bool:
    """True when the write that a frame belongs to is complete; also outside of any write."""
    while frame is not None and frame.f_code is not store.Store.submit.__code__:
        frame = frame.f_back
    return frame is None or frame.f_locals["calls"][-1].done


class World:
    """A store with a history, the process that the test interrupts, and another process."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.clock = ManualClock(START_MS)
        self.disk = disk
        self.client = self.another()
        self.other = self.another()
        self.txn = next(row["txn"] for row in self.client.transactions())
        self.other.producer("t").send(b"of another")  # the call has a frame to follow
        self.other.producer("t").send(b"in it", txn=self.txn)  # and one that is not flushed

    def another(self) -> Client:
        return open_client(self.disk.process(), self.clock)


@cache
def history() -> MemoryDisk:
    disk = new_disk()
    client = open_client(disk, ManualClock(START_MS))
    client.create_topic("t")
    client.create_subscription("t", "s")
    client.producer("t").send(b"first")
    txn = client.begin()["txn"]
    assert isinstance(txn, TxnId)
    client.producer("t").send(b"held", txn=txn)
    client.acknowledge("t", "s", [ids(client)[b"first"]], txn=txn)
    return disk


def rows(*values: bytes) -> pa.Table:
    return pa.table({"value": pa.array(values, pa.binary())})


def ids(client: Client) -> dict[bytes, Any]:
    return {m.value: m.message_id for m in client.reader("t")}  # type: ignore[misc]


def _in_txn(world: World) -> None:
    with world.client.transaction() as txn:
        world.client.producer("t").send_async(b"new", txn=txn)
        world.client.acknowledge_async("t", "s", [ids(world.other)[b"of another"]], txn=txn)


def _overdue(world: World) -> None:
    world.clock.advance(10_000_000)
    world.client.expire()


CALLS: dict[str, Callable[[World], object]] = {
    "send": lambda world: world.client.producer("t").send(b"new"),
    "send in txn": lambda world: world.client.producer("t").send(b"new", txn=world.txn),
    "transaction": _in_txn,
    "acknowledge": lambda world: world.client.acknowledge(
        "t", "s", [ids(world.other)[b"of another"]]
    ),
    "commit": lambda world: world.client.commit(world.txn),
    "abort": lambda world: world.client.abort(world.txn),
    "expire": _overdue,
    "locked": lambda world: world.client.store.locked(lambda view: view.lsn),
    "cut": lambda world: world.client.store.cut(lambda view: view.lsn),
    "read": lambda world: world.client.store.read(lambda view: view.topic(1)),
    "look": lambda world: world.client.transactions(all=True),
}


def observed(client: Client) -> tuple[list[bytes | None], list[tuple[str, str]], Any]:
    """All visible messages, flushed before or not."""
    client.store.flush()
    values = [message.value for message in client.reader("t")]
    txns = [(str(row["txn"]), str(row["state"])) for row in client.transactions(all=True)]
    return values, sorted(txns), client.subscriptions("t")


def interrupt(name: str, nth: int, error: type[BaseException]) -> Injection:
    """Run a call that ends at the nth instruction, then check the store; raises if it is wrong."""
    world = World(history().copy())
    raised: BaseException | None = None
    with Injection(nth, error) as injection:
        try:
            CALLS[name](world)
        except (KeyboardInterrupt, Alarm, OutcomeUnknown) as caught:
            raised = caught
    if not injection.where:
        return injection
    where = f"{name}, {error.__name__} in {injection.where}"
    inner = world.client.store
    assert not inner._queue, where
    free: list[bool] = []
    taker = threading.Thread(target=lambda: free.append(inner._mutex._lock.acquire(blocking=False)))
    taker.start()
    taker.join()
    assert free == [True], f"{where}: the mutex is held"
    inner._mutex = store.Mutex(inner.disk.pid)  # the thread that tried keeps the old one for ever
    seen = observed(world.other)  # raises StoreLocked when the lock is held
    values = seen[0]
    assert values.count(b"new") <= 1 and values.count(b"first") == 1, (where, values)
    assert values.count(b"of another") == 1, (where, values)
    assert not isinstance(raised, OutcomeUnknown), f"{where}: what was raised is hidden"
    is_plain = raised is not None and not is_noted(raised)
    if is_plain and name in ("send", "transaction") and not injection.is_behind:
        assert b"new" not in values, f"{where}: it does not say that the call may have been done"
    if raised is None and name == "send":
        assert b"new" in values, f"{where}: answered, and lost"
    assert observed(world.client) == seen, where
    world.client.producer("t").send(b"after")
    last = observed(world.client)
    assert last[0] == [*values, b"after"], where
    assert observed(world.other) == observed(world.another()) == last, where
    return injection


def count(name: str) -> int:
    """How many instructions a call runs; the first run also fills the caches for the others."""
    return [len(interrupt(name, 0, Alarm).places) for _ in range(2)][-1]


@pytest.mark.parametrize("error", graded([KeyboardInterrupt, Alarm], 1))
@pytest.mark.parametrize("name", CALLS)
def test_an_exception_at_some_instructions(name: str, error: type[BaseException]) -> None:
    total = count(name)
    assert total > 100
    step = max(1, total // QUICK_PLACES)
    for nth in range(1 + (error is Alarm) * step // 2, total + 1, step):
        assert interrupt(name, nth, error).where


@pytest.mark.parametrize(
    "first",
    [pytest.param(1, marks=pytest.mark.deep)]
    + [pytest.param(first, marks=pytest.mark.slow) for first in range(2, 10)],
)
@pytest.mark.parametrize("error", [KeyboardInterrupt, Alarm])
@pytest.mark.parametrize("name", CALLS)
def test_an_exception_at_every_ninth_instruction(
    name: str, error: type[BaseException], first: int
) -> None:
    """From the first or a later one: together the tests try every instruction."""
    for nth in range(first, count(name) + 1, 9):
        interrupt(name, nth, error)


HANDLE_FILES = frozenset({str(transaction.__file__), str(buffer.__file__)})


def interrupt_handle(name: str, nth: int, files: frozenset[str]) -> Injection:
    """Interrupt a call on a handle in which two sends wait, then commit: both, or neither."""
    world = World(history().copy())
    producer, txn = world.client.producer("t"), world.client.transaction()
    queued = [b"one", b"two"]
    later = [producer.send_async(value, txn=txn) for value in queued]
    handle: dict[str, Callable[[], object]] = {
        "result": later[0].result,
        "send": lambda: producer.send(b"three", txn=txn),
        "send_batch": lambda: producer.send_batch(rows(b"three"), txn=txn),
        "flush": txn.flush,
        "id": lambda: txn.id,
        "commit": txn.commit,
        "abort": txn.abort,
        "leave": lambda: producer.send_async(b"three", txn=txn),
    }
    with Injection(nth, KeyboardInterrupt, files) as injection, suppress(KeyboardInterrupt):
        handle[name]()
    for _ in range(2):  # the second commit must be refused like the first
        with suppress(KeyboardInterrupt, TxlogError):
            txn.commit()
            committed = set(ids(world.other)) & {*queued, b"three"}
            assert committed >= set(queued), (
                f"{name}, {injection.where}: committed without {committed}"
            )
    committed = set(ids(world.other)) & {*queued, b"three"}
    assert not committed or committed >= set(queued), (name, injection.where, committed)
    if not nth and name != "abort":
        assert committed >= set(queued)
    for handle_of_send in later:  # each handle has an answer, or the error that prevented it
        with suppress(KeyboardInterrupt, TxlogError):
            assert handle_of_send.result().txn_index
    world.client.producer("t").send(b"after")
    return injection


@pytest.mark.parametrize(
    ("step", "files"),
    [
        pytest.param(5, HANDLE_FILES, id="some of the handle"),
        pytest.param(1, HANDLE_FILES, id="the handle", marks=pytest.mark.deep),
        pytest.param(1, HANDLE_FILES | FILES, id="all", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "name",
    graded(["commit", "send", "send_batch", "flush", "leave", "result", "id", "abort"], 4),
)
def test_a_commit_behind_an_interrupt_has_everything_or_is_refused(
    name: str, step: int, files: frozenset[str]
) -> None:
    """The handle keeps queued sends until it has recorded their outcome."""
    total = len(interrupt_handle(name, 0, files).places)
    assert total > 10
    for nth in range(1, total + 1, step):
        interrupt_handle(name, nth, files)


UPKEEP: dict[str, Callable[[Client], object]] = {
    "asked": lambda client: client.checkpoint(),
    "unasked": lambda client: service.run_checkpoint(client.store, wait=False),
    "changes": lambda client: service.compact_changes(client.store),
    "tend": lambda client: delayed.tend(client.store, [1], wait=True),
    "rebuild": lambda client: delayed.rebuild_if_free(client.store, 1, (1, 0, 0), (2, 0, 0)),
}
UPKEEP_FILES = frozenset(str(module.__file__) for module in (checkpoint, service, delayed))


def interrupt_upkeep(name: str, nth: int) -> Injection:
    """End upkeep at the nth instruction; then another process runs upkeep, and then this one."""
    disk = history().copy()
    client = open_client(disk.process(), ManualClock(START_MS))
    with Injection(nth, KeyboardInterrupt, UPKEEP_FILES) as injection, suppress(KeyboardInterrupt):
        UPKEEP[name](client)
    other = open_client(disk.process(), ManualClock(START_MS))
    lock = other.store.disk.lock_file(store.MAINTENANCE_PATH)
    assert lock.try_acquire(), f"{name}: the maintenance lock is held, {injection.where}"
    lock.close()
    if nth:
        other.producer("t").send(b"other")
        client.producer("t").send(b"own")
        assert not other.checkpoint()["skipped"], injection.where
        client.producer("t").send(b"behind")
        assert not client.checkpoint()["skipped"], injection.where
        assert observed(client) == observed(other), injection.where
    return injection


@pytest.mark.parametrize(
    ("name", "places"),
    graded(((name, QUICK_PLACES) for name in UPKEEP), 1)
    + [pytest.param(name, 1 << 30, marks=pytest.mark.slow) for name in UPKEEP],
)
def test_an_exception_in_upkeep_leaves_the_maintenance_lock_free(name: str, places: int) -> None:
    """R24: the lock is taken and freed in the first of these places, so the test tries most of
    them.
    """
    total = len(interrupt_upkeep(name, 0).places)
    assert total > 30
    taking = range(1, 60, 3)
    for nth in sorted({*taking, *range(1, total + 1, max(1, total // places)), total - 3}):
        interrupt_upkeep(name, nth)


# --- with a real disk -----------------------------------------------------------------------------


def interrupt_a_lock(
    root: str, nth: int, error: type[BaseException], monkeypatch: pytest.MonkeyPatch, *, busy: bool
) -> Injection:
    """Take a lock, at once or while another holder has it, and free it as the store does.

    Then another descriptor takes it, and then the interrupted one.
    """
    interrupted, holder, third = (PosixDisk(root).lock_file("lock") for _ in range(3))
    if busy:
        holder.acquire(60_000)

    def behind(seconds: float) -> None:
        holder.release()

    with monkeypatch.context() as patched:
        patched.setattr(time, "sleep", behind)
        with Injection(nth, error, LOCK_FILES) as injection, suppress(KeyboardInterrupt, Alarm):
            interrupted.acquire(60_000)
    holder.release()
    interrupted.release()
    for lock in (third, interrupted, holder):
        lock.acquire(60_000)
        lock.release()
        lock.close()
    return injection


@pytest.mark.parametrize("busy", [False, True])
def test_an_exception_while_a_lock_is_taken(
    busy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R24, R25: at every instruction; `release` frees the lock on any descriptor of the handle."""
    root = Bench(tmp_path / "store").path
    total = len(interrupt_a_lock(root, 0, Alarm, monkeypatch, busy=busy).places)
    assert total > 30
    for nth in range(1, total + 1):
        interrupt_a_lock(root, nth, (KeyboardInterrupt, Alarm)[nth % 2], monkeypatch, busy=busy)


@pytest.mark.usefixtures("quick_disk")
@pytest.mark.parametrize("step", [400, pytest.param(10, marks=pytest.mark.deep)])
def test_another_process_goes_on_behind_an_exception(step: int, tmp_path: Path) -> None:
    """The lock is free for the other process at once, and it reads every written message once."""
    bench = Bench(tmp_path / "store")
    bench.client.create_topic("t")
    producer = bench.client.producer("t")
    with Injection(0, Alarm, REAL_FILES) as injection:
        producer.send(b"counted")
    total = len(injection.places)
    with Child(python("echo", bench.path)) as other:
        for nth in range(1, total + 1, step):
            error = (KeyboardInterrupt, Alarm)[nth % 2]
            injection = Injection(nth, error, REAL_FILES)
            with injection, suppress(KeyboardInterrupt, Alarm):
                producer.send(b"new %d" % nth)
            values = json.loads(other.ask(f"other {nth}"))
            assert values.count(f"new {nth}") <= 1 and values[-1] == f"other {nth}", injection.where
            assert len(set(values)) == len(values)
    assert [m.value.decode() for m in bench.client.reader("t") if m.value] == values


@pytest.mark.slow
def test_a_storm_of_interrupts(tmp_path: Path) -> None:
    """Interrupts at random moments in a real process with other threads.

    No lock stays held, no message is lost or doubled.
    """
    bench = Bench(tmp_path / "store")
    bench.client.create_topic("t")
    bench.close()
    print("seed", SEED)
    assert run(python("storm", bench.path, SEED, 4000), timeout=HOUR_S).stdout == "0 4000\n"

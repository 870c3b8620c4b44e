"""An interrupt anywhere leaves the folds behind the journal, never different from it (R28, R29).

The library leaves signals alone, so KeyboardInterrupt may be raised between any two steps of a
call. A program that goes on with the same client must not see folds with half a frame.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial, partialmethod
from pathlib import Path
from threading import Event, Thread, current_thread, main_thread
from typing import Any

import pyarrow as pa
import pytest

from tests.engine_kit import Bench, read, send
from tests.tiers import graded
from txlog import Client
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.transactions.transaction import NewTxn, begin
from txlog.engine.model.tail import Tail
from txlog.engine.storage.disk.locks import PosixLock
from txlog.engine.storage.journal import Journal
from txlog.engine.store.appender import Call
from txlog.engine.store.store import Mutex, Store
from txlog.engine.view import View
from txlog.errors import (
    IN_DOUBT,
    AlreadyClosed,
    DiskFailed,
    MissingFile,
    NotAllowed,
    OutcomeUnknown,
    StoreFull,
    TopicNotFound,
    TxlogError,
)

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    opened = Bench(tmp_path / "store")
    opened.client.create_topic("t")
    opened.client.create_subscription("t", "s")
    send(opened.client, b"a")
    yield opened
    opened.close()


def seen(client: Client) -> Any:
    """The state that a client sees, with facts from every fold."""
    messages = [(m.message_id, m.value, m.txn) for m in read(client)]
    txns = [(row["txn"], row["state"]) for row in client.transactions(all=True)]
    view = client.store.read(lambda view: view)
    number = 1
    folds = [view.topic(number), view.buffer(number), view.watermark(number).state]
    return messages, client.subscriptions(), sorted(txns), [str(fold) for fold in folds]


def work(client: Client, turn: int) -> None:
    """Write frames with many ops."""
    message = read(client)[turn].message_id
    assert message is not None
    with client.transaction() as txn:
        client.producer("t", "p").send(b"%d" % turn, txn=txn)
        client.producer("t", "p").new_watermark(txn).event_time(turn + 1).send()
        client.acknowledge("t", "s", [message], txn=txn)


class _Cut:
    """Raises once, within the nth op that a fold applies."""

    def __init__(self, nth: int) -> None:
        self.left = nth
        self.take = View.take_ops

    def __call__(self, view: View, lsn: int, time_ms: int, ops: list[Any]) -> None:
        if 0 < self.left <= len(ops):
            self.take(view, lsn, time_ms, ops[: self.left - 1])
            self.left = 0
            raise KeyboardInterrupt
        self.left -= len(ops)
        self.take(view, lsn, time_ms, ops)


def _cut_by(view: View, cut: _Cut, *arguments: Any) -> None:
    cut(view, *arguments)


CALLS: dict[str, Callable[[Client], object]] = {
    "read": seen,
    "read only": seen,
    "status": lambda client: client.status(),
    "write": lambda client: send(client, b"x"),
    "dry run": lambda client: client.subscription("t", "s").skip(1, dry_run=True),
    "checkpoint": lambda client: client.checkpoint(),
}


@pytest.mark.parametrize("name", graded(CALLS, ("read", "write", "checkpoint")))
def test_half_applied_frame_is_applied_again(
    bench: Bench, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R28: in any call that reads the frames of another process."""
    client = bench.another(read_only=name == "read only")
    state_before = seen(client)
    for nth in range(1, 30, 2):
        work(bench.client, (nth - 1) // 2)
        cut = _Cut(nth)
        with monkeypatch.context() as patched:
            patched.setattr(View, "take_ops", partialmethod(_cut_by, cut))
            try:
                CALLS[name](client)
            except KeyboardInterrupt:
                pass
            else:
                assert cut.left > 0  # there were fewer ops
        other = bench.another()
        assert seen(client) == seen(other) != state_before
        other.close()


def test_an_interrupt_while_everything_is_loaded_anew(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R28: a second interrupt, from an impatient user, comes while the first is handled."""
    client = bench.client
    real = Store._load
    tries = 0

    def load(store: Store) -> View:
        nonlocal tries
        tries += 1
        if tries <= 2:
            raise KeyboardInterrupt
        return real(store)

    monkeypatch.setattr(View, "take_ops", partialmethod(_cut_by, _Cut(1)))
    monkeypatch.setattr(Store, "_load", load)
    with pytest.raises(KeyboardInterrupt):
        send(client, b"b")
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            client.topics()
    assert [m.value for m in read(client)] == [b"a", b"b"]  # it was written: ask before repeating
    send(client, b"c")
    assert seen(client) == seen(bench.another())


def test_an_interrupt_while_it_waits_for_the_lock(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R12: the call leaves the queue, and calls of other threads stay for the next leader."""
    store = bench.client.store
    others = Call(lambda view, now: Decision([], answer="done"))
    store._queue.append([others])

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(PosixLock, "acquire", interrupted)
        with pytest.raises(KeyboardInterrupt):
            send(bench.client, b"b")
    was_done = others.done
    assert not was_done and list(store._queue) == [[others]]
    send(bench.client, b"c")
    assert others.done and others.answer == "done" and not store._queue
    assert [m.value for m in read(bench.client)] == [b"a", b"c"]


@pytest.mark.parametrize(
    ("error", "is_kept"),
    [(KeyboardInterrupt, False), (MemoryError, False), (MissingFile, True), (TopicNotFound, True)],
)
def test_view_is_replaced_after_an_interrupted_read(
    bench: Bench, error: type[BaseException], is_kept: bool
) -> None:
    """An interrupt may cut the loading of a fold short, so the view is replaced.

    An error of txlog keeps the view.
    """
    views: list[View] = []

    def look(view: View) -> None:
        views.append(view)
        raise error("no")

    with pytest.raises(error):
        bench.client.store.read(look)
    state = seen(bench.another())
    bench.client.store.ask(views.append)
    assert (views[0] is views[1]) == is_kept
    assert seen(bench.client) == state


class Alarm(Exception):
    """The exception of a soft time limit, which its signal handler raises."""


def fresh(bench: Bench) -> list[bytes]:
    """All values that were written, as a new process reads them."""
    other = bench.another()
    other.store.flush()
    return [m.value or b"" for m in read(other)]


@pytest.mark.parametrize(
    "error", [MemoryError, Alarm, RecursionError, TimeoutError, NotAllowed, KeyboardInterrupt]
)
def test_appended_frame_is_never_reported_as_refused(
    bench: Bench, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R28: the frame is in the journal, but not in the folds, so the view is thrown away.

    The exception of a signal handler reaches the caller unchanged, with a note.
    """

    def note(tail: Tail, raw: Any, ops: Any) -> None:
        raise error("no room")

    with monkeypatch.context() as patched:
        patched.setattr(Tail, "note", note)
        is_ours = issubclass(error, TxlogError)
        with pytest.raises(OutcomeUnknown if is_ours else error, match="no room") as caught:
            send(bench.client, b"b")
    if is_ours:
        assert isinstance(caught.value.__cause__, error)
    else:
        assert caught.value.__notes__ == [IN_DOUBT]
    send(bench.client, b"c", b"d")
    assert fresh(bench) == [m.value for m in read(bench.client)] == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("error", [MemoryError, Alarm, KeyboardInterrupt])
def test_commit_in_doubt_has_a_note(
    bench: Bench, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same rule for the frame of a commit with queued sends."""

    def note(tail: Tail, raw: Any, ops: Any) -> None:
        raise error("no room")

    txn = bench.client.transaction()
    bench.client.producer("t").send_async(b"b", txn=txn)
    with monkeypatch.context() as patched:
        patched.setattr(Tail, "note", note)
        with pytest.raises(error) as caught:
            txn.commit()
    assert IN_DOUBT in caught.value.__notes__ and f"txn show {txn.id}" in caught.value.__notes__[1]
    send(bench.client, b"c")
    assert fresh(bench) == [m.value for m in read(bench.client)] == [b"a", b"b", b"c"]


def opening(store: Store) -> Call:
    """A call that opens a transaction."""
    now = store.clock.now()
    txn = NewTxn(store.disk.owner(), now, 60_000)
    return Call(lambda view, now: begin(view, store.settings, now, txn))


def test_a_full_disk_under_one_of_many_calls(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """R30: calls after one that met a full disk continue after the frames before it."""
    store = bench.client.store
    producer = bench.client.producer("t")
    began = opening(store)
    txn = bench.client.transaction()
    producer.send_batch_async(pa.table({"value": [b"never"]}), txn=txn)
    joined = [*txn._queue, Call(lambda view, now: Decision([]))]
    later_call = opening(store)
    own_call = opening(store)
    store._queue += [[began], joined, [later_call]]
    append, nth = Journal.append, 0

    def full(journal: Journal, *arguments: Any, **options: Any) -> Any:
        nonlocal nth
        nth += 1
        if nth == 2:
            raise StoreFull("full")
        return append(journal, *arguments, **options)

    monkeypatch.setattr(Journal, "append", full)
    store.submit([own_call])
    assert isinstance(joined[0].error, StoreFull) and nth == 4
    txns = {str(call.answer) for call in (began, later_call, own_call)}
    assert len(txns) == 3
    stored_txns = {str(row["txn"]) for row in bench.another().transactions(all=True)}
    store.flush()
    stored_txns = {str(row["txn"]) for row in bench.another().transactions(all=True)}
    assert txns <= stored_txns and fresh(bench) == [b"a"]


def test_a_handler_that_sends_within_a_call_is_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outer call's frame is half applied; only clean-up is accepted, and waits for its end."""
    client = bench.client
    client.create_subscription("t", "u")
    consumer = client.consumer("t", "u")
    consumer.receive()
    txn, refused = client.transaction(), list[str]()
    client.producer("t").send(b"dropped", txn=txn)
    note, is_first = Tail.note, True

    def handle(tail: Tail, raw: Any, ops: Any) -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            for act in (lambda: send(client, b"nested"), lambda: read(client), client.checkpoint):
                with pytest.raises(NotAllowed, match="within another call") as caught:
                    act()
                refused.append(str(caught.value))
            assert txn.abort().status == "ABORTING"
            consumer.close()
            assert txn.state == "OPEN"
        note(tail, raw, ops)

    monkeypatch.setattr(Tail, "note", handle)
    send(client, b"b")
    assert len(refused) == 3 and txn.state == "ABORTED"
    with client.consumer("t", "u") as second_consumer:  # the other one has left
        assert second_consumer.receive() is not None
    assert fresh(bench) == [m.value for m in read(client)] == [b"a", b"b"]
    with pytest.raises(AlreadyClosed):
        consumer.receive()


class _Dropped:
    """Cleans up and sends when the collector frees it: a cycle, so at any time."""

    def __init__(self, client: Client) -> None:
        self.client, self.me = client, self
        self.txn = client.transaction()
        client.producer("t").send(b"in a dropped one", txn=self.txn)

    def __del__(self) -> None:
        self.txn.abort()
        with suppress(NotAllowed):
            send(self.client, b"last words")


@pytest.mark.deep
def test_objects_collected_within_calls_do_no_harm(bench: Bench) -> None:
    """Kills: a store that was unreadable after some 100 sends."""
    client, thresholds = bench.client, gc.get_threshold()
    gc.set_threshold(7)  # the collector runs within nearly every call
    try:
        for turn in range(60):
            _Dropped(client)
            send(client, b"%d" % turn)
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    values = fresh(bench)
    assert [value for value in values if value.isdigit()] == [b"%d" % turn for turn in range(60)]
    assert b"in a dropped one" not in values
    assert {row["state"] for row in client.transactions(all=True)} == {"aborted"}


def test_interrupted_undecided_call_is_never_done(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call leaves the queue with the exception; its caller repeats it, and stores it once."""

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Store, "_lead", interrupted)
        with pytest.raises(KeyboardInterrupt):
            send(bench.client, b"b")
        with pytest.raises(KeyboardInterrupt), bench.client.transaction() as txn:
            bench.client.producer("t").send_async(b"never", txn=txn)
    send(bench.client, b"b")
    txn = bench.client.transaction()
    txn.abort()
    assert fresh(bench) == [b"a", b"b"]


def test_interrupt_waits_for_a_call_in_another_thread(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller returns only once the call is decided, so its outcome is true."""
    store = bench.client.store
    queued, is_taken, go_on = Event(), Event(), Event()
    under_lock, run = Store._under_lock, Mutex.run
    turns = 0

    def late(store: Store, act: Any) -> Any:
        if current_thread() is not main_thread():
            queued.wait()
        return under_lock(store, act)

    def decide(view: View, now: Any) -> Decision[None]:
        is_taken.set()
        go_on.wait()
        return Decision([])

    def interrupted(mutex: Mutex, *arguments: Any) -> Any:
        nonlocal turns
        if current_thread() is main_thread() and mutex is store._mutex:
            turns += 1
            if turns == 1:
                queued.set()
                is_taken.wait()
                raise KeyboardInterrupt
            go_on.set()
        return run(mutex, *arguments)

    producer = bench.client.producer("t")
    with monkeypatch.context() as patched:
        patched.setattr(Store, "_under_lock", late)
        patched.setattr(Mutex, "run", interrupted)
        other = Thread(target=store.submit, args=([Call(decide)],))
        other.start()
        with pytest.raises(KeyboardInterrupt):
            producer.send(b"b")
    other.join()
    assert turns == 2
    assert fresh(bench) == [b"a", b"b"]


def test_queued_calls_survive_the_interrupt_of_their_leader(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their own threads make the undecided calls again; a call in doubt raises OutcomeUnknown."""
    store = bench.client.store
    undecided, written = (opening(store) for _ in range(2))
    queued = [[written], [undecided]]
    store._queue += queued
    append, nth = Journal.append, 0

    def interrupted(journal: Journal, *arguments: Any, **options: Any) -> Any:
        nonlocal nth
        nth += 1
        if nth == 2:
            raise KeyboardInterrupt
        return append(journal, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            send(bench.client, b"b")
    assert not store._queue and not (written.done or undecided.done)
    for calls in queued:
        store._mutex.run(partial(store._lead, calls))
    assert isinstance(written.error, OutcomeUnknown)
    assert isinstance(undecided.error, OutcomeUnknown)  # its frame was being written
    assert fresh(bench) == [b"a"]


def test_exception_of_a_handler_stays_in_its_thread(bench: Bench) -> None:
    """A leader's own signal ends its call, even while it decides for another thread.

    That thread then decides its call again by itself.
    """
    store = bench.client.store
    tries = 0

    def decide(view: View, now: Any) -> Decision[str]:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise Alarm("time is up")
        return Decision([], answer="done")

    other = [Call(decide)]
    store._queue.append(other)
    with pytest.raises(Alarm):
        send(bench.client, b"b")
    was_done = other[0].done
    assert not was_done and not store._queue
    store._mutex.run(partial(store._lead, other))
    assert other[0].answer == "done"
    send(bench.client, b"c")
    assert fresh(bench) == [b"a", b"c"]


def test_flush_without_a_witness_is_unknown(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """R13: readers learn from the witness which frames are durable, so without it none is promised.

    Kills: an acknowledged send that no reader sees.
    """
    write = Journal._raise

    def without(journal: Journal, *, flushing: int, **options: Any) -> None:
        if not flushing:
            raise DiskFailed("no witness")
        write(journal, flushing=flushing, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "_raise", without)
        with pytest.raises(OutcomeUnknown):
            send(bench.client, b"b")
    send(bench.client, b"c")
    assert [m.value for m in read(bench.client)] == [m.value for m in read(bench.another())]
    assert [m.value for m in read(bench.client)] == [b"a", b"b", b"c"]

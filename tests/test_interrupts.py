"""An interrupt anywhere leaves the folds behind the journal, never beside it (R28, R29).

The library leaves signals alone, so KeyboardInterrupt may be raised between any two steps of a
call. Whoever goes on with the same client must not go on with what was half done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest

from tests.engine_kit import Bench, read, send
from txlog import Client
from txlog.engine.call import Call
from txlog.engine.flow.draft import Decision
from txlog.engine.follower import Follower
from txlog.engine.storage.disk_lock import PosixLock
from txlog.engine.view import View

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "store")
    made.client.create_topic("t")
    made.client.create_subscription("t", "s")
    send(made.client, b"a")
    yield made
    made.close()


def seen(client: Client) -> Any:
    """What a client knows: every fold has a part in it."""
    messages = [(m.message_id, m.value, m.txn) for m in read(client)]
    txns = [(row["txn"], row["state"]) for row in client.transactions(all=True)]
    view = client._store.read(lambda view: view)
    number = 1
    folds = [view.topic(number), view.buffer(number), view.watermark(number).state]
    return messages, client.subscriptions(), sorted(txns), [str(fold) for fold in folds]


def work(client: Client, turn: int) -> None:
    """Frames with many ops."""
    message = read(client)[turn].message_id
    assert message is not None
    with client.transaction() as txn:
        client.producer("t", "p").send(b"%d" % turn, txn=txn)
        client.producer("t", "p").new_watermark(txn).event_time(turn + 1).send()
        client.acknowledge("t", "s", [message], txn=txn)


class _Cut:
    """Raises once, within the nth op that a fold takes."""

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


def _cut_by(view: View, cut: _Cut, *given: Any) -> None:
    cut(view, *given)


CALLS: dict[str, Callable[[Client], object]] = {
    "read": seen,
    "read only": seen,
    "status": lambda client: client.status(),
    "write": lambda client: send(client, b"x"),
    "dry run": lambda client: client.subscription("t", "s").skip(1, dry_run=True),
    "checkpoint": lambda client: client.checkpoint(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_frame_that_was_half_taken_is_taken_again(
    bench: Bench, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R28: whichever call meets the frames of another process."""
    client = bench.another(read_only=name == "read only")
    before = seen(client)
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
        assert seen(client) == seen(other) != before
        other.close()


def test_an_interrupt_while_everything_is_loaded_anew(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R28: the second one comes while the first is dealt with, as from an impatient hand."""
    client = bench.client
    real = Follower._load
    tries = 0

    def load(follower: Follower) -> View:
        nonlocal tries
        tries += 1
        if tries <= 2:
            raise KeyboardInterrupt
        return real(follower)

    monkeypatch.setattr(View, "take_ops", partialmethod(_cut_by, _Cut(1)))
    monkeypatch.setattr(Follower, "_load", load)
    with pytest.raises(KeyboardInterrupt):
        send(client, b"b")
    with pytest.raises(KeyboardInterrupt):
        client.topics()
    assert [m.value for m in read(client)] == [b"a", b"b"]  # it was written: ask before repeating
    send(client, b"c")
    assert seen(client) == seen(bench.another())


def test_an_interrupt_while_it_waits_for_the_lock(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R12: the calls of other threads that it leads are told, and nothing of them is done."""
    store = bench.client._store
    others = Call(lambda view, now: Decision([], answer="done"))
    store._queue.append(others)

    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(PosixLock, "acquire", interrupted)
        with pytest.raises(KeyboardInterrupt):
            send(bench.client, b"b")
    assert others.done and isinstance(others.error, KeyboardInterrupt)
    send(bench.client, b"c")
    assert [m.value for m in read(bench.client)] == [b"a", b"c"]


@pytest.mark.parametrize(("error", "is_kept"), [(KeyboardInterrupt, False), (ValueError, True)])
def test_nobody_looks_at_a_view_that_a_look_was_interrupted_in(
    bench: Bench, error: type[BaseException], is_kept: bool
) -> None:
    """It may have noted half of a fold that it loaded; an error of the question has not."""
    views: list[View] = []

    def look(view: View) -> None:
        views.append(view)
        raise error

    with pytest.raises(error):
        bench.client.ask(look)
    before = seen(bench.another())
    bench.client.ask(views.append)
    assert (views[0] is views[1]) == is_kept
    assert seen(bench.client) == before

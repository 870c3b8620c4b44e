"""Which consumers of a subscription are alive, and the cost of checking it."""

from __future__ import annotations

import errno
import gc
from typing import Any

import pytest

from tests.disk.memory import MemoryDisk
from tests.engine_kit import Bench, session_of
from txlog.base.settings import Settings
from txlog.client.open import open_on
from txlog.clock import SystemClock
from txlog.engine.store import liveness
from txlog.engine.store.identity import make_store
from txlog.errors import ConsumerBusy

pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 1}, [("t", "s", "shared")], coordinators=1),
]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lock files of consumers that the code checks or reads."""
    topics = list[str]()
    held, seen = liveness.is_held, liveness.read_seen

    def is_held(disk: Any, path: str) -> bool:
        topics.append(path)
        return held(disk, path)

    def read_seen(disk: Any, number: int) -> Any:
        topics.append(liveness.consumer_lock(number))
        return seen(disk, number)

    monkeypatch.setattr(liveness, "is_held", is_held)
    monkeypatch.setattr("txlog.engine.session.consuming.membership.read_seen", read_seen)
    return topics


def test_consumers_of_one_handle_do_not_ask_about_each_other(
    bench: Bench, looks: list[str]
) -> None:
    """Each checks only consumers of other processes: for a hundred, it would be 10,000 files a
    turn.
    """
    elsewhere = bench.another().consumer("t", "s")
    here = [bench.client.consumer("t", "s") for _ in range(20)]
    assert len(looks) == 20  # each checked the remote consumer as it joined
    looks.clear()
    for consumer in here:
        assert consumer.receive(0) is None
    path = liveness.consumer_lock(session_of(elsewhere).member.number)
    assert set(looks) == {path}
    # twice a turn: whether it is alive, and whether it hangs
    assert len(looks) <= 2 * 2 * len(here)
    looks.clear()
    assert elsewhere.receive(0) is None
    assert set(looks) == {liveness.consumer_lock(session_of(one).member.number) for one in here}


@pytest.mark.deep
def test_a_garbage_collected_consumer_is_dead_for_its_peers(bench: Bench) -> None:
    """It was not closed: its lock is free, and its leased messages come again."""
    bench.client.producer("t").send(b"x")
    first, second = bench.client.consumer("t", "s"), bench.client.consumer("t", "s")
    assert first.receive(0) is not None
    assert second.receive(0) is None
    del first
    gc.collect()
    message = second.receive(0)
    assert message is not None and message.value == b"x"


def test_a_refused_consumer_tries_only_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.client.create_subscription("t", "only", type="exclusive")
    other = bench.another()
    holder = other.consumer("t", "only")
    tries, write = 0, bench.client.store.write

    def counted(*arguments: Any, **more: Any) -> Any:
        nonlocal tries
        tries += 1
        return write(*arguments, **more)

    monkeypatch.setattr(type(bench.client.store), "write", lambda self, *a, **k: counted(*a, **k))
    with pytest.raises(ConsumerBusy):
        bench.client.consumer("t", "only")
    assert tries == 1
    monkeypatch.undo()
    holder.close()
    bench.client.consumer("t", "only").close()


def test_a_consumer_joins_although_the_file_of_a_dead_one_stays() -> None:
    """The call failed after it had joined, and the consumer stayed (simulation, seed 33)."""
    disk = MemoryDisk()
    make_store(disk, Settings(), SystemClock())
    dying = disk.process()
    client = open_on(dying, SystemClock())
    client.create_topic("t")
    client.create_subscription("t", "s", type="exclusive")
    held = client.consumer("t", "s")
    stale = liveness.consumer_lock(session_of(held).member.number)
    dying.kill()

    def refuse(op: str, path: str, **info: int) -> None:
        if (op, path) == ("unlink", stale):
            raise OSError(errno.EIO, "Input/output error")

    ours = disk.process()
    ours.step = refuse
    with open_on(ours, SystemClock()) as client:
        client.consumer("t", "s").close()
        client.consumer("t", "s").close()
    assert disk.exists(stale)

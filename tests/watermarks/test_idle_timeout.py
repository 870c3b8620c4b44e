"""Producers that are silent for too long are declared idle by a sweep; spec/watermarks 10."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine_kit import START_MS, Bench, begin, loaded, say, send
from txlog import Client
from txlog.engine.decide.draft import Decision
from txlog.engine.folds.catalog import numbers
from txlog.engine.model.ops import (
    NamespacePolicySet,
    Op,
    PolicySet,
    SettingSet,
    WatermarkIdled,
    decode_ops,
)
from txlog.engine.view import View

pytestmark = pytest.mark.usefixtures("quick_disk")
LIMIT = 60_000
NAME = "watermark_producer_idle_timeout_ms"
IDLES = list[tuple[int, str, str]]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    new_bench = Bench(tmp_path / "store", **{NAME: LIMIT})
    new_bench.client.create_topic("t", 2)
    new_bench.client.create_topic("other")
    yield new_bench
    new_bench.close()


def idles(bench: Bench) -> IDLES:
    """(partition, producer, by) of every W_IDLE so far, in order, read from the journal."""
    client = bench.another()

    def look(view: View) -> IDLES:
        timeouts: IDLES = []
        with_frames = View.open(view.disk, view.salt, "boot", generation=None)
        for raw in with_frames.journal.read_durable():
            timeouts += [
                (op.partition, op.producer, op.by)
                for op in decode_ops(raw.ops, lsn=raw.lsn)
                if isinstance(op, WatermarkIdled)
            ]
        with_frames.close()
        return timeouts

    return client.store.read(look)


def active(client: Client, topic: int = 1) -> list[list[str]]:
    """The names of the active producers, by partition."""
    return client.store.read(
        lambda view: [
            sorted(view.watermark(number).state.active)
            for number in numbers(view.catalog.topics[topic])
        ]
    )


def set_limit(client: Client, op: Op) -> None:
    client.store.write(lambda view, now: Decision([op], sync=True))


def touch(client: Client) -> None:
    """Make a writing call."""
    send(client, b"x", topic="other")


def test_a_silent_producer_is_declared_idle_in_every_partition(bench: Bench) -> None:
    """10: by the sweep of any writing call, in a row by `timeout`, once."""
    say(bench.client, "A", 10)
    bench.clock.advance(1000)
    say(bench.client, "B", 20)
    bench.clock.advance(LIMIT - 1001)
    touch(bench.client)
    assert active(bench.client) == [["A", "B"]] * 2
    bench.clock.advance(1)
    touch(bench.client)
    assert active(bench.client) == [["B"]] * 2
    bench.clock.advance(999)
    touch(bench.client)
    assert active(bench.client) == [["B"]] * 2
    bench.clock.advance(1)
    touch(bench.client)
    touch(bench.another())
    assert active(bench.client) == [[]] * 2
    assert idles(bench) == [(n, name, "timeout") for name in "AB" for n in (1, 2)]
    rows = bench.client.store.read(lambda view: view.ledger_table(1, 0, 3))
    assert (rows["producer"].to_pylist(), rows["value"].to_pylist()) == (
        ["A", "B", "A"],
        [None, None, b"timeout"],
    )
    say(bench.client, "A", 5)
    assert active(bench.client) == [["A"]] * 2


@pytest.mark.parametrize("checkpointed", [False, True])
def test_the_first_writing_process_declares_a_producer_idle(
    bench: Bench, checkpointed: bool
) -> None:
    """Also a process that started after a checkpoint, and has not loaded the topic."""
    say(bench.client, "A", 10)
    if checkpointed:
        bench.client.checkpoint()
    bench.clock.advance(LIMIT)
    touch(bench.reopen())
    assert active(bench.client) == [[]] * 2
    assert active(bench.reopen()) == [[]] * 2


def test_a_repeated_assertion_keeps_a_producer_active(bench: Bench) -> None:
    """The same time, or a lower one, shows that the producer is alive."""
    for time in (10, 10, 3):
        say(bench.client, "A", time)
        bench.clock.advance(LIMIT - 1)
        touch(bench.client)
    assert active(bench.client) == [["A"]] * 2
    bench.clock.advance(1)
    touch(bench.client)
    assert active(bench.client) == [[]] * 2


@pytest.mark.parametrize("end", ["commit", "abort", "timeout"])
def test_an_open_transaction_keeps_its_producer(bench: Bench, end: str) -> None:
    """10: a producer with a pending row is not silent; after an abort its age counts at once."""
    say(bench.client, "A", 10)
    txn = begin(bench.client, 5 * LIMIT)
    say(bench.client, "A", 20, txn=txn)
    bench.clock.advance(4 * LIMIT)
    touch(bench.client)
    assert active(bench.client) == [["A"]] * 2
    if end == "timeout":
        bench.clock.advance(LIMIT + 1)
    elif end == "commit":
        bench.client.commit(txn)
    else:
        bench.client.abort(txn)
    touch(bench.client)
    bench.clock.advance(1000)  # the sweep looks again after a second
    touch(bench.client)
    assert active(bench.client) == [["A"] if end == "commit" else []] * 2
    bench.clock.advance(LIMIT - 1000)
    touch(bench.client)
    assert active(bench.client) == [[]] * 2


def test_a_marker_that_waits_for_its_partition_keeps_its_producer(bench: Bench) -> None:
    """Committed while the partition is offline: it stays pending there, and joins when it is
    online.
    """
    say(bench.client, "A", 10)
    say(bench.client, "B", 10)
    txn = begin(bench.client, 10 * LIMIT)
    say(bench.client, "A", 20, txn=txn)
    bench.client.admin.set_offline("t", 1)
    bench.client.commit(txn)
    bench.clock.advance(LIMIT)
    touch(bench.client)
    assert active(bench.client)[0] == []
    assert active(bench.client)[1] == ["A", "B"]
    bench.client.admin.set_online("t", 1)
    bench.clock.advance(1000)
    touch(bench.client)
    assert active(bench.client)[1] == ["A"]


def test_a_partition_that_is_away_waits_until_it_is_back(bench: Bench) -> None:
    """10: an offline partition gets no row; the online ones go on."""
    say(bench.client, "A", 10)
    bench.client.admin.set_offline("t", 0)
    bench.clock.advance(LIMIT)
    touch(bench.client)
    assert active(bench.client) == [["A"], []]
    bench.client.admin.set_online("t", 0)
    touch(bench.client)
    assert active(bench.client) == [[], []]


def test_topic_namespace_store(bench: Bench) -> None:
    """11: the nearest policy applies, also if it is 0; a change counts at once, in every
    process.
    """
    other = bench.another()
    say(bench.client, "A", 10)
    say(bench.client, "B", 10, topic="other")
    touch(other)
    set_limit(bench.client, PolicySet(2, NAME, 0))
    set_limit(bench.client, NamespacePolicySet("public/default", NAME, 500))
    set_limit(bench.client, SettingSet(NAME, 0))
    bench.clock.advance(499)
    touch(other)
    assert active(other) == [["A"]] * 2
    bench.clock.advance(1)
    touch(other)
    assert (active(other), active(other, 2)) == ([[]] * 2, [["B"]])
    set_limit(bench.client, NamespacePolicySet("public/default", NAME, None))
    set_limit(bench.client, PolicySet(2, NAME, 400))
    touch(other)
    assert active(other, 2) == [[]]


def test_a_sweep_is_bounded_and_goes_on(tmp_path: Path) -> None:
    """As for transactions: at most sweep_max in each call; `txn expire` declares all."""
    bench = Bench(tmp_path / "store", sweep_max=3, **{NAME: LIMIT})
    bench.client.create_topic("t", 2)
    bench.client.create_topic("other")
    for number in range(7):
        say(bench.client, f"P{number}", 10)
    bench.clock.advance(LIMIT)
    remaining = []
    for _ in range(6):
        touch(bench.client)
        remaining.append(sum(map(len, active(bench.client))))
    assert remaining == [11, 8, 5, 2, 0, 0]
    for number in range(7):
        say(bench.client, f"P{number}", 10)
    bench.clock.advance(LIMIT)
    bench.client.expire()
    assert active(bench.client) == [[]] * 2
    bench.close()


def test_of_more_partitions_than_the_bound_each_has_its_turn(tmp_path: Path) -> None:
    """Even if every process makes only one call."""
    bench = Bench(tmp_path / "store", sweep_max=2, **{NAME: LIMIT})
    bench.client.create_topic("t", 7)
    bench.client.create_topic("other")
    say(bench.client, "A", 10)
    bench.clock.advance(LIMIT)
    for _ in range(14):
        touch(bench.reopen())
        bench.clock.advance(1000)
    assert active(bench.reopen()) == [[]] * 7
    bench.close()


def test_a_consumer_that_waits_goes_on(bench: Bench) -> None:
    """No other process writes, and the producer that held the value has died."""
    say(bench.client, "A", 10)
    say(bench.client, "B", 20)
    with bench.another().consumer("t", "s", create=True, enable_watermarking=True) as consumer:
        assert consumer.receive() is None
        assert consumer.get_last_watermark() == (10, 1)
        bench.clock.advance(LIMIT - 1)
        say(bench.client, "B", 30)
        assert consumer.receive() is None and consumer.receive() is None
        bench.clock.advance(1)
        assert consumer.receive() is None
        assert consumer.get_last_watermark() == (30, 2)
        bench.clock.advance(LIMIT)
        assert consumer.receive() is None
        assert (consumer.get_last_watermark(), consumer.watermark_status) == ((30, 2), "idle")


def test_a_wall_clock_that_goes_back_makes_no_producer_idle(bench: Bench) -> None:
    say(bench.client, "A", 10)
    bench.clock.set_wall(START_MS - 10 * LIMIT)
    bench.clock.advance(2 * LIMIT)
    touch(bench.client)
    assert active(bench.client) == [["A"]] * 2
    bench.clock.set_wall(START_MS + LIMIT)
    bench.clock.advance(LIMIT)
    touch(bench.client)
    assert active(bench.client) == [[]] * 2


def test_without_the_policy_nothing_is_looked_at(tmp_path: Path) -> None:
    """13: no fold is loaded; with the policy, none of a topic without watermarks."""
    bench = Bench(tmp_path / "store")
    bench.client.create_topic("t", 2)
    bench.client.create_topic("other")
    say(bench.client, "A", 10)
    bench.client.checkpoint()
    client = bench.reopen()
    bench.clock.advance(1 << 40)
    for _ in range(3):
        client.store.flush()
    assert client.store.read(lambda view: loaded(view, "watermark")) == set()
    set_limit(client, SettingSet(NAME, LIMIT))
    client.store.flush()
    keys = client.store.read(lambda view: loaded(view, "watermark"))
    assert keys == {("watermark", 1, 0), ("watermark", 2, 0)}
    assert active(client) == [[]] * 2
    bench.close()

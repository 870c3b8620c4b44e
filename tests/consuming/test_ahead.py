"""Messages that a consumer leases ahead of its application: unseen, so they do not count."""

from __future__ import annotations

import os
import random
import tarfile
from collections import Counter
from pathlib import Path
from typing import NoReturn

import pytest

import txlog
from tests.engine_kit import Bench, kill, send, send_txn, session_of
from tests.harness import KILLED, python, run
from tests.source_tree import ROOT
from tests.tiers import graded
from txlog import Client, Consumer, Message, MessageId
from txlog.base.choices import SubscriptionType
from txlog.base.ranges import START
from txlog.clock import ManualClock
from txlog.engine.store.store import Store
from txlog.errors import DiskFailed, StoreFull

pytestmark = [pytest.mark.usefixtures("quick_disk"), pytest.mark.store({"t": 1}, [("t", "s")])]
SEED = int(os.environ.get("TXLOG_SEED", "0")) or random.SystemRandom().randrange(1 << 32)


def numbered(client: Client, count: int, partition: int = 0) -> list[MessageId]:
    return send(client, *(b"%d" % n for n in range(count)), partition=partition)


def next_of(consumer: Consumer) -> Message:
    message = consumer.receive()
    assert message is not None
    return message


def values_of(consumer: Consumer, count: int) -> list[int]:
    return [int(next_of(consumer).value or b"") for _ in range(count)]


def drained(consumer: Consumer) -> list[tuple[int, int]]:
    """(value, redelivery count) of all messages that it gets, one by one."""
    out = []
    while (message := consumer.receive()) is not None:
        out.append((int(message.value or b""), message.redelivery_count or 0))
    return out


def counted(bench: Bench) -> dict[int, int]:
    """Entry and redelivery count of each returned message, of a topic with one partition."""
    bench.client.flush()
    return bench.another().store.read(
        lambda view: {
            int(position[1]): int(count)
            for position, count in view.cursor(1, 1).redelivered.items()
        }
    )


def leased(client: Client, consumer: Consumer) -> int:
    """How many messages a consumer has leased."""
    client.flush()
    rows = client.subscription("t", "s").describe()["consumer_list"]
    return next(int(row["leased"]) for row in rows if row["consumer"] == consumer.id)


# --- how much -----------------------------------------------------------------------------------


def test_a_receive_takes_little_and_more_as_it_goes_on(bench: Bench) -> None:
    """One at first, then twice as many each time: never more ahead than it has received."""
    numbered(bench.client, 100)
    with bench.client.consumer("t", "s", type="shared") as first:
        received = []
        for _ in range(15):
            next_of(first)
            received.append(leased(bench.client, first))
        assert received == [1, 3, 3, 7, 7, 7, 7, *[15] * 8]
        with bench.client.consumer("t", "s") as second:
            assert len(drained(second)) == 85


def test_a_slow_application_has_nothing_ahead(bench: Bench) -> None:
    numbered(bench.client, 100)
    with bench.client.consumer("t", "s", type="shared") as consumer:
        for received in range(1, 10):
            next_of(consumer)
            assert leased(bench.client, consumer) == received
            bench.clock.advance(150)


def test_an_application_that_becomes_slow_has_less_ahead(bench: Bench) -> None:
    numbered(bench.client, 200)
    with bench.client.consumer("t", "s", type="shared") as consumer:
        values_of(consumer, 31)  # 1, 2, 4, 8, 16
        next_of(consumer)
        assert leased(bench.client, consumer) == 63
        bench.clock.advance(640)  # 20 ms each
        values_of(consumer, 31)
        assert leased(bench.client, consumer) == 63
        next_of(consumer)
        assert leased(bench.client, consumer) == 63 + 2


def test_waiting_for_messages_is_not_the_pace_of_the_application(bench: Bench) -> None:
    numbered(bench.client, 7)
    with bench.client.consumer("t", "s", type="shared") as consumer:
        assert len(drained(consumer)) == 7
        bench.clock.advance(60_000)
        numbered(bench.client, 20)
        next_of(consumer)
        assert leased(bench.client, consumer) == 7 + 8


def test_consumers_share_what_may_be_ahead(bench: Bench) -> None:
    """With more consumers each may lease less ahead; a single consumer may use the whole limit."""
    numbered(bench.client, 200)
    others = [bench.client.consumer("t", "s", type="shared") for _ in range(3)]
    with bench.client.consumer("t", "s", receiver_queue_size=16) as consumer:
        values_of(consumer, 8)
        assert leased(bench.client, consumer) == 11  # 1, 2, 4 and 4 again
        for other in others:
            other.close()
        values_of(consumer, 4)
        assert leased(bench.client, consumer) == 11 + 8


def test_the_queue_size_is_the_most_that_is_taken(bench: Bench) -> None:
    numbered(bench.client, 20)
    for size, most in ((0, 1), (1, 1), (3, 3)):
        with bench.client.consumer("t", "s", type="shared", receiver_queue_size=size) as consumer:
            values_of(consumer, 10)
            leased_before = leased(bench.client, consumer)
            assert leased_before - 10 < most
        bench.client.subscription("t", "s").seek(MessageId(1, 0))


# --- what counts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key-shared"])
@pytest.mark.parametrize("received", graded([1, 2, 3, 5, 7, 8, 20], (3, 20)))
def test_a_death_counts_what_the_application_got(
    bench: Bench, kind: SubscriptionType, received: int
) -> None:
    """K10: one more for each received and unacknowledged message, none for messages ahead."""
    numbered(bench.client, 30)
    victim = bench.another().consumer("t", "s", type=kind)
    for number in range(received):
        message = next_of(victim)
        if number + 1 < received:
            victim.acknowledge(message)
    bench.client.checkpoint()  # the dump also records which messages were leased ahead
    kill(victim)
    with bench.another().consumer("t", "s") as heir:
        assert drained(heir) == [(n, int(n == received - 1)) for n in range(received - 1, 30)]
    assert set(counted(bench)) <= {*range(received - 1, 30)}


def test_a_death_tells_messages_of_markers_and_partitions_apart(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store")
    bench.client.create_topic("t", 3)
    bench.client.create_subscription("t", "s", type="shared")
    for partition in range(3):
        send_txn(
            bench.client, *(b"%d" % (10 * partition + n) for n in range(4)), partition=partition
        )
        send(bench.client, b"%d" % (10 * partition + 4), partition=partition)
    for received in range(1, 16):
        victim = bench.another().consumer("t", "s")
        got = values_of(victim, received)
        kill(victim)
        with bench.another().consumer("t", "s") as heir:
            counts = dict(drained(heir))
        assert {value for value, count in counts.items() if count} == set(got), received
        assert set(counts.values()) <= {0, 1}
        for partition in range(3):
            bench.client.subscription(f"t/{partition}", "s").seek(0)


def test_a_message_that_kills_workers_is_given_up_alone(bench: Bench) -> None:
    numbered(bench.client, 60)
    bench.client.subscription("t", "s").set_policies(max_redeliver_count=2)
    for death in range(3):
        worker = bench.another().consumer("t", "s", type="shared")
        message = next_of(worker)
        assert (message.value, message.redelivery_count) == (b"0", death)
        kill(worker)
    with bench.client.consumer("t", "s") as worker:
        assert drained(worker) == [(n, 0) for n in range(1, 60)]
    with bench.client.consumer("t-s-DLQ", "d", create=True, position=START) as dead:
        assert [value for value, _ in drained(dead)] == [0]


def test_slow_work_gives_up_nothing_that_was_not_received(bench: Bench) -> None:
    """Two workers, 150 ms a message, a time-out of a second: no message is ever overdue."""
    numbered(bench.client, 60)
    bench.client.subscription("t", "s").set_policies(max_redeliver_count=2)
    workers = [
        bench.another().consumer("t", "s", type="shared", ack_timeout_ms=1000) for _ in range(2)
    ]
    done: list[list[bytes]] = [[], []]
    while sum(map(len, done)) < 60:
        for number, worker in enumerate(workers):
            message = worker.receive()
            if message is not None:
                assert message.redelivery_count == 0
                done[number].append(message.value or b"")
                bench.clock.advance(75)
                worker.acknowledge(message)
    assert [len(each) for each in done] == [30, 30]
    assert counted(bench) == {}


def test_a_note_that_cannot_be_read_counts_nothing(bench: Bench) -> None:
    """A power cut may lose the note: then messages ahead count as never delivered."""
    numbered(bench.client, 10)
    victim = bench.another().consumer("t", "s", type="shared")
    values_of(victim, 4)
    note = Path(bench.path) / f"consumers/{victim.id}.lock"
    data = bytearray(note.read_bytes())
    data[9] ^= 1
    note.write_bytes(data)
    kill(victim)
    with bench.another().consumer("t", "s") as heir:
        assert drained(heir) == [(n, int(n < 3)) for n in range(10)]


def test_where_nothing_can_be_noted_messages_are_taken_one_by_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbered(bench.client, 20)

    def fail(*arguments: object) -> None:
        raise DiskFailed("no")

    first = bench.another().consumer("t", "s", type="shared")
    values_of(first, 4)  # three more are ahead
    monkeypatch.setattr("txlog.engine.session.consuming.membership.write_seen", fail)
    second = bench.another().consumer("t", "s")
    assert values_of(second, 3) == [7, 8, 9]
    assert leased(bench.client, second) == 3
    assert values_of(first, 3) == [4, 5, 6]
    assert leased(bench.client, first) == 7
    kill(first)
    kill(second)
    with bench.another().consumer("t", "s") as heir:
        assert drained(heir) == [(n, int(n < 10)) for n in range(20)]


def test_calls_from_outside_count_only_received_messages(bench: Bench) -> None:
    ids = numbered(bench.client, 7)
    handle = bench.another().subscription("t", "s")
    with bench.client.consumer("t", "s", type="shared") as consumer:
        values_of(consumer, 5)
        assert leased(bench.client, consumer) == 7
        assert handle.negative_acknowledge(ids[4:6], 1000)["nacked"] == 2
        assert counted(bench) == {4: 1}
        assert handle.redeliver()["redelivered"] == 5
        assert counted(bench) == dict.fromkeys(range(5), 1)
        assert sorted(drained(consumer)) == [(0, 1), (1, 1), (2, 1), (3, 1), (5, 0), (6, 0)]
        bench.clock.advance(1000)
        assert drained(consumer) == [(4, 1)]


def test_a_consumer_gives_back_what_it_has_not_handed_out(bench: Bench) -> None:
    """By id: the application has never received that message, so it does not count."""
    ids = numbered(bench.client, 7)
    with bench.client.consumer("t", "s", type="shared") as consumer:
        values_of(consumer, 4)
        assert consumer.negative_acknowledge(ids[3:5]).returned == 2
        assert counted(bench) == {3: 1}
        assert consumer.redeliver_unacknowledged_messages().returned == 5
        assert counted(bench) == dict.fromkeys(range(4), 1)


def test_messages_taken_ahead_survive_a_refused_redelivery(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: messages that the consumer has leased and never hands out."""
    numbered(bench.client, 7)

    def refuse(*_: object, **__: object) -> NoReturn:
        raise StoreFull("no space is left")

    with bench.client.consumer("t", "s", type="shared") as consumer:
        values_of(consumer, 4)
        with monkeypatch.context() as full, pytest.raises(StoreFull):
            full.setattr(Store, "write", refuse)
            consumer.redeliver_unacknowledged_messages()
        assert values_of(consumer, 3) == [4, 5, 6]


def test_a_batch_continues_after_the_received_messages(bench: Bench) -> None:
    """The batch begins with the messages ahead: it skips none, and each counts as delivered."""
    numbered(bench.client, 10)
    victim = bench.client.consumer("t", "s")
    assert values_of(victim, 4) == [0, 1, 2, 3]
    assert victim.receive_batch(4)["value"].to_pylist() == [b"4", b"5", b"6", b"7"]
    assert values_of(victim, 1) == [8]
    kill(victim)
    with bench.another().consumer("t", "s") as heir:
        assert drained(heir) == [(n, int(n < 9)) for n in range(10)]


def test_an_interrupt_leaves_nothing_in_the_hand_unseen(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that was leased and never queued is given back before the next turn."""
    numbered(bench.client, 10)
    with bench.client.consumer("t", "s", type="shared") as consumer:
        assert values_of(consumer, 1) == [0]

        def interrupted(*arguments: object) -> NoReturn:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr("txlog.engine.session.consuming.ahead.messages", interrupted)
            consumer.receive()
        assert drained(consumer) == [(n, 0) for n in range(1, 10)]
    assert counted(bench) == dict.fromkeys(range(10), 1)


# --- time-outs ------------------------------------------------------------------------------------


def test_a_time_out_begins_when_the_application_gets_the_message(bench: Bench) -> None:
    numbered(bench.client, 7)
    with bench.client.consumer("t", "s", type="shared", ack_timeout_ms=1000) as consumer:
        values_of(consumer, 4)  # 4, 5 and 6 are ahead
        bench.clock.advance(999)
        assert values_of(consumer, 1) == [4]
        bench.clock.advance(1)
        assert sorted(drained(consumer)) == [(0, 1), (1, 1), (2, 1), (3, 1), (5, 0), (6, 0)]
        bench.clock.advance(998)
        assert drained(consumer) == []
        bench.clock.advance(1)
        assert drained(consumer) == [(4, 1)]


@pytest.mark.parametrize("together", [False, True])
def test_a_consumer_that_hangs_is_passed_by(bench: Bench, together: bool) -> None:
    """Another consumer takes over its received and its unseen messages; only received ones count.

    together: both are of one handle, and know each other without the lock files
    """
    numbered(bench.client, 7)
    there = bench.another()
    first = there.consumer("t", "s", type="shared", ack_timeout_ms=1000)
    second = (there if together else bench.another()).consumer("t", "s")
    assert values_of(first, 5) == [0, 1, 2, 3, 4]
    bench.clock.advance(999)
    assert drained(second) == []
    bench.clock.advance(1)
    assert drained(second) == [(n, int(n < 5)) for n in range(7)]
    assert drained(first) == []  # it goes on, and the messages ahead belong to its peer
    assert leased(bench.client, first) == 0


def test_time_outs_of_earlier_messages_are_known_to_all(bench: Bench) -> None:
    """Each turn records in the journal which messages were received since; an acknowledgement ends
    it.
    """
    ids = numbered(bench.client, 40)
    first = bench.another().consumer("t", "s", type="shared", ack_timeout_ms=1000)
    values_of(first, 7)
    bench.clock.advance(40)
    values_of(first, 1)
    first.acknowledge(ids[1:6])
    bench.clock.advance(960)
    second = bench.another().consumer("t", "s")
    assert values_of(second, 3) == [0, 6, 15]
    assert counted(bench) == {0: 1, 6: 1}


def test_a_consumer_that_hung_and_has_nothing_left_costs_no_lock(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbered(bench.client, 7)
    first = bench.another().consumer("t", "s", type="shared", ack_timeout_ms=1000)
    for _ in range(7):
        first.acknowledge(next_of(first))
    second = bench.client.consumer("t", "s")
    assert second.receive() is None
    bench.clock.advance(5000)
    calls: list[object] = []
    monkeypatch.setattr(
        type(bench.client.store), "write", lambda *arguments: calls.append(arguments)
    )
    assert (session_of(second).member.reap(now=True), second.receive(), calls) == (False, None, [])
    monkeypatch.undo()


# --- what comes first ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["exclusive", "failover"])
def test_a_returned_message_does_not_wait_behind_what_is_ahead(
    bench: Bench, kind: SubscriptionType
) -> None:
    ids = numbered(bench.client, 300)
    with bench.client.consumer("t", "s", type=kind) as consumer:
        assert values_of(consumer, 20) == [*range(20)]  # eleven more are leased ahead
        consumer.negative_acknowledge(ids[0], delay_ms=1000)
        bench.clock.advance(999)
        assert values_of(consumer, 1) == [20]
        bench.clock.advance(1)
        assert values_of(consumer, 3) == [0, 1, 2]
        assert consumer.acknowledge_cumulative(ids[2]).acked == 3
        assert consumer.acknowledge_cumulative(ids[5]).stale == 1  # not again yet
        assert values_of(consumer, 3) == [3, 4, 5]
        answer = consumer.acknowledge_cumulative(ids[5])
        assert (answer.acked, answer.stale) == (3, 0)
    assert counted(bench) == dict.fromkeys(range(6, 21), 1)


def test_a_cumulative_acknowledgement_follows_the_application(bench: Bench) -> None:
    """Of returned messages it acknowledges only received ones, however many are ahead."""
    ids = numbered(bench.client, 60)
    with bench.client.consumer("t", "s") as consumer:
        values_of(consumer, 40)
        consumer.negative_acknowledge(ids[10])
        assert values_of(consumer, 1) == [10]
        assert consumer.acknowledge_cumulative(ids[30]).stale == 1
        assert consumer.acknowledge_cumulative(ids[10]).acked == 11
        assert values_of(consumer, 20) == [*range(11, 31)]
        assert consumer.acknowledge_cumulative(ids[30]).acked == 20


@pytest.mark.parametrize("kind", ["shared", "key-shared"])
def test_returned_messages_come_before_messages_ahead(bench: Bench, kind: SubscriptionType) -> None:
    numbered(bench.client, 60)
    with bench.client.consumer("t", "s", type=kind) as consumer:
        values_of(consumer, 20)
        late = next_of(consumer)
        consumer.negative_acknowledge(late, delay_ms=1000)
        at_once = next_of(consumer)
        consumer.negative_acknowledge(at_once)
        assert values_of(consumer, 2) == [21, 22]
        bench.clock.advance(1000)
        assert values_of(consumer, 2) == [20, 23]
        assert counted(bench) == {20: 1, 21: 1}


def test_what_came_back_in_another_partition_comes_first(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store")
    bench.client.create_topic("t", 2)
    bench.client.create_subscription("t", "s")
    [first] = send(bench.client, b"1000", partition=1)
    with bench.client.consumer("t", "s") as consumer:
        assert values_of(consumer, 1) == [1000]
        numbered(bench.client, 100)
        values_of(consumer, 10)
        consumer.negative_acknowledge(first)
        assert values_of(consumer, 2) == [1000, 10]


# --- histories ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
@pytest.mark.parametrize("run", graded(range(3), 1))
def test_counts_follow_what_was_received(tmp_path: Path, kind: SubscriptionType, run: int) -> None:
    """I-22: over deaths, nacks, closes, checkpoints: one for each return of a received message."""
    seed = SEED + run
    print("seed", seed)
    rng = random.Random(seed)
    bench = Bench(tmp_path / "store")
    bench.client.create_topic("t")
    bench.client.create_subscription("t", "s", type=kind)
    ids = numbered(bench.client, 120)
    consumers: list[Consumer] = []
    hands: dict[int, set[int]] = {}
    expected: Counter[int] = Counter()
    done: set[int] = set()

    def gone(consumer: Consumer) -> None:
        consumers.remove(consumer)
        expected.update(hands.pop(consumer.id) - done)

    for _ in range(400):
        if not consumers or (kind == "shared" and len(consumers) < 3 and rng.random() < 0.1):
            consumers.append(bench.client.consumer("t", "s", type=kind))
            hands[consumers[-1].id] = set()
        consumer = rng.choice(consumers)
        own_counts = hands[consumer.id]
        fate = rng.random()
        if fate < 0.6:
            for _ in range(rng.randrange(6)):
                message = consumer.receive()
                if message is not None:
                    number = int(message.value or b"")
                    assert number not in done
                    assert message.redelivery_count == expected[number], number
                    own_counts.add(number)
            bench.clock.advance(rng.choice((0, 0, 30, 200)))
        elif fate < 0.65:
            own_counts |= {
                int(v) for v in consumer.receive_batch(rng.randrange(1, 9))["value"].to_pylist()
            }
        elif fate < 0.8 and own_counts - done:
            chosen = set(
                rng.sample(sorted(own_counts - done), rng.randint(1, len(own_counts - done)))
            )
            consumer.acknowledge([ids[number] for number in chosen])
            done |= chosen
        elif fate < 0.9 and own_counts - done:
            chosen = set(
                rng.sample(sorted(own_counts - done), rng.randint(1, len(own_counts - done)))
            )
            consumer.negative_acknowledge([ids[number] for number in chosen])
            expected.update(chosen)
            own_counts -= chosen
        elif fate < 0.93:
            kill(consumer)
            gone(consumer)
        elif fate < 0.95:
            consumer.close()
            gone(consumer)
        elif fate < 0.97:
            bench.client.checkpoint()
        elif fate < 0.98:
            consumer.redeliver_unacknowledged_messages()
            expected.update(own_counts - done)
            own_counts.clear()
    for consumer in [*consumers]:
        kill(consumer)
        gone(consumer)
    with bench.another().consumer("t", "s") as heir:
        remaining_rows = drained(heir)
    assert sorted(remaining_rows) == [(n, expected[n]) for n in range(120) if n not in done]


# --- other versions and processes -----------------------------------------------------------------


def test_leases_of_an_older_program_count_as_received(tmp_path: Path) -> None:
    """It recorded no messages ahead: four of one consumer, two and three of another."""
    with tarfile.open(ROOT / "tests/format/leases.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    clock = ManualClock(1_795_219_200_000, boot_id="7f3c1f2e-52f0-4c58-9d58-0c3a6a1b2c3d")
    path = str(tmp_path / "store")
    with txlog.open(path, clock=clock) as client, client.consumer("t", "s") as heir:
        assert drained(heir) == [(n, int(n < 9)) for n in range(13)]
        client.checkpoint()
    assert txlog.verify(path, deep=True, clock=clock)["errors"] == 0


def test_a_process_that_is_killed_counts_for_the_message_it_had(tmp_path: Path) -> None:
    """SIGKILL at the same message, with others leased ahead: its count alone rises each time."""
    path = str(tmp_path / "store")
    txlog.init(path)
    with txlog.open(path) as client:
        client.create_topic("t")
        client.create_subscription("t", "s", type="shared")
        numbered(client, 40)
    for death, count_before in enumerate((4, 0, 0)):
        command = python("ahead", path, count_before)
        assert run(command, code=KILLED, where=f"death {death}").stdout == "4\n"
    with txlog.open(path) as client, client.consumer("t", "s") as heir:
        assert drained(heir) == [(4, 3)] + [(n, 0) for n in range(5, 40)]

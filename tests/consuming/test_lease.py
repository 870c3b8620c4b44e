"""Leases: which consumer has which message, its return, and the promises of each type."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.engine_kit import Bench, begin, kill, send, send_txn, session_of, values
from txlog import Client, Consumer, Message, MessageId, messages
from txlog.client.answers.lag import consumers as consumer_rows
from txlog.engine.plan.consuming.choice import SLOTS, slot_of, slots_of
from txlog.engine.storage.journal import Journal
from txlog.errors import (
    AlreadyClosed,
    ConsumerBusy,
    InvalidArgument,
    NotAllowed,
    TransactionConflict,
)

pytestmark = [pytest.mark.usefixtures("quick_disk"), pytest.mark.store({"t": 1}, [("t", "s")])]


def got(consumer: Consumer, count: int = 100) -> list[bytes]:
    """The values of the next batch."""
    return [message.value or b"" for message in batch(consumer, count)]


def batch(consumer: Consumer, count: int = 100) -> list[Message]:
    """The next batch as messages."""
    return list(messages(consumer.receive_batch(count)))


def counts(consumer: Consumer, count: int = 100) -> list[tuple[bytes | None, int | None]]:
    """(value, redelivery count) of the next batch."""
    return [(message.value, message.redelivery_count) for message in batch(consumer, count)]


def letters(count: int) -> list[bytes]:
    """a, b, c, …"""
    return [bytes([97 + at]) for at in range(count)]


def in_hand(client: Client) -> list[tuple[str, int]]:
    """(name, leased messages) of the consumers of s."""

    def look(view: Any) -> list[tuple[str, int]]:
        subscription = next(iter(view.catalog.subscriptions.values()))
        rows = consumer_rows(view, subscription, client.store)
        return [(row["name"], row["leased"]) for row in rows]

    client.flush()
    return client.store.read(look)


# --- shared -----------------------------------------------------------------------------------


def test_shared_gives_each_message_to_one(bench: Bench) -> None:
    send(bench.client, *letters(6))
    first = bench.client.consumer("t", "s", type="shared", name="one")
    second = bench.another().consumer("t", "s", name="two")
    assert second.kind == "shared"
    assert got(first, 2) == [b"a", b"b"]
    assert got(second, 3) == [b"c", b"d", b"e"]
    assert got(first) == [b"f"]
    assert got(second) == []
    assert in_hand(bench.client) == [("one", 3), ("two", 3)]
    assert bench.client.subscriptions("t")[0]["consumers"] == 2


def test_a_dead_consumer_gives_back_first_and_counted(bench: Bench) -> None:
    """K10: the next receive finds the free lock; returned messages come before new ones."""
    send(bench.client, *letters(5))
    first = bench.another().consumer("t", "s", type="shared")
    second = bench.client.consumer("t", "s")
    assert got(first, 2) == [b"a", b"b"]
    assert got(second, 1) == [b"c"]
    kill(first)
    session_of(second).member.reap(now=True)
    assert counts(second) == [(b"a", 1), (b"b", 1), (b"d", 0), (b"e", 0)]
    assert in_hand(bench.client) == [(second.name, 5)]
    assert not (Path(bench.path) / f"consumers/{first.id}.lock").exists()


def test_an_idle_consumer_sees_a_death_before_it_returns_nothing(bench: Bench) -> None:
    send(bench.client, b"a")
    first = bench.another().consumer("t", "s", type="shared")
    second = bench.client.consumer("t", "s")
    assert got(first) == [b"a"]
    assert got(second) == got(second) == []
    kill(first)
    assert counts(second) == [(b"a", 1)]


def test_a_joining_consumer_removes_dead_ones(bench: Bench) -> None:
    """In the frame that attaches: a dead consumer never blocks an exclusive subscription."""
    send(bench.client, *letters(2))
    first = bench.another().consumer("t", "s")
    assert got(first) == [b"a", b"b"]
    with pytest.raises(ConsumerBusy):
        bench.client.consumer("t", "s")
    kill(first)
    with bench.client.consumer("t", "s") as second:
        assert counts(second) == [(b"a", 1), (b"b", 1)]


def test_an_acknowledgement_ends_the_lease_of_any_hand(bench: Bench) -> None:
    """9.2: acknowledging a message that a peer has leased counts."""
    ids = send(bench.client, *letters(4))
    first = bench.client.consumer("t", "s", type="shared", name="one")
    second = bench.client.consumer("t", "s", name="two")
    assert got(first) == letters(4)
    second.acknowledge([ids[1]])
    bench.client.acknowledge("t", "s", [ids[3]], txn=begin(bench.client))
    assert in_hand(bench.client) == [("one", 2), ("two", 0)]
    first.close()
    assert counts(second) == [(b"a", 1), (b"c", 1)]


def test_messages_of_a_marker_are_leased_one_by_one(bench: Bench) -> None:
    marker, inner = send_txn(bench.client, *letters(5))
    first = bench.client.consumer("t", "s", type="shared", name="one")
    second = bench.client.consumer("t", "s", name="two")
    assert got(first, 3) == [b"a", b"b", b"c"]
    assert got(second) == [b"d", b"e"]
    second.acknowledge([inner[1], inner[3]])
    assert in_hand(bench.client) == [("one", 2), ("two", 1)]
    first.negative_acknowledge([marker])
    assert in_hand(bench.client) == [("one", 0), ("two", 1)]
    assert counts(second) == [(b"a", 1), (b"c", 1)]
    bench.client.acknowledge("t", "s", [marker])
    assert in_hand(bench.client) == [("one", 0), ("two", 0)]


def test_close_counts_what_was_seen_only(bench: Bench) -> None:
    send(bench.client, *letters(4))
    first = bench.client.consumer("t", "s", type="shared", receiver_queue_size=3)
    seen = first.receive()
    assert seen is not None
    assert seen.value == b"a"
    first.close()
    with bench.client.consumer("t", "s") as second:
        assert counts(second) == [(b"a", 1), (b"b", 0), (b"c", 0), (b"d", 0)]


def test_an_abort_gives_back_to_any_consumer(bench: Bench) -> None:
    send(bench.client, *letters(3))
    first = bench.client.consumer("t", "s", type="shared")
    second = bench.another().consumer("t", "s")
    txn = begin(bench.client)
    first.acknowledge(first.receive_batch(2), txn=txn)
    assert got(second) == [b"c"]
    bench.client.abort(txn)
    assert counts(second) == [(b"a", 1), (b"b", 1)]


def test_what_another_consumer_has_by_now_is_not_given_back(bench: Bench) -> None:
    """The task of a consumer was cancelled, and its message has gone to another one meanwhile."""
    send(bench.client, *letters(2))
    first = bench.client.consumer("t", "s", type="shared")
    second, third = bench.another().consumer("t", "s"), bench.another().consumer("t", "s")
    message, _ = batch(first)
    first.negative_acknowledge(message)
    assert got(second) == [b"a"]
    session_of(first).give_back_message(message)
    assert got(third) == got(first) == []
    session_of(second).give_back_message(message)
    assert got(third) == [b"a"]


def test_cumulative_is_refused_on_shared(bench: Bench) -> None:
    send(bench.client, b"a")
    with bench.client.consumer("t", "s", type="shared") as consumer:
        message = consumer.receive()
        assert message is not None
        with pytest.raises(NotAllowed):
            consumer.acknowledge_cumulative(message)


def test_the_type_changes_only_without_living_consumers(bench: Bench) -> None:
    consumer = bench.client.consumer("t", "s", type="shared")
    with pytest.raises(ConsumerBusy, match="shared, not exclusive"):
        bench.client.consumer("t", "s", type="exclusive")
    consumer.close()
    assert bench.client.subscriptions("t")[0]["type"] == "shared"
    with bench.client.consumer("t", "s", type="key-shared") as other:
        assert other.kind == "key-shared"
    assert bench.client.subscriptions("t")[0]["type"] == "key-shared"
    with pytest.raises(InvalidArgument):
        bench.client.consumer("t", "s", type="round-robin")  # type: ignore[arg-type]


def test_unacked_max_stops_a_consumer_and_says_why(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", unacked_max=3)
    bench.client.create_topic("t", 2)
    bench.client.create_subscription("t", "s", type="shared")
    for partition in (0, 1):
        send(bench.client, b"a", b"b", partition=partition)
    with bench.client.consumer("t", "s") as first, bench.client.consumer("t", "s") as second:
        taken_batch = first.receive_batch(10)
        assert taken_batch.num_rows == 3
        assert got(first) == []
        assert first.blocked == "unacked_max"
        assert len(got(second)) == 1
        assert second.blocked is None
        first.acknowledge(taken_batch)
        assert got(first) == []
        assert first.blocked is None


def test_leases_outlive_processes_and_checkpoints(bench: Bench) -> None:
    send(bench.client, *letters(4))
    first = bench.client.consumer("t", "s", type="shared", name="one")
    assert got(first, 2) == [b"a", b"b"]
    bench.client.checkpoint()
    other = bench.another()
    assert in_hand(other) == [("one", 2)]
    with other.consumer("t", "s") as second:
        assert got(second) == [b"c", b"d"]


# --- exclusive and failover -------------------------------------------------------------------


def test_a_nack_rewinds_an_exclusive_consumer(bench: Bench) -> None:
    """9.1: it gets all again from the lowest returned position; only returned messages count up."""
    ids = send(bench.client, *letters(5))
    with bench.client.consumer("t", "s") as consumer:
        assert got(consumer, 4) == letters(4)
        consumer.acknowledge([ids[0], ids[2]])
        assert consumer.negative_acknowledge([ids[1]]).returned == 1
        assert counts(consumer) == [(b"b", 1), (b"d", 0), (b"e", 0)]
        assert got(consumer) == []


def test_a_nack_of_messages_apart_rewinds_to_the_first(bench: Bench) -> None:
    ids = send(bench.client, *letters(5))
    with bench.client.consumer("t", "s") as consumer:
        assert got(consumer, 4) == letters(4)
        consumer.acknowledge([ids[0], ids[2]])
        assert consumer.negative_acknowledge([ids[1], ids[3]]).returned == 2
        assert counts(consumer) == [(b"b", 1), (b"d", 1), (b"e", 0)]


def test_a_rewind_does_not_go_below_what_was_returned(bench: Bench) -> None:
    ids = send(bench.client, *letters(4))
    with bench.client.consumer("t", "s") as consumer:
        first = [consumer.receive(), consumer.receive()]
        assert [m.value for m in first if m] == [b"a", b"b"]
        consumer.negative_acknowledge([ids[1]])
        messages_again = [consumer.receive() for _ in range(4)]
        assert [(m.value, m.redelivery_count) for m in messages_again if m] == [
            (b"b", 1),
            (b"c", 0),
            (b"d", 0),
        ]


def test_a_stale_cumulative_acknowledgement_loses_nothing(bench: Bench) -> None:
    """9.1, apache/pulsar #10431: acking 5 would lose the returned 1 to 3."""
    ids = send(bench.client, *letters(5))
    with bench.client.consumer("t", "s") as consumer:
        assert got(consumer) == letters(5)
        consumer.negative_acknowledge(ids[:3])
        answer = consumer.acknowledge_cumulative(ids[4])
        assert (answer.acked, answer.stale) == (0, 1)
        assert got(consumer, 3) == letters(3)
        assert consumer.acknowledge_cumulative(ids[3]).stale == 1  # it has not come again yet
        assert consumer.acknowledge_cumulative(ids[2]).acked == 3
        assert got(consumer) == [b"d", b"e"]
        answer = consumer.acknowledge_cumulative(ids[4])
        assert (answer.acked, answer.stale) == (2, 0)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("is_message", [False, True])
def test_a_stale_acknowledgement_of_a_whole_marker_loses_nothing(
    bench: Bench, ahead: bool, is_message: bool
) -> None:
    """Found by the simulation (handovers, seed 3): `receive` hands out a marker in parts.

    is_message: the last message of the marker is named, not the marker
    """

    def taken(consumer: Consumer) -> list[bytes]:
        if not ahead:
            return got(consumer, 4)
        return [m.value or b"" for m in [consumer.receive(0) for _ in range(4)] if m is not None]

    marker, inner = send_txn(bench.client, *letters(4))
    target = inner[3] if is_message else marker
    with bench.client.consumer("t", "s") as consumer:
        assert taken(consumer) == letters(4)
        consumer.negative_acknowledge(inner[0])
        assert consumer.acknowledge_cumulative(target).stale == 1
        assert taken(consumer) == letters(4)
        assert consumer.acknowledge_cumulative(target).acked == 4


def test_a_stale_cumulative_acknowledgement_aborts_its_transaction(bench: Bench) -> None:
    """9.1, apache/pulsar #14371."""
    ids = send(bench.client, *letters(3))
    with bench.client.consumer("t", "s") as consumer:
        assert got(consumer) == letters(3)
        first = begin(bench.client)
        consumer.acknowledge_cumulative(ids[1], txn=first)
        bench.client.abort(first)
        second = begin(bench.client)
        with pytest.raises(TransactionConflict, match="came back"):
            consumer.acknowledge_cumulative(ids[2], txn=second)
        assert bench.client.show_transaction(second)["reason"] == "conflict"
        assert counts(consumer) == [(b"a", 1), (b"b", 1), (b"c", 0)]


def test_a_cumulative_acknowledgement_by_id_is_taken_as_meant(bench: Bench) -> None:
    ids = send(bench.client, *letters(3))
    with bench.client.consumer("t", "s") as consumer:
        assert got(consumer) == letters(3)
        consumer.negative_acknowledge(ids)
        assert bench.client.acknowledge("t", "s", [ids[1]], cumulative=True)["acked"] == 2
        assert counts(consumer) == [(b"c", 1)]


def test_failover_has_one_active_consumer_a_partition(tmp_path: Path) -> None:
    """9.1: living consumers of the best priority by (name, id), the one at `partition mod n`."""
    bench = Bench(tmp_path / "store")
    bench.client.create_topic("t", 3)
    bench.client.create_subscription("t", "s", type="failover")
    b = bench.client.consumer("t", "s", name="b")
    a = bench.another().consumer("t", "s", name="a")
    spare = bench.another().consumer("t", "s", name="0", priority=1)
    for number in range(3):
        send(bench.client, b"%d" % number, partition=number)
    assert sorted(got(a)) == [b"0", b"2"]
    assert got(b) == [b"1"]
    assert got(spare) == []
    kill(a)
    assert sorted(counts(b)) == [(b"0", 1), (b"2", 1)]
    kill(b)
    assert sorted(counts(spare)) == [(b"0", 2), (b"1", 1), (b"2", 2)]


def test_failover_hands_over_without_duplicates(bench: Bench) -> None:
    """A new active consumer waits until the former one has settled its leases of the partition."""
    send(bench.client, *letters(4))
    old = bench.client.consumer("t", "s", type="failover", name="z")
    taken_batch = old.receive_batch(2)
    new = bench.another().consumer("t", "s", name="a")
    assert got(old) == got(new) == []
    old.acknowledge(taken_batch)
    assert got(old) == []
    assert got(new) == [b"c", b"d"]


# --- nack and time-outs -----------------------------------------------------------------------


def test_a_nack_waits_its_delay(bench: Bench) -> None:
    ids = send(bench.client, *letters(3))
    first = bench.client.consumer("t", "s", type="shared")
    second = bench.another().consumer("t", "s")
    assert got(first, 2) == [b"a", b"b"]
    assert first.negative_acknowledge(ids, delay_ms=500).returned == 2  # c is not leased
    assert got(second) == [b"c"]
    bench.clock.advance(499)
    assert got(second) == []
    bench.clock.advance(1)
    assert counts(second) == [(b"a", 1), (b"b", 1)]


def test_a_wall_clock_that_is_set_ends_no_delay(bench: Bench) -> None:
    ids = send(bench.client, *letters(1))
    with bench.client.consumer("t", "s", type="shared") as consumer:
        assert got(consumer) == [b"a"]
        consumer.negative_acknowledge(ids, delay_ms=500)
        wall_ms = bench.clock.now().wall_ms
        bench.clock.set_wall(wall_ms + 10_000)
        assert got(consumer) == []
        bench.clock.set_wall(wall_ms - 10_000)
        bench.clock.advance(500)
        assert got(consumer) == [b"a"]


def test_a_nack_with_delay_rewinds_an_exclusive_consumer_when_it_is_due(bench: Bench) -> None:
    ids = send(bench.client, *letters(4))
    with bench.client.consumer("t", "s", nack_delay_ms=500) as consumer:
        assert got(consumer, 3) == letters(3)
        consumer.negative_acknowledge([ids[1]])
        assert got(consumer) == [b"d"]
        bench.clock.advance(500)
        assert consumer.acknowledge_cumulative(ids[3]).stale == 1
        assert counts(consumer) == [(b"b", 1), (b"c", 0), (b"d", 0)]
        assert consumer.acknowledge_cumulative(ids[3]).acked == 4


def test_a_waiting_message_may_be_acknowledged(bench: Bench) -> None:
    ids = send(bench.client, *letters(2))
    with bench.client.consumer("t", "s", type="shared") as consumer:
        assert got(consumer) == letters(2)
        consumer.negative_acknowledge(ids, delay_ms=10)
        assert consumer.acknowledge([ids[0]]).acked == 1
        bench.clock.advance(10)
        assert counts(consumer) == [(b"b", 1)]


def test_a_delay_outlives_a_checkpoint_and_a_boot(bench: Bench) -> None:
    """By the clock since boot within one boot, otherwise by the wall clock."""
    ids = send(bench.client, *letters(2))
    with bench.client.consumer("t", "s", type="shared") as consumer:
        got(consumer)
        consumer.negative_acknowledge(ids, delay_ms=1000)
    bench.client.checkpoint()
    bench.close()
    bench.clock.reboot("next", bench.clock.now().wall_ms + 999)
    client = bench.another()
    with client.consumer("t", "s") as consumer:
        assert got(consumer) == []
        bench.clock.advance(1)
        assert counts(consumer) == [(b"a", 1), (b"b", 1)]


def test_an_acknowledgement_time_out_runs_from_the_hand_out(bench: Bench) -> None:
    ids = send(bench.client, *letters(3))
    first = bench.client.consumer("t", "s", type="shared", ack_timeout_ms=2000)
    second = bench.another().consumer("t", "s")
    assert got(first, 1) == [b"a"]
    bench.clock.advance(1500)
    assert got(first) == [b"b", b"c"]
    first.acknowledge([ids[1]])
    bench.clock.advance(500)
    assert counts(second) == [(b"a", 1)]
    bench.clock.advance(1500)
    assert counts(second) == [(b"c", 1)]
    with pytest.raises(InvalidArgument):
        bench.client.consumer("t", "s", ack_timeout_ms=999)


def test_a_time_out_rewinds_an_exclusive_consumer(bench: Bench) -> None:
    ids = send(bench.client, *letters(3))
    with bench.client.consumer("t", "s", ack_timeout_ms=1000) as consumer:
        assert got(consumer) == letters(3)
        consumer.acknowledge([ids[1]])
        bench.clock.advance(1000)
        assert counts(consumer) == [(b"a", 1), (b"c", 1)]
        assert got(consumer) == []


def test_a_time_out_begins_again_with_the_next_hand_out(bench: Bench) -> None:
    ids = send(bench.client, *letters(2))
    with bench.client.consumer("t", "s", ack_timeout_ms=1000) as consumer:
        assert got(consumer) == letters(2)
        bench.clock.advance(600)
        consumer.negative_acknowledge([ids[0]])
        assert counts(consumer) == [(b"a", 1), (b"b", 0)]  # the same consumer has leased b again
        bench.clock.advance(400)
        assert got(consumer) == []
        bench.clock.advance(600)
        assert counts(consumer) == [(b"a", 2), (b"b", 1)]


def test_redeliver_gives_the_whole_hand_back(bench: Bench) -> None:
    send(bench.client, *letters(3))
    with bench.client.consumer("t", "s", type="shared", receiver_queue_size=3) as consumer:
        assert [consumer.receive() is not None for _ in range(2)] == [True, True]
        assert consumer.redeliver_unacknowledged_messages().returned == 3
        assert counts(consumer) == [(b"a", 1), (b"b", 1), (b"c", 0)]


def test_buffered_messages_that_were_taken_away_are_not_received(bench: Bench) -> None:
    ids = send(bench.client, *letters(3))
    with bench.client.consumer("t", "s", type="shared") as consumer:
        first = consumer.receive()
        assert first is not None
        bench.client.acknowledge("t", "s", [ids[1]])
        second = consumer.receive()
        assert second is not None
        assert (first.value, second.value) == (b"a", b"c")


def test_the_counter_of_redeliveries_is_right(bench: Bench) -> None:
    ids = send(bench.client, *letters(4))
    first = bench.client.consumer("t", "s", type="shared", receiver_queue_size=3)
    message = first.receive()
    assert message is not None
    first.negative_acknowledge(message)
    first.close()  # the application never received b and c
    second = bench.client.consumer("t", "s")
    assert len(batch(second)) == 4
    kill(second)
    with bench.client.consumer("t", "s") as third:
        assert len(batch(third)) == 4
        third.acknowledge(ids)
    total = bench.client.store.read(lambda view: view.cursor(1, 1).figures.redelivered)
    assert total == 1 + 4


def test_messages_of_a_dead_writer_are_flushed_before_delivery(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K2, Law 3: no process has flushed its frame; a power cut may not take the message back."""
    with bench.client.consumer("t", "s", type="shared") as consumer:
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "take_off", lambda self, *arguments, **options: [])
            send(bench.another(), b"a")
        assert values(bench.another(read_only=True)) == []
        assert got(consumer) == [b"a"]
        assert values(bench.another(read_only=True)) == [b"a"]


# --- key-shared -------------------------------------------------------------------------------


def keyed(client: Client, *pairs: tuple[bytes | None, bytes]) -> list[MessageId]:
    """Send (key, value) one by one; returns the ids."""
    producer = client.producer("t")
    sent = [producer.send(value, key=key, partition=0).message_id for key, value in pairs]
    return [message for message in sent if message is not None]


def keys_of(consumer: Consumer, *others: Consumer) -> list[bytes]:
    """Two keys that the first consumer owns, then two that the next consumer owns, …"""
    members = tuple(sorted(each_consumer.id for each_consumer in (consumer, *others)))
    out: list[bytes] = []
    for each_consumer in (consumer, *others):
        owned = slots_of(members, each_consumer.id)
        out += [key for key in (b"%d" % n for n in range(99)) if slot_of(key) in owned][:2]
    return out


def test_slots_are_split_evenly_and_without_a_gap() -> None:
    for count in (1, 2, 3, 7, 8):
        members = tuple(range(5, 5 + count))
        parts = [slots_of(members, member) for member in members]
        assert [slot for part in parts for slot in part] == list(range(SLOTS))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_each_key_goes_to_its_owner_in_order(bench: Bench) -> None:
    first = bench.client.consumer("t", "s", type="key-shared")
    second = bench.another().consumer("t", "s")
    k1, k2, l1, l2 = keys_of(first, second)
    keyed(bench.client, (k1, b"a"), (l1, b"b"), (k2, b"c"), (k1, b"d"), (l2, b"e"), (l1, b"f"))
    assert got(first, 2) == [b"a", b"c"]
    assert got(second) == [b"b", b"e", b"f"]
    assert got(first) == [b"d"]
    assert got(first) == got(second) == []


def test_keys_of_a_consumer_that_left_are_taken_from_where_they_were(bench: Bench) -> None:
    """The other consumer had passed over their messages without leasing any."""
    first = bench.client.consumer("t", "s", type="key-shared")
    second = bench.another().consumer("t", "s")
    k1, _, l1, _ = keys_of(first, second)
    keyed(bench.client, (l1, b"a"), (k1, b"b"))
    assert got(first) == [b"b"]
    second.close()
    assert got(first) == [b"a"]


def test_messages_without_a_key_go_to_anyone(bench: Bench) -> None:
    first = bench.client.consumer("t", "s", type="key-shared")
    second = bench.another().consumer("t", "s")
    keyed(bench.client, (None, b"a"), (None, b"b"), (None, b"c"))
    assert got(first, 1) == [b"a"]
    assert got(second) == [b"b", b"c"]
    assert got(first) == []


def test_a_slot_moves_only_when_the_old_consumer_holds_nothing_of_it(bench: Bench) -> None:
    """9.1: first leased, then pending in a transaction that acknowledged it there."""
    first = bench.client.consumer("t", "s", type="key-shared")
    probe = bench.client.consumer("t", "s")
    _, _, key, _ = keys_of(first, probe)  # the second of two consumers owns it
    probe.close()
    ids = keyed(bench.client, (key, b"a"), (key, b"b"), (key, b"c"))
    assert got(first, 2) == [b"a", b"b"]
    second = bench.another().consumer("t", "s")
    assert slot_of(key) in slots_of((first.id, second.id), second.id)
    assert got(first) == got(second) == []
    first.acknowledge([ids[0]])
    assert got(second) == []
    txn = begin(bench.client)
    first.acknowledge([ids[1]], txn=txn)
    assert got(second) == []  # pending through another consumer
    bench.client.commit(txn)
    assert got(second) == [b"c"]


def test_an_abort_after_the_hand_over_keeps_the_order(bench: Bench) -> None:
    first = bench.client.consumer("t", "s", type="key-shared")
    ids = keyed(bench.client, (b"k", b"a"), (b"k", b"b"))
    assert got(first, 1) == [b"a"]
    txn = begin(bench.client)
    first.acknowledge([ids[0]], txn=txn)
    assert got(first) == [b"b"]  # its own pending acknowledgement does not stop it
    first.negative_acknowledge([ids[1]])
    kill(first)
    second = bench.another().consumer("t", "s")
    assert got(second) == []
    bench.client.abort(txn)
    assert counts(second) == [(b"a", 1), (b"b", 1)]


def test_a_death_keeps_the_order_of_a_key(bench: Bench) -> None:
    first = bench.client.consumer("t", "s", type="key-shared")
    second = bench.another().consumer("t", "s")
    own_items, _, other, _ = keys_of(first, second)
    keyed(bench.client, (own_items, b"a"), (other, b"b"), (own_items, b"c"), (own_items, b"d"))
    assert got(first, 2) == [b"a", b"c"]
    assert got(second) == [b"b"]
    kill(first)
    assert counts(second) == [(b"a", 1), (b"c", 1), (b"d", 0)]


def test_a_nack_delay_holds_its_key_up_and_no_other(bench: Bench) -> None:
    with bench.client.consumer("t", "s", type="key-shared") as consumer:
        ids = keyed(bench.client, (b"k", b"a"), (b"l", b"b"), (b"k", b"c"), (b"l", b"d"))
        assert got(consumer, 1) == [b"a"]
        consumer.negative_acknowledge([ids[0]], delay_ms=100)
        assert got(consumer) == [b"b", b"d"]
        bench.clock.advance(100)
        assert counts(consumer) == [(b"a", 1), (b"c", 0)]


def test_keys_inside_a_transaction(bench: Bench) -> None:
    """Messages of a marker have keys of their own."""
    first = bench.client.consumer("t", "s", type="key-shared")
    second = bench.another().consumer("t", "s")
    own_items, _, other, _ = keys_of(first, second)
    producer = bench.client.producer("t")
    with bench.client.transaction() as txn:
        for key, value in ((own_items, b"a"), (other, b"b"), (own_items, b"c"), (other, b"d")):
            producer.send(value, key=key, txn=txn)
    taken_batch = batch(first)
    assert [(m.value, m.message_id and m.message_id.index) for m in taken_batch] == [
        (b"a", 1),
        (b"c", 3),
    ]
    assert got(second) == [b"b", b"d"]
    first.acknowledge(taken_batch)
    first.close()
    assert counts(second) == []


def test_keys_over_a_checkpoint(bench: Bench) -> None:
    """A consumer reads the keys from files as it does from frames."""
    first = bench.client.consumer("t", "s", type="key-shared")
    second = bench.another().consumer("t", "s")
    own_items, _, other, _ = keys_of(first, second)
    keyed(bench.client, *[(own_items if at % 2 else other, b"%d" % at) for at in range(20)])
    bench.client.checkpoint(roll_all=True)
    keyed(bench.client, *[(own_items if at % 2 else other, b"%d" % at) for at in range(20, 30)])
    assert got(first) == [b"%d" % at for at in range(1, 30, 2)]
    assert got(second) == [b"%d" % at for at in range(0, 30, 2)]


def test_a_consumer_that_waits_can_be_closed_by_another_thread(bench: Bench) -> None:
    consumer = bench.client.consumer("t", "s")
    ended: list[type[Exception]] = []

    def wait() -> None:
        try:
            consumer.receive(timeout_ms=None)
        except AlreadyClosed:
            ended.append(AlreadyClosed)

    thread = Thread(target=wait)
    thread.start()
    consumer.close()
    thread.join()
    assert ended == [AlreadyClosed]


def test_an_empty_look_is_not_reused_for_other_partitions(bench: Bench) -> None:
    """`txlog serve` polls the partitions whose clients want more, so they differ each time."""
    client = bench.client
    client.create_topic("wide", 2)
    client.create_subscription("wide", "s", type="shared")
    client.producer("wide").send(b"there", partition=1)
    consumer = client.consumer("wide", "s")
    receiving = session_of(consumer).receiving
    receiving.partitions = [0]
    assert got(consumer) == []
    receiving.partitions = [0, 1]
    assert got(consumer) == [b"there"]

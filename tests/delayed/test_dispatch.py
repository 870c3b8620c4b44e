"""Which messages are due, for which subscription and when; spec/delayed 1, 7 (events), 13."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.delayed.bucket_kit import index
from tests.delayed.dispatch_kit import T0, Shop, mutable, place, pointer, strays, take, take_ids
from tests.engine_kit import kill, session_of
from txlog import Bound, MessageId
from txlog.engine.plan.consuming import choice
from txlog.engine.plan.reading.dispatch import Piece
from txlog.engine.upkeep.delayed.buckets import drop_lost
from txlog.engine.view import View
from txlog.errors import Corruption, NotAllowed

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "store")


# --- worked examples -------------------------------------------------------------------------


def test_example_a_two_subscriptions_share_one_index(shop: Shop) -> None:
    """13 A."""
    shop.set(50)
    ids = shop.send_all((b"0", None), (b"1", 1000), (b"2", 400), (b"3", None), (b"4", 400))
    assert mutable(shop.client) == 3
    shop.set(100)
    other, clock = shop.process(100)
    first = shop.consumer("s1", other)
    assert take(first) == [b"0", b"3"]
    assert place(first).mark[1] == ids[-1].entry and pointer(first) == 100
    for now in (399, 400):
        shop.set(now)
        clock.set_wall(T0 + now)
        assert take(first) == ([] if now == 399 else [b"2", b"4"])
    assert first.acknowledge([ids[0], ids[3], ids[2], ids[4]]).acked == 4
    shop.set(450)
    second = shop.consumer("s2")
    assert take(second) == [b"0", b"2", b"3", b"4"]
    assert pointer(second) == 450
    first.close()
    shop.set(1000)
    consumer_again = shop.consumer("s1")
    assert take(consumer_again) == [b"1"] and pointer(consumer_again) == 1000
    shop.set(1001)
    assert take(second) == [b"1"]
    assert mutable(shop.client) == 3  # no call of a subscription changes the index


def test_example_b_a_commit_indexes_the_messages_that_are_not_due(shop: Shop) -> None:
    """13 B; 8: rows of an open transaction delay no other message."""
    shop.set(0)
    consumer = shop.consumer()
    txn = shop.client.transaction(write_through=True)
    producer = shop.client.producer("t")
    with txn:
        for value, at in ((b"a", None), (b"b", 900), (b"c", 500)):
            producer.send(value, txn=txn, deliver_at=None if at is None else T0 + at)
        shop.send(b"plain")
        assert take(consumer) == [b"plain"]
        shop.set(600)
        assert take(consumer) == [] and mutable(shop.client) == 0
    assert mutable(shop.client) == 1
    assert [message_id.index for message_id in take_ids(consumer)] == [1, 3]
    shop.set(899)
    assert take(consumer) == []
    shop.set(900)
    assert [message_id.index for message_id in take_ids(consumer)] == [2]
    whole = shop.commit((b"x", 1900), (b"y", 1900), (b"z", 1900))
    assert take(consumer) == []
    shop.set(1900)
    assert take_ids(consumer) == whole


def test_example_c_the_clock_goes_back(shop: Shop) -> None:
    """13 C: leased messages stay leased; messages that are not due any more wait again."""
    shop.set(0)
    consumer = shop.consumer()
    a, b = shop.send_all((b"a", 980), (b"b", 970))
    assert take(consumer) == []
    shop.set(1000)
    assert take(consumer, 1) == [b"b"]  # a is due, but did not fit
    shop.set(700)
    assert take(consumer) == [] and pointer(consumer) == 700
    c = shop.send(b"c", 850)
    assert take(consumer) == []
    shop.set(850)
    assert take_ids(consumer) == [c]
    shop.set(980)
    assert take_ids(consumer) == [a]
    assert take(consumer) == []
    assert consumer.acknowledge([a, b, c]).acked == 3


def test_example_f_a_bucket_disappears_below_a_pointer_that_was_cut_short(tmp_path: Path) -> None:
    """13 F. Guards against a comparison with the time of the pointer alone.

    It would lose the other messages of the same time.
    """
    shop = Shop(tmp_path / "store", mutable_ids_max=10, min_index_count_per_bucket=1)
    shop.set(0)
    second = shop.consumer("s2")
    ids = shop.send_all(*[(b"%d" % n, 1900) for n in range(10)])
    assert take(second) == [] and place(second).mark[1] == ids[-1].entry
    shop.client.checkpoint()
    [bucket] = index(shop.client).buckets
    assert (bucket.count, bucket.max_at) == (10, T0 + 1900)
    shop.set(1900)
    assert take_ids(second, 5) == ids[:5]
    fifth = (ids[4].ledger, ids[4].entry, 0)
    assert place(second).pointer == (T0 + 1900, *fifth)
    other, _ = shop.process(1900)
    first = shop.consumer("s1", other)
    assert take_ids(first) == ids
    other.checkpoint()
    assert not index(other).buckets and index(other).cutoff_ms == T0 + 1900
    assert take_ids(second) == ids[5:] and take(second) == []


def test_a_lost_bucket_rewinds_dispatchers_that_have_passed_it(
    tmp_path: Path,
) -> None:
    """7, event "bucket lost".

    Guards against a dispatcher that never looks again at messages it skipped.
    """
    shop = Shop(tmp_path / "store", mutable_ids_max=10, min_index_count_per_bucket=1)
    shop.set(0)
    consumer = shop.consumer()
    ids = shop.send_all(*[(b"%d" % n, 1900) for n in range(10)])
    shop.client.checkpoint()
    [bucket] = index(shop.client).buckets
    shop.set(1000)
    assert take(consumer) == [] and place(consumer).mark[1] == ids[-1].entry
    error = Corruption("it is damaged", path=bucket.file.path)
    assert drop_lost(shop.client.store, 1, bucket.gen, error)
    shop.set(1900)
    assert take_ids(consumer) == ids


# --- the table of events ---------------------------------------------------------------------


def test_a_dispatcher_starts_from_the_log(shop: Shop) -> None:
    """Event: start, also after a crash: R is the first message that is not acknowledged."""
    shop.set(0)
    shop.send_all((b"a", 100), (b"b", None), (b"c", 50))
    shop.set(200)
    consumer = shop.consumer()
    assert take(consumer) == [b"a", b"b", b"c"] and pointer(consumer) == 200
    consumer.close()
    shop.reopen()
    consumer = shop.consumer()
    assert take(consumer) == [b"a", b"b", b"c"]  # in order of position: all three came back


def test_due_messages_come_before_new_ones_and_in_order_of_time(shop: Shop) -> None:
    """1: time order over cycles, position order within one, before new messages."""
    shop.set(0)
    consumer = shop.consumer()
    shop.send_all((b"late", 300), (b"soon", 100), (b"mid", 200), (b"soon too", 100))
    assert take(consumer) == []
    shop.send(b"new")
    shop.set(300)
    assert take(consumer, 2) == [b"soon", b"soon too"]
    assert take(consumer, 2) == [b"late", b"mid"]
    assert take(consumer, 2) == [b"new"]
    assert take(consumer) == []


def test_messages_that_do_not_fit_come_with_the_next_batch(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """7, step 5d: the pointer stays before messages that were polled and did not fit."""
    monkeypatch.setattr(choice, "RECEIVE_BYTES_MAX", 250)
    shop.set(0)
    consumer = shop.consumer()
    ids = shop.send_all(*[(b"x" * 100, at) for at in (100, 100, 100, 200, 300)])
    assert take(consumer) == []
    shop.set(300)
    assert [take_ids(consumer) for _ in range(4)] == [ids[:2], ids[2:4], ids[4:], []]


def test_a_message_below_the_pointer_is_met_by_reading(shop: Shop) -> None:
    """Event: an append whose key is below the pointer, and one whose key is above."""
    shop.set(1000)
    consumer = shop.consumer()
    assert take(consumer) == []
    shop.set(500)
    low, high = shop.send(b"low", 600), shop.send(b"high", 1500)
    shop.set(1000)
    assert take_ids(consumer) == [low]
    shop.set(1500)
    assert take_ids(consumer) == [high]


def test_two_processes_with_two_clocks(shop: Shop) -> None:
    """Event: the slower process never delivers early, the faster one never twice."""
    shop.set(0)
    fast_client, fast_clock = shop.process(0)
    slow = shop.consumer("s")
    fast = shop.consumer("s", fast_client)
    a, b = shop.send_all((b"a", 100), (b"b", 200))
    assert take(slow) == take(fast) == []
    fast_clock.set_wall(T0 + 150)
    assert take_ids(fast) == [a] and take(slow) == []
    shop.set(200)
    assert take_ids(slow) == [b] and take(fast) == []
    fast_clock.set_wall(T0 + 250)
    assert take(fast) == []


def test_a_row_that_was_due_for_its_writer_is_a_stray_for_a_slow_reader(shop: Shop) -> None:
    """4.1: due by the clock of its frame, not due by the clock of the reader."""
    slow_client, slow_clock = shop.process(0)
    slow = shop.consumer("s", slow_client)
    shop.set(1000)
    a = shop.send(b"a", 900)
    plain = shop.send(b"plain")
    assert mutable(shop.client) == 0
    assert take_ids(slow) == [plain] and strays(slow) == [900]
    slow_clock.set_wall(T0 + 899)
    assert take(slow) == []
    slow_clock.set_wall(T0 + 900)
    assert take_ids(slow) == [a]
    assert take(slow) == [] and strays(slow) == []


def test_a_row_outside_the_index_is_due_at_its_time(shop: Shop) -> None:
    """1: `deliver_at <= cutoff`, also for a slow clock that reads the row at that moment."""
    slow_client, _ = shop.process(900)
    slow = shop.consumer("s", slow_client)
    shop.set(1000)
    a, _ = shop.send_all((b"a", 900), (b"b", 901))
    assert take_ids(slow) == [a] and strays(slow) == [901]


def test_a_stray_that_came_back_is_released(shop: Shop) -> None:
    """3: a message outside the index also waits only once."""
    slow_client, slow_clock = shop.process(0)
    slow = shop.consumer("s", slow_client)
    shop.set(1000)
    a, b = shop.send_all((b"a", 900), (b"b", 950))
    assert take(slow) == [] and strays(slow) == [900, 950]
    slow_clock.set_wall(T0 + 900)
    assert take_ids(slow) == [a]
    slow_clock.set_wall(T0 + 100)
    slow.negative_acknowledge(a)
    assert take_ids(slow) == [a]
    slow_clock.set_wall(T0 + 950)
    assert take_ids(slow) == [b]


def test_a_reader_waits_where_it_may_not_remember_more_strays(tmp_path: Path) -> None:
    """strays_max: R stays before the first message that it cannot remember, and moves on later."""
    shop = Shop(tmp_path / "small", strays_max=2)
    slow_client, slow_clock = shop.process(0)
    slow = shop.consumer("s", slow_client)
    shop.set(1000)
    ids = shop.send_all(*[(b"%d" % at, at) for at in (900, 800, 700, 600)], (b"plain", None))
    assert take(slow) == [] and strays(slow) == [800, 900]
    assert take(slow) == []
    slow_clock.set_wall(T0 + 850)
    assert take_ids(slow) == ids[1:]
    slow_clock.set_wall(T0 + 900)
    assert take_ids(slow) == ids[:1] and take(slow) == []


def test_a_seek_starts_over(shop: Shop) -> None:
    """Event: seek: all messages after the position again, those not due at their time."""
    shop.set(0)
    consumer = shop.consumer()
    a, b, c = shop.send_all((b"a", 100), (b"b", None), (b"c", 300))
    assert take_ids(consumer) == [b]
    shop.set(150)
    assert take_ids(consumer) == [a]
    consumer.acknowledge([a, b])
    consumer.seek(Bound("start"))
    assert take_ids(consumer) == [a, b]
    shop.set(300)
    assert take_ids(consumer) == [c]
    consumer.seek(Bound("end"))
    shop.set(1000)
    assert take(consumer) == []
    consumer.seek("earliest")
    assert take_ids(consumer) == [a, b, c]


def test_a_seek_takes_back_that_it_was_released(shop: Shop) -> None:
    """3: a seek drops the released ids, so their times count again."""
    shop.set(100)
    consumer = shop.consumer()
    a = shop.send(b"a", 200)
    shop.set(200)
    assert take_ids(consumer) == [a]
    consumer.negative_acknowledge(a)
    shop.set(100)
    consumer.seek("earliest")
    assert take(consumer) == []
    shop.set(200)
    assert take_ids(consumer) == [a]


def test_an_acknowledged_message_never_becomes_due(shop: Shop) -> None:
    """Event: an acknowledgement before the time cancels the message for this subscription."""
    shop.set(0)
    consumer, other = shop.consumer(), shop.consumer("other")
    a, b = shop.send_all((b"a", 100), (b"b", 100))
    assert take(consumer) == []
    assert shop.client.subscription("t", "s").acknowledge([a])["acked"] == 1
    shop.set(100)
    assert take_ids(consumer) == [b]
    assert take_ids(other) == [a, b]


def test_clearing_the_backlog_cancels(shop: Shop) -> None:
    """Event: clear-backlog, skip: they are acknowledgements."""
    shop.set(0)
    consumer = shop.consumer()
    shop.send_all((b"a", 100), (b"b", 200), (b"c", 300))
    assert take(consumer) == []
    handle = shop.client.subscription("t", "s")
    handle.skip(1)
    shop.set(250)
    assert take(consumer) == [b"b"]
    handle.clear_backlog()
    shop.set(300)
    assert take(consumer) == []


@pytest.mark.parametrize("is_due", [False, True])
def test_an_ack_in_a_transaction_and_its_commit(shop: Shop, is_due: bool) -> None:
    """Event: the pointer passes pending messages; a commit ends it."""
    shop.set(0)
    consumer = shop.consumer()
    a = shop.send(b"a", 100)
    shop.set(100 * is_due)
    assert take(consumer) == ([b"a"] if is_due else [])
    with shop.client.transaction() as txn:
        consumer.acknowledge(a, txn=txn)
        shop.set(100)
        assert take(consumer) == []
    assert take(consumer) == []


@pytest.mark.parametrize("end_ms", [50, 150])
def test_the_abort_of_an_ack_does_not_release(shop: Shop, end_ms: int) -> None:
    """Event: abort: the time of the message counts again."""
    shop.set(0)
    consumer = shop.consumer()
    a = shop.send(b"a", 100)
    assert take(consumer) == []
    txn = shop.client.transaction(write_through=True)
    consumer.acknowledge(a, txn=txn)
    shop.set(end_ms)
    assert take(consumer) == []
    txn.abort()
    assert take_ids(consumer) == ([a] if end_ms >= 100 else [])
    shop.set(150)
    assert take_ids(consumer) == ([] if end_ms >= 100 else [a])


def test_the_abort_of_an_ack_behind_a_clock_that_went_back(shop: Shop) -> None:
    """The pointer passed the message while it was pending; it waits again, and comes."""
    shop.set(0)
    consumer = shop.consumer()
    a = shop.send(b"a", 100)
    assert take(consumer) == []
    txn = shop.client.transaction(write_through=True)
    consumer.acknowledge(a, txn=txn)
    shop.set(200)
    assert take(consumer) == [] and pointer(consumer) == 200
    shop.set(50)
    txn.abort()
    assert take(consumer) == [] and pointer(consumer) == 50
    shop.set(100)
    assert take_ids(consumer) == [a]


@pytest.mark.parametrize("how", ["nack", "redeliver", "close", "timeout", "death"])
def test_a_returned_message_is_released(shop: Shop, how: str) -> None:
    """Event: nack, ack timeout, death: the delay counts once, even if the clock goes back."""
    shop.set(0)
    other, _ = shop.process(0)
    consumer = other.consumer(
        "t",
        "s",
        create=True,
        type="shared",
        position="earliest",
        ack_timeout_ms=1000 if how == "timeout" else None,
    )
    a = shop.send(b"a", 100)
    b = shop.send(b"b", 5000)
    other.store.clock.set_wall(T0 + 100)  # type: ignore[attr-defined]  # a ManualClock
    assert take_ids(consumer) == [a]
    shop.set(0)
    if how == "nack":
        consumer.negative_acknowledge(a)
    elif how == "redeliver":
        consumer.redeliver_unacknowledged_messages()
    elif how == "close":
        consumer.close()
    elif how == "timeout":
        shop.clock.advance(1000)
    else:
        kill(consumer)
    own_consumer = shop.consumer()
    assert take_ids(own_consumer) == [a]
    shop.set(5000)
    assert take_ids(own_consumer) == [b]


def test_a_nack_with_a_delay_waits_for_that(shop: Shop) -> None:
    """The message is released, and waits for the delay of the nack."""
    shop.set(0)
    consumer = shop.consumer()
    a = shop.send(b"a", 100)
    shop.set(100)
    assert take_ids(consumer) == [a]
    consumer.negative_acknowledge(a, delay_ms=1000)
    assert take(consumer) == []
    shop.clock.advance(1000)
    assert take_ids(consumer) == [a]


@pytest.mark.parametrize("type", ["exclusive", "failover"])
def test_other_types_get_everything_at_once(shop: Shop, type: str) -> None:
    """1: exclusive and failover subscriptions ignore deliver_at, and readers too."""
    shop.set(0)
    shop.send_all((b"a", 100), (b"b", None))
    assert take(shop.consumer(type=type)) == [b"a", b"b"]  # type: ignore[arg-type]
    with shop.client.reader("t") as reader:
        assert [m.value for m in reader] == [b"a", b"b"]


def test_the_type_of_a_subscription_changes(shop: Shop) -> None:
    """Event: type changed: the store keeps no state of the old type."""
    shop.set(0)
    shop.send_all((b"a", 100), (b"b", None))
    with shop.consumer() as consumer:
        assert take(consumer) == [b"b"]
    with shop.consumer(type="exclusive") as consumer:
        assert take(consumer) == [b"a", b"b"]
    with shop.consumer() as consumer:  # both were leased, and came back
        assert take(consumer) == [b"a", b"b"]


def test_an_inactive_topic_delays_nothing(tmp_path: Path) -> None:
    """1: active = false, also for earlier messages; all messages come in order."""
    shop = Shop(tmp_path / "store", delayed_delivery_active=0)
    shop.set(0)
    consumer = shop.consumer()
    shop.send_all((b"a", 100), (b"b", None))
    assert take(consumer) == [b"a", b"b"]


def test_not_strict_is_early_by_a_tick(tmp_path: Path) -> None:
    """1: cutoff is now + tick_time_ms, inclusive."""
    shop = Shop(tmp_path / "store", deliver_at_time_strict=0, tick_time_ms=50)
    shop.set(0)
    consumer = shop.consumer()
    shop.send_all((b"a", 100), (b"b", 50))
    assert take(consumer) == [b"b"]
    shop.set(49)
    assert take(consumer) == []
    shop.set(50)
    assert take(consumer) == [b"a"]


def test_subscriptions_do_not_affect_each_other(shop: Shop) -> None:
    """Invariant 2: acknowledging every message on one subscription does not affect another."""
    shop.set(0)
    a, b = shop.consumer("a"), shop.consumer("b")
    shop.send_all((b"x", 100), (b"y", 200))
    assert take(a) == take(b) == []
    shop.client.subscription("t", "a").clear_backlog()
    a.close()
    shop.client.subscription("t", "a").delete()
    shop.set(200)
    assert take(b) == [b"x", b"y"]


def test_two_consumers_of_one_subscription_share_what_is_due(shop: Shop) -> None:
    """6: two proposals of one id give one lease."""
    shop.set(0)
    first, second = shop.consumer(), shop.consumer()
    shop.send_all(*[(b"%d" % n, 100) for n in range(6)])
    assert take(first) == take(second) == []
    shop.set(100)
    assert take(first, 2) == [b"0", b"1"]
    assert take(second, 2) == [b"2", b"3"]
    assert take(first) == [b"4", b"5"] and take(second) == []


def test_cumulative_acknowledgement_is_not_allowed(shop: Shop) -> None:
    """1."""
    consumer = shop.consumer()
    sent = shop.send(b"a", 100)
    with pytest.raises(NotAllowed):
        consumer.acknowledge_cumulative(sent)


def test_a_consumer_wakes_when_the_next_is_due(shop: Shop) -> None:
    """7: computed anew at every wait; with an empty index, it never wakes."""
    shop.set(0)
    consumer = shop.consumer()
    receiving = session_of(consumer).receiving
    assert take(consumer) == []
    assert (receiving.due_ms, min(0.05, receiving.rest(0.05).seconds)) == (None, 0.05)
    shop.send_all((b"a", 30), (b"b", 10))
    assert take(consumer) == []
    assert (receiving.due_ms, min(0.05, receiving.rest(0.05).seconds)) == (T0 + 10, 0.01)
    shop.set(10)
    assert take(consumer) == [b"b"] and take(consumer) == []
    assert receiving.due_ms == T0 + 30
    shop.set(31)
    assert min(0.05, receiving.rest(0.05).seconds) == 0.001


def test_has_message_available_sees_what_is_due(shop: Shop) -> None:
    """A look without the lock, by the same rules."""
    shop.set(0)
    consumer = shop.consumer()
    shop.send(b"a", 10)
    assert not consumer.has_message_available()
    shop.set(10)
    assert consumer.has_message_available()


# --- Key_Shared ------------------------------------------------------------------------------


def test_key_shared_a_delayed_message_comes_after_younger_ones_of_its_key(shop: Shop) -> None:
    """1: only deliver_at changes the order within a key."""
    shop.set(0)
    consumer = shop.consumer(type="key-shared")
    shop.send(b"k1", 100, b"k")
    shop.send(b"k2", None, b"k")
    shop.send(b"j1", 50, b"j")
    assert take(consumer) == [b"k2"]
    shop.set(50)
    assert take(consumer) == [b"j1"]
    shop.set(100)
    assert take(consumer) == [b"k1"]
    assert take(consumer) == []


def test_key_shared_each_owner_gets_its_own_keys(shop: Shop) -> None:
    """A due message goes to the owner of its key, even if both consumers have passed it."""
    shop.set(0)
    first, second = shop.consumer(type="key-shared"), shop.consumer(type="key-shared")
    keys = [b"key-%d" % n for n in range(40)]
    for key in keys:
        shop.send(b"now " + key, None, key)
        shop.send(b"later " + key, 100, key)
    own_keys, yours = take(first), take(second)
    assert len(own_keys) + len(yours) == 40
    shop.set(100)
    for consumer, known_keys in ((first, own_keys), (second, yours)):
        assert take(consumer) == [value.replace(b"now", b"later") for value in known_keys]
        assert take(consumer) == []


def test_key_shared_waits_for_leases_of_its_key_at_a_peer(shop: Shop) -> None:
    """A moved key: its due messages wait until the former owner has settled its leases."""
    shop.set(0)
    consumer = shop.consumer(type="key-shared")
    keys = [b"key-%d" % n for n in range(20)]
    first = {shop.send(b"1 " + key, None, key): key for key in keys}
    for key in keys:
        shop.send(b"2 " + key, 100, key)
    assert len(take(consumer)) == 20
    two = shop.consumer(type="key-shared")
    assert take(two) == []
    shop.set(100)
    assert take(two) == []  # a peer still has the older message of each of its keys
    got = take(consumer)
    assert 0 < len(got) < 20
    consumer.acknowledge(list(first))
    assert sorted(got + take(two)) == sorted(b"2 " + key for key in keys)


def test_key_shared_reads_only_the_keys_of_due_messages(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A due message does not cause another look at messages that peers have not fetched yet."""
    shop.set(0)
    consumer, _ = shop.consumer(type="key-shared"), shop.consumer(type="key-shared")
    keys = [b"key-%d" % n for n in range(100)]
    for key in keys:
        shop.send(b"later " + key, 100, key)
        shop.send(b"now " + key, None, key)
    own_rows = take(consumer)
    assert 0 < len(own_rows) < 100 and take(consumer) == []
    looked: list[int] = []
    read = choice._slots

    def note(view: View, pieces: list[Piece]) -> pa.Array:
        messages = read(view, pieces)
        looked.append(len(messages))
        return messages

    monkeypatch.setattr(choice, "_slots", note)
    shop.set(100)
    got = take(consumer, 10) + take(consumer)
    assert got == [value.replace(b"now", b"later") for value in own_rows]
    assert sum(looked) <= 300  # both turns look first, and then under the lock


def test_key_shared_strays(shop: Shop) -> None:
    """A row that was due for its writer also waits for a slow reader of this type."""
    slow_client, slow_clock = shop.process(0)
    slow = shop.consumer("s", slow_client, "key-shared")
    shop.set(1000)
    shop.send(b"a", 900, b"k")
    shop.send(b"b", None, b"k")
    assert take(slow) == [b"b"] and strays(slow) == [900]
    slow_clock.set_wall(T0 + 900)
    assert take(slow) == [b"a"] and take(slow) == []


def test_going_back_for_a_key_shared_stray_keeps_an_earlier_one(shop: Shop) -> None:
    """The scan goes back, but not to the first message, so nothing reads the first one again."""
    slow_client, slow_clock = shop.process(0)
    slow = shop.consumer("s", slow_client, "key-shared")
    shop.set(1000)
    shop.send(b"a", 950, b"k")
    returned = shop.send(b"returned", None, b"l")
    shop.send(b"b", 900, b"m")
    assert take(slow) == [b"returned"] and strays(slow) == [900, 950]
    slow.negative_acknowledge(returned, delay_ms=3_600_000)
    slow_clock.set_wall(T0 + 900)
    assert take(slow) == [b"b"]
    slow_clock.set_wall(T0 + 950)
    assert take(slow) == [b"a"]


def test_ids_with_index_and_plain_ones_together(shop: Shop) -> None:
    """Messages of a marker become due one by one."""
    shop.set(0)
    consumer = shop.consumer()
    inner = shop.commit((b"a", 300), (b"b", 100), (b"c", 200), (b"d", None))
    plain = shop.send(b"e", 100)
    assert take_ids(consumer) == [inner[3]]
    messages: list[list[MessageId]] = []
    for now in (100, 200, 300):
        shop.set(now)
        messages.append(take_ids(consumer))
    assert messages == [[inner[1], plain], [inner[2]], [inner[0]]]

"""One subscription name on several topics: fair turns, acknowledgements on each topic, patterns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.engine_kit import Bench, begin, kill, rows, send, send_txn
from txlog import Bound, Message, MessageId, MultiTopicsConsumer, messages
from txlog.engine.decide.consuming import lease
from txlog.engine.session.consuming import receive as receiving
from txlog.errors import (
    AlreadyClosed,
    ConsumerBusy,
    InvalidArgument,
    MessageNotFound,
    NotAllowed,
    PartitionUnavailable,
    SubscriptionNotFound,
    TopicNotFound,
    TransactionConflict,
)

pytestmark = pytest.mark.usefixtures("quick_disk")
NAMES = ["a", "b", "c"]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    new_bench = Bench(tmp_path / "store")
    for name in NAMES:
        new_bench.client.create_topic(name)
    yield new_bench
    new_bench.close()


def values_of(found_messages: list[Message]) -> list[bytes]:
    return sorted(message.value or b"" for message in found_messages)


def backlog(bench: Bench, topic: str) -> int:
    bench.client.flush()
    [row] = bench.client.subscriptions(topic)
    count: int = row["backlog"]
    return count


def test_every_topic_has_its_share_of_a_batch(bench: Bench) -> None:
    """A topic with many messages does not delay the others."""
    send(bench.client, *[b"%d" % n for n in range(100)], topic="a")
    for name in ("b", "c"):
        send(bench.client, b"x", b"y", topic=name)
    with bench.client.consumer(NAMES, "s", create=True) as consumer:
        first = Counter(consumer.receive_batch(9).column("topic").to_pylist())
        assert first == {"a": 5, "b": 2, "c": 2}
        counts = Counter(consumer.receive_batch(1000).column("topic").to_pylist())
        assert counts == {"a": 95}


@pytest.mark.parametrize("one_by_one", [True, False])
def test_turns_go_round(bench: Bench, one_by_one: bool) -> None:
    for name in NAMES:
        send(bench.client, *[b"%d" % n for n in range(4)], topic=name)
    with bench.client.consumer(NAMES, "s", create=True) as consumer:
        seen = []
        for _ in range(12):
            if one_by_one:
                message = consumer.receive()
            else:
                [message] = rows([consumer.receive_batch(1)])
            assert message is not None
            seen.append(message.topic)
        assert all(sorted(seen[at : at + 3]) == NAMES for at in range(0, 12, 3))
        assert consumer.receive() is None
        assert consumer.receive_batch().num_rows == 0


def test_partition_that_never_ends_does_not_keep_the_others_waiting(bench: Bench) -> None:
    bench.client.create_topic("t", partitions=2)
    send(bench.client, *[b"x"] * 20, topic="t")
    send(bench.client, b"y", topic="t", partition=1)
    with bench.client.consumer("t", "s", create=True) as consumer:
        found_rows = rows([consumer.receive_batch(5), consumer.receive_batch(5)])
        assert b"y" in [message.value for message in found_rows]


def test_acknowledgements_go_to_their_topic(bench: Bench) -> None:
    ids = {name: send(bench.client, b"1", b"2", b"3", b"4", topic=name) for name in NAMES}
    with bench.client.consumer(NAMES, "s", create=True) as consumer:
        table = consumer.receive_batch(3)
        assert consumer.acknowledge(table).acked == 3
        assert [backlog(bench, name) for name in NAMES] == [3, 3, 3]
        message = next(messages(consumer.receive_batch(1)))
        assert consumer.acknowledge(message).acked == 1
        assert consumer.acknowledge(ids["c"][3]).acked == 1
        assert consumer.acknowledge([ids["a"][3], ids["b"][3], ids["a"][2]]).acked == 3
        assert consumer.acknowledge_cumulative(ids["c"][2]).acked == 2
        assert [backlog(bench, name) for name in NAMES] == [0, 2, 0]


def test_plain_acknowledgement_of_all_topics_is_one_frame(bench: Bench) -> None:
    """When one topic refuses, no message of the other topics is acknowledged."""
    ids = [send(bench.client, b"1", b"2", topic=name) for name in NAMES]
    with bench.client.consumer(NAMES, "s", create=True) as consumer:
        table = consumer.receive_batch()
        with pytest.raises(MessageNotFound):
            consumer.acknowledge([ids[0][0], ids[1][0], MessageId(ids[2][0].ledger, 99)])
        assert [backlog(bench, name) for name in NAMES] == [2, 2, 2]
        lsn_before = bench.client.store.refresh()
        assert consumer.acknowledge(table).acked == 6
        bench.client.flush()
        assert bench.client.store.refresh() == lsn_before + 1
        assert [backlog(bench, name) for name in NAMES] == [0, 0, 0]


def test_holder_that_is_overdue_does_not_stop_an_acknowledgement(bench: Bench) -> None:
    ids = [send(bench.client, b"1", topic=name)[0] for name in NAMES]
    with bench.client.consumer(NAMES, "s", create=True) as consumer:
        table = consumer.receive_batch()
        bench.client.acknowledge("b", "s", [ids[1]], txn=begin(bench.client, timeout_ms=1000))
        bench.clock.advance(2000)
        assert consumer.acknowledge(table).acked == 3


def test_a_returned_message_comes_from_its_topic_again(bench: Bench) -> None:
    for name in NAMES:
        send(bench.client, b"1", topic=name)
    with bench.client.consumer(NAMES, "s", create=True) as consumer:
        found_rows = rows([consumer.receive_batch()])
        answer = consumer.negative_acknowledge(found_rows[:2])
        assert (answer.returned, answer.missed) == (2, 0)
        rows_again = rows([consumer.receive_batch()])
        assert {m.topic for m in rows_again} == {m.topic for m in found_rows[:2]}
        assert {m.redelivery_count for m in rows_again} == {1}
        assert consumer.redeliver_unacknowledged_messages().returned == 3


def test_a_transaction_acknowledges_on_all_or_none(bench: Bench) -> None:
    for name in NAMES:
        send(bench.client, b"1", topic=name)
    with bench.client.consumer(NAMES, "s", create=True) as consumer:
        table = consumer.receive_batch()
        with bench.client.transaction() as txn:
            assert consumer.acknowledge(table, txn=txn).acked == 3
        assert [backlog(bench, name) for name in NAMES] == [0, 0, 0]
        send(bench.client, b"2", topic="a")
        [message_id_again] = send(bench.client, b"2", topic="b")
        table = consumer.receive_batch()
        bench.client.acknowledge("b", "s", [message_id_again])
        with pytest.raises(TransactionConflict):
            consumer.acknowledge(table, txn=begin(bench.client))
        assert [backlog(bench, name) for name in NAMES] == [1, 0, 0]
        assert values_of(rows([consumer.receive_batch()])) == [b"2"]


def test_message_of_another_topic_is_not_found(bench: Bench) -> None:
    [other] = send(bench.client, b"1", topic="c")
    with bench.client.consumer(["a", "b"], "s", create=True) as consumer:
        with pytest.raises(MessageNotFound):
            consumer.acknowledge(other)
        with pytest.raises(MessageNotFound):
            consumer.acknowledge(Message(topic="c", partition=0, message_id=other, value=b""))


def test_topic_that_is_away_does_not_stop_the_others(bench: Bench) -> None:
    for name in NAMES:
        send(bench.client, b"1", topic=name)
    with bench.client.consumer(NAMES, "s", create=True) as consumer:
        bench.client.admin.set_offline("b/0")
        assert sorted(consumer.receive_batch().column("topic").to_pylist()) == ["a", "c"]
        with pytest.raises(PartitionUnavailable, match="b/0"):
            consumer.receive_batch()
        bench.client.admin.set_online("b/0")
        message = consumer.receive()
        assert message is not None
        assert message.topic == "b"


def test_open_takes_all_subscriptions_or_none(bench: Bench) -> None:
    for name in NAMES:
        bench.client.create_subscription(name, "s")
    with bench.another().consumer("c", "s"), pytest.raises(ConsumerBusy):
        bench.client.consumer(NAMES, "s")
    with bench.client.consumer(NAMES, "s") as consumer:
        assert consumer.topics == NAMES
    with pytest.raises(AlreadyClosed):
        consumer.receive()
    consumer.close()
    with pytest.raises(SubscriptionNotFound):
        bench.client.consumer(NAMES, "nobody")
    with pytest.raises(InvalidArgument):
        bench.client.consumer([], "s")


def test_available_and_last_ids_are_of_all_topics(bench: Bench) -> None:
    with bench.client.consumer(NAMES, "s", create=True) as consumer:
        assert not consumer.has_message_available()
        _, ids = send_txn(bench.client, b"1", b"2", topic="b")
        assert consumer.has_message_available()
        assert consumer.get_last_message_ids() == {"a": {0: None}, "b": {0: ids[1]}, "c": {0: None}}
        consumer.receive_batch()
        assert not consumer.has_message_available()
        consumer.redeliver_unacknowledged_messages()
        assert consumer.has_message_available()


def test_reconsume_later_is_of_the_right_topic(bench: Bench) -> None:
    [message_id] = send(bench.client, b"1", topic="b")
    with bench.client.consumer(NAMES, "s", create=True) as consumer:
        assert consumer.reconsume_later(message_id).topic == "b-s-RETRY"
    with bench.client.consumer(["b", "b-s-RETRY"], "s") as both:
        message = both.receive()
        assert message is not None
        assert (message.topic, message.value) == ("b-s-RETRY", b"1")


# --- positions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("position", "left"),
    [(None, [b"1", b"2"]), ("earliest", [b"1", b"2"]), ("latest", []), (Bound("last", 1), [b"2"])],
)
def test_consumer_makes_its_subscription_at_a_position(
    bench: Bench, position: Bound | str | None, left: list[bytes]
) -> None:
    send(bench.client, b"1", b"2", topic="a")
    for _ in range(2):  # an existing subscription keeps its position
        with bench.client.consumer("a", "s", create=True, position=position) as consumer:  # type: ignore[arg-type]
            assert values_of(rows([consumer.receive_batch()])) == left


def test_position_and_start_are_refused_where_they_mean_nothing(bench: Bench) -> None:
    bench.client.create_subscription("a", "s")
    with pytest.raises(InvalidArgument, match="create"):
        bench.client.consumer("a", "s", position="latest")
    with pytest.raises(InvalidArgument, match="durable"):
        bench.client.consumer("a", "s", start="latest")
    with pytest.raises(InvalidArgument, match="one topic"):
        bench.client.consumer(NAMES, "s", durable=False)
    with pytest.raises(NotAllowed):
        bench.client.consumer("a", "s", durable=False, create=True)


# --- patterns ----------------------------------------------------------------------------------


def of_pattern(bench: Bench, pattern: str, **options: bool) -> MultiTopicsConsumer:
    return bench.client.consumer(re.compile(pattern), "s", create=options.get("create", True))


def test_pattern_matches_whole_names_in_every_form(bench: Bench) -> None:
    bench.client.create_topic("x/y/a")
    bench.client.create_topic("aa")
    for pattern, names in (
        ("a", ["a"]),
        ("[ab]", ["a", "b"]),
        (".*a", ["a", "aa", "x/y/a"]),
        ("x/y/.*", ["x/y/a"]),
        ("public/default/a+", ["a", "aa"]),
        ("persistent://public/default/c", ["c"]),
        ("z", []),
    ):
        with of_pattern(bench, pattern) as consumer:
            assert consumer.topics == names


def test_topics_created_later_join_without_losing_messages(bench: Bench) -> None:
    """Even if subscriptions begin at the end, as the messages came after the consumer."""
    send(bench.client, b"old", topic="a")
    with bench.client.consumer(re.compile("a.*"), "s", create=True, position="latest") as consumer:
        assert consumer.receive() is None
        other = bench.another()
        other.create_topic("a2")
        send(other, b"1", b"2", topic="a2")
        other.create_topic("b2")
        assert values_of(rows([consumer.receive_batch()])) == [b"1", b"2"]
        assert consumer.topics == ["a", "a2"]
        other.create_topic("a3")
        send(other, b"3", topic="a3")
        message = consumer.receive()
        assert message is not None
        assert message.value == b"3"
        assert consumer.acknowledge(message).acked == 1


def test_pattern_leaves_topics_without_the_subscription(bench: Bench) -> None:
    bench.client.create_subscription("b", "s")
    send(bench.client, b"1", topic="a")
    with of_pattern(bench, ".*", create=False) as consumer:
        assert consumer.topics == ["b"]
        assert consumer.receive() is None
        bench.client.create_subscription("a", "s")
        message = consumer.receive()
        assert message is not None
        assert message.topic == "a"


def test_pattern_takes_a_busy_topic_once_it_is_free(bench: Bench) -> None:
    for name in NAMES:
        bench.client.create_subscription(name, "s")
        send(bench.client, b"1", topic=name)
    holder = bench.another().consumer("b", "s")
    with of_pattern(bench, "[ab]") as consumer:
        assert consumer.topics == ["a"]
        assert values_of(rows([consumer.receive_batch()])) == [b"1"]
        assert consumer.receive() is None
        holder.close()
        message = consumer.receive()
        assert message is not None
        assert message.topic == "b"


def test_pattern_never_takes_what_was_given_up(bench: Bench) -> None:
    bench.client.create_topic("a-s-DLQ")
    bench.client.create_topic("a-other-DLQ")
    with of_pattern(bench, "a.*") as consumer:
        assert consumer.topics == ["a", "a-other-DLQ"]


def test_pattern_leaves_topics_that_are_deleted(bench: Bench) -> None:
    """Also a topic that is created anew with its name between two polls."""
    for name in NAMES:
        send(bench.client, b"1", topic=name)
    with of_pattern(bench, "[ab]") as consumer:
        other = bench.another()
        other.admin.delete_topic("b", force=True)
        assert [m.topic for m in rows([consumer.receive_batch()])] == ["a"]
        assert consumer.receive() is None
        assert consumer.topics == ["a"]
        other.create_topic("b")
        send(other, b"2", topic="b")
        assert values_of(rows([consumer.receive_batch()])) == [b"2"]
        other.admin.delete_topic("b", force=True)
        other.create_topic("b")
        send(other, b"3", topic="b")
        assert values_of(rows([consumer.receive_batch(), consumer.receive_batch()])) == [b"3"]


def test_list_says_that_a_topic_was_deleted(bench: Bench) -> None:
    send(bench.client, b"1", topic="a")
    with bench.client.consumer(["a", "b"], "s", create=True) as consumer:
        bench.another().admin.delete_topic("b", force=True)
        assert values_of(rows([consumer.receive_batch()])) == [b"1"]
        with pytest.raises((TopicNotFound, SubscriptionNotFound), match="deleted"):
            consumer.receive_batch()


def test_added_partitions_are_received_from(bench: Bench) -> None:
    with bench.client.consumer(["a", "b"], "s", create=True) as consumer:
        bench.client.admin.update_topic("a", partitions=3)
        send(bench.client, b"new", topic="a", partition=2)
        assert values_of(rows([consumer.receive_batch()])) == [b"new"]
        assert consumer.get_last_message_ids()["a"].keys() == {0, 1, 2}
        bench.client.admin.update_topic("b", partitions=2)
        assert not consumer.has_message_available()
        send(bench.client, b"more", topic="b", partition=1)
        assert consumer.has_message_available()
        assert consumer.get_last_message_ids()["b"].keys() == {0, 1}
        reader = bench.client.reader("a")
        bench.client.admin.update_topic("a", partitions=4)
        assert reader.get_last_message_ids().keys() == {0, 1, 2, 3}


class Looks:
    """Counts how often a consumer looks at its partitions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = lease.receive

        def counted(*arguments: Any) -> Any:
            self.count += 1
            return real(*arguments)

        monkeypatch.setattr(receiving, "receive", counted)

    def during(self, receive: Callable[[], Any]) -> tuple[int, list[bytes]]:
        """(looks during the call, values received)."""
        count_before, table = self.count, receive()
        return self.count - count_before, table.column("value").to_pylist()


@pytest.mark.parametrize("wanted", ["t0", re.compile("t.*")])
def test_a_waiting_consumer_looks_only_after_a_write_or_when_a_message_is_due(
    bench: Bench, wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle receive without a new or due message looks at no partition of any topic."""
    other = bench.another()
    for number in range(5):
        other.create_topic(f"t{number}", partitions=3)
        other.create_subscription(f"t{number}", "s", type="shared")
    looks = Looks(monkeypatch)
    with bench.client.consumer(wanted, "s", type="shared") as consumer:
        receive = partial(consumer.receive_batch, timeout_ms=0)
        for _ in range(3):
            receive()
        for _ in range(4):
            assert looks.during(receive) == (0, [])
        other.producer("t0").send(b"new")
        count, message = looks.during(receive)
        assert count > 0
        assert message == [b"new"]
        consumer.acknowledge(consumer.receive_batch(timeout_ms=0))
        bench.clock.advance(receiving.STILL_MS)
        assert looks.during(receive)[0] > 0  # changes that only the clock decides
        other.producer("t0").send(b"late", deliver_after=300)
        for _ in range(3):
            assert looks.during(receive)[1] == []
        bench.clock.advance(299)
        assert looks.during(receive)[1] == []
        bench.clock.advance(1)
        assert looks.during(receive)[1] == [b"late"]


def test_a_consumer_checks_its_peers_at_each_turn(bench: Bench) -> None:
    """The next receive returns the messages of a dead peer, though no frame records its death."""
    bench.client.create_topic("t")
    bench.client.create_subscription("t", "s", type="shared")
    other = bench.another()
    bench.client.producer("t").send(b"m")
    peer = other.consumer("t", "s", type="shared")
    assert peer.receive_batch(timeout_ms=0).num_rows == 1
    with bench.client.consumer("t", "s", type="shared") as consumer:
        for _ in range(3):
            assert consumer.receive_batch(timeout_ms=0).num_rows == 0
        kill(peer)
        assert consumer.receive_batch(timeout_ms=0).column("value").to_pylist() == [b"m"]


def test_a_consumer_of_several_topics_can_do_what_one_can(bench: Bench) -> None:
    """seek, acknowledge_async, get_last_message_id, unsubscribe: one topic after another."""
    client = bench.client
    for name in ("one", "two"):
        client.create_topic(name)
    first = [client.producer(name).send(name.encode()).message_id for name in ("one", "two")]
    consumer = client.consumer(["one", "two"], "m", create=True)
    with pytest.raises(NotAllowed):
        consumer.get_last_message_id()
    with client.consumer(["one"], "n", create=True) as single:
        assert single.get_last_message_id() == first[0]
    table = consumer.receive_batch()
    with client.transaction() as txn:
        later = consumer.acknowledge_async(table, txn=txn)
    assert later.result().acked == 2
    assert not consumer.has_message_available()
    consumer.seek("earliest")
    assert sorted(consumer.receive_batch()["value"].to_pylist()) == [b"one", b"two"]
    consumer.acknowledge([message for message in first if message is not None])
    assert first[1] is not None
    consumer.seek(first[1])
    assert consumer.receive_batch()["value"].to_pylist() == [b"two"]
    consumer.unsubscribe()
    assert [row["subscription"] for row in client.subscriptions()] == ["n"]
    with pytest.raises(AlreadyClosed):
        consumer.receive()


def test_one_in_memory_can_seek(bench: Bench) -> None:
    """A seek forgets the acknowledgements in memory; unsubscribe is close."""
    client = bench.client
    client.create_topic("one")
    sent = [client.producer("one").send(value).message_id for value in (b"1", b"2")]
    consumer = client.consumer("one", "glance", durable=False)
    assert [m.value for m in iter(consumer.receive, None)] == [b"1", b"2"]
    consumer.acknowledge([message_id for message_id in sent if message_id is not None])
    assert sent[1] is not None
    consumer.seek(sent[1])
    assert [m.value for m in iter(consumer.receive, None)] == [b"2"]
    consumer.unsubscribe()
    with pytest.raises(AlreadyClosed):
        consumer.receive()

"""Promoting and cancelling delayed messages. Source: spec/delayed 1, 9, 11."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.delayed.looking_kit import listed_ids, partition_number, seal
from tests.delayed.test_looking import later
from tests.engine_kit import START_MS, Bench, begin, ids, send
from tests.tiers import graded
from txlog import Client, MessageId, TxnId
from txlog.engine.model.ops import Run
from txlog.engine.view import View
from txlog.errors import (
    InvalidArgument,
    MessageNotFound,
    NotAllowed,
    PartitionUnavailable,
    SubscriptionNotFound,
)

pytestmark = pytest.mark.usefixtures("quick_disk")


def bench_of(folder: Path, partitions: int = 1, **settings: int) -> Bench:
    """A topic with a subscription of each type."""
    bench = Bench(folder / "store", coordinators=1, **settings)
    bench.client.create_topic("t", partitions)
    for name in ("shared", "key-shared", "exclusive", "failover"):
        bench.client.create_subscription("t", name, type=name)
    return bench


def released(client: Client, name: str, partition: int = 0) -> list[MessageId]:
    """The ids that a subscription gets regardless of their times."""
    number = partition_number(client, partition)

    def look(view: View) -> list[Run]:
        subscriptions = next(
            subscription
            for subscription in view.catalog.subscriptions.values()
            if subscription.name == name
        )
        return view.cursor(subscriptions.number, number).released.runs()

    return [
        MessageId(ledger, entry, index)
        for ledger, first, last, index_first, index_last in client.store.read(look)
        for entry in range(first, last + 1)
        for index in range(index_first, index_last + 1)
    ]


def test_promoted_messages_are_released_where_they_wait(tmp_path: Path) -> None:
    """Without a name, on every shared and key-shared subscription; later messages still wait."""
    bench = bench_of(tmp_path)
    client = bench.client
    a, b, c = later(client, 300, 100, 200)
    answer = client.topic("t").promote([a, c])
    assert answer == {
        "topic": "t",
        "subscription": None,
        "promoted": 2,
        "not_delayed": 0,
        "first_at": START_MS + 200,
        "last_at": START_MS + 300,
    }
    for name in ("shared", "key-shared"):
        assert released(client, name) == [a, c]
    for name in ("exclusive", "failover"):
        assert released(client, name) == []
    (late,) = later(client, 50)
    assert client.topic("t").promote(all=True, subscription="shared")["promoted"] == 2
    assert released(client, "shared") == [a, b, c, late]
    assert released(client, "key-shared") == [a, c]
    client.checkpoint()
    assert released(bench.reopen(), "shared") == [a, b, c, late]


@pytest.mark.parametrize("name", ["shared", "key-shared"])
@pytest.mark.parametrize("sealed", [False, True])
def test_a_promoted_message_is_delivered_at_once(tmp_path: Path, name: str, sealed: bool) -> None:
    """Also to a consumer that has passed it; later messages wait, and it does not come twice."""
    bench = bench_of(tmp_path)
    client = bench.client
    a, b, c = later(client, 300, 100, 200)
    (now,) = send(client, b"now")
    if sealed:
        seal(client, 0, 3)
    with client.consumer("t", name) as consumer:
        assert listed_ids(consumer.receive_batch(10)) == [now]
        assert consumer.receive_batch(10).num_rows == 0
        client.topic("t").promote([c, a])
        assert listed_ids(consumer.receive_batch(10)) == [a, c]
        assert consumer.receive_batch(10).num_rows == 0
        bench.clock.advance(100)
        assert listed_ids(consumer.receive_batch(10)) == [b]
        bench.clock.advance(1000)
        assert consumer.receive_batch(10).num_rows == 0
        consumer.acknowledge([now, a, b, c])
    assert bench.reopen().subscription("t", name).describe()["backlog"] == 0


def test_a_cancelled_message_never_comes(tmp_path: Path) -> None:
    """Whether it is cancelled before or after the position of the consumer."""
    bench = bench_of(tmp_path)
    client = bench.client
    a, b, c = later(client, 100, 200, 300)
    with client.consumer("t", "shared") as consumer:
        assert consumer.receive_batch(10).num_rows == 0
        client.topic("t").cancel([a], subscription="shared")
        (d,) = later(client, 400)
        client.topic("t").cancel([c, d])
        bench.clock.advance(1000)
        assert listed_ids(consumer.receive_batch(10)) == [b]
        assert consumer.receive_batch(10).num_rows == 0


def test_messages_before_an_instant_are_promoted(tmp_path: Path) -> None:
    """Also from buckets; a message at the instant itself is left out."""
    client = bench_of(tmp_path).client
    sent = later(client, 500, 100, 300, 300, 900, 200)
    seal(client, 0, 4)
    handle = client.topic("t")
    assert handle.promote(before=START_MS + 300, subscription="shared")["promoted"] == 2
    assert released(client, "shared") == [sent[1], sent[5]]
    assert handle.promote(before=START_MS + 301, subscription="shared")["promoted"] == 2
    assert handle.promote(before=START_MS + 301, subscription="shared")["promoted"] == 0
    assert released(client, "shared") == [sent[1], *sent[2:4], sent[5]]


def test_messages_of_a_transaction_one_by_one_and_by_their_marker(tmp_path: Path) -> None:
    client = bench_of(tmp_path).client
    with client.transaction() as txn:
        for delay_ms in (None, 100, 200, -5):
            at = None if delay_ms is None else START_MS + delay_ms
            client.producer("t").send(b"x", deliver_at=at, txn=txn)
    message_ids = ids(client)
    marker = MessageId(message_ids[0].ledger, message_ids[0].entry)
    handle = client.topic("t")
    assert handle.promote([message_ids[2]], subscription="shared")["promoted"] == 1
    assert released(client, "shared") == [message_ids[2]]
    answer = handle.promote([marker], subscription="key-shared")
    assert (answer["promoted"], answer["not_delayed"]) == (2, 2)
    assert released(client, "key-shared") == message_ids[1:3]
    assert handle.cancel([marker])["cancelled"] == 2
    assert released(client, "shared") == released(client, "key-shared") == []
    assert client.subscriptions("t")[0]["backlog"] == 2


def test_named_messages_that_are_not_delayed_are_left_alone(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    client = bench.client
    (now,) = send(client, b"now")
    due, waits = later(client, 100, 200)
    bench.clock.advance(100)
    handle = client.topic("t")
    for answer in (handle.promote([now, due]), handle.cancel([now, due])):
        assert answer["not_delayed"] == 2
        assert answer.get("promoted", answer.get("cancelled")) == 0
    assert handle.cancel([now, due, waits, waits])["cancelled"] == 1
    assert {row["backlog"] for row in client.subscriptions("t")} == {2}


def test_a_repeat_counts_only_for_ids_that_are_given(tmp_path: Path) -> None:
    client = bench_of(tmp_path).client
    a, b = later(client, 100, 200)
    handle = client.topic("t")
    assert handle.cancel([a])["cancelled"] == 1
    assert handle.cancel([a, b])["cancelled"] == 2
    assert handle.cancel([a, b])["cancelled"] == 2
    assert handle.promote([a, b])["promoted"] == 2
    assert handle.promote(all=True)["promoted"] == handle.cancel(all=True)["cancelled"] == 0
    assert released(client, "shared") == []


def test_cancelling_is_an_acknowledgement(tmp_path: Path) -> None:
    """On every type; mark-delete moves, and no message comes back."""
    bench = bench_of(tmp_path)
    client = bench.client
    a, b, c = later(client, 300, 100, 200)
    handle = client.topic("t")
    assert handle.cancel(before=START_MS + 250, subscription="exclusive")["cancelled"] == 2
    assert listed_ids(handle.delayed("exclusive")) == [a]
    assert listed_ids(handle.delayed("shared")) == [b, c, a]
    assert handle.cancel(all=True)["cancelled"] == 3
    for row in client.subscriptions("t"):
        assert (row["backlog"], row["delayed"], row["mark_delete"]) == (0, 0, c)
    bench.clock.advance(1000)
    with client.consumer("t", "shared") as consumer:
        assert consumer.receive_batch(10).num_rows == 0


def test_a_leased_message_is_not_released_again(tmp_path: Path) -> None:
    """A lease clears the released state of its message; the end of the lease restores it."""
    client = bench_of(tmp_path).client
    sent = later(client, 100, 200)
    handle = client.topic("t")
    handle.promote(sent[:1], subscription="shared")
    with client.consumer("t", "shared") as consumer:
        got = consumer.receive_batch(1)
        assert listed_ids(got) == sent[:1]
        assert released(client, "shared") == []
        assert handle.promote(all=True, subscription="shared")["promoted"] == 1
        assert released(client, "shared") == sent[1:]
    assert released(client, "shared") == sent


@pytest.mark.parametrize("verb", ["promote", "cancel"])
def test_a_refusal_changes_nothing(tmp_path: Path, verb: str) -> None:
    """Spec 11: unknown, trimmed, uncommitted, from another topic; a transaction holds one
    of them.
    """
    bench = bench_of(tmp_path, ledger_entries_max=2)
    client = bench.client
    client.create_topic("other")
    (strange,) = send(client, b"x", topic="other")
    sent = later(client, 100, 200, 300, 400)
    marker_to_be = MessageId(sent[-1].ledger, sent[-1].entry + 1, 1)
    open_one = begin(client)
    client.producer("t").send(b"x", deliver_at=START_MS + 500, txn=open_one)
    act: Callable[..., dict[str, object]] = getattr(client.topic("t"), verb)
    for wrong in (strange, marker_to_be, MessageId(99, 0), MessageId(sent[0].ledger, 0, 1)):
        with pytest.raises(MessageNotFound):
            act([*sent[1:], wrong])
    holder = begin(client)
    client.acknowledge("t", "shared", [sent[1]], txn=holder)
    with pytest.raises(NotAllowed, match=str(holder)) as refused:
        act([sent[0], sent[1]])
    assert refused.value.fields["txn"] == holder
    with pytest.raises(SubscriptionNotFound):
        act(sent, subscription="nobody")
    for options in ({}, {"before": 5, "all": True}):
        with pytest.raises(InvalidArgument):
            act(**options)
    assert released(client, "shared") == []
    assert {row["backlog"] for row in client.subscriptions("t")} == {4}
    assert act(all=True)[f"{verb}d" if verb == "promote" else "cancelled"] == 4
    client.abort(holder)
    remaining = listed_ids(client.topic("t").delayed("shared"))
    assert remaining == (sent if verb == "promote" else [sent[1]])


@pytest.mark.parametrize("name", ["exclusive", "failover"])
def test_promoting_where_nothing_waits_is_not_allowed(tmp_path: Path, name: str) -> None:
    client = bench_of(tmp_path).client
    sent = later(client, 100)
    with pytest.raises(NotAllowed, match=name):
        client.topic("t").promote(sent, subscription=name)
    assert client.topic("t").cancel(sent, subscription=name)["cancelled"] == 1


def test_a_holder_that_is_overdue_is_no_holder(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    client = bench.client
    sent = later(client, 1_000_000)
    holder: TxnId = begin(client, 10_000)
    client.acknowledge("t", "shared", sent, txn=holder)
    bench.clock.advance(10_001)
    assert bench.another().topic("t").promote(sent)["promoted"] == 1


def test_a_partition_that_is_away(tmp_path: Path) -> None:
    client = bench_of(tmp_path, 2).client
    a = later(client, 100, partition=0)
    b = later(client, 100, partition=1)
    client.admin.set_offline("t", 1)
    handle = client.topic("t")
    with pytest.raises(PartitionUnavailable):
        handle.promote(all=True)
    with pytest.raises(PartitionUnavailable):
        handle.cancel([*a, *b])
    assert client.topic("t/0").promote(all=True)["promoted"] == 1
    client.admin.set_online("t", 1)
    with pytest.raises(MessageNotFound):
        client.topic("t/0").promote(b)


def test_a_rehearsal_changes_no_byte(tmp_path: Path) -> None:
    client = bench_of(tmp_path).client
    sent = later(client, 100, 200)
    journal_before = client.status()["journal"]
    assert client.topic("t").promote(sent, dry_run=True)["promoted"] == 2
    assert client.topic("t").cancel(all=True, dry_run=True)["cancelled"] == 2
    assert client.status()["journal"] == journal_before


def test_without_subscriptions_there_is_nothing_to_do(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store")
    bench.client.create_topic("t")
    sent = later(bench.client, 100)
    assert bench.client.topic("t").promote(sent)["promoted"] == 0
    assert bench.client.topic("t").cancel(all=True)["cancelled"] == 0


@pytest.mark.parametrize("seed", graded(range(4), 0))
def test_every_subscription_is_changed_alike(tmp_path: Path, seed: int) -> None:
    """Promoting or cancelling affects exactly the chosen messages, however the cursor
    stores them.
    """
    print("seed", seed)
    chance = random.Random(seed)
    bench = bench_of(tmp_path, 2, ledger_entries_max=5)
    client = bench.client
    acknowledged: dict[str, set[MessageId]] = {
        "shared": set(),
        "key-shared": set(),
        "exclusive": set(),
    }
    for _ in range(12):
        for partition in (0, 1):
            delays = [chance.randrange(1, 9000) for _ in range(3)]
            later(client, *delays, partition=partition)
            if chance.random() < 0.5:
                seal(client, partition, chance.randrange(1, 6))
        everyone = listed_ids(client.topic("t").delayed())
        name = chance.choice([*acknowledged])
        sample = chance.sample(everyone, min(len(everyone), 3))
        limit = bench.clock.now().wall_ms + chance.randrange(3000)
        early = listed_ids(client.topic("t").delayed(before=limit))
        if chance.random() < 0.5:
            client.topic("t").cancel(sample, subscription=name)
            acknowledged[name] |= {*sample}
        else:
            cancelled = client.topic("t").cancel(before=limit)["cancelled"]
            assert cancelled == sum(
                any(
                    i not in message_ids
                    for message_ids in [
                        *acknowledged.values(),
                        acknowledged.setdefault("failover", set()),
                    ]
                )
                for i in early
            )
            for message_ids in acknowledged.values():
                message_ids |= {*early}
        for subscription_type, message_ids in acknowledged.items():
            remaining_ids = [message_id for message_id in everyone if message_id not in message_ids]
            assert listed_ids(client.topic("t").delayed(subscription_type)) == remaining_ids
        bench.clock.advance(chance.randrange(500))

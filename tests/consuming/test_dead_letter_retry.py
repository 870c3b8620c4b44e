"""Dead letters go back to their topics: once, as they were, to the subscription they came from."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import txlog
from tests.consuming.test_dead_letters import abort, receive, set_policies, unacked
from tests.engine_kit import Bench, begin, pending, read, send, send_txn, values
from tests.harness import python, run
from txlog import Client, MessageId
from txlog.engine.plan.reading.dispatch import fetch
from txlog.engine.session.consuming import dead_letters
from txlog.errors import InvalidArgument, MessageNotFound, PartitionUnavailable, TopicNotFound

pytestmark = [pytest.mark.usefixtures("quick_disk"), pytest.mark.store({"t": 2}, [("t", "s")])]
DLQ = "t-s-DLQ"


def bury(client: Client, *message_ids: MessageId) -> None:
    """Make messages dead letters of subscription s."""
    set_policies(client, max_redeliver_count=0)
    abort(client, *message_ids)
    taken = [message.message_id for message in receive(client)]
    assert not {*taken} & {*message_ids}


def retry(client: Client, *message_ids: MessageId, **options: object) -> tuple[int, list[str]]:
    """Retry dead letters; how many moved, and why others stay."""
    how = options or ({} if message_ids else {"all": True})
    answer = client.topic(DLQ).retry_dead_letters(list(message_ids) or None, **how)  # type: ignore[arg-type]
    assert answer["left"] == sum(row["messages"] for row in answer["left_list"])
    return answer["retried"], [row["reason"] for row in answer["left_list"]]


def test_dead_letter_goes_back_as_it_was_and_is_no_longer_listed(bench: Bench) -> None:
    client = bench.client
    sent = client.producer("t").send(
        b"v", key=b"k", properties={"a": "1"}, event_time=5, deliver_at=7
    )
    assert sent.message_id is not None
    bury(client, sent.message_id)
    [letter] = client.topic(DLQ).dead_letters()
    [row] = client.dead_letters()
    assert (row["topic"], row["origin_list"], row["messages"]) == (DLQ, ["t/s"], 1)
    assert (letter["origin_topic"], letter["subscription"]) == ("t", "s")
    assert letter["origin_id"] == str(sent.message_id)
    assert (letter["reason"], letter["redeliveries"]) == ("redelivered 1 time", 1)
    assert (letter["key"], letter["preview"], letter["retries"]) == ("k", "v", 0)
    assert retry(client, letter["message_id"]) == (1, [])
    assert client.topic(DLQ).dead_letters() == []
    assert [(row["messages"], row["retried"]) for row in client.dead_letters()] == [(0, 1)]
    [message] = receive(client)
    assert (message.value, message.key, message.event_time) == (b"v", b"k", 5)
    assert message.properties == {"a": "1", "DLQ_RETRIES": "1"}
    assert (message.producer, message.sequence_id, message.deliver_at) == (None, None, None)
    assert (message.redelivery_count, message.partition) == (0, sent.partition)


def test_avro_value_goes_back_with_the_schema_that_wrote_it(bench: Bench) -> None:
    """Also if the topic has a newer one; a forged text or another schema makes bytes of it."""
    client = bench.client
    record = '{"type":"record","name":"Order","fields":[%s]}'
    first = txlog.Schema("avro", record % '{"name":"who","type":"string"}')
    more = '{"name":"who","type":"string"},{"name":"n","type":"long","default":7}'
    client.topic("t").schemas.add(first)
    sent = client.producer("t").send(b"\x06ana")
    assert sent.message_id is not None
    bury(client, sent.message_id)
    client.topic("t").schemas.add(txlog.Schema("avro", record % more))
    [letter] = client.reader(DLQ)
    for value in (b"\x06anaX", None):
        client.producer(DLQ).send(value, properties=letter.properties)
    client.producer(DLQ).send(
        b"\x06ana", properties={**(letter.properties or {}), "REAL_SCHEMA": "of another"}
    )
    assert retry(client) == (4, [])
    back = [m for m in client.reader("t") if m.message_id != sent.message_id]
    assert [(message.value, message.schema_version) for message in back] == [
        (b"\x06ana", 1), (b"\x06anaX", None), (None, None), (b"\x06ana", None),
    ]  # fmt: skip
    assert back[0].decode() == {"who": "ana", "n": 7}
    assert {*(back[0].properties or {})} == {"DLQ_RETRIES"}


def test_messages_without_key_go_to_the_partition_that_they_came_from(bench: Bench) -> None:
    sent = [*send(bench.client, b"0"), *send(bench.client, b"1", partition=1)]
    bury(bench.client, *sent)
    assert retry(bench.client) == (2, [])
    assert sorted((m.value, m.partition) for m in receive(bench.client)) == [(b"0", 0), (b"1", 1)]


def test_only_the_subscription_that_gave_it_up_gets_it_again(bench: Bench) -> None:
    client = bench.client
    client.create_subscription("t", "other")
    sent = [*send(client, b"1"), *send_txn(client, b"2", b"3")[1]]
    with client.consumer("t", "other") as consumer:
        while message := consumer.receive():
            consumer.acknowledge(message)
    bury(client, *sent)
    assert retry(client, count=2) == (2, [])
    assert unacked(client) == [b"1", b"2"]
    client.flush()
    other = {row["subscription"]: row["backlog"] for row in client.subscriptions("t")}
    assert other == {"s": 2, "other": 0}
    assert retry(client, all=True, all_subscriptions=True) == (1, [])
    other = {row["subscription"]: row["backlog"] for row in client.subscriptions("t")}
    assert other == {"s": 3, "other": 1}
    send(client, b"4")
    with client.consumer("t", "other") as consumer:
        assert [m.value for m in iter(consumer.receive, None)] == [b"3", b"4"]


def test_message_that_fails_again_is_a_dead_letter_again_with_a_count(bench: Bench) -> None:
    client = bench.client
    bury(client, *send(client, b"x"))
    for times in (1, 2):
        assert retry(client) == (1, [])
        [again] = pending(client)
        assert again.message_id is not None
        bury(client, again.message_id)
        [letter] = client.topic(DLQ).dead_letters()
        assert (letter["retries"], letter["preview"]) == (times, "x")
    assert len(read(client, DLQ)) == 3


def test_second_retry_of_a_message_moves_nothing(bench: Bench) -> None:
    client, other = bench.client, bench.another()
    bury(client, *send(client, b"x"))
    [letter] = client.topic(DLQ).dead_letters()
    assert retry(client, letter["message_id"]) == (1, [])
    assert retry(other, letter["message_id"]) == (0, ["acknowledged already"])
    assert retry(other) == (0, [])
    assert values(client) == [b"x", b"x"]


def test_message_in_the_hand_of_a_consumer_or_a_transaction_stays(bench: Bench) -> None:
    """A consumer of any subscription of the dead-letter topic may be about to move it itself."""
    client = bench.client
    bury(client, *send(client, b"x", b"y"))
    client.create_subscription(DLQ, "alerts", type="shared")
    with client.consumer(DLQ, "alerts", receiver_queue_size=0) as consumer:
        assert consumer.receive() is not None
        held = ["in the hand of a consumer or a transaction"]
        assert retry(client) == (1, held)
    second = begin(client)
    [letter] = client.topic(DLQ).dead_letters()
    client.acknowledge(DLQ, "alerts", [letter["message_id"]], txn=second)
    assert retry(client) == (0, held)
    client.abort(second)
    assert retry(client) == (1, [])
    client.flush()
    assert {row["backlog"] for row in client.subscriptions(DLQ)} == {0}


def test_message_of_a_consumer_that_was_killed_goes_back(bench: Bench) -> None:
    """No other consumer may come there that would take it from the dead one."""
    client = bench.client
    bury(client, *send(client, b"a", b"b"))
    client.create_subscription(DLQ, "alerts", type="shared")
    run(python("dead_consumer", bench.path, DLQ, "alerts"), code=7)
    assert retry(client) == (2, [])
    client.flush()
    assert {row["backlog"] for row in client.subscriptions(DLQ)} == {0}
    with client.consumer(DLQ, "alerts") as consumer:
        assert consumer.receive() is None


def test_key_and_rehearsal(bench: Bench) -> None:
    client = bench.client
    producer = client.producer("t")
    sent = [producer.send(b"v", key=key).message_id for key in (b"a", b"b", b"a")]
    bury(client, *(row for row in sent if row is not None))
    assert retry(client, key="a", dry_run=True) == (2, [])
    assert [row["subscription"] for row in client.subscriptions(DLQ)] == []
    assert retry(client, key="a") == (2, [])
    assert [row["key"] for row in client.topic(DLQ).dead_letters()] == ["b"]
    assert len(client.topic(DLQ).dead_letters(limit=0)) == 0


def test_what_cannot_go_back_stays_and_says_why(bench: Bench) -> None:
    client = bench.client
    client.create_topic("u")
    client.create_subscription("u", "gone")
    client.create_topic(DLQ)
    producer = client.producer(DLQ)
    producer.send(b"1")
    producer.send(b"2", properties={"REAL_TOPIC": "\x1b[2J", "REAL_SUBSCRIPTION": "s"})
    producer.send(b"3", properties={"REAL_TOPIC": "u", "REAL_SUBSCRIPTION": "gone"})
    producer.send(b"4", properties={"REAL_TOPIC": "deleted", "REAL_SUBSCRIPTION": "s"})
    producer.send(b"5", properties={"REAL_TOPIC": "t", "REAL_SUBSCRIPTION": "s"})
    client.subscription("u", "gone").delete()
    moved, reasons = retry(client)
    assert moved == 1
    assert reasons == [
        "its properties name no topic and subscription",
        "subscription gone of u was deleted",
        "topic deleted was deleted",
    ]
    assert retry(client, all=True, all_subscriptions=True)[0] == 1
    assert (values(client), values(client, "u")) == ([b"5"], [b"3"])


def test_partition_that_went_offline_after_its_letters_were_read_is_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No acknowledgement goes to a partition that is unavailable."""
    from txlog.engine.session.consuming import dead_letter_retry

    bury(bench.client, *send(bench.client, b"x"))

    def reads_and_goes(*arguments: Any) -> pa.Table:
        table = fetch(*arguments)
        bench.another().admin.set_offline(DLQ)
        return table

    monkeypatch.setattr(dead_letter_retry, "fetch", reads_and_goes)
    with pytest.raises(PartitionUnavailable):
        retry(bench.client)
    bench.client.admin.set_online(DLQ)
    assert len(bench.client.topic(DLQ).dead_letters()) == 1


@pytest.mark.parametrize("options", [{}, {"all": True, "ids": []}, {"count": 0}])
def test_selection_must_be_one(bench: Bench, options: dict[str, object]) -> None:
    bench.client.create_topic(DLQ)
    with pytest.raises(InvalidArgument):
        bench.client.topic(DLQ).retry_dead_letters(**options)  # type: ignore[arg-type]


def test_unknown_id_and_topic_are_refused(bench: Bench) -> None:
    bury(bench.client, *send(bench.client, b"x"))
    with pytest.raises(MessageNotFound):
        retry(bench.client, MessageId(99, 0))
    with pytest.raises(TopicNotFound):
        bench.client.topic("nothing")


def test_large_message_goes_back_in_chunks(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only to all subscriptions at once, as no frame can acknowledge what is still invisible."""
    from txlog.engine.session.consuming import dead_letter_retry

    for module in (dead_letters, dead_letter_retry):
        monkeypatch.setattr(module, "FRAME_BYTES_MOST", 2000)
    client = bench.client
    client.admin.set_setting("max_message_bytes", 1000)
    client = bench.another()
    sent = client.producer("t", chunking=True).send(b"large" * 700)
    assert sent.message_id is not None
    bury(client, sent.message_id)
    client.create_subscription("t", "other")
    moved, [reason] = retry(client)
    assert (moved, reason.split(":")[0]) == (0, "too large for one frame")
    assert retry(client, all=True, all_subscriptions=True) == (1, [])
    assert [m.value for m in receive(client)] == [b"large" * 700]
    assert client.topic(DLQ).dead_letters() == []


def test_an_ordinary_topic_gets_no_subscription(txlog_client: Client) -> None:
    """Kills: a subscription without a consumer, whose backlog keeps the messages of the topic."""
    txlog_client.create_topic("plain")
    txlog_client.producer("plain").send(b"x")
    answer = txlog_client.topic("plain").retry_dead_letters(all=True)
    assert (answer["retried"], answer["left"]) == (0, 1)
    assert txlog_client.subscriptions("plain") == []
    assert txlog_client.dead_letters() == []


def test_a_count_goes_past_letters_that_stay(bench: Bench) -> None:
    """Kills: a count that letters without an origin use up."""
    client = bench.client
    client.create_topic(DLQ)
    producer = client.producer(DLQ)
    for _ in range(3):
        producer.send(b"no origin")
    producer.send(b"5", properties={"REAL_TOPIC": "t", "REAL_SUBSCRIPTION": "s"})
    assert retry(client, count=1) == (1, ["its properties name no topic and subscription"])
    assert values(client) == [b"5"]

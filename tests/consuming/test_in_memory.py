"""A subscription in memory: its acknowledgements and redeliveries, without any write."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine_kit import START_MS, Bench, begin, rows, send, send_txn
from txlog import Bound, Message, MessageId, NonDurableConsumer, messages
from txlog.errors import AlreadyClosed, InvalidArgument, MessageNotFound, NotAllowed, TopicNotFound

pytestmark = [pytest.mark.usefixtures("quick_disk"), pytest.mark.store({"t": 2})]


def opened(bench: Bench, start: Bound | MessageId | str | int | None = None) -> NonDurableConsumer:
    return bench.client.consumer("t", "s", durable=False, start=start)  # type: ignore[arg-type]


def taken(consumer: NonDurableConsumer) -> list[tuple[bytes | None, int | None]]:
    found_rows: list[Message] = rows([consumer.receive_batch()])
    return [(message.value, message.redelivery_count) for message in found_rows]


def test_receives_from_its_start_and_writes_nothing(bench: Bench) -> None:
    ids = send(bench.client, b"1", b"2", b"3")
    seen = bench.client.store.refresh()
    for start, remaining in (
        (None, 3),
        ("latest", 0),
        (ids[1], 2),
        (Bound("last", 1), 1),
        (START_MS + 1, 0),
    ):
        with opened(bench, start) as consumer:
            assert len(taken(consumer)) == remaining
            assert taken(consumer) == []
    assert bench.client.subscriptions("t") == []
    assert bench.client.store.refresh() == seen


def test_two_do_not_know_of_one_another(bench: Bench) -> None:
    send(bench.client, b"1")
    with opened(bench) as first, opened(bench) as second:
        assert first.acknowledge(first.receive_batch()).acked == 1
        assert taken(second) == [(b"1", 0)]


def test_returned_messages_come_again_before_new_ones(bench: Bench) -> None:
    send(bench.client, b"1", b"2", b"3")
    with opened(bench) as consumer:
        table = consumer.receive_batch(2)
        consumer.negative_acknowledge(table)
        assert taken(consumer) == [(b"1", 1), (b"2", 1), (b"3", 0)]
        assert taken(consumer) == []


def test_limit_applies_to_redeliveries(bench: Bench) -> None:
    send(bench.client, b"1", b"2", b"3")
    with opened(bench) as consumer:
        consumer.negative_acknowledge(consumer.receive_batch(2))
        got = [rows([consumer.receive_batch(1)])[0].value for _ in range(3)]
        assert got == [b"1", b"2", b"3"]
        assert consumer.receive() is None


def test_delay_of_a_negative_acknowledgement_is_waited_for(bench: Bench) -> None:
    send(bench.client, b"1")
    with opened(bench) as consumer:
        message = consumer.receive()
        assert message is not None
        consumer.negative_acknowledge(message, delay_ms=500)
        assert consumer.receive() is None
        assert not consumer.has_message_available()
        bench.clock.advance(500)
        assert consumer.has_message_available()
        assert taken(consumer) == [(b"1", 1)]
        with pytest.raises(InvalidArgument):
            consumer.negative_acknowledge(message, delay_ms=-1)


def test_only_what_is_in_hand_can_be_given_back(bench: Bench) -> None:
    a, b, c = send(bench.client, b"a", b"b", b"c")
    with opened(bench) as consumer:
        consumer.receive_batch(2)
        consumer.acknowledge(a)
        consumer.negative_acknowledge([a, b, c])
        assert taken(consumer) == [(b"b", 1), (b"c", 0)]


def test_acknowledged_messages_never_come_again(bench: Bench) -> None:
    send(bench.client, b"1", b"2", b"3")
    with opened(bench) as consumer:
        found_messages = list(messages(consumer.receive_batch()))
        consumer.negative_acknowledge(found_messages[1])
        answer = consumer.acknowledge([found_messages[0], found_messages[1]])
        assert (answer.acked, answer.already) == (2, 0)
        assert consumer.acknowledge(found_messages[0]).already == 1
        consumer.redeliver_unacknowledged_messages()
        assert taken(consumer) == [(b"3", 1)]


def test_acknowledgement_ahead_of_delivery_counts(bench: Bench) -> None:
    ids = send(bench.client, b"1", b"2", b"3")
    with opened(bench) as consumer:
        consumer.acknowledge(ids[1])
        assert taken(consumer) == [(b"1", 0), (b"3", 0)]
        consumer.acknowledge_cumulative(ids[2])
        consumer.redeliver_unacknowledged_messages()
        assert taken(consumer) == []


def test_messages_of_a_transaction_are_taken_one_by_one(bench: Bench) -> None:
    marker, ids = send_txn(bench.client, b"1", b"2", b"3")
    with opened(bench) as consumer:
        assert consumer.receive_batch().num_rows == 3
        assert consumer.acknowledge(ids[1]).acked == 1
        consumer.negative_acknowledge(ids[2])
        assert taken(consumer) == [(b"3", 1)]
        consumer.redeliver_unacknowledged_messages()
        assert taken(consumer) == [(b"1", 1), (b"3", 2)]
        assert consumer.acknowledge_cumulative(ids[0]).acked == 1
        assert consumer.acknowledge(marker).acked == 1
        consumer.redeliver_unacknowledged_messages()
        assert taken(consumer) == []


def test_receive_gives_one_at_a_time_from_all_partitions(bench: Bench) -> None:
    send(bench.client, b"1", b"2")
    send(bench.client, b"a", partition=1)
    with opened(bench) as consumer:
        seen = [consumer.receive() for _ in range(3)]
        assert {message.value for message in seen if message} == {b"1", b"2", b"a"}
        assert not consumer.has_message_available()
        assert consumer.receive() is None
        [last] = send(bench.client, b"3")
        assert consumer.has_message_available()
        assert consumer.get_last_message_ids()[0] == last


def test_takes_partitions_and_no_time_outs(bench: Bench) -> None:
    send(bench.client, b"1")
    send(bench.client, b"a", partition=1)
    with bench.client.consumer("t", "s", durable=False, partitions=[1]) as consumer:
        assert taken(consumer) == [(b"a", 0)]
    for options in ({"ack_timeout_ms": 5000}, {"nack_delay_ms": 5}):
        with pytest.raises(InvalidArgument, match="time-outs"):
            bench.client.consumer("t", "s", durable=False, **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        bench.client.consumer("t", "s", durable=False, colour=1)  # type: ignore[call-arg]


def test_no_transaction_acknowledges_here(bench: Bench) -> None:
    [a] = send(bench.client, b"a")
    txn = begin(bench.client)
    with opened(bench) as consumer:
        with pytest.raises(NotAllowed, match="not durable"):
            consumer.acknowledge(a, txn=txn)
        with pytest.raises(NotAllowed):
            consumer.acknowledge_cumulative(a, txn=txn)
        with pytest.raises(MessageNotFound):
            consumer.acknowledge(MessageId(a.ledger, 7))
    assert bench.client.show_transaction(txn)["state"] == "open"
    with pytest.raises(AlreadyClosed):
        consumer.receive()


def test_trimmed_messages_do_not_come_again(bench: Bench) -> None:
    send(bench.client, b"1", b"2")
    with opened(bench) as consumer:
        consumer.negative_acknowledge(consumer.receive_batch())
        bench.client.checkpoint(roll_all=True)
        bench.client.admin.trim("t", Bound("end"))
        send(bench.client, b"3")
        assert taken(consumer) == [(b"3", 0)]
        assert taken(consumer) == []


def test_deleted_topic_is_not_found(bench: Bench) -> None:
    send(bench.client, b"1")
    with opened(bench) as consumer:
        message = consumer.receive()
        assert message is not None
        bench.client.admin.delete_topic("t")
        for call in (
            consumer.receive,
            consumer.redeliver_unacknowledged_messages,
            lambda: consumer.acknowledge(message),
            consumer.get_last_message_ids,
        ):
            with pytest.raises(TopicNotFound):
                call()


def test_uncommitted_messages_are_shown_without_a_count(bench: Bench) -> None:
    bench.client.producer("t").send(b"open", partition=0, txn=begin(bench.client))
    send(bench.client, b"1")
    with bench.client.consumer("t", "s", durable=False, isolation="uncommitted") as consumer:
        assert taken(consumer) == [(b"1", 0), (b"open", None)]


def test_messages_read_ahead_are_not_delivered(tmp_path: Path) -> None:
    """A message read ahead is not delivered: it has no count, and returned messages come
    before it.
    """
    bench = Bench(tmp_path / "store")
    bench.client.create_topic("t")
    ids = send(bench.client, *(b"%d" % n for n in range(6)))

    def took(count: int) -> list[tuple[bytes | None, int | None]]:
        got = [consumer.receive() for _ in range(count)]
        return [(message.value, message.redelivery_count) for message in got if message is not None]

    with bench.client.consumer("t", "s", durable=False, start="earliest") as consumer:
        assert took(2) == [(b"0", 0), (b"1", 0)]
        # the application has not received 4
        consumer.negative_acknowledge([ids[0], ids[4]], delay_ms=1000)
        assert took(1) == [(b"2", 0)]
        bench.clock.advance(1000)
        assert took(2) == [(b"0", 1), (b"4", 0)]
        consumer.acknowledge(ids[3])
        consumer.redeliver_unacknowledged_messages()
        assert took(9) == [(b"0", 2), (b"1", 1), (b"2", 1), (b"4", 1), (b"5", 0)]
        consumer.redeliver_unacknowledged_messages()
        assert took(1) == [(b"0", 3)]
        table = consumer.receive_batch(2)
        assert table["value"].to_pylist() == [b"1", b"2"]
        assert table["redelivery_count"].to_pylist() == [2, 2]

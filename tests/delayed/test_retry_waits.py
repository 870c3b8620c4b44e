"""A message that was put off comes when it is due, if the type of its subscription waits.

Source: spec/delayed 1, 2.
"""

from __future__ import annotations

import pytest

from tests.engine_kit import Bench, rows
from txlog.base.choices import SubscriptionType
from txlog.client.consuming.consumer import Consumer

pytestmark = [pytest.mark.usefixtures("quick_disk"), pytest.mark.store({"t": 1})]
RETRY = "t-s-RETRY"


def taken(consumer: Consumer) -> list[bytes]:
    return [message.value or b"" for message in rows([consumer.receive_batch(100)])]


@pytest.mark.parametrize("type", ["shared", "key-shared"])
def test_a_message_put_off_comes_when_it_is_due(bench: Bench, type: SubscriptionType) -> None:
    """9.1 with delayed delivery 2: every time it is put off, also after a restart."""
    client = bench.client
    client.create_subscription("t", "s", type=type)
    client.producer("t").send(b"a", key=b"k")
    client.producer("t").send(b"b", key=b"k")
    with client.consumer("t", "s") as consumer:
        [first] = rows([consumer.receive_batch(1)])
        consumer.reconsume_later(first, 5000)
        assert taken(consumer) == [b"b"]
    for times, delay_ms in ((1, 700), (2, 5000)):
        client = bench.reopen()
        with client.consumer(RETRY, "s") as consumer:
            bench.clock.advance((5000, 700)[times - 1] - 1)
            assert taken(consumer) == []
            bench.clock.advance(1)
            [message] = rows([consumer.receive_batch(1)])
            assert message.properties["RECONSUMETIMES"] == str(times)
            assert consumer.reconsume_later(message, delay_ms).moved == 1
            assert taken(consumer) == []
    bench.clock.advance(5000)
    client = bench.reopen()
    with client.consumer(["t", RETRY], "s") as both:
        assert [m.value for m in rows([both.receive_batch(10)])] == [b"b", b"a"]


def test_an_exclusive_subscription_gets_it_at_once(bench: Bench) -> None:
    """1: the retry topic is read with the type of the subscription."""
    client = bench.client
    client.create_subscription("t", "s")
    client.producer("t").send(b"a")
    with client.consumer("t", "s") as consumer:
        message = consumer.receive()
        assert message is not None
        consumer.reconsume_later(message, 5000)
    with client.consumer(RETRY, "s") as consumer:
        assert taken(consumer) == [b"a"]


def test_a_policy_of_the_retry_topic_decides_whether_it_waits(bench: Bench) -> None:
    """1: active = false also applies to messages that were put off before."""
    client = bench.client
    client.create_subscription("t", "s", type="shared")
    client.producer("t").send(b"a")
    with client.consumer("t", "s") as consumer:
        message = consumer.receive()
        assert message is not None
        consumer.reconsume_later(message, 5000)
    with client.consumer(RETRY, "s") as consumer:
        assert taken(consumer) == []
        client.admin.set_delayed_policies(RETRY, active=False)
        assert taken(consumer) == [b"a"]


def test_a_fixed_delay_holds_back_every_message(bench: Bench) -> None:
    """2: from plain sends to outputs, no message comes before its time."""
    client = bench.client
    client.create_subscription("t", "s", type="shared")
    client.admin.set_delayed_policies("t", fixed_delivery_delay_ms=50)
    client.producer("t").send(b"a")
    with client.consumer("t", "s") as consumer:
        assert taken(consumer) == []
        bench.clock.advance(30)
        with client.transaction() as txn:
            client.producer("t").send(b"b", deliver_at=0, txn=txn)
        bench.clock.advance(20)
        assert taken(consumer) == [b"a"]
        bench.clock.advance(30)
        assert taken(consumer) == [b"b"]


def test_messages_that_expire_from_delivery_wait_and_then_expire(bench: Bench) -> None:
    """8: due messages have their whole time to live; an expired message is never delivered."""
    client = bench.client
    client.create_subscription("t", "s", type="shared")
    client.set_policies("t", ttl_ms=10)
    client.admin.set_delayed_policies("t", ttl_from="deliver_at")
    for delay_ms in (0, 50, 100):
        client.producer("t").send(b"%d" % delay_ms, deliver_after=delay_ms)
    with client.consumer("t", "s") as consumer:
        bench.clock.advance(60)
        assert taken(consumer) == [b"50"]
        bench.clock.advance(51)
        assert taken(consumer) == []
    assert client.subscription("t", "s").describe()["backlog"] == 0

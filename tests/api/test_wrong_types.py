"""A value of a wrong type is refused, and never makes a store unreadable.

Ops are arrays of the callers' values. Once, a float or a bool instead of an integer was written
like any other value, and then no process could read the store past that frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.engine_kit import Bench, send, values
from txlog import MessageId, TxnId
from txlog.client.open import open_store
from txlog.engine.model.ops import (
    Acked,
    TxnOpened,
    decode_ops,
    encode_readable,
)
from txlog.errors import InvalidArgument

pytestmark = pytest.mark.usefixtures("quick_disk")
Call = Callable[[Any], object]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    each_bench = Bench(tmp_path_factory.mktemp("types") / "store")
    each_bench.client.create_topic("t", partitions=2)
    each_bench.client.create_subscription("t", "s", type="shared")
    send(each_bench.client, b"a", b"b")
    each_bench.client.connect("k")
    yield each_bench
    each_bench.close()


def _consuming(call: Callable[[Any, Any], object], **options: Any) -> Call:
    """A call with a consumer and a message that it holds."""

    def act(client: Any) -> object:
        with client.consumer("t", "s", **options) as consumer:
            return call(consumer, consumer.receive())

    return act


CALLS: dict[str, Call] = {
    "time-out": lambda c: c.begin(1.5),
    "time-out, bool": lambda c: c.begin(True),
    "time-out of a handle": lambda c: c.producer("t").send(b"x", txn=c.transaction(1.5)),
    "time-out, joined": lambda c: c.producer("t").send_async(b"x", txn=c.transaction(1.5)).result(),
    "coordinator": lambda c: c.begin(coordinator=1.0),
    "epoch": lambda c: c.begin(key="k", epoch=0.0),
    "partitions": lambda c: c.create_topic("u", True),
    "policy of a new topic": lambda c: c.create_topic("u", retention_ms=1.5),
    "policy of a topic": lambda c: c.set_policies("t", ttl_ms=1.5),
    "policy, text": lambda c: c.set_policies("t", ttl_ms="an hour"),
    "policy of a subscription": lambda c: c.create_subscription("t", "u", nack_delay_ms=1.5),
    "policy, bool": lambda c: c.create_subscription("t", "u", max_redeliver_count=True),
    "priority": lambda c: c.consumer("t", "s", priority=1.5),
    "name of a consumer": lambda c: c.consumer("t", "s", name=5),
    "ack time-out": _consuming(lambda consumer, one: one, ack_timeout_ms=1500.5),
    "batch": _consuming(lambda consumer, one: consumer.receive_batch(1.5), receiver_queue_size=1),
    "nack delay": _consuming(lambda consumer, one: consumer.negative_acknowledge(one, 1.5)),
    "nack delay, endless": _consuming(
        lambda consumer, one: consumer.negative_acknowledge(one, float("inf"))
    ),
    "message id": lambda c: c.acknowledge("t", "s", [MessageId(1.0, 0.0)]),  # type: ignore[arg-type]
    "message id, bool": lambda c: c.acknowledge("t", "s", [MessageId(True, False)]),
    "sequence": lambda c: c.producer("t", "p").send(b"x", sequence_id=1.5),
    "partition": lambda c: c.producer("t").send(b"x", partition=1.0),
    "event time": lambda c: c.producer("t").send(b"x", event_time=1.5),
    "time-out, text": lambda c: c.new_transaction().with_timeout("a second").build(),
    "partitions, none": lambda c: c.consumer("t", "s", partitions=[]),
    "messages at once": lambda c: [*c.read("t", batch_messages=0)],
    "messages at most": lambda c: [*c.read("t", limit=-1)],
    "wait for the lock": lambda c: open_store(c.path, lock_timeout_ms=-1),
    "watermark": lambda c: c.producer("t").new_watermark().event_time(1.5).send(),
}


@pytest.mark.parametrize("name", CALLS)
def test_it_is_refused_and_the_store_stays_readable(bench: Bench, name: str) -> None:
    """Law 3: an appended frame can be read, so its values are checked before."""
    values_before = values(bench.client)
    with pytest.raises(InvalidArgument):
        CALLS[name](bench.client)
    other = bench.another()
    assert values(other) == values_before
    with other.transaction() as txn:  # and the store accepts further messages
        other.producer("t").send(b"c", txn=txn)
    assert sorted(values(bench.client)) == sorted([*values_before, b"c"])
    other.close()


def test_dry_run_refuses_the_same_values(bench: Bench) -> None:
    """A dry run gives the answer of the call."""
    with bench.another(dry_run=True) as client, pytest.raises(InvalidArgument, match="timeout_ms"):
        client.begin(1.5)  # type: ignore[arg-type]


def test_a_switch_may_be_a_bool(bench: Bench) -> None:
    """Users write `retention_acked=True` for a switch."""
    assert bench.client.set_policies("t", retention_acked=True) == {"retention_acked": 1}
    assert bench.client.set_policies("t", retention_acked=None) == {}
    assert values(bench.another()) == values(bench.client)


def test_the_field_is_named() -> None:
    """The error names the argument, as far as an op knows it."""
    opened = TxnOpened(0, 1, 0, "ana", 1.5, 1, "boot", 1)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"^timeout_ms is 1\.5: expected `int`, got `float`$"):
        encode_readable([TxnOpened(0, 0, 0, "ana", 5, 1, "boot", 1), opened])
    nested = Acked(1, 1, [(1, 2, 3, 0, 0.5)], (1, 3, 0), 1)  # type: ignore[list-item]
    with pytest.raises(InvalidArgument, match="runs holds a value of another type: expected"):
        encode_readable([nested])
    for unknown in (object(), 1 << 70, "\ud800"):
        with pytest.raises(InvalidArgument, match="cannot be stored"):
            encode_readable([TxnOpened(0, 0, 0, unknown, 5, 1, "boot", 1)])  # type: ignore[arg-type]
    good = [TxnOpened(0, 0, 0, "ana", 5, 1, "boot", 1)]
    assert decode_ops(encode_readable([*good]), lsn=1) == good


def test_ids_of_other_types_find_nothing(bench: Bench) -> None:
    """Reading by such an id changes nothing either."""
    begun = bench.client.begin()["txn"]
    same = TxnId(float(begun.coordinator), float(begun.sequence))  # type: ignore[arg-type]
    bench.client.commit(same)
    assert bench.another().show_transaction(begun)["state"] == "committed"

"""Setting the delivery time: the stored time for a given deliver_at or deliver_after.

Source: spec/delayed 2, 11.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.engine_kit import START_MS, Bench, read
from txlog import Client
from txlog.base.settings import INSTANT_MS_MAX
from txlog.errors import InvalidArgument

pytestmark = [pytest.mark.usefixtures("quick_disk"), pytest.mark.store({"t": 2})]
INSTANT = pa.timestamp("ms", "UTC")
WORD_MAX = (1 << 63) - 1


def delivery(client: Client, **options: Any) -> list[int | None]:
    """The deliver_at of every message, in order."""
    return [message.deliver_at for message in read(client, **options)]


@pytest.mark.parametrize(("given", "stored"), [
    ({}, None),
    ({"deliver_at": START_MS + 7}, START_MS + 7),
    ({"deliver_at": START_MS - 7}, START_MS - 7),
    ({"deliver_at": 0}, 0),
    ({"deliver_after": 90_000}, START_MS + 90_000),
    ({"deliver_after": 0}, START_MS),
    ({"deliver_after": WORD_MAX}, INSTANT_MS_MAX),
])  # fmt: skip
def test_the_stored_time_for_each_given_time(
    bench: Bench, given: dict[str, Any], stored: int | None
) -> None:
    """2: deliver_at as it is, also a past one; deliver_after from the time of the frame."""
    producer = bench.client.producer("t")
    producer.send(b"plain", partition=0, event_time=3, **given)
    with bench.client.transaction() as txn:
        producer.send(b"in txn", partition=0, txn=txn, **given)
        later = producer.send_async(b"later", partition=0, txn=txn, **given)
        assert later.result().txn_index == 2
    built = producer.new_message().value(b"built").partition(0)
    built.deliver_at(given.get("deliver_at")).deliver_after(given.get("deliver_after")).send()
    for _ in range(2):
        assert delivery(bench.client) == [stored] * 4
        assert [message.event_time for message in read(bench.client)] == [3, None, None, None]
        bench.client.checkpoint(roll_all=True)
        bench.reopen()


def test_every_row_of_a_batch_has_its_own_time(bench: Bench) -> None:
    """2: over partitions, with nulls, and with rows that are duplicates."""
    table = pa.table(
        {
            "value": [b"%d" % n for n in range(6)],
            "deliver_at": pa.array([5, None, None, None, 6, None], INSTANT),
            "deliver_after": pa.array([None, 10, 20, None, None, 0], pa.int64()),
            "partition": [0, 1, 0, 1, 0, 1],
            "sequence_id": [1, 1, 2, 2, 3, 3],
        }
    )
    expected: dict[int, list[int | None]] = {
        0: [5, START_MS + 20, 6],
        1: [START_MS + 10, None, START_MS],
    }
    producer = bench.client.producer("t", "me")
    producer.send_batch(table)
    bench.clock.advance(1000)
    assert producer.send_batch(table).duplicates == 6
    more = table.set_column(4, "sequence_id", pa.array([1, 1, 4, 2, 5, 6]))
    assert producer.send_batch(more).messages == 3
    late_ms = START_MS + 1000
    expected[0] += [late_ms + 20, 6]
    expected[1] += [late_ms]
    for partition in (0, 1):
        assert delivery(bench.client, partitions=[partition]) == expected[partition]


def test_a_delay_counts_from_the_frame_of_its_row(bench: Bench) -> None:
    """2, 8: in a transaction it counts from the write of the row, not from the commit."""
    producer = bench.client.producer("t")
    with bench.client.transaction(write_through=True) as txn:
        producer.send(b"a", deliver_after=100, partition=0, txn=txn)
        bench.clock.advance(1000)
        producer.send(b"b", deliver_after=100, partition=0, txn=txn)
        bench.clock.advance(1000)
    assert delivery(bench.client) == [START_MS + 100, START_MS + 1100]
    assert [m.publish_time for m in read(bench.client)] == [START_MS, START_MS + 1000]


def test_a_delay_of_a_waiting_message_counts_from_its_write(bench: Bench) -> None:
    """2, 8: the commit writes it, or a flush before the commit."""
    producer = bench.client.producer("t")
    with bench.client.transaction() as txn:
        producer.send(b"a", deliver_after=100, partition=0, txn=txn)
        bench.clock.advance(1000)
        txn.flush()
        producer.send(b"b", deliver_after=100, partition=0, txn=txn)
        bench.clock.advance(1000)
    assert delivery(bench.client) == [START_MS + 1100, START_MS + 2100]


def test_delays_are_of_any_integer_type(bench: Bench) -> None:
    producer = bench.client.producer("t")
    for kind in (pa.int8(), pa.uint16(), pa.int32(), pa.uint64(), pa.null()):
        column = pa.array([None if pa.types.is_null(kind) else 5], kind)
        producer.send_batch(pa.table({"value": [b"x"], "deliver_after": column}))
    assert sorted(map(str, delivery(bench.client))) == [str(START_MS + 5)] * 4 + ["None"]


@pytest.mark.parametrize("given", [
    {"deliver_after": -1},
    {"deliver_at": 1, "deliver_after": 1},
    {"deliver_at": 0, "deliver_after": 0},
    {"deliver_after": 1 << 63},
    {"deliver_at": 1 << 63},
    {"deliver_after": 1.5},
    {"deliver_at": 1.5},
    {"deliver_after": True},
    {"deliver_after": "5"},
    {"deliver_at": "soon"},
])  # fmt: skip
def test_bad_input_is_refused_and_nothing_is_written(bench: Bench, given: dict[str, Any]) -> None:
    """11: negative deliver_after, both, no 64-bit integer; plain, in a transaction, large."""
    client = bench.client
    producer = client.producer("t")
    large = client.producer("t", chunking=True)
    txn = client.transaction(write_through=True)
    txn_id = txn.id
    lsn_before = client.status()["journal"]["lsn"]
    for each_producer, value in ((producer, b"x"), (large, b"x"), (large, b"x" * (6 << 20))):
        for within in (None, txn, txn_id):
            with pytest.raises(InvalidArgument):
                each_producer.send(value, txn=within, **given)
    with pytest.raises(InvalidArgument):
        producer.send_async(b"x", txn=txn, **given)
    with pytest.raises(InvalidArgument):
        message = producer.new_message(txn).value(b"x")
        for name, item in given.items():
            getattr(message, name)(item)
        message.send()
    assert client.status()["journal"]["lsn"] == lsn_before
    txn.commit()
    assert not read(client)


@pytest.mark.parametrize(
    "columns",
    [
        {"deliver_after": pa.array([1, -1])},
        {"deliver_after": pa.array([1, None]), "deliver_at": pa.array([1, 2], INSTANT)},
        {"deliver_after": pa.array([1.5, 2.0])},
        {"deliver_after": pa.array([1 << 63, 1], pa.uint64())},
        {"deliver_after": pa.array(["1", "x"])},
        {"deliver_at": pa.array([1.5, 2.0])},
    ],
)
def test_one_bad_row_refuses_its_batch(bench: Bench, columns: dict[str, pa.Array]) -> None:
    """11: no row of the batch is appended."""
    table = pa.table({"value": [b"a", b"b"], **columns})
    lsn_before = bench.client.status()["journal"]["lsn"]
    with pytest.raises(InvalidArgument):
        bench.client.producer("t").send_batch(table)
    with bench.client.transaction() as txn, pytest.raises(InvalidArgument):
        bench.client.producer("t").send_batch_async(table, txn=txn)
    # the frame of the empty transaction
    assert bench.client.status()["journal"]["lsn"] <= lsn_before + 1
    assert not read(bench.client)


def test_a_builder_has_every_option_of_send(bench: Bench) -> None:
    """9: as Pulsar's newMessage."""
    client = bench.client
    producer = client.producer("t", "me")
    with client.transaction() as txn:
        message = producer.new_message(txn).value(b"v").key(b"k").event_time(4).sequence_id(8)
        message.property("a", "1").properties({"b": "2"}).deliver_after(50).partition(1)
        assert message.send().txn_index == 1
    [each_message] = read(client)
    assert (
        each_message.value,
        each_message.key,
        each_message.event_time,
        each_message.sequence_id,
    ) == (b"v", b"k", 4, 8)
    assert (each_message.properties, each_message.deliver_at, each_message.partition) == (
        {"a": "1", "b": "2"},
        START_MS + 50,
        1,
    )
    assert each_message.txn is not None
    value_again = producer.new_message().value(None)
    assert value_again.send().message_id != value_again.send().message_id
    assert len(read(client)) == 3


def test_a_message_without_a_time_has_no_column_for_it(bench: Bench) -> None:
    """A topic without delays pays nothing: its frames have no further column."""
    table = pa.table({"value": [b"x"], "partition": [0]})
    sizes = [bench.client.status()["journal"]["size_bytes"]]
    for column in (None, None, pa.nulls(1, pa.int64())):
        source_table = table if column is None else table.append_column("deliver_after", column)
        bench.client.producer("t").send_batch(source_table)
        sizes.append(bench.client.status()["journal"]["size_bytes"])
    assert sizes[3] - sizes[2] == sizes[2] - sizes[1]


@pytest.mark.parametrize("rows", [1, 64, 65, 5000])
def test_a_batch_of_any_size_is_resolved_alike(bench: Bench, rows: int) -> None:
    """Small batches take another code path than large ones; nulls and the last instant included."""
    choices = [None, 0, 7, WORD_MAX, INSTANT_MS_MAX, 90_000]
    delays = [choices[at % 6] for at in range(rows)]
    requested_times = [START_MS + at if at % 12 == 0 else None for at in range(rows)]
    table = pa.table(
        {
            "value": [b"x"] * rows,
            "partition": [0] * rows,
            "deliver_after": pa.array(delays, pa.int64()),
            "deliver_at": pa.array(requested_times, INSTANT),
        }
    )
    bench.client.producer("t").send_batch(table)
    assert delivery(bench.client) == [
        at if at is not None else None if delay is None else min(START_MS + delay, INSTANT_MS_MAX)
        for at, delay in zip(requested_times, delays, strict=True)
    ]
    for column in ("deliver_after", "deliver_at"):
        wrong = pa.array([-1] + [1] * rows) if column == "deliver_after" else pa.array([1] * rows)
        bad = {"value": [b"x"] * len(wrong), "deliver_after": wrong}
        if column == "deliver_at":
            bad["deliver_at"] = pa.array([None] * (rows - 1) + [1], INSTANT)
        with pytest.raises(InvalidArgument):
            bench.client.producer("t").send_batch(pa.table(bad))

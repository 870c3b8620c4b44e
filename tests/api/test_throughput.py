"""`txlog topic stats`: newly visible messages by time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine_kit import START_MS, Bench, begin, send
from txlog.errors import InvalidArgument, LimitExceeded

pytestmark = pytest.mark.usefixtures("quick_disk")
HOUR_MS = 3_600_000


def test_each_message_counts_when_it_became_visible_and_a_transaction_once(tmp_path: Path) -> None:
    """The transaction has messages in two partitions, more than one read returns."""
    bench = Bench(tmp_path / "store", coordinators=1)
    bench.client.create_topic("t", partitions=2)
    first = START_MS - START_MS % HOUR_MS
    bench.clock.advance(first + HOUR_MS - 1 - START_MS)
    txn = begin(bench.client, 3 * HOUR_MS)
    producer = bench.client.producer("t")
    for number in range(5):
        producer.send(b"123", partition=number % 2, txn=txn)
    send(bench.client, b"1", b"22", topic="t")
    bench.clock.advance(2 * HOUR_MS)
    bench.client.commit(txn)
    lost = begin(bench.client)
    producer.send(b"lost", txn=lost)
    bench.client.abort(lost)
    send(bench.client, b"x", topic="t", partition=1)
    rows = bench.client.topic("t").stats(HOUR_MS, START_MS)
    assert [
        (row["from_time"], row["messages"], row["size_bytes"], row["transactions"]) for row in rows
    ] == [(first, 2, 3, 0), (first + HOUR_MS, 0, 0, 0), (first + 2 * HOUR_MS, 6, 16, 1)]
    of_one = bench.client.topic("t/1").stats(HOUR_MS, START_MS)
    assert [row["messages"] for row in of_one] == [0, 0, 3]
    late = bench.client.topic("t").stats(HOUR_MS, first + 2 * HOUR_MS)
    assert [row["messages"] for row in late] == [6]
    fine = bench.client.topic("t").stats(100, first + HOUR_MS - 1)
    assert (len(fine), fine[0]["messages"], fine[-1]["messages"]) == (2 * HOUR_MS // 100 + 1, 2, 6)


def test_invalid_spans_are_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", coordinators=1)
    bench.client.create_topic("t")
    with pytest.raises(InvalidArgument):
        bench.client.topic("t").stats(0)
    with pytest.raises(LimitExceeded):
        bench.client.topic("t").stats(1, 0)
    assert len(bench.client.topic("t").stats()) == 25

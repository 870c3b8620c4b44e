"""Tests of streams by the data source `txlog`: each message once, whatever happens in between."""

from __future__ import annotations

import json
import pickle
import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

import txlog
from tests.engine_kit import relation_of
from tests.sql.test_querying import STEPS, History
from tests.sql.test_scanning import read
from txlog import Client, MessageId
from txlog.base.ranges import Bound, Range
from txlog.engine.model.schema import INSTANT
from txlog.errors import (
    InvalidArgument,
    MessageNotFound,
    StoreNotFound,
    SubscriptionNotFound,
    TxlogError,
)
from txlog.lake.spark import source
from txlog.lake.spark.streaming import Offset, StreamReader, reader

pytestmark = pytest.mark.usefixtures("quick_disk")
SCHEMA = (
    StructType()
    .add("message_id", StringType())
    .add("partition", IntegerType())
    .add("lsn", LongType())
    .add("value", BinaryType())
)
ALL = ReadAllAvailable()
Row = dict[str, Any]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A client of a store with a topic `orders` of two partitions."""
    txlog.init(str(tmp_path / "store"), free_bytes_min=0, reader_grace_ms=0)
    with txlog.open(str(tmp_path / "store")) as opened:
        opened.checkpoint_automatically = False
        opened.create_topic("orders", partitions=2)
        yield opened


class Stream:
    """Drives a reader as Spark does: offsets travel as text, shares are pickled."""

    def __init__(
        self, path: str, topic: str = "orders", schema: StructType = SCHEMA, **options: str
    ) -> None:
        made = reader({"path": path, "topic": topic, **options}, schema)
        assert isinstance(made, StreamReader)
        self.reader = made
        self.start: Offset = travelled(made.initialOffset())

    def next(self, limit: ReadLimit = ALL) -> list[Row] | None:
        """The rows of the next batch; None when there is nothing to read."""
        end = travelled(self.reader.latestOffset(self.start, limit))
        if end == self.start:
            return None
        rows = self.between(self.start, end)
        self.start = end
        return rows

    def between(self, start: Offset, end: Offset) -> list[Row]:
        """The rows of a batch, which may be an earlier one."""
        worker = pickle.loads(pickle.dumps(self.reader))
        out: list[Row] = []
        for share in self.reader.partitions(start, end):
            for batch in worker.read(pickle.loads(pickle.dumps(share))):
                out += batch.to_pylist()
        return out

    def rest(self, limit: ReadLimit = ALL) -> list[list[Row]]:
        """The batches that are left."""
        out = []
        while (rows := self.next(limit)) is not None:
            out.append(rows)
        return out


def travelled(offset: Offset) -> Offset:
    found: Offset = json.loads(json.dumps(offset))
    return found


def values(rows: list[Row] | None) -> set[bytes]:
    assert rows is not None
    return {row["value"] for row in rows}


def ids(rows: list[Row]) -> list[tuple[int, str]]:
    return sorted((row["partition"], row["message_id"]) for row in rows)


class Growing(History):
    """A history in which nothing is trimmed."""

    def trim(self, rng: random.Random) -> None:
        """Not here."""


@pytest.mark.parametrize("seed", ["stream-1", "stream-2", "stream-3"])
def test_stream_has_each_message_once(tmp_path: Path, seed: str) -> None:
    """API = stream with any limits, while rows move; a batch that is read again is the same."""
    history = Growing(tmp_path, seed)
    stream = Stream(history.path, "t")
    batches: list[tuple[Offset, Offset, list[Row]]] = []
    try:
        for number in range(STEPS):
            rng = random.Random(f"{seed}:{number}")
            history.step(rng)
            for _ in range(rng.randrange(3)):
                start = stream.start
                limit = rng.choice([ALL, ReadMaxRows(rng.randrange(1, 6)), ReadMaxBytes(50)])
                rows = stream.next(limit)
                if rows is not None:
                    batches.append((start, stream.start, rows))
        start = stream.start
        batches.append((start, stream.start, stream.next() or []))
        batches[-1] = (start, stream.start, batches[-1][2])
        expected = read(history.client, Range())
        seen = [row for _, _, rows in batches for row in rows]
        assert len(expected) > 20
        assert ids(seen) == sorted(
            (row["partition"], str(MessageId(row["ledger"], row["entry"], row["index"] or 0)))  # type: ignore[arg-type]
            for row in expected
        )
        for begin, end, rows in batches:
            assert ids(stream.between(begin, end)) == ids(rows)
    except BaseException:
        print(f"seed {seed}: {' '.join(history.trace)}")
        raise
    finally:
        stream.reader.stop()
        history.client.close()


def test_batch_ends_at_a_frame(client: Client) -> None:
    """Kills: a transaction that two batches share, a partition each."""
    producer = client.producer("orders")
    for _ in range(3):
        with client.transaction() as txn:
            for partition in (0, 0, 1):
                producer.send(b"x", partition=partition, txn=txn)
    stream = Stream(client.path)
    batches = stream.rest(ReadMaxRows(7))
    assert [len(rows) for rows in batches] == [6, 3]
    assert len({row["lsn"] for row in batches[0]} & {row["lsn"] for row in batches[1]}) == 0
    stream.reader.stop()


def test_transaction_above_the_limit_is_a_batch_and_plain_messages_are_cut(client: Client) -> None:
    """Kills: a stream that never gets past a frame above the limit.

    Also one that cuts a transaction, so that Spark's watermark may drop its second part.
    """
    with client.transaction() as txn:
        for partition in (0, 0, 0, 1, 1):
            client.producer("orders").send(b"t", partition=partition, txn=txn)
    client.producer("orders/0").send_batch(pa.table({"value": [b"p"] * 5}))
    stream = Stream(client.path)
    sizes = [
        sorted((row["partition"], row["value"]) for row in rows)
        for rows in stream.rest(ReadMaxRows(2))
    ]
    assert sizes == [
        [(0, b"t")] * 3 + [(1, b"t")] * 2,
        [(0, b"p")] * 2,
        [(0, b"p")] * 2,
        [(0, b"p")],
    ]
    stream.reader.stop()


def loaded(client: Client, tasks: Sequence[Sequence[tuple[int, int | None]]]) -> None:
    """Store (partition, event time) by one frame, as tasks that each write their own files."""
    bulk = client.bulk("orders", key="load", batch="1")
    columns = {"value": pa.binary(), "partition": pa.int32(), "event_time": INSTANT}
    staged = []
    for number, rows in enumerate(tasks):
        arrays = [[b"0123456789"] * len(rows), [row[0] for row in rows], [row[1] for row in rows]]
        typed = [
            pa.array(values, kind) for values, kind in zip(arrays, columns.values(), strict=True)
        ]
        staged += bulk.stage([pa.table(typed, names=list(columns))], number)
    bulk.commit(staged)


TIMED = StructType([*SCHEMA.fields]).add("event_time", TimestampType())
LIMITS = [ReadMaxRows(37), ReadMaxBytes(370)]


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: type(limit).__name__)
def test_limited_batches_of_a_large_frame_follow_event_time(
    client: Client, limit: ReadLimit
) -> None:
    """Spark drops rows behind its watermark, so no partition may run ahead of the others.

    Partitions have 6, 3, 2 and 1 parts of the rows, partition 3 none of the first half, and each
    two files. Kills: cutting partition after partition, equal shares, shares by count alone.
    """
    client.admin.update_topic("orders", partitions=4)
    homes = [0, 1, 0, 2, 0, 1, 0, 2, 0, 1, 0, 3]
    rows = [(homes[at % 12], at * 1000) for at in range(600)]
    rows = [(0 if home == 3 and at < 300_000 else home, at) for home, at in rows]
    loaded(client, [rows[:250], rows[250:]])
    stream = Stream(client.path, schema=TIMED)
    batches = stream.rest(limit)
    assert [len(batch) for batch in batches] == [37] * 16 + [8]
    seen = [row["event_time"].timestamp() for batch in batches for row in batch]
    latest = 0.0
    for batch in batches:
        times = [row["event_time"].timestamp() for row in batch]
        assert min(times) >= latest
        latest = max(times)
    assert sorted(seen) == [float(at) for at in range(600)]
    stream.reader.stop()


def test_limited_batches_without_event_times_share_by_remaining_rows(client: Client) -> None:
    """Kills: a partition that ends long before the others, and one read in place of another."""
    client.admin.update_topic("orders", partitions=3)
    later = [(home, None) for home in (0, 1) for _ in range(20)]
    loaded(client, [[(0, None)] * 60 + [(1, None)] * 30, [(2, None)] * 30])
    client.producer("orders").send_batch(
        pa.table({"value": [b"x"] * 40, "partition": [home for home, _ in later]})
    )
    stream = Stream(client.path)
    counts = [Counter(row["partition"] for row in rows) for rows in stream.rest(ReadMaxRows(24))]
    assert counts[:5] == [{0: 12, 1: 6, 2: 6}] * 5
    assert [sum(count.values()) for count in counts[5:]] == [24, 16]
    assert counts[5] == {0: 12, 1: 12}
    stream.reader.stop()


def test_one_row_a_batch_passes_rows_that_are_no_messages(client: Client) -> None:
    """The smallest limit still reads every message, with late and missing event times, too."""
    loaded(client, [[(0, 9), (0, 1), (0, None), (1, 5), (1, 20)]])
    stream = Stream(client.path, schema=TIMED)
    batches = [
        [
            (row["partition"], row["event_time"] and row["event_time"].microsecond // 1000)
            for row in rows
        ]
        for rows in stream.rest(ReadMaxRows(1))
    ]
    assert batches == [[(1, 5)], [(0, 9)], [(0, 1)], [(0, None)], [(1, 20)]]
    stream.reader.stop()


def test_bytes_are_a_limit_too(client: Client) -> None:
    for size in (10, 10, 1000, 10):
        with client.transaction() as txn:
            client.producer("orders").send(b"x" * size, partition=0, txn=txn)
    assert [len(rows) for rows in Stream(client.path).rest(ReadMaxBytes(25))] == [2, 1, 1]
    both = Stream(client.path, maxRowsPerTrigger="3", maxBytesPerTrigger="25B")
    assert both.reader.getDefaultReadLimit() == ReadMaxRows(3)
    assert [len(rows) for rows in both.rest(ReadMaxRows(3))] == [2, 1, 1]
    assert [len(rows) for rows in both.rest(ALL)] == []
    only = Stream(client.path, maxBytesPerTrigger="25B")
    assert only.reader.getDefaultReadLimit() == ReadMaxBytes(25)
    assert Stream(client.path).reader.getDefaultReadLimit() == ALL
    with pytest.raises(InvalidArgument, match="ReadMinRows"):
        only.next(ReadMinRows(1))


def test_nothing_new_is_no_batch(client: Client) -> None:
    """Kills: a batch without rows, because a ledger was closed."""
    stream = Stream(client.path)
    assert stream.next() is None
    client.producer("orders").send(b"x", partition=0)
    assert values(stream.next()) == {b"x"}
    client.checkpoint(roll_all=True)
    assert stream.next() is None
    stream.reader.stop()


def test_open_transactions_do_not_block_the_stream(client: Client) -> None:
    """Kills: a message that is lost because a later one was read first."""
    txn = client.transaction(write_through=True)
    client.producer("orders").send(b"late", partition=0, txn=txn)
    client.producer("orders").send(b"early", partition=0)
    stream = Stream(client.path)
    assert values(stream.next()) == {b"early"}
    assert stream.next() is None
    txn.commit()
    assert values(stream.next()) == {b"late"}
    assert stream.next() is None
    stream.reader.stop()


def test_first_batch_that_is_done_again_begins_where_it_began(client: Client) -> None:
    """Kills: a query that starts at the end, dies in its first batch, and begins later then."""
    client.producer("orders").send(b"before", partition=0)
    stream = Stream(client.path, startingPosition="end")
    begun = stream.start
    client.producer("orders").send(b"first", partition=0)
    assert values(stream.next()) == {b"first"}
    client.producer("orders").send(b"second", partition=0)
    restarted = Stream(client.path, startingPosition="end")
    assert restarted.start != begun
    assert values(restarted.between(restarted.start, stream.start)) == {b"first"}
    assert restarted.between(restarted.start, begun) == []
    assert values(stream.next()) == {b"second"}


@pytest.mark.parametrize(
    ("position", "count"),
    [("start", 4), ("end", 0), ("+1", 2), ("-1", 2), ("2:1", 3), ("sub=reading", 4)],
)
def test_stream_begins_at_its_starting_position(client: Client, position: str, count: int) -> None:
    client.create_subscription("orders", "reading")
    for partition in (0, 0, 1, 1):
        client.producer("orders").send(b"x", partition=partition)
    stream = Stream(client.path, startingPosition=position)
    rows = stream.next() or []
    assert len(rows) == count
    client.producer("orders").send(b"y", partition=0)
    assert values(stream.next()) == {b"y"}


def test_partition_that_is_added_is_read_from_its_first_message(client: Client) -> None:
    """Kills: lost messages of a new partition, in a stream that started at the end."""
    stream = Stream(client.path, startingPosition="end")
    only = Stream(client.path, "orders/1")
    client.admin.update_topic("orders", partitions=3)
    client.producer("orders").send(b"new", partition=2)
    assert values(stream.next()) == {b"new"}
    assert stream.next() is None
    assert only.next() is None
    assert set(stream.start) - {"since", "store"} == {"0", "1", "2"}


def test_available_now_ends_with_the_messages_at_its_start(client: Client) -> None:
    """Kills: a run that never ends while a producer writes, or that reads a later partition."""
    client.producer("orders").send(b"there", partition=0)
    stream = Stream(client.path)
    stream.reader.prepareForTriggerAvailableNow()
    client.producer("orders").send(b"later", partition=0)
    client.admin.update_topic("orders", partitions=3)
    client.producer("orders").send(b"later", partition=2)
    assert [values(rows) for rows in stream.rest(ReadMaxRows(1)) if rows] == [{b"there"}]
    next_run = Stream(client.path)
    next_run.start = stream.start
    assert values(next_run.next()) == {b"later"}
    assert next_run.reader.reportLatestOffset().keys() == {"0", "1", "2"}


def test_watermark_of_the_topic_marks_late_rows(client: Client) -> None:
    """A batch has the watermark of its first position, also when it is read again."""
    schema = StructType().add("event_time", TimestampType()).add("watermark", TimestampType())
    watermarks = client.topic("orders").watermarks

    def sent(seconds: int, partition: int) -> None:
        client.producer("orders").send(b"x", event_time=seconds * 1000, partition=partition)

    def seen(rows: list[Row]) -> list[tuple[float, float | None]]:
        pairs = [(row["event_time"], row["watermark"]) for row in rows]
        return sorted(
            (event_time.timestamp(), watermark and watermark.timestamp())
            for event_time, watermark in pairs
        )

    stream = Stream(client.path, schema=schema)
    sent(50, 0)
    begun = stream.start
    assert seen(stream.next() or []) == [(50, None)]
    first = stream.start
    watermarks.set(100_000, "w")
    sent(60, 0)
    sent(120, 1)
    assert seen(stream.next() or []) == [(60, None), (120, None)]
    second = stream.start
    watermarks.set(200_000, "w")
    sent(150, 1)
    assert seen(stream.next() or []) == [(150, 100)]
    third = stream.start
    sent(150, 0)
    assert seen(stream.next() or []) == [(150, 200)]  # late
    assert seen(stream.between(second, third)) == [(150, 100)]
    assert seen(stream.between(begun, first)) == [(50, None)]
    watermarks.idle("w")
    sent(1, 0)
    stream.next()
    sent(2, 0)
    assert seen(stream.next() or []) == [(2, None)]
    only = Stream(client.path, schema=StructType().add("watermark", TimestampType()))
    assert only.next() == [{"watermark": None}] * 7
    with pytest.raises(InvalidArgument, match="no column watermark"):
        source.reader({"path": client.path, "topic": "orders"}, schema)
    stream.reader.stop()


def test_available_now_ends_at_one_lsn_while_others_write(client: Client) -> None:
    """Kills: a run that takes one partition of a transaction that was committed meanwhile."""

    def commit() -> None:
        with client.transaction() as txn:
            for partition in (0, 1):
                client.producer("orders").send(b"x", partition=partition, txn=txn)

    for _ in range(3):
        commit()
    stream = Stream(client.path)
    stream.reader.prepareForTriggerAvailableNow()
    last = client.wait_for_change(0)
    seen: list[Row] = []
    while True:
        commit()
        rows = stream.next(ReadMaxRows(2))
        if rows is None:
            break
        seen += rows
    assert len(seen) == 6
    assert max(row["lsn"] for row in seen) <= last
    assert all(count == 2 for count in Counter(row["lsn"] for row in seen).values())
    stream.reader.stop()


def test_checkpoint_of_a_store_that_was_replaced_is_refused(client: Client, tmp_path: Path) -> None:
    """A new store counts from the beginning again: kills a stream that skips its messages."""
    path = Path(client.path)
    client.producer("orders").send_batch(pa.table({"value": [b"old"] * 3}))
    older = tmp_path / "older"
    shutil.copytree(path, older)
    client.producer("orders").send_batch(pa.table({"value": [b"old"] * 3, "partition": [0] * 3}))
    stream = Stream(client.path)
    start = stream.start
    assert len(stream.next() or []) == 6
    path.rename(tmp_path / "away")
    with pytest.raises(StoreNotFound, match="moved away"):
        stream.next()
    older.rename(path)
    restarted = Stream(str(path))
    restarted.start = stream.start
    with pytest.raises(MessageNotFound, match=r"the store is older than the checkpoint"):
        restarted.next()
    path.rename(older)
    txlog.init(str(path), free_bytes_min=0)
    with txlog.open(str(path)) as other:
        other.create_topic("orders", partitions=2)
        other.producer("orders").send(b"new", partition=0)
    anew = Stream(str(path))
    for offset in (start, stream.start):
        with pytest.raises(StoreNotFound, match="of another store"):
            anew.reader.latestOffset(offset, ALL)
    with pytest.raises(StoreNotFound, match="of another store"):
        anew.reader.partitions(start, stream.start)
    unnamed = {name: place for name, place in anew.start.items() if name != "store"}
    assert values(anew.between(unnamed, travelled(anew.reader.latestOffset(unnamed, ALL)))) == {
        b"new"
    }


def test_trimmed_messages_are_an_error_or_a_warning(client: Client) -> None:
    """R22: kills a silent jump."""
    for number in range(4):
        client.producer("orders").send(b"%d" % number, partition=0)
        client.checkpoint(roll_all=True)
    strict = Stream(client.path)
    lenient = Stream(client.path, failOnDataLoss="false")
    client.admin.trim("orders", Bound("last", 2), force_unacked=True)
    with pytest.raises(MessageNotFound, match=r"from the start up to .* were trimmed"):
        strict.next()
    with pytest.warns(UserWarning, match="continues after them"):
        assert values(lenient.next()) == {b"2", b"3"}
    begun = lenient.start
    client.admin.trim("orders", Bound("end"), force_unacked=True)
    with pytest.warns(UserWarning, match="continues after them"):
        lenient.between(strict.start, begun)


def test_topic_that_was_made_again_is_another(client: Client) -> None:
    """Kills: a checkpoint of the old topic that is taken for a place in the new one."""
    client.producer("orders").send(b"old", partition=0)
    stream = Stream(client.path)
    assert values(stream.next()) == {b"old"}
    client.admin.delete_topic("orders")
    client.create_topic("orders", partitions=2)
    client.producer("orders").send(b"new", partition=0)
    with pytest.raises(MessageNotFound, match="made again"):
        stream.next()


def test_a_stream_of_a_renamed_topic_goes_on_by_its_new_name_only(client: Client) -> None:
    """Kills: an error which says that a topic was deleted that still exists."""
    client.producer("orders").send(b"1", partition=0)
    stream = Stream(client.path)
    assert values(stream.next()) == {b"1"}
    client.admin.rename_topic("orders", "was")
    client.create_topic("orders", partitions=2)
    client.producer("orders").send(b"of another", partition=0)
    client.producer("was").send(b"2", partition=0)
    with pytest.raises(MessageNotFound, match="is not of orders/0: it is of was") as refused:
        stream.next()
    assert refused.value.hint == "go on with was, or start with a new checkpoint"
    renamed = Stream(client.path, "was")
    renamed.start = stream.start
    assert values(renamed.next()) == {b"2"}


def test_subscription_follows_a_batch_behind(client: Client) -> None:
    """The cursor keeps what is not read yet; kills one that is ahead of the stream."""
    with pytest.raises(SubscriptionNotFound):
        Stream(client.path, subscription="reading")
    client.create_subscription("orders", "reading")
    stream = Stream(client.path, subscription="reading")
    with client.transaction() as txn:
        for _ in range(3):
            client.producer("orders").send(b"x", partition=0, txn=txn)
    client.producer("orders").send(b"y", partition=0)

    def backlog() -> int:
        [subscription] = client.subscriptions("orders")
        count: int = subscription["backlog"]
        return count

    assert len(stream.next(ReadMaxRows(3)) or []) == 3
    assert backlog() == 4
    stream.reader.commit(stream.start)
    assert backlog() == 1
    assert values(stream.next()) == {b"y"}
    stream.reader.commit(stream.start)
    assert backlog() == 0
    client.checkpoint(roll_all=True)
    client.producer("orders").send(b"z", partition=0)
    stream.reader.commit(stream.start)
    assert backlog() == 1
    client.topic("orders").watermarks.set(1, "w")
    stream.reader.commit(travelled(stream.reader.reportLatestOffset()))
    assert backlog() == 0
    stream.reader.stop()
    assert [rows for rows in Stream(client.path, subscription="reading").rest() if rows] == []


def test_files_of_a_batch_stay_until_the_next(client: Client) -> None:
    """R21: kills a task that starts late and finds its file gone."""
    client.producer("orders").send(b"x", partition=0)
    client.checkpoint()
    stream = Stream(client.path)
    end = stream.reader.latestOffset(stream.start, ALL)
    shares = stream.reader.partitions(stream.start, end)
    [source] = relation_of(client, "orders").open
    for _ in range(3):
        client.producer("orders").send(b"y", partition=0)
        client.checkpoint(roll_all=True)
    assert Path(client.path, source.ref.path).exists()
    rows = [
        row for share in shares for batch in stream.reader.read(share) for row in batch.to_pylist()
    ]
    assert values(rows) == {b"x"}
    stream.reader.stop()
    client.checkpoint(roll_all=True)
    assert not Path(client.path, source.ref.path).exists()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"start": "start"}, "no option start"),
        ({"maxRowsPerTrigger": "0"}, "number, at least 1"),
        ({"startingPosition": "x"}, "not a bound"),
        ({"subscription": ""}, "subscription"),
        ({"failOnDataLoss": "no"}, "true or false"),
    ],
)
def test_options_are_checked(client: Client, options: dict[str, str], why: str) -> None:
    """Each method of the reader raises the reason: if `reader` raised it, Spark would hide it."""
    stream_reader = reader({"path": client.path, "topic": "orders", **options}, SCHEMA)
    for ask in (
        stream_reader.initialOffset,
        lambda: stream_reader.latestOffset({}, ALL),
        lambda: stream_reader.partitions({}, {}),
    ):
        with pytest.raises(TxlogError, match=why):
            ask()


@pytest.mark.spark
def test_spark_streams_each_message_once(
    spark: SparkSession, client: Client, tmp_path: Path
) -> None:
    """Runs that end and go on from their checkpoint; batches of the size that was asked for."""
    folders = {name: str(tmp_path / name) for name in ("out", "checkpoint")}

    def run() -> list[int]:
        """The rows of each batch of one run."""
        query = (
            spark.readStream.format("txlog")
            .option("topic", "orders")
            .option("maxRowsPerTrigger", 4)
            .load(client.path)
            .writeStream.format("parquet")
            .option("path", folders["out"])
            .option("checkpointLocation", folders["checkpoint"])
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        print([progress["durationMs"] for progress in query.recentProgress])
        return [
            progress["numInputRows"]
            for progress in query.recentProgress
            if progress["numInputRows"]
        ]

    for number in range(2):
        with client.transaction() as txn:
            for partition in (0, 0, 1):
                client.producer("orders").send(b"%d" % number, partition=partition, txn=txn)
    client.checkpoint(roll_all=True)
    assert run() == [3, 3]
    client.producer("orders").send(b"3", partition=0)
    assert run() == [1]
    stored = spark.read.parquet(folders["out"]).selectExpr("string(value) AS v").collect()
    assert sorted(row["v"] for row in stored) == ["0"] * 3 + ["1"] * 3 + ["3"]


@pytest.mark.spark
def test_watermark_of_spark_drops_nothing_of_a_limited_stream(
    spark: SparkSession, client: Client, tmp_path: Path
) -> None:
    """Event time runs through a bulk load of four partitions; kills one that is read to its end."""
    client.admin.update_topic("orders", partitions=4)
    loaded(client, [[(at % 4, at * 60_000) for at in range(800)]])
    query = (
        spark.readStream.format("txlog")
        .options(topic="orders", maxRowsPerTrigger=150)
        .schema("event_time timestamp, watermark timestamp")
        .load(client.path)
        .where("watermark IS NULL OR event_time >= watermark")
        .withWatermark("event_time", "10 minutes")
        .groupBy(F.window("event_time", "1 hour"))
        .count()
        .writeStream.format("memory")
        .queryName("hours")
        .outputMode("update")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert [
        progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]
    ] == [
        *[150] * 5,
        50,
    ]
    hours = spark.table("hours").groupBy("window").agg(F.max("count").alias("n"))
    assert hours.agg(F.sum("n")).first() == (800,)

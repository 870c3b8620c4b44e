"""Messages whose values are bytes, for reading: the store, the queries, the floor of a source.

Four fifths of the messages are in transactions with a given number of messages for each marker; a
twentieth of these is aborted. `same` is the floor of any data source in Python: it reads nothing
and returns one batch of those messages until it has returned as many rows as the store has.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import txlog
from txlog.engine.relation.scans import scans_of
from txlog.lake.spark.source import read_share, shares_of

PARTITIONS = 8
SENT = 50_000  # messages a frame, or a plain batch
POOL = 20_000
TASKS = 16  # of `same`; the data source makes about as many


class Same(DataSource):
    """Repeats one batch from an Arrow file; options: path, rows."""

    @classmethod
    def name(cls) -> str:
        """The word for `format(…)`."""
        return "same"

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader that returns the rows of the option."""
        return SameReader(self.options["path"], int(self.options["rows"]))


class SameReader(DataSourceReader):
    """Repeats the batch."""

    def __init__(self, path: str, rows: int) -> None:
        self.path = path
        self.rows = rows

    def partitions(self) -> list[InputPartition]:
        """One partition for each task."""
        return [InputPartition(number) for number in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The share of one task."""
        with pa.OSFile(self.path) as file, pa.ipc.open_stream(file) as stored:
            batch = stored.read_next_batch()
        left = self.rows // TASKS
        while left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows


def same(spark: SparkSession, path: str, folder: Path, like: DataFrame) -> DataFrame:
    """A frame with the columns of `like` and as many rows as the store, made of one batch."""
    with txlog.open(path, read_only=True) as client:
        shares = shares_of(path, scans_of(client._relation("t")), {})
        rows = sum(scan.stop - scan.start for share in shares for scan in share.scans)
    batch = next(read_share(shares[-1], like.schema))
    file = folder / f"same-{len(like.columns)}-{like.columns[0]}.arrow"
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    spark.dataSource.register(Same)
    chosen = spark.read.format("same").schema(like.schema)
    return chosen.options(path=str(file), rows=rows).load()


def fill(path: str, messages: int, a_marker: int, *, is_clean: bool) -> None:
    """Make the store, with `a_marker` messages for each marker; is_clean: seal files clean."""
    rng = random.Random(7)
    values = [
        b'{"id": %d, "pad": "%s"}' % (n, rng.randbytes(38).hex().encode()) for n in range(POOL)
    ]
    keys = [b"key-%d" % (n % 5000) for n in range(POOL)]
    pool = pa.table({"value": pa.array(values, pa.binary()), "key": pa.array(keys, pa.binary())})
    txlog.init(path, durability="os", free_bytes_min=0)
    with txlog.open(path) as client:
        client.checkpoint_automatically = False
        client.create_topic("t", partitions=PARTITIONS)
        producer = client.producer("t")
        held = client.transaction(timeout_ms=3_600_000)
        if not is_clean:
            producer.send_batch(_spread(pool.slice(0, PARTITIONS)), txn=held)
        sent = 0
        while sent < messages:
            count = min(SENT, messages - sent)
            rows = _spread(pool.take(pa.array([rng.randrange(POOL) for _ in range(count)])))
            plain = count // 5
            producer.send_batch(rows.slice(0, plain))
            step = a_marker * PARTITIONS  # messages of a transaction: a marker in each partition
            for start in range(plain, count, step):
                txn = client.transaction()
                producer.send_batch(rows.slice(start, step), txn=txn)
                if rng.random() < 0.05:
                    txn.abort()
                else:
                    txn.commit()
            sent += count
            client.checkpoint(roll_all=sent % (40 * SENT) == 0)
        client.checkpoint(roll_all=True)
        if not is_clean:
            client.admin.compact("t")
        else:
            held.abort()
            client.checkpoint(roll_all=True)


def _spread(rows: pa.Table) -> pa.Table:
    """Spread rows over all partitions."""
    partition = pa.array([n % PARTITIONS for n in range(rows.num_rows)], pa.int32())
    return rows.append_column("partition", partition)


def payload(frame: DataFrame) -> object:
    """Look at every byte of every value."""
    return frame.agg(F.sum(F.octet_length("value")), F.max("value")).collect()


def by_key(frame: DataFrame) -> object:
    """Count by key."""
    return frame.groupBy("key").count().agg(F.sum("count")).collect()


def stream(
    spark: SparkSession, path: str, checkpoints: Path, columns: str, rows: int
) -> tuple[int, float]:
    """Stream the store; returns the messages and the seconds of the batches."""
    query = (
        spark.readStream.format("txlog")
        .schema(columns)
        .option("topic", "t")
        .option("maxRowsPerTrigger", rows)
        .load(path)
        .writeStream.format("noop")
        .option("checkpointLocation", str(checkpoints))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    done = [one for one in query.recentProgress if one["numInputRows"]][1:]  # the first warms up
    taken = sum(one["durationMs"]["triggerExecution"] for one in done) / 1000
    return sum(one["numInputRows"] for one in done), taken

"""Tests of txlog.spark.read: Spark sees the messages that a reader sees, row for row."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

import txlog
from tests.engine_kit import relation_of
from tests.sql.test_querying import SAME, STEPS, History
from tests.sql.test_scanning import place, some_range
from tests.sql.test_scanning import read as ranged
from txlog import Client, MessageId
from txlog.base.ranges import END, Range
from txlog.errors import InvalidArgument, PartitionUnavailable, StoreNotFound, TopicNotFound
from txlog.lake.spark import reading
from txlog.lake.spark.reading import frame_of, local_frame
from txlog.spark import read, release

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_disk")]
SEEDS = (19, 34)  # their histories end with rows in files of every kind


def in_order(frame: DataFrame) -> list[dict[str, object]]:
    """The rows of a frame, in the order of the log."""
    rows: list[dict[str, object]] = (
        frame.orderBy("partition", "ledger", "entry", "txn_index").toArrow().to_pylist()
    )
    return rows


def compare(spark: SparkSession, history: History, rng: random.Random) -> None:
    """Spark gives what a reader gives, and the rest follows from it."""
    tables = list(history.client.read("t"))
    expected = pa.concat_tables(tables).to_pylist() if tables else []
    expected.sort(key=lambda row: (row["partition"], row["ledger"], row["entry"], row["index"]))
    actual = in_order(read(spark, history.path, "t"))
    assert [{name: row[name] for name in SAME} for row in actual] == [
        {name: row[name] for name in SAME} for row in expected
    ]
    assert [(row["txn_index"], row["message_id"], row["size_bytes"]) for row in actual] == [
        (
            row["index"],
            str(MessageId(row["ledger"], row["entry"], row["index"] or 0)),
            len(row["value"] or b""),
        )
        for row in expected
    ]
    assert None not in [row["lsn"] for row in actual]
    compare_part(spark, history, actual, rng)


def compare_part(
    spark: SparkSession, history: History, rows: list[dict[str, object]], rng: random.Random
) -> None:
    """Compare a random range with a reader's, and a random LSN with the rows up to that LSN."""
    everything = ranged(history.client, Range())
    bounds = some_range(rng, everything)
    frame_rows = in_order(read(spark, history.path, "t", start=bounds.start, end=bounds.stop))
    assert [place(row) for row in frame_rows] == [
        place(row) for row in ranged(history.client, bounds)
    ], str(bounds)
    if rows:
        lsn = rng.choice([row["lsn"] for row in rows])
        assert isinstance(lsn, int)
        old = read(spark, history.path, "t", at_lsn=lsn, partitions=[0])
        assert in_order(old) == [
            row
            for row in rows
            if row["lsn"] <= lsn and row["partition"] == 0  # type: ignore[operator]
        ]


def run(
    spark: SparkSession, folder: Path, seed: int, every: int, *, loads: bool = False
) -> Counter[str]:
    """Run one history, comparing after so many steps; where rows lay, counted."""
    history = History(folder, str(seed))
    seen: Counter[str] = Counter()
    try:
        for number in range(STEPS):
            history.step(random.Random(f"{seed}:{number}"))
            if loads and number % 5 == 4:
                history.load(random.Random(f"{seed}:{number} load"))
            if number % every == every - 1:
                compare(spark, history, random.Random(f"{seed}:{number}"))
                relation = relation_of(history.client, "t")
                for name in ("direct", "unclean", "open", "large_files"):
                    seen[name] += len(getattr(relation, name))
                seen["tail"] += relation.tail.num_rows
    except BaseException:
        print(f"seed {seed}: {' '.join(history.trace)}")
        raise
    finally:
        history.client.close()
    return seen


def test_spark_reads_the_messages_of_a_reader(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """API = Spark, after any history, and with rows and markers in files of any kind."""
    monkeypatch.setattr(reading, "_MARKERS_FEW", 2)
    monkeypatch.setattr(reading, "_EDGES_FEW", 1)
    seen: Counter[str] = Counter()
    for few, seed in zip((10 << 20, -1), SEEDS, strict=True):  # with the plan; by a file
        monkeypatch.setattr(reading, "_LOCAL_BYTES", few)
        seen += run(spark, tmp_path, seed, every=STEPS)
    assert set(seen) == {"direct", "unclean", "open", "large_files", "tail"}


def test_spark_sees_files_that_were_adopted(spark: SparkSession, tmp_path: Path) -> None:
    """The same with batches that were written as files between the steps."""
    run(spark, tmp_path, 11, every=60, loads=True)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1030, 5))
def test_spark_reads_the_messages_of_a_reader_in_many_histories(
    spark: SparkSession, tmp_path: Path, first: int
) -> None:
    """The same, 30 more."""
    for seed in range(first, first + 5):
        run(spark, tmp_path, seed, every=10)


def test_frame_has_the_columns_of_messages_also_when_it_is_empty(
    spark: SparkSession, client: Client
) -> None:
    names = (
        "topic partition message_id ledger entry txn_index key value properties publish_time"
        " event_time deliver_at visible_time producer sequence_id lsn size_bytes"
    )
    empty = read(spark, client.path, "orders")
    assert empty.columns == names.split()
    assert empty.count() == 0
    client.producer("orders").send(b"x", partition=0)
    client.checkpoint(roll_all=True)
    client.producer("orders").send(b"y", partition=0)
    full = read(spark, client.path, "orders")
    assert [(f.name, f.dataType) for f in full.schema] == [
        (f.name, f.dataType) for f in empty.schema
    ]
    assert [row["value"] for row in in_order(full)] == [b"x", b"y"]


def test_local_rows_do_not_depend_on_their_chunks(spark: SparkSession) -> None:
    """Kills: rows in frames that are lost because another partition has none there."""
    column = pa.chunked_array([pa.array([], pa.int64()), [1, 2], [], [3]], pa.int64())
    rows = local_frame(spark, pa.table({"n": column})).collect()
    assert [row["n"] for row in rows] == [1, 2, 3]


def test_many_local_rows_are_not_a_part_of_the_plan(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a driver that decodes all columns for every query, and changed settings of the
    session afterwards.
    """
    name = "spark.sql.execution.arrow.localRelationThreshold"
    setting_before = spark.conf.get(name)
    table = pa.table({"n": [1, 2, 3]})
    assert "LocalTableScan" in local_frame(spark, table)._jdf.queryExecution().toString()
    monkeypatch.setattr(reading, "_LOCAL_BYTES", 8)
    frame = local_frame(spark, table)
    assert "LocalTableScan" not in frame._jdf.queryExecution().toString()
    assert [row["n"] for row in frame.collect()] == [1, 2, 3]
    assert spark.conf.get(name) == setting_before


def scratch_of(spark: SparkSession) -> set[str]:
    """The files of frames that are in Spark's scratch directory."""
    return {path.name for path in Path(spark.sparkContext._temp_dir or "").glob("*.parquet")}


def test_many_rows_of_the_journal_are_a_file_that_goes_with_its_frame(
    spark: SparkSession, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a query that decodes all columns of these rows, and a copy that outlives its frame."""
    client.producer("orders").send_batch(pa.table({"value": [b"x", b"y"], "key": [b"a", None]}))
    monkeypatch.setattr(reading, "_LOCAL_BYTES", 8)
    files_before = scratch_of(spark)
    frame = read(spark, client.path, "orders")
    assert len(scratch_of(spark) - files_before) == 1
    plan = frame.select("key")._jdf.queryExecution().executedPlan().toString()
    assert "FileScan parquet [key" in plan
    assert "ReadSchema: struct<key:binary>" in plan
    assert sorted(row["value"] for row in frame.collect()) == [b"x", b"y"]
    release(spark)
    assert not scratch_of(spark) - files_before


def test_a_file_of_rows_goes_when_the_frame_cannot_be_made(
    spark: SparkSession, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.producer("orders").send(b"x")
    monkeypatch.setattr(reading, "_LOCAL_BYTES", 8)
    monkeypatch.setattr(reading, "from_arrow_schema", lambda schema: 1 / 0)
    files_before = scratch_of(spark)
    with pytest.raises(ZeroDivisionError):
        read(spark, client.path, "orders")
    assert scratch_of(spark) == files_before


def test_rows_travel_with_the_plan_where_executors_are_elsewhere(
    spark: SparkSession, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills a frame with a file that only the driver's machine has."""
    client.producer("orders").send(b"x")
    monkeypatch.setattr(reading, "_LOCAL_BYTES", 8)
    monkeypatch.setattr(reading, "is_local", lambda master: False)
    files_before = scratch_of(spark)
    assert [row["value"] for row in read(spark, client.path, "orders").collect()] == [b"x"]
    assert scratch_of(spark) == files_before


def test_frame_stays_at_its_moment(spark: SparkSession, client: Client) -> None:
    """Kills: a frame that reads the store anew, so that two uses of it disagree."""
    producer = client.producer("orders")
    producer.send(b"x", partition=0)
    frame = read(spark, client.path, "orders")
    producer.send(b"y", partition=0)
    client.checkpoint(roll_all=True)
    assert frame.count() == 1
    assert read(spark, client.path, "orders").count() == 2


def test_sealed_files_are_scanned_once_and_pruned_by_partition(
    spark: SparkSession, client: Client
) -> None:
    """Kills: a scan for each file, a plan that reads partitions outside of the filter, and one that
    filters clean files or needs the names of files.
    """
    for partition in (0, 1, 0, 1):
        with client.transaction() as txn:
            client.producer("orders").send(b"x", partition=partition, txn=txn)
        client.producer("orders").send(b"y", partition=partition)
        client.checkpoint(roll_all=True)
    frame = read(spark, client.path, "orders").where("partition = 1").select("key")
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert plan.count("FileScan parquet") == 2, "clean files, and those that hold markers too"
    assert plan.count("PartitionFilters: [isnotnull(partition") == 2
    assert plan.count("Filter (isnotnull(kind") == 1
    assert "file_name" not in plan
    assert "value" not in plan
    assert "Join" not in plan
    assert len(frame.collect()) == 4


def test_files_without_a_count_are_read_by_directory_or_name(
    spark: SparkSession, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/format.md 7: kills a frame that takes a column for granted that such files lack, one
    that gives a row the ledger of another file, and one that asks for names of files needlessly.
    """
    for partition in (0, 1, 0, 1):
        with client.transaction() as txn:
            client.producer("orders").send(b"x", partition=partition, txn=txn)
        client.producer("orders").send(b"y", partition=partition)
        if partition:
            client.checkpoint(roll_all=True)
    content = client._content("orders")
    direct = [
        replace(source, ref=msgspec.structs.replace(source.ref, messages=-1))
        for source in content.relation.direct
    ]
    assert len(direct) == 8
    uncounted = replace(content, relation=replace(content.relation, direct=direct))
    rows = in_order(read(spark, client.path, "orders"))
    assert len(rows) == 8
    for few, is_named in ((2, False), (1, True)):
        monkeypatch.setattr(reading, "_LAYERS_FEW", few)
        frame = frame_of(spark, client.path, uncounted)
        plan = frame._jdf.queryExecution().executedPlan().toString()
        assert ("file_name" in plan) is is_named
        assert in_order(frame) == rows


def test_damaged_page_is_an_error(spark: SparkSession, client: Client) -> None:
    """R5: kills: a user's own session that reads flipped bits as data."""
    client.producer("orders").send(random.Random(7).randbytes(5000), partition=0)
    client.checkpoint(roll_all=True)
    [source] = relation_of(client, "orders").direct
    file = Path(client.path, source.ref.path)
    frame = read(spark, client.path, "orders")
    data = bytearray(file.read_bytes())
    data[2000] ^= 4
    file.chmod(0o600)
    file.write_bytes(data)
    spark.conf.set("parquet.page.verify-checksum.enabled", "false")
    try:
        with pytest.raises(Py4JJavaError, match="could not verify page integrity"):
            frame.select("value").collect()
    finally:
        spark.conf.unset("parquet.page.verify-checksum.enabled")


def test_missing_file_is_an_error_of_the_frame(spark: SparkSession, client: Client) -> None:
    """R21: kills: silently missing rows, also where the session would ignore missing files."""
    client.producer("orders").send(b"x", partition=0)
    client.checkpoint(roll_all=True)
    [source] = relation_of(client, "orders").direct
    frame = read(spark, client.path, "orders")
    Path(client.path, source.ref.path).unlink()
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        with pytest.raises(Py4JJavaError, match="FILE_NOT_EXIST"):
            frame.collect()
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")


def test_unavailable_partition_is_an_error_of_the_frame(
    spark: SparkSession, client: Client
) -> None:
    """Kills: a count that is silently too small."""
    client.producer("orders").send(b"x", partition=1)
    client.admin.set_offline("orders", 1)
    with pytest.raises(PartitionUnavailable):
        read(spark, client.path, "orders")


def test_names_of_stores_and_topics_are_no_patterns(spark: SparkSession, tmp_path: Path) -> None:
    """Kills: a path that Spark takes for a pattern or a URI, and a partition column from above."""
    path = str(tmp_path / "it's [a] *?{b}%41 \\c" / "key=1" / "partition=7")
    Path(path).parent.mkdir(parents=True)
    txlog.init(path)
    with txlog.open(path) as client:
        client.create_topic("a.b/ns/Orders-1")
        with client.transaction() as txn:
            client.producer("a.b/ns/Orders-1").send(b"in", txn=txn)
        client.producer("a.b/ns/Orders-1").send(b"plain")
        client.checkpoint(roll_all=True)
    rows = in_order(read(spark, path, "a.b/ns/Orders-1"))
    assert [(row["topic"], row["partition"], row["value"]) for row in rows] == [
        ("a.b/ns/Orders-1", 0, b"in"),
        ("a.b/ns/Orders-1", 0, b"plain"),
    ]


def test_missing_topic_and_store_are_named(
    spark: SparkSession, client: Client, tmp_path: Path
) -> None:
    with pytest.raises(TopicNotFound, match="orders2"):
        read(spark, client.path, "orders2")
    with pytest.raises(StoreNotFound):
        read(spark, str(tmp_path / "nowhere"), "orders")


def test_frame_keeps_files_that_the_store_removes(spark: SparkSession, tmp_path: Path) -> None:
    """R18; kills: a frame without a pin, a pin that never ends, a pin on the wrong files."""
    path = str(tmp_path / "store")
    txlog.init(path, reader_grace_ms=0)
    with txlog.open(path) as client:
        client.checkpoint_automatically = False
        client.create_topic("orders")
        producer = client.producer("orders")
        producer.send(b"plain")
        with client.transaction() as txn:
            producer.send(b"in a transaction", txn=txn)
        client.checkpoint(roll_all=True)
        client.checkpoint()
        frame = read(spark, path, "orders")
        files_before = set(Path(path).glob("topics/**/*.parquet"))
        assert len(files_before) == 2
        client.admin.trim("orders", END, force_unacked=True)
        client.checkpoint()
        client.checkpoint()
        client.admin.gc(True, 0)
        assert set(Path(path).glob("topics/**/*.parquet")) == files_before
        assert [row["value"] for row in in_order(frame)] == [b"plain", b"in a transaction"]
        assert in_order(read(spark, path, "orders")) == []
        release(spark)
        client.checkpoint()
        assert list(Path(path).glob("topics/**/*.parquet")) == []
        assert list(Path(path, "pins").iterdir()) == []


def test_bounds_are_words_too_and_are_checked(spark: SparkSession, client: Client) -> None:
    for number in range(3):
        client.producer("orders").send(b"%d" % number, partition=0)
    client.checkpoint(roll_all=True)
    for number in range(3, 5):
        client.producer("orders").send(b"%d" % number, partition=0)

    def values(**bounds: str) -> list[object]:
        return [row["value"] for row in in_order(read(spark, client.path, "orders/0", **bounds))]  # type: ignore[arg-type]

    assert values(start="+1", end="-1") == [b"1", b"2", b"3"]
    assert values(start="1:1", end="1:2") == [b"1"]
    assert values(start="latest") == []
    with pytest.raises(InvalidArgument, match="not a bound"):
        values(start="soon")
    with pytest.raises(InvalidArgument, match="no LSN"):
        read(spark, client.path, "orders", at_lsn=99)


def test_range_leaves_out_files_and_row_groups(spark: SparkSession, client: Client) -> None:
    """Kills: a range that is a filter over everything."""
    for _ in range(3):
        with client.transaction() as txn:
            client.producer("orders").send(b"x", partition=0, txn=txn)
        client.producer("orders").send(b"y", partition=0)
        client.checkpoint(roll_all=True)
    rows = in_order(read(spark, client.path, "orders"))
    part = read(spark, client.path, "orders", start=str(rows[3]["message_id"]), end="-1")
    assert in_order(part) == rows[3:5]
    assert len(part.inputFiles()) == 3
    plan = part._jdf.queryExecution().executedPlan().toString()
    assert "GreaterThanOrEqual(entry,1)" in plan


def test_unavailable_partitions_can_be_left_out(spark: SparkSession, client: Client) -> None:
    for partition in (0, 1):
        client.producer("orders").send(b"x", partition=partition)
    client.admin.set_offline("orders", 1)
    with pytest.warns(UserWarning, match="left out unavailable partitions: 1"):
        frame = read(spark, client.path, "orders", skip_unavailable=True)
    assert [row["partition"] for row in in_order(frame)] == [0]


def test_many_markers_are_read_by_spark_and_named(
    spark: SparkSession, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a million markers in the plan, and a slow plan without a warning."""
    open_txn = client.transaction(write_through=True)  # keeps the sidecar from being clean
    client.producer("orders").send(b"held", partition=0, txn=open_txn)
    for number in range(3):
        with client.transaction() as txn:
            client.producer("orders").send(b"%d" % number, partition=0, txn=txn)
    client.checkpoint(roll_all=True)
    assert relation_of(client, "orders").markers.num_rows == 3
    monkeypatch.setattr(reading, "_MARKERS_FEW", 2)
    monkeypatch.setattr(reading, "_MARKERS_MANY", 2)
    with pytest.warns(UserWarning, match="txlog admin compact orders"):
        frame = read(spark, client.path, "orders")
    assert [row["value"] for row in in_order(frame)] == [b"0", b"1", b"2"]
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "EqualTo(kind,1)" in plan
    open_txn.abort()


def test_uncommitted_rows_of_a_frame_have_a_state(spark: SparkSession, client: Client) -> None:
    """Isolation uncommitted: kills a preview that looks like a message."""
    txn = client.transaction(write_through=True)
    client.producer("orders").send(b"open", txn=txn)
    client.checkpoint()
    with client.transaction() as other:
        client.producer("orders").send(b"in", txn=other)
    client.producer("orders").send(b"plain")
    rows = in_order(read(spark, client.path, "orders", isolation="uncommitted"))
    assert {(row["value"], row["txn_state"], row["message_id"] is None) for row in rows} == {
        (b"open", "open", True),
        (b"in", "committed", False),
        (b"plain", None, False),
    }
    assert read(spark, client.path, "orders", isolation="uncommitted", end="-1").count() == 1


def test_several_topics_are_as_of_one_moment(
    spark: SparkSession, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spec 8: another client commits to both topics before each frame, and no frame shows it."""
    client.create_topic("bills")

    def write() -> None:
        with client.transaction() as txn:
            for topic in ("orders", "bills"):
                client.producer(topic).send(b"x", partition=0, txn=txn)

    class Hooked(reading._Plan):
        def frame(self) -> DataFrame:
            write()
            client.checkpoint(roll_all=True)
            return super().frame()

    write()
    monkeypatch.setattr(reading, "_Plan", Hooked)
    frame = read(spark, client.path, ["orders", "bills"])
    rows = frame.groupBy("topic").count().orderBy("topic").collect()
    assert [tuple(row) for row in rows] == [("bills", 1), ("orders", 1)]
    monkeypatch.undo()
    assert read(spark, client.path, ["orders", "bills"]).count() == 6
    with pytest.raises(InvalidArgument, match="no topic"):
        read(spark, client.path, [])


def test_a_plain_spark_reads_the_logs_of_changes(spark: SparkSession, tmp_path: Path) -> None:
    """As any other Parquet: spark.read.parquet, of a directory and of a pattern."""
    path = str(tmp_path / "s")
    txlog.init(path)
    with txlog.open(path) as client:
        client.create_topic("t", 2)
        client.create_subscription("t", "s")
        client.connect("k")
        client.connect("k")
        sent = [client.producer("t").send(b"x", partition=1).message_id for _ in range(4)]
        client.acknowledge(
            "t", "s", [message_id for message_id in sent[1:3] if message_id is not None]
        )
        client.admin.compact_changes()
    keys = spark.read.parquet(f"{path}/system/__transaction_key")
    assert [tuple(row) for row in keys.select("transaction_key", "epoch").collect()] == [("k", 1)]
    cursors = spark.read.parquet(f"{path}/topics/*/*/*/partition=*/_cursors/s")
    rows = cursors.where("partition = 1").selectExpr("explode(acknowledged) AS r").collect()
    assert [(row.r.first, row.r.last) for row in rows] == [(1, 2)]
    catalog = spark.read.parquet(f"{path}/system/catalog")
    assert catalog.where("entity LIKE 'subscription/%'").count() == 1

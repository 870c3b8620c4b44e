"""Tests of the jobs bulk-load and replay on Spark: the same messages as by DuckDB, once."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import txlog
from tests.jobs.histories import WITHOUT_TRIMS, step
from tests.jobs.test_bulk_load import AS_TEXT, MISENCODED, rows
from tests.sql.test_querying import STEPS, History
from txlog import Client
from txlog.base.ranges import Range
from txlog.base.rows.jobs import BulkLoaded
from txlog.errors import BadRecord, CommandFailed, InvalidArgument
from txlog.lake.jobs.engine import Engine
from txlog.lake.jobs.import_files import bulk_load
from txlog.lake.jobs.local import Local
from txlog.lake.jobs.replay import replay
from txlog.lake.jobs.sources.loads import Columns, files_of
from txlog.spark import Spark
from txlog.spark.jobs.bulk_load import main as bulk_load_main
from txlog.spark.jobs.replay import main as replay_main

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_disk", "spark")]
SAME = ("key", "value", "event_time", "properties", "deliver_at", "sequence_id")


def engine() -> Spark:
    """The engine over the session of the tests."""
    return Spark(None, {})


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """Return a client of a store with topics `here` and `there`."""
    txlog.init(str(tmp_path / "store"))
    with txlog.open(str(tmp_path / "store")) as opened:
        opened.checkpoint_automatically = False
        opened.create_topic("here", partitions=2)
        opened.create_topic("there", partitions=2)
        yield opened


def stored(client: Client, topic: str) -> list[tuple[object, ...]]:
    """The messages of a topic by partition, without their order and ids."""
    messages = [
        (row["partition"] if row["key"] else None, *(row[name] for name in SAME))
        for row in rows(client, topic)
    ]
    return sorted(messages, key=repr)


def load(client: Client, path: Path, columns: Columns, topic: str, by: Engine) -> BulkLoaded:
    return bulk_load(client, files_of([str(path)], None, columns), topic, f"of-{topic}", by)


SLOW = pytest.mark.slow
FORMS = [
    ("a[b]", Columns()),
    pytest.param("a.csv", Columns("k", None, "t"), marks=SLOW),
    pytest.param("a.csv", Columns("k", "v"), marks=SLOW),
    pytest.param("a.ndjson", Columns("k", None, "t"), marks=SLOW),
    ("a.csv", Columns("k", None, "t", ("v", "t"))),
]


@pytest.mark.parametrize(("name", "columns"), FORMS)
def test_spark_reads_sources_as_duckdb_does(
    client: Client, tmp_path: Path, name: str, columns: Columns
) -> None:
    """DuckDB = Spark: keys, values, instants, properties, nulls, and where a key goes."""
    table = pa.table(
        {
            "value": pa.array([b"a", None, b""]),
            "key": ["x", None, "y"],
            "sequence_id": [1, 2, 3],
            "event_time": pa.array([1_700_000_000_123] * 3, pa.int64()),
            "properties": pa.array([[("a", "b")], None, []], pa.map_(pa.string(), pa.string())),
        }
    )
    (tmp_path / "a[b]").mkdir()
    pq.write_table(table, tmp_path / "a[b]" / "rows.parquet")
    text = 'k,t,v\none,2026-11-20T12:00:00.5Z,"x,\n""1"\n,,\n2,1795165924117,x\n3,1795165924,x\n'
    (tmp_path / "a.csv").write_text(text)
    lines = [
        '{"k":"\\u00e9","t":"2026-11-20T12:00:00Z"}',
        '{ "k": "b" }',
        "{}",
        '{"t":1795165924117}',
    ]
    (tmp_path / "a.ndjson").write_text("\n".join(lines))
    local = load(client, tmp_path / name, columns, "here", Local())
    spark = load(client, tmp_path / name, columns, "there", engine())
    assert {**spark, "topic": "here", "txn": None, "ledgers": None} == {
        **local,
        "txn": None,
        "ledgers": None,
    }
    assert stored(client, "there") == stored(client, "here")
    assert load(client, tmp_path / name, columns, "there", engine())["already"]
    assert len(rows(client, "there")) >= 2


def test_source_that_cannot_be_read_leaves_nothing(client: Client, tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_text('{"a":1}\n[1]\n{"a":\n')
    with pytest.raises(BadRecord, match=r"a\.ndjson: line 2: not a JSON object, and 1 more$"):
        load(client, tmp_path / "a.ndjson", Columns(), "there", engine())
    (tmp_path / "a.csv").write_text("value,event_time\na,2026-11-20\na,soon\n")
    with pytest.raises(BadRecord, match="soon"):
        load(client, tmp_path / "a.csv", Columns(), "there", engine())
    for text in (
        "value,b\na\n",
        "value,b\na,b,c\n",  # of another length, b is not wanted
        'value\na\n"b\nc\n',
        'value,b\na,"b\nc,d\n',
    ):
        (tmp_path / "b.csv").write_text(text)
        with pytest.raises(BadRecord, match=r"b\.csv: line"):
            load(client, tmp_path / "b.csv", Columns(), "there", engine())
    with pytest.raises(InvalidArgument, match="no column nope"):
        load(client, tmp_path / "a.csv", Columns("nope"), "there", engine())
    assert rows(client, "there") == []
    assert list(Path(client.path).glob("topics/**/_stage/*")) == []


HARD = [
    'a,b\r\n"x\r\ny","p\nq"\r\n3,""\r\n"u\rv",\r\n"",4\r\n,5\r\n,\r\n"",""\r\n',
    'a,b\n1,""\n2,\n"",3\n,4\n"",""\n,\n"x\r\ny",5\n',
    'a,b\r1,""\r,4\r',
    'a,b\n"he said ""hi""",\u00e9\n"""",x"y\n\u00a0,z""w\n"",""""""\n',
    'a,b\n"1\n2\n",x\n"\n",""\n\n5,6',
    "a,b\nNULL,null\nnan,\\N\n007,1e5\n#1,' '\n\\,\\\n",
    "a,b\n",
    'a,b\n1, "x"\n',
    "a\n1\n\n2\n",  # a blank line of one column is a row
    "a,a\n1,2\n",
]


@pytest.mark.parametrize(
    "texts", [HARD[:1], pytest.param(HARD[1:], marks=SLOW)], ids=["first", "others"]
)
def test_spark_reads_csv_as_duckdb_does(client: Client, tmp_path: Path, texts: list[str]) -> None:
    """Missing and empty values, quotes, ends of lines, and text that Spark parses differently."""
    path = tmp_path / "a.csv"
    for text in texts:
        path.write_text(text, newline="")
        columns = Columns("a", "b") if text.startswith("a,b") else Columns()
        source = files_of([str(path)], None, columns)
        for topic, by in (("here", Local()), ("there", engine())):
            planned = bulk_load(client, source, topic, f"of-{topic}", by, dry_run=True)
            answer = bulk_load(client, source, topic, f"of-{topic}", by)
            assert answer["messages"] == planned["messages"] or answer["already"], text
    assert stored(client, "there") == stored(client, "here")


def test_spark_decodes_text_by_its_encoding(client: Client, tmp_path: Path) -> None:
    """Kills: base64 stored undecoded, and a value without an encoding that becomes null."""
    head = "value,value_encoding,key,key_encoding\n"
    (tmp_path / "good.csv").write_text(head + '"",utf8,"",base64\n,,eA==,base64\né,utf8,k,utf8\n')
    for topic, by in (("here", Local()), ("there", engine())):
        assert load(client, tmp_path / "good.csv", Columns(), topic, by)["messages"] == 3
    assert stored(client, "there") == stored(client, "here")
    assert {row["key"] for row in rows(client, "there")} == {b"", b"x", b"k"}
    stored_before = stored(client, "there")
    for row, error_text in MISENCODED:
        (tmp_path / "bad.csv").write_text(f"{head}a,utf8,,\n{row}\n")
        with pytest.raises(BadRecord, match=error_text):
            load(client, tmp_path / "bad.csv", Columns(), "there", engine())
        table = pacsv.read_csv(tmp_path / "bad.csv", convert_options=AS_TEXT)
        pq.write_table(table, tmp_path / "bad.parquet")
        with pytest.raises(CommandFailed, match=error_text.rpartition(": ")[2].removesuffix("$")):
            load(client, tmp_path / "bad.parquet", Columns(), "there", engine())
    assert stored(client, "there") == stored_before


@pytest.mark.slow
def test_spark_replays_as_duckdb_does(tmp_path: Path) -> None:
    history = History(tmp_path, "replay")
    names = tuple(name for name in WITHOUT_TRIMS if name != "send_large")
    for number in range(STEPS):
        step(history, random.Random(f"4:{number}"), names)
    with history.client as client:
        for topic in ("here", "there"):
            client.create_topic(topic, 2)
        whole = ("", Range())
        local = replay(client, "t", "here", whole, "k", Local())
        spark = replay(client, "t", "there", whole, "k2", engine())
        assert {**spark, "dest": "here", "txn": None} == {**local, "txn": None}
        assert spark["written"]
        assert stored(client, "there") == stored(client, "here")
        assert replay(client, "t", "there", whole, "k2", engine())["already"]


def shout(frame: DataFrame) -> DataFrame:
    """Only messages with a key, their values in capitals."""
    return frame.where("key IS NOT NULL").withColumn(
        "value", F.upper(F.col("value").cast("string")).cast("binary")
    )


def fail_later(frame: DataFrame) -> DataFrame:
    """A function that Spark calls while it stores the messages."""
    return frame.withColumn("value", F.raise_error(F.lit("no such country")).cast("binary"))


def test_programs_of_spark_submit(
    client: Client, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.csv").write_text("value,key\na,k\nb,\n")
    words = [str(tmp_path / "a.csv"), "here", "--transaction-key", "k", "-S", client.path]
    for dry, messages, already in ((True, 2, False), (False, 2, False), (False, 2, True)):
        assert bulk_load_main([*words, "--json", *["--dry-run"] * dry]) == 0
        answer = json.loads(capfd.readouterr().out)
        assert (answer["engine"], answer["messages"], answer["already"]) == (
            "spark",
            messages,
            already,
        )
    words = ["here", "there", "--transaction-key", "of-there", "-S", client.path, "--json"]
    transform = f"{Path(__file__)}:shout"
    assert replay_main([*words, "--transform", transform]) == 0
    answer = json.loads(capfd.readouterr().out)
    assert (answer["read"], answer["written"]) == (2, 1)
    assert [row["value"] for row in rows(client, "there")] == [b"A"]
    for wrong, message in (
        ("textwrap:dedent", "the transform failed"),
        ("textwrap:dedent", " of here/"),
        (f"{Path(__file__)}:fail_later", " of here/"),
        ("builtins:repr", "not a DataFrame"),
    ):
        assert replay_main([*words, "--transform", wrong]) == 1
        assert message in capfd.readouterr().err

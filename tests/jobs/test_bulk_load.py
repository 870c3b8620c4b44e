"""Tests of the jobs bulk-load and replay on DuckDB: a load is complete or absent, is done once, and
keeps each value.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

import txlog
from tests.harness import KILLED, python, run
from tests.jobs.histories import WITHOUT_TRIMS, step
from tests.source_tree import ROOT
from tests.sql.test_querying import FIRST, STEPS, History
from txlog import Client
from txlog.base.ids import TopicName
from txlog.base.ranges import Range, parse_range
from txlog.base.rows.jobs import BulkLoaded
from txlog.errors import (
    BadRecord,
    CommandFailed,
    InvalidArgument,
    NotFound,
    TopicNotFound,
)
from txlog.lake.jobs.audit import audit
from txlog.lake.jobs.import_files import bulk_load
from txlog.lake.jobs.local import Local
from txlog.lake.jobs.replay import replay
from txlog.lake.jobs.sources.loads import Columns, files_of

pytestmark = pytest.mark.usefixtures("quick_disk")
# Rows with text that does not match its encoding, and the reason.
MISENCODED = [
    ("a,,,", "line 3: value without value_encoding$"),
    ("a,utf8,k,", "line 3: key without key_encoding$"),
    (",utf8,,", "value_encoding without value$"),  # a quoted empty cell would be a value
    ("a,json,,", "line 3: value_encoding is utf8, base64 or nothing$"),
    ("eA=A,base64,,", "line 3: value is not base64$"),
]
AS_TEXT = pacsv.ConvertOptions(
    column_types={name: pa.string() for name in ("value", "value_encoding", "key", "key_encoding")},
    strings_can_be_null=True,
    quoted_strings_can_be_null=False,
)
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """Return a client of a store with topics `orders`, of two partitions, and `copy`."""
    txlog.init(str(tmp_path / "store"))
    with txlog.open(str(tmp_path / "store")) as opened:
        opened.checkpoint_automatically = False
        opened.create_topic("orders", partitions=2)
        opened.create_topic("copy", partitions=3)
        yield opened


def load(client: Client, path: Path, columns: Columns = Columns(), **more: Any) -> BulkLoaded:  # noqa: B008
    """Load a file into `orders` under one key."""
    return bulk_load(client, files_of([str(path)], None, columns), "orders", "k", Local(), **more)


def rows(client: Client, topic: str = "orders") -> list[dict[str, Any]]:
    """The messages of a topic, partition by partition, in order."""
    messages = [row for table in client.read(topic) for row in table.to_pylist()]
    return sorted(
        messages, key=lambda r: (r["partition"], r["ledger"], r["entry"], r["index"] or 0)
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'a,b\n1\n"x', "line 2: 1 field where the header has 2"),
        (b'a,b\n"1\n2",2\n\n3', "line 5: 1 field where the header has 2"),
        (b"a,b\n1,2,3\n", "line 2: 3 fields where the header has 2"),
        (b'a,b\n1,2\n"x', "line 3: a quote is open at the end of the file"),
        (b"a,b\n1,2\n\xff,3\n", "line 3: not UTF-8"),
    ],
)
def test_csv_is_read_without_guesses(
    client: Client, tmp_path: Path, text: bytes, said: str
) -> None:
    """Guards against a file that is read in another shape because of rows of different length or an
    open quote.
    """
    (tmp_path / "bad.csv").write_bytes(text)
    with pytest.raises(BadRecord, match=rf"bad\.csv: {said}$"):
        load(client, tmp_path / "bad.csv")
    assert rows(client) == []
    (tmp_path / "good.csv").write_text("value\n#x\ny;z\n")
    assert load(client, tmp_path / "good.csv")["messages"] == 2  # neither a comment nor two columns
    assert sorted(row["value"] for row in rows(client)) == [b"#x", b"y;z"]


@pytest.mark.parametrize(("row", "said"), MISENCODED)
def test_text_that_does_not_match_its_encoding_is_refused(
    client: Client, tmp_path: Path, row: str, said: str
) -> None:
    """Guards against a value without its encoding that is stored as null, and against invalid
    base64.
    """
    lines = ["value,value_encoding,key,key_encoding", "a,utf8,,", row]
    (tmp_path / "bad.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(BadRecord, match=said):
        load(client, tmp_path / "bad.csv")
    table = pacsv.read_csv(tmp_path / "bad.csv", convert_options=AS_TEXT)
    pq.write_table(table, tmp_path / "bad.parquet")
    with pytest.raises(BadRecord, match=said.rpartition(": ")[2]):
        load(client, tmp_path / "bad.parquet")
    assert rows(client) == []


def test_text_is_decoded_by_its_encoding(client: Client, tmp_path: Path) -> None:
    lines = ["value,value_encoding,key,key_encoding", '"",utf8,"",base64', ",,eA==,base64"]
    (tmp_path / "good.csv").write_text("\n".join(lines) + "\n")
    assert load(client, tmp_path / "good.csv")["messages"] == 2
    assert sorted((row["key"], row["value"]) for row in rows(client)) == [(b"", b""), (b"x", None)]


def test_csv_with_a_row_of_megabytes(client: Client, tmp_path: Path) -> None:
    """A message may be that large. Guards against DuckDB's own limit for a line, 2 MB."""
    (tmp_path / "long.csv").write_text(f"value\n{'x' * 4_000_000}\n")
    assert load(client, tmp_path / "long.csv")["size_bytes"] == 4_000_000


def test_parquet_with_the_columns_of_messages(client: Client, tmp_path: Path) -> None:
    """Types and nulls arrive unchanged. Guards against an empty value instead of null."""
    table = pa.table(
        {
            "value": pa.array([b"a", None, b""]),
            "key": ["x", None, "y"],
            "event_time": [NOON] * 3,
            "properties": pa.array([[("a", "b")], None, []], pa.map_(pa.string(), pa.string())),
            "ignored": [1, 2, 3],
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet")
    answer = load(client, tmp_path / "rows.parquet")
    assert (answer["messages"], answer["files"], answer["already"]) == (3, 1, False)
    assert answer["txn"] is not None
    rows_by_key = {row["key"]: row for row in rows(client)}
    assert {key: row["value"] for key, row in rows_by_key.items()} == {
        b"x": b"a",
        None: None,
        b"y": b"",
    }
    assert {row["event_time"] for row in rows_by_key.values()} == {NOON}
    assert dict(rows_by_key[b"x"]["properties"]) == {"a": "b"}
    producer = client.producer("orders")
    assert producer.send(b"again", key=b"x").partition == rows_by_key[b"x"]["partition"]


def test_csv_and_ndjson(client: Client, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('k,t,v\none,2026-11-20T12:00:00Z,"x,\n1"\n,,\n')
    load(client, tmp_path / "a.csv", Columns("k", None, "t"))
    each_row, none = sorted(rows(client), key=lambda row: row["key"] is None)
    assert (each_row["key"], each_row["event_time"], none["key"], none["event_time"]) == (
        b"one",
        NOON,
        None,
        None,
    )
    assert orjson.loads(each_row["value"]) == {
        "k": "one",
        "t": "2026-11-20T12:00:00Z",
        "v": "x,\n1",
    }
    (tmp_path / "a.ndjson").write_text('{"k":"\\u00e9","t":"2026-11-20T12:00:00Z"}\n{"k":"b"}\n')
    load(client, tmp_path / "a.ndjson", Columns("k", None, "t"))
    lines = [
        row
        for row in rows(client)
        if row["value"].startswith(b'{"k":"\\') or row["value"] == b'{"k":"b"}'
    ]
    assert {row["key"] for row in lines} == {"é".encode(), b"b"}


@pytest.mark.deep
def test_partition_keeps_the_order_of_the_source(client: Client, tmp_path: Path) -> None:
    """The source has many row groups and files.

    Guards against an order that depends on the speed of threads.
    """
    for number in range(3):
        values = [b"%d" % (number * 30_000 + i) for i in range(30_000)]
        keys = [b"%d" % (i % 50) for i in range(30_000)]
        path = tmp_path / "src" / f"{number}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"value": values, "key": keys}), path, row_group_size=5000)
    assert load(client, tmp_path / "src")["messages"] == 90_000
    for partition in (0, 1):
        numbers = [int(row["value"]) for row in rows(client) if row["partition"] == partition]
        assert numbers == sorted(numbers)


def test_same_bytes_again_are_already_there(client: Client, tmp_path: Path) -> None:
    """A load is recognised by its key and content, not by the file name, so that a moved file is
    not loaded twice.
    """
    (tmp_path / "a.csv").write_text("value\none\n")
    first = load(client, tmp_path / "a.csv")
    (tmp_path / "a.csv").rename(tmp_path / "b.csv")
    loaded_again = load(client, tmp_path / "b.csv")
    assert loaded_again == {**first, "already": True}
    assert load(client, tmp_path / "b.csv", dry_run=True)["already"]
    (tmp_path / "b.csv").write_text("value\ntwo\n")
    dry = load(client, tmp_path / "b.csv", dry_run=True)
    assert (dry["already"], dry["messages"]) == (False, 1)
    assert not load(client, tmp_path / "b.csv")["already"]
    assert sorted(row["value"] for row in rows(client)) == [b"one", b"two"]


def test_source_that_cannot_be_read_leaves_nothing(client: Client, tmp_path: Path) -> None:
    """A load is complete or absent.

    Guards against stored rows before the invalid row, and against leftover staged files.
    """
    (tmp_path / "a.ndjson").write_text('{"a":1}\n[1]\n{"a":\n')
    with pytest.raises(BadRecord, match=r"a\.ndjson: line 2: not a JSON object, and 1 more$"):
        load(client, tmp_path / "a.ndjson")
    (tmp_path / "a.csv").write_text("value,event_time\n" + "a,2026-11-20\n" * 50_000 + "a,soon\n")
    with pytest.raises(BadRecord, match="soon"):
        load(client, tmp_path / "a.csv")
    (tmp_path / "b.ndjson").write_bytes(b'{"a":1}\n{"a":"\xff"}\n')
    with pytest.raises(BadRecord, match=r"b\.ndjson: line 2: not UTF-8$"):
        load(client, tmp_path / "b.ndjson")
    with pytest.raises(InvalidArgument, match="no column nope"):
        load(client, tmp_path / "a.csv", Columns("nope"))
    with pytest.raises(InvalidArgument, match="suffixes"):
        files_of([str(tmp_path / "a.csv"), str(tmp_path / "a.ndjson")], None, Columns())
    with pytest.raises(InvalidArgument, match="value is the line"):
        files_of([str(tmp_path / "a.ndjson")], None, Columns(value="a"))
    for path in ("nope.csv", "store"):
        with pytest.raises(NotFound):
            files_of([str(tmp_path / path)], None, Columns())
    (tmp_path / "a.csv").write_text("value\na\n")
    with pytest.raises(TopicNotFound):
        source = files_of([str(tmp_path / "a.csv")], None, Columns())
        bulk_load(client, source, "nope", "k", Local())
    assert rows(client) == []
    assert list(Path(client.path).glob("topics/**/_stage/*")) == []


@pytest.mark.deep
def test_real_invoices_are_loaded_once_whenever_the_loader_is_killed(
    client: Client, tmp_path: Path
) -> None:
    """SIGKILL before and after staging and committing; afterwards the totals are exact and an audit
    finds no fault.
    """
    path = ROOT / "data" / "online-retail.parquet"
    for name in ("stage", "commit"):
        for when in ("before", "after"):
            run(python("load_invoices", client.path, path, name, when), code=KILLED)
    answer = load(client, path, Columns("InvoiceNo"))
    assert (answer["already"], answer["messages"]) == (True, 541_909)
    quantity = sum(
        int(orjson.loads(value.as_py())["Quantity"])
        for table in client.read("orders")
        for value in table.column("value")
    )
    source = pq.read_table(path, columns=["Quantity"]).column("Quantity")
    assert quantity == sum(int(value.as_py()) for value in source)
    assert audit(client, ["orders"], Local())["failed"] == 0


def test_replay_is_the_same_messages_with_their_places(tmp_path: Path) -> None:
    """This holds for every kind of source.

    Guards against a property that is lost or moved to the next message.
    """
    for seed in (FIRST, FIRST + 3):
        history = History(tmp_path, f"replay-{seed}")
        for number in range(STEPS):
            names = tuple(name for name in WITHOUT_TRIMS if name != "send_large")
            step(history, random.Random(f"{seed}:{number}"), names)
        with history.client as client:
            client.create_topic("copy", 2)
            done = replay(client, "t", "copy", ("", Range()), "k", Local())
            replay_again = replay(client, "t", "copy", ("", Range()), "k", Local())
            assert replay_again == {**done, "read": None, "already": True}
            names = ("key", "value", "event_time", "deliver_at")
            expected = []
            for row in rows(client, "t"):
                message_id = txlog.MessageId(row["ledger"], row["entry"], row["index"] or 0)
                more = {**dict(row["properties"] or []), "replay_of": f"t:{message_id}"}
                expected.append((*(row[name] for name in names), more))
            found_rows = [
                (*(row[name] for name in names), dict(row["properties"]))
                for row in rows(client, "copy")
            ]
            assert done["read"] == done["written"] == len(expected) > 0
            key = repr
            assert sorted(found_rows, key=key) == sorted(expected, key=key), f"seed {seed}"


def upper(table: pa.Table) -> pa.Table:
    """Return only messages with a key, with their values in capitals."""
    import pyarrow.compute as pc

    table = table.filter(pc.is_valid(table.column("key")))
    values = pc.utf8_upper(table.column("value").cast(pa.string())).cast(pa.binary())
    return table.set_column(1, "value", values)


def test_a_transform_that_fails_names_its_messages(client: Client) -> None:
    """Kills: an error of a function without the topic, partition and ids that it got."""

    def fails(table: pa.Table) -> pa.Table:
        raise ValueError("no such country")

    client.create_topic("two", partitions=2)
    for number in range(4):
        client.producer("two").send(f"v{number}", key=f"k{number % 2}")
    ids: dict[int, list[str]] = {0: [], 1: []}
    for message in client.reader("two"):
        ids[message.partition].append(str(message.message_id))
    with pytest.raises(CommandFailed, match="the transform failed: ValueError: no such") as failed:
        replay(client, "two", "copy", ("", Range()), "k", Local(), function=("f", fails))
    assert any(
        f"of two/{number}, {own[0]} to {own[-1]}" in str(failed.value)
        for number, own in ids.items()
        if len(own) > 1
    )
    assert "test_bulk_load.py" in str(failed.value.hint)
    client.create_topic("one")
    client.producer("one").send("hello", key="ana")
    with pytest.raises(CommandFailed, match=r"message 1?\d*:\d+ of one/0, key ana, value hello"):
        replay(client, "one", "copy", ("", Range()), "k", Local(), function=("f", fails))


def test_partitions_are_replayed_one_by_one_under_a_key(client: Client) -> None:
    """Guards against a second partition that is taken for stored."""
    client.create_topic("a", partitions=3)
    client.create_topic("out")
    for index in range(3):
        client.producer("a").send(b"%d" % index, partition=index)

    def replayed(topic: str) -> bool:
        whole = ("", Range())
        return bool(replay(client, topic, "out", whole, "key", Local())["already"])

    assert [replayed(topic) for topic in ("a/0", "a/1", "a/0", "a/1")] == [False, False, True, True]
    assert [message.value for message in client.reader("out")] == [b"0", b"1"]


@pytest.mark.parametrize("stored", [[0], [0, 1]])
def test_a_replay_of_an_earlier_version_is_repeated_under_its_name(
    client: Client, stored: list[int]
) -> None:
    """Such a version named the partitions of a topic like the topic."""
    client.create_topic("a", partitions=2)
    client.create_topic("out")
    ids = [client.producer("a").send(b"%d" % at, partition=at).message_id for at in range(2)]
    sources = [[("replay_of", f"a:{ids[at]}")] for at in stored]
    kind = pa.map_(pa.string(), pa.string())
    rows_ = pa.table({"value": [b"x"] * len(stored), "properties": pa.array(sources, kind)})
    bulk = client.bulk("out", key="key", batch=f"replay {TopicName.parse('a').full} ")
    bulk.commit(bulk.stage([rows_]))

    def replayed(topic: str) -> bool:
        whole = ("", Range())
        return bool(replay(client, topic, "out", whole, "key", Local())["already"])

    assert replayed("a")
    assert [replayed(topic) for topic in ("a/0", "a/1", "a/1")] == [stored == [0], False, True]


def test_replay_of_a_range_through_a_function(client: Client) -> None:
    producer = client.producer("orders")
    for value, key in ((b"a", b"x"), (b"b", None), (b"c", b"x"), (b"d", b"x")):
        last = producer.send(value, key=key, partition=0)
    text = f"+1..{last.message_id}"
    expected_source = (text, parse_range(text, 0))
    dry = replay(client, "orders", "copy", expected_source, "k", Local(), dry_run=True)
    assert (dry["read"], dry["already"]) == (2, False)
    done = replay(
        client, "orders", "copy", expected_source, "k", Local(), function=("upper", upper)
    )
    assert (done["read"], done["written"]) == (2, 1)
    [row] = rows(client, "copy")
    assert (row["value"], row["key"]) == (b"C", b"x")
    for wrong in (lambda table: 1, lambda table: 1 / 0):
        with pytest.raises(CommandFailed, match="transform"):
            replay(client, "orders", "copy", expected_source, "k2", Local(), function=("w", wrong))
    with pytest.raises(InvalidArgument, match="itself"):
        replay(client, "orders", "orders", expected_source, "k", Local())
    assert len(rows(client, "copy")) == 1

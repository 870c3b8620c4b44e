"""Schemas of topics: their versions, the validation of values, and values as columns in every kind
of storage.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.engine_kit import Bench, relation_of
from txlog import Message, Schema
from txlog.base.ids import TxnId
from txlog.base.schemas import values
from txlog.base.schemas.values import encode_one
from txlog.engine.relation.scans import read_scan, scans_of
from txlog.engine.storage.segment import RECORD
from txlog.errors import (
    IncompatibleSchema,
    InvalidArgument,
    InvalidMessage,
    NotAllowed,
    NotFound,
    SqlError,
    TopicNotFound,
    TxlogError,
)
from txlog.functions import FunctionOptions, run
from txlog.functions.options import SKIP
from txlog.lake.sql.client_query import Query

pytestmark = pytest.mark.usefixtures("quick_disk")


@dataclass
class Order:
    cups: int
    who: str = "nobody"


@dataclass
class Priced:
    cups: int
    who: str = "nobody"
    price: float = 1.5


@dataclass
class Worded:
    cups: str


def typed_bench(folder: Path, **settings: int | str) -> Bench:
    bench = Bench(folder / "store", ledger_entries_max=4, coordinators=1, **settings)
    bench.client.create_topic("t", partitions=2, schema=Order)
    return bench


def asked(bench: Bench, sql: str, isolation: str = "committed") -> list[dict[str, Any]]:
    with Query(bench.client, sql, isolation=isolation) as query:
        return [row for batch in query.rows() for row in batch.to_pylist()]


def scanned(bench: Bench, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Read the topic as a Spark task does."""
    scans = scans_of(relation_of(bench.client, "t"))
    copies = pickle.loads(pickle.dumps(scans))
    disk = bench.client.store.disk
    return [
        row for copy in copies for rows in read_scan(disk, copy, names) for row in rows.to_pylist()
    ]


def record(message: Message) -> dict[str, Any]:
    decoded = message.decode()
    assert decoded is not None
    return decoded


def numbers(*names: str) -> Schema:
    """An Avro schema with this many numbers."""
    fields = [{"name": name, "type": "long", "default": 0} for name in names]
    return Schema.parse("avro", json.dumps({"type": "record", "name": "R", "fields": fields}))


def key(row: dict[str, Any]) -> str:
    return repr(sorted(row.items()))


def test_records_are_written_checked_and_decoded(tmp_path: Path) -> None:
    bench = typed_bench(tmp_path)
    producer = bench.client.producer("t", "till")
    producer.send(Order(1, "ana"), partition=0)
    producer.send({"cups": 2}, partition=0)
    producer.send(b'{"cups": 3, "more": []}', partition=0)
    producer.send(None, partition=0)
    for bad in (b"", b"cups", b'{"cups": "4"}', b"null", {"who": "ben"}, Worded("x")):
        with pytest.raises(InvalidMessage, match=r"cups|JSON|record"):
            producer.send(bad)
    with pytest.raises(InvalidMessage, match="row 1 does not fit schema 1 of topic t: cups"):
        producer.send_batch(pa.table({"value": [b'{"cups":1}', b"{}"]}))
    messages = list(bench.client.reader("t"))
    assert [message.value for message in messages[:2]] == [
        b'{"cups":1,"who":"ana"}',
        b'{"cups":2,"who":"nobody"}',
    ]
    assert [message.schema_version for message in messages] == [1, 1, 1, None]
    assert [message.decode() for message in messages[1:]] == [
        {"cups": 2, "who": "nobody"}, {"cups": 3, "who": "nobody"}, None,
    ]  # fmt: skip
    assert messages[0].decode(Order) == Order(1, "ana")
    with pytest.raises(InvalidArgument, match="store"):
        pickle.loads(pickle.dumps(messages[0])).decode()


def test_policy_decides_which_version_may_follow(tmp_path: Path) -> None:
    bench = typed_bench(tmp_path)
    schemas, producer = bench.client.topic("t").schemas, bench.client.producer("t")
    producer.send(Order(1), partition=0)
    with pytest.raises(IncompatibleSchema, match="cups was long"):
        schemas.add(Worded)
    with pytest.raises(IncompatibleSchema):
        schemas.test(Worded)
    assert schemas.add(Order) == 1
    assert schemas.add(Priced) == schemas.add(Priced) == 2
    # the producer was opened before the schema changed
    producer.send(Priced(2, price=2.5), partition=0)
    older = bench.client.producer("t", schema=Order)
    older.send(Order(3), partition=0)
    messages = list(bench.client.reader("t"))
    assert [(message.schema_version, record(message)["price"]) for message in messages] == [
        (1, 1.5), (2, 2.5), (1, 1.5),
    ]  # fmt: skip
    bench.client.admin.set_schema_policies("t", compatibility="none")
    assert schemas.add(Worded) == 3
    assert [row["version"] for row in schemas.list()] == [1, 2, 3]
    with pytest.raises(InvalidMessage, match="cannot read"):
        next(iter(bench.reopen().reader("t"))).decode()


def test_decoding_follows_the_schemas_and_not_the_name_of_the_topic(tmp_path: Path) -> None:
    bench = typed_bench(tmp_path)
    client = bench.client
    producer, reader = client.producer("t"), client.reader("t")
    producer.send(Order(1), partition=0)
    client.create_subscription("t", "s")
    consumer = client.consumer("t", "s")
    message_before = consumer.receive()
    assert message_before is not None
    first = next(iter(reader))
    assert record(first) == record(message_before) == {"cups": 1, "who": "nobody"}
    bench.another().topic("t").schemas.add(Priced)
    older = client.producer("t", schema=Order)
    older.send(Order(2), partition=0)
    later = next(iter(reader))
    assert record(later) == {"cups": 2, "who": "nobody", "price": 1.5}
    unread = next(iter(client.reader("t")))
    consumer.close()
    client.admin.delete_topic("t", force=True)
    client.create_topic("t", schema=Worded)
    with pytest.raises(TopicNotFound):
        unread.decode()
    assert record(later) == {"cups": 2, "who": "nobody", "price": 1.5}


def test_a_function_decodes_its_inputs_and_its_outputs_are_checked(tmp_path: Path) -> None:
    bench = typed_bench(tmp_path)
    client = bench.client
    client.create_topic("out", schema=Worded)
    client.create_subscription("t", "f")
    for cups in (1, 2, 3):
        client.producer("t").send(Order(cups), partition=0)

    def worded(message: Message) -> bytes:
        cups = record(message)["cups"]
        return b"bad" if cups == 2 else b'{"cups":"%d"}' % cups

    options = FunctionOptions(on_error=SKIP)
    assert run(client, worded, "t", "out", "f", options).skipped == 1
    assert [record(each_message) for each_message in client.reader("out")] == [
        {"cups": "1"},
        {"cups": "3"},
    ]


def test_deleted_schemas_leave_a_topic_of_bytes(tmp_path: Path) -> None:
    bench = typed_bench(tmp_path)
    schemas = bench.client.topic("t").schemas
    producer = bench.client.producer("t")
    producer.send(Order(1), partition=0)
    assert schemas.delete() == 1
    assert schemas.delete() == 0
    producer.send(b"bytes", partition=0)
    with pytest.raises(NotFound, match="topic t has no schema"):
        schemas.get()
    message, other = bench.client.reader("t")
    assert (message.decode(), other.schema_version) == ({"cups": 1, "who": "nobody"}, None)
    with pytest.raises(InvalidArgument, match="no schema"):
        other.decode()
    assert schemas.add(Worded) == 2
    assert [row["version"] for row in schemas.list(deleted=True)] == [1, 2]


def test_a_bad_value_is_refused_counted_or_let_through(tmp_path: Path) -> None:
    bench = typed_bench(tmp_path, schema_validation="record")
    client = bench.client
    producer = client.producer("t")
    producer.send_batch(pa.table({"value": [b"x", b'{"cups":1}', None], "partition": [0, 0, 1]}))
    with client.transaction() as txn:
        producer.send(b"y", txn=txn, partition=1)
    bulk = client.bulk("t", key="k", batch=1)
    bulk.commit(bulk.stage([pa.table({"value": [b"z", b'{"cups":2}', None]})]))
    assert [message.schema_version for message in client.reader("t") if message.value].count(
        None
    ) == 3
    assert client.describe_topic("t")["mismatched"] == 3
    client.admin.set_schema_policies("t", validation="off")
    producer.send(b"unseen", partition=0)
    assert client.describe_topic("t")["mismatched"] == 3
    bench.reopen()
    assert bench.client.describe_topic("t")["mismatched"] == 3


def test_invalid_value_of_send_async_fails_alone(tmp_path: Path) -> None:
    bench = typed_bench(tmp_path)
    producer = bench.client.producer("t")
    sent = [producer.send_async(value) for value in (b'{"cups":1}', b"bad", Order(2))]
    with pytest.raises(InvalidMessage):
        producer.flush()
    assert [item.exception() is None for item in sent] == [True, False, True]
    with bench.client.transaction() as txn:
        good = producer.send_async(Order(3), txn=txn)
        with pytest.raises(InvalidMessage):
            producer.send_async(b"bad", txn=txn)
    assert good.result().partition in (0, 1)
    assert sorted(record(item)["cups"] for item in bench.client.reader("t")) == [1, 2, 3]


def test_a_topic_that_gets_a_schema_meanwhile_takes_nothing_unchecked(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", coordinators=1)
    client = bench.client
    client.create_topic("t")
    producer = client.producer("t")
    producer.send(b"bytes")
    bulk = client.bulk("t", key="k", batch=1)
    staged = bulk.stage([pa.table({"value": [b"old"]})])
    bench.another().topic("t").schemas.add(Order)
    with pytest.raises(InvalidMessage, match="does not fit"):
        producer.send(b"bytes")
    with pytest.raises(NotAllowed, match="has a schema by now"):
        bulk.commit(staged)
    producer.send(Order(1))
    assert [message.schema_version for message in client.reader("t")] == [None, 1]


def test_avro_is_read_by_the_schema_that_wrote_it_when_fields_change_places(tmp_path: Path) -> None:
    """Two numbers that exchange places fit both schemas, so a value must keep the version of the
    schema that wrote it.
    """
    bench = Bench(tmp_path / "store", coordinators=1)
    client = bench.client
    client.create_topic("t", schema=numbers("a", "b"))
    producer = client.producer("t")
    producer.send({"a": 1, "b": 2})
    others = bench.another().topic("t").schemas
    others.add(numbers("b", "a"))
    producer.send({"a": 1, "b": 2})
    with client.transaction() as txn:
        producer.send({"a": 1, "b": 2}, txn=txn)
        producer.send_async({"a": 1, "b": 2}, txn=txn)
    producer.send_async({"a": 1, "b": 2})
    producer.flush()
    others.add(numbers("b", "a", "c"))
    producer.send({"a": 1, "b": 2, "c": 3})
    client.producer("t").send({"a": 1, "b": 2, "c": 3})
    messages = list(client.reader("t"))
    assert [(record(message)["a"], record(message)["b"]) for message in messages] == [(1, 2)] * 7
    assert [message.schema_version for message in messages] == [1, 1, 1, 1, 1, 3, 3]


def test_nothing_is_written_by_a_deleted_schema(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", coordinators=1)
    client = bench.client
    client.create_topic("t", schema=numbers("a", "b"))
    stated, other = client.producer("t", schema=numbers("a", "b")), client.producer("t")
    other.send({"a": 1, "b": 2})
    others = bench.another().topic("t").schemas
    others.delete()
    others.add(numbers("b", "a"))
    for producer in (stated, stated, other):
        with pytest.raises(InvalidMessage, match=r"schema 1 of topic t, .* was deleted"):
            producer.send({"a": 1, "b": 2})
    other.send({"a": 1, "b": 2})
    assert [record(message) for message in client.reader("t")] == [{"a": 1, "b": 2}] * 2


@pytest.mark.parametrize("how", ["send", "send_async", "in a transaction", "async in one"])
def test_avro_of_a_thread_is_of_its_schema_whatever_another_does(tmp_path: Path, how: str) -> None:
    """Between the encoding of a record and its queueing, another thread changes to the
    next schema.
    """
    bench = Bench(tmp_path / "store", coordinators=1)
    client = bench.client
    client.create_topic("t", schema=numbers("a", "b"))
    others = bench.another().topic("t").schemas
    meanwhile: list[Callable[[], object]] = []

    def choose(message: Message, partitions: int) -> int:
        while meanwhile:
            meanwhile.pop()()
        return 0

    producer = client.producer("t", message_router=choose)
    record = {"a": 1, "b": 2}
    producer.send(record)

    def another_thread() -> None:
        others.delete()
        others.add(numbers("b", "a"))
        with pytest.raises(InvalidMessage, match="was deleted"):
            producer.send(record)
        producer.send(record)

    meanwhile.append(another_thread)
    with pytest.raises(InvalidMessage, match=r"schema 1 of topic t, .* was deleted"):
        if how == "send":
            producer.send(record)
        elif how == "send_async":
            sent = producer.send_async(record)
            producer.flush()
            sent.result()
        else:
            with client.transaction() as txn:
                (producer.send if how == "in a transaction" else producer.send_async)(
                    record, txn=txn
                )
    producer.send_async(record)
    producer.send_async(encode_one(numbers("b", "a"), record))
    producer.flush()
    messages = list(client.reader("t"))
    assert [(each_message.schema_version, each_message.decode()) for each_message in messages] == [
        (1, record), *[(2, {"b": 2, "a": 1})] * 3,
    ]  # fmt: skip


def test_bytes_and_records_of_one_thread_keep_their_order(tmp_path: Path) -> None:
    """The first Avro record opens a second queue.

    Messages that wait in the first queue must come before it.
    """
    bench = Bench(tmp_path / "store", coordinators=1)
    client = bench.client
    client.create_topic("t", schema=numbers("a"))
    producer = client.producer("t", batching_max_messages=2, batching_max_publish_delay_ms=600_000)
    for number in range(0, 6, 2):
        producer.send_async(encode_one(numbers("a"), {"a": number}))
        producer.send_async({"a": number + 1})
    producer.flush()
    assert [record(message)["a"] for message in client.reader("t")] == [*range(6)]


@pytest.mark.parametrize("kind", ["json", "avro"])
@pytest.mark.parametrize("mode", ["enforce", "record", "off"])
def test_dead_letters_are_checked_and_counted_and_never_refused(
    tmp_path: Path, kind: str, mode: str
) -> None:
    """A message that could not be moved would be redelivered for ever."""
    bench = Bench(tmp_path / "store", coordinators=1)
    client = bench.client

    def shaped(name: str) -> Schema:
        return Schema.parse(kind, numbers(name, "b").definition)

    for topic, name in (("t", "a"), ("dead", "a"), ("other", "b0")):
        client.create_topic(topic, schema=shaped(name))
        client.admin.set_schema_policies(topic, validation="record")
        client.create_subscription(topic, "s")
    client.producer("t").send({"a": 1, "b": 2})
    client.producer("t").send(b"bad")
    client.producer("t").send(None)
    for name in ("dead", "other"):
        client.admin.set_schema_policies(name, validation=mode)  # type: ignore[arg-type]
    client.subscription("t", "s").set_policies(max_redeliver_count=0, dead_letter_topic="dead")
    with client.consumer("t", "s", type="shared") as consumer:
        consumer.negative_acknowledge(consumer.receive_batch(10))
        assert consumer.receive() is None
    messages = list(client.reader("dead"))
    version = None if mode == "off" else 1
    assert [(message.value is None, message.schema_version) for message in messages] == [
        (False, version), (False, None), (True, None),
    ]  # fmt: skip
    assert client.describe_topic("dead")["mismatched"] == (mode != "off")
    client.subscription("dead", "s").set_policies(max_redeliver_count=0, dead_letter_topic="other")
    with client.consumer("dead", "s", type="shared") as consumer:
        consumer.negative_acknowledge(consumer.receive_batch(10))
        assert consumer.receive() is None
    # A JSON value shows its fields; two Avro numbers fit any schema with two numbers
    fits = kind == "json" and mode != "off"
    moved = [message.schema_version for message in client.reader("other")]
    assert moved == [1 if fits else None, None, None]
    assert client.describe_topic("other")["mismatched"] == (0 if mode == "off" else 2 - fits)


@pytest.mark.parametrize("rows_if_small", [False, True])
def test_a_staged_batch_keeps_its_schema_and_goes_with_it(
    tmp_path: Path, rows_if_small: bool
) -> None:
    bench = Bench(tmp_path / "store", coordinators=1)
    client = bench.client
    client.create_topic("t", schema=numbers("a", "b"))
    schemas = client.topic("t").schemas
    data = pa.table({"value": [encode_one(schemas.get(), {"a": 1, "b": 2}), None]})
    first, second = (client.bulk("t", key="k", batch=number) for number in (1, 2))
    staged, late = first.stage([data]), second.stage([data])
    schemas.add(numbers("b", "a"))
    first.commit(staged, rows_if_small=rows_if_small)
    assert [(message.schema_version, message.decode()) for message in client.reader("t")] == [
        (1, {"a": 1, "b": 2}), (None, None),
    ]  # fmt: skip
    schemas.delete()
    schemas.add(numbers("b", "a"))
    with pytest.raises(NotAllowed, match="has lost the schema"):
        second.commit(late, rows_if_small=rows_if_small)


@pytest.mark.parametrize("kind", ["json", "avro"])
def test_records_are_staged_as_they_are(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records and bytes may be in one file, routed by key.

    Values that were columns are not decoded again.
    """
    bench = Bench(tmp_path / "store", coordinators=1)
    client = bench.client
    client.create_topic("t", partitions=3, schema=Order, schema_type=kind)  # type: ignore[arg-type]
    schema = client.topic("t").schemas.get()
    records = [{"cups": number, "who": 'a"\n'} for number in range(40)]
    given_column = pa.array([*records, None], schema.arrow)
    keys = pa.array([b"%d" % number for number in range(41)])
    bytes_only = pa.table({"value": [encode_one(schema, {"cups": 100})]})
    decoded: list[int] = []
    decode = values.decode

    def counted(schema: Schema, column: Any, **more: Any) -> Any:
        decoded.append(len(column))
        return decode(schema, column, **more)

    for batch, tables in enumerate(
        (
            [pa.table({"record": given_column, "key": keys})],
            [pa.table({"record": given_column}), bytes_only],
        )
    ):
        bulk = client.bulk("t", key="k", batch=batch)
        with monkeypatch.context() as patched:
            patched.setattr(values, "decode", counted)
            staged = bulk.stage(tables)
        assert bulk.commit(staged)["messages"] == 41 + batch
    assert decoded == [1]
    expected = [*records, *records, {"cups": 100, "who": "nobody"}]
    rows = scanned(bench, ("key", "value", RECORD))
    assert sorted((row[RECORD] for row in rows if row[RECORD]), key=key) == sorted(
        expected, key=key
    )
    for row in rows:
        assert (row["value"] is None) == (row[RECORD] is None)
        assert row["value"] is None or encode_one(schema, row[RECORD]) == row["value"]
        if row["key"] is not None and row[RECORD] is not None:
            assert row["key"] == b"%d" % row[RECORD]["cups"]
    for message in client.reader("t"):
        assert message.schema_version == (None if message.value is None else 1)
    bad = pa.array([{"cups": None}], pa.struct([("cups", pa.int64())]))
    for table, error, reason in (
        (pa.table({"record": bad}), InvalidMessage, "row 0: cups is null"),
        (
            pa.table({"record": given_column, "value": keys}),
            InvalidArgument,
            "both value and record",
        ),
        (pa.table({"record": keys}), InvalidArgument, "must be a struct"),
    ):
        with pytest.raises(error, match=reason):
            client.bulk("t", key="k", batch=9).stage([table])
    client.create_topic("bytes")
    with pytest.raises(InvalidArgument, match="no schema to write records by"):
        client.bulk("bytes", key="b", batch=9).stage([pa.table({"record": given_column})])


def test_duplicates_of_a_named_producer_are_left_out(tmp_path: Path) -> None:
    bench = typed_bench(tmp_path)
    producer = bench.client.producer("t", "till")
    data = [b'{"cups":%d}' % number for number in range(3)]

    def rows(*numbers: int) -> pa.Table:
        columns = {"value": [data[index] for index in numbers], "sequence_id": numbers}
        return pa.table({**columns, "partition": [0] * len(numbers)})

    producer.send_batch(rows(0, 1))
    receipt = producer.send_batch(rows(0, 1, 2))
    assert (receipt.messages, receipt.duplicates, receipt.bytes) == (1, 2, len(data[2]))
    with bench.client.transaction() as txn:
        producer.send_batch(rows(0, 1), txn=txn)
        producer.send_batch(rows(1, 2), txn=txn)
    cups = [record(index)["cups"] for index in bench.client.reader("t")]
    assert cups == [0, 1, 2, 0, 1, 2]


def test_a_producer_writes_records_of_a_schema_that_came_after_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", coordinators=1)
    bench.client.create_topic("t")
    seen: list[bytes | None] = []

    def choose(message: Message, partitions: int) -> int:
        seen.append(message.value)
        return 0

    producer = bench.client.producer("t", message_router=choose)
    bench.another().topic("t").schemas.add(Worded)
    producer.send(Worded("one"))
    producer.send_async(Worded("two"))
    producer.flush()
    assert seen == [b'{"cups":"one"}', b'{"cups":"two"}']


@pytest.mark.parametrize("is_in_txn", [False, True])
def test_a_schema_that_comes_while_a_large_message_is_written_refuses_it(
    tmp_path: Path, is_in_txn: bool
) -> None:
    bench = Bench(tmp_path / "store", coordinators=1, max_message_bytes=100)
    client = bench.client
    client.create_topic("t")
    producer, other = client.producer("t", chunking=True), bench.another()

    def pieces() -> Iterator[bytes]:
        yield b"x" * 200
        other.topic("t").schemas.add(Order)
        yield b"x" * 200

    with pytest.raises(InvalidMessage, match="in chunks"), client.transaction() as txn:
        producer.send(pieces(), txn=txn if is_in_txn else None)
    assert client.describe_topic("t")["messages"] == 0


def test_large_messages_are_not_checked_and_have_no_record(tmp_path: Path) -> None:
    bench = typed_bench(tmp_path, max_message_bytes=100)
    producer = bench.client.producer("t", chunking=True)
    with pytest.raises(InvalidMessage, match="in chunks"):
        producer.send(b"x" * 200)
    bench.client.admin.set_schema_policies("t", validation="record")
    producer.send(b"x" * 200, partition=0)
    assert bench.client.describe_topic("t")["mismatched"] == 1
    producer.send(Order(1), partition=0)
    rows = asked(bench, "SELECT record.cups AS cups FROM t ORDER BY ALL")
    assert rows == [{"cups": 1}, {"cups": None}]
    assert {row[RECORD] is None for row in scanned(bench, (RECORD,))} == {True, False}


@pytest.mark.parametrize("steps", ["", "c", "cc", "ccC", "cCk"])
def test_columns_are_the_same_wherever_messages_lie(tmp_path: Path, steps: str) -> None:
    """Messages may be in the journal, in parts, and in sealed, clean, compacted and adopted files
    with two schema versions.

    steps: the act after each filling: a checkpoint (c), a checkpoint that seals (C), or a
    compaction (k)
    """
    bench = typed_bench(tmp_path)
    client = bench.client
    expected: list[dict[str, Any]] = []
    for number, step in enumerate(steps + " "):
        if number == 1:
            client.topic("t").schemas.add(Priced)
        producer = client.producer("t")
        for at in range(3):
            producer.send({"cups": 10 * number + at}, partition=at % 2)
            expected.append({"cups": 10 * number + at, "who": "nobody", "price": 1.5})
        producer.send(None, partition=0)
        with client.transaction() as txn:
            for at in range(3):
                record = {"cups": 10 * number + at, "who": "txn"}
                producer.send(record, partition=at % 2, txn=txn)
                expected.append({**record, "price": 1.5})
        with client.transaction() as aborted:
            producer.send({"cups": 666}, partition=0, txn=aborted)
            aborted.abort()
        bulk = client.bulk("t", key="k", batch=number)
        bulk.commit(bulk.stage([pa.table({"value": [b'{"cups":1000}', None]})]))
        expected.append({"cups": 1000, "who": "nobody", "price": 1.5})
        if step in "cC":
            client.checkpoint(roll_all=step == "C")
        elif step == "k":
            client.admin.compact("t")
    if len(steps) == 0:
        for each_field in expected:
            del each_field["price"]
    names = ("message_id", "value", RECORD)
    by_sql = asked(bench, "SELECT message_id, value, record FROM t")
    by_scan = scanned(bench, names)
    assert sorted(by_sql, key=key) == sorted(by_scan, key=key)
    records = [row[RECORD] for row in by_sql if row[RECORD] is not None]
    assert sorted(records, key=key) == sorted(expected, key=key)
    # only these fields, whatever other columns are selected
    for fields in (["cups"], sorted(expected[0])):
        selection = ", ".join(
            f"t.record.{each_field.upper()} AS {each_field}" for each_field in fields
        )
        by_field = asked(bench, f"SELECT message_id, {selection} FROM t ORDER BY ALL")
        assert sorted(by_field, key=key) == sorted(
            (
                {
                    "message_id": row["message_id"],
                    **{each_field: (row[RECORD] or {}).get(each_field) for each_field in fields},
                }
                for row in by_sql
            ),
            key=key,
        )
    assert asked(bench, "SELECT count(*) AS n FROM t") == [{"n": len(by_sql)}]
    assert sum(row["value"] is None for row in by_sql) == 2 * (len(steps) + 1)
    assert sorted(
        (row[RECORD] for row in scanned(bench, (RECORD,)) if row[RECORD]), key=key
    ) == sorted(expected, key=key)
    decoded = [each_field.decode() for each_field in client.reader("t")]
    assert sorted((each_field for each_field in decoded if each_field), key=key) == sorted(
        expected, key=key
    )
    total = sum(each_field["cups"] for each_field in expected)
    assert asked(bench, "SELECT sum(record.cups)::BIGINT AS cups FROM t") == [{"cups": total}]
    bench.close()


def test_query_reads_only_its_fields_also_with_rows_in_the_journal(
    tmp_path: Path,
) -> None:
    bench = typed_bench(tmp_path)
    producer = bench.client.producer("t")
    producer.send(Order(1))
    bench.client.checkpoint(roll_all=True)
    producer.send(Order(2))
    with Query(bench.client, "SELECT record.cups FROM t ORDER BY ALL") as query:
        plan = query.plan()
        assert "record.cups" in plan and "record.who" not in plan, plan
        assert query.rows().read_all().column(0).to_pylist() == [1, 2]
    with pytest.raises(SqlError, match='"nope"'):
        asked(bench, "SELECT record.nope FROM t")
    bench.close()


def test_records_of_open_transactions_and_of_several_topics(tmp_path: Path) -> None:
    bench = typed_bench(tmp_path)
    client = bench.client
    client.create_topic("plain")
    client.producer("plain").send(b"x")
    client.create_topic("other", schema=Worded)
    client.producer("other").send(Worded("two"))
    client.producer("t").send(Order(1))
    txn = client.begin()["txn"]
    assert isinstance(txn, TxnId)
    client.producer("t").send(Order(2), txn=txn)
    rows = asked(
        bench, "SELECT record.cups AS cups, txn_state AS s FROM t ORDER BY 1", "uncommitted"
    )
    assert rows == [{"cups": 1, "s": None}, {"cups": 2, "s": "open"}]
    rows = asked(bench, "SELECT t.record AS a, o.record AS b, (FROM messages SELECT count(*)) AS n"
                        " FROM t, other AS o")  # fmt: skip
    assert rows == [{"a": {"cups": 1, "who": "nobody"}, "b": {"cups": "two"}, "n": 3}]


def test_the_policies_of_schemas_are_inherited(tmp_path: Path) -> None:
    bench = typed_bench(tmp_path)
    admin = bench.client.admin
    assert admin.get_schema_policies("t")["policies"] == {
        "compatibility": "full", "validation": "enforce",
    }  # fmt: skip
    admin.set_schema_policies(namespace="public/default", validation="off")
    bench.client.producer("t").send(b"anything")
    assert admin.get_schema_policies("t")["origins"]["validation"] == "namespace"
    admin.remove_schema_policies(namespace="public/default")
    with pytest.raises(TxlogError):
        bench.client.producer("t").send(b"anything")
    with pytest.raises(InvalidArgument, match="enforce, record or off"):
        admin.set_schema_policies("t", validation="strict")  # type: ignore[arg-type]

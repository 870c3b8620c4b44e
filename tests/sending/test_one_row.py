"""A single message becomes the bytes of a frame without Arrow, and reads as any other row."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.engine_kit import Bench
from txlog import Message
from txlog.base.settings import KEY_BYTES_MAX
from txlog.engine.model import schema
from txlog.engine.model.ops import UNREADABLE
from txlog.engine.model.schema import (
    EVENT_TIME,
    KEY,
    ONE_ROW,
    OneRow,
    batch_of,
    decode_row,
    decode_rows,
    encode_rows,
)
from txlog.engine.model.schema import (
    PROPERTIES as WITH_PROPERTIES,
)
from txlog.engine.session.sending.producer import ProducerSession
from txlog.engine.storage.frame import FILE_HEADER_BYTES, decode_header
from txlog.errors import Corruption, InvalidArgument, InvalidMessage

VALUES = (b"", b"v", b"v" * 7, b"v" * 8, b"v" * 9, bytes(range(256)) * 5)
KEYS = (None, b"", b"k", b"k" * 8, b"k" * 33)
PROPERTIES: tuple[Mapping[str, str] | None, ...] = (
    None,
    {},
    {"": ""},
    {"a": "b", "é": "ü" * 3},
    {str(at): "x" * at for at in range(40)},
)
TIMES = (None, 0, -5, (1 << 63) - 1, -(1 << 63))


def arrow_row(
    value: bytes, key: bytes | None, properties: Mapping[str, str] | None, time: int | None
) -> pa.RecordBatch:
    """The row as Arrow makes it, with the columns that have a value."""
    columns = {"value": value, "key": key, "event_time": time}
    columns["properties"] = list(properties.items()) if properties else None  # type: ignore[assignment]
    fields = [field for field in schema.frame_schema(7) if columns[field.name] is not None]
    arrays = [pa.array([columns[field.name]], field.type) for field in fields]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def test_a_row_reads_as_the_row_that_arrow_writes() -> None:
    """Format: a reader gets the same columns from one row and from the rows of many frames."""
    chance = random.Random(4)
    print("seed 4")
    encoded: dict[int, list[tuple[bytes, pa.RecordBatch]]] = {}
    for _ in range(600):
        choices = tuple(chance.choice(sample) for sample in (VALUES, KEYS, PROPERTIES, TIMES))
        row = OneRow(*choices)  # type: ignore[arg-type]
        wanted = arrow_row(*choices)  # type: ignore[arg-type]
        mask, data = row.encoded()
        assert mask == encode_rows(wanted)[0] | ONE_ROW, choices
        back = decode_rows(mask, memoryview(data))
        back.validate(full=True)
        assert back.equals(wanted), choices
        assert row.batch().equals(wanted)
        encoded.setdefault(mask, []).append((data, wanted))
        value, key, properties, _ = choices
        assert row.payload_bytes == len(value or b"") + len(key or b"")  # type: ignore[arg-type]
        assert isinstance(properties, dict | None)
        texts = [len(text.encode()) for pair in (properties or {}).items() for text in pair]
        assert row.property_bytes == sum(texts)
    for mask, rows in encoded.items():
        table = pa.Table.from_batches([wanted for _, wanted in rows])
        values = [decode_row(mask, data) for data, _ in rows]
        assert pa.Table.from_batches([batch_of(mask, values)]).equals(table.combine_chunks())


class Text(str):
    """A subclass, which msgspec does not encode."""


def test_texts_of_other_types_are_texts() -> None:
    row = OneRow(b"", None, {Text("a"): Text("é")}, None)
    assert row.batch().to_pylist() == [{"value": b"", "properties": [("a", "é")]}]


@pytest.mark.parametrize(
    ("mask", "data"),
    [
        (ONE_ROW, b""),
        (ONE_ROW, b"\x90"),  # no value
        (ONE_ROW, b"\x91\xc0"),  # null
        (ONE_ROW, b"\x91\xa1v"),  # text
        (ONE_ROW | KEY, b"\x91\xc4\x01v"),  # no key
        (ONE_ROW, b"\x92\xc4\x01v\xc4\x01k"),  # a key that the mask does not name
        (ONE_ROW | WITH_PROPERTIES, b"\x92\xc4\x01v\x81\xa1\xff\xa1t"),  # no UTF-8
        (ONE_ROW | EVENT_TIME, b"\x92\xc4\x01v\xcf" + b"\xff" * 8),  # beyond 64 bits, signed
    ],
)
def test_a_row_of_another_form_is_damage(mask: int, data: bytes) -> None:
    """Kills: a message with other columns, from a frame that no writer made."""
    with pytest.raises(UNREADABLE):
        decode_row(mask, data)


@pytest.mark.parametrize("is_packed", [True, False])
def test_a_frame_with_such_a_row_is_named(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_packed: bool
) -> None:
    """A reader and a checkpoint report the file and the LSN."""
    producer = bench.client.producer("t")
    with monkeypatch.context() as patch:
        patch.setattr(OneRow, "encoded", lambda row: (ONE_ROW, b"\x91\xc0"))
        producer.send(b"bad", key=b"k")
    lsn = bench.client.store.refresh()
    with pytest.raises(
        Corruption, match=f"the row of the frame with LSN {lsn} cannot be"
    ) as caught:
        if is_packed:
            bench.another().checkpoint()
        else:
            list(bench.client.reader("t"))
    assert (caught.value.code, caught.value.fields["lsn"]) == (602, lsn)


pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 3}, max_message_bytes=4 * KEY_BYTES_MAX),
]


def send_all(bench: Bench) -> list[Message]:
    """Single messages of each kind, plain and in a transaction."""
    producer = bench.client.producer("t")
    rows: list[dict[str, Any]] = [{"key": key} for key in KEYS]
    rows += [{"properties": properties, "event_time": 3} for properties in PROPERTIES]
    for txn in (None, bench.client.transaction()):
        for at, kind in enumerate(rows):
            producer.send(VALUES[at % len(VALUES)], txn=txn, **kind)
        producer.send(b"v" * (KEY_BYTES_MAX + 1), key=b"k", txn=txn)
        producer.send(None, key=b"k", txn=txn)
        if txn is not None:
            txn.commit()
    return sorted(
        bench.client.reader("t"), key=lambda message: (message.partition, str(message.message_id))
    )


def masks_of(path: str) -> list[int]:
    """The masks of the frames with rows in a journal, oldest first."""
    (journal,) = Path(path, "journal").glob("*.journal")
    data = journal.read_bytes()
    masks, at = [], FILE_HEADER_BYTES
    while (header := decode_header(data, at)) is not None:
        masks += [header.columns] if header.rows_bytes else []
        at += header.total_bytes
    return masks


def test_messages_are_the_same_with_and_without_arrow(
    tmp_path: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions, indexes and all fields, from frames and from parts."""
    messages = send_all(bench)
    assert len(messages) > 20
    # without the large value and the null; the transaction's messages share a frame with others
    assert sum(mask & ONE_ROW > 0 for mask in masks_of(bench.path)) == len(KEYS + PROPERTIES)
    monkeypatch.setattr(ProducerSession, "_plain_row", lambda *arguments: None)
    other = Bench(tmp_path / "other", max_message_bytes=4 * KEY_BYTES_MAX)
    other.client.create_topic("t", partitions=3)
    assert send_all(other) == messages
    assert not any(mask & ONE_ROW for mask in masks_of(other.path))
    other.client.checkpoint()
    bench.client.checkpoint()
    monkeypatch.undo()
    for client in (bench.client, other.client):
        stored = [*client.reader("t")]
        assert sorted(stored, key=lambda row: (row.partition, str(row.message_id))) == messages
    other.close()


def test_a_transaction_of_one_message_is_one_row(bench: Bench) -> None:
    """A delay, or a fixed partition, needs a column that such a row has not."""
    producer, before = bench.client.producer("t"), len(masks_of(bench.path))
    for fields in ({}, {"key": b"k"}, {"deliver_after": 5}, {"partition": 1}):
        with bench.client.transaction() as txn:
            producer.send(b"v", txn=txn, **fields)
    is_one = [mask & ONE_ROW > 0 for mask in masks_of(bench.path)[before:]]
    assert is_one == [True, True, False, False]
    assert len([*bench.client.reader("t")]) == 4


def test_properties_that_are_no_text_are_refused_as_by_arrow(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the same text as Arrow's."""
    producer = bench.client.producer("t")
    wrong: list[Any] = [{"a": 1}, {1: "a"}, {"a": "\ud800"}, {b"a": "b"}, {"a": None}]
    large: list[Any] = [{"a": "x" * (5 * KEY_BYTES_MAX)}]

    def said() -> list[str]:
        out = []
        for properties in wrong + large:
            try:
                producer.send(b"v", properties=properties)
                out.append("sent")
            except (InvalidArgument, InvalidMessage) as error:
                out.append(repr(error))
        with pytest.raises(InvalidMessage, match="a key has") as failed:
            producer.send(b"v", key=b"k" * (KEY_BYTES_MAX + 1))
        return [*out, repr(failed.value)]

    error_text = said()
    assert error_text.count("sent") < 3
    monkeypatch.setattr(ProducerSession, "_plain_row", lambda *arguments: None)
    assert said() == error_text


def test_a_refused_key_takes_no_turn_of_the_partitions(bench: Bench) -> None:
    """The next message goes to the same partition as without the refusal, also for large
    messages.
    """
    sent_values = []
    for is_refused in (False, True):
        producer = bench.client.producer("t", chunking=True)
        if is_refused:
            with pytest.raises(InvalidMessage):
                producer.send(b"v", key=b"k" * (KEY_BYTES_MAX + 1))
        producer.send(b"first %d" % is_refused)
        sent_values.append(b"first %d" % is_refused)
    partitions = {message.value: message.partition for message in bench.client.reader("t")}
    first, second = (partitions[value] for value in sent_values)
    assert first == second


def test_names_and_texts_in_the_same_buffers_count_twice(tmp_path: Path) -> None:
    """The limit counts the bytes of a message, even if its parts share a buffer in memory."""
    bench = Bench(tmp_path / "small", max_message_bytes=1_000)
    bench.client.create_topic("t")
    texts = pa.array(["x" * 900], pa.string())
    both = pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), texts, texts)
    with pytest.raises(InvalidMessage, match="1800"):
        bench.client.producer("t").send_batch(pa.table({"value": [b""], "properties": both}))

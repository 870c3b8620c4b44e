"""A single message becomes the bytes of a frame without Arrow: the same bytes."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.engine_kit import Bench
from txlog import Message
from txlog.base.settings import KEY_BYTES_MAX
from txlog.engine.model import schema
from txlog.engine.model.schema import OneRow, decode_rows, encode_rows
from txlog.engine.session.sending.producer import ProducerSession
from txlog.errors import InvalidArgument, InvalidMessage

VALUES = (b"", b"v", b"v" * 7, b"v" * 8, b"v" * 9, bytes(range(256)) * 5)
KEYS = (None, b"", b"k", b"k" * 8, b"k" * 33)
PROPERTIES: tuple[Mapping[str, str] | None, ...] = (
    None,
    {},
    {"": ""},
    {"a": "b", "é": "ü" * 3},
    {str(at): "x" * at for at in range(40)},
)
_LONG_PAIR = struct.Struct("<2q")
TIMES = (None, 0, -5, (1 << 63) - 1, -(1 << 63))


def test_a_row_has_the_bytes_that_arrow_gives_it() -> None:
    """Format: a reader of frames cannot see which of the two wrote a row."""
    chance = random.Random(4)
    print("seed 4")
    for _ in range(600):
        choices = tuple(chance.choice(sample) for sample in (VALUES, KEYS, PROPERTIES, TIMES))
        row = OneRow(*choices)  # type: ignore[arg-type]
        mask, data = encode_rows(row.batch())
        assert row.encoded() == (mask, data.to_pybytes()), choices
        assert decode_rows(*row.encoded()).equals(row.batch())
        value, key, properties, _ = choices
        assert row.payload_bytes == len(value or b"") + len(key or b"")  # type: ignore[arg-type]
        assert isinstance(properties, dict | None)
        texts = [len(text.encode()) for pair in (properties or {}).items() for text in pair]
        assert row.property_bytes == sum(texts)


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


def test_messages_are_the_same_with_and_without_arrow(
    tmp_path: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions, indexes and all fields; most of these messages never became a batch."""
    rows: list[OneRow] = []
    batch = OneRow.batch

    def counted(row: OneRow) -> Any:
        rows.append(row)
        return batch(row)

    monkeypatch.setattr(schema, "_SEEN", set())
    monkeypatch.setattr(OneRow, "batch", counted)
    message_ids = send_all(bench)
    # one for each shape: with a key or not; with none, one, two or forty properties
    assert len(rows) == 6
    assert len(message_ids) > 20
    monkeypatch.setattr(ProducerSession, "_plain_row", lambda *arguments: None)
    other = Bench(tmp_path / "other", max_message_bytes=4 * KEY_BYTES_MAX)
    other.client.create_topic("t", partitions=3)
    assert [str(message_id) for message_id in send_all(other)] == [
        str(message_id) for message_id in message_ids
    ]


def test_arrow_goes_on_where_it_lays_rows_out_in_a_way_that_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With an unknown layout of another version of Arrow, rows are right, and cost as much as
    before.
    """
    row = OneRow(b"v", b"k", {"a": "b"}, 1)
    mask, data = encode_rows(row.batch())
    monkeypatch.setattr(schema, "_SEEN", set())
    for name, other in (("_PADDING", [bytes(size) for size in range(8)]), ("_TWO", _LONG_PAIR)):
        schema._form.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(schema, name, other)
            for _ in range(3):
                assert row.encoded() == (mask, data.to_pybytes())
            assert schema._form((True, 1, True)) is None
    schema._form.cache_clear()
    assert row.encoded() == (mask, data.to_pybytes())
    assert schema._form((True, 1, True)) is not None


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

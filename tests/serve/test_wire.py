"""Frames and batches against the official runtime, and against arbitrary input of clients."""

from __future__ import annotations

from struct import pack

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from txlog.base.ids import TxnId
from txlog.engine.plan.reading.dispatch import RECEIVED
from txlog.errors import InvalidMessage
from txlog.serve.pulsar.batches import ReceivedRows, rows_of, rows_of_all
from txlog.serve.pulsar.ids import BatchSpan, runs_of, unacked
from txlog.serve.pulsar.messages import MessageIdData, MessageMetadata, SingleMessageMetadata
from txlog.serve.pulsar.wire import (
    Frame,
    FrameDecoder,
    encode_command,
    make_command,
    message_frame,
    receipt_frame,
    split_message,
    txn_frame,
)

MESSAGE = st.fixed_dictionaries(
    {"value": st.none() | st.binary(max_size=300)},
    optional={
        "key": st.binary(max_size=9) | st.text(max_size=9),
        "properties": st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2),
        "event_time": st.integers(1, 1 << 40),
        "sequence_id": st.integers(0, (1 << 63) - 1),
    },
)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(1, 40), max_size=40))
def test_frames_come_out_whole_however_they_are_cut(kinds: list[int], cuts: list[int]) -> None:
    sent = [
        encode_command("ping"),
        encode_command("error", request_id=3, error=5, message="busy"),
        encode_command("flow", consumer_id=1, messagePermits=300),
        encode_command("success", request_id=1 << 60),
    ]
    data, frames = b"".join(sent[kind] for kind in kinds), FrameDecoder(1000)
    decoded: list[Frame] = []
    for cut in cuts:
        decoded += frames.feed(data[:cut])
        data = data[cut:]
    decoded += frames.feed(data)
    assert [frame.kind for frame in decoded] == [(18, 14, 11, 13)[kind] for kind in kinds]
    assert frames.pending == 0


def test_only_acknowledgements_may_be_larger_than_a_message() -> None:
    message_id = MessageIdData(ledgerId=1, entryId=2, ack_set=[-1] * 200)
    ack = encode_command("ack", consumer_id=1, ack_type=0, message_id=[message_id])
    other = encode_command("error", request_id=3, error=5, message="x" * 2_000)
    frames = FrameDecoder(1_000)
    frames.allow(1_000)
    assert list(frames.feed(ack[:6])) == []
    assert frames.wanted == len(ack)
    assert [frame.kind for frame in frames.feed(ack[6:])] == [10]
    with pytest.raises(InvalidMessage):
        list(frames.feed(other))


def test_an_ack_set_is_read_as_far_as_the_batch_goes() -> None:
    """Kills: time that grows with the square of the length that a client sends."""
    assert unacked([-1] * 500_000, 70) == (1 << 70) - 1


@settings(max_examples=60)
@given(st.binary(max_size=64))
@example(b"\0\0\0\4\0\0\0\0")
def test_no_bytes_do_more_than_end_their_connection(data: bytes) -> None:
    frames = FrameDecoder(1000)
    try:
        for frame in frames.feed(data):
            split_message(frame.trailer)
    except InvalidMessage:
        return
    assert frames.pending <= 1004


@settings(max_examples=60)
@given(st.binary(max_size=80), st.integers(-1, 20))
def test_no_payload_does_more_than_refuse_its_send(payload: bytes, count: int) -> None:
    head = MessageMetadata(producer_name="", sequence_id=0, publish_time=1)
    head.num_messages_in_batch = count
    try:
        columns = rows_of(head, memoryview(payload))
    except InvalidMessage:
        return
    assert len(columns.values) == count
    assert rows_of_all([columns], [0]).num_rows == count


@settings(max_examples=60)
@given(st.lists(MESSAGE, min_size=1, max_size=8))
def test_batches_are_read_as_the_runtime_writes_them_and_back(messages: list[dict]) -> None:  # type: ignore[type-arg]
    payload = b""
    for item in messages:
        head = SingleMessageMetadata(payload_size=len(item["value"] or b""))
        head.null_value = item["value"] is None
        if isinstance(item.get("key"), str):
            head.partition_key = item["key"]
        for name, text in item.get("properties", {}).items():
            head.properties.add(key=name, value=text)
        head.event_time = item.get("event_time", 0)
        if "sequence_id" in item:
            head.sequence_id = item["sequence_id"]
        text = head.SerializeToString()
        payload += pack(">I", len(text)) + text + (item["value"] or b"")
    head = MessageMetadata(producer_name="p", sequence_id=5, publish_time=1)
    head.num_messages_in_batch = len(messages)
    columns = rows_of(head, memoryview(payload))
    assert columns.values == [item["value"] for item in messages]
    assert columns.sequences == [
        item.get("sequence_id", 5 + at) for at, item in enumerate(messages)
    ]
    assert columns.event_times == [item.get("event_time") for item in messages]
    keys = [item.get("key") for item in messages]
    assert columns.keys == [item.encode() if isinstance(item, str) else None for item in keys]
    table = rows_of_all([columns], [0])
    received = {name: [None] * len(messages) for name in RECEIVED.names}
    given_ = {name: table.column(name) for name in table.schema.names if name != "partition"}
    shown = pa.table(
        {
            field.name: given_.get(field.name, pa.array(received[field.name], field.type))
            for field in RECEIVED
        }
    )
    encoded, data = ReceivedRows(shown).batch(0, len(messages))
    back = rows_of(encoded, memoryview(data))
    assert (back.values, back.keys, back.sequences) == (
        columns.values,
        columns.keys,
        columns.sequences,
    )
    assert back.properties == columns.properties
    assert back.event_times == columns.event_times


def test_a_stored_row_with_negative_numbers_is_sent_without_them() -> None:
    """Kills: one odd row of an older program that stops the delivery of its topic."""
    odd = {"value": b"x", "sequence_id": -5, "event_time": -1, "publish_time": -1}
    table = pa.table(
        {field.name: pa.array([odd.get(field.name)] * 2, field.type) for field in RECEIVED}
    )
    head, payload = ReceivedRows(table).batch(0, 2)
    alone, value = ReceivedRows(table).alone(0)
    assert (head.sequence_id, head.publish_time, alone.sequence_id, alone.event_time) == (0,) * 4
    assert value == b"x"
    assert rows_of(head, memoryview(payload)).sequences == [0, 1]


NUMBER = st.integers(0, (1 << 63) - 1)


@settings(max_examples=60)
@given(
    NUMBER, NUMBER, NUMBER, st.integers(-1, 1 << 62), st.integers(-1, 1 << 62), st.integers(-1, 99)
)
def test_a_receipt_is_written_as_the_runtime_writes_it(
    producer: int, sequence: int, highest: int, ledger: int, entry: int, partition: int
) -> None:
    unsigned = (1 << 64) - 1
    where = MessageIdData(ledgerId=ledger & unsigned, entryId=entry & unsigned, partition=partition)
    assert receipt_frame(producer, sequence, highest, ledger, entry, partition) == encode_command(
        "send_receipt",
        producer_id=producer,
        sequence_id=sequence,
        highest_sequence_id=highest or None,
        message_id=where,
    )


@settings(max_examples=60)
@given(st.integers(0, (1 << 64) - 1), st.integers(0, 15), NUMBER)
def test_an_answer_that_names_a_transaction_is_written_as_the_runtime_writes_it(
    request: int, coordinator: int, sequence: int
) -> None:
    txn = TxnId(coordinator, sequence)
    halves = {"txnid_most_bits": txn.most, "txnid_least_bits": txn.least}
    for name in ("newTxn", "addPartitionToTxn", "addSubscriptionToTxn", "endTxn"):
        answer = f"{name}Response"
        assert txn_frame(answer, request, txn) == encode_command(
            answer, request_id=request, **halves
        )


def test_a_message_frame_is_checked_as_it_was_made() -> None:
    head = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2).SerializeToString()
    command = make_command("send", producer_id=1, sequence_id=1).SerializeToString()
    data = b"".join(message_frame(command, head, b"value"))
    [frame] = FrameDecoder(1000).feed(data)
    metadata, payload = split_message(frame.trailer)
    assert (frame.body.producer_id, metadata.sequence_id, bytes(payload)) == (1, 1, b"value")
    for at in range(len(data) - len(frame.trailer), len(data)):
        wrong = bytearray(data)
        wrong[at] ^= 1
        [frame] = FrameDecoder(1000).feed(bytes(wrong))
        with pytest.raises(InvalidMessage):
            split_message(frame.trailer)


@settings(max_examples=60)
@given(st.integers(0, (1 << 40) - 1))
def test_bits_are_runs_and_runs_are_bits(bits: int) -> None:
    runs = runs_of(BatchSpan(7, 100, 40), 0, bits)
    entries = {entry for _, first, last, _, _ in runs for entry in range(first, last + 1)}
    assert entries == {100 + at for at in range(40) if bits >> at & 1}
    words = [bits - (1 << 64) if bits >> 63 else bits]
    assert unacked(words, 40) == bits

"""SEND: batches become rows, a repeated message is stored once, a bad one is refused alone."""

from __future__ import annotations

import zlib
from pathlib import Path
from struct import pack
from typing import Any

import pyarrow as pa
import pytest

import txlog
from tests.serve.served import Raw, served
from txlog.serve.pulsar import wire
from txlog.serve.pulsar.ids import STEP
from txlog.serve.pulsar.messages import ERRORS, MessageMetadata, SingleMessageMetadata

NO_ID = (1 << 64) - 1  # -1: a receipt for an older repetition does not say its position

pytestmark = pytest.mark.usefixtures("quick_disk")


def batch(values: list[bytes], **fields: object) -> bytes:
    """A payload of several messages."""
    out = b""
    for at, value in enumerate(values):
        head = SingleMessageMetadata(payload_size=len(value), **fields)
        if at % 2:
            head.partition_key = f"k{at}"
        text = head.SerializeToString()
        out += pack(">I", len(text)) + text + value
    return out


def rows(path: Path, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    with txlog.open(str(path), read_only=True) as client:
        return [(message.value, message.key) for message in client.reader(topic)]


def opened(raw: Raw, topic: str, name: str | None = None) -> str:
    response = raw.ask(
        "producer", "producer_success", topic=topic, producer_id=1, producer_name=name
    )
    return str(response.producer_name)


def again(raw: Raw, topic: str, name: str | None = None) -> None:
    """Open a producer again after the server has closed it."""
    raw.read("close_producer")
    opened(raw, topic, name)


EXCLUSIVE, FENCING = 1, 3


def seated(raw: Raw, topic: str, mode: int, epoch: int | None = None) -> int:
    """Open an exclusive producer; returns its epoch."""
    fields = {"topic": topic, "producer_id": 1, "producer_access_mode": mode, "topic_epoch": epoch}
    return int(raw.ask("producer", "producer_success", **fields).topic_epoch)


def sent(raw: Raw, value: bytes, sequence: int) -> None:
    raw.message("send", value, {"sequence_id": sequence}, producer_id=1, sequence_id=sequence)


def test_a_batch_becomes_rows_with_one_receipt(place: tuple[Path, str]) -> None:
    path, url = place
    with Raw(url) as raw:
        opened(raw, "batches")
        head = {"sequence_id": 0, "num_messages_in_batch": 3}
        raw.message("send", batch([b"a", b"", b"c"]), head, producer_id=1, sequence_id=0)
        receipt = raw.read("send_receipt")
        head = {"sequence_id": 3}
        raw.message("send", b"d", head, producer_id=1, sequence_id=3)
        later = raw.read("send_receipt")
    assert (receipt.message_id.entryId, later.message_id.entryId) == (0, 3 * STEP)
    assert rows(path, "batches") == [(b"a", None), (b"", b"k1"), (b"c", None), (b"d", None)]


def test_repeated_send_is_stored_once(place: tuple[Path, str]) -> None:
    """A client that lost its connection before the receipt sends the batch again."""
    path, url = place
    entries = []
    for _ in range(2):
        with Raw(url) as raw:
            opened(raw, "again", "till")
            head = {"sequence_id": 5, "num_messages_in_batch": 2}
            raw.message("send", batch([b"a", b"b"]), head, producer_id=1, sequence_id=5)
            entries.append(raw.read("send_receipt").message_id.entryId)
            raw.ask("close_producer", "success", producer_id=1)
    assert entries == [0, NO_ID]
    assert len(rows(path, "again")) == 2


def grouped(raw: Raw, first: int, numbers: list[int]) -> None:
    """A batch whose messages have numbers of their own."""
    out = b""
    for number in numbers:
        text = SingleMessageMetadata(payload_size=2, sequence_id=number).SerializeToString()
        out += pack(">I", len(text)) + text + b"%2d" % number
    head = {"sequence_id": first, "num_messages_in_batch": len(numbers)}
    raw.message("send", out, head, producer_id=1, sequence_id=first)


@pytest.mark.parametrize("name", [None, "own"])
def test_messages_out_of_sequence_are_stored(place: tuple[Path, str], name: str | None) -> None:
    """Clients reorder: they make a batch per key, and send delayed messages ahead of a batch.

    Kills: messages that are answered as if repeated, and stored nowhere.
    """
    path, url = place
    topic = f"overtaken-{name}"
    with Raw(url) as raw:
        opened(raw, topic, name)
        head = {"sequence_id": 2, "deliver_at_time": 1}
        raw.message("send", b"2", head, producer_id=1, sequence_id=2)
        for numbers in ([0, 1], [3, 6], [4, 7], [5], [9], [8], [8], [0, 1], [5, 10]):
            grouped(raw, numbers[0], numbers)
        receipts = [raw.read("send_receipt") for _ in range(10)]
    assert [receipt.sequence_id for receipt in receipts] == [2, 0, 3, 4, 5, 9, 8, 8, 0, 5]
    assert all(receipt.message_id.ledgerId > 0 for receipt in receipts[:7])
    stored = [int(value or b"") for value, _ in rows(path, topic)]
    assert stored == [2, 0, 1, 3, 6, 4, 7, 5, 9, 8, 10]


def test_repeated_messages_out_of_sequence_are_stored_once(place: tuple[Path, str]) -> None:
    """A client that lost its connection repeats its batches in the order in which it sent them."""
    path, url = place
    for _ in range(2):
        with Raw(url) as raw:
            opened(raw, "overtaken", "till")
            for numbers in ([0, 3], [1, 4], [2]):
                grouped(raw, numbers[0], numbers)
            for _ in range(3):
                raw.read("send_receipt")
            raw.ask("close_producer", "success", producer_id=1)
    assert [int(value or b"") for value, _ in rows(path, "overtaken")] == [0, 3, 1, 4, 2]


@pytest.mark.parametrize(
    ("before", "numbers"),
    [pytest.param([4], [4, 6], id="first"), pytest.param([5], [4, 5, 6], id="middle")],
)
def test_receipt_of_a_partly_repeated_batch_has_no_id(
    place: tuple[Path, str], before: list[int], numbers: list[int]
) -> None:
    """A client counts on from the one id of a receipt, and would name messages of others.

    Found by `python -m tests.clients.recorded`: Go sends what had no receipt in other batches.
    """
    path, url = place
    topic = f"partly-{len(numbers)}"
    with Raw(url) as raw:
        opened(raw, topic, "own")
        grouped(raw, before[0], before)
        grouped(raw, numbers[0], numbers)
        entries = [raw.read("send_receipt").message_id.entryId for _ in range(2)]
    assert entries == [0, NO_ID]
    stored = [int(value or b"") for value, _ in rows(path, topic)]
    assert sorted(stored) == sorted({*before, *numbers})


def test_reconnected_client_numbers_new_messages_above_old_ones(
    place: tuple[Path, str],
) -> None:
    """Kills: a new message that the server takes for a repetition, and loses.

    A C++ client that has no receipt so far starts from the sequence of the answer, and repeats its
    unacked messages under the numbers after it. Its next message must have a higher number.
    """
    path, url = place
    with Raw(url) as raw:
        name = opened(raw, "apart")
        sent(raw, b"lost receipt", 0)
        raw.read("send_receipt")
    fields = {"topic": "apart", "producer_id": 1, "producer_name": name, "epoch": 1}
    with Raw(url) as raw:
        answer = raw.ask(
            "producer", "producer_success", **fields, user_provided_producer_name=False
        )
        for number, value in enumerate([b"lost receipt", b"waited"]):
            sent(raw, value, number)
        sent(raw, b"next", answer.last_sequence_id + 1)
        for _ in range(3):
            raw.read("send_receipt")
    assert [value for value, _ in rows(path, "apart")] == [b"lost receipt", b"waited", b"next"]


def test_named_producer_that_reuses_a_number_is_fenced(place: tuple[Path, str]) -> None:
    """A named producer that uses a number for another message is fenced, and asks what is stored.

    Kills: a message that is answered as a repetition of another one, and lost.
    """
    path, url = place
    fields = {"topic": "twice", "producer_id": 1, "producer_name": "own", "epoch": 1}
    with Raw(url, connects=False) as raw:
        raw.send("connect", client_version="Pulsar-CPP-v3", protocol_version=19)
        raw.read("connected")
        answer = raw.ask("producer", "producer_success", **fields)
        assert answer.last_sequence_id == -1
        for number, value in enumerate([b"a", b"b"]):
            sent(raw, value, number)
        for number, value in enumerate([b"c", b"d", b"e"]):
            sent(raw, value, number)
        assert [raw.read("send_receipt").sequence_id for _ in range(2)] == [0, 1]
        raw.read("close_producer")
        assert raw.ask("producer", "error", **fields).error == ERRORS["ProducerFenced"]
        answer = raw.ask("producer", "producer_success", **fields)
        assert answer.last_sequence_id == 1
    assert [value for value, _ in rows(path, "twice")] == [b"a", b"b"]


@pytest.mark.parametrize(
    ("kind", "press"),
    [
        (1, lambda data: pa.Codec("lz4_raw").compress(data, asbytes=True)),
        (2, zlib.compress),
        (3, lambda data: pa.Codec("zstd").compress(data, asbytes=True)),
        (4, lambda data: pa.Codec("snappy").compress(data, asbytes=True)),
    ],
    ids=["lz4", "zlib", "zstd", "snappy"],
)
def test_compressed_batches_are_read(place: tuple[Path, str], kind: int, press: object) -> None:
    path, url = place
    assert callable(press)
    data = batch([b"a" * 500, b"b"])
    with Raw(url) as raw:
        opened(raw, f"pressed{kind}")
        head = {"sequence_id": 0, "num_messages_in_batch": 2, "compression": kind}
        head["uncompressed_size"] = len(data)
        raw.message("send", press(data), head, producer_id=1, sequence_id=0)
        raw.read("send_receipt")
        head |= {"sequence_id": 2, "uncompressed_size": len(data) - 1}  # a bomb, or damage
        raw.message("send", press(data), head, producer_id=1, sequence_id=2)
        raw.read("send_error")
        again(raw, f"pressed{kind}")
        head |= {"sequence_id": 2, "uncompressed_size": 1 << 30}
        raw.message("send", press(data), head, producer_id=1, sequence_id=2)
        raw.read("send_error")
    assert rows(path, f"pressed{kind}") == [(b"a" * 500, None), (b"b", b"k1")]


def test_a_wrong_checksum_is_refused_and_the_next_message_is_not(place: tuple[Path, str]) -> None:
    path, url = place
    with Raw(url) as raw:
        opened(raw, "sums")

        head = MessageMetadata(producer_name="", publish_time=1, sequence_id=0).SerializeToString()
        command = wire.make_command("send", producer_id=1, sequence_id=0).SerializeToString()
        frame = bytearray(b"".join(wire.message_frame(command, head, b"value")))
        frame[-1] ^= 1
        raw.socket.sendall(frame)
        assert raw.read("send_error").error == ERRORS["ChecksumError"]
        again(raw, "sums")
        raw.message("send", b"v", {"sequence_id": 1}, producer_id=1, sequence_id=1)
        raw.read("send_receipt")
    assert rows(path, "sums") == [(b"v", None)]


@pytest.mark.parametrize("cut", [1, 4, 6, 9])
def test_a_batch_that_is_cut_is_refused(place: tuple[Path, str], cut: int) -> None:
    path, url = place
    with Raw(url) as raw:
        opened(raw, "cut")
        head = {"sequence_id": 0, "num_messages_in_batch": 3}
        raw.message("send", batch([b"a", b"b", b"c"])[:-cut], head, producer_id=1, sequence_id=0)
        raw.read("send_error")
    assert rows(path, "cut") == []


def test_chunks_are_one_message_with_the_receipts_of_all(place: tuple[Path, str]) -> None:
    path, url = place
    pieces = [b"a" * 3_000_000, b"b" * 3_000_000, b"c"]
    with Raw(url) as raw:
        opened(raw, "chunks")
        for at, piece in enumerate(pieces):
            head = {"sequence_id": 0, "uuid": "u", "chunk_id": at, "num_chunks_from_msg": 3}
            head["total_chunk_msg_size"] = 6_000_001
            raw.message("send", piece, head, producer_id=1, sequence_id=0)
        entries = {raw.read("send_receipt").message_id.entryId for _ in pieces}
    assert len(entries) == 1
    [(value, _)] = rows(path, "chunks")
    assert value == b"".join(pieces)


def test_a_name_has_one_client_at_a_time(place: tuple[Path, str]) -> None:
    _, url = place
    with Raw(url) as raw, Raw(url) as other:
        opened(raw, "names", "till")
        error = other.ask("producer", "error", topic="names", producer_id=1, producer_name="till")
        assert error.error == ERRORS["ProducerBusy"]
        raw.ask("close_producer", "success", producer_id=1)
        assert opened(other, "names", "till") == "till"


def test_partitions_that_open_one_name_at_once_are_one_producer(place: tuple[Path, str]) -> None:
    """Kills: a producer in the store for each partition, where the last one fences the others."""
    path, url = place
    with txlog.open(str(path)) as client:
        client.create_topic("at-once", 2)
    with Raw(url) as raw:
        frames = [
            wire.encode_command(
                "producer",
                topic=f"at-once-partition-{at}",
                request_id=at,
                producer_id=at,
                producer_name="till",
            )
            for at in range(2)
        ]
        raw.socket.sendall(b"".join(frames))
        for _ in range(2):
            raw.read("producer_success")
        for at in range(2):
            raw.message("send", b"x", {"sequence_id": 0}, producer_id=at, sequence_id=0)
            raw.read("send_receipt")


def test_partitions_of_one_producer_come_over_several_connections(
    place: tuple[Path, str],
) -> None:
    """A partition has one producer of a name; a reconnecting producer replaces its old one."""
    path, url = place
    with txlog.open(str(path)) as client:
        client.create_topic("spread", 2)
    with Raw(url) as raw, Raw(url) as other, Raw(url) as later:
        first, second = (f"spread-partition-{at}" for at in range(2))
        opened(raw, first, "till")
        opened(other, second, "till")
        fields = {"topic": first, "producer_id": 2, "producer_name": "till"}
        error = other.ask("producer", "error", **fields)
        assert error.error == ERRORS["ProducerBusy"]
        sent(raw, b"a", 0)
        sent(other, b"b", 0)
        raw.read("send_receipt")
        other.read("send_receipt")
        response = other.ask("producer", "producer_success", epoch=1, **fields)
        assert response.last_sequence_id >= 0
        raw.read("close_producer")
        error = later.ask("producer", "error", **fields)
        assert error.error == ERRORS["ProducerBusy"]
        sent(other, b"c", 1)
        other.read("send_receipt")
    assert sorted(rows(path, "spread")) == [(b"a", None), (b"b", None), (b"c", None)]


WRONG = {
    "a key that is too long": {"partition_key": "k" * 70_000},
    "a delay that is too long": {"deliver_at_time": 1 << 42},
    "a batch of two": {"num_messages_in_batch": 2},
    "what cannot be read": {"compression": 1, "uncompressed_size": 10},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("size", [0, 2])
def test_nothing_is_stored_behind_a_message_that_is_refused(
    tmp_path: Path, wrong: dict[str, Any], size: int
) -> None:
    """Kills: a repeated message that is answered as a duplicate, but was never stored.

    size: of batches; 0: messages without one
    """
    path = tmp_path / "s"
    with served(path) as url, Raw(url) as raw, Raw(url) as other:
        with txlog.open(str(path)) as client:
            client.create_topic("mixed")
            client.admin.set_delayed_policies("mixed", max_delivery_delay_ms=1_000)

        def send(*numbers: int, of: Raw = raw) -> None:
            frames: list[bytes] = []
            for at in numbers:
                head: dict[str, Any] = {"sequence_id": 2 * at}
                value = b"%d" % at
                if at == 2:
                    head |= wrong
                elif size:
                    head["num_messages_in_batch"] = size
                    value = batch([value] * size)
                answer = MessageMetadata(producer_name="", publish_time=1, **head)
                command = wire.make_command("send", producer_id=1, sequence_id=2 * at)
                frames += wire.message_frame(
                    command.SerializeToString(), answer.SerializeToString(), value
                )
            of.socket.sendall(b"".join(frames))

        opened(raw, "mixed", "till")
        opened(other, "mixed", "other")
        send(*range(300))
        send(7, of=other)
        assert [raw.read("send_receipt").sequence_id for _ in range(2)] == [0, 2]
        assert raw.read("send_error").sequence_id == 4
        again(raw, "mixed", "till")
        other.read("send_receipt")
        send(2)
        raw.read("send_error")
        again(raw, "mixed", "till")
        send(3, 4)
        assert [raw.read("send_receipt").sequence_id for _ in range(2)] == [6, 8]
    stored = [value for value, _ in rows(path, "mixed")][:: size or 1]
    assert sorted(one or b"" for one in stored) == [b"0", b"1", b"3", b"4", b"7"]


def test_a_repeated_message_is_answered_among_new_ones(tmp_path: Path) -> None:
    """Kills: a group that is refused for one repetition; the receipt of an old one has no id."""
    path = tmp_path / "s"
    with served(path) as url, Raw(url) as raw:
        opened(raw, "one", "till")
        for number in range(3):
            sent(raw, b"%d" % number, number)
            raw.read("send_receipt")
        for at in range(20):  # two new messages and an old one, in one group if they come at once
            frames: list[bytes] = []
            for number in (3 + 2 * at, 4 + 2 * at, 1):
                head = MessageMetadata(producer_name="", publish_time=1, sequence_id=number)
                head.num_messages_in_batch = 1
                command = wire.make_command("send", producer_id=1, sequence_id=number)
                frames += wire.message_frame(
                    command.SerializeToString(), head.SerializeToString(), batch([b"x"])
                )
            raw.socket.sendall(b"".join(frames))
            receipts = [raw.read("send_receipt") for _ in range(3)]
            assert [receipt.sequence_id for receipt in receipts] == [3 + 2 * at, 4 + 2 * at, 1]
            assert receipts[2].message_id.entryId == NO_ID
    assert len(rows(path, "one")) == 43


def test_messages_for_several_partitions_share_a_frame(place: tuple[Path, str]) -> None:
    path, url = place
    with txlog.open(str(path)) as client:
        client.create_topic("parted", 3)
    with Raw(url) as raw:
        for at in range(3):
            topic = f"parted-partition-{at}"
            fields = {"topic": topic, "producer_id": at, "producer_name": "till"}
            raw.ask("producer", "producer_success", **fields)
        frames: list[bytes] = []
        for at in range(9):
            where, sequence = (2, 0, 1)[at % 3], at // 3
            head = MessageMetadata(producer_name="", publish_time=1, sequence_id=sequence)
            command = wire.make_command("send", producer_id=where, sequence_id=sequence)
            value = b"%d %d" % (where, sequence)
            frames += wire.message_frame(
                command.SerializeToString(), head.SerializeToString(), value
            )
        raw.socket.sendall(b"".join(frames))
        receipts = [raw.read("send_receipt") for _ in range(9)]
    ids = {(item.producer_id, item.sequence_id): item.message_id for item in receipts}
    assert {key: (item.partition, item.entryId) for key, item in ids.items()} == {
        (where, at): (where, at * STEP) for where in range(3) for at in range(3)
    }
    with txlog.open(str(path), read_only=True) as client:
        for where in range(3):
            stored = [item.value for item in client.reader(f"parted/{where}")]
            assert stored == [b"%d %d" % (where, at) for at in range(3)]


def test_a_producer_that_was_fenced_is_closed_and_its_connection_goes_on(
    place: tuple[Path, str],
) -> None:
    """Kills: SEND_ERROR, on which a client resets everything on its connection."""
    path, url = place
    with Raw(url) as first, Raw(url) as second:
        epoch = seated(first, "fenced", EXCLUSIVE)
        seated(second, "fenced", FENCING)
        sent(second, b"a", 0)
        second.read("send_receipt")
        for sequence in range(3):
            sent(first, b"too late", sequence)
        assert first.read("close_producer").producer_id == 1
        sent(first, b"still on its way", 3)
        fields = {"topic": "fenced", "producer_access_mode": EXCLUSIVE, "topic_epoch": epoch}
        refused = first.ask("producer", "error", producer_id=1, **fields)
        assert refused.error == ERRORS["ProducerFenced"]
        second.ask("close_producer", "success", producer_id=1)
        refused = first.ask("producer", "error", producer_id=1, **fields)  # it is over for ever
        assert refused.error == ERRORS["ProducerFenced"]
        opened(first, "others")
        sent(first, b"b", 0)
        first.read("send_receipt")
    assert rows(path, "fenced") == [(b"a", None)]


def test_exclusive_producer_reopens_if_the_topic_is_free(place: tuple[Path, str]) -> None:
    path, url = place
    epoch = None
    for sequence in range(3):
        with Raw(url) as raw:
            epoch = seated(raw, "seat", EXCLUSIVE, epoch)
            sent(raw, b"v", sequence)
            raw.read("send_receipt")
            raw.ask("close_producer", "success", producer_id=1)
    assert len(rows(path, "seat")) == 3


def test_shared_producers_are_closed_by_an_exclusive_one(
    place: tuple[Path, str],
) -> None:
    path, url = place
    with Raw(url) as first, Raw(url) as second:
        opened(first, "taken")
        seated(second, "taken", FENCING)
        first.read("close_producer")
        sent(first, b"too late", 0)
        sent(second, b"a", 0)
        second.read("send_receipt")
    assert rows(path, "taken") == [(b"a", None)]

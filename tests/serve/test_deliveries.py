"""Deliveries to consumers: the ids of receipts, whole and partial batches, acknowledgements."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest

import txlog
from tests.serve.deliveries import (
    acknowledge,
    backlog,
    counted,
    filled,
    messages,
    parted,
    subscribed,
)
from tests.serve.served import Raw, served
from tests.serve.test_sends import batch, opened
from txlog.engine.session.consuming.consumer import ConsumerSession
from txlog.errors import TryAgain
from txlog.serve.pulsar import consumers, deliveries, ids, wire
from txlog.serve.pulsar.ids import STEP
from txlog.serve.pulsar.messages import (
    ERRORS,
    MessageIdData,
    MessageMetadata,
    SingleMessageMetadata,
    message_class,
)

pytestmark = pytest.mark.usefixtures("quick_disk")
NO_ID = (1 << 64) - 1  # -1: the receipt of an older repetition has no id


def test_a_batch_comes_back_with_the_ids_of_its_receipt(place: tuple[Path, str]) -> None:
    path, url = place
    ledger = filled(url, "whole")
    with Raw(url) as raw:
        subscribed(raw, "whole")
        assert messages(raw, 3) == [(0, 1, 0), (STEP, 3, 0), (4 * STEP, 1, 0)]
        acknowledge(raw, ledger, STEP)
        acknowledge(raw, ledger, 0)
        raw.ask("close_consumer", "success", consumer_id=1)
    assert backlog(path, "whole") == 1


def test_ids_survive_a_restart_after_a_part_was_acknowledged(tmp_path: Path) -> None:
    """The rest of a batch comes as single messages, whose ids are in order and acknowledge them."""
    with served(tmp_path / "s") as url:
        ledger = filled(url, "parts")
        with Raw(url) as raw:
            subscribed(raw, "parts")
            messages(raw, 3)
            acknowledge(raw, ledger, STEP, ack_set=[0b101])  # the second message is acknowledged
    with served(tmp_path / "s") as url, Raw(url) as raw:
        subscribed(raw, "parts")
        frames = messages(raw, 4)
        assert [entry for entry, _, _ in frames] == [0, STEP + 1, STEP + 3, 4 * STEP]
        for entry, _, _ in frames:
            acknowledge(raw, ledger, entry)
    assert backlog(tmp_path / "s", "parts") == 0


def test_messages_of_an_earlier_connection_can_be_acknowledged(place: tuple[Path, str]) -> None:
    """A client that lost its connection acknowledges later by the ids that it still has."""
    path, url = place
    ledger = filled(url, "later")
    with Raw(url) as raw:
        subscribed(raw, "later")
        messages(raw, 3)
    with Raw(url) as raw:
        subscribed(raw, "later")
        acknowledge(raw, ledger, STEP)
        acknowledge(raw, ledger, 4 * STEP)
    assert backlog(path, "later") == 1


@pytest.mark.parametrize(
    ("entry", "fields", "remaining"),
    [
        (0, {}, 4),
        (STEP - 1, {}, 4),  # what clients call the one before an entry
        (STEP, {}, 1),
        (STEP, {"ack_set": [0b100]}, 2),
        (STEP, {"ack_set": [0b111]}, 4),
        (4 * STEP, {}, 0),
    ],
)
def test_everything_up_to_an_id_is_acknowledged(
    tmp_path: Path, entry: int, fields: dict[str, Any], remaining: int
) -> None:
    with served(tmp_path / "s") as url:
        ledger = filled(url, "up")
        with Raw(url) as raw:
            subscribed(raw, "up", subType=0)
            raw.read("active_consumer_change")
            messages(raw, 3)
            message_id = MessageIdData(ledgerId=ledger, entryId=entry, **fields)
            raw.ask("ack", "ackResponse", consumer_id=1, ack_type=1, message_id=[message_id])
    assert backlog(tmp_path / "s", "up") == remaining


def test_deliveries_exceed_permits_by_one_batch_at_most(place: tuple[Path, str]) -> None:
    _, url = place
    filled(url, "few")
    with Raw(url) as raw:
        subscribed(raw, "few")
        assert messages(raw, 1, permits=1) == [(0, 1, 0)]
        assert messages(raw, 1, permits=1) == [(STEP, 3, 0)]  # two more than it asked for
        raw.send("ping")
        raw.read("pong")
        assert messages(raw, 1, permits=3) == [(4 * STEP, 1, 0)]


@pytest.mark.parametrize("kind", [0, 1, 2, 3], ids=consumers.KINDS)
def test_each_partition_has_its_own_permits(tmp_path: Path, kind: int) -> None:
    """Kills: permits that are shared by all partitions, so that one partition floods the client."""
    with served(tmp_path / "s") as url, Raw(url) as raw:
        parted(tmp_path / "s", "parted", [b"v"] * 20, 1)
        for at in range(3):
            subscribed(raw, f"parted-partition-{at}", consumer_id=at, subType=kind)
            if kind in (0, 2):
                raw.read("active_consumer_change")
        for at in range(3):
            raw.send("flow", consumer_id=at, messagePermits=4 + at)
        first = counted(raw, 15)
        for at in range(3):  # messages sent beyond the permits would arrive before these
            raw.send("flow", consumer_id=at, messagePermits=1)
            assert counted(raw, 1) == [(at, 1)]
        assert first == [(at, 1) for at in range(3) for _ in range(4 + at)]


def test_each_partition_gets_the_whole_of_its_last_batch(tmp_path: Path) -> None:
    with served(tmp_path / "s") as url, Raw(url) as raw:
        parted(tmp_path / "s", "parted", [b"v"] * 12, 4)
        for at in range(3):
            subscribed(raw, f"parted-partition-{at}", consumer_id=at)
        flows = [wire.encode_command("flow", consumer_id=at, messagePermits=5) for at in range(3)]
        raw.socket.sendall(b"".join(flows))
        assert counted(raw, 6) == [(at, 4) for at in range(3) for _ in range(2)]


def test_shared_batch_costs_permits_for_own_messages_only(tmp_path: Path) -> None:
    """Several consumers share a batch by key, and each delivered message costs a permit.

    Kills: a consumer that gets extra messages for the keys of the batch that its peers received.
    """
    with served(tmp_path / "s") as url, Raw(url) as raw, Raw(url) as other:
        parted(tmp_path / "s", "keys", [b"v"] * 60, 30)
        for consumer in (raw, other):
            subscribed(consumer, "keys-partition-0", subType=3)
        for _ in range(3):
            assert [size for _, size, _ in messages(raw, 2, permits=2)] == [1, 1]
            raw.send("ping")
            raw.read("pong")  # nothing more came before it


def test_a_message_in_chunks_has_the_id_of_its_receipts(tmp_path: Path) -> None:
    """Kills: a receipt with an id that no consumer ever sees."""
    with served(tmp_path / "s") as url, Raw(url) as raw:
        opened(raw, "chunked")
        for at in range(3):
            head = {"sequence_id": 0, "uuid": "u", "chunk_id": at, "num_chunks_from_msg": 3}
            head["total_chunk_msg_size"] = 6_000_000
            raw.message("send", b"x" * 2_000_000, head, producer_id=1, sequence_id=0)
        receipts = [raw.read("send_receipt").message_id for _ in range(3)]
        subscribed(raw, "chunked")
        raw.send("flow", consumer_id=1, messagePermits=10)
        delivered_ids = [raw.read("message").message_id for _ in range(2)]
        assert {
            (message_id.ledgerId, message_id.entryId) for message_id in [*receipts, *delivered_ids]
        } == {(receipts[0].ledgerId, receipts[0].entryId)}
        last = raw.ask("getLastMessageId", "getLastMessageIdResponse", consumer_id=1)
        assert last.last_message_id.entryId == receipts[0].entryId
        raw.ask("ack", "ackResponse", consumer_id=1, ack_type=0, message_id=[receipts[0]])
        raw.ask("close_consumer", "success", consumer_id=1)
        with txlog.open(str(tmp_path / "s")) as client:
            assert client.subscriptions("chunked")[0]["backlog"] == 0


def test_chunks_are_counted_one_by_one(tmp_path: Path) -> None:
    """A client grants a permit for each chunk that it received, so the server counts chunks."""
    size = 3 << 20
    txlog.init(str(tmp_path / "s"), max_message_bytes=1 << 20)
    with txlog.open(str(tmp_path / "s")) as client:
        client.create_topic("large")
        with client.producer("large", chunking=True) as producer:
            producer.send(b"x" * size)
            producer.send(b"y")
            producer.send(b"z")
    with served(tmp_path / "s") as url, Raw(url) as raw:
        subscribed(raw, "large")
        chunks = len(messages(raw, 4, permits=1))
        raw.send("flow", consumer_id=1, messagePermits=chunks - 1)  # it owes these
        raw.send("ping")
        raw.read("pong")
        assert messages(raw, 1, permits=1) == [(STEP, 1, 0)]


@pytest.mark.parametrize("bytes_max", [1, 100, 65_536])
def test_large_messages_come_in_chunks_however_small(tmp_path: Path, bytes_max: int) -> None:
    """Kills: a large message without a frame, which uses up a permit, and is never delivered."""
    value = b"x" * (bytes_max + 1)
    txlog.init(str(tmp_path / "s"), max_message_bytes=bytes_max)
    with txlog.open(str(tmp_path / "s")) as client:
        client.create_topic("large")
        with client.producer("large", chunking=True) as producer:
            producer.send(value)
    with served(tmp_path / "s") as url, Raw(url) as raw:
        subscribed(raw, "large")
        raw.send("flow", consumer_id=1, messagePermits=10)
        came = b""
        while len(came) < len(value):
            frame = raw.frame()
            assert frame.kind == wire.BY_FIELD["message"]
            came += wire.split_message(frame.trailer).payload
        assert came == value


def test_returned_messages_are_redelivered_and_counted(place: tuple[Path, str]) -> None:
    _, url = place
    ledger = filled(url, "again")
    with Raw(url) as raw:
        subscribed(raw, "again")
        messages(raw, 3)
        message_id = MessageIdData(ledgerId=ledger, entryId=STEP)
        raw.send("redeliverUnacknowledgedMessages", consumer_id=1, message_ids=[message_id])
        assert messages(raw, 1) == [(STEP, 3, 1)]
        raw.send("redeliverUnacknowledgedMessages", consumer_id=1)
        assert messages(raw, 3) == [(0, 1, 1), (STEP, 3, 2), (4 * STEP, 1, 1)]


def test_closed_connection_returns_its_messages(place: tuple[Path, str]) -> None:
    _, url = place
    filled(url, "ends")
    with Raw(url) as raw:
        subscribed(raw, "ends")
        messages(raw, 3)
    with Raw(url) as raw:
        subscribed(raw, "ends")
        assert [entry for entry, _, _ in messages(raw, 3)] == [0, STEP, 4 * STEP]


def test_seek_moves_the_subscription_and_its_consumer_reconnects(place: tuple[Path, str]) -> None:
    _, url = place
    ledger = filled(url, "moved")
    with Raw(url) as raw:
        subscribed(raw, "moved")
        messages(raw, 3)
        message_id = MessageIdData(ledgerId=ledger, entryId=STEP, batch_index=1)
        raw.ask("seek", "close_consumer", consumer_id=1, message_id=message_id)
        raw.read("success")
        subscribed(raw, "moved")
        assert messages(raw, 2) == [(STEP, 3, 0), (4 * STEP, 1, 0)]
        before_1970 = (1 << 64) - 60
        raw.ask("seek", "close_consumer", consumer_id=1, message_publish_time=before_1970)
        raw.read("success")
        subscribed(raw, "moved")
        assert len(messages(raw, 3)) == 3


def test_reader_starts_at_its_start_message(place: tuple[Path, str]) -> None:
    path, url = place
    ledger = filled(url, "read")
    start = MessageIdData(ledgerId=ledger, entryId=0)
    with Raw(url) as raw:
        subscribed(raw, "read", subscription="r", durable=False, subType=0, start_message_id=start)
        raw.read("active_consumer_change")
        last = raw.ask("getLastMessageId", "getLastMessageIdResponse", consumer_id=1)
        assert (last.last_message_id.entryId, last.last_message_id.batch_index) == (4 * STEP, -1)
        # the named message comes, too: a client that does not want it drops it
        assert messages(raw, 3) == [(0, 1, 0), (STEP, 3, 0), (4 * STEP, 1, 0)]
    with txlog.open(str(path), read_only=True) as client:
        assert client.subscriptions("read") == []


def test_reader_ignores_the_seek_of_another_reader(place: tuple[Path, str]) -> None:
    """Kills: a position kept by name, from which the next reader of that name would start."""
    _, url = place
    filled(url, "nightly")
    earliest = MessageIdData(ledgerId=ids.NOWHERE, entryId=ids.NOWHERE)
    latest = MessageIdData(ledgerId=ids.LATEST, entryId=ids.LATEST)
    reader: dict[str, Any] = {"subscription": "r", "durable": False, "subType": 0}
    reader["start_message_id"] = earliest
    with Raw(url) as raw, Raw(url) as other:
        subscribed(raw, "nightly", **reader)
        raw.read("active_consumer_change")
        subscribed(raw, "nightly", **reader, consumer_id=2)
        raw.read("active_consumer_change")
        raw.ask("seek", "close_consumer", consumer_id=2, message_id=latest)
        raw.read("success")
        raw.ask("seek", "close_consumer", consumer_id=1, message_id=earliest)
        raw.read("success")
        subscribed(other, "nightly", **reader)
        assert [entry for entry, _, _ in messages(other, 3)] == [0, STEP, 4 * STEP]
        # the consumer that was moved subscribes again, and starts at its new position
        reader["start_message_id"] = latest
        subscribed(raw, "nightly", **reader)
        assert [entry for entry, _, _ in messages(raw, 3)] == [0, STEP, 4 * STEP]
        # a reader that was closed and is opened again is a new reader
        raw.ask("seek", "close_consumer", consumer_id=1, message_id=latest)
        raw.read("success")
        raw.ask("close_consumer", "success", consumer_id=1)
        reader["start_message_id"] = earliest
        subscribed(raw, "nightly", **reader)
        assert [entry for entry, _, _ in messages(raw, 3)] == [0, STEP, 4 * STEP]


@pytest.mark.parametrize("is_together", [False, True], ids=["commands", "ids"])
def test_wrong_id_fails_no_other_acknowledgement(tmp_path: Path, is_together: bool) -> None:
    """The server makes acknowledgements in groups, from one command or from several."""
    path = tmp_path / "s"
    with served(path) as url, Raw(url) as raw:
        ledger, other = filled(url, "good"), filled(url, "other")
        subscribed(raw, "good")
        messages(raw, 3)
        message_ids = [MessageIdData(ledgerId=ledger, entryId=at * STEP) for at in (0, 1, 4)]
        message_ids.insert(1, MessageIdData(ledgerId=other, entryId=0))
        groups = [message_ids] if is_together else [[message_id] for message_id in message_ids]
        frames = [
            wire.encode_command("ack", consumer_id=1, ack_type=0, message_id=group, request_id=at)
            for at, group in enumerate(groups)
        ]
        raw.socket.sendall(b"".join(frames))
        responses = [raw.read("ackResponse") for _ in groups]
        wrong = {response.request_id for response in responses if response.HasField("error")}
        assert wrong == ({0} if is_together else {1})
        raw.ask("close_consumer", "success", consumer_id=1)
        assert backlog(path, "good") == 0


def test_messages_of_a_transaction_are_a_batch_by_its_marker(tmp_path: Path) -> None:
    with served(tmp_path / "s") as url:
        with txlog.open(str(tmp_path / "s")) as client:
            client.create_topic("txn")
            with client.transaction() as txn:
                producer = client.producer("txn")
                for value in (b"x", b"y"):
                    producer.send(value, txn=txn)
            last = client.reader("txn").get_last_message_id()
        assert last is not None
        with Raw(url) as raw:
            subscribed(raw, "txn")
            assert messages(raw, 1) == [(0, 2, 0)]
            acknowledge(raw, last.ledger, 0, ack_set=[0b10])
            raw.ask("close_consumer", "success", consumer_id=1)
            subscribed(raw, "txn")
            assert messages(raw, 1) == [(2, 1, 1)]


def test_an_exclusive_subscription_has_one_consumer(place: tuple[Path, str]) -> None:
    _, url = place
    filled(url, "one")
    with Raw(url) as raw, Raw(url) as other:
        subscribed(raw, "one", subType=0)
        error = other.ask(
            "subscribe", "error", topic="one", subscription="s", subType=0, consumer_id=1
        )
        assert error.error == ERRORS["ConsumerBusy"]
        raw.read("active_consumer_change")
        raw.ask("unsubscribe", "success", consumer_id=1)
        subscribed(other, "one", subType=0)
        other.read("active_consumer_change")
        assert len(messages(other, 3)) == 3


def shapes(raw: Raw, count: int) -> list[tuple[int, bool, bytes | None]]:
    """(entry, whether it is in a batch, value) of the next messages, as a client reads them."""
    raw.send("flow", consumer_id=1, messagePermits=count)
    entries = list[tuple[int, bool, bytes | None]]()
    while len(entries) < count:
        frame = raw.frame()
        if frame.kind != wire.BY_FIELD["message"]:
            continue
        head, payload = wire.split_message(frame.trailer)
        is_batch, value = head.HasField("num_messages_in_batch"), bytes(payload)
        if is_batch:
            assert head.num_messages_in_batch == 1
            size = int.from_bytes(value[:4])
            head = SingleMessageMetadata.FromString(value[4 : 4 + size])
            value = value[4 + size :]
            assert head.payload_size == len(value)
        entries.append(
            (frame.body.message_id.entryId, is_batch, None if head.null_value else value)
        )
    return entries


def one(value: bytes | None, **head: Any) -> bytes:
    """A batch of one."""
    head |= {"payload_size": len(value or b""), "null_value": value is None or None}
    text: bytes = SingleMessageMetadata(**head).SerializeToString()
    return len(text).to_bytes(4) + text + (value or b"")


VALUES = [b"a", b"", None]


@pytest.mark.parametrize(
    "version", ["raw", "Pulsar-Go-version-1", "Pulsar-Java-v4", "Pulsar-CPP-v3"]
)
def test_message_sent_in_a_batch_of_one_is_delivered_in_one(tmp_path: Path, version: str) -> None:
    """An empty message also goes out in a batch of one, to clients that would discard it otherwise.

    Kills: messages that Go's client takes for corrupted, and acknowledges.
    """
    path = tmp_path / "s"
    with served(path) as url:
        with Raw(url) as raw:
            opened(raw, "empty")
            number = 0
            for value in VALUES:
                head = {"sequence_id": number, "num_messages_in_batch": 1}
                raw.message("send", one(value), head, producer_id=1, sequence_id=number)
                number += 1
            for value in VALUES:
                head = {"sequence_id": number, "null_value": int(value is None)}
                raw.message("send", value or b"", head, producer_id=1, sequence_id=number)
                number += 1
            sent = [raw.read("send_receipt").message_id.entryId for _ in range(number)]
        is_known = version.startswith(("Pulsar-Java", "Pulsar-CPP"))
        forms = [True] * 3 + [False, not is_known, not is_known]
        for name in ("of the journal", "of files"):
            with Raw(url, connects=False) as raw:
                raw.send("connect", client_version=version, protocol_version=19)
                raw.read("connected")
                subscribed(raw, "empty", subscription=name.replace(" ", "-"))
                delivered = shapes(raw, number)
                assert delivered == [*zip(sent, forms, VALUES * 2, strict=True)]
                for entry, _, _ in delivered:
                    acknowledge(raw, 1, entry)
            with txlog.open(str(path)) as client:
                client.checkpoint(roll_all=True)
    assert backlog(path, "empty") == 0


@pytest.mark.parametrize("with_transactions", [False, True])
def test_go_gets_each_message_alone_if_its_client_uses_transactions(
    place: tuple[Path, str], with_transactions: bool
) -> None:
    """Also after a reconnect, before the client asks for the coordinator again.

    Kills: messages of an aborted transaction that Go acknowledges with their batch later.
    """
    path, url = place
    topic = f"split-{with_transactions}"
    filled(url, topic)
    alone = [(0, 1, 0), *((STEP + n, 1, 0) for n in (1, 2, 3)), (4 * STEP, 1, 0)]
    whole = [(0, 1, 0), (STEP, 3, 0), (4 * STEP, 1, 0)]
    for asks_again in (with_transactions, False):
        with Raw(url, connects=False) as raw:
            raw.send("connect", client_version="Pulsar-Go-version-1", protocol_version=19)
            raw.read("connected")
            if asks_again:
                raw.ask("tcClientConnectRequest", "tcClientConnectResponse", tc_id=0)
            subscribed(raw, topic)
            expected = alone if with_transactions else whole
            frames = messages(raw, len(expected))
            assert [item[:2] for item in frames] == [item[:2] for item in expected]
            raw.ask("close_consumer", "success", consumer_id=1)
    with txlog.open(str(path)) as client:
        policies = client.subscription(topic, "s").set_policies()
    assert policies == ({"split_batches": 1} if with_transactions else {})


def test_a_reader_behind_the_first_message_of_a_batch_gets_the_others(
    place: tuple[Path, str],
) -> None:
    """A single message has a greater id than its batch, so the client would drop the whole batch.

    Kills: a reader of Go or Java that misses a whole batch, after SUBSCRIBE or SEEK by such an id.
    """
    _, url = place
    ledger = filled(url, "behind")
    first = MessageIdData(ledgerId=ledger, entryId=STEP + 1)
    alone = [STEP + 1, STEP + 2, STEP + 3, 4 * STEP]
    with Raw(url) as raw:
        subscribed(raw, "behind", durable=False, start_message_id=first)
        assert [entry for entry, _, _ in messages(raw, 4)] == alone
    with Raw(url) as raw:
        start = MessageIdData(ledgerId=ledger, entryId=0)
        subscribed(raw, "behind", durable=False, start_message_id=start)
        raw.read("active_consumer_change")
        raw.ask("seek", "close_consumer", consumer_id=1, message_id=first)
        raw.read("success")
        subscribed(raw, "behind", durable=False)
        assert [entry for entry, _, _ in messages(raw, 4)] == alone


def test_the_last_message_has_the_id_that_a_reader_gets_it_by(place: tuple[Path, str]) -> None:
    """Kills: a reader that began within a batch, and skips the rest of the batch."""
    _, url = place
    with Raw(url) as raw:
        opened(raw, "within")
        head = {"sequence_id": 0, "num_messages_in_batch": 3}
        raw.message("send", batch([b"a", b"b", b"c"]), head, producer_id=1, sequence_id=0)
        ledger = raw.read("send_receipt").message_id.ledgerId
        start = MessageIdData(ledgerId=ledger, entryId=2)
        subscribed(raw, "within", durable=False, start_message_id=start)
        raw.read("active_consumer_change")
        last = raw.ask("getLastMessageId", "getLastMessageIdResponse", consumer_id=1)
        assert last.last_message_id.entryId == 3
        assert [entry for entry, _, _ in messages(raw, 2)] == [2, 3]


def test_last_message_id_has_its_index_in_the_batch(place: tuple[Path, str]) -> None:
    """A reader that begins behind the last message also compares indexes within the batch."""
    _, url = place
    with Raw(url) as raw:
        opened(raw, "last")
        subscribed(raw, "last")
        for number, (payload, head, index) in enumerate(
            [(one(b"a"), {"num_messages_in_batch": 1}, 0), (b"b", {}, -1)]
        ):
            head = {"sequence_id": number} | head
            raw.message("send", payload, head, producer_id=1, sequence_id=number)
            raw.read("send_receipt")
            last = raw.ask("getLastMessageId", "getLastMessageIdResponse", consumer_id=1)
            assert last.last_message_id.entryId == number * STEP
            assert last.last_message_id.batch_index == index


def singles(url: str, topic: str, count: int) -> list[tuple[int, int]]:
    """Send messages without a batch, at once; the ids of their receipts."""
    with Raw(url) as raw:
        opened(raw, topic, "till")
        frames: list[bytes] = []
        for at in range(count):
            head = MessageMetadata(producer_name="", publish_time=1, sequence_id=at)
            if at == 3:
                head.properties.add(key="lang", value="en")
            command = wire.make_command("send", producer_id=1, sequence_id=at).SerializeToString()
            frames += wire.message_frame(command, head.SerializeToString(), b"%d" % at)
        raw.socket.sendall(b"".join(frames))
        receipts = [raw.read("send_receipt") for _ in range(count)]
        assert [receipt.sequence_id for receipt in receipts] == [*range(count)]
        raw.ask("close_producer", "success", producer_id=1)
        return [(receipt.message_id.ledgerId, receipt.message_id.entryId) for receipt in receipts]


def test_messages_without_a_batch_stay_apart_though_they_share_frames(tmp_path: Path) -> None:
    """From the journal and from files; a repeated send stores nothing, and the last id is right."""
    path = tmp_path / "s"
    with served(path) as url:
        sent = singles(url, "alone", 12)
        assert [entry for _, entry in sent] == [at * STEP for at in range(12)]
        assert singles(url, "alone", 12) == [(NO_ID, NO_ID)] * 11 + sent[11:]
    with txlog.open(str(path)) as client:
        stored = list(client.reader("alone"))
        assert [message.value for message in stored] == [b"%d" % at for at in range(12)]
        assert [message.properties for message in stored[2:5]] == [{}, {"lang": "en"}, {}]
        tables = client.store.read(lambda view: view.rows([(sent[0][0], 0, 12)], ["lsn"]))
        assert len({row["lsn"] for table in tables for row in table.to_pylist()}) == 2
    for name in ("of the journal", "of files"):
        with served(path) as url, Raw(url) as raw:
            subscribed(raw, "alone", subscription=name.replace(" ", "-"))
            assert messages(raw, 12) == [(at * STEP, 1, 0) for at in range(12)]
        with txlog.open(str(path)) as client:
            client.checkpoint(roll_all=True)


def test_acknowledgement_during_a_seek_does_not_move_the_cursor(
    place: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: an acknowledgement that arrives during a seek, and is applied after it."""
    _, url = place
    begun, goes_on = Event(), Event()
    seek_partition = ConsumerSession.seek_partition

    def slowly(*arguments: Any) -> None:
        begun.set()
        goes_on.wait(30)
        seek_partition(*arguments)

    monkeypatch.setattr(ConsumerSession, "seek_partition", slowly)
    ledger = filled(url, "sought")
    with Raw(url) as raw:
        subscribed(raw, "sought", subType=0)
        assert [entry for entry, _, _ in messages(raw, 3)] == [0, STEP, 4 * STEP]
        earliest = MessageIdData(ledgerId=ids.NOWHERE, entryId=ids.NOWHERE)
        raw.send("seek", consumer_id=1, request_id=1, message_id=earliest)
        assert begun.wait(30)
        last = MessageIdData(ledgerId=ledger, entryId=4 * STEP)
        raw.send("ack", consumer_id=1, ack_type=1, message_id=[last])
        raw.send("ping")
        raw.read("pong")
        goes_on.set()
        raw.read("close_consumer")
        raw.read("success")
        subscribed(raw, "sought", subType=0)
        assert [entry for entry, _, _ in messages(raw, 3)] == [0, STEP, 4 * STEP]


def test_a_refused_seek_keeps_what_its_consumer_sent_meanwhile(
    place: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: permits and acknowledgements that are lost, after which the consumer gets nothing."""
    _, url = place
    begun, goes_on = Event(), Event()

    def refuse(*arguments: Any) -> None:
        begun.set()
        goes_on.wait(30)
        raise TryAgain("the store is busy")

    monkeypatch.setattr(ConsumerSession, "seek_partition", refuse)
    filled(url, "kept")
    with Raw(url) as raw:
        subscribed(raw, "kept")
        raw.send("flow", consumer_id=1, messagePermits=1)
        first = raw.read("message").message_id
        earliest = MessageIdData(ledgerId=ids.NOWHERE, entryId=ids.NOWHERE)
        raw.send("seek", consumer_id=1, request_id=1, message_id=earliest)
        assert begun.wait(30)
        raw.send("flow", consumer_id=1, messagePermits=2)
        raw.send("ack", consumer_id=1, ack_type=0, message_id=[first], request_id=2)
        raw.send("ping")
        raw.read("pong")
        goes_on.set()
        assert raw.read("error").request_id == 1
        came = sorted([raw.frame() for _ in range(2)], key=lambda frame: frame.kind)
        assert came[0].body.message_id.entryId == STEP  # by the permits that came meanwhile
        assert came[1].body.request_id == 2 and not came[1].body.HasField("error")


# MurmurHash3 of 32 bits with seed 0, from the reference implementation.
HASHES = {b"": 0, b"test": 0xBA6BD213, b"Hello, world!": 0xC0363E43, b"a": 0x3C2569B2}


@pytest.mark.parametrize("key", HASHES)
def test_key_slots_match_pulsar(key: bytes) -> None:
    assert deliveries.hash_of_key(key) == (HASHES[key] & 0x7FFFFFFF) % 65_536


def test_readers_with_ranges_of_hashes_share_a_topic(place: tuple[Path, str]) -> None:
    """Each message, also of a batch, goes to the one reader whose range has the hash of its key."""
    path, url = place
    with txlog.open(str(path)) as client:
        client.create_topic("ranges")
        keys = [b"k%d" % number for number in range(40)]
        client.producer("ranges").send_batch(pa.table({"value": keys, "key": keys}))
        client.producer("ranges").send(b"NONE_KEY")
    found: list[bytes] = []
    for start, end in ((0, 32_767), (32_768, 65_535)):
        meta = message_class("KeySharedMeta")(keySharedMode=1)
        meta.hashRanges.add(start=start, end=end)
        here = [key for key in [*keys, b"NONE_KEY"] if start <= deliveries.hash_of_key(key) <= end]
        assert here
        with Raw(url) as raw:
            subscribed(raw, "ranges", durable=False, subType=0, keySharedMeta=meta)
            raw.send("flow", consumer_id=1, messagePermits=100)
            while len(here) > 0:
                frame = raw.frame()
                if frame.kind == wire.BY_FIELD["message"]:
                    _, payload = wire.split_message(frame.trailer)
                    assert bytes(payload) in here
                    here.remove(bytes(payload))
                    found.append(bytes(payload))
    assert sorted(found) == sorted([*keys, b"NONE_KEY"])


def test_ranges_that_cannot_be_had_are_refused(place: tuple[Path, str]) -> None:
    """Kills: a durable consumer that silently gets other keys than it asked for."""
    _, url = place
    for durable, end in ((True, 100), (False, 65_536), (False, -1)):
        meta = message_class("KeySharedMeta")(keySharedMode=1)
        meta.hashRanges.add(start=0, end=end)
        fields = {"topic": "refused", "subscription": "s", "subType": 3, "consumer_id": 1}
        with Raw(url) as raw:
            error = raw.ask("subscribe", "error", durable=durable, keySharedMeta=meta, **fields)
            assert error.error == ERRORS["NotAllowedError"]

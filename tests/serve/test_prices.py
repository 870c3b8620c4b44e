"""Each command has a price, and a turn of the event loop a bound: counted, not timed."""

from __future__ import annotations

import asyncio
import json
import struct
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txlog
from tests.serve.siege import Served, serving
from txlog.base.ids import TopicName
from txlog.client.admin import Admin
from txlog.client.answers import topics_and_txns
from txlog.engine.folds.catalog import Subscription
from txlog.engine.session.reading.message import Message, messages
from txlog.engine.store.appender import Call
from txlog.engine.store.store import Store
from txlog.engine.view import View
from txlog.errors import InvalidMessage
from txlog.serve.http.admin import topics
from txlog.serve.http.core import answers
from txlog.serve.http.data import messages as rest
from txlog.serve.http.data.messages import as_json
from txlog.serve.limits.budget import MemoryBudget
from txlog.serve.pulsar import batches, ids
from txlog.serve.pulsar.batches import MESSAGES_MAX, PAIRS_MAX, is_large, rows_of
from txlog.serve.pulsar.connection import TURN, Connection
from txlog.serve.pulsar.messages import (
    FIELDS,
    MessageIdData,
    MessageMetadata,
    SingleMessageMetadata,
)
from txlog.serve.pulsar.wire import COMMAND_BYTES_MAX, IDS_MAX, decoded_size, encode_command

pytestmark = pytest.mark.usefixtures("quick_disk")
TOPIC = "persistent://public/default/priced"
IDS = ("ack", "message_id"), ("redeliverUnacknowledgedMessages", "message_ids")


def packed(count: int, properties: int = 0) -> tuple[bytes, dict[str, Any]]:
    """A compressed batch of empty messages, and the fields of its metadata."""
    metadata = SingleMessageMetadata(payload_size=0)
    for _ in range(properties):
        metadata.properties.add(key="", value="")
    text = metadata.SerializeToString()
    payload = (struct.pack(">I", len(text)) + text) * count
    data = pa.Codec("zstd").compress(pa.py_buffer(payload), asbytes=True)
    head = {"num_messages_in_batch": count, "compression": 3, "uncompressed_size": len(payload)}
    return data, head


@pytest.mark.parametrize(
    ("count", "properties", "is_stored"),
    [(20_000, 0, True), (MESSAGES_MAX + 1, 0, False), (1_000, PAIRS_MAX // 1_000 + 1, False)],
)
def test_expanding_batch_is_read_in_a_thread_within_the_budget(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    properties: int,
    is_stored: bool,
) -> None:
    """Kills: 500 bytes that block the event loop for seconds, and need gigabytes."""
    held_bytes: list[int] = []
    unpack = batches.unpack_send

    async def program(served: Served) -> None:
        budget: MemoryBudget = served.service.budget

        def unpacked(head: Any, *args: Any) -> Any:
            if head.compression:
                with pytest.raises(RuntimeError):
                    asyncio.get_running_loop()
                held_bytes.append(budget.held)
            return unpack(head, *args)

        monkeypatch.setattr("txlog.serve.pulsar.producers.unpack_send", unpacked)
        client = await served.connected()
        await client.ask("producer", topic=TOPIC, producer_id=1, request_id=1)
        data, head = packed(count, properties)
        client.message(data, {"producer_id": 1}, head, sequence_id=0)
        client.message(b"x", {"producer_id": 1}, {}, sequence_id=count)
        name = FIELDS[(await client.answer()).type]
        assert name == ("send_receipt" if is_stored else "send_error")
        assert all(size >= count * batches.ROW_BYTES for size in held_bytes)
        assert held_bytes or count > MESSAGES_MAX
        if is_stored:  # the message behind the batch waits for it
            assert FIELDS[(await client.answer()).type] == "send_receipt"
        assert budget.held < 1 << 16

    serving(tmp_path, program)


def test_small_batches_are_read_at_once() -> None:
    head = MessageMetadata(producer_name="", publish_time=1, sequence_id=0)
    assert not is_large(head, memoryview(bytes(5 << 20)))
    head.num_messages_in_batch = 1_000
    assert not is_large(head, memoryview(bytes(100_000)))
    head.num_messages_in_batch = 1_001
    assert is_large(head, memoryview(bytes(100_000)))
    many = SingleMessageMetadata(payload_size=0)
    for _ in range(1_000):
        many.properties.add(key="", value="")
    text = many.SerializeToString()
    head.num_messages_in_batch = count = PAIRS_MAX // 1_000 + 1
    with pytest.raises(InvalidMessage):
        rows_of(head, memoryview((struct.pack(">I", len(text)) + text) * count))


@pytest.mark.parametrize(("name", "field"), IDS)
def test_ids_are_counted_before_they_are_decoded(name: str, field: str) -> None:
    """Kills: 16 MiB that become millions of ids before the server has counted them."""
    fields: Any = {"consumer_id": 1, **({"ack_type": 0} if name == "ack" else {})}
    message_id = MessageIdData(
        ledgerId=26, entryId=26, ack_set=[26, 18]
    )  # numbers that look like tags
    assert (
        decoded_size(memoryview(encode_command(name, **fields, **{field: [message_id] * 100}))[4:])
        == 0
    )
    most = memoryview(encode_command(name, **fields, **{field: [message_id] * IDS_MAX}))[4:]
    assert decoded_size(most) > len(most)
    with pytest.raises(InvalidMessage):
        decoded_size(
            memoryview(encode_command(name, **fields, **{field: [message_id] * (IDS_MAX + 1)}))[4:]
        )
    with pytest.raises(InvalidMessage):  # the rest of the ids in a second field of the command
        command = bytes(most[4:]) + bytes(most[6:])
        decoded_size(memoryview(struct.pack(">I", len(command)) + command))


def test_other_commands_are_short() -> None:
    assert decoded_size(memoryview(struct.pack(">I", 1 << 30) + b"\x08")) == 0  # no command
    command = encode_command(
        "addPartitionToTxn", request_id=1, partitions=["t"] * COMMAND_BYTES_MAX
    )
    with pytest.raises(InvalidMessage):
        decoded_size(memoryview(command)[4:])


def test_a_turn_of_the_loop_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a client that sends much at once, and delays other clients until all is done."""
    turns: list[int] = []
    spend = Connection.spend

    def spent(connection: Connection, work: int) -> None:
        spend(connection, work)
        turns.append(connection._spent)

    async def program(served: Served) -> None:
        monkeypatch.setattr(Connection, "spend", spent)
        busy, other = await served.connected(), await served.connected()
        busy.writer.write(encode_command("ping") * 5_000)
        other.send("ping")
        assert (await other.answer()).HasField("pong")
        for _ in range(5_000):
            assert (await busy.answer()).HasField("pong")

    serving(tmp_path, program)
    assert max(turns) <= TURN + 1


@pytest.mark.deep
def test_unknown_ids_are_looked_for_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: one acknowledgement that occupies the thread of the store for minutes."""
    looks = [0]
    most: list[int] = []
    look, place_of = ids.resolve_ids, ids.target_of

    def counted(*args: Any, **more: Any) -> Any:
        looks[0] += 1
        return place_of(*args, **more)

    def act(*args: Any, **more: Any) -> Any:
        looks[0] = 0
        answer = look(*args, **more)
        most.append(looks[0])
        return answer

    async def program(served: Served) -> None:
        client = await served.connected()
        await client.ask("producer", topic=TOPIC, producer_id=1, request_id=1)
        for number in range(3):
            client.message(b"x", {"producer_id": 1}, {}, sequence_id=number)
            await client.answer()
        fields = {"topic": TOPIC, "subscription": "s", "subType": 1, "consumer_id": 1}
        await client.ask("subscribe", request_id=2, initialPosition=1, **fields)
        monkeypatch.setattr("txlog.serve.pulsar.members.resolve_ids", act)
        monkeypatch.setattr(ids, "target_of", counted)
        known_ids = [MessageIdData(ledgerId=1, entryId=at * 1_000_000_000) for at in range(3)]
        message_ids = known_ids * 1_000 + [
            MessageIdData(ledgerId=1, entryId=at) for at in range(2_000)
        ]
        answer = await client.ask(
            "ack", consumer_id=1, ack_type=0, message_id=message_ids, request_id=3
        )
        assert not answer.HasField("error"), answer
        backlog = await client.ask("consumerStats", consumer_id=1, request_id=4)
        assert backlog.msgBacklog == 0
        assert max(most) <= ids.LOOKUPS_MAX
        assert sum(most) <= 2_003

    serving(tmp_path, program)


def test_figures_of_the_whole_store_block_no_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: figures of thousands of topics in the thread that serves the clients."""
    is_looking, goes_on = threading.Event(), threading.Event()
    metrics = Admin.metrics

    def slow(admin: Admin) -> Any:
        def look(view: View) -> None:
            is_looking.set()
            assert goes_on.wait(30)

        admin._store.read(look)
        return metrics(admin)

    async def program(served: Served) -> None:
        client = await served.connected()
        await client.ask("producer", topic=TOPIC, producer_id=1, request_id=1)
        fields = {"topic": TOPIC, "subscription": "s", "subType": 1, "consumer_id": 1}
        await client.ask("subscribe", request_id=2, **fields)
        client.send("flow", consumer_id=1, messagePermits=10)
        monkeypatch.setattr(Admin, "metrics", slow)
        head = "GET /metrics HTTP/1.1\nHost: 127.0.0.1\nConnection: close\n\n"
        request = asyncio.ensure_future(served.request(head))
        await asyncio.to_thread(is_looking.wait, 30)
        client.message(b"x", {"producer_id": 1}, {}, sequence_id=0)
        came = {FIELDS[(await client.answer()).type] for _ in range(2)}
        assert came == {"send_receipt", "message"}
        goes_on.set()
        status, text = await request
        assert status == 200 and "txlog_" in text

    try:
        serving(tmp_path, program)
    finally:
        goes_on.set()


def test_a_request_stores_a_bounded_number_of_messages(tmp_path: Path) -> None:
    """Kills: 900 KB of JSON that are 300,000 messages, while all other clients wait."""

    async def program(served: Served) -> None:
        for count, status in ((rest.MESSAGES_MAX + 1, 412), (2, 200)):
            body = b'{"messages":[' + b",".join([b"{}"] * count) + b"]}"
            head = "POST /topics/persistent/public/default/priced HTTP/1.1\nHost: 127.0.0.1\n"
            length = f"Content-Length: {len(body)}\nConnection: close\n\n"
            response_status, text = await served.request(head + length, body)
            assert response_status == status, text

    serving(tmp_path, program)


@pytest.mark.parametrize("value", ["[]", "{}", "1", '"a\\\\"', '{"a":["\\"["]}'])
def test_values_of_json_are_counted_before_they_are_made(value: str) -> None:
    """Kills: 8 MiB of brackets that block the event loop for two seconds."""
    each = 1 + value.count("[") + value.count("{") - ('"["' in value)
    data = f"[{','.join([value] * 30_000)}]".encode()
    assert answers.count_values(data) == 30_000 * each
    quoted = json.dumps([data.decode()] * 2).encode()
    assert answers.count_values(quoted) == 2


def test_large_json_is_read_in_a_thread_within_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_bytes: list[int] = []
    parse_json = answers.parse_json
    rows = [{"payload": "x", "properties": {str(at): "" for at in range(15)}}] * 1_000

    async def program(served: Served) -> None:
        budget: MemoryBudget = served.service.budget

        def counted(data: bytes) -> object:
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            held_bytes.append(budget.held - len(data))
            return parse_json(data)

        monkeypatch.setattr(answers, "parse_json", counted)
        too_many = b"[" + b"0," * answers.VALUES_MAX + b"0]"
        for body, expected in ((json.dumps({"messages": rows}).encode(), 200), (too_many, 412)):
            head = "POST /topics/persistent/public/default/priced HTTP/1.1\nHost: 127.0.0.1\n"
            length = f"Content-Length: {len(body)}\nConnection: close\n\n"
            status, text = await served.request(head + length, body)
            assert status == expected, text
        while budget.held:
            await asyncio.sleep(0)

    serving(tmp_path, program)
    assert len(held_bytes) == 1
    assert held_bytes[0] >= 15_000 * answers.VALUE_BYTES


def test_messages_of_a_request_are_stored_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: one request that makes all other producers wait until all of it is stored."""
    together: list[int] = []
    lead = Store._lead
    count = 3 * rest.MESSAGES_PER_STEP

    def led(store: Store, calls: list[Call]) -> object:
        together.append(len(calls))
        return lead(store, calls)

    async def program(served: Served) -> None:
        monkeypatch.setattr(Store, "_lead", led)
        row = {"payload": "x", "properties": {"a": "b"}, "deliverAfterMs": 3_600_000}
        body = json.dumps({"messages": [row] * count}).encode()
        head = "POST /topics/persistent/public/default/priced HTTP/1.1\nHost: 127.0.0.1\n"
        length = f"Content-Length: {len(body)}\nConnection: close\n\n"
        status, text = await served.request(head + length, body)
        assert status == 200
        assert text.count("messageId") == count

    serving(tmp_path, program)
    assert max(together) == 1  # the messages of a step are one call of the store
    assert len(together) >= 1 + count // rest.MESSAGES_PER_STEP


def test_messages_are_read_a_few_at_a_time_and_encoded_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: one GET that occupies the thread of the store, or the event loop, for a second."""
    read: list[int] = []
    count = 2 * rest.MESSAGES_PER_STEP + 1

    def made(table: pa.Table) -> Any:
        read.append(table.num_rows)
        return messages(table)

    def encoded_in_thread(message: Message) -> Any:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        assert not threading.current_thread().name.startswith("txlog")
        return as_json(message)

    def fill(client: txlog.Client) -> None:
        client.create_topic("priced")
        with client.producer("priced") as producer:
            for at in range(count):
                producer.send_async(b"%d" % at)

    async def program(served: Served) -> None:
        monkeypatch.setattr(rest, "messages", made)
        monkeypatch.setattr(rest, "as_json", encoded_in_thread)
        await served.service.client.run(fill)
        for limit, expected in (
            (10_000, count),
            (rest.MESSAGES_PER_STEP, rest.MESSAGES_PER_STEP),
            (3, 3),
        ):
            path = f"/topics/persistent/public/default/priced?limit={limit}"
            head = f"GET {path} HTTP/1.1\nHost: 127.0.0.1\nConnection: close\n\n"
            status, text = await served.request(head)
            assert status == 200
            page = json.loads(text.partition("\n{")[1] + text.partition("\n{")[2])
            values = [one["value"] for one in page["messages"]]
            assert values == [str(at) for at in range(expected)]
            assert page["next"] == f"after={page['messages'][-1]['message_id']}"

    serving(tmp_path, program)
    assert read == [rest.MESSAGES_PER_STEP, rest.MESSAGES_PER_STEP, 1, rest.MESSAGES_PER_STEP, 3]


@pytest.mark.parametrize("path", ["partitioned-stats", "partitioned-internalStats"])
def test_figures_of_partitions_look_at_a_topic_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Kills: work that grows with the square of the partitions, in the thread of the store."""
    looks: list[str] = []
    ask, count = txlog.Client._ask, 40

    def asked(client: txlog.Client, question: Any) -> Any:
        looks.append(threading.current_thread().name)
        return ask(client, question)

    def fill(client: txlog.Client) -> None:
        client.create_topic("wide", count)
        for name in ("a", "b"):
            client.create_subscription("wide", name, position="earliest")
        with client.producer("wide") as producer:
            for number in range(count):
                producer.send(b"x", partition=number)

    async def program(served: Served) -> None:
        await served.service.client.run(fill)
        monkeypatch.setattr(txlog.Client, "_ask", asked)
        head = f"GET /admin/v2/persistent/public/default/wide/{path} HTTP/1.1\nHost: 127.0.0.1\n"
        status, text = await served.request(head + "Connection: close\n\n")
        assert status == 200
        page = json.loads(text.partition("\n{")[1] + text.partition("\n{")[2])
        assert len(page["partitions"]) == count
        for number in range(count):
            partition_stats = page["partitions"][
                f"{TOPIC.replace('priced', 'wide')}-partition-{number}"
            ]
            if path == "partitioned-stats":
                assert partition_stats["msgInCounter"] == 1
                assert partition_stats["subscriptions"]["b"]["msgBacklog"] == 1
            else:
                assert partition_stats["numberOfEntries"] == 1
                assert (
                    partition_stats["cursors"]["b"]["numberOfEntriesSinceFirstNotAckedMessage"] == 1
                )

    serving(tmp_path, program)
    assert len(looks) < 10
    assert all(name.startswith("txlog-aio-aside") for name in looks)


@pytest.mark.parametrize("path", ["stats", "internalStats"])
def test_figures_of_a_topic_look_at_each_subscription_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Kills: work that grows with the square of the subscriptions: 110 s for 3,000."""
    looks: list[str] = []
    count, live_count = 20, topics_and_txns.live_count

    def counted(view: View, store: Store, subscription: Subscription) -> int:
        looks.append(threading.current_thread().name)
        return live_count(view, store, subscription)

    def fill(client: txlog.Client) -> None:
        client.create_topic("priced")
        for number in range(count):
            client.create_subscription("priced", f"s{number}")

    async def program(served: Served) -> None:
        await served.service.client.run(fill)
        monkeypatch.setattr(topics_and_txns, "live_count", counted)
        head = f"GET /admin/v2/persistent/public/default/priced/{path} HTTP/1.1\nHost: 127.0.0.1\n"
        status, text = await served.request(head + "Connection: close\n\n")
        assert status == 200
        assert f'"s{count - 1}"' in text

    serving(tmp_path, program)
    assert count <= len(looks) <= 2 * count
    assert all(name.startswith("txlog-aio-aside") for name in looks)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "persistent/public/default/priced/all_subscription/expireMessages/60"),
        ("POST", "namespaces/public/default/clearBacklog"),
        ("POST", "namespaces/public/default/clearBacklog/s"),
        ("POST", "namespaces/public/default/unsubscribe/s"),
        ("DELETE", "namespaces/public/default?force=true"),
        ("DELETE", "tenants/public?force=true"),
    ],
)
def test_calls_over_many_topics_run_in_other_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, path: str
) -> None:
    """Kills: other calls that wait for one request over all subscriptions or topics."""
    threads: set[str] = set()
    under_lock = Store._under_lock

    def noted(store: Store, act: Any) -> Any:
        threads.add(threading.current_thread().name.rpartition("_")[0])
        return under_lock(store, act)

    def fill(client: txlog.Client) -> None:
        client.create_topic("priced")
        client.create_subscription("priced", "s", position="earliest")
        with client.producer("priced") as producer:
            producer.send(b"x")

    async def program(served: Served) -> None:
        await served.service.client.run(fill)
        monkeypatch.setattr(Store, "_under_lock", noted)
        head = f"{method} /admin/v2/{path} HTTP/1.1\nHost: 127.0.0.1\n"
        status, text = await served.request(head + "Connection: close\n\n")
        assert status in (200, 204), text
        monkeypatch.undo()

    serving(tmp_path, program)
    assert threads <= {"txlog-aio-aside"}


def test_figures_of_a_topic_look_at_its_own_producers_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: work that grows with topics times producers."""
    seen: dict[str, int] = {}
    stats = topics.stats

    def counted(
        client: Any, name: TopicName, rates: Any, now_ms: int, publishers: Any, subscribers: Any
    ) -> Any:
        seen[name.full] = len(publishers)
        return stats(client, name, rates, now_ms, publishers, subscribers)

    monkeypatch.setattr(topics, "stats", counted)

    async def program(served: Served) -> None:
        client = await served.connected()
        for number in range(6):
            topic = f"{TOPIC}-{number % 3}"
            await client.ask("producer", topic=topic, producer_id=number, request_id=number)
        status, _ = await served.request(
            "GET /admin/v2/broker-stats/topics HTTP/1.1\nHost: 127.0.0.1\nConnection: close\n\n"
        )
        assert status == 200
        assert seen == {f"public/default/priced-{at}": 2 for at in range(3)}

    serving(tmp_path, program)

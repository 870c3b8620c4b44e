"""Messages over HTTP: REST, Pulsar's WebSocket protocol, server-sent events."""

from __future__ import annotations

import base64
from contextlib import suppress
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import HTTPConnection

import txlog.aio
from tests.serve.http_kit import Talk, serving
from txlog.base.ids import MessageId
from txlog.base.ranges import START
from txlog.errors import InvalidArgument, NotAllowed
from txlog.serve.http.core.declared import PRODUCE, Action
from txlog.serve.http.data.messages import decode_id, encode_id

pytestmark = pytest.mark.usefixtures("quick_disk")
TOPICS = "/topics/persistent/public/default"
PLACE = "persistent/public/default/orders"


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def socket(http: httpx.AsyncClient, path: str, query: str = "") -> Talk:
    return Talk(http.app, f"/ws/v2/{path}", query, kind="websocket")  # type: ignore[attr-defined]


def test_a_request_is_one_transaction_and_is_read_page_by_page(path: str) -> None:
    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await client.create_topic("orders")
        rows = [{"payload": f"m{n}", "key": "k", "properties": {"n": str(n)}} for n in range(3)]
        response = (await http.post(f"{TOPICS}/orders", json={"messages": rows})).json()
        ids = [one["messageId"] for one in response["messagePublishResults"]]
        bad = {"messages": [{"payload": "good"}, {"payload": "bad", "properties": 5}]}
        assert (await http.post(f"{TOPICS}/orders", json=bad)).status_code == 400
        raw = {"messages": [{"payloadBase64": b64(b"\xff"), "eventTime": 7}]}
        assert (await http.post(f"{TOPICS}/orders/partitions/0", json=raw)).is_success
        page = (await http.get(f"{TOPICS}/orders", params={"limit": 2})).json()
        assert [one["value"] for one in page["messages"]] == ["m0", "m1"]
        assert [one["message_id"] for one in page["messages"]] == ids[:2]
        rest = (await http.get(f"{TOPICS}/orders", params={"start": page["next"]})).json()
        assert [one["value"] for one in rest["messages"]] == ["m2", None]
        assert (rest["messages"][1]["value_base64"], rest["messages"][1]["event_time"]) == (
            b64(b"\xff"),
            7,
        )
        wrong: tuple[object, ...] = ({}, {"messages": []}, [1], {"messages": [{"payload": 3}]})
        for body in wrong:
            assert (await http.post(f"{TOPICS}/orders", json=body)).status_code == 400
        assert (await http.get(f"{TOPICS}/orders?limit=0")).status_code == 400
        assert (await http.get(f"{TOPICS}/none")).status_code == 404

    serving(path, program)


def test_a_producer_by_websocket(path: str) -> None:
    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await client.create_topic("orders")
        talk = socket(http, f"producer/{PLACE}", "producerName=till")
        talk.put(payload=b64(b"one"), context="1", key="k", properties={"a": "b"})
        talk.put(payload="not base64!", context="2")
        said = [await talk.get(), await talk.get()]
        assert (said[0]["result"], said[0]["context"]) == ("ok", "1")
        assert (said[1]["result"], said[1]["context"]) == ("send-error:3", "2")
        await talk.close()
        async with client.reader("orders") as reader:
            [message] = [one async for one in reader]
        assert (message.value, message.key, message.producer) == (b"one", b"k", "till")
        assert decode_id(said[0]["messageId"]) == message.message_id

    serving(path, program)


def test_websocket_consumer_respects_its_permits(path: str) -> None:
    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await client.create_topic("orders")
        await client.create_subscription("orders", "s", type="shared")
        async with client.producer("orders") as producer:
            for n in range(3):
                await producer.send(b"%d" % n)
        talk = socket(http, f"consumer/{PLACE}/s", "subscriptionType=Shared&receiverQueueSize=2")
        first, second = await talk.get(), await talk.get()
        assert base64.b64decode(first["payload"]) == b"0"
        assert talk._sent.empty()
        talk.put(messageId=first["messageId"])
        third: dict[str, Any] = await talk.get()
        assert base64.b64decode(third["payload"]) == b"2"
        talk.put(type="negativeAcknowledge", messageId=second["messageId"])
        talk.put(type="isEndOfTopic")
        while "endOfTopic" not in (said := await talk.get()):
            assert said["messageId"] == second["messageId"]
        await talk.close()
        [row] = await client.subscriptions("orders")
        assert (row["backlog"], row["consumers"]) == (2, 0)

    serving(path, program)


def test_websocket_consumer_dead_letters_poison_messages(path: str) -> None:
    """maxRedeliverCount and deadLetterTopic set the dead letter policy of the subscription."""

    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await client.create_topic("orders")
        async with client.producer("orders") as producer:
            await producer.send(b"poison")
        query = "subscriptionType=Shared&subscriptionInitialPosition=Earliest"
        query += "&negativeAckRedeliveryDelay=1&maxRedeliverCount=2&deadLetterTopic=dead"
        where = f"consumer/{PLACE}/work"
        talk = socket(http, where, query)
        for count in range(3):
            message = await talk.get()
            assert message["redeliveryCount"] == count
            talk.put(type="negativeAcknowledge", messageId=message["messageId"])
        while "dead" not in [one["topic"] for one in await client.topics()]:
            await client.wait_for_change(0)
        async with client.reader("dead", START) as reader:
            dead_letter = await reader.read_next(None)
            assert dead_letter is not None
            assert dead_letter.value == b"poison"
        await talk.close()
        not_durable = socket(http, where, f"{query}&subscriptionMode=NonDurable")
        assert "durable" in (await not_durable.get())["reason"]

    serving(path, program)


def test_dead_letter_topic_needs_the_right_to_produce(path: str) -> None:
    """Kills: a consumer that makes the server write into a topic that its role may not use."""

    async def gate(connection: HTTPConnection, action: Action) -> None:
        if action.operation == PRODUCE and action.resource.endswith("hidden"):
            raise NotAllowed("no", role="x")

    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await client.create_topic("orders")
        where = f"consumer/{PLACE}/work"
        talk = socket(http, where, "deadLetterTopic=acme/x/hidden")
        assert (await talk.get())["closed"] == 1008
        assert await client.subscriptions("orders") == []

    serving(path, program, gate=gate)


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[{"payload":"caf\\ud83d"}]}',
        b'{"messages":[{"payload":"x","key":"\\uD83D"}]}',
        b'{"messages":[{"payload":"x","properties":{"\\udc00":"x"}}]}',
        b'{"producerName":"\\ud83d","messages":[{"payload":"x"}]}',
        b'{"messages":[{"payload":"\xed\xa0\xbd"}]}',
    ],
)
def test_half_a_character_is_refused(path: str, body: bytes) -> None:
    """Kills: JSON text that UTF-8 cannot encode, as an internal error of the server."""

    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await client.create_topic("orders")
        answer = await http.post(f"{TOPICS}/orders", content=body)
        assert (answer.status_code, answer.json()["class"]) == (400, "InvalidArgument")
        whole = b'{"messages":[{"payload":"\\ud83d\\ude00"}]}'
        assert (await http.post(f"{TOPICS}/orders", content=whole)).status_code == 200
        where = f"producer/{PLACE}"
        talk = socket(http, where)
        talk.text('{"payload": "YQ==", "key": "\\ud83d"}')
        assert (await talk.get())["closed"] == 1008

    serving(path, program)


def test_websocket_reader_starts_at_its_message_id(path: str) -> None:
    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await client.create_topic("orders")
        async with client.producer("orders") as producer:
            sent = [await producer.send(b"%d" % n) for n in range(3)]
        place = sent[0].message_id
        assert place is not None
        talk = socket(http, f"reader/{PLACE}", f"messageId={encode_id(place, 0)}")
        assert base64.b64decode((await talk.get())["payload"]) == b"1"
        await talk.close()
        talk = socket(http, f"reader/{PLACE}", "messageId=earliest&pullMode=true")
        talk.put(type="permit", permitMessages=1)
        assert base64.b64decode((await talk.get())["payload"]) == b"0"
        assert talk._sent.empty()
        await talk.close()
        talk = socket(http, "reader/persistent/public/default/none")
        assert (await talk.get())["closed"] == 1008
        await talk.close()

    serving(path, program)


def test_a_tail_goes_on_behind_the_last_event(path: str) -> None:
    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await client.create_topic("orders", partitions=2)
        producer = await client.producer("orders")
        await producer.send(b"before", partition=0)
        app = http.app  # type: ignore[attr-defined]
        talk = Talk(app, f"{TOPICS}/orders/events", "start=start")
        assert await talk.get() == b": txlog\n\n"
        first = await talk.get()
        assert b'"value":"before"' in first and first.startswith(b"id: 0=")
        await producer.send(b"other", partition=1)
        second = await talk.get()
        assert b'"value":"other"' in second
        await talk.close()
        await producer.send(b"later", partition=0)
        last = second.split(b"\n")[0].removeprefix(b"id: ").decode()
        talk = Talk(app, f"{TOPICS}/orders/events", last_event_id=last)
        await talk.get()
        assert b'"value":"later"' in await talk.get()
        await talk.close()

    serving(path, program)


def test_endless_streams_end_when_the_server_stops(path: str) -> None:
    """Kills: a server that waits for its streams until it is killed."""

    async def program(http: httpx.AsyncClient, client: txlog.aio.Client) -> None:
        await client.create_topic("orders")
        app: Any = http.app  # type: ignore[attr-defined]
        tail, page = Talk(app, f"{TOPICS}/orders/events"), Talk(app, "/page/stream")
        talks = [socket(http, f"consumer/{PLACE}/s"), socket(http, f"producer/{PLACE}")]
        await tail.get()
        await page.get()
        for talk in talks:
            assert (await talk.raw())["type"] == "websocket.accept"
        app.state.serving.stop()
        for talk in talks:
            assert (await talk.get())["closed"] == 1001
        for stream in (tail, page):
            while await stream.get():
                pass
        [row] = await client.subscriptions("orders")
        assert row["consumers"] == 0

    serving(path, program)


IDS = st.builds(
    MessageId, st.integers(0, 1 << 62), st.integers(0, 1 << 62), st.integers(0, (1 << 31) - 1)
)


@given(IDS, st.integers(0, 4000))
def test_an_id_comes_back_as_it_went(place: MessageId, partition: int) -> None:
    assert decode_id(encode_id(place, partition)) == place


@given(st.binary(max_size=40))
def test_no_bytes_break_the_reading_of_an_id(data: bytes) -> None:
    with suppress(InvalidArgument):
        decode_id(b64(data))

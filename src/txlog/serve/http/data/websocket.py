"""Owns Pulsar's WebSocket protocol: a producer, a consumer or a reader a connection.

JSON both ways, payloads in base64. A consumer and a reader send as many messages as their queue
holds, and one more for each that is acknowledged; in pull mode, as many as were permitted.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from typing import Any, Final

from starlette.websockets import WebSocket, WebSocketDisconnect

from txlog import aio
from txlog.base.ids import MessageId, TopicName
from txlog.base.ranges import END, START, Bound
from txlog.engine.door.reading import Message
from txlog.errors import InvalidArgument, TxlogError
from txlog.serve.core.budget import Hold
from txlog.serve.core.descriptors import check_room
from txlog.serve.core.producer_names import SHARED, Holder
from txlog.serve.http.core.answers import json_of, status_of
from txlog.serve.http.core.bounds import taken
from txlog.serve.http.core.declared import CONSUME, PRODUCE, Action
from txlog.serve.http.core.gate import Serving
from txlog.serve.http.data.messages import decoded, followed, number_in, packed, unpacked

QUEUE: Final = 1000  # messages sent and not acknowledged, unless the client says otherwise
QUEUE_MAX: Final = 100_000
PARSED: Final = 2  # what a message of a client takes beside its text, as a multiple of that
SENT: Final = 3  # what a value that is sent takes: base64, JSON, a frame
_TYPES: Final = {
    "Exclusive": "exclusive",
    "Shared": "shared",
    "Failover": "failover",
    "Key_Shared": "key-shared",
}
_UNNAMED: Final = count(1)
Session = Callable[[Serving, WebSocket, TopicName], Awaitable[None]]


async def connected(
    serving: Serving, socket: WebSocket, session: Session, operation: str, name: str
) -> None:
    """Pass the gate, then talk; an error before the talk is the status of the handshake."""
    try:
        topic = await serving.let_in(socket, operation, name)
        assert topic is not None
        if session is not reading:
            await serving.need(topic)
        with serving.staying(socket) as ended:
            talk = asyncio.ensure_future(session(serving, socket, topic))
            stop = asyncio.ensure_future(ended.wait())
            try:
                await asyncio.wait([talk, stop], return_when=asyncio.FIRST_COMPLETED)
                if talk.done():
                    talk.result()
                    return
            finally:
                stop.cancel()
                if not talk.done():
                    talk.cancel()
                    await asyncio.gather(talk, return_exceptions=True)
        await socket.close(1001 if serving.stopped.is_set() else 1008)
    except WebSocketDisconnect:
        return
    except TxlogError as error:
        if socket.application_state.name == "CONNECTING":
            await socket.close(1008, error.message[:100])
            return
        await socket.close(1011 if status_of(error) >= 500 else 1008, error.message[:100])


async def _words(socket: WebSocket, hold: Hold) -> dict[str, Any]:
    """The next message of a client, which the hold has room for.

    raises: InvalidArgument, LimitExceeded, WebSocketDisconnect
    """
    try:
        text = await socket.receive_text()
    except KeyError:
        raise InvalidArgument("a message has to be JSON, as text") from None
    try:
        await hold.reserve(PARSED * len(text))
        found = await json_of(text.encode(), hold)
    except ConnectionResetError:
        raise WebSocketDisconnect from None
    if not isinstance(found, dict):
        raise InvalidArgument("a message has to be a JSON object")
    return found


# --- producing -------------------------------------------------------------------------------


async def producing(serving: Serving, socket: WebSocket, topic: TopicName) -> None:
    """Send what a client sends; each gets its answer, in order.

    raises: ProducerBusy, ProducerFenced: for another producer of the topic, at any time
    """
    name = socket.query_params.get("producerName")
    async with (
        _seated(serving, topic, name) as holder,
        serving.client.producer(str(topic), name) as producer,
    ):
        await socket.accept()
        try:
            await _answered(serving, socket, producer)
        finally:  # what was sent is stored by now, and closing must not be cut short
            holder.is_leaving = True


@asynccontextmanager
async def _seated(serving: Serving, topic: TopicName, name: str | None) -> AsyncGenerator[Holder]:
    """While a producer is connected: its place among the producers of all protocols.

    As a broker sees it, it is shared: another of its name is refused, and so is an exclusive one.
    One that takes over ends the task. A producer without a name has a place, too.
    """
    task = asyncio.current_task()
    assert task is not None
    refusal: TxlogError | None = None

    def close(error: TxlogError) -> None:
        nonlocal refusal
        if not holder.is_leaving and refusal is None:
            refusal = error
            task.cancel()

    # With a space in it, which no name of a client can have in the store.
    place = name or f"unnamed {next(_UNNAMED)}"
    holder = Holder(topic.full, place, SHARED, close)
    before = serving.names.take(holder, comes_again=False)
    try:
        if before is not None:  # it is leaving: another one would have been ProducerBusy
            await serving.names.succeed(before)
        yield holder
    except asyncio.CancelledError:
        if refusal is None or task.uncancel():
            raise  # its connection ends
        raise refusal from None
    finally:
        holder.is_leaving = True
        serving.names.free(holder)


async def _answered(serving: Serving, socket: WebSocket, producer: aio.Producer) -> None:
    """Store what a client sends, and answer, until it goes; then what it sent is stored."""
    waiting: asyncio.Queue[tuple[object, asyncio.Task[dict[str, object]]]] = asyncio.Queue(QUEUE)

    async def answer() -> None:
        while True:
            context, sending = await waiting.get()
            said = await sending
            del sending
            if context is not None:
                said["context"] = context
            await socket.send_json(said)

    answering = asyncio.create_task(answer())
    try:
        while not answering.done():
            hold = serving.hold(socket)
            given = await _words(socket, hold)
            context = given.get("context")
            sending = asyncio.create_task(_send(producer, given))
            sending.add_done_callback(lambda _, hold=hold: hold.close())  # type: ignore[misc]
            del given
            await waiting.put((context, sending))
        answering.result()  # what it failed with ends the connection
    finally:
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        while not waiting.empty():  # they are sent, though nobody is told
            await asyncio.gather(waiting.get_nowait()[1], return_exceptions=True)


async def _send(producer: aio.Producer, given: dict[str, Any]) -> dict[str, object]:
    try:
        value = None if given.get("payload") is None else decoded(given["payload"])
        options = {
            "key": given.get("key"),
            "properties": given.get("properties"),
            "deliver_at": number_in(given, "deliverAt") or None,
            "deliver_after": number_in(given, "deliverAfterMs") or None,
            "event_time": number_in(given, "eventTime") or None,
            "sequence_id": number_in(given, "sequenceId"),
        }
        known: Any = {name: one for name, one in options.items() if one is not None}
        receipt = await producer.send(value, **known)
    except (TxlogError, TypeError) as error:
        return {"result": "send-error:3", "errorMsg": str(error), "errorCode": 3}
    place = receipt.message_id
    found = "" if place is None else packed(place, receipt.partition)
    return {"result": "ok", "messageId": found, "errorCode": 0, "schemaVersion": -1}


# --- consuming and reading -------------------------------------------------------------------


class Permits:
    """How many more messages may be sent."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._more = asyncio.Event()

    def add(self, count: int) -> None:
        """Allow more."""
        self._left = min(self._left + count, QUEUE_MAX)
        self._more.set()

    async def take(self) -> None:
        """Use one; waits until there is one."""
        while self._left <= 0:
            self._more.clear()
            await self._more.wait()
        self._left -= 1


async def consuming(serving: Serving, socket: WebSocket, topic: TopicName) -> None:
    """Deliver the messages of a subscription, which is made if it is missing."""
    query = socket.query_params
    kind = query.get("subscriptionType")
    if kind is not None and kind not in _TYPES:
        raise InvalidArgument(f"{kind[:80]!r} is no type of subscription", hint=", ".join(_TYPES))
    options: dict[str, Any] = {
        "type": None if kind is None else _TYPES[kind],
        "name": query.get("consumerName"),
        "create": True,
        "position": START if query.get("subscriptionInitialPosition") == "Earliest" else END,
        "priority": number_in(query, "priorityLevel") or 0,
        "ack_timeout_ms": number_in(query, "ackTimeoutMillis") or None,
        "nack_delay_ms": number_in(query, "negativeAckRedeliveryDelay") or None,
        "durable": query.get("subscriptionMode", "Durable") == "Durable",
    }
    if not options["durable"]:
        options["start"], options["create"] = options.pop("position"), False
    policies = await _dead_letters(serving, socket)
    if policies and not options["durable"]:
        raise InvalidArgument("a subscription that is not durable has no dead letters")
    queue = _queue_of(query)
    is_pull = query.get("pullMode") == "true"
    permits = Permits(0 if is_pull else max(queue, 1))
    name = socket.path_params["subscription"]
    check_room()
    async with serving.client.consumer(str(topic), name, **options) as consumer:
        if policies:
            await serving.client.run(
                lambda client: client.subscription(topic.full, name).set_policies(**policies)
            )
        await socket.accept()

        async def take(hold: Hold) -> Message | None:
            await hold.reserve(0)
            message = await consumer.receive(None)
            hold.take(0 if message is None else len(message.value or b""))
            return message

        async def hear(given: dict[str, Any]) -> None:
            kind = given.get("type")
            if kind == "permit":
                permits.add(number_in(given, "permitMessages") or 0)
            elif kind == "unsubscribe":
                await consumer.unsubscribe()
            elif kind == "negativeAcknowledge":
                await consumer.negative_acknowledge(unpacked(given.get("messageId")))
                permits.add(0 if is_pull else 1)
            elif kind == "isEndOfTopic":
                await socket.send_json({"endOfTopic": False})
            else:
                await consumer.acknowledge(unpacked(given.get("messageId")))
                permits.add(0 if is_pull else 1)

        await _both(serving, socket, permits, take, hear)


async def _dead_letters(serving: Serving, socket: WebSocket) -> dict[str, int | str]:
    """The policies of the subscription that the client asks for; what it does not name stays.

    The server writes the topic of dead letters, so whoever names one needs the right to send there.
    """
    query = socket.query_params
    policies = dict[str, int | str]()
    most, topic = number_in(query, "maxRedeliverCount"), query.get("deadLetterTopic")
    if most is not None:
        policies["max_redeliver_count"] = most
    if topic:
        full = TopicName.parse(topic).full
        await serving.gate(socket, Action(PRODUCE, full, "dead_letters"))
        policies["dead_letter_topic"] = full
    return policies


async def reading(serving: Serving, socket: WebSocket, topic: TopicName) -> None:
    """Send the messages of a topic from a place on."""
    query = socket.query_params
    start = _start(query.get("messageId", "latest"))
    queue = _queue_of(query)
    is_pull = query.get("pullMode") == "true"
    permits = Permits(0 if is_pull else max(queue, 1))
    only = None if topic.partition is None else [topic.partition]
    async with serving.client.reader(topic.full, start, partitions=only) as reader:
        await socket.accept()

        tail = followed(serving, serving.hold(socket), reader)

        async def take(_: Hold) -> Message | None:
            return await anext(tail)

        async def hear(given: dict[str, Any]) -> None:
            if given.get("type") == "permit":
                permits.add(number_in(given, "permitMessages") or 0)
            elif given.get("type") == "isEndOfTopic":
                await socket.send_json({"endOfTopic": False})
            elif not is_pull:
                permits.add(1)

        await _both(serving, socket, permits, take, hear)


async def _both(
    serving: Serving,
    socket: WebSocket,
    permits: Permits,
    take: Callable[[Hold], Awaitable[Message | None]],
    hear: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    """Send messages and hear a client, until one of them fails or the client goes."""

    async def sending() -> None:
        while True:
            await permits.take()
            with serving.hold(socket) as hold:
                message = await take(hold)
                if message is not None:
                    hold.take(SENT * len(message.value or b""))
                    await socket.send_json(_message(message))
                    await taken(socket)

    async def hearing() -> None:
        while True:
            with serving.hold(socket) as hold:
                await hear(await _words(socket, hold))

    tasks = [asyncio.create_task(sending()), asyncio.create_task(hearing())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            with suppress(ConnectionResetError):  # the client has gone
                one.result()
    finally:
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _message(message: Message) -> dict[str, object]:
    place = message.message_id
    assert place is not None
    found: dict[str, object] = {
        "messageId": packed(place, message.partition),
        "payload": base64.b64encode(message.value or b"").decode(),
        "properties": message.properties,
        "publishTime": datetime.fromtimestamp(message.publish_time / 1000, UTC).isoformat(
            timespec="milliseconds"
        ),
        "redeliveryCount": message.redelivery_count or 0,
    }
    if message.key is not None:
        try:
            found["key"] = message.key.decode()
        except UnicodeDecodeError:
            found["key"] = base64.b64encode(message.key).decode()
    if message.event_time is not None:
        found["eventTime"] = message.event_time
    return found


def _queue_of(query: Mapping[str, str]) -> int:
    """How many messages a client holds that it has not acknowledged. Raises InvalidArgument."""
    size = number_in(query, "receiverQueueSize")
    return QUEUE if size is None else min(size, QUEUE_MAX)


def _start(text: str) -> Bound:
    if text in ("earliest", "latest"):
        return START if text == "earliest" else END
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return Bound("after", MessageId.parse(text))
    return Bound("after", unpacked(text))


SESSIONS: Final[tuple[tuple[str, Session, str], ...]] = (
    ("/ws/v2/producer/{domain}/{tenant}/{namespace}/{topic}", producing, PRODUCE),
    (
        "/ws/v2/consumer/{domain}/{tenant}/{namespace}/{topic}/{subscription}",
        consuming,
        CONSUME,
    ),
    ("/ws/v2/reader/{domain}/{tenant}/{namespace}/{topic}", reading, CONSUME),
)

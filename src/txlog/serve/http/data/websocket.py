"""Owns Pulsar's WebSocket protocol: a producer, a consumer or a reader for each connection.

Both sides send JSON, with payloads in base64. The server sends a consumer or reader as many
messages as its queue holds, and one more for each acknowledgement. In pull mode it sends as many as
the client permitted.
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
from txlog.serve.core.producer_names import SHARED, NameHolder
from txlog.serve.http.core.answers import decode_json, status_of
from txlog.serve.http.core.bounds import until_written
from txlog.serve.http.core.context import HttpContext
from txlog.serve.http.core.declared import CONSUME, PRODUCE, Action
from txlog.serve.http.data.messages import decode_base64, decode_id, encode_id, number_in, tail_of
from txlog.serve.limits.budget import Reservation
from txlog.serve.limits.limits import check_free_descriptors

QUEUE: Final = 1000  # messages sent and not acknowledged, unless the client says otherwise
QUEUE_MAX: Final = 100_000
PARSED_FACTOR: Final = 2  # the memory of a client's message besides its text, as a multiple of that
SENT_FACTOR: Final = 3  # the memory of a value to send: base64, JSON, a frame
_TYPES: Final = {
    "Exclusive": "exclusive",
    "Shared": "shared",
    "Failover": "failover",
    "Key_Shared": "key-shared",
}
_UNNAMED: Final = count(1)
Session = Callable[[HttpContext, WebSocket, TopicName], Awaitable[None]]


async def serve_socket(
    serving: HttpContext, socket: WebSocket, session: Session, operation: str, name: str
) -> None:
    """Pass the gate, then run a session; an error before it accepts refuses the handshake."""
    try:
        topic = await serving.authorize(socket, operation, name)
        assert topic is not None
        if session is not reading:
            await serving.create_if_missing(topic)
        with serving.long_request(socket) as ended:
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


async def _next_message(socket: WebSocket, hold: Reservation) -> dict[str, Any]:
    """The next message of a client, once the reservation has room for it.

    raises: InvalidArgument, LimitExceeded, WebSocketDisconnect
    """
    try:
        text = await socket.receive_text()
    except KeyError:
        raise InvalidArgument("a message has to be JSON, as text") from None
    try:
        await hold.reserve(PARSED_FACTOR * len(text))
        fields = await decode_json(text.encode(), hold)
    except ConnectionResetError:
        raise WebSocketDisconnect from None
    if not isinstance(fields, dict):
        raise InvalidArgument("a message has to be a JSON object")
    return fields


# --- producing -------------------------------------------------------------------------------


async def producing(serving: HttpContext, socket: WebSocket, topic: TopicName) -> None:
    """Store the messages that a client sends; each gets its answer, in order.

    raises: ProducerBusy, ProducerFenced: for another producer of the topic, at any time
    """
    name = socket.query_params.get("producerName")
    async with (
        _registered(serving, topic, name) as holder,
        serving.client.producer(str(topic), name) as producer,
    ):
        await socket.accept()
        try:
            await _send_all(serving, socket, producer)
        finally:  # the messages are stored by now, and closing must not be interrupted
            holder.is_leaving = True


@asynccontextmanager
async def _registered(
    serving: HttpContext, topic: TopicName, name: str | None
) -> AsyncGenerator[NameHolder]:
    """Register a producer, among the producers of all protocols, while it is connected.

    As in Pulsar, it is a shared producer: while it is connected, another producer of its name and
    an exclusive one are refused. A producer that takes over the topic (exclusive-with-fencing) ends
    this task. A producer without a name is registered, too.
    """
    task = asyncio.current_task()
    assert task is not None
    refusal: TxlogError | None = None

    def close(error: TxlogError) -> None:
        nonlocal refusal
        if not holder.is_leaving and refusal is None:
            refusal = error
            task.cancel()

    # The space makes it unique: no name of a client has one in the store.
    unique_name = name or f"unnamed {next(_UNNAMED)}"
    holder = NameHolder(topic.full, unique_name, SHARED, close)
    previous = serving.names.take(holder, comes_again=False)
    try:
        if previous is not None:  # it is leaving: otherwise `take` would have raised ProducerBusy
            await serving.names.replace(previous)
        yield holder
    except asyncio.CancelledError:
        if refusal is None or task.uncancel():
            raise  # the connection ends
        raise refusal from None
    finally:
        holder.is_leaving = True
        serving.names.free(holder)


async def _send_all(serving: HttpContext, socket: WebSocket, producer: aio.Producer) -> None:
    """Store a client's messages, and answer, until it disconnects; then finish storing them."""
    waiting: asyncio.Queue[tuple[object, asyncio.Task[dict[str, object]]]] = asyncio.Queue(QUEUE)

    async def answer() -> None:
        while True:
            context, sending = await waiting.get()
            reply = await sending
            del sending
            if context is not None:
                reply["context"] = context
            await socket.send_json(reply)

    answering = asyncio.create_task(answer())
    try:
        while not answering.done():
            hold = serving.hold(socket)
            fields = await _next_message(socket, hold)
            context = fields.get("context")
            sending = asyncio.create_task(_send(producer, fields))
            sending.add_done_callback(lambda _, hold=hold: hold.close())  # type: ignore[misc]
            del fields
            await waiting.put((context, sending))
        answering.result()  # its error ends the connection
    finally:
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        while not waiting.empty():  # these are stored, though the client gets no answer
            await asyncio.gather(waiting.get_nowait()[1], return_exceptions=True)


async def _send(producer: aio.Producer, fields: dict[str, Any]) -> dict[str, object]:
    try:
        value = None if fields.get("payload") is None else decode_base64(fields["payload"])
        options = {
            "key": fields.get("key"),
            "properties": fields.get("properties"),
            "deliver_at": number_in(fields, "deliverAt") or None,
            "deliver_after": number_in(fields, "deliverAfterMs") or None,
            "event_time": number_in(fields, "eventTime") or None,
            "sequence_id": number_in(fields, "sequenceId"),
        }
        arguments: Any = {name: option for name, option in options.items() if option is not None}
        receipt = await producer.send(value, **arguments)
    except (TxlogError, TypeError) as error:
        return {"result": "send-error:3", "errorMsg": str(error), "errorCode": 3}
    message_id = receipt.message_id
    encoded = "" if message_id is None else encode_id(message_id, receipt.partition)
    return {"result": "ok", "messageId": encoded, "errorCode": 0, "schemaVersion": -1}


# --- consuming and reading -------------------------------------------------------------------


class Permits:
    """How many more messages may be sent to a client."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._more = asyncio.Event()

    def add(self, count: int) -> None:
        """Allow more."""
        self._left = min(self._left + count, QUEUE_MAX)
        self._more.set()

    async def take(self) -> None:
        """Use one permit; waits for one."""
        while self._left <= 0:
            self._more.clear()
            await self._more.wait()
        self._left -= 1


async def consuming(serving: HttpContext, socket: WebSocket, topic: TopicName) -> None:
    """Deliver the messages of a subscription, which is created if it is missing."""
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
    check_free_descriptors()
    async with serving.client.consumer(str(topic), name, **options) as consumer:
        if policies:
            await serving.client.run(
                lambda client: client.subscription(topic.full, name).set_policies(**policies)
            )
        await socket.accept()

        async def take(hold: Reservation) -> Message | None:
            await hold.reserve(0)
            message = await consumer.receive(None)
            hold.take(0 if message is None else len(message.value or b""))
            return message

        async def hear(fields: dict[str, Any]) -> None:
            kind = fields.get("type")
            if kind == "permit":
                permits.add(number_in(fields, "permitMessages") or 0)
            elif kind == "unsubscribe":
                await consumer.unsubscribe()
            elif kind == "negativeAcknowledge":
                await consumer.negative_acknowledge(decode_id(fields.get("messageId")))
                permits.add(0 if is_pull else 1)
            elif kind == "isEndOfTopic":
                await socket.send_json({"endOfTopic": False})
            else:
                await consumer.acknowledge(decode_id(fields.get("messageId")))
                permits.add(0 if is_pull else 1)

        await _exchange(serving, socket, permits, take, hear)


async def _dead_letters(serving: HttpContext, socket: WebSocket) -> dict[str, int | str]:
    """The dead-letter policies that the client asks for; a policy that it does not name stays.

    The server writes to the topic of dead letters, so the client needs the right to send there.
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


async def reading(serving: HttpContext, socket: WebSocket, topic: TopicName) -> None:
    """Send the messages of a topic from a position on."""
    query = socket.query_params
    start = _start(query.get("messageId", "latest"))
    queue = _queue_of(query)
    is_pull = query.get("pullMode") == "true"
    permits = Permits(0 if is_pull else max(queue, 1))
    only = None if topic.partition is None else [topic.partition]
    async with serving.client.reader(topic.full, start, partitions=only) as reader:
        await socket.accept()

        tail = tail_of(serving, serving.hold(socket), reader)

        async def take(_: Reservation) -> Message | None:
            return await anext(tail)

        async def hear(fields: dict[str, Any]) -> None:
            if fields.get("type") == "permit":
                permits.add(number_in(fields, "permitMessages") or 0)
            elif fields.get("type") == "isEndOfTopic":
                await socket.send_json({"endOfTopic": False})
            elif not is_pull:
                permits.add(1)

        await _exchange(serving, socket, permits, take, hear)


async def _exchange(
    serving: HttpContext,
    socket: WebSocket,
    permits: Permits,
    take: Callable[[Reservation], Awaitable[Message | None]],
    hear: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    """Send messages and receive a client's, until either fails or the client disconnects."""

    async def sending() -> None:
        while True:
            await permits.take()
            with serving.hold(socket) as hold:
                message = await take(hold)
                if message is not None:
                    hold.take(SENT_FACTOR * len(message.value or b""))
                    await socket.send_json(_message(message))
                    await until_written(socket)

    async def hearing() -> None:
        while True:
            with serving.hold(socket) as hold:
                await hear(await _next_message(socket, hold))

    tasks = [asyncio.create_task(sending()), asyncio.create_task(hearing())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            with suppress(ConnectionResetError):  # the client has disconnected
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _message(message: Message) -> dict[str, object]:
    message_id = message.message_id
    assert message_id is not None
    fields: dict[str, object] = {
        "messageId": encode_id(message_id, message.partition),
        "payload": base64.b64encode(message.value or b"").decode(),
        "properties": message.properties,
        "publishTime": datetime.fromtimestamp(message.publish_time / 1000, UTC).isoformat(
            timespec="milliseconds"
        ),
        "redeliveryCount": message.redelivery_count or 0,
    }
    if message.key is not None:
        try:
            fields["key"] = message.key.decode()
        except UnicodeDecodeError:
            fields["key"] = base64.b64encode(message.key).decode()
    if message.event_time is not None:
        fields["eventTime"] = message.event_time
    return fields


def _queue_of(query: Mapping[str, str]) -> int:
    """How many unacknowledged messages a client may have. Raises InvalidArgument."""
    size = number_in(query, "receiverQueueSize")
    return QUEUE if size is None else min(size, QUEUE_MAX)


def _start(text: str) -> Bound:
    if text in ("earliest", "latest"):
        return START if text == "earliest" else END
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return Bound("after", MessageId.parse(text))
    return Bound("after", decode_id(text))


SESSIONS: Final[tuple[tuple[str, Session, str], ...]] = (
    ("/ws/v2/producer/{domain}/{tenant}/{namespace}/{topic}", producing, PRODUCE),
    ("/ws/v2/consumer/{domain}/{tenant}/{namespace}/{topic}/{subscription}", consuming, CONSUME),
    ("/ws/v2/reader/{domain}/{tenant}/{namespace}/{topic}", reading, CONSUME),
)

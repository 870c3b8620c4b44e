"""Owns the tail of a topic as server-sent events.

    id: 0=1:17,1=2:3          the last message of each partition so far
    data: {"message_id": "1:17", "partition": 0, "value": "...", ...}

A browser that reconnects sends the last id again (`Last-Event-ID`), and gets the messages after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from txlog.base.ids import MessageId
from txlog.base.ranges import Bound
from txlog.engine.door.reading import Message
from txlog.errors import InvalidArgument, TxlogError
from txlog.serve.http.core.answers import error_of, to_json
from txlog.serve.http.core.context import HttpContext
from txlog.serve.http.core.declared import CONSUME
from txlog.serve.http.data.messages import as_json, tail_of
from txlog.serve.limits.budget import Reservation

QUIET_SECONDS = 15.0  # then a comment shows that the connection still works
EVENT_STREAM = "text/event-stream"


def event(data: bytes, *, name: str = "", id: str = "") -> bytes:
    """One event."""
    head = (f"event: {name}\n" if name else "") + (f"id: {id}\n" if id else "")
    return b"%sdata: %s\n\n" % (head.encode(), data)


async def tail(serving: HttpContext, request: Request) -> Response:
    """GET …/events?start=end: the messages of a topic, as they become visible."""
    topic = await serving.authorize(request, CONSUME, "events")
    assert topic is not None
    text = request.query_params.get("start", "end")
    start = Bound.parse(text, serving.now_ms())
    seen = positions_in(request.headers.get("last-event-id", ""))
    described = await serving.client.describe_topic(topic.full)
    parts = range(described["partitions"]) if topic.partition is None else [topic.partition]
    stack = AsyncExitStack()
    try:
        readers = {
            part: await stack.enter_async_context(
                serving.client.reader(
                    topic.full,
                    Bound("after", seen[part]) if part in seen else start,
                    partitions=[part],
                )
            )
            for part in parts
        }
    except BaseException:  # no other code can close the open readers
        await stack.aclose()
        raise
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "Connection": "close"}
    holds = [stack.enter_context(serving.hold(request)) for _ in readers]
    tails = [
        tail_of(serving, hold, reader) for hold, reader in zip(holds, readers.values(), strict=True)
    ]
    return StreamingResponse(
        serving.until_ended(request, _events(tails, seen, stack, serving.hold(request))),
        media_type=EVENT_STREAM,
        headers=headers,
    )


async def _events(
    tails: list[AsyncGenerator[Message, None]],
    seen: dict[int, MessageId],
    stack: AsyncExitStack,
    hold: Reservation,
) -> AsyncGenerator[bytes, None]:
    """The events of some tails; `hold` counts the event that the client reads."""
    queue: asyncio.Queue[Message | TxlogError] = asyncio.Queue(1)

    async def follow(tail: AsyncGenerator[Message, None]) -> None:
        try:
            async for message in tail:
                await queue.put(message)
        except ConnectionResetError:
            return
        except TxlogError as error:
            await queue.put(error)

    tasks = [asyncio.create_task(follow(tail)) for tail in tails]
    try:
        yield b": txlog\n\n"
        while True:
            try:
                item = await asyncio.wait_for(queue.get(), QUIET_SECONDS)
            except TimeoutError:
                yield b":\n\n"
                continue
            if isinstance(item, TxlogError):
                yield event(to_json(error_of(item)), name="failure")
                return
            if item.message_id is not None:
                seen[item.partition] = item.message_id
            data = event(to_json(as_json(item)), id=positions_text(seen))
            hold.take(len(data))
            yield data
            hold.close()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        hold.close()
        await stack.aclose()


def positions_text(seen: Mapping[int, MessageId]) -> str:
    """A position in each of some partitions, as the id of an event has it: `0=1:17,1=2:3`."""
    return ",".join(f"{part}={message_id}" for part, message_id in sorted(seen.items()))


def positions_in(text: str) -> dict[int, MessageId]:
    """The positions in a text that `positions_text` made. Raises InvalidArgument."""
    positions: dict[int, MessageId] = {}
    for word in filter(None, text.split(",")):
        part, mark, text_of_id = word.partition("=")
        if not mark or not part.isdecimal() or len(part) > 9:
            raise InvalidArgument(f"not the id of an event: {text[:80]!r}", code=203)
        positions[int(part)] = MessageId.parse(text_of_id)
    return positions

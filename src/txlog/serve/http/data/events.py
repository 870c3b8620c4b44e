"""Owns the tail of a topic as server-sent events.

    id: 0=1:17,1=2:3          the last message of each partition so far
    data: {"message_id": "1:17", "partition": 0, "value": "...", ...}

A browser that was cut off sends the last id again (`Last-Event-ID`), and gets what came since.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from txlog.base.ids import MessageId
from txlog.base.ranges import Bound
from txlog.engine.door.reading import Message
from txlog.errors import InvalidArgument, TxlogError
from txlog.serve.core.budget import Hold
from txlog.serve.http.core.answers import dumped, error_of
from txlog.serve.http.core.declared import CONSUME
from txlog.serve.http.core.gate import Serving
from txlog.serve.http.data.messages import as_json, followed

QUIET_SECONDS = 15.0  # then a comment says that the connection is there
EVENT_STREAM = "text/event-stream"


def event(data: bytes, *, name: str = "", id: str = "") -> bytes:
    """One event."""
    head = (f"event: {name}\n" if name else "") + (f"id: {id}\n" if id else "")
    return b"%sdata: %s\n\n" % (head.encode(), data)


async def tail(serving: Serving, request: Request) -> Response:
    """GET …/events?start=end: what becomes visible in a topic, as it does."""
    topic = await serving.let_in(request, CONSUME, "events")
    assert topic is not None
    text = request.query_params.get("start", "end")
    start = Bound.parse(text, serving.now_ms())
    seen = _seen(request.headers.get("last-event-id", ""))
    found = await serving.client.describe_topic(topic.full)
    parts = range(found["partitions"]) if topic.partition is None else [topic.partition]
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
    except BaseException:  # nobody else can close those that are open
        await stack.aclose()
        raise
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "Connection": "close"}
    holds = [stack.enter_context(serving.hold(request)) for _ in readers]
    tails = [
        followed(serving, hold, reader)
        for hold, reader in zip(holds, readers.values(), strict=True)
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
    hold: Hold,
) -> AsyncGenerator[bytes, None]:
    """Events of some tails; the hold has the one that the client takes."""
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
                one = await asyncio.wait_for(queue.get(), QUIET_SECONDS)
            except TimeoutError:
                yield b":\n\n"
                continue
            if isinstance(one, TxlogError):
                yield event(dumped(error_of(one)), name="failure")
                return
            if one.message_id is not None:
                seen[one.partition] = one.message_id
            data = event(dumped(as_json(one)), id=_text(seen))
            hold.take(len(data))
            yield data
            hold.close()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        hold.close()
        await stack.aclose()


def _text(seen: dict[int, MessageId]) -> str:
    return ",".join(f"{part}={place}" for part, place in sorted(seen.items()))


def _seen(text: str) -> dict[int, MessageId]:
    """What an event's id says. Raises InvalidArgument."""
    found: dict[int, MessageId] = {}
    for word in filter(None, text.split(",")):
        part, mark, place = word.partition("=")
        if not mark or not part.isdecimal():
            raise InvalidArgument(f"not the id of an event: {text[:80]!r}", code=203)
        found[int(part)] = MessageId.parse(place)
    return found

"""Owns what clients do in quick succession: a command right behind others that have no answer yet.

seek_behind   acknowledgements, and a SEEK before their answers come
renew         SENDs, then the producer is closed and opened again, and forgets what it had sent
close_part    the consumer of one partition closes while those of others go on
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.simulation.pulsar_client import ClientProducer, Lost

if TYPE_CHECKING:
    from tests.simulation.client_agent import ClientAgent, Group
    from tests.simulation.pulsar_client import Received

EARLIEST = (1 << 64) - 1


async def seek_behind(
    agent: ClientAgent,
    group: Group,
    received: list[Received],
    facts: dict[str, Any],
    pause_s: float,
) -> None:
    """Acknowledge messages one by one, and move to the beginning before the answers come.

    The server makes what came before SEEK on a connection before it. So in the history the
    acknowledgements end before the seek begins, if that succeeds.
    """
    from txlog.serve.pulsar.messages import MessageIdData

    recorder, process = agent.recorder, agent.process
    place = {"topic": group.topic, "subscription": group.subscription}
    if not all(part.is_ready for part in group.parts):
        return
    ack = recorder.invoke(process.name, "acknowledge", **facts)
    acks = []
    for message in received:
        acks.append(asyncio.ensure_future(message.consumer.acknowledge([message])))
        await asyncio.sleep(pause_s)  # so the server may already store the first ones
    group.closes()  # the server closes the consumers before their client hears of it
    mark = len(recorder.events)
    seek = recorder.invoke(process.name, "seek", to="earliest", **place)
    named = MessageIdData(ledgerId=EARLIEST, entryId=EARLIEST)
    seeks = [
        asyncio.ensure_future(
            part.connection.ask("seek", consumer_id=part.number, message_id=named)
        )
        for part in group.parts
        if part.connection is not None
    ]
    answers = await asyncio.gather(*seeks, return_exceptions=True)
    await asyncio.gather(*acks, return_exceptions=True)
    if not process.is_alive:
        return
    if len(seeks) < len(group.parts) or any(isinstance(each, BaseException) for each in answers):
        recorder.unknown(ack, "Lost")
        recorder.unknown(seek, "Lost")
        return
    recorder.ok(ack, mark=mark)
    recorder.ok(seek)


async def renew(agent: ClientAgent, producer: ClientProducer) -> ClientProducer:
    """Close a producer and open it again at once; it takes its number from the server."""
    connection = producer.connection
    producer.flush()
    if connection is None or not producer.is_ready:
        raise Lost("there is no connection")
    producer.is_ready, producer.is_over = False, True
    closing = asyncio.ensure_future(connection.ask("close_producer", producer_id=producer.number))
    await asyncio.sleep(0)  # it is written
    fresh = ClientProducer(
        agent.client_of,
        producer.topic,
        producer.partition,
        producer.name if producer.is_own_name else None,
        producer.batching,
    )
    fresh.looks_up = False
    try:
        await fresh.open()
    finally:
        await asyncio.gather(closing, return_exceptions=True)
        producer.give_up()
    return fresh


async def close_part(agent: ClientAgent, group: Group, message: Received) -> None:
    """Close the consumer that has a message, and subscribe again; others of its client go on."""
    part = message.consumer
    connection = part.connection
    if connection is None or not part.is_ready:
        raise Lost("there is no connection")
    part.is_ready = False
    group.closes()
    await connection.ask("close_consumer", consumer_id=part.number)
    group.has_closed()
    await agent.client_of.retry(part.subscribe)
    part.flow(part.window)

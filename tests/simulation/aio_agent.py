"""Owns the agent that uses `txlog.aio`: several coroutines at once, one of which is cancelled.

An operation of its plan is a group of calls that run together. At an await that the plan names, one
of them is cancelled; its outcome is unknown then, and the others go on.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any

from tests.simulation.agent import Agent
from tests.simulation.answers import acked, nothing, rows_of, sent
from tests.simulation.loop import run_in_loop
from tests.simulation.machine import Interrupted, SharedDisk
from txlog import messages as messages_of
from txlog.client.aio.client import Client, opening
from txlog.client.open import open_on
from txlog.clock import SystemClock
from txlog.errors import OutcomeUnknown, TxlogError

CLOSING_ROUNDS = 3


@types.coroutine
def watched(
    work: Coroutine[Any, Any, None], on_wait: Callable[[], object]
) -> Generator[Any, Any, None]:
    """Run a coroutine, and call a function each time it waits."""
    error: BaseException | None = None
    while True:
        try:
            awaited = work.send(None) if error is None else work.throw(error)
        except StopIteration:
            return
        on_wait()
        error = None
        try:
            yield awaited
        except BaseException as thrown:
            error = thrown


class AioAgent(Agent):
    """One life of a process that uses the asynchronous client."""

    aio: Client
    holder: dict[str, Any] = {}  # the transaction key of its client  # noqa: RUF012

    def live(self) -> None:
        """Perform the operations that are left, and end properly."""
        run_in_loop(self.process, self._main)

    async def _main(self) -> None:
        memory, operations = self.memory, self.plan.operations
        self.locks: dict[tuple[str, ...], asyncio.Lock] = {}
        while not await self._opened():
            pass
        while memory.next < len(operations):
            operation = operations[memory.next]
            memory.next += 1
            await self._together(operation)
        await self._closed()

    async def _opened(self) -> bool:
        key = self.plan.transaction_key

        def make() -> Any:
            return open_on(SharedDisk(self.process), SystemClock(), transaction_key=key)

        async def open_it() -> int | None:
            self.aio = await opening(make)
            return self.aio.sync.epoch

        try:
            if key is None:
                await open_it()
            else:
                epoch = await self._await(
                    "connect_key", open_it, lambda epoch: {"epoch": epoch}, key=key
                )
                self.holder = {"key": key, "epoch": epoch}
        except TxlogError:
            await asyncio.sleep(0.1)
            return False
        return True

    async def _closed(self) -> None:
        for consumer in self.consumers.values():
            try:
                await self._await("close", consumer.close, nothing, consumer=consumer.sync.name)
            except TxlogError:
                continue
        for _ in range(CLOSING_ROUNDS):
            try:
                await self.aio.close()
            except TxlogError:
                continue
            return

    async def _together(self, group: dict[str, Any]) -> None:
        """Run calls at once; one may be cancelled."""
        cancel, tasks = group.get("cancel", {}), list[asyncio.Task[None]]()
        waits = 0

        def on_wait() -> None:
            nonlocal waits
            waits += 1
            if waits == cancel["await"] + 1:
                task = tasks[cancel["call"]]
                asyncio.get_running_loop().call_later(cancel["after_s"], task.cancel)

        for number, call in enumerate(group["calls"]):
            work = self._one(call)
            if number == cancel.get("call"):
                work = watched(work, on_wait)
            tasks.append(asyncio.ensure_future(work))
        for task in tasks:
            try:
                await task
            except asyncio.CancelledError:
                continue

    async def _one(self, call: dict[str, Any]) -> None:
        try:
            await getattr(self, f"_aio_{call['op']}")(call)
        except TxlogError:
            return

    async def _await(
        self,
        op: str,
        act: Callable[[], Awaitable[Any]],
        answer: Callable[[Any], dict[str, Any]],
        **args: Any,
    ) -> Any:
        """Make a call and record it with its outcome."""
        recorder = self.recorder
        call = recorder.invoke(self.process.name, op, **args)
        try:
            result = await act()
        except (OutcomeUnknown, Interrupted, asyncio.CancelledError) as error:
            if self.process.is_alive:
                recorder.unknown(call, error)
            raise
        except TxlogError as error:
            if self.process.is_alive:
                recorder.fail(call, error)
            raise
        if self.process.is_alive:
            recorder.ok(call, **answer(result))
        return result

    # --- calls -------------------------------------------------------------------------------

    async def _handle(self, at: tuple[str, ...], opens: Callable[[], Awaitable[Any]]) -> Any:
        """A handle that coroutines share; the first one opens it."""
        handles = self.consumers if at[0] == "consumer" else self.producers
        where: Any = at[1:]
        async with self.locks.setdefault(at, asyncio.Lock()):
            if where not in handles:
                handles[where] = await opens()
        return handles[where]

    async def _aio_producer(self, topic: str) -> Any:
        async def opens() -> Any:
            return await self.aio.producer(topic)

        return await self._handle(("producer", topic, ""), opens)

    async def _aio_send(self, call: dict[str, Any]) -> None:
        producer = await self._aio_producer(call["topic"])
        for _ in range(call["count"]):
            value = self._value()
            facts: dict[str, Any] = {"topic": call["topic"], "value": value}
            facts["session"] = f"{self.process.name}.{self.memory.incarnation}.{value}"
            options: dict[str, Any] = {}
            if call["key"]:
                facts["key"] = options["key"] = call["key"]
            if call["after_ms"] is not None:
                due = SystemClock().now().wall_ms + call["after_ms"]
                facts["deliver_at_ms"] = options["deliver_at"] = due
            await self._await("send", partial(producer.send, value, **options), sent, **facts)

    async def _aio_consumer(self, call: dict[str, Any]) -> Any:
        topic, subscription = call["topic"], call["subscription"]
        kind: Any = self.topics[topic].kinds[subscription]

        async def opens() -> Any:
            self.memory.count += 1
            name = f"{self.process.name}.{self.memory.incarnation}.{self.memory.count}.{topic}"

            async def open_it() -> Any:
                return await self.aio.consumer(
                    topic, subscription, type=kind.replace("_", "-"), name=name
                )

            return await self._await(
                "subscribe",
                open_it,
                nothing,
                topic=topic,
                subscription=subscription,
                consumer=name,
                kind=kind,
            )

        return await self._handle(("consumer", topic, subscription), opens)

    async def _aio_take(self, call: dict[str, Any]) -> tuple[list[Any], Any]:
        if not call["take"]:
            return [], None
        consumer = await self._aio_consumer(call)

        async def receive() -> list[Any]:
            if call["alone"]:
                message = await consumer.receive(call["timeout_ms"])
                return [] if message is None else [message]
            return [*messages_of(await consumer.receive_batch(call["take"], call["timeout_ms"]))]

        received = await self._await(
            "receive",
            receive,
            lambda messages: {"messages": rows_of(messages)},
            topic=call["topic"],
            subscription=call["subscription"],
            consumer=consumer.sync.name,
        )
        return received, consumer

    async def _aio_consume(self, call: dict[str, Any]) -> None:
        received, consumer = await self._aio_take(call)
        if not received or call["then"] == "nothing":
            return
        facts = self._acked_of(call, consumer.sync, received)
        if call["then"] == "nack":
            act = partial(consumer.negative_acknowledge, received)
            await self._await("nack", act, nothing, **facts)
        else:
            await self._await(
                "acknowledge", partial(consumer.acknowledge, received), acked, **facts
            )

    async def _aio_transfer(self, call: dict[str, Any]) -> None:
        received, consumer = await self._aio_take(call)
        await self._aio_transaction(call, received, consumer, {}, self.holder)

    async def _aio_keyed(self, call: dict[str, Any]) -> None:
        key = call["transaction_key"]
        connected = await self._await(
            "connect_key",
            lambda: self.aio.run(lambda client: client.connect(key)),
            lambda answer: {"epoch": answer["epoch"]},
            key=key,
        )
        received, consumer = await self._aio_take(call)
        holder = {"key": key, "epoch": connected["epoch"]}
        await self._aio_transaction(call, received, consumer, holder, holder)

    async def _aio_transaction(
        self,
        call: dict[str, Any],
        received: list[Any],
        consumer: Any,
        options: dict[str, Any],
        holder: dict[str, Any],
    ) -> None:
        async def begin() -> Any:
            txn = await self.aio.transaction(**options)
            return txn, str(await txn.get_id())

        txn, txn_id = await self._await("begin", begin, lambda pair: {"txn": pair[1]}, **holder)
        end = call["end"]
        try:
            for topic, key in call["to"]:
                producer, value = await self._aio_producer(topic), self._value()
                facts = {"topic": topic, "value": value, "txn": txn_id}
                facts["session"] = f"{self.process.name}.{self.memory.incarnation}.{txn_id}.{topic}"
                if key:
                    facts["key"] = key
                send = partial(producer.send, value, key=key, txn=txn)
                await self._await("send", send, nothing, **facts)
            if received:
                facts = self._acked_of(call, consumer.sync, received)
                act = partial(consumer.acknowledge, received, txn=txn)
                await self._await("acknowledge", act, acked, **facts, txn=txn_id)
        except (asyncio.CancelledError, TxlogError):
            await self._await("abort", txn.abort, nothing, txn=txn_id, **holder)
            raise
        await self._await(end, getattr(txn, end), nothing, txn=txn_id, **holder)

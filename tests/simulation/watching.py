"""Owns what a process watches: messages that come, by readers, and watermarks, also by consumers.

Whatever a subscription has not acknowledged holds its watermark back, also the rest of a
transaction. So each message that comes after a watermark must have a time from there on.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import Any

from tests.simulation.answers import by_partition, value_of
from txlog import Client, messages
from txlog.base.ranges import START
from txlog.clock import SystemClock
from txlog.errors import MessageNotFound, TxlogError

AHEAD_MS = 1_000
EVERY, TABLES_MAX = "every topic", 60  # of a reader of all topics
IDLE_MS = 20_000  # producers that are silent for so long are idle, where the setting says so
LAST = "last"  # the producer that announces a time in the end


class WrongMark(Exception):
    """A watermark that passes an active producer, or waits for one that is idle."""


def check_marks(client: Client, topic: str, producers: Iterable[str]) -> None:
    """Raise WrongMark unless the watermark of a topic rises when all but one producer are idle."""
    now_ms = SystemClock().now().wall_ms
    for name in producers:
        client.producer(topic, name).new_watermark().mark_idle().send()
    client.producer(topic, LAST).new_watermark().event_time(now_ms).send()
    mark_ms = _mark_at_end(client, topic)
    if mark_ms != now_ms:
        raise WrongMark(f"{topic} is at {mark_ms} when its only active producer is at {now_ms}")


def _mark_at_end(client: Client, topic: str) -> int | None:
    """The watermark that a reader has got at the end of a topic."""
    with client.reader(topic, START, enable_watermarking=True) as reader:
        mark, has_moved = None, True
        while has_moved:  # an empty batch may bring a watermark
            before, rows = mark, reader.receive_batch(timeout_ms=0).num_rows
            mark = reader.get_last_watermark()
            has_moved = rows > 0 or mark != before
    return None if mark is None else mark.event_time


class Watching:
    """Operations of an agent, which has the rest of what they use."""

    def follow(self: Any, op: dict[str, Any]) -> None:
        """Read on, at most so many messages; a reader that was overtaken by a trim is closed."""
        topic, options = op["topic"], {"max_messages": op["most"]} if "most" in op else {}
        if topic not in self.readers:
            watches = self.topics[topic].has_watermarks
            reader = self.client.reader(topic, enable_watermarking=watches)
            self.readers[topic] = self._reader_name(topic), reader
        name, reader = self.readers[topic]
        try:
            self._call(
                "read",
                lambda: [*messages(reader.receive_batch(**options, timeout_ms=0))],
                lambda rows: {"topics": {topic: by_partition(rows)}},
                topics=[topic],
                reader=name,
                **({"partial": True} if options else {}),
            )
        except MessageNotFound:
            self.readers.pop(topic, None)
            raise
        mark = reader.get_last_watermark()
        if mark is not None and mark.event_time > self.memory.marks.get(name, -1):
            self.memory.marks[name] = mark.event_time
            facts = {"reader": name, "topic": topic, "time_ms": mark.event_time}
            self.recorder.event("watermark", process=self.process.name, **facts)

    def _reader_name(self: Any, topic: str) -> str:
        return f"{self.process.name}.{len(self.recorder.events)}.reader.{topic}"

    def follow_rounds(self: Any, op: dict[str, Any]) -> None:
        """Read all topics on, a few messages at a time, and note each round that has ended.

        A round reads the topics in their order, so one that comes again begins the next round.
        """
        topics = [topic.name for topic in self.scenario.topics]
        if EVERY not in self.readers:
            tables = self.client.read(topics, batch_messages=op["most"], follow=True)
            self.readers[EVERY] = self._reader_name(EVERY), tables
        name, tables = self.readers.pop(EVERY)
        shown: dict[str, list[str]] = {}
        for table in islice(tables, TABLES_MAX):
            topic = table["topic"][0].as_py() if table.num_rows else ""
            if shown and (not topic or topics.index(topic) < topics.index([*shown][-1])):
                self.recorder.event("round", process=self.process.name, reader=name, topics=shown)
                shown = {}
            if not topic:
                self.readers[EVERY] = name, tables
                return
            values = [value_of(message.value) for message in messages(table)]
            shown.setdefault(topic, []).extend(values)
            self.process.world.scheduler.sleep(op["rest_s"])

    def stream(self: Any, op: dict[str, Any]) -> None:
        """Send messages of a named producer in a transaction, and announce a later time.

        The announcement is in the transaction or follows it, so it comes after the messages.
        """
        topic, name = op["topic"], f"{self.process.name}-{op['producer']}"
        if (topic, name) in self.memory.unsettled:
            self._repeat((topic, name))
        time_ms = max(SystemClock().now().wall_ms, self.memory.announced.get((topic, name), 0))
        producer, txn = self._producer(topic, name), self._begin({})
        txn_id = str(txn.id)
        try:
            for _ in range(op["count"]):
                value = self._value()
                facts = {"topic": topic, "value": value, "txn": txn_id, "event_time_ms": time_ms}
                facts |= {"producer": name, "session": f"{self._session(topic, name)}.{txn_id}"}
                payload = self._payload(topic, value)
                send = partial(producer.send, payload, event_time=time_ms, txn=txn, partition=0)
                self._call("send", send, lambda _: {}, **facts)
        except TxlogError:
            self._guarded(lambda: self._end(txn, txn_id, "abort", {}))
            raise
        if not op["inside"]:
            self._end(txn, txn_id, "commit", {})
            self.announce({"topic": topic, "producer": op["producer"], "back_ms": -AHEAD_MS})
            return
        self.memory.announced[topic, name] = after_ms = time_ms + AHEAD_MS
        facts = {"topic": topic, "producer": name, "time_ms": after_ms, "txn": txn_id}
        send = producer.new_watermark(txn).event_time(after_ms).send
        self._call("announce", send, lambda _: {}, **facts)
        self._end(txn, txn_id, "commit", {})

    def stream_slowly(self: Any, op: dict[str, Any]) -> None:
        """Announce a time in a transaction that is open for long: no watermark passes it yet."""
        topic, name = op["topic"], f"{self.process.name}-{op['producer']}"
        clock = SystemClock()
        self.announce({"topic": topic, "producer": op["producer"], "back_ms": 0})
        began_ms, time_ms = clock.now().boot_ms, self.memory.announced[topic, name]
        producer, txn = self._producer(topic, name), self._begin({})
        self.memory.announced[topic, name] = after_ms = time_ms + AHEAD_MS
        facts = {"topic": topic, "producer": name, "time_ms": after_ms, "txn": str(txn.id)}
        send = producer.new_watermark(txn).event_time(after_ms).send
        self._call("announce", send, lambda _: {}, **facts)
        txn.flush()
        is_steady = clock.now().boot_ms - began_ms < IDLE_MS
        self.process.world.scheduler.sleep(2 * IDLE_MS / 1_000)
        mark_ms = _mark_at_end(self.client, topic)
        self._end(txn, str(txn.id), "commit", {})
        if is_steady and mark_ms is not None and mark_ms > time_ms:
            raise WrongMark(f"{topic} was at {mark_ms} while {name} was at {time_ms}")

    def watch_again(self: Any, op: dict[str, Any]) -> None:
        """Watch, let a producer join that is behind, and watch anew: the watermark must not fall.

        Nobody else uses the subscription, or the name of the producer.
        """
        topic, subscription = op["topic"], f"again-{self._value()}"
        create = partial(self.client.create_subscription, topic, subscription, type=op["kind"])
        create(position="earliest")
        before_ms = self._mark_of(topic, subscription)
        name, producer = f"{subscription}-behind", None
        if before_ms is not None and before_ms > AHEAD_MS:
            facts = {"topic": topic, "producer": name, "time_ms": before_ms - AHEAD_MS}
            producer = self._producer(topic, name)
            send = producer.new_watermark().event_time(facts["time_ms"]).send
            self._call("announce", send, lambda _: {}, **facts)
        after_ms = self._mark_of(topic, subscription)
        if producer is not None:
            self._call(
                "announce",
                producer.new_watermark().mark_idle().send,
                lambda _: {},
                **{"topic": topic, "producer": name, "time_ms": None},
            )
        if before_ms is not None and (after_ms is None or after_ms < before_ms):
            raise WrongMark(f"{subscription} was at {before_ms}, and its next consumer {after_ms}")
        self.client.subscription(topic, subscription).delete(force=True)

    def _mark_of(self: Any, topic: str, subscription: str) -> int | None:
        """The watermark of a new consumer that acknowledges everything."""
        with self.client.consumer(topic, subscription, enable_watermarking=True) as consumer:
            mark, has_moved = None, True
            while has_moved:
                before, table = mark, consumer.receive_batch(1000, 0)
                if table.num_rows:
                    consumer.acknowledge([*messages(table)])
                mark = consumer.get_last_watermark()
                has_moved = table.num_rows > 0 or mark != before
        return None if mark is None else mark.event_time

    def go_idle(self: Any, op: dict[str, Any]) -> None:
        """Declare a producer idle."""
        topic, name = op["topic"], f"{self.process.name}-{op['producer']}"
        send = self._producer(topic, name).new_watermark().mark_idle().send
        facts = {"topic": topic, "producer": name, "time_ms": None}
        self._call("announce", send, lambda _: {}, **facts)

    def watch(self: Any, op: dict[str, Any]) -> None:
        """Receive one message after the other, and acknowledge each; perhaps go back to the last.

        The watermark is noted in between.
        """
        topic, subscription = op["topic"], op["subscription"]
        consumer = self._consumer(op, watches=True)
        facts = {"topic": topic, "subscription": subscription, "consumer": consumer.name}
        for take in range(op["take"]):
            received = self._call(
                "receive",
                lambda: [each for each in [consumer.receive(0)] if each is not None],
                lambda messages: {"messages": self.rows_of(messages)},
                **facts,
            )
            mark = consumer.get_last_watermark()
            if mark is not None and mark.event_time > self.memory.marks.get(consumer.name, -1):
                self.memory.marks[consumer.name] = mark.event_time
                name = self.process.name
                self.recorder.event("watermark", process=name, **facts, time_ms=mark.event_time)
            if received:
                acked = self._acked_of(op, consumer, received)
                act = partial(consumer.acknowledge, received)
                self._call("acknowledge", act, lambda _: {}, **acked)
                if op["goes_back"] and take == op["take"] - 1:
                    self._go_back(facts, consumer, received[0])

    def _go_back(self: Any, facts: dict[str, Any], consumer: Any, message: Any) -> None:
        """Seek to a message, perhaps inside of a transaction; the watermark may fall then."""
        place = {name: facts[name] for name in ("topic", "subscription")}
        seek = partial(consumer.seek, message.message_id)
        self._call("seek", seek, lambda _: {}, **place, to=str(message.message_id))
        self.memory.marks.pop(consumer.name, None)

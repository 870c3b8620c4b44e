"""Owns what a process watches: messages that come, by readers, and watermarks, also by consumers.

Whatever a subscription has not acknowledged holds its watermark back, also the rest of a
transaction. So each message that comes after a watermark must have a time from there on.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Any

from tests.simulation.answers import by_partition, value_of
from txlog import messages
from txlog.clock import SystemClock
from txlog.errors import MessageNotFound, TxlogError

AHEAD_MS = 1_000
EVERY, TABLES_MAX = "every topic", 60  # of a reader of all topics


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

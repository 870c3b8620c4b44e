"""Owns what a process does with watermarks: it sends messages with times, and watches.

Whatever a subscription has not acknowledged holds its watermark back, also the rest of a
transaction. So each message that comes after a watermark must have a time from there on.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from txlog.clock import SystemClock
from txlog.errors import TxlogError

AHEAD_MS = 1_000


class Watching:
    """Operations of an agent, which has the rest of what they use."""

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

"""Owns what producers do that others may fence, or that leave numbers out.

claim           open a producer, under a name that all processes use or with exclusive access
send_claimed    send by it; another process may have opened the name or fenced it since
send_numbers    send messages of a named producer in another order than that of their numbers, some
                of them twice; perhaps in a transaction, which keeps numbers of its own
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.simulation.answers import nothing, sent
from txlog.errors import TxlogError

NAME = "boss"
SHARED = "shared"  # the access mode in which only the name fences


class Claims:
    """Operations of an agent, which has the rest of what they use."""

    def claim(self: Any, op: dict[str, Any]) -> None:
        """Open a producer of its own."""
        topic, access = op["topic"], op["access"]
        self.memory.count += 1
        session = f"{self.process.name}.{self.memory.count}.{topic}.{access}"
        facts: dict[str, Any] = {"topic": topic, "session": session, "access": access}
        if access == SHARED:
            facts["producer"] = NAME
        self._unclaim(topic)
        producer = self._call(
            "open_producer",
            lambda: self.client.producer(topic, facts.get("producer"), access_mode=access),
            nothing,
            **facts,
        )
        self.claimed[topic] = session, producer

    def _unclaim(self: Any, topic: str) -> None:
        session, producer = self.claimed.pop(topic, (None, None))
        if producer is not None:
            self._call("close_producer", producer.close, nothing, topic=topic, session=session)

    def send_claimed(self: Any, op: dict[str, Any]) -> None:
        """Send by the producer that was opened last; one that fails is closed."""
        topic = op["topic"]
        if topic not in self.claimed:
            self.claim(op)
        session, producer = self.claimed[topic]
        value = self._value()
        facts = {"topic": topic, "value": value, "session": session}
        try:
            self._call("send", partial(producer.send, value), sent, **facts)
        except TxlogError:
            self._unclaim(topic)
            raise

    def send_numbers(self: Any, op: dict[str, Any]) -> None:
        """Send messages with these numbers, behind those of the last time."""
        topic, name = op["topic"], f"{self.process.name}-gaps"
        at = topic, name
        first = self.memory.sequences.get(at, 0)
        self.memory.sequences[at] = first + max(op["numbers"]) + 1
        values = {number: self._value() for number in sorted({*op["numbers"]})}
        producer = self._producer(topic, name)
        txn = self._begin({}) if op.get("inside") else None
        inside = {} if txn is None else {"txn": str(txn.id)}
        for number in op["numbers"]:
            facts: dict[str, Any] = {"topic": topic, "value": values[number], "producer": name}
            facts |= {"sequence": first + number, "session": f"{name}.{values[number]}", **inside}
            options = {"sequence_id": first + number, "partition": 0, "txn": txn}
            send = partial(producer.send, values[number], **options)
            self._call("send", send, sent if txn is None else nothing, **facts)
            if txn is not None:  # each has a frame
                txn.flush()
        if txn is not None:
            self._end(txn, inside["txn"], "commit", {})

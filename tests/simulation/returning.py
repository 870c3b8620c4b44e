"""Owns what a process does with messages that it returns, or acknowledges twice."""

from __future__ import annotations

from functools import partial
from threading import current_thread
from typing import Any

from tests.simulation.answers import acked, nothing, text_id, value_of
from txlog import Message
from txlog.base.ranges import END, START

SIDE_THREAD = "side"  # of two that work at the same time: they have no order


class NotReturned(Exception):
    """What was returned to a subscription does not come again as it must, or comes too early."""


class Returning:
    """Operations of an agent, which has the rest of what they use."""

    def acknowledge_twice(self: Any, op: dict[str, Any]) -> None:
        """Acknowledge messages in two transactions; the second must be refused."""
        received, consumer = self._take(op, op["take"])
        if not received:
            return
        alone = {**op, "to": [], "flushes": True}

        def use(txn: Any) -> None:
            self._fill(alone, txn, received, consumer)
            self._end(txn, str(txn.id), "commit", {})

        first, second = self._begin({}), self._begin({})
        if op["is_held"]:
            self._fill(alone, first, received, consumer)
            self._guarded(partial(use, second))
            self._end(first, str(first.id), "commit", {})
        else:
            use(first)
            use(second)

    def come_again(self: Any, op: dict[str, Any]) -> None:
        """Return messages to an exclusive subscription, and receive them again.

        Or hold them in a transaction: then they do not come. The cursor may come from a dump.
        """
        if current_thread().name == SIDE_THREAD:  # the other one may receive them
            return
        how, begin = op["how"], len(self.recorder.events)
        received, consumer = self._take(op, op["take"])
        if not received:
            return
        returned = received
        if how == "nack":
            returned = received[::2]
            facts = self._acked_of(op, consumer, returned)
            self._call("nack", lambda: consumer.negative_acknowledge(returned), nothing, **facts)
        elif how == "seek":
            some = received[1::2]
            facts = self._acked_of(op, consumer, some)
            self._call("acknowledge", lambda: consumer.acknowledge(some), acked, **facts)
            self.seek({**op, "to": "earliest"})
        else:
            txn = self._begin({})
            self._fill({**op, "to": [], "flushes": True}, txn, received, consumer)
            if how == "abort":
                self._end(txn, str(txn.id), "abort", {})
        if op["reopens"]:
            self.checkpoint({"roll_all": True})
            self.reopen({})
        again: dict[str | None, Message] = {}
        while messages := self._take(op, 1000, 50)[0]:
            again |= {text_id(message.message_id): message for message in messages}
        if not self._is_disturbed(op, begin):
            _check_again(how, returned, again)
        at = op["topic"], op["subscription"]
        name = self._consumer(op).name
        self._call("close", self.consumers.pop(at).close, nothing, consumer=name)

    def _is_disturbed(self: Any, op: dict[str, Any], begin: int) -> bool:
        """Whether something else may have changed the subscription since an event."""
        causes = ("power_cut", "lossy", "stop", "clock_jump", "unsubscribe", "delete_topic")
        return any(
            event.op in causes or (event.op == "seek" and event.process != self.process.name)
            for event in self.recorder.events[begin:]
        )

    def seek(self: Any, op: dict[str, Any]) -> None:
        topic, subscription, to = op["topic"], op["subscription"], op["to"]
        self._call(
            "seek",
            lambda: self.client.subscription(topic, subscription).seek(
                START if to == "earliest" else END, force=True
            ),
            nothing,
            topic=topic,
            subscription=subscription,
            to=to,
        )

    def retry_later(self: Any, op: dict[str, Any]) -> None:
        """Postpone a message to the retry topic of the subscription."""
        received, consumer = self._take(op, 1)
        for message in received:
            self._call(
                "reconsume_later",
                partial(consumer.reconsume_later, message, 100),
                nothing,
                **self._acked_of(op, consumer, [message]),
            )


def _check_again(how: str, returned: list[Message], again: dict[str | None, Message]) -> None:
    """Raise NotReturned unless messages came again, each with its count, or were held."""
    for message in returned:
        other = again.get(text_id(message.message_id))
        name = value_of(message.value)
        if (other is None) != (how == "hold"):
            raise NotReturned(f"{name} {'did not come' if other is None else 'came'} after a {how}")
        if other is None or how == "seek":
            continue
        before, after = message.redelivery_count or 0, other.redelivery_count or 0
        if after <= before:
            raise NotReturned(
                f"{name} came again after a {how} as delivery {after}, not above {before}"
            )

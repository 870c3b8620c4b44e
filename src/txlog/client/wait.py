"""Waiting until a store meets conditions: `client.wait`, `txlog wait`.

All conditions are checked in the same view, and again only after a new frame. A condition that can
no longer be met ends the wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from txlog.base.ids import TopicName, TxnId
from txlog.base.suggest import suggestion
from txlog.base.times import format_time
from txlog.client.answers import watermarks
from txlog.engine.door import catalog as lookup
from txlog.engine.door.catalog import Subscription, Topic, number_of
from txlog.engine.door.consuming import backlog
from txlog.engine.door.reading import Quiet, least, until_appended, until_told
from txlog.engine.door.store import CallScope, Store, View
from txlog.errors import InvalidArgument, SubscriptionNotFound

if TYPE_CHECKING:
    from txlog.base.rows.store import Waited


# by state: the states from which a transaction can still reach it
STATES: Final[dict[str, tuple[str, ...]]] = {
    "open": (),
    "prepared": ("open",),
    "committing": ("open", "prepared"),
    "aborting": ("open",),
    "committed": ("open", "prepared", "committing"),
    "aborted": ("open", "aborting"),
    "ended": ("open", "prepared", "committing", "aborting"),
}


@dataclass(frozen=True, slots=True)
class Found:
    """The result of checking a condition.

    value:    to show, for example a number of messages
    hopeless: the condition is not met, and never will be
    """

    met: bool
    value: str
    hopeless: bool = False


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition: its name to show, and the function that checks it.

    is_told: only a flush can change the result, so a flush event is enough to wake the wait; else
             an unflushed append can, too
    txn:     the transaction that it checks, which may time out during the wait
    """

    name: str
    ask: Callable[[View, Store], Found]
    is_told: bool = True
    txn: TxnId | None = None


class Wait:
    """A wait until all conditions are met at once: call `look` until it is True, then `answer`."""

    __slots__ = ("_asked", "_began", "_conditions", "_looked", "_store", "_txns")

    def __init__(self, store: Store, conditions: Sequence[Condition]) -> None:
        if not conditions:
            raise InvalidArgument("there is nothing to wait for")
        self._store, self._conditions = store, conditions
        self._txns = [condition.txn for condition in conditions if condition.txn is not None]
        self._began = time.monotonic()
        self._asked: tuple[int, list[Found]] = (-1, [])
        self._looked = store.clock.now()

    def look(self, is_thorough: bool) -> bool | None:
        """True when all conditions are met, or one never will be; else None.

        raises: the errors of the checks
        """
        self._looked = self._store.clock.now()
        for txn in self._txns:
            self._store.sweep_if_due(CallScope(txn=(txn.coordinator, txn.sequence)))
        self._asked = self._store.ask(self._ask)
        results = self._asked[1]
        return (
            all(check.met for check in results) or any(check.hopeless for check in results) or None
        )

    def rest(self, pause: float) -> Quiet:
        """How long to sleep without an event; see Waiting."""
        is_told = all(condition.is_told for condition in self._conditions)
        rests = [until_told(pause) if is_told else until_appended(self._store, pause)]
        if self._txns:  # at most until a transaction times out
            looked, now = self._looked, self._store.clock.now()
            due_ms = self._store.read(lambda view: view.next_deadline_ms(looked), fresh=False)
            if due_ms is not None and due_ms >= looked.boot_ms:  # it ends with that millisecond
                rests.append(Quiet(max(0, due_ms + 1 - now.boot_ms) / 1000))
            elif due_ms is not None:  # the look was after it, but another process had the lock
                rests.append(Quiet(pause))
        return least(rests)

    def _ask(self, view: View) -> tuple[int, list[Found]]:
        if view.lsn == self._asked[0]:
            return self._asked
        return view.lsn, [condition.ask(view, self._store) for condition in self._conditions]

    def answer(self) -> Waited:
        """{met, elapsed_ms, condition_list: [{name, met, value}]}, as of the last look."""
        results = self._asked[1]
        return {
            "met": all(result.met for result in results),
            "elapsed_ms": int((time.monotonic() - self._began) * 1000),
            "condition_list": [
                {"name": condition.name, "met": result.met, "value": result.value}
                for condition, result in zip(self._conditions, results, strict=True)
            ],
        }


def has_messages(topic: str, count: int) -> Condition:
    """The topic, or a partition of it, has at least this many visible messages."""
    parsed = TopicName.parse(topic, allow_partition=True)

    def ask(view: View, store: Store) -> Found:
        record = lookup.topic(view, parsed)
        messages = sum(
            view.topic(number_of(record, index)).messages for index in _indexes(record, parsed)
        )
        return Found(messages >= count, str(messages))

    return Condition(f"messages:{parsed}", ask)


def has_watermark(topic: str, event_time: int, subscription: str | None = None) -> Condition:
    """The watermark is at least `event_time` (ms since 1970 UTC).

    subscription: None: the watermark at the end of the log; else at the subscription's place, or
                  the value that its consumers have already received if that is greater
    """
    parsed = TopicName.parse(topic, allow_partition=True)

    def ask(view: View, store: Store) -> Found:
        record = lookup.topic(view, parsed)
        place = None if subscription is None else lookup.subscription(view, record, subscription)
        places = [*watermarks.standings(view, record, _indexes(record, parsed), place)]
        value = watermarks.reached(places)
        if value is None:
            return Found(False, watermarks.status_of(places))
        return Found(value >= event_time, format_time(value))

    name = f"watermark:{parsed}"
    if subscription is None:
        return Condition(name, ask)
    return Condition(f"{name}:{subscription}", ask, is_told=False)


def has_backlog(subscription: str, count: int, topic: str | None = None) -> Condition:
    """The backlog of the subscription is at most `count` messages.

    topic: None: the only topic with a subscription of that name
    """
    parsed = None if topic is None else TopicName.parse(topic, allow_partition=True)

    def ask(view: View, store: Store) -> Found:
        if parsed is None:
            entry = _only(view, subscription)
            record = view.catalog.topics[entry.topic]
        else:
            record = lookup.topic(view, parsed)
            entry = lookup.subscription(view, record, subscription)
        messages = sum(
            backlog(view, entry.number, number_of(record, index))
            for index in _indexes(record, parsed)
        )
        return Found(messages <= count, str(messages))

    name = subscription if parsed is None else f"{parsed}:{subscription}"
    return Condition(f"backlog:{name}", ask, is_told=False)


def has_state(txn_id: TxnId, state: str) -> Condition:
    """The transaction is in this state, one of STATES."""
    earlier = STATES.get(state)
    if earlier is None:
        raise InvalidArgument(
            f'no state "{state[:40]}" of a transaction', hint=", ".join(STATES), code=203
        )

    def ask(view: View, store: Store) -> Found:
        status = lookup.transaction(view, txn_id, store.settings.coordinators).status.lower()
        met = status == state or (state == "ended" and status in ("committed", "aborted"))
        return Found(met, status, not met and status not in earlier)

    return Condition(f"txn:{txn_id}", ask, is_told=state != "open", txn=txn_id)


def conditions_of(
    topics: Sequence[str],
    messages: int | None,
    watermark: int | None,
    subscription: str | None,
    backlogs: Mapping[str, int],
    txns: Mapping[TxnId, str],
) -> list[Condition]:
    """The conditions of one call: for each topic, for each subscription, for each transaction."""
    out: list[Condition] = []
    for topic in topics:
        if messages is not None:
            out.append(has_messages(topic, messages))
        if watermark is not None:
            out.append(has_watermark(topic, watermark, subscription))
    where: list[str | None] = [*topics] or [None]
    for name, count in backlogs.items():
        out += [has_backlog(name, count, topic) for topic in where]
    return out + [has_state(txn_id, state) for txn_id, state in txns.items()]


def _indexes(topic: Topic, name: TopicName | None) -> Sequence[int]:
    """The partition in the name, if it has one, else all."""
    return range(topic.partitions) if name is None or name.partition is None else [name.partition]


def _only(view: View, subscription: str) -> Subscription:
    matches = [entry for entry in view.catalog.subscriptions.values() if entry.name == subscription]
    if not matches:
        names = sorted({entry.name for entry in view.catalog.subscriptions.values()})
        raise SubscriptionNotFound(
            f"no subscription {subscription}",
            subscription=subscription,
            hint=suggestion(subscription, names, "txlog sub list"),
        )
    if len(matches) > 1:
        raise InvalidArgument(
            f"several topics have a subscription {subscription}",
            code=205,
            hint="name the topic",
            subscription=subscription,
        )
    return matches[0]

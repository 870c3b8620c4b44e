"""Waiting until a store has become what was asked for: `client.wait`, `txlog wait`.

Each condition is a question, and all are asked of the same view. Nothing is asked again until
another frame has come. A condition that can no longer come true ends the wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from txlog.base.ids import TopicName, TxnId
from txlog.base.ranges import format_time
from txlog.base.suggest import suggestion
from txlog.client.answers import watermarks
from txlog.engine.door import catalog as lookup
from txlog.engine.door.catalog import Subscription, Topic, number_of
from txlog.engine.door.consuming import backlog
from txlog.engine.door.reading import Quiet, least, until_appended, until_told
from txlog.engine.door.store import Store, Uses, View
from txlog.errors import InvalidArgument, SubscriptionNotFound

if TYPE_CHECKING:
    from txlog.base.rows.store import Waited


# the states a transaction may be in before reaching one
STATES: Final[dict[str, tuple[str, ...]]] = {
    "open": (),
    "committing": ("open",),
    "aborting": ("open",),
    "committed": ("open", "committing"),
    "aborted": ("open", "aborting"),
    "ended": ("open", "committing", "aborting"),
}


@dataclass(frozen=True, slots=True)
class Found:
    """The current state of a condition; hopeless: it is not met, and never will be."""

    met: bool
    value: str
    hopeless: bool = False


@dataclass(frozen=True, slots=True)
class Condition:
    """A name to show, and the question.

    is_told: only what is flushed changes the answer; else also what is appended
    txn:     the transaction it is about, which may time out meanwhile
    """

    name: str
    ask: Callable[[View, Store], Found]
    is_told: bool = True
    txn: TxnId | None = None


class Wait:
    """A wait until all conditions hold at once: `look` until it is True, then `answer`."""

    __slots__ = ("_asked", "_began", "_conditions", "_looked", "_store", "_txns")

    def __init__(self, store: Store, conditions: Sequence[Condition]) -> None:
        if not conditions:
            raise InvalidArgument("there is nothing to wait for")
        self._store, self._conditions = store, conditions
        self._txns = [one.txn for one in conditions if one.txn is not None]
        self._began = time.monotonic()
        self._asked: tuple[int, list[Found]] = (-1, [])
        self._looked = store.clock.now()

    def look(self, is_thorough: bool) -> bool | None:
        """True when it is over: all hold, or one never will. Raises what the questions raise."""
        self._looked = self._store.clock.now()
        for txn in self._txns:
            self._store.sweep_if_due(Uses(txn=(txn.coordinator, txn.sequence)))
        self._asked = self._store.ask(self._ask)
        found = self._asked[1]
        return all(one.met for one in found) or any(one.hopeless for one in found) or None

    def rest(self, pause: float) -> Quiet:
        """How long to rest without news."""
        is_told = all(condition.is_told for condition in self._conditions)
        rests = [until_told(pause) if is_told else until_appended(self._store, pause)]
        if self._txns:  # until one of them times out
            looked, now = self._looked, self._store.clock.now()
            due_ms = self._store.read(lambda view: view.next_deadline_ms(looked), fresh=False)
            if due_ms is not None and due_ms >= looked.boot_ms:  # it has all of that millisecond
                rests.append(Quiet(max(0, due_ms + 1 - now.boot_ms) / 1000))
            elif due_ms is not None:  # it was due then already: somebody else has the lock
                rests.append(Quiet(pause))
        return least(rests)

    def _ask(self, view: View) -> tuple[int, list[Found]]:
        if view.lsn == self._asked[0]:
            return self._asked
        return view.lsn, [condition.ask(view, self._store) for condition in self._conditions]

    def answer(self) -> Waited:
        """{met, elapsed_ms, condition_list: [{name, met, value}]}, as of the last look."""
        found = self._asked[1]
        return {
            "met": all(one.met for one in found),
            "elapsed_ms": int((time.monotonic() - self._began) * 1000),
            "condition_list": [
                {"name": condition.name, "met": one.met, "value": one.value}
                for condition, one in zip(self._conditions, found, strict=True)
            ],
        }


def has_messages(topic: str, count: int) -> Condition:
    """The topic, or a partition of it, has at least this many visible messages."""
    asked = TopicName.parse(topic, allow_partition=True)

    def ask(view: View, store: Store) -> Found:
        found = lookup.topic(view, asked)
        messages = sum(
            view.topic(number_of(found, index)).messages for index in _indexes(found, asked)
        )
        return Found(messages >= count, str(messages))

    return Condition(f"messages:{asked}", ask)


def has_watermark(topic: str, event_time: int, subscription: str | None = None) -> Condition:
    """The watermark is at least this (ms), at the end of the log or at a subscription's place.

    There, what its consumers received counts, too, as it does not fall again.
    """
    asked = TopicName.parse(topic, allow_partition=True)

    def ask(view: View, store: Store) -> Found:
        found = lookup.topic(view, asked)
        held = None if subscription is None else lookup.subscription(view, found, subscription)
        places = [*watermarks.standings(view, found, _indexes(found, asked), held)]
        value = watermarks.reached(places)
        if value is None:
            return Found(False, watermarks.status_of(places))
        return Found(value >= event_time, format_time(value))

    name = f"watermark:{asked}"
    if subscription is None:
        return Condition(name, ask)
    return Condition(f"{name}:{subscription}", ask, is_told=False)


def has_backlog(subscription: str, count: int, topic: str | None = None) -> Condition:
    """The subscription has at most this many messages left; topic None: the only one with it."""
    asked = None if topic is None else TopicName.parse(topic, allow_partition=True)

    def ask(view: View, store: Store) -> Found:
        if asked is None:
            held = _only(view, subscription)
            found = view.catalog.topics[held.topic]
        else:
            found = lookup.topic(view, asked)
            held = lookup.subscription(view, found, subscription)
        left = sum(
            backlog(view, held.number, number_of(found, index)) for index in _indexes(found, asked)
        )
        return Found(left <= count, str(left))

    named = subscription if asked is None else f"{asked}:{subscription}"
    return Condition(f"backlog:{named}", ask, is_told=False)


def has_state(txn_id: TxnId, state: str) -> Condition:
    """The transaction is in a state of STATES."""
    before = STATES.get(state)
    if before is None:
        raise InvalidArgument(
            f'no state "{state[:40]}" of a transaction', hint=", ".join(STATES), code=203
        )

    def ask(view: View, store: Store) -> Found:
        status = lookup.transaction(view, txn_id, store.settings.coordinators).status.lower()
        met = status == state or (state == "ended" and status in ("committed", "aborted"))
        return Found(met, status, not met and status not in before)

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


def _indexes(topic: Topic, asked: TopicName | None) -> Sequence[int]:
    """The one partition that a name gives, or all."""
    return (
        range(topic.partitions) if asked is None or asked.partition is None else [asked.partition]
    )


def _only(view: View, subscription: str) -> Subscription:
    found = [one for one in view.catalog.subscriptions.values() if one.name == subscription]
    if not found:
        names = sorted({one.name for one in view.catalog.subscriptions.values()})
        raise SubscriptionNotFound(
            f"no subscription {subscription}",
            subscription=subscription,
            hint=suggestion(subscription, names, "txlog sub list"),
        )
    if len(found) > 1:
        raise InvalidArgument(
            f"several topics have a subscription {subscription}",
            code=205,
            hint="name the topic",
            subscription=subscription,
        )
    return found[0]

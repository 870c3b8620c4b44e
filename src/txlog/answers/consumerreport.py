"""The answer about the consumers of a subscription: who they are, and what each has in hand."""

from __future__ import annotations

from typing import Any

from txlog.engine.decide.consuming.lease import active_consumer
from txlog.engine.folds import catalog as catalogs
from txlog.engine.folds.catalog import Subscription
from txlog.engine.store.liveness import consumer_lock, holder_of
from txlog.engine.store.store import Store
from txlog.engine.view.view import View

Answer = dict[str, Any]


def consumers(view: View, held: Subscription, store: Store) -> list[Answer]:
    """The attached consumers of a subscription, by id.

    alive:       its lock is held; one that is not stays until another consumer notices
    leased:      messages in its hand; active_list: with failover, the partitions it gets now
    pid, command: of the process that holds the lock, by the kernel's word
    returns:     {consumer, name, pid, command, alive, priority, leased, active_list, since_time}
    """
    numbers = catalogs.numbers(view.catalog.topics[held.topic])
    active: dict[int, list[int]] = {}
    if held.type == "failover":
        for index, _ in enumerate(numbers):
            active.setdefault(active_consumer(view, held.number, index), []).append(index)
    out: list[Answer] = []
    for one in catalogs.consumers_of(view.catalog, held.number):
        is_alive, pid, command = holder_of(store.disk, consumer_lock(one.number))
        out.append({
            "consumer": one.number, "name": one.name, "pid": pid, "command": command,
            "alive": is_alive, "priority": one.priority,
            "leased": sum(
                view.cursor(held.number, number).hands.in_hand(one.number) for number in numbers
            ),
            "active_list": active.get(one.number, []), "since_time": one.since_ms,
        })  # fmt: skip
    return out


def waiting(view: View, held: Subscription) -> int:
    """Messages that were given back and wait for their delay."""
    numbers = catalogs.numbers(view.catalog.topics[held.topic])
    return sum(len(view.cursor(held.number, number).hands.waiting) for number in numbers)

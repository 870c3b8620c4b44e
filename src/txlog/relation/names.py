"""Which names there are in a store: for completion and for shells, without counts and sizes.

Reading functions over a view; each costs what the catalog or the coordinators hold.
"""

from __future__ import annotations

from typing import Final

from txlog.engine.decide.transactions.keys import living_keys
from txlog.engine.view.view import View
from txlog.ids import TopicName, TxnId

KINDS: Final = ("topic", "partition", "subscription", "key", "transaction", "ended")


def names(view: View, uid: int, kind: str, topic: str | None = None) -> list[tuple[str, str]]:
    """(name, what it is) of everything of a kind, in order.

    kind:  one of KINDS; `ended`: every remembered transaction, the newest first
    uid:   whose keys
    topic: only its subscriptions; a name that is none has none
    """
    if kind == "topic":
        return [(name, _counted(len(numbers))) for name, numbers in _topics(view)]
    if kind == "partition":
        return [(f"{name}/{n}", "partition") for name, numbers in _topics(view) for n in numbers]
    if kind == "subscription":
        return _subscriptions(view, topic)
    if kind == "key":
        return [(key, "transaction key") for key in sorted(living_keys(view, uid))]
    return _transactions(view, kind == "ended")


def _topics(view: View) -> list[tuple[str, range]]:
    found = view.catalog.topics.values()
    return sorted((TopicName.parse(one.name).short, range(one.partitions)) for one in found)


def _counted(partitions: int) -> str:
    return "1 partition" if partitions == 1 else f"{partitions} partitions"


def _subscriptions(view: View, topic: str | None) -> list[tuple[str, str]]:
    wanted = None if topic is None else TopicName.parse(topic, allow_partition=True).topic.short
    found: dict[str, str] = {}
    for one in view.catalog.topics.values():
        short = TopicName.parse(one.name).short
        for number in one.subscriptions if wanted in (None, short) else ():
            name = view.catalog.subscriptions[number].name
            found[name] = f"{found[name]}, {short}" if name in found else f"of {short}"
    return sorted(found.items())


def _transactions(view: View, ended: bool) -> list[tuple[str, str]]:
    rows: list[tuple[int, str, str]] = []
    for number in sorted({at for kind, at, _ in view.known() if kind == "coordinator"}):
        state = view.coordinator(number)
        for txn in (*state.unfinished.values(), *(state.ended.values() if ended else ())):
            told = txn.status.lower() + ("" if txn.key is None else f", {txn.key}")
            rows.append((-txn.wall_ms, str(TxnId(number, txn.sequence)), told))
    return [(text, told) for _, text, told in sorted(rows)]

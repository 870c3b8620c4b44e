"""Owns a store's health for monitors: a list of checks, each with a value and bounds.

    partitions     how many are unavailable; quarantined is critical, taken offline a warning
    space          bytes free on the file system; below free_bytes_min nothing can be produced
    hanging        transactions that will not end by themselves; critical if the cause is corrupt
    txn-age        age of the oldest unfinished transaction, ms
    backlog T/S    messages in the backlog of each subscription
    lag T          for each topic with a watermark, from it until now, ms; idle: none

A value above a bound is a warning, or critical; without a bound it is ok.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from txlog.answers import topics_and_txns, watermarks
from txlog.engine.folds.catalog import Topic, number_of
from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.plan.participants import hanging
from txlog.engine.store.store import Store
from txlog.engine.view.view import View
from txlog.errors import InvalidArgument
from txlog.ids import TopicName
from txlog.settings import MINUTE_MS

if TYPE_CHECKING:
    from txlog.rows.store import Check, CheckRow


OK, WARNING, CRITICAL, UNKNOWN = STATES = ("ok", "warning", "critical", "unknown")
HANGING_MS: Final = 15 * MINUTE_MS


class Bounds(NamedTuple):
    """A value above warn is a warning, above crit it is critical; None: never."""

    warn: int | None = None
    crit: int | None = None

    def judge(self, value: int) -> str:
        """The status of a value."""
        if self.crit is not None and value > self.crit:
            return CRITICAL
        return WARNING if self.warn is not None and value > self.warn else OK


NONE: Final = Bounds()


def check(
    view: View,
    store: Store,
    topics: Sequence[str],
    backlog: Bounds,
    txn_age_ms: Bounds,
    lag_ms: Bounds,
) -> Check:
    """Look at a store, or at some topics of it.

    returns: {status, check_list: [{name, status, value, warn, crit, detail}]}; status is the worst
    raises:  TopicNotFound, InvalidArgument (warn is above crit)
    cost:    loads every fold, reads no message
    """
    for name, bounds in (("backlog", backlog), ("txn-age", txn_age_ms), ("lag", lag_ms)):
        if bounds.warn is not None and bounds.crit is not None and bounds.warn > bounds.crit:
            raise InvalidArgument(
                f"{name}: {bounds.warn} for a warning is above {bounds.crit} for critical"
            )
    every = sorted(view.catalog.topics.values(), key=lambda topic: topic.name)
    names = [TopicName.parse(name) for name in topics]
    chosen = [find_topic(view, name) for name in names] or every
    rows = [_partitions(view, chosen), _space(store), _hanging(view, store, chosen)]
    rows += [
        _row("clock", 1, Bounds(0, None), problem["message"])
        for problem in topics_and_txns.clock_problem(view, store)
    ]
    rows.append(_txn_age(view, store, chosen, txn_age_ms))
    for topic in chosen:
        rows += [
            _row(
                f"backlog {row['topic']}/{row['subscription']}",
                row["backlog"],
                backlog,
                f"{row['consumers']} consumers, {row['delayed']} delayed",
            )
            for row in topics_and_txns.subscriptions(view, topic, store)
        ]
        rows += _lag(view, store, topic, lag_ms)
    return {"status": worst(rows), "check_list": rows}


def worst(rows: Sequence[CheckRow]) -> str:
    """The most severe status; critical is more severe than unknown."""
    found = {row["status"] for row in rows}
    return next((one for one in (CRITICAL, UNKNOWN, WARNING) if one in found), OK)


def _row(name: str, value: int, bounds: Bounds, detail: str, status: str | None = None) -> CheckRow:
    return {
        "name": name,
        "status": status or bounds.judge(value),
        "value": value,
        "warn": bounds.warn,
        "crit": bounds.crit,
        "detail": detail,
    }


def _partitions(view: View, topics: Sequence[Topic]) -> CheckRow:
    away = {
        number: why.reason
        for topic in topics
        for index in range(topic.partitions)
        if (why := view.catalog.unavailable.get(number := number_of(topic, index))) is not None
    }
    named = [
        f"{topics_and_txns.partition_name(view, number)} ({why})" for number, why in away.items()
    ]
    status = CRITICAL if "damage" in away.values() else WARNING if away else OK
    return _row("partitions", len(away), Bounds(0, None), ", ".join(named) or "all there", status)


def _space(store: Store) -> CheckRow:
    """Free bytes have lower bounds: warn is the least that is ok, crit the least not critical."""
    least = store.settings.free_bytes_min
    free = store.disk.free_bytes()
    status = CRITICAL if free < least else WARNING if free < 2 * least else OK
    said = f"{least >> 20:,} MiB" if least >= 1 << 20 else f"{least:,} bytes"
    detail = f"nothing can be produced below {said}"
    return {**_row("space", free, NONE, detail, status), "warn": 2 * least, "crit": least}


def _hanging(view: View, store: Store, topics: Sequence[Topic]) -> CheckRow:
    found = hanging(view, store.clock.now(), HANGING_MS, list(topics))
    causes = {one.cause for one in found}
    status = CRITICAL if "corrupt" in causes else WARNING if found else OK
    named = [f"{one.coordinator}:{one.sequence} ({one.cause})" for one in found[:5]]
    return _row("hanging", len(found), Bounds(0, None), ", ".join(named) or "none", status)


def _txn_age(view: View, store: Store, topics: Sequence[Topic], bounds: Bounds) -> CheckRow:
    names = {topics_and_txns.short(topic) for topic in topics}
    everything = len(topics) == len(view.catalog.topics)
    rows = [
        row
        for row in topics_and_txns.transactions(view, store, False, None)
        if everything or names & {*row["topic_list"]}
    ]
    oldest = max(rows, key=lambda row: row["age_ms"], default=None)
    if oldest is None:
        return _row("txn-age", 0, bounds, "no unfinished transaction")
    return _row(
        "txn-age",
        oldest["age_ms"],
        bounds,
        f"{oldest['txn']} is {oldest['state']}, {len(rows)} unfinished",
    )


def _lag(view: View, store: Store, topic: Topic, bounds: Bounds) -> list[CheckRow]:
    found = [*watermarks.standings(view, topic, range(topic.partitions))]
    shown = watermarks.show(view, topic, found, store.clock.now().wall_ms)
    if shown["status"] == "unknown":
        return []
    name, lag = f"lag {shown['topic']}", shown["lag_ms"]
    if lag is None:
        return [_row(name, 0, bounds, str(shown["status"]))]
    return [_row(name, max(0, lag), bounds, f"held by {shown['holder']}")]

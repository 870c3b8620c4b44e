"""Which backlogs are above the thresholds of their policies; no other module compares them.

`check`, `status`, the report, metrics and the pages take the answer from here. A threshold is a
policy, and the narrowest scope that has one decides: subscription, topic, namespace, store. A value
that is unknown is neither above a threshold nor below: its status is `unknown`.

    backlog-age       alert_backlog_age_ms    the oldest message that is due is older
    backlog           alert_backlog_messages  more messages are not acknowledged
    backlog-bytes     alert_backlog_bytes     they have more bytes
    no-consumer-for   alert_no_consumer_ms    no consumer is connected, and none was for longer
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from txlog.base.settings import ALERT_POLICIES, UNLIMITED, Settings
from txlog.base.suggest import command_line
from txlog.base.text.amounts import duration, size
from txlog.client.answers import lag
from txlog.client.answers.topics_and_txns import short
from txlog.engine.door.catalog import Subscription, policies_of
from txlog.engine.door.store import Store, View

if TYPE_CHECKING:
    from txlog.base.rows.consuming import LagRow
    from txlog.base.rows.store import AlertRow, Problem


OK, FIRING, UNKNOWN = "ok", "firing", "unknown"


class AlertKind(NamedTuple):
    """An alert: its name as the flag of `policy alert set`, its policy, and its value in a row."""

    name: str
    policy: str
    field: str
    text: str


KINDS: Final = (
    AlertKind(
        "backlog-age", "alert_backlog_age_ms", "oldest_age_ms", "the oldest message waits for {}"
    ),
    AlertKind("backlog", "alert_backlog_messages", "backlog", "{} messages are not acknowledged"),
    AlertKind("backlog-bytes", "alert_backlog_bytes", "backlog_bytes", "the backlog has {}"),
    AlertKind("no-consumer-for", "alert_no_consumer_ms", "no_consumer_ms", "no consumer for {}"),
)
assert tuple(kind.policy for kind in KINDS) == ALERT_POLICIES


def is_time(name: str) -> bool:
    """True for an alert whose value is in ms."""
    return any(kind.name == name and kind.policy.endswith("_ms") for kind in KINDS)


def judged(view: View, store: Store, rows: Sequence[LagRow] | None = None) -> list[AlertRow]:
    """Every threshold that applies to a subscription, by topic and subscription.

    rows: of `lag`, if the caller has them; else read here, unless there is no threshold
    """
    if not _has_thresholds(view, store.settings):
        return []
    by_name = {
        (short(view.catalog.topics[subscription.topic]), subscription.name): subscription
        for subscription in view.catalog.subscriptions.values()
    }
    alerts: list[AlertRow] = []
    for row in lag.lag(view, store) if rows is None else rows:
        subscription = by_name[row["topic"], row["subscription"]]
        alerts += _of_subscription(row, _thresholds(view, store.settings, subscription))
    return alerts


def _has_thresholds(view: View, settings: Settings) -> bool:
    catalog = view.catalog
    scopes: Iterable[Iterable[str]] = (
        *catalog.policies.values(),
        *catalog.namespace_policies.values(),
        *(subscription.policies for subscription in catalog.subscriptions.values()),
    )
    return any(getattr(settings, name) != UNLIMITED for name in ALERT_POLICIES) or any(
        name in ALERT_POLICIES for policies in scopes for name in policies
    )


def _thresholds(view: View, settings: Settings, subscription: Subscription) -> dict[str, int]:
    """By policy, the thresholds that apply."""
    inherited = policies_of(view.catalog, view.catalog.topics[subscription.topic])
    values: dict[str, int] = {}
    for name in ALERT_POLICIES:
        value = subscription.policies.get(name, inherited.get(name))
        value = getattr(settings, name) if value is None else value
        if isinstance(value, int) and value != UNLIMITED:
            values[name] = value
    return values


def _of_subscription(row: LagRow, thresholds: dict[str, int]) -> list[AlertRow]:
    alerts: list[AlertRow] = []
    for kind in KINDS:
        if kind.policy not in thresholds:
            continue
        value: int | None = row[kind.field]  # type: ignore[literal-required]
        threshold = thresholds[kind.policy]
        status = FIRING if value is not None and value > threshold else OK
        if kind.name == "backlog-age" and value is None and row["backlog_no_delayed"]:
            status = UNKNOWN
        since = "an unknown time" if value is None else _shown(kind, value)
        alerts.append(
            {
                "topic": row["topic"],
                "subscription": row["subscription"],
                "alert": kind.name,
                "status": status,
                "value": value,
                "threshold": threshold,
                "message": kind.text.format(since)
                + f", the threshold is {_shown(kind, threshold)}",
            }
        )
    return alerts


def _shown(kind: AlertKind, value: int) -> str:
    if kind.policy.endswith("_ms"):
        return duration(value)
    return size(value) if kind.policy.endswith("_bytes") else f"{value:,}"


def problems(view: View, store: Store, rows: Sequence[LagRow] | None = None) -> list[Problem]:
    """The alerts that fire, as rows of problem_list."""
    return [
        {
            "code": "alert",
            "message": f"{alert['topic']}/{alert['subscription']}: {alert['message']}",
            "hint": command_line("sub describe", alert["subscription"], "-t", alert["topic"]),
        }
        for alert in judged(view, store, rows)
        if alert["status"] == FIRING
    ]

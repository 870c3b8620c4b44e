"""Owns the job `lateness`: how late messages arrive, and how many a lagging watermark would save.

A watermark with a delay is the greatest event time of its partition so far, minus that delay. A
message below it is late. The job follows each partition separately, in the order of the log, and
leaves out messages without an event time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from txlog.base.ids import TopicName
from txlog.base.startup import compute as pc
from txlog.client.client import Client
from txlog.errors import InvalidArgument
from txlog.lake.jobs.engine import Engine

if TYPE_CHECKING:
    from txlog.base.rows.jobs import Lateness, LatenessDelay


DELAYS_MS: Final = (0, 1000, 10_000, 60_000, 600_000, 3_600_000, 86_400_000)
_QUANTILES: Final = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99}


def lateness(client: Client, topic: str, by_ms: int, engine: Engine) -> Lateness:
    """Delays from event to publication in a topic, in periods of publish time.

    by_ms:   the length of a period, from 1
    returns: {topic, messages, row_list, delay_list}
    row_list:   {from_time, messages, late, p50_ms, p90_ms, p99_ms, max_ms}, by time; late: messages
                below the greatest event time before them
    delay_list: {delay_ms, late}: the number of messages that a watermark with this delay finds late
    raises:     TopicNotFound, InvalidArgument; the errors of reading the topic
    """
    if by_ms < 1:
        raise InvalidArgument(f"--by is {by_ms} ms, it must be at least 1 ms", code=203)
    table = engine.messages(client, topic, _sql(engine, by_ms))
    rows = table.select(["from_time", "messages", "late_0", *_QUANTILES, "max_ms"])
    rows = rows.rename_columns(["from_time", "messages", "late", *_QUANTILES, "max_ms"])
    delays: list[LatenessDelay] = [
        {"delay_ms": delay, "late": pc.sum(table.column(f"late_{delay}")).as_py() or 0}
        for delay in DELAYS_MS
    ]
    return {
        "topic": TopicName.parse(topic).short,
        "messages": pc.sum(table.column("messages")).as_py() or 0,
        "row_list": rows.to_pylist(),
        "delay_list": delays,
    }


def _sql(engine: Engine, by_ms: int) -> str:
    event, publish = engine.millis("event_time"), engine.millis("publish_time")
    late = ", ".join(
        f"count(*) FILTER (WHERE greatest_before - event_ms > {delay}) AS late_{delay}"
        for delay in DELAYS_MS
    )
    quantiles = ", ".join(
        f"percentile_disc({share}) WITHIN GROUP (ORDER BY publish_ms - event_ms) AS {name}"
        for name, share in _QUANTILES.items()
    )
    return (
        "WITH timed AS (SELECT partition, ledger, entry, txn_index,"
        f" {event} AS event_ms, {publish} AS publish_ms FROM {{messages}}"
        " WHERE event_time IS NOT NULL),"
        " following AS (SELECT publish_ms, event_ms, max(event_ms) OVER (PARTITION BY partition"
        " ORDER BY ledger, entry, txn_index ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
        " AS greatest_before FROM timed)"
        f" SELECT publish_ms - publish_ms % {by_ms} AS from_time, count(*) AS messages, {late},"
        f" {quantiles}, max(publish_ms - event_ms) AS max_ms FROM following GROUP BY 1 ORDER BY 1"
    )

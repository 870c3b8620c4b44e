"""Owns the figures of a report: a store's overview, its hanging transactions, messages by time."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import txlog
from txlog.base.ids import TopicName
from txlog.base.settings import DAY_MS, HOUR_MS, MINUTE_MS
from txlog.client.answers.integrity import verify
from txlog.client.answers.overview import problem
from txlog.client.client import Client
from txlog.clock import Clock
from txlog.engine.door.disk import PosixDisk
from txlog.engine.door.identity import read_identity
from txlog.errors import Corruption, InvalidArgument, TxlogError
from txlog.lake.sql.client_query import Query
from txlog.lake.sql.messages import name

if TYPE_CHECKING:
    from txlog.base.rows.store import (
        DamagedReport,
        DamagedStore,
        Problem,
        Report,
        ReportSpan,
        ReportThroughput,
    )


COLUMNS_MAX: Final = 240  # spans of time in a chart
# Hours, unless they are too few for a useful chart, or too many.
_STEPS_MS: Final = (
    1000, 10_000, MINUTE_MS, 10 * MINUTE_MS, HOUR_MS, 6 * HOUR_MS, DAY_MS, 7 * DAY_MS, 28 * DAY_MS,
    364 * DAY_MS,
)  # fmt: skip
_HOURS_MIN: Final = 6
_SPAN: Final = (
    "SELECT min(epoch_ms(visible_time)) AS first, max(epoch_ms(visible_time)) AS last"
    " FROM {} WHERE lsn <= $lsn::BIGINT AND visible_time >= make_timestamptz($since::BIGINT)"
)
_BY: Final = (
    "SELECT topic, epoch_ms(visible_time) - epoch_ms(visible_time) % $by::BIGINT AS from_time,"
    " count(*) AS messages, sum(size_bytes)::BIGINT AS size_bytes FROM {}"
    " WHERE lsn <= $lsn::BIGINT AND visible_time >= make_timestamptz($since::BIGINT)"
    " GROUP BY ALL ORDER BY ALL"
)


def figures(client: Client, since_ms: int | None = None, by_ms: int | None = None) -> Report:
    """All figures that a report draws, as plain values; instants are milliseconds.

    since_ms: count only messages that became visible at or after; None: all messages
    by_ms:    the length of a span of the throughput; None: an hour, or a length for this data
    returns:  the fields of Client.overview; txlog; hanging_list (of Admin.find_hanging);
              throughput: {by_ms, since, row_list: [{topic, from_time, messages, size_bytes}],
              left_out: partitions and topics that cannot be read}; problem_list has the reasons
    raises:   InvalidArgument; the errors of Client.overview
    cost:     reads two columns of all messages
    """
    if by_ms is not None and by_ms < 1000:
        raise InvalidArgument(f"a span of {by_ms} ms is shorter than a second", code=203)
    hanging = client.admin.find_hanging()
    overview = client.overview()
    throughput_, damaged = throughput(client, overview["lsn"], since_ms, by_ms)
    overview["problem_list"] += [row for row in damaged if row not in overview["problem_list"]]
    return {
        "txlog": txlog.__version__,
        **overview,
        "hanging_list": hanging,
        "throughput": throughput_,
    }


def figures_of_damaged(path: str, error: TxlogError, clock: Clock) -> DamagedReport:
    """The figures of a store that cannot be opened: its identity, and the findings of verify.

    error:   the reason
    returns: {txlog, time, store: {path, uuid, format, created_time, size_bytes}, files, frames,
             problem_list, hanging_list}; None in store: this cannot be read either
    cost:    reads every byte
    """
    findings = verify(path, clock=clock)
    store: DamagedStore = {
        "path": path,
        "size_bytes": findings["size_bytes"],
        "uuid": None,
        "format": None,
        "created_time": None,
    }
    with closing(PosixDisk(str(Path(path).absolute()), read_only=True)) as disk:
        try:
            identity = read_identity(disk)
        except TxlogError:
            pass  # verify reports it
        else:
            store["uuid"] = identity.uuid
            store["format"] = identity.format
            store["created_time"] = identity.created_ms
    problems: list[Problem] = [
        {"code": row["code"], "message": row["message"], "hint": row["hint"]}
        for row in findings["problem_list"]
    ]
    if not any(row["message"] == error.message for row in problems):
        problems.insert(0, problem(error))
    return {
        "txlog": txlog.__version__,
        "time": clock.now().wall_ms,
        "store": store,
        "files": findings["files"],
        "frames": findings["frames"],
        "problem_list": problems,
        "hanging_list": [],
    }


def throughput(
    client: Client, lsn: int, since_ms: int | None = None, by_ms: int | None = None
) -> tuple[ReportThroughput, list[Problem]]:
    """Committed messages by topic and the time they became visible, up to an LSN.

    returns: {by_ms, since, row_list: [{topic, from_time, messages, size_bytes}], left_out}, and
             damage, as rows of problem_list
    """
    parameters = {"lsn": str(lsn), "since": str((since_ms or 0) * 1000)}
    damaged: list[Problem] = []
    try:
        first, last, left_out = _span(client, "messages", parameters)
        by_ms = by_ms or step_ms(first, last)
        rows = _by(client, "messages", parameters, by_ms)
    except Corruption:
        rows, left_out, by_ms, damaged = _one_by_one(client, parameters, by_ms)
    return {"by_ms": by_ms, "since": since_ms, "row_list": rows, "left_out": left_out}, damaged


def _one_by_one(
    client: Client, parameters: Mapping[str, str], by_ms: int | None
) -> tuple[list[ReportSpan], list[str], int, list[Problem]]:
    """Rows, left-out names, span and damage of `throughput`, read topic by topic."""
    damaged: list[Problem] = []
    left_out: list[str] = []
    ends: dict[str, tuple[int, int]] = {}
    for row in client.topics():
        # a full name differs from all names of lists
        topic = name(TopicName.parse(row["topic"]).full)
        try:
            first, last, away = _span(client, topic, parameters)
        except Corruption as error:
            damaged.append(problem(error))
            left_out.append(row["topic"])
            continue
        left_out += away
        if first is not None and last is not None:
            ends[topic] = first, last
    least = min((first for first, _ in ends.values()), default=None)
    by_ms = by_ms or step_ms(least, max((last for _, last in ends.values()), default=None))
    rows = [row for topic in ends for row in _by(client, topic, parameters, by_ms)]
    return rows, left_out, by_ms, damaged


def _span(
    client: Client, relation: str, parameters: Mapping[str, str]
) -> tuple[int | None, int | None, list[str]]:
    """When the first and last messages became visible, in ms; the unavailable partitions."""
    with Query(client, _SPAN.format(relation), parameters, skip_unavailable=True) as query:
        (row,) = (row for batch in query.rows() for row in batch.to_pylist())
        return row["first"], row["last"], query.left_out


def _by(client: Client, relation: str, common: Mapping[str, str], by_ms: int) -> list[ReportSpan]:
    parameters = {**common, "by": str(by_ms)}
    with Query(client, _BY.format(relation), parameters, skip_unavailable=True) as query:
        return [row for batch in query.rows() for row in batch.to_pylist()]


def step_ms(first_ms: int | None, last_ms: int | None) -> int:
    """The length of a span in ms: an hour, but shorter for few hours and longer for too many."""
    if first_ms is None or last_ms is None:
        return HOUR_MS
    span_ms = last_ms - first_ms
    if span_ms >= _HOURS_MIN * HOUR_MS:
        fitting = [step for step in _STEPS_MS if step >= HOUR_MS and span_ms < COLUMNS_MAX * step]
    else:
        fitting = [step for step in _STEPS_MS if span_ms < COLUMNS_MAX // 2 * step]
    return fitting[0] if fitting else _STEPS_MS[-1]

"""The figures that `txlog report` draws, all as of one LSN.

Figures that another answer has are taken from it: topics, sizes and transactions from status and
list, ended transactions and durations from metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, TypeVar

from txlog.client.answers import (
    delayed as delayreport,
)
from txlog.client.answers import status, topics_and_txns
from txlog.client.answers import watermarks as watermarkhistory
from txlog.client.answers import (
    watermarks as watermarkreport,
)
from txlog.client.answers.lag import lag
from txlog.client.answers.metrics import families
from txlog.engine.door import relation as build
from txlog.engine.door.catalog import Topic
from txlog.engine.door.store import Store, View
from txlog.errors import Corruption, PartitionUnavailable, TxlogError

if TYPE_CHECKING:
    from txlog.base.rows.store import (
        DelayedOverview,
        Overview,
        Problem,
        TransactionDurations,
        TransactionsByState,
        TransactionsOverview,
        WatermarkOverview,
    )
    from txlog.base.rows.watermarks import WatermarkPartition, WatermarkRow


MOVES_MAX: Final = 2000  # rows that moved a watermark; the last ones of each topic
OPEN_MAX: Final = 20  # unfinished transactions; the oldest ones
_DURATIONS: Final = "txlog_txn_duration_seconds"
_REASONS: Final = "txlog_txn_aborted_by_reason_total"
R = TypeVar("R")
_COMMITTED: Final = "pulsar_txn_committed_total"


def overview(view: View, store: Store) -> Overview:
    """All figures from one view; instants are ms since 1970 UTC, sizes are in bytes.

    returns: {time, lsn, store, journal, checkpoint, txns, problem_list, topic_list,
             transactions: {state_list, duration_list, open_list}, subscription_list,
             delayed_list, watermark_list, segment_list}; unreadable parts are left out, and
             problem_list names them
    raises:  Corruption of files that status needs
    cost:    loads every fold; reads the index of delayed messages, and the rows that moved
             watermarks, at most MOVES_MAX for each topic; reads no message
    """
    lag_rows = lag(view, store)
    at_a_glance = status.status(view, store, lag_rows)
    topics = sorted(view.catalog.topics.values(), key=lambda topic: topic.name)
    last = {row["topic"]: row["last_publish_time"] for row in topics_and_txns.topics(view, store)}
    problems: list[Problem] = []

    def each(ask: Callable[[View, Store, Topic], list[R]]) -> list[R]:
        rows: list[R] = []
        for topic in topics:
            try:
                rows += ask(view, store, topic)
            except (Corruption, PartitionUnavailable) as error:
                problems.append(problem(error))
        return rows

    waiting, moved = each(delayed), each(watermarks)
    return {
        "time": store.clock.now().wall_ms,
        "lsn": view.lsn,
        "store": at_a_glance["store"],
        "journal": at_a_glance["journal"],
        "checkpoint": at_a_glance["checkpoint"],
        "txns": at_a_glance["txns"],
        "problem_list": [*at_a_glance["problem_list"], *problems],
        "topic_list": [
            {**row, "last_publish_time": last[row["topic"]]} for row in at_a_glance["topic_list"]
        ],
        "transactions": transactions(view, store),
        "subscription_list": lag_rows,
        "delayed_list": waiting,
        "watermark_list": moved,
        "segment_list": build.segments(view),
    }


def problem(error: TxlogError) -> Problem:
    """An error as a row of problem_list."""
    return {"code": error.kind, "message": error.message, "hint": error.hint}


def transactions(view: View, store: Store) -> TransactionsOverview:
    """How many transactions each state has, how long ended ones took, the oldest unfinished ones.

    returns: {state_list: [{state, reason, transactions}], duration_list: [{up_to_ms, committed,
             aborted}] with up_to_ms None in the last, open_list: rows of `txn list`}
    """
    samples = {family.name: family.samples for family in families(view, store)}
    unfinished = topics_and_txns.transactions(view, store, False, None)
    states = [_counted("committed", None, _sum(samples[_COMMITTED]))]
    states += [
        _counted("aborted", labels["reason"], int(count)) for _, labels, count in samples[_REASONS]
    ]
    by_state = Counter(row["state"] for row in unfinished)
    states += [
        _counted(state, None, by_state[state])
        for state in ("open", "prepared", "committing", "aborting")
    ]
    return {
        "state_list": [row for row in states if row["transactions"]],
        "duration_list": _durations(samples[_DURATIONS]),
        "open_list": unfinished[:OPEN_MAX],
    }


def _counted(state: str, reason: str | None, count: int) -> TransactionsByState:
    return {"state": state, "reason": reason, "transactions": count}


def _sum(samples: Iterable[tuple[str, dict[str, str], float]]) -> int:
    return int(sum(value for _, _, value in samples))


def _durations(samples: Iterable[tuple[str, dict[str, str], float]]) -> list[TransactionDurations]:
    """A row per bucket: transactions that took at most up_to_ms, and longer than the row before."""
    rows: dict[int | None, TransactionDurations] = {}
    committed = aborted = 0
    for suffix, labels, value in samples:
        if suffix != "_bucket":
            continue
        bound = labels["le"]
        up_to_ms = None if bound == "+Inf" else round(float(bound) * 1000)
        row = rows.setdefault(up_to_ms, {"up_to_ms": up_to_ms, "committed": 0, "aborted": 0})
        if labels["status"] == "committed":
            row["committed"], committed = int(value) - committed, int(value)
        else:
            row["aborted"], aborted = int(value) - aborted, int(value)
    return [*rows.values()]


def delayed(view: View, store: Store, topic: Topic) -> list[DelayedOverview]:
    """The rows of `histogram` in `delayed`, each with the topic; [] if no message is delayed."""
    scope = delayreport.Scope(topic, range(topic.partitions), store.clock.now().wall_ms, store.note)
    ahead = delayreport.ahead(view, scope, in_order=False)
    rows = delayreport.histogram(scope.now_ms, ahead)
    if not any(row["messages"] for row in rows):
        return []
    short = topics_and_txns.short(topic)
    return [{"topic": short, **row} for row in rows]


def watermarks(view: View, store: Store, topic: Topic) -> list[WatermarkOverview]:
    """The watermark of a topic and the rows that moved it; [] if no time was ever asserted.

    returns: one row {topic, status, watermark, lag_ms, holder, partition, move_list}; partition:
             holds the watermark back; move_list: the rows that moved the watermark there, oldest
             first: {time, producer, event_time, idle}, at most MOVES_MAX
    """
    indexes = range(topic.partitions)
    standings = [*watermarkreport.standings(view, topic, indexes)]
    watermark = watermarkreport.show(view, topic, standings, store.clock.now().wall_ms)
    if all(view.watermark(standing.number).state.status == "unknown" for standing in standings):
        return []
    partition = _holding(watermark["partition_list"])
    moves: list[WatermarkRow] = []
    if watermark["status"] != watermarkreport.UNAVAILABLE:
        moves = watermarkhistory.history(view, topic, [partition], limit=MOVES_MAX)
    return [
        {
            "topic": watermark["topic"],
            "status": watermark["status"],
            "watermark": watermark["watermark"],
            "lag_ms": watermark["lag_ms"],
            "holder": watermark["holder"],
            "partition": partition,
            "move_list": [
                {
                    "time": row["publish_time"],
                    "producer": row["producer"],
                    "event_time": row["event_time"],
                    "idle": row["marker_type"] == "idle",
                }
                for row in moves
                if row["producer"] is not None and not row["regressed"]
            ],
        }
    ]


def _holding(partitions: Iterable[WatermarkPartition]) -> int:
    """The first partition with the lowest watermark."""
    rows = [row for row in partitions if row["watermark"] is not None] or [*partitions]
    least = min(rows, key=lambda row: (row["watermark"] or 0, row["partition"]))
    return least["partition"]

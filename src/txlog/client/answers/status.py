"""The status of a store: its parts at a glance, and its problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from txlog.base.settings import SECOND_MS
from txlog.client.answers import alerts, watermarks
from txlog.client.answers.topics_and_txns import file_bytes, short, topics
from txlog.engine.door import catalog as catalogs
from txlog.engine.door import catalog as lookup
from txlog.engine.door import liveness as clock_trust
from txlog.engine.door.catalog import numbers
from txlog.engine.door.liveness import writer
from txlog.engine.door.segments import changes_of
from txlog.engine.door.store import Store, View
from txlog.engine.door.transactions import unavailable_error

if TYPE_CHECKING:
    from txlog.base.rows.consuming import LagRow
    from txlog.base.rows.store import Problem, Status, TopicStatus, WriterStatus


def status(view: View, store: Store, rows: Sequence[LagRow] | None = None) -> Status:
    """The store at a glance; rows: of `lag`, if the caller has them."""
    now = store.clock.now()
    counts = Counter[str]()
    oldest: int | None = None
    for number in view.known_coordinators():
        for txn in view.coordinator(number).unfinished.values():
            counts[txn.status.lower()] += 1
            counts["overdue"] += lookup.is_overdue(txn, now)
            age = now.wall_ms - txn.wall_ms
            oldest = age if oldest is None else max(oldest, age)
    frames, size = view.lsn - view.manifest.cut_lsn, view.journal.end
    segments = file_bytes(view, list(view.catalog.owners))
    logs = changes_of(view.manifest).refs
    log_bytes = sum(ref.bytes for ref in logs)
    return {
        "store": {
            "path": store.disk.description,
            "uuid": store.identity.uuid,
            "format": store.identity.format,
            "size_bytes": size + segments + log_bytes,
            "durability": store.durability,
            "created_time": store.identity.created_ms,
        },
        "journal": {
            "lsn": view.lsn,
            "durable_lsn": view.journal.durable_lsn,
            "frames": frames,
            "size_bytes": size,
        },
        "checkpoint": {
            "generation": view.manifest.generation,
            "lsn": view.manifest.cut_lsn,
            "written_time": view.manifest.time_ms or None,
        },
        "change_logs": {
            "files": len(logs),
            "rows": sum(ref.rows for ref in logs),
            "size_bytes": log_bytes,
        },
        "writer": cast("WriterStatus | None", writer(store.disk)),
        "txns": {
            "open": counts["open"],
            "overdue": counts["overdue"],
            "prepared": counts["prepared"],
            "committing": counts["committing"],
            "aborting": counts["aborting"],
            "oldest_age_ms": oldest,
        },
        "topic_list": _topic_status(view, store),
        "problem_list": [
            *(_recovery(line) for line in store.reports),
            *(_problem(view, number) for number in sorted(view.catalog.unavailable)),
            *(loss(view, record) for record in view.catalog.losses),
            *clock_problem(view, store),
            *alerts.problems(view, store, rows),
        ],
    }


def _recovery(line: str) -> Problem:
    return {"code": "recovery", "message": line, "hint": None}


def _topic_status(view: View, store: Store) -> list[TopicStatus]:
    records = sorted(view.catalog.topics.values(), key=lambda topic: topic.name)
    return [
        {
            "topic": row["topic"],
            "partitions": row["partitions"],
            "messages": row["messages"],
            "size_bytes": row["size_bytes"],
            "open_txns": row["open_txns"],
            "hidden_messages": sum(
                buffered.count
                for number in numbers(record)
                for by_sequence in view.buffer(number).held.values()
                for buffered in by_sequence.values()
            ),
            "delayed": row["delayed"],
            "backlog": row["backlog"],
            "watermark": watermarks.at_end(view, record),
        }
        for row, record in zip(topics(view, store), records, strict=True)
    ]


def clock_problem(view: View, store: Store) -> list[Problem]:
    """A list with one problem if the store does not trust the wall clock, else empty."""
    verdict = clock_trust.judge(view, store.settings, store.clock.now())
    if verdict.is_believed:
        return []
    ahead = f"the clock is {verdict.ahead_ms // SECOND_MS:,} s ahead of what was expected"
    if verdict.is_set:
        why = f"{ahead}: it was set; nothing expires or is delivered early by it"
    else:
        why = (
            f"{ahead} since the reboot; nothing expires by it for {verdict.left_ms // SECOND_MS} s"
        )
    return [
        {
            "code": "clock",
            "message": why,
            "hint": "set the clock, or `txlog admin accept-clock` if it is right",
        }
    ]


def loss(view: View, record: catalogs.Loss) -> Problem:
    """A recorded loss of messages, which a repair accepted: {code, message, hint}."""
    where = f"LSN {record.first} to {record.last}"
    if record.ledger:
        where = f"ledger {record.ledger}, entries {record.first} to {record.last}"
        if catalogs.has_partition(view.catalog, record.partition):
            topic = catalogs.topic_of(view.catalog, record.partition)
            where = f"{short(topic)}/{catalogs.index_of(topic, record.partition)}, {where}"
    return {
        "code": "loss",
        "message": f"{record.messages} messages were accepted as lost in {where}: {record.reason}",
        "hint": None,
    }


def _problem(view: View, number: int) -> Problem:
    record = catalogs.topic_of(view.catalog, number)
    error = unavailable_error(view.catalog, record, number)
    return {"code": "unavailable", "message": error.message, "hint": error.hint}

"""The logs of changes in a view: the files of the checkpoint, and the frames after it.

    transaction_key_log, cursor_log, catalog_log   all rows, as SQL relations
    recent_of_key, recent_of_subscription          the newest rows of one, for inspect

If no checkpoint has begun a log yet, or the settings switch it off, it has a row for each state at
the checkpoint, and the changes after it. Rows of deleted objects are left out.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from txlog.base.ids import TopicName
from txlog.base.startup import compute as pc
from txlog.client.answers.lists import frames_behind
from txlog.engine.door.catalog import subscription as find_subscription
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.facts import decode_ops
from txlog.engine.door.history import (
    SCHEMAS,
    CollectedChanges,
    name_of,
    of_living,
    read,
    snapshot,
    tables,
)
from txlog.engine.door.journal import JournalMoved, RawFrame
from txlog.engine.door.segments import changes_of
from txlog.engine.door.store import View
from txlog.errors import MissingFile

SHOWN_MAX: Final = 10
_SHOWN: Final = {
    "key": ("lsn", "time", "change", "epoch", "txn", "open_txn"),
    "cursor": ("lsn", "time", "change", "partition", "messages", "txn"),
}  # fmt: skip


def transaction_key_log(view: View) -> pa.Table:
    """Every change of a transaction key, also of deleted keys. Raises Corruption, MissingFile."""
    return log(view, "key")


def cursor_log(view: View) -> pa.Table:
    """Every change of a cursor that still exists. Raises Corruption, MissingFile."""
    return log(view, "cursor")


def catalog_log(view: View) -> pa.Table:
    """Every change of topics, subscriptions, policies, settings. Raises as the others."""
    return log(view, "catalog")


def log(view: View, kind: str) -> pa.Table:
    """The rows of a log up to the view's LSN, by LSN. Cost: reads all of it."""
    manifest = view.manifest
    logs = changes_of(manifest)
    pieces = [read(view.disk, ref) for ref in logs.refs if ref.kind == kind]
    if not logs.begun:
        now = snapshot(view.disk, manifest.dumps, manifest.cut_lsn, manifest.time_ms, [kind])
        pieces.append(now[kind])
    collected = CollectedChanges()
    for raw in _frames(view):
        for op in decode_ops(raw.ops, lsn=raw.lsn):
            collected.take(raw.lsn, raw.time_ms, op)
    changed = [
        (cell, name, view.dump(("cursor", *cell)))
        for cell in (sorted(collected.cursors) if kind == "cursor" else ())
        if (name := name_of(view.catalog, cell)) is not None
    ]
    pieces.append(tables(view.disk, manifest, collected, changed, [kind])[kind])
    rows = pa.concat_tables([SCHEMAS[kind].empty_table(), *pieces])
    if kind == "cursor":
        catalog = view.catalog
        rows = of_living(rows, lambda cell: name_of(catalog, cell) is not None)
    return rows.take(pc.sort_indices(rows.column("lsn")))


def _frames(view: View) -> list[RawFrame]:
    try:
        return frames_behind(view, view.manifest)
    except JournalMoved as error:
        name = f"the journal after manifest {view.manifest.generation}"
        raise MissingFile(f"{name} is gone", path="journal") from error


def recent_of_key(view: View, coordinator: int, owner_uid: int, key: str) -> list[dict[str, Any]]:
    """The newest changes of a transaction key, newest first."""
    rows = log(view, "key")
    conditions = (("coordinator", coordinator), ("owner_uid", owner_uid), ("transaction_key", key))
    return _recent("key", rows, conditions)


def recent_of_subscription(view: View, topic: str, subscription: str) -> list[dict[str, Any]]:
    """The newest changes of the cursors of a subscription, newest first."""
    record = find_subscription(view, find_topic(view, TopicName.parse(topic)), subscription)
    rows = log(view, "cursor")  # a row has the name of the topic at that time
    return _recent("cursor", rows, (("subscription_number", record.number),))


def _recent(
    kind: str, rows: pa.Table, wanted: tuple[tuple[str, object], ...]
) -> list[dict[str, Any]]:
    for name, value in wanted:
        rows = rows.filter(
            pc.equal(rows.column(name), pa.scalar(value, rows.schema.field(name).type))
        )
    rows = rows.slice(max(0, rows.num_rows - SHOWN_MAX)).select(_SHOWN[kind])
    at = rows.schema.get_field_index("time")
    rows = rows.set_column(at, "time", rows.column("time").cast(pa.int64()))
    items: list[dict[str, Any]] = rows.to_pylist()
    return items[::-1]

"""The bytes of topics and of the other parts of a store on the disk, by the names of files.

The walk counts every file below the store's directory, even if no manifest names it, so the total
equals `du -b`. Files that were moved outside the store are counted apart, from the manifest.
Source: docs/format 2, "Names".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from txlog.client.answers.topics_and_txns import short
from txlog.engine.door.catalog import Topic, directory_of, numbers
from txlog.engine.door.disk import is_far, usage
from txlog.engine.door.store import Store, View

if TYPE_CHECKING:
    from txlog.base.rows.space import DiskUsage, DiskUsageRow

_STORE_PARTS: Final = {
    "journal": "journal", "manifest": "checkpoints", "state": "checkpoints", "system": "changes",
    "consumers": "locks", "pins": "locks", "lock": "locks", "flush.lock": "locks",
    "maintenance.lock": "locks", "pins.lock": "locks", "reserve": "reserve",
    "quarantine": "quarantine",
}  # fmt: skip
# Directories below a partition's directory, and the field for the bytes of their files.
_PARTS: Final = {
    "_txnlog": "sidecar_bytes", "_delayed": "index_bytes", "_compacted": "compacted_bytes",
    "_cursors": "changes_bytes",
}  # fmt: skip


def disk_usage(view: View, store: Store) -> DiskUsage:
    """The bytes of a store by topic and part, largest first. Cost: reads every directory."""
    rows: dict[tuple[str, str], DiskUsageRow] = {}
    names = {directory_of(topic): short(topic) for topic in view.catalog.topics.values()}
    for path, is_directory, size in usage(store.disk.description):
        kind, name, field = _place(path, is_directory, names)
        row = rows.setdefault((kind, name), _empty(kind, name))
        row["size_bytes"] += size
        row["files"] += not is_directory
        if field:
            row[field] += size  # type: ignore[literal-required]
    for topic in view.catalog.topics.values():
        name = short(topic)
        row = rows.setdefault(("topic", name), _empty("topic", name))
        row["offloaded_bytes"] = sum(
            ref.bytes
            for ledger in _ledgers(view, topic)
            for ref in view.files.of(ledger)
            if is_far(ref.path)
        )
    ordered = sorted(rows.values(), key=lambda row: (-row["size_bytes"], row["kind"], row["name"]))
    return {
        "path": store.disk.description,
        "size_bytes": sum(row["size_bytes"] for row in ordered),
        "offloaded_bytes": sum(row["offloaded_bytes"] for row in ordered),
        "usage_list": ordered,
    }


def _place(path: str, is_directory: bool, names: Mapping[str, str]) -> tuple[str, str, str]:
    """(topic or store, name, field) of a path; no field: it is neither, or of the whole row.

    names: of the topics, by their directories
    """
    first, *deeper = path.split("/")
    if first != "topics" or len(deeper) < 3:
        return "store", _STORE_PARTS.get(first, "other"), ""
    name = names.get("/".join((first, *deeper[:3])))
    if name is None:  # its files go when no reader can need them
        return "store", "deleted", ""
    inside = deeper[3:]
    if is_directory or len(inside) < 2:
        return "topic", name, "other_bytes"
    if len(inside) > 2:
        return "topic", name, _PARTS.get(inside[1], "other_bytes")
    is_ledger = inside[1].startswith(("ledger-", "_ledger-"))
    return "topic", name, "messages_bytes" if is_ledger else "other_bytes"


def _empty(kind: str, name: str) -> DiskUsageRow:
    return {
        "name": name,
        "kind": kind,
        "size_bytes": 0,
        "messages_bytes": 0,
        "sidecar_bytes": 0,
        "index_bytes": 0,
        "compacted_bytes": 0,
        "changes_bytes": 0,
        "other_bytes": 0,
        "files": 0,
        "offloaded_bytes": 0,
    }


def _ledgers(view: View, topic: Topic) -> list[int]:
    return [ledger for part in _by_part(view, topic).values() for ledger in part]


def _by_part(view: View, topic: Topic) -> dict[str, list[int]]:
    """The ledgers of a topic by the part that their files are."""
    parts: dict[str, list[int]] = {"messages": [], "sidecar": [], "compacted": []}
    for number in numbers(topic):
        state = view.topic(number)
        parts["messages"] += [end.ledger for end in state.ledgers]
        parts["sidecar"] += [end.ledger for end in view.buffer(number).ledgers]
        parts["compacted"] += [] if state.compaction is None else state.compaction.ledgers
    return parts


def topic_file_bytes(view: View, topic: Topic) -> dict[str, int]:
    """Bytes of the files that a topic has now, by part, offloaded ones too; reads no directory."""
    sizes = {
        part: sum(ref.bytes for ledger in ledgers for ref in view.files.of(ledger))
        for part, ledgers in _by_part(view, topic).items()
    }
    buckets = [bucket for number in numbers(topic) for bucket in view.delayed(number).buckets]
    return {**sizes, "index": sum(bucket.file.bytes for bucket in buckets)}

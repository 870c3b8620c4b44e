"""Damaged files: the first unreadable row of a ledger, and which messages readers still get.

Readers of a quarantined partition get the messages before the damage and none after it, readable or
not: markers of waiting transactions will be placed there (spec/transactions 11).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from txlog.base.ids import TopicName
from txlog.base.suggest import command_line
from txlog.engine.folds.catalog import index_of, topic_of
from txlog.engine.model.ops import Mark
from txlog.engine.storage.segment import FileRef
from txlog.engine.view import Request, View
from txlog.errors import Corruption


def partition_files(view: View, partition: int) -> list[FileRef]:
    """The live files of a partition and its sidecar."""
    ledgers = [end.ledger for end in view.topic(partition).ledgers]
    ledgers += [end.ledger for end in view.buffer(partition).ledgers]
    return [ref for ledger in ledgers for ref in view.files.of(ledger)]


def first_bad_row(view: View, ledger: int) -> int | None:
    """The first row of a ledger's files that cannot be read; None: all can.

    cost: reads the ledger, row group by row group, up to the damage
    """
    for ref in view.files.of(ledger):
        first = 0 if ref.form == "sealed" else ref.first
        if ref.form == "chunks":
            try:
                view.rows([(ledger, 0, 1)])
            except Corruption:
                return 0
            continue
        starts = [0, *accumulate(group[0] for group in ref.groups)]
        for start, stop in pairwise(starts):
            try:
                view.files.reader(ref).rows(start, stop)
            except Corruption:
                return first + start
    return None


def find_damage(view: View, requests: Sequence[Request]) -> tuple[int, int] | None:
    """(ledger, first bad row) of the first damaged ledger among the requests."""
    for ledger in dict.fromkeys(request[0] for request in requests):
        row = first_bad_row(view, ledger)
        if row is not None:
            return ledger, row
    return None


def wall(view: View, partition: int, ledger: int, row: int) -> Mark:
    """The first position that readers do not get when `row` is the first bad row of a ledger."""
    if view.catalog.owners[ledger][1] == "p":
        return (ledger, row, 0)
    for number, markers in sorted(view.buffer(partition).markers.items()):
        for marker in markers:
            if any(at == ledger and start + rows > row for at, start, rows, _ in marker.ranges):
                return (number, marker.entry, 0)
    last = view.topic(partition).ledgers[-1]
    return (last.ledger, last.entries, 0)  # only invisible rows are bad


def quarantine_wall(view: View, partition: int) -> Mark | None:
    """The first position that readers of a quarantined partition do not get; None for any other."""
    why = view.catalog.unavailable.get(partition)
    if why is None or why.reason != "damage":
        return None
    return wall(view, partition, why.ledger, why.row)


def damage_error(view: View, partition: int) -> Corruption:
    """The error after the last good row of a quarantined partition."""
    why, topic = view.catalog.unavailable[partition], topic_of(view.catalog, partition)
    name, index = TopicName.parse(topic.name).short, index_of(topic, partition)
    paths = [ref.path for ref in view.files.of(why.ledger) if why.row < ref.first + ref.rows]
    path = paths[0] if paths else f"ledger {why.ledger}"
    return Corruption(
        f"{name}/{index} is quarantined: {path} is damaged from row {why.row} on",
        hint="restore the file from a copy of the store, then "
        + command_line("admin online", f"{name}/{index}"),
        path=path,
        topic=name,
        partition=index,
        ledger=why.ledger,
    )

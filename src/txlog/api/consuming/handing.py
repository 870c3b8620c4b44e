"""Owns the rows of what was leased: read behind the frame, given back where they are damaged."""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from txlog.api.consuming.membership import Membership
from txlog.engine.decide.consuming.lease import Handed, Part, give_back_parts
from txlog.engine.folds import catalog as catalogs
from txlog.engine.folds.buffer import find_marker
from txlog.engine.folds.catalog import Topic
from txlog.engine.model.ops import Run
from txlog.engine.plan.ack_sets import is_trimmed
from txlog.engine.plan.damage import find_damage
from txlog.engine.plan.reading.dispatch import NO_MESSAGES, Piece, received, requests_of
from txlog.engine.store.store import Store
from txlog.engine.upkeep.checkpoint.quarantine import record_damage
from txlog.engine.view.view import View
from txlog.errors import Corruption
from txlog.ids import TopicName


def read_handed(
    store: Store, topic: Topic, member: Membership, handed: Handed
) -> tuple[pa.Table, list[Run]]:
    """The rows of a lease as RECEIVED, in order, and their ids as runs.

    Of a damaged partition nothing more goes out: it is recorded, what was leased there goes back,
    and the error is raised unless there are rows of other partitions to hand out first.
    """
    tables: list[pa.Table] = []
    runs: list[Run] = []
    for at, part in enumerate(handed.parts):
        if not part.pieces:
            continue
        try:
            if part.error is not None:
                raise part.error
            look = partial(_rows, topic=topic, subscription=member.subscription, part=part)
            tables.append(store.read(look, fresh=False))
            runs += part.runs
        except BaseException as error:
            _give_back(store, member, handed.parts[at:])
            if not isinstance(error, Corruption):
                raise
            _record(store, part)
            if not tables:
                raise
            break
    store.tally.handed_out += sum(table.num_rows for table in tables)
    return (pa.concat_tables(tables) if tables else NO_MESSAGES), runs


def _give_back(store: Store, member: Membership, parts: list[Part]) -> None:
    store.write(lambda view, now: give_back_parts(view, member.subscription, member.number, parts))


def _rows(view: View, *, topic: Topic, subscription: int, part: Part) -> pa.Table:
    number = part.partition
    counts = view.cursor(subscription, number).redelivered
    pieces = _current(view, number, part.pieces)
    table = received(
        view, TopicName.parse(topic.name).short, catalogs.index_of(topic, number), number, pieces,
        counts,
    )  # fmt: skip
    if part.takes is None or sum(map(len, part.takes)) == sum(one.rows for one in part.pieces):
        return table
    rows: list[int] = []
    start = 0
    gone = len(part.pieces) - len(pieces)  # trimmed ledgers go from the front
    for piece, offsets in zip(pieces, part.takes[gone:], strict=True):
        rows += [start + offset for offset in offsets]
        start += piece.rows
    return table.take(pa.array(rows, pa.int64()))


def _current(view: View, number: int, pieces: list[Piece]) -> list[Piece]:
    """The pieces as the view has them now: a marker's rows may lie elsewhere, or be trimmed."""
    out: list[Piece] = []
    for piece in pieces:
        if is_trimmed(view, number, piece.ledger):
            continue
        if piece.marker is not None:
            marker = find_marker(view.buffer(number), piece.ledger, piece.entry)
            if marker is not piece.marker:
                piece = Piece(piece.ledger, piece.entry, piece.rows, piece.index, marker)
        out.append(piece)
    return out


def _record(store: Store, part: Part) -> None:
    def look(view: View) -> tuple[int, int] | None:
        return find_damage(view, requests_of(_current(view, part.partition, part.pieces)))

    found = store.read(look, fresh=False)
    if found is not None:
        record_damage(store, part.partition, *found)

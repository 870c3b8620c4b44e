"""Arrow tables with a row for each acknowledgement or frame: acks, pending_acks, frames.

A row of acknowledgements is an entry of a cursor. A row with the id of a marker means all messages
of its transaction. Everything up to the mark-delete is one row, with `cumulative`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from txlog.base.ids import TopicName, TxnId
from txlog.base.startup import compute as pc
from txlog.engine.door.catalog import number_of
from txlog.engine.door.consuming import BEFORE_ALL, Cursor
from txlog.engine.door.facts import INSTANT, Appended, BufferAppended, Mark, Run, decode_ops
from txlog.engine.door.journal import Journal, JournalMoved, RawFrame
from txlog.engine.door.segments import Manifest, generations, read_manifest
from txlog.engine.door.store import View
from txlog.errors import Corruption, MissingFile

_ID: Final = (
    ("message_id", pa.string()), ("ledger", pa.int64()), ("entry", pa.int64()),
    ("txn_index", pa.int32()), ("cumulative", pa.bool_()),
)  # fmt: skip
_OF: Final = (("topic", pa.string()), ("subscription", pa.string()), ("partition", pa.int32()))
ACKS: Final = pa.schema([*_OF, *_ID])
PENDING_ACKS: Final = pa.schema([*_OF, *_ID, ("txn", pa.string()), ("since", INSTANT)])
FRAMES: Final = pa.schema(
    [
        ("lsn", pa.int64()),
        ("time", INSTANT),
        ("ops", pa.list_(pa.string())),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("durable", pa.bool_()),
        ("journal", pa.string()),
        ("offset", pa.int64()),
    ]
)
_NO_BOOT: Final = ""  # it reads frames up to a known LSN, so the boot that wrote them is irrelevant


def acks(view: View) -> pa.Table:
    """The acknowledgements of all subscriptions, with the columns of ACKS. Cost: O(entries)."""
    tables = [ACKS.empty_table()]
    for of, cursor in _cursors(view):
        if cursor.mark_delete > BEFORE_ALL:
            tables.append(_rows(ACKS, of, _of_mark(cursor.mark_delete)))
        for ledger, bitmap in cursor.acked.entries.items():
            entries = pa.array(bitmap.to_array(), pa.int64())
            tables.append(_rows(ACKS, of, _ids(ledger, entries)))
        for (ledger, entry), inner in cursor.acked.inner.items():
            tables.append(_rows(ACKS, of, _ids(ledger, entry, pa.array(inner.to_array()))))
    return pa.concat_tables(tables)


def pending_acks(view: View) -> pa.Table:
    """The acknowledgements of open transactions, as PENDING_ACKS; since: when each began."""
    tables = [PENDING_ACKS.empty_table()]
    for of, cursor in _cursors(view):
        for (coordinator, sequence), pending in sorted(cursor.pending.items()):
            txn = view.coordinator(coordinator).unfinished.get(sequence)
            columns = {
                **of,
                "txn": str(TxnId(coordinator, sequence)),
                "since": None if txn is None else txn.wall_ms,
            }
            for run in pending.runs:
                tables.append(_rows(PENDING_ACKS, columns, _of_run(run)))
            if pending.cumulative is not None:
                tables.append(_rows(PENDING_ACKS, columns, _of_mark(pending.cumulative)))
    return pa.concat_tables(tables)


def frames(view: View) -> pa.Table:
    """The frames that are still in journals, as FRAMES.

    ops: their names; rows: messages in the frame; bytes: of the whole frame
    cost: reads these journals; a checkpoint leaves the frames since the previous checkpoint
    """
    return frame_rows(kept_frames(view), view.journal.durable_lsn)


def frame_rows(found: list[RawFrame], durable_lsn: int | None) -> pa.Table:
    """Frames with the columns of FRAMES; durable_lsn: None: it is unknown which are durable."""
    decoded = [decode_ops(raw.ops, lsn=raw.lsn) for raw in found]
    rows = [
        sum(op.rows for op in ops if isinstance(op, Appended | BufferAppended)) for ops in decoded
    ]
    columns: list[list[object]] = [
        [raw.lsn for raw in found],
        [raw.time_ms for raw in found],
        [[type(op).__name__ for op in ops] for ops in decoded],
        [*rows],
        [raw.total_bytes for raw in found],
        [None if durable_lsn is None else raw.lsn <= durable_lsn for raw in found],
        [raw.journal.path for raw in found],
        [raw.offset for raw in found],
    ]
    arrays = [pa.array(values, f.type) for values, f in zip(columns, FRAMES, strict=True)]
    return pa.Table.from_arrays(arrays, schema=FRAMES)


def kept_frames(view: View) -> list[RawFrame]:
    """Frames up to the view's LSN, from the oldest checkpoint whose journal still exists.

    raises: MissingFile if later checkpoints have removed the journal of the view
    """
    for generation in generations(view.disk):
        if generation >= view.manifest.generation:
            break
        try:
            return frames_behind(view, read_manifest(view.disk, generation, view.salt))
        except (JournalMoved, MissingFile, Corruption):
            continue  # a checkpoint is removing it
    try:
        return frames_behind(view, view.manifest)
    except JournalMoved as error:
        name = f"journal after manifest {view.manifest.generation}"
        raise MissingFile(f"the {name} is gone", path="journal") from error


def frames_behind(view: View, manifest: Manifest) -> list[RawFrame]:
    """Frames after a checkpoint, up to the view's LSN; raises JournalMoved."""
    journal = Journal(view.disk, view.salt, _NO_BOOT)
    try:
        journal.open_at(manifest.cut_lsn, manifest.chain_crc)
        return journal.read_until(view.lsn)
    finally:
        journal.close()


def _cursors(view: View) -> Iterator[tuple[dict[str, object], Cursor]]:
    """Every cursor, with the first columns of its rows."""
    for topic in sorted(view.catalog.topics.values(), key=lambda topic: topic.name):
        short = TopicName.parse(topic.name).short
        for subscription in topic.subscriptions:
            record = view.catalog.subscriptions[subscription]
            for index in range(topic.partitions):
                of = {"topic": short, "subscription": record.name, "partition": index}
                yield of, view.cursor(subscription, number_of(topic, index))


def _of_mark(mark: Mark) -> dict[str, object]:
    ledger, entry, index = mark
    indexes = pa.array([index or None], pa.int32())
    return {**_ids(ledger, pa.array([entry], pa.int64()), indexes), "cumulative": True}


def _of_run(run: Run) -> dict[str, object]:
    ledger, first, last, index_first, index_last = run
    if index_first:
        return _ids(ledger, first, pa.arange(index_first, index_last + 1))
    return _ids(ledger, pa.arange(first, last + 1))


def _ids(
    ledger: int, entries: pa.Array | int, indexes: pa.Array | None = None
) -> dict[str, object]:
    """Columns of ids in one ledger: entries, or messages of one marker."""
    if isinstance(entries, int):
        assert indexes is not None
        entries = pa.repeat(pa.scalar(entries, pa.int64()), len(indexes))
    parts = [entries] if indexes is None or indexes.null_count else [entries, indexes]
    text = pc.binary_join_element_wise(
        pa.scalar(str(ledger)), *(part.cast(pa.string()) for part in parts), ":"
    )
    return {
        "message_id": text,
        "ledger": ledger,
        "entry": entries,
        "cumulative": False,
        "txn_index": None if indexes is None else indexes.cast(pa.int32()),
    }


def _rows(schema: pa.Schema, of: dict[str, object], ids: dict[str, object]) -> pa.Table:
    """A table from columns; a single value is repeated for all rows."""
    values = {**of, **ids}
    text = values["message_id"]
    assert isinstance(text, pa.Array)
    columns: Iterable[pa.Array] = (
        value if isinstance(value, pa.Array) else pa.repeat(pa.scalar(value, field.type), len(text))
        for field, value in ((field, values[field.name]) for field in schema)
    )
    return pa.Table.from_arrays(list(columns), schema=schema)

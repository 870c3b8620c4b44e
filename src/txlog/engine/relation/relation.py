"""Owns Relation: the files and rows with the committed messages of a topic at one LSN.

It is a plain value. The committed messages of a partition are its data rows and the sidecar rows of
transactions with a marker; so a relation has these sources, each with one rule:

    direct   sealed files of partitions, clean ones of sidecars     kind = 0
    unclean  sealed files of sidecars that hold other rows too      kind = 0, joined with markers
    open     parts, of both                                         as direct, as unclean
    large    large messages without their values                    as they are
    tail     rows that are only in journal frames                   as they are
    frames   the same, to be read a piece at a time                 as they are

A topic that was compacted has another source, without new messages: `compacted`, the newest message
of each key up to some position, whose log may have been trimmed since.

With isolation `uncommitted` there is one more, `hidden`: messages that no marker makes visible.
With `everything`, rows have the storage columns, and rows that are not messages are included.

A message has the same ledger, entry, visible time and LSN in every source; a message of a
transaction has those of its marker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from txlog.engine.folds.catalog import SchemaVersion
from txlog.engine.model.schema import INSTANT, PROPERTY_MAP
from txlog.engine.plan.records import schema_in
from txlog.engine.relation.frames import RowsInFrames
from txlog.engine.relation.spans import RelationFilter, Span
from txlog.engine.storage.remote import check_named, is_far
from txlog.engine.storage.segment import FileRef

# A committed message without derived columns: its topic, id as text, and size.
COMMITTED: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("ledger", pa.int64()),
        ("entry", pa.int64()),
        ("txn_index", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("properties", PROPERTY_MAP),
        ("publish_time", INSTANT),
        ("event_time", INSTANT),
        ("deliver_at", INSTANT),
        ("visible_time", INSTANT),
        ("producer", pa.string()),
        ("sequence_id", pa.int64()),
        ("lsn", pa.int64()),
        ("schema_version", pa.int32()),
    ]
)
LARGE: Final = pa.schema(
    [f for f in COMMITTED if f.name != "value"]
    + [("path", pa.string()), ("bytes", pa.int64()), ("crc", pa.int64())]
)
MARKERS: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("txn_most", pa.int64()),
        ("txn_least", pa.int64()),
        ("marker_ledger", pa.int64()),
        ("marker_entry", pa.int64()),
        ("rows", pa.int64()),
        ("visible_time", INSTANT),
        ("lsn", pa.int64()),
        ("first_lsn", pa.int64()),
    ]
)
ALL: Final = RelationFilter()


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file of a partition (role p), of its sidecar (s), or of its compacted rows (c).

    within: only these positions of a file of `direct` or `open` are selected
    """

    partition: int
    role: str
    ref: FileRef
    within: Span | None = None


def source_of(partition: int, role: str, ref: FileRef, within: Span | None = None) -> FileSource:
    """A source, for programs and workers that do not know the store's places.

    raises: DiskFailed: this user has not named the place of the file
    """
    if is_far(ref.path):
        check_named(ref.path)
    return FileSource(partition, role, ref, within)


@dataclass(frozen=True, slots=True)
class Relation:
    """The committed messages of a topic at an LSN; paths are below the store.

    first_ledger: by partition, the first ledger that is not trimmed; 0 where the partition is left
        out
    unavailable:  partitions that are left out
    markers:      of transactions with rows in `unclean` or `open`; no frame below first_lsn has
                  such a row
    spans: by partition the selected positions, if not all; rows elsewhere are in no source, except
                  rows of a file with `within`, and messages of a marker that a span cuts
    hidden:       messages of open and aborted transactions, as hidden.HIDDEN; none with isolation
                  committed
    schemas:      every schema that the topic has or had; with one, messages have a column `record`
    everything:   tail, large and hidden have the columns hidden.STORED; tail and hidden have
                  rows of all kinds
    frames:       rows that are not in tail, with the same columns; its journal files are open
    compacted: files of compacted rows, if requested; compacted_rows: the rows of such files that
                  SQL cannot read
    """

    store: str
    generation: int
    lsn: int
    topic: str
    partitions: int
    first_ledger: list[int]
    unavailable: list[int]
    direct: list[FileSource]
    unclean: list[FileSource]
    open: list[FileSource]
    large_files: list[FileSource]
    large: pa.Table
    markers: pa.Table
    tail: pa.Table
    spans: dict[int, Span]
    hidden: pa.Table
    everything: bool
    compacted: Sequence[FileSource] = ()
    compacted_rows: pa.Table | None = None
    schemas: Sequence[SchemaVersion] = ()
    frames: RowsInFrames | None = None

    @property
    def record(self) -> int:
        """The version whose type `record` has; 0: there is no such column."""
        newest = self.schemas[-1] if self.schemas else None
        return 0 if newest is None or newest.deleted else newest.version

    @property
    def record_type(self) -> pa.StructType:
        """The type of `record`, which must exist."""
        kind: pa.StructType = schema_in(self.schemas[self.record - 1]).arrow
        return kind


@dataclass(frozen=True, slots=True)
class RelationContent:
    """A relation, and the rows of its open parts, if requested, from the same view."""

    relation: Relation
    name: str  # tenant/namespace/topic
    partition_parts: pa.Table
    sidecar_parts: pa.Table


def adopted_lsns(sources: Sequence[FileSource]) -> dict[int, int]:
    """The LSN of the ledgers whose rows do not have their own."""
    adopted = (source.ref for source in sources if source.ref.form == "adopted")
    return {ref.ledger: ref.lsn_first for ref in adopted}

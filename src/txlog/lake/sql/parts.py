"""Owns Parts, InFrames, InJournal: rows of open parts and in frames, read as they are asked for.

To DuckDB it is a dataset of pyarrow: it asks for a scanner, and says which columns and which rows
a query wants. Files that have none of them are not opened, and those that have are read one after
the other, every byte checked, so what is in memory is a piece of a part, however much there is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs

from txlog.engine.door.disk import File
from txlog.engine.door.facts import MESSAGE
from txlog.engine.door.relation import (
    ROWS,
    Content,
    Frames,
    Relation,
    Source,
    StoredFrames,
    bounded,
)
from txlog.engine.door.segments import RECORD, SegmentReader, piece_rows
from txlog.engine.door.topics import records_as
from txlog.errors import TxlogError
from txlog.lake.sql.duck import BATCH_ROWS, Session

# What DuckDB has for instants, so that those it has no room for can be without end (`bounded`).
_INSTANT: Final = pa.timestamp("us", "UTC")
_SCHEMA: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("ledger", pa.int64()),
        ("topic", pa.string()),
        *((one.name, _INSTANT if pa.types.is_timestamp(one.type) else one.type) for one in MESSAGE),
    ]
)
Open: TypeAlias = Callable[[str], File]
Known: TypeAlias = Mapping[str, object]


class Scan:
    """A scan as DuckDB takes it: it asks for the reader, and for nothing else.

    No scanner of Arrow, which keeps up to 64 batches ahead of who reads them.
    """

    __slots__ = ("_reader",)

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self._reader = reader

    def to_reader(self) -> pa.RecordBatchReader:
        """The batches, each made when it is asked for."""
        return self._reader


class Parts(ds.Dataset):  # type: ignore[misc]
    """Rows as `partition_parts` of a Content has them, with their topic and instants in us.

    sources: parts, each with the columns that have one value for it, where they are of the schema;
             they stay where they are until the last scan
    open:    opens a file by its path
    note:    is told what ended a scan, as DuckDB says it in its own words
    typed:   the relation of the topic, if there is to be a column `record`
    schema:  those columns, and some of MESSAGE
    """

    def __init__(
        self,
        sources: Sequence[tuple[Known, Source]],
        open: Open,
        note: Callable[[TxlogError], object],
        typed: Relation | None = None,
        schema: pa.Schema = _SCHEMA,
    ) -> None:
        self._sources, self._open, self._note, self._typed = sources, open, note, typed
        self._schema = schema
        if typed is not None:
            self._schema = schema.append(pa.field(RECORD, typed.record_type))
        self.num_rows = sum(source.ref.rows for _, source in sources)
        form, nowhere = ds.IpcFileFormat(), pa.fs.LocalFileSystem()
        self._places = ds.FileSystemDataset(  # by what they have in common; never opened
            [
                form.make_fragment(
                    str(number),
                    nowhere,
                    partition_expression=reduce(
                        and_, (ds.field(name) == value for name, value in known.items())
                    ),
                )
                for number, (known, _) in enumerate(sources)
            ],
            self._schema,
            form,
            nowhere,
        )

    @property
    def schema(self) -> pa.Schema:
        """Its columns, those first that cost least."""
        return self._schema

    def scanner(
        self, columns: list[str] | None = None, filter: ds.Expression | None = None, **_: object
    ) -> Scan:
        """What DuckDB reads: these columns of the rows that the filter lets through."""
        wanted, shown = _wanted(self._schema, columns, filter)
        kept = self._places.get_fragments(filter)
        sources = [self._sources[int(fragment.path)] for fragment in kept]
        batches = self._batches(sources, wanted, shown.names, filter)
        return Scan(pa.RecordBatchReader.from_batches(shown, batches))

    def _batches(
        self,
        sources: Sequence[tuple[Known, Source]],
        wanted: pa.Schema,
        shown: Sequence[str],
        filter: ds.Expression | None,
    ) -> Iterator[pa.RecordBatch]:
        try:
            for known, source in sources:
                file = self._open(source.ref.path)
                try:
                    for rows in self._groups(SegmentReader(file, source.ref), source, wanted):
                        columns = [
                            pa.repeat(pa.scalar(known[field.name], field.type), rows.num_rows)
                            if field.name in known
                            else rows.column(field.name).cast(field.type)
                            for field in wanted
                        ]
                        table = pa.table(columns, schema=wanted)
                        if filter is not None:
                            table = table.filter(filter)
                        yield from table.select(shown).to_batches(BATCH_ROWS)
                finally:
                    file.close()
        except TxlogError as error:
            self._note(error)
            raise

    def _groups(
        self, reader: SegmentReader, source: Source, wanted: pa.Schema
    ) -> Iterator[pa.Table]:
        """The rows of a part that are wanted, some at a time."""
        ref, read = source.ref, [name for name in MESSAGE.names if name in wanted.names]
        if RECORD in wanted.names:
            read += [name for name in ("value", "schema_version") if name not in read]
        low, high = 0, ref.rows
        if source.within is not None:
            low, high = source.within.entries(ref.ledger, ref.last + 1)
            low, high = max(low - ref.first, 0), high - ref.first
        step = min(BATCH_ROWS, piece_rows(ref.rows, ref.bytes))
        for begin in range(low, high, step):
            rows = reader.rows(begin, min(begin + step, high), read or ["kind"])
            if RECORD in wanted.names:
                assert self._typed is not None
                made = records_as(self._typed.schemas, self._typed.record, rows)
                rows = rows.append_column(RECORD, made)
            yield bounded(rows)


class _Pieces(ds.Dataset):  # type: ignore[misc]
    """Rows in journal frames as a dataset; `_tables` makes those that are wanted, piece by piece.

    note: as for Parts
    """

    num_rows: int

    def __init__(self, schema: pa.Schema, note: Callable[[TxlogError], object]) -> None:
        self._schema, self._note = schema, note

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return self._schema

    def scanner(
        self, columns: list[str] | None = None, filter: ds.Expression | None = None, **_: object
    ) -> Scan:
        """What DuckDB reads: these columns of the rows that the filter lets through."""
        wanted, shown = _wanted(self._schema, columns, filter)
        return Scan(
            pa.RecordBatchReader.from_batches(shown, self._batches(wanted, shown.names, filter))
        )

    def _batches(
        self, wanted: pa.Schema, shown: Sequence[str], filter: ds.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        try:
            for rows in self._tables(wanted):
                table = rows if filter is None else _aligned(rows).filter(filter)
                yield from table.select(shown).to_batches(BATCH_ROWS)
        except TxlogError as error:
            self._note(error)
            raise

    def _tables(self, wanted: pa.Schema) -> Iterator[pa.Table]:
        raise NotImplementedError


class InFrames(_Pieces):
    """Rows in journal frames as those of the table `tail`, with their topic and instants in us.

    relations: those that have `frames`
    note, typed: as for Parts
    """

    def __init__(
        self,
        relations: Sequence[Relation],
        note: Callable[[TxlogError], object],
        typed: Relation | None = None,
    ) -> None:
        self._relations, self._typed = relations, typed
        of_rows = [frames.schema for frames in self._frames()][:1]
        fields = [_as_duckdb(one) for schema in of_rows for one in schema]
        if typed is not None:
            fields.append(pa.field(RECORD, typed.record_type))
        super().__init__(pa.schema([("topic", pa.string()), *fields]), note)
        self.num_rows = sum(frames.rows for frames in self._frames())

    def _frames(self) -> Iterator[Frames]:
        return (one.frames for one in self._relations if one.frames is not None)

    def _tables(self, wanted: pa.Schema) -> Iterator[pa.Table]:
        for relation in self._relations:
            yield from self._of_topic(relation, wanted)

    def _of_topic(self, relation: Relation, wanted: pa.Schema) -> Iterator[pa.Table]:
        if relation.frames is None:
            return
        read = [name for name in relation.frames.schema.names if name in wanted.names]
        if RECORD in wanted.names:
            read += [name for name in ("value", "schema_version") if name not in read]
        for rows in relation.frames.tables(read or ["partition"]):
            if RECORD in wanted.names:
                assert self._typed is not None
                made = records_as(self._typed.schemas, self._typed.record, rows)
                rows = rows.append_column(RECORD, made)
            rows = bounded(rows)
            columns = [
                pa.repeat(pa.scalar(relation.topic, field.type), rows.num_rows)
                if field.name == "topic"
                else rows.column(field.name).cast(field.type)
                for field in wanted
            ]
            yield pa.table(columns, schema=wanted)


class InJournal(_Pieces):
    """Every row of a topic in journal frames, as it is stored, with the columns of stored.ROWS.

    note: as for Parts
    """

    def __init__(self, frames: StoredFrames, note: Callable[[TxlogError], object]) -> None:
        super().__init__(ROWS, note)
        self._frames = frames
        self.num_rows = frames.rows

    def _tables(self, wanted: pa.Schema) -> Iterator[pa.Table]:
        return self._frames.tables(wanted.names)


def _aligned(rows: pa.Table) -> pa.Table:
    """The rows in memory of their own: in a frame they begin at any byte, and then Arrow's filter
    writes on stderr that it is slow.
    """
    return pa.concat_tables([rows, rows.slice(0, 0)]).combine_chunks()


def _as_duckdb(field: pa.Field) -> pa.Field:
    return field.with_type(_INSTANT) if pa.types.is_timestamp(field.type) else field


def _wanted(
    schema: pa.Schema, columns: list[str] | None, filter: ds.Expression | None
) -> tuple[pa.Schema, pa.Schema]:
    """The columns to read for a scan, and those to show."""
    words = set(schema.names if columns is None else columns)
    if filter is not None:  # an expression does not say its columns; a text in it may be more
        words.update(re.findall(r"\w+", str(filter)))
    wanted = pa.schema([field for field in schema if field.name in words])
    shown = wanted if columns is None else pa.schema([wanted.field(name) for name in columns])
    return wanted, shown


def parts_for(
    session: Session, contents: Sequence[Content], open: Open, *, is_typed: bool = False
) -> dict[str, Parts | InFrames]:
    """What is read batch by batch, for one session: rows of parts of partitions (p) and sidecars
    (s), and rows in frames (f), where there are relations with `frames`.

    is_typed: with the column `record` of the one topic
    """
    typed = contents[0].relation if is_typed else None
    made: dict[str, Parts | InFrames] = {
        role: Parts(
            [
                (
                    {
                        "topic": content.relation.topic,
                        "partition": source.partition,
                        "ledger": source.ref.ledger,
                    },
                    source,
                )
                for content in contents
                for source in content.relation.open
                if source.role == role
            ],
            open,
            session.failures.append,
            typed,
        )
        for role in ("p", "s")
    }
    relations = [content.relation for content in contents]
    if any(relation.frames is not None for relation in relations):
        made["f"] = InFrames(relations, session.failures.append, typed)
    return made

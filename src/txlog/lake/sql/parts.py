"""Owns Parts, InFrames, InJournal: rows of open parts and journal frames, read on demand.

Each is a pyarrow dataset to DuckDB, which requests a scanner with the columns and the filter of the
query. A scan opens no part that the filter rules out by the columns with one value in it, such as
topic. It reads parts one after the other and checks every byte: memory holds a piece of one part.
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
    FileSource,
    Relation,
    RelationContent,
    RowsInFrames,
    StoredFrames,
    bounded,
)
from txlog.engine.door.segments import RECORD, SegmentReader, piece_rows
from txlog.engine.door.topics import records_as
from txlog.errors import TxlogError
from txlog.lake.sql.duck import BATCH_ROWS, Session

# DuckDB's limits for instants: instants beyond them become infinite (`bounded`).
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
    """A scan for DuckDB, which only calls its method `to_reader`.

    This is not a scanner of Arrow, because Arrow keeps up to 64 batches ahead of the reader.
    """

    __slots__ = ("_reader",)

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self._reader = reader

    def to_reader(self) -> pa.RecordBatchReader:
        """The batches, each made on demand."""
        return self._reader


class Parts(ds.Dataset):  # type: ignore[misc]
    """The rows of open parts, with instants in us.

    sources: parts, each with the columns that have the same value in all its rows, such as topic;
             the caller keeps the files in place until the last scan
    open:    opens a file by its path
    note:    receives the error that ended a scan, because DuckDB reports it in its own words
    typed:   the relation of the topic, to add a column `record`
    schema:  the columns: constants of `sources`, and some of MESSAGE
    """

    def __init__(
        self,
        sources: Sequence[tuple[Known, FileSource]],
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
        self._places = ds.FileSystemDataset(  # selected by their constant columns; never opened
            [
                form.make_fragment(
                    str(number),
                    nowhere,
                    partition_expression=reduce(
                        and_, (ds.field(name) == value for name, value in constants.items())
                    ),
                )
                for number, (constants, _) in enumerate(sources)
            ],
            self._schema,
            form,
            nowhere,
        )

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return self._schema

    def scanner(
        self, columns: list[str] | None = None, filter: ds.Expression | None = None, **_: object
    ) -> Scan:
        """The scan for DuckDB: these columns of the rows that pass the filter."""
        read_schema, output_schema = _wanted(self._schema, columns, filter)
        fragments = self._places.get_fragments(filter)
        sources = [self._sources[int(fragment.path)] for fragment in fragments]
        batches = self._batches(sources, read_schema, output_schema.names, filter)
        return Scan(pa.RecordBatchReader.from_batches(output_schema, batches))

    def _batches(
        self,
        sources: Sequence[tuple[Known, FileSource]],
        read_schema: pa.Schema,
        names: Sequence[str],
        filter: ds.Expression | None,
    ) -> Iterator[pa.RecordBatch]:
        try:
            for constants, source in sources:
                file = self._open(source.ref.path)
                try:
                    for rows in self._groups(SegmentReader(file, source.ref), source, read_schema):
                        columns = [
                            pa.repeat(pa.scalar(constants[field.name], field.type), rows.num_rows)
                            if field.name in constants
                            else rows.column(field.name).cast(field.type)
                            for field in read_schema
                        ]
                        table = pa.table(columns, schema=read_schema)
                        if filter is not None:
                            table = table.filter(filter)
                        yield from table.select(names).to_batches(BATCH_ROWS)
                finally:
                    file.close()
        except TxlogError as error:
            self._note(error)
            raise

    def _groups(
        self, reader: SegmentReader, source: FileSource, read_schema: pa.Schema
    ) -> Iterator[pa.Table]:
        """The wanted rows of a part, some at a time."""
        ref, read = source.ref, [name for name in MESSAGE.names if name in read_schema.names]
        if RECORD in read_schema.names:
            read += [name for name in ("value", "schema_version") if name not in read]
        low, high = 0, ref.rows
        if source.within is not None:
            low, high = source.within.entries(ref.ledger, ref.last + 1)
            low, high = max(low - ref.first, 0), high - ref.first
        step = min(BATCH_ROWS, piece_rows(ref.rows, ref.bytes))
        for begin in range(low, high, step):
            rows = reader.rows(begin, min(begin + step, high), read or ["kind"])
            if RECORD in read_schema.names:
                assert self._typed is not None
                record_column = records_as(self._typed.schemas, self._typed.record, rows)
                rows = rows.append_column(RECORD, record_column)
            yield bounded(rows)


class _Pieces(ds.Dataset):  # type: ignore[misc]
    """Rows in journal frames as a dataset; a subclass yields them from `_tables`, in pieces.

    note: as in Parts
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
        """The scan for DuckDB: these columns of the rows that pass the filter."""
        read_schema, output_schema = _wanted(self._schema, columns, filter)
        return Scan(
            pa.RecordBatchReader.from_batches(
                output_schema, self._batches(read_schema, output_schema.names, filter)
            )
        )

    def _batches(
        self, read_schema: pa.Schema, names: Sequence[str], filter: ds.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        try:
            for rows in self._tables(read_schema):
                table = rows if filter is None else _aligned(rows).filter(filter)
                yield from table.select(names).to_batches(BATCH_ROWS)
        except TxlogError as error:
            self._note(error)
            raise

    def _tables(self, read_schema: pa.Schema) -> Iterator[pa.Table]:
        raise NotImplementedError


class InFrames(_Pieces):
    """Rows in journal frames in the form of the table `tail`, with their topic and instants in us.

    relations: relations with `frames`
    note, typed: as in Parts
    """

    def __init__(
        self,
        relations: Sequence[Relation],
        note: Callable[[TxlogError], object],
        typed: Relation | None = None,
    ) -> None:
        self._relations, self._typed = relations, typed
        of_rows = [frames.schema for frames in self._frames()][:1]
        fields = [_as_duckdb(field) for schema in of_rows for field in schema]
        if typed is not None:
            fields.append(pa.field(RECORD, typed.record_type))
        super().__init__(pa.schema([("topic", pa.string()), *fields]), note)
        self.num_rows = sum(frames.rows for frames in self._frames())

    def _frames(self) -> Iterator[RowsInFrames]:
        return (relation.frames for relation in self._relations if relation.frames is not None)

    def _tables(self, read_schema: pa.Schema) -> Iterator[pa.Table]:
        for relation in self._relations:
            yield from self._of_topic(relation, read_schema)

    def _of_topic(self, relation: Relation, read_schema: pa.Schema) -> Iterator[pa.Table]:
        if relation.frames is None:
            return
        read = [name for name in relation.frames.schema.names if name in read_schema.names]
        if RECORD in read_schema.names:
            read += [name for name in ("value", "schema_version") if name not in read]
        for rows in relation.frames.tables(read or ["partition"]):
            if RECORD in read_schema.names:
                assert self._typed is not None
                record_column = records_as(self._typed.schemas, self._typed.record, rows)
                rows = rows.append_column(RECORD, record_column)
            rows = bounded(rows)
            columns = [
                pa.repeat(pa.scalar(relation.topic, field.type), rows.num_rows)
                if field.name == "topic"
                else rows.column(field.name).cast(field.type)
                for field in read_schema
            ]
            yield pa.table(columns, schema=read_schema)


class InJournal(_Pieces):
    """Every row of a topic in journal frames, in its stored form, with the columns of ROWS.

    note: as in Parts
    """

    def __init__(self, frames: StoredFrames, note: Callable[[TxlogError], object]) -> None:
        super().__init__(ROWS, note)
        self._frames = frames
        self.num_rows = frames.rows

    def _tables(self, read_schema: pa.Schema) -> Iterator[pa.Table]:
        return self._frames.tables(read_schema.names)


def _aligned(rows: pa.Table) -> pa.Table:
    """Copy the rows into aligned memory: in a frame they begin at any byte, and then Arrow's filter
    warns on stderr that it is slow.
    """
    return pa.concat_tables([rows, rows.slice(0, 0)]).combine_chunks()


def _as_duckdb(field: pa.Field) -> pa.Field:
    return field.with_type(_INSTANT) if pa.types.is_timestamp(field.type) else field


def _wanted(
    schema: pa.Schema, columns: list[str] | None, filter: ds.Expression | None
) -> tuple[pa.Schema, pa.Schema]:
    """(the columns that a scan reads, those that it returns); a filter may need more."""
    column_names = set(schema.names if columns is None else columns)
    # an expression does not list its columns; words of literals may be extra
    if filter is not None:
        column_names.update(re.findall(r"\w+", str(filter)))
    read_schema = pa.schema([field for field in schema if field.name in column_names])
    output_schema = (
        read_schema if columns is None else pa.schema([read_schema.field(name) for name in columns])
    )
    return read_schema, output_schema


def parts_for(
    session: Session, contents: Sequence[RelationContent], open: Open, *, is_typed: bool = False
) -> dict[str, Parts | InFrames]:
    """Datasets for one session, by role: parts of partitions (p), parts of sidecars (s) and, if a
    relation has `frames`, rows in journal frames (f).

    is_typed: with the column `record` of the single topic
    """
    typed = contents[0].relation if is_typed else None
    datasets: dict[str, Parts | InFrames] = {
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
        datasets["f"] = InFrames(relations, session.failures.append, typed)
    return datasets

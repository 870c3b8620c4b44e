"""Owns the export of a topic to files: one written as a whole, or a directory that grows.

A directory has a file `_txlog-export.json` with its store, topic (name and number), form and
the message after which each partition ends. A piece is written in three steps, so that a killed
export loses one piece and writes none twice:

    files     under temporary names, flushed, then renamed; named by partition and first message
    state     replaced in one step: now the piece counts
    again     files that begin after the state belong to an unfinished piece: they are removed

Messages keep the order of the log, one partition after another. The forms of a message:

    parquet, arrow   COLUMNS, of a typed topic `record` before them: key and value are bytes,
                     instants UTC in milliseconds
    csv, tsv         the same as text, instants outside the years 1 to 9999 as epoch ms; key and
                     value with their encoding: utf8, base64, or empty for null. `record` is a
                     column for each of its fields, and where a topic never had a schema, for each
                     member of its JSON objects, which are read first for that
    ndjson           the envelope of FORMAT records, which `produce --in envelope` accepts

One file of csv, tsv or ndjson is compressed if its name ends in .gz or .zst.

Text is built from columns (`base/text`): no message becomes a Python object. Source: spec/cli 8.2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from txlog.base.ids import TopicName
from txlog.base.message_columns import EXPORTED
from txlog.base.ranges import END, Range
from txlog.base.settings import INSTANT_MS_MAX
from txlog.base.startup import compute as pc
from txlog.base.text.columns import data_of, in_quotes, tsv_escaped
from txlog.base.text.columns import pieces as text_pieces
from txlog.base.text.formats import packed
from txlog.base.text.messages import Messages, flat
from txlog.base.times import INSTANT_MS_MIN
from txlog.client.client import Client
from txlog.client.reading.reader import Reader
from txlog.client.reading.record_columns import RecordColumns
from txlog.engine.door.catalog import check_same
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.consuming import covers
from txlog.engine.door.disk import PosixDisk, make_directory, remove_files, replace_file, replacing
from txlog.engine.door.facts import Mark, schema_of
from txlog.engine.door.reading import RECEIVED, ReadRange, is_settled, resolve_range
from txlog.engine.door.segments import RECORD, gathered
from txlog.engine.door.store import View, check_whole
from txlog.errors import (
    AlreadyExists,
    InvalidArgument,
    MessageNotFound,
    NotAllowed,
    TryAgain,
    TxlogError,
)
from txlog.lake.jobs.engine import Tell, silent
from txlog.lake.sql import json_members
from txlog.lake.sql.where import Where

if TYPE_CHECKING:
    from txlog.base.rows.jobs import Exported


FORMS: Final = ("parquet", "arrow", "csv", "tsv", "ndjson")
COLUMNS: Final = schema_of(EXPORTED)
# Columns that may partition files; a date is a day in UTC.
PLACES: Final = ("partition", "key", "producer", "publish_date", "event_date")
PLACES_MAX: Final = 500  # directories in one batch of rows
_NOWHERE: Final = "__HIVE_DEFAULT_PARTITION__"


# --- the form of a message -------------------------------------------------------------------


class Writer(Protocol):
    """Writes the messages of one file."""

    def write(self, rows: pa.Table) -> None:
        """Add rows with the columns of COLUMNS."""

    def close(self) -> None:
        """Write the end of the file; the sink stays open."""

    def drop(self) -> None:
        """Write nothing more, not even the end; after `close` it does nothing."""


class Shape:
    """How the received messages of a topic become rows of files: COLUMNS, and records before them.

    schema: of the rows; `record` is its first column if the topic is or was typed
    tables: all messages of a text whose columns are the members of JSON objects if the topic is not
            typed; they are read only then
    """

    def __init__(self, client: Client, topic: str, tables: Iterable[pa.Table] = ()) -> None:
        self.topic = TopicName.parse(topic, allow_partition=True).topic.short
        self._records = RecordColumns(client.store).of(self.topic)
        self._members: json_members.Members | None = None
        fields = [] if self._records is None else [pa.field(RECORD, self._records.kind)]
        if self._records is None and tables:
            self._members = json_members.members(tables)
            fields = [] if self._members is None else [pa.field(RECORD, self._members.kind)]
        self.schema = pa.schema([*fields, *COLUMNS])

    def rows(self, received: pa.Table) -> pa.Table:
        """Rows that a reader received, with the columns of the schema.

        raises: TryAgain for a message of a schema that the topic got after the export began
        """
        rows = exported(received)
        if self._members is not None:
            return pa.table([self._members.of(received), *rows.columns], schema=self.schema)
        if self._records is None:
            return rows
        newest = pc.max(received.column("schema_version")).as_py()
        if newest is not None and newest > self._records.version:
            raise TryAgain(
                f"{self.topic} got another schema during the export", hint="export again"
            )
        return pa.table([self._records.of(received), *rows.columns], schema=self.schema)


def exported(received: pa.Table) -> pa.Table:
    """Rows that a reader received, with the columns of COLUMNS."""
    messages = Messages(received)
    converted = {
        "message_id": messages.column("message_id"),
        "txn": messages.column("txn"),
        "txn_index": received.column("index"),
    }
    columns = [converted[n] if n in converted else received.column(n) for n in COLUMNS.names]
    return pa.table(columns, schema=COLUMNS)


def writer(
    form: str,
    sink: BinaryIO,
    columns: pa.Schema = COLUMNS,
    without: Sequence[str] = (),
    *,
    seeks: bool = True,
) -> Writer:
    """Return the writer of a file in a form.

    columns: of the rows, from Shape
    without: columns to leave out, because the names of directories have them
    seeks:   the sink is a file; False: arrow is written as a stream
    """
    schema = pa.schema([field for field in columns if field.name not in without])
    if form == "parquet":
        return _Arrow(
            schema,
            pq.ParquetWriter(
                sink,
                schema,
                version="2.6",
                compression="zstd",
                compression_level=1,
                use_dictionary=["topic", "key", "producer", "txn"],
                write_page_index=True,
                write_page_checksum=True,
            ),
        )
    if form == "arrow":
        arrow_writer = pa.ipc.new_file(sink, schema) if seeks else pa.ipc.new_stream(sink, schema)
        return _Arrow(schema, arrow_writer)
    return _Text(form, sink, schema)


@contextmanager
def dropping(writer_: Writer) -> Iterator[Writer]:
    """A writer that no longer uses its sink when the block ends, closed or not."""
    try:
        yield writer_
    finally:
        writer_.drop()


class _Arrow:
    def __init__(self, schema: pa.Schema, sink: Any) -> None:
        self._names = schema.names
        self._sink = sink

    def write(self, rows: pa.Table) -> None:
        self._sink.write_table(rows.select(self._names))

    def close(self) -> None:
        self._sink.close()

    def drop(self) -> None:
        # Otherwise a Parquet writer writes the end when it is collected, and prints on stderr that
        # its sink is closed.
        if isinstance(self._sink, pq.ParquetWriter):
            self._sink.is_open = False


class _Text:
    def __init__(self, form: str, sink: BinaryIO, columns: pa.Schema) -> None:
        self._sink: BinaryIO | None = sink
        self._form = form
        if form == "ndjson":
            return
        names = [
            name
            for column in columns.names
            for name in (
                (column, f"{column}_encoding") if column in ("key", "value") else (column,)
            )
        ]
        fields = [field.name for field in columns.field(RECORD).type] if RECORD in names else []
        headings = flat(names, fields)
        self._names = [*headings.values()]
        titles = pa.array([*headings], pa.string())
        if form == "csv":
            sink.write(b",".join(map(str.encode, in_quotes(titles).to_pylist())) + b"\n")
        else:
            sink.write(b"\t".join(map(str.encode, tsv_escaped(titles).to_pylist())) + b"\n")

    def write(self, rows: pa.Table) -> None:
        assert self._sink is not None
        slices = (rows.slice(at, _TEXT_ROWS) for at in range(0, len(rows), _TEXT_ROWS))
        for piece in chain.from_iterable(map(text_pieces, slices)):
            messages = Messages(piece)
            self._sink.write(data_of(self._lines(messages)))

    def _lines(self, messages: Messages) -> pa.Array:
        if self._form == "csv":
            return messages.quoted(self._names)
        if self._form == "tsv":
            return messages.delimited("tsv", self._names)
        return messages.envelopes()

    def close(self) -> None:
        self._sink = None

    def drop(self) -> None:
        self._sink = None


def by_place(rows: pa.Table, names: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """Yield (directory, its rows) with directories named `name=value/…`; rows keep their order.

    names: columns of PLACES; none: one directory, "", has all rows
    raises: InvalidArgument for more than PLACES_MAX directories
    """
    if not names:
        yield "", rows
        return
    codes: pa.Array | None = None
    names_of_values: list[list[str]] = []
    for name in names:
        column = _place(rows, name).combine_chunks().dictionary_encode("encode")
        names_of_values.append(
            [f"{name}={_word(value)}" for value in column.dictionary.to_pylist()]
        )
        indices = column.indices.cast(pa.int64())
        width = pa.scalar(max(1, len(names_of_values[-1])), pa.int64())
        codes = indices if codes is None else pc.add(pc.multiply(codes, width), indices)
    assert codes is not None
    distinct = codes.unique().to_pylist()
    if len(distinct) > PLACES_MAX:
        raise InvalidArgument(
            f"{len(distinct)} files at once by {', '.join(names)}, at most {PLACES_MAX}",
            hint="partition by less",
        )
    for code in distinct:
        parts: list[str] = []
        code_left = code
        for listed in reversed(names_of_values):
            code_left, at = divmod(code_left, max(1, len(listed)))
            parts.append(listed[at])
        here = rows.filter(pc.equal(codes, pa.scalar(code, pa.int64())))
        yield "/".join(reversed(parts)), here


def _place(rows: pa.Table, name: str) -> pa.ChunkedArray:
    if name.endswith("_date"):
        times = rows.column(name.replace("_date", "_time"))
        ms = times.cast(pa.int64())
        # instants outside these years have no date
        within = pc.and_(
            pc.greater_equal(ms, pa.scalar(INSTANT_MS_MIN, pa.int64())),
            pc.less_equal(ms, pa.scalar(INSTANT_MS_MAX, pa.int64())),
        )
        times = pc.if_else(within, times, pa.scalar(None, times.type))
        return pc.strftime(times, "%Y-%m-%d")
    return rows.column(name)


def _word(value: Any) -> str:
    if value is None:
        return _NOWHERE
    return quote(value if isinstance(value, bytes) else str(value), safe="")


# --- one file, or a directory ----------------------------------------------------------------

STATE: Final = "_txlog-export.json"
LOCK: Final = "_txlog-export.lock"
PIECE_MESSAGES: Final = 1_000_000
_AT_ONCE: Final = 16_384  # messages read at once for one file
_GROUP: Final = 65_536  # rows of a group in a directory, which may have many open files
_TEXT_ROWS: Final = 8_192  # rows whose text is some MB
_NAME: Final = re.compile(r"([0-9]{5})-([0-9]{12})-([0-9]{10})-([0-9]{7})\.[a-z]+")
_TEMPORARY: Final = re.compile(rf"\.({_NAME.pattern}|{re.escape(STATE)})\.[0-9]+\.tmp")


class Counts:
    """The totals of an export."""

    def __init__(self) -> None:
        self.files = self.messages = self.size_bytes = self.file_bytes = 0

    def add(self, rows: pa.Table) -> None:
        """Count messages."""
        self.messages += rows.num_rows
        self.size_bytes += pc.sum(pc.binary_length(rows.column("value"))).as_py() or 0


def export_stream(
    client: Client,
    topic: str,
    sink: BinaryIO,
    *,
    form: str = "ndjson",
    message_range: Range | None = None,
    where: str | None = None,
    tell: Tell = silent,
) -> Exported:
    """Write the committed messages of a topic to an open file, which need not seek.

    message_range: by default everything up to the current end of the log
    where:   only messages for which this SQL is true, as in Client.read
    returns: {topic, path, files, messages, size_bytes, undecided, file_bytes}; size_bytes: of
             payload; file_bytes: of the files written, 0 for a stream
    raises:  TopicNotFound, InvalidArgument, SqlError, PartitionUnavailable, Corruption; errors of
             the sink
    """
    _check_form(form)
    counts = Counts()
    counts.files = 1
    condition = _condition(client, topic, where)
    shape = _shape(client, topic, form, message_range, condition)
    with dropping(writer(form, sink, shape.schema, seeks=False)) as writer_:
        _write(writer_, _tables(client, topic, message_range, condition), shape, form, counts, tell)
    return _answer(topic, "-", counts, condition)


def export_file(
    client: Client,
    topic: str,
    path: str,
    *,
    form: str = "parquet",
    message_range: Range | None = None,
    where: str | None = None,
    force: bool = False,
    tell: Tell = silent,
) -> Exported:
    """Write the committed messages of a topic to one file, which appears when it is complete.

    force:   replace a file of that name
    returns: as export_stream
    raises:  as export_stream; AlreadyExists, DiskFailed
    """
    _check_form(form)
    if Path(path).exists() and not force:
        raise AlreadyExists(f"{path} exists", hint="--force replaces it", path=path)
    counts = Counts()
    condition = _condition(client, topic, where)
    shape = _shape(client, topic, form, message_range, condition)
    with (
        replacing(path, only_new=not force) as file,
        packed(file, path) as sink,
        dropping(writer(form, sink, shape.schema)) as writer_,
    ):
        _write(writer_, _tables(client, topic, message_range, condition), shape, form, counts, tell)
    counts.files, counts.file_bytes = 1, Path(path).stat().st_size
    return _answer(topic, path, counts, condition)


def _condition(client: Client, topic: str, where: str | None) -> Where | None:
    return None if where is None else Where(where, [topic], RecordColumns(client.store))


def _shape(
    client: Client, topic: str, form: str, message_range: Range | None, where: Where | None
) -> Shape:
    is_table = form in ("csv", "tsv")
    shape = Shape(client, topic, _tables(client, topic, message_range, where) if is_table else ())
    if where is not None:
        where.undecided = 0  # the second reading counts
    return shape


def _tables(
    client: Client, topic: str, message_range: Range | None, where: Where | None
) -> Iterator[pa.Table]:
    return client.read(
        topic,
        range=message_range,
        batch_messages=_AT_ONCE,
        columns=RECEIVED.names,  # Shape makes the records
        where=where,
    )


def _write(
    writer_: Writer, tables: Iterable[pa.Table], shape: Shape, form: str, counts: Counts, tell: Tell
) -> None:
    """Write all rows of one file, and its end."""

    def rows() -> Iterator[pa.Table]:
        for received in tables:
            counts.add(received)
            tell(f"{shape.topic}: {counts.messages:,} messages")
            yield shape.rows(received)

    for batch in gathered(rows()) if form == "parquet" else rows():
        writer_.write(batch)
    writer_.close()


def export_directory(
    client: Client,
    topic: str,
    path: str,
    *,
    form: str = "parquet",
    message_range: Range | None = None,
    where: str | None = None,
    partition_by: Sequence[str] = (),
    resume: bool = False,
    append: bool = False,
    force: bool = False,
    piece_messages: int = PIECE_MESSAGES,
    tell: Tell = silent,
) -> Exported:
    """Write the committed messages of a topic as files of a directory, each message once.

    message_range: a range of the log; not allowed when a directory is continued
    where:   as export_stream; a directory is continued with the same condition
    partition_by: columns of PLACES: files are below name=value/…, and lack these columns, except
             that a date leaves its time in the files
    resume:  continue after a killed export of the same store and topic, or begin
    append:  the same, and add messages that became visible since it was finished
    force:   first remove the files of an earlier export there
    returns: as export_stream, for this call
    raises:  the same; AlreadyExists (an export, or other files), NotAllowed (an export with other
             properties), TryAgain (another export is writing), MessageNotFound (the next messages
             were trimmed)
    """
    _check_form(form)
    for name in partition_by:
        if name not in PLACES:
            raise InvalidArgument(f"files cannot be partitioned by {name}", hint=", ".join(PLACES))
    if message_range is not None and message_range.kind != "range":
        raise InvalidArgument("a directory needs a range: unacked and txn are not allowed")
    short = TopicName.parse(topic, allow_partition=True).short
    client.topic(topic)
    make_directory(path)
    with closing(PosixDisk(path, allow_unsafe=True)) as disk, closing(disk.lock_file(LOCK)) as lock:
        if not lock.try_acquire():
            raise TryAgain(f"another export is writing to {path}", path=path)
        export = _Directory(client, topic, Path(path), form, partition_by, where)
        try:
            export.begin(message_range, resume=resume or append, add=append, force=force)
        except TxlogError:
            if not disk.exists(STATE):  # it was refused: the directory stays unchanged
                disk.unlink(LOCK)
            raise
        for partition in sorted(export.state.places):
            for messages in export.pieces(partition, piece_messages):
                tell(f"{short}: {messages:,} messages")
        export.finish()
    return _answer(topic, path, export.counts, export.condition)


@dataclass(slots=True)
class _State:
    """The state of a directory, by partition: the mark that it has reached, the mark to stop at."""

    store: str
    topic: str
    form: str
    partition_by: list[str]
    places: dict[str, Mark] = field(default_factory=dict)
    stops: dict[str, Mark] = field(default_factory=dict)
    is_done: bool = False
    where: str | None = None
    number: int | None = None  # of the topic; None: a version that did not keep it wrote the state

    @classmethod
    def parse(cls, data: bytes) -> _State:
        """Parse a saved state; raises ValueError, TypeError, KeyError."""
        state = cls(**json.loads(data))
        state.places, state.stops = _marks(state.places), _marks(state.stops)
        return state


class _Directory:
    """An export in progress."""

    def __init__(
        self,
        client: Client,
        topic: str,
        root: Path,
        form: str,
        partition_by: Sequence[str],
        where: str | None,
    ) -> None:
        name = TopicName.parse(topic, allow_partition=True)
        self.counts = Counts()
        number = client.store.ask(lambda view: find_topic(view, name).number, up_to_damage=True)
        self.state = _State(
            client.uuid, name.full, form, list(partition_by), where=where, number=number
        )
        self.condition = _condition(client, topic, where)
        self._client = client
        self._topic = topic
        self._root = root

    def begin(self, message_range: Range | None, *, resume: bool, add: bool, force: bool) -> None:
        """Take the state of an earlier export and remove its unfinished files, or make a state."""
        saved = self._known()
        # The lock is held, so no other export is writing: these files are from a killed one.
        leftovers = [
            found_path
            for found_path in self._root.rglob(".*.tmp")
            if _TEMPORARY.fullmatch(found_path.name)
        ]
        remove_files(map(str, leftovers))
        if saved is None and any(
            found_path.name not in (LOCK,) for found_path in self._root.iterdir()
        ):
            raise AlreadyExists(f"{self._root} holds other files", path=str(self._root))
        if saved is not None and force:
            remove_files([str(found_path) for found_path, _, _ in self._files()])
            remove_files([str(self._root / STATE)])
            saved = None
        if saved is None:
            self.state.places, self.state.stops = self._bounds(message_range or Range())
            self._save()
            return
        if not resume:
            raise AlreadyExists(
                f"{self._root} has an export{'' if saved.is_done else ' that is not finished'}",
                hint="--append adds to it, --resume finishes it, --force starts over",
                path=str(self._root),
            )
        if saved.store == self.state.store:
            self._check_topic(saved)
        for name in ("store", "topic", "form", "partition_by", "where"):
            if getattr(saved, name) != getattr(self.state, name):
                raise NotAllowed(
                    f"{self._root} is an export with another {name}: {getattr(saved, name)}",
                    path=str(self._root),
                )
        if message_range is not None:
            raise InvalidArgument("an export continues where it ended: leave out the range")
        self.state = saved
        places = saved.places
        remove_files(
            [
                str(path)
                for path, partition, first in self._files()
                if partition not in places or not covers(places[partition], first)
            ]
        )
        if add:
            starts, self.state.stops = self._bounds(Range())
            self.state.places = {**starts, **saved.places}
            self.state.is_done = False

    def _check_topic(self, saved: _State) -> None:
        """Refuse the state of another topic of this name; that of a renamed one gets its name."""
        name = TopicName.parse(self.state.topic)

        def check(view: View) -> None:
            topic = find_topic(view, name)
            anew = "export to another directory, or begin again here with --force"
            check_same(view, topic, saved.number, str(self._root), anew)

        self._client.store.ask(check, up_to_damage=True)
        if saved.number is not None:
            saved.topic = self.state.topic
        elif saved.topic == self.state.topic:
            saved.number = self.state.number

    def pieces(self, partition: str, piece_messages: int) -> Iterator[int]:
        """Write a partition's remaining messages; after each piece, yield the export's count."""
        if partition not in self.state.stops:
            return
        number, store = int(partition), self._client.store
        reader = self._client.reader(self._topic, partitions=[number])
        self._stand(reader, number)
        while True:
            try:
                written = self._piece(reader, number, piece_messages)
            except MessageNotFound as error:
                error.hint = "start over: in another directory, or here with --force"
                raise
            ((_, mark),) = store.ask(reader.standing, up_to_damage=True).items()
            if written:
                self.state.places[partition] = mark
                self._save()
                yield self.counts.messages
            if written < piece_messages:
                return

    def finish(self) -> None:
        """Record that the export is complete."""
        if not self.state.is_done:
            self.state.is_done = True
            self._save()

    def _piece(self, reader: Reader, partition: int, most: int) -> int:
        """Read at most `most` messages, and write the matching ones; returns how many were read.

        The files get their names together.
        """
        shape = Shape(self._client, self._topic)
        if self.state.form in ("csv", "tsv"):
            undecided = 0 if self.condition is None else self.condition.undecided
            ahead = (rows for _, rows in self._taken(reader, most))
            shape = Shape(self._client, self._topic, ahead)
            if self.condition is not None:
                self.condition.undecided = undecided  # the second reading counts
            self._stand(reader, partition)
        done = 0
        with ExitStack() as files:
            writers: dict[str, Writer] = {}
            name = ""
            for taken, rows in self._taken(reader, most):
                name = name or _name(taken, partition, self.state.form)
                done += taken.num_rows
                if not rows.num_rows:
                    continue
                for folder, part in by_place(shape.rows(rows), self.state.partition_by):
                    if folder not in writers:
                        writers[folder] = self._opened(files, folder, name, shape.schema)
                    writers[folder].write(part)
                self.counts.add(rows)
            for writer_ in writers.values():
                writer_.close()
            self.counts.files += len(writers)
        self.counts.file_bytes += sum(
            (self._root / folder / name).stat().st_size for folder in writers
        )
        return done

    def _taken(self, reader: Reader, most: int) -> Iterator[tuple[pa.Table, pa.Table]]:
        """At most `most` messages, group by group, each with those that are wanted."""
        remaining = most
        while remaining > 0 and (rows := reader.take(min(_GROUP, remaining))).num_rows:
            remaining -= rows.num_rows
            matching = rows if self.condition is None else self.condition.filtered(rows)
            yield rows, matching

    def _stand(self, reader: Reader, partition: int) -> None:
        """Let a reader begin where the partition has been written to."""
        key = str(partition)
        reader.stand({partition: self.state.places[key]}, {partition: self.state.stops[key]})

    def _opened(self, files: ExitStack, folder: str, name: str, columns: pa.Schema) -> Writer:
        below = self._root / folder
        if folder:
            make_directory(str(below))
        sink = files.enter_context(replacing(str(below / name)))
        without = [column for column in self.state.partition_by if not column.endswith("_date")]
        return files.enter_context(dropping(writer(self.state.form, sink, columns, without)))

    def _bounds(self, message_range: Range) -> tuple[dict[str, Mark], dict[str, Mark]]:
        """(starts, stops) of a range by partition, in the log as of now; a stop may be missing."""
        whole = Range(start=message_range.start, stop=message_range.stop or END)
        name = TopicName.parse(self._topic, allow_partition=True)

        def resolved(view: View) -> dict[int, ReadRange]:
            topic, of_all = find_topic(view, name), name.partition is None
            indexes = range(topic.partitions) if name.partition is None else [name.partition]
            places = resolve_range(view, topic, whole, list(indexes))
            if not is_settled(view, topic, whole, places, of_all=of_all):
                check_whole(view)
            return places

        topic = self._client.store.ask(resolved, up_to_damage=True)
        stops = {str(index): span.stop for index, span in topic.items()}
        return (
            {str(index): span.after for index, span in topic.items()},
            {index: stop for index, stop in stops.items() if stop is not None},
        )

    def _files(self) -> Iterator[tuple[Path, str, Mark]]:
        """The files of pieces, with the partition and the first message of each."""
        for path in sorted(self._root.rglob("*")):
            if (match := _NAME.fullmatch(path.name)) is not None and path.is_file():
                partition, ledger, entry, index = map(int, match.groups())
                yield path, str(partition), (ledger, entry, index)

    def _known(self) -> _State | None:
        try:
            data = (self._root / STATE).read_bytes()
        except FileNotFoundError:
            return None
        try:
            return _State.parse(data)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise NotAllowed(
                f"{self._root / STATE} does not belong to an export: {error}", path=str(self._root)
            ) from error

    def _save(self) -> None:
        state = asdict(self.state)
        if state["where"] is None:  # as versions before wrote it
            del state["where"]
        text = json.dumps(state, indent=1)
        replace_file(str(self._root / STATE), text.encode() + b"\n")


def _marks(marks: dict[str, Mark]) -> dict[str, Mark]:
    checked: dict[str, Mark] = {}
    for partition, (ledger, entry, index) in marks.items():
        checked[str(int(partition))] = (int(ledger), int(entry), int(index))
    return checked


def _name(rows: pa.Table, partition: int, form: str) -> str:
    ledger, entry, index = (rows.column(name)[0].as_py() for name in ("ledger", "entry", "index"))
    return f"{partition:05}-{ledger:012}-{entry:010}-{index or 0:07}.{form}"


def _check_form(form: str) -> None:
    if form not in FORMS:
        raise InvalidArgument(f"an export is {', '.join(FORMS)}, not {form}")


def _answer(topic: str, path: str, counts: Counts, condition: Where | None) -> Exported:
    name = TopicName.parse(topic, allow_partition=True)
    return {
        "topic": name.short,
        "path": path,
        "files": counts.files,
        "messages": counts.messages,
        "size_bytes": counts.size_bytes,
        "undecided": 0 if condition is None else condition.undecided,
        "file_bytes": counts.file_bytes,
    }

"""Owns the export of a topic to files: one written as a whole, or a directory that grows.

A directory has a file `_txlog-export.json`: its store, topic and form, and after which message of
each partition it ends. A piece is written in three steps, so that a killed export loses one piece
and writes none twice:

    files     under temporary names, flushed, then renamed; named by partition and first message
    state     replaced in one step: the piece is in
    again     files that begin after the state belong to an unfinished piece: they are removed

Order is that of the log, one partition after another. What a message looks like:

    parquet, arrow   COLUMNS: key and value are bytes, instants UTC in milliseconds
    csv              the same as text, instants outside the years 1 to 9999 as epoch ms; key and
                     value as their encoding says: utf8, base64, or empty for null
    ndjson           the envelope of FORMAT records (`produce --in envelope` takes it byte for byte)

Text is made of columns (`base/text`): no message becomes a Python object. Source: spec/cli 8.2.
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
from txlog.base.ranges import END, INSTANT_MS_MIN, Range
from txlog.base.settings import INSTANT_MS_MAX
from txlog.base.startup import compute as pc
from txlog.base.text.columns import data_of
from txlog.base.text.columns import pieces as text_pieces
from txlog.base.text.messages import Messages
from txlog.client.client import Client
from txlog.client.reading.reader import Reader
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.consuming import covers
from txlog.engine.door.disk import PosixDisk, make_directory, remove_files, replace_file, replacing
from txlog.engine.door.facts import INSTANT, PROPERTY_MAP, Mark
from txlog.engine.door.reading import ReadRange, is_settled, resolve_range
from txlog.engine.door.segments import gathered
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

if TYPE_CHECKING:
    from txlog.base.rows.jobs import Exported


FORMS: Final = ("parquet", "arrow", "csv", "ndjson")
COLUMNS: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("message_id", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("properties", PROPERTY_MAP),
        ("publish_time", INSTANT),
        ("event_time", INSTANT),
        ("deliver_at", INSTANT),
        ("visible_time", INSTANT),
        ("txn", pa.string()),
        ("txn_index", pa.int32()),
        ("producer", pa.string()),
        ("sequence_id", pa.int64()),
    ]
)
# What files may be partitioned by; a date is a day in UTC.
PLACES: Final = ("partition", "key", "producer", "publish_date", "event_date")
PLACES_MAX: Final = 500  # files open at once
_NOWHERE: Final = "__HIVE_DEFAULT_PARTITION__"


# --- the form of a message -------------------------------------------------------------------

_CSV: Final = (
    "topic", "partition", "message_id", "key", "key_encoding", "value", "value_encoding",
    "properties", "publish_time", "event_time", "deliver_at", "visible_time", "txn", "txn_index",
    "producer", "sequence_id",
)  # fmt: skip


class Writer(Protocol):
    """Takes the messages of one file."""

    def write(self, rows: pa.Table) -> None:
        """Add rows of COLUMNS."""

    def close(self) -> None:
        """Write the end of the file; it stays open."""

    def drop(self) -> None:
        """Write nothing more, not even the end; after `close` it does nothing."""


def exported(received: pa.Table) -> pa.Table:
    """Rows of RECEIVED as rows of COLUMNS."""
    messages = Messages(received)
    made = {
        "message_id": messages.column("message_id"),
        "txn": messages.column("txn"),
        "txn_index": received.column("index"),
    }
    columns = [made[n] if n in made else received.column(n) for n in COLUMNS.names]
    return pa.table(columns, schema=COLUMNS)


def writer(form: str, sink: BinaryIO, without: Sequence[str] = (), *, seeks: bool = True) -> Writer:
    """Return what writes a file of a form.

    without: columns that the directory names give
    seeks:   the sink is a file
    """
    schema = pa.schema([field for field in COLUMNS if field.name not in without])
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
        made = pa.ipc.new_file(sink, schema) if seeks else pa.ipc.new_stream(sink, schema)
        return _Arrow(schema, made)
    return _Text(form, sink, without)


@contextmanager
def dropping(made: Writer) -> Iterator[Writer]:
    """A writer that, closed or not, leaves its sink alone when the block ends."""
    try:
        yield made
    finally:
        made.drop()


class _Arrow:
    def __init__(self, schema: pa.Schema, sink: Any) -> None:
        self._names = schema.names
        self._sink = sink

    def write(self, rows: pa.Table) -> None:
        self._sink.write_table(rows.select(self._names))

    def close(self) -> None:
        self._sink.close()

    def drop(self) -> None:
        # Else a Parquet writer writes the end when it is collected, and complains on stderr that
        # its sink is closed.
        if isinstance(self._sink, pq.ParquetWriter):
            self._sink.is_open = False


class _Text:
    def __init__(self, form: str, sink: BinaryIO, without: Sequence[str]) -> None:
        self._sink: BinaryIO | None = sink
        left_out = {*without, *(f"{name}_encoding" for name in without)}
        self._names = [name for name in _CSV if name not in left_out] if form == "csv" else None
        if self._names is not None:
            sink.write(",".join(f'"{name}"' for name in self._names).encode() + b"\n")

    def write(self, rows: pa.Table) -> None:
        assert self._sink is not None
        some = (rows.slice(at, _TEXT_ROWS) for at in range(0, len(rows), _TEXT_ROWS))
        for piece in chain.from_iterable(map(text_pieces, some)):
            messages = Messages(piece)
            lines = messages.envelopes() if self._names is None else messages.quoted(self._names)
            self._sink.write(data_of(lines))

    def close(self) -> None:
        self._sink = None

    def drop(self) -> None:
        self._sink = None


def by_place(rows: pa.Table, names: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """The rows by the directory they belong to, `name=value/…`, in their order.

    names: of PLACES; none: all rows belong to the directory itself
    """
    if not names:
        yield "", rows
        return
    codes: pa.Array | None = None
    words: list[list[str]] = []
    for name in names:
        column = _place(rows, name).combine_chunks().dictionary_encode("encode")
        words.append([f"{name}={_word(value)}" for value in column.dictionary.to_pylist()])
        indices = column.indices.cast(pa.int64())
        width = pa.scalar(max(1, len(words[-1])), pa.int64())
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
        rest = code
        for listed in reversed(words):
            rest, at = divmod(rest, max(1, len(listed)))
            parts.append(listed[at])
        here = rows.filter(pc.equal(codes, pa.scalar(code, pa.int64())))
        yield "/".join(reversed(parts)), here


def _place(rows: pa.Table, name: str) -> pa.ChunkedArray:
    if name.endswith("_date"):
        times = rows.column(name.replace("_date", "_time"))
        ms = times.cast(pa.int64())
        within = pc.and_(
            pc.greater_equal(ms, pa.scalar(INSTANT_MS_MIN, pa.int64())),
            pc.less_equal(ms, pa.scalar(INSTANT_MS_MAX, pa.int64())),
        )  # outside these years there is no date
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
_AT_ONCE: Final = 16_384  # of one file
_GROUP: Final = 65_536  # in a directory, of whose files many may be open: none waits for more
_TEXT_ROWS: Final = 8_192  # their text is some MB
_NAME: Final = re.compile(r"([0-9]{5})-([0-9]{12})-([0-9]{10})-([0-9]{7})\.[a-z]+")
_TEMPORARY: Final = re.compile(rf"\.({_NAME.pattern}|{re.escape(STATE)})\.[0-9]+\.tmp")


class Counts:
    """What was written."""

    def __init__(self) -> None:
        self.files = self.messages = self.size_bytes = 0

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
    wanted: Range | None = None,
    tell: Tell = silent,
) -> Exported:
    """Write the committed messages of a topic to an open file; parquet and arrow as a stream.

    wanted:  a range; everything when left out. It ends at the present end of the log
    returns: {topic, path, files, messages, size_bytes}; size_bytes: of payload
    raises:  TopicNotFound, InvalidArgument, PartitionUnavailable, Corruption; what sink raises
    """
    _check_form(form)
    counts = Counts()
    counts.files = 1
    with dropping(writer(form, sink, seeks=False)) as made:
        tables = client.read(topic, range=wanted, batch_messages=_AT_ONCE)
        _write(made, tables, topic, form, counts, tell)
    return _answer(topic, "-", counts)


def export_file(
    client: Client,
    topic: str,
    path: str,
    *,
    form: str = "parquet",
    wanted: Range | None = None,
    force: bool = False,
    tell: Tell = silent,
) -> Exported:
    """Write the committed messages of a topic to one file, which appears once all are in it.

    force:   replace a file of that name
    returns: as export_stream; raises that, AlreadyExists, DiskFailed
    """
    _check_form(form)
    if Path(path).exists() and not force:
        raise AlreadyExists(f"{path} exists", hint="--force replaces it", path=path)
    counts = Counts()
    tables = client.read(topic, range=wanted, batch_messages=_AT_ONCE)
    with (
        replacing(path, only_new=not force) as file,
        dropping(writer(form, file)) as made,
    ):
        _write(made, tables, topic, form, counts, tell)
    counts.files = 1
    return _answer(topic, path, counts)


def _write(
    made: Writer, tables: Iterable[pa.Table], topic: str, form: str, counts: Counts, tell: Tell
) -> None:
    """Write all of one file, and its end."""

    def rows() -> Iterator[pa.Table]:
        for received in tables:
            counts.add(received)
            tell(f"{topic}: {counts.messages:,} messages")
            yield exported(received)

    for some in gathered(rows()) if form == "parquet" else rows():
        made.write(some)
    made.close()


def export_directory(
    client: Client,
    topic: str,
    path: str,
    *,
    form: str = "parquet",
    wanted: Range | None = None,
    partition_by: Sequence[str] = (),
    resume: bool = False,
    append: bool = False,
    force: bool = False,
    piece_messages: int = PIECE_MESSAGES,
    tell: Tell = silent,
) -> Exported:
    """Write the committed messages of a topic as files of a directory, each message once.

    wanted:  a stretch of the log; not used again when a directory is continued
    partition_by: of exported.PLACES: files lie below name=value/…, and have no such column
    resume:  continue where an export of the same store and topic was killed, or begin
    append:  that, and add what became visible since it was finished
    force:   first remove what an export wrote there
    returns: as export_stream, for this call
    raises:  that; AlreadyExists (there is one, or other files), NotAllowed (it is of something
             else), TryAgain (another export is writing), MessageNotFound (what follows was trimmed)
    """
    _check_form(form)
    for name in partition_by:
        if name not in PLACES:
            raise InvalidArgument(f"files cannot be partitioned by {name}", hint=", ".join(PLACES))
    if wanted is not None and wanted.kind != "range":
        raise InvalidArgument("a directory needs a range: unacked and txn are not allowed")
    short = TopicName.parse(topic, allow_partition=True).short
    client.topic(topic)
    make_directory(path)
    with closing(PosixDisk(path, allow_unsafe=True)) as disk, closing(disk.lock_file(LOCK)) as lock:
        if not lock.try_acquire():
            raise TryAgain(f"another export is writing to {path}", path=path)
        export = _Directory(client, topic, Path(path), form, partition_by)
        try:
            export.begin(wanted, resume=resume or append, again=append, force=force)
        except TxlogError:
            if not disk.exists(STATE):  # refused: the directory stays as it was
                disk.unlink(LOCK)
            raise
        for partition in sorted(export.state.places):
            for messages in export.pieces(partition, piece_messages):
                tell(f"{short}: {messages:,} messages")
        export.finish()
    return _answer(topic, path, export.counts)


@dataclass(slots=True)
class _State:
    """What a directory holds: per partition, the mark after which it ends, and its goal."""

    store: str
    topic: str
    form: str
    partition_by: list[str]
    places: dict[str, Mark] = field(default_factory=dict)
    stops: dict[str, Mark] = field(default_factory=dict)
    is_done: bool = False

    @classmethod
    def parse(cls, data: bytes) -> _State:
        """The state that was saved; raises ValueError, TypeError, KeyError."""
        made = cls(**json.loads(data))
        made.places, made.stops = _marks(made.places), _marks(made.stops)
        return made


class _Directory:
    """An export in progress."""

    def __init__(
        self, client: Client, topic: str, root: Path, form: str, partition_by: Sequence[str]
    ) -> None:
        name = TopicName.parse(topic, allow_partition=True)
        self.counts = Counts()
        self.state = _State(client.uuid, name.full, form, list(partition_by))
        self._client = client
        self._topic = topic
        self._root = root

    def begin(self, wanted: Range | None, *, resume: bool, again: bool, force: bool) -> None:
        """Read what there is, or begin."""
        known = self._known()
        # No other export is writing: these are from one that was killed.
        left = [one for one in self._root.rglob(".*.tmp") if _TEMPORARY.fullmatch(one.name)]
        remove_files(map(str, left))
        if known is None and any(one.name not in (LOCK,) for one in self._root.iterdir()):
            raise AlreadyExists(f"{self._root} holds other files", path=str(self._root))
        if known is not None and force:
            remove_files([str(one) for one, _, _ in self._files()])
            remove_files([str(self._root / STATE)])
            known = None
        if known is None:
            self.state.places, self.state.stops = self._bounds(wanted or Range())
            self._save()
            return
        if not resume:
            raise AlreadyExists(
                f"{self._root} has an export{'' if known.is_done else ' that is not finished'}",
                hint="--append adds to it, --resume finishes it, --force starts over",
                path=str(self._root),
            )
        for name in ("store", "topic", "form", "partition_by"):
            if getattr(known, name) != getattr(self.state, name):
                raise NotAllowed(
                    f"{self._root} is an export with another {name}: {getattr(known, name)}",
                    path=str(self._root),
                )
        if wanted is not None:
            raise InvalidArgument("an export continues where it ended: leave out the range")
        self.state = known
        places = known.places
        remove_files(
            [
                str(path)
                for path, partition, first in self._files()
                if partition not in places or not covers(places[partition], first)
            ]
        )
        if again:
            starts, self.state.stops = self._bounds(Range())
            self.state.places = {**starts, **known.places}
            self.state.is_done = False

    def pieces(self, partition: str, piece_messages: int) -> Iterator[int]:
        """Write the rest of a partition, a piece at a time; yields the messages so far."""
        stop = self.state.stops.get(partition)
        if stop is None:
            return
        number, store = int(partition), self._client.store
        reader = self._client.reader(self._topic, partitions=[number])
        reader.stand({number: self.state.places[partition]}, {number: stop})
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
        """All of it is written."""
        if not self.state.is_done:
            self.state.is_done = True
            self._save()

    def _piece(self, reader: Reader, partition: int, most: int) -> int:
        """Write at most this many messages; their files take their names together."""
        done = 0
        with ExitStack() as files:
            writers: dict[str, Writer] = {}
            name = ""
            while done < most:
                rows = reader.take(min(_GROUP, most - done))
                if not rows.num_rows:
                    break
                name = name or _name(rows, partition, self.state.form)
                for place, some in by_place(exported(rows), self.state.partition_by):
                    if place not in writers:
                        writers[place] = self._opened(files, place, name)
                    writers[place].write(some)
                done += rows.num_rows
                self.counts.add(rows)
            for made in writers.values():
                made.close()
            self.counts.files += len(writers)
        return done

    def _opened(self, files: ExitStack, place: str, name: str) -> Writer:
        below = self._root / place
        if place:
            make_directory(str(below))
        sink = files.enter_context(replacing(str(below / name)))
        without = [one for one in self.state.partition_by if not one.endswith("_date")]
        return files.enter_context(dropping(writer(self.state.form, sink, without)))

    def _bounds(self, wanted: Range) -> tuple[dict[str, Mark], dict[str, Mark]]:
        """Where a range begins and ends in each partition, with the log as it is now."""
        whole = Range(start=wanted.start, stop=wanted.stop or END)
        name = TopicName.parse(self._topic, allow_partition=True)

        def resolved(view: View) -> dict[int, ReadRange]:
            found, of_all = find_topic(view, name), name.partition is None
            every = range(found.partitions) if name.partition is None else [name.partition]
            places = resolve_range(view, found, whole, list(every))
            if not is_settled(view, found, whole, places, of_all=of_all):
                check_whole(view)
            return places

        found = self._client.store.ask(resolved, up_to_damage=True)
        stops = {str(index): place.stop for index, place in found.items()}
        return (
            {str(index): place.after for index, place in found.items()},
            {index: stop for index, stop in stops.items() if stop is not None},
        )

    def _files(self) -> Iterator[tuple[Path, str, Mark]]:
        """The files of pieces, the partition and the first message of each."""
        for path in sorted(self._root.rglob("*")):
            if (found := _NAME.fullmatch(path.name)) is not None and path.is_file():
                partition, ledger, entry, index = map(int, found.groups())
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
        text = json.dumps(asdict(self.state), indent=1)
        replace_file(str(self._root / STATE), text.encode() + b"\n")


def _marks(given: dict[str, Mark]) -> dict[str, Mark]:
    made: dict[str, Mark] = {}
    for partition, (ledger, entry, index) in given.items():
        made[str(int(partition))] = (int(ledger), int(entry), int(index))
    return made


def _name(rows: pa.Table, partition: int, form: str) -> str:
    ledger, entry, index = (rows.column(name)[0].as_py() for name in ("ledger", "entry", "index"))
    return f"{partition:05}-{ledger:012}-{entry:010}-{index or 0:07}.{form}"


def _check_form(form: str) -> None:
    if form not in FORMS:
        raise InvalidArgument(f"an export is {', '.join(FORMS)}, not {form}")


def _answer(topic: str, path: str, counts: Counts) -> Exported:
    name = TopicName.parse(topic, allow_partition=True)
    return {
        "topic": name.short,
        "path": path,
        "files": counts.files,
        "messages": counts.messages,
        "size_bytes": counts.size_bytes,
    }

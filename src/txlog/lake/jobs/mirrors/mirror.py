"""Owns mirrors: the committed messages of a topic as a table that any engine reads correctly.

Hive directories, a Delta table or an Iceberg table have the columns of `messages` and are
partitioned by the day of `visible_time`. A run adds messages that became visible since the last
run, all at one LSN. The table itself records that LSN, in the same step as the files:

    write     files named after the range of their LSNs, flushed; readers of the table do not see
              them yet
    commit    one step of the table: the files count, and the LSN is the new one
    again     files above the LSN of the table are from a killed run: they are removed

Delta and Iceberg have such a step: a reader sees whole transactions. Directories do not. So their
file `_txlog-mirror.json` first lists the files that will appear, then they get their names one by
one, then the file gets the new LSN. A run that finds such a list finishes it first: a file that a
reader could see never disappears. The store keeps no record of its mirrors.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from txlog.base.ids import TopicName
from txlog.base.startup import compute as pc
from txlog.client.client import Client
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.disk import PosixDisk, is_of_handler, make_directory, remove_files, replacing
from txlog.engine.door.relation import FileSource, RelationContent, bounded, content, scans_of
from txlog.engine.door.topics import schema_in
from txlog.errors import DiskFailed, InvalidArgument, MissingExtra, NotAllowed, TryAgain
from txlog.lake.jobs.engine import Tell, silent
from txlog.lake.jobs.mirrors.table import LOCK, Added, Label, Target, as_stored, columns_of

if TYPE_CHECKING:
    from txlog.base.rows.jobs import Exported


FORMS: Final = ("delta", "iceberg", "hive")
_EXTRAS: Final = {"delta": ("deltalake", "spark"), "iceberg": ("pyiceberg", "iceberg")}
_NAME: Final = re.compile(r"part-([0-9]{20})-([0-9]{20})-([0-9]{5})\.parquet")
_STAGED: Final = re.compile(rf"\.{_NAME.pattern}\.new")
_TEMPORARY: Final = re.compile(rf"\.(\.?{_NAME.pattern}(\.new)?)\.[0-9]+\.tmp")
_FILE_ROWS: Final = 4_000_000
_OPEN_MAX: Final = 32
_DAY_MS: Final = 86_400_000
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")


def mirror(client: Client, topic: str, path: str, form: str, *, tell: Tell = silent) -> Exported:
    """Add messages that became visible since the last run to a table in a local directory.

    form:    one of FORMS
    returns: as export_stream, of this run
    raises:  TopicNotFound, InvalidArgument, NotAllowed (the directory is not a mirror of this
             topic, or is ahead of the store), TryAgain (another run), MissingExtra, Corruption,
             DiskFailed
    """
    if form not in FORMS or "://" in path or not path:
        raise InvalidArgument(f"a mirror is {', '.join(FORMS)}, in a local directory")
    name = TopicName.parse(topic)
    client.topic(topic)
    make = _loaded(form)
    root = Path(path).absolute()
    make_directory(str(root))
    with (
        closing(PosixDisk(str(root), allow_unsafe=True)) as disk,
        closing(disk.lock_file(LOCK)) as lock,
    ):
        if not lock.try_acquire():
            raise TryAgain(f"another export is writing to {path}", path=path)
        # Topic and content come from one view: another topic may have the name a moment later.
        topic_record, content_found = client.store.ask(
            lambda view: (find_topic(view, name), content(view, name))
        )
        with _telling(path), closing(make(root, Label(client, name, topic_record))) as target:
            since, lsn = target.lsn(), content_found.relation.lsn
            _check_not_ahead(root, since, lsn)
            content_found, columns, record = _typed(content_found, target.record(), form)
            folder = target.folder(columns, record)
            remove_files(str(path_left) for path_left in _left(folder, since))
            written = _Written(folder, since, lsn, columns, is_hidden=form == "hive")
            pin = client._pin(_files(content_found))
            try:
                for rows in rows_after(client, content_found, since, columns.names):
                    written.add(rows)
                    tell(f"{name.short}: {written.messages:,} messages")
                added = written.finish()
            finally:
                written.drop()
                if pin is not None:
                    pin.close()
            file_bytes = sum(each.path.stat().st_size for each in added)  # a commit renames them
            if added:
                target.commit(added, lsn)
    return {
        "topic": name.short,
        "path": path,
        "files": len(added),
        "messages": written.messages,
        "size_bytes": written.size_bytes,
        "undecided": 0,
        "file_bytes": file_bytes,
    }


def _check_not_ahead(root: Path, since: int, lsn: int) -> None:
    """Raise NotAllowed for a table with messages that the store does not have."""
    if since > lsn:
        raise NotAllowed(
            f"{root} has messages up to LSN {since}, the store only up to {lsn}",
            hint="the store was restored from a copy: export to another directory",
            path=str(root),
            lsn=lsn,
        )


def rows_after(
    client: Client, content: RelationContent, lsn: int, names: list[str]
) -> Iterator[pa.Table]:
    """Yield the committed messages of a content that became visible after an LSN, in batches."""
    bounds = {"lsn": (lsn + 1, content.relation.lsn)}
    for scan in scans_of(content.relation, bounds):
        for table in client.scanned(scan, names, bounds):
            rows = table.filter(pc.greater(table.column("lsn"), pa.scalar(lsn, pa.int64())))
            if rows.num_rows:
                yield rows


@contextmanager
def _telling(path: str) -> Iterator[None]:
    """Convert a failure of the disk in a table library to a TxlogError, on one line."""
    try:
        yield
    except OSError as error:
        if is_of_handler(error):
            raise
        text = " ".join(_COLOUR.sub("", error.strerror or str(error)).split())
        raise DiskFailed(f"{path}: {text[:200]}", path=path) from error


def _typed(
    content_found: RelationContent, version_of_table: int | None, form: str
) -> tuple[RelationContent, pa.Schema, int]:
    """(the content converted for the table, the table's columns, the version of its records).

    version_of_table: from Target.record; records of an existing table keep that schema
    """
    relation = content_found.relation
    version = relation.record if version_of_table is None else version_of_table
    if not version:
        return content_found, columns_of(None, has_times=False), 0
    schemas = tuple(relation.schemas)
    if version != relation.record:
        if version > len(schemas):
            raise NotAllowed(
                "the table has records of a schema that the topic does not have",
                hint="the topic was created anew: export to another directory",
            )
        # repeat that version as the newest, so that records are converted to it
        last = msgspec.structs.replace(
            schemas[version - 1], version=len(schemas) + 1, deleted=False
        )
        content_found = replace(content_found, relation=replace(relation, schemas=(*schemas, last)))
    columns = columns_of(schema_in(schemas[version - 1]).arrow, has_times=form == "iceberg")
    return content_found, columns, version


class _Making(Protocol):
    def __call__(self, place: Path, label: Label) -> Target: ...


def _loaded(form: str) -> _Making:
    """The constructor of a form's target; raises MissingExtra."""
    package, extra = _EXTRAS.get(form, ("", ""))
    try:
        making: _Making = importlib.import_module(f"txlog.lake.jobs.mirrors.{form}").Table
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in (package, "sqlalchemy"):
            raise
        raise MissingExtra(
            f"{package} is not installed", hint=f"pip install 'txlog-store[{extra}]'"
        ) from error
    return making


def _files(content_found: RelationContent) -> list[FileSource]:
    relation = content_found.relation
    return [*relation.direct, *relation.unclean, *relation.open, *relation.large_files]


def _left(folder: Path, since: int) -> Iterator[Path]:
    """Files that killed runs left: temporary ones, and those above the LSN of the table."""
    for path in folder.glob("day=*/*"):
        match = _NAME.fullmatch(path.name)
        if match is None:
            is_left = bool(_STAGED.fullmatch(path.name) or _TEMPORARY.fullmatch(path.name))
        else:
            is_left = int(match[1]) > since
        if is_left:
            yield path


class _Written:
    """The files of a run, one per day, or more for a large day."""

    def __init__(
        self, folder: Path, since: int, lsn: int, columns: pa.Schema, *, is_hidden: bool
    ) -> None:
        self.messages = self.size_bytes = 0
        self._folder = folder
        self._columns = columns
        self._stem = f"part-{since + 1:020}-{lsn:020}"
        self._is_hidden = is_hidden
        self._open: dict[str, _File] = {}
        self._added: list[Added] = []
        self._made = 0

    def add(self, rows: pa.Table) -> None:
        """Write rows with the columns of messages."""
        self.messages += rows.num_rows
        self.size_bytes += pc.sum(rows.column("size_bytes")).as_py() or 0
        days = pc.floor(
            pc.divide(rows.column("visible_time").cast(pa.int64()).cast(pa.float64()), _DAY_MS)
        ).cast(pa.int64())
        table = bounded(rows)
        shaped = [as_stored(table.column(field.name), field.type) for field in self._columns]
        whole = pa.Table.from_arrays(shaped, schema=self._columns)
        for day in days.unique().to_pylist():
            here = whole.filter(pc.equal(days, pa.scalar(day, pa.int64())))
            word = str(pa.scalar(day, pa.int32()).cast(pa.date32()))
            self._file(word).write(here)

    def finish(self) -> list[Added]:
        """Finish the open files; returns all files of the run."""
        for day in list(self._open):
            self._end(day)
        return self._added

    def drop(self) -> None:
        """Discard unfinished files; after `finish` it does nothing."""
        for file in self._open.values():
            file.drop()
        self._open.clear()

    def _file(self, day: str) -> _File:
        current = self._open.get(day)
        if current is not None and current.rows < _FILE_ROWS:
            return current
        if current is not None:
            self._end(day)
        elif len(self._open) == _OPEN_MAX:
            self._end(next(iter(self._open)))
        self._made += 1
        below = self._folder / f"day={day}"
        make_directory(str(below))
        name = f"{self._stem}-{self._made:05}.parquet"
        file = _File(below / (f".{name}.new" if self._is_hidden else name), self._columns)
        self._open[day] = file
        return file

    def _end(self, day: str) -> None:
        file = self._open.pop(day)
        file.close()
        self._added.append(Added(file.path, day, file.rows))


class _File:
    """A Parquet file in progress; it gets its name, flushed, when it is closed."""

    def __init__(self, path: Path, columns: pa.Schema) -> None:
        self.path = path
        self.rows = 0
        self._held = ExitStack()
        sink = self._held.enter_context(replacing(str(path)))
        self._writer = pq.ParquetWriter(
            sink,
            columns,
            compression="zstd",
            compression_level=1,
            use_dictionary=["topic", "key", "producer"],
            write_page_checksum=True,
        )

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows)
        self.rows += rows.num_rows

    def close(self) -> None:
        try:
            self._writer.close()
        except BaseException:  # Ctrl-C must not leave a temporary file either
            self.drop()
            raise
        self._held.close()

    def drop(self) -> None:
        self._writer.is_open = False  # otherwise it prints an error when it is collected
        error = _Dropped()
        self._held.__exit__(_Dropped, error, None)


class _Dropped(Exception):
    """Raised to end the block of an unfinished file; callers never see it."""

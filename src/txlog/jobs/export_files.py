"""Owns the export of a topic to files: one that is there as a whole, or a directory that grows.

In a directory lies `_txlog-export.json`: of which store and topic it is, in which form, and behind
which message of each partition it ends. A piece is written in three steps, so that whoever is
killed loses a piece and doubles none:

    files     under temporary names, flushed, then renamed; named by partition and first message
    state     replaced at once: the piece is in
    again     files that begin behind the state are of a piece that did not get there: they go

Order is that of the log, one partition behind the other. Source: CLI.md 8.2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa

from txlog.api.client import Client
from txlog.api.reading.reader import Reader
from txlog.engine.folds.cursor import covers
from txlog.engine.model.ops import Mark
from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.plan.reading.ranges import Place, is_settled, resolve_range
from txlog.engine.storage.disk.posix import PosixDisk
from txlog.engine.storage.user_files import make_directory, remove_files, replace_file, replacing
from txlog.engine.store.ask import look
from txlog.engine.store.follower import check_whole
from txlog.engine.view.view import View
from txlog.errors import (
    AlreadyExists,
    InvalidArgument,
    MessageNotFound,
    NotAllowed,
    TryAgain,
    TxlogError,
)
from txlog.ids import TopicName
from txlog.jobs.engine import Tell, silent
from txlog.jobs.exported import (
    FORMS,
    PLACES,
    Writer,
    by_place,
    dropping,
    exported,
    writer,
)
from txlog.ranges import END, Range
from txlog.startup import compute as pc

Answer = dict[str, Any]
STATE: Final = "_txlog-export.json"
LOCK: Final = "_txlog-export.lock"
PIECE_MESSAGES: Final = 1_000_000
_AT_ONCE: Final = 65_536
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
    client: Client, topic: str, sink: BinaryIO, *, form: str = "ndjson",
    wanted: Range | None = None, tell: Tell = silent,
) -> Answer:  # fmt: skip
    """Write the committed messages of a topic to an open file; parquet and arrow as a stream.

    wanted:  a range, all when left out; it ends at the end that the log has now
    returns: {topic, path, files, messages, size_bytes}; size_bytes: of payload
    raises:  TopicNotFound, InvalidArgument, PartitionUnavailable, Corruption; what sink raises
    """
    _check_form(form)
    counts = Counts()
    counts.files = 1
    with dropping(writer(form, sink, seeks=False)) as made:
        for rows in client.read(topic, range=wanted, batch_messages=_AT_ONCE):
            made.write(exported(rows))
            counts.add(rows)
            tell(f"{topic}: {counts.messages:,} messages")
        made.close()
    return _answer(topic, "-", counts)


def export_file(
    client: Client, topic: str, path: str, *, form: str = "parquet", wanted: Range | None = None,
    force: bool = False, tell: Tell = silent,
) -> Answer:  # fmt: skip
    """Write the committed messages of a topic to one file, which is there when all are in it.

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
        for rows in tables:
            made.write(exported(rows))
            counts.add(rows)
            tell(f"{topic}: {counts.messages:,} messages")
        made.close()
    counts.files = 1
    return _answer(topic, path, counts)


def export_directory(
    client: Client, topic: str, path: str, *, form: str = "parquet", wanted: Range | None = None,
    partition_by: Sequence[str] = (), resume: bool = False, append: bool = False,
    force: bool = False, piece_messages: int = PIECE_MESSAGES, tell: Tell = silent,
) -> Answer:  # fmt: skip
    """Write the committed messages of a topic as files of a directory, each message once.

    wanted:  a stretch of the log; of a directory that is gone on with it is not asked again
    partition_by: of exported.PLACES: files lie below name=value/…, and have no such column
    resume:  go on where an export of the same store and topic was killed, or begin
    append:  that, and what became visible since it was finished
    force:   what an export wrote there goes first
    returns: as export_stream, of this call
    raises:  that; AlreadyExists (there is one, or other files), NotAllowed (it is of something
             else), TryAgain (another export is at it), MessageNotFound (what follows was trimmed)
    """
    _check_form(form)
    for name in partition_by:
        if name not in PLACES:
            raise InvalidArgument(f"files are not parted by {name}", hint=", ".join(PLACES))
    if wanted is not None and wanted.kind != "range":
        raise InvalidArgument("a directory takes a stretch of the log: unacked and txn are none")
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
            if not disk.exists(STATE):  # refused: the directory is left as it was found
                disk.unlink(LOCK)
            raise
        for partition in sorted(export.state.places):
            for messages in export.pieces(partition, piece_messages):
                tell(f"{short}: {messages:,} messages")
        export.finish()
    return _answer(topic, path, export.counts)


@dataclass(slots=True)
class _State:
    """What a directory holds: per partition the mark behind which it ends, and where it shall."""

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
    """An export that is being made."""

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
        # No other export is at it: these are of one that was killed.
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
                hint="--append adds to it, --resume finishes it, --force begins anew",
                path=str(self._root),
            )  # fmt: skip
        for name in ("store", "topic", "form", "partition_by"):
            if getattr(known, name) != getattr(self.state, name):
                raise NotAllowed(
                    f"{self._root} is an export with another {name}: {getattr(known, name)}",
                    path=str(self._root),
                )
        if wanted is not None:
            raise InvalidArgument("an export is gone on with where it ends: without a range")
        self.state = known
        places = known.places
        remove_files([
            str(path) for path, partition, first in self._files()
            if partition not in places or not covers(places[partition], first)
        ])  # fmt: skip
        if again:
            starts, self.state.stops = self._bounds(Range())
            self.state.places = {**starts, **known.places}
            self.state.is_done = False

    def pieces(self, partition: str, piece_messages: int) -> Iterator[int]:
        """Write what is left of a partition, a piece at a time; yields the messages so far."""
        stop = self.state.stops.get(partition)
        if stop is None:
            return
        number, store = int(partition), self._client._store
        reader = self._client.reader(self._topic, partitions=[number])
        reader._stand({number: self.state.places[partition]}, {number: stop})
        while True:
            try:
                written = self._piece(reader, number, piece_messages)
            except MessageNotFound as error:
                error.hint = "begin anew: in another directory, or here with --force"
                raise
            ((_, mark),) = look(store, reader._standing, up_to_damage=True).items()
            if written:
                self.state.places[partition] = mark
                self._save()
                yield self.counts.messages
            if written < piece_messages:
                return

    def finish(self) -> None:
        """All of it is there."""
        if not self.state.is_done:
            self.state.is_done = True
            self._save()

    def _piece(self, reader: Reader, partition: int, most: int) -> int:
        """Write at most so many messages; their files take their names together."""
        done = 0
        with ExitStack() as files:
            writers: dict[str, Writer] = {}
            name = ""
            while done < most:
                rows = reader.take(min(_AT_ONCE, most - done))
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

        def resolved(view: View) -> dict[int, Place]:
            found, of_all = find_topic(view, name), name.partition is None
            every = range(found.partitions) if name.partition is None else [name.partition]
            places = resolve_range(view, found, whole, list(every))
            if not is_settled(view, found, whole, places, of_all=of_all):
                check_whole(view)
            return places

        found = look(self._client._store, resolved, up_to_damage=True)
        stops = {str(index): place.stop for index, place in found.items()}
        return (
            {str(index): place.behind for index, place in found.items()},
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
                f"{self._root / STATE} is not of an export: {error}", path=str(self._root)
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


def _answer(topic: str, path: str, counts: Counts) -> Answer:
    name = TopicName.parse(topic, allow_partition=True)
    return {"topic": name.short, "path": path, "files": counts.files, "messages": counts.messages,
            "size_bytes": counts.size_bytes}  # fmt: skip

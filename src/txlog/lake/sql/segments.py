"""Owns segments: the files that hold the rows of a topic, their columns and row groups, their rows.

    listed   a row for each file, and one for a ledger's rows that are only in journal frames; also
             files of trimmed ledgers while they exist, with no messages; and files of the logs of
             changes, which belong to no topic, or to one of its cursors
    shown    one ledger, or one file, inside a store or outside
    stored   stored rows unchanged, including markers, watermark rows and changes

The keys of the answers are the fields that `txlog segment` prints. Rows of a store's file are
checked against its checksums; rows of another file are read without a check.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from txlog.base.ids import MessageId, TopicName
from txlog.base.ranges import Bound, Range
from txlog.client.answers.inspect import columns_of, groups_of, is_parquet
from txlog.engine.door.catalog import (
    check_partition,
    has_partition,
    index_of,
    number_of,
    numbers,
    topic_of,
)
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.disk import is_far
from txlog.engine.door.facts import MESSAGE
from txlog.engine.door.history import RELATIONS, name_of, read
from txlog.engine.door.journal import inspect_file
from txlog.engine.door.reading import live_rows
from txlog.engine.door.relation import RelationReader
from txlog.engine.door.segments import (
    ChangeRef,
    FileRef,
    SegmentReader,
    arrow_module,
    changes_of,
    generations,
    read_manifest,
    said_by_arrow,
)
from txlog.engine.door.store import View
from txlog.errors import Corruption, InvalidArgument, MissingFile, NotFound, TxlogError

if TYPE_CHECKING:
    from txlog.base.rows.files import ColumnShape, RowGroup, SegmentDescription, SegmentRow


SORTS: Final = ("ledger", "rows", "size")
ROWS_AT_ONCE: Final = 50_000
_LEDGER: Final = re.compile(r"/_?ledger-(\d{12})\.\d{10}\.\w+$")
Batches = tuple[pa.Schema, Iterator[pa.RecordBatch]]


def listed(
    client: RelationReader,
    topic: str | None,
    partition: int | None = None,
    *,
    small_bytes: int | None = None,
    sort: str = "ledger",
) -> list[SegmentRow]:
    """A row for each file of a topic and its cursors, with the fields of `txlog segment list`.

    topic:       None: all topics, then the logs of changes outside any topic
    small_bytes: only files smaller than this
    sort:        ledger, rows or size; the last two largest first
    raises:      TopicNotFound, InvalidArgument
    """
    if topic is None and partition is not None:
        raise InvalidArgument("a partition needs a topic", code=203)
    if sort not in SORTS:
        raise InvalidArgument(f"sort is {sort!r}, it must be one of {', '.join(SORTS)}")
    name = None if topic is None else TopicName.parse(topic, allow_partition=True)

    def question(view: View) -> list[SegmentRow]:
        trimmed, of_cursors = _trimmed(view), _of_cursors(view)
        shared = of_cursors.pop(0, [])
        rows = [
            row
            for number in _chosen(view, name, partition)
            for row in (
                *_gone(view, number, trimmed.get(number, [])),
                *_of_partition(view, number),
                *of_cursors.pop(number, []),
            )
        ]
        if name is None:  # the next checkpoint removes files of deleted topics
            rows += [row for cursor_rows in of_cursors.values() for row in cursor_rows] + shared
        return rows

    rows = client.store.ask(question)
    if small_bytes is not None:
        rows = [
            row
            for row in rows
            if row["file"] is not None
            and row["size_bytes"] is not None
            and row["size_bytes"] < small_bytes
        ]
    if sort == "size":
        rows.sort(key=lambda row: -(row["size_bytes"] or 0))
    elif sort == "rows":
        rows.sort(key=lambda row: -(row["rows"] or 0))
    return rows


def _chosen(view: View, name: TopicName | None, partition: int | None) -> list[int]:
    """The numbers of partitions: one, all of a topic, or without a name all of all topics."""
    if name is None:
        topics = sorted(view.catalog.topics.values(), key=lambda topic: topic.name)
        return [number for topic in topics for number in numbers(topic)]
    found_topic = find_topic(view, name)
    index = name.partition if partition is None else partition
    if index is None:
        return [*numbers(found_topic)]
    check_partition(name.topic.short, found_topic, index)
    return [number_of(found_topic, index)]


def _of_cursors(view: View) -> dict[int, list[SegmentRow]]:
    """The files of the logs of changes, by the partition of their cursor; 0: no partition."""
    out: dict[int, list[SegmentRow]] = {}
    for ref in changes_of(view.manifest).refs:
        out.setdefault(ref.partition, []).append(_of_changes(view, ref))
    return out


def _of_changes(view: View, ref: ChangeRef) -> SegmentRow:
    """The row of a file of a log of changes: no messages, and sealed if it is Parquet."""
    topic_name = name_of(view.catalog, (ref.subscription, ref.partition)) if ref.partition else None
    return {
        "topic": None if topic_name is None else topic_name.topic,
        "partition": None if topic_name is None else topic_name.partition,
        "ledger": None,
        "part": None,
        "state": "sealed" if ref.path.endswith(".parquet") else "open",
        "sidecar": False,
        "messages": 0,
        "markers": 0,
        "first": None,
        "last": None,
        "rows": ref.rows,
        "size_bytes": ref.bytes,
        "first_time": ref.time_first,
        "last_time": ref.time_last,
        "crc32c": f"{ref.crc:08x}",
        "file": ref.path,
        "log": RELATIONS[ref.kind],
    }


Gone = tuple[int, str, FileRef | None]  # ledger, path, reference of the file if known


def _trimmed(view: View) -> dict[int, list[Gone]]:
    """By partition: files of its trimmed ledgers that may still exist; none of its sidecar.

    The newest checkpoint has the FileRef of a file that a later frame dropped; the previous one may
    have the others.
    """
    refs = {
        ref.path: ref
        for ledger in view.files.gone_since()
        for ref in view.manifest.files.get(ledger, [])
    }
    paths = {*refs, *(path for path, _ in view.manifest.dropped if not is_far(path))}
    if paths - refs.keys():
        with suppress(TxlogError):  # then such a row has no counts and no checksum
            previous = read_manifest(view.disk, generations(view.disk)[0], view.salt)
            refs |= {
                ref.path: ref
                for refs_of_ledger in previous.files.values()
                for ref in refs_of_ledger
            }
    out: dict[int, list[Gone]] = {}
    for path in sorted(paths, key=_order):
        ledger = _ledger_of(path)
        number, role = view.catalog.owners.get(ledger, (0, ""))
        if role == "p" and all(end.ledger != ledger for end in view.topic(number).ledgers):
            out.setdefault(number, []).append((ledger, path, refs.get(path)))
    return out


def _ledger_of(path: str) -> int:
    match = _LEDGER.search(path)
    return 0 if match is None else int(match[1])


def _order(path: str) -> tuple[int, str]:
    return _ledger_of(path), path


def _gone(view: View, number: int, trimmed: Sequence[Gone]) -> Iterator[SegmentRow]:
    topic = topic_of(view.catalog, number)
    for ledger, path, ref in trimmed:
        size = None if ref is None else ref.bytes
        if not is_far(path):
            try:
                size = view.disk.size(path)
            except MissingFile:
                continue
        first = last = None
        if ref is not None and ref.rows:
            first, last = MessageId(ledger, ref.first), MessageId(ledger, ref.last)
        yield {
            "topic": TopicName.parse(topic.name).short,
            "partition": index_of(topic, number),
            "ledger": ledger,
            "state": "trimmed",
            "sidecar": False,
            "first_time": None,
            "last_time": None,
            "part": None,
            "rows": None if ref is None else ref.rows,
            "size_bytes": size,
            "crc32c": None if ref is None else f"{ref.crc:08x}",
            "file": path,
            "messages": 0,
            "markers": 0,
            "first": first,
            "last": last,
            "log": None,
        }


def _of_partition(view: View, number: int) -> Iterator[SegmentRow]:
    topic = topic_of(view.catalog, number)
    short, index = TopicName.parse(topic.name).short, index_of(topic, number)
    sides = ((False, view.topic(number).ledgers), (True, view.buffer(number).ledgers))
    for is_sidecar, ends in sides:
        for end in ends:
            state = "open" if end is ends[-1] else "sealed" if end.sealed else "closed"
            of: SegmentRow = {
                "topic": short,
                "partition": index,
                "ledger": end.ledger,
                "part": None,
                "state": state,
                "sidecar": is_sidecar,
                "messages": 0,
                "markers": 0,
                "first": None,
                "last": None,
                "rows": 0,
                "size_bytes": 0,
                "first_time": getattr(end, "first_ms", 0) or None,
                "last_time": getattr(end, "last_ms", 0) or None,
                "crc32c": None,
                "file": None,
                "log": None,
            }
            yield from _of_ledger(view, number, of, end.ledger, end.entries)
    if (compaction := view.topic(number).compaction) is not None:
        for ref in (ref for ledger in compaction.ledgers for ref in view.files.of(ledger)):
            yield {
                "topic": short,
                "partition": index,
                "ledger": ref.ledger,
                "part": None,
                "state": "compacted",
                "sidecar": False,
                "messages": ref.rows,
                "markers": 0,
                "first": None,
                "last": None,
                "rows": ref.rows,
                "size_bytes": ref.bytes,
                "first_time": None,
                "last_time": compaction.time_ms,
                "crc32c": f"{ref.crc:08x}",
                "file": ref.path,
                "log": None,
            }


def _of_ledger(
    view: View, number: int, of: SegmentRow, ledger: int, entries: int
) -> Iterator[SegmentRow]:
    """A row for each file of a ledger; of: the columns that all rows share."""
    refs = view.files.of(ledger)
    several = len(refs) > 1 or (refs and refs[0].form == "part")
    stored = 0
    for at, ref in enumerate(refs):
        stored += ref.rows
        row: SegmentRow = {
            **of,
            "part": at if several else None,
            "rows": ref.rows,
            "size_bytes": ref.bytes,
            "crc32c": f"{ref.crc:08x}",
            "file": ref.path,
        }
        _count(view, number, row, ledger, ref.first, ref.first + ref.rows - 1)
        yield row
    if stored < entries and of["state"] != "sealed":
        row = {**of, "rows": entries - stored}
        _count(view, number, row, ledger, stored, entries - 1)
        yield row


def _count(view: View, number: int, row: SegmentRow, ledger: int, first: int, last: int) -> None:
    """Set a row's messages, markers and bounds for these entries; of a sidecar, its live rows."""
    if row["sidecar"]:
        live = live_rows(view.buffer(number)).get(ledger, 0)
        row["messages"] = min(live, last - first + 1)
        return
    markers = [m for m in view.buffer(number).markers.get(ledger, []) if first <= m.entry <= last]
    silent = view.watermark(number).silent.get(ledger)
    quiet = 0 if silent is None else silent.range_cardinality(first, last + 1)
    own_markers = sum(1 for marker in markers if silent is None or marker.entry not in silent)
    row["messages"] = (
        last - first + 1 - quiet - own_markers + sum(marker.count for marker in markers)
    )
    row["markers"] = len(markers)
    if last >= first:
        row["first"], row["last"] = MessageId(ledger, first), MessageId(ledger, last)


# --- one segment -----------------------------------------------------------------------------


def shown(client: RelationReader, source: str) -> SegmentDescription:
    """Describe a ledger by number, or a file by its path below the store or anywhere.

    raises: NotFound (no such ledger or file), FormatMismatch, Corruption
    """
    changes = _changes(client, source)
    if changes is not None:
        row_known, path, table = changes
        return _with_shape(row_known, table, path)
    refs, row = _found(client, source)
    if row is None:
        return _of_stranger(source)
    columns: dict[str, ColumnShape] = {}
    groups: list[RowGroup] = []
    for ref in refs:
        _add(client, ref, columns, groups)
    return {**row, "column_list": list(columns.values()), "row_group_list": groups}


def _found(client: RelationReader, source: str) -> tuple[list[FileRef], SegmentRow | None]:
    """(the files of a ledger or path, their row as in `listed`); None: no file of the store."""

    def question(view: View) -> tuple[list[FileRef], SegmentRow | None]:
        for ledger, (number, _) in view.catalog.owners.items():
            refs = view.files.of(ledger)
            if source != str(ledger) and all(
                not _is_path(client, source, ref.path) for ref in refs
            ):
                continue
            if not has_partition(view.catalog, number):
                break
            rows = [row for row in _of_partition(view, number) if row["ledger"] == ledger]
            if source == str(ledger):
                return refs, _joined(rows, ledger)
            [at] = [n for n, ref in enumerate(refs) if _is_path(client, source, ref.path)]
            return [refs[at]], rows[at]
        return [], None

    refs, row = client.store.ask(question)
    if row is None and source.isdecimal() and len(source) < 20:
        raise NotFound(f"no ledger {source} has rows here", hint="txlog segment list TOPIC")
    return refs, row


def _changes(client: RelationReader, source: str) -> tuple[SegmentRow, str, pa.Table] | None:
    """(row, path, rows) of a file of a log of changes; None: another kind of file."""

    def question(view: View) -> tuple[SegmentRow, str, pa.Table] | None:
        for ref in changes_of(view.manifest).refs:
            if _is_path(client, source, ref.path):
                return _of_changes(view, ref), ref.path, read(view.disk, ref)
        return None

    return client.store.ask(question)


def _with_shape(row: SegmentRow, table: pa.Table, path: str) -> SegmentDescription:
    """A row plus the columns of a table, which count as one row group."""
    group: RowGroup = {
        "rows": table.num_rows,
        "size_bytes": table.nbytes,
        "file": path,
        "first": None,
        "last": None,
    }
    return {**row, "column_list": _arrow_columns(table), "row_group_list": [group]}


def _is_path(client: RelationReader, source: str, path: str) -> bool:
    return source == path or str(Path(source).absolute()) == f"{client.path}/{path}"


def _joined(rows: Sequence[SegmentRow], ledger: int) -> SegmentRow:
    """A ledger of several files as one row."""
    if not rows:
        raise NotFound(f"ledger {ledger} has no rows", hint="it was trimmed or is empty")
    if len(rows) == 1:
        return rows[0]
    return {
        **rows[0],
        "messages": sum(row["messages"] or 0 for row in rows),
        "size_bytes": sum(row["size_bytes"] or 0 for row in rows),
        "rows": sum(row["rows"] or 0 for row in rows),
        "markers": sum(row["markers"] or 0 for row in rows),
        "last": rows[-1]["last"],
        "part": None,
        "file": None,
        "crc32c": None,
    }


def _add(
    client: RelationReader, ref: FileRef, columns: dict[str, ColumnShape], groups: list[RowGroup]
) -> None:
    """Add the columns and row groups of a file to its ledger's."""
    first = 0
    for rows, _, length, _ in ref.groups:
        base = ref.first + first
        groups.append(
            {
                "rows": rows,
                "size_bytes": length,
                "file": ref.path,
                "first": MessageId(ref.ledger, base) if rows else None,
                "last": MessageId(ref.ledger, base + rows - 1) if rows else None,
            }
        )
        first += rows
    for column in _columns(client, ref):
        total = columns.setdefault(column["name"], {**column, "size_bytes": 0})
        total["size_bytes"] += column["size_bytes"]


def _columns(client: RelationReader, ref: FileRef) -> list[ColumnShape]:
    file = client.open(ref.path)
    try:
        if ref.form == "part":
            table = SegmentReader(file, ref).rows(0, ref.rows)
            return _arrow_columns(table)
        SegmentReader(file, ref).check_footer()
        tail = file.pread(ref.bytes - ref.footer_bytes, ref.footer_bytes)
    finally:
        file.close()
    footer = arrow_module("pyarrow.parquet").read_metadata(pa.BufferReader(tail))
    out: list[ColumnShape] = []
    for number in range(footer.num_columns):
        pieces = [footer.row_group(at).column(number) for at in range(footer.num_row_groups)]
        column = footer.schema.column(number)
        out.append(
            {
                "name": column.path,
                "type": column.physical_type.lower(),
                "codec": pieces[0].compression.lower() if pieces else None,
                "size_bytes": sum(piece.total_compressed_size for piece in pieces),
            }
        )
    return out


def _arrow_columns(table: pa.Table) -> list[ColumnShape]:
    return [
        {
            "name": name,
            "type": str(table.schema.field(name).type),
            "codec": None,
            "size_bytes": table.column(name).nbytes,
        }
        for name in table.column_names
        if table.column(name).null_count < table.num_rows
    ]


def _of_stranger(path: str) -> SegmentDescription:
    """A file that does not belong to this store."""
    inspected = inspect_file(path)
    if inspected["type"] not in ("parquet", "arrow", "bucket"):
        raise InvalidArgument(f"{path} is a {inspected['type']} and has no rows of messages")
    row: SegmentRow = {
        "topic": None,
        "partition": None,
        "ledger": None,
        "part": None,
        "state": None,
        "sidecar": None,
        "messages": None,
        "markers": None,
        "first": None,
        "last": None,
        "rows": inspected.get("rows"),
        "size_bytes": inspected["size_bytes"],
        "first_time": None,
        "last_time": None,
        "crc32c": None,
        "file": path,
        "log": None,
    }
    if is_parquet(path):
        columns: list[ColumnShape] = [
            {
                "name": item["name"],
                "type": item["type"],
                "codec": item["codec"],
                "size_bytes": item["size_bytes"],
            }
            for item in columns_of(path)
        ]
        groups: list[RowGroup] = [
            {
                "rows": item["rows"],
                "size_bytes": item["size_bytes"],
                "file": path,
                "first": None,
                "last": None,
            }
            for item in groups_of(path)
        ]
        return {**row, "column_list": columns, "row_group_list": groups}
    with pa.ipc.open_file(pa.py_buffer(Path(path).read_bytes())) as reader:
        table = reader.read_all()
    return _with_shape(row, table, path)


# --- rows ------------------------------------------------------------------------------------


def stored(
    client: RelationReader, source: str, row_group: int | None = None, entries: Range | None = None
) -> Batches:
    """The stored rows of a ledger or file, batch by batch, in the order they are stored.

    row_group: only this row group of the file, from 0
    entries:   only these entries: ids, or a number of rows from the start or before the end
    raises:    NotFound, InvalidArgument, Corruption
    """
    changes = _changes(client, source)
    if changes is not None:
        if entries is not None or row_group not in (None, 0):
            raise InvalidArgument("a file of changes has one row group and no entries", code=203)
        table = changes[2]
        return table.schema, iter(table.to_batches())
    refs, row = _found(client, source)
    if row is None:
        return _of_file(source, row_group)
    groups = [(ref, at) for ref in refs for at in range(len(ref.groups))]
    if row_group is not None and not 0 <= row_group < len(groups):
        group_count = f"there are {len(groups)}, from 0"
        raise InvalidArgument(f"no row group {row_group}; {group_count}", code=203)
    ledger, rows, is_sidecar = row["ledger"], row["rows"], row["sidecar"]
    assert ledger is not None
    assert rows is not None
    low, high = _entries(entries, ledger, rows)

    def batches() -> Iterator[pa.RecordBatch]:
        chosen = groups if row_group is None else [groups[row_group]]
        seen = 0
        for ref, at in chosen:
            table = _group(client, ref, at)
            start = seen if is_sidecar or row_group is not None else ref.first + _before(ref, at)
            seen += table.num_rows
            first, last = max(low - start, 0), min(high - start, table.num_rows)
            if first < last:
                yield from table.slice(first, last - first).to_batches()
        if row_group is None:
            yield from _in_frames(client, ledger, refs, (low, high))

    return MESSAGE, batches()


def _before(ref: FileRef, at: int) -> int:
    return sum(group[0] for group in ref.groups[:at])


def _group(client: RelationReader, ref: FileRef, at: int) -> pa.Table:
    file = client.open(ref.path)
    try:
        start = _before(ref, at)
        return SegmentReader(file, ref).rows(start, start + ref.groups[at][0])
    finally:
        file.close()


def _in_frames(
    client: RelationReader, ledger: int, refs: Sequence[FileRef], span: tuple[int, int]
) -> Iterator[pa.RecordBatch]:
    """A ledger's rows that are only in journal frames, within a span of entries."""
    done = sum(ref.rows for ref in refs)
    if refs and refs[0].form != "part":
        return

    def question(view: View) -> pa.Table:
        rows = sum(run.rows for run in view.tail.runs.get(ledger, []))
        low, high = max(done, span[0]), min(done + rows, span[1])
        return view.ledger_table(ledger, low, high) if low < high else MESSAGE.empty_table()

    yield from client.store.ask(question).to_batches()


def _entries(entry_range: Range | None, ledger: int, rows: int) -> tuple[int, int]:
    """The (first, last + 1) entry in a range."""
    if entry_range is None:
        return 0, 1 << 62
    if entry_range.kind != "range":
        raise InvalidArgument("a range of a segment is one of entries: +N, -N, or ids", code=203)
    low = _entry(entry_range.start, ledger, rows)
    return low, (1 << 62) if entry_range.stop is None else _entry(entry_range.stop, ledger, rows)


def _entry(bound: Bound, ledger: int, rows: int) -> int:
    if bound.kind == "start":
        return 0
    if bound.kind == "end":
        return 1 << 62
    if bound.kind == "skip":
        assert isinstance(bound.value, int)
        return bound.value
    if bound.kind == "last":
        assert isinstance(bound.value, int)
        return max(0, rows - bound.value)
    if bound.kind == "id" and isinstance(bound.value, MessageId):
        if bound.value.ledger != ledger:
            raise InvalidArgument(f"{bound.value} is not of ledger {ledger}", code=203)
        return bound.value.entry
    raise InvalidArgument("a range of a segment is one of entries: +N, -N, or ids", code=203)


def _of_file(path: str, row_group: int | None) -> Batches:
    if not Path(path).is_file():
        raise NotFound(f"{path} is neither a ledger nor a file", path=path)
    try:
        if is_parquet(path):
            file = arrow_module("pyarrow.parquet").ParquetFile(path)
            groups = None if row_group is None else [row_group]
            return file.schema_arrow, file.iter_batches(ROWS_AT_ONCE, row_groups=groups)
        data = Path(path).read_bytes()
        if not data.startswith(b"ARROW1"):
            raise InvalidArgument(f"{path} is neither Parquet nor Arrow: it has no rows", path=path)
        with pa.ipc.open_file(pa.py_buffer(data)) as reader:
            table = reader.read_all()
    except (pa.ArrowException, OSError) as error:
        reason = said_by_arrow(error)
        raise Corruption(f"{path} cannot be read: {reason}", path=path, offset=0) from error
    return table.schema, iter(table.to_batches(ROWS_AT_ONCE))

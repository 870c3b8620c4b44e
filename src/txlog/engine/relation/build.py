"""Builds the relation of a topic: the files and rows with its committed messages.

This decides visibility for all readers that read files without the API. The builder goes through a
partition ledger by ledger, and adds each file to the source whose rule it needs (relation). It
builds tables of the rows that are only in journal frames, and of large messages without values.

`hidden` finds the messages that no marker makes visible, of open and aborted transactions. They are
the rows that READ_UNCOMMITTED gives to a reader (plan/reading/uncommitted), all at once and with
their place in the files. A row of an aborted transaction exists until its ledger is sealed or
compacted. A row whose marker was trimmed was once visible, so it is excluded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import starmap
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from txlog.base.ids import TopicName, TxnId, txn_halves
from txlog.base.message_columns import LOCATED, USER
from txlog.base.startup import compute as pc
from txlog.engine.folds.buffer import Buffer, Marker
from txlog.engine.folds.catalog import Topic, number_of, record_schemas
from txlog.engine.model.schema import INSTANT, KIND_DATA, MESSAGE, TXN_ABORT, TXN_COMMIT
from txlog.engine.model.tail import repeat_runs
from txlog.engine.plan.damage import damage_error
from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.plan.participants import unavailable_error
from txlog.engine.plan.reading.compacted import compacted_files
from txlog.engine.plan.reading.uncommitted import check_isolation
from txlog.engine.relation.frames import Journals, MarkedRows, RowsInFrames
from txlog.engine.relation.positions import chosen_partitions
from txlog.engine.relation.relation import (
    ALL,
    COMMITTED,
    LARGE,
    MARKERS,
    FileSource,
    PlacedMarker,
    Relation,
    RelationContent,
    RelationFilter,
    Span,
    placed,
    share,
    source_of,
    spans_of,
)
from txlog.engine.storage.columns import schema_of
from txlog.engine.storage.segment import FileRef
from txlog.engine.view import Request, View
from txlog.errors import TxlogError

if TYPE_CHECKING:
    from txlog.base.rows.files import LedgerRows

# --- invisible messages ---------------------------------------------------------------------------


_TXN: Final = ("txn_most", "txn_least")
_USER: Final = (*USER, "producer", "sequence_id", "schema_version")
_READ: Final = ("txn_index", *_USER, "kind", *_TXN)
# The columns of a committed message (id, LSN and visible time are null), and the storage columns.
HIDDEN: Final = pa.schema([*COMMITTED, *schema_of(("txn_state", *LOCATED))])
_DATA: Final = pa.scalar(KIND_DATA, pa.int8())


def hidden(
    view: View, topic: Topic, indexes: Iterable[int], *, everything: bool = False
) -> pa.Table:
    """The invisible messages of the partitions (by index), as HIDDEN, in stored order.

    everything: include all other rows of their sidecars: ends of transactions, watermarks
    returns:    txn_state is open or aborted; for other rows also committed, null if not known
    cost:       O(markers + ledgers), and reading those rows
    """
    tables = [HIDDEN.empty_table()]
    for index in indexes:
        state = view.buffer(number_of(topic, index))
        for ledger, requests in _unmarked(view, state):
            rows = pa.concat_tables(view.rows(requests, _READ))
            numbers = pa.chunked_array([pa.arange(start, stop) for _, start, stop in requests])
            rows = rows.append_column("stored_entry", numbers)
            if not everything:
                rows = rows.filter(pc.equal(rows.column("kind"), _DATA))
            total = rows.num_rows
            computed = {name: rows.column(name) for name in _READ}
            computed |= {
                "partition": pa.repeat(pa.scalar(index, pa.int32()), total),
                "stored_ledger": pa.repeat(pa.scalar(ledger, pa.int64()), total),
                "stored_entry": rows.column("stored_entry"),
                "txn_state": _states(state, rows),
            }
            columns = [
                computed[field.name] if field.name in computed else pa.nulls(total, field.type)
                for field in HIDDEN
            ]
            tables.append(pa.Table.from_arrays(columns, schema=HIDDEN))
    return pa.concat_tables(tables)


def _unmarked(view: View, state: Buffer) -> Iterator[tuple[int, list[Request]]]:
    """(ledger, ranges of its rows that no marker makes or made visible), in order."""
    marked: dict[int, list[tuple[int, int]]] = {
        ledger: [(row, row + rows) for row, rows in trimmed]
        for ledger, trimmed in state.trimmed.items()
    }
    for markers in state.markers.values():
        for marker in markers:
            for ledger, row, rows, _ in marker.ranges:
                marked.setdefault(ledger, []).append((row, row + rows))
    for end in state.ledgers:
        ledger, at = end.ledger, 0
        total = 1 if ledger in state.chunked else end.entries
        if end.sealed and ledger not in state.chunked:
            total = view.files.of(ledger)[0].rows  # a sealed file leaves rows out
        requests: list[Request] = []
        for low, high in [*sorted(marked.get(ledger, ())), (total, total)]:
            if at < low:
                requests.append((ledger, at, low))
            at = max(at, high)
        if requests:
            yield ledger, requests


def _states(state: Buffer, rows: pa.Table) -> pa.Array:
    """The state of each row's transaction."""
    open_txns = [
        (number, sequence) for number, by_sequence in state.held.items() for sequence in by_sequence
    ]
    states = pa.scalar(None, pa.string())
    is_data = pc.equal(rows.column("kind"), _DATA)
    if not pc.all(is_data).as_py():
        marked = {
            (m.coordinator, m.sequence) for markers in state.markers.values() for m in markers
        }
        states = pc.if_else(_is_of(rows, marked), pa.scalar("committed"), states)
        for kind, name in ((TXN_COMMIT, "committed"), (TXN_ABORT, "aborted")):
            ends = rows.filter(pc.equal(rows.column("kind"), pa.scalar(kind, pa.int8())))
            halves = zip(*(ends.column(name).to_pylist() for name in _TXN), strict=True)
            ended = {(txn.coordinator, txn.sequence) for txn in starmap(TxnId.from_halves, halves)}
            states = pc.if_else(_is_of(rows, ended), pa.scalar(name), states)
    states = pc.if_else(is_data, pa.scalar("aborted"), states)
    return pc.if_else(_is_of(rows, open_txns), pa.scalar("open"), states)


def _is_of(rows: pa.Table, txns: Iterable[tuple[int, int]]) -> pa.Array:
    """For each row, whether it belongs to a transaction in `txns`."""
    by_most: dict[int, list[int]] = {}
    for coordinator, sequence in txns:
        most, least = txn_halves(coordinator, sequence)
        by_most.setdefault(most, []).append(least)
    mask = pa.repeat(pa.scalar(False), rows.num_rows)
    for most, sequences in by_most.items():
        of = pc.equal(rows.column("txn_most"), pa.scalar(most, pa.int64()))
        its = pc.is_in(rows.column("txn_least"), value_set=pa.array(sequences, pa.int64()))
        mask = pc.or_(mask, pc.and_(of, its))
    return mask


# --- building -------------------------------------------------------------------------------------


_STORED: Final = ("kind", "entry", "lsn", "txn_index", *_USER)
_PLACES: Final = ("kind", "entry", "lsn", "txn_index", "publish_time", "producer")
_TOGETHER: Final = 50_000  # rows in frames
_FILED: Final = 1 << 62  # a sealed ledger has every row in its file


def contents(
    view: View,
    names: Collection[str] | None,
    isolation: str = "committed",
    *,
    everything: bool = False,
    skip_unavailable: bool = False,
    compacted: bool = False,
    counted: bool = False,
    in_pieces: bool = False,
) -> list[RelationContent]:
    """The contents of the named topics, by short or full names in any case; None: all topics.

    The rows of open parts are not read: `relation.open` has their files.

    compacted: add the files of compacted rows
    in_pieces: rows in frames are in `frames`; all share their journal files, the caller closes one
    others, raises: as relation
    """
    folded = None if names is None else {word.casefold() for word in names}
    out: list[RelationContent] = []
    journals = Journals(view.disk, view.salt) if in_pieces else None
    try:
        for topic in sorted(view.catalog.topics.values(), key=lambda topic: topic.name):
            name = TopicName.parse(topic.name)
            if folded is None or folded & {name.full.casefold(), name.short.casefold()}:
                relation_ = relation(
                    view,
                    name,
                    skip_unavailable=skip_unavailable,
                    isolation=isolation,
                    everything=everything,
                    counted=counted,
                    journals=journals,
                )
                if compacted:
                    relation_ = replace(
                        relation_, compacted=_compacted(view, topic, relation_.unavailable)
                    )
                nothing = part_rows(view, [])
                out.append(RelationContent(relation_, name.full, nothing, nothing))
    except BaseException:  # no caller has them yet, so close them here
        if journals is not None:
            journals.close()
        raise
    return out


def _compacted(view: View, topic: Topic, left_out: Collection[int]) -> list[FileSource]:
    """The files of compacted rows of a topic."""
    return [
        source_of(index, "c", ref)
        for index in range(topic.partitions)
        if index not in left_out
        for ref in compacted_files(view, number_of(topic, index))
    ]


def content(
    view: View,
    name: TopicName,
    selection: RelationFilter = ALL,
    *,
    skip_unavailable: bool = False,
    isolation: str = "committed",
) -> RelationContent:
    """The selected relation of a topic, or of one partition of it, with the rows of its open parts.

    raises: as relation, part_rows
    """
    relation_ = relation(
        view, name, selection, skip_unavailable=skip_unavailable, isolation=isolation
    )
    parts = [
        part_rows(view, [source for source in relation_.open if source.role == role])
        for role in ("p", "s")
    ]
    return RelationContent(relation_, TopicName.parse(find_topic(view, name).name).full, *parts)


def relation(
    view: View,
    name: TopicName,
    selection: RelationFilter = ALL,
    *,
    skip_unavailable: bool = False,
    isolation: str = "committed",
    everything: bool = False,
    counted: bool = False,
    journals: Journals | None = None,
) -> Relation:
    """The relation of a topic, or of one partition of it.

    everything: include the storage columns, and rows of all kinds; for isolation uncommitted
    counted:  the user's columns of rows in frames are null, so that no frame is read
    journals: rows in frames are in `frames`, read from these, and none in `tail`
    raises: TopicNotFound; PartitionUnavailable, Corruption (604) unless skip_unavailable;
            InvalidArgument for an unknown isolation; as spans_of
    cost:   O(files + selected markers + rows in frames); uncommitted: plus the invisible rows
    """
    check_isolation(isolation)
    topic = find_topic(view, name)
    chosen = chosen_partitions(topic, name, selection.partitions)
    builder = _RelationBuilder(view, everything, counted, journals)
    left_out: list[int] = []
    there: list[int] = []
    for index in range(topic.partitions) if chosen is None else chosen:
        number = number_of(topic, index)
        if number not in view.catalog.unavailable:
            there.append(index)
        elif skip_unavailable:
            left_out.append(index)
        else:
            raise _why_unavailable(view, topic, number)
    return builder.relation(topic, selection, there, left_out, isolation)


def part_rows(view: View, sources: Sequence[FileSource]) -> pa.Table:
    """The stored rows of parts, every byte checked, with the partition and ledger of each.

    A partition's part yields only the selected rows; a sidecar's part is joined with the selected
    markers.

    raises: Corruption; MissingFile when the view is outdated
    """
    tables = [
        pa.schema([("partition", pa.int32()), ("ledger", pa.int64()), *MESSAGE]).empty_table()
    ]
    for source in sources:
        ref, low, high = source.ref, 0, source.ref.rows
        if source.within is not None:
            low, high = source.within.entries(ref.ledger, ref.last + 1)
            low, high = max(low - ref.first, 0), high - ref.first
        rows = view.files.pick(ref, [(low, high)], MESSAGE.names)
        of = (pa.scalar(source.partition, pa.int32()), pa.scalar(ref.ledger, pa.int64()))
        columns = [pa.repeat(value, rows.num_rows) for value in of]
        tables.append(pa.table([*columns, *rows.columns], schema=tables[0].schema))
    return pa.concat_tables(tables)


def segments(view: View) -> list[LedgerRows]:
    """Where the rows of every ledger are: an item for each file, and one for rows in frames.

    role:    partition or sidecar
    state:   open, closed (takes no more rows) or sealed
    form:    part, sealed, adopted, or chunks of one large message; without a file: frames
    markers: commit markers of the whole ledger
    cost:    O(files)
    """
    out: list[LedgerRows] = []
    for topic in sorted(view.catalog.topics.values(), key=lambda topic: topic.name):
        short = TopicName.parse(topic.name).short
        for index in range(topic.partitions):
            number = number_of(topic, index)
            buffer = view.buffer(number)
            sides = (("partition", view.topic(number).ledgers), ("sidecar", buffer.ledgers))
            for role, ends in sides:
                for end in ends:
                    state = "open" if end is ends[-1] else "sealed" if end.sealed else "closed"
                    files = view.files.of(end.ledger)
                    stored = sum(ref.rows for ref in files)
                    of: LedgerRows = {
                        "topic": short,
                        "partition": index,
                        "ledger": end.ledger,
                        "role": role,
                        "state": state,
                        "markers": len(buffer.markers.get(end.ledger, ()))
                        if role == "partition"
                        else None,
                        "form": "frames",
                        "rows": end.entries - stored,
                        "first_entry": stored,
                        "last_entry": end.entries - 1,
                    }
                    out += [_in_file(of, ref) for ref in files]
                    if not end.sealed and stored < end.entries:
                        out.append(of)
    return out


def _in_file(of: LedgerRows, ref: FileRef) -> LedgerRows:
    return {
        **of,
        "file": ref.path,
        "form": ref.form,
        "clean": ref.clean,
        "rows": ref.rows,
        "bytes": ref.bytes,
        "crc": ref.crc,
        "first_entry": ref.first,
        "last_entry": ref.last,
        "first_lsn": ref.lsn_first,
        "last_lsn": ref.lsn_last,
    }


def _hidden(
    view: View,
    topic: Topic,
    selection: RelationFilter,
    indexes: list[int],
    isolation: str,
    *,
    everything: bool,
) -> pa.Table:
    """The invisible messages, if selected; they come after the end, as for a reader."""
    if not everything and (isolation == "committed" or not selection.has_end):
        return HIDDEN.empty_table()
    rows = hidden(view, topic, indexes, everything=everything)
    txn = selection.range.txn
    if txn is not None:
        of = zip(_TXN, (txn.most, txn.least), strict=True)
        tests = [pc.equal(rows.column(name), pa.scalar(half, pa.int64())) for name, half in of]
        rows = rows.filter(pc.and_(*tests))
    return rows


def _why_unavailable(view: View, topic: Topic, number: int) -> TxlogError:
    """The error that a reader gets for an unavailable partition: offline, or quarantined."""
    if view.catalog.unavailable[number].reason == "damage":
        return damage_error(view, number)
    return unavailable_error(view.catalog, topic, number)


class _RelationBuilder:
    """Builds a relation, partition by partition."""

    def __init__(
        self, view: View, everything: bool, counted: bool, journals: Journals | None
    ) -> None:
        self._view = view
        self._everything = everything
        stored = schema_of(LOCATED if everything else ())
        self.of_tail = pa.schema([*COMMITTED, *stored])
        self.of_large = pa.schema([*LARGE, *stored])
        self._read = [*(_PLACES if counted else _STORED), *(_TXN if everything else ())]
        self.frames: RowsInFrames | None = None
        if journals is not None:
            self.frames = RowsInFrames(journals, self.of_tail, everything=everything)
        self.direct: list[FileSource] = []
        self.unclean: list[FileSource] = []
        self.open: list[FileSource] = []
        self.large_files: list[FileSource] = []
        self.large: list[pa.Table] = []
        self.markers: list[pa.Table] = []
        self.tail: list[pa.Table] = []

    def relation(
        self,
        topic: Topic,
        selection: RelationFilter,
        there: list[int],
        left_out: list[int],
        isolation: str,
    ) -> Relation:
        """The relation of a topic with the partitions `there`; `left_out` are unavailable."""
        view = self._view
        first_ledger = [0] * topic.partitions
        spans = {} if selection.is_all else spans_of(view, topic, selection, there)
        for index in there if selection.is_all else spans:
            number = number_of(topic, index)
            first_ledger[index] = view.topic(number).ledgers[0].ledger
            self.add(index, number, spans.get(index))
        return Relation(
            store=view.disk.description,
            generation=view.manifest.generation,
            lsn=view.lsn,
            topic=TopicName.parse(topic.name).short,
            partitions=topic.partitions,
            first_ledger=first_ledger,
            unavailable=left_out,
            direct=self.direct,
            unclean=self.unclean,
            open=self.open,
            large_files=self.large_files,
            large=_whole(self.large, self.of_large),
            markers=_whole(self.markers, MARKERS),
            tail=_whole(self.tail, self.of_tail),
            spans=spans,
            hidden=_hidden(view, topic, selection, there, isolation, everything=self._everything),
            everything=self._everything,
            schemas=tuple(record_schemas(topic)),
            frames=self.frames,
        )

    def add(self, index: int, number: int, span: Span | None) -> None:
        """Add a partition: its number in the topic and in the store, and the selected range."""
        state, buffer = self._view.topic(number), self._view.buffer(number)
        placed_markers = list(placed(buffer, span))
        rows: dict[int, int] = {}  # by ledger of the sidecar: how many of its rows are selected
        for _, _, at in placed_markers:
            rows[at[0]] = rows.get(at[0], 0) + at[2]
        filed: dict[int, int] = {}  # by ledger: rows that are in files
        since: dict[int, int] = {}  # by ledger that is joined with markers: its least LSN
        large: dict[int, FileRef] = {}
        for role, ends in (("p", state.ledgers), ("s", buffer.ledgers)):
            for end in ends:
                for ref in self._view.files.of(end.ledger):
                    is_part = ref.form == "part"
                    filed[end.ledger] = filed.get(end.ledger, 0) + ref.rows if is_part else _FILED
                    if ref.form == "chunks":
                        large[end.ledger] = ref
                        continue
                    is_clean = ref.clean and end.ledger not in buffer.trimmed
                    is_joined = role == "s" and (is_part or not is_clean)
                    if is_joined:
                        since.setdefault(end.ledger, ref.lsn_first)
                    count = share(span, role, ref, rows)
                    if count:
                        sources = self.unclean if is_joined else self.direct
                        within = span if count < ref.rows and not is_joined else None
                        source = source_of(index, role, ref, within)
                        (self.open if is_part else sources).append(source)
        self._add_plain_tail(
            index, [(end.ledger, end.entries) for end in state.ledgers], filed, span
        )
        self._add_marked(index, buffer, placed_markers, filed, since, large)

    def _add_plain_tail(
        self, index: int, ends: list[tuple[int, int]], filed: dict[int, int], span: Span | None
    ) -> None:
        """Add rows of the partition that are in frames."""
        for ledger, entries in ends:
            low, high = (0, entries) if span is None else span.entries(ledger, entries)
            start = max(low, filed.get(ledger, 0))
            if start >= high:
                continue
            if self.frames is not None:
                self._add_pieces(self.frames, index, ledger, (ledger, start, high), None)
                continue
            # the memory of frames is freed before the next step
            for begin in range(start, high, _TOGETHER):
                request = (ledger, begin, min(begin + _TOGETHER, high))
                rows = pa.concat_tables(self._view.rows([request], self._read))
                if not self._everything:
                    is_data = pc.equal(rows.column("kind"), _DATA)
                    rows = rows if pc.all(is_data).as_py() else rows.filter(is_data)
                at = pa.repeat(pa.scalar(ledger, pa.int64()), rows.num_rows)
                times = {"visible_time": rows.column("publish_time")}
                placement = {"ledger": at, "stored_ledger": at, **times}
                self.tail.append(_committed(self.of_tail, index, rows, placement))

    def _add_marked(
        self,
        index: int,
        buffer: Buffer,
        placed_markers: list[PlacedMarker],
        filed: dict[int, int],
        since: dict[int, int],
        large: dict[int, FileRef],
    ) -> None:
        """Add markers that files are joined with, and their rows outside these files."""
        joined: list[tuple[int, Marker, int]] = []
        tail: list[tuple[Request, int, Marker]] = []
        whole: list[tuple[Request, int, Marker]] = []
        for number, marker, at in placed_markers:
            ledger, row, rows, _ = at
            if ledger in since and row < filed[ledger]:
                if joined and joined[-1][1] is marker:
                    joined[-1] = (number, marker, min(joined[-1][2], since[ledger]))
                else:
                    joined.append((number, marker, since[ledger]))
            start = max(row, filed.get(ledger, 0))
            if ledger in large:
                whole.append(((ledger, row, row + rows), number, marker))
            elif start < row + rows:
                tail.append(((ledger, start, row + rows), number, marker))
        if joined:
            self.markers.append(_markers(index, joined))
        if tail:
            tail.sort(key=lambda item: item[0])  # in order, each frame is read once
            if self.frames is None:
                self.tail.append(self._marked(self.of_tail, index, tail, {}))
                tail.clear()
            for request, ledger, marker in tail:
                assert self.frames is not None
                self._add_pieces(
                    self.frames, index, request[0], request, MarkedRows(ledger, marker)
                )
        if whole:
            refs = [large[request[0]] for request, _, _ in whole]
            self.large_files += [source_of(index, "s", ref) for ref in refs]
            large_messages = [buffer.chunked[ref.ledger] for ref in refs]
            more = {
                "path": pa.array([ref.path for ref in refs]),
                "bytes": pa.array([message.value_bytes for message in large_messages]),
                "crc": pa.array([message.crc for message in large_messages]),
            }
            self.large.append(self._marked(self.of_large, index, whole, more))

    def _add_pieces(
        self, frames: RowsInFrames, index: int, ledger: int, request: Request, at: MarkedRows | None
    ) -> None:
        """Add rows of a ledger that are in frames, to be read later."""
        _, start, stop = request
        slices = self._view.tail.slices(ledger, start, stop)
        if sum(high - low for _, low, high in slices) != stop - start:
            self._view.rows([request], ["kind"])  # raises with the missing rows
        frames.add(index, ledger, slices, at)

    def _marked(
        self,
        schema: pa.Schema,
        index: int,
        marked: list[tuple[Request, int, Marker]],
        more: dict[str, pa.Array],
    ) -> pa.Table:
        """Rows of the sidecar with the places of their markers."""
        names = [name for name in self._read if name != "value" or name in schema.names]
        rows = pa.concat_tables(self._view.rows([request for request, _, _ in marked], names))
        ends: list[int] = []
        for (_, start, stop), _, _ in marked:
            ends.append((ends[-1] if ends else 0) + stop - start)
        markers = [marker for _, _, marker in marked]
        placement = {
            "ledger": repeat_runs([number for _, number, _ in marked], ends, pa.int64()),
            "entry": repeat_runs([marker.entry for marker in markers], ends, pa.int64()),
            "visible_time": repeat_runs([marker.time_ms for marker in markers], ends, INSTANT),
            "lsn": repeat_runs([marker.lsn for marker in markers], ends, pa.int64()),
            "stored_ledger": repeat_runs([at[0] for at, _, _ in marked], ends, pa.int64()),
        }
        return _committed(schema, index, rows, {**placement, **more})


def _markers(index: int, joined: list[tuple[int, Marker, int]]) -> pa.Table:
    markers = [marker for _, marker, _ in joined]
    halves = [txn_halves(marker.coordinator, marker.sequence) for marker in markers]
    columns: list[Sequence[int]] = [
        [index] * len(joined),
        [most for most, _ in halves],
        [least for _, least in halves],
        [number for number, _, _ in joined],
        [marker.entry for marker in markers],
        [marker.count for marker in markers],
        [marker.time_ms for marker in markers],
        [marker.lsn for marker in markers],
        [first for _, _, first in joined],
    ]
    arrays = [pa.array(values, f.type) for values, f in zip(columns, MARKERS, strict=True)]
    return pa.Table.from_arrays(arrays, schema=MARKERS)


def _committed(
    schema: pa.Schema, index: int, rows: pa.Table, placement: dict[str, pa.Array]
) -> pa.Table:
    """Stored rows with the columns of their placement."""
    columns = {name: rows.column(name) for name in rows.column_names}
    columns["stored_entry"] = columns["entry"]
    columns |= {"partition": pa.repeat(pa.scalar(index, pa.int32()), rows.num_rows), **placement}
    for field in schema:
        if field.name not in columns:
            columns[field.name] = pa.nulls(rows.num_rows, field.type)
    return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


def _whole(tables: list[pa.Table], schema: pa.Schema) -> pa.Table:
    return pa.concat_tables([schema.empty_table(), *tables])

"""The progress of a stream over a topic: its position, its next batch, lost messages.

The place of a stream in each partition is the first position that it has not read. Below the
visible end nothing changes or is added, so every read between two places gives the same rows.

A batch ends at the end of a frame, so a transaction comes whole over all partitions. A frame of
plain rows is cut only if it alone exceeds the limits, and then in all its partitions at the same
event time. Otherwise a reader whose watermark follows the latest event time seen would find later
rows of the other partitions late, and drop them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from txlog.base.ids import MessageId, TopicName
from txlog.base.ranges import Bound, Range
from txlog.base.startup import compute as pc
from txlog.engine.folds.buffer import Marker
from txlog.engine.folds.catalog import Topic, has_partition, number_of, topic_of
from txlog.engine.folds.topic import LedgerEnd
from txlog.engine.model.ops import Mark
from txlog.engine.model.schema import KIND_DATA, TXN_COMMIT
from txlog.engine.plan.reading.ranges import check_retained, end_of, start_of, stop_after
from txlog.engine.plan.reading.watermarks import WatermarkGenerator
from txlog.engine.relation.relation import RelationFilter, Span, above_lsn, spans_of
from txlog.engine.view import View
from txlog.errors import MessageNotFound

Places = dict[int, Mark]  # by partition: the first position that is not read
_STEP: Final = 16_384  # rows read together
INSTANT_SHOWN_MAX: Final = 253_402_300_799_999  # the last of year 9999
_ROWS: Final = pa.schema(
    [
        ("lsn", pa.int64()),
        ("partition", pa.int32()),
        ("ledger", pa.int64()),
        ("entry", pa.int64()),
        ("messages", pa.int64()),
        ("bytes", pa.int64()),
        ("commits", pa.bool_()),
    ]
)
_DATA, _MARKER = (pa.scalar(kind, pa.int8()) for kind in (KIND_DATA, TXN_COMMIT))
_NONE, _ONE = (pa.scalar(value, pa.int64()) for value in (0, 1))


def indexes_of(topic: Topic, name: TopicName) -> list[int]:
    """The indexes of the partition that a name has, or of all partitions of the topic now."""
    return list(range(topic.partitions)) if name.partition is None else [name.partition]


def first_places(view: View, topic: Topic, indexes: list[int], bound: Bound) -> Places:
    """The places where a stream begins.

    An id selects one partition; the others begin with their first message.

    raises: as spans_of
    """
    spans = spans_of(view, topic, RelationFilter(range=Range(bound)), indexes)
    firsts = {index: first_place(view, topic, index) for index in indexes}
    return {
        index: max(first, spans[index].start) if index in spans else first
        for index, first in firsts.items()
    }


def first_place(view: View, topic: Topic, index: int) -> Mark:
    """The first position of a partition that still exists."""
    number = number_of(topic, index)
    return max(stop_after(start_of(view, number)), (view.topic(number).ledgers[0].ledger, 0, 0))


def last_places(view: View, topic: Topic, indexes: list[int]) -> Places:
    """The places after all messages that are visible now."""
    return {index: end_of(view, topic, index) for index in indexes}


def are_rows_between(
    view: View, topic: Topic, places: Mapping[int, Mark], ends: Mapping[int, Mark]
) -> bool:
    """True when at least one row is between the places and the ends."""
    for index, start in places.items():
        span = Span(start, ends[index])
        for end in view.topic(number_of(topic, index)).ledgers:
            low, high = span.entries(end.ledger, end.entries)
            if low < high:
                return True
    return False


def check_there(view: View, topic: Topic, places: Mapping[int, Mark]) -> None:
    """Refuse to continue if unread messages were trimmed, or another topic has the name now.

    raises: MessageNotFound, with the range if they were trimmed
    """
    for index, (ledger, entry, inner) in places.items():
        number = number_of(topic, index)
        position = (ledger, entry, inner - 1) if inner > 1 else (ledger, entry - 1, 0)
        check_retained(view, topic, number, position)
        if ledger and view.catalog.owners.get(ledger) != (number, "p"):
            short = TopicName.parse(topic.name).short
            owner = view.catalog.owners.get(ledger, (-1, ""))[0]
            hint, reason = "start with a new checkpoint", "the topic was deleted and made again"
            if has_partition(view.catalog, owner):
                renamed = TopicName.parse(topic_of(view.catalog, owner).name).short
                hint, reason = f"go on with {renamed}, or {hint}", f"it is of {renamed}"
            raise MessageNotFound(
                f"ledger {ledger} is not of {short}/{index}: {reason}",
                hint=hint,
                topic=short,
                partition=index,
            )


def next_places(
    view: View,
    topic: Topic,
    places: Mapping[int, Mark],
    ends: Mapping[int, Mark],
    rows_max: int | None,
    bytes_max: int | None,
) -> Places:
    """The end of the batch that begins at `places`, at most `ends`; None: no limit.

    rows_max counts messages. It ends after a frame. If the first frame alone exceeds a limit, it
    ends inside that frame, with a share of each partition; a frame with a commit is never cut.
    cost: reads kinds and LSNs of as many rows as fit, in each partition; to cut a frame, event
          times as well
    """
    if rows_max is None and bytes_max is None:
        return dict(ends)
    room = (rows_max or 1 << 62, bytes_max or 1 << 62)
    tables = [
        _rows(view, index, number_of(topic, index), Span(start, ends[index]), room)
        for index, start in places.items()
    ]
    rows = pa.concat_tables([_ROWS.empty_table(), *tables])
    total = tuple(pc.sum(rows.column(name)).as_py() or 0 for name in ("messages", "bytes"))
    if total[0] <= room[0] and total[1] <= room[1]:
        return dict(ends)
    frames = (
        rows.group_by("lsn", use_threads=False)
        .aggregate([("messages", "sum"), ("bytes", "sum")])
        .rename_columns({"messages_sum": "messages", "bytes_sum": "bytes"})
        .sort_by("lsn")
    )
    fitting = _fitting(frames, room)
    if fitting:
        last = frames.column("lsn")[fitting - 1]
        fitting_rows = rows.filter(pc.less_equal(rows.column("lsn"), last))
        return _after(fitting_rows, places)
    lsn = frames.column("lsn")[0]
    first = rows.filter(pc.equal(rows.column("lsn"), lsn))
    stops = {
        index: max(start, min(ends[index], above_lsn(view, number_of(topic, index), lsn.as_py())))
        for index, start in places.items()
    }
    if pc.any(first.column("commits")).as_py():
        return stops
    spans = {index: Span(start, stops[index]) for index, start in places.items()}
    shared = _shared(view, topic, first, spans)
    return _after(shared.slice(0, max(1, _fitting(shared, room))), places)


def _after(rows: pa.Table, places: Mapping[int, Mark]) -> Places:
    """The places after these rows, which are in the order of each partition."""
    last_rows = rows.group_by("partition", use_threads=False).aggregate(
        [("ledger", "last"), ("entry", "last")]
    )
    out = dict(places)
    for row in last_rows.to_pylist():
        out[row["partition"]] = (row["ledger_last"], row["entry_last"] + 1, 0)
    return out


def watermark_at(view: View, topic: Topic, places: Mapping[int, Mark]) -> int | None:
    """The watermark of a topic with its partitions at these places, in ms.

    It is the least of the active partitions; None without one, or while one is unknown. It is the
    same for every call, and at most the last instant that Spark can show.
    """
    generators = []
    for index, (ledger, entry, _) in places.items():
        generator = WatermarkGenerator(number_of(topic, index))
        generator.seek(view, (ledger, entry - 1))
        generators.append(generator)
    values = [generator.get_watermark() for generator in generators if generator.status != "idle"]
    known_values = [value for value in values if value is not None]
    return (
        min([*known_values, INSTANT_SHOWN_MAX])
        if known_values and len(known_values) == len(values)
        else None
    )


def last_before(view: View, number: int, position: Mark) -> MessageId | None:
    """The last message of a partition before the entry of a position; None: there is none."""
    for end in reversed(view.topic(number).ledgers):
        ledger, high = end.ledger, end.entries
        if ledger > position[0]:
            continue
        if ledger == position[0]:
            high = min(high, position[1])
        while high > 0:
            low = max(0, high - _STEP)
            table = pa.concat_tables(view.rows([(ledger, low, high)], ["kind", "count"]))
            counts = _messages(table)
            with_messages = counts.filter(pc.greater(counts.column("messages"), _NONE))
            if with_messages.num_rows:
                [last] = with_messages.slice(with_messages.num_rows - 1).to_pylist()
                index = last["messages"] if last["kind"] == TXN_COMMIT else 0
                return MessageId(ledger, low + last["row"], index)
            high = low
    return None


def _rows(view: View, index: int, number: int, span: Span, room: tuple[int, int]) -> pa.Table:
    """The rows of a span with their sizes, until they exceed the room."""
    tables = [_ROWS.empty_table()]
    messages = size = 0
    for end in view.topic(number).ledgers:
        at, high = span.entries(end.ledger, end.entries)
        if at >= high:
            continue
        markers = view.buffer(number).markers.get(end.ledger, [])
        while at < high:
            stop = min(high, at + _STEP)
            rows = pa.concat_tables(view.rows([(end.ledger, at, stop)], ["kind", "lsn", "count"]))
            tables.append(_weighed(rows, index, end, at, markers))
            messages += pc.sum(tables[-1].column("messages")).as_py()
            size += pc.sum(tables[-1].column("bytes")).as_py()
            at = stop
            if messages > room[0] or size > room[1]:
                return pa.concat_tables(tables)
    return pa.concat_tables(tables)


def _shared(view: View, topic: Topic, rows: pa.Table, spans: Mapping[int, Span]) -> pa.Table:
    """Plain rows of one frame in the order in which its partitions advance together.

    The order is by event time if every partition has one. Rows with equal or no event time come in
    proportion to the partition's remaining rows of the frame. A row counts with the latest event
    time up to it in its partition, because it cannot come before earlier rows.
    """
    tables = []
    for index in pc.unique(rows.column("partition")).to_pylist():
        own_rows = rows.filter(pc.equal(rows.column("partition"), pa.scalar(index, pa.int32())))
        bounds = [
            spans[index].entries(end.ledger, end.entries)
            for end in view.topic(number_of(topic, index)).ledgers
        ]
        remaining = pa.scalar(float(sum(high - low for low, high in bounds)))
        share = pc.divide(pa.arange(1, len(own_rows) + 1).cast(pa.float64()), remaining)
        tables.append(
            own_rows.append_column("time", _latest(view, own_rows)).append_column("share", share)
        )
    is_timed = all(table.column("time").null_count < len(table) for table in tables)
    order = ["time", "share", "partition"] if is_timed else ["share", "partition"]
    return pa.concat_tables(tables).sort_by([(name, "ascending") for name in order])


def _latest(view: View, rows: pa.Table) -> pa.Array:
    """The latest event time up to each row of a partition.

    Rows before the first event time get that time.
    """
    ledgers = rows.group_by("ledger", use_threads=False).aggregate(
        [("entry", "first"), ("entry", "last")]
    )
    requests = [
        (ledger["ledger"], ledger["entry_first"], ledger["entry_last"] + 1)
        for ledger in ledgers.to_pylist()
    ]
    event_times = pa.concat_tables(view.rows(requests, ["event_time"])).column("event_time")
    times = event_times.combine_chunks().cast(pa.int64())
    is_message = pc.greater(rows.column("messages"), _NONE).combine_chunks()
    latest = pc.cumulative_max(pc.if_else(is_message, times, None), skip_nulls=True)
    return pc.fill_null_backward(pc.fill_null_forward(latest))


def _weighed(
    rows: pa.Table, index: int, end: LedgerEnd, first: int, markers: list[Marker]
) -> pa.Table:
    """Rows from an entry on, as _ROWS; bytes are exact for markers, else the ledger's average."""
    table = _messages(rows)
    in_markers = sum(marker.payload_bytes for marker in markers)
    plain = end.messages - sum(marker.count for marker in markers)
    each = max(1, (end.payload_bytes - in_markers) // plain) if plain > 0 else 1
    messages = table.column("messages")
    size = pc.multiply(messages, pa.scalar(each, pa.int64()))
    entry = pa.arange(first, first + len(table))
    here = [m for m in markers if first <= m.entry < first + len(table)]
    if here:
        of_marker = pc.is_in(entry, value_set=pa.array([m.entry for m in here], pa.int64()))
        exact = pa.array([m.payload_bytes for m in here], pa.int64())
        size = pc.replace_with_mask(size.combine_chunks(), of_marker, exact)
    count = len(table)
    columns = [
        rows.column("lsn"),
        pa.repeat(pa.scalar(index, pa.int32()), count),
        pa.repeat(pa.scalar(end.ledger, pa.int64()), count),
        entry,
        messages,
        size,
        pc.equal(table.column("kind"), _MARKER),
    ]
    return pa.Table.from_arrays(columns, schema=_ROWS)


def _messages(stored: pa.Table) -> pa.Table:
    """Kind, messages and number of each row."""
    kind = stored.column("kind")
    counted = pc.coalesce(stored.column("count").cast(pa.int64()), _NONE)
    inner = pc.if_else(pc.equal(kind, _MARKER), counted, _NONE)
    messages = pc.if_else(pc.equal(kind, _DATA), _ONE, inner)
    rows = pa.arange(0, stored.num_rows)
    return pa.table({"kind": kind, "messages": messages, "row": rows})


def _fitting(rows: pa.Table, room: tuple[int, int]) -> int:
    """How many rows, from the first on, are within the room: (messages, bytes)."""
    fits = [
        pc.less_equal(pc.cumulative_sum(rows.column(name)), pa.scalar(limit, pa.int64()))
        for name, limit in zip(("messages", "bytes"), room, strict=True)
    ]
    return int(pc.sum(pc.and_(*fits)).as_py() or 0)

"""Owns the work of `peek`: the ends of a topic, or a message's neighbours; changes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from txlog.base.ids import MessageId, TopicName
from txlog.base.ranges import END, START, Bound, Range
from txlog.base.startup import compute as pc
from txlog.cli.call.call import Call
from txlog.cli.consume.lasts import by_time
from txlog.cli.consume.request import Target
from txlog.cli.output import records as beside
from txlog.cli.output.records import Records
from txlog.client.reading.record_columns import RecordColumns
from txlog.engine.door.catalog import topic
from txlog.engine.door.reading import RECEIVED, range_before
from txlog.errors import Corruption, MessageNotFound
from txlog.lake.sql.where import Where, without_answer

if TYPE_CHECKING:
    from txlog.client.client import Client

_STRETCH = 1000  # messages read at once, at most, to pick several


def some(
    call: Call,
    target: Target,
    which: str,
    count: int,
    subscription: str | None,
    raw: bool,
    *,
    is_compacted: bool = False,
    where: str | None = None,
) -> None:
    """Print the first, the last or random messages.

    which:        `first`, `last` (over all partitions, by visible time) or `random`
    is_compacted: read as with --read-compacted; `last` and `random` then read all messages
    where:        only messages for which this SQL is true; `random` then reads all messages
    """
    client = call.client()
    failed: list[Corruption] = []
    condition = None
    if where is not None:
        condition = Where(where, [target.topic], RecordColumns(client.store))
    if is_compacted or condition is not None:
        kind = "range" if subscription is None else "unacked"
        every = Range(
            START, END, kind="compacted" if is_compacted else kind, subscription=subscription
        )
        tables = list(_scanned(client, target, every, which, count, condition, failed))
    elif which == "random":
        _print(call, client, _random(client, target, count, subscription), raw)
        return
    else:
        counted = (START, Bound("skip", count)) if which == "first" else (Bound("last", count), END)
        kind = "range" if subscription is None else "unacked"
        chosen = Range(*counted, kind=kind, subscription=subscription)
        tables_read = _read(client, target, chosen, failed)
        if _is_one_partition(client, target):  # so the reader's order is the answer
            _print(call, client, tables_read, raw, failed)
            return
        tables = [table for table in tables_read if len(table)]
    if which == "random":
        tables = _drawn(tables, count)
    whole = pa.concat_tables(tables) if tables else None
    if whole is not None and len(whole):
        whole = by_time(whole, of_the_end=which == "last")
        whole = (
            whole.slice(0, count) if which != "last" else whole.slice(max(0, len(whole) - count))
        )
    if condition is not None and condition.undecided:
        call.say(without_answer(condition.undecided))
    _print(call, client, () if whole is None else [whole], raw, failed)


def _is_one_partition(client: Client, target: Target) -> bool:
    if target.partitions is not None:
        return len(target.partitions) == 1
    name = TopicName.parse(target.topic)
    try:
        return client.store.ask(lambda view: topic(view, name).partitions) == 1
    except Corruption:  # the error is raised after the readable messages
        return False


def _random(client: Client, target: Target, count: int, subscription: str | None) -> list[pa.Table]:
    """Return random messages; it reads only the ranges around them."""
    kind = "range" if subscription is None else "unacked"
    sizes = _sizes(client, target, subscription)
    picked = _sample(sum(size for _, size in sizes), count)
    samples: list[pa.Table] = []
    base = 0
    for partition, size in sizes:
        inside = [number - base for number in picked if base <= number < base + size]
        base += size
        while inside:
            near = [number for number in inside if number < inside[0] + _STRETCH]
            inside = inside[len(near) :]
            part = client.read(
                target.topic,
                range=Range(Bound("skip", near[0]), END, kind=kind, subscription=subscription),
                partitions=[partition],
                limit=near[-1] - near[0] + 1,
                columns=RECEIVED.names,
            )
            rows = pa.concat_tables([RECEIVED.empty_table(), *part])
            numbers = [number - near[0] for number in near if number - near[0] < len(rows)]
            samples.append(rows.take(pa.array(numbers, pa.int64())))
    return samples


def _sizes(client: Client, target: Target, subscription: str | None) -> list[tuple[int, int]]:
    """The partitions to read, each with its messages, or those that a subscription lacks."""
    if subscription is None:
        listed = client.describe_topic(target.topic)["partition_list"]
        counts = [(row["partition"], row["messages"]) for row in listed]
    else:
        unacked_rows = client.subscription(target.topic, subscription).describe()["partition_list"]
        counts = [(row["partition"], row["backlog"]) for row in unacked_rows]
    partitions = target.partitions
    return [
        (partition, size)
        for partition, size in counts
        if partitions is None or partition in partitions
    ]


def _scanned(
    client: Client,
    target: Target,
    every: Range,
    which: str,
    count: int,
    where: Where | None,
    failed: list[Corruption],
) -> Iterator[pa.Table]:
    """The first, last or random messages of each partition that match a range and a condition.

    A table at a time is in memory, and the messages picked so far.
    """
    for partition, messages in _sizes(client, target, every.subscription):
        single = Target(target.topic, [partition])
        if which == "first":
            yield from _read(client, single, every, failed, count, where)
        elif which == "random":
            yield from _drawn(_read(client, single, every, failed, None, where), count)
        elif every.kind == "compacted":
            yield from _tail(_read(client, single, every, failed, None, where), count)
        else:
            yield from _last(client, single, every, messages, count, where, failed)


def _last(
    client: Client,
    target: Target,
    every: Range,
    messages: int,
    count: int,
    where: Where | None,
    failed: list[Corruption],
) -> list[pa.Table]:
    """The last messages of one partition for which SQL is true: it reads ever longer ends of it.

    messages: how many the range has
    """
    depth = _STRETCH
    undecided = 0 if where is None else where.undecided
    while True:
        depth *= 10
        if where is not None:
            where.undecided = undecided  # the longer end includes the shorter one
        corrupt: list[Corruption] = []
        start = START if depth >= messages else Bound("last", depth)
        end = Range(start, END, kind=every.kind, subscription=every.subscription)
        tail = _tail(_read(client, target, end, corrupt, None, where), count)
        if start is START or sum(map(len, tail)) >= count:
            failed += corrupt
            return tail


def _tail(tables: Iterable[pa.Table], count: int) -> list[pa.Table]:
    """The last rows of tables, in order."""
    tail = RECEIVED.empty_table()
    for table in tables:
        rows = pa.concat_tables([tail, table])
        tail = rows.slice(max(0, len(rows) - count))
    return [tail]


def _drawn(tables: Iterable[pa.Table], count: int) -> list[pa.Table]:
    """Random rows of tables, in order: those with the lowest random numbers so far."""
    drawn, numbers = RECEIVED.empty_table(), pa.array([], pa.uint64())
    for table in tables:
        rows, size = pa.concat_tables([drawn, table]), len(table)
        new = pa.Array.from_buffers(pa.uint64(), size, [None, pa.py_buffer(os.urandom(8 * size))])
        numbers = pa.concat_arrays([numbers, new])
        lowest = pc.array_sort_indices(numbers)[:count]
        lowest = lowest.take(pc.array_sort_indices(lowest))
        drawn, numbers = rows.take(lowest), numbers.take(lowest)
    return [drawn]


def _sample(total: int, count: int) -> list[int]:
    """Return `count` distinct numbers below total, in order, at most all (Floyd's algorithm)."""
    picked: set[int] = set()
    for top in range(max(0, total - count), total):
        number = int.from_bytes(os.urandom(8), "big") % (top + 1)
        picked.add(top if number in picked else number)
    return sorted(picked)


def at(call: Call, target: Target, message_id: MessageId, raw: bool, *, is_compacted: bool) -> None:
    """Print the message with this id; raises MessageNotFound (307)."""
    around(call, target, message_id, None, raw, kind="compacted" if is_compacted else "range")


def around(
    call: Call,
    target: Target,
    message_id: MessageId,
    context: int | None,
    raw: bool,
    *,
    kind: str = "range",
) -> None:
    """Print the message with this id; with context also its neighbours.

    raises: MessageNotFound (307)
    """
    client = call.client()
    failed: list[Corruption] = []
    chosen = Range(Bound("id", message_id), END, kind=kind)
    tables = _from(client, target, chosen, context or 0, 2 + (context or 0), failed)
    if tables is None:  # a marker whose transaction has more messages than the limit
        tables = _from(client, target, chosen, context or 0, None, failed) or []
    whole = pa.concat_tables(tables) if tables else None
    if whole is None or not len(whole) or not _is_at(next(_ids(whole)), message_id):
        if failed:
            raise failed[0]
        raise MessageNotFound(f"no message {message_id} in {target.topic}", message_id=message_id)
    if context:
        predecessors = _before(client, target, message_id, context, failed)
        whole = pa.concat_tables([*predecessors, whole])
    _print(call, client, [whole], raw, failed)


def _from(
    client: Client,
    target: Target,
    chosen: Range,
    context: int,
    limit: int | None,
    failed: list[Corruption],
) -> list[pa.Table] | None:
    """Return the first message of a range and `context` more; None: the limit is too low."""
    tables: list[pa.Table] = []
    more, message_id = context, chosen.start.value
    assert isinstance(message_id, MessageId)
    for table in _read(client, target, chosen, failed, limit):
        rows = [_is_at(row, message_id) for row in _ids(table)]
        stop = len(rows) if all(rows) else rows.index(False)
        tables.append(table.slice(0, stop + more))
        more -= max(0, len(table) - stop)
        if more <= 0 and stop < len(rows):
            return tables
    return None if limit is not None and sum(map(len, tables)) == limit else tables


def _before(
    client: Client, target: Target, message_id: MessageId, context: int, failed: list[Corruption]
) -> list[pa.Table]:
    """Return up to `context` messages before a message, in its partition."""
    name = TopicName.parse(target.topic)
    chosen = client.store.ask(
        lambda view: range_before(view, topic(view, name), message_id, context)
    )
    return list(_read(client, target, chosen, failed))


def _read(
    client: Client,
    target: Target,
    chosen: Range,
    failed: list[Corruption],
    limit: int | None = None,
    where: Where | None = None,
) -> Iterator[pa.Table]:
    """Yield the tables of a range; add a Corruption to `failed` instead of raising it."""
    try:
        yield from client.read(
            target.topic,
            range=chosen,
            partitions=target.partitions,
            limit=limit,
            columns=RECEIVED.names,
            where=where,
        )
    except Corruption as error:
        failed.append(error)


def _ids(table: pa.Table) -> Iterator[MessageId]:
    columns = (table[name].to_pylist() for name in ("ledger", "entry", "index"))
    for ledger, entry, index in zip(*columns, strict=True):
        yield MessageId(ledger, entry, index or 0)


def _is_at(candidate: MessageId, message_id: MessageId) -> bool:
    """Whether a message has this id; a marker's own id matches all its messages."""
    return candidate.position == message_id.position and message_id.index in (0, candidate.index)


def _print(
    call: Call,
    client: Client,
    tables: Iterable[pa.Table],
    raw: bool,
    failed: Sequence[Corruption] = (),
) -> None:
    """Print messages as they are read, then raise the first error in `failed`."""
    columns = call.output.shown if call.flags.columns is not None else None
    form = call.output.form
    look_up = beside.beside_of(client, form) if "%" in form else None
    typed = RecordColumns(client.store)
    waiting = iter(tables)
    first = next(waiting, None)  # a refusal must come before the header
    topics = [] if first is None else first.column("topic").unique().to_pylist()
    records = Records(
        form,
        columns,
        typed,
        raw_strings=raw,
        look=call.output.look,
        topics=topics,
        beside=look_up,
    )
    out = call.output.out
    out.write(records.begin())
    for table in () if first is None else chain([first], waiting):
        for piece in records.pieces(table):
            out.write(piece)
    if failed:
        out.flush()
        raise failed[0]

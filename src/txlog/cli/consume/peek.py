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
from txlog.cli.consume.request import Target
from txlog.cli.output import records as beside
from txlog.cli.output.records import Records
from txlog.engine.door.catalog import topic
from txlog.engine.door.reading import RECEIVED, range_before
from txlog.errors import Corruption, MessageNotFound

if TYPE_CHECKING:
    from txlog.client.client import Client

_STRETCH = 1000  # messages read at once, where several wanted ones lie together


def some(
    call: Call,
    target: Target,
    which: str,
    count: int,
    subscription: str | None,
    raw: bool,
    *,
    is_compacted: bool = False,
) -> None:
    """Print the first, the last or random messages.

    which:        `first` and `last` by the time messages became visible; ids order a partition
    is_compacted: of the compacted messages and those since; cost: `first` aside, all of these
    """
    client = call.client()
    failed: list[Corruption] = []
    if is_compacted:
        held = list(_of_compacted(client, target, which, count, failed))
    elif which == "random":
        _print(call, client, _random(client, target, count, subscription), raw)
        return
    else:
        counted = (START, Bound("skip", count)) if which == "first" else (Bound("last", count), END)
        kind = "range" if subscription is None else "unacked"
        chosen = Range(*counted, kind=kind, subscription=subscription)
        found = _read(client, target, chosen, failed)
        if _is_one_partition(client, target):  # there are no others to choose from
            _print(call, client, found, raw, failed)
            return
        held = [table for table in found if len(table)]
    if which == "random":
        held = [_picked(held, count)]
    whole = pa.concat_tables(held) if held else None
    if whole is not None and len(whole) > count:
        order = pc.sort_indices(whole["visible_time"])  # stable: ids keep their order
        picked = order[:count] if which == "first" else order[len(order) - count :]
        whole = whole.take(picked.take(pc.sort_indices(picked)))
    _print(call, client, () if whole is None else [whole], raw, failed)


def _is_one_partition(client: Client, target: Target) -> bool:
    if target.partitions is not None:
        return len(target.partitions) == 1
    name = TopicName.parse(target.topic)
    try:
        return client.store.ask(lambda view: topic(view, name).partitions) == 1
    except Corruption:  # it is said once what comes before it is printed
        return False


def _random(client: Client, target: Target, count: int, subscription: str | None) -> list[pa.Table]:
    """Return random messages; only the stretches around them are read."""
    if subscription is None:
        kind, listed = "range", client.describe_topic(target.topic)["partition_list"]
        found = [(row["partition"], row["messages"]) for row in listed]
    else:
        left = client.subscription(target.topic, subscription).describe()["partition_list"]
        kind, found = "unacked", [(row["partition"], row["backlog"]) for row in left]
    wanted = target.partitions
    sizes = [
        (partition, size) for partition, size in found if wanted is None or partition in wanted
    ]
    picked = _sample(sum(size for _, size in sizes), count)
    held: list[pa.Table] = []
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
            )
            rows = pa.concat_tables([RECEIVED.empty_table(), *part])
            numbers = [number - near[0] for number in near if number - near[0] < len(rows)]
            held.append(rows.take(pa.array(numbers, pa.int64())))
    return held


def _of_compacted(
    client: Client, target: Target, which: str, count: int, failed: list[Corruption]
) -> Iterator[pa.Table]:
    """The first, last or random messages of each partition: compacted ones, and those since."""
    chosen = target.partitions
    if chosen is None:
        chosen = list(range(client.describe_topic(target.topic)["partitions"]))
    for partition in chosen:
        one = Target(target.topic, [partition])
        limit = count if which == "first" else None
        held: list[pa.Table] = []
        for table in _read(client, one, Range(START, END, kind="compacted"), failed, limit):
            held.append(table)
            if which == "last":
                rows = pa.concat_tables(held)
                held = [rows.slice(max(0, len(rows) - count))]
        yield from held


def _picked(tables: list[pa.Table], count: int) -> pa.Table:
    """Random rows of tables, in order."""
    whole = pa.concat_tables([RECEIVED.empty_table(), *tables])
    return whole.take(pa.array(_sample(len(whole), count), pa.int64()))


def _sample(total: int, count: int) -> list[int]:
    """Return count distinct numbers below total, in order, or all of them (Floyd's algorithm)."""
    picked: set[int] = set()
    for top in range(max(0, total - count), total):
        number = int.from_bytes(os.urandom(8), "big") % (top + 1)
        picked.add(top if number in picked else number)
    return sorted(picked)


def at(call: Call, target: Target, place: MessageId, raw: bool, *, is_compacted: bool) -> None:
    """Print the message at place; raises MessageNotFound (307)."""
    around(call, target, place, None, raw, kind="compacted" if is_compacted else "range")


def around(
    call: Call,
    target: Target,
    place: MessageId,
    context: int | None,
    raw: bool,
    *,
    kind: str = "range",
) -> None:
    """Print the message at place, or with context its neighbours too.

    raises: MessageNotFound (307)
    """
    client = call.client()
    failed: list[Corruption] = []
    chosen = Range(Bound("id", place), END, kind=kind)
    found = _from(client, target, chosen, context or 0, 2 + (context or 0), failed)
    if found is None:  # a marker with more messages than were read
        found = _from(client, target, chosen, context or 0, None, failed) or []
    whole = pa.concat_tables(found) if found else None
    if whole is None or not len(whole) or not _is_at(next(_ids(whole)), place):
        if failed:
            raise failed[0]
        raise MessageNotFound(f"no message {place} in {target.topic}", message_id=place)
    if context:
        before = _before(client, target, place, context, failed)
        whole = pa.concat_tables([*before, whole])
    _print(call, client, [whole], raw, failed)


def _from(
    client: Client,
    target: Target,
    chosen: Range,
    context: int,
    limit: int | None,
    failed: list[Corruption],
) -> list[pa.Table] | None:
    """Return the message where a range begins, and as many after it; None: the limit is too low."""
    found: list[pa.Table] = []
    more, place = context, chosen.start.value
    assert isinstance(place, MessageId)
    for table in _read(client, target, chosen, failed, limit):
        rows = [_is_at(row, place) for row in _ids(table)]
        stop = len(rows) if all(rows) else rows.index(False)
        found.append(table.slice(0, stop + more))
        more -= max(0, len(table) - stop)
        if more <= 0 and stop < len(rows):
            return found
    return None if limit is not None and sum(map(len, found)) == limit else found


def _before(
    client: Client, target: Target, place: MessageId, context: int, failed: list[Corruption]
) -> list[pa.Table]:
    """Return the messages before place, in its partition."""
    name = TopicName.parse(target.topic)
    chosen = client.store.ask(lambda view: range_before(view, topic(view, name), place, context))
    return list(_read(client, target, chosen, failed))


def _read(
    client: Client,
    target: Target,
    chosen: Range,
    failed: list[Corruption],
    limit: int | None = None,
) -> Iterator[pa.Table]:
    """The tables of a range; an error goes to `failed`, and is raised after the output."""
    try:
        yield from client.read(
            target.topic, range=chosen, partitions=target.partitions, limit=limit
        )
    except Corruption as error:
        failed.append(error)


def _ids(table: pa.Table) -> Iterator[MessageId]:
    columns = (table[name].to_pylist() for name in ("ledger", "entry", "index"))
    for ledger, entry, index in zip(*columns, strict=True):
        yield MessageId(ledger, entry, index or 0)


def _is_at(found: MessageId, place: MessageId) -> bool:
    """A marker's own id stands for all its messages."""
    return found.position == place.position and place.index in (0, found.index)


def _print(
    call: Call,
    client: Client,
    tables: Iterable[pa.Table],
    raw: bool,
    failed: Sequence[Corruption] = (),
) -> None:
    """Print messages as they are read, then raise whatever kept others from being read."""
    columns = call.output.shown if call.flags.columns is not None else None
    form = call.output.form
    look_up = beside.beside_of(client, form) if "%" in form else None
    records = Records(form, columns, raw_strings=raw, look=call.output.look, beside=look_up)
    waiting = iter(tables)
    first = next(waiting, None)  # what is refused is refused before the header
    out = call.output.out
    out.write(records.begin())
    for table in () if first is None else chain([first], waiting):
        for piece in records.pieces(table):
            out.write(piece)
    if failed:
        out.flush()
        raise failed[0]

"""Owns the search of a topic, from its newest messages back, within a budget.

    found = search(client, "orders", Wanted(key="ana"))
    more = search(client, "orders", Wanted(key="ana"), places=found.places)   # older messages

A log has no index of keys or words, so a search reads messages. It takes the partitions in turns
and reads a window of each, the newest messages first; windows grow. It ends when it has enough
hits or has used its budget. A search with its `places` goes on from there and skips no message: a
place is the id of the oldest message that the search read in a partition.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, NamedTuple

import pyarrow as pa

from txlog.base.ids import MessageId, TopicName
from txlog.base.ranges import START, Bound, Range
from txlog.base.startup import compute as pc
from txlog.client.client import Client
from txlog.engine.door.catalog import number_of
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.facts import Mark
from txlog.engine.door.reading import (
    NO_MESSAGES,
    end_of,
    range_before,
    resolve_bound,
    start_of,
    stop_after,
)
from txlog.engine.door.store import View

WINDOW_LEAST: Final = 64  # messages of a partition that are read at once
WINDOW_MOST: Final = 8_192


class Wanted(NamedTuple):
    """The conditions on a message; None and "" exclude no message.

    key:      exactly this key
    text:     part of the value or of the key, as UTF-8; letters of ASCII match in either case
    since_ms: it became visible at this time or later
    until_ms: it became visible before this time
    """

    key: str | None = None
    text: str = ""
    since_ms: int | None = None
    until_ms: int | None = None


class SearchBudget(NamedTuple):
    """The bounds of a search, which checks them after each window.

    hits:    messages found
    rows:    messages read
    size_bytes: of the messages read
    seconds: of wall time
    """

    hits: int = 50
    rows: int = 1_000_000
    size_bytes: int = 256 << 20
    seconds: float = 2.0


class Found(NamedTuple):
    """The result of a search.

    table:   the messages, newest first, with the columns of RECEIVED
    rows:    how many messages the search read
    size_bytes: how many bytes it read
    places:  by partition, the id from which on all was searched; none: all was searched
    stopped: the bound that ended it: hits, rows, size_bytes, seconds; empty: it is complete
    """

    table: pa.Table
    rows: int
    size_bytes: int
    places: dict[int, MessageId]
    stopped: str


def search(
    client: Client,
    topic: str,
    wanted: Wanted,
    budget: SearchBudget | None = None,
    places: Mapping[int, MessageId] | None = None,
) -> Found:
    """Search a topic; `topic/2` is one partition.

    places: of an earlier search, which this call continues
    raises: TopicNotFound, PartitionUnavailable, Corruption; MessageNotFound: a place is not in the
            topic
    """
    state = _Search(client, topic, wanted, budget or SearchBudget())
    return state.run(state.begin() if places is None else dict(places))


class _Search:
    """A search while it runs."""

    def __init__(self, client: Client, topic: str, wanted: Wanted, budget: SearchBudget) -> None:
        self._client, self._budget, self._wanted = client, budget, wanted
        self._name = TopicName.parse(topic, allow_partition=True)
        self._began = time.monotonic()
        self._hits = list[pa.Table]()
        self._count = self._rows = self._bytes = 0

    def begin(self) -> dict[int, MessageId]:
        """The place after the newest message of each partition, or before `until_ms`."""

        def look(view: View) -> dict[int, MessageId]:
            topic, until_ms = find_topic(view, self._name), self._wanted.until_ms
            only = self._name.partition
            places: dict[int, MessageId] = {}
            for index in range(topic.partitions) if only is None else (only,):
                mark = end_of(view, topic, index)
                if until_ms is not None:
                    before = resolve_bound(view, topic, index, Bound("time", until_ms))
                    if before == start_of(view, number_of(topic, index)):
                        continue  # all messages of the partition are later
                    mark = stop_after(before)
                places[index] = MessageId(*mark)
            return places

        return self._client.store.ask(look)

    def run(self, places: dict[int, MessageId]) -> Found:
        """Search from these places back."""
        window, stopped = WINDOW_LEAST, ""
        while places and not stopped:
            for index in [*places]:
                stopped = self._stopped()
                if stopped:
                    break
                before = self._look(index, places[index], window)
                if before is None:
                    del places[index]
                else:
                    places[index] = before
            window = min(2 * window, WINDOW_MOST)
        return Found(self._table(), self._rows, self._bytes, places, stopped if places else "")

    def _stopped(self) -> str:
        """The bound that is reached."""
        budget = self._budget
        reached = {
            "hits": self._count >= budget.hits,
            "rows": self._rows >= budget.rows,
            "size_bytes": self._bytes >= budget.size_bytes,
            "seconds": time.monotonic() - self._began >= budget.seconds,
        }
        return next((name for name, is_reached in reached.items() if is_reached), "")

    def _look(self, index: int, place: MessageId, window: int) -> MessageId | None:
        """Look at a window of a partition; returns the place before it, None at the first message.

        Once the window has more hits than the caller asked for, it ends at the last of these.
        """
        bounds, is_first = self._client.store.ask(lambda view: self._range(view, place, window))
        if bounds is None:
            return None
        tables = [*self._client.read(str(self._name.topic), range=bounds, partitions=[index])]
        rows = pa.concat_tables([NO_MESSAGES, *tables])
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        hits = rows.filter(matching(rows, self._wanted))
        room = self._budget.hits - self._count
        before = None if is_first or not rows.num_rows else id_at(rows, 0)
        if hits.num_rows > room:
            hits = hits.slice(hits.num_rows - room)
            before = id_at(hits, 0)
        self._count += hits.num_rows
        self._hits.append(hits)
        return before

    def _range(self, view: View, place: MessageId, window: int) -> tuple[Range | None, bool]:
        """The window before a place, and whether nothing is before it; None: it is empty."""
        topic, owner = find_topic(view, self._name), view.catalog.owners.get(place.ledger)
        if owner is not None and _mark_of(place) <= stop_after(start_of(view, owner[0])):
            return None, True
        bounds = range_before(view, topic, place, window)  # checks that the place is of the topic
        assert owner is not None
        since_ms, is_first = self._wanted.since_ms, bounds.start == START
        if since_ms is None:
            return bounds, is_first
        index = next(at for at in range(topic.partitions) if number_of(topic, at) == owner[0])
        first = stop_after(resolve_bound(view, topic, index, Bound("time", since_ms)))
        if first >= _mark_of(place):
            return None, True
        start = bounds.start.value
        if isinstance(start, MessageId) and _mark_of(start) >= first:
            return bounds, _mark_of(start) == first
        low = MessageId(*first)
        begin = START if first <= stop_after(start_of(view, owner[0])) else Bound("id", low)
        return Range(begin, bounds.stop), True

    def _table(self) -> pa.Table:
        """The hits, newest first."""
        table = pa.concat_tables([NO_MESSAGES, *self._hits])
        keys = [("visible_time", "descending"), ("ledger", "descending"), ("entry", "descending")]
        return table.take(pc.sort_indices(table, [*keys, ("index", "descending")]))


def matching(table: pa.Table, wanted: Wanted) -> pa.ChunkedArray:
    """Whether each row has the key and the text."""
    keys, values = table.column("key"), table.column("value")
    has = pa.chunked_array([pa.array([True] * table.num_rows, pa.bool_())])
    if wanted.key is not None:
        has = pc.equal(keys, pa.scalar(wanted.key.encode(), keys.type))
    if wanted.text:
        pattern = wanted.text.encode()
        is_in = [
            pc.fill_null(pc.match_substring(column, pattern, ignore_case=True), False)
            for column in (values, keys)
        ]
        has = pc.and_(has, pc.or_(*is_in))
    return pc.fill_null(has, False)


def id_at(table: pa.Table, row: int) -> MessageId:
    """The id of the message in a row."""
    columns = (table.column(name)[row].as_py() for name in ("ledger", "entry", "index"))
    ledger, entry, index = columns
    return MessageId(ledger, entry, index or 0)


def _mark_of(message_id: MessageId) -> Mark:
    return (message_id.ledger, message_id.entry, message_id.index)

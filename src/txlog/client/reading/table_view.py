"""Owns TableView: the newest value of each key of a topic, in memory, as of one LSN.

It first reads the compacted messages, if there are any, and then the log. A refresh reads the new
messages of all partitions up to one LSN, so the view has all messages of a transaction or none.
Between refreshes the view does not change, and no thread runs.

If a key has messages in several partitions, because partitions were added, the message with the
highest LSN is the newest. Source: Pulsar's TableView.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from types import TracebackType
from typing import NamedTuple

import pyarrow as pa

from txlog.base.arguments import checked
from txlog.base.ids import TopicName
from txlog.base.startup import compute as pc
from txlog.base.text.html import ROWS_SHOWN, html_table
from txlog.base.times import DurationLike, duration_ms
from txlog.engine.door.catalog import check_partition, live_topic, number_of
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.consuming import covers
from txlog.engine.door.facts import Mark
from txlog.engine.door.reading import (
    PLACED,
    ScanSegment,
    fetched,
    in_ledgers,
    in_log,
    last_of_each,
    newest,
    start_of,
    until,
    visible_end,
)
from txlog.engine.door.store import Store, View
from txlog.engine.door.transactions import check_available
from txlog.errors import AlreadyClosed

# Called with a key and its new value; None: the key was deleted.
Action = Callable[[bytes, bytes | None], object]
Changes = dict[bytes, bytes | None]


class News(NamedTuple):
    """The new values up to an LSN, and the places up to which they were read.

    is_since: False: they were read from the beginning, so all other keys are deleted
    """

    lsn: int
    places: dict[int, Mark]
    found: Changes
    is_since: bool = True


@checked
class TableView:
    """The newest value of each key; for one thread at a time.

    >>> import tempfile, txlog
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = txlog.init(folder)
    ...     with txlog.open(folder) as client:
    ...         _ = client.create_topic("users")
    ...         _ = client.producer("users").send(b"ada@one.example", key="ada")
    ...         with client.table_view("users") as view:
    ...             _ = client.producer("users").send(b"ada@two.example", key="ada")
    ...             view["ada"], view.refresh(), view["ada"], "bob" in view
    (b'ada@one.example', 1, b'ada@two.example', False)
    """

    __slots__ = (
        "_actions",
        "_held",
        "_is_closed",
        "_lsn",
        "_partition",
        "_places",
        "_store",
        "_topic_number",
        "_untold",
        "short",
    )

    def __init__(self, store: Store, topic: str) -> None:
        name = TopicName.parse(topic, allow_partition=True)
        self._store = store
        self.short = name.topic.short
        self._partition = name.partition
        self._held: dict[bytes, bytes] = {}
        self._places: dict[int, Mark] = {}  # by partition: the view has all messages up to here
        self._lsn = 0
        self._actions: list[Action] = []
        self._untold: dict[bytes, None] = {}  # keys for which the actions have yet to be called
        self._is_closed = False
        self._topic_number = store.read(lambda view: find_topic(view, name.topic).number)
        self.refresh()

    @property
    def lsn(self) -> int:
        """The view shows all messages that are durable up to this LSN."""
        return self._lsn

    def get(self, key: bytes | str, default: bytes | None = None) -> bytes | None:
        """The newest value of a key, or the default if it has none."""
        return self._held.get(_bytes(key), default)

    def __getitem__(self, key: bytes | str) -> bytes:
        """The newest value of a key; raises KeyError."""
        return self._held[_bytes(key)]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes | str) and _bytes(key) in self._held

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.keys())

    def __repr__(self) -> str:
        closed = ", closed" if self._is_closed else ""
        return f"<txlog.TableView of {self.short}: {len(self)} keys{closed}>"

    def _repr_html_(self) -> str:
        rows = [*islice(self._held.items(), ROWS_SHOWN)]
        first = f", {len(rows)} of them" if len(self) > len(rows) else ""
        return html_table(f"{self!r}{first}", ("key", "value"), rows)

    def keys(self) -> list[bytes]:
        """The keys that have a value, in no order."""
        return list(self._held)

    def values(self) -> list[bytes]:
        """The values, in the order of `keys`."""
        return list(self._held.values())

    def items(self) -> list[tuple[bytes, bytes]]:
        """Keys and values, in the order of `keys`."""
        return list(self._held.items())

    def for_each(self, action: Action) -> None:
        """Call an action with each key and value."""
        for key, value in self.items():
            action(key, value)

    def listen(self, action: Action) -> None:
        """Call an action with each key that a later refresh changes; value None: it was deleted.

        If an action or a signal handler raises, the next refresh calls the actions for the
        remaining keys, including the key of the call that raised.
        """
        self._actions.append(action)

    def refresh(self) -> int:
        """Read the messages up to now; returns how many keys got another value.

        If messages were trimmed before they were read, it reads the topic again from the beginning.
        raises: AlreadyClosed, TopicNotFound, PartitionUnavailable, Corruption; then the view is
                unchanged
        """
        return self._take(self._look())

    def wait(self, timeout_ms: DurationLike | None = None) -> int:
        """Refresh until at least one key gets another value.

        timeout_ms: None: wait for ever
        returns:    how many keys got another value; 0: time ran out
        raises:     as refresh
        """
        return until(self._store, lambda _: self.refresh() or None, duration_ms(timeout_ms)) or 0

    def _look(self) -> News:
        """Read the news without changing the view, so another thread may do it.

        raises: as refresh
        """
        self._check()
        return self._store.read(self._read)

    def _take(self, news: News) -> int:
        """Apply the news; returns how many keys got another value."""
        self._check()
        if news.lsn < self._lsn:  # the view is newer by now
            return 0
        values = self._held
        news_values = news.found if news.is_since else {**dict.fromkeys(values), **news.found}
        changed = {key: value for key, value in news_values.items() if values.get(key) != value}
        # After an interrupt, the next refresh finds the remaining changes again. It would not find
        # the applied ones, so all keys are noted first.
        if self._actions:
            self._untold = {**self._untold, **dict.fromkeys(changed)}
        for key, value in changed.items():
            if value is None:
                values.pop(key, None)
            else:
                values[key] = value
        self._lsn, self._places = news.lsn, news.places
        self._tell()
        return len(changed)

    def _tell(self) -> None:
        for key in [*self._untold]:
            if key not in self._untold:
                continue  # an action called refresh, which called the actions for this key
            value = self._held.get(key)
            del self._untold[key]
            try:
                for action in self._actions:
                    action(key, value)
            except BaseException:  # of a signal handler, too: some actions may not have been called
                self._untold[key] = None
                raise

    def _check(self) -> None:
        if self._is_closed:
            raise AlreadyClosed("the table view is closed")

    def _read(self, view: View) -> News:
        if view.lsn == self._lsn:
            return News(self._lsn, self._places, {})
        topic = live_topic(view, self._topic_number, self.short)
        indexes = range(topic.partitions)
        if self._partition is not None:
            check_partition(self.short, topic, self._partition)
            indexes = range(self._partition, self._partition + 1)
        numbers = {index: number_of(topic, index) for index in indexes}
        for number in numbers.values():
            check_available(view, topic, number)
        is_whole = all(
            _is_there(view, numbers[index], place) for index, place in self._places.items()
        )
        places = self._places if is_whole else {}
        tables = [
            newest(view, _since(view, number, places.get(index)))
            for index, number in numbers.items()
        ]
        values = _values(view, [table for table in tables if table.num_rows])
        ends = {index: visible_end(view, number) for index, number in numbers.items()}
        return News(view.lsn, ends, values, is_whole)

    def close(self) -> None:
        """Free the memory; a later refresh raises AlreadyClosed."""
        self._is_closed = True
        self._held, self._untold = {}, {}
        self._actions = []

    def __enter__(self) -> TableView:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _bytes(key: bytes | str) -> bytes:
    return key.encode() if isinstance(key, str) else key


def _is_there(view: View, number: int, place: Mark) -> bool:
    """True when no message after a position was trimmed."""
    last = view.topic(number).trimmed
    return last is None or covers(place, last)


def _since(view: View, number: int, place: Mark | None) -> Iterator[ScanSegment]:
    """The messages after a position; None: from the beginning, compacted ones first."""
    if place is None:
        place, compaction = start_of(view, number), view.topic(number).compaction
        if compaction is not None:
            yield from in_ledgers(view, compaction.ledgers)
            place = max((*compaction.horizon, 0), place)
    yield from in_log(view, number, place)


def _values(view: View, tables: list[pa.Table]) -> Changes:
    """The newest value of each key; if several partitions have it, by the highest LSN."""
    placed = pa.concat_tables([PLACED.empty_table(), *tables])
    if len(tables) > 1:
        in_order = placed.take(pc.sort_indices(placed.column("lsn")))
        placed = last_of_each(in_order)
    out: Changes = {}
    for rows in fetched(view, placed, ("key", "value")):
        keys, values = (rows.column(name).to_pylist() for name in ("key", "value"))
        out.update(zip(keys, values, strict=True))
    return out

"""Owns TableView: the newest value of each key of a topic, in memory, as of one moment.

It begins with the compacted messages, if there are any, and goes on with the log. A refresh reads
what came since, of all partitions as of one LSN: so a transaction is in it as a whole or not at
all. Between two of them nothing changes, and nothing runs.

Across partitions the message of the higher LSN is the newer one, so a key that moved when
partitions were added has one value. Source: Pulsar's TableView.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import NamedTuple

import pyarrow as pa

from txlog.base.arguments import checked
from txlog.base.ids import TopicName
from txlog.base.startup import compute as pc
from txlog.engine.door.catalog import check_partition, live_topic, number_of
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.consuming import covers
from txlog.engine.door.facts import Mark
from txlog.engine.door.reading import (
    PLACED,
    Stretch,
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

# Called with a key and its new value; None: the key is gone.
Action = Callable[[bytes, bytes | None], object]
Changes = dict[bytes, bytes | None]


class News(NamedTuple):
    """What a look found: the new values up to an LSN, and the places up to which it read.

    is_since: False: from the beginning, so keys that are not among them are gone
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
        self._places: dict[int, Mark] = {}  # by partition: all up to here is in it
        self._lsn = 0
        self._actions: list[Action] = []
        self._untold: dict[bytes, None] = {}  # keys of which the actions have not been told
        self._is_closed = False
        self._topic_number = store.read(lambda view: find_topic(view, name.topic).number)
        self.refresh()

    @property
    def lsn(self) -> int:
        """The moment that it shows: everything durable up to this LSN."""
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
        """Call an action with each key that a later refresh changes; the value None: it is gone.

        A refresh that ends in the middle, as an action raises or a signal handler does, leaves what
        is not told, the key of that call included, to the next one.
        """
        self._actions.append(action)

    def refresh(self) -> int:
        """Take what came since, as of now; returns how many keys have another value.

        If messages were trimmed before they were read, all is read again.
        raises: AlreadyClosed, TopicNotFound, PartitionUnavailable, Corruption; it stays as it was
        """
        return self._take(self._look())

    def wait(self, timeout_ms: int | None = None) -> int:
        """Refresh until a key has another value, and return how many have; 0: time ran out.

        timeout_ms: None: for ever
        raises:     as refresh
        """
        return until(self._store, lambda _: self.refresh() or None, timeout_ms) or 0

    def _look(self) -> News:
        """What came since; it stays as it is, so another thread may look. Raises as refresh."""
        self._check()
        return self._store.read(self._read)

    def _take(self, news: News) -> int:
        """Show what `_look` found; returns how many keys have another value then."""
        self._check()
        if news.lsn < self._lsn:  # looked before what it shows by now
            return 0
        held = self._held
        found = news.found if news.is_since else {**dict.fromkeys(held), **news.found}
        changed = {key: value for key, value in found.items() if held.get(key) != value}
        # The next refresh finds again what an interrupt leaves out, but not what is held by then.
        if self._actions:
            self._untold = {**self._untold, **dict.fromkeys(changed)}
        for key, value in changed.items():
            if value is None:
                held.pop(key, None)
            else:
                held[key] = value
        self._lsn, self._places = news.lsn, news.places
        self._tell()
        return len(changed)

    def _tell(self) -> None:
        for key in [*self._untold]:
            if key not in self._untold:
                continue  # told by a refresh within an action
            value = self._held.get(key)
            del self._untold[key]
            try:
                for action in self._actions:
                    action(key, value)
            except BaseException:  # a signal handler's, too: some may not have heard of it
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
        found = _values(view, [table for table in tables if table.num_rows])
        ends = {index: visible_end(view, number) for index, number in numbers.items()}
        return News(view.lsn, ends, found, is_whole)

    def close(self) -> None:
        """Let go of what it holds."""
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
    """True when nothing after a position was trimmed."""
    last = view.topic(number).trimmed
    return last is None or covers(place, last)


def _since(view: View, number: int, place: Mark | None) -> Iterator[Stretch]:
    """The messages after a position; None: from the beginning, compacted ones first."""
    if place is None:
        place, known = start_of(view, number), view.topic(number).compaction
        if known is not None:
            yield from in_ledgers(view, known.ledgers)
            place = max((*known.horizon, 0), place)
    yield from in_log(view, number, place)


def _values(view: View, tables: list[pa.Table]) -> Changes:
    """The newest value of each key, those of all partitions in the order of their LSNs."""
    placed = pa.concat_tables([PLACED.empty_table(), *tables])
    if len(tables) > 1:
        in_order = placed.take(pc.sort_indices(placed.column("lsn")))
        placed = last_of_each(in_order)
    out: Changes = {}
    for rows in fetched(view, placed, ("key", "value")):
        keys, values = (rows.column(name).to_pylist() for name in ("key", "value"))
        out.update(zip(keys, values, strict=True))
    return out

"""Owns Lanes: the state of a producer for its messages that wait in transactions.

    note    records a transaction in which messages wait, if a later producer would fence this one
    plain   the lane of a message without columns, for a topic that checks no values
    get     the lane of any other message, by schema version and kind

It also decides which message may wait without being routed first (`plain_size`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from txlog.base.settings import KEY_BYTES_MAX, PROPERTIES_MAX
from txlog.base.times import NO_TIMES
from txlog.engine.session.sending.message import INT64

if TYPE_CHECKING:
    from txlog.engine.session.transactions.buffer import Lane
    from txlog.engine.session.transactions.transaction import Transaction
    from txlog.engine.store.store import Store

S = TypeVar("S")
Name: TypeAlias = tuple[int, str]  # a topic's number, and a name of a producer
# Value, key, properties, (event_time, deliver_at, deliver_after), sequence_id, partition.
Fields: TypeAlias = tuple[Any, Any, Any, tuple[Any, ...], Any, Any]


class Lanes(Generic[S]):
    """The lanes of one producer, and the transactions in which its messages may wait.

    plain:     the lane of a message without columns; plain_for: the shape of the topic for which it
               holds, None: for none
    newest:    the transaction that was noted last
    """

    __slots__ = ("__weakref__", "_is_fenced", "_lanes", "_txns", "newest", "plain", "plain_for")

    def __init__(self, *, is_fenced: bool) -> None:
        """is_fenced: the next producer with its name, or holder of its topic, fences it."""
        self._is_fenced = is_fenced
        self._lanes: dict[tuple[int | None, int], Lane] = {}
        self.plain: Any = None
        self.newest: Transaction | None = None
        self._txns: dict[Transaction, None] = {}
        self.plain_for: S | None = None

    def get(self, kind: tuple[int | None, int]) -> Lane | None:
        """The lane of messages of one schema version and kind, None: there is none yet."""
        return self._lanes.get(kind)

    def add(self, kind: tuple[int | None, int], lane: Lane, plain_for: S | None) -> Lane:
        """Add a lane, unless another thread has; returns the lane in use."""
        lane = self._lanes.setdefault(kind, lane)
        if plain_for is not None:
            self.plain, self.plain_for = lane, plain_for
        return lane

    def note(self, txn: Transaction) -> None:
        """Note that messages wait in a transaction. `write` writes them."""
        if txn is not self.newest:
            self.newest = txn
            if self._is_fenced:
                waiting = {other: None for other in self._txns if other.has_waiting}
                self._txns = {**waiting, txn: None}

    @property
    def has_waiting(self) -> bool:
        """True while messages wait that a later producer would fence."""
        return any(txn.has_waiting for txn in self._txns)

    def write(self) -> None:
        """Write those messages; an error stays with its transaction."""
        for txn in self._txns:
            if txn.has_waiting:
                txn._write_queued()


# The newest producer of each name in this process.
_newest: WeakKeyDictionary[Store, WeakValueDictionary[Name, Lanes[Any]]] = WeakKeyDictionary()


def follow(store: Store, name: Name, lanes: Lanes[Any]) -> None:
    """Note the newest producer of a name in this process."""
    _newest.setdefault(store, WeakValueDictionary())[name] = lanes


def write_older(store: Store, name: Name) -> None:
    """Write the waiting messages of a producer that the next producer of its name fences."""
    names = _newest.get(store)
    older = None if names is None else names.get(name)
    if older is not None:
        older.write()


# --- which messages may wait ---------------------------------------------------------------------


def plain_size(fields: Fields, partitions: int, bytes_max: int) -> int:
    """The bytes of a message that no routing refuses; -1: it must be routed to find out.

    fields:     the properties as pairs
    partitions: how many a message may name, 0: it may name none
    """
    value, key, pairs, times, sequence_id, partition = fields
    size = 0
    if type(value) is bytes:
        size = len(value)
    elif value is not None:
        return -1
    if key is not None:
        if type(key) is not bytes:
            return -1
        size += len(key)
    if (times != NO_TIMES and not _are_plain(*times)) or not _is_number_or_none(sequence_id):
        return -1
    if partition is not None and (type(partition) is not int or not 0 <= partition < partitions):
        return -1
    if pairs:
        try:
            size += sum([len(name.encode()) + len(text.encode()) for name, text in pairs])
        except (TypeError, AttributeError, UnicodeEncodeError):
            return -1
        if len(pairs) > PROPERTIES_MAX:
            return -1
    return size if size <= min(KEY_BYTES_MAX, bytes_max) else -1


def _are_plain(event_time: object, deliver_at: object, deliver_after: object) -> bool:
    """True for times that no routing refuses."""
    if event_time is not None and not (type(event_time) is int and event_time in INT64):
        return False
    if deliver_at is not None and deliver_after is not None:
        return False
    return _is_number_or_none(deliver_at) and _is_number_or_none(deliver_after)


def _is_number_or_none(number: object) -> bool:
    """True for None and for integers from 0 that fit 64 bits."""
    return number is None or (type(number) is int and 0 <= number < 1 << 63)

"""Owns Access: the place of one producer on its topic, shared or exclusive.

An exclusive one holds consumers/<topic>-<epoch>.lock, where those who wait are told when it closes,
however its process ends (store/wakeups).

    take     look, without a file; lock the file of the next epoch; take it if nothing has changed
    killed   before the frame: a free lock file, which the next one takes. After it: the epoch is
             taken and its lock free, which is dead
    close    the frame that frees the seat, then the file; killed between them: a file that nothing
             names, which the next checkpoint removes
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Event
from typing import Final, Generic, NamedTuple, TypeVar

from txlog.base.ids import TopicName
from txlog.engine.decide.sending import producers
from txlog.engine.folds.catalog import Topic
from txlog.engine.plan.lookup import live_topic
from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.session.reading.pause import Quiet, until, until_told
from txlog.engine.storage.disk.protocol import LockFile
from txlog.engine.store.appender import Decide
from txlog.engine.store.liveness import holds_seat, seat_lock
from txlog.engine.store.store import Store
from txlog.engine.view import View
from txlog.errors import ProducerBusy, TopicNotFound, TxlogError

T = TypeVar("T")
TAKE_TRIES_MAX: Final = 1000
TAKE_PAUSE_SECONDS: Final = 0.002


class Target(NamedTuple):
    """A topic: its number, and what finds it, under the write lock, for who may send now."""

    number: int
    find: Callable[[View], Topic]


class Access:
    """A producer's right to send; epoch: of its seat, 0 for a shared one."""

    __slots__ = ("__weakref__", "_dead", "_lock", "_number", "_short", "_store", "epoch", "mode")

    def __init__(self, store: Store, number: int, short: str, mode: str) -> None:
        """Of a topic by its number. Raises ProducerBusy, ReadOnlyStore, InvalidArgument."""
        self._store, self._number, self._short = store, number, short
        self.mode = producers.check_mode(mode)
        self.epoch = 0
        self._dead = 0  # an epoch whose holder is known to be dead
        self._lock: LockFile | None = None
        if mode != producers.SHARED:
            self._take()
        elif not store.disk.read_only and store.read(self._is_taken):
            self._look()

    def topic(self, view: View) -> Topic:
        """The topic, if it may send now; under the write lock.

        raises: TopicNotFound, ProducerFenced, ProducerBusy
        """
        topic = self._topic(view)
        producers.check(view, topic, self.epoch, self._lives)
        return topic

    @property
    def target(self) -> Target:
        """The topic for what sends there."""
        return Target(self._number, self.topic)

    def close(self) -> None:
        """Free the seat, if it has one."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        try:
            with suppress(TopicNotFound):
                self._store.write(
                    lambda view, now: producers.leave(view, self._topic(view), self.epoch)
                )
            self._store.disk.unlink(seat_lock(self._number, self.epoch))
        finally:
            lock.close()  # if it could not leave, it counts as dead

    def _topic(self, view: View) -> Topic:
        return live_topic(view, self._number, self._short)

    def _is_taken(self, view: View) -> bool:
        return producers.is_taken(producers.epoch_of(view, self._topic(view)))

    def _lives(self, epoch: int) -> bool:
        if epoch == self._dead:
            return False
        if holds_seat(self._store.disk, self._number, epoch):
            return True
        self._dead = epoch
        return False

    def _look(self) -> int:
        """The epoch of the seat that is free for this producer; raises ProducerBusy."""
        found = self._store.write(
            lambda view, now: producers.look(view, self._topic(view), self.mode, self._lives)
        )
        return found

    def _take(self) -> None:
        store, disk = self._store, self._store.disk
        store.need_writable()
        for _ in range(TAKE_TRIES_MAX):
            before = self._look()
            path = seat_lock(self._number, producers.after(before))
            mine = disk.lock_file(path)
            taken: object = None
            try:
                if mine.try_acquire():
                    taken = store.write(self._taking(before))
            finally:
                if taken is None:
                    mine.close()
            if isinstance(taken, int):
                self.epoch, self._lock = taken, mine
                if producers.is_taken(before):
                    with suppress(TxlogError):  # the next checkpoint removes it
                        disk.unlink(seat_lock(self._number, before))
                return
            Event().wait(TAKE_PAUSE_SECONDS)  # another one is taking it
        raise store.read(lambda view: producers.busy(self._topic(view), 0))

    def _taking(self, before: int) -> Decide:
        return lambda view, now: producers.take(
            view, self._topic(view), self.mode, before, self._lives
        )


class Opening(Generic[T]):
    """A producer in the making; `waits`: it may have to wait for its turn."""

    __slots__ = ("_epoch", "_seat", "_store", "_topic", "make", "waits")

    def __init__(self, store: Store, topic: str, make: Callable[[], T], mode: str) -> None:
        self._store, self.make = store, make
        self.waits = mode == producers.WAITING
        self._topic = TopicName.parse(topic, allow_partition=True)
        self._epoch, self._seat = -1, ""

    def look(self, is_thorough: bool) -> T | None:
        """The producer; None while another one lives.

        It tries when a process has gone, or the seat has another epoch.
        """
        if not is_thorough and self._store.read(self._epoch_now) == self._epoch:
            return None
        try:
            return self.make()
        except ProducerBusy as error:
            self._epoch = int(str(error.fields["epoch"]))
            topic = self._store.read(lambda view: find_topic(view, self._topic), fresh=False)
            self._seat = seat_lock(topic.number, self._epoch)
            return None

    def rest(self, pause: float) -> Quiet:
        """Until something is told; nobody tells when a lock is free whose file has closed."""
        is_going = self._seat in self._store.wakeups.tally.going()
        return Quiet(pause) if is_going else until_told(pause)

    def wait(self) -> T:
        """The producer, once it is its turn; raises what opening it raises."""
        if not self.waits:
            return self.make()
        found = until(self._store, self.look, None, self.rest)
        assert found is not None
        return found

    def _epoch_now(self, view: View) -> int:
        return producers.epoch_of(view, find_topic(view, self._topic))

"""Owns Access: the right of one producer to send to a topic, shared or exclusive.

An exclusive producer holds the lock of consumers/<topic>-<epoch>.lock. Producers that wait for
their turn wake up when that file closes, however its process ends (store/wakeups).

    take     read the newest epoch, create and lock the file of the next one, then take that epoch
             in a frame, unless the epoch has changed
    killed   before the frame: its lock file is free, and the next producer uses it.
             After the frame: the epoch is taken, but nothing holds its lock, so its holder is dead
    close    write the frame that frees the topic, then remove the file. Killed between the two: a
             checkpoint removes the file, since nothing names it
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Event
from typing import Final, Generic, NamedTuple, TypeVar

from txlog.base.ids import TopicName
from txlog.engine.decide.sending import producers
from txlog.engine.decide.topics import catalog
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


def topic_in_use(store: Store, name: TopicName) -> Topic:
    """The topic; a missing topic is created if the store's settings allow that, else TopicNotFound.

    Producers call this, and consumers that create their subscription or keep it in memory. Readers
    and administration do not. The store and not the program has the setting, because a misspelt
    name creates a topic, too.
    Source: Pulsar's allowAutoTopicCreation and defaultNumPartitions.
    """
    try:
        return store.read(lambda view: find_topic(view, name))
    except TopicNotFound:
        if not store.settings.allow_auto_topic_creation or store.disk.read_only:
            raise
    store.write(lambda view, now: catalog.first_use(view, store.settings, now, name))
    return store.read(lambda view: find_topic(view, name))


class Target(NamedTuple):
    """A topic's number, and the function that checks under the write lock who may send to it."""

    number: int
    find: Callable[[View], Topic]


class Access:
    """A producer's right to send to a topic.

    number: of the topic
    epoch:  of an exclusive producer, 0 for a shared one
    """

    __slots__ = ("__weakref__", "_dead", "_lock", "_short", "_store", "epoch", "mode", "number")

    def __init__(self, store: Store, number: int, short: str, mode: str) -> None:
        """Raises ProducerBusy, ReadOnlyStore, InvalidArgument."""
        self._store, self.number, self._short = store, number, short
        self.mode = producers.check_mode(mode)
        self.epoch = 0
        self._dead = 0  # an epoch whose holder has died
        self._lock: LockFile | None = None
        if mode != producers.SHARED:
            self._take()
        elif not store.disk.read_only and store.read(self._is_taken):
            self._look()

    def topic(self, view: View) -> Topic:
        """The topic, under the write lock, if this producer may send to it now.

        raises: TopicNotFound, ProducerFenced, ProducerBusy
        """
        topic = self._topic(view)
        producers.check(view, topic, self.epoch, self._lives)
        return topic

    @property
    def target(self) -> Target:
        """The topic for functions that send without a session."""
        return Target(self.number, self.topic)

    def close(self) -> None:
        """Free the topic, if this producer holds it exclusively."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        try:
            with suppress(TopicNotFound):
                self._store.write(
                    lambda view, now: producers.leave(view, self._topic(view), self.epoch)
                )
            self._store.disk.unlink(seat_lock(self.number, self.epoch))
        finally:
            lock.close()  # without the frame, its epoch counts as one of a dead holder

    def _topic(self, view: View) -> Topic:
        return live_topic(view, self.number, self._short)

    def _is_taken(self, view: View) -> bool:
        return producers.is_taken(producers.epoch_of(view, self._topic(view)))

    def _lives(self, epoch: int) -> bool:
        if epoch == self._dead:
            return False
        if holds_seat(self._store.disk, self.number, epoch):
            return True
        self._dead = epoch
        return False

    def _look(self) -> int:
        """The newest epoch, if this producer may follow it; raises ProducerBusy."""
        return self._store.write(
            lambda view, now: producers.look(view, self._topic(view), self.mode, self._lives)
        )

    def _take(self) -> None:
        store, disk = self._store, self._store.disk
        store.need_writable()
        for _ in range(TAKE_TRIES_MAX):
            previous = self._look()
            path = seat_lock(self.number, producers.after(previous))
            lock_file = disk.lock_file(path)
            epoch: object = None
            try:
                if lock_file.try_acquire():
                    epoch = store.write(self._taking(previous))
            finally:
                if epoch is None:
                    lock_file.close()
            if isinstance(epoch, int):
                self.epoch, self._lock = epoch, lock_file
                if producers.is_taken(previous):
                    with suppress(TxlogError):  # the next checkpoint removes it
                        disk.unlink(seat_lock(self.number, previous))
                return
            Event().wait(TAKE_PAUSE_SECONDS)  # another producer is taking it
        raise store.read(lambda view: producers.busy(self._topic(view), 0))

    def _taking(self, previous: int) -> Decide:
        return lambda view, now: producers.take(
            view, self._topic(view), self.mode, previous, self._lives
        )


class Opening(Generic[T]):
    """A producer that is being opened; waits: it waits until no other producer holds the topic."""

    __slots__ = ("_epoch", "_lock_path", "_store", "_topic", "make", "waits")

    def __init__(self, store: Store, topic: str, make: Callable[[], T], mode: str) -> None:
        self._store, self.make = store, make
        self.waits = mode == producers.WAITING
        self._topic = TopicName.parse(topic, allow_partition=True)
        self._epoch, self._lock_path = -1, ""

    def look(self, is_thorough: bool) -> T | None:
        """Open the producer; None while another producer holds the topic.

        It tries when a process has ended (is_thorough), or when the topic has another epoch.
        """
        if not is_thorough and self._store.read(self._newest_epoch) == self._epoch:
            return None
        try:
            return self.make()
        except ProducerBusy as error:
            self._epoch = int(str(error.fields["epoch"]))
            topic = self._store.read(lambda view: find_topic(view, self._topic), fresh=False)
            self._lock_path = seat_lock(topic.number, self._epoch)
            return None

    def rest(self, pause: float) -> Quiet:
        """How long to sleep: until an event, or for the pause while the holder is closing.

        No event reports that a lock is free after its file was closed.
        """
        is_closing = self._lock_path in self._store.wakeups.tally.going()
        return Quiet(pause) if is_closing else until_told(pause)

    def wait(self) -> T:
        """Open the producer, with mode wait-for-exclusive once the topic is free."""
        if not self.waits:
            return self.make()
        producer = until(self._store, self.look, None, self.rest)
        assert producer is not None
        return producer

    def _newest_epoch(self, view: View) -> int:
        return producers.epoch_of(view, find_topic(view, self._topic))

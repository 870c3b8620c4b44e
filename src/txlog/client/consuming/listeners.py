"""Owns Listeners: the thread of a client that calls message listeners.

One thread serves all consumers of the client that have a listener, a message of each in turn. It
begins with the first, rests as any waiting call does, and ends with the client. A listener that
raises is logged, and its message comes again after the delay of a negative acknowledgement.
Acknowledging is the listener's own business, as in Pulsar; so is it to pause itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from threading import RLock, Thread, current_thread
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from txlog.engine.door.consuming import Session
from txlog.engine.door.reading import Quiet, Waiting, least
from txlog.engine.door.store import Store
from txlog.errors import (
    AlreadyClosed,
    NotAllowed,
    SubscriptionNotFound,
    TopicNotFound,
    TxlogError,
)

if TYPE_CHECKING:
    from txlog.engine.door.reading import Message

LISTENER_NACK_DELAY_MS: Final = 1000
"""Unless the consumer has its own: a listener that always fails must not fail all the time."""
Listener: TypeAlias = Callable[[Any, "Message"], object]
_OVER = (AlreadyClosed, SubscriptionNotFound, TopicNotFound)


class Listens(Protocol):
    """The handle of a consumer, as far as a listener needs it."""

    listening: Listening | None

    @property
    def session(self) -> Session:
        """Where the next message comes from."""

    def negative_acknowledge(self, what: Message, delay_ms: int, /) -> object:
        """Return a message."""


class Listening:
    """A consumer and its listener; `pause` waits for a call under way, unless it is within it."""

    __slots__ = ("_lock", "_ring", "consumer", "is_paused", "listener")

    def __init__(self, consumer: Listens, listener: Listener, ring: Callable[[], object]) -> None:
        self.consumer, self.listener, self._ring = consumer, listener, ring
        self.is_paused = False
        self._lock = RLock()  # held from taking a message to the end of its call

    def pause(self) -> None:
        """Begin no call any more."""
        with self._lock:
            self.is_paused = True

    def resume(self) -> None:
        """Call it again for what has come, and for what comes."""
        self.is_paused = False
        self._ring()

    def turn(self, is_thorough: bool) -> bool:
        """Call the listener with the next message, if there is one; whether there was anything."""
        with self._lock:
            found = None if self.is_paused else self.consumer.session.next(is_thorough)
            if found is not None and found[0] is not None:
                _call(self.consumer, self.listener, found[0])
            return found is not None


def needed(listening: Listening | None) -> Listening:
    """What a consumer listens with; raises NotAllowed."""
    if listening is None:
        raise NotAllowed("the consumer has no message listener", hint="message_listener=")
    return listening


class Listeners:
    """The consumers of a client that have a listener."""

    __slots__ = ("_is_closed", "_known", "_store", "_thread")

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: list[Listening] = []
        self._thread: Thread | None = None
        self._is_closed = False

    def add(self, consumer: Listens, listener: Listener) -> None:
        """Call a listener for each message of a consumer, until that is closed."""
        made = Listening(consumer, listener, self._store.wakeups.ring)
        consumer.listening = made
        self._known = [*self._known, made]  # the thread may be going through it
        if self._thread is None:
            self._thread = Thread(target=self._run, name="txlog-listeners", daemon=True)
            self._thread.start()
        else:
            self._store.wakeups.ring()

    def close(self) -> None:
        """Call none any more; waits for the one that is being called, unless it is our caller."""
        self._is_closed = True
        thread = self._thread
        if thread is not None and thread is not current_thread():
            self._store.wakeups.ring()
            thread.join()

    def _run(self) -> None:
        waiting = Waiting(self._store, self._rest)
        try:
            while not self._is_closed:
                is_thorough = waiting.look()
                had_any = [self._turn(one, is_thorough) for one in self._known]
                if not (any(had_any) or self._is_closed):
                    waiting.pause()
        except TxlogError as error:  # the store is closed or gone
            if not self._is_closed:
                _log("the listeners of a client have ended: %s", error)

    def _rest(self, pause: float) -> Quiet:
        return least(one.consumer.session.rest(pause) for one in self._known if not one.is_paused)

    def _turn(self, one: Listening, is_thorough: bool) -> bool:
        if self._is_closed or one.is_paused:
            return False
        try:
            return one.turn(is_thorough)
        except TxlogError as error:
            if not isinstance(error, _OVER):
                _log("a listener waits in vain: %s", error)
            if not error.retryable:
                self._known = [other for other in self._known if other is not one]
            return False


def _call(consumer: Listens, listener: Listener, message: Message) -> None:
    try:
        listener(consumer, message)
    except Exception as error:  # whatever the program's own code raises
        _log("a listener failed on %s: %r", message.message_id, error)
        try:
            consumer.negative_acknowledge(message, LISTENER_NACK_DELAY_MS)
        except TxlogError as refused:  # closed by the listener, or trimmed
            if not isinstance(refused, _OVER):
                _log("%s was not given back: %s", message.message_id, refused)


def _log(text: str, *facts: object) -> None:
    importlib.import_module("logging").getLogger("txlog.listener").error(
        text, *facts, exc_info=True
    )

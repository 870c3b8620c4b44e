"""Owns Listeners: the thread of a client that calls message listeners.

One thread serves all consumers of the client that have a listener, one message of each in turn. The
first listener starts it, and it ends with the client. Between messages it waits like any waiting
call. If a listener raises, the thread logs the error, and the message comes again after the delay
of the consumer or the subscription, else LISTENER_NACK_DELAY_MS. As in Pulsar, the listener
acknowledges its messages itself.
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
"""For consumers without a delay of their own, so that a failing listener does not run in a loop."""
Listener: TypeAlias = Callable[[Any, "Message"], object]
_OVER = (AlreadyClosed, SubscriptionNotFound, TopicNotFound)


class Listens(Protocol):
    """The handle of a consumer, as far as a listener needs it."""

    listening: Listening | None

    @property
    def session(self) -> Session:
        """The session that messages are received from."""


class Listening:
    """A consumer and its listener."""

    __slots__ = ("_lock", "_ring", "consumer", "is_paused", "listener")

    def __init__(self, consumer: Listens, listener: Listener, ring: Callable[[], object]) -> None:
        self.consumer, self.listener, self._ring = consumer, listener, ring
        self.is_paused = False
        self._lock = RLock()  # held from taking a message to the end of its call

    def pause(self) -> None:
        """Stop calling the listener; waits for a running call, unless that call is the caller."""
        with self._lock:
            self.is_paused = True

    def resume(self) -> None:
        """Call the listener again, beginning with messages that came during the pause."""
        self.is_paused = False
        self._ring()

    def turn(self, is_thorough: bool) -> bool:
        """Call the listener with the next message; True if there was one, or a new watermark."""
        with self._lock:
            received = None if self.is_paused else self.consumer.session.next(is_thorough)
            if received is not None and received[0] is not None:
                _call(self.consumer, self.listener, received[0])
            return received is not None


def needed(listening: Listening | None) -> Listening:
    """The listener of a consumer; raises NotAllowed if it has none."""
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
        """Call a listener for each message of a consumer, until the consumer is closed."""
        listening = Listening(consumer, listener, self._store.wakeups.ring)
        consumer.listening = listening
        self._known = [*self._known, listening]  # a new list: the thread may iterate over the old
        if self._thread is None:
            self._thread = Thread(target=self._run, name="txlog-listeners", daemon=True)
            self._thread.start()
        else:
            self._store.wakeups.ring()

    def close(self) -> None:
        """Stop calling listeners; waits for a running call, unless that call is the caller."""
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
                had_any = [self._turn(listening, is_thorough) for listening in self._known]
                if not (any(had_any) or self._is_closed):
                    waiting.pause()
        except TxlogError as error:  # the store was closed or deleted
            if not self._is_closed:
                _log("the listeners of a client have ended: %s", error)

    def _rest(self, pause: float) -> Quiet:
        return least(
            listening.consumer.session.rest(pause)
            for listening in self._known
            if not listening.is_paused
        )

    def _turn(self, listening: Listening, is_thorough: bool) -> bool:
        if self._is_closed or listening.is_paused:
            return False
        try:
            return listening.turn(is_thorough)
        except TxlogError as error:
            if not isinstance(error, _OVER):
                _log("a listener waits in vain: %s", error)
            if not error.retryable:
                self._known = [other for other in self._known if other is not listening]
            return False


def _call(consumer: Listens, listener: Listener, message: Message) -> None:
    try:
        listener(consumer, message)
    except Exception as error:  # the listener is the application's code: it may raise anything
        _log("a listener failed on %s: %r", message.message_id, error)
        try:
            consumer.session.negative_acknowledge(message, None, LISTENER_NACK_DELAY_MS)
        except (
            TxlogError
        ) as refused:  # the listener closed the consumer, or the message was trimmed
            if not isinstance(refused, _OVER):
                _log("%s was not given back: %s", message.message_id, refused)


def _log(text: str, *facts: object) -> None:
    importlib.import_module("logging").getLogger("txlog.listener").error(
        text, *facts, exc_info=True
    )

"""Owns Listeners: the thread of a client that calls message listeners.

One thread serves all consumers of the client that have a listener, a message of each in turn. It
begins with the first, rests as any waiting call does, and ends with the client. A listener that
raises is logged, and its message comes again after the delay of a negative acknowledgement.
Acknowledging is the listener's own business, as in Pulsar.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from threading import Thread, current_thread
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from txlog.api.reading.pause import REST_SECONDS_MAX, Waiting
from txlog.engine.store.store import Store
from txlog.errors import AlreadyClosed, SubscriptionNotFound, TopicNotFound, TxlogError

if TYPE_CHECKING:
    from txlog.api.consuming.open import Opened
    from txlog.api.reading.message import Message

LISTENER_NACK_DELAY_MS: Final = 1000
"""Unless the consumer has its own: a listener that always fails must not fail all the time."""
Listener: TypeAlias = Callable[[Any, "Message"], object]
_OVER = (AlreadyClosed, SubscriptionNotFound, TopicNotFound)


class Listeners:
    """The consumers of a client that have a listener."""

    __slots__ = ("_is_closed", "_known", "_store", "_thread")

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: list[tuple[Opened, Listener]] = []
        self._thread: Thread | None = None
        self._is_closed = False

    def add(self, consumer: Opened, listener: Listener) -> None:
        """Call a listener for each message of a consumer, until that is closed."""
        self._known = [*self._known, (consumer, listener)]  # the thread may be going through it
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
                had_any = [self._turn(*one, is_thorough=is_thorough) for one in self._known]
                if not (any(had_any) or self._is_closed):
                    waiting.pause()
        except TxlogError as error:  # the store is closed or gone
            if not self._is_closed:
                _log("the listeners of a client have ended: %s", error)

    def _rest(self, pause: float) -> float:
        return min((one._rest(pause) for one, _ in self._known), default=REST_SECONDS_MAX)

    def _turn(self, consumer: Opened, listener: Listener, *, is_thorough: bool) -> bool:
        """The next message of a consumer, if there is one; whether there was anything."""
        if self._is_closed:
            return False
        try:
            found = consumer._next(is_thorough)
        except TxlogError as error:
            if not isinstance(error, _OVER):
                _log("a listener waits in vain: %s", error)
            if not error.retryable:
                self._known = [one for one in self._known if one[0] is not consumer]
            return False
        if found is None:
            return False
        [message] = found
        if message is not None:
            self._call(consumer, listener, message)
        return True

    @staticmethod
    def _call(consumer: Opened, listener: Listener, message: Message) -> None:
        try:
            listener(consumer, message)
        except Exception as error:
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

"""Owns SendFuture: the answer of a message that was sent without waiting for it.

It is a `concurrent.futures.Future`, so `wait`, `as_completed` and `asyncio.wrap_future` take it.
All futures of a client share one condition, and a receipt is made when it is asked for: a message
costs its future and nothing else. Nothing can be called back: `cancel` returns False.
"""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures._base import FINISHED, RUNNING
from typing import TYPE_CHECKING, Any

from txlog.engine.session.sending.receipt import SendReceipt
from txlog.errors import TxlogError

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Condition

    from txlog.engine.session.sending.receipt import Stretch


class SendFuture(Future[SendReceipt]):
    """The answer of `Producer.send_async`: `result()` is what `send` would have returned.

    is_told: the error, if it failed, was handed to somebody; else a flush or close raises it
    """

    def __init__(self, done: Condition, may_wait: Callable[[], None]) -> None:
        # Not that of Future, which makes a lock and a condition of its own: 0.8 us a message.
        self._condition = done
        self._state = RUNNING
        self._waiters: list[Any] = []
        self._done_callbacks: list[Callable[[Future[SendReceipt]], object]] = []
        self._result: SendReceipt | None = None
        self._exception: BaseException | None = None
        self._may_wait = may_wait
        self._stretch: Stretch | None = None
        self._row = 0
        self.is_told = False

    def done(self) -> bool:
        """True once it was stored or refused."""
        return self._state == FINISHED

    def result(self, timeout: float | None = None) -> SendReceipt:
        """The receipt; waits for it, at most `timeout` seconds.

        raises: the error that refused the message; TimeoutError; NotAllowed in a callback, where
                nothing can be waited for; AlreadyClosed in a forked child
        """
        self._wait(timeout)
        self.is_told = True
        if self._exception is not None:
            try:
                # without the frames of others that were told of the same error
                raise self._exception.with_traceback(None)
            finally:
                self = None  # type: ignore[assignment]  # as Future: no circle through the frame
        return self._made()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error that refused it, None when it is stored; waits as `result`."""
        self._wait(timeout)
        self.is_told = True
        return self._exception

    def add_done_callback(self, fn: Callable[[Future[SendReceipt]], object]) -> None:
        """Call a function with this future when it is done, in the thread that sends.

        It must not wait for anything that is sent; sending more without waiting is fine.
        """
        if self._state == FINISHED:
            self._made_ready()
        super().add_done_callback(fn)

    # --- for the outbox --------------------------------------------------------------------------

    def settle(self, stretch: Stretch | None, row: int, error: BaseException | None) -> bool:
        """Take the outcome, under the condition; returns whether somebody is to be called."""
        self._stretch, self._row, self._exception = stretch, row, error
        self._state = FINISHED
        if self._waiters:
            self._made_ready()
            for waiter in self._waiters:
                if error is None:
                    waiter.add_result(self)
                else:
                    waiter.add_exception(self)
        return bool(self._done_callbacks)

    def call_back(self) -> None:
        """Run the callbacks; an error of one is logged, as by every Future."""
        self._made_ready()
        self._invoke_callbacks()  # type: ignore[attr-defined]  # typeshed does not know it

    def _wait(self, timeout: float | None) -> None:
        if self._state == FINISHED:
            return
        self._may_wait()
        with self._condition:
            if not self._condition.wait_for(self.done, timeout):
                raise TimeoutError

    def _made_ready(self) -> None:
        """Make the receipt for code that reads the fields of a Future, as asyncio does."""
        if self._exception is None:
            self._made()

    def _made(self) -> SendReceipt:
        stretch = self._stretch  # other threads may be here
        if stretch is not None:
            self._result = stretch.receipt(self._row)
            self._stretch = None
        assert self._result is not None
        return self._result


def error_of(future: SendFuture) -> TxlogError | None:
    """The error of one that failed and whose error nobody was told of; then it counts as told."""
    error = future._exception
    if error is None or future.is_told:
        return None
    future.is_told = True
    return error if isinstance(error, TxlogError) else TxlogError(str(error))

"""Owns windows of event time that close when the watermark has passed their end.

A subscription's watermark waits for its oldest unacknowledged message. So these windows cannot
leave their messages unacknowledged: they would wait for themselves. The messages move instead:

    receive   one transaction acknowledges the inputs and sends them to the state (window_state).
              Messages whose window is closed are late: they go to the late topic, or the run calls
              the function at once with them alone
    close     a watermark w closes each window with end + lateness <= w, in the order of their
              starts. One transaction sends the function's outputs, acknowledges the window's
              messages in the state, and stores w there

So a processed window never opens again, whatever watermark comes first after a restart. To process
the inputs again, delete the topic of the state and seek the subscription.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from txlog.base.startup import compute as pc
from txlog.base.times import duration_ms
from txlog.client.client import Client
from txlog.engine.door.transactions import Transaction
from txlog.errors import NotAllowed
from txlog.functions.attempt import Attempt
from txlog.functions.committing import Work
from txlog.functions.context import Context, Window
from txlog.functions.handlers import Handled, halves, with_context
from txlog.functions.inputs import Inputs, consumer_name
from txlog.functions.options import FunctionOptions, Hooks
from txlog.functions.window_state import WindowState, without_own
from txlog.functions.windows import Windowed, by_window, call_window, starts_of, times_of

_NONE_MS: Final = -(1 << 62)  # no window begins this early


class WatermarkedWindows:
    """The flow of a run whose windows close on watermarks."""

    def __init__(
        self,
        client: Client,
        windowed: Windowed,
        context: Context,
        inputs: Inputs,
        work: Work,
        options: FunctionOptions,
        hooks: Hooks,
    ) -> None:
        assert windowed.duration_ms is not None, "tumbling has checked it"
        self._context, self._inputs, self._work = context, inputs, work
        self._options, self._hooks = options, hooks
        self._span_ms = windowed.duration_ms + windowed.lateness_ms
        self._state = WindowState(
            client,
            context.input_topics,
            context.subscription,
            options.instance,
            windowed.duration_ms,
        )
        if windowed.late_topic is not None:
            work.producer(windowed.late_topic)
        self._closed: int | None = None  # all windows up to this value are closed; it never falls
        self._take = _Take(windowed, self._last_closed, batch=options.batch)
        self._give = _Give(windowed, options, hooks.stop)

    def open(self) -> None:
        """Subscribe to the state exclusively, then read it: an older instance no longer writes."""
        with self._hooks.guard():
            self._state.make()
        until = time.monotonic() + duration_ms(self._options.take_over_ms) / 1000
        name = consumer_name(self._context, self._options)
        details = {"topic": self._state.topic, "subscription": self._context.subscription}
        self._work.take_over(lambda: self._state.opened(name), until, details)
        self._work.producer(self._state.topic)  # a rename during the run does not change it
        self._closed = self._state.closed

    def ended(self) -> None:
        """Report the messages that stay in the state."""
        if self._state.windows:
            self._hooks.tell(
                "open-windows",
                {
                    "windows": self._state.windows,
                    "messages": self._state.messages,
                    "watermark": self._closed,
                    "topic": self._state.topic,
                },
            )

    def close(self) -> None:
        """Release the state."""
        with self._hooks.guard():
            self._state.close()

    def turn(self) -> bool:
        """Process closed windows, or receive if there are none; True if it did or got anything."""
        self._context.watermark = self._closed
        rows = self._state.take_until(self._last_closed(), self._options.txn_size)
        if rows is not None:
            assert self._closed is not None
            self._work.process(rows, self._give, _Giving(self._state, self._work, self._closed))
            return True
        if "failover" in self._inputs.kinds and self._options.instance:
            raise windows_need_shared(self._context.subscription)
        rows, _ = self._inputs.receive()
        if rows.num_rows:
            self._work.process(rows, self._take, _Taking(self._inputs, self._state, self._work))
        watermark = self._inputs.watermark
        if watermark is not None and (self._closed is None or watermark > self._closed):
            self._closed = watermark
        return bool(rows.num_rows) or self._inputs.has_moved

    def _last_closed(self) -> int:
        """Windows that start at or before this are closed."""
        return _NONE_MS if self._closed is None else max(_NONE_MS, self._closed - self._span_ms)


def windows_need_shared(subscription: str) -> NotAllowed:
    """The error for several instances on a failover subscription."""
    return NotAllowed(
        "several instances with windows on watermarks need a shared or key-shared subscription",
        hint="with failover a partition changes hands, and its open windows do not",
        subscription=subscription,
    )


class _Take:
    """Separates messages of open windows from late messages."""

    wants_quiet = False
    may_overlap = False  # the state of windows changes with each commit

    def __init__(self, windowed: Windowed, last_closed: Callable[[], int], *, batch: bool) -> None:
        assert windowed.duration_ms is not None
        self._call = with_context(windowed.function)
        self._duration_ms = windowed.duration_ms
        self._late_topic = windowed.late_topic
        self._last_closed = last_closed
        self._batch = batch

    def parts(self, rows: pa.Table) -> list[pa.Table]:
        """The two halves of the rows."""
        return halves(rows)

    def handle(self, rows: pa.Table, attempt: Attempt) -> Handled:
        """Send late messages to their topic or to the function, all others to the state."""
        starts = starts_of(times_of(rows), self._duration_ms)
        # keeps each window together, as it is acknowledged together
        order = pc.sort_indices(starts)
        starts, sorted_rows = starts.take(order), rows.take(order)
        is_late = pc.less_equal(starts, pa.scalar(self._last_closed(), pa.int64()))
        count = pc.sum(is_late).as_py()
        if count:
            self._late(rows, sorted_rows.slice(0, count), starts.slice(0, count), attempt)
        return Handled(rows, kept=sorted_rows.slice(count))

    def _late(self, rows: pa.Table, late: pa.Table, starts: pa.Array, attempt: Attempt) -> None:
        attempt.late += late.num_rows
        if self._late_topic is not None:
            whole = late.select(["value", "key", "properties", "event_time"])
            attempt.outbox.add_table(self._late_topic, whole)
            attempt.aside += late.num_rows
            return
        for start, window_rows in by_window(late, starts):
            window = Window(window_rows.num_rows, start, start + self._duration_ms, is_late=True)
            call_window(self._call, window_rows, window, attempt, batch=self._batch)


class _Taking:
    """The source of messages that move into the state."""

    def __init__(self, inputs: Inputs, state: WindowState, work: Work) -> None:
        self._inputs, self._state, self._work = inputs, state, work

    def settle(self, handled: Handled, txn: Transaction) -> None:
        """Acknowledge the inputs, and send messages of open windows to the state."""
        self._inputs.settle(handled, txn)
        if handled.kept is not None and handled.kept.num_rows:
            self._state.keep(handled.kept, self._work.producer(self._state.topic), txn)

    def settled(self, handled: Handled, txn: Transaction) -> int:
        """Add the committed messages to the state in memory."""
        if handled.kept is not None and handled.kept.num_rows:
            self._state.kept(handled.kept, txn)
        return self._inputs.settled(handled, txn)

    def renew(self) -> None:
        """Receive the remaining messages again."""
        self._inputs.renew()


class _Give:
    """Calls the function once per window."""

    wants_quiet = False
    may_overlap = False

    def __init__(
        self, windowed: Windowed, options: FunctionOptions, stop: Callable[[], bool]
    ) -> None:
        assert windowed.duration_ms is not None
        self._call: Callable[[Any, Any], object] = with_context(windowed.function)
        self._duration_ms = windowed.duration_ms
        self._batch, self._txn_time_ms = options.batch, duration_ms(options.txn_time_ms)
        self._stop = stop

    def parts(self, rows: pa.Table) -> list[pa.Table]:
        """One part per window."""
        return [window_rows for _, window_rows in by_window(rows, self._starts(rows))]

    def _starts(self, rows: pa.Table) -> pa.Array:
        return starts_of(times_of(rows), self._duration_ms)

    def handle(self, rows: pa.Table, attempt: Attempt) -> Handled:
        """Call it for complete windows in order, until the transaction has taken long enough."""
        until = time.monotonic() + self._txn_time_ms / 1000
        done = 0
        for start, window_rows in by_window(rows, self._starts(rows)):
            window = Window(window_rows.num_rows, start, start + self._duration_ms)
            call_window(self._call, without_own(window_rows), window, attempt, batch=self._batch)
            done += window_rows.num_rows
            if time.monotonic() >= until or self._stop():
                break
        unreached = rows.slice(done) if done < rows.num_rows else None
        return Handled(rows.slice(0, done), left=unreached)


class _Giving:
    """The source of windows whose messages are in the state."""

    def __init__(self, state: WindowState, work: Work, closed: int) -> None:
        self._state, self._work, self._closed = state, work, closed

    def settle(self, handled: Handled, txn: Transaction) -> None:
        """Acknowledge the messages, and store the value up to which windows are closed."""
        self._state.acknowledge(handled.done, txn)
        self._state.close_up_to(self._closed, self._work.producer(self._state.topic), txn)

    def settled(self, handled: Handled, txn: Transaction) -> int:
        """Keep the committed value; the messages were counted as consumed when they arrived."""
        self._state.closed_up_to(self._closed, txn)
        return 0

    def renew(self) -> None:
        """Read the state again."""
        self._state.load()

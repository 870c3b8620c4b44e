"""Owns tumbling windows, by count and by event time.

A function of windows gets all messages of one window at once: a list of Message, or with `batch`
an Arrow table. Messages of a window that is not full stay unacknowledged. So the subscription holds
the state of windows: after a restart the messages come again, and the window is rebuilt. The
transaction that produces the outputs of a window acknowledges its messages.

A window of time closes when a message has an event time at or after its end plus the allowed
lateness. While more messages are waiting, every partition must have such a message, so that no
partition closes windows of one that is read later. A message for a closed window opens another
window with the same bounds: nothing is lost. Without an event time, the publish time counts.

With `watermarks`, windows of time close when the watermark passes them: `watermarked`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from txlog.base import times
from txlog.base.ids import TopicName
from txlog.base.startup import compute as pc
from txlog.base.times import DurationLike
from txlog.errors import InvalidArgument
from txlog.functions.attempt import FAILURES, Attempt
from txlog.functions.context import Window
from txlog.functions.handlers import Handled, UserFunction, message_list, name_of, with_context

_INT = pa.int64()


@dataclass(frozen=True, slots=True)
class Windowed:
    """A function and its windows; made by `tumbling`."""

    function: UserFunction
    count: int | None
    duration_ms: int | None
    lateness_ms: int
    watermarks: bool = False
    late_topic: str | None = None
    __name__: str = "window"

    def __call__(self, items: object, context: object = None) -> object:
        """Call the function itself, for tests."""
        return with_context(self.function)(items, context)


def tumbling(
    *,
    count: int | None = None,
    duration_ms: DurationLike | None = None,
    lateness_ms: DurationLike = 0,
    watermarks: bool = False,
    late_topic: str | None = None,
) -> Callable[[UserFunction], Windowed]:
    """Call a function once per window of this many messages, or of this much event time.

    lateness_ms: how much older than the newest message, or than the watermark, a message may be to
                 find its window open
    watermarks:  windows of time close when the watermark has passed their end and the lateness,
                 not by the newest message
    late_topic:  topic for messages whose window is closed; None: the function is called again, with
                 them alone (context.window.is_late)

    >>> import txlog
    >>> from txlog import functions
    >>> @functions.tumbling(count=3)
    ... def joined(messages):
    ...     return b"".join(message.value for message in messages)
    >>> joined([txlog.Message(topic="t", partition=0, message_id=None, value=b"a")])
    b'a'

    Windows that close on watermarks, and late messages:

    >>> import tempfile
    >>> @functions.tumbling(duration_ms=100, watermarks=True, late_topic="late")
    ... def total(messages, context):
    ...     return f"{context.window.start}: " + " ".join(m.value.decode() for m in messages)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = txlog.init(folder)
    ...     with txlog.open(folder) as client:
    ...         _ = [client.create_topic(topic) for topic in ("orders", "totals", "late")]
    ...         _ = client.create_subscription("orders", "sums")
    ...         till = client.producer("orders", "till-7")
    ...         _ = [till.send(b"%d" % at, event_time=at) for at in (30, 120, 70)]
    ...         _ = till.new_watermark().event_time(100).send()
    ...         _ = functions.run(client, total, "orders", "totals", "sums")
    ...         _ = till.send(b"60", event_time=60)
    ...         done = functions.run(client, total, "orders", "totals", "sums")
    ...         done.late, [message.value for message in client.reader("totals")]
    (1, [b'0: 30 70'])
    """
    length_ms, late_ms = times.duration_ms(duration_ms), times.duration_ms(lateness_ms)
    if (count is None) == (length_ms is None):
        raise InvalidArgument("a window has a count or a duration_ms")
    if (count is not None and count < 1) or (length_ms is not None and length_ms < 1):
        raise InvalidArgument("a window has at least one message, or one millisecond")
    if late_ms < 0 or (late_ms and length_ms is None):
        raise InvalidArgument("lateness_ms is not negative and belongs to a duration_ms")
    if watermarks and length_ms is None:
        raise InvalidArgument("watermarks close windows of time: they need a duration_ms")
    if late_topic is not None and not watermarks:
        raise InvalidArgument("a late_topic belongs to windows with watermarks")
    late = None if late_topic is None else TopicName.parse(late_topic).short

    def wrap(function: UserFunction) -> Windowed:
        with_context(function)  # refuses a bad function here, where it is defined
        return Windowed(function, count, length_ms, late_ms, watermarks, late, name_of(function))

    return wrap


class WindowHandler:
    """Calls a function once per full or closed window.

    partitions: the topics to read, with their numbers of partitions
    """

    __slots__ = ("_batch", "_call", "_newest", "_partitions", "_windowed")

    def __init__(self, windowed: Windowed, partitions: Mapping[str, int], *, batch: bool) -> None:
        self._windowed = windowed
        self._call = with_context(windowed.function)
        self._batch = batch
        self._partitions = sum(partitions.values())
        self._newest: dict[tuple[str, int], int] = {}

    @property
    def wants_quiet(self) -> bool:
        """Whether windows of time may close when the input is drained."""
        return self._windowed.duration_ms is not None

    @property
    def may_overlap(self) -> bool:
        """Not with windows of time: later rows close windows, which earlier ones then miss."""
        return self._windowed.duration_ms is None

    def parts(self, rows: pa.Table) -> list[pa.Table]:
        """One part: windows span all rows."""
        return [rows]

    def handle(self, rows: pa.Table, attempt: Attempt) -> Handled:
        """Call it for each full or closed window, in order; hold the other rows back."""
        count = self._windowed.count
        if count is not None:
            full = rows.num_rows // count
            for number in range(full):
                self._run(rows.slice(number * count, count), Window(count, None, None), attempt)
            return Handled(rows.slice(0, full * count), held=_some(rows.slice(full * count)))
        if not rows.num_rows:
            return Handled(rows)
        starts = self._starts(rows)
        mask = pc.less_equal(starts, pa.scalar(self._closed_up_to(attempt.context.is_quiet), _INT))
        done = rows.filter(mask)
        self._run_by_time(done, starts.filter(mask), attempt)
        return Handled(done, held=_some(rows.filter(pc.invert(mask))))

    def _run_by_time(self, rows: pa.Table, starts: pa.Array, attempt: Attempt) -> None:
        duration = self._windowed.duration_ms
        assert duration is not None
        for start, window_rows in by_window(rows, starts):
            self._run(window_rows, Window(window_rows.num_rows, start, start + duration), attempt)

    def _run(self, rows: pa.Table, window: Window, attempt: Attempt) -> None:
        call_window(self._call, rows, window, attempt, batch=self._batch)

    def _starts(self, rows: pa.Table) -> pa.Array:
        """The start of each row's window; remembers the newest time of each partition."""
        duration = self._windowed.duration_ms
        assert duration is not None
        times = times_of(rows)
        table = pa.table({"t": rows["topic"], "p": rows["partition"], "at": times})
        for newest in table.group_by(["t", "p"]).aggregate([("at", "max")]).to_pylist():
            partition_key = (newest["t"], newest["p"])
            self._newest[partition_key] = max(
                newest["at_max"], self._newest.get(partition_key, newest["at_max"])
            )
        return starts_of(times, duration)

    def _closed_up_to(self, is_quiet: bool) -> int:
        """Windows that start at or before this are closed."""
        windowed, newest = self._windowed, self._newest
        assert windowed.duration_ms is not None
        if is_quiet:
            reached = max(newest.values())
        elif len(newest) < self._partitions:
            return -(1 << 62)
        else:
            reached = min(newest.values())
        return reached - windowed.duration_ms - windowed.lateness_ms


def call_window(
    function: Callable[[Any, Any], object],
    rows: pa.Table,
    window: Window,
    attempt: Attempt,
    *,
    batch: bool,
) -> None:
    """Call a function with the messages of a window, as often as allowed. Raises GivenUp."""
    context, outbox = attempt.context, attempt.outbox

    def call() -> None:
        outbox.add(function(rows if batch else message_list(rows, attempt.decoder), context))

    mark = outbox.mark()
    context.window, context.attempt = window, 1
    try:
        call()
    except FAILURES as error:
        attempt.repeat(rows, call, mark, error)
    finally:
        context.window = None


def times_of(rows: pa.Table) -> pa.Array:
    """The time of each row: its event time, else its publish time; int64 ms."""
    return pc.coalesce(rows["event_time"], rows["publish_time"]).cast(_INT).combine_chunks()


def starts_of(times: pa.Array, duration_ms: int) -> pa.Array:
    """The start of the window for each time."""
    duration = pa.scalar(duration_ms, _INT)
    quotient = pc.divide(times, duration)  # rounds towards zero: before 1970 that is one too high
    floor = pc.multiply(quotient, duration)
    below = pc.if_else(pc.greater(floor, times), duration, pa.scalar(0, _INT))
    return pc.subtract(floor, below)


def by_window(rows: pa.Table, starts: pa.Array) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each window in the order of starts; rows of a window keep their order."""
    order = pc.sort_indices(starts)  # stable
    rows, encoded = rows.take(order), pc.run_end_encode(starts.take(order))
    at = 0
    for start, end in zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True):
        yield start, rows.slice(at, end - at)
        at = end


def _some(rows: pa.Table) -> pa.Table | None:
    return rows if rows.num_rows else None

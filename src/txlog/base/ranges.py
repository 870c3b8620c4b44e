"""Owns the text forms of ranges and sizes (spec/cli 2, 6 and 12); for instants see `times`.

    RANGE = BOUND | [BOUND] .. [BOUND] | unacked[=NAME] | txn:TC:SEQ
    BOUND = start | end | +N | -N | L:E | L:E:I | after=L:E | after=L:E:I | @TIME | sub[=NAME]

The `@` may be left out before a TIME that is no number. `earliest` and `latest`, Pulsar's and
Kafka's words, are start and end.

A range is half open: it excludes its stop. `:` may replace `..` when neither side contains a
colon and they are not both plain numbers; two plain numbers are a message id. This module only
parses: code that knows the log decides which message a bound refers to.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from txlog.base.ids import MessageId, TxnId, check_name
from txlog.base.times import format_time, is_distance, is_time, parse_duration, parse_time
from txlog.clock import SystemClock
from txlog.errors import InvalidArgument

_SIZE = re.compile(r"([0-9]{1,18})([kmgt]i?b|b)?", re.IGNORECASE)
_SIZE_UNITS: Final = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "tib": 1024**4,
}
_INT64_MAX: Final = (1 << 63) - 1
_ENDS: Final = {"start": "start", "earliest": "start", "end": "end", "latest": "end"}
BOUND_FORMS: Final = (
    "write start, end, +N, -N, L:E, after=L:E, sub=NAME or a time: 2026-11-27 14:00, "
    "yesterday 14:00, -3h"
)
_RUN = re.compile(r"([0-9]{1,18}):([0-9]{1,18})(?:-([0-9]{1,18}))?")
_INNER_RUN = re.compile(r"([0-9]{1,18}):([0-9]{1,18}):([0-9]{1,9})(?:-([0-9]{1,9}))?")
# (ledger, first entry, last entry, first index, last index); indexes are 0 for whole entries
IdRun = tuple[int, int, int, int, int]
_COUNT = re.compile(r"([+-])([0-9]{1,18})")


class Bound(msgspec.Struct, frozen=True, gc=False):
    """One end of a range.

    kind   value
    start  None                     before the first retained message
    end    None                     after the last visible one
    skip   int                      this many messages of each partition from the start
    last   int                      before the last this many messages of each partition
    id     MessageId                at this message
    after  MessageId                just after this message
    time   int, instant in ms       at the first message visible at or after it
    sub    str, or None             at a subscription's mark-delete position; None = the only one
    """

    kind: str
    value: int | str | MessageId | None = None

    @classmethod
    def parse(cls, text: str, now_ms: int | None = None) -> Bound:
        """Parse a bound.

        now_ms: the instant that times are relative to; None: the wall clock
        raises: InvalidArgument (203; 202 for the name of a subscription)
        """
        return parse_bound(text, _now_ms() if now_ms is None else now_ms)

    def __str__(self) -> str:
        if self.kind in ("start", "end"):
            return self.kind
        if self.kind == "skip":
            return f"+{self.value}"
        if self.kind == "last":
            return f"-{self.value}"
        if self.kind == "time":
            assert isinstance(self.value, int)
            return f"@{format_time(self.value)}"
        if self.kind == "after":
            return f"after={self.value}"
        if self.kind == "sub":
            return "sub" if self.value is None else f"sub={self.value}"
        return str(self.value)


START: Final = Bound("start")
END: Final = Bound("end")


class Range(msgspec.Struct, frozen=True, gc=False):
    """A range of messages to read.

    kind range:   from start to stop, half open; stop None = the end when the reading began
    kind unacked: messages that a subscription (None = the only one) has not acknowledged, from
                  start to stop in each partition; `skip` and `last` count only these messages
    kind txn:     the messages of transaction txn
    kind compacted: like range, but messages that a compaction by key has read are replaced by the
                   newest message of each key; bounds are positions or times, not counts
    """

    start: Bound = START
    stop: Bound | None = None
    kind: str = "range"
    subscription: str | None = None
    txn: TxnId | None = None

    @classmethod
    def parse(cls, text: str, now_ms: int | None = None) -> Range:
        """Parse a range; a bound alone runs to the end.

        now_ms: the instant that times are relative to; None: the wall clock
        raises: InvalidArgument (203; 202 for the name of a subscription)
        """
        return parse_range(text, _now_ms() if now_ms is None else now_ms)

    @property
    def is_endless(self) -> bool:
        """True when reading goes on with messages that come later."""
        return self.stop is None and self.kind in ("range", "compacted")

    def __str__(self) -> str:
        if self.kind == "unacked":
            return "unacked" if self.subscription is None else f"unacked={self.subscription}"
        if self.kind == "txn":
            return f"txn:{self.txn}"
        return f"{self.start}..{'' if self.stop is None else self.stop}"


def parse_bound(text: str, now_ms: int) -> Bound:
    """Parse a bound; times are relative to now_ms.

    raises: InvalidArgument (203; 202 for the name of a subscription)
    """
    if text in _ENDS:
        return Bound(_ENDS[text])
    if text.startswith("@"):
        return Bound("time", parse_time(text[1:], now_ms))
    if text == "sub":
        return Bound("sub")
    if text.startswith("sub="):
        return Bound("sub", check_name("subscription", text[4:]))
    if text.startswith("after="):
        return Bound("after", MessageId.parse(text[6:]))
    count = _COUNT.fullmatch(text)
    if count is not None:
        return Bound("skip" if count[1] == "+" else "last", int(count[2]))
    if is_time(text):
        return Bound("time", parse_time(text, now_ms))
    if text[:1].isdecimal():
        return Bound("id", MessageId.parse(text))
    raise _bad("bound", text, BOUND_FORMS)


def parse_range(text: str, now_ms: int) -> Range:
    """Parse a range; a bound alone runs to the end.

    raises: InvalidArgument (203; 202 for the name of a subscription)
    """
    if text == "unacked":
        return Range(kind="unacked")
    if text.startswith("unacked="):
        return Range(kind="unacked", subscription=check_name("subscription", text[8:]))
    if text.startswith("txn:"):
        return Range(kind="txn", txn=TxnId.parse(text[4:]))
    first_part, right = _split(text, now_ms)
    start = START if first_part == "" else parse_bound(first_part, now_ms)
    if right is None or right == "":
        return Range(start)
    return Range(start, _parse_stop(start, right, now_ms))


def parse_size(text: str) -> int:
    """Parse `4096`, `64KiB` or `1MB`; returns bytes.

    raises: InvalidArgument (203)
    """
    match = _SIZE.fullmatch(text)
    if match is not None:
        size = int(match[1]) * _SIZE_UNITS[(match[2] or "").lower()]
        if size <= _INT64_MAX:
            return size
    raise _bad("size", text, "write 4096, 64KiB or 1MB")


def _split(text: str, now_ms: int) -> tuple[str, str | None]:
    """Return both sides of a range; for a single bound, the text and None."""
    if not text:
        raise _bad("range", text, "write BOUND, BOUND..BOUND, unacked or txn:TC:SEQ")
    if ".." in text:
        first_part, _, right = text.rpartition("..")
        # A subscription's name may contain dots: sub=a..b is a range only if b can end one.
        if first_part.startswith("sub=") and right and not _is_stop(right, now_ms):
            return text, None
        return first_part, right
    if text.count(":") == 1:
        first_part, _, right = text.partition(":")
        if first_part.isdecimal() and right.isdecimal():
            return text, None  # a message id
        if not _is_bound(first_part, now_ms) or not _is_stop(right, now_ms):
            return text, None
        return first_part, right
    parts = text.split(":")
    if len(parts) == 4 and all(part.isdecimal() for part in parts):
        raise _bad("range", text, f"{parts[0]}:{parts[1]}..{parts[2]}:{parts[3]}")
    return text, None


def _parse_stop(start: Bound, text: str, now_ms: int) -> Bound:
    """Parse the stop; in a time range +10m counts from the start's time, -24h from now."""
    if is_distance(text):
        if start.kind != "time":
            raise _bad("range", text, "a duration ends only a range that begins with @TIME")
        assert isinstance(start.value, int)
        if text[0] == "+":
            return Bound("time", start.value + parse_duration(text[1:]))
        return Bound("time", parse_time(text, now_ms))
    return parse_bound(text, now_ms)


def _is_bound(text: str, now_ms: int) -> bool:
    try:
        return text == "" or parse_bound(text, now_ms) is not None
    except InvalidArgument:
        return False


def _is_stop(text: str, now_ms: int) -> bool:
    return is_distance(text) or _is_bound(text, now_ms)


def _now_ms() -> int:
    return SystemClock().now().wall_ms


def _bad(kind: str, text: str, hint: str) -> InvalidArgument:
    excerpt = text if len(text) <= 80 else f"{text[:77]}..."
    return InvalidArgument(f'not a {kind}: "{excerpt}"', code=203, hint=hint)


def parse_id_run(text: str) -> IdRun:
    """Parse consecutive messages: L:E, L:FIRST-LAST, L:E:I or L:E:FIRST-LAST, with both ends.

    raises: InvalidArgument (203)
    """
    text = text.strip()
    if match := _RUN.fullmatch(text):
        ledger, first = int(match[1]), int(match[2])
        last = first if match[3] is None else int(match[3])
        if first <= last:
            return (ledger, first, last, 0, 0)
    elif match := _INNER_RUN.fullmatch(text):
        entry, first = int(match[2]), int(match[3])
        last = first if match[4] is None else int(match[4])
        if 1 <= first <= last:
            return (int(match[1]), entry, entry, first, last)
    raise InvalidArgument(
        f"{text!r} is no message and no range of messages",
        code=203,
        hint="write 17:5, 17:5-9, 17:4:2 or 17:4:2-3; several with commas between them",
    )


def format_id_run(run: IdRun) -> str:
    """The text of consecutive messages, as parse_id_run takes it."""
    ledger, first, last, index_first, index_last = run
    if index_first:
        ends = str(index_first) if index_first == index_last else f"{index_first}-{index_last}"
        return f"{ledger}:{first}:{ends}"
    return f"{ledger}:{first}" if first == last else f"{ledger}:{first}-{last}"

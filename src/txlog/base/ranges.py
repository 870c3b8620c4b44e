"""Owns the text forms of ranges, times, durations and sizes (spec/cli 2, 6 and 12).

    RANGE = BOUND | [BOUND] .. [BOUND] | unacked[=NAME] | txn:TC:SEQ
    BOUND = start | end | +N | -N | L:E | L:E:I | after=L:E | after=L:E:I | @TIME | sub[=NAME]

A range is half open: it excludes its stop. `:` may stand for `..` when neither side contains a
colon and they are not both plain numbers; two plain numbers are a message id. This module only
parses: code that knows the log decides which message a bound refers to.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from txlog.base.ids import MessageId, TxnId, check_name
from txlog.base.settings import DAY_MS, HOUR_MS, INSTANT_MS_MAX, MINUTE_MS, SECOND_MS
from txlog.clock import SystemClock
from txlog.errors import InvalidArgument

_INSTANTS: Final = frozenset({"watermark", "emitted", "time"})
_DURATION = re.compile(r"(?:[0-9]{1,15}(?:ms|s|m|h|d))+")
_DURATION_TERM = re.compile(r"([0-9]+)(ms|s|m|h|d)")
_DURATION_UNITS: Final = {"ms": 1, "s": SECOND_MS, "m": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS}
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
_INTEGER = re.compile(r"[0-9]{1,15}")
_COUNT = re.compile(r"([+-])([0-9]{1,18})")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_RFC3339 = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}(?::[0-9]{2})?)"
    r"(?:(?<=:[0-9]{2}:[0-9]{2})\.([0-9]{1,9}))?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_FAR_MS: Final = re.compile(r"-?[0-9]{14,19}")
STORED_MAX: Final = (1 << 63) - 1  # last instant that a file can hold, in ms
# Instants in ms that SQL can represent: DuckDB counts microseconds, and its ends mean infinity.
SQL_MS_MIN: Final = -9_223_372_022_400_000
SQL_MS_MAX: Final = 9_223_372_036_854_774
INSTANT_MS_MIN: Final = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // _MILLISECOND


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
    if text in ("start", "end"):
        return Bound(text)
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
    if text[:1].isdecimal():
        return Bound("id", MessageId.parse(text))
    raise _bad("bound", text, "write start, end, +N, -N, L:E, L:E:I, after=L:E, @TIME or sub=NAME")


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


def parse_duration(text: str) -> int:
    """Parse `250ms`, `10s`, `5m`, `1h`, `7d` or a sum such as `1h30m`; returns milliseconds.

    raises: InvalidArgument (203)
    """
    if _DURATION.fullmatch(text):
        total = sum(int(n) * _DURATION_UNITS[unit] for n, unit in _DURATION_TERM.findall(text))
        if total <= _INT64_MAX:
            return total
    raise _bad("duration", text, "write 250ms, 10s, 5m, 1h, 7d or a sum such as 1h30m")


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


def parse_time(text: str, now_ms: int) -> int:
    """Parse an instant; returns milliseconds.

    text:   RFC 3339, also without seconds; `YYYY-MM-DD` (UTC); 9 or 10 digits = epoch seconds,
            any other integer = epoch ms; `now`, `now+5m`, `-1h`, `+5m` (from now)
    raises: InvalidArgument (203)
    """
    instant = _read_time(text, now_ms)
    if instant is None or not INSTANT_MS_MIN <= instant <= INSTANT_MS_MAX:
        raise _bad("time", text, "write 2026-11-20T09:12:04Z, 2026-11-20, epoch ms, now or -1h")
    return instant


def parse_instant(text: str, now_ms: int) -> int:
    """Parse an instant that parse_time reads or format_time writes; returns milliseconds.

    raises: InvalidArgument (203)
    """
    if _FAR_MS.fullmatch(text) and -STORED_MAX - 1 <= int(text) <= STORED_MAX:
        return int(text)
    return parse_time(text, now_ms)


def is_instant(name: str) -> bool:
    """Whether an integer in a field of this name is an instant (spec/cli 1)."""
    return name.endswith(("_time", "_at")) or name in _INSTANTS


def format_time(instant_ms: int) -> str:
    """Return the instant as RFC 3339 in UTC, with exactly three decimals.

    An instant after the year 9999, such as the end of a stream, becomes its number.
    """
    if not INSTANT_MS_MIN <= instant_ms <= INSTANT_MS_MAX:
        return str(instant_ms)
    instant = (_EPOCH + instant_ms * _MILLISECOND).replace(tzinfo=None)
    return instant.isoformat(timespec="milliseconds") + "Z"


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
    if text[:1] in ("+", "-") and _DURATION.fullmatch(text[1:]):
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
    return _is_bound(text, now_ms) or (
        text[:1] in ("+", "-") and _DURATION.fullmatch(text[1:]) is not None
    )


def _read_time(text: str, now_ms: int) -> int | None:
    distance_text = text.removeprefix("now")
    if text == "now":
        return now_ms
    if distance_text[:1] in ("+", "-") and _DURATION.fullmatch(distance_text[1:]):
        distance = parse_duration(distance_text[1:])
        return now_ms + distance if distance_text[0] == "+" else now_ms - distance
    if _INTEGER.fullmatch(text):
        return int(text) * SECOND_MS if len(text) in (9, 10) else int(text)
    match = _RFC3339.fullmatch(text)
    if match is None:
        if not _DATE.fullmatch(text):
            return None
        day, clock, fraction, offset = text, "00:00:00", "0", "Z"
    else:
        day, clock, fraction, offset = match[1], match[2], match[3] or "0", match[4]
    try:
        whole = datetime.fromisoformat(f"{day}T{clock}{offset.upper()}") - _EPOCH
    except (ValueError, OverflowError):
        return None
    return whole // _MILLISECOND + int(fraction[:3].ljust(3, "0"))


def _now_ms() -> int:
    return SystemClock().now().wall_ms


def _bad(kind: str, text: str, hint: str) -> InvalidArgument:
    excerpt = text if len(text) <= 80 else f"{text[:77]}..."
    return InvalidArgument(f'not a {kind}: "{excerpt}"', code=203, hint=hint)

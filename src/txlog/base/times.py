"""Owns instants and durations: the one parser of their text, their printed form, Python's values.

The command line, files and the Python API read a time here and nowhere else (spec/cli 6):

    INSTANT  = now | [now](+|-)DURATION | DURATION ago | DATE [CLOCK] [ZONE] | NUMBER | WORDS
    DURATION = 250ms | 10s | 5m | 1h | 7d | a sum such as 1h30m | PT5M | P1DT2H
    WORDS    = yesterday 14:00 | tomorrow at 9am | 3 hours ago | in 2 days | 27 Nov 2026 14:00

A time without a zone is local, by TZ. A local time that does not exist, or exists twice because
the clocks change, is refused: it names no instant. A day without a time is its midnight.

A NUMBER counts from 1970, in a unit that its digits decide: 9 or 10 are seconds, 16 or 17
microseconds, 18 or 19 nanoseconds, all others milliseconds.

`dateparser` reads words, but it guesses: `14` is a day of this month to it, and it ignores a clock
that it does not understand. So it only gets texts that match the grammar of `_WORDS` as a whole.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from types import ModuleType
from typing import Final, TypeAlias, cast, overload
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from txlog.base.settings import (
    DAY_MS,
    EVENT_TIME_MAX,
    HOUR_MS,
    INSTANT_MS_MAX,
    MINUTE_MS,
    SECOND_MS,
)
from txlog.clock import SystemClock
from txlog.errors import InvalidArgument

# The Python API takes as an instant: ms since 1970, an object of datetime (without a zone:
# local; a date: its local midnight), or a text of the grammar above.
InstantLike: TypeAlias = int | datetime | date | str
# The Python API takes as a duration: a number in the unit of the parameter, a timedelta, or
# a text of the grammar above.
DurationLike: TypeAlias = int | timedelta | str
# The event_time, deliver_at and deliver_after of a message without times.
NO_TIMES: Final[tuple[int | None, int | None, int | None]] = (None, None, None)

TIME_FORMS: Final = (
    "write 2026-11-27 14:00, 2026-11-27T14:00Z, yesterday 14:00, tomorrow 9:00, -3h, now or a "
    "number since 1970"
)
DURATION_FORMS: Final = "write 250ms, 10s, 5m, 1h, 7d, a sum such as 1h30m, or PT5M"

_FIELDS: Final = frozenset({"watermark", "emitted", "time"})
_DURATION = re.compile(r"(?:[0-9]{1,15}(?:ms|s|m|h|d))+")
_DURATION_TERM = re.compile(r"([0-9]+)(ms|s|m|h|d)")
_DURATION_UNITS: Final = {"ms": 1, "s": SECOND_MS, "m": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS}
_ISO_DURATION = re.compile(
    r"P(?=[0-9T])(?:([0-9]{1,12})W)?(?:([0-9]{1,13})D)?"
    r"(?:T(?=[0-9])(?:([0-9]{1,14})H)?(?:([0-9]{1,15})M)?(?:([0-9]{1,15})(?:[.,]([0-9]{1,3}))?S)?)?"
)
_INT64_MAX: Final = (1 << 63) - 1
_INTEGER = re.compile(r"[0-9]{1,19}")
_ZONE: Final = r"(?P<zone>[Zz]|UTC|GMT|[+-][0-9]{2}:?[0-9]{2})"
_DATE = re.compile(
    r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:[Tt ](?P<hour>[0-9]{1,2})(?P<rest>:[0-9]{2}(?P<seconds>:[0-9]{2})?)"
    rf"(?:(?<=:[0-9]{{2}}:[0-9]{{2}})\.(?P<fraction>[0-9]{{1,9}}))?)?(?: ?{_ZONE})?"
)
_MONTH: Final = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sep(?:t(?:ember)?)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_COUNTED: Final = r"(?:an?|[0-9]{1,6})"
_CLOCK: Final = (
    r"(?:(?:[01]?[0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9])?"
    r"|(?:1[0-2]|0?[1-9])(?::[0-5][0-9])? ?[ap]m|noon|midnight)"
)
_DAYS: Final = r"(?:day|week|month|year)s?"
_DAY: Final = (
    rf"(?:today|yesterday|tomorrow|{_COUNTED} {_DAYS} ago|in {_COUNTED} {_DAYS}"
    rf"|[0-9]{{1,2}} {_MONTH},? [0-9]{{4}}|{_MONTH} [0-9]{{1,2}},? [0-9]{{4}})"
)
_PASSED: Final = r"(?:seconds?|secs?|minutes?|mins?|hours?)"
_WORDS = re.compile(
    rf"(?:(?P<passed>{_COUNTED} {_PASSED} ago|in {_COUNTED} {_PASSED})"
    rf"|(?:(?P<day>{_DAY})(?:,? (?:at )?(?P<clock>{_CLOCK}))?"
    rf"|(?P<clock_first>{_CLOCK}) (?P<day_last>{_DAY}))(?: ?{_ZONE})?)",
    re.IGNORECASE,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_FAR_MS: Final = re.compile(r"-?[0-9]{14,19}")
STORED_MAX: Final = (1 << 63) - 1  # last instant that a file can hold, in ms
# Instants in ms that SQL can represent: DuckDB counts microseconds, and its ends mean infinity.
SQL_MS_MIN: Final = -9_223_372_022_400_000
SQL_MS_MAX: Final = 9_223_372_036_854_774
INSTANT_MS_MIN: Final = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // _MILLISECOND


# --- text to values --------------------------------------------------------------------------


def parse_duration(text: str) -> int:
    """Parse `250ms`, `10s`, `5m`, `1h`, `7d`, a sum such as `1h30m`, or `PT5M`; returns ms.

    raises: InvalidArgument (203)
    """
    total = _INT64_MAX + 1
    if _DURATION.fullmatch(text):
        total = sum(int(n) * _DURATION_UNITS[unit] for n, unit in _DURATION_TERM.findall(text))
    elif (iso := _ISO_DURATION.fullmatch(text)) is not None:
        weeks, days, hours, minutes, seconds = (int(part or 0) for part in iso.groups()[:5])
        total = (weeks * 7 + days) * DAY_MS + hours * HOUR_MS + minutes * MINUTE_MS
        total += seconds * SECOND_MS + int((iso[6] or "0").ljust(3, "0"))
    if total <= _INT64_MAX:
        return total
    raise _bad("duration", text, DURATION_FORMS)


def parse_time(text: str, now_ms: int) -> int:
    """Parse an instant in any form of the grammar above; returns milliseconds.

    now_ms: the instant that words and distances are relative to
    raises: InvalidArgument (203)
    """
    instant = _read_time(text, now_ms)
    if instant is None or not INSTANT_MS_MIN <= instant <= INSTANT_MS_MAX:
        raise _bad("time", text, TIME_FORMS)
    return instant


def parse_time_or_end(text: str, now_ms: int) -> int:
    """Parse an instant as parse_time, or `end`, the end of a stream of events.

    raises: InvalidArgument (203)
    """
    return EVENT_TIME_MAX if text == "end" else parse_time(text, now_ms)


def parse_stored(text: str, now_ms: int) -> int:
    """Parse an instant in a file: as parse_time, and far instants as format_time writes them.

    A number of 14 digits or more is therefore milliseconds here, whatever its size.
    raises: InvalidArgument (203)
    """
    if _FAR_MS.fullmatch(text) and -STORED_MAX - 1 <= int(text) <= STORED_MAX:
        return int(text)
    return parse_time(text, now_ms)


def is_distance(text: str) -> bool:
    """Whether a text is `+DURATION` or `-DURATION`."""
    return text[:1] in ("+", "-") and _is_duration(text[1:])


def is_time(text: str) -> bool:
    """Whether a text has the form of an instant, and is neither a number nor an empty text."""
    return (
        text == "now"
        or text.startswith(("now+", "now-"))
        or is_distance(text)
        or any(form.fullmatch(text) for form in (_DATE, _WORDS))
        or (text.endswith(" ago") and _is_duration(text[:-4]))
    )


def _is_duration(text: str) -> bool:
    return any(form.fullmatch(text) for form in (_DURATION, _ISO_DURATION))


def _read_time(text: str, now_ms: int) -> int | None:
    if text == "now":
        return now_ms
    distance = text.removeprefix("now")
    if is_distance(distance):
        length = parse_duration(distance[1:])
        return now_ms + length if distance[0] == "+" else now_ms - length
    if text.endswith(" ago") and _is_duration(text[:-4]):
        return now_ms - parse_duration(text[:-4])
    if _INTEGER.fullmatch(text):
        return _of_number(text)
    day = _DATE.fullmatch(text)
    if day is not None:
        return _of_date(day, text)
    words = _WORDS.fullmatch(text)
    return None if words is None else _of_words(words, text, now_ms)


def _of_number(text: str) -> int:
    """Milliseconds of a number; its digits decide the unit."""
    number, digits = int(text), len(text)
    if digits in (9, 10):
        return number * SECOND_MS
    if digits < 16:
        return number
    return number // 1_000 if digits < 18 else number // 1_000_000


def _of_date(match: re.Match[str], text: str) -> int | None:
    hour, rest = match["hour"] or "00", match["rest"] or ":00"
    try:
        wall = datetime.fromisoformat(f"{match['day']}T{hour:0>2}{rest}")
    except ValueError:
        return None
    fraction_ms = int((match["fraction"] or "0")[:3].ljust(3, "0"))
    whole_ms = _placed(wall, _zone(match["zone"]), text)
    return None if whole_ms is None else whole_ms + fraction_ms


def _of_words(match: re.Match[str], text: str, now_ms: int) -> int | None:
    """Milliseconds of English words, which dateparser reads.

    Hours, minutes and seconds pass in real time, so they count in UTC; days count on the wall.
    """
    zone = UTC if match["passed"] else _zone(match["zone"])
    try:
        base = (_EPOCH + now_ms * _MILLISECOND).astimezone(zone).replace(tzinfo=None)
    except OverflowError:
        return None
    phrase = match["passed"]
    if phrase is None:
        day = match["day"] or match["day_last"]
        phrase = f"{day} {match['clock'] or match['clock_first'] or '00:00'}"
    parser: ModuleType = importlib.import_module("dateparser")
    settings = {"RELATIVE_BASE": base, "RETURN_AS_TIMEZONE_AWARE": False}
    wall = parser.parse(phrase, languages=["en"], settings=settings)
    if wall is None:
        return None
    return _placed(wall, zone, text)


def _zone(text: str | None) -> tzinfo | None:
    """The zone of its text; None: the local one. An offset of a day or more is refused."""
    if text is None:
        return None
    if text[0] not in "+-":
        return UTC
    length = timedelta(hours=int(text[1:3]), minutes=int(text[-2:]))
    if length >= timedelta(days=1) or int(text[-2:]) > 59:
        raise _bad("time", text, "an offset of a zone is -23:59 to +23:59")
    return timezone(length if text[0] == "+" else -length)


def _placed(wall: datetime, zone: tzinfo | None, text: str, *, later: bool = False) -> int | None:
    """Milliseconds of a time on the wall; None: it is out of range.

    zone:   None: the local zone
    later:  of a time that exists twice, the second
    raises: InvalidArgument (203) if a change of the local clocks skips it or repeats it
    """
    if zone is not None:
        return (wall.replace(tzinfo=zone) - _EPOCH) // _MILLISECOND
    try:
        moments = [wall.replace(fold=fold).astimezone(UTC) for fold in (0, 1)]
        local = moments[0].astimezone().replace(tzinfo=None)
    except (OverflowError, ValueError, OSError):
        return None
    if moments[0] != moments[1]:
        if local != wall.replace(fold=0):
            raise _bad("time", text, "the local clocks skip it: give a zone, as in 02:30Z")
        if not later:
            first, second = (moment.astimezone().isoformat()[-6:] for moment in moments)
            raise _bad("time", text, f"the local clocks show it twice: add {first} or {second}")
    return (moments[later] - _EPOCH) // _MILLISECOND


def local_zone_name() -> str | None:
    """The name of the local zone in the database of zones, for engines that convert columns.

    None: it has none, as with TZ=CET-1CEST, or the clocks of this process follow another zone.
    """
    tzlocal: ModuleType = importlib.import_module("tzlocal")
    now = _EPOCH + SystemClock().now().wall_ms * _MILLISECOND
    try:
        with warnings.catch_warnings(action="ignore"):
            zone = tzlocal.reload_localzone()
        zone = ZoneInfo(str(zone))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None
    return zone.key if now.astimezone(zone).utcoffset() == now.astimezone().utcoffset() else None


# --- values to text --------------------------------------------------------------------------


def is_instant(name: str) -> bool:
    """Whether an integer in a field of this name is an instant (spec/cli 1)."""
    return name.endswith(("_time", "_at")) or name in _FIELDS


def format_time(instant_ms: int) -> str:
    """Return the instant as RFC 3339 in UTC, with exactly three decimals.

    An instant after the year 9999, such as the end of a stream, becomes its number.
    """
    if not INSTANT_MS_MIN <= instant_ms <= INSTANT_MS_MAX:
        return str(instant_ms)
    instant = (_EPOCH + instant_ms * _MILLISECOND).replace(tzinfo=None)
    return instant.isoformat(timespec="milliseconds") + "Z"


def wall_text(instant: datetime, *, utc: bool = False) -> str:
    """Return an instant for people: `2026-11-27 14:00:00+01:00`, in the local zone or in UTC.

    raises: ValueError, OverflowError (it has no such form in the local zone)
    """
    wall = instant.astimezone(UTC) if utc else instant.astimezone()
    text = wall.replace(tzinfo=None).isoformat(" ", "seconds")
    return text + ("Z" if not wall.utcoffset() else wall.isoformat()[-6:])


# --- Python's values -------------------------------------------------------------------------


@overload
def instant_ms(value: InstantLike) -> int: ...


@overload
def instant_ms(value: InstantLike | None) -> int | None: ...


def instant_ms(value: InstantLike | None) -> int | None:
    """Milliseconds of an instant in a public call; an int, None or a wrong type is unchanged.

    raises: InvalidArgument (203)
    """
    if isinstance(value, str):
        return parse_time(value, SystemClock().now().wall_ms)
    if not isinstance(value, date):
        return value  # also a wrong type: the call refuses it and names the argument
    if not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if value.utcoffset() is not None:
        return (value - _EPOCH) // _MILLISECOND
    placed = _placed(value.replace(tzinfo=None), None, str(value), later=bool(value.fold))
    if placed is None:
        raise _bad("time", str(value), "the local zone has no such time: give a zone")
    return placed


@overload
def duration_ms(value: DurationLike) -> int: ...


@overload
def duration_ms(value: DurationLike | None) -> int | None: ...


def duration_ms(value: DurationLike | None) -> int | None:
    """Milliseconds of a duration in a public call; an int, None or a wrong type is unchanged.

    raises: InvalidArgument (203)
    """
    if isinstance(value, timedelta):
        return value // _MILLISECOND
    return parse_duration(value) if isinstance(value, str) else value


def durations_ms(values: Mapping[str, object]) -> dict[str, object]:
    """Settings or policies by name: the durations, whose names end in _ms, in milliseconds.

    raises: InvalidArgument (203)
    """
    return {
        name: duration_ms(value)
        if isinstance(value, timedelta) or (isinstance(value, str) and name.endswith("_ms"))
        else value
        for name, value in values.items()
    }


def policies_ms(values: Mapping[str, DurationLike | None]) -> dict[str, int | None]:
    """Policies by name, as durations_ms; the store refuses a text where no duration is meant.

    raises: InvalidArgument (203)
    """
    return cast(dict[str, int | None], durations_ms(values))


def _bad(kind: str, text: str, hint: str) -> InvalidArgument:
    excerpt = text if len(text) <= 80 else f"{text[:77]}..."
    return InvalidArgument(f'not a {kind}: "{excerpt}"', code=203, hint=hint)

"""Instants and durations: one parser and one printed form, in every zone (spec/cli 6)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txlog.base.settings import EVENT_TIME_MAX, INSTANT_MS_MAX
from txlog.base.times import (
    INSTANT_MS_MIN,
    duration_ms,
    format_time,
    instant_ms,
    parse_duration,
    parse_stored,
    parse_time,
    parse_time_or_end,
    wall_text,
)
from txlog.errors import InvalidArgument

NOW = 1_763_629_924_123  # 2025-11-20T09:12:04.123Z
HOUR = 3_600_000
DAY = 24 * HOUR
MIDNIGHT = 1_763_596_800_000

Zone = Callable[[str], None]


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Zone]:
    """A function that sets the local zone of the process, until the test ends."""

    def set_zone(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield set_zone
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("250ms", 250),
        ("10s", 10_000),
        ("5m", 300_000),
        ("1h", HOUR),
        ("7d", 7 * DAY),
        ("1h30m", 5_400_000),
        ("0s", 0),
        ("1d1h1m1s1ms", DAY + HOUR + 61_001),
        ("PT5M", 300_000),
        ("PT1H30M", 5_400_000),
        ("P1DT2H", DAY + 2 * HOUR),
        ("P2W", 14 * DAY),
        ("PT0.25S", 250),
        ("PT1.5S", 1_500),
    ],
)
def test_durations(text: str, expected: int) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "5", "m", "-5m", "1.5h", "5 m", "5M", "1w", "9" * 15 + "d", "9" * 5000 + "s"),
        *("P", "PT", "P1M", "P1Y", "PT5", "P1DT", "pt5m", "PT1.0005S", "P1H"),
    ],
)
def test_bad_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_duration(text)
    assert caught.value.code == 203
    assert "1h30m" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW),
        ("now+5m", NOW + 300_000),
        ("now-5m", NOW - 300_000),
        ("-1h", NOW - HOUR),
        ("+5m", NOW + 300_000),
        ("-PT1H", NOW - HOUR),
        ("5m ago", NOW - 300_000),
        ("1763596800", MIDNIGHT),
        ("999999999", 999_999_999_000),
        ("1763596800000", MIDNIGHT),
        ("1763596800000999", MIDNIGHT),
        ("1763596800000999999", MIDNIGHT),
        ("12345678", 12_345_678),
        ("0", 0),
        ("2025-11-20Z", MIDNIGHT),
        ("2025-11-20 UTC", MIDNIGHT),
        ("2025-11-20T00:00:00Z", MIDNIGHT),
        ("2025-11-20t01:00:00.1234567+01:00", MIDNIGHT + 123),
        ("2025-11-20 00:00:00.05-00:00", MIDNIGHT + 50),
        ("1969-12-31T23:59:59.999Z", -1),
        ("2025-11-20T00:00Z", MIDNIGHT),
        ("2025-11-20 1:30 +0100", MIDNIGHT + HOUR // 2),
        ("yesterday 14:00 UTC", MIDNIGHT - 10 * HOUR),
        ("tomorrow 9:00Z", MIDNIGHT + 33 * HOUR),
        ("tomorrow at 9am UTC", MIDNIGHT + 33 * HOUR),
        ("9:30pm today UTC", MIDNIGHT + 21 * HOUR + HOUR // 2),
        ("Yesterday UTC", MIDNIGHT - DAY),
        ("today noon +01:00", MIDNIGHT + 11 * HOUR),
        ("2 days ago at 10:00 UTC", MIDNIGHT - 38 * HOUR),
        ("in 2 days UTC", MIDNIGHT + 2 * DAY),
        ("3 hours ago", NOW - 3 * HOUR),
        ("an hour ago", NOW - HOUR),
        ("in 5 minutes", NOW + 300_000),
        ("27 Nov 2025 14:00 UTC", MIDNIGHT + 7 * DAY + 14 * HOUR),
        ("November 27, 2025 UTC", MIDNIGHT + 7 * DAY),
    ],
)
def test_times(text: str, expected: int) -> None:
    assert parse_time(text, NOW) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "-5", "2025-13-01", "2025-11-20T24:00:01Z", "2025-11-20T00:00.5Z", "2025-11-20T00Z"),
        *("20251120T000000Z", "now5m", "1e9", "253402300800000", "9" * 30, "2025-W01-1"),
        *("2025-02-29", "-9999999d", "2025-11-20 9", "2025-11-20T00:00+25:00"),
        *("yesterday 25:00", "yesterday 14", "yesterday 2 o'clock", "tomorrow 9:00 Mars"),
        *("14:00", "monday", "next friday", "31 Feb 2025", "Nov 27", "11/12/2025", "gestern"),
        *("hier 14:00", "soon", "tomorrow tomorrow", "0:00 14:00 today", "13:00pm today", "ago"),
        *("Nov 2025", "99999999 years ago", "yesterday\n14:00", "heute 14:00"),
    ],
)
def test_time_that_is_understood_only_in_part_is_refused(text: str) -> None:
    """dateparser ignores what it does not know: it reads `yesterday 25:00` as yesterday."""
    with pytest.raises(InvalidArgument) as caught:
        parse_time(text, NOW)
    assert caught.value.code == 203
    hint = str(caught.value.hint)
    assert "\n" not in hint


def test_a_time_without_a_zone_is_local(zone: Zone) -> None:
    zone("Europe/Berlin")
    assert parse_time("2025-11-20 01:00", NOW) == MIDNIGHT
    assert parse_time("2025-11-20", NOW) == MIDNIGHT - HOUR
    assert parse_time("2025-07-01T02:00", NOW) == parse_time("2025-07-01T00:00Z", NOW)
    assert parse_time("yesterday 14:00", NOW) == parse_time("2025-11-19 14:00", NOW)
    assert parse_time("tomorrow 9:00", NOW) == parse_time("2025-11-21T08:00Z", NOW)
    zone("America/New_York")
    assert parse_time("2025-11-20 01:00", NOW) == MIDNIGHT + 6 * HOUR
    assert parse_time("today", NOW) == MIDNIGHT + 5 * HOUR


def test_days_count_on_the_wall_and_hours_in_real_time(zone: Zone) -> None:
    """The clocks of Berlin went back on 2025-10-26 at 03:00."""
    zone("Europe/Berlin")
    after = parse_time("2025-10-26 12:00", NOW)
    assert parse_time("yesterday 12:00", after) == after - 25 * HOUR
    assert parse_time("24 hours ago", after) == after - 24 * HOUR


def test_a_local_time_that_the_clocks_skip_or_repeat_is_refused(zone: Zone) -> None:
    zone("Europe/Berlin")
    with pytest.raises(InvalidArgument) as caught:
        parse_time("2025-03-30 02:30", NOW)
    assert "skip" in str(caught.value.hint)
    with pytest.raises(InvalidArgument) as caught:
        parse_time("2025-10-26 02:30", NOW)
    assert "+02:00 or +01:00" in str(caught.value.hint)
    first = parse_time("2025-10-26 02:30+02:00", NOW)
    assert parse_time("2025-10-26 02:30+01:00", NOW) == first + HOUR
    assert instant_ms(datetime(2025, 10, 26, 2, 30, fold=1)) == first + HOUR  # noqa: DTZ001
    with pytest.raises(InvalidArgument):
        instant_ms(datetime(2025, 10, 26, 2, 30))  # noqa: DTZ001


def test_what_people_see_has_its_zone_and_is_read_again(zone: Zone) -> None:
    moment = datetime(2025, 7, 1, 12, 0, 5, tzinfo=UTC)
    at = int(moment.timestamp() * 1000)
    for name, text in (
        ("Europe/Berlin", "2025-07-01 14:00:05+02:00"),
        ("America/St_Johns", "2025-07-01 09:30:05-02:30"),
        ("UTC", "2025-07-01 12:00:05Z"),
    ):
        zone(name)
        assert wall_text(moment) == text
        assert parse_time(text, NOW) == at
        assert wall_text(moment, utc=True) == "2025-07-01 12:00:05Z"


@given(st.integers(INSTANT_MS_MIN, INSTANT_MS_MAX))
def test_printed_time_is_accepted(instant: int) -> None:
    text = format_time(instant)
    assert len(text) == len("2026-11-20T09:12:04.123Z")
    assert parse_time(text, NOW) == instant


@given(st.integers(-(1 << 63), (1 << 63) - 1).filter(lambda ms: abs(ms) >= 10**14))
def test_a_far_instant_in_a_file_stays_milliseconds(instant: int) -> None:
    """An import reads the text that an export writes for an instant after the year 9999."""
    assert parse_stored(format_time(instant), NOW) == instant


def test_the_end_of_a_stream_has_a_word() -> None:
    assert parse_time_or_end("end", NOW) == EVENT_TIME_MAX
    assert parse_time_or_end("now", NOW) == NOW


def test_values_of_python_are_milliseconds(zone: Zone) -> None:
    zone("Europe/Berlin")
    assert instant_ms(None) is None
    assert instant_ms(7) == 7
    assert instant_ms(datetime(2025, 11, 20, tzinfo=UTC)) == MIDNIGHT
    assert instant_ms(datetime(2025, 11, 20, 1, tzinfo=timezone(timedelta(hours=1)))) == MIDNIGHT
    assert instant_ms(datetime(2025, 11, 20, 1)) == MIDNIGHT  # noqa: DTZ001
    assert instant_ms(date(2025, 11, 20)) == MIDNIGHT - HOUR
    assert instant_ms("2025-11-20T00:00Z") == MIDNIGHT
    assert duration_ms(None) is None
    assert duration_ms(250) == 250
    assert duration_ms(timedelta(minutes=5)) == duration_ms("5m") == 300_000


@given(st.text(max_size=24))
def test_any_text_is_a_time_or_refused(text: str) -> None:
    try:
        parse_time(text, NOW)
    except InvalidArgument as error:
        assert error.exit == 2

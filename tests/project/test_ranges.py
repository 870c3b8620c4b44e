"""Ranges, times, durations and sizes: the forms of spec/cli 2, 6 and 12, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import txlog
from txlog.base.ids import MessageId, TxnId
from txlog.base.ranges import (
    END,
    INSTANT_MS_MIN,
    START,
    Bound,
    Range,
    format_time,
    parse_bound,
    parse_duration,
    parse_range,
    parse_size,
    parse_time,
)
from txlog.base.settings import INSTANT_MS_MAX
from txlog.errors import InvalidArgument, TxlogError

NOW = 1_763_629_924_123
HOUR = 3_600_000
DAY = 24 * HOUR
MIDNIGHT = 1_763_596_800_000


def time(ms: int) -> Bound:
    return Bound("time", ms)


def at(text: str) -> Bound:
    return Bound("id", MessageId.parse(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("start", Range(START)),
        ("end", Range(END)),
        ("+100", Range(Bound("skip", 100))),
        ("-100", Range(Bound("last", 100))),
        ("17:4", Range(at("17:4"))),
        ("17:4:2", Range(at("17:4:2"))),
        ("17:4..17:90", Range(at("17:4"), at("17:90"))),
        ("17:4..", Range(at("17:4"))),
        ("..17:4", Range(START, at("17:4"))),
        ("..", Range(START)),
        (":", Range(START)),
        ("@-1h", Range(time(NOW - HOUR))),
        ("@-48h..-24h", Range(time(NOW - 2 * DAY), time(NOW - DAY))),
        ("@2025-11-20..end", Range(time(MIDNIGHT), END)),
        ("@2025-11-20..+10m", Range(time(MIDNIGHT), time(MIDNIGHT + 600_000))),
        ("@2025-11-20:+10m", Range(time(MIDNIGHT), time(MIDNIGHT + 600_000))),
        (
            "@2025-11-20T00:00:00Z..@2025-11-20T01:00:00Z",
            Range(time(MIDNIGHT), time(MIDNIGHT + HOUR)),
        ),
        ("sub", Range(Bound("sub"))),
        ("sub=billing", Range(Bound("sub", "billing"))),
        ("sub=a..b", Range(Bound("sub", "a..b"))),
        ("sub=a:b", Range(Bound("sub", "a:b"))),
        ("sub=a..end", Range(Bound("sub", "a"), END)),
        ("sub=a..+5", Range(Bound("sub", "a"), Bound("skip", 5))),
        ("unacked", Range(kind="unacked")),
        ("unacked=a:b", Range(kind="unacked", subscription="a:b")),
        ("txn:0:42", Range(kind="txn", txn=TxnId(0, 42))),
        (":end", Range(START, END)),
        ("-10:end", Range(Bound("last", 10), END)),
        ("+5:+10", Range(Bound("skip", 5), Bound("skip", 10))),
        ("@-2h:-1h", Range(time(NOW - 2 * HOUR), time(NOW - HOUR))),
        ("+5:", Range(Bound("skip", 5))),
    ],
)
def test_range_forms(text: str, expected: Range) -> None:
    assert parse_range(text, NOW) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "17",
        "17:4:17:90",
        "17:4:0",
        "..x",
        "x..",
        "@",
        "@x",
        "txn:",
        "txn:x",
        "sub=",
        "+",
        "-",
        "start..+10m",
        "1:2..+1h",
        "@-1h..@",
        "@2025-11-20T00:00:00",
        "sub=..",
        "unacked=",
        "+1..-1h",
        "17:4..90",
        "+5:x",
        "1:2:3:4:5",
        "\u0663:1",
        "@2025-11-20T10:00:00Z:end",
        "-1h",
    ],
)
def test_bad_range_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_range(text, NOW)
    assert caught.value.code in (202, 203)


def test_two_ids_joined_by_colons_name_the_right_form() -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_range("17:4:17:90", NOW)
    assert caught.value.hint == "17:4..17:90"


@given(st.text(alphabet="start end@+-:.0123456789hmsunbTZ=|x", max_size=24))
def test_any_text_is_a_range_or_refused(text: str) -> None:
    """Any text gives a Range or an error of txlog."""
    try:
        parsed = parse_range(text, NOW)
    except TxlogError as error:
        assert error.exit == 2
        return
    assert parse_range(str(parsed), NOW) == parsed


@pytest.mark.parametrize("text", ["start", "end", "+3", "-3", "17:4", "17:4:2", "sub", "sub=x"])
def test_bound_prints_its_text(text: str) -> None:
    assert str(parse_bound(text, NOW)) == text


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
    ],
)
def test_durations(text: str, expected: int) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    "text", ["", "5", "m", "-5m", "1.5h", "5 m", "5M", "1w", "9" * 15 + "d", "9" * 5000 + "s"]
)
def test_bad_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_duration(text)
    assert caught.value.code == 203


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4096", 4096),
        ("0", 0),
        ("64KiB", 65_536),
        ("1MB", 1_000_000),
        ("1GiB", 1 << 30),
        ("2tb", 2 * 10**12),
        ("7B", 7),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "-1", "1.5MB", "1 MB", "MB", "1iB", "9" * 18 + "TiB", "1PB"])
def test_bad_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW),
        ("now+5m", NOW + 300_000),
        ("now-5m", NOW - 300_000),
        ("-1h", NOW - HOUR),
        ("+5m", NOW + 300_000),
        ("1763596800", MIDNIGHT),
        ("999999999", 999_999_999_000),
        ("1763596800000", MIDNIGHT),
        ("12345678", 12_345_678),
        ("0", 0),
        ("2025-11-20", MIDNIGHT),
        ("2025-11-20T00:00:00Z", MIDNIGHT),
        ("2025-11-20t01:00:00.1234567+01:00", MIDNIGHT + 123),
        ("2025-11-20 00:00:00.05-00:00", MIDNIGHT + 50),
        ("1969-12-31T23:59:59.999Z", -1),
        ("2025-11-20T00:00Z", MIDNIGHT),
        ("2025-11-20T01:30+01:00", MIDNIGHT + HOUR // 2),
    ],
)
def test_times(text: str, expected: int) -> None:
    assert parse_time(text, NOW) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-5",
        "2025-13-01",
        "2025-11-20T00:00:00",
        "2025-11-20T24:00:01Z",
        "2025-11-20T00:00.5Z",
        "2025-11-20T00Z",
        "20251120T000000Z",
        "tomorrow",
        "now5m",
        "1e9",
        "253402300800000",
        "9" * 30,
        "2025-W01-1",
        "2025-02-29",
        "-9999999d",
    ],
)
def test_bad_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_time(text, NOW)
    assert caught.value.code == 203


@given(st.integers(INSTANT_MS_MIN, INSTANT_MS_MAX))
def test_printed_time_is_accepted(instant_ms: int) -> None:
    text = format_time(instant_ms)
    assert len(text) == len("2026-11-20T09:12:04.123Z")
    assert parse_time(text, NOW) == instant_ms


def test_positions_are_parsed_from_their_text_as_the_guide_says() -> None:
    """docs/python.md: without an instant of its own, times are relative to the wall clock."""
    assert str(txlog.Bound.parse("-100")) == "-100"
    assert txlog.Range.parse("17:4..end") == parse_range("17:4..end", 0)
    assert txlog.Range.parse("@-1h..end", 7_200_000) == parse_range("@-1h..end", 7_200_000)
    assert str(txlog.Bound.parse("@2026-11-20")) == "@2026-11-20T00:00:00.000Z"
    with pytest.raises(InvalidArgument):
        txlog.Bound.parse("nonsense")

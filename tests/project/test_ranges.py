"""Ranges, times, durations and sizes: the forms of spec/cli 2, 6 and 12, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import txlog
from txlog.base.ids import MessageId, TxnId
from txlog.base.ranges import (
    END,
    START,
    Bound,
    Range,
    parse_bound,
    parse_range,
    parse_size,
)
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
        ("@2025-11-20Z..end", Range(time(MIDNIGHT), END)),
        ("@2025-11-20Z..+10m", Range(time(MIDNIGHT), time(MIDNIGHT + 600_000))),
        ("@2025-11-20Z:+10m", Range(time(MIDNIGHT), time(MIDNIGHT + 600_000))),
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
        ("-1h", Range(time(NOW - HOUR))),
        ("-1h..now", Range(time(NOW - HOUR), time(NOW))),
        ("2025-11-20Z", Range(time(MIDNIGHT))),
        ("2025-11-20 00:00Z..+10m", Range(time(MIDNIGHT), time(MIDNIGHT + 600_000))),
        ("@2025-11-20 00:00 UTC", Range(time(MIDNIGHT))),
        ("2025-11-20T00:00Z..2025-11-20T01:00Z", Range(time(MIDNIGHT), time(MIDNIGHT + HOUR))),
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
        "sub=..",
        "unacked=",
        "+1..-1h",
        "17:4..90",
        "+5:x",
        "1:2:3:4:5",
        "\u0663:1",
        "@2025-11-20T10:00:00Z:end",
        "@yesterday 14",
        "@2025-11-20 14",
        "@14:00",
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


def test_positions_are_parsed_from_their_text_as_the_guide_says() -> None:
    """docs/python.md: without an instant of its own, times are relative to the wall clock."""
    assert str(txlog.Bound.parse("-100")) == "-100"
    assert txlog.Range.parse("17:4..end") == parse_range("17:4..end", 0)
    assert txlog.Range.parse("@-1h..end", 7_200_000) == parse_range("@-1h..end", 7_200_000)
    assert str(txlog.Bound.parse("@2026-11-20Z")) == "@2026-11-20T00:00:00.000Z"
    with pytest.raises(InvalidArgument):
        txlog.Bound.parse("nonsense")

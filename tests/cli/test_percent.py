"""The %-formats of records: each verb, its options, escapes, and refused formats."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from txlog.base.text.columns import data_of
from txlog.base.text.messages import Messages
from txlog.cli.output.percent import Format
from txlog.engine.plan.reading.dispatch import RECEIVED
from txlog.errors import Usage

ROW: dict[str, Any] = {
    "topic": "orders",
    "partition": 2,
    "ledger": 17,
    "entry": 4,
    "index": 3,
    "key": b"k1",
    "value": b"a\xffb",
    "properties": {"lang": "en", "x": "1"},
    "publish_time": 1_795_165_924_117,
    "event_time": None,
    "deliver_at": 0,
    "visible_time": 1_795_165_924_123,
    "txn_most": 3 << 48,
    "txn_least": 18,
    "txn_state": "committed",
    "producer": "till-7",
    "sequence_id": 9,
    "number": 5,
}
SCHEMA = pa.schema([*RECEIVED, ("number", pa.int64()), ("watermark", pa.int64())])


def applied(form: Format, row: dict[str, Any]) -> bytes:
    """Format one row."""
    properties = list(row["properties"].items())
    table = pa.Table.from_pylist([{**row, "properties": properties}], schema=SCHEMA)
    return bytes(data_of(form.lines(Messages(table))))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%v", b"a\xffb"),
        ("%v{hex}", b"61ff62"),
        ("%v{base64}", b"Yf9i"),
        ("%k{json}", b'"k1"'),
        ("%k{unpack[>H]}", b"27441"),
        ("%t/%p %o", b"orders/2 17:4:3"),
        ("%o{ledger} %o{entry} %o{index}", b"17 4 3"),
        ("%V %K %T %H", b"3 2 6 2"),
        ("%V{big32}", b"\0\0\0\3"),
        ("%V{little64}", b"\3\0\0\0\0\0\0\0"),
        ("%V{4}", b"0003"),
        ("%h{%k=%v;}", b"lang=en;x=1;"),
        ("%d %d{event} %d{deliver}", b"1795165924117  0"),
        ("%d{rfc3339}", b"2026-11-20T09:12:04.117Z"),
        ("%d{deliver}{strftime[%F]}", b"1970-01-01"),
        ("%x %x{state} %x{index}", b"3:18 committed 3"),
        ("%P %q %i", b"till-7 9 5"),
        (r"a\n\t\r\0\\\x41%%%{%}", b"a\n\t\r\0\\A%{}"),
        ("ä%%", "ä%".encode()),
    ],
)
def test_a_verb_prints_its_field(text: str, expected: bytes) -> None:
    """spec/cli 7: the table of verbs."""
    assert applied(Format(text), ROW) == expected


def test_a_plain_message_has_no_index_and_no_transaction() -> None:
    """An id without index is L:E, absent things are empty."""
    row = {**ROW, "index": None, "txn_most": None, "txn_state": None, "key": None}
    assert applied(Format("%o|%o{index}|%x|%x{state}|%k|"), row) == b"17:4|||||"


def test_a_message_of_an_open_transaction_has_no_id() -> None:
    """spec/cli 9: its id comes with the commit."""
    assert applied(Format("%o %x"), {**ROW, "ledger": None, "entry": None}) == b" 3:18"


@pytest.mark.parametrize(
    "text",
    ["%s", "%e", "%y", "%a", "%z", "%", "%v{no}", "%o{no}", "%h{%k", r"\q", r"\x4", "%g", "%t{",
     "%p{hex}", "%d{no}", "%d{ms}", "%w", "%h{%w}", "%V{big7}", "%x{no}", "%k{unpack[!!]}"],
)  # fmt: skip
def test_an_unknown_verb_is_a_usage_error(text: str) -> None:
    """spec/cli 7: exit 2."""
    with pytest.raises(Usage):
        Format(text)


def test_watermark_verb_prints_the_watermark_of_its_row() -> None:
    """spec/cli 7: only with consume --watermarks; empty before the first watermark."""
    row = {**ROW, "watermark": 1_795_165_924_117}
    form = Format("%w|%w{rfc3339}|%w{strftime[%F]}", watermarks=True)
    assert applied(form, row) == b"1795165924117|2026-11-20T09:12:04.117Z|2026-11-20"
    assert applied(form, {**row, "watermark": None}) == b"||"
    for text in ("%w{ms}", "%w{event}", "%w{rfc3339}{rfc3339}"):
        with pytest.raises(Usage):
            Format(text, watermarks=True)


@pytest.mark.parametrize(
    ("text", "meant"), [("%s", "%v"), ("%e", "%o{entry}"), ("%a", "%x{state}")]
)
def test_a_verb_of_another_tool_names_the_one_meant(text: str, meant: str) -> None:
    """spec/cli 7: %s %e %y %a name the verb meant."""
    with pytest.raises(Usage) as caught:
        Format(text)
    assert caught.value.hint == meant

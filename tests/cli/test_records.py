"""Messages out: the JSON record, the envelope, and the formats of bytes."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from txlog.cli.input.inputs import Input
from txlog.cli.output.records import Records
from txlog.cli.terminal.fields import RECORD_FIELDS
from txlog.cli.terminal.tables import Look

LOOK = Look(human=False, color=False, utc=True, width=0)
INSTANT = pa.timestamp("ms", "UTC")
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("ledger", pa.int64()),
        ("entry", pa.int64()),
        ("index", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("publish_time", INSTANT),
        ("event_time", INSTANT),
        ("deliver_at", INSTANT),
        ("visible_time", INSTANT),
        ("producer", pa.string()),
        ("sequence_id", pa.int64()),
        ("txn_most", pa.int64()),
        ("txn_least", pa.int64()),
        ("txn_state", pa.string()),
        ("redelivery_count", pa.int32()),
    ]
)


def table(*rows: dict[str, Any]) -> pa.Table:
    base = {"topic": "orders", "partition": 0, "ledger": 17, "publish_time": 0, "visible_time": 0}
    return pa.Table.from_pylist(
        [{**base, "entry": at, **row} for at, row in enumerate(rows)], schema=SCHEMA
    )


def lines(form: str, *rows: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    data = Records(form, None, look=LOOK, **options).encode(table(*rows))
    return [json.loads(line) for line in data.splitlines()]


@pytest.mark.parametrize(
    ("value", "embedded", "encoding"),
    [
        (b"3", "3", "utf8"),
        (b"null", "null", "utf8"),
        (b"", "", "utf8"),
        (None, None, None),
        (b'{"id":1}', {"id": 1}, "json"),
        (b'[1,\n2]', [1, 2], "json"),
        (b'{"id":', '{"id":', "utf8"),
        (b"\xff", "/w==", "base64"),
        (b'{"n":123456789012345678901234567890}', {"n": 123456789012345678901234567890}, "json"),
    ],
)  # fmt: skip
def test_a_value_is_embedded_text_or_base64(
    value: bytes | None, embedded: object, encoding: str | None
) -> None:
    """spec/cli 7: value and value_encoding; numbers are not rounded on the way."""
    [record] = lines("json", {"value": value})
    assert (record["value"], record["value_encoding"]) == (embedded, encoding)
    exact = ["value_bytes"] if b"\n" in (value or b"") else []
    assert list(record) == [*RECORD_FIELDS, *exact]


def test_raw_strings_never_embed() -> None:
    """spec/cli 7: --raw-strings."""
    [record] = lines("ndjson", {"value": b'{"id":1}'}, raw_strings=True)
    assert (record["value"], record["value_encoding"]) == ('{"id":1}', "utf8")


def test_a_record_of_a_transaction_has_index_and_state() -> None:
    """spec/cli 9: the sample."""
    [record] = lines(
        "json",
        {"value": b"3", "index": 3, "txn_most": 0, "txn_least": 42, "txn_state": "committed"},
    )
    assert record["message_id"] == "17:0:3"
    assert (record["txn"], record["txn_index"], record["txn_state"]) == ("0:42", 3, "committed")
    assert record["publish_time"] == "1970-01-01T00:00:00.000Z"
    assert record["key"] is record["key_encoding"] is record["late"] is None


def test_an_open_row_has_neither_id_nor_visible_time() -> None:
    """spec/cli 7: null while it is not committed."""
    row = {"value": b"a", "ledger": None, "entry": None, "visible_time": None, "index": 1}
    [record] = lines("json", {**row, "txn_most": 0, "txn_least": 1, "txn_state": "open"})
    assert record["message_id"] is record["visible_time"] is None


def test_bytes_pass_through_lines_and_raw() -> None:
    """spec/cli 7: `lines` is %v and a newline, `raw` puts nothing between the values."""
    rows = ({"value": b"a\xff"}, {"value": None}, {"value": b"b"})
    assert Records("lines", None, look=LOOK).encode(table(*rows)) == b"a\xff\n\nb\n"
    assert Records("raw", None, look=LOOK).encode(table(*rows)) == b"a\xffb"
    assert Records("%i:%v,", None, look=LOOK).encode(table(*rows)) == b"0:a\xff,1:,2:b,"


def test_tsv_has_a_header_and_one_line_a_record() -> None:
    """spec/cli 4: tab and newline are written out, null is empty."""
    records = Records("tsv", ["message_id", "key", "value"], look=LOOK)
    assert records.begin() == b"message_id\tkey\tvalue\n"
    assert records.encode(table({"value": b"a\tb\nc"})) == b"17:0\t\ta\\tb\\nc\n"


def test_a_line_on_a_terminal_is_cut_and_printable() -> None:
    """spec/cli 4: one line a record, cut to the width; no stored byte moves the cursor."""
    look = Look(human=True, color=False, utc=True, width=20)
    data = Records("line", None, look=look).encode(table({"value": b"\x1b[2J" + b"x" * 80}))
    assert b"\x1b" not in data
    assert len(data.decode()) <= 21


def test_the_envelope_round_trip_is_byte_exact(tmp_path: Any) -> None:
    """spec/cli 11.11: key, value, properties, times and nulls come back as they were."""
    rows = (
        {"value": b"\xff\0", "key": b"", "properties": [("a", "ü")], "event_time": -5},
        {"value": None, "key": None, "deliver_at": 7},
        {"value": b'{"a": 1}', "key": b"\xfe"},
    )
    path = tmp_path / "envelopes"
    path.write_bytes(Records("envelope", None, look=LOOK).encode(table(*rows)))
    [back] = [t for t in Input("envelope", [str(path)]).tables() if t is not None]
    assert back["value"].to_pylist() == [b"\xff\0", None, b'{"a": 1}']
    assert back["key"].to_pylist() == [b"", None, b"\xfe"]
    assert back["properties"].to_pylist() == [[("a", "ü")], None, None]
    assert back["event_time"].cast(pa.int64()).to_pylist() == [-5, None, None]
    assert back["deliver_at"].cast(pa.int64()).to_pylist() == [None, 7, None]


def test_only_json_has_a_record_of_a_watermark() -> None:
    """spec/cli 7; text formats have nothing between the messages."""
    for form in ("json", "ndjson"):
        records = Records(form, ["value"], look=LOOK, watermarks=True)
        records.watermark = 0
        line = json.loads(records.event("orders", "billing", "active"))
        assert line == {
            "kind": "watermark",
            "topic": "orders",
            "subscription": "billing",
            "partition": None,
            "watermark": "1970-01-01T00:00:00.000Z",
            "status": "active",
        }
    for form in ("lines", "raw", "tsv", "csv", "envelope", "line", "%w"):
        records = Records(form, None, look=LOOK, watermarks=True)
        records.watermark = 0
        assert records.event(None, "billing", "active") == b""


def test_late_is_the_flag_of_the_consumer() -> None:
    """null without watermarks."""
    assert lines("json", {})[0]["late"] is None
    for late in (True, False):
        rows = table({}).append_column("is_late", pa.array([late]))
        data = Records("json", None, look=LOOK).encode(rows)
        assert json.loads(data)["late"] is late


@pytest.mark.parametrize(
    "form",
    [
        "lines", "raw", "%v", "%k:%v\\n", "%h", "%o %x\\n", "%x{index} %x{state}",
        "%d%d{event}%d{deliver}",
        "%d{visible}", "%t/%p %q %P %i\\n", "%V %K %T %H", "%o{index}",
        "%d{rfc3339} %k{hex} %v{json}",
    ],
)  # fmt: skip
def test_format_names_the_columns_that_it_needs(form: str) -> None:
    """The named columns give the same bytes; a reader always adds the columns that it computes."""
    rows = table(
        {"key": b"k", "value": b"v", "properties": [("a", "b")], "event_time": 5, "deliver_at": 6},
        {"value": b"w", "index": 2, "txn_most": 1 << 48, "txn_least": 7, "txn_state": "committed"},
        {"key": b"", "producer": "p", "sequence_id": 3, "publish_time": 9, "visible_time": 10},
    )
    records = Records(form, None, look=LOOK)
    needed = records.columns()
    assert needed is not None
    always_present = {"topic", "partition", "ledger", "entry", "index", "visible_time", "txn_state"}
    fewer = pa.table(
        [
            rows[name]
            if name in always_present.union(needed)
            else pa.nulls(len(rows), rows[name].type)
            for name in rows.column_names
        ],
        schema=SCHEMA,
    )
    assert records.encode(fewer) == Records(form, None, look=LOOK).encode(rows)


def test_records_of_all_fields_are_made_of_all_columns() -> None:
    assert Records("json", None, look=LOOK).columns() is None
    assert Records("%r", None, look=LOOK, beside=lambda rows: {}).columns() is None

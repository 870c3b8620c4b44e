"""Owns the records of messages made one message after the other, field by field: the oracle.

It uses nothing of `txlog.base.text`, and follows section 7 of spec/cli.
"""

from __future__ import annotations

import base64
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pyarrow as pa

Row = dict[str, Any]
FIELDS = (
    "kind topic partition message_id key key_encoding value value_encoding properties publish_time "
    "event_time deliver_at visible_time txn txn_index txn_state producer sequence_id "
    "redelivery_count late size_bytes record"
).split()
ENVELOPE = (
    "key key_encoding value value_encoding properties event_time deliver_at topic partition "
    "message_id publish_time producer sequence_id"
).split()
_TIMES = ("publish_time", "event_time", "deliver_at", "visible_time")
_FIRST, _LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rows_of(table: pa.Table) -> list[Row]:
    """The messages as mappings; instants in ms, each property once."""
    for at, name in enumerate(table.column_names):
        if name in _TIMES:
            table = table.set_column(at, name, table[name].cast(pa.int64()))
    rows: list[Row] = table.to_pylist()
    for row in rows:
        row["properties"] = dict(row["properties"] or ())
    return rows


def instant(ms: int | None) -> str | None:
    """RFC 3339, or the number of an instant outside of the years 1 to 9999."""
    if ms is None:
        return None
    least, most = ((day - _EPOCH) // timedelta(milliseconds=1) for day in (_FIRST, _LAST))
    if not least <= ms <= most:
        return str(ms)
    moment = _EPOCH + timedelta(milliseconds=ms)
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def message_id(row: Row) -> str | None:
    """L:E or L:E:I."""
    if row.get("ledger") is None:
        return None
    return f"{row['ledger']}:{row['entry']}" + (f":{row['index']}" if row["index"] else "")


def transaction(row: Row) -> str | None:
    """C:S."""
    if row.get("txn_most") is None:
        return None
    number = row["txn_most"] << 64 | row["txn_least"]
    return f"{number >> 112}:{number & (1 << 112) - 1}"


def text_of(data: bytes | None) -> tuple[str | None, str | None]:
    """Bytes as text, and the encoding: utf8 or base64."""
    if data is None:
        return None, None
    try:
        return data.decode(), "utf8"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"


def _body(value: bytes | None, embed: bool) -> tuple[Any, str | None]:
    if embed and value is not None and re.match(rb"[ \t\r\n]*[{\[]", value):
        try:
            orjson.loads(value)
        except orjson.JSONDecodeError:
            pass
        else:
            return orjson.Fragment(value.replace(b"\n", b" ").replace(b"\r", b" ")), "json"
    return text_of(value)


def record(row: Row, *, embed: bool) -> Row:
    """The JSON record."""
    key, value = text_of(row["key"]), _body(row["value"], embed)
    return {
        **{name: row.get(name) for name in FIELDS},
        "kind": "message",
        "message_id": message_id(row),
        **dict(zip(("key", "key_encoding"), key, strict=True)),
        **dict(zip(("value", "value_encoding"), value, strict=True)),
        **{name: instant(row[name]) for name in _TIMES},
        "txn": transaction(row),
        "txn_index": row["index"],
        "late": row.get("is_late"),
        "size_bytes": len(row["value"] or b""),
        "record": None,
    }


def json_line(row: Row, names: list[str], *, embed: bool) -> bytes:
    """A line of json or ndjson."""
    fields = record(row, embed=embed)
    picked = {name: fields[name] for name in names}
    value = row["value"] or b""
    is_exact = value == value.strip(b" \t\r\n") and not {*b"\r\n"} & {*value}
    if picked.get("value_encoding") == "json" and "value" in picked and not is_exact:
        picked["value_bytes"] = base64.b64encode(value).decode()
    return orjson.dumps(picked) + b"\n"


def envelope(row: Row) -> bytes:
    """A line of envelopes: instants in ms."""
    fields = {**record(row, embed=False), **{name: row[name] for name in _TIMES}}
    return orjson.dumps({name: fields[name] for name in ENVELOPE}) + b"\n"


def cell(value: object) -> str:
    """A value of JSON as a cell; an array of words or integers is joined."""
    if isinstance(value, list) and all(isinstance(item, str | int) for item in value):
        return ",".join(map(str, value))
    if isinstance(value, bool | dict | list | float):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return "" if value is None else str(value)


def tsv_line(cells: list[str]) -> str:
    """A line of tsv."""
    escapes = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
    return (
        "\t".join(re.sub(r"[\\\t\n\r]", lambda one: escapes[one[0]], one) for one in cells) + "\n"
    )


def csv_line(cells: list[str]) -> str:
    """A line of csv; an empty cell by itself has quotes."""
    if cells == [""]:
        return '""\n'
    quoted = ['"' + c.replace('"', '""') + '"' if re.search('[,"\n\r]', c) else c for c in cells]
    return ",".join(quoted) + "\n"


def delimited(form: str, row: Row, names: list[str]) -> bytes:
    """A line of tsv or csv."""
    fields = record(row, embed=False)
    cells = [cell(fields[name]) for name in names]
    return (tsv_line(cells) if form == "tsv" else csv_line(cells)).encode()


def _json(data: bytes) -> bytes:
    return json.dumps(data.decode("utf-8", "replace"), ensure_ascii=False).encode()


def _ms(name: str, row: Row) -> bytes:
    return b"" if row.get(name) is None else b"%d" % row[name]


def _rfc3339(name: str, row: Row) -> bytes:
    return (instant(row.get(name)) or "").encode()


def _raw(value: object) -> bytes:
    return b"" if value is None else value if isinstance(value, bytes) else str(value).encode()


def _length(row: Row, name: str) -> int:
    value = row.get(name)
    return len(value or ()) if name == "properties" else len(_raw(value))


def _part(name: str) -> Any:
    return lambda row: b"" if row.get("ledger") is None else _raw(row[name])


def _pairs(properties: Any) -> Any:
    return lambda row: b"".join(
        properties({"key": name, "value": value})
        for name, value in (row["properties"] or {}).items()
    )


# The text of a row by verb and options.
VERBS: dict[str, Any] = {
    "%v": lambda row: _raw(row["value"]),
    "%k": lambda row: _raw(row["key"]),
    "%t": lambda row: _raw(row["topic"]),
    "%v{hex}": lambda row: _raw(row["value"]).hex().encode(),
    "%k{base64}": lambda row: base64.b64encode(_raw(row["key"])),
    "%v{hex}{base64}": lambda row: base64.b64encode(_raw(row["value"]).hex().encode()),
    "%k{json}": lambda row: _json(_raw(row["key"])),
    "%v{json}": lambda row: _json(_raw(row["value"])),
    "%v{unpack[>H]}": lambda row: b"%d" % int.from_bytes(_raw(row["value"])[:2], "big")
    if len(row["value"] or b"") > 1
    else b"",
    "%p": lambda row: _raw(row["partition"]),
    "%i": lambda row: _raw(row["number"]),
    "%o": lambda row: _raw(message_id(row)),
    "%o{ledger}": _part("ledger"),
    "%o{entry}": _part("entry"),
    "%o{index}": _part("index"),
    "%V": lambda row: b"%d" % _length(row, "value"),
    "%K{big32}": lambda row: _length(row, "key").to_bytes(4, "big"),
    "%V{little64}": lambda row: _length(row, "value").to_bytes(8, "little"),
    "%T{4}": lambda row: b"%04d" % _length(row, "topic"),
    "%H": lambda row: b"%d" % _length(row, "properties"),
    "%h": _pairs(lambda pair: f"{pair['key']}={pair['value']} ".encode()),
    "%h{%K:%k{json}%t%o%i%H%v{hex};}": _pairs(
        lambda pair: f"{len(pair['key'].encode())}:".encode()
        + _json(pair["key"].encode())
        + f"0{pair['value'].encode().hex()};".encode()
    ),
    "%d": lambda row: _ms("publish_time", row),
    "%d{event}": lambda row: _ms("event_time", row),
    "%d{deliver}{rfc3339}": lambda row: _rfc3339("deliver_at", row),
    "%d{visible}{rfc3339}": lambda row: _rfc3339("visible_time", row),
    "%x": lambda row: _raw(transaction(row)),
    "%x{state}": lambda row: _raw(row["txn_state"]),
    "%x{index}": lambda row: _raw(row["index"]),
    "%P": lambda row: _raw(row["producer"]),
    "%q": lambda row: _raw(row["sequence_id"]),
    "%w": lambda row: _ms("watermark", row),
    "%w{rfc3339}": lambda row: _rfc3339("watermark", row),
    "é%%\\n": lambda row: "é%\n".encode(),
    "\\0": lambda row: b"\0",
}  # fmt: skip

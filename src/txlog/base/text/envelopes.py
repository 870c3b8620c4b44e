"""Owns envelopes: lines of JSON that contain all of a message, as columns of messages.

`clean` reads a block of lines at once. It returns None if a line is bad, or written in a form
that it does not parse. Then `envelope_row` reads line after line, with an error for each bad one;
good envelopes give the same columns either way. A record that `consume --json` prints is an
envelope, too: its value may be JSON itself, and its instants are text. Source: spec/cli 7.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Final, Literal

import msgspec
import pyarrow as pa

from txlog.base.startup import compute as pc
from txlog.base.startup import json as orjson
from txlog.base.text import columns as text
from txlog.base.text.records import TYPES, Columns, bad_record, check_delivery, maps, whole_table
from txlog.base.times import STORED_MAX

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INT64_MAX: Final = (1 << 63) - 1
_INT32_MAX: Final = (1 << 31) - 1
_LIMITS: Final = {
    "event_time": (-STORED_MAX - 1, STORED_MAX),
    "deliver_at": (-STORED_MAX - 1, STORED_MAX),
    "deliver_after": (0, _INT64_MAX),
    "sequence_id": (0, _INT64_MAX),
    "partition": (0, _INT32_MAX),
}
_NOTHING: Final[dict[str, str]] = {}
_SHOWN: Final = 64
Encoding = Literal["utf8", "base64"]


class Envelope(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """One line, in the form that `consume` writes; other lines are read one by one."""

    key: str | None = None
    key_encoding: Encoding | None = None
    value: str | None = None
    value_encoding: Encoding | None = None
    properties: msgspec.Raw = msgspec.Raw(b"null")
    event_time: int | float | None = None  # accepts a float in order to refuse it later
    deliver_at: int | float | None = None
    deliver_after: int | float | None = None
    sequence_id: int | float | None = None
    partition: int | float | None = None
    producer: str | None = None
    topic: str | None = None
    message_id: str | None = None
    publish_time: int | None = None
    record: msgspec.Raw = msgspec.Raw(b"null")  # follows from the value


_MEMBERS: Final = {
    name: attrgetter(name)
    for name in Envelope.__struct_fields__
    if name not in ("topic", "message_id", "publish_time", "record")
}


@cache
def _decoder() -> Callable[[bytes], Envelope]:
    return msgspec.json.Decoder(Envelope).decode


@cache
def _properties_decoder() -> Callable[[bytes], list[dict[str, str] | None]]:
    return msgspec.json.Decoder(list[dict[str, str] | None]).decode


def clean(lines: pa.Array, records: pa.Array) -> pa.Table | None:
    """The messages of envelopes, one per line; None: read them one by one."""
    decode = _decoder()
    try:
        text.as_text(records)
        envelopes = [decode(record) for record in records.to_pylist()]
    except (msgspec.DecodeError, pa.ArrowInvalid):
        return None
    members = {name: [*map(get, envelopes)] for name, get in _MEMBERS.items()}
    columns: dict[str, pa.Array | None] = {"line": lines}
    for name in ("value", "key"):
        columns[name] = _bytes(members[name], members[f"{name}_encoding"])
    for name, (least, most) in _LIMITS.items():
        columns[name] = _integers(members[name], least, most, TYPES[name])
    columns["properties"] = _objects(members["properties"])
    columns["producer"] = pa.array(members["producer"], pa.string())
    return None if any(column is None for column in columns.values()) else whole_table(columns)


def _integers(
    values: Sequence[float | None], least: int, most: int, kind: pa.DataType
) -> pa.Array | None:
    """Integers in range; None: some are out of range or not integers."""
    if values.count(None) == len(values):
        return pa.nulls(len(values), kind)
    try:
        numbers = pa.array(values)
    except (pa.ArrowInvalid, OverflowError):
        return None
    if not pa.types.is_int64(numbers.type):  # one float turns the whole column into floats
        return None
    ends = pc.min_max(numbers).as_py()
    return numbers.cast(kind) if least <= ends["min"] and ends["max"] <= most else None


def _objects(raw_maps: Sequence[msgspec.Raw]) -> pa.Array | None:
    """Maps from JSON objects, null for empty or none; None: some are not maps of strings.

    Equal texts are parsed once, if the first ones show that texts recur.
    """
    texts, places = [*map(bytes, raw_maps)], None
    if len({*texts[:_SHOWN]}) * 2 <= len(texts[:_SHOWN]):
        encoded = pa.array(texts, pa.binary()).dictionary_encode()
        texts, places = encoded.dictionary.to_pylist(), encoded.indices
    try:
        pairs = [
            members or _NOTHING for members in _properties_decoder()(b"[%b]" % b",".join(texts))
        ]
    except msgspec.DecodeError:
        return None
    names = pa.array([*chain.from_iterable(pairs)], pa.string())
    values = pa.array([*chain.from_iterable(map(dict.values, pairs))], pa.string())
    ends = pc.cumulative_sum(pa.array([*map(len, pairs)], pa.int32()))
    objects = maps(ends, names, values)
    return objects if places is None else objects.take(places)


def _bytes(texts: Sequence[str | None], encodings: Sequence[Encoding | None]) -> pa.Array | None:
    """Bytes decoded by their encoding; None: some do not decode."""
    column = pa.array(texts, pa.string())
    if not column.null_count and {*encodings} == {"utf8"}:
        return column.cast(pa.binary())
    kinds = pa.array(encodings, pa.string())
    if not pc.all(pc.equal(column.is_null(), kinds.is_null())).as_py():
        return None
    if "base64" not in encodings:
        return column.cast(pa.binary())
    try:
        return pa.array(
            [
                text if text is None or kind == "utf8" else base64.b64decode(text, validate=True)
                for text, kind in zip(texts, encodings, strict=True)
            ],
            pa.binary(),
        )
    except (binascii.Error, ValueError):
        return None


def envelope_row(columns: Columns, line: int, record: bytes) -> None:
    """Parse one envelope into columns.

    raises: BadRecord (104)
    """
    try:
        fields = orjson.loads(record)
    except orjson.JSONDecodeError as error:
        reason = "not a JSON object" if _is_text(record) else "not UTF-8"
        raise bad_record(line, reason) from error
    if not isinstance(fields, dict):
        raise bad_record(line, "not a JSON object")
    if fields.get("kind") not in (None, "message"):
        raise bad_record(line, f"a {str(fields['kind'])[:20]}, not a message")
    properties = fields.get("properties")
    if properties is None:
        properties = {}
    if not isinstance(properties, dict) or not all(isinstance(v, str) for v in properties.values()):
        raise bad_record(line, "properties must map strings to strings")
    row: dict[str, object] = {
        "line": line,
        "value": _value(fields, line, record),
        "key": _decoded(fields, "key", line),
        "properties": list(properties.items()) if properties else None,
        **{name: _integer(fields, name, line, *ends) for name, ends in _LIMITS.items()},
    }
    producer = fields.get("producer")
    row["producer"] = producer if isinstance(producer, str) else None
    check_delivery(row, line)
    columns.add(row)


class _Embedded(msgspec.Struct):
    """The bytes of a value that is JSON itself."""

    value: msgspec.Raw


def _value(fields: dict[str, object], line: int, record: bytes) -> bytes | None:
    if fields.get("value_encoding") != "json":
        return _decoded(fields, "value", line)
    if fields.get("value_bytes") is not None:
        exact = {"value": fields["value_bytes"], "value_encoding": "base64"}
        return _decoded(exact, "value", line)
    if not isinstance(fields.get("value"), dict | list):
        raise bad_record(line, "value is not an object or array, as its encoding json says")
    return bytes(msgspec.json.decode(record, type=_Embedded).value)


def _decoded(fields: dict[str, object], name: str, line: int) -> bytes | None:
    encoding, value = fields.get(f"{name}_encoding"), fields.get(name)
    if encoding is None:
        if value is not None:
            raise bad_record(line, f"{name} without {name}_encoding")
        return None
    if not isinstance(value, str):
        raise bad_record(line, f"{name} is not a string")
    if encoding == "utf8":
        return value.encode()
    if encoding == "base64":
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError) as error:
            raise bad_record(line, f"{name} is not base64") from error
    also = "json, " if name == "value" else ""
    raise bad_record(line, f"{name}_encoding is {also}utf8, base64 or null")


def _integer(fields: dict[str, object], name: str, line: int, least: int, most: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, str) and name in ("event_time", "deliver_at"):
        value = _instant(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise bad_record(line, f"{name} is not an integer in range")
    return value


def _instant(text: str) -> int | None:
    """Milliseconds of an instant as `consume --json` writes it; None: it is none."""
    if re.fullmatch("-?[0-9]{1,19}", text):
        return int(text)  # outside the years 1 to 9999
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if moment.tzinfo is None else (moment - _EPOCH) // timedelta(milliseconds=1)


def _is_text(record: bytes) -> bool:
    try:
        record.decode()
    except UnicodeDecodeError:
        return False
    return True

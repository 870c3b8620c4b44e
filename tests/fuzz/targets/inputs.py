"""What commands read: records and names on standard input, files to import, schemas."""

from __future__ import annotations

import csv
import gzip
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tests.fuzz.engine import Target
from tests.fuzz.mutation import changed_tree
from txlog.base.schemas import columns, resolution
from txlog.base.schemas.forms import form_of
from txlog.base.schemas.schema import Schema, of_arrow, read_schema
from txlog.base.text import formats
from txlog.cli.input import names
from txlog.cli.input.inputs import Input
from txlog.errors import TxlogError
from txlog.lake.jobs import local
from txlog.lake.jobs.sources import loads, rows
from txlog.lake.jobs.sources.loads import Columns

_FORMS = (
    "lines",
    "ndjson",
    "csv",
    "tsv",
    "envelope",
    "null",
    "raw",
    "%k=%v\n",
    "%K{big32}%V{big32}%k%v",
)
_ROWS = (
    b'{"key":"k","value":"v","properties":{"a":"b"},"event_time":5,"sequence_id":1}\n'
    b'{"value":"dg==","value_encoding":"base64","deliver_after":7,"partition":0,"producer":"p"}\n',
    b'key,value,event_time,properties\nk,v,2026-01-02T03:04:05Z,\n"a""b","c\nd",1700000000000,\n',
    b"key\tvalue\nk\tv\\tw\n",
    b"k=v\nk=w\n",
    b"\0\0\0\1\0\0\0\2kvv",
    b"one\ntwo\0three\n",
)
_WORDS = (
    *(
        b'"',
        b",",
        b"\t",
        b"\n",
        b"\r\n",
        b"\xef\xbb\xbf",
        b"\\N",
        b'"value_encoding":"base64"',
        b"null",
    ),
    *(
        b'"properties":{"a":"b"}',
        b'"deliver_at":',
        b"1e400",
        b"\\ud800",
        b"key",
        b"value",
        b"event_time",
    ),
    *(
        b"deliver_at",
        b"partition",
        b"sequence_id",
        b"key_base64",
        b"2026-01-02T03:04:05Z",
        b"+24:00",
    ),
)


def _records(data: bytes) -> None:
    """Records of any form; the first byte chooses the form and whether bad records are skipped."""
    number, body = data[:1].ljust(1, b"\0")[0], data[1:]
    form = _FORMS[number % len(_FORMS)]
    source = Input(
        form, [], skip_bad=bool(number & 64), key_delimiter=b"=" if number & 128 else None
    )
    limit = csv.field_size_limit()
    try:
        table = source.parse(body)
    finally:
        csv.field_size_limit(limit)
    table.validate(full=True)


def _record_seeds() -> list[bytes]:
    return [
        bytes([number | flags]) + text
        for number in range(len(_FORMS))
        for text in _ROWS
        for flags in (0, 64)
    ]


def _names(data: bytes) -> None:
    """The names that a command reads from standard input by `-`."""
    list(names._rows(data, "topic"))


_SUFFIXES = (".csv", ".ndjson", ".envelope", ".parquet", ".arrow", ".csv.gz", ".ndjson.zst", ".tsv")


def _import(data: bytes) -> None:
    """A file as `import` and `job bulk-load` read it; the first byte chooses its suffix."""
    number = data[:1].ljust(1, b"\0")[0]
    suffix = _SUFFIXES[number % len(_SUFFIXES)]
    path = Path(tempfile.gettempdir()) / f"input{suffix}"
    path.write_bytes(data[1:])
    form = "envelope" if suffix == ".envelope" else None
    try:
        wanted = Columns() if number & 64 or form else Columns(key="key", value="value")
        source = loads.files_of(
            [str(path)], form, wanted, loads.OF_IMPORT, infer=bool(number & 128)
        )
        source.check_whole()
        with local.opened(source) as (session, files):
            rows.field_types(session, files)
            for batch in rows.message_rows(session, files):
                batch.validate(full=True)
    finally:
        path.unlink()


def _import_seeds() -> list[bytes]:
    table = pa.table({"key": ["k", None], "value": ["v", "w"], "n": [1, 2]})
    texts = {
        ".csv": b'key,value\nk,v\n"a","b"\n',
        ".tsv": b"key\tvalue\nk\tv\n",
        ".ndjson": b'{"key":"k","value":"v","n":{"a":[1,2]}}\n{"key":null,"value":"w"}\n',
        ".envelope": _ROWS[0],
    }
    parquet, arrow = pa.BufferOutputStream(), pa.BufferOutputStream()
    pq.write_table(table, parquet, store_schema=False)
    with pa.ipc.new_file(arrow, table.schema) as writer:
        writer.write_table(table)
    texts[".parquet"], texts[".arrow"] = bytes(parquet.getvalue()), bytes(arrow.getvalue())
    texts[".csv.gz"] = gzip.compress(texts[".csv"], mtime=0)
    texts[".ndjson.zst"] = pa.Codec("zstd").compress(texts[".ndjson"], asbytes=True)
    return [
        bytes([number | flags]) + texts[suffix]
        for number, suffix in enumerate(_SUFFIXES)
        for flags in (0, 64, 128)
    ]


def _packed(data: bytes) -> None:
    """A compressed file; the blocks are counted, because a bomb is as long as it says."""
    path = Path(tempfile.gettempdir()) / ("x.gz" if data[:1] == b"g" else "x.zst")
    path.write_bytes(data[1:])
    try:
        for number, _ in enumerate(formats.unpacked(str(path), lambda error: False)):
            if number > 8:
                break
    finally:
        path.unlink()


# --- schemas -------------------------------------------------------------------------------------


def _fields(*types: object) -> dict[str, object]:
    fields = [{"name": f"f{number}", "type": type} for number, type in enumerate(types)]
    return {"type": "record", "name": "A", "fields": fields}


_SCHEMAS: tuple[dict[str, object], ...] = (
    _fields("int", "long", "string", "bytes", "boolean", "float", "double", ["null", "string"]),
    _fields({"type": "array", "items": "int"}, {"type": "map", "values": ["null", "long"]}),
    _fields({"type": "enum", "name": "E", "symbols": ["A", "B"], "default": "A"}),
    _fields({"type": "fixed", "name": "F", "size": 4}, {"type": "string", "logicalType": "uuid"}),
    _fields(
        *(
            {"type": kind, "logicalType": name}
            for kind, name in (
                ("int", "date"),
                ("int", "time-millis"),
                ("long", "timestamp-millis"),
                ("long", "timestamp-micros"),
                ("long", "time-micros"),
            )
        )
    ),
    _fields({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
    _fields({"type": "array", "items": _fields("int", {"type": "array", "items": "null"})}),
)
_TYPE_WORDS: tuple[object, ...] = (
    *("null", "int", "bytes", "A", "record", "array", "items", "default", "aliases", "namespace"),
    *({"type": "array", "items": "null"}, ["null", "A"], {"type": "map", "values": "A"}),
)


def _schema(data: bytes) -> None:
    """A definition, both encodings, and whether one can read the other."""
    text = data.decode("utf-8", "surrogateescape")
    parsed = [Schema.parse(type, text) for type in ("json", "avro")]
    for schema in parsed:
        assert schema.fingerprint and schema.words is not None
        form_of(schema)
        of_arrow(pa.schema(list(schema.arrow)), schema.type)
        for older in parsed:
            resolution.can_read(schema, older)
            resolution.check("FULL", schema, [older])
            resolution.plan(schema, older)


def _schema_file(data: bytes) -> None:
    """A file of a schema; the first byte chooses its suffix."""
    suffix = (".avsc", ".json", ".parquet", ".arrow")[data[:1].ljust(1, b"\0")[0] % 4]
    path = Path(tempfile.gettempdir()) / f"schema{suffix}"
    path.write_bytes(data[1:])
    try:
        read_schema(f"{'arrow:' if suffix in ('.parquet', '.arrow') else ''}{path}")
    finally:
        path.unlink()


def _schema_files() -> list[bytes]:
    texts = [
        json.dumps(_SCHEMAS[0]).encode(),
        json.dumps({"type": "AVRO", "schema": json.dumps(_SCHEMAS[1])}).encode(),
    ]
    files = {seed[0] % len(_SUFFIXES): seed[1:] for seed in _import_seeds()}
    return [
        b"\0" + texts[0],
        b"\1" + texts[0],
        b"\1" + texts[1],
        b"\2" + files[3],
        b"\3" + files[4],
    ]


def _value(type: str) -> Callable[[bytes], None]:
    """Values of a type of schema; the first byte chooses the schema."""

    def run(data: bytes) -> None:
        number, body = data[:1].ljust(1, b"\0")[0], data[1:]
        schema = Schema.parse(type, json.dumps(_SCHEMAS[number % len(_SCHEMAS)]))
        form = form_of(schema)
        form.read(body)
        records = form.read_valid([body, body])
        array = columns.column(schema.record, records, form)
        array.validate(full=True)
        form.write_all(array)

    return run


def _values_of_json() -> list[bytes]:
    some = {"f0": 1, "f1": 2, "f2": "x", "f3": "YQ==", "f4": True, "f5": 1.5, "f6": 2.5, "f7": None}
    others: list[dict[str, object]] = [
        some,
        {"f0": [1, 2], "f1": {"a": 1, "b": None}},
        {"f0": "A"},
        {"f0": "YWJjZA==", "f1": "6ba7b810-9dad-11d1-80b4-00c04fd430c8"},
        {"f0": 1, "f1": 2, "f2": 3, "f3": 4, "f4": 5},
        {"f0": "1.25"},
        {"f0": [{"f0": 1, "f1": [None]}]},
    ]
    return [bytes([number]) + json.dumps(value).encode() for number, value in enumerate(others)]


def _values_of_avro() -> list[bytes]:
    return [
        b"\0\2\4\2x\2a\1" + bytes(12) + b"\0",
        b"\1\4\2\4\0\2\2a\2\2\0",
        b"\2\0",
        b"\3abcd\x486ba7b810-9dad-11d1-80b4-00c04fd430c8",
        b"\4\2\4\6\x08\x0a",
        b"\5\2\x7d",
        b"\6\2\2\4\0\0",
    ]


def _changed_json(chance: random.Random, data: bytes) -> bytes:
    return msgspec.json.encode(changed_tree(chance, msgspec.json.decode(data), _TYPE_WORDS))


def _changed_value(chance: random.Random, data: bytes) -> bytes:
    return data[:1] + msgspec.json.encode(changed_tree(chance, msgspec.json.decode(data[1:])))


_T, _S = "txlog.base.text.", "txlog.base.schemas."
_J = "txlog.lake.jobs."
_I = "txlog.cli.input."
TARGETS = (
    Target(
        "records",
        _records,
        _record_seeds,
        (
            f"{_T}records",
            f"{_T}envelopes",
            *(f"{_I}{name}" for name in ("inputs", "rows", "columns", "percent")),
        ),
        words=_WORDS,
        size_max=4096,
    ),
    Target(
        "names",
        _names,
        lambda: [b'{"topic":"a"}\n{"topic":"b"}\n', b'[{"topic":"a"},"b"]', b"a\nb\n"],
        (f"{_I}names",),
        words=(b'{"topic":', b"[", b"{}"),
    ),
    Target(
        "import",
        _import,
        _import_seeds,
        (f"{_J}sources.loads", f"{_J}sources.rows", f"{_J}local"),
        words=_WORDS,
        size_max=4096,
        memory=256 << 20,
    ),
    Target(
        "packed",
        _packed,
        lambda: [
            b"g" + gzip.compress(b"a" * 99, mtime=0),
            b"z" + pa.Codec("zstd").compress(b"b" * 99, asbytes=True),
        ],
        (f"{_T}formats",),
    ),
    Target(
        "schema",
        _schema,
        lambda: [json.dumps(schema).encode() for schema in _SCHEMAS],
        (f"{_S}schema", f"{_S}resolution", f"{_S}forms"),
        change=_changed_json,
        size_max=8192,
    ),
    Target("schema_file", _schema_file, _schema_files, (f"{_S}schema",)),
    Target(
        "json_value",
        _value("json"),
        _values_of_json,
        (f"{_S}forms", f"{_S}columns"),
        allowed=(TxlogError, columns.Misfit),
        change=_changed_value,
    ),
    Target(
        "avro_value",
        _value("avro"),
        _values_of_avro,
        (f"{_S}forms", f"{_S}columns"),
        allowed=(TxlogError, columns.Misfit),
    ),
)

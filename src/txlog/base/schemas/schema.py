"""Owns the schema: an Avro record, and its encoding in the bytes of a value.

    Schema.parse("json", '{"type": "record", "name": "Flight", "fields": [...]}')

`definition` is the record as JSON text, in one form: no spaces, the members of a type in the order
of `_MEMBERS`, fields in the order given, docs and defaults kept. `type` is `avro` (a value is the
schemaless binary of the record) or `json` (a value is one object with the record's fields).

1. Only null and one other type make a union, no record contains itself, no two fields of a record
   differ in case alone: each field is one column, for Arrow, DuckDB and Spark alike.
   A declared schema has no record: stock clients decode its values themselves, and the store
   returns its type, bytes and properties unchanged.
2. Every field of the Arrow type is nullable, because a row without a record has null in every
   field. `fields` tells which fields a record may omit.
3. Instants and dates are within the years 1 to 9999, which all readers of columns can represent.
"""

from __future__ import annotations

import hashlib
import importlib
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import chain, count
from types import ModuleType
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from txlog.base.suggest import suggestion
from txlog.errors import InvalidArgument

Node: TypeAlias = Any  # any decoded JSON
TYPES: Final = ("avro", "json")
DECLARED: Final = "pulsar:"  # prefix of a declared schema's type
DEFINITION_BYTES_MAX: Final = 256 << 10
# Each use of a name repeats its whole record, so a small text could describe an endless tree.
NODES_MAX: Final = 5_000
DEPTH_MAX: Final = 32
DEFAULT_BYTES_MAX: Final = 1_000  # every row that lacks the field repeats it
PRECISION_MAX: Final = 38  # limit of decimal128
INT32: Final = (-(1 << 31), (1 << 31) - 1)
INT64: Final = (-(1 << 63), (1 << 63) - 1)
FLOAT_MAX: Final = {"float": 3.4028234663852886e38, "double": 1.7976931348623157e308}
UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z")
_DAY_MS: Final = 86_400_000
_DAYS: Final = (-719_162, 2_932_896)
_MS: Final = (_DAYS[0] * _DAY_MS, (_DAYS[1] + 1) * _DAY_MS - 1)
_US: Final = (_MS[0] * 1000, _MS[1] * 1000 + 999)
_PRIMITIVES: Final = ("boolean", "int", "long", "float", "double", "bytes", "string")
# Logical types, their underlying types, and their least and greatest value.
_LOGICAL: Final[dict[str, tuple[str, tuple[int, int]]]] = {
    "date": ("int", _DAYS),
    "time-millis": ("int", (0, _DAY_MS - 1)),
    "time-micros": ("long", (0, _DAY_MS * 1000 - 1)),
    "timestamp-millis": ("long", _MS),
    "timestamp-micros": ("long", _US),
    "local-timestamp-millis": ("long", _MS),
    "local-timestamp-micros": ("long", _US),
}
_ARROW: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
    "uuid": pa.string(),
}
_LOCAL: Final = "a timestamp without a time zone"
_WORDS: Final = {
    "boolean": "true or false",
    "int": "an integer of 32 bits",
    "long": "an integer of 64 bits",
    "float": "a number of 32 bits",
    "double": "a number",
    "bytes": "bytes",
    "string": "a string",
    "array": "an array",
    "map": "a map",
    "record": "a record",
    "date": "a date, as days since 1970 in the years 1 to 9999",
    "time-millis": "a time of day, as milliseconds since midnight",
    "time-micros": "a time of day, as microseconds since midnight",
    "timestamp-millis": "a timestamp, as milliseconds since 1970 in the years 1 to 9999",
    "timestamp-micros": "a timestamp, as microseconds since 1970 in the years 1 to 9999",
    "local-timestamp-millis": f"{_LOCAL}, as milliseconds since 1970 in the years 1 to 9999",
    "local-timestamp-micros": f"{_LOCAL}, as microseconds since 1970 in the years 1 to 9999",
    "uuid": "a UUID such as 123e4567-e89b-12d3-a456-426614174000",
}
_MEMBERS: Final = (
    *("type", "name", "namespace", "aliases", "doc", "fields", "symbols", "items", "values"),
    *("size", "logicalType", "precision", "scale", "order", "default"),
)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class Type(msgspec.Struct, frozen=True, kw_only=True):
    """The type of a field, of an item or of a whole record.

    kind:     boolean, int, long, float, double, bytes, string, fixed, enum, array, map or record
    logical:  one of `_LOGICAL`, decimal, uuid or nothing
    nullable: a union with null; is_null_last: null is its second type, as bytes of avro show
    items:    type of an array's items, or of a map's values
    symbols:  values of an enum; `symbol` is its default, if it has one
    aliases:  earlier names of a record, enum or fixed
    """

    kind: str
    logical: str = ""
    nullable: bool = False
    is_null_last: bool = False
    name: str = ""
    fields: tuple[Field, ...] = ()
    items: Type | None = None
    symbols: tuple[str, ...] = ()
    symbol: str | None = None
    size: int = 0
    precision: int = 0
    scale: int = 0
    aliases: tuple[str, ...] = ()

    @property
    def arrow(self) -> pa.DataType:
        """The type of its column."""
        return _arrow(self)

    @property
    def limits(self) -> tuple[int, int] | None:
        """The least and the greatest value of an integer; None for other types."""
        if self.logical in _LOGICAL:
            return _LOGICAL[self.logical][1]
        return {"int": INT32, "long": INT64}.get(self.kind)

    @property
    def words(self) -> str:
        """The values that it takes, in words; behind `, as ` their numbers, if they are numbers."""
        if self.logical == "decimal":
            whole = self.precision - self.scale
            return (
                f"a decimal number with up to {whole} digits before the point, {self.scale} after"
            )
        if self.kind == "fixed":
            return f"{self.size} bytes"
        if self.kind == "enum":
            return f"one of {_several(self.symbols)}"
        return _WORDS[self.logical or self.kind]

    def field(self, name: str) -> Field | None:
        """The field of a record with this name."""
        return next((field_ for field_ in self.fields if field_.name == name), None)


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """A field of a record.

    default: a plain value: integers for instants, bytes, Decimal; used only with has_default
    aliases: earlier names
    """

    name: str
    type: Type
    has_default: bool = False
    default: Any = None
    aliases: tuple[str, ...] = ()
    doc: str = ""

    @property
    def is_needed(self) -> bool:
        """Whether a record needs it; a value of type json may omit a null."""
        return not self.has_default and not self.type.nullable


class Schema(msgspec.Struct, frozen=True):
    """A record's definition and its encoding; made by `parse`, equal if both are equal."""

    type: str
    definition: str

    @classmethod
    def parse(cls, type: str, text: str) -> Schema:
        """The schema of an Avro record written as JSON.

        raises: InvalidArgument with the field and the problem
        """
        if type not in TYPES:
            hint = suggestion(type, TYPES, "the types are avro and json")
            raise InvalidArgument(f"there is no type of schema {type}", hint=hint)
        if len(text.encode(errors="surrogatepass")) > DEFINITION_BYTES_MAX:
            raise _too_long()
        try:
            node = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise InvalidArgument(f"the schema is not JSON: {error}") from error
        _read(node)
        return cls(type, msgspec.json.encode(_ordered(node)).decode())

    @classmethod
    def declared(cls, type: str, data: bytes, properties: Mapping[str, str]) -> Schema:
        """A schema that tells clients how to read values; this library does not interpret it.

        type:   Pulsar's name in lower case: string, int64, key_value; avro or json if the
                definition is not a record
        data:   the definition, text or not
        raises: InvalidArgument
        """
        if len(data) + sum(map(len, chain(*properties.items()))) > DEFINITION_BYTES_MAX:
            raise _too_long()
        try:
            node: dict[str, object] = {"schema": data.decode()}
        except UnicodeDecodeError:
            node = {"schema_base64": b64encode(data).decode()}
        if properties:
            node["properties"] = dict(sorted(properties.items()))
        return cls(DECLARED + type, msgspec.json.encode(node).decode())

    @property
    def is_record(self) -> bool:
        """Whether values are records; False for a declared schema."""
        return self.type in TYPES

    @property
    def declaration(self) -> tuple[str, bytes, dict[str, str]]:
        """Type, definition and properties, as `declared` takes them; a record has them, too."""
        if self.is_record:
            return self.type, self.definition.encode(), {}
        node = msgspec.json.decode(self.definition)
        text = node.get("schema")
        data = b64decode(node["schema_base64"]) if text is None else text.encode()
        return self.type.removeprefix(DECLARED), data, node.get("properties", {})

    @property
    def record(self) -> Type:
        """The whole record; for a declared schema, a record without fields."""
        return _record(self.definition) if self.is_record else _NO_RECORD

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of the record."""
        return self.record.fields

    @property
    def words(self) -> str:
        """The fields with their types, as a line."""
        return ", ".join(
            f"{field.name}: {field.type.words.partition(', as ')[0]}" for field in self.fields
        )

    @property
    def arrow(self) -> pa.StructType:
        """The type of the column of records (rule 2)."""
        return self.record.arrow

    @property
    def fingerprint(self) -> str:
        """64 hexadecimal digits, the same if only docs, names of types or the order of JSON differ.

        Avro's own fingerprint omits defaults and logical types, but these decide what a reader
        gets.
        """
        return _fingerprint(self)


def read_schema(source: str, type: str | None = None) -> Schema:
    """The schema in a file: FILE.avsc, FILE.json, or arrow:FILE.parquet and arrow:FILE.arrow.

    A JSON file may also have the form of Pulsar's tools, {"type": "AVRO", "schema": "..."}, or the
    form of `schema get --json`, {"type": "avro", "definition": "..."}.
    type:   avro or json; None: avro for FILE.avsc, else the type in the file, else json
    raises: InvalidArgument
    """
    path = source.removeprefix("arrow:")
    try:
        if path != source:
            return of_arrow(_read_arrow(path), type or "json")
        with open(path, "rb") as file:
            data = file.read(4 * DEFINITION_BYTES_MAX + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise InvalidArgument(f"{path} cannot be read as a schema: {reason}") from error
    usual = "avro" if path.endswith(".avsc") else "json"
    try:
        node = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidArgument(f"{path} is not JSON: {error}") from error
    for member in ("schema", "definition") if isinstance(node, dict) else ():
        if isinstance(node.get(member), str):
            text, usual = node[member], str(node.get("type", usual)).lower()
    return Schema.parse(type or usual, text)


def of_arrow(schema: pa.Schema, type: str = "json") -> Schema:
    """The schema whose records have the columns of an Arrow schema.

    Integers below 32 bits become int, uint32 and uint64 long, nanoseconds microseconds: encoding
    refuses a value that does not fit, and never changes it.
    raises: InvalidArgument: no Avro type fits a column
    """
    node = _record_of(schema, "record", "")
    return Schema.parse(type, msgspec.json.encode(node).decode())


def _read_arrow(path: str) -> pa.Schema:
    if path.endswith(".parquet"):
        return importlib.import_module("pyarrow.parquet").read_schema(path)
    with open(path, "rb") as file:
        is_file = file.read(6) == b"ARROW1"
        size = min(file.seek(0, 2), _STREAM_BYTES_MAX)
        file.seek(0)
        if is_file:
            return pa.ipc.open_file(file).schema
        # a stream begins with a length, for which pyarrow would take memory although it is wrong
        return pa.ipc.open_stream(file.read(size)).schema


def _too_long() -> InvalidArgument:
    return InvalidArgument(
        f"the schema has more than {DEFINITION_BYTES_MAX // 1024} KiB",
        hint="leave docs out, or make several topics",
    )


_STREAM_BYTES_MAX: Final = 16 << 20  # of a stream of Arrow, to find its schema
_NO_RECORD: Final = Type(kind="record")


@lru_cache(maxsize=256)
def _record(definition: str) -> Type:
    return _read(msgspec.json.decode(definition))


@lru_cache(maxsize=256)
def _fingerprint(schema: Schema) -> str:
    essence = _essence(schema.record) if schema.is_record else schema.definition
    text = msgspec.json.encode([schema.type, essence])
    return hashlib.sha256(text).hexdigest()


def _essence(type: Type) -> list[object]:
    fields = [
        [field.name, _essence(field.type), field.has_default, field.default, field.aliases]
        for field in type.fields
    ]
    return [
        *(type.kind, type.logical, type.nullable, type.is_null_last, fields),
        None if type.items is None else _essence(type.items),
        *(type.symbols, type.symbol, type.size, type.precision, type.scale),
    ]


def _arrow(type: Type) -> pa.DataType:
    if type.logical == "decimal":
        return pa.decimal128(type.precision, type.scale)
    if type.kind == "fixed":
        return pa.binary(type.size)
    if type.kind == "record":
        return pa.struct([pa.field(field.name, _arrow(field.type)) for field in type.fields])
    if type.items is not None:
        items = _arrow(type.items)
        return pa.list_(items) if type.kind == "array" else pa.map_(pa.string(), items)
    return _ARROW[type.logical or type.kind]


def _ordered(node: Any) -> Any:
    """A type with its members in the canonical order; defaults and foreign members unchanged."""
    if isinstance(node, list):
        return [_ordered(member) for member in node]
    if not isinstance(node, dict):
        return node
    out = {name: node[name] for name in _MEMBERS if name in node}
    for name in ("type", "items", "values"):
        if name in out:
            out[name] = _ordered(out[name])
    if "fields" in out:
        out["fields"] = [{"name": member["name"]} | _ordered(member) for member in out["fields"]]
    return out | {name: item for name, item in node.items() if name not in out}


def _read(node: Any) -> Type:
    """The tree of a definition; raises InvalidArgument."""
    if isinstance(node, list) or (isinstance(node, dict) and node.get("type") != "record"):
        raise InvalidArgument(
            "the schema is not a record at its top",
            hint='write {"type": "record", "name": ..., "fields": [...]}',
        )
    root = _Reading().type(node, "", "", 0)
    if root.kind != "record":
        raise InvalidArgument(f"the schema is {root.kind}, it must be a record")
    return root


class _Reading:
    """Reads one definition: it holds the named types so far, and the number of nodes."""

    __slots__ = ("names", "nodes", "open_names")

    def __init__(self) -> None:
        self.names: dict[str, Type] = {}
        self.open_names: set[str] = set()
        self.nodes = 0

    def type(self, node: Node, path: str, namespace: str, depth: int) -> Type:
        """The type for a node of JSON; path names it in errors."""
        self.nodes += 1
        if self.nodes > NODES_MAX or depth > DEPTH_MAX:
            problem = (
                f"nests deeper than {DEPTH_MAX}" if depth > DEPTH_MAX else "has too many fields"
            )
            raise _wrong(path, problem, f"at most {NODES_MAX} fields, at most {DEPTH_MAX} deep")
        if isinstance(node, list):
            return self._union(node, path, namespace, depth)
        if isinstance(node, str):
            return self._named(node, path, namespace)
        if not isinstance(node, dict):
            raise _wrong(path, f"{msgspec.json.encode(node).decode()[:40]} is not a type")
        kind = node.get("type")
        if isinstance(kind, dict | list):
            return self.type(kind, path, namespace, depth + 1)
        if kind in ("array", "map"):
            member = "items" if kind == "array" else "values"
            if member not in node:
                raise _wrong(path, f"is {kind} without {member}")
            inner = path + ("[]" if kind == "array" else "{}")
            items = self.type(node[member], inner, namespace, depth + 1)
            return Type(kind=kind, items=items)
        if kind in ("record", "enum", "fixed"):
            return self._definition(node, kind, path, namespace, depth)
        if not isinstance(kind, str):
            raise _wrong(path, "has no type")
        return _logical(self._named(kind, path, namespace), node, path)

    def _union(self, node: list[Any], path: str, namespace: str, depth: int) -> Type:
        others = [member for member in node if member != "null"]
        if len(node) != 2 or len(others) != 1 or isinstance(others[0], list):
            raise _wrong(
                path,
                f"is a union of {_several([_short(member) for member in node]) or 'nothing'}",
                "only null and one other type make a union: one column holds it",
            )
        member_type = self.type(others[0], path, namespace, depth + 1)
        if member_type.nullable:
            raise _wrong(path, "is a union in a union")
        return msgspec.structs.replace(member_type, nullable=True, is_null_last=node[1] == "null")

    def _named(self, name: str, path: str, namespace: str) -> Type:
        if name in _PRIMITIVES:
            return Type(kind=name)
        if name == "null":
            raise _wrong(path, "is null alone", "no column holds it: make it a union with a type")
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        full = name if full not in self.names and full not in self.open_names else full
        if full in self.open_names:
            raise _wrong(path, f"contains its own record {name}", "no column holds recursion")
        if full not in self.names:
            type_names = [*_PRIMITIVES, *("array", "map", "record", "enum", "fixed"), *self.names]
            hint = suggestion(name, type_names, "define it where it is used first")
            raise _wrong(path, f"has the unknown type {name}", hint)
        type_found = self.names[full]
        self.nodes += _size(type_found)
        return type_found

    def _definition(self, node: Any, kind: str, path: str, namespace: str, depth: int) -> Type:
        name, full, space = _full_name(node, path, namespace)
        if full in self.names or full in self.open_names or name in _PRIMITIVES:
            raise _wrong(path, f"defines the type {full} again")
        if kind == "record":
            self.open_names.add(full)
            type_made = Type(kind=kind, name=full, fields=self._fields(node, path, space, depth))
            self.open_names.remove(full)
        elif kind == "enum":
            type_made = _enum(node, full, path)
        else:
            size = node.get("size")
            if not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= INT32[1]:
                raise _wrong(path, f"is fixed {full} without a size", 'write "size": 16')
            type_made = _logical(Type(kind=kind, name=full, size=size), node, path)
        aliases = node.get("aliases", [])
        if isinstance(aliases, list) and aliases:
            texts = tuple(alias for alias in aliases if isinstance(alias, str))
            type_made = msgspec.structs.replace(type_made, aliases=texts)
        self.names[full] = type_made
        return type_made

    def _fields(self, node: Any, path: str, namespace: str, depth: int) -> tuple[Field, ...]:
        members = node.get("fields")
        if not isinstance(members, list) or not members:
            hint = "Parquet and DuckDB have no column without fields: add one, such as a nullable"
            raise _wrong(path, "is a record without fields", hint)
        fields: dict[str, Field] = {}
        for member in members:
            name = member.get("name") if isinstance(member, dict) else None
            if not isinstance(name, str) or "type" not in member:
                raise _wrong(path, f"field {_short(member)} has no name or no type")
            here = f"{path}.{name}" if path else name
            _check_name(name, here)
            other = fields.get(name.casefold())
            if other is not None:
                problem = "appears twice" if other.name == name else f"is {other.name} but for case"
                raise _wrong(here, problem, "DuckDB and Spark tell columns apart without case")
            type = self.type(member["type"], here, namespace, depth + 1)
            aliases = _names(member.get("aliases", []), here)
            is_first_null = isinstance(member["type"], list) and member["type"][0] == "null"
            default = None
            if "default" in member:
                if len(msgspec.json.encode(member["default"])) > DEFAULT_BYTES_MAX:
                    raise _wrong(here, f"has a default of more than {DEFAULT_BYTES_MAX} bytes")
                default = _default(type, member["default"], here, is_first_null)
            fields[name.casefold()] = Field(
                name=name,
                type=type,
                has_default="default" in member,
                default=default,
                aliases=aliases,
                doc=member["doc"] if isinstance(member.get("doc"), str) else "",
            )
        return tuple(fields.values())


def _full_name(node: Any, path: str, namespace: str) -> tuple[str, str, str]:
    """The name of a definition, its full name, and the namespace of its members."""
    name = node.get("name")
    if not isinstance(name, str):
        raise _wrong(path, f"is {node['type']} without a name")
    space, _, short = name.rpartition(".")
    inner_namespace = node.get("namespace", namespace)
    if not isinstance(inner_namespace, str):
        raise _wrong(path, "has a namespace that is not a string")
    space = space or inner_namespace
    for part in [short, *(space.split(".") if space else [])]:
        _check_name(part, path)
    return short, f"{space}.{short}" if space else short, space


def _enum(node: Any, full: str, path: str) -> Type:
    symbols = _names(node.get("symbols"), path)
    default = node.get("default")
    if not symbols or len(set(symbols)) < len(symbols):
        raise _wrong(path, f"is enum {full} without symbols, or with one twice")
    if default is not None and default not in symbols:
        raise _wrong(path, f"is enum {full} whose default is not one of its symbols")
    return Type(kind="enum", name=full, symbols=symbols, symbol=default)


def _logical(type: Type, node: Any, path: str) -> Type:
    """The type with its logicalType; Avro requires to ignore one that does not fit."""
    logical = node.get("logicalType")
    if logical == "uuid" and type.kind == "string":
        return msgspec.structs.replace(type, logical="uuid")
    if logical == "decimal" and type.kind in ("bytes", "fixed"):
        precision, scale = node.get("precision"), node.get("scale", 0)
        is_whole = all(isinstance(digits, int) for digits in (precision, scale))
        if not is_whole or not 0 < precision <= PRECISION_MAX or not 0 <= scale <= precision:
            raise _wrong(
                path, f"is a decimal of precision {precision} and scale {scale}",
                f"the precision is 1 to {PRECISION_MAX}, the scale 0 to the precision",
            )  # fmt: skip
        if type.kind == "fixed" and 10**precision > 1 << (8 * type.size - 1):
            raise _wrong(path, f"is a decimal of {precision} digits in {type.size} bytes")
        return msgspec.structs.replace(type, logical="decimal", precision=precision, scale=scale)
    if isinstance(logical, str) and logical in _LOGICAL and _LOGICAL[logical][0] == type.kind:
        return msgspec.structs.replace(type, logical=logical)
    return type


def _default(type: Type, value: Any, path: str, is_first_null: bool = False) -> Any:
    """The plain value of a default; raises InvalidArgument if the type does not allow it."""
    if value is None and is_first_null:
        return None
    if is_first_null:
        raise _wrong(
            path, f"has the default {_short(value)}, and its union begins with null",
            "the default is of the union's first type: put null last",
        )  # fmt: skip
    plain = _plain_default(type, value, path)
    if plain is None:
        raise _wrong(path, f"has the default {_short(value)}, it must be {type.words}")
    return plain


def _plain_default(type: Type, value: Any, path: str) -> Any:
    """The plain value of a default, without a union around its type; None if it does not fit."""
    kind = type.kind
    if kind in ("bytes", "fixed"):
        return _bytes_default(type, value)
    if kind in ("array", "map", "record"):
        return _nested_default(type, value, path)
    fits = isinstance(value, str)
    if type.limits is not None:
        low, high = type.limits
        fits = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    elif kind in ("float", "double"):
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        fits = fits and abs(value) <= FLOAT_MAX[kind]
        value = float(value) if fits else None
    elif kind == "boolean":
        fits = isinstance(value, bool)
    elif type.logical == "uuid":
        fits = fits and UUID.match(value) is not None
    elif kind == "enum":
        fits = value in type.symbols
    return value if fits else None


def _nested_default(type: Type, value: Any, path: str) -> Any:
    def inner(type: Type, value: Node, path: str) -> Node:
        return _default(type, value, path, type.nullable and value is None)

    items = type.items
    if type.kind == "array" and items is not None:
        is_list = isinstance(value, list)
        return [inner(items, item, f"{path}[]") for item in value] if is_list else None
    if not isinstance(value, dict):
        return None
    if items is not None:
        return {key: inner(items, item, f"{path}{{}}") for key, item in value.items()}
    members = {}
    for item in type.fields:
        if item.name in value:
            members[item.name] = inner(item.type, value[item.name], f"{path}.{item.name}")
        elif item.has_default:
            members[item.name] = item.default
        else:
            raise _wrong(path, f"has a default without {item.name}")
    return members


def _bytes_default(type: Type, value: Any) -> bytes | Decimal | None:
    try:
        data = value.encode("latin-1") if isinstance(value, str) else None
    except UnicodeEncodeError:
        return None
    if data is None or (type.kind == "fixed" and len(data) != type.size):
        return None
    if type.logical != "decimal":
        return bytes(data)
    whole = int.from_bytes(data, "big", signed=True)
    return decimal_of(whole, type.scale) if abs(whole) < 10**type.precision else None


def decimal_of(whole: int, scale: int) -> Decimal:
    """The exact number with the digits of `whole`, the last `scale` digits after the point."""
    return Decimal(f"{whole}e-{scale}")


def names_of_columns(columns: Sequence[str]) -> dict[str, str]:
    """The field of a record for each column of a file: its name, or one like it that is allowed.

    >>> [*names_of_columns(["id", "Unit Price", "1st", "unit-Price", "Größe"]).values()]
    ['id', 'Unit_Price', '_1st', 'unit_Price_2', 'Grosse']
    """
    fields = {column: column for column in columns if _NAME.match(column)}
    if len(fields) == len(columns):
        return fields
    unicodedata: ModuleType = importlib.import_module("unicodedata")  # needed for few files
    for column in columns:
        if column in fields:
            continue
        letters = unicodedata.normalize("NFKD", column.replace("ß", "ss"))
        plain = "".join(letter for letter in letters if not unicodedata.combining(letter))
        stem = re.sub(r"[^A-Za-z0-9_]+", "_", plain).strip("_") or "field"
        stem = f"_{stem}" if stem[0].isdigit() else stem
        names = (f"{stem}_{number}" if number > 1 else stem for number in count(1))
        taken = {
            name.casefold() for name in fields.values()
        }  # case alone does not tell fields apart
        fields[column] = next(name for name in names if name.casefold() not in taken)
    return {column: fields[column] for column in columns}


def told_names(columns: Sequence[str]) -> str:
    """Words about columns whose field has another name, after a semicolon; else nothing."""
    fields = names_of_columns(columns)
    renamed = [(column, field) for column, field in fields.items() if column != field]
    renames = [f'"{column}" is the field {field}' for column, field in renamed]
    return f"; {', '.join(renames)}" if renames else ""


def _check_name(name: str, path: str) -> None:
    if not _NAME.match(name):
        raise _wrong(
            path,
            f"has the name {name!r}",
            "names are a to z, A to Z, digits and _, without a digit first",
        )


def _names(names: Any, path: str) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _wrong(path, "has symbols or aliases that are not a list of strings")
    for name in names:
        _check_name(name, path)
    return tuple(names)


def _size(type: Type) -> int:
    """The number of nodes of a type, for a name that is used again."""
    inner = 0 if type.items is None else _size(type.items)
    return 1 + inner + sum(_size(field.type) for field in type.fields)


def _wrong(path: str, problem: str, hint: str | None = None) -> InvalidArgument:
    return InvalidArgument(
        f"schema: {f'field {path}' if path else 'the record'} {problem}", hint=hint
    )


def _short(node: Any) -> str:
    if isinstance(node, dict):
        node = node.get("name", node.get("type", node))
    text = node if isinstance(node, str) else msgspec.json.encode(node).decode()
    return text if len(text) <= 40 else f"{text[:40]}…"


def _several(names: tuple[str, ...] | list[str]) -> str:
    """A list of names for a message, shortened."""
    listed = [*names[:8], *(["…"] if len(names) > 8 else [])]
    return ", ".join(listed)


def _record_of(fields: Any, name: str, path: str) -> dict[str, object]:
    members = []
    for field in fields:
        here = f"{path}.{field.name}" if path else field.name
        _check_name(field.name, here)
        members.append({"name": field.name, **_member_of(field, here)})
    return {"type": "record", "name": name, "fields": members}


def _member_of(field: pa.Field, path: str) -> dict[str, object]:
    type = _type_of(field.type, path)
    return {"type": ["null", type], "default": None} if field.nullable else {"type": type}


def _items_of(field: pa.Field, path: str) -> object:
    return _member_of(field, path)["type"]


def _type_of(type: pa.DataType, path: str) -> object:
    """The Avro type of a column of Arrow."""
    name = path.replace(".", "_").replace("[]", "_item").replace("{}", "_value")
    if isinstance(type, pa.BaseExtensionType):
        return _type_of(type.storage_type, path)
    if pa.types.is_dictionary(type):
        return _type_of(type.value_type, path)
    if pa.types.is_struct(type):
        return _record_of(type, name, path)
    if pa.types.is_map(type):
        if not _is_text(type.key_type):
            raise _wrong(path, f"is a map with keys of {type.key_type}", "its keys are strings")
        return {"type": "map", "values": _items_of(type.item_field, f"{path}{{}}")}
    if pa.types.is_nested(type) and not pa.types.is_union(type):  # lists of any kind
        return {"type": "array", "items": _items_of(type.value_field, f"{path}[]")}
    if pa.types.is_fixed_size_binary(type):
        return {"type": "fixed", "name": name, "size": type.byte_width}
    if pa.types.is_decimal(type) and type.precision <= PRECISION_MAX and type.scale >= 0:
        facts = {"precision": type.precision, "scale": type.scale}
        return {"type": "bytes", "logicalType": "decimal", **facts}
    if pa.types.is_timestamp(type):
        logical = "timestamp-millis" if type.unit in ("s", "ms") else "timestamp-micros"
        return {"type": "long", "logicalType": f"{'' if type.tz else 'local-'}{logical}"}
    for fits, avro in _SIMPLE:
        if fits(type):
            return avro
    raise _wrong(path, f"is {type} in Arrow", "no Avro type holds it: cast the column")


def _is_text(type: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type)
    )


def _is_bytes(type: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(type) or pa.types.is_large_binary(type) or pa.types.is_binary_view(type)
    )


_SIMPLE: Final = (
    (pa.types.is_boolean, "boolean"),
    (lambda t: pa.types.is_integer(t) and (t.bit_width < 32 or t == pa.int32()), "int"),
    (pa.types.is_integer, "long"),
    (lambda t: t in (pa.float16(), pa.float32()), "float"),
    (pa.types.is_floating, "double"),
    (_is_text, "string"),
    (_is_bytes, "bytes"),
    (pa.types.is_date, {"type": "int", "logicalType": "date"}),
    (pa.types.is_time32, {"type": "int", "logicalType": "time-millis"}),
    (pa.types.is_time64, {"type": "long", "logicalType": "time-micros"}),
)

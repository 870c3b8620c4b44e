"""Owns the encodings of one record in bytes: one JSON object, or Avro's binary.

msgspec reads JSON with a class made for the schema, so it is strict: an integer has no point,
nothing follows the object, text is UTF-8. This module also checks UTF-8 in members that no field
has, which msgspec only skims, and the nesting, because msgspec's limit depends on its caller.
fastavro reads Avro without the logical types: this gives plain values, and no year that Python
cannot represent.
"""

from __future__ import annotations

import importlib
import io
import re
import struct
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import cache, lru_cache
from types import ModuleType
from typing import Annotated, Any, Final, Literal, Optional, Protocol

import msgspec
import pyarrow as pa

from txlog.base.schemas.columns import Misfit, Parts, Plain, plain_values
from txlog.base.schemas.schema import DEPTH_MAX, FLOAT_MAX, UUID, Schema, Type, decimal_of
from txlog.base.startup import compute as pc

# Deeper than any record, and so flat that every caller can read values that any writer accepted.
_NESTING_MAX: Final = DEPTH_MAX + 68
_ESCAPED: Final = r'[\x00-\x1f"\\]'
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"')
_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_ELSE: Final = bytes(set(range(256)) - set(b"[]{}"))
_EXPECTED: Final = re.compile(
    r"Expected `(?P<wanted>[^`]*)`(?P<limit>[^,]*?)(?:, got `(?P<got>\w+)`)?"
    r"(?: - at `\$\.?(?P<path>.*)`)?\Z"
)
# Exceptions of fastavro for damaged bytes; others may come from a signal handler.
_OF_DAMAGED_BYTES: Final = (
    *(ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, MemoryError),
    *(RecursionError, TypeError, ValueError, struct.error),
)
_FOUND: Final = {
    **{"int": "an integer", "float": "a number with a point", "bool": "true or false"},
    **{"str": "a string", "array": "an array", "object": "an object", "null": "null"},
}


class Form(Parts, Protocol):
    """An encoding of records: bytes to plain values and back."""

    has_infinity: bool  # whether it can express infinity and NaN

    def read(self, data: bytes) -> Plain:
        """The record of a value; raises Misfit."""
        ...

    def read_valid(self, values: list[bytes]) -> list[Any]:
        """The records of values that `read` accepts."""
        ...

    def write(self, record: dict[str, Any]) -> bytes:
        """The value of a record whose decimals are in the form of `plain_decimals`."""
        ...

    def write_all(self, records: pa.StructArray) -> pa.Array:
        """The values of records of the schema's Arrow type, binary; null for null."""
        ...

    def plain_decimal(self, type: Type, value: Decimal) -> Plain:
        """A decimal in this encoding."""
        ...

    def decimal(self, type: Type, plain: Plain) -> Decimal:
        """The Decimal for a result of `plain_decimal`; raises Misfit."""
        ...


@lru_cache(maxsize=256)
def form_of(schema: Schema) -> Form:
    """The encoding of a schema's values."""
    return JsonForm(schema.record) if schema.type == "json" else AvroForm(schema.record)


class JsonForm:
    """Values that are one JSON object each."""

    __slots__ = ("_decode", "_encode", "_type", "has_infinity")

    def __init__(self, record: Type) -> None:
        self._type, self.has_infinity = record, False
        self._decode = msgspec.json.Decoder(_class_of(record)).decode
        self._encode = msgspec.json.Encoder().encode

    def read(self, data: bytes) -> Plain:
        """The record of a value; raises Misfit."""
        try:
            data.decode()
            record = self._decode(data)
        except UnicodeDecodeError as error:
            raise Misfit("", f"is not UTF-8 from byte {error.start} on") from error
        except RecursionError as error:
            raise Misfit("", f"nests deeper than {_NESTING_MAX}") from error
        except msgspec.ValidationError as error:
            raise self._misfit(str(error)) from error
        except msgspec.DecodeError as error:
            reason = (
                str(error)
                .removeprefix("JSON is malformed: ")
                .replace("Input data was truncated", "it ends too early")
            )
            raise Misfit("", f"is not JSON: {reason}") from error
        if is_deep(data):
            raise Misfit("", f"nests deeper than {_NESTING_MAX}")
        return record

    def read_valid(self, values: list[bytes]) -> list[Any]:
        """The records of values that `read` accepts."""
        return list(map(self._decode, values))

    def write(self, record: dict[str, Any]) -> bytes:
        """The value of a record whose decimals are text."""
        return self._encode(record)

    def write_all(self, records: pa.StructArray) -> pa.Array:
        """The values of records: each field as a column of JSON text, then joined row by row."""
        parts: list[pa.Array | str] = []
        for n, field in enumerate(self._type.fields):
            name = self._encode(field.name).decode()
            parts += [f"{',' if n else '{'}{name}:", self._texts(field.type, records.field(n))]
        values = pc.binary_join_element_wise(*parts, "}", "", null_handling="skip")
        if records.null_count:
            values = pc.if_else(records.is_valid(), values, pa.scalar(None, pa.string()))
        return values.cast(pa.binary())

    def _texts(self, type: Type, column: pa.Array) -> pa.Array:
        """Each value of a column as JSON; a null stays null."""
        if type.limits is not None:
            plain = column.view(pa.int32() if type.kind == "int" else pa.int64())
            texts = plain.cast(pa.string())
        elif type.kind == "boolean":
            texts = column.cast(pa.string())
        elif type.kind in ("string", "enum"):
            texts = self._quoted(column)
        elif type.kind in ("float", "double") and len(column):
            listed = self._encode(column.to_pylist())[1:-1]
            texts = pa.array(listed.split(b","), pa.binary()).cast(pa.string())
        else:
            plain_ones = plain_values(type, column, self)
            texts = pa.array(list(map(self._encode, plain_ones)), pa.binary()).cast(pa.string())
        return texts.fill_null("null") if texts.null_count else texts

    def _quoted(self, column: pa.Array) -> pa.Array:
        """Texts as JSON; only texts with characters to escape are encoded one by one."""
        quoted = pc.binary_join_element_wise('"', column, '"', "")
        is_special = pc.match_substring_regex(column, _ESCAPED)
        if pc.any(is_special).as_py():
            special = [self._encode(text) for text in column.filter(is_special).to_pylist()]
            texts = pa.array(special, pa.binary()).cast(pa.string())
            quoted = pc.replace_with_mask(quoted, is_special.fill_null(False), texts)
        return quoted

    def columns_of(self, type: Type, records: list[Any]) -> Iterable[Sequence[Any]]:
        """The values of each field."""
        return zip(*map(msgspec.structs.astuple, records), strict=True)

    def decimals(self, type: Type, values: Sequence[Any], path: str) -> pa.Array:
        """Decimals as a column; in JSON they are text."""
        return pa.array(values, pa.string()).cast(type.arrow)

    def plain_decimals(self, type: Type, column: pa.Array) -> list[Any]:
        """A column of decimals as text, never with an exponent."""
        return [None if number is None else f"{number:f}" for number in column.to_pylist()]

    def plain_decimal(self, type: Type, value: Decimal) -> Plain:
        """A decimal as text."""
        return f"{value:f}"

    def decimal(self, type: Type, plain: Plain) -> Decimal:
        """The Decimal for text, with all digits of its scale."""
        whole, _, fraction = plain.partition(".")
        return decimal_of(int(whole + fraction.ljust(type.scale, "0")), type.scale)

    def _misfit(self, message: str) -> Misfit:
        """An error of msgspec in our words: the field, its value and its type."""
        text, _, at = message.partition(" - at `$")
        path = at.removesuffix("`").removeprefix(".").replace("[...]", "{}")
        if text.startswith("Object missing required field"):
            name = text.split("`")[1]
            return Misfit(f"{path}.{name}" if path else name, "is missing and has no default")
        expected_type = self._wanted(path)
        description = expected_type.words if expected_type is not None else ""
        match = _EXPECTED.match(text)
        if not path:
            problem = _FOUND.get((match and match["got"]) or "", "no object")
            return Misfit("", f"is {problem}, it must be a JSON object")
        if expected_type is not None and expected_type.kind in ("bytes", "fixed"):
            description = (
                f"text with {description}" if expected_type.logical else f"{description} in base64"
            )
        if match is not None and match["got"]:
            got = _FOUND.get(match["got"], match["got"])
            return Misfit(path, f"is {got}, it must be {description or match['wanted']}")
        if expected_type is None:
            return Misfit(path, text)
        is_number = expected_type.limits is not None or expected_type.kind == "float"
        problem = "is out of bounds" if is_number else "has another form"
        if expected_type.kind == "enum":
            problem = f"is {text.removeprefix('Invalid enum value ')}"
        return Misfit(path, f"{problem}, it must be {description}")

    def _wanted(self, path: str) -> Type | None:
        """The type at a path such as stops[2].name."""
        type: Type | None = self._type
        for part in re.findall(r"\[\d+\]|{}|[^.\[\]{}]+", path):
            if type is None:
                return None
            if type.kind == "record":
                field = type.field(part)
                type = field.type if field is not None else None
            else:
                type = type.items
        return type


def is_deep(data: bytes) -> bool:
    """Whether valid JSON nests deeper than every reader can follow."""
    if len(data) <= _NESTING_MAX:
        return False
    if len(data.translate(None, _ELSE)) <= _NESTING_MAX:
        return False
    signs = _STRING.sub(b"", data).translate(_BRACKETS, _ELSE)
    for _ in range(_NESTING_MAX):  # each round removes the innermost pairs, one level
        signs = signs.replace(b"[]", b"")
    return bool(signs)


def _class_of(record: Type) -> type[msgspec.Struct]:
    """A class for the record; its attributes are numbered, as a field may be called __init__."""
    members: list[Any] = []
    for n, field in enumerate(record.fields):
        default: Any = ...
        if field.has_default:
            default = _json_default(field.type, field.default)
        elif field.type.nullable:
            default = None
        type = _json_type(field.type)
        members.append(
            (f"f{n}", type) if default is ... else (f"f{n}", type, _member_default(default))
        )
    names = {f"f{n}": field.name for n, field in enumerate(record.fields)}
    return msgspec.defstruct("Record", members, rename=names, kw_only=True, gc=False)


def _member_default(default: Any) -> Any:
    if isinstance(default, list | dict | msgspec.Struct):
        return msgspec.field(default_factory=lambda: default)
    return msgspec.field(default=default)


def _json_default(type: Type, default: Any) -> Any:
    """A plain default in the form that the decoder would return."""
    if default is None:
        return None
    if type.logical == "decimal":
        return f"{default:f}"
    if type.kind == "record":
        members = {
            f"f{n}": _json_default(item.type, default[item.name])
            for n, item in enumerate(type.fields)
        }
        return _class_of(type)(**members)
    if type.kind == "array":
        assert type.items is not None
        return [_json_default(type.items, item) for item in default]
    if type.kind == "map":
        assert type.items is not None
        return {name: _json_default(type.items, item) for name, item in default.items()}
    return default


def _json_type(type: Type) -> Any:
    member_type = _json_type_alone(type)
    return Optional[member_type] if type.nullable else member_type  # noqa: UP045


def _json_type_alone(type: Type) -> Any:
    if type.kind == "record":
        return _class_of(type)
    if type.items is not None:
        items = _json_type(type.items)
        return list[items] if type.kind == "array" else dict[str, items]  # type: ignore[valid-type]
    if type.limits is not None:
        low, high = type.limits
        return Annotated[int, msgspec.Meta(ge=low, le=high)]
    if type.logical == "decimal":
        whole = type.precision - type.scale
        digits = rf"\d{{1,{whole}}}" if whole else "0"
        fraction = rf"(\.\d{{1,{type.scale}}})?" if type.scale else ""
        return Annotated[str, msgspec.Meta(pattern=rf"\A-?{digits}{fraction}\Z")]
    if type.logical == "uuid":
        return Annotated[str, msgspec.Meta(pattern=rf"\A{UUID.pattern}")]
    if type.kind == "float":
        high_float = FLOAT_MAX["float"]
        return Annotated[float, msgspec.Meta(ge=-high_float, le=high_float)]
    if type.kind == "fixed":
        return Annotated[bytes, msgspec.Meta(min_length=type.size, max_length=type.size)]
    if type.kind == "enum":
        return Literal[type.symbols]
    return {"boolean": bool, "double": float, "bytes": bytes, "string": str}[type.kind]


class AvroForm:
    """Values that are the schemaless binary of the record."""

    __slots__ = ("_many", "_one", "_type", "has_infinity")

    def __init__(self, record: Type) -> None:
        self._type, self.has_infinity = record, True
        parse = _fastavro().parse_schema
        self._one = parse(_avro_node(record, []))
        self._many = parse({"type": "array", "items": _avro_node(record, [])})

    def read(self, data: bytes) -> Plain:
        """The record of a value; raises Misfit."""
        file = io.BytesIO(data)
        try:
            record = _fastavro().schemaless_reader(file, self._one, None)
        except _OF_DAMAGED_BYTES as error:
            reason = "it ends too early" if isinstance(error, EOFError) else _line(error)
            raise Misfit("", f"is not Avro of its schema: {reason}") from error
        if file.tell() < len(data):
            surplus = len(data) - file.tell()
            raise Misfit("", f"is not Avro of its schema: {surplus} bytes are left over")
        return record

    def read_valid(self, values: list[bytes]) -> list[Any]:
        """The records of values that `read` accepts; they are decoded as one array of Avro."""
        if not values:
            return []
        count = len(values) << 1  # zigzag
        head = bytearray()
        while count > 0x7F:
            head.append(count & 0x7F | 0x80)
            count >>= 7
        head.append(count)
        file = io.BytesIO(b"".join((head, *values, b"\0")))
        records: list[Any] = _fastavro().schemaless_reader(file, self._many, None)
        return records

    def write(self, record: dict[str, Any]) -> bytes:
        """The value of a record whose decimals are bytes."""
        file = io.BytesIO()
        _fastavro().schemaless_writer(file, self._one, record)
        return file.getvalue()

    def write_all(self, records: pa.StructArray) -> pa.Array:
        """The values of records, one at a time."""
        rows = plain_values(self._type, records, self)
        return pa.array([None if row is None else self.write(row) for row in rows], pa.binary())

    def columns_of(self, type: Type, records: list[Any]) -> Iterable[Sequence[Any]]:
        """The values of each field."""
        return zip(*[record.values() for record in records], strict=True)

    def decimals(self, type: Type, values: Sequence[Any], path: str) -> pa.Array:
        """Decimals as a column; in Avro they are the bytes of an integer."""
        bound = 10**type.precision
        buffer = bytearray()
        for number in values:
            whole = int.from_bytes(number or b"", "big", signed=True)
            if abs(whole) >= bound:
                raise Misfit(path, f"has too many digits, it must be {type.words}")
            buffer += whole.to_bytes(16, "little", signed=True)
        there = None
        if None in values:
            there = pa.array([number is not None for number in values], pa.bool_()).buffers()[1]
        return pa.Array.from_buffers(type.arrow, len(values), [there, pa.py_buffer(bytes(buffer))])

    def plain_decimals(self, type: Type, column: pa.Array) -> list[Any]:
        """A column of decimals as bytes."""
        return [
            None if number is None else self.plain_decimal(type, number)
            for number in column.to_pylist()
        ]

    def plain_decimal(self, type: Type, value: Decimal) -> Plain:
        """A decimal as the bytes of its unscaled integer."""
        sign, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        whole = int("".join(map(str, digits))) * 10 ** (exponent + type.scale)
        whole = -whole if sign else whole
        size = type.size or (whole if whole >= 0 else ~whole).bit_length() // 8 + 1
        return whole.to_bytes(size, "big", signed=True)

    def decimal(self, type: Type, plain: Plain) -> Decimal:
        """The Decimal for bytes; raises Misfit."""
        whole = int.from_bytes(plain, "big", signed=True)
        if abs(whole) >= 10**type.precision:
            raise Misfit("", f"has too many digits, it must be {type.words}")
        return decimal_of(whole, type.scale)


def is_avro(definition: str) -> bool:
    """Whether a text is a schema of Avro, for a record or not."""
    try:
        _fastavro().parse_schema(msgspec.json.decode(definition))
    except Exception:  # msgspec's errors, or any exception of fastavro
        return False
    return True


@cache
def _fastavro() -> ModuleType:
    return importlib.import_module("fastavro")


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _avro_node(type: Type, names: list[str]) -> Any:
    """The type for fastavro: without logical types, and each name once."""
    node: Any = type.kind
    if type.kind in ("record", "enum", "fixed"):
        names.append(f"n{len(names)}")
        node = {"type": type.kind, "name": names[-1]}
        if type.kind == "record":
            node["fields"] = [
                {"name": field.name, "type": _avro_node(field.type, names)} for field in type.fields
            ]
        elif type.kind == "enum":
            node["symbols"] = list(type.symbols)
        else:
            node["size"] = type.size
    elif type.items is not None:
        member = "items" if type.kind == "array" else "values"
        node = {"type": type.kind, member: _avro_node(type.items, names)}
    if type.nullable:
        return [node, "null"] if type.is_null_last else ["null", node]
    return node

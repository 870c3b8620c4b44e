"""Owns how the bytes of one value hold a record: one JSON object, or Avro's binary.

JSON is read by msgspec with a class made for the schema, so nothing is lax: an integer is none with
a point in it, nothing follows the object, text is UTF-8. Two of its habits are mended here: it
looks into members that no field has only as far as it must, and how deep depends on its caller.

Avro is read by fastavro with the logical types left out: plain values, and no year that Python
cannot show.
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

# Deeper than any record, and so shallow that every caller can read what any writer has checked.
_NESTING_MAX: Final = DEPTH_MAX + 68
_ESCAPED: Final = r'[\x00-\x1f"\\]'
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"')
_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_ELSE: Final = bytes(set(range(256)) - set(b"[]{}"))
_EXPECTED: Final = re.compile(
    r"Expected `(?P<wanted>[^`]*)`(?P<limit>[^,]*?)(?:, got `(?P<got>\w+)`)?"
    r"(?: - at `\$\.?(?P<path>.*)`)?\Z"
)
# What fastavro raises for damaged bytes; anything else may come from a signal handler.
_OF_DAMAGED_BYTES: Final = (
    *(ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, MemoryError),
    *(RecursionError, TypeError, ValueError, struct.error),
)
_FOUND: Final = {
    **{"int": "an integer", "float": "a number with a point", "bool": "true or false"},
    **{"str": "a string", "array": "an array", "object": "an object", "null": "null"},
}


class Form(Parts, Protocol):
    """A type of schema: bytes to plain values and back."""

    has_infinity: bool  # and NaN

    def read(self, data: bytes) -> Plain:
        """The record of a value; raises Misfit."""
        ...

    def read_valid(self, values: list[bytes]) -> list[Any]:
        """The records of values that `read` takes."""
        ...

    def write(self, record: dict[str, Any]) -> bytes:
        """The value of a record whose decimals are as `plain_decimals` makes them."""
        ...

    def write_all(self, records: pa.StructArray) -> pa.Array:
        """The values of records of the schema's Arrow type, binary; of a null, null."""
        ...

    def plain_decimal(self, type: Type, value: Decimal) -> Plain:
        """A decimal as the form has it."""
        ...

    def decimal(self, type: Type, plain: Plain) -> Decimal:
        """The reverse; raises Misfit."""
        ...


@lru_cache(maxsize=256)
def form_of(schema: Schema) -> Form:
    """How a schema's values hold records."""
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
            found = self._decode(data)
        except UnicodeDecodeError as error:
            raise Misfit("", f"is not UTF-8 from byte {error.start} on") from error
        except RecursionError as error:
            raise Misfit("", f"nests deeper than {_NESTING_MAX}") from error
        except msgspec.ValidationError as error:
            raise self._misfit(str(error)) from error
        except msgspec.DecodeError as error:
            what = (
                str(error)
                .removeprefix("JSON is malformed: ")
                .replace("Input data was truncated", "it ends too early")
            )
            raise Misfit("", f"is not JSON: {what}") from error
        if is_deep(data):
            raise Misfit("", f"nests deeper than {_NESTING_MAX}")
        return found

    def read_valid(self, values: list[bytes]) -> list[Any]:
        """The records of values that `read` takes."""
        return list(map(self._decode, values))

    def write(self, record: dict[str, Any]) -> bytes:
        """The value of a record whose decimals are text."""
        return self._encode(record)

    def write_all(self, records: pa.StructArray) -> pa.Array:
        """The values of records: the text of each field, then all of them side by side."""
        parts: list[pa.Array | str] = []
        for n, one in enumerate(self._type.fields):
            name = self._encode(one.name).decode()
            parts += [f"{',' if n else '{'}{name}:", self._texts(one.type, records.field(n))]
        values = pc.binary_join_element_wise(*parts, "}", "", null_handling="skip")
        if records.null_count:
            values = pc.if_else(records.is_valid(), values, pa.scalar(None, pa.string()))
        return values.cast(pa.binary())

    def _texts(self, type: Type, column: pa.Array) -> pa.Array:
        """Each value of a column as JSON; none is null."""
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
        """Texts as JSON: only those with a sign that must be escaped are looked at one by one."""
        quoted = pc.binary_join_element_wise('"', column, '"', "")
        is_special = pc.match_substring_regex(column, _ESCAPED)
        if pc.any(is_special).as_py():
            special = [self._encode(one) for one in column.filter(is_special).to_pylist()]
            texts = pa.array(special, pa.binary()).cast(pa.string())
            quoted = pc.replace_with_mask(quoted, is_special.fill_null(False), texts)
        return quoted

    def columns_of(self, type: Type, records: list[Any]) -> Iterable[Sequence[Any]]:
        """The values of each field."""
        return zip(*map(msgspec.structs.astuple, records), strict=True)

    def decimals(self, type: Type, values: Sequence[Any], path: str) -> pa.Array:
        """Decimals as a column; they are text here."""
        return pa.array(values, pa.string()).cast(type.arrow)

    def plain_decimals(self, type: Type, column: pa.Array) -> list[Any]:
        """The reverse; never with an exponent."""
        return [None if one is None else f"{one:f}" for one in column.to_pylist()]

    def plain_decimal(self, type: Type, value: Decimal) -> Plain:
        """A decimal as text."""
        return f"{value:f}"

    def decimal(self, type: Type, plain: Plain) -> Decimal:
        """The reverse, with all digits of its scale."""
        whole, _, rest = plain.partition(".")
        return decimal_of(int(whole + rest.ljust(type.scale, "0")), type.scale)

    def _misfit(self, message: str) -> Misfit:
        """What msgspec says, in our words: the field, what it is and what it must be."""
        text, _, at = message.partition(" - at `$")
        path = at.removesuffix("`").removeprefix(".").replace("[...]", "{}")
        if text.startswith("Object missing required field"):
            name = text.split("`")[1]
            return Misfit(f"{path}.{name}" if path else name, "is missing and has no default")
        wanted = self._wanted(path)
        words = wanted.words if wanted is not None else ""
        found = _EXPECTED.match(text)
        if not path:
            what = _FOUND.get((found and found["got"]) or "", "no object")
            return Misfit("", f"is {what}, it must be a JSON object")
        if wanted is not None and wanted.kind in ("bytes", "fixed"):
            words = f"text with {words}" if wanted.logical else f"{words} in base64"
        if found is not None and found["got"]:
            got = _FOUND.get(found["got"], found["got"])
            return Misfit(path, f"is {got}, it must be {words or found['wanted']}")
        if wanted is None:
            return Misfit(path, text)
        is_number = wanted.limits is not None or wanted.kind == "float"
        what = "is out of bounds" if is_number else "has another form"
        if wanted.kind == "enum":
            what = f"is {text.removeprefix('Invalid enum value ')}"
        return Misfit(path, f"{what}, it must be {words}")

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
    """True if valid JSON nests deeper than every reader can follow."""
    if len(data) <= _NESTING_MAX:
        return False
    if len(data.translate(None, _ELSE)) <= _NESTING_MAX:
        return False
    signs = _STRING.sub(b"", data).translate(_BRACKETS, _ELSE)
    for _ in range(_NESTING_MAX):  # each round takes the innermost pairs away, a level
        signs = signs.replace(b"[]", b"")
    return bool(signs)


def _class_of(record: Type) -> type[msgspec.Struct]:
    """A class for the record; its attributes are numbered, as a field may be called __init__."""
    members: list[Any] = []
    for n, one in enumerate(record.fields):
        default: Any = ...
        if one.has_default:
            default = _json_default(one.type, one.default)
        elif one.type.nullable:
            default = None
        type = _json_type(one.type)
        members.append(
            (f"f{n}", type) if default is ... else (f"f{n}", type, _member_default(default))
        )
    names = {f"f{n}": one.name for n, one in enumerate(record.fields)}
    return msgspec.defstruct("Record", members, rename=names, kw_only=True, gc=False)


def _member_default(default: Any) -> Any:
    if isinstance(default, list | dict | msgspec.Struct):
        return msgspec.field(default_factory=lambda: default)
    return msgspec.field(default=default)


def _json_default(type: Type, default: Any) -> Any:
    """A plain default as the decoder would have read it."""
    if default is None:
        return None
    if type.logical == "decimal":
        return f"{default:f}"
    if type.kind == "record":
        made = {
            f"f{n}": _json_default(one.type, default[one.name]) for n, one in enumerate(type.fields)
        }
        return _class_of(type)(**made)
    if type.kind == "array":
        assert type.items is not None
        return [_json_default(type.items, one) for one in default]
    if type.kind == "map":
        assert type.items is not None
        return {name: _json_default(type.items, one) for name, one in default.items()}
    return default


def _json_type(type: Type) -> Any:
    made = _json_type_alone(type)
    return Optional[made] if type.nullable else made  # noqa: UP045


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
        rest = rf"(\.\d{{1,{type.scale}}})?" if type.scale else ""
        return Annotated[str, msgspec.Meta(pattern=rf"\A-?{digits}{rest}\Z")]
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
            found = _fastavro().schemaless_reader(file, self._one, None)
        except _OF_DAMAGED_BYTES as error:
            what = "it ends too early" if isinstance(error, EOFError) else _line(error)
            raise Misfit("", f"is not Avro of its schema: {what}") from error
        if file.tell() < len(data):
            left = len(data) - file.tell()
            raise Misfit("", f"is not Avro of its schema: {left} bytes are left over")
        return found

    def read_valid(self, values: list[bytes]) -> list[Any]:
        """The records of values that `read` takes: all of them are one array of Avro."""
        if not values:
            return []
        count = len(values) << 1  # zigzag
        head = bytearray()
        while count > 0x7F:
            head.append(count & 0x7F | 0x80)
            count >>= 7
        head.append(count)
        file = io.BytesIO(b"".join((head, *values, b"\0")))
        found: list[Any] = _fastavro().schemaless_reader(file, self._many, None)
        return found

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
        return zip(*[one.values() for one in records], strict=True)

    def decimals(self, type: Type, values: Sequence[Any], path: str) -> pa.Array:
        """Decimals as a column; they are the bytes of an integer here."""
        bound = 10**type.precision
        words = bytearray()
        for one in values:
            whole = int.from_bytes(one or b"", "big", signed=True)
            if abs(whole) >= bound:
                raise Misfit(path, f"has too many digits, it must be {type.words}")
            words += whole.to_bytes(16, "little", signed=True)
        there = None
        if None in values:
            there = pa.array([one is not None for one in values], pa.bool_()).buffers()[1]
        return pa.Array.from_buffers(type.arrow, len(values), [there, pa.py_buffer(bytes(words))])

    def plain_decimals(self, type: Type, column: pa.Array) -> list[Any]:
        """The reverse."""
        return [
            None if one is None else self.plain_decimal(type, one) for one in column.to_pylist()
        ]

    def plain_decimal(self, type: Type, value: Decimal) -> Plain:
        """A decimal as the bytes of the integer that its digits are."""
        sign, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        whole = int("".join(map(str, digits))) * 10 ** (exponent + type.scale)
        whole = -whole if sign else whole
        size = type.size or (whole if whole >= 0 else ~whole).bit_length() // 8 + 1
        return whole.to_bytes(size, "big", signed=True)

    def decimal(self, type: Type, plain: Plain) -> Decimal:
        """The reverse."""
        whole = int.from_bytes(plain, "big", signed=True)
        if abs(whole) >= 10**type.precision:
            raise Misfit("", f"has too many digits, it must be {type.words}")
        return decimal_of(whole, type.scale)


def is_avro(definition: str) -> bool:
    """True if a text is a schema of Avro, of a record or not."""
    try:
        _fastavro().parse_schema(msgspec.json.decode(definition))
    except Exception:  # of msgspec or fastavro, which raises about anything
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
                {"name": one.name, "type": _avro_node(one.type, names)} for one in type.fields
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

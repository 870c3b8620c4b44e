"""Owns the caller's own types: schemas of classes, and their instances as records.

    schema_of(Flight)                    a dataclass, msgspec.Struct or pydantic model
    schema_of(pa.schema([...]))          a schema of Arrow

An int is a long, a float a double, a datetime a timestamp in microseconds, Optional a union with
null, an Enum or Literal of strings an enum. A Decimal needs its digits:

    price: Annotated[Decimal, msgspec.Meta(extra={"precision": 12, "scale": 2})]
"""

from __future__ import annotations

import datetime as dt
import math
import operator
import re
import struct
import sys
from collections.abc import Hashable, Iterable, Mapping
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from itertools import repeat
from typing import Any, Final, TypeAlias, TypeVar
from uuid import UUID

import msgspec
import pyarrow as pa

from txlog.base.schemas.columns import Misfit, Plain
from txlog.base.schemas.forms import Form
from txlog.base.schemas.schema import FLOAT_MAX, Node, Schema, Type, decimal_of, of_arrow
from txlog.base.schemas.schema import UUID as UUID_TEXT
from txlog.base.suggest import nearest
from txlog.errors import InvalidArgument

T = TypeVar("T")
Record: TypeAlias = Any  # a value for which `is_record` is true
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001
_EPOCH_UTC: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_DAY: Final = _EPOCH.toordinal()
_MICROSECOND: Final = dt.timedelta(microseconds=1)


def schema_of(source: object, type: str = "json") -> Schema:
    """The schema of a class, of an Arrow schema or struct, or of a Schema itself.

    type:   avro or json: the encoding of records in values
    raises: InvalidArgument: no Avro type fits a field
    """
    if isinstance(source, Schema):
        return source
    if isinstance(source, pa.Schema | pa.StructType):
        return of_arrow(source if isinstance(source, pa.Schema) else pa.schema(list(source)), type)
    if not isinstance(source, builtin_type):
        raise InvalidArgument(
            f"no schema can be made from {builtin_type(source).__name__}",
            hint="give a dataclass, msgspec.Struct, pydantic model, pyarrow.Schema or Schema; "
            "Schema.parse reads Avro's text, txlog.spark.schema_of takes a data frame",
        )
    node = _Translation().record(source, "")
    return Schema.parse(type, msgspec.json.encode(node).decode())


builtin_type: Final = type


class _Translation:
    """Translates one class into a definition; a nested class is defined at its first use."""

    __slots__ = ("names",)

    def __init__(self) -> None:
        self.names: dict[Any, str] = {}

    def record(self, cls: Node, path: str) -> Node:
        """The record of a class, or its name if it is defined already."""
        if cls in self.names:
            return self.names[cls]
        self.names[cls] = _unused(cls.__name__, self.names)
        fields = []
        for name, info, default in _fields_of(cls, path):
            here = f"{path}.{name}" if path else name
            fields.append({"name": name, **self.member(info, default, here)})
        return {"type": "record", "name": self.names[cls], "fields": fields}

    def member(self, info: Node, default: Plain, path: str) -> dict[str, Any]:
        """The type and the default of a field."""
        node = self.type(info, path)
        if default is ...:
            return {"type": node}
        if isinstance(node, list) and default is not None:
            node = [node[1], "null"]
        if default is not None:
            default = _avro_default(default, path)
        return {"type": node, "default": default}

    def type(self, info: Node, path: str) -> Node:
        """The Avro type for msgspec's description of an annotation."""
        kinds = msgspec.inspect
        while isinstance(info, kinds.Metadata) and not info.extra:
            info = info.type
        extra = {}
        if isinstance(info, kinds.Metadata):
            extra, info = info.extra or {}, info.type
        if isinstance(info, kinds.UnionType):
            others = [member for member in info.types if not isinstance(member, kinds.NoneType)]
            if len(others) != 1:
                raise _untold(path, "is a union of several types", "one column holds one")
            return ["null", self.type(others[0], path)]
        if isinstance(info, kinds.DictType | kinds.CollectionType):
            return self._items(info, path)
        if isinstance(info, kinds.StructType | kinds.DataclassType | kinds.CustomType):
            return self._class(info.cls, path)
        if isinstance(info, kinds.EnumType | kinds.LiteralType):
            return self._enum(info, path)
        if isinstance(info, kinds.DecimalType):
            return _decimal(extra, path)
        if isinstance(info, kinds.DateTimeType):
            zone = "local-" if info.tz is False else ""
            return {"type": "long", "logicalType": f"{zone}timestamp-micros"}
        for kind, node in _nodes():
            if isinstance(info, kind):
                return node
        name = builtin_type(info).__name__.removesuffix("Type").lower()
        raise _untold(path, f"is of the type {name}", "no Avro type holds it")

    def _items(self, info: Any, path: str) -> Any:
        if isinstance(info, msgspec.inspect.CollectionType):
            return {"type": "array", "items": self.type(info.item_type, f"{path}[]")}
        if not isinstance(_bare(info.key_type), msgspec.inspect.StrType):
            raise _untold(path, "is a dict whose keys are not str", "keys of maps are strings")
        return {"type": "map", "values": self.type(info.value_type, f"{path}{{}}")}

    def _class(self, cls: Any, path: str) -> Any:
        if not (hasattr(cls, "__struct_fields__") or _is_dataclass(cls) or _is_model(cls)):
            raise _untold(path, f"is of the class {cls.__name__}", "no Avro type holds it")
        return self.record(cls, path)

    def _enum(self, info: Any, path: str) -> Any:
        if isinstance(info, msgspec.inspect.LiteralType):
            symbols, name = list(info.values), re.sub(r"\W+", "_", path)
        else:
            if info.cls in self.names:
                return self.names[info.cls]
            symbols, name = [member.value for member in info.cls], info.cls.__name__
        if not all(isinstance(member, str) for member in symbols):
            raise _untold(path, "is an enum whose members are not strings", "give them strings")
        name = _unused(name, self.names)
        self.names[getattr(info, "cls", path)] = name
        return {"type": "enum", "name": name, "symbols": symbols}


def _fields_of(cls: Any, path: str) -> list[tuple[str, Any, Any]]:
    """Names, msgspec's descriptions of the types, and the defaults (... for none)."""
    if _is_model(cls):
        pydantic_fields = []
        for name, field in cls.model_fields.items():
            if not field.is_required():
                default = (
                    field.default if field.default_factory is None else _made(field.default_factory)
                )
            else:
                default = ...
            pydantic_fields.append((name, _pydantic_type(field), default))
        return pydantic_fields
    try:
        info = msgspec.inspect.type_info(cls)
    except (TypeError, NameError) as error:
        raise InvalidArgument(f"schema: {cls.__name__} cannot be inspected: {error}") from error
    if not isinstance(info, msgspec.inspect.StructType | msgspec.inspect.DataclassType):
        raise _untold(
            path, f"{cls.__name__} is not a record",
            "give a dataclass, msgspec.Struct, pydantic model, pyarrow.Schema or Schema",
        )  # fmt: skip
    fields = []
    for field in info.fields:
        default = ... if field.default is msgspec.NODEFAULT else field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = _made(field.default_factory)
        fields.append((field.encode_name, field.type, default))
    return fields


def _pydantic_type(field: Any) -> Any:
    """The type of a field of a model, with the digits of its decimals."""
    digits = {}
    for constraint in field.metadata:
        for name, word in (("max_digits", "precision"), ("decimal_places", "scale")):
            if getattr(constraint, name, None) is not None:
                digits[word] = getattr(constraint, name)
        digits |= (
            (getattr(constraint, "extra", None) or {})
            if isinstance(constraint, msgspec.Meta)
            else {}
        )
    info = msgspec.inspect.type_info(field.annotation)
    if isinstance(info, msgspec.inspect.DecimalType):
        return msgspec.inspect.Metadata(info, extra=digits)
    return info


def _made(factory: Any) -> Any:
    """The value of a default factory, if it always returns an equal one."""
    return factory() if factory in (list, dict, set, frozenset, tuple) else ...


def _avro_default(value: Any, path: str) -> Any:
    """A default of a class in the form of an Avro definition."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [_avro_default(item, path) for item in value]
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, dict):
        return {name: _avro_default(item, path) for name, item in value.items()}
    raise _untold(
        path,
        f"has a default of the class {type(value).__name__}",
        "leave it out, or give a factory",
    )


def _decimal(extra: Mapping[str, Any], path: str) -> Any:
    precision, scale = extra.get("precision"), extra.get("scale", 0)
    if precision is None:
        raise _untold(
            path, "is a Decimal without its digits",
            'write Annotated[Decimal, msgspec.Meta(extra={"precision": 12, "scale": 2})]',
        )  # fmt: skip
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


@lru_cache(maxsize=1)
def _nodes() -> tuple[tuple[Any, Any], ...]:
    kinds = msgspec.inspect
    return (
        (kinds.BoolType, "boolean"),
        (kinds.IntType, "long"),
        (kinds.FloatType, "double"),
        (kinds.StrType, "string"),
        (kinds.BytesType, "bytes"),
        (kinds.ByteArrayType, "bytes"),
        (kinds.DateType, {"type": "int", "logicalType": "date"}),
        (kinds.TimeType, {"type": "long", "logicalType": "time-micros"}),
        (kinds.UUIDType, {"type": "string", "logicalType": "uuid"}),
    )


def _bare(info: Any) -> Any:
    while isinstance(info, msgspec.inspect.Metadata):
        info = info.type
    return info


def _is_dataclass(cls: Any) -> bool:
    return hasattr(cls, "__dataclass_fields__")


def _is_model(cls: Any) -> bool:
    """Whether this is a pydantic model; if it is, pydantic is loaded already."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(cls, type) and issubclass(cls, pydantic.BaseModel)


def _unused(name: str, names: Mapping[Any, str]) -> str:
    used = set(names.values())
    candidate, n = name, 1
    while candidate in used:
        candidate, n = f"{name}_{n}", n + 1
    return candidate


def _untold(path: str, problem: str, hint: str) -> InvalidArgument:
    return InvalidArgument(
        f"schema: {f'field {path}' if path else 'the class'} {problem}", hint=hint
    )


def is_record(value: object) -> bool:
    """Whether a value may be a record: a dict, or an instance of a class for `schema_of`."""
    cls = type(value)
    is_class = hasattr(cls, "__struct_fields__") or _is_dataclass(cls) or _is_model(cls)
    return is_class or isinstance(value, dict)


def plain(type: Type, value: object, form: Form, path: str = "") -> Plain:
    """The plain form of a caller's value; raises Misfit with the field, its value and its type."""
    if value is None and type.nullable:
        return None
    if type.kind == "record":
        return _plain_record(type, value, form, path)
    if type.items is not None:
        return _plain_items(type, value, form, path)
    if isinstance(value, Enum) and type.kind in ("enum", "string"):
        value = value.value
    leaf = _plain_leaf(type, value, form)
    if leaf is None:
        text = "" if value is None else f" {value!r}"
        text = text if len(text) <= 60 else f"{text[:60]}…"
        name = "null" if value is None else builtin_type(value).__name__
        raise Misfit(path, f"is {name}{text}, it must be {_wanted(type)}")
    return leaf


def _wanted(type: Type) -> str:
    word = _PYTHON.get(type.logical or type.kind)
    return f"{word}, or {type.words.rpartition(', as ')[2]}" if word else type.words


_PYTHON: Final = {
    "date": "a date",
    "time-millis": "a time without microseconds",
    "time-micros": "a time",
    "timestamp-millis": "a datetime with a time zone, without microseconds",
    "timestamp-micros": "a datetime with a time zone",
    "local-timestamp-millis": "a datetime without a time zone and microseconds",
    "local-timestamp-micros": "a datetime without a time zone",
    "decimal": "a Decimal",
}


def _plain_record(type: Type, value: object, form: Form, path: str) -> Any:
    if isinstance(value, Mapping):
        members_given: Mapping[str, Any] = value
    else:
        cls: Any = builtin_type(value)
        members = _members(cls)
        if members is None:
            raise Misfit(
                path,
                f"is {builtin_type(value).__name__}, it must be a dict or an instance of a class",
            )
        members_given = {name: getattr(value, attribute) for name, attribute in members}
    out = {}
    for field in type.fields:
        here = f"{path}.{field.name}" if path else field.name
        if field.name in members_given:
            out[field.name] = plain(field.type, members_given[field.name], form, here)
        elif field.is_needed:
            raise Misfit(here, "is missing and has no default")
        else:
            out[field.name] = of_default(field.type, field.default, form)
    if len(members_given) > len(out) or any(name not in out for name in members_given):
        name = next(str(field) for field in members_given if field not in out)
        near = nearest(name, list(out))
        like = f"; did you mean {near}?" if near else ""
        raise Misfit(f"{path}.{name}" if path else name, f"is no field of the schema{like}")
    return out


def of_default(type: Type, default: Plain, form: Form) -> Plain:
    """A plain default in the encoding of `form`."""
    if default is None:
        return None
    if type.logical == "decimal":
        return form.plain_decimal(type, default)
    if type.kind == "record":
        return {item.name: of_default(item.type, default[item.name], form) for item in type.fields}
    if type.items is not None:
        items = type.items
        if type.kind == "array":
            return [of_default(items, item, form) for item in default]
        return {name: of_default(items, item, form) for name, item in default.items()}
    return default


@lru_cache(maxsize=1024)
def _members(cls: Hashable) -> tuple[tuple[str, str], ...] | None:
    """The names of a class's fields, and of the attributes that hold them."""
    if hasattr(cls, "__struct_fields__"):
        encoded: Any = cls
        return tuple(zip(encoded.__struct_encode_fields__, encoded.__struct_fields__, strict=True))
    for is_one, names in ((_is_dataclass, "__dataclass_fields__"), (_is_model, "model_fields")):
        if is_one(cls):
            return tuple((name, name) for name in getattr(cls, names))
    return None


def _plain_items(type: Type, value: object, form: Form, path: str) -> Any:
    assert type.items is not None
    items = type.items
    if type.kind == "array" and isinstance(value, list | tuple | set | frozenset):
        return [plain(items, item, form, f"{path}[]") for item in value]
    if type.kind == "map" and isinstance(value, Mapping):
        if not all(isinstance(item, str) for item in value):
            raise Misfit(path, "has a key that is not a string")
        return {name: plain(items, item, form, f"{path}{{}}") for name, item in value.items()}
    name = "null" if value is None else builtin_type(value).__name__
    raise Misfit(path, f"is {name}, it must be {type.words}")


def _plain_leaf(type: Type, value: Any, form: Form) -> Any:
    """The plain value, or None if it does not fit."""
    kind = type.kind
    if type.logical == "decimal":
        return _plain_decimal(type, value, form)
    if type.limits is not None:
        low, high = type.limits
        whole = _whole(type, value)
        return whole if whole is not None and low <= whole <= high else None
    if kind in ("float", "double"):
        return _plain_float(type, value, form)
    if kind in ("bytes", "fixed"):
        if not isinstance(value, bytes | bytearray | memoryview):
            return None
        data = bytes(value)
        return data if kind == "bytes" or len(data) == type.size else None
    if kind == "boolean":
        return value if isinstance(value, bool) else None
    if type.logical == "uuid" and isinstance(value, UUID):
        return str(value)
    if not isinstance(value, str) or not _is_utf8(value):
        return None
    if type.logical == "uuid" and UUID_TEXT.match(value) is None:
        return None
    return value if kind != "enum" or value in type.symbols else None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _plain_float(type: Type, value: Any, form: Form) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    if not math.isfinite(number):
        return number if form.has_infinity else None
    return number if abs(number) <= FLOAT_MAX[type.kind] else None


def _plain_decimal(type: Type, value: Any, form: Form) -> Any:
    if isinstance(value, bool) or not isinstance(value, Decimal | int):
        return None
    if isinstance(value, Decimal) and not value.is_finite():
        return None
    sign, digits, exponent = Decimal(value).as_tuple()
    assert isinstance(exponent, int)
    shift = exponent + type.scale
    if len(digits) + shift > type.precision + 1 or shift < -len(digits):
        is_zero = not any(digits)
        if not is_zero:
            return None
        digits, shift = (0,), 0
    whole = int("".join(map(str, digits)))
    if shift >= 0:
        whole *= 10**shift
    else:
        whole, remainder = divmod(whole, 10**-shift)
        if remainder:
            return None
    if whole >= 10**type.precision:
        return None
    return form.plain_decimal(type, decimal_of(-whole if sign else whole, type.scale))


def _whole(type: Type, value: Any) -> int | None:
    """The integer for a number, a date, a time or an instant; None if it does not convert."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int) or (not isinstance(value, float) and hasattr(value, "__index__")):
        return operator.index(value)
    logical = type.logical
    if logical == "date":
        is_day = isinstance(value, dt.date) and not isinstance(value, dt.datetime)
        return value.toordinal() - _EPOCH_DAY if is_day else None
    if logical.startswith("time-"):
        if not isinstance(value, dt.time) or value.tzinfo is not None:
            return None
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        micros = seconds * 1_000_000 + value.microsecond
    elif isinstance(value, dt.datetime) and logical:
        is_local = logical.startswith("local-")
        if (value.tzinfo is None) != is_local:
            return None
        micros = (value - (_EPOCH if is_local else _EPOCH_UTC)) // _MICROSECOND
    else:
        return None
    if logical.endswith("micros"):
        return micros
    return None if micros % 1000 else micros // 1000


def natural(type: Type, value: Plain, form: Form) -> Plain:
    """The caller's form of a plain value: like Arrow's `as_py`, but a map is a dict.

    raises: Misfit: the value is not of its type; bytes of Avro can contain such values
    """
    if value is None:
        return None
    if type.kind == "record":
        columns = [items[0] for items in form.columns_of(type, [value])]
        names = [field.name for field in type.fields]
        types = [field.type for field in type.fields]
        return dict(zip(names, _each(names, types, columns, form), strict=True))
    if type.kind == "array":
        return _each([f"[{n}]" for n in range(len(value))], repeat(type.items), value, form)
    if type.kind == "map":
        items_found = _each(repeat("{}"), repeat(type.items), value.values(), form)
        return dict(zip(value, items_found, strict=True))
    return _natural_leaf(type, value, form)


def _each(
    names: Iterable[str], types: Iterable[Any], values: Iterable[Any], form: Form
) -> list[Any]:
    results = []
    for name, type, value in zip(names, types, values):  # noqa: B905
        try:
            results.append(natural(type, value, form))
        except Misfit as error:
            raise error.below(name) from error
    return results


def _natural_leaf(type: Type, value: Any, form: Form) -> Any:
    if type.logical == "decimal":
        return form.decimal(type, value)
    if type.limits is not None:
        low, high = type.limits
        if not low <= value <= high:
            raise Misfit("", f"is {value}, it must be {type.words}")
        return _natural_instant(type.logical, value)
    if type.kind == "float":
        return struct.unpack("<f", struct.pack("<f", value))[0]
    if type.logical == "uuid" and UUID_TEXT.match(value) is None:
        raise Misfit("", f"is not a UUID, it must be {type.words}")
    return value


def _natural_instant(logical: str, value: Any) -> Any:
    if logical == "date":
        return dt.date.fromordinal(value + _EPOCH_DAY)
    if logical.startswith("time-"):
        micros = value if logical == "time-micros" else value * 1000
        return (_EPOCH + dt.timedelta(microseconds=micros)).time()
    if logical.startswith(("timestamp-", "local-timestamp-")):
        micros = value if logical.endswith("micros") else value * 1000
        start = _EPOCH if logical.startswith("local-") else _EPOCH_UTC
        return start + dt.timedelta(microseconds=micros)
    return value


def instance(record: dict[str, Any], cls: type[T]) -> T:
    """Make an instance of a class from a record; raises InvalidArgument."""
    if cls is dict:
        return record  # type: ignore[return-value]
    try:
        if _is_model(cls):
            return cls.model_validate(record)  # type: ignore[attr-defined,no-any-return]
        return msgspec.convert(record, cls)
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InvalidArgument(f"the record does not fit {cls.__name__}: {reason}") from error

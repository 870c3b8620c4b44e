"""Classes of the caller: their schemas, their instances as values, and values as instances."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
from decimal import Decimal
from typing import Annotated, Any, Literal, Optional
from uuid import UUID

import msgspec
import pyarrow as pa
import pydantic
import pytest

from tests.harness import python, run
from txlog.base.schemas import values
from txlog.base.schemas.classes import is_record, schema_of
from txlog.base.schemas.schema import Schema
from txlog.errors import InvalidArgument, InvalidMessage

Price = Annotated[Decimal, msgspec.Meta(extra={"precision": 9, "scale": 2})]


class Kind(enum.Enum):
    PLAIN = "plain"
    FANCY = "fancy"


@dataclasses.dataclass
class Seat:
    row: int
    letter: str = "A"


@dataclasses.dataclass
class Booking:
    id: UUID
    at: dt.datetime
    day: dt.date
    time: dt.time
    price: Price
    kind: Kind
    seats: list[Seat]
    size: Literal["S", "M"] = "M"
    best: Seat | None = None
    raw: bytes = b"\xff"
    tags: dict[str, float] = dataclasses.field(default_factory=dict)
    is_paid: bool = False


class BookingStruct(msgspec.Struct):
    id: UUID
    at: dt.datetime
    day: dt.date
    time: dt.time
    price: Price
    kind: Kind
    seats: list[Seat]
    size: Literal["S", "M"] = "M"
    best: Optional[Seat] = None  # noqa: UP045
    raw: bytes = b"\xff"
    tags: dict[str, float] = {}
    is_paid: bool = False


class SeatModel(pydantic.BaseModel):
    row: int
    letter: str = "A"


class BookingModel(pydantic.BaseModel):
    id: UUID
    at: dt.datetime
    day: dt.date
    time: dt.time
    price: Decimal = pydantic.Field(max_digits=9, decimal_places=2)
    kind: Kind
    seats: list[SeatModel]
    size: Literal["S", "M"] = "M"
    best: SeatModel | None = None
    raw: bytes = b"\xff"
    tags: dict[str, float] = pydantic.Field(default_factory=dict)
    is_paid: bool = False


def booking(cls: Any, seat: Any) -> Any:
    return cls(
        id=UUID(int=7),
        at=dt.datetime(2013, 1, 1, 5, 15, 0, 123456, dt.timezone(dt.timedelta(hours=1))),
        day=dt.date(2013, 1, 1),
        time=dt.time(23, 59, 59, 999999),
        price=Decimal("12.5"),
        kind=Kind.FANCY,
        seats=[seat(row=1), seat(row=2, letter="B")],
        tags={"x": 1.0},
    )


CLASSES = [(Booking, Seat), (BookingStruct, Seat), (BookingModel, SeatModel)]


@pytest.mark.parametrize("type", ["json", "avro"])
@pytest.mark.parametrize(("cls", "seat"), CLASSES, ids=["dataclass", "msgspec", "pydantic"])
def test_an_instance_comes_back_as_it_was(type: str, cls: Any, seat: Any) -> None:
    schema = schema_of(cls, type)
    assert schema.type == type
    given_booking = booking(cls, seat)
    value = values.encode_one(schema, given_booking)
    assert values.decode_one(schema, value, cls) == given_booking
    assert values.invalid(schema, pa.array([value], pa.binary())) == []
    assert is_record(given_booking)


def test_classes_with_the_same_fields_have_the_same_columns() -> None:
    schemas = [schema_of(cls) for cls, _ in CLASSES]
    assert schemas[0].arrow == schemas[1].arrow == schemas[2].arrow
    assert len({schema.fingerprint for schema in schemas}) == 1
    assert str(schemas[0].arrow.field("at").type) == "timestamp[us, tz=UTC]"
    node = json.loads(schemas[0].definition)
    assert node["name"] == "Booking"
    assert [schema.get("default", ...) for schema in node["fields"]][7:] == [
        "M",
        None,
        "\xff",
        {},
        False,
    ]


def test_a_class_used_twice_is_defined_once() -> None:
    @dataclasses.dataclass
    class Pair:
        left_seat: Seat
        right: Seat
        kind: Kind
        other: Kind

    assert schema_of(Pair).definition.count('"letter"') == 1
    assert schema_of(Pair).definition.count('"plain"') == 1


def test_other_names_in_values_are_kept() -> None:
    class Renamed(msgspec.Struct, rename="camel"):
        row_number: int

    schema = schema_of(Renamed)
    value = values.encode_one(schema, Renamed(7))
    assert value == b'{"rowNumber":7}'
    assert values.decode_one(schema, value, Renamed) == Renamed(7)


def test_an_arrow_schema_and_a_schema_are_taken_as_they_are() -> None:
    arrow = pa.schema([("a", pa.int32())])
    schema = schema_of(arrow, "avro")
    assert (schema.type, schema.arrow) == ("avro", pa.struct(list(arrow)))
    assert schema_of(schema.arrow, "avro") == schema
    assert schema_of(schema, "json") is schema


class Many(msgspec.Struct):
    a: int | str


class Loose(msgspec.Struct):
    a: Decimal


class Keys(msgspec.Struct):
    a: dict[int, int]


class Anything(msgspec.Struct):
    a: list[Any]


class Numbered(enum.Enum):
    ONE = 1


class Wrong(msgspec.Struct):
    a: Numbered


class Inner(msgspec.Struct):
    b: complex


class Deep(msgspec.Struct):
    a: list[Inner]


@dataclasses.dataclass
class Node:
    left: Optional[Node]  # noqa: UP045


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (Many, "schema: field a is a union of several types"),
        (Loose, "schema: field a is a Decimal without its digits"),
        (Keys, "schema: field a is a dict whose keys are not str"),
        (Anything, "schema: field a[] is of the type any"),
        (Wrong, "schema: field a is an enum whose members are not strings"),
        (Deep, "schema: field a[].b is of the class complex"),
        (Node, "schema: field left contains its own record Node"),
        (int, "schema: the class int is not a record"),
        (7, "no schema can be made from int"),
        ("{}", "no schema can be made from str"),
    ],
)
def test_a_class_that_no_column_holds_is_refused(given: object, reason: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        schema_of(given)
    assert str(raised.value).startswith(reason)


def test_invalid_record_is_refused_with_its_field() -> None:
    schema = schema_of(Booking)
    good = booking(Booking, Seat)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"at": dt.datetime(2013, 1, 1)}, "at is datetime datetime.datetime(2013, 1, 1, 0, 0), it"),  # noqa: DTZ001
        ({"day": good.at}, "day is datetime"),
        ({"price": Decimal("0.001")}, "price is Decimal Decimal('0.001'), it must be a Decimal"),
        ({"price": Decimal("10000000")}, "price is Decimal"),
        ({"price": 0.5}, "price is float 0.5, it must be a Decimal, or a decimal number with up"),
        ({"kind": "odd"}, "kind is str 'odd', it must be one of plain, fancy"),
        ({"seats": [Seat(1), Seat("x")]}, "seats[].row is str 'x', it must be an integer of 64"),  # type: ignore[arg-type]
        ({"seats": [Seat(1 << 63)]}, "seats[].row is int 9223372036854775808, it must be"),
        ({"seats": [7]}, "seats[] is int, it must be a dict or an instance of a class"),
        ({"tags": {"x": float("nan")}}, "tags{} is float nan, it must be a number"),
        ({"tags": {1: 1.0}}, "tags has a key that is not a string"),
        ({"is_paid": 1}, "is_paid is int 1, it must be true or false"),
        ({"day": None}, "day is null, it must be a date, or days since 1970"),
    ]
    for change, reason in wrong:
        with pytest.raises(InvalidMessage) as raised:
            values.encode_one(schema, dataclasses.replace(good, **change))
        assert str(raised.value).startswith(reason), str(raised.value)
    with pytest.raises(InvalidMessage, match=r"rwo is no field of the schema; did you mean row\?"):
        values.encode_one(schema_of(Seat), {"row": 1, "rwo": 2})
    with pytest.raises(InvalidMessage, match="row is missing and has no default"):
        values.encode_one(schema_of(Seat), {})
    with pytest.raises(InvalidMessage, match="the value is int, it must be a dict or an instance"):
        values.encode_one(schema_of(Seat), 7)


def test_record_of_another_class_is_refused() -> None:
    schema = schema_of(pa.schema([("row", pa.string())]))
    for cls in (Seat, SeatModel):
        with pytest.raises(InvalidArgument, match=f"the record does not fit {cls.__name__}: .*row"):
            values.decode_one(schema, b'{"row":"x"}', cls)


def test_numbers_are_encoded_exactly_or_refused() -> None:
    node = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}
    text = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": node}]})
    for type in ("json", "avro"):
        schema = Schema.parse(type, text)
        for digits in ("0", "-0.01", "9" * 36 + ".99", "1E+35", "0E-90", "-1.10", "127", "-128"):
            value = values.encode_one(schema, {"a": Decimal(digits)})
            assert values.decode_one(schema, value)["a"] == Decimal(digits)
        for digits in ("0.001", "1E+36", "NaN", "Infinity", "1E+999999", "1E-999999"):
            with pytest.raises(InvalidMessage):
                values.encode_one(schema, {"a": Decimal(digits)})


def test_nothing_heavy_is_loaded_before_it_is_needed() -> None:
    """JSON values need neither pydantic nor fastavro; no value needs DuckDB."""
    done = run(python("values"))
    assert (done.stdout, done.stderr) == ("[]\n['fastavro']\n", "")

"""Random schemas: txlog's ways to read a value agree with each other and with an independent
oracle.
"""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from tests.schemas.random_records import (
    Wrong,
    by_other_means,
    random_schema,
    random_value,
    spoiled,
)
from tests.tiers import graded
from txlog.base.schemas import forms, values
from txlog.base.schemas.schema import Schema
from txlog.errors import InvalidMessage

SEEDS = graded(range(300), 12)
TYPES = ("json", "avro")


def same(first: object, other: object) -> bool:
    """Equality that tells the signs of zero apart, and in which NaN equals itself."""
    if isinstance(first, dict) and isinstance(other, dict):
        return list(first) == list(other) and all(same(first[name], other[name]) for name in first)
    if isinstance(first, list) and isinstance(other, list):
        return len(first) == len(other) and all(map(same, first, other))
    if isinstance(first, float) and isinstance(other, float):
        is_one = math.copysign(1, first) == math.copysign(1, other) and first == other
        return is_one or (math.isnan(first) and math.isnan(other))
    return type(first) is type(other) and first == other


def shown(records: pa.Array) -> list[Any]:
    rows: list[Any] = records.to_pylist(maps_as_pydicts="strict")
    return rows


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("seed", SEEDS)
def test_encoded_value_is_decoded_in_every_way(type: str, seed: int) -> None:
    random = Random(f"{seed} {type}")
    schema = random_schema(random, type)
    records = [random_value(random, schema.record) for _ in range(8)]
    data = [values.encode_one(schema, record) for record in records]
    column = pa.array([*data, None, *data], pa.binary()).slice(1)
    assert values.invalid(schema, column) == []
    decoded = values.decode(schema, column)
    assert decoded.type == schema.arrow
    decoded.validate(full=True)
    assert same(shown(decoded), [*records, None, *records][1:]), schema.definition
    for record, value in zip(records, data, strict=True):
        assert same(values.decode_one(schema, value), record), schema.definition
        assert same(by_other_means(schema, value), record), (schema.definition, value)
    rewritten, kept_rows = values.written(schema, decoded)
    assert rewritten.equals(column)
    assert same(shown(kept_rows), shown(decoded)), schema.definition
    # a slice, whose buffers begin at an offset
    part, remaining_rows = values.written(schema, decoded.slice(3, 7))
    assert part.equals(column.slice(3, 7))
    assert same(shown(remaining_rows), shown(values.decode(schema, part))), schema.definition
    chunked = pa.chunked_array([column.slice(0, 5), column.slice(5, 0), column.slice(5)])
    assert values.decode(schema, chunked).combine_chunks().equals(decoded)


@pytest.mark.parametrize("seed", SEEDS)
def test_json_is_a_record_exactly_if_the_oracle_accepts_it(seed: int) -> None:
    """Guards against a lax reader: 1.7 for an integer, a trailing comma, a missing field."""
    random = Random(f"{seed} spoiled")
    schema = random_schema(random, "json")
    data = []
    for _ in range(40):
        record = json.loads(values.encode_one(schema, random_value(random, schema.record)))
        text = json.dumps(spoiled(random, record), ensure_ascii=random.random() < 0.5)
        data.append(damaged(random, text.encode()) if random.random() < 0.3 else text.encode())
    check(schema, data)


@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_avro_is_reported_or_readable(seed: int) -> None:
    random = Random(f"{seed} avro")
    schema = random_schema(random, "avro")
    whole = [values.encode_one(schema, random_value(random, schema.record)) for _ in range(40)]
    data = [damaged(random, data_item) for data_item in whole]
    invalid = dict(values.invalid(schema, pa.array(data, pa.binary())))
    good = [data_item for row, data_item in enumerate(data) if row not in invalid]
    records = shown(values.decode(schema, pa.array(good, pa.binary())))
    assert same(records, [values.decode_one(schema, data_item) for data_item in good])
    for row, reason in invalid.items():
        with pytest.raises(InvalidMessage) as raised:
            values.decode_one(schema, data[row])
        assert str(raised.value) == reason


def check(schema: Schema, data: list[bytes]) -> None:
    invalid = dict(values.invalid(schema, pa.array(data, pa.binary())))
    expected: list[Any] = []
    for row, txn_state in enumerate(data):
        try:
            record = by_other_means(schema, txn_state)
        except Wrong:
            assert row in invalid, (schema.definition, txn_state)
        else:
            assert row not in invalid, (schema.definition, txn_state, invalid[row])
            expected.append(record)
    good = [txn_state for row, txn_state in enumerate(data) if row not in invalid]
    results = shown(values.decode(schema, pa.array(good, pa.binary())))
    assert same(results, expected), schema.definition


def damaged(random: Random, data: bytes) -> bytes:
    """Bytes with a random cut, change or insertion, or a truncated end."""
    position = random.randrange(len(data) + 1)
    new = random.choice(b'\x00\x01\x7f\x80\xff{}[],:"\\ \n.-0e')
    return random.choice(
        [
            data[:position] + data[position + 1 :],
            data[:position] + bytes([new]) + data[position + 1 :],
            data[:position] + bytes([new]) + data[position:],
            data[:position],
            data + bytes([new]),
        ]
    )


@pytest.mark.parametrize(
    "text",
    [
        *('{"a": 1,}', '{"a": 01}', '{"a": 1}}', '{"a": 1} {"a": 1}', '{"a": +1}', "{'a': 1}"),
        *('{"a": 1.0}', '{"a": 1e2}', '{"a": NaN}', '{"a": 1, "x": NaN}', '{"a": 1, "x": [1,]}'),
        *(
            '{"a": 1, "x": "\\ud800"}',
            '{"a": 1, "x": "\\q"}',
            '{"a": 1, "a": "x"}',
            "",
            " ",
            "null",
        ),
        *("[]", '"a"', '\ufeff{"a": 1}', '{"a": true}', '{"a": "1"}', "{}", '{"A": 1}', '{"a": 1'),
        '{"a": 1, "x": ' + "[" * 100 + "]" * 100 + "}",
    ],
)
def test_values_that_only_look_like_records(text: str) -> None:
    schema = Schema.parse("json", ONE)
    column = pa.array([text.encode()], pa.binary())
    assert [row for row, _ in values.invalid(schema, column)] == [0]


ONE = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'


@pytest.mark.parametrize(
    "text",
    [
        *(' {"a":\n1 } ', '{"a": 1, "a": 2}', '{"\\u0061": -0}', '{"a": 1, "x": 1e999}'),
        *('{"a": 1, "x": "[{"}', '{"a": 1, "x": {"a": [null, false]}}'),
        '{"a": 1, "x": ' + "[" * 99 + "]" * 99 + "}",
        '{"a": 1, "x": "' + "[" * 500 + '"}',
        '{"a": 1, "x": [' + "[]," * 500 + '"]["]}',
    ],
)
def test_records_that_look_invalid(text: str) -> None:
    schema = Schema.parse("json", ONE)
    column = pa.array([text.encode()], pa.binary())
    assert values.invalid(schema, column) == []
    assert shown(values.decode(schema, column)) == [
        json.loads(text) and {"a": json.loads(text)["a"]}
    ]


def test_values_with_newlines_are_not_taken_for_several() -> None:
    """Many values are read at once as lines.

    Guards against one value that is read as two lines, and two that are read as one.
    """
    schema = Schema.parse("json", ONE)
    data = [b'{"a": 1}\n{"a": 2}', b'{"a":', b" 3}", b'\n{"a": 4}\n', b"\n"]
    assert [row for row, _ in values.invalid(schema, pa.array(data, pa.binary()))] == [0, 1, 2, 4]


def test_bytes_that_are_not_utf8_are_refused_even_outside_of_fields() -> None:
    schema = Schema.parse("json", ONE)
    data = [b'{"a": 1, "\xff": 2}', b'{"a": 1, "x": "\xed\xa0\x80"}']
    invalid = values.invalid(schema, pa.array(data, pa.binary()))
    assert invalid == [
        (0, "the value is not UTF-8 from byte 10 on"),
        (1, "the value is not UTF-8 from byte 15 on"),
    ]


@pytest.mark.parametrize(
    "text", ["[" * 5 + "]" * 5, '{"a":' * 50 + "1" + "}" * 50, "[{}, [[]], []]"]
)
@pytest.mark.parametrize("levels", [99, 100, 101])
def test_nesting_is_counted_exactly(text: str, levels: int) -> None:
    """Guards against a count that treats brackets in strings, or siblings, as levels."""
    own_largest = max(
        text[:n].count("[") + text[:n].count("{") - text[:n].count("]") - text[:n].count("}")
        for n in range(len(text) + 1)
    )
    around = levels - own_largest
    data = "[" * around + text + "]" * around
    noisy = '["' + "[" * 200 + '",' + data[1:] if around else data
    assert forms.is_deep(data.encode()) == (levels > 100)
    assert forms.is_deep(noisy.encode()) == (levels > 100)
    hidden = '["]\\"",' * (levels - 1) + "[]" + ',"["]' * (levels - 1)
    json.loads(hidden)
    assert forms.is_deep(hidden.encode()) == (levels > 100)

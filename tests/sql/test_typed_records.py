"""Records of one version read as another: SQL agrees with Arrow after any change of the schema."""

from __future__ import annotations

import json
from random import Random

import pyarrow as pa
import pytest

from tests.schemas.random_records import random_schema, random_successor, random_value
from tests.tiers import graded
from txlog.base.schemas import resolution, values
from txlog.base.schemas.schema import Schema
from txlog.engine.folds.catalog import SchemaVersion
from txlog.lake.sql.duck import Session
from txlog.lake.sql.records import record_of


@pytest.mark.parametrize("seed", graded(range(300), 12))
def test_sql_resolves_records_as_arrow_does(seed: int) -> None:
    """Random versions, each a change of the one before: casts, defaults, symbols, nested ones."""
    random = Random(seed)
    written = random_schema(random, "json")
    changed = random_successor(random, json.loads(written.definition))
    newest = Schema.parse("json", json.dumps(changed))
    records = [random_value(random, written.record) for _ in range(7)]
    data = [values.encode_one(written, record) for record in records]
    column = values.decode(written, pa.array([None, *data], pa.binary()))
    resolved = _by_sql(column, written, newest)
    expected = resolution.resolved(column, written, newest)
    assert resolved == expected.to_pylist(maps_as_pydicts="strict")


def test_text_that_looks_escaped_becomes_its_own_bytes() -> None:
    written, newest = (
        Schema.parse("json", json.dumps({"type": "record", "name": "R", "fields": [
            {"name": "a", "type": kind}]}))
        for kind in ("string", "bytes")
    )  # fmt: skip
    texts = ["\\x41", "€", "", "\\", "\0"]
    column = pa.array([{"a": text} for text in texts], written.arrow)
    assert _by_sql(column, written, newest) == [{"a": text.encode()} for text in texts]


def _by_sql(column: pa.StructArray, written: Schema, newest: Schema) -> list[object]:
    versions = tuple(
        SchemaVersion(number, schema.type, schema.definition, 0)
        for number, schema in enumerate((written, newest), 1)
    )
    with Session() as session:
        session.register("rows", pa.table({"record": column}))
        sql = f"SELECT {record_of(1, versions, 2, 'record')} AS record FROM rows"
        table = pa.Table.from_batches(session.stream(sql))
    target = pa.field("record", newest.arrow)
    return list(table.cast(pa.schema([target])).column(0).to_pylist(maps_as_pydicts="strict"))

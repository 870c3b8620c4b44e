"""Encode and decode a value of each type; print which of the heavy libraries that loads."""

from __future__ import annotations

import sys

import pyarrow as pa

from txlog.base.schemas import values
from txlog.base.schemas.classes import schema_of

for kind in ("json", "avro"):
    schema = schema_of(pa.schema([("a", pa.int32())]), kind)
    value = values.encode_one(schema, {"a": 1})
    assert values.decode(schema, pa.array([value])).to_pylist() == [{"a": 1}]
    print(sorted({"fastavro", "pydantic", "duckdb", "numpy", "pandas"} & set(sys.modules)))

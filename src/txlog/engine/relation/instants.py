"""Owns instants in the form of DuckDB and Delta: in microseconds, where far instants become
infinite.

It imports neither: a stream that writes such instants needs no DuckDB.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from txlog.base.ranges import SQL_MS_MAX, SQL_MS_MIN
from txlog.base.startup import compute as pc

_ENDLESS: Final = (1 << 63) - 1  # in us, DuckDB's infinity


def bounded(table: pa.Table) -> pa.Table:
    """The table with all instants in DuckDB's form: in microseconds, or infinite."""
    for at, field in enumerate(table.schema):
        if not pa.types.is_timestamp(field.type) or field.type.unit != "ms":
            continue
        ms = table.column(at).cast(pa.int64())
        ends = pc.min_max(ms).as_py()
        if ends["min"] is None or (ends["min"] >= SQL_MS_MIN and ends["max"] <= SQL_MS_MAX):
            continue
        within = pc.min_element_wise(
            pc.max_element_wise(ms, SQL_MS_MIN, skip_nulls=False), SQL_MS_MAX, skip_nulls=False
        )
        us = pc.if_else(pc.greater(ms, SQL_MS_MAX), _ENDLESS, pc.multiply(within, 1000))
        us = pc.if_else(pc.less(ms, SQL_MS_MIN), -_ENDLESS, us)
        kind = pa.timestamp("us", field.type.tz)
        table = table.set_column(at, pa.field(field.name, kind, field.nullable), us.cast(kind))
    return table

"""The columns of a stored row, and the one way to bring a table into their shape.

Partition and sidecar files, parts, sealed and adopted files share this one schema, so that one
scan can read them all. A file may lack columns: an absent column reads as null.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

KIND_DATA: Final = 0
INSTANT = pa.timestamp("ms", "UTC")
PROPERTY_MAP = pa.map_(pa.string(), pa.string())

# Nullability is not declared: a table made elsewhere from the same columns must concatenate with
# one read from a file, and pyarrow compares the flag.
MESSAGE = pa.schema(
    [
        ("kind", pa.int8()),
        ("entry", pa.int64()),
        ("lsn", pa.int64()),  # null in adopted files: the manifest holds it for the whole file
        ("publish_time", INSTANT),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("properties", PROPERTY_MAP),
        ("event_time", INSTANT),
        ("deliver_at", INSTANT),
        ("producer", pa.string()),
        ("sequence_id", pa.int64()),
        ("txn_most", pa.int64()),
        ("txn_least", pa.int64()),
        ("txn_index", pa.int32()),
        ("count", pa.int32()),  # of a marker: the messages of its transaction
        ("marker_ledger", pa.int64()),
        ("marker_entry", pa.int64()),
        ("visible_time", INSTANT),
    ]
)


def conform(table: pa.Table, schema: pa.Schema = MESSAGE) -> pa.Table:
    """The table with exactly the columns of `schema`, in order; what is absent is null.

    Columns that `schema` does not name are dropped: a later version may have written them.
    """
    if table.schema.equals(schema, check_metadata=True):
        return table
    columns = []
    for field in schema:
        at = table.schema.get_field_index(field.name)
        if at < 0:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        column = table.column(at)
        columns.append(column if column.type.equals(field.type) else column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)

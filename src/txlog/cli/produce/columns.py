"""Owns what the flags of `produce` add to the records of its input, column by column.

What a record says itself counts. Its deliver_at and deliver_after are one thing: a flag gives a
delivery to the records that have neither.
"""

from __future__ import annotations

import pyarrow as pa

from txlog.cli.produce.request import Request
from txlog.startup import compute as pc

_PROPERTY_MAP = pa.map_(pa.string(), pa.string())
_INSTANT = pa.timestamp("ms", "UTC")
_MS = pa.int64()


def filled(request: Request, table: pa.Table, sent: int) -> pa.Table:
    """The columns to send: those of the input, filled up with those of the flags.

    sent: how many records went before these; --seq-from counts on from there
    """
    count = len(table)
    columns: dict[str, pa.Array] = {"value": table["value"]}
    fills = {"key": (request.key, pa.binary()), "event_time": (request.event_time, _INSTANT)}
    for name, (fill, kind) in fills.items():
        _add(columns, name, _filled(table, name, fill, kind))
    for name, column in _deliveries(request, table).items():
        _add(columns, name, column)
    given = table["properties"] if "properties" in table.column_names else None
    if request.properties:
        flags = list(request.properties.items())
        if given is None:
            columns["properties"] = pa.repeat(pa.scalar(flags, _PROPERTY_MAP), count)
        else:
            merged = [{**request.properties, **dict(own or ())} for own in given.to_pylist()]
            columns["properties"] = pa.array([list(m.items()) for m in merged], _PROPERTY_MAP)
    elif given is not None:
        columns["properties"] = given
    if request.partition is not None:
        columns["partition"] = pa.repeat(pa.scalar(request.partition, pa.int32()), count)
    elif request.keep_partition and "partition" in table.column_names:
        columns["partition"] = table["partition"]
    if request.sequence_from is not None:
        first = request.sequence_from + sent
        columns["sequence_id"] = pa.array(range(first, first + count), pa.int64())
    elif request.keep_sequence and "sequence_id" in table.column_names:
        columns["sequence_id"] = table["sequence_id"]
    return pa.table(columns)


def _add(columns: dict[str, pa.Array], name: str, column: pa.Array | None) -> None:
    if column is not None:
        columns[name] = column


def _filled(
    table: pa.Table, name: str, fill: bytes | int | None, kind: pa.DataType
) -> pa.Array | None:
    """A column of the input with its nulls filled; None: there is neither."""
    column = table[name] if name in table.column_names else None
    if fill is None:
        return column
    scalar = pa.scalar(fill, kind)
    return pa.repeat(scalar, len(table)) if column is None else pc.coalesce(column, scalar)


def _deliveries(request: Request, table: pa.Table) -> dict[str, pa.Array | None]:
    """The columns deliver_at and deliver_after."""
    fills = {"deliver_at": (request.deliver_at, _INSTANT),
             "deliver_after": (request.deliver_after_ms, _MS)}  # fmt: skip
    given = {name: table[name] if name in table.column_names else None for name in fills}
    says = [column.is_valid() for column in given.values() if column is not None]
    for name, (fill, kind) in fills.items():
        if fill is None:
            continue
        if not says:
            given[name] = pa.repeat(pa.scalar(fill, kind), len(table))
            continue
        is_said = says[0] if len(says) == 1 else pc.or_(*says)
        column = given[name] if given[name] is not None else pa.nulls(len(table), kind)
        given[name] = pc.if_else(is_said, column, pa.scalar(fill, kind))
    return given

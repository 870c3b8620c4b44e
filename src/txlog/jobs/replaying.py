"""Owns what a replayed message is: the same message, with the place it came from as a property."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from txlog.api.client import Client
from txlog.engine.model.schema import PROPERTY_MAP
from txlog.errors import CommandFailed
from txlog.jobs.loads import KEPT, PROPERTY, Transform
from txlog.jobs.rows import as_message
from txlog.relation.relation import Content
from txlog.relation.scans import scans_of
from txlog.startup import compute as pc

_READ: Final = ["topic", "message_id", *KEPT]


class Replayed:
    """The messages of a content as they are sent again, batch by batch; read: how many were."""

    def __init__(self, client: Client, content: Content, function: Transform | None) -> None:
        self._client = client
        self._relation = content.relation
        self._function = function
        self.read = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for scan in scans_of(self._relation):
            for table in self._client._scanned(scan, _READ):
                if not table.num_rows:
                    continue
                self.read += table.num_rows
                sent = table.select(list(KEPT)).set_column(
                    KEPT.index("properties"), "properties", _with_source(table)
                )
                for batch in self._changed(sent).to_batches():
                    yield as_message(batch)

    def _changed(self, table: pa.Table) -> pa.Table:
        """What the user's function makes of messages."""
        if self._function is None:
            return table
        try:
            found = self._function(table)
        except Exception as error:
            raise CommandFailed(f"the transform failed: {type(error).__name__}: {error}") from error
        if not isinstance(found, pa.Table):
            raise CommandFailed(f"the transform gave a {type(found).__name__}, not a pyarrow.Table")
        return found


def _with_source(table: pa.Table) -> pa.Array:
    """The properties of messages and where each came from, which replaces what said it before."""
    count = table.num_rows
    place = pc.binary_join_element_wise(table.column("topic"), table.column("message_id"), ":")
    given = pa.concat_arrays(table.column("properties").cast(PROPERTY_MAP).chunks)
    given = given.take(pa.arange(0, count))  # offsets from 0, nothing between the rows
    names = pa.ListArray.from_arrays(given.offsets, given.keys)
    of = pc.list_parent_indices(names).cast(pa.int64())
    known = pc.not_equal(given.keys, PROPERTY)
    rows = pa.concat_arrays([of.filter(known), pa.arange(0, count)])
    keys = pa.concat_arrays([given.keys.filter(known), pa.repeat(PROPERTY, count)])
    items = pa.concat_arrays([given.items.filter(known), *place.chunks])
    order = pc.sort_indices(rows)  # stable: ours stands last
    ends = pc.cumulative_sum(pc.value_counts(rows.take(order)).field("counts"))
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends]).cast(pa.int32())
    return pa.MapArray.from_arrays(offsets, keys.take(order), items.take(order))

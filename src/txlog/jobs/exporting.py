"""Owns what an export writes: the columns of its files, and files written by this process.

A row stands as a clean file of a store has it: a plain message has its ledger, a partition column,
and its entry; a message of a transaction has no ledger but its marker and its index. Its id is
`coalesce(marker_ledger, ledger):coalesce(marker_entry, entry):txn_index`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from txlog.api.client import Client
from txlog.engine.model.schema import PROPERTY_MAP
from txlog.relation.relation import Content
from txlog.relation.scans import scans_of
from txlog.sql.duck import bounded
from txlog.startup import compute as pc

_TIME: Final = pa.timestamp("us", "UTC")
FILE: Final = pa.schema(
    [
        ("entry", pa.int64()), ("txn_index", pa.int32()), ("marker_ledger", pa.int64()),
        ("marker_entry", pa.int64()), ("key", pa.binary()), ("value", pa.binary()),
        ("properties", PROPERTY_MAP), ("publish_time", _TIME), ("event_time", _TIME),
        ("deliver_at", _TIME), ("visible_time", _TIME), ("producer", pa.string()),
        ("sequence_id", pa.int64()), ("lsn", pa.int64()),
    ]
)  # fmt: skip
PLACE: Final = ("partition", "ledger")
NULL_NAME: Final = "__HIVE_DEFAULT_PARTITION__"
_READ: Final = [
    "partition", "ledger", "entry", "txn_index", "key", "value", "properties", "publish_time",
    "event_time", "deliver_at", "visible_time", "producer", "sequence_id", "lsn",
]  # fmt: skip
_WRITERS_MAX: Final = 32
Key = tuple[int, int | None]


def rows_after(client: Client, content: Content, lsn: int, names: list[str]) -> Iterator[pa.Table]:
    """Committed messages that became visible after an LSN, some at a time."""
    wanted = {"lsn": (lsn + 1, content.relation.lsn)}
    for scan in scans_of(content.relation, wanted):
        for table in client._scanned(scan, names, wanted):
            found = table.filter(pc.greater(table.column("lsn"), pa.scalar(lsn, pa.int64())))
            if found.num_rows:
                yield found


def write_files(client: Client, content: Content, lsn: int, folder: Path) -> None:
    """Write these messages as files of FILE, by partition and ledger, below a new directory."""
    writers: dict[Key, pq.ParquetWriter] = {}
    made = 0
    try:
        for table in rows_after(client, content, lsn, _READ):
            for key, rows in _by_place(table):
                if key not in writers:
                    if len(writers) == _WRITERS_MAX:
                        writers.pop(next(iter(writers))).close()
                    made += 1
                    writers[key] = _writer(folder, key, made)
                writers[key].write_table(rows)
        for writer in writers.values():
            writer.close()
    finally:
        for writer in writers.values():
            writer.is_open = False  # else one that was given up complains when it is collected


def _by_place(table: pa.Table) -> Iterator[tuple[Key, pa.Table]]:
    """The rows by partition and ledger, as files have them.

    Delta holds microseconds: an instant beyond is the end of those, which DuckDB calls infinity.
    """
    table = bounded(table)
    is_plain = pc.is_null(table.column("txn_index"))
    none = pa.scalar(None, pa.int64())
    shaped = {name: table.column(name) for name in table.column_names}
    for name in ("ledger", "entry"):
        shaped[f"marker_{name}"] = pc.if_else(is_plain, none, table.column(name))
        shaped[name] = pc.if_else(is_plain, table.column(name), none)
    shaped["visible_time"] = pc.if_else(
        is_plain, pa.scalar(None, table.schema.field("visible_time").type), shaped["visible_time"]
    )
    places = pa.table({name: shaped[name] for name in PLACE})
    for place in places.group_by(list(PLACE)).aggregate([]).to_pylist():
        partition, ledger = place["partition"], place["ledger"]
        here = pc.equal(shaped["partition"], pa.scalar(partition, pa.int32()))
        of_ledger = (
            pc.is_null(shaped["ledger"])
            if ledger is None
            else pc.fill_null(pc.equal(shaped["ledger"], pa.scalar(ledger, pa.int64())), False)
        )
        columns = [shaped[name].cast(FILE.field(name).type) for name in FILE.names]
        rows = pa.table(columns, schema=FILE).filter(pc.and_(here, of_ledger))
        yield (partition, ledger), rows


def _writer(folder: Path, key: Key, number: int) -> pq.ParquetWriter:
    partition, ledger = key
    below = folder / f"partition={partition}" / f"ledger={NULL_NAME if ledger is None else ledger}"
    below.mkdir(parents=True, exist_ok=True)
    return pq.ParquetWriter(
        below / f"part-{number:05}.parquet", FILE, compression="zstd", compression_level=1,
        use_dictionary=["key", "producer"], write_page_checksum=True,
    )  # fmt: skip

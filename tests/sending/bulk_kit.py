"""Owns the short forms of the tests of bulk loads."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tests.engine_kit import Bench
from txlog import Client
from txlog.base.rows.sending import BulkStored


def rows(*values: bytes, **columns: object) -> pa.Table:
    """Messages as a table."""
    return pa.table({"value": pa.array(values, pa.binary()), **columns})


def load(
    client: Client, batch: int | str, *values: bytes, key: str = "k", topic: str = "t"
) -> BulkStored:
    """Stage and commit a batch in one go; returns its answer."""
    bulk = client.bulk(topic, key=key, batch=batch)
    return bulk.commit(bulk.stage([rows(*values)]))


def files_below(bench: Bench, pattern: str) -> list[str]:
    """Paths of files of the store."""
    root = Path(bench.path)
    return sorted(str(path.relative_to(root)) for path in root.glob(pattern) if path.is_file())


def stages(bench: Bench) -> list[str]:
    """The files below any _stage."""
    return files_below(bench, "topics/**/_stage/**/*")

"""Owns what a job asks of an engine: SQL over a topic's messages, and over its stored rows.

The SQL of jobs is what DuckDB and Spark have in common; the few words that differ are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from txlog.client import Client
from txlog.stored import Stored
from txlog.views import Content

Tell = Callable[[str], None]
Ask = Callable[[str], pa.Table]
# The views of `stored`, and the tables that it has beside them.
STORED, LARGE_CHUNKS = "stored", "large_chunks"
TABLES = ("ledgers", "markers", "large", "acks")


class Engine(Protocol):
    """What computes."""

    name: str

    def millis(self, column: str) -> str:
        """SQL for an instant in milliseconds."""

    def digest(self, column: str) -> str:
        """SQL for 48 bits of the md5 of bytes, as an integer."""

    def messages(self, client: Client, topic: str, sql: str) -> pa.Table:
        """Rows of a SELECT over `{messages}`: the committed messages of a topic, of one moment.

        raises: TopicNotFound; what reading the topic raises
        """

    def export(self, client: Client, content: Content, lsn: int, folder: Path) -> None:
        """Write the messages that became visible after an LSN as files of exporting.FILE.

        folder: exists; they are FOLDER/partition=<n>/ledger=<l>/part-*.parquet
        """

    def stored(self, client: Client, held: Stored) -> AbstractContextManager[Ask]:
        """What runs a SELECT over the views STORED and LARGE_CHUNKS, and over TABLES.

        STORED: role, partition, and the columns of stored.ROWS; a row of it a stored row
        raises: Corruption when a file cannot be read
        """


def silent(text: str) -> None:
    """What is told to nobody."""

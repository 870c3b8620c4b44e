"""Owns the interface of an engine: SQL over a topic's messages, and over its stored rows.

The SQL of jobs is common to DuckDB and Spark; the engine provides the few parts that differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from txlog.client.client import Client
from txlog.engine.door.delayed import Search
from txlog.engine.door.relation import Content, StoredRows
from txlog.engine.door.space import Arrange
from txlog.lake.jobs.sources.loads import Files, Transform

if TYPE_CHECKING:
    from txlog.base.rows.sending import BulkStored


Tell = Callable[[str], None]
Ask = Callable[[str], pa.Table]
# The views of `stored`, and its tables.
STORED, LARGE_CHUNKS = "stored", "large_chunks"
TABLES = ("ledgers", "markers", "large", "acks")
BLOCK = 1024  # block size of the check that numbers are unique


class Engine(Protocol):
    """An engine that computes jobs."""

    name: str

    def millis(self, column: str) -> str:
        """SQL for an instant in milliseconds."""

    def digest(self, column: str) -> str:
        """SQL for 48 bits of the md5 of bytes, as an integer."""

    def distinct(self, column: str) -> str:
        """SQL for the number of distinct integers of a column in a group, from 0 to BLOCK - 1."""

    def messages(self, client: Client, topic: str, sql: str) -> pa.Table:
        """Rows of a SELECT over `{messages}`: the committed messages of a topic, as of one moment.

        raises: TopicNotFound; the errors of reading the topic
        """

    def count(self, source: Files) -> int:
        """The number of messages in the files; raises CommandFailed, BadRecord, InvalidArgument.

        It reads every record and writes none.
        """

    def load(self, client: Client, source: Files, topic: str, key: str, batch: str) -> BulkStored:
        """Store the rows of files as one batch; the answer of Bulk.commit. Raises as count, bulk.

        DuckDB keeps the order of the files; Spark orders by event_time, if there is one.
        """

    def replay(
        self,
        client: Client,
        content: Content,
        dest: str,
        key: str,
        batch: str,
        function: Transform | None,
    ) -> tuple[int, BulkStored]:
        """Store messages of a content again, changed by a function; returns how many were read."""

    def arrange(self, client: Client) -> Arrange | None:
        """A function that reads and sorts the rows of a compaction; None: upkeep does it."""

    def searches(self, client: Client, topic: str) -> Mapping[int, Search] | None:
        """By partition number, functions that find delayed ids; None: upkeep does it itself."""

    def stored(self, client: Client, rows_stored: StoredRows) -> AbstractContextManager[Ask]:
        """Return a function that runs a SELECT over STORED, LARGE_CHUNKS and TABLES.

        STORED: role, partition, and the columns of stored.ROWS; one row for each stored row
        raises: Corruption when a file cannot be read
        """


def silent(text: str) -> None:
    """Report nothing."""

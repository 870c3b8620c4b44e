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
from txlog.engine.door.relation import RelationContent, StoredRows
from txlog.engine.door.space import Arrange
from txlog.lake.jobs.sources.loads import Files, Transform

if TYPE_CHECKING:
    from txlog.base.rows.sending import BulkStored


Tell = Callable[[str], None]  # reports the progress of a job, a line each call
Ask = Callable[[str], pa.Table]  # runs a SELECT
# Names of the views and of the tables that `Engine.stored` makes.
STORED, LARGE_CHUNKS = "stored", "large_chunks"
TABLES = ("ledgers", "markers", "large", "acks")
BLOCK = 1024  # block size of the check that numbers are unique


class Engine(Protocol):
    """Computes jobs, by DuckDB (`local`) or by Spark (`lake.spark.engine`)."""

    name: str

    def millis(self, column: str) -> str:
        """SQL for an instant in milliseconds."""

    def digest(self, column: str) -> str:
        """SQL for 48 bits of the md5 of bytes, as an integer."""

    def distinct(self, column: str) -> str:
        """SQL that counts the distinct values of a column in a group; they are below BLOCK."""

    def messages(self, client: Client, topic: str, sql: str) -> pa.Table:
        """Rows of a SELECT over `{messages}`: the committed messages of a topic, as of one moment.

        raises: TopicNotFound; the errors of reading the topic
        """

    def count(self, source: Files) -> int:
        """The number of messages in the files; it reads every record.

        raises: CommandFailed, BadRecord, InvalidArgument
        """

    def load(self, client: Client, source: Files, topic: str, key: str, batch: str) -> BulkStored:
        """Store the rows of files as one batch; returns the answer of Bulk.commit.

        DuckDB keeps the order of the files; Spark orders by event_time, if the rows have one.
        raises: as count, Client.bulk and Bulk.commit
        """

    def replay(
        self,
        client: Client,
        content: RelationContent,
        dest: str,
        key: str,
        batch: str,
        function: Transform | None,
    ) -> tuple[int, BulkStored]:
        """Store messages again, changed by a function; returns (messages read, as Bulk.commit)."""

    def arrange(self, client: Client) -> Arrange | None:
        """A function that reads and sorts the rows of a compaction; None: upkeep does it."""

    def searches(self, client: Client, topic: str) -> Mapping[int, Search] | None:
        """By partition number, functions that find delayed ids; None: upkeep does it."""

    def stored(self, client: Client, rows_stored: StoredRows) -> AbstractContextManager[Ask]:
        """A context with a function that runs a SELECT over STORED, LARGE_CHUNKS and TABLES.

        STORED: a row for each stored row, with role, partition, ledger, file and ROW_COLUMNS
        raises: Corruption when a file cannot be read
        """


def silent(text: str) -> None:
    """Report nothing."""

"""Owns what a job asks of an engine: SQL over a topic's messages, and over its stored rows.

The SQL of jobs is what DuckDB and Spark have in common; the few words that differ are asked for.
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
# The views of `stored`, and the tables beside them.
STORED, LARGE_CHUNKS = "stored", "large_chunks"
TABLES = ("ledgers", "markers", "large", "acks")
BLOCK = 1024  # numbers are looked at so many at a time, whether each is there once


class Engine(Protocol):
    """What computes."""

    name: str

    def millis(self, column: str) -> str:
        """SQL for an instant in milliseconds."""

    def digest(self, column: str) -> str:
        """SQL for 48 bits of the md5 of bytes, as an integer."""

    def distinct(self, column: str) -> str:
        """SQL for how many distinct values, of 0 to BLOCK - 1, a group has in an integer column."""

    def messages(self, client: Client, topic: str, sql: str) -> pa.Table:
        """Rows of a SELECT over `{messages}`: the committed messages of a topic, as of one moment.

        raises: TopicNotFound; what reading the topic raises
        """

    def count(self, source: Files) -> int:
        """How many messages the files have; raises CommandFailed, BadRecord, InvalidArgument.

        Every record is read and none is written.
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
        """What reads and sorts the rows of a compaction; None: upkeep does it itself."""

    def searches(self, client: Client, topic: str) -> Mapping[int, Search] | None:
        """By partition number, what finds its delayed ids; None: upkeep does it itself."""

    def stored(self, client: Client, held: StoredRows) -> AbstractContextManager[Ask]:
        """What runs a SELECT over the views STORED and LARGE_CHUNKS, and over TABLES.

        STORED: role, partition, and the columns of stored.ROWS; one row for each stored row
        raises: Corruption when a file cannot be read
        """


def silent(text: str) -> None:
    """Tells nobody."""

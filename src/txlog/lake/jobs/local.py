"""Owns the engine in this process: DuckDB."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from txlog.base.ids import TopicName
from txlog.client.client import Client
from txlog.client.sending.bulk import Bulk, Rows
from txlog.engine.door.delayed import Search
from txlog.engine.door.disk import is_of_handler, replacing
from txlog.engine.door.relation import (
    ROW_COLUMNS,
    ROWS,
    FileSource,
    RelationContent,
    StoredRows,
    paths_below,
    place,
)
from txlog.engine.door.sending import COLUMNS
from txlog.engine.door.space import Arrange
from txlog.errors import BadRecord, SqlError, TopicNotFound, TxlogError, Usage
from txlog.lake.jobs.engine import BLOCK, LARGE_CHUNKS, STORED, Ask
from txlog.lake.jobs.replay import Replayed
from txlog.lake.jobs.sources.loads import Columns, Files, Transform, envelope_tables, telling
from txlog.lake.jobs.sources.rows import (
    ARROW,
    as_message,
    check_lines,
    count_rows,
    message_rows,
)
from txlog.lake.sql.client_query import Query
from txlog.lake.sql.duck import Session
from txlog.lake.sql.messages import unglobbed
from txlog.lake.sql.parts import InJournal, Parts

if TYPE_CHECKING:
    from txlog.base.rows.sending import BulkStored


_LEDGER: Final = r"regexp_extract(filename, 'ledger-(\d+)\.\d+\.parquet$', 1)::BIGINT"
_PARTITION: Final = r"regexp_extract(filename, 'partition=(\d+)/(_txnlog/)?[^/]+$', 1)::INTEGER"
_ROLE: Final = "CASE WHEN contains(filename, '/_txnlog/') THEN 's' ELSE 'p' END"
_ROWS: Final = ", ".join(f'"{name}"' for name in ROW_COLUMNS)


class Local:
    """Runs jobs with DuckDB in this process; methods as in Engine."""

    name = "duckdb"

    def millis(self, column: str) -> str:
        """SQL for an instant in milliseconds."""
        return f"epoch_ms({column})"

    def digest(self, column: str) -> str:
        """SQL for 48 bits of the md5 of bytes, as an integer."""
        return f"('0x' || substr(md5({column}), 1, 12))::BIGINT"

    def distinct(self, column: str) -> str:
        """SQL that counts distinct values with a bit for each number below BLOCK.

        `count(DISTINCT …)` would hold each value.
        """
        return f"coalesce(bit_count(bitstring_agg(({column})::INTEGER, 0, {BLOCK - 1})), 0)"

    def messages(self, client: Client, topic: str, sql: str) -> pa.Table:
        """Rows of a SELECT over `{messages}`."""
        name = TopicName.parse(topic)
        if not client._contents([name.full]):
            raise TopicNotFound(f"there is no topic {name.short}", topic=name.short)
        quoted = '"' + name.full.replace('"', '""') + '"'
        with Query(client, sql.replace("{messages}", quoted)) as query:
            return query.rows().read_all()

    def count(self, source: Files) -> int:
        """The number of messages in the files."""
        if source.form == "envelope":
            return sum(map(len, envelope_tables(source)))
        with telling(source), opened(source) as (session, source_named):
            check_lines(session, source_named, source)
            return count_rows(session, source_named)

    def load(self, client: Client, source: Files, topic: str, key: str, batch: str) -> BulkStored:
        """Store the rows of files as one batch, in their order."""
        bulk = client.bulk(topic, key=key, batch=batch)
        if source.form == "envelope":
            return _stored(bulk, envelope_tables(source))
        with telling(source), opened(source) as (session, source_named):
            try:
                return _stored(bulk, map(as_message, message_rows(session, source_named)))
            except (SqlError, Usage, pa.ArrowException):
                # a second session, as the rows of the first may not be read to the end
                with opened(source) as (other, files):
                    check_lines(other, files, source)  # report a line that is not an object first
                raise

    def replay(
        self,
        client: Client,
        content: RelationContent,
        dest: str,
        key: str,
        batch: str,
        function: Transform | None,
    ) -> tuple[int, BulkStored]:
        """Store messages again, in the order of each partition."""
        bulk = client.bulk(dest, key=key, batch=batch)
        source = Replayed(client, content, function)
        answer = _stored(bulk, source)
        return source.read, answer

    def arrange(self, client: Client) -> Arrange | None:
        """None: upkeep reads and sorts on its own."""
        return None

    def searches(self, client: Client, topic: str) -> Mapping[int, Search] | None:
        """None: upkeep reads the log on its own."""
        return None

    @contextmanager
    def stored(self, client: Client, rows_stored: StoredRows) -> Iterator[Ask]:
        """A context with the function that runs a SELECT over the stored rows."""
        sources = [*rows_stored.files, *rows_stored.large_files]
        paths = [*paths_below(client.path, sources)]
        with Session(paths=_both(paths)) as session:
            session.register(
                "stored_frames", InJournal(rows_stored.frames, session.failures.append)
            )
            for name in ("ledgers", "markers", "large", "acks"):
                session.register(name, getattr(rows_stored, name))
            rows = f"SELECT role, partition, ledger, file, {_ROWS} FROM stored_frames"
            if rows_stored.parts:
                session.register("stored_parts", _parts(client, rows_stored, session))
                rows += (
                    f" UNION ALL SELECT role, partition, ledger, file, {_ROWS} FROM stored_parts"
                )
            if rows_stored.files:
                scan = _scan(client, rows_stored.files)
                rows += (
                    f" UNION ALL SELECT {_ROLE}, {_PARTITION}, {_LEDGER}, '', {_ROWS} FROM {scan}"
                )
            session.execute(f"CREATE TEMP VIEW {STORED} AS {rows}")
            chunks = f"SELECT ledger, kind, entry, value FROM {STORED} WHERE false"
            if rows_stored.large_files:
                scan = _scan(client, rows_stored.large_files)
                chunks = f"SELECT {_LEDGER} AS ledger, kind, entry, value FROM {scan}"
            session.execute(f"CREATE TEMP VIEW {LARGE_CHUNKS} AS {chunks}")
            yield session.arrow


def _parts(client: Client, rows_stored: StoredRows, session: Session) -> Parts:
    """The rows of parts, read on demand."""
    sources = [
        (place(part.role, part.partition, part.ref.ledger, part.ref.path), part)
        for part in rows_stored.parts
    ]
    return Parts(sources, client.open, session.failures.append, schema=ROWS)


def _stored(bulk: Bulk, rows: Iterable[Rows]) -> BulkStored:
    try:
        return bulk.commit(bulk.stage(rows))
    except BaseException:  # remove staged files after any failure
        with suppress(TxlogError):  # report the first error: the batch may be stored
            bulk.abort()
        raise


@contextmanager
def opened(source: Files) -> Iterator[tuple[Session, Files]]:
    """A context with a session that may read a source's files, and the source as it names them."""
    with (
        source.with_plain_names() as source_named,
        Session(paths=_both(source_named.paths), is_lean=True) as session,
    ):
        if source.form == "arrow":
            try:
                session.register(ARROW, ds.dataset(source_named.paths, format="ipc"))
            except (pa.ArrowInvalid, OSError) as error:
                if is_of_handler(error):
                    raise
                raise BadRecord(f"not Arrow files of one schema: {error}") from error
        yield session, source_named


@contextmanager
def as_parquet(source: Files) -> Iterator[Files]:
    """A context with the messages of csv files in one Parquet file: Spark reads csv differently.

    The file is in the directory for temporary files, and is removed when the block ends.
    raises: as message_rows and replacing; BadRecord for a row that is not a message
    """
    with TemporaryDirectory(prefix="txlog-") as folder:
        path = str(Path(folder, "messages.parquet"))
        with telling(source), opened(source) as (session, source_named):
            rows = message_rows(session, source_named)
            schema = pa.schema([(name, COLUMNS[name]) for name in rows.schema.names])
            with replacing(path) as file, pq.ParquetWriter(file, schema) as writer:
                for batch in rows:
                    writer.write_batch(as_message(batch))
        yield replace(source, form="parquet", paths=[path], columns=Columns())


def _scan(client: Client, sources: Sequence[FileSource]) -> str:
    paths = (path.replace("'", "''") for path in map(unglobbed, paths_below(client.path, sources)))
    listed = ", ".join(f"'{path}'" for path in paths)
    return f"read_parquet([{listed}], filename = true, hive_partitioning = false)"


def _both(paths: Sequence[str]) -> list[str]:
    """Paths unchanged, and escaped as patterns."""
    return sorted({*paths, *map(unglobbed, paths)})

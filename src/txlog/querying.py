"""Owns SQL over a store: which relations a query names, the views that show them, its rows.

A view is made only if the query names it, and its files are checked before it is. What the views
say is `views.Relation` written as SQL: nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from types import TracebackType
from typing import Final

import pyarrow as pa

from txlog.client import Client
from txlog.duck import Rows, Session, tables_of
from txlog.errors import MissingFile, SnapshotExpired, SqlError
from txlog.listings import LISTS, listed
from txlog.views import COMMITTED, Content, Source

_MESSAGES: Final = "messages"
_NOTHING: Final = "txlog_nothing"  # for a store without topics
_TRIES: Final = 5
_MACROS: Final = (
    "CREATE TEMP MACRO text(b) AS decode(b)",
    "CREATE TEMP MACRO json(b) AS CAST(decode(b) AS JSON)",
)
_USER: Final = "key, value, properties, publish_time, event_time, deliver_at"
_ALL: Final = (
    f"partition, ledger, entry, txn_index, {_USER}, visible_time, producer, sequence_id, lsn"
)
# Of a file by its name: evaluated once a file, which also leaves files out.
_PARTITION: Final = r"regexp_extract(filename, 'partition=(\d+)/(_txnlog/)?[^/]+$', 1)::INTEGER"
_LEDGER: Final = r"regexp_extract(filename, 'ledger-(\d+)\.\d+\.parquet$', 1)::BIGINT"
_JOIN: Final = (
    "JOIN {markers} AS m ON m.partition = r.partition AND m.txn_most = r.txn_most"
    " AND m.txn_least = r.txn_least"
)


class Query:
    """One SELECT over a store; a context manager. All messages it reads are of one LSN.

    sql:        over `messages`, topics by their names, short or in full, and the LISTS
    parameters: values of $name
    isolation:  uncommitted: messages have a txn_state, and those of open and of aborted
                transactions are there too; they have no id, place, LSN and visible time
    raises:     SqlError; what reading the topics raises
    """

    def __init__(
        self, client: Client, sql: str, parameters: Mapping[str, str] | None = None,
        isolation: str = "committed",
    ) -> None:  # fmt: skip
        self._client = client
        self._sql = sql
        self._parameters = parameters
        self._uncommitted = isolation == "uncommitted"
        self._session: Session | None = None
        self.statements: list[str] = []
        words = tables_of(sql)
        every = any(word.casefold() == _MESSAGES for word in words)
        stood: list[tuple[int, int]] | None = None
        for _ in range(_TRIES):
            self._contents = client.contents(None if every else words, isolation)
            before, stood = stood, [
                (content.relation.generation, content.relation.lsn) for content in self._contents
            ]  # fmt: skip
            try:
                self._open({word.casefold() for word in words})
            except (MissingFile, SqlError) as error:
                self.close()
                if stood == before:
                    raise  # nothing moved on: the file is lost
                if not isinstance(error, MissingFile) and not self._is_overtaken():
                    raise
                continue  # R21: a checkpoint has removed files since
            return
        raise SnapshotExpired("the store moved on faster than it could be read")

    @property
    def files(self) -> int:
        """How many files its views stand on."""
        return sum(1 for content in self._contents for _ in _files(content))

    def rows(self) -> Rows:
        """The rows, batch by batch; once."""
        assert self._session is not None
        return self._session.stream(self._sql, self._parameters)

    def close(self) -> None:
        """End the session."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def __enter__(self) -> Query:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def _open(self, words: set[str]) -> None:
        sources = [source for content in self._contents for source in _files(content)]
        self._client.check_files(sources)
        paths = [self._path(source) for source in sources]  # as such, and as a pattern
        self._session = session = Session(paths=sorted({*paths, *map(_unglobbed, paths)}))
        self.statements = list(_MACROS)
        for number, content in enumerate(self._contents):
            tables = _tables(number, content)
            for name, table in tables.items():
                session.register(name, table)
            body = self._messages(content, list(tables))
            full, short = content.name, content.relation.topic
            self.statements.append(f"CREATE TEMP VIEW {_name(full)} AS {body}")
            if short != full and short.casefold() in words - {_MESSAGES, *LISTS}:
                self.statements.append(f"CREATE TEMP VIEW {_name(short)} AS FROM {_name(full)}")
        if _MESSAGES in words:
            session.register(_NOTHING, COMMITTED.empty_table())
            topics = [f"FROM {_name(content.name)}" for content in self._contents]
            body = " UNION ALL ".join(topics) or self._columns(f"FROM {_name(_NOTHING)}", "")
            self.statements.append(f"CREATE TEMP VIEW {_MESSAGES} AS {body}")
        for name in sorted(words & LISTS):
            session.register(name, listed(self._client, name))
        for statement in self.statements:
            session.execute(statement)

    def _is_overtaken(self) -> bool:
        """A file of the snapshot is not there any more."""
        sources = [source for content in self._contents for source in _files(content)]
        try:
            self._client.check_files(sources)
        except MissingFile:
            return True
        return False

    def _path(self, source: Source) -> str:
        return str(PurePath(self._client.path, source.ref.path))

    def _messages(self, content: Content, tables: list[str]) -> str:
        """The SELECT of a topic's committed messages."""
        relation = content.relation
        tail, markers, large, partition_parts, sidecar_parts, hidden = map(_name, tables)
        join = _JOIN.format(markers=markers)
        plain = f"partition, ledger, entry, txn_index, {_USER}, publish_time, producer"
        branches = [f"SELECT {_ALL} FROM {tail}"]
        if relation.direct:
            branches.append(
                f"SELECT {_PARTITION}, coalesce(marker_ledger, {_LEDGER}),"
                f" coalesce(marker_entry, entry), txn_index, {_USER},"
                " coalesce(visible_time, publish_time), producer, sequence_id, lsn"
                f" FROM {self._parquet(relation.direct)} WHERE kind = 0"
            )
        if relation.unclean:
            rows = f"SELECT *, {_PARTITION} AS partition FROM {self._parquet(relation.unclean)}"
            branches.append(f"{_marked()} FROM ({rows}) AS r {join} WHERE r.kind = 0")
        if content.partition_parts.num_rows:
            branches.append(
                f"SELECT {plain}, sequence_id, lsn FROM {partition_parts} WHERE kind = 0"
            )
        if content.sidecar_parts.num_rows:
            branches.append(f"{_marked()} FROM {sidecar_parts} AS r {join} WHERE r.kind = 0")
        if relation.large_files:
            branches.append(self._large(relation.large_files, large))
        shown = self._columns(f"FROM ({' UNION ALL '.join(branches)})", relation.topic)
        if not relation.hidden.num_rows:
            return shown
        return (
            f"{shown} UNION ALL {_message_columns(f'FROM {hidden}', relation.topic, 'txn_state')}"
        )

    def _columns(self, source: str, topic: str) -> str:
        """The columns of committed messages."""
        state = "CASE WHEN txn_index IS NULL THEN NULL ELSE 'committed' END AS txn_state"
        return _message_columns(source, topic, state if self._uncommitted else None)

    def _large(self, sources: list[Source], large: str) -> str:
        """Large messages: their chunks put together, only when the value is asked for."""
        root = f"{PurePath(self._client.path)}/"
        chunks = (
            f"SELECT substr(filename, {len(root) + 1}) AS path,"
            " unhex(string_agg(hex(value), '' ORDER BY entry)) AS value"
            f" FROM {self._parquet(sources)} GROUP BY filename"
        )
        return f"SELECT {_ALL} FROM {large} LEFT JOIN ({chunks}) USING (path)"

    def _parquet(self, sources: list[Source]) -> str:
        paths = ", ".join(_text(_unglobbed(self._path(source))) for source in sources)
        return f"read_parquet([{paths}], filename = true, hive_partitioning = false)"


def _files(content: Content) -> Iterator[Source]:
    """The files that a view reads by their paths."""
    yield from content.relation.direct
    yield from content.relation.unclean
    yield from content.relation.large_files


def _tables(number: int, content: Content) -> dict[str, pa.Table]:
    """The Arrow tables that a topic's view stands on."""
    relation = content.relation
    return {
        f"txlog_{number}_tail": relation.tail,
        f"txlog_{number}_markers": relation.markers,
        f"txlog_{number}_large": relation.large,
        f"txlog_{number}_partition_parts": content.partition_parts,
        f"txlog_{number}_sidecar_parts": content.sidecar_parts,
        f"txlog_{number}_hidden": relation.hidden,
    }


def _marked() -> str:
    """The columns of rows that are joined with their markers."""
    user = ", ".join(f"r.{name}" for name in _USER.split(", "))
    return (
        f"SELECT r.partition, m.marker_ledger, m.marker_entry, r.txn_index, {user},"
        " m.visible_time, r.producer, r.sequence_id, m.lsn"
    )


def _message_columns(source: str, topic: str, state: str | None) -> str:
    """The columns of `messages` over those of views.COMMITTED; one without a place has no id."""
    return (
        f"SELECT {_text(topic)} AS topic, partition, CASE WHEN ledger IS NOT NULL"
        " THEN concat(ledger, ':', entry, ':' || txn_index) END AS message_id,"
        f" ledger, entry, txn_index, {_USER}, visible_time, producer, sequence_id, lsn,"
        f" coalesce(octet_length(value), 0) AS size_bytes{f', {state}' if state else ''} {source}"
    )


def _name(name: str) -> str:
    """A name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def _text(text: str) -> str:
    """Text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"


def _unglobbed(path: str) -> str:
    """A path without the meaning of a pattern."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in path)

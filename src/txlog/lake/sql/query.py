"""Owns SQL over a store: the relations that a query names, their views, its rows.

All relations of a statement read one view. The caller passes a function that returns the relations
other than messages. A query calls it only for those that it names.

Besides `messages`, a SQL view is created only if the query names it, after a check of its files.
`Relation` decides which messages are visible; the views are a Relation written as SQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa

from txlog.engine.door.disk import is_remote
from txlog.engine.door.reading import check_isolation
from txlog.engine.door.relation import RelationContent, RelationReader
from txlog.engine.door.segments import RECORD
from txlog.engine.door.space import Pin
from txlog.errors import MissingFile, SnapshotExpired, SqlError
from txlog.lake.sql.duck import Rows, Session
from txlog.lake.sql.faults import suggesting
from txlog.lake.sql.macros import MACROS
from txlog.lake.sql.messages import Messages, files_of, name, path_below, text, unglobbed
from txlog.lake.sql.parts import parts_for

if TYPE_CHECKING:
    from txlog.engine.door.store import Store, View

_MESSAGES: Final = "messages"
_EVERYTHING: Final = "messages_all"
_COMPACTED: Final = "compacted"
LISTS: Final = frozenset(
    "topics subscriptions transactions transaction_keys acks pending_acks delayed delayed_buckets"
    " watermarks segments frames transaction_key_log cursor_log catalog_log".split()
)
# Of a typed topic, `SELECT *` begins with the record and ends with these.
_PLACES: Final = "topic, partition, message_id, ledger, entry, txn_index, lsn"
_TRIES: Final = 5


class Lists(Protocol):
    """A function that returns the relations of LISTS, such as lists.listed."""

    def __call__(self, view: View, store: Store, name: str) -> pa.Table:
        """The rows of one relation in a view."""


class SqlQuery:
    """One SELECT over a store; a context manager. All relations that it names are of one LSN.

    It pins its files until it is closed, even if checkpoints, compactions and trims replace them.
    A read-only client cannot pin: there the files may go after the grace period for readers.
    lists:      returns the relations of LISTS by name, for a view
    sql:        over `messages`, `messages_all`, `compacted`, topics by their names, short or in
                full, and LISTS
    parameters: values of $name
    isolation:  uncommitted: messages have a txn_state, and messages of open and aborted
                transactions appear, too; they have no id, position, LSN or visible time
    skip_unavailable: leave out unavailable or damaged partitions; `left_out` names them
    this:       a SELECT over the same relations, which the SQL can use as `this`
    memory_bytes: memory for the SELECT; None: most of the machine's
    raises:     SqlError; the errors of reading the topics
    """

    def __init__(
        self,
        client: RelationReader,
        lists: Lists,
        sql: str,
        parameters: Mapping[str, object] | None = None,
        isolation: str = "committed",
        *,
        skip_unavailable: bool = False,
        this: str | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        self._client = client
        self._memory_bytes = memory_bytes
        self._lists = lists
        self._sql = sql
        self._this = this
        self._parameters = parameters
        self._isolation = check_isolation(isolation)
        self._skip_unavailable = skip_unavailable
        self._pin: Pin | None = None
        self._contents: list[RelationContent] = []
        self._tables: dict[str, pa.Table] = {}
        self.statements: list[str] = []
        self._session: Session | None = self._opened()
        try:
            texts = [sql] if this is None else [sql, this]
            tables = [name for text in texts for name in self._session.tables_of(text)]
            self._run = self._session.reading_json(sql)
            if this is not None:
                self._this = self._session.reading_json(this)
            self._begin(tables)
        except BaseException:  # also on Ctrl-C: no caller owns the session yet
            self.close()
            raise

    def _begin(self, names: list[str]) -> None:
        """Create the views of the named relations, at an LSN whose files still exist."""
        folded = {word.casefold() for word in names}
        topics_named = None if folded & {_MESSAGES, _EVERYTHING, _COMPACTED} else names
        generation_now: list[tuple[int, int]] | None = None
        for _ in range(_TRIES):
            self._contents, self._tables = self._client.moment(
                topics_named,
                self._isolation,
                everything=_EVERYTHING in folded,
                compacted=_COMPACTED in folded,
                skip_unavailable=self._skip_unavailable,
                lists={name: partial(self._lists, name=name) for name in sorted(folded & LISTS)},
            )
            generation_before, generation_now = (
                generation_now,
                [(content.relation.generation, content.relation.lsn) for content in self._contents],
            )
            try:
                self._open(folded)
            except (MissingFile, SqlError) as error:
                self.close()
                if generation_now == generation_before:
                    raise  # no checkpoint came between: the file is lost
                if not isinstance(error, MissingFile) and not self._is_overtaken():
                    raise
                continue  # R21: a checkpoint has removed files since
            return
        raise SnapshotExpired("the store moved on faster than it could be read")

    @property
    def files(self) -> int:
        """The number of files that its views use."""
        return sum(1 for _ in files_of(self._contents))

    @property
    def left_out(self) -> list[str]:
        """Partitions that are missing, as topic/partition."""
        relations = [content.relation for content in self._contents]
        return [f"{of.topic}/{index}" for of in relations for index in of.unavailable]

    def pruned(self) -> int:
        """The number of files of its scans that DuckDB need not read, according to its plan."""
        assert self._session is not None
        with self._suggesting():
            files_read, files_named = self._session.scanned(self._run, self._parameters)
        return files_named - files_read

    def rows(self) -> Rows:
        """The rows, batch by batch; works once."""
        assert self._session is not None
        with self._suggesting():
            return self._session.stream(self._run, self._parameters)

    def interrupt(self) -> None:
        """Interrupt the reading of rows in another thread, which gets SqlError."""
        session = self._session
        if session is not None:
            session.interrupt()

    def plan(self) -> str:
        """DuckDB's drawing of the plan of the SQL."""
        assert self._session is not None
        with self._suggesting():
            return self._session.plan(self._run, self._parameters)

    def _suggesting(self) -> AbstractContextManager[None]:
        """Add the nearest topic, relation or field to the error of an unknown one."""
        relations = (_MESSAGES, _EVERYTHING, _COMPACTED, *sorted(LISTS))
        return suggesting(
            lambda: [*(row[0] for row in self._client.names("topic")), *relations],
            lambda: {
                content.relation.topic: [
                    *(content.relation.record_type.names if content.relation.record else ())
                ]
                for content in self._contents
            },
            self._sql,
        )

    def close(self) -> None:
        """End the session and release its files."""
        if self._session is not None:
            self._session.close()
            self._session = None
        for content in self._contents:
            if content.relation.frames is not None:
                content.relation.frames.close()
        if self._pin is not None:
            self._pin.close()
            self._pin = None

    def __enter__(self) -> SqlQuery:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _opened(self) -> Session:
        return Session(is_open=True, memory_bytes=self._memory_bytes)

    def _open(self, folded: set[str]) -> None:
        sources = list(files_of(self._contents))
        parts = [source for content in self._contents for source in content.relation.open]
        if sources or parts:
            self._pin = self._client._pin([*sources, *parts])
        self._client.check_files(sources)
        for source in parts:  # their bytes are checked during the read
            self._client.open(source.ref.path).close()
        self._contents = [self._client.without_far(content) for content in self._contents]
        path = path_below(self._client.path)
        near = [source for source in sources if not is_remote(source.ref.path)]
        paths = [path(source) for source in near]  # as a path, and as a pattern
        session = self._session = self._session or self._opened()  # a retry has no session
        session.lock(sorted({*paths, *map(unglobbed, paths)}))
        lazily = parts_for(session, self._contents, self._client.open)
        messages = Messages(self._contents, path, lazily)
        self.statements = [*MACROS, *self._views(folded, messages, session)]
        if self._this is not None:
            self.statements.append(f"CREATE TEMP VIEW this AS {self._this}")
        for listing, table in self._tables.items():
            session.register(listing, table)
        for statement in self.statements:
            session.execute(statement)
        session.messages, session.statement = _MESSAGES, self._sql

    def _views(self, folded: set[str], messages: Messages, session: Session) -> Iterator[str]:
        """The named views of messages; a topic never hides another relation."""
        messages.register(session)
        body = messages.uncommitted() if self._isolation == "uncommitted" else messages.committed()
        yield f"CREATE TEMP VIEW {_MESSAGES} AS {body}"
        if _EVERYTHING in folded:
            yield f"CREATE TEMP VIEW {_EVERYTHING} AS {messages.all()}"
        if _COMPACTED in folded:
            yield f"CREATE TEMP VIEW {_COMPACTED} AS {messages.newest()}"
        reserved = {_MESSAGES, _EVERYTHING, _COMPACTED, *LISTS}
        for content in self._contents:
            topic = content.relation.topic
            only = "" if len(self._contents) == 1 else f" WHERE topic = {text(topic)}"
            for word in dict.fromkeys((content.name, topic)):
                if word.casefold() in folded - reserved:
                    rows = f"FROM {_MESSAGES}{only}"
                    if content.relation.record and (fields := self._fields(content, session)) != []:
                        rows = self._typed(content, session, fields or ())
                    yield f"CREATE TEMP VIEW {name(word)} AS {rows}"

    def _fields(self, content: RelationContent, session: Session) -> list[str] | None:
        """The fields of records that the SQL names; None: all, as it may name others."""
        texts = [self._sql] if self._this is None else [self._sql, self._this]
        fields = session.fields_of(texts, RECORD)
        if fields is None:
            return None
        names = [field.name for field in content.relation.record_type]
        named_fields = [field for field in names if field.casefold() in fields]
        # DuckDB's error lists the existing fields
        return named_fields if len(named_fields) == len(fields) else None

    def _typed(self, content: RelationContent, session: Session, fields: Sequence[str]) -> str:
        """The messages of a typed topic, with their records, or only these fields of records."""
        parts = parts_for(session, [content], self._client.open, is_typed=True)
        messages = Messages(
            [content],
            path_below(self._client.path),
            parts,
            prefix=f"txlog_of_{self._contents.index(content)}",
            is_typed=True,
            fields=fields,
        )
        messages.register(session)
        is_all = self._isolation == "uncommitted"
        rows = messages.uncommitted() if is_all else messages.committed()
        return f"SELECT {RECORD}, * EXCLUDE ({RECORD}, {_PLACES}), {_PLACES} FROM ({rows})"  # noqa: S608

    def _is_overtaken(self) -> bool:
        """Whether a file of this query's contents is missing, as after a checkpoint."""
        try:
            self._client.check_files(list(files_of(self._contents)))
        except MissingFile:
            return True
        return False

"""Owns Relation written as SQL: the SELECT of the messages of topics, for DuckDB.

Relation decides which messages are visible, not this module. All topics of a query are one SELECT.
One scan reads their files of messages only, another the files that also have other rows. Topic and
partition follow from the name of a file; DuckDB evaluates that once per file and can skip files by
it. Arrow tables of the same kind are merged over all topics, with the topic as a column.

DuckDB reads all fields of a struct below a UNION, unless each branch extracts them itself. So the
files of a typed topic are one scan if its records can be read by field names; that scan also joins
the rows that need a marker. A query reads only the fields of `record` that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa

from txlog.base import message_columns
from txlog.base.message_columns import LOCATED, PLACED, TYPES
from txlog.engine.door.catalog import SchemaVersion
from txlog.engine.door.disk import is_remote, local_path, without_options
from txlog.engine.door.facts import KIND_DATA, TXN_ABORT, TXN_COMMIT, W_IDLE, W_SET, W_SNAPSHOT
from txlog.engine.door.relation import (
    COMMITTED,
    HIDDEN,
    FileSource,
    Relation,
    RelationContent,
    adopted_lsns,
    dataset_of,
    numbered_rows,
)
from txlog.engine.door.segments import RECORD
from txlog.engine.door.topics import records_as, schema_in
from txlog.lake.sql.records import is_by_name, record_of, type_of

if TYPE_CHECKING:
    from txlog.lake.sql.duck import Session
    from txlog.lake.sql.parts import InFrames, Parts

MESSAGE_ID: Final = "concat(ledger, ':', entry, coalesce(':' || txn_index, ''))"
SIZE_BYTES: Final = "CAST(coalesce(octet_length(value), 0) AS BIGINT)"
_USER: Final = ", ".join(message_columns.USER)
# Parts of a file's name: DuckDB evaluates them once per file, and can skip files by them.
PARTITION: Final = r"regexp_extract(filename, 'partition=(\d+)/(_\w+/)?[^/]+$', 1)::INTEGER"
LEDGER: Final = r"regexp_extract(filename, 'ledger-(\d+)\.\d+\.parquet$', 1)::BIGINT"
_DIRECTORY: Final = (
    r"regexp_extract(filename, 'topics/([^/]+/[^/]+/[^/]+)/partition=\d+/(_\w+/)?[^/]+$', 1)"
)
TOPIC: Final = f"regexp_replace(url_decode({_DIRECTORY}), '^public/default/', '')"
_LEDGER_OF_PATH: Final = LEDGER.replace("(filename", "(path").replace("parquet$", r"parquet(\?|$)")
_STORED: Final = ", ".join(LOCATED)
_STATE_OF: Final = "CASE WHEN txn_index IS NOT NULL THEN 'committed' END"
_STATE: Final = f"{_STATE_OF} AS txn_state"
_PLACE: Final = ("lsn", "partition", "ledger", "entry", "txn_index")  # the order of age
_NO_ROWS: Final = COMMITTED.empty_table()
_OPEN: Final = {"p": "partition_open", "s": "sidecar_open", "f": "frames"}
_ROW: Final = "file_row_number"
_IS_DATA: Final = f"kind = {KIND_DATA}"
_KINDS: Final = {
    KIND_DATA: "message", TXN_COMMIT: "txn_commit", TXN_ABORT: "txn_abort", W_SET: "w_set",
    W_IDLE: "w_idle", W_SNAPSHOT: "w_snapshot",
}  # fmt: skip


def _topic_of_file(relations: Sequence[Relation]) -> str:
    """SQL for the topic of a file; a renamed topic has the directory of another name.

    All files of a topic are in one directory, also those outside the store.
    """
    moved: list[str] = []
    for relation in relations:
        files = chain(relation.direct, relation.unclean, relation.large_files, relation.compacted)
        source = next(files, None)
        if source is None:
            continue
        directory = source.ref.path.rpartition("/partition=")[0].rpartition("topics/")[2]
        if unquote(directory).removeprefix("public/default/") != relation.topic:
            moved.append(f" WHEN {text(directory)} THEN {text(relation.topic)}")
    return f"CASE {_DIRECTORY}{''.join(moved)} ELSE {TOPIC} END" if moved else TOPIC


class Messages:
    """The messages of some topics as SQL over registered tables and over files.

    path:       returns the path of a file as the SQL should have it
    everything: the contents have rows of all kinds, not only messages
    tables:     the tables to register, by name
    """

    __slots__ = (
        "_compacted",
        "_contents",
        "_direct",
        "_fields",
        "_large",
        "_path",
        "_prefix",
        "_sifted",
        "_topic",
        "_typed",
        "_unclean",
        "_whole",
        "everything",
        "tables",
    )

    def __init__(
        self,
        contents: Sequence[RelationContent],
        path: Callable[[FileSource], str],
        parts: Mapping[str, Parts | InFrames] | None = None,
        *,
        prefix: str = "txlog",
        is_typed: bool = False,
        fields: Sequence[str] = (),
    ) -> None:
        """parts: from `parts_for`, if the contents do not have the rows of open parts.

        prefix:   prefix of table names; is_typed: add the column `record` of the single topic
        fields:   the fields that `record` has, null in rows without it; empty: all fields
        """
        self._contents = contents
        self._path = path
        self._prefix = prefix
        relations = [content.relation for content in contents]
        self._typed = relations[0] if is_typed else None
        self._fields = tuple(fields)
        self.everything = all(relation.everything for relation in relations)
        self._topic = text(relations[0].topic) if self._is_one else _topic_of_file(relations)
        self._direct = [source for relation in relations for source in relation.direct]
        # In files of messages only, no row is tested; files without a message are not read at all.
        self._whole = [source for source in self._direct if source.ref.is_messages_only]
        self._sifted = [
            source
            for source in self._direct
            if source.ref.messages and not source.ref.is_messages_only
        ]
        self._unclean = [source for relation in relations for source in relation.unclean]
        self._large = [source for relation in relations for source in relation.large_files]
        self._compacted = [source for relation in relations for source in relation.compacted]
        self.tables = self._tables(parts or {})

    @property
    def _is_one(self) -> bool:
        return len(self._contents) == 1

    @property
    def _shown(self) -> str:
        """The columns that producers set."""
        return _USER if self._typed is None else f"{_USER}, {RECORD}"

    @property
    def _user(self) -> str:
        """SQL for these columns of a stored row, with the record reduced to the wanted fields."""
        return self._shown if not self._fields else f"{_USER}, {self._narrow()} AS {RECORD}"

    def _narrow(self, record: str = RECORD) -> str:
        """SQL for a record with only the wanted fields."""
        fields = (f"{name(field)} := {record}.{name(field)}" for field in self._fields)
        return f"struct_pack({', '.join(fields)})"

    @property
    def _named(self) -> str:
        return f"partition, ledger, entry, txn_index, {self._user}"

    @property
    def _all(self) -> str:
        return f"{self._named}, visible_time, producer, sequence_id, lsn"

    @property
    def _record(self) -> int:
        """The version whose type `record` has; 0: there is no such column."""
        return 0 if self._typed is None else self._typed.record

    @property
    def _schemas(self) -> tuple[SchemaVersion, ...]:
        return () if self._typed is None else tuple(self._typed.schemas)

    def _tables(self, parts: Mapping[str, Parts | InFrames]) -> dict[str, Any]:
        """The Arrow tables and datasets to register."""
        relations, contents = [content.relation for content in self._contents], self._contents
        tables: dict[str, Any] = {
            **{
                self._of(_OPEN[role]): dataset
                for role, dataset in parts.items()
                if dataset.num_rows
            },
            self._of("tail"): self._joined([relation.tail for relation in relations]),
            self._of("markers"): self._joined([relation.markers for relation in relations]),
            self._of("large"): self._joined([relation.large for relation in relations]),
            self._of("hidden"): self._joined([relation.hidden for relation in relations]),
            self._of("partition_parts"): self._joined([of.partition_parts for of in contents]),
            self._of("sidecar_parts"): self._joined([of.sidecar_parts for of in contents]),
        }
        if any(relation.compacted_rows is not None for relation in relations):
            rows = [relation.compacted_rows or _NO_ROWS for relation in relations]
            tables[self._of("compacted")] = self._joined(rows)
        if self._typed is not None:
            for name in ("tail", "large", "hidden", "partition_parts", "sidecar_parts"):
                tables[self._of(name)] = self._with_records(tables[self._of(name)])

        for kind, sources in (
            ("direct", self._direct if self.everything else []),
            ("whole", self._whole),
            ("sifted", self._sifted),
            ("unclean", self._unclean),
            ("large", self._large),
            ("compacted", self._compacted),
        ):
            for version, alike in self._by_record(sources):
                remote = [source for source in alike if is_remote(source.ref.path)]
                if remote:
                    tables[self._remote(kind, version)] = (
                        numbered_rows(remote, self._path)
                        if self.everything and kind not in ("large", "compacted")
                        else dataset_of(remote, self._path, self._type_in(version))
                    )
        return tables

    def register(self, session: Session) -> None:
        """Register the tables of its statements in a session.

        A join keeps the markers in memory: each marker has rows, so markers are fewer than
        rows, and a query may use every column of the rows.
        """
        for word, table in self.tables.items():
            session.register(word, table, is_held=word == self._of("markers"))

    def _of(self, name: str) -> str:
        """The name of one of its tables."""
        return f"{self._prefix}_{name}"

    def _remote(self, kind: str, version: int) -> str:
        return self._of(f"remote_{kind}_{version}" if version else f"remote_{kind}")

    def _type_in(self, version: int) -> pa.DataType | None:
        """The type of `record` in files of a version."""
        return schema_in(self._schemas[version - 1]).arrow if version else None

    def _by_record(self, sources: Sequence[FileSource]) -> list[tuple[int, list[FileSource]]]:
        """Files by the version of their column `record`; one group if there is no such column."""
        groups: dict[int, list[FileSource]] = {}
        for source in sources:
            groups.setdefault(source.ref.record if self._record else 0, []).append(source)
        return sorted(groups.items())

    def _with_records(self, table: pa.Table) -> pa.Table:
        """Rows with the column `record` decoded from `value`; null if there is no such column."""
        if "value" in table.column_names:
            # each frame is a chunk, and a call per chunk costs as much as its rows
            table = table.combine_chunks()
            return table.append_column(RECORD, records_as(self._schemas, self._record, table))
        kind = self._contents[0].relation.record_type
        return table.append_column(RECORD, pa.nulls(table.num_rows, kind))

    def _joined(self, tables: list[pa.Table]) -> pa.Table:
        """The tables of the topics as one, with a column for the topic if there are several."""
        if self._is_one:
            return tables[0]
        if not tables:
            return HIDDEN.append(pa.field("topic", pa.string())).empty_table()
        return pa.concat_tables(
            table.append_column(
                "topic", pa.repeat(pa.scalar(content.relation.topic, pa.string()), len(table))
            )
            for content, table in zip(self._contents, tables, strict=True)
        )

    def committed(self) -> str:
        """The SELECT of committed messages, with the columns of `messages`."""
        return self._columns(self._visible(everything=False))

    def newest(self) -> str:
        """The SELECT of each key's newest message, without keys whose newest has no value.

        It reads the view `messages`. A compacted row that is still in the log is in two branches,
        with equal columns. For a key in several partitions the higher LSN is newer.
        """
        branches = [
            f"SELECT topic, {self._all} FROM messages WHERE key IS NOT NULL AND ledger IS NOT NULL"
        ]
        if self._compacted:
            branches.append(
                f"SELECT {self._topic} AS topic, {PARTITION}, marker_ledger, marker_entry,"
                f" txn_index, {self._user}, coalesce(visible_time, publish_time), producer,"
                f" sequence_id, lsn FROM {self._rows('compacted', self._compacted)}"
            )
        if (table := self._of("compacted")) in self.tables:
            branches.append(f"SELECT {self._at()}, {self._all} FROM {table}")
        order = ", ".join(f"{name} DESC" for name in _PLACE)
        newest = (
            f"(SELECT * FROM ({' UNION ALL '.join(branches)})"
            f" QUALIFY row_number() OVER (PARTITION BY topic, key ORDER BY {order}) = 1)"
        )
        return f"{self._columns(newest)} WHERE value IS NOT NULL"

    def plain(self, *, uncommitted: bool) -> str:
        """The SELECT to write into a file for `of_files`, of columns that give all the others."""
        select = f"FROM {self._visible(everything=False)}"
        if not uncommitted:
            return select
        return f"SELECT *, {_STATE} {select} UNION ALL {self._hidden()}"

    def of_files(self, complete: Sequence[str], *, uncommitted: bool) -> str:
        """The SELECT of messages in Parquet files; it joins markers from `markers_of_files`.

        complete: files with the messages that no Parquet file covers, with the columns of `plain`
        """
        more = "txn_state" if uncommitted else None
        unclean = self._unclean if self._of_partitions() else []
        scan = self._one_scan(unclean, complete, uncommitted=uncommitted)
        if scan is not None:
            return self._columns(f"({scan})", more)
        branches = [self._nothing()]
        branches += self._of_direct()
        if unclean:
            branches.append(self._of_unclean())
        if uncommitted:
            branches = [f"SELECT *, {_STATE} FROM ({' UNION ALL '.join(branches)})"]
        if complete:
            paths = ", ".join(text(unglobbed(path)) for path in complete)
            state = ", txn_state" if uncommitted else ""
            branches.append(f"SELECT topic, {self._all}{state} FROM read_parquet([{paths}])")
        return self._columns(f"({' UNION ALL '.join(branches)})", more)

    def _nothing(self) -> str:
        """No rows, but the name and type of every column."""
        record = type_of(self._contents[0].relation.record_type) if self._record else None
        return nothing("duckdb", record)

    def markers_of_files(self) -> str | None:
        """The markers in sealed files of partitions, as `txlog_markers`; None: there are none."""
        if not self._unclean or not self._of_partitions():
            return None
        return (
            f"SELECT {self._topic} AS topic, {PARTITION} AS partition, txn_most, txn_least,"
            f" {LEDGER} AS marker_ledger, entry AS marker_entry, publish_time AS visible_time, lsn"
            f" FROM {self._rows('', self._of_partitions())} WHERE kind = {TXN_COMMIT}"
        )

    def _of_partitions(self) -> list[FileSource]:
        return [source for source in self._direct if source.role == "p"]

    def uncommitted(self) -> str:
        """As `committed`, with txn_state, and with messages of open and aborted transactions."""
        select = self._columns(self._visible(everything=False), _STATE)
        if not self.tables[self._of("hidden")].num_rows:
            return select
        return f"{select} UNION ALL {self._columns(f'({self._hidden()})', 'txn_state')}"

    def _hidden(self) -> str:
        """The messages that are not visible."""
        rows = f"FROM {self._of('hidden')} WHERE {_IS_DATA}"
        return f"SELECT {self._at()}, {self._all}, txn_state {rows}"

    def all(self) -> str:
        """The SELECT of rows of all kinds: with kind, txn, its outcome, and the stored position."""
        assert self.everything
        kind = " ".join(f"WHEN {number} THEN '{name}'" for number, name in _KINDS.items())
        more = (
            f"CASE kind {kind} END AS kind,"
            " ((txn_most >> 48) & 65535) || ':' || txn_least AS txn, {state} AS txn_state,"
            " stored_ledger, stored_entry"
        )
        state = f"CASE WHEN txn_index IS NOT NULL OR kind = {TXN_COMMIT} THEN 'committed' END"
        visible = self._columns(self._visible(everything=True), more.format(state=state))
        rows = f"SELECT {self._at()}, {self._all}, txn_state, {_STORED} FROM {self._of('hidden')}"
        return f"{visible} UNION ALL {self._columns(f'({rows})', more.format(state='txn_state'))}"

    def _lsn(self, ledger: str = LEDGER) -> str:
        """The LSN of a row of `direct`; in an adopted file it is the LSN of the ledger."""
        lsns = adopted_lsns(self._direct)
        return f"coalesce(lsn, MAP({[*lsns]}, {[*lsns.values()]})[{ledger}])" if lsns else "lsn"

    def _at(self) -> str:
        """SQL for the topic of a row in a registered table."""
        return f"{self._topic} AS topic" if self._is_one else "topic"

    def _visible(self, *, everything: bool) -> str:
        """Visible rows, in parentheses; everything: of all kinds, with their stored positions."""
        stored = f", {_STORED}" if everything else ""
        lying = ", kind, txn_most, txn_least, {ledger}, {row}" if everything else ""
        data = "" if everything else f" WHERE kind = {KIND_DATA}"
        only = data if self.everything else ""  # otherwise a tail contains only messages
        scan = None if everything else self._one_scan(self._unclean)
        branches = [
            f"SELECT {self._at()}, {self._all}{stored} FROM {table}{only}"
            for table in (self._of("tail"), *self._with_rows(_OPEN["f"]))
        ]
        if scan is not None:
            branches = [*branches[not self._with_rows("tail") :], scan]
        else:
            branches += self._of_direct(lying)
            if self._unclean:
                branches.append(self._of_unclean(lying))
        branches += [
            f"SELECT {self._at()}, {self._named}, publish_time, producer, sequence_id, lsn"
            f"{lying.format(ledger='ledger', row='entry')} FROM {table}{data}"
            for table in self._with_rows("partition_parts", _OPEN["p"])
        ]
        lies = lying.replace(" ", " r.").format(ledger="ledger", row="entry")
        for table in self._with_rows("sidecar_parts", _OPEN["s"]):
            branches.append(self._marked(table, lies))
        if self._large:
            branches.append(
                f"SELECT {self._at()}, {self._all}{stored} FROM {self._of('large')}"
                f" LEFT JOIN ({self._chunks()}) ON {_LEDGER_OF_PATH} = large_ledger"
            )
        return f"({' UNION ALL '.join(branches)})"

    def _with_rows(self, *names: str) -> list[str]:
        tables = map(self._of, names)
        return [name for name in tables if name in self.tables and self.tables[name].num_rows]

    def _of_direct(self, lying: str = "") -> list[str]:
        """SELECTs of rows that need no marker; lying: more columns, and then rows of all kinds."""
        groups = [("whole", self._whole, ""), ("sifted", self._sifted, f" WHERE {_IS_DATA}")]
        if lying:
            groups = [("direct", self._direct, "")]
        return [
            direct_rows(
                self._topic,
                PARTITION,
                LEDGER,
                self._user,
                self._lsn(),
                f"{self._rows(kind, sources, numbered=bool(lying))}{data}",
                lying.format(ledger=LEDGER, row=_ROW),
            )
            for kind, sources, data in groups
            if sources
        ]

    def _one_scan(
        self,
        unclean: Sequence[FileSource],
        complete: Sequence[str] = (),
        *,
        uncommitted: bool = False,
    ) -> str | None:
        """One SELECT of the files of a typed topic and `complete`; None: one scan cannot read them.

        Files that lack a field, or the record, have null there; only files of `complete` have a
        topic.
        """
        sources = [*self._whole, *self._sifted, *unclean]
        if not self._is_one_scan(sources, complete):
            return None
        state = f"coalesce(txn_state, {_STATE_OF})" if complete else _STATE_OF
        more = f", {state} AS txn_state" if uncommitted else ""
        files = self._read_by_name(sources, complete)
        origin = {
            "ledger": "coalesce(marker_ledger, at_ledger)",
            "entry": "coalesce(marker_entry, entry)",
            "visible_time": "at_time",
            "lsn": self._lsn("at_ledger"),
        }
        tests = [f"coalesce(kind, {KIND_DATA}) = {KIND_DATA}" if complete else _IS_DATA]
        if unclean:
            is_joined = f"at_ledger IN ({', '.join(str(source.ref.ledger) for source in unclean)})"
            markers = (
                "SELECT partition AS m_partition, txn_most AS m_most, txn_least AS m_least,"
                " marker_ledger AS m_ledger, marker_entry AS m_entry, visible_time AS"
                f" m_visible_time, lsn AS m_lsn FROM {self._of('markers')}"
            )
            files += (
                f" LEFT JOIN ({markers}) ON m_partition = at_partition"
                f" AND m_most = CASE WHEN {is_joined} THEN txn_most END AND m_least = txn_least"
            )
            origin = {
                name: f"CASE WHEN {is_joined} THEN m_{name} ELSE {how} END"
                for name, how in origin.items()
            }
            tests.append(f"(m_lsn IS NOT NULL OR ({is_joined}) IS NOT true)")
        return (
            f"SELECT {self._topic} AS topic, at_partition AS partition,"
            f" {origin['ledger']} AS ledger, {origin['entry']} AS entry, txn_index, {self._user},"
            f" {origin['visible_time']} AS visible_time, producer, sequence_id,"
            f" {origin['lsn']} AS lsn{more} FROM {files} WHERE {' AND '.join(tests)}"
        )

    def _read_by_name(self, sources: list[FileSource], complete: Sequence[str]) -> str:
        """SQL for a scan of files, with at_partition, at_ledger and at_time, as stored."""
        sources.sort(key=lambda source: source.ref.record != self._record)
        paths = [*complete, *map(self._path, sources)]  # the first sets the order
        is_mixed = bool(complete) or sources[-1].ref.record != self._record
        stored = {"partition": PARTITION, "ledger": LEDGER}
        stored["visible_time"] = "coalesce(visible_time, publish_time)"
        if complete:  # its columns count; its name has no meaning
            stored = {
                column: f"CASE WHEN topic IS NULL THEN {how} ELSE {column} END"
                for column, how in stored.items()
            }
        return (
            f"(SELECT *, {stored['partition']} AS at_partition, {stored['ledger']} AS at_ledger,"
            f" {stored['visible_time']} AS at_time FROM read_parquet("
            f"[{', '.join(text(unglobbed(path)) for path in paths)}], filename = true,"
            f" hive_partitioning = false{', union_by_name = true' * is_mixed}))"
        )

    def _is_one_scan(self, sources: Sequence[FileSource], complete: Sequence[str]) -> bool:
        """Whether the records of the files can be read by the names of their fields."""
        versions = {source.ref.record for source in sources}
        if not sources or not self._record or not (complete or self._record in versions):
            return False
        if any(is_remote(source.ref.path) for source in sources):
            return False
        return all(is_by_name(version, self._schemas, self._record) for version in versions)

    def _of_unclean(self, lying: str = "") -> str:
        """The SELECT of files whose rows must be joined with their markers."""
        rows = (
            f"SELECT *, {PARTITION} AS partition, {LEDGER} AS file_ledger"
            f"{'' if self._is_one else f', {self._topic} AS topic'}"
            f" FROM {self._rows('unclean', self._unclean, numbered=bool(lying))}"
        )
        lies = lying.replace(" ", " r.").format(ledger="file_ledger", row=_ROW)
        return self._marked(f"({rows})", lies)

    def _marked(self, rows: str, lying: str) -> str:
        """The SELECT of rows joined with their markers."""
        user = ", ".join(f"r.{column}" for column in self._shown.split(", "))
        if self._fields:
            user = user.replace(f"r.{RECORD}", f"{self._narrow(f'r.{RECORD}')} AS {RECORD}")
        topic, same = (self._topic, "") if self._is_one else ("r.topic", "m.topic = r.topic AND ")
        return marked_rows(topic, user, rows, self._of("markers"), lying, same=same)

    def _chunks(self) -> str:
        """The SELECT of large messages' values, from their chunks; run only if a query uses it."""
        return (
            f"SELECT {LEDGER} AS large_ledger,"
            " unhex(string_agg(hex(value), '' ORDER BY entry)) AS value"
            f" FROM {self._rows('large', self._large)} GROUP BY large_ledger"
        )

    def _rows(self, kind: str, sources: list[FileSource], *, numbered: bool = False) -> str:
        """SQL for the rows of files, with the column `filename`; numbered: and file_row_number."""
        selects: list[str] = []
        for version, alike in self._by_record(sources):
            near = [source for source in alike if not is_remote(source.ref.path)]
            if near:
                paths = ", ".join(text(unglobbed(self._path(source))) for source in near)
                more = ", file_row_number = true" if numbered else ""
                read = f"read_parquet([{paths}], filename = true, hive_partitioning = false{more})"
                selects.append(self._of_version(version, read))
            if self._remote(kind, version) in self.tables:
                selects.append(self._of_version(version, self._remote(kind, version)))
        if len(selects) == 1:
            return selects[0]
        return f"(FROM {' UNION ALL BY NAME FROM '.join(selects)})"

    def _of_version(self, version: int, rows: str) -> str:
        """SQL for rows whose records have one version, converted to the version of `record`."""
        if version == self._record:
            return rows
        if not version:
            kind = type_of(self._contents[0].relation.record_type)
            return f"(SELECT *, NULL::{kind} AS {RECORD} FROM {rows})"
        record = record_of(version, self._schemas, self._record, RECORD)
        return f"(SELECT * REPLACE ({record} AS {RECORD}) FROM {rows})"

    def _columns(self, source: str, more: str | None = None) -> str:
        """A SELECT of the columns of `messages`; a row without a position has no id."""
        is_message = "ledger IS NOT NULL"
        if more is not None and "stored_entry" in more:
            is_message = f"kind = {KIND_DATA} AND {is_message}"
        return messages_of(source, self._shown, f", {more}" if more else "", is_message)


# --- SQL that DuckDB and Spark both read ----------------------------------------------------------


def nothing(dialect: str, record: str | None = None) -> str:
    """A SELECT without rows, with the name and type of every column of a branch.

    dialect: duckdb or spark
    record:  the type of the column `record`, if there is one
    """
    kinds = [(column, getattr(TYPES[column], dialect)) for column in ("topic", *PLACED)]
    if record is not None:
        kinds.insert(message_columns.MESSAGES.index("visible_time") - 1, (RECORD, record))
    nulls = (f"CAST(NULL AS {kind}) AS {column}" for column, kind in kinds)
    return f"SELECT {', '.join(nulls)} WHERE false"


def direct_rows(
    topic: str, partition: str, ledger: str, user: str, lsn: str, rows: str, more: str = ""
) -> str:
    """A branch: rows of files that need no join, as each row has its marker's position, if any."""
    return (
        f"SELECT {topic} AS topic, {partition} AS partition,"
        f" coalesce(marker_ledger, {ledger}) AS ledger, coalesce(marker_entry, entry) AS entry,"
        f" txn_index, {user}, coalesce(visible_time, publish_time) AS visible_time, producer,"
        f" sequence_id, {lsn} AS lsn{more} FROM {rows}"
    )


def marked_rows(
    topic: str,
    user: str,
    rows: str,
    markers: str,
    more: str = "",
    *,
    same: str = "",
    hint: str = "",
) -> str:
    """A branch: data rows `r` of transactions, at the positions of their markers `m`."""
    return (
        f"SELECT {hint}{topic} AS topic, r.partition, m.marker_ledger AS ledger,"
        f" m.marker_entry AS entry, r.txn_index, {user}, m.visible_time, r.producer,"
        f" r.sequence_id, m.lsn{more} FROM {rows} AS r JOIN {markers} AS m"
        f" ON {same}m.partition = r.partition AND m.txn_most = r.txn_most"
        f" AND m.txn_least = r.txn_least WHERE r.kind = {KIND_DATA}"
    )


def messages_of(
    source: str, user: str, more: str = "", is_message: str = "ledger IS NOT NULL"
) -> str:
    """A SELECT of the columns of `messages` from the columns of branches."""
    return (
        f"SELECT topic, partition, CASE WHEN {is_message} THEN {MESSAGE_ID} END AS message_id,"
        f" ledger, entry, txn_index, {user}, visible_time, producer, sequence_id, lsn,"
        f" {SIZE_BYTES} AS size_bytes{more} FROM {source}"
    )


def files_of(contents: Sequence[RelationContent]) -> Iterator[FileSource]:
    """The files that DuckDB reads by their paths."""
    for content in contents:
        yield from content.relation.direct
        yield from content.relation.unclean
        yield from content.relation.large_files
        yield from content.relation.compacted


def path_below(root: str) -> Callable[[FileSource], str]:
    """A function that returns the full path of a file; root: the store, for files inside it."""

    def path(source: FileSource) -> str:
        at = source.ref.path
        if is_remote(at):
            return without_options(at)
        return local_path(at) or str(PurePath(root, at))

    return path


def name(word: str) -> str:
    """A name, quoted for SQL."""
    return '"' + word.replace('"', '""') + '"'


def text(word: str) -> str:
    """Text, quoted for SQL."""
    return "'" + word.replace("'", "''") + "'"


def unglobbed(path: str) -> str:
    """The path of an existing file, escaped so that it does not act as a pattern.

    A pattern cannot contain a literal backslash. DuckDB takes a path literally if such a file
    exists, so a path with a backslash stays; others are escaped, which versions before 2.0 need.
    """
    if "\\" in path:
        return path
    return "".join(f"[{char}]" if char in "*?[" else char for char in path)

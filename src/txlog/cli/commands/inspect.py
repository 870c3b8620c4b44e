"""Owns the work of `inspect`: finds the object that a word names, prints it or answers on it."""

from __future__ import annotations

import importlib
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from txlog.base.ranges import Range, parse_bound
from txlog.base.startup import json as orjson
from txlog.base.text.messages import BREAKS, Messages
from txlog.cli.call.call import Call
from txlog.cli.line.command import exclusive
from txlog.cli.output.output import check_columns
from txlog.cli.terminal.fields import RECORD_FIELDS, select
from txlog.engine.door.journal import inspect_file
from txlog.errors import InvalidArgument, MessageNotFound, StoreNotFound, Usage

_FILE: Final = "file:"
_SCHEMA: Final = "SELECT column_name AS name, column_type AS type FROM (DESCRIBE FROM this)"
_STATS: Final = (
    "SELECT column_name AS name, column_type AS type, min, max, approx_unique, count AS values,"
    " null_percentage FROM (SUMMARIZE FROM this)"
)
_SAMPLE: Final = "FROM this USING SAMPLE reservoir({rows} ROWS) REPEATABLE (1)"


@dataclass(frozen=True, slots=True)
class Looks:
    """The question that the options ask about the object; without one, the command describes it."""

    sql: str | None
    at: str | None
    isolation: str
    schema: bool
    stats: bool
    row_groups: bool
    frames: bool
    hexdump: str | None
    sample: int | None
    explain: bool

    def check(self) -> None:
        """Refuse questions that exclude each other. Raises Usage."""
        exclusive(
            sql=self.sql,
            schema=self.schema,
            stats=self.stats,
            row_groups=self.row_groups,
            frames=self.frames,
            hexdump=self.hexdump,
            sample=self.sample,
        )
        if self.explain and (self.row_groups or self.hexdump is not None):
            raise Usage("--explain needs a question that SQL answers")

    def statement(self) -> str | None:
        """The question as SQL over `this`."""
        if self.sample is not None:
            return _SAMPLE.format(rows=self.sample)
        if self.schema or self.stats:
            return _SCHEMA if self.schema else _STATS
        return self.sql or ("FROM this" if self.explain or self.frames else None)


def show(call: Call, target: str | None, looks: Looks) -> None:
    """Print the object that a word names, or the answer of the options in `looks`."""
    looks.check()
    answer, path = _found(call, target, looks)
    if looks.hexdump is not None:
        _hexdump(call, answer, path, looks.hexdump)
    elif looks.row_groups or (looks.stats and path is not None and _is_parquet(path)):
        if path is None or not _is_parquet(path):
            raise Usage("--row-groups goes with a Parquet file, or a ledger that is sealed")
        files = importlib.import_module("txlog.client.answers.inspect")
        rows = files.groups_of(path) if looks.row_groups else files.columns_of(path)
        _print(call, pa.Table.from_pylist([_plain(row) for row in rows]))
    elif looks.statement() is not None:
        _ask(call, answer, path, looks)
    else:
        _single(call, answer, path)


def _found(call: Call, target: str | None, looks: Looks) -> tuple[dict[str, Any], str | None]:
    """Return the object that the word names, and the path of its file; None: not one file."""
    if target is not None and target.startswith(_FILE):
        return _file(target.removeprefix(_FILE), looks)
    try:
        client = call.client()
    except StoreNotFound:
        if target is None or not os.path.isfile(target):
            raise
        return _file(target, looks)
    answer: dict[str, Any] = dict(client.inspect(target))
    if answer["kind"] == "file":
        return _file(str(answer["path"]), looks)
    if looks.at is not None and looks.statement() is None:
        answer = dict(client.inspect(f"msg:{_first_at(call, answer, looks.at)}"))
    files = [row["file"] for row in answer.get("file_list", ())] or [answer.get("file")]
    here = os.path.join(client.path, files[0]) if len(files) == 1 and files[0] else None
    return answer, here


def _file(path: str, looks: Looks) -> tuple[dict[str, Any], str]:
    if looks.at is not None:
        raise Usage("--at is a position in a topic")
    return inspect_file(path), path


def _starts(call: Call, answer: Mapping[str, Any], at: str) -> list[tuple[int, int, int, int]]:
    """(partition, ledger, entry, index) of each partition's first message at or after the bound."""
    if answer["kind"] not in ("topic", "partition"):
        raise Usage("--at is a position in a topic")
    topic, client = str(answer["topic"]), call.client()
    bound = parse_bound(at, call.now_ms())
    partition = answer.get("partition")
    positions: list[tuple[int, int, int, int]] = []
    for number in (
        range(client.describe_topic(topic)["partitions"]) if partition is None else [partition]
    ):
        for table in client.read(topic, range=Range(start=bound), partitions=[number], limit=1):
            positions += [
                (number, row["ledger"], row["entry"], row["index"] or 0)
                for row in table.to_pylist()
            ]
    return positions


def _first_at(call: Call, answer: Mapping[str, Any], at: str) -> str:
    """The first message id at or after the bound, in the first partition with such a message."""
    for _, ledger, entry, index in _starts(call, answer, at):
        return f"{ledger}:{entry}:{index}" if index else f"{ledger}:{entry}"
    raise MessageNotFound(f"there is no message at or after {at}")


def _ask(call: Call, answer: dict[str, Any], path: str | None, looks: Looks) -> None:
    """Print the answer of SQL about the object."""
    views = importlib.import_module("txlog.lake.sql.this")
    sql = str(looks.statement())
    if answer["kind"] == "file":
        if looks.frames and answer["type"] != "journal":
            raise Usage("--frames goes with a journal file, or the store")
        query = views.FileQuery(path, sql)
    else:
        if looks.frames and answer["kind"] != "store":
            raise Usage("--frames goes with a journal file, or the store")
        starts = () if looks.at is None else _starts(call, answer, looks.at)
        if looks.at is not None and not starts:
            raise MessageNotFound(f"there is no message at or after {looks.at}")
        this = "FROM frames" if looks.frames else views.select_of(answer, starts)
        query = importlib.import_module("txlog.lake.sql.client_query").Query(
            call.client(), sql, None, looks.isolation, this=this
        )
    with query:
        if looks.explain:
            call.output.text(query.plan())
            return
        rows = query.rows()
        importlib.import_module("txlog.cli.output.query_rows").Printed(
            call.output, call.output.fields
        ).print((rows.schema, iter(rows)))


def _hexdump(call: Call, answer: Mapping[str, Any], path: str | None, byte_range: str) -> None:
    """Print bytes of a file or of a frame; for a frame the offset counts from its start."""
    offset, colon, length = byte_range.partition(":")
    if not (colon and offset.isdecimal() and length.isdecimal() and len(byte_range) < 40):
        raise InvalidArgument(f"--hexdump is OFFSET:LEN, not {byte_range[:40]}", code=203)
    if path is None or answer["kind"] == "message":
        raise Usage("--hexdump goes with a file, a frame or a ledger that is one file")
    start = int(answer["offset"]) if answer["kind"] == "frame" else 0
    count = int(length)
    if answer["kind"] == "frame":
        count = min(count, max(0, int(answer["size_bytes"]) - int(offset)))
    files = importlib.import_module("txlog.client.answers.inspect")
    for line in files.hexdump(path, start + int(offset), count):
        call.output.text(line)


def _single(call: Call, answer: dict[str, Any], path: str | None) -> None:
    """Print the description; on a terminal also the DuckDB command that reads its file."""
    record = answer.pop("record", None)
    embedded = None
    if isinstance(record, pa.Table):
        as_json = call.output.as_json
        lines = Messages(record).json_lines(RECORD_FIELDS, embed=as_json)
        answer = {**(orjson.loads(lines[0].as_py()) if len(lines) else {}), **answer}
        if as_json and answer.get("value_encoding") == "json":
            embedded = orjson.Fragment(record["value"][0].as_py().translate(BREAKS))
    if call.flags.columns is not None:
        check_columns(call.output.fields, list(answer))
    if embedded is not None:  # like consume, embed a JSON value unchanged
        row = select({**answer, "value": None}, call.output.fields or list(answer))
        if "value" in row:
            row["value"] = embedded
        call.output.out.write(orjson.dumps(row) + b"\n")
        return
    call.output.single(answer)
    if call.output.form in ("table", "wide") and path is not None and _is_parquet(path):
        sql = f"FROM read_parquet('{os.path.abspath(path).replace(chr(39), chr(39) * 2)}')"
        call.output.text(f"duckdb -c {shlex.quote(sql)}\n")


def _is_parquet(path: str) -> bool:
    if not Path(path).is_file():
        return False
    is_parquet: bool = importlib.import_module("txlog.client.answers.inspect").is_parquet(path)
    return is_parquet


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose bounds are text: a column has one type, but bounds have many types."""
    return {
        name: str(value) if name in ("min", "max") and value is not None else value
        for name, value in row.items()
    }


def _print(call: Call, table: pa.Table) -> None:
    importlib.import_module("txlog.cli.output.query_rows").Printed(
        call.output, call.output.fields
    ).print((table.schema, iter(table.to_batches())))

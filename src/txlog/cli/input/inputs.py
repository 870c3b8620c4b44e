"""Owns the input formats of `produce`: bytes in, Arrow tables with the line of each record out.

    lines null ndjson   cut by Arrow; with a key delimiter the key is split off first
    envelope csv tsv    parsed record by record into columns
    raw                 each file one message
    %…                  see `percent`; a bad record ends the reading, as the next start is unknown

A table has `line` and `value`, and whichever of key, properties, event_time, deliver_at,
deliver_after, sequence_id and partition the format has. A bad record ends the reading with
BadRecord (104), after the records before it, or is skipped and counted.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final

import pyarrow as pa

from txlog.base.settings import KEY_BYTES_MAX, MESSAGE_BYTES_MAX
from txlog.base.startup import compute as pc
from txlog.base.text import envelopes, formats, records
from txlog.cli.input import columns, percent, rows
from txlog.engine.door.disk import is_of_handler
from txlog.errors import BadRecord, DiskFailed, NotFound

_SEPARATORS = {"null": b"\0"}
_BLOCK_BYTES = 1 << 20


class Input:
    """Reads files, or stdin when there are none.

    header:  the columns of csv and tsv, once they are read
    skipped: bad records skipped so far; with skip_bad false the first one is raised
    aside:   called with the bytes and the error of a bad record; bytes None: it is too large
    warn:    called with a warning for the user
    wait_s:  how long a read may wait before None is yielded
    value_bytes_max: largest size of a record, without its key
    seen:    called with the length of each block that was read
    """

    def __init__(
        self,
        form: str,
        files: Sequence[str],
        *,
        key_delimiter: bytes | None = None,
        skip_bad: bool = False,
        aside: Callable[[bytes | None, BadRecord], None] | None = None,
        require_newline: bool = False,
        now_ms: int = 0,
        warn: Callable[[str], None] = lambda text: None,
        wait_s: Callable[[], float | None] = lambda: None,
        value_bytes_max: int = MESSAGE_BYTES_MAX,
        seen: Callable[[int], None] = lambda size_bytes: None,
    ) -> None:
        self.form = form
        self.files: list[str | None] = [*files] or [None]
        self.key_delimiter = key_delimiter
        self.skip_bad = skip_bad or aside is not None
        self.aside = aside
        self.require_newline = require_newline
        self.now_ms = now_ms
        self.warn = warn
        self.wait_s = wait_s
        self.record_bytes_max = value_bytes_max + KEY_BYTES_MAX
        self.seen = seen
        self.skipped = 0
        self.line = 1
        self.header: list[str] | None = None
        self.percent = percent.InputFormat(form) if "%" in form else None

    def tables(self) -> Iterator[pa.Table | None]:
        """Yield the records as tables of any length; None when no input came for a while.

        raises: BadRecord (104), after the records before it
        """
        for path in self.files:
            yield from self._of(self._blocks(path))

    def parse(self, data: bytes) -> pa.Table:
        """Return the records in complete bytes; empty bytes have no record.

        raises: BadRecord (104)
        """
        tables = [table for table in self._of(iter([data])) if table is not None] if data else []
        if not tables:
            return _table([], pa.array([], pa.binary()))
        return pa.concat_tables(tables, promote_options="default")

    def _blocks(self, path: str | None) -> Iterator[bytes | None]:
        for block in read_blocks(path, self.wait_s, is_packed=self.form != "raw"):
            if block is not None:
                self.seen(len(block))
            yield block

    def _of(self, source: Iterator[bytes | None]) -> Iterator[pa.Table | None]:
        if self.form == "raw":
            yield from self._raw(source)
        elif self.form in ("csv", "tsv"):
            yield from self._delimited(source)
        elif self.percent is not None:
            yield from self._formatted(source, self.percent)
        else:
            yield from self._cut(source)

    def bad(self, error: BadRecord, record: bytes | None) -> None:
        """Count a bad record, set it aside, or raise it."""
        if not self.skip_bad:
            raise error
        if self.aside is not None:
            self.aside(record, error)
            return
        self.skipped += 1
        if self.skipped <= 10:
            self.warn(f"left out: {error.message}")

    def _raw(self, source: Iterator[bytes | None]) -> Iterator[pa.Table | None]:
        value = b"".join(block for block in source if block is not None)
        yield _table([self.line], pa.array([value], pa.binary()))
        self.line += 1

    def _cut(self, source: Iterator[bytes | None]) -> Iterator[pa.Table | None]:
        separator = _SEPARATORS.get(self.form, b"\n")
        for part in records.split_records(source, separator, self.line, self.record_bytes_max):
            if part is None:
                yield None
                continue
            records_cut, line, ended = part
            self.line = line + len(records_cut)
            if not ended and separator == b"\n":
                if self.require_newline:
                    self.bad(
                        records.bad_record(line, "the last line has no newline"),
                        records_cut[0].as_py(),
                    )
                    continue
                if self.form == "lines":
                    self.warn("the last line has no newline")
            lines = pa.arange(line, line + len(records_cut))
            if self.form == "envelope":
                yield from self._envelopes(lines, records_cut)
                continue
            table = pa.table({"line": lines, "value": records_cut})
            if self.key_delimiter is not None:
                yield from self._with_keys(table)
            else:
                yield from self._checked(table)

    def _with_keys(self, table: pa.Table) -> Iterator[pa.Table]:
        """Split `key DELIM value`; a record without the delimiter is bad."""
        pieces = pc.split_pattern(table["value"].combine_chunks(), self.key_delimiter, max_splits=1)
        whole = pc.equal(pc.list_value_length(pieces), 2)
        bad = [
            (at, "no key: the delimiter is missing")
            for at in pc.indices_nonzero(pc.invert(whole)).to_pylist()
        ]
        error = None
        if bad:
            table, pieces, error = self._without(table, bad, pieces)
        if len(table):
            keyed = pa.table(
                {
                    "line": table["line"],
                    "value": pc.list_element(pieces, 1),
                    "key": pc.list_element(pieces, 0),
                }
            )
            yield from self._checked(keyed)
        if error is not None:
            raise error

    def _checked(self, table: pa.Table) -> Iterator[pa.Table]:
        """Check the lines of ndjson; pass other formats through."""
        error = None
        if self.form == "ndjson":
            bad = []
            for at, value in enumerate(table["value"].to_pylist()):
                if (failure := records.json_failure(value)) is not None:
                    bad.append((at, json_reason(value, failure)))
                    if not self.skip_bad:
                        break
            if bad:
                table, _, error = self._without(table, bad, None)
                if error is not None:
                    error.hint = _NOT_JSON
        if len(table):
            yield table
        if error is not None:
            raise error

    def _without(
        self, table: pa.Table, bad: list[tuple[int, str]], parallel: pa.Array | None
    ) -> tuple[pa.Table, pa.Array | None, BadRecord | None]:
        """Return the good rows (also of `parallel`), and the error to raise after them."""
        errors = [records.bad_record(table["line"][at].as_py(), reason) for at, reason in bad]
        if not self.skip_bad:
            stop = bad[0][0]
            return table.slice(0, stop), None if parallel is None else parallel[:stop], errors[0]
        for error, (at, _) in zip(errors, bad, strict=True):
            self.bad(error, table["value"][at].as_py())
        out = {at for at, _ in bad}
        keep = pa.array([at not in out for at in range(len(table))])
        return table.filter(keep), None if parallel is None else parallel.filter(keep), None

    def _envelopes(self, lines: pa.Array, texts: pa.Array) -> Iterator[pa.Table]:
        clean = envelopes.clean(lines, texts)
        if clean is not None:
            yield clean
            return
        rows_held = records.Columns()
        for line, record in zip(lines.to_pylist(), texts.to_pylist(), strict=True):
            try:
                envelopes.envelope_row(rows_held, line, record)
            except BadRecord as error:
                if not self.skip_bad and len(rows_held):
                    yield rows_held.table()
                self.bad(error, record)
        if len(rows_held):
            yield rows_held.table()

    def _delimited(self, source: Iterator[bytes | None]) -> Iterator[pa.Table | None]:
        """Read blocks by `columns`; from the first block that it cannot read on, by `rows`."""
        clean, data = columns.Delimited(self.form, self.line, self.now_ms), b""
        for block in source:
            if block is None:
                yield None
                continue
            data += block
            if b"\n" not in block:
                continue
            read = clean.messages(data)
            if read is None:
                break
            table, stop = read
            data = data[stop:]
            self.header = clean.header
            if len(table):
                self.line = table["line"][-1].as_py() + 1
                yield table
        yield from self._rows(chain([data] if data else [], source), clean)

    def _rows(
        self, source: Iterator[bytes | None], clean: columns.Delimited
    ) -> Iterator[pa.Table | None]:
        rows_held = records.Columns()
        for row in rows.csv_rows(source, self.form, clean, self.now_ms, rows_held):
            self.header = clean.header
            if not row:  # the next row may come late
                if len(rows_held):
                    yield rows_held.table()
                    rows_held.clear()
                if row is None:
                    yield None
            elif isinstance(row, rows.BadRow):
                if not self.skip_bad and len(rows_held):
                    yield rows_held.table()
                self.bad(row.error, row.record)
            else:
                self.line = row + 1
                if len(rows_held) >= 4096:
                    yield rows_held.table()
                    rows_held.clear()
        if len(rows_held):
            yield rows_held.table()

    def _formatted(
        self, source: Iterator[bytes | None], form: percent.InputFormat
    ) -> Iterator[pa.Table | None]:
        rows_held = records.Columns()
        for row in percent.percent_rows(source, form, self.line, self.record_bytes_max):
            if isinstance(row, dict):
                rows_held.add(row)
                self.line += 1
                if len(rows_held) < 4096:
                    continue
            if len(rows_held):
                yield rows_held.table()
                rows_held.clear()
            if row is None:
                yield None
            elif isinstance(row, pa.Table):
                self.line += len(row)
                yield row
            elif isinstance(row, BadRecord):
                raise row
            elif isinstance(row, str):
                if self.require_newline:
                    raise records.bad_record(self.line, row)
                self.warn(row)
        if len(rows_held):
            yield rows_held.table()


_NOT_JSON: Final = (
    "--in lines stores each line as it is; --on-error skip, or dead-letter:TOPIC, stores the others"
)


def json_reason(value: bytes, failure: Exception) -> str:
    """Return why value is not JSON, without quoting the payload."""
    text = str(failure)
    if not value.strip():
        return "empty, not JSON"
    if "unexpected end" in text or "EOF" in text:
        kind = {b"{": "object", b"[": "array", b'"': "string"}.get(value.lstrip()[:1], "value")
        return f"unfinished JSON {kind}"
    reason, _, _ = text.partition(": line")
    return f"not JSON: {reason} at byte {getattr(failure, 'pos', 0) + 1}"


def messages_table(messages: Sequence[bytes]) -> pa.Table:
    """Return the messages of -m as a table; each is one record."""
    return _table(list(range(1, len(messages) + 1)), pa.array(messages, pa.binary()))


def _table(lines: list[int], values: pa.Array) -> pa.Table:
    return pa.table({"line": pa.array(lines, pa.int64()), "value": values})


def check_files(paths: list[str]) -> None:
    """Refuse paths that do not exist or are directories, before anything is written.

    raises: NotFound (308), DiskFailed (102)
    """
    for path in paths:
        if path == "-":
            continue
        if not os.path.exists(path):
            hint = "a file comes here; -m TEXT is a message" if "." not in path else None
            raise NotFound(f"no file {path}", hint=hint, path=path)
        if os.path.isdir(path):
            raise DiskFailed(f"{path} is a directory", path=path)


def read_blocks(
    path: str | None, wait_s: Callable[[], float | None], *, is_packed: bool = False
) -> Iterator[bytes | None]:
    """Yield the bytes of a file, of stdin for None or `-`; None when nothing came in wait_s().

    is_packed: unpack a file whose name ends in .gz or .zst
    raises: BadRecord (104), after the blocks before the damage
    """
    if path is not None and path != "-":
        if is_packed and formats.is_packed(path):
            yield from formats.unpacked(path, is_of_handler)
            return
        with open(path, "rb") as file:
            while block := file.read(_BLOCK_BYTES):
                yield block
        return
    try:
        number = sys.stdin.fileno()
    except (OSError, ValueError, AttributeError):  # closed, or replaced by a test or a notebook
        if sys.stdin is not None and not sys.stdin.closed:
            yield sys.stdin.read().encode("utf-8", "surrogateescape")
        return
    coming = select.poll()  # `select.select` takes no descriptor from 1,024 on
    coming.register(number, select.POLLIN)
    while True:
        seconds = wait_s()
        if not coming.poll(None if seconds is None else max(0, seconds) * 1000):
            yield None
            continue
        data = os.read(number, _BLOCK_BYTES)
        if not data:
            return
        yield data

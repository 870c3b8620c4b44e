"""Owns stdout: the format, listings and single objects in it, and the writer of its bytes.

stdout carries data only. Off a terminal nothing is cut, coloured or moved. The writer uses the file
descriptor itself, so a closed pipe or a full disk raises here instead of at interpreter exit.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final, Protocol

from txlog.cli.output import percent
from txlog.cli.terminal import fields, tables
from txlog.cli.terminal.say import as_json, safe_bytes, with_colored_keys
from txlog.errors import OutcomeUnknown, Usage

if TYPE_CHECKING:
    from txlog.base.rows.fields import Field

_TSV_OUT: Final = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_TSV_IN: Final = {written: char for char, written in _TSV_OUT.items()}
_TSV_ESCAPES: Final = str.maketrans(_TSV_OUT)
_CSV_MARKS: Final = frozenset(',"\n\r')
_CSV_EMPTY: Final = '""'  # a line of one empty cell
_TSV_ESCAPED: Final = re.compile(r"\\[\\tnr]")
LISTING_FORMS: Final = ("json", "ndjson", "table", "wide", "md", "tsv", "csv", "names", "help")
RECORD_FORMS: Final = ("json", "ndjson", "tsv", "csv", "raw", "lines", "envelope", "help")
_JSON_FORMS: Final = ("json", "ndjson", "envelope")
RESULT_FORMS: Final = ("json", "ndjson", "help")
_NUMBERS: Final = ("ledger", "coordinator", "lsn")  # numbers that identify a row, like a name
_BLOCK_BYTES: Final = 1 << 16


class PipeGone(Exception):
    """The reader of stdout has closed the pipe."""


class Stdout:
    """The bytes of stdout, written in blocks.

    On a terminal, control characters are escaped (terminal/say).
    allowed:      sequences to write unescaped, because the user's own format contains them
    colored_json: the output is JSON for a person: its keys are in colour, on a terminal only
    """

    def __init__(self) -> None:
        self._is_terminal = stdout_is_terminal()
        self.allowed: list[str] = []
        self.colored_json = False
        self._parts: list[bytes] = []
        self._bytes = 0
        self.each = False
        self.taken = 0  # bytes passed to write
        self.gone = 0  # bytes that the descriptor has accepted

    def write(self, data: bytes | memoryview, *, is_drawn: bool = False) -> None:
        """Buffer data, and write a full block; data larger than a block is written uncopied.

        is_drawn: the caller has escaped text from the store, and added colours: write it as it is
        """
        if self._is_terminal and not is_drawn:
            data = safe_bytes(bytes(data), self.allowed)
            if self.colored_json:
                data = with_colored_keys(data)
        self.taken += len(data)
        if len(data) >= _BLOCK_BYTES:
            self.flush()
            _write(data)
            self.gone = self.taken
            return
        self._parts.append(bytes(data))
        self._bytes += len(data)
        if self.each or self._bytes >= _BLOCK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the buffered bytes.

        raises: PipeGone; OSError when stdout cannot take it
        """
        data = b"".join(self._parts)
        self._parts, self._bytes = [], 0
        if data:
            _write(data)
            self.gone += len(data)


def _write(data: bytes | memoryview) -> None:
    try:
        _write_all(data)
    except BrokenPipeError as error:
        raise PipeGone from error


def _write_all(data: bytes | memoryview) -> None:
    if sys.stdout is None:
        raise OSError("standard output is closed")
    try:
        number = sys.stdout.fileno()
    except (OSError, ValueError, AttributeError):  # a test or a notebook has replaced stdout
        sys.stdout.write(bytes(data).decode("utf-8", "surrogateescape"))
        return
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(number, view) :]
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            raise OSError(error.errno, f"standard output: {error.strerror}") from error


def silence_stdout() -> None:
    """Discard the bytes that the interpreter still buffers for stdout."""
    try:
        number = sys.stdout.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)
    except (OSError, ValueError, AttributeError):
        pass  # there is no descriptor to silence


# Forms in which each row is written without knowledge of the others.
_ROW_BY_ROW: Final = ("json", "ndjson", "tsv", "csv", "names")

# Forms of `export -f`, too: they apply to the table it writes, not to its own output.
_OF_EXPORT: Final = ("delta", "iceberg", "hive")
EXPORT_FORMS: Final = ("parquet", "arrow", "csv", "tsv", "ndjson")


class _Flags(Protocol):
    format: str | None
    json: bool
    columns: str | None
    color: str | None
    utc: bool


class Described(Protocol):
    path: str
    records: bool
    changes: bool
    input_format: bool

    @property
    def row_fields(self) -> list[Field]: ...
    @property
    def fields(self) -> list[str]: ...
    @property
    def other_fields(self) -> list[str]: ...
    @property
    def table_fields(self) -> list[str]: ...


class Output:
    """The chosen format, and how results are printed in it."""

    def __init__(self, form: str, command: Described, look: tables.Look) -> None:
        self.form = form
        self.command = command
        self.look = look
        self.out = Stdout()
        self.is_empty = False  # a table without rows was printed
        self.extra: dict[str, object] = {}  # fields added to every result
        self.asked: list[str] | None = None  # the columns of --columns

    @cached_property
    def row_fields(self) -> list[Field]:
        """The fields of the printed rows, as declared in base/rows; empty: undeclared."""
        return self.command.row_fields

    @cached_property
    def fields(self) -> list[str]:
        """The names of the fields in JSON and in -f wide."""
        return self.command.fields

    @cached_property
    def shown(self) -> list[str]:
        """The names of the columns of a table."""
        return self.command.table_fields

    @property
    def as_json(self) -> bool:
        """Whether results are JSON."""
        return self.form in ("json", "ndjson")

    def text(self, text: str) -> None:
        """Print text; on a terminal, with control characters escaped."""
        self.out.write(text.encode("utf-8", "surrogateescape"))

    def drawn(self, text: str) -> None:
        """Print text with our own colours; `printable` has escaped the stored text in it."""
        self.out.write(text.encode("utf-8", "surrogateescape"), is_drawn=True)

    def field_help(self) -> None:
        """Print the meanings of the fields."""
        declared = {field.name: field for field in self.row_fields}
        self.text(fields.help_lines(declared[name] for name in self.fields if name in declared))

    def print_instead(self, row: str) -> None:
        """Print rows of this type (`delayed.DueWithin`) instead of the command's."""
        declared = importlib.import_module("txlog.base.rows.fields")
        self.row_fields = declared.fields_of(declared.row_of(row))
        names = [field.name for field in self.row_fields]
        if self.asked is not None:
            check_columns(self.asked, names)
        self.fields = self.shown = self.asked or names

    def rows(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Print a listing."""
        if self.as_json:
            picked = [fields.select(row, self._json_fields(row)) for row in rows]
            if self.form == "json":
                self.text(as_json(picked) + "\n")
            else:
                self.text("".join(f"{as_json(row)}\n" for row in picked))
            return
        names = self.fields if self.form == "wide" else self.shown
        picked = [fields.select(row, names) for row in rows]
        if self.form == "names":
            name = self._first_name(names)
            values = (row[name] for row in picked if row[name] is not None)
            self.text("".join(f"{tables.cell(value)}\n" for value in values))
        elif self.form in ("tsv", "csv"):
            self.text(delimited(self.form, names, [list(row.values()) for row in picked]))
        else:
            importance = {field.name: field.importance for field in self.row_fields}
            markdown = self.form == "md"
            self.drawn(
                tables.table(names, picked, self.look, markdown=markdown, importance=importance)
            )
            self.is_empty = not rows

    def listing(self, batches: Iterable[Sequence[Mapping[str, object]]]) -> None:
        """Print a listing batch by batch; only a table collects all rows first.

        Its bytes equal the output of `rows` for all rows together.
        """
        if self.form not in _ROW_BY_ROW:
            self.rows([row for batch in batches for row in batch])
            return
        is_first, is_list = True, self.form == "json"
        for batch in batches:
            if not batch:
                continue
            if is_list:
                picked = [fields.select(row, self._json_fields(row)) for row in batch]
                self.text(("[" if is_first else ",") + as_json(picked)[1:-1])
            elif is_first or self.form not in ("tsv", "csv"):
                self.rows(batch)
            else:
                cells = [list(fields.select(row, self.shown).values()) for row in batch]
                self.text(delimited(self.form, None, cells))
            is_first = False
        if is_first:
            self.rows([])
        elif is_list:
            self.text("]\n")

    def single(self, row: Mapping[str, object]) -> None:
        """Print one object; a table has a row for each field, with its value."""
        if self.as_json:
            self.text(as_json(fields.select(row, self._json_fields(row))) + "\n")
            return
        names = self._json_fields(row)
        picked = fields.select(row, names)
        if self.form == "names":
            self.text(f"{tables.cell(picked[self._first_name(names)])}\n")
            return
        if self.form in ("tsv", "csv"):
            pairs = [[name, value] for name, value in picked.items()]
            self.text(delimited(self.form, ["field", "value"], pairs))
            return
        self.drawn(tables.pairs(picked, self.look, markdown=self.form == "md"))

    def result(self, row: Mapping[str, object]) -> None:
        """Print the result object of a change when --json asks for it.

        raises: OutcomeUnknown (1001) when it cannot be printed: the change is durable
        """
        if self.as_json:
            row = {**row, **self.extra}
            self.answer(as_json(fields.select(row, self._json_fields(row))) + "\n")

    def answer(self, text: str) -> None:
        """Print the answer of a change, which is durable even if printing fails.

        raises: OutcomeUnknown (1001)
        """
        try:
            self.text(text)
            self.out.flush()
        except OSError as error:
            silence_stdout()
            raise OutcomeUnknown(
                f"done, but the answer could not be printed: {error.strerror or error}"
            ) from error

    def _first_name(self, names: Sequence[str]) -> str:
        """The first id or name that is not topic or partition; if there is none, topic.

        An answer without a declared row begins with its name.
        raises: Usage (201) for a listing without one
        """
        types = {field.name: field.type for field in self.row_fields}
        for name in names:
            kind = types.get(name, "" if types else "string")
            if name in _NUMBERS or (
                name not in ("topic", "partition") and kind in ("TxnID", "message id", "string")
            ):
                return name
        if "topic" not in names:
            raise Usage("-f names: there is no name or id here")
        return "topic"

    def _json_fields(self, row: Mapping[str, object]) -> list[str]:
        return self.fields or list(row)


def output_for(command: Described, flags: _Flags, environ: Mapping[str, str]) -> Output:
    """Return the output that flags and environment select.

    raises: Usage (201) for a format the command does not have, or an unknown column
    """
    form = _form(command, flags, environ)
    terminal = stdout_is_terminal()
    if form == "auto":
        if command.records:
            form = "line" if terminal else "ndjson"
        elif not command.changes:
            form = "table" if terminal else "tsv"
    look = tables.look(terminal, flags.color or "auto", flags.utc, environ)
    output = Output(form, command, look)
    if flags.columns is not None:
        names = [name.strip() for name in flags.columns.split(",") if name.strip()]
        if not names:
            raise Usage("--columns names no column")
        if command.fields:  # without declared fields, the answer checks them
            check_columns(names, [*command.fields, *command.other_fields])
        output.shown = output.fields = output.asked = names
    output.out.colored_json = look.color and form in _JSON_FORMS
    if command.records and "%" in form:
        output.out.allowed = percent.controls(form)
    return output


def check_columns(names: Sequence[str], columns: Sequence[str]) -> None:
    """Refuse an unknown column. Raises Usage (201)."""
    for name in names:
        if name not in columns:
            raise Usage(f"no column {name[:60]}", hint=f"columns: {' '.join(columns)}")


def _form(command: Described, flags: _Flags, environ: Mapping[str, str]) -> str:
    forms: tuple[str, ...] = LISTING_FORMS
    if command.records:
        forms = RECORD_FORMS
    elif command.changes:
        forms = RESULT_FORMS
    if flags.format is not None and command.records and "%" in flags.format:
        # Report a bad format before opening a store; commands without %w refuse it themselves.
        percent.Format(flags.format, watermarks=True, stored=True)
    if flags.json:
        other = None if command.input_format or flags.format in _OF_EXPORT else flags.format
        if other not in (None, "json"):
            raise Usage(f"--json and -f {other[:40]} exclude each other", hint="--json is -f json")
        return "json"
    if command.input_format:
        return "auto"
    word = flags.format
    if word in _OF_EXPORT and command.path == "export":
        return "auto"
    if word is None:
        word = environ.get("TXLOG_FORMAT", "auto")
        return word if word in forms or (command.records and "%" in word) else "auto"
    if word in (*forms, "auto") or (command.records and "%" in word):
        return word
    excerpt = word if len(word) <= 40 else f"{word[:37]}..."
    hint = f"-f takes auto {' '.join(forms)}"
    if command.path == "export" and word in EXPORT_FORMS:
        hint = f"--to {word} writes this format; -f is the format of the summary"
    raise Usage(f'no format "{excerpt}" here', hint=hint)


def delimited(form: str, header: Sequence[str] | None, rows: Sequence[Sequence[object]]) -> str:
    """Return rows as tsv or csv, with a header if one is given."""
    if form == "tsv":
        lines = [] if header is None else ["\t".join(header)]
        lines += ["\t".join(tsv_cell(tables.cell(value)) for value in row) for row in rows]
        return "".join(f"{line}\n" for line in lines)
    lines = [] if header is None else [",".join(map(csv_cell, header))]
    lines += [",".join([csv_cell(tables.cell(value)) for value in row]) for row in rows]
    return "".join(f"{line or _CSV_EMPTY}\n" for line in lines)


def csv_cell(text: str) -> str:
    """Return text, quoted if it contains a comma, a quote or the end of a line."""
    return '"' + text.replace('"', '""') + '"' if _CSV_MARKS & set(text) else text


def tsv_cell(text: str) -> str:
    """Return text with tab, newline, carriage return and backslash escaped."""
    if not _TSV_OUT.keys() & set(text):
        return text
    return text.translate(_TSV_ESCAPES)


def tsv_text(cell: str) -> str:
    """Undo `tsv_cell`; a backslash before any other letter stays."""
    return _TSV_ESCAPED.sub(lambda match: _TSV_IN[match[0]], cell) if "\\" in cell else cell


def stdout_is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    try:
        return sys.stdout is not None and sys.stdout.isatty()
    except ValueError:
        return False

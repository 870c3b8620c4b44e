"""Owns the source of a bulk load: files and their form, their identity, the selected columns.

The bytes identify a source, at any path. The same bytes in another form or with other columns would
double its rows, so a batch is named `source BYTES SELECTION`: the start of the name finds it.

DuckDB's own message about a bad file names options that users cannot set here, and quotes the line.
So this module reads a rejected csv or ndjson file once more, and names its first bad line.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal, cast

import pyarrow as pa

from txlog.base.text import envelopes, formats, records
from txlog.engine.door.disk import is_of_handler
from txlog.errors import BadRecord, InvalidArgument, NotFound, SqlError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Form = Literal["parquet", "csv", "tsv", "ndjson", "arrow", "envelope"]
# Forms that every engine reads; this process also reads forms of export, and compressed files.
OF_ENGINES: Final[tuple[Form, ...]] = ("parquet", "csv", "ndjson")
OF_IMPORT: Final[tuple[Form, ...]] = (*OF_ENGINES, "tsv", "arrow", "envelope")
# Text that is base64; some decoders accept more, and decode it to something.
BASE64: Final = "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
COMMAS: Final = "a csv has commas between its fields; here they may be ;"
# Text of an instant as a number, in the form of `parse_stored`.
SECONDS: Final = "[0-9]{9,10}"
MILLISECONDS: Final = "[0-9]{1,19}|-[0-9]{14,19}"
# Text of an instant without an offset: it is local time.
LOCAL: Final = "[0-9]+[-/][0-9]+[-/][0-9]+([T ]+[0-9:.]*)? *"
SKIPPED: Final = "the local clocks skip it: add an offset, as in 02:30Z"
SHOWN_TWICE: Final = "the local clocks show it twice: add an offset, as in 02:30Z"
NO_NAME: Final = "the local zone has no name: set TZ, as in TZ=Europe/Berlin, or add an offset"
# The columns that a replayed message keeps, and the property that names its source, TOPIC:ID.
KEPT: Final = ("key", "value", "properties", "event_time", "deliver_at")
PROPERTY: Final = "replay_of"
# With DuckDB from a pa.Table to a pa.Table, with Spark from a DataFrame to a DataFrame.
Transform = Callable[[Any], Any]
BLOCK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a source for fields of a message; None: the column of that name, if any.

    value: None and no column `value`: the whole row as a JSON object; with ndjson always the line,
           whose members are the other columns
    values: these columns as a JSON object
    """

    key: str | None = None
    value: str | None = None
    event_time: str | None = None
    values: tuple[str, ...] = ()


_RECORD: Final = " record"


@dataclass(frozen=True, slots=True)
class Identity:
    """What identifies a source: its bytes alone, wherever the files are.

    content:   a digest of the bytes of the files, in their order
    selection: a digest of their form and of the selected columns
    older:     the names of such a batch up to version 0.2.0, without records and with them
    """

    content: str
    selection: str
    older: tuple[str, str]

    @property
    def prefix(self) -> str:
        """The start of the names of all batches with these bytes."""
        return f"source {self.content} "

    def name(self, *, has_records: bool) -> str:
        """The name of a batch; has_records: its rows become records, otherwise bytes."""
        return f"{self.prefix}{self.selection}{_RECORD if has_records else ''}"

    def is_same(self, name: str, *, records: bool) -> bool:
        """Whether a batch with these bytes has the same rows as this source.

        records: only if they are records; otherwise it does not matter whether they are
        """
        if name in self.older:
            return not records or name == self.older[1]
        same = name.removesuffix(_RECORD) == self.name(has_records=False)
        return same and (not records or name.endswith(_RECORD))


def _digest(path: str) -> bytes:
    """The SHA-256 of a file."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def encoded(source: Files, names: Sequence[str]) -> list[tuple[str, str, str]]:
    """Text columns of a source that have a column for their encoding, as an export writes them.

    names:   the columns of the source
    returns: (value or key, its column, the column of its encoding) for each
    """
    chosen = source.columns
    columns = {"value": chosen.value or "value", "key": chosen.key or "key"}
    if chosen.values:
        del columns["value"]
    pairs = [(name, column, f"{column}_encoding") for name, column in columns.items()]
    return [pair for pair in pairs if pair[1] in names and pair[2] in names]


def columns_of(key: str | None, values: str | None, event_time: str | None) -> Columns:
    """Parse a command's options; values: names with commas, several become one JSON object."""
    chosen = [word.strip() for word in (values or "").split(",") if word.strip()]
    if len(chosen) == 1:
        return Columns(key, chosen[0], event_time)
    return Columns(key, None, event_time, tuple(chosen))


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a source, in order of their paths.

    infer:  the topic gets the schema that the columns imply
    record: the columns that are fields of a record, each with the SQL that converts it, {} for the
            column, None as it is; empty: the value is bytes
    """

    form: Form
    paths: list[str]
    columns: Columns
    infer: bool = False
    record: tuple[tuple[str, str | None], ...] = ()

    def identity(self) -> Identity:
        """The identity of the source; it reads all files."""
        digests = b"".join(map(_digest, self.paths))
        selection = (self.form, self.columns)
        older = [
            hashlib.sha256(repr(words).encode() + digests).hexdigest()
            for words in (selection, (*selection, "record"))
        ]
        return Identity(
            hashlib.sha256(digests).hexdigest(),
            hashlib.sha256(repr(selection).encode()).hexdigest()[:16],
            (f"source {older[0]}", f"source {older[1]}"),
        )

    def check_whole(self) -> None:
        """Unpack compressed files, because DuckDB takes a truncated zstd file for a complete one.

        raises: BadRecord: a file ends too early, is damaged, or has another compression
        """
        for path in self.paths:
            if formats.is_packed(path):
                for _ in unpacked(path):
                    pass

    @contextmanager
    def with_plain_names(self) -> Iterator[Files]:
        """The same files under names that DuckDB and Arrow take literally.

        They take paths of UTF-8 only, and DuckDB reads some characters of a path as a pattern, in
        which a backslash cannot be escaped. Such a file temporarily gets a link with a plain name.
        """
        if all(map(_is_plain, self.paths)):
            yield self
            return
        with TemporaryDirectory(prefix="txlog-") as folder:
            paths = []
            for number, path in enumerate(self.paths):
                link = Path(
                    folder, f"{number}{Path(path).suffix if formats.is_packed(path) else ''}"
                )
                link.symlink_to(path)
                paths.append(str(link))
            yield replace(self, paths=paths)

    def has_short_lines(self) -> bool:
        """Whether certainly no line, or row of csv, is longer than two blocks."""
        return all(map(self._has_short_lines, self.paths))

    def _has_short_lines(self, path: str) -> bool:
        if formats.is_packed(path):
            return False
        with Path(path).open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                if len(block) == BLOCK_BYTES and b"\n" not in block:
                    return False
                if self.form == "csv" and b'"' in block:  # a row may have several lines
                    return False
        return True


def _is_plain(path: str) -> bool:
    """Whether a path is UTF-8 without characters of DuckDB's patterns."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return not set(path) & set("*?[]{}\\")


def unpacked(path: str) -> Iterator[bytes]:
    """As formats.unpacked."""
    return formats.unpacked(path, is_of_handler)


# Columns that are stored; other members of an envelope are checked and then dropped.
_OF_MESSAGES: Final = ("value", "key", "properties", "event_time", "deliver_at", "deliver_after")


def envelope_tables(source: Files) -> Iterator[pa.Table]:
    """The messages of a source of envelopes, in the order of its files.

    It reads lines like `produce`, so both accept and refuse the same. DuckDB's JSON accepts a
    number as text, and text as a number.

    raises: BadRecord at the first line that is not an envelope
    """
    for path in source.paths:
        try:
            for table in _envelopes_of(path):
                yield table.select([name for name in _OF_MESSAGES if name in table.column_names])
        except BadRecord as error:
            if "path" not in error.fields:
                error.message = f"{path}: {error.message}"
                error.fields["path"] = path
            raise


def _envelopes_of(path: str) -> Iterator[pa.Table]:
    for part in records.split_records(unpacked(path), b"\n", 1):
        assert part is not None
        texts, first, _ = part
        lines = pa.arange(first, first + len(texts))
        clean = envelopes.clean(lines, texts)
        if clean is None:
            columns_held = records.Columns()
            for line, record in zip(lines.to_pylist(), texts.to_pylist(), strict=True):
                envelopes.envelope_row(columns_held, line, record)
            clean = columns_held.table()
        yield clean


def files_of(
    paths: Sequence[str],
    form: str | None,
    columns: Columns,
    forms: Sequence[Form] = OF_ENGINES,
    *,
    infer: bool = False,
) -> Files:
    """The files that paths name: files, and all with a known suffix below directories.

    form:   None: by their suffixes, which must agree
    forms:  the allowed forms; with OF_IMPORT lines may be compressed, as .csv.gz or .ndjson.zst
    infer:  as in Files
    raises: NotFound, InvalidArgument
    """
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            files += [
                path_found
                for path_found in sorted(path.rglob("*"))
                if path_found.is_file()
                and _has_form(path_found, forms)
                and not _is_hidden(path_found, path)
            ]
        elif path.is_file():
            files.append(path)
        else:
            raise NotFound(
                f"{path} is not a regular file" if path.exists() else f"there is no {path}",
                path=str(path),
            )
    if not files:
        suffixes = ", ".join(suffix for suffix, of in formats.SUFFIXES.items() if of in forms)
        raise NotFound(f"no file with {suffixes} below {', '.join(paths)}")
    by_suffix = formats.chosen_form([str(file) for file in files], form, "--in")
    chosen = next((allowed for allowed in forms if allowed == by_suffix), None)
    if by_suffix is None or (chosen is None and form is None):
        formats.check_form(str(files[0]), by_suffix, forms, f"--in {'|'.join(forms)}")
    if chosen is None:
        *others, last = forms
        raise InvalidArgument(f"a source is {', '.join(others)} or {last}, not {form}")
    if chosen == "envelope" and columns != Columns():
        raise InvalidArgument("an envelope already has a key and a value")
    if chosen == "ndjson" and (columns.value is not None or columns.values):
        raise InvalidArgument("with ndjson the value is the line: there is no value column")
    return Files(chosen, [str(path_found.absolute()) for path_found in files], columns, infer)


def _has_form(path: Path, forms: Sequence[Form]) -> bool:
    """Whether a file below a directory belongs to a source: its suffix is of one of `forms`."""
    if "envelope" not in forms and formats.is_packed(path.name):
        return False
    try:
        return formats.suffix_form(path.name) in forms
    except InvalidArgument:
        return False


def _is_hidden(path: Path, root: Path) -> bool:
    return any(part[0] in "._" for part in path.relative_to(root).parts)


# --- errors for rejected files --------------------------------------------------------------------


_FIELD_BYTES_MAX: Final = 1 << 24  # DuckDB's limit for a line
# Starts of the unhelpful part of a message: our statements, options, lines of the file.
_ENDS: Final = ("LINE 1:", "Original Line:", "Possible ", "The search space")


@contextmanager
def telling(source: Files) -> Iterator[None]:
    """Turn DuckDB's error about the files into an error that names file and line.

    raises: BadRecord for a SqlError
    """
    try:
        yield
    except SqlError as error:
        for path in source.paths:
            if source.form in ("csv", "tsv"):
                _check_rows(source, path, error)
            elif source.form == "ndjson":
                _check_text(path, error)
        text = str(error)
        for end in _ENDS:
            text = text.partition(end)[0].strip()
        raise BadRecord(text) from error


def no_objects(source: Files, count: int) -> BadRecord:
    """The error for `count` lines that are not JSON objects; it names the place of the first."""
    more = f", and {count - 1} more" if count > 1 else ""
    for path in source.paths:
        with _opened(path) as file:
            for number, line in enumerate(_lines(path, file), start=1):
                if not _is_object(line):
                    error = _bad(path, number, f"not a JSON object{more}")
                    error.hint = (
                        "produce TOPIC FILE --in lines stores each line as it is; "
                        "produce --in ndjson --on-error skip stores the others"
                    )
                    return error
    return BadRecord(
        f"{count} line{'s are not JSON objects' if count > 1 else ' is not a JSON object'}"
    )


def _is_object(line: str) -> bool:
    return records.json_failure(line.encode()) is None and line.lstrip(" \t\r\n").startswith("{")


def _check_rows(source: Files, path: str, error: SqlError) -> None:
    """Raises BadRecord at the first line of a csv file that is not a row of its header's length, or
    whose text does not match its encoding."""
    csv.field_size_limit(_FIELD_BYTES_MAX)
    with _opened(path) as file:
        rows = _rows(source.form, _lines(path, file))
        header: list[str] = []
        number = 0
        try:
            for number, row in rows:
                if not header:
                    header = row
                    pairs = encoded(source, header)
                elif row and len(row) != len(header):
                    fields = f"{len(row)} field{'s' * (len(row) != 1)}"
                    fault = f"{fields} where the header has {len(header)}"
                    bad = _bad(path, number, fault)
                    if source.form == "csv" and ";" in "".join(header):
                        bad.hint = COMMAS
                    raise bad from error
                elif row:
                    cells = dict(zip(header, row, strict=True))
                    for name, column, encoding in pairs:
                        reason = _misencoded(name, cells[column], cells[encoding])
                        if reason is not None:
                            raise _bad(path, number, reason) from error
        except csv.Error as found:
            fault = str(found)
            if "end of data" in fault:
                fault = "a quote is open at the end of the file"
            raise _bad(path, number + 1, fault) from error
        except (EOFError, OSError) as found:
            raise BadRecord(f"{path}: {found}", path=path) from error


def _rows(form: Form, lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    """The rows of csv or tsv, each with the number of its last line."""
    if form == "tsv":
        for number, line in enumerate(lines, start=1):
            yield number, line.rstrip("\r\n").split("\t")
        return
    rows = csv.reader(lines, strict=True)
    for row in rows:
        yield rows.line_num, row


def _misencoded(name: str, text: str, encoding: str) -> str | None:
    """The fault of a text with its encoding, in words; None: no fault that CSV shows."""
    if not encoding:
        return f"{name} without {name}_encoding" if text else None
    if encoding not in ("utf8", "base64"):
        return f"{name}_encoding is utf8, base64 or nothing"
    if encoding == "base64" and not re.fullmatch(BASE64, text):
        return f"{name} is not base64"
    return None


def _check_text(path: str, error: SqlError) -> None:
    """Raises BadRecord at the first line of a file that is not UTF-8."""
    with _opened(path) as file:
        try:
            for _ in _lines(path, file):
                pass
        except (EOFError, OSError) as found:
            raise BadRecord(f"{path}: {found}", path=path) from error


def _opened(path: str) -> BinaryIO:
    return cast(BinaryIO, io.BufferedReader(_Unpacked(path)))


class _Unpacked(io.RawIOBase):
    """The bytes of a file, unpacked; raises as `unpacked`."""

    def __init__(self, path: str) -> None:
        self._blocks = unpacked(path)
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        if not self._left:
            self._left = memoryview(next(self._blocks, b""))
        view = memoryview(buffer)
        size = min(len(view), len(self._left))
        view[:size], self._left = self._left[:size], self._left[size:]
        return size


def _lines(path: str, file: BinaryIO) -> Iterator[str]:
    for number, line in enumerate(file, start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise _bad(path, number, "not UTF-8") from None


def _bad(path: str, line: int, reason: str) -> BadRecord:
    return BadRecord(f"{path}: line {line}: {reason}", path=path, line=line)

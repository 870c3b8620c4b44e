"""Owns the source of a bulk load: files and their form, their identity, the selected columns.

Its content identifies a source: the same bytes again are the same source, at any path.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

import pyarrow as pa

from txlog.engine.door.disk import is_of_handler
from txlog.errors import BadRecord, InvalidArgument, NotFound

Form = Literal["parquet", "csv", "ndjson", "arrow", "envelope"]
_SUFFIXES: Final[dict[str, Form]] = {
    ".parquet": "parquet", ".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson",
    ".arrow": "arrow",
}  # fmt: skip
# Forms that every engine reads; this process also reads forms of export, and compressed files.
OF_ENGINES: Final[tuple[Form, ...]] = ("parquet", "csv", "ndjson")
OF_IMPORT: Final[tuple[Form, ...]] = (*OF_ENGINES, "arrow", "envelope")
_PACKED: Final = {".gz": "gzip", ".zst": "zstd"}
# Text that is base64; some decoders accept more, and decode it to something.
BASE64: Final = "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
# Text of an instant as a number, in the form of `parse_instant`.
SECONDS: Final = "[0-9]{9,10}"
MILLISECONDS: Final = "[0-9]{1,19}|-[0-9]{14,19}"
# The property of a replayed message that names its source: TOPIC:MESSAGE-ID.
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


def encoded(source: Files, names: Sequence[str]) -> list[tuple[str, str, str]]:
    """Text columns of a source with a column for their encoding, as an export writes them.

    names:   the columns of the source
    returns: value or key, its column, and the column of its encoding
    """
    chosen = source.columns
    columns = {"value": chosen.value or "value", "key": chosen.key or "key"}
    if chosen.values:
        del columns["value"]
    pairs = [(name, column, f"{column}_encoding") for name, column in columns.items()]
    return [pair for pair in pairs if pair[1] in names and pair[2] in names]


def columns_of(key: str | None, values: str | None, event_time: str | None) -> Columns:
    """Parse a command's options; values: names with commas, one unchanged, several as JSON."""
    chosen = [word.strip() for word in (values or "").split(",") if word.strip()]
    if len(chosen) == 1:
        return Columns(key, chosen[0], event_time)
    return Columns(key, None, event_time, tuple(chosen))


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a source, in order of their paths.

    infer:  the topic gets the schema that the columns imply
    record: the columns that are fields of a record, each with the DuckDB type to which a text is
            converted; empty: the value is bytes
    """

    form: Form
    paths: list[str]
    columns: Columns
    infer: bool = False
    record: tuple[tuple[str, str | None], ...] = ()

    def name(self) -> str:
        """The identity of the source: a digest of its bytes and of the selected columns."""
        selection = (self.form, self.columns, *(["record"] if self.record else []))
        digest = hashlib.sha256(repr(selection).encode())
        for path in self.paths:
            of_file = hashlib.sha256()
            with Path(path).open("rb") as file:
                while block := file.read(BLOCK_BYTES):
                    of_file.update(block)
            digest.update(of_file.digest())
        return f"source {digest.hexdigest()}"

    def check_whole(self) -> None:
        """Unpack compressed files, because DuckDB takes a truncated zstd file for a complete one.

        raises: BadRecord: a file ends too early, is damaged, or has another compression
        """
        for path in self.paths:
            if _is_packed(path):
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
                link = Path(folder, f"{number}{Path(path).suffix if _is_packed(path) else ''}")
                link.symlink_to(path)
                paths.append(str(link))
            yield replace(self, paths=paths)

    def has_short_lines(self) -> bool:
        """Whether no line, or no row of csv, is longer than two blocks; False: unknown."""
        return all(map(self._has_short_lines, self.paths))

    def _has_short_lines(self, path: str) -> bool:
        if _is_packed(path):
            return False
        with Path(path).open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                if len(block) == BLOCK_BYTES and b"\n" not in block:
                    return False
                if self.form == "csv" and b'"' in block:  # a row may have several lines
                    return False
        return True


def _is_packed(path: str) -> bool:
    return path.endswith(tuple(_PACKED))


def _is_plain(path: str) -> bool:
    """Whether a path is UTF-8 without characters of DuckDB's patterns."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return not set(path) & set("*?[]{}\\")


def unpacked(path: str) -> Iterator[bytes]:
    """The bytes of a file in blocks, unpacked according to its suffix.

    raises: BadRecord: it ends too early, or cannot be unpacked
    """
    packed = _PACKED.get(Path(path).suffix)
    with Path(path).open("rb") as file:
        if packed is None:
            while block := file.read(BLOCK_BYTES):
                yield block
            return
        try:
            with pa.CompressedInputStream(file, packed) as stream:
                while block := stream.read(BLOCK_BYTES):
                    yield block
        except (OSError, pa.ArrowException) as error:
            if is_of_handler(error):
                raise
            raise BadRecord(f"{path}: {error}", path=path) from error


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
                and _form(path_found, forms) is not None
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
        suffixes = ", ".join(suffix for suffix, of in _SUFFIXES.items() if of in forms)
        raise NotFound(f"no file with {suffixes} below {', '.join(paths)}")
    forms_found = {_form(path_found, forms) for path_found in files}
    if form is None and (len(forms_found) != 1 or None in forms_found):
        raise InvalidArgument(
            "the suffixes do not agree on one form", hint=f"--in {'|'.join(forms)}"
        )
    chosen = next(
        (path_found for path_found in forms if path_found == (form or next(iter(forms_found)))),
        None,
    )
    if chosen is None:
        *others, last = forms
        raise InvalidArgument(f"a source is {', '.join(others)} or {last}, not {form}")
    if chosen == "envelope" and columns != Columns():
        raise InvalidArgument("an envelope already has a key and a value")
    if chosen == "ndjson" and (columns.value is not None or columns.values):
        raise InvalidArgument("with ndjson the value is the line: there is no value column")
    return Files(chosen, [str(path_found.absolute()) for path_found in files], columns, infer)


def _form(path: Path, forms: Sequence[Form]) -> Form | None:
    """The form that the suffix of a path implies."""
    suffixes = path.suffixes
    if "envelope" in forms and suffixes and suffixes[-1] in _PACKED:
        del suffixes[-1]
        packed = _SUFFIXES.get(suffixes[-1]) if suffixes else None
        return packed if packed in ("csv", "ndjson") else None
    form = _SUFFIXES.get(path.suffix)
    return form if form in forms else None


def _is_hidden(path: Path, root: Path) -> bool:
    return any(part[0] in "._" for part in path.relative_to(root).parts)

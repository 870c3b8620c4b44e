"""Owns the source of a bulk load: files and their form, their identity, which columns are kept.

A source is identified by its content: the same bytes again are the same source, wherever they lie.
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
# What every engine reads; in this process also what an export writes, and compressed files.
OF_ENGINES: Final[tuple[Form, ...]] = ("parquet", "csv", "ndjson")
OF_IMPORT: Final[tuple[Form, ...]] = (*OF_ENGINES, "arrow", "envelope")
_PACKED: Final = {".gz": "gzip", ".zst": "zstd"}
# Of text that is base64; some decoders take more, and make something of it.
BASE64: Final = "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
# Of text that is an instant as a number, as `parse_instant` takes it.
SECONDS: Final = "[0-9]{9,10}"
MILLISECONDS: Final = "[0-9]{1,19}|-[0-9]{14,19}"
# The property of a replayed message that says where it came from: TOPIC:MESSAGE-ID.
KEPT: Final = ("key", "value", "properties", "event_time", "deliver_at")
PROPERTY: Final = "replay_of"
# With DuckDB a pa.Table to a pa.Table, with Spark a DataFrame to a DataFrame.
Transform = Callable[[Any], Any]
BLOCK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns of a source are which of a message; None: the one of that name, if any.

    value: None and no column `value`: the whole row as a JSON object; with ndjson always the line,
           whose members are the other columns
    values: these as a JSON object
    """

    key: str | None = None
    value: str | None = None
    event_time: str | None = None
    values: tuple[str, ...] = ()


def encoded(source: Files, names: Sequence[str]) -> list[tuple[str, str, str]]:
    """What of a message is text in a source that says how it is encoded, as an export writes it.

    names:   the columns of the source
    returns: value or key, its column, and that of its encoding
    """
    chosen = source.columns
    columns = {"value": chosen.value or "value", "key": chosen.key or "key"}
    if chosen.values:
        del columns["value"]
    pairs = [(name, column, f"{column}_encoding") for name, column in columns.items()]
    return [one for one in pairs if one[1] in names and one[2] in names]


def columns_of(key: str | None, values: str | None, event_time: str | None) -> Columns:
    """What a command says; values: names with commas, one as it is, several as a JSON object."""
    chosen = [one.strip() for one in (values or "").split(",") if one.strip()]
    if len(chosen) == 1:
        return Columns(key, chosen[0], event_time)
    return Columns(key, None, event_time, tuple(chosen))


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a source, in order of their paths.

    infer:  the topic gets the schema that the columns imply
    record: by it, the columns that are fields of a record, each with the type of DuckDB that a text
            becomes; none: the value is bytes
    """

    form: Form
    paths: list[str]
    columns: Columns
    infer: bool = False
    record: tuple[tuple[str, str | None], ...] = ()

    def name(self) -> str:
        """The identity of the source: a digest of its bytes, and of what is taken from them."""
        taken = (self.form, self.columns, *(["record"] if self.record else []))
        digest = hashlib.sha256(repr(taken).encode())
        for path in self.paths:
            of_file = hashlib.sha256()
            with Path(path).open("rb") as file:
                while block := file.read(BLOCK_BYTES):
                    of_file.update(block)
            digest.update(of_file.digest())
        return f"source {digest.hexdigest()}"

    def check_whole(self) -> None:
        """Unpack what is compressed, as DuckDB takes a cut end of zstd for the end of the file.

        raises: BadRecord: a file ends too early, is damaged, or is not compressed so
        """
        for path in self.paths:
            if _is_packed(path):
                for _ in unpacked(path):
                    pass

    @contextmanager
    def with_plain_names(self) -> Iterator[Files]:
        """The same files under names that DuckDB and Arrow take as they are.

        They take paths of UTF-8 only, and DuckDB reads some characters of a path as a pattern,
        where a backslash cannot be escaped. Such a file gets a link with a plain name meanwhile.
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
        """Whether no line, or no row of csv, is longer than two blocks; False: perhaps not."""
        return all(map(self._has_short_lines, self.paths))

    def _has_short_lines(self, path: str) -> bool:
        if _is_packed(path):
            return False
        with Path(path).open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                if len(block) == BLOCK_BYTES and b"\n" not in block:
                    return False
                if self.form == "csv" and b'"' in block:  # a row may have more lines than one
                    return False
        return True


def _is_packed(path: str) -> bool:
    return path.endswith(tuple(_PACKED))


def _is_plain(path: str) -> bool:
    """Whether a path is UTF-8 without what means something in a pattern of DuckDB."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return not set(path) & set("*?[]{}\\")


def unpacked(path: str) -> Iterator[bytes]:
    """The bytes of a file in blocks, unpacked as its suffix says.

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
    forms:  those allowed; with OF_IMPORT lines may be compressed, as .csv.gz or .ndjson.zst
    infer:  as Files
    raises: NotFound, InvalidArgument
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            found += [
                one
                for one in sorted(path.rglob("*"))
                if one.is_file() and _form(one, forms) is not None and not _is_hidden(one, path)
            ]
        elif path.is_file():
            found.append(path)
        else:
            raise NotFound(
                f"{path} is not a regular file" if path.exists() else f"there is no {path}",
                path=str(path),
            )
    if not found:
        named = ", ".join(suffix for suffix, of in _SUFFIXES.items() if of in forms)
        raise NotFound(f"no file with {named} below {', '.join(paths)}")
    said = {_form(one, forms) for one in found}
    if form is None and (len(said) != 1 or None in said):
        raise InvalidArgument(
            "the suffixes do not agree on one form", hint=f"--in {'|'.join(forms)}"
        )
    chosen = next((one for one in forms if one == (form or next(iter(said)))), None)
    if chosen is None:
        *others, last = forms
        raise InvalidArgument(f"a source is {', '.join(others)} or {last}, not {form}")
    if chosen == "envelope" and columns != Columns():
        raise InvalidArgument("an envelope itself says what is key and value")
    if chosen == "ndjson" and (columns.value is not None or columns.values):
        raise InvalidArgument("with ndjson the value is the line: there is no value column")
    return Files(chosen, [str(one.absolute()) for one in found], columns, infer)


def _form(path: Path, forms: Sequence[Form]) -> Form | None:
    """The form that a name implies."""
    suffixes = path.suffixes
    if "envelope" in forms and suffixes and suffixes[-1] in _PACKED:
        del suffixes[-1]
        packed = _SUFFIXES.get(suffixes[-1]) if suffixes else None
        return packed if packed in ("csv", "ndjson") else None
    found = _SUFFIXES.get(path.suffix)
    return found if found in forms else None


def _is_hidden(path: Path, root: Path) -> bool:
    return any(part[0] in "._" for part in path.relative_to(root).parts)

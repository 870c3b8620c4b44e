"""Owns the formats of files: which suffix means which format, and files that are compressed.

`produce`, `import`, `export` and `query --out` all choose by this table. They refuse a flag that
contradicts the suffix, so the name of a file always agrees with its bytes.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from posixpath import basename, splitext
from typing import TYPE_CHECKING, BinaryIO, Final, cast

import pyarrow as pa

from txlog.errors import BadRecord, InvalidArgument

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

SUFFIXES: Final = {
    ".csv": "csv", ".tsv": "tsv", ".ndjson": "ndjson", ".jsonl": "ndjson", ".json": "ndjson",
    ".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow",
}  # fmt: skip
PACKINGS: Final = {".gz": "gzip", ".zst": "zstd"}
TEXTS: Final = ("csv", "tsv", "ndjson")
# Formats that a file with the suffix of another may have: an envelope is a line of JSON, and
# the others describe bytes, whatever they mean.
_ALIKE: Final = {"envelope": "ndjson"}
_OF_BYTES: Final = ("lines", "raw", "null")
BLOCK_BYTES: Final = 1 << 20


def suffix_form(path: str) -> str | None:
    """The format that the name of a file implies, also of a compressed one; None: none.

    raises: InvalidArgument (201) for a compressed file of a format that is compressed inside
    """
    stem, suffix = splitext(path)
    packing = PACKINGS.get(suffix)
    if packing is not None:
        suffix = splitext(stem)[1]
    form = SUFFIXES.get(suffix)
    if packing is not None and form is not None and form not in TEXTS:
        raise InvalidArgument(
            f"{path}: {form} is compressed inside, not as a whole",
            hint=f"name it {basename(stem)}, or choose {', '.join(TEXTS)}",
            path=path,
        )
    return form


def chosen_form(paths: Sequence[str], flag: str | None, named: str) -> str | None:
    """The format of files by their suffixes and a flag; None: neither says.

    named:  the flag, for the error
    raises: InvalidArgument (201): they contradict each other, or the suffixes do
    """
    forms = {path: suffix_form(path) for path in paths}
    by_suffix = {form for form in forms.values() if form is not None}
    if flag is None:
        if len(by_suffix) > 1:
            *others, last = sorted(by_suffix)
            raise InvalidArgument(f"the suffixes do not agree: {', '.join(others)} and {last}")
        if by_suffix and None in forms.values():
            path = next(path for path, form in forms.items() if form is None)
            raise InvalidArgument(
                f"{path} has no known suffix, but others have", hint=f"{named} says all"
            )
        return next(iter(by_suffix), None)
    if flag in _OF_BYTES or "%" in flag:
        return flag
    for path, form in forms.items():
        if form not in (None, _ALIKE.get(flag, flag)):
            raise InvalidArgument(
                f"{named} {flag} contradicts the name {path}, which means {form}",
                hint=f"leave out {named}, or rename the file",
                path=path,
            )
    return flag


def check_form(path: str, form: str | None, forms: Sequence[str], instead: str) -> None:
    """Refuse a format that a command does not have.

    instead: the hint
    raises:  InvalidArgument (201)
    """
    if form not in forms:
        what = "has no known suffix" if form is None else f"means {form}"
        raise InvalidArgument(
            f"{path} {what}: here it is {', '.join(forms)}", hint=instead, path=path
        )


def packing_of(path: str) -> str | None:
    """The compression that the name of a file implies; None: none."""
    return PACKINGS.get(splitext(path)[1])


def is_packed(path: str) -> bool:
    """Whether the name of a file says that it is compressed."""
    return packing_of(path) is not None


class _LeftOpen(io.RawIOBase):
    """A file that stays open when the stream above it is closed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        return self._file.write(data)


@contextmanager
def packed(file: BinaryIO, path: str) -> Iterator[BinaryIO]:
    """A sink that compresses by the suffix of a file; it writes its end when the block ends."""
    packing = packing_of(path)
    if packing is None:
        yield file
        return
    stream = pa.CompressedOutputStream(pa.PythonFile(_LeftOpen(file), "w"), packing)
    yield cast(BinaryIO, stream)
    stream.close()


def unpacked(path: str, is_foreign: Callable[[BaseException], bool]) -> Iterator[bytes]:
    """The bytes of a file in blocks, unpacked according to its suffix.

    is_foreign: whether an exception comes from a signal handler, and passes unchanged
    raises:     BadRecord: it ends too early, or cannot be unpacked; with the place
    """
    packing, place = packing_of(path), 0
    with open(path, "rb") as file:
        if packing is None:
            while block := file.read(BLOCK_BYTES):
                yield block
            return
        try:
            if not file.read(1):
                raise BadRecord(f"{path}: it is empty, and so not {packing}", path=path)
            file.seek(0)
            with pa.CompressedInputStream(file, packing) as stream:
                while block := stream.read(BLOCK_BYTES):
                    place += len(block)
                    yield block
        except (OSError, pa.ArrowException) as error:
            if is_foreign(error):
                raise
            reason = str(error)
            if "ended prematurely" in reason or "Truncated" in reason or "truncated" in reason:
                reason = "it is cut short"
            raise BadRecord(f"{path}: {reason}, after {place} unpacked bytes", path=path) from error

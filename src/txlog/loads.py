"""Owns what is loaded in bulk: files of which form, what names them, what is kept of a message.

A source is named by what is in it: the same bytes again are the same source, wherever they lie.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from txlog.errors import InvalidArgument, NotFound

Form = Literal["parquet", "csv", "ndjson"]
_SUFFIXES: Final[dict[str, Form]] = {
    ".parquet": "parquet", ".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson",
}  # fmt: skip
# Of a message that is replayed, beside this property: TOPIC:MESSAGE-ID of where it came from.
KEPT: Final = ("key", "value", "properties", "event_time", "deliver_at")
PROPERTY: Final = "replay_of"
# Of DuckDB a pa.Table to a pa.Table, of Spark a DataFrame to a DataFrame.
Transform = Callable[[Any], Any]
_BLOCK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns of a source are which of a message; None: that of the name, if there is one.

    value: None and no column `value`: the whole row as a JSON object; of ndjson always the line,
           and the others are members of it
    """

    key: str | None = None
    value: str | None = None
    event_time: str | None = None


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a source, in order of their paths."""

    form: Form
    paths: list[str]
    columns: Columns

    def name(self) -> str:
        """The name of the source: a digest of its bytes, and of what is taken from them."""
        digest = hashlib.sha256(repr((self.form, self.columns)).encode())
        for path in self.paths:
            of_file = hashlib.sha256()
            with Path(path).open("rb") as file:
                while block := file.read(_BLOCK_BYTES):
                    of_file.update(block)
            digest.update(of_file.digest())
        return f"source {digest.hexdigest()}"


def files_of(paths: Sequence[str], form: str | None, columns: Columns) -> Files:
    """The files that paths name: files, and all with a known suffix below directories.

    form:   None: by their suffixes, which must agree
    raises: NotFound, InvalidArgument
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            found += [
                one for one in sorted(path.rglob("*"))
                if one.is_file() and one.suffix in _SUFFIXES and not _is_hidden(one, path)
            ]  # fmt: skip
        elif path.is_file():
            found.append(path)
        else:
            raise NotFound(f"there is no {path}", path=str(path))
    if not found:
        raise NotFound(f"no file with {', '.join(_SUFFIXES)} below {', '.join(paths)}")
    forms = {_SUFFIXES.get(one.suffix) for one in found}
    if form is None and (len(forms) != 1 or None in forms):
        raise InvalidArgument("the suffixes do not say one form", hint="--in parquet|csv|ndjson")
    known = dict.fromkeys(_SUFFIXES.values())
    chosen = next((one for one in known if one == (form or next(iter(forms)))), None)
    if chosen is None:
        raise InvalidArgument(f"a source is parquet, csv or ndjson, not {form}")
    if chosen == "ndjson" and columns.value is not None:
        raise InvalidArgument("of ndjson the value is the line: there is no value column")
    return Files(chosen, [str(one.absolute()) for one in found], columns)


def _is_hidden(path: Path, root: Path) -> bool:
    return any(part[0] in "._" for part in path.relative_to(root).parts)

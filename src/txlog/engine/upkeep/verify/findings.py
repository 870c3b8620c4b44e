"""Owns Findings: how much a check of a store has read, and the problems it found.

An *error* is a loss or a contradiction: acknowledged data cannot be read, or two components
disagree. A *warning* is something that the next writer or upkeep repairs by itself, or damage to
unused bytes.

An error has the code of its class (`TXL-601`), a warning has a word: `tail`, `witness`, `manifest`,
`unnamed`, `temporary`, `staged`, `foreign`, `irregular`, `quarantine`, `quarantined`, `offline`,
`void`, `pin`, `reserve`, `lock`, `loss`, `reserved` (a topic whose name would be refused today),
`predecessor` (only the previous checkpoint needs it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from txlog.errors import TxlogError

ERROR: Final = "error"
WARNING: Final = "warning"
# The most problems kept for each code, because a lost directory would name a million files.
KEPT_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding; fields that do not apply are None."""

    code: str
    severity: str
    message: str
    path: str | None = None
    partition: int | None = None  # its number in the store
    ledger: int | None = None
    first: tuple[int, int] | None = None  # (ledger, entry)
    last: tuple[int, int] | None = None
    offset: int | None = None
    hint: str | None = None


def silent(doing: str, size_bytes: int) -> None:
    """The default of Findings.tell: ignore the progress of a check."""


@dataclass(slots=True)
class Findings:
    """How much was read, and the problems; errors and warnings count all, problems keeps some.

    tell: called with the current step, and the bytes read so far
    """

    tell: Callable[[str, int], None] = silent

    files: int = 0
    size_bytes: int = 0
    frames: int = 0
    errors: int = 0
    warnings: int = 0
    problems: list[Problem] = field(default_factory=list)
    _known: dict[str, int] = field(default_factory=dict)
    _said: set[tuple[str, str | None, int | None]] = field(default_factory=set)
    _is_lowered: bool = False

    def read(self, size: int) -> None:
        """Count a file that was read whole; size: in bytes."""
        self.files += 1
        self.size_bytes += size
        self.tell("reading", self.size_bytes)

    def begin(self, doing: str) -> None:
        """Begin a step that reads nothing new."""
        self.tell(doing, self.size_bytes)

    def error(self, code: int, message: str, **where: object) -> None:
        """Add a loss, or a contradiction between two components."""
        if self._is_lowered:
            self._add("predecessor", WARNING, message, where)
        else:
            self._add(f"TXL-{code}", ERROR, message, where)

    def warning(self, code: str, message: str, **where: object) -> None:
        """Add a problem that the next writer or upkeep repairs, or one in unused bytes."""
        self._add(code, WARNING, message, where)

    def caught(self, error: TxlogError, *, path: str | None = None, **where: object) -> None:
        """Add an error that was raised, with its message and place."""
        fields = {"path": path, **_place(error), **where}
        fields.setdefault("hint", error.hint)
        self.error(error.code, error.message, **fields)

    def take(self, other: Findings) -> None:
        """Add the findings of another check."""
        self.files += other.files
        self.size_bytes += other.size_bytes
        self.frames += other.frames
        self.errors += other.errors
        self.warnings += other.warnings
        self.problems += other.problems

    @contextmanager
    def lowered(self, is_so: bool = True) -> Iterator[None]:
        """Inside it errors are warnings: only the previous checkpoint needs the files."""
        was_lowered, self._is_lowered = self._is_lowered, self._is_lowered or is_so
        try:
            yield
        finally:
            self._is_lowered = was_lowered

    @property
    def is_damaged(self) -> bool:
        """True once there is an error."""
        return self.errors > 0

    def _add(self, code: str, severity: str, message: str, where: Mapping[str, object]) -> None:
        offset = where.get("offset")
        path = where.get("path")
        key = (
            message,
            None if path is None else str(path),
            offset if isinstance(offset, int) else None,
        )
        if key in self._said:
            return  # the check of the journal and the view find the same damage
        self._said.add(key)
        if severity == ERROR:
            self.errors += 1
        else:
            self.warnings += 1
        self._known[code] = self._known.get(code, 0) + 1
        if self._known[code] <= KEPT_MAX:
            self.problems.append(Problem(code, severity, message, **where))  # type: ignore[arg-type]


def _place(error: TxlogError) -> dict[str, object]:
    """The fields of an error that tell the place."""
    fields = error.fields
    out: dict[str, object] = {}
    for name in ("path", "ledger", "offset"):
        if fields.get(name) is not None:
            out[name] = fields[name]
    return out

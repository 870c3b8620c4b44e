"""Owns what a mirror asks of a table: its LSN, where files go, and the step that adds them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

from txlog.errors import NotAllowed
from txlog.ids import TopicName
from txlog.relation.scans import MESSAGES

LOCK: Final = "_txlog-mirror.lock"
# An instant is in microseconds, as in Delta and Iceberg; one beyond their range becomes its end.
TABLE: Final = pa.schema(
    [
        field.with_type(pa.timestamp("us", "UTC")) if pa.types.is_timestamp(field.type) else field
        for field in MESSAGES
    ]
)


@dataclass(frozen=True, slots=True)
class Label:
    """Whose mirror a table is."""

    store: str
    topic: TopicName

    def __str__(self) -> str:
        return f"txlog mirror {self.store} {self.topic.full}"


@dataclass(frozen=True, slots=True)
class Added:
    """A file that was written: path: where it is; rows: of TABLE."""

    path: Path
    day: str
    rows: int


class Target(Protocol):
    """A table that grows; closed with the run."""

    def lsn(self) -> int:
        """The LSN that the table has reached; 0: it is new, or there is none.

        raises: NotAllowed: what is there is not a mirror of this topic
        """

    def folder(self) -> Path:
        """Where directories of days are; the table exists when it returns."""

    def commit(self, added: list[Added], lsn: int) -> None:
        """Let the table have these files, and the LSN. Raises TryAgain: another wrote it."""

    def close(self) -> None:
        """Release what is open."""


def check_ours(place: Path, *names: str) -> None:
    """Refuse a directory with other files than these, and what a killed run may leave at its start.

    raises: NotAllowed
    """
    known = {LOCK, *names}
    if any(one.name not in known and not one.name.startswith(".") for one in place.iterdir()):
        raise NotAllowed(f"{place} is not a mirror, and not empty", path=str(place))

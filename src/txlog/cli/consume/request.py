"""Owns the checked options of `consume`, as its command passes them to its work."""

from __future__ import annotations

from dataclasses import dataclass, field

from txlog.base.ids import TxnId
from txlog.base.ranges import Bound, Range


@dataclass
class Target:
    """A topic to read and its partitions; None means all of them."""

    topic: str
    partitions: list[int] | None = None


@dataclass
class Request:
    """The checked options of one `consume`."""

    targets: list[Target]
    subscription: str | None = None
    create: bool = False
    position: Bound | None = None
    type: str | None = None
    ack: str = "auto"
    join: TxnId | None = None
    consumer: str | None = None
    watermarks: bool = False
    range: Range = field(default_factory=Range)
    limit: int | None = None
    follow: bool = False
    max_wait_ms: int = 0
    fail_empty: bool = False
    stats: bool = False
    unbuffered: bool = False
    raw_strings: bool = False
    isolation: str | None = None
    include_delayed: bool = False
    keys: list[bytes] = field(default_factory=list)
    properties: dict[str, str] = field(default_factory=dict)
    grep: bytes | None = None
    where: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether reading stops only at the end of the log, so that more messages can come."""
        return self.range.is_endless

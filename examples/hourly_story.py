"""The events of examples/hourly_revenue.py, as they are drawn: the assertions of each till."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from hourly_plan import TILLS

import txlog

END = (1 << 63) - 1
Moment = tuple[int, int]  # an instant of the wall clock, a time of an event


@dataclass(slots=True)
class Story:
    """Instants are ms; in a pair, the wall clock comes first.

    claims:  the assertions of each till, None: idle
    emitted: the watermarks that the function got
    lines:   when a line was sent, its event time; late: when it was set aside, its event time
    windows: when a window was emitted, its start, end and lines
    kills:   when the function was killed; notes: other events
    """

    began_ms: int
    claims: dict[str, list[tuple[int, int | None]]] = field(
        default_factory=lambda: {till: [] for till in TILLS}
    )
    emitted: list[Moment] = field(default_factory=list)
    lines: list[Moment] = field(default_factory=list)
    late: list[Moment] = field(default_factory=list)
    windows: list[tuple[int, int, int, int]] = field(default_factory=list)
    kills: list[int] = field(default_factory=list)
    notes: list[tuple[int, str]] = field(default_factory=list)

    def asserted(self, at: int, till: str, value: int | None) -> None:
        """Record the assertion of a till; None: it is idle."""
        self.claims[till].append((at, value))

    def last(self, till: str) -> int:
        """The highest assertion of a till."""
        return max(value for _, value in self.claims[till] if value is not None)

    def handed(self, at: int, value: int) -> None:
        """Record the current watermark of the function."""
        if value and (not self.emitted or self.emitted[-1][1] != value):
            self.emitted.append((at, value))

    def killed(self, at: int) -> None:
        """Record a kill of the function."""
        self.kills.append(at)

    def note(self, at: int, text: str) -> None:
        """Record another event."""
        self.notes.append((at, text))

    def least(self) -> list[tuple[int, int | None]]:
        """The lowest claim of the active tills over time; None: no till is active."""
        now: dict[str, int | None] = {}
        found: list[tuple[int, int | None]] = []
        every = sorted(
            ((at, till, value) for till, of in self.claims.items() for at, value in of),
            key=lambda one: one[0],
        )
        for at, till, value in every:
            now[till] = value
            least = min((one for one in now.values() if one is not None), default=None)
            if not found or found[-1][1] != least:
                found.append((at, least))
        return found

    def read(self, client: txlog.Client, lines: str, windows: str, late: str) -> None:
        """Read from the store when lines came and windows were emitted."""
        self.lines, self.late = _moments(client, lines), _moments(client, late)
        for table in client.read(windows):
            at = table["publish_time"].cast(pa.int64()).to_pylist()
            for when, value in zip(at, table["value"].to_pylist(), strict=True):
                row = json.loads(value)
                self.windows.append((when, row["start"], row["end"], row["lines"]))


def _moments(client: txlog.Client, topic: str) -> list[Moment]:
    found: list[Moment] = []
    for table in client.read(topic):
        events = pc.coalesce(table["event_time"], table["publish_time"]).cast(pa.int64())
        times = table["publish_time"].cast(pa.int64())
        found += zip(times.to_pylist(), events.to_pylist(), strict=True)
    return found

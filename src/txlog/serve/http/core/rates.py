"""Owns Rates: how fast counters grow, from when they were last looked at.

It is memory of this process alone: after a restart the first look has no rate yet.
"""

from __future__ import annotations

from typing import Final

SPAN_MS: Final = 1000  # between two looks, for a rate that means something
KEPT_MS: Final = 60_000  # an older look says nothing of now


class Rates:
    """Counters by name, and what they were at two earlier looks."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, list[tuple[int, int]]] = {}

    def of(self, name: str, value: int, now_ms: int) -> float:
        """How much it grows in a second; 0 at the first look, or when it was set back.

        name: of the counter; value: what it is now
        """
        looks = [one for one in self._known.get(name, ()) if 0 <= now_ms - one[0] <= KEPT_MS]
        old = next((one for one in reversed(looks) if now_ms - one[0] >= SPAN_MS), None)
        if not looks or now_ms - looks[-1][0] >= SPAN_MS:
            looks.append((now_ms, value))
        self._known[name] = looks[-3:]
        if old is None or value < old[1]:
            return 0.0
        return (value - old[1]) * 1000 / (now_ms - old[0])

    def forget(self, names: set[str]) -> None:
        """Keep only these counters."""
        for gone in self._known.keys() - names:
            del self._known[gone]

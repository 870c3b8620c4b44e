"""Owns ReadCounters: counters of one client since it was opened; never stored."""

from __future__ import annotations

from collections import Counter


class ReadCounters:
    """Counters of one process; they only rise.

    rows_read:      rows read from files and frames, counted each time
    groups_decoded: row groups of sealed files and parts that were decoded
    handed_out:     messages that consumers and readers returned to their callers
    late:           messages handed out that were older than an earlier watermark, by topic,
                    partition and subscription (empty: a reader)
    rows_folded:    rows that were read for watermarks, by partition (its number in the store)
    ahead:          watermarks ahead of their producer's own open transaction, by topic (its number)
    """

    __slots__ = ("ahead", "groups_decoded", "handed_out", "late", "rows_folded", "rows_read")

    def __init__(self) -> None:
        self.rows_read = 0
        self.groups_decoded = 0
        self.handed_out = 0
        self.late: Counter[tuple[str, int, str]] = Counter()
        self.rows_folded: Counter[int] = Counter()
        self.ahead: Counter[int] = Counter()

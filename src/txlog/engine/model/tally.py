"""Owns Tally: what one client has read and handed out since it was opened; never stored."""

from __future__ import annotations


class Tally:
    """Counters of one process; they only rise.

    rows_read:      rows that were taken out of files and frames, each time that they were
    groups_decoded: row groups of sealed files and parts that were decoded
    handed_out:     messages that consumers and readers gave to their callers
    """

    __slots__ = ("groups_decoded", "handed_out", "rows_read")

    def __init__(self) -> None:
        self.rows_read = 0
        self.groups_decoded = 0
        self.handed_out = 0

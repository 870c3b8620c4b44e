"""Owns what the application of a simulated process remembers outside of the store."""

from __future__ import annotations


class Memory:
    """What an application keeps outside of the store, so that it outlives its process.

    sequences:  by topic and producer, the next number
    unsettled:  by topic and producer, what may not have been stored: sequence, value, key, time
    epochs:     by transaction key, that of its newest connection
    announced:  by topic and producer, the greatest time that it promised
    pending:    by producer of a client of the server, what had no receipt: by its number the
                value, key and delivery time
    table:      by key of the table, the values that it may have
    blocks:     of each transaction with the database, the values of its messages; committed: of
                those whose commit was answered
    """

    def __init__(self) -> None:
        self.count = 0
        self.next = 0
        self.sequences: dict[tuple[str, str], int] = {}
        self.unsettled: dict[tuple[str, str], tuple[int, str, str | None, int]] = {}
        self.epochs: dict[str, int] = {}
        self.announced: dict[tuple[str, str], int] = {}
        self.marks: dict[str, int] = {}
        self.pending: dict[str, dict[int, tuple[str, str | None, int | None]]] = {}
        self.table: dict[str, list[str | None]] = {}
        self.blocks: list[list[str]] = []
        self.committed: list[list[str]] = []
        self.incarnation = 0

"""Owns the record of a machine's disks, and makes the disks that a power cut could leave.

`read` takes the record that `device.c` wrote. A cut is a position in it: everything before the last
flush is on the disk, and of the writes since then any subset of the sectors, each in the order of
its writes. So a cut drops writes, reorders them (a later one may be there and an earlier one not)
and tears them.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

SECTOR = 512
WRITE, FLUSH, ZERO = 1, 2, 3
HEADER = struct.Struct("<IIQQ")
STORE_DISK, EVENT_DISK = 0, 1  # as the machine has them
REGION = 32 << 20  # of the disk of events, for each process

PREPARED = ("init", "create_subscription")  # the first calls, before there is work
DURABLE = ("send", "commit", "abort", "create_topic")  # calls that end with a flush

Keep = Literal["nothing", "everything", "few", "half", "most", "all but one", "a torn end"]
KEEPS: tuple[Keep, ...] = (
    "nothing", "nothing", "everything", "few", "half", "most", "all but one", "a torn end",
)  # fmt: skip


class Entry(NamedTuple):
    """A line of the record; at: where the bytes of a write are in the file."""

    kind: int
    disk: int
    offset: int
    length: int
    at: int


class Told(NamedTuple):
    """An event that a program had written before entry `before` of the record."""

    before: int
    event: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cut:
    """A power cut before entry `at` of the record.

    keep: which sectors survive of the writes that no flush covers
    unit: bytes that the disk writes whole
    """

    at: int
    keep: Keep
    unit: int
    seed: int

    def __str__(self) -> str:
        return f"before entry {self.at}, kept {self.keep}, unit {self.unit}, seed {self.seed}"


class Record:
    """The entries of a record, the events in it, and its bytes."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.entries = list(self._parsed())
        self.events = list(self._told())
        self._starts = [entry.at - HEADER.size for entry in self.entries]

    def _parsed(self) -> Iterator[Entry]:
        at, size = 0, len(self._bytes)
        while at + HEADER.size <= size:
            kind, disk, offset, length = HEADER.unpack_from(self._bytes, at)
            at += HEADER.size
            stop = at + (length if kind == WRITE else 0)
            if stop > size:
                return  # the machine was killed in the middle of an entry
            yield Entry(kind, disk, offset, length, at)
            at = stop

    def data(self, entry: Entry) -> bytes:
        """The bytes that an entry wrote."""
        if entry.kind == ZERO:
            return bytes(entry.length)
        return self._bytes[entry.at : entry.at + entry.length]

    def _told(self) -> Iterator[Told]:
        """Events in order. Each process writes lines one after another into its own region."""
        parts: dict[int, bytes] = {}
        for index, entry in enumerate(self.entries):
            if entry.kind != WRITE or entry.disk != EVENT_DISK:
                continue
            region = entry.offset // REGION
            text = parts.get(region, b"") + self.data(entry).rstrip(b"\0")
            *lines, parts[region] = text.split(b"\n")
            for line in lines:
                yield Told(index + 1, json.loads(line))

    def add(self, outside: Iterable[tuple[int, dict[str, Any]]]) -> None:
        """Take events from outside of the machine, with the size that the record had then."""
        told = [Told(bisect_left(self._starts, size), event) for size, event in outside]
        self.events = sorted([*self.events, *told], key=lambda each: each.before)

    def count(self, kind: int) -> int:
        """How many entries of a kind the disk of the store has."""
        return sum(entry.kind == kind and entry.disk == STORE_DISK for entry in self.entries)

    # --- cuts -------------------------------------------------------------------------------------

    def choose(self, count: int, rng: random.Random, units: Sequence[int]) -> list[Cut]:
        """Draw cuts: half come right after an answer, the others before a flush or anywhere.

        One in ten is as likely to be before the topics were there as after it.
        """
        store = [n for n, entry in enumerate(self.entries) if entry.disk == STORE_DISK]
        answered = [told for told in self.events if told.event["type"] == "ok"]
        made = [told.before for told in answered if told.event["op"] in PREPARED]
        begin = max(made, default=0)
        later = [n for n in store if n >= begin] or store
        flushes = [n for n in later if self.entries[n].kind == FLUSH] or later
        answers = [told.before for told in answered if told.event["op"] in DURABLE] or later
        cuts = []
        for _ in range(count):
            places = rng.choices((answers, flushes, later, store), (50, 15, 25, 10))[0]
            keep, unit, seed = rng.choice(KEEPS), rng.choice(units), rng.randrange(1 << 30)
            cuts.append(Cut(rng.choice(places), keep, unit, seed))
        return sorted(cuts, key=lambda cut: cut.at)

    def told_before(self, cut: Cut) -> list[dict[str, Any]]:
        """The events that were written before a cut."""
        return [told.event for told in self.events if told.before <= cut.at]


class Disk:
    """A disk that follows a record: it has the flushed bytes of one position after another."""

    def __init__(self, record: Record, blank: Path, working: Path) -> None:
        self._record = record
        self._path = working
        copy(blank, working)
        self._position = 0  # the first entry that is not on the disk

    def after(self, cut: Cut, image: Path) -> int:
        """Write the disk after a cut into a file; returns how many writes were not flushed.

        Cuts come in the order of their positions.
        """
        entries = self._record.entries
        flushed = self._position
        for index in range(self._position, cut.at):
            if entries[index].kind == FLUSH and entries[index].disk == STORE_DISK:
                flushed = index
        with self._path.open("r+b", buffering=0) as file:
            for entry in self._writes(self._position, flushed):
                file.seek(entry.offset)
                file.write(self._record.data(entry))
        self._position = flushed
        copy(self._path, image)
        pending = list(self._writes(flushed, cut.at))
        with image.open("r+b", buffering=0) as file:
            for offset, data in self._kept(pending, cut):
                file.seek(offset)
                file.write(data)
        return len(pending)

    def _writes(self, start: int, stop: int) -> Iterator[Entry]:
        for entry in self._record.entries[start:stop]:
            if entry.disk == STORE_DISK and entry.kind in (WRITE, ZERO):
                yield entry

    def _kept(self, pending: Sequence[Entry], cut: Cut) -> Iterator[tuple[int, bytes]]:
        rng = random.Random(cut.seed)
        pieces = [
            (entry.offset + start, self._record.data(entry)[start : start + cut.unit])
            for entry in pending
            for start in range(0, entry.length, cut.unit)
        ]
        if cut.keep == "a torn end":
            yield from pieces[: rng.randrange(len(pieces) + 1)]
            return
        if cut.keep == "all but one":
            missing = rng.randrange(len(pieces)) if pieces else 0
            yield from (piece for n, piece in enumerate(pieces) if n != missing)
            return
        chances = {"nothing": 0.0, "everything": 1.0, "few": 0.1, "half": 0.5, "most": 0.9}
        for piece in pieces:
            if rng.random() < chances[cut.keep]:
                yield piece


def copy(source: Path, target: Path) -> None:
    """Copy a file without writing its holes."""
    with source.open("rb") as old, target.open("wb") as new:
        size = os.fstat(old.fileno()).st_size
        new.truncate(size)
        at = 0
        while at < size:
            try:
                at = os.lseek(old.fileno(), at, os.SEEK_DATA)
            except OSError:  # nothing but a hole follows
                return
            stop = os.lseek(old.fileno(), at, os.SEEK_HOLE)
            while at < stop:
                data = os.pread(old.fileno(), min(1 << 20, stop - at), at)
                os.pwrite(new.fileno(), data, at)
                at += len(data)

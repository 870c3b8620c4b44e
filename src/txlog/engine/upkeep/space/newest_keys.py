"""The newest message of each key, for any number of keys, in little memory.

A message is identified by its number in a scan; every scan gives the same numbers. Keys are held,
each with the number of its last message, until they take more than HELD_BYTES. Then these and all
later keys are divided by a checksum of the key into shares, which wait in a scratch file. A share
is processed like the whole, and divided again if it is too large. So every key is in one group with
all its messages, and a group is small. The result for a group is a set of numbers, which as a
bitmap take at most a bit per message.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from zlib import crc32

import pyarrow as pa
from pyroaring import BitMap

from txlog.base.startup import compute as pc
from txlog.engine.plan.reading.newest import NewestRows, last_of_each
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.scratch import Kept, Scratch

KEYED = pa.schema([("key", pa.binary()), ("number", pa.int64())])
HELD_BYTES = 4 << 20
SHARE_BITS = 6  # of the checksum, for each division
CHECKSUM_BITS = 32
# so many are divided together, because otherwise shares would be many small pieces
DIVIDED_BYTES = 4 << 20
CHECKED_ROWS = 50_000  # rows whose keys are Python objects at the same time
FRUITLESS = 8  # how many tables skip the check for repetitions after one had few
NUMBER_BITS = 32  # of a number in one bitmap

Group = dict[int, pa.Table]  # by partition: KEYED, in order


class NewestKeys:
    """The last message of each key, for each partition; for one thread, and to be closed.

    held_bytes: the bytes in memory now
    """

    __slots__ = (
        "_disk", "_divisions", "_held", "_scratch", "_shares", "_to_look_again", "_waiting",
        "held_bytes",
    )  # fmt: skip

    def __init__(self, disk: Disk, divisions: int = 0) -> None:
        """divisions: how often the incoming keys were divided before."""
        self._disk = disk
        self._divisions = divisions
        self._held: dict[int, NewestRows] = {}
        self.held_bytes = 0
        self._scratch: Scratch | None = None
        self._shares: list[list[tuple[int, Kept]]] = [[] for _ in range(1 << SHARE_BITS)]
        self._waiting: list[tuple[int, pa.Table]] = []  # to be divided
        self._to_look_again = 0

    def add(self, partition: int, table: pa.Table) -> None:
        """Add the next messages of a partition: KEYED, in the order of the scan; null is no key.

        raises: StoreFull, DiskFailed, NoResources
        """
        if self._scratch is not None:
            self._put_aside(partition, table)
            return
        latest = self._held.get(partition)
        if latest is None:
            latest = self._held[partition] = NewestRows(KEYED)
        bytes_before = latest.bytes
        latest.add(table)
        self.held_bytes += latest.bytes - bytes_before
        if self.held_bytes > HELD_BYTES:
            self._let_go()

    def groups(self) -> Iterator[Group]:
        """The last message of each key, some keys at a time; callers may repeat it.

        raises: StoreFull, DiskFailed, NoResources
        """
        if self._scratch is None:
            yield {partition: latest.table() for partition, latest in self._held.items()}
            return
        self._divide_waiting()
        for share in self._shares:
            inner = NewestKeys(self._disk, self._divisions + 1)
            try:
                for partition, pieces in groupby(share, key=itemgetter(0)):
                    for table in self._read([piece for _, piece in pieces]):
                        inner.add(partition, table)
                yield from inner.groups()
            finally:
                inner.close()

    def close(self) -> None:
        """Free all memory and close the scratch file."""
        self._held.clear()
        self._waiting.clear()
        if self._scratch is not None:
            self._scratch.close()

    def _let_go(self) -> None:
        """Divide the held keys, unless removing repetitions frees enough."""
        tables = {partition: latest.table() for partition, latest in self._held.items()}
        self.held_bytes = sum(latest.bytes for latest in self._held.values())
        # equal checksums cannot be divided
        if 2 * self.held_bytes <= HELD_BYTES or self._shift < 0:
            return
        self._scratch = Scratch(self._disk)
        self._held.clear()
        self.held_bytes = 0
        for partition, table in tables.items():
            self._put_aside(partition, table)

    @property
    def _shift(self) -> int:
        """The bit of the checksum at which the share begins.

        The first division uses the highest bits.

        The partition of a key is a remainder of the same checksum, which depends on the lowest
        bits.
        """
        return CHECKSUM_BITS - SHARE_BITS * (self._divisions + 1)

    def _put_aside(self, partition: int, table: pa.Table) -> None:
        """Divide the rows soon; repetitions are left out if there are many."""
        keyed = table.filter(pc.is_valid(table.column("key")))
        if self._to_look_again:
            self._to_look_again -= 1
        else:
            last = last_of_each(keyed)
            if 4 * last.num_rows > 3 * keyed.num_rows:
                self._to_look_again = FRUITLESS
            keyed = last
        self._waiting.append((partition, keyed))
        self.held_bytes += keyed.nbytes
        if self.held_bytes >= DIVIDED_BYTES:
            self._divide_waiting()

    def _divide_waiting(self) -> None:
        """Write the waiting rows to the scratch file, each row in its share."""
        waiting, self._waiting, self.held_bytes = self._waiting, [], 0
        for partition, tables in groupby(waiting, key=itemgetter(0)):
            for batch in (
                pa.concat_tables([table for _, table in tables]).combine_chunks().to_batches()
            ):
                self._divide(partition, batch)

    def _divide(self, partition: int, batch: pa.RecordBatch) -> None:
        assert self._scratch is not None
        share = pa.concat_arrays(
            [
                self._share(batch.column("key").slice(start, CHECKED_ROWS))
                for start in range(0, batch.num_rows, CHECKED_ROWS)
            ]
        )
        order = pc.sort_indices(share)  # rows of equal shares stay in order
        rows, runs, start = batch.take(order), pc.run_end_encode(share.take(order)), 0
        for number, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            piece = self._scratch.put([rows.slice(start, end - start).serialize()])
            self._shares[number].append((partition, piece))
            start = end

    def _share(self, keys: pa.Array) -> pa.Array:
        """The share of each key."""
        sums = pa.array([*map(crc32, keys.to_pylist())], pa.int64())
        return pc.bit_wise_and(pc.shift_right(sums, self._shift), len(self._shares) - 1)

    def _read(self, pieces: list[Kept]) -> Iterator[pa.Table]:
        """The tables put aside, in order: small pieces together."""
        assert self._scratch is not None
        batches, size = list[pa.RecordBatch](), 0
        for piece in pieces:
            data = pa.py_buffer(self._scratch.get(piece))
            batches.append(pa.ipc.read_record_batch(data, KEYED))
            size += piece.length
            if size >= DIVIDED_BYTES:
                yield pa.Table.from_batches(batches)
                batches, size = [], 0
        if batches:
            yield pa.Table.from_batches(batches)


class NumberSet:
    """A set of numbers of messages."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: dict[int, BitMap] = {}  # by their upper bits

    def __len__(self) -> int:
        return sum(map(len, self._parts.values()))

    def add(self, numbers: pa.Array) -> None:
        """Add numbers of type int64."""
        for upper, lower in _halves(numbers):
            self._parts[upper] = self._parts.get(upper, BitMap()) | lower

    def within(self, start: int, stop: int) -> pa.Array:
        """The numbers from start to stop - 1, rising."""
        bits: dict[int, BitMap] = {}
        while start < stop:
            upper = start >> NUMBER_BITS
            base, end = upper << NUMBER_BITS, min(stop, upper + 1 << NUMBER_BITS)
            bits[upper] = BitMap(range(start - base, end - base))
            start = end
        return self._and(bits)

    def has(self, numbers: pa.Array) -> pa.Array:
        """For each of these numbers, whether the set has it."""
        return pc.is_in(numbers, self._and(dict(_halves(numbers))))

    def _and(self, others: dict[int, BitMap]) -> pa.Array:
        parts = [pa.array([], pa.int64())]
        for upper, other in sorted(others.items()):
            part = self._parts.get(upper)
            if part is not None and (both := part & other):
                lower = both.to_array()
                data = pa.Array.from_buffers(pa.uint32(), len(lower), [None, pa.py_buffer(lower)])
                parts.append(pc.add(data.cast(pa.int64()), upper << NUMBER_BITS))
        return pa.concat_arrays(parts)


def _halves(numbers: pa.Array) -> Iterator[tuple[int, BitMap]]:
    """Numbers by their upper bits."""
    uppers = pc.shift_right(numbers, NUMBER_BITS)
    for upper in pc.unique(uppers).to_pylist():
        of_upper = numbers.filter(pc.equal(uppers, upper))
        lower = pc.bit_wise_and(of_upper, (1 << NUMBER_BITS) - 1).cast(pa.uint32())
        if isinstance(lower, pa.ChunkedArray):
            lower = lower.combine_chunks()
        lowers = array("I")
        lowers.frombytes(memoryview(lower.buffers()[1])[4 * lower.offset :][: 4 * len(lower)])
        yield upper, BitMap(lowers)

"""Which message of each key is the newest, of however many keys, in little memory.

Messages are known by their numbers in a scan, which gives the same ones whenever it is repeated.
Keys are held, each with the number of its last message, until they take more than HELD_BYTES. Then
they, and all that come, are divided by a checksum of the key into SHARES, which wait in a scratch
file; a share is treated like the whole, and divided again if it is too large. So every key is in
one group with all its messages, and a group is small. What is left of a group are numbers, which
as a bitmap take a bit a message at most.
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
from txlog.engine.plan.reading.newest import Latest, last_of_each
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.scratch import Scratch, ScratchSlot

KEYED = pa.schema([("key", pa.binary()), ("number", pa.int64())])
HELD_BYTES = 4 << 20
SHARE_BITS = 6  # of the checksum, for each division
CHECKSUM_BITS = 32
DIVIDED_BYTES = 4 << 20  # so many are divided together, or shares would be many small pieces
CHECKED_ROWS = 50_000  # whose keys are objects of Python at the same time
FRUITLESS = 8  # times that keys are not looked at for repetitions, after there were few
NUMBER_BITS = 32  # of a number in one bitmap

Group = dict[int, pa.Table]  # by partition: KEYED, in order


class NewestKeys:
    """The last message of each key, for each partition; for one thread, and to be closed.

    held_bytes: what it holds now
    """

    __slots__ = (
        "_disk", "_divisions", "_held", "_scratch", "_shares", "_to_look_again", "_waiting",
        "held_bytes",
    )  # fmt: skip

    def __init__(self, disk: Disk, divisions: int = 0) -> None:
        """divisions: how often the keys that come were divided before."""
        self._disk = disk
        self._divisions = divisions
        self._held: dict[int, Latest] = {}
        self.held_bytes = 0
        self._scratch: Scratch | None = None
        self._shares: list[list[tuple[int, ScratchSlot]]] = [[] for _ in range(1 << SHARE_BITS)]
        self._waiting: list[tuple[int, pa.Table]] = []  # to be divided
        self._to_look_again = 0

    def add(self, partition: int, table: pa.Table) -> None:
        """What comes next of a partition: KEYED, in the order of the scan; null is no key.

        raises: StoreFull, DiskFailed, NoResources
        """
        if self._scratch is not None:
            self._put_aside(partition, table)
            return
        latest = self._held.get(partition)
        if latest is None:
            latest = self._held[partition] = Latest(KEYED)
        before = latest.bytes
        latest.add(table)
        self.held_bytes += latest.bytes - before
        if self.held_bytes > HELD_BYTES:
            self._let_go()

    def groups(self) -> Iterator[Group]:
        """The last message of each key, some keys at a time; may be asked for again.

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
                    for table in self._read([kept for _, kept in pieces]):
                        inner.add(partition, table)
                yield from inner.groups()
            finally:
                inner.close()

    def close(self) -> None:
        """Let go of everything."""
        self._held.clear()
        self._waiting.clear()
        if self._scratch is not None:
            self._scratch.close()

    def _let_go(self) -> None:
        """Divide what is held, if it does not become much less by itself."""
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
        """From which bit of the checksum on it says the share: the uppermost come first.

        The partition of a key is a remainder of the same checksum, which the lowest decide.
        """
        return CHECKSUM_BITS - SHARE_BITS * (self._divisions + 1)

    def _put_aside(self, partition: int, table: pa.Table) -> None:
        """Divide the rows soon; those that repeat others are left out where there are many."""
        some = table.filter(pc.is_valid(table.column("key")))
        if self._to_look_again:
            self._to_look_again -= 1
        else:
            last = last_of_each(some)
            if 4 * last.num_rows > 3 * some.num_rows:
                self._to_look_again = FRUITLESS
            some = last
        self._waiting.append((partition, some))
        self.held_bytes += some.nbytes
        if self.held_bytes >= DIVIDED_BYTES:
            self._divide_waiting()

    def _divide_waiting(self) -> None:
        """Write what waits to the scratch file, each row in its share."""
        waiting, self._waiting, self.held_bytes = self._waiting, [], 0
        for partition, tables in groupby(waiting, key=itemgetter(0)):
            for batch in pa.concat_tables([one for _, one in tables]).combine_chunks().to_batches():
                self._divide(partition, batch)

    def _divide(self, partition: int, batch: pa.RecordBatch) -> None:
        assert self._scratch is not None
        share = pa.concat_arrays(
            [
                self._share(batch.column("key").slice(start, CHECKED_ROWS))
                for start in range(0, batch.num_rows, CHECKED_ROWS)
            ]
        )
        order = pc.sort_indices(share)  # those of equal shares stay in order
        rows, runs, start = batch.take(order), pc.run_end_encode(share.take(order)), 0
        for number, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            kept = self._scratch.put([rows.slice(start, end - start).serialize()])
            self._shares[number].append((partition, kept))
            start = end

    def _share(self, keys: pa.Array) -> pa.Array:
        """The share of each key."""
        sums = pa.array([*map(crc32, keys.to_pylist())], pa.int64())
        return pc.bit_wise_and(pc.shift_right(sums, self._shift), len(self._shares) - 1)

    def _read(self, pieces: list[ScratchSlot]) -> Iterator[pa.Table]:
        """What was put aside, in order: small pieces together."""
        assert self._scratch is not None
        batches, size = list[pa.RecordBatch](), 0
        for kept in pieces:
            data = pa.py_buffer(self._scratch.get(kept))
            batches.append(pa.ipc.read_record_batch(data, KEYED))
            size += kept.length
            if size >= DIVIDED_BYTES:
                yield pa.Table.from_batches(batches)
                batches, size = [], 0
        if batches:
            yield pa.Table.from_batches(batches)


class Numbers:
    """A set of numbers of messages."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: dict[int, BitMap] = {}  # by their upper bits

    def __len__(self) -> int:
        return sum(map(len, self._parts.values()))

    def add(self, numbers: pa.Array) -> None:
        """Take some more, of type int64."""
        for upper, lower in _halves(numbers):
            self._parts[upper] = self._parts.get(upper, BitMap()) | lower

    def within(self, start: int, stop: int) -> pa.Array:
        """Those from start to stop - 1, rising."""
        asked: dict[int, BitMap] = {}
        while start < stop:
            upper = start >> NUMBER_BITS
            base, end = upper << NUMBER_BITS, min(stop, upper + 1 << NUMBER_BITS)
            asked[upper] = BitMap(range(start - base, end - base))
            start = end
        return self._and(asked)

    def has(self, numbers: pa.Array) -> pa.Array:
        """For each of these, whether it is one."""
        return pc.is_in(numbers, self._and(dict(_halves(numbers))))

    def _and(self, others: dict[int, BitMap]) -> pa.Array:
        found = [pa.array([], pa.int64())]
        for upper, other in sorted(others.items()):
            part = self._parts.get(upper)
            if part is not None and (both := part & other):
                lower = both.to_array()
                data = pa.Array.from_buffers(pa.uint32(), len(lower), [None, pa.py_buffer(lower)])
                found.append(pc.add(data.cast(pa.int64()), upper << NUMBER_BITS))
        return pa.concat_arrays(found)


def _halves(numbers: pa.Array) -> Iterator[tuple[int, BitMap]]:
    """Numbers by their upper bits."""
    uppers = pc.shift_right(numbers, NUMBER_BITS)
    for upper in pc.unique(uppers).to_pylist():
        some = numbers.filter(pc.equal(uppers, upper))
        lower = pc.bit_wise_and(some, (1 << NUMBER_BITS) - 1).cast(pa.uint32())
        if isinstance(lower, pa.ChunkedArray):
            lower = lower.combine_chunks()
        known = array("I")
        known.frombytes(memoryview(lower.buffers()[1])[4 * lower.offset :][: 4 * len(lower)])
        yield upper, BitMap(known)

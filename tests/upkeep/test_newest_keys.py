"""The newest message of each key with little memory: compared with a dict, within its limits."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pytest

from tests.disk.memory import MemoryDisk
from tests.tiers import graded
from txlog.engine.upkeep.space import topic_compaction
from txlog.engine.upkeep.space.topic_compaction import KEYED, NewestKeys, NumberSet

Rows = list[tuple[bytes | None, int]]


def table(rows: Rows) -> pa.Table:
    """Rows with the schema KEYED."""
    keys, numbers = ([row[at] for row in rows] for at in (0, 1))
    return pa.table([pa.array(keys, pa.binary()), pa.array(numbers, pa.int64())], schema=KEYED)


def some_keys(chance: random.Random, count: int) -> Iterator[bytes | None]:
    """Keys: some repeated often, some once, some None, some empty."""
    for _ in range(count):
        yield chance.choice((
            None, b"", b"%d" % chance.randrange(5), b"%d" % chance.randrange(300),
            chance.randbytes(chance.randrange(1, 40)),
        ))  # fmt: skip


@pytest.mark.parametrize("seed", graded(range(20), 1))
def test_any_keys_are_grouped_as_a_dict_says(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key is in one group, with its last message of every partition, in order."""
    chance = random.Random(seed)
    monkeypatch.setattr(topic_compaction, "HELD_BYTES", chance.choice((1, 500, 5_000, 1 << 20)))
    monkeypatch.setattr(topic_compaction, "DIVIDED_BYTES", chance.choice((1, 3_000)))
    monkeypatch.setattr(topic_compaction, "CHECKED_ROWS", chance.choice((7, 1000)))
    expected: dict[bytes, dict[int, int]] = {}
    disk = MemoryDisk()
    with closing(NewestKeys(disk)) as keys:
        for partition in range(chance.randint(1, 3)):
            number = 0
            for _ in range(chance.randint(0, 12)):
                sample = some_keys(chance, chance.randint(0, 200))
                rows = [(key, number + at) for at, key in enumerate(sample)]
                number += len(rows)
                keys.add(partition, table(rows))
                for key, at in rows:
                    if key is not None:
                        expected.setdefault(key, {})[partition] = at
        for _ in range(2):  # the groups can be read twice
            groups: dict[bytes, dict[int, int]] = {}
            for group in keys.groups():
                of_group: dict[bytes, dict[int, int]] = {}
                for partition, part in group.items():
                    numbers = part.column("number").to_pylist()
                    assert numbers == sorted(numbers)
                    for key, at in zip(part.column("key").to_pylist(), numbers, strict=True):
                        assert partition not in of_group.setdefault(key, {})
                        of_group[key][partition] = at
                assert not groups.keys() & of_group.keys(), f"seed {seed}: a key in two groups"
                groups |= of_group
            assert groups == expected, f"seed {seed}"
    assert disk.listdir("") == []


def test_memory_is_bounded_for_any_number_of_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also for a share, which is divided again.

    Guards against dividing twice by the same bits of the checksum.
    """
    monkeypatch.setattr(topic_compaction, "HELD_BYTES", 2_000)
    monkeypatch.setattr(topic_compaction, "DIVIDED_BYTES", 1_000)
    made: list[NewestKeys] = []
    begin = NewestKeys.__init__

    def noted(self: NewestKeys, disk: MemoryDisk, divisions: int = 0) -> None:
        begin(self, disk, divisions)
        made.append(self)

    monkeypatch.setattr(NewestKeys, "__init__", noted)
    most = 0
    with closing(NewestKeys(MemoryDisk())) as keys:
        for start in range(0, 20_000, 50):
            keys.add(0, table([(b"user-%08d" % n, n) for n in range(start, start + 50)]))
            most = max(most, keys.held_bytes)
        groups = 0
        for group in keys.groups():
            groups += 1
            most = max(most, *(newest_key.held_bytes for newest_key in made))
            assert sum(part.nbytes for part in group.values()) <= 2_000
    assert most <= 2_000
    assert groups > 20_000 * 20 // 2_000
    assert {newest_key._divisions for newest_key in made} == {0, 1, 2}


def test_keys_that_come_again_and_again_are_not_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the number of keys counts, not the number of messages."""
    monkeypatch.setattr(topic_compaction, "HELD_BYTES", 4_000)
    with closing(NewestKeys(MemoryDisk())) as keys:
        for start in range(0, 20_000, 100):
            keys.add(0, table([(b"%d" % (n % 60), n) for n in range(start, start + 100)]))
        (group,) = keys.groups()
    assert group[0].column("number").to_pylist() == [*range(19_940, 20_000)]


def test_keys_with_equal_checksums_stay_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_compaction, "HELD_BYTES", 100)
    monkeypatch.setattr(topic_compaction, "crc32", lambda key: 0x8421_0842)
    with closing(NewestKeys(MemoryDisk())) as keys:
        for start in range(0, 500, 10):
            keys.add(0, table([(b"%d" % (n % 300), n) for n in range(start, start + 10)]))
        groups = [group for group in keys.groups() if group]
    assert [len(group[0]) for group in groups] == [300]


@pytest.mark.parametrize("bits", [3, 32])
def test_numbers_are_a_set(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also above the size of one bitmap. Guards against forgetting the upper bits."""
    monkeypatch.setattr(topic_compaction, "NUMBER_BITS", bits)
    chance = random.Random(bits)
    plain_set, numbers = set[int](), NumberSet()
    assert numbers.within(0, 100).to_pylist() == []
    for _ in range(20):
        some_numbers = [chance.randrange(200) for _ in range(chance.randrange(10))]
        plain_set.update(some_numbers)
        numbers.add(pa.chunked_array([some_numbers[:2], some_numbers[2:]], pa.int64()))
        assert len(numbers) == len(plain_set)
        start = chance.randrange(200)
        stop = start + chance.randrange(40)
        assert numbers.within(start, stop).to_pylist() == sorted(
            n for n in plain_set if start <= n < stop
        )
        asked_numbers = [chance.randrange(220) for _ in range(9)]
        flags = numbers.has(pa.array(asked_numbers, pa.int64()).slice(2))
        assert flags.to_pylist() == [n in plain_set for n in asked_numbers[2:]]


def test_numbers_beyond_a_bitmap() -> None:
    numbers = NumberSet()
    far = [5, (1 << 32) - 1, 1 << 32, (1 << 33) + 5]
    numbers.add(pa.array(far, pa.int64()))
    assert len(numbers) == 4
    assert numbers.within((1 << 32) - 1, (1 << 32) + 1).to_pylist() == far[1:3]
    assert numbers.within((1 << 33), (1 << 33) + 6).to_pylist() == far[3:]
    assert numbers.has(pa.array([5, 1 << 33, (1 << 33) + 5], pa.int64())).to_pylist() == [
        True, False, True,
    ]  # fmt: skip

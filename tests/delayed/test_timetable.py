"""The index in the memory of a process: bitmaps equal rows, and no row is read too soon.

Source: spec/delayed 3 (invariants 4, 5, 7), 7, 11, 13 F.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.delayed.dispatch_kit import T0, Shop, place, pointer, strays, take, take_ids
from tests.tiers import graded
from txlog import MessageId
from txlog.engine.folds.cursor import BEFORE_ALL, Cursor
from txlog.engine.model.idset import IdSet, covers
from txlog.engine.model.ops import Id
from txlog.engine.plan.delayed.index import (
    DelayedIndex,
    Key,
    after_time,
    index_of_partition,
    sorted_rows,
)
from txlog.engine.plan.reading.dispatch import IdsExcept
from txlog.engine.storage.bucket import BucketFile, Columns
from txlog.engine.store.store import MAINTENANCE_PATH
from txlog.engine.upkeep.delayed.buckets import tend
from txlog.engine.view import View
from txlog.errors import DiskFailed

pytestmark = pytest.mark.usefixtures("quick_disk")


def indexed(view: View) -> list[Key]:
    """All keys of the index, read without the timetable."""
    delayed = view.delayed(1)
    out = list(delayed.mutable)
    for bucket in delayed.buckets:
        file = view.disk.open(bucket.file.path)
        reader = BucketFile(file, bucket.file)
        for number in range(len(reader.segments)):
            rows = reader.segment(number)
            out += zip(rows.at, rows.ledger, rows.entry, rows.index, strict=True)
        file.close()
    return sorted(out)


def columns(rows: list[Key]) -> Columns:
    at, ledger, entry, index = zip(*rows, strict=True)
    longs = [memoryview(array("q", column)) for column in (at, ledger, entry)]
    return Columns(longs[0], longs[1], longs[2], memoryview(array("i", index)))


def is_in(message_id: Id, ids: IdSet | IdsExcept) -> bool:
    assert isinstance(ids, IdSet)
    return message_id in ids


def tended(shop: Shop) -> int:
    """Run the upkeep that is due; returns the number of buckets afterwards."""
    tend(shop.client.store, None)
    return shop.client.store.read(lambda view: len(view.delayed(1).buckets))


def random_shop(folder: Path, chance: random.Random) -> Shop:
    shop = Shop(
        folder,
        ledger_entries_max=chance.choice((3, 7, 1000)),
        ledger_step_per_bucket=1,
        mutable_ids_max=chance.choice((3, 9, 1000)),
        max_num_buckets=chance.choice((1, 3, -1)),
        max_indexes_per_snapshot_segment=chance.choice((1, 3, -1)),
    )
    shop.set(0)
    for _ in range(chance.randrange(1, 20)):
        rows = [
            (b"", chance.choice((None, chance.randrange(1, 60))))
            for _ in range(chance.randrange(1, 4))
        ]
        if chance.random() < 0.5:
            shop.send_all(*rows)
        else:
            shop.commit(*rows)
        if chance.random() < 0.3:
            tend(shop.client.store, None)
    return shop


@pytest.mark.parametrize("seed", graded(range(12), 2))
def test_bitmaps_polls_and_counts_equal_the_rows(tmp_path: Path, seed: int) -> None:
    """Invariants 4 and 5, while the clock moves both ways, and buckets come and go."""
    print("seed", seed)
    chance = random.Random(seed)
    shop = random_shop(tmp_path / "store", chance)

    def look(view: View) -> None:
        rows = indexed(view)
        cutoff = T0 + chance.randrange(-5, 70)
        table = index_of_partition(view, 1, cutoff)
        mark = (chance.randrange(4), chance.randrange(4), 0)
        sets, away = table.futures(Cursor(), mark, make_do=False)
        assert not away
        for at, *row_id in rows:
            total = sum(is_in((row_id[0], row_id[1], row_id[2]), ids) for ids in sets)
            is_future = at > cutoff
            assert total == is_future or (
                total == 0 and covers(mark, (row_id[0], row_id[1], row_id[2]))
            )
        choice_after = chance.choice([*rows, after_time(T0 + chance.randrange(60)), (0, 0, 0, 0)])
        below = chance.choice([BEFORE_ALL, (1 << 40, 0, 0), (rows[0][1] + 1, 2, 0)])
        polled = [key for key in table.poll(choice_after, below) if covers(below, key[1:])]
        expected = [key for key in rows if choice_after < key and key[0] <= cutoff]
        assert polled == [key for key in expected if covers(below, key[1:])]
        later = [key for key in rows if key[0] > cutoff]
        assert table.next_key() == min(later, default=None)
        assert table.count() == len(later)
        cursor = Cursor()
        cursor.mark_delete = mark
        for _, *removed_ids in later:
            if chance.random() < 0.3:
                cursor.acked.add(
                    (removed_ids[0], removed_ids[1], removed_ids[1], removed_ids[2], removed_ids[2])
                )
        remaining_rows = [k for k in later if not covers(mark, k[1:]) and k[1:] not in cursor.acked]
        assert table.count_for(cursor) == len(remaining_rows)

    for _ in range(30):
        if shop.client.store.read(indexed):
            shop.client.store.read(look)
        deed = chance.random()
        if deed < 0.2:
            shop.send_all((b"", chance.randrange(1, 60)), (b"", None))
        elif deed < 0.3:
            shop.set(chance.randrange(40))
            tend(shop.client.store, None)
            shop.set(0)
        elif deed < 0.4:
            shop.commit(*[(b"", 30)] * 3)


def test_no_segment_is_read_before_it_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 7: neither rows nor bitmaps; a new consumer reads footers only."""
    shop = Shop(tmp_path / "store", max_indexes_per_snapshot_segment=2, mutable_ids_max=6)
    shop.set(0)
    consumer = shop.consumer()
    shop.send_all(*[(b"%d" % at, at) for at in (10, 20, 30, 40, 50, 60)])
    assert tended(shop) == 1
    read: list[int] = []
    bitmaps: list[int] = []
    segment, joined = BucketFile.segment, BucketFile.joined

    def note(self: BucketFile, number: int) -> Columns:
        read.append(number)
        return segment(self, number)

    def note_bitmaps(self: BucketFile, start: int = 0, stop: int | None = None) -> object:
        bitmaps.append(start)
        return joined(self, start, stop)

    monkeypatch.setattr(BucketFile, "segment", note)
    monkeypatch.setattr(BucketFile, "joined", note_bitmaps)
    assert take(consumer) == [] and read == [] and bitmaps == [0]
    shop.set(9)
    assert take(consumer) == [] and read == []
    shop.set(10)
    assert take(consumer) == [b"10"] and read == [0]
    shop.set(29)
    assert take(consumer) == [b"20"] and read == [0]
    shop.set(30)
    assert take(consumer) == [b"30"] and read == [0, 1]
    assert bitmaps == [0]  # the skipped rows need no bitmap, as R is after the bucket


def test_example_f_a_bucket_disappears(tmp_path: Path) -> None:
    """13 F: the pointer is compared as a key; the other messages come from the log."""
    shop = Shop(tmp_path / "store", mutable_ids_max=4)
    shop.set(0)
    own_process, clock = shop.process(0)
    consumer = shop.consumer("s2", own_process)
    ids = shop.send_all(*[(b"%d" % n, 1900) for n in range(4)])
    assert tended(shop) == 1
    last = shop.send(b"later", 5000)
    assert take(consumer) == []
    clock.set_wall(T0 + 1900)
    assert take_ids(consumer, 2) == ids[:2]
    assert place(consumer).pointer == (T0 + 1900, ids[1].ledger, ids[1].entry, 0)
    shop.set(1900)
    assert tended(shop) == 0
    assert take_ids(consumer) == ids[2:]
    assert pointer(consumer) == 1900
    assert take(consumer) == []
    clock.set_wall(T0 + 5000)
    assert take_ids(consumer) == [last]


def test_a_bucket_deleted_by_a_fast_clock_leaves_strays_for_a_slow_one(tmp_path: Path) -> None:
    """Event: two processes, two clocks: never early although the index has dropped the ids."""
    shop = Shop(tmp_path / "store", mutable_ids_max=3)
    shop.set(0)
    slow, clock = shop.process(0)
    consumer = shop.consumer("s", slow)
    ids = shop.send_all((b"a", 300), (b"b", 100), (b"c", 200))
    assert tended(shop) == 1
    assert take(consumer) == []
    shop.set(1000)
    assert tended(shop) == 0
    assert take(consumer) == [] and strays(consumer) == [100, 200, 300]
    for now, message_id in ((100, ids[1]), (200, ids[2]), (300, ids[0])):
        clock.set_wall(T0 + now - 1)
        assert take(consumer) == []
        clock.set_wall(T0 + now)
        assert take_ids(consumer) == [message_id]


@pytest.fixture
def sealed(tmp_path: Path) -> tuple[Shop, list[MessageId], Path]:
    """Three messages in a bucket, due at 100, 200, 300, and the file of the bucket."""
    shop = Shop(tmp_path / "store", mutable_ids_max=3)
    shop.set(0)
    ids = shop.send_all((b"a", 300), (b"b", 100), (b"c", 200))
    assert tended(shop) == 1
    [path] = shop.client.store.read(
        lambda view: [bucket.file.path for bucket in view.delayed(1).buckets]
    )
    return shop, ids, tmp_path / "store" / path


def remove(path: Path) -> None:
    path.unlink()


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.chmod(0o600)
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("harm", [remove, damage, cut])
@pytest.mark.parametrize("type", ["shared", "key-shared"])
@pytest.mark.parametrize("is_free", [True, False])
def test_a_lost_bucket_costs_time_only(
    sealed: tuple[Shop, list[MessageId], Path],
    harm: Callable[[Path], None],
    type: str,
    is_free: bool,
) -> None:
    """11: dropped and rebuilt; while another process has the maintenance lock, rows are read
    instead.
    """
    shop, ids, path = sealed
    consumer = shop.consumer(type=type)  # type: ignore[arg-type]
    harm(path)
    lock = shop.client.store.disk.lock_file(MAINTENANCE_PATH)
    if not is_free:
        lock.acquire(0)
    assert take(consumer) == []
    assert strays(consumer) == ([] if is_free else [100, 200, 300])
    lock.close()
    for now, message_id in ((100, ids[1]), (200, ids[2]), (300, ids[0])):
        shop.set(now - 1)
        assert take(consumer) == []
        shop.set(now)
        assert take_ids(consumer) == [message_id]


def test_a_bucket_that_cannot_be_read_now_is_not_passed(
    sealed: tuple[Shop, list[MessageId], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """7: three tries, no poll passes it, other messages come, the next cycle tries again."""
    shop, ids, _ = sealed
    consumer = shop.consumer()
    assert take(consumer) == []
    pointer_before = pointer(consumer)
    tries: list[int] = []
    segment = BucketFile.segment

    def fail(self: BucketFile, number: int) -> Columns:
        tries.append(number)
        raise DiskFailed("input/output error")

    monkeypatch.setattr(BucketFile, "segment", fail)
    new = shop.send(b"new")
    shop.set(250)
    # perhaps after a look without the lock
    assert take_ids(consumer) == [new] and len(tries) in (3, 6)
    assert pointer(consumer) == pointer_before
    assert not consumer.has_message_available()
    monkeypatch.setattr(BucketFile, "segment", segment)
    assert take_ids(consumer) == [ids[1], ids[2]]
    shop.set(300)
    assert take_ids(consumer) == [ids[0]]


def test_a_new_consumer_does_without_a_bucket_that_cannot_be_read(
    sealed: tuple[Shop, list[MessageId], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks at the rows one by one: due messages come, the others are strays."""
    shop, ids, _ = sealed
    shop.set(150)
    consumer = shop.consumer()

    def fail(self: BucketFile, number: int) -> Columns:
        raise DiskFailed("input/output error")

    monkeypatch.setattr(BucketFile, "segment", fail)
    assert take_ids(consumer) == [ids[1]] and strays(consumer) == [200, 300]
    shop.set(300)
    assert sorted(take_ids(consumer)) == sorted([ids[0], ids[2]])


def test_sorting_keeps_the_order_of_position_for_equal_times() -> None:
    """Merged chunks are in order of key, for few rows and many."""
    for count in (10, 1000):
        chance = random.Random(count)
        rows = [(chance.randrange(5), 7, entry, 0) for entry in range(count)]
        parts = [rows[: count // 2], rows[count // 2 :]]
        new_rows = sorted_rows([columns(part) for part in parts])
        sorted_ids = list(
            zip(new_rows.at, new_rows.ledger, new_rows.entry, new_rows.index, strict=True)
        )
        assert sorted_ids == sorted(rows)


def test_a_timetable_goes_with_its_view(tmp_path: Path) -> None:
    """It is a cache: closing closes its files, and another client builds its own."""
    shop = Shop(tmp_path / "store", mutable_ids_max=1)
    shop.set(0)
    consumer = shop.consumer()
    shop.send(b"a", 10)
    tend(shop.client.store, None)
    assert take(consumer) == []
    known_items = shop.client.store.read(lambda view: dict(view.timetables))
    assert isinstance(known_items[1], DelayedIndex)
    shop.reopen()
    assert shop.client.store.read(lambda view: view.timetables) == {}


def test_a_timetable_goes_with_its_topic(tmp_path: Path) -> None:
    """Deleting the topic closes the files: an open descriptor would keep their space."""
    shop = Shop(tmp_path / "store", mutable_ids_max=1)
    shop.set(0)
    with shop.consumer() as consumer:
        shop.send(b"a", 10)
        tended(shop)
        shop.set(10)
        shop.consumer("other").close()
        assert take(consumer) == [b"a"]
    shop.client.admin.delete_topic("t", force=True)
    assert shop.client.store.read(lambda view: view.timetables) == {}

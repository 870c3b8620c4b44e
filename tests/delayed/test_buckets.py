"""Upkeep of the delayed index: the index stays correct and complete after every operation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.delayed.bucket_kit import (
    DAY_MS,
    bucket_files,
    check_index,
    counts,
    delay,
    delay_txn,
    index,
    indexed_times,
    named_files,
)
from tests.disk.faults import FaultyDisk
from tests.engine_kit import START_MS, Bench
from tests.tiers import graded
from txlog import Client
from txlog.base.ranges import END, START
from txlog.engine.decide.topics import buckets as flow
from txlog.engine.store.store import MAINTENANCE_PATH
from txlog.engine.upkeep.checkpoint.dump import inspect_file
from txlog.engine.upkeep.delayed import buckets as delayed
from txlog.errors import Corruption, DiskFailed, MissingFile, StoreFull

pytestmark = pytest.mark.usefixtures("quick_disk")
HOUR_MS = 3_600_000


def bench_of(folder: Path, **settings: int | float) -> Bench:
    """A store with a topic of one partition and a shared subscription."""
    options: dict[str, Any] = {
        "coordinators": 1,
        "reader_grace_ms": 0,
        "mutable_ids_max": 4,
        **settings,
    }
    bench = Bench(folder / "store", **options)
    bench.client.create_topic("t")
    bench.client.create_subscription("t", "s", type="shared")
    return bench


def fill(bench: Bench, buckets: int, each: int = 4) -> None:
    """Seal this many buckets; times rise, an hour apart."""
    for number in range(buckets):
        delay(bench.client, *(HOUR_MS * (number * each + n + 1) for n in range(each)))


# --- seal ------------------------------------------------------------------------------------


def test_a_full_mutable_bucket_is_sealed_inside_a_ledger(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    delay(bench.client, HOUR_MS, 2 * HOUR_MS, None)
    assert counts(bench.client) == [2]
    delay(bench.client, 9 * HOUR_MS, None, 4 * HOUR_MS, DAY_MS)
    assert counts(bench.client) == [5, 0]
    delay_txn(bench.client, 5 * HOUR_MS, None, 6 * HOUR_MS)
    assert counts(bench.client) == [5, 2]
    delay_txn(bench.client, HOUR_MS, HOUR_MS)
    assert counts(bench.client) == [5, 4, 0]
    (low, high) = index(bench.client).buckets
    assert (low.first, low.last) == ((1, 0, 0), (1, 6, 0))
    assert low.last < high.first and high.first[2] == 1 and high.last[2] == 2
    assert (low.min_at, low.max_at) == (START_MS + HOUR_MS, START_MS + DAY_MS)
    check_index(bench.client)
    bench.reopen()
    check_index(bench.client)


def test_due_ids_are_left_out_of_a_seal(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    delay(bench.client, 1000, 2000, HOUR_MS)
    bench.clock.advance(1500)
    delay(bench.client, HOUR_MS)
    assert counts(bench.client) == [3, 0]
    assert index(bench.client).passed_ms >= START_MS + 1000
    check_index(bench.client)


def test_nothing_left_makes_no_file(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    delay(bench.client, 1000, 2000, 3000)
    bench.clock.advance(5000)
    delay(bench.client, 4000)  # its time has passed, so it is not indexed
    assert counts(bench.client) == [3]
    delay(bench.client, 5001)
    assert counts(bench.client) == [1, 0]
    bench.clock.advance(5000)
    delay(bench.client, 10_001, 10_002, 10_003)
    bench.clock.advance(500)
    assert bench.client.store.bucket_ops.counts[("seal", "succeeded")] == 1
    check_index(bench.client)


def test_ledgers_that_contribute_are_counted(tmp_path: Path) -> None:
    """Seal when an id arrives in a new ledger and `step` ledgers before it have ids."""
    bench = bench_of(tmp_path, mutable_ids_max=1000, ledger_step_per_bucket=2)
    client = bench.client
    delay(client, DAY_MS, DAY_MS)
    client.checkpoint(roll_all=True)
    delay(client, None, None)  # this ledger contributes nothing
    client.checkpoint(roll_all=True)
    delay(client, DAY_MS)
    assert counts(client) == [3]
    client.checkpoint(roll_all=True)
    assert counts(client) == [3]
    delay(client, DAY_MS)
    assert counts(client) == [3, 1]  # the new ledger's id stays
    check_index(client)


def test_few_ids_are_not_sealed_by_ledgers(tmp_path: Path) -> None:
    bench = bench_of(
        tmp_path, mutable_ids_max=1000, ledger_step_per_bucket=1, min_index_count_per_bucket=3
    )
    for expected in ([1], [2], [3], [3, 1]):
        delay(bench.client, DAY_MS)
        assert counts(bench.client) == expected
        bench.client.checkpoint(roll_all=True)


def test_no_step_seals_by_size_only(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, mutable_ids_max=5, ledger_step_per_bucket=0)
    for _ in range(4):
        delay(bench.client, DAY_MS)
        bench.client.checkpoint(roll_all=True)
    assert counts(bench.client) == [4]
    delay(bench.client, DAY_MS)
    assert counts(bench.client) == [5, 0]


def test_ids_that_arrive_while_a_bucket_is_made_stay(tmp_path: Path) -> None:
    """The op has its upper position."""
    bench = bench_of(tmp_path)
    other, disk = bench.another(), bench.faulty()
    disk.after("publish", lambda: delay(other, 2 * DAY_MS, 3 * DAY_MS), "*_delayed*")
    delay(bench.client, *[DAY_MS] * 4)
    assert counts(bench.client) == [4, 2]
    check_index(bench.client)
    check_index(other)


def race(bench: Bench, disk: FaultyDisk, act: Callable[[Client], object]) -> None:
    """Let another process act between the file of the next bucket and its frame."""
    other = bench.another()
    disk.after("publish", lambda: act(other), "*_delayed*")


def lose_first(client: Client) -> None:
    """Report the first bucket as unreadable."""
    gen = index(client).buckets[0].gen
    assert delayed.drop_lost(client.store, 1, gen, MissingFile("it is gone"))


@pytest.mark.parametrize("step", graded(["seal", "merge", "rebuild", "prune"], 1))
@pytest.mark.parametrize("what", ["trim", "delete", "offline", "lost"])
def test_whatever_races_a_new_bucket_it_is_right_after(
    tmp_path: Path, step: str, what: str
) -> None:
    bench = bench_of(tmp_path, max_num_buckets=0)
    disk = bench.faulty()
    fill(bench, 3)
    bench.client.checkpoint(roll_all=True)
    if step == "rebuild":
        lose_first(bench.client)
    acts: dict[str, Callable[[Client], object]] = {
        "trim": lambda client: client.admin.trim("t", END, force_unacked=True),
        "delete": lambda client: client.admin.delete_topic("t", force=True),
        "offline": lambda client: client.admin.set_offline("t", 0),
        "lost": lose_first,
    }
    race(bench, disk, acts[what])
    store = bench.client.store
    if step == "seal":
        delay(bench.client, *[2 * DAY_MS] * 4)
    elif step == "merge":
        delayed.merge_now(store, 1)
    else:
        bench.clock.advance(3 * HOUR_MS * (step == "prune"))
        delayed.tend(store, [1], wait=True)
    assert not any(state == "failed" for _, state in store.bucket_ops.counts), store.reports
    client = bench.reopen()
    if what == "offline":
        client.admin.set_online("t", 0)
    if what != "delete":
        check_index(client)
    client.checkpoint()
    client.checkpoint()
    client.admin.gc(apply=True, keep_ms=0)
    if what != "delete":
        check_index(client)
        assert bucket_files(client) == named_files(client)
    else:
        assert not [*Path(bench.path).glob("topics/**/_delayed/*")]


# --- merge -----------------------------------------------------------------------------------


def test_two_neighbours_become_one(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, max_num_buckets=2)
    fill(bench, 2)
    times_before = indexed_times(bench.client)
    delay(bench.client, 90 * HOUR_MS, HOUR_MS, 1, 4 * HOUR_MS)
    assert counts(bench.client) == [8, 4, 0], "of equal sums the earlier pair"
    assert times_before.items() <= indexed_times(bench.client).items()
    merged = index(bench.client).buckets[0]
    assert (merged.gen, merged.first, merged.last) == (4, (1, 0, 0), (1, 7, 0))
    check_index(bench.client)
    bench.client.checkpoint()
    bench.client.checkpoint()
    assert bucket_files(bench.client) == named_files(bench.client)


def test_example_e(tmp_path: Path) -> None:
    """spec/delayed 13 E: not due 40, 10, 30, 15, 20, maximum 4: the last pair."""
    bench = bench_of(tmp_path, max_num_buckets=0, mutable_ids_max=10)
    for count in (40, 10, 30, 15, 20):
        delay(bench.client, *[DAY_MS] * count)
    assert counts(bench.client) == [40, 10, 30, 15, 20, 0]
    assert delayed.merge_now(bench.client.store, 1, 4).merged == 1
    assert counts(bench.client) == [40, 10, 30, 35, 0]
    check_index(bench.client)


@pytest.mark.parametrize("most", [0, -1])
def test_zero_never_merges(tmp_path: Path, most: int) -> None:
    bench = bench_of(tmp_path, max_num_buckets=most)
    fill(bench, 30)
    bench.client.checkpoint()
    assert len(index(bench.client).buckets) == 30


def test_one_bucket_is_enough(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, max_num_buckets=1)
    fill(bench, 6)
    delay_txn(bench.client, DAY_MS, None, DAY_MS, DAY_MS, DAY_MS)
    assert counts(bench.client) == [28, 0]
    check_index(bench.client)


def test_a_merge_drops_what_is_due_and_cuts_anew(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, max_num_buckets=0, max_indexes_per_snapshot_segment=3)
    fill(bench, 2)
    bench.clock.advance(2 * HOUR_MS)
    delayed.merge_now(bench.client.store, 1)
    (bucket,) = index(bench.client).buckets
    assert bucket.count == 6 and [rows for rows, *_ in bucket.file.groups] == [1] * 6
    assert bucket.cutoff_ms == START_MS + 2 * HOUR_MS
    check_index(bench.client)


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_merge_streams_when_it_is_large(
    tmp_path: Path, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal times stay in order of position, whether the merge keeps ids or reads them again."""
    monkeypatch.setattr(delayed, "KEPT_IDS", 1000 if is_kept else 0)
    monkeypatch.setattr("txlog.engine.upkeep.delayed.buckets.ROWS_READ", 7)
    bench = bench_of(
        tmp_path, max_num_buckets=0, max_indexes_per_snapshot_segment=2, mutable_ids_max=40
    )
    delay(bench.client, *[HOUR_MS * (1 + n // 9) for n in range(40)])
    delay_txn(bench.client, *[HOUR_MS * (1 + n // 7) for n in range(40)])
    times_before = indexed_times(bench.client)
    delayed.merge_now(bench.client.store, 1)
    assert counts(bench.client) == [80, 0]
    assert indexed_times(bench.client) == times_before
    check_index(bench.client)


# --- prune and delete ------------------------------------------------------------------------


def test_a_bucket_more_than_half_due_is_pruned(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    fill(bench, 1)
    bench.clock.advance(2 * HOUR_MS)
    bench.client.checkpoint()
    assert counts(bench.client) == [4, 0], "half is not more than half"
    bench.clock.advance(HOUR_MS)
    bench.client.checkpoint()
    assert counts(bench.client) == [1, 0]
    check_index(bench.client)


def test_a_bucket_whose_ids_are_all_due_is_deleted(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    fill(bench, 2)
    bench.clock.advance(4 * HOUR_MS)
    bench.client.checkpoint()
    assert counts(bench.client) == [4, 0]
    state = index(bench.client)
    assert not state.unindexed and not state.losses and state.cutoff_ms == START_MS + 4 * HOUR_MS
    bench.client.checkpoint()
    assert bucket_files(bench.client) == named_files(bench.client)


def test_a_fully_acknowledged_bucket_is_deleted_and_can_come_back(tmp_path: Path) -> None:
    """A seek may need it again: the range lacks an index, not its messages."""
    bench = bench_of(tmp_path)
    client = bench.client
    client.create_subscription("t", "other", type="shared")
    fill(bench, 2)
    client.subscription("t", "s").clear_backlog()
    client.checkpoint()
    assert counts(client) == [4, 4, 0], "another subscription still wants them"
    client.subscription("t", "other").clear_backlog()
    client.checkpoint()
    state = index(client)
    assert counts(client) == [0] and len(state.unindexed) == 1 and state.losses == 2
    client.checkpoint()
    assert counts(client) == [0], "nobody waits for it, so it is not built again"
    client.subscription("t", "s").seek(START)
    listed = {row["subscription"]: row["delayed"] for row in client.subscriptions("t")}
    assert listed == {"s": 8, "other": 0}, "no consumer and no checkpoint came since"
    assert client.topics()[0]["delayed"] == 8
    client.checkpoint()
    assert sum(counts(client)) == 8 and not state.unindexed
    check_index(client)


def test_no_subscription_deletes_nothing_as_acknowledged(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    fill(bench, 1)
    bench.client.subscription("t", "s").delete()
    bench.client.checkpoint()
    assert counts(bench.client) == [4, 0]


def test_buckets_of_trimmed_ledgers_go(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, max_num_buckets=0)
    client = bench.client
    fill(bench, 1)
    client.checkpoint(roll_all=True)
    delay(client, DAY_MS, DAY_MS)
    client.admin.trim("t", END, force_unacked=True)
    delay(client, DAY_MS, DAY_MS, DAY_MS)
    client.checkpoint()
    assert counts(client) == [3]
    client.checkpoint()
    assert bucket_files(client) == []
    check_index(client)


def test_files_of_a_deleted_topic_go(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    fill(bench, 2)
    files = bucket_files(bench.client)
    bench.client.checkpoint()
    bench.client.admin.delete_topic("t", force=True)
    bench.client.checkpoint()
    bench.client.checkpoint()
    assert len(files) == 2
    assert not any(bench.client.store.disk.exists(path) for path in files)


# --- lost and rebuilt ------------------------------------------------------------------------


def damage(bench: Bench, number: int) -> str:
    """Flip a byte of a bucket's file; returns its path."""
    path = index(bench.client).buckets[number].file.path
    full = Path(bench.path) / path
    data = bytearray(full.read_bytes())
    data[len(data) // 2] ^= 1
    full.write_bytes(data)
    return path


def test_a_lost_bucket_is_built_again(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    delay(bench.client, HOUR_MS, None, HOUR_MS)
    delay_txn(bench.client, DAY_MS, None, 2 * DAY_MS)
    fill(bench, 1)
    times_before = indexed_times(bench.client)
    lost = index(bench.client).buckets[0]
    store = bench.client.store
    error = Corruption("it is damaged", path=lost.file.path)
    assert delayed.is_lost(error) and not delayed.is_lost(DiskFailed("no"))
    assert delayed.drop_lost(store, 1, lost.gen, error)
    assert not delayed.drop_lost(store, 1, lost.gen, error), "it is gone already"
    assert index(bench.client).unindexed == [(lost.first, lost.last)]
    assert len(store.reports) == 1 and index(bench.client).losses == 1
    check_index(bench.client)
    assert delayed.rebuild_if_free(store, 1, lost.last, lost.last)
    assert not index(bench.client).unindexed
    assert indexed_times(bench.client) == times_before
    check_index(bench.client)


def test_a_rebuild_gives_way(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    fill(bench, 1)
    store = bench.another().store
    lost = index(bench.client).buckets[0]
    delayed.drop_lost(bench.client.store, 1, lost.gen, MissingFile("gone"))
    lock = store.disk.lock_file(MAINTENANCE_PATH)
    lock.acquire(0)
    assert not delayed.rebuild_if_free(bench.client.store, 1, lost.first, lost.last)
    lock.close()
    assert delayed.rebuild_if_free(bench.client.store, 1, lost.first, lost.last)
    assert not index(bench.client).unindexed


def test_a_long_range_is_rebuilt_in_several_buckets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txlog.engine.upkeep.delayed.buckets.ROWS_READ", 3)
    bench = bench_of(tmp_path, mutable_ids_max=5, max_num_buckets=0)
    client = bench.client
    delay(client, *[DAY_MS + n for n in range(7)])
    delay_txn(client, *[None if n % 3 else 2 * DAY_MS - n for n in range(19)])
    client.checkpoint(roll_all=True)
    delay(client, *[None] * 9, *[DAY_MS] * 6)
    delayed.merge_now(client.store, 1)
    times_before = indexed_times(client)
    (bucket,) = index(client).buckets
    delayed.drop_lost(client.store, 1, bucket.gen, MissingFile("gone"))
    client.checkpoint()
    assert len(index(client).buckets) == 3
    assert indexed_times(client) == times_before and not index(client).unindexed
    check_index(client)


@pytest.mark.parametrize("how", ["flip", "remove"])
def test_a_merge_over_a_damaged_bucket_drops_it(tmp_path: Path, how: str) -> None:
    bench = bench_of(tmp_path, max_num_buckets=0)
    fill(bench, 3)
    times_before = indexed_times(bench.client)
    path = damage(bench, 1)
    if how == "remove":
        (Path(bench.path) / path).unlink()
    report = delayed.merge_now(bench.client.store, 1)
    assert report.lost == 1 and not report.failed
    assert len(index(bench.client).buckets) == 2, "nothing merges over a range without an index"
    bench.client.checkpoint()
    assert indexed_times(bench.client) == times_before
    check_index(bench.client)


def test_rebuild_by_command_reports_the_differences(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, max_num_buckets=0)
    fill(bench, 3)
    store = bench.client.store
    report = delayed.rebuild_now(store, 1)
    assert (report.ids, report.missing, report.extra) == (12, 0, 0)
    assert (report.buckets_dropped, report.buckets_made) == (3, 1)
    check_index(bench.client)
    fill(bench, 1)
    lost = index(bench.client).buckets[1]
    delayed.drop_lost(store, 1, lost.gen, MissingFile("gone"))
    report = delayed.rebuild_now(store, 1, lost.first, lost.last)
    assert (report.ids, report.missing, report.extra) == (4, 4, 0)
    assert (report.buckets_dropped, report.buckets_made) == (0, 1)
    check_index(bench.client)


# --- which process does it, and failures -----------------------------------------------------


def test_upkeep_gives_way_to_another_process(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    lock = bench.another().store.disk.lock_file(MAINTENANCE_PATH)
    lock.acquire(0)
    delay(bench.client, *[DAY_MS] * 5)
    assert counts(bench.client) == [5]
    lock.close()
    delay(bench.client, DAY_MS)
    assert counts(bench.client) == [6, 0]


def test_a_process_that_adds_beyond_twice_the_bound_waits(tmp_path: Path) -> None:
    """Memory and checkpoint stay bounded; a time-out is reported, and the messages are sent."""
    bench = bench_of(tmp_path)
    lock = bench.client.store.disk.lock_file(MAINTENANCE_PATH)
    lock.acquire(0)
    bench.client = bench.another(lock_timeout_ms=0)
    delay(bench.client, *[DAY_MS] * 8)
    assert any("upkeep of delayed indexes failed" in line for line in bench.client.reports())
    assert counts(bench.client) == [8]
    lock.close()
    bench.clock.advance(60_000)
    delay(bench.client, DAY_MS)
    assert counts(bench.client) == [9, 0]


def test_a_failure_is_tried_again_counted_and_left(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    disk = bench.faulty()
    store = bench.client.store
    full = disk.fail_at("publish", StoreFull("no space is left"), nth=0)
    delay(bench.client, *[DAY_MS] * 4)
    assert full.count == delayed.TRIES and counts(bench.client) == [4]
    assert store.bucket_ops.counts[("seal", "failed")] == 1
    delay(bench.client, DAY_MS)
    assert full.count == delayed.TRIES, "not again for a while"
    disk.clear()
    bench.clock.advance(11_000)
    delay(bench.client, DAY_MS)
    assert counts(bench.client) == [6, 0]
    check_index(bench.client)


def test_an_away_partition_is_left_alone(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    fill(bench, 1)
    bench.client.admin.set_offline("t", 0)
    bench.clock.advance(DAY_MS)
    bench.client.checkpoint()
    assert counts(bench.client) == [4, 0]
    bench.client.admin.set_online("t", 0)
    bench.client.checkpoint()
    assert counts(bench.client) == [0]


def test_upkeep_does_nothing_twice(tmp_path: Path) -> None:
    """A second process does the upkeep that the first did not do; then no work remains."""
    bench = bench_of(tmp_path, max_num_buckets=1)
    fill(bench, 3)
    store = bench.client.store
    now = bench.clock.now()
    assert not store.read(lambda view: flow.upkeep_due(view, store.settings, 1, now))
    lsn_before = store.refresh()
    assert delayed.tend(store, None, wait=True).steps == 0
    assert store.refresh() == lsn_before


def test_closing_deletes_buckets_that_became_due(tmp_path: Path) -> None:
    """A process that has written deletes due buckets when it closes; one that only reads
    does not.
    """
    bench = bench_of(tmp_path)
    fill(bench, 2)
    bench.reopen()
    assert len(index(bench.client).buckets) == 2
    bench.clock.advance(5 * HOUR_MS)
    bench.reopen()
    assert len(index(bench.client).buckets) == 2
    bench.client.create_topic("other")
    bench.close()
    bench.client = bench.another()
    assert [bucket.gen for bucket in index(bench.client).buckets] == [2]


def test_a_commit_seals(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    with bench.client.transaction() as txn:
        for number in range(5):
            bench.client.producer("t").send(b"x", deliver_at=START_MS + DAY_MS + number, txn=txn)
        assert counts(bench.client) == [0]
    assert counts(bench.client) == [5, 0]
    check_index(bench.client)


def test_a_bucket_is_shown(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    fill(bench, 1)
    details = inspect_file(str(Path(bench.path) / named_files(bench.client)[0]))
    assert (details["type"], details["ids"], details["generation"]) == ("bucket", 4, 1)
    assert str(details["last"]) == "1:3"
    assert [segment["ids"] for segment in details["segment_list"]] == [1, 1, 1, 1]


def test_unnamed_bucket_files_are_swept_and_named_ones_stay(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    fill(bench, 2)
    paths = named_files(bench.client)
    orphan = paths[0].replace("0000000001.parquet", "0000000077.parquet")
    bench.client.store.disk.publish(orphan, [b"from a pass that died"])
    fill(bench, 1)
    assert index(bench.client).buckets[-1].gen == 78, "no name is used twice"
    bench.client.admin.gc(apply=True, keep_ms=0)
    assert bucket_files(bench.client) == named_files(bench.client)
    bench.client.checkpoint()
    bench.reopen()
    bench.client.admin.gc(apply=True, keep_ms=0)
    assert bucket_files(bench.client) == named_files(bench.client)
    check_index(bench.client)

"""The delayed fold: which ids enter when, and which leave. Source: spec/delayed 3, 4."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from tests.engine_kit import Bench, begin, ids
from txlog.engine.folds import delayed
from txlog.engine.folds.delayed import Delayed, apply, without
from txlog.engine.model.ops import (
    NO_TIME,
    Appended,
    Bucket,
    BucketDeleted,
    BucketSealed,
    BucketsMerged,
    BufferAborted,
    BufferAppended,
    CommitMarker,
    Id,
    LedgerTrimmed,
)
from txlog.engine.storage.segment import FileRef
from txlog.errors import Corruption


def times(*values: int) -> bytes:
    return array("q", values).tobytes()


def appended(ledger: int, first: int, *values: int) -> Appended:
    return Appended(1, ledger, first, 0, len(values), 0, times=times(*values))


def bucket(gen: int, first: Id, last: Id, max_at: int = 0) -> Bucket:
    file = FileRef("b", first[0], 1, 0, 0, 1, 0, 0, 0, [], 0, 0, "bucket")
    return Bucket(gen, file, first, last, 1, 0, max_at, 0)


def round_trip(state: Delayed) -> Delayed:
    data = delayed.FOLD.dump(state)
    loaded: Delayed = delayed.FOLD.load(data)
    assert delayed.FOLD.dump(loaded) == data
    return loaded


def test_a_row_that_is_due_by_the_clock_of_its_frame_does_not_enter() -> None:
    """4.1: strictly later than the frame; the fold keeps the latest time that did not enter."""
    state = Delayed()
    apply(state, 1, 100, appended(7, 0, 101, 100, NO_TIME, 300))
    assert list(state.mutable) == [(101, 7, 0, 0), (300, 7, 3, 0)]
    assert state.passed_ms == 100
    apply(state, 2, 100, appended(7, 4, 150, 140))
    assert [row[:1] + row[2:] for row in round_trip(state).mutable] == [
        (101, 0, 0),
        (300, 3, 0),
        (150, 4, 0),
        (140, 5, 0),
    ]


def test_rows_of_a_transaction_enter_at_its_commit_by_the_clock_of_that_frame() -> None:
    """4.2, 4.3 and example B: one of three has no time, one is due by then."""
    state = Delayed()
    sent = BufferAppended(1, 9, 0, 0, 3, 0, 2, 5, 1, times=times(NO_TIME, 900, 500))
    apply(state, 1, 50, sent)
    state = round_trip(state)
    assert not state.mutable
    apply(state, 2, 600, CommitMarker(1, 7, 6, 2, 5, 3, 0, delayed=2))
    assert list(state.mutable) == [(900, 7, 6, 2)]
    assert not state.pending
    assert state.passed_ms == 500


def test_an_aborted_transaction_leaves_nothing() -> None:
    state = Delayed()
    apply(state, 1, 50, BufferAppended(1, 9, 0, 0, 1, 0, 2, 5, 1, times=times(900)))
    apply(state, 2, 60, BufferAborted(1, 2, 5, 9, 1, 1))
    assert not state.pending
    assert state.is_empty
    with pytest.raises(Corruption):
        apply(state, 3, 60, BufferAborted(1, 2, 5, 9, 2, 1))


def test_sealing_takes_a_prefix_and_later_ids_stay() -> None:
    state = Delayed()
    apply(state, 1, 0, appended(7, 0, 10, 20, 30))
    apply(
        state,
        2,
        0,
        BucketSealed(1, "seal", (7, 0, 0), (7, 1, 0), 5, bucket(1, (7, 0, 0), (7, 1, 0))),
    )
    assert list(state.mutable) == [(30, 7, 2, 0)]
    assert (state.cuts, state.cutoff_ms, state.passed_ms, state.next_gen) == (1, 5, 5, 2)
    apply(state, 3, 0, appended(7, 3, 40))
    apply(state, 4, 0, BucketSealed(1, "seal", (7, 2, 0), (7, 3, 0), 50, None))
    assert not state.mutable
    assert [each_bucket.gen for each_bucket in round_trip(state).buckets] == [1]
    with pytest.raises(Corruption, match="does not follow"):
        apply(state, 5, 0, appended(7, 1, 40))


def test_a_merge_replaces_its_sources_and_no_generation_comes_twice() -> None:
    state = Delayed()
    for gen, entry in ((1, 0), (2, 5), (3, 9)):
        each_bucket = bucket(gen, (7, entry, 0), (7, entry + 1, 0))
        apply(
            state,
            gen,
            0,
            BucketSealed(1, "seal", each_bucket.first, each_bucket.last, 0, each_bucket),
        )
    merged = bucket(4, (7, 0, 0), (7, 6, 0))
    apply(state, 4, 0, BucketsMerged(1, [1, 2], 0, merged, ["a", "b"]))
    assert [each_bucket.gen for each_bucket in state.buckets] == [4, 3]
    for broken in (
        BucketsMerged(1, [1], 0, bucket(5, (7, 3, 0), (7, 3, 0)), []),
        BucketsMerged(1, [3], 0, bucket(4, (7, 9, 0), (7, 10, 0)), []),
        BucketSealed(1, "rebuild", (7, 6, 0), (7, 7, 0), 0, bucket(9, (7, 6, 0), (7, 7, 0))),
    ):
        with pytest.raises(Corruption):
            apply(round_trip(state), 5, 0, broken)


@pytest.mark.parametrize(
    ("cause", "cutoff_ms", "missing"),
    [("due", 900, False), ("acknowledged", 900, False), ("acknowledged", 899, True),
     ("trimmed", 0, False), ("lost", 900, True)],
)  # fmt: skip
def test_a_bucket_that_may_hold_what_is_not_due_is_missed(
    cause: str, cutoff_ms: int, missing: bool
) -> None:
    state = Delayed()
    each_bucket = bucket(1, (7, 0, 0), (7, 9, 0), max_at=900)
    apply(state, 1, 0, BucketSealed(1, "seal", each_bucket.first, each_bucket.last, 0, each_bucket))
    apply(state, 2, 0, BucketDeleted(1, [1], cause, cutoff_ms, ["b"]))
    assert state.unindexed == ([((7, 0, 0), (7, 9, 0))] if missing else [])
    assert state.losses == missing
    apply(state, 3, 0, BucketSealed(1, "rebuild", (7, 0, 0), (7, 9, 0), 0, None))
    assert state.unindexed == []


def test_ranges_without_a_bucket_between_them_are_one() -> None:
    """Otherwise each bucket that was ever fully acknowledged would leave a range."""
    state = Delayed()
    for gen in range(1, 6):
        each_bucket = bucket(gen, (7, 10 * gen, 0), (7, 10 * gen + 5, 0), max_at=900)
        apply(
            state,
            gen,
            0,
            BucketSealed(1, "seal", each_bucket.first, each_bucket.last, 0, each_bucket),
        )
    for gen in (1, 3, 4):
        apply(state, 5 + gen, 0, BucketDeleted(1, [gen], "acknowledged", 0, ["b"]))
    assert state.unindexed == [((7, 10, 0), (7, 15, 0)), ((7, 30, 0), (7, 45, 0))]
    apply(state, 10, 0, BucketDeleted(1, [2], "lost", 0, ["b"]))
    assert state.unindexed == [((7, 10, 0), (7, 45, 0))]


def test_trimming_takes_ids_and_ranges_of_the_ledger() -> None:
    state = Delayed()
    apply(state, 1, 0, appended(7, 0, 10, 20))
    apply(state, 2, 0, appended(8, 0, 30))
    state.unindexed = [((5, 0, 0), (7, 9, 0))]
    apply(state, 3, 0, LedgerTrimmed(1, "p", 7, 2, 0))
    assert list(state.mutable) == [(30, 8, 0, 0)]
    assert state.unindexed == []


def test_a_range_without_a_part() -> None:
    whole = [((1, 0, 0), (1, 9, 0))]
    assert without(whole, (1, 3, 0), (1, 5, 0)) == [
        ((1, 0, 0), (1, 2, (1 << 31) - 1)),
        ((1, 5, 1), (1, 9, 0)),
    ]
    assert without(whole, (1, 0, 0), (1, 9, 0)) == []
    assert without(whole, (1, 10, 0), (2, 0, 0)) == whole


@pytest.mark.usefixtures("quick_disk")
def test_a_client_fills_the_fold(tmp_path: Path) -> None:
    """Plain, in a transaction, aborted; the same after a checkpoint and a reopening."""
    bench = Bench(tmp_path)
    client, now = bench.client, bench.clock.now().wall_ms
    client.create_topic("t")
    producer = client.producer("t")
    producer.send(b"now")
    producer.send(b"later", deliver_at=now + 900)
    producer.send(b"past", deliver_at=now - 1)
    txn, deleted_txn = begin(client, 60_000), begin(client, 60_000)
    producer.send(b"a", txn=txn, deliver_at=now + 10)
    producer.send(b"b", txn=txn)
    producer.send(b"c", txn=txn, deliver_at=now + 800)
    producer.send(b"d", txn=deleted_txn, deliver_at=now + 800)
    client.abort(deleted_txn)
    bench.clock.advance(100)
    client.commit(txn)
    ledger = ids(client)[0].ledger
    expected = [(now + 900, ledger, 1, 0), (now + 800, ledger, 3, 3)]
    assert client.store.read(lambda view: list(view.delayed(1).mutable)) == expected
    client.checkpoint()
    bench.reopen()
    state = bench.client.store.read(lambda view: view.delayed(1))
    assert list(state.mutable) == expected
    assert not state.pending
    assert state.passed_ms == now + 10
    bench.close()

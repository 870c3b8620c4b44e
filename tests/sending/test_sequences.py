"""Which sequences are stored: runs and gaps against a plain set of numbers."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from tests.engine_kit import Bench
from tests.tiers import graded
from txlog.engine.decide.sending.send import fresh_rows
from txlog.engine.folds import topic as folds
from txlog.engine.folds.topic import ProducerState
from txlog.engine.model import sequences
from txlog.engine.plan.route import PartitionSlice, Routed
from txlog.engine.view import View


def runs_of(numbers: list[int]) -> list[int]:
    """Rising numbers as runs."""
    runs: list[int] = []
    for number in numbers:
        if runs and runs[-1] == number - 1:
            runs[-1] = number
        else:
            runs += (number, number)
    return runs


def batch_of(numbers: list[int]) -> Routed:
    """Rows of one partition with these sequences."""
    rows = pa.RecordBatch.from_pydict({"value": [b"x"] * len(numbers), "sequence_id": numbers})
    return Routed(rows, [PartitionSlice(0, 0, len(numbers), len(numbers))], None, len(numbers))


@pytest.mark.parametrize("seed", graded(range(20), 3))
def test_a_number_is_a_repetition_exactly_if_it_was_stored(seed: int) -> None:
    """Guards against a number that is answered and not stored, and one stored twice."""
    print("seed", seed)
    chance = random.Random(seed)
    sent, stored = ProducerState(-1, 0, -1, 0), set[int]()
    for _ in range(300):
        numbers = sorted(chance.sample(range(chance.choice((20, 200, 2000))), chance.randint(1, 9)))
        if chance.random() < 0.5:  # most batches go on
            first = chance.randint(0, sent.sequence + 3)
            numbers = list(range(first, first + chance.randint(1, 9)))
        routed = batch_of(numbers)
        rows = fresh_rows(routed, routed.slices[0], "p", sent, None)
        repeated = [row for start, stop in rows.repeats for row in range(start, stop)]
        assert repeated == [row for row, number in enumerate(numbers) if number in stored]
        kept_numbers = [number for number in numbers if number not in stored]
        if kept_numbers:
            assert isinstance(rows.rows, pa.RecordBatch)
            assert rows.rows.column("sequence_id").to_pylist() == kept_numbers
            if rows.runs is None:
                assert kept_numbers == list(range(sent.sequence + 1, rows.last_sequence + 1))
            assert sequences.store(sent, runs_of(kept_numbers))
        stored.update(kept_numbers)
        gaps = [number for number in range(max(stored)) if number not in stored]
        assert (sent.sequence, sent.gaps) == (max(stored), runs_of(gaps))
        assert not sequences.store(sent, [chance.choice(sorted(stored))] * 2)


@pytest.mark.parametrize("seed", graded(range(5), 1))
def test_the_lowest_gaps_are_forgotten(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above `unknown` all numbers are known as before; the gaps stay below their limit."""
    print("seed", seed)
    monkeypatch.setattr(sequences, "GAPS_MAX", 16)
    chance = random.Random(seed)
    sent, stored = ProducerState(-1, 0, -1, 0), set[int]()
    for _ in range(500):
        number = sent.sequence + chance.randint(1, 5)
        if chance.random() < 0.3:
            number = chance.randint(0, sent.sequence + 1)
        if number <= sent.unknown:
            continue
        assert (sequences.fresh(sent, [number, number]) == []) == (number in stored)
        if number not in stored:
            assert sequences.store(sent, [number, number])
            stored.add(number)
        assert len(sent.gaps) <= 32
        low = sent.unknown + 1
        gaps = [
            each_number for each_number in range(low, sent.sequence) if each_number not in stored
        ]
        assert runs_of(gaps) == sent.gaps
    assert sent.unknown > 0


def test_one_batch_does_not_pass_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against a batch with more gaps than a producer may have; it forgets a quarter
    of them.
    """
    monkeypatch.setattr(sequences, "GAPS_MAX", 16)
    sent = ProducerState(-1, 0, -1, 0)
    assert sequences.store(sent, runs_of(list(range(1, 200, 2))))
    assert (len(sent.gaps), sent.sequence, sent.unknown) == (32, 199, 166)
    assert sequences.fresh(sent, [167, 199])[:2] == [168, 168]
    assert sequences.store(sent, runs_of(list(range(168, 199, 2))))
    assert (sent.gaps, sent.sequence, sent.unknown) == ([], 199, 166)


def test_all_producers_of_a_partition_stay_below_their_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producer with the most gaps forgets; one with few gaps keeps them, also after a
    restart.
    """
    monkeypatch.setattr(folds, "GAPS_MAX", 40)
    bench = Bench(tmp_path / "store")
    bench.client.create_topic("t")
    modest = bench.client.producer("t", name="modest")
    modest.send(b"x", sequence_id=5)
    for name in ("a", "b"):
        numbers = range(1, 200, 2)
        batch = {"value": [b"x"] * len(numbers), "sequence_id": [*numbers]}
        bench.client.producer("t", name=name).send_batch(pa.table(batch))

    def gaps(view: View) -> tuple[int, list[int]]:
        topic = view.topic(1)
        return topic.gaps, [len(sent.gaps) // 2 for sent in topic.producers.values()]

    for restart in (False, True):
        client = bench.reopen() if restart else bench.client
        total, each = client.store.read(gaps)
        assert total == sum(each) <= 40
        assert each[0] == 1
        assert min(each[1:]) > 10
        client.checkpoint()
    modest = bench.reopen().producer("t", name="modest")
    assert [modest.send(b"x", sequence_id=n).duplicate for n in (5, 0)] == [True, False]
    bench.close()


@pytest.mark.parametrize("seed", graded(range(10), 2))
def test_many_runs_are_stored_at_once(seed: int) -> None:
    """A batch may fill many gaps, and a part of one several times."""
    print("seed", seed)
    chance = random.Random(seed)
    sent, stored = ProducerState(-1, 0, -1, 0), set[int]()
    for _ in range(40):
        numbers = sorted({chance.randrange(300) for _ in range(chance.randint(1, 60))} - stored)
        if not numbers:
            continue
        assert sequences.store(sent, runs_of(numbers))
        stored.update(numbers)
        gaps = [number for number in range(max(stored)) if number not in stored]
        assert (sent.sequence, sent.gaps) == (max(stored), runs_of(gaps))

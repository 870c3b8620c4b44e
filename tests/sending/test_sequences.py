"""Which sequences are stored: runs and gaps against a plain set of numbers."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from txlog.engine.decide.sending.dedup import fresh_rows
from txlog.engine.folds.topic import LastSent
from txlog.engine.model import sequences
from txlog.engine.plan.route import PartitionSlice, Routed


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


@pytest.mark.parametrize("seed", range(20))
def test_a_number_is_a_repetition_exactly_if_it_was_stored(seed: int) -> None:
    """Kills: a number that is answered and not stored, and one that is stored twice."""
    print("seed", seed)
    chance = random.Random(seed)
    sent, stored = LastSent(-1, 0, -1, 0), set[int]()
    for _ in range(300):
        numbers = sorted(chance.sample(range(chance.choice((20, 200, 2000))), chance.randint(1, 9)))
        if chance.random() < 0.5:  # most batches go on
            first = chance.randint(0, sent.sequence + 3)
            numbers = list(range(first, first + chance.randint(1, 9)))
        routed = batch_of(numbers)
        found = fresh_rows(routed, routed.slices[0], "p", sent, None)
        repeated = [row for start, stop in found.repeats for row in range(start, stop)]
        assert repeated == [row for row, number in enumerate(numbers) if number in stored]
        kept = [number for number in numbers if number not in stored]
        if kept:
            assert isinstance(found.rows, pa.RecordBatch)
            assert found.rows.column("sequence_id").to_pylist() == kept
            if found.runs is None:
                assert kept == list(range(sent.sequence + 1, found.last_sequence + 1))
            assert sequences.store(sent, runs_of(kept))
        stored.update(kept)
        gaps = [number for number in range(max(stored)) if number not in stored]
        assert (sent.sequence, sent.gaps) == (max(stored), runs_of(gaps))
        assert not sequences.store(sent, [chance.choice(sorted(stored))] * 2)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_forgotten_is_the_lowest(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above `unknown` everything is known as before; the gaps stay below their bound."""
    print("seed", seed)
    monkeypatch.setattr(sequences, "GAPS_MAX", 16)
    chance = random.Random(seed)
    sent, stored = LastSent(-1, 0, -1, 0), set[int]()
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
        gaps = [one for one in range(low, sent.sequence) if one not in stored]
        assert runs_of(gaps) == sent.gaps
    assert sent.unknown > 0

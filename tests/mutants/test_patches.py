"""The mutants: each patch says what it breaks, and applies to the present code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.__main__ import in_order_of
from tests.mutants.patch import PATCHES, ROOT, Hunk, Mutant, all_mutants, read_mutant

MUTANTS = all_mutants()
MUTANTS_MIN = 80
SEEDS_MAX = 1_000


def test_there_are_enough_and_each_has_a_number() -> None:
    assert len([mutant for mutant in MUTANTS if mutant.detectors]) >= MUTANTS_MIN
    numbers = [int(mutant.name.partition("-")[0]) for mutant in MUTANTS]
    assert len({*numbers}) == len(numbers)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_patch_applies_and_compiles(mutant: Mutant) -> None:
    for path, text in mutant.applied().items():
        assert path.startswith("src/txlog/")
        assert text != (ROOT / path).read_text(encoding="utf-8")
        compile(text, path, "exec")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_header_says_what_breaks_and_what_finds_it(mutant: Mutant) -> None:
    for sentence in (mutant.broken, mutant.lost):
        assert sentence[0].isupper() and sentence.endswith(".")
    for detector in mutant.detectors:
        assert detector.tests or 0 < detector.seeds <= SEEDS_MAX
        for test in detector.tests:
            path, *names = test.split("::")
            assert (ROOT / path).exists()
            if names:
                assert f"def {names[-1]}(" in (ROOT / path).read_text(encoding="utf-8")


def test_no_two_patches_are_the_same() -> None:
    texts = [sorted(mutant.applied().items()) for mutant in MUTANTS]
    assert all(text not in texts[:at] for at, text in enumerate(texts))


def test_a_patch_that_does_not_fit_is_refused() -> None:
    hunk = Hunk(MUTANTS[0].hunks[0].path, "no such line\n", "")
    with pytest.raises(ValueError, match="0 times"):
        Mutant("stray", "", "", (), (hunk,)).applied()


def test_a_patch_without_a_header_is_refused(tmp_path: Path) -> None:
    whole = (PATCHES / f"{MUTANTS[0].name}.patch").read_text(encoding="utf-8")
    path = tmp_path / "00-headless.patch"
    path.write_text(whole.partition("\n")[2], encoding="utf-8")
    with pytest.raises(ValueError, match="does not begin"):
        read_mutant(path)


def test_each_day_begins_with_other_mutants() -> None:
    days = [in_order_of(day, MUTANTS) for day in range(7)]
    assert all(sorted(day, key=lambda mutant: mutant.name) == MUTANTS for day in days)
    assert len({day[0].name for day in days}) > 1

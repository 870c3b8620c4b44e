"""The verdicts on the tests of stock clients: when they hold, and how they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.upstream import verdicts
from tests.upstream.suites import CLIENTS
from tests.upstream.verdicts import DIFFERS, PASSES, UNKNOWN, UNSTEADY, Outcome, Verdict

PASSED, FAILED = Outcome("a", True, 1.0, ""), Outcome("a", False, 1.0, "no such field: ttl")


@pytest.mark.parametrize(
    ("kind", "outcome", "broken_line"),
    [
        (PASSES, PASSED, None),
        (PASSES, FAILED, "a passed before, and fails: no such field: ttl"),
        (DIFFERS, FAILED, None),
        (DIFFERS, PASSED, "a differed before, and passes (no ttl)"),
        (UNSTEADY, PASSED, None),
        (UNSTEADY, FAILED, None),
    ],
)
def test_a_verdict_holds_or_the_run_says_which_does_not(
    kind: str, outcome: Outcome, broken_line: str | None
) -> None:
    verdict = Verdict("a", kind, False, "" if kind == PASSES else "no ttl")
    assert verdicts.broken({"a": verdict}, [outcome]) == ([broken_line] if broken_line else [])


def test_a_test_without_a_verdict_fails_the_run() -> None:
    assert verdicts.broken({}, [PASSED]) == ["a has no verdict: it passed"]


def test_update_writes_the_outcomes_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "FOLDER", tmp_path)
    old_verdicts = {
        name: Verdict(name, kind, False, reason)
        for name, kind, reason in [
            ("fixed", DIFFERS, "no ttl"),
            ("broke", PASSES, ""),
            ("told", DIFFERS, "a reason that somebody wrote"),
            ("unsteady", UNSTEADY, "asks the clock"),
            ("not run", PASSES, ""),
        ]
    }
    outcomes = [
        Outcome("fixed", True, 1.0, ""),
        Outcome("broke", False, 21.0, "no such field: ttl"),
        Outcome("told", False, 1.0, "something else"),
        Outcome("unsteady", False, 1.0, "late"),
        Outcome("new", False, 1.0, "late"),
    ]
    new_verdicts = verdicts.updated(old_verdicts, outcomes, {"ttl": "no ttl"})
    verdicts.write("go", new_verdicts.values())
    assert verdicts.read("go") == {
        "broke": Verdict("broke", DIFFERS, True, "no ttl"),
        "fixed": Verdict("fixed", PASSES, False, ""),
        "new": Verdict("new", DIFFERS, False, UNKNOWN),
        "not run": Verdict("not run", PASSES, False, ""),
        "told": Verdict("told", DIFFERS, False, "a reason that somebody wrote"),
        "unsteady": Verdict("unsteady", UNSTEADY, False, "asks the clock"),
    }


@pytest.mark.parametrize("line", ["a\tmaybe", "a\tpasses\tsoon", "a\tdiffers", "a\tpasses\t\twhy"])
def test_a_line_that_is_no_verdict_is_refused(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "FOLDER", tmp_path)
    (tmp_path / "go.tsv").write_text(line + "\n")
    with pytest.raises(ValueError, match=r"go\.tsv:1: "):
        verdicts.read("go")


@pytest.mark.parametrize("client", CLIENTS)
def test_each_test_that_differs_has_its_reason(client: str) -> None:
    differing = [each for each in verdicts.read(client).values() if each.reason == UNKNOWN]
    assert differing == []

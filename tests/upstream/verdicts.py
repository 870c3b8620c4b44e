"""Owns the verdicts: the expected outcome of each test, in a file for each client.

A line has four columns, with tabs between them:

    test        its name in the suite
    verdict     passes, differs or unsteady
    speed       `slow` if it takes more than SLOW_SECONDS; only a run of all has such tests
    reason      why it differs or is unsteady

A test that differs fails here for a known reason; or for an open one, which begins with `open` and
has the error. An unsteady one may do either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "verdicts"
KINDS = (PASSES, DIFFERS, UNSTEADY) = ("passes", "differs", "unsteady")
SLOW_SECONDS = 20
UNKNOWN = "not looked into"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a test.

    seconds: how long it took
    error:   its error if it failed; empty if it passed
    """

    test: str
    is_passed: bool
    seconds: float
    error: str


@dataclass(frozen=True)
class Verdict:
    """The expected outcome of a test, and the reason if it differs."""

    test: str
    kind: str
    is_slow: bool
    reason: str

    @property
    def line(self) -> str:
        """The verdict as a line of its file."""
        columns = (self.test, self.kind, "slow" if self.is_slow else "", self.reason)
        return "\t".join(columns).rstrip() + "\n"


def read(client: str) -> dict[str, Verdict]:
    """The verdicts of a client's tests, by test; none if there is no file.

    Raises ValueError for a line that is not one.
    """
    path = FOLDER / f"{client}.tsv"
    if not path.exists():
        return {}
    verdicts = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        test, kind, speed, reason = [*line.split("\t"), "", "", ""][:4]
        if kind not in KINDS or speed not in ("", "slow"):
            raise ValueError(f"{path}:{number}: {line!r} is no verdict")
        if (kind == PASSES) == bool(reason):
            raise ValueError(f"{path}:{number}: {kind} {'with a' if reason else 'without'} reason")
        verdicts[test] = Verdict(test, kind, speed == "slow", reason)
    return verdicts


def write(client: str, verdicts: Iterable[Verdict]) -> None:
    """Replace a client's file."""
    lines = [verdict.line for verdict in sorted(verdicts, key=lambda each: each.test)]
    (FOLDER / f"{client}.tsv").write_text("".join(lines), encoding="utf-8")


def failing(verdicts: Mapping[str, Verdict], outcomes: Iterable[Outcome]) -> list[str]:
    """The tests that should pass, and did not."""
    should = {test for test, verdict in verdicts.items() if verdict.kind == PASSES}
    return [each.test for each in outcomes if each.test in should and not each.is_passed]


def broken(verdicts: Mapping[str, Verdict], outcomes: Iterable[Outcome]) -> list[str]:
    """A line for each outcome whose verdict does not hold."""
    lines = []
    for outcome in outcomes:
        verdict = verdicts.get(outcome.test)
        if verdict is None:
            lines.append(f"{outcome.test} has no verdict: {outcome.error or 'it passed'}")
        elif verdict.kind == PASSES and not outcome.is_passed:
            lines.append(f"{outcome.test} passed before, and fails: {outcome.error}")
        elif verdict.kind == DIFFERS and outcome.is_passed:
            lines.append(f"{outcome.test} differed before, and passes ({verdict.reason})")
    return lines


def updated(
    verdicts: Mapping[str, Verdict], outcomes: Iterable[Outcome], causes: Mapping[str, str]
) -> dict[str, Verdict]:
    """The verdicts after a run. A reason stays until the test passes.

    causes: reasons, by a text that an error contains
    """
    result = dict(verdicts)
    for outcome in outcomes:
        old_verdict = result.get(outcome.test)
        is_slow = outcome.seconds > SLOW_SECONDS
        if old_verdict is not None and old_verdict.kind == UNSTEADY:
            continue
        if outcome.is_passed:
            result[outcome.test] = Verdict(outcome.test, PASSES, is_slow, "")
        else:
            reason = cause(outcome.error, causes)
            if reason == UNKNOWN and old_verdict is not None and old_verdict.reason:
                reason = old_verdict.reason
            result[outcome.test] = Verdict(outcome.test, DIFFERS, is_slow, reason)
    return result


def cause(error: str, causes: Mapping[str, str]) -> str:
    """The reason for an error."""
    return next((reason for part, reason in causes.items() if part in error), UNKNOWN)

"""Run the suites of stock clients against `txlog serve`, and compare with the verdicts.

usage: python -m tests.upstream [--client NAME] [--all | --part N/M] [--test NAME] [--update]

Without --all each suite's part of today runs, and the tests that take long do not. A test that
should pass and fails runs once more, alone. The exit code is 1 if a verdict does not hold. A part
only shows a test that passes though it differed before: that is no reason to hold up a change.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from tests.upstream import crew, verdicts
from tests.upstream.suite import Suite, Unavailable
from tests.upstream.suites import CLIENTS, suite_of
from tests.upstream.verdicts import DIFFERS, KINDS, PASSES, UNSTEADY, Outcome, Verdict

# Of a run of parts, in all; the test that is running when it ends has its limit.
MINUTES = 3.0
LIMIT_SECONDS = 60.0


def main() -> int:
    """Run what was asked for; 0 if all verdicts hold."""
    options = _options()
    is_part = not (options.all or options.test or options.verdict)
    limit_min = options.minutes or (MINUTES if is_part else 600.0)
    ends_at = time.monotonic() + limit_min * 60
    suites = [*_prepared(options.client or CLIENTS, options.sources)]
    failed, ran = [], 0
    for number, suite in enumerate(suites):
        left_s = (ends_at - time.monotonic()) / (len(suites) - number)
        count, lines = _run(suite, options, time.monotonic() + left_s)
        ran += count
        failed += lines
    for line in failed:
        print(f"FAILED {line}")
    if failed and not options.update:
        print("to accept: python -m tests.upstream --client CLIENT --test NAME --update")
    print(f"{max(0, ran - len(failed))} passed, {len(failed)} failed")
    return 1 if failed else 0


def _prepared(clients: Iterable[str], sources: str | None) -> Iterator[Suite]:
    """The suites that can run here; prints why the others cannot."""
    for client in clients:
        suite = suite_of(client, sources)
        try:
            crew.check()
            suite.prepare()
        except Unavailable as error:
            print(f"{client}: skipped, {error}")
        else:
            yield suite


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.upstream", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--client", action="append", choices=CLIENTS, help="all, if none is named")
    parser.add_argument("--all", action="store_true", help="all tests, also those that take long")
    parser.add_argument("--part", metavar="N/M", help="this part of all, in place of today's")
    parser.add_argument("--test", action="append", metavar="NAME", help="this test or group alone")
    parser.add_argument("--verdict", choices=KINDS, help="tests with this verdict alone")
    parser.add_argument("--update", action="store_true", help="write the verdicts anew")
    parser.add_argument("--sources", metavar="PATH", help="a checkout of the Python client")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="of a test, in seconds")
    parser.add_argument("--minutes", type=float, help="when no more tests begin")
    return parser.parse_args()


def _run(suite: Suite, options: argparse.Namespace, ends_at: float) -> tuple[int, list[str]]:
    """Run tests of a suite: how many ran, and which verdicts do not hold."""
    old_verdicts = verdicts.read(suite.name)
    groups = _chosen(suite, options, old_verdicts)
    command = [suite.name, str(options.limit), *([options.sources] if options.sources else [])]
    outcomes, remaining = crew.run(command, groups, options.workers, ends_at, _report)
    run_tests = {test for group in groups for test in group} - {*remaining}
    missing = {test for test in run_tests if "*" not in test} - {each.test for each in outcomes}
    if options.update:
        new_verdicts = verdicts.updated(old_verdicts, outcomes, suite.causes)
        verdicts.write(
            suite.name, [each for each in new_verdicts.values() if each.test not in missing]
        )
        lines = []
    else:
        outcomes = _once_more(command, outcomes, verdicts.failing(old_verdicts, outcomes))
        lines = verdicts.broken(old_verdicts, outcomes)
        if not (options.all or options.test or options.verdict):
            better = [line for line in lines if "differed before, and passes" in line]
            lines = [line for line in lines if line not in better]
            for line in better:
                print(f"better: {line}")
        lines += [
            f"{test} did not run" for test in sorted(missing) if old_verdicts[test].kind == PASSES
        ]
    _sum_up(suite.name, outcomes, old_verdicts, remaining)
    return len(outcomes), [f"{suite.name}: {line}" for line in lines]


def _once_more(
    command: Sequence[str], outcomes: Sequence[Outcome], tests: Sequence[str]
) -> list[Outcome]:
    """The outcomes, after another try of some tests, each alone: the machine may have been busy."""
    if not tests:
        return [*outcomes]
    print(f"once more, alone: {' '.join(tests)}")
    ends_at = time.monotonic() + MINUTES * 60
    second_outcomes, _ = crew.run(command, [[test] for test in tests], 1, ends_at, _report)
    newer = {outcome.test: outcome for outcome in second_outcomes}
    return [newer.get(outcome.test, outcome) for outcome in outcomes]


def _chosen(
    suite: Suite, options: argparse.Namespace, known: Mapping[str, Verdict]
) -> list[list[str]]:
    """The groups of tests that run."""
    groups: dict[str, list[str]] = {}
    for test in sorted(suite.tests()):
        groups.setdefault(suite.group(test), []).append(test)
    if options.verdict:
        chosen_tests = {test for test, verdict in known.items() if verdict.kind == options.verdict}
        groups = {
            name: [test for test in group if test in chosen_tests] for name, group in groups.items()
        }
    if options.test:
        requested = {*options.test}
        groups = {
            name: [test for test in group if requested & {name, test}]
            for name, group in groups.items()
        }
    if options.all or options.test or options.verdict:
        return [group for group in groups.values() if group]
    number, parts = _part(options.part, suite.parts)
    print(f"{suite.name}: part {number} of {parts}")
    slow = {test.partition("#")[0] for test, verdict in known.items() if verdict.is_slow}
    quick = [
        [test for test in group if test.partition("#")[0] not in slow]
        for group in list(groups.values())[number - 1 :: parts]
    ]
    return [group for group in quick if group]


def _part(text: str | None, parts: int) -> tuple[int, int]:
    """The requested part, or today's: each day has another one."""
    if text:
        number, _, whole = text.partition("/")
        return int(number), int(whole)
    return datetime.now(UTC).toordinal() % parts + 1, parts


def _report(outcome: Outcome) -> None:
    mark = "passes" if outcome.is_passed else "FAILS "
    print(f"  {mark} {outcome.test} ({outcome.seconds:.1f} s) {outcome.error}", flush=True)


def _sum_up(
    client: str,
    outcomes: Sequence[Outcome],
    known: Mapping[str, Verdict],
    left: Iterable[str],
) -> None:
    passed = sum(outcome.is_passed for outcome in outcomes)
    kinds = Counter(verdict.kind for verdict in known.values())
    print(f"{client}: {passed} of {len(outcomes)} tests pass", end="; ")
    print(f"verdicts: {kinds[PASSES]} pass, {kinds[DIFFERS]} differ", end="")
    print(f", {kinds[UNSTEADY]} unsteady")
    if tests := [*left]:
        print(f"{client}: there was no time for {len(tests)}: {', '.join(tests[:5])}, …")


if __name__ == "__main__":
    sys.exit(main())

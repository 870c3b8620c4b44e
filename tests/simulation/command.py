"""Owns the command: it runs seeds, shrinks what fails, and prints the figures."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from tests.history.checker import check
from tests.history.events import Event
from tests.simulation import scenario as scenarios
from tests.simulation.profiles import PROFILES, focused
from tests.simulation.run import Finding, Outcome, Run
from tests.simulation.scenario import Scenario
from tests.simulation.scheduler import real
from tests.simulation.shrink import shrink

FOUND = Path(__file__).with_name("found")  # regressions: scenarios that once failed


def judge(events: list[Event]) -> list[Finding]:
    """The findings of the checker of histories."""
    return [Finding(finding.name, str(finding)) for finding in check(events)]


def perform(scenario: Scenario) -> Outcome:
    """Run one scenario."""
    return Run(scenario).perform(judge)


def save(scenario: Scenario, finding: Finding, folder: Path | None) -> None:
    """Shrink a scenario, and write it to a file or to stdout."""

    def fails(smaller: Scenario) -> bool:
        return any(each.name == finding.name for each in perform(smaller).findings)

    small = shrink(scenario, fails)
    text = next(each.text for each in perform(small).findings if each.name == finding.name)
    saved = {"found": text, **msgspec.to_builtins(small)}
    data = msgspec.json.format(msgspec.json.encode(saved), indent=1)
    if folder is None:
        print(data.decode(), flush=True)
    else:
        name = "-".join(finding.name.lower().split())
        (folder / f"{name}-{scenario.seed}.json").write_bytes(data + b"\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.add_argument("--seed", type=int, help="the first seed; by default 1")
    parser.add_argument(
        "--seeds", type=int, help="how many seeds; by default one, if --seed is given"
    )
    parser.add_argument("--minutes", type=float, help="stop after so long")
    parser.add_argument("--processes", type=int, help="simulated processes; by default drawn")
    parser.add_argument("--profile", choices=PROFILES, help="for each seed; by default its own")
    parser.add_argument("--replay", type=Path, action="append", help="a scenario that was saved")
    parser.add_argument("--no-faults", action="store_true", help="leave faults out")
    parser.add_argument("--history", type=Path, help="write the history of the last run")
    parser.add_argument("--no-shrinking", action="store_true", help="do not shrink what fails")
    parser.add_argument("--save", type=Path, help="where shrunk scenarios go; default: print them")
    parser.add_argument("--digest", action="store_true", help="print the digest of each run")
    options = parser.parse_args()
    if options.replay:
        plans = (msgspec.json.decode(path.read_bytes(), type=Scenario) for path in options.replay)
    else:
        first = 1 if options.seed is None else options.seed
        count = options.seeds or (
            1 if options.seed is not None and not options.minutes else 1 << 40
        )
        plans = (
            focused(
                scenarios.draw(seed, options.processes, faults=not options.no_faults),
                faults=not options.no_faults,
                profile=options.profile,
            )
            for seed in range(first, first + count)
        )
    began = real.monotonic()
    runs = calls = operations = 0
    simulated_s = 0.0
    failed: list[int] = []
    for plan in plans:
        outcome = perform(plan)
        runs, calls = runs + 1, calls + outcome.calls
        simulated_s += outcome.seconds
        operations += sum(event.type == "invoke" for event in outcome.events)
        if options.digest:
            print(f"seed {plan.seed}: {outcome.digest}")
        if outcome.findings:
            failed.append(plan.seed)
            for finding in outcome.findings:
                print(f"seed {plan.seed}: {finding.text}", flush=True)
            if not options.replay and not options.no_shrinking:
                save(plan, outcome.findings[0], options.save)
        if options.history:
            options.history.write_bytes(
                b"".join(msgspec.json.encode(event) + b"\n" for event in outcome.events)
            )
        if options.minutes and real.monotonic() - began > 60 * options.minutes:
            break
    took = real.monotonic() - began
    print(
        f"{runs} runs, {operations} calls, {calls} calls of the disk, "
        f"{simulated_s / 3600:.1f} simulated hours in {took:.1f} s; "
        f"failed: {', '.join(map(str, failed)) or 'none'}",
        file=sys.stderr,
    )
    return 1 if failed else 0

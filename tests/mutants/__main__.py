"""Look for mutants of the protocol, and print which detector finds each.

usage: scripts/mutants [NAME ...] [--list] [--only simulation|tests] [--profile NAME] [--seeds N]
                       [--first SEED] [--today SECONDS]

Each mutant is a patch in tests/mutants that breaks one promise. Its header says what finds it: the
simulation of a profile within a number of seeds, or some tests. The exit code is 1 if one is not
found again. A detector that hangs counts as one that finds something.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from zlib import crc32

from tests.mutants.hunt import Hunter, TimeIsOver
from tests.mutants.patch import SIMULATION, Detector, Mutant, all_mutants

KINDS = (SIMULATION, "tests")
SEEDS = 60  # for a mutant that the simulation has not found yet


def main() -> int:
    """Hunt the chosen mutants; returns 1 if one was not found."""
    parser = argparse.ArgumentParser(
        prog="scripts/mutants", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="numbers, or parts of names")
    parser.add_argument("--list", action="store_true", help="only list them")
    parser.add_argument("--only", choices=KINDS, help="only tests; or the simulation, for each")
    parser.add_argument("--profile", help="of the simulation, in place of that in the header")
    parser.add_argument("--seeds", type=int, metavar="N", help="in place of those in the headers")
    parser.add_argument("--first", type=int, metavar="SEED", default=1, help="the first seed")
    parser.add_argument(
        "--today",
        type=float,
        metavar="SECONDS",
        help="each day in another order, until so much processor time is used",
    )
    options = parser.parse_args()
    chosen = [mutant for mutant in all_mutants() if _is_meant(mutant, options.names)]
    if options.list:
        for mutant in chosen:
            print(f"{mutant.name}\n    broken: {mutant.broken}\n    lost: {mutant.lost}")
        return 0
    if options.today is not None:
        chosen = in_order_of(datetime.now(UTC).toordinal(), chosen)
    hunter = Hunter(options.seeds, options.first, options.today)
    missed = []
    hunted = 0
    print(f"{'mutant':44} {'seeds':>5} {'seconds':>7}  found by", flush=True)
    for mutant in chosen:
        detectors = _detectors(mutant, options.only, options.profile)
        if not detectors:
            print(f"{mutant.name:44} {'-':>5} {'-':>7}  nothing yet", flush=True)
            continue
        try:
            outcome = hunter.hunt(mutant, detectors)
        except TimeIsOver:
            break
        hunted += 1
        tried = str(outcome.seeds or "-")
        found_by = outcome.found_by or f"NOT FOUND by {'; '.join(each.name for each in detectors)}"
        print(f"{mutant.name:44} {tried:>5} {outcome.seconds:7.1f}  {found_by[:120]}", flush=True)
        if not outcome.found_by:
            missed.append(mutant.name)
    print(f"{hunted - len(missed)} of {hunted} mutants were found", flush=True)
    return 1 if missed else 0


def _detectors(mutant: Mutant, kind: str | None, profile: str | None) -> list[Detector]:
    """What to run; the simulation runs on request even if it has not found the mutant yet."""
    if profile is not None:
        return [Detector((), SEEDS, profile)]
    if kind is None:
        return [*mutant.detectors]
    chosen = [
        detector for detector in mutant.detectors if bool(detector.seeds) == (kind == SIMULATION)
    ]
    return chosen or ([Detector((), SEEDS, "all")] if kind == SIMULATION else [])


def in_order_of(day: int, mutants: Iterable[Mutant]) -> list[Mutant]:
    """The mutants in an order that differs from day to day."""
    return sorted(mutants, key=lambda mutant: crc32(f"{day} {mutant.name}".encode()))


def _is_meant(mutant: Mutant, names: list[str]) -> bool:
    number = mutant.name.partition("-")[0]
    return not names or any(
        number == name.zfill(len(number)) if name.isdecimal() else name in mutant.name
        for name in names
    )


if __name__ == "__main__":
    sys.exit(main())

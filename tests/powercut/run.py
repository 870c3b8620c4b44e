"""Owns `scripts/powercut`: machines at work, cuts of their disks, and the comparison.

Usage: scripts/powercut [--cuts N] [--seed S] [--filesystem NAME] …

    --cuts N             power cuts for each file system (default 10)
    --seed S             chooses work and cuts (default: drawn, and printed)
    --filesystem NAME    ext4-ordered, ext4-journal, xfs, btrfs or all (default ext4-ordered)
    --cuts-of-a-run N    cuts of one run of the machine (default 60)
    --sends N            messages of each sender in a run (default 200)
    --unit N             bytes that the disk writes whole: 512 or 4096 (default: both in turn)
    --leave-out WHAT     data or names: fdatasync or fsync do nothing, to see that this is found
    --histories FOLDER   write each cut's history there, for tests/history
    --clients            stock clients outside of the machine use a server in it
    --kills N            with --clients: kill -9 of the server so often in each run (default 0)
    --again FOLDER       the same cuts of a run whose files were kept; other options as then
    --keep FOLDER        keep the files of runs there; otherwise only runs with a fault keep theirs

Exit code 1: a store contradicts an answer; 2: the machine cannot be had or did not work.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from . import compare, machine
from .device import FLUSH, SECTOR, WRITE, Cut, Disk, Record, copy
from .outside import Clients

EVENTS_SIZE = 256 << 20
SENDS = 200
THOROUGH = 3  # after every third cut the store also makes a checkpoint and is verified again


Outside = list[tuple[int, dict[str, Any]]]
"""Events, with the size of the record at the time of each."""


@dataclass(slots=True)
class Figures:
    """The figures and faults of all cuts of a file system."""

    cuts: int = 0
    confirmed: int = 0
    unmounted: int = 0
    unflushed: int = 0
    told: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def add(self, other: Figures) -> None:
        """Add the figures of another run."""
        self.cuts += other.cuts
        self.confirmed += other.confirmed
        self.unmounted += other.unmounted
        self.unflushed += other.unflushed
        self.told += other.told
        self.faults += other.faults


@dataclass(frozen=True, slots=True)
class Plan:
    """One run of the machine and its cuts."""

    filesystem: str
    cuts: int
    seed: int
    sends: int = SENDS
    units: Sequence[int] = (SECTOR, 4096)
    leave_out: Sequence[str] = ()
    clients: bool = False
    kills: int = 0
    histories: Path | None = None


def run(plan: Plan, folder: Path, again: bool = False) -> Figures:
    """Let a machine work, cut its power again and again, and compare.

    folder: gets the files of the run
    again:  it has them already, of a run with the same plan
    """
    system = machine.FILE_SYSTEMS[plan.filesystem]
    job = {"type": system.type, "options": system.options, "leave_out": plan.leave_out}
    blank, record_file, outside = (folder / name for name in ("blank", "record", "outside.json"))
    if not again:
        outside.write_text(json.dumps(at_work(plan, folder, job)))
    record = Record(record_file)
    if not record.count(FLUSH) or not record.count(WRITE):
        raise machine.Broken("the record has no flush: this kernel's disks work in another way")
    record.add(json.loads(outside.read_text()))
    cuts = record.choose(plan.cuts, random.Random(plan.seed), plan.units)
    figures = Figures()
    following = Disk(record, blank, folder / "flushed")
    for start in range(0, len(cuts), machine.DISKS_MAX):
        group = cuts[start : start + machine.DISKS_MAX]
        for cut, answer in recovered(folder, following, job, group, figures):
            judge(record, cut, answer, figures, plan)
    return figures


def at_work(plan: Plan, folder: Path, job: dict[str, Any]) -> Outside:
    """Let a machine work on a new disk; returns the events of clients outside."""
    names = ("blank", "disk", "events", "record")
    blank, disk, events, record = (folder / name for name in names)
    machine.blank(machine.FILE_SYSTEMS[plan.filesystem], blank)
    copy(blank, disk)
    with events.open("wb") as file:
        file.truncate(EVENTS_SIZE)
    more = {
        "LD_PRELOAD": str(machine.library(folder)),
        "POWERCUT_LOG": str(record),
        "POWERCUT_DISKS": f"{disk}:{events}",
    }
    start = Start(folder, [disk, events], job, more)
    return served(plan, start, record) if plan.clients else worked(plan, start)


class Start(NamedTuple):
    """The options that a machine at work starts with."""

    folder: Path
    disks: Sequence[Path]
    job: dict[str, Any]
    more: dict[str, str]


def worked(plan: Plan, start: Start) -> Outside:
    """Let processes in a machine use a store."""
    work = {"do": "work", "seed": plan.seed, "sends": plan.sends}
    machine.boot(start.folder, start.disks, {**start.job, **work}, "work", start.more)
    codes = json.loads((start.folder / "worked.json").read_text())
    if any(codes):
        console = machine.tail(start.folder / "work.console")
        raise machine.Broken(f"workers ended with {codes}: {console}")
    return []


def served(plan: Plan, start: Start, record: Path) -> Outside:
    """Let stock clients of Apache Pulsar use a server in a machine; returns their events."""
    with machine.network() as network:
        wanted = itertools.count()

        def kill() -> None:
            (start.folder / f"kill-{next(wanted)}").touch()

        clients = Clients(network.inside, record, plan.seed, plan.sends, plan.kills, kill)

        def use() -> None:
            try:
                clients.run()
            finally:
                (start.folder / "stop").touch()

        serve = {**start.job, "do": "serve", "address": network.inside, "bits": machine.BITS}
        machine.boot(start.folder, start.disks, serve, "work", start.more, network.interface, use)
    return clients.events


def recovered(
    folder: Path, following: Disk, job: dict[str, Any], cuts: Sequence[Cut], figures: Figures
) -> Iterator[tuple[Cut, dict[str, Any]]]:
    """Let another machine recover the disks of cuts; yields the contents of each."""
    images = [folder / f"cut-{n}" for n in range(len(cuts))]
    for cut, image in zip(cuts, images, strict=True):
        figures.unflushed += following.after(cut, image)
    disks = {"abcdefghijklmnop"[n + 1]: image.name for n, image in enumerate(images)}
    thoroughly = [image.name for image in images[::THOROUGH]]
    task = {**job, "do": "recover", "disks": disks, "thoroughly": thoroughly}
    machine.boot(folder, [folder / "disk", *images], task, "recover")
    for cut, image in zip(cuts, images, strict=True):
        yield cut, json.loads((folder / f"{image.name}.json").read_text())


def judge(record: Record, cut: Cut, answer: dict[str, Any], figures: Figures, plan: Plan) -> None:
    """Compare the contents of one disk with the answers before its cut."""
    figures.cuts += 1
    if "mount" in answer:
        figures.unmounted += 1
        figures.told[f"mount: {answer['mount']} (unit {cut.unit})"] += 1
        return
    events = record.told_before(cut)
    told = compare.Told(events)
    figures.confirmed += told.confirmed
    figures.told += told.counts
    figures.faults += [f"{cut}: {fault}" for fault in compare.faults(events, answer)]
    if plan.histories is not None and "messages" in answer:
        file = plan.histories / f"{plan.filesystem}-{plan.seed}-{cut.at}-{cut.seed}.jsonl"
        lines = (json.dumps(line) + "\n" for line in compare.history(events, answer))
        file.write_text("".join(lines))


def plans(names: Sequence[str], options: argparse.Namespace, seed: int) -> Iterator[Plan]:
    """The runs that the options ask for."""
    for name in names:
        left, number = options.cuts, 0
        while left > 0:
            count = min(left, options.cuts_of_a_run)
            units = [options.unit] if options.unit else [SECTOR, 4096]
            yield Plan(
                filesystem=name,
                cuts=count,
                seed=seed + number,
                sends=options.sends,
                units=units,
                leave_out=options.leave_out or (),
                clients=options.clients,
                kills=options.kills,
                histories=options.histories,
            )
            left, number = left - count, number + 1


def main(arguments: Sequence[str]) -> int:
    """Run the plans and print figures."""
    parser = argparse.ArgumentParser(prog="scripts/powercut", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--cuts", type=int, default=10)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--filesystem", choices=[*machine.FILE_SYSTEMS, "all"])
    parser.add_argument("--cuts-of-a-run", type=int, default=60)
    parser.add_argument("--sends", type=int, default=SENDS)
    parser.add_argument("--unit", type=int, choices=[SECTOR, 4096])
    parser.add_argument("--leave-out", action="append", choices=["data", "names"])
    parser.add_argument("--clients", action="store_true")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--again", type=Path)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--histories", type=Path)
    parser.set_defaults(filesystem="ext4-ordered")
    options = parser.parse_args(arguments)
    if options.kills and not options.clients:
        parser.error("--kills needs --clients: without them there is no server")
    chosen = options.filesystem
    names = [*machine.FILE_SYSTEMS] if chosen == "all" else [chosen]
    if lacking := machine.missing(names):
        print(f"not on PATH: {', '.join(lacking)}", file=sys.stderr)
        return 2
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 30)
    total: dict[str, Figures] = {}
    for plan in plans(names, options, seed):
        began = time.monotonic()
        parent = options.keep or Path(tempfile.gettempdir())
        prefix = f"powercut-{plan.filesystem}-"
        folder = options.again or Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            figures = run(plan, folder, options.again is not None)
        except (machine.Broken, machine.Unavailable) as error:
            print(f"{plan.filesystem}, seed {plan.seed}: {error}", file=sys.stderr)
            return 2
        show(plan, figures, time.monotonic() - began)
        total.setdefault(plan.filesystem, Figures()).add(figures)
        if options.keep or options.again or figures.faults:
            print(f"the files are in {folder}", flush=True)
        else:
            shutil.rmtree(folder)
    print(
        f"{sum(figures.cuts for figures in total.values())} cuts, "
        f"{sum(len(figures.faults) for figures in total.values())} faults"
    )
    return 1 if any(figures.faults for figures in total.values()) else 0


def show(plan: Plan, figures: Figures, seconds: float) -> None:
    """Print the figures of a run, and its first faults."""
    print(
        f"{plan.filesystem}, seed {plan.seed}: {figures.cuts} cuts, {figures.confirmed} confirmed "
        f"messages compared, {figures.unflushed / max(figures.cuts, 1):.1f} writes unflushed, "
        f"{figures.unmounted} disks did not mount, {len(figures.faults)} faults, {seconds:.0f} s"
    )
    print("  told:", ", ".join(f"{name} {count}" for name, count in sorted(figures.told.items())))
    for fault in figures.faults[:20]:
        print(" ", fault)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

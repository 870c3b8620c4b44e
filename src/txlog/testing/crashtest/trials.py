"""Owns the crash test: it runs the program without a kill, then once for each point."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import msgspec

import txlog
from txlog.base.rows.jobs import CrashTest
from txlog.client.client import Client
from txlog.errors import CommandFailed, InvalidArgument
from txlog.testing.crashtest.causes import Causes, Disturbed, Finding, row_of
from txlog.testing.crashtest.runs import KILLED, Program, Run, Workplace
from txlog.testing.crashtest.state import State, end_open_transactions, state_of
from txlog.testing.crashtest.trace import RECEIVING, REFUSABLE, Event, Trace
from txlog.testing.outputs import described, differences, messages_of

Tell = Callable[[int, int, int], None]  # points done, points in all, findings


class Options(msgspec.Struct, kw_only=True):
    """What to test, and how long.

    inputs:   topics that the program reads; outputs: topics to compare, by default all others
    args:     of the program
    files:    files and directories that the program finds in its working directory
    ignored:  patterns of files that are not compared
    messages: how many messages to add to the first input; sample: values to add instead
    points:   at most so many points, chosen by the seed
    at:       only this point
    idle_ms:  stop the program when it has waited for so long
    """

    inputs: list[str]
    outputs: list[str] = []
    args: list[str] = []
    files: list[str] = []
    ignored: list[str] = []
    messages: int = 0
    sample: list[bytes] = []
    points: int = 100
    at: int | None = None
    seed: int = 1
    timeout_ms: int = 60_000
    idle_ms: int | None = None
    parallelism: int = 0


class Point(msgspec.Struct, frozen=True):
    """A point to try: the number, and whether the call is refused instead of killed."""

    number: int
    refuses: bool


def crashtest(
    client: Client, path: str, options: Options, tell: Tell = lambda done, points, found: None
) -> CrashTest:
    """Run a program that uses a store, kill it at its calls, and name what is lost or doubled.

    client: an open store; only a copy of it changes
    path:   of the program, a file of Python
    raises: CommandFailed (the program fails without a kill, or writes nothing, or other things each
            time); InvalidArgument; TopicNotFound; the errors of `Client.copy`
    """
    if not os.path.isfile(path):
        raise InvalidArgument(f"there is no program {path}", path=path)
    folder = tempfile.mkdtemp(prefix="txlog-crashtest-")
    try:
        return _Test(client, path, options, folder, tell).report()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Test:
    def __init__(
        self, client: Client, path: str, options: Options, folder: str, tell: Tell
    ) -> None:
        self._name = path
        self._options = options
        self._folder = folder
        self._tell = tell
        self._lock = threading.Lock()
        self._runs = self._done = self._tried = 0
        self._findings: dict[tuple[str, str, int, int], Finding] = {}
        self._outside: dict[str, None] = {}
        self._ignored = [*options.ignored]
        prepared = os.path.join(folder, "prepared")
        client.copy(prepared)
        self._program = Program(
            os.path.realpath(path),
            options.args,
            os.getcwd(),
            options.files,
            os.path.realpath(client.store.disk.description),
            prepared,
            options.timeout_ms / 1000,
            options.idle_ms,
        )

    def report(self) -> CrashTest:
        messages, before = self._prepare()
        reference, wanted, differing = self._reference(before)
        points = _points(reference)
        chosen = _chosen(points, reference, self._options)
        self._tell(0, len(chosen), 0)

        def attempt(point: Point) -> None:
            findings = self._disturb(point, reference, wanted)
            with self._lock:
                self._note(findings)
                self._tell(self._done, len(chosen), len(self._findings))

        with ThreadPoolExecutor(self._options.parallelism or min(4, os.cpu_count() or 1)) as pool:
            attempts = [pool.submit(attempt, point) for point in chosen]
            try:
                for each in attempts:
                    each.result()
            finally:
                for each in attempts:
                    each.cancel()
        findings = sorted(self._findings.values(), key=lambda finding: finding.point)
        return {
            "program": self._name,
            "messages": messages,
            "points": len(points),
            "tried": self._tried,
            "runs": self._runs,
            "finding_list": [row_of(finding) for finding in findings],
            "outside_list": [*self._outside],
            "differing_list": differing,
        }

    # --- without a kill --------------------------------------------------------------------------

    def _prepare(self) -> tuple[int, State]:
        """Put messages into the copy; returns how many the inputs have, and the state."""
        options = self._options
        with txlog.open(self._program.prepared) as client:
            values = options.sample or [b"message-%d" % n for n in range(1, options.messages + 1)]
            with client.producer(options.inputs[0]) as producer:
                for value in values:
                    producer.send_async(value)
            inputs = [*messages_of(client, options.inputs).values()]
            messages = sum(topic.total() for topic in inputs)
            topics = [row["topic"] for row in client.topics()]
            outputs = options.outputs or [name for name in topics if name not in options.inputs]
            before = messages_of(client, outputs)
        if not messages:
            raise InvalidArgument(
                f"{', '.join(options.inputs)} has no messages",
                hint="add some to the copy: --messages 10, or --sample FILE",
            )
        return messages, State(before, {}, {})

    def _reference(self, before: State) -> tuple[Trace, State, list[str]]:
        """The trace of a run without a kill, the state after it, and files that always differ."""
        states: list[State] = []
        runs: list[Run] = []
        for number in (1, 2):
            place = self._place(f"reference-{number}")
            run = self._run(place)
            if not run.is_complete:
                raise CommandFailed(
                    f"without a kill, the program fails: {run.reason()}", hint=_remedy(run)
                )
            runs.append(run)
            states.append(self._state(place, before))
        first, second = states
        if first.output == before.output and not first.files:
            raise CommandFailed(
                f"the program writes no message to {', '.join(before.output) or 'any topic'}, "
                "so there is nothing to compare",
                hint="name the topics that it writes: --output",
            )
        rows = differences(second.output, first.output)
        if rows:
            raise CommandFailed(
                f"two runs without a kill differ: {described(rows)}",
                hint="let it write the same for the same input: no clock, no chance",
            )
        names = {*first.files, *second.files}
        differing = sorted(
            name for name in names if first.files.get(name) != second.files.get(name)
        )
        self._ignored += differing
        files = {name: lines for name, lines in first.files.items() if name not in differing}
        self._outside.update(dict.fromkeys(runs[0].trace.outside))
        return runs[0].trace, first._replace(files=files), differing

    # --- with a kill -----------------------------------------------------------------------------

    def _disturb(self, point: Point, reference: Trace, wanted: State) -> list[Finding]:
        """Disturb the program at a point, run it to its end, and explain what differs."""
        place = self._place(f"point-{point.number}-{'refused' if point.refuses else 'killed'}")
        killed = self._run(place, point)
        is_reached = killed.exit == KILLED or any(e.error for e in killed.trace.events)
        disturbed = Disturbed(point.number, point.refuses, killed.trace, [], None)
        run = self._run(place)
        disturbed.later.append(run.trace)
        if run.is_complete and end_open_transactions(place.store):
            run = self._run(place)  # it gets what those transactions held
            disturbed.later.append(run.trace)
        if run.is_complete:
            disturbed.state = self._state(place, wanted)
        else:
            disturbed.failure = run.reason()
            disturbed.failed_at = run.place(os.path.dirname(self._program.path))
        with suppress(OSError):
            shutil.rmtree(os.path.dirname(place.work))
        with self._lock:
            self._done += 1
            self._tried += is_reached
        return Causes(reference, wanted, disturbed).findings()

    def _note(self, found: Iterable[Finding]) -> None:
        for finding in found:
            # of an effect, several lines may be the last before the kill
            line = -1 if finding.where and finding.other is not None else finding.line
            key = (finding.kind, finding.where, finding.other or 0, line)
            first = self._findings.setdefault(key, finding)
            if first is finding:
                continue
            first.points += 1
            if (finding.refused, finding.point) < (first.refused, first.point):
                finding.points = first.points
                self._findings[key] = finding

    def _place(self, name: str) -> Workplace:
        folder = os.path.join(self._folder, name)
        os.mkdir(folder)
        return Workplace(self._program, folder)

    def _run(self, place: Workplace, point: Point | None = None) -> Run:
        with self._lock:
            self._runs += 1
        if point is None:
            return place.run()
        return place.run(point.number, refuses=point.refuses)

    def _state(self, place: Workplace, like: State) -> State:
        return state_of(place.store, self._options.inputs, like.output, place.work, self._ignored)


# --- points --------------------------------------------------------------------------------------


def _points(reference: Trace) -> list[Point]:
    """Where a program can be disturbed, in order."""
    points: list[Point] = []
    for event in reference.events:
        points.append(Point(event.point, False))
        if event.call in REFUSABLE:
            points.append(Point(event.point, True))
        if event.after is not None:
            points.append(Point(event.after, False))
    return points


def _chosen(points: Sequence[Point], reference: Trace, options: Options) -> list[Point]:
    """The points to try: of each line the middle, the first and the last time, then by chance."""
    if options.at is not None:
        chosen = [point for point in points if point.number == options.at]
        if not chosen:
            last = reference.points
            raise InvalidArgument(f"there is no point {options.at}, the last is {last}", code=203)
        return chosen
    events = {event.point: event for event in reference.events}
    events |= {event.after: event for event in reference.events if event.after is not None}
    by_line: dict[tuple[str, int, str, int], list[Point]] = defaultdict(list)
    for point in points:
        event = events[point.number]
        turn = _turn(point, event)
        by_line[event.file, event.line, event.call, turn].append(point)
    chance = random.Random(options.seed)
    ranked: list[tuple[int, int, int, Point]] = []
    for (_, _, _, turn), same in by_line.items():
        first = [*dict.fromkeys((same[len(same) // 2], same[0], same[-1]))]
        others = [point for point in same if point not in first]
        chance.shuffle(others)
        ranked += [(rank, turn, p.number, p) for rank, p in enumerate((*first, *others))]
    ranked.sort(key=lambda row: row[:3])
    return [row[3] for row in ranked[: options.points]]


def _turn(point: Point, event: Event) -> int:
    """Which points come first: after a deciding call, before other calls, refused, receiving."""
    if point.refuses:
        return 2
    if point.number == event.after:
        return 0
    return 3 if event.call in RECEIVING else 1


def _remedy(run: Run) -> str:
    if run.exit is None:
        return "if it waits for messages for ever, stop it: --idle 2s"
    if "FileNotFoundError" in run.stderr:
        return "it runs in a directory of its own: name the files that it needs, --files PATH"
    return "run it by itself first"

"""Owns the crash test: it runs the program without a kill, then once for each point.

The working directory of the program has a copy of the store, where the store lies below the user's
directory, and copies of the files that the user names. A run that was killed leaves them as they
are for the next.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

import txlog
from txlog.base.rows.jobs import CrashTest
from txlog.client.client import Client
from txlog.errors import CommandFailed, InvalidArgument
from txlog.testing.crashtest import trace as traces
from txlog.testing.crashtest.causes import Causes, Disturbed, Finding, row_of
from txlog.testing.crashtest.state import State, end_open_transactions, state_of
from txlog.testing.crashtest.trace import RECEIVING, REFUSABLE, Event, Specification, Trace
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


# --- runs of a program ----------------------------------------------------------------------------

KILLED: Final = -signal.SIGKILL
STDERR_BYTES: Final = 4096
# Variables of the user that would lead the program elsewhere.
UNWANTED: Final = ("TXLOG_STORE", "TXLOG_TXN", "TXLOG_NOW", "TXLOG_PROFILE")
FRAME: Final = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)


class Program(msgspec.Struct, frozen=True):
    """A program to test.

    path:     its file, absolute; args: its arguments
    folder:   the directory of the user; files: paths in it that each run gets a copy of
    store:    the store of the user, a real path; prepared: the copy that each run copies again
    idle_ms:  stop it when it has waited for so long; None: it ends by itself
    """

    path: str
    args: list[str]
    folder: str
    files: list[str]
    store: str
    prepared: str
    timeout_s: float
    idle_ms: int | None


class Run(msgspec.Struct):
    """One run: its trace, and how it ended.

    exit:   the exit code, negative for a signal; None: it ran into the time limit
    stderr: the last bytes that it wrote there
    """

    trace: Trace
    exit: int | None
    stderr: str

    @property
    def is_complete(self) -> bool:
        """The program ended as it should, or was stopped when it had nothing more to do."""
        return self.exit == 0 or (self.trace.is_stopped and self.exit is not None)

    def reason(self) -> str:
        """Why it is not complete, in words."""
        if self.exit is None:
            return "it does not end within the time limit"
        last = self.stderr.strip().splitlines()[-1:]
        how = f"signal {-self.exit}" if self.exit < 0 else f"exit code {self.exit}"
        return f"{how}: {last[0]}" if last else how

    def place(self, folder: str) -> tuple[str, int] | None:
        """The innermost line of the program in the traceback on stderr."""
        root = os.path.join(folder, "")
        frames = [(path, int(line)) for path, line in FRAME.findall(self.stderr)]
        own_frames = [(path[len(root) :], line) for path, line in frames if path.startswith(root)]
        return own_frames[-1] if own_frames else None


class Workplace:
    """A directory with copies, in which a program runs again and again."""

    def __init__(self, program: Program, folder: str) -> None:
        self._program = program
        self._folder = folder
        self._runs = 0
        self.work = os.path.join(folder, "work")
        inner = os.path.join(os.path.realpath(program.folder), "")
        is_inside = program.store.startswith(inner)
        self.store = os.path.join(
            self.work if is_inside else folder,
            program.store[len(inner) :] if is_inside else "store",
        )
        shutil.copytree(program.prepared, self.store)
        for name in program.files:
            _copy(os.path.join(program.folder, name), os.path.join(self.work, name))
        os.makedirs(self.work, exist_ok=True)

    def run(self, at: int | None = None, *, refuses: bool = False) -> Run:
        """Run the program in a new process until it ends, or dies at a point."""
        program, self._runs = self._program, self._runs + 1
        begin = os.path.join(self._folder, f"run-{self._runs}")
        specification = Specification(
            program.path,
            program.args,
            program.folder,
            self.work,
            program.store,
            self.store,
            f"{begin}.trace",
            at,
            refuses,
            program.idle_ms,
        )
        Path(f"{begin}.json").write_bytes(msgspec.json.encode(specification))
        exit_code = self._run(f"{begin}.json", f"{begin}.stderr")
        with open(f"{begin}.stderr", "rb") as file:
            file.seek(max(0, os.path.getsize(file.name) - STDERR_BYTES))
            stderr = file.read().decode(errors="replace")
        return Run(traces.read(specification.trace), exit_code, stderr)

    def _run(self, specification: str, stderr: str) -> int | None:
        command = [sys.executable, "-P", "-m", "txlog.testing.crashtest.child", specification]
        with open(stderr, "wb") as file:
            process = subprocess.Popen(  # noqa: S603  # our interpreter
                command,
                cwd=self.work,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                start_new_session=True,
            )
            try:
                return process.wait(self._program.timeout_s)
            except subprocess.TimeoutExpired:
                return None
            finally:  # also the processes that it started
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _environment(self) -> dict[str, str]:
        environment = {name: value for name, value in os.environ.items() if name not in UNWANTED}
        paths = [
            os.path.abspath(path)
            for path in environment.get("PYTHONPATH", "").split(os.pathsep)
            if path
        ]
        return {**environment, "PYTHONPATH": os.pathsep.join(paths), "TXLOG_STORE": self.store}


def _copy(source: str, target: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.isdir(source):
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)

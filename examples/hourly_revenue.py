"""Revenue per hour of the real invoices, while tills and the function are killed.

    python examples/hourly_revenue.py                        the first 12,000 lines
    python examples/hourly_revenue.py --lines 541909 --kills 20
    python examples/hourly_revenue.py --picture hourly.svg   with a picture of the run

Three tills send their lines, in transactions and up to three hours out of order, to a topic of
eight partitions. Each transaction reports how far its till is in event time. A function adds up the
windows of an hour that the watermark has passed, and is killed again and again (SIGKILL). Meanwhile

    till-3  is killed within a transaction; the watermark stands still, as it must. A command
            declares it idle, and the others continue. Later a successor sends its other lines
    till-2  is done early and declares itself idle
    lines   that were mislaid come after the watermark has passed them: each must be late

In the end the program compares the revenue of each hour with DuckDB's answer over the file. It must
be exact, less the late lines in a topic of their own. Each line is in one of the two, once.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

import hourly_plan
import hourly_till
import pyarrow as pa
import pyarrow.compute as pc
from hourly_plan import HOUR_MS, TILLS, Plan
from hourly_story import Story

import txlog
from txlog.clock import SystemClock

HERE = Path(__file__).resolve().parent
LINES, REVENUE, LATE = "lines", "revenue", "late-lines"
SUBSCRIPTION = "hourly"
FUNCTION = f"{HERE / 'hourly.py'}:hourly"
PARTITIONS = 8
BOUND_MS = 3 * HOUR_MS
LINES_MIN = 4_000
STEPS = 100
# After so many steps: till-3 is killed, is declared idle, comes back; till-2 declares itself idle;
# the stragglers come.
KILLED, DECLARED, BACK, TILL_2_IDLE, STRAGGLING = 45, 55, 62, 70, 85
WAIT_S = 120


class Till:
    """A till process, controlled by lines on its standard streams."""

    def __init__(self, story: Story, name: str, command: list[str]) -> None:
        self.story, self.name = story, name
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, what: str) -> None:
        """Send it a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()

    def until(self, wanted: str) -> None:
        """Read its reports until a given word comes."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            at, word, *rest = line.split()
            if word == "idle":
                self.story.asserted(int(at), self.name, None)
            elif rest:
                self.story.asserted(int(at), self.name, int(rest[0]))
            if word == wanted:
                return
        raise SystemExit(f"{self.name} ended by itself, status {self.process.wait()}")

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.process.kill()
        self.process.communicate()

    def end(self) -> None:
        """Let it end."""
        self.process.communicate()


class Function:
    """The process of the function, which dies and is started again."""

    def __init__(self, store: str, log: Path) -> None:
        self.command = [
            sys.executable,
            "-m",
            "txlog",
            "-S",
            store,
            "run",
            FUNCTION,
            "--input",
            LINES,
            "--output",
            REVENUE,
            "-s",
            SUBSCRIPTION,
            "--log-format",
            "json",
        ]
        self.log = log
        self.kills = 0
        self.process = self._start("--follow")

    def _start(self, *more: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            self.log_start = log.tell()
            return subprocess.Popen([*self.command, *more], stdout=log, stderr=log)

    def check(self) -> None:
        """Raise if it ended by itself."""
        if (status := self.process.poll()) is not None:
            tail = self.log.read_text().splitlines()[-20:]
            raise SystemExit("\n".join([*tail, f"the function ended by itself: {status}"]))

    def is_started(self) -> bool:
        """True once it has reported that it began to work."""
        self.check()
        return b'"started"' in self.log.read_bytes()[self.log_start :]

    def kill(self) -> None:
        """End it with SIGKILL, and start another one."""
        self.process.kill()
        self.process.wait()
        self.kills += 1
        self.process = self._start("--follow")

    def finish(self) -> None:
        """Let it end, and run it once more until no input remains."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        self.process = self._start()
        if status := self.process.wait():
            tail = self.log.read_text().splitlines()[-20:]
            raise SystemExit("\n".join([*tail, f"the last run ended with {status}"]))

    def close(self) -> None:
        """Leave nothing behind."""
        self.process.kill()
        self.process.wait()


class Demonstration:
    """The whole run: the processes, and the record of events."""

    def __init__(self, folder: Path, plan: Plan, kills: int, seed: int) -> None:
        self.folder, self.plan, self.seed = folder, plan, seed
        self.store = str(folder / "store")
        txlog.init(self.store)
        self.client = txlog.open(self.store)
        self.client.create_topic(LINES, PARTITIONS)
        for topic in (REVENUE, LATE):
            self.client.create_topic(topic)
        self.client.create_subscription(LINES, SUBSCRIPTION)
        self.clock = SystemClock()
        self.story = Story(self.clock.now().wall_ms)
        self.batch = max(20, plan.lines // 600)
        self.successor: list[int] = []
        share = (STEPS - 4) // max(kills, 1)  # each process dies in a different part of the story
        self.kill_at = [
            2 + at * (STEPS - 4) // kills + draw(seed, f"kill {at}") % max(share, 1)
            for at in range(kills)
        ]

    # --- observations -------------------------------------------------------------------------

    def emitted(self) -> int:
        """The watermark that the function got; 0: none."""
        found = self.client.topic(LINES).watermarks.show(SUBSCRIPTION)["emitted"]
        assert found is None or isinstance(found, int)
        return found or 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Record the emitted watermark whenever it moved."""
        is_over = threading.Event()

        def watch() -> None:
            while not is_over.wait(0.02):
                self.story.handed(self.clock.now().wall_ms, self.emitted())

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def wait_beyond(self, instant: int, function: Function) -> None:
        """Wait until the function got a watermark above an instant."""

        def is_beyond() -> bool:
            function.check()
            return self.emitted() > instant

        wait_for(is_beyond, f"a watermark above {instant}")

    # --- events -------------------------------------------------------------------------------

    def till(self, name: str, first: str) -> Till:
        """Start a till."""
        path = self.folder / f"{name}.parquet"
        hourly_plan.write_share(self.plan.shares[name], path)
        given = [self.store, name, str(path), str(self.plan.bound_ms), str(self.batch)]
        till = Till(self.story, name, [sys.executable, hourly_till.__file__, *given])
        till.tell(first)
        return till

    def run(self, seconds: float) -> int:
        """Run everything; returns how often the function was killed."""
        tills = {name: self.till(name, "start") for name in TILLS}
        for till in tills.values():
            till.until("ready")
        function = Function(self.store, self.folder / "function.log")
        try:
            with self.watched():
                self._play(tills, function, seconds)
                function.finish()
        finally:
            function.close()
            for till in tills.values():
                till.kill()
        return function.kills

    def _play(self, tills: dict[str, Till], function: Function, seconds: float) -> None:
        began = time.monotonic()
        for step in range(1, STEPS + 1):
            instant = self.plan.arrival(step / STEPS)
            for till in tills.values():
                till.tell(f"to {instant}")
            for till in tills.values():
                till.until("done")
            self._happen(step, tills, function)
            time.sleep(max(0.0, began + seconds * step / STEPS - time.monotonic()))
            while step in self.kill_at:
                self.kill_at.remove(step)
                self._kill(function)
            function.check()
        for till in tills.values():
            till.tell("end")
            till.until("ended")
            till.end()

    def _happen(self, step: int, tills: dict[str, Till], function: Function) -> None:
        if step == KILLED:
            till = tills.pop("till-3")
            till.tell("hold")
            till.until("held")
            till.kill()
            self._note("till-3 killed")
        elif step == DECLARED:
            before = self._held_by("till-3", function)
            subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "txlog",
                    "-S",
                    self.store,
                    "watermark",
                    "idle",
                    LINES,
                    "--producer",
                    "till-3",
                    "-q",
                ],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            self.story.asserted(self.clock.now().wall_ms, "till-3", None)
            self._note("declared idle")
            self.wait_beyond(before, function)
        elif step == BACK:
            self.successor = self._overdue()
            tills["till-3"] = self.till("till-3", "again")
            tills["till-3"].until("ready")
            self._note("successor joins")
        elif step == TILL_2_IDLE:
            tills["till-2"].tell("idle")
            tills["till-2"].until("idle")
            self._note("till-2 idle")
        elif step == STRAGGLING:
            self._straggle(function)

    def _held_by(self, name: str, function: Function) -> int:
        """The last assertion of a dead till; the watermark of all lines must not be above it."""

        def is_taken() -> bool:
            function.check()
            [row] = self.client.subscriptions(LINES)
            return bool(row["backlog"] == 0)

        wait_for(is_taken, "an end of the backlog")
        said = self.story.last(name)
        if self.emitted() > said:
            raise SystemExit(f"wrong: the watermark went on without {name}, above {said}")
        return said

    def _overdue(self) -> list[int]:
        """Lines of till-3 that may be late; later lines cannot, as it has joined again by then."""
        mine = self.plan.shares["till-3"]
        before = pc.less(mine["arrival"], self.plan.arrival((BACK + 1) / STEPS))
        sent = set(hourly_till.numbers(self.client, LINES))
        return [line for line in mine.filter(before)["line"].to_pylist() if line not in sent]

    def _straggle(self, function: Function) -> None:
        """Send the stragglers, once the watermark has passed the last of their windows."""
        held = self.plan.stragglers
        newest = pc.max(held["event_time"].cast(pa.int64())).as_py()
        self.wait_beyond(newest - newest % HOUR_MS + HOUR_MS - 1, function)
        rows = held.select(["key", "value", "event_time"])
        self.client.producer(LINES, "mislaid").send_batch(rows)
        self._note("mislaid lines")

    def _kill(self, function: Function) -> None:
        """Kill the function, at a moment of its life that the seed draws."""
        wait_for(function.is_started, "the function")
        time.sleep(draw(self.seed, f"moment {function.kills}") % 300 / 1000)
        self.story.killed(self.clock.now().wall_ms)
        function.kill()

    def _note(self, text: str) -> None:
        self.story.note(self.clock.now().wall_ms, text)


def wait_for(is_there: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + WAIT_S
    while not is_there():
        if time.monotonic() > until:
            raise SystemExit(f"{what}: not there after {WAIT_S} seconds")
        time.sleep(0.02)


def draw(seed: int, purpose: str) -> int:
    """A number that depends only on the seed and the purpose."""
    return int.from_bytes(blake2b(f"{seed}:{purpose}".encode(), digest_size=8).digest(), "big")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, compare, print; exit code 1 if something was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=12_000, help="of the file (12,000)")
    parser.add_argument("--kills", type=int, default=5, help="of the function (5)")
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="draw what happened")
    parser.add_argument("--seed", type=int, default=1, help="what is drawn: all of it (1)")
    parser.add_argument("--seconds", type=float, default=12, help="the tills take so long (12)")
    given = parser.parse_args(arguments)
    if given.lines < LINES_MIN:
        parser.error(f"--lines is {given.lines}, the story takes two days: {LINES_MIN} or more")
    plan = hourly_plan.make_plan(given.lines, BOUND_MS, given.seed)
    with tempfile.TemporaryDirectory() as folder:
        demonstration = Demonstration(Path(folder), plan, given.kills, given.seed)
        kills = demonstration.run(given.seconds)
        client = demonstration.client
        found = hourly_plan.compare(client, plan, (LINES, REVENUE, LATE), demonstration.successor)
        if given.picture is not None:
            demonstration.story.read(client, LINES, REVENUE, LATE)
        client.close()
    for name, value in (
        ("lines of the file", plan.lines),
        ("lines sent", found.sent),
        ("times the function was killed", kills),
        ("windows", found.windows),
        ("lines in them", found.window_lines),
        ("late lines", found.late),
        ("  that had been mislaid", found.stragglers_late),
        ("  of a successor", found.successor_late),
        ("revenue of the windows, pounds", f"{found.thousandths / 1000:.3f}"),
        ("each line exactly once, each hour exact", "NO" if found.problems else "yes"),
    ):
        sys.stdout.write(f"{name:42}{value:>14}\n")
    for problem in found.problems:
        sys.stdout.write(f"wrong (seed {given.seed}): {problem}\n")
    if given.picture is not None:
        draw_story(demonstration.story, given.picture)
    sys.exit(1 if found.problems else 0)


def draw_story(story: Story, path: Path) -> None:
    """Write the picture; it needs `svg.py`."""
    drawing = importlib.import_module("hourly_picture")  # only a picture needs its library
    path.write_text(drawing.picture(story))
    sys.stdout.write(f"{'picture':42}{path!s:>14}\n")


if __name__ == "__main__":
    main()

"""Owns the command `crashtest`: a user's program, killed at each of its calls."""

from __future__ import annotations

import importlib
import linecache
import os
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from txlog.cli.call.call import Call
from txlog.cli.call.progress import Bar, Sight
from txlog.cli.line.command import Argument, Duration, Option, command, exclusive
from txlog.cli.terminal.tables import counted
from txlog.errors import InvalidArgument, NotFound

if TYPE_CHECKING:
    from txlog.base.rows.jobs import CrashFinding, CrashTest


class CrashTesting(msgspec.Struct, kw_only=True):
    """The options of `crashtest`."""

    program: Annotated[
        str, Argument(metavar="PROGRAM", show_default=False, help="a file of Python")
    ]
    arguments: Annotated[
        list[str] | None, Argument(metavar="ARG", show_default=False, help="of the program")
    ] = None
    inputs: Annotated[list[str], Option("--input", metavar="T…", help="topics that it reads")]
    outputs: Annotated[
        list[str], Option("--output", metavar="T…", help="topics to compare (all)", many=True)
    ] = []
    messages: Annotated[
        int, Option("--messages", metavar="N", min=0, help="add so many to the input")
    ] = 0
    sample: Annotated[
        str | None, Option("--sample", metavar="FILE", help="add its lines to the input instead")
    ] = None
    files: Annotated[
        list[str],
        Option("--files", metavar="PATH…", help="what it needs in its directory", many=True),
    ] = []
    ignored: Annotated[
        list[str], Option("--ignore", metavar="GLOB…", help="files not to compare", many=True)
    ] = []
    runs: Annotated[
        int, Option("--runs", metavar="N", min=1, help="disturb it at most so many times")
    ] = 100
    at: Annotated[int | None, Option("--at", metavar="POINT", min=1, help="only at this point")] = (
        None
    )
    seed: Annotated[int, Option("--seed", metavar="N", help="chooses among more points")] = 1
    timeout_ms: Annotated[int, Duration("--timeout", help="of a run", default="60s")]
    idle_ms: Annotated[
        int | None, Duration("--idle", help="stop it when it has waited for so long")
    ] = None
    parallelism: Annotated[
        int, Option("--parallelism", metavar="N", min=0, help="runs at once; 0: by processors")
    ] = 0


@command(
    "crashtest",
    "kill a program at each of its calls, and say what is lost",
    examples=(
        "txlog crashtest billing.py --input orders --output bills",
        "txlog crashtest billing.py --input orders --output bills --messages 5 --idle 2s --json",
        "txlog crashtest billing.py --input orders --output bills --at 12",
    ),
    rows="jobs.CrashTest",
    loses="nothing",
    options=CrashTesting,
)
def crashtest(call: Call, request: CrashTesting) -> None:
    """Run PROGRAM, a file of Python, on a copy of the store, and kill it at each of its calls.

    It dies before each send, receive, flush and effect outside of the store, and before and after
    each acknowledgement and commit; sends, acknowledgements and commits are also refused. Then it
    runs again to its end, and its messages and files are compared with a run without a kill. A
    finding names the line; the command ends with 6. The store itself stays as it is.
    """
    exclusive(messages=request.messages, sample=request.sample)
    trials: Any = importlib.import_module("txlog.testing.crashtest.trials")
    options = trials.Options(
        inputs=request.inputs,
        outputs=request.outputs,
        args=request.arguments or [],
        files=[_relative(name) for name in request.files],
        ignored=request.ignored,
        messages=request.messages,
        sample=[] if request.sample is None else _lines(request.sample),
        points=request.runs,
        at=request.at,
        seed=request.seed,
        timeout_ms=request.timeout_ms,
        idle_ms=request.idle_ms,
        parallelism=request.parallelism,
    )
    with _Progress(call) as progress:
        answer = trials.crashtest(call.client(write=True), request.program, options, progress)
    if call.output.as_json or call.flags.format is not None or call.flags.columns is not None:
        call.output.single(answer)
    else:
        call.output.text(_text(answer, os.path.dirname(os.path.realpath(request.program))))
    if answer["finding_list"]:
        call.exit = 6


class _Progress(Bar):
    """Shows how many points are done; the test calls it."""

    def __init__(self, call: Call) -> None:
        super().__init__(call, self._sight)
        self._at: tuple[int, int, int] | None = None

    def __call__(self, done: int, points: int, findings: int) -> None:
        """Show the points that are done, and the findings."""
        self._at = (done, points, findings)

    def _sight(self) -> Sight:
        if self._at is None:
            return Sight("crashtest", "running without a kill")
        done, points, findings = self._at
        words = f"{done} of {counted(points, 'kill')}, {counted(findings, 'finding')}"
        return Sight("crashtest", words, done / points)


def _lines(path: str) -> list[bytes]:
    try:
        with open(path, "rb") as file:
            return file.read().splitlines()
    except FileNotFoundError as error:
        raise NotFound(f"there is no {path}", path=path) from error


def _relative(name: str) -> str:
    """A file below the working directory, relative to it."""
    if not os.path.exists(name):
        raise NotFound(f"there is no file {name!r}", path=name)
    short = os.path.relpath(name)
    if short.startswith(os.pardir):
        raise InvalidArgument(
            f"{name} is not in the working directory, and --files copies only from there",
            path=name,
        )
    return short


def _text(answer: CrashTest, folder: str) -> str:
    """The report for people."""
    lines: list[str] = []
    for finding in answer["finding_list"]:
        lines += _described(finding, folder)
    for place in answer["outside_list"]:
        lines.append(f"not compared: {place}, which is outside of the copy")
    for name in answer["differing_list"]:
        lines.append(f"not compared: {name}, which differs without a kill")
    tried, points = answer["tried"], answer["points"]
    findings = answer["finding_list"]
    lines.append(
        f"{counted(len(findings), 'finding') if findings else 'nothing lost or doubled'}: "
        f"{answer['program']}, {counted(answer['messages'], 'message')}, "
        f"killed or refused at {tried:,} of {counted(points, 'point')}"
    )
    return "".join(f"{line}\n" for line in lines)


def _described(finding: CrashFinding, folder: str) -> list[str]:
    lines = [f"{finding['kind']}: {finding['cause']}", f"  {finding['example']}"]
    path = os.path.join(folder, finding["file"])
    numbers = {number for number in (finding["line"], finding["other_line"]) if number}
    lines += [
        f"  {finding['file']}:{number}  {linecache.getline(path, number).strip()}"
        for number in sorted(numbers)
    ]
    lines.append(
        f"  at {counted(finding['points'], 'point')}, the first is --at {finding['point']}"
    )
    return [*lines, ""]

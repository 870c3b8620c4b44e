"""Owns the guided walk of `txlog demo --tour`: steps of real commands on real invoice lines.

Each step prints its commands and runs them in one shell, in the directory of the tour, as a reader
would type them. On a terminal the tour waits for Enter after each step.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from txlog.cli.demo import source
from txlog.errors import AlreadyExists, CommandFailed

LINES: Final = 20_000
STORE: Final = "shop"
FUNCTION: Final = """\
from txlog.functions import Output

def total(order):
    line = order.decode()
    pounds = round(line["Quantity"] * line["UnitPrice"], 2)
    return Output({"country": line["Country"], "pounds": pounds}, key=str(order.message_id))
"""
_RUN: Final = "txlog run total.py:total --input orders --output totals -s billing"
_PACKAGE_PARENT: Final = str(Path(__file__).absolute().parents[3])


class Step(NamedTuple):
    """A heading, what happens and why, and the commands that show it."""

    title: str
    text: str
    commands: tuple[str, ...]


STEPS: Final = (
    Step(
        "A store is a directory",
        "No server, no account. Topics are in it; every command opens it itself.",
        (
            f"export TXLOG_STORE={STORE}",
            "txlog init $TXLOG_STORE",
            "txlog topic create totals notes",
        ),
    ),
    Step(
        "Real data: order lines of a shop, from a CSV file",
        "The import is one transaction: readers see all lines or none. Columns become fields.",
        (
            "head -n 3 orders.csv",
            "txlog import orders.csv orders --create --infer-schema",
            "txlog consume orders -n 2 -f '%o  %v\\n'",
        ),
    ),
    Step(
        "A job that fails leaves nothing behind",
        "Whatever a command sends inside 'txn run' counts when it ends with 0, and not before.",
        (
            "txlog txn run -- sh -c 'txlog produce notes -m half; exit 3' || echo exit $?",
            "txlog consume notes | wc -l",
        ),
    ),
    Step(
        "A function, killed in the middle",
        "It bills each line. Each transaction acknowledges 100 lines and writes their bills.",
        (
            "cat total.py",
            f"{_RUN} --create --txn-size 100 -q &",
            "txlog wait --topic totals --messages 1000 --columns met",
            "kill -9 $!; wait $! || echo killed, exit $?",
            "txlog sub list --columns subscription,backlog",
        ),
    ),
    Step(
        "Start it again: it goes on, exactly",
        "No clean-up and no state to repair. Every line has one bill: none is lost, none doubled.",
        (
            f"{_RUN} -q",
            'txlog query -q "SELECT count(*) AS bills, (SELECT count(*) FROM orders) - '
            "count(DISTINCT key) AS lost, count(*) - count(DISTINCT key) AS doubled FROM totals\"",
        ),
    ),
    Step(
        "Messages are rows",
        "DuckDB reads the files of the store; so does Spark.",
        (
            'txlog query -q "SELECT record.Country AS country, count(*) AS lines, '
            "sum(record.Quantity * record.UnitPrice)::DECIMAL(12,2) AS pounds "
            'FROM orders GROUP BY country ORDER BY pounds DESC LIMIT 3"',
        ),
    ),
    Step(
        "A message for later",
        "It is stored now, and no consumer gets it before its time.",
        (
            "txlog produce notes -m 'send a reminder' --deliver-after 14d",
            "txlog consume notes | wc -l",
            "txlog delay list notes --columns message_id,deliver_at",
        ),
    ),
    Step(
        "What happened here",
        "Every transaction is on record for an hour; the report is one HTML file.",
        (
            "txlog txn list --all --columns txn,state,messages,acks | head -n 4",
            "txlog report",
        ),
    ),
)  # fmt: skip


def prepare(path: Path) -> None:
    """Make the directory of the tour, with the first order lines and the function in it.

    raises: AlreadyExists, it is not empty
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise AlreadyExists(
            f"{path} is not empty", hint="name another directory: txlog demo PATH --tour"
        )
    path.mkdir(parents=True, exist_ok=True)
    source.write_csv(str(path / "orders.csv"), LINES)
    (path / "total.py").write_text(FUNCTION, encoding="utf-8")


def walk(
    path: Path,
    show: Callable[[str], None],
    goes_on: Callable[[], bool],
    heading: Callable[[str], str] = str,
) -> bool:
    """Run the steps in the directory; returns whether all steps ran.

    show:    print text, at once
    goes_on: called between two steps; False ends the tour
    heading: how a heading looks
    raises:  CommandFailed
    """
    with tempfile.TemporaryDirectory(prefix="txlog-tour-") as programs:
        tool = Path(programs, "txlog")
        tool.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m txlog "$@"\n')
        tool.chmod(0o755)
        environment = _environment(programs)
        for number, step in enumerate(STEPS, start=1):
            title = heading(f"{number} of {len(STEPS)}  {step.title}")
            show(f"\n{title}\n{step.text}\n\n")
            if number == 1:
                show(f"$ cd {shlex.quote(str(path))}\n")
            code = subprocess.run(
                ["sh", "-ec", _script(step)],
                cwd=path,
                env=environment,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode
            if code != 0:
                raise CommandFailed(f"step {number} of the tour ended with {code}", status=code)
            if number < len(STEPS) and not goes_on():
                return False
    return True


def _script(step: Step) -> str:
    return "".join(
        f"printf '%s\\n' {shlex.quote(f'$ {command}')}\n{command}\n" for command in step.commands
    )


def _environment(programs: str) -> dict[str, str]:
    """The caller's, with this txlog first on the path and with the store of the tour."""
    search = os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])
    modules = os.pathsep.join(filter(None, [_PACKAGE_PARENT, os.environ.get("PYTHONPATH")]))
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TXLOG_") or name == "TXLOG_DURABILITY"
    }
    return {**environment, "PATH": search, "PYTHONPATH": modules, "TXLOG_STORE": STORE}

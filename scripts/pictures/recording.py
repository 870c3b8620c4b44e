"""Owns the recording of README: a worker is killed again and again, and its totals stay exact.

It runs the commands as they are shown, on the 541,909 real invoice lines, and kills with SIGKILL.
It refuses to draw a wrong total.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from scripts.pictures import cast
from scripts.pictures.cast import Condition, Pane

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docs" / "pictures" / "recording.svg"
LINES = 541_909
KILLS = 5
SIZE_MAX = 300_000
FILES = {
    "bill.py": """\
import json
from decimal import Decimal
from txlog.functions import Output

def bill(order):
    line = json.loads(order.value)
    price, count = line["UnitPrice"], int(line["Quantity"])
    number = str(order.message_id.index)
    return Output(str(Decimal(price) * count), key=number)
""",
    "work": """\
exec txlog run bill.py:bill --input orders --output bills \\
     -s billing -q
""",
    "totals.sql": """\
SELECT count(*) AS bills,
       max(n) - count(DISTINCT n) AS lost,
       count(*) - count(DISTINCT n) AS doubled,
       sum(pounds) AS pounds
FROM (SELECT decode(key)::INT AS n,
      decode(value)::DECIMAL(12,3) AS pounds FROM bills)
""",
    "inputrc": "set enable-bracketed-paste off\n",
}
MARKS = {
    r"(?<=  )Killed(?=  )": "red",
    r"(?<=\d  )(0 +0)(?= +\d)|(?<=\d   )(0 +0)(?= +\d)": "green",
}
PROMPT = r"\[\e[32m\]$\[\e[0m\] "


def write(lines: int = LINES, kills: int = KILLS, file: Path = FILE) -> list[Path]:
    """Record the commands over the first lines of the invoices.

    raises: RuntimeError, a total is wrong or the drawing too large
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        environment = _prepare(folder, lines)
        left = Pane("a worker, killed again and again", folder, environment)
        right = Pane("its totals, meanwhile", folder, environment)
        try:
            cast.record([left, right], _opening(left, right))
            recorded = cast.record([left, right], _steps(left, right, lines, kills))
        finally:
            left.close()
            right.close()
        _check(right.text(), lines)
    drawing = cast.animated(recorded, MARKS)
    if len(drawing) > SIZE_MAX:
        raise RuntimeError(f"the recording has {len(drawing)} B, more than {SIZE_MAX}")
    file.write_text(drawing, encoding="utf-8")
    return [file]


def totals(text: str) -> list[tuple[int, ...]]:
    """The lines of totals on a screen: bills, lost, doubled, thousandths of a pound."""
    rows = re.findall(r"^(\d+) +(\d+) +(\d+) +(-?\d+)\.(\d{3})$", text, re.MULTILINE)
    return [
        (int(bills), int(lost), int(doubled), int(pounds + part))
        for bills, lost, doubled, pounds, part in rows
    ]


def _prepare(folder: Path, lines: int) -> dict[str, str]:
    """Make the store with the orders, and return the environment of the shells."""
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "work").chmod(0o755)
    (folder / "bin").mkdir()
    (folder / "bin" / "txlog").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m txlog "$@"\n')
    (folder / "bin" / "txlog").chmod(0o755)
    home = folder / "home"  # without the caller's settings
    home.mkdir()
    environment = {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src"),
        "HOME": str(home), "INPUTRC": str(folder / "inputrc"), "PS1": PROMPT,
        "TERM": "xterm-256color", "LANG": "C.UTF-8", "TXLOG_STORE": str(folder / "shop"),
    }  # fmt: skip
    invoices = f'"{sys.executable}" "{ROOT}/examples/invoices.py" {lines}'
    fill = (
        "txlog init shop -q && txlog topic create orders bills -q && "
        "txlog sub create billing -t orders -q && "
        f"{invoices} | txlog produce orders --in envelope --txn --txn-timeout 30m -q"
    )
    subprocess.run(["sh", "-ec", fill], cwd=folder, env=environment, check=True)
    return environment


def _prompt(text: str) -> bool:
    return text.rstrip().endswith("$")


def _has_heading(text: str, heading: str) -> bool:
    return re.search(f"^ *{heading} *$", text, re.MULTILINE) is not None


def _opening(left: Pane, right: Pane) -> Iterator[tuple[Pane, str, Condition]]:
    """What is on the screens when the recording begins: the files."""
    for pane in (left, right):
        yield pane, "clear\n", lambda text: text.strip() == "$"
    yield left, "cat bill.py work\n", _prompt
    yield right, "cat totals.sql\n", _prompt


def _steps(
    left: Pane, right: Pane, lines: int, kills: int
) -> Iterator[tuple[Pane, str, Condition]]:
    def beyond(bills: int) -> Condition:
        return lambda text: any(row[0] > bills for row in totals(text))

    yield left, "./work &\n", lambda text: "[1]" in text
    loop = 'while sleep 0.3; do txlog query -q "$(cat totals.sql)" |\ntail -n 1; done\n'
    yield right, loop, beyond(0)
    for kill in range(kills):
        seen = max(row[0] for row in totals(right.text()))
        yield right, "", beyond(min(max(seen, (kill + 1) * lines // (kills + 2)), lines - 1))
        yield (
            left,
            "kill -9 $!; wait\n",
            lambda text: "Killed" in text.split("kill -9")[-1] and _prompt(text),
        )
        yield left, "./work &\n", lambda text: True
    yield left, "wait\n", lambda text: "Done" in text
    yield right, "", lambda text: bool(totals(text)) and totals(text)[-1][0] == lines
    yield right, "\x03", _prompt
    yield (
        right,
        'txlog query -q "$(cat totals.sql)"\n',
        lambda text: _has_heading(text, "bills +lost +doubled +pounds") and _prompt(text),
    )
    yield (
        right,
        "txlog query -q 'SELECT count(*) AS orders FROM orders'\n",
        lambda text: _has_heading(text, "orders") and _prompt(text),
    )


def _check(text: str, lines: int) -> None:
    rows = totals(text)
    if not rows or rows[-1][0] != lines or any(row[1:3] != (0, 0) for row in rows):
        raise RuntimeError(f"the totals are not exact:\n{text}")

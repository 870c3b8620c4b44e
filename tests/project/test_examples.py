"""The examples run as they are written, and their totals match the invoices of the file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pyarrow.parquet as pq

import txlog
from scripts import ready
from tests.source_tree import ROOT, SOURCE

LINES = 12_000


def test_the_commands_of_the_example_give_the_totals_of_the_file(tmp_path: Path) -> None:
    """Each day's lines and value, the returns and the lines without a price, computed again."""
    text = (ROOT / "examples" / "README.md").read_text()
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    commands = re.findall(r"^\$ (.*)$", "".join(blocks), re.MULTILINE)
    store = str(tmp_path / "store")
    script = "\n".join(commands).replace("/tmp/txlog-example", store)
    assert store in script
    ready.tool(tmp_path / "txlog")
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PATH", os.defpath)])
    done = subprocess.run(
        ["sh", "-e", "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={"PATH": path, "PYTHONPATH": str(SOURCE)},
    )
    assert done.returncode == 0, done.stderr
    assert "EXCEPTION" in done.stdout

    lines: Counter[str] = Counter()
    values: dict[str, Decimal] = {}
    returns = bad = 0
    for row in pq.read_table(ROOT / "data" / "online-retail.parquet").slice(0, LINES).to_pylist():
        worth = Decimal(row["UnitPrice"]) * int(row["Quantity"])
        if Decimal(row["UnitPrice"]) <= 0:
            bad += 1
        elif row["InvoiceNo"].startswith("C"):
            returns += 1
        else:
            day = row["InvoiceDate"][:10]
            lines[day] += 1
            values[day] = values.get(day, Decimal(0)) + worth
    last = max(values)
    expected = [
        {"day": day, "lines": lines[day], "value": str(values[day])}
        for day in sorted(values)
        if day != last
    ]
    with txlog.open(store) as client:
        assert [json.loads(m.value or b"") for m in client.reader("days")] == expected
        assert sum(1 for _ in client.reader("returns")) == returns > 0
        assert sum(1 for _ in client.reader("bad")) == bad > 0
        backlogs = {row["subscription"]: row["backlog"] for row in client.subscriptions()}
        assert backlogs == {"revenue": 0, "days": lines[last], "report": 0}
    assert len(expected) > 2

"""Real refunds, 14 event days later: each once, not early, at the first step that may
deliver it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as pq
import pytest

from tests.source_tree import ROOT

pytestmark = pytest.mark.usefixtures("quick_disk")
LINES = 30_000
STEP_HOURS = 12


def example() -> ModuleType:
    """The module examples/refunds.py, which is in no package."""
    spec = importlib.util.spec_from_file_location("refunds", ROOT / "examples" / "refunds.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["refunds"] = module  # dataclasses looks here for annotations
    spec.loader.exec_module(module)
    return module


@pytest.mark.deep
def test_refunds_come_fourteen_days_later(tmp_path: Path) -> None:
    """Sent with a scaled clock, the store opened anew every 15 steps; counted from the file."""
    refunds = example()
    step = timedelta(hours=STEP_HOURS)
    seen = refunds.replay(
        str(tmp_path / "store"), refunds.lines(LINES), step // timedelta(milliseconds=1), 15
    )
    rows = pq.read_table(ROOT / "data" / "online-retail.parquet").slice(0, LINES).to_pylist()
    times = [datetime.fromisoformat(row["InvoiceDate"]).replace(tzinfo=UTC) for row in rows]
    assert seen.got == Counter(
        " ".join(
            (str(n), row["InvoiceNo"], row["StockCode"], row["Quantity"], row["UnitPrice"])
        ).encode()
        for n, row in enumerate(rows)
    )
    back = [at for at, row in zip(times, rows, strict=True) if int(row["Quantity"]) < 0]
    assert (seen.refunds, seen.early) == (len(back), 0)
    assert seen.late_ms <= step // timedelta(milliseconds=1)
    steps = (times[-1] - times[0]) // step + 1
    sent_by = times[0] + steps * step
    assert seen.waiting == sum(at + timedelta(days=14) > sent_by for at in back) > 0
    assert seen.rows_read == LINES  # no refund was read before its time


@pytest.mark.slow
def test_the_example_prints_what_its_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    """The whole year: 541,909 lines, each once, and no row read in vain."""
    refunds = example()
    with pytest.raises(SystemExit, match="0"):
        refunds.main([])
    assert capsys.readouterr().out in (ROOT / "examples" / "README.md").read_text()

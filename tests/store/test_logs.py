"""The events of a store in the standard `logging` (base/logs)."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine_kit import Bench
from txlog.errors import ExpiredTransaction

pytestmark = pytest.mark.store({"t": 1}, [("t", "s")])


def told(caplog: pytest.LogCaptureFixture, area: str) -> list[tuple[str, str]]:
    """(level, text) of the events of one logger."""
    return [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.name == f"txlog.{area}"
    ]


def test_opening_fencing_and_checkpoints_are_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Each logger names the event and its object."""
    caplog.set_level(logging.INFO, "txlog")
    client = bench.another()
    [(level, opened)] = told(caplog, "store")
    assert level == "INFO" and opened.startswith(f"opened {bench.path}: its log ends at LSN ")

    client.connect("key")
    old = client.transaction(key="key")
    number = old.id
    client.connect("key")
    with pytest.raises(ExpiredTransaction):
        old.commit()
    fencing = told(caplog, "fencing")
    assert ("INFO", f"key key has epoch 2: that fenced transaction {number}") in fencing
    assert any(level == "WARNING" and str(number) in text for level, text in fencing)

    client.checkpoint()
    [(_, written)] = told(caplog, "checkpoint")
    assert written.startswith("checkpoint 1 at LSN ")


def test_a_recovery_is_logged_as_a_warning(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """What `reports` keeps is in the log, too."""
    open_txn = bench.client.transaction()
    number = open_txn.id
    bench.close()
    bench.clock.reboot("next")
    caplog.set_level(logging.INFO, "txlog")
    bench.reopen().create_topic("u")
    reports = bench.client.reports()
    assert any("aborted 1 open transaction" in line for line in reports), (number, reports)
    assert [("WARNING", line) for line in reports] == told(caplog, "recovery")
    assert bench.client.reports() == []


def test_the_log_is_silent_by_default(tmp_path: Path) -> None:
    """Without a handler, even warnings print nothing, and `import txlog` loads no `logging`."""
    program = f"""
import sys
import txlog
assert "logging" not in sys.modules
import logging
from txlog.base.logs import log_event
log_event("recovery", "warning", "unseen")
path = {str(tmp_path / "store")!r}
txlog.init(path)
txlog.open(path).close()
logging.getLogger("txlog").addHandler(logging.StreamHandler(sys.stdout))
log_event("recovery", "warning", "seen %d", 1)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("seen 1\n", "")

"""Messages on stderr and in log files: no exit code depends on whether they can be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import txlog
from txlog.cli.line.dispatch import as_ours
from txlog.cli.main import main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = str(tmp_path / "store")
    txlog.init(path)
    return path


@pytest.mark.parametrize("where", ["2>/dev/full", "2>&-"])
def test_change_is_made_though_its_summary_cannot_be_printed(store: str, where: str) -> None:
    """spec/cli 11.7: any code but 0 means that nothing happened. A noun alone still ends with 2."""
    script = (
        f'"$0" -m txlog topic create orders {where}; echo $?; "$0" -m txlog topic {where}; echo $?'
    )
    done = subprocess.run(
        ["sh", "-c", script, sys.executable],
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": os.defpath, "TXLOG_STORE": store},
        capture_output=True,
        timeout=120,
    )
    assert done.stdout == b"0\n2\n", done.stderr
    with txlog.open(store) as client:
        assert [row["topic"] for row in client.topics()] == ["orders"]


def test_impossible_log_file_is_refused_before_any_work(
    store: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A bad --log-file is refused at once, not at the first warning, when all data is stored.

    The warning here is about the last line, which has no newline.
    """
    source = tmp_path / "lines"
    source.write_bytes(b"one")
    line = ["-S", store, "produce", "orders", str(source), "--create", "--log-file"]
    assert main([*line, str(tmp_path / "nowhere" / "log")]) == 1
    assert "nowhere/log: No such file or directory" in capfd.readouterr().err
    with txlog.open(store) as client:
        assert client.topics() == []
    log = tmp_path / "log"
    assert main([*line, str(log)]) == 0
    assert log.read_text().startswith("warning: ")
    assert "warning" not in capfd.readouterr().err


def test_long_words_are_cut_in_errors(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """spec/cli 5: one line that a person can read."""
    assert main(["sub", "backlog", "billing", "--top", "x" * 9000]) == 2
    err = capfd.readouterr().err
    assert "'--top'" in err and "valid int" in err
    assert len(err) < 300


def test_a_library_that_memory_has_no_room_for_is_no_bug() -> None:
    """spec/cli 5: 504 and exit 5 below a small `ulimit -v`; a missing library stays a bug."""
    text = "libarrow.so.2600: failed to map segment from shared object"
    assert as_ours(ImportError(text)).exit == 5
    assert as_ours(ImportError("libarrow.so.2600: cannot open shared object file")).exit == 1

"""Owns how a scenario writes its section of RESULTS.md: in the place of the one before."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "RESULTS.md"


def command() -> str:
    """The command that runs, for the section that it writes."""
    return f"`{' '.join(sys.argv)}`"


def machine() -> str:
    """Processors, kernel and Python."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return (
        f"{os.cpu_count()} cores, {next(models, platform.machine())}, {platform.system()} "
        f"{platform.release()}, Python {platform.python_version()}"
    )


def head(text: str, path: Path = RESULTS) -> None:
    """Replace the text before the first section."""
    _, mark, sections = path.read_text().partition("\n## ")
    path.write_text(f"{text.rstrip()}\n{mark}{sections}")


def put(heading: str, lines: Sequence[str], path: Path = RESULTS) -> None:
    """Replace the section with this heading, `## …`, or add it behind the others."""
    before, _, behind = path.read_text().partition(f"{heading}\n")
    _, mark, sections = behind.partition("\n## ")
    text = "\n".join([heading, "", *lines, ""])
    path.write_text(f"{before.rstrip()}\n\n{text}" + (f"\n## {sections}" if mark else ""))

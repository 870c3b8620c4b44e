"""Owns the job compact as a program for spark-submit."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from txlog.cli.main import main as txlog


def main(argv: Sequence[str]) -> int:
    """Run the job on Spark; returns the exit code. Arguments as of `txlog job compact`."""
    return txlog(["job", "compact", "--engine", "spark", *argv])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Checks histories: `python -m tests.history FILE...` prints what they break; 1 if anything."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.history.checker import check
from tests.history.events import read_file


def main(words: list[str] | None = None) -> int:
    """Print the findings of each file of JSON lines."""
    parser = argparse.ArgumentParser(prog="python -m tests.history", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    count = 0
    for path in parser.parse_args(words).files:
        events = read_file(path)
        findings = check(events)
        count += len(findings)
        print(f"{path}: {len(events)} events, {len(findings)} findings")
        for finding in findings:
            print(f"  {finding}")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())

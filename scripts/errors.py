"""Make the table of exit codes in README.md anew, or say that it is not that of errors.py.

usage: python -m scripts.errors [--check]
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from pathlib import Path

from txlog.errors import TxlogError, error_table

README = Path(__file__).resolve().parent.parent / "README.md"
_TABLE = re.compile(r"(<!-- made from [^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> int:
    """Write the table; with --check write nothing and end with 1 when it differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare")
    check = parser.parse_args().check
    text = readme()
    if text == README.read_text(encoding="utf-8"):
        return 0
    print(f"{'differs' if check else 'wrote'}: README.md")
    if not check:
        README.write_text(text, encoding="utf-8")
    return 1 if check else 0


def readme() -> str:
    """The text that README.md should have.

    Raises:
        ValueError: it has no place for the table, or more than one
    """
    text = README.read_text(encoding="utf-8")
    made, found = _TABLE.subn(lambda match: match[1] + table() + match[2], text)
    if found != 1:
        raise ValueError(f"README.md has {found} places for the table of exit codes")
    return made


def table() -> str:
    """A row for each exit code: its kinds, whether to try again, its codes and classes."""
    rows = ["| exit | kind | again | errors |", "|---|---|---|---|", "| 0 | done | | |"]
    for code, group in itertools.groupby(error_table(), key=lambda error: error.exit):
        errors = list(group)
        kinds = ", ".join(dict.fromkeys(error.kind for error in errors))
        again = "yes" if all(error.retryable for error in errors) else ""
        rows.append(f"| {code} | {kinds} | {again} | {', '.join(map(_named, errors))} |")
    return "".join(f"{row}\n" for row in rows)


def _named(error: type[TxlogError]) -> str:
    codes = "/".join(str(code) for code in error.codes)
    return f"{codes} {error.__name__}"


if __name__ == "__main__":
    sys.exit(main())

"""Make the man pages anew in man/, or say which differ from what the commands declare.

usage: python -m scripts.man [--check]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from txlog.cli.help import man_pages

MAN = Path(__file__).resolve().parent.parent / "man"


def main() -> int:
    """Write the pages; with --check write nothing and end with 1 when one differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare")
    check = parser.parse_args().check
    changed = differences()
    for path, text in changed.items():
        print(f"{'differs' if check else 'wrote'}: man/{path.relative_to(MAN)}")
        if check:
            continue
        if text is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return 1 if check and changed else 0


def differences() -> dict[Path, str | None]:
    """The files that are not as they should be, with their text; None: it should not be there."""
    wanted = {
        MAN / f"man{name[-1]}" / name: man_pages.mdoc(name) for name in man_pages.page_names()
    }
    found: dict[Path, str | None] = {
        path: None for path in sorted(MAN.glob("*/*")) if path not in wanted
    }
    for path, text in wanted.items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            found[path] = text
    return found


if __name__ == "__main__":
    sys.exit(main())

"""Write one picture of the documents, or all: `python -m scripts.pictures [NAME…]`.

NAME is a module of this package with a function `write`. It writes files below docs/pictures and
returns their paths.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def main() -> None:
    """Write the pictures that are named; without names all of them."""
    names = sorted(
        file.stem for file in HERE.glob("[a-z]*.py") if "\ndef write(" in file.read_text("utf-8")
    )
    parser = argparse.ArgumentParser(prog="python -m scripts.pictures", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*names, []], metavar="NAME")
    for name in parser.parse_args().names or names:
        for path in importlib.import_module(f"scripts.pictures.{name}").write():
            print(f"wrote {path.relative_to(ROOT)}, {path.stat().st_size:,} B")


if __name__ == "__main__":
    main()

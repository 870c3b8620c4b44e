"""Owns `python -m txlog`, which equals the `txlog` command."""

from __future__ import annotations

import sys

from txlog.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

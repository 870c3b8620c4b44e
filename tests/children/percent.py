"""A command of `txlog transform` that reads and writes %-formats."""

from __future__ import annotations

import sys

records = sys.stdin.buffer.read()
assert records.endswith(b"k \0\0\0\3x y1:0;"), records
sys.stdout.buffer.write(b"kk \0\0\0\4a;\nb77;")

"""Produce a file in transactions of four, and die at a flush: STORE FILE NTH."""

from __future__ import annotations

import os
import sys

from tests.children import dying
from txlog.cli.main import main

path, lines, nth = sys.argv[1:]
dying.around(os, "fdatasync", "flush")
dying.at("flush", int(nth))
sys.argv = ["txlog", "-S", path, "produce", "orders", "--txn-every", "4", "--batch", "4", lines]
main()

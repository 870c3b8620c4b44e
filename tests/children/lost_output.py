"""Print as a function of a user does, then run a command of txlog."""

from __future__ import annotations

import sys

from txlog.cli.main import script

print("of a function")
sys.argv[0] = "txlog"
script()

"""Restore a copy, and die in a call of it: COPY DESTINATION NTH."""

from __future__ import annotations

import os
import sys

from tests.children import dying
from txlog import restore

is_there = os.path.isdir(sys.argv[2])
dying.begin(int(sys.argv[3]))
restore(sys.argv[1], sys.argv[2], replace=is_there)

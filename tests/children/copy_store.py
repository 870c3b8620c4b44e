"""Copy a store, and die in a call of it: STORE DESTINATION NTH."""

from __future__ import annotations

import sys

import txlog
from tests.children import dying

with txlog.open(sys.argv[1]) as client:
    dying.begin(int(sys.argv[3]))
    client.copy(sys.argv[2])

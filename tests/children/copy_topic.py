"""Copy a topic to another store, and die in a call of it: STORE OTHER TOPIC NTH."""

from __future__ import annotations

import sys

import txlog
from tests.children import dying

with txlog.open(sys.argv[1]) as client, txlog.open(sys.argv[2]) as other:
    dying.begin(int(sys.argv[4]))
    txlog.copy_topic(client, other, sys.argv[3])

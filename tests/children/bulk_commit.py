"""Commit a staged batch, and die in a call of it: STORE STAGED NTH."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import txlog
from tests.children import dying

plan, staged = pickle.loads(Path(sys.argv[2]).read_bytes())
client = txlog.open(sys.argv[1])
client.checkpoint_automatically = False
bulk = client.bulk_of(plan)
dying.begin(int(sys.argv[3]))
answer = bulk.commit(staged)
dying.end(answer["messages"], answer["already"])
client.close()

"""Stage a value as a task of a batch: PLAN VALUE TASK ANSWERS; the files are pickles."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pyarrow as pa

from txlog.client.sending.bulk import stage

plan, value, task, answers = sys.argv[1:]
rows = pa.table({"value": [value.encode()]})
staged = stage(pickle.loads(Path(plan).read_bytes()), [rows], int(task))
Path(answers).write_bytes(pickle.dumps(staged))

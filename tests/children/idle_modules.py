"""Send a message; print what has run that it does not need."""

from __future__ import annotations

import sys
import tempfile

import txlog
from txlog.base.startup.lazy import LazyModule

with tempfile.TemporaryDirectory() as folder:
    txlog.init(folder)
    with txlog.open(folder) as client:
        client.create_topic("orders")
        client.producer("orders").send(b"hello")
ran = {name for name, module in sys.modules.items() if type(module) is not LazyModule}
idle = """
client.consuming.consumer engine.relation.build client.admin engine.upkeep.space.compact
engine.storage.bucket.file engine.decide.transactions.keys
""".split()
print(sorted(ran & {"pyarrow.compute", "pyarrow.parquet", *(f"txlog.{name}" for name in idle)}))

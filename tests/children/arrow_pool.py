"""Run a command of txlog; print Arrow's memory pool, and whether DuckDB is loaded."""

from __future__ import annotations

import sys

from txlog.cli.main import main

assert main(sys.argv[1:]) == 0
pool = sys.modules["pyarrow"].default_memory_pool().backend_name
print(pool, "duckdb" in sys.modules)

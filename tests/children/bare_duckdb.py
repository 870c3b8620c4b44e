"""DuckDB without txlog: answers lines of JSON, [script or database, folder, query], with rows."""

from __future__ import annotations

import json
import os
import sys

import duckdb

assert not any(name.startswith(("txlog", "pyarrow")) for name in sys.modules)
for line in sys.stdin:
    what, folder, query = json.loads(line)
    os.chdir(folder)
    is_file = what.endswith(".duckdb")
    with duckdb.connect(what if is_file else ":memory:", read_only=is_file) as bare:
        if not is_file:
            bare.execute(what)
        bare.execute("SET TimeZone = 'UTC'")
        rows = bare.execute(f"SELECT to_json(q)::VARCHAR FROM ({query}) AS q").fetchall()
    print(json.dumps([json.loads(row) for (row,) in rows]), flush=True)

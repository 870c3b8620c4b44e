"""Open a query, and read its rows once a line comes: STORE SQL."""

from __future__ import annotations

import sys

import txlog
from txlog.lake.sql.client_query import Query

with txlog.open(sys.argv[1]) as client, Query(client, sys.argv[2]) as query:
    print("ready", flush=True)
    sys.stdin.readline()
    print(query.rows().read_all().to_pylist(), flush=True)

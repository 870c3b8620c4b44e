"""Use more files than may be open: STORE COUNT of messages; prints how many were open at most."""

from __future__ import annotations

import os
import sys

import txlog
from txlog.lake.sql.client_query import Query

path, count = sys.argv[1], int(sys.argv[2])
most = 0


def check(actual: object, expected: object) -> None:
    """Compare a result, and count the open files."""
    global most
    most = max(most, len(os.listdir("/proc/self/fd")))
    assert actual == expected, (actual, expected)


with txlog.open(path) as client:
    check(sum(table.num_rows for table in client.read("t")), count)
    with client.consumer("t", "s") as consumer:
        received = 0
        while rows := consumer.receive_batch(10, timeout_ms=0).num_rows:
            received += rows
        check(received, count)
    for _ in range(3):
        client.producer("t").send(b"more")
    client.checkpoint(roll_all=True)
    client.admin.compact("t")
    check(sum(table.num_rows for table in client.read("t")), count + 3)
    with Query(client, "SELECT sum(octet_length(value)) AS size FROM t") as query:
        [size] = query.rows().read_all()["size"].to_pylist()
    check(int(size) > count, True)
check(txlog.verify(path, deep=True)["problem_list"], [])
print(most)

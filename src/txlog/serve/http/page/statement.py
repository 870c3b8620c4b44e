"""Owns the child process that runs the SELECTs of the live page, with a limit on its memory.

A process that serves other requests cannot limit the memory of one statement: DuckDB counts the
memory of its operators, but not the results of functions (`repeat('a', 4000000000)` takes 4 GB). So
each statement runs in a child process. The kernel gives it no more memory than allowed, and the
server can kill it at any time. Such a process takes a second to start, so it runs one statement
after another, of any store, until it has been idle for a while. A question and its answer are a
line of JSON each:

    {path, sql, memory_bytes}  ->  {columns, rows, is_cut}  or  {error, message, code, hint}
"""

from __future__ import annotations

import resource
import signal
import sys
from pathlib import Path
from typing import Any, Final

import orjson

from txlog.client.open import open_store
from txlog.errors import SqlError, TxlogError
from txlog.lake.sql.client_query import Query
from txlog.serve.http.page.browser import ROWS_MAX, cell

ANSWER_BYTES_MAX: Final = 16 << 20
READY: Final = b"ready\n"  # the first line of a process
# The kernel ends a process that waits or works longer; the server would have killed it by then.
IDLE_SECONDS, BUSY_SECONDS = 60, 60
KEPT_BYTES_MAX: Final = 256 << 20  # leaked memory: beyond it a new process starts


def main() -> None:
    """Answer the questions on standard input, until it ends."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    begun = _data_bytes()
    while _data_bytes() < begun + KEPT_BYTES_MAX:
        signal.alarm(IDLE_SECONDS)
        question = sys.stdin.buffer.readline()
        if not question:
            return
        signal.alarm(BUSY_SECONDS)
        sys.stdout.buffer.write(_answer(orjson.loads(question)) + b"\n")
        sys.stdout.buffer.flush()


def _answer(question: dict[str, Any]) -> bytes:
    try:
        return _run(question["path"], question["sql"], question["memory_bytes"])
    except MemoryError:
        return _refused(SqlError("it takes more memory than a query of the page may"))
    except TxlogError as error:
        return _refused(error)
    finally:
        _limit(resource.RLIM_INFINITY)


def _refused(error: TxlogError) -> bytes:
    name = type(error).__name__
    fields = {"error": name, "message": error.message, "code": error.code, "hint": error.hint}
    return orjson.dumps(fields)


def _run(path: str, sql: str, memory_bytes: int) -> bytes:
    """The first rows of a SELECT as JSON. Raises SqlError, and the errors of opening a store."""
    with (
        open_store(path, read_only=True) as client,
        Query(client, sql, memory_bytes=memory_bytes) as query,
    ):
        _limit(_data_bytes() + memory_bytes)
        batches = query.rows()
        names = [str(at) for at in range(len(batches.schema))]
        rows: list[list[object]] = []
        for batch in batches:
            first_rows = batch.slice(0, ROWS_MAX + 1 - len(rows)).rename_columns(names)
            rows += [[cell(value) for value in row.values()] for row in first_rows.to_pylist()]
            if len(rows) > ROWS_MAX:
                break
        answer = orjson.dumps(
            {
                "columns": [
                    {"name": column.name, "type": str(column.type)} for column in batches.schema
                ],
                "rows": rows[:ROWS_MAX],
                "is_cut": len(rows) > ROWS_MAX,
            }
        )
    if len(answer) > ANSWER_BYTES_MAX:
        raise SqlError(f"the answer has {len(answer)} bytes, at most {ANSWER_BYTES_MAX} are sent")
    return answer


def _limit(data_bytes: int) -> None:
    """Limit the memory of this process; an allocation beyond it fails."""
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, resource.RLIM_INFINITY))


def _data_bytes() -> int:
    """The anonymous memory of this process, which RLIMIT_DATA limits."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmData:")).split()[1]) << 10


if __name__ == "__main__":
    main()

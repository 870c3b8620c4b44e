"""Owns the measurement of formats: whole commands beside DuckDB that copies the same columns.

    python -m bench.formats [--messages 1000000] [--tries 3]
        [--only consume,export,query,produce,import]

A store in memory of messages of 100 bytes with keys, two properties and event times, half of them
in transactions of 100. Each command is a process of its own and writes into a file; its peer is
DuckDB's COPY of the same columns, from a Parquet file made of the command's own output, into the
same form. The peer of `produce` and of `import` is DuckDB's COPY of the columns of their input to
Parquet. In turns, medians in seconds, of the clock and of the processor.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa

import txlog
from bench.query import processor_seconds

_BATCH = 10_000
_TEXT = "header false, delimiter '\\x01', quote '', escape ''"
CONSUME = {
    "lines": f"SELECT value FROM records) TO '{{out}}' (FORMAT csv, {_TEXT}",
    "%v\\n": f"SELECT value FROM records) TO '{{out}}' (FORMAT csv, {_TEXT}",
    "%k:%v\\n": "SELECT key, value FROM records) TO '{out}' (FORMAT csv, delimiter ':'",
    "json": "FROM records) TO '{out}' (FORMAT json",
    "tsv": "FROM records) TO '{out}' (FORMAT csv, delimiter '\t'",
    "csv": "FROM records) TO '{out}' (FORMAT csv",
    "envelope": "FROM envelopes) TO '{out}' (FORMAT json",
}
EXPORT = {
    "ndjson": "FROM envelopes) TO '{out}' (FORMAT json",
    "csv": "FROM records) TO '{out}' (FORMAT csv",
}
QUERY = {
    "ndjson": "FROM rows) TO '{out}' (FORMAT json",
    "json": "FROM rows) TO '{out}' (FORMAT json, ARRAY true",
    "tsv": "FROM rows) TO '{out}' (FORMAT csv, delimiter '\t'",
    "csv": "FROM rows) TO '{out}' (FORMAT csv",
}
_ENVELOPE = (
    "FROM read_json('{file}', format = 'newline_delimited', columns = {{key: 'VARCHAR',"
    " key_encoding: 'VARCHAR', value: 'VARCHAR', value_encoding: 'VARCHAR',"
    " properties: 'MAP(VARCHAR, VARCHAR)', event_time: 'BIGINT', deliver_at: 'BIGINT'}})"
)
_LINES = (
    "FROM read_csv('{file}', columns = {{value: 'VARCHAR'}}, header = false, delim = '\\x01',"
    " quote = '', escape = '', auto_detect = false)"
)
PRODUCE = {
    "lines": _LINES,
    "ndjson": _LINES,
    "envelope": _ENVELOPE,
    "tsv": "FROM read_csv('{file}', delim = '\t')",
    "csv": "FROM read_csv('{file}')",
    "%k:%v\\n": "FROM read_csv('{file}', delim = ':', header = false)",
}
Took = tuple[float, float]


def fill(path: str, messages: int) -> None:
    """Make the store."""
    rng = random.Random(7)
    txlog.init(path, durability="os", free_bytes_min=0)
    with txlog.open(path) as client:
        client.create_topic("t", 1)
        producer = client.producer("t")
        number = 0
        while number < messages:
            in_txn = number // _BATCH % 2 == 1
            size = min(100 if in_txn else _BATCH, messages - number)
            pairs = [("lang", "en"), ("till", str(rng.randrange(9)))]
            times = [1_795_165_924_117 + number + at for at in range(size)]
            rows = pa.table(
                {
                    "key": [b"key-%d" % rng.randrange(1000) for _ in range(size)],
                    "value": [rng.randbytes(50).hex().encode() for _ in range(size)],
                    "properties": pa.array([pairs] * size, pa.map_(pa.string(), pa.string())),
                    "event_time": pa.array(times, pa.timestamp("ms", "UTC")),
                }
            )
            if in_txn:
                with client.transaction() as txn:
                    producer.send_batch(rows, txn=txn)
            else:
                producer.send_batch(rows)
            number += size
        client.checkpoint(roll_all=True)


def command(store: str, *words: str, out: str = os.devnull) -> Took:
    """Run one as a process of its own; returns what it took."""
    line = [sys.executable, "-m", "txlog", "-q", "--store", store, *words]
    with open(out, "wb") as sink:
        return timed(lambda: subprocess.run(line, stdout=sink, check=True))


def timed(run: Callable[[], object]) -> Took:
    """Seconds of the clock and of the processor, with those of processes waited for."""
    began, used = time.perf_counter(), processor_seconds()
    run()
    return time.perf_counter() - began, processor_seconds() - used


def medians(times: list[Took]) -> Took:
    """Of each part."""
    return statistics.median(one for one, _ in times), statistics.median(one for _, one in times)


def copies(base: Path) -> duckdb.DuckDBPyConnection:
    """A session with what the commands print as Parquet files."""
    session = duckdb.connect()
    for name in ("records", "envelopes", "rows"):
        lines, file = base / f"{name}.ndjson", base / f"{name}.parquet"
        session.execute(
            f"COPY (FROM read_json('{lines}', format = 'newline_delimited'))"
            f" TO '{file}' (FORMAT parquet, COMPRESSION zstd)"
        )
        session.execute(f"CREATE VIEW {name} AS FROM read_parquet('{file}')")
        lines.unlink()
    return session


def show(what: str, ours: list[Took], theirs: list[Took]) -> None:
    """A line of the table."""
    (clock, used), (other, other_used) = medians(ours), medians(theirs)
    print(
        f"{what:40.40}{clock:8.2f}{other:8.2f}{other / clock:7.2f}"
        f"{used:9.2f}{other_used:8.2f}{other_used / used:7.2f}",
        flush=True,
    )


def beside(
    store: str,
    words: list[str],
    base: Path,
    session: duckdb.DuckDBPyConnection,
    copy: str,
    tries: int,
) -> None:
    """A command and its peer in turns."""
    ours: list[Took] = []
    theirs: list[Took] = []
    out = base / "out"
    to_file = [word.replace("{out}", str(out)) for word in words]
    for _ in range(tries):
        ours.append(command(store, *to_file, out=str(base / "stdout")))
        theirs.append(timed(lambda: session.execute(f"COPY ({copy.format(out=out)})")))
        out.unlink(missing_ok=True)
    show(" ".join(words[:1] + words[2:]), ours, theirs)


def taken(
    store: str, base: Path, session: duckdb.DuckDBPyConnection, verb: str, form: str, tries: int
) -> None:
    """`produce` or `import` of a form into new topics, and its peer in turns."""
    inputs = {"ndjson": "%v{json}\\n"}
    options = ["--columns", "key,value,event_time"] if form in ("tsv", "csv") else []
    file = base / f"input.{form[:3].strip('%')}"
    command(store, "consume", "t", "-f", inputs.get(form, form), *options, out=str(file))
    ours: list[Took] = []
    theirs: list[Took] = []
    copy = f"COPY ({PRODUCE[form].format(file=file)}) TO '{base}/peer' (FORMAT parquet)"
    for turn in range(tries):
        topic = f"{verb}-{turn}"
        command(store, "topic", "create", topic)
        words = ["produce", topic, str(file)] if verb == "produce" else ["import", str(file), topic]
        ours.append(command(store, *words, "--in", form))
        command(store, "topic", "delete", topic, "-y")
        theirs.append(timed(lambda: session.execute(copy)))
    file.unlink()
    show(f"{verb} --in {form}", ours, theirs)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--only", default="consume,export,query,produce,import")
    args = parser.parse_args()
    only = args.only.split(",")
    with tempfile.TemporaryDirectory(prefix="txlog-bench-", dir="/dev/shm") as folder:
        store, base = f"{folder}/store", Path(folder)
        fill(store, args.messages)
        command(store, "consume", "t", "-f", "ndjson", out=str(base / "records.ndjson"))
        command(store, "consume", "t", "-f", "envelope", out=str(base / "envelopes.ndjson"))
        command(store, "query", "FROM t", "-f", "ndjson", out=str(base / "rows.ndjson"))
        session = copies(base)
        print(f"{'seconds: clock, processor':40}{'txlog':>8}{'peer':>8}{'ratio':>7}", end="")
        print(f"{'txlog':>9}{'peer':>8}{'ratio':>7}")
        for form, copy in CONSUME.items() if "consume" in only else ():
            beside(store, ["consume", "t", "-f", form], base, session, copy, args.tries)
        for form, copy in EXPORT.items() if "export" in only else ():
            words = ["export", "t", "{out}", "--to", form, "--force"]
            beside(store, words, base, session, copy, args.tries)
        for form, copy in QUERY.items() if "query" in only else ():
            beside(store, ["query", "FROM t", "-f", form], base, session, copy, args.tries)
        for form in PRODUCE if "produce" in only else ():
            taken(store, base, session, "produce", form, args.tries)
        for form in ("envelope", "csv") if "import" in only else ():
            taken(store, base, session, "import", form, args.tries)


if __name__ == "__main__":
    main()

"""The lines of the invoices as three tills send them, and the expected result.

This module owns the time and the till of each line, the stragglers, and the comparison of the
stored messages with DuckDB's answer over the file. examples/hourly_revenue.py has the story.

    arrival     the time of the invoice, and up to bound_ms later, drawn line by line from the seed
    till        by a digest of the invoice, so that an invoice goes through one till; till-2 sends
                nothing after its part of the arrivals; the others take its lines
    watermark   greatest event time sent - bound_ms: a till that follows its list keeps its promise
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from hourly_till import numbers

import txlog

DATA = Path(__file__).resolve().parent.parent / "data" / "online-retail.parquet"
HOUR_MS = 3_600_000
INSTANT = pa.timestamp("ms", "UTC")
TILLS = ("till-1", "till-2", "till-3")
TILL_2_UNTIL = 0.66  # of the arrivals: then it has nothing more to send
STRAGGLERS_UNTIL = 0.4  # they are lines of this part of the event time
STRAGGLERS_MAX = 50

# Random values are digests of the seed and the line number: the same on every machine.
_LINES = """
CREATE TEMP TABLE lines AS SELECT file_row_number AS line,
    epoch_ms(strptime(InvoiceDate, '%Y-%m-%d %H:%M:%S')) AS event_ms,
    event_ms + (md5_number_lower($3 || ':delay:' || line) % $4)::BIGINT AS arrival,
    md5_number_lower($3 || ':straggler:' || line) AS straggling,
    md5_number_lower(InvoiceNo) AS invoice, encode(InvoiceNo) AS key,
    encode(to_json({'Line': line, 'InvoiceNo': InvoiceNo, 'StockCode': StockCode,
        'Quantity': Quantity, 'UnitPrice': UnitPrice})::VARCHAR) AS value
FROM read_parquet($1, file_row_number = true) WHERE line < $2
"""
_STRAGGLERS = """
CREATE TEMP TABLE stragglers AS SELECT line FROM lines WHERE event_ms < $1
ORDER BY straggling LIMIT $2
"""
_SHARE = """
SELECT key, value, event_ms AS event_time, line, arrival FROM (
    SELECT *, CASE WHEN invoice % 3 <> 1 OR arrival < $2 THEN invoice % 3
                   ELSE 2 * (invoice // 3 % 2) END AS till
    FROM lines ANTI JOIN stragglers USING (line))
WHERE till = $1 ORDER BY arrival, line
"""
_HELD = """
SELECT key, value, event_ms AS event_time, line, arrival
FROM lines SEMI JOIN stragglers USING (line) ORDER BY line
"""
# Thousandths of a pound as integers: four lines of the file cost fractions of a penny.
_HOURS = """
SELECT event_ms - event_ms % 3600000 AS start, count(*) AS lines,
    sum((Quantity::BIGINT * (UnitPrice::DECIMAL(18, 3) * 1000)::BIGINT))::BIGINT AS thousandths
FROM (SELECT *, epoch_ms(strptime(InvoiceDate, '%Y-%m-%d %H:%M:%S')) AS event_ms
      FROM read_parquet($1, file_row_number = true) WHERE file_row_number < $2)
WHERE file_row_number NOT IN (SELECT line FROM late) GROUP BY start ORDER BY start
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """shares: by till its messages in order, with `line` and `arrival`; stragglers: as these.

    arrivals: of all lines, in order
    """

    lines: int
    bound_ms: int
    shares: dict[str, pa.Table]
    stragglers: pa.Table
    arrivals: pa.Array

    def arrival(self, part: float) -> int:
        """The instant before which this part of all lines arrives."""
        last: int = self.arrivals[round(part * (self.lines - 1))].as_py()
        return last + 1


def make_plan(lines: int, bound_ms: int, seed: int) -> Plan:
    """Plan the arrival of every line; the seed decides everything."""
    with duckdb.connect() as db:
        db.execute(_LINES, [str(DATA), lines, str(seed), bound_ms])
        arrivals = db.sql("SELECT arrival FROM lines ORDER BY arrival").to_arrow_table()["arrival"]
        count = len(arrivals)
        plan = Plan(count, bound_ms, {}, pa.table({}), arrivals.combine_chunks())
        early = plan.arrival(STRAGGLERS_UNTIL)
        db.execute(_STRAGGLERS, [early, min(STRAGGLERS_MAX, count // 100)])
        until = plan.arrival(TILL_2_UNTIL)
        shares = {
            till: _messages(db.sql(_SHARE, params=[number, until]))
            for number, till in enumerate(TILLS)
        }
        return replace(plan, shares=shares, stragglers=_messages(db.sql(_HELD)))


def _messages(found: duckdb.DuckDBPyRelation) -> pa.Table:
    table = found.to_arrow_table()
    at = table.column_names.index("event_time")
    return table.set_column(at, "event_time", table["event_time"].cast(INSTANT))


def write_share(share: pa.Table, path: Path) -> None:
    """Write a till's list to the file that its process reads."""
    pq.write_table(share, path)


@dataclass(frozen=True, slots=True)
class Found:
    """The final contents of the store, compared with the file; problems: none, or as text."""

    sent: int
    windows: int
    window_lines: int
    late: int
    stragglers_late: int
    successor_late: int
    thousandths: int
    problems: list[str]


def compare(
    client: txlog.Client, plan: Plan, names: tuple[str, str, str], successor: list[int]
) -> Found:
    """Compare the topics with the file.

    names:     the topics of the lines, of the windows and of the late lines
    successor: the lines that were sent for a dead till
    """
    sent, late = numbers(client, names[0]), numbers(client, names[2])
    windows = [json.loads(value) for value in _values(client, names[1])]
    given = {row["start"]: (row["lines"], thousandths(row["revenue"])) for row in windows}
    wanted = _wanted(plan.lines, late)
    stragglers = set(plan.stragglers["line"].to_pylist())
    problems = [*_each_once("sent", sent, range(plan.lines)), *_each_once("late", late, None)]
    if len(given) != len(windows):
        problems.append(f"{len(windows) - len(given)} windows were given twice")
    for start in sorted(given.keys() | wanted.keys()):
        if given.get(start) != wanted.get(start):
            problems.append(f"hour {start}: {given.get(start)}, the file has {wanted.get(start)}")
    if not stragglers <= set(late):
        problems.append(f"stragglers in time: {sorted(stragglers - set(late))}")
    if honest := set(late) - stragglers - set(successor):
        problems.append(f"late, of a till that kept its promise: {sorted(honest)[:20]}")
    return Found(
        len(sent),
        len(windows),
        sum(one[0] for one in given.values()),
        len(late),
        len(stragglers & set(late)),
        len(set(late) - stragglers),
        sum(one[1] for one in given.values()),
        problems,
    )


def _each_once(what: str, found: list[int], wanted: range | None) -> Iterator[str]:
    if len(set(found)) != len(found):
        yield f"{len(found) - len(set(found))} lines were {what} twice"
    if wanted is not None and set(found) != set(wanted):
        yield f"{len(set(wanted) ^ set(found))} lines were not {what}, or are none of the file"


def _wanted(lines: int, late: list[int]) -> dict[int, tuple[int, int]]:
    """The number and the value of the lines by hour, without the late lines."""
    with duckdb.connect() as db:
        db.register("late", pa.table({"line": pa.array(late, pa.int64())}))
        rows = db.execute(_HOURS, [str(DATA), lines]).fetchall()
    return {start: (count, worth) for start, count, worth in rows}


def thousandths(amount: str) -> int:
    """An amount in pounds as an integer. Raises if it is not exact."""
    whole, _, part = amount.partition(".")
    assert len(part) <= 3, amount
    worth = int(whole.lstrip("-") or 0) * 1000 + int(part.ljust(3, "0"))
    return -worth if amount.startswith("-") else worth


def _values(client: txlog.Client, topic: str) -> Iterator[bytes]:
    for table in client.read(topic):
        yield from table["value"].to_pylist()

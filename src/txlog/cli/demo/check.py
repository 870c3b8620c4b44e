"""Owns the proof: DuckDB compares the contents of the topics with the Parquet file itself.

The proof trusts no report of a worker. It compares the lines of the file with the lines in `orders`
as multisets, both ways, with every column as its original text. It compares the totals of each
invoice with totals computed from the file. Amounts are exact decimals.
"""

from __future__ import annotations

from typing import TypedDict

import pyarrow as pa

import txlog
from txlog.cli.demo.pipeline import INVOICE_TYPE, INVOICES, ORDERS, REFUNDS
from txlog.cli.demo.source import LINE_TYPE
from txlog.lake.sql.duck import Session


class Check(TypedDict):
    """One comparison of the proof."""

    name: str
    expected: int | str
    found: int | str
    ok: bool


_ORDERS = """
CREATE TEMP TABLE orders AS SELECT txn_most, txn_least, line.* FROM (
    SELECT txn_most, txn_least, from_json(decode(value), '$TYPE') AS line FROM order_rows)
""".replace("$TYPE", LINE_TYPE)
_OUTPUTS = """
CREATE TEMP TABLE outputs AS SELECT topic, txn_most, txn_least, total.* FROM (
    SELECT topic, txn_most, txn_least, from_json(decode(value), '$TYPE') AS total
    FROM output_rows)
""".replace("$TYPE", INVOICE_TYPE)

_EXPECTED_LINES = """
CREATE TEMP VIEW expected_lines AS SELECT InvoiceNo, StockCode, Description, Quantity, InvoiceDate,
    UnitPrice, CustomerID, Country FROM chosen
"""
_FOUND_LINES = """
CREATE TEMP VIEW found_lines AS SELECT InvoiceNo, StockCode, Description,
    Quantity::VARCHAR AS Quantity, InvoiceDate, UnitPrice, CustomerID, Country FROM orders
"""
_EXPECTED_TOTALS = """
CREATE TEMP TABLE expected_totals AS SELECT
    if(starts_with(InvoiceNo, 'C'), 'refunds', 'invoices') AS topic, InvoiceNo,
    count(*) AS Lines, sum(Quantity::BIGINT)::BIGINT AS Quantity,
    sum(Quantity::BIGINT * UnitPrice::DECIMAL(18,3))::DECIMAL(38,3) AS Value
FROM chosen GROUP BY InvoiceNo
"""
_FOUND_TOTALS = """
CREATE TEMP VIEW found_totals AS SELECT topic, InvoiceNo, Lines, Quantity,
    Value::DECIMAL(38,3) AS Value FROM outputs
"""

# Each query returns the same columns, once for the file and once for the store.
_SUMS = """
SELECT sum(Lines)::BIGINT AS lines, count(*) FILTER (topic = 'invoices') AS invoices,
    count(*) FILTER (topic = 'refunds') AS refunds, count(*) AS "invoices and refunds",
    count(DISTINCT InvoiceNo) AS "different invoices",
    sum(Quantity)::BIGINT AS quantity, sum(Value)::VARCHAR AS value FROM {totals}
"""
_DIFFERENCES = """
SELECT
    (SELECT count(*) FROM orders) AS "lines in orders",
    (SELECT count(DISTINCT (InvoiceNo, Line)) FROM orders) AS "different lines in orders",
    (SELECT count(DISTINCT (txn_most, txn_least)) FROM orders) AS "transactions of orders",
    (SELECT count(DISTINCT (txn_most, txn_least, InvoiceNo)) FROM orders)
        AS "invoices by transaction",
    (SELECT count(*) FROM (FROM expected_lines EXCEPT ALL FROM found_lines)) AS "lines missing",
    (SELECT count(*) FROM (FROM found_lines EXCEPT ALL FROM expected_lines)) AS "lines too many",
    (SELECT count(*) FROM (FROM expected_totals EXCEPT ALL FROM found_totals))
        AS "invoice totals missing",
    (SELECT count(*) FROM (FROM found_totals EXCEPT ALL FROM expected_totals))
        AS "invoice totals too many"
"""
_TRANSACTIONS = """
SELECT count(DISTINCT (txn_most, txn_least)) AS transactions FROM (
    SELECT txn_most, txn_least FROM orders UNION ALL SELECT txn_most, txn_least FROM outputs)
"""

_ORDER_COLUMNS = ["txn_most", "txn_least", "value"]
_OUTPUT_COLUMNS = ["topic", *_ORDER_COLUMNS]


def check_rows(
    session: Session, orders: pa.Table, outputs: pa.Table
) -> tuple[list[Check], dict[str, object]]:
    """Compare messages with the file.

    session: a session of source.open_source, with the view `chosen`
    orders:  txn_most, txn_least, value of all messages of `orders`
    outputs: topic, txn_most, txn_least, value of all messages of `invoices` and `refunds`
    returns: the comparisons, and the sums over the messages, including `transactions`
    """
    session.register("order_rows", orders)
    session.register("output_rows", outputs)
    for statement in (
        _ORDERS,
        _OUTPUTS,
        _EXPECTED_LINES,
        _FOUND_LINES,
        _EXPECTED_TOTALS,
        _FOUND_TOTALS,
    ):
        session.execute(statement)
    expected = session.row(_SUMS.format(totals="expected_totals"))
    sums = session.row(_SUMS.format(totals="found_totals"))
    checks = [compared(name, expected[name], sums[name]) for name in expected]
    expected_counts: dict[str, object] = {
        "lines in orders": expected["lines"],
        "different lines in orders": expected["lines"],
        "transactions of orders": expected["different invoices"],
        "invoices by transaction": expected["different invoices"],
    }
    differences = session.row(_DIFFERENCES)
    checks += [
        compared(name, expected_counts.get(name, 0), differences[name]) for name in differences
    ]
    return checks, sums | session.row(_TRANSACTIONS)


def check_store(client: txlog.Client, session: Session) -> tuple[list[Check], dict[str, object]]:
    """Compare the demo's topics with the file, as check_rows, and check that all work is done."""
    orders = _messages(client, [ORDERS]).select(_ORDER_COLUMNS)
    checks, sums = check_rows(session, orders, _messages(client, [INVOICES, REFUNDS]))
    # The backlog includes lines that an open transaction holds, which no consumer would receive.
    backlog = sum(row["backlog"] for row in client.subscriptions(ORDERS))
    unfinished = len(client.transactions())
    checks.append(compared("lines not acknowledged", 0, backlog))
    checks.append(compared("transactions not ended", 0, unfinished))
    return checks, sums


def compared(name: str, expected: object, found: object) -> Check:
    """Return one comparison; numbers stay numbers, everything else is compared as text."""
    expected_value, seen = _plain(expected), _plain(found)
    return Check(name=name, expected=expected_value, found=seen, ok=expected_value == seen)


def _plain(value: object) -> int | str:
    return value if isinstance(value, int) else str(value)


def _messages(client: txlog.Client, topics: list[str]) -> pa.Table:
    """Return topic, transaction and value of all committed messages of the topics."""
    parts = []
    for topic in topics:
        for rows in client.read(topic):
            with_topic = rows.set_column(
                rows.schema.get_field_index("topic"),
                "topic",
                pa.repeat(pa.scalar(topic), rows.num_rows),
            )
            parts.append(with_topic.select(_OUTPUT_COLUMNS))
    return pa.concat_tables(parts)

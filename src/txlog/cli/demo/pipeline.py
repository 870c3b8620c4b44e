"""Owns the two stages of the demo, as they run inside a worker that may be killed at any moment.

    load      the file        -> orders               one transaction for each invoice
    invoicing orders          -> invoices, refunds    one transaction for each batch: it produces a
                                 message for each invoice and acknowledges the lines it read

Stage 2 is a function (txlog.functions). Neither stage keeps state of its own. After a restart
`load` reads the committed invoices from the topic and continues with the others; `invoicing`
receives every line that no committed transaction has acknowledged. Both rely on one fact: a
transaction is visible as a whole or not at all. A transaction key aborts the open transaction of a
killed worker.

    1. All lines of an invoice are in one transaction.
    2. A line is acknowledged by the transaction that produced its invoice, and by no other.
    3. Amounts are exact decimals from the text of the file to the text of the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import Protocol

import pyarrow as pa

import txlog
from txlog import functions
from txlog.base.startup import compute as pc
from txlog.cli.demo.source import LINE_TYPE, messages, open_source
from txlog.lake.sql.duck import Session

LOAD = "load"
INVOICING = "invoicing"
STAGES = (LOAD, INVOICING)
KEY = "demo-load"

ORDERS = "orders"
INVOICES = "invoices"
REFUNDS = "refunds"
PARTITIONS: Mapping[str, int] = {ORDERS: 8, INVOICES: 4, REFUNDS: 4}

# The fields of an invoice's message and their DuckDB types, for from_json.
INVOICE_TYPE = (
    '{"InvoiceNo":"VARCHAR","Lines":"BIGINT","Quantity":"BIGINT","Value":"DECIMAL(18,3)"}'
)

_COMMITTED = (
    'SELECT DISTINCT from_json(decode(value), \'{"InvoiceNo":"VARCHAR"}\').InvoiceNo'
    " AS InvoiceNo FROM rows"
)
_NONE_COMMITTED = pa.table({"InvoiceNo": pa.array([], pa.string())})

_PARSED = """
CREATE OR REPLACE TEMP TABLE parsed AS SELECT row, key, line.*
FROM (SELECT row, key, from_json(decode(value), '$TYPE') AS line FROM rows)
""".replace("$TYPE", LINE_TYPE)
_WHOLE = "SELECT count(*) OVER (PARTITION BY InvoiceNo) = Lines AS whole FROM parsed ORDER BY row"
_TOTALS = """
SELECT starts_with(InvoiceNo, 'C') AS refund, any_value(key) AS key,
    encode(to_json({
        'InvoiceNo': InvoiceNo, 'Lines': count(*), 'Quantity': sum(Quantity)::BIGINT,
        'Value': sum(Quantity * UnitPrice::DECIMAL(18,3))::DECIMAL(18,3)::VARCHAR})::VARCHAR)
        AS value
FROM parsed GROUP BY InvoiceNo HAVING count(*) = any_value(Lines) ORDER BY min(row)
"""


class Gate(Protocol):
    """Receives a worker's progress, and may hold the worker until it is killed."""

    def begun(self, done: int) -> None:
        """Report that the worker is ready, and how many invoices were committed before it began."""

    def before_commit(self, done: int) -> None:
        """Ask permission to commit, after which done invoices will be committed."""

    def committed(self, done: int) -> None:
        """Report that done invoices are committed."""


def create(client: txlog.Client) -> None:
    """Create the topics and the subscription of the demo."""
    for topic, partitions in PARTITIONS.items():
        client.create_topic(topic, partitions)
    client.create_subscription(ORDERS, INVOICING)


def load(client: txlog.Client, gate: Gate, source: str, limit: int | None) -> None:
    """Run stage 1: commit each invoice not yet in `orders`, in its own transaction."""
    producer = client.producer(ORDERS)
    epoch = client.connect(KEY)["epoch"]  # aborts the open transaction of a killed worker
    with open_source(source, limit) as session:
        committed = _committed_invoices(client, session)
        rows, starts = messages(session, committed)
    done = committed.num_rows
    gate.begun(done)
    for start, stop in pairwise(starts):
        with client.transaction(key=KEY, epoch=epoch) as txn:
            producer.send_batch(rows.slice(start, stop - start), txn=txn)
            gate.before_commit(done + 1)
        done += 1
        gate.committed(done)


def invoicing(client: txlog.Client, gate: Gate, batch_lines: int) -> None:
    """Run stage 2 until all lines are processed, each batch in one transaction.

    An invoice that a batch cuts in two is held back: its lines stay unacknowledged, and come first
    in the next batch.
    """
    committed_before = 0

    def begun(event: str, _: object) -> None:
        nonlocal committed_before
        if event == "started":  # the open transaction of a killed worker is aborted now
            committed_before = sum(_count(client, topic) for topic in (INVOICES, REFUNDS))
            gate.begun(committed_before)

    hooks = functions.Hooks(
        tell=begun,
        committing=lambda done, produced: gate.before_commit(
            committed_before + done.produced + produced
        ),
        committed=lambda done: gate.committed(committed_before + done.produced),
    )
    options = functions.FunctionOptions(name=INVOICING, batch=True, txn_size=batch_lines)
    with Session() as session:
        functions.run(client, partial(totals, session), ORDERS, None, INVOICING, options, hooks)


def totals(session: Session, rows: pa.Table, context: functions.Context) -> None:
    """The function of stage 2: it makes messages of complete invoices; other lines wait."""
    whole, invoices = _transform(session, rows)
    context.hold_back(pc.invert(whole))
    for topic in (INVOICES, REFUNDS):
        rows_of_topic = invoices.filter(pc.equal(invoices.column("refund"), topic == REFUNDS))
        context.publish(topic, rows_of_topic.select(["key", "value"]))


def _transform(session: Session, rows: pa.Table) -> tuple[pa.Array, pa.Table]:
    """Return whether each row belongs to a complete invoice, and the messages of these invoices."""
    numbered = pa.table(
        {
            "row": pa.arange(0, rows.num_rows),
            "key": rows.column("key"),
            "value": rows.column("value"),
        }
    )
    session.register("rows", numbered)
    session.execute(_PARSED)
    whole = session.arrow(_WHOLE).column("whole").combine_chunks()
    return whole, session.arrow(_TOTALS)


def _committed_invoices(client: txlog.Client, session: Session) -> pa.Table:
    """Return the column InvoiceNo of `orders`: one row for each transaction is enough."""
    first_lines = [
        rows.filter(pc.equal(rows.column("index"), 1)).select(["value"])
        for rows in client.read(ORDERS)
    ]
    if not first_lines:
        return _NONE_COMMITTED
    session.register("rows", pa.concat_tables(first_lines))
    return session.arrow(_COMMITTED)


def _count(client: txlog.Client, topic: str) -> int:
    return sum(rows.num_rows for rows in client.read(topic))

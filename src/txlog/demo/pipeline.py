"""Owns the two stages of the demo, as they run inside a worker that may be killed anywhere.

    load      the file        -> orders               one transaction an invoice
    invoicing orders          -> invoices, refunds    one transaction a batch: it produces one
                                 message an invoice and acknowledges the lines it read

Neither stage keeps notes of its own. After a restart `load` asks the topic which invoices are
committed, and goes on with the others; `invoicing` is handed every line that no committed
transaction acknowledged. Both rest on one thing: a transaction is there as a whole or not at all.

    1. An invoice is never in two transactions, and never in part of one.
    2. A line is acknowledged by the transaction that produced its invoice, and by no other.
    3. Amounts are exact decimals from the text of the file to the text of the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

import txlog
from txlog.demo.source import LINE_TYPE, messages, open_source
from txlog.duck import Session
from txlog.errors import InternalError

LOAD = "load"
INVOICING = "invoicing"
STAGES = (LOAD, INVOICING)

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
    """Where a worker says how far it is, and may be held until it is killed."""

    def begun(self, done: int) -> None:
        """Say that the worker is ready, and how many invoices were committed before it began."""

    def before_commit(self, done: int) -> None:
        """Ask for leave to commit, after which done invoices will be committed."""

    def committed(self, done: int) -> None:
        """Say that done invoices are committed."""


def create(client: txlog.Client) -> None:
    """Make the topics and the subscription of the demo."""
    for topic, partitions in PARTITIONS.items():
        client.create_topic(topic, partitions)
    client.create_subscription(ORDERS, INVOICING)


def load(client: txlog.Client, gate: Gate, source: str, limit: int | None) -> None:
    """Run stage 1: commit each invoice that is not in `orders` yet, in a transaction of its own."""
    producer = client.producer(ORDERS, name="demo-load")
    _take_over(client, producer)
    with open_source(source, limit) as session:
        committed = _committed_invoices(client, session)
        rows, starts = messages(session, committed)
    done = committed.num_rows
    gate.begun(done)
    for start, stop in pairwise(starts):
        with client.transaction() as txn:
            producer.send_batch(rows.slice(start, stop - start), txn=txn)
            gate.before_commit(done + 1)
        done += 1
        gate.committed(done)


def invoicing(client: txlog.Client, gate: Gate, batch_lines: int) -> None:
    """Run stage 2 until no line is left: consume, transform, produce, acknowledge, at once.

    An invoice that a batch cuts in two is held back: its lines stay unacknowledged, and are
    joined with those of the next batch.
    """
    producers = {topic: client.producer(topic, name="demo") for topic in (INVOICES, REFUNDS)}
    _take_over(client, producers[INVOICES])
    done = sum(_count(client, topic) for topic in (INVOICES, REFUNDS))
    gate.begun(done)
    held: pa.Table | None = None
    with client.consumer(ORDERS, INVOICING) as consumer, Session() as session:
        while (received := consumer.receive_batch(batch_lines)).num_rows:
            rows = received if held is None else pa.concat_tables([held, received])
            whole, totals = _transform(session, rows)
            held = rows.filter(pc.invert(whole))
            if totals.num_rows == 0:
                continue
            with client.transaction() as txn:
                for topic, producer in producers.items():
                    mine = totals.filter(pc.equal(totals.column("refund"), topic == REFUNDS))
                    if mine.num_rows:
                        producer.send_batch(mine.select(["key", "value"]), txn=txn)
                consumer.acknowledge(rows.filter(whole), txn=txn)
                gate.before_commit(done + totals.num_rows)
            done += totals.num_rows
            gate.committed(done)
    if held is not None and held.num_rows:
        raise InternalError(f"{held.num_rows} lines are left of invoices that are not whole")


def _transform(session: Session, rows: pa.Table) -> tuple[pa.Array, pa.Table]:
    """Return which rows belong to whole invoices, and the messages of these invoices."""
    numbered = pa.table(
        {
            "row": pa.array(range(rows.num_rows), pa.int64()),
            "key": rows.column("key"),
            "value": rows.column("value"),
        }
    )
    session.register("rows", numbered)
    session.execute(_PARSED)
    whole = session.arrow(_WHOLE).column("whole").combine_chunks()
    return whole, session.arrow(_TOTALS)


def _committed_invoices(client: txlog.Client, session: Session) -> pa.Table:
    """Return the column InvoiceNo of what `orders` holds: one row a transaction is enough."""
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


def _take_over(client: txlog.Client, producer: txlog.Producer) -> None:
    """Settle what a killed worker left, before anything is read.

    The flush makes a commit visible that was written just before the kill: without it, what was
    committed could be taken for missing. What is still open is aborted, for the lines that it
    acknowledged are held back till then. Workers run one at a time, so it is a dead one's.
    """
    producer.flush()
    # Without states: asking for them would list the thousands that have ended, too.
    for row in client.transactions():
        if row["state"] == "open":
            client.abort(row["txn"])

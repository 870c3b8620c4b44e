"""A Structured Streaming job from `orders` to `invoices`: exactly once, even if killed.

    python examples/invoice_stream.py fill STORE            real orders, one message each
    python examples/invoice_stream.py run STORE CHECKPOINT  the job: until it has caught up
    python examples/invoice_stream.py check STORE           the invoices against the file

You can kill `run` at any moment and start it again: Spark's checkpoint records the orders of each
batch, and the store records the batches it has. spark-submit takes the same file and arguments.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

import txlog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DATA = Path(__file__).resolve().parent.parent / "data" / "online-retail.parquet"
ORDER = (
    "invoice string, country string,"
    " lines array<struct<stock: string, quantity: int, price: decimal(12,3)>>"
)
ROWS_A_BATCH = 4000


def orders(limit: int | None) -> list[dict[str, Any]]:
    """The orders of the file: all lines of an invoice together."""
    found: dict[str, dict[str, Any]] = {}
    for row in pq.read_table(DATA).to_pylist():
        number = row["InvoiceNo"]
        if number not in found:
            if limit is not None and len(found) == limit:
                break
            found[number] = {"invoice": number, "country": row["Country"], "lines": []}
        line = {
            "stock": row["StockCode"],
            "quantity": int(row["Quantity"]),
            "price": row["UnitPrice"],
        }
        found[number]["lines"].append(line)
    return list(found.values())


def fill(store: str, limit: int | None) -> None:
    """Make a store with topics `orders` and `invoices`, and the orders in it."""
    txlog.init(store)
    with txlog.open(store) as client:
        client.create_topic("orders", partitions=4)
        client.create_topic("invoices", partitions=4)
        rows = orders(limit)
        table = pa.table(
            {
                "key": [order["invoice"].encode() for order in rows],
                "value": [json.dumps(order).encode() for order in rows],
            }
        )
        producer = client.producer("orders")
        for start in range(0, table.num_rows, 1000):
            producer.send_batch(table.slice(start, 1000))
    sys.stdout.write(f"{len(rows)} orders\n")


def invoices(messages: DataFrame) -> DataFrame:
    """The total of each order, under the number of the invoice."""
    from pyspark.sql import functions as F

    order = messages.select("key", F.from_json(F.col("value").cast("string"), ORDER).alias("o"))
    nothing = F.lit(0).cast("decimal(20,3)")
    worth = F.aggregate(
        "o.lines",
        nothing,
        lambda total, line: (total + line["quantity"] * line["price"]).cast("decimal(20,3)"),
    )
    quantity = F.aggregate("o.lines", F.lit(0), lambda total, line: total + line["quantity"])
    invoice = F.struct(
        "o.invoice",
        "o.country",
        F.size("o.lines").alias("lines"),
        quantity.alias("quantity"),
        worth.cast("string").alias("value"),
    )
    return order.select("key", F.to_json(invoice).cast("binary").alias("value"))


def run(store: str, checkpoint: str) -> None:
    """Continue from the checkpoint until every current order has its invoice."""
    from txlog.spark import session

    spark = session("local[2]", {"spark.log.level": "ERROR", "spark.sql.shuffle.partitions": 4})
    source = spark.readStream.format("txlog").options(
        path=store, topic="orders", maxRowsPerTrigger=ROWS_A_BATCH
    )
    sink = (
        invoices(source.load())
        .writeStream.format("txlog")
        .options(path=store, topic="invoices", txnAppId="invoices", checkpointLocation=checkpoint)
    )
    sink.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


def check(store: str, limit: int | None) -> int:
    """Compare the invoices with the file; returns the exit code."""
    wanted = Counter[tuple[str, int, int, Decimal]]()
    for order in orders(limit):
        lines = order["lines"]
        value = sum((line["quantity"] * Decimal(line["price"]) for line in lines), Decimal(0))
        quantity = sum(line["quantity"] for line in lines)
        wanted[(order["invoice"], len(lines), quantity, value)] += 1
    found = Counter[tuple[str, int, int, Decimal]]()
    with txlog.open(store, read_only=True) as client:
        for table in client.read("invoices"):
            for value in table.column("value").to_pylist():
                one = json.loads(value)
                found[(one["invoice"], one["lines"], one["quantity"], Decimal(one["value"]))] += 1
    total = sum((key[3] * count for key, count in found.items()), Decimal(0))
    is_exact = found == wanted
    sys.stdout.write(
        f"{found.total()} invoices of {wanted.total()} orders, worth {total}: "
        f"{'exact' if is_exact else 'wrong'}\n"
    )
    return 0 if is_exact else 6


def main() -> int:
    """Run the command of the arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("fill", "run", "check"))
    parser.add_argument("store")
    parser.add_argument("checkpoint", nargs="?")
    parser.add_argument("--limit", type=int, help="only so many orders")
    given = parser.parse_args()
    if given.what == "fill":
        fill(given.store, given.limit)
    elif given.what == "check":
        return check(given.store, given.limit)
    elif given.checkpoint is None:
        parser.error("run STORE CHECKPOINT")
    else:
        run(given.store, given.checkpoint)
    return 0


if __name__ == "__main__":
    sys.exit(main())

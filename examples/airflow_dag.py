"""An Airflow pipeline that loads a file an hour and bills it; retried tasks change nothing.

    pip install apache-airflow       # and copy this file to the DAGs folder of Airflow
    INVOICES=/data/invoices TXLOG_STORE=/data/shop    # in the environment of its workers

Airflow runs a task again when it fails, is killed, or is cleared. `load` stores each file as one
batch with a name: a batch that is stored already changes nothing. `bill` is a function whose every
transaction acknowledges lines and writes their bills: it goes on after the last commit.
"""

from __future__ import annotations

import json
import os
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
from airflow.sdk import dag, task

import txlog
from txlog import functions


def load_file(store: str, file: str) -> int:
    """Store the lines of a CSV file as messages of `lines`, once; returns their number."""
    table = pyarrow.csv.read_csv(file)
    values = [json.dumps(row, default=str) for row in table.to_pylist()]
    txlog.init(store, if_not_exists=True)
    with txlog.open(store) as client:
        client.create_topic("lines", if_not_exists=True)
        bulk = client.bulk("lines", key="airflow", batch=Path(file).name)
        return int(bulk.commit(bulk.stage([pa.table({"value": values})]))["messages"])


def bill_lines(store: str) -> int:
    """Bill every line that is not billed yet, into `bills`; returns their number."""
    with txlog.open(store) as client:
        client.create_topic("bills", if_not_exists=True)
        client.create_subscription("lines", "billing", if_not_exists=True)
        options = functions.FunctionOptions(name="airflow-bill")
        return functions.run(client, bill_of, "lines", "bills", "billing", options).consumed


def bill_of(message: txlog.Message) -> functions.Output:
    """The bill of a line, with the id of the line as key."""
    line = json.loads(message.value or b"")
    pounds = Decimal(str(line["UnitPrice"])) * int(line["Quantity"])
    bill = {"InvoiceNo": line["InvoiceNo"], "pounds": str(pounds)}
    return functions.Output(bill, key=str(message.message_id))


@dag(schedule="@hourly", start_date=datetime(2026, 1, 1), catchup=False, max_active_runs=1)  # noqa: DTZ001
def invoices() -> None:
    """Load the file of the hour, then bill its lines."""

    @task(retries=3)
    def load(hour: str) -> int:
        file = Path(os.environ["INVOICES"]) / f"{hour}.csv"
        return load_file(os.environ["TXLOG_STORE"], str(file))

    @task(retries=3)
    def bill() -> int:
        return bill_lines(os.environ["TXLOG_STORE"])

    load("{{ logical_date.strftime('%Y-%m-%dT%H') }}") >> bill()


invoices()

"""Owns the demo's data: the path of the invoice file, and its lines as messages.

An invoice is all lines with one InvoiceNo, in file order, even if other lines are between them;
invoices are ordered by their first line. The message of a line is compact JSON: the eight columns
of the file, plus Line and Lines. Prices stay text, since a reader of JSON may parse numbers as
floats. Line is the number of the line in its invoice, Lines the total, so that a consumer knows
from the data alone when an invoice is complete. DuckDB makes all of it, a column at a time.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv

from txlog.base.startup import compute as pc
from txlog.errors import NotFound
from txlog.lake.sql.duck import Session

FILE_NAME = "online-retail.parquet"

# The fields of a line's message and their DuckDB types, for from_json.
LINE_TYPE = (
    '{"InvoiceNo":"VARCHAR","Line":"BIGINT","Lines":"BIGINT","StockCode":"VARCHAR",'
    '"Description":"VARCHAR","Quantity":"BIGINT","InvoiceDate":"VARCHAR","UnitPrice":"VARCHAR",'
    '"CustomerID":"VARCHAR","Country":"VARCHAR"}'
)

_LINES = "SELECT * EXCLUDE (file_row_number) FROM source ORDER BY file_row_number"

_CHOSEN_ALL = "CREATE TEMP VIEW chosen AS SELECT * FROM source"

_CHOSEN_FIRST = """
CREATE TEMP TABLE chosen AS SELECT * FROM source WHERE InvoiceNo IN (
    SELECT InvoiceNo FROM source GROUP BY InvoiceNo ORDER BY min(file_row_number) LIMIT $1)
"""

_SIZE = "SELECT count(*) AS lines, count(DISTINCT InvoiceNo) AS invoices FROM chosen"

# An invoice has one customer, so its first line's key is the key of all its lines. The query still
# takes it from the first line, because an invoice must not be spread over partitions.
_MESSAGES = """
WITH numbered AS (
    SELECT chosen.*,
        min(file_row_number) OVER invoice AS first_row,
        row_number() OVER invoice_lines AS line,
        count(*) OVER invoice AS lines,
        first_value(coalesce(CustomerID, Country)) OVER invoice_lines AS invoice_key
    FROM chosen ANTI JOIN committed USING (InvoiceNo)
    WINDOW invoice AS (PARTITION BY InvoiceNo),
           invoice_lines AS (PARTITION BY InvoiceNo ORDER BY file_row_number))
SELECT
    line,
    encode(invoice_key) AS key,
    encode(to_json({
        'InvoiceNo': InvoiceNo, 'Line': line, 'Lines': lines, 'StockCode': StockCode,
        'Description': Description, 'Quantity': Quantity::BIGINT, 'InvoiceDate': InvoiceDate,
        'UnitPrice': UnitPrice, 'CustomerID': CustomerID, 'Country': Country})::VARCHAR) AS value,
    strptime(InvoiceDate, '%Y-%m-%d %H:%M:%S')::TIMESTAMPTZ AS event_time
FROM numbered ORDER BY first_row, line
"""

_MESSAGE_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("event_time", pa.timestamp("ms", "UTC")),
    ]
)


def locate() -> str:
    """Return the path of the invoice file: inside the installed package, or in the checkout."""
    packaged = Path(str(resources.files("txlog"))) / "data" / FILE_NAME
    checkout = Path(__file__).parents[4] / "data" / FILE_NAME
    for path in (packaged, checkout):
        if path.is_file():
            return str(path)
    raise NotFound(
        f"the demo's data file {FILE_NAME} is missing",
        hint="it comes with the wheel, and is in data/ of a source checkout",
    )


def open_source(path: str, limit: int | None) -> Session:
    """Return a session with the view `chosen`: the lines of the first limit invoices, or all."""
    session = Session({"source": path})
    if limit is None:
        session.execute(_CHOSEN_ALL)
    else:
        session.execute(_CHOSEN_FIRST, [limit])
    return session


def write_csv(path: str, lines: int) -> None:
    """Write the first lines of the invoice file as CSV, with a header."""
    with Session({"source": locate()}) as session:
        table = session.arrow(_LINES)
    pa_csv.write_csv(table.slice(0, lines), path)


def size(session: Session) -> tuple[int, int]:
    """Return the numbers of chosen lines and invoices."""
    row = session.row(_SIZE)
    return int(str(row["lines"])), int(str(row["invoices"]))


def messages(session: Session, committed: pa.Table) -> tuple[pa.RecordBatch, list[int]]:
    """Return the messages of the invoices that are not in committed, and the start of each.

    committed: a column InvoiceNo
    returns:   rows of key, value, event_time, with the lines of an invoice together; the row at
               which each invoice starts, and the number of rows as the last item
    """
    session.register("committed", committed)
    table = session.arrow(_MESSAGES)
    first_lines = pc.indices_nonzero(pc.equal(table.column("line"), 1))
    starts: list[int] = [*first_lines.to_pylist(), table.num_rows]
    rows = table.select(_MESSAGE_SCHEMA.names).cast(_MESSAGE_SCHEMA).combine_chunks()
    if rows.num_rows == 0:
        return pa.RecordBatch.from_pylist([], schema=_MESSAGE_SCHEMA), starts
    return rows.to_batches()[0], starts

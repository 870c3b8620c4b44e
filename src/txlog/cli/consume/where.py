"""Owns `--where`: it selects rows by a condition in SQL over the columns of a record."""

from __future__ import annotations

import pyarrow as pa

from txlog.engine.door.reading import RECEIVED
from txlog.lake.sql.duck import Session

_RECORDS = """
    SELECT row_at, topic, partition,
        ledger || ':' || entry || coalesce(':' || "index", '') AS message_id,
        key, value, properties, publish_time, event_time, deliver_at, visible_time,
        (txn_most >> 48) || ':' || txn_least AS txn, "index" AS txn_index, txn_state,
        producer, sequence_id, redelivery_count,
        coalesce(octet_length(value), 0) AS size_bytes
    FROM received
"""


class Where:
    """A condition on records; key and value are BLOB, `text(value)` and `json(value)` decode them.

    raises: SqlError, before anything is read
    """

    __slots__ = ("_query", "_session")

    def __init__(self, condition: str) -> None:
        self._session = Session()
        self._session.execute("CREATE MACRO text(b) AS decode(b)")
        self._session.execute("CREATE MACRO json(b) AS decode(b)::JSON")
        # the condition is the user's own SQL, in a session without files and settings
        self._query = f"SELECT row_at FROM ({_RECORDS}) WHERE (\n{condition}\n) ORDER BY row_at"  # noqa: S608
        self.filtered(RECEIVED.empty_table())

    def filtered(self, table: pa.Table) -> pa.Table:
        """The rows of RECEIVED for which the condition is true."""
        rows = table.append_column("row_at", pa.arange(0, table.num_rows))
        self._session.register("received", rows)
        return table.take(self._session.arrow(self._query).column("row_at"))

"""Owns the dead letters of `produce`: records of an input that are bad, as messages of a topic.

The value is the record as it stood, null when it is too large for a message; properties say where
it came from and why: REAL_TOPIC, ORIGIN_LINE, EXCEPTION, as those of `run` do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from txlog.cli.produce.request import Request
from txlog.errors import BadRecord
from txlog.ids import TxnId

if TYPE_CHECKING:
    from txlog.api.client import Client

_PROPERTY_MAP = pa.map_(pa.string(), pa.string())


class Letters:
    """Bad records, held until they are sent with what is around them."""

    def __init__(self, request: Request, client: Client) -> None:
        self.sent = 0
        self.held: list[tuple[bytes | None, list[tuple[str, str]]]] = []
        self._topic = request.topic
        self._most = client.settings.max_message_bytes
        name = request.dead_letter_topic
        self._producer = None if name is None else client.producer(name)

    def add(self, record: bytes | None, error: BadRecord) -> None:
        """Keep a record that is bad."""
        reason = error.message.partition(": ")[2] or error.message
        properties = {
            "REAL_TOPIC": self._topic, "ORIGIN_LINE": str(error.fields.get("line", "")),
            "EXCEPTION": reason,
        }  # fmt: skip
        room = self._most - sum(len(k.encode()) + len(v.encode()) for k, v in properties.items())
        if record is not None and len(record) > room:
            record = None
        self.held.append((record, [*properties.items()]))

    def send(self, txn: TxnId | None) -> None:
        """Send what is held."""
        assert self._producer is not None, "only with a topic is anything held"
        held, self.held = self.held, []
        table = pa.table({
            "value": pa.array([record for record, _ in held], pa.binary()),
            "properties": pa.array([properties for _, properties in held], _PROPERTY_MAP),
        })  # fmt: skip
        self._producer.send_batch(table, txn=txn)
        self.sent += len(held)

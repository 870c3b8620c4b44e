"""Owns the small store of `txlog demo --small`: a few messages of every kind.

orders   2 partitions: plain messages, a committed transaction, an aborted one, an open one with
         the key `importer`, a message that is due tomorrow, a watermark and a late message
audit    the other message of the committed transaction
billing  a subscription of orders that acknowledged all but the last two; shipping: none
"""

from __future__ import annotations

import json
from typing import Any, Final

import txlog
from txlog.base.ids import TxnId
from txlog.base.settings import DAY_MS, HOUR_MS, MINUTE_MS
from txlog.clock import Clock, SystemClock
from txlog.engine.door.transactions import Transaction

_TILLS: Final = ("till-1", "till-2", "till-7")


def make(path: str, clock: Clock | None = None) -> dict[str, Any]:
    """Make the store.

    path:    a directory that is missing or empty; it becomes the store
    returns: {path, topics, messages}; messages counts the visible ones
    raises:  AlreadyExists
    """
    clock = clock or SystemClock()
    txlog.init(path, clock=clock)
    now_ms = clock.now().wall_ms
    with txlog.open(path, clock=clock) as client:
        client.create_topic("orders", partitions=2)
        client.create_topic("audit")
        for name in ("billing", "shipping"):
            client.create_subscription("orders", name, type="shared")
        for number, till in enumerate(_TILLS, start=1):
            _send(client, number, till, now_ms - 10 * MINUTE_MS)
        with client.transaction(key="nightly") as nightly:
            for number in (4, 5):
                _send(client, number, "till-1", now_ms - 5 * MINUTE_MS, nightly)
            client.producer("audit").send(b"2 orders of the night", txn=nightly)
        lost = client.begin()["txn"]
        _send(client, 6, "till-2", now_ms, lost)
        client.abort(lost)
        open_txn = client.begin(HOUR_MS, key="importer")["txn"]
        _send(client, 7, "till-7", now_ms, open_txn)
        producer = client.producer("orders", "till-1")
        producer.new_watermark().event_time(now_ms - MINUTE_MS).send()
        seen = [message.message_id for message in client.reader("orders")]
        client.acknowledge(
            "orders", "billing", [message for message in seen if message is not None]
        )
        _send(client, 8, "till-1", now_ms, deliver_at=now_ms + DAY_MS)
        _send(client, 9, "till-2", now_ms - HOUR_MS)
        listed = client.topics()
    return {"path": path, "topics": len(listed), "messages": sum(t["messages"] for t in listed)}


def _send(
    client: txlog.Client,
    number: int,
    till: str,
    event_ms: int,
    txn: Transaction | TxnId | None = None,
    deliver_at: int | None = None,
) -> None:
    order = {"order": number, "till": till, "amount": number * 500}
    client.producer("orders").send(
        json.dumps(order).encode(),
        key=till.encode(),
        properties={"till": till},
        event_time=event_ms,
        deliver_at=deliver_at,
        txn=txn,
    )

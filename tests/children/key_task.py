"""A task with a transaction key: it works in a transaction, waits for a line, and calls on.

STORE NAME TIMEOUT_MS; it prints JSON lines.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import txlog
from txlog import MessageId
from txlog.errors import TxlogError


def tell(**fields: object) -> None:
    """Print a line."""
    print(json.dumps(fields), flush=True)


def attempt(name: str, call: Callable[[], object]) -> None:
    """Make a call; print its outcome."""
    try:
        call()
        tell(call=name, answer="done")
    except TxlogError as error:
        tell(call=name, answer=type(error).__name__)


path, name, timeout_ms = sys.argv[1:]
with txlog.open(path, transaction_key="nightly") as client:
    producer, named = client.producer("out"), client.producer("out", name="till")
    txn = client.transaction(int(timeout_ms), write_through=True)
    with client.consumer("in", "s") if name == "task 2" else client.reader("in") as source:
        batch = source.receive_batch(100)
    ids = [message.message_id for message in txlog.messages(batch) if message.message_id]
    client.acknowledge("in", "s", ids[:2], txn=txn)
    for message in txlog.messages(batch):
        producer.send(f"{name}: {(message.value or b'').decode()}".encode(), txn=txn)
    tell(txn=str(txn.id), epoch=client.epoch, ids=[*map(str, ids)])
    sys.stdin.readline()
    last = MessageId.parse("1:2")
    attempt("send", lambda: producer.send(b"late", txn=txn))
    attempt("named send", lambda: named.send(b"late", sequence_id=1, txn=txn))
    attempt("ack", lambda: client.acknowledge("in", "s", ids[2:3], txn=txn))
    attempt("ack all", lambda: client.acknowledge("in", "s", [last], cumulative=True, txn=txn))
    attempt("commit", txn.commit)
    attempt("abort", txn.abort)
    attempt("begin", client.transaction)

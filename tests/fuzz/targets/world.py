"""A store that real calls have made: the seeds of the targets that read files."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any

from tests.disk.memory import MemoryDisk
from tests.engine_kit import START_MS, client_on
from txlog.base.ids import MessageId
from txlog.base.schemas.schema import Schema
from txlog.base.settings import Settings
from txlog.clock import ManualClock
from txlog.engine.store.identity import make_store

ORDER = (
    '{"type":"record","name":"Order","fields":[{"name":"id","type":"int"},'
    '{"name":"note","type":["null","string"],"default":null}]}'
)
_SETTINGS: dict[str, Any] = {
    "free_bytes_min": 0,
    "min_index_count_per_bucket": 1,
    "ledger_step_per_bucket": 1,
}


@cache
def files() -> dict[str, bytes]:
    """The files of the store by path; the same in every process."""
    return dict(made().files())


@cache
def made() -> MemoryDisk:
    """The disk of the store. Copy it before use."""
    disk = MemoryDisk(seed=1)
    fill(disk)
    return disk


@cache
def journal() -> bytes:
    """The journal of such a store that has written no checkpoint."""
    disk = MemoryDisk(seed=1)
    fill(disk, has_checkpoints=False)
    [data] = [data for path, data in disk.files().items() if path.endswith(".journal")]
    return data.rstrip(b"\0")


def fill(disk: Any, *, has_checkpoints: bool = True) -> None:
    """Make the store on a disk, with most kinds of things that a store can hold."""
    clock = ManualClock(START_MS)
    make_store(disk, Settings(**_SETTINGS), clock)
    client = client_on(disk, clock)
    client.create_topic("t", partitions=2)
    client.create_topic("orders", schema=Schema.parse("json", ORDER))
    client.create_subscription("t", "s")
    producer = client.producer("t", name="p")
    for number in range(4):
        producer.send(b"%d" % number, key=b"k", properties={"a": "b"}, deliver_after=60_000)
    with client.transaction() as txn:
        producer.send(b"in a transaction", txn=txn)
    client.producer("orders").send({"id": 1, "note": "x"})
    consumer = client.consumer("t", "s", name="c")
    message = consumer.receive(timeout_ms=0)
    assert message is not None
    consumer.acknowledge(message)
    if has_checkpoints:
        client.checkpoint(roll_all=True)
    clock.advance(120_000)
    producer.send(b"later")
    with client.transaction(key="writer") as keyed:
        producer.send(b"keyed", txn=keyed)
    if has_checkpoints:
        client.checkpoint(roll_all=True)
    with suppress(ZeroDivisionError), client.transaction() as aborted:
        producer.send(b"aborted", txn=aborted)
        consumer.acknowledge(consumer.receive(timeout_ms=0), txn=aborted)
        raise ZeroDivisionError
    client.subscription("t", "s").seek(MessageId(1, 0), force=True)
    client.admin.set_retention_policies("t", ttl_ms=5_000)
    client.admin.trim("t", by_policy=True)
    client.admin.set_offline("t", 1)
    client.admin.set_online("t", 1)
    client.create_topic("gone")
    client.admin.delete_topic("gone")
    client.begin()
    producer.send(b"last", event_time=START_MS)
    producer.new_watermark().event_time(START_MS).send()
    client.flush()
    client.close()

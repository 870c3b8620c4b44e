"""Owns the shared helpers of the engine's tests: a store, a clock, short forms of common calls."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

import txlog
from tests.disk.faults import FaultyDisk
from txlog import Client, Consumer, Message, MessageId, Range, TxnId, messages
from txlog.base.ids import TopicName
from txlog.client.open import open_store
from txlog.clock import Clock, Instant, ManualClock
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.sending import watermark
from txlog.engine.decide.sending.watermark import Assertion, WatermarkPlaced
from txlog.engine.decide.transactions import transaction
from txlog.engine.decide.transactions.sweep import CallScope
from txlog.engine.decide.transactions.transaction import OutcomeRow, Use
from txlog.engine.door.relation import RelationReader
from txlog.engine.model.ops import Component
from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.plan.reading import newest
from txlog.engine.relation.relation import FileSource, Relation, RelationFilter
from txlog.engine.session.consuming.consumer import ConsumerSession
from txlog.engine.session.transactions.transaction import in_transaction
from txlog.engine.storage.disk.posix import PosixDisk
from txlog.engine.storage.disk.protocol import LockFile
from txlog.engine.storage.frame import Witness
from txlog.engine.store.identity import read_identity
from txlog.engine.store.liveness import Pin
from txlog.engine.store.store import Mutex, Store
from txlog.engine.upkeep.space import topic_compaction
from txlog.engine.view import View

START_MS = 1_700_000_000_000


def new_store(folder: object, clock: ManualClock, **settings: int | str) -> str:
    """Make a store with durability `os`, so that no call waits for a disk; returns its path."""
    all_settings: dict[str, Any] = {"durability": "os", "free_bytes_min": 0, **settings}
    path = str(folder)
    txlog.init(path, clock=clock, **all_settings)
    return path


def open_client(path: str, clock: ManualClock, **options: Any) -> Client:
    """Open a client that writes checkpoints only on request."""
    client = open_store(path, clock=clock, **options)
    client.checkpoint_automatically = False
    return client


def client_on(disk: Any, clock: Clock, lock_timeout_ms: int | None = None) -> Client:
    """Open a client of the store on any disk."""
    identity = read_identity(disk)
    store = Store(disk, clock, identity, lock_timeout_ms=lock_timeout_ms, durability=None)
    client = Client(store, disk)
    client.checkpoint_automatically = False
    return client


class Bench:
    """A store with a manual clock and any number of clients, each as in its own process."""

    def __init__(self, folder: object, **settings: int | str) -> None:
        self.clock = ManualClock(START_MS)
        self.path = new_store(folder, self.clock, **settings)
        self.clients: list[Client] = []
        self.client = self.another()

    def another(self, **options: Any) -> Client:
        """One more client of the store."""
        client = open_client(self.path, self.clock, **options)
        self.clients.append(client)
        return client

    def faulty(self) -> FaultyDisk:
        """Open the client again, on a disk with fault points; returns the disk."""
        self.clients.remove(self.client)
        self.client.close()
        disk = FaultyDisk(PosixDisk(self.path))
        self.client = client_on(disk, self.clock)
        self.clients.append(self.client)
        return disk

    def reopen(self) -> Client:
        """Close every client and open one."""
        self.close()
        self.client = self.another()
        return self.client

    def close(self) -> None:
        """Close every client."""
        for client in self.clients:
            client.close()
        self.clients.clear()


def send(client: Client, *values: bytes, topic: str = "t", partition: int = 0) -> list[MessageId]:
    """Send plain messages one by one; returns their ids."""
    producer = client.producer(topic)
    out = [producer.send(value, partition=partition).message_id for value in values]
    return [message_id for message_id in out if message_id is not None]


def send_txn(
    client: Client, *values: bytes, topic: str = "t", partition: int = 0
) -> tuple[MessageId, list[MessageId]]:
    """Commit a transaction with these messages; returns its marker and the ids of the messages."""
    with client.transaction() as txn:
        for value in values:
            client.producer(topic).send(value, partition=partition, txn=txn)
    assert txn.outcome is not None
    (_, ledger, entry, count) = txn.outcome.markers[0]
    assert count == len(values)
    return MessageId(ledger, entry), [MessageId(ledger, entry, i + 1) for i in range(count)]


def begin(client: Client, timeout_ms: int | None = None) -> TxnId:
    """Begin a transaction; returns its id."""
    txn_id = client.begin(timeout_ms)["txn"]
    assert isinstance(txn_id, TxnId)
    return txn_id


def prepare(client: Client, txn: TxnId, token: str = "0f") -> None:
    """Prepare a transaction, as a commit together with a database does."""
    row = OutcomeRow(token, "sqlite", "d1", "orders.db")
    store, uid = client.store, client.store.disk.owner()[0]
    store.write(
        lambda view, now: transaction.prepare(view, store.settings, now, uid, txn, row),
        uses=CallScope(txn=(txn.coordinator, txn.sequence)),
    )


def say(
    client: Client, producer: str, time: int | None, *, topic: str = "t", txn: TxnId | None = None
) -> None:
    """Assert a watermark; time: in ms; None: the producer is idle."""
    store, assertion = client.store, Assertion(producer, time)

    def plain(view: View, now: Instant) -> Decision[WatermarkPlaced]:
        partition_topic = find_topic(view, TopicName.parse(topic))
        return watermark.assert_watermark(view, store.settings, now, partition_topic, assertion)

    def inside(view: View, now: Instant, use: Use) -> Decision[tuple[TxnId, WatermarkPlaced]]:
        partition_topic = find_topic(view, TopicName.parse(topic))
        uid = store.disk.owner()[0]
        return watermark.assert_in_txn(
            view, store.settings, now, uid, partition_topic, assertion, None, use
        )

    if txn is None:
        assert isinstance(store.write(plain), WatermarkPlaced)
    else:
        assert isinstance(in_transaction(store, txn, inside), WatermarkPlaced)


def rows(tables: Sequence[pa.Table] | Any) -> list[Message]:
    """The messages of some tables."""
    return [message for table in tables for message in messages(table)]


def read(
    client: Client, topic: str = "t", range: Range | None = None, **options: Any
) -> list[Message]:
    """The committed messages of a range."""
    return rows(client.read(topic, range=range, **options))


def values(
    client: Client, topic: str = "t", range: Range | None = None, **options: Any
) -> list[bytes]:
    """The values of read."""
    return [message.value or b"" for message in read(client, topic, range, **options)]


def ids(client: Client, topic: str = "t", **options: Any) -> list[MessageId]:
    """The ids of read."""
    return [m.message_id for m in read(client, topic, **options) if m.message_id is not None]


def pending(client: Client, topic: str = "t", subscription: str = "s") -> list[Message]:
    """The messages that a new consumer of the subscription receives now."""
    with client.consumer(topic, subscription) as consumer:
        return rows([consumer.receive_batch(100_000)])


@contextmanager
def little_room(size: int) -> Iterator[None]:
    """A context in which no file can grow beyond `size` bytes: a write fails as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def little_memory(patch: pytest.MonkeyPatch) -> None:
    """Let topic compaction hold only a few keys, and the rows of a few messages."""
    patch.setattr(topic_compaction, "HELD_BYTES", 60)
    patch.setattr(topic_compaction, "DIVIDED_BYTES", 30)
    patch.setattr(topic_compaction, "NUMBER_BITS", 3)
    patch.setattr(newest, "SCAN_MESSAGES", 4)
    patch.setattr(newest, "FETCH_BYTES", 1)
    patch.setattr(topic_compaction, "KEPT_DECODED_BYTES", 0)
    patch.setattr(topic_compaction, "piece_rows", lambda rows, size: 2)


def session_of(consumer: Consumer) -> ConsumerSession:
    """The session of a consumer of one topic on a durable subscription."""
    assert isinstance(consumer.session, ConsumerSession)
    return consumer.session


def lock_of(consumer: Consumer) -> LockFile:
    """The lock that a consumer holds as long as it lives."""
    lock = session_of(consumer).member._lock
    assert lock is not None
    return lock


def kill(consumer: Consumer) -> None:
    """Free the consumer's lock, as the kernel does when a process dies, and record nothing."""
    lock_of(consumer).close()


def mutex_of(client: Client) -> Mutex:
    """The mutex that every call of a client takes."""
    return client.store._mutex


def loaded(view: View, *kinds: str) -> set[Component]:
    """The components of some kinds, or of all, whose state a view has in memory."""
    return {key for key in view._loaded if not kinds or key[0] in kinds}


def witness_of(client: Client) -> Witness:
    """The file that records which frames are durable."""
    return client.store.read(lambda view: view.journal.witness)


def pin_of(client: Client, sources: Sequence[FileSource]) -> Pin:
    """A pin on files, as a query takes it."""
    pin = client._pin(sources)
    assert pin is not None
    return pin


def relation_of(
    client: RelationReader, topic: str, selection: RelationFilter | None = None, **options: Any
) -> Relation:
    """The Relation of a topic."""
    return client._relation(topic, selection, **options)

"""Owns the model and the workload of the crash tests, and how they read a store.

The model knows values only. A step changes the model only after the engine has answered. So after
any crash, the store must equal the model before or after the step that was under way.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from tests.crash import bulking
from tests.crash.bulking import KEY as KEY
from tests.crash.bulking import TOPIC as TOPIC
from tests.disk.memory import MemoryDisk
from tests.engine_kit import client_on, prepare
from txlog.base.ids import MessageId, TxnId
from txlog.base.ranges import END, Range
from txlog.base.settings import Settings
from txlog.client.client import Client
from txlog.clock import ManualClock
from txlog.engine.session.reading.message import Message, messages
from txlog.engine.storage import frame
from txlog.engine.store import identity
from txlog.engine.store.identity import FORMAT, make_store

START_MS = 1_700_000_000_000
SETTINGS = Settings(coordinators=1, txn_ids_reserved=2, reader_grace_ms=0, max_message_bytes=100)
LARGE = "-" * 250  # appended to a value, it makes three chunks
SUB, PARTITIONS, PRODUCER = "s", 2, "p"
LAZY = frozenset({"begin", "txn_send", "txn_large", "ack", "txn_ack", "key_begin"})


def new_disk(
    settings: Settings = SETTINGS, clock: ManualClock | None = None, of_format: int = FORMAT
) -> MemoryDisk:
    """A disk that holds a new store, all of it flushed.

    of_format: the number of the store, and the version of its journal file: the first write of a
               client raises both
    """
    disk = MemoryDisk()
    with (
        mock.patch.object(identity, "FORMAT", of_format),
        mock.patch.object(frame, "FILE_VERSION", of_format),
    ):
        make_store(disk, settings, clock or ManualClock(START_MS))
    return disk


def open_client(disk: MemoryDisk, clock: ManualClock | None = None) -> Client:
    """A client of the store on this disk, as in its own process; it never waits for a lock."""
    disk.blocked = lambda path, timeout_ms: False  # in one thread, no other process would free it
    return client_on(disk, clock or ManualClock(START_MS), lock_timeout_ms=0)


def after_reboot(boot: str = "another boot") -> ManualClock:
    """The clock of the next boot."""
    clock = ManualClock(START_MS)
    clock.reboot(boot, START_MS + 1000)
    return clock


@dataclass
class Model:
    """The contents that the store must have after the answers so far."""

    topics: set[str] = field(default_factory=set)
    subs: set[str] = field(default_factory=set)
    log: dict[int, list[str]] = field(default_factory=lambda: {n: [] for n in range(PARTITIONS)})
    acked: set[str] = field(default_factory=set)
    txns: dict[str, str] = field(default_factory=dict)
    held: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    pending: dict[str, set[str]] = field(default_factory=dict)
    epoch: int = -1  # epoch of KEY; -1: it was never connected
    deleted: bool = False
    batches: list[str] = field(default_factory=list)  # stored under KEY for the topic
    bound: str = ""  # the transaction that was begun under KEY last

    def open_txns(self) -> list[str]:
        """Ids of transactions that are open, oldest first."""
        return [txn for txn, state in self.txns.items() if state == "open"]

    def end(self, txn: str, state: str) -> None:
        """Commit or abort a transaction; state: committed or aborted."""
        self.txns[txn] = state
        messages, pending = self.held.pop(txn, []), self.pending.pop(txn, set())
        if state == "committed":
            for partition, value in messages:
                self.log[partition].append(value)
            self.acked |= pending

    def holding(self) -> str:
        """The transaction that is open under KEY; empty if none is."""
        return self.bound if self.bound in self.open_txns() else ""

    def fence(self) -> None:
        """Abort the transaction that is open under KEY."""
        if self.holding():
            self.end(self.bound, "aborted")

    def recovered(self) -> Model:
        """The model after a lossy recovery: no transaction stays open."""
        other = deepcopy(self)
        for txn in self.open_txns():
            other.end(txn, "aborted")
        return other

    def unclaimed(self) -> list[str]:
        """Visible values that are neither acknowledged nor pending."""
        claimed = self.acked.union(*self.pending.values())
        return [value for part in self.log.values() for value in part if value not in claimed]

    def shape(self) -> dict[str, Any]:
        """The model as `observe` would show it."""
        return {
            "topics": sorted(self.topics),
            "subs": sorted(self.subs),
            "log": {n: part for n, part in self.log.items() if part},
            "unacked": {
                n: unacked
                for n, part in self.log.items()
                if (unacked := [value for value in part if value not in self.acked])
            }
            if self.subs
            else {},
            "txns": dict(self.txns),
            "keys": [] if self.epoch < 0 else [(KEY, self.epoch, self.deleted, self.holding())],
        }


def read_messages(client: Client, topic: str, messages_range: Range | None = None) -> list[Message]:
    """Every message of a range, read in small batches, so that reads also begin in the middle."""
    return [
        message
        for table in client.read(topic, range=messages_range, batch_messages=7)
        for message in messages(table)
    ]


def observe(client: Client, found: list[Message] | None = None) -> dict[str, Any]:
    """Everything that a user can see of the store, by value.

    found: this list is filled with each visible message
    """
    out: dict[str, Any] = {"topics": [], "subs": [], "log": {}, "unacked": {}, "txns": {}}
    out["keys"] = [
        (row["transaction_key"], row["epoch"], row["deleted"], str(row["txn"] or ""))
        for row in client.admin.transaction_keys(deleted=True)
    ]
    out["topics"] = [row["topic"] for row in client.topics()]
    for topic in out["topics"]:
        for name, part in (("log", None), ("unacked", Range(kind="unacked", subscription=SUB))):
            if name == "unacked":
                out["subs"] += [row["subscription"] for row in client.subscriptions(topic)]
                if not out["subs"]:
                    continue
            read = read_messages(client, topic, part)
            for message in read:
                assert message.value is not None
                out[name].setdefault(message.partition, []).append(message.value.decode())
            if found is not None and name == "log":
                found += read
    for row in client.transactions(all=True):
        out["txns"][str(row["txn"])] = row["state"]
    return out


def observe_ids(client: Client) -> dict[str, MessageId]:
    """The position of each visible message."""
    return places_of([m for row in client.topics() for m in read_messages(client, row["topic"])])


def places_of(found: list[Message]) -> dict[str, MessageId]:
    """The positions of messages, by value."""
    return {m.value.decode(): m.message_id for m in found if m.value and m.message_id}


def differs(found: dict[str, Any], models: list[Model]) -> str:
    """The difference if the contents equal none of the models; empty if they equal one."""
    if any(found == model.shape() for model in models):
        return ""
    return f"found {found}, expected one of {[model.shape() for model in models]}"


@dataclass
class Workload:
    """Runs steps through a client and keeps a model of each state that was answered."""

    client: Client
    models: list[Model] = field(default_factory=lambda: [Model()])
    durable: int = 0  # index of the newest model whose state was answered as durable
    sent: int = 0
    ids: dict[str, MessageId] = field(default_factory=dict)  # of answered plain messages
    txn_ids: list[str] = field(default_factory=list)
    next_model: Model | None = None  # the model after the step under way

    def run(self, kind: str, rng: random.Random) -> bool:
        """Do one step; False when the state does not allow it."""
        act = getattr(self, kind)(deepcopy(self.models[-1]), rng)
        if act is None:
            return False
        self.attempt(kind, *act)
        return True

    def attempt(self, kind: str, model: Model, call: Callable[[], None]) -> None:
        """Make the call, and adopt the model once the call has answered."""
        self.next_model = model
        call()
        self.models.append(model)
        self.next_model = None
        if kind not in LAZY:
            self.durable = len(self.models) - 1

    def possible(self) -> list[Model]:
        """Models of the states that a death of the process may leave."""
        return [self.models[-1], *([self.next_model] if self.next_model is not None else [])]

    def possible_after_cut(self) -> list[Model]:
        """Models of the states that a power cut may leave, before recovery."""
        models = self.models[self.durable :]
        return [*models, *([self.next_model] if self.next_model is not None else [])]

    # --- the steps: each returns (the model after it, the call), or None if it cannot run --------

    def create(self, model: Model, rng: random.Random) -> tuple[Model, Callable[[], None]] | None:
        """Create the topic, then the subscription."""
        if TOPIC not in model.topics:
            model.topics.add(TOPIC)
            return model, lambda: void(
                self.client.create_topic(TOPIC, PARTITIONS, if_not_exists=True)
            )
        if SUB in model.subs:
            return None
        model.subs.add(SUB)
        return model, lambda: void(self.client.create_subscription(TOPIC, SUB, if_not_exists=True))

    def send(self, model: Model, rng: random.Random) -> tuple[Model, Callable[[], None]] | None:
        """A plain message with an explicit sequence."""
        if not model.topics:
            return None
        value, partition, sequence = self.new_value(model, rng)
        model.log[partition].append(value)

        def call() -> None:
            receipt = self.client.producer(TOPIC, PRODUCER).send(
                value.encode(), partition=partition, sequence_id=sequence
            )
            assert receipt.message_id is not None
            self.ids[value] = receipt.message_id

        return model, call

    def large(self, model: Model, rng: random.Random) -> tuple[Model, Callable[[], None]] | None:
        """A plain message in chunks, in a transaction that its frame opens and commits."""
        if not model.topics:
            return None
        value, partition, sequence = self.new_value(model, rng)
        model.log[partition].append(value + LARGE)
        model.txns[f"0:{len(self.txn_ids)}"] = "committed"

        def call() -> None:
            receipt = self.client.producer(TOPIC, PRODUCER, chunking=True).send(
                (value + LARGE).encode(), partition=partition, sequence_id=sequence
            )
            assert receipt.message_id is not None
            self.ids[value + LARGE] = receipt.message_id
            self.txn_ids.append(f"0:{len(self.txn_ids)}")

        return model, call

    def txn_large(
        self, model: Model, rng: random.Random
    ) -> tuple[Model, Callable[[], None]] | None:
        """A message in chunks in the newest open transaction."""
        if not (model.topics and model.open_txns()):
            return None
        txn = model.open_txns()[-1]
        value, partition, sequence = self.new_value(model, rng)
        model.held.setdefault(txn, []).append((partition, value + LARGE))
        return model, lambda: void(
            self.client.producer(TOPIC, PRODUCER, chunking=True).send(
                (value + LARGE).encode(),
                partition=partition,
                sequence_id=sequence,
                txn=TxnId.parse(txn),
            )
        )

    def sweep(self, model: Model, rng: random.Random) -> tuple[Model, Callable[[], None]] | None:
        """Remove the files that nothing refers to."""
        return model, lambda: void(self.client.admin.gc(apply=True, keep_ms=0))

    def begin(self, model: Model, rng: random.Random) -> tuple[Model, Callable[[], None]] | None:
        """Begin a transaction; its id follows the last one."""
        model.txns[f"0:{len(self.txn_ids)}"] = "open"

        def call() -> None:
            txn = str(self.client.begin()["txn"])
            assert txn == f"0:{len(self.txn_ids)}"
            self.txn_ids.append(txn)

        return model, call

    def connect(self, model: Model, rng: random.Random) -> tuple[Model, Callable[[], None]] | None:
        """Connect the key, as a new holder or as the previous one."""
        presented = -1 if model.deleted else rng.choice((-1, model.epoch))
        model.fence()
        model.epoch, model.deleted = model.epoch + 1, False

        def call() -> None:
            assert self.client.connect(KEY, presented)["epoch"] == model.epoch

        return model, call

    def key_begin(
        self, model: Model, rng: random.Random
    ) -> tuple[Model, Callable[[], None]] | None:
        """Begin a transaction under the key."""
        if model.epoch < 0 or model.deleted:
            return None
        model.fence()
        model.bound = f"0:{len(self.txn_ids)}"
        model.txns[model.bound] = "open"

        def call() -> None:
            txn = str(self.client.begin(key=KEY, epoch=model.epoch)["txn"])
            assert txn == model.bound
            self.txn_ids.append(txn)

        return model, call

    def key_delete(
        self, model: Model, rng: random.Random
    ) -> tuple[Model, Callable[[], None]] | None:
        """Delete the key."""
        if model.epoch < 0 or model.deleted:
            return None
        model.fence()
        model.deleted = True
        return model, lambda: void(self.client.admin.delete_transaction_key(KEY))

    def txn_send(self, model: Model, rng: random.Random) -> tuple[Model, Callable[[], None]] | None:
        """A message in the newest open transaction."""
        if not (model.topics and model.open_txns()):
            return None
        txn = model.open_txns()[-1]
        value, partition, sequence = self.new_value(model, rng)
        model.held.setdefault(txn, []).append((partition, value))
        return model, lambda: void(
            self.client.producer(TOPIC, PRODUCER).send(
                value.encode(), partition=partition, sequence_id=sequence, txn=TxnId.parse(txn)
            )
        )

    def ack(self, model: Model, rng: random.Random) -> tuple[Model, Callable[[], None]] | None:
        """Acknowledge one message."""
        if not (model.subs and model.unclaimed()):
            return None
        value = rng.choice(model.unclaimed())
        model.acked.add(value)
        return model, lambda: self._acknowledge(value, None)

    def txn_ack(self, model: Model, rng: random.Random) -> tuple[Model, Callable[[], None]] | None:
        """Acknowledge one message in the oldest open transaction."""
        if not (model.subs and model.unclaimed() and model.open_txns()):
            return None
        txn, value = model.open_txns()[0], rng.choice(model.unclaimed())
        model.pending.setdefault(txn, set()).add(value)
        return model, lambda: self._acknowledge(value, TxnId.parse(txn))

    def commit(self, model: Model, rng: random.Random) -> tuple[Model, Callable[[], None]] | None:
        """Commit the newest open transaction."""
        return self._end(model, "committed")

    def abort(self, model: Model, rng: random.Random) -> tuple[Model, Callable[[], None]] | None:
        """Abort the newest open transaction."""
        return self._end(model, "aborted")

    def prepare(self, model: Model, rng: random.Random) -> tuple[Model, Callable[[], None]] | None:
        """Prepare the newest open transaction, as a commit together with a database does."""
        if not model.open_txns():
            return None
        txn = model.open_txns()[-1]
        model.txns[txn] = "prepared"
        return model, lambda: prepare(self.client, TxnId.parse(txn))

    def resolve(self, model: Model, rng: random.Random) -> tuple[Model, Callable[[], None]] | None:
        """End the oldest prepared transaction, as its database says."""
        prepared = [txn for txn, state in model.txns.items() if state == "prepared"]
        if not prepared:
            return None
        txn, commits = prepared[0], rng.random() < 0.5
        model.end(txn, "committed" if commits else "aborted")
        return model, lambda: void(self.client.resolve(TxnId.parse(txn), commit=commits))

    def joined(self, model: Model, rng: random.Random) -> tuple[Model, Callable[[], None]] | None:
        """A transaction whose operations and commit are one frame."""
        if not model.subs:
            return None
        expected = f"0:{len(self.txn_ids)}"
        # Take a message whose id is known. A look-up would flush the frames of other processes, and
        # a failure there skips ids.
        candidates = [value_of for value_of in model.unclaimed() if value_of in self.ids]
        acked = rng.choice(candidates) if candidates else None
        value, partition, sequence = self.new_value(model, rng)
        model.txns[expected] = "committed"
        model.log[partition].append(value)
        if acked is not None:
            model.acked.add(acked)

        def call() -> None:
            with self.client.transaction() as txn:
                self.client.producer(TOPIC, PRODUCER).send_async(
                    value.encode(), partition=partition, sequence_id=sequence, txn=txn
                )
                if acked is not None:
                    self.client.acknowledge_async(TOPIC, SUB, [self.ids[acked]], txn=txn)
            assert str(txn.id) == expected
            self.txn_ids.append(expected)

        return model, call

    def checkpoint(
        self, model: Model, rng: random.Random
    ) -> tuple[Model, Callable[[], None]] | None:
        """Move the journal into parts."""
        return model, lambda: void(self.client.checkpoint())

    def roll(self, model: Model, rng: random.Random) -> tuple[Model, Callable[[], None]] | None:
        """Roll every ledger over, write a checkpoint, seal, write the next checkpoint."""
        return model, lambda: void(self.client.checkpoint(roll_all=True))

    def compact(self, model: Model, rng: random.Random) -> tuple[Model, Callable[[], None]] | None:
        """Compact the sidecars: no visible message changes."""
        if not model.topics:
            return None
        return model, lambda: void(self.client.admin.compact(TOPIC))

    def trim(self, model: Model, rng: random.Random) -> tuple[Model, Callable[[], None]] | None:
        """Trim all messages, whether they are acknowledged or not."""
        if not model.topics:
            return None
        model.log = {n: [] for n in model.log}
        return model, lambda: void(self.client.admin.trim(TOPIC, END, force_unacked=True))

    def seek(self, model: Model, rng: random.Random) -> tuple[Model, Callable[[], None]] | None:
        """Seek to a message; conflicting transactions are aborted."""
        if not (model.subs and any(model.log.values())):
            return None
        partition = rng.choice([n for n, part in model.log.items() if part])
        part = model.log[partition]
        at = rng.randrange(len(part))
        for txn in [txn_id for txn_id, acks in model.pending.items() if acks & set(part)]:
            model.end(txn, "aborted")
        model.acked = (model.acked | set(part[:at])) - set(part[at:])

        def call() -> None:
            where = observe_ids(self.client)[part[at]]
            self.client.subscription(TOPIC, SUB).seek(where, force=True)

        return model, call

    def skip(self, model: Model, rng: random.Random) -> tuple[Model, Callable[[], None]] | None:
        """Skip one message of each partition."""
        if not model.subs:
            return None
        free = set(model.unclaimed())
        for part in model.log.values():
            model.acked |= set([value for value in part if value in free][:1])
        return model, lambda: void(self.client.subscription(TOPIC, SUB).skip(1))

    def grow(self, model: Model, rng: random.Random) -> tuple[Model, Callable[[], None]] | None:
        """Add a partition."""
        if not model.topics:
            return None
        model.log[len(model.log)] = []
        count = len(model.log)
        return model, lambda: void(self.client.admin.update_topic(TOPIC, count))

    def delete_sub(
        self, model: Model, rng: random.Random
    ) -> tuple[Model, Callable[[], None]] | None:
        """Delete the subscription; pending acknowledgements there are dropped."""
        if not model.subs:
            return None
        model.subs.clear()
        model.acked.clear()
        model.pending.clear()
        return model, lambda: void(self.client.subscription(TOPIC, SUB).delete())

    def delete_topic(
        self, model: Model, rng: random.Random
    ) -> tuple[Model, Callable[[], None]] | None:
        """Delete the topic with everything in it."""
        if not model.topics:
            return None
        for contents in (model.topics, model.subs, model.acked, model.pending, model.held):
            contents.clear()
        model.batches.clear()
        model.log = {n: [] for n in range(PARTITIONS)}
        return model, lambda: void(self.client.admin.delete_topic(TOPIC, force=True))

    def _end(self, model: Model, state: str) -> tuple[Model, Callable[[], None]] | None:
        if not model.open_txns():
            return None
        txn = model.open_txns()[-1]
        model.end(txn, state)
        end = self.client.commit if state == "committed" else self.client.abort
        return model, lambda: void(end(TxnId.parse(txn)))

    def _acknowledge(self, value: str, txn: TxnId | None) -> None:
        where = observe_ids(self.client)[value]
        self.client.acknowledge(TOPIC, SUB, [where], txn=txn)

    bulk, bulk_again = bulking.bulk, bulking.bulk_again

    def new_value(self, model: Model, rng: random.Random) -> tuple[str, int, int]:
        self.sent += 1
        return f"v{self.sent}", rng.randrange(len(model.log)), self.sent


def void(answer: object) -> None:
    """Drop an answer."""

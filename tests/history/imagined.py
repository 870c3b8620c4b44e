"""Makes random histories of an imagined store that keeps every promise.

Calls of several processes overlap: each begins, takes effect at once at some later step, and is
answered at a step after that. A process may die in a call, before or after its effect. A power cut
kills all of them, aborts open transactions and takes back acknowledgements that no flush covered.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from tests.history.events import Event, Recorder

TOPICS = {"t": 2, "u": 1}
SUBSCRIPTIONS = {"shared": "shared", "only": "exclusive", "keys": "key_shared"}
KEYS = ("a", "b", "c")
Partition = tuple[str, int]
Message = tuple[str, str, str]  # id, value, key


class RefusedError(Exception):
    """The imagined store refuses a call."""


@dataclass
class Txn:
    """A transaction: what it holds, and how it ended."""

    name: str
    key: str | None
    sends: list[tuple[Partition, str, str]] = field(default_factory=list)
    acks: list[tuple[str, str]] = field(default_factory=list)
    state: str = "open"


@dataclass
class Cursor:
    """A subscription of topic t: who has which message, and what is acknowledged."""

    kind: str
    held: dict[str, str] = field(default_factory=dict)
    acked: set[str] = field(default_factory=set)
    pending: dict[str, Txn] = field(default_factory=dict)
    flushed: set[str] = field(default_factory=set)


@dataclass
class Open:
    """A call under way: what it will do, and what it will answer."""

    call: int
    process: str
    act: Callable[[], dict[str, Any]]
    answer: dict[str, Any] | None = None
    error: str | None = None
    is_done: bool = False


class Store:
    """The imagined store."""

    def __init__(self) -> None:
        self.log: dict[Partition, list[Message]] = {
            (topic, number): [] for topic, count in TOPICS.items() for number in range(count)
        }
        self.sequences: set[tuple[Partition, str, int]] = set()
        self.epochs: dict[str, int] = {}
        self.open_of_key: dict[str, Txn] = {}
        self.txns: dict[str, Txn] = {}
        self.cursors = {name: Cursor(kind) for name, kind in SUBSCRIPTIONS.items()}
        self._entries = 0

    def append(self, messages: list[tuple[Partition, str, str]]) -> list[str]:
        """Messages become visible together; returns their ids."""
        self._entries += 1
        ids = []
        for index, (where, value, key) in enumerate(messages, 1):
            id_ = f"{1 + list(self.log).index(where)}:{self._entries}:{index}"
            self.log[where].append((id_, value, key))
            ids.append(id_)
        return ids

    def flush(self) -> None:
        """Everything that was written survives a power cut."""
        for cursor in self.cursors.values():
            cursor.flushed = set(cursor.acked)

    def send(self, where: Partition, value: str, key: str, name: str, sequence: int) -> Any:
        """A plain send; a repeated sequence is not stored."""
        self.flush()
        scope = (where, name, sequence)
        if scope in self.sequences:
            return {"partition": where[1], "duplicate": True}
        self.sequences.add(scope)
        return {"partition": where[1], "id": self.append([(where, value, key)])[0]}

    def connect(self, key: str) -> dict[str, Any]:
        """The next epoch of a key; fences its open transaction."""
        self.flush()
        self._fence(key)
        self.epochs[key] = self.epochs.get(key, -1) + 1
        return {"epoch": self.epochs[key]}

    def _fence(self, key: str) -> None:
        txn = self.open_of_key.pop(key, None)
        if txn is not None and txn.state == "open":
            self._abort(txn, "fenced")

    def begin(self, txn: Txn, epoch: int | None) -> dict[str, Any]:
        """Open a transaction under the newest epoch of its key."""
        if txn.key is not None:
            if self.epochs.get(txn.key) != epoch:
                raise RefusedError("ProducerFenced")
            self._fence(txn.key)
            self.open_of_key[txn.key] = txn
        self.txns[txn.name] = txn
        return {"txn": txn.name}

    def _opened(self, name: str) -> Txn:
        txn = self.txns[name]
        if txn.state != "open":
            raise RefusedError(
                "ExpiredTransaction" if txn.state == "fenced" else "InvalidTxnStatus"
            )
        return txn

    def hold(self, name: str, where: Partition, value: str, key: str) -> dict[str, Any]:
        """A send in a transaction."""
        self._opened(name).sends.append((where, value, key))
        return {"partition": where[1]}

    def commit(self, name: str) -> dict[str, Any]:
        """Everything becomes visible."""
        self.flush()
        if self.txns[name].state == "committed":
            return {"state": "committed"}
        txn = self._opened(name)
        txn.state = "committed"
        self.append(txn.sends)
        for subscription, id_ in txn.acks:
            cursor = self.cursors[subscription]
            del cursor.pending[id_]
            cursor.acked.add(id_)
            cursor.flushed.add(id_)
        return {"state": "committed"}

    def abort(self, name: str) -> dict[str, Any]:
        """Nothing becomes visible."""
        self.flush()
        self._abort(self._opened(name), "aborted")
        return {"state": "aborted"}

    def _abort(self, txn: Txn, state: str) -> None:
        txn.state = state
        for subscription, id_ in txn.acks:
            cursor = self.cursors[subscription]
            del cursor.pending[id_]
            self._rewind(cursor)

    def read(self) -> dict[str, Any]:
        """Everything at this moment."""
        topics: dict[str, dict[str, list[list[str]]]] = {}
        for (topic, number), messages in self.log.items():
            rows = [[id_, value] for id_, value, _ in messages]
            topics.setdefault(topic, {})[str(number)] = rows
        return {"topics": topics}

    def read_on(self, seen: dict[Partition, int]) -> dict[str, Any]:
        """What came since the last read of a reader."""
        topics: dict[str, dict[str, list[list[str]]]] = {}
        for (topic, number), messages in self.log.items():
            rows = [[i, value] for i, value, _ in messages[seen.get((topic, number), 0) :]]
            seen[topic, number] = len(messages)
            topics.setdefault(topic, {})[str(number)] = rows
        return {"topics": topics}

    def receive(self, name: str, consumer: str, most: int) -> dict[str, Any]:
        """Lease messages to a consumer."""
        cursor = self.cursors[name]
        chosen: list[dict[str, Any]] = []
        for number in range(TOPICS["t"]):
            blocked: set[str] = set()
            for id_, value, key in self.log["t", number]:
                is_free = not (id_ in cursor.held or id_ in cursor.acked or id_ in cursor.pending)
                if is_free and key not in blocked and len(chosen) < most:
                    chosen.append({"partition": number, "id": id_, "value": value, "key": key})
                    cursor.held[id_] = consumer
                elif id_ not in cursor.acked and cursor.kind == "key_shared":
                    blocked.add(key)
        return {"messages": chosen}

    def acknowledge(self, name: str, ids: list[str], txn_name: str | None) -> dict[str, Any]:
        """Acknowledge messages, plainly or in a transaction."""
        cursor = self.cursors[name]
        if txn_name is None:
            dropped = [id_ for id_ in ids if id_ in cursor.pending]
            cursor.acked.update(set(ids) - set(dropped))
            return {"dropped": len(dropped)} if dropped else {}
        txn = self._opened(txn_name)
        if any(id_ in cursor.acked or id_ in cursor.pending for id_ in ids):
            self._abort(txn, "aborted")
            raise RefusedError("TransactionConflict")
        for id_ in ids:
            cursor.pending[id_] = txn
            cursor.held.pop(id_, None)
            txn.acks.append((name, id_))
        return {}

    def release(self, name: str, consumer: str, ids: list[str] | None) -> dict[str, Any]:
        """A consumer gives back messages, or all."""
        cursor = self.cursors[name]
        for id_, holder in list(cursor.held.items()):
            if holder == consumer and (ids is None or id_ in ids):
                del cursor.held[id_]
        self._rewind(cursor)
        return {}

    def _rewind(self, cursor: Cursor) -> None:
        if cursor.kind == "exclusive":
            cursor.held.clear()

    def power_cut(self) -> None:
        """Open transactions are aborted; unflushed acknowledgements and leases are gone."""
        for txn in self.txns.values():
            if txn.state == "open":
                self._abort(txn, "aborted")
        for cursor in self.cursors.values():
            cursor.acked &= cursor.flushed
            cursor.held.clear()


class Player:
    """Plays processes against the store."""

    def __init__(self, seed: int, steps: int) -> None:
        self.chance = random.Random(seed)
        self.store, self.recorder = Store(), Recorder()
        self.open: dict[str, Open] = {}
        self.processes = ["p1", "p2", "p3", "p4"]
        self.count = 0
        self.consumer: dict[str, tuple[str, str]] = {}  # process -> subscription, consumer
        self.hands: dict[str, list[str]] = {}  # consumer -> ids
        self.txn: dict[str, str] = {}  # process -> its open transaction
        self.epoch: dict[str, int] = {}  # process -> its epoch of key k
        self.seen: dict[str, dict[Partition, int]] = {}  # reader -> how far it is
        self.unknown: list[tuple[Partition, str, str, str, int]] = []
        for name, kind in SUBSCRIPTIONS.items():
            args = {"topic": "t", "subscription": name, "kind": kind, "initial": "earliest"}
            self.recorder.ok(self.recorder.invoke("begin", "subscribe", **args))
        for _ in range(steps):
            self.step()
        self.finish()

    def step(self) -> None:
        """A call begins, takes effect or is answered, or something dies."""
        fate = self.chance.random()
        if fate < 0.004:
            self.power_cut()
        elif fate < 0.02:
            self.kill(self.chance.choice(self.processes))
        else:
            process = self.chance.choice(self.processes)
            if process not in self.open:
                self.invoke(process)
            elif not self.open[process].is_done:
                self.act(self.open[process])
            else:
                self.answer(self.open.pop(process))

    def act(self, call: Open) -> None:
        """The call takes effect."""
        call.is_done = True
        try:
            call.answer = call.act()
        except RefusedError as error:
            call.error = str(error)

    def answer(self, call: Open) -> None:
        """The call returns."""
        if call.error is not None:
            self.recorder.fail(call.call, call.error)
            self.txn.pop(call.process, None)
        else:
            self.recorder.ok(call.call, **(call.answer or {}))

    def invoke(self, process: str) -> None:
        """Begin a random call."""
        acts = (self.send, self.transact, self.read, self.consume, self.connect)
        self.chance.choices(acts, (4, 5, 1, 5, 0.4))[0](process)

    def begin(self, process: str, op: str, act: Callable[[], dict[str, Any]], **args: Any) -> None:
        """Record the invocation of a call that will do `act`."""
        self.open[process] = Open(self.recorder.invoke(process, op, **args), process, act)

    def where(self) -> Partition:
        """Any partition."""
        return self.chance.choice(list(self.store.log))

    def value(self) -> str:
        """A new value."""
        self.count += 1
        return f"m{self.count}"

    def send(self, process: str) -> None:
        """A named plain send; one with an unknown outcome is repeated."""
        if self.unknown and self.chance.random() < 0.5:
            where, value, key, name, number = self.unknown.pop()
        else:
            where, value, key = self.where(), self.value(), self.chance.choice(KEYS)
            name, number = process, self.count
        args = {"topic": where[0], "partition": where[1], "value": value, "key": key}
        self.begin(
            process,
            "send",
            lambda: self.store.send(where, value, key, name, number),
            **{**args, "producer": name, "sequence": number},
        )

    def transact(self, process: str) -> None:
        """Begin a transaction, or send, acknowledge, commit or abort in it."""
        txn = self.txn.get(process)
        if txn is None:
            self.count += 1
            epoch = self.epoch.get(process)
            opened = Txn(f"0:{self.count}", None if epoch is None else "k")
            self.txn[process] = opened.name
            args = {} if epoch is None else {"key": "k", "epoch": epoch}
            self.begin(process, "begin", lambda: self.store.begin(opened, epoch), **args)
            return
        fate = self.chance.random()
        if fate < 0.6:
            where, value, key = self.where(), self.value(), self.chance.choice(KEYS)
            args = {"topic": where[0], "partition": where[1], "value": value, "key": key}
            self.begin(
                process, "send", lambda: self.store.hold(txn, where, value, key), **args, txn=txn
            )
            return
        del self.txn[process]
        op, act = ("commit", self.store.commit) if fate < 0.9 else ("abort", self.store.abort)
        self.begin(process, op, lambda: act(txn), txn=txn)

    def read(self, process: str) -> None:
        """Read everything, or continue."""
        if self.chance.random() < 0.5:
            self.begin(process, "read", self.store.read)
            return
        seen = self.seen.setdefault(process, {})
        name = f"r{process}"
        args = {"reader": name, "start": "earliest"}
        self.begin(process, "read", lambda: self.store.read_on(seen), **args)

    def connect(self, process: str) -> None:
        """Connect the key, and use its epoch from then on."""

        def act() -> dict[str, Any]:
            answer = self.store.connect("k")
            self.epoch[process] = answer["epoch"]
            return answer

        self.begin(process, "connect_key", act, key="k")

    def consume(self, process: str) -> None:
        """Subscribe, receive, acknowledge, return or close."""
        if process not in self.consumer:
            taken = {name for name, _ in self.consumer.values()}
            free = [n for n, kind in SUBSCRIPTIONS.items() if kind != "exclusive" or n not in taken]
            name = self.chance.choice(free)
            self.count += 1
            consumer = f"c{self.count}"
            self.consumer[process] = (name, consumer)
            self.hands[consumer] = []
            args = {"kind": SUBSCRIPTIONS[name], "topic": "t", "subscription": name}
            self.begin(process, "subscribe", dict, consumer=consumer, **args, initial="earliest")
            return
        name, consumer = self.consumer[process]
        args = {"topic": "t", "subscription": name, "consumer": consumer}
        hand, fate = self.hands[consumer], self.chance.random()
        if not hand and fate < 0.95:
            self.begin(process, "receive", lambda: self._receive(name, consumer), **args)
        elif fate < 0.7:
            ids = [hand.pop(0) for _ in range(self.chance.randint(1, len(hand)))]
            txn = self.txn.get(process) if self.chance.random() < 0.5 else None
            in_txn = {"txn": txn} if txn is not None else {}
            self.begin(
                process,
                "acknowledge",
                lambda: self.store.acknowledge(name, ids, txn),
                **{**args, **in_txn, "ids": ids},
            )
        elif fate < 0.95:
            ids = list(hand)
            hand.clear()
            self.begin(
                process, "nack", lambda: self.store.release(name, consumer, ids), **args, ids=ids
            )
        else:
            self.begin(process, "close", lambda: self._close(process), consumer=consumer)

    def _receive(self, name: str, consumer: str) -> dict[str, Any]:
        answer = self.store.receive(name, consumer, self.chance.randint(1, 5))
        self.hands[consumer] += [message["id"] for message in answer["messages"]]
        return answer

    def _close(self, process: str) -> dict[str, Any]:
        name, consumer = self.consumer.pop(process)
        return self.store.release(name, consumer, None)

    def kill(self, process: str) -> None:
        """A process dies in its call, if it is in one."""
        call = self.open.pop(process, None)
        if call is not None and self.chance.random() < 0.5 and not call.is_done:
            self.act(call)
        self.recorder.event("kill", process=process)
        if process in self.consumer:
            self._close(process)
        self.txn.pop(process, None)
        self.epoch.pop(process, None)
        self.seen.pop(process, None)
        self.processes[self.processes.index(process)] = f"{process}'"
        if call is not None:
            invoked = next(
                e for e in reversed(self.recorder.events)
                if e.call == call.call and e.type == "invoke"
            )  # fmt: skip
            args = invoked.args
            if invoked.op == "send" and "txn" not in args:
                self.unknown.append(
                    ((args["topic"], args["partition"]), args["value"], args["key"],
                     args["producer"], args["sequence"])
                )  # fmt: skip

    def power_cut(self) -> None:
        """The power fails."""
        self.store.power_cut()
        self.recorder.event("power_cut")
        self.open.clear()
        self.consumer.clear()
        self.txn.clear()
        self.epoch.clear()
        self.processes = [f"{process}'" for process in self.processes]

    def finish(self) -> None:
        """Kill everybody, end what is open, and read all there is."""
        for process in list(self.processes):
            self.kill(process)
        for txn in self.store.txns.values():
            if txn.state == "open":
                call = self.recorder.invoke("end", "abort", txn=txn.name)
                self.recorder.ok(call, **self.store.abort(txn.name))
        call = self.recorder.invoke("end", "final_read")
        self.recorder.ok(call, **self.store.read())
        for name in SUBSCRIPTIONS:
            call = self.recorder.invoke("end", "final_drain", topic="t", subscription=name)
            self.recorder.ok(call, **self.store.receive(name, "end", 1 << 30))


def imagine(seed: int, steps: int) -> list[Event]:
    """A random correct history."""
    return deepcopy(Player(seed, steps).recorder.events)

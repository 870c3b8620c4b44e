"""Committed transactions have one order; snapshots at any LSN show a prefix of it (I-6, I-7).

Several clients make a history with random sends, acknowledgements, ends, a partition that goes
offline and comes back, and crashes. Then the test checks it. Histories that were broken by hand
check the checker itself.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.engine_kit import Bench
from tests.tiers import graded
from txlog import Client, MessageId, messages
from txlog.base.ids import TxnId
from txlog.engine.folds.cursor import BEFORE_ALL
from txlog.engine.plan.reading.dispatch import plan
from txlog.engine.view import View
from txlog.errors import InvalidTxnStatus, PartitionUnavailable, TransactionConflict

pytestmark = pytest.mark.usefixtures("quick_disk")
PARTITIONS = 3
STEPS = 250


@dataclass
class Committed:
    """A committed transaction: its decision, its messages and acknowledgements, and its call."""

    lsn: int
    called: int
    returned: int
    acked: set[MessageId] = field(default_factory=set)


@dataclass
class History:
    """The events; markers and snapshots name transactions."""

    committed: dict[TxnId, Committed] = field(default_factory=dict)
    writer: dict[MessageId, TxnId] = field(default_factory=dict)
    markers: dict[int, list[TxnId]] = field(default_factory=dict)
    # (LSN, partition) -> the transactions that a snapshot at this LSN shows there
    snapshots: dict[tuple[int, int], list[TxnId]] = field(default_factory=dict)
    wrote: dict[TxnId, set[int]] = field(default_factory=dict)


def check(history: History) -> None:
    """Raise AssertionError unless the history has the serial order of its decisions."""
    committed = history.committed
    for partition, order in history.markers.items():
        lsns = [committed[txn].lsn for txn in order]
        assert lsns == sorted(set(lsns)), f"partition {partition} is not in order of decisions"
    for (lsn, partition), snapshot in history.snapshots.items():
        expected = [t for t in history.markers[partition] if committed[t].lsn <= lsn]
        assert snapshot == expected, f"snapshot {lsn} of partition {partition}"
    holders: dict[MessageId, TxnId] = {}
    for txn, txn_state in committed.items():
        for message in txn_state.acked:
            assert message not in holders, (
                f"{message} was acknowledged by {holders[message]} and {txn}"
            )
            holders[message] = txn
            source = history.writer.get(message)
            if source is not None:
                assert committed[source].lsn < txn_state.lsn, (
                    f"{txn} read from {source}, which is later"
                )
    by_call = sorted(committed.values(), key=lambda txn_state: txn_state.lsn)
    for at, later in enumerate(by_call):
        for earlier in by_call[at + 1 :]:
            assert earlier.returned > later.called, "returned before the other was called"


class Player:
    """Makes a history on a store."""

    def __init__(self, bench: Bench, chance: random.Random) -> None:
        self.bench = bench
        self.chance = chance
        self.clients = [bench.client, bench.another(), bench.another()]
        self.open: list[TxnId] = []
        self.acked: dict[TxnId, set[MessageId]] = {}
        self.history = History()
        self.away: int | None = None
        self.count = 0
        self.lsns: list[int] = []
        bench.client.create_topic("t", PARTITIONS)
        bench.client.create_subscription("t", "s")

    def client(self) -> Client:
        """Any of the clients."""
        return self.chance.choice(self.clients)

    def step(self) -> None:
        """Take one random step."""
        self.count += 1
        do = self.chance.choices(
            (self.begin, self.send, self.ack, self.commit, self.abort, self.go, self.crash),
            (4, 8, 4, 4, 1, 1, 1),
        )[0]
        do()
        self.lsns.append(self.bench.clients[0].store.refresh())

    def begin(self) -> None:
        """Open another transaction."""
        txn = self.client().begin()["txn"]
        assert isinstance(txn, TxnId)
        self.open.append(txn)
        self.acked[txn] = set()

    def send(self) -> None:
        """A message in a transaction, or a plain one."""
        partition = self.chance.randrange(PARTITIONS)
        txn = self.chance.choice([*self.open, None])
        try:
            self.client().producer("t").send(b"v", partition=partition, txn=txn)
        except PartitionUnavailable:
            assert partition == self.away

    def ack(self) -> None:
        """A visible message in a transaction; a conflict ends the transaction."""
        if not self.open:
            return
        txn = self.chance.choice(self.open)
        readable = [n for n in range(PARTITIONS) if n != self.away]
        message_ids = [
            message.message_id
            for table in self.client().read("t", partitions=readable)
            for message in messages(table)
            if message.message_id is not None
        ]
        if not message_ids:
            return
        chosen = self.chance.choice(message_ids)
        try:
            self.client().acknowledge("t", "s", [chosen], txn=txn)
            self.acked[txn].add(chosen)
        except TransactionConflict:
            self.open.remove(txn)

    def commit(self) -> None:
        """Decide one; a transaction that waits for a partition is decided all the same."""
        if not self.open:
            return
        txn = self.open.pop(self.chance.randrange(len(self.open)))
        called = self.count
        self.client().commit(txn)
        self.count += 1
        self.history.committed[txn] = Committed(0, called, self.count, self.acked[txn])

    def abort(self) -> None:
        """Abort one transaction."""
        if self.open:
            self.client().abort(self.open.pop(self.chance.randrange(len(self.open))))

    def go(self) -> None:
        """Take a partition offline or online."""
        if self.away is None:
            self.away = self.chance.randrange(PARTITIONS)
            self.client().admin.set_offline("t", self.away)
        else:
            self.client().admin.set_online("t", self.away)
            self.away = None

    def crash(self) -> None:
        """A process dies and is started again; its open transactions go on."""
        at = self.chance.randrange(len(self.clients))
        self.clients[at] = self.bench.another()

    def finish(self) -> History:
        """Bring every partition back, and record the decisions, markers and snapshots."""
        if self.away is not None:
            self.go()
        client = self.bench.client
        history = self.history
        for txn, outcome in history.committed.items():
            txn_row = client.show_transaction(txn)
            assert txn_row["state"] == "committed"
            assert txn_row["decision_lsn"] is not None
            outcome.lsn = txn_row["decision_lsn"]
        end = client.store.read(lambda view: view)
        for number in range(1, PARTITIONS + 1):
            known_markers = [
                m
                for ledger in sorted(end.buffer(number).markers)
                for m in end.buffer(number).markers[ledger]
            ]
            history.markers[number] = [TxnId(m.coordinator, m.sequence) for m in known_markers]
            for ledger, markers in end.buffer(number).markers.items():
                for marker in markers:
                    for index in range(1, marker.count + 1):
                        where = MessageId(ledger, marker.entry, index)
                        history.writer[where] = TxnId(marker.coordinator, marker.sequence)
        for lsn in self.chance.sample(self.lsns, 20):
            self.look(lsn, end)
        return history

    def look(self, lsn: int, end: View) -> None:
        """Record the content of a snapshot at an LSN; an offline partition has none."""
        store = self.bench.client.store
        view = View.open(store.disk, store.identity.salt, store.clock.now().boot_id)
        view.take(view.journal.read_until(lsn))
        for number in range(1, PARTITIONS + 1):
            if number in view.catalog.unavailable or not view.topic(number).ledgers:
                continue
            txn_ids = [
                TxnId(piece.marker.coordinator, piece.marker.sequence)
                for piece in plan(view, number, BEFORE_ALL, 1 << 30).pieces
                if piece.marker is not None
            ]
            self.history.snapshots[(lsn, number)] = txn_ids
        view.close()


@pytest.mark.parametrize("seed", graded(range(6), 1))
def test_random_histories_have_the_order_of_their_decisions(tmp_path: Path, seed: int) -> None:
    """(a) to (e), at random snapshots, with a partition away now and then."""
    print("seed", seed)
    bench = Bench(tmp_path / "store", ledger_entries_max=20)
    player = Player(bench, random.Random(seed))
    for _ in range(STEPS):
        player.step()
    history = player.finish()
    assert len(history.committed) > 10
    assert any(history.snapshots.values())
    check(history)
    bench.close()


X, Y = TxnId(0, 0), TxnId(1, 0)
ID = MessageId(1, 0, 1)


def two() -> History:
    """X, then Y, which acknowledged a message of X."""
    return History(
        committed={X: Committed(5, 1, 2), Y: Committed(9, 3, 4, {ID})},
        writer={ID: X},
        markers={1: [X, Y], 2: [Y]},
        snapshots={(5, 1): [X], (9, 1): [X, Y], (7, 2): []},
    )


def test_the_checker_accepts_a_good_history() -> None:
    check(two())


@pytest.mark.parametrize(
    "broken", ["marker order", "half a snapshot", "early snapshot", "reads the future",
               "acknowledged twice", "against real time"]
)  # fmt: skip
def test_the_checker_catches_broken_histories(broken: str) -> None:
    history = two()
    if broken == "marker order":
        history.markers[1].reverse()
    elif broken == "half a snapshot":
        history.snapshots[(9, 2)] = []
    elif broken == "early snapshot":
        history.snapshots[(5, 1)] = [X, Y]
    elif broken == "reads the future":
        history.writer[ID] = Y
        history.committed[X].acked, history.committed[Y].acked = {ID}, set()
    elif broken == "acknowledged twice":
        history.committed[X].acked = {ID}
        del history.writer[ID]
    else:
        history.committed[X].called, history.committed[X].returned = 10, 11
    with pytest.raises(AssertionError):
        check(history)


def test_an_end_that_was_refused_is_in_no_order(tmp_path: Path) -> None:
    """A commit after an abort does not affect the order."""
    bench = Bench(tmp_path / "store")
    bench.client.create_topic("t")
    txn = bench.client.begin()["txn"]
    bench.client.producer("t").send(b"v", txn=txn)
    bench.client.abort(txn)
    with pytest.raises(InvalidTxnStatus):
        bench.client.commit(txn)
    assert bench.client.store.read(lambda view: view.buffer(1).markers) == {}

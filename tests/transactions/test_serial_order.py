"""Serial order and one frame for all, while partitions go offline and come back; I-6, I-7, I-17.

Random transactions over two topics, ended in any order. After every step a reader must get exactly
the messages that the answers allow. `TXLOG_SEED` repeats a run.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.engine_kit import Bench, read
from tests.laws.history import dumps, fresh, live_dumps
from tests.tiers import graded
from txlog import Client, MessageId, TxnId
from txlog.engine.folds.coordinator import ABORTED, COMMITTED, ENDED, OPEN, Txn
from txlog.engine.view import View
from txlog.errors import PartitionUnavailable, TransactionConflict, TxlogError

pytestmark = pytest.mark.usefixtures("quick_disk")
SEED = int(os.environ.get("TXLOG_SEED", "20260101"))
TOPICS, PARTITIONS, STEPS = ("t", "u"), 2, 130
PLACES = [(topic, partition) for topic in TOPICS for partition in range(PARTITIONS)]
ACTS = "begin begin begin send send send send send ack ack commit idle switch".split()
ACTS_AWAY = "begin send send ack commit commit commit abort idle switch".split()
Sent = dict[TxnId, list[tuple[str, int, bytes]]]


def all_txns(view: View) -> Iterator[Txn]:
    """Every transaction that a coordinator remembers."""
    view.load_coordinators()
    for _, state in view.loaded_coordinators():
        yield from (*state.unfinished.values(), *state.ended.values())


def check_view(view: View) -> None:
    """The invariants after every frame."""
    decided = {(t.coordinator, t.sequence): t for t in all_txns(view)}
    away = view.catalog.unavailable
    for topic in view.catalog.topics.values():
        for number in range(topic.first_partition, topic.first_partition + topic.partitions):
            lsns = []
            for _, markers in sorted(view.buffer(number).markers.items()):
                for marker in markers:
                    txn = decided[(marker.coordinator, marker.sequence)]
                    assert txn.status not in (OPEN, ABORTED), "I-3"
                    lsns.append(txn.decision_lsn)
            assert lsns == sorted(set(lsns)), f"I-7: markers of {number} stand at {lsns}"
    for txn in decided.values():
        pair = (txn.coordinator, txn.sequence)
        holds = {n for n in txn.partitions if view.buffer(n).held.get(pair[0], {}).get(pair[1])}
        holds |= {n for s, n in txn.subscriptions if pair in view.cursor(s, n).pending}
        if txn.status in ENDED:
            assert not holds
        elif txn.status != OPEN:
            assert holds, "I-17: decided and with nothing to wait for"
            assert holds <= set(away), "I-17: an available participant was left out"


def check_reads(bench: Bench, sent: Sent, away: set[tuple[str, int]]) -> None:
    """I-6: readable partitions have the messages of every committed transaction, and no other."""
    rows = {row["txn"]: row["state"] for row in bench.client.transactions(all=True)}
    for topic in TOPICS:
        for partition in range(PARTITIONS):
            if (topic, partition) in away:
                with pytest.raises(PartitionUnavailable):
                    read(bench.client, topic, partitions=[partition])
                continue
            seen = [m.value for m in read(bench.client, topic, partitions=[partition])]
            expected = [
                value
                for txn, values in sent.items()
                for t, p, value in values
                if (t, p) == (topic, partition) and rows[txn] in ("committed", "committing")
            ]
            assert sorted(seen) == sorted(expected)  # type: ignore[type-var]


def check_replay(bench: Bench) -> None:
    """Law 1: the newest checkpoint and the frames after it give the live state."""
    live = live_dumps(bench.client)
    with fresh(bench) as view:
        view.take(view.journal.read_durable())
        assert dumps(view) == live


def switch(client: Client, away: set[tuple[str, int]], location: str) -> int:
    """Take a partition offline or online; returns how many transactions waited there together."""
    topic, _, partition = location.partition("/")
    key = (topic, int(partition))
    if key not in away:
        client.admin.set_offline(location)
        away.add(key)
        return 0
    waiting = [row for row in client.transactions() if location in row["waiting_list"]]
    client.admin.set_online(location)
    away.remove(key)
    return max(0, len([row for row in waiting if row["state"] == "committing"]) - 1)


@pytest.mark.parametrize("number", graded(range(3), 1))
def test_random_ends_while_partitions_come_and_go(tmp_path: Path, number: int) -> None:
    """I-6, I-7, I-10, I-17, also after all partitions are back and after a reopening."""
    print("seed", SEED, number)
    chance = random.Random(f"{SEED} {number}")
    bench = Bench(tmp_path / "store", coordinators=3, ledger_entries_max=7)
    for topic in TOPICS:
        bench.client.create_topic(topic, PARTITIONS)
        bench.client.create_subscription(topic, "s")
    sent: Sent = {}
    open_ones: list[TxnId] = []
    away: set[tuple[str, int]] = set()
    together = 0
    for step in range(STEPS):
        client = bench.client
        act = chance.choice(ACTS_AWAY if away else ACTS)
        topic, partition = chance.choice(TOPICS), chance.randrange(PARTITIONS)
        txn = chance.choice(open_ones) if open_ones else None
        if act == "begin" or txn is None:
            txn = client.begin(chance.choice((20_000, 200_000)))["txn"]
            assert isinstance(txn, TxnId)
            open_ones.append(txn)
            sent[txn] = []
        elif act == "switch":
            if away and chance.random() < 0.7:
                topic, partition = chance.choice(sorted(away))
            together += switch(client, away, f"{topic}/{partition}")
        elif act == "idle":
            bench.clock.advance(chance.choice((10, 2_000)))
            if chance.random() < 0.3:
                client.checkpoint(roll_all=chance.random() < 0.5)
                check_replay(bench)
                bench.reopen()
        else:
            with suppress(PartitionUnavailable, TransactionConflict, TxlogError):
                if act == "send":
                    for location in chance.sample(PLACES, 3):
                        value = b"%d %s %d" % (step, location[0].encode(), location[1])
                        client.producer(location[0]).send(value, partition=location[1], txn=txn)
                        sent[txn].append((*location, value))
                elif act == "ack":
                    message_ids = [
                        m.message_id for m in read(client, topic, partitions=[partition])
                    ]
                    ids = [open_txn for open_txn in message_ids if isinstance(open_txn, MessageId)]
                    if ids:
                        client.acknowledge(topic, "s", [chance.choice(ids)], txn=txn)
                elif act == "commit":
                    client.commit(txn)
                else:
                    client.abort(txn)
        states = {row["txn"]: row["state"] for row in bench.client.transactions(all=True)}
        open_ones = [open_txn for open_txn in open_ones if states[open_txn] == "open"]
        bench.client.store.read(check_view)
        if step % 5 == 0:
            check_reads(bench, sent, away)
    for topic, partition in sorted(away):
        together += switch(bench.client, away, f"{topic}/{partition}")
    bench.clock.advance(200_001)
    bench.client.expire()
    assert bench.client.transactions() == []
    check_reads(bench, sent, set())
    check_replay(bench)
    bench.reopen()
    check_reads(bench, sent, set())
    bench.client.store.read(check_view)
    assert any(
        txn.status == COMMITTED for txn in bench.client.store.read(lambda v: list(all_txns(v)))
    )
    print("waited together:", together)

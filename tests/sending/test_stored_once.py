"""Messages of a named producer are stored once: the store against a plain set of numbers.

Batches by key and by partition, single and large messages, queues and transactions, in the order of
numbers or not, with checkpoints and restarts in between.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import txlog
from tests.engine_kit import Bench, begin, read
from tests.tiers import graded
from txlog import TxnId
from txlog.engine.folds import topic as folds
from txlog.engine.model import sequences
from txlog.engine.plan.route import partition_of_key
from txlog.engine.session.sending.message import SendReceipt
from txlog.engine.view import View
from txlog.errors import LimitExceeded

pytestmark = pytest.mark.usefixtures("quick_disk")
PARTITIONS, STEPS, NAME = 3, 100, "p"
KEYS = [b"k%d" % number for number in range(6)]


class Scope:
    """The stored messages of each partition: numbers, and the values in their order."""

    def __init__(self) -> None:
        self.numbers: list[set[int]] = [set() for _ in range(PARTITIONS)]
        self.values: list[list[bytes]] = [[] for _ in range(PARTITIONS)]

    def top(self) -> int:
        """The highest number."""
        return max((max(each, default=-1) for each in self.numbers), default=-1)


class Trial:
    """A store, and its expected content; every step is random."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.bench = Bench(folder, max_message_bytes=1000, max_chunked_message_bytes=50_000)
        self.bench.client.create_topic("t", partitions=PARTITIONS)
        self.producer = self.bench.client.producer("t", name=NAME, chunking=True)
        self.plain, self.txns = Scope(), dict[TxnId, Scope]()
        self.count = self.refused = 0

    def step(self) -> None:
        """Send something, or do something else."""
        chance, client = self.chance, self.bench.client
        txn = chance.choice([None, *self.txns])
        act = chance.choice(("one", "batch", "batch", "batch", "queue", "begin", "end", "restart"))
        if act == "begin":
            self.txns[begin(client, 600_000)] = Scope()
        elif act == "end" and txn is not None:
            scope = self.txns.pop(txn)
            if chance.random() < 0.3:
                client.abort(txn)
                return
            client.commit(txn)
            for values, more in zip(self.plain.values, scope.values, strict=True):
                values += more
        elif act == "restart":
            client.checkpoint()
            if chance.random() < 0.5:
                client = self.bench.reopen()
                self.producer = client.producer("t", name=NAME, chunking=True)
        elif act in ("one", "batch", "queue"):
            try:
                self.send(act, txn)
            except LimitExceeded:
                self.refused += 1

    def send(self, act: str, txn: TxnId | None) -> None:
        """Send messages in one of the ways, and check their receipts."""
        chance = self.chance
        scope = self.plain if txn is None else self.txns[txn]
        numbers = self.drawn(scope.top())
        values = [self.value(number) for number in numbers]
        keys = [chance.choice(KEYS) for _ in numbers]
        targets = [partition_of_key(key, PARTITIONS) for key in keys]
        receipts: Sequence[SendReceipt | None]
        by_key = act == "batch" and chance.random() < 0.5
        if act == "one":
            value = values[0] + b"." * chance.choice((0, 3000))
            receipt = self.producer.send(
                value, sequence_id=numbers[0], partition=targets[0], txn=txn
            )
            numbers, values, receipts = numbers[:1], [value], [receipt]
        elif act == "queue":
            scope = self.plain
            futures = [
                self.producer.send_async(value, sequence_id=number, partition=target)
                for value, number, target in zip(values, numbers, targets, strict=True)
            ]
            failures = [future.exception() for future in futures]
            if any(failures):
                assert all(
                    isinstance(each_failure, LimitExceeded)
                    for each_failure in failures
                    if each_failure
                )
                self.refused += 1
            receipts = [
                None if failure else future.result()
                for future, failure in zip(futures, failures, strict=True)
            ]
        else:
            where = {"key": pa.array(keys, pa.binary())} if by_key else {"partition": targets}
            table = pa.table({"value": values, "sequence_id": numbers, **where})
            receipts = self.producer.send_batch(table, txn=txn).receipts()
        is_whole = by_key and numbers[-1] - numbers[0] + 1 == len(numbers)
        self.look(scope, [*zip(targets, numbers, values, receipts, strict=False)], is_whole)

    def drawn(self, top: int) -> list[int]:
        """Rising numbers: the next ones, some around the highest, or any."""
        chance, count = self.chance, self.chance.randint(1, 12)
        kind = chance.randrange(3)
        if kind == 0:
            first = max(0, top + chance.choice((1, 1, -2, 3)))
            return [*range(first, first + count)]
        low, high = (max(0, top - 30), top + 13) if kind == 1 else (0, 300)
        return sorted(chance.sample(range(low, high), min(count, high - low)))

    def value(self, number: int) -> bytes:
        """A value that no other message has."""
        self.count += 1
        return b"%d of %d" % (number, self.count)

    def look(
        self,
        scope: Scope,
        sent: list[tuple[int, int, bytes, SendReceipt | None]],
        is_whole: bool,
    ) -> None:
        """Compare receipts with the stored numbers, and add the new ones."""
        grown = set[int]()
        for target, number, value, receipt in sent:
            if receipt is None:
                continue
            is_stored = number in scope.numbers[target]
            assert (receipt.partition, receipt.duplicate) == (target, is_stored), number
            if not is_stored:
                scope.numbers[target].add(number)
                scope.values[target].append(value)
                grown.add(target)
        if is_whole and len({target for target, *_ in sent}) > 1:
            for target in grown:
                scope.numbers[target].update(range(sent[0][1], sent[-1][1] + 1))

    def check(self, view: View) -> list[str]:
        """Compare the folds with the expected numbers; returns the folds as texts."""
        for number, stored in enumerate(self.plain.numbers, 1):
            topic = view.topic(number)
            producer_state = topic.producers.get(NAME)
            assert topic.gaps == sum(len(one.gaps) // 2 for one in topic.producers.values())
            if producer_state is not None:
                gaps = {
                    one
                    for at in range(0, len(producer_state.gaps), 2)
                    for one in range(producer_state.gaps[at], producer_state.gaps[at + 1] + 1)
                }
                assert producer_state.sequence == max(stored, default=-1)
                assert (
                    gaps == {*range(producer_state.unknown + 1, producer_state.sequence)} - stored
                )
        numbers = range(1, PARTITIONS + 1)
        return [f"{view.topic(one)} {view.buffer(one).held}" for one in numbers]


@pytest.mark.parametrize("is_small", [False, True], ids=["all", "few gaps"])
@pytest.mark.parametrize("seed", graded(range(3), 1))
def test_each_number_is_stored_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, is_small: bool
) -> None:
    """Law 6. Guards against answered but not stored, stored twice, and folds changed by a
    restart.
    """
    print("seed", seed)
    if is_small:
        monkeypatch.setattr(sequences, "GAPS_MAX", 16)
        monkeypatch.setattr(folds, "GAPS_MAX", 40)
    trial = Trial(tmp_path / "store", seed)
    for _ in range(STEPS):
        trial.step()
    assert bool(trial.refused) == is_small
    client = trial.bench.client
    client.flush()  # readers see what is durable
    live = client.store.read(trial.check)
    for has_checkpoint in (False, True):
        if has_checkpoint:
            client.checkpoint()
        client = trial.bench.reopen()
        assert client.store.read(trial.check) == live
        messages = read(client)
        for partition, values in enumerate(trial.plain.values):
            assert [
                message.value for message in messages if message.partition == partition
            ] == values
    trial.bench.close()
    assert txlog.verify(trial.bench.path, clock=trial.bench.clock, deep=True)["errors"] == 0

"""The engine against plain dicts: random histories of two processes, one list a partition.

The model knows no frames, markers, bitmaps or files. A partition is a list of messages in the order
in which they became visible. A subscription is a set of deleted messages. A transaction is its
messages and its acknowledgements. A key is an epoch and the last transaction begun under it.
spec/transactions 5, 7, 8, 9.2, 9.3, 10; I-1, 3 to 5, 9 to 16, 18, 20, 22.
"""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.engine_kit import Bench, ids, kill, pending, read, rows
from tests.store.model import COMMITTED, OPEN, ModelConsumer, ModelKey, ModelTxn
from txlog import Bound, Client, MessageId, Range, TxnId
from txlog.errors import (
    ExpiredTransaction,
    InvalidTxnStatus,
    NotAllowed,
    ProducerFenced,
    Refused,
    TransactionConflict,
    TransactionTimedOut,
)

PARTITIONS = 2
SUBSCRIPTIONS = ("s", "u")
SHARED = "h"  # with consumers that stay open between the rules
KEYS = ("k", "l")
MESSAGE_BYTES = 40


class EngineAgainstDicts(RuleBasedStateMachine):
    """Every rule does the same to the engine and to the dicts, and compares the answers."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp()
        self.log: list[list[tuple[MessageId, bytes]]] = [[] for _ in range(PARTITIONS)]
        self.txns: list[ModelTxn] = []
        self.deleted: dict[str, set[MessageId]] = {name: set() for name in (*SUBSCRIPTIONS, SHARED)}
        self.hands: list[ModelConsumer] = []
        self.waiting: dict[MessageId, int] = {}
        self.counts: dict[tuple[str, MessageId], int] = {}
        self.sequences: dict[tuple[int, str], dict[int, MessageId]] = {}
        self.keys = {name: ModelKey() for name in KEYS}
        self.counter = 0
        self.gone: set[MessageId] = set()

    @initialize(entries=st.integers(2, 9))
    def make(self, entries: int) -> None:
        self.bench = Bench(
            f"{self.folder}/store",
            ledger_entries_max=entries,
            coordinators=3,
            txn_ids_reserved=3,
            reader_grace_ms=0,
            max_message_bytes=MESSAGE_BYTES,
        )
        self.clients = [self.bench.client, self.bench.another()]
        self.clients[0].create_topic("t", PARTITIONS)
        for name in SUBSCRIPTIONS:
            self.clients[0].create_subscription("t", name)
        self.clients[0].create_subscription("t", SHARED, type="shared")

    # --- the model ---------------------------------------------------------------------------

    @property
    def now(self) -> int:
        return self.bench.clock.now().boot_ms

    def value(self) -> bytes:
        """The next value; every fifth is a large message."""
        self.counter += 1
        return b"%d" % self.counter * (1 if self.counter % 5 else MESSAGE_BYTES)

    def expire(self) -> None:
        """I-18: any call aborts an overdue transaction."""
        for txn in self.txns:
            if txn.state == OPEN and self.now > txn.due_ms:
                self.model_abort(txn, "timeout")

    def model_abort(self, txn: ModelTxn, reason: str) -> None:
        txn.state = reason
        for (name, _), acked in txn.held.items():
            for message_id in acked:
                self.counts[name, message_id] = self.counts.get((name, message_id), 0) + 1

    def holders(self, name: str, number: int) -> dict[MessageId, ModelTxn]:
        return {
            message_id: txn
            for txn in self.txns
            if txn.state == OPEN
            for message_id in txn.held.get((name, number), ())
        }

    def append(self, number: int, where: MessageId, value: bytes) -> None:
        log = self.log[number]
        assert not log or log[-1][0] < where  # I-1, 7: ids rise, none is given twice
        log.append((where, value))

    def messages_of(self, number: int, picked: MessageId) -> list[MessageId]:
        """A message by its id, or all messages of a transaction by the id of its marker."""
        if picked.index:
            return [picked]
        return [
            message_id
            for message_id, _ in self.log[number]
            if (message_id.ledger, message_id.entry) == (picked.ledger, picked.entry)
        ]

    def pick(self, number: int, at: int, whole: bool) -> MessageId:
        message_id = self.log[number][at % len(self.log[number])][0]
        return MessageId(message_id.ledger, message_id.entry) if whole else message_id

    def wrong_end(self, txn: ModelTxn) -> type[Exception]:
        if txn.state == "fenced":
            return ExpiredTransaction
        return TransactionTimedOut if txn.state == "timeout" else InvalidTxnStatus

    def fence(self, key: ModelKey) -> TxnId | None:
        """Fence the transaction that is open under the key, unless it is overdue."""
        self.expire()
        if key.bound is None or key.bound.state != OPEN:
            return None
        self.model_abort(key.bound, "fenced")
        return key.bound.number

    # --- sending -----------------------------------------------------------------------------

    clients_by_number = st.integers(0, 1)
    partitions = st.integers(0, PARTITIONS - 1)
    anything = st.integers(0, 1000)

    @rule(who=clients_by_number, number=partitions, count=st.integers(1, 3))
    def send(self, who: int, number: int, count: int) -> None:
        producer = self.clients[who].producer("t", chunking=True)
        for _ in range(count):
            value = self.value()
            receipt = producer.send(value, partition=number)
            assert receipt.message_id is not None and not receipt.duplicate
            self.append(number, receipt.message_id, value)

    @rule(
        who=clients_by_number,
        number=partitions,
        name=st.sampled_from("ab"),
        sequence=st.integers(0, 12),
    )
    def send_numbered(self, who: int, number: int, name: str, sequence: int) -> None:
        """I-13: a skipped number is new, and a repetition has an id only if it is the newest."""
        value = self.value()
        ids_by_sequence = self.sequences.setdefault((number, name), {})
        receipt = (
            self.clients[who]
            .producer("t", name, chunking=True)
            .send(value, partition=number, sequence_id=sequence)
        )
        if sequence in ids_by_sequence:
            original = ids_by_sequence[sequence] if sequence == max(ids_by_sequence) else None
            assert (receipt.duplicate, receipt.message_id) == (True, original)
            return
        assert not receipt.duplicate and receipt.message_id is not None
        ids_by_sequence[sequence] = receipt.message_id
        self.append(number, receipt.message_id, value)

    @rule(who=clients_by_number, timeout=st.integers(1000, 6000))
    def begin(self, who: int, timeout: int) -> None:
        number = self.clients[who].begin(timeout)["txn"]
        assert number not in [txn.number for txn in self.txns]  # I-1
        self.txns.append(ModelTxn(number, self.now + timeout))

    def txn_at(self, at: int) -> ModelTxn:
        """One of the four newest transactions; most transactions are open."""
        recent = self.txns[-4:]
        return recent[at % len(recent)]

    @precondition(lambda self: self.txns)
    @rule(
        who=clients_by_number,
        at=anything,
        number=partitions,
        count=st.integers(1, 3),
        name=st.sampled_from((None, None, "a")),
        sequence=st.integers(0, 4),
    )
    def send_in_txn(
        self, who: int, at: int, number: int, count: int, name: str | None, sequence: int
    ) -> None:
        txn = self.txn_at(at)
        self.expire()
        producer = self.clients[who].producer("t", name, chunking=True)
        given_id = None if name is None else sequence
        for _ in range(count if name is None else 1):
            value = self.value()
            if txn.state != OPEN:
                with pytest.raises(self.wrong_end(txn)):
                    producer.send(value, partition=number, txn=txn.number, sequence_id=given_id)
                return
            receipt = producer.send(value, partition=number, txn=txn.number, sequence_id=given_id)
            assert receipt.message_id is None
            sent = txn.sent.setdefault(number, [])
            if name is not None:
                ids_by_sequence = txn.sequences.setdefault((number, name), {})
                if sequence in ids_by_sequence:
                    is_newest = sequence == max(ids_by_sequence)
                    original = ids_by_sequence[sequence] if is_newest else None
                    assert (receipt.txn_index, receipt.duplicate) == (original, True)
                    return
                ids_by_sequence[sequence] = len(sent) + 1
            sent.append(value)
            assert (receipt.txn_index, receipt.duplicate) == (len(sent), False)

    # --- the end of a transaction ------------------------------------------------------------

    @precondition(lambda self: self.txns)
    @rule(who=clients_by_number, at=anything)
    def commit(self, who: int, at: int) -> None:
        txn = self.txn_at(at)
        self.expire()
        if txn.state not in (OPEN, COMMITTED):
            with pytest.raises(self.wrong_end(txn)):
                self.clients[who].commit(txn.number)
            return
        answer = self.clients[who].commit(txn.number)
        assert (answer["state"], answer["already"]) == ("committed", txn.state == COMMITTED)
        assert answer["messages"] == sum(map(len, txn.sent.values()))
        assert answer["acks"] == sum(map(len, txn.held.values()))
        markers = {row["partition"]: row for row in answer["marker_list"]}
        assert {n: row["messages"] for n, row in markers.items()} == {
            n: len(sent) for n, sent in txn.sent.items() if sent
        }  # I-3
        if txn.state == COMMITTED:
            return
        txn.state = COMMITTED
        for number, row in sorted(markers.items()):
            for index, value in enumerate(txn.sent[number], 1):
                where = MessageId(row["marker"].ledger, row["marker"].entry, index)
                self.append(number, where, value)
        for (name, _), acked in txn.held.items():
            self.deleted[name] |= acked

    @precondition(lambda self: self.txns)
    @rule(who=clients_by_number, at=anything)
    def abort(self, who: int, at: int) -> None:
        txn = self.txn_at(at)
        self.expire()
        if txn.state in (COMMITTED, "fenced"):
            with pytest.raises(self.wrong_end(txn)):
                self.clients[who].abort(txn.number)
            return
        answer = self.clients[who].abort(txn.number)
        assert (answer["state"], answer["already"]) == ("aborted", txn.state != OPEN)
        if txn.state == OPEN:
            self.model_abort(txn, "user")
        assert answer["reason"] == txn.state

    # --- transaction keys --------------------------------------------------------------------

    @rule(who=clients_by_number, name=st.sampled_from(KEYS), presented=st.integers(-1, 6))
    def connect(self, who: int, name: str, presented: int) -> None:
        key = self.keys[name]
        if presented != -1 and (presented != key.epoch or key.is_deleted):
            with pytest.raises(NotAllowed):
                self.clients[who].connect(name, presented)
            return
        fenced = self.fence(key)
        answer = self.clients[who].connect(name, presented)
        key.epoch, key.is_deleted = key.epoch + 1, False
        assert (answer["epoch"], answer["fenced_txn"]) == (key.epoch, fenced)

    @rule(
        who=clients_by_number,
        name=st.sampled_from(KEYS),
        timeout=st.integers(1000, 6000),
        epoch=st.none() | st.integers(0, 6),
        newest=st.booleans(),
    )
    def begin_under_key(
        self, who: int, name: str, timeout: int, epoch: int | None, newest: bool
    ) -> None:
        key = self.keys[name]
        if newest and key.epoch >= 0:
            epoch = key.epoch
        if epoch is not None and (epoch != key.epoch or key.is_deleted):
            with pytest.raises(ProducerFenced):
                self.clients[who].begin(timeout, key=name, epoch=epoch)
            return
        fenced = self.fence(key)
        answer = self.clients[who].begin(timeout, key=name, epoch=epoch)
        if epoch is None:
            key.epoch, key.is_deleted = key.epoch + 1, False
        assert (answer["epoch"], answer["fenced_txn"]) == (key.epoch, fenced)
        assert answer["txn"] not in [txn.number for txn in self.txns]
        key.bound = ModelTxn(answer["txn"], self.now + timeout)
        self.txns.append(key.bound)

    @rule(who=clients_by_number, name=st.sampled_from(KEYS))
    def delete_key(self, who: int, name: str) -> None:
        key = self.keys[name]
        if key.epoch < 0 or key.is_deleted:
            return
        fenced = self.fence(key)
        answer = self.clients[who].admin.delete_transaction_key(name)
        key.is_deleted = True
        assert answer["epoch"] == key.epoch
        assert answer["aborted_list"] == ([] if fenced is None else [fenced])

    # --- acknowledging -----------------------------------------------------------------------

    subscriptions = st.sampled_from(SUBSCRIPTIONS)

    @precondition(lambda self: all(self.log))
    @rule(
        who=clients_by_number,
        name=subscriptions,
        picks=st.lists(st.tuples(partitions, anything, st.booleans()), min_size=1, max_size=4),
    )
    def acknowledge(self, who: int, name: str, picks: list[tuple[int, int, bool]]) -> None:
        self.expire()
        chosen = [self.pick(number, at, whole) for number, at, whole in picks]
        targets = {
            (number, message_id)
            for (number, _, _), picked in zip(picks, chosen, strict=True)
            for message_id in self.messages_of(number, picked)
        }
        answer = self.clients[who].acknowledge("t", name, chosen)
        old = {pair for pair in targets if pair[1] in self.deleted[name]}
        dropped = {pair for pair in targets if pair[1] in self.holders(name, pair[0])}
        new = {message_id for _, message_id in targets - old - dropped}
        assert answer == {
            "acked": len(new),
            "already": len(old),
            "dropped": len(dropped),
            "txn": None,
        }
        self.deleted[name] |= new

    @precondition(lambda self: all(self.log) and self.txns)
    @rule(
        who=clients_by_number,
        name=subscriptions,
        which=anything,
        picks=st.lists(st.tuples(partitions, anything, st.booleans()), min_size=1, max_size=3),
    )
    def acknowledge_in_txn(
        self, who: int, name: str, which: int, picks: list[tuple[int, int, bool]]
    ) -> None:
        self.expire()
        txn = self.txn_at(which)
        chosen = [self.pick(number, at, whole) for number, at, whole in picks]
        targets = {
            (number, message_id)
            for (number, _, _), picked in zip(picks, chosen, strict=True)
            for message_id in self.messages_of(number, picked)
        }
        if txn.state != OPEN:
            with pytest.raises(self.wrong_end(txn)):
                self.clients[who].acknowledge("t", name, chosen, txn=txn.number)
            return
        if any(
            message_id in self.deleted[name] or message_id in self.holders(name, number)
            for number, message_id in targets
        ):
            with pytest.raises(TransactionConflict):
                self.clients[who].acknowledge("t", name, chosen, txn=txn.number)
            self.model_abort(txn, "conflict")
            return
        answer = self.clients[who].acknowledge("t", name, chosen, txn=txn.number)
        assert answer["acked"] == len(targets)
        for number, message_id in targets:
            txn.held.setdefault((name, number), set()).add(message_id)

    @precondition(lambda self: all(self.log))
    @rule(
        who=clients_by_number,
        name=subscriptions,
        number=partitions,
        at=anything,
        which=st.none() | anything,
    )
    def acknowledge_cumulative(
        self, who: int, name: str, number: int, at: int, which: int | None
    ) -> None:
        self.expire()
        stop = at % len(self.log[number])
        target = self.log[number][stop][0]
        through = [message_id for message_id, _ in self.log[number][: stop + 1]]
        holders = self.holders(name, number)
        pair = (name, number)
        if which is None or not self.txns:
            answer = self.clients[who].acknowledge("t", name, [target], cumulative=True)
            new = {o for o in through if o not in self.deleted[name] and o not in holders}
            assert (answer["acked"], answer["dropped"]) == (
                len(new),
                sum(message_id in holders for message_id in through),
            )
            self.deleted[name] |= new
            return
        txn = self.txn_at(which)
        client = self.clients[who]
        if txn.state != OPEN:
            with pytest.raises(self.wrong_end(txn)):
                client.acknowledge("t", name, [target], cumulative=True, txn=txn.number)
            return
        others = [t for t in self.txns if t.state == OPEN and t is not txn]
        if (
            any(pair in other.cumulative for other in others)
            or txn.cumulative.get(pair, -1) >= stop
            or all(message_id in self.deleted[name] for message_id in through)
            or any(
                message_id in holders and holders[message_id] is not txn for message_id in through
            )
        ):
            with pytest.raises(TransactionConflict):
                client.acknowledge("t", name, [target], cumulative=True, txn=txn.number)
            self.model_abort(txn, "conflict")
            return
        answer = client.acknowledge("t", name, [target], cumulative=True, txn=txn.number)
        new = {o for o in through if o not in self.deleted[name] and o not in holders}
        assert answer["acked"] == len(new)
        txn.held.setdefault(pair, set()).update(new)
        txn.cumulative[pair] = stop

    # --- time, files, processes --------------------------------------------------------------

    @rule(ms=st.integers(1, 2500))
    def wait(self, ms: int) -> None:
        self.bench.clock.advance(ms)

    @rule(who=clients_by_number, roll=st.booleans())
    def checkpoint(self, who: int, roll: bool) -> None:
        self.clients[who].checkpoint(roll_all=roll)

    @rule(who=clients_by_number, number=st.none() | partitions)
    def compact(self, who: int, number: int | None) -> None:
        """I-20, 21: compaction changes no message, and leaves no dead rows in closed sidecars."""
        self.clients[who].admin.compact("t", number)

    @precondition(lambda self: any(self.log))
    @rule(who=clients_by_number, number=partitions, at=anything, force=st.booleans())
    def trim(self, who: int, number: int, at: int, force: bool) -> None:
        """I-20: a trim deletes whole ledgers before a message, and the acknowledgements there."""
        self.expire()
        if not self.log[number]:
            return
        bound = Bound("id", self.log[number][at % len(self.log[number])][0])
        admin = self.clients[who].admin
        self.settle(self.clients[who])
        plan = admin.trim("t", bound, force_unacked=True, dry_run=True)
        going = [message_id for message_id, _ in self.log[number][: plan["messages"]]]
        unacked = sum(
            any(message_id not in d for d in self.deleted.values()) for message_id in going
        )
        assert plan["partition_list"][number]["unacked"] == unacked
        assert all(message_id < bound.value for message_id in going)  # type: ignore[operator]
        if unacked and not force:
            with pytest.raises(Refused):
                admin.trim("t", bound)
            return
        answer = admin.trim("t", bound, force_unacked=force)
        assert {**answer, "dry_run": True} == plan
        del self.log[number][: len(going)]
        self.gone.update(going)
        for consumer in self.hands:
            consumer.hand = {pair for pair in consumer.hand if pair[1] not in self.gone}
        for txn in self.txns:
            if txn.state == OPEN:
                for (_, of), acked in txn.held.items():
                    acked.difference_update(going if of == number else ())
                for pair in [pair for pair in txn.cumulative if pair[1] == number]:
                    txn.cumulative[pair] -= len(going)
                    if txn.cumulative[pair] < 0:
                        del txn.cumulative[pair]

    @precondition(lambda self: any(self.log))
    @rule(
        who=clients_by_number,
        name=subscriptions,
        number=partitions,
        at=anything,
        force=st.booleans(),
    )
    def seek(self, who: int, name: str, number: int, at: int, force: bool) -> None:
        """A seek deletes the messages before its position, and none after it.

        It is refused while a transaction holds acknowledgements, unless it is forced.
        """
        self.expire()
        if not self.log[number]:
            return
        self.settle(self.clients[who])
        message_ids = [message_id for message_id, _ in self.log[number]]
        place = at % len(message_ids)
        handle, holders = self.clients[who].subscription("t", name), self.holders(name, number)
        if holders and not force:
            with pytest.raises(NotAllowed):
                handle.seek(message_ids[place])
            return
        answer = handle.seek(message_ids[place], force=force)
        stopped = {txn.number: txn for txn in holders.values()}
        assert set(answer["aborted_list"]) == stopped.keys()
        for txn in stopped.values():
            self.model_abort(txn, "user")
        deleted = self.deleted[name]
        assert answer["redeliver"] == len(deleted & set(message_ids[place:]))
        assert answer["skip"] == len(set(message_ids[:place]) - deleted)
        deleted.update(message_ids[:place])
        deleted.difference_update(message_ids[place:])
        for message_id in message_ids:
            self.counts.pop((name, message_id), None)

    @rule(who=clients_by_number, name=subscriptions, count=st.integers(1, 5))
    def skip(self, who: int, name: str, count: int) -> None:
        """Skip the next messages of each partition that no transaction holds."""
        self.expire()
        self.settle(self.clients[who])
        skipped: set[MessageId] = set()
        for number in range(PARTITIONS):
            holders = self.holders(name, number)
            skipped.update(
                [
                    message_id
                    for message_id, _ in self.log[number]
                    if message_id not in self.deleted[name] and message_id not in holders
                ][:count]
            )
        assert self.clients[who].subscription("t", name).skip(count)["skipped"] == len(skipped)
        self.deleted[name] |= skipped

    @rule(who=clients_by_number, name=subscriptions)
    def delete_subscription(self, who: int, name: str) -> None:
        """A subscription made again starts anew, without acknowledgements of open transactions."""
        self.expire()
        self.settle(self.clients[who])
        self.clients[who].subscription("t", name).delete()
        self.clients[who].create_subscription("t", name)
        self.deleted[name].clear()
        self.counts = {pair: count for pair, count in self.counts.items() if pair[0] != name}
        for txn in self.txns:
            if txn.state == OPEN:
                txn.held = {pair: acked for pair, acked in txn.held.items() if pair[0] != name}
                txn.cumulative = {p: at for p, at in txn.cumulative.items() if p[0] != name}

    @rule(who=clients_by_number)
    def reopen(self, who: int) -> None:
        for consumer in [consumer for consumer in self.hands if consumer.who == who]:
            consumer.real.close()
            self.come_back(consumer.hand)
            self.hands.remove(consumer)
        self.clients[who].close()
        self.bench.clients.remove(self.clients[who])
        self.clients[who] = self.bench.another()

    # --- a shared subscription ---------------------------------------------------------------

    def come_back(self, hand: set[tuple[int, MessageId]], due_ms: int = 0) -> None:
        """Return messages, with one redelivery more each, not before due_ms."""
        for _, message_id in hand:
            self.counts[SHARED, message_id] = self.counts.get((SHARED, message_id), 0) + 1
            if due_ms > self.now:
                self.waiting[message_id] = due_ms

    @precondition(lambda self: len(self.hands) < 3)
    @rule(who=clients_by_number)
    def join(self, who: int) -> None:
        self.hands.append(ModelConsumer(who, self.clients[who].consumer("t", SHARED)))

    @precondition(lambda self: self.hands)
    @rule(at=anything, is_clean=st.booleans())
    def leave(self, at: int, is_clean: bool) -> None:
        """K10: a consumer's leased messages return, whether it closed or died."""
        consumer = self.hands.pop(at % len(self.hands))
        if is_clean:
            consumer.real.close()
        else:
            kill(consumer.real)
            self.hands.append(
                ModelConsumer(consumer.who, self.clients[consumer.who].consumer("t", SHARED))
            )
        self.come_back(consumer.hand)

    @precondition(lambda self: self.hands)
    @rule(at=anything, count=st.integers(1, 9))
    def take(self, at: int, count: int) -> None:
        """I-12: every deliverable message is delivered to one consumer, in order of position."""
        self.expire()
        taker = self.hands[at % len(self.hands)]
        self.settle(self.clients[taker.who])
        away = {message_id for other in self.hands for _, message_id in other.hand}
        ready = [
            [
                message_id
                for message_id, _ in self.log[number]
                if message_id not in self.deleted[SHARED]
                and message_id not in self.holders(SHARED, number)
                and message_id not in away
                and self.waiting.get(message_id, 0) <= self.now
            ]
            for number in range(PARTITIONS)
        ]
        messages = rows([taker.real.receive_batch(count)])
        assert len(messages) == min(count, sum(map(len, ready)))
        for number in range(PARTITIONS):
            delivered = [
                (m.message_id, m.redelivery_count) for m in messages if m.partition == number
            ]
            assert delivered == [
                (message_id, self.counts.get((SHARED, message_id), 0))
                for message_id in ready[number][: len(delivered)]
            ]
        for message in messages:
            assert message.message_id is not None
            taker.hand.add((message.partition, message.message_id))
            self.waiting.pop(message.message_id, None)

    @precondition(lambda self: any(consumer.hand for consumer in self.hands))
    @rule(at=anything, count=st.integers(1, 5), which=st.none() | anything)
    def acknowledge_hand(self, at: int, count: int, which: int | None) -> None:
        """An acknowledgement ends the lease, or suspends it until its transaction aborts."""
        self.expire()
        consumer = self.hands[at % len(self.hands)]
        picked = sorted(consumer.hand)[:count]
        txn = None if which is None or not self.txns else self.txn_at(which)
        if not picked or (txn is not None and txn.state != OPEN):
            return
        done = [message for _, message in picked]
        answer = consumer.real.acknowledge(done, txn=None if txn is None else txn.number)
        assert answer.acked == len(picked)
        consumer.hand.difference_update(picked)
        for number, message in picked:
            if txn is None:
                self.deleted[SHARED].add(message)
            else:
                txn.held.setdefault((SHARED, number), set()).add(message)

    @precondition(lambda self: any(consumer.hand for consumer in self.hands))
    @rule(at=anything, count=st.integers(1, 5), delay_ms=st.sampled_from((0, 700)))
    def refuse(self, at: int, count: int, delay_ms: int) -> None:
        """A nack touches only messages leased to this consumer."""
        consumer = self.hands[at % len(self.hands)]
        others = [
            pair for other in self.hands if other is not consumer for pair in sorted(other.hand)
        ]
        picked = sorted(consumer.hand)[:count]
        messages = [message for _, message in (*picked, *others[:2])]
        if messages:
            assert consumer.real.negative_acknowledge(messages, delay_ms).returned == len(picked)
            consumer.hand.difference_update(picked)
            self.come_back(set(picked), self.now + delay_ms)

    # --- reading -----------------------------------------------------------------------------

    @rule(who=clients_by_number)
    def read_all(self, who: int) -> None:
        self.compare(self.clients[who])

    @precondition(lambda self: all(self.log))
    @rule(
        who=clients_by_number,
        number=partitions,
        start=anything,
        stop=anything,
        batch=st.integers(1, 5),
    )
    def read_range(self, who: int, number: int, start: int, stop: int, batch: int) -> None:
        log = self.log[number]
        low, high = sorted((start % len(log), stop % len(log)))
        bounds = Range(Bound("id", log[low][0]), Bound("id", log[high][0]))
        messages = read(self.clients[who], "t", bounds, batch_messages=batch)
        assert [(m.message_id, m.value) for m in messages] == log[low:high]
        messages = read(self.clients[who], "t", Range(Bound("last", stop % 7)), partitions=[number])
        expected = log[max(0, len(log) - stop % 7) :]
        assert [(m.message_id, m.value) for m in messages] == expected

    @rule(who=clients_by_number, name=subscriptions)
    def receive(self, who: int, name: str) -> None:
        """I-11, 12: each message that is neither deleted nor held is delivered, with its count."""
        self.expire()
        self.settle(self.clients[who])
        messages = pending(self.clients[who], "t", name)
        for number in range(PARTITIONS):
            holders = self.holders(name, number)
            assert [
                (m.message_id, m.value, m.redelivery_count)
                for m in messages
                if m.partition == number
            ] == [
                (message_id, value, self.counts.get((name, message_id), 0))
                for message_id, value in self.log[number]
                if message_id not in self.deleted[name] and message_id not in holders
            ]
        for message in messages:  # the consumer closed with them leased
            assert message.message_id is not None
            key = (name, message.message_id)
            self.counts[key] = self.counts.get(key, 0) + 1

    @rule(who=clients_by_number, name=subscriptions)
    def read_unacked(self, who: int, name: str) -> None:
        """The range `unacked` omits deleted messages; a held one is not acknowledged yet."""
        self.expire()
        self.settle(self.clients[who])
        messages = read(self.clients[who], "t", Range(kind="unacked", subscription=name))
        for number in range(PARTITIONS):
            assert [m.message_id for m in messages if m.partition == number] == [
                message_id
                for message_id, _ in self.log[number]
                if message_id not in self.deleted[name]
            ]

    def settle(self, client: Client) -> None:
        """Sweep by naming a transaction, and flush, as acknowledgements show once durable."""
        client.producer("t").flush()
        for txn in self.txns[-12:]:
            shown_txn = client.show_transaction(txn.number)
            assert shown_txn["state"] == (
                txn.state if txn.state in (OPEN, COMMITTED) else "aborted"
            )
            if shown_txn["state"] == "aborted":
                assert shown_txn["reason"] == txn.state

    def compare(self, client: Client) -> None:
        """I-4, 5, 20, 22: content, ids, counters."""
        self.expire()
        self.settle(client)
        messages = read(client, "t")
        for number in range(PARTITIONS):
            of_partition = [m for m in messages if m.partition == number]
            assert [(m.message_id, m.value) for m in of_partition] == self.log[number]
        assert {
            row["transaction_key"]: (row["epoch"], row["deleted"], row["txn"])
            for row in client.admin.transaction_keys(deleted=True)
        } == {
            name: (
                key.epoch,
                key.is_deleted,
                key.bound.number if key.bound is not None and key.bound.state == OPEN else None,
            )
            for name, key in self.keys.items()
            if key.epoch >= 0
        }
        total = sum(map(len, self.log))
        assert client.topics()[0]["messages"] == total
        for row in client.subscriptions("t"):
            name = row["subscription"]
            assert row["backlog"] == total - len(self.deleted[name] - self.gone)
            assert row["pending_acks"] == sum(
                len(self.holders(name, number)) for number in range(PARTITIONS)
            )
        described = client.describe_topic("t")["partition_list"]
        for number, description in enumerate(described):
            assert description["last"] == (self.log[number][-1][0] if self.log[number] else None)

    def teardown(self) -> None:
        try:
            if hasattr(self, "bench"):
                self.bench.close()
                for checkpointed in (False, True):
                    client = self.bench.another()
                    if checkpointed:
                        client.checkpoint(roll_all=True)
                    self.compare(client)
                    for number in range(PARTITIONS):
                        assert ids(client, "t", partitions=[number]) == [
                            message_id for message_id, _ in self.log[number]
                        ]
                    self.bench.close()
        finally:
            shutil.rmtree(self.folder)


# Shrinking a failure takes minutes: set TXLOG_SHRINK=1 to read one.
PHASES = [Phase.explicit, Phase.generate, *([Phase.shrink] if "TXLOG_SHRINK" in os.environ else [])]
EXAMPLES = int(os.environ.get("TXLOG_EXAMPLES", "60"))


class MoreAgainstDicts(EngineAgainstDicts):
    """The same with more examples."""


for machine, examples in ((EngineAgainstDicts, EXAMPLES // 6), (MoreAgainstDicts, EXAMPLES)):
    machine.TestCase.settings = settings(
        max_examples=examples, stateful_step_count=50, phases=PHASES
    )
TestEngineAgainstDicts = pytest.mark.usefixtures("quick_disk")(EngineAgainstDicts.TestCase)
TestMoreAgainstDicts = pytest.mark.usefixtures("quick_disk")(
    pytest.mark.deep(MoreAgainstDicts.TestCase)
)

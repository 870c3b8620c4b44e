"""The steps that clients take in the oracle: each does the same to the engine and to the model."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txlog
from tests.delayed.oracle_model import (
    INSTANT,
    KEYS,
    MESSAGE_BYTES,
    TICK_MS,
    Hand,
    Known,
    Model,
    Sent,
    Sub,
    Txn,
    Wrong,
)
from tests.engine_kit import START_MS, kill, open_client
from txlog import Client, Consumer, MessageId, TxnId
from txlog.base.ranges import Bound
from txlog.engine.folds.catalog import numbers as numbers_of
from txlog.engine.plan.delayed.index import index_of_partition
from txlog.errors import NotAllowed


class Clients(Model):
    """One store, two processes, and the model."""

    def __init__(self, folder: str, seed: str) -> None:
        super().__init__()
        rng = random.Random(f"{seed}:start")
        self.seed = seed
        self.clocks[1].skew_ms = rng.choice((0, -200, 90))
        self.path = str(Path(folder) / "store")
        self.settings: dict[str, Any] = {
            "ledger_entries_max": rng.choice((2, 3, 5, 9, 1000)),
            "ledger_step_per_bucket": rng.choice((0, 1, 2, 3, 5)),
            "max_num_buckets": rng.choice((0, 1, 2, 3, 5)),
            "max_indexes_per_snapshot_segment": rng.choice((-1, 1, 2, 3, 5)),
            "time_step_per_bucket_snapshot_seconds": rng.choice((1, 1, 300)),
            "mutable_ids_max": rng.choice((1, 2, 3, 5, 500_000)),
            "segments_max": rng.choice((1, 2, 5, 2000)),
            "strays_max": rng.choice((1, 3, *[100_000] * 6)),
        }
        txlog.init(
            self.path,
            clock=self.clocks[0],
            durability="os",
            free_bytes_min=0,
            reader_grace_ms=0,
            txn_timeout_default_ms=86_400_000,
            max_message_bytes=MESSAGE_BYTES,
            **self.settings,
        )
        self.clients: list[Client] = [self._client(0), self._client(1)]
        self.partitions = rng.choice((1, 1, 2))
        self.clients[0].create_topic("t", self.partitions)
        for sub in self.subs:
            self.clients[0].create_subscription("t", sub.name, type=sub.kind)  # type: ignore[arg-type]
        self.sent = 0

    def _client(self, who: int) -> Client:
        client = open_client(self.path, self.clocks[who])  # type: ignore[arg-type]
        client.checkpoint_automatically = bool(who)
        return client

    # --- steps: producers --------------------------------------------------------------------

    def some_time(self, rng: random.Random, who: int) -> int | None:
        """A delivery time near what the clocks show, often equal to another."""
        now = self.wall(who)
        near = [now + TICK_MS * rng.randrange(1, 30) for _ in range(6)]
        far = [START_MS + 100 * rng.randrange(20), now + 10**7]
        times: list[int | None] = [None, None, None, 0, now, now - TICK_MS, now + 1, *near, *far]
        return rng.choice(times)

    def some_rows(self, rng: random.Random, who: int) -> list[Sent]:
        out: list[Sent] = []
        for _ in range(rng.choice((1, 1, 2, 4, 8))):
            self.sent += 1
            out.append((self.some_time(rng, who), rng.choice(KEYS), b"%d" % self.sent))
        return out

    def send_rows(self, who: int, partition: int, rows: list[Sent], txn: Txn | None = None) -> Any:
        # some rows have a delay, which counts from the clock of the sender
        rows_after = [row for row in rows if row[0] is not None and row[0] >= self.wall(who)][::2]
        waits = [
            at - self.wall(who) if (at, key, value) in rows_after and at is not None else None
            for at, key, value in rows
        ]
        table = pa.table(
            {
                "deliver_at": pa.array(
                    [None if row in rows_after else row[0] for row in rows], INSTANT
                ),
                "deliver_after": pa.array(waits, pa.int64()),
                "key": pa.array([key for _, key, _ in rows], pa.binary()),
                "value": pa.array([value for _, _, value in rows], pa.binary()),
                "partition": pa.array([partition] * len(rows), pa.int32()),
            }
        )
        producer = self.clients[who].producer("t")
        return producer.send_batch(table, txn=None if txn is None else txn.id)

    def send(self, rng: random.Random) -> None:
        who, partition = rng.randrange(2), rng.randrange(self.partitions)
        rows = self.some_rows(rng, who)
        receipts = self.send_rows(who, partition, rows).receipts()
        ones = [
            Known(partition, receipt.message_id, *row)
            for receipt, row in zip(receipts, rows, strict=True)
        ]
        self.log.update(((partition, message.id), message) for message in ones)
        self.note(f"{who} sends {self.texts(ones)}")

    def send_large(self, rng: random.Random) -> None:
        """Send a message in chunks: a file of its own, and a marker with one message."""
        who, partition = rng.randrange(2), rng.randrange(self.partitions)
        [(at, key, value), *_] = self.some_rows(rng, who)
        receipt = (
            self.clients[who]
            .producer("t", chunking=True)
            .send(value * MESSAGE_BYTES, key=key, deliver_at=at, partition=partition)
        )
        assert receipt.message_id is not None
        message = Known(partition, receipt.message_id, at, key, value * MESSAGE_BYTES)
        self.log[partition, message.id] = message
        self.note(f"{who} sends in chunks {self.text(message)}")

    def begin(self, rng: random.Random) -> None:
        if len(self.txns) < 4:
            number = self.clients[rng.randrange(2)].begin()["txn"]
            assert isinstance(number, TxnId)
            self.txns.append(Txn(number))
            self.note(f"begin {number}")

    def send_in_txn(self, rng: random.Random) -> None:
        if not self.txns:
            self.begin(rng)
        txn, who = rng.choice(self.txns), rng.randrange(2)
        partition, rows = rng.randrange(self.partitions), self.some_rows(rng, who)
        self.send_rows(who, partition, rows, txn)
        txn.sent.setdefault(partition, []).extend(rows)
        self.note(f"{who} sends {len(rows)} in {txn.id}")

    def commit(self, rng: random.Random) -> None:
        if not self.txns:
            return
        txn = self.txns.pop(rng.randrange(len(self.txns)))
        who = rng.randrange(2)
        answer = self.clients[who].commit(txn.id)
        new: list[Known] = []
        for row in answer["marker_list"]:
            for index, sent in enumerate(txn.sent[row["partition"]], 1):
                where = MessageId(row["marker"].ledger, row["marker"].entry, index)
                new.append(Known(row["partition"], where, *sent))
        self.log.update(((message.partition, message.id), message) for message in new)
        for sub in self.subs:
            own_messages = {message for message, holder in sub.held.items() if holder is txn}
            sub.acked |= own_messages
            for message in own_messages:
                del sub.held[message]
        self.note(f"{who} commits {txn.id}: {self.texts(new)}")

    def abort(self, rng: random.Random) -> None:
        if not self.txns:
            return
        txn = self.txns.pop(rng.randrange(len(self.txns)))
        self.clients[rng.randrange(2)].abort(txn.id)
        for sub in self.subs:
            sub.held = {
                message: holder for message, holder in sub.held.items() if holder is not txn
            }
        self.note(f"abort {txn.id}")

    # --- steps: consumers --------------------------------------------------------------------

    def open(self, rng: random.Random) -> Hand:
        sub, who = rng.choice(self.subs), rng.randrange(2)
        return self.open_on(sub, who, rng.choice((0, 0, 1000)))

    def open_on(self, sub: Sub, who: int, timeout_ms: int = 0) -> Hand:
        if len(sub.hands) >= 3:
            return sub.hands[0]
        real = self.clients[who].consumer(
            "t",
            sub.name,
            type=sub.kind,  # type: ignore[arg-type]
            ack_timeout_ms=timeout_ms or None,
        )
        assert isinstance(real, Consumer)
        hand = Hand(who, real, timeout_ms=timeout_ms)
        sub.hands.append(hand)
        sub.is_exclusive = False
        self.note(f"{who} opens a consumer of {sub.name}, {timeout_ms} ms")
        return hand

    def some_hand(self, rng: random.Random) -> tuple[Sub, Hand]:
        sub = rng.choice(self.subs)
        if not sub.hands:
            return sub, self.open_on(sub, rng.randrange(2))
        return sub, rng.choice(sub.hands)

    def receive(self, rng: random.Random) -> None:
        sub, hand = self.some_hand(rng)
        limit = rng.choice((1, 1, 2, 3, 5))
        got = self.took(sub, hand, hand.real.receive_batch(limit))
        self.note(f"{sub.name}/{hand.who} receives {self.texts(got)}")

    def cycle(self, rng: random.Random) -> None:
        """Receive until no more messages come: then no eligible message may be left."""
        sub, hand = self.some_hand(rng)
        limit = rng.choice((1, 2, 7, 1000))
        hands = [hand] if sub.kind == "shared" else list(sub.hands)
        self.note(
            f"{sub.name}/{[each_hand.who for each_hand in hands]} receives all, {limit} at a time"
        )
        came = True
        while came:
            came = False
            for each_hand in hands:
                while got := self.took(sub, each_hand, each_hand.real.receive_batch(limit)):
                    self.note(f"{sub.name}/{each_hand.who} receives {self.texts(got)}")
                    came = True
        remaining_messages = self.left(sub, min(self.cutoff(each_hand.who) for each_hand in hands))
        if (
            remaining_messages and self.settings["strays_max"] == 100_000
        ):  # reading waits where it is reached
            raise Wrong(
                f"{sub.name}/{hand.who} got nothing more, "
                f"but {self.texts(remaining_messages)} is left"
            )
        if self.is_exact:
            self.count(sub, hand.who)

    def count(self, sub: Sub, who: int) -> None:
        """The index and the model count the same messages."""
        cutoff_ms = self.cutoff(who)

        def look(view: Any) -> int:
            [topic] = view.catalog.topics.values()
            subscriptions = view.catalog.subscriptions.values()
            number = next(
                subscription.number
                for subscription in subscriptions
                if subscription.name == sub.name
            )
            return sum(
                index_of_partition(view, subscription, cutoff_ms).count_for(
                    view.cursor(number, subscription)
                )
                for subscription in numbers_of(topic)
            )

        results, expected = self.clients[who].store.read(look), self.delayed(sub, cutoff_ms)
        if results != expected:
            raise Wrong(f"{sub.name}/{who} counts {results} delayed messages, there are {expected}")

    def acknowledge(self, rng: random.Random) -> None:
        sub, hand = self.some_hand(rng)
        ones = self.some_of(rng, hand.ids)
        if ones:
            answer = hand.real.acknowledge([message.id for message in sorted(ones)])
            if answer.acked != len(ones):
                raise Wrong(f"{answer} for {len(ones)} messages")
            sub.settle(ones)
            sub.acked |= ones
            self.note(f"{sub.name}/{hand.who} acknowledges {self.texts(ones)}")

    def cancel(self, rng: random.Random) -> None:
        """Acknowledge by id, whichever consumer has the lease; or cancel, which skips due
        messages.
        """
        sub, who = rng.choice(self.subs), rng.randrange(2)
        free_messages = sorted(self.free(sub))
        if not free_messages:
            return
        ones = set(rng.sample(free_messages, min(len(free_messages), rng.choice((1, 1, 2, 5)))))
        ids = [message.id for message in sorted(ones)]
        if rng.random() < 0.5:
            self.clients[who].acknowledge("t", sub.name, ids)
        else:
            answer = self.clients[who].topic("t").cancel(ids, subscription=sub.name)
            ones = self.waiting_for(who, ones)
            if answer["cancelled"] != len(ones):
                raise Wrong(f"{answer} for {self.texts(ones)}")
        sub.settle(ones)
        sub.acked |= ones
        self.note(f"{who} acknowledges {self.texts(ones)} on {sub.name} by id")

    def acknowledge_in_txn(self, rng: random.Random) -> None:
        if not self.txns:
            return
        txn, sub, who = rng.choice(self.txns), rng.choice(self.subs), rng.randrange(2)
        free_messages = self.free(sub)
        if rng.random() < 0.7:
            free_messages &= sub.in_hand()
        if free_messages:
            ones = self.some_of(rng, free_messages)
            ids = [message.id for message in sorted(ones)]
            self.clients[who].acknowledge("t", sub.name, ids, txn=txn.id)
            sub.settle(ones)
            sub.held.update(dict.fromkeys(ones, txn))
            self.note(f"{who} acknowledges {self.texts(ones)} on {sub.name} in {txn.id}")

    def nack(self, rng: random.Random) -> None:
        sub, hand = self.some_hand(rng)
        ones = self.some_of(rng, hand.ids)
        if ones:
            delay_ms = rng.choice((0, 0, 50))
            hand.real.negative_acknowledge([message.id for message in sorted(ones)], delay_ms)
            sub.give_back(hand, ones, self.boot.ms + delay_ms if delay_ms else None)
            self.note(f"{sub.name}/{hand.who} nacks {self.texts(ones)}, {delay_ms} ms")

    def redeliver(self, rng: random.Random) -> None:
        sub, hand = self.some_hand(rng)
        hand.real.redeliver_unacknowledged_messages()
        self.note(f"{sub.name}/{hand.who} gives all back")
        sub.give_back(hand, set(hand.ids))

    def close(self, rng: random.Random) -> None:
        sub, hand = self.some_hand(rng)
        hand.real.close()
        sub.hands.remove(hand)
        sub.give_back(hand, set(hand.ids))
        self.note(f"{sub.name}/{hand.who} closes")

    def kill(self, rng: random.Random) -> None:
        sub, hand = self.some_hand(rng)
        self.die(sub, hand)
        self.note(f"{sub.name}/{hand.who} dies")

    def die(self, sub: Sub, hand: Hand) -> None:
        """Free the consumer's lock, as the kernel does when a process dies."""
        kill(hand.real)
        sub.hands.remove(hand)
        sub.give_back(hand, set(hand.ids))

    def restart(self, rng: random.Random) -> None:
        who = rng.randrange(2)
        if rng.random() < 0.6:
            self.note(f"{who} crashes")
            self.crash(who)
            return
        for sub in self.subs:
            for hand in [hand for hand in sub.hands if hand.who == who]:
                hand.real.close()
                sub.hands.remove(hand)
                sub.give_back(hand, set(hand.ids))
        self.clients[who].close()
        self.clients[who] = self._client(who)
        self.note(f"{who} restarts")

    def crash(self, who: int) -> None:
        """A process dies, and another takes its place."""
        for sub in self.subs:
            for hand in [hand for hand in sub.hands if hand.who == who]:
                self.die(sub, hand)
        self.drop(self.clients[who])
        self.clients[who] = self._client(who)

    def drop(self, client: Client) -> None:
        """Close the descriptors of a process, and nothing else."""
        client.store.close()
        client.store.disk.close()

    # --- steps: the subscription from outside --------------------------------------------------

    def seek(self, rng: random.Random) -> None:
        sub, who = rng.choice(self.subs), rng.randrange(2)
        if sub.held:
            return
        handle = self.clients[who].subscription("t", sub.name)
        messages = sorted(self.log.values())
        if self.partitions == 1 and messages and rng.random() < 0.7:
            to = rng.choice(messages)
            handle.seek(to.id)
            sub.acked = {message for message in messages if message < to}
            self.note(f"{who} seeks {sub.name} to {self.text(to)}")
        else:
            handle.seek(Bound("start"))
            sub.acked = set()
            self.note(f"{who} seeks {sub.name} to the start")
        sub.settle(set(messages))

    def skip(self, rng: random.Random) -> None:
        sub, who, count = rng.choice(self.subs), rng.randrange(2), rng.choice((1, 2, 5))
        is_all = rng.random() < 0.2
        handle = self.clients[who].subscription("t", sub.name)
        if is_all:
            handle.clear_backlog()
        else:
            handle.skip(count)
        skipped: set[Known] = set()
        for partition in range(self.partitions):
            free_messages = sorted(
                message for message in self.free(sub) if message.partition == partition
            )
            skipped.update(free_messages if is_all else free_messages[:count])
        sub.settle(skipped)
        sub.acked |= skipped
        self.note(f"{who} skips {self.texts(skipped)} on {sub.name}")

    def trim(self, rng: random.Random) -> None:
        """Trim whole ledgers with all their messages."""
        who = rng.randrange(2)
        self.clients[who].admin.trim("t", Bound("last", rng.choice((3, 8))), force_unacked=True)

        def firsts(view: Any) -> list[int]:
            [topic] = view.catalog.topics.values()
            return [view.topic(number).ledgers[0].ledger for number in numbers_of(topic)]

        first = self.clients[who].store.read(firsts)
        trimmed = {
            message for message in self.log.values() if message.id.ledger < first[message.partition]
        }
        for message in trimmed:
            del self.log[message.partition, message.id]
        for sub in self.subs:
            sub.settle(trimmed)
            sub.acked -= trimmed
            sub.held = {message: txn for message, txn in sub.held.items() if message not in trimmed}
        self.note(f"{who} trims {self.texts(trimmed)}")

    def set_policy(self, rng: random.Random) -> None:
        """Set whether messages wait, and how early they may come."""
        who = rng.randrange(2)
        self.active, self.strict = rng.random() < 0.7, rng.random() < 0.6
        self.tick_ms = rng.choice((50, 1000))
        self.clients[who].admin.set_delayed_policies(
            "t", active=self.active, strict=self.strict, tick_time_ms=self.tick_ms
        )
        self.note(f"{who} sets active {self.active}, strict {self.strict}, tick {self.tick_ms}")

    def promote(self, rng: random.Random) -> None:
        """Release messages that are not due for this process; all such messages only where the
        index is exact.
        """
        sub, who = rng.choice(self.subs), rng.randrange(2)
        free_messages = sorted(self.free(sub))
        is_all = self.is_exact and rng.random() < 0.3
        ones = (
            set(free_messages)
            if is_all
            else set(rng.sample(free_messages, min(len(free_messages), 3)))
        )
        if not ones:
            return
        expected = self.waiting_for(who, ones)
        topic = self.clients[who].topic("t")
        if sub.is_exclusive:
            with pytest.raises(NotAllowed):
                topic.promote(all=True, subscription=sub.name)
            return
        if is_all:
            topic.promote(all=True, subscription=sub.name)
        else:
            answer = topic.promote([message.id for message in sorted(ones)], subscription=sub.name)
            if (answer["promoted"], answer["not_delayed"]) != (len(expected), len(ones - expected)):
                raise Wrong(f"{answer} for {self.texts(ones)}")
        sub.released |= expected
        self.note(f"{who} promotes {self.texts(expected)} on {sub.name}")

    def waiting_for(self, who: int, ones: set[Known]) -> set[Known]:
        """The messages that are not due yet by the clock of a process."""
        return {
            message for message in ones if message.at is not None and message.at > self.wall(who)
        }

    def take_exclusively(self, rng: random.Random) -> None:
        """Use another subscription type for a while: all messages come at once, in order of
        position.
        """
        sub, who = rng.choice(self.subs), rng.randrange(2)
        if sub.hands or sub.waiting:
            return
        real = self.clients[who].consumer("t", sub.name, type="exclusive")
        assert isinstance(real, Consumer)
        hand = Hand(who, real)
        sub.hands.append(hand)
        sub.is_exclusive = True
        while got := self.took(sub, hand, real.receive_batch(50), honours=False):
            self.note(f"{sub.name}/{who} gets exclusively {self.texts(got)}")
        free_messages = self.free(sub) - hand.ids
        if free_messages:
            raise Wrong(f"exclusively {sub.name}/{who} did not get {self.texts(free_messages)}")
        ones = self.some_of(rng, hand.ids) if rng.random() < 0.7 else set()
        if ones:
            real.acknowledge([message.id for message in sorted(ones)])
        sub.settle(ones)
        sub.acked |= ones
        real.close()
        sub.hands.remove(hand)
        sub.give_back(hand, set(hand.ids))
        self.note(f"{sub.name}/{who} acknowledged {self.texts(ones)} and closes")

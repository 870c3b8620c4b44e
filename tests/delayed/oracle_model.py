"""The model of the oracle: which messages the engine may return, and which it should have returned.

It has a dict of messages with their times, and for each subscription the sets of messages that are
acknowledged, held by a transaction, leased, or released. It shares no code with the engine: no
bitmaps, buckets, pointers or cursors. Source: spec/delayed 1.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pyarrow as pa

from tests.engine_kit import START_MS
from txlog import Consumer, Message, MessageId, TxnId, messages
from txlog.clock import Instant

TICK_MS = 10  # times are multiples of it, so that many are equal
INSTANT = pa.timestamp("ms", "UTC")
KEYS = (b"a", b"b", b"c", b"d")
MESSAGE_BYTES = 60
Sent = tuple[int | None, bytes | None, bytes]  # deliver_at, key, value


class Death(BaseException):
    """Ends a process in the middle of its work."""


class Wrong(AssertionError):
    """The engine did something that the model forbids."""


@dataclass
class Boot:
    """The clock since boot, which all processes of a machine share."""

    ms: int = 0


class SkewedClock:
    """The clock of a process: the boot time of the machine, and a wall clock of its own."""

    def __init__(self, boot: Boot, skew_ms: int) -> None:
        self.boot = boot
        self.skew_ms = skew_ms

    def now(self) -> Instant:
        """The current time."""
        return Instant(START_MS + self.boot.ms + self.skew_ms, "boot", self.boot.ms)


@dataclass(frozen=True, order=True)
class Known:
    """A visible message."""

    partition: int
    id: MessageId
    at: int | None
    key: bytes | None
    value: bytes


@dataclass(eq=False)
class Hand:
    """A living consumer and its leased messages.

    timeout_ms: how long a lease lasts; 0: as long as the consumer lives due: when each lease ends,
    by the clock since boot
    """

    who: int
    real: Consumer
    ids: set[Known] = field(default_factory=set)
    timeout_ms: int = 0
    due: dict[Known, int] = field(default_factory=dict)


@dataclass(eq=False)
class Sub:
    """The model of a subscription.

    waiting: nacked messages, by the boot time at which they come again is_exclusive: its last
    consumer was exclusive, so that no message waits for its time
    """

    name: str
    kind: str
    is_exclusive: bool = False
    acked: set[Known] = field(default_factory=set)
    held: dict[Known, Txn] = field(default_factory=dict)
    released: set[Known] = field(default_factory=set)
    waiting: dict[Known, int] = field(default_factory=dict)
    hands: list[Hand] = field(default_factory=list)

    def in_hand(self) -> set[Known]:
        """The messages that any consumer has leased."""
        return {message for hand in self.hands for message in hand.ids}

    def expire(self, boot_ms: int) -> None:
        """End the leases that have lasted too long, as the next receive call does."""
        for hand in self.hands:
            if hand.timeout_ms:
                self.give_back(
                    hand, {message for message in hand.ids if hand.due[message] <= boot_ms}
                )

    def settle(self, ones: set[Known]) -> None:
        """Acknowledge messages, plainly or in a transaction: none is leased, released or waiting
        any more.
        """
        self.released -= ones
        for hand in self.hands:
            hand.ids -= ones
        for message in ones:
            self.waiting.pop(message, None)

    def give_back(self, hand: Hand, ones: set[Known], due_ms: int | None = None) -> None:
        """Return messages that came once and were not acknowledged: their times no longer count."""
        hand.ids -= ones
        self.released |= ones
        if due_ms is not None:
            self.waiting.update(dict.fromkeys(ones, due_ms))


@dataclass(eq=False)
class Txn:
    """An open transaction; sent: by partition, the messages that its commit makes visible."""

    id: TxnId
    sent: dict[int, list[Sent]] = field(default_factory=dict)


class Model:
    """The messages and sets after everything that two processes did to one topic."""

    def __init__(self) -> None:
        self.trace: list[str] = []
        self.boot = Boot()
        self.clocks = [SkewedClock(self.boot, 0), SkewedClock(self.boot, 0)]
        self.subs = [Sub("s", "shared"), Sub("u", "shared"), Sub("k", "key-shared")]
        self.log: dict[tuple[int, MessageId], Known] = {}
        self.txns: list[Txn] = []
        self.active, self.strict, self.tick_ms = True, True, 1000
        self.is_exact = False  # the index has every id that is not due, so it can be counted

    def note(self, text: str) -> None:
        """One line of the story."""
        times = "/".join(str(self.wall(who) - START_MS) for who in (0, 1))
        self.trace.append(f"[{times}] {text}")

    def wall(self, who: int) -> int:
        """The wall clock of a process."""
        return self.clocks[who].now().wall_ms

    def cutoff(self, who: int) -> int:
        """The latest delivery time that is due for a process."""
        return self.wall(who) + (0 if self.strict else self.tick_ms)

    def why_not(self, sub: Sub, message: Known, cutoff_ms: int, *, honours: bool = True) -> str:
        """Why the engine may not return a message now; empty when it may."""
        if message in sub.acked:
            return "it is acknowledged"
        if message in sub.held:
            return f"{sub.held[message].id} holds it"
        if message in sub.in_hand():
            return "it is in a hand"
        if sub.waiting.get(message, -1) > self.boot.ms:
            return "it was put off"
        waits = honours and self.active and message not in sub.released
        if waits and message.at is not None and message.at > cutoff_ms:
            return f"it is not due before {message.at - START_MS}"
        return ""

    def took(self, sub: Sub, hand: Hand, table: pa.Table, *, honours: bool = True) -> list[Known]:
        """Check a batch, and add it to the consumer's leases."""
        sub.expire(self.boot.ms)
        out: list[Known] = []
        places: dict[int, list[MessageId]] = {}
        for message in messages(table):
            one = self.known(message)
            why = self.why_not(sub, one, self.cutoff(hand.who), honours=honours)
            if why:
                raise Wrong(f"{sub.name}/{hand.who} got {self.text(one)}, but {why}")
            hand.ids.add(one)
            hand.due[one] = self.boot.ms + hand.timeout_ms
            sub.released.discard(one)
            sub.waiting.pop(one, None)
            places.setdefault(one.partition, []).append(one.id)
            out.append(one)
        for ids in places.values():
            falls = sum(first_id > right for first_id, right in pairwise(ids))
            if falls > 1 and sub.kind == "shared":
                raise Wrong(f"{sub.name}/{hand.who}: a batch in no order: {ids}")
        return out

    def known(self, message: Message) -> Known:
        """The message of the model with this id."""
        assert message.message_id is not None
        found_message = self.log.get((message.partition, message.message_id))
        if (
            found_message is None
            or found_message.value != message.value
            or found_message.at != message.deliver_at
        ):
            raise Wrong(f"{message} is not visible, the model has {found_message}")
        return found_message

    def text(self, message: Known) -> str:
        """A message in a word."""
        at = "" if message.at is None else f"@{message.at - START_MS}"
        return f"{message.partition}/{message.id}{at}"

    def texts(self, ones: Any) -> str:
        """Messages in a line."""
        return " ".join(self.text(message) for message in sorted(ones))

    def left(self, sub: Sub, cutoff_ms: int) -> list[Known]:
        """The messages that the engine should have returned by now."""
        held_keys: set[bytes | None] = set()
        if sub.kind == "key-shared":  # a message that is leased, pending or put off blocks its key
            waiting = {message for message, due_ms in sub.waiting.items() if due_ms > self.boot.ms}
            held_keys = {message.key for message in sub.in_hand() | waiting | sub.held.keys()}
        return [
            message
            for message in sorted(self.log.values())
            if not self.why_not(sub, message, cutoff_ms)
            and (sub.kind != "key-shared" or message.key not in held_keys)
        ]

    def delayed(self, sub: Sub, cutoff_ms: int) -> int:
        """How many of the unacknowledged messages are not due."""
        return sum(
            message.at is not None and message.at > cutoff_ms and message not in sub.acked
            for message in self.log.values()
        )

    def free(self, sub: Sub) -> set[Known]:
        """The messages that any client can acknowledge."""
        return {
            message
            for message in self.log.values()
            if message not in sub.acked and message not in sub.held
        }

    def some_of(self, rng: random.Random, ones: set[Known]) -> set[Known]:
        """A random subset of them, often all."""
        messages = sorted(ones)
        if not messages or rng.random() < 0.3:
            return set(messages)
        return set(rng.sample(messages, rng.randint(1, len(messages))))

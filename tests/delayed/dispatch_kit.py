"""Owns what the tests of delayed dispatch share: a store, clocks, and the messages of a turn."""

from __future__ import annotations

from collections.abc import Sequence

from tests.engine_kit import START_MS, Bench, open_client, rows, session_of
from txlog import Client, MessageId
from txlog.base.choices import SubscriptionType
from txlog.client.consuming.consumer import Consumer
from txlog.clock import ManualClock
from txlog.engine.plan.standing import ReadPosition
from txlog.engine.view import View

T0 = START_MS


class Shop(Bench):
    """A topic t with one partition; times are milliseconds after T0."""

    def __init__(self, folder: object, **settings: int | str) -> None:
        super().__init__(folder, **settings)
        self.client.create_topic("t")

    def set(self, ms: int) -> None:
        """Set the clock of every process that has none of its own."""
        self.clock.set_wall(T0 + ms)

    def process(self, ms: int) -> tuple[Client, ManualClock]:
        """A process with a clock of its own."""
        clock = ManualClock(T0 + ms)
        client = open_client(self.path, clock)
        self.clients.append(client)
        return client, clock

    def send(self, value: bytes, at: int | None = None, key: bytes | None = None) -> MessageId:
        """Send a message that is due at a time."""
        sent = self.client.producer("t").send(
            value, key=key, deliver_at=None if at is None else T0 + at
        )
        assert sent.message_id is not None
        return sent.message_id

    def send_all(self, *arguments: tuple[bytes, int | None]) -> list[MessageId]:
        """Send messages, each with its time."""
        return [self.send(value, at) for value, at in arguments]

    def commit(self, *arguments: tuple[bytes, int | None]) -> list[MessageId]:
        """Send messages in a transaction and commit it; returns their ids."""
        with self.client.transaction() as txn:
            for value, at in arguments:
                self.client.producer("t").send(
                    value, txn=txn, deliver_at=None if at is None else T0 + at
                )
        assert txn.outcome is not None
        (_, ledger, entry, count) = txn.outcome.markers[0]
        return [MessageId(ledger, entry, index + 1) for index in range(count)]

    def consumer(
        self, name: str = "s", client: Client | None = None, type: SubscriptionType = "shared"
    ) -> Consumer:
        """A consumer of a subscription that starts at the earliest message."""
        new_consumer = (client or self.client).consumer(
            "t", name, create=True, type=type, position="earliest"
        )
        assert isinstance(new_consumer, Consumer)
        return new_consumer


def take(consumer: Consumer, limit: int = 1000) -> list[bytes]:
    """The values of a consumer's next batch."""
    return [message.value or b"" for message in rows([consumer.receive_batch(limit)])]


def take_ids(consumer: Consumer, limit: int = 1000) -> list[MessageId]:
    """The ids of a consumer's next batch."""
    message_ids = [message.message_id for message in rows([consumer.receive_batch(limit)])]
    return [message_id for message_id in message_ids if message_id is not None]


def place(consumer: Consumer) -> ReadPosition:
    """The position of a consumer in the only partition."""
    receiving = session_of(consumer).receiving
    position = receiving.place(receiving.numbers()[0])
    assert position is not None
    return position


def pointer(consumer: Consumer) -> int:
    """The time of the consumer's pointer, in ms after T0."""
    return place(consumer).pointer[0] - T0


def strays(consumer: Consumer) -> Sequence[int]:
    """The times of the consumer's strays."""
    return [key[0] - T0 for key in place(consumer).strays]


def mutable(client: Client) -> int:
    """How many ids are in the mutable bucket."""

    def look(view: View) -> int:
        return len(view.delayed(view.catalog.topics[1].first_partition).mutable)

    return client.store.read(look)

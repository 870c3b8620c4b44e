"""A web service whose orders and messages agree, also when it is killed: the outbox pattern.

    pip install fastapi uvicorn
    SHOP_DB=shop.db TXLOG_STORE=shop uvicorn --app-dir examples fastapi_outbox:app

A request writes its order and the message about it into SQLite, in one transaction of SQLite, and
is then answered. A thread, the relay, sends the messages to the topic `orders` and removes them
from the outbox. If the service is killed in between, the next relay sends them again: the number in
the outbox is the sequence id of a named producer, so the store keeps a repeated one once.

One transaction cannot span SQLite and the store. This way each message is sent at least once and
stored exactly once. With several workers the newest relay sends, and the store fences the others.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager

from fastapi import FastAPI
from pydantic import BaseModel

import txlog
from txlog.errors import ProducerFenced

TOPIC = "orders"
SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, customer TEXT, item TEXT);
CREATE TABLE IF NOT EXISTS outbox (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT, value TEXT);
"""


class Order(BaseModel):
    """The body of a request."""

    customer: str
    item: str


class Relay(threading.Thread):
    """Sends the rows of the outbox, in order, whenever it is woken."""

    def __init__(self, client: txlog.Client) -> None:
        super().__init__(name="relay")
        self.client = client
        self.wake = threading.Event()
        self.ends = False

    def run(self) -> None:
        """Send until the service ends, or until a newer relay has taken over."""
        try:
            with self.client.producer(TOPIC, name="outbox") as producer:
                while True:
                    self.wake.clear()
                    is_last = self.ends
                    self.send(producer)
                    if is_last:
                        return
                    self.wake.wait(1.0)  # rows of another worker do not set it
        except ProducerFenced:
            return

    def send(self, producer: txlog.Producer) -> None:
        """Send all rows; a row leaves the outbox once its message is on disk."""
        with database() as shop:
            for sequence, key, value in shop.execute("SELECT * FROM outbox ORDER BY 1").fetchall():
                producer.send(value, key=key, sequence_id=sequence)
                with shop:
                    shop.execute("DELETE FROM outbox WHERE sequence = ?", [sequence])

    def close(self) -> None:
        """Send all rows that are in the outbox, then end the thread."""
        self.ends = True
        self.wake.set()
        self.join()


@contextmanager
def database() -> Iterator[sqlite3.Connection]:
    """A connection of its own for each use; SQLite lets one connection write at a time."""
    with closing(sqlite3.connect(os.environ["SHOP_DB"], timeout=30)) as shop:
        yield shop


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the store for the life of the service, and relay what an earlier life left."""
    with database() as shop:
        shop.executescript(SCHEMA)
    store = os.environ["TXLOG_STORE"]
    txlog.init(store, if_not_exists=True)
    with txlog.open(store) as client:
        client.create_topic(TOPIC, if_not_exists=True)
        app.state.relay = Relay(client)
        app.state.relay.start()
        try:
            yield
        finally:
            app.state.relay.close()


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
def place(order: Order) -> dict[str, int]:
    """Take an order: the answer is sent once the order and its message are on disk."""
    with database() as shop, shop:  # the second `with` is one transaction of SQLite
        row = shop.execute(
            "INSERT INTO orders (customer, item) VALUES (?, ?) RETURNING id",
            [order.customer, order.item],
        ).fetchone()
        value = json.dumps({"id": row[0], **order.model_dump()})
        shop.execute("INSERT INTO outbox (key, value) VALUES (?, ?)", [order.customer, value])
    app.state.relay.wake.set()
    return {"id": row[0]}

"""txlog: exactly-once event streaming in a directory of files, without a broker.

Names are loaded when first used, so that importing txlog costs nothing.

>>> import tempfile, txlog
>>> with tempfile.TemporaryDirectory() as folder:
...     made = txlog.init(folder)
...     with txlog.open(folder) as client:
...         _ = client.create_topic("orders", partitions=4)
...         _ = client.producer("orders").send(b"hello", key=b"customer-1")
...         [message.value for message in client.reader("orders")]
[b'hello']

Contents:

    aio/           the Python API for programs built on an event loop
    answers/       what a store looks like, as plain values; its metrics
    api/           the Python API: client, admin and the handles they give out
    arguments      the error for an argument of the wrong type
    benchmark      `txlog bench`: how fast a store is on this disk, one call after another
    cli/           the command line
    clock          wall time and boot time: the only module that reads a clock
    demo/          `txlog demo`: real invoices, exactly once, while workers are killed
    engine/        the store itself: bytes, facts, state, questions, decisions, upkeep
    errors         the error tree: one class for each thing a caller would do differently
    functions/     user code between topics, exactly once
    ids            names and ids: what they are, how they are written, which are refused
    jobs/          bulk work over topics, with DuckDB or Spark
    __main__       `python -m txlog`, the same as the `txlog` command
    page/          pages of HTML about a store: `txlog report`, and the live page
    ranges         ranges, times, durations and sizes as text
    relation/      which files and rows hold a topic's committed messages
    rows/          the rows and answers that calls return, as types
    schemas/       typed topics: what their values are, as records and columns
    serve/         the store for stock clients of Apache Pulsar, and by HTTP
    settings       the settings of a store and the hard limits, each with its name and value
    spark/         topics as Spark data frames
    sql/           SQL over a store, with DuckDB
    startup/       how the program starts fast
    suggest        which name was probably meant, for the hints of errors
    text/          columns of messages and of queries as text
"""

from __future__ import annotations

import importlib

from txlog.startup import lazy

# Not from typing, which takes longer than all the rest here: until the program `txlog` has set its
# interrupt handler, an interrupt ends in a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from txlog.answers.health import doctor as doctor
    from txlog.answers.integrity import repair as repair
    from txlog.answers.integrity import verify as verify
    from txlog.api.admin import Admin as Admin
    from txlog.api.client import Client as Client
    from txlog.api.consuming.batches import BatchReceivePolicy as BatchReceivePolicy
    from txlog.api.consuming.consumer import Consumer as Consumer
    from txlog.api.consuming.in_memory import NonDurableConsumer as NonDurableConsumer
    from txlog.api.consuming.many_topics import MultiTopicsConsumer as MultiTopicsConsumer
    from txlog.api.open import init as init
    from txlog.api.open import open_store as open
    from txlog.api.reading.message import Message as Message
    from txlog.api.reading.message import messages as messages
    from txlog.api.reading.reader import Reader as Reader
    from txlog.api.reading.table_view import TableView as TableView
    from txlog.api.sending.message_builder import MessageBuilder as MessageBuilder
    from txlog.api.sending.producer import Producer as Producer
    from txlog.api.sending.watermark_builder import WatermarkBuilder as WatermarkBuilder
    from txlog.api.sending.watermark_builder import WatermarkId as WatermarkId
    from txlog.api.transactions.transaction import Transaction as Transaction
    from txlog.api.transactions.transaction import TransactionBuilder as TransactionBuilder
    from txlog.ids import MessageId as MessageId
    from txlog.ids import Position as Position
    from txlog.ids import TopicName as TopicName
    from txlog.ids import TxnId as TxnId
    from txlog.ranges import Bound as Bound
    from txlog.ranges import Range as Range
    from txlog.schemas.classes import schema_of as schema_of
    from txlog.schemas.schema import Schema as Schema
    from txlog.settings import Settings as Settings

__version__ = "0.2.0"
lazy.install()

_HOMES = {
    "BatchReceivePolicy": "api.consuming.batches",
    "Bound": "ranges",
    "Range": "ranges",
    "Client": "api.client",
    "init": "api.open",
    "open": "api.open",
    "Consumer": "api.consuming.consumer",
    "MessageId": "ids",
    "Position": "ids",
    "TopicName": "ids",
    "TxnId": "ids",
    "Message": "api.reading.message",
    "messages": "api.reading.message",
    "Producer": "api.sending.producer",
    "Reader": "api.reading.reader",
    "TableView": "api.reading.table_view",
    "Schema": "schemas.schema",
    "schema_of": "schemas.classes",
    "Settings": "settings",
    "Transaction": "api.transactions.transaction",
    "TransactionBuilder": "api.transactions.transaction",
    "Admin": "api.admin",
    "MultiTopicsConsumer": "api.consuming.many_topics",
    "NonDurableConsumer": "api.consuming.in_memory",
    "MessageBuilder": "api.sending.message_builder",
    "WatermarkBuilder": "api.sending.watermark_builder",
    "WatermarkId": "api.sending.watermark_builder",
    "verify": "answers.integrity",
    "repair": "answers.integrity",
    "doctor": "answers.health",
}

__all__ = [
    "Admin", "BatchReceivePolicy", "Bound", "Client", "Consumer", "Message", "MessageBuilder",
    "MessageId", "MultiTopicsConsumer", "NonDurableConsumer", "Position", "Producer", "Range",
    "Reader", "Schema", "Settings", "TableView", "TopicName", "Transaction", "TransactionBuilder",
    "TxnId", "WatermarkBuilder", "WatermarkId", "__version__", "init", "messages", "open",
    "doctor", "repair", "schema_of", "verify",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module txlog has no attribute {name!r}")
    found = getattr(
        importlib.import_module(f"txlog.{home}"), "open_store" if name == "open" else name
    )
    globals()[name] = found
    return found

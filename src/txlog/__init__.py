"""txlog: exactly-once event streaming in a directory of files, without a broker.

Each public name is loaded on its first use, so that `import txlog` is fast.

>>> import tempfile, txlog
>>> with tempfile.TemporaryDirectory() as folder:
...     made = txlog.init(folder)
...     with txlog.open(folder) as client:
...         _ = client.create_topic("orders", partitions=4)
...         _ = client.producer("orders").send(b"hello", key=b"customer-1")
...         [message.value for message in client.reader("orders")]
[b'hello']

Contents:

    aio          the Python API for programs built on an event loop, by its public name
    base/        words, values and their text: what every room may import
    cli/         the command line, and the programs behind it
    client/      the Python API: Client, Admin and their handles, blocking and asynchronous
    clock        wall time and boot time: no other module reads these two clocks
    engine/      the store itself: bytes, facts, state, questions, decisions, upkeep
    errors       the error tree: one class for each thing a caller would do differently
    functions/   user code between topics, exactly once
    lake/        messages as columns, in bulk: DuckDB, Spark, files and mirrors
    __main__     `python -m txlog`, the same as the `txlog` command
    page/        a store drawn as HTML, still or live
    serve/       the store for stock clients of Apache Pulsar, and by HTTP
    spark/       topics as Spark data frames, by its public name; programs for spark-submit
    testing/     stores with a clock to move and clients that crash, for tests of users
"""

from __future__ import annotations

import importlib

from txlog.base.startup import lazy

# Not from typing, which takes longer to load than all the rest here. Until the program `txlog` has
# set its interrupt handler, Ctrl-C ends in a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from txlog.base.ids import MessageId as MessageId
    from txlog.base.ids import Position as Position
    from txlog.base.ids import TopicName as TopicName
    from txlog.base.ids import TxnId as TxnId
    from txlog.base.ranges import Bound as Bound
    from txlog.base.ranges import Range as Range
    from txlog.base.schemas.classes import schema_of as schema_of
    from txlog.base.schemas.schema import Schema as Schema
    from txlog.base.settings import Settings as Settings
    from txlog.client.admin import Admin as Admin
    from txlog.client.answers.health import doctor as doctor
    from txlog.client.answers.integrity import repair as repair
    from txlog.client.answers.integrity import verify as verify
    from txlog.client.client import Client as Client
    from txlog.client.consuming.batches import BatchReceivePolicy as BatchReceivePolicy
    from txlog.client.consuming.consumer import Consumer as Consumer
    from txlog.client.consuming.consumer import MultiTopicsConsumer as MultiTopicsConsumer
    from txlog.client.consuming.consumer import NonDurableConsumer as NonDurableConsumer
    from txlog.client.open import init as init
    from txlog.client.open import open_store as open
    from txlog.client.reading.reader import Reader as Reader
    from txlog.client.reading.table_view import TableView as TableView
    from txlog.client.restore import restore as restore
    from txlog.client.sending.producer import MessageBuilder as MessageBuilder
    from txlog.client.sending.producer import Producer as Producer
    from txlog.client.sending.producer import WatermarkBuilder as WatermarkBuilder
    from txlog.client.sending.producer import WatermarkId as WatermarkId
    from txlog.client.topic_copy import copy_topic as copy_topic
    from txlog.engine.door.reading import Message, messages
    from txlog.engine.door.transactions import Transaction, TransactionBuilder

__version__ = "0.2.0"
lazy.install()

_HOMES = {
    "BatchReceivePolicy": "client.consuming.batches",
    "Bound": "base.ranges",
    "Range": "base.ranges",
    "Client": "client.client",
    "init": "client.open",
    "open": "client.open",
    "Consumer": "client.consuming.consumer",
    "MessageId": "base.ids",
    "Position": "base.ids",
    "TopicName": "base.ids",
    "TxnId": "base.ids",
    "Message": "engine.door.reading",
    "messages": "engine.door.reading",
    "Producer": "client.sending.producer",
    "Reader": "client.reading.reader",
    "TableView": "client.reading.table_view",
    "Schema": "base.schemas.schema",
    "schema_of": "base.schemas.classes",
    "Settings": "base.settings",
    "Transaction": "engine.door.transactions",
    "TransactionBuilder": "engine.door.transactions",
    "Admin": "client.admin",
    "MultiTopicsConsumer": "client.consuming.consumer",
    "NonDurableConsumer": "client.consuming.consumer",
    "MessageBuilder": "client.sending.producer",
    "WatermarkBuilder": "client.sending.producer",
    "WatermarkId": "client.sending.producer",
    "verify": "client.answers.integrity",
    "repair": "client.answers.integrity",
    "doctor": "client.answers.health",
    "restore": "client.restore",
    "copy_topic": "client.topic_copy",
}

__all__ = [
    "Admin", "BatchReceivePolicy", "Bound", "Client", "Consumer", "Message", "MessageBuilder",
    "MessageId", "MultiTopicsConsumer", "NonDurableConsumer", "Position", "Producer", "Range",
    "Reader", "Schema", "Settings", "TableView", "TopicName", "Transaction", "TransactionBuilder",
    "TxnId", "WatermarkBuilder", "WatermarkId", "__version__", "init", "messages", "open",
    "copy_topic", "doctor", "repair", "restore", "schema_of", "verify",
]  # fmt: skip

_PACKAGES = ("aio", "errors", "functions", "spark", "testing")


def __dir__() -> list[str]:
    return sorted([*__all__, *_PACKAGES])


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if name in _PACKAGES:
        return importlib.import_module(f"txlog.{name}")
    if home is None:
        raise AttributeError(f"module txlog has no attribute {name!r}")
    found = getattr(
        importlib.import_module(f"txlog.{home}"), "open_store" if name == "open" else name
    )
    globals()[name] = found
    return found

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
"""

from __future__ import annotations

import importlib

from txlog import lazy

# Not from typing, which takes longer than all the rest here: until the program `txlog` has its
# handler of interrupts, one ends in a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from txlog.administration import Admin as Admin
    from txlog.asserting import WatermarkBuilder as WatermarkBuilder
    from txlog.asserting import WatermarkId as WatermarkId
    from txlog.bounds import Bound as Bound
    from txlog.bounds import Range as Range
    from txlog.client import Client as Client
    from txlog.consumer import Consumer as Consumer
    from txlog.doctor import doctor as doctor
    from txlog.ids import MessageId as MessageId
    from txlog.ids import Position as Position
    from txlog.ids import TopicName as TopicName
    from txlog.ids import TxnId as TxnId
    from txlog.integrity import repair as repair
    from txlog.integrity import verify as verify
    from txlog.message import Message as Message
    from txlog.message import messages as messages
    from txlog.message_builder import MessageBuilder as MessageBuilder
    from txlog.multi_consumer import MultiTopicsConsumer as MultiTopicsConsumer
    from txlog.nondurable import NonDurableConsumer as NonDurableConsumer
    from txlog.opening import init as init
    from txlog.opening import open_store as open
    from txlog.producer import Producer as Producer
    from txlog.reader import Reader as Reader
    from txlog.settings import Settings as Settings
    from txlog.transaction import Transaction as Transaction
    from txlog.transaction import TransactionBuilder as TransactionBuilder

__version__ = "0.1.0"
lazy.install()

_HOMES = {
    "Bound": "bounds", "Range": "bounds", "Client": "client", "init": "opening", "open": "opening",
    "Consumer": "consumer", "MessageId": "ids", "Position": "ids", "TopicName": "ids",
    "TxnId": "ids", "Message": "message", "messages": "message", "Producer": "producer",
    "Reader": "reader", "Settings": "settings", "Transaction": "transaction",
    "TransactionBuilder": "transaction", "Admin": "administration",
    "MultiTopicsConsumer": "multi_consumer", "NonDurableConsumer": "nondurable",
    "MessageBuilder": "message_builder", "WatermarkBuilder": "asserting",
    "WatermarkId": "asserting", "verify": "integrity",
    "repair": "integrity", "doctor": "doctor",
}  # fmt: skip

__all__ = [
    "Admin", "Bound", "Client", "Consumer", "Message", "MessageBuilder", "MessageId",
    "MultiTopicsConsumer", "NonDurableConsumer", "Position", "Producer", "Range", "Reader",
    "Settings", "TopicName", "Transaction", "TransactionBuilder", "TxnId",
    "WatermarkBuilder", "WatermarkId", "__version__", "init", "messages", "open",
    "doctor", "repair", "verify",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module txlog has no attribute {name!r}")
    found = getattr(importlib.import_module(f"txlog.{home}"), "open_store" if name == "open"
                    else name)  # fmt: skip
    globals()[name] = found
    return found

"""The asynchronous Python API, by its public name: the package `txlog.client.aio`."""

from __future__ import annotations

import sys

from txlog.client import aio
from txlog.client.aio import Client as Client
from txlog.client.aio import Consumer as Consumer
from txlog.client.aio import Opening as Opening
from txlog.client.aio import Producer as Producer
from txlog.client.aio import Reader as Reader
from txlog.client.aio import TableView as TableView
from txlog.client.aio import Transaction as Transaction
from txlog.client.aio import open as open

__all__ = [
    "Client", "Consumer", "Opening", "Producer", "Reader", "TableView", "Transaction", "open",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)


# One module under both names: code that replaces a name in one replaces it in the other.
sys.modules[__name__] = aio

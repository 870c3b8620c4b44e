"""Tests of programs that use txlog: a store with a clock to move, crashes, power cuts, proofs.

With the distribution comes a plugin of pytest, so these fixtures need no import:

    txlog_store     a TemporaryStore, new for each test
    txlog_client    an open client of it
    txlog_clock     its clock: `txlog_clock.advance(timedelta(hours=1))`

A program that is not a test may use the same classes:

>>> from txlog.testing import TemporaryStore
>>> with TemporaryStore() as store:
...     client = store.open()
...     _ = client.create_topic("orders")
...     _ = client.producer("orders").send(b"kept")
...     txn = client.transaction()
...     _ = client.producer("orders").send(b"never committed", txn=txn)
...     store.power_cut()
...     [message.value for message in store.open().reader("orders")]
[b'kept']

`assert_exactly_once` runs a pipeline again and again. Each time it dies at another call of the
disk and starts anew, and its output must equal the output of an undisturbed run.

Door: testing/__init__ testing/plugin testing/crashtest/trials

Contents:

    crashtest/      a crash test of a whole program, which is killed at each of its calls
    exactly_once    the assertion that a pipeline loses and doubles nothing, wherever it dies
    outputs         what two runs of a pipeline wrote, compared
    platter         a disk that dies at a given call, and that loses what was not flushed
    plugin          the fixtures, for pytest
    store           TemporaryStore: a store with a clock, whose clients can crash
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from txlog.testing.exactly_once import assert_exactly_once as assert_exactly_once
    from txlog.testing.platter import Crashed as Crashed
    from txlog.testing.store import TemporaryStore as TemporaryStore

# Each process of a crash test imports this package, and needs none of its names.
_HOMES = {
    "Crashed": "platter",
    "TemporaryStore": "store",
    "assert_exactly_once": "exactly_once",
}

__all__ = ["Crashed", "TemporaryStore", "assert_exactly_once"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module txlog.testing has no attribute {name!r}")
    return getattr(importlib.import_module(f"txlog.testing.{_HOMES[name]}"), name)

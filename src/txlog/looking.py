"""How a question is asked of a store: settle what a dead writer left, end what is overdue, read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from txlog.engine.store import Store
from txlog.engine.view import View

T = TypeVar("T")


def look(store: Store, question: Callable[[View], T]) -> T:
    """The answer of a reading function over the newest state; takes no lock that is not free."""
    store.settle()
    return store.read(question)

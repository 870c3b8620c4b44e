"""How a question is asked of a store: settle what a dead writer left, end what is overdue, read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from txlog.engine.store.store import Store
from txlog.engine.view.view import View

T = TypeVar("T")


def look(store: Store, question: Callable[[View], T], *, up_to_damage: bool = False) -> T:
    """The answer of a reading function over the newest state; takes no lock that is not free.

    up_to_damage: as of Store.read
    """
    store.settle()
    return store.read(question, up_to_damage=up_to_damage)

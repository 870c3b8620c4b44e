"""How a question is asked of a store: settle what a dead writer left, end what is overdue, read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from txlog import report
from txlog.engine.flow import admin
from txlog.engine.store import Store
from txlog.engine.view import View

T = TypeVar("T")


def look(store: Store, question: Callable[[View], T]) -> T:
    """The answer of a reading function over the newest state; takes no lock that is not free."""
    store.settle()
    return store.read(question)


def sweep_overdue(store: Store, coordinators: Sequence[int] = ()) -> None:
    """End what is overdue before a listing, if this process may write."""
    if store.disk.read_only:
        return
    if look(store, lambda view: report.has_overdue(view, store, coordinators)):
        store.write(admin.nothing, tuple(range(store.settings.coordinators)))

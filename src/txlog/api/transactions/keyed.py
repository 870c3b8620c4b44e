"""Owns the calls of a client that concern transaction keys: connect, and begin under a key."""

from __future__ import annotations

from txlog.engine.decide.transactions import keys
from txlog.engine.decide.transactions.keys import Connected, Opened
from txlog.engine.store.store import Store


def connect(store: Store, key: str, epoch: int, owner: str | int | None) -> Connected:
    """Take a key. Raises NotAllowed, InvalidArgument."""
    caller = store.disk.owner()
    answer = store.write(
        lambda view, now: keys.connect(view, store.settings, now, caller, key, epoch, owner)
    )
    assert isinstance(answer, Connected)
    return answer


def begin(
    store: Store, timeout_ms: int | None, key: str, epoch: int | None, owner: str | int | None
) -> Opened:
    """Begin under a key, at once: what another holder left open must not wait for a first send.

    raises: ProducerFenced, NotAllowed, InvalidArgument, LimitExceeded
    """
    caller = store.disk.owner()
    answer = store.write(
        lambda view, now: keys.begin(
            view, store.settings, now, caller, timeout_ms, key, epoch, owner
        )
    )
    assert isinstance(answer, Opened)
    return answer

"""The locks of a store, and the processes that hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txlog.engine.door.journal import FLUSH_LOCK
from txlog.engine.door.liveness import CONSUMERS_DIR, WRITE_LOCK, consumer_lock
from txlog.engine.door.space import pins
from txlog.engine.door.store import MAINTENANCE_PATH, Store, View
from txlog.errors import MissingFile

if TYPE_CHECKING:
    from txlog.base.rows.store import LockRow


def locks(view: View, store: Store) -> list[LockRow]:
    """Every lock: {name, path, held, pid, command, since_time, subscription}.

    name is write, flush, maintenance, pin, producer (of an exclusive producer) or consumer. A
    consumer has a row while it is in the catalog, and its process holds the lock while it lives.
    """
    out = [
        _row(store, "write", WRITE_LOCK, None, None),
        _row(store, "flush", FLUSH_LOCK, None, None),
        _row(store, "maintenance", MAINTENANCE_PATH, None, None),
    ]
    out += [_row(store, "pin", path, None, None) for path in pins(store.disk)]
    seats = sorted(name for name in store.disk.listdir(CONSUMERS_DIR) if "-" in name)
    out += [_row(store, "producer", f"{CONSUMERS_DIR}/{name}", None, None) for name in seats]
    for _, consumer in sorted(view.catalog.consumers.items()):
        subscription = view.catalog.subscriptions[consumer.subscription]
        out.append(
            _row(
                store,
                "consumer",
                consumer_lock(consumer.number),
                subscription.name,
                consumer.since_ms,
            )
        )
    return out


def _row(
    store: Store, name: str, path: str, subscription: str | None, since_ms: int | None
) -> LockRow:
    process = holder(store, path)
    return {
        "name": name,
        "path": path,
        "held": process is not None,
        "pid": None if process is None else process[0],
        "command": None if process is None else process[1],
        "since_time": since_ms if process is not None else None,
        "subscription": subscription,
    }


def holder(store: Store, path: str) -> tuple[int, str] | None:
    """(process id, command) of the process that holds a lock file; None: no process does."""
    try:
        lock = store.disk.lock_file(path, create=False)
    except MissingFile:
        return None
    try:
        return lock.holder()
    finally:
        lock.close()

"""`init` makes a store in a directory; `open` opens one that exists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txlog.base.arguments import explained
from txlog.base.settings import Settings, check_setting
from txlog.client.client import Client
from txlog.clock import Clock, SystemClock
from txlog.engine.door import disk as posix
from txlog.engine.door.disk import PosixDisk, absolute
from txlog.engine.door.identity import IDENTITY_PATH, MADE, make_store, read_identity
from txlog.engine.door.store import Store
from txlog.errors import AlreadyExists, InvalidArgument

if TYPE_CHECKING:
    from txlog.base.rows.store import StoreMade


@explained
def init(
    path: str,
    *,
    if_not_exists: bool = False,
    shared_group: str | None = None,
    allow_unsafe: bool = False,
    clock: Clock | None = None,
    **settings: int | str | float,
) -> StoreMade:
    """Make a store; returns {path, uuid, format, created}.

    settings: any of txlog.base.settings.Settings
    raises:   AlreadyExists, InvalidArgument, LimitExceeded, NotAllowed (a network file system),
              StoreLocked (another process is making it)
    """
    checked = Settings.from_mapping(settings)
    path = absolute(path)
    created = False
    there = posix.is_there(path, IDENTITY_PATH)
    if not (if_not_exists and there):
        if there:
            raise AlreadyExists(f"{path} is a store already", path=path)
        posix.create_root(path, shared_group, allow_unsafe=allow_unsafe, may_hold=MADE)
        created = True
    disk = PosixDisk(path, shared_group=shared_group) if shared_group else PosixDisk(path)
    try:
        if created:
            try:
                make_store(disk, checked, clock or SystemClock())
            except AlreadyExists:  # another process made it meanwhile
                if not (if_not_exists and disk.exists(IDENTITY_PATH)):
                    raise
                created = False
        identity = read_identity(disk)
    finally:
        disk.close()
    return {"path": path, "uuid": identity.uuid, "format": identity.format, "created": created}


@explained
def open_store(
    path: str,
    *,
    read_only: bool = False,
    clock: Clock | None = None,
    lock_timeout_ms: int | None = None,
    durability: str | None = None,
    dry_run: bool = False,
    transaction_key: str | None = None,
) -> Client:
    """Open a store that exists; exported as txlog.open.

    lock_timeout_ms: how long to wait for the writer's lock; the store's setting when left out
    durability:      "sync" or "os" for what this client writes; the store's setting when left out
    dry_run:         calls answer as if they had been done, and see what earlier ones did; no lock
                     is taken and no byte changes; messages cannot be sent
    transaction_key: connect it; the client's transactions run under it, and those of an older
                     client with the same key are fenced at once
    raises:          StoreNotFound, FormatMismatch, Corruption, ReadOnlyStore, NoResources
    """
    if durability not in (None, "sync", "os"):
        raise InvalidArgument(f"durability is {durability!r}, it must be sync or os")
    if lock_timeout_ms is not None:
        check_setting("lock_timeout_ms", lock_timeout_ms)
    disk = PosixDisk(absolute(path), read_only=read_only or dry_run)
    try:
        store = Store(
            disk,
            clock or SystemClock(),
            read_identity(disk),
            lock_timeout_ms=lock_timeout_ms,
            durability=durability,
            dry_run=dry_run,
        )
    except BaseException:  # nobody else can close it yet
        disk.close()
        raise
    client = Client(store, disk)
    if transaction_key is not None:
        try:
            client.epoch = client.connect(transaction_key)["epoch"]
        except BaseException:  # nobody else can close them yet
            store.close()
            disk.close()
            raise
        client.transaction_key = transaction_key
    return client

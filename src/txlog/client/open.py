"""`init` creates a store in a directory; `open` opens an existing one."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from txlog.base.arguments import StrPath, explained, path_text
from txlog.base.choices import Durability
from txlog.base.settings import Settings, check_setting
from txlog.base.times import DurationLike, duration_ms, durations_ms
from txlog.client.client import Client
from txlog.clock import Clock, SystemClock
from txlog.engine.door import disk as posix
from txlog.engine.door.disk import Disk, PosixDisk, absolute
from txlog.engine.door.identity import IDENTITY_PATH, MADE, make_store, read_identity
from txlog.engine.door.store import Store
from txlog.errors import AlreadyExists, InvalidArgument

if TYPE_CHECKING:
    from txlog.base.rows.store import StoreMade


@explained
def init(
    path: StrPath,
    *,
    if_not_exists: bool = False,
    shared_group: str | None = None,
    allow_unsafe: bool = False,
    clock: Clock | None = None,
    **settings: int | str | float | timedelta,
) -> StoreMade:
    """Create a store; returns {path, uuid, format, created}.

    settings: fields of txlog.base.settings.Settings
    raises:   AlreadyExists, InvalidArgument, LimitExceeded, NotAllowed (a network file system),
              StoreLocked (another process is creating it)
    """
    checked = Settings.from_mapping(durations_ms(settings))
    path = absolute(path_text(path))
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
            except AlreadyExists:  # another process has created it since
                if not (if_not_exists and disk.exists(IDENTITY_PATH)):
                    raise
                created = False
        identity = read_identity(disk)
    finally:
        disk.close()
    return {"path": path, "uuid": identity.uuid, "format": identity.format, "created": created}


@explained
def open_store(
    path: StrPath,
    *,
    read_only: bool = False,
    clock: Clock | None = None,
    lock_timeout_ms: DurationLike | None = None,
    durability: Durability | None = None,
    dry_run: bool = False,
    transaction_key: str | None = None,
) -> Client:
    """Open an existing store; exported as txlog.open.

    lock_timeout_ms: how long to wait for the write lock; by default the store's setting
    durability:      "sync" or "os", for the writes of this client; by default the store's setting
    dry_run:         calls compute their answers and see the effects of earlier calls, but take no
                     lock and write nothing; messages cannot be sent
    transaction_key: a key to connect. The client's transactions run under it, and transactions of
                     an older client with the same key are fenced at once
    raises:          StoreNotFound, FormatMismatch, Corruption, ReadOnlyStore, NoResources
    """
    if durability not in (None, "sync", "os"):
        raise InvalidArgument(f"durability is {durability!r}, it must be sync or os")
    timeout_ms = duration_ms(lock_timeout_ms)
    if timeout_ms is not None:
        check_setting("lock_timeout_ms", timeout_ms)
    disk = PosixDisk(absolute(path_text(path)), read_only=read_only or dry_run)
    return open_on(
        disk,
        clock or SystemClock(),
        lock_timeout_ms=timeout_ms,
        durability=durability,
        dry_run=dry_run,
        transaction_key=transaction_key,
    )


def open_on(
    disk: Disk,
    clock: Clock,
    *,
    lock_timeout_ms: int | None = None,
    durability: Durability | None = None,
    dry_run: bool = False,
    transaction_key: str | None = None,
) -> Client:
    """Open a store on its disk, which closing the client closes; as open_store."""
    try:
        store = Store(
            disk,
            clock,
            read_identity(disk),
            lock_timeout_ms=lock_timeout_ms,
            durability=durability,
            dry_run=dry_run,
        )
    except BaseException:  # also on Ctrl-C: the caller gets no client to close
        disk.close()
        raise
    client = Client(store, disk)
    if transaction_key is not None:
        try:
            client.epoch = client.connect(transaction_key)["epoch"]
        except BaseException:  # also on Ctrl-C: the caller gets nothing to close
            store.close()
            disk.close()
            raise
        client.transaction_key = transaction_key
    return client

"""Creating a store, and the file that identifies it."""

from txlog.engine.store.identity import (
    COPIED,
    DIRECTORIES,
    IDENTITY_PATH,
    LOCK,
    MADE,
    MAINTENANCE,
    RESERVE,
    RESERVE_BYTES,
    RESTORED,
    Identity,
    make_store,
    read_identity,
)

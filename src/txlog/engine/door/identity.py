"""Making a store, and reading its identity."""

from txlog.engine.store.identity import (
    COPIED,
    DIRECTORIES,
    IDENTITY_PATH,
    LOCK,
    MADE,
    MAINTENANCE,
    RESERVE,
    RESERVE_BYTES,
    Identity,
    make_store,
    read_identity,
)

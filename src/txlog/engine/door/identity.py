"""Making a store, and what its own files say it is."""

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

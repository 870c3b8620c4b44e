"""Owns how Spark's side opens a store: so that it may pin files, if this user may."""

from __future__ import annotations

from txlog.api.client import Client
from txlog.api.open import open_store
from txlog.errors import NotAllowed, ReadOnlyStore


def opened(store: str) -> Client:
    """A client that may pin files; of a store that this user should not write, one that may not.

    raises: StoreNotFound, FormatMismatch, Corruption, NoResources
    """
    try:
        client = open_store(store)
    except (NotAllowed, ReadOnlyStore):
        return open_store(store, read_only=True)
    client.checkpoint_automatically = False  # it came to read
    return client

"""The ops of transaction keys, a part of the closed set of ops.py."""

from typing import Final

import msgspec

NEW_HOLDER: Final = -1  # an epoch: presented by one that was not connected before


class KeyConnected(msgspec.Struct, tag="kcon", frozen=True, array_like=True, gc=False):
    """A holder connected the transaction key (uid, key); only this epoch may begin under it."""

    coordinator: int
    uid: int
    owner: str
    key: str
    epoch: int


class KeyBound(msgspec.Struct, tag="kbnd", frozen=True, array_like=True, gc=False):
    """The key's transaction is this one from now on."""

    coordinator: int
    uid: int
    key: str
    epoch: int
    sequence: int


class KeyReleased(msgspec.Struct, tag="krel", frozen=True, array_like=True, gc=False):
    """A transaction of the key has ended, open_ms after its begin."""

    coordinator: int
    uid: int
    key: str
    sequence: int
    open_ms: int


class KeyDeleted(msgspec.Struct, tag="kdel", frozen=True, array_like=True, gc=False):
    """The key is a tombstone that keeps its last epoch."""

    coordinator: int
    uid: int
    key: str

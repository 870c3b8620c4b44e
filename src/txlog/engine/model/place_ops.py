"""The ops of files outside of the store, a part of the closed set of ops.py."""

import msgspec

from txlog.engine.storage.segment import FileRef


class PlaceAdded(msgspec.Struct, tag="plac", frozen=True, array_like=True, gc=False):
    """Files may be in this place from now on: before the first is copied, so that a sweep looks."""

    place: str


class Offloaded(msgspec.Struct, tag="offl", frozen=True, array_like=True, gc=False):
    """The sealed file of a ledger is at an address from now on; its bytes are the same."""

    partition: int
    file: FileRef

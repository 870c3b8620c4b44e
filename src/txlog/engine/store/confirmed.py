"""The places outside a store that this user has confirmed, for reading and for removing files.

The store alone cannot make txlog open or remove a file outside it (storage/remote). A file is
removed only from a place to which this user has offloaded from this store. The record names the
path and the uuid of the store. A copy of the store, a store that was moved, and a store that
another user made have no record. Their files stay until an offload confirms the place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from txlog.base.startup.crc32c import crc32c
from txlog.engine.storage.remote import PlaceRecord, place_in, read_record, record_directory, trust
from txlog.engine.storage.user_files import make_directory, real_path, replace_file
from txlog.errors import DiskFailed

if TYPE_CHECKING:
    from txlog.engine.store.store import Store

PLACES_MAX: Final = 1_000
HINT: Final = "txlog admin offload TOPIC --to PLACE confirms a place"

__all__ = ["HINT", "confirm", "confirmed", "place_in"]


def confirm(store: Store, place: str, *, removes: bool) -> None:
    """Record that this user has named a place for files of this store.

    removes: files of this store there may be removed, too; False: they may only be read
    raises:  DiskFailed: the record cannot be written, so no process could read there
    """
    path = _path_of(store)
    if path is None:
        raise DiskFailed(
            "this user has no directory to record a place in", hint="set XDG_STATE_HOME"
        )
    record = _record_of(store) or PlaceRecord(_name_of(store), store.identity.uuid)
    places = record.places if removes else record.read
    if place not in places:
        places[:] = [*places, place][-PLACES_MAX:]
        try:
            make_directory(path.rpartition("/")[0])
            replace_file(path, msgspec.json.encode(record))
        except DiskFailed as error:
            raise DiskFailed(
                f"cannot record that files of the store are at this place: {error}",
                hint="set XDG_STATE_HOME to a directory that this user may write",
            ) from error
    trust([place])


def confirmed(store: Store) -> list[str]:
    """The places from which this user lets files of this store be removed."""
    record = _record_of(store)
    return [] if record is None else record.places


def _record_of(store: Store) -> PlaceRecord | None:
    path = _path_of(store)
    record = None if path is None else read_record(path)
    if record is None:
        return None
    is_ours = (record.store, record.uuid) == (_name_of(store), store.identity.uuid)
    return record if is_ours else None


def _name_of(store: Store) -> str:
    return real_path(store.disk.description)


def _path_of(store: Store) -> str | None:
    directory = record_directory()
    name = _name_of(store).encode(errors="surrogateescape")
    # only to distinguish paths; the record has the path itself
    digest = f"{crc32c(name):08x}{crc32c(name[::-1]):08x}"
    return None if directory is None else f"{directory}/{digest}.json"

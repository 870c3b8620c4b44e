"""Owns the places outside a store from which this user lets its files be removed.

A store names places and files by address, and whoever made it may name any file of this machine, or
any bucket. So nothing outside is removed because the store says so. A place counts only if this
user has offloaded to it from this store, and that is recorded where no store reaches:

    $XDG_STATE_HOME/txlog/places/<hash of the store's path>.json   by default in ~/.local/state

The record names the path and the uuid of the store. A copy of the store, a store that was moved and
one that somebody else made have no record; their files stay until an offload confirms the place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from txlog.engine.storage import remote
from txlog.engine.storage.user_files import (
    make_directory,
    read_file,
    real_path,
    replace_file,
    state_home,
)
from txlog.errors import TxlogError
from txlog.startup.crc32c import crc32c

if TYPE_CHECKING:
    from txlog.engine.store.store import Store

PLACES_MAX: Final = 1_000
RECORD_BYTES_MAX: Final = 1 << 20
HINT: Final = "txlog admin offload TOPIC --to PLACE confirms a place"


class Record(msgspec.Struct):
    """What a file says: path and uuid of a store, and the places that its user has confirmed."""

    store: str
    uuid: str
    places: list[str] = []


def confirm(store: Store, place: str) -> None:
    """Record that this user has named a place for files of this store.

    What cannot be recorded is a note: offloading goes on, and files there are never removed.
    """
    path = _path_of(store)
    places = confirmed(store)
    if place in places:
        return
    try:
        if path is None:
            store.reports.append("this user has no directory to record a confirmed place in")
            return
        make_directory(path.rpartition("/")[0])
        record = Record(_name_of(store), store.identity.uuid, [*places, place][-PLACES_MAX:])
        replace_file(path, msgspec.json.encode(record))
    except TxlogError as error:
        store.reports.append(f"files at {remote.without_options(place)} will stay: {error}")


def confirmed(store: Store) -> list[str]:
    """The places that this user has confirmed for this store; none if that cannot be read."""
    path = _path_of(store)
    data = None if path is None else read_file(path, RECORD_BYTES_MAX)
    if data is None:
        return []
    try:
        record = msgspec.json.decode(data, type=Record)
    except msgspec.DecodeError:
        return []
    is_ours = (record.store, record.uuid) == (_name_of(store), store.identity.uuid)
    return record.places if is_ours else []


def place_in(places: list[str], uuid: str, path: str) -> str | None:
    """The confirmed place that a file outside lies in, as a store puts it there; None: in none.

    uuid: of the store, in whose directory of the place it must be
    """
    for place in places:
        base, _, options = place.partition("?")
        far, _, of_file = path.partition("?")
        parts = far.removeprefix(f"{base}/").split("/")
        if (
            base.endswith(f"/{uuid}")
            and far.startswith(f"{base}/topics/")
            and options == of_file
            and parts[-1].endswith((".parquet", ".arrow"))
            and not {"", ".", ".."}.intersection(parts)
        ):
            return place
    return None


def _name_of(store: Store) -> str:
    return real_path(store.disk.description)


def _path_of(store: Store) -> str | None:
    home = state_home()
    name = _name_of(store).encode(errors="surrogateescape")
    # not to be guessed back, only to tell paths apart: the record has the path itself
    digest = f"{crc32c(name):08x}{crc32c(name[::-1]):08x}"
    return None if home is None else f"{home}/txlog/places/{digest}.json"

"""Owns the folds by kind, and their dumps: what a state file begins with, how one is read.

A state file is its head and the dumps behind each other; the manifest has the place and checksum of
each (DumpRef), so a component is loaded without the others.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import NamedTuple

from txlog.engine.folds import buffer as buffers
from txlog.engine.folds import catalog as catalogs
from txlog.engine.folds import coordinator as coordinators
from txlog.engine.folds import cursor as cursors
from txlog.engine.folds import delayed as delays
from txlog.engine.folds import topic as topics
from txlog.engine.folds import transaction_key as transaction_keys
from txlog.engine.folds import watermark as watermarks
from txlog.engine.model.fold import Fold
from txlog.engine.model.ops import Op
from txlog.engine.model.routes import Component
from txlog.engine.storage.checked import HINT
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.manifest import DumpRef
from txlog.errors import Corruption, MissingFile
from txlog.startup.crc32c import crc32c

HOMES: dict[str, ModuleType] = {
    "catalog": catalogs, "coordinator": coordinators, "key": transaction_keys, "topic": topics,
    "buffer": buffers, "cursor": cursors, "delayed": delays, "watermark": watermarks,
}  # fmt: skip


class _Folds(Mapping[str, Fold]):
    """The folds by kind; the module of one runs when a component of that kind is loaded."""

    def __getitem__(self, kind: str) -> Fold:
        fold: Fold = HOMES[kind].FOLD
        assert fold.kind == kind
        return fold

    def __iter__(self) -> Iterator[str]:
        return iter(HOMES)

    def __len__(self) -> int:
        return len(HOMES)


FOLDS = _Folds()
STATE_HEAD = struct.Struct("<8s8s")
STATE_MAGIC = b"TXLOGSTA"


def load_dump(disk: Disk, fold: Fold, ref: DumpRef) -> object:
    """The state that a dump holds; raises Corruption."""
    return fold.load(dump_bytes(disk, ref))


class Origin(NamedTuple):
    """What the state of a component is made from: its dump, and (LSN, time, op) behind that."""

    ref: DumpRef | None
    ops: Sequence[tuple[int, int, Op]]


def made(disk: Disk, key: Component, origin: Origin) -> object:
    """The state of a component; nothing of the origin changes. Raises Corruption."""
    fold = FOLDS[key[0]]
    state: object = fold.new() if origin.ref is None else load_dump(disk, fold, origin.ref)
    for lsn, time_ms, op in origin.ops:
        fold.apply(state, lsn, time_ms, op)
    return state


def dump_bytes(disk: Disk, ref: DumpRef) -> bytes:
    """A dump as it lies in its state file; raises Corruption."""
    try:
        file = disk.open(ref.path)
    except MissingFile as error:
        raise MissingFile(error.message, hint=HINT, path=ref.path) from error
    try:
        data = file.pread(ref.offset, ref.length)
    finally:
        file.close()
    if len(data) != ref.length or crc32c(data) != ref.crc:
        raise Corruption(
            f"{ref.path} is damaged, bytes {ref.offset} to {ref.offset + ref.length} "
            f"({ref.kind} {ref.a})",
            hint=HINT,
            path=ref.path, offset=ref.offset, expected=ref.crc, found=crc32c(data),
        )  # fmt: skip
    return data

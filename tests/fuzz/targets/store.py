"""A whole store with damaged files: opening, reading, verifying, and planning its repair.

An input is a list of changes of the files of a store: which file, where, and the bytes to put
there. The first byte says whether the changed files get valid checksums, in their own bytes and in
the manifest that names them.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from functools import cache

import msgspec

from tests.disk.memory import MemoryDisk
from tests.engine_kit import START_MS, client_on
from tests.fuzz.engine import Target
from tests.fuzz.targets import world
from tests.fuzz.targets.files import repaired_journal
from txlog.base.startup.crc32c import crc32c
from txlog.client.answers import integrity
from txlog.clock import ManualClock
from txlog.engine.storage import manifest
from txlog.errors import TxlogError

_CHANGE = struct.Struct("<BBHB")  # file, kind, place, length of the bytes after it
_KINDS = 4  # overwrite, insert, cut off here, remove the file
# Only the bytes that a store reads itself get valid checksums: pyarrow may abort on others (R5).
_CHECKED = ("journal/0", "journal/witness", "manifest/", "state/")


def _changes(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    at = 1
    while at + _CHANGE.size <= len(data):
        file, kind, place, length = _CHANGE.unpack_from(data, at)
        at += _CHANGE.size
        yield file, kind % _KINDS, place, data[at : at + length]
        at += length


@cache
def _contents() -> dict[str, bytes]:
    """The files of the store, without the space allocated behind their ends."""
    return {path: content.rstrip(b"\0") for path, content in world.files().items()}


def damaged(data: bytes) -> MemoryDisk:
    """The store after the changes of an input."""
    files = _contents()
    names = [path for path in sorted(files) if files[path]]
    has_checksums = bool(data[:1] and data[0] & 1)
    changed: dict[str, bytes | None] = {}
    for file, kind, place, piece in _changes(data):
        path = names[file % len(names)]
        content = bytearray(changed.get(path, files[path]) or b"")
        at = place % (len(content) + 1)
        if kind == 0:
            content[at : at + len(piece)] = piece
        elif kind == 1:
            content[at:at] = piece
        elif kind == 2:
            del content[at:]
        changed[path] = None if kind == 3 else bytes(content)
    if has_checksums:
        _check(changed, files)
    disk = world.made().copy()
    for path, bytes_now in changed.items():
        if bytes_now is not None and path.startswith("journal/"):
            bytes_now = bytes_now.ljust(len(world.files()[path]), b"\0")
        disk.damage(path, bytes_now)
    return disk


def _check(changed: dict[str, bytes | None], files: dict[str, bytes]) -> None:
    """Give the changed files valid checksums."""
    for path, content in list(changed.items()):
        if content is None or not path.startswith(_CHECKED):
            continue
        if path.startswith("journal/0"):
            changed[path] = repaired_journal(content + bytes(-len(content) % 8))
        elif path == "journal/witness":
            slots = [content[at : at + 124].ljust(124, b"\0") for at in (0, 4096)]
            first, second = (slot + struct.pack("<I", crc32c(slot)) for slot in slots)
            changed[path] = first.ljust(4096, b"\0") + second
        elif path.startswith("manifest/"):
            head, tail = content[:16].ljust(16, b"\0"), content[20:]
            changed[path] = head + struct.pack("<I", crc32c(tail, crc32c(head))) + tail
    for path in [path for path in files if path.startswith("manifest/")]:
        if path not in changed:
            _name_again(path, changed, files)


def _name_again(path: str, changed: dict[str, bytes | None], files: dict[str, bytes]) -> None:
    """Let a manifest name the changed state files as they are."""
    body = msgspec.msgpack.decode(files[path][32:], type=manifest.Manifest)
    dumps = []
    for ref in body.dumps:
        state = changed.get(ref.path)
        if state is not None:
            state = state.ljust(len(world.files()[ref.path]), b"\0")
            changed[ref.path] = state
            ref = msgspec.structs.replace(
                ref, crc=crc32c(state[ref.offset : ref.offset + ref.length])
            )
        dumps.append(ref)
    if dumps != body.dumps:
        again = msgspec.structs.replace(body, dumps=dumps)
        changed[path] = manifest.encode_manifest(again, files[path][8:16])


def _store(data: bytes) -> None:
    disk = damaged(data)
    clock = ManualClock(START_MS + 300_000)
    refusal: TxlogError | None = None
    try:
        _use(disk, clock)
    except TxlogError as error:
        refusal = error
    answer = integrity.verify_disk(disk.process(read_only=True), clock, deep=True)
    assert refusal is None or refusal.exit != 6 or answer["problem_list"], refusal
    integrity.repair_disk(disk.process(read_only=True), clock, apply=False)


def _use(disk: MemoryDisk, clock: ManualClock) -> None:
    client = client_on(disk.process(read_only=True), clock)
    try:
        for row in client.topics():
            for _ in client.read(row["topic"]):
                pass
        client.subscriptions()
        client.lag()
        client.transactions(all=True)
    finally:
        client.close()


def _seeds() -> list[bytes]:
    chance = random.Random("store")
    files = len([path for path, data in _contents().items() if data])
    seeds = [b"\0", b"\1"]
    for file in range(files):
        for kind in range(_KINDS):
            piece = chance.randbytes(4)
            change = _CHANGE.pack(file, kind, chance.randrange(1 << 12), len(piece)) + piece
            seeds.append(bytes([chance.randrange(2)]) + change)
    return seeds


def _changed_again(chance: random.Random, data: bytes) -> bytes:
    """One more change, or one less."""
    changes = list(_changes(data))
    if changes and chance.random() < 0.3:
        del changes[chance.randrange(len(changes))]
    else:
        file, kind = chance.randrange(64), chance.choice((0, 0, 0, 1, 2, 3))
        pieces = (b"\0", b"\xff" * 8, chance.randbytes(4), bytes([chance.randrange(256)]))
        changes.append((file, kind, chance.randrange(1 << 12), chance.choice(pieces)))
    packed = [_CHANGE.pack(f, kind, at, len(piece)) + piece for f, kind, at, piece in changes]
    return bytes([chance.randrange(2)]) + b"".join(packed)


_E = "txlog.engine."
TARGETS = (
    Target(
        "store",
        _store,
        _seeds,
        (
            f"{_E}view",
            f"{_E}storage.journal",
            f"{_E}storage.manifest",
            f"{_E}upkeep.verify.verify",
            f"{_E}upkeep.verify.journal",
            f"{_E}upkeep.verify.files",
            f"{_E}upkeep.verify.folds",
            f"{_E}upkeep.repair.plan",
        ),
        change=_changed_again,
        first=b"\0",
        steps=5_000_000,
        size_max=512,
        memory=128 << 20,
    ),
)

"""The files of a store: each reader alone, with the bytes of an input as its file."""

from __future__ import annotations

import random
import struct
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tests.fuzz.engine import Target
from tests.fuzz.mutation import changed_tree
from tests.fuzz.targets import world
from tests.fuzz.targets.one_file import OneFile
from tests.storage.test_bucket import encode
from tests.storage.test_segment import Bytes
from txlog.base.startup.crc32c import crc32c
from txlog.engine.model.leases import Seen
from txlog.engine.model.ops import FILES, UNREADABLE, Component, Op, decode_ops
from txlog.engine.model.schema import ONE_ROW, batch_of, decode_row
from txlog.engine.storage import bucket, frame, manifest, segment
from txlog.engine.storage.checked import checked_bytes
from txlog.engine.storage.segment_reader import SegmentReader
from txlog.engine.store import identity, liveness
from txlog.engine.upkeep.changes import log
from txlog.engine.upkeep.changes.rows import SCHEMAS
from txlog.engine.upkeep.checkpoint import dump, history
from txlog.engine.view import FOLDS, StateSources, made
from txlog.errors import TxlogError

_U32 = struct.Struct("<I")
_SALT = slice(16, 24)


def _named(*parts: str) -> list[bytes]:
    """The files of the store whose paths contain any of `parts`, without the zeros at the end."""
    return [
        data.rstrip(b"\0") if "journal" in path else data
        for path, data in world.files().items()
        if any(part in path for part in parts) and data
    ]


# --- the journal ---------------------------------------------------------------------------------


def _frames(data: bytes) -> None:
    """Read a journal file as a process that opens the store does, and apply its ops."""
    first = int.from_bytes(data[24:32], "little")
    name = frame.JournalName(first, int.from_bytes(data[12:16], "little"))
    disk: object = OneFile(data)
    journal = frame.JournalFile(disk, name, data[_SALT].ljust(8, b"\0"))  # type: ignore[arg-type]
    at, lsn, crc = frame.FILE_HEADER_BYTES, first, journal.chain_crc
    taken: dict[Component, list[tuple[int, int, Op]]] = {}
    while (raw := journal.read_frame(at, lsn, crc)) is not None:
        for op in decode_ops(raw.ops, lsn=raw.lsn):
            for key in op.components():
                if key != FILES:
                    taken.setdefault(key, []).append((raw.lsn, raw.time_ms, op))
        if raw.rows_bytes and raw.columns & ONE_ROW:  # Arrow would not check what it reads
            row = data[raw.rows_offset : raw.rows_offset + raw.rows_bytes]
            with suppress(*UNREADABLE):  # a reader names the frame
                batch_of(raw.columns, [decode_row(raw.columns, row)])
        at, lsn, crc = at + raw.total_bytes, lsn + 1, raw.crc
    frame.attested_lsn(data, 0, data[_SALT])
    for key, ops in taken.items():
        state = made(disk, key, StateSources(None, ops))  # type: ignore[arg-type]
        FOLDS[key[0]].dump(state)


def repaired_journal(data: bytes) -> bytes:
    """Valid checksums, offsets, numbers and a whole chain, as far as frames follow each other."""
    fixed = bytearray(data)
    if len(fixed) < frame.FILE_HEADER_BYTES:
        return data
    fixed[40 : frame.FILE_HEADER_BYTES] = bytes(frame.FILE_HEADER_BYTES - 40)
    fixed[:12] = b"TXLOGJNL" + _U32.pack(min(max(fixed[8], 1), 2))
    fixed[36:40] = _U32.pack(crc32c(bytes(fixed[:36])))
    salt, lsn = bytes(fixed[_SALT]), int.from_bytes(fixed[24:32], "little")
    (crc,) = _U32.unpack_from(fixed, 32)
    at = frame.FILE_HEADER_BYTES
    while at + frame.HEADER_BYTES <= len(fixed):
        head = list(frame.HEADER.unpack_from(fixed, at))
        room = (len(fixed) - at - frame.HEADER_BYTES) & ~7
        ops = min(head[8], room)
        rows = min(head[9], room - ops)
        head[0], head[1], head[3] = frame.MAGIC, frame.VERSION, frame.HEADER_BYTES
        head[4], head[7], head[8], head[9] = lsn % (1 << 64), at, ops, rows
        head[10], head[11], head[12] = salt, crc, 0
        frame.HEADER.pack_into(fixed, at, *head)
        total = frame.frame_bytes(ops, rows)
        crc = crc32c(bytes(fixed[at + 64 : at + total]), crc32c(bytes(fixed[at : at + 60])))
        _U32.pack_into(fixed, at + 60, crc)
        at, lsn = at + total, lsn + 1
    return bytes(fixed[:at])


def _changed_ops(chance: random.Random, data: bytes) -> bytes:
    """Change a value in the ops of some frame."""
    frames, _ = dump.journal_frames(data)
    raw = chance.choice(frames)
    ops = changed_tree(chance, msgspec.msgpack.decode(raw.ops), _all_ops())
    encoded = msgspec.msgpack.encode(ops)
    start, rows = raw.offset, raw.rows_offset
    head = bytearray(data[start : start + frame.HEADER_BYTES])
    head[40:44] = _U32.pack(len(encoded))
    body = bytes(head) + encoded + data[rows : rows + raw.rows_bytes]
    body += bytes(-len(body) % 8)
    return data[:start] + body + data[start + raw.total_bytes :]


@cache
def _all_ops() -> tuple[Any, ...]:
    """Ops of the store, and values in them."""
    ops = []
    for data in [world.journal(), *_named("journal/000")]:
        for raw in dump.journal_frames(data)[0]:
            ops += msgspec.msgpack.decode(raw.ops)
    return (*ops, *(value for op in ops for value in op))


def _packed_change(start: int) -> Callable[[random.Random, bytes], bytes]:
    """A change of the msgpack from an offset on."""

    def change(chance: random.Random, data: bytes) -> bytes:
        tree = changed_tree(chance, msgspec.msgpack.decode(data[start:]))
        return data[:start] + msgspec.msgpack.encode(tree)

    return change


def _witness(data: bytes) -> None:
    whole = data[:128].ljust(4096, b"\0") + data[128:256]
    disk: object = OneFile(whole)
    witness = frame.Witness(disk, data[_SALT].ljust(8, b"\0"))  # type: ignore[arg-type]
    record = witness.read()
    if record is not None:
        frame.encode_record(record, data[_SALT])


def _repaired_witness(data: bytes) -> bytes:
    salt = data[_SALT].ljust(8, b"\0")
    slots = []
    for slot in (data[:128], data[128:256]):
        body = bytearray(slot[:124].ljust(124, b"\0"))
        body[:8], body[_SALT] = b"TXLW" + _U32.pack(1), salt
        slots.append(bytes(body) + _U32.pack(crc32c(bytes(body))))
    return b"".join(slots)


def _witness_seeds() -> list[bytes]:
    return [data[:128] + data[4096:] for data in _named("journal/witness")]


# --- checkpoints ---------------------------------------------------------------------------------


def _manifest(data: bytes) -> None:
    """Read a manifest, and all that it names; the number in its name is that in its bytes."""
    disk: object = OneFile(data)
    generation = 4
    read = manifest.read_manifest(disk, generation, data[8:16])  # type: ignore[arg-type]
    list(read.files.values())
    manifest.changes_of(read)


def _repaired_manifest(data: bytes) -> bytes:
    body, salt = data[32:], data[8:16].ljust(8, b"\0")
    tail = struct.pack("<IQ", 1, len(body)) + body
    return b"TXLOGMAN" + salt + _U32.pack(crc32c(tail, crc32c(b"TXLOGMAN" + salt))) + tail


_KINDS = tuple(sorted(FOLDS))


def _state(data: bytes) -> None:
    """The dump of a fold; the first byte chooses which."""
    fold = FOLDS[_KINDS[data[0] % len(_KINDS)]] if data else FOLDS[_KINDS[0]]
    fold.read(data[1:])


def _dumps() -> list[bytes]:
    files = world.files()
    bodies = [
        msgspec.msgpack.decode(data[32:], type=manifest.Manifest)
        for path, data in files.items()
        if path.startswith("manifest/")
    ]
    return [
        bytes([_KINDS.index(ref.kind)]) + files[ref.path][ref.offset : ref.offset + ref.length]
        for body in bodies
        for ref in body.dumps
    ]


_LOGS = tuple(SCHEMAS)


def _changes(data: bytes) -> None:
    """A file of changes; the first byte chooses the log, and its form."""
    number, body = data[:1].ljust(1, b"\0")[0], data[1:]
    suffix = "parquet" if number & 8 else "arrow"
    ref = manifest.ChangeRef(
        _LOGS[number % len(_LOGS)], f"x.{suffix}", 4, 0, 0, 0, 0, len(body), crc32c(body)
    )
    try:
        rows = pq.read_metadata(pa.BufferReader(body)).num_rows if number & 8 else _rows_of(body)
    except (pa.ArrowException, OSError, OverflowError):
        rows = 4
    log.decoded(msgspec.structs.replace(ref, rows=rows), body)


def _rows_of(body: bytes) -> int:
    with pa.ipc.open_file(pa.py_buffer(body)) as reader:
        return sum(reader.get_batch(at).num_rows for at in range(reader.num_record_batches))


def _change_seeds() -> list[bytes]:
    seeds = []
    for number, kind in enumerate(_LOGS):
        for data in _named(log.DIRECTORIES[kind]):
            with pa.ipc.open_file(pa.py_buffer(data)) as reader:
                rows = reader.read_all()
            seeds += [bytes([number]) + data, bytes([8 | number]) + bytes(log._as_parquet(rows))]
    return [seed for seed in seeds if _LOGS[seed[0] % len(_LOGS)] == _LOGS[seed[0] & 7]]


def _history(data: bytes) -> None:
    disk: object = OneFile(data)
    ref = manifest.HistoryRef("x.arrow", 1, 0, 0, 0, 0, len(data), crc32c(data))
    history._read(disk, ref)  # type: ignore[arg-type]


# --- segments and buckets ------------------------------------------------------------------------


def _split(data: bytes, form: segment.Form) -> tuple[segment.FileRef, bytes]:
    """The manifest's entry of a file, and the file: both may be changed.

    pyarrow aborts the process on some Parquet footers. So none gets a valid checksum here: nothing
    may reach pyarrow unchecked (R5), and an entry may still not fit its file.
    """
    size = int.from_bytes(data[:2], "little")
    try:
        ref = msgspec.msgpack.decode(data[2 : 2 + size], type=segment.FileRef)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise NotAnInput from error
    if not 0 <= ref.rows <= 1 << 16 or len(ref.groups) > 1 << 10:
        raise NotAnInput
    return msgspec.structs.replace(ref, form=form), data[2 + size :]


def _changed_entry(chance: random.Random, data: bytes) -> bytes:
    size = int.from_bytes(data[:2], "little")
    entry = msgspec.msgpack.encode(changed_tree(chance, msgspec.msgpack.decode(data[2 : 2 + size])))
    return len(entry).to_bytes(2, "little") + entry + data[2 + size :]


class NotAnInput(Exception):
    """The bytes do not say which file they are."""


def _joined(ref: segment.FileRef, data: bytes) -> bytes:
    entry = msgspec.msgpack.encode(ref)
    return len(entry).to_bytes(2, "little") + entry + data


def _segments(form: segment.Form) -> list[bytes]:
    """Files that the newest manifest names, each with its entry."""
    files = world.files()
    newest = max(path for path in files if path.startswith("manifest/"))
    body = msgspec.msgpack.decode(files[newest][32:], type=manifest.Manifest)
    refs = [ref for refs in body.files.values() for ref in refs if ref.form == form]
    if form == "part":
        refs = [_part_ref(path) for path in files if "/_ledger-" in path]
    return [_joined(ref, files[ref.path]) for ref in refs]


def _part_ref(path: str) -> segment.FileRef:
    data = world.files()[path]
    with pa.ipc.open_file(pa.py_buffer(data)) as reader:
        table = reader.read_all()
    return segment.make_ref(path, 1, [data], table, form="part")


def _segment_reader(form: segment.Form) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        ref, file = _split(data, form)
        reader = SegmentReader(Bytes(file), ref)
        for offset, length, crc in reader._ranges():
            checked_bytes(Bytes(file), ref.path, offset, length, crc)
        reader.rows(0, ref.rows)
        reader.rows(0, min(ref.rows, 3), ["value", "entry"])

    return read


def _bucket(data: bytes) -> None:
    ref, content = _split(data, "sealed")
    file = bucket.BucketFile(Bytes(content), ref)
    for number in range(min(len(file.segments), 4)):
        file.segment(number)
    file.bitmaps()
    file.joined()
    file.verify()


@cache
def _bucket_seeds() -> tuple[bytes, ...]:
    few = [(1_000, 1, 0, 0), (2_000, 1, 1, 0), (900_000, 2, 5, 1), (900_000, 2, 5, 2)]
    many = [(number * 50_000, 1, number, 0) for number in range(20)]
    whole = {(2, 5): 2}
    encoded = [encode(keys, whole) for keys in (few, many)]
    return tuple(_joined(one.file, b"".join(one.buffers)) for one in encoded)


# --- small files ---------------------------------------------------------------------------------


def _identity(data: bytes) -> None:
    disk: object = OneFile(data)
    identity.read_identity(disk)  # type: ignore[arg-type]


def _repaired_identity(data: bytes) -> bytes:
    body = data.partition(b"crc32c =")[0]
    return body + b'crc32c = "%08x"\n' % crc32c(body)


def _lock_file(data: bytes) -> None:
    disk: object = OneFile(data)
    liveness.read_seen(disk, 7)  # type: ignore[arg-type]
    liveness._read(disk, "pins/x.lock", data[8:16])  # type: ignore[arg-type]


def _repaired_lock_file(data: bytes) -> bytes:
    """A pin if it begins so, else the position of a consumer."""
    if data.startswith(liveness.PIN_MAGIC):
        head, body = data[:16].ljust(16, b"\0"), data[liveness.PIN_HEAD.size :]
        salt = head[8:16]
        crc = crc32c(body, crc32c(head))
        return liveness.PIN_HEAD.pack(liveness.PIN_MAGIC, salt, crc, len(body)) + body
    return _U32.pack(crc32c(data[4:44])) + data[4:]


def _lock_seeds() -> list[bytes]:
    sink = bytearray()

    class Sink(Bytes):
        def pwrite(self, offset: int, data: object) -> None:
            assert isinstance(data, bytes)
            sink[offset:] = data

    liveness.write_seen(Sink(b""), Seen(3, (1, 2, 3), 4))
    paths = msgspec.msgpack.encode(["topics/a", "topics/b"])
    return [bytes(sink), _repaired_lock_file(liveness.PIN_MAGIC + bytes(16) + paths)]


def _inspect(data: bytes) -> None:
    path = Path(tempfile.gettempdir()) / "inspected"
    path.write_bytes(data)
    try:
        dump.inspect_file(str(path))
    finally:
        path.unlink()


def _repaired_by_magic(data: bytes) -> bytes:
    if data.startswith(b"TXLOGJNL"):
        return repaired_journal(data)
    return _repaired_manifest(data) if data.startswith(b"TXLOGMAN") else data


def _all_files() -> Sequence[bytes]:
    return [data for path in world.files() for data in _named(path) if len(data) < 1 << 14]


_E = "txlog.engine."
_NONE = (TxlogError, NotAnInput)
TARGETS = (
    Target(
        "frames",
        _frames,
        lambda: [world.journal(), *_named("journal/000")],
        (
            f"{_E}storage.frame",
            f"{_E}model.ops",
            *(
                f"{_E}folds.{name}"
                for name in (
                    "buffer",
                    "catalog",
                    "coordinator",
                    "cursor",
                    "delayed",
                    "topic",
                    "transaction_key",
                    "watermark",
                )
            ),
        ),
        repair=repaired_journal,
        change=_changed_ops,
    ),
    Target("witness", _witness, _witness_seeds, (f"{_E}storage.frame",), repair=_repaired_witness),
    Target(
        "manifest",
        _manifest,
        lambda: _named("manifest/"),
        (f"{_E}storage.manifest",),
        repair=_repaired_manifest,
        change=_packed_change(32),
    ),
    Target(
        "state",
        _state,
        _dumps,
        tuple(
            f"{_E}folds.{name}"
            for name in (
                "buffer",
                "catalog",
                "coordinator",
                "cursor",
                "delayed",
                "topic",
                "transaction_key",
                "watermark",
            )
        ),
        change=_packed_change(1),
    ),
    Target("changes", _changes, _change_seeds, (f"{_E}upkeep.changes.log",)),
    Target(
        "history", _history, lambda: _named("transaction_log"), (f"{_E}upkeep.checkpoint.history",)
    ),
    Target(
        "part",
        _segment_reader("part"),
        lambda: _segments("part"),
        (f"{_E}storage.segment_reader",),
        allowed=_NONE,
        change=_changed_entry,
    ),
    Target(
        "sealed",
        _segment_reader("sealed"),
        lambda: _segments("sealed"),
        (f"{_E}storage.segment_reader", f"{_E}storage.checked"),
        allowed=_NONE,
        change=_changed_entry,
    ),
    Target(
        "bucket",
        _bucket,
        _bucket_seeds,
        (f"{_E}storage.bucket",),
        allowed=_NONE,
        change=_changed_entry,
    ),
    Target(
        "identity",
        _identity,
        lambda: _named("txlog.toml"),
        (f"{_E}store.identity",),
        repair=_repaired_identity,
    ),
    Target(
        "lock_file", _lock_file, _lock_seeds, (f"{_E}store.liveness",), repair=_repaired_lock_file
    ),
    Target(
        "inspect",
        _inspect,
        _all_files,
        (f"{_E}upkeep.checkpoint.dump",),
        repair=_repaired_by_magic,
    ),
)

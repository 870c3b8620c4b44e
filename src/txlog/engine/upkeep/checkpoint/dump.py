"""The contents of a file of a store, without the store: journal, manifest, state, segments."""

from __future__ import annotations

import importlib
import tomllib
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from txlog.base.ids import MessageId
from txlog.engine.model.ops import decode_ops
from txlog.engine.storage.bucket import FOOTER_KEY, Head, decode_head
from txlog.engine.storage.checked import said_by_arrow
from txlog.engine.storage.frame import (
    FILE_HEADER_BYTES,
    HEADER_BYTES,
    JournalName,
    RawFrame,
    decode_header,
    decode_record,
    is_genuine,
)
from txlog.engine.storage.manifest import ChangeRef, Manifest, changes_of
from txlog.engine.storage.segment import FileRef
from txlog.engine.upkeep.changes.rows import SCHEMAS
from txlog.errors import Corruption, FormatMismatch, NotFound

if TYPE_CHECKING:
    from txlog.base.rows.files import Frame


FRAMES_SHOWN_MAX = 1000
_OF_IDENTITY = ("format", "uuid", "created_ms", "crc32c")


def describe_frame(raw: RawFrame) -> Frame:
    """A frame's LSN, time and ops as plain values."""
    ops = [
        {"op": type(op).__name__, **msgspec.to_builtins(_fields(op))}
        for op in decode_ops(raw.ops, lsn=raw.lsn)
    ]
    return {
        "lsn": raw.lsn,
        "written_time": raw.time_ms,
        "op_list": ops,
        "size_bytes": raw.total_bytes,
        "rows_bytes": raw.rows_bytes,
        "file": raw.journal.path,
        "offset": raw.offset,
    }


def _fields(op: object) -> dict[str, object]:
    return {name: getattr(op, name) for name in op.__struct_fields__}  # type: ignore[attr-defined]


def inspect_file(path: str) -> dict[str, Any]:
    """The contents of a file as plain values; its first bytes tell its kind (`type`).

    raises: NotFound, FormatMismatch (no file of a store), Corruption
    """
    if not Path(path).is_file():
        raise NotFound(f"{path} is not a file", path=path)
    data = Path(path).read_bytes()
    base: dict[str, Any] = {"kind": "file", "path": path, "size_bytes": len(data)}
    try:
        contents = _of_store(data) or _of_columns(data, path)
    except (pa.ArrowException, OSError, ValueError, TypeError, RecursionError) as exc:
        raise Corruption(
            f"{path} cannot be read: {said_by_arrow(exc)}", path=path, offset=0
        ) from exc
    except msgspec.DecodeError as exc:
        raise Corruption(f"{path} cannot be read: {exc}", path=path, offset=0) from exc
    if contents is not None:
        return {**base, **contents}
    raise FormatMismatch(f"{path} is no file that a store has", path=path)


def _of_store(data: bytes) -> dict[str, Any] | None:
    """The contents of a file of a form of our own; None: it is none."""
    if data.startswith(b"TXLOGJNL"):
        return {"type": "journal", **_journal(data)}
    if data.startswith(b"TXLOGMAN"):
        body = msgspec.msgpack.decode(data[32:], type=Manifest)
        refs: list[FileRef | ChangeRef] = [*chain.from_iterable(body.files.values())]
        refs += changes_of(body).refs
        return {
            "type": "manifest",
            "generation": body.generation,
            "lsn": body.cut_lsn,
            "written_time": body.time_ms,
            "ledgers": len(body.files),
            "dumps": len(body.dumps),
            "file_list": [
                {"file": ref.path, "rows": ref.rows, "size_bytes": ref.bytes} for ref in refs
            ],
        }
    if data.startswith(b"TXLOGSTA"):
        return {"type": "state", "salt": data[8:16].hex()}
    if data.startswith(b"# a txlog store"):
        members = tomllib.loads(data.decode())
        return {"type": "identity", **{name: members.get(name) for name in _OF_IDENTITY}}
    if data.startswith(b"TXLW"):
        record = decode_record(data[:128], data[16:24])
        return {"type": "witness", "durable_lsn": record.durable_lsn if record else None}
    return None


def _of_columns(data: bytes, path: str) -> dict[str, Any] | None:
    """The contents of a Parquet or Arrow file; None: it is neither."""
    if data.startswith(b"PAR1"):
        parquet = importlib.import_module("pyarrow.parquet").ParquetFile(pa.BufferReader(data))
        footer = (parquet.metadata.metadata or {}).get(FOOTER_KEY)
        if footer is not None:
            return {"type": "bucket", **_bucket(decode_head(footer, path))}
        names = parquet.schema_arrow.names
        if (log := _log_of(names)) is not None:
            return {"type": "changes", **_changes(log, parquet.read())}
        return {
            "type": "parquet",
            "rows": parquet.metadata.num_rows,
            "row_groups": parquet.metadata.num_row_groups,
            "column_list": names,
        }
    if data.startswith(b"ARROW1"):
        with pa.ipc.open_file(pa.BufferReader(data)) as reader:
            rows, names = reader.read_all(), reader.schema.names
        if (log := _log_of(names)) is not None:
            return {"type": "changes", **_changes(log, rows)}
        return {"type": "arrow", "rows": rows.num_rows, "column_list": names}
    return None


def _log_of(names: list[str]) -> str | None:
    """The log of changes that has these columns."""
    return next((kind for kind, schema in SCHEMAS.items() if schema.names == names), None)


def _changes(log: str, rows: pa.Table) -> dict[str, Any]:
    """The changes in a file of a log of changes: their kinds, LSNs and times."""
    counted: dict[str, int] = {}
    for change in rows.column("change").to_pylist():
        counted[change] = counted.get(change, 0) + 1
    lsns = rows.column("lsn").to_pylist()
    times = rows.column("time").cast(pa.int64()).to_pylist()
    return {
        "log": log,
        "rows": rows.num_rows,
        "first_lsn": min(lsns, default=None),
        "last_lsn": max(lsns, default=None),
        "first_time": min(times, default=None),
        "last_time": max(times, default=None),
        "change_list": [{"change": change, "rows": counted[change]} for change in sorted(counted)],
    }


def _bucket(head: Head) -> dict[str, Any]:
    return {
        "partition": head.partition,
        "generation": head.gen,
        "first": MessageId(*head.first),
        "last": MessageId(*head.last),
        "ids": head.count,
        "left_out_until_time": head.cutoff_ms,
        "step_ms": head.step_ms,
        "segment_list": [
            {"ids": segment.count, "min_time": segment.min_at, "max_time": segment.max_at}
            for segment in head.segments
        ],
    }


def manifest_files(data: bytes) -> list[dict[str, Any]]:
    """A manifest's entry of each file, without row groups. Raises ValueError.

    log: the kind of a file of changes, which belongs to no ledger; None for a file of messages
    """
    body = msgspec.msgpack.decode(data[32:], type=Manifest)
    names = [name for name in FileRef.__struct_fields__ if name != "groups"]
    files = [
        {**{name: getattr(ref, name) for name in names}, "log": None}
        for refs in body.files.values()
        for ref in refs
    ]
    return files + [
        {**{name: getattr(ref, name, None) for name in names}, "form": "changes", "log": ref.kind}
        for ref in changes_of(body).refs
    ]


def journal_frames(data: bytes) -> tuple[list[RawFrame], int]:
    """(the genuine frames of a journal file in order, the offset after the last)."""
    salt = data[16:24]
    first = int.from_bytes(data[24:32], "little")
    name = JournalName(first, int.from_bytes(data[12:16], "little"))
    frames: list[RawFrame] = []
    at, last = FILE_HEADER_BYTES, first - 1
    while True:
        header = decode_header(data[at : at + HEADER_BYTES])
        if header is None:
            break
        view = memoryview(data)[at : at + header.total_bytes]
        if header.lsn != last + 1 or not is_genuine(header, view, salt, at):
            break
        ops_end = HEADER_BYTES + header.ops_bytes
        frames.append(
            RawFrame(
                header.lsn,
                header.time_ms,
                header.durable_lsn,
                header.columns,
                bytes(view[HEADER_BYTES:ops_end]),
                name,
                at,
                header.total_bytes,
                at + ops_end,
                header.rows_bytes,
                header.crc,
            )
        )
        last, at = header.lsn, at + header.total_bytes
    return frames, at


def _journal(data: bytes) -> dict[str, Any]:
    frames, end = journal_frames(data)
    first = int.from_bytes(data[24:32], "little")
    return {
        "first_lsn": first,
        "last_lsn": first + len(frames) - 1,
        "frames": len(frames),
        "end": end,
        "zero_tail": not any(data[end:]),
        "frame_list": [describe_frame(raw) for raw in frames[:FRAMES_SHOWN_MAX]],
    }

"""Owns the bytes of an input: blocks from a descriptor, cut into records as Arrow arrays.

No Python object is made for a record: a block is split by Arrow into one binary array.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator

import pyarrow as pa

from txlog.errors import BadRecord, DiskFailed, NotFound
from txlog.settings import KEY_BYTES_MAX, MESSAGE_BYTES_MAX
from txlog.startup import compute as pc

_BLOCK_BYTES = 1 << 20
# the longest record that could be a message with its key
_RECORD_BYTES_MAX = MESSAGE_BYTES_MAX + KEY_BYTES_MAX


def check_files(paths: list[str]) -> None:
    """Refuse paths that cannot be read, before anything is written.

    raises: NotFound (308), DiskFailed (102)
    """
    for path in paths:
        if path == "-":
            continue
        if not os.path.exists(path):
            raise NotFound(f"no file {path}", path=path)
        if os.path.isdir(path):
            raise DiskFailed(f"{path} is a directory", path=path)


def read_blocks(path: str | None, wait_s: Callable[[], float | None]) -> Iterator[bytes | None]:
    """Yield the bytes of a file, of stdin for None or `-`; None when nothing came in wait_s()."""
    if path is not None and path != "-":
        with open(path, "rb") as file:
            while block := file.read(_BLOCK_BYTES):
                yield block
        return
    try:
        number = sys.stdin.fileno()
    except (OSError, ValueError, AttributeError):  # closed, or replaced by a test or a notebook
        if sys.stdin is not None and not sys.stdin.closed:
            yield sys.stdin.read().encode("utf-8", "surrogateescape")
        return
    coming = select.poll()  # `select.select` takes no descriptor from 1,024 on
    coming.register(number, select.POLLIN)
    while True:
        seconds = wait_s()
        if not coming.poll(None if seconds is None else max(0, seconds) * 1000):
            yield None
            continue
        data = os.read(number, _BLOCK_BYTES)
        if not data:
            return
        yield data


def split_records(
    blocks: Iterator[bytes | None],
    separator: bytes,
    line: int,
    record_bytes_max: int = _RECORD_BYTES_MAX,
) -> Iterator[tuple[pa.Array, int, bool] | None]:
    """Yield (records, line of the first, ended) as blocks come; None when nothing came.

    ended is false for a last record without its separator, which comes alone.
    raises: BadRecord (104) for a record too long to be a message
    """
    held: list[bytes] = []
    held_bytes = 0
    for block in blocks:
        if block is None:
            yield None
            continue
        cut = block.rfind(separator)
        if cut < 0:
            held.append(block)
            held_bytes += len(block)
            if held_bytes > record_bytes_max:
                raise BadRecord(f"line {line}: longer than {record_bytes_max} bytes", line=line)
            continue
        data = b"".join([*held, block[:cut]])
        rest = block[cut + 1 :]
        held, held_bytes = ([rest], len(rest)) if rest else ([], 0)
        records = pc.split_pattern(pa.array([data], pa.binary()), separator).values
        yield records, line, True
        line += len(records)
    if held:
        yield pa.array([b"".join(held)], pa.binary()), line, False

"""Checks of the installation for `doctor`: another package in txlog's place, missing bytecode.

Python keeps the bytecode of a module in a file and compiles the module again where that file is
missing or old. Containers often forbid it to write the file: PYTHONDONTWRITEBYTECODE is set, or
the folder is read only. Then every command compiles each module that it uses.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash
from pathlib import Path
from typing import Final

import txlog_store
from txlog.base.rows.store import DoctorAnswer

_HEADER_BYTES: Final = 16
_HASHED, _CHECKED = 1, 2  # flags of a file of bytecode that holds a hash in place of a time


def package() -> DoctorAnswer:
    """Whether another distribution has a package `txlog`, too."""
    reason = txlog_store.hidden_by()
    if reason is not None:
        detail, _, fix = reason.partition(": ")
        return {"status": "warn", "detail": detail, "fix": fix or None}
    return {"status": "ok", "detail": f"txlog-store at {_home()}", "fix": None}


def bytecode() -> DoctorAnswer:
    """Whether Python has the bytecode of txlog's modules and of all that this process loaded."""
    sources = {*_home().rglob("*.py"), *_loaded()}
    stale = sorted(source for source in sources if is_compiled_again(source))
    if not stale:
        return {"status": "ok", "detail": f"all {len(sources)} modules have it", "fix": None}
    folders = sorted({str(_root(source)) for source in stale})
    reason = (
        "PYTHONDONTWRITEBYTECODE is set" if sys.dont_write_bytecode else "the folder is read only"
    )
    return {
        "status": "warn",
        "detail": f"every command compiles the modules that it uses: {len(stale)} of "
        f"{len(sources)} have no bytecode, and Python may not write it ({reason})",
        "fix": f"{sys.executable} -m compileall -q {' '.join(folders)}",
    }


def is_compiled_again(source: Path) -> bool:
    """Whether each process compiles a module again: no valid bytecode, and no way to write it."""
    try:
        cached = Path(cache_from_source(str(source)))
    except NotImplementedError:  # an interpreter without such files
        return True
    if _is_valid(source, cached):
        return False
    if sys.dont_write_bytecode:
        return True
    folder = next(folder for folder in cached.parents if folder.exists())
    return not os.access(folder, os.W_OK)


def _is_valid(source: Path, cached: Path) -> bool:
    try:
        with cached.open("rb") as file:
            header = file.read(_HEADER_BYTES)
        status = source.stat()
        if header[:4] != MAGIC_NUMBER or len(header) < _HEADER_BYTES:
            return False
        flags = int.from_bytes(header[4:8], "little")
        if flags & _HASHED:
            is_trusted = not flags & _CHECKED
            return is_trusted or header[8:] == source_hash(source.read_bytes())
    except OSError:
        return False
    numbers = (int(status.st_mtime), status.st_size)
    return header[8:] == b"".join((n & 0xFFFF_FFFF).to_bytes(4, "little") for n in numbers)


def _loaded() -> Iterator[Path]:
    """The sources of the modules that this process has loaded."""
    for module in [*sys.modules.values()]:
        spec = getattr(module, "__spec__", None)
        if spec is not None and spec.has_location and str(spec.origin).endswith(".py"):
            yield Path(spec.origin)


def _root(source: Path) -> Path:
    """The folder on Python's path that contains a module."""
    folders = [Path(folder).absolute() for folder in sys.path if folder]
    inside = [folder for folder in folders if source.is_relative_to(folder)]
    return max(inside, key=lambda folder: len(folder.parts), default=source.parent)


def _home() -> Path:
    return Path(txlog_store.__file__).with_name("txlog")

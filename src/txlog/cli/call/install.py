"""Owns files that the user installs outside a store: man pages, completions.

They go to the directories that the user's programs search; unchanged files are not written.
"""

from __future__ import annotations

import os
from pathlib import Path

from txlog.cli.call.call import Call
from txlog.errors import DiskFailed


def install(call: Call, path: Path, text: str) -> bool:
    """Write a file if its bytes differ; print its result object; return whether it changed.

    raises: DiskFailed
    """
    data = text.encode("utf-8")
    try:
        changed = not path.is_file() or path.read_bytes() != data
        if changed:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Renamed, so that readers see the whole file; not flushed, as it can be recreated.
            temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            temporary.write_bytes(data)
            os.replace(temporary, path)
    except OSError as error:
        raise DiskFailed(f"{path}: {error.strerror or error}", path=str(path)) from error
    call.output.result({"path": str(path), "changed": changed})
    return changed

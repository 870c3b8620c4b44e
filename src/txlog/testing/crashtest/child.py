"""Owns the process of a user's program: `python -m txlog.testing.crashtest.child SPECIFICATION`.

It replaces calls of the public API by calls that record what they do, then runs the program as
`__main__`. The crash test starts a new process for each run.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
from pathlib import Path

import msgspec

from txlog.testing.crashtest.effects import Effects
from txlog.testing.crashtest.library import Library
from txlog.testing.crashtest.recorder import Recorder
from txlog.testing.crashtest.trace import Specification


def main(path: str) -> None:
    """Run the program of a specification, which is a file of JSON."""
    spec = msgspec.json.decode(Path(path).read_bytes(), type=Specification)
    recorder = Recorder(spec)
    library = Library(recorder)
    library.redirect(spec.store, spec.copy, spec.folder, spec.work)
    library.replace()
    sys.path.insert(0, os.path.dirname(spec.program))
    sys.argv = [spec.program, *spec.args]
    if spec.idle_ms is not None:
        idle_s = spec.idle_ms / 1000
        threading.Thread(target=recorder.watch, args=(idle_s,), daemon=True).start()
    Effects(recorder, spec.work).begin()
    try:
        runpy.run_path(spec.program, run_name="__main__")
    finally:
        sys.setprofile(None)


if __name__ == "__main__":
    main(sys.argv[1])

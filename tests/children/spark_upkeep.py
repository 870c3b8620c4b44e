"""A driver that dies at the first file with Spark's results: STORE JOB MOMENT.

MOMENT is before the file has its name, or behind, when the frame that names it is still to come.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import txlog
from txlog.engine.storage.disk.posix import PosixDisk
from txlog.lake.jobs.upkeep import compact, rebuild_delayed
from txlog.lake.spark import engine as computing
from txlog.spark import Spark

store, job, moment = sys.argv[1:]
publish = PosixDisk.publish


def watched(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Let the next file be the last, once a result is computed."""

    def computed(*arguments: Any) -> Any:
        result = compute(*arguments)
        setattr(PosixDisk, "publish", die)  # noqa: B010
        return result

    return computed


def die(disk: PosixDisk, path: str, parts: Any) -> None:
    """Print the path of a file, and die, and the JVM too."""
    if moment == "behind":
        publish(disk, path, parts)
    print(path, flush=True)
    os.killpg(0, signal.SIGKILL)


with txlog.open(store) as client:
    client.checkpoint_automatically = False
    engine = Spark("local[1]", {"spark.driver.memory": "512m", "spark.testing.memory": "536870912"})
    for name in ("arranged", "delayed_ids"):
        setattr(computing, name, watched(getattr(computing, name)))
    {"compact": compact, "rebuild-delayed": rebuild_delayed}[job](client, "t", engine)

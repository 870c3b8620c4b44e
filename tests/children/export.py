"""Export a topic, and die before a file gets its final name: STORE FOLDER NTH."""

from __future__ import annotations

import os
import sys

import txlog
from tests.children import dying
from txlog.lake.jobs.export_files import export_directory

path, folder, nth = sys.argv[1:]
dying.around(os, "replace", "replace")
dying.at("replace", int(nth))
with txlog.open(path, read_only=True) as client:
    export_directory(
        client, "t", folder, resume=True, piece_messages=5, partition_by=["event_date"]
    )

"""Import a folder, and die at its nth report: STORE FOLDER NTH."""

from __future__ import annotations

import sys

import txlog
from tests.children import dying
from txlog.lake.jobs.import_files import import_files
from txlog.lake.jobs.sources.loads import OF_IMPORT, Columns, files_of

path, folder, nth = sys.argv[1:]
dying.at("told", int(nth))
with txlog.open(path) as client:
    files = files_of([folder], None, Columns(), OF_IMPORT)
    import_files(client, files, "t", resume=True, tell=lambda text: dying.step("told"))

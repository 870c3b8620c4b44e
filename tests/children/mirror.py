"""Mirror a topic, and die before a step that makes files count: STORE FOLDER FORM NTH."""

from __future__ import annotations

import os
import sys

import txlog
from tests.children import dying
from txlog.lake.jobs.mirrors import mirror

path, folder, form, nth = sys.argv[1:]
dying.around(os, "replace", "step")
vars(mirror)["_FILE_ROWS"] = 5
if form == "iceberg":
    from pyiceberg.catalog.sql import SqlCatalog

    from txlog.lake.jobs.mirrors.iceberg import Table

    dying.around(SqlCatalog, "create_table", "step")
    dying.around(SqlCatalog, "commit_table", "step")
    dying.around(Table, "close", "step")
dying.at("step", int(nth))
with txlog.open(path, read_only=True) as client:
    mirror.mirror(client, "t", folder, form)

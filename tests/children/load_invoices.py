"""Load a file, and die before or after its batch is staged or committed: STORE FILE CALL WHEN."""

from __future__ import annotations

import sys

import txlog
from tests.children import dying
from txlog.client.sending.bulk import Bulk
from txlog.lake.jobs.import_files import bulk_load
from txlog.lake.jobs.local import Local
from txlog.lake.jobs.sources.loads import Columns, files_of

path, file, name, when = sys.argv[1:]
dying.around(Bulk, name, "before", "after")
dying.at(when)
with txlog.open(path) as client:
    source = files_of([file], None, Columns("InvoiceNo"))
    bulk_load(client, source, "orders", "k", Local())

"""Send to a topic while the disk fails a flush of the journal, and print the outcome: STORE TOPIC.

The next process that writes recovers the store, which aborts the open transactions of all.
"""

from __future__ import annotations

import sys

from tests.disk.faults import FaultyDisk
from tests.engine_kit import client_on
from txlog.clock import SystemClock
from txlog.engine.storage.disk.posix import PosixDisk
from txlog.errors import DiskFailed, OutcomeUnknown

path, topic = sys.argv[1:]
disk = FaultyDisk(PosixDisk(path))
with client_on(disk, SystemClock()) as client:
    producer = client.producer(topic)
    disk.fail_at("datasync", DiskFailed("no", path="journal"), "journal/*")
    try:
        producer.send(b"of the peer")
    except OutcomeUnknown as error:
        print(error.code)

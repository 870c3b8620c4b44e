"""Queue messages, and end without closing anything."""

from __future__ import annotations

import sys

import txlog

client = txlog.open(sys.argv[1])
producer = client.producer("u", batching_max_publish_delay_ms=86_400_000)
for n in range(500):
    producer.send_async(b"%d" % n)

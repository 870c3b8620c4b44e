"""Send each line of stdin to a store whose lock must be free; print all values after each."""

from __future__ import annotations

import json
import sys

import txlog

with txlog.open(sys.argv[1], lock_timeout_ms=0) as client:
    producer = client.producer("t")
    for line in sys.stdin:
        producer.send(line.strip().encode())
        values = [(message.value or b"").decode() for message in client.reader("t")]
        print(json.dumps(values), flush=True)

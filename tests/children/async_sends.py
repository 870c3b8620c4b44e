"""Send 400 messages from two producers, print each answer, and die in a call: STORE NTH."""

from __future__ import annotations

import os
import sys
from typing import Any

import txlog
from tests.children import dying

client = txlog.open(sys.argv[1])
producers = [client.producer("u"), client.producer("t", "name")]
for producer in producers:
    producer.last_sequence_id()
dying.begin(int(sys.argv[2]))


def told(which: int, n: int, future: Any) -> None:
    """Print that a message is answered."""
    future.result()
    os.write(1, b"%d %d\n" % (which, n))


for n in range(200):
    for which, producer in enumerate(producers):
        options: dict[str, Any] = {"sequence_id": n, "partition": 0} if which else {}
        sent = producer.send_async(b"%d" % n, **options)
        sent.add_done_callback(lambda done, which=which, n=n: told(which, n, done))
    if n % 20 == 19:
        client.flush()
dying.end()
client.close()

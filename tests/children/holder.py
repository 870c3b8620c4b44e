"""Hold a topic as its exclusive producer until stdin ends."""

from __future__ import annotations

import sys

import txlog

client = txlog.open(sys.argv[1])
producer = client.producer("t", access_mode="exclusive")
producer.send(b"theirs")
print("ready", flush=True)
sys.stdin.read()

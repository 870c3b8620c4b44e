"""Fence the holder of a topic once a line comes, and die in a call of it: STORE NTH."""

from __future__ import annotations

import sys

import txlog
from tests.children import dying

client = txlog.open(sys.argv[1])
print("open", flush=True)
sys.stdin.readline()
dying.begin(int(sys.argv[2]))
with client.producer("t", access_mode="exclusive-with-fencing") as producer:
    print(producer.access.epoch, flush=True)
    producer.send(b"theirs")

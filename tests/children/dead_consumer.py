"""Receive a message, and end without a trace: STORE [TOPIC SUBSCRIPTION]."""

from __future__ import annotations

import os
import sys

import txlog

client = txlog.open(sys.argv[1])
message = client.consumer(*sys.argv[2:] or ("t", "s")).receive()
assert message is not None and message.value == b"a"
os._exit(7)

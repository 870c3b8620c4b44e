"""Acknowledge so many messages, print the next one, and die: STORE COUNT."""

from __future__ import annotations

import os
import signal
import sys

import txlog
from txlog import Consumer, Message


def next_of(consumer: Consumer) -> Message:
    """The next message."""
    message = consumer.receive(timeout_ms=None)
    assert message is not None
    return message


with txlog.open(sys.argv[1]) as client:
    worker = client.consumer("t", "s", type="shared")
    for _ in range(int(sys.argv[2])):
        worker.acknowledge(next_of(worker))
    print((next_of(worker).value or b"").decode(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

"""Commit 300 transactions of two topics without waiting, print each answer, die in a call: STORE
NTH.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any

import txlog
from tests.children import dying

client = txlog.open(sys.argv[1])
producers = [client.producer("t"), client.producer("u")]
dying.begin(int(sys.argv[2]))


def told(n: int, future: Any) -> None:
    """Print that a commit is answered."""
    future.result()
    os.write(1, b"%d\n" % n)


with client.pipeline(max_in_flight=12) as pipeline:
    for n in range(300):
        txn = pipeline.transaction()
        with txn as opened:
            for producer in producers:
                producer.send_async(b"%d" % n, txn=opened)
        opened.commit_async().add_done_callback(partial(told, n))
dying.end()
client.close()

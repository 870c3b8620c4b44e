"""Commit 50 transactions without waiting, and end without closing anything: STORE."""

from __future__ import annotations

import sys

import txlog

client = txlog.open(sys.argv[1])
producer = client.producer("t")
for n in range(50):
    txn = client.transaction()
    producer.send_async(b"%d" % n, txn=txn)
    txn.commit_async()

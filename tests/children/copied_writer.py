"""Write to two topics in transactions for ever: NUMBER STORE; number 0 also gives space back."""

from __future__ import annotations

import sys

import txlog

number, path = int(sys.argv[1]), sys.argv[2]
with txlog.open(path, durability="os") as client:
    step = 0
    while True:
        with client.transaction() as txn:
            for topic in ("t", "u"):
                client.producer(topic).send(b"%d:%d" % (number, step), txn=txn)
        client.producer("t", f"w{number}").send(b"plain", sequence_id=step)
        step += 1
        if number == 0 and not step % 20:
            client.checkpoint(roll_all=not step % 40)
            client.admin.gc(apply=True, keep_ms=0)
        print(step, flush=True)

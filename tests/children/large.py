"""Send a large message, plain or in a transaction, and die in a call of it: STORE KIND NTH."""

from __future__ import annotations

import random
import sys

import txlog
from tests.children import dying

path, kind, nth = sys.argv[1:]
client = txlog.open(path)
value = random.Random(5).randbytes(300_000)
producer = client.producer("t", chunking=True)
dying.begin(int(nth))
if kind == "txn":
    with client.transaction() as txn:
        producer.send([value[at : at + 7000] for at in range(0, len(value), 7000)], txn=txn)
else:
    producer.send([value])
dying.end()
client.close()

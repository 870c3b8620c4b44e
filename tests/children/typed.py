"""Produce records, seal, change the schema and compact, and die in a call: STORE FILE NTH."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

import txlog
from tests.children import dying
from txlog.cli.main import main


@dataclass
class Priced:
    """The second schema."""

    cups: int
    price: float = 1.5


path, file, nth = sys.argv[1:]
os.environ["TXLOG_STORE"] = path
dying.begin(int(nth))
code = main(["produce", "t", file, "--txn", "--in", "ndjson", "-q"])
with txlog.open(path) as client:
    client.checkpoint(roll_all=True)
    client.topic("t").schemas.add(Priced)
    client.producer("t").send(Priced(1000))
    client.checkpoint(roll_all=True)
    client.admin.compact("t")
dying.end(code)

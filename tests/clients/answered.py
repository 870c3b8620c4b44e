"""Owns the count of answered messages: each one that a stock client got answered is stored once.

A *plan* describes the messages that a client sends, while the server is killed or stopped and
started again:

    Count    messages; message n has the value n
    DelayMs  how long a batch waits
    Keys     this many keys, with a batch for each (key-based batching); 0: none
    Delayed  of so many messages one has a time of delivery, which goes ahead of its batch; 0: none
    Gap      message n has the number n * Gap; 0: the client numbers
    Refused  of so many messages one is refused, as its key is too long; 0: none
    Named    the program names its producer
    Txn      messages in a transaction; 0: none. What counts as answered is an answered commit
    Kills    how often the server ends: by SIGKILL and SIGTERM in turns

`python -m tests.clients.answered [--seed N] [--plans N] [CLIENT ...]` draws plans at random.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import txlog
from tests.clients import bed

CLIENTS = ("python", "go", "java")
Plan = dict[str, Any]


class Mortal(bed.Server):
    """A server that is killed and stopped in turns."""

    def answer(self, wish: str) -> None:
        """End it, and start another on the same store."""
        assert wish == "kill", wish
        self.restarts += 1
        if self.restarts % 2:
            self.kill()
        else:
            self.stop()
        self.start()


def program(client: str) -> list[str]:
    """The command of the program that sends by a plan. Raises bed.Unavailable."""
    command = bed.PROGRAMS[client]()
    if client == "java":
        command[command.index("clients.Main")] = "clients.Answered"
    elif client == "python":
        command = [sys.executable, str(bed.HERE / "python" / "answered.py")]
    return command


def drawn(seed: int, client: str) -> Plan:
    """A random plan, of options that this client supports together."""
    chance = random.Random(seed)
    is_named = chance.random() < 0.5
    return {
        "Count": chance.choice((60, 300, 1_000)),
        "DelayMs": chance.choice((1, 10, 50, 200, 500)),
        "Keys": chance.choice((0, 2, 3, 7)),
        "Delayed": chance.choice((0, 0, 3, 10)),
        "Gap": chance.choice((0, 1, 7, 1_000_000)) if is_named else 0,
        "Refused": chance.choice((0, 0, 0, 41)),
        "Named": is_named,
        "Txn": 0 if client == "python" else chance.choice((0, 0, 20, 100)),
        "Kills": chance.choice((0, 1, 2, 3)),
    }


def wrong(client: str, plan: Plan, server: bed.Server, topic: str) -> str:
    """Run a plan; returns the fault with answered messages, or nothing."""
    server.settings = {"PLAN": json.dumps(plan)}
    lines = list(bed.lines_of([*program(client), server.url, topic], server))
    if not lines:
        return "it did not end"
    outcome = json.loads(lines[-1])
    server.settings = {}
    with txlog.open(str(server.store)) as reader:
        stored = Counter((message.value or b"").decode() for message in reader.reader(topic))
    lost = [value for value in outcome["answered"] if value not in stored]
    twice = [value for value, count in stored.items() if count > 1]
    few = plan["Refused"] == plan["Kills"] == 0 and len(outcome["answered"]) < plan["Count"]
    faults = {
        "lost": lost[:9],
        "doubled": twice[:9],
        "not answered": outcome["failed"] if few else 0,
    }
    return ", ".join(f"{name} {numbers}" for name, numbers in faults.items() if numbers)


def main() -> int:
    """Run plans at random, and print those that went wrong; 1 if there were any."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plans", type=int, default=10)
    parser.add_argument("clients", nargs="*", default=CLIENTS, metavar="CLIENT")
    options = parser.parse_args()
    bad = 0
    for seed in range(options.seed, options.seed + options.plans):
        for client in options.clients:
            plan = drawn(seed, client)
            with (
                tempfile.TemporaryDirectory() as folder,
                bed.running(Mortal(Path(folder))) as server,
            ):
                fault = wrong(client, plan, server, f"t{seed}")
            print(f"{'WRONG' if fault else 'ok'} {seed} {client} {plan} {fault}", flush=True)
            bad += bool(fault)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())

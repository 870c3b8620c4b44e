"""Owns plans for stock clients whose server dies; the history of each run is checked.

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
from pathlib import Path
from typing import Any

import txlog
from tests.clients import bed
from tests.history.checker import check
from tests.history.events import Event, Recorder

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


def history_of(plan: Plan, topic: str, outcome: dict[str, Any], server: bed.Server) -> list[Event]:
    """The history of a run: sends, deaths of the server, answers, and the stored messages.

    The program prints its answers at its end, so all calls overlap. The order of one producer is
    kept unless the client makes a batch for each key or sends delayed messages ahead of batches.
    """
    recorder = Recorder()
    values = [str(number) for number in range(plan["Count"])]
    answers = set(outcome["answered"])
    sent = {"topic": topic}
    if not plan["Keys"] and not plan["Delayed"]:
        sent["session"] = "client"
    calls = {}
    for number, value in enumerate(values):
        txn = {"txn": f"T{number // plan['Txn']}"} if plan["Txn"] else {}
        calls[value] = recorder.invoke("client", "send", **sent, value=value, **txn)
    commits = {}
    for number in range(0, plan["Count"] if plan["Txn"] else 0, plan["Txn"] or 1):
        txn_values = values[number : number + plan["Txn"]]
        commits[recorder.invoke("client", "commit", txn=f"T{number // plan['Txn']}")] = txn_values
    for _ in range(server.restarts):
        recorder.event("kill")
    for call, txn_values in commits.items():
        if answers.issuperset(txn_values):
            recorder.ok(call)
        else:
            recorder.unknown(call, "not answered")
    for value, call in calls.items():
        if value in answers:
            recorder.ok(call)
        else:
            recorder.unknown(call, "not answered")
    read = recorder.invoke("reader", "final_read")
    partitions: dict[str, list[list[str]]] = {}
    with txlog.open(str(server.store)) as reader:
        for message in reader.reader(topic):
            row = [str(message.message_id), (message.value or b"").decode()]
            partitions.setdefault(str(message.partition), []).append(row)
    recorder.ok(read, topics={topic: partitions or {"0": []}})
    return recorder.events


def wrong(client: str, plan: Plan, server: bed.Server, topic: str) -> str:
    """Run a plan; returns the findings of its history, or nothing."""
    server.settings = {"PLAN": json.dumps(plan)}
    lines = list(bed.lines_of([*program(client), server.url, topic], server))
    if not lines:
        return "it did not end"
    outcome = json.loads(lines[-1])
    server.settings = {}
    faults = [str(finding) for finding in check(history_of(plan, topic, outcome, server))[:9]]
    if plan["Refused"] == plan["Kills"] == 0 and len(outcome["answered"]) < plan["Count"]:
        faults.append(f"not answered: {outcome['failed']}")
    return "; ".join(faults)


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

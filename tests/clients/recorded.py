"""Owns recorded runs of stock clients: producers and consumers that die, as the server does.

Two producers, two consumers and `txlog serve` are processes. By a seed they are killed, stopped for
a moment and ended in turns, and each client records its calls in a file. In the end the checker of
tests/history judges all records, the contents of the store and the messages left to deliver. A
*plan*:

    Kind        of the subscription: exclusive, failover, shared, key_shared
    Partitions  of the topic
    Burst       messages that a producer sends before it pauses
    DelayMs     how long a batch waits; 0: no batches
    Keys        this many keys, which key_shared needs; 0: none
    Delayed     of so many messages one has a time of delivery; 0: none
    Queue       size of a receiver's queue
    Close       a consumer closes after so many messages, and its process opens the next one
    Cumulative  acknowledgements are cumulative
    Txn         messages in a transaction, which copies them to another topic; 0: none
    Deaths      how often something dies or stops
    Drained     the consumers finish their work; otherwise everything is killed together

What a client records: an acknowledgement without a receipt is answered when its consumer has been
closed, provided that the server lived as long as the consumer: CLOSE_CONSUMER is answered behind it
only on the same connection. A client's queue may hold a message for any time, so its consumers are
marked `is_ahead`. Clients record ids of the protocol; `_history` makes them ids of the store.

`python -m tests.clients.recorded [--seed N] [--plans N] [--keep FOLDER] [CLIENT ...]` draws plans
at random.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import txlog
from tests import harness
from tests.clients import bed
from tests.history.checker import check
from tests.history.events import Event, merged, save
from tests.history.recording import SUFFIX, Calls, contents, received
from txlog.serve.pulsar.ids import STEP

CLIENTS = ("python", "go", "java")
TOPIC, OUTPUT, SUBSCRIPTION = "recorded", "copies", "s"
PRODUCERS, CONSUMERS = ("producer-1", "producer-2"), ("consumer-1", "consumer-2")
REPEATED = 5  # messages that a producer's next life sends again although they were answered
STOPPED_MS, PAUSE_MS = 700, 2_000
# by itself, or while it was still starting: the last is Java's
ENDED = (0, -signal.SIGTERM, 128 + signal.SIGTERM)
AT_WORK = 60  # messages that show that clients work again after a death
END_S, STUCK_MS = 60, 60_000  # a transaction is open for 10 s, a client tries for 20 s
NEVER = 1 << 40  # so many messages do not come
Plan = dict[str, Any]

PLAIN: Plan = {
    **{"Kind": "shared", "Partitions": 1, "Burst": 7, "DelayMs": 5, "Keys": 0, "Delayed": 0},
    **{"Queue": 100, "Close": 30, "Cumulative": False, "Txn": 0, "Deaths": 8, "Drained": False},
}
PLANS: dict[str, Plan] = {
    "shared": {},
    "shared, partitions, drained": {"Partitions": 3, "Keys": 5, "Drained": True},
    "key_shared": {"Kind": "key_shared", "Keys": 7},
    "failover, no batches": {"Kind": "failover", "DelayMs": 0, "Queue": 10},
    "exclusive, cumulative": {"Kind": "exclusive", "Cumulative": True, "Drained": True},
}
IN_TRANSACTIONS: dict[str, Plan] = {"shared, in transactions": {"Txn": 10, "Drained": True}}


def program(client: str) -> list[str]:
    """The command of the program that records its calls. Raises bed.Unavailable."""
    command = bed.PROGRAMS[client]()
    if client == "java":
        command[command.index("clients.Main")] = "clients.Recorded"
    elif client == "python":
        command = [sys.executable, str(bed.HERE / "python" / "recorded.py")]
    return command


def drawn(seed: int, client: str) -> Plan:
    """A random plan, of options that this client supports together."""
    chance = random.Random(seed)
    kind = chance.choice(("exclusive", "failover", "shared", "shared", "key_shared"))
    is_shared = kind in ("shared", "key_shared")
    keys = chance.choice((3, 7, 20)) if kind == "key_shared" else chance.choice((0, 5))
    return {
        "Kind": kind,
        "Partitions": chance.choice((1, 3)) if keys else 1,
        "Burst": chance.choice((1, 7, 20)),
        "DelayMs": chance.choice((0, 1, 20)),
        "Keys": keys,
        "Delayed": chance.choice((0, 0, 9)) if kind == "shared" else 0,
        "Queue": chance.choice((1, 10, 100, 1_000)),
        "Close": chance.choice((10, 30, 200)),
        "Cumulative": not is_shared and chance.random() < 0.5,
        "Txn": chance.choice((0, 1, 10)) if client != "python" and kind == "shared" else 0,
        "Deaths": chance.choice((4, 8, 12)),
        "Drained": chance.random() < 0.5,
    }


# --- the processes --------------------------------------------------------------------------------


class Clients:
    """The clients' processes, and the record of the deaths and stops of clients and server.

    lives: how often each was started
    """

    def __init__(
        self,
        command: Sequence[str],
        plan: Plan,
        server: bed.Server,
        folder: Path,
        killer: Calls,
    ) -> None:
        self.killer = killer
        self.lives = dict.fromkeys((*PRODUCERS, *CONSUMERS), 0)
        self._command, self._plan = command, plan
        self._server, self._folder = server, folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """Start a client, or its next life."""
        file = self._folder / f"{name}.{self.lives[name]}{SUFFIX}"
        file.touch()
        part = {
            **self._plan,
            "Role": name.partition("-")[0],
            "Name": name,
            "Life": self.lives[name],
            "First": self._first(name),
            "File": str(file),
        }
        self.lives[name] += 1
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*self._command, self._server.url, TOPIC, OUTPUT],
                stdout=log,
                stderr=log,
                env=harness.environment({"RECORDED": json.dumps(part)}),
            )

    def _first(self, name: str) -> int:
        """The message that a life of a producer begins with: some are repetitions."""
        if name not in PRODUCERS:
            return 0
        answered: set[int] = set()
        numbers: dict[int, int] = {}
        for life in range(self.lives[name]):
            for event in merged([self._folder / f"{name}.{life}{SUFFIX}"]):
                if event.op == "send" and event.call is not None:
                    if event.type == "invoke":
                        numbers[event.call] = event.args["sequence"]
                    elif event.type == "ok":
                        answered.add(numbers[event.call])
        first = next(number for number in range(1, len(answered) + 2) if number not in answered)
        return max(first - REPEATED, 1)

    def kill(self, *names: str) -> None:
        """Kill clients by SIGKILL."""
        for name in names:
            with self.killer.killing(name):
                self._processes[name].kill()
                self._processes[name].wait()

    def kill_server(self, end: Callable[[], None]) -> None:
        """End the server, which frees what its clients hold."""
        with self.killer.killing(""):
            end()

    def stop(self, name: str, pause: Callable[[], None]) -> None:
        """Stop a client or the server for a moment."""
        pid = self._server.pid if name == "server" else self._processes[name].pid
        self.killer.event("stop", name)
        os.kill(pid, signal.SIGSTOP)
        pause()
        self.killer.event("continue", name)
        os.kill(pid, signal.SIGCONT)

    def end(self, *names: str) -> list[str]:
        """End clients by SIGTERM; returns those that did not end well."""
        for name in names:
            self._processes[name].terminate()
        faults = []
        for name in names:
            with suppress(subprocess.TimeoutExpired):
                if (code := self._processes[name].wait(END_S)) not in ENDED:
                    faults.append(f"{name} ended with {code}")
                continue
            self.kill(name)
            faults.append(f"{name} did not end")
        return faults

    def dead(self) -> list[str]:
        """The clients that ended by themselves."""
        codes = {name: process.poll() for name, process in self._processes.items()}
        return [f"{name} ended with {code}" for name, code in codes.items() if code is not None]

    def close(self) -> None:
        """Kill the remaining processes."""
        for process in self._processes.values():
            process.kill()
            process.wait()


def run(
    command: Sequence[str], plan: Plan, server: bed.Server, folder: Path, seed: int
) -> list[str]:
    """Let clients work by a plan while everything dies; returns what is wrong.

    folder: gets the files of the history
    """
    chance = random.Random(seed)
    with (
        txlog.open(str(server.store)) as client,
        Calls(folder, "killer", "killer") as killer,
    ):
        client.create_topic(TOPIC, plan["Partitions"])
        client.create_topic(OUTPUT)
        clients = Clients(command, plan, server, folder, killer)
        try:
            for name in clients.lives:
                clients.start(name)
            faults = _worked(clients, client, plan, server, chance)
            faults += _ended(clients, client, plan, server)
        finally:
            clients.close()
        for row in client.transactions():  # of clients that were killed
            client.wait(txns={row["txn"]: "ended"}, timeout_ms=STUCK_MS)
        _finals(killer, client, plan)
    events = _history(merged(sorted(folder.glob(f"*{SUFFIX}"))))
    save(events, folder / "history.jsonl")
    sent = sum(event.op == "send" and event.type == "ok" for event in events)
    if sent == 0:
        faults.append("no message was answered")
    return faults + [str(finding) for finding in check(events)]


def _worked(
    clients: Clients, client: txlog.Client, plan: Plan, server: bed.Server, chance: random.Random
) -> list[str]:
    """Kill and stop in turns, while clients work."""

    def pause(timeout_ms: float) -> None:
        client.wait([TOPIC], messages=NEVER, timeout_ms=round(timeout_ms))

    def progress(more: int) -> None:
        [count] = [row["messages"] for row in client.topics() if row["topic"] == TOPIC]
        client.wait([TOPIC], messages=count + more, timeout_ms=STUCK_MS)

    for _ in range(plan["Deaths"]):
        progress(chance.choice((1, AT_WORK, AT_WORK)))  # the clients are back, or not quite
        pause(chance.uniform(0, PAUSE_MS))
        if faults := clients.dead():
            return faults
        act = chance.choice(("server", "server", "stop", "everything", "client", "client"))
        everybody = list(clients.lives)
        if act == "stop":
            name = chance.choice(["server", *everybody])
            clients.stop(name, lambda: pause(STOPPED_MS))
            continue
        victims = {"server": [], "client": [chance.choice(everybody)], "everything": everybody}[act]
        if act != "client":
            clients.kill_server(chance.choice((server.kill, server.kill, server.stop)))
        clients.kill(*victims)
        if act != "client":
            server.start()
        for name in victims:
            clients.start(name)
    progress(AT_WORK)
    return []


def _ended(clients: Clients, client: txlog.Client, plan: Plan, server: bed.Server) -> list[str]:
    """End the clients: when all is received and acknowledged, or all at once."""
    faults = []
    if plan["Drained"]:
        faults = clients.end(*PRODUCERS)
        left = NEVER
        while (
            left
            and client.wait([TOPIC], backlogs={SUBSCRIPTION: left - 1}, timeout_ms=STUCK_MS)["met"]
        ):
            left = client.subscription(TOPIC, SUBSCRIPTION).describe()["backlog"]
        if left:
            faults.append(f"{left} messages are left, and nobody gets them")
        faults += clients.end(*CONSUMERS)
    clients.kill_server(server.kill)
    if not plan["Drained"]:
        clients.kill(*clients.lives)
    return faults


# --- the history ----------------------------------------------------------------------------------


def _finals(calls: Calls, client: txlog.Client, plan: Plan) -> None:
    """Record the contents of the topics, and the messages left to deliver."""
    topics = {TOPIC: plan["Partitions"], OUTPUT: 1}
    client.wait([TOPIC], messages=NEVER, timeout_ms=STOPPED_MS)  # all delayed messages are due
    calls("final_read", {}, lambda: contents(client, topics), lambda answer: answer)
    with client.consumer(TOPIC, SUBSCRIPTION) as consumer:

        def drain() -> list[dict[str, Any]]:
            rows = list[dict[str, Any]]()
            while (table := consumer.receive_batch(1_000, timeout_ms=0)).num_rows:
                rows += received(table)["messages"]
            return rows

        where = {"topic": TOPIC, "subscription": SUBSCRIPTION}
        calls("final_drain", where, drain, lambda rows: {"messages": rows})


def _history(events: list[Event]) -> list[Event]:
    """The events with the store's ids, and without answers that prove nothing."""
    final = next(event for event in reversed(events) if event.op == "final_read")
    ids = {
        (topic, value): message_id
        for topic, partitions in final.answer["topics"].items()
        for rows in partitions.values()
        for message_id, value in rows
    }
    args = {event.call: event.args for event in events if event.type == "invoke"}
    deaths = [event.n for event in events if event.op == "kill" and event.process == ""]
    opened = {
        event.args["consumer"]: event.n
        for event in events
        if event.op == "subscribe" and event.type == "invoke"
    }
    for event in events:
        if event.op == "send" and "id" in event.answer:
            sent = args[event.call]
            expected = ids.get((sent["topic"], sent["value"]))
            event.answer["id"] = _stored(event.answer["id"], expected)
        for row in event.answer.get("messages", ()):
            if event.op == "receive":
                row["id"] = _stored(row["id"], ids.get((row["topic"], row["value"])))
        if event.args.get("cumulative"):
            event.args["ids"] = [
                ids[TOPIC, value] for value in event.args.pop("values") if (TOPIC, value) in ids
            ]
        if event.answer.get("by") == "close":
            since = opened[args[event.call]["consumer"]]
            if any(since < death < event.n for death in deaths):
                event.type, event.answer, event.error = "unknown", {}, "the server died"
    return events


def _stored(text: str, expected: str | None) -> str:
    """The store's id of an id of the protocol, as ledger, entry and index in a batch.

    expected: the id of the message in the store; it tells whether an index counts within a batch
              or within a transaction
    """
    ledger, number, index = map(int, text.split(":"))
    entry, alone = divmod(number, STEP)
    at = alone - 1 if alone else max(index, 0)
    in_txn = f"{ledger}:{entry}:{at + 1}"
    return in_txn if expected == in_txn else f"{ledger}:{entry + at}"


# --- the command line -----------------------------------------------------------------------------


def wrong(client: str, plan: Plan, folder: Path, seed: int, **options: Any) -> str:
    """Run a plan on a new server; returns what is wrong, or nothing."""
    with bed.running(bed.Server(folder, **options)) as server:
        return "; ".join(run(program(client), {**PLAIN, **plan}, server, folder, seed)[:9])


def _seeds(options: argparse.Namespace) -> Iterator[tuple[int, str]]:
    for seed in range(options.seed, options.seed + options.plans):
        for client in options.clients:
            yield seed, client


def main() -> int:
    """Run plans at random, and print those that went wrong; 1 if there were any."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--plans", type=int, default=10)
    parser.add_argument("--keep", type=Path, help="keep the files of every run there")
    parser.add_argument("clients", nargs="*", default=CLIENTS, metavar="CLIENT")
    options = parser.parse_args()
    bad = 0
    for seed, client in _seeds(options):
        plan = drawn(seed, client)
        folder = Path(tempfile.mkdtemp(prefix=f"recorded-{seed}-{client}-", dir=options.keep))
        began = time.monotonic()
        fault = wrong(client, plan, folder, seed)
        with (folder / "history.jsonl").open() as lines:
            count = sum(1 for _ in lines)
        words = ["WRONG" if fault else "ok", seed, client, plan, f"{count} events"]
        print(*words, f"{time.monotonic() - began:.0f} s", fault, flush=True)
        if fault:
            print(f"the files are in {folder}", flush=True)
        elif options.keep is None:
            shutil.rmtree(folder)
        bad += bool(fault)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())

"""Owns the count of copied messages: a copy in transactions has each message once, despite kills.

A stock client copies a topic of three partitions: in each transaction it sends what it received
and acknowledges that. It and the server are killed at random times. A *plan* says how it copies:

    Most     messages in a transaction at most
    DelayMs  how long a batch waits
    Queue    size of the receiver's queue

`python -m tests.clients.copied [--kills N] [--rounds N] [--seed N] [CLIENT ...]` runs each plan in
each round, and prints a line for each run.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import pyarrow as pa

import txlog
from tests.clients import bed
from tests.clients.answered import Mortal

CLIENTS = ("go", "java")
INPUT, OUTPUT, SUBSCRIPTION = "copy-input", "copy-output", "copier"
PARTITIONS = 3
Plan = dict[str, int]
PLANS: tuple[Plan, ...] = (
    {"Most": 50, "DelayMs": 300, "Queue": 1_000},
    {"Most": 10, "DelayMs": 10, "Queue": 10},
)
# A transaction is open for 10 s, a client waits for an answer for 30 s.
STUCK_MS = 60_000
BATCH = 60  # messages that are sent together, over all partitions
MORE = 1_000  # messages that come when few are left before the last kill


@dataclass(frozen=True)
class Deaths:
    """How often the server and the client are killed, and seconds between two kills on average."""

    server: int
    client: int
    pause: float = 2.0


@dataclass(frozen=True)
class Copy:
    """The outcome of a copy.

    seconds: from the start to the last acknowledgement
    lost:    messages without a copy
    doubled: messages with several
    left:    messages in the backlog
    open:    transactions that were never ended
    """

    messages: int
    seconds: float
    lost: int
    doubled: int
    left: int
    open: int

    @property
    def is_exact(self) -> bool:
        """Whether each message was copied once, and nothing is left."""
        return self.lost == self.doubled == self.left == self.open == 0


def program(client: str) -> list[str]:
    """The command of the program that copies by a plan. Raises bed.Unavailable."""
    command = bed.PROGRAMS[client]()
    if client == "java":
        command[command.index("clients.Main")] = "clients.Copied"
    return command


class _Copier:
    """The client's program, which is killed and started again.

    log: where it says which errors it met
    """

    def __init__(self, command: list[str], server: bed.Server, log: IO[str]) -> None:
        self._command = [*command, server.url, INPUT, OUTPUT]
        self._settings = dict(server.settings)
        self._log = log
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            env=bed.environment(self._settings),
        )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        self.kill()
        self._process = self._started()


class _Input:
    """The topic that is copied: message n has the value n."""

    def __init__(self, client: txlog.Client) -> None:
        self.count = 0
        self._client = client
        client.create_topic(INPUT, PARTITIONS)
        client.create_topic(OUTPUT)
        client.create_subscription(INPUT, SUBSCRIPTION, type="shared", position="earliest")
        self._producer = client.producer(INPUT)

    def add(self, count: int) -> None:
        """Send so many, in batches of each partition."""
        values = [str(n).encode() for n in range(self.count, self.count + count)]
        for first in range(0, count, BATCH):
            self._producer.send_batch(pa.table({"value": values[first : first + BATCH]}))
        self.count += count

    def left(self) -> int:
        """How many are not acknowledged."""
        return self._client.subscription(INPUT, SUBSCRIPTION).describe()["backlog"]

    def is_done(self, left: int, timeout_ms: int) -> bool:
        """Wait until at most so many are left."""
        backlogs = {SUBSCRIPTION: left}
        return self._client.wait([INPUT], backlogs=backlogs, timeout_ms=timeout_ms)["met"]


def copy(
    command: list[str], plan: Plan, server: bed.Server, count: int, deaths: Deaths, seed: int
) -> Copy:
    """Have a program copy so many messages or more, while it and the server are killed."""
    chance = random.Random(seed)
    victims = ["server"] * deaths.server + ["client"] * deaths.client
    chance.shuffle(victims)
    server.settings = {"COPY": json.dumps(plan)}
    log = server.store.parent / "client.log"
    with txlog.open(str(server.store)) as client, log.open("w") as errors:
        messages = _Input(client)
        messages.add(count)
        start = time.monotonic()
        copier = _Copier(command, server, errors)
        try:
            for victim in victims:
                messages.is_done(0, round(1_000 * chance.uniform(0, 2 * deaths.pause)))
                if messages.left() < MORE:
                    messages.add(MORE)
                if victim == "server":
                    server.answer("kill")
                else:
                    copier.restart()
            while (left := messages.left()) and messages.is_done(left - 1, STUCK_MS):
                pass
            seconds = time.monotonic() - start
        finally:
            copier.kill()
        for row in client.transactions():  # of clients that were killed
            client.wait(txns={row["txn"]: "ended"}, timeout_ms=STUCK_MS)
        copies = Counter(int(message.value or b"-1") for message in client.reader(OUTPUT))
        return Copy(
            messages.count,
            round(seconds, 1),
            lost=sum(n not in copies for n in range(messages.count)),
            doubled=sum(number > 1 for number in copies.values()),
            left=messages.left(),
            open=len(client.transactions()),
        )


def main() -> int:
    """Copy by each plan in each round, and print the outcomes; 1 if any copy was not exact."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=30, help="of the server; of clients 2/3")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--messages", type=int, default=8_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--plan", type=int, choices=range(len(PLANS)), help="only this one")
    parser.add_argument("clients", nargs="*", default=CLIENTS, metavar="CLIENT")
    options = parser.parse_args()
    deaths = Deaths(options.kills, 2 * options.kills // 3)
    plans = PLANS if options.plan is None else [PLANS[options.plan]]
    bad = 0
    for seed in range(options.seed, options.seed + options.rounds):
        for client in options.clients:
            for plan in plans:
                folder = Path(tempfile.mkdtemp(prefix="copied-"))
                with bed.running(Mortal(folder)) as server:
                    done = copy(program(client), plan, server, options.messages, deaths, seed)
                rate = round(done.messages / done.seconds)
                verdict = "ok" if done.is_exact else f"WRONG {folder}"
                words = [verdict, f"seed {seed}", client, plan, asdict(deaths), asdict(done)]
                print(*words, f"{rate}/s", flush=True)
                if done.is_exact:
                    shutil.rmtree(folder)
                bad += not done.is_exact
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())

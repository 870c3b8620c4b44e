"""Eight consumers in six processes; a killer ends two processes each second. Then a check.

    python -m bench consumers --seconds 60 --seed 7
    python -m bench consumers --types key-shared --seconds 10 --no-figures
    python -m bench consumers --types shared key-shared --delay 3000 --no-figures

Six processes, two of them with two threads, consume one subscription of a topic with four
partitions. Each consumer receives a batch, acknowledges it and sends its messages on, in one
transaction. On Shared every other process acknowledges plainly instead. From time
to time a consumer negatively acknowledges a batch, with or without a delay, or closes and is opened
again. A producer sends keyed messages all the while, some in transactions. With --delay two of
three messages have a time of delivery within that many milliseconds, while upkeep seals and merges
the buckets of the index. Everybody records its calls, and at the end `tests.history` checks the
history of all: nothing lost or processed twice, the order of a key, no delivery before its time.

Then come two figures. The first is the time from a SIGKILL until another consumer has the messages
of the dead one. The second is how many messages a second 1, 2 and 4 processes take from a Shared
subscription, in turns with SQLite as a work queue (UPDATE ... RETURNING, WAL, synchronous=NORMAL:
like leases and plain acknowledgements it does not flush each time).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa

import txlog
from tests.history.recording import Calls, Record, checked, contents, received
from txlog.errors import ConsumerBusy

TYPES = ("exclusive", "failover", "shared", "key-shared")
THREADS = (2, 2, 1, 1, 1, 1)  # of each process
PARTITIONS = 4
KEYS = 48
TOPICS = {"in": PARTITIONS, "out": PARTITIONS}
SUBSCRIPTION = {"topic": "in", "subscription": "s"}
BATCH = 20
KILLED = 2
DRAIN_SECONDS = 120
QUEUE_BATCH = 100


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


# --- the consumers ----------------------------------------------------------------------------


class Work:
    """One consumer in a thread of a worker process; it records its calls."""

    def __init__(self, where: Path, client: txlog.Client, name: str, kind: str, seed: int) -> None:
        self.client, self.name, self.kind = client, name, kind
        self.chance = random.Random(seed)
        self.calls = Calls(where, name, process_name(int(name[1]), os.getpid()))
        self.producer = client.producer("out")
        # fences the open transaction of the dead worker
        answer = self.calls("connect_key", {"key": name}, lambda: client.connect(name), with_epoch)
        self.epoch = answer["epoch"]
        self.is_plain = kind == "shared" and int(name[1]) % 2 == 1
        self.own: dict[str, str] = {}

    def run(self) -> None:
        """Without end: open a consumer, pass batches on, close it at a random time."""
        while True:
            self.own = {**SUBSCRIPTION, "consumer": f"{self.calls.process}-{time.monotonic_ns()}"}
            options: dict[str, Any] = {"type": self.kind, "name": self.name}
            subscribe = partial(self.client.consumer, "in", "s", **options)
            try:
                consumer = self.calls("subscribe", {**self.own, "kind": self.kind}, subscribe)
            except ConsumerBusy:  # Exclusive: another consumer is attached
                time.sleep(0.02)
                continue
            try:
                while self.chance.random() > 0.01:
                    self.step(consumer)
            finally:
                self.calls("close", self.own, consumer.close)

    def step(self, consumer: txlog.Consumer) -> None:
        """Pass one batch on, negatively acknowledge it, or acknowledge it plainly."""
        receive = partial(consumer.receive_batch, self.chance.randint(1, BATCH), 200)
        table = self.calls("receive", self.own, receive, received)
        if not table.num_rows:
            return
        messages = received(table)["messages"]
        acked = {**self.own, "ids": [message["id"] for message in messages]}
        fate = self.chance.random()
        if fate < 0.05:
            delay_ms = 50 if fate < 0.02 else 0
            nack = partial(consumer.negative_acknowledge, table, delay_ms=delay_ms)
            self.calls("nack", acked, nack)
        elif self.is_plain:
            answer = self.calls("acknowledge", acked, partial(consumer.acknowledge, table))
            if answer.acked != table.num_rows:
                raise RuntimeError(f"in hand, and acknowledged by another: {answer}, {acked}")
        else:
            self.pass_on(consumer, table, acked)

    def pass_on(self, consumer: txlog.Consumer, table: pa.Table, acked: Record) -> None:
        """Send a batch on and acknowledge it, in one transaction."""
        begin = {"key": self.name, "epoch": self.epoch}
        label = f"{self.own['consumer']}-{time.monotonic_ns()}"
        transaction = partial(self.client.transaction, key=self.name, epoch=self.epoch)
        txn = self.calls("begin", begin, transaction, lambda _: {"txn": label})
        values = [f"{m['value']}@{label}" for m in received(table)["messages"]]
        out = pa.table({"key": table["key"], "value": pa.array(values).cast(pa.binary())})
        sends = [{"topic": "out", "value": value, "txn": label} for value in values]
        self.calls.together("send", sends, lambda: self.producer.send_batch(out, txn=txn))
        acknowledge = partial(consumer.acknowledge, table, txn=txn)
        self.calls("acknowledge", {**acked, "txn": label}, acknowledge)
        self.calls("commit", {"txn": label}, txn.commit)


def with_epoch(answer: Any) -> Record:
    """The epoch of a connection as an answer of the history."""
    return {"epoch": answer["epoch"]}


def process_name(number: int, pid: int) -> str:
    """A worker process in the history."""
    return f"w{number}-{pid}"


def work(where: Path, number: int, kind: str, seed: int) -> None:
    """A worker process, until it is killed; an error ends it with code 3."""

    def run(work: Work) -> None:
        try:
            work.run()
        except BaseException as error:
            sys.stderr.write(f"{work.name}: {error!r}\n")
            sys.stderr.flush()
            os._exit(3)

    with txlog.open(str(where / "store")) as client:
        threads = [
            threading.Thread(
                target=run, args=(Work(where, client, f"c{number}t{at}", kind, seed + at),)
            )
            for at in range(THREADS[number])
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def start(where: Path, *words: object) -> subprocess.Popen[bytes]:
    """Start a process of this file."""
    return subprocess.Popen(
        [sys.executable, __file__, "--where", str(where), *map(str, words)],
        stderr=(where / "errors").open("ab"),
        stdout=subprocess.PIPE,
    )


class Nursery:
    """A process without threads that forks workers, because imports cost more than the work."""

    def __init__(self) -> None:
        self._mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pid = os.fork()
        if self._pid == 0:
            self._mine.close()
            self._serve(its)
        its.close()

    def start(self, where: Path, number: int, kind: str, seed: int) -> Worker:
        """Fork a worker."""
        self._mine.send(json.dumps([str(where), number, kind, seed]).encode())
        return Worker(int(self._mine.recv(100)))

    def close(self) -> None:
        """End the process; the caller ends the workers."""
        self._mine.close()
        os.waitpid(self._pid, 0)

    @staticmethod
    def _serve(its: socket.socket) -> NoReturn:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for a worker
        while wish := its.recv(10_000):
            pid = os.fork()
            if pid == 0:
                its.close()
                _be_worker(*json.loads(wish))
            its.send(str(pid).encode())
        os._exit(0)


def _be_worker(where: str, number: int, kind: str, seed: int) -> NoReturn:
    errors = os.open(f"{where}/errors", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(errors, 2)
    code = 3
    try:
        work(Path(where), number, kind, seed)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


class Worker:
    """A process that another process forked."""

    def __init__(self, pid: int) -> None:
        self.pid, self._fd = pid, os.pidfd_open(pid)
        self._ended = select.poll()
        self._ended.register(self._fd, select.POLLIN)

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return not self._ended.poll(0)

    def kill(self) -> None:
        """Send SIGKILL; return after the process has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)
        self._ended.poll()
        os.close(self._fd)


class Sender(threading.Thread):
    """Sends keyed messages, some in transactions, until `is_over` is set."""

    def __init__(
        self, client: txlog.Client, calls: Calls, rate: float, delay_ms: int, seed: int
    ) -> None:
        super().__init__()
        self.calls = calls
        self.client, self.rate, self.delay_ms = client, rate, delay_ms
        self.chance = random.Random(seed)
        self.sent = 0
        self.is_over = threading.Event()

    def run(self) -> None:
        producer = self.client.producer("in")
        while not self.is_over.wait(10 / self.rate):
            sends: list[Record] = []
            now_ms = time.time_ns() // 1_000_000
            for number in range(self.sent, self.sent + 10):
                is_delayed = self.delay_ms > 0 and self.chance.random() < 2 / 3
                at_ms = now_ms + self.chance.randrange(self.delay_ms) if is_delayed else None
                key = f"k{number * 31 % KEYS}"
                send = {"topic": "in", "value": str(number), "key": key, "session": "sender"}
                sends.append(send if at_ms is None else {**send, "deliver_at_ms": at_ms})
            columns = [
                pa.array([send["key"] for send in sends]).cast(pa.binary()),
                pa.array([send["value"] for send in sends]).cast(pa.binary()),
                pa.array([s.get("deliver_at_ms") for s in sends], pa.timestamp("ms", "UTC")),
            ]
            table = pa.table(columns, ["key", "value", "deliver_at"])
            if self.sent % 30 == 0:
                self.in_transaction(producer, table, sends)
            else:
                self.calls.together("send", sends, partial(producer.send_batch, table))
            self.sent += 10

    def in_transaction(
        self, producer: txlog.Producer, table: pa.Table, sends: list[Record]
    ) -> None:
        """Send a batch in a transaction."""
        label = f"sender-{self.sent}"
        txn = self.client.transaction()
        sends = [{**send, "txn": label} for send in sends]
        self.calls.together("send", sends, partial(producer.send_batch, table, txn=txn))
        self.calls("commit", {"txn": label}, txn.commit)


def torture(
    nursery: Nursery, where: Path, kind: str, seconds: float, seed: int, rate: float, delay_ms: int
) -> dict[str, object]:
    """Test one subscription type: send, consume, kill, drain, check; returns the counts."""
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    txlog.init(
        str(where / "store"),
        checkpoint_frames=4_000,
        ledger_entries_max=3_000,
        mutable_ids_max=100,
        max_num_buckets=3,
        time_step_per_bucket_snapshot_seconds=1,
    )
    chance = random.Random(seed)
    kills = 0
    with txlog.open(str(where / "store")) as client:
        client.create_topic("in", PARTITIONS)
        client.create_topic("out", PARTITIONS)
        calls = Calls(where, "main", "main")
        options: dict[str, Any] = {"type": kind}
        create = partial(client.create_subscription, "in", "s", **options)
        calls("subscribe", {**SUBSCRIPTION, "kind": kind}, create)
        sender = Sender(client, Calls(where, "sender", "main"), rate, delay_ms, seed)
        sender.start()
        numbers = range(len(THREADS))
        running = {n: nursery.start(where, n, kind, chance.randrange(1 << 30)) for n in numbers}
        began = time.monotonic()
        try:
            while time.monotonic() - began < seconds:
                time.sleep(min(1.0, seconds / 4))
                for number in chance.sample(list(numbers), KILLED):
                    assert running[number].is_alive(), (where / "errors").read_text()
                    with calls.killing(process_name(number, running[number].pid)):
                        running[number].kill()
                    kills += 1
                    running[number] = nursery.start(where, number, kind, chance.randrange(1 << 30))
            sender.is_over.set()
            sender.join()
            drain(client, where, running)
        finally:
            sender.is_over.set()
            for number, worker in running.items():
                with calls.killing(process_name(number, worker.pid)):
                    worker.kill()
        calls("final_read", {}, partial(contents, client, TOPICS), dict)
        calls("final_drain", {**SUBSCRIPTION}, partial(left, client), received)
        found = check_history(where, sender.sent)
        found |= {"type": kind, "kills": kills, "seconds": round(time.monotonic() - began, 1)}
        found["redelivered"] = client.store.read(
            lambda view: sum(view.cursor(1, n + 1).figures.redelivered for n in range(PARTITIONS))
        )
    shutil.rmtree(where)
    return found


def drain(client: txlog.Client, where: Path, running: dict[int, Worker]) -> None:
    """Wait until every message is acknowledged."""
    for _ in range(DRAIN_SECONDS * 5):
        client.flush()
        row = client.subscriptions("in")[0]
        if row["backlog"] == 0:
            return
        assert all(one.is_alive() for one in running.values()), (where / "errors").read_text()
        time.sleep(0.2)
    raise AssertionError(f"messages are stuck: {row}")


def left(client: txlog.Client) -> pa.Table:
    """What a new consumer gets after everything was acknowledged."""
    with client.consumer("in", "s") as consumer:
        return consumer.receive_batch(1 << 16)


def check_history(where: Path, sent: int) -> dict[str, object]:
    """Check the history of all processes; returns counts. Raises AssertionError."""
    assert not (where / "errors").read_text(), (where / "errors").read_text()
    events = checked(where)
    done = Counter(event.op for event in events if event.type == "ok")
    figures = {name: done[name] for name in ("receive", "acknowledge", "commit", "nack")}
    return {"messages": sent, "events": len(events), **figures}


# --- figures ----------------------------------------------------------------------------------


def hold(where: Path) -> None:
    """Receive a message, print a line, and wait for the kill."""
    with txlog.open(str(where / "store")) as client:
        consumer = client.consumer("in", "s", type="shared")
        while not consumer.receive_batch(1, 1000).num_rows:
            pass
        say("held")
        time.sleep(1000)


def latency(where: Path, kills: int) -> dict[str, object]:
    """Milliseconds from SIGKILL until another consumer has the messages."""
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    txlog.init(str(where / "store"))
    out: list[float] = []
    with txlog.open(str(where / "store")) as client:
        client.create_topic("in")
        client.create_subscription("in", "s", type="shared")
        producer = client.producer("in")
        with client.consumer("in", "s") as consumer:
            for _ in range(kills):
                victim = start(where, "--hold")
                assert victim.stdout is not None
                producer.send(b"x")
                while True:
                    taken = consumer.receive_batch(10)
                    if taken.num_rows:  # this process was faster than the victim
                        consumer.negative_acknowledge(taken, delay_ms=200)
                        continue
                    if client.admin.locks()[-1]["pid"] == victim.pid and in_hand(client) == 1:
                        break
                    time.sleep(0.01)
                victim.stdout.readline()
                victim.send_signal(signal.SIGKILL)
                began = time.monotonic()
                taken = consumer.receive_batch(10, 10_000)
                out.append((time.monotonic() - began) * 1000)
                assert taken.num_rows == 1
                consumer.acknowledge(taken)
                victim.wait()
    shutil.rmtree(where)
    return {
        "kills": kills,
        "median_ms": round(statistics.median(out), 1),
        "max_ms": round(max(out), 1),
    }


def in_hand(client: txlog.Client) -> int:
    """The number of leased messages."""
    client.flush()
    return client.store.read(
        lambda view: sum(
            sum(one.ids.count()) for one in view.cursor(1, 1).leases.by_consumer.values()
        )
    )


def take(where: Path, peer: str) -> None:
    """Wait for the parent, take all messages batch by batch, and print their number."""
    total = 0
    if peer == "txlog":
        with txlog.open(str(where / "store")) as client, client.consumer("in", "s") as consumer:
            say("ready")
            sys.stdin.readline()
            while (table := consumer.receive_batch(QUEUE_BATCH)).num_rows:
                consumer.acknowledge(table)
                total += table.num_rows
            say(str(total))
            sys.stdin.readline()
        return
    db = sqlite3.connect(where / "peer.db", isolation_level=None, timeout=60)
    db.execute("PRAGMA synchronous=NORMAL")
    say("ready")
    sys.stdin.readline()
    me = os.getpid()
    while True:
        rows = db.execute(
            "UPDATE queue SET holder = ? WHERE id IN (SELECT id FROM queue WHERE holder IS NULL "
            "ORDER BY id LIMIT ?) RETURNING id, value",
            (me, QUEUE_BATCH),
        ).fetchall()
        if not rows:
            break
        marks = ",".join("?" * len(rows))
        db.execute(f"DELETE FROM queue WHERE id IN ({marks})", [row[0] for row in rows])
        total += len(rows)
    say(str(total))


def throughput(where: Path, peer: str, processes: int, count: int) -> float:
    """The messages a second that all processes take together."""
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    value = b"x" * 100
    if peer == "txlog":
        txlog.init(str(where / "store"))
        with txlog.open(str(where / "store")) as client:
            client.create_topic("in")
            client.create_subscription("in", "s", type="shared")
            producer = client.producer("in")
            table = pa.table({"value": pa.array([value] * 10_000, pa.binary())})
            for first in range(0, count, 10_000):
                producer.send_batch(table.slice(0, count - first))
    else:
        db = sqlite3.connect(where / "peer.db")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("CREATE TABLE queue (id INTEGER PRIMARY KEY, value BLOB, holder INTEGER)")
        db.execute("CREATE INDEX free ON queue (id) WHERE holder IS NULL")
        db.executemany("INSERT INTO queue (value) VALUES (?)", ((value,) for _ in range(count)))
        db.commit()
        db.close()
    workers = [
        subprocess.Popen(
            [sys.executable, __file__, "--where", str(where), "--take", peer],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        for _ in range(processes)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    began = time.monotonic()
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("\n")
    taken = [int(worker.stdout.readline()) for worker in workers if worker.stdout is not None]
    elapsed = time.monotonic() - began
    for worker in workers:
        worker.communicate("\n")
    assert sum(taken) == count, taken
    shutil.rmtree(where)
    return count / elapsed


def figures(where: Path, kills: int, count: int, rounds: int) -> dict[str, object]:
    """Latency after SIGKILL, and throughput in turns with SQLite."""
    found: dict[str, object] = {"latency": latency(where, kills)}
    say(f"redelivery after SIGKILL: {found['latency']}")
    measured: dict[tuple[str, int], list[float]] = {}
    for _ in range(rounds):
        for processes in (1, 2, 4):
            for peer in ("txlog", "sqlite"):
                rate = throughput(where, peer, processes, count)
                measured.setdefault((peer, processes), []).append(rate)
    for (peer, processes), rates in measured.items():
        found[f"{peer}_{processes}"] = round(statistics.median(rates))
        say(f"shared, {processes} processes, {peer:6} {statistics.median(rates):12,.0f} messages/s")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60, help="for each type")
    parser.add_argument("--types", nargs="+", choices=TYPES, default=list(TYPES))
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--rate", type=float, default=500, help="messages sent a second")
    parser.add_argument("--delay", type=int, default=0, help="ms, the longest a message waits")
    parser.add_argument("--kills", type=int, default=25, help="for the latency")
    parser.add_argument("--count", type=int, default=200_000, help="messages for the throughput")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-figures", action="store_true")
    parser.add_argument("--where", type=Path, default=Path(__file__).parent / ".work" / "consumers")
    parser.add_argument("--hold", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--take", help=argparse.SUPPRESS)
    given = parser.parse_args()
    acts: list[tuple[object, Callable[[], None]]] = [
        (given.hold, lambda: hold(given.where)),
        (given.take, lambda: take(given.where, given.take)),
    ]
    for is_meant, act in acts:
        if is_meant:
            act()
            return 0
    say(f"seed {given.seed}")
    found: dict[str, object] = {"seed": given.seed}
    nursery = Nursery()
    for kind in given.types:
        found[kind] = torture(
            nursery, given.where, kind, given.seconds, given.seed, given.rate, given.delay
        )
        say(f"{kind}: {found[kind]}")
    nursery.close()
    if not given.no_figures:
        found["figures"] = figures(given.where, given.kills, given.count, given.rounds)
    say(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

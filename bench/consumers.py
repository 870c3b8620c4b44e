"""Eight consumers in six processes; a killer ends two processes each second. Then a check.

    python -m bench consumers --seconds 60 --seed 7
    python -m bench consumers --types key-shared --seconds 10 --no-figures
    python -m bench consumers --types shared key-shared --delay 3000 --no-figures

Six processes, two of them with two threads, consume one subscription of a topic with four
partitions. Each consumer receives a batch, acknowledges it and sends its messages on, in one
transaction. On Shared every other process acknowledges plainly and keeps a log instead. From time
to time a consumer negatively acknowledges a batch, with or without a delay, or closes and is opened
again. A producer sends keyed messages all the while, some in transactions. At the end the output
must have no message twice, and every message must be in the output or in a log. With Key_Shared
the messages of a key must be in order. With --delay two of three messages have a time of delivery
within that many milliseconds, while upkeep seals and merges the buckets of the index; no message
may arrive before its time.

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
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc

import txlog
from txlog.errors import ConsumerBusy

TYPES = ("exclusive", "failover", "shared", "key-shared")
THREADS = (2, 2, 1, 1, 1, 1)  # of each process
PARTITIONS = 4
KEYS = 48
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
    """One consumer in a thread of a worker process."""

    def __init__(self, where: Path, client: txlog.Client, name: str, kind: str, seed: int) -> None:
        self.client, self.name, self.kind = client, name, kind
        self.chance = random.Random(seed)
        self.producer = client.producer("out")
        self.epoch = client.connect(name)["epoch"]  # fences the open transaction of the dead worker
        self.is_plain = kind == "shared" and int(name[1]) % 2 == 1
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self.log = os.open(where / f"{name}.log", flags, 0o600)

    def run(self) -> None:
        """Without end: open a consumer, pass batches on, close it at a random time."""
        while True:
            try:
                consumer = self.client.consumer("in", "s", type=self.kind, name=self.name)
            except ConsumerBusy:  # Exclusive: another consumer is attached
                time.sleep(0.02)
                continue
            with consumer:
                while self.chance.random() > 0.01:
                    self.step(consumer)

    def step(self, consumer: txlog.Consumer) -> None:
        """Pass one batch on, negatively acknowledge it, or log and acknowledge it plainly."""
        table = consumer.receive_batch(self.chance.randint(1, BATCH), 200)
        if not table.num_rows:
            return
        if self.kind in ("shared", "key-shared"):
            latest = pc.max(table.column("deliver_at").cast(pa.int64())).as_py()
            if latest is not None and latest > time.time_ns() // 1_000_000:
                raise RuntimeError(f"{latest - time.time_ns() // 1_000_000} ms before its time")
        fate = self.chance.random()
        if fate < 0.05:
            consumer.negative_acknowledge(table, delay_ms=50 if fate < 0.02 else 0)
        elif self.is_plain:
            values = [value.decode() for value in table.column("value").to_pylist()]
            os.write(self.log, "".join(f"{value}\n" for value in values).encode())
            answer = consumer.acknowledge(table)
            if answer.acked != table.num_rows:
                raise RuntimeError(f"in hand, and acknowledged by another: {answer}, {values}")
        else:
            with self.client.transaction(key=self.name, epoch=self.epoch) as txn:
                self.producer.send_batch(table.select(["key", "value"]), txn=txn)
                consumer.acknowledge(table, txn=txn)


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

    def __init__(self, client: txlog.Client, rate: float, delay_ms: int, seed: int) -> None:
        super().__init__()
        self.client, self.rate, self.delay_ms = client, rate, delay_ms
        self.chance = random.Random(seed)
        self.sent = 0
        self.is_over = threading.Event()

    def run(self) -> None:
        producer = self.client.producer("in")
        of_key: Counter[int] = Counter()
        while not self.is_over.wait(10 / self.rate):
            keys, values = [], []
            times: list[int | None] = []
            now_ms = time.time_ns() // 1_000_000
            for number in range(self.sent, self.sent + 10):
                key = number * 31 % KEYS
                is_delayed = self.delay_ms > 0 and self.chance.random() < 2 / 3
                times.append(now_ms + self.chance.randrange(self.delay_ms) if is_delayed else None)
                of_key[key] += not is_delayed  # a delayed message is not in the order of its key
                keys.append(b"k%d" % key)
                sequence = 0 if is_delayed else of_key[key]
                values.append(b"%d:%d:%d" % (number, key, sequence))
            columns = [pa.array(keys, pa.binary()), pa.array(values, pa.binary())]
            columns.append(pa.array(times, pa.timestamp("ms", "UTC")))
            table = pa.table(columns, ["key", "value", "deliver_at"])
            if self.sent % 30 == 0:
                with self.client.transaction() as txn:
                    producer.send_batch(table, txn=txn)
            else:
                producer.send_batch(table)
            self.sent += 10


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
        client.create_subscription("in", "s", type=kind)
        sender = Sender(client, rate, delay_ms, seed)
        sender.start()
        numbers = range(len(THREADS))
        running = {n: nursery.start(where, n, kind, chance.randrange(1 << 30)) for n in numbers}
        began = time.monotonic()
        try:
            while time.monotonic() - began < seconds:
                time.sleep(min(1.0, seconds / 4))
                for number in chance.sample(list(numbers), KILLED):
                    assert running[number].is_alive(), (where / "errors").read_text()
                    running[number].kill()
                    kills += 1
                    running[number] = nursery.start(where, number, kind, chance.randrange(1 << 30))
            sender.is_over.set()
            sender.join()
            drain(client, where, running)
        finally:
            sender.is_over.set()
            for worker in running.values():
                worker.kill()
        found = check(client, where, kind, sender.sent)
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


def check(client: txlog.Client, where: Path, kind: str, sent: int) -> dict[str, object]:
    """Check the output and the logs against `sent`; returns the counts. Raises AssertionError."""
    passed: list[tuple[int, int, int]] = []
    for table in client.read("out"):
        for value in table.column("value").to_pylist():
            number, key, sequence = map(int, value.split(b":"))
            passed.append((number, key, sequence))
    again = [number for number, times in Counter(one[0] for one in passed).items() if times > 1]
    assert not again, f"passed on twice: {again[:10]}"
    logged = {
        int(line.split(":")[0])
        for path in where.glob("c*.log")
        for line in path.read_text().split("\n")[:-1]
    }
    missing = set(range(sent)) - {one[0] for one in passed} - logged
    assert not missing, f"never processed: {sorted(missing)[:10]}"
    if kind != "shared":
        assert not logged
        assert len(passed) == sent
    if kind == "key-shared":
        last: Counter[int] = Counter()
        for _, key, sequence in passed:  # a key has one partition, and its order there
            if not sequence:
                continue
            assert sequence == last[key] + 1, f"key {key}: {sequence} behind {last[key]}"
            last[key] = sequence
    assert not (where / "errors").read_text(), (where / "errors").read_text()
    return {"messages": sent, "passed_on": len(passed), "logged": len(logged)}


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

"""Eight processes on one store, all of them killed at random; then a full check.

    python -m bench stress --seconds 60 --seed 7

    3  producers: transactions over the partitions of `in`, some aborted
    1  producer with a name and sequences: plain sends, repeated after each restart
    2  consumers: each takes a subscription of `in`, and in one transaction acknowledges a batch
       and sends a message for each input to `out`; some aborted
    1  upkeep: rolls, checkpoints and compacts without pause
    1  killer: SIGKILL to one of the others, which is started again

Each worker writes each answer to its own log before its next call. At the end the store must
agree with every log: nothing lost, nothing twice, no torn transaction, no outcome changed.
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
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import txlog
from txlog.errors import (
    ConsumerBusy,
    ExpiredTransaction,
    InvalidTxnStatus,
    ProducerFenced,
    StoreLocked,
    TransactionNotFound,
)

PARTITIONS = 4
SUBSCRIPTIONS = ("s0", "s1")
ABORTED_SHARE = 0.2
BATCH = 50
PAUSE_S = 0.02
TIMEOUT_MS = 2_000
Record = dict[str, Any]


class Log:
    """A worker's answers, one JSON line each, which the kernel has before the next step."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, **record: object) -> None:
        os.write(self._fd, json.dumps(record).encode() + b"\n")


def read_log(path: Path) -> Iterator[Record]:
    """The records of a log, without a line that a kill cut."""
    if path.exists():
        for line in path.read_bytes().split(b"\n"):
            try:
                yield json.loads(line)
            except ValueError:
                continue


# --- workers -----------------------------------------------------------------------------------


def produce(client: txlog.Client, name: str, log: Log, chance: random.Random) -> None:
    """Transactions of 1 to 12 messages over the partitions."""
    producer = client.producer("in")
    run = f"{name}-{os.getpid()}"
    number = 0
    while True:
        number += 1
        count = chance.randint(1, 12)
        txn = client.transaction(TIMEOUT_MS)
        label = f"{run}-{number}"
        try:
            for index in range(count):
                value = json.dumps({"txn": label, "index": index, "count": count}).encode()
                producer.send(value, partition=chance.randrange(PARTITIONS), txn=txn)
            log.write(label=label, id=str(txn.id), count=count, state="open")
            finish(txn, log, label, chance)
        except InvalidTxnStatus as error:  # the worker was stopped for longer than the time-out
            log.write(label=label, id=str(txn.id), state="lost", why=str(error))


def finish(txn: txlog.Transaction, log: Log, label: str, chance: random.Random) -> bool:
    """Commit or, at random, abort, and log the answer; returns whether it committed."""
    if chance.random() < ABORTED_SHARE:
        txn.abort()
        log.write(label=label, id=str(txn.id), state="aborted")
        return False
    txn.commit()
    log.write(label=label, id=str(txn.id), state="committed")
    return True


def produce_plain(client: txlog.Client, name: str, log: Log, chance: random.Random) -> None:
    """Send sequences without a gap; after a restart repeat the last one."""
    while True:
        producer = client.producer("plain", name=name)
        sequence = max(producer.last_sequence_id(), 0)
        try:
            while True:
                receipt = producer.send(b"%d" % sequence, sequence_id=sequence, partition=0)
                log.write(sequence=sequence, id=str(receipt.message_id))
                sequence += 1
        except ProducerFenced:
            continue


def consume(client: txlog.Client, name: str, log: Log, chance: random.Random) -> None:
    """Receive batches of subscription `name`, and `take` each."""
    output = client.producer("out")
    while True:
        try:
            consumer = client.consumer("in", name)
        except ConsumerBusy:
            continue
        with consumer:
            while True:
                table = consumer.receive_batch(chance.randint(1, BATCH), timeout_ms=50)
                if table.num_rows:
                    take(client, consumer, table, output, name, log, chance)


def take(
    client: txlog.Client,
    consumer: txlog.Consumer,
    table: Any,
    output: txlog.Producer,
    name: str,
    log: Log,
    chance: random.Random | None,
) -> None:
    """Send an output for each message of a batch, and acknowledge it, in one transaction."""
    txn = client.transaction(TIMEOUT_MS)
    label = f"{name}-{os.getpid()}-{time.monotonic_ns()}"
    try:
        for message in txlog.messages(table):
            value = json.dumps({"sub": name, "input": str(message.message_id)}).encode()
            output.send(value, partition=message.partition, txn=txn)
        consumer.acknowledge(table, txn=txn)
        log.write(label=label, id=str(txn.id), state="open")
        if chance is None:
            txn.commit()
        elif not finish(txn, log, label, chance):
            consumer.redeliver_unacknowledged_messages()
    except InvalidTxnStatus as error:
        log.write(label=label, id=str(txn.id), state="lost", why=str(error))
        consumer.redeliver_unacknowledged_messages()


def upkeep(client: txlog.Client, name: str, log: Log, chance: random.Random) -> None:
    """Roll, checkpoint and compact without end."""
    rounds = 0
    while True:
        rounds += 1
        try:
            client.checkpoint(roll_all=chance.random() < 0.5)
            client.admin.compact(chance.choice(("in", "out")))
        except StoreLocked:
            continue
        log.write(rounds=rounds)


def kill(path: Path, names: list[str], chance: random.Random, log: Log) -> None:
    """Send SIGKILL to a random worker at random moments; NAME.pid has the process id."""
    while True:
        time.sleep(chance.uniform(0.5, 2.0))
        victim = chance.choice(names)
        try:
            pid = int((path / f"{victim}.pid").read_text())
            os.kill(pid, signal.SIGKILL)
        except (OSError, ValueError):
            continue
        log.write(killed=victim, pid=pid)


WORKERS: dict[str, Callable[[txlog.Client, str, Log, random.Random], None]] = {
    "p0": produce, "p1": produce, "p2": produce, "plain": produce_plain,
    "s0": consume, "s1": consume, "upkeep": upkeep,
}  # fmt: skip


def work(where: Path, name: str, seed: int) -> None:
    """Run one worker."""
    chance = random.Random(f"{seed}-{name}-{time.time_ns()}")
    log = Log(where / f"{name}.log")
    if name == "killer":
        kill(where, list(WORKERS), random.Random(seed), log)
    with txlog.open(str(where / "store")) as client:
        WORKERS[name](client, name, log, chance)


# --- supervision -------------------------------------------------------------------------------


def supervise(where: Path, seconds: float, seed: int) -> Counter[str]:
    """Restart processes until the time is over; returns how often each one started."""
    running: dict[str, subprocess.Popen[bytes]] = {}
    started: Counter[str] = Counter()
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            for name in (*WORKERS, "killer"):
                process = running.get(name)
                if process is not None and process.poll() is None:
                    continue
                if process is not None and process.returncode != -signal.SIGKILL:
                    raise SystemExit(f"{name} ended with {process.returncode}: see {name}.err")
                with (where / f"{name}.err").open("ab") as errors:
                    running[name] = subprocess.Popen(
                        [
                            sys.executable,
                            __file__,
                            "--worker",
                            name,
                            "--where",
                            str(where),
                            "--seed",
                            str(seed),
                        ],
                        stderr=errors,
                    )
                (where / f"{name}.pid").write_text(str(running[name].pid))
                started[name] += 1
            time.sleep(PAUSE_S)
    finally:
        for process in running.values():
            process.kill()
        for process in running.values():
            process.wait()
    return started


def drain(where: Path) -> None:
    """Let time-outs end open transactions, then receive all remaining messages."""
    log = Log(where / "drain.log")
    with txlog.open(str(where / "store")) as client:
        while any(client.transactions()):
            time.sleep(PAUSE_S)
            client.expire()
        output = client.producer("out")
        for name in SUBSCRIPTIONS:
            with client.consumer("in", name) as consumer:
                while (table := consumer.receive_batch(5000)).num_rows:
                    take(client, consumer, table, output, name, log, None)


# --- the check ---------------------------------------------------------------------------------


def check(where: Path) -> Record:
    """Compare the store with every log; raises AssertionError."""
    with txlog.open(str(where / "store")) as client:
        found = Counter[str]()
        found.update(_check_inputs(client, where))
        found.update(_check_outputs(client))
        found.update(_check_plain(client, where))
        found.update(_check_outcomes(client, where))
        for row in client.subscriptions("in"):
            assert row["backlog"] == 0, row
            assert row["pending_acks"] == 0, row
        status = client.status()
        assert not status["problem_list"], status["problem_list"]
    return dict(found)


def _values(client: txlog.Client, topic: str) -> Iterator[tuple[str, bytes]]:
    for table in client.read(topic):
        for message in txlog.messages(table):
            assert message.value is not None
            yield str(message.message_id), message.value


def _check_inputs(client: txlog.Client, where: Path) -> Record:
    """Check that a transaction has all its messages once, or none, as its worker's log says."""
    seen: dict[str, list[int]] = {}
    counts: dict[str, int] = {}
    for _, value in _values(client, "in"):
        body = json.loads(value)
        seen.setdefault(body["txn"], []).append(body["index"])
        counts[body["txn"]] = body["count"]
    for label, indexes in seen.items():
        assert sorted(indexes) == list(range(counts[label])), f"{label} is torn: {indexes}"
    answered = Counter[str]()
    for name in ("p0", "p1", "p2"):
        for record in read_log(where / f"{name}.log"):
            state, label = record["state"], record["label"]
            answered[state] += 1
            if state == "committed":
                assert label in seen, f"{label} was committed and is gone"
            elif state in ("aborted", "lost"):
                assert label not in seen, f"{label} was {state} and is there"
    return {"input_txns": len(seen), "inputs": sum(counts.values()), **answered}


def _check_outputs(client: txlog.Client) -> Record:
    """Check that each input has one output for each subscription."""
    inputs = {message_id for message_id, _ in _values(client, "in")}
    outputs: dict[str, Counter[str]] = {name: Counter() for name in SUBSCRIPTIONS}
    for _, value in _values(client, "out"):
        body = json.loads(value)
        outputs[body["sub"]][body["input"]] += 1
    for name, counted in outputs.items():
        twice = [key for key, times in counted.items() if times > 1]
        assert not twice, f"{name}: {len(twice)} inputs twice, such as {twice[0]}"
        lost = inputs - set(counted)
        assert not lost, f"{name}: {len(lost)} inputs lost, such as {min(lost)}"
        assert set(counted) == inputs, f"{name}: outputs without an input"
    return {"outputs": sum(map(len, outputs.values()))}


def _check_plain(client: txlog.Client, where: Path) -> Record:
    """Check that each sequence is there once, in order, under the id of its receipt."""
    stored = [(int(value), message_id) for message_id, value in _values(client, "plain")]
    assert [sequence for sequence, _ in stored] == list(range(len(stored)))
    places = dict(stored)
    for record in read_log(where / "plain.log"):
        assert places.get(record["sequence"]) == record["id"], record
    return {"plain": len(stored)}


def _check_outcomes(client: txlog.Client, where: Path) -> Record:
    """Check that each transaction has the state in its worker's log, and ends twice the same."""
    asked = 0
    for name in WORKERS:
        for record in read_log(where / f"{name}.log"):
            if record.get("state") not in ("committed", "aborted"):
                continue
            txn_id = txlog.TxnId.parse(record["id"])
            try:
                state = client.show_transaction(txn_id)["state"]
            except TransactionNotFound as error:
                assert error.code == 305, error  # ended and forgotten
                continue
            assert state == record["state"], f"{txn_id} was {record['state']}, is {state}"
            end = client.commit if state == "committed" else client.abort
            try:
                assert end(txn_id)["already"], txn_id
            except ExpiredTransaction as error:
                raise AssertionError(f"{txn_id} is fenced") from error
            asked += 1
    return {"outcomes_asked": asked}


def prepare(where: Path) -> None:
    """A fresh store with the topics of the stress."""
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    txlog.init(
        str(where / "store"), checkpoint_frames=2_000, ledger_entries_max=5_000, reader_grace_ms=0
    )
    with txlog.open(str(where / "store")) as client:
        for topic, partitions in (("in", PARTITIONS), ("out", PARTITIONS), ("plain", 1)):
            client.create_topic(topic, partitions)
        for name in SUBSCRIPTIONS:
            client.create_subscription("in", name)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--where", type=Path, default=Path(__file__).parent / ".work" / "stress")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--keep", action="store_true", help="leave the store and the logs there")
    given = parser.parse_args()
    if given.worker:
        work(given.where, given.worker, given.seed)
        return 0
    sys.stdout.write(f"seed {given.seed}\n")
    prepare(given.where)
    started = supervise(given.where, given.seconds, given.seed)
    drain(given.where)
    found = check(given.where)
    found |= {"seconds": given.seconds, "kills": sum(started.values()) - len(started)}
    found["upkeep_rounds"] = sum(1 for _ in read_log(given.where / "upkeep.log"))
    sys.stdout.write(json.dumps(found) + "\n")
    if not given.keep:
        shutil.rmtree(given.where)
    return 0


if __name__ == "__main__":
    sys.exit(main())

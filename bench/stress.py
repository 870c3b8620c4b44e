"""Eight processes on one store, all of them killed at random; then a full check.

    python -m bench stress --seconds 60 --seed 7

    3  producers: transactions over the partitions of `in`, some aborted
    1  producer with a name and sequences: plain sends, repeated after each restart
    2  consumers: each takes a subscription of `in`, and in one transaction acknowledges a batch
       and sends a message for each input to `out`; some aborted
    1  upkeep: rolls, checkpoints and compacts without pause
    1  killer: SIGKILL to one of the others, which is started again, or SIGSTOP for up to 4 seconds

Each worker records its calls in a file of its own before it makes them, and their answers. At the
end `tests.history` checks the history of all: nothing lost, nothing twice, no torn transaction, no
outcome changed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import txlog
from tests.history.events import Event, merged
from tests.history.recording import SUFFIX, Calls, Record, checked, contents, received
from txlog.errors import (
    ConsumerBusy,
    InvalidTxnStatus,
    ProducerFenced,
    StoreLocked,
    TransactionNotFound,
    TxlogError,
)

if TYPE_CHECKING:
    import pyarrow as pa

PARTITIONS = 4
TOPICS = {"in": PARTITIONS, "out": PARTITIONS, "plain": 1}
SUBSCRIPTIONS = ("s0", "s1")
ABORTED_SHARE = 0.2
STOPPED_SHARE = 0.3  # of the signals; a process that is stopped may outlive its transaction
BATCH = 50
PAUSE_S = 0.02
TIMEOUT_MS = 2_000


# --- workers -----------------------------------------------------------------------------------


def produce(client: txlog.Client, name: str, calls: Calls, chance: random.Random) -> None:
    """Transactions of 1 to 12 messages over the partitions."""
    producer = client.producer("in")
    number = 0
    while True:
        number += 1
        txn = client.transaction(TIMEOUT_MS)
        label = f"{calls.process}-{number}"
        with suppress(InvalidTxnStatus):  # the worker was stopped for longer than the time-out
            for index in range(chance.randint(1, 12)):
                partition = chance.randrange(PARTITIONS)
                send(calls, producer, "in", f"{label}/{index}", partition, txn, label)
            finish(calls, txn, label, chance)


def send(
    calls: Calls,
    producer: txlog.Producer,
    topic: str,
    value: str,
    partition: int,
    txn: txlog.Transaction,
    label: str,
) -> None:
    """Send a message in a transaction."""
    args = {"topic": topic, "partition": partition, "value": value, "txn": label}
    calls("send", args, lambda: producer.send(value.encode(), partition=partition, txn=txn))


def finish(calls: Calls, txn: txlog.Transaction, label: str, chance: random.Random) -> bool:
    """Commit or, at random, abort; returns whether it committed."""
    op = "abort" if chance.random() < ABORTED_SHARE else "commit"
    act = txn.abort if op == "abort" else txn.commit
    calls(op, {"txn": label, "id": str(txn.id)}, act)
    return op == "commit"


def produce_plain(client: txlog.Client, name: str, calls: Calls, chance: random.Random) -> None:
    """Send sequences without a gap; after a restart repeat the last one."""
    for number in count():
        session = f"{calls.process}-{number}"
        named = {"topic": "plain", "producer": name, "session": session}
        producer = calls("open_producer", named, lambda: client.producer("plain", name=name))
        with suppress(ProducerFenced):
            for sequence in count(max(producer.last_sequence_id(), 0)):
                args = {**named, "value": str(sequence), "sequence": sequence, "partition": 0}
                send_plain = partial(
                    producer.send, b"%d" % sequence, sequence_id=sequence, partition=0
                )
                calls("send", args, send_plain, receipt)


def receipt(answer: Any) -> Record:
    """A receipt as an answer of the history."""
    place = {} if answer.message_id is None else {"id": str(answer.message_id)}
    return {"partition": 0, "duplicate": answer.duplicate, **place}


def consume(client: txlog.Client, name: str, calls: Calls, chance: random.Random) -> None:
    """Receive batches of subscription `name`, and `take` each."""
    output = client.producer("out")
    for number in count():
        own = {"topic": "in", "subscription": name, "consumer": f"{calls.process}-{number}"}
        subscribe = partial(client.consumer, "in", name)
        try:
            consumer = calls("subscribe", {**own, "kind": "exclusive"}, subscribe)
        except ConsumerBusy:
            continue
        with consumer:
            while True:
                receive = partial(consumer.receive_batch, chance.randint(1, BATCH), timeout_ms=50)
                table = calls("receive", own, receive, received)
                if table.num_rows:
                    take(client, consumer, table, output, calls, own, chance)


def take(
    client: txlog.Client,
    consumer: txlog.Consumer,
    table: pa.Table,
    output: txlog.Producer,
    calls: Calls,
    own: dict[str, str],
    chance: random.Random,
) -> None:
    """Send an output for each message of a batch, and acknowledge it, in one transaction."""
    txn = client.transaction(TIMEOUT_MS)
    label = f"{own['consumer']}-{time.monotonic_ns()}"
    messages = received(table)["messages"]
    try:
        for message in messages:
            value = f"{label}/{message['id']}"
            send(calls, output, "out", value, message["partition"], txn, label)
        ids = [message["id"] for message in messages]
        args = {**own, "ids": ids, "txn": label}
        calls("acknowledge", args, lambda: consumer.acknowledge(table, txn=txn))
        is_committed = finish(calls, txn, label, chance)
    except InvalidTxnStatus:
        is_committed = False
    if not is_committed:
        calls("redeliver", own, consumer.redeliver_unacknowledged_messages)


def upkeep(client: txlog.Client, name: str, calls: Calls, chance: random.Random) -> None:
    """Roll, checkpoint and compact without end."""
    while True:
        try:
            client.checkpoint(roll_all=chance.random() < 0.5)
            calls("upkeep", {}, lambda: client.admin.compact(chance.choice(("in", "out"))))
        except StoreLocked:
            continue


def kill(path: Path, names: list[str], chance: random.Random) -> None:
    """Kill or stop a random worker at random moments; NAME.pid has the process id."""
    calls = Calls(path, "killer", "killer")
    while True:
        time.sleep(chance.uniform(0.5, 2.0))
        victim = chance.choice(names)
        try:
            pid = int((path / f"{victim}.pid").read_text())
            descriptor = os.pidfd_open(pid)
        except (OSError, ValueError):
            continue
        process = f"{victim}-{pid}"
        with suppress(ProcessLookupError):
            if chance.random() < STOPPED_SHARE:
                calls.event("stop", process)
                signal.pidfd_send_signal(descriptor, signal.SIGSTOP)
                time.sleep(chance.uniform(0.1, 2 * TIMEOUT_MS / 1000))
                calls.event("continue", process)
                signal.pidfd_send_signal(descriptor, signal.SIGCONT)
            else:
                with calls.killing(process):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    select.select([descriptor], [], [])
        os.close(descriptor)


WORKERS: dict[str, Callable[[txlog.Client, str, Calls, random.Random], None]] = {
    "p0": produce, "p1": produce, "p2": produce, "plain": produce_plain,
    "s0": consume, "s1": consume, "upkeep": upkeep,
}  # fmt: skip


def work(where: Path, name: str, seed: int) -> None:
    """Run one worker."""
    chance = random.Random(f"{seed}-{name}-{time.time_ns()}")
    if name == "killer":
        kill(where, list(WORKERS), random.Random(seed))
    with txlog.open(str(where / "store")) as client:
        WORKERS[name](client, name, Calls(where, name, f"{name}-{os.getpid()}"), chance)


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
                            "-m",
                            "bench.stress",
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
        calls = Calls(where, "supervisor", "supervisor")
        for name, process in running.items():
            with calls.killing(f"{name}-{process.pid}"):
                process.kill()
                process.wait()
    return started


# --- the check ---------------------------------------------------------------------------------


def settle(where: Path) -> None:
    """Let time-outs end open transactions, ask for each outcome again, and read what is there."""
    history = merged(where.glob(f"*{SUFFIX}"))
    calls = Calls(where, "end", "end")
    with txlog.open(str(where / "store")) as client:
        while any(client.transactions()):
            time.sleep(PAUSE_S)
            client.expire()
        for event in history:
            if event.op in ("commit", "abort") and event.type == "invoke":
                ask_again(client, calls, event)
        calls("final_read", {}, lambda: contents(client, TOPICS), dict)
        for name in SUBSCRIPTIONS:
            args = {"topic": "in", "subscription": name}
            calls("final_drain", args, partial(drain, client, name), received)
    with txlog.open(str(where / "store")) as client:  # the last one reported its recovery
        status = client.status()
        assert not status["problem_list"], status["problem_list"]


def ask_again(client: txlog.Client, calls: Calls, event: Event) -> None:
    """End a transaction again, in the way in which the store says that it ended."""
    txn_id = txlog.TxnId.parse(event.args["id"])
    try:
        state = client.show_transaction(txn_id)["state"]
    except TransactionNotFound as error:
        assert error.code == 305, error  # ended and forgotten
        return
    op = "commit" if state == "committed" else "abort"
    end = client.commit if op == "commit" else client.abort
    with suppress(TxlogError):
        args = {"txn": event.args["txn"], "id": event.args["id"]}
        calls(op, args, lambda: end(txn_id))


def drain(client: txlog.Client, name: str) -> pa.Table:
    """What a new consumer receives; it is the whole backlog."""
    import pyarrow as pa  # not at the start of a worker, which may be killed before it works

    with client.consumer("in", name) as consumer:
        tables = []
        while (table := consumer.receive_batch(5000)).num_rows:
            tables.append(table)
        client.flush()
        row = next(row for row in client.subscriptions("in") if row["subscription"] == name)
        count_of = sum(table.num_rows for table in tables)
        assert (row["backlog"], row["pending_acks"]) == (count_of, 0), row
    return pa.concat_tables([*tables, table])


def check_history(where: Path) -> Record:
    """Check the history of all workers; returns counts. Raises AssertionError."""
    events = checked(where)
    work = [e for e in events if e.type == "ok" and e.process != "end"]
    figures = Counter(event.op for event in work)
    return {
        "events": len(events),
        "committed": figures["commit"],
        "aborted": figures["abort"],
        "sent": figures["send"],
        "acknowledged": figures["acknowledge"],
        "upkeep_rounds": figures["upkeep"],
        "stops": sum(event.op == "stop" for event in events),
    }


def prepare(where: Path) -> None:
    """A fresh store with the topics of the stress."""
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    txlog.init(
        str(where / "store"), checkpoint_frames=2_000, ledger_entries_max=5_000, reader_grace_ms=0
    )
    with txlog.open(str(where / "store")) as client:
        for topic, partitions in TOPICS.items():
            client.create_topic(topic, partitions)
        calls = Calls(where, "prepare", "prepare")
        for name in SUBSCRIPTIONS:
            args = {"topic": "in", "subscription": name, "kind": "exclusive"}
            calls("subscribe", args, partial(client.create_subscription, "in", name))


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
    settle(given.where)
    found = check_history(given.where)
    found |= {"seconds": given.seconds, "kills": sum(started.values()) - len(started)}
    sys.stdout.write(json.dumps(found) + "\n")
    if not given.keep:
        shutil.rmtree(given.where)
    return 0


if __name__ == "__main__":
    sys.exit(main())

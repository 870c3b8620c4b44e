"""Real processes work on one store, and some are killed: nothing is lost, doubled or torn.

The parent learns the answers from pipes, and waits only for lines and for ends of processes.
`TXLOG_SEED` repeats the choices; when a signal arrives is up to the machine.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import txlog
from tests.harness import KILLED, SEED, Child, Children, python
from txlog.client.client import Client
from txlog.engine.session.reading.message import messages
from txlog.errors import AlreadyClosed, ReadOnlyStore, StoreLocked

Job = tuple[str, str, int, int | None]  # work, name, steps, kill after so many lines


def lines_of(child: Child, kill_after: int | None) -> list[str]:
    """Read the lines of a process to its end; kill it after this many lines."""
    lines = []
    for line in child:
        lines.append(line)
        if len(lines) == kill_after:
            child.kill()
    code, _ = child.end()
    assert code in ((0,) if kill_after is None else (0, KILLED)), child.other
    return lines


def together(store: Path, jobs: Sequence[Job]) -> list[list[str]]:
    """Run several processes at the same time; returns the lines of each."""
    with Children() as children, ThreadPoolExecutor(len(jobs)) as followers:
        started = [
            children.start(python("workers", work, store, name, count))
            for work, name, count, _ in jobs
        ]
        return list(followers.map(lines_of, started, [kill_after for *_, kill_after in jobs]))


def values(client: Client, topic: str = "t") -> list[str]:
    """All values, partition by partition."""
    out = []
    for partition in range(2):
        for table in client.read(topic, partitions=[partition]):
            out += [m.value.decode() for m in messages(table) if m.value is not None]
    return out


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with two topics of two partitions and a subscription."""
    path = tmp_path / "store"
    txlog.init(str(path), checkpoint_frames=60, coordinators=2)
    with txlog.open(str(path)) as client:
        client.create_topic("t", 2)
        client.create_topic("out", 2)
        client.create_subscription("t", "s")
    return path


@pytest.mark.deep
def test_killed_processes_lose_nothing_and_double_nothing(store: Path) -> None:
    """Producers, transactions, a consumer and checkpoints run at once, and most are killed."""
    rng = random.Random(SEED)
    print("seed", SEED)
    answered: dict[str, int] = {}
    committed: set[tuple[str, str]] = set()
    begun: set[str] = set()
    for turn in range(2):
        jobs = [
            (work, name, count, rng.randrange(1, count) if rng.random() < 0.8 else None)
            for work, name, count in (
                ("produce", "a", 60),
                ("produce", "b", 60),
                ("transact", f"x{turn}", 25),
                ("transact", f"y{turn}", 25),
                ("consume", "c", 30),
                ("checkpoint", "m", 6),
            )
        ]
        for (work, name, _, _), lines in zip(jobs, together(store, jobs), strict=True):
            if work == "produce":
                answered[name] = max([answered.get(name, 0), *map(int, lines)])
            if work == "transact":
                for word, txn, number in map(str.split, lines):
                    if word == "open":
                        assert txn not in begun, f"id {txn} was given out twice"
                        begun.add(txn)
                    else:
                        committed.add((name, number))
    # A producer that repeats its unanswered sends makes no duplicates.
    together(store, [("produce", name, 60, None) for name in ("a", "b")])

    with txlog.open(str(store)) as client:
        for row in client.transactions():
            client.abort(row["txn"])
        stored = values(client)
        assert len(stored) == len(set(stored)), f"seed {SEED}: doubled"
        for name in ("a", "b"):
            numbers = [int(v.split(":")[1]) for v in stored if v.startswith(f"{name}:")]
            odd, even = [n for n in numbers if n % 2], [n for n in numbers if n % 2 == 0]
            assert (odd, even) == (sorted(odd), sorted(even)), f"seed {SEED}: order of {name}"
            assert sorted(numbers) == list(range(1, 61)), f"seed {SEED}: {name} lost messages"
        whole: dict[tuple[str, str], int] = {}
        for value in stored:
            if value[0] in "xy":
                name, number, _ = value.split(":")
                whole[name, number] = whole.get((name, number), 0) + 1
        assert set(whole.values()) <= {4}, f"seed {SEED}: a torn transaction"
        assert committed <= set(whole), f"seed {SEED}: a lost transaction"
        consumed_once(client, stored)


def consumed_once(client: Client, consumed: list[str]) -> None:
    """Consume the messages that the killed consumers left; every message came out exactly once."""
    producer = client.producer("out")
    with client.consumer("t", "s") as consumer:
        while (table := consumer.receive_batch(50)).num_rows:
            with client.transaction() as txn:
                for message in messages(table):
                    producer.send(message.value, txn=txn)
                consumer.acknowledge(table, txn=txn)
    assert sorted(values(client, "out")) == sorted(consumed), f"seed {SEED}"


def test_a_reader_sees_whole_transactions_only(store: Path) -> None:
    """While writers run, every read has each transaction in both partitions or in none."""
    seen = 0
    with Children() as children, txlog.open(str(store), read_only=True) as client:
        writers = [
            children.start(python("workers", "transact", store, name, 30)) for name in ("x", "y")
        ]
        while any(writer.process.poll() is None for writer in writers):
            counts: dict[str, int] = {}
            for table in client.read("t"):
                for message in messages(table):
                    assert message.value is not None
                    key = message.value.decode().rpartition(":")[0]
                    counts[key] = counts.get(key, 0) + 1
            assert set(counts.values()) <= {4}
            assert len(counts) >= seen, "the visible end moved back"
            seen = len(counts)
        for writer in writers:
            lines_of(writer, None)
    with txlog.open(str(store), read_only=True) as client:
        assert len(values(client)) == 2 * 30 * 4


def test_threads_share_flushes(store: Path) -> None:
    """Group commit: each thread gets its own answer, in its own order."""
    threads_of, each = 8, 25
    with txlog.open(str(store)) as client:
        places: dict[str, object] = {}

        def work(name: int) -> None:
            producer = client.producer("t")
            for number in range(each):
                value = f"{name}:{number}"
                places[value] = producer.send(value.encode(), partition=0).message_id

        threads = [threading.Thread(target=work, args=(name,)) for name in range(threads_of)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stored = {
            m.value.decode(): m.message_id
            for table in client.read("t")
            for m in messages(table)
            if m.value is not None
        }
        assert stored == places
        assert len(stored) == threads_of * each
        for name in range(threads_of):
            own_values = [value for value in stored if value.startswith(f"{name}:")]
            assert own_values == [f"{name}:{number}" for number in range(each)]


def test_a_lock_timeout_names_the_holder_of_the_lock(store: Path) -> None:
    """The time-out has exit 5 and the pid of the holder; the lock is free once the holder is
    killed.
    """
    with Child(python("hold_write", store)) as holder:
        assert holder.line() == "held"
        with txlog.open(str(store), lock_timeout_ms=1) as client:
            with pytest.raises(StoreLocked) as caught:
                client.producer("t").send(b"x")
            assert caught.value.fields["pid"] == holder.pid
            assert caught.value.exit == 5
            assert values(client) == []  # readers take no lock
            holder.kill()
            client.producer("t").send(b"y")
            assert values(client) == ["y"]


def test_a_forked_child_must_open_its_own(store: Path) -> None:
    """The library refuses the child; its end frees neither the parent's lock nor its handles."""
    with txlog.open(str(store)) as client:
        client.producer("t").send(b"before")
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            answer = b"worked"
            try:
                client.producer("t").send(b"child")
            except AlreadyClosed:
                answer = b"closed"
            except BaseException as error:
                answer = repr(error).encode()
            finally:
                os.write(write_end, answer)
                os._exit(0)
        os.close(write_end)
        with os.fdopen(read_end, "rb") as pipe:
            assert pipe.read() == b"closed"
        os.waitpid(child, 0)
        client.producer("t").send(b"after")
        assert sorted(values(client)) == ["after", "before"]


def tree(root: Path) -> dict[str, tuple[int, int]]:
    """Every file with its size and time of change."""
    return {
        str(path.relative_to(root)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
    }


def test_reading_a_read_only_directory_leaves_no_trace(store: Path) -> None:
    """R23: every query works, no file is made or changed, and a write ends with exit 4."""
    with txlog.open(str(store)) as client:
        client.producer("t").send(b"one")
        client.checkpoint(roll_all=True)
        client.producer("t").send(b"two")
    for path in [*store.rglob("*"), store]:
        path.chmod(0o500 if path.is_dir() else 0o400)
    tree_before = tree(store)
    try:
        with txlog.open(str(store), read_only=True) as client:
            assert sorted(values(client)) == ["one", "two"]
            client.topics()
            client.subscriptions()
            client.transactions(all=True)
            client.status()
            client.describe_topic("t")
            with pytest.raises(ReadOnlyStore) as caught:
                client.producer("t").send(b"three")
            assert caught.value.exit == 4
            with pytest.raises(ReadOnlyStore):
                client.checkpoint()
        assert tree(store) == tree_before
    finally:
        for path in [store, *store.rglob("*")]:
            path.chmod(0o700 if path.is_dir() else 0o600)

"""Kills a process between any two steps of a commit together with a database, again and again.

    python -m tests.crash.together sqlite 2000
    python -m tests.crash.together postgresql 300 --seed 7

Each life of the process compares both sides first, then makes blocks until it is killed: at a call
of txlog or of the driver, before or after it, or at a random moment, which may be inside the
database. The parent compares what the process was told with what both sides have.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import random
import select
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import txlog
from tests import databases
from tests.children import dying
from tests.databases import Duckdb, Kind, Postgresql, Sqlite
from txlog import Client
from txlog.client.databases import kinds, together
from txlog.errors import InvalidArgument

STEPS_MAX = 260  # calls until the kill: about four blocks
EDGES_MAX = 40
EDGES = (
    (kinds.Database, "record"), (together.DatabaseTransaction, "_end"),
    (kinds.Database, "commit"), (together.DatabaseTransaction, "_commit_log"),
)  # fmt: skip
MOMENT_MAX_S = 0.08
LIVES = 60  # of one store and database
TRIES_MAX = 20  # until PostgreSQL has noticed that a client is dead
KINDS = ("sqlite", "sqlite-delete", "duckdb", "postgresql")


@dataclass
class Figures:
    """What a run has done."""

    kills: int = 0
    left_prepared: int = 0
    committed: int = 0
    faults: list[str] = field(default_factory=list)


@dataclass
class Place:
    """A store and a database; done: the values whose commits were answered."""

    store: str
    kind: Kind
    done: set[str] = field(default_factory=set)


def place_of(name: str, folder: Path, server: str) -> Place:
    """A new store and a new database of a kind."""
    path = str(folder / "store")
    txlog.init(path)
    with txlog.open(path) as client:
        client.create_topic("t", 2)
        client.create_topic("in")
        client.create_subscription("in", "s")
        producer = client.producer("in")
        for number in range(4_000):
            producer.send_async(b"%d" % number)
    if name == "postgresql":
        return Place(path, Postgresql(server))
    if name == "duckdb":
        return Place(path, Duckdb(folder))
    return Place(path, Sqlite(folder, "DELETE" if name.endswith("delete") else "WAL"))


# --- one life ----------------------------------------------------------------------------------


def live(place: Place, chance: random.Random, tell: Callable[[str], None], nth: int) -> None:
    """Compare both sides, then make blocks until the process dies; nth: the call to die in."""
    with txlog.open(place.store) as client:
        connection = place.kind.connect()
        left = client.transactions(states=["prepared"])
        tell(f"left {len(left)}")
        if chance.random() < 0.5 or not left:
            settle(client, connection)
        else:  # the next block does it
            with client.transaction(database=connection):
                pass
            settle(client, connection)
        compare(client, connection, place.done)
        if nth:
            for name in dying.CALLS:
                dying.around(os, name, before="call", after="call")
            dying.around(fcntl, "flock", before="call", after="call")
            for kind in (kinds.Database, kinds.Sqlite, kinds.Duckdb):
                for name in ("run", "commit", "rollback"):
                    if name in vars(kind):
                        dying.around(kind, name, before="call", after="call")
            for owner, name in EDGES:
                dying.around(owner, name, before="edge", after="edge")
            aim = chance.choice(("call", "edge"))
            dying.at(aim, nth if aim == "call" else nth % EDGES_MAX + 1)
        tell("armed")
        consumer = client.consumer("in", "s")
        for number in count():
            value = f"{os.getpid()}-{number}-{chance.random()}"
            if make_block(client, connection, consumer, value, chance):
                tell(f"done {value}")


class Undone(Exception):
    """The block takes itself back."""


def make_block(
    client: Client, connection: object, consumer: txlog.Consumer, value: str, chance: random.Random
) -> bool:
    """A row, messages and an acknowledgement that commit together: True, or are undone: False."""
    key = chance.choice((None, None, "etl"))
    is_undone = chance.random() < 0.15
    try:
        with client.transaction(key=key, database=connection) as txn:
            message = consumer.receive(timeout_ms=1_000)
            taken = "none" if message is None else message.value.decode()  # type: ignore[union-attr]
            connection.execute(  # type: ignore[attr-defined]
                f"INSERT INTO orders VALUES ('{value} {taken}')"
            )
            for _ in range(chance.randint(1, 3)):
                client.producer("t").send(f"{value} {taken}".encode(), txn=txn)
                if chance.random() < 0.2:
                    txn.flush()
            if message is not None:
                consumer.acknowledge(message, txn=txn)
            if is_undone:
                raise Undone
    except Undone:
        return False
    return True


def settle(client: Client, connection: object) -> None:
    """Resolve everything that is prepared."""
    for _ in range(TRIES_MAX):
        try:
            rows = client.resolve_prepared(database=connection)
        except InvalidArgument as error:
            assert "no outcomes" in error.message  # no block has come so far
            rows = []
        if all(row["state"] != "prepared" for row in rows):
            break
    assert client.transactions(states=["prepared"]) == []


def warm_up(place: Place, name: str) -> None:
    """Load in the parent what every life needs, so that a fork has it: a fifth of the time a kill.

    DuckDB has threads, which no fork would have.
    """
    if name == "duckdb":
        return
    with txlog.open(place.store) as client:
        connection = place.kind.connect()
        make_block(client, connection, client.consumer("in", "s"), "first", random.Random(1))
        settle(client, connection)
        compare(client, connection, set())
        connection.close()


def compare(client: Client, connection: object, done: set[str]) -> None:
    """Raises AssertionError if one side has what the other has not, or an answer was not kept."""
    rows = [row[0] for row in connection.execute("SELECT value FROM orders").fetchall()]  # type: ignore[attr-defined]
    if hasattr(connection, "in_transaction") or hasattr(connection, "info"):  # not of DuckDB
        connection.rollback()  # type: ignore[attr-defined]
    stored = {message.value.decode() for message in client.reader("t")}  # type: ignore[union-attr]
    assert len(rows) == len({*rows}), "a row came twice"
    assert done <= {row.split()[0] for row in rows}, "a commit that was answered is lost"
    assert stored == {*rows}, f"rows only {({*rows}) - stored}, messages only {stored - {*rows}}"
    taken = [row.split()[1] for row in rows if not row.endswith("none")]
    assert len(taken) == len({*taken}), "a message was worked on twice"
    backlog = sum(row["backlog"] for row in client.lag() if row["topic"] == "in")
    assert backlog == 4_000 - len(taken), f"{4_000 - backlog} acknowledged, {len(taken)} rows"


# --- the parent --------------------------------------------------------------------------------


def kill_once(place: Place, seed: int, figures: Figures) -> None:
    """One life: fork, let it live, kill it, and keep what it told."""
    chance = random.Random(seed)
    nth = chance.randint(1, STEPS_MAX) if chance.random() < 0.7 else 0
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        code = 3
        try:
            live(place, chance, lambda text: _tell(writer, text), nth)
        except BaseException:  # the parent shows it
            _tell(writer, f"fault {seed}: {traceback.format_exc(limit=-3)!r}")
        finally:
            os._exit(code)
    os.close(writer)
    told = b""
    while b"armed" not in told:
        piece = os.read(reader, 4096)
        if not piece:
            break
        told += piece
    if not nth:
        select.select([], [], [], chance.random() * MOMENT_MAX_S)
        os.kill(pid, signal.SIGKILL)
    while piece := os.read(reader, 65536):
        told += piece
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    lines = told.decode().splitlines()
    done = {line[5:] for line in lines if line.startswith("done ")}
    place.done |= done
    figures.committed += len(done)
    figures.left_prepared += sum(int(line[5:]) for line in lines if line.startswith("left "))
    figures.faults += [line for line in lines if line.startswith("fault ")]
    if os.WIFSIGNALED(status):
        figures.kills += 1


def _tell(descriptor: int, text: str) -> None:
    import posix

    posix.write(descriptor, f"{text}\n".encode())


def run(name: str, kills: int, seed: int) -> Figures:
    """Kill a process so many times."""
    figures = Figures()
    with ExitStack() as stack:
        server = ""
        if name == "postgresql":
            server = stack.enter_context(databases.postgresql_server())
        with tempfile.TemporaryDirectory(dir=os.environ.get("TXLOG_TESTS_IN")) as folder:
            warm_up(place_of(name, Path(folder), server), name)
        lives = 0
        while figures.kills < kills and not figures.faults:
            with tempfile.TemporaryDirectory(dir=os.environ.get("TXLOG_TESTS_IN")) as folder:
                place = place_of(name, Path(folder), server)
                for _ in range(LIVES):
                    kill_once(place, seed * 1_000_003 + lives, figures)
                    lives += 1
                    if figures.kills >= kills or figures.faults:
                        break
                final(place, figures)
    return figures


def final(place: Place, figures: Figures) -> None:
    """Compare what the last kill left, in a process that is not killed."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with txlog.open(place.store) as client:
                connection = place.kind.connect()
                settle(client, connection)
                compare(client, connection, place.done)
            errors = txlog.verify(place.store, deep=True)["errors"]
            code = 0 if errors == 0 else 4
        except BaseException:  # the exit code tells
            traceback.print_exc()
        finally:
            os._exit(code)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        figures.faults.append("fault in the last comparison")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("kills", type=int)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    figures = run(options.kind, options.kills, options.seed)
    print(
        f"{options.kind}: {figures.kills} kills, {figures.committed} blocks committed, "
        f"{figures.left_prepared} found prepared, {len(figures.faults)} faults"
    )
    for fault in figures.faults:
        print(fault)
    return 1 if figures.faults else 0


if __name__ == "__main__":
    sys.exit(main())

"""Transactions that commit together with a database of the user; spec/transactions 5.3."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests import databases
from tests.databases import (
    Duckdb,
    Kind,
    Postgresql,
    Sqlite,
    both,
    commit_of_a_block,
    insert,
    outcomes_of,
    prepared_only,
    rows_of,
)
from tests.disk.faults import FaultyDisk
from tests.disk.memory import MemoryDisk
from tests.engine_kit import START_MS, Bench, client_on, send, values
from txlog.base.settings import Settings
from txlog.client.databases import kinds, together
from txlog.clock import ManualClock
from txlog.engine.session.transactions import end
from txlog.engine.storage.disk.posix import PosixDisk
from txlog.engine.store.identity import make_store
from txlog.errors import (
    AlreadyClosed,
    DiskFailed,
    InvalidArgument,
    InvalidTxnStatus,
    NotAllowed,
    OutcomeUnknown,
    TopicNotFound,
    TransactionTimedOut,
    TxlogError,
)

pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 2}, [("t", "s")], coordinators=2),
]
KINDS = ["sqlite", "sqlite delete", "duckdb", "postgresql"]
KINDS += ["sqlite autocommit", "postgresql autocommit"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    name, _, mode = request.param.partition(" ")
    made: Kind
    if name == "postgresql":
        made = Postgresql(request.getfixturevalue("server"))
    else:
        made = (
            Duckdb(tmp_path)
            if name == "duckdb"
            else Sqlite(tmp_path, mode="WAL" if mode != "delete" else mode)
        )
    made.is_autocommit = mode == "autocommit"
    return made


@pytest.fixture
def connection(kind: Kind) -> Iterator[Any]:
    with kind.connect() as opened:
        yield opened


# --- both or neither -------------------------------------------------------------------------


def test_both_commit(bench: Bench, kind: Kind, connection: Any) -> None:
    both(bench.client, connection, "a")
    both(bench.client, connection, "b")
    assert values(bench.client) == [b"a", b"b"]
    assert rows_of(connection) == ["a", "b"]
    assert bench.client.transactions() == []
    ended = bench.client.transactions(all=True)
    assert {row["state"] for row in ended} == {"committed"}
    assert str(ended[0]["database"]).startswith(kind.name)


def test_the_next_commit_deletes_the_outcome_before(bench: Bench, connection: Any) -> None:
    for number in range(5):
        both(bench.client, connection, str(number))
        assert outcomes_of(connection) == ["commit"]


def test_an_exception_in_the_block_rolls_both_back(bench: Bench, connection: Any) -> None:
    client = bench.client
    (taken,) = send(client, b"in")
    with pytest.raises(KeyError), client.transaction(database=connection) as txn:
        insert(connection, "a")
        client.producer("t").send(b"a", txn=txn)
        client.acknowledge("t", "s", [taken], txn=txn)
        raise KeyError("a")
    assert txn.state == "ABORTED"
    assert values(client) == [b"in"]
    assert rows_of(connection) == []
    both(client, connection, "b")
    assert (values(client), rows_of(connection)) == ([b"in", b"b"], ["b"])


def test_abort_rolls_both_back(bench: Bench, connection: Any) -> None:
    txn = bench.client.transaction(database=connection)
    insert(connection, "a")
    bench.client.producer("t").send(b"a", txn=txn)
    txn.abort()
    with pytest.raises(InvalidTxnStatus):
        txn.commit()
    assert (values(bench.client), rows_of(connection)) == ([], [])


def test_acknowledgements_and_messages_before_a_flush(bench: Bench, connection: Any) -> None:
    client = bench.client
    send(client, b"in")
    with client.consumer("t", "s") as consumer:
        message = consumer.receive()
        assert message is not None
        with client.transaction(database=connection) as txn:
            client.producer("t").send(b"first", txn=txn)
            assert client.show_transaction(txn.id)["state"] == "open"
            client.producer("t").send(b"second", txn=txn)
            consumer.acknowledge(message, txn=txn)
            insert(connection, "in")
    assert values(client) == [b"in", b"first", b"second"]
    assert rows_of(connection) == ["in"]
    with client.consumer("t", "s") as consumer:
        assert sorted(consumer.receive_batch(9)["value"].to_pylist()) == [b"first", b"second"]


def test_a_block_without_messages_commits_the_database(bench: Bench, connection: Any) -> None:
    with bench.client.transaction(database=connection):
        insert(connection, "a")
    assert rows_of(connection) == ["a"]


def test_a_refused_message_rolls_both_back(bench: Bench, connection: Any) -> None:
    client = bench.client
    client.create_topic("gone")
    with pytest.raises(TopicNotFound), client.transaction(database=connection) as txn:
        insert(connection, "a")
        client.producer("gone").send(b"a", txn=txn)
        client.admin.delete_topic("gone")
    assert rows_of(connection) == []
    assert client.transactions() == []


def test_a_time_out_in_the_block_rolls_both_back(bench: Bench, connection: Any) -> None:
    with (
        pytest.raises(TransactionTimedOut),
        bench.client.transaction(1000, database=connection) as txn,
    ):
        insert(connection, "a")
        txn.flush()
        assert str(txn.id)
        bench.clock.advance(2000)
    assert rows_of(connection) == []


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_block_that_ends_its_transaction_is_refused(
    bench: Bench, kind: Kind, connection: Any, ends: str
) -> None:
    with (
        pytest.raises((InvalidTxnStatus, kind.error), match=r"by itself|no transaction|aborted"),
        bench.client.transaction(database=connection) as txn,
    ):
        insert(connection, "a")
        getattr(connection, ends)()
        bench.client.producer("t").send(b"a", txn=txn)
        if kind.name != "duckdb" and not kind.is_autocommit:  # else it commits at once
            insert(connection, "b")
    assert values(bench.client) == []
    assert rows_of(connection) == (["a"] if ends == "commit" else [])


# --- connections -----------------------------------------------------------------------------


def test_an_earlier_block_does_not_end_a_later_one(bench: Bench, connection: Any) -> None:
    """Kills: a savepoint that all blocks of a connection share: a row without its message."""
    client = bench.client
    first = client.transaction(database=connection)
    connection.commit()  # it may not: the first block is over in the database
    with pytest.raises(InvalidTxnStatus), client.transaction(database=connection) as second:
        insert(connection, "second")
        client.producer("t").send(b"second", txn=second)
        with pytest.raises(InvalidTxnStatus):
            first.commit()
    assert (rows_of(connection), values(client)) == ([], [])


def test_what_is_no_connection_is_refused(bench: Bench) -> None:
    for wrong in ("orders.db", 5, object()):
        with pytest.raises(InvalidArgument, match="sqlite3, psycopg or duckdb"):
            bench.client.transaction(database=wrong)


def test_connections_whose_transactions_are_not_ours_are_refused(
    bench: Bench, tmp_path: Path
) -> None:
    path = tmp_path / "a.db"
    for connection, why in (
        (sqlite3.connect(":memory:"), "in memory"),
        (duckdb.connect(), "in memory"),
    ):
        with pytest.raises(InvalidArgument, match=why):
            bench.client.transaction(database=connection)
        connection.close()
    volatile = sqlite3.connect(path)
    volatile.execute("PRAGMA journal_mode = MEMORY")
    with pytest.raises(InvalidArgument, match="journal_mode memory"):
        bench.client.transaction(database=volatile)
    volatile.close()


def test_a_connection_in_a_transaction_is_refused(
    bench: Bench, kind: Kind, connection: Any
) -> None:
    if kind.is_autocommit or kind.name == "duckdb":
        connection.execute("BEGIN")
    insert(connection, "a")
    with pytest.raises(InvalidArgument, match="in a transaction"):
        bench.client.transaction(database=connection)
    connection.commit()
    assert rows_of(connection) == ["a"]


def test_a_block_that_the_driver_would_not_commit(bench: Bench, server: str) -> None:
    """PostgreSQL answers COMMIT of a failed transaction with a rollback, and without an error."""
    kind = Postgresql(server)
    with kind.connect() as connection:

        def fail(database: Any) -> None:
            with suppress(kind.error):
                connection.execute("SELECT * FROM nowhere")
            patch.undo()
            kinds.Postgresql.commit(database)

        with pytest.raises(InvalidTxnStatus, match="by itself"), commit_of_a_block(fail) as patch:
            both(bench.client, connection, "a")
        assert (rows_of(connection), values(bench.client)) == ([], [])


def test_settings_of_the_connection_stay(bench: Bench, tmp_path: Path) -> None:
    """A connection that may lose commits is durable inside the block, and as before behind it."""
    for mode, needed in (("WAL", 2), ("DELETE", 3)):
        connection = Sqlite(tmp_path, mode).connect()
        connection.row_factory = sqlite3.Row
        connection.text_factory = bytes
        connection.execute("PRAGMA synchronous = OFF")
        both(bench.client, connection, "a")
        with bench.client.transaction(database=connection):
            assert connection.execute("PRAGMA synchronous").fetchone()[0] == needed
        assert connection.execute("PRAGMA synchronous").fetchone()[0] == 0
        assert connection.row_factory is sqlite3.Row
        connection.close()


def test_postgresql_commits_durably(bench: Bench, server: str) -> None:
    kind = Postgresql(server)
    with kind.connect() as connection:
        connection.execute("SET synchronous_commit = off")
        connection.commit()
        seen: list[str] = []
        real = kinds.Postgresql.commit

        def commit(database: kinds.Postgresql) -> None:
            seen.append(database.run("SHOW synchronous_commit")[0][0])
            real(database)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kinds.Postgresql, "commit", commit)
            both(bench.client, connection, "a")
        assert seen[-1] == "on"
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("off",)


def test_a_block_that_changes_the_search_path_is_refused(bench: Bench, server: str) -> None:
    """The outcome would go into a schema that no resolver reads."""
    kind, other = Postgresql(server), Postgresql(server)
    with kind.connect() as connection, other.connect() as second:
        both(bench.client, connection, "a")
        both(bench.client, second, "b")
        with (
            pytest.raises(InvalidTxnStatus, match="another database"),
            bench.client.transaction(database=connection) as txn,
        ):
            insert(connection, "c")
            bench.client.producer("t").send(b"c", txn=txn)
            connection.execute(f"SET search_path = {other.schema}")
        assert values(bench.client) == [b"a", b"b"]
        assert (rows_of(connection), rows_of(second)) == (["a"], ["b"])


def test_commit_async_is_refused(bench: Bench, connection: Any) -> None:
    txn = bench.client.transaction(database=connection)
    with pytest.raises(NotAllowed):
        txn.commit_async()
    txn.abort()


def test_a_commit_by_id_inside_the_block_is_refused(bench: Bench, connection: Any) -> None:
    client = bench.client
    with client.transaction(database=connection) as txn:
        insert(connection, "a")
        client.producer("t").send(b"a", txn=txn)
        for commit in (client.commit, client.commit_async):
            with pytest.raises(NotAllowed, match="together with a database"):
                commit(txn.id)
    assert (rows_of(connection), values(client)) == (["a"], [b"a"])
    assert client.commit(txn.id)["already"]
    with pytest.raises(InvalidTxnStatus), client.transaction(database=connection) as txn:
        insert(connection, "b")
        client.producer("t").send(b"b", txn=txn)
        client.abort(txn.id)  # the end of the block rolls back the database, too
    assert (rows_of(connection), values(client)) == (["a"], [b"a"])


# --- other threads and processes --------------------------------------------------------------


@pytest.mark.parametrize("ends", ["commit", "abort"])
def test_the_end_in_another_thread_is_refused_or_of_both(
    bench: Bench, kind: Kind, connection: Any, ends: str
) -> None:
    txn = bench.client.transaction(database=connection)
    insert(connection, "a")
    bench.client.producer("t").send(b"a", txn=txn)
    in_block, errors = KeyError("in the block"), []

    def work() -> None:
        try:
            if kind.name == "sqlite":
                txn.__exit__(KeyError, in_block, None)
            getattr(txn, ends)()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if kind.name == "sqlite":
        (refused,) = errors
        assert isinstance(refused, NotAllowed)
        assert "only the thread that made" in in_block.__notes__[0]
        assert txn.state == "OPEN"
        txn.commit()
    else:
        assert not errors
    left = ["a"] if kind.name == "sqlite" or ends == "commit" else []
    assert rows_of(connection) == left
    assert values(bench.client) == [row.encode() for row in left]


def test_a_connection_of_another_thread_is_refused(bench: Bench, tmp_path: Path) -> None:
    connections: list[sqlite3.Connection] = []
    kind = Sqlite(tmp_path)
    thread = threading.Thread(target=lambda: connections.append(kind.connect()))
    thread.start()
    thread.join()
    with pytest.raises(NotAllowed, match="only the thread that made"):
        bench.client.transaction(database=connections[0])


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_leaves_the_connection_alone(bench: Bench, connection: Any) -> None:
    client = bench.client
    database = type(kinds.database_of(connection))
    with client.transaction(database=connection) as txn:
        insert(connection, "a")
        client.producer("t").send(b"a", txn=txn)
        child = os.fork()
        if not child:
            refused = 0
            try:
                signal.alarm(60)
                for name in ("__init__", "check_thread", "cursor", "commit", "rollback"):
                    setattr(database, name, lambda *args: os._exit(99))
                error = KeyError("in the block")
                txn.__exit__(KeyError, error, None)
                refused += "child" in error.__notes__[0]
                for call in (
                    txn.commit,
                    txn.abort,
                    lambda: txn.__exit__(None, None, None),
                    lambda: client.transaction(database=connection),
                    lambda: client.resolve_prepared(database=connection),
                ):
                    try:
                        call()
                    except AlreadyClosed:
                        refused += 1
            finally:
                os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6
    assert (rows_of(connection), values(client)) == (["a"], [b"a"])


# --- who finds one prepared ------------------------------------------------------------------


@pytest.mark.parametrize("committed", [True, False])
def test_the_next_block_resolves_what_was_left(
    bench: Bench, connection: Any, *, committed: bool
) -> None:
    txn = prepared_only(bench.client, connection, "a")
    connection.commit() if committed else connection.rollback()
    client = bench.reopen()
    both(client, connection, "b")
    assert client.show_transaction(txn)["state"] == ("committed" if committed else "aborted")
    left = ["a"] if committed else []
    assert rows_of(connection) == [*left, "b"]
    assert values(client) == [*(value.encode() for value in left), b"b"]
    both(client, connection, "c")
    assert [row for row in outcomes_of(connection) if row == "commit"] == ["commit"]


@pytest.mark.parametrize("asks", [True, False])
def test_a_frame_that_its_process_did_not_flush_is_found(
    bench: Bench, kind: Kind, *, asks: bool
) -> None:
    """The process died between the append and the flush of the prepared transaction."""
    if (child := os.fork()) == 0:
        disk = FaultyDisk(PosixDisk(bench.path))
        client, connection = client_on(disk, bench.clock), kind.connect()
        both(client, connection, "a")
        disk.before("datasync", lambda: os._exit(7), "journal/*")
        both(client, connection, "b")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    with kind.connect() as connection:
        if asks:
            (row,) = bench.client.resolve_prepared(database=connection)
            assert row["state"] == "aborted"
        else:
            both(bench.client, connection, "c")
        assert bench.client.transactions() == []
        assert rows_of(connection) == (["a"] if asks else ["a", "c"])


@pytest.mark.parametrize("committed", [True, False])
def test_resolve_asks_the_database(
    bench: Bench, kind: Kind, connection: Any, *, committed: bool
) -> None:
    txn = prepared_only(bench.client, connection, "a")
    connection.commit() if committed else connection.rollback()
    client = bench.reopen()
    (row,) = client.resolve_prepared(database=connection)
    assert (row["txn"], row["state"]) == (txn, "committed" if committed else "aborted")
    assert client.resolve_prepared(database=connection) == []
    is_kept = not committed and kind.name == "duckdb"  # its fence does not wait
    assert outcomes_of(connection) == ["abort"] * is_kept
    assert values(client) == ([b"a"] if committed else [])


def test_an_owner_that_hangs_is_not_overtaken(bench: Bench, kind: Kind) -> None:
    """The owner hangs before its commit; a resolver meanwhile never gets another answer."""
    owner, other = kind.connect(), kind.connect()
    txn = prepared_only(bench.client, owner, "a", kills=False)
    client = bench.client
    (row,) = client.resolve_prepared(database=other)
    assert row["state"] == "prepared"
    owner.commit()
    together._ENDING.clear()
    assert client.resolve(txn, database=other)["state"] == "committed"
    assert (rows_of(other), values(client)) == (["a"], [b"a"])
    owner.close()
    other.close()


def test_the_fence_keeps_a_late_commit_out(bench: Bench, kind: Kind) -> None:
    """The owner is another process, and hangs with its transaction of the database open."""
    owner, other = kind.connect(), kind.connect()
    txn = prepared_only(bench.client, owner, "a")
    client = bench.reopen()
    (row,) = client.resolve_prepared(database=other)
    if kind.name == "duckdb":  # the first of two commits wins
        assert row["state"] == "aborted"
        with pytest.raises(duckdb.TransactionException):
            owner.commit()
        assert (rows_of(other), values(client)) == ([], [])
    else:  # the fence waits for the other transaction, and then gives up
        assert row["state"] == "prepared"
        owner.commit()
        assert client.resolve(txn, database=other)["state"] == "committed"
        assert (rows_of(other), values(client)) == (["a"], [b"a"])
    owner.close()
    other.close()


def test_threads_of_one_process_do_not_abort_each_other(bench: Bench, kind: Kind) -> None:
    client, rounds = bench.client, 8
    faults: list[BaseException] = []

    def work(name: str) -> None:
        connection = kind.connect() if shared is None else shared.cursor()
        try:
            for number in range(rounds):
                while True:
                    try:
                        both(client, connection, f"{name}{number}")
                        break
                    except (sqlite3.OperationalError, duckdb.Error):  # a lock, or a conflict
                        continue
        except BaseException as error:
            faults.append(error)
        finally:
            connection.close()

    shared = kind.connect() if kind.name == "duckdb" else None
    ours: Any = shared or kind.connect()
    both(client, ours, "first")
    threads = [threading.Thread(target=work, args=(name,)) for name in "xyz"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    stored = sorted(value.decode() for value in values(client))
    assert stored == rows_of(ours)
    assert len(stored) == 3 * rounds + 1
    ours.close()


def test_two_blocks_that_delete_the_same_rows_do_not_deadlock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two clients may both find a transaction ended. PostgreSQL locks each row until the end."""
    database = kinds.database_of(sqlite3.connect(tmp_path / "rows"))
    deleted: list[object] = []
    monkeypatch.setattr(database, "run", lambda _, token: deleted.append(token))
    database.delete(["b", "c", "a", "b"])
    assert deleted == ["a", "b", "c"]


def test_a_key_of_a_restarted_program(bench: Bench, connection: Any) -> None:
    client = bench.client
    txn = prepared_only(client, connection, "a", key="etl")
    connection.commit()
    with pytest.raises(InvalidTxnStatus, match="prepared"):
        client.begin(key="etl")
    both(client, connection, "b", key="etl")
    assert client.show_transaction(txn)["state"] == "committed"
    assert values(client) == [b"a", b"b"]


def test_another_database_neither_resolves_nor_takes_the_key(
    bench: Bench, connection: Any, tmp_path: Path
) -> None:
    client = bench.client
    txn = prepared_only(client, connection, "a", key="etl")
    connection.commit()
    other = Sqlite(tmp_path).connect()
    with pytest.raises(InvalidArgument, match="no outcomes"):
        client.resolve_prepared(database=other)
    with pytest.raises(InvalidTxnStatus, match="prepared"):
        both(client, other, "b", key="etl")
    both(client, other, "c")
    assert client.resolve_prepared(database=other) == []
    with pytest.raises(InvalidArgument, match="decides transaction"):
        client.resolve(txn, database=other)
    assert client.show_transaction(txn)["state"] == "prepared"
    assert client.resolve(txn, database=connection)["state"] == "committed"
    other.close()


def test_the_answer_of_a_person(bench: Bench, connection: Any) -> None:
    client = bench.client
    txn = prepared_only(client, connection, "a")
    connection.rollback()
    for wrong in ({}, {"commit": True, "database": connection}):
        with pytest.raises(InvalidArgument):
            client.resolve(txn, **wrong)
    assert client.resolve(txn, commit=False)["state"] == "aborted"
    assert client.resolve(txn, commit=False)["already"]
    with pytest.raises(InvalidTxnStatus):
        client.resolve(txn, commit=True)
    both(client, connection, "b")
    assert values(client) == [b"b"]


def test_outcomes_that_a_crash_left_are_deleted_after_an_hour(
    bench: Bench, connection: Any
) -> None:
    both(bench.client, connection, "a")  # its client never comes back to delete the row
    hour_ms = 3_600_000
    bench.clock.advance(hour_ms - 1)
    both(bench.reopen(), connection, "b")
    assert outcomes_of(connection) == ["commit", "commit"]
    txn = prepared_only(bench.client, connection, "c")
    connection.commit()
    bench.clock.advance(2 * hour_ms)
    client = bench.reopen()
    both(client, connection, "d")  # the row of a prepared one is asked, not deleted
    assert client.show_transaction(txn)["state"] == "committed"
    both(client, connection, "e")
    assert outcomes_of(connection) == ["commit"]


# --- power cuts ------------------------------------------------------------------------------


def values_after_power_cuts(disk: MemoryDisk, connection: Any, folder: Path) -> set[bytes]:
    """The values that the log has after a resolve, over all images of a power cut, joined."""
    seen = set()
    for image in disk.images(random.Random(1), 16):
        database = sqlite3.connect(Sqlite(folder).path)
        connection.backup(database)  # an answer changes the rows
        clock = ManualClock(START_MS)
        clock.reboot("another boot")
        client = client_on(image, clock)
        client.resolve_prepared(database=database)
        seen.add(b" ".join(values(client)))
        database.close()
    return seen


@pytest.mark.parametrize("durability", ["sync", "os"])
def test_a_power_cut_leaves_both(tmp_path: Path, durability: str) -> None:
    """The block makes the connection commit durably, despite its settings, and the log as well."""
    clock = ManualClock(START_MS)
    disk, connection = MemoryDisk(), Sqlite(tmp_path).connect()
    make_store(disk, Settings(durability=durability), clock)
    client = client_on(disk, clock)
    client.create_topic("t")
    client.checkpoint()
    both(client, connection, "a")
    assert values_after_power_cuts(disk, connection, tmp_path) == {b"a"}
    both(client, connection, "b")  # deletes the outcome of the first
    assert values_after_power_cuts(disk, connection, tmp_path) == {b"a b"}
    seen: list[set[bytes]] = []

    def look(database: Any) -> None:
        database.connection.commit()
        together._ENDING.clear()  # the power cut ends this process, too
        seen.append(values_after_power_cuts(disk, database.connection, tmp_path))

    with commit_of_a_block(look):
        both(client, connection, "c")
    assert seen == [{b"a b c"}]
    connection.close()


# --- errors ----------------------------------------------------------------------------------


def test_a_failed_commit_of_the_database_aborts_both(bench: Bench, server: str) -> None:
    kind = Postgresql(server)
    with kind.connect() as connection:
        connection.execute(
            "CREATE TABLE item (id INT PRIMARY KEY, of INT REFERENCES item "
            "DEFERRABLE INITIALLY DEFERRED)"
        )
        connection.commit()
        with (
            pytest.raises(databases.psycopg.errors.ForeignKeyViolation),
            bench.client.transaction(database=connection) as txn,
        ):
            connection.execute("INSERT INTO item VALUES (1, 2)")
            bench.client.producer("t").send(b"a", txn=txn)
        assert txn.state == "ABORTED"
        assert bench.client.show_transaction(txn.id)["state"] == "aborted"
        both(bench.client, connection, "b")
        assert values(bench.client) == [b"b"]


def test_a_lost_connection_leaves_the_question_open(bench: Bench, server: str) -> None:
    kind = Postgresql(server)
    connection, other = kind.connect(), kind.connect()
    client = bench.client

    def lose(database: Any) -> None:
        connection.close()
        raise databases.psycopg.OperationalError("the connection is lost")

    with pytest.raises(OutcomeUnknown, match="prepared"), commit_of_a_block(lose):
        both(client, connection, "a")
    (row,) = client.resolve_prepared(database=other)
    assert row["state"] == "aborted"
    assert rows_of(other) == []
    other.close()


def test_a_failed_commit_of_the_log_follows_later(
    bench: Bench, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = end.resolve

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise DiskFailed("the disk fails")

    monkeypatch.setattr("txlog.engine.door.transactions.resolve", fail)
    with pytest.raises(OutcomeUnknown, match="has committed"):
        both(bench.client, connection, "a")
    monkeypatch.setattr("txlog.engine.door.transactions.resolve", real)
    assert values(bench.client) == []
    both(bench.client, connection, "b")
    assert values(bench.client) == [b"a", b"b"]


def test_an_interrupt_between_any_two_steps(bench: Bench, connection: Any) -> None:
    """Whichever call of the protocol it comes before or behind, both sides say the same."""
    client = bench.client
    both(client, connection, "first")
    for at in range(60):
        calls = 0
        database_type = type(kinds.database_of(connection))
        with pytest.MonkeyPatch.context() as patch:
            real = database_type.run

            def run(
                database: Any, statement: str, *values: object, at: int = at, real: Any = real
            ) -> Any:
                nonlocal calls
                calls += 1
                if calls == at + 1:
                    raise KeyboardInterrupt
                return real(database, statement, *values)

            patch.setattr(database_type, "run", run)
            try:
                both(client, connection, f"n{at:03}")
                is_done = calls <= at
            except KeyboardInterrupt:
                is_done = False
        client.resolve_prepared(database=connection)
        if isinstance(connection, sqlite3.Connection):
            connection.rollback()
        stored = sorted(value.decode() for value in values(client))
        assert stored == rows_of(connection), at
        if is_done:
            break
    assert at >= 5


def test_any_error_is_of_txlog_or_of_the_driver(bench: Bench, kind: Kind, connection: Any) -> None:
    with pytest.raises(kind.error), bench.client.transaction(database=connection) as txn:
        bench.client.producer("t").send(b"a", txn=txn)
        connection.execute("SELECT * FROM nowhere")
    assert not issubclass(kind.error, TxlogError)
    both(bench.client, connection, "b")
    assert values(bench.client) == [b"b"]


def test_a_connection_that_the_block_closed(bench: Bench, kind: Kind) -> None:
    connection = kind.connect()
    with pytest.raises(Exception) as caught, bench.client.transaction(database=connection) as txn:
        insert(connection, "a")
        bench.client.producer("t").send(b"a", txn=txn)
        connection.close()
    assert "closed" in str(caught.value).lower()
    assert txn.state == "ABORTED"
    assert (values(bench.client), kind.rows()) == ([], [])


def test_a_failed_rollback_of_a_living_connection_aborts_nothing(
    bench: Bench, kind: Kind, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the driver raises, only a closed connection has rolled back by itself."""
    driver: Any = {"sqlite": sqlite3, "duckdb": duckdb, "postgresql": databases.psycopg}[kind.name]
    names = ["ProgrammingError", "OperationalError", "InterfaceError", "ConnectionException"]
    errors = [getattr(driver, name) for name in names if hasattr(driver, name)]
    database = type(kinds.database_of(connection))
    txn = bench.client.transaction(database=connection)
    insert(connection, "a")
    bench.client.producer("t").send(b"a", txn=txn)
    txn.flush()
    for error in errors:

        def fail(database: Any, error: type[Exception] = error) -> None:
            raise error("the rollback failed")

        with monkeypatch.context() as patch, pytest.raises(error, match="the rollback failed"):
            patch.setattr(database, "rollback", fail)
            txn.abort()
        assert bench.client.show_transaction(txn.id)["state"] == "open"
    assert txn.abort().status == "ABORTED"
    assert (values(bench.client), rows_of(connection)) == ([], [])

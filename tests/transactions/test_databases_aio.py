"""Transactions of `txlog.aio` that commit together with a database; spec/transactions 5.3."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import pytest

import txlog.aio
from tests import databases
from tests.aio.test_cancelled import Cancelled
from tests.databases import Duckdb, Kind, Postgresql, Sqlite, insert
from tests.engine_kit import Bench, values
from txlog.errors import InvalidArgument, InvalidTxnStatus, NotAllowed

pytestmark = [pytest.mark.usefixtures("quick_disk"), pytest.mark.store({"t": 2}, [("t", "s")])]


@pytest.fixture(params=["sqlite", "duckdb", "postgresql", "postgresql async"])
def aio_kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    made: Kind
    if request.param.startswith("postgresql"):
        made = Postgresql(request.getfixturevalue("server"))
        made.is_async = request.param.endswith("async")
    else:
        made = Duckdb(tmp_path) if request.param == "duckdb" else Sqlite(tmp_path)
        made.has_threads = True
    return made


async def opened(kind: Kind) -> Any:
    if not kind.is_async:
        return kind.connect()
    return await databases.psycopg.AsyncConnection.connect(kind.url())


async def awaited(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


async def both_async(
    client: txlog.aio.Client, connection: Any, value: str, *, fails: bool = False
) -> None:
    async with client.producer("t") as producer, client.transaction(database=connection) as txn:
        await awaited(connection.execute(f"INSERT INTO orders VALUES ('{value}')"))
        await producer.send(value, txn=txn)
        if fails:
            raise KeyError(value)


def test_coroutines_commit_both(bench: Bench, aio_kind: Kind) -> None:
    async def main() -> None:
        connection = await opened(aio_kind)
        async with txlog.aio.open(bench.path) as client:
            await both_async(client, connection, "a")
            with pytest.raises(KeyError):
                await both_async(client, connection, "b", fails=True)
            txn = await client.transaction(database=connection)
            await awaited(connection.execute("INSERT INTO orders VALUES ('c')"))
            assert (await txn.commit()).status == "COMMITTED"
            with pytest.raises(InvalidTxnStatus):
                await txn.commit()
            txn = await client.transaction(database=connection)
            await awaited(connection.execute("INSERT INTO orders VALUES ('d')"))
            assert (await txn.abort()).status == "ABORTED"
            assert await client.resolve_prepared(database=connection) == []
        await awaited(connection.close())

    asyncio.run(main())
    assert (aio_kind.rows(), values(bench.client)) == (["a", "c"], [b"a"])


@pytest.mark.parametrize("late", [True, False])
def test_a_cancellation_at_every_await_leaves_both_or_neither(
    bench: Bench, aio_kind: Kind, *, late: bool
) -> None:
    """Afterwards the connection is in no transaction, and is used again at once."""
    seen = set()

    async def main() -> None:
        connection = await opened(aio_kind)
        async with txlog.aio.open(bench.path) as client:
            for at in count(1):
                steps = Cancelled(both_async(client, connection, f"n{at:03}"), at, late=late)

                async def whole(steps: Cancelled = steps) -> None:
                    await steps

                with suppress(asyncio.CancelledError):
                    await asyncio.create_task(whole())
                await both_async(client, connection, f"z{at:03}")
                cursor = await awaited(connection.execute("SELECT value FROM orders"))
                rows = sorted(row[0] for row in await awaited(cursor.fetchall()))
                if not isinstance(connection, duckdb.DuckDBPyConnection):
                    await awaited(connection.rollback())
                assert rows == sorted(value.decode() for value in values(bench.client)), at
                seen.add(f"n{at:03}" in rows)
                if steps.awaits < at:
                    break
        await awaited(connection.close())

    asyncio.run(main())
    assert seen == {True, False}
    assert bench.client.transactions() == []


def test_tasks_that_wait_for_each_other_in_the_database(bench: Bench, tmp_path: Path) -> None:
    """Kills: one thread for all: the end of one block waits for a lock that another one holds."""
    kind = Sqlite(tmp_path)
    kind.has_threads = True

    async def main() -> None:
        first, second = kind.connect(), kind.connect()
        second.execute("PRAGMA busy_timeout = 60000")
        async with txlog.aio.open(bench.path) as client:
            holder = await client.transaction(database=first)
            insert(first, "a")
            waiter = await client.transaction(database=second)
            ending = asyncio.create_task(waiter.commit())  # it writes its row in the database
            await asyncio.sleep(0)
            await holder.commit()
            await ending
        first.close()
        second.close()

    asyncio.run(asyncio.wait_for(main(), 30))
    assert kind.rows() == ["a"]


def test_a_connection_that_no_other_thread_may_use(bench: Bench, tmp_path: Path) -> None:
    connection = Sqlite(tmp_path).connect()

    async def main() -> None:
        async with txlog.aio.open(bench.path) as client:
            with pytest.raises(NotAllowed) as caught:
                await client.transaction(database=connection)
            assert "check_same_thread=False" in str(caught.value.hint)

    asyncio.run(main())
    connection.close()


def test_an_asynchronous_connection_without_coroutines(bench: Bench, server: str) -> None:
    async def main() -> None:
        connection = await databases.psycopg.AsyncConnection.connect(server)
        with pytest.raises(InvalidArgument) as caught:
            bench.client.transaction(database=connection)
        assert "txlog.aio" in str(caught.value.hint)
        await connection.close()

    asyncio.run(main())

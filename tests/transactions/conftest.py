"""Clients of several users in one process, and a server of PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import databases
from tests.transactions.users import Users
from txlog.engine.storage.disk.posix import PosixDisk


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> Users:
    new_users = Users()
    monkeypatch.setattr(PosixDisk, "owner", lambda disk: new_users.owner(disk))
    return new_users


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    if not databases.has_postgresql():
        pytest.skip("there is no psycopg or no server of PostgreSQL here")
    with databases.postgresql_server() as address:
        yield address

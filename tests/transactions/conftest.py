"""Clients of several users in one process."""

from __future__ import annotations

import pytest

from tests.transactions.users import Users
from txlog.engine.storage.disk.posix import PosixDisk


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> Users:
    new_users = Users()
    monkeypatch.setattr(PosixDisk, "owner", lambda disk: new_users.owner(disk))
    return new_users

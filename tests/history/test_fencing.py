"""Histories of transaction keys in which a fenced holder goes on."""

from __future__ import annotations

import pytest

from tests.history.checker import check
from tests.history.notation import history

BROKEN = {
    "its abort": """
        connect_key key=k -> epoch=0
        begin key=k epoch=0 -> A
        p2/connect_key key=k -> epoch=1 fenced=A
        abort txn=A""",
    "its connection": """
        connect_key key=k -> epoch=0
        p2/connect_key key=k -> epoch=1
        connect_key key=k presented=0 -> epoch=2""",
    "after the key was deleted": """
        connect_key key=k -> epoch=0
        p2/delete_key key=k
        connect_key key=k presented=0 -> epoch=1""",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_fenced_holder_that_goes_on_is_found(name: str) -> None:
    assert [finding.name for finding in check(history(BROKEN[name]))] == ["fenced-holder"]


def test_a_holder_may_connect_again_with_its_own_epoch() -> None:
    text = "connect_key key=k -> epoch=0\nconnect_key key=k presented=0 -> epoch=1"
    assert check(history(text)) == []

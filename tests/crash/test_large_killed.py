"""A process killed by SIGKILL during a send of a large message leaves all of it or nothing.

The child dies in its nth call that changes a file. For every n, the message is readable in full or
absent, a sweep leaves no byte of it behind, and an answered message exists.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

import txlog
from tests.engine_kit import values
from tests.harness import kill_in_calls, ready
from tests.tiers import graded

pytestmark = pytest.mark.usefixtures("quick_disk")
KILLS = int(os.environ.get("TXLOG_KILLS", "10"))
VALUE = random.Random(5).randbytes(300_000)


def made(folder: Path) -> Path:
    txlog.init(str(folder), max_message_bytes=50_000)
    with txlog.open(str(folder)) as client:
        client.create_topic("t")
    return folder


@pytest.mark.parametrize("kind", graded(["txn", "plain"], 1))
def test_a_sender_that_is_killed_anywhere(tmp_path: Path, kind: str) -> None:
    """Some of the calls, chosen by the seed; the first and the last are among them."""

    def prepare(name: str) -> list[str]:
        return ready("large", made(tmp_path / name), kind)

    ends = set()
    for name, where in kill_in_calls(prepare, KILLS, 15, kind):
        store = tmp_path / name
        with txlog.open(str(store)) as client:
            for txn in client.transactions():
                client.abort(txn["txn"])
            stored = values(client)
            assert stored in ([], [VALUE]), where
            ends.add(len(stored))
            client.checkpoint(roll_all=True)
            client.admin.compact("t")
            client.admin.gc(apply=True, keep_ms=0)
            assert values(client) == stored, where
            client.producer("t", chunking=True).send(VALUE)
            assert values(client) == [*stored, VALUE], where
        large_files = [
            path for path in store.glob("topics/**/*") if path.stat().st_size >= len(VALUE)
        ]
        assert len(large_files) == len(stored) + 1, where
        assert not [*store.glob("topics/**/.tmp*")], where
    assert 0 in ends

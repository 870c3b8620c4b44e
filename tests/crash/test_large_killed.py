"""A process killed by SIGKILL during a send of a large message leaves all of it or nothing.

The child dies in its nth call that changes a file. For every n, the message is readable in full or
absent, a sweep leaves no byte of it behind, and an answered message exists.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
from pathlib import Path

import pytest

import txlog
from scripts import ready
from tests.crash.killing import DYING
from tests.engine_kit import values

pytestmark = pytest.mark.usefixtures("quick_disk")
SEED = int(os.environ.get("TXLOG_SEED", "20260101"))
KILLS = int(os.environ.get("TXLOG_KILLS", "10"))
VALUE = random.Random(5).randbytes(300_000)
CHILD = (
    DYING
    + """
import random, sys
path, nth, in_txn = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "txn"
import txlog
client = txlog.open(path)
value = random.Random(5).randbytes(300_000)
producer = client.producer("t", chunking=True)
left = nth
if in_txn:
    with client.transaction() as txn:
        producer.send([value[at : at + 7000] for at in range(0, len(value), 7000)], txn=txn)
else:
    producer.send([value])
left, calls = 0, nth - left
os.write(1, b"answered %d" % calls)
client.close()
"""
)


def run_child(store: Path, nth: int, kind: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*ready.python(), "-c", CHILD, str(store), str(nth), kind], capture_output=True, check=False
    )


def made(folder: Path) -> Path:
    txlog.init(str(folder), max_message_bytes=50_000)
    with txlog.open(str(folder)) as client:
        client.create_topic("t")
    return folder


@pytest.mark.parametrize("kind", ["plain", "txn"])
def test_a_sender_that_is_killed_anywhere(tmp_path: Path, kind: str) -> None:
    """Some of the calls, chosen by the seed; the first and the last are among them."""
    whole = run_child(made(tmp_path / "whole"), 1 << 30, kind)
    assert whole.stdout.startswith(b"answered"), whole.stderr
    calls = int(whole.stdout.split()[1])
    assert calls > 15
    chance = random.Random(f"{SEED} {kind}")
    chosen = {1, calls, *chance.sample(range(1, calls), min(KILLS - 2, calls - 1))}
    ends = set()
    for nth in sorted(chosen):
        store = made(tmp_path / str(nth))
        died = run_child(store, nth, kind)
        where = f"seed {SEED}, {kind}, call {nth} of {calls}"
        assert died.returncode == -signal.SIGKILL, where
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

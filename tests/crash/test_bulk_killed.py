"""A driver killed by SIGKILL during a commit of a batch stores all of it or nothing, once at most.

The child dies in its nth call that changes a file. For every n, the batch is stored as a whole or
not at all. A driver that repeats an absent batch stores it. A checkpoint leaves no file behind.
"""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

import txlog
from scripts import ready
from tests.crash.killing import DYING
from tests.engine_kit import values
from txlog import Client
from txlog.engine.plan.staging import Staged, StagePlan

pytestmark = pytest.mark.usefixtures("quick_disk")
SEED = int(os.environ.get("TXLOG_SEED", "20260101"))
KILLS = int(os.environ.get("TXLOG_KILLS", "12"))
ROWS = [b"a", b"b", b"c", b"d"]
CHILD = (
    DYING
    + """
import pickle, sys
path, nth = sys.argv[1], int(sys.argv[2])
import txlog
client = txlog.open(path)
client.checkpoint_automatically = False
with open(sys.argv[3], "rb") as file:
    plan, staged = pickle.load(file)
bulk = client.bulk_of(plan)
left = nth
answer = bulk.commit(staged)
left, calls = 0, nth - left
os.write(1, b"answered %d %d" % (calls, answer["messages"]))
"""
)
COMMIT = """
import pickle, sys
import txlog
with open(sys.argv[2], "rb") as file:
    plan, staged = pickle.load(file)
with txlog.open(sys.argv[1]) as client:
    answer = client.bulk_of(plan).commit(staged)
print(answer["already"], answer["messages"])
"""


def staged(client: Client, task: int = 0) -> tuple[StagePlan, list[Staged]]:
    """A batch of two partitions that waits for its commit."""
    bulk = client.bulk("t", key="k", batch=1)
    table = pa.table({"value": ROWS, "partition": [0, 0, 1, 1]})
    return bulk.plan, bulk.stage([table], task)


def made(folder: Path) -> Path:
    """A store with a message and a staged batch; the file `.staged` next to it has the batch."""
    txlog.init(str(folder), reader_grace_ms=0)
    with txlog.open(str(folder)) as client:
        client.create_topic("t", partitions=2)
        client.producer("t").send(b"x", partition=0)
        folder.with_suffix(".staged").write_bytes(pickle.dumps(staged(client)))
    return folder


def run_child(store: Path, nth: int) -> subprocess.CompletedProcess[bytes]:
    command = [
        *ready.python(),
        "-c",
        CHILD,
        str(store),
        str(nth),
        str(store.with_suffix(".staged")),
    ]
    return subprocess.run(command, capture_output=True, check=False)


def check_killed(store: Path, nth: int, where: str) -> int:
    """Kill a commit in its nth call; returns how many rows of it a reader gets."""
    died = run_child(store, nth)
    assert died.returncode == -signal.SIGKILL, (where, died.stderr)
    with txlog.open(str(store), read_only=True) as reader:
        seen = values(reader)
        assert seen in ([b"x"], [b"x", *ROWS]), where
    with txlog.open(str(store)) as client:
        stored = sorted(values(client))
        assert stored in ([b"x"], sorted([b"x", *ROWS])), where
        assert len(seen) <= len(stored), where
        client.producer("t").send(b"y", partition=1)
        client.checkpoint()
        sealed = [*store.glob("topics/**/ledger-*.parquet")]  # among them the ledger of x
        assert len(sealed) == (0 if len(stored) == 1 else 3), where
        plan, files = staged(client, task=1)
        answer = client.bulk_of(plan).commit(files)
        assert answer["already"] == (len(stored) > 1), where
        assert answer["messages"] == len(ROWS), where
        assert sorted(values(client)) == sorted([b"x", b"y", *ROWS]), where
        assert [txn["state"] for txn in client.transactions(all=True)] == ["committed"], where
    assert not [*store.glob("topics/**/.tmp*")], where
    return len(stored) - 1


def test_a_driver_that_is_killed_anywhere(tmp_path: Path) -> None:
    """Some of the calls, chosen by the seed; the first and the last are among them."""
    whole = run_child(made(tmp_path / "whole"), 1 << 30)
    assert whole.stdout.startswith(b"answered"), whole.stderr
    calls = int(whole.stdout.split()[1])
    assert calls > 20
    chance = random.Random(SEED)
    chosen = {1, calls, *chance.sample(range(1, calls), min(KILLS - 2, calls - 1))}
    ends = {
        check_killed(made(tmp_path / str(nth)), nth, f"seed {SEED}, call {nth} of {calls}")
        for nth in sorted(chosen)
    }
    assert ends == {0, len(ROWS)}


@pytest.mark.slow
def test_a_driver_that_is_killed_everywhere(tmp_path: Path) -> None:
    """Every call."""
    calls = int(run_child(made(tmp_path / "whole"), 1 << 30).stdout.split()[1])
    for nth in range(1, calls + 1):
        check_killed(made(tmp_path / str(nth)), nth, f"call {nth} of {calls}")


def test_two_drivers_with_one_key(tmp_path: Path) -> None:
    """Both staged the batch and commit it at once: one stores it, the other gets the same
    answer.
    """
    store = made(tmp_path / "store")
    with txlog.open(str(store)) as client:
        (tmp_path / "other").write_bytes(pickle.dumps(staged(client)))
    runs = [
        subprocess.Popen(
            [*ready.python(), "-c", COMMIT, str(store), str(path)], stdout=subprocess.PIPE
        )
        for path in (store.with_suffix(".staged"), tmp_path / "other")
    ]
    outputs = sorted(run.communicate()[0].decode().strip() for run in runs)
    assert [run.returncode for run in runs] == [0, 0]
    assert outputs == ["False 4", "True 4"]
    with txlog.open(str(store)) as client:
        assert sorted(values(client)) == sorted([b"x", *ROWS])
    assert not [*store.glob("topics/**/_stage/*")]

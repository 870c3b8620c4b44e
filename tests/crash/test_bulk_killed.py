"""A driver killed by SIGKILL during a commit of a batch stores all of it or nothing, once at most.

The child dies in its nth call that changes a file. For every n, the batch is stored as a whole or
not at all. A driver that repeats an absent batch stores it. No temporary file stays behind.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pyarrow as pa
import pytest

import txlog
from tests.engine_kit import values
from tests.harness import NEVER, Child, kill_in_calls, ready
from txlog import Client
from txlog.engine.plan.staging import Staged, StagePlan

pytestmark = pytest.mark.usefixtures("quick_disk")
KILLS = int(os.environ.get("TXLOG_KILLS", "12"))
ROWS = [b"a", b"b", b"c", b"d"]


def staged(client: Client, task: int = 0) -> tuple[StagePlan, list[Staged]]:
    """(plan, staged files) of a batch for two partitions, before its commit."""
    bulk = client.bulk("t", key="k", batch=1)
    table = pa.table({"value": ROWS, "partition": [0, 0, 1, 1]})
    return bulk.plan, bulk.stage([table], task)


def made(folder: Path) -> Path:
    """Make a store with a message; the file FOLDER.staged has a batch to commit, pickled."""
    txlog.init(str(folder), reader_grace_ms=0)
    with txlog.open(str(folder)) as client:
        client.create_topic("t", partitions=2)
        client.producer("t").send(b"x", partition=0)
        folder.with_suffix(".staged").write_bytes(pickle.dumps(staged(client)))
    return folder


def check_killed(store: Path, where: str) -> int:
    """Check the store after a killed commit; returns the batch's rows that were stored."""
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


def ends_of(folder: Path, kills: int) -> set[int]:
    """The numbers of stored rows after kills in about `kills` different calls of a commit."""

    def prepare(name: str) -> list[str]:
        store = made(folder / name)
        return ready("bulk_commit", store, store.with_suffix(".staged"))

    return {check_killed(folder / name, where) for name, where in kill_in_calls(prepare, kills, 20)}


def test_a_driver_that_is_killed_anywhere(tmp_path: Path) -> None:
    """Some of the calls, chosen by the seed; the first and the last are among them."""
    assert ends_of(tmp_path, KILLS) == {0, len(ROWS)}


@pytest.mark.slow
def test_a_driver_that_is_killed_everywhere(tmp_path: Path) -> None:
    """Every call."""
    assert ends_of(tmp_path, NEVER) == {0, len(ROWS)}


def test_two_drivers_with_one_key(tmp_path: Path) -> None:
    """Both staged the batch and commit it at once: one stores it, the other gets the same
    answer.
    """
    store = made(tmp_path / "store")
    with txlog.open(str(store)) as client:
        (tmp_path / "other").write_bytes(pickle.dumps(staged(client)))
    batches = (store.with_suffix(".staged"), tmp_path / "other")
    commands = [ready("bulk_commit", store, batch, NEVER) for batch in batches]
    with Child(commands[0]) as first, Child(commands[1]) as second:
        ends = [child.end() for child in (first, second)]
    assert [code for code, _ in ends] == [0, 0]
    assert sorted(output.split()[2:] for _, output in ends) == [["4", "False"], ["4", "True"]]
    with txlog.open(str(store)) as client:
        assert sorted(values(client)) == sorted([b"x", *ROWS])
    assert not [*store.glob("topics/**/_stage/*")]

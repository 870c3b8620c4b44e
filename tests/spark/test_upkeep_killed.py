"""A driver of Spark that dies by SIGKILL amid compact or rebuild-delayed: nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

import txlog
from tests.harness import KILLED, python, run
from tests.jobs.histories import in_topic
from txlog import Client
from txlog.lake.jobs.audit import audit
from txlog.lake.jobs.local import Local
from txlog.lake.jobs.upkeep import compact, rebuild_delayed

pytestmark = [pytest.mark.spark, pytest.mark.slow]
LATER = 32_503_680_000_000


def files(store: str) -> set[str]:
    """Every file of topics, below the store."""
    return {
        str(path.relative_to(store))
        for path in Path(store, "topics").rglob("*.*")
        if path.is_file()
    }


def fill(client: Client) -> None:
    """Sidecars with dead rows and rows of an open transaction, and delayed messages."""
    client.create_topic("t", partitions=1)
    client.create_subscription("t", "s", type="shared")
    producer = client.producer("t")
    for number in range(12):
        txn = client.transaction(timeout_ms=600_000, write_through=True)
        for piece in range(4):
            at = LATER + number if piece % 2 else None
            producer.send(b"%d %d" % (number, piece), deliver_at=at, txn=txn)
        if number % 3 == 0:
            txn.abort()
        elif number != 5:
            txn.commit()


@pytest.mark.parametrize(
    ("job", "moment"),
    [("compact", "before"), ("compact", "behind"), ("rebuild-delayed", "behind")],
)
def test_driver_that_is_killed_amid_its_work(tmp_path: Path, job: str, moment: str) -> None:
    """Kills: a file that is taken for real without its frame, or one that stays for ever."""
    store = str(tmp_path / "store")
    txlog.init(store, mutable_ids_max=3, ledger_entries_max=20)
    with txlog.open(store) as client:
        client.checkpoint_automatically = False
        fill(client)
        client.checkpoint()
        messages = in_topic(client, "t")
        delayed = client.topic("t").delayed(limit=500)
    files_before = files(store)
    command = python("spark_upkeep", store, job, moment)
    done = run(command, code=KILLED, start_new_session=True)
    new = files(store) - files_before
    assert bool(new) == (moment == "behind") and new <= {done.stdout.strip()}
    with txlog.open(store) as client:
        client.checkpoint_automatically = False
        assert in_topic(client, "t") == messages
        assert audit(client, ["t"], Local())["failed"] == 0
        assert client.topic("t").delayed(limit=500).equals(delayed) and delayed.num_rows > 10
        if job == "compact":
            assert compact(client, "t", Local())["aborted_dropped"] > 0
        else:
            answer = rebuild_delayed(client, "t", Local())
            # The dead driver had removed these ids from the index, and the rebuild restores them.
            assert (answer["missing"], answer["surplus"]) == (answer["indexed"], 0)
            assert answer["indexed"] > 0
        client.checkpoint()
        assert in_topic(client, "t") == messages
        assert client.topic("t").delayed(limit=500).equals(delayed)
        assert not new & files(store)

"""Upkeep of the index by command: merge, rebuild, and their dry runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.delayed.looking_kit import listed_ids, lose, partition_number, seal
from tests.delayed.test_looking import bench_of, later
from tests.disk.faults import FaultyDisk
from tests.disk.memory import Killed
from tests.engine_kit import START_MS, Bench, client_on, send
from txlog import Client, MessageId
from txlog.engine.decide.draft import Decision
from txlog.engine.model.ops import BucketDeleted
from txlog.engine.storage.disk.posix import PosixDisk
from txlog.errors import InvalidArgument, MessageNotFound, PartitionUnavailable, ReadOnlyStore

pytestmark = pytest.mark.usefixtures("quick_disk")


def three_buckets(client: Client, partition: int = 0) -> list[MessageId]:
    """Nine delayed messages; six are in three buckets."""
    sent = []
    for n in range(3):
        sent += later(client, 1000 + n, 2000 + n, 9000 + n, partition=partition)
        send(client, b"now", partition=partition)
        seal(client, partition, 2)
    return sent


def states(client: Client) -> list[str]:
    return [str(row["state"]) for row in client.topic("t").buckets()]


@pytest.mark.parametrize("to", [1, 2, 3, 9])
def test_a_merge_leaves_this_many_buckets_in_each_partition(tmp_path: Path, to: int) -> None:
    client = bench_of(tmp_path, 2).client
    sent = [*three_buckets(client, 0), *three_buckets(client, 1)]
    handle = client.topic("t")
    plan = handle.merge(to, dry_run=True)
    assert (plan["buckets_before"], plan["buckets_after"]) == (6, 2 * min(to, 3))
    assert states(client).count("sealed") == 6
    assert handle.merge(to) == plan
    assert states(client).count("sealed") == 2 * min(to, 3)
    assert sorted(listed_ids(handle.delayed())) == sorted(sent)


def test_gc_leaves_a_bucket_that_an_unflushed_frame_names(tmp_path: Path) -> None:
    """A process dies between the frame of a bucket and its flush; kills: a lost bucket."""
    bench = Bench(tmp_path / "store", coordinators=1, durability="sync")
    bench.client.create_topic("t")
    bench.client.create_subscription("t", "s", type="shared")
    three_buckets(bench.client)
    with client_on(dying := FaultyDisk(PosixDisk(bench.path)), bench.clock) as other:
        dying.fail_at("datasync", Killed(), "journal/*")
        with pytest.raises(Killed):
            other.topic("t").merge(1)
        bench.client.admin.gc(True, 0)
    bench.client.create_topic("later")  # makes the frame durable
    paths = [row["file"] for row in bench.client.topic("t").buckets() if row["file"]]
    assert len(paths) < 3
    assert all(map(bench.client.store.disk.exists, paths))


def test_a_merge_reports_due_and_separate_buckets(tmp_path: Path) -> None:
    """A due bucket is deleted first; a merge never spans a range without an index."""
    bench = bench_of(tmp_path)
    client = bench.client
    later(client, 10, 20)
    seal(client, 0, 2)
    for _ in range(3):
        later(client, 5000, 6000)
        seal(client, 0, 2)
    bench.clock.advance(100)
    number = partition_number(client, 0)
    deleted = client.store.read(lambda view: view.delayed(number).buckets)[2]
    op = BucketDeleted(number, [deleted.gen], "lost", 0, [deleted.file.path])
    client.store.write(lambda view, now: Decision([op], sync=True))
    plan = client.topic("t").merge(1, dry_run=True)
    assert (plan["buckets_before"], plan["buckets_after"]) == (3, 2)
    done = client.topic("t").merge(1)
    assert (done["buckets_before"], done["buckets_after"], done["messages"]) == (3, 2, 4)


def test_a_rebuild_finds_nothing_wrong_with_a_sound_index(tmp_path: Path) -> None:
    client = bench_of(tmp_path).client
    sent = three_buckets(client)
    with client.transaction() as txn:
        for n in range(3):
            client.producer("t").send(b"x", deliver_at=START_MS + 100 + n, txn=txn)
    seal(client, 0, 100)
    handle = client.topic("t")
    listed_ids_before = listed_ids(handle.delayed())
    plan = handle.rebuild(dry_run=True)
    assert (plan["partitions"], plan["missing"], plan["surplus"]) == (1, 0, 0)
    assert plan["indexed"] == len(listed_ids_before) == len(sent) + 3
    done = handle.rebuild()
    assert (done["missing"], done["surplus"], done["indexed"]) == (0, 0, 12)
    assert done["messages_read"] == plan["messages_read"] >= 12
    assert listed_ids(handle.delayed()) == listed_ids_before


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_rebuild_reports_the_differences(tmp_path: Path, dry_run: bool) -> None:
    """A range without an index: four are missing; a wrong time: one missing and one surplus."""
    client = bench_of(tmp_path).client
    later(client, 1000, 2000, 3000, 4000)
    seal(client, 0, 4)
    later(client, 5000, 6000)
    seal(client, 0, 1, wrong_by_ms=7)
    seal(client, 0, 1)
    lose(client, 0)
    plan = client.topic("t").rebuild(dry_run=dry_run)
    assert (plan["messages_read"], plan["indexed"]) == (6, 6)
    assert (plan["missing"], plan["surplus"]) == (5, 1)
    if not dry_run:
        assert "unindexed" not in states(client)
        assert client.topic("t").rebuild()["missing"] == 0


def test_a_rebuild_of_a_range_and_of_a_partition(tmp_path: Path) -> None:
    client = bench_of(tmp_path, 2).client
    sent = three_buckets(client, 0)
    others = three_buckets(client, 1)
    handle = client.topic("t")
    with pytest.raises(InvalidArgument):
        handle.rebuild(sent[0], others[0])
    assert handle.rebuild(sent[0], sent[0])["indexed"] == 2
    assert client.topic("t/1").rebuild()["partitions"] == 1
    assert handle.rebuild(sent[-1])["partitions"] == 0
    assert client.topic("t/0").rebuild(last=sent[3])["indexed"] == 4


def test_refusals(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, 2)
    client = bench.client
    sent = three_buckets(client, 0)
    with pytest.raises(InvalidArgument):
        client.topic("t").merge(0)
    with pytest.raises(MessageNotFound):
        client.topic("t").rebuild(MessageId(99, 0))
    client.admin.set_offline("t", 0)
    for act in (client.topic("t").merge, client.topic("t").rebuild):
        with pytest.raises(PartitionUnavailable):
            act()
    reading = bench.another(read_only=True)
    with pytest.raises(ReadOnlyStore):
        reading.topic("t/1").merge()
    assert listed_ids(client.topic("t/1").delayed()) == []
    assert sent

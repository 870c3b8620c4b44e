"""A damaged sealed file on a real disk: its partition is quarantined, all others work.

Source: spec/transactions 11.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine_kit import Bench, begin, ids, pending, rows, send, values
from tests.tiers import graded
from txlog import Client
from txlog.engine.storage import segment
from txlog.errors import Corruption, PartitionUnavailable

pytestmark = pytest.mark.usefixtures("quick_disk")
GROUP = 4


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Two partitions, each with two sealed ledgers of several row groups and later messages."""
    monkeypatch.setattr(segment, "GROUP_ROWS", GROUP)
    new_bench = Bench(tmp_path / "store", coordinators=2, reader_grace_ms=0)
    client = new_bench.client
    client.create_topic("t", 2)
    client.create_subscription("t", "s")
    for turn in range(2):
        for partition in (0, 1):
            send(client, *[b"%d%d" % (turn, n) for n in range(9)], partition=partition)
        txn = begin(client)
        for n in range(6):
            client.producer("t").send(b"txn%d%d" % (turn, n), partition=1, txn=txn)
        client.commit(txn)
        client.checkpoint(roll_all=True)
    send(client, b"tail", partition=0)
    send(client, b"tail", partition=1)
    return new_bench


def sealed(bench: Bench, partition: int, *, sidecar: bool = False) -> list[Path]:
    """The sealed files of a partition or of its sidecar, oldest first."""
    folder = Path(bench.path) / f"topics/public/default/t/partition={partition}"
    return sorted((folder / "_txnlog" if sidecar else folder).glob("*.parquet"))


def flip(path: Path, group: int) -> bytes:
    """Change one byte in a row group; returns the former content of the file."""
    data = path.read_bytes()
    offset = max(5, len(data) * group // 8)
    path.chmod(0o600)
    path.write_bytes(data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])
    return data


def read_to_damage(client: Client, batch: int) -> list[bytes | None]:
    """The values that a reader of partition 1 gets before Corruption."""
    out: list[bytes | None] = []
    tables = client.read("t", partitions=[1], batch_messages=batch)
    with pytest.raises(Corruption) as caught:
        for table in tables:
            out += [m.value for m in rows([table])]
    assert "parquet" in str(caught.value.fields["path"])
    return out


@pytest.mark.parametrize("batch", graded([3, 1, 100], 1))
@pytest.mark.parametrize("is_writer", [False, True])
def test_good_rows_come_first_then_corruption(bench: Bench, batch: int, is_writer: bool) -> None:
    """11: good entries before the damage, then Corruption, no entry after it."""
    flip(sealed(bench, 1)[1], 2)
    client = bench.another(read_only=not is_writer)
    whole = [b"0%d" % n for n in range(9)] + [b"txn0%d" % n for n in range(6)]
    for _ in range(2):
        damaged = read_to_damage(client, batch)
        assert damaged[: len(whole)] == whole
        assert damaged[len(whole) :] == [b"1%d" % n for n in range(len(damaged) - len(whole))]
        assert (len(damaged) - len(whole)) % GROUP == 0
        assert len(damaged) < len(whole) + 9
    partitions = client.describe_topic("t")["partition_list"]
    assert [row["online"] for row in partitions] == [True, not is_writer]
    assert values(client, partitions=[0])[-1] == b"tail"


def test_the_rest_of_the_store_works(bench: Bench) -> None:
    """11: other partitions are not affected; a commit to this partition waits; it comes back."""
    path = sealed(bench, 1)[0]
    client = bench.client
    (here,) = ids(client, partitions=[0])[:1]
    txn = begin(client)
    for partition in (0, 1):
        client.producer("t").send(b"out", partition=partition, txn=txn)
    client.acknowledge("t", "s", [here], txn=txn)
    good = flip(path, 1)
    bench.reopen()
    client = bench.client
    read_to_damage(client, 10)
    with pytest.raises(PartitionUnavailable, match="quarantined"):
        client.producer("t").send(b"x", partition=1)
    answer = client.commit(txn)
    assert (answer["state"], answer["waiting_list"]) == ("committing", ["t/1"])
    assert values(client, partitions=[0])[-2:] == [b"tail", b"out"]
    assert client.admin.find_hanging(-1)[0]["repair"] == "txlog admin online t/1"
    send(client, b"more", partition=0)
    client.checkpoint(roll_all=True)
    other = bench.another()
    assert read_to_damage(other, 10) == read_to_damage(client, 10)

    with pytest.raises(Corruption) as caught:
        client.admin.set_online("t/1")
    assert Path(str(caught.value.fields["path"])).name == path.name
    assert client.transactions()[0]["state"] == "committing"
    path.unlink()
    path.write_bytes(good)  # restored from a copy: another file of the same name
    path.chmod(0o600)
    assert client.admin.set_online("t/1")["finished_list"] == [txn]
    for each_client in (client, other, bench.another()):
        assert values(each_client, partitions=[1])[-2:] == [b"tail", b"out"]
        assert len(values(each_client, partitions=[1])) == 2 * (9 + 6) + 2


def test_nothing_behind_the_damage_is_shown(bench: Bench) -> None:
    """11: also for a reader that starts after it, as markers may be missing before."""
    client = bench.client
    send(client, b"behind", partition=1)
    last = ids(client, partitions=[1])[-1]
    client = bench.reopen()
    flip(sealed(bench, 1)[0], 1)
    reader = client.reader("t-partition-1", last)
    read_to_damage(bench.another(), 100)
    with pytest.raises(Corruption):
        reader.read_next()


def test_a_damaged_sidecar(bench: Bench) -> None:
    """11: partition and sidecar are one unit; markers before the damage are readable."""
    flip(sealed(bench, 1, sidecar=True)[1], 2)
    client = bench.reopen()
    damaged = read_to_damage(client, 100)
    assert damaged[:15] == [b"0%d" % n for n in range(9)] + [b"txn0%d" % n for n in range(6)]
    assert damaged[15:] == [b"1%d" % n for n in range(9)]
    with pytest.raises(PartitionUnavailable):
        client.producer("t").send(b"x", partition=1)


def test_a_missing_file(bench: Bench) -> None:
    """A named file that is missing is damage from its first row on."""
    sealed(bench, 1)[1].unlink()
    client = bench.reopen()
    assert len(read_to_damage(client, 100)) == 15
    with pytest.raises(Corruption):
        client.admin.set_online("t/1")


def test_a_consumer_loses_nothing(bench: Bench) -> None:
    """Planned messages of other partitions come, then the error, once, then further messages."""
    client = bench.client
    with client.consumer("t", "s") as consumer_before:
        first = consumer_before.receive_batch(3)
    flip(sealed(bench, 1)[0], 1)
    client = bench.reopen()
    with client.consumer("t", "s") as consumer:
        got: list[bytes | None] = []
        with pytest.raises(Corruption):
            while (table := consumer.receive_batch(5)).num_rows:
                got += [m.value for m in rows([table]) if m.partition == 0]
        while (table := consumer.receive_batch(5)).num_rows:
            got += [m.value for m in rows([table])]
        expected = [b"%d%d" % (turn, n) for turn in range(2) for n in range(9)]
        assert got == [*expected, b"tail"]
        assert first.num_rows == 3
        send(client, b"more", partition=0)
        assert consumer.receive().value == b"more"  # type: ignore[union-attr]
    assert client.describe_topic("t")["partition_list"][1]["online"] is False
    assert len(pending(client)) == 20


def test_a_checkpoint_does_not_stumble_over_it(bench: Bench) -> None:
    """Damage found while sealing is recorded; the other ledgers are sealed."""
    client = bench.client
    send(client, *[b"x"] * 5, partition=0)
    client.checkpoint()
    part = max(sealed(bench, 1)[0].parent.glob("_ledger-*.arrow"))
    flip(part, 4)
    client = bench.reopen()
    assert client.checkpoint(roll_all=True)["sealed_ledgers"] == 1
    assert any("cannot be sealed" in line for line in client.reports())
    assert client.describe_topic("t")["partition_list"][1]["online"] is False
    assert client.checkpoint(roll_all=True)["sealed_ledgers"] == 0
    assert values(client, partitions=[0])[-5:] == [b"x"] * 5


def test_without_the_lock_damage_is_only_reported(bench: Bench) -> None:
    """A process that cannot write now still raises the error; the next one records it."""
    flip(sealed(bench, 1)[0], 1)
    client = bench.another(lock_timeout_ms=0)
    lock = bench.client.store.disk.lock_file("lock")
    lock.acquire(0)
    try:
        read_to_damage(client, 100)
        assert any("could not be recorded" in line for line in client.reports())
    finally:
        lock.release()
        lock.close()
    assert client.describe_topic("t")["partition_list"][1]["online"] is True
    read_to_damage(client, 100)
    assert client.describe_topic("t")["partition_list"][1]["online"] is False

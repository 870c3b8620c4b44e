"""Repair of files that only sidecars have: compacted files, and the files of large messages."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import txlog
from tests.engine_kit import Bench, read, rows, values
from tests.upkeep.test_compact import bench_of, mixed, seen, switching
from tests.upkeep.test_repair import actions
from txlog import Client
from txlog.base.ranges import END
from txlog.engine.storage import chunks
from txlog.errors import Refused
from txlog.lake.sql.client_query import Query

pytestmark = pytest.mark.usefixtures("quick_disk")
LARGE = random.Random(5).randbytes(3500)


def compacted(bench: Bench) -> Path:
    """The file of the closed ledger of the sidecar."""
    (ref,) = bench.client.store.read(lambda view: view.files.of(view.buffer(1).ledgers[0].ledger))
    return Path(bench.path, ref.path)


def flip(path: Path, at: int) -> bytes:
    """Damage a byte; returns the former content of the file."""
    whole = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    return whole


def sound(bench: Bench) -> bool:
    """True when a deep verify finds no error."""
    return bool(txlog.verify(bench.path, deep=True, clock=bench.clock)["errors"] == 0)


def test_a_compacted_file_is_made_again_from_its_sources(tmp_path: Path) -> None:
    """R18: the frame records where the rows went, and the old files are within their grace."""
    bench = bench_of(tmp_path, reader_grace_ms=600_000)
    mixed(bench)
    bench.client.checkpoint()
    bench.client.admin.compact("t")
    state_before, path = seen(bench.client), compacted(bench)
    bench.close()
    whole = flip(path, 300)
    done = txlog.repair(bench.path, apply=True, clock=bench.clock)
    assert ("rebuild-file" in actions(done), done["messages_lost"]) == (True, 0)
    assert seen(bench.reopen()) == state_before
    assert compacted(bench) != path
    assert compacted(bench).read_bytes() == whole
    assert sound(bench)
    bench.close()


@pytest.mark.parametrize("ends", ["commit", "abort", "trim"])
def test_a_transaction_that_ended_during_a_compaction_is_right_after_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Law 1: the state at the frame of the compaction is newer than the state its file was made
    from.
    """
    bench = bench_of(tmp_path, reader_grace_ms=600_000)
    open_one = mixed(bench)
    bench.client.checkpoint()
    other = bench.another()

    def meanwhile() -> None:
        if ends == "trim":
            other.admin.trim("t", END, force_unacked=True)
            other.commit(open_one)
        else:
            getattr(other, ends)(open_one)

    assert switching(monkeypatch, meanwhile) == []
    bench.client.admin.compact("t")
    state_before, path = seen(bench.client), compacted(bench)
    bench.close()
    flip(path, 300)
    done = txlog.repair(bench.path, apply=True, clock=bench.clock)
    assert ("rebuild-file" in actions(done), done["messages_lost"]) == (True, 0)
    assert seen(bench.reopen()) == state_before
    assert sound(bench)
    ledger = int(path.name[7:19])
    table = bench.client.store.read(lambda view: view.ledger_table(ledger, 0, 8))
    marked = table.column("marker_ledger").is_valid().to_pylist()
    assert (
        marked
        == {
            "commit": [True] * 8,
            "abort": [True] * 5 + [False] * 3,
            "trim": [False] * 5 + [True] * 3,
        }[ends]
    )
    bench.client.admin.compact("t")
    assert seen(bench.client) == state_before
    bench.close()


def test_without_its_sources_each_message_keeps_its_id(tmp_path: Path) -> None:
    """No file can restore the rows: each is lost by itself, and the other rows stay."""
    bench = bench_of(tmp_path)
    open_one = mixed(bench)
    bench.client.admin.compact("t")
    for _ in range(3):
        bench.client.create_topic(f"more{_}")
        bench.client.checkpoint()
    ids = [str(m.message_id) for m in read(bench.client)]
    path = compacted(bench)
    bench.close()
    flip(path, 300)
    with pytest.raises(Refused):
        txlog.repair(bench.path, apply=True, clock=bench.clock)
    done = txlog.repair(bench.path, apply=True, accept_loss=True, clock=bench.clock)
    assert ("salvage-file" in actions(done), done["messages_lost"]) == (True, 8)
    client = bench.reopen()
    assert [str(m.message_id) for m in read(client)] == ids
    assert values(client) == [b"plain", b"", b"", b"", b"", b""]
    client.commit(open_one)
    assert len(read(client)) == 9
    assert sound(bench)
    bench.close()


def of_large(client: Client) -> list[tuple[bytes | None, Any, str]]:
    return [(m.value, m.key, str(m.message_id)) for m in read(client)]


@pytest.mark.parametrize("at", ["first", "last", pytest.param("whole", marks=pytest.mark.slow)])
def test_a_large_message_that_lost_a_chunk_is_lost_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """A part of a value is no message; repair reports how many bytes are readable, and keeps them
    (R4).
    """
    monkeypatch.setattr(chunks, "GROUP_BYTES", 1000)
    bench = Bench(tmp_path / "store", max_message_bytes=1000, coordinators=1)
    client = bench.client
    client.create_topic("t")
    client.create_subscription("t", "s")
    producer = client.producer("t", chunking=True)
    producer.send(b"before")
    with client.transaction() as txn:
        producer.send(b"x", txn=txn)
        producer.send(LARGE, key=b"k", txn=txn)
    producer.send(LARGE[::-1])
    client.checkpoint()
    large_rows_before = of_large(client)
    (path, other) = sorted(Path(bench.path).rglob("_txnlog/ledger-*.parquet"))
    groups = client.store.read(lambda view: view.files.of(int(path.name[7:19])))[0].groups
    assert len(groups) > 3
    bench.close()
    if at == "whole":
        path.unlink()
    else:
        flip(path, groups[0 if at == "first" else -1][1] + 20)
    assert txlog.verify(bench.path, clock=bench.clock)["errors"] == 1
    plan = txlog.repair(bench.path, clock=bench.clock)
    step = next(action for action in plan["action_list"] if action["action"] == "salvage-file")
    reports = {
        "first": "; 2501 bytes can be read, the first 0 ",
        "last": "; 2999 bytes can be read, the first 2999 ",
        "whole": "; 0 bytes can be read, the first 0 ",
    }[at]
    assert reports in step["detail"], step["detail"]
    done = txlog.repair(bench.path, apply=True, accept_loss=True, clock=bench.clock)
    assert done["messages_lost"] == 1
    client = bench.reopen()
    large_rows_after = of_large(client)
    assert [action[2] for action in large_rows_after] == [action[2] for action in large_rows_before]
    assert large_rows_after[2][:2] == (None, None)
    assert (
        large_rows_after[:2] + large_rows_after[3:] == large_rows_before[:2] + large_rows_before[3:]
    )
    with client.consumer("t", "s") as consumer:
        lost = rows([consumer.receive_batch(10)])[2]
    assert lost.value is None
    assert "was damaged" in (lost.properties or {})["txlog.lost"]
    with Query(client, "SELECT value FROM t", {}, "committed") as query:
        found_rows = query.rows().read_all().column("value").to_pylist()
    assert sorted(map(str, found_rows)) == sorted(str(action[0]) for action in large_rows_after)
    assert sound(bench)
    assert txlog.repair(bench.path, clock=bench.clock)["messages_lost"] == 0
    assert at == "whole" or [*Path(bench.path, "quarantine").glob("*.damaged")]
    assert other.exists()
    bench.close()

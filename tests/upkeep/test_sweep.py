"""The sweep of unnamed files: leftovers of a dead pass go, named or locked files stay."""

from __future__ import annotations

from pathlib import Path

import txlog
from tests.engine_kit import START_MS, new_store, open_client, send, values
from txlog.clock import ManualClock
from txlog.engine.storage.disk.posix import PosixDisk


def test_unnamed_files_go_and_named_ones_stay(tmp_path: Path) -> None:
    """R19. Guards against sweeping a named file, or a temporary that a process is writing."""
    root = tmp_path / "store"
    txlog.init(str(root))
    with txlog.open(str(root)) as client:
        client.create_topic("orders")
        producer = client.producer("orders")
        producer.send(b"one")
        client.checkpoint(roll_all=True)
        producer.send(b"two")
        directory = next(root.glob("topics/public/default/orders/partition=0"))
        orphan = directory / "ledger-000000000009.0000000099.parquet"
        orphan.write_bytes(b"left by a dead pass")
        abandoned, busy = directory / ".tmp-dead", directory / ".tmp-busy"
        abandoned.write_bytes(b"x")
        busy.write_bytes(b"y")
        other = PosixDisk(str(root))
        lock = other.lock_file("topics/public/default/orders/partition=0/.tmp-busy", create=False)
        assert lock.try_acquire()
        client.checkpoint()
        assert not orphan.exists()
        assert not abandoned.exists()
        assert busy.exists()
        lock.close()
        other.close()
        assert [message.value for message in client.reader("orders")] == [b"one", b"two"]
    with txlog.open(str(root)) as client:
        assert [message.value for message in client.reader("orders")] == [b"one", b"two"]


def test_a_file_that_was_sealed_since_the_last_checkpoint_stays(tmp_path: Path) -> None:
    """Only a frame names it, until the next checkpoint does."""
    clock = ManualClock(START_MS)
    path = new_store(tmp_path / "store", clock, ledger_entries_max=1)
    with open_client(path, clock) as client:
        client.create_topic("t")
        send(client, b"one", b"two")
        client.checkpoint()
        client.admin.gc(apply=True, keep_ms=0)
    with open_client(path, clock) as client:
        assert values(client) == [b"one", b"two"]

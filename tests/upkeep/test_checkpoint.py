"""Checkpoint, roll and seal: rows move into files, and no user can see a difference.

Laws 1, 5, 6; I-20; spec/reliability 2.4.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import txlog
from tests.engine_kit import (
    Bench,
    begin,
    ids,
    loaded,
    mutex_of,
    pending,
    read,
    relation_of,
    send,
    send_txn,
    values,
)
from tests.laws.history import dumps, fresh, live_dumps
from txlog import Client
from txlog.engine import view as dumps_module
from txlog.engine.folds import buffer as buffer_module
from txlog.engine.folds.buffer import Markers
from txlog.engine.folds.catalog import numbers
from txlog.engine.model import tail
from txlog.engine.model.ops import Component
from txlog.engine.storage.disk.posix import PosixFile
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.manifest import DumpRef, Manifest, newest_manifest
from txlog.engine.storage.segment_reader import SegmentReader
from txlog.engine.upkeep.checkpoint import checkpoint as checkpoint_module
from txlog.engine.upkeep.checkpoint.seal import compare_rows, sealable
from txlog.engine.upkeep.space import sweep as sweep_module
from txlog.engine.view import View
from txlog.errors import Corruption

pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 1}, [("t", "s")], reader_grace_ms=1000),
]


def files(bench: Bench, suffix: str) -> list[str]:
    """Paths below the store with this suffix, without the logs of changes."""
    paths = (os.path.relpath(path, bench.path) for path in Path(bench.path).rglob(f"*{suffix}"))
    return sorted(path for path in paths if not path.startswith("system/"))


def test_reading_goes_on_over_sealed_part_and_tail(bench: Bench) -> None:
    """I-20: messages in a sealed file, a part and the journal are one log; ids never change."""
    client = bench.client
    rows: list[tuple[object, bytes]] = []
    for number, act in enumerate(("roll", "cut", "cut", "", "roll", "cut", "")):
        plain = send(client, b"p%d" % number)
        _, inner = send_txn(client, b"x%d" % number, b"y%d" % number)
        rows += zip(
            [*plain, *inner], (b"p%d" % number, b"x%d" % number, b"y%d" % number), strict=True
        )
        if act:
            client.checkpoint(roll_all=act == "roll")
        for looker in (client, bench.another()):
            assert [(m.message_id, m.value) for m in read(looker)] == rows
    assert len(files(bench, ".parquet")) == 4  # two of the partition, two of its sidecar
    assert files(bench, ".arrow")
    messages = read(bench.reopen())
    assert [(m.message_id, m.value) for m in messages] == rows
    assert [m.message_id for m in messages] == sorted(
        m.message_id for m in messages if m.message_id
    )


def test_a_marker_over_several_sidecar_ledgers(bench: Bench) -> None:
    """8: the messages of a transaction are contiguous and in order, wherever its rows lie."""
    client = bench.client
    slow, quick = begin(client), begin(client)
    producer = client.producer("t")
    for turn in range(4):
        producer.send(b"s%d" % turn, txn=slow)
        producer.send(b"q%d" % turn, txn=quick)
        client.checkpoint(roll_all=True)
    # a sidecar ledger is sealed only after its transactions end
    assert files(bench, ".parquet") == []
    client.commit(quick)
    client.checkpoint()
    client.commit(slow)
    client.checkpoint(roll_all=True)
    expected = [b"q0", b"q1", b"q2", b"q3", b"s0", b"s1", b"s2", b"s3"]
    for looker in (client, bench.another()):
        assert values(looker) == expected
        with looker.reader("t") as reader:  # in pieces that end inside a marker
            assert [m.value for _ in range(9) if (m := reader.read_next())] == expected
        for size in (1, 3, 5):
            assert values(looker, batch_messages=size) == expected


def test_a_sealed_sidecar_is_clean(bench: Bench) -> None:
    """R17: committed rows only, in commit order, marker and visible time in the row."""
    client = bench.client
    first, second, deleted = (begin(client) for _ in range(3))
    producer = client.producer("t")
    for value, txn in ((b"1a", first), (b"x", deleted), (b"2a", second), (b"1b", first)):
        producer.send(value, txn=txn)
    bench.clock.advance(5)
    client.commit(second)
    client.abort(deleted)
    bench.clock.advance(5)
    client.commit(first)
    client.checkpoint(roll_all=True)
    (path,) = [name for name in files(bench, ".parquet") if "_txnlog" in name]
    rows = pq.read_table(Path(bench.path) / path)
    assert rows.column("value").to_pylist() == [b"2a", b"1a", b"1b"]
    assert set(rows.column("kind").to_pylist()) == {0}
    assert rows.column("txn_index").to_pylist() == [1, 1, 2]
    messages = read(client)
    markers = list(
        zip(
            rows.column("marker_ledger").to_pylist(),
            rows.column("marker_entry").to_pylist(),
            strict=True,
        )
    )
    assert markers == [(m.message_id.ledger, m.message_id.entry) for m in messages if m.message_id]
    times = rows.column("visible_time").cast("int64").to_pylist()
    assert times == [m.visible_time for m in messages]
    assert times[1] - times[0] == 5


def test_a_sealed_file_of_a_partition_has_its_ledger_as_a_column(bench: Bench) -> None:
    """docs/format.md 5. Guards against a null or wrong ledger column, and wrong counts.

    Spark readers trust both: they use neither the name of the file, nor `kind` if all rows are
    data.
    """
    client = bench.client
    with client.transaction() as txn:
        client.producer("t").send(b"a", txn=txn)
    client.producer("t").send(b"b")
    client.producer("t").send(b"c")
    client.checkpoint(roll_all=True)
    client.producer("t").send(b"d")
    client.checkpoint(roll_all=True)
    mixed, plain, clean = (source.ref for source in relation_of(client, "t").direct)
    assert [(ref.messages, ref.rows, ref.is_messages_only) for ref in (mixed, plain, clean)] == [
        (2, 3, False),
        (1, 1, True),
        (1, 1, True),
    ]
    for ref, expected_ledger in ((mixed, mixed.ledger), (plain, plain.ledger), (clean, None)):
        rows = pq.read_table(Path(bench.path) / ref.path)
        assert rows.column("ledger").to_pylist() == [expected_ledger] * ref.rows
    store = client.store
    file = store.disk.open(plain.path)
    rows = SegmentReader(file, plain).rows(0, 1)
    file.close()
    compare_rows(store, plain, [rows], plain.ledger)
    for wrong in (plain.ledger + 1, None):
        with pytest.raises(Corruption):
            compare_rows(store, plain, [rows], wrong)


def test_a_sidecar_of_aborted_rows_alone_is_sealed_too(bench: Bench) -> None:
    """The seal leaves no row and no file, and no later call fails."""
    client = bench.client
    txn = begin(client)
    client.producer("t").send(b"x", txn=txn)
    client.abort(txn)
    client.checkpoint(roll_all=True)
    send_txn(client, b"a")
    client.checkpoint(roll_all=True)
    assert values(bench.reopen()) == [b"a"]


@pytest.mark.parametrize(
    ("setting", "value", "ledgers"),
    [("ledger_entries_max", 2, 3), ("ledger_bytes_max", 4096, 3), ("ledger_age_max_ms", 100, 3)],
)
def test_ledgers_roll(tmp_path: Path, setting: str, value: int, ledgers: int) -> None:
    """spec/transactions 3: by entries, by bytes, by age; ledger ids rise and are never reused."""
    bench = Bench(tmp_path / "store", **{setting: value})
    client = bench.client
    client.create_topic("t")
    for number in range(6):
        send(client, b"%d" % number + bytes(2048 if setting == "ledger_bytes_max" else 0))
        bench.clock.advance(50)
    seen = [message_id.ledger for message_id in ids(client)]
    assert seen == sorted(seen)
    assert len(set(seen)) == ledgers
    assert client.describe_topic("t")["partition_list"][0]["ledgers"] == ledgers
    assert client.checkpoint()["sealed_ledgers"] == ledgers - 1
    assert [message_id.ledger for message_id in ids(bench.reopen())] == seen


def test_acknowledgements_go_on_over_a_checkpoint(bench: Bench) -> None:
    """Law 1: holes, inner messages, pending acknowledgements and redelivery counts survive."""
    client = bench.client
    plain = send(client, b"a", b"b", b"c")
    _, inner = send_txn(client, b"d", b"e", b"f")
    client.acknowledge("t", "s", [plain[1], inner[1]])
    txn, holder = begin(client), begin(client)
    client.acknowledge("t", "s", [inner[0]], txn=txn)
    client.abort(txn)
    client.acknowledge("t", "s", [plain[2]], txn=holder)
    client.checkpoint(roll_all=True)
    # each look raises the count, as its consumer closes
    for times, looker in enumerate((client, bench.another())):
        rows = [(m.value, m.redelivery_count) for m in pending(looker)]
        assert rows == [(b"a", times), (b"d", times + 1), (b"f", times)]
        assert looker.subscriptions()[0]["backlog"] == 4
        assert looker.subscriptions()[0]["pending_acks"] == 1
    bench.reopen().abort(holder)
    assert [m.value for m in pending(bench.client)] == [b"a", b"c", b"d", b"f"]


def test_an_open_transaction_goes_on_over_a_checkpoint(bench: Bench) -> None:
    """Law 1: a transaction that began before a checkpoint ends after it, from another process."""
    client = bench.client
    txn = begin(client)
    client.producer("t").send(b"a", txn=txn)
    client.checkpoint(roll_all=True)
    other = bench.reopen()
    assert other.producer("t").send(b"b", txn=txn).txn_index == 2
    other.checkpoint()
    assert other.commit(txn)["messages"] == 2
    assert values(other) == [b"a", b"b"]


def test_two_processes_over_checkpoints(bench: Bench) -> None:
    """A process that looks only now and then goes on, however many checkpoints it missed."""
    client, other = bench.client, bench.another()
    expected: list[bytes] = []
    for number in range(4):
        for turn in range(number + 1):
            expected.append(b"%d.%d" % (number, turn))
            send(client, expected[-1])
            client.checkpoint(roll_all=turn % 2 == 1)
            bench.clock.advance(600)
        assert values(other) == expected
        expected.append(b"other %d" % number)
        send(other, expected[-1])
        assert values(client) == expected
    for turn in range(5):  # the journals and parts of its view are deleted, and it writes first
        expected.append(b"last %d" % turn)
        send(client, expected[-1])
        client.checkpoint(roll_all=True)
        bench.clock.advance(2000)
    expected.append(b"end")
    send(other, expected[-1])
    assert values(other) == values(client) == values(bench.another()) == expected


def test_a_reader_keeps_its_place_over_checkpoints(bench: Bench) -> None:
    """I-8, 20: the position of a reader outlives the files that it was reading."""
    client, other = bench.client, bench.another()
    send(client, b"0", b"1", b"2")
    with other.reader("t") as reader:
        assert reader.receive_batch(2).column("value").to_pylist() == [b"0", b"1"]
        for number in range(3, 6):
            send(client, b"%d" % number)
            client.checkpoint(roll_all=True)
            bench.clock.advance(5000)
        assert reader.receive_batch(9).column("value").to_pylist() == [b"2", b"3", b"4", b"5"]


def test_old_journals_and_manifests_are_deleted(bench: Bench) -> None:
    """R16: the two newest manifests stay, with the journals that the older one needs."""
    client = bench.client
    for number in range(6):
        send(client, b"%d" % number)
        client.checkpoint()
    assert len(files(bench, ".manifest")) == 2
    assert len(files(bench, ".journal")) <= 3
    os.unlink(Path(bench.path) / files(bench, ".manifest")[-1])
    assert values(bench.reopen()) == [b"%d" % number for number in range(6)]


def test_dropped_files_have_their_grace(bench: Bench) -> None:
    """R18: parts that a sealed file replaced stay for reader_grace_ms, then upkeep removes them."""
    client = bench.client
    send(client, b"a")
    client.checkpoint()
    parts = files(bench, ".arrow")
    assert parts
    client.checkpoint(roll_all=True)
    assert set(parts) <= set(files(bench, ".arrow"))
    bench.clock.advance(999)
    send(client, b"b")
    client.checkpoint()
    assert set(parts) <= set(files(bench, ".arrow"))
    bench.clock.advance(5000)
    for value in (b"c", b"d"):
        send(client, value)
        client.checkpoint()
    assert not set(parts) & set(files(bench, ".arrow"))
    assert values(bench.reopen()) == [b"a", b"b", b"c", b"d"]


def test_a_checkpoint_with_nothing_new_is_skipped(bench: Bench) -> None:
    """It uses no generation and writes no file."""
    client = bench.client
    send(client, b"a")
    first = client.checkpoint()
    assert (first["skipped"], first["rows"], first["parts"]) == (False, 1, 1)
    answer_again = client.checkpoint()
    assert (answer_again["skipped"], answer_again["generation"]) == (True, first["generation"])


def test_checkpoints_fall_due(tmp_path: Path) -> None:
    """spec/transactions 3: when the journal passes checkpoint_frames, the next end writes one."""
    bench = Bench(tmp_path / "store", checkpoint_frames=10)
    client = bench.client
    client.checkpoint_automatically = True
    client.create_topic("t")
    for _ in range(6):
        send_txn(client, b"a", b"b")
    assert client.status()["checkpoint"]["generation"] >= 1
    assert client.status()["journal"]["frames"] <= 12
    assert len(read(client)) == 12


def test_a_missing_part_is_corruption(bench: Bench) -> None:
    """Law 5: a reader names a missing file in its error, and never skips its rows."""
    client = bench.client
    send(client, b"a")
    client.checkpoint()
    client.close()
    bench.clients.clear()
    (part,) = [name for name in files(bench, ".arrow") if "partition" in name]
    os.unlink(Path(bench.path) / part)
    with pytest.raises(Corruption) as caught:
        values(bench.another())
    assert part in str(caught.value)


def test_the_same_history_makes_the_same_files(tmp_path: Path) -> None:
    """STYLE 11: the same seed twice gives the same tree of files."""

    def tree(name: str) -> dict[str, int]:
        bench = Bench(tmp_path / name)
        bench.client.create_topic("t", 2)
        for number in range(3):
            send(bench.client, b"%d" % number, partition=number % 2)
            send_txn(bench.client, b"x", b"y")
            bench.client.checkpoint(roll_all=number == 1)
        bench.close()
        return {
            os.path.relpath(path, bench.path): path.stat().st_size
            for path in Path(bench.path).rglob("*")
            if path.is_file()
        }

    assert tree("one") == tree("two")


@pytest.mark.parametrize("pack_bytes", [1, 700, 1 << 20])
@pytest.mark.parametrize("budget", [0, 1_500, 1 << 20])
def test_packed_rows_are_the_rows_of_their_frames(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, pack_bytes: int, budget: int
) -> None:
    """A checkpoint keeps as many of the rows that it has read as fit, whatever their shape."""
    client = bench.client
    client.create_topic("two", partitions=2)
    two = client.producer("two")
    slow = begin(client)
    for turn in range(6):
        batch = pa.table(
            {
                "value": [b"%d-%d" % (turn, i) for i in range(8)],
                "partition": pa.array([0, 1] * 4, pa.int32()),
                **({"key": [None, b"k"] * 4, "event_time": [turn, None] * 4} if turn % 3 else {}),
            }
        )
        two.send_batch(batch)
        two.send(
            bytes(300_000 if turn == 5 else 400 * turn),
            properties={"turn": str(turn)},
            partition=0,
            txn=slow,
        )
        with client.transaction() as txn:
            two.send_batch(batch, txn=txn)
            two.send_batch(batch.slice(3), txn=txn)
            if turn == 4:
                txn.abort()
    store = client.store
    expected = found_client = View.open(store.disk, store.identity.salt, store.clock.now().boot_id)
    try:
        expected.take(expected.journal.read_durable())
        monkeypatch.setattr(tail, "PACK_BYTES", pack_bytes)
        found_client = View.open(store.disk, store.identity.salt, store.clock.now().boot_id)
        found_client.journal.current.keep_rows(budget)
        frames = found_client.journal.read_durable()
        found_client.take(frames)
        for raw in frames:
            found_client.tail.pack(raw)
        assert bool(found_client.tail._rows.packed()) == (budget > 0)
        assert len(found_client.tail.runs) == 4  # two partitions, two sidecars
        for ledger, runs in expected.tail.runs.items():
            end = runs[-1].first + runs[-1].rows
            for start, stop in ((0, end), (1, end - 1), (end // 2, end // 2 + 3)):
                table = expected.ledger_table(ledger, start, stop)
                assert table.num_rows == min(stop, end) - start
                assert found_client.ledger_table(ledger, start, stop).equals(table)
    finally:
        expected.close()
        found_client.close()


def test_a_checkpoint_reads_each_large_frame_at_most_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for its ops, once for its rows. Frames that arrive meanwhile are read only by a seal."""
    bench = Bench(tmp_path / "store")
    bench.client.create_topic("t", 1)
    producer = bench.client.producer("t")

    def send_some() -> None:
        for _ in range(40):
            producer.send_batch(pa.table({"value": [bytes(100_000)] * 7}))

    read = 0
    real, written = PosixFile.pread, checkpoint_module.checkpoint

    def counted(file: PosixFile, offset: int, length: int) -> bytes:
        nonlocal read
        read += length if file.path.endswith(".journal") else 0
        return real(file, offset, length)

    def beside(*arguments: Any, **options: Any) -> Manifest:
        manifest = written(*arguments, **options)
        send_some()
        return manifest

    send_some()
    with bench.client.transaction() as txn:
        producer.send(b"v", txn=txn)  # a sidecar that changed, with one ledger
    monkeypatch.setattr(checkpoint_module, "ROWS_KEPT_BYTES", 0)
    monkeypatch.setattr(checkpoint_module, "checkpoint", beside)
    monkeypatch.setattr(PosixFile, "pread", counted)
    assert not bench.client.checkpoint()["skipped"]
    assert read < 2.2 * 40 * 700_000


def test_frames_appended_after_the_cut_are_not_in_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dumps come from the live folds, and must have the state at the cut while others write."""
    bench = Bench(tmp_path / "store")
    client, other = bench.client, bench.another()
    client.create_topic("t")
    client.create_topic("u")
    client.create_subscription("t", "s")
    send(client, b"a")
    real = checkpoint_module.state_at_cut

    def late(view: View) -> checkpoint_module.Cut:
        send(other, b"b")
        with other.transaction() as txn:
            other.producer("t").send(b"c", txn=txn)
        return real(view)

    monkeypatch.setattr(checkpoint_module, "state_at_cut", late)
    lsn = client.checkpoint()["lsn"]
    monkeypatch.undo()
    manifest = newest_manifest(client.store.disk, client.store.identity.salt, 0)[0]
    assert manifest.cut_lsn == lsn
    assert sum(ref.rows for refs in manifest.files.values() for ref in refs) == 1
    for each_client in (client, other, bench.another()):
        assert values(each_client) == [b"a", b"b", b"c"]
    with fresh(bench) as replayed:
        replayed.take(replayed.journal.read_durable())
        assert live_dumps(client) == dumps(replayed)
    # frames after the first cut must be in the dumps of the second
    send(client, b"d", topic="u")
    client.checkpoint()
    with fresh(bench) as replayed:
        replayed.take(replayed.journal.read_durable())
        assert live_dumps(client) == dumps(replayed)
    assert values(bench.reopen()) == [b"a", b"b", b"c"]


def dumps_of(client: Client) -> list[DumpRef]:
    """The dumps that the newest manifest names."""
    return client.store.read(lambda view: view.manifest.dumps)


def test_a_checkpoint_keeps_no_state_of_unused_topics(tmp_path: Path) -> None:
    """A process that never reads a topic keeps no state of it, though it writes its dump."""
    bench = Bench(tmp_path / "store")
    for name in ("t", "u"):
        bench.client.create_topic(name)
        send(bench.client, b"v", topic=name)
    other = bench.another()
    other.checkpoint()
    assert {kind for kind, _, _ in other.store.read(loaded)} <= {"catalog", "coordinator"}
    assert other.store.read(View.changed) == []
    paths_before = {ref.path for ref in dumps_of(other)}
    send(bench.client, b"w", topic="u")
    other.checkpoint()
    dumps_again = [ref for ref in dumps_of(other) if ref.path not in paths_before]
    assert {(ref.kind, ref.a) for ref in dumps_again} == {("topic", 2)}
    assert values(bench.reopen(), "u") == [b"v", b"w"]


def test_state_that_no_process_has_loaded_is_dumped_without_the_mutex(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9, Law 1. Guards against dumps made under the mutex, and ops after the cut in a dump."""
    bench = Bench(tmp_path / "store")
    client = bench.client
    for number in range(6):
        client.create_topic(f"t{number}")
        client.create_subscription(f"t{number}", "s")
        client.acknowledge(f"t{number}", "s", send(client, b"v", topic=f"t{number}"))
    client.checkpoint()
    for number in range(6):
        client.acknowledge(f"t{number}", "s", send(client, b"w", topic=f"t{number}"))
    other = bench.another()
    mutex = mutex_of(other)
    seen: list[str] = []
    real = dumps_module.made

    def made(disk: Disk, key: Component, origin: dumps_module.StateSources) -> Any:
        assert not mutex.is_inside()
        if not seen:  # the live view goes on, and its waiting ops grow
            for number in range(6):
                client.acknowledge(f"t{number}", "s", send(client, b"x", topic=f"t{number}"))
            other.store.refresh()
        seen.append(key[0])
        return real(disk, key, origin)

    monkeypatch.setattr(checkpoint_module, "made", made)
    other.checkpoint()
    monkeypatch.undo()
    assert (seen.count("topic"), seen.count("cursor")) == (6, 6)
    assert not other.store.read(lambda view: loaded(view, "topic", "cursor"))
    client.flush()
    with fresh(bench) as replayed:
        replayed.take(replayed.journal.read_durable())
        assert client.store.read(dumps) == dumps(replayed)
    for number in range(6):
        assert values(bench.another(), f"t{number}") == [b"v", b"w", b"x"]
    bench.close()
    assert txlog.verify(bench.path, deep=True, clock=bench.clock)["errors"] == 0


def test_markers_are_encoded_ahead_of_the_cut(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One block at a time, and other callers may use the store between two blocks.

    The last block is encoded when callers wait.
    """
    monkeypatch.setattr(buffer_module, "BLOCK", 4)
    client = bench.client
    for number in range(18):
        send_txn(client, b"%d" % number)
    encoded: list[tuple[int, bool]] = []
    is_cut = False
    items, cut = Markers._items, checkpoint_module.state_at_cut

    def noted(markers: Markers, number: int) -> bytes:
        encoded.append((number, is_cut))
        return items(markers, number)

    def at_cut(view: View) -> Any:
        nonlocal is_cut
        is_cut = True
        try:
            return cut(view)
        finally:
            is_cut = False

    monkeypatch.setattr(Markers, "_items", noted)
    monkeypatch.setattr(checkpoint_module, "state_at_cut", at_cut)
    client.checkpoint()
    assert encoded == [(0, False), (1, False), (2, False), (3, False), (4, True)]
    encoded.clear()
    send_txn(client, b"more")
    client.checkpoint()
    assert encoded == [(4, True)]
    bench.reopen()
    encoded.clear()
    send_txn(bench.client, b"again")
    bench.client.checkpoint()
    assert [is_at_cut for _, is_at_cut in encoded] == [False] * 5 + [True]


def test_rows_that_a_checkpoint_moved_are_freed_a_little_at_a_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next commit waits while the memory is freed: tens of thousands of runs took 30 ms."""
    monkeypatch.setattr(tail, "FREED_A_FRAME", 3)
    client = bench.client
    for number in range(20):
        send(client, b"%d" % number)

    def kept(view: View) -> int:
        return sum(map(len, view.tail._moved))

    client.checkpoint()
    counts = [client.store.read(kept)]
    assert counts[0] >= 10
    while counts[-1]:
        send(client, b"more")
        counts.append(client.store.read(kept))
    assert all(0 < previous - following <= 3 for previous, following in itertools.pairwise(counts))
    assert len(values(client)) == 20 + len(counts) - 1


def test_the_sweep_reads_manifests_without_the_mutex(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9. Guards against a read of every directory and of two manifests while callers wait."""
    client, mutex = bench.client, mutex_of(bench.client)
    for number in range(4):
        client.create_topic(f"u{number}")
        send(client, b"v", topic=f"u{number}")
    client.checkpoint()
    lines: list[str] = []
    for name in ("read_manifest", "cursor_dirs"):
        real = getattr(sweep_module, name)

        def watched(*arguments: Any, _name: str = name, _real: Any = real) -> Any:
            assert not mutex.is_inside()
            lines.append(_name)
            return _real(*arguments)

        monkeypatch.setattr(sweep_module, name, watched)
    assert sweep_module.sweep_unnamed(client.store, directories_max=64) == 0
    assert (lines.count("read_manifest"), lines.count("cursor_dirs")) == (1, 5)
    lines.clear()
    assert sweep_module.sweep_unnamed(client.store, directories_max=3) == 0
    assert lines == ["read_manifest"]  # too many directories: the sweep lists none


def test_sealing_looks_only_where_a_ledger_was_closed(bench: Bench) -> None:
    """9. Guards against loading the fold of every topic with a part, whether it changed or not."""
    client = bench.client
    for number in range(12):
        client.create_topic(f"u{number}")
        send(client, b"v", topic=f"u{number}")
    client.checkpoint()
    send(client, b"w", topic="u3")
    client.checkpoint(roll=["u3"])
    send(client, b"w", topic="u7")
    client.admin.set_setting("ledger_entries_max", 1)
    send(client, b"w", topic="u7")
    with fresh(bench) as view:
        view.take(view.journal.read_durable())
        assert not loaded(view, "topic", "buffer")
        parts = [ref for refs in view.manifest.files.values() for ref in refs if ref.form == "part"]
        assert len(parts) == 11
        assert sealable(view.manifest, view) == []  # the last rows of u7 are in no part yet
        partitions = {key[1] for key in loaded(view, "topic", "buffer")}
        topic = view.catalog.topics[view.catalog.by_name["public/default/u7"]]
        assert partitions == set(numbers(topic))
    assert client.checkpoint()["sealed_ledgers"] == 1


def test_dumps_that_did_not_change_move_as_they_are(bench: Bench) -> None:
    """9. Guards against a fold loaded only to be written again, and state files that stay
    for ever.
    """
    client = bench.client
    for number in range(12):
        client.create_topic(f"u{number}")
        send(client, b"v", topic=f"u{number}")
    client.checkpoint()
    other = bench.another()
    for turn in range(12):  # each leaves fewer dumps in the first state file
        for number in range(3):
            send(client, b"w", topic=f"u{(turn + number) % 12}")
        bench.clock.advance(5000)
        other.checkpoint()
    assert not other.store.read(lambda view: loaded(view, "topic"))
    assert len({ref.path for ref in dumps_of(other)}) <= 6
    for number in range(12):
        assert values(bench.another(), f"u{number}") == [b"v", b"w", b"w", b"w"]
    bench.close()
    assert txlog.verify(bench.path, deep=True, clock=bench.clock)["errors"] == 0

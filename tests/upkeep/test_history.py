"""`txn log`: the history of a transaction over checkpoints, merges and the end of retention."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.engine_kit import Bench, begin, send
from tests.laws.history import random_history
from tests.tiers import graded
from txlog import Client, TxnId
from txlog.engine.model.ops import StatusUpdated, TxnOpened, TxnsForgotten
from txlog.engine.storage.manifest import newest_manifest
from txlog.engine.upkeep.checkpoint import history
from txlog.engine.upkeep.space.sweep import sweep_unnamed
from txlog.errors import Corruption, TransactionNotFound

pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 2}, [("t", "s")], reader_grace_ms=0, coordinators=2),
]
KEYS = ["lsn", "time", "op", "topic", "partition", "subscription", "count", "detail"]


def parts(bench: Bench) -> list[Path]:
    return sorted(Path(bench.path, history.HISTORY_DIR).glob("*.arrow"))


def told(client: Client, txn: TxnId) -> list[tuple[str, object]]:
    return [(row["op"], row["detail"]) for row in client.admin.transaction_log(txn)]


def whole(client: Client, bench: Bench, each: int = 1) -> TxnId:
    """A transaction with messages and acknowledgements, committed."""
    txn = begin(client)
    client.producer("t").send(b"x", partition=1, txn=txn)
    client.acknowledge("t", "s", send(client, b"y"), txn=txn)
    bench.clock.advance(each)
    client.commit(txn)
    return txn


def test_a_log_is_the_same_before_and_after_checkpoints(bench: Bench) -> None:
    """Law 1 in small: the log does not show whether an op is in the journal or in a part."""
    client = bench.client
    txn = begin(client)
    client.producer("t").send(b"x", partition=1, txn=txn)
    client.checkpoint()
    client.acknowledge("t", "s", send(client, b"y"), txn=txn)
    client.checkpoint()
    bench.clock.advance(7)
    client.commit(txn)
    log_before = client.admin.transaction_log(txn)
    assert [list(row) for row in log_before] == [KEYS] * 5
    assert [
        (row["op"], row["topic"], row["partition"], row["subscription"], row["count"])
        for row in log_before
    ] == [
        ("TxnOpened", None, None, None, None),
        ("PartitionAdded", "t", 1, None, None),
        ("SubscriptionAdded", "t", 0, "s", None),
        ("StatusUpdated", None, None, None, 1),
        ("StatusUpdated", None, None, None, None),
    ]
    assert [row["detail"] for row in log_before[3:]] == [
        "OPEN to COMMITTING, acks 1",
        "COMMITTING to COMMITTED",
    ]
    lsns = [row["lsn"] for row in log_before]
    assert lsns == sorted(lsns) and lsns[3] == lsns[4]
    assert log_before[4]["time"] == log_before[0]["time"] + 7
    for _ in range(3):
        client.checkpoint()
        send(client, b"z")
        assert client.admin.transaction_log(txn) == log_before
        assert bench.another(read_only=True).admin.transaction_log(txn) == log_before
    assert bench.reopen().admin.transaction_log(txn) == log_before


@pytest.mark.parametrize("seed", graded(range(2), 1))
def test_every_transaction_of_a_random_history_has_its_log(tmp_path: Path, seed: int) -> None:
    """The record of a transaction and its log agree, whether it is forgotten, merged or
    still open.
    """
    print(f"seed {seed}")
    bench = Bench(tmp_path / "store", coordinators=2, ledger_entries_max=7)
    random_history(bench, seed, checkpoints=True)
    client = bench.client
    client.flush()
    txn_rows = client.transactions(all=True)
    assert txn_rows
    for row in txn_rows:
        log = told(client, row["txn"])
        assert log[0][0] == "TxnOpened"
        ends = [str(detail) for op, detail in log if op == "StatusUpdated"]
        if row["state"] == "open":
            assert ends == []
        else:
            assert len(ends) == 2 and ends[1].endswith(row["state"].upper())
            assert row["reason"] is None or f"reason {row['reason']}," in ends[0]


def test_many_parts_become_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 parts at most; a merge loses no row."""
    monkeypatch.setattr(history, "PARTS_MAX", 3)
    client = bench.client
    txns = []
    for _ in range(8):
        txns.append(whole(client, bench))
        client.checkpoint()
        manifest = newest_manifest(client.store.disk, client.store.identity.salt, 0)[0]
        assert 1 <= len(manifest.history) <= 3
        for txn in txns:
            assert [op for op, _ in told(client, txn)].count("StatusUpdated") == 2
    paths = {Path(bench.path, ref.path) for ref in manifest.history}
    assert paths <= set(parts(bench))
    client.checkpoint()
    sweep_unnamed(client.store)
    assert paths <= set(parts(bench))


def test_history_ends_with_the_retention_of_records(bench: Bench) -> None:
    """A part is removed when all of it is older than txn_ended_retention_ms."""
    client = bench.client
    old = whole(client, bench)
    client.checkpoint()
    bench.clock.advance(client.settings.txn_ended_retention_ms - 10)
    young = whole(client, bench)
    client.checkpoint()
    first, second = parts(bench)
    bench.clock.advance(1000)
    send(client, b"a")
    client.checkpoint()
    assert told(client, young)
    with pytest.raises(TransactionNotFound) as caught:
        client.admin.transaction_log(old)
    assert caught.value.code == 305
    bench.clock.advance(10_000)
    send(client, b"b")
    client.checkpoint()
    send(client, b"c")
    client.checkpoint()
    assert first not in parts(bench)
    assert second in parts(bench)


def test_a_clock_that_was_set_back_costs_no_history(bench: Bench) -> None:
    """A part with times of 1970 does not remove the parts before it."""
    client = bench.client
    young = whole(client, bench)
    client.checkpoint()
    now_ms = bench.clock.now().wall_ms
    bench.clock.set_wall(5_000)
    whole(client, bench)
    client.checkpoint()
    bench.clock.set_wall(now_ms + 1000)
    for _ in range(2):
        send(client, b"a")
        client.checkpoint()
    assert told(client, young)


def test_history_is_bounded_by_count(tmp_path: Path) -> None:
    """A busy hour may not fill the disk."""
    bench = Bench(tmp_path / "store", reader_grace_ms=0, txn_ended_retention_count=2)
    client = bench.client
    client.create_topic("t", 2)
    client.create_subscription("t", "s")
    for _ in range(12):
        whole(client, bench)
        client.checkpoint()
    manifest = newest_manifest(client.store.disk, client.store.identity.salt, 0)[0]
    assert sum(ref.rows for ref in manifest.history) <= 2 * history.ROWS_PER_TXN + 10


@pytest.mark.parametrize("setting", ["txn_ended_retention_ms", "txn_ended_retention_count"])
def test_nothing_is_kept_when_nothing_is_remembered(tmp_path: Path, setting: str) -> None:
    bench = Bench(tmp_path / "store", **{setting: 0})
    bench.client.create_topic("t", 2)
    bench.client.create_subscription("t", "s")
    whole(bench.client, bench)
    bench.client.checkpoint()
    assert parts(bench) == []


def test_a_damaged_part_is_named(bench: Bench) -> None:
    """R5: Arrow gets no unchecked byte, and everything except the log goes on."""
    client = bench.client
    txn = whole(client, bench)
    client.checkpoint()
    (path,) = parts(bench)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    with pytest.raises(Corruption, match="transaction_log"):
        client.admin.transaction_log(txn)
    assert client.show_transaction(txn)["state"] == "committed"


def test_checkpoints_go_on_with_a_damaged_part(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts are not merged until a repair forgets the damaged one; the journal does not grow
    meanwhile.
    """
    monkeypatch.setattr(history, "PARTS_MAX", 2)
    client = bench.client
    whole(client, bench)
    client.checkpoint()
    (path,) = parts(bench)
    path.chmod(0o600)
    path.write_bytes(b"nothing of it")
    for _ in range(3):
        whole(client, bench)
        assert not client.checkpoint()["skipped"]
    manifest = newest_manifest(client.store.disk, client.store.identity.salt, 0)[0]
    assert len(manifest.history) == 4


def test_unnamed_parts_are_swept(bench: Bench) -> None:
    """R19: the sweep removes the files of a pass that died before its manifest; named
    parts stay.
    """
    client = bench.client
    txn = whole(client, bench)
    client.checkpoint()
    (part,) = parts(bench)
    stray = part.with_name("0000009999.arrow")
    stray.write_bytes(b"left behind")
    client.checkpoint()
    assert parts(bench) == [part]
    assert told(client, txn)


def test_ids_that_never_were(bench: Bench) -> None:
    with pytest.raises(TransactionNotFound) as caught:
        bench.client.admin.transaction_log(TxnId(1, 77))
    assert caught.value.code == 304


def test_a_part_is_plain_arrow(bench: Bench) -> None:
    """docs/format.md 5: a part can be read without this program."""
    whole(bench.client, bench)
    bench.client.checkpoint()
    with pa.ipc.open_file(parts(bench)[0]) as reader:
        rows = reader.read_all()
    assert rows.schema == history.HISTORY
    assert set(rows.column("op").to_pylist()) == {
        "IdsReserved",
        "TxnOpened",
        "PartitionAdded",
        "SubscriptionAdded",
        "StatusUpdated",
    }


def test_many_ops_become_columns_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rows in the same order: kind by kind, so that equal LSNs sort as in their frame."""
    items = [
        item
        for lsn in range(1, 12)
        for item in (
            (lsn, 5, TxnOpened(1, lsn, 1, "ana", 9, 10, "boot", 10)),
            (lsn, 5, StatusUpdated(1, lsn, "OPEN", "COMMITTING")),
            (lsn, 5, TxnsForgotten(1, [lsn, lsn + 1])),
        )
    ]
    whole = history.table_of(items)
    monkeypatch.setattr(history, "ITEMS_MAX", 4)
    pieces = history.table_of(items)
    assert pieces.column("lsn").num_chunks > whole.column("lsn").num_chunks
    assert pieces.equals(whole)

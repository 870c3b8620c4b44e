"""Logs of changes: changes of keys, cursors and the catalog, in files of standard formats."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import duckdb
import msgspec
import pyarrow as pa
import pytest
from pyroaring import BitMap64

from tests.engine_kit import Bench, begin, send
from tests.laws.history import random_history
from tests.tiers import graded
from txlog import Client
from txlog.client.answers import integrity
from txlog.engine.model.ops import KeyConnected, Op
from txlog.engine.storage.disk import posix as disk_module
from txlog.engine.storage.disk.posix import PosixDisk
from txlog.engine.storage.manifest import (
    ChangeRef,
    Manifest,
    changes_of,
    encode_manifest,
    generations,
    manifest_path,
    read_manifest,
)
from txlog.engine.upkeep.changes import log
from txlog.engine.upkeep.changes import rows as changes
from txlog.engine.upkeep.verify.findings import Findings
from txlog.engine.upkeep.verify.verify import verify
from txlog.engine.view import HOMES
from txlog.lake.sql.client_query import Query

pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 2}, [("t", "s")], reader_grace_ms=0, coordinators=2),
]
Row = dict[str, Any]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limits, so that a few rows make the program merge, seal and split files."""
    monkeypatch.setattr(log, "PARTS_MAX", 2)
    monkeypatch.setattr(log, "SEALED_BYTES", 21_000)
    monkeypatch.setattr(log, "OWN_ROWS", 4)


def newest_of(client: Client) -> Manifest:
    store = client.store
    return read_manifest(store.disk, max(generations(store.disk)), store.identity.salt)


def files(client: Client, kind: str | None = None) -> list[ChangeRef]:
    return [r for r in changes_of(newest_of(client)).refs if kind in (None, r.kind)]


def rows(client: Client, kind: str) -> list[Row]:
    found_rows = [log.read(client.store.disk, ref).to_pylist() for ref in files(client, kind)]
    return [row for table in found_rows for row in table]


def of_cursor(client: Client, partition: int = 0, subscription: str = "s") -> list[Row]:
    key = (partition, subscription)
    return [r for r in rows(client, "cursor") if (r["partition"], r["subscription"]) == key]


def problems(bench: Bench, client: Client | None = None) -> list[str]:
    """The errors and warnings of a deep verify, before any writer opens the store."""
    findings = Findings()
    disk = PosixDisk(bench.path)
    try:
        report = verify(disk, bench.clock.now(), findings, deep=True)
        assert report is not None
        report.close()
    finally:
        disk.close()
    return [problem.message for problem in findings.problems]


def spans(rows: list[Row] | None) -> list[tuple[int, int]]:
    return [(row["first"], row["last"]) for row in rows or ()]


UNRECORDED = {
    "ConsumerAttached": "leases are not changes: they end with their holder",
    "ConsumerDetached": "as above",
    "Leased": "as above",
    "AckConflicted": "a count; the same frame aborts its transaction",
    "ClockNoted": "every checkpoint has one",
    "TxnOpened": "the transaction log has it; the catalog only counts",
    "TxnEnded": "as above",
    "LedgerRolled": "where rows lie, not what there is; `segment list` has it",
    "LedgerReserved": "as above",
    "LedgerTrimmed": "as above",
    "Compacted": "as above",
    "PartitionCompacted": "as above",
}


def test_every_op_of_a_key_a_cursor_or_the_catalog_is_a_row_or_not_meant_to_be() -> None:
    """Guards against a change that is missing in the log of changes."""
    folds = [HOMES[kind] for kind in changes.SCHEMAS]
    received = {op for op in get_args(Op) if any(hasattr(fold, op.__name__) for fold in folds)}
    assert {op.__name__ for op in received - changes.TAKES.keys()} == UNRECORDED.keys()
    assert changes.TAKES.keys() <= received
    of_catalog = {
        op for op, take in changes.TAKES.items() if take is changes.CollectedChanges.of_catalog
    }
    assert of_catalog == changes._OBJECTS.keys()


# --- rows ------------------------------------------------------------------------------------


def test_each_change_of_a_key_is_a_row_with_the_state_behind_it(bench: Bench) -> None:
    client = bench.client
    client.connect("k")
    first = client.begin(key="k", epoch=0)["txn"]
    client.checkpoint()
    client.commit(first)
    client.connect("k")
    client.admin.delete_transaction_key("k")
    client.checkpoint()
    found_rows = rows(client, "key")
    assert [
        (r["change"], r["epoch"], r["txn"], r["open_txn"], r["deleted"]) for r in found_rows
    ] == [
        ("connected", 0, None, None, False),
        ("bound", 0, str(first), str(first), False),
        ("released", 0, str(first), None, False),
        ("connected", 1, None, None, False),
        ("deleted", 1, None, None, True),
    ]
    assert {r["transaction_key"] for r in found_rows} == {"k"}
    lsns = [r["lsn"] for r in found_rows]
    assert lsns == sorted(lsns)
    assert problems(bench) == []


def test_each_change_of_a_cursor_is_a_row_and_the_last_has_its_state(bench: Bench) -> None:
    client = bench.client
    sent = send(client, *(b"%d" % n for n in range(8)))
    client.acknowledge("t", "s", sent[2:4])
    txn = begin(client)
    client.acknowledge("t", "s", sent[5:6], txn=txn)
    client.checkpoint()
    cursor_rows = of_cursor(client)
    assert [(r["change"], spans(r["ranges"]), r["complete"]) for r in cursor_rows] == [
        ("opened", [], False),
        ("acknowledged", [(2, 3)], False),
        ("held", [(5, 5)], True),
    ]
    assert spans(cursor_rows[2]["acknowledged"]) == [(2, 3)]
    (pending_entry,) = cursor_rows[2]["pending"]
    assert (pending_entry["txn"], spans(pending_entry["ranges"])) == (str(txn), [(5, 5)])
    assert cursor_rows[1]["acknowledged"] is None and cursor_rows[1]["pending"] is None
    client.commit(txn)
    client.acknowledge("t", "s", sent[:2])
    client.checkpoint()
    cursor_rows = of_cursor(client)[3:]
    assert [(r["change"], r["txn"], r["complete"]) for r in cursor_rows] == [
        ("committed", str(txn), False),
        ("acknowledged", None, True),
    ]
    assert (cursor_rows[1]["mark_entry"], spans(cursor_rows[1]["acknowledged"])) == (3, [(5, 5)])
    assert cursor_rows[1]["pending"] == [] and cursor_rows[1]["acknowledged_messages"] == 5
    client.subscription("t", "s").seek("earliest")
    client.checkpoint()
    assert [r["change"] for r in of_cursor(client)][5:] == ["sought"]
    assert problems(bench) == []


def test_acknowledgements_within_a_second_are_one_row(bench: Bench) -> None:
    """A busy subscription writes one frame for each acknowledgement; leases are not changes."""
    client = bench.client
    sent = send(client, *(b"%d" % n for n in range(10)))
    for number, message_id in enumerate([*sent[:6], *sent[7:]]):
        if number == 6:
            bench.clock.advance(changes.MERGED_MS)
        client.acknowledge("t", "s", [message_id])
    client.checkpoint()
    first, second = of_cursor(client)[1:]
    assert (first["changes"], first["messages"], first["mark_entry"]) == (6, 6, 5)
    assert first["ranges"] == [] and first["lsn"] - first["first_lsn"] == 5
    assert (second["changes"], spans(second["ranges"])) == (3, [(7, 9)])
    assert second["mark_entry"] == 5


def test_a_row_merges_at_most_merged_max_acknowledgements(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "MERGED_MAX", 4)
    client = bench.client
    for message_id in send(client, *(b"%d" % n for n in range(9))):
        client.acknowledge("t", "s", [message_id])
    client.checkpoint()
    assert [r["changes"] for r in of_cursor(client)[1:]] == [4, 4, 1]


def test_more_ranges_than_a_row_takes_are_bitmaps_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = bench.client
    sent = send(client, *(b"%d" % n for n in range(200)))
    client.acknowledge("t", "s", sent[1::2])
    client.checkpoint()
    last = of_cursor(client)[-1]
    assert spans(last["acknowledged"]) == [(n, n) for n in range(1, 200, 2)]
    monkeypatch.setattr(changes, "RANGES_MAX", 90)
    client.acknowledge("t", "s", sent[2:3])
    client.checkpoint()
    last = of_cursor(client)[-1]
    assert last["acknowledged"] is None
    (whole,) = last["bitmaps"]
    expected = pa.array([1, 2, *range(3, 200, 2)])
    assert list(BitMap64.deserialize(whole["bitmap"])) == expected.to_pylist()
    assert problems(bench) == []


def test_schemas_that_come_and_go_are_rows(bench: Bench) -> None:
    client = bench.client
    schemas = client.topic("t").schemas
    schemas.add(pa.schema([("a", pa.int64())]))
    client.checkpoint()
    count_before = len(rows(client, "catalog"))
    schemas.add(pa.schema([("a", pa.int64()), ("b", pa.string())]))
    newest = schemas.get()
    schemas.delete()
    client.checkpoint()
    found_rows = rows(client, "catalog")[count_before:]
    assert [(r["change"], r["entity"], r["topic"], r["deleted"]) for r in found_rows] == [
        ("schema_added", "topic/1/schema/2", "t", False),
        ("schemas_deleted", "topic/1/schema/1", "t", True),
        ("schemas_deleted", "topic/1/schema/2", "t", True),
    ]
    parsed = json.loads(found_rows[0]["value"])
    assert parsed == {"type": "json", "definition": newest.definition}
    assert problems(bench) == []


def test_each_change_of_the_catalog_is_a_row(bench: Bench) -> None:
    client = bench.client
    client.checkpoint()
    count_before = len(rows(client, "catalog"))
    client.set_policies("t", ttl_ms=5000)
    client.set_policies("t", ttl_ms=None)
    client.create_topic("u", 3)
    client.create_subscription("u", "v", type="shared")
    client.subscription("u", "v").delete()
    client.admin.delete_topic("u")
    client.checkpoint()
    found_rows = rows(client, "catalog")[count_before:]
    assert [(r["change"], r["topic"], r["name"], r["value"], r["deleted"]) for r in found_rows] == [
        ("policy_set", "t", "ttl_ms", "5000", False),
        ("policy_set", "t", "ttl_ms", None, True),
        ("topic_created", "u", None, '{"number":2,"partitions":3}', False),
        (
            "subscription_created",
            "u",
            None,
            '{"number":2,"type":"shared","isolation":"committed"}',
            False,
        ),
        ("subscription_deleted", "u", None, None, True),
        ("topic_deleted", "u", None, None, True),
    ]
    assert problems(bench) == []


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.deep), pytest.param(2, marks=pytest.mark.deep)]
)
@pytest.mark.usefixtures("small")
def test_the_newest_rows_of_a_random_history_are_the_state(tmp_path: Path, seed: int) -> None:
    """Law 1 for rows: after any merges, seals and splits, the newest row equals the dump."""
    print(f"seed {seed}")
    bench = Bench(tmp_path / "store", coordinators=2, ledger_entries_max=7)
    random_history(bench, seed, checkpoints=True)
    bench.client.checkpoint()
    bench.client.close()
    assert [
        problem
        for problem in problems(bench)
        if "log of changes" in problem or "system/" in problem
    ] == []


# --- files -----------------------------------------------------------------------------------


def acked_rounds(client: Client, count: int) -> None:
    """Write this many checkpoints, each with changes of both cursors."""
    for _ in range(count):
        for partition in (0, 1):
            client.acknowledge("t", "s", send(client, b"a", b"b", partition=partition)[1:])
        client.checkpoint()


def test_a_checkpoint_adds_one_file_to_each_log_that_gained_rows(bench: Bench) -> None:
    """A thousand cursors are one flush, not a thousand."""
    client = bench.client
    for number in range(20):
        client.create_subscription("t", f"s{number}")
    client.checkpoint()
    assert [r.path for r in files(client)] == [
        "system/cursors/_part.0000000001.arrow",
        "system/catalog/_part.0000000001.arrow",
    ]
    acked_rounds(client, 1)
    assert [r.path for r in files(client)][1:-1] == ["system/cursors/_part.0000000002.arrow"]
    send(client, b"x")
    client.checkpoint()
    assert len(files(client)) == 3  # nothing has changed


def test_many_files_become_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PARTS_MAX", 3)
    client = bench.client
    acked_rounds(client, 8)
    assert 1 <= len(files(client, "cursor")) <= 3
    assert len(of_cursor(client)) == 9
    lsns = [r["lsn"] for r in of_cursor(client)]
    assert lsns == sorted(lsns)
    assert problems(bench) == []


@pytest.mark.usefixtures("small")
def test_enough_bytes_are_sealed_and_a_busy_cursor_gets_files_of_its_own(bench: Bench) -> None:
    client = bench.client
    client.create_subscription("t", "quiet")
    acked_rounds(client, 12)
    own_paths = [ref.path for ref in files(client, "cursor") if ref.subscription]
    assert {path.rpartition("/")[0] for path in own_paths} == {
        f"topics/public/default/t/partition={n}/_cursors/s" for n in (0, 1)
    }
    assert all(path.endswith(".parquet") for path in own_paths)
    assert len(of_cursor(client)) == 13
    assert problems(bench) == []
    client.checkpoint()
    assert all(Path(bench.path, path).exists() for path in own_paths)  # the sweep knows them


@pytest.mark.parametrize("how", graded(["compacted", "sealed"], 1))
def test_files_of_many_cursors_cost_few_flushes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """One flush for each file, and three for its directories, once took most of the time."""
    flushed: Counter[str] = Counter()
    fsync = os.fsync

    def one(fd: int) -> None:
        flushed["one"] += 1
        fsync(fd)

    def whole(fd: int) -> bool:
        flushed["all"] += 1
        return True

    def cost(cursors: int) -> Counter[str]:
        bench = Bench(tmp_path / f"{cursors}", reader_grace_ms=0)
        client = bench.client
        client.create_topic("t")
        for number in range(cursors):
            client.create_subscription("t", f"s{number}")
        client.checkpoint()
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", one)
            patched.setattr(disk_module, "sync_file_system", whole)
            patched.setattr(log, "PARTS_MAX", 0)
            patched.setattr(log, "SEALED_BYTES", 1)
            patched.setattr(log, "OWN_ROWS", 1)
            flushed.clear()
            if how == "compacted":
                client.admin.compact_changes()
            else:
                client.acknowledge("t", "s0", send(client, b"a"))
                client.checkpoint()
        assert len({ref.path for ref in files(client, "cursor") if ref.subscription}) == cursors
        assert problems(bench) == []
        bench.close()
        return Counter(flushed)

    few, many = cost(20), cost(60)
    assert many == few
    assert many["all"] >= 2  # the files, and their names


def test_names_of_cursors_are_percent_encoded(bench: Bench) -> None:
    client = bench.client
    client.create_subscription("t", "_ä")
    client.admin.compact_changes()
    assert {ref.path.split("/_cursors/")[1].split("/")[0] for ref in files(client, "cursor")} == {
        "s",
        "%5F%C3%A4",
    }
    assert problems(bench) == []


# --- what is kept ----------------------------------------------------------------------------


def test_only_the_newest_row_of_each_key_outlives_the_retention(bench: Bench) -> None:
    client = bench.client
    client.connect("quiet")
    acked_rounds(client, 3)
    assert len(of_cursor(client)) == 4
    bench.clock.advance(client.settings.change_retention_ms + 1)
    acked_rounds(client, 1)
    assert [(r["change"], r["mark_entry"]) for r in of_cursor(client)] == [
        ("acknowledged", -1),
        ("acknowledged", -1),
    ]
    assert [r["transaction_key"] for r in rows(client, "key")] == ["quiet"]
    assert problems(bench) == []


def test_rows_have_a_bound_in_bytes(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", reader_grace_ms=0, change_retention_bytes=30_000)
    bench.client.create_topic("t", 2)
    bench.client.create_subscription("t", "s")
    acked_rounds(bench.client, 12)
    kept_files = files(bench.client, "cursor")
    assert kept_files[0].newest and sum(ref.bytes for ref in kept_files[1:]) <= 30_000
    assert problems(bench) == []


def test_no_retention_no_rows_and_a_snapshot_once_there_is_one_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", reader_grace_ms=0, change_retention_ms=0)
    client = bench.client
    client.create_topic("t", 2)
    client.create_subscription("t", "s")
    acked_rounds(client, 2)
    assert files(client) == [] and problems(bench) == []
    client.admin.set_setting("change_retention_ms", 1000)
    acked_rounds(client, 2)
    cursor_rows = of_cursor(client)
    assert [r["change"] for r in cursor_rows] == ["snapshot", "acknowledged"]
    assert spans(cursor_rows[0]["acknowledged"]) == [(1, 1), (3, 3), (5, 5)]
    assert problems(bench) == []


def test_a_store_of_an_earlier_program_begins_its_logs_with_a_snapshot(bench: Bench) -> None:
    """A manifest without logs: the first rows have the whole state, so a log is complete
    by itself.
    """
    client = bench.client
    client.connect("k")
    acked_rounds(client, 2)
    store = client.store
    old = msgspec.structs.replace(newest_of(client), changes=Manifest.__struct_defaults__[-1])
    client.close()
    path = Path(bench.path, manifest_path(old.generation))
    path.chmod(0o600)
    path.write_bytes(encode_manifest(old, store.identity.salt))
    assert problems(bench)[0].endswith("is named by nothing")
    client = bench.reopen()
    acked_rounds(client, 1)
    assert [r["change"] for r in of_cursor(client)] == ["snapshot"]
    assert [r["change"] for r in rows(client, "key")] == ["snapshot"]
    assert {r["change"] for r in rows(client, "catalog")} == {"snapshot"}
    acked_rounds(client, 1)
    assert [r["change"] for r in of_cursor(client)] == ["snapshot", "acknowledged"]
    client.checkpoint()
    assert problems(bench) == []


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("whole_topic", [False, True])
def test_the_log_of_a_deleted_subscription_goes(bench: Bench, whole_topic: bool) -> None:
    client = bench.client
    client.create_topic("u")
    client.create_subscription("u", "s")
    acked_rounds(client, 12)
    if whole_topic:
        client.subscription("t", "s").delete()
        client.admin.delete_topic("t")
    else:
        client.subscription("t", "s").delete()
    client.checkpoint()
    assert {(r["topic"], r["subscription"]) for r in rows(client, "cursor")} == {("u", "s")}
    send(client, b"x", topic="u")
    client.checkpoint()
    remaining = [path for path in Path(bench.path).rglob("_cursors/*/*") if path.is_file()]
    assert remaining == []
    assert problems(bench) == []


# --- readers of the logs ----------------------------------------------------------------------


def asked(client: Client, sql: str) -> list[Row]:
    with Query(client, sql) as query:
        found_rows: list[Row] = query.rows().read_all().to_pylist()
        return found_rows


def test_relations_have_files_and_the_frames_behind_them(bench: Bench) -> None:
    """A query gives the same rows, whether a change is already in a file or still in a frame."""
    client = bench.client
    client.connect("k")
    acked_rounds(client, 2)
    sent = send(client, b"x", b"y")
    txn = client.begin(key="k", epoch=0)["txn"]
    client.acknowledge("t", "s", sent[1:], txn=txn)
    client.commit(txn)
    client.create_subscription("t", "gone")
    client.subscription("t", "gone").delete()
    sql = {
        "cursor_log": "SELECT * EXCLUDE (bitmaps, pending) FROM cursor_log ORDER BY ALL",
        "transaction_key_log": "FROM transaction_key_log ORDER BY ALL",
        "catalog_log": "FROM catalog_log ORDER BY ALL",
    }
    rows_before = {name: asked(client, text) for name, text in sql.items()}
    assert [r["change"] for r in rows_before["transaction_key_log"]] == [
        "connected",
        "bound",
        "released",
    ]
    last = rows_before["cursor_log"][-1]
    assert (last["change"], last["txn"], last["complete"]) == ("committed", str(txn), True)
    assert {r["subscription"] for r in rows_before["cursor_log"]} == {"s"}
    client.checkpoint()
    rows_after = {name: asked(client, text) for name, text in sql.items()}
    # The last row of a cursor after the files is also its last row in a checkpoint.
    assert rows_after == rows_before


def test_the_relations_of_a_store_without_logs_begin_with_its_state(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", reader_grace_ms=0, change_retention_ms=0)
    client = bench.client
    client.create_topic("t", 2)
    client.create_subscription("t", "s")
    acked_rounds(client, 1)
    client.acknowledge("t", "s", send(client, b"x"))
    found_rows = asked(client, "FROM cursor_log WHERE partition = 0 ORDER BY lsn")
    assert [r["change"] for r in found_rows] == ["snapshot", "acknowledged"]


def test_inspect_shows_the_newest_changes_and_the_content_of_a_file(bench: Bench) -> None:
    client = bench.client
    client.connect("k")
    acked_rounds(client, 7)
    client.connect("k")
    key = client.inspect("key:k")["change_list"]
    assert [(row["change"], row["epoch"]) for row in key] == [("connected", 1), ("connected", 0)]
    held_changes = client.inspect("sub:s")["change_list"]
    assert len(held_changes) == 10 and held_changes[0]["lsn"] > held_changes[-1]["lsn"]
    file = client.inspect(f"file:{bench.path}/{files(client, 'cursor')[0].path}")
    assert (file["type"], file["log"], file["rows"]) == ("changes", "cursor", 4)
    assert file["change_list"] == [
        {"change": "acknowledged", "rows": 2},
        {"change": "opened", "rows": 2},
    ]


def test_a_compaction_leaves_the_newest_row_of_each_and_a_stock_duckdb_reads_it(
    bench: Bench,
) -> None:
    client = bench.client
    client.connect("k")
    client.connect("k")
    client.connect("gone")
    client.admin.delete_transaction_key("gone")
    client.create_topic("u")
    client.admin.delete_topic("u")
    acked_rounds(client, 5)
    client.acknowledge("t", "s", send(client, b"x", partition=1))
    answer = {row["log"]: row for row in client.admin.compact_changes()}
    assert [row["rows_after"] for row in answer.values()][:2] == [2, 2]
    assert answer["cursor_log"]["rows_before"] == 13
    root = bench.path
    stock = duckdb.connect()
    keys = f"read_parquet('{root}/system/__transaction_key/*.parquet')"
    sql = f"SELECT transaction_key, epoch, deleted FROM {keys} ORDER BY 1"
    assert stock.sql(sql).fetchall() == [("gone", 0, True), ("k", 1, False)]
    cursors = f"read_parquet('{root}/topics/*/*/*/partition=*/_cursors/*/*.parquet')"
    found_rows = stock.sql(
        f"SELECT partition, unnest(acknowledged).last FROM {cursors} WHERE subscription = 's'"
        " ORDER BY ALL"
    ).fetchall()
    assert found_rows == [*((0, n) for n in range(1, 10, 2)), *((1, n) for n in (1, 3, 5, 7, 10))]
    topics = f"read_parquet('{root}/system/catalog/*.parquet')"
    assert stock.sql(
        f"SELECT topic, value ->> 'partitions' FROM {topics} WHERE starts_with(entity, 'topic/')"
    ).fetchall() == [("t", "2")]
    assert problems(bench) == []
    generation = max(generations(client.store.disk))
    client.admin.compact_changes()
    assert max(generations(client.store.disk)) == generation  # there was nothing to do
    acked_rounds(client, 1)
    assert [r["change"] for r in of_cursor(client)] == ["acknowledged", "acknowledged"]
    assert problems(bench) == []


# --- damage ----------------------------------------------------------------------------------


def damage(bench: Bench, ref: ChangeRef) -> None:
    path = Path(bench.path, ref.path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


@pytest.mark.parametrize("kind", ["key", "cursor", "catalog"])
@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_repair_makes_a_lost_file_again_of_the_state(bench: Bench, kind: str, how: str) -> None:
    client = bench.client
    client.connect("k")
    acked_rounds(client, 3)
    ref = files(client, kind)[0]
    client.close()
    if how == "damaged":
        damage(bench, ref)
    else:
        Path(bench.path, ref.path).unlink()
    assert any(ref.path in problem for problem in problems(bench))
    steps = repaired(bench)
    assert ("rebuild-changes", ref.path) in steps
    assert problems(bench) == []
    client = bench.reopen()
    assert [r["change"] for r in rows(client, kind)][-1] == "snapshot"
    acked_rounds(client, 1)
    assert problems(bench) == []


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_checkpoints_go_on_without_a_lost_file(bench: Bench, how: str) -> None:
    """Recovery needs no such file, and without checkpoints the journal would grow without bound."""
    client = bench.client
    acked_rounds(client, 1)
    ref = files(client, "cursor")[0]
    if how == "damaged":
        damage(bench, ref)
    else:
        Path(bench.path, ref.path).unlink()
    acked_rounds(client, 5)
    assert any("start anew" in report and ref.path in report for report in client.reports())
    assert ref.path not in [report.path for report in files(client)]
    assert problems(bench) == []


@pytest.mark.usefixtures("small")
def test_repair_makes_the_file_of_one_cursor_again(bench: Bench) -> None:
    client = bench.client
    acked_rounds(client, 12)
    ref = next(ref for ref in files(client, "cursor") if ref.subscription)
    client.close()
    damage(bench, ref)
    assert ("rebuild-changes", ref.path) in repaired(bench)
    client = bench.reopen()
    fresh = [r for r in rows(client, "cursor") if r["change"] == "snapshot"]
    assert [(r["subscription_number"], r["partition_number"]) for r in fresh] == [
        (ref.subscription, ref.partition)
    ]
    assert problems(bench) == []


def test_rows_that_contradict_the_state_are_found_and_made_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Correct checksums do not prove that the rows are correct."""
    client = bench.client
    with monkeypatch.context() as forgetful:
        forgetful.setattr(changes, "TAKES", {**changes.TAKES, KeyConnected: lambda *_: None})
        client.connect("k")
        acked_rounds(client, 1)
    client.close()
    (problem,) = problems(bench)
    assert problem.startswith("the log of changes: key ") and problem.endswith(" k has no row")
    assert repaired(bench, rebuild="changes")
    assert problems(bench) == []


def repaired(bench: Bench, rebuild: str | None = None) -> list[tuple[str, str | None]]:
    """The actions of a repair, with their paths."""
    answer = integrity.repair(bench.path, apply=True, rebuild=rebuild, clock=bench.clock)
    assert all(action["done"] for action in answer["action_list"])
    return [(action["action"], action["path"]) for action in answer["action_list"]]

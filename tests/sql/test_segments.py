"""Segments: files, their rows as they are stored, and a checksum over every byte (R5)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine_kit import Bench, begin, send, send_txn
from txlog import Bound
from txlog.base.ranges import parse_range
from txlog.engine.storage.manifest import changes_of
from txlog.errors import Corruption, InvalidArgument, NotFound, TopicNotFound
from txlog.lake.sql import segments

pytestmark = pytest.mark.usefixtures("quick_disk")


def rows(bench: Bench, word: str, wanted: str | None = None) -> list[tuple[int, int]]:
    """(kind, entry) of the rows that `segment cat` prints."""
    parsed = None if wanted is None else parse_range(wanted, 0)
    _, batches = segments.stored(bench.client, word, None, parsed)
    return [(row["kind"], row["entry"]) for batch in batches for row in batch.to_pylist()]


def listed_rows(*arguments: Any, **options: Any) -> Any:
    """`listed` with all columns: messages, file, size."""
    return segments.listed(*arguments, **options)


def test_messages_add_up_over_all_files(tmp_path: Path) -> None:
    """The files of a partition add up to its messages, in whatever form its rows are."""
    bench = Bench(tmp_path / "store")
    client = bench.client
    client.create_topic("t")
    for turn in range(3):
        send(client, b"a", b"b")
        send_txn(client, b"x", b"y", b"z")
        client.topic("t").watermarks.set(turn + 1, "till")
        client.checkpoint(roll_all=turn == 1)
    open_txn = begin(client)
    client.producer("t").send(b"held", txn=open_txn)
    listed = listed_rows(client, "t")
    partition_rows = [row for row in listed if not row["sidecar"]]
    assert sum(row["messages"] for row in partition_rows) == client.topics()[0]["messages"] == 15
    assert {row["state"] for row in listed} == {"sealed", "open"}
    assert sum(row["markers"] for row in partition_rows) == 3
    files = [row["file"] for row in listed if row["file"] is not None]
    assert all(Path(bench.path, file).is_file() for file in files)
    small = listed_rows(client, "t", small_bytes=2000)
    assert {row["file"] for row in small} == {
        file for file in files if Path(bench.path, file).stat().st_size < 2000
    }
    by_size = listed_rows(client, "t", sort="size")
    assert [row["size_bytes"] for row in by_size] == sorted(
        (row["size_bytes"] for row in listed), reverse=True
    )
    with pytest.raises(TopicNotFound):
        listed_rows(client, "none")
    bench.close()


def test_trimmed_files_are_listed_until_they_are_removed(tmp_path: Path) -> None:
    """R18: a frame drops a trimmed file, then a checkpoint; it is unreferenced, then removed."""
    bench = Bench(tmp_path / "store", reader_grace_ms=60_000)
    client = bench.client
    client.create_topic("t", 2)
    send(client, b"a", b"b")
    client.checkpoint(roll_all=True)
    send(client, b"c")
    send_txn(client, b"x")
    (old,) = (row for row in listed_rows(client, "t") if row["state"] == "sealed")

    def trimmed(**options: Any) -> Any:
        rows = listed_rows(client, "t", **options)
        assert sum(row["messages"] for row in rows if not row["sidecar"]) == 2
        matching = [row for row in rows if row["state"] == "trimmed" and row["file"] == old["file"]]
        return matching[0] if matching else None

    client.admin.trim("t", Bound("skip", 2), force_unacked=True)
    expected = {**old, "state": "trimmed", "messages": 0, "first_time": None, "last_time": None}
    assert trimmed() == trimmed(partition=0) == expected
    with pytest.raises(NotFound):
        segments.shown(client, "1")
    for name in ("other", "third"):
        assert trimmed() == expected
        client.create_topic(name)
        client.checkpoint()
    unknown = dict.fromkeys(("rows", "crc32c", "first", "last"))
    assert trimmed() == trimmed(sort="rows") == expected | unknown
    bench.clock.advance(60_000)
    client.create_topic("fourth")
    client.checkpoint()
    assert trimmed() is None
    bench.close()


def test_rows_come_as_they_are_from_files_and_frames(tmp_path: Path) -> None:
    """Markers and watermark rows too; a range is one of entries."""
    bench = Bench(tmp_path / "store")
    client = bench.client
    client.create_topic("t")
    send(client, b"a")
    send_txn(client, b"x")
    client.checkpoint()
    send(client, b"b")
    client.topic("t").watermarks.set(5, "till")
    assert rows(bench, "1") == [(0, 0), (1, 1), (0, 2), (3, 3)]
    assert rows(bench, "1", "+1") == [(1, 1), (0, 2), (3, 3)]
    assert rows(bench, "1", "-2") == [(0, 2), (3, 3)]
    assert rows(bench, "1", "1:1..1:3") == [(1, 1), (0, 2)]
    bench.close()


def test_a_damaged_file_is_not_printed(tmp_path: Path) -> None:
    """A file of the store, named by its ledger or by its path."""
    bench = Bench(tmp_path / "store")
    client = bench.client
    client.create_topic("t")
    send(client, b"a", b"b")
    client.checkpoint(roll_all=True)
    client.close()
    path = next(Path(bench.path, "topics").rglob("ledger-*.parquet"))
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)
    bench.reopen()
    for word in ("1", str(path)):
        with pytest.raises(Corruption):
            rows(bench, word)
    bench.close()


def test_files_of_changes_are_listed_and_shown(tmp_path: Path) -> None:
    """Of a cursor with its topic, the others with no topic; all that a manifest names, once."""
    bench = Bench(tmp_path / "store")
    client = bench.client
    for name in ("t", "u"):
        client.create_topic(name, 2)
        client.create_subscription(name, "s")
    client.connect("k")
    client.admin.compact_changes()
    client.acknowledge("t", "s", send(client, b"a"))
    client.checkpoint()
    refs = {ref.path: ref for ref in client.store.read(lambda v: changes_of(v.manifest)).refs}
    listed = [row for row in listed_rows(client, None) if row["log"] is not None]
    assert sorted(row["file"] for row in listed) == sorted(refs)
    for row in listed:
        ref = refs[row["file"]]
        assert (row["rows"], row["size_bytes"]) == (ref.rows, ref.bytes)
        assert row["size_bytes"] == Path(bench.path, row["file"]).stat().st_size
        assert row["state"] == ("sealed" if row["file"].endswith("parquet") else "open")
        inspected = segments.shown(client, row["file"])
        assert {name: value for name, value in inspected.items() if name in row} == row
        assert {item["name"] for item in inspected["column_list"]} >= {"lsn", "time", "change"}
        assert [item["rows"] for item in inspected["row_group_list"]] == [ref.rows]
        schema, batches = segments.stored(client, row["file"])
        assert sum(batch.num_rows for batch in batches) == ref.rows and "change" in schema.names
    assert {row["log"] for row in listed if row["topic"] is None} == {
        "transaction_key_log",
        "cursor_log",
        "catalog_log",
    }
    assert {(row["topic"], row["partition"]) for row in listed if row["topic"] is not None} == {
        ("t", 0),
        ("t", 1),
        ("u", 0),
        ("u", 1),
    }
    change_logs = [row for row in listed_rows(client, "t", 1) if row["log"] is not None]
    assert [(row["topic"], row["partition"], row["log"]) for row in change_logs] == [
        ("t", 1, "cursor_log")
    ]
    with pytest.raises(InvalidArgument):
        listed_rows(client, None, 0)
    with pytest.raises(InvalidArgument):
        segments.stored(client, change_logs[0]["file"], row_group=1)
    status = client.status()
    size = sum(ref.bytes for ref in refs.values())
    assert status["change_logs"] == {
        "files": len(refs),
        "rows": sum(ref.rows for ref in refs.values()),
        "size_bytes": size,
    }
    ledgers = sum(row["size_bytes"] for row in listed_rows(client, None) if not row["log"])
    assert status["store"]["size_bytes"] == status["journal"]["size_bytes"] + ledgers + size
    newest = max(Path(bench.path, "manifest").iterdir())
    file_names = {item["file"] for item in client.inspect(f"file:{newest}")["file_list"]}
    assert file_names == {row["file"] for row in listed_rows(client, None) if row["file"]}
    file = Path(bench.path, change_logs[0]["file"])
    file.chmod(0o600)
    file.write_bytes(bytes([*file.read_bytes()[:-9], *b"123456789"]))
    with pytest.raises(Corruption):
        segments.shown(client, change_logs[0]["file"])
    bench.close()

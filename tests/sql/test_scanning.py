"""Tests of relation.spans and relation.scans: bounds mean the same as for a reader."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import txlog
from tests.engine_kit import relation_of
from tests.sql.test_querying import SAME, STEPS, History
from txlog import Client, MessageId
from txlog.base.message_columns import TYPES
from txlog.base.ranges import Bound, Range
from txlog.engine.relation.relation import ALL, RelationFilter, Span
from txlog.engine.relation.scans import MESSAGES, Scan, grouped, read_scan, scans_of
from txlog.engine.storage.columns import schema_of
from txlog.engine.storage.disk.posix import PosixDisk
from txlog.errors import InvalidArgument, PartitionUnavailable, SnapshotExpired, TopicNotFound

pytestmark = pytest.mark.usefixtures("quick_disk")
Row = dict[str, object]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A client of a store with a topic `orders` of two partitions."""
    txlog.init(str(tmp_path / "store"))
    with txlog.open(str(tmp_path / "store")) as opened:
        opened.checkpoint_automatically = False
        opened.create_topic("orders", partitions=2)
        yield opened


def place(row: Row) -> tuple[int, int, int, int]:
    """Where a row stands, for sorting."""
    index = row.get("txn_index", row.get("index")) or 0
    values = (row["partition"], row["ledger"], row["entry"], index)
    return values  # type: ignore[return-value]


def scanned(path: str, scans: list[Scan], names: list[str] | None = None) -> list[Row]:
    """The rows of scans, read by another process as it were."""
    disk = PosixDisk(path, read_only=True)
    try:
        travelled: list[Scan] = pickle.loads(pickle.dumps(scans))
        tables = [
            table for scan in travelled for table in read_scan(disk, scan, names or MESSAGES.names)
        ]
    finally:
        disk.close()
    if not tables:
        return []
    rows: list[Row] = pa.concat_tables(tables).to_pylist()
    return rows if names else sorted(rows, key=place)


def found(client: Client, topic: str = "orders", wanted: RelationFilter = ALL) -> list[Row]:
    """The rows that scans of a topic have."""
    return scanned(client.path, scans_of(relation_of(client, topic, wanted)))


def read(client: Client, range: Range, partitions: list[int] | None = None) -> list[Row]:
    """The rows that a reader has."""
    tables = list(client.read("t", range=range, partitions=partitions))
    rows: list[Row] = pa.concat_tables(tables).to_pylist() if tables else []
    return sorted(rows, key=place)


def ids(rows: list[Row]) -> list[tuple[int, int, int, int]]:
    return [place(row) for row in rows]


def some_range(rng: random.Random, rows: list[Row]) -> Range:
    """A range of any kind that has a meaning for these rows."""
    bounds = [
        Bound("start"),
        Bound("end"),
        Bound("skip", rng.randrange(9)),
        Bound("last", rng.randrange(9)),
    ]
    if rows:
        row = rng.choice(rows)
        instant = row["visible_time"]
        bounds.append(Bound("time", int(instant.timestamp() * 1000)))  # type: ignore[attr-defined]
        partition = row["partition"]
        of_one = [one for one in rows if one["partition"] == partition]
        for one in rng.choices(of_one, k=2):
            index = one["index"] or 0
            bounds.append(Bound("id", MessageId(one["ledger"], one["entry"], index)))  # type: ignore[arg-type]
    return Range(rng.choice(bounds), rng.choice([None, *bounds]))


def compare(history: History, rng: random.Random) -> Counter[str]:
    """Scans equal a reader, for the whole topic and for ranges; returns counts of rows by kind."""
    client = history.client
    everything = read(client, Range())
    rows = found(client, "t")
    assert [{name: row[name] for name in SAME} for row in rows] == [
        {name: row[name] for name in SAME} for row in everything
    ]
    assert [(row["txn_index"], row["message_id"], row["size_bytes"]) for row in rows] == [
        (
            row["index"],
            str(MessageId(row["ledger"], row["entry"], row["index"] or 0)),  # type: ignore[arg-type]
            len(row["value"] or b""),  # type: ignore[arg-type]
        )
        for row in everything
    ]
    seen: Counter[str] = Counter()
    for _ in range(4):
        bounds = some_range(rng, everything)
        partitions = rng.choice([None, [0]])
        expected = read(client, bounds, partitions)
        got = found(client, "t", RelationFilter(partitions, bounds))
        assert ids(got) == ids(expected), (str(bounds), partitions)
        seen["ranges"] += 1
        seen["part"] += 0 < len(got) < len(everything)
    if everything:
        lsn = rng.choice([row["lsn"] for row in rows])
        assert isinstance(lsn, int)
        old = found(client, "t", RelationFilter(at_lsn=lsn))
        assert ids(old) == ids([row for row in rows if row["lsn"] <= lsn])  # type: ignore[operator]
        ends = {"lsn": (lsn, lsn)}
        scanned_rows = scanned(client.path, scans_of(relation_of(client, "t"), ends))
        assert [row for row in scanned_rows if row["lsn"] == lsn] == [
            row for row in rows if row["lsn"] == lsn
        ]
        seen["left out"] += len(scanned_rows) < len(rows)
    relation = relation_of(client, "t")
    for name in ("direct", "unclean", "open", "large_files"):
        seen[name] += len(getattr(relation, name))
    seen["tail"] += relation.tail.num_rows
    return seen


def run(folder: Path, seed: str, every: int = 6) -> Counter[str]:
    """Run one history, comparing after so many steps."""
    history = History(folder, seed)
    seen: Counter[str] = Counter()
    try:
        for number in range(STEPS):
            rng = random.Random(f"{seed}:{number}")
            history.step(rng)
            if number % every == every - 1:
                seen += compare(history, rng)
    except BaseException:
        print(f"seed {seed!r}: {' '.join(history.trace)}")
        raise
    finally:
        history.client.close()
    return seen


@pytest.mark.deep
def test_scans_read_the_messages_of_a_reader(tmp_path: Path) -> None:
    """API = scans, for the whole topic and ranges of every kind, with rows in any kind of file."""
    seen: Counter[str] = Counter()
    for seed in range(5):
        seen += run(tmp_path, f"scan-{seed}")
    assert {name for name, count in seen.items() if count} == {
        "ranges",
        "part",
        "left out",
        "direct",
        "unclean",
        "open",
        "large_files",
        "tail",
    }


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1060, 10))
def test_scans_read_the_messages_of_a_reader_in_many_histories(tmp_path: Path, first: int) -> None:
    """The same, 60 more."""
    for seed in range(first, first + 10):
        run(tmp_path, f"scan-{seed}", every=3)


def test_bounds_of_the_caller_are_checked(client: Client) -> None:
    """Kills: an LSN that is not there yet, a range that is no stretch, a partition too many."""
    client.producer("orders").send(b"x", partition=1)
    assert len(found(client, wanted=RelationFilter([1]))) == 1
    assert found(client, "orders/0") == []
    for wanted in (RelationFilter(at_lsn=99), RelationFilter(range=Range(kind="unacked"))):
        with pytest.raises(InvalidArgument):
            relation_of(client, "orders", wanted)
    with pytest.raises(TopicNotFound, match="no partition 2"):
        relation_of(client, "orders", RelationFilter([2]))


def test_spans_name_their_partitions(client: Client) -> None:
    """A stream asks by position; a partition that it does not name is left out."""
    for partition in (0, 1, 1):
        client.producer("orders").send(b"x", partition=partition)
    [ledger] = {row["ledger"] for row in found(client, "orders/1")}
    assert isinstance(ledger, int)
    span = Span((ledger, 1, 0), (ledger, 2, 0))
    assert ids(found(client, wanted=RelationFilter(spans={1: span}))) == [(1, ledger, 1, 0)]
    assert (
        found(client, wanted=RelationFilter(spans={1: Span((ledger, 2, 0), (ledger, 2, 0))})) == []
    )


def test_scan_of_an_unavailable_partition_is_an_error_or_left_out(client: Client) -> None:
    """Kills: a bound that is looked up in a partition which cannot be read."""
    for partition in (0, 1):
        client.producer("orders").send(b"x", partition=partition)
    client.admin.set_offline("orders", 1)
    late = RelationFilter(range=Range(Bound("time", 0)))
    with pytest.raises(PartitionUnavailable):
        relation_of(client, "orders", late)
    assert relation_of(client, "orders", late, skip_unavailable=True).unavailable == [1]


def test_file_that_was_removed_is_an_error(client: Client) -> None:
    """R21: kills: silently missing rows."""
    client.producer("orders").send(b"x", partition=0)
    client.checkpoint(roll_all=True)
    scans = scans_of(relation_of(client, "orders"))
    [source] = relation_of(client, "orders").direct
    Path(client.path, source.ref.path).unlink()
    with pytest.raises(SnapshotExpired, match=source.ref.path):
        scanned(client.path, scans)


def test_row_groups_outside_the_range_are_left_out(client: Client) -> None:
    """Kills: a range that reads a whole file, and statistics that leave out matching rows."""
    client.producer("orders/0").send_batch(pa.table({"value": [b"x" * 100] * 120_000}))
    client.checkpoint(roll_all=True)
    [scan] = scans_of(relation_of(client, "orders"))
    disk = PosixDisk(client.path, read_only=True)
    tables = list(read_scan(disk, scan, ["entry"], {"entry": (60_000, 60_001)}))
    read = pa.concat_tables(tables).column("entry").to_pylist()
    assert {60_000, 60_001} <= set(read)
    assert len(read) <= 50_000
    [part] = scans_of(
        relation_of(client, "orders", RelationFilter(range=Range(Bound("skip", 119_000))))
    )
    assert sum(table.num_rows for table in read_scan(disk, part, ["value"])) == 1000
    disk.close()


def test_a_large_topic_is_cut_into_tasks(client: Client) -> None:
    """Kills: one task for everything, and a task for each row group."""
    rng = random.Random(5)
    with client.transaction() as txn:
        for _ in range(6):
            values = [rng.randbytes(100_000) for _ in range(100)]
            client.producer("orders/0").send_batch(pa.table({"value": values}), txn=txn)
    client.checkpoint(roll_all=True)
    scans = [scan for scan in scans_of(relation_of(client, "orders")) if scan.rule == "clean"]
    assert [scan.start for scan in scans] == [0, *(scan.stop for scan in scans[:-1])]
    assert scans[-1].stop == 600
    assert len(scans) > 2
    assert [len(group) for group in grouped(scans)] == [1] * len(scans)
    [small] = [scan for scan in scans_of(relation_of(client, "orders")) if scan.rule == "plain"]
    assert [len(group) for group in grouped([small] * 9)] == [9]


def test_a_column_has_the_same_type_in_arrow_and_duckdb() -> None:
    """One declaration, several dialects: DuckDB reads the Arrow type as the one declared for it."""
    read = duckdb.from_arrow(schema_of(tuple(TYPES)).empty_table())
    declared = {name: column_type.duckdb for name, column_type in TYPES.items()}
    assert dict(zip(read.columns, map(str, read.types), strict=True)) == declared

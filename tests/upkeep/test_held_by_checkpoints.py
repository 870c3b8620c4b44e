"""The memory of a checkpoint: some parts, or one ledger, never all rows that were written."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.engine_kit import Bench
from txlog.base.startup import compute as pc
from txlog.engine.model.schema import MESSAGE
from txlog.engine.model.tail import Tail
from txlog.engine.storage import segment, segment_reader
from txlog.engine.storage.columns import conform, nulls_of
from txlog.engine.storage.disk.posix import PosixDisk
from txlog.engine.storage.segment import SegmentStream, arrow_module
from txlog.engine.storage.segment_reader import SegmentReader
from txlog.engine.upkeep.checkpoint import checkpoint
from txlog.engine.view import Files, View
from txlog.errors import Corruption

pytestmark = pytest.mark.usefixtures("quick_disk")
ROWS = 200


def store_of(tmp_path: Path, ledgers: int) -> Bench:
    """A store whose only topic has this many ledgers of ROWS rows, with and without keys."""
    bench = Bench(tmp_path / "store", ledger_entries_max=ROWS)
    bench.client.create_topic("t")
    producer = bench.client.producer("t")
    for number in range(ledgers):
        rows = {"value": [b"x" * 20] * ROWS}
        if number == 1:
            rows["key"] = [b"k%d" % at for at in range(ROWS)]
        producer.send_batch(pa.table(rows))
    return bench


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Switch garbage collection off: an object that stays after its last use is in a cycle."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive(*kinds: type) -> Counter[type]:
    """How many objects of each class exist."""
    return Counter(type(thing) for thing in gc.get_objects() if type(thing) in kinds)


@pytest.mark.usefixtures("uncollected")
def test_a_checkpoint_leaves_nothing_to_the_garbage_collector(tmp_path: Path) -> None:
    """Guards against a view for each checkpoint that a process which only sends keeps for minutes.

    Such a view has a run for each frame, and such a process makes few objects, so a collection is
    seldom due.
    """
    kinds = (View, Tail, Files, arrow_module("pyarrow.parquet").FileMetaData)
    bench = store_of(tmp_path, 1)
    bench.client.checkpoint()
    alive_before = alive(*kinds)
    assert alive_before[View] > 0
    for _ in range(3):
        bench.client.producer("t").send_batch(pa.table({"value": [b"x"] * 2 * ROWS}))
        assert bench.client.checkpoint()["sealed_ledgers"] > 0
    assert alive(*kinds) == alive_before


@pytest.mark.usefixtures("uncollected")
def test_a_scan_of_sealed_files_keeps_no_footer(tmp_path: Path) -> None:
    """Guards against a decoded footer, some 370 KB, for each ledger that a reader has passed."""
    footer = arrow_module("pyarrow.parquet").FileMetaData
    bench = store_of(tmp_path, 6)
    bench.client.checkpoint()
    alive_before = alive(footer)
    assert sum(map(len, bench.client.read("t"))) == 6 * ROWS
    assert alive(footer) == alive_before


def test_small_parts_are_flushed_some_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against keeping the parts of all ledgers in memory."""
    monkeypatch.setattr(checkpoint, "PARTS_BYTES", 10_000)
    bench = store_of(tmp_path, 6)
    together: list[int] = []
    publish_all = PosixDisk.publish_all

    def published(self: PosixDisk, files: Iterable[tuple[str, Sequence[Any]]]) -> None:
        paths = list(files)
        together.append(sum("/_ledger-" in path for path, _ in paths))
        publish_all(self, paths)

    monkeypatch.setattr(PosixDisk, "publish_all", published)
    bench.client.checkpoint()
    assert sum(together) == 6
    assert max(together) == 1


def test_large_ledgers_are_written_and_sealed_group_by_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a whole part, ledger or sealed file in memory, and caches of other files."""
    bench = store_of(tmp_path, 6)
    monkeypatch.setattr(segment, "GROUP_ROWS", 50)
    monkeypatch.setattr(checkpoint, "WHOLE_BYTES", 1)
    monkeypatch.setattr(segment_reader, "PART_BYTES", 1)
    held_rows: list[int] = []  # rows
    note = SegmentStream._note

    def noted(self: SegmentStream, table: pa.Table) -> None:
        held_rows.append(table.num_rows)
        note(self, table)

    decoded: list[int] = []
    read = SegmentReader._decoded

    def counted(self: SegmentReader, *arguments: Any) -> pa.Table:
        decoded.append(len(read(self, *arguments)))
        return read(self, *arguments)

    kept_rows: list[int] = []
    sealed = SegmentStream.sealed

    def begun(self: SegmentStream, *arguments: Any, **more: Any) -> Any:
        kept_rows.append(len(opened[-1].opened))
        return sealed(self, *arguments, **more)

    opened: list[Files] = []
    original = Files.__init__

    def initialized(self: Files, *arguments: Any) -> None:
        original(self, *arguments)
        opened.append(self)

    monkeypatch.setattr(SegmentStream, "_note", noted)
    monkeypatch.setattr(SegmentReader, "_decoded", counted)
    monkeypatch.setattr(SegmentStream, "sealed", begun)
    monkeypatch.setattr(Files, "__init__", initialized)
    bench.client.checkpoint()
    assert (
        sum(held_rows) == (6 + 5) * ROWS
    )  # each ledger has a part, and all but the last are sealed
    assert max(held_rows) == max(decoded) == 50
    assert kept_rows == [1] * 5  # only the part of the ledger that is sealed
    rows = pa.concat_tables(list(bench.client.read("t")))
    assert len(rows) == 6 * ROWS
    assert rows["key"].null_count == 5 * ROWS
    assert pc.count_distinct(rows["key"]).as_py() == ROWS


def test_a_part_made_in_pieces_is_as_one_made_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same columns and rows, also for a frame that has keyed rows of another ledger."""
    refs = []
    for name, size in (("at_once", 1 << 30), ("pieces", 1)):
        monkeypatch.setattr(checkpoint, "WHOLE_BYTES", size)
        bench = Bench(tmp_path / name)
        client = bench.client
        for topic in ("a", "b"):
            client.create_topic(topic)
        with client.transaction() as txn:
            client.producer("a", name="p").send_batch(pa.table({"value": [b"1", b"2"]}), txn=txn)
            client.producer("b").send_batch(
                pa.table({"key": [b"k", None, b"l"], "value": [b"1", b"2", b"3"]}), txn=txn
            )
        client.producer("b").send_batch(pa.table({"value": [b"4"]}))
        client.checkpoint()
        store = client.store
        for ref in store.read(lambda view: [*chain(*view.manifest.files.values())]):
            with closing(store.disk.open(ref.path)) as file:
                data = file.pread(0, ref.bytes)
                rows = SegmentReader(file, ref).rows(0, ref.rows)
            table = pa.ipc.open_file(data).read_all()
            comparable = msgspec.structs.replace(ref, bytes=0, crc=0, groups=[])
            refs.append((name, comparable, table.schema.names, rows.drop_columns(["publish_time"])))
    half = len(refs) // 2
    assert half >= 3
    assert [each_ref[1:] for each_ref in refs[:half]] == [each_ref[1:] for each_ref in refs[half:]]


def test_a_sealed_file_with_other_rows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R17: the comparison finds a row that differs in the last group."""
    monkeypatch.setattr(segment, "GROUP_ROWS", 50)
    bench = store_of(tmp_path, 2)
    sealed = SegmentStream.sealed

    def wrong(self: SegmentStream, tables: Iterable[pa.Table], *arguments: Any, **more: Any) -> Any:
        *first, last = tables
        at = last.schema.get_field_index("value")
        values = [*last.column("value").to_pylist()[:-1], b"y" * 20]
        last = last.set_column(at, "value", pa.array(values))
        return sealed(self, [*first, last], *arguments, **more)

    monkeypatch.setattr(SegmentStream, "sealed", wrong)
    with pytest.raises(Corruption, match="does not hold the rows it was made from"):
        bench.client.checkpoint()
    assert not [row for row in bench.client.segments() if row["form"] == "sealed"]


def test_null_columns_share_their_memory() -> None:
    """They equal plain nulls and have the same size in files, at the memory cost of one column."""
    total = 5000
    pool = pa.default_memory_pool()
    nulls_of(total)(pa.int64())  # the shared memory lives as long as the process
    bytes_allocated_before = pool.bytes_allocated()
    rows = conform(pa.table({"entry": pa.repeat(pa.scalar(1, pa.int64()), total)}))
    assert pool.bytes_allocated() - bytes_allocated_before < 4 * 8 * total
    assert rows.schema.equals(MESSAGE)
    for count in (10, total):
        nulls = nulls_of(count)
        for field in MESSAGE:
            new_nulls, plain = nulls(field.type), pa.nulls(count, field.type)
            new_nulls.validate(full=True)
            assert new_nulls.equals(plain)
            assert new_nulls.nbytes == plain.nbytes
            assert new_nulls.slice(3, 5).nbytes == plain.slice(3, 5).nbytes

"""What a checkpoint holds in memory at once: some parts, a ledger, never all that was written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.engine_kit import Bench
from txlog.engine.model.schema import MESSAGE
from txlog.engine.storage import segment
from txlog.engine.storage.columns import conform, nulls_of
from txlog.engine.storage.disk.posix import PosixDisk
from txlog.engine.storage.segment_reader import SegmentReader
from txlog.engine.upkeep.checkpoint import checkpoint, seal
from txlog.engine.view.files import Files
from txlog.errors import Corruption

pytestmark = pytest.mark.usefixtures("quick_disk")
ROWS = 200


def test_parts_are_flushed_some_together_and_sealed_group_by_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: the parts of all ledgers in memory, sealed ledgers twice, and what readers keep."""
    monkeypatch.setattr(segment, "GROUP_ROWS", 50)
    monkeypatch.setattr(checkpoint, "PARTS_BYTES", 1)
    bench = Bench(tmp_path / "store", ledger_entries_max=ROWS)
    bench.client.create_topic("t")
    producer = bench.client.producer("t")
    for _ in range(6):
        producer.send_batch(pa.table({"value": [b"x" * 20] * ROWS}))
    together: list[int] = []
    publish_all = PosixDisk.publish_all

    def published(self: PosixDisk, files: Iterable[tuple[str, Sequence[Any]]]) -> None:
        given = list(files)
        if any(path.endswith(".arrow") and "/_ledger-" in path for path, _ in given):
            together.append(len(given))
        publish_all(self, given)

    rows = SegmentReader.rows
    read: list[int] = []

    def noted(self: SegmentReader, start: int, stop: int, names: Any = None) -> pa.Table:
        read.append(stop - start)
        return rows(self, start, stop, names)

    kept: list[int] = []
    encode = segment.encode_sealed

    def encoded(*given: Any, **more: Any) -> Any:
        kept.append(len(opened[-1].opened))
        return encode(*given, **more)

    opened: list[Files] = []
    made = Files.__init__

    def begun(self: Files, *given: Any) -> None:
        made(self, *given)
        opened.append(self)

    monkeypatch.setattr(PosixDisk, "publish_all", published)
    monkeypatch.setattr(SegmentReader, "rows", noted)
    monkeypatch.setattr(seal, "encode_sealed", encoded)
    monkeypatch.setattr(Files, "__init__", begun)
    bench.client.checkpoint()
    assert together == [1] * 6
    assert kept == [1] * 5  # the part of the ledger that is sealed, and of no other
    assert read
    assert max(read) <= 50
    monkeypatch.undo()
    assert sum(map(len, bench.client.read("t"))) == 6 * ROWS


def test_a_sealed_file_with_other_rows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R17: a row that differs in the last group is found."""
    monkeypatch.setattr(segment, "GROUP_ROWS", 50)
    bench = Bench(tmp_path / "store", ledger_entries_max=ROWS)
    bench.client.create_topic("t")
    for _ in range(2):
        bench.client.producer("t").send_batch(pa.table({"value": [b"x" * 20] * ROWS}))
    encode = segment.encode_sealed

    def wrong(table: pa.Table, *given: Any, **more: Any) -> Any:
        at = table.schema.get_field_index("value")
        values = [*table.column("value").to_pylist()[:-1], b"y" * 20]
        return encode(table.set_column(at, "value", pa.array(values)), *given, **more)

    monkeypatch.setattr(seal, "encode_sealed", wrong)
    with pytest.raises(Corruption, match="does not hold the rows it was made from"):
        bench.client.checkpoint()
    assert not [row for row in bench.client.segments() if row["form"] == "sealed"]


def test_null_columns_share_their_memory() -> None:
    """As null as any, of the same size in files, at the cost of one."""
    total = 5000
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    rows = conform(pa.table({"entry": pa.repeat(pa.scalar(1, pa.int64()), total)}))
    assert pool.bytes_allocated() - before < 4 * 8 * total
    assert rows.schema.equals(MESSAGE)
    for count in (10, total):
        nulls = nulls_of(count)
        for field in MESSAGE:
            made, plain = nulls(field.type), pa.nulls(count, field.type)
            made.validate(full=True)
            assert made.equals(plain)
            assert made.nbytes == plain.nbytes
            assert made.slice(3, 5).nbytes == plain.slice(3, 5).nbytes

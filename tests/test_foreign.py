"""Tests of files that another writer left: what is said of them, and what is refused."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import txlog
from txlog.engine.flow.staging import Written
from txlog.engine.model.schema import INSTANT, MESSAGE
from txlog.engine.storage.disk import PosixDisk
from txlog.engine.storage.foreign import check_sums, describe
from txlog.engine.storage.segment_reader import SegmentReader
from txlog.engine.upkeep.adoption import remove_job
from txlog.errors import Corruption

pytestmark = pytest.mark.usefixtures("quick_disk")
TIME_MS = 1_700_000_000_000
COUNT = 250


def rows(count: int = COUNT, **other: Any) -> pa.Table:
    """Rows as Spark is asked to write them; other: columns that are not as they should be."""
    found = {
        "kind": pa.repeat(pa.scalar(0, pa.int8()), count),
        "entry": pa.arange(0, count),
        "publish_time": pa.repeat(pa.scalar(TIME_MS, INSTANT), count),
        "key": pa.array([b"k%d" % (n % 7) if n % 5 else None for n in range(count)], pa.binary()),
        "value": pa.array([b"v" * n if n % 11 else None for n in range(count)], pa.binary()),
        "properties": pa.array(
            [[("name", "é"), ("none", None)] if n % 3 else None for n in range(count)],
            MESSAGE.field("properties").type,
        ),
        "deliver_at": pa.array([n if n % 2 else None for n in range(count)], INSTANT),
        **other,
    }
    return pa.table(
        [found.get(f.name, pa.nulls(count, f.type)) for f in MESSAGE], names=MESSAGE.names
    )


def parquet(table: pa.Table, **options: Any) -> bytes:
    """A file of another writer."""
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=100, compression="zstd", **options)
    return sink.getvalue()


def sums_of(data: bytes, step: int = 512) -> bytes:
    """What Hadoop's local file system keeps beside a file."""
    sums = [zlib.crc32(data[at : at + step]) for at in range(0, len(data), step)]
    return b"crc\0" + struct.pack(f">I{len(sums)}I", step, *sums)


@pytest.fixture
def disk(tmp_path: Path) -> PosixDisk:
    """A directory."""
    (tmp_path / "root").mkdir(0o700)
    return PosixDisk(str(tmp_path / "root"))


def put(disk: PosixDisk, data: bytes, path: str = "f") -> None:
    """Give a file these bytes."""
    (Path(disk.description) / path).write_bytes(data)


class TestDescribe:
    """foreign.describe."""

    def test_file_is_described_as_readers_need_it(self, disk: PosixDisk) -> None:
        """Every byte is under a checksum, and the reader of segments reads the rows back."""
        table = rows()
        put(disk, parquet(table))
        found = describe(disk.open("f"), "f", TIME_MS)
        assert (found.ref.rows, found.ref.first, found.ref.last) == (COUNT, 0, COUNT - 1)
        assert [group[0] for group in found.ref.groups] == [100, 100, 50]
        reader = SegmentReader(disk.open("f"), found.ref)
        reader.verify()
        read = reader.rows(0, COUNT)
        for name in ("key", "value", "properties", "deliver_at", "entry"):
            assert read[name].combine_chunks().equals(table[name].combine_chunks()), name
        payload = sum(
            len(row["key"] or b"") + len(row["value"] or b"") for row in table.to_pylist()
        )
        assert found.payload_bytes == payload
        assert found.times is not None
        assert found.times.to_pylist() == [n if n % 2 else None for n in range(COUNT)]

    def test_file_without_rows_or_times(self, disk: PosixDisk) -> None:
        put(disk, parquet(rows(0)))
        put(disk, parquet(rows(3, deliver_at=pa.nulls(3, INSTANT))), "g")
        assert describe(disk.open("f"), "f", TIME_MS).ref.rows == 0
        assert describe(disk.open("g"), "g", TIME_MS).times is None

    @pytest.mark.parametrize(
        ("table", "text"),
        [
            (rows(entry=pa.arange(1, COUNT + 1)), "entries"),
            (rows(entry=pc.subtract(COUNT - 1, pa.arange(0, COUNT))), "entries"),
            (rows(kind=pa.array([1] + [0] * (COUNT - 1), pa.int8())), "kind"),
            (rows(kind=pa.nulls(COUNT, pa.int8())), "kind"),
            (rows(publish_time=pa.repeat(pa.scalar(TIME_MS + 1, INSTANT), COUNT)), "publish_time"),
            (rows().drop_columns(["lsn"]), "columns"),
            (rows().rename_columns({"lsn": "other"}), "columns"),
            (rows(event_time=pa.nulls(COUNT, pa.timestamp("us", "UTC"))), "columns"),
        ],
    )
    def test_what_readers_do_not_rely_on_is_refused(
        self, disk: PosixDisk, table: pa.Table, text: str
    ) -> None:
        put(disk, parquet(table))
        with pytest.raises(Corruption, match=text):
            describe(disk.open("f"), "f", TIME_MS)

    def test_file_that_was_cut_is_refused(self, disk: PosixDisk) -> None:
        data = parquet(rows())
        for length in (0, 7, 100, len(data) - 1):
            put(disk, data[:length])
            with pytest.raises(Corruption):
                describe(disk.open("f"), "f", TIME_MS)


class TestSums:
    """foreign.check_sums: every byte is as its writer had it."""

    @pytest.mark.parametrize("step", [1, 512, 4096, 3 << 20])
    def test_any_flipped_bit_is_found(self, disk: PosixDisk, step: int) -> None:
        data = bytearray(parquet(rows(), use_dictionary=False))
        sums = sums_of(bytes(data), step)
        put(disk, bytes(data))
        check_sums(disk.open("f"), "f", sums)
        for at in (0, 511, 512, len(data) // 2, len(data) - 1):
            data[at] ^= 4
            put(disk, bytes(data))
            with pytest.raises(Corruption):
                check_sums(disk.open("f"), "f", sums)
            data[at] ^= 4

    def test_other_lengths_and_other_sums_are_found(self, disk: PosixDisk) -> None:
        data = bytes(1024)
        sums = sums_of(data)
        put(disk, data)
        check_sums(disk.open("f"), "f", sums)
        for bad in (b"", sums[:4], b"CRC\0" + sums[4:], sums[:-4], sums + bytes(4),
                    b"crc\0" + bytes(4) + sums[8:]):  # fmt: skip
            with pytest.raises(Corruption):
                check_sums(disk.open("f"), "f", bad)
        for length in (0, 512, 1023, 1025):
            put(disk, bytes(length))
            with pytest.raises(Corruption):
                check_sums(disk.open("f"), "f", sums)


def test_batch_of_such_files_is_stored(tmp_path: Path) -> None:
    """Bulk.describe and commit; an empty file is none, and what is damaged is nothing at all."""
    txlog.init(str(tmp_path / "store"), durability="os")
    with txlog.open(str(tmp_path / "store")) as client:
        client.create_topic("t", partitions=2)
        for damage in (True, False):
            bulk = client.bulk("t", key="k", batch="1")
            bulk.prepare()
            folder = tmp_path / "store" / bulk.plan.directory
            time = pa.repeat(pa.scalar(bulk.plan.time_ms, INSTANT), COUNT)
            files = {"a": parquet(rows(publish_time=time)), "b": parquet(rows(0)),
                     "c": parquet(rows(publish_time=time))}  # fmt: skip
            for name, data in files.items():
                (folder / f".{name}.crc").write_bytes(sums_of(data))
                (folder / name).write_bytes(data[:-9] + b"?" + data[-8:] if damage else data)
            written = [Written("a", 1, 1, 1), Written("b", 0, 0, 0), Written("c", 1, 1, 0)]
            if damage:
                with pytest.raises(Corruption):
                    bulk.describe(written)
                assert bulk.abort() is None and not folder.exists()
                continue
            staged = bulk.describe(written)
            assert [(one.partition, one.number) for one in staged] == [(1, 1), (1, 0)]
            answer = bulk.commit(staged)
            assert (answer["messages"], answer["files"]) == (2 * COUNT, 2)
        assert not folder.exists()
        read = pa.concat_tables(client.read("t"))
        assert read["value"].to_pylist() == rows()["value"].to_pylist() * 2
        assert len({(one["ledger"], one["entry"]) for one in read.to_pylist()}) == 2 * COUNT


def test_directory_of_a_job_goes_with_directories_in_it(disk: PosixDisk) -> None:
    """What a dead driver of Spark leaves, and its tasks behind it."""
    folder = Path(disk.description) / "topics/_stage/job"
    deep = folder / "_temporary/0/_temporary/attempt_1"
    deep.mkdir(parents=True)
    (deep / "part").write_bytes(b"123")
    (deep / ".part.crc").write_bytes(b"1234")
    (folder / "one").write_bytes(b"12345")
    assert remove_job(disk, "topics/_stage/job") == 12
    assert disk.listdir("topics/_stage") == []

"""A journal whose frames contradict each other: verify names the frame, repair changes nothing.

The write path makes no such frames, so the tests write them by hand. Laws 1 and 4.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import txlog
from tests.engine_kit import Bench, read, send
from txlog.engine.model.ops import Appended, BufferCommitted, Op, encode_ops
from txlog.engine.model.schema import encode_rows, frame_schema
from txlog.engine.storage.disk.posix import PosixDisk
from txlog.engine.store.identity import read_identity
from txlog.engine.view import View
from txlog.errors import IntegrityError

pytestmark = pytest.mark.usefixtures("quick_disk")


def store_with(path: Path, *frames: tuple[Op, bytes]) -> tuple[Bench, list[int]]:
    """A store whose topic t holds a and b, then these frames, each one op and a row, if any."""
    bench = Bench(path)
    bench.client.create_topic("t")
    assert [str(message) for message in send(bench.client, b"a", b"b")] == ["1:0", "1:1"]
    bench.close()
    disk, now = PosixDisk(bench.path), bench.clock.now()
    view = View.open(disk, read_identity(disk).salt, now.boot_id)
    try:
        view.journal.read_valid()
        lsns = []
        for op, value in frames:
            rows = pa.RecordBatch.from_arrays(
                [pa.array([value], pa.binary())], schema=frame_schema(0)
            )
            columns, data = encode_rows(rows) if value else (0, None)
            frame = view.journal.append(encode_ops([op]), data, columns, now.wall_ms)
            lsns.append(frame.lsn)
        view.journal.flush()
    finally:
        view.close()
        disk.close()
    return bench, lsns


def message_at(entry: int) -> Appended:
    """A plain message of one byte at an entry of ledger 1."""
    return Appended(1, 1, entry, 0, 1, 1)


def test_an_entry_that_was_given_out_twice_is_damage(tmp_path: Path) -> None:
    """Plain and deep verify name the second frame; repair changes no byte."""
    bench, lsns = store_with(
        tmp_path / "store", (message_at(2), b"c"), (message_at(2), b"d"), (message_at(3), b"e")
    )
    with pytest.raises(IntegrityError, match="does not follow the last"):
        read(bench.another())
    bench.close()
    for deep in (False, True):
        report = txlog.verify(bench.path, clock=bench.clock, deep=deep)
        (problem,) = report["problem_list"]
        assert problem["code"] == "TXL-604"
        assert f"LSN {lsns[1]} contradicts what comes before it: " in problem["message"]
        assert str(problem["path"]).startswith("journal/")
        assert problem["offset"]
    contents_before = {
        file: file.read_bytes() for file in Path(bench.path).rglob("*") if file.is_file()
    }
    for apply in (False, True):
        outcome = txlog.repair(bench.path, apply=apply, accept_loss=True, clock=bench.clock)
        (action,) = outcome["action_list"]
        assert (action["action"], action["done"]) == ("restore", False)
        assert f"LSN {lsns[1]} contradicts" in action["detail"]
    contents_after = {
        file: file.read_bytes() for file in Path(bench.path).rglob("*") if file.is_file()
    }
    assert contents_after == contents_before


def test_verify_names_the_first_of_several_components(tmp_path: Path) -> None:
    """A sidecar that ends a transaction it does not have comes before the partition's frames."""
    bench, lsns = store_with(
        tmp_path / "store",
        (BufferCommitted(1, 0, 99, 1, 2, 1, 2), b""),
        (message_at(9), b"c"),
    )
    (problem,) = txlog.verify(bench.path, clock=bench.clock)["problem_list"]
    assert f"LSN {lsns[0]} contradicts" in problem["message"]

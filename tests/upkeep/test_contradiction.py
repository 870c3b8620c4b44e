"""A journal whose frames contradict each other: found by plain verify, mended without a loss.

A process that wrote a frame and did not apply it went on from what it knew before: the next frame
gives the same entry out again. Such stores are written here by hand, frame by frame. Laws 1 and 4.
"""

from __future__ import annotations

import errno
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txlog
from tests.crash.test_repairs import Fault
from tests.crash.world import open_client, read_messages
from tests.engine_kit import Bench, read, send, values
from txlog.answers.integrity import repair_disk, verify_disk
from txlog.clock import ManualClock
from txlog.engine.model.ops import Appended, BufferAppended, Op, SequencesStored, encode_ops
from txlog.engine.model.schema import encode_rows, frame_schema
from txlog.engine.storage.disk.memory import Killed, MemoryDisk
from txlog.engine.storage.disk.posix import PosixDisk
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.store.identity import make_store, read_identity
from txlog.engine.view.view import View
from txlog.errors import IntegrityError, Refused, TxlogError
from txlog.rows.store import Repaired
from txlog.settings import Settings

pytestmark = pytest.mark.usefixtures("quick_disk")
START_MS = 1_700_000_000_000


def write(disk: Disk, clock: ManualClock, frames: list[tuple[list[Op], list[bytes]]]) -> list[int]:
    """Append frames as they are given and flush them; nothing looks at them. Returns the LSNs."""
    now = clock.now()
    view = View.open(disk, read_identity(disk).salt, now.boot_id)
    try:
        view.journal.read_valid()
        out = []
        for ops, rows in frames:
            batch = pa.RecordBatch.from_arrays(
                [pa.array(rows, pa.binary())], schema=frame_schema(0)
            )
            columns, data = encode_rows(batch) if rows else (0, None)
            out.append(view.journal.append(encode_ops(ops), data, columns, now.wall_ms).lsn)
        view.journal.flush()
        return out
    finally:
        view.close()


def app(entry: int, *rows: bytes, ledger: int = 1, **more: Any) -> tuple[list[Op], list[bytes]]:
    """Plain messages at an entry of partition 1."""
    size = sum(map(len, rows))
    return [Appended(1, ledger, entry, 0, len(rows), size, **more)], [*rows]


def store(tmp_path: Path, *frames: tuple[list[Op], list[bytes]]) -> tuple[Bench, list[int]]:
    """Topic t with a, b at 1:0 and 1:1, then these frames."""
    bench = Bench(tmp_path / "store")
    bench.client.create_topic("t")
    bench.client.create_subscription("t", "s")
    ids = send(bench.client, b"a", b"b")
    assert [str(one) for one in ids] == ["1:0", "1:1"]
    bench.close()
    disk = PosixDisk(bench.path)
    lsns = write(disk, bench.clock, list(frames))
    disk.close()
    return bench, lsns


def repaired(bench: Bench, **how: Any) -> Repaired:
    return txlog.repair(bench.path, apply=True, clock=bench.clock, **how)


def test_a_frame_that_was_not_gone_on_from_is_moved_behind_the_others(tmp_path: Path) -> None:
    """No message is lost, and every id that was answered stays what it was."""
    bench, lsns = store(
        tmp_path, app(2, b"unknown", b"too"), app(2, b"c"), app(3, b"d"), app(4, b"e")
    )
    with pytest.raises(IntegrityError, match="does not follow the last"):
        read(bench.another())
    bench.close()
    for deep in (False, True):
        found = txlog.verify(bench.path, clock=bench.clock, deep=deep)
        assert [one["code"] for one in found["problem_list"]] == ["TXL-604"]
        assert f"LSN {lsns[1]} contradicts" in found["problem_list"][0]["message"]
        assert str(found["problem_list"][0]["path"]).startswith("journal/")
    plan = txlog.repair(bench.path, clock=bench.clock)
    (action,) = plan["action_list"]
    assert (action["action"], action["first"], plan["messages_lost"]) == ("move-frame", lsns[0], 0)
    assert "2 messages under new ids: 1:5 to 1:6 for 1:2 to 1:3" in action["detail"]
    done = repaired(bench)
    assert [(one["action"], one["done"]) for one in done["action_list"]] == [("move-frame", True)]
    client = bench.another()
    assert [(str(m.message_id), m.value) for m in read(client)] == [
        ("1:0", b"a"),
        ("1:1", b"b"),
        ("1:2", b"c"),
        ("1:3", b"d"),
        ("1:4", b"e"),
        ("1:5", b"unknown"),
        ("1:6", b"too"),
    ]
    assert str(send(client, b"f")[0]) == "1:7"
    client.checkpoint()
    assert values(bench.reopen())[-3:] == [b"unknown", b"too", b"f"]
    warned = txlog.verify(bench.path, clock=bench.clock, deep=True)["problem_list"]
    assert [one["code"] for one in warned] == ["quarantine"], "a copy of the journal as it was"
    bench.close()


def test_what_its_producer_repeated_is_not_stored_twice(tmp_path: Path) -> None:
    """Its sequence is there: the frame that was not gone on from has nothing to keep."""
    once: dict[str, Any] = {"producer": "p", "last_sequence": 7}
    bench, _ = store(tmp_path, app(2, b"x", **once), app(2, b"x", **once), app(3, b"y"))
    assert repaired(bench)["messages_lost"] == 0
    assert values(bench.another()) == [b"a", b"b", b"x", b"y"]
    bench.close()


def with_numbers(
    entry: int, runs: list[int], *rows: bytes, row: int = -1
) -> tuple[list[Op], list[bytes]]:
    """Messages of producer p, and the op that says which sequences they store."""
    ops, given = app(entry, *rows, producer="p")
    return [*ops, SequencesStored(1, "p", runs, row)], given


def test_numbers_in_gaps_that_were_repeated_are_not_stored_twice(tmp_path: Path) -> None:
    """The op behind the messages says their numbers: 3 and 7 are stored, 4 is left out."""
    frame = with_numbers(2, [3, 3, 7, 7], b"x", b"y")
    bench, _ = store(tmp_path, frame, frame, app(4, b"z"))
    assert repaired(bench)["messages_lost"] == 0
    assert values(bench.another()) == [b"a", b"b", b"x", b"y", b"z"]
    producer = bench.another().producer("t", name="p")
    assert producer.send(b"x", sequence_id=3).duplicate
    assert not producer.send(b"new", sequence_id=4).duplicate
    bench.close()


@pytest.mark.parametrize("number", [3, 9])
def test_numbers_of_moved_messages_stay_stored(tmp_path: Path, number: int) -> None:
    """A number in a gap of later ones was not repeated: the message is moved, with its number."""
    first = app(2, b"x", producer="p", last_sequence=0)
    gone = with_numbers(3, [number, number], b"y")
    later = with_numbers(3, [7, 7], b"z")
    bench, _ = store(tmp_path, first, gone, later)
    assert repaired(bench)["messages_lost"] == 0
    assert values(bench.another()) == [b"a", b"b", b"x", b"z", b"y"]
    producer = bench.another().producer("t", name="p")
    again = producer.send(b"y", sequence_id=number)
    assert again.duplicate
    assert str(again.message_id) == ("1:4" if number == 9 else "None")
    assert not producer.send(b"4", sequence_id=4).duplicate
    bench.close()


def test_a_number_below_a_later_one_is_moved(tmp_path: Path) -> None:
    """1 follows 0, and 7 was stored without knowing of it: 1 is in the gap, not repeated."""
    first = app(2, b"x", producer="p", last_sequence=0)
    gone = app(3, b"y", producer="p", last_sequence=1)
    bench, _ = store(tmp_path, first, gone, with_numbers(3, [7, 7], b"z"))
    assert repaired(bench)["messages_lost"] == 0
    assert values(bench.another()) == [b"a", b"b", b"x", b"z", b"y"]
    producer = bench.another().producer("t", name="p")
    assert [producer.send(b"?", sequence_id=n).duplicate for n in (1, 2, 7)] == [True, False, True]
    bench.close()


def test_several_of_them(tmp_path: Path) -> None:
    """Each is found, by how far the replay gets without it."""
    bench, _ = store(tmp_path, app(2, b"1"), app(2, b"2"), app(2, b"c"), app(3, b"3"), app(3, b"d"))
    assert repaired(bench)["messages_lost"] == 0
    assert values(bench.another()) == [b"a", b"b", b"c", b"d", b"1", b"2", b"3"]
    assert txlog.verify(bench.path, clock=bench.clock, deep=True)["errors"] == 0
    bench.close()


def test_what_cannot_be_kept_wants_a_consent_and_is_recorded(tmp_path: Path) -> None:
    """Rows of a sidecar whose place was given out again: counted, and a copy is kept."""
    bench = Bench(tmp_path / "store")
    client = bench.client
    client.create_topic("t")
    send(client, b"a")
    txn = client.begin(600_000)["txn"]
    client.producer("t").send(b"held", txn=txn)
    client.flush()
    ledger = client._store.read(lambda view: view.buffer(1).ledgers[-1].ledger)
    bench.close()
    disk = PosixDisk(bench.path)
    ops: list[Op] = [
        BufferAppended(1, ledger, 1, 0, 1, 1, txn.coordinator, txn.sequence, 2),
    ]
    write(disk, bench.clock, [(ops, [b"u"]), (ops, [b"v"])])
    disk.close()
    before = {p: p.read_bytes() for p in Path(bench.path).rglob("*") if p.is_file()}
    with pytest.raises(Refused):
        repaired(bench)
    assert {p: p.read_bytes() for p in Path(bench.path).rglob("*") if p.is_file()} == before
    done = repaired(bench, accept_loss=True)
    assert [one["action"] for one in done["action_list"]] == ["drop-frame"]
    assert done["messages_lost"] == 1
    assert list(Path(bench.path, "quarantine").glob("*.journal.damaged"))
    client = bench.another()
    client.commit(txn)
    assert values(client) == [b"a", b"held", b"v"]
    assert [one["code"] for one in client.status()["problem_list"]].count("loss") == 1
    found = txlog.verify(bench.path, clock=bench.clock, deep=True)
    assert found["errors"] == 0
    bench.close()


def in_memory() -> tuple[MemoryDisk, ManualClock]:
    disk, clock = MemoryDisk(), ManualClock(START_MS)
    make_store(disk, Settings(free_bytes_min=0), clock)
    client = open_client(disk, clock)
    client.create_topic("t")
    client.producer("t").send(b"a")
    client.checkpoint()
    client.producer("t").send(b"b")
    client.close()
    write(disk, clock, [app(2, b"unknown"), app(2, b"c"), app(3, b"d")])
    return disk, clock


@pytest.mark.parametrize("fault", [Killed(), OSError(errno.EIO, "Input/output error")], ids=repr)
def test_a_death_or_an_error_at_any_call_leaves_it_to_the_next(fault: BaseException) -> None:
    """Either the journal as it was, or as it is to be: one published file."""
    disk, clock = in_memory()
    at = 0
    while True:
        one = disk.copy()
        victim = one.process()
        victim.step = hook = Fault(at, fault)
        with suppress(Killed, TxlogError):
            repair_disk(victim, clock, apply=True)
        if hook.left >= 0:
            break
        repair_disk(one, clock, apply=True)
        client = open_client(one, clock)
        assert [m.value for m in read_messages(client, "t")] == [b"a", b"b", b"c", b"d", b"unknown"]
        assert verify_disk(one, clock, deep=True)["errors"] == 0, f"call {at}"
        at += 1
    assert at > 8


def test_no_power_cut_leaves_half_of_it() -> None:
    """Every image behind the repair opens, and has all of it or what was there before."""
    disk, clock = in_memory()
    repair_disk(disk, clock, apply=True)
    for image in disk.images(random.Random(1), 40):
        repair_disk(image, clock, apply=True)
        client = open_client(image, clock)
        assert [m.value for m in read_messages(client, "t")] == [b"a", b"b", b"c", b"d", b"unknown"]

"""`_README` in the directory of a topic: it exists, and no command trips over it."""

from __future__ import annotations

from pathlib import Path

import pytest

import txlog
from tests.engine_kit import Bench, send, values
from txlog.engine.upkeep.space.sweep import TEXT

pytestmark = pytest.mark.usefixtures("quick_disk")


def test_each_topic_with_files_has_a_note_and_nothing_needs_it(tmp_path: Path) -> None:
    """Guards against a note that verify calls foreign, gc removes, or each checkpoint rewrites."""
    bench = Bench(tmp_path / "store", coordinators=1)
    bench.client.create_topic("t", partitions=2)
    bench.client.create_topic("empty")
    send(bench.client, b"a")
    assert bench.client.checkpoint()["generation"] == 1
    notes = list(Path(bench.path).rglob("_README"))
    assert [note.parent.name for note in notes] == ["t"]
    assert notes[0].read_bytes() == TEXT
    notes[0].write_bytes(TEXT[:10])  # a crash may leave this
    send(bench.client, b"b")
    bench.client.checkpoint(roll_all=True)
    bench.client.admin.gc(apply=True, keep_ms=0)
    assert notes[0].read_bytes() == TEXT[:10]
    report = txlog.verify(bench.path, deep=True, clock=bench.clock)
    assert (report["errors"], report["problem_list"]) == (0, [])
    notes[0].unlink()  # as in a store made before
    assert values(bench.reopen()) == [b"a", b"b"]
    send(bench.client, b"c")
    bench.client.checkpoint()
    assert notes[0].read_bytes() == TEXT
    bench.client.copy(str(tmp_path / "copy"), verify=True)
    with txlog.open(str(tmp_path / "copy"), read_only=True) as copied:
        assert len([*copied.reader("t")]) == 3


def test_the_note_of_a_deleted_topic_goes_with_its_last_file(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", coordinators=1, reader_grace_ms=1_000)
    client = bench.client
    for name in ("t", "kept"):
        client.create_topic(name)
        send(client, b"a", topic=name)
    client.checkpoint(roll_all=True)
    client.admin.delete_topic("t")
    client.checkpoint()
    below = Path(bench.path, "topics/public/default/t")
    # a reader may have a file open
    assert len([path for path in below.rglob("*") if path.is_file()]) > 1
    for _ in range(3):
        bench.clock.advance(2_000)
        send(client, b"b", topic="kept")
        client.checkpoint()
    assert [path for path in below.rglob("*") if path.is_file()] == []
    assert (below.parent / "kept" / "_README").read_bytes() == TEXT
    client.create_topic("t")
    send(client, b"c")
    client.checkpoint()
    assert (below / "_README").read_bytes() == TEXT
    assert txlog.verify(bench.path, deep=True, clock=bench.clock)["errors"] == 0

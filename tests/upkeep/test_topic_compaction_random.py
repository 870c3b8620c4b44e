"""Compaction by key over random histories, in little memory, and by itself."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import txlog
from tests.engine_kit import begin, little_memory
from tests.tiers import graded
from tests.upkeep.compaction_kit import (
    LARGE,
    bench_of,
    compacted,
    files,
    pairs,
    put,
    state,
    trim_all,
)
from txlog import Message
from txlog.engine.plan.reading import newest
from txlog.engine.storage.disk.posix import PosixFile
from txlog.engine.storage.disk.protocol import TEMPORARY_PREFIX
from txlog.engine.storage.segment import SegmentStream, encode_part
from txlog.engine.upkeep import service
from txlog.engine.upkeep.space import topic_compaction
from txlog.engine.upkeep.space.topic_compaction import NewestKeys, _TopicCompaction
from txlog.engine.view import View
from txlog.errors import (
    Corruption,
    Refused,
    TxlogError,
)

pytestmark = pytest.mark.usefixtures("quick_disk")


# --- any history -------------------------------------------------------------------------------


class Oracle:
    """The compacted messages of a topic as a dict for each partition, message by message."""

    def __init__(self) -> None:
        self.newest: dict[int, dict[bytes, Message]] = {}
        self.seen: dict[int, int] = {}  # how many messages of the log it has read

    def compact(self, log: dict[int, list[Message]]) -> None:
        changed = [
            number
            for number, all_messages in log.items()
            if len(all_messages) > self.seen.get(number, 0)
        ]
        for partition in changed:
            all_messages = log[partition]
            newest = self.newest.setdefault(partition, {})
            for message in all_messages[self.seen.get(partition, 0) :]:
                if message.key is not None:
                    newest.pop(message.key, None)
                    newest[message.key] = message
            self.seen[partition] = len(all_messages)
        for partition in changed:
            newest = self.newest[partition]
            for key in [key for key, message in newest.items() if message.value is None]:
                others = [of for number, of in self.newest.items() if number != partition]
                if all(key not in of or of[key].value is None for of in others):
                    del newest[key]

    def read(self, log: dict[int, list[Message]], partition: int) -> list[Message]:
        return [
            *self.newest.get(partition, {}).values(),
            *log[partition][self.seen.get(partition, 0) :],
        ]


@pytest.mark.parametrize("seed", graded(range(24), 1))
def test_any_history_is_compacted_as_a_dict_says(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared with the oracle, through trims, checkpoints, reopening and added partitions.

    Every second history runs with so little memory that all work is done in many pieces.
    """
    if seed % 2:
        little_memory(monkeypatch)
    chance = random.Random(seed)
    bench = bench_of(tmp_path, 2, max_message_bytes=64)
    client, oracle = bench.client, Oracle()
    log: dict[int, list[Message]] = {0: [], 1: []}
    open_ones: list[Any] = []
    readers = {number: client.reader(f"t-partition-{number}") for number in log}
    for step in range(40):
        act = chance.randrange(12)
        txn = chance.choice(open_ones) if open_ones and chance.random() < 0.5 else None
        with contextlib.suppress(TxlogError):
            if act <= 5:
                producer = client.producer("t", chunking=True)
                for _ in range(chance.randint(1, 6)):
                    key = chance.choice((None, *(b"%d" % n for n in range(7))))
                    value = chance.choice((None, b"", b"%d" % step, b"%d" % step * LARGE))
                    where = chance.choice((None, 0, 1))
                    producer.send(value, key=key, partition=where, txn=txn)
            elif act == 6:
                open_ones.append(begin(client, 1_000_000))
            elif act == 7 and txn is not None:
                open_ones.remove(txn)
                chance.choice((client.commit, client.commit, client.abort))(txn)
            elif act == 8:
                client.checkpoint(roll_all=chance.random() < 0.5)
        for number, reader in readers.items():
            log[number] += list(reader)  # before a trim removes it
        if act == 9:
            client.admin.compact("t")
        elif act == 10:
            client.admin.compact_topic("t")
            oracle.compact(log)
            if chance.random() < 0.5:
                trim_all(client)
        elif act == 11 and chance.random() < 0.3:
            client = bench.reopen()
            readers = {number: client.reader(f"t-partition-{number}", "latest") for number in log}
        for number in log if act >= 8 else ():
            compacted_rows = compacted(client, partitions=[number])
            assert compacted_rows == oracle.read(log, number), f"seed {seed}, step {step}"
    client.checkpoint()
    bench.close()
    assert not txlog.verify(bench.path, deep=True)["errors"]


def test_damage_is_named_and_repair_keeps_undamaged_rows(tmp_path: Path) -> None:
    """The next compaction reads the messages that the log still has."""
    bench = bench_of(tmp_path)
    client = bench.client
    put(client, *((b"%d" % number, b"x") for number in range(10)))
    client.admin.compact_topic("t")
    trim_all(client)
    put(client, *((b"%d" % number, b"y") for number in range(5, 12)))
    client.admin.compact_topic("t")
    client.checkpoint()
    compacted_rows_before = compacted(client)
    client.close()
    (path,) = files(bench)
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)
    client = bench.reopen()
    with pytest.raises(Corruption, match="_compacted"):
        compacted(client)
    put(client, (b"new", b"z"))
    with pytest.raises(Corruption, match="_compacted"):
        client.admin.compact_topic("t")
    bench.close()
    assert txlog.verify(bench.path, clock=bench.clock)["errors"] == 1
    with pytest.raises(Refused):
        txlog.repair(bench.path, apply=True, clock=bench.clock)
    done = txlog.repair(bench.path, apply=True, accept_loss=True, clock=bench.clock)
    assert done["messages_lost"] == 12
    client = bench.reopen()
    assert [m.value for m in compacted(client)] == [b"z"]
    client.admin.compact_topic("t")
    assert compacted(client)[:-1] == compacted_rows_before[5:]
    assert not txlog.verify(bench.path, deep=True, clock=bench.clock)["errors"]


# --- memory ----------------------------------------------------------------------------------


@pytest.mark.deep
def test_neither_keys_nor_rows_are_held_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limits bound its memory, even for one file, for any number of keys, messages or bytes.

    Guards against a table of all newest messages, and a file that is made and compared as a whole.
    """
    monkeypatch.setattr(topic_compaction, "HELD_BYTES", 4_000)
    monkeypatch.setattr(topic_compaction, "DIVIDED_BYTES", 4_000)
    monkeypatch.setattr(newest, "SCAN_MESSAGES", 100)
    monkeypatch.setattr(topic_compaction, "piece_rows", lambda rows, size: 20)
    bench = bench_of(tmp_path, 2, ledger_entries_max=1000)
    client = bench.client
    for start in range(0, 6000, 500):
        keys = [b"%d" % (n // 2) for n in range(start, start + 500)]
        client.producer("t").send_batch(pa.table({"key": keys, "value": [b"x" * 50] * 500}))
    client.checkpoint(roll_all=True)
    held_sizes, pieces, written, put_aside = (list[int]() for _ in range(4))
    add, sealed, pwrite = NewestKeys.add, SegmentStream.sealed, PosixFile.pwrite

    def counted(self: NewestKeys, partition: int, table: pa.Table) -> None:
        add(self, partition, table)
        held_sizes.append(self.held_bytes)

    def streamed(self: SegmentStream, tables: Iterable[pa.Table], keys: int) -> Iterator[bytes]:
        def each() -> Iterator[pa.Table]:
            for table in tables:
                pieces.append(table.num_rows)
                yield table

        for part in sealed(self, each(), keys):
            written.append(len(part))
            yield part

    def aside(self: PosixFile, offset: int, data: Any) -> None:
        pwrite(self, offset, data)
        if TEMPORARY_PREFIX in self.path:
            put_aside.append(sum(len(value) for value in data))

    monkeypatch.setattr(NewestKeys, "add", counted)
    monkeypatch.setattr(SegmentStream, "sealed", streamed)
    monkeypatch.setattr(PosixFile, "pwrite", aside)
    answer = client.admin.compact_topic("t")
    assert (answer["keys_kept"], answer["files"]) == (3000, 2)
    assert max(held_sizes) <= topic_compaction.HELD_BYTES
    assert sum(pieces) == 3000 and max(pieces) == 20 and len(pieces) <= 152
    assert sum(written) == answer["size_after_bytes"]
    assert max(put_aside) < 6_000 and sum(put_aside) > 3000 * 50
    assert [name for name in os.listdir(bench.path) if name.startswith(TEMPORARY_PREFIX)] == []


@pytest.mark.deep
def test_row_groups_that_were_passed_are_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row group may have the newest message of one key only: its other rows must not stay in
    memory.
    """
    monkeypatch.setattr(newest, "SCAN_MESSAGES", 100)
    bench = bench_of(tmp_path, ledger_entries_max=100)
    client = bench.client
    for ledger in range(20):
        keys = [b"hot"] * 99 + [b"%d" % ledger]
        client.producer("t").send_batch(pa.table({"key": keys, "value": [bytes(1000)] * 100}))
        client.checkpoint(roll_all=True)
    most, files_kept, kept_tables = 0, 0, list[pa.Table]()
    staying_rows = _TopicCompaction._staying_rows

    def looked_at(self: _TopicCompaction, *arguments: Any) -> Iterator[pa.Table]:
        nonlocal most, files_kept
        for table in staying_rows(self, *arguments):
            kept_tables.append(table)
            decoded = [
                kept_table.cached_bytes for _, kept_table in self._view.files._readers.values()
            ]
            files_kept = max(files_kept, sum(size > 0 for size in decoded))
            most = max(most, sum(kept_table.get_total_buffer_size() for kept_table in kept_tables))
            yield table

    monkeypatch.setattr(_TopicCompaction, "_staying_rows", looked_at)
    assert client.admin.compact_topic("t")["keys_kept"] == 21
    assert files_kept == 1
    assert most < 100_000  # 21 rows of a thousand bytes; with their row groups it is two million


def test_large_messages_are_fetched_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many small messages before do not make a batch of as many large ones."""
    monkeypatch.setattr(newest, "FETCH_BYTES", 10_000)
    bench = bench_of(tmp_path, ledger_entries_max=10_000, max_message_bytes=8_000)
    client = bench.client
    small = pa.table({"key": [b"%d" % n for n in range(1000)], "value": [b"x"] * 1000})
    client.producer("t").send_batch(small)
    client.checkpoint(roll_all=True)
    for number in range(10):
        put(client, (b"l%d" % number, bytes(7_000)))
        client.checkpoint(roll_all=True)
    large = client.producer("t", chunking=True)
    for number in range(3):
        large.send(bytes(30_000), key=b"c%d" % number)
    client.checkpoint(roll_all=True)
    sizes, rows = list[int](), View.rows

    def noted(self: View, requests: Any, names: Any) -> list[pa.Table]:
        found_rows = rows(self, requests, names)
        if "value" in names:
            sizes.append(
                sum(
                    pc.sum(pc.binary_length(found_row["value"])).as_py() for found_row in found_rows
                )
            )
        return found_rows

    monkeypatch.setattr(View, "rows", noted)
    assert client.admin.compact_topic("t")["keys_kept"] == 1013
    assert sorted(sizes) == [1_000, *[7_000] * 10, *[30_000] * 3]


def test_a_dry_run_of_a_read_only_store_gives_the_same_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R23: its scratch files are outside the store."""
    little_memory(monkeypatch)
    bench = bench_of(tmp_path, 2)
    put(bench.client, *((b"%d" % (number % 15), b"x") for number in range(40)), (b"1", None))
    plan = bench.client.admin.compact_topic("t", dry_run=True)
    bench.close()
    names = sorted(os.listdir(bench.path))
    for is_dry in (False, True):
        with txlog.open(bench.path, read_only=True, dry_run=is_dry) as client:
            assert client.admin.compact_topic("t", dry_run=True) == plan
    assert sorted(os.listdir(bench.path)) == names
    assert plan["keys_kept"] == 14


def test_scratch_rows_are_compared_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R17. Guards against no comparison, or a comparison of the first piece only."""
    bench = bench_of(tmp_path)
    client = bench.client
    put(client, *((b"%d" % number, b"x") for number in range(10)))
    monkeypatch.setattr(topic_compaction, "piece_rows", lambda rows, size: 3)
    number = 0

    def other(table: pa.Table) -> list[memoryview]:
        nonlocal number
        number += 1
        if number == 3:
            at = table.schema.get_field_index("value")
            table = table.set_column(at, "value", pa.array([b"y"] * table.num_rows, pa.binary()))
        return encode_part(table)

    with monkeypatch.context() as patch:
        patch.setattr(topic_compaction, "encode_part", other)
        with pytest.raises(Corruption, match="does not hold the rows"):
            client.admin.compact_topic("t")
    assert state(client) is None
    assert client.admin.compact_topic("t")["keys_kept"] == 10


# --- by itself ---------------------------------------------------------------------------------


def test_a_topic_past_its_threshold_is_compacted_after_a_checkpoint(tmp_path: Path) -> None:
    """All partitions together. Only messages since the last compaction count.

    A topic without a policy is not compacted.
    """
    bench = bench_of(tmp_path, 2)
    client = bench.client
    client.create_topic("other")
    client.producer("other").send(b"x" * 1000, key=b"a")
    answer = client.admin.set_retention_policies("t", compaction_threshold_bytes=100)
    assert answer["policies"]["compaction_threshold_bytes"] == 100
    put(client, (b"a", b"1" * 48), partition=0)
    put(client, (b"b", b"2" * 48), partition=1)  # with their keys 98 bytes
    client.checkpoint()
    assert (state(client, 1), state(client, 2)) == (None, None)
    with client.transaction() as txn:
        client.producer("t").send(b"3", key=b"a", partition=0, txn=txn)
    client.checkpoint()
    first = state(client, 1)
    assert first is not None and state(client, 2) is not None and state(client, 3) is None
    assert sorted(pairs(compacted(client))) == [(b"a", b"3"), (b"b", b"2" * 48)]
    put(client, (b"a", b"4" * 10), partition=0)
    client.checkpoint()
    assert state(client, 1) == first
    put(client, (b"a", b"5" * 500), partition=0)
    client.checkpoint()
    assert state(client, 1) != first
    client.admin.set_retention_policies("t", compaction_threshold_bytes=-1)
    state_before = state(client, 1)
    put(client, (b"a", b"6" * 500), partition=0)
    client.checkpoint()
    assert state(client, 1) == state_before


def test_a_topic_that_cannot_be_compacted_is_noted_and_keeps_no_other(tmp_path: Path) -> None:
    client = bench_of(tmp_path).client
    client.create_topic("u")
    client.admin.set_retention_policies(compaction_threshold_bytes=1)
    put(client, (b"a", b"1"))
    client.producer("u").send(b"1", key=b"a")
    client.admin.set_offline("t", 0)
    for _ in range(2):
        client.checkpoint()
    assert state(client, 1) is None
    assert state(client, 2) is not None
    [line] = [line for line in client.reports() if "compacted by key" in line]
    assert line.startswith("t is not compacted by key: ")


def test_no_commit_compacts_and_none_pauses_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of the checkpoint compacts; writers go on until the journal is far too long."""
    monkeypatch.setattr(service, "IN_BACKGROUND", True)
    client = bench_of(tmp_path, checkpoint_frames=30, compaction_threshold_bytes=1).client
    client.checkpoint_automatically = True
    begun, go_on, paused = threading.Event(), threading.Event(), list[float | None]()
    compact, wait = topic_compaction.compact_topic, service.Checkpoints._wait
    by = list[threading.Thread]()

    def held(*arguments: Any, **more: Any) -> bool:
        by.append(threading.current_thread())
        begun.set()
        assert go_on.wait(60)
        return compact(*arguments, **more)

    def counted(self: service.Checkpoints, seconds: float | None) -> None:
        paused.append(seconds)
        wait(self, seconds)

    monkeypatch.setattr(topic_compaction, "compact_topic", held)
    while not client._checkpoints.is_running:
        put(client, (b"a", b"1"))
    assert begun.wait(60)
    monkeypatch.setattr(service.Checkpoints, "_wait", counted)
    while client.store.length < 1:
        put(client, (b"a", b"2"))
    put(client, (b"a", b"3"))
    assert not paused
    while client.store.length < service.LONG:
        put(client, (b"a", b"4"))
    put(client, (b"a", b"5"))
    assert paused
    go_on.set()
    client.close()
    assert threading.main_thread() not in by

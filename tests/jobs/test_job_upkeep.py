"""Tests of upkeep with rows from another engine: it makes the same files, and its rows are
verified.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import txlog
from tests.jobs.histories import WITHOUT_TRIMS, in_topic, step
from tests.sql.test_querying import FIRST, STEPS, History
from tests.tiers import graded
from txlog import Client
from txlog.engine.folds.catalog import numbers
from txlog.engine.model.ops import Id
from txlog.engine.model.schema import MESSAGE, conform
from txlog.engine.storage.bucket import IDS
from txlog.engine.storage.segment import FileRef
from txlog.engine.upkeep.delayed.buckets import INDEX_MAX, Search, looked_up
from txlog.errors import Corruption
from txlog.lake.jobs.audit import audit
from txlog.lake.jobs.local import Local
from txlog.lake.jobs.upkeep import compact, rebuild_delayed

pytestmark = pytest.mark.usefixtures("quick_disk")
LATER = 32_503_680_000_000


class Other(Local):
    """An engine that reads files and ids by itself, with pyarrow."""

    def __init__(self, wrong: bool = False) -> None:
        self.wrong = wrong
        self.rows = 0
        self.found: dict[int, pa.Table] = {}

    def arrange(self, client: Client) -> Any:
        def arranged(
            sealed: Sequence[FileRef], other: pa.Table, places: pa.Table
        ) -> tuple[pa.Table, int]:
            files = [_read(Path(client.path, ref.path), other.schema) for ref in sealed]
            rows = pa.concat_tables([other, *files])
            rows = rows.filter(pc.equal(rows.column("kind"), 0))
            pieces = []
            for row in places.to_pylist():
                table = rows
                for name in ("txn_most", "txn_least"):
                    table = table.filter(pc.equal(table.column(name), row[name]))
                index = table.column("txn_index")
                table = table.filter(
                    pc.and_(
                        pc.greater_equal(index, row["first"]), pc.less_equal(index, row["last"])
                    )
                )
                pieces.append(table.sort_by("txn_index"))
            out = pa.concat_tables([other.slice(0, 0), *pieces])
            self.rows += out.num_rows
            return (out.slice(1) if self.wrong else out), rows.num_rows

        return arranged

    def searches(self, client: Client, topic: str) -> dict[int, Search]:
        rows = [row for table in client.read(topic) for row in table.to_pylist()]
        rows.sort(key=lambda r: (r["partition"], r["ledger"], r["entry"], r["index"] or 0))
        numbers, ends = client.store.ask(_ends)
        out = {}
        for index, (number, end) in enumerate(zip(numbers, ends, strict=True)):
            found_rows = [
                (
                    round(r["deliver_at"].timestamp() * 1000),
                    r["ledger"],
                    r["entry"],
                    r["index"] or 0,
                )
                for r in rows
                if r["partition"] == index and r["deliver_at"] is not None
            ]
            columns = list(zip(*found_rows, strict=True)) or [()] * 4
            arrays = [pa.array(c, f.type) for c, f in zip(columns, IDS, strict=True)]
            self.found[number] = pa.Table.from_arrays(arrays, schema=IDS)
            self.rows += len(found_rows)
            out[number] = looked_up(self.found[number], end)
        return out


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    return conform(pq.read_table(pa.BufferReader(path.read_bytes())), schema)


def _ends(view: Any) -> tuple[list[int], list[Id]]:
    topic = next(
        each_topic
        for each_topic in view.catalog.topics.values()
        if each_topic.name.endswith("default/t")
    )
    all_numbers = list(numbers(topic))
    ends = [view.topic(number).ledgers[-1] for number in all_numbers]
    return all_numbers, [(end.ledger, end.entries - 1, INDEX_MAX) for end in ends]


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    """A history that a test continues."""
    new_history = History(tmp_path, "upkeep")
    yield new_history
    new_history.client.close()


@pytest.mark.parametrize("seed", [FIRST + 19, FIRST + 25, FIRST + 30])
def test_compaction_by_another_reader_gives_the_same_files(tmp_path: Path, seed: int) -> None:
    history, other = History(tmp_path, str(seed)), Other()
    names = tuple(name for name in WITHOUT_TRIMS if name != "compact")
    for number in range(STEPS):
        step(history, random.Random(f"{seed}:{number}"), names)
    expected = in_topic(history.client, "t")
    history.client.close()
    shutil.copytree(history.path, f"{history.path}-copy")
    answers, files = [], []
    for path, engine in ((history.path, Local()), (f"{history.path}-copy", other)):
        with txlog.open(path) as client:
            client.checkpoint_automatically = False
            answers.append(compact(client, "t", engine))
            assert in_topic(client, "t") == expected
            assert audit(client, ["t"], Local())["failed"] == 0
            files.append(
                [
                    (row["role"], row["clean"], _read(Path(path, row["file"]), MESSAGE).to_pylist())
                    for row in client.segments()
                    if row.get("file", "").endswith(".parquet")
                ]
            )
    assert answers[0] == answers[1]
    assert files[0] == files[1]
    assert answers[0]["messages"] == 0 or other.rows > 0


def test_row_that_is_missing_is_noticed(history: History) -> None:
    """R17: rows from another reader are compared.

    Guards against a compaction that loses a message.
    """
    client = history.client
    with client.transaction() as txn, client.transaction() as lost:
        for value in (b"a", b"b"):
            client.producer("t").send(value, partition=0, txn=txn)
        client.producer("t").send(b"c", partition=0, txn=lost)
        lost.flush()
        lost.abort()
    rows_before = in_topic(client, "t")
    with pytest.raises(Corruption, match="does not hold the rows"):
        compact(client, "t", Other(wrong=True))
    assert in_topic(client, "t") == rows_before
    assert compact(client, "t", Other())["aborted_dropped"] == 1


@pytest.mark.parametrize("seed", graded(range(FIRST, FIRST + 3), 1))
def test_index_by_another_reader_is_the_same(tmp_path: Path, seed: int) -> None:
    """Ranges, cuts between buckets, and messages after the end of the reader's search."""
    path = str(tmp_path / "store")
    txlog.init(path, mutable_ids_max=7, max_num_buckets=50)
    rng = random.Random(seed)
    with txlog.open(path) as client:
        client.create_topic("t", partitions=2)
        client.create_subscription("t", "s", type="shared")
        producer = client.producer("t")

        def send(count: int) -> None:
            for _ in range(count):
                at = rng.choice((None, LATER + rng.randrange(1000)))
                if rng.random() < 0.4:
                    with client.transaction() as txn:
                        for _ in range(rng.randrange(1, 4)):
                            producer.send(b"x", deliver_at=at, partition=rng.randrange(2), txn=txn)
                else:
                    producer.send(b"x", deliver_at=at, partition=rng.randrange(2))

        send(60)
        client.checkpoint()
        client.topic("t").merge(50)
        other = Other()
        searches = other.searches(client, "t")
        send(20)  # after the end of the search
        client.checkpoint()
        delayed_before = client.topic("t").delayed(limit=500)
        assert client.topic("t").buckets()
        local = rebuild_delayed(client, "t", Local())
        answer = client.topic("t").rebuild(searches=searches)
        assert other.rows > 0
        for row in (local, answer):
            assert (row["indexed"], row["missing"], row["surplus"]) == (local["indexed"], 0, 0)
        assert client.topic("t").delayed(limit=500) == delayed_before
        broken = {
            number: looked_up(rows.slice(1), (1 << 40, 0, 0))
            for number, rows in other.found.items()
        }
        assert client.topic("t").rebuild(searches=broken)["surplus"] > 0

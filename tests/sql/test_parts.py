"""Open parts are read as a query asks for them: few columns, some files, one after the other."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.dataset import dataset

import txlog
from tests.engine_kit import relation_of
from tests.tiers import graded
from txlog import Client
from txlog.base.times import SQL_MS_MAX
from txlog.cli.main import main
from txlog.engine.model import tail
from txlog.engine.model.schema import INSTANT, Row, decode_rows
from txlog.engine.model.tail import FrameRef, FrameRows
from txlog.engine.relation import build, frames
from txlog.engine.storage.segment_reader import SegmentReader
from txlog.engine.view import View
from txlog.errors import Corruption, MissingFile
from txlog.lake.sql import views_script
from txlog.lake.sql.client_query import Query
from txlog.lake.sql.parts import parts_for

pytestmark = pytest.mark.usefixtures("quick_disk")
COUNT = 400
HALF = COUNT // 2


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """Two topics of two partitions, half of their messages in transactions, all in open parts."""
    path = str(tmp_path / "store")
    txlog.init(path, durability="os", free_bytes_min=0)
    with txlog.open(path) as opened:
        for topic in ("a", "b"):
            opened.create_topic(topic, partitions=2)
            producer = opened.producer(topic)
            for partition in (0, 1):
                rows = pa.table(
                    {
                        "value": [b"%s%d.%d" % (topic.encode(), partition, n) for n in range(HALF)],
                        "event_time": pa.array(range(HALF), INSTANT),
                        "partition": pa.repeat(pa.scalar(partition, pa.int32()), HALF),
                    }
                )
                producer.send_batch(rows)
                with opened.transaction() as txn:
                    producer.send_batch(rows, txn=txn)
        opened.checkpoint()  # eight parts: of two partitions each, and of their sidecars
        yield opened


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, tuple[str, ...]]]:
    """(file, rows, columns) of each piece of a part that is read."""
    pieces: list[tuple[str, int, tuple[str, ...]]] = []
    rows = SegmentReader.rows

    def noted(self: SegmentReader, start: int, stop: int, names: Any = None) -> pa.Table:
        pieces.append((self.ref.path, stop - start, tuple(names)))
        return rows(self, start, stop, names)

    monkeypatch.setattr(SegmentReader, "rows", noted)
    return pieces


def asked(client: Client, sql: str) -> list[dict[str, Any]]:
    with Query(client, sql) as query:
        rows: list[dict[str, Any]] = query.rows().read_all().to_pylist()
        return rows


def test_a_count_reads_no_value(
    client: Client, groups: list[tuple[str, int, tuple[str, ...]]]
) -> None:
    """Kills: all columns of all topics in memory to count one."""
    assert asked(client, "SELECT count(*) AS n FROM messages") == [{"n": 4 * COUNT}]
    read = {name for _, _, names in groups for name in names}
    assert read <= {"kind", "txn_most", "txn_least"}
    assert max(rows for _, rows, _ in groups) <= HALF + 1
    groups.clear()
    [row] = asked(client, "SELECT count(*) AS n, max(event_time) AS t FROM a")
    assert row["n"] == 2 * COUNT
    assert {name for _, _, names in groups for name in names} <= read | {"event_time"}
    assert all("/a/partition=" in path for path, _, _ in groups)


def test_conditions_leave_files_out(
    client: Client, groups: list[tuple[str, int, tuple[str, ...]]]
) -> None:
    """A condition on topic or partition opens only the parts that may have such rows."""
    sql = "SELECT count(*) AS n FROM messages WHERE topic = 'b' AND partition = 1"
    assert asked(client, sql) == [{"n": COUNT}]
    assert {path.partition("default/")[2].partition("/_")[0] for path, _, _ in groups} == {
        "b/partition=1"
    }


def test_a_statement_may_scan_them_twice_and_stop_early(client: Client) -> None:
    """Each scan begins anew, and may end before its last row."""
    sql = (
        "SELECT count(*) AS n FROM a AS one JOIN messages AS two USING (message_id)"
        " WHERE one.value = two.value AND two.partition IN (0, 1)"
    )
    assert asked(client, sql) == [{"n": 2 * COUNT}]
    assert len(asked(client, "SELECT value FROM a LIMIT 1")) == 1


def test_scan_makes_each_batch_on_demand(
    client: Client, groups: list[tuple[str, int, tuple[str, ...]]]
) -> None:
    """Kills: a scanner of Arrow, which prefetches up to 64 batches with all their rows."""
    with Query(client, "FROM a") as query:
        assert query._session is not None
        reader = parts_for(query._session, query._contents, client.open)["p"].scanner().to_reader()
        for number in (1, 2):
            assert reader.read_next_batch().num_rows >= HALF
            assert len(groups) == number


def test_a_join_keeps_markers_and_lets_rows_go_by(client: Client) -> None:
    """Kills: a hash table of all rows of sidecars with all their columns."""

    def joins(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if node["name"] == "HASH_JOIN":
            yield node
        for child in node["children"]:
            yield from joins(child)

    with Query(client, "FROM messages") as query:
        assert query._session is not None
        [(_, plan)] = query._session._connection.execute(
            "EXPLAIN (FORMAT json) FROM messages"
        ).fetchall()
        [join] = joins(json.loads(plan)[0])
        sides = [str(child) for child in join["children"]]
    assert ["marker_ledger" in side for side in sides] == [False, True]  # the second is kept


def test_instants_that_sql_has_no_room_for_are_without_end(client: Client) -> None:
    """As in a table: such an instant is infinity, and other rows keep theirs."""
    far = SQL_MS_MAX + 1
    client.producer("a").send(b"far", event_time=far, partition=0)
    client.checkpoint()
    sql = "SELECT count(*) AS n FROM a WHERE event_time = 'infinity'"
    assert asked(client, sql) == [{"n": 1}]
    sql = "SELECT count(*) AS n FROM a WHERE event_time < '1970-01-01 00:00:00.150Z'"
    assert asked(client, sql) == [{"n": 2 * 2 * 150}]


def test_damage_of_a_part_is_named_as_everywhere(client: Client) -> None:
    """R5: a flipped bit is Corruption with its file, not DuckDB's word for it; a lost file too."""
    source = relation_of(client, "a").open[0]
    file = Path(client.path, source.ref.path)
    data = bytearray(file.read_bytes())
    file.chmod(0o600)
    for at in random.Random(7).sample(range(len(data)), 10):
        data[at] ^= 4
        file.write_bytes(data)
        with pytest.raises(Corruption, match=source.ref.path):
            asked(client, "SELECT sum(size_bytes) FROM a")
        data[at] ^= 4
    file.write_bytes(data)
    assert asked(client, "SELECT count(*) AS n FROM a") == [{"n": 2 * COUNT}]
    file.unlink()
    with pytest.raises(MissingFile, match=source.ref.path):
        asked(client, "SELECT count(*) AS n FROM a")


def test_parts_stay_while_a_query_may_read_them(client: Client) -> None:
    """Parts are pinned, so a checkpoint during a query removes none of its files."""
    sql = "SELECT value FROM messages"
    with Query(client, sql) as query:
        paths_before = {
            source.ref.path for topic in "ab" for source in relation_of(client, topic).open
        }
        client.checkpoint(roll_all=True)
        client.admin.gc()
        assert not paths_before & {s.ref.path for t in "ab" for s in relation_of(client, t).open}
        assert query.rows().read_all().num_rows == 4 * COUNT


@pytest.mark.parametrize("together", [1, 7, 50_000])
def test_rows_in_frames_match_the_log(
    client: Client, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames are decoded a few at a time, with rows of transactions between plain rows."""
    monkeypatch.setattr(build, "_TOGETHER", together)
    monkeypatch.setattr(frames, "PIECE_ROWS", together)
    for number in range(20):
        client.producer("a").send(b"plain %d" % number, partition=0, key=b"k%d" % number)
        with client.transaction() as txn:
            client.producer("a").send(b"inner %d" % number, partition=0, txn=txn)
    rows = asked(client, "SELECT message_id, key, value FROM a ORDER BY partition, ledger, entry")
    expected = [
        (str(message.message_id), message.key, message.value)
        for partition in (0, 1)
        for message in client.reader("a", partitions=[partition])
    ]
    assert {(*row.values(),) for row in rows} == {*expected}
    assert len(rows) == len(expected) == 2 * COUNT + 40


def written(client: Client, draw: random.Random) -> None:
    """Frames of all kinds of rows, some of several partitions, some large, in any order."""
    producer, open_ones = (
        client.producer("a"),
        [client.transaction(write_through=True) for _ in range(3)],
    )
    for number in range(40):
        partition, rows = draw.randrange(2), draw.choice([1, 1, 5, 30])
        values = [b"%d.%d" % (number, row) for row in range(rows)]
        table = pa.table(
            {"value": values, "partition": pa.repeat(pa.scalar(partition, pa.int32()), rows)}
        )
        txn = draw.choice([None, *open_ones])
        producer.send_batch(table, txn=txn)
        if draw.random() < 0.2:
            producer.send(b"k", key=b"k", properties={"p": "1"}, event_time=1000, txn=txn)
        if draw.random() < 0.1:
            producer.new_watermark().event_time(number + 1).send()
        if draw.random() < 0.3:
            at = draw.randrange(3)
            (open_ones[at].commit if draw.random() < 0.8 else open_ones[at].abort)()
            open_ones[at] = client.transaction(write_through=True)


@pytest.mark.parametrize("seed", graded(range(6), 1))
def test_rows_in_pieces_match_the_tail(
    client: Client, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a column that a piece makes otherwise, a row too many or too few."""
    draw = random.Random(seed)
    monkeypatch.setattr(frames, "PIECE_ROWS", draw.choice([1, 4, 17, 10_240]))
    is_at_once = draw.random() < 0.5  # else not in the order of partitions
    monkeypatch.setattr(frames, "WINDOW_FRAMES", 256 if is_at_once else draw.choice([1, 7]))
    written(client, draw)
    for everything in (False, True):
        isolation = "uncommitted" if everything else "committed"

        def made(view: View, everything: bool = everything, isolation: str = isolation) -> Any:
            return [
                build.contents(view, ["a"], isolation, everything=everything, in_pieces=in_pieces)[
                    0
                ].relation
                for in_pieces in (False, True)
            ]

        whole, pieces = client.store.ask(made)
        assert pieces.tail.num_rows == 0
        assert whole.frames is None
        with closing(pieces.frames) as frames_of_pieces:
            for names in (whole.tail.column_names, ["value"], ["visible_time", "lsn"], ["entry"]):
                tables = list(frames_of_pieces.tables(names))
                assert all(table.num_rows <= frames.PIECE_ROWS for table in tables)
                read = pa.concat_tables([whole.tail.slice(0, 0).select(names), *tables])
                want = whole.tail.select(names)
                if is_at_once:
                    assert read.combine_chunks().equals(want.combine_chunks())
                assert sorted(map(repr, read.to_pylist())) == sorted(map(repr, want.to_pylist()))
        assert frames_of_pieces.rows >= whole.tail.num_rows > 0


def test_a_query_holds_a_piece_of_the_frames(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: all rows since the last checkpoint in memory, before the first is asked for."""
    of = pa.array([0, 1] * 500, pa.int32())
    for _ in range(20):
        client.producer("a").send_batch(pa.table({"value": [b"x"] * 1000, "partition": of}))
    read: list[int] = []
    decoded: list[int] = []
    cached: list[int] = []
    read_frame = FrameRows.read

    def noted(self: FrameRows, ref: FrameRef) -> pa.RecordBatch | Row:
        frame_batch = read_frame(self, ref)
        read.append(ref.lsn)
        cached.append(len(self._batches))
        return frame_batch

    def counted(columns: int, rows: pa.Buffer) -> pa.RecordBatch:
        decoded.append(columns)
        return decode_rows(columns, rows)

    monkeypatch.setattr(FrameRows, "read", noted)
    monkeypatch.setattr(tail, "decode_rows", counted)
    monkeypatch.setattr(frames, "PIECE_ROWS", 1000)
    monkeypatch.setattr(frames, "WINDOW_FRAMES", 4)
    with Query(client, "SELECT count(*) AS n FROM a") as query:
        assert query.rows().read_all().to_pylist() == [{"n": 2 * COUNT + 20_000}]
        assert read == []  # a count needs no value
    with Query(client, "SELECT value FROM a") as query:
        assert query._contents[0].relation.tail.num_rows == 0
        assert read == []
        assert query.rows().read_all().num_rows == 2 * COUNT + 20_000
    assert (
        len({*read}) == len(decoded) == 20
    )  # each frame once, although it has rows of two partitions
    assert max(cached) <= 4


def test_topics_share_the_journal_files_that_a_query_keeps_open(client: Client) -> None:
    """Kills: a descriptor for each topic, when a process may have about a thousand."""

    def opened() -> int:
        """How many journal files this process has open."""
        count = 0
        for number in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):
                count += os.readlink(f"/proc/self/fd/{number}").endswith(".journal")
        return count

    for number in range(20):
        client.create_topic(f"few-{number}")
        client.producer(f"few-{number}").send(b"x")
    open_before = opened()
    with Query(client, "SELECT count(*) AS n FROM messages WHERE topic LIKE 'few-%'") as query:
        assert query.rows().read_all().to_pylist() == [{"n": 20}]
        assert 1 <= opened() - open_before <= 2
    assert opened() == open_before


def test_condition_on_rows_in_frames_prints_no_warning(
    client: Client, capfd: pytest.CaptureFixture[str]
) -> None:
    """Kills: a warning of Arrow on stderr, that rows in a frame begin at an odd byte."""
    for at in range(7):
        rows = {"value": [b"x" * at] * 3, "event_time": pa.array([1, 2, 3], INSTANT)}
        rows["partition"] = pa.array([0] * 3, pa.int32())
        client.producer("b", f"p{'x' * at}").send_batch(pa.table(rows))
    sql = (
        "SELECT sum(size_bytes)::BIGINT AS n, count(event_time) AS times FROM b"
        " WHERE lsn > 0 AND partition = 0 AND visible_time > '2000-01-01' AND value >= 'x'::BLOB"
    )
    assert asked(client, sql) == [{"n": 63, "times": 18}]
    assert capfd.readouterr().err == ""


def test_frames_stay_while_a_query_may_read_them(client: Client) -> None:
    """A checkpoint, and the removal of the journal file, take nothing from a query."""
    client.producer("a").send_batch(pa.table({"value": [b"%d" % n for n in range(1000)]}))
    client.checkpoint()
    client.producer("a").send_batch(pa.table({"value": [b"later %d" % n for n in range(1000)]}))
    with Query(client, "SELECT value FROM a") as query:
        journals_before = {*Path(client.path).glob("journal/*.journal")}
        for _ in range(3):
            client.producer("b").send(b"x")
            client.checkpoint(roll_all=True)
        client.admin.gc()
        assert not journals_before & {*Path(client.path).glob("journal/*.journal")}
        assert query.rows().read_all().num_rows == 2 * COUNT + 2000


def test_damage_of_a_frame_is_named_as_everywhere(client: Client) -> None:
    """R5: also damage of a frame that was whole when the query began."""
    client.producer("a").send_batch(pa.table({"value": [b"a word of the journal"] * 100}))
    with Query(client, "SELECT value FROM a") as query:
        [journal] = [
            path
            for path in Path(client.path, "journal").iterdir()
            if b"a word of the journal" in path.read_bytes()
        ]
        data = journal.read_bytes()
        journal.write_bytes(data.replace(b"a word of the journal", b"a wOrd of the journal", 1))
        with pytest.raises(Corruption, match="is damaged"):
            query.rows().read_all()
        journal.write_bytes(data)


def test_views_count_without_reading_frames(
    client: Client, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Kills: every value of the journal in memory, only to count the messages."""
    client.producer("a").send_batch(pa.table({"value": [b"x"] * 10}))
    with client.transaction() as txn:
        client.producer("b").send_batch(pa.table({"value": [b"y"] * 10}), txn=txn)

    def read(self: FrameRows, ref: FrameRef) -> pa.RecordBatch:
        raise AssertionError(ref)

    monkeypatch.setattr(FrameRows, "read", read)
    for isolation in ("committed", "uncommitted"):
        assert main(["-S", client.path, "views", "--isolation", isolation]) == 0
        line = f"not covered: {4 * COUNT + 20} committed messages"
        assert line in capfd.readouterr().out


def test_views_count_keys_only(
    client: Client,
    groups: list[tuple[str, int, tuple[str, ...]]],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Kills: all columns, or all rows of a part, in memory for the one line that counts them."""
    picked: list[tuple[str, ...]] = []
    spans: list[tuple[int, int]] = []
    pick = SegmentReader.pick

    def noted(self: SegmentReader, wanted: Any, names: Any = None) -> pa.Table:
        picked.append(tuple(names))
        spans.extend(wanted)
        return pick(self, wanted, names)

    monkeypatch.setattr(SegmentReader, "pick", noted)
    monkeypatch.setattr(views_script, "piece_rows", lambda rows, size: 70)
    assert main(["-S", client.path, "views"]) == 0
    assert f"not covered: {4 * COUNT} committed messages" in capfd.readouterr().out
    assert max(stop - start for start, stop in spans) <= 70
    assert {name for names in picked for name in names} <= {"kind", "txn_most", "txn_least"}
    groups.clear()
    assert main(["-S", client.path, "views", "--complete", str(tmp_path / "complete")]) == 0
    assert max(rows for _, rows, _ in groups) <= HALF + 1
    files = sorted((tmp_path / "complete").iterdir())
    assert len(files) == 2
    assert dataset(files).count_rows() == 4 * COUNT

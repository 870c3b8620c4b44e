"""Bulk: a batch of files is stored once, as a whole, after all earlier messages."""

from __future__ import annotations

import pickle
from pathlib import Path
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.engine_kit import START_MS, Bench, ids, send, send_txn, values
from tests.harness import ready, run
from tests.sending.bulk_kit import files_below, load, rows, stages
from tests.tiers import graded
from txlog import MessageId, Range
from txlog.client.sending.bulk import stage
from txlog.engine.decide.sending import adopt as flow
from txlog.engine.storage.segment import GROUP_ROWS
from txlog.engine.upkeep.space import adopt
from txlog.errors import (
    Corruption,
    ExpiredTransaction,
    InvalidArgument,
    InvalidMessage,
    LimitExceeded,
    NotAllowed,
    PartitionUnavailable,
    TopicNotFound,
)
from txlog.lake.jobs.audit import audit
from txlog.lake.jobs.local import Local
from txlog.lake.sql.client_query import Query

pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 1}, [("t", "s")], coordinators=1, reader_grace_ms=0),
]


class TestStoring:
    """The effects of a commit."""

    def test_messages_stand_behind_those_before_and_before_those_after(self, bench: Bench) -> None:
        client = bench.client
        send(client, b"a")
        answer = load(client, 1, b"b", b"c")
        send(client, b"d")
        send_txn(client, b"e")
        assert values(client) == [b"a", b"b", b"c", b"d", b"e"]
        assert (answer["messages"], answer["size_bytes"], answer["files"]) == (2, 2, 1)
        assert not answer["already"]
        first = answer["partitions"][0]["ledger"]
        assert ids(client)[1:3] == [MessageId(first, 0), MessageId(first, 1)]
        assert stages(bench) == []

    def test_the_same_again_is_the_first_answer(self, bench: Bench) -> None:
        client = bench.client
        for batch in (7, "nightly"):
            first = load(client, batch, b"a", b"b")
            for other in (client, bench.another()):
                loaded_again = load(other, batch, b"c")
                assert loaded_again == {**first, "already": True}
        assert values(client) == [b"a", b"b"] * 2
        assert stages(bench) == []

    def test_a_number_at_or_below_the_last_is_stored_already(self, bench: Bench) -> None:
        client = bench.client
        load(client, 3, b"a")
        load(client, 9, b"b")
        old = load(client, 4, b"c")
        assert old == {"topic": "t", "key": "k", "batch": 4, "already": True}
        load(client, "x", b"d")
        load(client, 10, b"e")
        load(client, 0, b"f", key="other")
        assert values(client) == [b"a", b"b", b"d", b"e", b"f"]

    def test_nothing_stages_where_it_is_stored(self, bench: Bench) -> None:
        client = bench.client
        load(client, 1, b"a")
        bulk_again = client.bulk("t", key="k", batch=1)
        assert bulk_again.stage([rows(b"z" * 100)]) == []
        assert stages(bench) == []
        assert bulk_again.stored is not None and bulk_again.commit([])["already"]

    def test_no_rows_store_nothing(self, bench: Bench) -> None:
        client = bench.client
        answer = load(client, 1)
        assert (answer["already"], answer["messages"], answer["lsn"]) == (False, 0, None)
        assert not load(client, 1, b"a")["already"]

    def test_open_ledger_without_rows_gives_way(self, bench: Bench) -> None:
        """A stream of batches leaves no empty ledger after each batch."""
        for number in range(5):
            load(bench.client, number, b"%d" % number)
        ends = bench.client.store.read(lambda view: view.topic(1).ledgers)
        assert [(end.entries, end.sealed) for end in ends] == [(1, True)] * 5 + [(0, False)]

    def test_every_row_is_stored_with_all_its_columns(self, bench: Bench) -> None:
        client = bench.client
        client.create_topic("many", partitions=3)
        count = 2 * GROUP_ROWS + 17
        numbers = pa.array(range(count))
        keys = pa.array([b"k%d" % (n % 100) if n % 7 else None for n in range(count)], pa.binary())
        table = pa.table(
            {
                "value": numbers.cast(pa.string()).cast(pa.binary()),
                "key": keys,
                "event_time": numbers.cast(pa.timestamp("ms", "UTC")),
                "sequence_id": numbers,
                "properties": pa.array(
                    [[("n", str(n))] if n < 9 else None for n in range(count)],
                    pa.map_(pa.string(), pa.string()),
                ),
            }
        )
        bulk = client.bulk("many", key="k", batch=1)
        answer = bulk.commit(bulk.stage(table.to_batches(30_000), task=4))
        assert answer["messages"] == count
        assert answer["size_bytes"] == sum(
            pc.sum(pc.binary_length(table[name])).as_py() for name in ("key", "value")
        )
        found_table = pa.concat_tables(client.read("many")).sort_by("sequence_id")
        for name in ("value", "key", "event_time", "properties"):
            assert found_table[name].to_pylist() == table[name].to_pylist(), name
        assert set(found_table["publish_time"].cast("int64").to_pylist()) == {START_MS}
        partitions = found_table["partition"].to_pylist()
        assert {p for p, key in zip(partitions, keys, strict=True) if not key.is_valid} == {4 % 3}
        for partition, key in zip(partitions, keys.to_pylist(), strict=True):
            assert key is None or partition == crc32(key) % 3

    def test_producer_is_a_name_in_every_row(self, bench: Bench) -> None:
        """It does not affect the sequences of a producer with that name."""
        client = bench.client
        producer = client.producer("t", "till")
        sent = producer.send(b"a", sequence_id=5)
        bulk = client.bulk("t", key="k", batch=1, producer="till")
        bulk.commit(bulk.stage([rows(b"b", b"c"), rows(b"d", key=[b"k"])]))
        assert producer.send(b"again", sequence_id=5).message_id == sent.message_id
        assert producer.last_sequence_id() == 5
        producer.send(b"e", sequence_id=6)
        client.checkpoint(roll_all=True)
        found_rows = [
            (message.value, message.producer, message.sequence_id) for message in client.reader("t")
        ]
        assert found_rows == [
            (b"a", "till", 5),
            (b"b", "till", None),
            (b"c", "till", None),
            (b"d", "till", None),
            (b"e", "till", 6),
        ]
        with Query(client, "SELECT count(*) AS n FROM t WHERE producer = 'till'") as query:
            assert query.rows().read_all()["n"].to_pylist() == [5]
        assert not audit(client, ["t"], Local())["failed"]

    def test_tasks_are_processes_of_their_own(self, bench: Bench, tmp_path: Path) -> None:
        """Plan and answers are pickled; a task that ran twice, or failed, leaves no file."""
        client = bench.client
        bulk = client.bulk("t", key="k", batch=1)
        plan = tmp_path / "plan"
        plan.write_bytes(pickle.dumps(bulk.plan))
        answers = [tmp_path / name for name in ("second", "first", "repeated")]
        for answer, value, task in zip(answers, ("b", "a", "again"), (2, 1, 1), strict=True):
            run(ready("stage", plan, value, task, answer))
        assert len(stages(bench)) == 3
        staged = [item for file in answers[:2] for item in pickle.loads(file.read_bytes())]
        assert bulk.commit(staged)["files"] == 2
        assert values(client) == [b"a", b"b"]  # in the order of the tasks
        assert stages(bench) == []

    def test_checkpoint_and_reopening_change_nothing(self, bench: Bench) -> None:
        send(bench.client, b"a")
        first = load(bench.client, 1, b"b", b"c")
        ledger = first["partitions"][0]["ledger"]
        for step in range(4):
            bench.reopen() if step % 2 else bench.client.checkpoint()
            assert values(bench.client) == [b"a", b"b", b"c"]
            assert load(bench.client, 1, b"z") == {**first, "already": True}
            table = bench.client.store.read(lambda view: view.ledger_table(ledger, 0, 2))
            assert table["lsn"].to_pylist() == [first["lsn"]] * 2

    def test_open_transaction_of_the_key_is_fenced(self, bench: Bench) -> None:
        client = bench.client
        txn = client.transaction(key="k")
        client.producer("t").send(b"never", txn=txn)
        answer = load(client, 1, b"a")
        with pytest.raises(ExpiredTransaction, match="fenced"):
            txn.commit()
        assert values(client) == [b"a"]
        assert answer["txn"] is not None
        txn_row = client.show_transaction(answer["txn"])
        assert (txn_row["state"], txn_row["messages"], txn_row["transaction_key"]) == (
            "committed",
            1,
            "k",
        )
        assert [row["messages"] for row in txn_row["partition_list"]] == [1]

    def test_range_of_its_transaction(self, bench: Bench) -> None:
        client = bench.client
        send(client, b"x")
        bulk = client.bulk("t", key="k", batch=1)
        staged = [*bulk.stage([rows(b"a")], task=0), *bulk.stage([rows(b"b")], task=1)]
        answer = bulk.commit(staged)
        send(client, b"y")
        assert values(client, range=Range(kind="txn", txn=answer["txn"])) == [b"a", b"b"]


class TestSmall:
    """A small batch, such as one of a stream: rows of the open ledgers, and no file."""

    def test_batches_become_one_file_when_their_ledger_is_sealed(self, bench: Bench) -> None:
        """Kills a file of each batch, which no compaction could merge: ids name ledgers."""
        client = bench.client
        client.create_topic("two", partitions=2)
        for number in range(20):
            bulk = client.bulk("two", key="k", batch=number)
            at = pa.array([0, 1], pa.int32())
            staged = bulk.stage([rows(b"a%d" % number, b"b%d" % number, partition=at)])
            answer = bulk.commit(staged, rows_if_small=True)
            assert (answer["already"], answer["messages"], answer["files"]) == (False, 2, 0)
            answer_again = client.bulk_of(bulk.plan).commit([], rows_if_small=True)
            assert answer_again == {**answer, "already": True}
        assert files_below(bench, "topics/**/*.parquet") == []
        client.checkpoint(roll_all=True)
        assert len(files_below(bench, "topics/**/ledger-*.parquet")) == 2
        assert values(client, topic="two/1") == [b"b%d" % number for number in range(20)]
        assert not [row for row in audit(client, ["two"], Local())["check_list"] if not row["ok"]]

    def test_rows_have_all_their_columns(self, bench: Bench) -> None:
        client = bench.client
        given_rows = rows(
            b"a", b"b",
            key=pa.array([b"k", None], pa.binary()),
            properties=pa.array([[("n", "1")], None], pa.map_(pa.string(), pa.string())),
            event_time=pa.array([None, 5], pa.timestamp("ms", "UTC")),
            sequence_id=pa.array([7, None], pa.int64()),
        )  # fmt: skip
        for batch, small in (("files", False), ("rows", True)):
            bulk = client.bulk("t", key="k", batch=batch)
            bulk.commit(bulk.stage([given_rows]), rows_if_small=small)
        names = ["key", "value", "properties", "event_time", "sequence_id", "producer"]
        first, second = (
            [{name: row[name] for name in names} for row in part]
            for part in _halves(pa.concat_tables(client.read("t")).to_pylist())
        )
        assert first == second

    def test_batch_that_another_stores_meanwhile(self, bench: Bench) -> None:
        client = bench.client
        bulk = client.bulk("t", key="k", batch=1)
        staged = bulk.stage([rows(b"a")])
        other = client.bulk_of(client.plan_stage("t").named("k", 1))
        other.commit(other.stage([rows(b"b")]), rows_if_small=True)
        assert bulk.commit(staged, rows_if_small=True)["already"]
        assert values(client) == [b"b"] and stages(bench) == []

    def test_large_batch_is_files(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(adopt, "ROWS_MAX", 1)
        bulk = bench.client.bulk("t", key="k", batch=1)
        answer = bulk.commit(bulk.stage([rows(b"a", b"b")]), rows_if_small=True)
        assert answer["files"] == 1 and values(bench.client) == [b"a", b"b"]


def _halves(found_rows: list[dict[str, object]]) -> tuple[list[dict[str, object]], ...]:
    return found_rows[: len(found_rows) // 2], found_rows[len(found_rows) // 2 :]


class TestRefusals:
    """A refused call changes nothing."""

    def test_partitions_that_were_added(self, bench: Bench) -> None:
        client = bench.client
        bulk = client.bulk("t", key="k", batch=1)
        staged = bulk.stage([rows(b"a")])
        client.admin.update_topic("t", partitions=3)
        with pytest.raises(NotAllowed, match="3 partitions by now"):
            bulk.commit(staged)
        assert bulk.stored is None
        assert not load(client, 1, b"b")["already"]

    def test_topic_that_was_deleted(self, bench: Bench) -> None:
        client = bench.client
        bulk = client.bulk("t", key="k", batch=1)
        staged = bulk.stage([rows(b"a")])
        client.admin.delete_topic("t", force=True)
        with pytest.raises(TopicNotFound):
            bulk.commit(staged)

    def test_key_of_another_topic(self, bench: Bench) -> None:
        """Otherwise the second stream with the same key would silently lose its first batches."""
        client = bench.client
        client.create_topic("u")
        load(client, 5, b"a")
        load(client, "x", b"a")
        for batch in (5, 6, 1, "x"):
            with pytest.raises(NotAllowed, match="has stored batch"):
                load(client, batch, b"b", topic="u")
        load(client, "monday", b"a", key="named")
        with pytest.raises(NotAllowed, match="has stored batch monday in t"):
            load(client, "tuesday", b"b", topic="u", key="named")
        assert values(client, "u") == []

    def test_key_of_another_checkpoint(self, bench: Bench) -> None:
        """Its numbers begin at 0 again.

        Guards against silently taking its batches for stored ones.
        """

        def stream(query: str, batch: int | str, value: bytes, key: str = "app") -> bool:
            plan = bench.client.bulk("t", key=key, batch=batch).plan.named(key, batch, query)
            bulk = bench.client.bulk_of(plan)
            return bulk.commit(bulk.stage([rows(value)]))["already"]

        assert not stream("one", 0, b"a")
        assert stream("one", 0, b"a")
        assert not stream("one", 1, b"b")
        for batch in (0, 1, 2, "0"):
            with pytest.raises(NotAllowed, match="up to 1 of another checkpoint"):
                stream("two", batch, b"c")
        assert not stream("one", 2, b"d")
        assert not stream("two", 0, b"e", "new")
        assert not stream("one", "x", b"f", "named")
        with pytest.raises(NotAllowed, match="has stored batches of another checkpoint"):
            stream("two", "x", b"g", "named")
        assert values(bench.client) == [b"a", b"b", b"d", b"e", b"f"]

    def test_key_of_an_older_version_takes_the_query_that_goes_on(self, bench: Bench) -> None:
        """Without a record of its query, only the last batch can come again."""
        client = bench.client

        def stream(query: str, batch: int) -> bool:
            plan = client.bulk("t", key="k", batch=batch).plan.named("k", batch, query)
            bulk = client.bulk_of(plan)
            return bulk.commit(bulk.stage([rows(b"x")]))["already"]

        for batch in (0, 1):
            load(client, batch, b"a")
        with pytest.raises(NotAllowed, match="another checkpoint"):
            stream("new", 0)
        assert stream("old", 1)
        assert not stream("old", 2)
        with pytest.raises(NotAllowed, match="another checkpoint"):
            stream("new", 3)

    def test_abort_of_a_refused_batch_removes_its_files(self, bench: Bench) -> None:
        load(bench.client, 1, b"a")
        plan = bench.client.bulk("t", key="k", batch=0).plan.named("k", 0, "new")
        bulk = bench.client.bulk_of(plan)
        stage(plan, [rows(b"b")])
        # Spark shows the reason of the refusal only if this call succeeds
        assert bulk.abort() is None
        assert not Path(bench.client.path, plan.directory).exists()

    def test_partition_that_is_away(self, bench: Bench) -> None:
        client = bench.client
        bulk = client.bulk("t", key="k", batch=1)
        staged = bulk.stage([rows(b"a")])
        client.admin.set_offline("t", 0)
        with pytest.raises(PartitionUnavailable):
            bulk.commit(staged)
        client.admin.set_online("t", 0)
        assert bulk.commit(staged)["messages"] == 1

    def test_file_that_is_not_what_was_written(self, bench: Bench) -> None:
        client = bench.client
        bulk = client.bulk("t", key="k", batch=1)
        staged = bulk.stage([rows(b"a" * 1000)])
        path = Path(bench.path, staged[0].file.path)
        whole = path.read_bytes()
        for wrong in (whole[:-1], whole + b"\0", bytes([*whole[:60], whole[60] ^ 1, *whole[61:]])):
            path.write_bytes(wrong)
            with pytest.raises(Corruption):
                bulk.commit(staged)
        path.write_bytes(whole)
        assert bulk.commit(staged)["messages"] == 1
        assert values(client) == [b"a" * 1000]

    def test_files_of_another_batch_or_twice(self, bench: Bench) -> None:
        client = bench.client
        bulk, other = client.bulk("t", key="k", batch=1), client.bulk("t", key="k", batch=2)
        staged, strange = bulk.stage([rows(b"a")]), other.stage([rows(b"b")])
        for wrong in (strange, [*staged, *staged], [*staged, *strange]):
            with pytest.raises(InvalidArgument):
                bulk.commit(wrong)
        bulk.abort()
        with pytest.raises(NotAllowed, match="is gone"):
            bulk.commit(staged)

    @pytest.mark.parametrize("batch", [-1, 1 << 63, "", "x" * 1025, "\ud800", True, None, 1.5])
    def test_batch_that_is_no_name(self, bench: Bench, batch: object) -> None:
        with pytest.raises(InvalidArgument):
            bench.client.bulk("t", key="k", batch=batch)  # type: ignore[arg-type]

    def test_messages_that_a_producer_could_not_send(self, bench: Bench) -> None:
        bulk = bench.client.bulk("t", key="k", batch=1)
        with pytest.raises(InvalidMessage):
            bulk.stage([rows(bytes(6 << 20))])
        with pytest.raises(InvalidArgument, match="unknown column"):
            bulk.stage([rows(b"a", colour=["red"])])
        with pytest.raises(InvalidArgument, match="no column named value"):
            bulk.stage([pa.table({"key": [b"a"]}).slice(0, 0)])

    def test_sequences_with_a_producer_name(self, bench: Bench) -> None:
        """A look for a repeated sequence would take them for the producer's own sends."""
        for name, text in (("till", "no column sequence_id"), ("", "bad producer name")):
            with pytest.raises(InvalidArgument, match=text):
                bulk = bench.client.bulk("t", key="k", batch=1, producer=name)
                bulk.stage([rows(b"b", sequence_id=[1])])
        assert stages(bench) == [] and values(bench.client) == []

    def test_names_are_bounded(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        """A forgotten name would let its batch be stored twice."""
        monkeypatch.setattr(flow, "NAMES_MAX", 2)
        load(bench.client, "a", b"1")
        load(bench.client, "b", b"2")
        with pytest.raises(LimitExceeded):
            load(bench.client, "c", b"3")
        assert load(bench.client, "a", b"4")["already"]
        assert not load(bench.client, 1, b"5")["already"]

    def test_delay_above_the_maximum(self, tmp_path: Path) -> None:
        bench = Bench(tmp_path / "delays", max_delivery_delay_ms=1000)
        bench.client.create_topic("t")
        bulk = bench.client.bulk("t", key="k", batch=1)
        at = pa.array([None, START_MS + 1001], pa.timestamp("ms", "UTC"))
        with pytest.raises(InvalidMessage, match="max_delivery_delay_ms"):
            bulk.commit(bulk.stage([rows(b"a", b"b", deliver_at=at)]))
        assert bulk.stored is None
        bench.close()


@pytest.mark.parametrize("is_typed", graded([False, True], 1))
def test_small_batches_of_a_stream_leave_few_files(tmp_path: Path, is_typed: bool) -> None:
    """They are rows, like a producer's messages, and are sealed together.

    Guards against one file for each batch.
    """
    bench = Bench(tmp_path / "store", coordinators=1, reader_grace_ms=0)
    schema = pa.schema([("cups", pa.int64())]) if is_typed else None
    bench.client.create_topic("t", partitions=2, schema=schema)
    for batch in range(100):
        bulk = bench.client.bulk("t", key="query", batch=batch)
        values = [b'{"cups":%d}' % (2 * batch + at) for at in range(2)]
        answer = bulk.commit(
            bulk.stage([pa.table({"value": values, "partition": [0, 1]})]), rows_if_small=True
        )
        assert (answer["files"], answer["messages"]) == (0, 2)
    for _ in range(3):  # sealed, then what the seals replaced is removed
        bench.clock.advance(10_000)
        bench.client.checkpoint(roll_all=True)
    files = [
        each_path for each_path in Path(bench.path, "topics").rglob("*.*") if each_path.is_file()
    ]
    assert len(files) <= 4, files  # each partition has its own file, and one of transactions
    found_values = sorted(
        each_path.value for each_path in bench.client.reader("t") if each_path.value
    )
    assert found_values == sorted(b'{"cups":%d}' % number for number in range(200))

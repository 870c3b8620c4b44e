"""Bulk: a batch of files is stored once, as a whole, after all earlier messages."""

from __future__ import annotations

import contextlib
import pickle
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from scripts import ready
from tests.engine_kit import START_MS, Bench, ids, pending, say, send, send_txn, values
from txlog import Client, MessageId, Range
from txlog.base.ranges import END, Bound
from txlog.base.rows.sending import BulkStored
from txlog.client.sending.bulk import stage
from txlog.engine.decide.sending import adopt as flow
from txlog.engine.plan import staging
from txlog.engine.plan.reading.watermarks import WatermarkGenerator
from txlog.engine.storage.disk.posix import PosixDisk
from txlog.engine.storage.disk.protocol import Draft
from txlog.engine.storage.segment import GROUP_ROWS
from txlog.engine.store.store import Store
from txlog.engine.upkeep.checkpoint.checkpoint import maintenance
from txlog.engine.upkeep.space import adopt
from txlog.engine.view import View
from txlog.errors import (
    Corruption,
    ExpiredTransaction,
    InvalidArgument,
    InvalidMessage,
    LimitExceeded,
    NoResources,
    NotAllowed,
    NotFound,
    PartitionUnavailable,
    TopicNotFound,
)
from txlog.lake.jobs.audit import audit
from txlog.lake.jobs.local import Local
from txlog.lake.sql.client_query import Query

_INSTANT = pa.timestamp("ms", "UTC")
pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 1}, [("t", "s")], coordinators=1, reader_grace_ms=0),
]


def rows(*values: bytes, **columns: object) -> pa.Table:
    """Messages as a table."""
    return pa.table({"value": pa.array(values, pa.binary()), **columns})


def load(
    client: Client, batch: int | str, *values: bytes, key: str = "k", topic: str = "t"
) -> BulkStored:
    """Stage and commit a batch in one go; returns its answer."""
    bulk = client.bulk(topic, key=key, batch=batch)
    return bulk.commit(bulk.stage([rows(*values)]))


def files_below(bench: Bench, pattern: str) -> list[str]:
    """Paths of files of the store."""
    root = Path(bench.path)
    return sorted(str(path.relative_to(root)) for path in root.glob(pattern) if path.is_file())


def stages(bench: Bench) -> list[str]:
    """The files below any _stage."""
    return files_below(bench, "topics/**/_stage/**/*")


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
        code = (
            "import pickle, sys, pyarrow as pa\n"
            "from txlog.client.sending.bulk import stage\n"
            "plan = pickle.loads(open(sys.argv[1], 'rb').read())\n"
            "rows = pa.table({'value': [sys.argv[2].encode()]})\n"
            "sys.stdout.buffer.write(pickle.dumps(stage(plan, [rows], int(sys.argv[3]))))\n"
        )
        outs = [
            subprocess.run(
                [*ready.python(), "-c", code, str(plan), value, task],
                capture_output=True,
                check=True,
            ).stdout
            for value, task in (("b", "2"), ("a", "1"), ("again", "1"))
        ]
        assert len(stages(bench)) == 3
        staged = [item for out in outs[:2] for item in pickle.loads(out)]
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


class TestWithOthers:
    """Adopted ledgers in all components that know ledgers."""

    def test_subscriptions_deliver_and_acknowledge(self, bench: Bench) -> None:
        client = bench.client
        load(client, 1, b"a", b"b")
        send(client, b"c")
        with client.consumer("t", "s") as consumer:
            table = consumer.receive_batch(3)
            assert table["value"].to_pylist() == [b"a", b"b", b"c"]
            consumer.acknowledge(table.take([0, 2]))
        load(client, 2, b"d")
        bench.reopen()
        assert [message.value for message in pending(bench.client)] == [b"b", b"d"]

    def test_delays_are_kept(self, tmp_path: Path) -> None:
        """deliver_at of a file enters the index, in frames and through buckets."""
        bench = Bench(tmp_path / "delays", mutable_ids_max=1)
        client = bench.client
        client.create_topic("t")
        client.create_subscription("t", "shared", type="shared")
        at = pa.array([START_MS + 5_000, None, START_MS - 1], pa.timestamp("ms", "UTC"))
        bulk = client.bulk("t", key="k", batch=1)
        bulk.commit(bulk.stage([rows(b"later", b"now", b"past", deliver_at=at)]))
        bulk = client.bulk("t", key="k", batch=2)
        column_after = pa.array([None, 7_000], pa.int64())
        bulk.commit(bulk.stage([rows(b"plain", b"even later", deliver_after=column_after)]))

        def due() -> list[bytes]:
            return sorted(m.value for m in pending(bench.client, subscription="shared") if m.value)

        for _ in range(2):
            assert due() == [b"now", b"past", b"plain"]
            bench.client.checkpoint()
            bench.reopen()
        report = bench.client.topic("t").rebuild()
        assert (report["missing"], report["surplus"], report["indexed"]) == (0, 0, 2)
        bench.clock.advance(5_000)
        assert due() == [b"later", b"now", b"past", b"plain"]
        bench.clock.advance(2_000)
        assert len(due()) == 5
        bench.close()

    def test_fixed_delay_holds(self, bench: Bench) -> None:
        bench.client.create_subscription("t", "shared", type="shared")
        bench.client.admin.set_delayed_policies("t", fixed_delivery_delay_ms=4_000)
        load(bench.client, 1, b"a")
        assert pending(bench.client, subscription="shared") == []
        bench.clock.advance(4_000)
        assert len(pending(bench.client, subscription="shared")) == 1

    def test_watermark_inside_is_that_before(self, bench: Bench) -> None:
        """No row of an adopted ledger moves the watermark, also after a trim."""
        client, generator = bench.client, WatermarkGenerator(1)
        say(client, "A", 100)
        ledger = load(client, 1, b"a", b"b")["partitions"][0]["ledger"]
        say(client, "A", 200)
        load(client, 2, b"c")
        say(client, "A", 300)

        def seek(at: tuple[int, int], view: View) -> None:
            generator.seek(view, at)

        def seen(first: int) -> list[int | None]:
            nonlocal generator
            generator = WatermarkGenerator(1)
            ends = client.store.read(lambda view: view.topic(1).ledgers)
            out: list[int | None] = []
            for end in ends:
                for entry in range(first if end is ends[0] else -1, end.entries):
                    client.store.read(partial(seek, (end.ledger, entry)))
                    out.append(generator.get_watermark())
            return [value for at, value in enumerate(out) if at == 0 or out[at - 1] != value]

        assert seen(-1) == [None, 100, 200, 300]
        client.admin.trim("t", Bound("id", MessageId(ledger, 0)), force_unacked=True)
        bench.client.checkpoint()
        assert seen(-1) == [100, 200, 300]
        ends = client.store.read(lambda view: [end.sealed for end in view.topic(1).ledgers])
        assert ends[0], "the adopted ledger is the first one now"

    def test_trim_takes_whole_files(self, bench: Bench) -> None:
        client = bench.client
        load(client, 1, b"a", b"b")
        answer = load(client, 2, b"c")
        send(client, b"d")
        ledger = answer["partitions"][0]["ledger"]
        client.admin.trim("t", Bound("id", MessageId(ledger, 0)), force_unacked=True)
        assert values(client) == [b"c", b"d"]
        client.checkpoint()
        client.checkpoint()
        assert len(files_below(bench, "topics/**/ledger-*.parquet")) == 1
        assert load(client, 1, b"z")["already"], "a trimmed batch is stored all the same"

    def test_position_by_time(self, bench: Bench) -> None:
        client = bench.client
        send(client, b"a")
        bench.clock.advance(1000)
        bulk = client.bulk("t", key="k", batch=1)
        staged = bulk.stage([rows(b"b")])
        bench.clock.advance(1000)
        send(client, b"c")
        bulk.commit(staged)
        bench.clock.advance(1000)
        send(client, b"d")

        def since(ms: int) -> list[bytes]:
            return values(client, range=Range(start=Bound("time", START_MS + ms), stop=END))

        assert since(0) == [b"a", b"c", b"b", b"d"]
        assert since(2000) == [b"c", b"b", b"d"]
        assert since(2001) == [b"d"]

    def test_id_between_two_ledgers_is_no_message(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = bench.client
        send(client, b"a")
        bulk = client.bulk("t", key="k", batch=1)
        staged = bulk.stage([rows(b"b")])

        def refuse(*_: object) -> None:
            raise NotAllowed("no")

        with monkeypatch.context() as patch, pytest.raises(NotAllowed):
            patch.setattr(flow, "adopt", refuse)
            bulk.commit(staged)
        assert files_below(bench, "topics/**/ledger-*.parquet") == []
        ledger = client.store.read(lambda view: view.catalog.next_ledger)
        load(client, 1, b"c")
        codes = []
        for wrong in range(1, ledger + 4):
            with contextlib.suppress(NotFound):
                start = Bound("id", MessageId(wrong, 0))
                codes.append(values(client, range=Range(start=start, stop=END)))
            with contextlib.suppress(NotFound):
                client.inspect(f"{wrong}:0")
        assert codes == [[b"a", b"c"], [b"c"], [b"c"], []]

    def test_query_sees_it_with_its_lsn(self, bench: Bench) -> None:
        client = bench.client
        answer = load(client, 1, b"a", b"b")
        send(client, b"c")
        for _ in range(2):
            with Query(client, "SELECT value, lsn, message_id FROM t ORDER BY ledger, entry") as q:
                table = q.rows().read_all()
            assert table["value"].to_pylist() == [b"a", b"b", b"c"]
            assert table["lsn"].to_pylist()[:2] == [answer["lsn"]] * 2
            assert table["lsn"].to_pylist()[2] > answer["lsn"]
            client.checkpoint()


class TestLeftovers:
    """The files of failed jobs are removed."""

    def test_abort_removes_the_files_of_the_job_alone(self, bench: Bench) -> None:
        client = bench.client
        bulk, other = client.bulk("t", key="k", batch=1), client.bulk("t", key="k", batch=2)
        bulk.stage([rows(b"a")])
        other.stage([rows(b"b")])
        assert bulk.abort() is None
        assert len(stages(bench)) == 1

    @pytest.mark.parametrize(
        ("drafts", "many", "begun", "files"),
        [(8, 1 << 30, 5, 5), (2, 1 << 30, 2, 5), (2, 0, 2, 20), (0, 0, 0, 30)],
    )
    def test_files_too_large_for_memory_have_the_same_rows(
        self,
        bench: Bench,
        monkeypatch: pytest.MonkeyPatch,
        drafts: int,
        many: int,
        begun: int,
        files: int,
    ) -> None:
        """Files are begun before they are whole, as far as descriptors go; otherwise the largest
        one ends.
        """
        client = bench.client
        client.create_topic("u", partitions=5)
        client.create_topic("v", partitions=5)
        tables = [
            pa.table(
                {
                    "value": [b"%d-%d" % (turn, at) for at in range(10)],
                    "partition": [at % 5 for at in range(10)],
                    "deliver_at": pa.array([None if turn < 3 else START_MS] * 10, _INSTANT),
                }
            )
            for turn in range(6)
        ]
        bulk = client.bulk("u", key="in memory", batch=1)
        assert bulk.commit(bulk.stage(tables))["files"] == 5
        for name in ("KEPT_BYTES_MAX", "TASK_BYTES_MAX", "GROUP_BYTES_MIN"):
            monkeypatch.setattr(staging, name, 0)
        monkeypatch.setattr(staging, "MANY_BYTES_MAX", many)
        monkeypatch.setattr(staging, "GROUP_BYTES", 1)
        begin, refused = PosixDisk.begin, 0

        def few(disk: PosixDisk, path: str) -> Draft:
            nonlocal refused
            if sum("/.tmp-" in item for item in stages(bench)) >= drafts:
                refused += 1
                raise NoResources("too many open files")
            return begin(disk, path)

        monkeypatch.setattr(PosixDisk, "begin", few)
        monkeypatch.setattr(PosixDisk, "files_kept", lambda disk: drafts or 1)
        seen: list[int] = []

        def counted() -> Iterator[pa.Table]:
            for table in tables:
                yield table
                seen.append(sum("/.tmp-" in path for path in stages(bench)))

        bulk = client.bulk("v", key="on disk", batch=1)
        answer = bulk.commit(bulk.stage(counted()))
        assert seen == [begun] * 6 and answer["files"] == files
        assert refused == (0 if drafts else 30)
        found_rows = [
            sorted(
                (row["partition"], row["ledger"], row["entry"], row["value"], row["deliver_at"])
                for table in client.read(topic)
                for row in table.to_pylist()
            )
            for topic in ("u", "v")
        ]
        ours, theirs = ([(row[0], *row[3:]) for row in item] for item in found_rows)
        assert len(ours) == 60 and ours == theirs
        assert stages(bench) == []

    def test_a_task_that_fails_leaves_nothing_that_it_began(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("KEPT_BYTES_MAX", "TASK_BYTES_MAX", "GROUP_BYTES_MIN"):
            monkeypatch.setattr(staging, name, 0)

        def failing() -> Iterator[pa.Table]:
            yield rows(b"a")
            assert len(stages(bench)) == 1
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            bench.client.bulk("t", key="k", batch=1).stage(failing())
        assert stages(bench) == []

    def test_abort_behind_the_commit_takes_nothing_back(self, bench: Bench) -> None:
        client = bench.client
        bulk = client.bulk("t", key="k", batch=1)
        bulk.commit(bulk.stage([rows(b"a")]))
        answer = bulk.abort()
        assert answer is not None and answer["messages"] == 1
        client.checkpoint()
        assert values(client) == [b"a"]

    def test_stages_go_with_a_checkpoint_by_their_age(self, bench: Bench) -> None:
        client = bench.client
        client.bulk("t", key="k", batch=1).stage([rows(b"a")])
        bench.clock.advance(client.settings.stage_ttl_ms - 1)
        young = client.bulk("t", key="k", batch=2)
        young.stage([rows(b"b")])
        client.checkpoint()
        assert len(stages(bench)) == 2
        bench.clock.advance(1)
        send(client, b"c")
        client.checkpoint()
        (remaining_stage,) = stages(bench)
        assert remaining_stage.startswith(young.plan.directory)

    def test_names_that_no_frame_knows_are_swept(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """R19: a driver died between its links and its frame."""
        client = bench.client
        bulk = client.bulk("t", key="k", batch=1)
        staged = bulk.stage([rows(b"a")])

        class Died(BaseException):
            pass

        def die(*_: object) -> None:
            raise Died

        with monkeypatch.context() as patch, pytest.raises(Died):
            patch.setattr(flow, "adopt", die)
            bulk.commit(staged)
        assert len(files_below(bench, "topics/**/ledger-*.parquet")) == 1
        bench.clients.remove(client)  # the driver died
        other = bench.client = bench.another()
        send(other, b"x")
        other.checkpoint()
        assert files_below(bench, "topics/**/ledger-*.parquet") == []
        assert load(other, 1, b"b")["already"] is False
        assert values(other) == [b"x", b"b"]

    def test_batch_that_another_stores_meanwhile(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was not stored when the commit began, so the decision of the frame looks again."""
        client, other = bench.client, bench.another()
        ours, theirs = (each_client.bulk("t", key="k", batch=1) for each_client in (client, other))
        staged, of_theirs = ours.stage([rows(b"ours")]), theirs.stage([rows(b"theirs")])
        real = maintenance

        def racing(store: Store, *, wait: bool) -> AbstractContextManager[bool]:
            monkeypatch.setattr(adopt, "maintenance", real)
            assert not theirs.commit(of_theirs)["already"]
            return real(store, wait=wait)

        monkeypatch.setattr(adopt, "maintenance", racing)
        assert ours.commit(staged)["already"]
        assert values(client) == [b"theirs"]
        assert len(files_below(bench, "topics/**/ledger-*.parquet")) == 1
        assert stages(bench) == []

    def test_ids_that_are_too_low_are_taken_anew(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The commit never uses an id below a ledger that readers may have passed."""
        client, other = bench.client, bench.another()
        send(client, b"a")
        real = adopt._link
        calls: list[int] = []

        def racing(*arguments: object) -> None:
            real(*arguments)  # type: ignore[arg-type]
            if len(calls) < 2:
                calls.append(1)
                other.admin.trim("t", END, force_unacked=True)  # rolls the open ledger
                send(other, b"b%d" % len(calls))

        monkeypatch.setattr(adopt, "_link", racing)
        load(client, 1, b"c")
        assert len(calls) == 2
        assert values(client)[-2:] == [b"b2", b"c"]
        assert len(files_below(bench, "topics/**/ledger-*.parquet")) == 1


@pytest.mark.parametrize("is_typed", [False, True])
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

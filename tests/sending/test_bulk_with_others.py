"""Bulk loads during other work, and the files of a dead loader."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from tests.engine_kit import START_MS, Bench, pending, say, send, values
from tests.sending.bulk_kit import files_below, load, rows, stages
from txlog import MessageId, Range
from txlog.base.ranges import END, Bound
from txlog.engine.decide.sending import adopt as flow
from txlog.engine.plan import staging
from txlog.engine.plan.reading.watermarks import WatermarkGenerator
from txlog.engine.storage.disk.posix import PosixDisk
from txlog.engine.storage.disk.protocol import Draft
from txlog.engine.store.store import Store
from txlog.engine.upkeep.checkpoint.checkpoint import maintenance
from txlog.engine.upkeep.space import adopt
from txlog.engine.view import View
from txlog.errors import (
    NoResources,
    NotAllowed,
    NotFound,
)
from txlog.lake.sql.client_query import Query

pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 1}, [("t", "s")], coordinators=1, reader_grace_ms=0),
]


_INSTANT = pa.timestamp("ms", "UTC")


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

"""`txlog export --to delta|iceberg|hive`: a stock reader sees each message once, even
after a kill.
"""

from __future__ import annotations

import datetime as dt
import importlib
import importlib.util
import json
import os
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.cli.test_store import Tool, tool
from tests.engine_kit import Bench, begin, little_room, send
from tests.harness import KILLED, ready, run
from tests.jobs.histories import plain
from tests.jobs.test_export_files import bench_of, fill
from tests.sql.test_querying import FIRST, STEPS, History
from tests.tiers import graded
from txlog import Client
from txlog.errors import (
    DiskFailed,
    InvalidArgument,
    NotAllowed,
    TopicNotFound,
    TryAgain,
)
from txlog.lake.jobs.export_files import Shape
from txlog.lake.jobs.mirrors import hive
from txlog.lake.jobs.mirrors.hive import STATE
from txlog.lake.jobs.mirrors.mirror import mirror, rows_after
from txlog.lake.jobs.mirrors.table import LOCK, TABLE

pytestmark = pytest.mark.usefixtures("quick_disk")
_ = tool
HAS_ICEBERG = importlib.util.find_spec("pyiceberg") is not None
FORMS = [
    "hive",
    "delta",
    pytest.param(
        "iceberg",
        marks=pytest.mark.skipif(not HAS_ICEBERG, reason="pyiceberg is not installed"),
    ),
]
SAME = (
    "topic", "partition", "message_id", "txn_index", "key", "value", "properties", "publish_time",
    "event_time", "deliver_at", "visible_time", "producer", "sequence_id",
)  # fmt: skip


def of_hive(path: Path) -> pa.Table:
    """The rows that DuckDB reads without txlog."""
    with duckdb.connect() as connection:
        connection.execute("SET timezone='UTC'")
        return connection.sql(
            f"SELECT * FROM read_parquet('{path}/**/*.parquet', hive_partitioning=true)"
        ).to_arrow_table()


def of_delta(path: Path) -> pa.Table:
    return DeltaTable(str(path)).to_pyarrow_table()


def of_iceberg(path: Path) -> pa.Table:
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("txlog", uri=f"sqlite:///{path}/catalog.db", warehouse=f"file://{path}")
    try:
        return catalog.load_table(("default", "t")).scan().to_arrow()
    finally:
        catalog.close()


SHOWN: dict[str, Callable[[Path], pa.Table]] = {
    "hive": of_hive, "delta": of_delta, "iceberg": of_iceberg,
}  # fmt: skip


def rows_of(table: pa.Table) -> list[tuple[object, ...]]:
    """The rows of a table, in the order of ids; instants are microseconds."""
    whole = pa.table({name: table.column(name) for name in SAME})
    for name in SAME:
        if pa.types.is_timestamp(whole.schema.field(name).type):
            at = whole.schema.get_field_index(name)
            us = whole.column(name).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            whole = whole.set_column(at, name, us)
    return sorted((tuple(plain(row[name]) for name in SAME) for row in whole.to_pylist()), key=repr)


def in_mirror(form: str, path: Path) -> list[tuple[object, ...]]:
    return rows_of(SHOWN[form](path))


def in_topic(client: Client) -> list[tuple[object, ...]]:
    """The messages that a reader of the store gets."""
    return rows_of(pa.concat_tables([Shape(client, "t").rows(rows) for rows in client.read("t")]))


@pytest.mark.parametrize("form", graded(FORMS, ("delta",)))
def test_each_run_adds_the_newly_visible_messages(tmp_path: Path, form: str) -> None:
    """The messages of a transaction that was open at the first run come with the first run after
    its commit.
    """
    bench, out = bench_of(tmp_path), tmp_path / "out"
    txn = begin(bench.client)
    bench.client.producer("t").send(b"later", txn=txn)
    first = mirror(bench.client, "t", str(out), form)
    assert first["messages"] == len(in_topic(bench.client)) > 10
    assert in_mirror(form, out) == in_topic(bench.client)
    mirror_again = mirror(bench.client, "t", str(out), form)
    assert (mirror_again["messages"], mirror_again["files"]) == (0, 0)
    bench.client.checkpoint(roll_all=True)
    bench.client.commit(txn)
    bench.clock.advance(3 * 86_400_000)
    send(bench.client, b"x")
    more = mirror(bench.client, "t", str(out), form)
    assert (more["messages"], more["files"]) == (2, 2)
    assert in_mirror(form, out) == in_topic(bench.client)


@pytest.mark.parametrize("form", graded(FORMS, ("hive",)))
def test_mirror_is_the_topic_after_any_history(tmp_path: Path, form: str) -> None:
    """Ledgers roll, and compactions and checkpoints happen between runs.

    Guards against messages that come twice, late or never.
    """
    for seed in map(str, range(FIRST, FIRST + 2)):
        history, out = History(tmp_path, f"{form}{seed}"), tmp_path / f"out{seed}"
        kinds = "send send_in_txn send_large commit abort checkpoint roll compact reopen".split()
        for number in range(STEPS // 2):
            rng = random.Random(f"{seed}:{number}")
            getattr(history, rng.choice(kinds))(rng)
            if number % 12 == 11:
                mirror(history.client, "t", str(out), form)
        mirror(history.client, "t", str(out), form)
        rows = in_mirror(form, out)
        assert rows == in_topic(history.client), f"seed {seed}"
        history.client.close()


@pytest.mark.parametrize("form", graded(FORMS, ("hive",)))
def test_a_mirror_is_of_one_topic_of_one_store(tmp_path: Path, form: str) -> None:
    bench, out = bench_of(tmp_path), tmp_path / "out"
    bench.client.create_topic("u")
    mirror(bench.client, "t", str(out), form)
    other = Bench(tmp_path / "other", coordinators=1)
    other.client.create_topic("t")
    with pytest.raises(NotAllowed):
        mirror(other.client, "t", str(out), form)
    if form != "iceberg":  # a warehouse has several tables
        with pytest.raises(NotAllowed):
            mirror(bench.client, "u", str(out), form)
    with pytest.raises(TopicNotFound):
        mirror(bench.client, "nothing", str(tmp_path / "new"), form)
    assert not (tmp_path / "new").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    with pytest.raises(NotAllowed):
        mirror(bench.client, "t", str(tmp_path / "full"), form)
    with pytest.raises(InvalidArgument):
        mirror(bench.client, "t", "s3://bucket/t", form)


@pytest.mark.parametrize("form", graded(FORMS, ("hive", "delta")))
def test_a_mirror_goes_on_with_its_topic_and_not_with_another_of_its_name(
    tmp_path: Path, form: str
) -> None:
    bench, out = bench_of(tmp_path), tmp_path / "out"
    mirror(bench.client, "t", str(out), form)
    bench.client.admin.rename_topic("t", "was")
    bench.client.create_topic("t")
    send(bench.client, b"of another")
    with pytest.raises(NotAllowed, match="whose name is was now; t is another") as refused:
        mirror(bench.client, "t", str(out), form)
    assert refused.value.hint == "go on with was, or export to another directory"
    bench.client.producer("was").send(b"new")
    messages = mirror(bench.client, "was", str(out), form)["messages"]
    # A table in a warehouse has the name of its topic, so the new name begins another table.
    assert messages == (len(list(bench.client.reader("was"))) if form == "iceberg" else 1)
    bench.client.admin.delete_topic("was", force=True)
    with pytest.raises(NotAllowed, match="earlier topic, which was deleted; t is another"):
        mirror(bench.client, "t", str(out), form)


def test_a_mirror_of_an_older_version_goes_on(tmp_path: Path) -> None:
    bench, out = bench_of(tmp_path), tmp_path / "out"
    mirror(bench.client, "t", str(out), "hive")
    state = json.loads((out / STATE).read_bytes())
    del state["topic"]
    (out / STATE).write_text(json.dumps(state))
    send(bench.client, b"new")
    assert mirror(bench.client, "t", str(out), "hive")["messages"] == 1
    assert "topic" in json.loads((out / STATE).read_bytes())


def killed(store: str, out: Path, form: str, step: int) -> bool:
    """Do one run that is killed before this step; False if the run ended first."""
    ended = run(ready("mirror", store, out, form, step + 1), code=None).returncode
    assert ended in (0, KILLED)
    return ended != 0


WIDE = pa.schema(
    [
        ("flag", pa.bool_()), ("small", pa.int32()), ("big", pa.int64()), ("half", pa.float32()),
        ("whole", pa.float64()), ("raw", pa.binary()), ("text", pa.string()),
        ("fixed", pa.binary(3)), ("day", pa.date32()), ("at", pa.timestamp("ms", "UTC")),
        ("fine", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us")),
        ("sum", pa.decimal128(9, 2)), ("clock", pa.time32("ms")), ("finer", pa.time64("us")),
        ("list", pa.list_(pa.struct([("a", pa.int64()), ("when", pa.time32("ms"))]))),
        ("seats", pa.map_(pa.string(), pa.int32())), ("place", pa.struct([("city", pa.string())])),
    ]
)  # fmt: skip
DAY = dt.datetime(2013, 2, 9, 5, 15, 1, 250_000, tzinfo=dt.UTC)
FULL: dict[str, Any] = {
    "flag": True, "small": -1, "big": 1 << 40, "half": 0.5, "whole": 1e300, "raw": b"\x00\xff",
    "text": "caf\u00e9", "fixed": b"abc", "day": DAY.date(), "at": DAY,
    "fine": DAY, "local": DAY.replace(tzinfo=None), "sum": Decimal("-12.50"),
    "clock": DAY.time(), "finer": DAY.time(), "list": [{"a": 1, "when": DAY.time()}, None],
    "seats": {"first": 2, "none": None}, "place": {"city": "EWR"},
}  # fmt: skip


def records_in(form: str, path: Path) -> list[Any]:
    """The records of a mirror, with times of day as time objects."""

    def natural(each_item: Any, name: str = "") -> Any:
        if isinstance(each_item, dict):
            return {key: natural(item, key) for key, item in each_item.items()}
        if isinstance(each_item, list):
            return [natural(item) for item in each_item]
        if name in ("clock", "finer", "when") and isinstance(each_item, int):
            return (
                dt.datetime(1, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=each_item)
            ).time()
        return each_item.astimezone(dt.UTC) if getattr(each_item, "tzinfo", None) else each_item

    column = SHOWN[form](path).sort_by("message_id").column("record")
    naturals = [natural(each_item) for each_item in column.to_pylist(maps_as_pydicts="strict")]
    for each_item in naturals:
        if form == "iceberg" and each_item and each_item["list"] == []:
            each_item["list"] = None  # pyiceberg reads a list that is null as an empty one
    return naturals


@pytest.mark.parametrize("form", graded(FORMS, ("delta",)))
def test_records_are_columns_of_the_first_schema(tmp_path: Path, form: str) -> None:
    """All types, with nulls, from the journal and from sealed files; a later schema changes no
    file.
    """
    bench, out = Bench(tmp_path / "store", coordinators=1), tmp_path / "out"
    client = bench.client
    client.create_topic("t", schema=WIDE)
    client.admin.set_schema_policies("t", compatibility="none", validation="record")
    none = dict.fromkeys(FULL)
    producer = client.producer("t")
    for record in (FULL, none):
        producer.send(record)
    client.checkpoint(roll_all=True)
    for value in (FULL, b"no record", None):
        producer.send(value)
    mirror(client, "t", str(out), form)
    expected = [FULL, none, FULL, None, None]
    assert records_in(form, out) == expected
    schemas = client.topic("t").schemas
    schemas.add(WIDE.remove(0).append(pa.field("more", pa.string())))
    client.producer("t").send({**{n: v for n, v in FULL.items() if n != "flag"}, "more": "x"})
    mirror(client, "t", str(out), form)
    assert records_in(form, out) == [*expected, {**FULL, "flag": None}]
    schemas.delete()
    send(client, b"bytes")
    client.checkpoint(roll_all=True)
    mirror(client, "t", str(out), form)
    assert records_in(form, out) == [*expected, {**FULL, "flag": None}, None]
    assert in_mirror(form, out) == in_topic(client)
    client.admin.delete_topic("t")
    client.create_topic("t")
    with pytest.raises(NotAllowed):
        mirror(client, "t", str(out), form)


@pytest.mark.parametrize("form", graded(FORMS, ("hive",)))
def test_a_mirror_that_was_made_without_records_goes_on_without(tmp_path: Path, form: str) -> None:
    bench, out = bench_of(tmp_path), tmp_path / "out"
    mirror(bench.client, "t", str(out), form)
    bench.client.topic("t").schemas.add(WIDE)
    bench.client.producer("t").send(FULL)
    mirror(bench.client, "t", str(out), form)
    assert in_mirror(form, out) == in_topic(bench.client)
    assert "record" not in SHOWN[form](out).column_names


def files_of(form: str, path: Path) -> set[Path]:
    """The files of the table; for directories, all files that a reader sees."""
    if form == "delta":
        return {Path(uri) for uri in DeltaTable(str(path)).file_uris()}
    if form == "iceberg":
        from pyiceberg.catalog.sql import SqlCatalog

        where = {"uri": f"sqlite:///{path}/catalog.db", "warehouse": f"file://{path}"}
        catalog = SqlCatalog("txlog", **where)
        rows = catalog.load_table(("default", "t")).inspect.files()["file_path"].to_pylist()
        catalog.close()
        return {Path(uri.removeprefix("file://")) for uri in rows}
    return set(path.rglob("[!.]*.parquet"))


@pytest.mark.parametrize("form", graded(FORMS, ("hive",)))
@pytest.mark.parametrize(
    "steps",
    [[3, 7], *(pytest.param([at, 1, 2], marks=pytest.mark.slow) for at in range(12))],
    ids=str,
)
def test_a_killed_run_is_continued_exactly_once(
    tmp_path: Path, form: str, steps: list[int]
) -> None:
    """kill -9 before the new file, state or table becomes visible; no reader sees a row twice."""
    bench, out = bench_of(tmp_path), tmp_path / "out"
    for turn, step in enumerate(steps):
        killed(bench.path, out, form, step)
        if list(out.glob("**/[!.]*.parquet")) and form == "hive":
            ids = [row[2] for row in in_mirror(form, out)]
            assert len(ids) == len(set(ids))
        fill(bench.client, 3, turn)
    mirror(bench.client, "t", str(out), form)
    assert in_mirror(form, out) == in_topic(bench.client)
    assert not [path for path in out.rglob(".*") if "part-" in path.name]
    assert files_of(form, out) == {
        path for path in out.rglob("*.parquet") if "_delta_log" not in str(path)
    }


@pytest.mark.parametrize("after", graded(range(5), 2))
def test_directories_complete_a_killed_run_that_was_partly_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """A file that a reader may have seen never changes.

    Guards against a run that removes its files and starts again.
    """
    bench, out = bench_of(tmp_path), tmp_path / "out"
    mirror(bench.client, "t", str(out), "hive")
    expected = in_topic(bench.client)
    fill(bench.client, 4, 1)
    bench.clock.advance(86_400_000)
    fill(bench.client, 4, 2)

    class Killed(BaseException):
        pass

    left, replace = after, os.replace

    def dying(*names: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        replace(*names)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", dying)
        try:
            mirror(bench.client, "t", str(out), "hive")
        except Killed:
            seen = in_mirror("hive", out)
            assert set(map(repr, seen)) >= set(map(repr, expected))
    inodes_before = {path: path.stat().st_ino for path in out.rglob("[!.]*.parquet")}
    send(bench.client, b"more")
    mirror(bench.client, "t", str(out), "hive")
    assert in_mirror("hive", out) == in_topic(bench.client)
    assert all(path.stat().st_ino == inode for path, inode in inodes_before.items())


@pytest.mark.parametrize("form", graded(FORMS, ("hive",)))
def test_a_run_keeps_the_files_that_it_reads(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sealed files and parts.

    Guards against checkpoints that remove a part before the run has read it.
    """
    bench, out = Bench(tmp_path / "store", coordinators=1, reader_grace_ms=0), tmp_path / "out"
    bench.client.create_topic("t")
    send(bench.client, b"sealed")
    bench.client.checkpoint(roll_all=True)
    send(bench.client, b"in a part")
    with bench.client.transaction() as txn:
        bench.client.producer("t").send(b"in a part of a sidecar", txn=txn)
    bench.client.checkpoint()
    expected, other = in_topic(bench.client), bench.another()

    def overtaken(*arguments: Any) -> Iterator[pa.Table]:
        for _ in range(3):  # two manifests keep files
            send(other, b"more")
            other.checkpoint(roll_all=True)
        yield from rows_after(*arguments)

    monkeypatch.setattr(
        importlib.import_module("txlog.lake.jobs.mirrors.mirror"), "rows_after", overtaken
    )
    assert mirror(bench.client, "t", str(out), form)["messages"] == len(expected)
    assert in_mirror(form, out) == expected


@pytest.mark.parametrize("size", graded([1024, 0, 60_000], 1))
@pytest.mark.parametrize("form", graded(FORMS, ("hive",)))
def test_full_disk_prints_one_line_and_leaves_no_partial_file(
    tmp_path: Path, form: str, size: int
) -> None:
    """This holds for every part of a run.

    Guards against a bare OSError of Arrow and against messages of SQLite.
    """
    bench, out = bench_of(tmp_path), tmp_path / "out"
    bench.client.producer("t").send(random.Random(1).randbytes(100_000))
    for is_first in (True, False):
        with little_room(size), pytest.raises(DiskFailed) as caught:
            mirror(bench.client, "t", str(out), form)
        assert str(out) in str(caught.value)
        assert "\n" not in str(caught.value) and "\x1b" not in str(caught.value)
        assert not [path for path in out.rglob(".*") if path.suffix == ".tmp"]
        if is_first:
            mirror(bench.client, "t", str(out), form)
            assert in_mirror(form, out) == in_topic(bench.client)
            bench.client.producer("t").send(random.Random(2).randbytes(100_000))
    mirror(bench.client, "t", str(out), form)
    assert in_mirror(form, out) == in_topic(bench.client)


def test_one_run_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, out = bench_of(tmp_path), tmp_path / "out"
    commit = hive.Table.commit

    def during(self: hive.Table, *arguments: Any) -> None:
        with pytest.raises(TryAgain):
            mirror(bench.client, "t", str(out), "hive")
        commit(self, *arguments)

    monkeypatch.setattr(hive.Table, "commit", during)
    assert mirror(bench.client, "t", str(out), "hive")["messages"]


def test_directories_are_of_days_and_the_state_says_how_far(tmp_path: Path) -> None:
    bench, out = bench_of(tmp_path), tmp_path / "out"
    bench.clock.advance(86_400_000)
    send(bench.client, b"x")
    mirror(bench.client, "t", str(out), "hive")
    days = sorted(path.name for path in out.iterdir() if path.is_dir())
    assert len(days) == 2
    seen = of_hive(out)
    assert seen.column_names == [*TABLE.names, "day"]
    assert {f"day={row['day']}" for row in seen.to_pylist()} == set(days)
    for row in seen.to_pylist():
        assert f"{row['visible_time']:%Y-%m-%d}" == str(row["day"])
    assert {path.name for path in out.iterdir()} == {LOCK, STATE, *days}
    parsed = json.loads((out / STATE).read_text())
    assert (parsed["lsn"], parsed["coming"]) == (max(seen["lsn"].to_pylist()), [])


def test_the_command_takes_it_by_either_flag(tool: Tool, tmp_path: Path) -> None:
    tool.ok("topic", "create", "t")
    tool.ok("produce", "t", "-m", "a")
    out = tmp_path / "lake"
    done = json.loads(tool.ok("export", "t", str(out), "--to", "hive", "--json"))
    assert (done["messages"], done["files"]) == (1, 1)
    tool.ok("produce", "t", "-m", "b")
    tool.ok("export", "t", str(out), "--format", "hive")
    assert of_hive(out).num_rows == 2
    for arguments in (["-o", "@-1h.."], ["--force"], ["--partition-by", "key"]):
        code, _, err = tool("export", "t", str(out), "--to", "hive", *arguments)
        assert (code, "needs a directory" in err) == (2, True), err
    assert tool("export", "t", "--to", "delta")[0] == 2
    assert tool("export", "t", str(out), "--to", "csv", "-f", "hive")[0] == 2

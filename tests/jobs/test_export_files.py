"""`txlog export`: the files contain the messages of the topic, each message once."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.test_store import Tool, tool
from tests.engine_kit import Bench, begin, send
from tests.harness import KILLED, python, ready, run
from tests.text import one_by_one
from tests.text.random_messages import random_table
from txlog import Bound, Client, MessageId
from txlog.base.ranges import Range, parse_range
from txlog.engine.plan.reading.dispatch import RECEIVED
from txlog.engine.storage import segment
from txlog.errors import AlreadyExists, InvalidArgument, MessageNotFound, NotAllowed
from txlog.lake.jobs import export_files
from txlog.lake.jobs.export_files import (
    LOCK,
    STATE,
    Shape,
    export_directory,
    export_file,
    export_stream,
    writer,
)

pytestmark = pytest.mark.usefixtures("quick_disk")
_ = tool
POOL = "ARROW_DEFAULT_MEMORY_POOL"
NASTY = [b"", b"\xff\x00", b'a "b"\n,\\', "ü€\u2028".encode(), None, b"null", b'{"a":1}']

NOT_IN_CSV = (
    *("kind", "txn_state", "redelivery_count", "late", "size_bytes", "producer"),
    "record",  # this topic has no schema
)


def fill(client: Client, count: int, seed: int) -> None:
    """Send messages with every possible field, plain and in transactions; some transactions stay
    open.
    """
    draw = random.Random(seed)
    for at in range(count):
        txn = begin(client)
        for number in range(draw.randint(1, 3)):
            client.producer("t").send(
                draw.choice(NASTY),
                key=draw.choice([None, b"k", b"\xfe", b"a/b=c"]),
                properties={"p": "x\ny", "n": str(at)} if draw.random() < 0.5 else None,
                event_time=draw.choice([None, 1_600_000_000_123]),
                txn=txn if number or at % 2 else None,
            )
        if at % 3:
            client.commit(txn)
        else:
            client.abort(txn)


def bench_of(folder: Path, seed: int = 7) -> Bench:
    print("seed", seed)
    bench = Bench(folder / "store", coordinators=1)
    bench.client.create_topic("t", partitions=2)
    fill(bench.client, 12, seed)
    return bench


def shown(client: Client, topic: str = "t", range_: Range | None = None) -> list[tuple[Any, ...]]:
    """The fields that a reader returns: id, key, value, properties, event time."""
    return [
        (
            str(message.message_id),
            message.key,
            message.value,
            dict(message.properties),
            message.event_time,
        )
        for message in client.reader(topic)
    ]


def test_a_row_group_is_of_many_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The footer of a file grows in memory until the file is closed, so not every table may add an
    # entry.
    monkeypatch.setattr(export_files, "_AT_ONCE", 50)
    bench = Bench(tmp_path / "store", coordinators=1)
    bench.client.create_topic("t")
    bench.client.producer("t").send_batch(pa.table({"value": [b"%d" % n for n in range(1000)]}))
    to = tmp_path / "out.parquet"
    export_file(bench.client, "t", str(to))
    assert pq.read_metadata(to).num_row_groups == 1
    with (tmp_path / "stream.parquet").open("wb") as sink:
        export_stream(bench.client, "t", sink, form="parquet")
    assert pq.read_metadata(tmp_path / "stream.parquet").num_row_groups == 1
    monkeypatch.setattr(segment, "ROWS_MAX", 120)
    export_file(bench.client, "t", str(to), force=True)
    metadata = pq.read_metadata(to)
    assert [metadata.row_group(n).num_rows for n in range(7)] == [150] * 6 + [100]
    assert [row[2] for row in rows_of(to)] == [b"%d" % n for n in range(1000)]


@pytest.mark.parametrize("form", ["parquet", "ndjson"])
def test_an_export_does_without_duckdb(tmp_path: Path, form: str) -> None:
    """DuckDB's libraries need 20 MB of memory, and an export does not use them; freed memory is
    returned.
    """
    bench = bench_of(tmp_path)
    line = ["-q", "-S", bench.client.path, "export", "t", str(tmp_path / "out"), "--to", form]
    env = {name: word for name, word in os.environ.items() if name != POOL}
    for more, backend in (({}, "jemalloc"), ({POOL: "system"}, "system")):
        command = python("arrow_pool", *line)
        done = subprocess.run(command, check=True, env=env | more, capture_output=True, text=True)
        assert (tmp_path / "out").stat().st_size > 0
        (tmp_path / "out").unlink()
        pool, has_duckdb = done.stdout.split()
        assert has_duckdb == "False"
        assert pool == backend or backend not in pa.supported_memory_backends()


def rows_of(path: Path) -> list[tuple[Any, ...]]:
    """The rows of a Parquet or Arrow file."""
    if path.suffix == ".arrow":
        table = pa.ipc.open_file(path.read_bytes()).read_all()
    else:
        table = pq.ParquetFile(path).read()
    times = table.column("event_time").cast(pa.int64()).to_pylist()
    return [
        (row["message_id"], row["key"], row["value"], dict(row["properties"] or ()), time)
        for row, time in zip(table.to_pylist(), times, strict=True)
    ]


def below(path: Path) -> list[tuple[Any, ...]]:
    """The rows of all files in a directory, in the order of the file names."""
    files = sorted(path.rglob("*.parquet"), key=lambda path_below: path_below.name)
    return [row for file in files for row in rows_of(file)]


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_file_has_every_message_in_order(tmp_path: Path, form: str) -> None:
    bench = bench_of(tmp_path)
    begin(bench.client)
    out = tmp_path / f"out.{form}"
    answer = export_file(bench.client, "t", str(out), form=form)
    assert rows_of(out) == sorted(shown(bench.client), key=lambda row: place(bench, row[0]))
    assert answer["messages"] == len(rows_of(out)) > 20
    assert answer["size_bytes"] == sum(len(row[2] or b"") for row in rows_of(out))
    range_ = parse_range("+3..-2", 0)
    export_file(bench.client, "t", str(out), form=form, message_range=range_, force=True)
    of = [[row for row in shown(bench.client) if place(bench, row[0])[0] == at] for at in (0, 1)]
    assert rows_of(out) == [row for rows in of for row in rows[3:-2]]
    with pytest.raises(AlreadyExists):
        export_file(bench.client, "t", str(out), form=form)


def place(bench: Bench, text: str) -> tuple[int, ...]:
    """The partition and the position of an id."""
    ledger, entry, *index = map(int, text.split(":"))
    partitions = {segment["ledger"]: segment["partition"] for segment in bench.client.segments()}
    return (partitions[ledger], ledger, entry, *index)


def test_csv_has_a_column_for_each_member_of_json_objects(tool: Tool) -> None:
    """spec/cli 8.2: columns in the order of the members; every value as it was."""
    values = [
        *('{"id":1,"a/b":"x~y","key":"K"}', "no json", "[7]"),
        '{"id":12345678901234567890123,"nested":{"b":[1]},"Id":null,"on":true,'
        '"~":"\\u00fc, \\"q\\""}',
    ]
    tool.ok("produce", "t", "--create", *(word for value in values for word in ("-m", value)))
    for form, delimiter in (("csv", ","), ("tsv", "\t")):
        text = tool.ok("export", "t", "-", "--to", form)
        lines = [*csv.reader(text.splitlines(), delimiter=delimiter)]
        names = ["id", "a/b", "record.key", "nested", "Id", "on", "~"]
        assert lines[0][:8] == [*names, "topic"]
        assert lines[1][:7] == ["1", "x~y", "K", "", "", "", ""]
        assert lines[2][:7] == lines[3][:7] == [""] * 7
        assert lines[4][:6] == ["12345678901234567890123", "", "", '{"b":[1]}', "", "true"]
        if form == "csv":
            assert lines[4][6] == 'ü, "q"'
            assert [line[lines[0].index("value")] for line in lines[1:]] == values
    where = tool.ok("export", "t", "-", "--to", "csv", "--where", "text(value) = '[7]'")
    assert where.startswith('"topic"')


def test_objects_with_very_many_names_get_no_columns(tool: Tool) -> None:
    """Kills: a map of each customer as a row with a column for each customer."""
    tool.ok("produce", "t", "--create", "-m", json.dumps({f"n{at}": at for at in range(501)}))
    assert tool.ok("export", "t", "-", "--to", "csv").startswith('"topic"')
    tool.ok("produce", "u", "--create", "-m", json.dumps({f"n{at}": at for at in range(500)}))
    assert tool.ok("export", "u", "-", "--to", "csv").startswith('"n0"')


def test_a_piece_of_a_directory_has_the_columns_of_its_messages(tool: Tool, tmp_path: Path) -> None:
    """Kills: columns read from messages that belong to another piece, or messages read once."""
    tool.ok("produce", "t", "--create", "-m", '{"a":1}', "-m", '{"b":2}')
    tool.ok("export", "t", f"{tmp_path}/d/", "--to", "csv")
    tool.ok("produce", "t", "-m", '{"c":3}')
    tool.ok("export", "t", f"{tmp_path}/d/", "--to", "csv", "--append")
    first, second = sorted((tmp_path / "d").glob("*.csv"))
    rows = [*csv.DictReader(first.read_text().splitlines())]
    assert [(row["a"], row["b"]) for row in rows] == [("1", ""), ("", "2")]
    assert [row["c"] for row in csv.DictReader(second.read_text().splitlines())] == ["3"]
    assert second.read_text().startswith('"c","topic"')


def test_fields_of_a_typed_topic_are_columns(tool: Tool, tmp_path: Path) -> None:
    """spec/cli 7 and 8.2: in csv and tsv, of export, consume and peek."""
    (tmp_path / "rows.csv").write_text("id,key,amount,on\n1,a,2.5,true\n2,b,,false\n")
    path = str(tmp_path / "rows.csv")
    tool.ok("import", path, "t", "--create", "--infer-schema", "--value-columns", "id,amount,on")
    want = [["1", "2.5", "true"], ["2", "", "false"]]
    for words, delimiter in (
        (("export", "t", "-", "--to", "csv"), ","),
        (("export", "t", "-", "--to", "tsv"), "\t"),
        (("consume", "t", "-f", "csv"), ","),
        (("consume", "t", "-f", "tsv"), "\t"),
        (("peek", "t", "-f", "csv"), ","),
    ):
        rows = [*csv.DictReader(tool.ok(*words).splitlines(), delimiter=delimiter)]
        assert "record" not in rows[0]
        assert [[row[name] for name in ("id", "amount", "on")] for row in rows] == want
    as_json = tool.ok("consume", "t", "-f", "csv", "--columns", "record", "-n", "1")
    assert as_json.splitlines()[1] == '"{""id"":1,""amount"":2.5,""on"":true}"'


def test_csv_and_ndjson_keep_every_byte(tool: Tool, tmp_path: Path) -> None:
    """spec/cli 11.11: an exported envelope is imported again byte for byte."""
    from txlog.client.open import open_store

    tool.ok("topic", "create", "t", "again")
    with open_store(str(tool.path)) as client:
        fill(client, 9, 5)
        want = [row[1:] for row in shown(client)]
    tool.ok("export", "t", str(tmp_path / "t.ndjson"), "--to", "ndjson")
    tool.ok("produce", "again", "--in", "envelope", str(tmp_path / "t.ndjson"))
    with open_store(str(tool.path)) as client:
        assert [row[1:] for row in shown(client, "again")] == want
    piped = tool.ok("export", "t", "-", "--to", "csv")
    rows = list(csv.DictReader(piped.splitlines(keepends=True)))
    assert len(rows) == len(want)
    for row, (key, value, properties, _) in zip(rows, want, strict=True):
        for expected_text, encoding, have in (
            (row["key"], row["key_encoding"], key),
            (row["value"], row["value_encoding"], value),
        ):
            assert encoding == (
                "" if have is None else "base64" if b"\xff" in have or b"\xfe" in have else "utf8"
            )
            assert expected_text == "" if have is None else True
            if encoding == "utf8":
                assert have is not None and expected_text == have.decode()
        assert json.loads(row["properties"] or "{}") == properties


def test_directory_grows_by_newly_visible_messages(tmp_path: Path) -> None:
    """The messages of a transaction that was open come with the first export after its commit."""
    bench = bench_of(tmp_path)
    out = tmp_path / "out"
    txn = begin(bench.client)
    bench.client.producer("t").send(b"late", txn=txn)
    export_directory(bench.client, "t", str(out), piece_messages=7)
    assert below(out) == sorted(shown(bench.client), key=lambda row: place(bench, row[0]))
    bench.client.commit(txn)
    fill(bench.client, 4, 8)
    bench.client.checkpoint(roll_all=True)
    with pytest.raises(AlreadyExists):
        export_directory(bench.client, "t", str(out))
    done = export_directory(bench.client, "t", str(out), resume=True)
    assert done["messages"] == 0  # the export was finished
    more = export_directory(bench.client, "t", str(out), append=True, piece_messages=7)
    assert more["messages"] > 1
    assert below(out) == sorted(shown(bench.client), key=lambda row: place(bench, row[0]))
    assert export_directory(bench.client, "t", str(out), append=True)["files"] == 0
    bench.client.admin.update_topic("t", 3)
    send(bench.client, b"new", partition=2)
    assert export_directory(bench.client, "t", str(out), append=True)["messages"] == 1


def test_a_directory_goes_on_with_its_topic_and_not_with_another_of_its_name(
    tmp_path: Path,
) -> None:
    """Found by a reader: after rename and create, --resume and --append took the new topic."""
    bench, out = bench_of(tmp_path), tmp_path / "out"
    export_directory(bench.client, "t", str(out))
    bench.client.admin.rename_topic("t", "was")
    bench.client.create_topic("t", partitions=2)
    send(bench.client, b"of another", partition=0)
    for options in ({"append": True}, {"resume": True}):
        with pytest.raises(NotAllowed, match="whose name is was now; t is another") as refused:
            export_directory(bench.client, "t", str(out), **options)  # type: ignore[arg-type]
        assert (refused.value.hint or "").startswith("go on with was, or export to another")
    bench.client.producer("was").send(b"new")
    assert export_directory(bench.client, "was", str(out), append=True)["messages"] == 1
    bench.client.admin.delete_topic("was", force=True)
    with pytest.raises(NotAllowed, match="earlier topic, which was deleted; t is another"):
        export_directory(bench.client, "t", str(out), append=True)


def test_a_directory_of_an_older_version_gets_the_number_of_its_topic(tmp_path: Path) -> None:
    bench, out = bench_of(tmp_path), tmp_path / "out"
    export_directory(bench.client, "t", str(out))
    state = json.loads((out / STATE).read_bytes())
    number = state.pop("number")
    (out / STATE).write_text(json.dumps(state))
    assert export_directory(bench.client, "t", str(out), append=True)["messages"] == 0
    assert json.loads((out / STATE).read_bytes())["number"] == number


def test_directory_is_partitioned_by_values(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    out = tmp_path / "out"
    export_directory(bench.client, "t", str(out), partition_by=["key", "event_date"])
    texts = {str(one.parent.relative_to(out)) for one in out.rglob("*.parquet")}
    none = "__HIVE_DEFAULT_PARTITION__"
    dates = (none, "2020-09-13")
    assert texts == {
        f"key={key}/event_date={date}" for key in (none, "k", "%FE", "a%2Fb%3Dc") for date in dates
    }
    assert "key" not in pq.ParquetFile(next(out.rglob("*.parquet"))).schema_arrow.names
    ids = [
        one
        for file in out.rglob("*.parquet")
        for one in pq.ParquetFile(file).read(["message_id"])["message_id"].to_pylist()
    ]
    assert sorted(ids) == sorted(row[0] for row in shown(bench.client))


def test_directory_of_another_program_is_not_changed(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    bench.client.create_topic("u")
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(AlreadyExists):
        export_directory(bench.client, "t", str(out), resume=True)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]  # a refused export leaves no lock
    (out / "mine.txt").unlink()
    export_directory(bench.client, "t", str(out))
    for options in ({"topic": "u"}, {"form": "csv"}, {"partition_by": ["key"]}):
        with pytest.raises(NotAllowed):
            export_directory(bench.client, **{"topic": "t", **options}, path=str(out), append=True)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        export_directory(bench.client, "t", str(out), append=True, message_range=Range())
    with pytest.raises(InvalidArgument):
        export_directory(bench.client, "t", str(out), partition_by=["value"])
    (out / "mine.txt").write_text("mine")
    export_directory(bench.client, "u", str(out), force=True)
    assert {path.name for path in out.iterdir()} == {"mine.txt", STATE, LOCK}


@pytest.mark.parametrize(
    "steps", [[0, 8], *([pytest.param([at, 1, 2], marks=pytest.mark.slow) for at in range(9)])]
)
def test_a_killed_export_gives_each_message_once(tmp_path: Path, steps: list[int]) -> None:
    """kill -9 before a file or a state gets its final name, again and again."""
    bench = bench_of(tmp_path)
    out = tmp_path / "out"
    for step in steps:
        run(ready("export", bench.path, out, step + 1), code=KILLED)
    export_directory(
        bench.client, "t", str(out), resume=True, piece_messages=3, partition_by=["event_date"]
    )
    ids = [row[0] for row in below(out)]
    assert sorted(ids) == sorted(row[0] for row in shown(bench.client))
    assert not list(out.rglob(".*"))


def test_messages_trimmed_before_their_export_are_reported(tmp_path: Path) -> None:
    """Trimmed messages are in no file.

    Messages that were exported before they were trimmed are not reported.
    """
    bench = Bench(tmp_path / "store", coordinators=1, ledger_entries_max=2)
    bench.client.create_topic("t")
    send(bench.client, b"0", b"1", b"2")
    out = tmp_path / "out"
    export_directory(bench.client, "t", str(out))
    send(bench.client, b"3")
    bench.client.admin.trim("t", Bound("id", shown_ids(bench)[2]))
    assert export_directory(bench.client, "t", str(out), append=True)["messages"] == 1
    send(bench.client, b"4", b"5", b"6")
    bench.client.admin.trim("t", Bound("id", shown_ids(bench)[-1]))
    with pytest.raises(MessageNotFound):
        export_directory(bench.client, "t", str(out), append=True)
    assert [row[2] for row in below(out)] == [b"0", b"1", b"2", b"3"]


def shown_ids(bench: Bench) -> list[MessageId]:
    return [
        message.message_id for message in bench.client.reader("t") if message.message_id is not None
    ]


@pytest.mark.parametrize("form", ["parquet", "arrow", "csv", "ndjson"])
def test_failed_export_prints_one_error(tool: Tool, tmp_path: Path, form: str) -> None:
    """spec/cli 5: an abandoned writer prints no complaint on stderr when it is
    garbage-collected.
    """
    code, _, err = tool("export", "nothing", str(tmp_path / "out"), "--to", form)
    assert (code, err.count("error:"), "Traceback" in err) == (3, 1, False)
    code, _, err = tool("export", "nothing", "-", "--to", form)
    assert (code, err.count("error:"), "Traceback" in err) == (3, 1, False)
    assert list(tmp_path.glob("out*")) == []


def test_text_of_a_batch_equals_the_text_of_single_messages(txlog_client: Client) -> None:
    """spec/cli 8.2: envelopes, and a csv in which all values except numbers are quoted and null is
    empty.
    """
    txlog_client.create_topic("plain")
    shape = Shape(txlog_client, "plain")
    for seed in range(25):
        rng = random.Random(seed)
        table = random_table(rng, rng.choice([1, 3, 20])).select(RECEIVED.names)
        rows = one_by_one.rows_of(table)
        envelopes, cells = io.BytesIO(), io.BytesIO()
        for form, sink in (("ndjson", envelopes), ("csv", cells)):
            new_writer = writer(form, sink, without=["producer"])
            for part in (table.slice(0, 2), table.slice(2)):
                new_writer.write(shape.rows(part))
            new_writer.close()
        assert envelopes.getvalue() == b"".join(map(one_by_one.envelope, rows)), f"seed {seed}"
        names = [name for name in one_by_one.FIELDS if name not in NOT_IN_CSV]
        lines = [",".join(f'"{name}"' for name in names)]
        for row, properties in zip(rows, table["properties"].to_pylist(), strict=True):
            record = one_by_one.record(row, embed=False)
            record["properties"] = None if properties is None else record["properties"]
            lines.append(",".join(_quoted(record[name]) for name in names))
        expected = "".join(f"{line}\n" for line in lines).encode()
        assert cells.getvalue() == expected, f"seed {seed}"


def _quoted(value: object) -> str:
    """A cell: null is empty, a number has no quotes."""
    if value is None or isinstance(value, int):
        return "" if value is None else str(value)
    return '"' + one_by_one.cell(value).replace('"', '""') + '"'

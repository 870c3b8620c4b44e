"""`txlog import`: the rows of files become messages once, and exported files are imported without
loss.
"""

from __future__ import annotations

import datetime as dt
import gzip
import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from tests.cli.test_store import Tool, tool
from tests.engine_kit import Bench
from tests.harness import KILLED, ready, run
from tests.jobs.test_export_files import fill, shown
from tests.tiers import graded
from txlog.base.times import parse_stored
from txlog.cli.input.inputs import Input
from txlog.client.open import open_store
from txlog.client.sending.bulk import Bulk
from txlog.client.topics.created import created
from txlog.errors import (
    BadRecord,
    DiskFailed,
    InvalidArgument,
    InvalidMessage,
    LimitExceeded,
    NotAllowed,
    OutcomeUnknown,
    TopicNotFound,
    TxlogError,
)
from txlog.lake.jobs.import_files import import_files
from txlog.lake.jobs.sources import rows
from txlog.lake.jobs.sources.loads import BLOCK_BYTES, OF_IMPORT, Columns, files_of
from txlog.lake.sql.client_query import Query

pytestmark = pytest.mark.usefixtures("quick_disk")
_ = tool


def source(*paths: Path, form: str | None = None, **columns: Any) -> Any:
    return files_of([str(path) for path in paths], form, Columns(**columns), OF_IMPORT)


@pytest.mark.parametrize("form", ["parquet", "arrow", "csv", "ndjson"])
def test_exported_messages_are_imported_byte_for_byte(
    tool: Tool, tmp_path: Path, form: str
) -> None:
    """spec/cli 11.11: keys, values, missing keys and values, properties and times."""
    tool.ok("topic", "create", "t", "again")
    with open_store(str(tool.path)) as client:
        fill(client, 9, 5)
        want = [row[1:] for row in shown(client)]
    out = tmp_path / f"t.{form}"
    tool.ok("export", "t", str(out), "--to", form)
    more = ["--in", "envelope"] if form == "ndjson" else []
    answer = tool.json("import", str(out), "again", *more)
    assert (answer["messages"], answer["already"]) == (len(want), False)
    with open_store(str(tool.path)) as client:
        assert [row[1:] for row in shown(client, "again")] == want
    assert tool.json("import", str(out), "again", *more)["already"]
    assert tool.json("import", str(out), "again", *more, "--key", "other")["messages"] == len(want)


def test_columns_of_packed_lines_are_chosen(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", coordinators=1)
    bench.client.create_topic("t")
    files = [tmp_path / f"{name}.csv.gz" for name in "ab"]
    for file in files:
        file.write_bytes(gzip.compress(f'id,n,at\n{file.name[0]},"",soon\n'.encode()))
    chosen = source(*files, key="id", values=("id", "n"), event_time="at")
    with pytest.raises(BadRecord, match="soon"):
        import_files(bench.client, chosen, "t")
    import_files(bench.client, source(*files, key="id", values=("id", "n")), "t")
    assert [(row[1], row[2]) for row in shown(bench.client)] == [
        (b"a", b'{"id":"a","n":""}'),
        (b"b", b'{"id":"b","n":""}'),
    ]
    import_files(bench.client, source(files[0], value="n"), "t", key="other")
    assert shown(bench.client)[2][2] == b""
    for wrong in ({"values": ("no",)}, {"key": "no"}):
        with pytest.raises(InvalidArgument):
            import_files(bench.client, source(*files, **wrong), "t", key="third")
    assert len(shown(bench.client)) == 3


@pytest.mark.parametrize(
    ("form", "lengths"),
    graded(
        [("quoted.csv", "short"), ("ndjson", "short"), ("csv", "short"), ("ndjson", "long"),
         ("csv", "long")],
        1,
    ),
)  # fmt: skip
def test_lines_are_read_across_the_ends_of_pieces(tmp_path: Path, form: str, lengths: str) -> None:
    """Guards against pieces for sixteen of the longest lines, 256 MB each, and against pieces that
    are too short.
    """
    bench = Bench(tmp_path / "store")
    bench.client.create_topic("t")
    chance, file = random.Random(3), tmp_path / f"long.{form}"
    bounds = (14_000_000, 16_777_000) if lengths == "long" else (BLOCK_BYTES // 2, BLOCK_BYTES)
    sizes = [chance.randrange(*bounds) for _ in range(5 if lengths == "long" else 40)]
    begin, end = {"ndjson": ('{"v":"', '"}'), "csv": ("", "")}.get(form, ('"', '\n"'))
    with file.open("w") as out:
        out.write("" if form == "ndjson" else "value\n")
        for length in (20, *sizes, 20):
            out.write(f"{begin}{'x' * (length - 20)}{end}\n")
    given_source = source(file)
    assert given_source.has_short_lines() is (lengths == "short" and form != "quoted.csv")
    pieces = {int(piece) for piece in re.findall(r"buffer_size = (\d+)", rows._scan(given_source))}
    assert pieces == {(4 << 20) if given_source.has_short_lines() else (32 << 20)}
    assert import_files(bench.client, given_source, "t", dry_run=True)["messages"] == len(sizes) + 2


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2026-11-20T09:12:04.117Z", 1_795_165_924_117),
        ("2026-11-20", 1_795_132_800_000),
        ("1795165924", 1_795_165_924_000),
        ("1795165924117", 1_795_165_924_117),
        ("7", 7),
        ("-62135596800001", -62_135_596_800_001),
    ],
)
def test_texts_and_numbers_are_instants_as_on_the_command_line(
    tmp_path: Path, text: str, instant: int
) -> None:
    """spec/cli 3: an instant may be a text in csv, and a text or a number in lines of JSON."""
    assert parse_stored(text, 0) == instant
    bench = Bench(tmp_path / "store", coordinators=1)
    bench.client.create_topic("t")
    (tmp_path / "a.csv").write_text(f"at\n{text}\n")
    (tmp_path / "b.ndjson").write_text(f'{{"at":"{text}"}}\n')
    (tmp_path / "c.ndjson").write_text(f'{{"at":{text}}}\n')
    is_number = text.lstrip("-").isdecimal()
    names = ["a.csv", "b.ndjson", *(["c.ndjson"] if is_number else [])]
    for name in names:
        import_files(bench.client, source(tmp_path / name, event_time="at"), "t", key=name)
    assert [row[4] for row in shown(bench.client)] == [instant] * len(names)


def test_lines_as_long_as_two_blocks_are_read(tmp_path: Path) -> None:
    """Each block has the end of a line, and the text between two ends is as long as possible."""
    bench = Bench(tmp_path / "store")
    bench.client.create_topic("t")
    file = tmp_path / "two.ndjson"
    first = '{"v":"%s"}\n' % ("x" * (BLOCK_BYTES - 9 - BLOCK_BYTES // 2))
    file.write_text("{}\n" + '{"v":"%s"}\n' % ("x" * (2 * BLOCK_BYTES - 13)) + first)
    given_source = source(file)
    assert given_source.has_short_lines()
    assert import_files(bench.client, given_source, "t", dry_run=True)["messages"] == 3


def test_invalid_source_stores_no_message(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", coordinators=1)
    bench.client.create_topic("t")
    good, bad = tmp_path / "good.parquet", tmp_path / "bad.parquet"
    pq.write_table(pa.table({"value": [b"x" * 100_000]}), good)
    bad.write_bytes(good.read_bytes()[:-9])
    with pytest.raises(BadRecord):
        import_files(bench.client, source(good, bad), "t")
    with pytest.raises(LimitExceeded):
        import_files(bench.client, source(good), "t", decoded_bytes_max=1000)
    line = tmp_path / "line.ndjson"
    line.write_text('{"value":"eA==","value_encoding":"base32"}\n')
    with pytest.raises(BadRecord, match="line 1: value_encoding is json, utf8, base64 or null"):
        import_files(bench.client, source(line, form="envelope"), "t")
    (tmp_path / "no.arrow").write_bytes(b"no")
    with pytest.raises(BadRecord):
        import_files(bench.client, source(tmp_path / "no.arrow"), "t")
    with pytest.raises(TopicNotFound):
        import_files(bench.client, source(good), "u")
    assert shown(bench.client) == []
    dry = import_files(bench.client, source(good), "t", dry_run=True)
    assert (dry["messages"], dry["already"], shown(bench.client)) == (1, False, [])
    assert import_files(bench.client, source(good), "u", create=True)["messages"] == 1


def test_an_unknown_outcome_is_not_hidden_by_the_cleanup(
    tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: exit 1, which means that nothing was stored, for a batch that may be stored."""
    pq.write_table(pa.table({"value": [b"a"]}), tmp_path / "rows.parquet")

    def failing(error: TxlogError) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            raise error

        return call

    monkeypatch.setattr(Bulk, "commit", failing(OutcomeUnknown("the flush failed")))
    monkeypatch.setattr(Bulk, "abort", failing(DiskFailed("the disk is gone")))
    error = tool.error("import", str(tmp_path / "rows.parquet"), "orders")
    assert (error["exit"], error["message"]) == (10, "the flush failed")


def test_killed_import_continues_with_the_missing_messages(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", coordinators=1)
    bench.client.create_topic("t")
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.ndjson").write_text(f'{{"n":{number}}}\n' * (number + 1))
    run(ready("import_files", bench.path, folder, 4), code=KILLED)
    assert 0 < len(shown(bench.client)) < 15
    answer = import_files(bench.client, source(folder), "t", resume=True)
    assert answer["files"] == 3 and not answer["already"]
    values = [row[2] for row in shown(bench.client)]
    assert values == [b'{"n":%d}' % number for number in range(5) for _ in range(number + 1)]
    assert import_files(bench.client, source(folder), "t", resume=True)["already"]
    moved = (folder / "2.ndjson").rename(folder / "9.ndjson")
    assert import_files(bench.client, source(moved), "t", resume=True)["already"]


def flights(at: str) -> pa.Table:
    """Three rows with a type for each wrong guess; instants in the form of `at`."""
    zone = dt.UTC if at == "instant" else None
    when = [dt.datetime(2026, 11, 24, 8, n, tzinfo=zone) for n in range(3)]
    return pa.table(
        {
            "carrier": ["AA", None, "B\n6"],
            "number": ["007", "7", "70"],
            "late": pa.array([5, None, -3], pa.int64()),
            "big": pa.array(["12345678901234567890", "1", "2"]),
            "share": pa.array([0.5, 2.0, None], pa.float64()),
            "done": [True, False, None],
            "none": pa.array([None] * 3, pa.string()),
            "at": [str(instant).replace("+00:00", "Z") for instant in when]
            if at == "text"
            else pa.array(when, pa.timestamp("us", "UTC" if zone else None)),
        }
    )


def written(path: Path, rows: pa.Table) -> Path:
    """Write the rows to a file in the format of its name."""
    if path.suffix == ".parquet":
        pq.write_table(rows, path)
    elif path.suffix == ".arrow":
        with pa.ipc.new_file(path, rows.schema) as file:
            file.write_table(rows)
    elif path.suffix == ".csv":
        pacsv.write_csv(rows, path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()))
    return path


@pytest.mark.parametrize("form", ["parquet", "arrow", "csv", "ndjson"])
@pytest.mark.parametrize("at", graded(["instant", "local"], 1))
def test_a_topic_gets_the_schema_of_its_columns(tmp_path: Path, form: str, at: str) -> None:
    """spec/schemas: every row is stored once, as a record with the types of the columns; a CSV has
    texts.
    """
    bench = Bench(tmp_path / "store", coordinators=1)
    rows = flights("text" if form == "ndjson" else at)
    file = written(tmp_path / f"f.{form}", rows)
    files = files_of([str(file)], None, Columns(key="carrier"), OF_IMPORT, infer=True)
    with pytest.raises(TopicNotFound):
        import_files(bench.client, files, "f")
    for already in (False, True):
        answer = import_files(bench.client, files, "f", create=True)
        assert (answer["messages"], answer["already"]) == (3, already)
    with Query(bench.client, "SELECT record FROM f ORDER BY record.at") as query:
        records = [row["record"] for row in query.rows().read_all().to_pylist()]
    assert records == rows.to_pylist()
    messages = list(bench.client.reader("f"))
    assert [message.key for message in messages] == [b"AA", None, b"B\n6"]
    assert {message.schema_version for message in messages} == {1}
    assert [(message.decode() or {}).get("number") for message in messages] == ["007", "7", "70"]


DAY = "id,amount,day,who\n"


@pytest.mark.parametrize("infer", graded([True, False], 1))
@pytest.mark.parametrize("form", graded(["csv", "tsv"], 1))
def test_a_second_file_becomes_records_of_the_topic(tmp_path: Path, form: str, infer: bool) -> None:
    """Whole numbers are amounts, too; an empty field is null, as with produce."""
    bench = Bench(tmp_path / "store", coordinators=1)

    def day(number: int, rows: str) -> Any:
        path = tmp_path / f"{number}.{form}"
        path.write_text((DAY + rows).replace(",", "\t" if form == "tsv" else ","))
        return source(path)

    first = day(1, "1,2.5,2026-11-20,a\n")
    shown: list[Any] = []
    typed = replace(first, infer=True)
    import_files(
        bench.client,
        replace(first, infer=True),
        "t",
        create=True,
        dry_run=True,
        chosen=lambda schema, _: shown.append(schema),
    )
    import_files(
        bench.client, typed, "t", create=True, chosen=lambda schema, _: shown.append(schema)
    )
    assert [schema.words.partition(",")[0] for schema in shown] == 2 * ["id: an integer of 64 bits"]
    assert import_files(bench.client, first, "t")["already"]
    second = replace(day(2, "2,3,2026-11-21,\n3,,,c\n"), infer=infer)
    assert import_files(bench.client, second, "t")["messages"] == 2
    assert import_files(bench.client, replace(second, infer=not infer), "t")["already"]
    bad = replace(day(3, "4,2.0,2026-11-22,d\n5,x,2026-11-22,e\n"), infer=infer)
    with pytest.raises(InvalidMessage, match="row 1: amount is 'x', it must be a number"):
        import_files(bench.client, bad, "t")
    assert [message.value for message in bench.client.reader("t")] == [
        b'{"id":1,"amount":2.5,"day":20777,"who":"a"}',
        b'{"id":2,"amount":3.0,"day":20778,"who":null}',
        b'{"id":3,"amount":null,"day":null,"who":"c"}',
    ]


def test_a_file_stored_before_its_topic_had_a_schema_is_not_stored_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", coordinators=1)
    file = written(tmp_path / "f.csv", pa.table({"n": ["1", "2"]}))
    import_files(bench.client, source(file), "t", create=True)
    bench.client.topic("t").schemas.add(pa.schema([("n", pa.int64())]))
    assert import_files(bench.client, source(file), "t")["already"]


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "key": {"columns": Columns(key="id")},
    "values": {"columns": Columns(values=("id", "n"))},
    "records": {"infer": True},
    "form": {"form": "tsv"},
}


@pytest.mark.parametrize("other", OPTIONS)
@pytest.mark.parametrize("first", OPTIONS)
@pytest.mark.parametrize("key", [None, "mine"])
def test_bytes_are_imported_once_whatever_the_options(
    tmp_path: Path, first: str, other: str, key: str | None
) -> None:
    """spec/cli 8.2: the topic and the bytes of the files identify an import.

    key: of the first import; the second names none
    """
    bench = Bench(tmp_path / "store", coordinators=1)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f.csv").write_text("id,n\n1,2\n3,4\n")
    once, again = (
        replace(source(tmp_path / name / "f.csv"), **OPTIONS[chosen])
        for name, chosen in (("a", first), ("b", other))
    )
    import_files(bench.client, once, "t", create=True, key=key)
    messages = shown(bench.client)
    versions = bench.client.topic("t").schemas.list()
    if first == other or (first, other) == ("records", "plain"):  # rows that the schema converts
        for dry_run in (True, False):
            assert import_files(bench.client, again, "t", dry_run=dry_run)["already"]
    else:
        for resume in (True, False):
            with pytest.raises(NotAllowed, match="stored with other options"):
                import_files(bench.client, again, "t", resume=resume)
    assert (shown(bench.client), bench.client.topic("t").schemas.list()) == (messages, versions)
    warnings: list[str] = []
    import_files(bench.client, once, "t", key="new", warn=warnings.append)
    assert f"under transaction key {key or 'import-t'}" in warnings[0]
    assert len(shown(bench.client)) == 4


@pytest.mark.parametrize("is_record", [False, True])
def test_an_import_of_an_older_version_is_not_repeated(tmp_path: Path, is_record: bool) -> None:
    """Up to 0.2.0 one digest was of the options and the bytes."""
    bench = Bench(tmp_path / "store", coordinators=1)
    file = written(tmp_path / "f.csv", pa.table({"n": ["1"]}))
    plain = source(file)
    bench.client.create_topic("t", schema=pa.schema([("n", pa.int64())]) if is_record else None)
    older = plain.identity().older[is_record]
    bulk = bench.client.bulk("t", key="import-t", batch=older)
    bulk.commit(bulk.stage([pa.table({"value": [b'{"n":1}']})]))
    assert import_files(bench.client, plain, "t")["already"]
    if is_record:
        assert import_files(bench.client, replace(plain, infer=True), "t")["already"]
    else:
        with pytest.raises(NotAllowed):
            import_files(bench.client, replace(plain, infer=True), "t")


def test_lines_of_json_are_the_same_values_with_a_schema(tmp_path: Path) -> None:
    """But a topic does not get a schema by an import that stores nothing."""
    bench = Bench(tmp_path / "store", coordinators=1)
    file = tmp_path / "f.ndjson"
    file.write_text('{"n":1}\n')
    inferred = replace(source(file), infer=True)
    import_files(bench.client, source(file), "bytes", create=True)
    with pytest.raises(NotAllowed):
        import_files(bench.client, inferred, "bytes")
    assert bench.client.topic("bytes").schemas.list() == []
    import_files(bench.client, inferred, "records", create=True)
    for again in (inferred, source(file)):
        assert import_files(bench.client, again, "records")["already"]


def test_messages_older_than_the_schema_are_counted(tool: Tool, tmp_path: Path) -> None:
    """A warning and `mismatched` say that they have no record."""
    file = written(tmp_path / "f.csv", pa.table({"n": ["1", "2"]}))
    tool.ok("topic", "create", "t", "u", "--partitions", "3")
    for topic in ("t", "u"):
        tool.ok("produce", topic, "-m", "a", "-m", "b", "-m", "c")
    code, _, err = tool("import", str(file), "t", "--infer-schema")
    assert (code, "topic t had 3 messages, which are older than its schema" in err) == (0, True)
    schema = tmp_path / "s.avsc"
    schema.write_text(tool.json("schema", "get", "t", "--columns", "definition")["definition"])
    code, _, err = tool("schema", "upload", "u", str(schema))
    assert (code, "topic u had 3 messages, which are older than its schema" in err) == (0, True)
    assert [tool.json("topic", "describe", topic)["mismatched"] for topic in "tu"] == [3, 3]
    assert "older" not in tool("schema", "upload", "u", str(schema))[2]


def test_columns_of_a_message_are_fields_only_if_the_schema_has_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", coordinators=1)
    bench.client.create_topic("t", schema=pa.schema([pa.field("n", pa.string(), nullable=False)]))
    keyed = tmp_path / "keyed.csv"
    keyed.write_text("key,n\nk,\n")
    import_files(bench.client, source(keyed), "t")
    valued = tmp_path / "valued.csv"
    valued.write_text('value\n"{""n"":""v""}"\n')
    import_files(bench.client, source(valued), "t")
    assert [(message.key, message.value) for message in bench.client.reader("t")] == [
        (b"k", b'{"n":""}'),
        (None, b'{"n":"v"}'),
    ]


def test_a_rehearsal_counts_the_rows_for_a_topic_that_it_would_create(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", coordinators=1)
    file = written(tmp_path / "f.csv", pa.table({"n": [1, 2]}))
    for infer in (False, True):
        files = replace(source(file), infer=infer)
        assert import_files(bench.client, files, "t", create=True, dry_run=True)["messages"] == 2
    assert bench.client.topics() == []


def test_a_topic_without_a_schema_gets_that_of_the_file(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", coordinators=1)
    file = written(tmp_path / "f.csv", pa.table({"n": [1, 2], "who": ["a", "b"]}))
    files = files_of([str(file)], None, Columns(), OF_IMPORT, infer=True)
    bench.client.create_topic("bytes")
    bench.client.producer("bytes").send(b"before")
    import_files(bench.client, files, "bytes", dry_run=True)
    assert not bench.client.topic("bytes").schemas.list()
    import_files(bench.client, files, "bytes")
    assert [chosen_files.schema_version for chosen_files in bench.client.reader("bytes")] == [
        None,
        1,
        1,
    ]
    chosen_files = files_of([str(file)], None, Columns(value="n"), OF_IMPORT, infer=True)
    import_files(bench.client, chosen_files, "one", create=True)
    assert [row.decode() for row in bench.client.reader("one")] == [{"n": 1}, {"n": 2}]
    with pytest.raises(InvalidArgument):
        import_files(
            bench.client, replace(chosen_files, columns=Columns(value="no")), "two", create=True
        )
    with pytest.raises(InvalidArgument):
        import_files(bench.client, replace(chosen_files, form="envelope"), "two", create=True)
    with pytest.raises(TopicNotFound):
        bench.client.describe_topic("two")
    odd = written(tmp_path / "odd.parquet", pa.table({"a b": [1]}))
    files = files_of([str(odd)], None, Columns(), OF_IMPORT, infer=True)
    import_files(bench.client, files, "two", create=True)
    assert [row.decode() for row in bench.client.reader("two")] == [{"a_b": 1}]


@pytest.mark.parametrize("form", ["csv", "ndjson", "envelope.ndjson"])
@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_truncated_packed_file_stores_no_message(tmp_path: Path, form: str, suffix: str) -> None:
    """DuckDB takes the truncated end of a zstd file for the end of the data."""
    line = b"1,a\n" if form == "csv" else b'{"value":"a","value_encoding":"utf8"}\n'
    data = (b"id,name\n" if form == "csv" else b"") + line * 5000
    packed = (
        gzip.compress(data) if suffix == ".gz" else pa.Codec("zstd").compress(data, asbytes=True)
    )
    bench = Bench(tmp_path / "store", coordinators=1)
    topics_before = {row["topic"] for row in bench.client.topics()}
    file = tmp_path / f"rows.{form}{suffix}"
    for cut in (1, 5, len(packed) // 2):
        file.write_bytes(packed[:-cut])
        given_source = source(file, form="envelope" if "envelope" in form else None)
        for infer in (False, True):
            with pytest.raises((BadRecord, InvalidArgument)):
                import_files(bench.client, replace(given_source, infer=infer), "t", create=True)
        assert {row["topic"] for row in bench.client.topics()} == topics_before
    file.write_bytes(packed)
    assert import_files(bench.client, given_source, "t", create=True)["messages"] == 5000


def test_a_failed_import_leaves_no_topic_and_no_schema(tmp_path: Path) -> None:
    """spec/cli 5: exit code 1 means that the store is unchanged, so the corrected file can be
    imported.
    """
    bench = Bench(tmp_path / "store", coordinators=1)
    bench.client.create_topic("there")
    topics_before = [row["topic"] for row in bench.client.topics()]
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1, 2], "x": [1.5, float("nan")]}), file)
    bad_csv = tmp_path / "b.csv"
    bad_csv.write_text("id,name\n1\n")
    inferred = replace(source(file), infer=True)
    for files in (inferred, source(bad_csv), source(file, event_time="nope")):
        with pytest.raises(TxlogError):
            import_files(bench.client, files, "new", create=True)
        assert [row["topic"] for row in bench.client.topics()] == topics_before
    with pytest.raises(TxlogError):
        import_files(bench.client, inferred, "there")
    assert bench.client.topic("there").schemas.list() == []
    pq.write_table(pa.table({"id": [1, 2], "x": ["1.5", None]}), file)
    for topic in ("new", "there"):
        assert import_files(bench.client, inferred, topic, create=True)["messages"] == 2


def test_failed_import_keeps_a_topic_that_others_use(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", coordinators=1)
    other = bench.another()
    uses: dict[str, Callable[[str], object]] = {
        "sent": lambda topic: other.producer(topic).send(b"a"),
        "subscribed": lambda topic: other.create_subscription(topic, "s"),
        "policy": lambda topic: other.set_policies(topic, retention_ms=1000),
    }
    for topic, use in uses.items():
        with pytest.raises(KeyError), created(bench.client.store, [topic, f"{topic}-unused"]):
            use(topic)
            raise KeyError
    assert {row["topic"] for row in bench.client.topics()} == set(uses)


LINES = {
    '{"x":1e400}': True,
    '{"x":-1e400,"y":"NaN, Infinity,]"}': True,
    f'{{"x":{"1" * 400}}}': True,
    '{"nan":"a \\" inf,}"}': True,
    '{"x":NaN}': False,
    '{"x":-Infinity}': False,
    '{"x":nan}': False,
    '{"x":1e400,"y":NaN}': False,
    '{"x":1,}': False,
    '{"x":[1, ]}': False,
    "{'x':1}": False,
    '{"x":1}{}': False,
}


@pytest.mark.parametrize("line", LINES)
def test_import_and_produce_accept_the_same_json(tmp_path: Path, line: str) -> None:
    bench = Bench(tmp_path / "store", coordinators=1)
    file = tmp_path / "a.ndjson"
    file.write_text(f'{{"a":1}}\n{line}\n')
    reading = Input("ndjson", [str(file)])
    if LINES[line]:
        assert import_files(bench.client, source(file), "t", create=True)["messages"] == 2
        assert sum(len(table) for table in reading.tables() if table is not None) == 2
        return
    with pytest.raises(BadRecord, match="line 2"):
        import_files(bench.client, source(file), "t", create=True)
    with pytest.raises(BadRecord, match="2"):
        list(reading.tables())


@pytest.mark.parametrize(
    "form", graded(["csv", "csv.gz", "parquet", "arrow", "ndjson"], ("ndjson",))
)
def test_files_with_odd_names_are_imported(tmp_path: Path, form: str) -> None:
    """File names that are not UTF-8, and names that DuckDB would read as a pattern."""
    bench = Bench(tmp_path / "store", coordinators=1)
    rows = pa.table({"id": [1]})
    odd = ["caf\udce9", "it's [x]", "back\\slash", "a*b?", "{a,b}", "100%", "a\nb", "-x", "~"]
    for number, name in enumerate(odd):
        folder = tmp_path / f"[y]{name}"
        folder.mkdir()
        file = folder / f"{name}.{form}"
        if form == "parquet":
            with file.open("wb") as out:
                pq.write_table(rows, out)
        elif form == "arrow":
            with file.open("wb") as out, pa.ipc.new_file(out, rows.schema) as writer:
                writer.write_table(rows)
        else:
            text = b'{"id":1}\n' if form == "ndjson" else b"id\n1\n"
            file.write_bytes(gzip.compress(text) if form.endswith(".gz") else text)
        answer = import_files(bench.client, source(file), "t", create=True, key=f"k{number}")
        assert answer["messages"] == 1, name
        if form != "ndjson":
            typed = replace(source(file), infer=True)
            assert import_files(bench.client, typed, f"t{number}", create=True)["messages"] == 1

"""Formats of files go by suffix, in every command that reads or writes files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import zstandard

import txlog
from tests.tiers import graded
from txlog.base.text import formats
from txlog.cli.main import main

ROWS = "id,name\n1,ana\n2,eve\n"


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    txlog.init("s")
    monkeypatch.setenv("TXLOG_STORE", "s")


def values(topic: str) -> list[bytes | None]:
    with txlog.open("s") as client:
        return [message.value for message in client.reader(topic)]


def unpacked(path: str) -> bytes:
    return b"".join(formats.unpacked(path, lambda error: False))


def files() -> list[str]:
    """ROWS in every form that an import takes."""
    table = pa.table({"id": ["1", "2"], "name": ["ana", "eve"]})
    lines = '{"id":"1","name":"ana"}\n{"id":"2","name":"eve"}\n'
    Path("a.csv").write_text(ROWS)
    Path("a.tsv").write_text(ROWS.replace(",", "\t"))
    for suffix in ("ndjson", "jsonl", "json"):
        Path(f"a.{suffix}").write_text(lines)
    pq.write_table(table, "a.parquet")
    feather.write_feather(table, "a.feather", compression="uncompressed")
    with pa.OSFile("a.arrow", "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    for suffix in ("csv", "tsv", "ndjson"):
        data = Path(f"a.{suffix}").read_bytes()
        Path(f"a.{suffix}.gz").write_bytes(gzip.compress(data))
        Path(f"a.{suffix}.zst").write_bytes(zstandard.compress(data))
    return sorted(path.name for path in Path().glob("a.*"))


@pytest.mark.deep
def test_import_takes_every_suffix() -> None:
    expected = [b'{"id":"1","name":"ana"}', b'{"id":"2","name":"eve"}']
    names = files()
    assert {suffix for suffix in formats.SUFFIXES} <= {Path(name).suffix for name in names}
    for number, name in enumerate(names):
        assert main(["import", name, f"t{number}", "--create", "-q"]) == 0
        assert values(f"t{number}") == expected, name


def test_produce_takes_every_suffix_of_text_and_names_import_for_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for number, name in enumerate(files()):
        with txlog.open("s") as client:
            client.create_topic(f"t{number}")
        code = main(["produce", f"t{number}", name, "-q"])
        if formats.suffix_form(name) in formats.TEXTS:
            assert (code, len(values(f"t{number}"))) == (0, 2), name
        else:
            assert code == 2 and f"txlog import {name}" in capsys.readouterr().err


def test_export_takes_a_file_name_given_as_its_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["produce", "t", "-m", "a", "--create", "-q"]) == 0
    assert main(["export", "t", "--to", "x.parquet"]) == 0
    assert main(["export", "t", "--to=y.csv.gz"]) == 0
    assert unpacked("y.csv.gz").splitlines()[1:]
    for name in ("z.csv", "some/", "lake"):
        words = ["--to", "hive"] if name == "lake" else []
        assert main(["export", "t", name, *words, "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        paths = [Path(name)] if Path(name).is_file() else [*Path(name).rglob("*.parquet")]
        assert answer["size_bytes"] == 1
        assert answer["file_bytes"] == sum(path.stat().st_size for path in paths) > 1
    assert main(["export", "t", "-", "--to", "csv"]) == 0
    out, err = capsys.readouterr()
    assert f"(1 file, {len(out)} B, " in err
    assert Path("x.parquet").read_bytes()[:4] == b"PAR1"
    capsys.readouterr()
    for words in (["--to", "nosuch"], ["z", "--to", "z.csv"]):
        assert main(["export", "t", *words]) == 2
        assert "--to is parquet|" in capsys.readouterr().err


@pytest.mark.parametrize(
    "suffix", graded([".csv.gz", *formats.SUFFIXES, ".tsv.zst", ".ndjson.gz"], 4)
)
def test_export_and_query_write_what_the_suffix_says(suffix: str) -> None:
    with txlog.open("s") as client:
        client.create_topic("t")
        client.producer("t").send(b"a\tb", key=b"k")
    assert main(["export", "t", f"e{suffix}", "-q"]) == 0
    assert main(["query", "SELECT key, value FROM t", "--out", f"q{suffix}", "-q"]) == 0
    form = formats.suffix_form(f"x{suffix}")
    for name in (f"e{suffix}", f"q{suffix}"):
        if form == "parquet":
            assert pq.read_table(name)["value"].to_pylist() == [b"a\tb"]
        elif form == "arrow":
            assert feather.read_table(name)["value"].to_pylist() == [b"a\tb"]
        else:
            text = unpacked(name).decode()
            assert ("a\tb" if form == "csv" else "a\\tb") in text
            assert text.startswith("{") == (form == "ndjson")
            assert suffix.endswith((".gz", ".zst")) == (Path(name).read_bytes() != text.encode())


@pytest.mark.parametrize(
    "line",
    [
        "export t x.csv --to parquet",
        "export t x.parquet --to csv",
        "export t x.parquet.gz",
        "export t x.xlsx",
        "query SELECT/**/1 --out x.arrow.zst",
        "query SELECT/**/1 --out x.txt",
        "import a.tsv u --create --in csv",
        "import a.csv a.tsv u --create",
        "import a.csv b u --create",
        "produce t a.tsv --in csv",
        "produce t a.csv --in envelope",
        "produce t a.csv a.tsv",
    ],
)
def test_a_conflict_is_one_line_and_writes_nothing(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files()
    Path("b").write_text(ROWS)
    with txlog.open("s") as client:
        client.create_topic("t")
    capsys.readouterr()
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and "Traceback" not in err
    assert not list(Path().glob("x.*")) and not list(Path().glob(".x*"))
    assert values("t") == []
    with txlog.open("s") as client:
        assert [row["topic"] for row in client.topics()] == ["t"]


def test_formats_of_bytes_agree_with_any_name() -> None:
    files()
    for form in ("lines", "raw", "null", "%v\\n"):
        assert main(["produce", "t", "a.csv", "--create", "--in", form, "-q"]) == 0


@pytest.mark.parametrize("packing", ["gz", "zst"])
@pytest.mark.parametrize("command", ["import", "produce"])
@pytest.mark.parametrize("kept", [0, 20, 2000, -5])
def test_an_input_that_is_cut_short_is_refused_with_its_place(
    packing: str, command: str, kept: int, capsys: pytest.CaptureFixture[str]
) -> None:
    data = b"id,name\n" + b"".join(b"%d,%x\n" % (n, hash((n, "x"))) for n in range(1, 9000))
    whole = gzip.compress(data) if packing == "gz" else zstandard.compress(data)
    Path(f"b.csv.{packing}").write_bytes(whole[:kept])
    words = [f"b.csv.{packing}", "t"] if command == "import" else ["t", f"b.csv.{packing}"]
    assert main([command, *words, "--create", *(["--txn"] if command == "produce" else [])]) == 1
    err = capsys.readouterr().err
    assert f"b.csv.{packing}: it is" in err
    with txlog.open("s") as client:
        assert client.topics() == []


def test_produce_create_infers_the_types_of_columns(capsys: pytest.CaptureFixture[str]) -> None:
    Path("o.csv").write_text("key,id,amount,day\nk,1,4.5,2026-01-02\nk,2,,2026-01-03\n")
    assert main(["produce", "orders", "o.csv", "--create"]) == 0
    assert "created orders with the schema id: " in capsys.readouterr().err
    assert values("orders") == [
        b'{"id":1,"amount":4.5,"day":20455}',
        b'{"id":2,"amount":null,"day":20456}',
    ]
    with txlog.open("s") as client:
        assert [message.key for message in client.reader("orders")] == [b"k", b"k"]


def test_produce_infers_nothing_for_a_topic_that_exists_or_a_column_value() -> None:
    Path("o.csv").write_text("id,amount\n1,4.5\n")
    Path("v.csv").write_text("key,value\n1,4.5\n")
    with txlog.open("s") as client:
        client.create_topic("bytes")
    assert main(["produce", "bytes", "o.csv", "--create", "-q"]) == 0
    assert values("bytes") == [b'{"id":"1","amount":"4.5"}']
    assert main(["produce", "valued", "v.csv", "--create", "-q"]) == 0
    assert values("valued") == [b"4.5"]


def test_a_failed_produce_leaves_no_topic(capsys: pytest.CaptureFixture[str]) -> None:
    Path("o.csv").write_text("id,amount\n1,4.5\n2\n")
    assert main(["produce", "orders", "o.csv", "--create"]) == 1
    assert "o.csv: line 3" in capsys.readouterr().err
    with txlog.open("s") as client:
        assert client.topics() == []


@pytest.mark.parametrize("form", ["-m", "ndjson"])
def test_texts_of_times_become_numbers_of_a_typed_topic(
    capsys: pytest.CaptureFixture[str], form: str
) -> None:
    import pyarrow as pa

    fields = [("at", pa.timestamp("us")), ("day", pa.date32()), ("n", pa.int64())]
    with txlog.open("s") as client:
        client.create_topic("typed", schema=pa.schema(fields))

    def produce(line: str) -> int:
        Path("o.ndjson").write_text(f"{line}\n")
        return main(["produce", "typed", *(["-m", line] if form == "-m" else ["o.ndjson"])])

    assert produce('{"at":"2026-11-20T00:00:00.5","day":"2026-11-20","n":9007199254740993}') == 0
    assert values("typed") == [b'{"at":1795132800500000,"day":20777,"n":9007199254740993}']
    capsys.readouterr()
    assert produce('{"at":"soon"}') != 0
    told = capsys.readouterr().err
    assert "at is 'soon', it must be a timestamp without a time zone, as micro" in told
    assert "or text such as 2026-11-20T10:15:00" in told

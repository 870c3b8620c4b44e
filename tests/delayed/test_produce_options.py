"""The command line: --deliver-after, --deliver-at, fields of records.

Source: spec/delayed 9, spec/cli 7.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.engine_kit import START_MS, Bench, read
from txlog.base.times import format_time
from txlog.cli.input.inputs import Input
from txlog.cli.main import main
from txlog.cli.produce.columns import filled
from txlog.cli.produce.request import Batch, OnError, Request
from txlog.errors import BadRecord

pytestmark = pytest.mark.usefixtures("quick_disk")
INSTANT = pa.timestamp("ms", "UTC")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    new_bench = Bench(tmp_path / "store")
    new_bench.client.create_topic("t")
    monkeypatch.setenv("TXLOG_STORE", new_bench.path)
    monkeypatch.setenv("TXLOG_NOW", format_time(START_MS))
    monkeypatch.chdir(tmp_path)
    return new_bench


def delivery(bench: Bench) -> list[int | None]:
    return [message.deliver_at for message in read(bench.client)]


@pytest.mark.parametrize(("words", "wanted"), [
    ([], None),
    (["--deliver-after", "90s"], START_MS + 90_000),
    (["--deliver-after", "1h30m"], START_MS + 5_400_000),
    (["--deliver-at", "2030-01-01T00:00Z"], 1_893_456_000_000),
    (["--deliver-at", "2030-01-01T00:00:00Z"], 1_893_456_000_000),
    (["--deliver-at", "+1m"], START_MS + 60_000),
    (["--deliver-at", "-1m"], START_MS - 60_000),
    (["--deliver-at", "1970-01-01"], 0),
    (["--deliver-after", "-1s"], 2),
    (["--deliver-after", "soon"], 2),
    (["--deliver-at", "now", "--deliver-after", "1s"], 2),
])  # fmt: skip
def test_a_flag_is_of_every_message(
    bench: Bench, words: list[str], wanted: int | None, capfd: pytest.CaptureFixture[str]
) -> None:
    for more in ([], ["--txn"], ["--chunking"]):
        code = main(["produce", "t", "-m", "a", "-m", "b", *more, *words])
        error_text = capfd.readouterr().err
        assert code == (2 if wanted == 2 else 0), error_text
    assert delivery(bench) == ([] if wanted == 2 else [wanted] * 6)


def test_a_time_that_has_passed_is_noted(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    """9: accepted, with a note on stderr."""
    assert main(["produce", "t", "-m", "a", "--deliver-at", "-1s"]) == 0
    assert capfd.readouterr().err.splitlines()[0].startswith("--deliver-at has passed")
    assert main(["produce", "t", "-m", "a", "--deliver-at", "-1s", "-q"]) == 0
    assert not capfd.readouterr().err
    assert main(["produce", "t", "-m", "a", "--deliver-at", "+1s", "-v"]) == 0
    assert "has passed" not in capfd.readouterr().err
    assert delivery(bench) == [START_MS - 1000, START_MS - 1000, START_MS + 1000]


def test_a_time_in_a_record_overrides_the_flag(bench: Bench, tmp_path: Path) -> None:
    """spec/cli 7: a record with either of the two keeps it, whichever flag the command has."""
    (tmp_path / "e").write_text(
        '{"value":"a","value_encoding":"utf8","deliver_at":7}\n'
        '{"value":"b","value_encoding":"utf8","deliver_after":8}\n'
        '{"value":"c","value_encoding":"utf8","deliver_after":null}\n'
    )
    (tmp_path / "c").write_text("value,deliver_at,deliver_after\na,1970-01-02,\nb,,8ms\nc,,\n")
    for form, time in (("envelope", 7), ("csv", 86_400_000)):
        assert main(["produce", "t", form[0], "--in", form]) == 0
        assert main(["produce", "t", form[0], "--in", form, "--deliver-after", "9ms"]) == 0
        assert main(["produce", "t", form[0], "--in", form, "--deliver-at", "1970-01-03"]) == 0
        assert delivery(bench) == [
            time,
            START_MS + 8,
            None,
            time,
            START_MS + 8,
            START_MS + 9,
            time,
            START_MS + 8,
            2 * 86_400_000,
        ]
        bench.client.admin.delete_topic("t")
        bench.client.create_topic("t")


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"deliver_at": pa.array([None, 5], INSTANT)},
        {"deliver_after": pa.array([None, 6], pa.int64())},
        {"deliver_at": pa.array([None, None], INSTANT), "deliver_after": pa.array([None, 6])},
    ],
)
def test_a_flag_fills_only_what_says_nothing(columns: dict[str, Any]) -> None:
    table = pa.table({"value": [b"a", b"b"], **columns})
    has_columns = bool(columns)
    needed: dict[str, Any] = {"topic": "t", "batch": Batch(), "on_error": OnError("stop")}
    needed["flush_every_ms"] = 0
    for request, name, value in (
        (Request(**needed, deliver_at=99), "deliver_at", 99),
        (Request(**needed, deliver_after_ms=99), "deliver_after", 99),
    ):
        out = filled(request, table, 0)
        got = out[name].cast(pa.int64()).to_pylist()
        assert got[0] == value
        rows = [{key: out[key].cast(pa.int64())[at].as_py() for key in columns} for at in range(2)]
        assert got[1] == value if not has_columns else any(rows[1].values())
        both = [
            out[key].is_valid()
            for key in ("deliver_at", "deliver_after")
            if key in out.column_names
        ]
        assert [
            sum(pair) for pair in zip(*(each_table.to_pylist() for each_table in both), strict=True)
        ] == [
            1,
            1,
        ]


@pytest.mark.parametrize(("form", "text"), [
    ("envelope", '{"value":null,"deliver_after":-1}'),
    ("envelope", '{"value":null,"deliver_after":1.5}'),
    ("envelope", '{"value":null,"deliver_after":"1s"}'),
    ("envelope", '{"value":null,"deliver_after":9223372036854775808}'),
    ("envelope", '{"value":null,"deliver_after":1,"deliver_at":2}'),
    ("csv", "value,deliver_after\na,-1s"),
    ("csv", "value,deliver_after\na,5"),
    ("csv", "value,deliver_after,deliver_at\na,5s,1970-01-01"),
    ("tsv", "value\tdeliver_after\na\tx"),
])  # fmt: skip
def test_a_bad_field_is_a_bad_record_with_its_line(tmp_path: Path, form: str, text: str) -> None:
    path = tmp_path / "input"
    path.write_text(text + "\n")
    with pytest.raises(BadRecord) as caught:
        list(Input(form, [str(path)]).tables())
    assert caught.value.fields["line"] == text.count("\n") + 1


def test_a_large_file_may_be_delayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--chunking: raw files while they are read, and records among smaller ones."""
    bench = Bench(tmp_path / "small", max_message_bytes=1000)
    bench.client.create_topic("t")
    monkeypatch.setenv("TXLOG_STORE", bench.path)
    monkeypatch.setenv("TXLOG_NOW", format_time(START_MS))
    (tmp_path / "raw").write_bytes(b"x" * 5000)
    (tmp_path / "lines").write_bytes(b"a\n" + b"x" * 5000 + b"\nb\n")
    arguments = ["produce", "t", "--chunking", "--deliver-after", "7ms"]
    assert main([*arguments, "--in", "raw", str(tmp_path / "raw")]) == 0
    assert main([*arguments, "--txn", str(tmp_path / "lines")]) == 0
    assert [(len(m.value or b""), m.deliver_at) for m in read(bench.client)] == [
        (size, START_MS + 7) for size in (5000, 1, 5000, 1)
    ]
    bench.client.admin.set_delayed_policies("t", max_delivery_delay_ms=6)
    assert main([*arguments, "--in", "raw", str(tmp_path / "raw")]) == 2
    assert main([*arguments, "--txn", str(tmp_path / "lines")]) == 1
    assert len(read(bench.client)) == 4


def test_an_output_of_transform_may_be_delayed(bench: Bench) -> None:
    """8.3: an envelope with a delay from the command keeps it."""
    bench.client.create_topic("out")
    bench.client.producer("t").send(b"x")
    script = (
        """printf '{"value":"y","value_encoding":"utf8","deliver_after":50}\\n'; cat > /dev/null"""
    )
    code = main(
        [
            "transform",
            "t",
            "out",
            "-s",
            "s",
            "--create",
            "--out-format",
            "envelope",
            "--",
            "sh",
            "-c",
            script,
        ]
    )
    assert code == 0
    assert [m.deliver_at for m in read(bench.client, topic="out")] == [START_MS + 50]

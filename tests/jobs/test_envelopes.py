"""`import --in envelope` accepts, refuses and stores the same lines as `produce --in envelope`."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.engine_kit import Bench
from tests.jobs.test_export_files import shown
from tests.jobs.test_import_files import source
from tests.tiers import graded
from txlog.cli.input.inputs import Input
from txlog.errors import BadRecord, InvalidMessage
from txlog.lake.jobs.import_files import import_files
from txlog.lake.jobs.sources.loads import envelope_tables

pytestmark = pytest.mark.usefixtures("quick_disk")

_VALUES = (
    "null", "5", "1.5", "-0", "1e3", '"5"', '"x"', '""', "true", "{}", "[]", '{"a":1}', "[1,2]",
    '"\\u0000"', '"a\\u0000b"', '"\\ud800"', '"\\q"', '"é"', "99999999999999999999", "NaN", "01",
    "9223372036854775807", '"1795165924117"', '" 7 "', "8640000000000000", "Infinity", '"eA=="',
    "1E400", '"a,b"', '"\\"q\\""', '"\\t\\n"', '"2020-01-01"', '"' + "long" * 9_000 + '"',
)  # fmt: skip
_PAIRS = (
    "null", "{}", '{"a":"b"}', '{"a":1}', '{"a":null}', '{"a":{"b":1}}', '{"a":"b","a":"c"}',
    '{"":""}', '"{\\"a\\":\\"b\\"}"', "[]", '[["a","b"]]', "5", '{"a":"x\\u0000y"}', '{"a":true}',
    '{"é":"\\ud83d\\ude00"}', '{"a":[1]}', '{"a":"\\"q"}', '[{"key":"a","value":"b"}]',
)  # fmt: skip
_LINES = (
    "", "  ", "5", "[1]", "null", '"x"', "{", "{}", " {} ", '\t{"value":"a"}', "{}x", '{"a":1,}',
    "{a:1}", "{'a':1}", "/*c*/{}", "\x0b{}", "\u00a0{}", "[{}]", '{"a":"\x01"}', "nan", '{"a":+1}',
    '{"value":"a","value_encoding":"utf8"}\r', '{"a":.5}', '{"a":0x1}', "{} // c",
    "\xff{}", "\ufeff{}", '{"a":"\udcff"}',
)  # fmt: skip
_OF_MESSAGES = ("value", "key", "properties", "event_time", "deliver_at", "deliver_after")
_PAIRED = (
    ('"abc"', '"utf8"'), ('"eA=="', '"base64"'), ('""', '"base64"'), ("null", "null"),
    (None, None), ("null", None), (None, "null"),
)  # fmt: skip
_OFTEN = {
    "properties": ("null", '{"a":"b"}'), "event_time": ("null", "5", "1795165924117"),
    "deliver_at": ("null", "5", "1795165924117"), "deliver_after": ("null",), "other": ("1",),
    "Value": ('"v"',), "sequence_id": ("null", "7"), "partition": ("null", "0"),
    "producer": ("null", '"p"', "5"), "publish_time": ("null", "5", '"x"'),
}  # fmt: skip
_SELDOM = {
    "properties": _PAIRS, "value_encoding": ('"x"', "5"), "key_encoding": ('"x"', "5", None),
    "deliver_after": (*_VALUES, "5", None),
}  # fmt: skip


def _line(rng: random.Random, oddness: float) -> str:
    if rng.random() < oddness / 2:
        return rng.choice(_LINES)
    choices: dict[str, str | None] = {
        name: rng.choice(often) for name, often in _OFTEN.items() if rng.random() < 0.8
    }
    for name in ("value", "key"):
        choices[name], choices[f"{name}_encoding"] = rng.choice(_PAIRED)
    for name in [*choices]:
        if rng.random() < oddness / 3:
            choices[name] = rng.choice(_SELDOM.get(name, (*_VALUES, None)))
    between = ["", "", " "]
    members = [
        f'{rng.choice(between)}"{name}"{rng.choice(between)}:{text}'
        for name, text in choices.items()
        if text is not None
    ]
    if members and rng.random() < oddness:
        members.append(rng.choice(members))
    rng.shuffle(members)
    return "{" + ",".join(members) + "}"


def _rows(tables: Iterable[pa.Table]) -> list[dict[str, Any]]:
    """The messages in these tables.

    Instants are numbers, because some are outside the range of Python's datetime.
    """
    rows = []
    for table in tables:
        chosen = table.select([name for name in _OF_MESSAGES if name in table.column_names])
        kinds = [
            pa.int64() if pa.types.is_timestamp(name) else name for name in chosen.schema.types
        ]
        as_numbers = chosen.cast(pa.schema(zip(chosen.column_names, kinds, strict=True)))
        rows += [{n: v for n, v in row.items() if v is not None} for row in as_numbers.to_pylist()]
    return rows


def _said(line: int, data: bytes) -> Any:
    """The columns that `produce` makes of a single line, or its reason to refuse it."""
    try:
        return _rows([Input("envelope", []).parse(data)])
    except BadRecord as error:
        return error.message.replace("line 1:", f"line {line}:")


def _taken(file: Path) -> Any:
    """The columns that `import` makes of a file."""
    try:
        return _rows(envelope_tables(source(file, form="envelope")))
    except BadRecord as error:
        assert error.fields == {"path": str(file), "line": error.fields["line"]}
        return error.message.removeprefix(f"{file}: ")


@pytest.mark.parametrize("seed", graded(range(6), quick=1))
def test_import_accepts_and_refuses_the_same_lines_as_produce(tmp_path: Path, seed: int) -> None:
    """spec/cli 7. Guards against a value without its encoding that becomes null, 5 read as "5" and
    "5" as 5, 1.5 read as 2, properties that are not texts, and invalid base64.
    """
    rng, both = random.Random(seed), {"rows": 0, "refused": 0}
    file = tmp_path / "lines.ndjson"
    for _ in range(120):
        oddness = rng.choice([0.0, 0.02, 0.3])
        new_lines = [_line(rng, oddness) for _ in range(rng.choice([1, 3, 40]))]
        lines = [line.encode("utf-8", "surrogateescape") for line in new_lines]
        file.write_bytes(b"".join(line + b"\n" for line in lines))
        want: Any = []
        for number, line in enumerate(lines, 1):
            produced = _said(number, line + b"\n")
            if isinstance(produced, str):
                want = produced
                break
            want += produced
        imported = _taken(file)
        assert imported == want
        both["refused" if isinstance(want, str) else "rows"] += 1
    assert min(both.values()) > 20, both


_GOOD = {"value": "v", "value_encoding": "utf8", "key": "k", "key_encoding": "utf8"}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"value_encoding": None}, "value without value_encoding"),
        ({"key_encoding": None}, "key without key_encoding"),
        ({"value": None}, "value is not a string"),
        ({"value": 5}, "value is not a string"),
        ({"key": ["k"]}, "key is not a string"),
        ({"value_encoding": "base32"}, "value_encoding is json, utf8, base64 or null"),
        ({"value": "eA=A", "value_encoding": "base64"}, "value is not base64"),
        ({"event_time": "soon"}, "event_time is not an integer in range"),
        ({"event_time": 1.5}, "event_time is not an integer in range"),
        ({"deliver_at": True}, "deliver_at is not an integer in range"),
        ({"deliver_at": 5, "deliver_after": 5}, "both deliver_at and deliver_after"),
        ({"properties": {"a": 1}}, "properties must map strings to strings"),
        ({"properties": []}, "properties must map strings to strings"),
        ({"sequence_id": -1}, "sequence_id is not an integer in range"),
        ({"partition": "0"}, "partition is not an integer in range"),
    ],
)
def test_invalid_envelope_is_named_and_nothing_is_stored(
    tmp_path: Path, changed: dict[str, Any], reason: str
) -> None:
    """spec/cli 7: a missing member and a null member mean the same."""
    bench = Bench(tmp_path / "store", coordinators=1)
    bench.client.create_topic("t")
    file = tmp_path / "bad.ndjson"
    bad = _GOOD | changed
    for lines in (bad, {name: texts for name, texts in bad.items() if texts is not None}):
        file.write_text("".join(json.dumps(line) + "\n" for line in (_GOOD, lines, _GOOD)))
        for dry_run in (True, False):
            with pytest.raises(BadRecord, match=rf"bad\.ndjson: line 2: {reason}$") as caught:
                import_files(bench.client, source(file, form="envelope"), "t", dry_run=dry_run)
            assert caught.value.fields == {"path": str(file), "line": 2}
    assert shown(bench.client) == []
    assert not [*(tmp_path / "store").rglob("_stage/*/*")]


@pytest.mark.deep
def test_packed_and_truncated_files_of_envelopes(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path / "store", coordinators=1)
    bench.client.create_topic("t")
    lines = b"".join(json.dumps(_GOOD | {"value": str(n)}).encode() + b"\n" for n in range(30_000))
    packed = {".gz": gzip.compress(lines), ".zst": pa.compress(lines, "zstd", asbytes=True)}
    for suffix, data in packed.items():
        file = tmp_path / f"a.ndjson{suffix}"
        file.write_bytes(data)
        given_source = source(file, form="envelope")
        assert import_files(bench.client, given_source, "t", key=suffix)["messages"] == 30_000
        file.write_bytes(data[: len(data) // 2])
        with pytest.raises(BadRecord, match=rf"a\.ndjson\{suffix}: ") as caught:
            import_files(bench.client, given_source, "t", key=suffix)
        assert caught.value.fields == {"path": str(file)}
    assert len(shown(bench.client)) == 60_000


def test_a_delay_counts_from_the_time_of_the_import(tmp_path: Path) -> None:
    """Guards against an import that ignores the delay."""
    bench = Bench(tmp_path / "store", coordinators=1)
    bench.client.create_topic("t")
    file = tmp_path / "later.ndjson"
    file.write_text(json.dumps(_GOOD | {"deliver_after": 90_000}) + "\n")
    import_files(bench.client, source(file, form="envelope"), "t")
    [row] = next(bench.client.read("t")).to_pylist()
    assert (row["deliver_at"] - row["publish_time"]).total_seconds() == 90


@pytest.mark.parametrize("form", ["envelope", "ndjson"])
@pytest.mark.parametrize("line", graded([10_241, 2_048, 25_000], 1))
def test_line_without_an_object_is_named_at_any_end_of_a_batch(
    tmp_path: Path, form: str, line: int
) -> None:
    bench = Bench(tmp_path / "store", coordinators=1)
    bench.client.create_topic("t")
    lines = [json.dumps({"value": str(n), "value_encoding": "utf8"}) for n in range(25_000)]
    lines[line - 1] = "[]"
    file = tmp_path / "bad.ndjson"
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(BadRecord, match=f"line {line}: not a JSON object$"):
        import_files(bench.client, source(file, form=form), "t")
    assert shown(bench.client) == []
    assert not [*(tmp_path / "store").rglob("_stage/*/*")]


def test_a_value_that_is_too_large_leaves_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", coordinators=1)
    bench.client.create_topic("t")
    file = tmp_path / "large.ndjson"
    file.write_text(json.dumps(_GOOD) + "\n" + json.dumps(_GOOD | {"value": "x" * 6_000_000}))
    with pytest.raises(InvalidMessage):
        import_files(bench.client, source(file, form="envelope"), "t")
    assert shown(bench.client) == []

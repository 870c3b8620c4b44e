"""Lines of `import` are parsed once, and are what they were when each member was looked up."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine_kit import Bench
from tests.jobs.test_export_files import shown
from tests.jobs.test_import_files import source
from tests.tiers import graded
from txlog.errors import BadRecord, InvalidMessage, SqlError
from txlog.jobs.import_files import import_files
from txlog.jobs.local import opened
from txlog.jobs.sources.rows import _decoded, _scan, message_rows
from txlog.sql.duck import Rows, Session

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
)  # fmt: skip
_OFTEN = {
    "value": ('"abc"', "null", '"eA=="'), "key": ('"abc"', "null", '"eA=="'),
    "properties": ("null", '{"a":"b"}'), "event_time": ("null", "5", "1795165924117"),
    "deliver_at": ("null", "5", "1795165924117"), "other": ("1",), "Value": ('"v"',),
    "value_encoding": ('"utf8"', '"base64"', "null"), "key_encoding": ('"utf8"', "null"),
}  # fmt: skip
_SELDOM = {"properties": _PAIRS, "value_encoding": ('"x"', "5"), "key_encoding": ('"x"', "5")}


def _line(rng: random.Random, oddness: float) -> str:
    if rng.random() < oddness / 2:
        return rng.choice(_LINES)
    members = []
    for name, often in _OFTEN.items():
        if rng.random() < 0.8:
            odd = rng.random() < oddness
            said = rng.choice(_SELDOM.get(name, _VALUES) if odd else often)
            members.append(f'{rng.choice(["", "", " "])}"{name}"{rng.choice(["", " "])}:{said}')
    if members and rng.random() < oddness:
        members.append(rng.choice(members))
    rng.shuffle(members)
    return "{" + ",".join(members) + "}"


def _member(name: str) -> str:
    return f"json_extract_string(line, '$.{name}')"


def _one_by_one(session: Session, given: Any) -> list[dict[str, Any]]:
    """What a line says, each member looked up by itself; an error for what is no object."""
    bad = "line IS NULL OR NOT json_valid(line) OR json_type(line) <> 'OBJECT'"
    if session.row(f"SELECT count(*) AS n FROM {_scan(given)} WHERE {bad}")["n"]:
        raise SqlError("no object")
    said = [
        f"{_decoded(_member(name), _member(f'{name}_encoding'))} AS {name}"
        for name in ("value", "key")
    ]
    said.append("CAST(json_extract(line, '$.properties') AS MAP(VARCHAR, VARCHAR)) AS properties")
    for name in ("event_time", "deliver_at"):
        at = f"epoch_ms(CAST({_member(name)} AS BIGINT)) AT TIME ZONE 'UTC'"
        said.append(f"{at} AS {name}")
    return _rows(session.stream(f"SELECT {', '.join(said)} FROM {_scan(given)}"))


def _rows(found: Rows) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = found.read_all().to_pylist()
    return rows


def _at_once(session: Session, given: Any) -> list[dict[str, Any]]:
    return _rows(message_rows(session, given))


def _found(
    read: Callable[[Session, Any], list[dict[str, Any]]], session: Session, given: Any
) -> list[dict[str, Any]] | str:
    try:
        return read(session, given)
    except SqlError as error:
        return str(error).partition("LINE 1:")[0]  # from there on it quotes the statement


@pytest.mark.parametrize("seed", graded(range(6), quick=1))
def test_an_envelope_says_what_its_members_say_one_by_one(tmp_path: Path, seed: int) -> None:
    """Kills: text for numbers, the last of two members, another error, a line that is no object."""
    rng, rounds, both = random.Random(seed), 30, {"rows": 0, "errors": 0}
    file = tmp_path / "lines.ndjson"
    for _ in range(rounds):
        oddness = rng.choice([0.0, 0.02, 0.3])
        lines = [_line(rng, oddness) for _ in range(rng.choice([1, 3, 40]))]
        file.write_bytes("\n".join([*lines, ""]).encode("utf-8", "surrogatepass"))
        given = source(file, form="envelope")
        with opened(given) as session:
            want, found = (_found(read, session, given) for read in (_one_by_one, _at_once))
        if want == "no object":
            assert isinstance(found, str), lines
        else:
            assert found == want, lines
        both["errors" if isinstance(want, str) else "rows"] += 1
    assert min(both.values()) * 8 > rounds, both


@pytest.mark.parametrize("form", ["envelope", "ndjson"])
@pytest.mark.parametrize("line", [2_048, 10_241, 25_000])
def test_a_line_that_is_no_object_is_named_wherever_a_batch_ends(
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


@pytest.mark.parametrize(
    "first",
    [
        '{"value":"x","value_encoding":"base32"}',
        '{"value":"x","value_encoding":"base64"}',
        '{"event_time":"soon"}',
        '{"properties":[]}',
        '{"value":"%s","value_encoding":"utf8"}' % ("x" * 6_000_000),
    ],
)
def test_lines_that_are_no_objects_come_before_all_that_is_wrong_with_others(
    tmp_path: Path, first: str
) -> None:
    bench = Bench(tmp_path / "store", coordinators=1)
    bench.client.create_topic("t")
    file = tmp_path / "bad.ndjson"
    more = "{}\n" * 30_000
    file.write_text(f"{first}\n{more}5\n\n")
    with pytest.raises(BadRecord, match=r"line 30002: not a JSON object, and 1 more$"):
        import_files(bench.client, source(file, form="envelope"), "t")
    file.write_text(f"{first}\n{more}")
    with pytest.raises(BadRecord if len(first) < 1_000 else InvalidMessage) as found:
        import_files(bench.client, source(file, form="envelope"), "t")
    assert "open result" not in str(found.value)
    assert shown(bench.client) == []

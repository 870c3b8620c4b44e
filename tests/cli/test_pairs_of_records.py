"""`consume --json | produce --in envelope` copies messages exactly."""

from __future__ import annotations

from pathlib import Path

import pytest

import txlog
from txlog.cli.main import main

VALUES = [
    b'{"a":1, "b" : [1,2]}', b'{\n  "a": 1,\r\n  "b": "x\\ny"\n}\n', b' {"a":1}', b'[1.0,1e2]\t',
    b'{"a":1,"a":2}', "grün\u2028".encode(), b"\xff\x00", b"", None, b"3", b"null", b'"text"', b"{",
    b'{"big":123456789012345678901234567890}', b'{"\\u00e9":"\\/"}',
]  # fmt: skip


@pytest.mark.parametrize("form", ["--json", "-fndjson", "-fenvelope", "--raw-strings"])
def test_records_come_back_exactly(
    form: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    monkeypatch.chdir(tmp_path)
    txlog.init("s")
    monkeypatch.setenv("TXLOG_STORE", "s")
    with txlog.open("s") as client:
        client.create_topic("a")
        producer = client.producer("a")
        for number, value in enumerate(VALUES):
            producer.send(
                value, key=[None, b"k", b"\xfe"][number % 3],
                properties={"p": 'x"\n', "": "é"} if number % 2 else None,
                event_time=[None, 1_795_165_924_123, -5, (1 << 62)][number % 4],
            )  # fmt: skip
        producer.send(b"later", deliver_at=4_000_000_000_000)
    forms = [form] if form != "--raw-strings" else [form, "--json"]
    assert main(["consume", "a", "--include-delayed", *forms]) == 0
    Path("a.out").write_bytes(capfdbinary.readouterr().out)
    assert main(["produce", "b", "a.out", "--in", "envelope", "--create", "-q"]) == 0
    columns = ["key", "value", "properties", "event_time", "deliver_at"]
    with txlog.open("s") as client:
        [a], [b] = ([*client.read(topic)] for topic in "ab")
    assert a.select(columns).equals(b.select(columns))


@pytest.mark.parametrize(
    "line",
    [
        '{"kind":"watermark","topic":"a"}',
        '{"value":"x","value_encoding":"json"}',
        '{"value":{},"value_encoding":"json","value_bytes":"?"}',
        '{"value":{},"value_encoding":"utf8"}',
        '{"value":"x","value_encoding":"utf8","event_time":"yesterday"}',
        '{"value":"x","value_encoding":"utf8","event_time":"2026-01-01T00:00:00"}',
        '{"key":{},"key_encoding":"json"}',
        '{"value":{},"value_encoding":"json"',
    ],
)
def test_what_is_no_record_is_one_line(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    txlog.init("s")
    Path("x").write_text(line + "\n")
    assert main(["-S", "s", "produce", "b", "x", "--in", "envelope", "--create"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: line 1: ") and "Traceback" not in err

"""What a command prints with --json another takes from stdin: each pair of the table runs."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

import txlog
from txlog.cli.main import main

# (what makes the store ready, the command that prints, the command that takes, what is left then)
PAIRS = {
    "txn list --json | txn abort -": ("txn begin; txn begin", "txn list -f names", ""),
    "txn list -f names | txn commit -": ("txn begin; txn begin", "txn list -f names", ""),
    "topic list --json | topic delete - --yes --force": ("", "topic list -f names", ""),
    "sub list --json | sub delete - --yes": (
        "topic create b; sub create x -t a; sub create x -t b", "sub list -f names", "",
    ),
    "sub list --json | sub seek - --to start --yes": (
        "sub create x -t a; produce a -m 1; sub clear-backlog x --yes",
        "sub list -f tsv --columns backlog", "backlog\n1\n",
    ),
    "consume a --json | sub ack x -": (
        "sub create x -t a; produce a -m 1 -m 2",
        "sub list -f tsv --columns backlog", "backlog\n0\n",
    ),
    "consume a --json | produce b --in envelope --create": (
        "produce a -m 1 -m 2", "consume b -f lines", "1\n2\n",
    ),
    "delay list a --json | delay cancel a - --yes": (
        "sub create x -t a --type shared; produce a -m 1 --deliver-after 1h",
        "sub list -f tsv --columns backlog", "backlog\n0\n",
    ),
    "delay list a --json | delay promote a - --yes": (
        "sub create x -t a --type shared; produce a -m 1 --deliver-after 1h",
        "consume a -s x -f lines", "1\n",
    ),
    "schema get t --json | schema upload a -": (
        "topic create t --schema t.avsc",
        "schema get a -f tsv --columns type", "field\tvalue\ntype\tavro\n",
    ),
}  # fmt: skip
# The arguments that take `-`, with a field that their rows lack.
TAKERS = ["txn abort -", "topic delete - --yes", "sub delete - --yes", "delay cancel a - --yes"]


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    txlog.init("s")
    monkeypatch.setenv("TXLOG_STORE", "s")
    fields = [{"name": "miles", "type": "double"}]
    Path("t.avsc").write_text(json.dumps({"type": "record", "name": "Trip", "fields": fields}))
    assert main("topic create a -q".split()) == 0


def given(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Give stdin these bytes."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.mark.parametrize("pair", PAIRS)
def test_a_pair(
    pair: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, ask, expected = PAIRS[pair]
    for line in filter(None, before.split("; ")):
        assert main(line.split()) == 0, line
    capsys.readouterr()
    source, _, sink = pair.partition(" | ")
    assert main(source.split()) == 0
    given(monkeypatch, capsys.readouterr().out.encode())
    assert main(sink.split()) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert main(ask.split()) == 0
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize("line", TAKERS)
@pytest.mark.parametrize("data", [b"", b"\n \n", b"[]"])
def test_an_empty_input_does_nothing_and_says_so(
    line: str, data: bytes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, data)
    assert main(line.split()) == 0
    out, err = capsys.readouterr()
    assert out == "" and "on standard input: nothing to do" in err


@pytest.mark.parametrize("line", TAKERS)
@pytest.mark.parametrize(
    "data",
    [b"\xff\n", b"{", b"[1]", b"[{}]", b'{"x":1}\n', b'{"txn":{}}\n', b"[" * 5000, b"a\0b\n"],
)
def test_a_hostile_input_is_one_line(
    line: str, data: bytes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, data)
    assert main(line.split()) in (2, 3)
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and "Traceback" not in err and "bug" not in err
    assert main("topic list -f names".split()) == 0
    assert capsys.readouterr().out == "a\n"

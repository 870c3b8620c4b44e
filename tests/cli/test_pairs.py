"""One command prints rows with --json, another takes them from stdin: every pair runs."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

import txlog
from txlog.cli.main import main

# (preparation of the store, the command that prints, the command that takes, the expected rest)
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
    "dlq list a-x-DLQ --json | dlq retry a-x-DLQ -": (
        "sub create x -t a --max-redeliver 0; produce a -m 1 -m 2; "
        "consume a -s x --ack none; consume a -s x --ack none",
        "dlq list a-x-DLQ -f names", "",
    ),
    "schema get t --json | schema upload a -": (
        "topic create t --schema t.avsc",
        "schema get a -f tsv --columns type", "field\tvalue\ntype\tavro\n",
    ),
}  # fmt: skip
POLICIES = {
    "alert": "--backlog-age 5m --backlog off",
    "delayed": "--max-delay 7d --no-strict",
    "retention": "--time unlimited --bytes 1GiB --acked",
    "schema": "--compatibility none",
    "watermark": "--idle-timeout 10m --open-transaction-check refuse",
}
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


@pytest.mark.parametrize("kind", POLICIES)
def test_policies_go_to_another_topic_and_back(
    kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(line: str) -> str:
        capsys.readouterr()
        assert main(line.split()) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    def row(topic: str) -> dict[str, object]:
        shown: dict[str, object] = json.loads(run(f"policy {kind} get -t {topic} --json"))
        return {**shown, "topic": None}

    run("topic create b -q")
    before = row("b")
    data = run(f"policy {kind} get -t a --json").encode()
    given(monkeypatch, data)
    run(f"policy {kind} set - -t b")  # all are inherited
    assert row("b") == before
    run(f"policy {kind} set -t a {POLICIES[kind]}")
    data = run(f"policy {kind} get -t a --json").encode()
    given(monkeypatch, data)
    run(f"policy {kind} set - -t b")
    assert row("b") == row("a") != before
    given(monkeypatch, data)
    assert json.loads(run(f"policy {kind} set - --json"))["changed"] is False  # of a itself


def test_policies_of_a_subscription_go_to_another(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for line in (
        "sub create x -t a",
        "sub create y -t a",
        "policy alert set -t a -s x --backlog 5",
    ):
        assert main(line.split()) == 0
    capsys.readouterr()
    assert main("policy alert get -t a -s x --json".split()) == 0
    given(monkeypatch, capsys.readouterr().out.encode())
    assert main("policy alert set - -s y --json".split()) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["topic"], row["subscription"]) == ("a", "y")
    assert (row["policies"]["backlog_messages"], row["changed"]) == (5, True)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xff", b"{", b"[1]", b"{}", b"[" * 5000, b'{"policies":1,"origins":{}}',
        b'{"policies":{"nope":1},"origins":{}}', b'{"policies":{"retention_ms":[]},"origins":{}}',
        b'{"policies":{"retention_ms":"x"},"origins":{"retention_ms":"store"}}',
        b'{"policies":{"retention_ms":-5},"origins":{"retention_ms":"store"}}',
        b'{"policies":{"retention_acked":"x"},"origins":{"retention_acked":"store"}}',
    ],
)  # fmt: skip
def test_hostile_policies_are_one_line(
    data: bytes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, data)
    assert main("policy retention set - -t a".split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and "Traceback" not in err and "bug" not in err


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

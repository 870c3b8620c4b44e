"""Tests that an error of a command line shows the line that would work."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.terminal import shown
from txlog.cli.help.completion import candidates
from txlog.cli.main import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture) -> Path:
    """A store with a topic, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TXLOG_STORE", str(tmp_path / "s"))
    assert main(["init", "s"]) == 0
    assert main(["topic", "create", "orders"]) == 0
    assert main(["produce", "orders", "-m", "a"]) == 0
    (tmp_path / "slow.py").write_text("def f(message): return message.value\n")
    (tmp_path / "x.jsonl").write_text('{"a":1}\nno json\n')
    capfd.readouterr()
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "texts"),
    [
        ("export orders -f csv", ["--to csv writes this format"]),
        ("export orders -f cvs", ["-f takes auto"]),
        (
            "run slow.py:f --input orders -s s --parallelism 4 -n 10",
            ["--parallelism and -n exclude each other"],
        ),
        ("run ./slow:f --input orders -s s", ["names a file: ./slow.py:f"]),
        ("run slow:f --input orders -s s", ["no module slow", "slow.py:FUNCTION"]),
        ("topic copy orders ../other", ["no store at", "txlog init "]),
        ("topic copy a b c", ["it is: txlog topic copy TOPIC"]),
        ("restore backup", ["missing argument 'STORE'", "txlog restore backup STORE"]),
        ("produce orders hello", ["no file hello", "-m TEXT"]),
        ("watermark set orders now", ["txlog watermark set orders now --producer"]),
        ("topic copy orders", ["another store, or another name: --as"]),
        ("sub seek orders billing x --to start", ["txlog sub seek SUB --to BOUND -t TOPIC"]),
        ("policy delayed get orders x", ["the topic is a flag: -t "]),
        ("import x.jsonl days", ["--create makes it here", "--infer-schema a typed one"]),
        ("sub create billing orders", ["orders is a topic: txlog sub create billing -t orders"]),
        ("produce orders -m x --deliver-at tomorrrow", ["tomorrow 9:00"]),
        ("policy delayed set --topic", ["option '--topic' requires an argument"]),
        ("topic list --json -f csv", ["--json and -f csv exclude each other"]),
        ("produce orders x.jsonl", ["line 2: not JSON", "--in lines", "--on-error"]),
        ("import x.jsonl orders", ["line 2: not a JSON object", "--in lines", "--on-error"]),
    ],
)
def test_an_error_shows_the_line_that_works(
    typed: str, texts: list[str], store: Path, capfd: Capture
) -> None:
    assert main(typed.split()) != 0
    out, err = capfd.readouterr()
    assert out == ""
    for text in texts:
        assert text in err


def test_binary_export_to_a_terminal_is_refused(store: Path) -> None:
    """Kills: Parquet on the screen."""
    words = [sys.executable, "-m", "txlog", "export", "orders", "-"]
    screen = shown(words, dict(os.environ), code=2)
    assert "PAR1" not in screen
    assert "--to csv" in screen


@pytest.mark.parametrize("command", ["top", "admin list-transaction-keys"])
def test_help_of_topic_says_what_it_filters(command: str, capfd: Capture) -> None:
    assert main([*command.split(), "--help"]) == 0
    out = " ".join(capfd.readouterr().out.split())
    assert "needed where several" not in out
    assert any(word in out.partition("--topic T")[2][:60] for word in ("only", "the same as TOPIC"))


def test_connect_says_what_it_fenced(store: Path, capfd: Capture) -> None:
    assert main(["txn", "connect", "nightly"]) == 0
    assert "fenced" not in capfd.readouterr().err
    assert main(["txn", "begin", "--transaction-key", "nightly"]) == 0
    txn = capfd.readouterr().out.strip()
    assert main(["txn", "connect", "nightly"]) == 0
    out, err = capfd.readouterr()
    assert out.strip().isdigit()
    assert f"fenced transaction {txn} of nightly" in err


def test_produce_says_when_a_message_is_due(
    store: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    words = ["produce", "orders", "-m", "x", "--deliver-at"]
    assert main([*words, "2100-01-02T09:00Z", "--utc"]) == 0
    assert ", due 2100-01-02 09:00:00Z" in capfd.readouterr().err
    assert main([*words, "2020-01-02T09:00Z", "-v"]) == 0
    err = capfd.readouterr().err
    assert "delivered at once" in err
    assert ", due" not in err


def test_the_topics_of_the_dead_letters_of_a_topic_are_listed(store: Path, capfd: Capture) -> None:
    assert main(["topic", "create", "orders-billing-DLQ", "other-billing-DLQ"]) == 0
    assert main(["sub", "create", "billing", "-t", "orders"]) == 0
    capfd.readouterr()
    assert main(["dlq", "list", "orders", "-f", "names"]) == 0
    assert capfd.readouterr()[0] == "orders-billing-DLQ\n"


def test_a_deletion_names_all_that_it_needs(store: Path, capfd: Capture) -> None:
    """Guards against a second refusal after the advised flag."""
    assert main(["sub", "create", "billing", "-t", "orders"]) == 0
    assert main(["topic", "delete", "orders", "--no-input"]) != 0
    line = capfd.readouterr()[1].rpartition(": ")[2].split()
    assert line == ["txlog", "topic", "delete", "orders", "--force", "--yes"]
    assert main(line[1:]) == 0


def test_merge_says_when_a_bucket_is_full(store: Path, capfd: Capture) -> None:
    assert main(["sub", "create", "s", "-t", "orders", "--type", "shared"]) == 0
    assert main(["produce", "orders", "-m", "x", "--deliver-after", "1h"]) == 0
    capfd.readouterr()
    assert main(["delay", "merge", "orders"]) == 0
    err = capfd.readouterr().err
    assert "no bucket is full yet: 1 delayed message" in err
    assert "500,000 messages (mutable_ids_max)" in err
    assert "more than 5 ledgers (ledger_step_per_bucket)" in err


def test_a_merge_without_a_topic_says_what_there_is_to_merge(store: Path, capfd: Capture) -> None:
    assert main(["delay", "merge"]) == 0
    out, err = capfd.readouterr()
    assert (out, err) == ("", "no topic has a sealed bucket: nothing to merge\n")
    assert main(["config", "set", "mutable_ids_max", "1"]) == 0
    assert main(["sub", "create", "s", "-t", "orders", "--type", "shared"]) == 0
    for _ in range(5):
        line = ["produce", "orders", "-m", "x", "--deliver-after", "1h", "-p", "0"]
        assert main(line) == 0
    capfd.readouterr()
    assert main(["delay", "merge"]) == 0
    err = capfd.readouterr().err
    assert "max_num_buckets keeps 20 in each partition, and none has more than 5" in err
    line = err.strip().partition("for fewer: txlog ")[2].split()
    assert line == ["delay", "merge", "orders", "--to", "2"]
    assert main(line) == 0
    assert "5 sealed buckets before, 2 after" in capfd.readouterr().err
    assert main(["delay", "merge", "--to", "1", "--json"]) == 0
    assert '"buckets_after":1' in capfd.readouterr().out
    assert main(["delay", "merge"]) == 0
    assert "no partition has two of them" in capfd.readouterr().err


def test_a_new_key_is_named_on_a_terminal(store: Path, capfd: Capture) -> None:
    assert main(["txn", "connect", "typo", "-v"]) == 0
    out, err = capfd.readouterr()
    assert out == "0\n"
    assert "note: key typo is new: epoch 0, it fenced nobody" in err
    assert main(["txn", "connect", "typo", "-v"]) == 0
    out, err = capfd.readouterr()
    assert out == "1\n"
    assert "is new" not in err
    assert main(["txn", "connect", "other"]) == 0
    assert "is new" not in capfd.readouterr().err


def test_an_ordinary_topic_has_no_dead_letters(store: Path, capfd: Capture) -> None:
    assert main(["produce", "orders", "-m", "x"]) == 0
    assert main(["sub", "create", "s", "-t", "orders"]) == 0
    capfd.readouterr()
    assert main(["dlq", "list", "orders", "--json"]) == 0
    out, err = capfd.readouterr()
    assert out == "[]\n"
    assert "no subscription has orders as its dead-letter topic" in err
    assert main(["produce", "orders", "-m", "y", "--prop", "REAL_TOPIC=bills"]) == 0
    capfd.readouterr()
    assert main(["dlq", "list", "orders", "-f", "names"]) == 0
    out, err = capfd.readouterr()
    assert "no subscription" not in err
    assert out


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("topic delete nosuch", "txlog topic list shows those that exist"),
        ("topic rename nosuch other", "txlog topic list shows those that exist"),
        ("sub seek nosuch -t orders --to end", "txlog sub list shows those that exist"),
        ("dlq list nosuch", "txlog dlq list shows those that exist"),
        ("dlq retry nosuch --all", "txlog topic list shows those that exist"),
        ("produce nosuch -m x", "create it: txlog topic create nosuch"),
    ],
)
def test_what_a_command_would_delete_is_not_to_be_created(
    line: str, hint: str, store: Path, capfd: Capture
) -> None:
    assert main([*line.split(), "--yes"]) == 3
    assert f"hint   {hint}\n" in capfd.readouterr().err


def test_the_topic_of_an_import_may_come_first(store: Path, capfd: Capture) -> None:
    (store / "rows.csv").write_text("id,at\n1,2026-11-20T10:15:00Z\n")
    assert main(["import", "rows", "rows.csv", "--create", "--infer-schema"]) == 0
    assert "schema of rows: id: an integer of 64 bits, at: a t" in capfd.readouterr().err
    assert main(["import", "none.csv", "rows.csv", "--create"]) != 0
    assert "none.csv" in capfd.readouterr().err


@pytest.mark.parametrize(
    "line", ["import odd.csv odd --create --infer-schema", "produce odd odd.csv --create"]
)
def test_a_header_gives_names_that_fields_can_have(line: str, store: Path, capfd: Capture) -> None:
    (store / "odd.csv").write_text("Unit Price,unit-Price,id\n2.5,a,1\n")
    assert main(line.split()) == 0
    err = capfd.readouterr().err
    assert '"Unit Price" is the field Unit_Price, "unit-Price" is the field unit_Price_2' in err
    (store / "more.csv").write_text("id,Unit Price,unit-Price\n2,3,b\n")
    for again in ("import more.csv odd", "produce odd more.csv"):
        assert main(again.split()) == 0
    capfd.readouterr()
    assert (
        main(["query", "SELECT record.Unit_Price, record.unit_Price_2 FROM odd", "-f", "tsv"]) == 0
    )
    assert sorted(capfd.readouterr().out.splitlines()[1:]) == ["2.5\ta", "3.0\tb", "3.0\tb"]


@pytest.mark.parametrize("text", ["a;b,c\n1;2,5\n", "a;b,c;d\n1;2\n", "a;b\n1;2\n"])
def test_a_csv_without_commas_says_so(text: str, store: Path, capfd: Capture) -> None:
    (store / "odd.csv").write_text(text)
    code = main(["import", "odd.csv", "odd", "--create", "--infer-schema"])
    err = capfd.readouterr().err
    assert ("has commas between its fields" in err) == (code != 0)


@pytest.mark.parametrize(
    ("column", "heading"),
    [
        ("value->>'name'", "value ->> 'name'"),
        ("m.value->>'name'", "m.value ->> 'name'"),
        ("value->>'name' AS n", "n"),
    ],
)
def test_headings_of_a_query_show_no_internal_function(
    column: str, heading: str, store: Path, capfd: Capture
) -> None:
    assert main(["topic", "create", "json"]) == 0
    assert main(["produce", "json", "-m", '{"name":"x"}']) == 0
    capfd.readouterr()
    assert main(["query", f"SELECT {column} FROM json m", "-f", "tsv"]) == 0
    out, err = capfd.readouterr()
    assert out.splitlines() == [heading, "x"]
    assert "read" not in err, "the message is in no file yet"


@pytest.mark.parametrize(
    ("line", "name"), [("txlog topic delete ", "orders"), ("txlog sub delete ", "billing")]
)
def test_names_are_completed_where_stdin_may_have_them(
    line: str, name: str, store: Path, capfd: Capture
) -> None:
    assert main(["sub", "create", "billing", "-t", "orders"]) == 0
    assert name in [row[0] for row in candidates([*line.split(" ")[1:]])]

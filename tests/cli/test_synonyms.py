"""Words of other tools: those that only read work, others are hints that lose no more."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.tiers import graded
from txlog import errors
from txlog.cli.line import catalogue, synonyms
from txlog.cli.line.catalogue import COMMANDS, NOUNS
from txlog.cli.line.dispatch import load
from txlog.cli.line.parameters import parameters_of
from txlog.cli.main import main

Capture = pytest.CaptureFixture[str]
level_of = catalogue.vocabulary().level_of


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TXLOG_STORE", str(tmp_path / "s"))
    assert main(["init", str(tmp_path / "s")]) == 0
    assert main(["topic", "create", "orders", "-p", "4"]) == 0
    assert main(["produce", "orders", *("-m", "a", "-m", "b", "-m", "c"), "-p", "0"]) == 0
    capfd.readouterr()
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("ls", "topic list"),
        ("topic ls", "topic list"),
        ("topics ls", "topic list"),
        ("sub ls", "sub list"),
        ("groups", "sub list"),
        ("keys", "admin list-transaction-keys"),
        ("txn keys", "admin list-transaction-keys"),
        ("topic info orders", "topic describe orders"),
        ("policy retention show -t orders", "policy retention get -t orders"),
        ("cat orders", "consume orders"),
        ("version", "--version"),
        ("completion bash", "completion show bash"),
        ("sql SELECT(1)", "query SELECT(1)"),
        ("groups list", "sub list"),
        ("group ls", "sub list"),
        ("consumer list", "sub list"),
        ("consumer-groups list --json", "sub list --json"),
        ("ls orders", "topic describe orders"),
        ("info orders", "topic describe orders"),
        ("tail orders", "peek orders --last 10"),
        ("tail orders -n 2", "peek orders --last 2"),
        ("tail -2 orders", "peek orders --last 2"),
        ("topic tail orders --lines=2", "peek orders --last 2"),
        ("head orders -n1", "peek orders --first 1"),
        ("head orders", "peek orders --first 10"),
        ("select topic from orders", "query SELECT\u00a0topic\u00a0from\u00a0orders"),
    ],
)
def test_a_synonym_that_only_reads_works(
    typed: str, meant: str, store: Path, capfd: Capture
) -> None:
    assert main(typed.split()) == 0
    typed_output = capfd.readouterr().out
    assert main([word.replace("\u00a0", " ") for word in meant.split(" ")]) == 0
    assert typed_output == capfd.readouterr().out


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("rm orders", "did you mean: txlog topic delete orders, txlog sub delete orders"),
        ("reset billing", "did you mean: txlog sub seek billing --to start"),
        ("sub reset", "txlog sub seek SUB --json --to start"),
        ("topic seek", "did you mean: txlog sub seek SUB --to BOUND"),
        ("topic destroy orders", "did you mean: txlog topic delete orders"),
        ("sub drain 'my sub'", "did you mean: txlog sub clear-backlog 'my sub'"),
        ("schedule o", "did you mean: txlog produce o --deliver-at TIME, txlog delay list o"),
        ("topic delet", "did you mean: txlog topic delete NAME"),
        ("sub delay", "txlog sub -h lists the commands"),
    ],
)
def test_a_synonym_that_changes_is_a_hint(
    typed: str, hint: str, store: Path, capfd: Capture
) -> None:
    assert main([*shlex.split(typed), "--json"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert json.loads(err)["error"]["hint"] == hint


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("group describe billing", "sub describe billing"),
        ("lag billing", "sub describe billing"),
        ("settings get key", "config get key"),
        ("retention get orders", "policy retention get orders"),
        ("tail orders -n 1 -F", "consume orders -F --offset=-1"),
        ("tail orders -f", "consume orders -F --offset=-10"),
        ("tail orders -f json", "peek orders -f json --last=10"),
        ("group delete billing", "sub delete billing"),
        ("consumer reset billing", "sub seek billing --to start"),
        ("select", "query"),
        ("topic rm orders", "topic delete orders"),
        ("topic remove orders --yes", "topic delete orders --yes"),
        ("sub reset billing", "sub seek billing --to start"),
        ("sub reset orders billing --to-latest", "sub seek orders billing --to-latest"),
        ("sub reset billing earliest", "sub seek billing earliest"),
        ("sub rewind billing -y", "sub seek billing -y --to start"),
        ("backup place", "copy place"),
        ("send orders -m x", "produce orders -m x"),
        ("load a.csv orders", "import a.csv orders"),
        ("txn rollback 0:1", "txn abort 0:1"),
        ("fence nightly", "txn connect nightly"),
        ("txn-key fence nightly", "txn connect nightly"),
        ("transaction-keys", "admin list-transaction-keys"),
        ("dlq replay orders-a-DLQ --all", "dlq retry orders-a-DLQ --all"),
        ("delay merge-buckets orders", "delay merge orders"),
        ("ps", "admin locks"),
        ("who billing", "sub describe billing"),
        ("sub consumers billing", "sub describe billing"),
        ("tail -f orders", "consume -F orders --offset=-10"),
    ],
)
def test_a_line_of_other_tools_becomes_ours(typed: str, meant: str) -> None:
    assert catalogue.expanded(typed.split()) == meant.split()


def test_every_synonym_without_and_with_arguments(store: Path, capfd: Capture) -> None:
    """Each line runs, or its error names the missing or the surplus argument."""
    waits = ("consume -F", "top ", "doctor", "produce", "copy ")
    for word, meaning in synonyms.LINES.items():
        for name in ([], ["orders"], ["billing"], ["list"]):
            typed = [*word.split(), *name]
            line = " ".join(catalogue.expanded(typed))
            if f"{line} ".startswith(waits):
                continue
            code = main([*typed, "--json"])
            out, err = capfd.readouterr()
            error = json.loads(err)["error"] if err.startswith('{"error"') else {}
            assert code in (0, 1, 2, 3, 4, 9), (typed, err)
            assert code == 0 or out == "", typed
            assert "duration" not in error.get("message", ""), typed
            if line == " ".join(typed) and typed[0] not in (*COMMANDS, *NOUNS):
                assert meaning.level != synonyms.READS or not set(meaning.targets) & {*COMMANDS}
                assert error["hint"].startswith(
                    ("did you mean: txlog ", "txlog lists", "a topic keeps its name", "no command")
                ), typed


def test_sub_create_takes_the_topic_first_and_answers_the_other_order(
    store: Path, capfd: Capture
) -> None:
    assert main(["sub", "create", "orders", "billing"]) == 0
    assert main(["sub", "create", "audit", "orders", "--json"]) == 3
    hint = json.loads(capfd.readouterr().err.splitlines()[-1])["error"]["hint"]
    assert hint == "orders is a topic: txlog sub create audit -t orders"


def test_count_is_a_query(store: Path, capfd: Capture) -> None:
    assert main(["count", "orders", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == [{"messages": 3}]
    for by in (["--by", "partition"], ["--group-by=partition"]):
        assert main(["count", "orders", *by, "--json"]) == 0
        assert json.loads(capfd.readouterr().out) == [{"partition": 0, "messages": 3}]


def test_words_of_commands_to_come_lead_to_them() -> None:
    words = synonyms.Vocabulary(
        dict.fromkeys(["du", "restore", "topic rename"]),
        ["topic"],
        {},
        {"restore": synonyms.CHANGES, "topic rename": synonyms.CHANGES},
    )
    assert words.expanded(["disk", "-q"]) == ["du", "-q"]
    assert words.hint(["topic", "mv"]) == "did you mean: txlog topic rename"
    assert words.hint(["rename"]) == "did you mean: txlog topic rename"
    assert words.expanded(["mv", "a", "b"]) == ["topic", "rename", "a", "b"]


@pytest.mark.parametrize("nouns", graded([["", *[*NOUNS][:3]], [*NOUNS][3:]], 1), ids=len)
def test_no_suggestion_loses_more_than_the_typed_word(nouns: list[str]) -> None:
    """Tries every word after every noun, also the words that run like the command they mean."""
    words = catalogue.vocabulary().words
    for noun in nouns:
        for word, level in words.items():
            typed = [*noun.split(), word]
            line = catalogue.expanded(typed)
            if line != typed:
                assert level_of(path_of(line)) <= level, typed
            try:
                catalogue.resolve(typed)
            except errors.Usage as error:
                for path in suggested(error):
                    assert level_of(path) <= level, (typed, path)


@pytest.mark.parametrize("nouns", graded([["topic"], ["", "sub", "txn", "delay"]], 1), ids=len)
def test_a_slip_leads_to_a_loss_only_if_it_is_close(nouns: list[str]) -> None:
    """One letter left out of a word that loses nothing never suggests a command that does."""
    words = catalogue.vocabulary().words
    for noun in nouns:
        for word, level in words.items():
            if level >= synonyms.MOVES:
                continue
            for at in range(0, len(word), 2):
                typed = [*noun.split(), word[:at] + word[at + 1 :]]
                if not typed[-1] or typed[-1] in words:
                    continue
                for path in suggested_for(typed):
                    assert level_of(path) < synonyms.MOVES, (typed, path)


def suggested_for(typed: list[str]) -> list[str]:
    try:
        catalogue.resolve(typed)
    except errors.Usage as error:
        return suggested(error)
    return []


def path_of(words: list[str]) -> str:
    """The command that a line begins with."""
    paths = [" ".join(words[:used]) for used in (3, 2, 1)]
    return next((path for path in paths if path in COMMANDS), "")


def suggested(error: errors.Usage) -> list[str]:
    """The commands that the hint names."""
    hint = error.hint or ""
    if not hint.startswith("did you mean: "):
        return []
    return [
        path_of(line.removeprefix("txlog ").split())
        for line in hint.removeprefix("did you mean: ").split(", ")
    ]


def test_every_target_of_a_synonym_can_be_typed() -> None:
    """A target that is no command belongs to a noun or a word that the catalogue will have."""
    to_come = {"topic rename", "diff"}
    for word, meaning in synonyms.LINES.items():
        for line in meaning.targets:
            path = line.partition(" -")[0]
            has_argument = path.rpartition(" ")[0] in COMMANDS
            is_ours = line.startswith("--") or path in COMMANDS or path in to_come
            assert is_ours or has_argument, word
        assert word not in COMMANDS or word in meaning.targets, word


def test_commands_with_destructive_names_say_what_they_lose() -> None:
    for path in COMMANDS:
        if re.search(r"\b(delete|trim|gc|purge|clear|expire|abort|cancel|skip)", path):
            assert level_of(path) >= synonyms.MOVES, path


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("sub delete billing --bootstrap-server x", "--store"),
        ("status --force", "--yes"),
        ("topic create x --replication-factor 3", "txlog topic create -h lists the flags"),
        ("txn list --keys", "txlog admin list-transaction-keys"),
        ("topic list --jsonn", "--json"),
        ("export orders --once", "txlog export -h lists the flags"),
        ("status --jsn", "--json"),
        ("status --sort x", "txlog status -h lists the flags"),
        ("status --nothing-alike", "txlog status -h lists the flags"),
    ],
)
def test_an_unknown_flag_leads_to_the_right_one(
    typed: str, hint: str, store: Path, capfd: Capture
) -> None:
    assert main(typed.split()) == 2
    assert hint in capfd.readouterr().err


def test_a_flag_that_allows_a_loss_is_not_guessed() -> None:
    """Kills: `--once` leads to `--force`."""
    for path in COMMANDS:
        flags = {
            name: each.help
            for each in parameters_of(load(path))
            for name in each.names
            if each.is_flag
        }
        for word in (
            "--once",
            "--for",
            "--source",
            "--reply",
            "--yet",
            "--accept",
        ):
            hint = synonyms.flag_hint(word, flags, path) or ""
            if word not in flags:
                assert not re.search(r"--(yes|force|accept|all|apply)", hint), (path, word, hint)


def test_no_color_is_color_never(store: Path, capfd: Capture) -> None:
    assert main(["status", "--color", "always", "-f", "table"]) == 0
    assert "\x1b[" in capfd.readouterr().out
    for line in (["--no-color", "status"], ["status", "--color", "always", "--no-color"]):
        assert main([*line, "-f", "table"]) == 0
        assert "\x1b[" not in capfd.readouterr().out

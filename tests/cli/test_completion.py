"""Completion: the words that may follow, names of the store, and real shells that ask for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import txlog
from scripts import ready
from tests.harness import python
from tests.harness import run as run_child
from tests.source_tree import SOURCE
from tests.terminal import typed
from txlog.cli.commands.completion import SHELLS, script
from txlog.cli.help import completion as completion
from txlog.cli.help.completion import FILES, answer, candidates, split_line
from txlog.cli.line import catalogue
from txlog.cli.main import main
from txlog.engine.door import relation
from txlog.engine.door.relation import RelationReader


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with topics, subscriptions, a key and transactions."""
    folder = tmp_path_factory.mktemp("shop")
    txlog.init(str(folder), coordinators=2)
    with txlog.open(str(folder)) as client:
        client.create_topic("orders", 2)
        client.create_topic("audit")
        client.create_topic("acme/books/ledger")
        client.create_subscription("orders", "billing")
        client.create_subscription("audit", "billing")
        client.create_subscription("audit", "watching")
        client.connect("nightly")
        ended, unfinished = client.begin()["txn"], client.begin()["txn"]
        client.abort(ended)
        assert (str(ended), str(unfinished)) == ("0:0", "1:0")
    return folder


@pytest.fixture
def here(shop: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The same, as the working directory, with nothing else set."""
    for name in [name for name in os.environ if name.startswith("TXLOG")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(shop / "nothing"))
    monkeypatch.chdir(shop)
    yield shop


def words(*line: str) -> list[str]:
    return [word for word, _ in candidates(list(line))]


def test_the_first_word_is_any_command_or_noun(here: Path) -> None:
    assert words("") == sorted({path.split()[0] for path in catalogue.COMMANDS})
    assert words("pe") == ["peek"]
    assert words("topic", "") == sorted(
        path.split()[1] for path in catalogue.COMMANDS if path.startswith("topic ")
    )
    assert words("policy", "delayed", "") == ["get", "remove", "set"]
    assert words("topics", "des") == ["describe"]  # an alias leads to the same
    assert words("nothing", "") == []
    assert all(meaning for _, meaning in candidates([""]))


def test_global_flags_before_the_command_are_passed_over(here: Path, tmp_path: Path) -> None:
    assert words("--json", "-S", "x", "topic", "des") == ["describe"]
    assert "--store" in words("--s")
    assert words("-S", "") == [FILES]
    assert words("-S", str(here), "consume", "or") == ["orders"]
    assert words("consume", "or", "--store", str(tmp_path)) == [FILES]
    assert words(f"--store={here}", "consume", "or") == ["orders"]
    assert words("-S", str(tmp_path / "no"), "consume", "") == []


@pytest.mark.parametrize(
    ("line", "candidates"),
    [
        ("consume ", ["acme/books/ledger", "audit", "orders"]),
        ("consume o", ["orders"]),
        ("consume orders a", ["acme/books/ledger", "audit"]),
        ("topic describe o", ["orders"]),
        ("topic create o", []),
        ("topic create --partitions ", []),
        ("sub create new -t a", ["acme/books/ledger", "audit"]),
        ("sub create b", []),
        ("sub describe ", ["billing", "watching"]),
        ("sub describe -t orders ", ["billing"]),
        ("consume orders -s ", ["billing", "watching"]),
        ("consume orders --subscription=", ["--subscription=billing", "--subscription=watching"]),
        ("txn connect n", ["nightly"]),
        ("produce orders --txn --transaction-key ", ["nightly"]),
        ("txn commit ", ["1:0"]),
        ("txn show ", ["1:0", "0:0"]),
        ("produce orders --txn-id ", ["1:0"]),
        ("admin online orders", ["orders/0", "orders/1"]),
        ("consume orders -o sub=w", ["sub=watching"]),
        ("consume orders --ack ", ["auto", "none", "on-exit"]),
        ("consume orders --isolation u", ["uncommitted"]),
        ("sub create x -t orders --isolation c", ["committed"]),
        ("sub create x -t orders --type k", ["key-shared"]),
        ("topic list --format c", ["csv"]),
        ("topic create --format j", ["json"]),
        ("topic list --columns topic,par", ["topic,partitions"]),
        ("topic list --columns topic,topi", []),
        ("init ", [FILES]),
        ("help off", ["offsets"]),
        ("help TXL-40", [f"TXL-{code}" for code in range(401, 410)]),
        ("config get txn_timeout", ["txn_timeout_default_ms", "txn_timeout_max_ms"]),
        ("completion install ", ["bash", "zsh", "fish"]),
        ("consume orders --no-j", ["--no-join"]),
        ("txn expire ", []),
    ],
)
def test_candidates_at_each_position(line: str, candidates: list[str], here: Path) -> None:
    # transactions of one millisecond come in either order
    assert sorted(words(*line.split(" "))) == sorted(candidates)


def test_a_flag_that_was_given_is_not_offered_again(here: Path) -> None:
    assert "--until" in words("consume", "orders", "-")
    assert "--until" not in words("consume", "orders", "--until", "end", "-")
    assert "--partition" in words("consume", "orders", "-p", "1", "-")  # it may be repeated
    assert "-n" in words("consume", "orders", "-")  # it has no long form


def test_every_flag_and_argument_is_completed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a metavar that makes completion fail, which a user sees only as missing candidates."""
    monkeypatch.setattr(completion, "_names", lambda kind, words_before: [])
    from txlog.cli.line.dispatch import load
    from txlog.cli.line.parameters import parameters_of

    for path in catalogue.COMMANDS:
        for each in parameters_of(load(path)):
            if each.is_flag and each.metavar:
                candidates([*path.split(), each.name, ""])
        candidates([*path.split(), ""])
        assert "--help" in words(*path.split(), "--")


def test_profiles_come_from_the_user_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(here / "config"))
    assert main(["config", "set", "--user", "shop.store", str(here)]) == 0
    assert words("--profile", "") == words("topic", "list", "--profile", "s") == ["shop"]
    monkeypatch.chdir("/")
    assert words("--profile", "shop", "consume", "or") == ["orders"]


def test_a_line_is_divided_as_a_shell_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP", "/data/shop")
    assert split_line("txlog con") == ["txlog", "con"]
    assert split_line("txlog con ") == ["txlog", "con", ""]
    assert split_line("txlog -S '/a b' c\\ d e") == ["txlog", "-S", "/a b", "c d", "e"]
    assert split_line('txlog query "SELECT ') == ["txlog", "query", "SELECT "]
    assert split_line("txlog -S $SHOP ") == ["txlog", "-S", "/data/shop", ""]
    assert split_line("txlog $(rm x) ") == ["txlog", "$(rm", "x)", ""]


def test_completion_is_silent_about_failures(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # no store here
    assert answer(["consume", ""]) == 0
    assert answer(["--line"]) == 0
    (tmp_path / "txlog.toml").write_text("broken")
    assert answer(["consume", ""]) == 0
    assert capfd.readouterr() == ("", "")


def test_completion_neither_locks_nor_writes(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def state() -> dict[str, tuple[int, bytes]]:
        files = (path for path in here.rglob("*") if path.is_file())
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    opened = []

    def spied(path: str, *, read_only: bool) -> RelationReader:
        opened.append(read_only)
        return open_relations(path, read_only=read_only)

    open_relations = relation.open_relations
    monkeypatch.setattr(relation, "open_relations", spied)
    state_before = state()
    for line in ("consume ", "sub describe ", "txn show ", "txn connect "):
        assert words(*line.split(" "))
    assert state() == state_before
    assert opened == [True] * 4


def test_verbs_are_completed_without_loading_commands() -> None:
    """A shell asks at every key press, so verbs come from the table, without Typer or Arrow."""
    done = run_child(python("loaded", "typer pyarrow duckdb", "__complete", "txn", "c"))
    assert done.stderr == "0 []\n"
    assert done.stdout.splitlines() == [
        "commit\tcommit transactions",
        "connect\ttake a key, fence its last holder",
    ]


@pytest.mark.parametrize("shell", SHELLS)
def test_install_may_be_repeated(
    shell: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    places = {
        "bash": "data/bash-completion/completions/txlog",
        "zsh": "data/zsh/site-functions/_txlog",
        "fish": "config/fish/completions/txlog.fish",
    }
    for changed in (True, False):
        assert main(["completion", "install", shell, "--json"]) == 0
        answer = json.loads(capfd.readouterr().out)
        assert answer == {"path": str(tmp_path / places[shell]), "changed": changed}
        assert (tmp_path / places[shell]).read_text() == script(shell)
    assert main(["completion", "show"]) == 0  # the script for $SHELL
    assert capfd.readouterr().out == script(shell)


def test_another_shell_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert main(["completion", "show"]) == 2
    assert main(["completion", "show", "ksh"]) == 2


@pytest.fixture
def on_path(tmp_path: Path, here: Path) -> dict[str, str]:
    """An environment with a `txlog` on the path that starts fast."""
    ready.tool(tmp_path / "txlog")
    return {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "LC_ALL": "C.UTF-8",
        "HOME": str(tmp_path),
        "TERM": "dumb",
        "PS1": "> ",
        "PYTHONPATH": str(SOURCE),
    }


def test_bash_completes_the_right_word(on_path: dict[str, str], tmp_path: Path) -> None:
    """readline divides words at colons and equal signs; quotes, pipes and files are the shell's."""
    (tmp_path / "script").write_text(script("bash"))
    cases = {
        "txlog cons": ["consume"],
        "txlog consume -s bil": ["billing"],
        "txlog txn show ": ["0:0", "1:0"],
        "txlog txn show 1": ["1:0"],
        "txlog txn show 1:": ["0"],
        "txlog consume orders -o sub=w": ["watching"],
        "txlog produce orders --txn-id=": ["1:0"],
        f"txlog -S '{Path.cwd()}' consume or": ["orders"],
        'txlog query "SELECT 1" --lim': ["--limit"],
        "txlog init ./txlog.t": ["./txlog.toml"],
        "txlog nothing ": [],
    }
    lines = [f"source {tmp_path}/script", "shopt -s extglob"]
    for line in cases:
        lines.append(
            f"COMP_LINE={_quoted(line)} COMP_WORDS=(txlog); COMP_POINT=${{#COMP_LINE}}; _txlog;"
            'printf "%s\\t" "${COMPREPLY[@]}"; echo'
        )
    done = subprocess.run(
        ["bash", "--norc", "-c", "\n".join(lines)],
        env=on_path,
        capture_output=True,
        text=True,
        check=True,
    )
    candidates = [sorted(line.split("\t")[:-1]) for line in done.stdout.splitlines()]
    assert dict(zip(cases, candidates, strict=True)) == {
        line: sorted(words) or [""] for line, words in cases.items()
    }
    assert done.stderr == ""


def test_a_person_at_bash(on_path: dict[str, str], tmp_path: Path) -> None:
    """A real terminal: Tab completes behind a pipe, and the completed line runs."""
    (tmp_path / "script").write_text(script("bash"))
    screen = typed(
        ["bash", "--norc", "--noprofile", "-i"],
        on_path,
        [
            (f"source {tmp_path}/script\n", "> "),
            ("true | txlog topi\tli\t-f na\t", "names "),
            ("\n", "orders"),
        ],
    )
    assert "true | txlog topic list -f names" in screen
    assert "audit\r\norders" in screen


@pytest.mark.needs("zsh")
def test_a_person_at_zsh(on_path: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "_txlog").write_text(script("zsh"))
    screen = typed(
        ["zsh", "-f", "-i"],
        on_path,
        [
            (f"fpath=({tmp_path} $fpath); autoload -Uz compinit; compinit -u -D\n", "> "),
            ("txlog topi\tli\t-f na\t", "names"),
            ("\n", "orders"),
            ("txlog topic describe --no-color --json or\t", "orders "),
            ("\n", '"partitions"'),
        ],
    )
    assert "audit\r\norders" in screen
    assert '"topic": "orders"' in screen or '"topic":"orders"' in screen


@pytest.mark.needs("fish")
def test_fish_gets_words_and_meanings(on_path: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "txlog.fish").write_text(script("fish"))
    code = f"source {tmp_path}/txlog.fish; complete -C'txlog txn show '; complete -C'txlog topi'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", code], env=on_path, capture_output=True, text=True, check=True
    )
    assert sorted(done.stdout.splitlines()) == ["0:0\taborted", "1:0\topen", "topic\ttopics"]


def test_completion_in_a_process_of_its_own(here: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "txlog", "__complete", "--line", "txlog consume o"],
        env={"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("orders\t2 partitions\n", "")
    assert completion.FILES not in done.stdout


def _quoted(line: str) -> str:
    return "'" + line.replace("'", "'\\''") + "'"

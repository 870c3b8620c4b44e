"""The shell: its lines, the state between lines, the end of a script, and use at a terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import txlog
from scripts import ready
from tests.screen import Screen
from tests.source_tree import SOURCE
from tests.tiers import graded
from txlog.cli.help.prompt import columns_of, is_whole, offered, relations
from txlog.cli.help.shell import OWN_WORDS
from txlog.cli.main import main

pytestmark = pytest.mark.usefixtures("quick_disk")


class Shell:
    """Runs scripts in this process; returns exit code, stdout and stderr."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capfd = capfd

    def run(self, *lines: str, flags: tuple[str, ...] = ()) -> tuple[int, str, str]:
        script = self.folder / "script.txlog"
        script.write_text("".join(f"{line}\n" for line in lines))
        self.capfd.readouterr()
        code = main(["shell", str(script), *flags])
        return code, *self.capfd.readouterr()


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Shell:
    """A store `shop` with a topic, named by the environment that the shell changes."""
    for name in ("TXLOG_STORE", "TXLOG_TXN", "TXLOG_FORMAT"):
        monkeypatch.setenv(name, "")  # restored after the test, as the shell may change them
    monkeypatch.chdir(tmp_path)
    txlog.init("shop", coordinators=2)
    with txlog.open("shop") as client:
        client.create_topic("orders")
    monkeypatch.setenv("TXLOG_STORE", str(tmp_path / "shop"))
    return Shell(tmp_path, capfd)


def test_a_script_runs_verbs_and_sql_in_one_process(shell: Shell) -> None:
    code, out, _ = shell.run(
        "# a remark",
        "",
        "produce orders -m 'one two'   # at the end",
        "txlog produce orders -m b",
        "SELECT count(*) AS n FROM orders;",
        "from orders select text(value) AS v order by v",
        "topic list \\",
        "  -f names",
        flags=("-q",),
    )
    assert (code, out) == (0, "n\n2\nv\nb\none two\norders\n")


def test_a_script_ends_with_its_first_error(shell: Shell) -> None:
    code, out, err = shell.run("topic list -f names", "topic describe nothing", "topic list")
    assert (code, out) == (3, "orders\n")
    assert err.count("error:") == 1
    code, out, err = shell.run(
        "nothing", "topic describe x", "topic list -f names", "'open", flags=("--keep-going",)
    )
    assert (code, out) == (2, "orders\n")
    assert err.count("error:") == 3
    assert shell.run("exit", "nothing")[0] == 0


def test_commands_between_begin_and_commit_join_the_transaction(shell: Shell) -> None:
    code, out, err = shell.run(
        "begin --timeout 5m",
        "produce orders -m a",
        "consume orders -f %v",
        "produce orders -m b",
        "commit",
        "consume orders -f '%x{state}:%v '",
    )
    assert (code, out) == (0, "committed:a committed:b ")
    assert "began 0:0" in err
    assert os.environ["TXLOG_TXN"] == ""  # as it was before


def test_transaction_left_open_by_begin_is_aborted(shell: Shell) -> None:
    """Also after a failing line: a script commits its whole transaction or nothing."""
    code, _, err = shell.run("begin", "produce orders -m a", "topic describe nothing", "commit")
    assert code == 3
    assert "transaction 0:0 was not committed: it is aborted" in err
    code, out, _ = shell.run("txn list --all --columns state,reason -f csv", "consume orders")
    assert (code, out) == (0, "state,reason\naborted,user\n")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["commit"], "no transaction was begun"),
        (["begin", "begin"], "transaction 0:0 is open"),
        (["use"], "one word"),
        (["use /nowhere"], "no store at /nowhere"),
        (["set X"], "NAME=VALUE"),
        (["shell"], "this is the shell"),
        (["begin --timeout soon"], "not a duration"),
    ],
)
def test_shell_words_refuse_senseless_arguments(
    lines: list[str], message: str, shell: Shell
) -> None:
    code, out, err = shell.run(*lines)
    assert code in (2, 3)
    assert out == ""
    assert message in err


def test_a_transaction_that_ended_elsewhere_is_let_go(shell: Shell) -> None:
    code, _, err = shell.run("begin", "txn abort", "commit", "abort", flags=("--keep-going",))
    assert code == 4
    assert "nothing to abort" in err


def test_another_store_and_variables(shell: Shell) -> None:
    code, out, _ = shell.run(
        "init other",
        "begin",
        "use other",
        "topic create audit",
        "topic list -f names",
        "set TXLOG_FORMAT=csv",
        "topic list --columns topic",
        "unset TXLOG_FORMAT",
        "!echo ${TXLOG_STORE##*/} $TXLOG_FORMAT",
    )
    assert (code, out) == (0, "audit\ntopic\naudit\nother\n")
    assert shell.run("txn list --all -f csv --columns state", flags=("-S", "shop"))[1] == (
        "state\naborted\n"  # `use` aborted the transaction of the first store
    )


def test_flags_of_the_shell_apply_to_its_commands(shell: Shell) -> None:
    code, out, err = shell.run(
        "produce orders -m a", "topic list --columns topic", "topic create x", flags=("--json",)
    )
    sent, listed, created = map(json.loads, out.splitlines())
    assert (code, sent["messages"], listed, created["created"], err) == (
        0,
        1,
        [{"topic": "orders"}],
        True,
        "",
    )
    assert shell.run("topic create y", flags=("--read-only",))[0] == 4
    code, out, _ = shell.run(
        "topic list --columns topic", "produce orders -m a", flags=("-f", "csv")
    )
    assert (code, out) == (0, "topic\norders\nx\n")


def test_a_line_of_sh_gives_its_exit_code(shell: Shell) -> None:
    assert shell.run("!exit 5")[0] == 5
    assert shell.run("!kill -9 $$")[0] == 137
    assert shell.run("!true")[0] == 0


def test_commands_do_not_eat_the_script(shell: Shell, tmp_path: Path) -> None:
    """stdin is the script, so `produce` has no input there."""
    ready.tool(tmp_path / "txlog")
    done = subprocess.run(
        [str(tmp_path / "txlog"), "shell"],
        input="produce orders\ntopic list -f names\n",
        env={**os.environ, "TXLOG_STORE": str(tmp_path / "shop")},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "orders\n")
    assert "0 messages" in done.stderr


def words_offered(line: str) -> list[str]:
    return [word for word, _ in offered(line, OWN_WORDS)]


def test_candidates_in_the_shell(shell: Shell) -> None:
    assert words_offered("prod") == ["produce "]
    assert words_offered("co") == ["commit ", "completion ", "config ", "consume ", "copy "]
    assert words_offered(".t") == [".tables "]
    assert words_offered("consume o") == ["orders "]
    assert words_offered("consume orders -o sub") == ["sub="]
    assert words_offered("nothing ") == []
    assert "shell " not in words_offered("sh")
    assert ("orders", "topic") in relations()
    assert ("pending_acks", "relation") in relations()
    assert dict(columns_of("orders"))["publish_time"].startswith("timestamp")
    assert columns_of("nothing") == []


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("topic list", True),
        ("topic list \\", False),
        ("SELECT 1", False),
        ("select 1\nfrom orders", False),
        ("select 1;", True),
        ("FROM orders\n", True),
        ("DESCRIBE orders", True),
        ("describe select 1", False),
    ],
)
def test_enter_ends_a_whole_statement(text: str, whole: bool) -> None:
    assert is_whole(text) == whole


def test_words_with_a_dot_work_in_scripts(shell: Shell) -> None:
    code, out, err = shell.run(".tables", "DESCRIBE orders;", ".describe topics", "exit")
    assert code == 0, err
    assert "orders\ttopic\n" in out
    assert "messages\trelation\n" in out
    assert "value\tbinary\n" in out
    assert "partitions\t" in out
    assert shell.run(".nothing")[0] == 2


@pytest.mark.parametrize("columns", graded([80, 200], 1))
def test_a_person_at_the_shell(tmp_path: Path, shell: Shell, columns: int) -> None:
    """A real terminal: Tab, several lines, a prompt with the transaction, Ctrl-C, Ctrl-D."""
    env = person(tmp_path)
    with Screen([sys.executable, "-m", "txlog", "shell"], env, columns) as screen:
        screen.wait("shop>")
        screen.press("topic li\t")
        screen.wait("topic list")
        screen.press("-f names\r")
        screen.prompted("orders\nshop>")
        screen.press("begin\r")
        screen.wait("shop 0:0>")
        screen.press("produce or\t")
        screen.wait("produce orders")
        screen.press("-m a\r")
        screen.wait("1 message in orders")
        screen.prompted("shop 0:0>")
        screen.press("half a line")
        screen.wait("half a line")
        screen.press("\x03")
        screen.prompted("half a line\nshop 0:0>")
        screen.press("commit\r")
        screen.wait("committed 0:0: 1 message")
        screen.prompted("shop>")
        screen.press("select text(value) as v\r")
        screen.wait("…>")
        screen.press("from or\t")
        screen.wait("from orders")
        screen.press(";")
        screen.wait("from orders;")
        assert "blue" in screen.colors()  # keywords of SQL
        screen.press("\r")
        screen.wait("1 row")
        screen.prompted("shop>")
        screen.press("nothing\r")
        screen.wait("no command")
        screen.prompted("shop>")
        screen.press("\x04")
        assert screen.end() == 0
    with txlog.open(str(tmp_path / "shop")) as client:
        assert client.describe_topic("orders")["messages"] == 1


@pytest.mark.deep
def test_the_history_lasts_and_is_searched(tmp_path: Path, shell: Shell) -> None:
    env = {**person(tmp_path), "NO_COLOR": "1"}
    with Screen([sys.executable, "-m", "txlog", "shell"], env) as screen:
        screen.wait("shop>")
        screen.press("topic list -f names\r")
        screen.prompted("orders\nshop>")
        screen.press(" status --json --now 5\r")  # begins with a blank: not kept
        screen.wait('"problem_list"')
        screen.prompted("shop>")
        assert not screen.colors() - {"default", "cyan"}  # cyan: the note before the prompt
        screen.press("exit\r")
        assert screen.end() == 0
    history = tmp_path / ".local" / "state" / "txlog" / "history"
    assert history.stat().st_mode & 0o777 == 0o600
    assert "--now" not in history.read_text()
    with Screen([sys.executable, "-m", "txlog", "shell"], env) as screen:
        screen.wait("shop>")
        screen.press("\x12names")
        screen.wait("topic list -f names")
        screen.press("\r")  # takes the line
        screen.prompted("shop> topic list -f names")
        screen.press("\r")
        screen.prompted("orders\nshop>")
        os.kill(screen.pid, signal.SIGTERM)
        assert screen.end() == 143


def person(home: Path) -> dict[str, str]:
    return {
        "PYTHONPATH": str(SOURCE),
        "TERM": "xterm",
        "TXLOG_STORE": str(home / "shop"),
        "HOME": str(home),
        "PATH": os.defpath,
    }

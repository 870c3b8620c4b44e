"""The shell: its lines, the state between lines, the end of a script, and use at a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import txlog
from scripts import ready
from tests.source_tree import SOURCE
from tests.terminal import typed
from txlog.cli.help.shell import offered
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


def test_candidates_in_the_shell(shell: Shell) -> None:
    assert offered("prod") == ["produce "]
    assert offered("co") == ["commit ", "completion ", "config ", "consume ", "copy "]
    assert offered("consume o") == ["orders "]
    assert offered("consume orders -o sub") == ["sub="]
    assert offered("nothing ") == []
    assert "shell " not in offered("sh")


def test_a_person_at_the_shell(tmp_path: Path, shell: Shell) -> None:
    """A real terminal and readline: Tab, a prompt with the transaction, Ctrl-C, Ctrl-D."""
    screen = typed(
        [sys.executable, "-m", "txlog", "shell"],
        {
            "PYTHONPATH": str(SOURCE),
            "TERM": "dumb",
            "TXLOG_STORE": str(tmp_path / "shop"),
            "HOME": str(tmp_path),
            "PATH": os.defpath,
            "COLUMNS": "200",
        },
        [
            ("topic li\t", "list "),
            ("-f names\n", "orders\r\nshop> "),
            ("begin\n", "\r\nshop 0:0> "),
            ("produce or\t-m a\n", "\r\nshop 0:0> "),
            ("half a line", "half a line"),
            ("\x03", "\r\nshop 0:0> "),
            ("commit\n", "\r\nshop> "),
            ("select text(value) as v from orders\n", "1 row"),
            ("nothing\n", "no command"),
            ("\x04", ""),
        ],
    )
    assert "began 0:0" in screen
    # the table, then its summary
    assert screen.index("\r\na\r\n") < screen.index("1 row")
    assert "committed 0:0: 1 message" in screen
    with txlog.open(str(tmp_path / "shop")) as client:
        assert client.describe_topic("orders")["messages"] == 1

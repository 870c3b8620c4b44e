"""The way in and out: help, version, imports, usage errors, signals, pipes, exit codes."""

from __future__ import annotations

import gc
import inspect
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import txlog
import txlog.cli.main as way
from tests.harness import python
from tests.harness import run as run_child
from tests.tiers import graded
from txlog.cli.line import catalogue, dispatch
from txlog.cli.line.command import Command
from txlog.cli.main import main
from txlog.cli.terminal.signals import Interrupted
from txlog.engine.door import disk

pytestmark = pytest.mark.usefixtures("quick_disk")
ROOT = Path(__file__).resolve().parents[2]
PATHS = sorted(catalogue.COMMANDS)


def run(
    *args: str, stdin: bytes | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run txlog in a process of its own, with nothing of the caller's environment."""
    bare = {"PYTHONPATH": str(ROOT / "src"), "PATH": os.defpath, **(env or {})}
    return subprocess.run(
        [sys.executable, "-m", "txlog", *args],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        env=bare,
        timeout=120,
    )


def test_root_help_is_short_and_ends_with_zero() -> None:
    """spec/cli 2: `txlog` alone prints the root help: each noun on one line, no command missing."""
    done = run()
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(done.stdout.splitlines()) <= 40
    text = done.stdout.decode()
    assert max(len(line) for line in text.splitlines()) <= 80
    _, commands, nouns, *_ = text.split("\n\n")
    listed = {word for line in commands.splitlines() for word in line[13:].split()}
    assert {path for path in PATHS if " " not in path} <= listed
    first_words = [line.split()[0] for line in nouns.splitlines()]
    assert first_words == [noun for noun in catalogue.NOUNS if " " not in noun]


def test_the_table_and_the_modules_agree() -> None:
    """Every entry leads to a command of that path, which has examples and help."""
    for path in PATHS:
        command = dispatch.load(path)
        assert isinstance(command, Command)
        assert command.path == path
        assert command.examples
        assert inspect.getdoc(command.function)


def test_version(capfd: pytest.CaptureFixture[str]) -> None:
    """spec/cli 2: `txlog 0.2.0`; --json adds the versions of Python and the libraries."""
    assert main(["--version"]) == 0
    assert capfd.readouterr().out == "txlog 0.2.0\n"
    assert main(["--version", "--json"]) == 0
    answer = json.loads(capfd.readouterr().out)
    assert list(answer) == [
        "txlog",
        "format_min",
        "format_max",
        "python",
        "pyarrow",
        "duckdb",
        "pyspark",
        "platform",
    ]
    assert main(["topic", "list", "-V"]) == 0
    assert capfd.readouterr().out == "txlog 0.2.0\n"


def test_between_programs_nothing_imports_rich(tmp_path: Path) -> None:
    """No output needs rich off a terminal, with colours or without."""
    lines = [
        "init", "topic create orders", "produce orders -m a", "produce orders /dev/null -v",
        "status", "status -f table", "topic list", "topic list -f table --color always",
        "topic describe orders -f wide", "topic list -f md", "consume orders -n 1",
        "consume orders -f line", "peek orders", "help offsets --color always", "help TXL-403",
        "man show produce", "verify", "check", "topic describe none", "nonsense",
    ]  # fmt: skip
    words = " ; ".join(lines).split()
    done = run_child(python("loaded", "rich", *words), env={"TXLOG_STORE": str(tmp_path / "s")})
    assert done.stderr.endswith(" []\n"), done.stderr
    assert "\x1b[1mTOPIC   PARTITIONS  MESSAGES" in done.stdout
    assert "\norders           1         1" in done.stdout


HEAVY = "pyarrow duckdb pyspark rich"


@pytest.mark.parametrize("thread", [False, True])
def test_exit_functions_and_threads_run_at_the_end(thread: bool) -> None:
    """The process skips the interpreter's tear-down, but not exit functions, output and threads."""
    done = run_child(python("at_exit", thread))
    assert done.stderr == ""
    assert "before" in done.stdout
    assert ("at exit" in done.stdout, "worker" in done.stdout) == (True, thread)


def test_an_interrupt_while_modules_are_loaded_is_quiet() -> None:
    """spec/cli 4: SIGINT is 130, even before txlog handles signals; never a traceback."""
    assert run_child(python("interrupted_start"), code=130).stderr == ""


def test_interrupt_within_set_name_is_no_bug(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Python 3.11 turns an exception of `__set_name__`, even a signal, into a RuntimeError."""

    class Name:
        def __set_name__(self, owner: type, name: str) -> None:
            raise Interrupted(signal.SIGTERM)

    def load(path: str) -> Command:
        type("Request", (), {"range": Name()})
        return Command(path, "")(lambda call: None)

    monkeypatch.setattr(dispatch, "load", load)
    assert main(["topic", "list"]) == 143
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("flag", "code"), [("--if-not-exists", 10), ("--no-such", 2)])
def test_lost_output_of_a_function_is_a_failure(flag: str, code: int, tmp_path: Path) -> None:
    """Unwritable output of user code turns success into 10, and keeps other exit codes."""
    with open("/dev/full", "wb") as full:
        done = run_child(
            python("lost_output", "init", tmp_path / "s", flag), code=code, stdout=full
        )
    assert ("could not be written" in done.stderr) == (code == 10)


def test_version_does_not_import_typer() -> None:
    """spec/cli 10: judged by sys.modules."""
    done = run_child(python("loaded", f"{HEAVY} orjson typer", "--version"))
    assert done.stderr == "0 []\n"


@pytest.mark.parametrize(
    ("words", "heaps", "pool"),
    [(["-q", "produce", "orders"], 2, "system"), (["query", "FROM orders"], 2, "system"),
     (["serve"], 2, "system"), (["report", "--force"], 2, "system"), (["views"], 2, "system"),
     (["job", "audit"], 2, "system"), (["export", "orders"], 2, None),
     (["admin", "compact-topic", "t"], 2, "system"),
     (["produce", "orders", "-m", "one"], 0, None), (["consume", "orders"], 0, None)],
)  # fmt: skip
def test_long_streams_have_one_heap(
    words: list[str], heaps: int, pool: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long streams get one heap, set up before Arrow is imported, unless the user has chosen one.

    Short commands skip it, and start sooner.
    """
    calls: list[None] = []
    monkeypatch.setattr(disk, "share_heap", lambda: calls.append(None))
    monkeypatch.setattr(gc, "set_threshold", lambda objects: None)
    monkeypatch.setenv("ARROW_DEFAULT_MEMORY_POOL", "mine")
    way._prepare(words)
    assert os.environ["ARROW_DEFAULT_MEMORY_POOL"] == "mine"
    monkeypatch.delenv("ARROW_DEFAULT_MEMORY_POOL")
    way._prepare(words)
    assert os.environ.pop("ARROW_DEFAULT_MEMORY_POOL", None) == pool
    assert len(calls) == heaps


def test_no_help_imports_heavy_libraries() -> None:
    """spec/cli 10: no --help imports pyarrow or duckdb; all commands in one process."""
    lines = [f"{path} {flag}" for path in PATHS for flag in ("-h", "--help")]
    words = " ; ".join([*lines, "--help", ""]).split()
    assert run_child(python("loaded", HEAVY, *words)).stderr == "0 []\n"


def test_a_noun_alone_prints_its_help_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    """spec/cli 2: and ends with 2; the plural is an alias."""
    assert main(["topics"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "txlog topic create" in err
    assert main(["topic", "--help"]) == 0
    assert "txlog topic create" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["prodcue"], "did you mean: txlog produce TOPIC"),
        (["txn", "comit"], "did you mean: txlog txn commit"),
        (["subscripton", "list"], "did you mean: txlog subscription"),
    ],
)
def test_an_unknown_name_names_the_nearest(
    args: list[str], hint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """spec/cli 2: exit 2; with --json the error is one object on stderr."""
    assert main([*args, "--json"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    error = json.loads(err)["error"]
    assert (error["code"], error["hint"]) == ("TXL-201", hint)


@pytest.mark.parametrize(
    "args",
    [
        ["--no-such"],
        ["-S"],
        ["-x", "status"],
        ["status", "--no-such"],
        ["status", "extra"],
        ["topic", "create"],
        ["topic", "create", "a", "--partitions", "many"],
        ["consume", "a", "-f", "yaml"],
        ["consume", "a", "--ack", "never", "-s", "b"],
        ["consume", "a", "--type", "queue", "-s", "b"],
        ["consume", "a", "-o", "1:2:3:4"],
        ["consume", "a", "-F", "--until", "end"],
        ["consume", "a", "--ack", "none"],
        ["consume", "a", "-s", "b", "-o", "start"],
        ["consume", "a", "-s", ".."],
        ["consume", "a/1", "-p", "2"],
        ["consume", "a", "-n", "-1"],
        ["consume", "a", "--max-wait", "soon"],
        ["produce", "a", "--in", "xml"],
        ["produce", "a", "-m", "x", "file"],
        ["produce", "a", "-k", "x", "-K", "="],
        ["produce", "a", "--txn", "--txn-every", "3"],
        ["produce", "a", "--txn-every", "0"],
        ["produce", "a", "--expect", "3"],
        ["produce", "a", "--seq-from", "3"],
        ["produce", "a", "--batch", "0"],
        ["produce", "a", "-H", "x"],
        ["produce", "a", "--json", "--ack-format", "ndjson"],
        ["produce", "a", "--ack-format", "%s"],
        ["produce", "a", "--event-time", "soon"],
        ["produce", "a", "--durability", "maybe"],
        ["produce", "a/1", "-p", "2"],
        ["peek", "a", "--first", "1", "--last", "1"],
        ["peek", "a", "--at", "x"],
        ["status", "--watch", "0s"],
        ["status", "--color", "pink"],
        ["status", "--now", "soon"],
        ["run", "m:f", "--input", "a"],
        ["run", "m:f", "-s", "b"],
        ["run", "m:f", "--input", "a", "-s", "b", "--on-error", "panic"],
        ["run", "m:f", "--input", "a", "-s", "b", "--on-error", "dead-letter"],
        ["run", "m:f", "--input", "a", "-s", "b", "--on-error", "skip:a"],
        ["run", "m:f", "--input", "a", "-s", "b", "--on-error", "dead-letter:.."],
        ["run", "m:f", "--input", "a", "-s", "b", "--txn-size", "0"],
        ["run", "m:f", "--input", "a", "-s", "b", "--txn-time", "0s"],
        ["run", "m:f", "--input", "a", "-s", "b", "--txn-timeout", "soon"],
        ["run", "m:f", "--input", "a", "-s", "b", "--type", "failover"],
        ["run", "m:f", "--input", "a", "-s", "b", "--parallelism", "2", "-n", "3"],
        [
            "run",
            "m:f",
            "--input",
            "a",
            "-s",
            "b",
            "--parallelism",
            "2",
            "--create",
            "--type",
            "exclusive",
        ],
        ["run", "m:f", "--input", "a", "--input", "a", "-s", "b"],
        ["run", "no_such_module:f", "--input", "a", "-s", "b"],
        ["run", "no_colon", "--input", "a", "-s", "b"],
        ["transform", "a", "b", "-s", "s"],
        ["transform", "a", "b", "cat", "-s", "s", "--in-format", "xml"],
        ["transform", "a", "b", "cat", "-s", "s", "--out-format", "xml"],
        ["txn", "commit"],
        ["txn", "run"],
        ["txn", "list", "--state", "odd"],
        ["txn", "abort", "--all-stuck", "0:1"],
        ["topic", "list", "--regex", "("],
        ["topic", "list", "--columns", "nope"],
        ["init", ""],
        ["demo", "--kills", "-1"],
    ],
)
def test_a_wrong_call_ends_with_two_before_a_store_is_needed(
    args: list[str],
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """spec/cli 5: usage errors; stdout stays empty and there is no traceback."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("TXLOG")]:
        monkeypatch.delenv(name)
    assert main(args) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(("error: ", '{"error"'))
    assert "Traceback" not in err


def test_no_store_is_not_found(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec/cli 3: exit 3, TXL-301, with the hint txlog init."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TXLOG_STORE", raising=False)
    assert main(["topic", "list", "--json"]) == 3
    error = json.loads(capfd.readouterr().err)["error"]
    assert error["code"] == "TXL-301"
    assert "txlog init" in error["hint"]


def test_global_flags_stand_anywhere_and_the_last_wins(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """spec/cli 2: before and after the verb."""
    for args in (
        ["--json", "-S", str(tmp_path / "no"), "topic", "list"],
        ["topic", "list", f"--store={tmp_path / 'no'}", "--json"],
        ["-S/other", "topic", "list", "--json", "-S", str(tmp_path / "no")],
    ):
        assert main(args) == 3
        assert json.loads(capfd.readouterr().err)["error"]["store"] == str(tmp_path / "no")


def test_field_help_needs_no_store(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec/cli 4: -f help is field, type, meaning; produce too."""
    monkeypatch.chdir(tmp_path)
    for path in PATHS:
        command = dispatch.load(path)
        if path == "inspect":
            assert main(["inspect", "-f", "help"]) == 0
            text = capfd.readouterr().out
            assert text.startswith("kind\tstring\t")
            assert "\nacknowledged_list\tarray\t" in text
            continue  # its fields depend on the thing that it inspects
        needed = {
            "sub create": ["x", "-t", "x"],
            "sub ack": ["x", "1:1"],
            "sub seek": ["x", "--to", "start"],
            "sub nack": ["x", "1:1"],
            "admin list-transaction-keys": [],
            "admin scale-transaction-coordinators": ["4"],
            "admin pending-ack-stats": ["x", "x"],
            "metrics": [],
            "admin position-in-pending-ack": ["x", "x", "1:1"],
            "admin slow-transactions": ["--time", "1s"],
            "admin coordinators": [],
            "admin coordinator-stats": [],
            "admin locks": [],
            "policy delayed get": [],
            "watermark set": ["x", "now", "--producer", "x"],
            "watermark idle": ["x", "--producer", "x"],
            "policy delayed set": ["--active"],
            "policy delayed remove": [],
            "policy schema get": [],
            "policy schema set": ["--validation", "off"],
            "policy schema remove": [],
            "policy watermark get": [],
            "policy retention get": [],
            "policy retention remove": [],
            "policy retention set": ["--acked"],
            "policy watermark remove": [],
            "policy watermark set": ["--producers-max", "1"],
            "wait": [],
            "views": [],
            "check": [],
            "bench": [],
            "job bulk-load": ["x", "x", "--key", "k"],
            "job replay": ["x", "x", "--key", "k"],
            "spark example": [],
            "spark submit-args": [],
            "verify": [],
            "doctor": [],
            "admin repair": [],
            "admin compact-changes": [],
            "admin accept-clock": [],
            "du": [],
            "policy alert get": [],
            "admin offload": ["x", "--to", "x"],
            "man install": [],
            "completion install": ["bash"],
            "completion show": ["bash"],
            "config show": [],
            "config path": [],
            "config set": ["x", "x"],
            "run": ["m:f", "--input", "x", "-s", "x"],
            "transform": ["x", "y", "z", "-s", "x"],
            "serve": [],
            "token create": ["--role", "x", "--key", "x"],
        }
        words = needed.get(path, ["x"])
        bare = ("list", "begin", "status", "checkpoint", "expire", "find-hanging", "gc")
        if path not in ("sub expire", "delay list", "segment list") and path.split()[-1] in bare:
            words = []
        assert main([*path.split(), *words, "-f", "help"]) == 0, path
        lines = capfd.readouterr().out.splitlines()
        if path in ("query", "views"):
            assert lines  # columns of relations, which test_query compares
            continue
        verbs = [line for line in lines if line.startswith("%")]
        assert bool(verbs) == command.records
        lines = lines[: len(lines) - len(verbs)]
        assert [line.split("\t")[0] for line in lines] == command.fields
        assert all(line.count("\t") == 2 for line in lines)


def test_global_flags_stand_between_noun_and_verb_too(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """spec/cli 2: arguments and flags mix freely."""
    store = str(tmp_path / "s")
    assert main(["init", store]) == main(["-S", store, "topic", "create", "t"]) == 0
    capfd.readouterr()
    for words in (
        ["topic", "-S", store, "--json", "list"],
        ["topics", "--store", store, "-fjson", "list"],
        ["topic", "--json", "--", "list", "-S", store],
    ):
        assert main(words) == 0
        assert json.loads(capfd.readouterr().out)[0]["topic"] == "t"
    assert main(["policy", "-S", store, "delayed", "--json", "get"]) == 0
    assert main(["topic", "--partitions", "2", "create", "u", "-S", store]) == 2
    assert main(["topic", "--json"]) == 2
    assert main(["topic", "-q", "-h"]) == 0


def test_missing_files_and_impossible_places_have_exit_codes(tmp_path: Path) -> None:
    """spec/cli 5: no such file is 3; a place that takes no directory is 1, never corruption."""
    store = str(tmp_path / "s")
    assert main(["init", store]) == 0
    for verb in ("show", "cat"):
        assert main(["-S", store, "segment", verb, "nosuch"]) == 3
    assert main(["-S", store, "inspect", "file:nosuch"]) == 3
    assert main(["init", "/proc/txlog"]) == 1


def test_a_path_that_is_not_utf8_is_json_all_the_same(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """spec/cli 11.2: each odd byte is escaped as in Python, so that the path read back opens."""
    (tmp_path / os.fsdecode(b"\xff")).mkdir()
    store = str(tmp_path / os.fsdecode(b"\xff") / "s")
    assert main(["init", store, "--json"]) == 0
    assert json.loads(capfdbinary.readouterr().out.decode())["path"] == store
    assert main(["-S", f"{store}-no", "status", "--json"]) == 3
    assert json.loads(capfdbinary.readouterr().err.decode())["error"]["path"] == f"{store}-no"


def test_abort_without_stuck_transactions_reports_nothing_to_do(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = str(tmp_path / "s")
    assert main(["init", store]) == 0
    capfd.readouterr()
    assert main(["-S", store, "txn", "abort", "--all-stuck"]) == 0
    out, err = capfd.readouterr()
    assert (out, "nothing to abort" in err) == ("", True)


@pytest.mark.parametrize("encoding", graded(["ascii", "latin1"], 1))
def test_text_is_utf8_in_any_locale(tmp_path: Path, encoding: str) -> None:
    """spec/cli 4: help, which Typer prints, and arguments: bytes that are UTF-8 are text."""
    environment = {
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONIOENCODING": encoding,
        "LC_ALL": "C",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONUTF8": "0",
        "TXLOG_STORE": str(tmp_path / "s"),
    }
    txlog.init(str(tmp_path / "s"))
    with txlog.open(str(tmp_path / "s")) as client:
        client.create_topic("t")

    def run(*words: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "txlog", *words],
            capture_output=True,
            env=environment,
            timeout=60,
        )
        return done.returncode, done.stdout.decode()

    code, text = run("produce", "--help")
    assert (code, "…" in text) == (0, True)
    assert run("produce", "t", "-m", "x", "-H", "name=é", "-q") == (0, "")
    code, text = run("consume", "t", "-H", "name=é", "-f", "%h{%v}\n")
    assert (code, text) == (0, "é\n")


def test_a_name_of_thousands_of_levels_is_an_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: the recursion of os.makedirs; a store may be as deep as the system allows."""
    monkeypatch.chdir(tmp_path)
    assert main(["init", "d/" * 3000]) == 1
    assert "name too long" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert main(["init", "d/" * 1200, "-q"]) == 0
    subprocess.run(["rm", "-rf", "d"], check=True)  # too deep for pytest's own clean-up

"""Every word of every command, with values that make no sense: refused or done, never a bug.

The test walks the tree of commands: each argument, flag and global flag with each value of VALUES.
The quick suite runs a part with each value and each command.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from txlog.cli.line import catalogue
from txlog.cli.line.command import GLOBAL_FLAGS, Argument
from txlog.cli.line.dispatch import load
from txlog.cli.main import main

pytestmark = pytest.mark.usefixtures("quick_disk")

VALUES = (
    "", " ", "-", "--", "-1", "0", "9223372036854775807", "9223372036854775808",
    "-9223372036854775809", "1" * 5000, "1.5", "nan", "-inf", "1e400", "../escaped", "/dev/null/x",
    "a/b/c/d", "\udcff", "\u202egnp.exe", "e\u0301", "\u0661", "\x1b[31m\n\r\t", "x" * 10_000,
    "[" * 10_000, '{"a":' * 3_000, "%", "%v%Q", "%{", "a=b", "a=\udcff", "=",
    "@9999-12-31T23:59:59Z", "@-1d", "9999999999999999", "253402300800000", "-1d",
    "99999999999d", "1:2:3:4", "0:0",
    "9223372036854775807:9223372036854775807", "txn:0:0", "..", "+9223372036854775807", "(",
    "(a+)+$", "_txnlog", "__x", "persistent://a/b/c", "'; SELECT 1", "8EiB", "a,b", ",", "messages",
)  # fmt: skip
# Left out: commands and flags that wait, follow, or run programs or Spark.
NOT_HERE = {"demo", "bench", "shell", "top", "sub list pause_ms",
            "txn run", "job engine", "job master", "job conf",
            "status pause_ms", "consume max_wait_ms", "consume follow", "wait timeout_ms",
            "txn wait timeout", "run max_wait_ms", "run follow", "transform max_wait_ms",
            "transform follow",
            "run parallelism", "transform parallelism", "run n", "transform n"}  # fmt: skip
GIVEN = {
    "topic": "orders", "topics": "orders", "name": "orders", "subscription": "s", "ids": "1:0",
    "id": "0:0", "txn": "0:0", "key": "k", "function": "json:dumps", "inputs": "orders",
    "input": "orders", "output": "audit", "words": "cat", "to": "end", "time": "2026-11-20",
    "producer": "p", "count": "20", "target": "orders/0", "source": "nothing.csv", "dest": "audit",
    "message": "1:0", "what": "1", "value": "x", "role": "r",
    "to_store": "nowhere", "copy": "nowhere",
}  # fmt: skip
NAMED = {"topic create": {"names": "new"}, "sub create": {"names": "new"},
         "topic delete": {"names": "audit"}, "sub delete": {"names": "s"},
         "config get": {"key": "unacked_max"}, "config set": {"key": "unacked_max"},
         "import": {"words": "nothing.csv"}}  # fmt: skip
DUCKDB = ["--engine", "duckdb"]
ALWAYS = {**{f"job {name}": DUCKDB
             for name in ("bulk-load", "replay", "compact", "rebuild-delayed")},
          "run": ["-n", "0"], "transform": ["-n", "0"], "produce": ["-m", "x"],
          "wait": ["--timeout", "0s"], "txn wait": ["--timeout", "0s"],
          "serve": ["--pulsar", "192.0.2.1:1", "--insecure"],  # no machine has this address
          "sub skip": ["--all"], "sub expire": ["--older-than", "1d"]}  # fmt: skip
EXITS = {*range(11), 130, 141, 143}


class Case(NamedTuple):
    """The words of a command line, without the words that name the store."""

    path: str
    name: str
    words: list[str]


def cases() -> Iterator[Case]:
    """Every command, with each of its words replaced by each of VALUES in turn."""
    for path in catalogue.COMMANDS:
        if path in NOT_HERE:
            continue
        command = load(path)
        hints, defaults = command.hints, command.defaults
        values = {**GIVEN, **NAMED.get(path, {})}
        arguments = [
            name for name, hint in hints.items() if isinstance(hint.__metadata__[0], Argument)
        ]
        needed = [name for name in hints if name not in defaults]
        flags = {
            name: hint.__metadata__[0].words[0]
            for name, hint in hints.items()
            if name not in arguments
        }
        own_flags = set(flags.values())
        for name, value in _varied(path, hints, arguments):
            words: list[str] = []
            for flag in needed:
                if flag in flags and flag != name:
                    words += [flags[flag], values[flag]]
            if name in flags:
                words += [flags[name], value]
            elif name in GLOBAL_FLAGS:
                if GLOBAL_FLAGS[name][0][0] in own_flags:
                    continue
                words += [GLOBAL_FLAGS[name][0][0], value]
            words += [
                word
                for word in ALWAYS.get(path, [])
                if not {name} & {"message", "n", "files", "pulsar"}
            ]
            positional = [
                value if argument == name else values.get(argument, "x")
                for argument in arguments
                if argument == name or argument in needed
            ]
            yield Case(path, name, [*path.split(), *words, "--", *positional])


def _varied(path: str, hints: dict[str, Any], arguments: list[str]) -> Iterator[tuple[str, str]]:
    family = path.split()[0]
    for name, hint in hints.items():
        if {f"{path} {name}", f"{family} {name}"} & NOT_HERE:
            continue
        if hint.__origin__ not in (bool, bool | None):
            yield from ((name, value) for value in VALUES)
    for name, (_, metavar, _) in GLOBAL_FLAGS.items():
        if metavar is not None and path in ("topic create", "produce", "consume", "query"):
            yield from ((name, value) for value in VALUES)


class Hung(BaseException):
    """A command did not end."""


def _hung(number: int, frame: object) -> None:
    raise Hung


class Place:
    """A store and a working directory, and the files that may exist in them."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capfd = folder, capfd
        self.made = folder / "made"
        os.chdir(folder)
        assert main(["init", str(self.made), "-q"]) == 0
        for words in (
            ["topic", "create", "orders", "audit"],
            ["sub", "create", "s", "-t", "orders", "--type", "shared"],
            ["produce", "orders", "-m", "a", "-m", "b", "-k", "k", "-H", "a=b"],
            ["txn", "begin", "--timeout", "1h"],
            ["produce", "orders", "-m", "t", "--txn-id", "0:0"],
        ):
            main(["-S", str(self.made), *words])
        capfd.readouterr()

    def again(self) -> None:
        """Everything as it was before the first case."""
        for name in ("store", "cwd"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        shutil.copytree(self.made, self.folder / "store")
        (self.folder / "cwd").mkdir()
        os.chdir(self.folder / "cwd")

    def run(self, case: Case) -> str | None:
        """Run a case; returns the fault of its outcome, or None."""
        handler = signal.signal(signal.SIGALRM, _hung)
        signal.setitimer(signal.ITIMER_REAL, 60)
        try:
            code: int | None = main(["-S", str(self.folder / "store"), "--json", *case.words])
        except Hung:
            code = None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
        out, err = self.capfd.readouterr()
        return self._wrong(case, code, out, err)

    def _wrong(self, case: Case, code: int | None, out: str, err: str) -> str | None:
        if code not in EXITS:
            return f"exit {code}"
        if "Traceback" in err or "a bug of txlog" in err:
            return err[-300:]
        if code not in (0, 6, 7, 8) and out and case.path not in ("check", "man show"):
            return f"exit {code}, and on stdout: {out[:100]}"
        errors = [line for line in err.splitlines() if line.startswith('{"error"')]
        if (
            code not in (0, 6, 8)
            and case.path != "check"
            and (len(errors) != 1 or json.loads(errors[0])["error"]["exit"] != code)
        ):
            return f"exit {code}, and on stderr: {err[-200:]}"
        if re.search(r"[\x00-\x08\x0b-\x1f\u202e\ud800-\udfff]", err):
            return f"raw characters on stderr: {err[-200:]!r}"
        there = {path.name for path in self.folder.iterdir()} - {"made", "store", "cwd"}
        for name in there:
            one = self.folder / name
            shutil.rmtree(one) if one.is_dir() else one.unlink()
        unnamed = (
            set()
            if ".." in case.words
            else {name for name in there if name.partition(".")[0] != "escaped"}
        )
        if unnamed or (there and case.name not in GLOBAL_PATHS):
            return f"made {there}"
        return None


# Words that name new files of the command: with ../escaped these may be outside.
GLOBAL_PATHS = {
    "store", "log_file", "path", "out", "complete", "textfile", "outfile", "to", "dest",
    "public", "pidfile",
}  # fmt: skip


def _text(case: Case) -> str:
    words = [word if len(word) < 60 else f"{word[:20]}...({len(word)})" for word in case.words]
    return f"{case.path} {case.name}: {words!r}"


@pytest.fixture
def place(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    for name in [name for name in os.environ if name.startswith("TXLOG")]:
        monkeypatch.delenv(name)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "made" / "home"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    here = os.getcwd()
    yield Place(tmp_path, capfd)
    os.chdir(here)


def test_flags_that_are_left_out_exist() -> None:
    """Kills: a renamed flag that waits is tried again, and the test with it waits for ever."""
    for path, _, name in (words.rpartition(" ") for words in NOT_HERE):
        if path in catalogue.COMMANDS:
            assert name in load(path).hints, f"{path} has no {name}"


@pytest.mark.parametrize(
    "part", ["slice", *(pytest.param(at, marks=pytest.mark.deep) for at in range(16))]
)
def test_no_word_is_a_bug(place: Place, part: int | str) -> None:
    """spec/cli 5: an exit code of the table, one error, no raw bytes, no file except named ones."""
    all_cases = list(cases())
    selected = all_cases[part::16] if isinstance(part, int) else all_cases[5::97]
    wrong = []
    place.again()
    for number, case in enumerate(selected):
        if number % 8 == 7:
            place.again()
        fault = place.run(case)
        if fault is not None:
            wrong.append(f"{_text(case)}\n    {fault}")
            place.again()
    assert not wrong, f"{len(wrong)} of {len(selected)}:\n" + "\n".join(wrong)

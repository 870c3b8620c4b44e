"""Every example of every help text runs: of commands, of errors, of help topics, of txlog(1).

They run in a copy of one store, which has the names and ids that the texts use: topic
orders with 17:4, 17:9:2 and 17:90, subscriptions billing and audit, transaction 0:42, key nightly.
A plain command runs in this process, and a line that needs a shell runs in one bash.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from scripts import ready
from tests.source_tree import SOURCE
from txlog.base.times import parse_time
from txlog.cli.help import topics
from txlog.cli.help.codes import CODES
from txlog.cli.line import catalogue
from txlog.cli.line.dispatch import load
from txlog.cli.main import main

NOW: Final = "2026-11-20T09:12:04.123Z"
COMMANDS = [(path, each) for path in catalogue.COMMANDS for each in load(path).examples]
OF_HELP = [(f"TXL-{code}", explained.example) for code, explained in CODES.items()] + [
    (topic, line)
    for topic in topics.TOPICS
    for heading, blocks in topics.read(topic).sections
    if heading == "EXAMPLES"
    for block in blocks
    for line in block.lines
]
ALL = [
    (path, example) for example, path in {each: path for path, each in COMMANDS + OF_HELP}.items()
]

# Commands that an example needs first, by the beginning of the example or its whole text.
BEFORE: Final = {
    "txlog topic create orders": "txlog topic delete orders audit --force --yes",
    "txlog topic create audit": "txlog topic delete audit --force --yes",
    "txlog topic create orders --if-not-exists": "",
    "txlog sub create": "txlog sub delete billing audit -t orders --force --yes",
    "txlog sub ack billing 17:90 --cumulative": "txlog sub delete billing --yes && "
    "txlog sub create billing -t orders",
    "txlog txn commit   #": "export TXLOG_TXN=0:42",
    "txlog txn show --json": "export TXLOG_TXN=0:42",
    "txlog txn wait": "txlog txn commit 0:42",
    "txlog txn connect nightly --epoch 3": "txlog txn connect nightly; txlog txn connect nightly; "
    "txlog txn connect nightly",
    "txlog wait --topic orders --watermark": "txlog sub clear-backlog billing --yes",
    "txlog wait --backlog": "txlog sub clear-backlog billing --yes; txlog txn commit 0:42",
    "txlog dlq": "txlog topic create orders-billing-DLQ",
    "txlog topic copy": "txlog init ../backup/shop",
    "txlog restore": "txlog copy ../backup/shop",
    "txlog diff": "txlog copy backup",
    "txlog -S shop diff": "txlog copy ../other",
    "txlog admin online": "txlog admin offline orders/2",
    "txlog man path": "txlog man install",
    "cat $(txlog config path)": "txlog config set --user utc true",
    "txlog run f.py:clean": "txlog sub create s -t raw",
    "txlog sub expire billing --dry-run": "txlog topic update orders --ttl 7d",
    "txlog topic delete orders": "txlog sub delete billing audit parser shout -t orders --yes",
}
# Replacements, by which an example ends, and needs neither Spark nor a network.
INSTEAD: Final = {
    "consume orders -F": "consume orders -F -n 1",
    " -F --parallelism 4": " --parallelism 2",
    "txlog demo": "txlog demo -h",
    "txlog serve": "txlog serve -h",
    "txlog crashtest": "txlog crashtest -h",
    "txlog txn resolve": "txlog txn resolve -h",
    " --watch=5s": "",
    " --watch 5s": "",
    "s3://bucket/txlog?region=eu-central-1": "data",
    "--max-wait 1m": "--max-wait 10ms",
    "/data/orders.ndjson": "in.ndjson",
}
PLACES: Final = ("/data/", "/mnt/", "/backup/", "/var/lib/node_exporter/")
OF_SHELL: Final = re.compile(r"[|<>$*]|&&|^[A-Z_]+=|^(?!txlog )|^txlog shell$|bash -c")
STUBS: Final = {
    **dict.fromkeys(("spark-submit", "uv", "pip", "duckdb"), "exit 0"),
    "jq": "exec cat",
}
FILES: Final = {
    "lines.ndjson": '{"id":1}\n{"id":2}\n',
    "orders.ndjson": '{"id":1}\n{"id":\n',
    "in.ndjson": '{"key":"a","key_encoding":"utf8","value":"b","value_encoding":"utf8",'
    '"properties":{},"event_time":1795165924000,"deliver_at":null}\n',
    "three.txt": "1\n2\n3\n",
    "a.txt": "1\n",
    "b.txt": "2\n",
    "report.sql": "SELECT count(*) AS n FROM orders WHERE publish_time >= $day::DATE\n",
    "trip.avsc": '{"type":"record","name":"Trip","fields":[{"name":"miles","type":"double"}]}',
    "orders.csv": "id,value\n1,one\n2,two\n",
    "data/part.csv": "key,value\n1,one\n",
    "prices.py": "def total(message):\n    return message.value\n",
    "f.py": "def total(message):\n    return message.value\n\n\nclean = total\n",
    "fix.py": "def parse(message):\n    return message.value\n\n\n"
    "def repair(table):\n    return table\n",
    "nightly.txlog": "topic list\n",
    "job.py": "",
    "rules.toml": "[tokens]\nsecret_key = 'signing.key'\n",
    "signing.key": "0123456789abcdef0123456789abcdef",
    "billing.token": "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJiaWxsaW5nIn0."
    "O2FEiOpqv7C2Wys-VDJ_kM4wFYs6iVm_eyLnXuY0vxk",
}


SETUP: Final = """\
init shop --coordinators 4
topic create filler --partitions 16
topic create orders --partitions 4
topic create audit a b raw again totals upper bad good clean users
topic create trips --schema trip.avsc
sub create billing -t orders --type shared
sub create audit parser shout -t orders
"""
THEN: Final = """\
produce orders/0 nine.txt
produce orders/0 three.txt --txn
produce orders/0 many.ndjson --in envelope
admin checkpoint --roll orders
produce orders/0 nine.txt
query "FROM orders" --out some.parquet
query "SELECT text(value) AS value, publish_time AS at FROM orders LIMIT 9" --out part-1.parquet
watermark set orders 2026-11-20T09:05:00Z --producer till-7
txn connect nightly
"""


def fill(folder: Path) -> None:
    """Make the files that examples name, and the store, by scripts of the shell."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / "days").mkdir()
    (folder / "days" / "1.csv.gz").write_bytes(gzip.compress(b"id,amount\n1,2\n", mtime=0))
    (folder / "nine.txt").write_text("".join(f"{number}\n" for number in range(9)))
    now = parse_time(NOW, 0)
    (folder / "many.ndjson").write_text(
        "".join(
            json.dumps(
                {
                    "value": str(number),
                    "value_encoding": "utf8",
                    "event_time": now - 60_000,
                    "deliver_at": now + 60_000 * number if number % 50 == 7 else None,
                }
            )
            + "\n"
            for number in range(1000)
        )
    )
    fillers = [f"produce filler/{number} -m x" for number in range(16)]  # ledgers 1 to 16
    begun = ["txn begin -c 0 --timeout 1h"] * 42  # three.txt was stored in 0:0
    ended = [f"txn abort {' '.join(f'0:{number}' for number in range(1, 42))}", "admin checkpoint"]
    lines = [*SETUP.splitlines(), *fillers, *THEN.splitlines(), *begun, *ended]
    (folder / "setup.txlog").write_text("\n".join(lines))
    assert main(["shell", "setup.txlog", "-q"]) == 0


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setenv("TXLOG_NOW", NOW)
        patched.setenv("TXLOG_STORE", str(folder / "shop"))
        fill(folder)
    assert (folder / "shop" / "txlog.toml").is_file()
    return folder


@pytest.fixture
def world(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The environment of examples; a test copies the template where it needs it."""
    for name in [name for name in os.environ if name.startswith(("TXLOG", "XDG"))]:
        monkeypatch.delenv(name)
    for name, body in STUBS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SHELL", "/bin/bash")
    monkeypatch.setenv("PYTHONPATH", f"{SOURCE}{os.pathsep}{template}")
    monkeypatch.syspath_prepend(template)
    monkeypatch.setenv("TXLOG_NOW", NOW)
    monkeypatch.setenv("TXLOG_STORE", "shop")
    monkeypatch.setenv("TXLOG_TXN", "")
    yield tmp_path


def as_run(example: str, place: Path) -> str:
    """The example as the test runs it: with paths of the test, and changed so that it ends."""
    if re.match(r"txlog top\b", example):
        return "txlog top -h"  # it needs a terminal
    for word, other in INSTEAD.items():
        if word in example:
            example = example.replace(word, other)
    for prefix in PLACES:
        example = example.replace(prefix, f"{place}{prefix}")
    if re.match(r"txlog job (?!.*--engine)", example):
        example += " --engine duckdb"
    return example


def before(example: str) -> str:
    """The command that an example needs first: BEFORE's entry with the longest matching prefix."""
    prefixes = [start for start in BEFORE if example.startswith(start)]
    return BEFORE[max(prefixes, key=len)] if prefixes else ""


def heavy(example: str) -> bool:
    """Whether an example takes most of a second: engines, charts, whole checkpoints."""
    words = ("txlog job ", "txlog report", "--parallelism", "--roll-all", "man install", "--out ")
    return any(word in example for word in words)


def words_of(line: str) -> list[str]:
    return shlex.split(line, comments=True)[1:]


def fresh(template: Path, place: Path) -> Path:
    """A copy of the template to work in, with the directories that paths lead to."""
    shutil.copytree(template, place / "work", symlinks=True, copy_function=_copied)
    for directory in (*PLACES, "/mnt/archive"):
        (place / directory[1:]).mkdir(parents=True, exist_ok=True)
    return place / "work"


def _copied(source: str, target: str) -> None:
    """Copy a file, or link it if it is published: such a file never changes."""
    if source.endswith((".parquet", ".arrow", ".manifest", ".state")):
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def changes(example: str) -> bool:
    """Whether an example may change the store or directory, so that the next needs a new copy."""
    if before(example):
        return True
    path, _ = catalogue.resolve(words_of(example)) if words_of(example)[0][0] != "-" else ("", 0)
    if path in ("consume", "run", "transform", "txn run", "export", "views", "query"):
        return path != "query" or "--out" in example
    return path in catalogue.COMMANDS and load(path).changes and "--dry-run" not in example


def plain(example: str) -> bool:
    return OF_SHELL.search(re.sub(r"'[^']*'|\"[^\"]*\"|#.*", "", example).strip()) is None


@pytest.mark.deep
@pytest.mark.parametrize("weight", ["light", pytest.param("heavy", marks=pytest.mark.slow)])
def test_plain_examples_run(
    weight: str,
    template: Path,
    world: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Every example of every --help runs. A command that asks for consent gets a yes."""
    failed = []
    place: Path | None = None
    chosen = [pair for pair in ALL if plain(pair[1]) and heavy(pair[1]) == (weight == "heavy")]
    assert chosen
    for number, (path, example) in enumerate(chosen):
        touches = changes(example)
        if place is None or touches:
            place = world / str(number)
            monkeypatch.chdir(fresh(template, place))
        first = [line for line in re.split("&&|;", before(example)) if line.strip()]
        with monkeypatch.context() as patched:
            for line in first:
                if line.startswith("export "):
                    patched.setenv(*line.removeprefix("export ").split("=", 1))
                else:
                    assert main(words_of(line.strip())) == 0, capfd.readouterr().err
            words = words_of(as_run(example, place))
            capfd.readouterr()
            code = main(words)
            if code == 9:
                code = main([*words, "--yes"])
        err = capfd.readouterr().err
        if code:
            failed.append(f"{path}: {example}\n  {code}: {err}")
        if touches:
            shutil.rmtree(place)
            place = None
    assert not failed, "\n".join(failed)


@pytest.mark.deep
def test_examples_for_a_shell_run(template: Path, world: Path) -> None:
    """Pipes, redirections and substitutions: one bash runs them all, each in its own copy."""
    ready.tool(world / "txlog")
    examples = [pair for pair in ALL if not plain(pair[1])]
    script = []
    for number, (_, example) in enumerate(examples):
        place = world / str(number)
        fresh(template, place)
        first = before(example) or "true"
        script.append(
            f"( cd {place}/work; {{ {first}; }} >/dev/null 2>&1; set -e -o pipefail\n"
            f"{as_run(example, place)}\n) </dev/null >{place}/said 2>&1; echo $?"
        )
    done = subprocess.run(
        ["bash", "--norc", "-c", "\n".join(script)], capture_output=True, text=True, check=True
    )
    codes = [int(word) for word in done.stdout.split()]
    failed = [
        f"{path}: {example}\n  {code}: {(world / str(number) / 'said').read_text()}"
        for number, ((path, example), code) in enumerate(zip(examples, codes, strict=True))
        if code
    ]
    assert not failed, "\n".join(failed)


def test_the_examples_of_the_first_page_run_in_order(world: Path) -> None:
    """The examples of txlog(1) are a session that starts from scratch; so is the root help."""
    ready.tool(world / "txlog")
    page = topics.read("txlog")
    lines = [
        line
        for heading, blocks in page.sections
        if heading == "EXAMPLES"
        for block in blocks
        for line in block.lines
    ]
    root_help = catalogue.root_help().splitlines()
    begin = next(n for n, line in enumerate(root_help) if "txlog init shop" in line)
    roots = [line.partition("      ")[0].strip() for line in root_help[begin : begin + 3]]
    for number, session in enumerate((lines, roots)):
        place = world / f"session{number}"
        place.mkdir()
        script = "\n".join(["set -e -o pipefail", *session])
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TXLOG")}
        if number == 0:
            environment["TXLOG_STORE"] = "shop"
        done = subprocess.run(
            ["bash", "--norc", "-c", script],
            cwd=place,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert '"value":"3"' in done.stdout


def test_every_command_has_a_few_examples_that_name_it() -> None:
    for path in catalogue.COMMANDS:
        examples = load(path).examples
        assert 2 <= len(examples) <= 4, path
        assert all(path in " ".join(example.split()) for example in examples), path

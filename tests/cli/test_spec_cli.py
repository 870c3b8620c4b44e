"""docs/spec/cli.md against the program: signatures, fields, tables, the JSON that is printed."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import txlog
from scripts import golden
from tests.source_tree import ROOT
from tests.spec_page import Field, Shape, misfits, page, section, shape_of, table, words
from txlog.cli.call.environment import VARIABLES
from txlog.cli.help.codes import CODES, EXITS, names_of
from txlog.cli.help.topics import source
from txlog.cli.line import catalogue
from txlog.cli.line.command import GLOBAL_FLAGS, Command
from txlog.cli.line.dispatch import load
from txlog.cli.main import main
from txlog.cli.output.output import LISTING_FORMS, RECORD_FORMS
from txlog.cli.terminal.fields import RECORD_FIELDS
from txlog.errors import error_table

Run = Callable[..., tuple[int, str, str]]
pytestmark = pytest.mark.usefixtures("quick_disk")
ASKS = "(asks)"


def _blocks() -> dict[str, tuple[str, str]]:
    """Each command's signature and the shape behind `→`, which is empty for a text."""
    blocks: dict[str, tuple[str, str]] = {}
    lines: list[str] = []
    for block in re.findall(r"(?ms)^```\n(txlog .*?)^```", page("cli").partition("## 8. ")[2]):
        lines += block.splitlines()
    entries: list[list[str]] = []
    for line in lines:
        if line.startswith("txlog "):
            entries.append([line])
        else:
            entries[-1].append(line)
    for entry in entries:
        head, _, shape = "\n".join(entry).partition("\n  → ")
        signature = re.sub(r"\n +", "  ", head).removeprefix("txlog ")
        path = max(
            (each for each in catalogue.COMMANDS if f"{signature} ".startswith(f"{each} ")), key=len
        )
        assert path not in blocks, path
        blocks[path] = (signature.removeprefix(path).strip(), shape)
    return blocks


BLOCKS = _blocks()
SHAPED = {path: text for path, (_, text) in BLOCKS.items() if text.startswith(("[{", "{", "~{"))}
OPEN = {
    "inspect",
    "query",
    "dlq list",
    "top",
}  # their fields depend on the arguments, or they need a terminal


def command(path: str) -> Command:
    return load(path)


def shape(path: str) -> Shape:
    """The shape of a command with the fields that it takes from another."""
    out = shape_of(SHAPED[path])
    if out.extends:
        parent_shape = shape(out.extends)
        out.fields = parent_shape.fields + out.fields
        out.shown = parent_shape.shown
    return out


def test_every_command_is_in_section_8() -> None:
    """Section 8 has exactly the commands of the program. Kills: an undocumented command."""
    assert sorted(BLOCKS) == sorted(catalogue.COMMANDS)


@pytest.mark.parametrize("path", sorted(set(SHAPED) - OPEN))
def test_fields_match_the_help(path: str) -> None:
    """The same fields in order and type, with the bar at the end of the default table."""
    declared, documented = command(path), shape(path)
    assert [field.name for field in documented.fields] == declared.fields
    if documented.shown is not None:
        assert [
            field.name for field in documented.fields[: documented.shown]
        ] == declared.table_fields
    else:
        not_in_table = set(declared.fields) - set(declared.table_fields)
        assert not_in_table <= {"dry_run"} or shape_of(SHAPED[path]).extends
    types = {field.name: field.type for field in declared.row_fields}
    assert {field.name: field.type for field in documented.fields} == types


def test_commands_without_a_shape_declare_no_fields() -> None:
    """Section 7 has the fields of messages, and texts have no fields."""
    for path in set(BLOCKS) - set(SHAPED):
        declared = command(path)
        assert declared.records or not declared.fields, path
    assert [field.name for field in record()] == list(RECORD_FIELDS)


def record() -> list[Field]:
    block = re.search(r"(?ms)^```\n~(.*?)^```", section("cli", "7"))
    assert block
    return shape_of(block[1]).fields


def test_aliases_match_the_catalogue() -> None:
    line = re.search(r"(?s)Nouns have aliases: (.*?)\.\s+`txn\s+status`", section("cli", "2"))
    assert line
    documented = {
        alias: nouns[0]
        for nouns in (words(part) for part in line[1].split(";"))
        for alias in nouns[1:]
    }
    assert documented == catalogue.ALIASES


def test_global_flags_match_the_program() -> None:
    documented = {
        tuple(word.partition(" ")[0] for word in words(cells[0])): words(cells[0])[-1]
        for cells in table(section("cli", "2"), "flag")
    }
    documented.pop(("-h", "--help"))
    declared: dict[tuple[str, ...], str] = {}
    for names, value, _ in GLOBAL_FLAGS.values():
        ordered = tuple(sorted(names, key=len))
        declared[ordered] = ordered[-1] + (f" {value}" if value else "")
    assert documented == declared


def test_variables_match_the_program() -> None:
    """The table has each environment variable that the code reads."""
    rows = table(section("cli", "3"), "variable")
    assert [words(cells[0])[0] for cells in rows] == list(VARIABLES)
    documented = set(re.findall(r"[A-Z][A-Z_]{3,}", "\n".join(" ".join(cells) for cells in rows)))
    read = set[str]()
    for file in (ROOT / "src").rglob("*.py"):
        read |= set(re.findall(r"""["'](TXLOG_[A-Z_]+)["']""", file.read_text(encoding="utf-8")))
    assert read - {"TXLOG_JRE"} <= documented  # txlog only sets it, for Spark's java


def test_formats_match_the_flag() -> None:
    """The program accepts exactly the forms that the spec allows."""
    rows = {words(cells[0])[0]: cells for cells in table(section("cli", "4"), "format")}
    takes = {name for name, cells in rows.items() if cells[1] != "no"}
    assert takes == {"auto", *LISTING_FORMS}
    assert {name for name, cells in rows.items() if cells[2] != "no"} == {"auto", *RECORD_FORMS}


def test_exit_codes_match_the_program() -> None:
    assert [int(cells[0]) for cells in table(section("cli", "5"), "exit")] == list(EXITS)


def test_codes_have_their_classes_and_kinds() -> None:
    """Kills: a code, a class or a kind that only the spec or only the program has."""
    rows = table(section("cli", "5"), "code")
    assert [int(cells[0]) for cells in rows] == list(CODES)
    for number, _, classes, kinds in rows:
        code = int(number)
        assert sorted(words(classes)) == sorted(names_of(code)), code
        carry = [cls for cls in error_table() if code in cls.codes]
        kinds_of_code = {cls("x", code=code).kind for cls in carry}
        assert set(words(kinds)) == kinds_of_code, code


def test_format_verbs_match_the_help() -> None:
    """Out and in, each verb with its forms."""
    rows = table(section("cli", "7"), "verb")
    out = source("formatting").partition("# OUT\n")[2].partition("\n#")[0]
    listed = [verb.strip() for line in out.splitlines() if " :: " in line
              for verb in line.partition(" :: ")[0].split(", ")]  # fmt: skip
    assert sorted(verb for cells in rows for verb in words(cells[0])) == sorted(listed)
    help_text = source("formatting").partition("# IN\n")[2].partition("\n#")[0]
    into = {verb[:2] for line in help_text.splitlines() if " :: " in line
            for verb in line.partition(" :: ")[0].split(", ")}  # fmt: skip
    documented = {verb[:2] for cells in rows if cells[2] != "–" for verb in words(cells[0])}
    assert into <= documented


def test_extras_match_the_package() -> None:
    line = re.search(r"(?s)the extras are (.*?)\.", section("cli", "10"))
    assert line
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert words(line[1]) == list(project["optional-dependencies"])


# Commands that run on one store, in this order; KEEP: the test does not know the store's contents.
STORY = """
init {store} --coordinators 2
topic create orders --partitions 2
topic create pay gone
topic update pay --partitions 2 --ttl 1h
topic list
topic describe orders
sub create billing -t orders
sub create crew -t orders --type shared
sub create fast -t gone
produce orders -m {object} -m x -k a
produce orders -m soon --deliver-after 1h
produce pay --txn --transaction-key nightly -m y
topic stats orders
status
sub list
sub describe billing
sub backlog billing
txn connect nightly
txn begin --transaction-key nightly
produce orders -m z --txn-id OPEN
sub ack billing {first} --txn-id OPEN
txn list --all
txn show OPEN --keys
txn log OPEN
admin transaction-metadata OPEN
admin slow-transactions --time 0s
admin coordinators
admin coordinator-stats --internal
admin transaction-buffer-stats orders --txn OPEN
admin pending-ack-stats orders billing --txn OPEN --internal
admin position-in-pending-ack orders billing {first}
admin list-transaction-keys
admin get-transaction-key nightly
txn find-hanging --older-than 0s
txn commit OPEN
txn wait OPEN
txn begin
txn abort OPEN
txn expire
delay list orders
delay next orders
delay buckets orders
delay rebuild orders
delay merge orders
watermark set orders -1h --producer till
watermark show orders
watermark show orders -s billing
watermark producers orders
watermark history orders
watermark snapshot orders
watermark idle orders --producer till
policy delayed set -t orders --tick-time 2s
policy delayed get -t orders
policy delayed remove -t orders
policy retention set -N public/default --time 1d
policy retention get
policy retention remove -N public/default
policy schema set --compatibility BACKWARD
policy schema get
policy schema remove
topic create typed --schema {schema}
schema get typed
schema versions typed
schema upload typed {schema}
schema test typed {schema}
schema delete typed --yes
policy watermark set --emit-interval 1s
policy watermark get
policy watermark remove
admin checkpoint --roll-all
admin compact orders
admin compact-topic orders
admin compact-changes
admin gc
admin repair
admin accept-clock
admin locks
admin offline orders/1
admin online orders/1
segment list
segment show {first_ledger}
segment cat {first_ledger}
run {function}:upper --input orders --output pay -s upper --create
transform orders pay -s copy --create -- cat
wait --topic orders --messages 1
verify
doctor
check
metrics
job audit orders
job lateness orders
topic create loads
job bulk-load {rows} loads --transaction-key loads --engine duckdb --dry-run
job bulk-load {rows} loads --transaction-key loads --engine duckdb
job replay orders loads --transaction-key again --engine duckdb
export orders {delta} --to delta
job compact orders --engine duckdb --dry-run
job rebuild-delayed orders --engine duckdb --dry-run
export orders {out}
import {rows} pay --in ndjson
sub nack crew {first}
sub redeliver crew --all
sub ack billing {first}
sub seek billing --to end --yes
sub skip billing --all --yes
sub clear-backlog crew --yes
sub expire billing --older-than 1h --yes
delay promote orders --all --yes
delay cancel orders --all --yes
sub delete fast --yes
topic delete gone --yes
admin delete-transaction-key nightly
admin scale-transaction-coordinators 3
admin trim orders --to end --force-unacked --yes
admin offload orders --to {far}
admin confirm {far}
config show
config get durability
config set ttl_ms 1000
copy {copy} --verify
restore {copy} {store}-again
du
report --out {page}
demo {demo} --small
spark submit-args
bench --mode produce --duration 20ms
token create-key {object}.key
token create --role billing --key {object}.key --expires-in 1d
token show {token} --auth {rules}
completion install bash
man install
"""

SIGNING = "0123456789abcdef0123456789abcdef"
TOKEN = (
    "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJiaWxsaW5nIn0."
    "O2FEiOpqv7C2Wys-VDJ_kM4wFYs6iVm_eyLnXuY0vxk"
)
TRIP = '{"type":"record","name":"Trip","fields":[{"name":"miles","type":"double"}]}'


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    for name in [name for name in os.environ if name.startswith("TXLOG")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TXLOG_STORE", str(tmp_path / "shop"))
    monkeypatch.chdir(tmp_path)

    def call(*line: str) -> tuple[int, str, str]:
        code = main(line)
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return call


def test_printed_json_matches_the_spec(run: Run, tmp_path: Path) -> None:
    """Keys in order, types, nulls only where marked, also inside lists and objects."""
    (tmp_path / "rows.ndjson").write_text('{"value":"a"}\n')
    (tmp_path / "trip.avsc").write_text(TRIP)
    (tmp_path / "far").mkdir()
    (tmp_path / "signing.key").write_text(SIGNING)
    (tmp_path / "rules.toml").write_text("[tokens]\nsecret_key = 'signing.key'\n")
    (tmp_path / "billing.token").write_text(TOKEN)
    (tmp_path / "function.py").write_text("def upper(message):\n    return message.value.upper()\n")
    values = {
        "store": str(tmp_path / "shop"), "object": '{"a":1}', "first": "1:0", "first_ledger": "1",
        "rows": str(tmp_path / "rows.ndjson"), "out": str(tmp_path / "out.parquet"),
        "far": str(tmp_path / "far"), "copy": str(tmp_path / "copy"),
        "delta": str(tmp_path / "delta"), "function": str(tmp_path / "function.py"),
        "page": str(tmp_path / "page.html"), "demo": str(tmp_path / "demo"),
        "schema": str(tmp_path / "trip.avsc"), "rules": str(tmp_path / "rules.toml"),
        "token": str(tmp_path / "billing.token"),
    }  # fmt: skip
    txn = ""
    wrong: list[str] = []
    for line in filter(None, STORY.splitlines()):
        command_line = [txn if word == "OPEN" else word.format(**values) for word in line.split()]
        path, used = catalogue.resolve(command_line)
        code, out, err = run("--json", *command_line)
        if (code, err) != (0, "") and not (code == 0 and "warning" in err):
            wrong.append(f"{line}: exit {code} {err}")
            continue
        answers = [json.loads(each) for each in out.splitlines()]
        wrong += [f"{line}: {why}" for why in _judge(path, answers) if why]
        if path == "txn begin":
            txn = answers[0]["txn"]
        assert used
    assert not wrong, "\n".join(wrong)


def _judge(path: str, answers: list[Any]) -> list[str]:
    declared = shape(path)
    if path == "demo":
        return []  # --small answers with other fields
    if declared.kind == "list" or path == "segment cat":
        assert len(answers) == 1 and isinstance(answers[0], list), path
        answers = answers[0]
    elif declared.kind == "one":
        assert len(answers) == 1, path
    return [misfits(declared.fields, row) for row in answers]


def test_printed_json_about_trouble_matches_the_spec(run: Run, tmp_path: Path) -> None:
    """Answers about a live consumer, waiting transactions, damage and stray files."""
    run("init", "--coordinators", "1")
    run("topic", "create", "orders", "pay")
    run("sub", "create", "billing", "-t", "orders", "--type", "failover")
    run("produce", "orders", "-m", "x", "-m", "y")
    wrong: list[str] = []

    def judge(*line: str, least: int, within: str = "") -> None:
        """Compare an answer; it, or the list `within` it, has at least so many rows."""
        code, out, err = run(*line, "--json")
        answers = [json.loads(each) for each in out.splitlines()]
        wrong.extend(
            f"{line}: {why}" for why in _judge(catalogue.resolve([*line])[0], answers) if why
        )
        rows = answers[0] if not within else answers[0][within]
        assert len(rows) >= least, (line, code, err)

    with (
        txlog.open(str(tmp_path / "shop")) as client,
        client.consumer("orders", "billing") as consumer,
    ):
        consumer.receive()
        judge("sub", "describe", "billing", least=1, within="consumer_list")
    txn = run("txn", "begin", "--transaction-key", "nightly")[1].strip()
    run("produce", "pay", "-m", "z", "--txn-id", txn)
    run("admin", "offline", "pay/0")
    run("txn", "commit", txn)
    judge("txn", "find-hanging", "--older-than", "0s", least=1)
    judge("txn", "expire", least=1, within="waiting_list")
    judge("status", least=1, within="problem_list")
    judge("admin", "online", "pay/0", least=1, within="finished_list")
    other = run("txn", "begin", "--transaction-key", "nightly")[1].strip()
    judge("admin", "delete-transaction-key", "nightly", least=1, within="aborted_list")
    assert other != txn
    run("admin", "checkpoint", "--roll-all")
    sealed = next((tmp_path / "shop" / "topics").rglob("ledger-*.parquet"))
    (sealed.parent / "ledger-000000000099.0000000001.parquet").write_bytes(b"nobody names it")
    judge("admin", "gc", "--keep", "0s", least=1, within="file_list")
    damaged = bytearray(sealed.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    sealed.write_bytes(bytes(damaged))
    judge("verify", least=1, within="problem_list")
    judge("admin", "repair", least=1, within="action_list")
    assert not wrong, "\n".join(wrong)


def test_transcripts_show_the_json_of_the_other_commands() -> None:
    """Commands that STORY lacks have their JSON in a transcript, and it fits their shape.

    Kills: a command with a shape that no test compares with its output.
    """
    told = {catalogue.resolve(line.split())[0] for line in STORY.splitlines() if line}
    wrong: list[str] = []
    for path in set(SHAPED) - OPEN - told:
        answers = _in_transcripts(path)
        assert answers, f"no transcript has the JSON of {path}"
        wrong += [f"{path}: {why}" for why in _judge(path, answers) if why]
    assert not wrong, "\n".join(wrong)


def _in_transcripts(path: str) -> list[Any]:
    """The JSON of a command in transcripts, from lines that run nothing else."""
    words_of_line = re.compile(rf"txlog {path} [^|;&]*--json[^|;&]*")
    return [
        json.loads(re.sub("<(?:TIME|UID)>", "0", line))
        for file in golden.GOLDEN.glob("*.txt")
        for block in golden.parse(file.read_text(encoding="utf-8"))
        if words_of_line.fullmatch(block.command)
        for line in block.output
        if line.startswith(("[", "{")) and not line.startswith("[exit ")
    ]


def test_inspect_answers_with_the_fields_of_its_table(run: Run) -> None:
    """Each kind has the fields of another command, then its own fields."""
    run("init", "--coordinators", "1")
    run("topic", "create", "orders")
    run("sub", "create", "billing", "-t", "orders")
    run("produce", "orders", "-m", "x", "--txn", "--transaction-key", "nightly")
    row_of_kind = {words(row[0])[0]: row[1] for row in table(section("cli", "8.1"), "kind")}
    for word, kind in {
        "": "store", "orders": "topic", "sub:billing": "subscription", "txn:0:0": "transaction",
        "key:nightly": "transaction_key", "msg:1:0:1": "message", "ledger:1": "ledger",
        "lsn:4": "frame",
    }.items():  # fmt: skip
        answer = json.loads(run("inspect", *filter(None, [word]), "--json")[1])
        source_of_fields, _, own_fields = row_of_kind[kind].rpartition(";")
        names = [] if "the fields of" in own_fields else words(own_fields)
        for path in words(source_of_fields or own_fields):
            if path in catalogue.COMMANDS:
                names = [field.name for field in shape(path).fields] + names
        if kind == "transaction":
            names.remove("key_list")
        if kind == "message":
            names = [*RECORD_FIELDS, *names]
        assert sorted(answer) == sorted({"kind", *names}), kind
    for nothing in ("nothing", "lsn:99999", "ledger:99", "sub:nothing"):
        error = json.loads(run("inspect", nothing, "--json")[2])["error"]
        assert (error["code"], error["class"]) == ("TXL-308", "NotFound")


@pytest.mark.parametrize("path", [path for path in BLOCKS if ASKS in BLOCKS[path][0]])
def test_command_that_asks_is_refused_without_a_terminal(run: Run, path: str) -> None:
    """901 and no change; with -y the same line does its work."""
    # The first asks for --all-stuck only, and a stuck one needs a lost partition; tests/cli
    # test_resolve has the other.
    if path in ("txn abort", "txn resolve"):
        return
    arguments = {
        "topic delete": "gone", "sub seek": "billing --to 1:1", "sub skip": "billing -n 1",
        "schema delete": "typed",
        "sub clear-backlog": "billing", "sub expire": "billing --older-than 0s",
        "sub delete": "billing", "delay promote": "orders --all", "delay cancel": "orders --all",
        "admin trim": "orders --to end --force-unacked", "restore": "backup shop --replace",
    }[path]  # fmt: skip
    run("init", "--coordinators", "1")
    run("topic", "create", "orders", "gone")
    Path("trip.avsc").write_text(TRIP)
    run("topic", "create", "typed", "--schema", "trip.avsc")
    run("sub", "create", "billing", "-t", "orders", "--type", "shared")
    run("produce", "orders", "-m", "x", "-m", "y")
    run("produce", "orders", "-m", "z", "--deliver-after", "1h")
    run("copy", "backup")
    line = (*path.split(), *arguments.split())
    code, out, err = run(*line, "--json", "--no-input")
    assert (code, out, json.loads(err)["error"]["code"]) == (9, "", "TXL-901")
    assert run(*line, "--json", "--yes")[0] == 0

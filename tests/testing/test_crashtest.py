"""`txlog crashtest`: planted mistakes and their lines, and programs without any.

The programs of `planted` have one mistake each. The comment `cause` is at the line that a finding
has to name, `other` at the line that has to be in one step with it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import txlog
from tests.source_tree import ROOT
from txlog.cli.main import main
from txlog.errors import CommandFailed, InvalidArgument
from txlog.testing.crashtest.trials import Options, crashtest

PLANTED = Path(__file__).parent / "planted"
# By program: the kind of the finding, and part of the cause in words.
MISTAKES = {
    "acknowledges_first": ("lost", "line 9 acknowledges before line 10 writes"),
    "writes_first": ("doubled", "line 9 writes before line 10 acknowledges"),
    "acknowledges_outside": ("lost", "acknowledges outside of the transaction of line 10"),
    "writes_a_file": ("doubled", "changes printed.txt outside of the transaction that line 9"),
    "writes_a_row": ("doubled", "changes bills.db before line 14 acknowledges"),
    "keeps_an_offset": ("doubled", "writes before line 16 keeps the position"),
    "keeps_an_offset_first": ("lost", "keeps the position in posix.replace before line 17 writes"),
    "tears_an_offset": ("stuck", "does not run again after a kill: exit code 1: ValueError"),
    "counts_in_memory": ("lost", "sends under a sequence id that was used before the kill"),
    "two_transactions": ("doubled", "commits what line 10 writes before line 11 commits"),
    "goes_on": ("lost", "line 12 fails, and line 13 acknowledges nevertheless"),
    "acknowledges_all": ("lost", "line 9 acknowledges before line 11 writes"),
    "does_not_flush": ("lost", "acknowledges before what line 9 sends is stored"),
    "remembers_what_it_saw": ("doubled", "remembers in memory only what it has seen"),
    "sums_in_memory": ("changed", "depends on what the program keeps in memory"),
}
QUICK = ("acknowledges_first", "writes_a_file")
ASYNCHRONOUS = """
import asyncio
import txlog.aio

async def main():
    async with (
        txlog.aio.open("shop", transaction_key="billing") as client,
        client.producer("bills") as bills,
        client.consumer("orders", "billing") as consumer,
    ):
        while message := await consumer.receive(timeout_ms=0):
            async with client.transaction() as txn:
                await bills.send(b"bill for " + message.value, txn=txn)
                await consumer.acknowledge(message, txn=txn)

asyncio.run(main())
"""
FUNCTION = """
import txlog
from txlog.functions import FunctionOptions, run

def bill(message):
    return b"bill for " + message.value

with txlog.open("shop") as client:
    run(client, bill, ["orders"], "bills", "billing", FunctionOptions(txn_size=2))
"""
FOLLOWING = """
import txlog

with txlog.open("shop", transaction_key="billing") as client:
    bills = client.producer("bills")
    for message in client.consumer("orders", "billing"):
        with client.transaction() as txn:
            bills.send(b"bill for " + message.value, txn=txn)
            client.acknowledge("orders", "billing", [message.message_id], txn=txn)
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[txlog.Client]:
    """A store with three orders, two equal ones, in the working directory."""
    monkeypatch.chdir(tmp_path)
    txlog.init("shop", durability="os")
    with txlog.open("shop") as client:
        for topic in ("orders", "bills"):
            client.create_topic(topic)
        client.create_subscription("orders", "billing")
        for value in (b"3 cups", b"1 lamp", b"3 cups"):
            client.producer("orders").send(value)
        yield client


def answer_of(client: txlog.Client, program: str, **options: Any) -> dict[str, Any]:
    """The answer of a crash test of a program, which is text."""
    Path("program.py").write_text(program)
    return dict(
        crashtest(client, "program.py", Options(inputs=["orders"], outputs=["bills"], **options))
    )


def marked(program: str, word: str) -> int | None:
    """The line with a comment."""
    lines = [n for n, line in enumerate(program.splitlines(), 1) if line.endswith(f"# {word}")]
    return lines[0] if lines else None


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.deep) for name in MISTAKES],
)
def test_planted_mistake_is_named_with_its_line(shop: txlog.Client, name: str) -> None:
    program = (PLANTED / f"{name}.py").read_text()
    kind, cause = MISTAKES[name]
    answer = answer_of(shop, program, points=8)
    findings = [row for row in answer["finding_list"] if row["kind"] == kind]
    wanted = (marked(program, "cause"), marked(program, "other"))
    assert wanted in [(row["line"], row["other_line"]) for row in findings], answer
    assert any(cause in row["cause"] for row in findings), answer
    assert answer["tried"] == 8 < answer["points"]


def test_every_planted_program_has_a_test() -> None:
    assert {file.stem for file in PLANTED.glob("*.py")} == {*MISTAKES, "__init__"}


@pytest.mark.deep
@pytest.mark.parametrize("program", [ASYNCHRONOUS, FUNCTION], ids=["aio", "function"])
def test_correct_program_has_no_finding_at_any_point(shop: txlog.Client, program: str) -> None:
    answer = answer_of(shop, program)
    assert answer["finding_list"] == []
    assert answer["tried"] == answer["points"] >= 8
    assert [row["backlog"] for row in shop.subscriptions("orders")] == [3]


@pytest.mark.deep
def test_exact_program_of_the_tutorial_has_no_finding(shop: txlog.Client) -> None:
    tutorial = (ROOT / "docs" / "tutorial.md").read_text()
    found = re.search(r"^```python exact.py\n(.*?)^```", tutorial, re.DOTALL | re.MULTILINE)
    assert found is not None
    shop.create_topic("invoices")
    Path("exact.py").write_text(found[1])
    answer = crashtest(shop, "exact.py", Options(inputs=["orders"], outputs=["invoices"]))
    assert answer["finding_list"] == []
    assert answer["tried"] == answer["points"] >= 20


@pytest.mark.deep
def test_program_that_waits_is_stopped_when_it_is_idle(shop: txlog.Client) -> None:
    answer = answer_of(shop, FOLLOWING, points=1, idle_ms=2000)
    assert (answer["tried"], answer["finding_list"]) == (1, [])


def test_program_that_fails_without_a_kill_is_no_finding(shop: txlog.Client) -> None:
    with pytest.raises(CommandFailed, match="ZeroDivisionError"):
        answer_of(shop, "1 / 0")
    with pytest.raises(CommandFailed, match="writes no message to bills"):
        answer_of(shop, "import txlog")


def test_program_that_writes_chance_is_refused(shop: txlog.Client) -> None:
    chance = 'import uuid, txlog\ntxlog.open("shop").producer("bills").send(uuid.uuid4().bytes)'
    with pytest.raises(CommandFailed, match="two runs without a kill differ: bills lost 1"):
        answer_of(shop, chance)


def test_program_may_not_write_to_another_store(shop: txlog.Client) -> None:
    txlog.init("other")
    with pytest.raises(CommandFailed, match=r"has a copy of .*shop only"):
        answer_of(shop, 'import txlog\ntxlog.open("other")')


def test_input_without_messages_needs_some(shop: txlog.Client) -> None:
    shop.create_topic("empty")
    Path("program.py").write_text("")
    with pytest.raises(InvalidArgument, match="empty has no messages"):
        crashtest(shop, "program.py", Options(inputs=["empty"]))
    with pytest.raises(InvalidArgument, match="no program"):
        crashtest(shop, "absent.py", Options(inputs=["orders"]))


def test_command_prints_the_lines_and_ends_with_6(
    shop: txlog.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(PLANTED / "acknowledges_first.py", "program.py")
    shop.close()
    words = ["crashtest", "program.py", "--input", "orders", "--output", "bills", "--at", "3"]
    assert main(["-S", "shop", *words]) == 6
    out = capsys.readouterr().out
    assert "lost: line 9 acknowledges before line 10 writes\n" in out
    assert "  program.py:9  consumer.acknowledge(message)  # cause\n" in out
    assert "1 finding: program.py, 3 messages, killed or refused at 1 of 19 points\n" in out

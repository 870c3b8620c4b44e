"""Every command line of txlog in a text works as printed."""

from __future__ import annotations

import re

import pytest

from tests.command_lines import fault_of, lines_of, texts_of
from tests.source_tree import ROOT, modules
from tests.tiers import graded
from txlog.base.suggest import nearest
from txlog.cli.line import catalogue, typer
from txlog.cli.line.catalogue import COMMANDS, NOUNS
from txlog.cli.line.dispatch import load
from txlog.cli.line.synonyms import FLAGS
from txlog.errors import Usage

OF_SHELL = ("cli/demo/tour", "cli/help/codes", "cli/line/catalogue")
# a repr, what a page describes, the list of help topics
LIKE_LINES = ("txlog topic {!}", "txlog job NAME", "txlog help {!}")
SHOWS_LINES = re.compile(r"txlog (?!import)[a-z{]|command_line\(")


def test_command_lines_in_texts_of_the_program_can_be_typed() -> None:
    """Hints, undo lines, next steps, empty listings, help, meanings of fields and findings."""
    faults = []
    for module in modules():
        if SHOWS_LINES.search(module.file.read_text()) is None:
            continue
        for text in texts_of(module.tree):
            is_code = text.is_example or module.path in OF_SHELL
            quoted = re.findall(r"`(txlog [^`]*)`", text.text)
            for each in quoted if text.is_docstring else [text.text]:
                for line in lines_of(each, prose=not is_code and not quoted):
                    fault = fault_of(line, may_be_bare=text.is_docstring or bool(quoted))
                    if fault is not None and not str(line).startswith(LIKE_LINES):
                        faults.append(f"{module.path}:{text.number}: {line}: {fault}")
    assert not faults, "\n" + "\n".join(faults)


def test_command_lines_in_documents_can_be_typed() -> None:
    faults = []
    for file in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]:
        if "decisions" in file.parts:  # decisions keep the commands of their time
            continue
        written = file.read_text().partition("\n## 8. Commands")[0]  # a command and its arguments
        for code in re.findall(r"```.*?```|`[^`]*`", written, re.DOTALL):
            for line in lines_of(code, prose=False):
                fault = fault_of(line, may_be_bare=True)
                if fault is not None and not str(line).startswith(LIKE_LINES):
                    faults.append(f"{file.relative_to(ROOT)}: {line}: {fault}")
    assert not faults, "\n" + "\n".join(faults)


def hint_of(typed: list[str]) -> str:
    """The hint of a line that names no command."""
    try:
        catalogue.resolve(catalogue.expanded(typed))
    except Usage as error:
        return error.hint or ""
    return ""


@pytest.mark.parametrize("nouns", graded([["", *[*NOUNS][:2]], [*NOUNS][2:]], 1), ids=len)
def test_suggestions_for_unknown_words_can_be_typed(nouns: list[str]) -> None:
    faults = []
    for noun in nouns:
        for word in [*catalogue.vocabulary().words, "prodcue", "nothing"]:
            for names in ([], ["orders"], ["orders", "my sub"], ["orders", "-y"]):
                hint = hint_of([*noun.split(), word, *names])
                for line in lines_of(hint, prose=False):
                    fault = fault_of(line)
                    if fault is not None and "scale-transaction-coordinators" not in line.words:
                        faults.append(f"{noun} {word} {names}: {line}: {fault}")
    assert not faults, "\n" + "\n".join(faults)


@pytest.mark.parametrize("path", [*COMMANDS])
def test_the_hint_for_a_wrong_line_of_a_command_can_be_typed(path: str) -> None:
    command = load(path)
    for args in (
        [],
        ["a"],
        ["a", "b"],
        [*"abcdef"],
        ["--nothing"],
        ["--topic", "a"],
        ["--out", "a"],
    ):
        try:
            typer.invoke(command, args, lambda values: 0)
        except Usage as error:
            for line in lines_of(error.hint or "", prose=False):
                assert fault_of(line) is None, (args, error.hint)
            if "no such option" in error.message and "did you mean" in str(error.hint):
                flag = str(error.hint).split()[3]
                assert nearest(args[0][2:], [flag[2:]]) or args[0] in FLAGS, (args, error.hint)
